//! Emptying a node.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::id::Timestamp;

/// How an operator wants a node emptied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainSpec {
    /// What is left after this time is stopped, ready or not. `None`: no limit. Zero: at once.
    pub deadline: Option<Duration>,
    /// Leave instances of system jobs alone.
    pub ignore_system_jobs: bool,
}

/// A drain under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drain {
    /// How.
    pub spec: DrainSpec,
    /// When it began.
    pub started_at: Timestamp,
}

impl Drain {
    /// When everything that is left must go; `None`: never.
    #[must_use]
    pub fn deadline(&self) -> Option<Timestamp> {
        self.spec.deadline.map(|after| self.started_at.plus(after))
    }
}
