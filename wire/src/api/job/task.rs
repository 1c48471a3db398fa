//! Tasks: the table of their fields. `table` explains the rows.

use std::collections::BTreeMap;

use muster_domain::job as domain;
use serde_json::Value as Json;

use super::launch::{DispatchPayload, LIFECYCLE, Lifecycle, VOLUME_MOUNT, VolumeMount};
use super::request::logs;
use super::schema::BlockShape::{Conditions, Free, Many, ManyByName, One};
use super::schema::Effect::{InPlace, InPlaceUnless, Replace};
use super::schema::FieldKind::{Block, Value};
use super::schema::ValueKind::{Bool, Duration, Int, Text, TextMap, Word};
use super::schema::{
    ARTIFACT, DISPATCH_PAYLOAD, EMPTY, IDENTITY, SERVICE, TASK_SCALING, VAULT, field,
};
use super::steps::{AFFINITY, Affinity, CONSTRAINT, Constraint, RESTART, RestartPolicy};
use super::table::{BlockForm, job_block};
use super::unsupported;
use crate::api::block::FieldNames;
use crate::api::null::{self, Null};
use crate::api::policy::{NetworkPolicy, POLICY};
use crate::api::resources::{RESOURCES, Resources};

job_block! {
    /// A task: a process tree.
    Task of domain::Task;
    /// The fields of a task in the API and in job files.
    pub TASK {
        label: &["Name"],
        plan_order: &[
            "Constraint", "Affinity", "Config", "Resources", "LogConfig", "DispatchPayload", "Artifact", "Service",
            "Vault", "Template", "Lifecycle", "RestartPolicy", "VolumeMount", "Policy",
        ],
        names: FieldNames::rows(unsupported::TASK),
    }

    name: String = field("Name", "", Value(Text)).hidden() => name;
    driver: String = field("Driver", "driver", Value(Text)) => driver;
    user: String = field("User", "user", Value(Text)) => user;
    config: Json = field("Config", "config", Block(Free, &EMPTY)).plan("Config") => config_json;
    #[serde(with = "null")]
    env: BTreeMap<String, String> = field("Env", "env", Value(TextMap)) => env;
    services: Null = field("Services", "", Block(ManyByName, &SERVICE)).plan("Service").plan_effect(InPlace);
    vault: Null = field("Vault", "", Block(One, &VAULT)).plan("Vault");
    templates: Null = field("Templates", "", Block(Many, &EMPTY)).plan("Template");
    #[serde(with = "null")]
    constraints: Vec<Constraint> = field("Constraints", "constraint", Block(Conditions, &CONSTRAINT)).plan("Constraint")
        => constraints;
    #[serde(with = "null")]
    affinities: Vec<Affinity> = field("Affinities", "affinity", Block(Conditions, &AFFINITY)).plan("Affinity")
        => affinities;
    resources: Option<Resources> = field("Resources", "resources", Block(One, &RESOURCES)).plan("Resources")
        => resources;
    restart_policy: Option<RestartPolicy> = field("RestartPolicy", "restart", Block(One, &RESTART)).plan("RestartPolicy")
        => restart;
    dispatch_payload: Option<DispatchPayload> =
        field("DispatchPayload", "dispatch_payload", Block(One, &DISPATCH_PAYLOAD)).plan("DispatchPayload")
        => payload_file;
    lifecycle: Option<Lifecycle> =
        field("Lifecycle", "lifecycle", Block(One, &LIFECYCLE)).plan("Lifecycle").plan_effect(InPlace)
        => lifecycle;
    #[serde(with = "null")]
    meta: BTreeMap<String, String> = field("Meta", "meta", Value(TextMap)) => meta;
    /// Nanoseconds.
    kill_timeout: i64 = field("KillTimeout", "kill_timeout", Value(Duration)) => kill_timeout;
    log_config: Option<LogConfig> =
        field("LogConfig", "logs", Block(One, &LOGS)).plan("LogConfig").plan_effect(InPlaceUnless("Disabled"))
        => logs;
    artifacts: Null = field("Artifacts", "", Block(Many, &ARTIFACT)).plan("Artifact");
    leader: bool = field("Leader", "leader", Value(Bool)).plan_effect(Replace) => leader;
    shutdown_delay: i64 = field("ShutdownDelay", "shutdown_delay", Value(Duration)).plan_effect(Replace)
        => shutdown_delay;
    #[serde(with = "null")]
    volume_mounts: Vec<VolumeMount> = field("VolumeMounts", "volume_mount", Block(Many, &VOLUME_MOUNT)).plan("VolumeMount")
        => volume_mounts;
    scaling_policies: Option<Json> = field("ScalingPolicies", "scaling", Block(Many, &TASK_SCALING));
    #[serde(skip_serializing_if = "Option::is_none")]
    identity: Option<Json> = field("Identity", "", Block(One, &EMPTY));
    #[serde(skip_serializing_if = "Option::is_none")]
    identities: Option<Json> = field("Identities", "identity", Block(Many, &IDENTITY));
    kill_signal: String = field("KillSignal", "kill_signal", Value(Text)).plan_effect(Replace) => kill_signal;
    kind: String = field("Kind", "", Value(Text)).hidden();
    csi_plugin_config: Null = field("CSIPluginConfig", "", Block(One, &EMPTY));
    /// The network policy of the task. Nomad has no such field.
    #[serde(skip_serializing_if = "Option::is_none")]
    policy: Option<NetworkPolicy> = field("Policy", "policy", Block(One, &POLICY)).plan("Policy") => policy;
}

job_block! {
    /// The collection of a task's output.
    #[derive(Eq)]
    LogConfig of domain::LogConfig;
    LOGS { names: FieldNames { derived: &["Enabled"], ..FieldNames::NONE } }
    @also [field("Enabled", "enabled", Value(Bool))]
    @reader logs::read_logs;
    @writer write_logs;

    /// Whether no output is collected.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    disabled: bool = field("Disabled", "disabled", Value(Bool));
    max_files: u32 = field("MaxFiles", "max_files", Value(Int)) => max_files;
    max_file_size_mb: u32 = field("MaxFileSizeMB", "max_file_size", Value(Int)) => max_file_size;
    /// The highest rate of collected output, such as `1mb`: a number and kb, mb or gb (1 024, 1 024² and 1 024³ bytes).
    /// Absent if there is no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    rate: Option<String> = field("Rate", "rate", Value(Text)) => rate;
    /// The treatment of output above `rate`: `drop`; absent for `block`.
    #[serde(skip_serializing_if = "Option::is_none")]
    on_limit: Option<String> = field("OnLimit", "on_limit", Value(Word(&["block", "drop"]))) => on_limit;
    /// The treatment of output while the disk is full: `drop`; absent for `block`.
    #[serde(skip_serializing_if = "Option::is_none")]
    on_full: Option<String> = field("OnFull", "on_full", Value(Word(&["block", "drop"]))) => on_full;
}

fn write_logs(logs: &domain::LogConfig) -> LogConfig {
    if logs.is_disabled() {
        return LogConfig {
            disabled: true,
            ..LogConfig::write_fields(&domain::LogConfig::default())
        };
    }
    LogConfig::write_fields(logs)
}
