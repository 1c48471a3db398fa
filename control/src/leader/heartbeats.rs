//! Which nodes are alive: a node that is not heard of for its time to live is down.

use muster_control_core::fsm::Command;
use muster_control_core::heartbeat::{HeartbeatConfig, Heartbeats};
use muster_domain::id::{NodeId, Timestamp};
use muster_domain::node::NodeStatus;
use tokio::task::JoinSet;

use crate::handle::{Control, Proposed};
use crate::limits;

/// The core and the commands under way.
#[derive(Debug)]
pub(super) struct NodeHeartbeats {
    control: Control,
    core: Heartbeats,
    looked_at: Timestamp,
    downs: JoinSet<(NodeId, Proposed)>,
}

impl NodeHeartbeats {
    /// Gives every node that is ready a full period.
    pub(super) fn begin(control: Control, now: Timestamp) -> Self {
        let info = control.server_info();
        let config = HeartbeatConfig {
            ttl: info.heartbeat_ttl,
            grace: info.heartbeat_grace,
        };
        let mut core = Heartbeats::new(config);
        core.lead(&control.state(), now);
        Self {
            control,
            core,
            looked_at: now,
            downs: JoinSet::new(),
        }
    }

    /// Gives every node that is not down a full period.
    pub(super) fn restart(&mut self, now: Timestamp) {
        self.core.lead(&self.control.state(), now);
    }

    pub(super) fn track(&mut self, node_id: NodeId, now: Timestamp) {
        self.core.track(node_id, now);
    }

    pub(super) fn untrack(&mut self, node_id: NodeId) {
        self.core.untrack(&node_id);
    }

    /// A beat of a node that is not tracked is of no interest here: its session makes it ready, which
    /// starts the tracking.
    pub(super) fn handle_beat(&mut self, node_id: NodeId, now: Timestamp) {
        self.core.handle_beat(node_id, now);
    }

    pub(super) fn poll_timeout(&self) -> Option<(Timestamp, &'static str)> {
        self.core.poll_timeout()
    }

    /// Declares nodes down that were silent for too long.
    pub(super) fn advance(&mut self, now: Timestamp) {
        let stalled = now.since(self.looked_at) > limits::LEADER_STALL;
        self.looked_at = now;
        if stalled {
            // This process stood still itself, so it cannot say who was silent.
            tracing::warn!("the leader stood still: every node gets a full period");
            self.restart(now);
        }
        for node_id in self.core.handle_timeout(now) {
            tracing::warn!(%node_id, "no heartbeat: the node is down");
            let control = self.control.clone();
            self.downs.spawn(async move {
                let command = Command::SetNodeStatus {
                    node_id,
                    status: NodeStatus::Down,
                    at: control.now(),
                };
                (node_id, control.propose(command).await)
            });
        }
    }

    /// Waits until a command is answered. Cancellation safe.
    pub(super) async fn progress(&mut self) {
        match self.downs.join_next().await {
            None => std::future::pending().await,
            Some(Ok((_, Ok(_)))) => {}
            Some(Ok((node_id, Err(error)))) => {
                tracing::warn!(%node_id, %error, "the node could not be declared down: it gets another period");
                self.core.track(node_id, self.control.monotonic());
            }
            Some(Err(error)) => tracing::error!(%error, "a command's task failed"),
        }
    }
}
