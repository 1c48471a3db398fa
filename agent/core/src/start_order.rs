//! Decides which allocation waits for which: one begins when those whose place it takes have ended.
//!
//! The control plane counts an allocation that it tells to stop as gone. In the same plan it gives its room, ports,
//! cores and devices away. On the node a process that is asked to stop has its whole kill timeout, and the port with
//! it. So a replacement waits for the allocation that it replaces, and an allocation that takes something from another
//! waits for that other.
//!
//! Only older allocations are waited for, so there is never a circle. The shell says which allocations have ended, and
//! [`AllocRunner`](crate::alloc::AllocRunner) keeps a waiting allocation from beginning.

use std::collections::{BTreeMap, BTreeSet};

use muster_domain::alloc::{DesiredAlloc, DesiredStatus};
use muster_domain::id::AllocId;
use muster_domain::scheduling::may_evict;

/// Whom `alloc` has to wait for, of `others`: the node's allocations that have not ended.
pub fn before<'a>(
    alloc: &DesiredAlloc,
    others: impl IntoIterator<Item = &'a DesiredAlloc>,
) -> BTreeSet<AllocId> {
    if alloc.desired != DesiredStatus::Run {
        return BTreeSet::new();
    }
    let others = others.into_iter();
    let older = others.filter(|other| other.alloc_id.origin() < alloc.alloc_id.origin());
    let in_the_way = older.filter(|other| is_in_the_way(alloc, other));
    in_the_way.map(|other| other.alloc_id).collect()
}

fn is_in_the_way(alloc: &DesiredAlloc, other: &DesiredAlloc) -> bool {
    let leaves = match other.desired {
        DesiredStatus::Run => false,
        DesiredStatus::Stop => alloc.previous == Some(other.alloc_id),
        // Which allocation it made room for is not said: it may be this one, if that is important enough.
        DesiredStatus::Evict => {
            let priority = |of: &DesiredAlloc| of.job.spec.priority;
            alloc.previous == Some(other.alloc_id) || may_evict(priority(alloc), priority(other))
        }
    };
    // Nothing is given away twice: if the other is to run as far as is known, its stop is under way.
    leaves || alloc.holding.meets(&other.holding)
}

/// The allocations that wait, each with those that it waits for.
#[derive(Debug, Default)]
pub struct StartDependencies {
    waiting: BTreeMap<AllocId, BTreeSet<AllocId>>,
}

impl StartDependencies {
    /// An allocation waits for those of `before`, unless there are none.
    pub fn wait(&mut self, alloc_id: AllocId, before: BTreeSet<AllocId>) {
        if !before.is_empty() {
            self.waiting.insert(alloc_id, before);
        }
    }

    /// An allocation has ended: whose turn it is then, the oldest first.
    pub fn handle_ended(&mut self, alloc_id: AllocId) -> Vec<AllocId> {
        self.waiting.remove(&alloc_id);
        let mut free = Vec::new();
        self.waiting.retain(|waiting, before| {
            if before.remove(&alloc_id) && before.is_empty() {
                free.push(*waiting);
            }
            !before.is_empty()
        });
        free.sort_unstable_by_key(AllocId::origin);
        free
    }
}

#[cfg(test)]
mod tests;
