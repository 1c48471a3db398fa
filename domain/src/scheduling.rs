//! Settings of the scheduler that operators change while it runs.

use serde::{Deserialize, Serialize};

use crate::job::JobType;

/// Which of two nodes with room is better.
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

/// How far below the priority of a job that of another must be for the one to take the other's place. Nomad's number.
pub const PREEMPTION_DELTA_MIN: u8 = 10;

/// Whether a job of priority `asking` may take the place of one of priority `running`.
#[must_use]
pub fn may_evict(asking: u8, running: u8) -> bool {
    asking.saturating_sub(running) >= PREEMPTION_DELTA_MIN
}

/// Which jobs may take the place of less important ones.
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
    /// Whether jobs of this type may take the place of less important ones.
    #[must_use]
    pub fn allows(self, job_type: JobType) -> bool {
        match job_type {
            JobType::System => self.system,
            JobType::SysBatch => self.sysbatch,
            JobType::Batch => self.batch,
            JobType::Service => self.service,
        }
    }

    /// Whether `next` lets jobs of a type take the place of others that may not now.
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
    /// System jobs only, as Nomad has it.
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
    /// Which of two nodes with room is better.
    pub algorithm: Algorithm,
    /// Which jobs may take the place of less important ones.
    pub preemption: PreemptionConfig,
    /// Whether tasks may have more memory than they reserve (`memory_max`).
    pub memory_oversubscription: bool,
    /// Refuse jobs, except from operators.
    pub reject_job_registration: bool,
    /// Look at no evaluations.
    pub pause_broker: bool,
}
