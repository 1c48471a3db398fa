//! Durations of the lives of tasks.

use std::time::Duration;

use crate::harness::{Latencies, MetricSet};

/// The durations of a turn or of a round.
pub(super) struct StartTimings {
    wall: Duration,
    count: u32,
    starts: Latencies,
    cycles: Latencies,
}

impl StartTimings {
    pub(super) fn new() -> anyhow::Result<Self> {
        let (starts, cycles) = (Latencies::new()?, Latencies::new()?);
        Ok(Self {
            wall: Duration::ZERO,
            count: 0,
            starts,
            cycles,
        })
    }

    pub(super) fn several<const N: usize>() -> anyhow::Result<[Self; N]> {
        let mut several = Vec::new();
        for _ in 0..N {
            several.push(Self::new()?);
        }
        several
            .try_into()
            .map_err(|_several: Vec<Self>| anyhow::anyhow!("as many as were made"))
    }

    /// Whether nothing was measured.
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Adds one cycle: the time until the first instruction of the program, and the total time. Cycles follow each
    /// other.
    pub(super) fn add_cycle(&mut self, start: Duration, cycle: Duration) {
        self.starts.add(start);
        self.cycles.add(cycle);
        self.wall += cycle;
        self.count += 1;
    }

    pub(super) fn add(&mut self, other: &Self) -> anyhow::Result<()> {
        self.wall += other.wall;
        self.count += other.count;
        self.starts.merge(&other.starts)?;
        self.cycles.merge(&other.cycles)
    }

    fn values(&self) -> [(&'static str, &'static str, f64); 5] {
        [
            (
                "cycles",
                "tasks/s",
                f64::from(self.count) / self.wall.as_secs_f64(),
            ),
            ("cycle_us_p50", "µs", self.cycles.micros(0.5)),
            ("cycle_us_p99", "µs", self.cycles.micros(0.99)),
            ("start_us_p50", "µs", self.starts.micros(0.5)),
            ("start_us_p99", "µs", self.starts.micros(0.99)),
        ]
    }

    pub(super) fn add_metrics(&self, tally: &mut MetricSet, suffix: &str) {
        for (name, unit, value) in self.values() {
            tally.add_muster_value(&format!("{name}{suffix}"), unit, value);
        }
    }

    pub(super) fn add_baseline_metrics(&self, tally: &mut MetricSet, suffix: &str, rival: &str) {
        for (name, unit, value) in self.values() {
            tally.add_rival_value(&format!("{name}{suffix}"), unit, rival, value);
        }
    }
}
