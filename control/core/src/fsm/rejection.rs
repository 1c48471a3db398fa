//! Rejections of commands, by noun.

use muster_domain::fault::Fault;
use muster_domain::id::{AllocId, DeploymentId, JobKey, LogIndex, NodeId, WriteKey};
use muster_domain::job::JobType;
use muster_domain::one_off::OneOffState;
use serde::{Deserialize, Serialize};

use crate::limits;

/// Why a command is refused, by noun.
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

/// The part of a rejected command that the client has to correct.
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
    /// Returns the part that the client has to correct.
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

/// Why a change of a node is refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum NodeRejection {
    /// There is no such node.
    #[error("node {0} is not registered")]
    Unknown(NodeId),
    /// The agent does not have the secret of the node.
    #[error(
        "node {0} was registered with another secret, so another agent has its id: restore node-secret in this agent's data directory, or delete node-id and node-secret to become a new node"
    )]
    Secret(NodeId),
    /// The fingerprint is unusable.
    #[error("the node's fingerprint is refused: {}", .0.first().map_or("", |fault| fault.reason.as_str()))]
    Invalid(Vec<Fault>),
    /// The node is being drained.
    #[error(
        "node {0} is being drained and takes no work meanwhile: end that with `muster node drain --disable`, or wait until it is empty"
    )]
    Draining(NodeId),
}

impl NodeRejection {
    fn kind(&self) -> RejectionKind {
        match self {
            Self::Unknown(_) => RejectionKind::NotFound,
            Self::Secret(_) => RejectionKind::Forbidden,
            Self::Invalid(_) => RejectionKind::Invalid,
            Self::Draining(_) => RejectionKind::Conflict,
        }
    }
}

/// Why a change of a job is refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum JobRejection {
    /// There is no such job.
    #[error("job {0} is not registered")]
    Unknown(JobKey),
    /// The job changed since the user last read it.
    #[error(
        "job {key} was last registered at index {}, not {}: look at it again before changing it",
        actual.0, expected.0
    )]
    CheckIndex {
        key: JobKey,
        /// The index that the user saw.
        expected: LogIndex,
        /// The current index; 0 if there is no such job.
        actual: LogIndex,
    },
    /// A job cannot change its type.
    #[error(
        "job {key} is of type {from} and cannot become {to}: purge it first or choose another id"
    )]
    TypeChanged {
        key: JobKey,
        from: JobType,
        /// The type asked for.
        to: JobType,
    },
    /// The request does not fit the job.
    #[error("job {key}: {why}")]
    Request { key: JobKey, why: String },
    /// An operator has switched off the registration of jobs.
    #[error("job registration is switched off: see `muster operator scheduler get-config`")]
    RegistrationOff,
    /// The job was not validated.
    #[error("job {0} has no task group")]
    NoGroups(JobKey),
    /// The job runs a one-off task.
    #[error(
        "job {0} runs a one-off task and is not changed by itself: see `muster task cancel` and `muster task delete`"
    )]
    OfOneOff(JobKey),
}

impl JobRejection {
    fn kind(&self) -> RejectionKind {
        match self {
            Self::Unknown(_) => RejectionKind::NotFound,
            Self::CheckIndex { .. } => RejectionKind::Conflict,
            Self::RegistrationOff => RejectionKind::Forbidden,
            Self::TypeChanged { .. }
            | Self::Request { .. }
            | Self::NoGroups(_)
            | Self::OfOneOff(_) => RejectionKind::Invalid,
        }
    }
}

/// Why a change of allocations is refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum AllocRejection {
    /// There is no such allocation.
    #[error("allocation {0} does not exist")]
    Unknown(AllocId),
}

impl AllocRejection {
    fn kind(&self) -> RejectionKind {
        match self {
            Self::Unknown(_) => RejectionKind::NotFound,
        }
    }
}

/// Why a change of a deployment is refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum DeploymentRejection {
    /// There is no such deployment.
    #[error("deployment {0} does not exist")]
    Unknown(DeploymentId),
    /// The deployment is over, or the request does not fit it.
    #[error("deployment {}: {why}", id.short())]
    Request { id: DeploymentId, why: String },
}

impl DeploymentRejection {
    fn kind(&self) -> RejectionKind {
        match self {
            Self::Unknown(_) => RejectionKind::NotFound,
            Self::Request { .. } => RejectionKind::Invalid,
        }
    }
}

/// The reason why a change of a task is refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum OneOffRefusal {
    /// There is another task with that guid.
    #[error("task {0} exists already, with another definition or domain")]
    Exists(String),
    /// No task has this guid.
    #[error("task {0} does not exist")]
    Unknown(String),
    /// The task is not in a state that allows the step.
    #[error("Cannot transition from {from} to {to}")]
    Transition { from: OneOffState, to: OneOffState },
    /// The current claim on the task is not the named one, or it is the claim of the callback.
    #[error("task {guid} is claimed {}", if *by_callback { "by its callback, which is being made" } else { "by another client" })]
    Claimed {
        guid: String,
        /// Whether the claim is for the callback, which is being made.
        by_callback: bool,
    },
    /// There is no room for another fresh domain.
    #[error(
        "{} domains are fresh already: let some end by their ttl",
        limits::DOMAINS_MAX
    )]
    Domains,
}

impl OneOffRefusal {
    fn kind(&self) -> RejectionKind {
        match self {
            Self::Unknown(_) => RejectionKind::NotFound,
            Self::Exists(_) | Self::Transition { .. } | Self::Claimed { .. } => {
                RejectionKind::Conflict
            }
            Self::Domains => RejectionKind::Invalid,
        }
    }
}

/// Why a change of the settings is refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum ConfigRejection {
    /// The settings changed since the operator last read them.
    #[error(
        "the settings were last changed at index {}, not {}: look at them again before changing them",
        actual.0, expected.0
    )]
    Index {
        /// The index that the operator saw.
        expected: LogIndex,
        actual: LogIndex,
    },
}

impl ConfigRejection {
    fn kind(&self) -> RejectionKind {
        match self {
            Self::Index { .. } => RejectionKind::Conflict,
        }
    }
}
