//! Decides which messages of the control plane change the desired allocations.
//!
//! [`Desired`] merges the servers' messages into the set of allocations that the node should run. Of two messages about
//! an allocation, the one with the higher modify index counts. A message that omits an allocation removes it only if
//! the message's state index covers that allocation. So a lagging server cannot remove an allocation that it has not
//! received yet. Repeated, late and reordered messages change nothing. A set carries its number of allocations, so a
//! missing message is detected.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use muster_domain::alloc::{ClientStatus, DesiredAlloc};
use muster_domain::id::{AllocId, LogIndex};

use crate::heartbeat_lease;
use crate::limits::TOMBSTONES_MAX;

/// A change of the node's desired allocations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Run this allocation, which never ran on any node.
    Start(Box<DesiredAlloc>),
    /// The control plane believes that this allocation runs here, but the agent has no record of it. The agent adopts
    /// it if it finds its processes, and else reports it as failed. It never starts the allocation a second time.
    Unremembered(Box<DesiredAlloc>),
    /// The desired state of a known allocation changed.
    Update(Box<DesiredAlloc>),
    /// The control plane has forgotten this allocation: stop and destroy it.
    Gone(AllocId),
}

/// A message of the control plane about the desired allocations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DesiredUpdate {
    /// The index of the state that the message was made from.
    pub index: LogIndex,
    pub allocs: Vec<DesiredAlloc>,
    /// Allocations whose desired state did not change.
    pub unchanged: Vec<AllocId>,
    pub gone: Vec<AllocId>,
    /// The number of the node's allocations at `index`, if this message ends a set.
    pub complete: Option<u32>,
}

/// The result of merging a message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MergeOutcome {
    /// The changes for the node.
    pub changes: Vec<Change>,
    /// Whether the first set of the session is complete. Allocations that it does not name are not wanted.
    pub whole: bool,
    /// Whether the server believes that the agent knows an allocation that it has no record of. The agent then asks for
    /// everything again.
    pub ask_again: bool,
}

/// The node's allocations at one index, as far as the server has sent them.
#[derive(Debug, Default)]
struct PartialDesiredSet {
    mentioned: BTreeSet<AllocId>,
    /// The number of allocations in the set, once the server has sent it.
    count: Option<usize>,
}

/// The allocations that the control plane wants on this node.
#[derive(Debug, Default)]
pub struct Desired {
    known: BTreeMap<AllocId, DesiredAlloc>,
    /// The known allocations that may run without a server only for a limited time. There are few, and they are read
    /// after each event.
    dependent: BTreeSet<AllocId>,
    /// The index up to which the whole desired state is known.
    index: LogIndex,
    /// The sets that are being received, by index, until the first set of the session is complete; `None` after that.
    sets: Option<BTreeMap<LogIndex, PartialDesiredSet>>,
    /// Destroyed allocations, each with the index up to which a message about it is ignored.
    tombstones: BTreeMap<AllocId, LogIndex>,
    tombstone_order: VecDeque<AllocId>,
}

impl Desired {
    /// Restores the allocations that an earlier agent knew.
    #[must_use]
    pub fn restore(known: impl IntoIterator<Item = DesiredAlloc>) -> Self {
        let mut this = Self::default();
        for alloc in known {
            this.note_dependence(&alloc);
            this.known.insert(alloc.alloc_id, alloc);
        }
        this
    }

    fn note_dependence(&mut self, alloc: &DesiredAlloc) {
        if heartbeat_lease::disconnect_timeout(alloc).is_some() {
            self.dependent.insert(alloc.alloc_id);
        } else {
            self.dependent.remove(&alloc.alloc_id);
        }
    }

    /// The index up to which the whole desired state is known. A server need not repeat the state up to it. It is 0 for
    /// an agent that was just started, because its store may have lost unwritten state.
    #[must_use]
    pub fn index(&self) -> LogIndex {
        self.index
    }

    /// Begins a session. The server will mention every allocation of the node once.
    pub fn begin_session(&mut self) {
        self.sets = Some(BTreeMap::new());
    }

    /// Merges a message and returns the changes.
    pub fn apply(&mut self, update: DesiredUpdate) -> MergeOutcome {
        let mut merged = MergeOutcome::default();
        if let Some(sets) = &mut self.sets {
            let set = sets.entry(update.index).or_default();
            set.mentioned
                .extend(update.allocs.iter().map(|alloc| alloc.alloc_id));
            set.mentioned.extend(&update.unchanged);
            set.count = update.complete.map(|count| count as usize).or(set.count);
        }
        for alloc in update.allocs {
            merged.changes.extend(self.merge(alloc));
        }
        merged.ask_again = update.unchanged.iter().any(|id| !self.has_seen(*id));
        for alloc_id in update.gone {
            merged.changes.extend(self.forget(alloc_id, update.index));
        }
        if merged.ask_again {
            self.index = LogIndex(0);
        } else if self.sets.is_some() {
            self.end_set(update.index, &mut merged);
        } else if let Some(count) = update.complete
            && self.count_at(update.index) == count as usize
        {
            self.index = self.index.max(update.index);
        }
        merged
    }

    /// Ends the set at `index` if it is complete. Allocations that the set does not name are not wanted. A message that
    /// arrives after the end of its set must not count as an omission.
    fn end_set(&mut self, index: LogIndex, merged: &mut MergeOutcome) {
        let sets = self.sets.as_ref();
        let Some(set) = sets.and_then(|sets| sets.get(&index)) else {
            return;
        };
        if set.count != Some(set.mentioned.len()) {
            return;
        }
        let silent: Vec<AllocId> = self
            .known
            .keys()
            .filter(|id| !set.mentioned.contains(id))
            .copied()
            .collect();
        for alloc_id in silent {
            merged.changes.extend(self.forget(alloc_id, index));
        }
        self.sets = None;
        self.index = self.index.max(index);
        merged.whole = true;
    }

    /// The number of known allocations that existed at `index`.
    fn count_at(&self, index: LogIndex) -> usize {
        let known = self.known.values();
        known
            .filter(|alloc| alloc.alloc_modify_index <= index)
            .count()
    }

    fn has_seen(&self, alloc_id: AllocId) -> bool {
        self.known.contains_key(&alloc_id) || self.tombstones.contains_key(&alloc_id)
    }

    /// The desired state of an allocation, if it is known.
    #[must_use]
    pub fn get(&self, alloc_id: AllocId) -> Option<&DesiredAlloc> {
        self.known.get(&alloc_id)
    }

    /// Iterates over all known allocations.
    pub fn iter(&self) -> impl Iterator<Item = &DesiredAlloc> {
        self.known.values()
    }

    /// The allocations that may run without a server only for a limited time.
    pub(crate) fn dependent(&self) -> impl Iterator<Item = &DesiredAlloc> {
        let ids = self.dependent.iter();
        ids.filter_map(|alloc_id| self.known.get(alloc_id))
    }

    fn merge(&mut self, alloc: DesiredAlloc) -> Option<Change> {
        let buried = self.tombstones.get(&alloc.alloc_id);
        if buried.is_some_and(|until| alloc.alloc_modify_index <= *until) {
            return None;
        }
        let known = self.known.get(&alloc.alloc_id);
        if known.is_some_and(|known| alloc.alloc_modify_index <= known.alloc_modify_index) {
            return None;
        }
        self.note_dependence(&alloc);
        match self.known.insert(alloc.alloc_id, alloc.clone()) {
            Some(_before) => Some(Change::Update(Box::new(alloc))),
            None => {
                match alloc.client_status {
                    ClientStatus::Pending => Some(Change::Start(Box::new(alloc))),
                    ClientStatus::Running | ClientStatus::Unknown => {
                        Some(Change::Unremembered(Box::new(alloc)))
                    }
                    // The allocation ran to its end under an earlier agent of this node.
                    ClientStatus::Complete | ClientStatus::Failed | ClientStatus::Lost => None,
                }
            }
        }
    }

    /// Forgets an allocation, unless the known version of it is newer than `index`.
    fn forget(&mut self, alloc_id: AllocId, index: LogIndex) -> Option<Change> {
        let newer = self
            .known
            .get(&alloc_id)
            .is_some_and(|known| known.alloc_modify_index > index);
        if newer {
            return None;
        }
        self.dependent.remove(&alloc_id);
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
