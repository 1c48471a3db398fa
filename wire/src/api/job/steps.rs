//! Placement and replacement of instances. `table` explains the rows.

use muster_domain::{job as domain, limits};

use super::request::update;
use super::schema::BlockShape::Many;
use super::schema::FieldKind::{Block, Value};
use super::schema::ValueKind::{Bool, Duration, Int, Text};
use super::schema::field;
use super::table::{BlockForm, job_block, read_percent};
use super::unsupported;
use crate::api::block::FieldNames;
use crate::api::duration::nanos;
use crate::api::null;

job_block! {
    /// A condition on a node.
    #[derive(Eq)]
    Constraint of domain::Constraint;
    /// The attributes of a condition. The reader of conditions expands short forms. Until then, a short form keeps its
    /// own name in the API.
    pub(in crate::api) CONSTRAINT { defaults: &[("Operand", "=")], list_max: limits::CONSTRAINTS_MAX }
    @also [
        field("distinct_hosts", "distinct_hosts", Value(Bool)),
        field("distinct_property", "distinct_property", Value(Text)),
        field("is_not_set", "is_not_set", Value(Text)),
        field("is_set", "is_set", Value(Text)),
        field("regexp", "regexp", Value(Text)),
        field("semver", "semver", Value(Text)),
        field("set_contains", "set_contains", Value(Text)),
        field("set_contains_all", "set_contains_all", Value(Text)),
        field("set_contains_any", "set_contains_any", Value(Text)),
        field("version", "version", Value(Text)),
    ]

    left: String = field("LTarget", "attribute", Value(Text)) => left;
    right: String = field("RTarget", "value", Value(Text)) => right;
    operand: String = field("Operand", "operator", Value(Text)) => operand;
}

job_block! {
    /// A preferred condition on a node.
    #[derive(Eq)]
    Affinity of domain::Affinity;
    pub(in crate::api) AFFINITY { defaults: &[("Operand", "=")], list_max: limits::CONSTRAINTS_MAX }
    @also [
        field("is_not_set", "is_not_set", Value(Text)),
        field("is_set", "is_set", Value(Text)),
        field("regexp", "regexp", Value(Text)),
        field("semver", "semver", Value(Text)),
        field("set_contains", "set_contains", Value(Text)),
        field("set_contains_all", "set_contains_all", Value(Text)),
        field("set_contains_any", "set_contains_any", Value(Text)),
        field("version", "version", Value(Text)),
    ]

    left: String = field("LTarget", "attribute", Value(Text)) => left;
    right: String = field("RTarget", "value", Value(Text)) => right;
    operand: String = field("Operand", "operator", Value(Text)) => operand;
    weight: i8 = field("Weight", "weight", Value(Int)) => weight;
}

job_block! {
    /// The distribution of instances.
    #[derive(Eq)]
    Spread of domain::Spread;
    pub(super) SPREAD { list_max: limits::CONSTRAINTS_MAX }

    attribute: String = field("Attribute", "attribute", Value(Text)) => attribute;
    weight: u8 = field("Weight", "weight", Value(Int)) => weight by read_percent;
    #[serde(with = "null")]
    spread_target: Vec<SpreadTarget> = field("SpreadTarget", "target", Block(Many, &TARGET)).plan("SpreadTarget")
        => targets;
}

job_block! {
    /// The part of one value.
    #[derive(Eq)]
    SpreadTarget of domain::SpreadTarget;
    TARGET { label: &["Value"], list_max: limits::CONSTRAINTS_MAX }

    value: String = field("Value", "", Value(Text)) => value;
    percent: u8 = field("Percent", "percent", Value(Int)) => percent by read_percent;
}

job_block! {
    /// The rolling update of a job. Durations are nanoseconds.
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
    /// The part of the groups' updates that Nomad stores with the job. It is their common pace if they agree, and the
    /// default otherwise. It is empty if a group has no update. Otherwise, that group would get one when the job is
    /// sent back.
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
    /// The migration of instances off a node. Durations are nanoseconds.
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

job_block! {
    /// The policy for a task that ends by itself. Durations are nanoseconds.
    #[derive(Eq)]
    RestartPolicy of domain::RestartPolicy;
    pub(super) RESTART { names: FieldNames::rows(unsupported::RESTART) }

    attempts: u32 = field("Attempts", "attempts", Value(Int)) => attempts;
    interval: i64 = field("Interval", "interval", Value(Duration)) => interval;
    delay: i64 = field("Delay", "delay", Value(Duration)) => delay;
    mode: String = field("Mode", "mode", Value(Text)) => mode;
    render_templates: bool = field("RenderTemplates", "render_templates", Value(Bool));
}

job_block! {
    /// The policy for nodes out of reach. Durations are nanoseconds.
    #[derive(Eq)]
    Disconnect of domain::Disconnect;
    pub(super) DISCONNECT {}
    @reader update::read_disconnect;
    @writer write_disconnect;

    lost_after: Option<i64> = field("LostAfter", "lost_after", Value(Duration)) => lost_after;
    stop_on_client_after: Option<i64> = field("StopOnClientAfter", "stop_on_client_after", Value(Duration))
        => stop_on_client_after;
    replace: Option<bool> = field("Replace", "replace", Value(Bool)) => replace;
    reconcile: String = field("Reconcile", "reconcile", Value(Text)) => reconcile;
}

fn write_disconnect(disconnect: &domain::Disconnect) -> Disconnect {
    Disconnect {
        lost_after: Some(disconnect.lost_after.map_or(0, nanos)),
        ..Disconnect::write_fields(disconnect)
    }
}
