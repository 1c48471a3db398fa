//! The durable log: votes, entries and the committed position, in numbered files on disk.
//!
//! All writes go through one writer thread in the order of the calls, so a vote and the entries after it never
//! change places. Requests that arrive during a `fdatasync` share the next one. Every record carries a checksum. A
//! record cut short by a crash at the end is removed at the next start and counted. Damage anywhere else stops the
//! server ([`OpenLogError::Damaged`]). After a failed write or `fdatasync` nothing is written any more and Raft
//! stops, because the content of the page cache is then unknown.
//!
//! **A full disk** does not count as such a failure. The space for a segment is allocated before it is needed, and
//! a failed allocation sets [`DiskHealth::Full`] at once. A whole segment is then left for requests under way, for
//! votes and for the transfer of leadership. Once that is used up, requests wait. They continue by themselves when
//! there is space.

pub(crate) mod failpoint;
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
    /// A newer version wrote the log.
    #[error(
        "the log's file {} has format {found}; this server understands up to {known}: start the newer version that wrote it",
        file.display()
    )]
    Newer {
        file: PathBuf,
        found: u32,
        /// The newest format that this version reads.
        known: u32,
    },
    /// A record is damaged that must be whole.
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
        /// The damaged file; the directory if the file is not known.
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
    Writable,
    /// The disk has no space: this server may acknowledge no new change.
    Full {
        /// The directory that cannot grow.
        dir: PathBuf,
        /// The error of the operating system.
        reason: String,
    },
}

/// The sizes of the log's allocations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogSizes {
    /// Bytes of one segment. Two segments exist at all times: the current one and the next.
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

/// The log. Clones share it; the drop of the last one ends its writer.
#[derive(Clone, Debug)]
pub(crate) struct LogStore {
    watch: LogWatch,
    bytes_cut: u64,
    lost: Option<LogId>,
    _ending: Arc<WriterGuard>,
}

/// A handle that reads the log's positions and does not keep the log open.
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
    /// Opens the log in `dir` and creates it if it does not exist. Keeps `guard` as long as the log can be written
    /// to.
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
            // A vote that was granted stays granted: another vote in its term would be a second one.
            let (sender, _) = oneshot::channel();
            store
                .enqueue(Record::Vote(vote), Completion::Other(sender))
                .map_err(io_error)?;
        }
        Ok(store)
    }

    /// The acknowledged end that is missing from the log.
    pub(crate) fn lost(&self) -> Option<LogId> {
        self.lost
    }

    /// Bytes cut off the end at the opening. A crash had interrupted their write, so they were never acknowledged.
    pub(crate) fn bytes_cut(&self) -> u64 {
        self.bytes_cut
    }

    /// A handle that reads the log's positions.
    pub(crate) fn watch(&self) -> LogWatch {
        self.watch.clone()
    }

    /// Whether the disk has space, and changes of that.
    pub(crate) fn disk(&self) -> watch::Receiver<DiskHealth> {
        self.watch.disk()
    }

    /// The last purged entry; a snapshot must reach at least this entry.
    pub(crate) fn purged(&self) -> Option<LogId> {
        self.watch.purged()
    }

    /// Changes the state in memory by `change` and queues the records for the writer, in one step.
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
        self.enqueue(record, Completion::Other(sender))?;
        receiver
            .await
            .unwrap_or_else(|_| Err(io::Error::other("the log's writer has ended")))
    }

    /// Queues one record for the writer.
    fn enqueue(&self, record: Record, done: Completion) -> io::Result<()> {
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

    /// Waits while too many bytes wait for the disk.
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

    /// Returns the greatest end up to `to` so that the entries from `from` have at most `bytes_max`, or are a
    /// single entry.
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
    /// Whether the disk has space, and changes of that.
    pub(crate) fn disk(&self) -> watch::Receiver<DiskHealth> {
        self.shared.health.subscribe()
    }

    /// The last entry.
    pub(crate) fn last(&self) -> Option<LogId> {
        self.shared.lock().entries.positions.last
    }

    /// The last purged entry; a snapshot must reach at least this entry.
    pub(crate) fn purged(&self) -> Option<LogId> {
        self.shared.lock().entries.positions.purged
    }

    /// Approximate bytes in memory of the entries after `index`.
    pub(crate) fn bytes_after(&self, index: u64) -> u64 {
        self.shared.lock().entries.bytes_after(index)
    }

    /// Releases the reserve for an operation that frees space. Until [`Self::take_back_reserve`] the log allocates
    /// no space.
    pub(crate) fn release_reserve(&self) -> io::Result<()> {
        self.shared.lock().is_reserve_released = true;
        self.dir.give_up_reserve()
    }

    /// Allows the log to allocate space again; it allocates the reserve first.
    pub(crate) fn take_back_reserve(&self) {
        self.shared.lock().is_reserve_released = false;
        self.shared.wake();
    }
}

/// Converts `range` into a half-open range.
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

    /// Returns the entries for one message to a follower: as many as fit, but at least one.
    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> io::Result<Vec<Entry>> {
        if start >= end {
            return Ok(Vec::new());
        }
        let end = self.end_within(start, end, crate::limits::APPEND_BYTES_MAX);
        self.entries(start, end).await
    }

    /// The steps are bounded: a start may have to apply more entries than fit in memory at once.
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
            // The position is only a hint for the next start, and the log must not point past its end.
            return Ok(());
        }
        positions.take(&Record::Committed(committed));
        // This needs no write of its own: the next frame writes it to disk.
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
        // The records are encoded before the lock is taken, so that readers do not wait for it.
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
