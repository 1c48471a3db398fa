//! Blocked evaluations: they wait for room on a node, and are woken by room that could help them.
//!
//! This is memory of the leader only. Each job has at most one blocked evaluation; the state guarantees that. Room can
//! come free between the snapshot of an evaluation and the evaluation's arrival here. Such room is remembered, so that
//! every evaluation is woken.
//!
//! A node with more room is *offered* to waiting evaluations: the most important first, and by turns among equally
//! important ones ([`fair_queue`]). An offer goes to as many evaluations as the room is enough for. It goes to the next
//! evaluations when the scheduler has looked at these. So a long queue costs time for each placement, not for each
//! waiting evaluation. No evaluation is passed over, because an offer goes on until every evaluation had it. The module
//! detects without a look at each evaluation that the room is too small for all of them ([`queue`]).

mod fair_queue;
mod queue;

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use muster_domain::eval::Evaluation;
use muster_domain::id::{EvalId, LogIndex, NodeId};
use muster_domain::resources::Amount;
use queue::Queue;

use crate::limits;
use crate::scheduler;
use crate::state::State;
use fair_queue::FairQueue;

/// The order of evaluations: the most important first, then the oldest.
pub(crate) type WaitKey = (Reverse<u8>, LogIndex, EvalId);

/// Returns the position of an evaluation among others. A one-off task keeps its age however often it was looked at.
pub(crate) fn wait_key(eval: &Evaluation) -> WaitKey {
    let age = if eval.job.is_one_off() {
        eval.job_modify_index
    } else {
        eval.create_index
    };
    (Reverse(eval.priority), age, eval.id)
}

/// The order of evaluations that wait for room: the most important first, then by turn, then by age.
type TurnKey = (Reverse<u8>, u64, LogIndex, EvalId);

/// Evaluations that wait for room.
#[derive(Debug, Default)]
pub struct BlockedEvals {
    queue: Queue,
    turns: FairQueue,
    /// Room that is being offered.
    offers: BTreeMap<NodeId, CapacityOffer>,
    /// Evaluations to which a node's room was offered, until the scheduler has looked at them.
    woken: BTreeMap<EvalId, NodeId>,
    /// Nodes whose offers go on.
    due: Vec<NodeId>,
    /// Nodes with more room, oldest first.
    recent: VecDeque<(LogIndex, NodeId)>,
    /// Capacity events up to this entry may be forgotten.
    forgotten: LogIndex,
}

/// The offer of one node's room to the waiting evaluations, one after the other.
#[derive(Debug, Default)]
struct CapacityOffer {
    /// Evaluations that were woken for the room and have not been looked at, with the amount that each may take.
    pending: BTreeMap<EvalId, Amount>,
    /// The evaluation that gets the offer next; `None`: all evaluations had it.
    next: Option<TurnKey>,
}

/// The key that sorts before every evaluation.
const FIRST: TurnKey = (Reverse(u8::MAX), 0, LogIndex(0), EvalId([0; 16]));

impl BlockedEvals {
    /// Begins anew: the queue has no record of room that came free up to `applied`.
    pub fn reset(&mut self, applied: LogIndex) {
        *self = Self {
            forgotten: applied,
            ..Self::default()
        };
    }

    /// Takes `eval`, which found no room in the snapshot at `seen`. Returns `true` if room may have come free since.
    /// The evaluation is then not taken and must be looked at again.
    pub fn block(&mut self, state: &State, eval: &Arc<Evaluation>, seen: LogIndex) -> bool {
        let missed = seen < self.forgotten
            || self
                .recent
                .iter()
                .rev()
                .take_while(|(index, _)| *index > seen)
                .any(|(_, node_id)| scheduler::could_help(state, eval, node_id));
        if !missed {
            let turn = self.turns.give(state, eval);
            let (priority, age, id) = wait_key(eval);
            let need = scheduler::needs_room(state, eval);
            let key = (priority, turn, age, id);
            self.queue.insert(key, Arc::clone(eval), need);
        }
        missed
    }

    /// Handles that node `node_id` has more room since `index`. Releases and returns evaluations that the room could
    /// help: as many as it may be enough for, the most important first.
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
        if self.queue.is_empty() {
            return Vec::new();
        }
        self.offers.entry(node_id).or_default().next = Some(FIRST);
        self.offer(state, node_id)
    }

    /// Handles that more is allowed since `index` than before. Releases and returns all waiting evaluations.
    pub fn handle_eased(&mut self, index: LogIndex) -> Vec<Arc<Evaluation>> {
        self.forgotten = self.forgotten.max(index);
        std::mem::take(&mut self.queue).into_evals().collect()
    }

    /// Releases and returns the evaluations to which offers go on, because the evaluations before them have been looked
    /// at.
    pub fn continue_offers(&mut self, state: &State) -> Vec<Arc<Evaluation>> {
        let due = std::mem::take(&mut self.due);
        let woken = due.into_iter().map(|node_id| self.offer(state, node_id));
        woken.collect::<Vec<_>>().concat()
    }

    /// Handles that a woken evaluation has been looked at, or has ended: the room that it did not take is offered to
    /// others.
    pub fn release(&mut self, eval_id: &EvalId) {
        let Some(node_id) = self.woken.remove(eval_id) else {
            return;
        };
        if let Some(offer) = self.offers.get_mut(&node_id) {
            offer.pending.remove(eval_id);
            if offer.pending.is_empty() {
                self.due.push(node_id);
            }
        }
    }

    /// Removes an evaluation that does not wait any more.
    pub fn forget(&mut self, eval_id: &EvalId) {
        self.queue.remove(eval_id);
    }

    /// Handles the end of an evaluation; `served`: it got the room that it waited for.
    pub fn end(&mut self, eval_id: &EvalId, served: bool) {
        self.forget(eval_id);
        self.turns.end(eval_id, served);
    }

    /// Returns the number of waiting evaluations.
    #[must_use]
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Returns whether no evaluation waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Continues the offer of `node_id`: wakes the next evaluations for which its room is enough.
    fn offer(&mut self, state: &State, node_id: NodeId) -> Vec<Arc<Evaluation>> {
        let Some(offer) = self.offers.get_mut(&node_id) else {
            return Vec::new();
        };
        let mut free = free(state, &node_id);
        let room = (!scheduler::may_evict_for_one_offs(state)).then_some(free);
        for ask in offer.pending.values() {
            free = free.minus(*ask);
        }
        let mut woken = Vec::new();
        let next = offer.next.take();
        let waiting = next.map(|next| self.queue.that_may_fit(next, room));
        for (key, eval) in waiting.into_iter().flatten() {
            if !scheduler::could_help(state, eval, &node_id) {
                continue;
            }
            let ask = scheduler::waits_for(state, eval);
            // An evaluation that asks for more than the room, such as by preemption, is woken alone.
            let is_first = woken.is_empty() && offer.pending.is_empty();
            if ask.exceeds(free).is_some() && !is_first {
                offer.next = Some(*key);
                break;
            }
            free = free.minus(ask);
            offer.pending.insert(eval.id, ask);
            woken.push(Arc::clone(eval));
        }
        if offer.pending.is_empty() {
            self.offers.remove(&node_id);
        }
        for eval in &woken {
            self.forget(&eval.id);
            self.woken.insert(eval.id, node_id);
        }
        woken
    }
}

/// The free resources of a node.
fn free(state: &State, node_id: &NodeId) -> Amount {
    let nodes = state.nodes();
    let number = nodes.number(node_id);
    let column = number.and_then(|number| nodes.column_at(number));
    column.map_or_else(Amount::default, |column| column.total.minus(column.used))
}

#[cfg(test)]
mod tests;
