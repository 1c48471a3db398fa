//! The replacement of instances: by new versions, off a node, and after failures.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::block::job_block;
use super::job_type::JobType;
use crate::id::Timestamp;

/// The condition that makes an allocation healthy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HealthCheck {
    /// The tasks run and the service checks pass.
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
        /// Nomad's time between two steps of an update without a deployment. It has no effect here: steps depend on
        /// health.
        pub stagger: Duration = Duration::from_secs(30);
        /// Instances replaced at once; 0 means all, without a deployment.
        pub max_parallel: u32 = 1;
        /// The condition that makes an instance healthy.
        pub health_check: HealthCheck = HealthCheck::Checks;
        /// Time that an instance must stay healthy before it counts.
        pub min_healthy_time: Duration = Duration::from_secs(10);
        /// Time in which an instance must become healthy.
        pub healthy_deadline: Duration = Duration::from_mins(5);
        /// Time until the next instance must have become healthy; 0 means that one unhealthy instance
        /// fails the deployment.
        pub progress_deadline: Duration = Duration::from_mins(10);
        /// Whether a failed deployment reverts to the last stable version.
        pub auto_revert: bool = false;
        /// Whether canaries are promoted as soon as all are healthy.
        pub auto_promote: bool = false;
        /// Canaries: instances of the new version that start alongside the old instances, before any is replaced.
        pub canary: u32 = 0;
    }
}

job_block! {
    /// The migration of instances off a draining node.
    #[derive(Copy)]
    pub struct MigrateStrategy {
        /// Instances under way at once.
        pub max_parallel: u32 = 1;
        /// The condition that makes a replacement healthy.
        pub health_check: HealthCheck = HealthCheck::Checks;
        /// Time that a replacement must stay healthy before the next instance migrates.
        pub min_healthy_time: Duration = Duration::from_secs(10);
        /// Time in which a replacement must become healthy.
        pub healthy_deadline: Duration = Duration::from_mins(5);
    }
}

/// The growth of the delay before a replacement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DelayFunction {
    Constant,
    Exponential,
    /// Each delay is the sum of the two before.
    Fibonacci,
}

crate::text_enum!(pub DelayFunction: "delay function" {
    Constant => "constant",
    Exponential => "exponential",
    Fibonacci => "fibonacci",
});

// The block has no table because its defaults depend on the type of the job.
/// Whether and when an instance that failed is replaced, on another node if there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReschedulePolicy {
    /// Replacements allowed within `interval`; ignored if `unlimited`.
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

    /// Whether the policy allows any replacement.
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        self.unlimited || self.attempts > 0
    }
}

/// The choice between an original instance and its replacement when a disconnected node comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReconcileStrategy {
    /// The instance on the node with the better score.
    BestScore,
    /// The instance that has run longer.
    LongestRunning,
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
        /// The instance is `unknown` for this long and may come back; then it is lost. `None`: lost at once if
        /// `replace` is set, else never.
        pub lost_after: Option<Duration> = None;
        /// The agent stops the instance after this long without a server. `None`: never.
        pub stop_on_client_after: Option<Duration> = None;
        /// Whether the instance is replaced while it is unknown; default `true`.
        pub replace: bool = true;
        /// Choice of the instance that stays when the original comes back.
        pub reconcile: ReconcileStrategy = ReconcileStrategy::BestScore;
    }
}

impl Disconnect {
    /// Whether an instance whose node is out of reach is `unknown` first, instead of lost at once.
    #[must_use]
    pub fn keeps_unreachable(&self) -> bool {
        self.lost_after.is_some() || !self.replace
    }

    /// Whether an instance that is out of reach since `since` counts as lost. Without `replace` and `lost_after`, the
    /// instance waits for its node without end.
    #[must_use]
    pub fn is_lost(&self, since: Timestamp, now: Timestamp) -> bool {
        match self.lost_after {
            Some(after) => since.plus(after) <= now,
            None => self.replace,
        }
    }

    /// The time after which an instance without a living agent is stopped; `None`: never. It is `stop_on_client_after`,
    /// but at most the rest of the time until the instance is lost. The agent may have been without a server before it
    /// died.
    #[must_use]
    pub fn stop_without_agent_after(&self) -> Option<Duration> {
        let stop_limit = self.stop_on_client_after?;
        let left = self.lost_after.map(|lost| lost.saturating_sub(stop_limit));
        Some(left.map_or(stop_limit, |left| left.min(stop_limit)))
    }
}
