//! Nodes by kind, kept from one evaluation to the next.
//!
//! A kind is all nodes of one size whose classes no group has told apart. Every group that has asked so far got the
//! same verdict on all of them, and the same affinity ([`NodeShapes::judge_new_classes`] guarantees that). So there are
//! few kinds even if there are many classes, and the requirements of a group are judged once for each kind.
//!
//! Nomad's fit is `20 - (10^free cpu + 10^free memory)` with the free shares after the instance came. It splits into a
//! power that depends on the node and a factor that depends on the kind: `10^(1 - (used + ask) / total)` is `10^(1 -
//! used / total) * 10^(-ask / total)`. So looking at a node costs three comparisons, two products and a sum, on
//! adjacent numbers. A change of a node costs two powers.
//!
//! The sums are of 32 bits: [`SUM_ERROR_MAX`] bounds their error. The chooser compares nearly equal sums again,
//! exactly.
//!
//! All of it follows from the columns. A plan in progress writes to slots too; [`NodeShapes::restore`] takes that back.

mod ask;
mod block;

use std::collections::BTreeMap;

use muster_domain::job::{Affinity, JobSpec, TaskGroup};
use muster_domain::node::NodeSpec;
use muster_domain::number;
use muster_domain::resources::Amount;

use super::affinities::affinities;
use super::feasible::{
    ClassFeasibility, ClassIndex, Feasibility, FeasibilityCheck, GroupConstraints,
};
use crate::limits;
use crate::state::{Column, Columns, NodeClass, State};
pub(super) use ask::{RequestFactors, ScaledRequest, fit, sum};
use block::{BLOCK, Block, BlockBounds, BlockNode};
pub(super) use block::{SUM_ERROR_MAX, ShortfallCounts};

/// A kind is sorted when one in this number of its nodes has changed, so that sorting costs little for each change.
const NODES_PER_SORTED_CHANGE: usize = 4;

/// A kind is also sorted when looking at blocks with changed nodes has cost as much as sorting. A look at one block
/// costs as much as sorting so many nodes.
const NODES_SORTED_PER_SCAN: usize = 8;

/// All nodes of one size and one group of classes.
///
/// Nodes that are about equally full are adjacent, so that most blocks can be left out: [`NodeShape::sort`] restores
/// that order now and then. No result depends on the order.
#[derive(Clone, Debug)]
pub(super) struct NodeShape {
    pub(super) group: usize,
    pub(super) total: Amount,
    pub(super) blocks: Vec<Block>,
    /// The summaries of the nodes of each block, and the summary of all nodes.
    pub(super) block_bounds: Vec<BlockBounds>,
    pub(super) whole: BlockBounds,
    /// Blocks that were written to since their summaries were computed; a block may appear more than once.
    stale: Vec<usize>,
    /// Whether the summary of all nodes must be computed again.
    whole_is_stale: bool,
    len: usize,
    /// Number of nodes that came, left or changed since the last sort, and number of blocks with such nodes.
    changes: usize,
    touched: usize,
    /// Number of looks at blocks that sorting would have spared since the last sort.
    avoidable_scans: usize,
}

impl NodeShape {
    fn number(&self, slot: usize) -> u32 {
        self.blocks[slot / BLOCK].numbers[slot % BLOCK]
    }

    /// Returns the number of open nodes: nodes on which an instance may be placed.
    pub(super) fn open(&self) -> u32 {
        self.whole.open
    }

    /// Returns the numbers of the open nodes.
    pub(super) fn open_numbers(&self) -> impl Iterator<Item = usize> {
        self.blocks.iter().flat_map(|block| {
            let slots = (0..BLOCK).filter(|slot| block.open >> slot & 1 == 1);
            slots.map(|slot| block.number(slot))
        })
    }

    /// Returns the number of open nodes that have as many allocations as they may have.
    pub(super) fn full(&self) -> u32 {
        if self.total.allocs == u64::MAX {
            return 0;
        }
        let full = self.blocks.iter().map(Block::full);
        full.sum()
    }

    /// Returns the number of open nodes that have too little. Nodes with all their allocations count as short of cpu.
    pub(super) fn short(&self, ask: ScaledRequest) -> ShortfallCounts {
        if let Some(short) = self.whole.short(ask) {
            return short;
        }
        let blocks = self.blocks.iter().zip(&self.block_bounds);
        let shorts = blocks.map(|(block, bounds)| match bounds.short(ask) {
            Some(short) => short,
            None => block.short(ask),
        });
        shorts.fold([0; 3], |sum, more| {
            std::array::from_fn(|at| sum[at] + more[at])
        })
    }

    /// Finds a node if all open nodes of a block have the same free amounts: see [`Block::uniform_node`].
    pub(super) fn uniform_node(
        &self,
        block: usize,
        ask: ScaledRequest,
        first: usize,
    ) -> Option<(f32, usize)> {
        self.blocks[block].uniform_node(&self.block_bounds[block], ask, first)
    }

    /// Computes the stale summaries of blocks again.
    fn summarise(&mut self) {
        if self.stale.is_empty() && !self.whole_is_stale {
            return;
        }
        self.whole_is_stale = false;
        self.block_bounds
            .resize(self.blocks.len(), BlockBounds::EMPTY);
        self.stale.sort_unstable();
        self.stale.dedup();
        for at in self.stale.drain(..) {
            // A removed block has no nodes to summarise.
            if let Some(block) = self.blocks.get(at) {
                self.block_bounds[at] = block.open_bounds();
            }
        }
        let mut whole = BlockBounds::EMPTY;
        self.block_bounds.iter().for_each(|block| whole.add(block));
        self.whole = whole;
    }

    /// Makes room for one more node and returns its slot.
    fn push(&mut self) -> usize {
        if self.len == self.blocks.len() * BLOCK {
            self.blocks.push(Block::EMPTY);
        }
        self.len += 1;
        self.len - 1
    }

    /// Moves the last node to `slot` and removes the last slot.
    fn swap_remove(&mut self, slot: usize) {
        self.len -= 1;
        let last = self.blocks[self.len / BLOCK].row(self.len % BLOCK);
        self.blocks[slot / BLOCK].put(slot % BLOCK, last);
        self.blocks[self.len / BLOCK].put(self.len % BLOCK, BlockNode::VACANT);
        self.stale.extend([slot / BLOCK, self.len / BLOCK]);
        self.blocks.truncate(self.len.div_ceil(BLOCK));
    }

    fn write(&mut self, slot: usize, number: u32, column: &Column) {
        let (at, slot) = (slot / BLOCK, slot % BLOCK);
        let block = &mut self.blocks[at];
        let was_open = block.open >> slot & 1 == 1 && block.numbers[slot] == number;
        let old = block.slot_bounds(slot);
        block.write(slot, number, column);
        let new = block.slot_bounds(slot);
        // Most often one node got fuller; then the other nodes need no look.
        let is_open = block.open >> slot & 1 == 1;
        match self.block_bounds.get_mut(at) {
            Some(bounds) if was_open && is_open && self.stale.is_empty() => {
                let before = *bounds;
                if bounds.exchange(&old, &new) {
                    self.whole_is_stale |= !self.whole.exchange(&before, bounds);
                } else {
                    self.mark_stale(at);
                }
            }
            Some(_) | None => self.mark_stale(at),
        }
    }

    /// Records that a node may be out of the sorted order.
    fn touch(&mut self, slot: usize) {
        let touched = &mut self.blocks[slot / BLOCK].touched;
        let bit = 1 << (slot % BLOCK);
        self.touched += usize::from(*touched == 0);
        self.changes += usize::from(*touched & bit == 0);
        *touched |= bit;
    }

    fn close(&mut self, slot: usize) {
        self.blocks[slot / BLOCK].close(slot % BLOCK);
        self.mark_stale(slot / BLOCK);
    }

    /// Marks the summary of the nodes of a block as stale.
    fn mark_stale(&mut self, block: usize) {
        // Writes to adjacent nodes often follow each other.
        if self.stale.last() != Some(&block) {
            self.stale.push(block);
        }
    }

    /// Returns whether sorting is worth its cost, just before the next look at the kind.
    fn is_out_of_order(&mut self) -> bool {
        // At best, the changed nodes are adjacent.
        self.avoidable_scans += self.touched.saturating_sub(self.changes.div_ceil(BLOCK));
        self.changes * NODES_PER_SORTED_CHANGE > self.len + BLOCK
            || self.avoidable_scans * NODES_SORTED_PER_SCAN > self.len
    }

    fn sort(&mut self) {
        (self.changes, self.touched, self.avoidable_scans) = (0, 0, 0);
        let mut rows: Vec<BlockNode> = (0..self.len)
            .map(|slot| self.blocks[slot / BLOCK].row(slot % BLOCK))
            .collect();
        // Most nodes are in order already.
        rows.sort_by(|one, other| {
            let full = |row: &BlockNode| row.powers[0] + row.powers[1];
            let order = full(one).total_cmp(&full(other));
            order.then_with(|| one.number.cmp(&other.number))
        });
        for (slot, row) in rows.into_iter().enumerate() {
            self.blocks[slot / BLOCK].put(slot % BLOCK, row);
        }
        self.blocks.iter_mut().for_each(|block| block.touched = 0);
        self.stale.extend(0..self.blocks.len());
        self.summarise();
    }
}

/// The place of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BlockPosition {
    pub(super) kind: usize,
    pub(super) block: usize,
}

#[derive(Clone, Copy, Debug)]
struct ShapePosition {
    kind: u32,
    at: u32,
}

/// The position of a node without a kind.
const NO_POSITION: ShapePosition = ShapePosition {
    kind: u32::MAX,
    at: 0,
};

/// The requirements of a group for a node, other than room.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct GroupRequirements {
    asks: GroupConstraints,
    affinities: Vec<Affinity>,
}

impl GroupRequirements {
    fn of(job: &JobSpec, group: &TaskGroup) -> Self {
        Self {
            asks: GroupConstraints::of(job, group),
            affinities: affinities(job, group).cloned().collect(),
        }
    }

    /// Returns whether these are the requirements of the group, as [`Self::of`] would return, without computing them.
    fn is_of(&self, job: &JobSpec, group: &TaskGroup) -> bool {
        self.asks.is_of(job, group) && self.affinities.iter().eq(affinities(job, group))
    }
}

/// The verdicts on each group of classes, for groups with the same requirements.
#[derive(Debug)]
pub(super) struct FeasibilityCache {
    verdicts: ClassFeasibility,
    by_class: BTreeMap<NodeClass, ClassView>,
    views: Vec<Option<ClassView>>,
    /// The generation of the groups of classes to which the verdicts apply.
    generation: u64,
}

/// The result of judging the nodes of a class, for groups with the same requirements.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClassView {
    pub(super) class_at: ClassIndex,
    pub(super) is_feasible: bool,
    pub(super) affinity: Option<f64>,
}

impl ClassView {
    fn is_alike(self, other: Self) -> bool {
        let bits = |view: Self| view.affinity.map(f64::to_bits);
        self.class_at == other.class_at && bits(self) == bits(other)
    }
}

impl FeasibilityCache {
    fn new(wants: &GroupRequirements) -> Self {
        Self {
            verdicts: ClassFeasibility::new(FeasibilityCheck::new(wants.asks.clone())),
            by_class: BTreeMap::new(),
            views: Vec::new(),
            generation: 0,
        }
    }

    pub(super) fn verdicts(&self) -> &ClassFeasibility {
        &self.verdicts
    }

    pub(super) fn view(&self, group: usize) -> Option<ClassView> {
        self.views.get(group).copied().flatten()
    }
}

/// A class of nodes.
#[derive(Clone, Copy, Debug)]
struct ShapeClass {
    group: usize,
    /// The last node that joined the class.
    node: usize,
}

/// All nodes by kind.
#[derive(Debug, Default)]
pub(super) struct NodeShapes {
    /// The columns from which the kinds follow.
    columns: Columns,
    kinds: Vec<NodeShape>,
    by_key: BTreeMap<(usize, [u64; 4]), usize>,
    classes: BTreeMap<NodeClass, ShapeClass>,
    /// The number of groups of classes.
    groups: usize,
    /// A counter that grows whenever a class moves to another group.
    generation: u64,
    /// Positions of nodes by number.
    positions: Vec<ShapePosition>,
    /// Nodes written to by the plan in progress.
    written: Vec<usize>,
    /// The verdicts by requirements. A class has all data that rules look at, so a verdict stays valid.
    judged: BTreeMap<GroupRequirements, FeasibilityCache>,
    /// The verdicts used last, which are not in `judged`: jobs that come together often have the same requirements.
    last: Option<(GroupRequirements, FeasibilityCache)>,
}

impl NodeShapes {
    /// Updates all kinds from `columns`.
    pub(super) fn follow(&mut self, columns: &Columns) {
        for number in columns.changed_since(&self.columns) {
            self.change(number, columns.get(number));
        }
        self.columns = columns.clone();
        self.sort();
        self.summarise();
        let used = self.kinds.iter().filter(|kind| kind.len > 0).count();
        let spare = limits::KINDS_SPARE_MAX;
        if self.kinds.len() > 2 * used + spare || self.classes.len() > columns.len() + spare {
            *self = Self::default();
            self.follow(columns);
        }
    }

    fn change(&mut self, number: usize, column: Option<&Column>) {
        let column = column.filter(|column| column.occupied);
        if self.positions.len() <= number {
            self.positions.resize(number + 1, NO_POSITION);
        }
        let group = column.map(|column| self.group_of(column.class, number));
        let position = self.positions[number];
        let old = self.kinds.get(position.kind as usize);
        if let (Some(old), Some(column)) = (old, column)
            && group == Some(old.group)
            && old.total == column.total
        {
            self.write(number, column);
            self.kinds[position.kind as usize].touch(position.at as usize);
            return;
        }
        if position.kind != NO_POSITION.kind {
            let kind = &mut self.kinds[position.kind as usize];
            kind.swap_remove(position.at as usize);
            self.record_location(position.kind as usize, position.at as usize);
            self.positions[number] = NO_POSITION;
        }
        let Some((column, group)) = column.zip(group) else {
            return;
        };
        let total = column.total;
        let amounts = [total.cpu_mhz, total.memory_mb, total.disk_mb, total.allocs];
        let key = (group, amounts);
        let kinds = &mut self.kinds;
        let at = *self.by_key.entry(key).or_insert_with(|| {
            kinds.push(NodeShape {
                group,
                total,
                blocks: Vec::new(),
                block_bounds: Vec::new(),
                whole: BlockBounds::EMPTY,
                stale: Vec::new(),
                whole_is_stale: false,
                len: 0,
                changes: 0,
                touched: 0,
                avoidable_scans: 0,
            });
            kinds.len() - 1
        });
        let slot = kinds[at].push();
        let name = number::count(number);
        kinds[at].write(slot, name, column);
        kinds[at].touch(slot);
        self.record_location(at, slot);
    }

    /// Records the position of the node at `slot` of a kind, if there is a node.
    fn record_location(&mut self, kind: usize, slot: usize) {
        if slot < self.kinds[kind].len {
            let number = self.kinds[kind].number(slot) as usize;
            let bounded = number::count;
            self.positions[number] = ShapePosition {
                kind: bounded(kind),
                at: bounded(slot),
            };
        }
    }

    /// Sorts the kinds in which much has changed, so that nodes that are about equally full are adjacent again.
    fn sort(&mut self) {
        for at in 0..self.kinds.len() {
            let kind = &mut self.kinds[at];
            if kind.is_out_of_order() {
                kind.sort();
                for slot in 0..self.kinds[at].len {
                    self.record_location(at, slot);
                }
            }
        }
    }

    fn write(&mut self, number: usize, column: &Column) {
        if let Some((kind, slot)) = self.kind_mut(number) {
            kind.write(slot, kind.number(slot), column);
        }
    }

    fn kind_mut(&mut self, number: usize) -> Option<(&mut NodeShape, usize)> {
        let ShapePosition { kind, at } = *self.positions.get(number)?;
        Some((self.kinds.get_mut(kind as usize)?, at as usize))
    }

    pub(super) fn all(&self) -> &[NodeShape] {
        &self.kinds
    }

    /// Returns the position of node `number`.
    pub(super) fn slot(&self, number: usize) -> Option<BlockPosition> {
        let ShapePosition { kind, at } = *self.positions.get(number)?;
        (kind != NO_POSITION.kind).then_some(BlockPosition {
            kind: kind as usize,
            block: at as usize / BLOCK,
        })
    }

    /// Sets a node to the column that it has after the plan in progress.
    pub(super) fn set(&mut self, number: usize, column: &Column) {
        self.written.push(number);
        self.write(number, column);
        if let Some((kind, _)) = self.kind_mut(number) {
            kind.summarise();
        }
    }

    /// Closes node `number`: no instance is placed on it by its sum.
    pub(super) fn close(&mut self, number: usize) {
        self.written.push(number);
        if let Some((kind, slot)) = self.kind_mut(number) {
            kind.close(slot);
            kind.summarise();
        }
    }

    /// Undoes all writes since [`Self::follow`].
    pub(super) fn restore(&mut self) {
        if self.written.is_empty() {
            return;
        }
        for number in std::mem::take(&mut self.written) {
            if let Some(column) = self.columns.get(number).copied() {
                self.write(number, &column);
            }
        }
        self.summarise();
    }

    fn summarise(&mut self) {
        self.kinds.iter_mut().for_each(NodeShape::summarise);
    }

    /// Returns the group of a class. A new class joins the group of classes that were not told apart so far.
    fn group_of(&mut self, class: NodeClass, node: usize) -> usize {
        if let Some(known) = self.classes.get_mut(&class) {
            known.node = node;
            return known.group;
        }
        self.classes.insert(class, ShapeClass { group: 0, node });
        self.groups = self.groups.max(1);
        self.generation += 1;
        0
    }

    /// Takes out the verdicts for the requirements of the group. The caller returns them with [`Self::keep`].
    pub(super) fn take_cache(
        &mut self,
        job: &JobSpec,
        group: &TaskGroup,
    ) -> (GroupRequirements, FeasibilityCache) {
        if let Some(last) = self.last.take_if(|(wants, _)| wants.is_of(job, group)) {
            return last;
        }
        let wants = GroupRequirements::of(job, group);
        let known = self.judged.remove(&wants);
        let judged = known.unwrap_or_else(|| FeasibilityCache::new(&wants));
        (wants, judged)
    }

    pub(super) fn keep(&mut self, wants: GroupRequirements, judged: FeasibilityCache) {
        let Some((wants, judged)) = self.last.replace((wants, judged)) else {
            return;
        };
        if self.judged.len() >= limits::CONSTRAINT_SETS_MAX {
            self.judged.clear();
        }
        self.judged.insert(wants, judged);
    }

    /// Judges new classes, and moves classes that `judged` tells apart to groups of their own.
    pub(super) fn judge_new_classes(
        &mut self,
        judged: &mut FeasibilityCache,
        state: &State,
        affinity: impl Fn(&NodeSpec) -> Option<f64>,
    ) {
        if judged.generation == self.generation && !judged.views.is_empty() {
            return;
        }
        let columns = self.columns.clone();
        // A class without nodes is removed; it counts as new when a node of the class comes back.
        self.classes.retain(|class, ShapeClass { node, .. }| {
            if judged.by_class.contains_key(class) {
                return true;
            }
            let is_one = |column: &&Column| column.occupied && column.class == *class;
            let known = columns.get(*node).filter(is_one);
            let column = known.or_else(|| columns.iter().find(is_one));
            let node = column.and_then(|column| state.nodes().get(&column.node_id));
            let Some(node) = node else { return false };
            let (judgement, verdict) = judged.verdicts.of(*class, || Some(&node.spec));
            let view = ClassView {
                class_at: judgement.at,
                is_feasible: *verdict == Feasibility::Feasible,
                affinity: affinity(&node.spec),
            };
            judged.by_class.insert(*class, view);
            true
        });
        if self.regroup_classes(&judged.by_class) {
            self.generation += 1;
            for number in 0..columns.len() {
                self.change(number, columns.get(number));
            }
            self.sort();
            self.summarise();
        }
        judged.views = vec![None; self.groups];
        for (class, ShapeClass { group, .. }) in &self.classes {
            if let Some(view) = judged.by_class.get(class) {
                judged.views[*group] = Some(*view);
            }
        }
        judged.generation = self.generation;
    }

    /// Regroups classes. Returns whether a class is in another group now.
    fn regroup_classes(&mut self, views: &BTreeMap<NodeClass, ClassView>) -> bool {
        // Within each previous group: the distinct views, and the new group of each.
        let mut apart: BTreeMap<usize, Vec<(ClassView, usize)>> = BTreeMap::new();
        let mut is_new = false;
        for (class, row) in &mut self.classes {
            let Some(view) = views.get(class) else {
                continue;
            };
            let known = apart.entry(row.group).or_default();
            let group = match known.iter().find(|(other, _)| other.is_alike(*view)) {
                Some((_, group)) => *group,
                None => {
                    let group = if known.is_empty() {
                        row.group
                    } else {
                        self.groups += 1;
                        self.groups - 1
                    };
                    known.push((*view, group));
                    group
                }
            };
            is_new |= group != row.group;
            row.group = group;
        }
        is_new
    }
}

#[cfg(test)]
mod tests;
