//! Restarts of tasks.

use muster_domain::job as domain;
use serde::{Deserialize, Serialize};

use crate::api::duration::nanos;

/// The policy for a task that ends by itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct RestartPolicy {
    pub attempts: u32,
    /// Nanoseconds.
    pub interval: i64,
    /// Nanoseconds.
    pub delay: i64,
    pub mode: String,
    pub render_templates: bool,
}

impl From<&domain::RestartPolicy> for RestartPolicy {
    fn from(policy: &domain::RestartPolicy) -> Self {
        Self {
            attempts: policy.attempts,
            interval: nanos(policy.interval),
            delay: nanos(policy.delay),
            mode: policy.mode.as_str().to_owned(),
            render_templates: false,
        }
    }
}
