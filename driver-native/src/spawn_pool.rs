//! Threads that only start tasks.
//!
//! The bounding set of a process limits its capabilities. Lowering it takes one system call for each capability: forty
//! calls of two microseconds, for every task that keeps none. A child inherits the set of the thread that creates it.
//! So these threads lower their own set once and permanently, and their children have nothing to lower. Their other
//! rights are those of the driver, so they mount and open as before.
//!
//! These threads start only tasks that keep no capability. No thread that starts other tasks is created from them.

use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;
use rustix::thread::{CapabilitySet, remove_capability_from_bounding_set};
use tokio::sync::oneshot;
use tracing::warn;

use crate::isolation::capabilities::Capabilities;
use crate::limits;

thread_local! {
    /// The bounding set of this thread's children; `None` means the driver's.
    static BOUNDING: Cell<Option<Capabilities>> = const { Cell::new(None) };
}

/// Returns the bounding set of the calling thread's children.
pub(crate) fn bounding_capabilities() -> Capabilities {
    BOUNDING.get().unwrap_or_else(Capabilities::all)
}

type SpawnJob = Box<dyn FnOnce() + Send>;

/// The threads. A thread is created for a job when no thread is idle, and ends after an idle time.
#[derive(Clone, Default)]
pub(crate) struct SpawnPool {
    shared: Arc<PoolState>,
}

impl fmt::Debug for SpawnPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpawnPool").finish_non_exhaustive()
    }
}

#[derive(Default)]
struct PoolState {
    state: Mutex<State>,
    not_empty: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<SpawnJob>,
    /// Threads that wait for a job and were not woken for one.
    idle: usize,
}

impl SpawnPool {
    /// Runs `work` on one of the threads. The work runs to completion even when the caller goes away. The caller must
    /// ensure that at most [`limits::SPAWNS_MAX`] jobs run at once.
    ///
    /// # Errors
    ///
    /// An I/O error if no thread exists and none can be created, or if `work` panicked.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<T> {
        let (sender, receiver) = oneshot::channel();
        let runtime = tokio::runtime::Handle::current();
        self.push(Box::new(move || {
            let _entered = runtime.enter();
            if let Ok(done) = catch_unwind(AssertUnwindSafe(work)) {
                // A caller that went away needs no answer.
                let _gone = sender.send(done);
            }
        }))?;
        receiver
            .await
            .map_err(|_dropped| io::Error::other("it panicked"))
    }

    fn push(&self, job: SpawnJob) -> io::Result<()> {
        let mut state = self.shared.lock();
        if state.idle > 0 {
            state.idle -= 1;
            state.jobs.push_back(job);
            drop(state);
            self.shared.not_empty.notify_one();
            return Ok(());
        }
        drop(state);
        let shared = Arc::clone(&self.shared);
        let _detached = std::thread::Builder::new()
            .name("task-starter".to_owned())
            .spawn(move || {
                lower_bounding();
                job();
                shared.run_jobs();
            })?;
        Ok(())
    }
}

impl PoolState {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs jobs until none has arrived for [`limits::THREAD_IDLE_MAX`].
    fn run_jobs(&self) {
        let mut state = self.lock();
        loop {
            state.idle += 1;
            let waited =
                self.not_empty
                    .wait_timeout_while(state, limits::THREAD_IDLE_MAX, |state| {
                        state.jobs.is_empty()
                    });
            (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
            let Some(job) = state.jobs.pop_front() else {
                state.idle -= 1;
                return;
            };
            drop(state);
            job();
            state = self.lock();
        }
    }
}

/// Lowers the bounding set of the calling thread. If the kernel refuses, the children lower their own sets.
fn lower_bounding() {
    let known = Capabilities::all().numbers();
    let dropped = known
        .map(|(number, _)| CapabilitySet::from_bits_retain(1 << number))
        .map(remove_capability_from_bounding_set)
        // An older kernel does not support the newest capabilities.
        .find(|dropped| !matches!(dropped, Ok(()) | Err(Errno::INVAL)))
        .unwrap_or(Ok(()));
    match dropped {
        Ok(()) => BOUNDING.set(Some(Capabilities::EMPTY)),
        Err(error) => warn!(%error, "a thread that starts tasks keeps its bounding set"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bounding_set() -> String {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with("CapBnd"));
        line.unwrap().to_owned()
    }

    fn threads(pool: &SpawnPool) -> usize {
        pool.shared.lock().idle
    }

    #[tokio::test]
    async fn spawn_threads_drop_only_capability_bounding_set() {
        if !nix::unistd::geteuid().is_root() {
            muster_driver::fixture::skipped_here(
                "only root can lower its bounding set; run the tests as root",
            );
            return;
        }
        let rights = || std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let effective = |status: String| {
            let line = status.lines().find(|line| line.starts_with("CapEff"));
            line.unwrap().to_owned()
        };
        let (own, before) = (effective(rights()), bounding_set());
        let pool = SpawnPool::default();

        let inside =
            pool.run(move || (bounding_set(), bounding_capabilities(), effective(rights())));
        let (set, known, kept) = inside.await.unwrap();

        assert_eq!(set, "CapBnd:\t0000000000000000");
        assert_eq!(known, Capabilities::EMPTY);
        assert_eq!(kept, own);
        assert_eq!(bounding_set(), before);
        assert_eq!(bounding_capabilities(), Capabilities::all());
    }

    #[tokio::test]
    async fn one_thread_starts_one_after_the_other() {
        let pool = SpawnPool::default();
        let id = || std::thread::current().id();
        let first = pool.run(id).await.unwrap();
        while threads(&pool) == 0 {
            tokio::task::yield_now().await;
        }

        let second = pool.run(id).await.unwrap();

        assert_eq!(first, second);
    }

    #[tokio::test]
    async fn panic_becomes_error_and_spawn_thread_continues() {
        let pool = SpawnPool::default();

        let failed = pool.run(|| panic!("of the test")).await;

        assert!(failed.is_err());
        while threads(&pool) == 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(pool.run(|| 7).await.unwrap(), 7);
    }
}
