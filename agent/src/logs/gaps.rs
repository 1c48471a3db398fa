//! Positions at which bytes were dropped within a log file: the small file `.<name>.<N>.gaps` in the same
//! directory. A log file without gaps has none.
//!
//! A log file holds only the task's bytes, so this file records the missing ones. Its records have 16 bytes,
//! little-endian: a position in the log file, and the number of bytes that were dropped up to there. Both numbers
//! ascend, so an offset in the stream gives a position, and the reverse.
//!
//! A record is written *before* its bytes are thrown away, and so before any byte behind the gap. A process that is
//! killed between the two has announced a gap of at most the content of the FIFO. Those bytes are then written
//! after all, or dropped, so no byte is missing without a record. While no byte follows a gap, its record is
//! overwritten as the gap grows. A stream that may drop bytes reserves space for its records beforehand, because a
//! full disk causes the drops. Where no record can be written, the gap begins another log file.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use rustix::fs::{FallocateFlags, OFlags};

use crate::logs::dir::LogDir;
use crate::logs::limits::{GAPS_RESERVE_BYTES, TIME_RECORDS_MAX};

/// Bytes of a record.
const RECORD_BYTES: u64 = 16;

/// The end of a gap at `position` of a log file. `total` bytes of the file were dropped up to there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gap {
    pub(crate) position: u64,
    pub(crate) total: u64,
}

impl Gap {
    /// Bytes from the begin of the log file to the gap's end, dropped ones included.
    fn end(self) -> u64 {
        self.position.saturating_add(self.total)
    }

    fn encode(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.position.to_le_bytes());
        bytes[8..].copy_from_slice(&self.total.to_le_bytes());
        bytes
    }

    fn decode(bytes: [u8; 16]) -> Self {
        let (position, total) = bytes.split_at(8);
        let number = |part: &[u8]| u64::from_le_bytes(part.try_into().expect("half of 16 bytes"));
        Self {
            position: number(position),
            total: number(total),
        }
    }

    fn read(file: &File, number: u64) -> io::Result<Self> {
        let mut bytes = [0; 16];
        file.read_exact_at(&mut bytes, number * RECORD_BYTES)?;
        Ok(Self::decode(bytes))
    }
}

pub(crate) fn file_name(name: &str, index: u64) -> String {
    format!(".{name}.{index}.gaps")
}

/// The writing side, for one log file.
#[derive(Debug)]
pub(crate) struct GapsWriter {
    index: u64,
    /// `None` until there is a gap or space is reserved for records, and after [`Self::close`].
    file: Option<File>,
    /// Whether the file exists.
    is_made: bool,
    /// Whole records in the file.
    records: u64,
    last: Option<Gap>,
}

impl GapsWriter {
    /// Returns the writer for log file `index`, which has no gaps.
    pub(crate) fn none(index: u64) -> Self {
        Self {
            index,
            file: None,
            is_made: false,
            records: 0,
            last: None,
        }
    }

    /// Continues behind the existing records. A power cut can leave records behind the `bytes` of the log file.
    /// They are moved to its end, so that offsets still ascend; damaged records are cut off.
    pub(crate) fn resume(dir: &LogDir, name: &str, index: u64, bytes: u64) -> io::Result<Self> {
        let file = match dir.open_file(&file_name(name, index), OFlags::RDWR) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::none(index)),
            Err(error) => return Err(error),
        };
        let found = all(&file)?;
        let sound = found.partition_point(|gap| gap.position <= bytes);
        let moved = found[sound..].last().map(|gap| Gap {
            position: bytes,
            total: gap.total,
        });
        let mut records = sound as u64;
        let mut last = found[..sound].last().copied();
        if let Some(moved) = moved {
            if last.is_some_and(|last| last.position == bytes) {
                records -= 1;
            }
            file.write_all_at(&moved.encode(), records * RECORD_BYTES)?;
            records += 1;
            last = Some(moved);
        }
        if file.metadata()?.len() != records * RECORD_BYTES {
            file.set_len(records * RECORD_BYTES)?;
        }
        Ok(Self {
            index,
            file: Some(file),
            is_made: true,
            records,
            last,
        })
    }

    /// Bytes dropped in the log file, as far as they are recorded.
    pub(crate) fn total(&self) -> u64 {
        self.last.map_or(0, |last| last.total)
    }

    /// Closes the file until the next gap.
    pub(crate) fn close(&mut self) {
        self.file = None;
    }

    /// Reserves space for records, so that a full disk leaves some.
    pub(crate) fn reserve(&mut self, dir: &Path, name: &str) -> io::Result<()> {
        let file = self.opened(dir, name)?;
        rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, 0, GAPS_RESERVE_BYTES)?;
        Ok(())
    }

    /// Records that `bytes` more are dropped at `position`; `false` if the file has `records_max` records already.
    pub(crate) fn note(
        &mut self,
        dir: &Path,
        name: &str,
        (position, bytes): (u64, u64),
        records_max: u64,
    ) -> io::Result<bool> {
        let grows = self.last.is_some_and(|last| last.position == position);
        let number = if grows {
            self.records - 1
        } else {
            self.records
        };
        if number >= records_max {
            return Ok(false);
        }
        let gap = Gap {
            position,
            total: self.total().saturating_add(bytes),
        };
        self.opened(dir, name)?
            .write_all_at(&gap.encode(), number * RECORD_BYTES)?;
        self.records = number + 1;
        self.last = Some(gap);
        Ok(true)
    }

    fn opened(&mut self, dir: &Path, name: &str) -> io::Result<&File> {
        let file = match self.file.take() {
            Some(file) => file,
            None => {
                let made = if self.is_made {
                    OFlags::empty()
                } else {
                    OFlags::CREATE | OFlags::TRUNC
                };
                let name = file_name(name, self.index);
                LogDir::at(dir)?.open_file(&name, OFlags::RDWR | made)?
            }
        };
        self.is_made = true;
        Ok(self.file.insert(file))
    }
}

/// All sound records: the longest prefix in which both numbers ascend.
fn all(file: &File) -> io::Result<Vec<Gap>> {
    let length = file.metadata()?.len().min(TIME_RECORDS_MAX * RECORD_BYTES);
    let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
    let read = file.read_at(&mut bytes, 0)?;
    let (whole, _torn) = bytes.as_chunks::<16>();
    let mut gaps: Vec<Gap> = Vec::new();
    for gap in whole
        .iter()
        .take(read / 16)
        .map(|bytes| Gap::decode(*bytes))
    {
        let ascends = gaps.last().map_or(gap.total > 0, |last| {
            last.position < gap.position && last.total < gap.total
        });
        if !ascends {
            break;
        }
        gaps.push(gap);
    }
    Ok(gaps)
}

/// The reading side, for one log file. It stays readable when the log file is rotated away.
#[derive(Debug)]
pub(crate) struct Gaps {
    index: u64,
    file: Option<File>,
}

/// The content at an offset, counted from the begin of a log file, dropped bytes included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OffsetContent {
    /// Bytes, or the end.
    Data {
        /// Position in the log file.
        position: u64,
        /// Bytes at most up to the next gap; `None` if there is none.
        until_gap: Option<u64>,
    },
    Gap {
        /// Bytes up to the end of the gap.
        left: u64,
    },
}

impl Gaps {
    /// Opens the gaps of log file `index`.
    pub(crate) fn open(dir: &LogDir, name: &str, index: u64) -> io::Result<Self> {
        let mut this = Self { index, file: None };
        this.reopen(dir, name)?;
        Ok(this)
    }

    /// Checks again whether the log file has gaps. A log file is removed before its gaps. So a log file that exists
    /// without gaps had none in the bytes that were read before.
    pub(crate) fn reopen(&mut self, dir: &LogDir, name: &str) -> io::Result<()> {
        if self.file.is_some() {
            return Ok(());
        }
        match dir.open_file(&file_name(name, self.index), OFlags::RDONLY) {
            Ok(file) => self.file = Some(file),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Whether a file of gaps was found.
    pub(crate) fn are_there(&self) -> bool {
        self.file.is_some()
    }

    /// Returns the content at `relative`.
    pub(crate) fn content_at(&self, relative: u64) -> io::Result<OffsetContent> {
        let Some(file) = &self.file else {
            return find(0, relative, |_none| Err(io::ErrorKind::NotFound.into()));
        };
        let count = file.metadata()?.len() / RECORD_BYTES;
        find(count, relative, |number| Gap::read(file, number))
    }

    /// Bytes dropped in the log file.
    pub(crate) fn total(&self) -> io::Result<u64> {
        let Some(file) = &self.file else {
            return Ok(0);
        };
        match (file.metadata()?.len() / RECORD_BYTES).checked_sub(1) {
            Some(last) => Ok(Gap::read(file, last)?.total),
            None => Ok(0),
        }
    }

    /// The parts of a log file of `bytes` between the gaps, as offsets from its begin, dropped bytes included.
    pub(crate) fn kept(&self, bytes: u64) -> io::Result<Vec<std::ops::Range<u64>>> {
        let gaps = match &self.file {
            Some(file) => all(file)?,
            None => Vec::new(),
        };
        let mut kept = Vec::new();
        let (mut position, mut total) = (0, 0_u64);
        let ends = gaps.iter().map(|gap| (gap.position, gap.total));
        for (end, dropped) in ends.chain([(bytes, 0)]) {
            let end = end.min(bytes);
            if position < end {
                kept.push(position.saturating_add(total)..end.saturating_add(total));
            }
            (position, total) = (end, dropped);
        }
        Ok(kept)
    }
}

/// Finds the content at `relative` among `count` gaps that ascend.
fn find(
    count: u64,
    relative: u64,
    gap: impl Fn(u64) -> io::Result<Gap>,
) -> io::Result<OffsetContent> {
    // Gaps before `low` end at or before the offset, those from `high` on behind it.
    let (mut low, mut high) = (0, count);
    let (mut before, mut next) = (0, None);
    while low < high {
        let middle = low + (high - low) / 2;
        let probed = gap(middle)?;
        if probed.end() <= relative {
            low = middle + 1;
            before = probed.total;
        } else {
            high = middle;
            next = Some(probed);
        }
    }
    let position = relative.saturating_sub(before);
    let Some(next) = next else {
        return Ok(OffsetContent::Data {
            position,
            until_gap: None,
        });
    };
    let begin = next.position.saturating_add(before);
    if relative < begin {
        let until_gap = Some(begin - relative);
        return Ok(OffsetContent::Data {
            position,
            until_gap,
        });
    }
    let left = next.end() - relative;
    Ok(OffsetContent::Gap { left })
}

#[cfg(test)]
mod tests;
