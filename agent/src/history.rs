//! The usage of the node's tasks in the last minutes: a point every [`HISTORY_STEP`].
//!
//! A step is one collection of all tasks from the eBPF maps, and one walk of an eBPF program over their cgroups. The
//! walk finds memory, quota and pressure. Where the program cannot walk, five files of each task are read, which are
//! held open. Kinds of memory are a file in any case, so they are read on request and have no history. Points are kept
//! in memory and go with the agent. Nothing is known of the time without an agent.
//!
//! A point says what was used since the look before it, over all starts of the task. For a task that began in between,
//! the point counts from its beginning. The first look at a task that was there before the agent is not a point.

mod series;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use muster_domain::id::{AllocId, Timestamp};
use muster_domain::saturating;
use muster_wire::rpc::{AllocHistory, TaskHistory};
use nix::time::{ClockId, clock_gettime};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use crate::bpf::{Bpf, TotalsByCgroup};
use crate::cgroup::{CgroupFileError, CgroupRows, Controller, StallStats, TaskCgroup};
use crate::clock::now;
use crate::context::AgentContext;
use crate::drivers::usage::is_hidden;
use crate::history::series::{
    AbsenceReasons, AvailablePrograms, SampleTime, Series, TaskCountValues,
};
use crate::limits::{HISTORY_KEPT, HISTORY_STEP, HISTORY_TASKS_MAX, HISTORY_TASKS_SPARE};
use crate::stats::{GONE, NO_PRESSURE, NOT_REGISTERED, only_told_by, untold};
use crate::task::{LiveTask, chain};

/// Values that only eBPF can tell, with the part of the programs that tells it if it may be absent alone.
const EBPF_VALUES: [(&str, Option<&str>); 8] = [
    ("cpu", None),
    ("run_delay", Some(RUN_DELAY)),
    ("context_switches", None),
    ("net_rx_bytes", None),
    ("net_tx_bytes", None),
    ("tcp_retransmits", Some(RETRANSMITS)),
    ("block_read_bytes", Some(BLOCK)),
    ("block_write_bytes", Some(BLOCK)),
];
const RUN_DELAY: &str = "run_delay";
const RETRANSMITS: &str = "tcp_retransmits";
const BLOCK: &str = "block";

/// How long a task stood still for want of something.
const PRESSURE_VALUES: [&str; 3] = ["pressure_cpu", "pressure_memory", "pressure_io"];

const NO_MEMORY: &str = "this machine has no memory controller for tasks";

/// A task, whatever start of it.
type TaskKey = (AllocId, String);

/// The histories of a node's tasks.
#[derive(Debug)]
pub(crate) struct Histories {
    since: Timestamp,
    kept: Mutex<HistoryState>,
}

#[derive(Debug, Default)]
struct HistoryState {
    /// At most [`HISTORY_TASKS_MAX`].
    tasks: BTreeMap<TaskKey, Series>,
    /// When all tasks were looked at last, since boot.
    looked: Option<Duration>,
}

impl Default for Histories {
    fn default() -> Self {
        Self {
            since: now(),
            kept: Mutex::default(),
        }
    }
}

/// Looks at all tasks until the agent stops.
pub(crate) async fn run(context: Arc<AgentContext>, stop: CancellationToken) {
    // The first look is at once: what begins after it is told from its begin.
    let mut steps = tokio::time::interval(HISTORY_STEP);
    // After a standstill one look tells of all of it.
    steps.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while stop.run_until_cancelled(steps.tick()).await.is_some() {
        let context = Arc::clone(&context);
        // Thousands of tasks take milliseconds.
        let looked = tokio::task::spawn_blocking(move || {
            context.histories.step(&context);
            if let Some(bpf) = context.bpf() {
                bpf.forget_retired_policies();
            }
        });
        if let Err(error) = looked.await {
            tracing::error!(%error, "what tasks use is not kept");
        }
    }
}

impl Histories {
    /// Looks at all tasks.
    fn step(&self, context: &AgentContext) {
        let live = context.live.of(None);
        let moment = SampleTime {
            at: now(),
            since_boot: since_boot(),
        };
        let counted = match context.bpf().map(|bpf| bpf.collect_totals(live.len())) {
            Some(Ok(counted)) => counted,
            Some(Err(error)) => {
                // The next look tells of this span, too.
                tracing::warn!(%error, "what tasks use was not collected");
                return;
            }
            None => TotalsByCgroup::default(),
        };
        let walked = context.walked();
        let has = |part| {
            let bpf = context.bpf();
            bpf.is_some_and(|bpf| !bpf.absent().contains_key(part))
        };
        let has = AvailablePrograms {
            run_delay: has(RUN_DELAY),
            block: has(BLOCK),
            retransmits: has(RETRANSMITS),
        };
        for (alloc_id, name, live) in live {
            let key = (alloc_id, name);
            let cgroup_id = live.record.cgroup_id;
            let look = if is_hidden(&live) {
                sample(&live)
            } else {
                let totals = counted.get(&cgroup_id);
                let counts = totals.map_or(TaskCountValues::NONE, |totals| {
                    TaskCountValues::new(totals, has)
                });
                let mut absent = AbsenceReasons {
                    counts: totals.is_none().then(|| match &context.bpf {
                        Ok(_) => NOT_REGISTERED.into(),
                        Err(reason) => reason.as_str().into(),
                    }),
                    ..AbsenceReasons::default()
                };
                // Files are read while others may ask.
                let (memory_bytes, waits) = memory_and_stalls(&live, walked.as_ref(), &mut absent);
                let is_known = self.locked().knows(&key, cgroup_id);
                Sample {
                    cgroup_id,
                    counts: counts.with_waits(waits),
                    began: (!is_known).then(|| began(context, cgroup_id)).flatten(),
                    memory_bytes,
                    absent,
                }
            };
            self.locked().add_sample(key, look, moment);
        }
        self.locked().end_step(moment);
    }

    fn locked(&self) -> std::sync::MutexGuard<'_, HistoryState> {
        // A panic elsewhere leaves each series whole.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One sample of a task.
struct Sample {
    cgroup_id: u64,
    counts: TaskCountValues,
    /// When its first process began, since boot; `None` if that is not known, or the start is.
    began: Option<Duration>,
    memory_bytes: Option<u64>,
    absent: AbsenceReasons,
}

/// Samples a task that only its driver sees. Its use before the driver was asked is not known.
fn sample(live: &LiveTask) -> Sample {
    let driver = &live.record.driver;
    let known = live.usage.known(driver, Instant::now());
    let reason = known.as_ref().err().cloned();
    let reason: Box<str> = reason.unwrap_or_else(|| only_told_by(driver)).into();
    let known = known.unwrap_or_default();
    let throttled_us = known.throttled.map(micros);
    let waits = StallStats {
        throttled_us,
        pressure: None,
    };
    let unless = |is_told: bool| (!is_told).then(|| reason.clone());
    Sample {
        cgroup_id: live.record.cgroup_id,
        counts: TaskCountValues::of_cpu(known.cpu.map(nanos)).with_waits(waits),
        began: None,
        memory_bytes: known.memory_bytes,
        absent: AbsenceReasons {
            memory: unless(known.memory_bytes.is_some()),
            counts: unless(false),
            throttled: unless(throttled_us.is_some()),
            pressure: unless(false),
        },
    }
}

/// Returns the value, or sets `why` to the reason for its absence.
fn told_or<T>(told: Result<T, Box<str>>, why: &mut Option<Box<str>>) -> Option<T> {
    told.map_err(|reason| *why = Some(reason)).ok()
}

/// Bytes of memory charged and how long a task was kept from running, and why nobody knows.
fn memory_and_stalls(
    live: &LiveTask,
    walked: Option<&CgroupRows>,
    absent: &mut AbsenceReasons,
) -> (Option<u64>, StallStats) {
    let cgroup = live.cgroup.as_ref().zip(walked);
    if let Some((memory, waits)) = cgroup.and_then(|(cgroup, walked)| cgroup.now_in(walked)) {
        let memory = memory.ok_or_else(|| NO_MEMORY.into());
        return (
            told_or(memory, &mut absent.memory),
            waits_or(live, Some(Ok(waits)), absent),
        );
    }
    let waits = live.cgroup.as_ref().map(TaskCgroup::waits_now);
    let waits = waits_or(live, waits, absent);
    (told_or(memory(live), &mut absent.memory), waits)
}

/// Returns the waits of a task, and records the reasons for absent ones.
fn waits_or(
    live: &LiveTask,
    found: Option<Result<StallStats, CgroupFileError>>,
    absent: &mut AbsenceReasons,
) -> StallStats {
    let reason = match found {
        Some(Ok(waits)) => {
            if waits.throttled_us.is_none() {
                absent.throttled = Some(untold(live, Controller::Cpu).into());
            }
            if waits.pressure.is_none() {
                absent.pressure = Some(NO_PRESSURE.into());
            }
            return waits;
        }
        Some(Err(error)) => chain(&error),
        None => GONE.to_owned(),
    };
    absent.throttled = Some(reason.as_str().into());
    absent.pressure = Some(reason.into());
    StallStats::default()
}

/// When the first process of a start began, since boot.
fn began(context: &AgentContext, cgroup_id: u64) -> Option<Duration> {
    let main = context.bpf()?.main_of(cgroup_id).ok()??;
    Some(Duration::from_nanos(main.start_boottime_ns))
}

/// Bytes of memory charged, or why nobody knows.
fn memory(live: &LiveTask) -> Result<u64, Box<str>> {
    let Some(cgroup) = &live.cgroup else {
        return Err(GONE.into());
    };
    match cgroup.memory_now() {
        Ok(Some(bytes)) => Ok(bytes),
        Ok(None) => Err(NO_MEMORY.into()),
        Err(error) => Err(chain(&error).into()),
    }
}

impl HistoryState {
    /// Whether this start of the task was looked at before.
    fn knows(&self, key: &TaskKey, cgroup_id: u64) -> bool {
        let series = self.tasks.get(key);
        series.is_some_and(|series| series.is_of(cgroup_id))
    }

    fn add_sample(&mut self, key: TaskKey, look: Sample, moment: SampleTime) {
        let Sample {
            cgroup_id,
            counts,
            began,
            memory_bytes,
            absent,
        } = look;
        // One that was there at the last look, and was not seen, began before it.
        let began = began.filter(|began| self.looked.is_some_and(|looked| looked <= *began));
        let begin = began.map(|began| SampleTime {
            at: moment.at,
            since_boot: began.min(moment.since_boot),
        });
        let (counts_before, looked_before) = match begin {
            Some(begin) => (TaskCountValues::ZERO, begin),
            None => (counts, moment),
        };
        let has_room = self.tasks.len() < HISTORY_TASKS_MAX;
        let series = match self.tasks.entry(key) {
            std::collections::btree_map::Entry::Occupied(known) => {
                let series = known.into_mut();
                if !series.is_of(cgroup_id) {
                    series.begin_again(cgroup_id, counts_before, looked_before);
                }
                series
            }
            std::collections::btree_map::Entry::Vacant(room) if has_room => {
                room.insert(Series::begin(cgroup_id, counts_before, looked_before))
            }
            std::collections::btree_map::Entry::Vacant(_) => return,
        };
        if series.looked() < moment.since_boot {
            series.add_sample(counts, memory_bytes, moment);
        }
        series.absent = absent;
    }

    /// Forgets tasks whose newest point is too old; when there is little room for others, those that ended first.
    fn end_step(&mut self, moment: SampleTime) {
        self.looked = Some(moment.since_boot);
        let oldest = moment.since_boot.saturating_sub(HISTORY_KEPT);
        self.tasks.retain(|_, series| series.looked() > oldest);
        let surplus = (self.tasks.len() + HISTORY_TASKS_SPARE).saturating_sub(HISTORY_TASKS_MAX);
        if surplus == 0 {
            return;
        }
        let ended = self.tasks.iter();
        let mut ended: Vec<(Duration, TaskKey)> = ended
            .filter(|(_, series)| series.looked() < moment.since_boot)
            .map(|(key, series)| (series.looked(), key.clone()))
            .collect();
        ended.sort_unstable();
        for (_, key) in ended.iter().take(surplus) {
            self.tasks.remove(key);
        }
    }

    fn of(&self, alloc_id: AllocId) -> impl Iterator<Item = (&String, &Series)> {
        let from = (alloc_id, String::new());
        let tasks = self.tasks.range(from..);
        tasks
            .take_while(move |((id, _), _)| *id == alloc_id)
            .map(|((_, name), series)| (name, series))
    }
}

/// Returns the usage of one allocation. Returns `None` if nothing of it runs, and nothing did in the last minutes.
pub(crate) fn alloc(context: &AgentContext, alloc_id: AllocId) -> Option<AllocHistory> {
    let histories = &context.histories;
    let mut tasks: BTreeMap<String, TaskHistory> = BTreeMap::new();
    let oldest = Timestamp(now().0.saturating_sub(nanos(HISTORY_KEPT)));
    let kept = histories.locked();
    for (name, series) in kept.of(alloc_id) {
        let mut told = TaskHistory {
            points: series.points(oldest),
            absent: absent(context, series),
        };
        if told.points.is_empty() {
            told.absent.insert("history".to_owned(), no_history(false));
        }
        tasks.insert(name.clone(), told);
    }
    let is_full = kept.tasks.len() >= HISTORY_TASKS_MAX;
    drop(kept);
    for (_, name, _) in context.live.of(Some(alloc_id)) {
        tasks.entry(name).or_insert_with(|| TaskHistory {
            absent: BTreeMap::from([("history".to_owned(), no_history(is_full))]),
            ..TaskHistory::default()
        });
    }
    if tasks.is_empty() {
        return None;
    }
    Some(AllocHistory {
        alloc_id,
        step: HISTORY_STEP,
        kept: HISTORY_KEPT,
        since: histories.since,
        tasks,
    })
}

fn no_history(is_full: bool) -> String {
    if is_full {
        format!("this node keeps the histories of {HISTORY_TASKS_MAX} tasks, the most it does")
    } else {
        format!("the task was not looked at twice yet: that is done every {HISTORY_STEP:?}")
    }
}

/// Why values of a task are absent.
fn absent(context: &AgentContext, series: &Series) -> BTreeMap<String, String> {
    let AbsenceReasons {
        memory,
        counts,
        throttled,
        pressure,
    } = &series.absent;
    let parts = context.bpf().map(Bpf::absent);
    let values = EBPF_VALUES.into_iter().filter_map(|(value, part)| {
        let of_part = || Some(parts?.get(part?)?.as_str());
        let reason = counts.as_deref().or_else(of_part)?;
        Some((value.to_owned(), reason.to_owned()))
    });
    let mut absent: BTreeMap<String, String> = values.collect();
    if series.has_cpu() {
        absent.remove("cpu");
    }
    let pressure = PRESSURE_VALUES.map(|value| (value, pressure));
    let values = [("memory_bytes", memory), ("throttled", throttled)].into_iter();
    for (value, reason) in values.chain(pressure) {
        if let Some(reason) = reason {
            absent.insert(value.to_owned(), reason.to_string());
        }
    }
    absent
}

/// Time since the machine's boot, standing still included.
fn since_boot() -> Duration {
    clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::ZERO, Duration::from)
}

fn nanos(duration: Duration) -> u64 {
    saturating::nanos(duration)
}

fn micros(duration: Duration) -> u64 {
    saturating::micros(duration)
}

#[cfg(test)]
mod tests;
