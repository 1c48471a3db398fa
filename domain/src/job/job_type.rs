//! Types of jobs.

use serde::{Deserialize, Serialize};

/// The type of a job, which decides how it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum JobType {
    /// Runs for ever; a task that ends is started again.
    Service,
    Batch,
    /// One instance on every feasible node, for ever.
    System,
    /// One instance on every feasible node, to completion.
    SysBatch,
}

crate::text_enum!(pub JobType: "job type" {
    Service => "service",
    Batch => "batch",
    System => "system",
    SysBatch => "sysbatch",
});

impl JobType {
    /// Whether its instances run to their end, instead of for ever.
    #[must_use]
    pub fn is_batch(self) -> bool {
        match self {
            Self::Batch | Self::SysBatch => true,
            Self::Service | Self::System => false,
        }
    }

    /// Whether it has one instance on every node that it can use, instead of a count.
    #[must_use]
    pub fn is_on_every_node(self) -> bool {
        match self {
            Self::System | Self::SysBatch => true,
            Self::Service | Self::Batch => false,
        }
    }
}
