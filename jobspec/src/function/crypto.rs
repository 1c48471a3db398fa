//! Hashes, identifiers and secrets.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use md5::Md5;
use num_bigint::BigUint;
use sha1::Sha1;
use sha2::{Digest, Sha256, Sha512};
use uuid::Uuid;

use super::call::{
    Args, Function, Outcome, Param, argument, function, text_answer, variadic, whole,
};
use super::encoding::from_base64;
use crate::limits::{BCRYPT_COST_MAX, RSA_BITS_MAX};

pub(super) const FUNCTIONS: &[Function] = &[
    variadic("bcrypt", &[Param::Text], Param::Number, bcrypt),
    function("md5", &[Param::Text], hash::<Md5>),
    function("rsadecrypt", &[Param::Text, Param::Text], rsadecrypt),
    function("sha1", &[Param::Text], hash::<Sha1>),
    function("sha256", &[Param::Text], hash::<Sha256>),
    function("sha512", &[Param::Text], hash::<Sha512>),
    function("uuidv4", &[], |_args| {
        text_answer(Uuid::new_v4().to_string())
    }),
    function("uuidv5", &[Param::Text, Param::Text], uuidv5),
];

fn hash<D: Digest>(args: &Args<'_>) -> Outcome {
    let digest = D::digest(args.text(0)?);
    let mut text = String::new();
    for byte in digest {
        let _infallible = write!(text, "{byte:02x}");
    }
    text_answer(text)
}

fn bcrypt(args: &Args<'_>) -> Outcome {
    /// Go's default cost, which Go also uses for a cost below the minimum.
    const DEFAULT_COST: u32 = 10;
    const COST_MIN: i64 = 4;
    /// bcrypt reads no more of a password.
    const PASSWORD_BYTES_MAX: usize = 72;
    if args.len() > 2 {
        return Err(whole(format!("takes 1 to 2 arguments, not {}", args.len())));
    }
    let cost = match args.len() {
        1 => DEFAULT_COST,
        _ => match args.whole(1)? {
            cost if cost < COST_MIN => DEFAULT_COST,
            cost => u32::try_from(cost)
                .ok()
                .filter(|cost| *cost <= BCRYPT_COST_MAX)
                .ok_or_else(|| argument(1, format!("the cost is at most {BCRYPT_COST_MAX}")))?,
        },
    };
    let password = args.text(0)?;
    if password.len() > PASSWORD_BYTES_MAX {
        return Err(argument(
            0,
            format!("a password has at most {PASSWORD_BYTES_MAX} bytes"),
        ));
    }
    // Go writes `2a`, which means the same.
    let hash =
        ::bcrypt::hash_with_result(password, cost).map_err(|error| whole(error.to_string()))?;
    text_answer(hash.format_for_version(::bcrypt::Version::TwoA))
}

fn uuidv5(args: &Args<'_>) -> Outcome {
    let namespace = match args.text(0)? {
        "dns" => Uuid::NAMESPACE_DNS,
        "url" => Uuid::NAMESPACE_URL,
        "oid" => Uuid::NAMESPACE_OID,
        "x500" => Uuid::NAMESPACE_X500,
        other => Uuid::parse_str(other).map_err(|_unparsed| {
            let message =
                format!("`{other}` is not a namespace: use dns, url, oid, x500 or a UUID");
            argument(0, message)
        })?,
    };
    let mut sha1 = Sha1::new();
    sha1.update(namespace.as_bytes());
    sha1.update(args.text(1)?.as_bytes());
    let digest = sha1.finalize();
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    let id = uuid::Builder::from_sha1_bytes(bytes).into_uuid();
    text_answer(id.to_string())
}

/// Decrypts PKCS #1 v1.5 with a private key in PEM. The caller of the command supplies both.
fn rsadecrypt(args: &Args<'_>) -> Outcome {
    let cipher = from_base64(args, 0)?;
    let key = PrivateKey::read(args.text(1)?).ok_or_else(|| {
        let message = "expected a private key in PEM (BEGIN RSA PRIVATE KEY) without a password";
        argument(1, message)
    })?;
    let failed = || argument(0, "the key does not decrypt it");
    let text = key.decrypt(&cipher).ok_or_else(failed)?;
    match String::from_utf8(text) {
        Ok(text) => text_answer(text),
        Err(_) => Err(argument(0, "the decrypted bytes are not UTF-8 text")),
    }
}

#[derive(Debug)]
struct PrivateKey {
    modulus: BigUint,
    exponent: BigUint,
}

impl PrivateKey {
    /// The key in `pem`, in the form of PKCS #1.
    fn read(pem: &str) -> Option<Self> {
        const BEGIN: &str = "-----BEGIN RSA PRIVATE KEY-----";
        let body = pem.split_once(BEGIN)?.1.split_once("-----END")?.0;
        if body.contains("ENCRYPTED") {
            return None;
        }
        let body: String = body.split_whitespace().collect();
        let der = STANDARD.decode(body).ok()?;
        let (content, _) = field(&der, 0x30)?;
        let (_version, rest) = field(content, 2)?;
        let (modulus, rest) = field(rest, 2)?;
        let (_public, rest) = field(rest, 2)?;
        let (exponent, _) = field(rest, 2)?;
        let key = Self {
            modulus: BigUint::from_bytes_be(modulus),
            exponent: BigUint::from_bytes_be(exponent),
        };
        let bits = key.modulus.bits();
        (bits > 88 && bits <= RSA_BITS_MAX && key.exponent.bits() <= bits).then_some(key)
    }

    fn decrypt(&self, cipher: &[u8]) -> Option<Vec<u8>> {
        let size = usize::try_from(self.modulus.bits().div_ceil(8)).ok()?;
        if cipher.len() > size {
            return None;
        }
        let number = BigUint::from_bytes_be(cipher);
        if number >= self.modulus {
            return None;
        }
        let plain = number.modpow(&self.exponent, &self.modulus).to_bytes_be();
        // The padding: 0, 2, at least eight other bytes, 0. The first zero has no digit.
        if plain.len() + 1 != size || plain.first() != Some(&2) {
            return None;
        }
        let end = plain
            .iter()
            .position(|byte| *byte == 0)
            .filter(|end| *end > 8)?;
        Some(plain[end + 1..].to_vec())
    }
}

/// The contents of the DER field of type `tag` that `der` begins with, and the bytes after it.
fn field(der: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let rest = der.strip_prefix(&[tag])?;
    let (length, rest) = rest.split_first()?;
    let (length, rest) = match usize::from(*length) {
        length @ ..=127 => (length, rest),
        long => {
            let (bytes, rest) = rest.split_at_checked(long - 128).filter(|_| long <= 132)?;
            let length = bytes.iter().try_fold(0_usize, |length, byte| {
                length.checked_mul(256)?.checked_add(usize::from(*byte))
            })?;
            (length, rest)
        }
    };
    rest.split_at_checked(length)
}
