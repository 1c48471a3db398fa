//! Types of jobs.

use serde::{Deserialize, Serialize};

/// The type of a job, which decides how it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum JobType {
    /// Instances run until they are stopped. A task that ends is started again.
    Service,
    Batch,
    /// One instance runs on every feasible node until it is stopped.
    System,
    /// One instance runs on every feasible node, to completion.
    SysBatch,
}

crate::text_enum!(pub JobType: "job type" {
    Service => "service",
    Batch => "batch",
    System => "system",
    SysBatch => "sysbatch",
});

impl JobType {
    /// Whether instances run to completion.
    #[must_use]
    pub fn is_batch(self) -> bool {
        match self {
            Self::Batch | Self::SysBatch => true,
            Self::Service | Self::System => false,
        }
    }

    /// Whether the job has one instance on every feasible node, instead of a count.
    #[must_use]
    pub fn is_on_every_node(self) -> bool {
        match self {
            Self::System | Self::SysBatch => true,
            Self::Service | Self::Batch => false,
        }
    }
}
