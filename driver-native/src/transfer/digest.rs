//! Checksums of downloads and uploads.

use md5::Md5;
use sha1::Sha1;
use sha2::Sha256;
use sha2::digest::DynDigest;

/// The checksum that a client gave for a download.
pub(crate) struct ExpectedDigest {
    digest: Box<dyn DynDigest + Send>,
    algorithm: String,
    value: String,
}

/// The reason why a download does not match its checksum.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum SumError {
    #[error("checksum_algorithm {0:?} is none of md5, sha1, sha256")]
    Algorithm(String),
    #[error("its {algorithm} is {found}, not {wanted}")]
    Other {
        algorithm: String,
        found: String,
        wanted: String,
    },
}

impl ExpectedDigest {
    /// Parses a checksum; returns `None` if the client gave none.
    pub(crate) fn read(algorithm: &str, value: &str) -> Result<Option<Self>, SumError> {
        let digest: Box<dyn DynDigest + Send> = match algorithm {
            "" if value.is_empty() => return Ok(None),
            "md5" => Box::<Md5>::default(),
            "sha1" => Box::<Sha1>::default(),
            "sha256" => Box::<Sha256>::default(),
            other => return Err(SumError::Algorithm(other.to_owned())),
        };
        Ok(Some(Self {
            digest,
            algorithm: algorithm.to_owned(),
            value: value.to_ascii_lowercase(),
        }))
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.digest.update(bytes);
    }

    pub(crate) fn check(self) -> Result<(), SumError> {
        let found = hexadecimal(&self.digest.finalize());
        if found == self.value {
            return Ok(());
        }
        Err(SumError::Other {
            algorithm: self.algorithm,
            found,
            wanted: self.value,
        })
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    let digit = |value: u8| char::from_digit(value.into(), 16).unwrap_or('?');
    bytes
        .iter()
        .flat_map(|byte| [digit(byte >> 4), digit(byte & 15)])
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_of_the_standards() {
        let table = [
            ("md5", "900150983CD24FB0D6963F7D28E17F72"),
            ("sha1", "a9993e364706816aba3e25717850c26c9cd0d89d"),
            (
                "sha256",
                "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
            ),
        ];
        for (algorithm, value) in table {
            let sum = |bytes: &[u8]| {
                let mut sum = ExpectedDigest::read(algorithm, value).unwrap().unwrap();
                sum.update(bytes);
                sum.check()
            };
            assert_eq!(sum(b"abc"), Ok(()), "{algorithm}");
            let error = sum(b"abd").unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("its {algorithm} is ")),
                "{error}"
            );
        }
    }

    #[test]
    fn checksum_is_optional_but_must_be_known() {
        assert!(ExpectedDigest::read("", "").unwrap().is_none());
        assert!(ExpectedDigest::read("crc", "00").is_err());
        assert!(ExpectedDigest::read("", "00").is_err());
    }
}
