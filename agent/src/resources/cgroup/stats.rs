//! Numbers of a task, as its groups count them. A number that the host does not provide is `None`, never zero.

/// CPU time since the group was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuStats {
    /// Total CPU time, in microseconds.
    pub usage_us: Option<u64>,
    pub user_us: Option<u64>,
    pub system_us: Option<u64>,
    /// Quota periods that had work.
    pub periods: Option<u64>,
    /// Periods in which the quota ran out.
    pub throttled_periods: Option<u64>,
    /// Time that processes had to wait for the next period, in microseconds.
    pub throttled_us: Option<u64>,
}

/// Memory of the group and all below it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryStats {
    /// Memory that counts against the limit.
    pub current_bytes: u64,
    /// The highest value so far.
    pub peak_bytes: Option<u64>,
    /// The limit; `None` when there is none.
    pub limit_bytes: Option<u64>,
    pub rss_bytes: Option<u64>,
    /// Page cache, [`shmem_bytes`](Self::shmem_bytes) included.
    pub cache_bytes: Option<u64>,
    /// The part of the page cache without a disk file: tmpfs and memory that processes share.
    pub shmem_bytes: Option<u64>,
    pub swap_bytes: Option<u64>,
    /// Memory that the kernel needs for the group: stacks, tables of pages, socket buffers. Needs Linux 5.18, or v1.
    pub kernel_bytes: Option<u64>,
    /// Page faults that went to disk.
    pub major_faults: Option<u64>,
    /// Times the group was throttled above `memory.high`, which v1 does not have.
    pub high_events: Option<u64>,
    /// Times the group was about to exceed its limit, so that the kernel reclaimed its memory. The file of v1 reads 0
    /// in groups whose processes were killed at the limit (seen on Linux 6.18).
    pub max_events: Option<u64>,
    /// Processes that were killed because memory ran out, all groups below included.
    pub oom_kills: u64,
}

/// Time that processes stalled because one resource was short, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pressure {
    /// At least one process stalled.
    pub some_us: u64,
    /// All processes that were not idle stalled at once.
    pub full_us: Option<u64>,
}

/// Time that processes stalled, by the resource that was short.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PressureStats {
    /// Waits for a CPU.
    pub cpu: Pressure,
    pub memory: Pressure,
    /// Waits for reads from disk, or writes to it.
    pub io: Pressure,
}

/// The time for which a task was kept from running.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StallStats {
    /// Time that processes had to wait for their quota's next period, in microseconds.
    pub throttled_us: Option<u64>,
    pub pressure: Option<PressureStats>,
}

/// The resources that a task uses. A part is `None` if this host has no controller for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskStats {
    pub cpu: Option<CpuStats>,
    pub memory: Option<MemoryStats>,
    pub pids: Option<u64>,
    pub pressure: Option<PressureStats>,
}
