//! The only thread that writes to the log.
//!
//! The writer takes all waiting requests, writes them as one frame, calls `fdatasync` once and answers them in
//! order. On a full disk a request stays in the queue with all later ones: none is refused, and none overtakes
//! another. The writer ends after any other failure of a write or a sync, because the content of the page cache is
//! then unknown.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::io;
use std::mem;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use openraft::storage::IOFlushed;
use tokio::sync::{Notify, oneshot, watch};

use super::mark::MarkFile;
use super::record::{self, Record};
use super::recovery::{ClosedSegment, Files};
use super::segment::{self, Dir, Segment, SpareSegment};
use super::state::{Checkpoint, Entries, RecordLocation};
use super::{DiskHealth, LogSizes, failpoint, limits};
use crate::raft::types::{LogId, TypeConfig};

/// The receiver of a request's result.
pub(super) enum Completion {
    Entries(IOFlushed<TypeConfig>),
    /// A function of this crate.
    Other(oneshot::Sender<io::Result<()>>),
}

impl Completion {
    fn send(self, result: io::Result<()>) {
        match self {
            Self::Entries(callback) => callback.io_completed(result),
            // The receiver was cancelled if it is gone, and needs no result.
            Self::Other(sender) => drop(sender.send(result)),
        }
    }
}

/// Records that are written to disk together.
pub(super) struct Request {
    /// The encoded records, one after the other.
    pub(super) bytes: Vec<u8>,
    /// The record that is not an entry, if any.
    pub(super) change: Option<Record>,
    /// The entries: position, and offset and length of the body in `bytes`.
    pub(super) entries: Vec<(LogId, usize, u32)>,
    pub(super) done: Completion,
}

/// State shared by the log's users and its writer.
pub(super) struct WriterState {
    inner: Mutex<WriterQueue>,
    wake: Condvar,
    /// Signals that the queue has become shorter.
    pub(super) shorter: Notify,
    pub(super) health: watch::Sender<DiskHealth>,
}

pub(super) struct WriterQueue {
    pub(super) entries: Entries,
    queue: VecDeque<Request>,
    pub(super) queued_bytes: usize,
    /// A committed position to write with the next frame.
    pub(super) hint: Option<LogId>,
    closing: bool,
    failed: Option<(io::ErrorKind, String)>,
    /// Whether the reserve has been released. Meanwhile the writer must take no other space.
    pub(super) is_reserve_released: bool,
}

impl WriterState {
    pub(super) fn new(entries: Entries) -> Self {
        Self {
            inner: Mutex::new(WriterQueue {
                entries,
                queue: VecDeque::new(),
                queued_bytes: 0,
                hint: None,
                closing: false,
                failed: None,
                is_reserve_released: false,
            }),
            wake: Condvar::new(),
            shorter: Notify::new(),
            health: watch::Sender::new(DiskHealth::Writable),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, WriterQueue> {
        // Requests are checked before any change, so a panic leaves the queue consistent.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the writer.
    pub(super) fn wake(&self) {
        self.wake.notify_one();
    }

    /// Ends the writer once it has written all waiting requests.
    pub(super) fn close(&self) {
        self.lock().closing = true;
        self.wake.notify_one();
    }
}

impl WriterQueue {
    /// Fails if the writer has failed.
    pub(super) fn check(&self) -> io::Result<()> {
        match &self.failed {
            None => Ok(()),
            Some((kind, reason)) => Err(io::Error::new(*kind, reason.clone())),
        }
    }

    pub(super) fn push(&mut self, request: Request) {
        self.queued_bytes += request.bytes.len();
        self.queue.push_back(request);
    }
}

/// The writer.
pub(super) struct Writer {
    shared: Arc<WriterState>,
    dir: Dir,
    sizes: LogSizes,
    /// Complete segments, oldest first.
    closed: VecDeque<ClosedSegment>,
    current: Segment,
    /// The offset of the next frame.
    end: u32,
    spare: Option<SpareSegment>,
    /// The positions on disk.
    durable: Checkpoint,
    mark: MarkFile,
    /// A guard that must be held as long as the log can be written to.
    _guard: Arc<dyn Debug + Send + Sync>,
}

impl Writer {
    /// Continues from the recovered files. In an empty directory, creates the first segment.
    pub(super) fn new(
        dir: Dir,
        sizes: LogSizes,
        shared: Arc<WriterState>,
        Files { closed, current }: Files,
        mark: MarkFile,
        guard: Arc<dyn Debug + Send + Sync>,
    ) -> io::Result<Self> {
        let mut durable = shared.lock().entries.positions.clone();
        let (current, end) = match current {
            Some(current) => current,
            None => {
                let spare = dir.spare(sizes.segment_bytes)?;
                durable.segment = 1;
                begin(&dir, &spare, &durable)?
            }
        };
        durable.segment = current.number;
        let mut writer = Self {
            shared,
            dir,
            sizes,
            closed: closed.into(),
            current,
            end,
            spare: None,
            durable,
            mark,
            _guard: guard,
        };
        writer.remove_purged();
        writer.make_room(0);
        Ok(writer)
    }

    /// Writes until the log is closed or a write fails.
    pub(super) fn run(mut self) {
        let error = loop {
            let batch = match self.next_batch() {
                WriterWake::Batch(batch) => batch,
                WriterWake::Look => {
                    self.prepare();
                    continue;
                }
                WriterWake::Close => break None,
            };
            let written = self.write(&batch);
            let result = written.as_ref().map(|_| ());
            if let Ok(start) = &written {
                self.settle(&batch, *start);
            }
            let purged = batch
                .iter()
                .any(|one| matches!(one.change, Some(Record::Purge(_))));
            for request in batch {
                request.done.send(result.map_err(copy));
            }
            match written {
                Err(error) => break Some(error),
                Ok(_) if purged => self.remove_purged(),
                Ok(_) => {}
            }
            self.prepare();
        };
        self.end(error);
    }

    /// Takes the waiting requests, up to a bound.
    fn next_batch(&mut self) -> WriterWake {
        let shared = Arc::clone(&self.shared);
        let mut inner = shared.lock();
        while inner.queue.is_empty() {
            if inner.closing {
                return WriterWake::Close;
            }
            inner = if self.spare.is_some() {
                shared
                    .wake
                    .wait(inner)
                    .unwrap_or_else(PoisonError::into_inner)
            } else {
                let (inner, waited) = (shared.wake)
                    .wait_timeout(inner, limits::DISK_FULL_PROBE)
                    .unwrap_or_else(PoisonError::into_inner);
                if waited.timed_out() {
                    return WriterWake::Look;
                }
                inner
            };
        }
        let mut batch = Vec::new();
        let mut bytes = 0;
        while bytes < limits::LOG_FRAME_BYTES {
            let Some(request) = inner.queue.pop_front() else {
                break;
            };
            bytes += request.bytes.len();
            batch.push(request);
        }
        WriterWake::Batch(batch)
    }

    /// Writes `batch` as one frame. Returns the offset of its first record.
    fn write(&mut self, batch: &[Request]) -> io::Result<u32> {
        let mut frame = record::unsealed();
        let head = frame.len();
        for request in batch {
            frame.extend_from_slice(&request.bytes);
        }
        // A hint may only name entries that are on disk with this frame: at the next start the log must reach it.
        let last = (batch.iter().rev())
            .find_map(|request| request.entries.last().map(|(log_id, ..)| *log_id))
            .max(self.durable.last);
        let hint = self.shared.lock().hint.take_if(|hint| Some(*hint) <= last);
        if let Some(hint) = hint {
            record::push(&mut frame, &Record::Committed(hint))?;
        }
        let needed = (frame.len() + record::FRAME_BYTES) as u64;
        if u64::from(self.end) + needed > self.current.bytes {
            self.roll(needed)?;
        }
        record::seal(&mut frame, self.current.number, self.end);
        self.put(&frame)?;
        let start = self.end + u32::try_from(head).expect("a frame's head is small");
        self.end += u32::try_from(frame.len()).expect("a segment is below 4 GiB");
        if let Some(hint) = hint {
            self.durable.take(&Record::Committed(hint));
        }
        Ok(start)
    }

    /// Writes `frame` to disk at the end. Waits while there is no space. That only happens on a file system that
    /// does not keep its allocated space.
    fn put(&mut self, frame: &[u8]) -> io::Result<()> {
        loop {
            let put = failpoint::hit("log.write", &self.current.path)
                .and_then(|()| self.current.file.write_all_at(frame, u64::from(self.end)));
            match put {
                Err(error) if segment::is_full(&error) => self.wait_for_room(&error)?,
                Err(error) => return Err(named(&self.current, "written", &error)),
                Ok(()) => break,
            }
        }
        failpoint::hit("log.sync", &self.current.path)
            .and_then(|()| self.current.file.sync_data())
            .map_err(|error| named(&self.current, "synced", &error))
    }

    /// Continues in the spare segment, which will hold at least `needed` bytes. Waits until there is a spare
    /// segment.
    fn roll(&mut self, needed: u64) -> io::Result<()> {
        let mut next = self.durable.clone();
        next.segment = self.current.number + 1;
        next.before = self.end;
        loop {
            self.make_room(needed);
            let rolled = match &self.spare {
                None => Err(io::ErrorKind::StorageFull.into()),
                Some(spare) => begin(&self.dir, spare, &next),
            };
            match rolled {
                Ok((segment, end)) => {
                    self.spare = None;
                    let before = mem::replace(&mut self.current, segment);
                    self.closed.push_back(ClosedSegment {
                        segment: before,
                        last_index: self.durable.last.map(|last| last.index),
                    });
                    self.end = end;
                    self.durable = next;
                    return Ok(());
                }
                Err(error) if segment::is_full(&error) => self.wait_for_room(&error)?,
                Err(error) => return Err(named(&self.current, "followed by another", &error)),
            }
        }
    }

    /// Waits before another attempt to get space. Fails if the log is being closed.
    fn wait_for_room(&mut self, error: &io::Error) -> io::Result<()> {
        self.report_disk_full(error);
        let inner = self.shared.lock();
        let (inner, _) = (self.shared.wake)
            .wait_timeout(inner, limits::DISK_FULL_PROBE)
            .unwrap_or_else(PoisonError::into_inner);
        if inner.closing {
            return Err(io::Error::new(error.kind(), error.to_string()));
        }
        Ok(())
    }

    /// Ensures a spare segment of at least `needed` bytes for a frame, and a reserve.
    fn make_room(&mut self, needed: u64) {
        let first =
            (record::HEAD_BYTES + record::FRAME_BYTES) as u64 + limits::LOG_CHECKPOINT_BYTES;
        let bytes = self.sizes.segment_bytes.max(needed + first);
        if self
            .spare
            .as_ref()
            .is_some_and(|spare| spare.bytes() >= bytes)
        {
            return;
        }
        if self.shared.lock().is_reserve_released {
            return;
        }
        self.spare = None;
        // The reserve comes first: on a full disk, a snapshot needs it to shrink the log.
        let taken =
            (self.dir.take_reserve(self.sizes.reserve_bytes)).and_then(|()| self.dir.spare(bytes));
        match taken {
            Ok(spare) => self.spare = Some(spare),
            Err(error) => self.report_disk_full(&error),
        }
    }

    /// Prepares for the next batch, and reports free space if there is any.
    fn prepare(&mut self) {
        self.make_room(0);
        if self.spare.is_none() {
            return;
        }
        let was_full = (self.shared.health).send_if_modified(|health| {
            mem::replace(health, DiskHealth::Writable) != DiskHealth::Writable
        });
        if was_full {
            tracing::info!(dir = %self.dir.path().display(), "there is room on the disk again: changes are taken");
        }
    }

    /// Reports that the disk is full, and logs the first such report.
    fn report_disk_full(&self, error: &io::Error) {
        let dir = self.dir.path();
        let full = DiskHealth::Full {
            dir: dir.to_owned(),
            reason: error.to_string(),
        };
        let first = self.shared.health.send_if_modified(|health| {
            let first = *health == DiskHealth::Writable;
            *health = full;
            first
        });
        if first {
            tracing::error!(
                dir = %dir.display(), %error,
                "the disk under the log is full: changes are refused and leadership is handed over until there is room; \
                 make room, a restart is not needed"
            );
        }
    }

    /// Records the places of the entries of `batch`. Its first record is at `start`.
    fn settle(&mut self, batch: &[Request], start: u32) {
        let mut inner = self.shared.lock();
        let mut at = start;
        for request in batch {
            for (log_id, offset, length) in &request.entries {
                let offset = u32::try_from(*offset).expect("a frame is below 4 GiB");
                let place = RecordLocation {
                    file: Arc::clone(&self.current.file),
                    offset: at + offset,
                    length: *length,
                };
                inner.entries.place(*log_id, place);
                self.durable.last = Some(*log_id);
            }
            if let Some(change) = &request.change {
                self.durable.take(change);
            }
            at += u32::try_from(request.bytes.len()).expect("a frame is below 4 GiB");
            inner.queued_bytes -= request.bytes.len();
        }
        // The mark must be written before any request is acknowledged.
        self.mark.note(self.durable.vote, self.durable.last);
        inner.entries.evict();
        inner.entries.evict_committed();
        drop(inner);
        self.shared.shorter.notify_waiters();
    }

    /// Removes complete segments with only purged entries. The purge is already on disk.
    fn remove_purged(&mut self) {
        let Some(purged) = self.durable.purged else {
            return;
        };
        let mut removed = false;
        while let Some(oldest) = self.closed.front()
            && oldest.last_index.is_none_or(|last| last <= purged.index)
        {
            let path = &oldest.segment.path;
            if let Err(error) =
                failpoint::hit("log.remove", path).and_then(|()| std::fs::remove_file(path))
            {
                tracing::warn!(path = %path.display(), %error, "a file of the log that is not needed cannot be removed");
                break;
            }
            removed = true;
            self.closed.pop_front();
        }
        // A file name that comes back after a power failure is removed again later.
        if removed && let Err(error) = self.dir.sync() {
            tracing::warn!(dir = %self.dir.path().display(), %error, "removals are not on disk yet");
        }
    }

    /// Writes a remaining hint, or fails all waiting requests with the log's error.
    fn end(mut self, error: Option<io::Error>) {
        let shared = Arc::clone(&self.shared);
        let Some(error) = error else {
            if shared.lock().hint.is_some()
                && u64::from(self.end) + limits::LOG_CHECKPOINT_BYTES < self.current.bytes
                && let Err(error) = self.write(&[])
            {
                tracing::warn!(%error, "the committed position was not written down; it will be found again");
            }
            return;
        };
        let mut inner = shared.lock();
        tracing::error!(%error, "the log has failed");
        inner.failed = Some((error.kind(), error.to_string()));
        let waiting = mem::take(&mut inner.queue);
        drop(inner);
        for request in waiting {
            request.done.send(Err(copy(&error)));
        }
        shared.shorter.notify_waiters();
    }
}

enum WriterWake {
    Batch(Vec<Request>),
    /// It is time to check for free space again.
    Look,
    Close,
}

/// Turns `spare` into the segment that begins with `checkpoint`. Returns the offset of its next frame.
fn begin(dir: &Dir, spare: &SpareSegment, checkpoint: &Checkpoint) -> io::Result<(Segment, u32)> {
    let mut frame = record::unsealed();
    record::push(&mut frame, &Record::Checkpoint(checkpoint.clone()))?;
    let offset = u32::try_from(record::HEAD_BYTES).expect("a head is small");
    record::seal(&mut frame, checkpoint.segment, offset);
    let mut bytes = record::head().to_vec();
    bytes.extend_from_slice(&frame);
    let end = u32::try_from(bytes.len()).expect("a checkpoint is small");
    Ok((dir.adopt(spare, checkpoint.segment, &bytes)?, end))
}

fn named(segment: &Segment, what: &str, error: &io::Error) -> io::Error {
    let path = segment.path.display();
    io::Error::new(
        error.kind(),
        format!("the log's file {path} cannot be {what}: {error}"),
    )
}

fn copy(error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), error.to_string())
}
