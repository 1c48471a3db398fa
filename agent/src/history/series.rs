//! What one task used, step by step. Pure.

use std::collections::VecDeque;
use std::time::Duration;

use muster_domain::id::Timestamp;
use muster_wire::rpc::HistoryPoint;

use crate::bpf::TaskTotals;
use crate::limits::HISTORY_POINTS_MAX;

/// Values that are counted from the task's begin on.
const COUNTED: usize = 6;
/// Stands for a value that cannot be had: half as large as an option of each.
const ABSENT: u64 = u64::MAX;

/// When a look was taken: two clocks, as people's may be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Moment {
    pub(super) at: Timestamp,
    /// Since the machine's boot, standing still included.
    pub(super) since_boot: Duration,
}

/// What was counted of a task since it began: CPU time and waiting in nanoseconds, bytes of networks and disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Counts([u64; COUNTED]);

impl Counts {
    /// Nothing could be counted.
    pub(super) const NONE: Self = Self([ABSENT; COUNTED]);
    /// A task that has just begun.
    pub(super) const ZERO: Self = Self([0; COUNTED]);

    /// What the programs counted, as far as this machine has all of them.
    pub(super) fn new(totals: &TaskTotals, has_run_delay: bool, has_block: bool) -> Self {
        let TaskTotals {
            cpu_ns,
            run_delay_ns,
            net_rx_bytes,
            net_tx_bytes,
            block_read_bytes,
            block_write_bytes,
        } = *totals;
        let only_if = |has: bool, value: u64| if has { value } else { ABSENT };
        Self([
            cpu_ns,
            only_if(has_run_delay, run_delay_ns),
            net_rx_bytes,
            net_tx_bytes,
            only_if(has_block, block_read_bytes),
            only_if(has_block, block_write_bytes),
        ])
    }

    /// CPU time in nanoseconds, and nothing else.
    pub(super) fn of_cpu(cpu_ns: Option<u64>) -> Self {
        let mut counts = Self::NONE;
        counts.0[0] = cpu_ns.unwrap_or(ABSENT);
        counts
    }

    /// What was added since `before`; absent where one of them is.
    fn since(self, before: Self) -> Self {
        let mut added = self.0;
        for (now, before) in added.iter_mut().zip(before.0) {
            *now = match (*now, before) {
                (ABSENT, _) | (_, ABSENT) => ABSENT,
                (now, before) => now.saturating_sub(before),
            };
        }
        Self(added)
    }
}

/// What was used in a span.
#[derive(Clone, Copy, Debug)]
struct Point {
    at: Timestamp,
    span: Duration,
    used: Counts,
    memory_bytes: u64,
}

/// The points of one task, of all its starts.
#[derive(Debug)]
pub(super) struct Series {
    /// The start that was looked at last, by its cgroup.
    cgroup_id: u64,
    /// What had been counted of it then, and when that was.
    counts: Counts,
    looked: Moment,
    points: VecDeque<Point>,
    /// Why memory was absent at that look.
    pub(super) no_memory: Option<Box<str>>,
    /// Why the programs counted nothing of it then.
    pub(super) no_counts: Option<Box<str>>,
}

impl Series {
    /// The first look at a task, whose first point comes with the next look.
    pub(super) fn begin(cgroup_id: u64, counts: Counts, looked: Moment) -> Self {
        Self {
            cgroup_id,
            counts,
            looked,
            points: VecDeque::new(),
            no_memory: None,
            no_counts: None,
        }
    }

    /// Whether CPU time was known at the newest look.
    pub(super) fn has_cpu(&self) -> bool {
        let Counts([cpu, ..]) = self.counts;
        cpu != ABSENT
    }

    /// Whether it is about this start of the task.
    pub(super) fn is_of(&self, cgroup_id: u64) -> bool {
        self.cgroup_id == cgroup_id
    }

    /// Another start of the task, with what had been counted of it at `looked`.
    pub(super) fn begin_again(&mut self, cgroup_id: u64, counts: Counts, looked: Moment) {
        self.cgroup_id = cgroup_id;
        self.counts = counts;
        self.looked = looked;
    }

    /// Another look at the same start.
    pub(super) fn look(&mut self, counts: Counts, memory_bytes: Option<u64>, now: Moment) {
        let point = Point {
            at: now.at,
            span: now.since_boot.saturating_sub(self.looked.since_boot),
            used: counts.since(self.counts),
            memory_bytes: memory_bytes.unwrap_or(ABSENT),
        };
        self.counts = counts;
        self.looked = now;
        if self.points.capacity() == 0 {
            // Once and for all: doubling would end above it.
            self.points.reserve_exact(HISTORY_POINTS_MAX);
        }
        if self.points.len() >= HISTORY_POINTS_MAX {
            self.points.pop_front();
        }
        self.points.push_back(point);
    }

    /// When it was looked at last, since boot.
    pub(super) fn looked(&self) -> Duration {
        self.looked.since_boot
    }

    /// From old to new, those that end after `oldest`.
    pub(super) fn points(&self, oldest: Timestamp) -> Vec<HistoryPoint> {
        let young = self.points.iter().filter(|point| point.at > oldest);
        young.map(Point::told).collect()
    }
}

impl Point {
    fn told(&self) -> HistoryPoint {
        let known = |value: u64| (value != ABSENT).then_some(value);
        let Counts([cpu, run_delay, net_rx, net_tx, block_read, block_write]) = self.used;
        HistoryPoint {
            at: self.at,
            span: self.span,
            cpu: known(cpu).map(Duration::from_nanos),
            run_delay: known(run_delay).map(Duration::from_nanos),
            memory_bytes: known(self.memory_bytes),
            net_rx_bytes: known(net_rx),
            net_tx_bytes: known(net_tx),
            block_read_bytes: known(block_read),
            block_write_bytes: known(block_write),
        }
    }
}
