//! A server's log in memory: positions, entries, and the end of its removed beginning.

use std::sync::Arc;

use muster_control_core::fsm;
use muster_domain::number;

/// The index of an entry, and the term in which it was written. The order is the one in which elections compare logs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    pub term: u64,
    /// The index, counted from 1; 0 is before the first entry.
    pub index: u64,
}

/// The content of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// No command: the first entry of a leader.
    Blank,
    /// A change of the state.
    Command(Box<fsm::Entry>),
}

/// An entry of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The position in the log.
    pub at: Position,
    pub payload: Payload,
}

/// A log whose beginning may have been removed.
#[derive(Clone, Debug, Default)]
pub struct Log {
    base: Position,
    entries: Vec<Arc<Entry>>,
}

impl Log {
    /// Returns the position of the last entry, or of the last removed entry if the log is empty.
    #[must_use]
    pub fn last(&self) -> Position {
        self.entries.last().map_or(self.base, |entry| entry.at)
    }

    /// Returns the position of the last removed entry.
    #[must_use]
    pub fn base(&self) -> Position {
        self.base
    }

    /// Returns the term of the entry at `index`. Returns `None` if the entry is removed or does not exist yet.
    #[must_use]
    pub fn term_at(&self, index: u64) -> Option<u64> {
        if index == self.base.index {
            return Some(self.base.term);
        }
        self.get(index).map(|entry| entry.at.term)
    }

    /// The entry at `index`.
    #[must_use]
    pub fn get(&self, index: u64) -> Option<&Arc<Entry>> {
        let offset = index.checked_sub(self.base.index + 1)?;
        self.entries.get(usize::try_from(offset).ok()?)
    }

    /// Returns at most `max` entries after `index`, which must not be removed.
    #[must_use]
    pub fn after(&self, index: u64, max: usize) -> Vec<Arc<Entry>> {
        let skip = number::index(index.saturating_sub(self.base.index));
        self.entries.iter().skip(skip).take(max).cloned().collect()
    }

    /// Adds an entry at the end.
    ///
    /// # Panics
    ///
    /// If it does not follow the last one.
    pub fn push(&mut self, entry: Arc<Entry>) {
        assert_eq!(entry.at.index, self.last().index + 1, "logs have no holes");
        self.entries.push(entry);
    }

    /// Drops the entry at `index` and all after it.
    pub fn truncate(&mut self, index: u64) {
        let keep = index.saturating_sub(self.base.index + 1);
        self.entries.truncate(number::index(keep));
    }

    /// Removes all entries up to `to`. Removes every entry if `to` is not in the log.
    pub fn compact(&mut self, to: Position) {
        if to.index <= self.base.index {
            return;
        }
        if self.term_at(to.index) == Some(to.term) {
            let forget = number::index(to.index - self.base.index);
            self.entries.drain(..forget);
        } else {
            self.entries.clear();
        }
        self.base = to;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(terms: &[u64]) -> Log {
        let mut log = Log::default();
        for (at, term) in terms.iter().enumerate() {
            let at = Position {
                term: *term,
                index: at as u64 + 1,
            };
            log.push(Arc::new(Entry {
                at,
                payload: Payload::Blank,
            }));
        }
        log
    }

    #[test]
    fn compacted_log_keeps_its_last_position() {
        let mut log = log(&[1, 1, 2, 2]);

        log.compact(Position { term: 2, index: 3 });

        assert_eq!(log.term_at(3), Some(2));
        assert_eq!(log.term_at(2), None);
        assert_eq!(log.after(3, 9).len(), 1);
        assert_eq!(log.last(), Position { term: 2, index: 4 });
    }

    #[test]
    fn a_snapshot_of_another_history_empties_the_log() {
        let mut log = log(&[1, 1, 2, 2]);

        log.compact(Position { term: 3, index: 3 });

        assert_eq!(log.last(), Position { term: 3, index: 3 });
    }

    #[test]
    fn truncating_keeps_earlier_entries() {
        let mut log = log(&[1, 1, 2, 2]);
        log.compact(Position { term: 1, index: 1 });

        log.truncate(3);

        assert_eq!(log.last(), Position { term: 1, index: 2 });
    }
}
