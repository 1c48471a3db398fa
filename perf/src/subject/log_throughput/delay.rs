//! How long a line takes from the task's write to the log file: told by the writing process, which looks at
//! the lengths of some files.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use muster_domain::saturating;

use super::lines;
use super::load::WriterLoad;
use crate::harness::Latencies;

/// Streams that are watched.
const WATCHED: u64 = 16;
/// How often: what a delay is told too long by at most, besides what the machine lets the thread wait.
const LOOK_INTERVAL: Duration = Duration::from_millis(1);
/// How long the last lines are waited for.
const LAST_WAIT: Duration = Duration::from_secs(5);

/// When the lines of the watched streams were written, as the writer tells.
pub(super) struct WriteTimes {
    begun: Instant,
    /// By line, then by stream: nanoseconds since the begin, 0 for not yet.
    at: Vec<AtomicU64>,
    lines: u64,
    /// The first of them, which do not count.
    warm_up: u64,
    streams: Vec<u64>,
}

impl WriteTimes {
    /// For the lines of a load.
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

    /// The line `line` of the stream `stream` is about to be written.
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
        // Too few lines are written for a second file.
        let path = logs.join(format!("{}.0", lines::stream_name(stream)));
        Self {
            path,
            file: None,
            seen: 0,
        }
    }

    /// Whole lines in it.
    fn lines(&mut self) -> anyhow::Result<u64> {
        if self.file.is_none() {
            self.file = File::open(&self.path).ok();
        }
        let Some(file) = &self.file else { return Ok(0) };
        Ok(file.metadata()?.len() / lines::LINE_BYTES)
    }
}
