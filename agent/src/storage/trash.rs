//! The trash: destroyed directories wait here for their deletion in the background.
//!
//! A directory is discarded by one rename within its file system. The trash is the queue: a crash at any point leaves
//! entries that the next agent finds. Memory holds a bounded number of names. A few threads of the lowest priority
//! delete ([`delete`]); they have the usual priority while a caller waits for them. They wait while any task is
//! starting ([`start_gate`]). An entry that cannot be deleted is reported, counted and tried again after a pause. The
//! threads continue with other entries meanwhile.
//!
//! Absent: the choice and time of a destroy (agent-core's `gc`), and asking the allocation's driver first (`gc`).

mod delete;
mod limits;
mod start_gate;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use muster_driver::beneath;
use rustix::fs::{Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use rustix::process::Pid;
use tokio::sync::watch;

use crate::sys::IoPriority;

use self::delete::Deleter;
use self::limits::{
    NAMES_MAX, NICENESS, REFUSED_MAX, RETRY_PAUSE_MAX, RETRY_PAUSE_MIN, START_WAIT_MAX, THREADS_MAX,
};

pub use self::delete::{DeleteCounts, DeleteError};
use self::start_gate::StartGate;

/// Name of the trash of a directory that is on another file system than the first trash.
const SIBLING_TRASH: &str = ".trash";
/// The magic number of ext2, ext3 and ext4 in `statfs(2)`.
const EXT4_MAGIC: i64 = 0xEF53;

/// The contents of the trash and its counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrashStatus {
    /// Entries known to wait; more may be in the trash when it is [`TrashStatus::unread`].
    pub waiting: usize,
    /// Entries that are being deleted.
    pub deleting: usize,
    /// Whether the trash may contain entries that were not read yet.
    pub unread: bool,
    /// Entries that could not be deleted and are tried again, each with the reason.
    pub refused: Vec<(String, String)>,
    /// Entries deleted since the start.
    pub entries: u64,
    /// Everything deleted since the start.
    pub deleted: DeleteCounts,
    /// Deletions that failed since the start.
    pub failures: u64,
    /// Time that all threads together spent on deleting.
    pub busy: Duration,
}

/// The counts of a trash since the start, in short.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TrashCounts {
    pub(crate) deleted: DeleteCounts,
    pub(crate) failures: u64,
    /// Whether entries that can be deleted are left.
    pub(crate) deleting: bool,
}

/// The trash of a data directory, and the threads that empty it.
#[derive(Debug)]
pub struct Trash {
    shared: Arc<TrashQueue>,
    threads: Vec<JoinHandle<()>>,
}

/// An entry: the index of its root, and its name there.
type TrashEntry = (usize, CString);

#[derive(Debug)]
struct TrashQueue {
    /// Directories whose entries are trash. The first exists from the start.
    roots: Mutex<Vec<(PathBuf, Arc<OwnedFd>)>>,
    queue: Mutex<Queue>,
    /// Notified when there is work, and when the threads are to end.
    wakeup: Condvar,
    stop: AtomicBool,
    set_aside_counter: AtomicU64,
    priority: Mutex<DeletePriority>,
    start_gate: StartGate,
    /// The number of times that the last deletable entry was deleted.
    emptied: watch::Sender<u64>,
}

/// Whether a caller waits for the deletion, and the threads that delete.
#[derive(Debug, Default)]
struct DeletePriority {
    urgent: bool,
    threads: Vec<Pid>,
}

impl DeletePriority {
    /// Sets the priority of one thread.
    fn apply(&self, thread: Pid) {
        let (class, niceness) = if self.urgent {
            (IoPriority::Default, 0)
        } else {
            (IoPriority::Idle, NICENESS)
        };
        if let Err(error) = crate::sys::set_io_priority(thread, class) {
            tracing::debug!(%error, "the disk priority of deletion stays as it is");
        }
        // On Linux niceness applies to a single thread. Deleting from memory-backed and cached directories only takes
        // processor time.
        if let Err(error) = rustix::process::setpriority_process(Some(thread), niceness) {
            tracing::debug!(%error, "the processor priority of deletion stays as it is");
        }
    }

    fn set(&mut self, is_urgent: bool) {
        if self.urgent != is_urgent {
            self.urgent = is_urgent;
            self.threads.iter().for_each(|thread| self.apply(*thread));
        }
    }
}

#[derive(Debug, Default)]
struct Queue {
    names: VecDeque<TrashEntry>,
    claimed: BTreeSet<TrashEntry>,
    refused: BTreeMap<TrashEntry, DeleteRetry>,
    /// Whether the roots may contain names that were not read yet.
    unread: bool,
    entries: u64,
    deleted: DeleteCounts,
    failures: u64,
    busy: Duration,
}

#[derive(Debug)]
struct DeleteRetry {
    tries: u32,
    at: Instant,
    why: String,
}

impl Queue {
    fn is_idle(&self) -> bool {
        self.names.is_empty() && self.claimed.is_empty() && !self.unread
    }

    /// The refused entry that is tried next, and the time of that attempt.
    fn next_refused(&self) -> Option<(Instant, TrashEntry)> {
        let waiting = self.refused.iter();
        let waiting = waiting.filter(|(entry, _)| !self.claimed.contains(*entry));
        let next = waiting.min_by_key(|(_, refusal)| refusal.at);
        next.map(|(entry, refusal)| (refusal.at, entry.clone()))
    }

    fn is_known(&self, entry: &TrashEntry) -> bool {
        self.claimed.contains(entry) || self.refused.contains_key(entry)
    }
}

impl Trash {
    /// Deletes the entries of `dir`, which is made if it does not exist. The number of threads suits its file system.
    /// `parallel` trees may be deleted at a time (`gc_parallel_destroys`).
    ///
    /// # Errors
    ///
    /// If the directory or a thread cannot be made.
    pub fn start(dir: &Path, parallel: usize) -> io::Result<Self> {
        let threads = threads(dir, parallel);
        Self::with_threads(dir, threads)
    }

    /// Starts the trash with this number of threads.
    ///
    /// # Errors
    ///
    /// If the directory or a thread cannot be made.
    pub fn with_threads(dir: &Path, threads: usize) -> io::Result<Self> {
        Self::with_start_gate(dir, threads, StartGate::new(START_WAIT_MAX))
    }

    fn with_start_gate(dir: &Path, threads: usize, start_gate: StartGate) -> io::Result<Self> {
        let shared = Arc::new(TrashQueue {
            roots: Mutex::default(),
            queue: Mutex::default(),
            wakeup: Condvar::new(),
            stop: AtomicBool::new(false),
            set_aside_counter: AtomicU64::new(0),
            priority: Mutex::default(),
            start_gate,
            emptied: watch::Sender::new(0),
        });
        shared.add_root(dir)?;
        let mut trash = Self {
            shared,
            threads: Vec::new(),
        };
        for number in 0..threads.clamp(1, THREADS_MAX) {
            let shared = Arc::clone(&trash.shared);
            let thread = std::thread::Builder::new()
                .name(format!("muster-trash-{number}"))
                .spawn(move || delete_entries(&shared))?;
            trash.threads.push(thread);
        }
        Ok(trash)
    }

    /// Discards `dir` under `name` by one rename. A missing `dir` is success.
    ///
    /// # Errors
    ///
    /// The error of the kernel; `dir` was not moved.
    pub fn discard(&self, dir: &Path, name: &str) -> io::Result<()> {
        let first = self.shared.root(0);
        let moved = match rename(dir, &first, name) {
            Err(Errno::XDEV) => {
                let sibling = dir.parent().unwrap_or(dir).join(SIBLING_TRASH);
                let root = self.shared.add_root(&sibling)?;
                rename(dir, &self.shared.root(root), name)
            }
            moved => moved,
        };
        match moved {
            Ok(()) => {
                self.wake();
                Ok(())
            }
            Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Adds the trash next to `dir`, if `dir` is on another file system. The threads then also delete entries that an
    /// earlier agent left there.
    pub fn add_sibling_root(&self, dir: &Path) {
        let sibling = dir.join(SIBLING_TRASH);
        if sibling.is_dir()
            && let Err(error) = self.shared.add_root(&sibling)
        {
            tracing::warn!(path = %sibling.display(), %error, "the trash there cannot be emptied");
        }
    }

    /// Raises the priority of the threads, because a caller waits for the current and next deletions. The threads keep
    /// the usual priority until every deletable entry is deleted, and meanwhile wait only for starts. On a busy machine
    /// they would hardly ever run otherwise.
    pub fn raise_priority(&self) {
        self.shared.lock_priority().set(true);
    }

    /// Announces a start. Until the returned guard is dropped, deletion waits before each file, at most for the time
    /// that a start takes.
    #[must_use]
    pub fn start_of(&self) -> StartGuard {
        self.shared.start_gate.begin_start();
        StartGuard {
            shared: Arc::clone(&self.shared),
        }
    }

    /// Retries refused entries at once.
    pub fn retry(&self) {
        {
            let mut queue = self.shared.locked();
            for refusal in queue.refused.values_mut() {
                refusal.at = Instant::now();
            }
        }
        self.shared.wakeup.notify_all();
    }

    /// The contents of the trash and its counts.
    #[must_use]
    pub fn state(&self) -> TrashStatus {
        let queue = self.shared.locked();
        TrashStatus {
            waiting: queue.names.len(),
            deleting: queue.claimed.len(),
            unread: queue.unread,
            refused: queue
                .refused
                .iter()
                .map(|((_, name), refusal)| {
                    (name.to_string_lossy().into_owned(), refusal.why.clone())
                })
                .collect(),
            entries: queue.entries,
            deleted: queue.deleted,
            failures: queue.failures,
            busy: queue.busy,
        }
    }

    /// The counts of the trash, without visiting each entry.
    pub(crate) fn counts(&self) -> TrashCounts {
        let queue = self.shared.locked();
        TrashCounts {
            deleted: queue.deleted,
            failures: queue.failures,
            deleting: !queue.is_idle(),
        }
    }

    /// Whether every deletable entry is deleted: no entry waits and none is being deleted. Refused entries do not
    /// count.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.shared.locked().is_idle()
    }

    /// Returns when every deletable entry is deleted.
    pub async fn emptied(&self) {
        let mut times = self.times_emptied();
        while !self.is_idle() {
            // The sender lives as long as `self`.
            drop(times.changed().await);
        }
    }

    /// Changes whenever the last deletable entry was deleted.
    pub(crate) fn times_emptied(&self) -> watch::Receiver<u64> {
        self.shared.emptied.subscribe()
    }

    /// Ends the threads, also in the middle of a tree. The next agent continues.
    pub fn stop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        {
            // Under the lock, every thread that read the old flag is already waiting for the notification.
            let _queue = self.shared.locked();
            self.shared.wakeup.notify_all();
        }
        self.shared.start_gate.wake();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread that deletes had panicked");
            }
        }
    }

    /// Notifies the threads that the trash may have new entries.
    fn wake(&self) {
        self.shared.locked().unread = true;
        self.shared.wakeup.notify_one();
    }
}

/// A running start, which has precedence over deletions.
#[derive(Debug)]
pub struct StartGuard {
    shared: Arc<TrashQueue>,
}

impl Drop for StartGuard {
    fn drop(&mut self) {
        self.shared.start_gate.end_start();
    }
}

impl Drop for Trash {
    fn drop(&mut self) {
        self.stop();
    }
}

impl TrashQueue {
    fn lock_priority(&self) -> MutexGuard<'_, DeletePriority> {
        // Each change leaves the value valid.
        self.priority.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that every deletable entry is deleted.
    fn mark_emptied(&self) {
        self.lock_priority().set(false);
        self.emptied.send_modify(|times| *times += 1);
    }

    fn locked(&self) -> MutexGuard<'_, Queue> {
        // A panic elsewhere leaves the queue usable; at worst an entry stays claimed.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes and opens a trash, unless it is known; returns its index.
    fn add_root(&self, dir: &Path) -> io::Result<usize> {
        let mut roots = self.roots.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = roots.iter().position(|(path, _)| path == dir) {
            return Ok(at);
        }
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(dir)?;
        let fd = beneath::open_top(dir, OFlags::RDONLY)?;
        roots.push((dir.to_owned(), Arc::new(fd)));
        let at = roots.len() - 1;
        drop(roots);
        self.locked().unread = true;
        self.wakeup.notify_one();
        Ok(at)
    }

    fn root(&self, at: usize) -> Arc<OwnedFd> {
        let roots = self.roots.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&roots[at].1)
    }

    fn roots_len(&self) -> usize {
        let roots = self.roots.lock().unwrap_or_else(PoisonError::into_inner);
        roots.len()
    }

    /// Waits for an entry; `None` when the trash is closed.
    fn claim(&self) -> Option<TrashEntry> {
        let mut queue = self.locked();
        loop {
            if self.stop.load(Ordering::Relaxed) {
                return None;
            }
            if let Some(entry) = queue.names.pop_front() {
                if !queue.names.is_empty() {
                    self.wakeup.notify_one();
                }
                queue.claimed.insert(entry.clone());
                return Some(entry);
            }
            if queue.unread {
                self.read(&mut queue);
                if queue.is_idle() {
                    self.mark_emptied();
                }
                continue;
            }
            let now = Instant::now();
            let due = queue.next_refused();
            match due {
                Some((at, entry)) if at <= now => {
                    queue.claimed.insert(entry.clone());
                    return Some(entry);
                }
                Some((at, _)) => {
                    let waited = self.wakeup.wait_timeout(queue, at - now);
                    queue = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
                None => {
                    let waited = self.wakeup.wait(queue);
                    queue = waited.unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }

    /// Fills the queue from the roots. They are read again until all their names are known.
    fn read(&self, queue: &mut Queue) {
        queue.unread = false;
        for at in 0..self.roots_len() {
            let entries = rustix::fs::Dir::read_from(self.root(at).as_fd());
            let entries = match entries {
                Ok(entries) => entries,
                Err(error) => {
                    tracing::error!(%error, "the trash cannot be read");
                    continue;
                }
            };
            for entry in entries.filter_map(Result::ok) {
                let name = entry.file_name();
                if name == c"." || name == c".." {
                    continue;
                }
                let entry = (at, name.to_owned());
                if queue.is_known(&entry) {
                    continue;
                }
                if queue.names.len() >= NAMES_MAX {
                    queue.unread = true;
                    return;
                }
                queue.names.push_back(entry);
            }
        }
    }

    /// Records whether an entry was deleted.
    fn record_result(
        &self,
        entry: &TrashEntry,
        deleted: DeleteCounts,
        result: Result<(), DeleteError>,
        took: Duration,
    ) {
        let mut queue = self.locked();
        queue.claimed.remove(entry);
        queue.deleted.add(deleted);
        queue.busy += took;
        if deleted.set_aside > 0 {
            queue.unread = true;
        }
        match result {
            Ok(()) => {
                queue.entries += 1;
                queue.refused.remove(entry);
                tracing::debug!(
                    entry = %entry.1.to_string_lossy(), files = deleted.files, dirs = deleted.dirs,
                    bytes = deleted.bytes, mounts = deleted.mounts, ?took,
                    "something that was destroyed is deleted"
                );
            }
            Err(DeleteError::Stopped) => queue.unread = true,
            Err(error) => refuse(&mut queue, entry, &error),
        }
        if queue.is_idle() {
            self.mark_emptied();
        }
    }
}

fn refuse(queue: &mut Queue, entry: &TrashEntry, error: &DeleteError) {
    queue.failures += 1;
    let tries = queue.refused.get(entry).map_or(0, |refusal| refusal.tries);
    let pause = RETRY_PAUSE_MIN
        .saturating_mul(1 << tries.min(16))
        .min(RETRY_PAUSE_MAX);
    tracing::warn!(
        entry = %entry.1.to_string_lossy(), %error, ?pause, tries,
        "something that was destroyed cannot be deleted; it is tried again"
    );
    if queue.refused.len() >= REFUSED_MAX && !queue.refused.contains_key(entry) {
        return;
    }
    let refusal = DeleteRetry {
        tries: tries + 1,
        at: Instant::now() + pause,
        why: error.to_string(),
    };
    queue.refused.insert(entry.clone(), refusal);
}

/// The main loop of a thread.
fn delete_entries(shared: &TrashQueue) {
    {
        let mut priority = shared.lock_priority();
        let thread = rustix::thread::gettid();
        priority.apply(thread);
        priority.threads.push(thread);
    }
    let mut deleter = Deleter::new(&shared.stop, &shared.set_aside_counter, &shared.start_gate);
    while let Some(entry) = shared.claim() {
        let begun = Instant::now();
        let (deleted, result) = deleter.delete(shared.root(entry.0).as_fd(), &entry.1);
        shared.record_result(&entry, deleted, result, begun.elapsed());
    }
}

/// The number of threads for `parallel` trees at a time.
///
/// On ext4 a deletion mostly waits for the journal. Eight threads deleted 3.1 times as many directories as one thread,
/// and twice as many as two. xfs and tmpfs were fastest with as many threads as the machine had cores, two.
fn threads(dir: &Path, parallel: usize) -> usize {
    let parent = dir.ancestors().find(|path| path.exists());
    let stat = parent.map(rustix::fs::statfs);
    let is_ext4 = matches!(stat, Some(Ok(stat)) if stat.f_type == EXT4_MAGIC);
    if is_ext4 { parallel * 4 } else { parallel }
}

/// Moves `dir` into `trash` as `name`, after removing flags and mounts that prevent a move.
fn rename(dir: &Path, trash: &OwnedFd, name: &str) -> Result<(), Errno> {
    let attempt = || {
        let cwd = rustix::fs::CWD;
        rustix::fs::renameat_with(cwd, dir, trash, name, RenameFlags::NOREPLACE)
    };
    match attempt() {
        // The directory was discarded before, and an agent made it again. Both are deleted.
        Err(Errno::EXIST) => {
            let cwd = rustix::fs::CWD;
            let new_name = format!("{name}.{:016x}", free_number(trash, name));
            rustix::fs::renameat_with(cwd, dir, trash, new_name, RenameFlags::NOREPLACE)
        }
        Err(Errno::PERM) => {
            if let (Some(parent), Some(last)) = (dir.parent(), dir.file_name())
                && let Ok(last) = CString::new(last.as_encoded_bytes())
            {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
                let parent = rustix::fs::open(parent, flags, Mode::empty())?;
                delete::clear_flags(parent.as_fd(), &last);
            }
            attempt()
        }
        Err(Errno::BUSY) => {
            rustix::mount::unmount(dir, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)?;
            attempt()
        }
        done => done,
    }
}

/// A number for which no entry `name.<number>` exists.
fn free_number(trash: &OwnedFd, name: &str) -> u64 {
    let taken = |number: &u64| {
        let name = format!("{name}.{number:016x}");
        rustix::fs::statat(trash, name, rustix::fs::AtFlags::SYMLINK_NOFOLLOW).is_ok()
    };
    (0..u64::MAX).find(|number| !taken(number)).unwrap_or(0)
}

#[cfg(test)]
mod tests;
