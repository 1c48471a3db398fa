//! Room on nodes, as a plan is checked against a state without writing it.

use std::collections::BTreeMap;

use muster_domain::alloc::Allocation;
use muster_domain::id::NodeId;
use muster_domain::resources::{AllocatedPort, Amount};

use super::State;

/// Why an instance does not fit a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoRoom {
    /// The node is unknown, not ready or not eligible.
    NotTaking,
    /// This ran out.
    Exhausted(&'static str),
}

/// What is left on nodes after some of a plan was taken from it.
#[derive(Debug)]
pub(crate) struct Room<'a> {
    state: &'a State,
    touched: BTreeMap<NodeId, NodeRoom>,
}

#[derive(Debug)]
struct NodeRoom {
    takes_work: bool,
    total: Amount,
    used: Amount,
    ports: Vec<u16>,
}

impl<'a> Room<'a> {
    /// All the room there is.
    pub(crate) fn new(state: &'a State) -> Self {
        Self {
            state,
            touched: BTreeMap::new(),
        }
    }

    /// Sets free what `alloc` holds, if it holds anything.
    pub(crate) fn give_back(&mut self, alloc: &Allocation) {
        if alloc.is_terminal() {
            return;
        }
        if let Some(node) = self.node(alloc.node_id) {
            node.used = node.used.minus(alloc.group().ask());
            for port in &alloc.ports {
                if let Ok(at) = node.ports.binary_search(&port.value) {
                    node.ports.remove(at);
                }
            }
        }
    }

    /// Takes what one instance asks for.
    pub(crate) fn take(
        &mut self,
        node_id: NodeId,
        ask: Amount,
        ports: &[AllocatedPort],
    ) -> Result<(), NoRoom> {
        match self.node(node_id) {
            Some(node) if node.takes_work => node.take(ask, ports),
            Some(_) | None => Err(NoRoom::NotTaking),
        }
    }

    /// Undoes [`Self::give_back`], if nobody took the room meanwhile. Says whether it did.
    pub(crate) fn take_again(&mut self, alloc: &Allocation) -> bool {
        self.node(alloc.node_id)
            .is_some_and(|node| node.take(alloc.group().ask(), &alloc.ports).is_ok())
    }

    fn node(&mut self, node_id: NodeId) -> Option<&mut NodeRoom> {
        let nodes = &self.state.nodes;
        match self.touched.entry(node_id) {
            std::collections::btree_map::Entry::Occupied(entry) => Some(entry.into_mut()),
            std::collections::btree_map::Entry::Vacant(entry) => {
                let column = nodes.column(&node_id)?;
                Some(entry.insert(NodeRoom {
                    takes_work: column.takes_work,
                    total: column.total,
                    used: column.used,
                    ports: nodes.ports(&node_id).to_vec(),
                }))
            }
        }
    }
}

impl NodeRoom {
    fn take(&mut self, ask: Amount, ports: &[AllocatedPort]) -> Result<(), NoRoom> {
        let used = self.used.plus(ask);
        if let Some(dimension) = used.exceeds(self.total) {
            return Err(NoRoom::Exhausted(dimension));
        }
        if !ports.is_empty() {
            let mut held = self.ports.clone();
            for port in ports.iter().map(|port| port.value) {
                match held.binary_search(&port) {
                    Ok(_) => return Err(NoRoom::Exhausted("ports")),
                    Err(at) => held.insert(at, port),
                }
            }
            self.ports = held;
        }
        self.used = used;
        Ok(())
    }
}
