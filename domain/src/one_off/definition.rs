//! The work that a client requests.

use serde::{Deserialize, Serialize};

use super::action::Action;
use super::egress::EgressRule;
use crate::job::DEFAULT_PRIORITY;

/// A variable of a process's environment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EnvVar {
    pub name: String,
    #[serde(default)]
    pub value: String,
}

/// A condition on the node, in the words of job files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Condition {
    /// Left side, such as `${attr.kernel.name}`.
    pub attribute: String,
    /// The comparison; default `=`.
    #[serde(default)]
    pub operator: String,
    #[serde(default)]
    pub value: String,
}

/// The work that a client requests. As JSON its fields have Diego's names; the fields from `priority` on are Muster's
/// own.
///
/// A definition never changes once it is accepted. The reader refuses an unknown field by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Definition {
    /// `preloaded:host` (the node's own directories), `preloaded:NAME` (the directory that the node's
    /// metadata `rootfs.NAME` names) or `file:///DIRECTORY`.
    pub rootfs: String,
    /// Environment of every process.
    #[serde(default)]
    pub env: Vec<EnvVar>,
    pub action: Action,
    /// Disk in MiB, counted in placement; 0 means no limit, counted as the least that a job may ask for.
    #[serde(default)]
    pub disk_mb: i32,
    /// Memory limit in MiB for the task as a whole. 0 leaves only the common limit of all tasks of the node. Placement
    /// then counts the least memory that a job may ask for.
    #[serde(default)]
    pub memory_mb: i32,
    /// 1 to 100: the CPU weight relative to other tasks, and the MHz that placement counts; 0 means 100.
    #[serde(default)]
    pub cpu_weight: u32,
    /// The limit on simultaneous processes; 0 means the node's default.
    #[serde(default)]
    pub max_pids: i32,
    /// Must be false: tasks share the kernel.
    #[serde(default)]
    pub privileged: bool,
    /// The source name of the task's log lines, and the prefix of its failure reasons. It is metadata of the job and a
    /// header of the log.
    #[serde(default)]
    pub log_source: String,
    /// The client's name for the log: metadata of the job, and a header of the log. Without a name the log is kept all
    /// the same, where Diego drops it.
    #[serde(default)]
    pub log_guid: String,
    /// The client's name for the metrics: metadata of the job, and a label of the node's samples. Without a name the
    /// task has no samples, because their number would have no bound.
    #[serde(default)]
    pub metrics_guid: String,
    /// A file, as the task sees it. Its first bytes are the result.
    #[serde(default)]
    pub result_file: String,
    /// The URL that receives a `POST` when the task is completed.
    #[serde(default)]
    pub completion_callback_url: String,
    /// Opaque text that responses return unchanged.
    #[serde(default)]
    pub annotation: String,
    /// Rules for outgoing traffic. Without rules, all outgoing traffic is denied. The task has a network of its own.
    /// The bridge drops its IPv6 traffic.
    #[serde(default)]
    pub egress_rules: Vec<EgressRule>,
    /// Tags for placement. The task runs only on nodes whose metadata `placement_tags` has the same tags.
    #[serde(default)]
    pub placement_tags: Vec<String>,

    /// 1 to 100; a higher priority goes first. Default: the default priority of jobs.
    #[serde(default = "default_priority")]
    pub priority: u8,
    /// Milliseconds from the request in which the task must start; 0 means the cluster's default.
    #[serde(default)]
    pub start_timeout_ms: u64,
    /// Milliseconds for which the task is kept after completion; 0 means the cluster's default.
    #[serde(default)]
    pub retention_ms: u64,
    /// Datacenters it may run in; none means all.
    #[serde(default)]
    pub datacenters: Vec<String>,
    /// The node pool it is confined to; empty means the default one.
    #[serde(default)]
    pub node_pool: String,
    /// Further conditions on the node.
    #[serde(default)]
    pub constraints: Vec<Condition>,
    /// Whether a missing result file fails the task, as in Diego. Otherwise the end carries a note.
    #[serde(default)]
    pub result_required: bool,
}

fn default_priority() -> u8 {
    DEFAULT_PRIORITY
}
