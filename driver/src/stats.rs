//! The resource usage of a task, in the measures of the plugin protocol.
//!
//! The agent takes the numbers of tasks in its own cgroups from eBPF and from the kernel's files;
//! this is for drivers whose tasks it cannot see, and for other hosts.

use std::collections::BTreeMap;
use std::time::SystemTime;

/// Usage of a task at a moment.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskStats {
    pub task_id: String,
    /// When it was measured.
    pub at: SystemTime,
    pub usage: TaskUsage,
    /// By process, where the driver looks at processes.
    pub by_pid: BTreeMap<String, TaskUsage>,
}

/// CPU and memory.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TaskUsage {
    pub cpu: CpuUsage,
    pub memory: MemoryUsage,
}

/// CPU since the measurement before; only the fields in `measured` mean something.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CpuUsage {
    /// Per cent of one core in the kernel.
    pub system_mode: f64,
    /// Per cent of one core in user code.
    pub user_mode: f64,
    /// MHz used.
    pub total_ticks: f64,
    /// Bandwidth periods in which the task was held back, since it started.
    pub throttled_periods: u64,
    /// Nanoseconds for which it was held back, since it started.
    pub throttled_time: u64,
    /// Per cent of one core in all.
    pub percent: f64,
    /// The fields that were measured.
    pub measured: Vec<CpuField>,
}

/// A field of [`CpuUsage`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CpuField {
    /// `system_mode`.
    SystemMode,
    /// `user_mode`.
    UserMode,
    /// `total_ticks`.
    TotalTicks,
    /// `throttled_periods`.
    ThrottledPeriods,
    /// `throttled_time`.
    ThrottledTime,
    /// `percent`.
    Percent,
}

/// Bytes of memory; only the fields in `measured` mean something.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryUsage {
    /// Memory of the processes that is no cache.
    pub rss: u64,
    pub cache: u64,
    pub swap: u64,
    /// Memory that counts against the limit.
    pub usage: u64,
    /// The most that ever counted against the limit.
    pub max_usage: u64,
    /// The kernel's own for the task.
    pub kernel_usage: u64,
    /// The most that ever was the kernel's own.
    pub kernel_max_usage: u64,
    /// The fields that were measured.
    pub measured: Vec<MemoryField>,
}

/// A field of [`MemoryUsage`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryField {
    /// `rss`.
    Rss,
    /// `cache`.
    Cache,
    /// `max_usage`.
    MaxUsage,
    /// `kernel_usage`.
    KernelUsage,
    /// `kernel_max_usage`.
    KernelMaxUsage,
    /// `usage`.
    Usage,
    /// `swap`.
    Swap,
}
