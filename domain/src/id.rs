//! Identifiers, log positions and points in time.
//!
//! Ids of rows that a command creates are derived from the command's log index and an ordinal. So every replica derives
//! the same ids without communication.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::namespace::{DEFAULT_NAMESPACE, ONE_OFF_NAMESPACE};
use crate::pack::{Malformed, Reader, Writer};
use crate::saturating;

/// A position in the replicated log. 0 is before the first entry.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct LogIndex(pub u64);

/// Nanoseconds since the Unix epoch, set by the server that proposed a command.
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
        Self(self.0.saturating_add(saturating::nanos(duration)))
    }

    /// The time from `earlier` to `self`; zero if `earlier` is not before `self`.
    #[must_use]
    pub fn since(self, earlier: Self) -> std::time::Duration {
        std::time::Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// The error for a text that is not an id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not an id: expected 32 hexadecimal digits in the form 8-4-4-4-12")]
pub struct ParseIdError {
    /// The text that was given.
    pub text: String,
}

/// The step between two states of SplitMix64.
pub(crate) const SPLIT_MIX_STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// SplitMix64's next output after the state `word`: spreads consecutive numbers over all 64 bits.
pub(crate) fn mix(mut word: u64) -> u64 {
    word = word.wrapping_add(SPLIT_MIX_STEP);
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// A number of the cluster that is part of every id that its log derives, so that ids of two clusters differ. It is 0
/// in states that were never bootstrapped, as in most tests.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct ClusterTag(u32);

impl ClusterTag {
    /// The tag of the cluster whose first servers have these random numbers. Never 0.
    #[must_use]
    pub fn of_servers(server_ids: impl IntoIterator<Item = u64>) -> Self {
        let sum = server_ids
            .into_iter()
            .fold(0, |sum: u64, id| sum.wrapping_add(mix(id)));
        let bits = mix(sum) & u64::from(CLUSTER_MASK);
        Self(u32::try_from(bits).map_or(1, |bits| bits.max(1)))
    }

    /// The number, below 2^26.
    #[must_use]
    pub fn get(self) -> u32 {
        self.0
    }
}

/// Bits of an id for the cluster: the free bits that log index and ordinal leave.
const CLUSTER_BITS: u32 = FREE_BITS - 64 - 32;
const CLUSTER_MASK: u32 = (1 << CLUSTER_BITS) - 1;

/// Bits of an id that are free: RFC 9562 takes four for the version and two for the variant.
const FREE_BITS: u32 = 122;
const HALF_BITS: u32 = FREE_BITS / 2;
const HALF_MASK: u64 = (1 << HALF_BITS) - 1;
const ROUNDS: u64 = 4;

/// The round function of a Feistel network: it returns the number that is added to the other half.
fn round(kind: u64, number: u64, half: u64) -> u64 {
    mix(half ^ kind.rotate_left(56) ^ (number << 48)) & HALF_MASK
}

/// Derives an id from its origin. The mapping is a bijection, so the id reveals the entry that created its row. A
/// Feistel network scatters cluster, index and ordinal.
fn derive_bytes(kind: u64, cluster: ClusterTag, index: LogIndex, ordinal: u32) -> [u8; 16] {
    let index_high = index.0 >> (HALF_BITS - 32);
    let mut left = (u64::from(cluster.0 & CLUSTER_MASK) << (HALF_BITS - CLUSTER_BITS)) | index_high;
    let mut right = ((index.0 << 32) | u64::from(ordinal)) & HALF_MASK;
    for number in 0..ROUNDS {
        (left, right) = (right, left ^ round(kind, number, right));
    }
    let scattered = (u128::from(left) << HALF_BITS) | u128::from(right);
    // Version 8 ("custom") and variant bits.
    let low = scattered & ((1 << 62) - 1);
    let middle = (scattered >> 62) & 0xfff;
    let high = scattered >> 74;
    ((high << 80) | (0x8 << 76) | (middle << 64) | (0b10 << 62) | low).to_be_bytes()
}

/// Recovers the origin from an id; `None` for an id that no entry derived.
fn origin_of(kind: u64, bytes: [u8; 16]) -> Option<(ClusterTag, LogIndex, u32)> {
    let id = u128::from_be_bytes(bytes);
    if (id >> 76) & 0xf != 0x8 || (id >> 62) & 0b11 != 0b10 {
        return None;
    }
    let scattered = ((id >> 80) << 74) | (((id >> 64) & 0xfff) << 62) | (id & ((1 << 62) - 1));
    let mut left = u64::try_from(scattered >> HALF_BITS).ok()?;
    let mut right = u64::try_from(scattered & u128::from(HALF_MASK)).ok()?;
    for number in (0..ROUNDS).rev() {
        (left, right) = (right ^ round(kind, number, left), left);
    }
    let plain = (u128::from(left) << HALF_BITS) | u128::from(right);
    let cluster = u32::try_from(plain >> 96).ok()?;
    let index = u64::try_from((plain >> 32) & u128::from(u64::MAX)).ok()?;
    let ordinal = u32::try_from(plain & u128::from(u32::MAX)).ok()?;
    Some((ClusterTag(cluster), LogIndex(index), ordinal))
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
            /// The id of the `ordinal`-th row of this kind that the entry at `index` creates in a cluster without a
            /// tag.
            #[must_use]
            pub fn at(index: LogIndex, ordinal: u32) -> Self {
                Self::in_cluster(ClusterTag::default(), index, ordinal)
            }

            /// The id of the `ordinal`-th row of this kind that the entry at `index` creates in `cluster`.
            #[must_use]
            pub fn in_cluster(cluster: ClusterTag, index: LogIndex, ordinal: u32) -> Self {
                Self(derive_bytes($kind, cluster, index, ordinal))
            }

            /// The cluster, the entry that created the row, and the row's number within that entry. `None` if the id
            /// has another form. An arbitrary id yields a random cluster.
            #[must_use]
            pub fn origin(&self) -> Option<(ClusterTag, LogIndex, u32)> {
                origin_of($kind, self.0)
            }

            /// Packs the id. It takes a few bytes for a row of a cluster without a tag, else seventeen.
            pub fn pack(&self, writer: &mut Writer) {
                if let Some((ClusterTag(0), index, ordinal)) = self.origin() {
                    // 0 means that the full id follows. No entry has this index.
                    if let Some(index) = index.0.checked_add(1) {
                        writer.number(index);
                        writer.number(u64::from(ordinal));
                        return;
                    }
                }
                writer.number(0);
                writer.raw(&self.0);
            }

            /// Reads what [`Self::pack`] wrote.
            ///
            /// # Errors
            ///
            /// [`Malformed`].
            pub fn unpack(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
                let index = reader.number()?;
                if let Some(index) = index.checked_sub(1) {
                    return Ok(Self::at(LogIndex(index), reader.small()?));
                }
                let mut bytes = [0; 16];
                bytes.copy_from_slice(reader.raw(16)?);
                Ok(Self(bytes))
            }

            /// The first eight hexadecimal digits, for display.
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
    AllocId = 1;
    DeploymentId = 2;
    EvalId = 3;
    /// Names a node. Chosen by the node at its first start and kept in its data directory.
    NodeId = 4;
}

/// The column of a node in the state. Numbers are dense. A number is reused for another node once no row refers to it.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct NodeNumber(pub u32);

impl NodeNumber {
    /// Returns the number as an index.
    #[must_use]
    pub fn at(self) -> usize {
        self.0 as usize
    }
}

/// The key of a write, by which a client's retry is distinguished from a second write. The client chooses it; at most
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
    /// The namespace; `default` if none is given.
    pub namespace: String,
    /// The job's id within the namespace.
    pub job_id: String,
}

impl JobKey {
    /// Whether the key belongs to a job that runs a one-off task.
    #[must_use]
    pub fn is_one_off(&self) -> bool {
        self.namespace == ONE_OFF_NAMESPACE
    }

    /// The key of `job_id` in the namespace `default`.
    pub fn in_default(job_id: impl Into<String>) -> Self {
        Self {
            namespace: DEFAULT_NAMESPACE.to_owned(),
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
    fn id_round_trips() {
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
    fn id_contains_its_log_index_and_ordinal() {
        for (index, ordinal) in [
            (0, 0),
            (1, 0),
            (7, 3),
            (1 << 44, 1 << 20),
            (u64::MAX, u32::MAX),
        ] {
            let id = AllocId::at(LogIndex(index), ordinal);

            let untagged = ClusterTag::default();
            assert_eq!(id.origin(), Some((untagged, LogIndex(index), ordinal)));
            assert_eq!(EvalId::at(LogIndex(index), ordinal).origin(), id.origin());

            let cluster = ClusterTag::of_servers([7, 8, 9]);
            let tagged = AllocId::in_cluster(cluster, LogIndex(index), ordinal);
            assert_eq!(tagged.origin(), Some((cluster, LogIndex(index), ordinal)));
            assert_ne!(tagged, id);
        }
        assert_eq!(AllocId([0x33; 16]).origin(), None);
        let other_kind = AllocId(EvalId::at(LogIndex(1), 0).0).origin();
        assert!(other_kind.is_some_and(|(cluster, ..)| cluster != ClusterTag::default()));
    }

    #[test]
    fn a_packed_id_reads_back_and_is_short() {
        for id in [AllocId::at(LogIndex(100_000), 77), AllocId([0x33; 16])] {
            let mut writer = Writer::default();
            id.pack(&mut writer);
            let bytes = writer.finish();

            assert_eq!(AllocId::unpack(&mut Reader::new(&bytes)), Ok(id));
            assert!(bytes.len() == 17 || bytes.len() <= 4, "{bytes:?}");
        }
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
