//! Blocked evaluations: they wait for room, and are woken by room that could help them.
//!
//! Memory of the leader only. One for each job, which the state sees to. Room that came free between the
//! snapshot of an evaluation and its arrival here is remembered, so that none is woken never.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use muster_domain::eval::Evaluation;
use muster_domain::id::{EvalId, LogIndex, NodeId};

use crate::limits;
use crate::scheduler;
use crate::state::State;

/// Evaluations that wait for room.
#[derive(Debug, Default)]
pub struct BlockedEvals {
    evals: BTreeMap<EvalId, Arc<Evaluation>>,
    /// Nodes with more room, oldest first.
    recent: VecDeque<(LogIndex, NodeId)>,
    /// Room that came free up to here may be forgotten.
    forgotten: LogIndex,
}

impl BlockedEvals {
    /// Begins anew: nothing is known of room that came free up to `applied`.
    pub fn lead(&mut self, applied: LogIndex) {
        *self = Self {
            forgotten: applied,
            ..Self::default()
        };
    }

    /// Takes `eval`, which found no room in the snapshot at `seen`. `true`: room may have come free since,
    /// so it is not taken and must be looked at again.
    pub fn block(&mut self, state: &State, eval: &Arc<Evaluation>, seen: LogIndex) -> bool {
        let missed = seen < self.forgotten
            || self
                .recent
                .iter()
                .rev()
                .take_while(|(index, _)| *index > seen)
                .any(|(_, node_id)| scheduler::could_help(state, eval, node_id));
        if !missed {
            self.evals.insert(eval.id, Arc::clone(eval));
        }
        missed
    }

    /// Node `node_id` has more room since `index`. Gives back, and lets go of, evaluations it could help,
    /// the most important first.
    pub fn handle_capacity(
        &mut self,
        state: &State,
        node_id: NodeId,
        index: LogIndex,
    ) -> Vec<Arc<Evaluation>> {
        self.recent.push_back((index, node_id));
        if self.recent.len() > limits::RECENT_CAPACITY_MAX
            && let Some((oldest, _)) = self.recent.pop_front()
        {
            self.forgotten = self.forgotten.max(oldest);
        }
        let mut woken: Vec<Arc<Evaluation>> = self
            .evals
            .values()
            .filter(|eval| scheduler::could_help(state, eval, &node_id))
            .map(Arc::clone)
            .collect();
        for eval in &woken {
            self.evals.remove(&eval.id);
        }
        woken.sort_by_key(|eval| (std::cmp::Reverse(eval.priority), eval.create_index, eval.id));
        woken
    }

    /// An evaluation has ended, or is looked at again for another reason.
    pub fn forget(&mut self, eval_id: &EvalId) {
        self.evals.remove(eval_id);
    }

    /// How many wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.evals.len()
    }

    /// Whether none waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.evals.is_empty()
    }
}

#[cfg(test)]
mod tests;
