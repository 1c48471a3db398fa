//! Where instances go, and how they are replaced.

use muster_domain::job as domain;
use serde::{Deserialize, Serialize};

use crate::api::duration::nanos;
use crate::api::null;

/// A condition that a node had better meet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Affinity {
    #[serde(rename = "LTarget")]
    pub left: String,
    #[serde(rename = "RTarget")]
    pub right: String,
    pub operand: String,
    pub weight: i8,
}

impl From<&domain::Affinity> for Affinity {
    fn from(affinity: &domain::Affinity) -> Self {
        Self {
            left: affinity.left.clone(),
            right: affinity.right.clone(),
            operand: affinity.operand.as_str().to_owned(),
            weight: affinity.weight,
        }
    }
}

/// How instances are spread.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Spread {
    pub attribute: String,
    pub weight: u8,
    #[serde(with = "null")]
    pub spread_target: Vec<SpreadTarget>,
}

/// The part of one value.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct SpreadTarget {
    pub value: String,
    pub percent: u8,
}

impl From<&domain::Spread> for Spread {
    fn from(spread: &domain::Spread) -> Self {
        let target = |target: &domain::SpreadTarget| SpreadTarget {
            value: target.value.clone(),
            percent: target.percent,
        };
        Self {
            attribute: spread.attribute.clone(),
            weight: spread.weight,
            spread_target: spread.targets.iter().map(target).collect(),
        }
    }
}

/// How a new version replaces an older one. Durations are nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Update {
    pub stagger: i64,
    pub max_parallel: u32,
    pub health_check: String,
    pub min_healthy_time: i64,
    pub healthy_deadline: i64,
    pub progress_deadline: i64,
    pub auto_revert: bool,
    pub auto_promote: bool,
    pub canary: u32,
}

impl Update {
    /// The part of the groups' updates that Nomad keeps with the job: its own pace if they agree, the default if
    /// they do not. Nothing if one has none, as it would be given one when the job is sent back.
    pub(super) fn common(groups: &[domain::TaskGroup]) -> Self {
        let updates: Option<Vec<&domain::UpdateStrategy>> =
            groups.iter().map(|group| group.update.as_ref()).collect();
        let Some([first, others @ ..]) = updates.as_deref() else {
            return Self::default();
        };
        let pace = |update: &domain::UpdateStrategy| (update.stagger, update.max_parallel);
        let default = domain::UpdateStrategy::default();
        let (stagger, max_parallel) = if others.iter().all(|other| pace(other) == pace(first)) {
            pace(first)
        } else {
            pace(&default)
        };
        Self {
            stagger: nanos(stagger),
            max_parallel,
            ..Self::default()
        }
    }
}

impl From<&domain::UpdateStrategy> for Update {
    fn from(update: &domain::UpdateStrategy) -> Self {
        Self {
            stagger: nanos(update.stagger),
            max_parallel: update.max_parallel,
            health_check: update.health_check.as_str().to_owned(),
            min_healthy_time: nanos(update.min_healthy_time),
            healthy_deadline: nanos(update.healthy_deadline),
            progress_deadline: nanos(update.progress_deadline),
            auto_revert: update.auto_revert,
            auto_promote: update.auto_promote,
            canary: update.canary,
        }
    }
}

/// How instances leave a node. Durations are nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Migrate {
    pub max_parallel: u32,
    pub health_check: String,
    pub min_healthy_time: i64,
    pub healthy_deadline: i64,
}

impl From<&domain::MigrateStrategy> for Migrate {
    fn from(migrate: &domain::MigrateStrategy) -> Self {
        Self {
            max_parallel: migrate.max_parallel,
            health_check: migrate.health_check.as_str().to_owned(),
            min_healthy_time: nanos(migrate.min_healthy_time),
            healthy_deadline: nanos(migrate.healthy_deadline),
        }
    }
}

/// The policy after failures. Durations are nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Reschedule {
    pub attempts: u32,
    pub interval: i64,
    pub delay: i64,
    pub delay_function: String,
    pub max_delay: i64,
    pub unlimited: bool,
}

impl From<&domain::ReschedulePolicy> for Reschedule {
    fn from(policy: &domain::ReschedulePolicy) -> Self {
        Self {
            attempts: policy.attempts,
            interval: nanos(policy.interval),
            delay: nanos(policy.delay),
            delay_function: policy.delay_function.as_str().to_owned(),
            max_delay: nanos(policy.max_delay),
            unlimited: policy.unlimited,
        }
    }
}

/// The policy for nodes out of reach. Durations are nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Disconnect {
    pub lost_after: Option<i64>,
    pub stop_on_client_after: Option<i64>,
    pub replace: Option<bool>,
    pub reconcile: String,
}

impl From<&domain::Disconnect> for Disconnect {
    fn from(disconnect: &domain::Disconnect) -> Self {
        Self {
            lost_after: Some(disconnect.lost_after.map_or(0, nanos)),
            stop_on_client_after: disconnect.stop_on_client_after.map(nanos),
            replace: Some(disconnect.replace),
            reconcile: disconnect.reconcile.as_str().to_owned(),
        }
    }
}
