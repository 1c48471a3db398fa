//! Restarts of tasks.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::job_type::JobType;

// The block has no table because its defaults depend on the type of the job.
/// Restarts of a task that ends by itself, on the same node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestartPolicy {
    /// Restarts allowed within `interval`.
    pub attempts: u32,
    /// The window in which restarts are counted.
    pub interval: Duration,
    /// The pause before each restart.
    pub delay: Duration,
    /// Behavior when the attempts are used up.
    pub mode: RestartMode,
}

impl RestartPolicy {
    /// The longest pause before a restart.
    #[must_use]
    pub fn longest_delay(&self) -> Duration {
        match self.mode {
            RestartMode::Delay => self.delay.max(self.interval),
            RestartMode::Fail => self.delay,
        }
    }

    /// Nomad's default for a job of type `job_type`.
    #[must_use]
    pub fn default_for(job_type: JobType) -> Self {
        match job_type {
            JobType::Service | JobType::System => Self {
                attempts: 2,
                interval: Duration::from_mins(30),
                delay: Duration::from_secs(15),
                mode: RestartMode::Fail,
            },
            JobType::Batch | JobType::SysBatch => Self {
                attempts: 3,
                interval: Duration::from_hours(24),
                delay: Duration::from_secs(15),
                mode: RestartMode::Fail,
            },
        }
    }
}

/// The behavior when a task's restarts are used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RestartMode {
    /// Wait until the interval is over, then count afresh.
    Delay,
    /// The task has failed, and its allocation with it.
    Fail,
}

crate::text_enum!(pub RestartMode: "restart mode" {
    Fail => "fail",
    Delay => "delay",
});
