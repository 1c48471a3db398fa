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
    /// The command is applied; the response has no details.
    Done,
    /// The node is registered.
    NodeRegistered,
    /// The job is registered.
    JobRegistered {
        /// The evaluation that will place it; none for a job that only makes other jobs.
        eval_id: Option<EvalId>,
        version: u64,
        /// The entry that registered that version.
        job_modify_index: LogIndex,
    },
    /// The job will be stopped.
    JobDeregistered {
        /// The evaluation that will stop it; none for a job that only made other jobs.
        eval_id: Option<EvalId>,
    },
    /// An evaluation of the job was added.
    EvalCreated { eval_id: EvalId },
    /// A job was made from another job.
    JobLaunched {
        job_id: String,
        /// The evaluation that will place it. There is none if nothing was launched, because an earlier launch runs or
        /// because this one was made before.
        eval_id: Option<EvalId>,
    },
    /// The deployment is changed.
    DeploymentChanged {
        /// The evaluation that continues it.
        eval_id: Option<EvalId>,
        /// The version that the job goes back to.
        reverted_to: Option<u64>,
    },
    /// Evaluations of the requested jobs were added.
    EvalsCreated {
        /// One evaluation for each job.
        eval_ids: Vec<EvalId>,
    },
    /// Plans were carried out as far as they fit.
    PlansApplied {
        /// The outcome of each plan, in order.
        outcomes: Vec<PlanOutcome>,
    },
    Collected {
        evals: u32,
        allocs: u32,
        jobs: u32,
        nodes: u32,
        deployments: u32,
        /// The position at which the next slice begins, if there is more to look at.
        next: Option<GcCursor>,
        one_offs: u32,
        /// The number of objects that were looked at and stay, by reason.
        kept: BTreeMap<KeepReason, u32>,
        /// Size of the removed objects, in bytes as they are hashed, without the parts that rows share. The shared job
        /// of an allocation counts for the job only.
        bytes: u64,
    },
    /// The reports of nodes are recorded.
    NodesReported {
        /// Nodes that are not registered; their reports are not recorded.
        unknown: Vec<NodeId>,
    },
    /// The command is refused; nothing changed.
    Rejected(Rejection),
    /// One-off tasks were recorded or refused.
    OneOffsDesired {
        /// The outcome for each task, in the order of the command.
        outcomes: Vec<Result<DesiredOneOff, Rejection>>,
    },
    /// Changes of one-off tasks were carried out or refused.
    OneOffsChanged {
        /// The reason why each change was refused, in order; `None` if it was not refused.
        outcomes: Vec<Option<OneOffRefusal>>,
    },
    /// The job is removed, and its allocations will be stopped.
    JobPurged {
        /// The evaluation that will stop them; none for a job that only made other jobs.
        eval_id: Option<EvalId>,
        /// The number of deployments that were removed with it.
        deployments: u32,
    },
}

/// The outcome of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanOutcome {
    pub eval_id: EvalId,
    pub placed: u32,
    /// The number of refused instances. If it is not 0, the evaluation is still open and must be looked at again.
    pub dropped: u32,
}

/// A task that is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DesiredOneOff {
    /// Whether the task is new.
    pub created: bool,
    /// The entry that made it.
    pub generation: LogIndex,
    /// The evaluation that places the task, or has placed it in the same entry; none if the task is not new.
    pub eval_id: Option<EvalId>,
}
