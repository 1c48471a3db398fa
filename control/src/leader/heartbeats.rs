//! Tracking of live nodes: a node without a heartbeat within its time to live is down.
//!
//! Heartbeats come from every server once a second, for all nodes connected to it. The leader answers them after a
//! quorum has confirmed its leadership since their arrival. The answer is a lease, and a deposed leader that does
//! not know it must grant none. For the same reason only this server's own log takes the write that a node is
//! down: a deposed leader's write is never committed.

use muster_control_core::fsm::NodeCommand;
use muster_control_core::heartbeat::{
    HeartbeatConfig, HeartbeatOutcome, Heartbeats, PauseDetector,
};
use muster_domain::id::{NodeId, Timestamp};
use muster_domain::node::NodeStatus;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::lease::{Lease, ServerHeartbeats};
use crate::handle::Control;
use crate::limits;
use crate::raft::WriteError;

/// The heartbeat core and the work under way.
#[derive(Debug)]
pub(super) struct NodeHeartbeats {
    control: Control,
    /// The term of this leadership.
    term: u64,
    core: Heartbeats,
    attention: PauseDetector,
    downs: JoinSet<(NodeId, Result<(), WriteError>)>,
    /// Leases that are counted and not confirmed.
    counted: Vec<(oneshot::Sender<Lease>, Lease)>,
    /// The confirmation under way; at most one.
    confirmations: JoinSet<()>,
}

impl NodeHeartbeats {
    /// Gives every ready node a full period.
    pub(super) fn begin(control: Control, term: u64, now: Timestamp) -> Self {
        let info = control.server_info();
        let config = HeartbeatConfig {
            ttl: info.heartbeat_ttl,
            grace: info.heartbeat_grace,
        };
        let mut core = Heartbeats::new(config);
        core.lead(&control.state(), now);
        Self {
            control,
            term,
            core,
            attention: PauseDetector::new(now),
            downs: JoinSet::new(),
            counted: Vec::new(),
            confirmations: JoinSet::new(),
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

    /// Counts the heartbeats from a server. Ignores a node that is not tracked: its session makes it ready, which
    /// starts the tracking.
    pub(super) fn handle_heartbeats(&mut self, beats: ServerHeartbeats, now: Timestamp) {
        for node_id in beats.left {
            self.core.handle_left(&node_id, beats.server_id);
        }
        let mut lease = Lease {
            duration: self.core.ttl(),
            uncounted: Vec::new(),
        };
        for node_id in beats.nodes {
            self.core.handle_seen(node_id, beats.server_id);
            if self.core.handle_beat(node_id, now) == HeartbeatOutcome::Unexpected {
                lease.uncounted.push(node_id);
            }
        }
        if self.counted.len() < limits::BEATS_UNCONFIRMED_MAX {
            self.counted.push((beats.reply, lease));
        }
        self.confirm();
    }

    pub(super) fn poll_timeout(&self) -> Option<(Timestamp, &'static str)> {
        self.core.poll_timeout()
    }

    /// Declares nodes down after too long a silence.
    pub(super) fn advance(&mut self, now: Timestamp) {
        if self.attention.handle_look(now) {
            tracing::warn!("the leader stood still: every node gets a full period");
            self.restart(now);
        }
        for node_id in self.core.handle_timeout(now) {
            let server = self.core.server_of(&node_id);
            tracing::warn!(%node_id, server, "no heartbeat: the node is down");
            let (control, term) = (self.control.clone(), self.term);
            self.downs.spawn(async move {
                let command = NodeCommand::SetStatus {
                    node_id,
                    status: NodeStatus::Down,
                }
                .at(control.now());
                let written = control.raft().write_as_leader(term, &command).await;
                (node_id, written.map(|_| ()))
            });
        }
    }

    /// Waits until something under way has ended. Cancellation safe.
    pub(super) async fn progress(&mut self) {
        tokio::select! {
            Some(ended) = self.downs.join_next() => match ended {
                Ok((_, Ok(()))) => {}
                // The write may still be committed, so the node stays untracked until the outcome is known. A node
                // with a fresh lease must not be down a moment later.
                Ok((node_id, Err(error @ WriteError::Unknown { .. }))) => {
                    tracing::warn!(%node_id, %error, "it is not known whether the node was declared down");
                }
                Ok((node_id, Err(error))) => {
                    tracing::warn!(%node_id, %error, "the node could not be declared down: it gets another period");
                    self.core.track(node_id, self.control.monotonic());
                }
                Err(error) => tracing::error!(%error, "a command's task failed"),
            },
            Some(_) = self.confirmations.join_next() => self.confirm(),
            else => std::future::pending().await,
        }
    }

    /// Asks a quorum to confirm this server's leadership, then answers the heartbeats counted before.
    fn confirm(&mut self) {
        if self.counted.is_empty() || !self.confirmations.is_empty() {
            return;
        }
        let replies = std::mem::take(&mut self.counted);
        let control = self.control.clone();
        self.confirmations.spawn(async move {
            let confirming = control.raft().read_index_here(true);
            let confirmed = tokio::time::timeout(limits::BEATS_WAIT, confirming).await;
            if !matches!(confirmed, Ok(Some(_))) {
                tracing::debug!(
                    "no quorum confirms that this server leads: heartbeats are not answered"
                );
                return;
            }
            for (reply, lease) in replies {
                // The server may no longer wait.
                let _gone = reply.send(lease);
            }
        });
    }
}
