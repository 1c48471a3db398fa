//! What servers, agents and clients say to each other.
//!
//! Agents speak the words of `wire`. What servers say among themselves stands for Raft's messages and for
//! the requests that a server passes to the leader.

use std::sync::Arc;

use muster_control_core::fsm::{Command, DeploymentChange, NewOneOff, OneOffChange, Response};
use muster_domain::id::{DeploymentId, JobKey, LogIndex, NodeId, WriteKey};
use muster_domain::job::JobSpec;
use muster_domain::node::Eligibility;
use muster_wire::rpc::{FromAgent, ToAgent};

use crate::log::{Entry, Position};
use crate::machine::Snapshot;

/// Who sends and receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// A server.
    Server(usize),
    /// A machine with an agent.
    Host(usize),
    /// A user's program.
    Client(usize),
}

/// Everything that is sent.
#[derive(Clone, Debug)]
pub enum Message {
    /// Of the consensus.
    Raft(RaftMessage),
    /// A server passes a proposal to the leader.
    Forward {
        /// The sender's number for it.
        request: u64,
        /// What to propose.
        command: Box<Command>,
    },
    /// What became of it; `None`: not the leader, nothing was written.
    Forwarded {
        /// The sender's number for it.
        request: u64,
        /// Where it is in the log, and its answer.
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
        /// The index.
        index: Option<u64>,
    },
    /// A server asks the leader to forget everything that is over.
    Collect {
        /// The sender's number for it.
        request: u64,
    },
    /// The leader has.
    CollectDone {
        /// The sender's number for it.
        request: u64,
    },
    /// Heartbeats that a server gathered.
    Beats(Vec<GatheredBeat>),
    /// The leader has counted them.
    BeatsCounted(Vec<GatheredBeat>),
    /// On an agent's session.
    FromAgent {
        /// The agent's number of the session.
        session: u64,
        /// What it says.
        message: Box<FromAgent>,
    },
    /// On an agent's session.
    ToAgent {
        /// The agent's number of the session.
        session: u64,
        /// What the server says.
        message: Box<ToAgent>,
    },
    /// The server knows of no such session: the connection is reset.
    Reset {
        /// The agent's number of the session.
        session: u64,
    },
    /// A client asks.
    Ask {
        /// The client's number of the request.
        request: u64,
        /// What for.
        ask: Ask,
    },
    /// The answer.
    Answer {
        /// The client's number of the request.
        request: u64,
        /// The answer.
        answer: Answer,
    },
}

/// A heartbeat on its way to the leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GatheredBeat {
    /// The node.
    pub node_id: NodeId,
    /// Its machine.
    pub host: usize,
    /// The session it came over.
    pub session: u64,
    /// The agent's number of it.
    pub number: u64,
}

/// A message of the consensus.
#[derive(Clone, Debug)]
pub enum RaftMessage {
    /// Would you vote for me?
    PreVote {
        /// In this term.
        term: u64,
        /// The end of my log.
        last: Position,
    },
    /// Whether.
    PreVoteReply {
        /// The term asked about.
        term: u64,
        /// Whether.
        granted: bool,
    },
    /// Vote for me.
    Vote {
        /// In this term.
        term: u64,
        /// The end of my log.
        last: Position,
    },
    /// Whether.
    VoteReply {
        /// The voter's term.
        term: u64,
        /// Whether.
        granted: bool,
    },
    /// I lead, and this follows in the log.
    Append {
        /// My term.
        term: u64,
        /// What the entries follow.
        prev: Position,
        /// The entries.
        entries: Vec<Arc<Entry>>,
        /// What is committed.
        commit: u64,
        /// Counts the leader's rounds.
        round: u64,
    },
    /// What became of an append or a snapshot.
    AppendReply {
        /// The follower's term.
        term: u64,
        /// The round answered.
        round: u64,
        /// How it went.
        matched: Matched,
    },
    /// I lead, and this is the state up to an entry that is not in my log any more.
    Install {
        /// My term.
        term: u64,
        /// The state.
        snapshot: Arc<Snapshot>,
        /// Counts the leader's rounds.
        round: u64,
    },
}

/// What a follower says of its log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Matched {
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

/// What a client asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// A write under a key.
    Write {
        /// The key.
        key: WriteKey,
        /// The write.
        wish: Wish,
    },
    /// A read that sees everything acknowledged before it.
    ReadLinearizable,
    /// Forget everything that is over, whatever its age, and say when that is done.
    Collect,
}

/// What a user wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Run a job.
    Register(Box<JobSpec>),
    /// Stop a job.
    Deregister {
        /// The job.
        key: JobKey,
        /// Forget it too.
        purge: bool,
    },
    /// Look at a job.
    Evaluate(JobKey),
    /// Do something with a deployment.
    Deployment(DeploymentId, DeploymentChange),
    /// Let a node take work, or not.
    SetEligibility {
        /// The node.
        node_id: NodeId,
        /// Whether.
        eligibility: Eligibility,
    },
    /// Have a one-off task done.
    Desire(Box<NewOneOff>),
    /// Do something with a one-off task.
    Task(OneOffChange),
}

/// What a client is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The write is committed.
    Written {
        /// Where.
        index: LogIndex,
        /// What it said.
        response: Response,
    },
    /// The read saw this.
    Read {
        /// The newest entry seen.
        index: u64,
        /// Deployments under way.
        deployments: Vec<DeploymentId>,
    },
    /// Everything that was over when it was asked for is forgotten.
    Collected,
    /// Nobody leads, or nothing came back in time: it may have been done or not.
    Unavailable,
}
