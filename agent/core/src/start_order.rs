//! Decides which allocations wait: an allocation begins when the allocations that it replaces have ended.
//!
//! The control plane counts an allocation that it asks to stop as gone. In the same plan it gives the allocation's
//! room, ports, cores and devices to others. On the node the stopping process still has its whole kill timeout, and
//! keeps its port until then. So a replacement waits for the allocation that it replaces. An allocation that takes a
//! resource from another waits for that other.
//!
//! An allocation waits only for older ones, so there is never a cycle. The shell reports which allocations have ended.
//! [`AllocRunner`](crate::alloc::AllocRunner) keeps a waiting allocation from beginning.

use std::collections::{BTreeMap, BTreeSet};

use muster_domain::alloc::{DesiredAlloc, DesiredStatus};
use muster_domain::id::AllocId;
use muster_domain::scheduling::may_evict;

/// Returns the allocations of `others` that `alloc` has to wait for. `others` are the node's allocations that have not
/// ended.
pub fn before<'a>(
    alloc: &DesiredAlloc,
    others: impl IntoIterator<Item = &'a DesiredAlloc>,
) -> BTreeSet<AllocId> {
    if alloc.desired != DesiredStatus::Run {
        return BTreeSet::new();
    }
    let others = others.into_iter();
    let older = others.filter(|other| other.alloc_id.origin() < alloc.alloc_id.origin());
    let blocking = older.filter(|other| blocks_start(alloc, other));
    blocking.map(|other| other.alloc_id).collect()
}

fn blocks_start(alloc: &DesiredAlloc, other: &DesiredAlloc) -> bool {
    let leaves = match other.desired {
        DesiredStatus::Run => false,
        DesiredStatus::Stop => alloc.previous == Some(other.alloc_id),
        // The evicted allocation does not name the one it made room for. That may be `alloc`, if its priority is high
        // enough.
        DesiredStatus::Evict => {
            let priority = |of: &DesiredAlloc| of.job.spec.priority;
            alloc.previous == Some(other.alloc_id) || may_evict(priority(alloc), priority(other))
        }
    };
    // The control plane never assigns a resource twice. If `other` is still to run as far as the agent knows, its stop
    // is already under way.
    leaves || alloc.holding.meets(&other.holding)
}

/// The waiting allocations, each with the allocations that it waits for.
#[derive(Debug, Default)]
pub struct StartDependencies {
    waiting: BTreeMap<AllocId, BTreeSet<AllocId>>,
}

impl StartDependencies {
    /// Lets an allocation wait for those in `before`, unless `before` is empty.
    pub fn wait(&mut self, alloc_id: AllocId, before: BTreeSet<AllocId>) {
        if !before.is_empty() {
            self.waiting.insert(alloc_id, before);
        }
    }

    /// Takes in the end of an allocation. Returns the allocations that may now begin, the oldest first.
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
