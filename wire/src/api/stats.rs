//! Resource usage of nodes and allocations.
//!
//! Nomad's fields are rates, measured between two samples. A value that is unavailable is missing from `Measured`. Next
//! to them, `Muster` holds the counters of the kernel, with the reason for each absent counter.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_domain::alloc;
use muster_domain::saturating::nanos;
use serde::{Deserialize, Serialize};

use crate::api::null::Null;
use crate::api::route::Route;
use crate::rpc;

pub use crate::task_stats::TaskCounters;

/// Routes of resource usage.
pub const ROUTES: &[Route] = &[
    Route::read("/v1/client/stats"),
    Route::read("/v1/client/allocation/{alloc_id}/stats"),
];

/// The answer to `GET /v1/client/stats`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NodeStats {
    pub alloc_dir_stats: DiskStats,
    /// A single entry for all cores.
    #[serde(rename = "CPU")]
    pub cpu: Vec<CpuStats>,
    /// MHz in use.
    #[serde(rename = "CPUTicksConsumed")]
    pub cpu_ticks_consumed: f64,
    pub device_stats: Null,
    pub disk_stats: Vec<DiskStats>,
    pub memory: MemoryStats,
    /// Nanoseconds since the epoch.
    pub timestamp: u64,
    pub uptime: u64,
    pub muster: NodeCounters,
}

/// The node's CPU time by kind, in percent of the time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CpuStats {
    #[serde(rename = "CPU")]
    pub cpu: String,
    #[serde(rename = "Idle")]
    pub idle: f64,
    #[serde(rename = "System")]
    pub system: f64,
    #[serde(rename = "Total")]
    pub total: f64,
    /// All time that is not idle: user and system time are not separated.
    #[serde(rename = "User")]
    pub user: f64,
}

/// A file system.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct DiskStats {
    pub available: u64,
    pub device: String,
    pub inodes_used_percent: f64,
    pub mountpoint: String,
    pub size: u64,
    pub used: u64,
    pub used_percent: f64,
}

/// Memory of a node, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct MemoryStats {
    pub available: u64,
    pub free: u64,
    pub total: u64,
    pub used: u64,
}

/// Counters of a node since boot.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NodeCounters {
    #[serde(rename = "CPUBusyNanos")]
    pub cpu_busy_nanos: u64,
    #[serde(rename = "CPUIdleNanos")]
    pub cpu_idle_nanos: u64,
    /// Events that eBPF programs could not count; `None` if there are no programs.
    pub ebpf_lost: Option<u64>,
    /// CPU time of the agent's own process.
    #[serde(rename = "AgentCPUNanos")]
    pub agent_cpu_nanos: u64,
    pub agent_resident_bytes: u64,
    /// Limits of tasks that were found changed, and that were set again, since the agent's start.
    pub limits_repaired: u64,
    /// Reasons why the node takes no new allocations, by name.
    pub conditions: BTreeMap<String, String>,
    /// Stale entries removed from eBPF maps since the agent's start. Their cgroups had been deleted.
    pub ebpf_stale_removed: u64,
    /// Collection of finished allocations.
    pub collection: Collection,
    /// Every allocation of the node, from one collection; by id.
    pub allocs: BTreeMap<String, BTreeMap<String, TaskCounters>>,
}

/// Collection of finished allocations on a node; counts are since its agent's start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Collection {
    /// Finished allocations, including those being destroyed and those whose destroy was refused.
    pub finished: u64,
    pub under_way: u64,
    pub refused: u64,
    /// Allocations destroyed, by reason.
    pub destroyed: BTreeMap<String, u64>,
    pub refusals: u64,
    /// Nanoseconds since the epoch; 0 if none was destroyed.
    pub last_at: u64,
    pub last_reason: String,
    /// Directories whose deletion is not complete.
    pub deleting: u64,
    pub deleted_inodes: u64,
    pub deleted_bytes: u64,
    pub delete_failures: u64,
    pub delete_busy_nanos: u64,
    /// Directories that cannot be deleted at present, and the reason for each.
    pub stuck: BTreeMap<String, String>,
}

impl From<&rpc::NodeCollection> for Collection {
    fn from(collection: &rpc::NodeCollection) -> Self {
        let rpc::NodeCollection {
            finished,
            under_way,
            refused,
            destroyed,
            refusals,
            last,
            deleting,
            deleted_inodes,
            deleted_bytes,
            delete_failures,
            delete_busy,
            stuck,
        } = collection;
        let (last_at, last_reason) = last
            .as_ref()
            .map_or((0, String::new()), |(at, reason)| (at.0, reason.clone()));
        Self {
            finished: *finished,
            under_way: *under_way,
            refused: *refused,
            destroyed: destroyed.clone(),
            refusals: *refusals,
            last_at,
            last_reason,
            deleting: *deleting,
            deleted_inodes: *deleted_inodes,
            deleted_bytes: *deleted_bytes,
            delete_failures: *delete_failures,
            delete_busy_nanos: nanos(*delete_busy),
            stuck: stuck.iter().cloned().collect(),
        }
    }
}

/// The answer to `GET /v1/client/allocation/:id/stats`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AllocStats {
    pub resource_usage: ResourceUsage,
    pub tasks: BTreeMap<String, TaskUsage>,
    /// Nanoseconds since the epoch.
    pub timestamp: u64,
    pub muster: AllocCounters,
}

/// Counters of an allocation besides those of its tasks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AllocCounters {
    /// The ephemeral disk; `None` while its directories are being created.
    pub disk: Option<EphemeralDisk>,
}

/// The ephemeral disk of an allocation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct EphemeralDisk {
    /// `quota` by the file system, `accounted` by measuring, `off`.
    pub enforcement: String,
    /// The reason why the file system does not enforce the limit; empty if it does.
    pub reason: String,
    pub limit_bytes: u64,
    pub limit_inodes: u64,
    /// `None` if that was not measured.
    pub used_bytes: Option<u64>,
    pub used_inodes: Option<u64>,
    /// Nanoseconds since the epoch; 0 if nothing was measured.
    pub measured_at: u64,
}

impl From<&rpc::AllocDisk> for EphemeralDisk {
    fn from(disk: &rpc::AllocDisk) -> Self {
        let rpc::AllocDisk {
            enforcement,
            reason,
            limit_bytes,
            limit_inodes,
            used_bytes,
            used_inodes,
            measured_at,
        } = disk;
        Self {
            enforcement: enforcement.clone(),
            reason: reason.clone(),
            limit_bytes: *limit_bytes,
            limit_inodes: *limit_inodes,
            used_bytes: *used_bytes,
            used_inodes: *used_inodes,
            measured_at: measured_at.map_or(0, |at| at.0),
        }
    }
}

/// Resource usage of one task.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct TaskUsage {
    pub resource_usage: ResourceUsage,
    /// Nanoseconds since the epoch.
    pub timestamp: u64,
    /// By process; empty, because processes are not measured one by one.
    pub pids: BTreeMap<String, ResourceUsage>,
    pub muster: TaskCounters,
}

/// Resource usage of a task or of an allocation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ResourceUsage {
    pub memory_stats: MemoryUsage,
    pub cpu_stats: CpuUsage,
    pub device_stats: Vec<Null>,
}

/// Memory in bytes. Only the fields in `measured` were measured.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct MemoryUsage {
    #[serde(rename = "RSS")]
    pub rss: u64,
    pub cache: u64,
    pub swap: u64,
    pub usage: u64,
    pub max_usage: u64,
    pub kernel_usage: u64,
    pub kernel_max_usage: u64,
    pub measured: Vec<String>,
}

/// CPU. Only the fields in `measured` were measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct CpuUsage {
    pub system_mode: f64,
    pub user_mode: f64,
    /// MHz in use.
    pub total_ticks: f64,
    pub throttled_periods: u64,
    /// Nanoseconds.
    pub throttled_time: u64,
    /// Percent of one core.
    pub percent: f64,
    pub measured: Vec<String>,
}

/// The address of a task that its driver put on a network of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct TaskNetwork {
    pub address: String,
    /// Ports at that address, by label.
    pub ports: BTreeMap<String, u16>,
    /// Whether this address is to be advertised, and not the node's.
    pub auto_advertise: bool,
}

impl From<&alloc::TaskNetwork> for TaskNetwork {
    fn from(network: &alloc::TaskNetwork) -> Self {
        let alloc::TaskNetwork {
            address,
            ports,
            auto_advertise,
        } = network;
        Self {
            address: address.clone(),
            ports: ports.clone(),
            auto_advertise: *auto_advertise,
        }
    }
}

/// Time in which processes waited for one resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Pressure {
    /// Time in which at least one of the processes waited.
    pub some_nanos: u64,
    /// All that were not idle, at once.
    pub full_nanos: Option<u64>,
}

impl From<rpc::Pressure> for Pressure {
    fn from(pressure: rpc::Pressure) -> Self {
        let rpc::Pressure { some, full } = pressure;
        Self {
            some_nanos: nanos(some),
            full_nanos: full.map(nanos),
        }
    }
}

/// The distribution of durations.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Histogram {
    pub count: u64,
    pub sum_nanos: u64,
    /// Buckets that are not empty, from short to long.
    pub buckets: Vec<Bucket>,
}

/// Times that took about as long.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Bucket {
    /// The bucket's upper bound, exclusive; `None` for the last bucket, which has none. The lower bound is half of it,
    /// or 0 in the first bucket.
    pub below_nanos: Option<u64>,
    pub count: u64,
}

impl Histogram {
    /// An upper bound of the shortest `share` of all times. `None` if there are no times, or if the share ends in the
    /// last bucket.
    #[must_use]
    pub fn below_nanos(&self, share: f64) -> Option<u64> {
        let wanted = share * self.count as f64;
        let mut seen = 0;
        let mut buckets = self.buckets.iter();
        let reached = buckets.find(|bucket| {
            seen += bucket.count;
            seen as f64 >= wanted
        });
        reached?.below_nanos
    }
}

impl From<&rpc::Histogram> for Histogram {
    fn from(histogram: &rpc::Histogram) -> Self {
        let rpc::Histogram { counts, sum } = histogram;
        let buckets = counts.iter().enumerate().filter(|(_, count)| **count > 0);
        let buckets = buckets.map(|(at, count)| Bucket {
            below_nanos: rpc::Histogram::bound_ns(at),
            count: *count,
        });
        Self {
            count: counts.iter().sum(),
            sum_nanos: nanos(*sum),
            buckets: buckets.collect(),
        }
    }
}

impl NodeStats {
    /// The rates between two samples. Without an earlier one they are means since boot.
    ///
    /// `mhz` is what the node's fingerprint offers over all cores.
    #[must_use]
    pub fn new(earlier: Option<&rpc::NodeStats>, stats: &rpc::NodeStats, mhz: u64) -> Self {
        let (busy, idle) = earlier.map_or((stats.cpu_busy, stats.cpu_idle), |earlier| {
            (
                stats.cpu_busy.saturating_sub(earlier.cpu_busy),
                stats.cpu_idle.saturating_sub(earlier.cpu_idle),
            )
        });
        let share = ratio(busy.as_secs_f64(), busy.as_secs_f64() + idle.as_secs_f64());
        let used = stats
            .disk_total_bytes
            .saturating_sub(stats.disk_available_bytes);
        let disk = DiskStats {
            available: stats.disk_available_bytes,
            size: stats.disk_total_bytes,
            used,
            used_percent: 100.0 * ratio(used as f64, stats.disk_total_bytes as f64),
            ..DiskStats::default()
        };
        let tasks = |alloc: &rpc::AllocStats| {
            alloc
                .tasks
                .iter()
                .map(|(name, stats)| (name.clone(), stats.into()))
                .collect()
        };
        Self {
            alloc_dir_stats: disk.clone(),
            cpu: vec![CpuStats {
                cpu: "cpu".to_owned(),
                idle: 100.0 * (1.0 - share),
                system: 0.0,
                total: 100.0 * share,
                user: 100.0 * share,
            }],
            cpu_ticks_consumed: share * mhz as f64,
            device_stats: Null,
            disk_stats: vec![disk],
            memory: MemoryStats {
                available: stats.memory_available_bytes,
                free: stats.memory_free_bytes,
                total: stats.memory_total_bytes,
                used: stats
                    .memory_total_bytes
                    .saturating_sub(stats.memory_available_bytes),
            },
            timestamp: stats.at.0,
            uptime: stats.uptime.as_secs(),
            muster: NodeCounters {
                cpu_busy_nanos: nanos(stats.cpu_busy),
                cpu_idle_nanos: nanos(stats.cpu_idle),
                ebpf_lost: stats.ebpf_lost,
                agent_cpu_nanos: nanos(stats.agent_cpu),
                agent_resident_bytes: stats.agent_resident_bytes,
                limits_repaired: stats.limits_repaired,
                conditions: stats.conditions.clone(),
                ebpf_stale_removed: stats.ebpf_stale_removed,
                collection: (&stats.collection).into(),
                allocs: stats
                    .allocs
                    .iter()
                    .map(|alloc| (alloc.alloc_id.to_string(), tasks(alloc)))
                    .collect(),
            },
        }
    }
}

impl AllocStats {
    /// The rates between two samples. Without an earlier one no rate is measured.
    ///
    /// `core_mhz` is the speed of one of the node's cores.
    #[must_use]
    pub fn new(earlier: Option<&rpc::AllocStats>, stats: &rpc::AllocStats, core_mhz: f64) -> Self {
        let mut sum = ResourceUsage::default();
        let mut tasks = BTreeMap::new();
        for (name, task) in &stats.tasks {
            let before = earlier.and_then(|earlier| Some((earlier.at, earlier.tasks.get(name)?)));
            let elapsed = before.map(|(at, before)| (stats.at.since(at), before));
            let usage = ResourceUsage::new(elapsed, task, core_mhz);
            sum.add(&usage);
            let task = TaskUsage {
                resource_usage: usage,
                timestamp: stats.at.0,
                pids: BTreeMap::new(),
                muster: TaskCounters::from(task),
            };
            tasks.insert(name.clone(), task);
        }
        Self {
            resource_usage: sum,
            tasks,
            timestamp: stats.at.0,
            muster: AllocCounters {
                disk: stats.disk.as_ref().map(EphemeralDisk::from),
            },
        }
    }
}

impl ResourceUsage {
    fn new(
        earlier: Option<(Duration, &rpc::TaskStats)>,
        task: &rpc::TaskStats,
        core_mhz: f64,
    ) -> Self {
        let mut memory = MemoryUsage::default();
        if let Some(bytes) = task.memory_bytes {
            // The bytes charged to the cgroup. Nomad's command line shows `RSS` unless `Usage` is measured.
            (memory.usage, memory.rss) = (bytes, bytes);
            memory
                .measured
                .extend(["RSS".to_owned(), "Usage".to_owned()]);
        }
        if let Some(bytes) = task.memory_peak_bytes {
            memory.max_usage = bytes;
            memory.measured.push("Max Usage".to_owned());
        }
        for (field, value, name) in [
            (&mut memory.cache, task.memory_file_bytes, "Cache"),
            (&mut memory.swap, task.memory_swap_bytes, "Swap"),
            (
                &mut memory.kernel_usage,
                task.memory_kernel_bytes,
                "Kernel Usage",
            ),
        ] {
            if let Some(bytes) = value {
                *field = bytes;
                memory.measured.push(name.to_owned());
            }
        }
        let mut cpu = CpuUsage::default();
        if let Some((elapsed, before)) = earlier
            && let Some(used) = task
                .cpu
                .zip(before.cpu)
                .map(|(now, before)| now.saturating_sub(before))
        {
            let share = ratio(used.as_secs_f64(), elapsed.as_secs_f64());
            (cpu.percent, cpu.total_ticks) = (100.0 * share, share * core_mhz);
            cpu.measured
                .extend(["Percent".to_owned(), "Total Ticks".to_owned()]);
        }
        if let Some((periods, time)) = task.throttled_periods.zip(task.throttled) {
            (cpu.throttled_periods, cpu.throttled_time) = (periods, nanos(time));
            cpu.measured
                .extend(["Throttled Periods".to_owned(), "Throttled Time".to_owned()]);
        }
        Self {
            memory_stats: memory,
            cpu_stats: cpu,
            device_stats: Vec::new(),
        }
    }

    fn add(&mut self, other: &Self) {
        let (memory, more) = (&mut self.memory_stats, &other.memory_stats);
        memory.rss += more.rss;
        memory.usage += more.usage;
        memory.max_usage += more.max_usage;
        memory.cache += more.cache;
        memory.swap += more.swap;
        memory.kernel_usage += more.kernel_usage;
        merge(&mut memory.measured, &more.measured);
        let (cpu, more) = (&mut self.cpu_stats, &other.cpu_stats);
        cpu.percent += more.percent;
        cpu.total_ticks += more.total_ticks;
        cpu.throttled_periods += more.throttled_periods;
        cpu.throttled_time += more.throttled_time;
        merge(&mut cpu.measured, &more.measured);
    }
}

fn merge(measured: &mut Vec<String>, more: &[String]) {
    for name in more {
        if !measured.contains(name) {
            measured.push(name.clone());
        }
    }
}

fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 {
        (part / whole).max(0.0)
    } else {
        0.0
    }
}

#[cfg(test)]
mod tests {
    use muster_domain::id::{AllocId, LogIndex, Timestamp};

    use super::*;

    fn sample(at_ms: u64, cpu: Option<Duration>) -> rpc::AllocStats {
        let task = rpc::TaskStats {
            cpu,
            memory_bytes: Some(1 << 20),
            ..rpc::TaskStats::default()
        };
        rpc::AllocStats {
            alloc_id: AllocId::at(LogIndex(1), 0),
            at: Timestamp::from_millis(at_ms),
            tasks: BTreeMap::from([("web".to_owned(), task)]),
            disk: None,
        }
    }

    /// 50 ms of CPU in 200 ms is a quarter of a core: 25 % and 500 of 2 000 MHz.
    #[test]
    fn rates_come_from_two_samples() {
        let earlier = sample(1_000, Some(Duration::from_secs(9)));
        let later = sample(1_200, Some(Duration::from_millis(9_050)));

        let stats = AllocStats::new(Some(&earlier), &later, 2_000.0);

        let cpu = &stats.tasks["web"].resource_usage.cpu_stats;
        assert!((cpu.percent - 25.0).abs() < 1e-6);
        assert!((cpu.total_ticks - 500.0).abs() < 1e-6);
        assert_eq!(stats.resource_usage.memory_stats.usage, 1 << 20);
    }

    /// The histogram has 90 values below 1 µs, 9 below 8 µs, and one very long one.
    #[test]
    fn shares_of_a_histogram_end_at_a_bound() {
        let mut counts = vec![0; rpc::Histogram::BUCKETS];
        (counts[0], counts[3], counts[23]) = (90, 9, 1);
        let sum = Duration::from_secs(9);

        let histogram = Histogram::from(&rpc::Histogram { counts, sum });

        assert_eq!((histogram.count, histogram.buckets.len()), (100, 3));
        assert_eq!(histogram.below_nanos(0.5), Some(1_024));
        assert_eq!(histogram.below_nanos(0.99), Some(8_192));
        assert_eq!(histogram.below_nanos(1.0), None);
        assert_eq!(Histogram::default().below_nanos(0.5), None);
    }

    #[test]
    fn unmeasured_values_are_absent() {
        let stats = AllocStats::new(None, &sample(1_000, None), 2_000.0);

        assert!(stats.resource_usage.cpu_stats.measured.is_empty());
        assert_eq!(stats.tasks["web"].muster.cpu_nanos, None);
    }
}
