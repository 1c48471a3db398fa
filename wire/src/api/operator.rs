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
    /// Where it speaks QUIC.
    pub address: String,
    pub leader: bool,
    pub voter: bool,
    pub raft_protocol: String,
    /// Where it speaks HTTP. Not Nomad's.
    #[serde(rename = "HTTPAddress")]
    pub http_address: String,
}

/// The body of `PUT /v1/operator/raft/peer`. Not Nomad's, whose servers join by gossip.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AddServerRequest {
    /// Where the server speaks QUIC: host and port.
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
    /// The server asked for led already.
    pub noop: bool,
}

/// The answer to `GET /v1/operator/autopilot/health`; with status 429 if a server is not well, as in Nomad.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct OperatorHealth {
    pub healthy: bool,
    /// How many servers may fail before nothing can be written.
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
    /// Since the leader heard of it: `12ms`. Empty if it never did.
    pub last_contact: String,
    pub last_term: u64,
    /// The last entry on its disk, as far as the leader knows.
    pub last_index: u64,
    /// Entries that it lacks, as far as the leader knows. Not Nomad's.
    pub entries_behind: u64,
    pub healthy: bool,
    pub voter: bool,
    /// RFC 3339.
    pub stable_since: String,
    /// The reason why it is not well; empty if it is. Not Nomad's.
    pub reason: String,
}

/// The answer to `PUT /v1/operator/clock/confirm`. Not Nomad's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ClockConfirmed {
    /// The server that was asked.
    pub server: String,
    /// By how much its wall clock had jumped: `1h0m0s`. Empty if it had not.
    pub jump: String,
}

/// The answer to `GET /v1/operator/check`: the state of every server at one index. Not Nomad's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct StateCheck {
    /// The index at which states were compared.
    pub index: u64,
    /// Whether every server was asked, answered, and has the same state.
    pub agree: bool,
    /// Tables that differ between any two servers.
    pub differing: Vec<String>,
    pub servers: Vec<StateCheckServer>,
    /// Whether the states agree and nothing else was found.
    pub healthy: bool,
    /// Faults of the cluster and its servers: no leader, a server that does not advance, a full disk.
    pub faults: Vec<String>,
    /// With `deep`: the rules of the state.
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
    /// The reason for a check that was not made; empty if it was.
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
    /// The hash of its state; empty if it gave none.
    pub hash: String,
    pub tables: BTreeMap<String, String>,
    /// Tables in which it differs from most servers.
    pub differing: Vec<String>,
    /// Entries of the log that it lacks, as far as the leader knows.
    pub entries_behind: u64,
    /// The reason for a missing hash; empty if it gave one.
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

/// A number that goes up and down.
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
    /// Nothing was done: this is what would be.
    pub dry_run: bool,
    /// Of the state, by kind.
    pub state: Vec<GcCount>,
    /// How large what was freed of the state is, in bytes, without what objects shared; 0 of a dry run.
    pub bytes: u64,
    /// Log entries it took.
    pub slices: u64,
    /// Milliseconds it took the leader.
    pub took_ms: u64,
    /// Of the nodes that are not down, by name.
    pub nodes: Vec<GcNode>,
}

/// The result of a garbage collection: the payload of an event. Nomad has no such event.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct GcRound {
    /// The kind of objects it looked at: `evals`, `jobs`, `deployments`, `nodes` or `one-offs`. `purge` stands for the
    /// objects of a job that a client purged.
    pub rule: String,
    /// The namespace of the job that was purged; else empty.
    pub namespace: String,
    /// The id of the job that was purged; else empty.
    #[serde(rename = "JobID")]
    pub job_id: String,
    /// Whether it came to its end. If not, another leader began anew.
    pub complete: bool,
    /// The time before which an object must have ended to be looked at; nanoseconds since the epoch.
    pub before: u64,
    /// Time of its first slice's proposal; nanoseconds since the epoch.
    pub began_at: u64,
    /// Time of its last slice's proposal; nanoseconds since the epoch.
    pub ended_at: u64,
    /// Log entries it took.
    pub slices: u64,
    /// Objects that are gone, by kind.
    pub freed: BTreeMap<String, u64>,
    /// How large they were in bytes, without what they shared.
    pub bytes: u64,
    /// Objects that were looked at and stay, by reason.
    pub kept: BTreeMap<String, u64>,
}

/// The result of collections of finished allocations on a node: the payload of an event. Nomad has no such event.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NodeGcRound {
    #[serde(rename = "NodeID")]
    pub node_id: String,
    pub node_name: String,
    /// When the first destroy was chosen; nanoseconds since the epoch, by the node's clock. No two of a node have the
    /// same: what comes twice, because a session broke before its answer, is known by it.
    pub began_at: u64,
    /// Time at which the last was over and its remains were deleted.
    pub ended_at: u64,
    /// How many collections these are: more than one if they followed each other closely, or no server was in reach.
    pub rounds: u32,
    /// Time in which any was under way, in nanoseconds.
    pub took: u64,
    /// Allocations destroyed, by what asked for it.
    pub destroyed: BTreeMap<String, u64>,
    /// Destroys that a driver or the kernel refused; they are tried again.
    pub refusals: u64,
    /// Files and directories deleted: inodes given back.
    pub inodes: u64,
    /// Bytes deleted with them.
    pub bytes: u64,
    /// Deletions that failed; they are tried again.
    pub delete_failures: u64,
    /// Allocations that stay, by reason.
    pub kept: BTreeMap<String, u64>,
    /// `gc_max_allocs` of the node.
    pub max_allocs: u64,
    /// Its `gc_disk_usage_threshold`, in percent.
    pub disk_usage_threshold: u8,
    /// Its `gc_inode_usage_threshold`, in percent.
    pub inode_usage_threshold: u8,
    /// Percent of its disk in use afterwards.
    pub disk_usage: u8,
    /// Percent of its inodes in use afterwards.
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
    /// Files and directories that were deleted meanwhile: inodes given back. 0 of a dry run, as bytes.
    pub inodes: u64,
    /// Their bytes on disk.
    pub bytes: u64,
    pub kept: Vec<GcKept>,
    /// The reason for a failed collection; empty without one.
    pub error: String,
}
