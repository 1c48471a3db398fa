//! The replacement of instances: by new versions, off a node, and after failures.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::block::job_block;
use super::job_type::JobType;
use crate::id::Timestamp;

/// The condition that makes an allocation healthy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HealthCheck {
    /// Its tasks run and its service checks pass.
    Checks,
    TaskStates,
    Manual,
}

crate::text_enum!(pub HealthCheck: "health check" {
    Checks => "checks",
    TaskStates => "task_states",
    Manual => "manual",
});

job_block! {
    /// The way a new version of a job replaces an older one.
    #[derive(Copy)]
    pub struct UpdateStrategy {
        /// Nomad's time between two steps of an update without a deployment. It has no effect: steps follow health.
        pub stagger: Duration = Duration::from_secs(30);
        /// Instances replaced at once; 0 means all, without a deployment.
        pub max_parallel: u32 = 1;
        /// The condition that makes an instance healthy.
        pub health_check: HealthCheck = HealthCheck::Checks;
        /// Time an instance must stay healthy before it counts.
        pub min_healthy_time: Duration = Duration::from_secs(10);
        /// Time an instance has to become healthy.
        pub healthy_deadline: Duration = Duration::from_mins(5);
        /// Time until the next instance must have become healthy; 0 means that one unhealthy instance
        /// fails the deployment.
        pub progress_deadline: Duration = Duration::from_mins(10);
        /// Go back to the last stable version if the deployment fails.
        pub auto_revert: bool = false;
        /// Promote canaries as soon as all are healthy.
        pub auto_promote: bool = false;
        /// Instances of the new version to start beside the old ones, before any is replaced.
        pub canary: u32 = 0;
    }
}

job_block! {
    /// The way instances leave a node that is drained.
    #[derive(Copy)]
    pub struct MigrateStrategy {
        /// Instances under way at once.
        pub max_parallel: u32 = 1;
        /// The condition that makes a replacement healthy.
        pub health_check: HealthCheck = HealthCheck::Checks;
        /// Time it must stay healthy before the next one goes.
        pub min_healthy_time: Duration = Duration::from_secs(10);
        /// Time it has to become healthy.
        pub healthy_deadline: Duration = Duration::from_mins(5);
    }
}

/// The growth of the delay before a replacement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DelayFunction {
    Constant,
    Exponential,
    /// It is the sum of the two before.
    Fibonacci,
}

crate::text_enum!(pub DelayFunction: "delay function" {
    Constant => "constant",
    Exponential => "exponential",
    Fibonacci => "fibonacci",
});

// No table: its defaults depend on the type of the job.
/// Whether and when an instance that failed is replaced, on another node if there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReschedulePolicy {
    /// Replacements allowed within `interval`; not looked at if `unlimited`.
    pub attempts: u32,
    /// The window in which replacements are counted.
    pub interval: Duration,
    /// The delay before the first replacement.
    pub delay: Duration,
    /// Growth of the delay.
    pub delay_function: DelayFunction,
    /// Upper limit of the delay.
    pub max_delay: Duration,
    pub unlimited: bool,
}

impl ReschedulePolicy {
    /// Nomad's default for a job of type `job_type`; instances of system jobs are not replaced.
    #[must_use]
    pub fn default_for(job_type: JobType) -> Self {
        match job_type {
            JobType::Service => Self {
                attempts: 0,
                interval: Duration::ZERO,
                delay: Duration::from_secs(30),
                delay_function: DelayFunction::Exponential,
                max_delay: Duration::from_hours(1),
                unlimited: true,
            },
            JobType::Batch => Self {
                attempts: 1,
                interval: Duration::from_hours(24),
                delay: Duration::from_secs(5),
                delay_function: DelayFunction::Constant,
                max_delay: Duration::ZERO,
                unlimited: false,
            },
            JobType::System | JobType::SysBatch => Self {
                attempts: 0,
                interval: Duration::ZERO,
                delay: Duration::ZERO,
                delay_function: DelayFunction::Constant,
                max_delay: Duration::ZERO,
                unlimited: false,
            },
        }
    }

    /// Whether it replaces anything at all.
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        self.unlimited || self.attempts > 0
    }
}

/// The choice between two instances when a node that was out of reach comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReconcileStrategy {
    /// The one on the node with the better score.
    BestScore,
    /// The one that runs longer.
    LongestRunning,
    /// The one that came back.
    KeepOriginal,
    KeepReplacement,
}

crate::text_enum!(pub ReconcileStrategy: "strategy" {
    BestScore => "best_score",
    LongestRunning => "longest_running",
    KeepOriginal => "keep_original",
    KeepReplacement => "keep_replacement",
});

job_block! {
    /// The handling of an instance whose node is out of reach.
    #[derive(Copy)]
    pub struct Disconnect {
        /// The instance is `unknown` for this long and may come back; then it is lost. `None`: lost at once if `replace`
        /// is set, else never.
        pub lost_after: Option<Duration> = None;
        /// The agent stops the instance after this long without a server. `None`: never.
        pub stop_on_client_after: Option<Duration> = None;
        /// Replace the instance while it is unknown; default `true`.
        pub replace: bool = true;
        /// Choice of the instance that goes on when it comes back.
        pub reconcile: ReconcileStrategy = ReconcileStrategy::BestScore;
    }
}

impl Disconnect {
    /// Whether an instance whose node is out of reach is `unknown` first, instead of lost at once.
    #[must_use]
    pub fn keeps_unreachable(&self) -> bool {
        self.lost_after.is_some() || !self.replace
    }

    /// Whether an instance that is out of reach since `since` counts as lost. One that is not to be replaced waits for
    /// its node without end, unless `lost_after` is set.
    #[must_use]
    pub fn is_lost(&self, since: Timestamp, now: Timestamp) -> bool {
        match self.lost_after {
            Some(after) => since.plus(after) <= now,
            None => self.replace,
        }
    }

    /// The instance is stopped after this long with nobody to stop it, its agent being dead; `None`: never. As long as
    /// without a server, but no longer than from there until it is lost: the agent may have been without one before it
    /// died.
    #[must_use]
    pub fn stop_without_agent_after(&self) -> Option<Duration> {
        let patience = self.stop_on_client_after?;
        let left = self.lost_after.map(|lost| lost.saturating_sub(patience));
        Some(left.map_or(patience, |left| left.min(patience)))
    }
}
