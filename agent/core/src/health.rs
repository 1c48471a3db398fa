//! Whether an allocation is healthy, as deployments and drains count it.
//!
//! An allocation is healthy once every task is as wanted and the youngest process has run for `min_healthy_time`. A
//! task is as wanted when it runs, or when it has ended and runs only once. An allocation is unhealthy when a task
//! fails, when all tasks are dead, or when `healthy_deadline` passes. The first verdict stands until another deployment
//! starts a new check.

use std::time::Duration;

use muster_domain::alloc::{DesiredAlloc, TaskPhase};
use muster_domain::id::{DeploymentId, Timestamp};
use muster_domain::job::{HealthCheck, JobType};
use serde::{Deserialize, Serialize};

use crate::lifecycle::{GroupTask, Role};

/// The times by which the agent judges an allocation's health.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthPolicy {
    /// Time the youngest process must have run.
    pub min_healthy_time: Duration,
    /// Time from the start of the check to the last moment for a verdict.
    pub healthy_deadline: Duration,
}

impl HealthPolicy {
    /// Returns the times of the group's `update` block within a deployment, else of its `migrate` block. Returns `None`
    /// if the agent gives no verdict: for jobs that are not services, and for jobs whose operator decides.
    #[must_use]
    pub fn of(desired: &DesiredAlloc) -> Option<Self> {
        let group = desired.group()?;
        let (check, min_healthy_time, healthy_deadline) = if desired.deployment.is_some() {
            let update = group.update.unwrap_or_default();
            (
                update.health_check,
                update.min_healthy_time,
                update.healthy_deadline,
            )
        } else {
            let migrate = group.migrate.unwrap_or_default();
            (
                migrate.health_check,
                migrate.min_healthy_time,
                migrate.healthy_deadline,
            )
        };
        match desired.job.spec.job_type {
            JobType::Service => {}
            JobType::System if desired.deployment.is_some() => {}
            JobType::Batch | JobType::System | JobType::SysBatch => return None,
        }
        match check {
            HealthCheck::Checks | HealthCheck::TaskStates => Some(Self {
                min_healthy_time,
                healthy_deadline,
            }),
            HealthCheck::Manual => None,
        }
    }
}

/// The joint condition of the tasks at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// A task does not run yet.
    Starting,
    /// Every task that should run runs.
    Running {
        /// The start of the youngest process.
        since: Timestamp,
    },
    /// A task failed, or no task runs any more.
    Broken,
    /// The allocation was asked to stop, so its end is no evidence about its health.
    Leaving,
}

impl Condition {
    /// Returns the condition of the tasks of an allocation that was not asked to stop.
    #[must_use]
    pub fn of(all: &[GroupTask]) -> Self {
        let over = all.iter().all(|task| task.phase == TaskPhase::Dead);
        if over || all.iter().any(|task| task.failed) {
            return Self::Broken;
        }
        if !all.iter().all(is_as_wanted) {
            return Self::Starting;
        }
        let since = all.iter().filter_map(|task| task.running_since).max();
        since.map_or(Self::Starting, |since| Self::Running { since })
    }
}

fn is_as_wanted(task: &GroupTask) -> bool {
    match task.role {
        Role::Prestart => task.phase == TaskPhase::Dead,
        Role::PrestartSidecar | Role::Main | Role::PoststartSidecar => task.running_since.is_some(),
        Role::Poststart => task.phase != TaskPhase::Pending,
        Role::Poststop => true,
    }
}

/// The part of the health check that survives the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HealthSnapshot {
    /// The deployment that the verdict is for.
    pub deployment: Option<DeploymentId>,
    /// Start time of the judgement.
    pub since: Timestamp,
    /// The verdict, once there is one.
    pub healthy: Option<bool>,
}

/// Judges one allocation.
#[derive(Debug)]
pub struct Health {
    policy: Option<HealthPolicy>,
    state: HealthSnapshot,
}

impl Health {
    /// Starts the check of an allocation that was just received.
    #[must_use]
    pub fn new(desired: &DesiredAlloc, now: Timestamp) -> Self {
        let state = HealthSnapshot {
            deployment: desired.deployment,
            since: now,
            healthy: None,
        };
        Self {
            policy: HealthPolicy::of(desired),
            state,
        }
    }

    /// Continues the check of an allocation that an earlier agent ran.
    #[must_use]
    pub fn restore(desired: &DesiredAlloc, snapshot: HealthSnapshot, now: Timestamp) -> Self {
        let mut this = Self {
            policy: None,
            state: HealthSnapshot {
                // A wall clock that was set back while no agent ran must not prolong the judgement.
                since: snapshot.since.min(now),
                ..snapshot
            },
        };
        this.handle_update(desired, now);
        this
    }

    /// Takes in a changed desired state. Another deployment starts a new check. Returns whether a new check started.
    pub fn handle_update(&mut self, desired: &DesiredAlloc, now: Timestamp) -> bool {
        self.policy = HealthPolicy::of(desired);
        let anew = self.state.deployment != desired.deployment;
        if anew {
            self.state = Self::new(desired, now).state;
        }
        anew
    }

    /// Decides if the time has come. Returns whether it decided.
    pub fn judge(&mut self, condition: Condition, now: Timestamp) -> bool {
        let (None, Some(policy)) = (self.state.healthy, self.policy) else {
            return false;
        };
        self.state.healthy = self.verdict(policy, condition, now);
        self.state.healthy.is_some()
    }

    /// Returns the time at which [`Self::judge`] decides if no event comes before, and the reason.
    #[must_use]
    pub fn poll_timeout(&self, condition: Condition) -> Option<(Timestamp, &'static str)> {
        let policy = self.policy.filter(|_| self.state.healthy.is_none())?;
        let late = self.state.since.plus(policy.healthy_deadline);
        match condition {
            Condition::Leaving => None,
            Condition::Starting | Condition::Broken => Some((late, "judge the allocation")),
            Condition::Running { since } => {
                let settled = since.plus(policy.min_healthy_time);
                Some((settled.min(late), "judge the allocation"))
            }
        }
    }

    /// The verdict, once there is one.
    #[must_use]
    pub fn healthy(&self) -> Option<bool> {
        self.state.healthy
    }

    /// The state that must survive the agent.
    #[must_use]
    pub fn snapshot(&self) -> HealthSnapshot {
        self.state
    }

    fn verdict(&self, policy: HealthPolicy, condition: Condition, now: Timestamp) -> Option<bool> {
        let late = self.state.since.plus(policy.healthy_deadline);
        match condition {
            Condition::Leaving => None,
            Condition::Broken => Some(false),
            // The earlier event decides, even if the check comes late.
            Condition::Running { since }
                if since.plus(policy.min_healthy_time) <= late.min(now) =>
            {
                Some(true)
            }
            Condition::Starting | Condition::Running { .. } => (now >= late).then_some(false),
        }
    }
}
