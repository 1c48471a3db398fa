//! Messages between agents and the control plane, over QUIC with ALPN [`ALPN_AGENT`].
//!
//! An agent opens one bidirectional *session* stream and sends [`FromAgent`]; the server answers with [`ToAgent`]. Any
//! server of the cluster serves it. For everything that reads from a node (logs, statistics) the server opens a
//! bidirectional stream to the agent. It sends one [`NodeRequest`] and reads [`NodeReply`]s until the stream ends. An
//! agent that wants the data of an allocation from another node asks on a stream of its own ([`AgentRequest`]).

mod disk;
mod exec;
mod history;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use muster_domain::alloc::{AllocReport, DesiredAlloc, RemoteAlloc};
use muster_domain::id::{AllocId, LogIndex, Timestamp};
use muster_domain::job::NetworkPolicy;
use muster_domain::node::{NodeCollected, NodeSecret, NodeSpec};
use serde::{Deserialize, Serialize};

pub use crate::task_stats::TaskStats;
pub use disk::{
    AgentReply, AgentRequest, DiskAck, DiskDir, DiskEntry, DiskPiece, DiskRequest, DiskSum,
    FileMeta,
};
pub use exec::{ExecExit, ExecInput, ExecPiece, ExecSession};
pub use history::{AllocHistory, HistoryPoint, TaskHistory};

/// The application protocol of agents.
pub const ALPN_AGENT: &[u8] = b"muster-agent/1";
/// The application protocol of servers among themselves.
pub const ALPN_RAFT: &[u8] = b"muster-raft/1";

/// From an agent, on its session stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum FromAgent {
    /// First message, and again whenever the fingerprint changes.
    Register {
        node: Box<NodeSpec>,
        /// The secret of the node, whose hash is in the fingerprint.
        secret: NodeSecret,
        /// Up to which index this agent knows everything that is wanted of its node; 0: nothing. The
        /// server sends what changed since, and never anything older.
        known: LogIndex,
    },
    /// The node is alive. Sent at least every third of the time to live.
    Heartbeat {
        /// The agent's number of this heartbeat, counted from 1 in each session.
        number: u64,
    },
    /// News of allocations; at most [`crate::limits::REPORT_BATCH_MAX`].
    Report {
        /// The agent's number of this message, counted from 1 in each session.
        sequence: u64,
        /// The news. Later entries about the same allocation win.
        reports: Vec<AllocReport>,
    },
    /// The result of collections of finished allocations. At most one message is under way, and at most one a minute is
    /// sent without a request.
    Collected {
        /// The agent's number of this message, counted with those of [`Self::Report`].
        sequence: u64,
        report: Box<NodeCollected>,
    },
}

/// About how many bytes a report takes, rather more than less: numbers, names of at most 128 bytes, and texts.
#[must_use]
pub fn report_bytes(report: &AllocReport) -> usize {
    /// Of a report, and of a task in it, besides the texts.
    const PART: usize = 256;
    /// Of an event besides its message: a handful of numbers.
    const EVENT: usize = 96;
    let events = report.task_states.iter().flat_map(|task| &task.events);
    let messages: usize = events.map(|event| EVENT + event.message.len()).sum();
    let end = report.end.as_ref().map_or(0, |end| {
        let texts = [
            &end.failure_reason,
            &end.failed_action,
            &end.result,
            &end.result_note,
        ];
        PART + texts.iter().map(|text| text.len()).sum::<usize>()
    });
    let remote = report.remote.iter();
    let remote: usize = remote.map(|remote| PART + remote.handle.len()).sum();
    let texts = report.client_description.len() + messages;
    (1 + report.task_states.len()) * PART + texts + end + remote
}

/// To an agent, on its session stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ToAgent {
    /// The node is registered.
    Registered {
        /// The cluster it belongs to.
        cluster: String,
        /// Time without a heartbeat after which the node is down.
        heartbeat_ttl: Duration,
        /// Where agents reach the servers of the cluster, this one among them.
        servers: Vec<SocketAddr>,
    },
    /// The server refuses the node, as every other would. The session ends.
    Refused {
        /// The reason, and the remedy.
        reason: String,
    },
    /// The leader has counted a heartbeat, and all before it.
    HeartbeatAck {
        number: u64,
        /// The node's lease: it is not taken for down before this time has passed since the heartbeat
        /// was *sent*, whatever server leads. The agent measures it on its own monotonic clock.
        lease: Duration,
    },
    /// Reports up to `sequence` are committed.
    ReportAck {
        /// The number of the newest committed report message.
        sequence: u64,
    },
    /// Allocations that the node must run or stop.
    Desired {
        /// The state these come from.
        index: LogIndex,
        /// Changed allocations, at most [`crate::limits::DESIRED_BATCH_MAX`] a message.
        allocs: Vec<DesiredAlloc>,
        /// Allocations that are wanted as the agent knows them already; at most
        /// [`crate::limits::UNCHANGED_BATCH_MAX`] a message.
        unchanged: Vec<AllocId>,
        /// Allocations that the control plane has forgotten: stop and destroy them.
        gone: Vec<AllocId>,
        /// If this message ends a set: how many allocations the node has at `index`. An agent that has
        /// heard of as many knows everything up to `index`.
        complete: Option<u32>,
        /// Of those `allocs` that have remote tasks which another agent started or manages. Of all others there
        /// are none.
        remote: Vec<RemoteAlloc>,
    },
    /// Destroy every terminal allocation now, whatever the thresholds say.
    CollectGarbage,
    /// The servers of the cluster have changed.
    Servers {
        /// Where agents reach them.
        servers: Vec<SocketAddr>,
    },
    /// This server cannot serve the node for a while. The session ends.
    TryElsewhere {
        reason: String,
        /// Not to come back here before.
        after: Duration,
    },
    /// The network policy for tasks of every node where neither job nor node says it. It is sent before the first
    /// [`Self::Desired`] of a session, and when it changes. A cluster that never had such a policy sends none.
    ClusterPolicy {
        /// The index of the entry that wrote it. An agent that received a later one gets no older one.
        index: LogIndex,
        policy: Box<NetworkPolicy>,
    },
    /// The addresses on which servers listen for clients, by TCP. No task is to reach them unless its node allows it.
    /// They are sent before the first [`Self::Desired`] of a session, and when they change. An unspecified address
    /// stands for that of the sending server.
    Apis {
        /// Addresses of HTTP, and of Diego's wire where it is spoken.
        addrs: Vec<SocketAddr>,
    },
}

/// A question to a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeRequest {
    /// Output of a task.
    Logs(LogsRequest),
    /// Resource usage of the node.
    NodeStats,
    /// Resource usage of an allocation.
    AllocStats { alloc_id: AllocId },
    /// Destroy what is over, whatever the thresholds say: [`NodeReply::Collected`] when that is done and its space is
    /// free, [`NodeReply::Idle`] meanwhile.
    CollectGarbage {
        /// Only say what would be done.
        dry_run: bool,
    },
    /// Packets that the network policies of an allocation's tasks allowed and refused.
    AllocNetwork {
        alloc_id: AllocId,
        /// Only verdicts with a greater number.
        after: u64,
    },
    /// Output of a task, in [`LogPiece`]s. The reader acknowledges with [`LogAck`] on the same stream the output that
    /// it passed on. So the output on its way to a slow reader is bounded and leaves room for everything else.
    ReadLogs(LogsRequest),
    /// Run a command in a task, with its input and output as streams.
    Exec(ExecSession),
    /// Send a signal to tasks: [`NodeReply::Signaled`] when that is done.
    Signal {
        alloc_id: AllocId,
        /// One task; every one that runs unless given.
        task: Option<String>,
        /// By name or number.
        signal: String,
    },
    /// Resources that an allocation used in the last minutes.
    AllocHistory { alloc_id: AllocId },
    /// The data of an allocation that has ended, in [`DiskPiece`]s. The reader acknowledges with [`DiskAck`] on the
    /// same stream the data that it unpacked.
    ReadDisk(DiskRequest),
}

/// An output of a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogsRequest {
    pub alloc_id: AllocId,
    pub task: String,
    /// The stream: one of its two.
    pub stream: LogStream,
    pub from: LogOrigin,
    /// Whether to go on when the end is reached, until the task is gone or the stream is closed.
    pub follow: bool,
}

/// One of a task's two outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LogStream {
    Stdout,
    Stderr,
}

muster_domain::text_enum!(pub LogStream {
    Stdout => "stdout",
    Stderr => "stderr",
});

/// Where to begin reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LogOrigin {
    /// This many bytes after the oldest byte kept.
    Start(u64),
    /// This many bytes before the newest.
    End(u64),
    /// At this offset in the stream, counted from the first byte that the task ever wrote.
    At(u64),
    /// At what is latest of these; with none of them at the oldest byte kept.
    Recent {
        /// This many lines before the newest.
        lines: Option<u64>,
        /// The first line that was taken at this time or later.
        since: Option<Timestamp>,
    },
}

/// Bytes of a log, in answer to [`NodeRequest::ReadLogs`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogPiece {
    /// The file they are in, such as `web.stdout.3`.
    pub file: String,
    /// Position in that file after these bytes.
    pub offset: u64,
    /// Position in the stream after these bytes, counted from the first byte that the task ever wrote.
    pub position: u64,
    /// Time at which the agent took them from the task, or up to a tenth of a second earlier. `None` if that is lost.
    pub at: Option<Timestamp>,
    /// The bytes; at most [`crate::limits::LOG_CHUNK_BYTES_MAX`].
    pub data: Vec<u8>,
}

impl LogPiece {
    /// The size that counts in [`LogAck`]: its bytes and a flat rate for the rest of the message.
    #[must_use]
    pub fn cost(&self) -> u64 {
        const REST_OF_MESSAGE_BYTES: u64 = 128;
        self.data.len() as u64 + REST_OF_MESSAGE_BYTES
    }
}

/// An acknowledgement by the reader of a log: it passed pieces on. It is sent at the latest when they add up to
/// [`crate::limits::LOG_TAKEN_BYTES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogAck {
    /// The sum of their [`LogPiece::cost`].
    pub bytes: u64,
}

/// The kind of a node's failure. A server chooses the HTTP status by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FailureKind {
    /// None of the others.
    Other,
    /// The thing asked for does not exist.
    NotFound,
    /// The node serves as many requests of this kind as it takes.
    TooMany,
    /// The node cannot serve the request for a while.
    Unavailable,
}

/// An answer from a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum NodeReply {
    /// Bytes of a log; at most [`crate::limits::LOG_CHUNK_BYTES_MAX`].
    LogData {
        /// The file they are in, such as `web.stdout.3`.
        file: String,
        /// Position in that file after these bytes.
        offset: u64,
        /// The bytes.
        data: Vec<u8>,
    },
    /// Bytes were rotated away before they could be read.
    LogGap { bytes: u64 },
    /// Nothing happened for a while; the node is alive.
    Idle,
    /// Resource usage of the node.
    NodeStats(Box<NodeStats>),
    /// Resource usage of an allocation.
    AllocStats(Box<AllocStats>),
    /// The question cannot be answered.
    Failed {
        /// The reason, and the remedy.
        reason: String,
        /// The kind of failure.
        kind: FailureKind,
    },
    /// The result of a collection, or of a dry run.
    Collected {
        freed: u64,
        /// Files and directories deleted meanwhile: inodes given back.
        inodes: u64,
        /// Their bytes on disk.
        bytes: u64,
        /// Allocations that stay, by reason; without those that run.
        kept: Vec<(String, u64)>,
    },
    /// Packets that network policies allowed and refused.
    AllocNetwork(Box<AllocNetwork>),
    /// Bytes of a log.
    LogPiece(LogPiece),
    /// Bytes of a log that are not there.
    LogMissing {
        /// Position in the stream after them.
        position: u64,
        bytes: u64,
        /// They were never kept, for want of room or because they were more than the task's rate. Else they were
        /// rotated away before they were read.
        dropped: bool,
    },
    /// All of a log was sent: it ends here, or if it was followed, its task is over.
    LogEnd {
        /// Position in the stream.
        position: u64,
    },
    /// The command of a session runs.
    ExecOpened,
    /// Bytes that it wrote.
    ExecOutput(ExecPiece),
    /// Input of a session was passed on to it.
    ExecTaken {
        /// Its [`ExecInput::cost`], together.
        bytes: u64,
    },
    /// It ended; nothing follows.
    ExecExited(ExecExit),
    /// A signal was sent.
    Signaled { tasks: Vec<String> },
    /// Resources that an allocation used in the last minutes.
    AllocHistory(Box<AllocHistory>),
    /// Some of an allocation's data.
    DiskPiece(DiskPiece),
    /// All of them were sent.
    DiskEnd(DiskSum),
}

/// Packets that the network policies of an allocation's tasks allowed and refused.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocNetwork {
    /// Its own address, if it has a network of its own.
    pub address: Option<String>,
    /// Rules that met a packet, of tasks that run.
    pub rules: Vec<RuleCount>,
    /// The newest verdicts that were told, oldest first: refusals, and what rules with `log` let pass. At most
    /// one in 10 ms of a rule, task and CPU.
    pub verdicts: Vec<Verdict>,
    /// The number of the allocation's newest verdict.
    pub last: u64,
}

/// Packets that one rule of one task met since the task has its policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleCount {
    pub task: String,
    /// Whether the rule is for sent packets; else it is for received ones.
    pub egress: bool,
    pub rule: String,
    /// Whether it lets packets pass.
    pub allows: bool,
    pub packets: u64,
    /// Their bytes, IP headers included.
    pub bytes: u64,
}

/// A packet, or an attempt to connect, that was judged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// Its place in the order of the allocation's verdicts, from 1 at the agent's start: where numbers are left out,
    /// verdicts are missing.
    pub number: u64,
    /// Time of the verdict.
    pub at: Timestamp,
    pub task: String,
    /// Whether the task sent it.
    pub egress: bool,
    /// The rule that decided.
    pub rule: String,
    pub allowed: bool,
    /// The number of the IP protocol.
    pub protocol: u8,
    pub remote: IpAddr,
    /// Its port; 0 without ports.
    pub remote_port: u16,
    /// The task's port; 0 without ports, and before a connection has one.
    pub local_port: u16,
    /// Bytes; 0 for an attempt to connect.
    pub bytes: u32,
}

/// Resource usage of a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeStats {
    /// Time of the measurement.
    pub at: Timestamp,
    /// Bytes of memory: total, available, free.
    pub memory_total_bytes: u64,
    /// Bytes available to new processes.
    pub memory_available_bytes: u64,
    /// Bytes free.
    pub memory_free_bytes: u64,
    pub uptime: Duration,
    /// CPU busy since boot, over all cores.
    pub cpu_busy: Duration,
    /// CPU idle since boot, over all cores.
    pub cpu_idle: Duration,
    /// The file system of the allocation directories: bytes in all.
    pub disk_total_bytes: u64,
    /// The file system of the allocation directories: bytes available.
    pub disk_available_bytes: u64,
    /// Every task of the node, by allocation, from one collection.
    pub allocs: Vec<AllocStats>,
    /// Events that the eBPF programs could not count; `None` if there are no programs.
    pub ebpf_lost: Option<u64>,
    /// CPU time the agent's own process used.
    pub agent_cpu: Duration,
    /// Resident bytes of the agent's own process.
    pub agent_resident_bytes: u64,
    /// State and counters of the collection of finished allocations.
    pub collection: NodeCollection,
    /// Limits of tasks that were found to be others than theirs, and set again, since the agent's start.
    pub limits_repaired: u64,
    /// Reasons for which the node takes no new work, by name.
    pub conditions: BTreeMap<String, String>,
    /// Entries of eBPF maps whose cgroup was gone, and that were removed, since the agent's start.
    pub ebpf_stale_removed: u64,
}

/// Collection of finished allocations on a node; counts are since the agent's start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeCollection {
    /// Finished allocations that are there.
    pub finished: u64,
    /// Those that are being destroyed.
    pub under_way: u64,
    /// Those whose driver or kernel did not let go of them, and which are tried again.
    pub refused: u64,
    /// Allocations destroyed, by reason.
    pub destroyed: BTreeMap<String, u64>,
    /// Destroys that were refused.
    pub refusals: u64,
    /// Time at which the newest was destroyed, and the reason.
    pub last: Option<(Timestamp, String)>,
    /// Destroyed directories whose deletion is not over.
    pub deleting: u64,
    /// Files and directories deleted: inodes given back.
    pub deleted_inodes: u64,
    /// Bytes deleted with them.
    pub deleted_bytes: u64,
    pub delete_failures: u64,
    /// Time that all threads together spent on deleting.
    pub delete_busy: Duration,
    /// Directories that cannot be deleted at present, each with the reason; a few of them.
    pub stuck: Vec<(String, String)>,
}

/// Resource usage of an allocation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AllocStats {
    pub alloc_id: AllocId,
    /// Time of the measurement.
    pub at: Timestamp,
    /// Its tasks by name.
    pub tasks: BTreeMap<String, TaskStats>,
    /// Its ephemeral disk; `None` while its directories are being made.
    pub disk: Option<AllocDisk>,
}

/// The ephemeral disk of an allocation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocDisk {
    /// How its limit is held: `quota` by the file system, `accounted` by measuring, `off` not at all.
    pub enforcement: String,
    /// The reason why the file system does not enforce the limit; empty if it does.
    pub reason: String,
    /// Most bytes.
    pub limit_bytes: u64,
    pub limit_inodes: u64,
    /// Bytes in use; `None` if that was not measured.
    pub used_bytes: Option<u64>,
    pub used_inodes: Option<u64>,
    /// Time of the measurement; `None` if it was not measured.
    pub measured_at: Option<Timestamp>,
}

/// How long things took, by powers of two.
///
/// Counts of buckets: all below [`Histogram::FIRST_BOUND_NS`], then below twice of that, and so on; the last of
/// [`Histogram::BUCKETS`] has no bound. Empty buckets at the end are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Histogram {
    /// How many there were.
    pub counts: Vec<u64>,
    pub sum: Duration,
}

impl Histogram {
    /// How many buckets there are.
    pub const BUCKETS: usize = 24;
    /// The bound of the first bucket in nanoseconds; times in it are below.
    pub const FIRST_BOUND_NS: u64 = 1_024;

    /// The bound of `bucket` in nanoseconds; times in it are below. `None` for the last.
    #[must_use]
    pub fn bound_ns(bucket: usize) -> Option<u64> {
        (bucket + 1 < Self::BUCKETS).then(|| Self::FIRST_BOUND_NS << bucket)
    }
}

/// Time in which processes waited for one resource, since the task began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pressure {
    /// At least one of them.
    pub some: Duration,
    /// All that were not idle, at once; `None` where the kernel does not say.
    pub full: Option<Duration>,
}
