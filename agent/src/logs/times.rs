//! Times at which the bytes of a stream were taken: the file `.<name>.<N>.times` of each log file.
//!
//! The file holds records of 16 bytes, little-endian: an offset in the stream and nanoseconds since the epoch. From
//! a record's offset up to the next one's, bytes were taken at its time or a little later. A record is written
//! *before* its bytes, so no reader finds new bytes under an old time. A record that no bytes followed is
//! overwritten.
//!
//! On request, a writer holds records back for about a second ([`pending`]). Readers in the same process see them.
//!
//! No other part depends on these files: a lost, torn or damaged file makes times absent, never bytes wrong.
//! Thinning bounds their size: a full file keeps every second record and continues with half the resolution.

mod pending;

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use muster_domain::id::Timestamp;
use muster_domain::{number, saturating};
use rustix::fs::OFlags;

use crate::logs::dir::LogDir;
use crate::logs::limits::{
    TIME_BYTES_OF_LOG, TIME_INTERVAL, TIME_RECORDS_HELD_MAX, TIME_RECORDS_MAX, TIME_RECORDS_MIN,
};
use crate::logs::times::pending::FileId;

/// Bytes of a record.
const RECORD_BYTES: u64 = 16;

/// A record that bytes from `offset` on were taken at `at`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) offset: u64,
    pub(crate) at: Timestamp,
}

impl Record {
    fn encode(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.offset.to_le_bytes());
        bytes[8..].copy_from_slice(&self.at.0.to_le_bytes());
        bytes
    }

    fn decode(bytes: [u8; 16]) -> Self {
        let (offset, at) = bytes.split_at(8);
        let number = |part: &[u8]| u64::from_le_bytes(part.try_into().expect("half of 16 bytes"));
        Self {
            offset: number(offset),
            at: Timestamp(number(at)),
        }
    }
}

pub(crate) fn file_name(name: &str, index: u64) -> String {
    format!(".{name}.{index}.times")
}

/// Most time records of a log file of `max_file_bytes`.
pub(crate) fn records_max(max_file_bytes: u64) -> u64 {
    (max_file_bytes / TIME_BYTES_OF_LOG).clamp(TIME_RECORDS_MIN, TIME_RECORDS_MAX)
}

/// The writing side, for one log file at a time.
#[derive(Debug, Default)]
pub(crate) struct TimesWriter {
    /// It is boxed, because most streams have no output.
    open: Option<Box<OpenTimesFile>>,
    /// Whether records are held back until [`TimesWriter::flush`], up to a limit.
    holds: bool,
}

#[derive(Debug)]
struct OpenTimesFile {
    index: u64,
    file: File,
    file_id: FileId,
    /// Whole records in the file.
    written: u64,
    /// Whole records in the file and held records.
    records: u64,
    last: Option<Record>,
    /// Shortest time between two records. It doubles whenever records are thinned.
    interval: Duration,
}

impl TimesWriter {
    /// From now on, records are held back until [`Self::flush`], at most [`TIME_RECORDS_HELD_MAX`] of them.
    pub(crate) fn hold(&mut self) {
        self.holds = true;
    }

    /// Writes the held records.
    pub(crate) fn flush(&mut self, name: &str) {
        let Some(open) = &mut self.open else { return };
        if let Err(error) = open.flush() {
            tracing::debug!(%error, name, "the time of log bytes cannot be kept");
            self.open = None;
        }
    }

    /// Flushes like [`Self::flush`], and closes the file until the next record.
    pub(crate) fn close(&mut self, name: &str) {
        self.flush(name);
        self.open = None;
    }

    /// Notes that bytes from `record.offset` on, in log file `index`, are about to be taken at its time. Writes the
    /// record if the last one is too old for them. After an error, times are absent or coarse.
    pub(crate) fn note(
        &mut self,
        dir: &Path,
        name: &str,
        index: u64,
        record: Record,
        records_max: u64,
    ) {
        if self.is_fresh(index, record) {
            return;
        }
        if let Err(error) = self.write(dir, name, index, record, records_max) {
            tracing::debug!(%error, name, "the time of log bytes cannot be kept");
            self.open = None;
        }
    }

    /// Whether the last record is recent enough for the bytes of `record`.
    fn is_fresh(&self, index: u64, record: Record) -> bool {
        let open = self.open.as_ref().filter(|open| open.index == index);
        let last = open.and_then(|open| Some((open.last?, open.interval)));
        last.is_some_and(|(last, interval)| {
            let age = record.at.0.checked_sub(last.at.0);
            // A clock that was set back begins another record.
            age.is_some_and(|age| u128::from(age) < interval.as_nanos())
        })
    }

    fn write(
        &mut self,
        dir: &Path,
        name: &str,
        index: u64,
        record: Record,
        records_max: u64,
    ) -> io::Result<()> {
        let mut open = match self.open.take().filter(|open| open.index == index) {
            Some(open) => open,
            // The held records of the previous log file are written when its state is dropped.
            None => Box::new(OpenTimesFile::resume(dir, name, index, record.offset)?),
        };
        if open.last.is_some_and(|last| last.offset == record.offset) {
            // No bytes followed the last record.
            open.records -= 1;
        }
        if open.records >= records_max {
            open.thin(dir, name, records_max)?;
        }
        open.add(record, self.holds)?;
        self.open = Some(open);
        Ok(())
    }
}

impl OpenTimesFile {
    /// Continues behind the existing records, except records about bytes that do not exist.
    fn resume(dir: &Path, name: &str, index: u64, end: u64) -> io::Result<Self> {
        let flags = OFlags::RDWR | OFlags::CREATE;
        let file = LogDir::at(dir)?.open_file(&file_name(name, index), flags)?;
        let length = file.metadata()?.len();
        let mut records = length / RECORD_BYTES;
        let mut last = None;
        if records > 0 {
            last = Some(record_at(&file, records - 1)?).filter(|last| last.offset <= end);
        }
        if last.is_none() {
            records = 0;
            if length > 0 {
                file.set_len(0)?;
            }
        }
        Ok(Self {
            index,
            file_id: FileId::of(&file)?,
            file,
            written: records,
            records,
            last,
            interval: TIME_INTERVAL,
        })
    }

    fn add(&mut self, record: Record, holds: bool) -> io::Result<()> {
        // A record that no bytes followed is overwritten.
        self.written = self.written.min(self.records);
        if holds {
            let held = pending::put(self.file_id, self.records, self.written, record);
            self.records += 1;
            self.last = Some(record);
            if held >= TIME_RECORDS_HELD_MAX {
                self.flush()?;
            }
            return Ok(());
        }
        self.file
            .write_all_at(&record.encode(), self.records * RECORD_BYTES)?;
        self.records += 1;
        self.written = self.records;
        self.last = Some(record);
        Ok(())
    }

    /// Writes the held records. Records that cannot be written are lost.
    fn flush(&mut self) -> io::Result<()> {
        let Some(held) = pending::of(self.file_id) else {
            return Ok(());
        };
        let bytes: Vec<u8> = held.records.iter().flat_map(|held| held.encode()).collect();
        let wrote = self.file.write_all_at(&bytes, held.after * RECORD_BYTES);
        // Readers find the records here until the file has them.
        pending::forget(self.file_id);
        self.written = self.records;
        wrote
    }

    /// Keeps every second record, in a file that replaces the old one atomically.
    fn thin(&mut self, dir: &Path, name: &str, records_max: u64) -> io::Result<()> {
        self.flush()?;
        let old = all(&self.file, records_max)?;
        let kept: Vec<u8> = old
            .iter()
            .step_by(2)
            .flat_map(|kept| kept.encode())
            .collect();
        let (name, next) = (
            file_name(name, self.index),
            format!(".{name}.{}.times.next", self.index),
        );
        let dir = LogDir::at(dir)?;
        let mut file = dir.open_file(&next, OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC)?;
        file.write_all(&kept)?;
        dir.rename(&next, &name)?;
        self.records = kept.len() as u64 / RECORD_BYTES;
        self.written = self.records;
        self.file_id = FileId::of(&file)?;
        self.file = file;
        self.interval *= 2;
        Ok(())
    }
}

impl Drop for OpenTimesFile {
    fn drop(&mut self) {
        if let Err(error) = self.flush() {
            tracing::debug!(%error, "times of log bytes cannot be kept");
        }
    }
}

/// The time at which bytes were taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TakenTime {
    /// The time; `None` where it is not known.
    pub(crate) at: Option<Timestamp>,
    /// The offset at which another time begins.
    pub(crate) until: Option<u64>,
}

/// The time at which the byte at `offset` of the log file `index`, which begins at `begin`, was taken.
pub(crate) fn taken(dir: &LogDir, name: &str, index: u64, begin: u64, offset: u64) -> TakenTime {
    let look = || -> io::Result<TakenTime> {
        let file = dir.open_file(&file_name(name, index), OFlags::RDONLY)?;
        let Some(held) = pending::of(FileId::of(&file)?) else {
            let count = file.metadata()?.len() / RECORD_BYTES;
            return find(count, begin, offset, |at| record_at(&file, at));
        };
        let count = held.after + held.records.len() as u64;
        find(count, begin, offset, |at| {
            match at.checked_sub(held.after) {
                Some(held_at) => Ok(held.records[number::index(held_at)]),
                None => record_at(&file, at),
            }
        })
    };
    look().unwrap_or_default()
}

/// The record that covers `offset`, among `count` ascending records.
fn find(
    count: u64,
    begin: u64,
    offset: u64,
    record: impl Fn(u64) -> io::Result<Record>,
) -> io::Result<TakenTime> {
    // Records before `low` are at or before the offset, those from `high` on are behind it.
    let (mut low, mut high) = (0, count);
    let mut taken = TakenTime::default();
    while low < high {
        let middle = low + (high - low) / 2;
        let probed = record(middle)?;
        if probed.offset <= offset {
            low = middle + 1;
            // A record from before the file's start is damaged.
            taken.at = (probed.offset >= begin && probed.at.0 > 0).then_some(probed.at);
        } else {
            high = middle;
            taken.until = Some(probed.offset);
        }
    }
    Ok(taken)
}

/// The answer of one log file's times to a search for a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SinceStart {
    /// All bytes of the file are older.
    Older,
    /// The bytes from this offset on are recent enough; all earlier ones are older.
    From(u64),
    /// All bytes of the file are recent enough.
    All,
}

/// Returns the bytes of the log file `index`, which begins at `begin`, that were taken at `since` or later. Without
/// records, the time of the file's last change decides: the result may have too many bytes, never too few.
pub(crate) fn since(
    dir: &LogDir,
    name: &str,
    index: u64,
    begin: u64,
    since: Timestamp,
) -> io::Result<SinceStart> {
    let records = dir
        .open_file(&file_name(name, index), OFlags::RDONLY)
        .and_then(|file| with_held(&file))
        .unwrap_or_default();
    if !records.is_empty() {
        return Ok(among(&records, begin, since));
    }
    let changed = dir
        .open_file(&format!("{name}.{index}"), OFlags::RDONLY)?
        .metadata()?
        .modified()?;
    Ok(if at(changed) < since {
        SinceStart::Older
    } else {
        SinceStart::All
    })
}

/// All records of a file, including held ones.
fn with_held(file: &File) -> io::Result<Vec<Record>> {
    let Some(held) = pending::of(FileId::of(file)?) else {
        return all(file, TIME_RECORDS_MAX);
    };
    let mut records = all(file, held.after)?;
    records.extend(held.records);
    Ok(records)
}

fn among(records: &[Record], begin: u64, since: Timestamp) -> SinceStart {
    match records.iter().find(|record| record.at >= since) {
        None => SinceStart::Older,
        Some(record) if record.offset <= begin => SinceStart::All,
        Some(record) => SinceStart::From(record.offset),
    }
}

/// Converts `time` to the recorded form; times before 1970 become 0.
pub(crate) fn at(time: SystemTime) -> Timestamp {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(saturating::nanos(since))
}

fn record_at(file: &File, number: u64) -> io::Result<Record> {
    let mut bytes = [0; 16];
    file.read_exact_at(&mut bytes, number * RECORD_BYTES)?;
    Ok(Record::decode(bytes))
}

/// Returns all whole records of the file, at most `most`.
fn all(file: &File, most: u64) -> io::Result<Vec<Record>> {
    let mut bytes = Vec::new();
    let mut from_begin = file.try_clone()?;
    io::Seek::rewind(&mut from_begin)?;
    from_begin
        .take(most * RECORD_BYTES)
        .read_to_end(&mut bytes)?;
    let (whole, _torn) = bytes.as_chunks::<16>();
    Ok(whole.iter().map(|bytes| Record::decode(*bytes)).collect())
}

#[cfg(test)]
mod tests;
