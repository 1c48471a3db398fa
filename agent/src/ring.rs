//! The log loop: one thread that drains every FIFO of the node into rotated files.
//!
//! An io_uring poll waits for a FIFO and stays in flight until bytes come (tokio-uring on this thread alone). Where
//! io_uring is not allowed, epoll replaces it, with no other change. `splice(2)` then moves the bytes from FIFO to
//! file in this thread, many at a time. `pace` lets a busy FIFO fill before it is drained again.
//!
//! Bytes are not read into a buffer and written from there. A process that is killed between the two would lose the
//! bytes that it took from the FIFO. `splice` takes exactly the bytes that it wrote, in one system call that
//! SIGKILL cannot split. A killed agent thus neither loses nor repeats a byte, and a full disk leaves the bytes in
//! the FIFO. A thousand idle streams need no buffers. The io_uring operation of that name is not used: it runs on
//! worker threads and costs fifty times as much. For a file system without splice, read and write replace it, and
//! the stream's counts show that.
//!
//! Absent on purpose: reading logs, FIFOs, rotation (`logs`).

mod bucket;
mod limits;
mod pace;
mod readiness;
mod stream;
mod worker;

use std::fmt;
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use crate::logs::{Fifo, OpenLogDirError, OpenLogError, RotateLimits};
use crate::ring::limits::{COMMANDS_MAX, STARTS_MAX};
use crate::ring::worker::Command;

/// The treatment of bytes that cannot be written because the disk is full, or may not because they exceed the stream's
/// rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFull {
    /// Leaves the bytes in the FIFO and tries again, so that the task blocks when the FIFO is full.
    #[default]
    Block,
    /// Throws the bytes away and counts them; readers receive a gap.
    Drop,
}

/// The method that moves bytes from a FIFO to a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transfer {
    /// `splice(2)`: moves each byte exactly once, whenever the agent is killed.
    #[default]
    Splice,
    /// Read and write: a kill between the two loses the bytes that were read, at most 64 KiB a stream.
    Copy,
}

/// The mechanism that waits for FIFOs to become readable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Engine {
    IoUring,
    /// epoll, and the reason for the absence of io_uring.
    Epoll {
        /// The reason, for an operator to read.
        reason: String,
    },
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::IoUring => f.write_str("io_uring"),
            Self::Epoll { reason } => write!(f, "epoll ({reason})"),
        }
    }
}

/// The choice of an engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EngineChoice {
    /// io_uring where the kernel allows it, else epoll.
    #[default]
    Auto,
    Epoll,
}

/// The settings of the loop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingConfig {
    pub engine: EngineChoice,
    /// The method that moves bytes.
    pub transfer: Transfer,
}

impl RingConfig {
    /// The environment variable that chooses the engine: `epoll`, or anything else for the default.
    pub const ENGINE_ENV: &str = "MUSTER_LOG_ENGINE";

    /// Returns the default with the engine that [`Self::ENGINE_ENV`] selects.
    pub fn from_env() -> Self {
        let epoll = std::env::var_os(Self::ENGINE_ENV).is_some_and(|engine| engine == "epoll");
        let engine = if epoll {
            EngineChoice::Epoll
        } else {
            EngineChoice::Auto
        };
        Self {
            engine,
            transfer: Transfer::default(),
        }
    }
}

/// Names a stream of one loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId(u64);

/// A FIFO to drain, and its log files.
#[derive(Debug)]
pub struct StreamSpec {
    /// The FIFO, open for reading and writing.
    pub fifo: Fifo,
    /// The directory of the log files.
    pub dir: PathBuf,
    /// The stream's name, as `web.stdout`: files are `<name>.N`.
    pub name: String,
    /// The limits of the kept log files.
    pub limits: RotateLimits,
    /// The treatment of bytes when the disk is full.
    pub on_full: OnFull,
    /// The rate limit for taking bytes; `None` for no limit.
    pub rate: Option<RateLimit>,
    /// Whether the stream probably has no bytes yet: existing files are not looked for before its first byte.
    pub begins: bool,
}

/// The rate at which bytes of a stream are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimit {
    /// Bytes in a second, at least 1. After a pause of a second, the same amount may be taken at once.
    pub bytes_per_second: u64,
    /// The treatment of bytes beyond the rate. Bytes in the FIFO when the stream is detached are taken in any case.
    pub on_limit: OnFull,
}

/// The counts of a stream since it was attached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamStats {
    /// Bytes written to files.
    pub bytes: u64,
    /// Bytes thrown away because they could not be written, or exceeded the rate.
    pub dropped_bytes: u64,
    /// Time for which bytes waited because the rate was used up.
    pub limited: Duration,
    pub rotations: u64,
    /// Offset behind the last byte taken from the FIFO, counted from the stream's begin.
    pub offset: u64,
    /// System calls that moved bytes: `bytes / drains` is the batch.
    pub drains: u64,
    /// The reason why the last try to write failed; `None` when it did not.
    pub blocked: Option<String>,
    /// The method that moves bytes.
    pub transfer: Transfer,
}

/// The totals of a stream, and the bytes that it left behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DetachReport {
    pub stats: StreamStats,
    /// Bytes still in the FIFO because they could not be written in time; 0 when all are safe.
    pub left_bytes: u64,
}

/// Why the loop could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartRingError {
    /// The thread cannot be made.
    #[error("start the log thread")]
    Thread(#[source] std::io::Error),
    /// The thread could make no runtime, neither on io_uring nor on epoll.
    #[error("make the log thread's event loop; is the process out of file descriptors?")]
    Runtime(#[source] std::io::Error),
    /// The thread ended before it reported the result of its start.
    #[error("the log thread ended while starting")]
    Died,
}

/// Why a stream could not be attached.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The log directory cannot be used.
    #[error(transparent)]
    Dir(#[from] OpenLogDirError),
    /// The log files cannot be used.
    #[error(transparent)]
    Log(#[from] OpenLogError),
    /// The FIFO cannot be waited for.
    #[error("wait for FIFO of log {name}")]
    Wait {
        name: String,
        /// The error of the kernel.
        #[source]
        source: std::io::Error,
    },
    /// Two streams would write the same files.
    #[error("log {name} in {dir} is attached already")]
    Twice { dir: PathBuf, name: String },
    /// The loop has as many streams as it takes.
    #[error("{max} log streams are attached, the most that one agent drains")]
    Full { max: usize },
    /// The loop has ended.
    #[error(transparent)]
    Stopped(#[from] RingStopped),
}

/// Why a stream could not be queried or detached.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    /// The stream does not exist, or was detached.
    #[error("no such log stream; it was detached already")]
    Unknown,
    /// The loop has ended.
    #[error(transparent)]
    Stopped(#[from] RingStopped),
}

/// The loop has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the log thread has ended; restart the agent, bytes wait in the FIFOs until then")]
pub struct RingStopped;

/// The running loop. Dropping it stops it in the background; bytes not yet drained stay in the
/// FIFOs, as when the agent is killed.
#[derive(Debug)]
pub struct LogRing {
    commands: mpsc::Sender<Command>,
    engine: Engine,
    thread: JoinHandle<()>,
}

impl LogRing {
    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// [`StartRingError`]. The absence of io_uring is no error: see [`Self::engine`].
    pub fn start(config: RingConfig) -> Result<Self, StartRingError> {
        let (commands, inbox) = mpsc::channel(COMMANDS_MAX);
        let (started, ready) = std::sync::mpsc::sync_channel(STARTS_MAX);
        let thread = std::thread::Builder::new()
            .name("muster-logs".into())
            .spawn(move || worker::run(config, inbox, &started))
            .map_err(StartRingError::Thread)?;
        // A closed channel means the thread panicked; its message is on stderr.
        let engine = ready
            .recv()
            .unwrap_or(Err(None))
            .map_err(|error| error.map_or(StartRingError::Died, StartRingError::Runtime))?;
        if let Engine::Epoll { reason } = &engine {
            tracing::warn!(reason, "logs are drained by epoll");
        }
        Ok(Self {
            commands,
            engine,
            thread,
        })
    }

    /// Returns the engine that waits for FIFOs.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Drains a FIFO from now on, beginning with the bytes in it.
    ///
    /// # Errors
    ///
    /// [`AttachError`]; nothing was taken from the FIFO then.
    pub async fn attach(&self, spec: StreamSpec) -> Result<StreamId, AttachError> {
        let spec = Box::new(spec);
        self.ask(|answer| Command::Attach { spec, answer }).await?
    }

    /// Drains the bytes in the FIFO and stops. If the task keeps writing, or the disk is full, it stops after
    /// `within` and returns the number of remaining bytes. A later attach continues there.
    ///
    /// # Errors
    ///
    /// [`StreamError`].
    pub async fn detach(
        &self,
        stream_id: StreamId,
        within: Duration,
    ) -> Result<DetachReport, StreamError> {
        self.ask(|answer| Command::Detach {
            stream_id,
            within,
            answer,
        })
        .await?
        .ok_or(StreamError::Unknown)
    }

    /// Returns the counts of a stream so far.
    ///
    /// # Errors
    ///
    /// [`StreamError`].
    pub async fn stats(&self, stream_id: StreamId) -> Result<StreamStats, StreamError> {
        self.ask(|answer| Command::Stats { stream_id, answer })
            .await?
            .ok_or(StreamError::Unknown)
    }

    /// Stops all streams at once and waits some milliseconds for the thread.
    pub fn stop(self) {
        let Self {
            commands, thread, ..
        } = self;
        // The thread ends when the last sender is gone.
        drop(commands);
        if thread.join().is_err() {
            tracing::error!("the log thread had panicked");
        }
    }

    /// Triggers a sweep for silent streams, which [`limits::REST_SWEEP`] triggers outside of tests.
    #[cfg(test)]
    pub(crate) async fn sweep(&self) -> Result<(), RingStopped> {
        self.ask(|answer| Command::Sweep { answer }).await
    }

    async fn ask<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<T>) -> Command,
    ) -> Result<T, RingStopped> {
        let (answer, answered) = oneshot::channel();
        self.commands
            .send(command(answer))
            .await
            .map_err(|_closed| RingStopped)?;
        answered.await.map_err(|_closed| RingStopped)
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) use tests::SmallDisk;
