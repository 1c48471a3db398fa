//! Task groups: the table of their fields. `table` explains the rows.

use std::collections::BTreeMap;

use muster_domain::job as domain;

use super::launch::{SCALING, Scaling, VOLUME, Volume};
use super::schema::BlockShape::{Conditions, Many, ManyByName, Named, One};
use super::schema::Compared::InBoth;
use super::schema::FieldKind::{Block, Value};
use super::schema::ValueKind::{Bool, Duration, Int, Text, TextMap};
use super::schema::{EMPTY, SERVICE};
use super::steps::{
    AFFINITY, Affinity, CONSTRAINT, Constraint, DISCONNECT, Disconnect, MIGRATE, Migrate,
    RESCHEDULE, RESTART, Reschedule, RestartPolicy, SPREAD, Spread, UPDATE, Update,
};
use super::table::{job_block, later};
use super::task::{TASK, Task};
use super::unsupported;
use crate::api::block::FieldNames;
use crate::api::null::{self, Null};
use crate::api::resources::{NETWORK, Network};

job_block! {
    /// Tasks that are placed together.
    TaskGroup of domain::TaskGroup;
    /// The fields of a group in the API and in job files.
    pub GROUP {
        label: &["Name"],
        plan_order: &[
            "Constraint", "Affinity", "Spread", "RestartPolicy", "ReschedulePolicy", "EphemeralDisk", "Update", "Migrate",
            "Disconnect", "Scaling", "Network", "Service", "Volume",
        ],
        names: FieldNames::rows(unsupported::GROUP),
    }

    name: String = field("Name", "", Value(Text)).hidden() => name;
    count: u32 = field("Count", "count", Value(Int)) => count;
    update: Option<Update> = field("Update", "update", Block(One, &UPDATE)).plan("Update") => update;
    migrate: Option<Migrate> = field("Migrate", "migrate", Block(One, &MIGRATE)).plan("Migrate") => migrate;
    #[serde(with = "null")]
    constraints: Vec<Constraint> = field("Constraints", "constraint", Block(Conditions, &CONSTRAINT)).plan("Constraint")
        => constraints;
    // The least number of instances is the count by default.
    scaling: Option<Scaling> = field("Scaling", "scaling", Block(One, &SCALING)).plan("Scaling")
        => scaling by later;
    restart_policy: Option<RestartPolicy> = field("RestartPolicy", "restart", Block(One, &RESTART)).plan("RestartPolicy")
        => restart;
    #[serde(with = "null")]
    // The restart policy of a task is the group's by default, so tasks are read after their group.
    tasks: Vec<Task> = field("Tasks", "task", Block(Many, &TASK)) => tasks by later;
    ephemeral_disk: Option<EphemeralDisk> =
        field("EphemeralDisk", "ephemeral_disk", Block(One, &EPHEMERAL_DISK)).plan("EphemeralDisk")
        => ephemeral_disk;
    #[serde(with = "null")]
    meta: BTreeMap<String, String> = field("Meta", "meta", Value(TextMap)) => meta;
    reschedule_policy: Option<Reschedule> =
        field("ReschedulePolicy", "reschedule", Block(One, &RESCHEDULE)).plan("ReschedulePolicy")
        => reschedule;
    #[serde(with = "null")]
    affinities: Vec<Affinity> = field("Affinities", "affinity", Block(Conditions, &AFFINITY)).plan("Affinity")
        => affinities;
    #[serde(with = "null")]
    spreads: Vec<Spread> = field("Spreads", "spread", Block(Many, &SPREAD)).plan("Spread") => spreads;
    #[serde(with = "null")]
    networks: Vec<Network> = field("Networks", "network", Block(Many, &NETWORK)).plan("Network")
        => network;
    consul: Null = field("Consul", "", Block(One, &EMPTY)).plan("Consul");
    services: Null = field("Services", "", Block(ManyByName, &SERVICE)).plan("Service");
    #[serde(with = "null")]
    volumes: BTreeMap<String, Volume> = field("Volumes", "volume", Block(Named, &VOLUME)).plan("Volume")
        => volumes;
    /// Nanoseconds.
    shutdown_delay: Option<i64> = field("ShutdownDelay", "shutdown_delay", Value(Duration)).compared(InBoth)
        => shutdown_delay;
    // The next two are Nomad's older fields for values of `disconnect`. The reader of `disconnect` reads them.
    /// Nanoseconds.
    stop_after_client_disconnect: Option<i64> =
        field("StopAfterClientDisconnect", "stop_after_client_disconnect", Value(Duration)).compared(InBoth);
    /// Nanoseconds.
    max_client_disconnect: Option<i64> = field("MaxClientDisconnect", "max_client_disconnect", Value(Duration));
    disconnect: Option<Disconnect> = field("Disconnect", "disconnect", Block(One, &DISCONNECT)).plan("Disconnect")
        => disconnect;
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    prevent_reschedule_on_lost: bool = field("PreventRescheduleOnLost", "prevent_reschedule_on_lost", Value(Bool));
}

job_block! {
    /// Disk shared by a group's tasks.
    #[derive(Eq)]
    EphemeralDisk of domain::EphemeralDisk;
    EPHEMERAL_DISK {}

    sticky: bool = field("Sticky", "sticky", Value(Bool)) => sticky;
    size_mb: u32 = field("SizeMB", "size", Value(Int)) => size;
    migrate: bool = field("Migrate", "migrate", Value(Bool)) => migrate;
}
