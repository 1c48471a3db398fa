//! The writing side of a stream: files `<name>.N`, N from 0, the highest is the newest.
//!
//! A file is filled to exactly `max_file_bytes` and the next one begun; when there would be more
//! than `max_files`, the oldest goes first, so rotation frees space before it takes any. A writer
//! that comes back appends to the newest file: its length is what was written, because nothing is
//! held back in memory.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use muster_domain::id::Timestamp;
use rustix::fs::OFlags;

use crate::logs::LogDir;
use crate::logs::gaps::{self, Gaps, GapsWriter};
use crate::logs::limits::FILES_MAX;
use crate::logs::offsets::{self, Offsets};
use crate::logs::times::{self, Record, TimesWriter};

/// How much of a stream is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RotateLimits {
    /// Most files, 1 to 10 000.
    pub max_files: u32,
    /// Bytes after which the next file is begun, at least 1.
    pub max_file_bytes: u64,
}

/// Why a stream's files could not be opened for writing.
#[derive(Debug, thiserror::Error)]
pub enum OpenLogError {
    /// Nothing could be kept with such limits.
    #[error(
        "max_files is {max_files} and max_file_bytes {max_file_bytes}: files must be 1 to {FILES_MAX} and bytes at least 1"
    )]
    Limits {
        /// The number of files asked for.
        max_files: u32,
        /// The size asked for.
        max_file_bytes: u64,
    },
    /// The name is not one path component.
    #[error("log name {name:?} is empty, hidden or contains a slash or NUL")]
    Name {
        /// The name.
        name: String,
    },
    /// A file or the directory could not be read or opened.
    #[error("open log files {name}.N in {dir}")]
    Io {
        /// The log directory.
        dir: PathBuf,
        /// The stream's name.
        name: String,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
}

/// The files of one stream, open for appending.
#[derive(Debug)]
pub struct RotatingFile {
    dir: LogDir,
    name: String,
    limits: RotateLimits,
    /// Each file that is there, the current one last. Never empty.
    offsets: Offsets,
    current: File,
    /// Length of the current file.
    position: u64,
    /// Where bytes were dropped in the current file.
    gaps: GapsWriter,
    /// Whether room for gaps is taken before there are any.
    reserves_gaps: bool,
    /// Bytes after the current file's end that were dropped and have no trace on disk yet.
    dropped: u64,
    rotations: u64,
    times: TimesWriter,
    /// When the bytes that are written next are taken, if it is to be kept.
    now: Option<Timestamp>,
}

impl RotatingFile {
    /// Opens `<name>.N` in `dir` at its end, or makes `<name>.0`.
    ///
    /// # Errors
    ///
    /// [`OpenLogError`]. A name taken by something else than a regular file is an error.
    pub fn open(dir: LogDir, name: &str, limits: RotateLimits) -> Result<Self, OpenLogError> {
        let RotateLimits {
            max_files,
            max_file_bytes,
        } = limits;
        if !(1..=FILES_MAX).contains(&max_files) || max_file_bytes == 0 {
            return Err(OpenLogError::Limits {
                max_files,
                max_file_bytes,
            });
        }
        if name.is_empty() || name.starts_with('.') || name.contains(['/', '\0']) {
            return Err(OpenLogError::Name { name: name.into() });
        }
        let path = dir.path().to_owned();
        Self::resume(dir, name, limits).map_err(|source| OpenLogError::Io {
            dir: path,
            name: name.into(),
            source,
        })
    }

    fn resume(dir: LogDir, name: &str, limits: RotateLimits) -> io::Result<Self> {
        let known = offsets::load(&dir, name)?.unwrap_or_default();
        let mut files = Vec::new();
        for index in dir.indexes(name)? {
            files.push((index, dir.file_bytes(&format!("{name}.{index}"))?));
        }
        let dropped = |index| dropped_in(&dir, name, index);
        let mut offsets = offsets::complete(&known, &files, dropped);
        // A writer that was killed between the two steps of a rotation left a line and no file.
        let planned = known
            .last_key_value()
            .map(|(&index, &offset)| (index, offset));
        if let Some((index, offset)) = planned.filter(|(i, _)| Some(i) > offsets.keys().last()) {
            // More may have been dropped behind the last file since its line was written.
            let last = offsets.last_key_value().zip(files.last());
            let end = last.map_or(0, |((&last, &begin), (_, bytes))| {
                begin.saturating_add(*bytes).saturating_add(dropped(last))
            });
            offsets.insert(index, offset.max(end));
        }
        let newest = offsets.keys().last().copied().unwrap_or(0);
        offsets.entry(newest).or_insert(0);
        if offsets != known {
            offsets::store(&dir, name, &offsets)?;
        }
        let current =
            dir.open_file(&format!("{name}.{newest}"), OFlags::WRONLY | OFlags::CREATE)?;
        let position = current.metadata()?.len();
        let gaps = GapsWriter::resume(&dir, name, newest, position)?;
        if let Some(before) = offsets.keys().next().and_then(|first| first.checked_sub(1)) {
            // A writer that was killed while it removed that file left these.
            dir.remove(&gaps::file_name(name, before))?;
            dir.remove(&times::file_name(name, before))?;
        }
        let name = name.to_owned();
        let mut this = Self {
            dir,
            name,
            limits,
            offsets,
            current,
            position,
            gaps,
            reserves_gaps: false,
            dropped: 0,
            rotations: 0,
            times: TimesWriter::default(),
            now: None,
        };
        this.prune(this.limits.max_files as usize)?;
        Ok(this)
    }

    /// The file to write to and the position in it, with how many bytes fit there, at least 1.
    /// Rotates first when the file is full, or bytes were dropped after it and that cannot be told beside it.
    ///
    /// # Errors
    ///
    /// What the kernel said; calling again continues where it failed.
    pub fn room(&mut self) -> io::Result<(BorrowedFd<'_>, u64, u64)> {
        self.note_gap();
        if self.rotates_next() {
            self.rotate()?;
        }
        self.note_time();
        let room = self.limits.max_file_bytes - self.position;
        Ok((self.current.as_fd(), self.position, room))
    }

    /// When bytes were taken is written for some of them together from now on, or when [`Self::flush_times`] says so.
    pub(crate) fn hold_times(&mut self) {
        self.times.hold();
    }

    /// Writes when the bytes up to here were taken.
    pub(crate) fn flush_times(&mut self) {
        self.times.flush(&self.name);
    }

    /// Bytes written from now on were taken at `now`.
    pub fn set_time(&mut self, now: Timestamp) {
        self.now = Some(now);
    }

    /// Whether the next byte goes to another file than the last one.
    pub fn rotates_next(&self) -> bool {
        self.dropped > 0 || self.position >= self.limits.max_file_bytes
    }

    /// Records that `bytes` were written where [`Self::room`] said.
    ///
    /// # Panics
    ///
    /// When that is more than there was room for.
    pub fn wrote(&mut self, bytes: u64) {
        self.position += bytes;
        assert!(
            self.position <= self.limits.max_file_bytes,
            "wrote beyond the room that was given"
        );
    }

    /// Writes what fits of `bytes` and says how much that was: a short count is no error.
    ///
    /// # Errors
    ///
    /// What the kernel said. Nothing was written then.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let (_, position, room) = self.room()?;
        let fits = usize::try_from(room).map_or(bytes.len(), |room| room.min(bytes.len()));
        let wrote = self.current.write_at(&bytes[..fits], position)?;
        self.wrote(wrote as u64);
        Ok(wrote)
    }

    /// Records that the task wrote `bytes` that are kept nowhere: readers are told of a gap. Called before they
    /// are thrown away, see `gaps`. What cannot be recorded yet is counted, and tried again at the next byte.
    pub fn drop_bytes(&mut self, bytes: u64) {
        self.dropped += bytes;
        self.note_gap();
    }

    /// Takes room for the records of gaps, of this file and of those to come: for a stream that drops bytes
    /// when the disk is full. Without any, a gap is only counted until there is room for it.
    pub fn reserve_gaps(&mut self) {
        self.reserves_gaps = true;
        if let Err(error) = self.gaps.reserve(&self.dir, &self.name) {
            tracing::debug!(%error, name = self.name, "no room for gaps of a log can be taken");
        }
    }

    /// Offset behind the last byte the task wrote, dropped ones included.
    pub fn end(&self) -> u64 {
        self.file_end() + self.dropped
    }

    /// How often the next file was begun since this was opened.
    pub fn rotations(&self) -> u64 {
        self.rotations
    }

    fn note_gap(&mut self) {
        if self.dropped == 0 {
            return;
        }
        let gap = (self.position, self.dropped);
        let records_max = times::records_max(self.limits.max_file_bytes);
        match self.gaps.note(&self.dir, &self.name, gap, records_max) {
            Ok(true) => self.dropped = 0,
            // The next file begins behind the gap.
            Ok(false) => {}
            Err(error) => tracing::debug!(%error, name = self.name, "a gap cannot be recorded"),
        }
    }

    /// Before the bytes: see `times`.
    fn note_time(&mut self) {
        let Some(at) = self.now else { return };
        let (index, offset) = (self.newest(), self.file_end());
        let records_max = times::records_max(self.limits.max_file_bytes);
        let record = Record { offset, at };
        self.times
            .note(&self.dir, &self.name, index, record, records_max);
    }

    fn file_end(&self) -> u64 {
        let (_, offset) = self
            .offsets
            .last_key_value()
            .expect("there is always a current file");
        offset + self.position + self.gaps.total()
    }

    fn newest(&self) -> u64 {
        *self
            .offsets
            .keys()
            .last()
            .expect("there is always a current file")
    }

    fn rotate(&mut self) -> io::Result<()> {
        let begin = self.end();
        if self.position == 0 && self.gaps.total() == 0 {
            // An empty file needs no successor, only a later offset.
            return self.begin(self.newest(), begin);
        }
        self.prune(self.limits.max_files as usize - 1)?;
        self.begin(self.newest() + 1, begin)?;
        self.rotations += 1;
        Ok(())
    }

    /// Makes `index`, whose first byte has `offset`, the current file.
    fn begin(&mut self, index: u64, offset: u64) -> io::Result<()> {
        let mut offsets = self.offsets.clone();
        offsets.insert(index, offset);
        // Only files that are there get a line; pruning took the current one if one is the limit.
        let oldest_kept = (index + 1).saturating_sub(u64::from(self.limits.max_files));
        offsets.retain(|&line, _| line >= oldest_kept);
        offsets::store(&self.dir, &self.name, &offsets)?;
        let flags = OFlags::WRONLY | OFlags::CREATE;
        self.current = self
            .dir
            .open_file(&format!("{}.{index}", self.name), flags)?;
        self.position = self.current.metadata()?.len();
        self.offsets = offsets;
        self.dropped = 0;
        self.gaps = GapsWriter::none(index);
        if self.reserves_gaps {
            self.reserve_gaps();
        }
        Ok(())
    }

    /// Removes the oldest files until `keep` are left. The current file keeps its entry.
    fn prune(&mut self, keep: usize) -> io::Result<()> {
        let surplus = self.offsets.len().saturating_sub(keep);
        let oldest: Vec<u64> = self.offsets.keys().copied().take(surplus).collect();
        for index in oldest {
            self.dir.remove(&format!("{}.{index}", self.name))?;
            // Behind the file, see `Gaps::look`.
            self.dir.remove(&gaps::file_name(&self.name, index))?;
            self.dir.remove(&times::file_name(&self.name, index))?;
            if index != self.newest() {
                self.offsets.remove(&index);
            }
        }
        Ok(())
    }
}

/// Bytes that are recorded as dropped within the log file `index`; 0 where that cannot be read.
fn dropped_in(dir: &LogDir, name: &str, index: u64) -> u64 {
    let total = Gaps::open(dir, name, index).and_then(|gaps| gaps.total());
    total.unwrap_or_else(|error| {
        tracing::warn!(%error, name, index, "where log bytes were dropped cannot be read");
        0
    })
}
