//! The usage of the node's tasks in the last minutes: a point every [`crate::limits::HISTORY_STEP`].
//!
//! A step is one collection of all tasks from the eBPF maps, and one walk of an eBPF program over their cgroups.
//! The walk finds memory, quota and pressure. Where the program cannot walk, five files of each task are read,
//! which are held open. Kinds of memory need a file in any case, so they are read on request and have no history.
//! Points are kept in memory and are lost with the agent. There are no points for times without an agent.
//!
//! A point holds the usage since the previous sample, over all starts of the task. For a task that began in between,
//! the point counts from its beginning. The first sample of a task that was there before the agent is not a point.

pub(crate) mod answer;
pub(crate) mod recorder;
mod sample;
mod series;

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use muster_domain::id::{AllocId, Timestamp};
use nix::time::{ClockId, clock_gettime};

use crate::limits::{HISTORY_KEPT, HISTORY_TASKS_MAX, HISTORY_TASKS_SPARE};
use crate::monitoring::history::sample::Sample;
use crate::monitoring::history::series::{SampleTime, Series, TaskCountValues};
use crate::session::clock::now;

/// Values that only eBPF can measure. If one part of the programs measures a value and may be absent on its own,
/// the part is named.
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

/// Times for which a task was stalled on a resource.
const PRESSURE_VALUES: [&str; 3] = ["pressure_cpu", "pressure_memory", "pressure_io"];

const NO_MEMORY: &str = "this machine has no memory controller for tasks";

/// A task, independent of its current start.
type TaskKey = (AllocId, String);

/// The histories of a node's tasks.
#[derive(Debug)]
pub(crate) struct Histories {
    since: Timestamp,
    kept: Mutex<HistoryState>,
}

#[derive(Debug, Default)]
struct HistoryState {
    /// The series of tasks, at most [`HISTORY_TASKS_MAX`].
    tasks: BTreeMap<TaskKey, Series>,
    /// Time of the last sample of all tasks, since boot.
    sampled_at: Option<Duration>,
}

impl Default for Histories {
    fn default() -> Self {
        Self {
            since: now(),
            kept: Mutex::default(),
        }
    }
}

impl Histories {
    fn locked(&self) -> std::sync::MutexGuard<'_, HistoryState> {
        // A panic elsewhere leaves each series whole.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HistoryState {
    /// Whether this start of the task was sampled before.
    fn knows(&self, key: &TaskKey, cgroup_id: u64) -> bool {
        let series = self.tasks.get(key);
        series.is_some_and(|series| series.is_of(cgroup_id))
    }

    fn add_sample(&mut self, key: TaskKey, sample: Sample, sample_time: SampleTime) {
        let Sample {
            cgroup_id,
            counts,
            began,
            memory_bytes,
            absent,
        } = sample;
        // A task that existed at the last sample, and was not seen there, began before it.
        let began = began.filter(|began| {
            self.sampled_at
                .is_some_and(|sampled_at| sampled_at <= *began)
        });
        let begin = began.map(|began| SampleTime {
            at: sample_time.at,
            since_boot: began.min(sample_time.since_boot),
        });
        let (counts_before, sampled_before) = match begin {
            Some(begin) => (TaskCountValues::ZERO, begin),
            None => (counts, sample_time),
        };
        let has_room = self.tasks.len() < HISTORY_TASKS_MAX;
        let series = match self.tasks.entry(key) {
            std::collections::btree_map::Entry::Occupied(known) => {
                let series = known.into_mut();
                if !series.is_of(cgroup_id) {
                    series.continue_with_start(cgroup_id, counts_before, sampled_before);
                }
                series
            }
            std::collections::btree_map::Entry::Vacant(room) if has_room => {
                room.insert(Series::begin(cgroup_id, counts_before, sampled_before))
            }
            std::collections::btree_map::Entry::Vacant(_) => return,
        };
        if series.sampled_at() < sample_time.since_boot {
            series.add_sample(counts, memory_bytes, sample_time);
        }
        series.absent = absent;
    }

    /// Removes tasks whose newest point is too old. If there is little room for others, it removes tasks that ended
    /// first. Tasks that ended keep only the memory for their points.
    fn evict_tasks(&mut self, sample_time: SampleTime) {
        self.sampled_at = Some(sample_time.since_boot);
        let oldest = sample_time.since_boot.saturating_sub(HISTORY_KEPT);
        self.tasks.retain(|_, series| series.sampled_at() > oldest);
        for series in self.tasks.values_mut() {
            if series.sampled_at() < sample_time.since_boot {
                series.shrink();
            }
        }
        let surplus = (self.tasks.len() + HISTORY_TASKS_SPARE).saturating_sub(HISTORY_TASKS_MAX);
        if surplus == 0 {
            return;
        }
        let ended = self.tasks.iter();
        let mut ended: Vec<(Duration, TaskKey)> = ended
            .filter(|(_, series)| series.sampled_at() < sample_time.since_boot)
            .map(|(key, series)| (series.sampled_at(), key.clone()))
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

/// Time since the machine's boot, including suspend.
fn since_boot() -> Duration {
    clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::ZERO, Duration::from)
}

#[cfg(test)]
mod tests;
