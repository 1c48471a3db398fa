//! bincode, encapsulated in one module, with a byte limit on every decode.
//!
//! bincode is unmaintained. No other module uses it, so it can be replaced here; another crate writes the same bytes.
//! Decoding never allocates more than its limit and never ignores trailing bytes. No decoded type is recursive, because
//! recursion could overflow the stack.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::limits;

/// The reason why bytes cannot be decoded.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// The bytes end before the value does.
    #[error("{what}: the bytes end early, after {len}")]
    Short {
        what: &'static str,
        /// Bytes there were.
        len: usize,
    },
    /// There are bytes after the value, so another version wrote it.
    #[error("{what}: {extra} bytes follow the value; the writer is of another version")]
    Trailing {
        what: &'static str,
        /// Bytes too many.
        extra: usize,
    },
    /// The bytes are no such value.
    #[error("{what}: malformed: {reason}")]
    Malformed { what: &'static str, reason: String },
}

/// The reason why a value cannot be encoded.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{what}: cannot be encoded: {reason}")]
pub struct EncodeError {
    pub what: &'static str,
    pub reason: String,
}

/// Encodes `value`.
///
/// # Errors
///
/// If a `Serialize` implementation refuses; none of Muster's does.
pub fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>, EncodeError> {
    bincode::serde::encode_to_vec(value, bincode::config::standard()).map_err(|error| EncodeError {
        what: std::any::type_name::<T>(),
        reason: error.to_string(),
    })
}

/// Appends the encoding of `value` to `bytes`, as by [`encode`].
///
/// # Errors
///
/// As [`encode`]; `bytes` may then hold a part of the value.
pub fn encode_behind<T: Serialize>(bytes: &mut Vec<u8>, value: &T) -> Result<(), EncodeError> {
    let written =
        bincode::serde::encode_into_writer(value, AppendTo(bytes), bincode::config::standard());
    written.map_err(|error| EncodeError {
        what: std::any::type_name::<T>(),
        reason: error.to_string(),
    })
}

struct AppendTo<'a>(&'a mut Vec<u8>);

impl bincode::enc::write::Writer for AppendTo<'_> {
    fn write(&mut self, bytes: &[u8]) -> Result<(), bincode::error::EncodeError> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }
}

/// The number of bytes that [`encode`] returns for `value`, without creating them.
///
/// # Errors
///
/// As [`encode`].
pub fn encoded_bytes<T: Serialize>(value: &T) -> Result<usize, EncodeError> {
    let mut counted = bincode::enc::write::SizeWriter::default();
    bincode::serde::encode_into_writer(value, &mut counted, bincode::config::standard()).map_err(
        |error| EncodeError {
            what: std::any::type_name::<T>(),
            reason: error.to_string(),
        },
    )?;
    Ok(counted.bytes_written)
}

/// Decodes a value from all of `bytes`.
///
/// # Errors
///
/// [`DecodeError`]; at most [`limits::ENTRY_BYTES_MAX`] bytes are read or allocated.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, DecodeError> {
    let what = std::any::type_name::<T>();
    let config = bincode::config::standard().with_limit::<{ limits::ENTRY_BYTES_MAX }>();
    match bincode::serde::decode_from_slice(bytes, config) {
        Ok((value, used)) if used == bytes.len() => Ok(value),
        Ok((_, used)) => Err(DecodeError::Trailing {
            what,
            extra: bytes.len() - used,
        }),
        Err(bincode::error::DecodeError::UnexpectedEnd { .. }) => Err(DecodeError::Short {
            what,
            len: bytes.len(),
        }),
        Err(error) => Err(DecodeError::Malformed {
            what,
            reason: error.to_string(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_that_lies_allocates_nothing() {
        let mut bytes = vec![253];
        bytes.extend((1_u64 << 44).to_le_bytes());

        assert!(decode::<Vec<u8>>(&bytes).is_err());
    }

    #[test]
    fn bytes_are_counted_as_they_are_encoded() {
        let value = (7_u32, "four".to_owned(), vec![Some(1_u64 << 40), None]);

        let counted = encoded_bytes(&value).unwrap();

        assert_eq!(counted, encode(&value).unwrap().len());
    }

    #[test]
    fn trailing_bytes_are_an_error() {
        let mut bytes = encode(&7_u32).unwrap();
        bytes.push(0);

        assert!(matches!(
            decode::<u32>(&bytes),
            Err(DecodeError::Trailing { extra: 1, .. })
        ));
    }

    #[test]
    fn a_cut_value_is_short() {
        let bytes = encode(&"four".to_owned()).unwrap();

        assert!(matches!(
            decode::<String>(&bytes[..2]),
            Err(DecodeError::Short { .. })
        ));
    }
}
