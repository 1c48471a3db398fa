//! Heartbeats: finds the nodes that have sent no heartbeat for too long.
//!
//! This is memory of the leader only. A ready node is expected to send a heartbeat within its time to live and a grace.
//! A server that becomes leader gives every node that whole time, because it has no record of their last heartbeats. A
//! leader that was stopped itself does the same: see [`PauseDetector`].
//!
//! Heartbeats come through the server that the node's agent is connected to, and name that server. So the leader has a
//! record of the server of each node.
//!
//! Deliberately absent: recording that a node is down. The shell proposes it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use muster_domain::id::{NodeId, Timestamp};
use muster_domain::node::NodeStatus;

use crate::limits;
use crate::state::State;

/// The longest silence of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeartbeatConfig {
    /// The time to live that agents are given; an agent sends three heartbeats in that time.
    pub ttl: Duration,
    /// Extra time before a node counts as down: for a slow network or a busy server.
    pub grace: Duration,
}

impl Default for HeartbeatConfig {
    /// 10 s and 5 s: a dead node is noticed within 15 s (Nomad: 20 s at the least, more with more nodes).
    fn default() -> Self {
        Self {
            ttl: Duration::from_secs(10),
            grace: Duration::from_secs(5),
        }
    }
}

/// The meaning of a heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeartbeatOutcome {
    /// The heartbeat was expected.
    Counted,
    /// No heartbeat is expected of this node, or not any more: propose that it is ready, if it is registered.
    Unexpected,
}

/// Detects whether the leader has been looking all the time. A leader that was stopped, or got no processor time,
/// cannot tell which nodes were silent meanwhile. Its own pause is not the nodes' silence.
#[derive(Clone, Copy, Debug)]
pub struct PauseDetector {
    looked_at: Timestamp,
}

impl PauseDetector {
    /// Returns a detector whose leader looks from `now` on.
    #[must_use]
    pub fn new(now: Timestamp) -> Self {
        Self { looked_at: now }
    }

    /// Handles a look of the leader; to be called several times in [`limits::LEADER_PAUSE_MAX`]. Returns whether the
    /// last look is longer ago than that: then every node gets a whole period.
    pub fn handle_look(&mut self, now: Timestamp) -> bool {
        let pause = now.since(self.looked_at);
        self.looked_at = now;
        pause > limits::LEADER_PAUSE_MAX
    }
}

/// The times by which each node must send a heartbeat.
#[derive(Debug, Default)]
pub struct Heartbeats {
    config: HeartbeatConfig,
    deadlines: BTreeMap<NodeId, Timestamp>,
    /// The server through which the last heartbeat of each node came.
    servers: BTreeMap<NodeId, u64>,
    order: BTreeSet<(Timestamp, NodeId)>,
    /// Nodes that were returned as silent and are not recorded as down yet: a heartbeat comes too late for them.
    given_up: BTreeSet<NodeId>,
}

impl Heartbeats {
    /// Returns a value that expects heartbeats of no node.
    #[must_use]
    pub fn new(config: HeartbeatConfig) -> Self {
        Self {
            config,
            ..Self::default()
        }
    }

    /// Returns the time to live that agents are given.
    #[must_use]
    pub fn ttl(&self) -> Duration {
        self.config.ttl
    }

    /// Begins anew: every node that is not down has a whole period from here.
    pub fn lead(&mut self, state: &State, now: Timestamp) {
        let mut given_up = std::mem::take(&mut self.given_up);
        *self = Self {
            servers: std::mem::take(&mut self.servers),
            ..Self::new(self.config)
        };
        for node in state.nodes().iter() {
            match node.status {
                NodeStatus::Initializing | NodeStatus::Ready => self.track(node.spec.id, now),
                NodeStatus::Down | NodeStatus::Disconnected => {}
            }
        }
        // A proposal from before may still be committed.
        given_up.retain(|node_id| self.deadlines.contains_key(node_id));
        self.given_up = given_up;
    }

    /// Expects heartbeats of a node from here on.
    pub fn track(&mut self, node_id: NodeId, now: Timestamp) {
        self.untrack(&node_id);
        let deadline = now.plus(self.config.ttl).plus(self.config.grace);
        self.deadlines.insert(node_id, deadline);
        self.order.insert((deadline, node_id));
    }

    /// Records that a node is connected to `server`: a heartbeat came through it.
    pub fn handle_seen(&mut self, node_id: NodeId, server: u64) {
        self.servers.insert(node_id, server);
    }

    /// Records that a node has left `server`. The node may be connected to another server already.
    pub fn handle_left(&mut self, node_id: &NodeId, server: u64) {
        if self.servers.get(node_id) == Some(&server) {
            self.servers.remove(node_id);
        }
    }

    /// Returns the server that the node is connected to, if one is on record.
    #[must_use]
    pub fn server_of(&self, node_id: &NodeId) -> Option<u64> {
        self.servers.get(node_id).copied()
    }

    /// Stops expecting heartbeats of a node.
    pub fn untrack(&mut self, node_id: &NodeId) {
        self.given_up.remove(node_id);
        if let Some(deadline) = self.deadlines.remove(node_id) {
            self.order.remove(&(deadline, *node_id));
        }
    }

    /// Handles a heartbeat of a node. A node that is already proposed as down gets no more time by it. Its agent must
    /// not receive that the heartbeat counted just before the node is down.
    pub fn handle_beat(&mut self, node_id: NodeId, now: Timestamp) -> HeartbeatOutcome {
        if self.deadlines.contains_key(&node_id) && !self.given_up.contains(&node_id) {
            self.track(node_id, now);
            HeartbeatOutcome::Counted
        } else {
            HeartbeatOutcome::Unexpected
        }
    }

    /// Returns nodes that were silent too long, at most [`limits::EXPIRED_MAX`], so that the caller proposes that they
    /// are down. A node that is still expected a grace later is returned once more, in case the proposal was lost.
    pub fn handle_timeout(&mut self, now: Timestamp) -> Vec<NodeId> {
        let expired: Vec<(Timestamp, NodeId)> = self
            .order
            .iter()
            .copied()
            .take_while(|(deadline, _)| *deadline <= now)
            .take(limits::EXPIRED_MAX)
            .collect();
        for (deadline, node_id) in &expired {
            self.order.remove(&(*deadline, *node_id));
            let again = now.plus(self.config.grace);
            self.order.insert((again, *node_id));
            self.deadlines.insert(*node_id, again);
            self.given_up.insert(*node_id);
        }
        expired.into_iter().map(|(_, node_id)| node_id).collect()
    }

    /// Returns the time at which [`Self::handle_timeout`] has something to do, and its purpose.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<(Timestamp, &'static str)> {
        self.order.first().map(|(at, _)| (*at, "heartbeat"))
    }

    /// Returns the number of nodes whose heartbeats are expected.
    #[must_use]
    pub fn len(&self) -> usize {
        self.deadlines.len()
    }

    /// Returns whether no heartbeats are expected.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.deadlines.is_empty()
    }
}

#[cfg(test)]
mod tests;
