//! Signatures that prove the caller's identity to an endpoint: a keyed hash of the body.

use hmac::{Hmac, Mac as _};
use sha2::Sha256;

/// `sha256=` and the HMAC-SHA256 of `body` in hexadecimal digits.
///
/// # Panics
///
/// Never: HMAC takes keys of every length.
pub(super) fn signature(key: &[u8], body: &[u8]) -> String {
    use std::fmt::Write as _;
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of every length");
    mac.update(body);
    let mut text = "sha256=".to_owned();
    for byte in mac.finalize().into_bytes() {
        write!(text, "{byte:02x}").expect("a String takes everything");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values are RFC 4231, test case 2.
    #[test]
    fn a_signature_is_the_standards() {
        let text = signature(b"Jefe", b"what do ya want for nothing?");

        assert_eq!(
            text,
            "sha256=5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
        );
    }
}
