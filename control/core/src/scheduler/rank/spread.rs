//! Spread: how instances are distributed over the values of an attribute.
//!
//! With targets, a value is the better the further the number of its instances is below its target. Without targets,
//! every value should have the same number. Nomad's even spread may depend on the order of a map: a value that the plan
//! empties among others that have instances. The least number here is that of the values that have an instance.
//!
//! If a plan stops several instances of a value and places others there, one of the stopped instances counts as if it
//! stayed, as in Nomad.

use std::collections::BTreeMap;

use muster_domain::job::Spread;

/// The score of a value that no instance should have, and of a node without the attribute.
const WORST: f64 = -1.0;

/// One spread of a group, and the values of its instances.
#[derive(Clone, Debug)]
pub(in crate::scheduler) struct SpreadUse {
    /// The attribute: a reference.
    pub(in crate::scheduler) attribute: String,
    goal: SpreadGoal,
    /// Instances by value. A value that was emptied stays.
    used: BTreeMap<String, InstanceCounts>,
}

/// Instances on nodes with one value.
#[derive(Clone, Copy, Debug, Default)]
struct InstanceCounts {
    running: u32,
    planned: u32,
    stopped: u32,
}

impl InstanceCounts {
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
enum SpreadGoal {
    /// All values should have the same number of instances.
    Even,
    /// Each value should have its own number of instances.
    Targets {
        /// This spread's part of the score.
        share: f64,
        by_value: BTreeMap<String, f64>,
        /// The number for all other values; `None` if only the targets are allowed.
        others: Option<f64>,
    },
}

/// Returns the spreads of a group of `count` instances: its own, then those of the job. An attribute that is named
/// several times counts as often, each time with the values of its last spread, as in Nomad.
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
            SpreadGoal::Even
        } else {
            let targets = spread.targets.iter();
            let sum: f64 = targets.clone().map(|target| wanted(target.percent)).sum();
            let rest = f64::from(count) - sum;
            SpreadGoal::Targets {
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

    /// Counts an instance that runs on a node with `value`.
    pub(in crate::scheduler) fn runs(&mut self, value: &str) {
        self.instances(value).running += 1;
    }

    /// Counts an instance that the plan places on a node with `value`.
    #[cfg(test)]
    pub(in crate::scheduler) fn is_planned(&mut self, value: &str) {
        self.instances(value).planned += 1;
    }

    /// Counts the stop, by the plan, of an instance that [`runs`](Self::runs) on a node with `value`.
    #[cfg(test)]
    pub(in crate::scheduler) fn is_stopped(&mut self, value: &str) {
        self.instances(value).stopped += 1;
    }

    fn instances(&mut self, value: &str) -> &mut InstanceCounts {
        if !self.used.contains_key(value) {
            self.used
                .insert(value.to_owned(), InstanceCounts::default());
        }
        self.used
            .get_mut(value)
            .expect("it was there or was inserted")
    }

    /// Returns the same spread over values that are numbered: `values[number]` is the value.
    pub(super) fn numbered(&self, values: &[String]) -> NumberedSpread {
        let number = |value: &String| values.iter().position(|known| known == value);
        let mut used = vec![InstanceCounts::default(); values.len()];
        let mut elsewhere = Vec::new();
        for (value, instances) in &self.used {
            match number(value) {
                Some(at) => used[at] = *instances,
                // Instances on nodes that cannot be used count as well.
                None => elsewhere.push(*instances),
            }
        }
        let wanted = match &self.goal {
            SpreadGoal::Even => None,
            SpreadGoal::Targets {
                share,
                by_value,
                others,
            } => Some((
                *share,
                values
                    .iter()
                    .map(|value| by_value.get(value).copied().or(*others))
                    .collect(),
            )),
        };
        NumberedSpread {
            wanted,
            is_touched: !self.used.is_empty(),
            used,
            elsewhere,
        }
    }

    /// Returns the score of one more instance on a node with `value`; `None`: the node has no such attribute.
    #[cfg(test)]
    pub(in crate::scheduler) fn boost(&self, value: Option<&str>) -> f64 {
        let Some(value) = value else { return WORST };
        let used = |value: &str| self.used.get(value).map_or(0, |of| of.count());
        match &self.goal {
            SpreadGoal::Even if self.used.is_empty() => 0.0,
            SpreadGoal::Even => self.even(used(value)),
            SpreadGoal::Targets {
                share,
                by_value,
                others,
            } => toward(
                by_value.get(value).copied().or(*others),
                used(value),
                *share,
            ),
        }
    }

    #[cfg(test)]
    fn even(&self, used: u32) -> f64 {
        let counts = self.used.values().map(|of| of.count());
        let most = counts.clone().max().unwrap_or(0);
        let least = counts.filter(|count| *count > 0).min().unwrap_or(0);
        level(used, least, most)
    }
}

/// Returns the score of one more instance for a value that has `used` of `wanted` instances.
fn toward(wanted: Option<f64>, used: u32, share: f64) -> f64 {
    match wanted {
        None | Some(0.0) => WORST,
        Some(wanted) => (wanted - f64::from(used + 1)) / wanted * share,
    }
}

/// Returns the score of one more instance for a value that has `used`, where the values have from `least` to `most`.
fn level(used: u32, least: u32, most: u32) -> f64 {
    let (least_of, used_of) = (f64::from(least), f64::from(used));
    if used == least && least == most {
        WORST
    } else if used == least {
        (f64::from(most) - least_of) / least_of
    } else {
        (least_of - used_of) / least_of
    }
}

/// A spread over numbered values, for many scores in a row.
#[derive(Clone, Debug)]
pub(super) struct NumberedSpread {
    /// This spread's part of the score, and the wanted number of each value; `None`: the same number for all.
    wanted: Option<(f64, Vec<Option<f64>>)>,
    is_touched: bool,
    used: Vec<InstanceCounts>,
    elsewhere: Vec<InstanceCounts>,
}

impl NumberedSpread {
    /// Counts an instance that the plan places, or takes that back.
    pub(super) fn plan(&mut self, value: Option<u32>, by: i32) {
        if let Some(value) = value {
            self.is_touched = true;
            let planned = &mut self.used[value as usize].planned;
            *planned = planned.saturating_add_signed(by);
        }
    }

    /// Counts the stop, by the plan, of a running instance, or takes that back.
    pub(super) fn stop(&mut self, value: Option<u32>, by: i32) {
        if let Some(value) = value {
            let stopped = &mut self.used[value as usize].stopped;
            *stopped = stopped.saturating_add_signed(by);
        }
    }

    /// Sets the score of one more instance by value; the last is for nodes without the attribute.
    pub(super) fn boosts(&self, boosts: &mut Vec<f64>) {
        boosts.clear();
        match &self.wanted {
            Some((share, wanted)) => boosts.extend(
                self.used
                    .iter()
                    .zip(wanted)
                    .map(|(used, wanted)| toward(*wanted, used.count(), *share)),
            ),
            None if !self.is_touched => boosts.resize(self.used.len(), 0.0),
            None => {
                let all = || self.used.iter().chain(&self.elsewhere).map(|it| it.count());
                let most = all().max().unwrap_or(0);
                let least = all().filter(|count| *count > 0).min().unwrap_or(0);
                boosts.extend(
                    self.used
                        .iter()
                        .map(|used| level(used.count(), least, most)),
                );
            }
        }
        boosts.push(WORST);
    }
}

/// Returns the score of a node: the sum over all spreads. `None` if the sum is 0: the component is then left out of the
/// mean.
#[cfg(test)]
pub(in crate::scheduler) fn score(boosts: impl Iterator<Item = f64>) -> Option<f64> {
    let sum: f64 = boosts.sum();
    (sum != 0.0).then_some(sum)
}
