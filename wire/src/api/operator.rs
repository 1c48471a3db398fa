//! The cluster's own configuration, namespaces, metrics.

#![expect(missing_docs, reason = "fields carry Nomad's names and meaning")]

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The answer to `GET /v1/operator/raft/configuration`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct RaftConfiguration {
    pub servers: Vec<RaftServer>,
    pub index: u64,
}

/// A voter or learner.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct RaftServer {
    #[serde(rename = "ID")]
    pub id: String,
    pub node: String,
    pub address: String,
    pub leader: bool,
    pub voter: bool,
    pub raft_protocol: String,
}

/// The answer to `GET /v1/operator/scheduler/configuration`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct SchedulerResponse {
    pub scheduler_config: SchedulerConfig,
    pub index: u64,
    pub last_contact: u64,
    pub known_leader: bool,
}

/// How places are chosen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct SchedulerConfig {
    pub scheduler_algorithm: String,
    pub preemption_config: PreemptionConfig,
    pub memory_oversubscription_enabled: bool,
    pub reject_job_registration: bool,
    pub pause_eval_broker: bool,
    pub create_index: u64,
    pub modify_index: u64,
}

/// Which job types may evict others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
#[expect(clippy::struct_excessive_bools, reason = "the shape is Nomad's")]
pub struct PreemptionConfig {
    pub system_scheduler_enabled: bool,
    pub sys_batch_scheduler_enabled: bool,
    pub batch_scheduler_enabled: bool,
    pub service_scheduler_enabled: bool,
}

/// A namespace. There is one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Namespace {
    pub name: String,
    pub description: String,
    pub quota: String,
    pub hash: String,
    pub create_index: u64,
    pub modify_index: u64,
}

/// The answer to `GET /v1/metrics`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Metrics {
    /// RFC 3339.
    pub timestamp: String,
    pub gauges: Vec<Gauge>,
    pub points: Vec<Gauge>,
    pub counters: Vec<Gauge>,
    pub samples: Vec<Gauge>,
}

/// A number that goes up and down.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Gauge {
    pub name: String,
    pub value: f64,
    pub labels: BTreeMap<String, String>,
}
