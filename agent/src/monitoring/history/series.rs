//! The usage of one task, step by step. Pure.

use std::collections::VecDeque;
use std::time::Duration;

use muster_domain::id::Timestamp;
use muster_domain::saturating::nanos;
use muster_wire::rpc::HistoryPoint;

use crate::bpf::TaskTotals;
use crate::limits::{HISTORY_POINT_BYTES, HISTORY_POINTS_MAX};
use crate::resources::cgroup::StallStats;

/// Values that are counted from the task's start.
const COUNTED: usize = 12;
/// The first values, whose use in one span may exceed 32 bits.
const WIDE: usize = 6;
const NARROW: usize = COUNTED - WIDE;
/// Marks an absent value. It takes half the memory of an option for each value.
const ABSENT: u64 = u64::MAX;
/// Marks an absent value of 32 bits.
const ABSENT_NARROW: u32 = u32::MAX;

/// The time of a sample by two clocks, because people may set the wall clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SampleTime {
    pub(super) at: Timestamp,
    /// Time since the machine's boot, including suspend.
    pub(super) since_boot: Duration,
}

/// The counts of a task since it began. The order is: CPU time and waiting in nanoseconds, bytes of networks and disks,
/// switches, retransmits, microseconds of being throttled and of pressure (CPU, memory, disks).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TaskCountValues([u64; COUNTED]);

impl TaskCountValues {
    /// No value could be counted.
    pub(super) const NONE: Self = Self([ABSENT; COUNTED]);
    /// The counts of a task that has just begun.
    pub(super) const ZERO: Self = Self([0; COUNTED]);

    /// Takes the programs' counts, as far as this machine `has` all programs.
    pub(super) fn new(totals: &TaskTotals, has: AvailablePrograms) -> Self {
        let TaskTotals {
            cpu_ns,
            run_delay_ns,
            context_switches,
            net_rx_bytes,
            net_tx_bytes,
            tcp_retransmits,
            block_read_bytes,
            block_write_bytes,
        } = *totals;
        let only_if = |has: bool, value: u64| if has { value } else { ABSENT };
        Self([
            cpu_ns,
            only_if(has.run_delay, run_delay_ns),
            net_rx_bytes,
            net_tx_bytes,
            only_if(has.block, block_read_bytes),
            only_if(has.block, block_write_bytes),
            context_switches,
            only_if(has.retransmits, tcp_retransmits),
            ABSENT,
            ABSENT,
            ABSENT,
            ABSENT,
        ])
    }

    /// Adds the times for which the task was kept from running.
    pub(super) fn with_waits(mut self, waits: StallStats) -> Self {
        let StallStats {
            throttled_us,
            pressure,
        } = waits;
        let [.., throttled, cpu, memory, io] = &mut self.0;
        *throttled = throttled_us.unwrap_or(ABSENT);
        if let Some(pressure) = pressure {
            *cpu = pressure.cpu.some_us;
            *memory = pressure.memory.some_us;
            *io = pressure.io.some_us;
        }
        self
    }

    /// CPU time in nanoseconds, and no other value.
    pub(super) fn of_cpu(cpu_ns: Option<u64>) -> Self {
        let mut counts = Self::NONE;
        counts.0[0] = cpu_ns.unwrap_or(ABSENT);
        counts
    }

    /// Returns the counts added since `before`. A value is absent if it is absent in either.
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

    fn packed(self) -> ([u64; WIDE], [u32; NARROW]) {
        let (mut wide, mut narrow) = ([ABSENT; WIDE], [ABSENT_NARROW; NARROW]);
        let (first, last) = self.0.split_at(WIDE);
        wide.copy_from_slice(first);
        for (packed, value) in narrow.iter_mut().zip(last) {
            if *value != ABSENT {
                let most = ABSENT_NARROW - 1;
                *packed = u32::try_from(*value).map_or(most, |value| value.min(most));
            }
        }
        (wide, narrow)
    }
}

/// The programs of which a machine may lack some.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AvailablePrograms {
    pub(super) run_delay: bool,
    pub(super) block: bool,
    pub(super) retransmits: bool,
}

/// The usage in a span.
#[derive(Clone, Copy, Debug)]
struct Point {
    at: Timestamp,
    span_ns: u64,
    used: [u64; WIDE],
    /// Values in 32 bits. A larger value is reported as the maximum: 71 minutes, while spans have ten seconds.
    used_narrow: [u32; NARROW],
    memory_bytes: u64,
}

const _: () = assert!(size_of::<Point>() == HISTORY_POINT_BYTES);

/// The points of one task, of all its starts.
#[derive(Debug)]
pub(crate) struct Series {
    /// The cgroup of the start that was sampled last.
    cgroup_id: u64,
    /// The counts at the last sample.
    counts: TaskCountValues,
    sampled_at: SampleTime,
    points: VecDeque<Point>,
    /// Why values were absent at the last sample.
    pub(super) absent: AbsenceReasons,
}

/// Why values are absent.
#[derive(Debug, Default)]
pub(crate) struct AbsenceReasons {
    pub(super) memory: Option<Box<str>>,
    /// The reason for all values that the programs count.
    pub(super) counts: Option<Box<str>>,
    pub(super) throttled: Option<Box<str>>,
    pub(super) pressure: Option<Box<str>>,
}

impl Series {
    /// Returns the series of a task after its first sample. Its first point comes with the next sample.
    pub(super) fn begin(cgroup_id: u64, counts: TaskCountValues, sampled_at: SampleTime) -> Self {
        Self {
            cgroup_id,
            counts,
            sampled_at,
            points: VecDeque::new(),
            absent: AbsenceReasons::default(),
        }
    }

    /// Whether CPU time was known at the newest sample.
    pub(super) fn has_cpu(&self) -> bool {
        let TaskCountValues([cpu, ..]) = self.counts;
        cpu != ABSENT
    }

    /// Whether the series is about this start of the task.
    pub(super) fn is_of(&self, cgroup_id: u64) -> bool {
        self.cgroup_id == cgroup_id
    }

    /// Continues the series with another start of the task, whose counts at `sampled_at` are given.
    pub(super) fn continue_with_start(
        &mut self,
        cgroup_id: u64,
        counts: TaskCountValues,
        sampled_at: SampleTime,
    ) {
        self.cgroup_id = cgroup_id;
        self.counts = counts;
        self.sampled_at = sampled_at;
    }

    /// Adds another sample of the same start.
    pub(super) fn add_sample(
        &mut self,
        counts: TaskCountValues,
        memory_bytes: Option<u64>,
        now: SampleTime,
    ) {
        let span = now.since_boot.saturating_sub(self.sampled_at.since_boot);
        let (used, used_narrow) = counts.since(self.counts).packed();
        let point = Point {
            at: now.at,
            span_ns: nanos(span),
            used,
            used_narrow,
            memory_bytes: memory_bytes.unwrap_or(ABSENT),
        };
        self.counts = counts;
        self.sampled_at = now;
        if self.points.len() == self.points.capacity() {
            // The memory is reserved once, because doubling would exceed the maximum.
            let more = HISTORY_POINTS_MAX.saturating_sub(self.points.len());
            self.points.reserve_exact(more);
        }
        if self.points.len() >= HISTORY_POINTS_MAX {
            self.points.pop_front();
        }
        self.points.push_back(point);
    }

    /// Frees the memory for points that will not come, because the task has ended.
    pub(super) fn shrink(&mut self) {
        self.points.shrink_to_fit();
    }

    /// The number of points for which memory is reserved.
    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.points.capacity()
    }

    /// Time of the last sample, since boot.
    pub(super) fn sampled_at(&self) -> Duration {
        self.sampled_at.since_boot
    }

    /// The points that end after `oldest`, from old to new.
    pub(super) fn points(&self, oldest: Timestamp) -> Vec<HistoryPoint> {
        let young = self.points.iter().filter(|point| point.at > oldest);
        young.map(Point::point).collect()
    }
}

impl Point {
    fn point(&self) -> HistoryPoint {
        let known = |value: u64| (value != ABSENT).then_some(value);
        let known_narrow = |value: u32| (value != ABSENT_NARROW).then_some(value);
        let micros = |value: u32| {
            known_narrow(value)
                .map(u64::from)
                .map(Duration::from_micros)
        };
        let [cpu, run_delay, net_rx, net_tx, block_read, block_write] = self.used;
        let [
            switches,
            retransmits,
            throttled,
            some_cpu,
            some_memory,
            some_io,
        ] = self.used_narrow;
        HistoryPoint {
            at: self.at,
            span: Duration::from_nanos(self.span_ns),
            cpu: known(cpu).map(Duration::from_nanos),
            run_delay: known(run_delay).map(Duration::from_nanos),
            context_switches: known_narrow(switches).map(u64::from),
            throttled: micros(throttled),
            memory_bytes: known(self.memory_bytes),
            net_rx_bytes: known(net_rx),
            net_tx_bytes: known(net_tx),
            tcp_retransmits: known_narrow(retransmits).map(u64::from),
            block_read_bytes: known(block_read),
            block_write_bytes: known(block_write),
            pressure_cpu: micros(some_cpu),
            pressure_memory: micros(some_memory),
            pressure_io: micros(some_io),
        }
    }
}
