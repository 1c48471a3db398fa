//! Messages between servers, agents and clients.
//!
//! Agents use the messages of `wire`. The messages between servers stand for Raft's messages and for the
//! requests that a server passes to the leader.

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

/// Everything that is sent.
#[derive(Clone, Debug)]
pub enum Message {
    /// A message of the consensus.
    Raft(RaftMessage),
    /// A server passes a proposal to the leader.
    Forward {
        /// The sender's number for it.
        request: u64,
        /// The command to propose.
        command: Box<fsm::Entry>,
    },
    /// The outcome of a `Forward`; `None` if the receiver does not lead and nothing was written.
    Forwarded {
        /// The sender's number for it.
        request: u64,
        /// The index in the log, and the answer.
        result: Option<(u64, Response)>,
    },
    /// A server asks the leader what a linearizable read must have seen.
    ReadIndex {
        /// The sender's number for it.
        read: u64,
    },
    /// The answer; `None`: not the leader.
    ReadIndexIs {
        /// The sender's number for it.
        read: u64,
        index: Option<u64>,
    },
    /// A server asks the leader to forget everything that is over.
    Collect {
        /// The sender's number for it.
        request: u64,
    },
    CollectDone {
        /// The sender's number for it.
        request: u64,
    },
    /// Heartbeats that a server gathered.
    Beats(Vec<ForwardedHeartbeat>),
    /// The leader has counted them.
    BeatsCounted(Vec<ForwardedHeartbeat>),
    /// A message of the agent on its session.
    FromAgent {
        /// The agent's number of the session.
        session: u64,
        message: Box<FromAgent>,
    },
    /// A message of the server on an agent's session.
    ToAgent {
        /// The agent's number of the session.
        session: u64,
        message: Box<ToAgent>,
    },
    /// The server knows of no such session: the connection is reset.
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
    /// The machine it runs on.
    pub host: usize,
    /// The session it came over.
    pub session: u64,
    /// The agent's number of it.
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
        /// The term asked about.
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
    /// The leader sends entries that follow in its log.
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
    /// The leader sends the state up to an entry that is not in its log any more.
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
    /// It is the leader's up to here, and on disk.
    UpTo(u64),
    /// It is the leader's; the disk is not done.
    NotYet,
    /// It is not the leader's; try after this.
    Not {
        /// An index that may match.
        hint: u64,
    },
    /// The term is over.
    Stale,
}

/// A request of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// A write under a key.
    Write { key: WriteKey, wish: ClientRequest },
    /// A read that sees everything acknowledged before it.
    ReadLinearizable,
    /// Forget everything that is over, whatever its age, and say when that is done.
    Collect,
}

/// A change that a user wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientRequest {
    Register(Box<JobSpec>),
    Deregister {
        key: JobKey,
        purge: bool,
    },
    /// Look at a job.
    Evaluate(JobKey),
    /// Do something with a deployment.
    Deployment(DeploymentId, DeploymentChange),
    /// Let a node take work, or not.
    SetEligibility {
        node_id: NodeId,
        /// Whether it takes work.
        eligibility: Eligibility,
    },
    /// Have a one-off task done.
    Desire(Box<NewOneOff>),
    /// Do something with a one-off task.
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
    /// The read saw this.
    Read {
        /// The newest entry seen.
        index: u64,
        deployments: Vec<DeploymentId>,
    },
    /// Everything that was over when it was asked for is forgotten.
    Collected,
    /// Nobody leads, or nothing came back in time: it may have been done or not.
    Unavailable,
}
