//! Bounds on simultaneous handshakes and registrations.
//!
//! When a server starts or another one dies, many agents connect at once. A handshake costs each end a millisecond
//! of processor time, and a registration costs a commit. The bounds keep the service for connected agents running.
//! Without a free place, a handshake is refused before it costs anything. Without a free place, a registration is
//! refused with a request to retry later. Handshakes of servers are never refused.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::limits;

/// The places for handshakes and registrations.
#[derive(Debug)]
pub(crate) struct Admission {
    handshakes: Arc<Semaphore>,
    registrations: Arc<Semaphore>,
}

/// A place for a handshake; servers may go without one.
pub(crate) type Handshake = Option<OwnedSemaphorePermit>;

impl Admission {
    /// Creates the places; all are free.
    pub(crate) fn new() -> Self {
        Self {
            handshakes: Arc::new(Semaphore::new(limits::HANDSHAKES_MAX)),
            registrations: Arc::new(Semaphore::new(limits::REGISTRATIONS_MAX)),
        }
    }

    /// Takes a place for a handshake with a server or an agent. `None`: the caller refuses the handshake.
    pub(crate) fn handshake(&self, is_server: bool) -> Option<Handshake> {
        if let Ok(permit) = Arc::clone(&self.handshakes).try_acquire_owned() {
            return Some(Some(permit));
        }
        is_server.then_some(None)
    }

    /// Takes a place for an agent's registration, or returns the reason for its refusal.
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
