//! The agent's session with a server.
//!
//! | module | subject |
//! |---|---|
//! | `clock` | time of deadlines and events |
//! | `contact` | time of the last contact with a leader; it survives the agent |
//! | `control` | the connection, its requests and their answers |
//! | `failure` | replies to requests that could not be served |
//! | `status` | state of the connection |
//! | `reports` | states of allocations on their way to a server |

pub(crate) mod clock;
pub(crate) mod contact;
pub(crate) mod control;
pub(crate) mod failure;
pub(crate) mod reports;
pub(crate) mod status;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use muster_domain::node::{NodeSecret, NodeSpec};
use tokio::sync::{Semaphore, watch};

use reports::Outbox;
use status::ControlPlaneStatus;

/// The identity of the node towards its servers, and pending messages to them.
#[derive(Debug)]
pub(crate) struct SessionContext {
    /// The secret with which the node registers.
    pub(crate) node_secret: NodeSecret,
    /// The registered description of the node.
    pub(crate) spec: watch::Receiver<Arc<NodeSpec>>,
    /// The state of the connection to the control plane.
    pub(crate) standing: ControlPlaneStatus,
    /// Reports for the control plane.
    pub(crate) outbox: Outbox,
    /// Places for readers of logs, [`crate::limits::LOG_READERS_MAX`].
    pub(crate) log_readers: Semaphore,
    /// Places for sessions with commands, [`crate::limits::EXEC_SESSIONS_MAX`].
    pub(crate) sessions: Semaphore,
    /// Bytes of logs that are on their way to readers.
    pub(crate) log_bytes_unacknowledged: AtomicU64,
}

impl SessionContext {
    /// Returns the description of the node that is registered at this moment.
    pub(crate) fn spec(&self) -> Arc<NodeSpec> {
        Arc::clone(&self.spec.borrow())
    }
}
