//! Mounts of tasks that began a moment ago.
//!
//! When the last process in a mount namespace ends, the kernel takes some forty mounts apart. It waits until no
//! processor looks at them any more. Only then does it report the end: 100 to 140 µs, a tenth of the life of a task
//! that runs for moments. The holder of an open namespace takes that work over. The driver holds it for a task's first
//! moments, in a thread of its own. A longer life ends as it always did.
//!
//! One effect is visible: the kernel holds a task's empty `/run` and `/dev/shm` for as long. Mounts that the host or
//! another job owns are never kept, because their owner may want to unmount them after the end.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use rustix::fs::{CWD, Mode, OFlags};
use tracing::debug;

use crate::limits;
use crate::spawn::held;

/// Mount namespaces of tasks, the oldest first.
#[derive(Debug)]
pub(crate) struct MountNamespaceCache {
    /// The file by which a process opens the name of its own namespace; `None` without a mounted `/proc`.
    proc: Option<Arc<OwnedFd>>,
    shared: Arc<CacheState>,
}

#[derive(Debug, Default)]
struct CacheState {
    state: Mutex<State>,
    more: Condvar,
}

#[derive(Debug, Default)]
struct State {
    kept: VecDeque<(Instant, OwnedFd)>,
    /// There is a thread that lets them go.
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

    /// The directory where a process opens the name of its own namespace.
    pub(crate) fn proc(&self) -> Option<Arc<OwnedFd>> {
        self.proc.clone()
    }

    /// Keeps the namespace of a task that has just begun.
    pub(crate) fn keep(&self, namespace: OwnedFd) {
        let mut state = self.shared.lock();
        if state.kept.len() >= limits::MOUNTS_KEPT_MAX || !self.shared.has_thread(&mut state) {
            drop(state);
            // The task has just begun, so that this takes nothing apart.
            drop(namespace);
            return;
        }
        let was_empty = state.kept.is_empty();
        state.kept.push_back((Instant::now(), held(namespace)));
        drop(state);
        if was_empty {
            self.shared.more.notify_one();
        }
    }
}

impl CacheState {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins the thread, unless there is one.
    fn has_thread(self: &Arc<Self>, state: &mut State) -> bool {
        if !state.has_thread {
            let shared = Arc::clone(self);
            let begun = std::thread::Builder::new()
                .name("task-mounts".to_owned())
                .spawn(move || shared.work());
            if let Err(error) = &begun {
                debug!(%error, "no mounts are kept");
            }
            state.has_thread = begun.is_ok();
        }
        state.has_thread
    }

    /// Lets go what was kept long enough, until nothing is kept for [`limits::STARTER_IDLE`].
    fn work(&self) {
        loop {
            let state = self.lock();
            let waited = self
                .more
                .wait_timeout_while(state, limits::STARTER_IDLE, |state| state.kept.is_empty());
            let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
            if state.kept.is_empty() {
                state.has_thread = false;
                return;
            }
            let is_old = |(since, _): &(Instant, OwnedFd)| since.elapsed() >= limits::MOUNTS_KEPT;
            let old = state.kept.iter().take_while(|kept| is_old(kept)).count();
            let old: Vec<_> = state.kept.drain(..old).collect();
            drop(state);
            // One after the other, each with its wait.
            drop(old);
            std::thread::sleep(limits::MOUNTS_PAUSE);
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::pipe::{PipeFlags, pipe_with};

    use super::*;

    /// A file to keep, and the other end that shows when it is let go.
    fn kept() -> (OwnedFd, OwnedFd) {
        let (seen, kept) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        (kept, seen)
    }

    /// Waits until nobody has the other end open.
    fn wait_until_let_go(seen: &OwnedFd) {
        assert_eq!(rustix::io::read(seen, &mut [0; 1]).unwrap(), 0);
    }

    #[test]
    fn cached_mount_namespace_is_released_after_timeout() {
        let mounts = MountNamespaceCache::new();
        let begun = Instant::now();

        for _ in 0..2 {
            let (namespace, seen) = kept();
            mounts.keep(namespace);
            wait_until_let_go(&seen);
        }

        assert!(begun.elapsed() >= 2 * limits::MOUNTS_KEPT);
    }

    #[test]
    fn no_more_are_kept_than_the_bound() {
        let mounts = MountNamespaceCache::new();
        let null = crate::paths::open_null().unwrap();

        for _ in 0..2 * limits::MOUNTS_KEPT_MAX {
            mounts.keep(null.try_clone().unwrap());

            assert!(mounts.shared.lock().kept.len() <= limits::MOUNTS_KEPT_MAX);
        }
    }
}
