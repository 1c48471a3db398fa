//! The plain loop: epoll reports the FIFOs that have bytes, and the loop copies or splices them.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use muster_agent::logs::{Fifo, RotateLimits};
use muster_domain::number;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use rustix::pipe::SpliceFlags;

use super::lines;

/// Bytes of one read: the default capacity of a pipe.
const READ_BYTES: usize = 64 * 1024;
/// The most FIFOs that one call reports as ready.
const EVENTS_MAX: usize = 256;

/// The way in which bytes get from a FIFO to its file.
#[derive(Clone, Copy, Debug)]
pub(super) enum CopyMethod {
    ReadWrite,
    Splice,
}

/// Drains `fifos` into files below `logs` until `expected` bytes have come.
pub(super) fn drain(
    fifos: &[Fifo],
    logs: &Path,
    limits: RotateLimits,
    expected: u64,
    by: CopyMethod,
) -> anyhow::Result<u64> {
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    let mut files = Vec::new();
    for (number, fifo) in (0_u64..).zip(fifos) {
        epoll.add(fifo, EpollEvent::new(EpollFlags::EPOLLIN, number))?;
        files.push(RotatedLog::create(
            logs.join(lines::stream_name(number)),
            limits,
        )?);
    }
    let mut events = vec![EpollEvent::empty(); EVENTS_MAX];
    let mut buffer = vec![0; READ_BYTES];
    let mut bytes = 0;
    while bytes < expected {
        let ready = epoll.wait(&mut events, EpollTimeout::NONE)?;
        for event in &events[..ready] {
            let at = usize::try_from(event.data())?;
            let moved = match by {
                CopyMethod::ReadWrite => {
                    let read = nix::unistd::read(&fifos[at], &mut buffer)?;
                    files[at].write(&buffer[..read])?;
                    read
                }
                CopyMethod::Splice => files[at].splice(&fifos[at])?,
            };
            bytes += moved as u64;
        }
    }
    Ok(bytes)
}

/// A log in files `<name>.N`. The oldest file is removed.
struct RotatedLog {
    name: PathBuf,
    limits: RotateLimits,
    file: File,
    index: u32,
    room: usize,
}

impl RotatedLog {
    fn create(name: PathBuf, limits: RotateLimits) -> io::Result<Self> {
        let file = File::create(numbered(&name, 0))?;
        Ok(Self {
            name,
            limits,
            file,
            index: 0,
            room: number::index(limits.max_file_bytes),
        })
    }

    fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            self.rotate()?;
            let (now, later) = bytes.split_at(bytes.len().min(self.room));
            self.file.write_all(now)?;
            self.room -= now.len();
            bytes = later;
        }
        Ok(())
    }

    /// Moves the bytes in `fifo` to the file, at most as many as fit into the file.
    fn splice(&mut self, fifo: impl AsFd) -> io::Result<usize> {
        self.rotate()?;
        let flags = SpliceFlags::NONBLOCK;
        let moved = rustix::pipe::splice(fifo, None, &self.file, None, self.room, flags)?;
        self.room -= moved;
        Ok(moved)
    }

    fn rotate(&mut self) -> io::Result<()> {
        if self.room > 0 {
            return Ok(());
        }
        self.index += 1;
        if let Some(oldest) = self.index.checked_sub(self.limits.max_files) {
            fs::remove_file(numbered(&self.name, oldest))?;
        }
        self.file = File::create(numbered(&self.name, self.index))?;
        self.room = number::index(self.limits.max_file_bytes);
        Ok(())
    }
}

fn numbered(name: &Path, index: u32) -> PathBuf {
    let mut name = name.as_os_str().to_owned();
    name.push(format!(".{index}"));
    name.into()
}
