//! The usage of a task, read from the files of its cgroup.
//!
//! Without a cgroup, only the main process is measured, through /proc. This is the fallback for hosts that name no
//! cgroup. Memory that a v1 hierarchy accounts for is not measured here; the agent measures it.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use futures::stream::{self, StreamExt};
use muster_driver::{
    CpuField, CpuUsage, MemoryField, MemoryUsage, TaskStats, TaskStatsStream, TaskUsage,
};

use crate::cgroup::{TaskCgroup, field};
use crate::limits;
use crate::process;
use crate::task::{NativeTask, TaskProcess};

/// Microseconds of a tick in /proc: 100 a second on x86_64, independent of the kernel's own rate (time(7)).
const TICK_US: u64 = 10_000;
/// Bytes of a page on x86_64.
const PAGE_BYTES: u64 = 4_096;

/// CPU time since the start, in microseconds.
#[derive(Clone, Copy, Debug, Default)]
struct CpuTime {
    user_us: u64,
    system_us: u64,
}

/// The state of a statistics stream between two items.
struct StatsStream {
    task_id: String,
    task_process: Arc<TaskProcess>,
    before: CpuTime,
    before_at: Instant,
    pause: Duration,
}

/// Returns statistics of `task`, immediately and then at `interval`, until the task ends.
pub(crate) fn stream(task: &NativeTask, interval: Duration) -> TaskStatsStream {
    let interval = interval.max(limits::STATS_INTERVAL_MIN);
    let series = StatsStream {
        task_id: task.id.to_string(),
        task_process: Arc::clone(&task.task_process),
        before: CpuTime::default(),
        // The first percentage covers the time since the start. If the wall clock was set since then, only this
        // percentage is wrong.
        before_at: Instant::now()
            .checked_sub(task.started_at.elapsed().unwrap_or_default())
            .unwrap_or_else(Instant::now),
        pause: Duration::ZERO,
    };
    stream::unfold(series, move |mut series| async move {
        tokio::select! {
            biased;
            _end = series.task_process.wait_end() => return None,
            () = tokio::time::sleep(series.pause) => {}
        }
        let stats = series.sample().ok()?;
        series.pause = interval;
        Some((stats, series))
    })
    .boxed()
}

impl StatsStream {
    fn sample(&mut self) -> io::Result<TaskStats> {
        let (at, sampled_at) = (SystemTime::now(), Instant::now());
        let (time, mut cpu, memory) = match &self.task_process.cgroup {
            Some(cgroup) => of_cgroup(cgroup)?,
            None => of_process(self.task_process.process.pid)?,
        };
        let elapsed = sampled_at.duration_since(self.before_at);
        let share = |now: u64, before: u64| {
            let elapsed_us = elapsed.as_micros().max(1) as f64;
            now.saturating_sub(before) as f64 * 100.0 / elapsed_us
        };
        cpu.user_mode = share(time.user_us, self.before.user_us);
        cpu.system_mode = share(time.system_us, self.before.system_us);
        cpu.percent = cpu.user_mode + cpu.system_mode;
        cpu.measured
            .extend([CpuField::UserMode, CpuField::SystemMode, CpuField::Percent]);
        self.before = time;
        self.before_at = sampled_at;
        Ok(TaskStats {
            task_id: self.task_id.clone(),
            at,
            usage: TaskUsage { cpu, memory },
            by_pid: BTreeMap::new(),
        })
    }
}

fn of_cgroup(cgroup: &TaskCgroup) -> io::Result<(CpuTime, CpuUsage, MemoryUsage)> {
    let text = cgroup.read("cpu.stat")?;
    let time = CpuTime {
        user_us: field(&text, "user_usec").unwrap_or(0),
        system_us: field(&text, "system_usec").unwrap_or(0),
    };
    let mut cpu = CpuUsage::default();
    // The file has these fields only where the cpu controller is in the v2 hierarchy.
    if let Some(periods) = field(&text, "nr_throttled") {
        cpu.throttled_periods = periods;
        cpu.measured.push(CpuField::ThrottledPeriods);
    }
    if let Some(time_us) = field(&text, "throttled_usec") {
        cpu.throttled_time = time_us.saturating_mul(1_000);
        cpu.measured.push(CpuField::ThrottledTime);
    }
    Ok((time, cpu, memory_of(cgroup)))
}

/// The value of a missing file does not count as measured.
fn memory_of(cgroup: &TaskCgroup) -> MemoryUsage {
    let number = |name: &str| cgroup.read(name).ok()?.trim().parse::<u64>().ok();
    let mut memory = MemoryUsage::default();
    let stat = cgroup.read("memory.stat").unwrap_or_default();
    let values = [
        (MemoryField::Rss, field(&stat, "anon")),
        (MemoryField::Cache, field(&stat, "file")),
        (MemoryField::KernelUsage, field(&stat, "kernel")),
        (MemoryField::Usage, number("memory.current")),
        (MemoryField::MaxUsage, number("memory.peak")),
        (MemoryField::Swap, number("memory.swap.current")),
    ];
    for (name, value) in values {
        let Some(value) = value else { continue };
        match name {
            MemoryField::Rss => memory.rss = value,
            MemoryField::Cache => memory.cache = value,
            MemoryField::MaxUsage => memory.max_usage = value,
            MemoryField::KernelUsage => memory.kernel_usage = value,
            MemoryField::KernelMaxUsage => memory.kernel_max_usage = value,
            MemoryField::Usage => memory.usage = value,
            MemoryField::Swap => memory.swap = value,
        }
        memory.measured.push(name);
    }
    memory
}

fn of_process(pid: i32) -> io::Result<(CpuTime, CpuUsage, MemoryUsage)> {
    let stat = process::stat(pid)?;
    let time = CpuTime {
        user_us: stat.user_ticks.saturating_mul(TICK_US),
        system_us: stat.system_ticks.saturating_mul(TICK_US),
    };
    let memory = MemoryUsage {
        rss: stat.rss_pages.saturating_mul(PAGE_BYTES),
        measured: vec![MemoryField::Rss],
        ..MemoryUsage::default()
    };
    Ok((time, CpuUsage::default(), memory))
}
