//! Messages between servers.
//!
//! A stream begins with an [`StreamHeader`]. Most requests are answered with one [`PeerReply`] and the stream is
//! over; those that say so go on with frames of their own. Variants are only ever appended: servers of
//! neighbouring versions speak to each other during an upgrade.

use std::time::Duration;

use muster_control_core::fsm::{JobPlacement, NewOneOff, OneOffPlacement};
use muster_control_core::state::StateHash;
use muster_domain::id::{LogIndex, NodeId};
use muster_domain::job::JobSpec;
use muster_wire::rpc::NodeRequest;
use serde::{Deserialize, Serialize};

use crate::garbage::FreedCounts;

/// Value of [`StreamHeader::to`] for any server that answers. Numbers of servers begin at 1.
pub(crate) const ANYBODY: u64 = 0;

/// A server as the membership keeps it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerNode {
    /// Its name; also in its certificate.
    pub name: String,
    /// The address and port for QUIC.
    pub quic_addr: String,
    /// The address and port for HTTP.
    pub http_addr: String,
}

/// A server with its number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerInfo {
    /// Its number, made with its data directory and never used again.
    pub server_id: u64,
    /// Its name and addresses.
    pub node: ServerNode,
}

/// The first frame of a stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StreamHeader {
    /// The number of the server that opened the stream.
    pub(crate) from: u64,
    /// The number of the server it is meant for, or [`ANYBODY`].
    pub(crate) to: u64,
    pub(crate) request: PeerRequest,
}

/// A request of one server to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum PeerRequest {
    /// Says who the sender is and asks the same: [`PeerReply::Hello`].
    Hello(Hello),
    /// Wants to be a member, or says that it has moved: [`PeerReply::Done`], [`PeerReply::NotLeader`].
    Join(Hello),
    /// One message of Raft in the encoding of `raft::network`: [`PeerReply::Raft`].
    Raft {
        /// The kind of call.
        kind: RaftCall,
        body: Vec<u8>,
    },
    /// A stream of Raft's entries; goes on with frames of `raft::network`.
    RaftAppend,
    /// A snapshot; goes on with frames of `raft::network`.
    RaftSnapshot,
    /// A stream of proposals; goes on with frames of `raft::forward`.
    Propose,
    /// Asks the leader up to where a read must see: [`PeerReply::ReadIndex`], [`PeerReply::NotLeader`].
    ReadIndex {
        /// Whether a quorum must confirm that it still leads.
        linearizable: bool,
    },
    /// Asks the leader for the members: [`PeerReply::Members`], [`PeerReply::NotLeader`].
    Members,
    /// Wants the leader to add the server at an address: [`PeerReply::Done`], [`PeerReply::NotLeader`].
    Add {
        /// A host and a port.
        quic_addr: String,
    },
    /// Wants the leader to remove a member: [`PeerReply::Done`], [`PeerReply::NotLeader`].
    Remove { server_id: u64 },
    /// Wants the leader to hand over: [`PeerReply::Done`], [`PeerReply::NotLeader`].
    Transfer {
        /// The new leader; `None` picks the most up-to-date voter.
        to: Option<u64>,
    },
    /// Wants a promise to found no cluster but this one: [`PeerReply::Done`].
    Promise(BootstrapProposal),
    /// All have promised: [`PeerReply::Done`].
    Found(BootstrapProposal),
    /// Tells a server that it was removed from the cluster: [`PeerReply::Done`].
    Removed { server_id: u64 },
    /// Tells the leader which nodes were heard of: [`PeerReply::Counted`], [`PeerReply::NotLeader`].
    Heartbeats {
        /// Nodes that were heard of.
        nodes: Vec<NodeId>,
        /// Nodes that have left the sender.
        left: Vec<NodeId>,
    },
    /// Asks whether a node is connected: [`PeerReply::NodeHeard`].
    NodeHeard { node_id: NodeId },
    /// Asks a node that is connected to the receiver; goes on with its answer, frames of `NodeReply`.
    AskNode {
        node_id: NodeId,
        request: NodeRequest,
    },
    /// Wants all nodes that are connected to destroy what is over: [`PeerReply::Done`].
    CollectOnNodes,
    /// Wants the leader to forget everything that is over: [`PeerReply::Collected`], [`PeerReply::NotLeader`].
    CollectGarbage,
    /// Asks for the hash of the state after all entries up to an index: [`PeerReply::StateHash`].
    StateHash { index: LogIndex },
    /// Tells a server that its state differs from that of most: [`PeerReply::Done`].
    StateDiffers {
        /// The index at which it does.
        index: LogIndex,
        /// The hash that most have.
        right: StateHash,
    },
    /// A saved snapshot for the leader to restore; goes on with its bytes, frames of `Vec<u8>`. Answered with
    /// [`PeerReply::Restored`] when they have ended.
    Restore,
    /// Asks the leader for places for records to come: [`PeerReply::Places`], or [`PeerReply::NotLeader`].
    /// Without places the sender records them all the same.
    FindPlaces(PlacementQuery),
    /// Asks what keeps the receiver from its work: [`PeerReply::Troubles`].
    Troubles,
}

/// Records that need places.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum PlacementQuery {
    Tasks(Vec<NewOneOff>),
    /// All instances of a job.
    Job(Box<JobSpec>),
}

/// The places.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum PlacementAnswer {
    /// Places for tasks, in their order, and the state in which they were found.
    Tasks {
        /// The place of each task, where there is one.
        places: Vec<Option<OneOffPlacement>>,
        seen: LogIndex,
    },
    /// Places for a job's instances, if there is one for each.
    Job(Option<Box<JobPlacement>>),
}

/// The kinds of [`PeerRequest::Raft`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum RaftCall {
    /// A heartbeat, or entries outside of a stream.
    Append,
    Vote,
    /// The question whether a vote would be granted.
    PreVote,
    /// Leadership is handed over.
    Transfer,
}

/// A server's introduction of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hello {
    pub(crate) me: PeerInfo,
    /// How many servers it wants to found a cluster with; 0 if it founds none.
    pub(crate) expect: u32,
    /// Whether it belongs to a cluster.
    pub(crate) founded: bool,
    pub(crate) others: Vec<PeerInfo>,
    /// The members of its cluster by number; empty if it belongs to none.
    pub(crate) members: Vec<u64>,
    /// The leader, as far as it knows.
    pub(crate) leader: Option<u64>,
    /// The cluster that it has promised to help to found.
    pub(crate) promised: Option<BootstrapProposal>,
}

/// A cluster that is to be founded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BootstrapProposal {
    /// The server that asks for promises.
    pub(crate) founder: u64,
    /// Its servers, by number.
    pub(crate) servers: Vec<PeerInfo>,
}

/// A server's answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum PeerReply {
    Done,
    /// It will not be done.
    Refused {
        /// The cause, and what to do.
        reason: String,
    },
    /// Another server leads, or none does.
    NotLeader,
    /// The server's introduction of itself.
    Hello(Hello),
    /// Raft's answer, in the encoding of `raft::network`.
    Raft(Vec<u8>),
    /// A read that has applied this much is good.
    ReadIndex(LogIndex),
    Members(Vec<MemberRecord>),
    /// The leader has counted the heartbeats, and a quorum has confirmed since that it leads.
    Counted {
        /// How long none of the nodes is taken for down, counted from when it sent its heartbeat.
        lease: Duration,
        /// Nodes that were not counted: they are down, or about to be.
        uncounted: Vec<NodeId>,
    },
    /// Whether a node is connected.
    NodeHeard {
        /// How long ago it was heard of; `None` if it is not connected.
        ago: Option<Duration>,
    },
    /// The hash of the state; `None` if it is not known.
    StateHash(Option<StateHash>),
    /// A snapshot was restored with this entry.
    Restored(LogIndex),
    /// The leader has forgotten everything that is over.
    Collected(FreedCounts),
    /// Places that are not given to anybody else for a while.
    Places(PlacementAnswer),
    /// The troubles of the server.
    Troubles(Troubles),
}

/// The leader's record of a member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberRecord {
    pub server_id: u64,
    /// Its name and addresses.
    pub node: ServerNode,
    /// Whether it votes; a learner does not.
    pub voter: bool,
    pub leader: bool,
    /// Milliseconds since the leader last heard of it; `None` if it never did. 0 for the leader itself.
    pub last_contact_ms: Option<u64>,
    /// The last entry that is on its disk, as far as the leader knows.
    pub log_index: Option<LogIndex>,
    /// Entries that it lacks, as far as the leader knows.
    pub behind: u64,
    /// Milliseconds for which it has lacked entries and taken none; 0 while it has all or takes some.
    pub stalled_ms: u64,
}

/// Troubles that keep a server from its work, as it reports them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Troubles(pub(crate) Vec<String>);

#[cfg(test)]
mod tests;
