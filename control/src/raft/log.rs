//! The durable log: votes, entries and the committed position, in numbered files on disk.
//!
//! Everything goes through one writer thread in the order it was asked for, so a vote and the entries
//! after it never change places. Requests that arrive while a `fdatasync` runs share the next one. Every
//! record carries a checksum. A record cut short by a crash at the end is removed at the next start and
//! counted; damage anywhere else stops the server ([`OpenLogError::Damaged`]). After a failed write or
//! `fdatasync` nothing is written any more and Raft stops: what the page cache holds is unknown then.
//!
//! **A full disk** does not count as such a failure. The room for a segment is taken before it is needed, and
//! [`DiskHealth::Full`] is shown as soon as it cannot be. Then a whole segment is left for requests under
//! way, for votes and for handing leadership over. Once that is used up, requests wait. When there is room
//! they go on by themselves.

pub(super) mod failpoint;
#[cfg(any(test, feature = "fuzz"))]
pub(super) mod fuzz;
mod limits;
mod mark;
mod record;
mod recovery;
mod segment;
mod state;
#[cfg(test)]
mod tests;
mod writer;

use std::fmt::Debug;
use std::io;
use std::ops::{Bound, RangeBounds};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use futures::{Stream, StreamExt, stream};
use openraft::OptionalSend;
use openraft::entry::RaftEntry;
use openraft::storage::{IOFlushed, LogState, RaftLogReader, RaftLogStorage};
use tokio::sync::{oneshot, watch};

use self::mark::MarkFile;
use self::record::Record;
use self::recovery::RecoveredLog;
use self::segment::Dir;
use self::state::StoredEntry;
use self::writer::{Completion, Request, Writer, WriterQueue, WriterState};
use super::types::{Entry, LogId, TypeConfig, Vote};

/// The reason why the log could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenLogError {
    /// The directory or a file in it cannot be used.
    #[error("the log in {} cannot be opened", dir.display())]
    Io {
        dir: PathBuf,
        #[source]
        source: io::Error,
    },
    /// A newer version wrote it.
    #[error(
        "the log's file {} has format {found}; this server understands up to {known}: start the newer version that wrote it",
        file.display()
    )]
    Newer {
        file: PathBuf,
        found: u32,
        /// The newest format that is understood.
        known: u32,
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
        dir: PathBuf,
        /// The damaged file; the directory if it is not known.
        file: PathBuf,
        /// The offset in the file at which its damaged record begins.
        offset: Option<u64>,
        #[source]
        source: io::Error,
    },
}

/// Whether the log has room to grow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DiskHealth {
    Room,
    /// It has not: no new change may be acknowledged by this server.
    Full {
        /// The directory that cannot grow.
        dir: PathBuf,
        /// The error of the operating system.
        reason: String,
    },
}

/// How much room the log takes at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogSizes {
    /// Bytes of one segment. Two are there at all times: the one written to and the next.
    pub(crate) segment_bytes: u64,
    /// Bytes of the reserve.
    pub(crate) reserve_bytes: u64,
    /// Bytes of entries kept in memory.
    pub(crate) cache_bytes: usize,
}

impl Default for LogSizes {
    fn default() -> Self {
        Self {
            segment_bytes: limits::LOG_FILE_BYTES,
            reserve_bytes: limits::LOG_RESERVE_BYTES,
            cache_bytes: limits::LOG_CACHE_BYTES,
        }
    }
}

/// The log. Clones share it; the last one to go ends its writer.
#[derive(Clone, Debug)]
pub(crate) struct LogStore {
    watch: LogWatch,
    bytes_cut: u64,
    lost: Option<LogId>,
    _ending: Arc<WriterGuard>,
}

/// A look at the log that does not keep it open.
#[derive(Clone)]
pub(crate) struct LogWatch {
    shared: Arc<WriterState>,
    dir: Arc<Dir>,
}

impl Debug for LogWatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LogWatch")
            .field("dir", &self.dir.path())
            .finish_non_exhaustive()
    }
}

/// Ends the writer when it is dropped, and waits for it.
struct WriterGuard {
    shared: Arc<WriterState>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

impl Debug for WriterGuard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ending").finish_non_exhaustive()
    }
}

impl Drop for WriterGuard {
    fn drop(&mut self) {
        self.shared.close();
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(writer) = writer.take()
            && writer.join().is_err()
        {
            tracing::error!("the log's writer has panicked");
        }
    }
}

impl LogStore {
    /// Opens the log in `dir`, making it if it is not there. Keeps `guard` as long as it can be written to.
    pub(crate) fn open(
        dir: &Path,
        guard: Arc<dyn Debug + Send + Sync>,
    ) -> Result<Self, OpenLogError> {
        Self::open_sized(dir, LogSizes::default(), guard)
    }

    /// Opens as [`Self::open`] does, with other sizes.
    pub(crate) fn open_sized(
        dir: &Path,
        sizes: LogSizes,
        guard: Arc<dyn Debug + Send + Sync>,
    ) -> Result<Self, OpenLogError> {
        let io_error = |source| OpenLogError::Io {
            dir: dir.to_owned(),
            source,
        };
        let opened = Dir::open(dir).map_err(io_error)?;
        let RecoveredLog {
            entries,
            files,
            bytes_cut,
        } = recovery::recover(&opened, sizes.cache_bytes)?;
        if bytes_cut > 0 {
            tracing::warn!(dir = %dir.display(), bytes_cut, "cut a record off the end of the log that a crash had left unfinished");
        }
        let (mark_file, mark) = MarkFile::open(dir, entries.positions.last).map_err(io_error)?;
        let lost = mark_file.lost();
        let vote = mark
            .vote
            .filter(|vote| Some(*vote) > entries.positions.vote);
        let shared = Arc::new(WriterState::new(entries));
        let writer = Writer::new(
            opened.clone(),
            sizes,
            Arc::clone(&shared),
            files,
            mark_file,
            guard,
        )
        .map_err(io_error)?;
        let thread = std::thread::Builder::new()
            .name("muster-log".to_owned())
            .spawn(move || writer.run())
            .map_err(io_error)?;
        let ending = WriterGuard {
            shared: Arc::clone(&shared),
            writer: Mutex::new(Some(thread)),
        };
        let store = Self {
            watch: LogWatch {
                shared,
                dir: Arc::new(opened),
            },
            bytes_cut,
            lost,
            _ending: Arc::new(ending),
        };
        if let Some(vote) = vote {
            // A vote that was given is given: another one in its term would be a second.
            let (sender, _) = oneshot::channel();
            store
                .ask_for(Record::Vote(vote), Completion::Other(sender))
                .map_err(io_error)?;
        }
        Ok(store)
    }

    /// The end of the log that was acknowledged and is gone.
    pub(crate) fn lost(&self) -> Option<LogId> {
        self.lost
    }

    /// Bytes cut off the end when it was opened: a write that a crash interrupted. It was never
    /// acknowledged.
    pub(crate) fn bytes_cut(&self) -> u64 {
        self.bytes_cut
    }

    /// A look at it.
    pub(crate) fn watch(&self) -> LogWatch {
        self.watch.clone()
    }

    /// Whether there is room to grow, and changes of it.
    pub(crate) fn disk(&self) -> watch::Receiver<DiskHealth> {
        self.watch.disk()
    }

    /// The last entry that was purged; what a snapshot must at least reach.
    pub(crate) fn purged(&self) -> Option<LogId> {
        self.watch.purged()
    }

    /// Changes what is in memory by `change` and hands the records to the writer, in one step.
    fn change_and_enqueue(
        &self,
        change: impl FnOnce(&mut WriterQueue) -> io::Result<Request>,
    ) -> io::Result<()> {
        let mut inner = self.watch.shared.lock();
        inner.check()?;
        let request = change(&mut inner)?;
        inner.push(request);
        drop(inner);
        self.watch.shared.wake();
        Ok(())
    }

    /// Writes one record and waits until it is on disk.
    async fn write_durably(&self, record: Record) -> io::Result<()> {
        let (sender, receiver) = oneshot::channel();
        self.ask_for(record, Completion::Other(sender))?;
        receiver
            .await
            .unwrap_or_else(|_| Err(io::Error::other("the log's writer has ended")))
    }

    /// Has one record written.
    fn ask_for(&self, record: Record, done: Completion) -> io::Result<()> {
        self.change_and_enqueue(|inner| {
            let mut bytes = Vec::new();
            record::push(&mut bytes, &record)?;
            match &record {
                Record::Truncate(last) => inner.entries.truncate(*last),
                Record::Purge(upto) => inner.entries.purge(*upto),
                other => inner.entries.positions.take(other),
            }
            Ok(Request {
                bytes,
                change: Some(record),
                entries: Vec::new(),
                done,
            })
        })
    }

    /// Waits while too much waits for the disk.
    async fn wait_for_queue(&self) -> io::Result<()> {
        loop {
            let shorter = self.watch.shared.shorter.notified();
            {
                let inner = self.watch.shared.lock();
                inner.check()?;
                if inner.queued_bytes < limits::LOG_QUEUE_BYTES {
                    return Ok(());
                }
            }
            shorter.await;
        }
    }

    /// The entries of `[from, to)` that there are.
    /// The greatest end up to `to` so that the entries from `from` have at most `bytes_max`, or are one.
    fn end_within(&self, from: u64, to: u64, bytes_max: u64) -> u64 {
        let shared = self.watch.shared.lock();
        let after = |index: u64| shared.entries.bytes_after(index);
        let (mut fits, mut beyond) = (from + 1, to.max(from + 1) + 1);
        while fits + 1 < beyond {
            let middle = fits + (beyond - fits) / 2;
            if after(from).saturating_sub(after(middle - 1)) <= bytes_max {
                fits = middle;
            } else {
                beyond = middle;
            }
        }
        fits
    }

    async fn entries(&self, from: u64, to: u64) -> io::Result<Vec<Entry>> {
        let found = self.watch.shared.lock().entries.range(from, to);
        let in_memory = found
            .iter()
            .all(|one| matches!(one, StoredEntry::Cached(_)));
        let read = move || {
            found
                .into_iter()
                .map(|one| match one {
                    StoredEntry::Cached(entry) => Ok(entry),
                    StoredEntry::OnDisk(place) => place.read(),
                })
                .collect()
        };
        if in_memory {
            return read();
        }
        tokio::task::spawn_blocking(read)
            .await
            .map_err(io::Error::other)?
    }
}

impl LogWatch {
    /// Whether there is room to grow, and changes of it.
    pub(crate) fn disk(&self) -> watch::Receiver<DiskHealth> {
        self.shared.health.subscribe()
    }

    /// The last entry.
    pub(crate) fn last(&self) -> Option<LogId> {
        self.shared.lock().entries.positions.last
    }

    /// The last entry that was purged; what a snapshot must at least reach.
    pub(crate) fn purged(&self) -> Option<LogId> {
        self.shared.lock().entries.positions.purged
    }

    /// Bytes of the entries after `index`, roughly as in memory.
    pub(crate) fn bytes_after(&self, index: u64) -> u64 {
        self.shared.lock().entries.bytes_after(index)
    }

    /// Gives the reserve up for something that makes room. Until [`Self::take_back_reserve`] the log takes
    /// no room.
    pub(crate) fn release_reserve(&self) -> io::Result<()> {
        self.shared.lock().reserve_lent = true;
        self.dir.give_up_reserve()
    }

    /// The log may take room again, and the reserve first.
    pub(crate) fn take_back_reserve(&self) {
        self.shared.lock().reserve_lent = false;
        self.shared.wake();
    }
}

/// `range` as a half-open one.
fn half_open(range: &impl RangeBounds<u64>) -> (u64, u64) {
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
    (from, to)
}

impl RaftLogReader<TypeConfig> for LogStore {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> io::Result<Vec<Entry>> {
        let (from, to) = half_open(&range);
        self.entries(from, to).await
    }

    /// Returns the entries for one message to a follower: as much as fits, one entry at the least.
    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> io::Result<Vec<Entry>> {
        if start >= end {
            return Ok(Vec::new());
        }
        let end = self.end_within(start, end, crate::limits::APPEND_BYTES_MAX);
        self.entries(start, end).await
    }

    /// Bounded steps: a start may have to apply more entries than fit in memory at once.
    async fn entries_stream<RB>(
        &mut self,
        range: RB,
    ) -> impl Stream<Item = io::Result<Entry>> + OptionalSend
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let (from, to) = half_open(&range);
        let log = self.clone();
        let steps = stream::unfold(from, move |at| {
            let log = log.clone();
            async move {
                if at >= to {
                    return None;
                }
                let step = to.min(at.saturating_add(limits::LOG_READ_ENTRIES));
                match log.entries(at, step).await {
                    Ok(entries) if entries.is_empty() => None,
                    Ok(entries) => {
                        let items: Vec<io::Result<Entry>> = entries.into_iter().map(Ok).collect();
                        Some((items, step))
                    }
                    Err(error) => Some((vec![Err(error)], to)),
                }
            }
        });
        steps.map(stream::iter).flatten().boxed()
    }

    async fn read_vote(&mut self) -> io::Result<Option<Vote>> {
        Ok(self.watch.shared.lock().entries.positions.vote)
    }
}

impl RaftLogStorage<TypeConfig> for LogStore {
    type LogReader = Self;

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn get_log_state(&mut self) -> io::Result<LogState<TypeConfig>> {
        let inner = self.watch.shared.lock();
        Ok(LogState {
            last_purged_log_id: inner.entries.positions.purged,
            last_log_id: inner.entries.positions.last,
        })
    }

    async fn save_vote(&mut self, vote: &Vote) -> io::Result<()> {
        self.write_durably(Record::Vote(*vote)).await
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> io::Result<()> {
        let Some(committed) = committed else {
            return Ok(());
        };
        let mut inner = self.watch.shared.lock();
        inner.check()?;
        let positions = &mut inner.entries.positions;
        if positions.last.is_none_or(|last| last < committed) {
            // Only a hint for the next start, and the log cannot point past its end.
            return Ok(());
        }
        positions.take(&Record::Committed(committed));
        // Without a write of its own: the next frame carries it to disk.
        inner.hint = Some(committed);
        Ok(())
    }

    async fn read_committed(&mut self) -> io::Result<Option<LogId>> {
        Ok(self.watch.shared.lock().entries.positions.committed)
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<TypeConfig>) -> io::Result<()>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        self.wait_for_queue().await?;
        // Encoded before the lock is taken: readers do not wait for it.
        let mut bytes = Vec::new();
        let mut places = Vec::new();
        let mut appended = Vec::new();
        for entry in entries {
            let record = Record::Entry(entry);
            let length = record::push(&mut bytes, &record)?;
            if let Record::Entry(entry) = record {
                places.push((entry.log_id(), bytes.len() - length as usize, length));
                appended.push(entry);
            }
        }
        self.change_and_enqueue(move |inner| {
            let mut next = inner.entries.next_index();
            for (log_id, ..) in &places {
                if next.is_some_and(|next| next != log_id.index) {
                    return Err(io::Error::new(
                        io::ErrorKind::InvalidInput,
                        format!("entry {log_id} does not follow on the log's last"),
                    ));
                }
                next = Some(log_id.index + 1);
            }
            for entry in appended {
                inner.entries.push(entry, None);
            }
            Ok(Request {
                bytes,
                change: None,
                entries: places,
                done: Completion::Entries(callback),
            })
        })
    }

    async fn truncate_after(&mut self, last: Option<LogId>) -> io::Result<()> {
        let from = last.map_or(0, |log_id| log_id.index + 1);
        if from >= self.watch.shared.lock().entries.next_index().unwrap_or(0) {
            return Ok(());
        }
        self.write_durably(Record::Truncate(last)).await
    }

    async fn purge(&mut self, upto: LogId) -> io::Result<()> {
        self.write_durably(Record::Purge(upto)).await
    }
}
