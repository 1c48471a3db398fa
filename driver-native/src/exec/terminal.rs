//! The client's side of a command's terminal.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use muster_domain::saturating;
use muster_driver::{TaskError, TerminalSize};
use rustix::pty::OpenptFlags;
use rustix::termios::{LocalModes, SpecialCodeIndex, Winsize};
use tokio::io::unix::AsyncFd;

use super::prepare_error;
use crate::command::Streams;
use crate::config::IsolationLevel;
use crate::paths;
use crate::spawn::watch_both_ways;
use crate::task::{NativeTask, failed};

/// The side of a terminal that the client reads and writes.
#[derive(Debug)]
pub(super) struct Terminal(AsyncFd<Arc<OwnedFd>>);

/// Creates a terminal for a command of `task`, in the task's own `/dev/pts`. The returned streams are the command's
/// side.
pub(super) fn open_terminal(task: &NativeTask) -> Result<(OwnedFd, Streams), TaskError> {
    let refused = |error: rustix::io::Errno| prepare_error(error.into());
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let master = match task.level {
        IsolationLevel::Raw => {
            let master = rustix::pty::openpt(flags).map_err(refused)?;
            rustix::io::ioctl_fionbio(&master, true).map_err(refused)?;
            master
        }
        IsolationLevel::Contained | IsolationLevel::Strict => {
            let process = &task.task_process.process;
            let master = paths::open_multiplexer(process.pid)
                .map_err(|error| failed(muster_domain::error_chain::chain(&error)))?;
            // The pid was certainly the task's only while the process had not ended.
            if process.is_over().map_err(prepare_error)? {
                return Err(task.not_running());
            }
            master
        }
    };
    rustix::pty::unlockpt(&master).map_err(refused)?;
    let open_peer = || rustix::pty::ioctl_tiocgptpeer(&master, flags).map_err(refused);
    let streams = Streams {
        stdin: open_peer()?,
        stdout: open_peer()?,
        stderr: open_peer()?,
    };
    Ok((master, streams))
}

impl Terminal {
    /// Registers the terminal. Must be called within a runtime.
    pub(super) fn new(master: OwnedFd) -> io::Result<Self> {
        Ok(Self(watch_both_ways(Arc::new(master))?))
    }

    /// Reads some bytes; 0 means the end: no process has the other side open.
    pub(super) async fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let mut ready = self.0.readable().await?;
            let read = ready.try_io(|file| Ok(rustix::io::read(file.get_ref(), &mut *buffer)?));
            match read {
                Ok(Err(error)) if error.raw_os_error() == Some(libc::EIO) => return Ok(0),
                Ok(read) => return read,
                Err(_would_block) => {}
            }
        }
    }

    pub(super) async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let mut ready = self.0.writable().await?;
            match ready.try_io(|file| Ok(rustix::io::write(file.get_ref(), bytes)?)) {
                Ok(written) => bytes = bytes.get(written?..).unwrap_or_default(),
                Err(_would_block) => {}
            }
        }
        Ok(())
    }

    /// Writes the end-of-input character if the terminal reads lines; otherwise there is no such character. In the
    /// middle of a line, the first character only ends the line, so a second one is needed.
    pub(super) async fn end_input(&self, in_line: bool) -> io::Result<()> {
        let modes = rustix::termios::tcgetattr(self.0.get_ref())?;
        if !modes.local_modes.contains(LocalModes::ICANON) {
            return Ok(());
        }
        let end = modes.special_codes[SpecialCodeIndex::VEOF];
        if in_line {
            self.write_all(&[end, end]).await
        } else {
            self.write_all(&[end]).await
        }
    }

    /// Sets the size. A size outside of a terminal's range becomes the nearest valid one.
    pub(super) fn resize(&self, size: TerminalSize) -> io::Result<()> {
        let cells = |count: i32| saturating::to_u16(count.max(0));
        let size = Winsize {
            ws_row: cells(size.height),
            ws_col: cells(size.width),
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        Ok(rustix::termios::tcsetwinsize(self.0.get_ref(), size)?)
    }
}
