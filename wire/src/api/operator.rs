//! The cluster's own configuration, namespaces, metrics.

#![expect(missing_docs, reason = "fields carry Nomad's names and meaning")]

mod network;
mod scheduler;

use std::collections::BTreeMap;

use muster_domain::id::NodeId;
use muster_domain::node::NodeCollected;
use muster_domain::saturating;
use serde::{Deserialize, Serialize};

use crate::api::route::Route;

pub use network::{ClusterPolicy, ClusterPolicySetResponse, read_cluster_policy};
pub use scheduler::{
    PreemptionConfig, SchedulerConfig, SchedulerResponse, SchedulerSetResponse, read_scheduler,
};

/// Routes of the whole cluster.
pub const ROUTES: &[Route] = &[
    Route::read("/v1/namespaces"),
    Route::read("/v1/namespace/{name}"),
    Route::write("/v1/system/gc"),
    Route::write("/v1/system/reconcile/summaries"),
    Route::read("/v1/metrics"),
    Route::read("/v1/operator/raft/configuration"),
    Route {
        path: "/v1/operator/raft/peer",
        methods: &["PUT", "POST", "DELETE"],
    },
    Route::write("/v1/operator/raft/init"),
    Route::write("/v1/operator/raft/transfer-leadership"),
    Route::read("/v1/operator/autopilot/health"),
    Route::read("/v1/operator/check"),
    Route::write("/v1/operator/clock/confirm"),
    Route {
        path: "/v1/operator/snapshot",
        methods: &["GET", "PUT", "POST"],
    },
    Route {
        path: "/v1/operator/network/policy",
        methods: &["GET", "PUT", "POST"],
    },
    Route {
        path: "/v1/operator/scheduler/configuration",
        methods: &["GET", "PUT", "POST"],
    },
];

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
    /// The server's QUIC address.
    pub address: String,
    pub leader: bool,
    pub voter: bool,
    pub raft_protocol: String,
    /// The server's HTTP address. Not in Nomad.
    #[serde(rename = "HTTPAddress")]
    pub http_address: String,
}

/// The body of `PUT /v1/operator/raft/peer`. Not in Nomad, whose servers join by gossip.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AddServerRequest {
    /// The server's QUIC address: host and port.
    pub address: String,
}

/// A server in [`TransferResponse`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct RaftIdAddress {
    #[serde(rename = "ID")]
    pub id: String,
    pub name: String,
    pub address: String,
}

/// The answer to `PUT /v1/operator/raft/transfer-leadership`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct TransferResponse {
    pub from: RaftIdAddress,
    pub to: RaftIdAddress,
    /// Whether the requested server was the leader already.
    pub noop: bool,
}

/// The answer to `GET /v1/operator/autopilot/health`; with status 429 if a server is not well, as in Nomad.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct OperatorHealth {
    pub healthy: bool,
    /// The number of servers that may fail before writes are impossible.
    pub failure_tolerance: u32,
    pub servers: Vec<ServerHealth>,
    /// The leader's id; empty during an election.
    pub leader: String,
    pub voters: Vec<String>,
}

/// A server in [`OperatorHealth`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ServerHealth {
    #[serde(rename = "ID")]
    pub id: String,
    pub name: String,
    pub address: String,
    /// `alive` or `failed`.
    pub serf_status: String,
    pub version: String,
    pub leader: bool,
    /// Time since the leader's last contact with the server: `12ms`. Empty if there was none.
    pub last_contact: String,
    pub last_term: u64,
    /// The last entry on the server's disk, as far as the leader knows.
    pub last_index: u64,
    /// Entries that the server lacks, as far as the leader knows. Not in Nomad.
    pub entries_behind: u64,
    pub healthy: bool,
    pub voter: bool,
    /// RFC 3339.
    pub stable_since: String,
    /// The reason why the server is unhealthy; empty if it is healthy. Not in Nomad.
    pub reason: String,
}

/// The answer to `PUT /v1/operator/clock/confirm`. Not Nomad's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ClockConfirmed {
    /// The server that answered.
    pub server: String,
    /// The jump of the server's wall clock: `1h0m0s`. Empty without a jump.
    pub jump: String,
}

/// The answer to `GET /v1/operator/check`: the state of every server at one index. Not Nomad's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct StateCheck {
    /// The index at which states were compared.
    pub index: u64,
    /// Whether every server answered and has the same state.
    pub agree: bool,
    /// Tables that differ between any two servers.
    pub differing: Vec<String>,
    pub servers: Vec<StateCheckServer>,
    /// Whether the states agree and there are no faults.
    pub healthy: bool,
    /// Faults of the cluster and its servers: no leader, a server that does not advance, a full disk.
    pub faults: Vec<String>,
    /// The check of the state's rules; only with `deep`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deep: Option<DeepCheck>,
}

/// The rules of the state, applied to the state of one server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct DeepCheck {
    /// The index of the state.
    pub index: u64,
    /// The rules that do not hold, as text; the first hundred.
    pub broken: Vec<String>,
    /// The reason for a skipped check; empty if it was made.
    pub error: String,
}

/// A server in [`StateCheck`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct StateCheckServer {
    #[serde(rename = "ID")]
    pub id: String,
    pub name: String,
    pub address: String,
    /// The hash of the server's state; empty if the server sent none.
    pub hash: String,
    pub tables: BTreeMap<String, String>,
    /// Tables in which the server differs from most servers.
    pub differing: Vec<String>,
    /// Entries of the log that the server lacks, as far as the leader knows.
    pub entries_behind: u64,
    /// The reason for a missing hash; empty if there is a hash.
    pub error: String,
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

/// A value that can go up and down.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Gauge {
    pub name: String,
    pub value: f64,
    pub labels: BTreeMap<String, String>,
}

/// The answer to `PUT /v1/system/gc` with `wait` or `dry_run`. Not Nomad's, which answers nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct GcReport {
    /// Whether this is a dry run, which deletes nothing and reports what a collection would delete.
    pub dry_run: bool,
    /// Collected objects of the state, by kind.
    pub state: Vec<GcCount>,
    /// Bytes freed in the state, without parts that objects share; 0 for a dry run.
    pub bytes: u64,
    /// Log entries of the collection.
    pub slices: u64,
    /// Milliseconds that the collection took on the leader.
    pub took_ms: u64,
    /// Results of the nodes that are not down, by name.
    pub nodes: Vec<GcNode>,
}

/// The result of a garbage collection: the payload of an event. Nomad has no such event.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct GcRound {
    /// The kind of collected objects: `evals`, `jobs`, `deployments`, `nodes` or `one-offs`. `purge` stands for the
    /// objects of a job that a client purged.
    pub rule: String,
    /// The namespace of the purged job; otherwise empty.
    pub namespace: String,
    /// The id of the purged job; otherwise empty.
    #[serde(rename = "JobID")]
    pub job_id: String,
    /// Whether the collection completed. If not, another leader started it again.
    pub complete: bool,
    /// The time before which an object must have ended to be considered; nanoseconds since the epoch.
    pub before: u64,
    /// Time of the proposal of the first slice; nanoseconds since the epoch.
    pub began_at: u64,
    /// Time of the proposal of the last slice; nanoseconds since the epoch.
    pub ended_at: u64,
    /// Log entries of the collection.
    pub slices: u64,
    /// Deleted objects, by kind.
    pub freed: BTreeMap<String, u64>,
    /// Bytes of the deleted objects, without parts that objects share.
    pub bytes: u64,
    /// Considered objects that are kept, by reason.
    pub kept: BTreeMap<String, u64>,
}

/// The result of collections of finished allocations on a node: the payload of an event. Nomad has no such event.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NodeGcRound {
    #[serde(rename = "NodeID")]
    pub node_id: String,
    pub node_name: String,
    /// Time at which the first allocation was chosen; nanoseconds since the epoch, by the node's clock. It is unique
    /// among the reports of a node. So it identifies a report that was sent twice because a session broke before the
    /// answer.
    pub began_at: u64,
    /// Time at which the last collection was over and its files were deleted.
    pub ended_at: u64,
    /// Number of collections in the report. It is above one if they followed each other closely, or no server was in
    /// reach.
    pub rounds: u32,
    /// Time in which any was under way, in nanoseconds.
    pub took: u64,
    /// Allocations destroyed, by reason.
    pub destroyed: BTreeMap<String, u64>,
    /// Destroys that a driver or the kernel refused; they are tried again.
    pub refusals: u64,
    /// Files and directories deleted: inodes freed.
    pub inodes: u64,
    /// Bytes deleted with them.
    pub bytes: u64,
    /// Deletions that failed; they are tried again.
    pub delete_failures: u64,
    /// Allocations that stay, by reason.
    pub kept: BTreeMap<String, u64>,
    /// `gc_max_allocs` of the node.
    pub max_allocs: u64,
    /// The node's `gc_disk_usage_threshold`, in percent.
    pub disk_usage_threshold: u8,
    /// The node's `gc_inode_usage_threshold`, in percent.
    pub inode_usage_threshold: u8,
    /// Percent of the node's disk in use afterwards.
    pub disk_usage: u8,
    /// Percent of the node's inodes in use afterwards.
    pub inode_usage: u8,
}

impl NodeGcRound {
    /// The report of the node called `name`.
    #[must_use]
    pub fn new(node_id: NodeId, name: &str, report: &NodeCollected) -> Self {
        let NodeCollected {
            began_at,
            ended_at,
            rounds,
            took,
            destroyed,
            refusals,
            inodes,
            bytes,
            delete_failures,
            kept,
            thresholds,
            disk_percent,
            inode_percent,
        } = report;
        let destroyed = destroyed.iter();
        let kept = kept.iter();
        Self {
            node_id: node_id.to_string(),
            node_name: name.to_owned(),
            began_at: began_at.0,
            ended_at: ended_at.0,
            rounds: *rounds,
            took: saturating::nanos(*took),
            destroyed: destroyed
                .map(|(reason, count)| (reason.as_str().to_owned(), *count))
                .collect(),
            refusals: *refusals,
            inodes: *inodes,
            bytes: *bytes,
            delete_failures: *delete_failures,
            kept: kept
                .map(|(why, count)| (why.as_str().to_owned(), *count))
                .collect(),
            max_allocs: thresholds.allocs_max,
            disk_usage_threshold: thresholds.disk_percent,
            inode_usage_threshold: thresholds.inode_percent,
            disk_usage: *disk_percent,
            inode_usage: *inode_percent,
        }
    }
}

/// Counts of the objects of one kind: freed and kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct GcCount {
    pub kind: String,
    pub freed: u64,
    pub kept: Vec<GcKept>,
}

/// Objects that stay for one reason.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct GcKept {
    /// The reason, as text.
    pub reason: String,
    pub count: u64,
}

/// The result of a collection on one node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct GcNode {
    #[serde(rename = "NodeID")]
    pub node_id: String,
    pub name: String,
    pub freed: u64,
    /// Files and directories that were deleted meanwhile: inodes freed. Inodes and bytes are 0 for a dry run.
    pub inodes: u64,
    /// Their bytes on disk.
    pub bytes: u64,
    pub kept: Vec<GcKept>,
    /// The reason for a failed collection; empty without one.
    pub error: String,
}
