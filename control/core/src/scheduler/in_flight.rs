//! Plans in flight: plans that are made and not yet committed.
//!
//! Between a plan and its entry there is a write to disk. A scheduler that plans meanwhile on the same nodes would
//! choose the same nodes. For this scheduler, the nodes count as full as they are about to be.
//!
//! A plan counts until its evaluation has been written since, or is planned anew. A plan for a job that is not in the
//! state yet counts until the job is there, or should have been. The commit of such a plan is likely and not sure. So
//! no evaluation is reported to lack room because of it, and no allocation is evicted because of it.

use std::collections::BTreeMap;

use imbl::OrdMap;
use muster_domain::id::{EvalId, JobKey, LogIndex, Timestamp};
use muster_domain::resources::{Amount, Holding};

use crate::state::{Columns, NodeHoldings, State, numbered};

/// A placed instance: its node, and the amount and holding that it takes of the node.
pub(super) type PlacedInstance = (usize, Amount, Holding);

/// The amounts that plans in flight take.
#[derive(Debug, Default)]
pub(super) struct InFlightPlans {
    plans: BTreeMap<EvalId, InFlightPlan>,
    /// The last entry of the state to which the other fields apply; `None` before the first.
    of: Option<LogIndex>,
    /// The nodes of that state as they are after the plans.
    after: NodeOverlay,
    /// Plans that are not in `after` yet: most are written before the next read.
    added: Vec<EvalId>,
}

/// Nodes after some plans.
#[derive(Clone, Debug, Default)]
pub(super) struct NodeOverlay {
    pub(super) columns: Columns,
    /// The holdings of nodes where a plan changed them.
    pub(super) held: OrdMap<usize, NodeHoldings>,
}

impl NodeOverlay {
    /// Returns the nodes after no plans.
    pub(super) fn without_plans(state: &State) -> Self {
        Self {
            columns: state.nodes().shared_columns(),
            held: OrdMap::new(),
        }
    }

    fn take(&mut self, state: &State, (number, amount, holding): &PlacedInstance) {
        let Some(column) = self.columns.get_mut(*number) else {
            return;
        };
        column.used = column.used.plus(*amount);
        if !holding.is_empty() {
            self.held_mut(state, *number).take(holding);
        }
    }

    /// Returns the holdings of node `number`, to write to.
    pub(super) fn held_mut(&mut self, state: &State, number: usize) -> &mut NodeHoldings {
        let held = self.held.entry(number);
        held.or_insert_with(|| state.nodes().holdings(numbered(number)).clone())
    }
}

/// A plan in flight.
#[derive(Debug)]
struct InFlightPlan {
    /// The last entry of the state for which it was made.
    since: LogIndex,
    placed: Vec<PlacedInstance>,
    /// The job of the plan, if that state does not have it, and the time until which the job may come.
    unrecorded_job: Option<(JobKey, Timestamp)>,
}

impl InFlightPlan {
    /// Returns whether the plan may still be written after `state`.
    fn may_be_written(&self, state: &State, eval_id: &EvalId, now: Timestamp) -> bool {
        match &self.unrecorded_job {
            Some((key, until)) => *until > now && state.jobs().get(key).is_none(),
            None => {
                let eval = state.evals().get(eval_id);
                eval.is_some_and(|eval| eval.modify_index <= self.since)
            }
        }
    }
}

impl InFlightPlans {
    /// Returns a value without plans in flight.
    pub(super) fn without_plans(state: &State) -> Self {
        Self {
            plans: BTreeMap::new(),
            of: Some(state.applied()),
            after: NodeOverlay::without_plans(state),
            added: Vec::new(),
        }
    }

    /// Removes the plans that are in `state` already, and the last plan for `eval_id`.
    pub(super) fn begin(&mut self, state: &State, eval_id: &EvalId, now: Timestamp) {
        let is_replaced = self.plans.remove(eval_id).is_some();
        if self.of == Some(state.applied()) && !is_replaced {
            for eval_id in std::mem::take(&mut self.added) {
                let placed = self.plans.get(&eval_id).map(|plan| &plan.placed);
                for placed in placed.into_iter().flatten() {
                    self.after.take(state, placed);
                }
            }
            return;
        }
        self.added.clear();
        self.plans
            .retain(|eval_id, plan| plan.may_be_written(state, eval_id, now));
        self.of = Some(state.applied());
        self.after = NodeOverlay::without_plans(state);
        for placed in self.plans.values().flat_map(|plan| &plan.placed) {
            self.after.take(state, placed);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.plans.is_empty()
    }

    /// Returns whether no plan is in flight except a plan for `eval_id`.
    pub(super) fn is_alone(&self, eval_id: &EvalId) -> bool {
        self.plans.keys().all(|other| other == eval_id)
    }

    /// Replaces its own plan for `eval_id` by the plan of `other`, which had no record of other plans.
    pub(super) fn replace(
        &mut self,
        state: &State,
        eval_id: &EvalId,
        now: Timestamp,
        mut other: Self,
    ) {
        self.begin(state, eval_id, now);
        if let Some(InFlightPlan { placed, .. }) = other.plans.remove(eval_id) {
            self.add(state, *eval_id, placed);
        }
    }

    pub(super) fn add(&mut self, state: &State, eval_id: EvalId, placed: Vec<PlacedInstance>) {
        if placed.is_empty() {
            return;
        }
        let since = state.applied();
        let unrecorded_job = None;
        let under = InFlightPlan {
            since,
            placed,
            unrecorded_job,
        };
        self.plans.insert(eval_id, under);
        self.added.push(eval_id);
    }

    /// Records that the plan for `eval_id`, which the state does not have, is for the job `key`, which may come until
    /// `until`.
    pub(super) fn expect_job(&mut self, eval_id: &EvalId, key: JobKey, until: Timestamp) {
        if let Some(plan) = self.plans.get_mut(eval_id) {
            plan.unrecorded_job = Some((key, until));
        }
    }

    /// Removes the plan for `eval_id`, which will not be written.
    pub(super) fn remove(&mut self, eval_id: &EvalId) {
        if self.plans.remove(eval_id).is_some() {
            // The computed nodes may include the plan.
            self.of = None;
        }
    }

    /// Returns the nodes after the plans that [`Self::begin`] kept.
    pub(super) fn after(&self) -> &NodeOverlay {
        &self.after
    }
}
