//! The job: the table of its fields. `table` explains the rows.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use muster_domain::job as domain;
use muster_domain::region;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::group::{GROUP, TaskGroup};
use super::launch::{PARAMETERIZED, PERIODIC, Parameterized, Periodic};
use super::schema::BlockShape::{Alone, Conditions, Many, One};
use super::schema::FieldKind::{Block, Value};
use super::schema::ValueKind::{Bool, Int, Text, TextMap, Texts};
use super::schema::{ALONE, EMPTY, MULTIREGION, UI, field};
use super::steps::{
    AFFINITY, Affinity, CONSTRAINT, Constraint, MIGRATE, RESCHEDULE, SPREAD, Spread, UPDATE, Update,
};
use super::table::{BlockForm, job_block, later};
use super::task::TASK;
use super::{unsupported, written};
use crate::api::block::{self, FieldNames};
use crate::api::null::{self, Null};

job_block! {
    /// A job as in responses of `GET /v1/job/:id` and in requests of `PUT /v1/jobs`.
    Job of domain::JobSpec;
    /// The fields of a job in the API and in job files.
    pub JOB {
        label: &["ID", "Name"],
        plan_order: &["Datacenters", "Constraint", "Affinity", "Spread", "Periodic", "ParameterizedJob", "Multiregion"],
        names: FieldNames {
            derived: &[
                "ParentID", "Dispatched", "NomadTokenID", "Status", "StatusDescription", "Stable", "Version", "SubmitTime",
                "CreateIndex", "ModifyIndex", "JobModifyIndex", "VersionTag",
            ],
            rows: unsupported::JOB,
            ..FieldNames::NONE
        },
    }
    @by_hand [launched, stop, as_written]
    @also [
        field("Migrate", "migrate", Block(One, &MIGRATE)),
        field("Reschedule", "reschedule", Block(One, &RESCHEDULE)),
        field(ALONE, "task", Block(Alone, &TASK)),
    ]

    stop: bool = field("Stop", "", Value(Bool));
    region: String = field("Region", "region", Value(Text));
    namespace: String = field("Namespace", "namespace", Value(Text)) => namespace;
    id: String = field("ID", "id", Value(Text)).hidden() => id;
    parent_id: String = field("ParentID", "", Value(Text)).hidden();
    name: String = field("Name", "name", Value(Text)) => name by block::Block::filled;
    // The defaults of other fields depend on the type, so the type is read first.
    job_type: String = field("Type", "type", Value(Text)) => job_type by later;
    priority: u8 = field("Priority", "priority", Value(Int)) => priority;
    all_at_once: bool = field("AllAtOnce", "all_at_once", Value(Bool)) => all_at_once;
    #[serde(with = "null")]
    datacenters: Vec<String> = field("Datacenters", "datacenters", Value(Texts)).plan("Datacenters") => datacenters;
    node_pool: String = field("NodePool", "node_pool", Value(Text)) => node_pool;
    #[serde(with = "null")]
    constraints: Vec<Constraint> = field("Constraints", "constraint", Block(Conditions, &CONSTRAINT)).plan("Constraint")
        => constraints;
    #[serde(with = "null")]
    affinities: Vec<Affinity> = field("Affinities", "affinity", Block(Conditions, &AFFINITY)).plan("Affinity")
        => affinities;
    #[serde(with = "null")]
    spreads: Vec<Spread> = field("Spreads", "spread", Block(Many, &SPREAD)).plan("Spread") => spreads;
    // The defaults of groups are read from the job.
    #[serde(with = "null")]
    task_groups: Vec<TaskGroup> = field("TaskGroups", "group", Block(Many, &GROUP)) => groups by later;
    /// The update block for groups that have none of their own; all zero without one.
    #[serde(deserialize_with = "null::deserialize")]
    update: Update = field("Update", "update", Block(One, &UPDATE));
    multiregion: Null = field("Multiregion", "", Block(One, &MULTIREGION)).plan("Multiregion");
    periodic: Option<Periodic> = field("Periodic", "periodic", Block(One, &PERIODIC)).plan("Periodic") => periodic;
    parameterized_job: Option<Parameterized> =
        field("ParameterizedJob", "parameterized", Block(One, &PARAMETERIZED)).plan("ParameterizedJob")
        => parameterized;
    dispatched: bool = field("Dispatched", "", Value(Bool));
    /// Base64.
    payload: Option<String> = field("Payload", "", Value(Text)).hidden();
    #[serde(with = "null")]
    meta: BTreeMap<String, String> = field("Meta", "meta", Value(TextMap)) => meta;
    consul_token: String = field("ConsulToken", "", Value(Text));
    consul_namespace: String = field("ConsulNamespace", "", Value(Text)).hidden();
    vault_token: String = field("VaultToken", "", Value(Text));
    vault_namespace: String = field("VaultNamespace", "", Value(Text)).hidden();
    nomad_token_id: String = field("NomadTokenID", "", Value(Text)).hidden();
    status: String = field("Status", "", Value(Text)).hidden();
    status_description: String = field("StatusDescription", "", Value(Text)).hidden();
    stable: bool = field("Stable", "", Value(Bool)).hidden();
    version: u64 = field("Version", "", Value(Int)).hidden();
    version_tag: Option<VersionTag> = field("VersionTag", "", Block(One, &EMPTY));
    /// Nanoseconds since the epoch.
    submit_time: u64 = field("SubmitTime", "", Value(Int)).hidden();
    create_index: u64 = field("CreateIndex", "", Value(Int)).hidden();
    modify_index: u64 = field("ModifyIndex", "", Value(Int)).hidden();
    job_modify_index: u64 = field("JobModifyIndex", "", Value(Int)).hidden();
    #[serde(skip_serializing_if = "Option::is_none")]
    ui: Option<Json> = field("UI", "ui", Block(One, &UI));
}

impl Job {
    /// The job to submit: nothing that the server derives is filled in.
    #[must_use]
    pub fn from_spec(spec: &domain::JobSpec) -> Self {
        let mut job = Self {
            region: region::name().to_owned(),
            update: Update::common(&spec.groups),
            ..Self::write_fields(spec)
        };
        if spec.job_type.is_on_every_node() {
            for group in &mut job.task_groups {
                group.reschedule_policy = None;
            }
        }
        if let Some(launched) = &spec.launched {
            job.parent_id.clone_from(&launched.parent_id);
            job.dispatched = launched.dispatched;
            let payload = &launched.payload;
            job.payload = (!payload.is_empty()).then(|| BASE64_STANDARD.encode(payload));
        }
        written::overlay(job, &spec.as_written)
    }

    /// Converts one version of a job, without the job's status.
    #[must_use]
    pub fn from_version(version: &domain::JobVersion) -> Self {
        Self {
            version: version.version,
            submit_time: version.submit_time.0,
            create_index: version.create_index.0,
            modify_index: version.job_modify_index.0,
            job_modify_index: version.job_modify_index.0,
            ..Self::from_spec(&version.spec)
        }
    }

    /// Converts a job with its status.
    #[must_use]
    pub fn from_job(job: &domain::Job) -> Self {
        Self {
            stop: job.stop,
            status: job.status.as_str().to_owned(),
            modify_index: job.modify_index.0,
            ..Self::from_version_of(job, &job.current)
        }
    }

    /// An older version of `job`.
    #[must_use]
    pub fn from_version_of(job: &domain::Job, version: &domain::JobVersion) -> Self {
        Self {
            stable: job.is_stable(version.version),
            version_tag: job.tag_of(version.version).map(VersionTag::from),
            ..Self::from_version(version)
        }
    }
}

/// The tag of a job version. A tagged version is kept for as long as it has the tag.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct VersionTag {
    pub name: String,
    pub description: String,
    /// Nanoseconds since the epoch.
    pub tagged_time: u64,
}

impl From<&domain::VersionTag> for VersionTag {
    fn from(tag: &domain::VersionTag) -> Self {
        Self {
            name: tag.name.clone(),
            description: tag.description.clone(),
            tagged_time: tag.at.0,
        }
    }
}
