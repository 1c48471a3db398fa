//! How the node stands with the control plane: what its session and the rest of the agent tell each other.

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
    /// The node's loop knows everything that is wanted up to `index`.
    pub(crate) fn knows(&self, index: LogIndex) {
        self.known.send_if_modified(|known| {
            let changed = *known != index;
            *known = index;
            changed
        });
    }

    /// Up to which index the node's loop knows everything. It falls back to 0 when something is missing.
    pub(super) fn known(&self) -> watch::Receiver<LogIndex> {
        self.known.subscribe()
    }

    /// A leader has counted a heartbeat that was sent at `sent`, and does not take the node for down before
    /// `lease` has passed since. What is earlier changes nothing: what was granted stays granted.
    pub(super) fn grant(&self, sent: Instant, lease: Duration) {
        advance(&self.lease, sent + lease);
        advance(&self.last_contact, sent);
    }

    /// When the newest heartbeat was sent that a leader has counted, and each change of it.
    pub(crate) fn last_contact(&self) -> watch::Receiver<Option<Instant>> {
        self.last_contact.subscribe()
    }

    /// The node has a session over `connection`, or none.
    pub(super) fn set_connection(&self, connection: Option<Connection>) {
        self.server.send_replace(connection);
    }

    /// The connection to the server that the node has a session with, and each change of it.
    pub(crate) fn server(&self) -> watch::Receiver<Option<Connection>> {
        self.server.subscribe()
    }

    /// Until when the control plane surely takes the node for alive, and each change of it; `None` before
    /// the first heartbeat was counted by a leader. What may run only once must have stopped by then.
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
