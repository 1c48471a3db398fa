//! The usage of the node and its tasks.
//!
//! One batch of eBPF look-ups serves all tasks, and one walk of an eBPF program serves their cgroups. For kinds of
//! memory, one file of each cgroup is read. Where the program cannot walk, and for a request about one allocation,
//! the files of the cgroup supply the other values. `/proc` is read for the machine and for the agent itself, never
//! for a task.

mod values;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use muster_domain::error_chain::chain;
use muster_domain::id::AllocId;
use muster_wire::rpc::{AllocStats, Histogram, NodeCollection, NodeStats, Pressure, TaskStats};
use muster_wire::task_stats::Source;

use crate::bpf::{self, TaskCounters};
use crate::context::AgentContext;
use crate::limits::STUCK_REPORTED_MAX;
use crate::monitoring::fingerprint::{disk_usage, meminfo};
use crate::resources::cgroup::{self, CgroupRows, Controller, MemoryStats};
use crate::ring::StreamStats;
use crate::session::clock::now;
use crate::storage::StorageContext;
use crate::tasks::drivers::usage::{ReportedUsage, is_measured_by_driver};
use crate::tasks::live::LiveTask;

/// The reason why the kernel's files have no values of a task.
pub(crate) const GONE: &str = "the task's cgroup is gone";
/// The reason why the stall times of a task are unknown.
pub(crate) const NO_PRESSURE: &str =
    "this kernel keeps no pressure: boot one built with CONFIG_PSI, with psi=1";
/// The reason why eBPF has no values of a task.
pub(crate) const NOT_REGISTERED: &str = "the task is not registered with the eBPF programs";

/// Returns the usage of the node and of all its tasks.
///
/// # Errors
///
/// The reason why the usage is not known.
pub(crate) async fn node(context: &Arc<AgentContext>) -> Result<NodeStats, String> {
    inspect_running(context, None, |context, running| {
        let memory = meminfo();
        let disk = disk_usage(context.storage.data.root());
        let (cpu_busy, cpu_idle) = cpu_times(&read("/proc/stat"));
        let own = read("/proc/self/stat");
        NodeStats {
            at: now(),
            memory_total_bytes: memory.total,
            memory_available_bytes: memory.available,
            memory_free_bytes: memory.free,
            uptime: uptime(&read("/proc/uptime")),
            cpu_busy,
            cpu_idle,
            disk_total_bytes: disk.total_bytes,
            disk_available_bytes: disk.available_bytes,
            allocs: allocs(context, running, context.walked().as_ref()),
            ebpf_lost: context.bpf().and_then(|bpf| bpf.lost().ok()),
            agent_cpu: own_cpu(&own),
            agent_resident_bytes: own_resident_bytes(&own),
            collection: collection(&context.storage),
            limits_repaired: context.resources.limits_repaired.load(Ordering::Relaxed),
            conditions: context.monitoring.conditions.all(),
            ebpf_stale_removed: context
                .monitoring
                .ebpf_stale_removed
                .load(Ordering::Relaxed),
        }
    })
    .await
}

/// A task that has a process, and the counts of its output.
type RunningTask = (AllocId, String, Arc<LiveTask>, StreamStats);

/// Runs `inspect` on the running tasks of all allocations or of one, in a thread that may block.
async fn inspect_running<T: Send + 'static>(
    context: &Arc<AgentContext>,
    alloc_id: Option<AllocId>,
    inspect: impl FnOnce(&AgentContext, Vec<RunningTask>) -> T + Send + 'static,
) -> Result<T, String> {
    let mut running = Vec::new();
    for (alloc_id, name, live) in context.tasks.live.of(alloc_id) {
        let logs = live.streams.stats(&context.ring).await;
        running.push((alloc_id, name, live, logs));
    }
    let context = Arc::clone(context);
    let inspected = tokio::task::spawn_blocking(move || inspect(&context, running)).await;
    inspected.map_err(|error| format!("what tasks use could not be read: {error}"))
}

fn collection(storage: &StorageContext) -> NodeCollection {
    let state = storage.collection.borrow().clone();
    let trash = storage.trash.state();
    let destroyed = state.destroyed.into_iter();
    NodeCollection {
        finished: state.finished as u64,
        under_way: state.under_way as u64,
        refused: state.refused as u64,
        destroyed: destroyed
            .map(|(reason, count)| (reason.as_str().to_owned(), count))
            .collect(),
        refusals: state.refusals,
        last: state
            .last
            .map(|(at, reason)| (at, reason.as_str().to_owned())),
        deleting: (trash.waiting + trash.deleting) as u64,
        deleted_inodes: trash.deleted.inodes(),
        deleted_bytes: trash.deleted.bytes,
        delete_failures: trash.failures,
        delete_busy: trash.busy,
        stuck: trash.refused.into_iter().take(STUCK_REPORTED_MAX).collect(),
    }
}

/// Returns the usage of one allocation; `None` if none of its tasks runs.
///
/// # Errors
///
/// The reason why the usage is not known.
pub(crate) async fn alloc(
    context: &Arc<AgentContext>,
    alloc_id: AllocId,
) -> Result<Option<AllocStats>, String> {
    // The files of a few tasks give the values of this moment.
    let inspect = |context: &AgentContext, running| allocs(context, running, None);
    let all = inspect_running(context, Some(alloc_id), inspect).await;
    all.map(|mut all| all.pop())
}

/// Returns the usage of tasks from `walked`, and from their files where `walked` has no values.
fn allocs(
    context: &AgentContext,
    running: Vec<RunningTask>,
    walked: Option<&CgroupRows>,
) -> Vec<AllocStats> {
    let nothing = BTreeMap::new();
    let absent = context.bpf().map_or(&nothing, |bpf| bpf.absent());
    let counters = match &context.bpf {
        Ok(bpf) => bpf.collect().map_err(|error| error.to_string()),
        Err(reason) => Err(reason.clone()),
    };
    let mut allocs: BTreeMap<AllocId, AllocStats> = BTreeMap::new();
    for (alloc_id, name, live, logs) in running {
        let bpf = context.bpf();
        let main = bpf.and_then(|bpf| bpf.main_of(live.record.cgroup_id).ok().flatten());
        let mut stats = task(&live, &counters, absent, main.map(|main| main.pid), walked);
        stats.log_bytes = logs.bytes;
        stats.log_dropped_bytes = logs.dropped_bytes;
        stats.log_limited = logs.limited;
        stats.network = live.usage.network();
        allocs
            .entry(alloc_id)
            .or_insert_with(|| AllocStats {
                alloc_id,
                at: now(),
                tasks: BTreeMap::new(),
                disk: context.storage.disks.stats(alloc_id),
            })
            .tasks
            .insert(name, stats);
    }
    allocs.into_values().collect()
}

fn task(
    live: &LiveTask,
    counters: &Result<HashMap<u64, TaskCounters>, String>,
    absent: &BTreeMap<&'static str, String>,
    main: Option<u32>,
    walked: Option<&CgroupRows>,
) -> TaskStats {
    let mut stats = TaskStats::default();
    if is_measured_by_driver(live) {
        let driver = &live.record.driver;
        add_reported(&mut stats, driver, live.usage.known(driver, Instant::now()));
        stats.pid = main.unwrap_or_default();
        return stats;
    }
    let counted = match counters {
        Ok(tasks) => tasks
            .get(&live.record.cgroup_id)
            .ok_or_else(|| NOT_REGISTERED.to_owned()),
        Err(reason) => Err(reason.clone()),
    };
    // Only eBPF and files supply the CPU time.
    let walked = walked.filter(|_| counted.is_ok());
    let grouped = add_cgroup(&mut stats, live, main, walked);
    if let Ok(counters) = counted {
        add_counters(&mut stats, counters, absent);
    }
    values::explain(&mut stats, |source| match (source, &grouped, &counted) {
        (Source::Ebpf(_), _, Err(reason))
        | (Source::Cgroup(_) | Source::Pressure, Err(reason), _) => reason.clone(),
        (Source::Ebpf(part), _, Ok(_)) => values::of_part(absent, part),
        (Source::Cgroup(controller), Ok(()), _) => absent_from_cgroup(live, controller.into()),
        (Source::Pressure, Ok(()), _) => NO_PRESSURE.to_owned(),
    });
    stats
}

/// The reason why an existing cgroup of a task has no value of this controller.
pub(crate) fn absent_from_cgroup(live: &LiveTask, controller: Controller) -> String {
    let cgroup = live.cgroup.as_ref();
    let lacking = cgroup.and_then(|cgroup| {
        let mut all = cgroup.unenforced();
        all.find(|limit| limit.controller == controller)
    });
    match lacking {
        Some(limit) => limit.reason.clone(),
        None => format!(
            "the task's cgroup does not tell it: the files of controller `{}` lack it on this kernel",
            controller.name()
        ),
    }
}

/// Adds the driver's values of a task that runs in none of the agent's cgroups. The files of its cgroup would show
/// zero.
fn add_reported(stats: &mut TaskStats, driver: &str, known: Result<ReportedUsage, String>) {
    let reason = known.as_ref().err().cloned();
    let ReportedUsage {
        cpu,
        throttled_periods,
        throttled,
        memory_bytes,
        memory_peak_bytes,
        memory_anon_bytes,
        memory_file_bytes,
        memory_swap_bytes,
        memory_kernel_bytes,
    } = known.unwrap_or_default();
    stats.cpu = cpu;
    stats.throttled_periods = throttled_periods;
    stats.throttled = throttled;
    stats.memory_bytes = memory_bytes;
    stats.memory_peak_bytes = memory_peak_bytes;
    stats.memory_anon_bytes = memory_anon_bytes;
    stats.memory_file_bytes = memory_file_bytes;
    stats.memory_swap_bytes = memory_swap_bytes;
    stats.memory_kernel_bytes = memory_kernel_bytes;
    values::explain(stats, |_| {
        let reason = reason.clone();
        reason.unwrap_or_else(|| absent_from_driver(driver))
    });
}

/// The reason for the absence of a value that the driver does not report.
pub(crate) fn absent_from_driver(driver: &str) -> String {
    format!(
        "the task runs in none of the agent's cgroups: its usage comes from driver `{driver}` alone"
    )
}

/// Adds the values of the task's cgroups. Its processes are listed only if its `main` process is unknown.
///
/// # Errors
///
/// The reason why the cgroups have no values.
fn add_cgroup(
    stats: &mut TaskStats,
    live: &LiveTask,
    main: Option<u32>,
    walked: Option<&CgroupRows>,
) -> Result<(), String> {
    let cgroup = live.cgroup.as_ref();
    let cgroup = cgroup.ok_or_else(|| GONE.to_owned())?;
    for limit in cgroup.unenforced() {
        stats
            .absent
            .insert(limit.controller.name().to_owned(), limit.reason.clone());
    }
    stats.pid = main.unwrap_or_else(|| {
        let pids = cgroup.procs().ok();
        pids.and_then(|pids| pids.first().copied()).unwrap_or(0)
    });
    let found = match walked.map(|walked| cgroup.stats_in(walked)) {
        Some(Ok(Some(found))) => Ok(found),
        Some(Err(error)) => Err(error),
        Some(Ok(None)) | None => cgroup.stats(),
    };
    let found = found.map_err(|error| chain(&error))?;
    let cpu = found.cpu.unwrap_or_default();
    stats.cpu = cpu.usage_us.map(Duration::from_micros);
    stats.throttled_periods = cpu.throttled_periods;
    stats.throttled = cpu.throttled_us.map(Duration::from_micros);
    stats.pids = found.pids;
    if let Some(memory) = found.memory {
        add_memory(stats, memory);
    }
    if let Some(pressure) = found.pressure {
        stats.pressure_cpu = Some(stalled(pressure.cpu));
        stats.pressure_memory = Some(stalled(pressure.memory));
        stats.pressure_io = Some(stalled(pressure.io));
    }
    Ok(())
}

fn add_memory(stats: &mut TaskStats, memory: MemoryStats) {
    let MemoryStats {
        current_bytes,
        peak_bytes,
        limit_bytes,
        rss_bytes,
        cache_bytes,
        shmem_bytes,
        swap_bytes,
        kernel_bytes,
        major_faults,
        high_events,
        max_events,
        oom_kills,
    } = memory;
    stats.oom_kills = Some(oom_kills);
    stats.memory_bytes = Some(current_bytes);
    stats.memory_peak_bytes = peak_bytes;
    stats.memory_limit_bytes = limit_bytes;
    stats.memory_anon_bytes = rss_bytes;
    stats.memory_file_bytes = cache_bytes;
    stats.memory_shmem_bytes = shmem_bytes;
    stats.memory_swap_bytes = swap_bytes;
    stats.memory_kernel_bytes = kernel_bytes;
    stats.major_faults = major_faults;
    stats.memory_high_events = high_events;
    stats.memory_max_events = max_events;
    let reasons = [
        (
            "memory_limit_bytes",
            limit_bytes,
            "the task's memory has no limit",
        ),
        (
            "memory_peak_bytes",
            peak_bytes,
            "this kernel keeps no peak of memory: Linux 5.19 or newer is needed",
        ),
        (
            "memory_swap_bytes",
            swap_bytes,
            "this kernel does not count whose memory is swapped out",
        ),
        (
            "memory_kernel_bytes",
            kernel_bytes,
            "this kernel does not tell its own memory apart: Linux 5.18 or newer is needed",
        ),
        (
            "memory_high_events",
            high_events,
            "the memory controller is bound to cgroup v1, which has no memory.high",
        ),
        (
            "memory_max_events",
            max_events,
            "the memory controller is bound to cgroup v1, whose count of this does not count",
        ),
    ];
    for (value, found, reason) in reasons {
        if found.is_none() {
            stats.absent.insert(value.to_owned(), reason.to_owned());
        }
    }
}

fn stalled(pressure: cgroup::Pressure) -> Pressure {
    let cgroup::Pressure { some_us, full_us } = pressure;
    Pressure {
        some: Duration::from_micros(some_us),
        full: full_us.map(Duration::from_micros),
    }
}

/// Adds the counts of eBPF, except parts that are `absent` on this machine.
fn add_counters(
    stats: &mut TaskStats,
    counters: &TaskCounters,
    absent: &BTreeMap<&'static str, String>,
) {
    let reasons = absent.iter();
    let reasons = reasons.map(|(part, reason)| ((*part).to_owned(), reason.clone()));
    stats.absent.extend(reasons);
    let has = |part| !absent.contains_key(part);
    stats.run_delay = has("run_delay").then(|| histogram(&counters.sched.waits));
    stats.cpu = Some(counters.cpu_time());
    stats.context_switches =
        Some(counters.sched.switches_voluntary + counters.sched.switches_involuntary);
    stats.forks = Some(counters.exec.forks);
    stats.execs = Some(counters.exec.execs);
    stats.net_rx_bytes = Some(counters.net.ingress_bytes);
    stats.net_rx_packets = Some(counters.net.ingress_packets);
    stats.net_tx_bytes = Some(counters.net.egress_bytes);
    stats.net_tx_packets = Some(counters.net.egress_packets);
    stats.net_rx_denied = Some(counters.net.ingress_denied);
    stats.net_tx_denied = Some(counters.net.egress_denied);
    stats.net_rx_limited = Some(counters.net.ingress_limited);
    stats.net_tx_limited = Some(counters.net.egress_limited);
    stats.tcp_opened = has("connections").then_some(counters.net.tcp_opened);
    stats.tcp_accepted = has("connections").then_some(counters.net.tcp_accepted);
    let block = has("block").then_some(&counters.block);
    stats.block_read_bytes = block.map(|block| block.read_bytes);
    stats.block_reads = block.map(|block| block.reads);
    stats.block_write_bytes = block.map(|block| block.write_bytes);
    stats.block_writes = block.map(|block| block.writes);
    stats.block_latency = block.map(|block| histogram(&block.latency));
    stats.tcp_retransmits = has("tcp_retransmits").then_some(counters.net.tcp_retransmits);
}

fn histogram(counted: &bpf::Histogram) -> Histogram {
    let bpf::Histogram { counts, sum_ns } = counted;
    let used = counts.iter().rposition(|count| *count > 0);
    Histogram {
        counts: counts[..used.map_or(0, |last| last + 1)].to_vec(),
        sum: Duration::from_nanos(*sum_ns),
    }
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

fn ticks(count: u64) -> Duration {
    Duration::from_secs(count)
        / u32::try_from(rustix::param::clock_ticks_per_second()).unwrap_or(100)
}

/// Busy and idle time of all cores, from the first line of `/proc/stat` (`proc_stat(5)`).
fn cpu_times(text: &str) -> (Duration, Duration) {
    let first = text.lines().next().unwrap_or_default();
    let numbers: Vec<u64> = first
        .split_whitespace()
        .skip(1)
        .filter_map(|number| number.parse().ok())
        .collect();
    let at = |place: usize| numbers.get(place).copied().unwrap_or(0);
    // user, nice, system, idle, iowait, irq, softirq, steal; guests are counted in user.
    let idle = at(3) + at(4);
    let busy = at(0) + at(1) + at(2) + at(5) + at(6) + at(7);
    (ticks(busy), ticks(idle))
}

fn uptime(text: &str) -> Duration {
    let seconds = text
        .split_whitespace()
        .next()
        .and_then(|number| number.parse::<f64>().ok());
    Duration::try_from_secs_f64(seconds.unwrap_or(0.0)).unwrap_or_default()
}

/// User and system time: fields 14 and 15 of `/proc/<pid>/stat`.
fn own_cpu(stat: &str) -> Duration {
    ticks(stat_field(stat, 14) + stat_field(stat, 15))
}

/// Resident pages: field 24.
fn own_resident_bytes(stat: &str) -> u64 {
    stat_field(stat, 24) * rustix::param::page_size() as u64
}

fn stat_field(stat: &str, number: usize) -> u64 {
    // Fields are counted from 1, and the name, the second, may contain spaces.
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let text = after_name.split_whitespace().nth(number - 3);
    text.and_then(|text| text.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_times_separate_busy_and_idle() {
        let hertz = rustix::param::clock_ticks_per_second();
        let text = format!(
            "cpu {hertz} 0 {hertz} {0} 0 0 0 0 0 0\ncpu0 1 2 3\n",
            3 * hertz
        );

        assert_eq!(
            cpu_times(&text),
            (Duration::from_secs(2), Duration::from_secs(3))
        );
    }

    /// The buckets counted in the kernel are the same as those of the messages.
    #[test]
    fn ebpf_and_message_histogram_buckets_match() {
        assert_eq!(bpf::BUCKETS, Histogram::BUCKETS);
        for bucket in 0..bpf::BUCKETS {
            assert_eq!(bpf::bound_ns(bucket), Histogram::bound_ns(bucket));
        }
    }

    #[test]
    fn empty_buckets_at_the_end_are_not_sent() {
        let mut counted = bpf::Histogram::default();
        counted.record(100);
        counted.record(2_000);

        let sent = histogram(&counted);

        assert_eq!(sent.counts, [1, 1]);
        assert_eq!(sent.sum, Duration::from_nanos(2_100));
        assert!(histogram(&bpf::Histogram::default()).counts.is_empty());
    }

    #[test]
    fn uptime_is_the_first_number() {
        assert_eq!(uptime("12.50 99.00\n"), Duration::from_millis(12_500));
    }

    #[test]
    fn own_numbers_are_found_behind_any_name() {
        let hertz = rustix::param::clock_ticks_per_second();
        let stat =
            format!("7 (a ) b) S 1 7 7 0 -1 0 0 0 0 0 {hertz} {hertz} 0 0 20 0 1 0 11 0 3 0");

        assert_eq!(own_cpu(&stat), Duration::from_secs(2));
        assert_eq!(
            own_resident_bytes(&stat),
            3 * rustix::param::page_size() as u64
        );
    }
}
