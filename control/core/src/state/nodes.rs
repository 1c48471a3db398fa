//! The machines: rows by id, and columns for the scheduler.
//!
//! A row says what a node is; its column says what the scheduler asks of all nodes at once: capacity,
//! use, class, whether it takes work. Columns are dense: a node keeps its number until it is forgotten,
//! and the number then goes to the next registered one. What a node uses is the sum over its
//! allocations that are not terminal; `State::put_alloc` keeps it so.

use std::sync::Arc;

use imbl::{OrdMap, OrdSet, Vector};
use muster_domain::alloc::Allocation;
use muster_domain::id::{LogIndex, NodeId};
use muster_domain::node::{Node, NodeSpec};
use muster_domain::resources::Amount;

use super::digest::Digest;
use super::prefix;

/// Names a set of nodes that no constraint can tell apart, unless it speaks of one node by name.
///
/// A hash of datacenter, pool, class, drivers, attributes and metadata; keys starting with `unique.`
/// are left out. 128 bits, so that two classes never meet by chance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeClass(pub u128);

impl NodeClass {
    /// The class of a node.
    #[must_use]
    pub fn of(spec: &NodeSpec) -> Self {
        let mut hash = Fnv::new();
        hash.text(&spec.datacenter);
        hash.text(&spec.pool);
        hash.text(&spec.class);
        for map in [&spec.attributes, &spec.meta] {
            for (key, value) in map.iter().filter(|(key, _)| !key.starts_with("unique.")) {
                hash.text(key);
                hash.text(value);
            }
            hash.text("");
        }
        for (name, driver) in &spec.drivers {
            hash.text(name);
            hash.bytes(&[u8::from(driver.detected), u8::from(driver.healthy)]);
        }
        Self(hash.0)
    }
}

/// FNV-1a, 128 bits (draft-eastlake-fnv): the same on every machine and in every version.
struct Fnv(u128);

impl Fnv {
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;

    fn new() -> Self {
        Self(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d)
    }

    fn bytes(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u128::from(*byte)).wrapping_mul(Self::PRIME);
        }
    }

    /// With its length, so that two texts never read as one.
    fn text(&mut self, text: &str) {
        self.bytes(&text.len().to_be_bytes());
        self.bytes(text.as_bytes());
    }
}

/// What the scheduler asks of every node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// The node; all zeros where `occupied` is false.
    pub node_id: NodeId,
    /// Nodes that no constraint tells apart.
    pub class: NodeClass,
    /// Whether a node has this number.
    pub occupied: bool,
    /// Ready and eligible.
    pub takes_work: bool,
    /// What tasks may use.
    pub total: Amount,
    /// What allocations that are not terminal ask for, together.
    pub used: Amount,
}

impl Column {
    /// A number that no node has.
    const VACANT: Self = Self {
        node_id: NodeId([0; 16]),
        class: NodeClass(0),
        occupied: false,
        takes_work: false,
        total: Amount {
            cpu_mhz: 0,
            memory_mb: 0,
            disk_mb: 0,
        },
        used: Amount {
            cpu_mhz: 0,
            memory_mb: 0,
            disk_mb: 0,
        },
    };

    /// What is left.
    #[must_use]
    pub fn free(&self) -> Amount {
        self.total.minus(self.used)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct NodeRow {
    node: Arc<Node>,
    number: u32,
    hash: u64,
}

/// The table of nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Nodes {
    rows: OrdMap<NodeId, NodeRow>,
    columns: Vector<Column>,
    /// Numbers that no node has.
    vacant: OrdSet<u32>,
    /// Ports held, sorted; only nodes that hold any.
    ports: OrdMap<NodeId, Arc<Vec<u16>>>,
    index: LogIndex,
    hash: u64,
}

impl Nodes {
    /// The node called so.
    #[must_use]
    pub fn get(&self, node_id: &NodeId) -> Option<&Arc<Node>> {
        self.rows.get(node_id).map(|row| &row.node)
    }

    /// All, by id.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Node>> {
        self.rows.values().map(|row| &row.node)
    }

    /// Those whose id begins with `text`.
    #[must_use]
    pub fn with_prefix(&self, text: &str) -> Vec<&Arc<Node>> {
        let Some((low, high)) = prefix::bounds(text) else {
            return Vec::new();
        };
        self.rows
            .range(NodeId(low)..=NodeId(high))
            .map(|(_, row)| &row.node)
            .collect()
    }

    /// Those with this name; names need not be unique.
    #[must_use]
    pub fn named(&self, name: &str) -> Vec<&Arc<Node>> {
        self.iter().filter(|node| node.spec.name == name).collect()
    }

    /// How many.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The last entry that changed the table.
    #[must_use]
    pub fn index(&self) -> LogIndex {
        self.index
    }

    /// What its allocations ask for, together.
    #[must_use]
    pub fn used(&self, node_id: &NodeId) -> Option<Amount> {
        self.column(node_id).map(|column| column.used)
    }

    /// Its class.
    #[must_use]
    pub fn class(&self, node_id: &NodeId) -> Option<NodeClass> {
        self.column(node_id).map(|column| column.class)
    }

    /// Ports held on it, sorted.
    #[must_use]
    pub fn ports(&self, node_id: &NodeId) -> &[u16] {
        self.ports
            .get(node_id)
            .map_or(&[], |ports| ports.as_slice())
    }

    /// The columns by number; some are vacant.
    pub fn columns(&self) -> impl Iterator<Item = &Column> {
        self.columns.iter()
    }

    /// Its number among the columns.
    #[must_use]
    pub fn number(&self, node_id: &NodeId) -> Option<usize> {
        self.rows.get(node_id).map(|row| row.number as usize)
    }

    /// Its column.
    #[must_use]
    pub fn column(&self, node_id: &NodeId) -> Option<&Column> {
        self.columns.get(self.number(node_id)?)
    }

    /// The hash of its rows and its index; see [`super::StateHash`].
    pub(super) fn hash(&self) -> u64 {
        self.hash.wrapping_add(Digest::of(&self.index))
    }

    /// Writes a row; a new one gets the lowest vacant number.
    pub(crate) fn put(&mut self, node: Node) {
        let number = match self.rows.get(&node.spec.id) {
            Some(row) => row.number,
            None => self.vacant.get_min().copied().unwrap_or_else(|| {
                u32::try_from(self.columns.len()).expect("fewer than four billion nodes")
            }),
        };
        self.put_at(node, number);
    }

    /// Writes a row under `number`, as a snapshot says.
    pub(crate) fn put_at(&mut self, node: Node, number: u32) {
        let at = number as usize;
        while self.columns.len() <= at {
            let vacant = u32::try_from(self.columns.len()).unwrap_or(u32::MAX);
            self.vacant.insert(vacant);
            self.columns.push_back(Column::VACANT);
        }
        self.vacant.remove(&number);
        self.index = self.index.max(node.modify_index);
        let used = self
            .columns
            .get(at)
            .map_or_else(Amount::default, |column| column.used);
        let column = Column {
            node_id: node.spec.id,
            class: NodeClass::of(&node.spec),
            occupied: true,
            takes_work: node.takes_work(),
            total: node.spec.usable(),
            used,
        };
        self.columns.set(at, column);
        let row = NodeRow {
            hash: row_hash(number, &node),
            number,
            node: Arc::new(node),
        };
        self.hash = self.hash.wrapping_add(row.hash);
        if let Some(old) = self.rows.insert(row.node.spec.id, row) {
            self.hash = self.hash.wrapping_sub(old.hash);
        }
    }

    /// Forgets a row.
    pub(crate) fn remove(&mut self, node_id: &NodeId, index: LogIndex) {
        if let Some(row) = self.rows.remove(node_id) {
            self.hash = self.hash.wrapping_sub(row.hash);
            self.columns.set(row.number as usize, Column::VACANT);
            self.vacant.insert(row.number);
            self.drop_vacant_tail();
            self.ports.remove(node_id);
            self.index = index;
        }
    }

    /// Numbers end with the last node, so that the columns follow from the rows alone.
    fn drop_vacant_tail(&mut self) {
        while self.columns.last().is_some_and(|column| !column.occupied) {
            self.columns.pop_back();
            if let Ok(number) = u32::try_from(self.columns.len()) {
                self.vacant.remove(&number);
            }
        }
    }

    /// Adds what `alloc` holds.
    pub(super) fn take(&mut self, alloc: &Allocation) {
        self.adjust(&alloc.node_id, |used| used.plus(alloc.group().ask()));
        if !alloc.ports.is_empty() {
            let ports = self.ports.entry(alloc.node_id).or_default();
            let ports = Arc::make_mut(ports);
            ports.extend(alloc.ports.iter().map(|port| port.value));
            ports.sort_unstable();
        }
    }

    /// Takes away what `alloc` holds.
    pub(super) fn give_back(&mut self, alloc: &Allocation) {
        self.adjust(&alloc.node_id, |used| used.minus(alloc.group().ask()));
        if alloc.ports.is_empty() {
            return;
        }
        if let Some(ports) = self.ports.get_mut(&alloc.node_id) {
            let ports = Arc::make_mut(ports);
            for port in &alloc.ports {
                if let Ok(at) = ports.binary_search(&port.value) {
                    ports.remove(at);
                }
            }
            if ports.is_empty() {
                self.ports.remove(&alloc.node_id);
            }
        }
    }

    fn adjust(&mut self, node_id: &NodeId, change: impl FnOnce(Amount) -> Amount) {
        let number = self.number(node_id);
        if let Some(column) = number.and_then(|at| self.columns.get_mut(at)) {
            column.used = change(column.used);
        }
    }

    /// The last entry that changed the table, as a snapshot says.
    pub(crate) fn set_index(&mut self, index: LogIndex) {
        self.index = index;
    }
}

fn row_hash(number: u32, node: &Node) -> u64 {
    let Node {
        spec,
        status,
        status_at,
        eligibility,
        create_index,
        modify_index,
    } = node;
    let row = (number, &**spec, status, status_at, eligibility);
    Digest::of(&(row, create_index, modify_index))
}
