//! Commands: the only writer of the state.
//!
//! [`apply`] is a function of state, index and entry. The entry carries the time and all random values; ids are derived
//! from the index. A refused command is a value, the same on every replica. Effects are for the leader's shell. Losing
//! an effect is safe, because its duty finds the work again in the state.
//!
//! The encoding of [`Entry`] is persisted: variants and fields are only ever appended as new
//! variants, and `testdata/` keeps the bytes of each. The old variant is the decoder of its version, as
//! [`NodeCommand::AddEventV1`] is.

mod admit;
mod alloc;
mod change;
mod config;
mod deployment;
mod effect;
mod eval;
pub(crate) mod eval_update;
pub(crate) mod garbage;
mod job;
mod keyed;
mod launch;
mod node;
mod one_off;
pub(crate) mod one_off_alloc;
mod plan;
mod rejection;
mod remote;
mod report;
pub(crate) mod response;
mod server;

use muster_domain::id::{LogIndex, Timestamp};
use serde::{Deserialize, Serialize};

use crate::state::State;

pub(crate) use admit::admit;
pub use alloc::AllocCommand;
use change::Change;
pub use config::ConfigCommand;
pub use deployment::{DeploymentChange, DeploymentCommand};
pub(crate) use deployment::{is_late, next_deadline};
pub use effect::{ApplyResult, Effect};
pub use eval::EvalCommand;
pub use eval_update::{EvalUpdate, NextEval};
pub use garbage::cursor::{GcCursor, GcJobStep};
pub use garbage::dry_run::{Count as GcCount, GcDryRun as GcSurvey, ObjectKind as GcKind};
pub use garbage::forecast::GcForecast as GcOutlook;
pub use garbage::keep_reason::KeepReason as GcKept;
pub use garbage::rule::Cutoffs as GcCutoffs;
pub use garbage::slice_limits::SliceLimits as GcBounds;
pub use garbage::{GcCommand, GcRule};
pub(crate) use job::is_unknown;
pub use job::{GroupScaling, JobCommand, TagAssignment};
pub use keyed::{UnkeyedCommand, WriteDedup};
pub use node::NodeCommand;
pub use one_off::{NewOneOff, OneOffChange, OneOffCommand, OneOffPlacement, OneOffStep};
pub use plan::JobPlacement;
pub use rejection::{
    AllocRejection, ConfigRejection, DeploymentRejection, JobRejection, NodeRejection,
    OneOffRefusal, Rejection, RejectionKind,
};
pub use response::{DesiredOneOff, PlanOutcome, Response};
pub use server::ServerCommand;

pub use crate::state::ChangedRow;

/// The newest format of commands that this build understands.
pub const VERSION: u32 = 2;

/// An entry of the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Time of the proposal.
    pub at: Timestamp,
    pub command: Command,
}

/// A replicated change, by the noun that it changes. The file of each noun defines and applies its commands.
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
    /// A write that is applied once, however often it is sent.
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
            /// Returns the entry that proposes the command at that time.
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
    /// Returns the oldest format that has this command. The shell writes the format with the entry, so that a server
    /// without that format stops before it applies the entry.
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

    /// Returns the command without the values that a server adds to each try: the end of a dispatched job's id, the
    /// time of a forced launch, the end of a claim, the places. `None` if the command has none of them.
    fn without_added(&self) -> Option<Self> {
        match self {
            Self::Job(command) => command.without_added().map(Self::Job),
            Self::OneOff(command) => command.without_added().map(Self::OneOff),
            Self::Node(_)
            | Self::Alloc(_)
            | Self::Eval(_)
            | Self::Deployment(_)
            | Self::Gc(_)
            | Self::Config(_)
            | Self::Keyed { .. }
            | Self::Server(_) => None,
        }
    }
}

/// Applies the entry at `index`.
pub fn apply(state: &mut State, index: LogIndex, entry: Entry) -> ApplyResult {
    apply_within(state, index, entry, GcBounds::default())
}

/// Applies the entry with other bounds for a slice of a collection.
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
    one_off::follow_all(&mut change);
    let finished = change.finish();
    ApplyResult {
        response: result.unwrap_or_else(Response::Rejected),
        ..finished
    }
}

#[cfg(test)]
mod tests;
