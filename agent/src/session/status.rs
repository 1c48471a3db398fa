//! The node's state towards the control plane, which the session and the rest of the agent share.

use std::time::{Duration, Instant};

use muster_domain::id::LogIndex;
use quinn::Connection;
use tokio::sync::watch;

/// Shared by the session and the node's loop.
#[derive(Debug)]
pub(crate) struct ControlPlaneStatus {
    known: watch::Sender<LogIndex>,
    lease: watch::Sender<Option<Instant>>,
    last_contact: watch::Sender<Option<Instant>>,
    server: watch::Sender<Option<Connection>>,
}

impl Default for ControlPlaneStatus {
    fn default() -> Self {
        Self {
            known: watch::Sender::new(LogIndex(0)),
            lease: watch::Sender::new(None),
            last_contact: watch::Sender::new(None),
            server: watch::Sender::new(None),
        }
    }
}

impl ControlPlaneStatus {
    /// Notes that the node's loop has all desired allocations up to `index`.
    pub(crate) fn knows(&self, index: LogIndex) {
        self.known.send_if_modified(|known| {
            let changed = *known != index;
            *known = index;
            changed
        });
    }

    /// The index up to which the node's loop has all desired allocations. It falls back to 0 when one is missing.
    pub(super) fn known(&self) -> watch::Receiver<LogIndex> {
        self.known.subscribe()
    }

    /// Notes that a leader has counted a heartbeat that was sent at `sent`. The leader does not mark the node as
    /// down before `lease` has passed since then. An earlier end of the lease changes nothing: a granted lease
    /// stays.
    pub(super) fn grant(&self, sent: Instant, lease: Duration) {
        advance(&self.lease, sent + lease);
        advance(&self.last_contact, sent);
    }

    /// The time at which the newest heartbeat that a leader has counted was sent, and each change of it.
    pub(crate) fn last_contact(&self) -> watch::Receiver<Option<Instant>> {
        self.last_contact.subscribe()
    }

    /// Sets the connection of the node's session, or none.
    pub(super) fn set_connection(&self, connection: Option<Connection>) {
        self.server.send_replace(connection);
    }

    /// The connection of the node's session, and each change of it.
    pub(crate) fn server(&self) -> watch::Receiver<Option<Connection>> {
        self.server.subscribe()
    }

    /// The time until which the control plane certainly counts the node as alive, and each change of it. `None`
    /// before a leader has counted the first heartbeat. Tasks that may run only once must have stopped by then.
    pub(crate) fn lease(&self) -> watch::Receiver<Option<Instant>> {
        self.lease.subscribe()
    }
}

fn advance(moment: &watch::Sender<Option<Instant>>, to: Instant) {
    moment.send_if_modified(|known| {
        let later = known.is_none_or(|known| known < to);
        if later {
            *known = Some(to);
        }
        later
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_never_taken_back() {
        let standing = ControlPlaneStatus::default();
        let now = Instant::now();
        let later = now + Duration::from_secs(10);

        standing.grant(now, Duration::from_secs(10));
        standing.grant(now, Duration::ZERO);

        assert_eq!(*standing.lease().borrow(), Some(later));
        assert_eq!(*standing.last_contact().borrow(), Some(now));
    }
}
