//! Emptying a node.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::id::Timestamp;

/// The operator's wishes for emptying a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainSpec {
    /// Time after which the rest of the allocations is stopped, ready or not. `None`: no limit. Zero: at once.
    pub deadline: Option<Duration>,
    /// Leave instances of system jobs alone.
    pub ignore_system_jobs: bool,
}

/// A drain under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drain {
    /// The settings of the drain.
    pub spec: DrainSpec,
    /// Start time of the drain.
    pub started_at: Timestamp,
}

impl Drain {
    /// Time at which all remaining allocations must go; `None`: never.
    #[must_use]
    pub fn deadline(&self) -> Option<Timestamp> {
        self.spec.deadline.map(|after| self.started_at.plus(after))
    }
}
