//! Results of commands.

use std::collections::BTreeMap;

use muster_domain::id::{EvalId, LogIndex, NodeId};
use serde::{Deserialize, Serialize};

use super::garbage::cursor::GcCursor;
use super::garbage::keep_reason::KeepReason;
use super::rejection::{OneOffRefusal, Rejection};

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
        kept: BTreeMap<KeepReason, u32>,
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

/// A task that is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DesiredOneOff {
    /// Whether it was not there before.
    pub created: bool,
    /// The entry that made it.
    pub generation: LogIndex,
    /// The evaluation that places it, or has placed it in the same entry; none if it was there before.
    pub eval_id: Option<EvalId>,
}
