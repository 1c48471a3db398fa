//! Nodes by kind, kept from one evaluation to the next.
//!
//! A kind is all nodes of one class and one size. What no rule tells apart is judged once for all of them,
//! and Nomad's fit, `20 - (10^free cpu + 10^free memory)` with the free shares after the instance came, splits
//! into a power that is the node's and a factor that is the kind's: `10^(1 - (used + ask) / total)` is
//! `10^(1 - used / total) * 10^(-ask / total)`. So looking at a node costs three comparisons, two products and a
//! sum, on numbers that lie side by side, and a change of a node costs two powers.
//!
//! The sums are of 32 bits: [`NEAR`] bounds their error. Whoever chooses compares those that are nearly equal
//! again, exactly.
//!
//! All of it follows from the columns. A plan under way writes to slots too; [`Kinds::restore`] takes that back.

use std::collections::BTreeMap;

use muster_domain::resources::Amount;
use muster_domain::scheduling::Algorithm;

use super::feasible::{Asks, Needs, Verdicts};
use crate::limits;
use crate::state::{Column, Columns, NodeClass};

/// Nodes in a block.
pub(super) const BLOCK: usize = 64;

/// Two sums that differ by more are in that order. Each is off by at most 5e-6: its four factors, two products and
/// itself are rounded to 24 bits, and none is above 20.
pub(super) const NEAR: f32 = 2e-5;

const LANES: usize = 8;

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

/// One instance, as nodes of one kind see it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ask {
    cpu: i32,
    memory: i32,
    disk: i32,
    cpu_factor: f32,
    memory_factor: f32,
}

impl Ask {
    /// `None`: it is beyond what blocks can tell.
    pub(super) fn new(ask: Amount, total: Amount, algorithm: Algorithm) -> Option<Self> {
        let factor = |ask: u64, total: u64| {
            let factor = 10_f64.powf(-(ask as f64) / total as f64) as f32;
            match algorithm {
                Algorithm::Binpack => factor,
                Algorithm::Spread => -factor,
            }
        };
        Some(Self {
            cpu: i32::try_from(ask.cpu_mhz).ok()?,
            memory: i32::try_from(ask.memory_mb).ok()?,
            disk: i32::try_from(ask.disk_mb).ok()?,
            cpu_factor: factor(ask.cpu_mhz, total.cpu_mhz),
            memory_factor: factor(ask.memory_mb, total.memory_mb),
        })
    }
}

/// The score that a least sum stands for.
pub(super) fn fit(least: f32, algorithm: Algorithm) -> f64 {
    match algorithm {
        Algorithm::Binpack => (20.0 - f64::from(least)) / 18.0,
        Algorithm::Spread => (-f64::from(least) - 2.0) / 18.0,
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

    /// What is free on two nodes of a kind is equal: so are their scores.
    pub(super) fn is_alike(&self, slot: usize, (cpu, memory): (i32, i32)) -> bool {
        // A number that was cut off says nothing.
        self.cpu[slot] == cpu && self.memory[slot] == memory && cpu.max(memory) < i32::MAX
    }

    pub(super) fn free(&self, slot: usize) -> (i32, i32) {
        (self.cpu[slot], self.memory[slot])
    }

    /// The sum for one more instance; infinite where it does not fit. The less the better.
    pub(super) fn sum(&self, slot: usize, ask: Ask) -> f32 {
        let fits = self.cpu[slot] >= ask.cpu
            && self.memory[slot] >= ask.memory
            && self.disk[slot] >= ask.disk;
        if fits {
            self.cpu_power[slot] * ask.cpu_factor + self.memory_power[slot] * ask.memory_factor
        } else {
            f32::INFINITY
        }
    }

    /// The least sum of all, and how many nodes have too little.
    pub(super) fn least(&self, ask: Ask) -> (f32, Short) {
        let mut least = [f32::INFINITY; LANES];
        let mut short = [[0_i32; LANES]; 3];
        for at in (0..BLOCK).step_by(LANES) {
            for lane in 0..LANES {
                let slot = at + lane;
                let cpu = self.cpu[slot] < ask.cpu;
                let memory = self.memory[slot] < ask.memory;
                let disk = self.disk[slot] < ask.disk;
                let sum = self.cpu_power[slot] * ask.cpu_factor
                    + self.memory_power[slot] * ask.memory_factor;
                let sum = if cpu | memory | disk {
                    f32::INFINITY
                } else {
                    sum
                };
                least[lane] = if sum < least[lane] { sum } else { least[lane] };
                short[0][lane] += i32::from(cpu);
                short[1][lane] += i32::from(!cpu & memory);
                short[2][lane] += i32::from(!cpu & !memory & disk);
            }
        }
        let least = least.into_iter().fold(f32::INFINITY, f32::min);
        let count = |lanes: [i32; LANES]| lanes.iter().sum::<i32>().unsigned_abs();
        let closed = BLOCK as u32 - self.open.count_ones();
        let [cpu, memory, disk] = short.map(count);
        (least, [cpu - closed, memory, disk])
    }

    fn write(&mut self, slot: usize, number: u32, column: &Column) {
        let Column { total, used, .. } = *column;
        let free = |total: u64, used: u64| match total.checked_sub(used) {
            Some(free) => i32::try_from(free).unwrap_or(i32::MAX),
            None => -1,
        };
        let power =
            |total: u64, used: u64| 10_f64.powf(1.0 - used as f64 / total.max(1) as f64) as f32;
        self.numbers[slot] = number;
        self.cpu[slot] = free(total.cpu_mhz, used.cpu_mhz);
        self.memory[slot] = free(total.memory_mb, used.memory_mb);
        self.disk[slot] = free(total.disk_mb, used.disk_mb);
        self.cpu_power[slot] = power(total.cpu_mhz, used.cpu_mhz);
        self.memory_power[slot] = power(total.memory_mb, used.memory_mb);
        self.open |= 1 << slot;
        if !column.takes_work {
            self.close(slot);
        }
    }

    fn close(&mut self, slot: usize) {
        self.cpu[slot] = -1;
        self.open &= !(1 << slot);
    }
}

/// All nodes of one class and one size, by number.
#[derive(Clone, Debug)]
pub(super) struct Kind {
    pub(super) class: NodeClass,
    pub(super) total: Amount,
    pub(super) blocks: Vec<Block>,
    len: usize,
}

impl Kind {
    fn number(&self, slot: usize) -> u32 {
        self.blocks[slot / BLOCK].numbers[slot % BLOCK]
    }

    /// Any node of the kind.
    pub(super) fn any(&self) -> Option<usize> {
        (self.len > 0).then(|| self.number(0) as usize)
    }

    /// Nodes on which somebody may be placed.
    pub(super) fn open(&self) -> u32 {
        self.blocks
            .iter()
            .map(|block| block.open.count_ones())
            .sum()
    }

    /// The numbers of those.
    pub(super) fn open_numbers(&self) -> impl Iterator<Item = usize> {
        self.blocks.iter().flat_map(|block| {
            let slots = (0..BLOCK).filter(|slot| block.open >> slot & 1 == 1);
            slots.map(|slot| block.number(slot))
        })
    }

    fn copy(&mut self, from: usize, to: usize) {
        let block = &self.blocks[from / BLOCK];
        let at = from % BLOCK;
        let row = (
            block.numbers[at],
            [block.cpu[at], block.memory[at], block.disk[at]],
            [block.cpu_power[at], block.memory_power[at]],
            block.open >> at & 1,
        );
        let (number, [cpu, memory, disk], [cpu_power, memory_power], open) = row;
        let block = &mut self.blocks[to / BLOCK];
        let at = to % BLOCK;
        block.numbers[at] = number;
        (block.cpu[at], block.memory[at], block.disk[at]) = (cpu, memory, disk);
        (block.cpu_power[at], block.memory_power[at]) = (cpu_power, memory_power);
        block.open = block.open & !(1 << at) | open << at;
    }

    /// Makes room for `number` in its place and says where.
    fn insert(&mut self, number: u32) -> usize {
        if self.len == self.blocks.len() * BLOCK {
            self.blocks.push(Block::EMPTY);
        }
        let mut at = self.len;
        while at > 0 && self.number(at - 1) > number {
            self.copy(at - 1, at);
            at -= 1;
        }
        self.len += 1;
        at
    }

    fn remove(&mut self, slot: usize) {
        for at in slot..self.len - 1 {
            self.copy(at + 1, at);
        }
        self.len -= 1;
        let last = &mut self.blocks[self.len / BLOCK];
        last.numbers[self.len % BLOCK] = u32::MAX;
        last.close(self.len % BLOCK);
        self.blocks.truncate(self.len.div_ceil(BLOCK));
    }
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

/// All nodes by kind.
#[derive(Debug, Default)]
pub(super) struct Kinds {
    /// What the kinds follow from.
    columns: Columns,
    kinds: Vec<Kind>,
    by_key: BTreeMap<(NodeClass, [u64; 3]), usize>,
    /// By number.
    positions: Vec<Position>,
    /// Written to by the plan under way.
    written: Vec<usize>,
    /// Verdicts by what is asked for. A class says all that rules look at, so they never grow old.
    verdicts: BTreeMap<Asks, Verdicts>,
}

impl Kinds {
    /// Brings everything in line with `columns`.
    pub(super) fn follow(&mut self, columns: &Columns) {
        for number in columns.changed_since(&self.columns) {
            self.change(number, columns.get(number));
        }
        self.columns = columns.clone();
        let used = self.kinds.iter().filter(|kind| kind.len > 0).count();
        if self.kinds.len() > 2 * used + limits::KINDS_SPARE_MAX {
            *self = Self::default();
            self.follow(columns);
        }
    }

    fn change(&mut self, number: usize, column: Option<&Column>) {
        let column = column.filter(|column| column.occupied);
        if self.positions.len() <= number {
            self.positions.resize(number + 1, NOWHERE);
        }
        let position = self.positions[number];
        let old = self.kinds.get(position.kind as usize);
        if let (Some(old), Some(column)) = (old, column)
            && old.class == column.class
            && old.total == column.total
        {
            self.write(number, column);
            return;
        }
        if position.kind != NOWHERE.kind {
            let kind = &mut self.kinds[position.kind as usize];
            kind.remove(position.at as usize);
            self.number_from(position.kind as usize, position.at as usize);
            self.positions[number] = NOWHERE;
        }
        let Some(column) = column else { return };
        let total = column.total;
        let key = (
            column.class,
            [total.cpu_mhz, total.memory_mb, total.disk_mb],
        );
        let kinds = &mut self.kinds;
        let at = *self.by_key.entry(key).or_insert_with(|| {
            kinds.push(Kind {
                class: column.class,
                total,
                blocks: Vec::new(),
                len: 0,
            });
            kinds.len() - 1
        });
        let name = u32::try_from(number).unwrap_or(u32::MAX);
        let slot = kinds[at].insert(name);
        kinds[at].blocks[slot / BLOCK].write(slot % BLOCK, name, column);
        self.number_from(at, slot);
    }

    /// Says where the nodes of a kind are from `slot` on.
    fn number_from(&mut self, kind: usize, slot: usize) {
        for at in slot..self.kinds[kind].len {
            let number = self.kinds[kind].number(at) as usize;
            let bounded = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
            self.positions[number] = Position {
                kind: bounded(kind),
                at: bounded(at),
            };
        }
    }

    fn write(&mut self, number: usize, column: &Column) {
        if let Some((block, slot)) = self.block_mut(number) {
            block.write(slot, block.numbers[slot], column);
        }
    }

    fn block_mut(&mut self, number: usize) -> Option<(&mut Block, usize)> {
        let Position { kind, at } = *self.positions.get(number)?;
        let kind = self.kinds.get_mut(kind as usize)?;
        let block = kind.blocks.get_mut(at as usize / BLOCK)?;
        Some((block, at as usize % BLOCK))
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
    }

    /// Nobody is placed on node `number` by its sum.
    pub(super) fn close(&mut self, number: usize) {
        self.written.push(number);
        if let Some((block, slot)) = self.block_mut(number) {
            block.close(slot);
        }
    }

    /// Takes back everything since [`Self::follow`].
    pub(super) fn restore(&mut self) {
        for number in std::mem::take(&mut self.written) {
            if let Some(column) = self.columns.get(number).copied() {
                self.write(number, &column);
            }
        }
    }

    /// What is known of who may be used by those who ask for the same. Give it back.
    pub(super) fn take_verdicts(&mut self, asks: &Asks) -> Verdicts {
        let known = self.verdicts.remove(asks);
        known.unwrap_or_else(|| Verdicts::new(Needs::new(asks.clone())))
    }

    pub(super) fn keep_verdicts(&mut self, asks: Asks, verdicts: Verdicts) {
        if self.verdicts.len() >= limits::CONSTRAINT_SETS_MAX {
            self.verdicts.clear();
        }
        self.verdicts.insert(asks, verdicts);
    }
}
