//! Nodes by kind, kept from one evaluation to the next.
//!
//! A kind is all nodes of one size whose classes nobody tells apart: everyone who has asked so far got the same verdict on
//! all of them, and likes them equally well ([`Kinds::agree`] sees to it). So there are few kinds even where classes are many,
//! and what a group wants is judged once for each. Nomad's fit, `20 - (10^free cpu + 10^free memory)` with the free shares after the instance came, splits
//! into a power that is the node's and a factor that is the kind's: `10^(1 - (used + ask) / total)` is
//! `10^(1 - used / total) * 10^(-ask / total)`. So looking at a node costs three comparisons, two products and a
//! sum, on numbers that lie side by side, and a change of a node costs two powers.
//!
//! The sums are of 32 bits: [`NEAR`] bounds their error. Whoever chooses compares those that are nearly equal
//! again, exactly.
//!
//! All of it follows from the columns. A plan under way writes to slots too; [`Kinds::restore`] takes that back.

use std::collections::BTreeMap;

use muster_domain::job::{Affinity, JobSpec, TaskGroup};
use muster_domain::node::NodeSpec;
use muster_domain::resources::Amount;
use muster_domain::scheduling::Algorithm;

use super::feasible::{Asks, ClassAt, Needs, Verdict, Verdicts};
use super::rank::affinities;
use crate::limits;
use crate::state::{Column, Columns, NodeClass, State};

/// Nodes in a block.
pub(super) const BLOCK: usize = 64;

/// Two sums that differ by more are in that order. Each is off by at most 5e-6: its four factors, two products and
/// itself are rounded to 24 bits, and none is above 20.
pub(super) const NEAR: f32 = 2e-5;

/// As many as one instruction of every x86-64 takes.
const LANES: usize = 4;

/// Sizes of machines are few; where they are not, looking at more than these would cost what a power of ten does.
const SIZES_MAX: usize = 8;

/// A kind is sorted when one in so many of its nodes has changed, so that each change pays for its share.
const SORTED_AFTER: usize = 4;

/// Neighbours of one kind.
#[derive(Clone, Debug)]
pub(super) struct Block {
    numbers: [u32; BLOCK],
    /// Free MHz; below zero where more is used than there is, or where nobody may be placed.
    cpu: [i32; BLOCK],
    memory: [i32; BLOCK],
    disk: [i32; BLOCK],
    /// 10 to the power of the free share.
    cpu_power: [f32; BLOCK],
    memory_power: [f32; BLOCK],
    /// A bit for each slot where somebody may be placed.
    open: u64,
}

/// What the open nodes of a block, or of a kind, have at least and at most.
#[derive(Clone, Copy, Debug)]
pub(super) struct Together {
    open: u32,
    /// Free cpu, memory and disk.
    least_free: [i32; 3],
    most_free: [i32; 3],
    least_power: [f32; 2],
    least_number: u32,
    most_number: u32,
}

impl Together {
    const NOBODY: Self = Self {
        open: 0,
        least_free: [i32::MAX; 3],
        most_free: [i32::MIN; 3],
        least_power: [f32::INFINITY; 2],
        least_number: u32::MAX,
        most_number: 0,
    };

    /// One more node, or those of one more block.
    fn add(&mut self, other: &Self) {
        self.open += other.open;
        for (least, free) in self.least_free.iter_mut().zip(other.least_free) {
            *least = (*least).min(free);
        }
        for (most, free) in self.most_free.iter_mut().zip(other.most_free) {
            *most = (*most).max(free);
        }
        for (least, power) in self.least_power.iter_mut().zip(other.least_power) {
            *least = least.min(power);
        }
        self.least_number = self.least_number.min(other.least_number);
        self.most_number = self.most_number.max(other.most_number);
    }

    /// The lowest number of an open node.
    pub(super) fn least_number(&self) -> usize {
        self.least_number as usize
    }

    /// No sum is less than this; infinite if nobody fits. No node is looked at for it.
    pub(super) fn bound(&self, ask: Ask, algorithm: Algorithm) -> f32 {
        let Self {
            most_free: [cpu, memory, disk],
            least_power: [cpu_power, memory_power],
            ..
        } = *self;
        if cpu < ask.cpu || memory < ask.memory || disk < ask.disk {
            return f32::INFINITY;
        }
        match algorithm {
            Algorithm::Binpack => cpu_power * ask.cpu_factor + memory_power * ask.memory_factor,
            // Everything free.
            Algorithm::Spread => 10.0 * ask.cpu_factor + 10.0 * ask.memory_factor,
        }
    }

    /// Whether there is room on every open node.
    fn fits_all(&self, ask: Ask) -> bool {
        let [cpu, memory, disk] = self.least_free;
        ask.cpu <= cpu && ask.memory <= memory && ask.disk <= disk
    }

    /// How many open nodes have too little, where no node need be looked at to tell.
    fn short(&self, ask: Ask) -> Option<Short> {
        let [least_cpu, ..] = self.least_free;
        let [most_cpu, most_memory, _] = self.most_free;
        if self.fits_all(ask) {
            return Some([0; 3]);
        }
        if ask.cpu > most_cpu {
            return Some([self.open, 0, 0]);
        }
        (ask.cpu <= least_cpu && ask.memory > most_memory).then_some([0, self.open, 0])
    }
}

/// One instance, as nodes of one kind see it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ask {
    cpu: i32,
    memory: i32,
    disk: i32,
    cpu_factor: f32,
    memory_factor: f32,
}

/// One instance, for kinds of all sizes.
#[derive(Debug)]
pub(super) struct Factors {
    ask: Amount,
    /// `None`: it is beyond what blocks can tell.
    amounts: Option<[i32; 3]>,
    algorithm: Algorithm,
    cpu: Known,
    memory: Known,
}

/// The last factors by what there is in all, as many kinds have as much of the one or the other.
#[derive(Debug, Default)]
struct Known {
    rows: [Option<(u64, f32)>; SIZES_MAX],
    next: usize,
}

impl Factors {
    pub(super) fn new(ask: Amount, algorithm: Algorithm) -> Self {
        let bounded = |amount: u64| i32::try_from(amount).ok();
        let amounts = || {
            let (cpu, memory) = (bounded(ask.cpu_mhz)?, bounded(ask.memory_mb)?);
            Some([cpu, memory, bounded(ask.disk_mb)?])
        };
        Self {
            ask,
            amounts: amounts(),
            algorithm,
            cpu: Known::default(),
            memory: Known::default(),
        }
    }

    /// As nodes with `total` see it. `None`: it is beyond what blocks can tell.
    pub(super) fn ask(&mut self, total: Amount) -> Option<Ask> {
        let [cpu, memory, disk] = self.amounts?;
        let algorithm = self.algorithm;
        Some(Ask {
            cpu,
            memory,
            disk,
            cpu_factor: factor(&mut self.cpu, self.ask.cpu_mhz, total.cpu_mhz, algorithm),
            memory_factor: factor(
                &mut self.memory,
                self.ask.memory_mb,
                total.memory_mb,
                algorithm,
            ),
        })
    }
}

/// What of a power of ten an instance leaves that asks for `ask` of `total`.
fn factor(known: &mut Known, ask: u64, total: u64, algorithm: Algorithm) -> f32 {
    let mut rows = known.rows.iter().flatten();
    if let Some((_, factor)) = rows.find(|(other, _)| *other == total) {
        return *factor;
    }
    let factor = narrow(libm::exp10(-(ask as f64) / total as f64));
    let factor = match algorithm {
        Algorithm::Binpack => factor,
        Algorithm::Spread => -factor,
    };
    known.rows[known.next] = Some((total, factor));
    known.next = (known.next + 1) % SIZES_MAX;
    factor
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "the error is what `NEAR` bounds"
)]
fn narrow(value: f64) -> f32 {
    value as f32
}

/// The score that a least sum stands for.
pub(super) fn fit(least: f32, algorithm: Algorithm) -> f64 {
    match algorithm {
        Algorithm::Binpack => (20.0 - f64::from(least)) / 18.0,
        Algorithm::Spread => (-f64::from(least) - 2.0) / 18.0,
    }
}

/// The sum that stands for a score, about.
pub(super) fn sum(fit: f64, algorithm: Algorithm) -> f32 {
    match algorithm {
        Algorithm::Binpack => narrow(20.0 - 18.0 * fit),
        Algorithm::Spread => narrow(-2.0 - 18.0 * fit),
    }
}

/// How many open nodes have too little, by what they lack first: cpu, memory, disk.
pub(super) type Short = [u32; 3];

impl Block {
    const EMPTY: Self = Self {
        numbers: [u32::MAX; BLOCK],
        cpu: [-1; BLOCK],
        memory: [-1; BLOCK],
        disk: [-1; BLOCK],
        cpu_power: [0.0; BLOCK],
        memory_power: [0.0; BLOCK],
        open: 0,
    };

    pub(super) fn number(&self, slot: usize) -> usize {
        self.numbers[slot] as usize
    }

    /// If the same is free on all open nodes, which are `together`, and it is enough: the sum of each, and which of them
    /// is the first from `first` on, round the end.
    fn all_alike(&self, together: &Together, ask: Ask, first: usize) -> Option<(f32, usize)> {
        let Together {
            least_free: [least_cpu, least_memory, _],
            most_free: [most_cpu, most_memory, _],
            least_number,
            most_number,
            ..
        } = *together;
        let alike = least_cpu == most_cpu && least_memory == most_memory;
        if !alike || most_cpu.max(most_memory) == i32::MAX || !together.fits_all(ask) {
            return None;
        }
        let any = self.open.trailing_zeros() as usize;
        let (least, most) = (least_number as usize, most_number as usize);
        let number = if least >= first || most < first {
            least
        } else {
            let open = (0..BLOCK).filter(|slot| self.open >> slot & 1 == 1);
            let numbers = open.map(|slot| self.number(slot));
            numbers.min_by_key(|number| (*number < first, *number))?
        };
        Some((self.sum(any, ask), number))
    }

    /// What is free on two nodes of a kind is equal: so are their scores.
    pub(super) fn is_alike(&self, slot: usize, (cpu, memory): (i32, i32)) -> bool {
        // A number that was cut off says nothing.
        self.cpu[slot] == cpu && self.memory[slot] == memory && cpu.max(memory) < i32::MAX
    }

    pub(super) fn free(&self, slot: usize) -> (i32, i32) {
        (self.cpu[slot], self.memory[slot])
    }

    /// The sum for one more instance; infinite where it does not fit. The less the better.
    #[expect(
        clippy::needless_bitwise_bool,
        reason = "the compiler makes vector instructions of tests of this form"
    )]
    fn sum(&self, slot: usize, ask: Ask) -> f32 {
        let short = (self.cpu[slot] < ask.cpu)
            | (self.memory[slot] < ask.memory)
            | (self.disk[slot] < ask.disk);
        let sum =
            self.cpu_power[slot] * ask.cpu_factor + self.memory_power[slot] * ask.memory_factor;
        if short { f32::INFINITY } else { sum }
    }

    /// The sum of each.
    pub(super) fn sums(&self, ask: Ask) -> [f32; BLOCK] {
        std::array::from_fn(|slot| self.sum(slot, ask))
    }

    /// The least sum of all.
    pub(super) fn least(&self, ask: Ask) -> f32 {
        let mut least = [f32::INFINITY; LANES];
        for sums in self.sums(ask).chunks_exact(LANES) {
            for (least, sum) in least.iter_mut().zip(sums) {
                *least = if *sum < *least { *sum } else { *least };
            }
        }
        least.into_iter().fold(f32::INFINITY, f32::min)
    }

    /// How many open nodes have too little.
    #[expect(
        clippy::needless_range_loop,
        clippy::needless_bitwise_bool,
        reason = "the compiler makes vector instructions of loops and tests of this form"
    )]
    fn short(&self, ask: Ask) -> Short {
        let mut short = [[0_i32; LANES]; 3];
        for at in (0..BLOCK).step_by(LANES) {
            for lane in 0..LANES {
                let slot = at + lane;
                let cpu = self.cpu[slot] < ask.cpu;
                let memory = self.memory[slot] < ask.memory;
                let disk = self.disk[slot] < ask.disk;
                short[0][lane] += i32::from(cpu);
                short[1][lane] += i32::from(!cpu & memory);
                short[2][lane] += i32::from(!cpu & !memory & disk);
            }
        }
        let count = |lanes: [i32; LANES]| lanes.iter().sum::<i32>().unsigned_abs();
        let closed = (!self.open).count_ones();
        let [cpu, memory, disk] = short.map(count);
        [cpu - closed, memory, disk]
    }

    /// What the open nodes have together.
    fn together(&self) -> Together {
        let mut together = Together::NOBODY;
        for slot in 0..BLOCK {
            if self.open >> slot & 1 == 0 {
                continue;
            }
            let free = [self.cpu[slot], self.memory[slot], self.disk[slot]];
            together.add(&Together {
                open: 1,
                least_free: free,
                most_free: free,
                least_power: [self.cpu_power[slot], self.memory_power[slot]],
                least_number: self.numbers[slot],
                most_number: self.numbers[slot],
            });
        }
        together
    }

    fn row(&self, slot: usize) -> Row {
        Row {
            number: self.numbers[slot],
            free: [self.cpu[slot], self.memory[slot], self.disk[slot]],
            powers: [self.cpu_power[slot], self.memory_power[slot]],
            is_open: self.open >> slot & 1 == 1,
        }
    }

    fn put(&mut self, slot: usize, row: Row) {
        self.numbers[slot] = row.number;
        [self.cpu[slot], self.memory[slot], self.disk[slot]] = row.free;
        [self.cpu_power[slot], self.memory_power[slot]] = row.powers;
        self.open = self.open & !(1 << slot) | u64::from(row.is_open) << slot;
    }

    fn write(&mut self, slot: usize, number: u32, column: &Column) {
        let Column { total, used, .. } = *column;
        let free = |total: u64, used: u64| match total.checked_sub(used) {
            Some(free) => i32::try_from(free).unwrap_or(i32::MAX),
            None => -1,
        };
        let power =
            |total: u64, used: u64| narrow(libm::exp10(1.0 - used as f64 / total.max(1) as f64));
        self.numbers[slot] = number;
        self.cpu[slot] = free(total.cpu_mhz, used.cpu_mhz);
        self.memory[slot] = free(total.memory_mb, used.memory_mb);
        self.disk[slot] = free(total.disk_mb, used.disk_mb);
        self.cpu_power[slot] = power(total.cpu_mhz, used.cpu_mhz);
        self.memory_power[slot] = power(total.memory_mb, used.memory_mb);
        self.open |= 1 << slot;
        if !column.takes_work {
            self.cpu[slot] = -1;
            self.open &= !(1 << slot);
        }
    }

    fn close(&mut self, slot: usize) {
        self.cpu[slot] = -1;
        self.open &= !(1 << slot);
    }
}

/// All nodes of one size and one group of classes.
///
/// Those that are about as full lie together, so that most blocks can be left out: [`Kind::sort`] sees to it now and
/// then. Nothing depends on the order.
#[derive(Clone, Debug)]
pub(super) struct Kind {
    pub(super) group: usize,
    pub(super) total: Amount,
    pub(super) blocks: Vec<Block>,
    /// What the nodes of each block have together, and those of all.
    pub(super) together: Vec<Together>,
    pub(super) whole: Together,
    /// Blocks that were written to since that was worked out, some of them more than once.
    stale: Vec<usize>,
    len: usize,
    /// Changes since it was sorted.
    changes: usize,
}

impl Kind {
    fn number(&self, slot: usize) -> u32 {
        self.blocks[slot / BLOCK].numbers[slot % BLOCK]
    }

    /// Nodes on which somebody may be placed.
    pub(super) fn open(&self) -> u32 {
        self.whole.open
    }

    /// The numbers of those.
    pub(super) fn open_numbers(&self) -> impl Iterator<Item = usize> {
        self.blocks.iter().flat_map(|block| {
            let slots = (0..BLOCK).filter(|slot| block.open >> slot & 1 == 1);
            slots.map(|slot| block.number(slot))
        })
    }

    /// How many open nodes have too little.
    pub(super) fn short(&self, ask: Ask) -> Short {
        if let Some(short) = self.whole.short(ask) {
            return short;
        }
        let blocks = self.blocks.iter().zip(&self.together);
        let shorts = blocks.map(|(block, together)| match together.short(ask) {
            Some(short) => short,
            None => block.short(ask),
        });
        shorts.fold([0; 3], |sum, more| {
            std::array::from_fn(|at| sum[at] + more[at])
        })
    }

    /// If all open nodes of a block are alike: see [`Block::all_alike`].
    pub(super) fn all_alike(&self, block: usize, ask: Ask, first: usize) -> Option<(f32, usize)> {
        self.blocks[block].all_alike(&self.together[block], ask, first)
    }

    /// Works out again what the nodes of blocks that were written to have together.
    fn summarise(&mut self) {
        if self.stale.is_empty() {
            return;
        }
        self.together.resize(self.blocks.len(), Together::NOBODY);
        self.stale.sort_unstable();
        self.stale.dedup();
        for at in self.stale.drain(..) {
            // One that is no more has nothing to say.
            if let Some(block) = self.blocks.get(at) {
                self.together[at] = block.together();
            }
        }
        let mut whole = Together::NOBODY;
        self.together.iter().for_each(|block| whole.add(block));
        self.whole = whole;
    }

    /// Makes room for one more and says where.
    fn push(&mut self) -> usize {
        if self.len == self.blocks.len() * BLOCK {
            self.blocks.push(Block::EMPTY);
        }
        self.len += 1;
        self.len - 1
    }

    /// The last one takes the place of the one at `slot`.
    fn swap_remove(&mut self, slot: usize) {
        self.len -= 1;
        let last = self.blocks[self.len / BLOCK].row(self.len % BLOCK);
        self.blocks[slot / BLOCK].put(slot % BLOCK, last);
        self.blocks[self.len / BLOCK].put(self.len % BLOCK, Row::NOBODY);
        self.stale.extend([slot / BLOCK, self.len / BLOCK]);
        self.blocks.truncate(self.len.div_ceil(BLOCK));
    }

    fn write(&mut self, slot: usize, number: u32, column: &Column) {
        self.blocks[slot / BLOCK].write(slot % BLOCK, number, column);
        self.outdate(slot / BLOCK);
    }

    fn close(&mut self, slot: usize) {
        self.blocks[slot / BLOCK].close(slot % BLOCK);
        self.outdate(slot / BLOCK);
    }

    /// What the nodes of a block have together is to be worked out again.
    fn outdate(&mut self, block: usize) {
        // Neighbours are often written to one after the other.
        if self.stale.last() != Some(&block) {
            self.stale.push(block);
        }
    }

    fn sort(&mut self) {
        self.changes = 0;
        let mut rows: Vec<Row> = (0..self.len)
            .map(|slot| self.blocks[slot / BLOCK].row(slot % BLOCK))
            .collect();
        rows.sort_unstable_by(|one, other| {
            let full = |row: &Row| row.powers[0] + row.powers[1];
            let order = full(one).total_cmp(&full(other));
            order.then_with(|| one.number.cmp(&other.number))
        });
        for (slot, row) in rows.into_iter().enumerate() {
            self.blocks[slot / BLOCK].put(slot % BLOCK, row);
        }
        self.stale.extend(0..self.blocks.len());
        self.summarise();
    }
}

/// One node of a block.
#[derive(Clone, Copy, Debug)]
struct Row {
    number: u32,
    free: [i32; 3],
    powers: [f32; 2],
    is_open: bool,
}

impl Row {
    const NOBODY: Self = Self {
        number: u32::MAX,
        free: [-1; 3],
        powers: [0.0; 2],
        is_open: false,
    };
}

/// Where a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot {
    pub(super) kind: usize,
    pub(super) block: usize,
}

#[derive(Clone, Copy, Debug)]
struct Position {
    kind: u32,
    at: u32,
}

/// In no kind.
const NOWHERE: Position = Position {
    kind: u32::MAX,
    at: 0,
};

/// What a group wants of a node besides room.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Wants {
    asks: Asks,
    affinities: Vec<Affinity>,
}

impl Wants {
    fn of(job: &JobSpec, group: &TaskGroup) -> Self {
        Self {
            asks: Asks::of(job, group),
            affinities: affinities(job, group).cloned().collect(),
        }
    }

    /// Whether it is what the group wants: as [`Self::of`], without making it.
    fn is_of(&self, job: &JobSpec, group: &TaskGroup) -> bool {
        self.asks.is_of(job, group) && self.affinities.iter().eq(affinities(job, group))
    }
}

/// What becomes of those who want the same on each group of classes.
#[derive(Debug)]
pub(super) struct Judged {
    verdicts: Verdicts,
    by_class: BTreeMap<NodeClass, View>,
    views: Vec<Option<View>>,
    /// The groups that it is about.
    generation: u64,
}

/// How nodes of a class look to those who want something.
#[derive(Clone, Copy, Debug)]
pub(super) struct View {
    pub(super) class_at: ClassAt,
    pub(super) is_feasible: bool,
    pub(super) affinity: Option<f64>,
}

impl View {
    fn is_alike(self, other: Self) -> bool {
        let bits = |view: Self| view.affinity.map(f64::to_bits);
        self.class_at == other.class_at && bits(self) == bits(other)
    }
}

impl Judged {
    fn new(wants: &Wants) -> Self {
        Self {
            verdicts: Verdicts::new(Needs::new(wants.asks.clone())),
            by_class: BTreeMap::new(),
            views: Vec::new(),
            generation: 0,
        }
    }

    pub(super) fn verdicts(&self) -> &Verdicts {
        &self.verdicts
    }

    pub(super) fn view(&self, group: usize) -> Option<View> {
        self.views.get(group).copied().flatten()
    }
}

/// A class of nodes.
#[derive(Clone, Copy, Debug)]
struct Class {
    group: usize,
    /// The last node that came to it.
    node: usize,
}

/// All nodes by kind.
#[derive(Debug, Default)]
pub(super) struct Kinds {
    /// What the kinds follow from.
    columns: Columns,
    kinds: Vec<Kind>,
    by_key: BTreeMap<(usize, [u64; 3]), usize>,
    classes: BTreeMap<NodeClass, Class>,
    /// Groups of classes are below this number.
    groups: usize,
    /// Goes up whenever a class is in another group.
    generation: u64,
    /// By number.
    positions: Vec<Position>,
    /// Written to by the plan under way.
    written: Vec<usize>,
    /// What becomes of those who asked. A class says all that rules look at, so that never grows old.
    judged: BTreeMap<Wants, Judged>,
    /// The last of them, which is not in `judged`: jobs that come together often want the same.
    last: Option<(Wants, Judged)>,
}

impl Kinds {
    /// Brings everything in line with `columns`.
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
            self.positions.resize(number + 1, NOWHERE);
        }
        let group = column.map(|column| self.group_of(column.class, number));
        let position = self.positions[number];
        let old = self.kinds.get(position.kind as usize);
        if let (Some(old), Some(column)) = (old, column)
            && group == Some(old.group)
            && old.total == column.total
        {
            self.write(number, column);
            self.kinds[position.kind as usize].changes += 1;
            return;
        }
        if position.kind != NOWHERE.kind {
            let kind = &mut self.kinds[position.kind as usize];
            kind.swap_remove(position.at as usize);
            self.say_where(position.kind as usize, position.at as usize);
            self.positions[number] = NOWHERE;
        }
        let Some((column, group)) = column.zip(group) else {
            return;
        };
        let total = column.total;
        let key = (group, [total.cpu_mhz, total.memory_mb, total.disk_mb]);
        let kinds = &mut self.kinds;
        let at = *self.by_key.entry(key).or_insert_with(|| {
            kinds.push(Kind {
                group,
                total,
                blocks: Vec::new(),
                together: Vec::new(),
                whole: Together::NOBODY,
                stale: Vec::new(),
                len: 0,
                changes: 0,
            });
            kinds.len() - 1
        });
        let slot = kinds[at].push();
        let name = u32::try_from(number).unwrap_or(u32::MAX);
        kinds[at].write(slot, name, column);
        kinds[at].changes += 1;
        self.say_where(at, slot);
    }

    /// Says where the node at `slot` of a kind is, if there is one.
    fn say_where(&mut self, kind: usize, slot: usize) {
        if slot < self.kinds[kind].len {
            let number = self.kinds[kind].number(slot) as usize;
            let bounded = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
            self.positions[number] = Position {
                kind: bounded(kind),
                at: bounded(slot),
            };
        }
    }

    /// Brings together again what is about as full, where much has changed.
    fn sort(&mut self) {
        for at in 0..self.kinds.len() {
            let kind = &mut self.kinds[at];
            if kind.changes * SORTED_AFTER > kind.len + BLOCK {
                kind.sort();
                for slot in 0..self.kinds[at].len {
                    self.say_where(at, slot);
                }
            }
        }
    }

    fn write(&mut self, number: usize, column: &Column) {
        if let Some((kind, slot)) = self.kind_mut(number) {
            kind.write(slot, kind.number(slot), column);
        }
    }

    fn kind_mut(&mut self, number: usize) -> Option<(&mut Kind, usize)> {
        let Position { kind, at } = *self.positions.get(number)?;
        Some((self.kinds.get_mut(kind as usize)?, at as usize))
    }

    pub(super) fn all(&self) -> &[Kind] {
        &self.kinds
    }

    /// Where node `number` is.
    pub(super) fn slot(&self, number: usize) -> Option<Slot> {
        let Position { kind, at } = *self.positions.get(number)?;
        (kind != NOWHERE.kind).then_some(Slot {
            kind: kind as usize,
            block: at as usize / BLOCK,
        })
    }

    /// What the plan under way makes of a node.
    pub(super) fn set(&mut self, number: usize, column: &Column) {
        self.written.push(number);
        self.write(number, column);
        if let Some((kind, _)) = self.kind_mut(number) {
            kind.summarise();
        }
    }

    /// Nobody is placed on node `number` by its sum.
    pub(super) fn close(&mut self, number: usize) {
        self.written.push(number);
        if let Some((kind, slot)) = self.kind_mut(number) {
            kind.close(slot);
            kind.summarise();
        }
    }

    /// Takes back everything since [`Self::follow`].
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
        self.kinds.iter_mut().for_each(Kind::summarise);
    }

    /// The group of a class. A new one is with those that nobody told apart so far.
    fn group_of(&mut self, class: NodeClass, node: usize) -> usize {
        if let Some(known) = self.classes.get_mut(&class) {
            known.node = node;
            return known.group;
        }
        self.classes.insert(class, Class { group: 0, node });
        self.groups = self.groups.max(1);
        self.generation += 1;
        0
    }

    /// What is known of those who want what the group does. Give it back with [`Self::keep`].
    pub(super) fn take_judged(&mut self, job: &JobSpec, group: &TaskGroup) -> (Wants, Judged) {
        if let Some(last) = self.last.take_if(|(wants, _)| wants.is_of(job, group)) {
            return last;
        }
        let wants = Wants::of(job, group);
        let known = self.judged.remove(&wants);
        let judged = known.unwrap_or_else(|| Judged::new(&wants));
        (wants, judged)
    }

    pub(super) fn keep(&mut self, wants: Wants, judged: Judged) {
        let Some((wants, judged)) = self.last.replace((wants, judged)) else {
            return;
        };
        if self.judged.len() >= limits::CONSTRAINT_SETS_MAX {
            self.judged.clear();
        }
        self.judged.insert(wants, judged);
    }

    /// Judges what is new, and puts classes that `judged` tells apart into groups of their own.
    pub(super) fn agree(
        &mut self,
        judged: &mut Judged,
        state: &State,
        likes: impl Fn(&NodeSpec) -> Option<f64>,
    ) {
        if judged.generation == self.generation && !judged.views.is_empty() {
            return;
        }
        let columns = self.columns.clone();
        // A class that no node has any more is new when one comes back to it.
        self.classes.retain(|class, Class { node, .. }| {
            if judged.by_class.contains_key(class) {
                return true;
            }
            let is_one = |column: &&Column| column.occupied && column.class == *class;
            let known = columns.get(*node).filter(is_one);
            let column = known.or_else(|| columns.iter().find(is_one));
            let node = column.and_then(|column| state.nodes().get(&column.node_id));
            let Some(node) = node else { return false };
            let (judgement, verdict) = judged.verdicts.of(*class, || Some(&node.spec));
            let view = View {
                class_at: judgement.at,
                is_feasible: *verdict == Verdict::Feasible,
                affinity: likes(&node.spec),
            };
            judged.by_class.insert(*class, view);
            true
        });
        if self.tell_apart(&judged.by_class) {
            self.generation += 1;
            for number in 0..columns.len() {
                self.change(number, columns.get(number));
            }
            self.sort();
            self.summarise();
        }
        judged.views = vec![None; self.groups];
        for (class, Class { group, .. }) in &self.classes {
            if let Some(view) = judged.by_class.get(class) {
                judged.views[*group] = Some(*view);
            }
        }
        judged.generation = self.generation;
    }

    /// Says whether a class is in another group now.
    fn tell_apart(&mut self, views: &BTreeMap<NodeClass, View>) -> bool {
        // Within each group of before: what is alike, and its group from now on.
        let mut apart: BTreeMap<usize, Vec<(View, usize)>> = BTreeMap::new();
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
