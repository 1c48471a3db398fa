//! Those that wait for room, in order, and what is the least that helps them.
//!
//! A node whose room is too little for everybody is found out by the different needs there are, which are few, and not
//! by a look at each that waits: with thousands of tasks alike in the queue of a full node every task that ends
//! would cost as much as all that wait.

use std::collections::BTreeMap;
use std::sync::Arc;

use muster_domain::eval::Evaluation;
use muster_domain::id::EvalId;
use muster_domain::resources::Amount;

use super::TurnKey;

/// Those that wait.
#[derive(Debug, Default)]
pub(super) struct Queue {
    waiting: BTreeMap<TurnKey, BlockedEval>,
    keys: BTreeMap<EvalId, TurnKey>,
    /// How many need so much of a node at least.
    needs: BTreeMap<NeedKey, usize>,
}

/// A need as a key.
type NeedKey = Option<[u64; 4]>;

#[derive(Debug)]
struct BlockedEval {
    eval: Arc<Evaluation>,
    /// With less than this of a node it cannot be helped; `None`: only a look can tell.
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

/// Whether `room` is too little. `None`: room is not what decides.
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

    /// From `next` on all for whom `room` may be enough, in order. `None`: room is not what decides.
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
