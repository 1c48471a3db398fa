//! Messages between servers, agents and clients.
//!
//! Agents use the messages of `wire`. The messages between servers stand for Raft's messages, and for requests that a
//! server forwards to the leader.

use std::sync::Arc;

use muster_control_core::fsm::{self, DeploymentChange, NewOneOff, OneOffChange, Response};
use muster_domain::id::{DeploymentId, JobKey, LogIndex, NodeId, WriteKey};
use muster_domain::job::JobSpec;
use muster_domain::node::Eligibility;
use muster_wire::rpc::{FromAgent, ToAgent};

use crate::log::{Entry, Position};
use crate::machine::Snapshot;

/// A sender or receiver of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Endpoint {
    Server(usize),
    /// A machine with an agent.
    Host(usize),
    Client(usize),
}

/// A message between two endpoints.
#[derive(Clone, Debug)]
pub enum Message {
    /// A message of the consensus.
    Raft(RaftMessage),
    /// Forwards a proposal from a server to the leader.
    Forward {
        /// The sender's number for the request.
        request: u64,
        /// The command to propose.
        command: Box<fsm::Entry>,
    },
    /// The outcome of a `Forward`; `None` if the receiver does not lead and nothing was written.
    Forwarded {
        /// The number of the request that is answered.
        request: u64,
        /// The index in the log, and the answer of the state machine.
        result: Option<(u64, Response)>,
    },
    /// Asks the leader for the index that a linearizable read must have seen.
    ReadIndex {
        /// The sender's number for the read.
        read: u64,
    },
    /// The answer to a `ReadIndex`. The index is `None` if the receiver does not lead.
    ReadIndexIs {
        /// The number of the read that is answered.
        read: u64,
        index: Option<u64>,
    },
    /// Asks the leader to collect all finished objects.
    Collect {
        /// The sender's number for the request.
        request: u64,
    },
    CollectDone {
        /// The number of the request that is answered.
        request: u64,
    },
    /// Heartbeats that a server gathered.
    Beats(Vec<ForwardedHeartbeat>),
    /// The heartbeats that the leader has counted.
    BeatsCounted(Vec<ForwardedHeartbeat>),
    /// A message of the agent on a session.
    FromAgent {
        /// The agent's number of the session.
        session: u64,
        message: Box<FromAgent>,
    },
    /// A message of the server on a session.
    ToAgent {
        /// The agent's number of the session.
        session: u64,
        message: Box<ToAgent>,
    },
    /// The server has no record of the session, so it resets the connection.
    Reset {
        /// The agent's number of the session.
        session: u64,
    },
    Ask {
        /// The client's number of the request.
        request: u64,
        ask: Ask,
    },
    Answer {
        /// The client's number of the request.
        request: u64,
        answer: Answer,
    },
}

/// A heartbeat on its way to the leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForwardedHeartbeat {
    pub node_id: NodeId,
    /// The machine on which the node's agent runs.
    pub host: usize,
    /// The session that carried the heartbeat.
    pub session: u64,
    /// The agent's number for the heartbeat.
    pub number: u64,
}

/// A message of the consensus.
#[derive(Clone, Debug)]
pub enum RaftMessage {
    /// Asks whether the receiver would vote for the sender.
    PreVote {
        /// The term of the vote that is asked for.
        term: u64,
        /// The end of the sender's log.
        last: Position,
    },
    /// The answer to a pre-vote.
    PreVoteReply {
        /// The term of the pre-vote.
        term: u64,
        /// Whether the receiver would vote.
        granted: bool,
    },
    /// Asks for a vote.
    Vote {
        /// The term of the vote that is asked for.
        term: u64,
        /// The end of the sender's log.
        last: Position,
    },
    /// The answer to a request for a vote.
    VoteReply {
        term: u64,
        /// Whether the receiver votes for the sender.
        granted: bool,
    },
    /// Entries that the leader sends to a follower.
    Append {
        term: u64,
        /// The position that the entries follow.
        prev: Position,
        entries: Vec<Arc<Entry>>,
        /// The leader's committed index.
        commit: u64,
        /// Counts the leader's rounds.
        round: u64,
    },
    /// A follower's answer to an append or a snapshot.
    AppendReply {
        term: u64,
        round: u64,
        /// How far the logs agree.
        matched: LogMatch,
    },
    /// A snapshot that the leader sends, because its log no longer has the entries that the follower needs.
    Install {
        term: u64,
        snapshot: Arc<Snapshot>,
        /// Counts the leader's rounds.
        round: u64,
    },
}

/// How far a follower's log agrees with the leader's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogMatch {
    /// The logs agree up to this index, and the follower has these entries on disk.
    UpTo(u64),
    /// The logs agree, but the follower's disk has not synced the entries yet.
    NotYet,
    /// The logs do not agree. The leader tries again after the hint.
    Not {
        /// An index that may match.
        hint: u64,
    },
    /// The leader's term is over.
    Stale,
}

/// A request of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// A write with a key that makes a retry safe.
    Write { key: WriteKey, wish: ClientRequest },
    /// A read that sees every write acknowledged before it.
    ReadLinearizable,
    /// A request to collect all finished objects, whatever their age. The answer comes when the collection is over.
    Collect,
}

/// A change that a user requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientRequest {
    Register(Box<JobSpec>),
    Deregister {
        key: JobKey,
        purge: bool,
    },
    /// Creates an evaluation of a job.
    Evaluate(JobKey),
    /// Changes a deployment as an operator does.
    Deployment(DeploymentId, DeploymentChange),
    /// Makes a node eligible or ineligible for new allocations.
    SetEligibility {
        node_id: NodeId,
        /// Whether the scheduler may place allocations on the node.
        eligibility: Eligibility,
    },
    /// Creates a one-off task.
    Desire(Box<NewOneOff>),
    /// Changes a one-off task.
    Task(OneOffChange),
}

/// The answer to a client's request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The write is committed.
    Written {
        /// The index in the log.
        index: LogIndex,
        /// The answer of the state machine.
        response: Response,
    },
    /// The result of a read.
    Read {
        /// The index of the newest entry that the read saw.
        index: u64,
        deployments: Vec<DeploymentId>,
    },
    /// All objects that were over at the time of the request are collected.
    Collected,
    /// No server leads, or no answer came in time. The request may or may not have been carried out.
    Unavailable,
}
