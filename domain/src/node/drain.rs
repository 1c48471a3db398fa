//! The drain of a node.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::id::Timestamp;

/// The operator's settings for a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainSpec {
    /// Time after which all remaining allocations are stopped. `None`: no limit. Zero: at once.
    pub deadline: Option<Duration>,
    /// Whether the drain leaves instances of system jobs running.
    pub ignore_system_jobs: bool,
}

/// A running drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drain {
    /// The settings of the drain.
    pub spec: DrainSpec,
    /// Start time of the drain.
    pub started_at: Timestamp,
}

impl Drain {
    /// Time at which all remaining allocations are stopped; `None`: never.
    #[must_use]
    pub fn deadline(&self) -> Option<Timestamp> {
        self.spec.deadline.map(|after| self.started_at.plus(after))
    }
}
