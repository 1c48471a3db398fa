//! The writing side of a stream: files `<name>.N`, N from 0, the highest is the newest.
//!
//! A file is filled to exactly `max_file_bytes`, and then the next one is begun. Beyond `max_files`, the oldest
//! file is removed first, so rotation frees space before it takes any. A writer that continues after a restart
//! appends to the newest file. The length of that file is exact, because no bytes are held back in memory.
//!
//! A stream without a byte has no file, and a silent stream has no open file. The known state of its files is kept
//! and compared with the disk at the next byte. The directory is opened by its path whenever a name in it is
//! needed.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;

use muster_domain::id::Timestamp;
use rustix::fs::OFlags;

use crate::logs::dir::LogDir;
use crate::logs::gaps::{self, Gaps, GapsWriter};
use crate::logs::limits::FILES_MAX;
use crate::logs::offsets::{self, Offsets};
use crate::logs::times::{self, Record, TimesWriter};

/// The limits of a stream's kept log files.
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
    /// No byte could be kept with such limits.
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
    Name { name: String },
    /// A file or the directory could not be read or opened.
    #[error("open log files {name}.N in {dir}")]
    Io {
        dir: PathBuf,
        name: String,
        /// The error of the kernel.
        #[source]
        source: io::Error,
    },
}

/// The files of one stream. They are open from their first byte until [`Self::rest`].
#[derive(Debug)]
pub struct RotatingFile {
    dir: PathBuf,
    name: String,
    limits: RotateLimits,
    /// Offset of each existing file, the current one last. Empty as long as no file exists.
    offsets: Offsets,
    /// The newest file. `None` until it exists, and while the stream is silent.
    current: Option<File>,
    /// Length of the current file.
    position: u64,
    /// The gaps of the current file.
    gaps: GapsWriter,
    /// Whether space for gaps is reserved before there are any.
    reserves_gaps: bool,
    /// Bytes after the current file's end that were dropped and have no trace on disk yet.
    dropped: u64,
    rotations: u64,
    times: TimesWriter,
    /// The time at which the next written bytes are taken, if times are to be kept.
    now: Option<Timestamp>,
}

/// The state of a stream on disk, repaired.
struct RecoveredStream {
    offsets: Offsets,
    current: File,
    position: u64,
    gaps: GapsWriter,
}

impl RotatingFile {
    /// Returns a stream that has no files on disk. Its first byte, written or dropped, makes its files. Files that
    /// exist by then are handled as in [`Self::open`].
    ///
    /// # Errors
    ///
    /// [`OpenLogError::Limits`] and [`OpenLogError::Name`].
    pub fn new(dir: PathBuf, name: &str, limits: RotateLimits) -> Result<Self, OpenLogError> {
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
        Ok(Self {
            dir,
            name: name.to_owned(),
            limits,
            offsets: Offsets::new(),
            current: None,
            position: 0,
            gaps: GapsWriter::none(0),
            reserves_gaps: false,
            dropped: 0,
            rotations: 0,
            times: TimesWriter::default(),
            now: None,
        })
    }

    /// Opens the existing files `<name>.N` in `dir` to continue at their end. The absence of files is not an error.
    /// No file is held open before the next byte.
    ///
    /// # Errors
    ///
    /// [`OpenLogError`]. A name that belongs to anything other than a regular file is an error.
    pub fn open(dir: LogDir, name: &str, limits: RotateLimits) -> Result<Self, OpenLogError> {
        let mut this = Self::new(dir.path().to_owned(), name, limits)?;
        match this.resume(&dir) {
            Ok(_found) => this.rest(),
            Err(source) => return Err(this.failed(source)),
        }
        Ok(this)
    }

    fn failed(&self, source: io::Error) -> OpenLogError {
        OpenLogError::Io {
            dir: self.dir.clone(),
            name: self.name.clone(),
            source,
        }
    }

    /// Continues where the files on disk end; `false` if there are none.
    fn resume(&mut self, dir: &LogDir) -> io::Result<bool> {
        let Some(found) = recover_stream(dir, &self.name)? else {
            return Ok(false);
        };
        let RecoveredStream {
            offsets,
            current,
            position,
            gaps,
        } = found;
        let known = self.file_end();
        self.offsets = offsets;
        self.position = position;
        self.gaps = gaps;
        // Bytes that another program removed stay counted, so that no offset is used twice.
        self.dropped += known.saturating_sub(self.file_end());
        self.prune(dir, self.limits.max_files as usize)?;
        self.current = Some(current);
        Ok(true)
    }

    /// Opens the current file unless it is open. Makes the first file, or opens one again that was closed because
    /// of silence.
    fn open_current(&mut self) -> io::Result<()> {
        if self.current.is_some() {
            return Ok(());
        }
        let dir = LogDir::at(&self.dir)?;
        if self.offsets.is_empty() {
            self.make_first(&dir)?;
            if self.reserves_gaps {
                self.take_room_for_gaps();
            }
            return Ok(());
        }
        match dir.open_file(&self.file_name(self.newest()), OFlags::WRONLY) {
            Ok(current) if current.metadata()?.len() == self.position => {
                self.current = Some(current);
                Ok(())
            }
            Ok(_changed) => self.reload_files(&dir),
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.reload_files(&dir),
            Err(error) => Err(error),
        }
    }

    /// Makes the first file. Start offsets are recorded only from the second file on.
    fn make_first(&mut self, dir: &LogDir) -> io::Result<()> {
        if offsets::load(dir, &self.name)?.is_none() {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
            match dir.open_file(&self.file_name(0), flags) {
                Ok(current) => {
                    self.offsets.insert(0, 0);
                    self.current = Some(current);
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        self.resume(dir).map(drop)
    }

    /// Handles a current file that was changed by another program: the files on disk decide, as after a restart of
    /// the agent.
    fn reload_files(&mut self, dir: &LogDir) -> io::Result<()> {
        if !self.resume(dir)? {
            let (next, end) = (self.newest() + 1, self.end());
            self.begin(dir, next, end)?;
        }
        tracing::warn!(
            files = self.display_path(),
            "log files were changed by another program; what it took away is a gap to readers"
        );
        Ok(())
    }

    /// Closes the files of a silent stream until the next byte. Its whole state is on disk then, except dropped
    /// bytes for whose record there was no space.
    pub(crate) fn rest(&mut self) {
        self.times.close(&self.name);
        self.gaps.close();
        self.current = None;
    }

    /// Whether the next byte can be written without opening a file or beginning the next one.
    pub(crate) fn is_ready(&self) -> bool {
        self.current.is_some() && !self.rotates_next()
    }

    /// Returns the place of the files, as text.
    pub(crate) fn display_path(&self) -> String {
        format!("{}/{}", self.dir.display(), self.name)
    }

    /// Returns the file to write to, the position in it, and the number of bytes that fit there, at least 1.
    /// Rotates first when the file is full, or when bytes were dropped after it and the gap cannot be recorded.
    ///
    /// # Errors
    ///
    /// The error of the kernel. Another call continues where this one failed.
    pub fn room(&mut self) -> io::Result<(BorrowedFd<'_>, u64, u64)> {
        self.open_current()?;
        self.note_gap();
        if self.rotates_next() {
            self.rotate()?;
        }
        self.note_time();
        let room = self.limits.max_file_bytes - self.position;
        let Some(current) = &self.current else {
            // Another program removed the file between two checks.
            return Err(io::ErrorKind::NotFound.into());
        };
        Ok((current.as_fd(), self.position, room))
    }

    /// From now on, several time records are written together, or when [`Self::flush_times`] is called.
    pub(crate) fn hold_times(&mut self) {
        self.times.hold();
    }

    /// Writes the held time records of the bytes up to here.
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

    /// Records that `bytes` were written at the position that [`Self::room`] returned.
    ///
    /// # Panics
    ///
    /// If `bytes` is more than the room.
    pub fn wrote(&mut self, bytes: u64) {
        self.position += bytes;
        assert!(
            self.position <= self.limits.max_file_bytes,
            "wrote beyond the room that was given"
        );
    }

    /// Writes the bytes that fit and returns their number. A short count is not an error.
    ///
    /// # Errors
    ///
    /// The error of the kernel. No byte was written then.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let (current, position, room) = self.room()?;
        let fits = usize::try_from(room).map_or(bytes.len(), |room| room.min(bytes.len()));
        let wrote = rustix::io::pwrite(current, &bytes[..fits], position)?;
        self.wrote(wrote as u64);
        Ok(wrote)
    }

    /// Records that `bytes` of the task's output are kept nowhere: readers receive a gap. The caller calls it
    /// before it throws the bytes away, see `gaps`. A gap that cannot be recorded yet is counted, and recorded at
    /// the next byte.
    pub fn drop_bytes(&mut self, bytes: u64) {
        self.dropped += bytes;
        self.note_gap();
    }

    /// Reserves space for the records of gaps of this file and of later ones, for a stream that drops bytes when
    /// the disk is full. Without a record, a gap is only counted until there is space for one. So the first file is
    /// made here.
    ///
    /// # Errors
    ///
    /// [`OpenLogError::Io`]: no file could be made. A failure to reserve space is not an error.
    pub fn reserve_gaps(&mut self) -> Result<(), OpenLogError> {
        self.open_current().map_err(|source| self.failed(source))?;
        self.reserves_gaps = true;
        self.take_room_for_gaps();
        Ok(())
    }

    fn take_room_for_gaps(&mut self) {
        if let Err(error) = self.gaps.reserve(&self.dir, &self.name) {
            tracing::debug!(%error, name = self.name, "no room for gaps of a log can be taken");
        }
    }

    /// Offset behind the last byte the task wrote, dropped ones included.
    pub fn end(&self) -> u64 {
        self.file_end() + self.dropped
    }

    /// Number of rotations since the stream was opened.
    pub fn rotations(&self) -> u64 {
        self.rotations
    }

    fn note_gap(&mut self) {
        if self.dropped == 0 {
            return;
        }
        if let Err(error) = self.open_current() {
            tracing::debug!(%error, name = self.name, "a gap cannot be recorded");
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

    /// Records the time of the next bytes, before they are written: see `times`.
    fn note_time(&mut self) {
        let Some(at) = self.now else { return };
        let (index, offset) = (self.newest(), self.file_end());
        let records_max = times::records_max(self.limits.max_file_bytes);
        let record = Record { offset, at };
        self.times
            .note(&self.dir, &self.name, index, record, records_max);
    }

    fn file_end(&self) -> u64 {
        let offset = self
            .offsets
            .last_key_value()
            .map_or(0, |(_, offset)| *offset);
        offset + self.position + self.gaps.total()
    }

    fn newest(&self) -> u64 {
        self.offsets.last_key_value().map_or(0, |(index, _)| *index)
    }

    fn file_name(&self, index: u64) -> String {
        format!("{}.{index}", self.name)
    }

    fn rotate(&mut self) -> io::Result<()> {
        let dir = LogDir::at(&self.dir)?;
        let begin = self.end();
        if self.position == 0 && self.gaps.total() == 0 {
            // An empty file needs no successor, only a later offset.
            return self.begin(&dir, self.newest(), begin);
        }
        self.prune(&dir, self.limits.max_files as usize - 1)?;
        self.begin(&dir, self.newest() + 1, begin)?;
        self.rotations += 1;
        Ok(())
    }

    /// Makes `index`, whose first byte has `offset`, the current file.
    fn begin(&mut self, dir: &LogDir, index: u64, offset: u64) -> io::Result<()> {
        let mut offsets = self.offsets.clone();
        offsets.insert(index, offset);
        // Only existing files get a line. With a limit of one file, pruning removed the current file.
        let oldest_kept = (index + 1).saturating_sub(u64::from(self.limits.max_files));
        offsets.retain(|&line, _| line >= oldest_kept);
        offsets::store(dir, &self.name, &offsets)?;
        let flags = OFlags::WRONLY | OFlags::CREATE;
        let current = dir.open_file(&self.file_name(index), flags)?;
        self.position = current.metadata()?.len();
        self.current = Some(current);
        self.offsets = offsets;
        self.dropped = 0;
        self.gaps = GapsWriter::none(index);
        if self.reserves_gaps {
            self.take_room_for_gaps();
        }
        Ok(())
    }

    /// Removes the oldest files until `keep` are left. The current file keeps its entry.
    fn prune(&mut self, dir: &LogDir, keep: usize) -> io::Result<()> {
        let surplus = self.offsets.len().saturating_sub(keep);
        let oldest: Vec<u64> = self.offsets.keys().copied().take(surplus).collect();
        for index in oldest {
            dir.remove(&self.file_name(index))?;
            // The gaps are removed after their log file, see `Gaps::reopen`.
            dir.remove(&gaps::file_name(&self.name, index))?;
            dir.remove(&times::file_name(&self.name, index))?;
            if index != self.newest() {
                self.offsets.remove(&index);
            }
        }
        Ok(())
    }
}

/// Finds the files of a stream, and completes the steps of a killed writer. `None` if no file exists.
fn recover_stream(dir: &LogDir, name: &str) -> io::Result<Option<RecoveredStream>> {
    let known = offsets::load(dir, name)?.unwrap_or_default();
    let mut files = Vec::new();
    for index in dir.indexes(name)? {
        files.push((index, dir.file_bytes(&format!("{name}.{index}"))?));
    }
    let offsets = offsets_of(dir, name, &known, &files);
    let Some((&newest, _)) = offsets.last_key_value() else {
        return Ok(None);
    };
    // The first file begins at 0 without a line for it.
    if offsets != known && !(known.is_empty() && offsets == Offsets::from([(0, 0)])) {
        offsets::store(dir, name, &offsets)?;
    }
    let current = dir.open_file(&format!("{name}.{newest}"), OFlags::WRONLY | OFlags::CREATE)?;
    let position = current.metadata()?.len();
    let gaps = GapsWriter::resume(dir, name, newest, position)?;
    if let Some(before) = offsets.keys().next().and_then(|first| first.checked_sub(1)) {
        // A writer that was killed while it removed that log file left these files.
        dir.remove(&gaps::file_name(name, before))?;
        dir.remove(&times::file_name(name, before))?;
    }
    Ok(Some(RecoveredStream {
        offsets,
        current,
        position,
        gaps,
    }))
}

/// The offsets of `files`, and of the file that a writer was about to make.
fn offsets_of(dir: &LogDir, name: &str, known: &Offsets, files: &[(u64, u64)]) -> Offsets {
    let dropped = |index| dropped_in(dir, name, index);
    let mut offsets = offsets::complete(known, files, dropped);
    // A writer that was killed between the two steps of a rotation left a line and no file.
    let planned = known
        .last_key_value()
        .map(|(&index, &offset)| (index, offset));
    if let Some((index, offset)) = planned.filter(|(i, _)| Some(i) > offsets.keys().last()) {
        // More bytes may have been dropped behind the last file since the line was written.
        let last = offsets.last_key_value().zip(files.last());
        let end = last.map_or(0, |((&last, &begin), (_, bytes))| {
            begin.saturating_add(*bytes).saturating_add(dropped(last))
        });
        offsets.insert(index, offset.max(end));
    }
    offsets
}

/// Bytes recorded as dropped within the log file `index`; 0 if the record cannot be read.
fn dropped_in(dir: &LogDir, name: &str, index: u64) -> u64 {
    let total = Gaps::open(dir, name, index).and_then(|gaps| gaps.total());
    total.unwrap_or_else(|error| {
        tracing::warn!(%error, name, index, "where log bytes were dropped cannot be read");
        0
    })
}
