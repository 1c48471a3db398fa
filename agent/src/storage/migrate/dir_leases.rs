//! Which allocations' directories are being read for another node, so that nobody throws them away meanwhile.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use muster_domain::id::AllocId;
use tokio::sync::{Notify, Semaphore};

use crate::limits::{LENDINGS_MAX, LENDINGS_WAITING_MAX};

/// The node's leases.
#[derive(Debug)]
pub(crate) struct DirLeases {
    /// Places for those that are read, [`LENDINGS_MAX`].
    pub(super) places: Arc<Semaphore>,
    /// Places for those and whoever waits for one of them, [`LENDINGS_WAITING_MAX`].
    pub(super) queue: Semaphore,
    known: Mutex<BTreeMap<AllocId, State>>,
    returned: Notify,
}

/// How an allocation stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// So many read it.
    Lent(usize),
    /// It is to go when so many have read it; nobody else gets it.
    Leaving(usize),
}

impl Default for DirLeases {
    fn default() -> Self {
        Self {
            places: Arc::new(Semaphore::new(LENDINGS_MAX)),
            queue: Semaphore::new(LENDINGS_WAITING_MAX),
            known: Mutex::default(),
            returned: Notify::new(),
        }
    }
}

/// Keeps an allocation's directories where they are until it is dropped.
#[derive(Debug)]
pub(super) struct DirLease {
    leases: Arc<DirLeases>,
    alloc_id: AllocId,
}

impl DirLeases {
    /// Keeps the directories of an allocation; `None` if they are about to go.
    pub(super) fn lease(self: &Arc<Self>, alloc_id: AllocId) -> Option<DirLease> {
        let mut known = self.locked();
        match known.entry(alloc_id).or_insert(State::Lent(0)) {
            State::Lent(readers) => *readers += 1,
            State::Leaving(_) => return None,
        }
        drop(known);
        let leases = Arc::clone(self);
        Some(DirLease { leases, alloc_id })
    }

    /// Whether somebody reads them.
    pub(crate) fn has(&self, alloc_id: AllocId) -> bool {
        self.locked().contains_key(&alloc_id)
    }

    /// Waits until nobody reads them. Nobody gets them any more, until [`Self::left`].
    pub(crate) async fn leave(&self, alloc_id: AllocId) {
        loop {
            let returned = self.returned.notified();
            tokio::pin!(returned);
            // What is returned from here on is heard of.
            returned.as_mut().enable();
            if self.mark_leaving(alloc_id) == 0 {
                return;
            }
            returned.await;
        }
    }

    /// They are gone.
    pub(crate) fn left(&self, alloc_id: AllocId) {
        self.locked().remove(&alloc_id);
    }

    fn mark_leaving(&self, alloc_id: AllocId) -> usize {
        let mut known = self.locked();
        let state = known.entry(alloc_id).or_insert(State::Leaving(0));
        let (State::Lent(readers) | State::Leaving(readers)) = *state;
        *state = State::Leaving(readers);
        readers
    }

    fn give_back(&self, alloc_id: AllocId) {
        let mut known = self.locked();
        match known.get_mut(&alloc_id) {
            Some(State::Lent(1)) => drop(known.remove(&alloc_id)),
            Some(State::Lent(readers) | State::Leaving(readers)) => *readers -= 1,
            None => {}
        }
        drop(known);
        self.returned.notify_waiters();
    }

    fn locked(&self) -> MutexGuard<'_, BTreeMap<AllocId, State>> {
        // A panic elsewhere leaves the map whole: each change of it is one call.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for DirLease {
    fn drop(&mut self) {
        self.leases.give_back(self.alloc_id);
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
        let mut leaving = pin!(leases.leave(ALLOC));
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
        leases.left(ALLOC);
        assert!(leases.lease(ALLOC).is_some());
    }
}
