//! Ids in paths.

use std::str::FromStr;

use super::status::ApiError;

/// `text` with `%xx` decoded.
///
/// # Errors
///
/// [`ApiError::Malformed`] for a broken escape or a result that is no UTF-8.
pub(super) fn decode(text: &str) -> Result<String, ApiError> {
    let error = || {
        ApiError::Malformed(format!(
            "the path segment `{text}` is not percent-encoded UTF-8"
        ))
    };
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let (digits, after) = rest.split_at_checked(2).ok_or_else(error)?;
        let mut byte = 0;
        for digit in digits {
            let digit = char::from(*digit)
                .to_digit(16)
                .and_then(|digit| u8::try_from(digit).ok());
            byte = byte << 4 | digit.ok_or_else(error)?;
        }
        bytes.push(byte);
        rest = after;
    }
    String::from_utf8(bytes).ok().ok_or_else(error)
}

/// Parses the id in `text`. A text that is not an id names no object, as in Nomad.
///
/// # Errors
///
/// [`ApiError::NotFound`] with `what`.
pub(super) fn id<T: FromStr>(text: &str, what: &'static str) -> Result<T, ApiError> {
    text.parse().ok().ok_or(ApiError::NotFound { what })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_decoded() {
        assert_eq!(decode("a%2Fb%20c").unwrap(), "a/b c");
        assert_eq!(decode("plain").unwrap(), "plain");
    }

    #[test]
    fn a_broken_escape_is_refused() {
        for text in ["%", "%2", "%zz", "%ff", "%+1"] {
            assert!(decode(text).is_err(), "{text}");
        }
    }
}
