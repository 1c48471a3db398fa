//! Which messages of the control plane are news.
//!
//! [`Desired`] merges what servers send into what the node should run. An allocation's modify index
//! decides between two messages about it, and the index of the state a message was made from decides
//! what its silence means: a server that lags behind cannot take away what it has not heard of. So
//! repeated, late and reordered messages change nothing.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use muster_domain::alloc::{ClientStatus, DesiredAlloc};
use muster_domain::id::{AllocId, LogIndex};

use crate::limits::TOMBSTONES_MAX;

/// News for the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Run this allocation, which never ran anywhere.
    Start(Box<DesiredAlloc>),
    /// The control plane believes that this allocation runs here, but the agent has no record of
    /// it: adopt it if it is found, else report it as failed. Never start it a second time.
    Unremembered(Box<DesiredAlloc>),
    /// What is wanted of a known allocation changed.
    Update(Box<DesiredAlloc>),
    /// The control plane has forgotten this allocation: stop and destroy it.
    Gone(AllocId),
}

/// What the control plane wants of this node.
#[derive(Debug, Default)]
pub struct Desired {
    known: BTreeMap<AllocId, DesiredAlloc>,
    /// Allocations mentioned since the session began; `None` once the set was complete.
    mentioned: Option<BTreeSet<AllocId>>,
    /// Destroyed allocations: up to which index they stay away.
    tombstones: BTreeMap<AllocId, LogIndex>,
    tombstone_order: VecDeque<AllocId>,
}

impl Desired {
    /// What an earlier agent knew.
    #[must_use]
    pub fn restore(known: impl IntoIterator<Item = DesiredAlloc>) -> Self {
        Self {
            known: known
                .into_iter()
                .map(|alloc| (alloc.alloc_id, alloc))
                .collect(),
            ..Self::default()
        }
    }

    /// A session begins: the server will send every allocation of the node once.
    pub fn begin_session(&mut self) {
        self.mentioned = Some(BTreeSet::new());
    }

    /// Merges a message and says what is new. `complete` ends the first set of a session.
    pub fn apply(
        &mut self,
        index: LogIndex,
        allocs: Vec<DesiredAlloc>,
        gone: &[AllocId],
        complete: bool,
    ) -> Vec<Change> {
        let mut changes = Vec::new();
        for alloc in allocs {
            if let Some(mentioned) = &mut self.mentioned {
                mentioned.insert(alloc.alloc_id);
            }
            changes.extend(self.merge(alloc));
        }
        for alloc_id in gone {
            changes.extend(self.forget(*alloc_id, index));
        }
        if complete && let Some(mentioned) = self.mentioned.take() {
            let silent: Vec<AllocId> = self
                .known
                .keys()
                .filter(|id| !mentioned.contains(id))
                .copied()
                .collect();
            for alloc_id in silent {
                changes.extend(self.forget(alloc_id, index));
            }
        }
        changes
    }

    /// What is known of an allocation.
    #[must_use]
    pub fn get(&self, alloc_id: AllocId) -> Option<&DesiredAlloc> {
        self.known.get(&alloc_id)
    }

    /// Everything known.
    pub fn iter(&self) -> impl Iterator<Item = &DesiredAlloc> {
        self.known.values()
    }

    fn merge(&mut self, alloc: DesiredAlloc) -> Option<Change> {
        let buried = self.tombstones.get(&alloc.alloc_id);
        if buried.is_some_and(|until| alloc.alloc_modify_index <= *until) {
            return None;
        }
        match self.known.get_mut(&alloc.alloc_id) {
            Some(known) if alloc.alloc_modify_index <= known.alloc_modify_index => None,
            Some(known) => {
                known.clone_from(&alloc);
                Some(Change::Update(Box::new(alloc)))
            }
            None => {
                self.known.insert(alloc.alloc_id, alloc.clone());
                match alloc.client_status {
                    ClientStatus::Pending => Some(Change::Start(Box::new(alloc))),
                    ClientStatus::Running | ClientStatus::Unknown => {
                        Some(Change::Unremembered(Box::new(alloc)))
                    }
                    // It ran to its end in another life of this node.
                    ClientStatus::Complete | ClientStatus::Failed | ClientStatus::Lost => None,
                }
            }
        }
    }

    /// Forgets an allocation, unless the state at `index` could not know it yet.
    fn forget(&mut self, alloc_id: AllocId, index: LogIndex) -> Option<Change> {
        let newer = self
            .known
            .get(&alloc_id)
            .is_some_and(|known| known.alloc_modify_index > index);
        if newer {
            return None;
        }
        let was_known = self.known.remove(&alloc_id).is_some();
        if self.tombstones.insert(alloc_id, index).is_none() {
            self.tombstone_order.push_back(alloc_id);
        }
        if self.tombstone_order.len() > TOMBSTONES_MAX
            && let Some(oldest) = self.tombstone_order.pop_front()
        {
            self.tombstones.remove(&oldest);
        }
        was_known.then_some(Change::Gone(alloc_id))
    }
}

#[cfg(test)]
mod tests;
