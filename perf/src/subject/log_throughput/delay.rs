//! The delay from a task's write of a line until the line is in the log file. The writing process measures it: it
//! checks the lengths of some files.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use muster_domain::saturating;

use super::lines;
use super::load::WriterLoad;
use crate::harness::Latencies;

/// The number of watched streams.
const WATCHED: u64 = 16;
/// Interval between two checks of the files. A delay is overstated by at most this, plus the scheduling delay of the
/// thread.
const LOOK_INTERVAL: Duration = Duration::from_millis(1);
/// The longest wait for the last lines.
const LAST_WAIT: Duration = Duration::from_secs(5);

/// The times at which the writer wrote the lines of the watched streams.
pub(super) struct WriteTimes {
    begun: Instant,
    /// Nanoseconds since `begun`, by line and then by stream. 0 means that the line is not written yet.
    at: Vec<AtomicU64>,
    lines: u64,
    /// The number of first lines that do not count.
    warm_up: u64,
    streams: Vec<u64>,
}

impl WriteTimes {
    /// Creates the table for the lines of a load.
    pub(super) fn new(load: WriterLoad) -> Self {
        let WriterLoad {
            fifos,
            lines,
            warm_up,
            ..
        } = load;
        let watched = WATCHED.min(fifos);
        let streams: Vec<u64> = (0..watched).map(|n| n * fifos / watched).collect();
        let at = (0..lines * watched).map(|_| AtomicU64::new(0)).collect();
        let begun = Instant::now();
        Self {
            begun,
            at,
            lines,
            warm_up,
            streams,
        }
    }

    /// Notes that the writer is about to write the line `line` of the stream `stream`.
    pub(super) fn note(&self, stream: u64, line: u64) {
        if let Ok(watched) = self.streams.binary_search(&stream) {
            let nanos = saturating::nanos(self.begun.elapsed());
            self.slot(watched, line).store(nanos, Ordering::Release);
        }
    }

    /// Watches the files below `logs` until all lines are there.
    pub(super) fn watch(&self, logs: &Path) -> anyhow::Result<Latencies> {
        let mut delays = Latencies::new()?;
        let mut files: Vec<WatchedLog> = self
            .streams
            .iter()
            .map(|&stream| WatchedLog::new(logs, stream))
            .collect();
        let mut grown = Instant::now();
        while files.iter().any(|file| file.seen < self.lines) && grown.elapsed() < LAST_WAIT {
            for (number, file) in files.iter_mut().enumerate() {
                let there = file.lines()?;
                for line in file.seen..there.min(self.lines) {
                    let at = self.slot(number, line).load(Ordering::Acquire);
                    let now = self.begun.elapsed();
                    if line >= self.warm_up {
                        delays.add(now.saturating_sub(Duration::from_nanos(at)));
                    }
                    grown = Instant::now();
                }
                file.seen = there.max(file.seen);
            }
            std::thread::sleep(LOOK_INTERVAL);
        }
        Ok(delays)
    }

    fn slot(&self, watched: usize, line: u64) -> &AtomicU64 {
        let line = usize::try_from(line).expect("there are less lines than memory");
        &self.at[line * self.streams.len() + watched]
    }
}

struct WatchedLog {
    path: PathBuf,
    file: Option<File>,
    seen: u64,
}

impl WatchedLog {
    fn new(logs: &Path, stream: u64) -> Self {
        // The watched streams have too few lines for a second file.
        let path = logs.join(format!("{}.0", lines::stream_name(stream)));
        Self {
            path,
            file: None,
            seen: 0,
        }
    }

    /// Returns the number of complete lines in the file.
    fn lines(&mut self) -> anyhow::Result<u64> {
        if self.file.is_none() {
            self.file = File::open(&self.path).ok();
        }
        let Some(file) = &self.file else { return Ok(0) };
        Ok(file.metadata()?.len() / lines::LINE_BYTES)
    }
}
