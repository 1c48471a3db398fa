//! Periodic and parameterized jobs, scaling, volumes and lifecycles. `table` explains the rows.

#![expect(missing_docs, reason = "fields carry Nomad's names and meaning")]

use std::collections::BTreeMap;

use muster_domain::{job as domain, limits};
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::request::launch as read;
use super::schema::BlockShape::{Free, One};
use super::schema::FieldKind::{Block, Value};
use super::schema::ValueKind::{Bool, Int, Text, TextMap, Texts, Word};
use super::schema::{EMPTY, MOUNT_OPTIONS, field};
use super::table::{BlockForm, job_block};
use super::unsupported;
use crate::api::block::FieldNames;
use crate::api::null::{self, Null};

job_block! {
    /// Launched by time.
    #[derive(Eq)]
    Periodic of domain::Periodic;
    pub(super) PERIODIC { defaults: &[("SpecType", "cron")] }
    @by_hand [specs]
    @reader read::read_periodic;
    @writer write_periodic;

    enabled: bool = field("Enabled", "enabled", Value(Bool)) => enabled;
    spec: String = field("Spec", "cron", Value(Text));
    #[serde(with = "null")]
    specs: Vec<String> = field("Specs", "crons", Value(Texts));
    spec_type: String = field("SpecType", "", Value(Text));
    prohibit_overlap: bool = field("ProhibitOverlap", "prohibit_overlap", Value(Bool)) => prohibit_overlap;
    time_zone: String = field("TimeZone", "time_zone", Value(Text)) => time_zone;
}

fn write_periodic(periodic: &domain::Periodic) -> Periodic {
    // A single expression is in Nomad's older field, several are in its newer field.
    let (spec, specs) = match periodic.specs.as_slice() {
        [one] => (one.clone(), Vec::new()),
        several => (String::new(), several.to_vec()),
    };
    Periodic {
        spec,
        specs,
        spec_type: "cron".to_owned(),
        ..Periodic::write_fields(periodic)
    }
}

job_block! {
    /// The settings of a job that runs only as jobs dispatched from it.
    #[derive(Eq)]
    Parameterized of domain::Parameterized;
    pub(super) PARAMETERIZED {}

    payload: String = field("Payload", "payload", Value(Text)) => payload;
    #[serde(with = "null")]
    meta_required: Vec<String> = field("MetaRequired", "meta_required", Value(Texts)).plan("MetaRequired") => meta_required;
    #[serde(with = "null")]
    meta_optional: Vec<String> = field("MetaOptional", "meta_optional", Value(Texts)).plan("MetaOptional") => meta_optional;
}

job_block! {
    /// Bounds for scaling.
    Scaling of domain::Scaling;
    pub(super) SCALING {
        required: &["max"],
        defaults: &[("Type", "horizontal")],
        names: FieldNames {
            derived: &["ID", "Target", "Namespace", "CreateIndex", "ModifyIndex"],
            ..FieldNames::NONE
        },
    }
    @also [
        field("ID", "", Value(Text)).hidden(),
        field("CreateIndex", "", Value(Int)).hidden(),
        field("ModifyIndex", "", Value(Int)).hidden(),
        field("Target", "", Value(TextMap)),
    ]
    @reader read::read_scaling;
    @writer write_scaling;

    scaling_type: String = field("Type", "type", Value(Word(&["horizontal"])));
    min: u32 = field("Min", "min", Value(Int)) => min;
    max: u32 = field("Max", "max", Value(Int)) => max by read::read_scaling_max;
    enabled: bool = field("Enabled", "enabled", Value(Bool)) => enabled;
    policy: Json = field("Policy", "policy", Block(Free, &EMPTY)) => policy_json by read::read_scaling_policy;
}

fn write_scaling(scaling: &domain::Scaling) -> Scaling {
    Scaling {
        scaling_type: "horizontal".to_owned(),
        ..Scaling::write_fields(scaling)
    }
}

job_block! {
    /// A volume that a group requests.
    #[derive(Eq)]
    Volume of domain::VolumeAsk;
    pub(super) VOLUME { label: &["Name"], names: FieldNames::rows(unsupported::VOLUME) }
    @also [field("Sticky", "sticky", Value(Bool))]
    @reader read::read_volume;
    @writer write_volume;

    name: String = field("Name", "", Value(Text));
    volume_type: String = field("Type", "type", Value(Text));
    source: String = field("Source", "source", Value(Text)) => source;
    read_only: bool = field("ReadOnly", "read_only", Value(Bool)) => read_only;
    access_mode: String = field("AccessMode", "access_mode", Value(Text));
    attachment_mode: String = field("AttachmentMode", "attachment_mode", Value(Text));
    mount_options: Null = field("MountOptions", "", Block(One, &MOUNT_OPTIONS)).plan("MountOptions");
    per_alloc: bool = field("PerAlloc", "per_alloc", Value(Bool));
}

fn write_volume(volume: &domain::VolumeAsk) -> Volume {
    Volume {
        volume_type: "host".to_owned(),
        ..Volume::write_fields(volume)
    }
}

job_block! {
    /// A volume at a place of a task.
    #[derive(Eq)]
    VolumeMount of domain::VolumeMount;
    pub(super) VOLUME_MOUNT { list_max: limits::VOLUMES_MAX }
    @reader read::read_mount;

    volume: String = field("Volume", "volume", Value(Text)) => volume;
    destination: String = field("Destination", "destination", Value(Text)) => destination;
    read_only: bool = field("ReadOnly", "read_only", Value(Bool)) => read_only;
    propagation_mode: String = field("PropagationMode", "propagation_mode", Value(Text)) => propagation;
    selinux_label: String = field("SELinuxLabel", "selinux_label", Value(Text)) => selinux_label;
}

job_block! {
    /// The time in the life of an allocation at which a task runs.
    #[derive(Eq)]
    Lifecycle of domain::Lifecycle;
    pub(super) LIFECYCLE { required: &["hook"] }

    hook: String = field("Hook", "hook", Value(Text)) => hook;
    sidecar: bool = field("Sidecar", "sidecar", Value(Bool)) => sidecar;
}

// The block has no table because the domain stores a text instead.
/// The target file for the payload of a dispatch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct DispatchPayload {
    pub file: String,
}

/// The body of a dispatch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct DispatchRequest {
    /// Base64.
    pub payload: Option<String>,
    #[serde(with = "null")]
    pub meta: BTreeMap<String, String>,
    pub id_prefix_template: String,
    /// The token of the dispatch. A repeated token returns the job of the first dispatch.
    pub idempotency_token: String,
    /// 0 for the parent's.
    pub priority: u64,
}
