//! The durable log: votes, entries and the committed position, in one write-ahead log on disk.
//!
//! Everything goes through one writer thread in the order it was asked for, so a vote and the entries
//! after it never change places. Records carry a checksum; entries that arrive while a `fdatasync` runs
//! share the next one. A record cut short by a crash at the end is removed at the next start and
//! counted; damage anywhere else stops the server ([`OpenLogError::Damaged`]). After a failed
//! `fdatasync` nothing is written any more and Raft stops: what the page cache holds is unknown then.

mod record;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io;
use std::ops::{Bound, RangeBounds};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use openraft::OptionalSend;
use openraft::entry::RaftEntry;
use openraft::storage::{IOFlushed, LogState, RaftLogReader, RaftLogStorage};
use raft_log::api::raft_log_writer::RaftLogWriter;
use tokio::sync::oneshot;

use self::record::{Record, payload_bytes};
use super::types::{Entry, LogId, TypeConfig, Vote};
use crate::limits;

/// Why the log could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenLogError {
    /// The directory or a file in it cannot be used.
    #[error("the log in {} cannot be opened", dir.display())]
    Io {
        /// The log's directory.
        dir: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A record that must be whole is not.
    #[error(
        "the log is damaged in {}{}; nothing was changed. If this is the only server, move {} away and start again: it \
         goes on from its last snapshot and writes after that are lost. In a cluster of several, remove the server, \
         empty its data directory and let it join again",
        file.display(),
        offset.map_or_else(String::new, |offset| format!(" at byte {offset}")),
        dir.display()
    )]
    Damaged {
        /// The log's directory.
        dir: PathBuf,
        /// The damaged file; the directory if it is not known.
        file: PathBuf,
        /// Where in the file its damaged record begins.
        offset: Option<u64>,
        /// What is wrong.
        #[source]
        source: io::Error,
    },
}

/// Called by the log's writer thread when records are on disk.
pub(crate) enum Flushed {
    /// Entries: openraft waits.
    Entries(IOFlushed<TypeConfig>),
    /// Anything else: one of our functions waits.
    Other(oneshot::Sender<io::Result<()>>),
}

impl raft_log::Callback for Flushed {
    fn send(self, result: io::Result<()>) {
        match self {
            Self::Entries(callback) => callback.io_completed(result),
            // A receiver that is gone was cancelled and does not want to know.
            Self::Other(sender) => drop(sender.send(result)),
        }
    }
}

/// The parameters of `raft_log`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LogTypes;

impl raft_log::Types for LogTypes {
    type LogId = Record<LogId>;
    type LogPayload = Record<Entry>;
    type Vote = Record<Vote>;
    type Callback = Flushed;
    type UserData = String;

    fn log_index(log_id: &Self::LogId) -> u64 {
        log_id.0.index
    }

    fn payload_size(payload: &Self::LogPayload) -> u64 {
        payload_bytes(&payload.0)
    }
}

/// The log. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct LogStore {
    log: Arc<Mutex<raft_log::RaftLog<LogTypes>>>,
    bytes_cut: u64,
    /// Whatever must not be let go while the log can be written to.
    _guard: Arc<dyn Debug + Send + Sync>,
}

impl LogStore {
    /// Opens the log in `dir`, making it if it is not there. Keeps `guard` as long as it can be written to.
    pub(crate) fn open(
        dir: &Path,
        guard: Arc<dyn Debug + Send + Sync>,
    ) -> Result<Self, OpenLogError> {
        let io_error = |source| OpenLogError::Io {
            dir: dir.to_owned(),
            source,
        };
        std::fs::create_dir_all(dir).map_err(io_error)?;
        let before = file_sizes(dir).map_err(io_error)?;

        let mut config = raft_log::Config::new(dir.display());
        config.log_cache_capacity = Some(limits::LOG_CACHE_BYTES);
        config.wal.chunk_max_size = Some(limits::LOG_FILE_BYTES);
        config.wal.read_buffer_size = Some(limits::LOG_READ_BUFFER_BYTES);
        config.wal.flush_batch_wait = Some(limits::LOG_GATHER_WAIT);
        let log =
            raft_log::RaftLog::open(Arc::new(config)).map_err(|source| open_error(dir, source))?;

        let after = file_sizes(dir).map_err(io_error)?;
        let bytes_cut = before
            .iter()
            .map(|(file, size)| size.saturating_sub(after.get(file).copied().unwrap_or(0)))
            .sum();
        if bytes_cut > 0 {
            tracing::warn!(dir = %dir.display(), bytes_cut, "cut a record off the end of the log that a crash had left unfinished");
        }
        Ok(Self {
            log: Arc::new(Mutex::new(log)),
            bytes_cut,
            _guard: guard,
        })
    }

    /// Bytes cut off the end when it was opened: a write that a crash interrupted. It was never
    /// acknowledged.
    pub(crate) fn bytes_cut(&self) -> u64 {
        self.bytes_cut
    }

    /// The last entry that was purged; what a snapshot must at least reach.
    pub(crate) fn purged(&self) -> Option<LogId> {
        self.lock().log_state().purged().map(|log_id| log_id.0)
    }

    fn lock(&self) -> MutexGuard<'_, raft_log::RaftLog<LogTypes>> {
        // The log checks each record before it changes anything, so a panic leaves it consistent.
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `write` and waits until what it wrote is on disk.
    async fn write_durably(
        &self,
        write: impl FnOnce(&mut raft_log::RaftLog<LogTypes>) -> io::Result<()>,
    ) -> io::Result<()> {
        let (sender, receiver) = oneshot::channel();
        {
            let mut log = self.lock();
            let asked =
                write(&mut log).and_then(|()| log.flush(true, Some(Flushed::Other(sender))));
            explain(&log, asked)?;
        }
        receiver
            .await
            .unwrap_or_else(|_| Err(io::Error::other("the log's writer thread has ended")))
    }
}

impl RaftLogReader<TypeConfig> for LogStore {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> io::Result<Vec<Entry>> {
        let from = match range.start_bound() {
            Bound::Included(index) => *index,
            Bound::Excluded(index) => *index + 1,
            Bound::Unbounded => 0,
        };
        let to = match range.end_bound() {
            Bound::Included(index) => *index + 1,
            Bound::Excluded(index) => *index,
            Bound::Unbounded => u64::MAX,
        };
        if from >= to {
            return Ok(Vec::new());
        }
        self.lock()
            .read(from, to)
            .map(|record| record.map(|(_, entry)| entry.0))
            .collect()
    }

    async fn read_vote(&mut self) -> io::Result<Option<Vote>> {
        Ok(self.lock().log_state().vote().map(|vote| vote.0))
    }
}

impl RaftLogStorage<TypeConfig> for LogStore {
    type LogReader = Self;

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn get_log_state(&mut self) -> io::Result<LogState<TypeConfig>> {
        let log = self.lock();
        let state = log.log_state();
        Ok(LogState {
            last_purged_log_id: state.purged().map(|log_id| log_id.0),
            last_log_id: state.last().map(|log_id| log_id.0),
        })
    }

    async fn save_vote(&mut self, vote: &Vote) -> io::Result<()> {
        self.write_durably(|log| log.save_vote(Record(*vote)).map(drop))
            .await
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> io::Result<()> {
        let Some(committed) = committed else {
            return Ok(());
        };
        let mut log = self.lock();
        if log.log_state().last().is_none_or(|last| last.0 < committed) {
            // Only a hint for the next start, and the log cannot point past its end.
            return Ok(());
        }
        // Without a sync of its own: the next entry's carries it to disk.
        let asked = log
            .commit(Record(committed))
            .and_then(|_| log.flush(false, None));
        explain(&log, asked)
    }

    async fn read_committed(&mut self) -> io::Result<Option<LogId>> {
        Ok(self.lock().log_state().committed().map(|log_id| log_id.0))
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<TypeConfig>) -> io::Result<()>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let mut log = self.lock();
        let records = entries
            .into_iter()
            .map(|entry| (Record(entry.log_id()), Record(entry)));
        let asked = log
            .append(records)
            .and_then(|_| log.flush(true, Some(Flushed::Entries(callback))));
        explain(&log, asked)
    }

    async fn truncate_after(&mut self, last: Option<LogId>) -> io::Result<()> {
        let from = last.map_or(0, |log_id| log_id.index + 1);
        let next = self
            .lock()
            .log_state()
            .last()
            .map_or(0, |log_id| log_id.0.index + 1);
        if from >= next {
            return Ok(());
        }
        self.write_durably(|log| log.truncate(from).map(drop)).await
    }

    async fn purge(&mut self, upto: LogId) -> io::Result<()> {
        self.write_durably(|log| log.purge(Record(upto)).map(drop))
            .await
    }
}

/// Puts what stopped the writer thread in the place of what followed from it.
fn explain(log: &raft_log::RaftLog<LogTypes>, asked: io::Result<()>) -> io::Result<()> {
    asked.map_err(|error| match log.wait_worker_idle() {
        Ok(()) => error,
        Err(first) => io::Error::new(first.kind(), format!("the log cannot be written: {first}")),
    })
}

/// The sizes of the log's files.
fn file_sizes(dir: &Path) -> io::Result<BTreeMap<PathBuf, u64>> {
    let mut sizes = BTreeMap::new();
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let path = entry.path();
        if path.extension().is_some_and(|extension| extension == "wal") {
            sizes.insert(path, entry.metadata()?.len());
        }
    }
    Ok(sizes)
}

/// Says what an error of the library means. It names the file as `ChunkId(<digits>)` and the record
/// as `at offset <n>`; both only in its text.
fn open_error(dir: &Path, source: io::Error) -> OpenLogError {
    match source.kind() {
        io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidInput => {
        }
        _ => {
            return OpenLogError::Io {
                dir: dir.to_owned(),
                source,
            };
        }
    }
    let text = source.to_string();
    let after = |mark: &str, end: &[char]| {
        let (_, rest) = text.split_once(mark)?;
        rest.split(end).next().map(ToOwned::to_owned)
    };
    let file = after("ChunkId(", &[')']).map_or_else(
        || dir.to_owned(),
        |digits| dir.join(format!("r-{digits}.wal")),
    );
    let offset =
        after("at offset ", &[':', ';', ',', ' ', ')']).and_then(|digits| digits.parse().ok());
    OpenLogError::Damaged {
        dir: dir.to_owned(),
        file,
        offset,
        source,
    }
}
