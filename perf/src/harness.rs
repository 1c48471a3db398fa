//! Rounds, samples and the metrics computed from them.

use std::path::PathBuf;
use std::time::Duration;

use hdrhistogram::Histogram;
use muster_domain::saturating;
use nix::time::{ClockId, clock_gettime};
use serde::Serialize;

/// The context of every subject.
#[derive(Debug)]
pub(crate) struct Context {
    /// Whether the run uses fewer rounds and smaller loads.
    pub(crate) quick: bool,
    /// The directory for measured files. It is removed at the end.
    pub(crate) dir: PathBuf,
}

impl Context {
    /// Returns the number of rounds of the subject and of each rival. It is odd, so that the median is a sample.
    pub(crate) fn rounds(&self) -> usize {
        self.pick(5, 3)
    }

    /// Returns `full`, or `quick` in a quick run.
    pub(crate) fn pick<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }

    /// Creates an empty directory within [`Self::dir`]. It is removed when dropped.
    pub(crate) fn subdir(&self) -> anyhow::Result<tempfile::TempDir> {
        Ok(tempfile::tempdir_in(&self.dir)?)
    }
}

/// Turns of subject and rivals within one round. They alternate so often because the speed of a disk or of a shared
/// machine changes several times a second.
pub(crate) const TURNS: u32 = 5;

/// The values of one quantity, one per round.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Samples(pub(crate) Vec<f64>);

impl Samples {
    pub(crate) fn median(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
    }

    pub(crate) fn min(&self) -> f64 {
        self.0.iter().copied().fold(f64::INFINITY, f64::min)
    }

    pub(crate) fn max(&self) -> f64 {
        self.0.iter().copied().fold(f64::NEG_INFINITY, f64::max)
    }
}

/// The same quantity of a rival, measured in the same run.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Baseline {
    /// The name of the rival.
    pub(crate) name: String,
    /// The rival's values, in the order of the rounds.
    pub(crate) theirs: Samples,
}

/// One measured quantity.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Metric {
    /// The name of the metric, unique within its subject.
    pub(crate) name: String,
    /// The unit, such as `placements/s`.
    pub(crate) unit: &'static str,
    /// The values of Muster.
    pub(crate) ours: Samples,
    /// The rivals. A budget without a rival's name refers to the first one.
    pub(crate) rivals: Vec<Baseline>,
}

impl Metric {
    /// Returns the median of the rounds' ratios of our value to the rival's. A slow phase of the machine then affects
    /// both sides alike.
    pub(crate) fn ratio(&self, rival: &Baseline) -> f64 {
        let pairs = self.ours.0.iter().zip(&rival.theirs.0);
        Samples(pairs.map(|(ours, theirs)| ours / theirs).collect()).median()
    }
}

/// Collects the values that rounds measure.
#[derive(Debug, Default)]
pub(crate) struct MetricSet {
    metrics: Vec<Metric>,
}

impl MetricSet {
    /// Adds Muster's value of `name` in a round.
    pub(crate) fn add_muster_value(&mut self, name: &str, unit: &'static str, value: f64) {
        self.metric(name, unit).ours.0.push(value);
    }

    /// Adds the value of `rival` for the same quantity in a round.
    pub(crate) fn add_rival_value(
        &mut self,
        name: &str,
        unit: &'static str,
        rival: &str,
        value: f64,
    ) {
        let rivals = &mut self.metric(name, unit).rivals;
        match rivals.iter_mut().find(|known| known.name == rival) {
            Some(known) => known.theirs.0.push(value),
            None => {
                let (name, theirs) = (rival.to_owned(), Samples(vec![value]));
                rivals.push(Baseline { name, theirs });
            }
        }
    }

    /// Returns the metrics, in the order in which they were first named.
    pub(crate) fn finish(self) -> Vec<Metric> {
        self.metrics
    }

    fn metric(&mut self, name: &str, unit: &'static str) -> &mut Metric {
        let at = self.metrics.iter().position(|metric| metric.name == name);
        let at = at.unwrap_or_else(|| {
            let (name, ours) = (name.to_owned(), Samples::default());
            self.metrics.push(Metric {
                name,
                unit,
                ours,
                rivals: Vec::new(),
            });
            self.metrics.len() - 1
        });
        &mut self.metrics[at]
    }
}

/// Durations of single operations, kept to two digits. The precision is low because each of a thousand writers has
/// its own histogram.
#[derive(Debug)]
pub(crate) struct Latencies(Histogram<u64>);

impl Latencies {
    pub(crate) fn new() -> anyhow::Result<Self> {
        Ok(Self(Histogram::new(2)?))
    }

    pub(crate) fn add(&mut self, duration: Duration) {
        self.0
            .record(saturating::nanos(duration))
            .expect("the histogram grows with its values");
    }

    pub(crate) fn merge(&mut self, other: &Self) -> anyhow::Result<()> {
        Ok(self.0.add(&other.0)?)
    }

    /// Returns the number of durations.
    pub(crate) fn count(&self) -> u64 {
        self.0.len()
    }

    /// Returns the duration at `share` (0 to 1), in microseconds.
    pub(crate) fn micros(&self, share: f64) -> f64 {
        self.0.value_at_quantile(share) as f64 / 1e3
    }
}

/// A clock of CPU time since its start, including the kernel's time on behalf of this process.
///
/// The computation of a single thread is timed by the thread's CPU clock. Other programs on a shared machine then do
/// not count. On an idle machine CPU time equals wall time.
#[derive(Debug)]
pub(crate) struct CpuClock {
    clock: ClockId,
    begun: Duration,
}

impl CpuClock {
    /// Starts a clock of this thread.
    pub(crate) fn of_thread() -> anyhow::Result<Self> {
        Self::start(ClockId::CLOCK_THREAD_CPUTIME_ID)
    }

    /// Starts a clock of all threads of this process. It does not include child processes.
    pub(crate) fn of_process() -> anyhow::Result<Self> {
        Self::start(ClockId::CLOCK_PROCESS_CPUTIME_ID)
    }

    fn start(clock: ClockId) -> anyhow::Result<Self> {
        Ok(Self {
            clock,
            begun: clock_gettime(clock)?.into(),
        })
    }

    pub(crate) fn elapsed(&self) -> anyhow::Result<Duration> {
        Ok(Duration::from(clock_gettime(self.clock)?).saturating_sub(self.begun))
    }
}

/// Returns the value at `share` (0 to 1) of `sorted`.
pub(crate) fn quantile(sorted: &[f64], share: f64) -> f64 {
    if sorted.is_empty() {
        return f64::NAN;
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a share of a length is a small whole number"
    )]
    let at = ((sorted.len() - 1) as f64 * share).round() as usize;
    sorted[at]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ratio_is_taken_round_by_round() {
        let mut tally = MetricSet::default();
        for (ours, theirs) in [(10.0, 5.0), (1.0, 0.5), (40.0, 20.0)] {
            tally.add_rival_value("m", "x/s", "rival", theirs);
            tally.add_muster_value("m", "x/s", ours);
        }

        let metric = tally.finish().remove(0);

        assert!((metric.ratio(&metric.rivals[0]) - 2.0).abs() < 1e-9);
        assert!((metric.ours.median() - 10.0).abs() < 1e-9);
    }

    #[test]
    fn latencies_are_reported_in_microseconds() {
        let mut latencies = Latencies::new().unwrap();
        for micros in 1..=100 {
            latencies.add(Duration::from_micros(micros));
        }

        assert!((latencies.micros(0.5) - 50.0).abs() < 0.5);
        assert!((latencies.micros(0.99) - 99.0).abs() < 0.5);
    }
}
