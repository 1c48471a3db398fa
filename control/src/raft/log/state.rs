//! What the log holds, in memory: positions, and the entries with their places on disk.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use openraft::EntryPayload;
use openraft::entry::RaftEntry;
use serde::{Deserialize, Serialize};

use super::limits::LOG_CACHE_COMMITTED_BYTES;
use super::record::{self, Record};
use crate::raft::types::{Entry, LogId, Vote};

/// Bytes of an entry in memory besides its command, roughly: it only weighs the cache.
const ENTRY_OVERHEAD_BYTES: usize = 96;

/// What all records before a point of the log come to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Checkpoint {
    /// The number of the file that begins with it.
    pub(super) segment: u32,
    /// Where the file before it ends.
    pub(super) before: u32,
    pub(super) vote: Option<Vote>,
    pub(super) committed: Option<LogId>,
    pub(super) purged: Option<LogId>,
    /// The last entry; the last purged one if there is none.
    pub(super) last: Option<LogId>,
}

impl Checkpoint {
    /// Carries `record` out, an entry's position included.
    pub(super) fn take(&mut self, record: &Record) {
        match record {
            Record::Checkpoint(_) => {}
            Record::Vote(vote) => self.vote = Some(*vote),
            Record::Entry(entry) => self.last = Some(entry.log_id()),
            Record::Committed(log_id) => self.committed = self.committed.max(Some(*log_id)),
            Record::Truncate(last) => self.last = *last,
            Record::Purge(upto) => {
                self.purged = self.purged.max(Some(*upto));
                self.last = self.last.max(Some(*upto));
            }
        }
    }
}

/// Where an entry's record lies.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) file: Arc<File>,
    /// Of its body.
    pub(super) offset: u32,
    /// Of its body.
    pub(super) length: u32,
}

impl Place {
    /// Reads the entry. Blocks on the disk.
    pub(super) fn read(&self) -> io::Result<Entry> {
        let head = record::record_head_bytes();
        let mut bytes = vec![0; head + self.length as usize];
        let from = u64::from(self.offset) - head as u64;
        let record = (self.file.read_exact_at(&mut bytes, from))
            .and_then(|()| record::read(&bytes))
            .map_err(|error| {
                let reason = format!("the log is damaged at byte {}: {error}", self.offset);
                io::Error::new(error.kind(), reason)
            })?;
        match record {
            Record::Entry(entry) => Ok(entry),
            _ => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "a log record is not the entry that was written there",
            )),
        }
    }
}

/// One entry.
#[derive(Debug)]
struct Slot {
    log_id: LogId,
    /// `None` once it is only on disk.
    entry: Option<Entry>,
    /// `None` until it is on disk.
    place: Option<Place>,
    bytes: usize,
    /// Bytes of all entries ever, up to and with this one.
    total: u64,
}

/// An entry to hand out: from memory, or to be read.
#[derive(Debug)]
pub(super) enum Found {
    Cached(Entry),
    OnDisk(Place),
}

/// The log's entries and positions.
#[derive(Debug)]
pub(super) struct Entries {
    /// As of the newest call, on disk or on its way there.
    pub(super) positions: Checkpoint,
    slots: VecDeque<Slot>,
    cached_bytes: usize,
    cached_bytes_max: usize,
    /// Slots from the front that were looked at for eviction.
    cold: usize,
    total: u64,
}

impl Entries {
    pub(super) fn new(cached_bytes_max: usize) -> Self {
        Self {
            positions: Checkpoint::default(),
            slots: VecDeque::new(),
            cached_bytes: 0,
            cached_bytes_max,
            cold: 0,
            total: 0,
        }
    }

    /// The index of the first slot.
    pub(super) fn first_index(&self) -> Option<u64> {
        self.slots.front().map(|slot| slot.log_id.index)
    }

    /// The index that the next entry must have; `None` if any will do.
    pub(super) fn next_index(&self) -> Option<u64> {
        self.positions.last.map(|last| last.index + 1)
    }

    /// Adds `entry`, which must follow on the last.
    pub(super) fn push(&mut self, entry: Entry, place: Option<Place>) {
        let bytes = weight(&entry);
        self.total += bytes as u64;
        self.cached_bytes += bytes;
        self.positions.last = Some(entry.log_id());
        self.slots.push_back(Slot {
            log_id: entry.log_id(),
            entry: Some(entry),
            place,
            bytes,
            total: self.total,
        });
        self.evict();
    }

    /// Notes that the entry `log_id` is on disk, unless it is gone meanwhile.
    pub(super) fn place(&mut self, log_id: LogId, place: Place) {
        let Some(at) = self.position(log_id.index) else {
            return;
        };
        if let Some(slot) = self.slots.get_mut(at)
            && slot.log_id == log_id
        {
            slot.place = Some(place);
        }
    }

    /// Lets go of the oldest entries that are on disk, until the rest fits.
    pub(super) fn evict(&mut self) {
        while self.cached_bytes > self.cached_bytes_max && self.evict_one() {}
    }

    /// Also of those that are committed, until they fit. Not at a start, which is about to apply them.
    pub(super) fn evict_committed(&mut self) {
        let committed = self.committed_total();
        while let Some(slot) = self.slots.get(self.cold) {
            let cached = committed.saturating_sub(slot.total - slot.bytes as u64);
            if cached <= LOG_CACHE_COMMITTED_BYTES || !self.evict_one() {
                return;
            }
        }
    }

    /// Lets go of the oldest entry in memory. False if it is not on disk.
    fn evict_one(&mut self) -> bool {
        let Some(slot) = self.slots.get_mut(self.cold) else {
            return false;
        };
        if slot.place.is_none() {
            return false;
        }
        if slot.entry.take().is_some() {
            self.cached_bytes -= slot.bytes;
        }
        self.cold += 1;
        true
    }

    /// Bytes of all entries ever, up to the last that is known to be committed.
    fn committed_total(&self) -> u64 {
        let committed = self.positions.committed;
        let at = committed.and_then(|committed| self.position(committed.index));
        let slot = at.and_then(|at| self.slots.get(at));
        slot.map_or(0, |slot| slot.total)
    }

    /// Drops entries after `last`.
    pub(super) fn truncate(&mut self, last: Option<LogId>) {
        let next = last.map_or(0, |last| last.index + 1);
        while self
            .slots
            .back()
            .is_some_and(|slot| slot.log_id.index >= next)
        {
            let slot = self.slots.pop_back();
            self.forget(slot);
        }
        self.cold = self.cold.min(self.slots.len());
        self.positions.take(&Record::Truncate(last));
    }

    /// Drops entries up to `upto`.
    pub(super) fn purge(&mut self, upto: LogId) {
        while self
            .slots
            .front()
            .is_some_and(|slot| slot.log_id.index <= upto.index)
        {
            let slot = self.slots.pop_front();
            self.forget(slot);
            self.cold = self.cold.saturating_sub(1);
        }
        self.positions.take(&Record::Purge(upto));
    }

    fn forget(&mut self, slot: Option<Slot>) {
        if let Some(slot) = slot
            && slot.entry.is_some()
        {
            self.cached_bytes -= slot.bytes;
        }
    }

    fn position(&self, index: u64) -> Option<usize> {
        let first = self.first_index()?;
        usize::try_from(index.checked_sub(first)?).ok()
    }

    /// The entries of `[from, to)` that there are.
    pub(super) fn range(&self, from: u64, to: u64) -> Vec<Found> {
        let Some(first) = self.first_index() else {
            return Vec::new();
        };
        let within = |index: u64| {
            usize::try_from(index.saturating_sub(first))
                .map_or(self.slots.len(), |at| at.min(self.slots.len()))
        };
        let (start, stop) = (within(from), within(to));
        if start >= stop {
            return Vec::new();
        }
        (self.slots.range(start..stop))
            .map(|slot| match (&slot.entry, &slot.place) {
                (Some(entry), _) => Found::Cached(entry.clone()),
                (None, Some(place)) => Found::OnDisk(place.clone()),
                (None, None) => unreachable!("an entry is let go only once it is on disk"),
            })
            .collect()
    }

    /// Bytes of the entries after `index`, roughly as in memory.
    pub(super) fn bytes_after(&self, index: u64) -> u64 {
        let Some(first) = self.slots.front() else {
            return 0;
        };
        if index < first.log_id.index {
            return self.total - (first.total - first.bytes as u64);
        }
        let at = self.position(index).and_then(|at| self.slots.get(at));
        at.map_or(0, |slot| self.total - slot.total)
    }
}

/// What `entry` weighs in memory.
fn weight(entry: &Entry) -> usize {
    let body = match &entry.payload {
        EntryPayload::Normal(command) => command.body.len(),
        EntryPayload::Blank | EntryPayload::Membership(_) => 0,
    };
    body + ENTRY_OVERHEAD_BYTES
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::raft::types::{Logged, TypeConfig};

    fn entries(dir: &Path, bytes: usize) -> Entries {
        let file = Arc::new(File::create(dir.join("log")).unwrap());
        let mut entries = Entries::new(usize::MAX);
        for index in 1..=16 {
            let body = Arc::from(vec![0; bytes]);
            let log_id = openraft::testing::log_id::<TypeConfig>(1, 1, index);
            let entry = Entry::new_normal(log_id, Logged { format: 1, body });
            let place = Place {
                file: Arc::clone(&file),
                offset: 0,
                length: 0,
            };
            entries.push(entry, Some(place));
        }
        entries
    }

    fn cached(entries: &Entries) -> usize {
        let found = entries.range(1, 17);
        let cached = found.iter().filter(|one| matches!(one, Found::Cached(_)));
        cached.count()
    }

    /// A mebibyte each: four of those that are committed stay, less what they weigh besides, and all others.
    #[test]
    fn what_is_committed_leaves_memory_first() {
        let temp = tempfile::tempdir().unwrap();
        let mut entries = entries(temp.path(), 1 << 20);
        entries.evict_committed();
        let before = cached(&entries);
        let tenth = entries.slots[9].log_id;

        entries.positions.take(&Record::Committed(tenth));
        entries.evict();
        let by_size = cached(&entries);
        entries.evict_committed();

        assert_eq!((before, by_size), (16, 16));
        assert_eq!(cached(&entries), 3 + 6);
        assert!(matches!(entries.range(8, 9)[..], [Found::Cached(_)]));
        assert!(matches!(entries.range(7, 8)[..], [Found::OnDisk(_)]));
    }
}
