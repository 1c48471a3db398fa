//! A task's output on disk: the FIFO it writes to, the rotated files, and reading them back.
//!
//! The bytes of a stream have *offsets*. The first byte that a task ever wrote has offset 0, whatever was rotated
//! away or dropped since. [`RotatingFile`] is the only writer of a stream's log files and of their small files of
//! offsets, gaps and times; [`LogReader`] only reads. These directories lie outside of everything a task can write.
//! Each name in them is opened relative to a directory descriptor, never through a symbolic link.
//!
//! Moving bytes from FIFO to file is done in `ring`, not here.

mod dir;
mod fifo;
mod gaps;
mod limits;
mod offsets;
mod reader;
mod rotate;
mod times;

pub use dir::{LogDir, OpenLogDirError};
pub use fifo::{Fifo, FifoOwner, OpenFifoError};
pub use reader::{Chunk, GapCause, LogFile, LogReader, ReadLogError};
pub use rotate::{OpenLogError, RotateLimits, RotatingFile};

#[cfg(test)]
mod tests;
