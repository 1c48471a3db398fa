//! The usage and network addresses of tasks, as reported by their drivers. Usage is for tasks in none of the
//! agent's cgroups, which the agent cannot measure. Addresses are for tasks in a network of the driver's.
//!
//! A driver reports shares of a processor, each since its last report. The shares are summed here, so that a reader
//! sees time that only grows. Each addition is spread evenly over the time until the next report. It is late by
//! [`DRIVER_USAGE_INTERVAL`], but does not jump. The first message of a stream adds nothing, because its starting
//! time is not known.
//!
//! Absent on purpose: usage of single processes, and MHz.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use muster_agent_core::task::TaskInput;
use muster_domain::alloc::TaskNetwork;
use muster_domain::error_chain::chain;
use muster_domain::limits::{TASK_NETWORK_NAME_CHARS_MAX, TASK_NETWORK_PORTS_MAX};
use muster_domain::resources::AllocatedPort;
use muster_driver::{
    CpuField, CpuUsage, MemoryField, MemoryUsage, NetworkOverride, TaskError, TaskStats,
};

use super::native;
use crate::limits::{
    DRIVER_PAUSE_MAX, DRIVER_PAUSE_MIN, DRIVER_REASON_CHARS_MAX, DRIVER_USAGE_INTERVAL,
    DRIVER_USAGE_KEPT,
};
use crate::network::names::inside_port;
use crate::tasks::live::{LiveTask, TaskInputSender};

/// The usage that the driver of one task reports. For a task whose driver is not asked, it takes little memory.
#[derive(Debug, Default)]
pub(crate) struct DriverUsage {
    history: Mutex<Option<Box<UsageHistory>>>,
    /// The task's network, if its driver put it into a separate one.
    network: Mutex<Option<Box<TaskNetwork>>>,
}

/// Usage of a task, as reported by its driver; missing values are `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReportedUsage {
    /// CPU time since this agent began to ask.
    pub(crate) cpu: Option<Duration>,
    pub(crate) throttled_periods: Option<u64>,
    pub(crate) throttled: Option<Duration>,
    /// The memory that counts against the limit. If the driver does not report it, the memory without cache.
    pub(crate) memory_bytes: Option<u64>,
    pub(crate) memory_peak_bytes: Option<u64>,
    pub(crate) memory_anon_bytes: Option<u64>,
    pub(crate) memory_file_bytes: Option<u64>,
    pub(crate) memory_swap_bytes: Option<u64>,
    pub(crate) memory_kernel_bytes: Option<u64>,
}

/// The messages received so far.
#[derive(Debug, Default)]
struct UsageHistory {
    /// The CPU time of all messages before the newest.
    cpu_before: Duration,
    /// The time that the newest message added.
    cpu_added: Duration,
    /// The newest message without its CPU time, and its time of arrival.
    newest: Option<(ReportedUsage, Instant)>,
    /// Whether the newest message has CPU time.
    has_cpu: bool,
    /// The reason why the driver reports nothing.
    refusal: Option<Box<str>>,
}

/// Subscribes to the driver's usage reports of a task that is in none of the agent's cgroups. It continues after
/// any number of deaths of the driver. For a task that an earlier agent started, `inputs` receive the network that
/// its driver chose, which may be unknown.
pub(crate) async fn follow(live: &LiveTask, inputs: &TaskInputSender) -> Infallible {
    let mut pause = DRIVER_PAUSE_MIN;
    // The network of a task that an earlier agent started is known if that agent stored it.
    let mut is_placed = live.usage.network().is_some();
    loop {
        live.slot.ready().await;
        if !is_placed && let Ok(status) = live.slot.driver.inspect_task(&live.record.task_id).await
        {
            live.usage.set_network(status.network.as_ref());
            is_placed = true;
            if let Some(network) = live.usage.network() {
                inputs
                    .send(TaskInput::Reached {
                        network: Box::new(network),
                    })
                    .await;
            }
        }
        if live.is_here() {
            tokio::time::sleep(DRIVER_USAGE_INTERVAL).await;
            continue;
        }
        let began = Instant::now();
        if let Err(error) = receive_usage(live).await {
            live.usage.refuse(&chain(&error));
        }
        // A driver that ends its streams at once is asked again after a longer pause.
        if began.elapsed() >= DRIVER_USAGE_INTERVAL {
            pause = DRIVER_PAUSE_MIN;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(DRIVER_PAUSE_MAX);
    }
}

/// Receives messages until the driver or the task ends.
async fn receive_usage(live: &LiveTask) -> Result<(), TaskError> {
    let driver = &live.slot.driver;
    let asked = driver.task_stats(&live.record.task_id, DRIVER_USAGE_INTERVAL);
    let mut messages = asked.await?;
    let mut is_first = true;
    while let Some(stats) = messages.next().await {
        live.usage.take(&stats, Instant::now(), is_first);
        is_first = false;
    }
    live.usage.refuse("it stopped telling, and is asked again");
    Ok(())
}

/// Whether the agent cannot measure the task, so that its driver has to report the usage.
pub(crate) fn is_measured_by_driver(live: &LiveTask) -> bool {
    live.record.driver != native::NAME && !live.is_here()
}

impl DriverUsage {
    /// Returns the driver's last report, or the reason for its absence.
    pub(crate) fn known(&self, driver: &str, now: Instant) -> Result<ReportedUsage, String> {
        let history = self.locked();
        let Some(history) = history.as_deref() else {
            return Err(format!(
                "the task runs in none of the agent's cgroups, and driver `{driver}` has not reported its usage yet"
            ));
        };
        if let Some(refusal) = &history.refusal {
            return Err(format!(
                "driver `{driver}` does not tell what the task uses: {refusal}"
            ));
        }
        history.at(now).ok_or_else(|| {
            format!(
                "driver `{driver}` has not reported the task's usage for more than {DRIVER_USAGE_KEPT:?}; see its log in the `drivers` directory of the agent's data"
            )
        })
    }

    /// The task's network, if its driver put it into a separate one.
    pub(crate) fn network(&self) -> Option<TaskNetwork> {
        let network = self.network.lock();
        let network = network.unwrap_or_else(PoisonError::into_inner);
        network.as_deref().cloned()
    }

    /// Notes the network into which the driver has put the task.
    pub(crate) fn set_network(&self, network: Option<&NetworkOverride>) {
        let Some(network) = network.filter(|network| !network.addr.is_empty()) else {
            return;
        };
        let mut known = self.network.lock().unwrap_or_else(PoisonError::into_inner);
        *known = Some(Box::new(reported_network(network)));
    }

    /// Notes that the task has the network of its allocation, unless its driver put it elsewhere.
    pub(crate) fn set_alloc_network_if_unset(&self, address: IpAddr, ports: &[AllocatedPort]) {
        let inside = |port: &AllocatedPort| (port.label.clone(), inside_port(port.value, port.to));
        let mut known = self.network.lock().unwrap_or_else(PoisonError::into_inner);
        known.get_or_insert_with(|| {
            Box::new(TaskNetwork {
                address: address.to_string(),
                ports: ports
                    .iter()
                    .take(TASK_NETWORK_PORTS_MAX)
                    .map(inside)
                    .collect(),
                auto_advertise: false,
            })
        });
    }

    /// Adds a message of the driver; `first` marks the first one of a stream.
    fn take(&self, stats: &TaskStats, now: Instant, first: bool) {
        let mut history = self.locked();
        history.get_or_insert_default().take(stats, now, first);
    }

    fn refuse(&self, why: &str) {
        let mut history = self.locked();
        let history = history.get_or_insert_default();
        history.newest = None;
        let why: String = why.chars().take(DRIVER_REASON_CHARS_MAX).collect();
        history.refusal = Some(why.into());
    }

    fn locked(&self) -> MutexGuard<'_, Option<Box<UsageHistory>>> {
        // A panic elsewhere leaves the history whole, because no write of it can panic.
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl UsageHistory {
    fn take(&mut self, stats: &TaskStats, now: Instant, first: bool) {
        let (cpu, memory) = (&stats.usage.cpu, &stats.usage.memory);
        let share = share(cpu);
        let since = self.newest.as_ref().map(|(_, arrived)| *arrived);
        let span = since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        self.cpu_before = self.cpu_before.saturating_add(self.cpu_added);
        self.cpu_added = match share {
            Some(share) if !first => used(span, share),
            Some(_) | None => Duration::ZERO,
        };
        self.has_cpu = share.is_some();
        self.newest = Some((known(cpu, memory), now));
        self.refusal = None;
    }

    /// Returns the usage at `now`; `None` if the newest message is too old.
    fn at(&self, now: Instant) -> Option<ReportedUsage> {
        let (known, arrived) = self.newest.as_ref()?;
        let age = now.saturating_duration_since(*arrived);
        if age > DRIVER_USAGE_KEPT {
            return None;
        }
        let part = age.as_secs_f64() / DRIVER_USAGE_INTERVAL.as_secs_f64();
        let cpu = self.cpu_before + used(self.cpu_added, part.min(1.0));
        Some(ReportedUsage {
            cpu: self.has_cpu.then_some(cpu),
            ..known.clone()
        })
    }
}

/// Returns the parts of the network that are kept. Invalid ports are left out.
fn reported_network(network: &NetworkOverride) -> TaskNetwork {
    let NetworkOverride {
        port_map,
        addr,
        auto_advertise,
    } = network;
    let short = |text: &str| text.chars().take(TASK_NETWORK_NAME_CHARS_MAX).collect();
    let ports = port_map
        .iter()
        .filter_map(|(label, port)| Some((short(label), u16::try_from(*port).ok()?)));
    TaskNetwork {
        address: short(addr),
        ports: ports.take(TASK_NETWORK_PORTS_MAX).collect(),
        auto_advertise: *auto_advertise,
    }
}

/// Returns `span` times `share`; zero if the product is not a valid time.
fn used(span: Duration, share: f64) -> Duration {
    Duration::try_from_secs_f64(span.as_secs_f64() * share).unwrap_or_default()
}

/// The part of one core that the task used; `None` if the driver reports none or an impossible value.
fn share(cpu: &CpuUsage) -> Option<f64> {
    let measured = |field| cpu.measured.contains(&field);
    let percent = if measured(CpuField::Percent) {
        cpu.percent
    } else if measured(CpuField::UserMode) && measured(CpuField::SystemMode) {
        cpu.user_mode + cpu.system_mode
    } else {
        return None;
    };
    (0.0..=PERCENT_MAX)
        .contains(&percent)
        .then_some(percent / 100.0)
}

/// Per cent of one core above which a driver's value is not believed: 8 192 cores, the most that Linux is built for on
/// x86-64 (`NR_CPUS`).
const PERCENT_MAX: f64 = 100.0 * 8_192.0;

fn known(cpu: &CpuUsage, memory: &MemoryUsage) -> ReportedUsage {
    let counted = |field, value| cpu.measured.contains(&field).then_some(value);
    let bytes = |field, value| memory.measured.contains(&field).then_some(value);
    let anon_bytes = bytes(MemoryField::Rss, memory.rss);
    ReportedUsage {
        cpu: None,
        throttled_periods: counted(CpuField::ThrottledPeriods, cpu.throttled_periods),
        throttled: counted(CpuField::ThrottledTime, cpu.throttled_time).map(Duration::from_nanos),
        memory_bytes: bytes(MemoryField::Usage, memory.usage).or(anon_bytes),
        memory_peak_bytes: bytes(MemoryField::MaxUsage, memory.max_usage),
        memory_anon_bytes: anon_bytes,
        memory_file_bytes: bytes(MemoryField::Cache, memory.cache),
        memory_swap_bytes: bytes(MemoryField::Swap, memory.swap),
        memory_kernel_bytes: bytes(MemoryField::KernelUsage, memory.kernel_usage),
    }
}

#[cfg(test)]
mod tests;
