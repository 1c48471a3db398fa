//! Blocked evaluations: they wait for room, and are woken by room that could help them.
//!
//! Memory of the leader only. One for each job, which the state sees to. Room that came free between the
//! snapshot of an evaluation and its arrival here is remembered, so that none is woken never.
//!
//! A node that has more room is *offered* to those that wait, the most important first, and among equals by turns
//! ([`fair_queue`]): to as many as its
//! room is enough for, and to the next ones when these have been looked at. So a long queue costs what is placed, not
//! what waits, and nobody is passed over, because an offer goes on until it was made to all. That no room is left for
//! any of them is seen without a look at each ([`queue`]).

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

/// The most important first, then the oldest.
pub(crate) type WaitKey = (Reverse<u8>, LogIndex, EvalId);

/// Where an evaluation stands among others. A one-off task keeps its age however often it was looked at.
pub(crate) fn wait_key(eval: &Evaluation) -> WaitKey {
    let age = if eval.job.is_one_off() {
        eval.job_modify_index
    } else {
        eval.create_index
    };
    (Reverse(eval.priority), age, eval.id)
}

/// Where an evaluation stands among those that wait for room: the most important first, then by turns, then by age.
type TurnKey = (Reverse<u8>, u64, LogIndex, EvalId);

/// Evaluations that wait for room.
#[derive(Debug, Default)]
pub struct BlockedEvals {
    queue: Queue,
    turns: FairQueue,
    /// Room that is being offered.
    offers: BTreeMap<NodeId, CapacityOffer>,
    /// Whom it was offered to, until they have been looked at.
    woken: BTreeMap<EvalId, NodeId>,
    /// Offers that go on.
    due: Vec<NodeId>,
    /// Nodes with more room, oldest first.
    recent: VecDeque<(LogIndex, NodeId)>,
    /// Room that came free up to here may be forgotten.
    forgotten: LogIndex,
}

/// The room of one node on its way through those that wait.
#[derive(Debug, Default)]
struct CapacityOffer {
    /// Evaluations that were woken for it and have not been looked at, with the amount that each may take.
    pending: BTreeMap<EvalId, Amount>,
    /// The evaluation that comes next; `None`: all had it.
    next: Option<TurnKey>,
}

/// Before everybody.
const FIRST: TurnKey = (Reverse(u8::MAX), 0, LogIndex(0), EvalId([0; 16]));

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
            let turn = self.turns.give(state, eval);
            let (priority, age, id) = wait_key(eval);
            let need = scheduler::needs_room(state, eval);
            let key = (priority, turn, age, id);
            self.queue.insert(key, Arc::clone(eval), need);
        }
        missed
    }

    /// Node `node_id` has more room since `index`. Gives back, and lets go of, evaluations it could help, as many
    /// as it may have room for, the most important first.
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

    /// More is allowed since `index` than before: gives back, and lets go of, all that wait.
    pub fn handle_eased(&mut self, index: LogIndex) -> Vec<Arc<Evaluation>> {
        self.forgotten = self.forgotten.max(index);
        std::mem::take(&mut self.queue).into_evals().collect()
    }

    /// Gives back, and lets go of, those to whom offers go on, because the ones before them have been looked at.
    pub fn go_on(&mut self, state: &State) -> Vec<Arc<Evaluation>> {
        let due = std::mem::take(&mut self.due);
        let woken = due.into_iter().map(|node_id| self.offer(state, node_id));
        woken.collect::<Vec<_>>().concat()
    }

    /// An evaluation that was woken has been looked at, or has ended: what it did not take is for others.
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

    /// An evaluation does not wait any more.
    pub fn forget(&mut self, eval_id: &EvalId) {
        self.queue.remove(eval_id);
    }

    /// An evaluation has ended; `served`: with what it waited for.
    pub fn end(&mut self, eval_id: &EvalId, served: bool) {
        self.forget(eval_id);
        self.turns.end(eval_id, served);
    }

    /// How many wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Whether none waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Takes the offer of `node_id` on: wakes the next evaluations for which its room is enough.
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
            // One that is more than the room is for, such as by taking the place of others, goes alone.
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
