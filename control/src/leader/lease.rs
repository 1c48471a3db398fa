//! Heartbeats that a server forwards to the leader, and the leader's answer.

use std::time::Duration;

use muster_domain::id::NodeId;
use tokio::sync::oneshot;

/// Heartbeats that one server gathered from its nodes.
#[derive(Debug)]
pub(crate) struct ServerHeartbeats {
    pub(crate) server_id: u64,
    /// Nodes that sent a heartbeat.
    pub(crate) nodes: Vec<NodeId>,
    /// Nodes that have disconnected from the server.
    pub(crate) left: Vec<NodeId>,
    /// The channel for the lease of the counted nodes. It is dropped if they are not counted.
    pub(crate) reply: oneshot::Sender<Lease>,
}

/// The leader's answer to the counted nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lease {
    /// The time for which none of the nodes is declared down, counted from its heartbeat.
    pub(crate) duration: Duration,
    /// Nodes that were not counted: they are down, or were about to be when the heartbeat came.
    pub(crate) uncounted: Vec<NodeId>,
}
