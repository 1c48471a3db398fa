//! The work that a client wants done.

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

/// The work that a client wants done. As JSON its fields have Diego's names; those below `priority` are Muster's own.
///
/// A definition never changes once it is accepted. A field that is not here is refused by name when it is read.
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
    /// Memory limit in MiB for the task as a whole. 0 leaves only the limit of all tasks of its node together, and is
    /// counted as the least that a job may ask for.
    #[serde(default)]
    pub memory_mb: i32,
    /// 1 to 100: its weight against other tasks, and the MHz that are counted in placement; 0 means 100.
    #[serde(default)]
    pub cpu_weight: u32,
    /// Processes at once; 0 means the node's default.
    #[serde(default)]
    pub max_pids: i32,
    /// Refused unless false: tasks share the kernel.
    #[serde(default)]
    pub privileged: bool,
    /// Names its lines, and comes before its failure reasons. Metadata of its job, and a header of its log.
    #[serde(default)]
    pub log_source: String,
    /// The client's name for the log: metadata of its job, and a header of its log. Without it the log is kept all the
    /// same, where Diego throws it away.
    #[serde(default)]
    pub log_guid: String,
    /// The client's name for the metrics: metadata of its job, and a label of its node's samples. Without it the task
    /// has no samples, since nothing would bound how many there are.
    #[serde(default)]
    pub metrics_guid: String,
    /// A file, as the task sees it, whose first bytes are the result.
    #[serde(default)]
    pub result_file: String,
    /// Gets a `POST` when the task is completed.
    #[serde(default)]
    pub completion_callback_url: String,
    /// Returned as it is.
    #[serde(default)]
    pub annotation: String,
    /// Rules for outgoing traffic. None: nothing may go out. The task has a network of its own. Its IPv6 ends there: the
    /// bridge drops it.
    #[serde(default)]
    pub egress_rules: Vec<EgressRule>,
    /// The task goes to nodes whose metadata `placement_tags` has the same tags, and to no others.
    #[serde(default)]
    pub placement_tags: Vec<String>,

    /// 1 to 100, higher goes first.
    #[serde(default = "default_priority")]
    pub priority: u8,
    /// Milliseconds from being desired in which it must start; 0 means the cluster's.
    #[serde(default)]
    pub start_timeout_ms: u64,
    /// Milliseconds for which it is kept once it is completed; 0 means the cluster's.
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
    /// Diego's behaviour where no result file is there: the task has failed. Else it is a note.
    #[serde(default)]
    pub result_required: bool,
}

fn default_priority() -> u8 {
    DEFAULT_PRIORITY
}
