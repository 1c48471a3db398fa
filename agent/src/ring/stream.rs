//! A FIFO that is drained into its files.

use std::cell::{Cell, RefCell};
use std::io;
use std::ops::Range;
use std::os::fd::AsFd as _;
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use muster_domain::id::Timestamp;
use muster_domain::{number, saturating};
use rustix::io::Errno;
use rustix::pipe::SpliceFlags;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::logs::RotatingFile;
use crate::ring::bucket::{Allowance, Bucket};
use crate::ring::limits::{COPY_BYTES, DELAY_GRID, DRAIN_BYTES_MAX, RETRY_MAX, RETRY_MIN};
use crate::ring::pace::{DrainStep, StreamPace};
use crate::ring::readiness::Readiness;
use crate::ring::{DetachReport, OnFull, RateLimit, StreamStats, Transfer};

/// The loop's request to a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamRequest {
    /// Drain, for as long as it is attached.
    Run,
    /// Drain the bytes in the FIFO and end, at that time at the latest.
    Finish(Instant),
    Halt,
}

/// The state of a running stream that the loop sees.
#[derive(Debug)]
pub(crate) struct StreamProgress {
    pub(crate) stats: RefCell<StreamStats>,
    activity: Cell<Activity>,
}

/// The state of a stream's files, and its activity since the last sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Activity {
    AtRest,
    /// Bytes came.
    Spoke,
    Silent,
    /// No bytes came between two sweeps: the files are closed as soon as the stream has looked once more.
    Closing,
}

impl StreamProgress {
    /// Returns whether no byte came since the previous sweep, so that the stream is woken to close its files. The
    /// loop calls it once in each sweep.
    pub(crate) fn should_close_files(&self) -> bool {
        match self.activity.get() {
            Activity::AtRest | Activity::Closing => false,
            Activity::Spoke => {
                self.activity.set(Activity::Silent);
                false
            }
            Activity::Silent => {
                self.activity.set(Activity::Closing);
                true
            }
        }
    }
}

/// A stream and all it needs.
pub(crate) struct Stream {
    fifo: Readiness,
    file: RotatingFile,
    on_full: OnFull,
    limit: Option<RateState>,
    pace: StreamPace,
    progress: Rc<StreamProgress>,
    /// Empty unless bytes are moved by [`Transfer::Copy`].
    buffer: Vec<u8>,
    /// The part of the buffer that was read and not yet written.
    held: Range<usize>,
    /// The time of the last drain that took bytes.
    drained_at: Instant,
    /// The start of the grid of long pauses: the same for all streams.
    epoch: Instant,
    retry: Duration,
}

/// The rate limit of a stream, and when bytes last exceeded it.
struct RateState {
    bucket: Bucket,
    on_limit: OnFull,
    /// The time at which bytes above the rate were last found.
    exceeded_at: Option<Instant>,
}

/// The rules for taking bytes, given to [`Stream::new`].
pub(crate) struct StreamRules {
    pub(crate) on_full: OnFull,
    pub(crate) rate: Option<RateLimit>,
    pub(crate) transfer: Transfer,
}

/// The outcome of a drain.
enum DrainOutcome {
    /// Took bytes; the FIFO may hold more.
    Some(u64),
    Nothing,
    /// The bytes cannot be written, and stay in the FIFO.
    Blocked,
    /// The bytes exceed the rate, and stay in the FIFO until then.
    Held(Instant),
    /// This number of bytes could not be written or exceeded the rate, and was thrown away.
    Dropped(u64),
}

impl Stream {
    pub(crate) fn new(
        fifo: Readiness,
        mut file: RotatingFile,
        rules: StreamRules,
        capacity: usize,
        epoch: Instant,
    ) -> Self {
        let StreamRules {
            on_full,
            rate,
            transfer,
        } = rules;
        file.hold_times();
        let limit = rate.map(|rate| RateState {
            bucket: Bucket::new(rate.bytes_per_second, epoch.elapsed()),
            on_limit: rate.on_limit,
            exceeded_at: None,
        });
        let stats = StreamStats {
            offset: file.end(),
            transfer,
            ..StreamStats::default()
        };
        Self {
            fifo,
            file,
            on_full,
            limit,
            pace: StreamPace::new(capacity as u64),
            progress: Rc::new(StreamProgress {
                stats: RefCell::new(stats),
                activity: Cell::new(Activity::AtRest),
            }),
            buffer: Vec::new(),
            held: 0..0,
            drained_at: epoch,
            epoch,
            retry: RETRY_MIN,
        }
    }

    /// Returns the state that the loop sees while the stream runs.
    pub(crate) fn progress(&self) -> Rc<StreamProgress> {
        Rc::clone(&self.progress)
    }

    /// Drains until another request comes. It is boxed, because otherwise the outer future would contain it twice.
    pub(crate) async fn run(
        mut self: Box<Self>,
        mut requests: watch::Receiver<StreamRequest>,
    ) -> DetachReport {
        loop {
            // When all senders of requests are dropped, the loop is ending.
            let alone = requests.has_changed().is_err();
            let request = *requests.borrow_and_update();
            let late =
                matches!(request, StreamRequest::Finish(deadline) if deadline <= Instant::now());
            if request == StreamRequest::Halt || late || alone {
                break;
            }
            if request != StreamRequest::Run {
                self.lift_limit();
            }
            let pause = match self.drain() {
                DrainOutcome::Some(bytes) => self.pause_after(bytes),
                DrainOutcome::Nothing if request != StreamRequest::Run => break,
                DrainOutcome::Nothing => {
                    // A silence may be long, so held time records are written before it.
                    self.file.flush_times();
                    self.close_if_silent();
                    self.wait(&mut requests).await;
                    continue;
                }
                DrainOutcome::Blocked => {
                    self.retry = (self.retry * 2).min(RETRY_MAX);
                    Some(Instant::now() + self.retry)
                }
                DrainOutcome::Held(until) => Some(until),
                DrainOutcome::Dropped(bytes) => {
                    // Even the fastest writer gets no more turns than others.
                    let soon = Instant::now() + DELAY_GRID;
                    Some(self.pause_after(bytes).map_or(soon, |wake| wake.max(soon)))
                }
            };
            match (pause, request) {
                (Some(wake), StreamRequest::Run) => sleep_until(wake, &mut requests).await,
                (Some(wake), StreamRequest::Finish(deadline)) if self.blocked() => {
                    sleep_until(wake.min(deadline), &mut requests).await;
                }
                _ => tokio::task::yield_now().await,
            }
        }
        self.fifo.cancel().await;
        self.report()
    }

    /// Closes the files and frees the buffer if there was nothing to write for a while.
    fn close_if_silent(&mut self) {
        if self.progress.activity.get() == Activity::Closing {
            self.file.rest();
            self.buffer = Vec::new();
            self.progress.activity.set(Activity::AtRest);
        }
    }

    fn blocked(&self) -> bool {
        self.progress.stats.borrow().blocked.is_some()
    }

    async fn wait(&mut self, requests: &mut watch::Receiver<StreamRequest>) {
        let ready = tokio::select! {
            ready = self.fifo.ready() => ready,
            // A closed channel is a request too: the loop below reads it as the last one given.
            _changed = requests.changed() => return,
        };
        if let Err(error) = ready {
            // A later check loses nothing, and an immediate one would spin.
            tracing::warn!(%error, "wait for a log FIFO");
            tokio::time::sleep(RETRY_MIN).await;
        }
    }

    /// The time of the next drain; `None` for at once.
    fn pause_after(&mut self, bytes: u64) -> Option<Instant> {
        self.retry = RETRY_MIN;
        let now = Instant::now();
        let since = now.duration_since(self.drained_at);
        self.drained_at = now;
        match self.pace.drained(bytes, since) {
            DrainStep::Again => None,
            DrainStep::Pause(pause) if pause < DELAY_GRID => Some(now + pause),
            // The time is never in the past: a pause spans at least one line.
            DrainStep::Pause(pause) => Some(self.round_down_to_grid(now + pause)),
        }
    }

    /// `wake` rounded down to the grid.
    fn round_down_to_grid(&self, wake: Instant) -> Instant {
        let wake = wake.duration_since(self.epoch).as_millis();
        let grid = DELAY_GRID.as_millis();
        let rounded = saturating::to_u64(wake - wake % grid);
        self.epoch + Duration::from_millis(rounded)
    }

    /// Takes the available bytes, at most [`DRAIN_BYTES_MAX`] and the amount that the rate allows.
    fn drain(&mut self) -> DrainOutcome {
        let most = match self.allowed() {
            Allowance::Bytes(bytes) => bytes.min(DRAIN_BYTES_MAX),
            Allowance::NoneUntil(until) => return self.handle_excess(self.epoch + until),
        };
        let mut taken = 0;
        self.file.set_time(now());
        while taken < most {
            let transfer = self.progress.stats.borrow().transfer;
            let moved = match transfer {
                Transfer::Splice => self.splice(most - taken),
                Transfer::Copy => self.copy(most - taken),
            };
            match moved {
                Ok(Some((moved, wanted))) => {
                    taken += moved;
                    self.count(moved);
                    if let Some(limit) = &mut self.limit {
                        limit.bucket.take(moved);
                    }
                    if moved < wanted {
                        return DrainOutcome::Some(taken);
                    }
                }
                Ok(None) if taken > 0 => return DrainOutcome::Some(taken),
                Ok(None) => return DrainOutcome::Nothing,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return self.handle_write_error(&error),
            }
        }
        if taken == DRAIN_BYTES_MAX {
            return DrainOutcome::Some(taken);
        }
        // The rate is used up: further bytes are held at once and not looked at before the next quantum.
        match self.allowed() {
            Allowance::Bytes(_) => DrainOutcome::Some(taken),
            Allowance::NoneUntil(until) => match self.handle_excess(self.epoch + until) {
                DrainOutcome::Nothing => DrainOutcome::Some(taken),
                held => held,
            },
        }
    }

    /// Returns the amount that may be taken. Counts how long bytes waited for it.
    fn allowed(&mut self) -> Allowance {
        let Some(limit) = &mut self.limit else {
            return Allowance::Bytes(u64::MAX);
        };
        if let Some(since) = limit.exceeded_at.take() {
            self.progress.stats.borrow_mut().limited += since.elapsed();
        }
        limit.bucket.allowance(self.epoch.elapsed())
    }

    /// Removes the rate limit for the last bytes of a task, which are at most the content of the FIFO.
    fn lift_limit(&mut self) {
        let exceeded_at = self.limit.take().and_then(|limit| limit.exceeded_at);
        if let Some(since) = exceeded_at {
            self.progress.stats.borrow_mut().limited += since.elapsed();
        }
    }

    /// Handles bytes that may not be taken until `until`.
    fn handle_excess(&mut self, until: Instant) -> DrainOutcome {
        let waiting = rustix::io::ioctl_fionread(&self.fifo).unwrap_or(0);
        if waiting == 0 && self.held.is_empty() {
            return DrainOutcome::Nothing;
        }
        let Some(limit) = &mut self.limit else {
            return DrainOutcome::Nothing;
        };
        limit.exceeded_at = Some(Instant::now());
        match limit.on_limit {
            OnFull::Block => DrainOutcome::Held(self.round_down_to_grid(until + DELAY_GRID)),
            OnFull::Drop => DrainOutcome::Dropped(self.discard()),
        }
    }

    /// Makes one splice call and returns the moved and the requested bytes; `None` when the FIFO is empty.
    fn splice(&mut self, most: u64) -> io::Result<Option<(u64, u64)>> {
        if !self.file.is_ready() && rustix::io::ioctl_fionread(&self.fifo)? == 0 {
            // The byte that goes into a file opens it or begins the next one.
            return Ok(None);
        }
        let (file, position, room) = self.file.room()?;
        let wanted = room.min(most);
        let length = number::index(wanted);
        let mut at = position;
        let flags = SpliceFlags::NONBLOCK;
        match rustix::pipe::splice(self.fifo.as_fd(), None, file, Some(&mut at), length, flags) {
            Ok(moved) => {
                self.file.wrote(moved as u64);
                Ok(Some((moved as u64, wanted)))
            }
            Err(Errno::AGAIN) => Ok(None),
            Err(Errno::INVAL) => {
                tracing::warn!("the log file system takes no splice: a kill may lose log bytes");
                self.progress.stats.borrow_mut().transfer = Transfer::Copy;
                self.copy(most)
            }
            Err(errno) => Err(errno.into()),
        }
    }

    /// Reads once and writes the bytes; unwritten bytes are held for the next call.
    fn copy(&mut self, most: u64) -> io::Result<Option<(u64, u64)>> {
        let wanted = usize::try_from(most).map_or(COPY_BYTES, |most| most.min(COPY_BYTES));
        if self.held.is_empty() {
            self.buffer.resize(COPY_BYTES, 0);
            match rustix::io::read(&self.fifo, &mut self.buffer[..wanted]) {
                Ok(read) => self.held = 0..read,
                Err(Errno::AGAIN) => return Ok(None),
                Err(errno) => return Err(errno.into()),
            }
        }
        let before = self.held.len();
        while !self.held.is_empty() {
            match self.file.write(&self.buffer[self.held.clone()]) {
                Ok(wrote) => self.held.start += wrote,
                Err(error) if self.held.len() == before => return Err(error),
                Err(_later) => break,
            }
        }
        let moved = before - self.held.len();
        Ok(Some((moved as u64, wanted as u64)))
    }

    fn count(&self, moved: u64) {
        self.progress.activity.set(Activity::Spoke);
        let mut stats = self.progress.stats.borrow_mut();
        stats.bytes += moved;
        stats.drains += 1;
        stats.rotations = self.file.rotations();
        stats.offset = self.file.end();
        stats.blocked = None;
    }

    fn handle_write_error(&mut self, error: &io::Error) -> DrainOutcome {
        if !self.blocked() {
            tracing::warn!(%error, files = self.file.display_path(), on_full = ?self.on_full,
                "log bytes cannot be written; check free space and the log directory");
        }
        self.progress.stats.borrow_mut().blocked = Some(error.to_string());
        match self.on_full {
            OnFull::Block => DrainOutcome::Blocked,
            OnFull::Drop => match self.discard() {
                0 => DrainOutcome::Nothing,
                dropped => DrainOutcome::Dropped(dropped),
            },
        }
    }

    /// Throws away the waiting bytes, and counts them: first on disk, see `logs::gaps`.
    fn discard(&mut self) -> u64 {
        let waiting = rustix::io::ioctl_fionread(&self.fifo).unwrap_or(0);
        let waiting = waiting.min(DRAIN_BYTES_MAX);
        let dropped = waiting + self.held.len() as u64;
        if dropped == 0 {
            return 0;
        }
        self.file.drop_bytes(dropped);
        self.progress.activity.set(Activity::Spoke);
        #[cfg(test)]
        crate::ring::tests::killed::before_a_discard();
        self.held = 0..0;
        let mut left = usize::try_from(waiting).unwrap_or(0);
        let mut scratch = [0; 4096];
        while left > 0 {
            let wanted = left.min(scratch.len());
            match rustix::io::read(&self.fifo, &mut scratch[..wanted]) {
                Ok(0) => break,
                Ok(read) => left -= read,
                Err(Errno::INTR) => {}
                // Another reader of the FIFO takes the counted bytes.
                Err(_) => break,
            }
        }
        let mut stats = self.progress.stats.borrow_mut();
        stats.dropped_bytes += dropped;
        stats.offset = self.file.end();
        dropped
    }

    fn report(&self) -> DetachReport {
        let waiting = rustix::io::ioctl_fionread(&self.fifo).unwrap_or(0);
        let left_bytes = waiting + self.held.len() as u64;
        DetachReport {
            stats: self.progress.stats.borrow().clone(),
            left_bytes,
        }
    }
}

fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    Timestamp(saturating::nanos(since.unwrap_or_default()))
}

/// Sleeps until `wake`, or until another request comes.
async fn sleep_until(wake: Instant, requests: &mut watch::Receiver<StreamRequest>) {
    tokio::select! {
        () = tokio::time::sleep_until(wake) => {}
        _changed = requests.changed() => {}
    }
}

#[cfg(test)]
mod tests {
    use super::{Activity, Cell, RefCell, StreamProgress, StreamStats};

    fn progress(activity: Activity) -> StreamProgress {
        StreamProgress {
            stats: RefCell::new(StreamStats::default()),
            activity: Cell::new(activity),
        }
    }

    /// The first sweep after a byte begins the silence, the second ends it, and no later one wakes the stream again.
    #[test]
    fn second_idle_sweep_wakes_stream_once() {
        let progress = progress(Activity::Spoke);

        let woken = [(); 4].map(|()| progress.should_close_files());

        assert_eq!(woken, [false, true, false, false]);
        assert_eq!(progress.activity.get(), Activity::Closing);
    }

    #[test]
    fn stream_at_rest_is_not_woken() {
        let progress = progress(Activity::AtRest);

        assert!(!progress.should_close_files() && !progress.should_close_files());
    }
}
