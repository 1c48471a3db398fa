//! The log's contents in memory: positions, and the entries with their places on disk.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use openraft::EntryPayload;
use openraft::entry::RaftEntry;
use serde::{Deserialize, Serialize};

use super::limits::{LOG_CACHE_COMMITTED_BYTES, LOG_CACHE_COMMITTED_ENTRIES};
use super::record::{self, Record};
use crate::raft::types::{Entry, LogId, Vote};

/// Approximate bytes of an entry in memory besides its command. They only count for the size of the cache.
const ENTRY_OVERHEAD_BYTES: usize = 96;
/// Unused places in a queue that are kept allocated.
const SPARE_MIN: usize = 1024;

/// Positions and vote after all records before a point of the log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Checkpoint {
    /// The number of the file that begins with this checkpoint.
    pub(super) segment: u32,
    /// The offset at which the previous file ends.
    pub(super) before: u32,
    pub(super) vote: Option<Vote>,
    pub(super) committed: Option<LogId>,
    pub(super) purged: Option<LogId>,
    /// The last entry; the last purged one if there is none.
    pub(super) last: Option<LogId>,
}

impl Checkpoint {
    /// Applies `record`, including the position of an entry.
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

/// The file and position of an entry's record.
#[derive(Clone, Debug)]
pub(super) struct RecordLocation {
    pub(super) file: Arc<File>,
    /// The offset of the entry's body.
    pub(super) offset: u32,
    /// The length of the entry's body, in bytes.
    pub(super) length: u32,
}

impl RecordLocation {
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

/// One entry that is in memory or not on disk yet.
#[derive(Debug)]
struct LogSlot {
    entry: Entry,
    /// The entry's record; `None` until it is on disk.
    place: Option<RecordLocation>,
    bytes: usize,
    /// Total bytes of all entries ever written, up to and including this one.
    total: u64,
}

/// A requested entry: from memory, or to be read from disk.
#[derive(Debug)]
pub(super) enum StoredEntry {
    Cached(Entry),
    OnDisk(RecordLocation),
}

/// The log's entries and positions.
#[derive(Debug)]
pub(super) struct Entries {
    /// The positions after the newest call, on disk or under way to it.
    pub(super) positions: Checkpoint,
    /// The oldest entries, which are only on disk.
    cold: ColdEntries,
    /// All later entries, up to the newest.
    slots: VecDeque<LogSlot>,
    cached_bytes: usize,
    cached_bytes_max: usize,
    total: u64,
}

impl Entries {
    pub(super) fn new(cached_bytes_max: usize) -> Self {
        Self {
            positions: Checkpoint::default(),
            cold: ColdEntries::default(),
            slots: VecDeque::new(),
            cached_bytes: 0,
            cached_bytes_max,
            total: 0,
        }
    }

    /// The index of the first entry.
    pub(super) fn first_index(&self) -> Option<u64> {
        self.cold.first_index().or(self.first_in_memory())
    }

    fn first_in_memory(&self) -> Option<u64> {
        self.slots.front().map(|slot| slot.entry.log_id().index)
    }

    /// The index that the next entry must have; `None` if any index is valid.
    pub(super) fn next_index(&self) -> Option<u64> {
        self.positions.last.map(|last| last.index + 1)
    }

    /// Appends `entry`, which must follow the last entry.
    pub(super) fn push(&mut self, entry: Entry, place: Option<RecordLocation>) {
        let bytes = weight(&entry);
        self.total += bytes as u64;
        self.cached_bytes += bytes;
        self.positions.last = Some(entry.log_id());
        self.slots.push_back(LogSlot {
            entry,
            place,
            bytes,
            total: self.total,
        });
        self.evict();
    }

    /// Records the place on disk of the entry `log_id`, unless the entry has been dropped meanwhile.
    pub(super) fn place(&mut self, log_id: LogId, place: RecordLocation) {
        let at = self.position(log_id.index);
        if let Some(slot) = at.and_then(|at| self.slots.get_mut(at))
            && slot.entry.log_id() == log_id
        {
            slot.place = Some(place);
        }
    }

    /// Evicts the oldest entries that are on disk from memory, until the rest fits.
    pub(super) fn evict(&mut self) {
        while self.cached_bytes > self.cached_bytes_max && self.evict_one() {}
    }

    /// Evicts the oldest committed entries from memory, until they fit. A start does not call this, because it
    /// will apply them.
    pub(super) fn evict_committed(&mut self) {
        let Some(committed) = self.positions.committed else {
            return;
        };
        let total = self.total_at(committed.index);
        while let Some(slot) = self.slots.front() {
            let bytes = total.saturating_sub(slot.total - slot.bytes as u64);
            let entries = (committed.index + 1).saturating_sub(slot.entry.log_id().index);
            let fit = bytes <= LOG_CACHE_COMMITTED_BYTES && entries <= LOG_CACHE_COMMITTED_ENTRIES;
            if fit || !self.evict_one() {
                break;
            }
        }
        shrink(&mut self.slots);
    }

    /// Evicts the oldest entry from memory. Returns false if it is not on disk, or there is none.
    fn evict_one(&mut self) -> bool {
        let Some(slot) = self.slots.pop_front_if(|slot| slot.place.is_some()) else {
            return false;
        };
        self.cached_bytes -= slot.bytes;
        if let Some(place) = slot.place {
            let index = slot.entry.log_id().index;
            self.cold.push(index, place, (slot.total, slot.bytes));
        }
        true
    }

    /// Total bytes of all entries ever written, up to `index`; 0 if there is no entry at `index`.
    fn total_at(&self, index: u64) -> u64 {
        let slot = self.position(index).and_then(|at| self.slots.get(at));
        slot.map(|slot| slot.total)
            .or_else(|| self.cold.total_at(index))
            .unwrap_or_default()
    }

    /// Drops entries after `last`.
    pub(super) fn truncate(&mut self, last: Option<LogId>) {
        let next = last.map_or(0, |last| last.index + 1);
        while let Some(slot) = self
            .slots
            .pop_back_if(|slot| slot.entry.log_id().index >= next)
        {
            self.cached_bytes -= slot.bytes;
        }
        self.cold.truncate(next);
        self.positions.take(&Record::Truncate(last));
    }

    /// Drops entries up to `upto`.
    pub(super) fn purge(&mut self, upto: LogId) {
        self.cold.purge(upto.index);
        while let Some(slot) = self
            .slots
            .pop_front_if(|slot| slot.entry.log_id().index <= upto.index)
        {
            self.cached_bytes -= slot.bytes;
        }
        self.positions.take(&Record::Purge(upto));
    }

    /// The queue position of the slot of `index`, or the position that it would have.
    fn position(&self, index: u64) -> Option<usize> {
        let first = self.first_in_memory()?;
        usize::try_from(index.checked_sub(first)?).ok()
    }

    /// The existing entries of `[from, to)`.
    pub(super) fn range(&self, from: u64, to: u64) -> Vec<StoredEntry> {
        let on_disk = self.cold.range(from, to).map(StoredEntry::OnDisk);
        let Some(first) = self.first_in_memory() else {
            return on_disk.collect();
        };
        let in_memory = self.slots.range(span(first, self.slots.len(), from, to));
        on_disk
            .chain(in_memory.map(|slot| StoredEntry::Cached(slot.entry.clone())))
            .collect()
    }

    /// Approximate bytes in memory of the entries after `index`.
    pub(super) fn bytes_after(&self, index: u64) -> u64 {
        match self.first_index() {
            None => 0,
            Some(first) if index < first => self.total - self.total_before(),
            Some(_) => match self.total_at(index) {
                0 => 0,
                total => self.total - total,
            },
        }
    }

    /// Total bytes of all entries ever written before the first one here.
    fn total_before(&self) -> u64 {
        let slot = self.slots.front();
        let slot = slot.map(|slot| slot.total - slot.bytes as u64);
        self.cold.total_before().or(slot).unwrap_or_default()
    }
}

/// Entries that are only on disk, one after the other. A log has up to a million of them: 16 bytes each.
#[derive(Debug, Default)]
struct ColdEntries {
    rows: VecDeque<ColdRow>,
    /// The files of the rows, each with the index of its first row. The first file begins with the first row.
    runs: VecDeque<(u64, Arc<File>)>,
    /// Total bytes of all entries ever written before the first row.
    before: u64,
}

/// The position of an entry's record in its file.
#[derive(Debug)]
struct ColdRow {
    /// Total bytes of all entries ever written, up to and including this one.
    total: u64,
    offset: u32,
    length: u32,
}

impl ColdEntries {
    fn first_index(&self) -> Option<u64> {
        self.runs.front().map(|(first, _)| *first)
    }

    fn total_before(&self) -> Option<u64> {
        self.rows.front().map(|_| self.before)
    }

    /// Appends the entry of `index`, which follows the last one. All entries ever written, with it, have `total`
    /// bytes. The entry alone has `bytes`.
    fn push(&mut self, index: u64, place: RecordLocation, (total, bytes): (u64, usize)) {
        let RecordLocation {
            file,
            offset,
            length,
        } = place;
        if self.rows.is_empty() {
            self.before = total - bytes as u64;
        }
        let last = self.runs.back();
        if last.is_none_or(|(_, last)| !Arc::ptr_eq(last, &file)) {
            self.runs.push_back((index, file));
        }
        self.rows.push_back(ColdRow {
            total,
            offset,
            length,
        });
    }

    fn position(&self, index: u64) -> Option<usize> {
        let first = self.first_index()?;
        usize::try_from(index.checked_sub(first)?).ok()
    }

    fn total_at(&self, index: u64) -> Option<u64> {
        let row = self.rows.get(self.position(index)?)?;
        Some(row.total)
    }

    /// Drops the entries from `next` on.
    fn truncate(&mut self, next: u64) {
        let left = self.position(next).unwrap_or_default();
        self.rows.truncate(left);
        while self.runs.pop_back_if(|(first, _)| *first >= next).is_some() {}
    }

    /// Drops the entries up to `upto`.
    fn purge(&mut self, upto: u64) {
        let gone = self.position(upto).map_or(0, |at| at + 1);
        let gone = gone.min(self.rows.len());
        if let Some(last) = self.rows.drain(..gone).next_back() {
            self.before = last.total;
        }
        if self.rows.is_empty() {
            self.runs.clear();
        }
        while self
            .runs
            .get(1)
            .is_some_and(|(first, _)| *first <= upto + 1)
        {
            self.runs.pop_front();
        }
        if let Some((first, _)) = self.runs.front_mut() {
            *first = (*first).max(upto + 1);
        }
        shrink(&mut self.rows);
    }

    /// The positions of the existing entries of `[from, to)`.
    fn range(&self, from: u64, to: u64) -> impl Iterator<Item = RecordLocation> + use<'_> {
        let first = self.first_index().unwrap_or_default();
        let rows = self.rows.range(span(first, self.rows.len(), from, to));
        (from.max(first)..).zip(rows).filter_map(|(index, row)| {
            let run = self.runs.partition_point(|(first, _)| *first <= index);
            let (_, file) = self.runs.get(run.checked_sub(1)?)?;
            Some(RecordLocation {
                file: Arc::clone(file),
                offset: row.offset,
                length: row.length,
            })
        })
    }
}

/// The queue range of the existing entries of `[from, to)`. The queue has `len` entries and begins with `first`.
fn span(first: u64, len: usize, from: u64, to: u64) -> Range<usize> {
    let within =
        |index: u64| usize::try_from(index.saturating_sub(first)).map_or(len, |at| at.min(len));
    let (start, stop) = (within(from), within(to));
    start.min(stop)..stop
}

/// Frees the memory that a burst left allocated in a queue.
fn shrink<T>(queue: &mut VecDeque<T>) {
    if queue.capacity() > SPARE_MIN && queue.len() < queue.capacity() / 4 {
        queue.shrink_to(queue.capacity() / 2);
    }
}

/// Bytes of `entry` in memory.
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
    use crate::raft::types::{EncodedCommand, TypeConfig};

    fn entries(dir: &Path, bytes: usize) -> Entries {
        let file = Arc::new(File::create(dir.join("log")).unwrap());
        let mut entries = Entries::new(usize::MAX);
        for index in 1..=16 {
            let body = Arc::from(vec![0; bytes]);
            let log_id = openraft::testing::log_id::<TypeConfig>(1, 1, index);
            let entry = Entry::new_normal(log_id, EncodedCommand { format: 1, body });
            let place = RecordLocation {
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
        let cached = found
            .iter()
            .filter(|one| matches!(one, StoredEntry::Cached(_)));
        cached.count()
    }

    /// Each entry has a mebibyte. Four committed entries stay, less their overhead, and all uncommitted ones.
    #[test]
    fn committed_entries_are_evicted_first() {
        let temp = tempfile::tempdir().unwrap();
        let mut entries = entries(temp.path(), 1 << 20);
        entries.evict_committed();
        let before = cached(&entries);
        let tenth = entries.slots[9].entry.log_id();

        entries.positions.take(&Record::Committed(tenth));
        entries.evict();
        let by_size = cached(&entries);
        entries.evict_committed();

        assert_eq!((before, by_size), (16, 16));
        assert_eq!(cached(&entries), 3 + 6);
        assert!(matches!(entries.range(8, 9)[..], [StoredEntry::Cached(_)]));
        assert!(matches!(entries.range(7, 8)[..], [StoredEntry::OnDisk(_)]));
    }

    /// Returns the positions that `entries` gives: the file's number in `files`, and the offset, which is the
    /// index.
    fn places(entries: &Entries, files: &[Arc<File>], from: u64, to: u64) -> Vec<(usize, u32)> {
        let found = entries.range(from, to).into_iter();
        let places = found.filter_map(|one| match one {
            StoredEntry::OnDisk(place) => Some(place),
            StoredEntry::Cached(_) => None,
        });
        let number =
            |place: &RecordLocation| files.iter().position(|file| Arc::ptr_eq(file, &place.file));
        places
            .map(|place| (number(&place).unwrap(), place.offset))
            .collect()
    }

    /// Creates ten entries in each of two files; all but the last two are only on disk.
    fn on_disk(dir: &Path) -> (Entries, Vec<Arc<File>>) {
        let file = |name| Arc::new(File::create(dir.join(name)).unwrap());
        let files = vec![file("first"), file("second")];
        let one = 100 + ENTRY_OVERHEAD_BYTES;
        let mut entries = Entries::new(2 * one);
        for index in 1..=20 {
            let body = Arc::from(vec![0; 100]);
            let log_id = openraft::testing::log_id::<TypeConfig>(1, 1, index);
            let entry = Entry::new_normal(log_id, EncodedCommand { format: 1, body });
            let place = RecordLocation {
                file: Arc::clone(&files[usize::from(index > 10)]),
                offset: u32::try_from(index).unwrap(),
                length: 100,
            };
            entries.push(entry, Some(place));
        }
        (entries, files)
    }

    #[test]
    fn evicted_log_entry_is_found_on_disk() {
        let temp = tempfile::tempdir().unwrap();
        let (entries, files) = on_disk(temp.path());

        let around = places(&entries, &files, 9, 13);

        assert_eq!(around, [(0, 9), (0, 10), (1, 11), (1, 12)]);
        assert_eq!(entries.range(0, 99).len(), 20);
        assert_eq!(places(&entries, &files, 0, 99).len(), 18);
        assert_eq!(entries.bytes_after(0), 20 * 196);
        assert_eq!(entries.bytes_after(5), 15 * 196);
        assert_eq!(entries.bytes_after(19), 196);
        assert_eq!(entries.bytes_after(20), 0);
    }

    #[test]
    fn purging_and_truncating_take_places_from_either_end() {
        let temp = tempfile::tempdir().unwrap();
        let (mut entries, files) = on_disk(temp.path());
        let at = |index| openraft::testing::log_id::<TypeConfig>(1, 1, index);

        entries.purge(at(8));
        entries.truncate(Some(at(13)));
        let left = places(&entries, &files, 0, 99);
        let bytes = entries.bytes_after(0);
        entries.purge(at(10));

        assert_eq!(left, [(0, 9), (0, 10), (1, 11), (1, 12), (1, 13)]);
        // Truncated bytes are counted until they are purged.
        assert_eq!(bytes, 12 * 196);
        assert_eq!(entries.first_index(), Some(11));
        assert_eq!(places(&entries, &files, 0, 99), left[2..]);
        assert_eq!(entries.cold.runs.len(), 1);
        entries.purge(at(20));
        assert_eq!((entries.first_index(), entries.cold.runs.len()), (None, 0));
    }

    /// Small entries weigh little, so their number is the effective bound.
    #[test]
    fn small_entries_leave_memory_by_count() {
        let temp = tempfile::tempdir().unwrap();
        let file = Arc::new(File::create(temp.path().join("log")).unwrap());
        let mut entries = Entries::new(usize::MAX);
        let at = |index| openraft::testing::log_id::<TypeConfig>(1, 1, index);
        let all = 2 * LOG_CACHE_COMMITTED_ENTRIES;
        for index in 1..=all {
            let place = RecordLocation {
                file: Arc::clone(&file),
                offset: 0,
                length: 0,
            };
            entries.push(Entry::new_blank(at(index)), Some(place));
        }

        entries.positions.take(&Record::Committed(at(all - 1)));
        entries.evict_committed();

        // The uncommitted entry stays as well.
        assert_eq!(entries.slots.len() as u64, LOG_CACHE_COMMITTED_ENTRIES + 1);
        assert_eq!(entries.first_index(), Some(1));
    }
}
