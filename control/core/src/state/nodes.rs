//! The machines: rows by id, and columns for the scheduler.
//!
//! A row describes a node. Its column has the data that the scheduler reads of all nodes at once: capacity, usage,
//! class, whether it takes work. Columns are dense. A node keeps its number until the node is removed and no allocation
//! refers to it any more. The number then goes to the next node that registers. A column records since which entry its
//! number belongs to its node, so that a plan made before that entry is recognised. The usage of a node is the sum over
//! its allocations that are not terminal; `State` maintains it.

mod columns;

use std::sync::{Arc, LazyLock};

use imbl::{OrdMap, OrdSet, Vector};
use muster_domain::id::{LogIndex, NodeId, NodeNumber, Timestamp};
use muster_domain::node::{Node, NodeSpec, NodeStatus};
use muster_domain::resources::{Amount, Holding};

use super::digest::Digest;
use super::holdings::NodeHoldings;
use super::table::{Indexes, MapTable, RowChange};
pub(crate) use columns::Columns;

/// The name of a set of nodes that no constraint can distinguish, except a constraint that names one node.
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

    /// Adds a text with its length, so that two texts never have the same encoding as one.
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
    /// The class of the node.
    pub class: NodeClass,
    /// Whether a node has this number.
    pub occupied: bool,
    pub takes_work: bool,
    /// The entry that gave the number to this node. A plan made before it refers to another node.
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
            allocs: 0,
        },
        used: Amount {
            cpu_mhz: 0,
            memory_mb: 0,
            disk_mb: 0,
            allocs: 0,
        },
    };

    /// Returns the free amounts.
    #[must_use]
    pub fn free(&self) -> Amount {
        self.total.minus(self.used)
    }
}

/// Columns in a page. A scheduler that follows changes compares one pointer a page and reads whole pages that changed,
/// about 3 KiB. A write after a snapshot copies one page.
pub const PAGE_COLUMNS: usize = 32;

/// A page of adjacent columns. A page is never changed while it has another owner. So a page at the same address as a
/// kept page has the same content.
pub type ColumnPage = [Column; PAGE_COLUMNS];

/// A node and its number among the columns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRow {
    node: Arc<Node>,
    number: NodeNumber,
}

/// The table of nodes.
pub type Nodes = MapTable<NodeIndexes>;

/// The columns and the indexes of nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeIndexes {
    pages: Vector<Arc<ColumnPage>>,
    /// The count of numbers given out so far: only the columns below it are in use.
    numbers: u32,
    /// Numbers below `numbers` that no node has and to which no allocation refers.
    vacant: OrdSet<NodeNumber>,
    /// Numbers of nodes that are gone but to which allocations still refer.
    held: OrdMap<NodeId, NodeNumber>,
    /// The ports, cores and devices that allocations hold; only nodes with a held item.
    holdings: OrdMap<NodeNumber, Arc<NodeHoldings>>,
    /// Nodes that are being drained.
    draining: OrdSet<NodeId>,
    /// Nodes that are down, by the time they went down.
    down: OrdSet<(Timestamp, NodeId)>,
}

impl Indexes for NodeIndexes {
    type Key = NodeId;
    type Query = NodeId;
    type Row = NodeRow;
    type Shown = Arc<Node>;
    /// For a node that is removed: whether allocations still refer to its number.
    type Fact = bool;

    fn key(row: &NodeRow) -> NodeId {
        row.node.spec.id
    }

    fn shown(row: &NodeRow) -> &Arc<Node> {
        &row.node
    }

    fn hash(row: &NodeRow) -> u64 {
        row_hash(row.number, &row.node)
    }

    fn modify_index(row: &NodeRow) -> LogIndex {
        row.node.modify_index
    }

    fn follow(&mut self, node_id: &NodeId, change: RowChange<'_, NodeRow>, is_meant: bool) {
        change.set(&mut self.draining, |row| {
            row.node.drain.is_some().then_some(*node_id)
        });
        change.set(&mut self.down, |row| {
            let is_down = row.node.status == NodeStatus::Down;
            is_down.then_some((row.node.status_at, *node_id))
        });
        match (change.old, change.new) {
            (_, Some(new)) => self.write_column(new),
            (Some(old), None) => self.vacate_column(node_id, old.number, is_meant),
            (None, None) => {}
        }
    }
}

impl NodeIndexes {
    fn write_column(&mut self, row: &NodeRow) {
        let NodeRow { node, number } = row;
        self.claim(*number);
        self.held.remove(&node.spec.id);
        if let Some(column) = self.column_mut(*number) {
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
    }

    fn vacate_column(&mut self, node_id: &NodeId, number: NodeNumber, is_meant: bool) {
        self.holdings.remove(&number);
        if let Some(column) = self.column_mut(number) {
            *column = Column::VACANT;
        }
        if is_meant {
            self.held.insert(*node_id, number);
        } else {
            self.vacate(number);
        }
    }

    fn column_mut(&mut self, number: NodeNumber) -> Option<&mut Column> {
        let page = self.pages.get_mut(number.at() / PAGE_COLUMNS)?;
        Arc::make_mut(page).get_mut(number.at() % PAGE_COLUMNS)
    }

    /// Makes sure that no other node gets `number`.
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

    /// Frees a number. The numbers end with the last one in use, so that the columns follow from the rows alone.
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
}

impl Nodes {
    /// Returns the nodes with this name; names need not be unique.
    #[must_use]
    pub fn named(&self, name: &str) -> Vec<&Arc<Node>> {
        self.iter().filter(|node| node.spec.name == name).collect()
    }

    /// Returns the sum of the asks of its allocations.
    #[must_use]
    pub fn used(&self, node_id: &NodeId) -> Option<Amount> {
        self.column(node_id).map(|column| column.used)
    }

    /// Returns the class of a node.
    #[must_use]
    pub fn class(&self, node_id: &NodeId) -> Option<NodeClass> {
        self.column(node_id).map(|column| column.class)
    }

    /// Returns its held ports, cores and devices.
    #[must_use]
    pub fn holdings(&self, number: NodeNumber) -> &NodeHoldings {
        static NOTHING: LazyLock<NodeHoldings> = LazyLock::new(NodeHoldings::default);
        self.indexes
            .holdings
            .get(&number)
            .map_or(&NOTHING, |held| &**held)
    }

    /// Returns the nodes that are being drained, by id.
    pub fn draining(&self) -> impl Iterator<Item = &Arc<Node>> {
        self.indexes
            .draining
            .iter()
            .filter_map(|node_id| self.get(node_id))
    }

    /// Returns the nodes that are down, by the time they went down, from the given position on.
    pub(crate) fn down_from(
        &self,
        from: (Timestamp, NodeId),
    ) -> impl Iterator<Item = (Timestamp, NodeId)> + use<'_> {
        self.indexes.down.range(from..).copied()
    }

    /// Returns the columns by number; some are vacant.
    pub fn columns(&self) -> impl Iterator<Item = &Column> {
        let columns = self.indexes.pages.iter().flat_map(|page| page.iter());
        columns.take(self.indexes.numbers as usize)
    }

    /// Returns a copy of the columns that does not change with the state.
    pub(crate) fn shared_columns(&self) -> Columns {
        Columns::new(self.indexes.pages.clone(), self.indexes.numbers as usize)
    }

    /// Returns the columns by number, in pages; the last page is filled up with vacant columns. A caller that keeps the
    /// pages of an older state sees by their addresses which pages changed.
    pub fn pages(&self) -> impl ExactSizeIterator<Item = &Arc<ColumnPage>> {
        self.indexes.pages.iter()
    }

    /// Returns the number of a node among the columns.
    #[must_use]
    pub fn number(&self, node_id: &NodeId) -> Option<NodeNumber> {
        self.row(node_id).map(|row| row.number)
    }

    /// Returns the number of a node, even if the node is gone and only allocations refer to it.
    #[must_use]
    pub fn number_of_any(&self, node_id: &NodeId) -> Option<NodeNumber> {
        self.number(node_id)
            .or_else(|| self.indexes.held.get(node_id).copied())
    }

    /// Returns the column of a node.
    #[must_use]
    pub fn column(&self, node_id: &NodeId) -> Option<&Column> {
        self.column_at(self.number(node_id)?)
    }

    /// Returns the column of this number, vacant or not.
    #[must_use]
    pub fn column_at(&self, number: NodeNumber) -> Option<&Column> {
        if number.0 >= self.indexes.numbers {
            return None;
        }
        let page = self.indexes.pages.get(number.at() / PAGE_COLUMNS)?;
        page.get(number.at() % PAGE_COLUMNS)
    }

    /// Writes a row. A new node gets the number it had before, if allocations still refer to it, and otherwise the
    /// lowest vacant one.
    pub(crate) fn put(&mut self, node: Node) {
        let number = self
            .number_of_any(&node.spec.id)
            .or_else(|| self.indexes.vacant.get_min().copied())
            .unwrap_or(NodeNumber(self.indexes.numbers));
        self.put_at(node, number);
    }

    /// Writes a row under `number`, which a snapshot gives.
    pub(crate) fn put_at(&mut self, node: Node, number: NodeNumber) {
        let node = Arc::new(node);
        self.write(NodeRow { node, number }, false);
    }

    /// Removes a row. Its number is held while allocations refer to it: `is_meant` is whether any do.
    pub(crate) fn remove(&mut self, node_id: &NodeId, is_meant: bool, index: LogIndex) {
        self.delete(node_id, is_meant, index);
    }

    /// Records that allocations refer by `number` to a node that is gone.
    pub(crate) fn hold(&mut self, node_id: NodeId, number: NodeNumber) {
        self.indexes.claim(number);
        self.indexes.held.insert(node_id, number);
    }

    /// Records that no allocation refers to the node any more. If the node is gone, its number is freed.
    pub(crate) fn release(&mut self, node_id: &NodeId) {
        if let Some(number) = self.indexes.held.remove(node_id) {
            self.indexes.vacate(number);
        }
    }

    /// Returns the nodes that are gone and to whose numbers allocations still refer.
    pub(crate) fn held(&self) -> impl Iterator<Item = (NodeId, NodeNumber)> {
        self.indexes
            .held
            .iter()
            .map(|(node_id, number)| (*node_id, *number))
    }

    /// Adds the amounts and the holding of an allocation.
    pub(super) fn take(&mut self, number: NodeNumber, ask: Amount, holding: &Holding) {
        if let Some(column) = self.indexes.column_mut(number) {
            column.used = column.used.plus(ask);
        }
        if !holding.is_empty() {
            Arc::make_mut(self.indexes.holdings.entry(number).or_default()).take(holding);
        }
    }

    /// Removes the amounts and the holding of an allocation.
    pub(super) fn give_back(&mut self, number: NodeNumber, ask: Amount, holding: &Holding) {
        if let Some(column) = self.indexes.column_mut(number) {
            column.used = column.used.minus(ask);
        }
        if holding.is_empty() {
            return;
        }
        if let Some(held) = self.indexes.holdings.get_mut(&number) {
            let held = Arc::make_mut(held);
            held.give_back(holding);
            if held.is_empty() {
                self.indexes.holdings.remove(&number);
            }
        }
    }
}

/// Returns the number of a column.
pub(crate) fn numbered(at: usize) -> NodeNumber {
    NodeNumber(u32::try_from(at).expect("numbers have 32 bits"))
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
