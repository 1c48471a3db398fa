//! The pipe to a porter.

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::pipe::PipeFlags;
use tokio_util::sync::CancellationToken;

use crate::limits;

/// Creates a pipe and returns both ends, the reading end first.
pub(crate) fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?)
}

/// Writes to a pipe whose reader a task controls: the task may stop the reader, or hold the pipe open and read
/// nothing. So no write waits longer than the transfer may take, or longer than the bound for a reader that takes
/// nothing.
#[derive(Debug)]
pub(crate) struct DeadlinePipe {
    file: OwnedFd,
    stop: CancellationToken,
    deadline: Instant,
}

impl DeadlinePipe {
    pub(crate) fn new(file: OwnedFd, stop: CancellationToken) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&file, true)?;
        Ok(Self {
            file,
            stop,
            deadline: Instant::now() + limits::TRANSFER_DEADLINE,
        })
    }

    /// Waits until the pipe has room.
    fn wait(&self) -> io::Result<()> {
        let idle = Instant::now() + limits::TRANSFER_IDLE_DEADLINE;
        let pause = Timespec::try_from(limits::TRANSFER_STOP_POLL).map_err(io::Error::other)?;
        loop {
            if self.stop.is_cancelled() {
                return Err(io::Error::other("it was stopped"));
            }
            if Instant::now() > idle.min(self.deadline) {
                return Err(io::ErrorKind::TimedOut.into());
            }
            // The pipe is also ready when the reader is gone; then the next write reports that.
            let mut files = [PollFd::new(&self.file, PollFlags::OUT)];
            match rustix::event::poll(&mut files, Some(&pause)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl Write for DeadlinePipe {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match rustix::io::write(&self.file, bytes) {
                Err(rustix::io::Errno::AGAIN) => self.wait()?,
                Err(rustix::io::Errno::INTR) => {}
                result => return Ok(result?),
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn stalled_reader_is_abandoned_on_cancellation() {
        let (reader, writer) = pipe().unwrap();
        let stop = CancellationToken::new();
        let mut pipe = DeadlinePipe::new(writer, stop.clone()).unwrap();
        let stopping = std::thread::spawn(move || stop.cancel());

        let error = pipe.write_all(&vec![0; 1 << 20]).unwrap_err();

        stopping.join().unwrap();
        assert_eq!(error.to_string(), "it was stopped");
        drop(reader);
    }

    #[test]
    fn a_reader_that_goes_away_is_noticed() {
        let (reader, writer) = pipe().unwrap();
        let mut pipe = DeadlinePipe::new(writer, CancellationToken::new()).unwrap();
        let mut reader = std::fs::File::from(reader);
        let reading = std::thread::spawn(move || {
            let mut first = [0; 100];
            reader.read_exact(&mut first).unwrap();
        });

        let error = pipe.write_all(&vec![0; 1 << 20]).unwrap_err();

        reading.join().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }
}
