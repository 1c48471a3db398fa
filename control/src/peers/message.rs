//! Messages between servers.
//!
//! A stream begins with an [`StreamHeader`]. Most requests get one [`PeerReply`], and the stream ends. The other
//! requests name the frames that follow. Variants are only ever appended, because servers of neighbouring versions
//! exchange messages during an upgrade.

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
    /// The server's name, which its certificate also carries.
    pub name: String,
    /// The address and port for QUIC.
    pub quic_addr: String,
    /// The address and port for HTTP.
    pub http_addr: String,
}

/// A server with its number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerInfo {
    /// The server's number, made with its data directory and never used again.
    pub server_id: u64,
    /// The server's name and addresses.
    pub node: ServerNode,
}

/// The first frame of a stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StreamHeader {
    /// The number of the server that opened the stream.
    pub(crate) from: u64,
    /// The number of the receiving server, or [`ANYBODY`].
    pub(crate) to: u64,
    pub(crate) request: PeerRequest,
}

/// A request of one server to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum PeerRequest {
    /// Introduces the sender and asks for the receiver's introduction: [`PeerReply::Hello`].
    Hello(Hello),
    /// Asks for membership, or announces a new address: [`PeerReply::Done`], [`PeerReply::NotLeader`].
    Join(Hello),
    /// One message of Raft in the encoding of `raft::network`: [`PeerReply::Raft`].
    Raft {
        /// The kind of call.
        kind: RaftCall,
        body: Vec<u8>,
    },
    /// Opens a stream of Raft's entries, with frames of `raft::network`.
    RaftAppend,
    /// Opens the transfer of a snapshot, with frames of `raft::network`.
    RaftSnapshot,
    /// Opens a stream of proposals, with frames of `raft::forward`.
    Propose,
    /// Asks the leader for the read index: [`PeerReply::ReadIndex`], [`PeerReply::NotLeader`].
    ReadIndex {
        /// Whether a quorum must confirm that the receiver still leads.
        linearizable: bool,
    },
    /// Asks the leader for the members: [`PeerReply::Members`], [`PeerReply::NotLeader`].
    Members,
    /// Asks the leader to add the server at an address: [`PeerReply::Done`], [`PeerReply::NotLeader`].
    Add {
        /// A host and a port.
        quic_addr: String,
    },
    /// Asks the leader to remove a member: [`PeerReply::Done`], [`PeerReply::NotLeader`].
    Remove { server_id: u64 },
    /// Asks the leader to transfer leadership: [`PeerReply::Done`], [`PeerReply::NotLeader`].
    Transfer {
        /// The new leader; `None` picks the most up-to-date voter.
        to: Option<u64>,
    },
    /// Asks for a promise to found only this cluster: [`PeerReply::Done`].
    Promise(BootstrapProposal),
    /// Founds the cluster after all promises: [`PeerReply::Done`].
    Found(BootstrapProposal),
    /// Notifies a server that it was removed from the cluster: [`PeerReply::Done`].
    Removed { server_id: u64 },
    /// Reports nodes' heartbeats to the leader: [`PeerReply::Counted`], [`PeerReply::NotLeader`].
    Heartbeats {
        /// Nodes that sent a heartbeat.
        nodes: Vec<NodeId>,
        /// Nodes that have disconnected from the sender.
        left: Vec<NodeId>,
    },
    /// Asks whether a node is connected: [`PeerReply::NodeHeard`].
    NodeHeard { node_id: NodeId },
    /// Asks a node that is connected to the receiver. The answer follows in frames of `NodeReply`.
    AskNode {
        node_id: NodeId,
        request: NodeRequest,
    },
    /// Asks for garbage collection on all connected nodes: [`PeerReply::Done`].
    CollectOnNodes,
    /// Asks the leader to forget all garbage: [`PeerReply::Collected`], [`PeerReply::NotLeader`].
    CollectGarbage,
    /// Asks for the hash of the state after all entries up to an index: [`PeerReply::StateHash`].
    StateHash { index: LogIndex },
    /// Notifies a server that its state differs from that of most servers: [`PeerReply::Done`].
    StateDiffers {
        /// The index at which the state differs.
        index: LogIndex,
        /// The hash of most servers.
        right: StateHash,
    },
    /// Asks the leader to restore a saved snapshot. Its bytes follow in frames of `Vec<u8>`.
    /// [`PeerReply::Restored`] is the answer after the last of them.
    Restore,
    /// Asks the leader for places before records are written: [`PeerReply::Places`], [`PeerReply::NotLeader`].
    /// Without places the sender still writes the records.
    FindPlaces(PlacementQuery),
    /// Asks for the problems that keep the receiver from its work: [`PeerReply::Troubles`].
    Troubles,
}

/// Records that need places.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum PlacementQuery {
    Tasks(Vec<NewOneOff>),
    /// All instances of a job.
    Job(Box<JobSpec>),
}

/// The places that the leader found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum PlacementAnswer {
    /// Places for tasks, in their order, and the state in which they were found.
    Tasks {
        /// The place of each task; `None` for a task without one.
        places: Vec<Option<OneOffPlacement>>,
        seen: LogIndex,
    },
    /// Places for a job's instances; `None` unless every instance has one.
    Job(Option<Box<JobPlacement>>),
}

/// The kinds of [`PeerRequest::Raft`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum RaftCall {
    /// A heartbeat, or entries outside of a stream.
    Append,
    Vote,
    /// The question whether the receiver would grant a vote.
    PreVote,
    /// A transfer of leadership.
    Transfer,
}

/// A server's introduction of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hello {
    pub(crate) me: PeerInfo,
    /// How many servers the sender wants to found a cluster with; 0 if it founds none.
    pub(crate) expect: u32,
    /// Whether the server belongs to a cluster.
    pub(crate) founded: bool,
    pub(crate) others: Vec<PeerInfo>,
    /// The members of the server's cluster by number; empty if it belongs to none.
    pub(crate) members: Vec<u64>,
    /// The leader that the server knows.
    pub(crate) leader: Option<u64>,
    /// The cluster that the server has promised to help to found.
    pub(crate) promised: Option<BootstrapProposal>,
}

/// A cluster that is to be founded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BootstrapProposal {
    /// The server that asks for promises.
    pub(crate) founder: u64,
    /// The cluster's servers, by number.
    pub(crate) servers: Vec<PeerInfo>,
}

/// A server's answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum PeerReply {
    Done,
    /// The server refuses the request.
    Refused {
        /// The cause, and the action to take.
        reason: String,
    },
    /// Another server leads, or none does.
    NotLeader,
    /// The server's introduction of itself.
    Hello(Hello),
    /// Raft's answer, in the encoding of `raft::network`.
    Raft(Vec<u8>),
    /// The index that a server must have applied before its read.
    ReadIndex(LogIndex),
    Members(Vec<MemberRecord>),
    /// The leader has counted the heartbeats, and a quorum has confirmed since that it leads.
    Counted {
        /// The time for which none of the nodes is declared down, counted from its heartbeat.
        lease: Duration,
        /// Nodes that were not counted: they are down or about to be.
        uncounted: Vec<NodeId>,
    },
    /// Whether a node is connected.
    NodeHeard {
        /// Time since the node's last message; `None` if it is not connected.
        ago: Option<Duration>,
    },
    /// The hash of the state; `None` if it is not known.
    StateHash(Option<StateHash>),
    /// A snapshot was restored with this entry.
    Restored(LogIndex),
    /// The rows that the leader has freed.
    Collected(FreedCounts),
    /// The reserved places; for a while no other request gets them.
    Places(PlacementAnswer),
    /// The troubles of the server.
    Troubles(Troubles),
}

/// The leader's record of a member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberRecord {
    pub server_id: u64,
    /// The member's name and addresses.
    pub node: ServerNode,
    /// Whether the member votes; a learner does not.
    pub voter: bool,
    pub leader: bool,
    /// Milliseconds since the leader's last contact with the member. `None` if there was none; 0 for the leader
    /// itself.
    pub last_contact_ms: Option<u64>,
    /// The last entry on the member's disk, as far as the leader knows.
    pub log_index: Option<LogIndex>,
    /// Entries that the member lacks, as far as the leader knows.
    pub behind: u64,
    /// Milliseconds for which the member has lacked entries and taken none; 0 while it has all or takes some.
    pub stalled_ms: u64,
}

/// Problems that keep a server from its work, as it reports them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Troubles(pub(crate) Vec<String>);

#[cfg(test)]
mod tests;
