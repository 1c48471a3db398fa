//! Spread: how instances are distributed over the values of an attribute.
//!
//! With targets, a value is the better the further its instances are below what they should be. Without,
//! every value should have the same number. Where Nomad's even spread depends on the order of a map (a
//! value that the plan empties among others that have instances), the least number here is that of the
//! values that have one.
//!
//! A plan that stops several instances of a value and places others there counts one of the stopped ones
//! as if it stayed, as Nomad does.

use std::collections::BTreeMap;

use muster_domain::job::Spread;

/// What a value gets that no instance should have, and a node without the attribute.
const WORST: f64 = -1.0;

/// One spread of a group, and where its instances are.
#[derive(Clone, Debug)]
pub(in crate::scheduler) struct SpreadUse {
    /// The attribute: a reference.
    pub(in crate::scheduler) attribute: String,
    goal: Goal,
    /// Instances by value. A value that was emptied stays.
    used: BTreeMap<String, Instances>,
}

/// Instances on nodes with one value.
#[derive(Clone, Copy, Debug, Default)]
struct Instances {
    running: u32,
    planned: u32,
    stopped: u32,
}

impl Instances {
    fn count(self) -> u32 {
        let Self {
            running,
            planned,
            stopped,
        } = self;
        let stopped = stopped - u32::from(planned > 0 && stopped > 1);
        (running + planned).saturating_sub(stopped)
    }
}

#[derive(Clone, Debug)]
enum Goal {
    /// The same for all values.
    Even,
    /// So many for each value.
    Targets {
        /// This spread's part of the score.
        share: f64,
        by_value: BTreeMap<String, f64>,
        /// For all other values; `None` if the targets are all there is.
        others: Option<f64>,
    },
}

/// The spreads of a group of `count` instances: its own, then those of the job. An attribute that is
/// named several times counts as often, each time as the last of them says, as Nomad does.
pub(in crate::scheduler) fn uses(job: &[Spread], group: &[Spread], count: u32) -> Vec<SpreadUse> {
    let weights: u32 = job
        .iter()
        .chain(group)
        .map(|spread| u32::from(spread.weight))
        .sum();
    let all = || group.iter().chain(job);
    let all = all().map(|spread| {
        all()
            .rfind(|last| last.attribute == spread.attribute)
            .unwrap_or(spread)
    });
    all.map(|spread| SpreadUse::new(spread, weights, count))
        .collect()
}

impl SpreadUse {
    fn new(spread: &Spread, weights: u32, count: u32) -> Self {
        let wanted = |percent: u8| f64::from(percent) / 100.0 * f64::from(count);
        let goal = if spread.targets.is_empty() {
            Goal::Even
        } else {
            let targets = spread.targets.iter();
            let sum: f64 = targets.clone().map(|target| wanted(target.percent)).sum();
            let rest = f64::from(count) - sum;
            Goal::Targets {
                share: f64::from(spread.weight) / f64::from(weights.max(1)),
                others: (sum > 0.0 && rest > 0.0).then_some(rest),
                by_value: targets
                    .map(|target| (target.value.clone(), wanted(target.percent)))
                    .collect(),
            }
        };
        Self {
            attribute: spread.attribute.clone(),
            goal,
            used: BTreeMap::new(),
        }
    }

    /// An instance runs on a node with `value`.
    pub(in crate::scheduler) fn runs(&mut self, value: &str) {
        self.instances(value).running += 1;
    }

    /// The plan places an instance on a node with `value`.
    pub(in crate::scheduler) fn is_planned(&mut self, value: &str) {
        self.instances(value).planned += 1;
    }

    /// The plan stops an instance that [`runs`](Self::runs) on a node with `value`.
    pub(in crate::scheduler) fn is_stopped(&mut self, value: &str) {
        self.instances(value).stopped += 1;
    }

    fn instances(&mut self, value: &str) -> &mut Instances {
        if !self.used.contains_key(value) {
            self.used.insert(value.to_owned(), Instances::default());
        }
        self.used
            .get_mut(value)
            .expect("it was there or was inserted")
    }

    /// What one more instance on a node with `value` is worth; `None`: the node has no such attribute.
    pub(in crate::scheduler) fn boost(&self, value: Option<&str>) -> f64 {
        let Some(value) = value else { return WORST };
        let used = |value: &str| self.used.get(value).map_or(0, |of| of.count());
        match &self.goal {
            Goal::Even if self.used.is_empty() => 0.0,
            Goal::Even => self.even(used(value)),
            Goal::Targets {
                share,
                by_value,
                others,
            } => match by_value.get(value).copied().or(*others) {
                None | Some(0.0) => WORST,
                Some(wanted) => (wanted - f64::from(used(value) + 1)) / wanted * share,
            },
        }
    }

    fn even(&self, used: u32) -> f64 {
        let counts = self.used.values().map(|of| of.count());
        let most = counts.clone().max().unwrap_or(0);
        let least = counts.filter(|count| *count > 0).min().unwrap_or(0);
        let (least_of, used_of) = (f64::from(least), f64::from(used));
        if used == least && least == most {
            WORST
        } else if used == least {
            (f64::from(most) - least_of) / least_of
        } else {
            (least_of - used_of) / least_of
        }
    }
}

/// The score of a node: the sum over all spreads. `None` where it is nothing: the component is then left
/// out of the mean.
pub(in crate::scheduler) fn score(boosts: impl Iterator<Item = f64>) -> Option<f64> {
    let sum: f64 = boosts.sum();
    (sum != 0.0).then_some(sum)
}
