//! Updates of evaluations.

use muster_domain::eval::{EvalStatus, FailedGroup};
use muster_domain::id::{EvalId, LogIndex, Timestamp};
use serde::{Deserialize, Serialize};

/// A change of an evaluation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EvalUpdate {
    pub eval_id: EvalId,
    /// Its status from here on.
    pub status: EvalStatus,
    /// The reason for the status, as a sentence for the user.
    pub description: String,
    /// The snapshot its plan was made from; 0 keeps what is there.
    pub snapshot_index: LogIndex,
    /// The groups that could not be placed, each with the reason.
    pub failed_groups: Vec<FailedGroup>,
    /// Instances that wait, by group.
    pub queued: Vec<(String, u32)>,
    /// The evaluation that goes on from here.
    pub next: NextEval,
}

/// The evaluation that goes on where one ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NextEval {
    Nothing,
    /// A blocked one, for what could not be placed.
    Blocked,
    /// A delayed one, because this failed too often.
    FailedFollowUp {
        /// Not to be looked at before.
        wait_until: Timestamp,
    },
}
