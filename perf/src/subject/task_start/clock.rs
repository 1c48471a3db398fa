//! The clock that both a program and its starter read.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use rustix::fs::{CWD, FileType, Mode, OFlags};
use rustix::time::{ClockId, Timespec, clock_gettime};

use super::program::WORDS_BYTES;

/// Returns the time of CLOCK_MONOTONIC.
pub(super) fn now() -> Duration {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::Monotonic);
    duration(tv_sec, tv_nsec)
}

/// Decodes the time that the program wrote.
pub(super) fn read(words: &[u8]) -> anyhow::Result<Duration> {
    let word = |at: usize| {
        let bytes = words.get(at..at + 8).context("the program said nothing")?;
        anyhow::Ok(i64::from_ne_bytes(bytes.try_into()?))
    };
    Ok(duration(word(0)?, word(8)?))
}

/// Converts a time since boot, which is never negative.
fn duration(seconds: i64, nanoseconds: i64) -> Duration {
    Duration::from_secs(seconds.unsigned_abs()) + Duration::from_nanos(nanoseconds.unsigned_abs())
}

/// The FIFO to which programs write their start time. Tasks have a FIFO for their output, too.
#[derive(Debug)]
pub(super) struct StartTimesFifo {
    path: PathBuf,
    file: File,
}

impl StartTimesFifo {
    pub(super) fn new(dir: &Path) -> anyhow::Result<Self> {
        let path = dir.join("words");
        let mode = Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(CWD, &path, FileType::Fifo, mode, 0)?;
        // The FIFO does not block, so that a program without output causes an error and not an endless wait.
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::open(&path, flags, Mode::empty())?.into();
        Ok(Self { path, file })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the FIFO, for use as a program's standard output.
    pub(super) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Returns the time at which the last program ran its first instruction.
    pub(super) fn next(&self) -> anyhow::Result<Duration> {
        let mut words = [0; WORDS_BYTES];
        (&self.file)
            .read_exact(&mut words)
            .context("the program did not say when it ran")?;
        read(&words)
    }
}
