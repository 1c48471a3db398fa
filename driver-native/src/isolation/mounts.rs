//! The mounts of tasks that started recently.
//!
//! When the last process in a mount namespace ends, the kernel unmounts some forty mounts. It waits until no processor
//! uses them any more, and only then reports the end of the process. That takes 100 to 140 µs, a tenth of the life of
//! a very short task. If the driver holds the namespace open, it takes over that work in a separate thread. The driver
//! does that for a short time after a task's start. For a longer task, the kernel unmounts at the end as usual.
//!
//! One effect is visible: the kernel keeps a task's empty `/run` and `/dev/shm` for the same time. Mounts that the
//! host or another job owns are never kept, because their owner may want to unmount them after the end.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use rustix::fs::{CWD, Mode, OFlags};
use tracing::debug;

use crate::limits;
use crate::spawn::move_to_high_fd;

/// Mount namespaces of tasks, the oldest first.
#[derive(Debug)]
pub(crate) struct MountNamespaceCache {
    /// The directory through which a process opens its own namespace; `None` without a mounted `/proc`.
    proc: Option<Arc<OwnedFd>>,
    shared: Arc<CacheState>,
}

#[derive(Debug, Default)]
struct CacheState {
    state: Mutex<State>,
    not_empty: Condvar,
}

#[derive(Debug, Default)]
struct State {
    namespaces: VecDeque<(Instant, OwnedFd)>,
    /// A thread that releases the namespaces is running.
    has_thread: bool,
}

impl MountNamespaceCache {
    pub(crate) fn new() -> Self {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let proc = rustix::fs::openat(CWD, "/proc", flags, Mode::empty());
        Self {
            proc: proc.ok().map(Arc::new),
            shared: Arc::default(),
        }
    }

    /// Returns the directory through which a process opens its own namespace.
    pub(crate) fn proc_dir(&self) -> Option<Arc<OwnedFd>> {
        self.proc.clone()
    }

    /// Keeps the namespace of a task that has just started.
    pub(crate) fn insert(&self, namespace: OwnedFd) {
        let mut state = self.shared.lock();
        if state.namespaces.len() >= limits::MOUNTS_KEPT_MAX
            || !self.shared.ensure_thread(&mut state)
        {
            drop(state);
            // The task has just started, so closing the namespace unmounts nothing.
            drop(namespace);
            return;
        }
        let was_empty = state.namespaces.is_empty();
        state
            .namespaces
            .push_back((Instant::now(), move_to_high_fd(namespace)));
        drop(state);
        if was_empty {
            self.shared.not_empty.notify_one();
        }
    }
}

impl CacheState {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the thread, unless it is running. Returns whether it is running.
    fn ensure_thread(self: &Arc<Self>, state: &mut State) -> bool {
        if !state.has_thread {
            let shared = Arc::clone(self);
            let begun = std::thread::Builder::new()
                .name("task-mounts".to_owned())
                .spawn(move || shared.release_expired());
            if let Err(error) = &begun {
                debug!(%error, "no mounts are kept");
            }
            state.has_thread = begun.is_ok();
        }
        state.has_thread
    }

    /// Releases namespaces that were kept long enough, until none has been kept for [`limits::THREAD_IDLE_MAX`].
    fn release_expired(&self) {
        loop {
            let state = self.lock();
            let waited =
                self.not_empty
                    .wait_timeout_while(state, limits::THREAD_IDLE_MAX, |state| {
                        state.namespaces.is_empty()
                    });
            let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
            if state.namespaces.is_empty() {
                state.has_thread = false;
                return;
            }
            let is_old = |(since, _): &(Instant, OwnedFd)| since.elapsed() >= limits::MOUNTS_KEPT;
            let old = state
                .namespaces
                .iter()
                .take_while(|kept| is_old(kept))
                .count();
            let old: Vec<_> = state.namespaces.drain(..old).collect();
            drop(state);
            // The files are closed one after the other, because each close waits.
            drop(old);
            std::thread::sleep(limits::MOUNTS_PAUSE);
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::pipe::{PipeFlags, pipe_with};

    use super::*;

    /// Returns a file to keep, and the other end, which shows when the file is closed.
    fn kept() -> (OwnedFd, OwnedFd) {
        let (seen, kept) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        (kept, seen)
    }

    /// Waits until no code has the other end open.
    fn wait_until_closed(seen: &OwnedFd) {
        assert_eq!(rustix::io::read(seen, &mut [0; 1]).unwrap(), 0);
    }

    #[test]
    fn cached_mount_namespace_is_released_after_timeout() {
        let mounts = MountNamespaceCache::new();
        let begun = Instant::now();

        for _ in 0..2 {
            let (namespace, seen) = kept();
            mounts.insert(namespace);
            wait_until_closed(&seen);
        }

        assert!(begun.elapsed() >= 2 * limits::MOUNTS_KEPT);
    }

    #[test]
    fn no_more_are_kept_than_the_bound() {
        let mounts = MountNamespaceCache::new();
        let null = crate::paths::open_null().unwrap();

        for _ in 0..2 * limits::MOUNTS_KEPT_MAX {
            mounts.insert(null.try_clone().unwrap());

            assert!(mounts.shared.lock().namespaces.len() <= limits::MOUNTS_KEPT_MAX);
        }
    }
}
