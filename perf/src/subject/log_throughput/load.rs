//! The amount and the pace of the lines that are written.

use std::time::Duration;

use super::lines;

/// The lines that a writer writes.
#[derive(Clone, Copy, Debug)]
pub(super) struct WriterLoad {
    pub(super) fifos: u64,
    /// The number of lines per FIFO.
    pub(super) lines: u64,
    /// Time between two lines of a FIFO. Zero means that lines are written as fast as they are consumed.
    pub(super) pace: Duration,
    /// The number of first lines that do not count.
    pub(super) warm_up: u64,
}

impl WriterLoad {
    pub(super) fn bytes(self) -> u64 {
        self.fifos * self.lines * lines::LINE_BYTES
    }
}
