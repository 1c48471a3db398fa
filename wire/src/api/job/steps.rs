//! Where instances go, and how they are replaced.

use muster_domain::job as domain;
use serde::{Deserialize, Serialize};

use super::schema::FieldKind::Value;
use super::schema::ValueKind::{Bool, Duration, Int, Text};
use super::table::job_block;
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

job_block! {
    /// How a new version replaces an older one. Durations are nanoseconds.
    #[derive(Eq)]
    Update of domain::UpdateStrategy;
    pub(super) UPDATE {}

    stagger: i64 = field("Stagger", "stagger", Value(Duration)).hidden() => stagger;
    max_parallel: u32 = field("MaxParallel", "max_parallel", Value(Int)) => max_parallel;
    health_check: String = field("HealthCheck", "health_check", Value(Text)) => health_check;
    min_healthy_time: i64 = field("MinHealthyTime", "min_healthy_time", Value(Duration)) => min_healthy_time;
    healthy_deadline: i64 = field("HealthyDeadline", "healthy_deadline", Value(Duration)) => healthy_deadline;
    progress_deadline: i64 = field("ProgressDeadline", "progress_deadline", Value(Duration)) => progress_deadline;
    auto_revert: bool = field("AutoRevert", "auto_revert", Value(Bool)) => auto_revert;
    auto_promote: bool = field("AutoPromote", "auto_promote", Value(Bool)) => auto_promote;
    canary: u32 = field("Canary", "canary", Value(Int)) => canary;
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

job_block! {
    /// How instances leave a node. Durations are nanoseconds.
    #[derive(Eq)]
    Migrate of domain::MigrateStrategy;
    pub(super) MIGRATE {}

    max_parallel: u32 = field("MaxParallel", "max_parallel", Value(Int)) => max_parallel;
    health_check: String = field("HealthCheck", "health_check", Value(Text)) => health_check;
    min_healthy_time: i64 = field("MinHealthyTime", "min_healthy_time", Value(Duration)) => min_healthy_time;
    healthy_deadline: i64 = field("HealthyDeadline", "healthy_deadline", Value(Duration)) => healthy_deadline;
}

job_block! {
    /// The policy after failures. Durations are nanoseconds.
    #[derive(Eq)]
    Reschedule of domain::ReschedulePolicy;
    pub(super) RESCHEDULE {}

    attempts: u32 = field("Attempts", "attempts", Value(Int)) => attempts;
    interval: i64 = field("Interval", "interval", Value(Duration)) => interval;
    delay: i64 = field("Delay", "delay", Value(Duration)) => delay;
    delay_function: String = field("DelayFunction", "delay_function", Value(Text)) => delay_function;
    max_delay: i64 = field("MaxDelay", "max_delay", Value(Duration)) => max_delay;
    unlimited: bool = field("Unlimited", "unlimited", Value(Bool)) => unlimited;
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
