//! All nodes as one evaluation sees them: the columns of the snapshot, and what its own plan changes.

use std::collections::BTreeMap;

use muster_domain::id::{NodeId, NodeNumber};
use muster_domain::job::PortAsk;
use muster_domain::resources::{AllocatedPort, Amount};

use crate::limits::{DYNAMIC_PORT_MAX, DYNAMIC_PORT_MIN};
use crate::state::{AllocView, Column, State};

/// The nodes, by number.
#[derive(Debug)]
pub(super) struct Fleet<'a> {
    state: &'a State,
    columns: Vec<Column>,
    /// Ports of nodes where the plan changed them, sorted.
    ports: BTreeMap<usize, Vec<u16>>,
    /// Where the search for a free port begins, and which of equal nodes goes first.
    seed: u64,
}

impl<'a> Fleet<'a> {
    pub(super) fn new(state: &'a State, seed: u64) -> Self {
        let columns = state.nodes().columns().copied().collect();
        Self {
            state,
            columns,
            ports: BTreeMap::new(),
            seed,
        }
    }

    pub(super) fn state(&self) -> &'a State {
        self.state
    }

    pub(super) fn seed(&self) -> u64 {
        self.seed
    }

    pub(super) fn columns(&self) -> &[Column] {
        &self.columns
    }

    pub(super) fn number(&self, node_id: &NodeId) -> Option<usize> {
        self.state.nodes().number(node_id).map(NodeNumber::at)
    }

    /// The number of the node that `alloc` is on, if the node is there.
    pub(super) fn number_of(&self, alloc: AllocView<'_>) -> Option<usize> {
        let number = alloc.node().at();
        let column = self.columns.get(number)?;
        column.occupied.then_some(number)
    }

    /// Takes an instance's share of node `number`.
    pub(super) fn take(&mut self, number: usize, ask: Amount, ports: &[AllocatedPort]) {
        self.columns[number].used = self.columns[number].used.plus(ask);
        if !ports.is_empty() {
            let held = self.ports_mut(number);
            held.extend(ports.iter().map(|port| port.value));
            held.sort_unstable();
        }
    }

    /// Sets free what `alloc` holds, and says of which node.
    pub(super) fn give_back(&mut self, alloc: AllocView<'_>) -> Option<usize> {
        let number = self.number_of(alloc)?;
        self.columns[number].used = self.columns[number].used.minus(alloc.ask());
        if !alloc.ports().is_empty() {
            let held = self.ports_mut(number);
            held.retain(|port| alloc.ports().iter().all(|held| held.value != *port));
        }
        Some(number)
    }

    /// Ports for one instance on node `number`; `None` if they are not to be had.
    pub(super) fn assign_ports(
        &self,
        number: usize,
        asks: &[PortAsk],
    ) -> Option<Vec<AllocatedPort>> {
        if asks.is_empty() {
            return Some(Vec::new());
        }
        let mut held = self.ports(number).to_vec();
        let mut take = |port: u16| match held.binary_search(&port) {
            Ok(_) => false,
            Err(at) => {
                held.insert(at, port);
                true
            }
        };
        let mut ports: Vec<Option<AllocatedPort>> = vec![None; asks.len()];
        // Fixed ones first, so that no dynamic one takes theirs.
        for (ask, slot) in asks.iter().zip(&mut ports) {
            if let Some(value) = ask.fixed {
                if !take(value) {
                    return None;
                }
                *slot = Some(AllocatedPort {
                    label: ask.label.clone(),
                    value,
                    to: ask.to,
                });
            }
        }
        let mut candidates = dynamic_ports(self.seed ^ number as u64);
        for (ask, slot) in asks
            .iter()
            .zip(&mut ports)
            .filter(|(ask, _)| ask.fixed.is_none())
        {
            let value = candidates.find(|port| take(*port))?;
            *slot = Some(AllocatedPort {
                label: ask.label.clone(),
                value,
                to: ask.to,
            });
        }
        ports.into_iter().collect()
    }

    fn ports(&self, number: usize) -> &[u16] {
        match self.ports.get(&number) {
            Some(ports) => ports,
            None => self.state.nodes().ports(numbered(number)),
        }
    }

    fn ports_mut(&mut self, number: usize) -> &mut Vec<u16> {
        let state = self.state;
        self.ports
            .entry(number)
            .or_insert_with(|| state.nodes().ports(numbered(number)).to_vec())
    }
}

/// The number of a column.
pub(super) fn numbered(at: usize) -> NodeNumber {
    NodeNumber(u32::try_from(at).expect("numbers have 32 bits"))
}

/// Every dynamic port once, from a place that the seed decides, so that a port that was just given back
/// is not the next to be given out.
fn dynamic_ports(seed: u64) -> impl Iterator<Item = u16> {
    let span = DYNAMIC_PORT_MAX - DYNAMIC_PORT_MIN + 1;
    let start = u16::try_from(seed % u64::from(span)).unwrap_or(0);
    (0..span).map(move |step| DYNAMIC_PORT_MIN + (start + step) % span)
}
