//! Commands of schedulers: plans, and updates of evaluations.

use muster_domain::plan::Plan;
use serde::{Deserialize, Serialize};

use super::change::Change;
use super::eval_update::{EvalUpdate, update};
use super::plan;
use super::response::Response;

/// The outcome of evaluations.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EvalCommand {
    /// Workers submit plans and updates of their evaluations.
    ///
    /// Placements are runs of instances on one node, about 25 bytes each with the node's 16-byte id;
    /// ids, names and the rest are derived.
    ApplyPlans {
        /// Plans, each of one evaluation.
        plans: Vec<Plan>,
        /// Updates of evaluations. An update is not made if a part of its plan is refused.
        evals: Vec<EvalUpdate>,
    },
    /// Updates of evaluations that have no plan.
    Update { evals: Vec<EvalUpdate> },
}

impl EvalCommand {
    /// The cause of entries that carry out a scheduler's decisions.
    pub const PLANNED: &str = "PlanResult";

    /// The kind of change, as Nomad's event type.
    pub(super) fn cause(&self) -> &'static str {
        match self {
            Self::ApplyPlans { .. } => Self::PLANNED,
            Self::Update { .. } => "EvaluationUpdated",
        }
    }
}

pub(super) fn apply(change: &mut Change<'_>, command: EvalCommand) -> Response {
    match command {
        EvalCommand::ApplyPlans { plans, evals } => plan::apply(change, plans, evals),
        EvalCommand::Update { evals } => {
            for one in evals {
                update(change, one);
            }
            Response::Done
        }
    }
}
