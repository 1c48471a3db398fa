//! Waiting evaluations in order, and the least room that helps each of them.
//!
//! A node with too little room for every evaluation is detected by the distinct needs, which are few. No look at each
//! waiting evaluation is necessary. Otherwise, with thousands of similar tasks in the queue of a full node, every task
//! that ends would cost a look at all of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use muster_domain::eval::Evaluation;
use muster_domain::id::EvalId;
use muster_domain::resources::Amount;

use super::TurnKey;

/// The waiting evaluations.
#[derive(Debug, Default)]
pub(super) struct Queue {
    waiting: BTreeMap<TurnKey, BlockedEval>,
    keys: BTreeMap<EvalId, TurnKey>,
    /// The number of evaluations with each least need.
    needs: BTreeMap<NeedKey, usize>,
}

/// A need as a key.
type NeedKey = Option<[u64; 4]>;

#[derive(Debug)]
struct BlockedEval {
    eval: Arc<Evaluation>,
    /// A node with less room than this cannot help the evaluation; `None`: only a look can tell.
    need: Option<Amount>,
}

fn key(need: Option<Amount>) -> NeedKey {
    need.map(|amount| {
        let Amount {
            cpu_mhz,
            memory_mb,
            disk_mb,
            allocs,
        } = amount;
        [cpu_mhz, memory_mb, disk_mb, allocs]
    })
}

fn amount(need: NeedKey) -> Option<Amount> {
    need.map(|[cpu_mhz, memory_mb, disk_mb, allocs]| Amount {
        cpu_mhz,
        memory_mb,
        disk_mb,
        allocs,
    })
}

/// Returns whether `room` is too little. `None`: the amount of room does not decide.
fn is_too_little(room: Option<Amount>, need: Option<Amount>) -> bool {
    room.zip(need)
        .is_some_and(|(room, need)| need.exceeds(room).is_some())
}

impl Queue {
    pub(super) fn insert(&mut self, at: TurnKey, eval: Arc<Evaluation>, need: Option<Amount>) {
        self.remove(&eval.id);
        self.keys.insert(eval.id, at);
        *self.needs.entry(key(need)).or_default() += 1;
        self.waiting.insert(at, BlockedEval { eval, need });
    }

    pub(super) fn remove(&mut self, eval_id: &EvalId) {
        let at = self.keys.remove(eval_id);
        let Some(BlockedEval { need, .. }) = at.and_then(|at| self.waiting.remove(&at)) else {
            return;
        };
        if let Some(count) = self.needs.get_mut(&key(need)) {
            *count -= 1;
            if *count == 0 {
                self.needs.remove(&key(need));
            }
        }
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(super) fn into_evals(self) -> impl Iterator<Item = Arc<Evaluation>> {
        self.waiting.into_values().map(|waiting| waiting.eval)
    }

    /// Returns, in order from `next` on, all evaluations for which `room` may be enough. `None`: the amount of room
    /// does not decide.
    pub(super) fn that_may_fit(
        &self,
        next: TurnKey,
        room: Option<Amount>,
    ) -> impl Iterator<Item = (&TurnKey, &Arc<Evaluation>)> {
        let mut needs = self.needs.keys();
        let helps = needs.any(|need| !is_too_little(room, amount(*need)));
        let waiting = helps.then(|| self.waiting.range(next..));
        waiting
            .into_iter()
            .flatten()
            .filter(move |(_, waiting)| !is_too_little(room, waiting.need))
            .map(|(key, waiting)| (key, &waiting.eval))
    }
}
