//! Heartbeats that a server passes on to the leader, and its answer.

use std::time::Duration;

use muster_domain::id::NodeId;
use tokio::sync::oneshot;

/// Heartbeats that one server gathered from its nodes.
#[derive(Debug)]
pub(crate) struct ServerHeartbeats {
    pub(crate) server_id: u64,
    /// Nodes that were heard of.
    pub(crate) nodes: Vec<NodeId>,
    /// Nodes that have left it.
    pub(crate) left: Vec<NodeId>,
    /// Told when they are counted; dropped if they are not.
    pub(crate) reply: oneshot::Sender<Lease>,
}

/// The answer to counted nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lease {
    /// How long none of them is taken for down, counted from when it sent its heartbeat.
    pub(crate) duration: Duration,
    /// Nodes that were not counted: they are down, or were about to be when the heartbeat came.
    pub(crate) uncounted: Vec<NodeId>,
}
