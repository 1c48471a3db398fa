//! The times at which to collect garbage, and the commands to propose.
//!
//! The rules are decided where the command is applied, in `fsm`. This module is only their clock. It looks at each rule
//! once every interval, in slices that follow one another. The monotonic clock decides when a rule is due. The wall
//! clock, which the rows carry, decides how old an object is.

pub(crate) mod config;

use std::time::Duration;

use muster_domain::id::{JobKey, Timestamp};

use crate::fsm::{Command, Entry, GcCommand, GcCursor, GcCutoffs, GcJobStep, GcRule, Response};
pub use config::GcConfig;

/// The time between two looks at something.
type Interval = fn(&GcConfig) -> Duration;

/// The rules that go by age, and the interval of each. Jobs go first, because the objects below them go with them.
/// Nodes go last, when nothing is on them any more.
const ORDER: [(GcRule, Interval); 4] = [
    (GcRule::Jobs, |config| config.job_interval),
    (GcRule::Evals, |config| config.eval_interval),
    (GcRule::Deployments, |config| config.deployment_interval),
    (GcRule::Nodes, |config| config.node_interval),
];

/// Longest time after a server becomes leader until each rule is first due. Leadership may change more often than the
/// longest interval. If each leader began the interval anew, nothing would be collected. Half would make a leader
/// collect while it takes over from a leader that may come back. Double is not safer.
const FIRST_WITHIN: Duration = Duration::from_mins(1);

/// The position of a purged job in the order of jobs. No other job is looked at with it.
const AFTER_ALL_JOBS: Timestamp = Timestamp(u64::MAX);

/// The clock of the collection.
#[derive(Debug)]
pub struct Collector {
    config: GcConfig,
    /// The times at which rules are due, in the order of [`ORDER`].
    due: [Timestamp; ORDER.len()],
}

impl Collector {
    /// Each rule is first due its interval from `now`, but no later than [`FIRST_WITHIN`].
    #[must_use]
    pub fn new(config: GcConfig, now: Timestamp) -> Self {
        Self {
            config,
            due: ORDER.map(|(_, interval)| now.plus(interval(&config).min(FIRST_WITHIN))),
        }
    }

    /// Makes no rule due before `until`.
    pub fn hold(&mut self, until: Timestamp) {
        for due in &mut self.due {
            *due = (*due).max(until);
        }
    }

    /// Returns the commands to propose, in order, for the rules that are due. `now` is on the clock that [`Self::new`]
    /// was given. `at` is the wall clock, which may have been set since.
    pub fn handle_timeout(&mut self, now: Timestamp, at: Timestamp) -> Vec<Entry> {
        let cutoffs = self.config.cutoffs(at);
        let mut commands = Vec::new();
        for ((rule, interval), due) in ORDER.into_iter().zip(&mut self.due) {
            if now >= *due {
                *due = now.plus(interval(&self.config));
                commands.push(collect(rule, &cutoffs, at));
            }
        }
        commands
    }

    /// Returns the commands to propose, in order, for a collection by force: no threshold applies. One-off tasks go
    /// first, with their jobs. By age they go when their own time is over, in any collection. `at` is the wall clock.
    #[must_use]
    pub fn forced(at: Timestamp) -> Vec<Entry> {
        let by_age = ORDER.into_iter().map(|(rule, _)| rule);
        let rules = std::iter::once(GcRule::OneOffs).chain(by_age);
        rules
            .map(|rule| collect(rule, &GcCutoffs::NONE, at))
            .collect()
    }

    /// Returns the command to propose when a job was purged at `at`. The objects below the job that had ended are
    /// removed at once. The others are removed by the rules for objects without a job. These rules also apply to the
    /// evaluation that stops the job, because the client that purged the job may wait for it.
    #[must_use]
    pub fn below(key: JobKey, at: Timestamp) -> Entry {
        GcCommand::Collect {
            rule: GcRule::Jobs,
            before: at,
            batch_before: at,
            after: Some(GcCursor::Job {
                at: AFTER_ALL_JOBS,
                key,
                step: GcJobStep::REMOVE,
            }),
        }
        .at(at)
    }

    /// Returns the purged job if `after` is a position in a collection that [`Self::below`] began, and whether it is
    /// the beginning.
    #[must_use]
    pub fn purged(after: &GcCursor) -> Option<(&JobKey, bool)> {
        if let GcCursor::Job { at, key, step } = after
            && *at == AFTER_ALL_JOBS
        {
            Some((key, *step == GcJobStep::REMOVE))
        } else {
            None
        }
    }

    /// Returns the command for the next slice, if `response` to `entry` has one. `at` is the wall clock.
    #[must_use]
    pub fn next_slice(entry: &Entry, response: &Response, at: Timestamp) -> Option<Entry> {
        match (&entry.command, response) {
            (
                Command::Gc(GcCommand::Collect {
                    rule,
                    before,
                    batch_before,
                    ..
                }),
                Response::Collected {
                    next: Some(after), ..
                },
            ) => Some(
                GcCommand::Collect {
                    rule: *rule,
                    before: *before,
                    batch_before: *batch_before,
                    after: Some(after.clone()),
                }
                .at(at),
            ),
            _ => None,
        }
    }

    /// Returns the time at which [`Self::handle_timeout`] has something to do, and its purpose.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<(Timestamp, &'static str)> {
        let soonest = self.due.iter().min()?;
        Some((*soonest, "garbage collection"))
    }
}

fn collect(rule: GcRule, cutoffs: &GcCutoffs, at: Timestamp) -> Entry {
    let GcCutoffs {
        jobs,
        evals,
        batch_evals,
        deployments,
        nodes,
        one_offs,
    } = *cutoffs;
    let before = match rule {
        GcRule::Jobs => jobs,
        GcRule::Evals => evals,
        GcRule::Deployments => deployments,
        GcRule::Nodes => nodes,
        GcRule::OneOffs => one_offs,
    };
    GcCommand::Collect {
        rule,
        before,
        batch_before: batch_evals,
        after: None,
    }
    .at(at)
}

#[cfg(test)]
mod tests;
