//! How many may come at once.
//!
//! When a server starts or another one dies, a herd of agents comes. Handshakes cost a millisecond of both ends'
//! processors each, and registrations a commit: a bounded number of each is under way, so that those who are
//! connected are served meanwhile. Who finds no place for a handshake is refused before it costs anything, who
//! finds none for a registration is told when to come back. Servers always find a place.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::limits;

/// The places.
#[derive(Debug)]
pub(crate) struct Admission {
    handshakes: Arc<Semaphore>,
    registrations: Arc<Semaphore>,
}

/// A place for a handshake; servers need none.
pub(crate) type Handshake = Option<OwnedSemaphorePermit>;

impl Admission {
    /// All places are free.
    pub(crate) fn new() -> Self {
        Self {
            handshakes: Arc::new(Semaphore::new(limits::HANDSHAKES_MAX)),
            registrations: Arc::new(Semaphore::new(limits::REGISTRATIONS_MAX)),
        }
    }

    /// A place for a handshake with a server or an agent. `None`: refuse it.
    pub(crate) fn handshake(&self, is_server: bool) -> Option<Handshake> {
        if let Ok(permit) = Arc::clone(&self.handshakes).try_acquire_owned() {
            return Some(Some(permit));
        }
        is_server.then_some(None)
    }

    /// A place for an agent's registration; why there is none.
    pub(crate) fn registration(&self) -> Result<OwnedSemaphorePermit, String> {
        Arc::clone(&self.registrations)
            .try_acquire_owned()
            .map_err(|_none| {
                format!(
                    "{} agents register at this moment: come back a little later",
                    limits::REGISTRATIONS_MAX
                )
            })
    }
}
