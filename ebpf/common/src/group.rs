//! The kernel's counters of a control group, as one walk over a tree of groups finds them.

use crate::Plain;

/// How far below the tree's root a task's group is.
pub const TASK_DEPTH: u32 = 2;

/// Kinds of pressure in [`GroupRow::pressure_ns`], in the kernel's order.
pub const PRESSURES: usize = 6;

/// Events of memory that are read, with the numbers that the kernel gives them.
pub const MEMORY_EVENTS: [(&str, u32); 3] =
    [("MEMCG_HIGH", 1), ("MEMCG_MAX", 2), ("MEMCG_OOM_KILL", 4)];

/// Where a walk is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct GroupWalk {
    /// Groups that it came to, the root included.
    pub visited: u32,
    /// Rows that it filled.
    pub rows: u32,
    /// How far a task's group is from the root of its hierarchy.
    pub level: u32,
    /// Whether it ended early, for want of rows or for too many groups: 0 or 1.
    pub cut: u32,
    /// Whether the hierarchy is the v2 one: 0 or 1. Set by the agent.
    pub is_v2: u32,
    pub pad: u32,
}

/// A task's group in one hierarchy. What its hierarchy has no controller for is zero, and [`Self::has`] says so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct GroupRow {
    /// The group's id in its hierarchy: the inode number of its directory.
    pub group: u64,
    /// The known fields: [`HAS_MEMORY`] and the others.
    pub has: u64,
    /// Pages that count against the limit.
    pub memory_pages: u64,
    /// The most it ever was.
    pub memory_peak_pages: u64,
    /// The limit; more than any machine has where there is none.
    pub memory_limit_pages: u64,
    /// Pages swapped out (v2).
    pub swap_pages: u64,
    /// Pages of the kernel's own (v1).
    pub kernel_pages: u64,
    /// Times the group was held back above `memory.high` (v2).
    pub high_events: u64,
    /// Times it came to its limit (v2).
    pub max_events: u64,
    /// Processes that were killed for want of memory, of all groups below as well.
    pub oom_kills: u64,
    pub pids: u64,
    /// Quota periods that had work.
    pub periods: u64,
    /// Those of them in which the quota ran out.
    pub throttled_periods: u64,
    /// Nanoseconds that CPUs had nothing to run for it until the next period.
    pub throttled_ns: u64,
    /// Nanoseconds that some and that all of its processes stood still: for disks, for memory, for a CPU. The kernel
    /// sums this up every two seconds.
    pub pressure_ns: [u64; PRESSURES],
}

/// The memory controller.
pub const HAS_MEMORY: u64 = 1;
/// The kernel's own memory is told apart in the row.
pub const HAS_KERNEL: u64 = 1 << 1;
/// Swap is counted.
pub const HAS_SWAP: u64 = 1 << 2;
/// The pids controller.
pub const HAS_PIDS: u64 = 1 << 3;
/// The cpu controller, with quotas.
pub const HAS_CPU: u64 = 1 << 4;
/// Pressure.
pub const HAS_PRESSURE: u64 = 1 << 5;

// SAFETY: six words of 32 bits, `repr(C)`, nothing between them.
unsafe impl Plain for GroupWalk {}
// SAFETY: twenty words of 64 bits, `repr(C)`, nothing between them.
unsafe impl Plain for GroupRow {}
