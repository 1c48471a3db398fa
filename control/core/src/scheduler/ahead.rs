//! Plans that are made and not yet committed.
//!
//! Between a plan and its entry there is a write to disk, and whoever plans meanwhile on the same nodes would choose the
//! same ones: for him they count as full as they are about to be. A plan counts until its evaluation was written since,
//! or is planned anew. That it will be committed is likely and not sure, so nobody is told that there is no room, and
//! nobody is evicted, because of it.

use std::collections::BTreeMap;

use muster_domain::id::{EvalId, LogIndex};
use muster_domain::resources::{Amount, Holding};

use crate::state::State;

/// One instance that was placed: on which node, and what it takes of it.
pub(super) type Placed = (usize, Amount, Holding);

/// What plans that are under way take.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    plans: BTreeMap<EvalId, Under>,
}

/// A plan under way.
#[derive(Debug)]
struct Under {
    /// The last entry of the state it was made on.
    since: LogIndex,
    placed: Vec<Placed>,
}

impl Ahead {
    /// Forgets what `state` shows already, and the last plan for `eval_id`.
    pub(super) fn begin(&mut self, state: &State, eval_id: &EvalId) {
        self.plans.remove(eval_id);
        self.plans.retain(|eval_id, plan| {
            let eval = state.evals().get(eval_id);
            eval.is_some_and(|eval| eval.modify_index <= plan.since)
        });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.plans.is_empty()
    }

    /// Whether nothing but a plan for `eval_id` is under way.
    pub(super) fn is_alone(&self, eval_id: &EvalId) -> bool {
        self.plans.keys().all(|other| other == eval_id)
    }

    /// Takes over what another knows, except about `eval_id`.
    pub(super) fn join(&mut self, mut other: Self, eval_id: &EvalId) {
        other.plans.remove(eval_id);
        self.plans.append(&mut other.plans);
    }

    pub(super) fn add(&mut self, state: &State, eval_id: EvalId, placed: Vec<Placed>) {
        if !placed.is_empty() {
            let since = state.applied();
            self.plans.insert(eval_id, Under { since, placed });
        }
    }

    /// All that is placed.
    pub(super) fn placed(&self) -> impl Iterator<Item = &Placed> {
        self.plans.values().flat_map(|plan| &plan.placed)
    }
}
