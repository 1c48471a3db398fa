//! Reading a stream back: by offset, from the end, and on and on across rotation.
//!
//! A reader never delays the writer: it opens the files for reading and looks again at their end. Bytes that were
//! rotated away or dropped before the read are announced as [`Chunk::Gap`] at their place. A growing gap is
//! announced up to its known size. A file that is removed during a read is still read to its end.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use muster_domain::id::Timestamp;
use muster_domain::number;
use rustix::fs::OFlags;
use tokio::time::Instant;

use crate::logs::dir::{LogDir, OpenLogDirError};
use crate::logs::gaps::{Gaps, OffsetContent};
use crate::logs::limits::{FOLLOW_PAUSE_MAX, FOLLOW_PAUSE_MIN, READ_BYTES_MAX, RELIST_MAX};
use crate::logs::offsets::{self, Offsets};
use crate::logs::times::{self, SinceStart, TakenTime};

/// A log file of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogFile {
    /// The N of `<name>.N`.
    pub index: u64,
    /// Offset of its first byte.
    pub offset: u64,
    pub bytes: u64,
}

/// The content at an offset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Chunk {
    /// Bytes the task wrote.
    Data {
        /// Offset of the first of them.
        offset: u64,
        /// At least one byte.
        bytes: Vec<u8>,
    },
    /// Bytes that the task wrote and that are not available.
    Gap {
        /// Offset of the first of them.
        offset: u64,
        /// Size of the gap, in bytes.
        bytes: u64,
        cause: GapCause,
    },
}

/// Why bytes are not available.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GapCause {
    /// They were never kept: the disk was full, or they exceeded the task's rate.
    Dropped,
    /// The log file with the bytes was removed before they were read; some of them may never have been kept.
    Rotated,
}

impl Chunk {
    /// Offset behind it.
    pub fn end(&self) -> u64 {
        match self {
            Self::Data { offset, bytes } => offset.saturating_add(bytes.len() as u64),
            Self::Gap { offset, bytes, .. } => offset.saturating_add(*bytes),
        }
    }
}

/// Why a log could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadLogError {
    /// The directory is not there or is not one.
    #[error(transparent)]
    Dir(#[from] OpenLogDirError),
    /// A file or the directory could not be read.
    #[error("read log files {name}.N in {dir}")]
    Io {
        dir: PathBuf,
        name: String,
        /// The error of the kernel.
        #[source]
        source: io::Error,
    },
}

/// Reads one stream, from an offset onward.
#[derive(Debug)]
pub struct LogReader {
    dir: LogDir,
    name: String,
    offset: u64,
    /// The file in which `offset` was last found.
    open: Option<OpenLogFile>,
}

/// A file that is read from, kept open so that it can be read to its end when it is rotated away.
#[derive(Debug)]
struct OpenLogFile {
    file: LogFile,
    data: File,
    gaps: Gaps,
    /// The position behind the last byte that was read from the file.
    position: u64,
    /// The position up to which the file has no gaps if none are recorded. A file that was rotated away meanwhile
    /// lost its record of later gaps.
    whole_to: u64,
}

impl OpenLogFile {
    /// Whether the next file begins where this one of `length` bytes ends.
    fn is_followed(&self, length: u64, known: &Offsets) -> bool {
        let next = known.get(&(self.file.index + 1));
        next == Some(&self.file.offset.saturating_add(length))
    }
}

/// The result of one look at the files.
enum ReadAttempt {
    Found(Chunk),
    /// No byte at or behind the offset was written yet.
    End,
    /// The file was rotated away between listing and opening.
    Again,
}

impl LogReader {
    /// A reader of `<name>.N` in the directory `dir`, at the first byte that is kept.
    ///
    /// The stream may have no bytes yet; then there is nothing to read.
    ///
    /// # Errors
    ///
    /// [`ReadLogError`].
    pub fn open(dir: &Path, name: &str) -> Result<Self, ReadLogError> {
        let dir = LogDir::open(dir)?;
        let mut this = Self {
            dir,
            name: name.into(),
            offset: 0,
            open: None,
        };
        this.offset = this.files()?.first().map_or(0, |file| file.offset);
        Ok(this)
    }

    /// The files that are kept, oldest first.
    ///
    /// # Errors
    ///
    /// [`ReadLogError::Io`].
    pub fn files(&self) -> Result<Vec<LogFile>, ReadLogError> {
        self.list().map_err(|source| self.failed(source))
    }

    /// The number of the file that was read last, and the position behind the last read byte. The position is less
    /// than the offset in the stream, also by the dropped bytes.
    pub fn file(&self) -> Option<(u64, u64)> {
        self.open
            .as_ref()
            .map(|open| (open.file.index, open.position))
    }

    /// Offset of the next byte that [`Self::read`] returns.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Continues at `offset`; bytes that are not kept there are returned as a gap.
    pub fn seek(&mut self, offset: u64) {
        self.offset = offset;
        self.open = None;
    }

    /// Continues `bytes` before the end, or at the first kept byte. No gap is announced.
    ///
    /// # Errors
    ///
    /// [`ReadLogError::Io`].
    pub fn seek_from_end(&mut self, bytes: u64) -> Result<(), ReadLogError> {
        let files = self.files()?;
        let end = self.end(&files)?;
        let begin = files.first().map_or(0, |file| file.offset);
        self.seek(end.saturating_sub(bytes).max(begin));
        Ok(())
    }

    /// Continues so that the last `lines` lines follow, or at the first kept byte. A last line without its newline
    /// counts, and so does each part of a line with a gap in it.
    ///
    /// # Errors
    ///
    /// [`ReadLogError::Io`].
    pub fn seek_last_lines(&mut self, lines: u64) -> Result<(), ReadLogError> {
        let files = self.files()?;
        if lines == 0 {
            let end = self.end(&files)?;
            self.seek(end);
            return Ok(());
        }
        let mut found = 0;
        // The searched range of the part that has no gap.
        let mut part: Option<Range<u64>> = None;
        for file in files.iter().rev() {
            for kept in self.kept(file)?.into_iter().rev() {
                let end = match &part {
                    Some(part) if part.start == kept.end => part.end,
                    Some(part) => {
                        found += 1;
                        if found == lines {
                            self.seek(part.start);
                            return Ok(());
                        }
                        kept.end
                    }
                    None => kept.end,
                };
                if let Some(line) = self.last_lines(&kept, end, lines, &mut found)? {
                    self.seek(line);
                    return Ok(());
                }
                part = Some(kept.start..end);
            }
        }
        self.seek(files.first().map_or(0, |file| file.offset));
        Ok(())
    }

    /// Counts the lines that begin in `kept`, but not at its start, up to `lines`. Returns the start of the last
    /// counted line when it reaches `lines`. Without a gap, bytes continue to `end`.
    fn last_lines(
        &mut self,
        kept: &Range<u64>,
        end: u64,
        lines: u64,
        found: &mut u64,
    ) -> Result<Option<u64>, ReadLogError> {
        let mut block_end = kept.end;
        while block_end > kept.start {
            let block = block_end
                .saturating_sub(READ_BYTES_MAX as u64)
                .max(kept.start);
            self.seek(block);
            let bytes = self.read_span(block_end)?;
            for (at, byte) in bytes.iter().enumerate().rev() {
                let next = block + at as u64 + 1;
                // The newline that ends the last line begins no other.
                if *byte == b'\n' && next < end {
                    *found += 1;
                    if *found == lines {
                        return Ok(Some(next));
                    }
                }
            }
            block_end = block;
        }
        Ok(None)
    }

    /// The parts of a file that are kept, by their offsets; none if it was rotated away.
    fn kept(&self, file: &LogFile) -> Result<Vec<Range<u64>>, ReadLogError> {
        let kept = Gaps::open(&self.dir, &self.name, file.index)
            .and_then(|gaps| gaps.kept(file.bytes))
            .map_err(|source| self.failed(source))?;
        let in_stream = |part: Range<u64>| {
            file.offset.saturating_add(part.start)..file.offset.saturating_add(part.end)
        };
        Ok(kept.into_iter().map(in_stream).collect())
    }

    /// Offset behind the last of `files`, including the bytes that were dropped there.
    fn end(&self, files: &[LogFile]) -> Result<u64, ReadLogError> {
        let Some(last) = files.last() else {
            return Ok(0);
        };
        let dropped = Gaps::open(&self.dir, &self.name, last.index)
            .and_then(|gaps| gaps.total())
            .map_err(|source| self.failed(source))?;
        let end = last.offset.saturating_add(last.bytes);
        Ok(end.saturating_add(dropped))
    }

    /// Continues at the first line that was taken at `since` or later, as far as times are known. Lines without a
    /// known time are included if their file was written to since then.
    ///
    /// # Errors
    ///
    /// [`ReadLogError::Io`].
    pub fn seek_since(&mut self, since: Timestamp) -> Result<(), ReadLogError> {
        let files = self.files()?;
        let mut found = self.end(&files)?;
        for file in files.iter().rev() {
            let young = times::since(&self.dir, &self.name, file.index, file.offset, since);
            match young {
                Ok(SinceStart::Older) => break,
                Ok(SinceStart::From(offset)) => {
                    found = offset;
                    break;
                }
                Ok(SinceStart::All) => found = file.offset,
                // Rotated away meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => break,
                Err(error) => return Err(self.failed(error)),
            }
        }
        self.seek_line(found, files.first().map_or(0, |file| file.offset))
    }

    /// Continues at the first line that begins at `offset` or behind it; the kept bytes begin at `begin`. In a line
    /// longer than one read, reading starts in the middle of that line.
    fn seek_line(&mut self, offset: u64, begin: u64) -> Result<(), ReadLogError> {
        self.seek(offset);
        if offset <= begin {
            return Ok(());
        }
        self.seek(offset - 1);
        let span = self.read_span(offset.saturating_add(READ_BYTES_MAX as u64))?;
        let line = span.iter().position(|byte| *byte == b'\n');
        // Without any newline at the end, the line that is being written is the first one.
        self.seek(line.map_or(offset, |at| offset + at as u64));
        Ok(())
    }

    /// Returns the bytes from here to `end`, with gaps as newlines, because gaps separate lines.
    fn read_span(&mut self, end: u64) -> Result<Vec<u8>, ReadLogError> {
        let mut span = Vec::new();
        while self.offset < end {
            let limit = number::index(end - self.offset);
            match self.read(limit)? {
                Some(Chunk::Data { bytes, .. }) => span.extend(bytes),
                Some(Chunk::Gap { bytes, .. }) => {
                    let within = usize::try_from(bytes).unwrap_or(limit).min(limit);
                    span.resize(span.len() + within, b'\n');
                }
                None => break,
            }
        }
        Ok(span)
    }

    /// Returns the next chunk, at most `limit` bytes of data; `None` at the end of the written bytes.
    ///
    /// # Errors
    ///
    /// [`ReadLogError::Io`].
    pub fn read(&mut self, limit: usize) -> Result<Option<Chunk>, ReadLogError> {
        let limit = limit.clamp(1, READ_BYTES_MAX);
        for _round in 0..RELIST_MAX {
            match self.try_read(limit).map_err(|source| self.failed(source))? {
                ReadAttempt::Found(chunk) => {
                    self.offset = chunk.end();
                    return Ok(Some(chunk));
                }
                ReadAttempt::End => return Ok(None),
                ReadAttempt::Again => {}
            }
        }
        Err(self.failed(io::Error::other(
            "files vanish faster than they can be opened",
        )))
    }

    /// Works like [`Self::read`], with the time at which the bytes were taken, if it is known. All bytes of one
    /// chunk were taken at that time, or later by at most the resolution of times.
    ///
    /// # Errors
    ///
    /// [`ReadLogError::Io`].
    pub fn read_timed(
        &mut self,
        limit: usize,
    ) -> Result<Option<(Chunk, Option<Timestamp>)>, ReadLogError> {
        let expected = self.taken(self.offset).until;
        let left = expected.map_or(u64::MAX, |until| until - self.offset);
        let limit = usize::try_from(left).map_or(limit, |left| limit.min(left));
        let Some(mut chunk) = self.read(limit)? else {
            return Ok(None);
        };
        let Chunk::Data { offset, bytes } = &mut chunk else {
            return Ok(Some((chunk, None)));
        };
        // The time is looked up again. It is written before its bytes, so it exists by now for all bytes that were
        // read.
        let TakenTime { at, until } = self.taken(*offset);
        let same = until.map_or(u64::MAX, |until| until - *offset);
        let read = bytes.len();
        bytes.truncate(number::index(same));
        if let Some(open) = &mut self.open {
            open.position -= (read - bytes.len()) as u64;
        }
        self.offset = chunk.end();
        Ok(Some((chunk, at)))
    }

    /// The time at which the byte at `offset` was taken, if it is in the open file.
    fn taken(&self, offset: u64) -> TakenTime {
        self.open.as_ref().map_or_else(TakenTime::default, |open| {
            let LogFile {
                index,
                offset: begin,
                ..
            } = open.file;
            times::taken(&self.dir, &self.name, index, begin, offset)
        })
    }

    /// Returns the next chunk and waits for it for `within` at most; then returns `None`.
    ///
    /// # Errors
    ///
    /// [`ReadLogError::Io`].
    pub async fn follow(
        &mut self,
        limit: usize,
        within: Duration,
    ) -> Result<Option<Chunk>, ReadLogError> {
        self.wait(within, |this| this.read(limit)).await
    }

    /// Works like [`Self::follow`], with times as in [`Self::read_timed`].
    ///
    /// # Errors
    ///
    /// [`ReadLogError::Io`].
    pub async fn follow_timed(
        &mut self,
        limit: usize,
        within: Duration,
    ) -> Result<Option<(Chunk, Option<Timestamp>)>, ReadLogError> {
        self.wait(within, |this| this.read_timed(limit)).await
    }

    async fn wait<T>(
        &mut self,
        within: Duration,
        mut read: impl FnMut(&mut Self) -> Result<Option<T>, ReadLogError>,
    ) -> Result<Option<T>, ReadLogError> {
        let deadline = Instant::now() + within;
        let mut pause = FOLLOW_PAUSE_MIN;
        loop {
            if let Some(found) = read(self)? {
                return Ok(Some(found));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            tokio::time::sleep(pause.min(left)).await;
            pause = (pause * 2).min(FOLLOW_PAUSE_MAX);
        }
    }

    fn try_read(&mut self, limit: usize) -> io::Result<ReadAttempt> {
        if let Some(chunk) = self.read_open(limit)? {
            return Ok(ReadAttempt::Found(chunk));
        }
        let files = self.list()?;
        let behind = files.partition_point(|file| file.offset <= self.offset);
        let next = files.get(behind);
        let Some(at) = behind.checked_sub(1) else {
            return Ok(next.map_or(ReadAttempt::End, |next| self.gap(next, GapCause::Rotated)));
        };
        match self.open_file(&files[at]) {
            Ok(open) => self.open = Some(open),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(ReadAttempt::Again),
            Err(error) => return Err(error),
        }
        if let Some(chunk) = self.read_open(limit)? {
            return Ok(ReadAttempt::Found(chunk));
        }
        // The file before the gap is kept, so none was removed from between.
        Ok(next.map_or(ReadAttempt::End, |next| self.gap(next, GapCause::Dropped)))
    }

    fn gap(&self, next: &LogFile, cause: GapCause) -> ReadAttempt {
        ReadAttempt::Found(Chunk::Gap {
            offset: self.offset,
            bytes: next.offset - self.offset,
            cause,
        })
    }

    fn open_file(&self, file: &LogFile) -> io::Result<OpenLogFile> {
        let name = format!("{}.{}", self.name, file.index);
        Ok(OpenLogFile {
            file: *file,
            data: self.dir.open_file(&name, OFlags::RDONLY)?,
            gaps: Gaps::open(&self.dir, &self.name, file.index)?,
            position: 0,
            whole_to: 0,
        })
    }

    /// Reads from the file that is open, if the offset is in it.
    fn read_open(&mut self, limit: usize) -> io::Result<Option<Chunk>> {
        let Some(open) = &mut self.open else {
            return Ok(None);
        };
        let Some(relative) = self.offset.checked_sub(open.file.offset) else {
            return Ok(None);
        };
        // The order matters: all gaps before those bytes are recorded by now.
        let mut length = open.data.metadata()?.len();
        open.gaps.reopen(&self.dir, &self.name)?;
        if !open.gaps.are_there() {
            let is_whole = open.data.metadata()?.nlink() > 0
                || offsets::load(&self.dir, &self.name)?
                    .is_some_and(|known| open.is_followed(length, &known));
            if is_whole {
                open.whole_to = length;
            }
            length = length.min(open.whole_to);
        }
        let (position, left) = match open.gaps.content_at(relative)? {
            OffsetContent::Data {
                position,
                until_gap,
            } => {
                let to_end = length.saturating_sub(position);
                (position, until_gap.map_or(to_end, |gap| to_end.min(gap)))
            }
            OffsetContent::Gap { left } => {
                return Ok(Some(Chunk::Gap {
                    offset: self.offset,
                    bytes: left,
                    cause: GapCause::Dropped,
                }));
            }
        };
        let wanted = usize::try_from(left).unwrap_or(limit).min(limit);
        if wanted == 0 {
            return Ok(None);
        }
        let mut bytes = vec![0; wanted];
        let read = open.data.read_at(&mut bytes, position)?;
        bytes.truncate(read);
        open.position = position + read as u64;
        Ok((read > 0).then_some(Chunk::Data {
            offset: self.offset,
            bytes,
        }))
    }

    fn list(&self) -> io::Result<Vec<LogFile>> {
        // Names are read before offsets: a visible name has had its line written before.
        let mut files = Vec::new();
        for index in self.dir.indexes(&self.name)? {
            match self.dir.file_bytes(&format!("{}.{index}", self.name)) {
                Ok(bytes) => files.push((index, bytes)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        let known = offsets::load(&self.dir, &self.name)?.unwrap_or_default();
        if let Some((oldest, _)) = known.first_key_value() {
            // A file that lost its line since it was listed is being rotated away.
            files.retain(|(index, _)| index >= oldest);
        }
        let dropped = |index| {
            let total = Gaps::open(&self.dir, &self.name, index).and_then(|gaps| gaps.total());
            total.unwrap_or(0)
        };
        let offsets = offsets::complete(&known, &files, dropped);
        let file = |(index, bytes)| LogFile {
            index,
            offset: offsets[&index],
            bytes,
        };
        Ok(files.into_iter().map(file).collect())
    }

    fn failed(&self, source: io::Error) -> ReadLogError {
        ReadLogError::Io {
            dir: self.dir.path().into(),
            name: self.name.clone(),
            source,
        }
    }
}
