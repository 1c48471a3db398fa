//! Counts restarts within the policy's interval.

use muster_domain::id::Timestamp;
use muster_domain::job::{RestartMode, RestartPolicy};
use serde::{Deserialize, Serialize};

/// Restarts counted in the interval that began with the first of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestartTracker {
    interval_start: Option<Timestamp>,
    restarts: u32,
}

/// The decision about a task that ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RestartDecision {
    /// Start the task again at `at`.
    Restart {
        at: Timestamp,
        why: &'static str,
    },
    GiveUp {
        why: String,
    },
}

impl RestartTracker {
    /// Counts one more end of the task and decides.
    pub(crate) fn decide(&mut self, policy: &RestartPolicy, now: Timestamp) -> RestartDecision {
        if policy.attempts == 0 {
            return RestartDecision::GiveUp {
                why: "the restart policy allows no restart".to_owned(),
            };
        }
        let start = match self.interval_start {
            // A start in the future comes from a wall clock that was set back since.
            Some(start) if start <= now && now < start.plus(policy.interval) => start,
            Some(_) | None => {
                self.restarts = 0;
                now
            }
        };
        self.interval_start = Some(start);
        self.restarts = self.restarts.saturating_add(1);
        if self.restarts <= policy.attempts {
            return RestartDecision::Restart {
                at: now.plus(policy.delay),
                why: "the restart policy allows it",
            };
        }
        match policy.mode {
            RestartMode::Delay => RestartDecision::Restart {
                at: start.plus(policy.interval),
                why: "restarts of this interval are used up; waiting for the next one",
            },
            RestartMode::Fail => RestartDecision::GiveUp {
                why: format!(
                    "{} restarts within {:?} are used up",
                    policy.attempts, policy.interval
                ),
            },
        }
    }
}
