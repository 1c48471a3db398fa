//! Identifiers, log positions and points in time.
//!
//! Ids of rows that a command creates are derived from the command's log index and an ordinal, so
//! that every replica names them alike without talking.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A position in the replicated log. 0 is before the first entry.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct LogIndex(pub u64);

/// Nanoseconds since the Unix epoch, as decided by whoever proposed a command.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// The time `ms` milliseconds after the epoch.
    #[must_use]
    pub fn from_millis(ms: u64) -> Self {
        Self(ms.saturating_mul(1_000_000))
    }

    /// This time plus `duration`, saturating.
    #[must_use]
    pub fn plus(self, duration: std::time::Duration) -> Self {
        Self(
            self.0
                .saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)),
        )
    }

    /// How long before `self` was `earlier`; zero if it was not before.
    #[must_use]
    pub fn since(self, earlier: Self) -> std::time::Duration {
        std::time::Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// Why a text is not an id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not an id: expected 32 hexadecimal digits in the form 8-4-4-4-12")]
pub struct ParseIdError {
    /// What was given.
    pub text: String,
}

/// SplitMix64's output function: spreads consecutive numbers over all 64 bits.
fn mix(mut word: u64) -> u64 {
    word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

fn derive_bytes(kind: u64, index: LogIndex, ordinal: u32) -> [u8; 16] {
    let high = mix(mix(index.0 ^ kind.rotate_left(56)) ^ u64::from(ordinal));
    let low = mix(high ^ index.0.rotate_left(32) ^ u64::from(ordinal));
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&high.to_be_bytes());
    bytes[8..].copy_from_slice(&low.to_be_bytes());
    // RFC 9562 version 8 ("custom") and variant bits.
    bytes[6] = (bytes[6] & 0x0f) | 0x80;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    bytes
}

fn parse_bytes(text: &str) -> Option<[u8; 16]> {
    let raw = text.as_bytes();
    if raw.len() != 36 || [8, 13, 18, 23].iter().any(|&at| raw[at] != b'-') {
        return None;
    }
    let mut digits = raw.iter().filter(|byte| **byte != b'-');
    let mut bytes = [0; 16];
    for byte in &mut bytes {
        let high = char::from(*digits.next()?).to_digit(16)?;
        let low = char::from(*digits.next()?).to_digit(16)?;
        *byte = u8::try_from(high * 16 + low).ok()?;
    }
    digits.next().is_none().then_some(bytes)
}

macro_rules! uuid_ids {
    ($($(#[$doc:meta])* $name:ident = $kind:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $name(pub [u8; 16]);

        impl $name {
            /// The id of the `ordinal`-th row of this kind that the entry at `index` creates.
            #[must_use]
            pub fn at(index: LogIndex, ordinal: u32) -> Self {
                Self(derive_bytes($kind, index, ordinal))
            }

            /// The first eight hexadecimal digits, as people quote ids.
            #[must_use]
            pub fn short(&self) -> String {
                self.to_string()[..8].to_owned()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                for (at, byte) in self.0.iter().enumerate() {
                    if matches!(at, 4 | 6 | 8 | 10) {
                        f.write_str("-")?;
                    }
                    write!(f, "{byte:02x}")?;
                }
                Ok(())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{self}")
            }
        }

        impl FromStr for $name {
            type Err = ParseIdError;

            fn from_str(text: &str) -> Result<Self, ParseIdError> {
                parse_bytes(text).map(Self).ok_or_else(|| ParseIdError { text: text.to_owned() })
            }
        }
    )*};
}

uuid_ids! {
    /// Names an allocation.
    AllocId = 1;
    /// Names a deployment.
    DeploymentId = 2;
    /// Names an evaluation.
    EvalId = 3;
    /// Names a node. Chosen by the node at its first start and kept in its data directory.
    NodeId = 4;
}

/// Names a write, so that a client's retry is told from a second write. Chosen by the client; at most
/// [`crate::limits::WRITE_KEY_BYTES_MAX`] bytes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct WriteKey(String);

impl WriteKey {
    /// The key `text`; `None` if it is empty or too long.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Option<Self> {
        let text = text.into();
        (!text.is_empty() && text.len() <= crate::limits::WRITE_KEY_BYTES_MAX).then_some(Self(text))
    }

    /// The key as the client wrote it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for WriteKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Names a job: ids are unique within a namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct JobKey {
    /// The namespace; `default` unless said otherwise.
    pub namespace: String,
    /// The job's id within the namespace.
    pub job_id: String,
}

impl JobKey {
    /// The key of `job_id` in the namespace `default`.
    pub fn in_default(job_id: impl Into<String>) -> Self {
        Self {
            namespace: crate::job::DEFAULT_NAMESPACE.to_owned(),
            job_id: job_id.into(),
        }
    }
}

impl fmt::Display for JobKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.job_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_reads_back_what_it_prints() {
        let id = AllocId::at(LogIndex(7), 3);

        let read: AllocId = id.to_string().parse().unwrap();

        assert_eq!(read, id);
    }

    #[test]
    fn neighbouring_ids_share_no_prefix() {
        let ids: std::collections::BTreeSet<String> = (0..10_000)
            .map(|ordinal| AllocId::at(LogIndex(1), ordinal).to_string())
            .collect();

        assert_eq!(ids.len(), 10_000);
        assert_ne!(
            AllocId::at(LogIndex(1), 0).short(),
            AllocId::at(LogIndex(1), 1).short()
        );
        assert_ne!(AllocId::at(LogIndex(1), 0).0, EvalId::at(LogIndex(1), 0).0);
    }

    #[test]
    fn a_mangled_id_is_refused() {
        for text in [
            "",
            "x",
            "00000000-0000-0000-0000-00000000000g",
            "000000000-000-0000-0000-000000000000",
        ] {
            assert!(text.parse::<NodeId>().is_err(), "{text}");
        }
    }
}
