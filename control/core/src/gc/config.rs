//! Intervals and thresholds of garbage collection.

use std::time::Duration;

use muster_domain::id::Timestamp;
use muster_domain::job::JobType;
use muster_domain::saturating;

use crate::fsm::garbage::rule::Cutoffs;

/// Intervals and thresholds. Names and defaults are Nomad's, where it has a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GcConfig {
    /// Time between two looks at evaluations and their allocations.
    pub eval_interval: Duration,
    /// Age of evaluations and allocations.
    pub eval_threshold: Duration,
    /// Age of evaluations and allocations of batch jobs.
    pub batch_eval_threshold: Duration,
    /// Time between two looks at jobs.
    pub job_interval: Duration,
    pub job_threshold: Duration,
    /// Time between two looks at deployments.
    pub deployment_interval: Duration,
    pub deployment_threshold: Duration,
    /// Time between two looks at nodes.
    pub node_interval: Duration,
    pub node_threshold: Duration,
}

impl Default for GcConfig {
    fn default() -> Self {
        let interval = Duration::from_mins(5);
        Self {
            eval_interval: interval,
            eval_threshold: Duration::from_hours(1),
            batch_eval_threshold: Duration::from_hours(24),
            job_interval: interval,
            job_threshold: Duration::from_hours(4),
            deployment_interval: interval,
            deployment_threshold: Duration::from_hours(1),
            node_interval: interval,
            node_threshold: Duration::from_hours(24),
        }
    }
}

impl GcConfig {
    /// Returns the times before which objects are old enough at `at`, a time of the wall clock, as rows carry it.
    #[must_use]
    pub fn cutoffs(&self, at: Timestamp) -> Cutoffs {
        Cutoffs {
            jobs: before(at, self.job_threshold),
            evals: before(at, self.eval_threshold),
            batch_evals: before(at, self.batch_eval_threshold),
            deployments: before(at, self.deployment_threshold),
            nodes: before(at, self.node_threshold),
            one_offs: Timestamp(0),
        }
    }

    /// Age of evaluations, and of their allocations, of a job of this type.
    #[must_use]
    pub fn threshold_of_evals(&self, job_type: JobType) -> Duration {
        if job_type.is_batch() {
            self.batch_eval_threshold
        } else {
            self.eval_threshold
        }
    }
}

fn before(at: Timestamp, threshold: Duration) -> Timestamp {
    Timestamp(at.0.saturating_sub(saturating::nanos(threshold)))
}
