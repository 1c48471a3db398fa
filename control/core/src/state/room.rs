//! Room on nodes, as a plan is checked against a state without writing it.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use muster_domain::id::{LogIndex, NodeNumber};
use muster_domain::resources::{Amount, Holding};

use super::holdings::NodeHoldings;
use super::{AllocView, State};

/// The reason why an instance does not fit a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoCapacity {
    /// The node is unknown, not ready or not eligible, or the number has another node than was meant.
    NotTaking,
    Exhausted(&'static str),
}

/// The room left on nodes after some of a plan was taken from it.
#[derive(Debug)]
pub(crate) struct RemainingCapacity<'a> {
    state: &'a State,
    touched: BTreeMap<NodeNumber, NodeCapacity>,
    /// Allocations whose share was set free, by key.
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
    /// All the room there is.
    pub(crate) fn new(state: &'a State) -> Self {
        Self {
            state,
            touched: BTreeMap::new(),
            freed: BTreeSet::new(),
        }
    }

    /// Sets free what `alloc` holds, if it holds anything.
    pub(crate) fn give_back(&mut self, alloc: AllocView<'_>) {
        if alloc.is_terminal() || !self.freed.insert(alloc.key()) {
            return;
        }
        if let Some(node) = self.node(alloc.node()) {
            node.used = node.used.minus(alloc.ask());
            node.held.give_back(alloc.holding());
        }
    }

    /// Whether what `alloc` holds was set free.
    pub(crate) fn is_freed(&self, alloc: AllocView<'_>) -> bool {
        self.freed.contains(&alloc.key())
    }

    /// Takes what one instance asks for from the node that had this number when the log was at `seen`.
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

    /// Undoes [`Self::give_back`], if nobody took the room meanwhile. Says whether it did.
    pub(crate) fn take_again(&mut self, alloc: AllocView<'_>) -> bool {
        let fits = self
            .node(alloc.node())
            .is_some_and(|node| node.take(alloc.ask(), Some(alloc.holding())).is_ok());
        if fits {
            self.freed.remove(&alloc.key());
        }
        fits
    }

    /// Has `alloc`, which stays where it is, take `ask` from here on, if its node has the additional amounts. Returns
    /// whether it does.
    pub(crate) fn resize(&mut self, alloc: AllocView<'_>, ask: Amount) -> bool {
        let took = alloc.ask();
        let Some(node) = self.node(alloc.node()) else {
            return false;
        };
        let used = node.used.minus(took).plus(ask);
        // A node that has less than it gave away keeps nobody from taking less.
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
