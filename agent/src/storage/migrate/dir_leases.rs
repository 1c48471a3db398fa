//! The allocations whose directories are being read for another node. The leases keep the directories from being
//! discarded meanwhile.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use muster_domain::id::AllocId;
use tokio::sync::{Notify, Semaphore};

use crate::limits::{LENDINGS_MAX, LENDINGS_WAITING_MAX};

/// The node's leases.
#[derive(Debug)]
pub(crate) struct DirLeases {
    /// Permits for directories that are being read, [`LENDINGS_MAX`].
    pub(super) read_permits: Arc<Semaphore>,
    /// Permits for requests that read or wait to read, [`LENDINGS_WAITING_MAX`].
    pub(super) queue: Semaphore,
    states: Mutex<BTreeMap<AllocId, State>>,
    lease_ended: Notify,
}

/// The state of an allocation's leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The number of readers.
    Lent(usize),
    /// The number of readers that are left before the directories are removed. No new reader is admitted.
    Leaving(usize),
}

impl Default for DirLeases {
    fn default() -> Self {
        Self {
            read_permits: Arc::new(Semaphore::new(LENDINGS_MAX)),
            queue: Semaphore::new(LENDINGS_WAITING_MAX),
            states: Mutex::default(),
            lease_ended: Notify::new(),
        }
    }
}

/// Keeps an allocation's directories in their place until it is dropped.
#[derive(Debug)]
pub(super) struct DirLease {
    leases: Arc<DirLeases>,
    alloc_id: AllocId,
}

impl DirLeases {
    /// Takes a lease on the directories of an allocation; `None` if they will be removed.
    pub(super) fn lease(self: &Arc<Self>, alloc_id: AllocId) -> Option<DirLease> {
        let mut states = self.locked();
        match states.entry(alloc_id).or_insert(State::Lent(0)) {
            State::Lent(readers) => *readers += 1,
            State::Leaving(_) => return None,
        }
        drop(states);
        let leases = Arc::clone(self);
        Some(DirLease { leases, alloc_id })
    }

    /// Whether the directories are leased or about to be removed.
    pub(crate) fn has(&self, alloc_id: AllocId) -> bool {
        self.locked().contains_key(&alloc_id)
    }

    /// Waits until the last reader has ended. No new reader is admitted until [`Self::forget`].
    pub(crate) async fn wait_for_readers(&self, alloc_id: AllocId) {
        loop {
            let lease_ended = self.lease_ended.notified();
            tokio::pin!(lease_ended);
            // From here on the end of a lease wakes this future.
            lease_ended.as_mut().enable();
            if self.mark_leaving(alloc_id) == 0 {
                return;
            }
            lease_ended.await;
        }
    }

    /// Takes in that the directories are gone.
    pub(crate) fn forget(&self, alloc_id: AllocId) {
        self.locked().remove(&alloc_id);
    }

    fn mark_leaving(&self, alloc_id: AllocId) -> usize {
        let mut states = self.locked();
        let state = states.entry(alloc_id).or_insert(State::Leaving(0));
        let (State::Lent(readers) | State::Leaving(readers)) = *state;
        *state = State::Leaving(readers);
        readers
    }

    fn end_lease(&self, alloc_id: AllocId) {
        let mut states = self.locked();
        match states.get_mut(&alloc_id) {
            Some(State::Lent(1)) => drop(states.remove(&alloc_id)),
            Some(State::Lent(readers) | State::Leaving(readers)) => *readers -= 1,
            None => {}
        }
        drop(states);
        self.lease_ended.notify_waiters();
    }

    fn locked(&self) -> MutexGuard<'_, BTreeMap<AllocId, State>> {
        // A panic elsewhere leaves the map valid, because each change of it is one call.
        self.states.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for DirLease {
    fn drop(&mut self) {
        self.leases.end_lease(self.alloc_id);
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future as _;
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    const ALLOC: AllocId = AllocId([7; 16]);

    #[test]
    fn directories_are_released_after_last_reader() {
        let leases = Arc::new(DirLeases::default());
        let (one, two) = (leases.lease(ALLOC), leases.lease(ALLOC));
        let mut leaving = pin!(leases.wait_for_readers(ALLOC));
        let mut context = Context::from_waker(Waker::noop());

        let mut has_left = || leaving.as_mut().poll(&mut context).is_ready();
        assert!(!has_left());
        drop(one);
        assert!(!has_left());
        drop(two);

        assert!(has_left());
    }

    #[test]
    fn leaving_dir_is_not_leased() {
        let leases = Arc::new(DirLeases::default());
        let lease = leases.lease(ALLOC);
        leases.mark_leaving(ALLOC);

        assert!(leases.lease(ALLOC).is_none());
        drop(lease);
        assert!(leases.lease(ALLOC).is_none());
        leases.forget(ALLOC);
        assert!(leases.lease(ALLOC).is_some());
    }
}
