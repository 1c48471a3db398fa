//! When to collect garbage, and what to propose.
//!
//! What falls under a rule is decided where the command is applied, in `fsm`. Here is only the clock of
//! it: one look at each rule every interval, cut into slices that follow one another.

use std::time::Duration;

use muster_domain::id::Timestamp;

use crate::fsm::{Command, GcRule, Response};

/// Intervals and thresholds. The defaults are Nomad's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GcConfig {
    /// Between two looks.
    pub interval: Duration,
    /// Age of evaluations and allocations.
    pub eval_threshold: Duration,
    /// Age of evaluations of batch jobs.
    pub batch_eval_threshold: Duration,
    /// Age of jobs.
    pub job_threshold: Duration,
    /// Age of nodes.
    pub node_threshold: Duration,
    /// Age of deployments.
    pub deployment_threshold: Duration,
}

impl Default for GcConfig {
    fn default() -> Self {
        Self {
            interval: Duration::from_mins(5),
            eval_threshold: Duration::from_hours(1),
            batch_eval_threshold: Duration::from_hours(24),
            job_threshold: Duration::from_hours(4),
            node_threshold: Duration::from_hours(24),
            deployment_threshold: Duration::from_hours(1),
        }
    }
}

/// Jobs go first, as what is below them goes with them; nodes last, when nothing is on them any more.
const ORDER: [GcRule; 4] = [
    GcRule::Jobs,
    GcRule::Evals,
    GcRule::Deployments,
    GcRule::Nodes,
];

/// The clock of the collection.
#[derive(Debug)]
pub struct Collector {
    config: GcConfig,
    due: Timestamp,
}

impl Collector {
    /// First due an interval from `now`.
    #[must_use]
    pub fn new(config: GcConfig, now: Timestamp) -> Self {
        Self {
            config,
            due: now.plus(config.interval),
        }
    }

    /// What to propose, in order, if it is time.
    pub fn handle_timeout(&mut self, now: Timestamp) -> Vec<Command> {
        if now < self.due {
            return Vec::new();
        }
        self.due = now.plus(self.config.interval);
        let GcConfig {
            interval: _,
            eval_threshold,
            batch_eval_threshold,
            job_threshold,
            node_threshold,
            deployment_threshold,
        } = self.config;
        let threshold = |rule| match rule {
            GcRule::Jobs => job_threshold,
            GcRule::Evals => eval_threshold,
            GcRule::Nodes => node_threshold,
            GcRule::Deployments => deployment_threshold,
        };
        let rules = ORDER.into_iter();
        rules
            .map(|rule| {
                collect(
                    rule,
                    before(now, threshold(rule)),
                    before(now, batch_eval_threshold),
                    now,
                )
            })
            .collect()
    }

    /// What to propose, in order, when somebody asks for it: no threshold applies.
    #[must_use]
    pub fn forced(now: Timestamp) -> Vec<Command> {
        let ever = Timestamp(u64::MAX);
        ORDER
            .into_iter()
            .map(|rule| collect(rule, ever, ever, now))
            .collect()
    }

    /// The next slice, if `response` to `command` says that there is one.
    #[must_use]
    pub fn next_slice(command: &Command, response: &Response, now: Timestamp) -> Option<Command> {
        match (command, response) {
            (
                Command::CollectGarbage {
                    rule,
                    before,
                    batch_before,
                    ..
                },
                Response::Collected {
                    next: Some(after), ..
                },
            ) => Some(Command::CollectGarbage {
                rule: *rule,
                before: *before,
                batch_before: *batch_before,
                after: Some(after.clone()),
                at: now,
            }),
            _ => None,
        }
    }

    /// When [`Self::handle_timeout`] has something to do, and what for.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<(Timestamp, &'static str)> {
        Some((self.due, "garbage collection"))
    }
}

fn before(now: Timestamp, threshold: Duration) -> Timestamp {
    Timestamp(
        now.0
            .saturating_sub(u64::try_from(threshold.as_nanos()).unwrap_or(u64::MAX)),
    )
}

fn collect(rule: GcRule, before: Timestamp, batch_before: Timestamp, at: Timestamp) -> Command {
    Command::CollectGarbage {
        rule,
        before,
        batch_before,
        after: None,
        at,
    }
}

#[cfg(test)]
mod tests;
