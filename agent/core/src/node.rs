//! Decides which messages of the control plane change the desired allocations.
//!
//! [`Desired`] merges what servers send into what the node should run. An allocation's modify index
//! decides between two messages about it, and the index of the state a message was made from decides
//! what its silence means: a server that lags behind cannot take away what it has not heard of. So
//! repeated, late and reordered messages change nothing. A set says how many allocations are in it, so
//! that a message that is missing is noticed.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use muster_domain::alloc::{ClientStatus, DesiredAlloc};
use muster_domain::id::{AllocId, LogIndex};

use crate::heartbeat_lease;
use crate::limits::TOMBSTONES_MAX;

/// News for the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Run this allocation, which never ran anywhere.
    Start(Box<DesiredAlloc>),
    /// The control plane believes that this allocation runs here, but the agent has no record of
    /// it: adopt it if it is found, else report it as failed. Never start it a second time.
    Unremembered(Box<DesiredAlloc>),
    /// The desired state of a known allocation changed.
    Update(Box<DesiredAlloc>),
    /// The control plane has forgotten this allocation: stop and destroy it.
    Gone(AllocId),
}

/// A message of the control plane about what it wants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DesiredUpdate {
    /// The state it was made from.
    pub index: LogIndex,
    pub allocs: Vec<DesiredAlloc>,
    /// Allocations that are wanted as they were.
    pub unchanged: Vec<AllocId>,
    pub gone: Vec<AllocId>,
    /// If it ends a set: how many allocations the node has at `index`.
    pub complete: Option<u32>,
}

/// The result of merging a message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MergeOutcome {
    /// News for the node.
    pub changes: Vec<Change>,
    /// The first set of the session is whole: what it does not name is not wanted.
    pub whole: bool,
    /// The server believes that the agent knows something it does not: ask for everything anew.
    pub ask_again: bool,
}

/// All allocations of the node at one index, as far as they were told.
#[derive(Debug, Default)]
struct PartialDesiredSet {
    mentioned: BTreeSet<AllocId>,
    /// How many there are, once that was told.
    count: Option<usize>,
}

/// The allocations that the control plane wants on this node.
#[derive(Debug, Default)]
pub struct Desired {
    known: BTreeMap<AllocId, DesiredAlloc>,
    /// The known allocations that may not run for ever without a server: few, and asked for after each event.
    dependent: BTreeSet<AllocId>,
    /// Everything that was wanted up to here is known.
    index: LogIndex,
    /// Sets that are being told, by their index, until the first of the session is whole; `None` after that.
    sets: Option<BTreeMap<LogIndex, PartialDesiredSet>>,
    /// Destroyed allocations: up to which index they stay away.
    tombstones: BTreeMap<AllocId, LogIndex>,
    tombstone_order: VecDeque<AllocId>,
}

impl Desired {
    /// Restores the set that an earlier agent knew.
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
        if heartbeat_lease::patience(alloc).is_some() {
            self.dependent.insert(alloc.alloc_id);
        } else {
            self.dependent.remove(&alloc.alloc_id);
        }
    }

    /// Up to which index everything is known: what a server needs not to repeat. 0 for an agent that
    /// was just started, because its store may have lost what it had not written.
    #[must_use]
    pub fn index(&self) -> LogIndex {
        self.index
    }

    /// A session begins: the server will mention every allocation of the node once.
    pub fn begin_session(&mut self) {
        self.sets = Some(BTreeMap::new());
    }

    /// Merges a message and says what is new.
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
        merged.ask_again = update.unchanged.iter().any(|id| !self.knows(*id));
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

    /// Ends the set at `index` if all of it is there: what it does not name is not wanted. A message that was
    /// overtaken by the end of its set must not be taken for silence.
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

    /// How many allocations are known that were there at `index`.
    fn count_at(&self, index: LogIndex) -> usize {
        let known = self.known.values();
        known
            .filter(|alloc| alloc.alloc_modify_index <= index)
            .count()
    }

    fn knows(&self, alloc_id: AllocId) -> bool {
        self.known.contains_key(&alloc_id) || self.tombstones.contains_key(&alloc_id)
    }

    /// The desired state of an allocation, if it is known.
    #[must_use]
    pub fn get(&self, alloc_id: AllocId) -> Option<&DesiredAlloc> {
        self.known.get(&alloc_id)
    }

    /// Everything known.
    pub fn iter(&self) -> impl Iterator<Item = &DesiredAlloc> {
        self.known.values()
    }

    /// The allocations that may not run for ever without a server.
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
