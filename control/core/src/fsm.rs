//! Commands: the only writer of the state.
//!
//! [`apply`] is a function of state, index and entry: time and everything random come inside the
//! entry, ids are derived from the index. A refused command is a value, the same on every replica.
//! Effects are for the leader's shell; losing one is safe, because its duty finds the work again in
//! the state.
//!
//! The encoding of [`Entry`] is persisted: variants and fields are only ever appended as new
//! variants, and `testdata/` keeps the bytes of each. The old variant is the decoder of its version, as
//! [`NodeCommand::AddEventV1`] is.

mod admit;
mod alloc;
mod change;
mod config;
mod deployment;
mod eval;
mod garbage;
mod job;
mod keyed;
mod launch;
mod node;
mod one_off;
mod plan;
mod remote;
mod report;
mod server;

use std::collections::BTreeMap;
use std::sync::Arc;

use muster_domain::id::{
    AllocId, DeploymentId, EvalId, JobKey, LogIndex, NodeId, Timestamp, WriteKey,
};
use muster_domain::one_off::OneOff;
use serde::{Deserialize, Serialize};

use crate::state::State;

pub(crate) use admit::admit;
use admit::admit_current;
pub use alloc::{AllocCommand, AllocRejection};
use change::Change;
pub use config::{ConfigCommand, ConfigRejection};
pub use deployment::{DeploymentChange, DeploymentCommand, DeploymentRejection};
pub(crate) use deployment::{is_late, next_deadline};
pub use eval::{EvalCommand, EvalUpdate, NextEval};
pub use garbage::dry_run::{Count as GcCount, GcDryRun as GcSurvey, ObjectKind as GcKind};
pub use garbage::forecast::GcForecast as GcOutlook;
pub use garbage::{
    Cutoffs as GcCutoffs, GcCommand, GcCursor, GcJobStep, GcRule, KeepReason as GcKept,
    SliceLimits as GcBounds,
};
pub(crate) use job::is_unknown;
pub use job::{GroupScaling, JobCommand, JobPlacement, JobRejection, TagAssignment};
pub use keyed::{UnkeyedCommand, WriteDedup};
pub use node::{NodeCommand, NodeRejection};
pub(crate) use one_off::is_placed as is_placed_one_off;
pub use one_off::{
    DesiredOneOff, NewOneOff, OneOffChange, OneOffCommand, OneOffPlacement, OneOffRefusal,
    OneOffStep,
};
pub use server::ServerCommand;

/// The newest format of commands that this build understands.
pub const VERSION: u32 = 2;

/// An entry of the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Time of the proposal.
    pub at: Timestamp,
    pub command: Command,
}

/// A replicated change, by the noun that it changes. The file of the noun defines its commands and applies them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    Node(NodeCommand),
    Job(JobCommand),
    Alloc(AllocCommand),
    Eval(EvalCommand),
    Deployment(DeploymentCommand),
    OneOff(OneOffCommand),
    Gc(GcCommand),
    Config(ConfigCommand),
    /// A write that is applied once, however often it comes.
    Keyed {
        /// The key of the write.
        once: WriteDedup,
        command: UnkeyedCommand,
    },
    Server(ServerCommand),
}

/// Makes each noun's commands entries of the log.
macro_rules! nouns {
    ($($noun:ident($commands:ident);)*) => {$(
        impl $commands {
            /// The entry that proposes it at that time.
            #[must_use]
            pub fn at(self, at: Timestamp) -> Entry {
                let command = Command::$noun(self);
                Entry { at, command }
            }
        }
    )*};
}

nouns! {
    Node(NodeCommand);
    Job(JobCommand);
    Alloc(AllocCommand);
    Eval(EvalCommand);
    Deployment(DeploymentCommand);
    OneOff(OneOffCommand);
    Gc(GcCommand);
    Config(ConfigCommand);
    Server(ServerCommand);
}

impl Entry {
    /// Records one-off tasks for which no places were found.
    #[must_use]
    pub fn desire_one_offs(tasks: Vec<NewOneOff>, at: Timestamp) -> Self {
        OneOffCommand::desire(tasks).at(at)
    }
}

impl Command {
    /// The oldest format that knows this command. The shell writes it with the entry, so that a server
    /// that does not understand it stops before it applies it.
    #[must_use]
    pub fn version(&self) -> u32 {
        match self {
            Self::Node(command) => command.version(),
            Self::Server(command) => command.version(),
            Self::Keyed { once: _, command } => command.command().version(),
            Self::Job(_)
            | Self::Alloc(_)
            | Self::Eval(_)
            | Self::Deployment(_)
            | Self::OneOff(_)
            | Self::Gc(_)
            | Self::Config(_) => 1,
        }
    }

    /// The kind of change, as Nomad's event type.
    #[must_use]
    pub fn cause(&self) -> &'static str {
        match self {
            Self::Node(command) => command.cause(),
            Self::Job(command) => command.cause(),
            Self::Alloc(command) => command.cause(),
            Self::Eval(command) => command.cause(),
            Self::Deployment(command) => command.cause(),
            Self::OneOff(command) => command.cause(),
            Self::Gc(command) => command.cause(),
            Self::Config(command) => command.cause(),
            Self::Keyed { once: _, command } => command.command().cause(),
            Self::Server(command) => command.cause(),
        }
    }
}

/// The result of a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Response {
    /// It is done; the response has no details.
    Done,
    /// The node is registered.
    NodeRegistered,
    /// The job is registered.
    JobRegistered {
        /// The evaluation that will place it; none for a job that only makes others.
        eval_id: Option<EvalId>,
        version: u64,
        /// The entry that registered that version.
        job_modify_index: LogIndex,
    },
    /// The job will be stopped.
    JobDeregistered {
        /// The evaluation that will stop it; none for a job that only made others.
        eval_id: Option<EvalId>,
    },
    /// The job will be looked at.
    EvalCreated { eval_id: EvalId },
    /// A job was made from another one.
    JobLaunched {
        job_id: String,
        /// The evaluation that will place it; none if nothing was launched, because an earlier launch
        /// runs or because it was launched before.
        eval_id: Option<EvalId>,
    },
    /// The deployment is changed.
    DeploymentChanged {
        /// The evaluation that goes on with it.
        eval_id: Option<EvalId>,
        /// The version that the job goes back to.
        reverted_to: Option<u64>,
    },
    /// The evaluations that will look at what was asked for.
    EvalsCreated {
        /// One for each job.
        eval_ids: Vec<EvalId>,
    },
    /// Plans were carried out as far as they fit.
    PlansApplied {
        /// One for each plan, in order.
        outcomes: Vec<PlanOutcome>,
    },
    Collected {
        evals: u32,
        allocs: u32,
        jobs: u32,
        nodes: u32,
        deployments: u32,
        /// Where the next slice begins, if there is more to look at.
        next: Option<GcCursor>,
        one_offs: u32,
        /// Objects that were looked at and stay, by reason.
        kept: BTreeMap<GcKept, u32>,
        /// Size of the forgotten objects, in bytes as they are hashed, without the parts that rows share. An
        /// allocation's part of its job is the job's.
        bytes: u64,
    },
    /// The reports of nodes are recorded.
    NodesReported {
        /// Nodes that are not registered; their reports are not recorded.
        unknown: Vec<NodeId>,
    },
    /// The command is refused; nothing changed.
    Rejected(Rejection),
    /// One-off tasks are recorded.
    OneOffsDesired {
        /// The outcome for each task, in the order of the command.
        outcomes: Vec<Result<DesiredOneOff, Rejection>>,
    },
    /// One-off tasks are moved on.
    OneOffsChanged {
        /// Why each was refused, in the order of the changes; `None` if it was not.
        outcomes: Vec<Option<OneOffRefusal>>,
    },
    /// The job is forgotten, and what ran of it will be stopped.
    JobPurged {
        /// The evaluation that will stop it; none for a job that only made others.
        eval_id: Option<EvalId>,
        /// Deployments that went with it.
        deployments: u32,
    },
}

/// The outcome of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanOutcome {
    pub eval_id: EvalId,
    pub placed: u32,
    /// Instances refused. If any, the evaluation is still open and must be looked at again.
    pub dropped: u32,
}

/// Why a command is refused, by noun. The file of the noun defines its rejections.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Rejection {
    #[error(transparent)]
    Node(NodeRejection),
    #[error(transparent)]
    Job(JobRejection),
    #[error(transparent)]
    Alloc(AllocRejection),
    #[error(transparent)]
    Deployment(DeploymentRejection),
    #[error(transparent)]
    OneOff(OneOffRefusal),
    #[error(transparent)]
    Config(ConfigRejection),
    /// The key was used for another write.
    #[error(
        "the idempotency key `{key}` was used for a different write, applied at index {}: choose a new key for each write", index.0
    )]
    KeyReused {
        key: WriteKey,
        /// The entry of that write.
        index: LogIndex,
    },
}

/// The part that the client of a rejected command has to correct.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectionKind {
    /// The object does not exist.
    NotFound,
    /// The object has another state than the client expects.
    Conflict,
    /// Settings or a secret forbid it.
    Forbidden,
    /// The request itself is invalid.
    Invalid,
}

impl Rejection {
    /// The part that the client has to correct.
    #[must_use]
    pub fn kind(&self) -> RejectionKind {
        match self {
            Self::Node(rejection) => rejection.kind(),
            Self::Job(rejection) => rejection.kind(),
            Self::Alloc(rejection) => rejection.kind(),
            Self::Deployment(rejection) => rejection.kind(),
            Self::OneOff(rejection) => rejection.kind(),
            Self::Config(rejection) => rejection.kind(),
            Self::KeyReused { .. } => RejectionKind::Conflict,
        }
    }
}

/// Something the leader's shell must do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Give this evaluation to the broker.
    EnqueueEval(EvalId),
    /// Let this evaluation wait for room.
    BlockEval(EvalId),
    /// Drop this evaluation: it has ended.
    ForgetEval(EvalId),
    /// Wake blocked evaluations that this node could help.
    CapacityFreed { node_id: NodeId },
    /// Wake every blocked evaluation: more is allowed than before.
    RulesEased,
    /// Push desired allocations to this node's agent. For every server, not only the leader.
    NodeChanged(NodeId),
    /// Tell this node's agent some time that allocations of it were forgotten: nobody waits for it. For every server,
    /// not only the leader.
    NodeForgot(NodeId),
    /// Tell every node's agent the cluster's network policy. For every server, not only the leader.
    ClusterPolicyChanged,
    /// Expect heartbeats from this node.
    NodeReady(NodeId),
    /// Expect no heartbeats from this node.
    NodeGone(NodeId),
    /// Deployments, drains, periodic jobs or one-off tasks changed: their duties look again.
    DutiesDue,
    /// The one-off task of this allocation has ended, and the leader of the entry's term holds the claim on its
    /// callback. Make the callback; if nobody does, the claim ends by itself.
    CallbackClaimed(AllocId),
}

/// A row that was written or removed: look it up in the state to see which.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ChangedRow {
    Node(NodeId),
    /// A job. Its versions, its status, whether it is stopped; not the counts of its allocations.
    Job(Arc<JobKey>),
    Eval(EvalId),
    Deployment(DeploymentId),
    OneOff(Arc<str>),
    Alloc(AllocId),
    /// An allocation that was removed: there is nothing to look up.
    AllocGone(AllocId),
}

/// The result of applying a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApplyResult {
    /// For the proposer of the command.
    pub response: Response,
    /// For the leader's shell.
    pub effects: Vec<Effect>,
    /// Rows written or removed, each once: nodes, jobs, evaluations, allocations.
    pub changed: Vec<ChangedRow>,
    /// One-off tasks as they were in between, where the command moved one by two states. Followers of tasks see each
    /// state.
    pub passed: Vec<Arc<OneOff>>,
    /// One-off tasks that were removed, as they were last.
    pub removed: Vec<Arc<OneOff>>,
}

impl ApplyResult {
    fn without_change(response: Response) -> Self {
        Self {
            response,
            effects: Vec::new(),
            changed: Vec::new(),
            passed: Vec::new(),
            removed: Vec::new(),
        }
    }
}

/// Applies the entry at `index`.
pub fn apply(state: &mut State, index: LogIndex, entry: Entry) -> ApplyResult {
    apply_within(state, index, entry, GcBounds::default())
}

/// The same with other bounds for a slice of a collection.
pub fn apply_within(
    state: &mut State,
    index: LogIndex,
    entry: Entry,
    bounds: GcBounds,
) -> ApplyResult {
    let Entry { at, command } = entry;
    state.applied = index;
    let mut change = Change::new(state, index, at, bounds);
    let result = match command {
        Command::Node(command) => node::apply(&mut change, command),
        Command::Job(command) => job::apply(&mut change, command),
        Command::Alloc(command) => alloc::apply(&mut change, command),
        Command::Eval(command) => Ok(eval::apply(&mut change, command)),
        Command::Deployment(command) => deployment::apply(&mut change, command),
        Command::OneOff(command) => one_off::apply(&mut change, command),
        Command::Gc(command) => Ok(garbage::apply(&mut change, command)),
        Command::Config(command) => config::apply(&mut change, command),
        Command::Server(command) => Ok(server::apply(&command)),
        Command::Keyed { once, command } => {
            return keyed::apply(state, (index, at), once, command);
        }
    };
    let finished = change.finish();
    ApplyResult {
        response: result.unwrap_or_else(Response::Rejected),
        ..finished
    }
}

#[cfg(test)]
mod tests;
