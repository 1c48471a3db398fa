//! Settings of the scheduler that operators can change at runtime.

use serde::{Deserialize, Serialize};

use crate::job::JobType;

/// The preference between two nodes with room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Algorithm {
    #[default]
    Binpack,
    Spread,
}

crate::text_enum!(pub Algorithm: "algorithm" {
    Binpack => "binpack",
    Spread => "spread",
});

/// The least priority difference for a preemption. Nomad's number.
pub const PREEMPTION_DELTA_MIN: u8 = 10;

/// Whether a job of priority `asking` may preempt a job of priority `running`.
#[must_use]
pub fn may_evict(asking: u8, running: u8) -> bool {
    asking.saturating_sub(running) >= PREEMPTION_DELTA_MIN
}

/// The types of jobs that may preempt less important ones.
#[expect(
    clippy::struct_excessive_bools,
    reason = "one switch for each type of job, as in the API"
)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PreemptionConfig {
    pub system: bool,
    pub sysbatch: bool,
    pub batch: bool,
    pub service: bool,
}

impl PreemptionConfig {
    /// Whether jobs of this type may preempt less important ones.
    #[must_use]
    pub fn allows(self, job_type: JobType) -> bool {
        match job_type {
            JobType::System => self.system,
            JobType::SysBatch => self.sysbatch,
            JobType::Batch => self.batch,
            JobType::Service => self.service,
        }
    }

    /// Whether `next` allows preemption for a type of job for which `self` does not.
    #[must_use]
    pub fn is_eased_by(&self, next: &Self) -> bool {
        let Self {
            system,
            sysbatch,
            batch,
            service,
        } = *self;
        next.system && !system
            || next.sysbatch && !sysbatch
            || next.batch && !batch
            || next.service && !service
    }
}

impl Default for PreemptionConfig {
    /// Preemption for system jobs only, as in Nomad.
    fn default() -> Self {
        Self {
            system: true,
            sysbatch: false,
            batch: false,
            service: false,
        }
    }
}

/// Settings of the scheduler: one row of the state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SchedulerConfig {
    /// The preference between two nodes with room.
    pub algorithm: Algorithm,
    /// The types of jobs that may preempt less important ones.
    pub preemption: PreemptionConfig,
    /// Whether tasks may have more memory than they reserve (`memory_max`).
    pub memory_oversubscription: bool,
    /// Whether registrations of jobs are refused, except from operators.
    pub reject_job_registration: bool,
    /// Whether the processing of evaluations is paused.
    pub pause_broker: bool,
}
