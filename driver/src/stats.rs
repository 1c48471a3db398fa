//! The resource usage of a task, in the measures of the plugin protocol.
//!
//! The agent measures tasks in its own cgroups with eBPF and the kernel's files. These types are for drivers whose
//! tasks are outside the agent's cgroups, and for other hosts.

use std::collections::BTreeMap;
use std::time::SystemTime;

/// Usage of a task at a moment.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskStats {
    pub task_id: String,
    /// The time of the measurement.
    pub at: SystemTime,
    pub usage: TaskUsage,
    /// The usage of each process, by pid, if the driver measures processes.
    pub by_pid: BTreeMap<String, TaskUsage>,
}

/// CPU and memory.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TaskUsage {
    pub cpu: CpuUsage,
    pub memory: MemoryUsage,
}

/// CPU usage since the previous measurement; only the fields in `measured` are valid.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CpuUsage {
    /// Per cent of one core in the kernel.
    pub system_mode: f64,
    /// Per cent of one core in user code.
    pub user_mode: f64,
    /// MHz used.
    pub total_ticks: f64,
    /// Bandwidth periods in which the kernel throttled the task, since the task started.
    pub throttled_periods: u64,
    /// Nanoseconds for which the kernel throttled the task, since the task started.
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

/// Bytes of memory; only the fields in `measured` are valid.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryUsage {
    /// Memory of the processes without the page cache.
    pub rss: u64,
    pub cache: u64,
    pub swap: u64,
    /// Memory that counts against the limit.
    pub usage: u64,
    /// The peak of the memory that counts against the limit.
    pub max_usage: u64,
    /// Kernel memory of the task.
    pub kernel_usage: u64,
    /// The peak of the task's kernel memory.
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
