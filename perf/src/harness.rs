//! Rounds, samples and what is said of them.

use std::path::PathBuf;
use std::time::Duration;

use hdrhistogram::Histogram;
use muster_domain::saturating;
use nix::time::{ClockId, clock_gettime};
use serde::Serialize;

/// The context of every subject.
#[derive(Debug)]
pub(crate) struct Context {
    /// Fewer rounds and smaller loads.
    pub(crate) quick: bool,
    /// A directory to measure in, removed at the end.
    pub(crate) dir: PathBuf,
}

impl Context {
    /// Rounds of each of subject and rival. Odd, so that the median is a sample.
    pub(crate) fn rounds(&self) -> usize {
        self.pick(5, 3)
    }

    /// `full`, or `quick` in a quick run.
    pub(crate) fn pick<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }

    /// An empty directory within [`Self::dir`], removed when dropped.
    pub(crate) fn subdir(&self) -> anyhow::Result<tempfile::TempDir> {
        Ok(tempfile::tempdir_in(&self.dir)?)
    }
}

/// Parts of a round in which subject and rivals take turns, where both can stop at any time: a disk, or
/// a neighbour, changes its mind several times a second.
pub(crate) const TURNS: u32 = 5;

/// Values of one quantity, one a round.
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

/// The same quantity of somebody else, measured in the same run.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Baseline {
    /// The name.
    pub(crate) name: String,
    /// Its values, in the order of the rounds.
    pub(crate) theirs: Samples,
}

/// One measured quantity.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Metric {
    /// Unique within its subject.
    pub(crate) name: String,
    /// Such as `placements/s`.
    pub(crate) unit: &'static str,
    /// Ours.
    pub(crate) ours: Samples,
    /// The rivals, the first of them being the one that a budget without a name means.
    pub(crate) rivals: Vec<Baseline>,
}

impl Metric {
    /// Ours over a rival's: the median of the rounds' ratios, so that what slows the machine down for
    /// some rounds weighs on both sides alike.
    pub(crate) fn ratio(&self, rival: &Baseline) -> f64 {
        let pairs = self.ours.0.iter().zip(&rival.theirs.0);
        Samples(pairs.map(|(ours, theirs)| ours / theirs).collect()).median()
    }
}

/// Collects what rounds find.
#[derive(Debug, Default)]
pub(crate) struct MetricSet {
    metrics: Vec<Metric>,
}

impl MetricSet {
    /// Adds a round's value of `name`.
    pub(crate) fn ours(&mut self, name: &str, unit: &'static str, value: f64) {
        self.metric(name, unit).ours.0.push(value);
    }

    /// Adds a round's value of the same quantity of `rival`.
    pub(crate) fn rival(&mut self, name: &str, unit: &'static str, rival: &str, value: f64) {
        let rivals = &mut self.metric(name, unit).rivals;
        match rivals.iter_mut().find(|known| known.name == rival) {
            Some(known) => known.theirs.0.push(value),
            None => {
                let (name, theirs) = (rival.to_owned(), Samples(vec![value]));
                rivals.push(Baseline { name, theirs });
            }
        }
    }

    /// The metrics, in the order in which they were first named.
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

/// Durations of single operations, kept to two digits: a thousand writers have one each.
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

    /// How many there are.
    pub(crate) fn count(&self) -> u64 {
        self.0.len()
    }

    /// The value at `share` (0 to 1), in microseconds.
    pub(crate) fn micros(&self, share: f64) -> f64 {
        self.0.value_at_quantile(share) as f64 / 1e3
    }
}

/// CPU time from its start on, the kernel's on our behalf included.
///
/// The computation of one thread is timed by its own clock, so that neighbours on a shared machine do not count;
/// on an idle machine it is the time of the clock on the wall.
#[derive(Debug)]
pub(crate) struct CpuClock {
    clock: ClockId,
    begun: Duration,
}

impl CpuClock {
    /// Of this thread.
    pub(crate) fn of_thread() -> anyhow::Result<Self> {
        Self::start(ClockId::CLOCK_THREAD_CPUTIME_ID)
    }

    /// Of all threads of this process; its children's is not in it.
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

/// The value at `share` (0 to 1) of `sorted`.
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
            tally.rival("m", "x/s", "rival", theirs);
            tally.ours("m", "x/s", ours);
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
