//! The cluster's members and their changes.
//!
//! A server joins as a learner, which receives entries and does not vote. It gets its vote once it has caught up.
//! One change is under way at a time; a change needs both majorities, the old and the new.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use muster_domain::id::LogIndex;
use muster_domain::saturating;
use openraft::async_runtime::WatchReceiver;
use openraft::errors::{ChangeMembershipError, ClientWriteError, InitializeError, RaftError};
use openraft::{ChangeMembers, Instant as _};
use tokio::time::Instant;

use super::types::TypeConfig;
use super::{LeaderInfo, Raft};
use crate::limits;
use crate::peers::message::{MemberRecord, PeerInfo, ServerNode};

/// The reason why the servers of the cluster were not changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChangeServersError {
    /// Another server leads, or none does.
    #[error("this server does not lead{}", leader.as_ref().map_or_else(
        || "; an election is going on, try again".to_owned(),
        |leader| format!("; the leader is {} at {}", leader.name, leader.http_addr)
    ))]
    NotLeader {
        /// The server that leads, if known.
        leader: Option<LeaderInfo>,
    },
    /// Another change is under way.
    #[error("another change of the servers is under way: try again when it is done")]
    InProgress,
    /// The change was not made.
    #[error("{reason}")]
    Refused {
        /// The cause, and the action to take.
        reason: String,
    },
    /// The change was not made in time; it may still be made.
    #[error(
        "the change of the servers was not committed within {waited:?}, and may still be: look at `muster operator raft list-peers`"
    )]
    Timeout {
        /// How long the caller waited.
        waited: Duration,
    },
    #[error("raft has stopped: {reason}; see the server's messages, then start it again")]
    Stopped { reason: String },
}

/// Servers that lack entries: the last entry of each, and the time since when it has not changed.
pub(super) type StalledServers = BTreeMap<u64, (Option<u64>, Instant)>;

impl ChangeServersError {
    pub(crate) fn refused(reason: impl Into<String>) -> Self {
        Self::Refused {
            reason: reason.into(),
        }
    }
}

impl Raft {
    /// Whether this server belongs or has belonged to a cluster.
    pub(crate) fn founded(&self) -> bool {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        metrics.membership_config.log_id().is_some() || metrics.last_log_index.is_some()
    }

    /// The members by number.
    pub(crate) fn member_ids(&self) -> Vec<u64> {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let membership = metrics.membership_config.membership();
        membership
            .nodes()
            .map(|(server_id, _)| *server_id)
            .collect()
    }

    /// The members. Only the leader has their contact times and positions.
    pub(crate) fn members(&self) -> Vec<MemberRecord> {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let membership = metrics.membership_config.membership();
        let voters: BTreeSet<u64> = membership.voter_ids().collect();
        let last_log_index = metrics.last_log_index.unwrap_or(0);
        let mut stalls = self.stalls();
        // Only a leader has the positions of the others.
        let is_leader = metrics.replication.is_some();
        stalls.retain(|server_id, _| is_leader && membership.get_node(server_id).is_some());
        let mut record = |(server_id, node): (&u64, &ServerNode)| {
            let me = *server_id == self.server_id;
            let heartbeat = metrics.heartbeat.as_ref();
            let last_contact_ms = if me {
                Some(0)
            } else {
                heartbeat
                    .and_then(|heartbeat| heartbeat.get(server_id).copied().flatten())
                    .map(|at| saturating::millis(at.elapsed()))
            };
            let log_index = if me {
                metrics.last_log_index
            } else {
                let replication = metrics.replication.as_ref();
                replication
                    .and_then(|replication| replication.get(server_id).copied().flatten())
                    .map(|log_id| log_id.index)
            };
            let behind = if is_leader {
                last_log_index.saturating_sub(log_index.unwrap_or(0))
            } else {
                0
            };
            let stalled = if behind == 0 {
                stalls.remove(server_id);
                Duration::ZERO
            } else {
                let now = Instant::now();
                let stall = stalls.entry(*server_id).or_insert((log_index, now));
                if stall.0 != log_index {
                    *stall = (log_index, now);
                }
                now.duration_since(stall.1)
            };
            MemberRecord {
                server_id: *server_id,
                node: node.clone(),
                voter: voters.contains(server_id),
                leader: metrics.current_leader == Some(*server_id),
                last_contact_ms,
                log_index: log_index.map(LogIndex),
                behind,
                stalled_ms: saturating::millis(stalled),
            }
        };
        membership.nodes().map(&mut record).collect()
    }

    fn stalls(&self) -> MutexGuard<'_, StalledServers> {
        // Each change is one insertion or removal.
        self.stalls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Founds the cluster of `servers`. Several servers may do it safely if all give the same list.
    pub(crate) async fn found(&self, servers: &[PeerInfo]) -> Result<(), ChangeServersError> {
        let members: BTreeMap<u64, ServerNode> = servers
            .iter()
            .map(|known| (known.server_id, known.node.clone()))
            .collect();
        match self.raft.initialize(members).await {
            // The cluster exists already, which is the requested result.
            Ok(()) | Err(RaftError::APIError(InitializeError::NotAllowed(_))) => Ok(()),
            Err(RaftError::APIError(error)) => Err(ChangeServersError::refused(error.to_string())),
            Err(RaftError::Fatal(fatal)) => Err(ChangeServersError::Stopped {
                reason: fatal.to_string(),
            }),
        }
    }

    /// Adds a server without a vote, or records its newer address.
    pub(crate) async fn add_learner(&self, known: PeerInfo) -> Result<(), ChangeServersError> {
        let nodes = BTreeMap::from([(known.server_id, known.node)]);
        let known_before = self.member_ids().contains(&known.server_id);
        let change = if known_before {
            // This is safe: the certificate proves the server's name, and its number is on its disk.
            ChangeMembers::SetNodes(nodes)
        } else {
            ChangeMembers::AddNodes(nodes)
        };
        self.change(change).await
    }

    /// Gives learners their votes.
    pub(crate) async fn promote(
        &self,
        server_ids: BTreeSet<u64>,
    ) -> Result<(), ChangeServersError> {
        self.change(ChangeMembers::AddVoterIds(server_ids)).await
    }

    /// Removes a member, voter or learner.
    pub(crate) async fn remove(&self, server_id: u64) -> Result<(), ChangeServersError> {
        let ids = BTreeSet::from([server_id]);
        let votes = self
            .members()
            .iter()
            .any(|member| member.server_id == server_id && member.voter);
        if votes {
            // The server leaves the membership with its vote, and does not stay as a learner.
            self.change(ChangeMembers::RemoveVoters(ids)).await
        } else {
            self.change(ChangeMembers::RemoveNodes(ids)).await
        }
    }

    async fn change(
        &self,
        change: ChangeMembers<u64, ServerNode>,
    ) -> Result<(), ChangeServersError> {
        let waited = limits::CHANGE_SERVERS_WAIT;
        let changing = self.raft.change_membership(change, false);
        let Ok(changed) = tokio::time::timeout(waited, changing).await else {
            return Err(ChangeServersError::Timeout { waited });
        };
        match changed {
            Ok(_) => Ok(()),
            Err(RaftError::Fatal(fatal)) => Err(ChangeServersError::Stopped {
                reason: fatal.to_string(),
            }),
            Err(RaftError::APIError(error)) => Err(self.change_error(error)),
        }
    }

    fn change_error(&self, error: ClientWriteError<TypeConfig>) -> ChangeServersError {
        match error {
            ClientWriteError::ForwardToLeader(_) | ClientWriteError::LogEntryDiscarded(_) => {
                ChangeServersError::NotLeader {
                    leader: self.leader().filter(|leader| !leader.is_self),
                }
            }
            ClientWriteError::ChangeMembershipError(ChangeMembershipError::InProgress(_)) => {
                ChangeServersError::InProgress
            }
            error => ChangeServersError::refused(error.to_string()),
        }
    }

    /// The most up-to-date voter that answers, without this server.
    pub(crate) fn successor(&self) -> Option<u64> {
        self.members()
            .into_iter()
            .filter(|member| {
                member.voter && member.server_id != self.server_id && is_healthy(member)
            })
            .max_by_key(|member| member.log_index)
            .map(|member| member.server_id)
    }

    /// Transfers leadership to `to`, or to the most up-to-date voter if that is `None`. Returns the new leader.
    pub(crate) async fn transfer(&self, to: Option<u64>) -> Result<LeaderInfo, ChangeServersError> {
        let Some(to) = to.or_else(|| self.successor()) else {
            return Err(ChangeServersError::refused(
                "no other voter answers: leadership stays here",
            ));
        };
        let member = self
            .members()
            .into_iter()
            .find(|member| member.server_id == to);
        match member {
            Some(member) if !is_healthy(&member) && to != self.server_id => {
                return Err(ChangeServersError::refused(format!(
                    "{} does not answer, so it cannot lead: see `muster operator raft list-peers`",
                    member.node.name
                )));
            }
            Some(member) if member.voter => {}
            Some(member) => {
                return Err(ChangeServersError::refused(format!(
                    "{} does not vote yet, so it cannot lead: wait until it has caught up",
                    member.node.name
                )));
            }
            None => {
                return Err(ChangeServersError::refused(format!(
                    "server {to} is not a member: see `muster operator raft list-peers`"
                )));
            }
        }
        let mut leadership = self.leadership();
        if to == self.server_id {
            return self
                .leader()
                .ok_or(ChangeServersError::NotLeader { leader: None });
        }
        if let Err(fatal) = self.raft.trigger().transfer_leader(to).await {
            return Err(ChangeServersError::Stopped {
                reason: fatal.to_string(),
            });
        }
        let waited = limits::TRANSFER_WAIT;
        let another =
            leadership.wait_for(|now| now.leader.as_ref().is_some_and(|leader| !leader.is_self));
        match tokio::time::timeout(waited, another).await {
            Ok(Ok(now)) => now
                .leader
                .clone()
                .ok_or(ChangeServersError::NotLeader { leader: None }),
            Ok(Err(_)) => Err(ChangeServersError::Stopped {
                reason: "the watch of its leader has closed".to_owned(),
            }),
            Err(_) => Err(ChangeServersError::Timeout { waited }),
        }
    }
}

/// Whether the leader had a recent contact with a member.
pub(crate) fn is_healthy(member: &MemberRecord) -> bool {
    member
        .last_contact_ms
        .is_some_and(|age| Duration::from_millis(age) <= limits::SERVER_HEALTHY_WITHIN)
}
