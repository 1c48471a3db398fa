//! Room on nodes, to check a plan against a state without writing the state.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use muster_domain::id::{LogIndex, NodeNumber};
use muster_domain::resources::{Amount, Holding};

use super::holdings::NodeHoldings;
use super::{AllocView, State};

/// The reason why an instance does not fit a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoCapacity {
    /// The node is unknown, not ready or not eligible, or the number belongs to another node than the plan's.
    NotTaking,
    Exhausted(&'static str),
}

/// The room on nodes after a part of a plan was taken from it.
#[derive(Debug)]
pub(crate) struct RemainingCapacity<'a> {
    state: &'a State,
    touched: BTreeMap<NodeNumber, NodeCapacity>,
    /// Keys of allocations whose share was freed.
    freed: BTreeSet<u64>,
}

#[derive(Debug)]
struct NodeCapacity {
    takes_work: bool,
    since: LogIndex,
    total: Amount,
    used: Amount,
    held: NodeHoldings,
}

impl<'a> RemainingCapacity<'a> {
    /// Returns all the room of the state.
    pub(crate) fn new(state: &'a State) -> Self {
        Self {
            state,
            touched: BTreeMap::new(),
            freed: BTreeSet::new(),
        }
    }

    /// Frees the share of `alloc`, if it has one.
    pub(crate) fn give_back(&mut self, alloc: AllocView<'_>) {
        if alloc.is_terminal() || !self.freed.insert(alloc.key()) {
            return;
        }
        if let Some(node) = self.node(alloc.node()) {
            node.used = node.used.minus(alloc.ask());
            node.held.give_back(alloc.holding());
        }
    }

    /// Returns whether the share of `alloc` was freed.
    pub(crate) fn is_freed(&self, alloc: AllocView<'_>) -> bool {
        self.freed.contains(&alloc.key())
    }

    /// Takes the amounts of one instance from the node that had this number at the log index `seen`.
    pub(crate) fn take(
        &mut self,
        number: NodeNumber,
        seen: LogIndex,
        ask: Amount,
        holding: Option<&Holding>,
    ) -> Result<(), NoCapacity> {
        match self.node(number) {
            Some(node) if node.takes_work && node.since <= seen => node.take(ask, holding),
            Some(_) | None => Err(NoCapacity::NotTaking),
        }
    }

    /// Undoes [`Self::give_back`], if the room is still free. Returns whether it was.
    pub(crate) fn undo_give_back(&mut self, alloc: AllocView<'_>) -> bool {
        let fits = self
            .node(alloc.node())
            .is_some_and(|node| node.take(alloc.ask(), Some(alloc.holding())).is_ok());
        if fits {
            self.freed.remove(&alloc.key());
        }
        fits
    }

    /// Changes the share of `alloc`, which stays where it is, to `ask`, if its node has the additional amounts. Returns
    /// whether it has.
    pub(crate) fn resize(&mut self, alloc: AllocView<'_>, ask: Amount) -> bool {
        let took = alloc.ask();
        let Some(node) = self.node(alloc.node()) else {
            return false;
        };
        let used = node.used.minus(took).plus(ask);
        // An overbooked node does not prevent an allocation from taking less.
        let missing = ask.minus(took).min(used.minus(node.total));
        let fits = missing == Amount::default();
        if fits {
            node.used = used;
        }
        fits
    }

    fn node(&mut self, number: NodeNumber) -> Option<&mut NodeCapacity> {
        let nodes = &self.state.nodes;
        match self.touched.entry(number) {
            Entry::Occupied(entry) => Some(entry.into_mut()),
            Entry::Vacant(entry) => {
                let column = nodes.column_at(number).filter(|column| column.occupied)?;
                Some(entry.insert(NodeCapacity {
                    takes_work: column.takes_work,
                    since: column.since,
                    total: column.total,
                    used: column.used,
                    held: nodes.holdings(number).clone(),
                }))
            }
        }
    }
}

impl NodeCapacity {
    fn take(&mut self, ask: Amount, holding: Option<&Holding>) -> Result<(), NoCapacity> {
        let used = self.used.plus(ask);
        if let Some(dimension) = used.exceeds(self.total) {
            return Err(NoCapacity::Exhausted(dimension));
        }
        if let Some(holding) = holding {
            if let Some(what) = self.held.conflict(holding) {
                return Err(NoCapacity::Exhausted(what));
            }
            self.held.take(holding);
        }
        self.used = used;
        Ok(())
    }
}
