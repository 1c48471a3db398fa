//! The machines: rows by id, and columns for the scheduler.
//!
//! A row says what a node is; its column says what the scheduler asks of all nodes at once: capacity,
//! use, class, whether it takes work. Columns are dense: a node keeps its number until it is forgotten and
//! the last allocation that means it too; the number then goes to the next registered one. A column says
//! since which entry the number is its node's, so that a plan made before is recognised. The use of a
//! node is the sum over its allocations that are not terminal; `State` keeps it so.

mod columns;

use std::sync::{Arc, LazyLock};

use imbl::{OrdMap, OrdSet, Vector};
use muster_domain::id::{LogIndex, NodeId, NodeNumber, Timestamp};
use muster_domain::node::{Node, NodeSpec, NodeStatus};
use muster_domain::resources::{Amount, Holding};

use super::digest::Digest;
use super::holdings::NodeHoldings;
use super::prefix;
pub(crate) use columns::Columns;

/// Names a set of nodes that no constraint can tell apart, unless it speaks of one node by name.
///
/// A hash of datacenter, pool, class, drivers, attributes, metadata, and the names of volumes, host
/// networks and devices; keys starting with `unique.`
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
        hash.text("");
        for (name, volume) in &spec.volumes {
            hash.text(name);
            hash.bytes(&[u8::from(volume.read_only)]);
        }
        hash.text("");
        for address in &spec.addresses {
            hash.text(&address.network);
        }
        hash.text("");
        for device in &spec.devices {
            hash.text(&device.id());
            let attributes = device.attributes.iter();
            for (key, value) in attributes.filter(|(key, _)| !key.starts_with("unique.")) {
                hash.text(key);
                hash.text(value);
            }
            hash.text("");
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

/// The data that the scheduler reads of every node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// The node; all zeros where `occupied` is false.
    pub node_id: NodeId,
    /// Nodes that no constraint tells apart.
    pub class: NodeClass,
    /// Whether a node has this number.
    pub occupied: bool,
    pub takes_work: bool,
    /// The entry that gave the number to this node. A plan from before means another node.
    pub since: LogIndex,
    /// The amounts that tasks may use.
    pub total: Amount,
    /// The sum of the asks of allocations that are not terminal.
    pub used: Amount,
}

impl Column {
    /// A number that no node has.
    pub(crate) const VACANT: Self = Self {
        node_id: NodeId([0; 16]),
        class: NodeClass(0),
        occupied: false,
        takes_work: false,
        since: LogIndex(0),
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

    /// Returns the free amounts.
    #[must_use]
    pub fn free(&self) -> Amount {
        self.total.minus(self.used)
    }
}

/// Columns in a page. A scheduler that follows changes looks at one pointer a page and reads whole pages
/// that changed, about 3 KiB; a write after a snapshot copies one.
pub const PAGE_COLUMNS: usize = 32;

/// Neighbouring columns. A page is never changed while anybody else holds it, so a page with the same
/// address as one that is held says the same.
pub type ColumnPage = [Column; PAGE_COLUMNS];

#[derive(Clone, Debug, PartialEq, Eq)]
struct NodeRow {
    node: Arc<Node>,
    number: NodeNumber,
    hash: u64,
}

/// The table of nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Nodes {
    rows: OrdMap<NodeId, NodeRow>,
    pages: Vector<Arc<ColumnPage>>,
    /// Numbers given out so far: the first so many columns mean something.
    numbers: u32,
    /// Numbers below that no node has and no allocation means.
    vacant: OrdSet<NodeNumber>,
    /// Numbers of nodes that are gone but that allocations still mean.
    held: OrdMap<NodeId, NodeNumber>,
    /// The ports, cores and devices that allocations hold; only nodes of which any is held.
    holdings: OrdMap<NodeNumber, Arc<NodeHoldings>>,
    /// Nodes that are being emptied.
    draining: OrdSet<NodeId>,
    /// Nodes that are down, by the time they went.
    down: OrdSet<(Timestamp, NodeId)>,
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

    /// Returns the nodes whose id begins with `text`.
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

    /// Returns the nodes with this name; names need not be unique.
    #[must_use]
    pub fn named(&self, name: &str) -> Vec<&Arc<Node>> {
        self.iter().filter(|node| node.spec.name == name).collect()
    }

    /// Returns the number of nodes.
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

    /// Returns the sum of the asks of its allocations.
    #[must_use]
    pub fn used(&self, node_id: &NodeId) -> Option<Amount> {
        self.column(node_id).map(|column| column.used)
    }

    /// Its class.
    #[must_use]
    pub fn class(&self, node_id: &NodeId) -> Option<NodeClass> {
        self.column(node_id).map(|column| column.class)
    }

    /// Returns its held ports, cores and devices.
    #[must_use]
    pub fn holdings(&self, number: NodeNumber) -> &NodeHoldings {
        static NOTHING: LazyLock<NodeHoldings> = LazyLock::new(NodeHoldings::default);
        self.holdings.get(&number).map_or(&NOTHING, |held| &**held)
    }

    /// Nodes that are being emptied, by id.
    pub fn draining(&self) -> impl Iterator<Item = &Arc<Node>> {
        self.draining.iter().filter_map(|node_id| self.get(node_id))
    }

    /// Nodes that are down, by the time they went, from the position given on.
    pub(crate) fn down_from(
        &self,
        from: (Timestamp, NodeId),
    ) -> impl Iterator<Item = (Timestamp, NodeId)> + use<'_> {
        self.down.range(from..).copied()
    }

    /// The columns by number; some are vacant.
    pub fn columns(&self) -> impl Iterator<Item = &Column> {
        let columns = self.pages.iter().flat_map(|page| page.iter());
        columns.take(self.numbers as usize)
    }

    /// The columns, to keep.
    pub(crate) fn shared_columns(&self) -> Columns {
        Columns::new(self.pages.clone(), self.numbers as usize)
    }

    /// The columns by number, in pages; the last is filled up with vacant ones. A caller that keeps the pages of an
    /// older state sees by their addresses which changed.
    pub fn pages(&self) -> impl ExactSizeIterator<Item = &Arc<ColumnPage>> {
        self.pages.iter()
    }

    /// Its number among the columns.
    #[must_use]
    pub fn number(&self, node_id: &NodeId) -> Option<NodeNumber> {
        self.rows.get(node_id).map(|row| row.number)
    }

    /// Its number, also if it is gone and only allocations mean it.
    #[must_use]
    pub fn number_of_any(&self, node_id: &NodeId) -> Option<NodeNumber> {
        self.number(node_id)
            .or_else(|| self.held.get(node_id).copied())
    }

    /// Its column.
    #[must_use]
    pub fn column(&self, node_id: &NodeId) -> Option<&Column> {
        self.column_at(self.number(node_id)?)
    }

    /// The column of this number, vacant or not.
    #[must_use]
    pub fn column_at(&self, number: NodeNumber) -> Option<&Column> {
        if number.0 >= self.numbers {
            return None;
        }
        let page = self.pages.get(number.at() / PAGE_COLUMNS)?;
        page.get(number.at() % PAGE_COLUMNS)
    }

    fn column_mut(&mut self, number: NodeNumber) -> Option<&mut Column> {
        let page = self.pages.get_mut(number.at() / PAGE_COLUMNS)?;
        Arc::make_mut(page).get_mut(number.at() % PAGE_COLUMNS)
    }

    /// The hash of its rows and its index; see [`super::StateHash`].
    pub(super) fn hash(&self) -> u64 {
        self.hash.wrapping_add(Digest::of(&self.index))
    }

    /// Writes a row. A new one gets the number it had, if allocations still mean it by that, else the
    /// lowest vacant one.
    pub(crate) fn put(&mut self, node: Node) {
        let number = self
            .number_of_any(&node.spec.id)
            .or_else(|| self.vacant.get_min().copied())
            .unwrap_or(NodeNumber(self.numbers));
        self.put_at(node, number);
    }

    /// Writes a row under `number`, as a snapshot says.
    pub(crate) fn put_at(&mut self, node: Node, number: NodeNumber) {
        self.claim(number);
        self.held.remove(&node.spec.id);
        self.index = self.index.max(node.modify_index);
        if let Some(column) = self.column_mut(number) {
            *column = Column {
                node_id: node.spec.id,
                class: NodeClass::of(&node.spec),
                occupied: true,
                takes_work: node.takes_work(),
                since: node.create_index,
                total: node.spec.usable(),
                used: column.used,
            };
        }
        if node.drain.is_some() {
            self.draining.insert(node.spec.id);
        } else {
            self.draining.remove(&node.spec.id);
        }
        let row = NodeRow {
            hash: row_hash(number, &node),
            number,
            node: Arc::new(node),
        };
        self.hash = self.hash.wrapping_add(row.hash);
        if let Some(old) = self.rows.insert(row.node.spec.id, row.clone()) {
            self.hash = self.hash.wrapping_sub(old.hash);
            self.down.remove(&(old.node.status_at, old.node.spec.id));
        }
        if row.node.status == NodeStatus::Down {
            self.down.insert((row.node.status_at, row.node.spec.id));
        }
    }

    /// Makes sure that nobody else gets `number`.
    fn claim(&mut self, number: NodeNumber) {
        while self.numbers <= number.0 {
            self.vacant.insert(NodeNumber(self.numbers));
            self.numbers += 1;
        }
        while self.pages.len() * PAGE_COLUMNS <= number.at() {
            self.pages
                .push_back(Arc::new([Column::VACANT; PAGE_COLUMNS]));
        }
        self.vacant.remove(&number);
    }

    /// Forgets a row. Its number is held while allocations mean it: `is_meant` says whether any do.
    pub(crate) fn remove(&mut self, node_id: &NodeId, is_meant: bool, index: LogIndex) {
        let Some(row) = self.rows.remove(node_id) else {
            return;
        };
        self.hash = self.hash.wrapping_sub(row.hash);
        self.index = index;
        self.holdings.remove(&row.number);
        self.draining.remove(node_id);
        self.down.remove(&(row.node.status_at, *node_id));
        if let Some(column) = self.column_mut(row.number) {
            *column = Column::VACANT;
        }
        if is_meant {
            self.held.insert(*node_id, row.number);
        } else {
            self.vacate(row.number);
        }
    }

    /// Says that allocations mean a node by `number` that is gone.
    pub(crate) fn hold(&mut self, node_id: NodeId, number: NodeNumber) {
        self.claim(number);
        self.held.insert(node_id, number);
    }

    /// Says that no allocation means the node any more. If it is gone, its number is free.
    pub(crate) fn release(&mut self, node_id: &NodeId) {
        if let Some(number) = self.held.remove(node_id) {
            self.vacate(number);
        }
    }

    /// Nodes that are gone and whose numbers allocations still mean.
    pub(crate) fn held(&self) -> impl Iterator<Item = (NodeId, NodeNumber)> {
        self.held
            .iter()
            .map(|(node_id, number)| (*node_id, *number))
    }

    /// Numbers end with the last that means something, so that the columns follow from the rows alone.
    fn vacate(&mut self, number: NodeNumber) {
        self.vacant.insert(number);
        while let Some(last) = self.numbers.checked_sub(1) {
            if self.vacant.remove(&NodeNumber(last)).is_none() {
                break;
            }
            self.numbers = last;
        }
        let pages = (self.numbers as usize).div_ceil(PAGE_COLUMNS);
        while self.pages.len() > pages {
            self.pages.pop_back();
        }
    }

    /// Adds what an allocation holds.
    pub(super) fn take(&mut self, number: NodeNumber, ask: Amount, holding: &Holding) {
        if let Some(column) = self.column_mut(number) {
            column.used = column.used.plus(ask);
        }
        if !holding.is_empty() {
            Arc::make_mut(self.holdings.entry(number).or_default()).take(holding);
        }
    }

    /// Takes away what an allocation holds.
    pub(super) fn give_back(&mut self, number: NodeNumber, ask: Amount, holding: &Holding) {
        if let Some(column) = self.column_mut(number) {
            column.used = column.used.minus(ask);
        }
        if holding.is_empty() {
            return;
        }
        if let Some(held) = self.holdings.get_mut(&number) {
            let held = Arc::make_mut(held);
            held.give_back(holding);
            if held.is_empty() {
                self.holdings.remove(&number);
            }
        }
    }

    /// The last entry that changed the table, as a snapshot says.
    pub(crate) fn set_index(&mut self, index: LogIndex) {
        self.index = index;
    }
}

fn row_hash(number: NodeNumber, node: &Node) -> u64 {
    let Node {
        spec,
        status,
        status_at,
        eligibility,
        drain,
        events,
        create_index,
        modify_index,
    } = node;
    let row = (number, &**spec, status, status_at, eligibility, drain);
    Digest::of(&(row, &**events, create_index, modify_index))
}

#[cfg(test)]
mod tests;
