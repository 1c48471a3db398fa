//! A task's output on disk: the FIFO it writes to, the rotated files, and reading them back.
//!
//! A stream's bytes have *offsets*: the first byte a task ever wrote is 0, whatever was rotated
//! away or dropped since. [`RotatingFile`] is the only writer of a stream's files and of the small
//! files of offsets, gaps and times beside them; [`LogReader`] only reads. Directories handled here lie outside
//! everything a task can write, and each name in them is opened relative to a directory
//! descriptor, never through a symbolic link.
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
