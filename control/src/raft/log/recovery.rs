//! The recovery of the log at a start.

use std::fs;
use std::io;

use openraft::entry::RaftEntry;

use super::OpenLogError;
use super::record::{self, Record, ScannedFrame};
use super::segment::{Dir, Segment};
use super::state::{Checkpoint, Entries, RecordLocation};

/// A complete segment.
#[derive(Debug)]
pub(super) struct ClosedSegment {
    pub(super) segment: Segment,
    /// The last entry in the segment or before it.
    pub(super) last_index: Option<u64>,
}

/// The recovered log.
#[derive(Debug)]
pub(super) struct RecoveredLog {
    pub(super) entries: Entries,
    pub(super) files: Files,
    /// Bytes cut off the end of the log.
    pub(super) bytes_cut: u64,
}

/// The recovered segments.
#[derive(Debug, Default)]
pub(super) struct Files {
    /// Complete segments, oldest first.
    pub(super) closed: Vec<ClosedSegment>,
    /// The current segment and its write offset; `None` in an empty directory.
    pub(super) current: Option<(Segment, u32)>,
}

/// Reads all segments in `dir`. Changes only a torn end, and only when everything else is valid.
pub(super) fn recover(dir: &Dir, cache_bytes: usize) -> Result<RecoveredLog, OpenLogError> {
    let mut recovery = Recovery {
        dir,
        found: RecoveredLog {
            entries: Entries::new(cache_bytes),
            files: Files::default(),
            bytes_cut: 0,
        },
        positions: Checkpoint::default(),
        torn: None,
    };
    let numbers = dir.numbers().map_err(|source| recovery.io(source))?;
    for (at, number) in numbers.iter().enumerate() {
        recovery.segment(*number, at + 1 == numbers.len())?;
    }
    recovery.check_whole()?;
    recovery.cut()?;
    Ok(recovery.found)
}

struct Recovery<'a> {
    dir: &'a Dir,
    found: RecoveredLog,
    /// Positions after the records read so far.
    positions: Checkpoint,
    /// The offset at which the torn end of the last segment ends.
    torn: Option<usize>,
}

impl Recovery<'_> {
    fn io(&self, source: io::Error) -> OpenLogError {
        OpenLogError::Io {
            dir: self.dir.path().to_owned(),
            source,
        }
    }

    fn damaged(&self, segment: &Segment, offset: usize, reason: &str) -> OpenLogError {
        OpenLogError::Damaged {
            dir: self.dir.path().to_owned(),
            file: segment.path.clone(),
            offset: Some(offset as u64),
            source: io::Error::new(io::ErrorKind::InvalidData, reason.to_owned()),
        }
    }

    fn segment(&mut self, number: u32, newest: bool) -> Result<(), OpenLogError> {
        let segment = (self.dir.segment(number)).map_err(|source| self.io(source))?;
        let bytes = fs::read(&segment.path).map_err(|source| self.io(source))?;
        match record::format(&bytes) {
            Some(record::FORMAT) => {}
            Some(found) if found > record::FORMAT => {
                return Err(OpenLogError::Newer {
                    file: segment.path,
                    found,
                    known: record::FORMAT,
                });
            }
            Some(_) | None => {
                return Err(self.damaged(&segment, 0, "it does not begin as a log file does"));
            }
        }
        if let Some((before, end)) = self.found.files.current.take() {
            self.close(before, end);
        }
        let mut at = record::HEAD_BYTES;
        loop {
            match record::next(&bytes, number, at) {
                ScannedFrame::Frame { bodies, end } => {
                    for (offset, length) in bodies {
                        self.record(&segment, &bytes, (offset, length), at == record::HEAD_BYTES)?;
                    }
                    at = end;
                }
                ScannedFrame::Nothing => break,
                ScannedFrame::Torn { end } if newest && at > record::HEAD_BYTES => {
                    self.torn = Some(end);
                    break;
                }
                ScannedFrame::Torn { .. } => {
                    return Err(self.damaged(
                        &segment,
                        at,
                        "a record is cut in the middle of the log",
                    ));
                }
                ScannedFrame::Damaged { offset, reason } => {
                    return Err(self.damaged(&segment, offset, reason));
                }
            }
        }
        if at == record::HEAD_BYTES {
            return Err(self.damaged(&segment, at, "it has no beginning"));
        }
        let Ok(end) = u32::try_from(at) else {
            return Err(self.damaged(&segment, at, "it is too large"));
        };
        self.found.files.current = Some((segment, end));
        Ok(())
    }

    fn close(&mut self, segment: Segment, end: u32) {
        self.positions.before = end;
        let last_index = self.positions.last.map(|last| last.index);
        self.found.files.closed.push(ClosedSegment {
            segment,
            last_index,
        });
    }

    fn record(
        &mut self,
        segment: &Segment,
        bytes: &[u8],
        (offset, length): (usize, usize),
        first: bool,
    ) -> Result<(), OpenLogError> {
        let head = record::record_head_bytes();
        let record = record::read(&bytes[offset - head..offset + length])
            .map_err(|error| self.damaged(segment, offset, &error.to_string()))?;
        let entries = &mut self.found.entries;
        match record {
            Record::Checkpoint(checkpoint) if first => {
                self.checkpoint(segment, checkpoint)?;
                return Ok(());
            }
            _ if first && self.positions.segment != segment.number => {
                return Err(self.damaged(segment, offset, "it does not begin with a checkpoint"));
            }
            Record::Checkpoint(_) => {
                return Err(self.damaged(segment, offset, "a checkpoint is out of its place"));
            }
            Record::Entry(entry) => {
                let index = entry.log_id().index;
                if self
                    .positions
                    .last
                    .is_some_and(|last| last.index + 1 != index)
                {
                    return Err(self.damaged(segment, offset, "entries are missing before it"));
                }
                let (Ok(offset_32), Ok(length)) = (u32::try_from(offset), u32::try_from(length))
                else {
                    return Err(self.damaged(segment, offset, "it is too large"));
                };
                let place = RecordLocation {
                    file: std::sync::Arc::clone(&segment.file),
                    offset: offset_32,
                    length,
                };
                entries.push(entry, Some(place));
                self.positions.last = entries.positions.last;
                return Ok(());
            }
            Record::Truncate(last) => entries.truncate(last),
            Record::Purge(upto) => entries.purge(upto),
            Record::Vote(_) | Record::Committed(_) => entries.positions.take(&record),
        }
        self.positions.take(&record);
        Ok(())
    }

    /// The first checkpoint stands for removed files. Each later one must equal the positions read so far.
    fn checkpoint(&mut self, segment: &Segment, found: Checkpoint) -> Result<(), OpenLogError> {
        let offset = record::HEAD_BYTES;
        if found.segment != segment.number {
            return Err(self.damaged(segment, offset, "it is another file of the log"));
        }
        self.positions.segment = found.segment;
        if self.found.files.closed.is_empty() {
            self.found.entries.positions = found.clone();
            self.positions = found;
        } else if found != self.positions {
            return Err(self.damaged(
                segment,
                offset,
                "the file before it is missing or is not what it was",
            ));
        }
        Ok(())
    }

    /// Fails if an entry between the last purged and the first one is missing.
    fn check_whole(&self) -> Result<(), OpenLogError> {
        let entries = &self.found.entries;
        let next = entries
            .positions
            .purged
            .map_or(0, |purged| purged.index + 1);
        let oldest = (self
            .found
            .files
            .closed
            .first()
            .map(|closed| &closed.segment))
        .or(self
            .found
            .files
            .current
            .as_ref()
            .map(|(segment, _)| segment));
        let from_the_start = oldest.is_none_or(|segment| segment.number == 1);
        let whole = match entries.first_index() {
            // A log that was never purged begins with its first entry.
            Some(first) => first == next || (from_the_start && entries.positions.purged.is_none()),
            None => entries.positions.last == entries.positions.purged,
        };
        if whole {
            return Ok(());
        }
        let reason = format!("entries from {next} on are missing: a file of the log is gone");
        Err(OpenLogError::Damaged {
            dir: self.dir.path().to_owned(),
            file: self.dir.path().to_owned(),
            offset: None,
            source: io::Error::new(io::ErrorKind::InvalidData, reason),
        })
    }

    /// Overwrites the torn end with zeros.
    fn cut(&mut self) -> Result<(), OpenLogError> {
        let (Some(torn), Some((segment, end))) = (self.torn, &self.found.files.current) else {
            return Ok(());
        };
        self.found.bytes_cut = torn as u64 - u64::from(*end);
        let zeros = vec![0; torn - *end as usize];
        std::os::unix::fs::FileExt::write_all_at(&*segment.file, &zeros, u64::from(*end))
            .and_then(|()| segment.file.sync_all())
            .map_err(|source| self.io(source))
    }
}
