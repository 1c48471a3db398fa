//! Users and groups of a machine, as jobs write them.

use std::fmt;

/// The highest user or group id. System calls read the next number as "leave the id as it is". A process that is
/// started with that number stays root.
pub const ACCOUNT_ID_MAX: u32 = u32::MAX - 1;
/// Bytes of a name: `LOGIN_NAME_MAX` of Linux.
pub const ACCOUNT_NAME_BYTES_MAX: usize = 256;
/// Bytes of a name that errors show: an error is one line.
const SHOWN_BYTES_MAX: usize = 64;

/// A user or a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Account<'a> {
    /// An id, at most [`ACCOUNT_ID_MAX`].
    Id(u32),
    Name(&'a str),
}

/// The reason why a text names neither a user nor a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccountError {
    /// A number that is no id.
    Id,
    /// A name that no user database can hold.
    Name,
}

impl fmt::Display for AccountError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id => write!(
                f,
                "is not a valid id: use a number from 0 to {ACCOUNT_ID_MAX}, without a sign, or a name"
            ),
            Self::Name => write!(
                f,
                "is not a valid name: use at most {ACCOUNT_NAME_BYTES_MAX} bytes without colons, slashes and control \
                 characters"
            ),
        }
    }
}

impl std::error::Error for AccountError {}

/// A user or group as errors show it: quoted, its beginning only if it is long.
#[derive(Clone, Copy, Debug)]
pub struct QuotedName<'a>(pub &'a str);

impl fmt::Display for QuotedName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = self.0.floor_char_boundary(SHOWN_BYTES_MAX);
        write!(f, "`{}`", self.0[..end].escape_debug())
    }
}

impl<'a> Account<'a> {
    /// Reads an id or a name. A text of digits is always an id, even if a user has that name.
    ///
    /// # Errors
    ///
    /// [`AccountError`] for numbers that are out of range or signed, and for names that no user can have.
    pub fn parse(text: &'a str) -> Result<Self, AccountError> {
        let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
        if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) {
            let signed = digits.len() < text.len();
            return match digits.parse() {
                Ok(id) if id <= ACCOUNT_ID_MAX && !signed => Ok(Self::Id(id)),
                Ok(_) | Err(_) => Err(AccountError::Id),
            };
        }
        let strange = |letter: char| letter.is_control() || matches!(letter, ':' | '/');
        if text.is_empty() || text.len() > ACCOUNT_NAME_BYTES_MAX || text.contains(strange) {
            return Err(AccountError::Name);
        }
        Ok(Self::Name(text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_end_below_the_number_that_means_none() {
        assert_eq!(Account::parse("0"), Ok(Account::Id(0)));
        assert_eq!(Account::parse("007"), Ok(Account::Id(7)));
        assert_eq!(
            Account::parse("4294967294"),
            Ok(Account::Id(ACCOUNT_ID_MAX))
        );
        for text in [
            "4294967295",
            "4294967296",
            "18446744073709551616",
            "18446744073709551615",
            "-1",
            "-0",
            "+0",
            "+1000",
            "04294967295",
        ] {
            assert_eq!(Account::parse(text), Err(AccountError::Id), "{text}");
        }
    }

    #[test]
    fn names_have_no_separators() {
        for text in [
            "root",
            "www-data",
            "EXAMPLE\\user",
            "user@example",
            "-",
            "0x0",
        ] {
            assert_eq!(Account::parse(text), Ok(Account::Name(text)));
        }
        let long = "a".repeat(ACCOUNT_NAME_BYTES_MAX + 1);
        for text in ["", "a:b", "../root", "root\0", "root\n", &long] {
            assert_eq!(Account::parse(text), Err(AccountError::Name), "{text:?}");
        }
    }
}
