//! What the node's tasks used in the last minutes, for people who look at it: a point every [`HISTORY_STEP`].
//!
//! A step is one collection of all tasks from the eBPF maps, and of each task one file that is held open, that of its
//! memory. Everything else that statistics tell (kinds of memory, pressure, throttling) takes files
//! that are opened, so it is read when somebody asks and has no history. Points are kept in memory: they go with the agent, and of
//! the time without one nothing is known.
//!
//! A point says what was used since the look before it, whatever start of the task it was; of a task that began in
//! between, since then. Of one that was there before the agent first looked, the first look is no point.

mod series;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use muster_domain::id::{AllocId, Timestamp};
use muster_wire::rpc::{AllocHistory, TaskHistory};
use nix::time::{ClockId, clock_gettime};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use crate::bpf::Totals;
use crate::drivers::usage::is_hidden;
use crate::facilities::{Facilities, now};
use crate::history::series::{Counts, Moment, Series};
use crate::limits::{HISTORY_KEPT, HISTORY_STEP, HISTORY_TASKS_MAX, HISTORY_TASKS_SPARE};
use crate::stats::{NOT_REGISTERED, only_told_by};
use crate::task::LiveTask;

/// Values that only eBPF can tell.
const EBPF_VALUES: [&str; 6] = [
    "cpu",
    "run_delay",
    "net_rx_bytes",
    "net_tx_bytes",
    "block_read_bytes",
    "block_write_bytes",
];

/// A task, whatever start of it.
type Key = (AllocId, String);

/// The histories of a node's tasks.
#[derive(Debug)]
pub(crate) struct Histories {
    since: Timestamp,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    /// At most [`HISTORY_TASKS_MAX`].
    tasks: BTreeMap<Key, Series>,
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
pub(crate) async fn run(facilities: Arc<Facilities>, stop: CancellationToken) {
    // The first look is at once: what begins after it is told from its begin.
    let mut steps = tokio::time::interval(HISTORY_STEP);
    // After a standstill one look tells of all of it.
    steps.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while stop.run_until_cancelled(steps.tick()).await.is_some() {
        let facilities = Arc::clone(&facilities);
        // Thousands of tasks take milliseconds.
        let looked = tokio::task::spawn_blocking(move || {
            facilities.histories.step(&facilities);
            if let Some(bpf) = facilities.bpf() {
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
    fn step(&self, facilities: &Facilities) {
        let live = facilities.live.of(None);
        let moment = Moment {
            at: now(),
            since_boot: since_boot(),
        };
        let counted = match facilities.bpf().map(|bpf| bpf.collect_totals(live.len())) {
            Some(Ok(counted)) => counted,
            Some(Err(error)) => {
                // The next look tells of this span, too.
                tracing::warn!(%error, "what tasks use was not collected");
                return;
            }
            None => Totals::default(),
        };
        let has = |part| {
            let bpf = facilities.bpf();
            bpf.is_some_and(|bpf| !bpf.absent().contains_key(part))
        };
        let (has_run_delay, has_block) = (has("run_delay"), has("block"));
        let mut kept = self.locked();
        for (alloc_id, name, live) in live {
            let key = (alloc_id, name);
            let cgroup_id = live.record.cgroup_id;
            let look = if is_hidden(&live) {
                told(&live)
            } else {
                let totals = counted.get(&cgroup_id);
                Look {
                    cgroup_id,
                    counts: totals.map_or(Counts::NONE, |totals| {
                        Counts::new(totals, has_run_delay, has_block)
                    }),
                    began: (!kept.knows(&key, cgroup_id))
                        .then(|| began(facilities, cgroup_id))
                        .flatten(),
                    memory_bytes: memory(&live),
                    no_counts: totals.is_none().then(|| match &facilities.bpf {
                        Ok(_) => NOT_REGISTERED.into(),
                        Err(reason) => reason.as_str().into(),
                    }),
                }
            };
            kept.look(key, look, moment);
        }
        kept.end_step(moment);
    }

    fn locked(&self) -> std::sync::MutexGuard<'_, Kept> {
        // A panic elsewhere leaves each series whole.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What was found of one task.
struct Look {
    cgroup_id: u64,
    counts: Counts,
    /// When its first process began, since boot; `None` if that is not known, or the start is.
    began: Option<Duration>,
    memory_bytes: Result<u64, Box<str>>,
    /// Why the programs counted nothing.
    no_counts: Option<Box<str>>,
}

/// What is found of a task that only its driver sees. Nobody knows what it used before its driver was asked.
fn told(live: &LiveTask) -> Look {
    let driver = &live.record.driver;
    let known = live.usage.known(driver, Instant::now());
    let reason = known.as_ref().err().cloned();
    let reason = reason.unwrap_or_else(|| only_told_by(driver));
    let (cpu, memory_bytes) = known.map_or((None, None), |known| (known.cpu, known.memory_bytes));
    Look {
        cgroup_id: live.record.cgroup_id,
        counts: Counts::of_cpu(cpu.map(nanos)),
        began: None,
        memory_bytes: memory_bytes.ok_or_else(|| reason.as_str().into()),
        no_counts: Some(reason.into()),
    }
}

/// When the first process of a start began, since boot.
fn began(facilities: &Facilities, cgroup_id: u64) -> Option<Duration> {
    let main = facilities.bpf()?.main_of(cgroup_id).ok()??;
    Some(Duration::from_nanos(main.start_boottime_ns))
}

/// Bytes of memory charged, or why nobody knows.
fn memory(live: &LiveTask) -> Result<u64, Box<str>> {
    let Some(cgroup) = &live.cgroup else {
        return Err("the task's cgroup is gone".into());
    };
    match cgroup.memory_now() {
        Ok(Some(bytes)) => Ok(bytes),
        Ok(None) => Err("this machine has no memory controller for tasks".into()),
        Err(error) => Err(error.to_string().into()),
    }
}

impl Kept {
    /// Whether this start of the task was looked at before.
    fn knows(&self, key: &Key, cgroup_id: u64) -> bool {
        let series = self.tasks.get(key);
        series.is_some_and(|series| series.is_of(cgroup_id))
    }

    fn look(&mut self, key: Key, look: Look, moment: Moment) {
        let Look {
            cgroup_id,
            counts,
            began,
            memory_bytes,
            no_counts,
        } = look;
        // One that was there at the last look, and was not seen, began before it.
        let began = began.filter(|began| self.looked.is_some_and(|looked| looked <= *began));
        let begin = began.map(|began| Moment {
            at: moment.at,
            since_boot: began.min(moment.since_boot),
        });
        let (counts_before, looked_before) = match begin {
            Some(begin) => (Counts::ZERO, begin),
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
            let memory_now = memory_bytes.as_ref().ok().copied();
            series.look(counts, memory_now, moment);
        }
        series.no_memory = memory_bytes.err();
        series.no_counts = no_counts;
    }

    /// Forgets tasks whose newest point is too old; when there is little room for others, those that ended first.
    fn end_step(&mut self, moment: Moment) {
        self.looked = Some(moment.since_boot);
        let oldest = moment.since_boot.saturating_sub(HISTORY_KEPT);
        self.tasks.retain(|_, series| series.looked() > oldest);
        let surplus = (self.tasks.len() + HISTORY_TASKS_SPARE).saturating_sub(HISTORY_TASKS_MAX);
        if surplus == 0 {
            return;
        }
        let ended = self.tasks.iter();
        let mut ended: Vec<(Duration, Key)> = ended
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

/// What one allocation used; `None` if nothing of it runs, and nothing did in the last minutes.
pub(crate) fn alloc(facilities: &Facilities, alloc_id: AllocId) -> Option<AllocHistory> {
    let histories = &facilities.histories;
    let mut tasks: BTreeMap<String, TaskHistory> = BTreeMap::new();
    let oldest = Timestamp(now().0.saturating_sub(nanos(HISTORY_KEPT)));
    let kept = histories.locked();
    for (name, series) in kept.of(alloc_id) {
        let mut told = TaskHistory {
            points: series.points(oldest),
            absent: absent(facilities, series),
        };
        if told.points.is_empty() {
            told.absent.insert("history".to_owned(), no_history(false));
        }
        tasks.insert(name.clone(), told);
    }
    let is_full = kept.tasks.len() >= HISTORY_TASKS_MAX;
    drop(kept);
    for (_, name, _) in facilities.live.of(Some(alloc_id)) {
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
fn absent(facilities: &Facilities, series: &Series) -> BTreeMap<String, String> {
    let mut absent = BTreeMap::new();
    if let Some(reason) = &series.no_counts {
        let reasons = EBPF_VALUES.map(|value| (value.to_owned(), reason.to_string()));
        absent.extend(reasons);
    } else if let Some(bpf) = facilities.bpf() {
        for (part, values) in [
            ("run_delay", &EBPF_VALUES[1..2]),
            ("block", &EBPF_VALUES[4..]),
        ] {
            let reason = bpf.absent().get(part);
            let reasons = values.iter().zip(std::iter::repeat(reason));
            absent.extend(
                reasons.filter_map(|(value, reason)| Some(((*value).to_owned(), reason?.clone()))),
            );
        }
    }
    if series.has_cpu() {
        absent.remove("cpu");
    }
    if let Some(reason) = &series.no_memory {
        absent.insert("memory_bytes".to_owned(), reason.to_string());
    }
    absent
}

/// Time since the machine's boot, standing still included.
fn since_boot() -> Duration {
    clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::ZERO, Duration::from)
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
