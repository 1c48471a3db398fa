//! The amount and the pace of the lines that are written.

use std::time::Duration;

use super::lines;

/// The lines that are written.
#[derive(Clone, Copy, Debug)]
pub(super) struct WriterLoad {
    pub(super) fifos: u64,
    /// For each FIFO.
    pub(super) lines: u64,
    /// Time between two lines of a FIFO; zero is as fast as they are taken.
    pub(super) pace: Duration,
    /// The first of the lines, which do not count.
    pub(super) warm_up: u64,
}

impl WriterLoad {
    pub(super) fn bytes(self) -> u64 {
        self.fifos * self.lines * lines::LINE_BYTES
    }
}
