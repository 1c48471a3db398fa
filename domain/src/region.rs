//! The region of the cluster that this process belongs to.
//!
//! A process belongs to one cluster, and a cluster is one region. The name is set once, before a server or an agent
//! starts; it is [`DEFAULT_REGION`] otherwise.

use std::sync::OnceLock;

use crate::limits;

/// The region of a cluster that sets none.
pub const DEFAULT_REGION: &str = "global";

static REGION: OnceLock<Region> = OnceLock::new();

/// The name of a region: letters, digits, `-` and `_`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region(String);

/// A name that no region can have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unusable region {name:?}: use 1 to {max} letters, digits, `-` or `_`",
    max = limits::NAME_BYTES_MAX
)]
pub struct RegionError {
    name: String,
}

impl std::str::FromStr for Region {
    type Err = RegionError;

    fn from_str(name: &str) -> Result<Self, RegionError> {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        if (1..=limits::NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_allowed) {
            return Ok(Self(name.to_owned()));
        }
        Err(RegionError {
            name: name.to_owned(),
        })
    }
}

/// Sets the region of this process. Later calls change nothing.
pub fn set(region: Region) {
    REGION.get_or_init(|| region);
}

/// The name of the region of this process.
#[must_use]
pub fn name() -> &'static str {
    REGION.get().map_or(DEFAULT_REGION, |Region(name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn region_names_are_plain() {
        for plain in ["global", "eu-west_1", "a"] {
            assert!(plain.parse::<Region>().is_ok(), "{plain}");
        }
        for odd in [
            "",
            "a b",
            "ä",
            "a/b",
            &"x".repeat(limits::NAME_BYTES_MAX + 1),
        ] {
            let error = odd.parse::<Region>().unwrap_err().to_string();
            assert!(error.starts_with("unusable region"), "{error}");
        }
        assert_eq!(name(), DEFAULT_REGION);
    }
}
