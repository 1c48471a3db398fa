//! Tasks: the table of their fields. `table` says what a row means.

use std::collections::BTreeMap;

use muster_domain::job as domain;
use serde_json::Value as Json;

use super::constraint::Constraint;
use super::launch::{DispatchPayload, Lifecycle, VolumeMount};
use super::logs::LogConfig;
use super::restart::RestartPolicy;
use super::schema::BlockShape::{Conditions, Free, Many, ManyByName, One};
use super::schema::Effect::{InPlace, InPlaceUnless, Replace};
use super::schema::FieldKind::{Block, Value};
use super::schema::ValueKind::{Bool, Duration, Text, TextMap};
use super::schema::{
    AFFINITY, ARTIFACT, CONSTRAINT, DISPATCH_PAYLOAD, EMPTY, IDENTITY, LIFECYCLE, LOGS, POLICY,
    RESOURCES, RESTART, SERVICE, TASK_SCALING, VAULT, VOLUME_MOUNT,
};
use super::steps::Affinity;
use super::table::job_block;
use crate::api::null::{self, Null};
use crate::api::policy::NetworkPolicy;
use crate::api::resources::Resources;

job_block! {
    /// One process tree.
    Task of domain::Task;
    /// The fields of a task in the API and in job files.
    pub TASK {
        label: &["Name"],
        plan_order: &[
            "Constraint", "Affinity", "Config", "Resources", "LogConfig", "DispatchPayload", "Artifact", "Service",
            "Vault", "Template", "Lifecycle", "RestartPolicy", "VolumeMount", "Policy",
        ],
    }

    name: String = field("Name", "", Value(Text)).hidden() => name;
    driver: String = field("Driver", "driver", Value(Text)) => driver;
    user: String = field("User", "user", Value(Text)) => user;
    config: Json = field("Config", "config", Block(Free, &EMPTY)).plan("Config") => config_json;
    #[serde(with = "null")]
    env: BTreeMap<String, String> = field("Env", "env", Value(TextMap)) => env;
    services: Null = field("Services", "", Block(ManyByName, &SERVICE)).plan("Service").plan_says(InPlace);
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
        field("Lifecycle", "lifecycle", Block(One, &LIFECYCLE)).plan("Lifecycle").plan_says(InPlace)
        => lifecycle;
    #[serde(with = "null")]
    meta: BTreeMap<String, String> = field("Meta", "meta", Value(TextMap)) => meta;
    /// Nanoseconds.
    kill_timeout: i64 = field("KillTimeout", "kill_timeout", Value(Duration)) => kill_timeout;
    log_config: Option<LogConfig> =
        field("LogConfig", "logs", Block(One, &LOGS)).plan("LogConfig").plan_says(InPlaceUnless("Disabled"))
        => logs;
    artifacts: Null = field("Artifacts", "", Block(Many, &ARTIFACT)).plan("Artifact");
    leader: bool = field("Leader", "leader", Value(Bool)).plan_says(Replace) => leader;
    shutdown_delay: i64 = field("ShutdownDelay", "shutdown_delay", Value(Duration)).plan_says(Replace)
        => shutdown_delay;
    #[serde(with = "null")]
    volume_mounts: Vec<VolumeMount> = field("VolumeMounts", "volume_mount", Block(Many, &VOLUME_MOUNT)).plan("VolumeMount")
        => volume_mounts;
    scaling_policies: Option<Json> = field("ScalingPolicies", "scaling", Block(Many, &TASK_SCALING));
    #[serde(skip_serializing_if = "Option::is_none")]
    identity: Option<Json> = field("Identity", "", Block(One, &EMPTY));
    #[serde(skip_serializing_if = "Option::is_none")]
    identities: Option<Json> = field("Identities", "identity", Block(Many, &IDENTITY));
    kill_signal: String = field("KillSignal", "kill_signal", Value(Text)).plan_says(Replace) => kill_signal;
    kind: String = field("Kind", "", Value(Text)).hidden();
    csi_plugin_config: Null = field("CSIPluginConfig", "", Block(One, &EMPTY));
    /// The network policy of the task. Nomad has no such field.
    #[serde(skip_serializing_if = "Option::is_none")]
    policy: Option<NetworkPolicy> = field("Policy", "policy", Block(One, &POLICY)).plan("Policy") => policy;
}
