//! The kernel's counters of a control group, as a walk over a tree of groups reads them.

use crate::Plain;

/// The depth of a task's group below the tree's root.
pub const TASK_DEPTH: u32 = 2;

/// Kinds of pressure in [`GroupRow::pressure_ns`], in the kernel's order.
pub const PRESSURES: usize = 6;

/// Memory events that are read, with the kernel's name and number of each.
pub const MEMORY_EVENTS: [(&str, u32); 3] =
    [("MEMCG_HIGH", 1), ("MEMCG_MAX", 2), ("MEMCG_OOM_KILL", 4)];

/// The position of a walk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct GroupWalk {
    /// Groups that the walk visited, the root included.
    pub visited: u32,
    /// Rows that the walk filled.
    pub rows: u32,
    /// The distance of a task's group from the root of its hierarchy.
    pub level: u32,
    /// Whether the walk ended early, because it ran out of rows or visited too many groups: 0 or 1.
    pub cut: u32,
    /// Whether the hierarchy is the v2 one: 0 or 1. Set by the agent.
    pub is_v2: u32,
    pub pad: u32,
}

/// A task's group in one hierarchy. Values without a controller in the hierarchy are zero; [`Self::has`] lists the
/// known ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct GroupRow {
    /// The group's id in its hierarchy: the inode number of its directory.
    pub group: u64,
    /// The known fields: [`HAS_MEMORY`] and the others.
    pub has: u64,
    /// Pages that count against the limit.
    pub memory_pages: u64,
    /// The highest number of such pages so far.
    pub memory_peak_pages: u64,
    /// The limit in pages. Without a limit it exceeds the memory of every machine.
    pub memory_limit_pages: u64,
    /// Pages swapped out (v2).
    pub swap_pages: u64,
    /// Pages of kernel memory (v1).
    pub kernel_pages: u64,
    /// Times the group was throttled above `memory.high` (v2).
    pub high_events: u64,
    /// Times the group reached its limit (v2).
    pub max_events: u64,
    /// Processes that were killed because memory ran out, all groups below included.
    pub oom_kills: u64,
    pub pids: u64,
    /// Quota periods that had work.
    pub periods: u64,
    /// Periods in which the quota ran out.
    pub throttled_periods: u64,
    /// Nanoseconds that CPUs could not run the group until the next period.
    pub throttled_ns: u64,
    /// Nanoseconds in which some and in which all of the group's processes stalled: on disks, on memory, on a CPU. The
    /// kernel sums this up every two seconds.
    pub pressure_ns: [u64; PRESSURES],
}

/// The memory controller.
pub const HAS_MEMORY: u64 = 1;
/// The row has the kernel memory as a separate value.
pub const HAS_KERNEL: u64 = 1 << 1;
/// Swap is counted.
pub const HAS_SWAP: u64 = 1 << 2;
/// The pids controller.
pub const HAS_PIDS: u64 = 1 << 3;
/// The cpu controller, with quotas.
pub const HAS_CPU: u64 = 1 << 4;
/// Pressure.
pub const HAS_PRESSURE: u64 = 1 << 5;

// SAFETY: six words of 32 bits, `repr(C)`, without padding.
unsafe impl Plain for GroupWalk {}
// SAFETY: twenty words of 64 bits, `repr(C)`, without padding.
unsafe impl Plain for GroupRow {}
