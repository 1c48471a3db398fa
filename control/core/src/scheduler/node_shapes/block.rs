//! Blocks of adjacent nodes, so that a few instructions look at several nodes.

use muster_domain::saturating;
use muster_domain::scheduling::Algorithm;

use super::ask::{ScaledRequest, narrow};
use crate::state::Column;

/// Nodes in a block.
pub(in crate::scheduler) const BLOCK: usize = 64;

/// Two sums that differ by more than this are in the right order. Each sum is off by at most 5e-6: its four factors,
/// its two products and the sum itself are rounded to 24 bits, and none is above 20.
pub(in crate::scheduler) const SUM_ERROR_MAX: f32 = 2e-5;

/// Number of values that one instruction of every x86-64 processor takes.
const LANES: usize = 4;

/// Adjacent nodes of one kind.
#[derive(Clone, Debug)]
pub(in crate::scheduler) struct Block {
    pub(super) numbers: [u32; BLOCK],
    /// Free MHz; below zero if more is used than the total, or if no instance may be placed.
    cpu: [i32; BLOCK],
    memory: [i32; BLOCK],
    disk: [i32; BLOCK],
    /// 10 to the power of the free share.
    cpu_power: [f32; BLOCK],
    memory_power: [f32; BLOCK],
    /// A bit for each slot whose node may get an instance.
    pub(super) open: u64,
    /// A bit for each slot whose node has as many allocations as it may have.
    full: u64,
    /// A bit for each slot that was written to since the kind was sorted.
    pub(super) touched: u64,
}

/// The least and the largest values of the open nodes of a block, or of a kind.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::scheduler) struct BlockBounds {
    pub(super) open: u32,
    /// Free cpu, memory and disk.
    least_free: [i32; 3],
    most_free: [i32; 3],
    least_power: [f32; 2],
    least_number: u32,
    most_number: u32,
}

impl BlockBounds {
    pub(super) const EMPTY: Self = Self {
        open: 0,
        least_free: [i32::MAX; 3],
        most_free: [i32::MIN; 3],
        least_power: [f32::INFINITY; 2],
        least_number: u32::MAX,
        most_number: 0,
    };

    /// Adds one more node, or the nodes of one more block.
    pub(super) fn add(&mut self, other: &Self) {
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

    /// Replaces the node `old` by `new`, which has the same number. Returns whether the bounds follow without a look at
    /// the other nodes.
    pub(super) fn exchange(&mut self, old: &Self, new: &Self) -> bool {
        let mut is_known = old.open == new.open;
        for (least, (old, new)) in
            (self.least_free.iter_mut()).zip(old.least_free.iter().zip(new.least_free))
        {
            is_known &= *old > *least || new <= *least;
            *least = (*least).min(new);
        }
        for (most, (old, new)) in
            (self.most_free.iter_mut()).zip(old.most_free.iter().zip(new.most_free))
        {
            is_known &= *old < *most || new >= *most;
            *most = (*most).max(new);
        }
        for (least, (old, new)) in
            (self.least_power.iter_mut()).zip(old.least_power.iter().zip(new.least_power))
        {
            is_known &= *old > *least || new <= *least;
            *least = least.min(new);
        }
        is_known
    }

    /// The lowest number of an open node.
    pub(in crate::scheduler) fn least_number(&self) -> usize {
        self.least_number as usize
    }

    /// Returns a bound below every sum, without a look at a node; infinite if the instance fits no node.
    pub(in crate::scheduler) fn bound(&self, ask: ScaledRequest, algorithm: Algorithm) -> f32 {
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
            // The bound for nodes with everything free.
            Algorithm::Spread => 10.0 * ask.cpu_factor + 10.0 * ask.memory_factor,
        }
    }

    /// Returns whether every open node has room.
    fn fits_all(&self, ask: ScaledRequest) -> bool {
        let [cpu, memory, disk] = self.least_free;
        ask.cpu <= cpu && ask.memory <= memory && ask.disk <= disk
    }

    /// Returns the number of open nodes that have too little, if that follows without a look at a node.
    pub(super) fn short(&self, ask: ScaledRequest) -> Option<ShortfallCounts> {
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

/// The number of open nodes that have too little, by what they lack first: cpu, memory, disk.
pub(in crate::scheduler) type ShortfallCounts = [u32; 3];

impl Block {
    pub(super) const EMPTY: Self = Self {
        numbers: [u32::MAX; BLOCK],
        cpu: [-1; BLOCK],
        memory: [-1; BLOCK],
        disk: [-1; BLOCK],
        cpu_power: [0.0; BLOCK],
        memory_power: [0.0; BLOCK],
        open: 0,
        full: 0,
        touched: 0,
    };

    pub(in crate::scheduler) fn number(&self, slot: usize) -> usize {
        self.numbers[slot] as usize
    }

    /// Returns the sum of each open node and the number of the first, if all have the same free amounts and these
    /// suffice. `bounds` summarises the open nodes. The first node is the first one from `first` on; lower numbers
    /// come last.
    pub(super) fn uniform_node(
        &self,
        bounds: &BlockBounds,
        ask: ScaledRequest,
        first: usize,
    ) -> Option<(f32, usize)> {
        let BlockBounds {
            least_free: [least_cpu, least_memory, _],
            most_free: [most_cpu, most_memory, _],
            least_number,
            most_number,
            ..
        } = *bounds;
        let alike = least_cpu == most_cpu && least_memory == most_memory;
        if !alike || most_cpu.max(most_memory) == i32::MAX || !bounds.fits_all(ask) {
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

    /// Returns whether `cpu` and `memory` are the free amounts of the node in `slot`. Nodes of a kind with the same
    /// free amounts have equal scores.
    pub(in crate::scheduler) fn is_alike(&self, slot: usize, (cpu, memory): (i32, i32)) -> bool {
        // A value at the upper limit may be cut off, so it is no evidence.
        self.cpu[slot] == cpu && self.memory[slot] == memory && cpu.max(memory) < i32::MAX
    }

    pub(in crate::scheduler) fn free(&self, slot: usize) -> (i32, i32) {
        (self.cpu[slot], self.memory[slot])
    }

    /// Returns the sum for one more instance; infinite if it does not fit. The smaller, the better.
    #[expect(
        clippy::needless_bitwise_bool,
        reason = "the compiler makes vector instructions of tests of this form"
    )]
    fn sum(&self, slot: usize, ask: ScaledRequest) -> f32 {
        let short = (self.cpu[slot] < ask.cpu)
            | (self.memory[slot] < ask.memory)
            | (self.disk[slot] < ask.disk);
        let sum =
            self.cpu_power[slot] * ask.cpu_factor + self.memory_power[slot] * ask.memory_factor;
        if short { f32::INFINITY } else { sum }
    }

    /// Returns the sum of each node.
    // This is a function of its own, because otherwise the compiler makes no vector instructions of it.
    #[inline(never)]
    pub(in crate::scheduler) fn sums(&self, ask: ScaledRequest) -> [f32; BLOCK] {
        let mut sums = [0.0; BLOCK];
        for (slot, sum) in sums.iter_mut().enumerate() {
            *sum = self.sum(slot, ask);
        }
        sums
    }

    /// Returns the least sum of the block.
    pub(in crate::scheduler) fn least(&self, ask: ScaledRequest) -> f32 {
        let mut least = [f32::INFINITY; LANES];
        for sums in self.sums(ask).chunks_exact(LANES) {
            for (least, sum) in least.iter_mut().zip(sums) {
                *least = if *sum < *least { *sum } else { *least };
            }
        }
        least.into_iter().fold(f32::INFINITY, f32::min)
    }

    /// Returns the number of open nodes that have too little.
    #[expect(
        clippy::needless_range_loop,
        clippy::needless_bitwise_bool,
        reason = "the compiler makes vector instructions of loops and tests of this form"
    )]
    pub(super) fn short(&self, ask: ScaledRequest) -> ShortfallCounts {
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

    /// Returns the summary of the open nodes.
    pub(super) fn open_bounds(&self) -> BlockBounds {
        let mut bounds = BlockBounds::EMPTY;
        for slot in 0..BLOCK {
            if self.open >> slot & 1 == 1 {
                bounds.add(&self.slot_bounds(slot));
            }
        }
        bounds
    }

    /// Returns the summary of one open node.
    pub(super) fn slot_bounds(&self, slot: usize) -> BlockBounds {
        let free = [self.cpu[slot], self.memory[slot], self.disk[slot]];
        BlockBounds {
            open: 1,
            least_free: free,
            most_free: free,
            least_power: [self.cpu_power[slot], self.memory_power[slot]],
            least_number: self.numbers[slot],
            most_number: self.numbers[slot],
        }
    }

    pub(super) fn row(&self, slot: usize) -> BlockNode {
        BlockNode {
            number: self.numbers[slot],
            free: [self.cpu[slot], self.memory[slot], self.disk[slot]],
            powers: [self.cpu_power[slot], self.memory_power[slot]],
            is_open: self.open >> slot & 1 == 1,
            is_full: self.full >> slot & 1 == 1,
        }
    }

    pub(super) fn put(&mut self, slot: usize, row: BlockNode) {
        self.numbers[slot] = row.number;
        [self.cpu[slot], self.memory[slot], self.disk[slot]] = row.free;
        [self.cpu_power[slot], self.memory_power[slot]] = row.powers;
        self.open = self.open & !(1 << slot) | u64::from(row.is_open) << slot;
        self.full = self.full & !(1 << slot) | u64::from(row.is_full) << slot;
    }

    pub(super) fn write(&mut self, slot: usize, number: u32, column: &Column) {
        let Column { total, used, .. } = *column;
        let free = |total: u64, used: u64| match total.checked_sub(used) {
            Some(free) => saturating::to_i32(free),
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
        self.full &= !(1 << slot);
        if used.allocs >= total.allocs {
            self.cpu[slot] = -1;
            self.full |= 1 << slot;
        }
        if !column.takes_work {
            self.cpu[slot] = -1;
            self.open &= !(1 << slot);
        }
    }

    /// Returns the number of open nodes that have as many allocations as they may have.
    pub(super) fn full(&self) -> u32 {
        (self.full & self.open).count_ones()
    }

    pub(super) fn close(&mut self, slot: usize) {
        self.cpu[slot] = -1;
        self.open &= !(1 << slot);
    }
}

/// One node of a block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct BlockNode {
    pub(super) number: u32,
    free: [i32; 3],
    pub(super) powers: [f32; 2],
    is_open: bool,
    is_full: bool,
}

impl BlockNode {
    pub(super) const VACANT: Self = Self {
        number: u32::MAX,
        free: [-1; 3],
        powers: [0.0; 2],
        is_open: false,
        is_full: false,
    };
}
