//! Tasks: the table of their fields. `table` says what a row means.

use std::collections::BTreeMap;

use muster_domain::job as domain;
use muster_domain::resources::TaskResources;
use serde_json::Value as Json;

use super::schema::BlockShape::{Conditions, Free, Many, ManyByName, One};
use super::schema::Effect::{InPlace, InPlaceUnless, Replace};
use super::schema::FieldKind::{Block, Value};
use super::schema::ValueKind::{Bool, Duration, Text, TextMap};
use super::schema::{
    AFFINITY, ARTIFACT, CONSTRAINT, DISPATCH_PAYLOAD, EMPTY, IDENTITY, LIFECYCLE, LOGS, POLICY,
    RESOURCES, RESTART, SERVICE, TASK_SCALING, VAULT, VOLUME_MOUNT,
};
use super::table::job_block;
use super::{
    Affinity, Constraint, DispatchPayload, Lifecycle, LogConfig, RestartPolicy, VolumeMount,
};
use crate::api::null::{self, Null};
use crate::api::policy::NetworkPolicy;
use crate::api::resources::Resources;

job_block! {
    /// One process tree.
    Task of domain::Task;
    /// A task.
    pub TASK {
        label: &["Name"],
        plan_order: &[
            "Constraint", "Affinity", "Config", "Resources", "LogConfig", "DispatchPayload", "Artifact", "Service",
            "Vault", "Template", "Lifecycle", "RestartPolicy", "VolumeMount", "Policy",
        ],
    }

    name: String = field("Name", "", Value(Text)).hidden() => name, InPlace;
    driver: String = field("Driver", "driver", Value(Text)) => driver, Replace;
    user: String = field("User", "user", Value(Text)) => user, Replace;
    config: Json = field("Config", "config", Block(Free, &EMPTY)).plan("Config") => config_json, Replace;
    #[serde(with = "null")]
    env: BTreeMap<String, String> = field("Env", "env", Value(TextMap)) => env, Replace;
    services: Null = field("Services", "", Block(ManyByName, &SERVICE)).plan("Service").plan_says(InPlace);
    vault: Null = field("Vault", "", Block(One, &VAULT)).plan("Vault");
    templates: Null = field("Templates", "", Block(Many, &EMPTY)).plan("Template");
    #[serde(with = "null")]
    constraints: Vec<Constraint> = field("Constraints", "constraint", Block(Conditions, &CONSTRAINT)).plan("Constraint")
        => constraints, InPlace;
    #[serde(with = "null")]
    affinities: Vec<Affinity> = field("Affinities", "affinity", Block(Conditions, &AFFINITY)).plan("Affinity")
        => affinities, Replace;
    resources: Option<Resources> = field("Resources", "resources", Block(One, &RESOURCES)).plan("Resources")
        => resources, SameIf(same_resources);
    restart_policy: Option<RestartPolicy> = field("RestartPolicy", "restart", Block(One, &RESTART)).plan("RestartPolicy")
        => restart, InPlace;
    dispatch_payload: Option<DispatchPayload> =
        field("DispatchPayload", "dispatch_payload", Block(One, &DISPATCH_PAYLOAD)).plan("DispatchPayload")
        => payload_file, Replace;
    // The hook decides when a task starts. Nomad 1.1.2 changes it in place, and a task that has ended stays so.
    lifecycle: Option<Lifecycle> =
        field("Lifecycle", "lifecycle", Block(One, &LIFECYCLE)).plan("Lifecycle").plan_says(InPlace)
        => lifecycle, Replace;
    #[serde(with = "null")]
    meta: BTreeMap<String, String> = field("Meta", "meta", Value(TextMap)) => meta, Replace;
    /// Nanoseconds.
    kill_timeout: i64 = field("KillTimeout", "kill_timeout", Value(Duration)) => kill_timeout, InPlace;
    log_config: Option<LogConfig> =
        field("LogConfig", "logs", Block(One, &LOGS)).plan("LogConfig").plan_says(InPlaceUnless("Disabled"))
        => logs, SameIf(same_logs);
    artifacts: Null = field("Artifacts", "", Block(Many, &ARTIFACT)).plan("Artifact");
    leader: bool = field("Leader", "leader", Value(Bool)).plan_says(Replace) => leader, InPlace;
    shutdown_delay: i64 = field("ShutdownDelay", "shutdown_delay", Value(Duration)).plan_says(Replace)
        => shutdown_delay, InPlace;
    #[serde(with = "null")]
    volume_mounts: Vec<VolumeMount> = field("VolumeMounts", "volume_mount", Block(Many, &VOLUME_MOUNT)).plan("VolumeMount")
        => volume_mounts, Replace;
    scaling_policies: Option<Json> = field("ScalingPolicies", "scaling", Block(Many, &TASK_SCALING));
    #[serde(skip_serializing_if = "Option::is_none")]
    identity: Option<Json> = field("Identity", "", Block(One, &EMPTY));
    #[serde(skip_serializing_if = "Option::is_none")]
    identities: Option<Json> = field("Identities", "identity", Block(Many, &IDENTITY));
    kill_signal: String = field("KillSignal", "kill_signal", Value(Text)).plan_says(Replace) => kill_signal, InPlace;
    kind: String = field("Kind", "", Value(Text)).hidden();
    csi_plugin_config: Null = field("CSIPluginConfig", "", Block(One, &EMPTY));
    // Nomad has no such field. A policy takes effect on tasks that run.
    #[serde(skip_serializing_if = "Option::is_none")]
    policy: Option<NetworkPolicy> = field("Policy", "policy", Block(One, &POLICY)).plan("Policy") => policy, InPlace;
}

/// Whether the resources are the same for a task that runs. A lower limit of memory takes no effect on it. One that
/// has more would be killed, and how much it has is known on its node alone. Cores of its own are chosen with a place.
fn same_resources(old: &TaskResources, new: &TaskResources) -> bool {
    let TaskResources {
        cpu: _,
        cores,
        memory,
        memory_max,
        devices,
        cpu_hard_limit: _,
        io: _,
        ports,
    } = old;
    *cores == new.cores
        && *ports == new.ports
        && memory_max.unwrap_or(*memory) <= new.memory_max.unwrap_or(new.memory)
        && *devices == new.devices
}

/// Where a task writes to is decided at its start.
fn same_logs(old: &domain::LogConfig, new: &domain::LogConfig) -> bool {
    old.is_disabled() == new.is_disabled()
}
