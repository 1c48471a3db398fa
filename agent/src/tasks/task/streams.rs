//! A task's stdout and stderr: two FIFOs, drained into its log files.

use std::path::{Path, PathBuf};

use muster_domain::job::{ByteRate, LogConfig, LogOverflow};
use muster_link::private;
use muster_wire::rpc::LogStream;

use crate::limits::LOG_DRAIN_DEADLINE;
use crate::logs::{Fifo, FifoOwner, LogDir, OpenFifoError, OpenLogDirError, RotateLimits};
use crate::ring::{AttachError, LogRing, OnFull, RateLimit, StreamId, StreamSpec, StreamStats};
use crate::storage::allocdir::AllocDirs;

const BOTH: [LogStream; 2] = [LogStream::Stdout, LogStream::Stderr];

/// The attached streams of a task.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    ids: Vec<StreamId>,
}

/// Why a task's output cannot be taken.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenStreamsError {
    #[error(transparent)]
    Dir(#[from] OpenLogDirError),
    #[error(transparent)]
    Fifo(#[from] OpenFifoError),
    #[error(transparent)]
    Attach(#[from] AttachError),
}

/// The name of a stream: that of its FIFO, and of its files without their number.
pub(crate) fn stream_name(task: &str, stream: LogStream) -> String {
    format!("{task}.{}", stream.as_str())
}

impl Streams {
    /// Marks the task's output as not collected. Readers of its log receive `why`.
    pub(crate) fn mark_uncollected(
        dirs: &AllocDirs,
        task: &str,
        why: &str,
    ) -> std::io::Result<Self> {
        remove_fifos(dirs, task);
        private::write(&uncollected_note_path(dirs, task), why)?;
        Ok(Self::default())
    }

    /// Makes the FIFOs, or opens existing ones with the bytes in them, and drains them. `begins` means that the
    /// task is started for the first time.
    pub(crate) async fn open(
        ring: &LogRing,
        dirs: &AllocDirs,
        task: &str,
        owner: Option<FifoOwner>,
        config: LogConfig,
        begins: bool,
    ) -> Result<Self, OpenStreamsError> {
        remove(&uncollected_note_path(dirs, task));
        let fifos = LogDir::open(&dirs.fifos)?;
        let limits = RotateLimits {
            max_files: config.max_files,
            max_file_bytes: config.max_file_size.bytes(),
        };
        let rate = config.rate.map(|ByteRate(bytes_per_second)| RateLimit {
            bytes_per_second,
            on_limit: overflow(config.on_limit),
        });
        let mut streams = Self::default();
        for stream in BOTH {
            let name = stream_name(task, stream);
            let fifo = Fifo::create(&fifos, &name, owner)?;
            let spec = StreamSpec {
                fifo,
                dir: dirs.logs.clone(),
                name,
                limits,
                on_full: overflow(config.on_full),
                rate,
                begins,
            };
            match ring.attach(spec).await {
                Ok(id) => streams.ids.push(id),
                Err(error) => {
                    streams.close(ring).await;
                    return Err(error.into());
                }
            }
        }
        Ok(streams)
    }

    /// Drains the remaining bytes, stops draining, and returns the number of bytes that could not be saved.
    pub(crate) async fn close(&self, ring: &LogRing) -> u64 {
        let mut left = 0;
        for id in &self.ids {
            match ring.detach(*id, LOG_DRAIN_DEADLINE).await {
                Ok(report) => left += report.left_bytes,
                Err(error) => tracing::warn!(%error, "a log stream was not drained"),
            }
        }
        left
    }

    /// Sums the counts of both streams so far.
    pub(crate) async fn stats(&self, ring: &LogRing) -> StreamStats {
        let mut sum = StreamStats::default();
        for id in &self.ids {
            if let Ok(stats) = ring.stats(*id).await {
                sum.bytes += stats.offset;
                sum.dropped_bytes += stats.dropped_bytes;
                sum.limited += stats.limited;
            }
        }
        sum
    }
}

fn overflow(overflow: LogOverflow) -> OnFull {
    match overflow {
        LogOverflow::Block => OnFull::Block,
        LogOverflow::Drop => OnFull::Drop,
    }
}

/// The reason why the task's output is not collected, if there is one.
pub(crate) fn read_uncollected_reason(dirs: &AllocDirs, task: &str) -> Option<String> {
    std::fs::read_to_string(uncollected_note_path(dirs, task)).ok()
}

/// The path of the file with that reason, in the directory of the log files. It holds for a running task, whatever
/// its job or driver changes later.
fn uncollected_note_path(dirs: &AllocDirs, task: &str) -> PathBuf {
    dirs.logs.join(format!("{task}.untaken"))
}

/// Removes the FIFOs of a task that has ended.
pub(crate) fn remove_fifos(dirs: &AllocDirs, task: &str) {
    for stream in BOTH {
        remove(&dirs.fifos.join(stream_name(task, stream)));
    }
}

fn remove(path: &Path) {
    if let Err(error) = std::fs::remove_file(path)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::warn!(path = %path.display(), %error, "a file of a task's output cannot be removed");
    }
}
