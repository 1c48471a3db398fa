//! Plans checked against the newest state and merged into one command.
//!
//! Parts of plans that no longer fit are left out here, so that they take no space in the log. The entry is checked
//! once more when it is applied, because other entries may come between. An evaluation whose plan was refused in part
//! stays open and is looked at again; the broker limits the number of times.

use std::collections::BTreeSet;

use muster_domain::id::{EvalId, LogIndex, Timestamp};

use crate::fsm::{Entry, EvalCommand, EvalUpdate, Response, admit};
use crate::limits;
use crate::scheduler::ScheduleOutcome;
use crate::state::{RemainingCapacity, State};

/// One command made from many plans, and the evaluations that it leaves open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MergedPlans {
    /// The command to propose; `None` if nothing need be written.
    pub command: Option<Entry>,
    /// Outcomes that did not fit into the command: give them to the next [`merge`].
    pub rest: Vec<ScheduleOutcome>,
    /// Evaluations in the command or refused before, each with whether any of its instances is placed.
    settled: EvalOutcomes,
}

/// The fate of evaluations once a merged command is applied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EvalOutcomes {
    pub done: Vec<EvalId>,
    /// Evaluations to look at again at once, each with whether something was placed.
    pub retry: Vec<(EvalId, bool)>,
    /// Blocked evaluations that still wait, each with the snapshot it saw.
    pub waiting: Vec<(EvalId, LogIndex)>,
}

/// Checks `outcomes` against `state`, in order, and merges the valid parts with `updates`.
#[must_use]
pub fn merge(
    state: &State,
    outcomes: Vec<ScheduleOutcome>,
    updates: Vec<EvalUpdate>,
    at: Timestamp,
) -> MergedPlans {
    let mut room = RemainingCapacity::new(state);
    let mut merged = MergedPlans::default();
    let (mut plans, mut evals, mut runs) = (Vec::new(), updates, 0);
    let mut left = limits::PLACEMENTS_MAX;
    for outcome in outcomes {
        let plan_runs: usize = outcome
            .plan
            .groups
            .iter()
            .map(|group| group.placements.len())
            .sum();
        let instances = outcome.plan.instances();
        let is_full = plans.len() >= limits::PLANS_MAX
            || runs + plan_runs > limits::PLAN_RUNS_MAX
            || instances > left;
        if !merged.rest.is_empty() || (is_full && !plans.is_empty()) {
            merged.rest.push(outcome);
            continue;
        }
        runs += plan_runs;
        let ScheduleOutcome {
            plan,
            update,
            is_partial,
            desired: _,
        } = outcome;
        let (eval_id, seen) = (plan.eval_id, plan.snapshot_index);
        let admission = admit(state, &mut room, plan, left);
        left -= admission.placed;
        if admission.dropped > 0 || is_partial {
            merged.settled.retry.push((eval_id, admission.placed > 0));
        } else if let Some(update) = update {
            // An evaluation that stays blocked comes back to the broker as an effect.
            if update.status.is_terminal() {
                merged.settled.done.push(eval_id);
            }
            evals.push(update);
        } else {
            merged.settled.waiting.push((eval_id, seen));
        }
        if !admission.plan.is_empty() {
            plans.push(admission.plan);
        }
    }
    if !plans.is_empty() || !evals.is_empty() {
        merged.command = Some(if plans.is_empty() {
            EvalCommand::Update { evals }.at(at)
        } else {
            EvalCommand::ApplyPlans { plans, evals }.at(at)
        });
    }
    merged
}

impl MergedPlans {
    /// Returns the outcomes of the evaluations after the response to the command. `None`: there was no command.
    #[must_use]
    pub fn settle(self, response: Option<&Response>) -> EvalOutcomes {
        let mut settled = self.settled;
        if let Some(Response::PlansApplied { outcomes }) = response {
            let refused = outcomes.iter().filter(|outcome| outcome.dropped > 0);
            let known: BTreeSet<EvalId> =
                settled.retry.iter().map(|(eval_id, _)| *eval_id).collect();
            settled.retry.extend(
                refused
                    .filter(|outcome| !known.contains(&outcome.eval_id))
                    .map(|outcome| (outcome.eval_id, outcome.placed > 0)),
            );
            let open: BTreeSet<EvalId> =
                settled.retry.iter().map(|(eval_id, _)| *eval_id).collect();
            settled.done.retain(|eval_id| !open.contains(eval_id));
        }
        settled
    }
}

#[cfg(test)]
mod tests;
