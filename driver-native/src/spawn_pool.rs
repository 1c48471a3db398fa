//! Threads that start tasks and do nothing else.
//!
//! The bounding set of a process is the most of root's powers that it can have. One system call lowers it for each
//! power: forty, two microseconds each, for every task that keeps none. Children have the set of the thread that makes
//! them. So these threads lower their own once, for good, and their children have nothing to lower. Their other rights
//! are the driver's: they mount and open as before.
//!
//! Only tasks that keep no power at all are started here, and no thread is begun from here that starts others.

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
    /// The most powers that children of this thread can have; `None` means the driver's.
    static BOUNDING: Cell<Option<Capabilities>> = const { Cell::new(None) };
}

/// The powers that children of the calling thread can have at most, as far as it lowered them.
pub(crate) fn bounding() -> Capabilities {
    BOUNDING.get().unwrap_or_else(Capabilities::all)
}

type SpawnJob = Box<dyn FnOnce() + Send>;

/// The threads. They are begun when there is work that none of them waits for, and end when there is none for a while.
#[derive(Clone, Default)]
pub(crate) struct SpawnPool {
    shared: Arc<PoolState>,
}

impl fmt::Debug for SpawnPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Starters").finish_non_exhaustive()
    }
}

#[derive(Default)]
struct PoolState {
    state: Mutex<State>,
    more: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<SpawnJob>,
    /// Threads that wait for a job and were not woken for one.
    idle: usize,
}

impl SpawnPool {
    /// Runs `work` on one of the threads, to its end even when the caller goes away. The caller must see to it that no
    /// more than [`limits::SPAWNS_MAX`] run at once.
    ///
    /// # Errors
    ///
    /// An I/O error if no thread exists and none can be made, or if `work` panicked.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<T> {
        let (sender, receiver) = oneshot::channel();
        let runtime = tokio::runtime::Handle::current();
        self.push(Box::new(move || {
            let _entered = runtime.enter();
            if let Ok(done) = catch_unwind(AssertUnwindSafe(work)) {
                // A caller that has gone away needs no answer.
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
            self.shared.more.notify_one();
            return Ok(());
        }
        drop(state);
        let shared = Arc::clone(&self.shared);
        let _detached = std::thread::Builder::new()
            .name("task-starter".to_owned())
            .spawn(move || {
                lower_bounding();
                job();
                shared.work();
            })?;
        Ok(())
    }
}

impl PoolState {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does what comes, until nothing came for [`limits::STARTER_IDLE`].
    fn work(&self) {
        let mut state = self.lock();
        loop {
            state.idle += 1;
            let waited = self
                .more
                .wait_timeout_while(state, limits::STARTER_IDLE, |state| state.jobs.is_empty());
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

/// Gives up what the calling thread can hand on to its children. Where that is refused, they lower it themselves.
fn lower_bounding() {
    let known = Capabilities::all().numbers();
    let dropped = known
        .map(|(number, _)| CapabilitySet::from_bits_retain(1 << number))
        .map(remove_capability_from_bounding_set)
        // A kernel does not know the newest.
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

    fn threads(starters: &SpawnPool) -> usize {
        starters.shared.lock().idle
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
        let starters = SpawnPool::default();

        let inside = starters.run(move || (bounding_set(), bounding(), effective(rights())));
        let (set, known, kept) = inside.await.unwrap();

        assert_eq!(set, "CapBnd:\t0000000000000000");
        assert_eq!(known, Capabilities::EMPTY);
        assert_eq!(kept, own);
        assert_eq!(bounding_set(), before);
        assert_eq!(bounding(), Capabilities::all());
    }

    #[tokio::test]
    async fn one_thread_starts_one_after_the_other() {
        let starters = SpawnPool::default();
        let id = || std::thread::current().id();
        let first = starters.run(id).await.unwrap();
        while threads(&starters) == 0 {
            tokio::task::yield_now().await;
        }

        let second = starters.run(id).await.unwrap();

        assert_eq!(first, second);
    }

    #[tokio::test]
    async fn panic_becomes_error_and_spawn_thread_continues() {
        let starters = SpawnPool::default();

        let failed = starters.run(|| panic!("of the test")).await;

        assert!(failed.is_err());
        while threads(&starters) == 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(starters.run(|| 7).await.unwrap(), 7);
    }
}
