//! A hash of the replicated data: the same on every machine and in every version.
//!
//! The hash of a table is the sum of the hashes of its rows. So it follows from the rows alone, in whatever order they
//! were written, and a write costs the hash of one row. The hash protects against accidents, not against malice: an
//! attacker who can write a row could find another row of equal hash.
//!
//! A row is hashed in its serialised form. Lengths and variants are part of the hash, so that two values never have the
//! same encoding as one.

mod serialise;

use serde::Serialize;

/// The encoding of hashed rows. It goes up with every change of a row, such as a new field.
pub(super) const ENCODING: u32 = 2;

/// The hash of each table, and the encoding of the hashed rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct StateHash {
    /// The encoding of the hashed rows. Hashes of different encodings cannot be compared.
    pub encoding: u32,
    pub nodes: u64,
    /// The jobs and their versions.
    pub jobs: u64,
    pub allocs: u64,
    pub evals: u64,
    pub deployments: u64,
    /// The settings, and the cluster's network policy.
    pub config: u64,
    /// The answers kept for repeated writes.
    pub answers: u64,
    pub one_offs: u64,
}

impl StateHash {
    /// Tables by name, in the order of the fields.
    #[must_use]
    pub fn tables(&self) -> [(&'static str, u64); 8] {
        let Self {
            nodes,
            jobs,
            allocs,
            evals,
            deployments,
            config,
            answers,
            one_offs,
            encoding: _,
        } = *self;
        [
            ("nodes", nodes),
            ("jobs", jobs),
            ("allocations", allocs),
            ("evaluations", evals),
            ("deployments", deployments),
            ("settings", config),
            ("answers", answers),
            ("one-off tasks", one_offs),
        ]
    }

    /// Returns the names of the tables in which two states differ; none if the hashes are of different encodings.
    #[must_use]
    pub fn differing(&self, other: &Self) -> Vec<&'static str> {
        if self.encoding != other.encoding {
            return Vec::new();
        }
        self.tables()
            .into_iter()
            .zip(other.tables())
            .filter(|(ours, theirs)| ours.1 != theirs.1)
            .map(|(ours, _)| ours.0)
            .collect()
    }

    /// Returns one number for all tables.
    #[must_use]
    pub fn whole(&self) -> u64 {
        let mut digest = Digest::default();
        for (_, table) in self.tables() {
            digest.word(table);
        }
        digest.finish()
    }
}

/// The hash of one row while it is computed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Digest {
    state: u64,
    /// Number of words hashed so far.
    words: u64,
}

impl Default for Digest {
    fn default() -> Self {
        Self {
            state: 0x9e37_79b9_7f4a_7c15,
            words: 0,
        }
    }
}

/// Any odd numbers without a pattern would do: these are digits of the golden ratio and of pi.
const MULTIPLIERS: [u64; 2] = [0xa076_1d64_78bd_642f, 0x2437_54a8_8859_74c5];

/// Folds both halves of a product of 64 by 64 bits: every bit of either factor changes about half the result.
fn fold(left: u64, right: u64) -> u64 {
    let product = u128::from(left).wrapping_mul(u128::from(right));
    #[expect(clippy::cast_possible_truncation, reason = "the halves are wanted")]
    let (low, high) = (product as u64, (product >> 64) as u64);
    low ^ high
}

impl Digest {
    /// Returns the hash of a value in its serialised form.
    pub(crate) fn of<T: Serialize + ?Sized>(value: &T) -> u64 {
        let mut digest = Self::default();
        digest.value(value);
        digest.finish()
    }

    /// Returns the size of a value in bytes: a word for each number and each length, and texts rounded up to words.
    /// That is about the memory that the value takes if it shares nothing.
    pub(crate) fn bytes_of<T: Serialize + ?Sized>(value: &T) -> u64 {
        let mut digest = Self::default();
        digest.value(value);
        digest.size()
    }

    pub(crate) fn word(&mut self, word: u64) {
        self.state = fold(self.state ^ word, MULTIPLIERS[0]).wrapping_add(MULTIPLIERS[1]);
        self.words += 1;
    }

    /// Adds bytes with their length, so that two texts never have the same encoding as one.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.word(bytes.len() as u64);
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.word(u64::from_le_bytes(*word));
        }
        if !rest.is_empty() {
            let mut last = [0; 8];
            last[..rest.len()].copy_from_slice(rest);
            self.word(u64::from_le_bytes(last));
        }
    }

    pub(crate) fn value<T: Serialize + ?Sized>(&mut self, value: &T) {
        if value.serialize(&mut *self).is_err() {
            // Only a `Serialize` that returns an error leads here, and no type of this crate has one.
            self.word(u64::MAX);
        }
    }

    pub(crate) fn finish(self) -> u64 {
        fold(self.state, MULTIPLIERS[1])
    }

    /// Returns the number of hashed bytes.
    pub(crate) fn size(self) -> u64 {
        self.words * 8
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// The value is part of the agreement between servers of different versions.
    #[test]
    fn a_hash_is_the_same_for_ever() {
        let value = (
            7_u32,
            "seven",
            Some([1_u8, 2]),
            BTreeMap::from([("a", -1_i64)]),
        );

        assert_eq!(Digest::of(&value), 10_874_827_633_051_364_661);
    }

    #[test]
    fn a_size_is_that_of_the_hashed_bytes() {
        assert_eq!(Digest::bytes_of(&7_u8), 8);
        // The length takes one word and the text two words.
        assert_eq!(Digest::bytes_of("nine byte"), 24);
    }

    #[test]
    fn neighbouring_fields_do_not_run_together() {
        assert_ne!(Digest::of(&("ab", "c")), Digest::of(&("a", "bc")));
        assert_ne!(
            Digest::of(&(None::<u8>, 0_u8)),
            Digest::of(&(Some(0_u8), ()))
        );
        assert_ne!(Digest::of(&[0_u8; 7][..]), Digest::of(&[0_u8; 8][..]));
    }

    #[test]
    fn each_bit_of_a_word_counts() {
        let mut seen: Vec<u64> = (0..64).map(|bit| Digest::of(&(1_u64 << bit))).collect();
        seen.sort_unstable();
        seen.dedup();

        assert_eq!(seen.len(), 64);
    }
}
