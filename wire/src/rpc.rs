//! Messages between agents and the control plane, over QUIC with ALPN [`ALPN_AGENT`].
//!
//! An agent opens one bidirectional *session* stream and sends [`FromAgent`]; the server answers with [`ToAgent`]. Any
//! server of the cluster serves sessions. To read from a node (logs, statistics), the server opens a bidirectional
//! stream to the agent. It sends one [`NodeRequest`] and reads [`NodeReply`]s until the stream ends. An agent fetches
//! the data of an allocation on another node by a stream of its own ([`AgentRequest`]).

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

/// A message from an agent on its session stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum FromAgent {
    /// First message, and again whenever the fingerprint changes.
    Register {
        node: Box<NodeSpec>,
        /// The secret of the node, whose hash is in the fingerprint.
        secret: NodeSecret,
        /// The index up to which this agent has received all desired allocations of its node; 0: none. The server sends
        /// later changes, and never anything older.
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

/// The approximate size of a report in bytes, rounded up: numbers, names of at most 128 bytes, and texts.
#[must_use]
pub fn report_bytes(report: &AllocReport) -> usize {
    /// Bytes of a report, and of a task in it, besides the texts.
    const PART: usize = 256;
    /// Bytes of an event besides its message, which are a few numbers.
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

/// A message to an agent on its session stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ToAgent {
    /// The node is registered.
    Registered {
        /// The cluster of the server.
        cluster: String,
        /// Time without a heartbeat after which the node is down.
        heartbeat_ttl: Duration,
        /// The addresses of all servers of the cluster for agents.
        servers: Vec<SocketAddr>,
    },
    /// The server refuses the node, as every other would. The session ends.
    Refused {
        /// The reason, and the remedy.
        reason: String,
    },
    /// The leader has received a heartbeat, and all heartbeats before it.
    HeartbeatAck {
        number: u64,
        /// The node's lease. The node is not marked down before this time has passed since the heartbeat was *sent*,
        /// under any leader. The agent measures it on its own monotonic clock.
        lease: Duration,
    },
    /// Reports up to `sequence` are committed.
    ReportAck {
        /// The number of the newest committed report message.
        sequence: u64,
    },
    /// Allocations that the node must run or stop.
    Desired {
        /// The index of the state that the allocations are from.
        index: LogIndex,
        /// Changed allocations, at most [`crate::limits::DESIRED_BATCH_MAX`] a message.
        allocs: Vec<DesiredAlloc>,
        /// Desired allocations that are unchanged since the agent received them; at most
        /// [`crate::limits::UNCHANGED_BATCH_MAX`] per message.
        unchanged: Vec<AllocId>,
        /// Allocations that the control plane has deleted: the agent must stop and destroy them.
        gone: Vec<AllocId>,
        /// The number of allocations of the node at `index`, if this message ends a set. An agent that has received as
        /// many is up to date with `index`.
        complete: Option<u32>,
        /// Data for those of `allocs` whose remote tasks another agent started or manages. The other allocations have
        /// no such tasks.
        remote: Vec<RemoteAlloc>,
    },
    /// Asks the agent to destroy all terminal allocations now, regardless of the thresholds.
    CollectGarbage,
    /// The servers of the cluster have changed.
    Servers {
        /// The addresses of the servers for agents.
        servers: Vec<SocketAddr>,
    },
    /// This server cannot serve the node for a while. The session ends.
    TryElsewhere {
        reason: String,
        /// The time before which the agent must not reconnect to this server.
        after: Duration,
    },
    /// The cluster's network policy for tasks, where neither job nor node decides. It is sent before the first
    /// [`Self::Desired`] of a session, and after each change. A cluster that never had such a policy sends none.
    ClusterPolicy {
        /// The index of the entry that wrote the policy. An agent that received a later one gets no older one.
        index: LogIndex,
        policy: Box<NetworkPolicy>,
    },
    /// The TCP addresses on which servers listen for clients. Tasks may not connect to them unless their node allows
    /// it. The addresses are sent before the first [`Self::Desired`] of a session, and after each change. An
    /// unspecified address stands for the address of the sending server.
    Apis {
        /// Addresses of HTTP, and of Diego's protocol if it is enabled.
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
    /// Destroys terminal allocations, regardless of the thresholds. The agent answers [`NodeReply::Collected`] when
    /// their space is free, and [`NodeReply::Idle`] meanwhile.
    CollectGarbage {
        /// Whether the agent only reports what it would destroy.
        dry_run: bool,
    },
    /// Packets that the network policies of an allocation's tasks allowed and refused.
    AllocNetwork {
        alloc_id: AllocId,
        /// The number after which verdicts are requested.
        after: u64,
    },
    /// Requests the output of a task, in [`LogPiece`]s. The reader acknowledges forwarded output with [`LogAck`] on the
    /// same stream. So the output in flight to a slow reader is bounded and leaves room for other streams.
    ReadLogs(LogsRequest),
    /// Runs a command in a task, with its input and output as streams.
    Exec(ExecSession),
    /// Send a signal to tasks: [`NodeReply::Signaled`] when that is done.
    Signal {
        alloc_id: AllocId,
        /// The task; `None` means every running task.
        task: Option<String>,
        /// By name or number.
        signal: String,
    },
    /// Resources that an allocation used in the last minutes.
    AllocHistory { alloc_id: AllocId },
    /// Requests the data of an ended allocation, in [`DiskPiece`]s. The reader acknowledges unpacked data with
    /// [`DiskAck`] on the same stream.
    ReadDisk(DiskRequest),
}

/// An output of a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogsRequest {
    pub alloc_id: AllocId,
    pub task: String,
    /// The stream: stdout or stderr.
    pub stream: LogStream,
    pub from: LogOrigin,
    /// Whether the node continues to send after the end is reached, until the task is gone or the stream is closed.
    pub follow: bool,
}

/// The output streams of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LogStream {
    Stdout,
    Stderr,
}

muster_domain::text_enum!(pub LogStream {
    Stdout => "stdout",
    Stderr => "stderr",
});

/// The start position of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LogOrigin {
    /// This many bytes after the oldest byte kept.
    Start(u64),
    /// This many bytes before the newest.
    End(u64),
    /// The offset in the stream, counted from the first byte that the task wrote.
    At(u64),
    /// The latest of the positions below; without any, the oldest byte kept.
    Recent {
        /// This many lines before the newest.
        lines: Option<u64>,
        /// The first line that was received at this time or later.
        since: Option<Timestamp>,
    },
}

/// Bytes of a log, in answer to [`NodeRequest::ReadLogs`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogPiece {
    /// The file of the bytes, such as `web.stdout.3`.
    pub file: String,
    /// Position in that file after these bytes.
    pub offset: u64,
    /// Position in the stream after these bytes, counted from the first byte that the task ever wrote.
    pub position: u64,
    /// Time at which the agent received the bytes from the task, or up to a tenth of a second earlier. `None` if
    /// unknown.
    pub at: Option<Timestamp>,
    /// The bytes; at most [`crate::limits::LOG_CHUNK_BYTES_MAX`].
    pub data: Vec<u8>,
}

impl LogPiece {
    /// The size that counts in [`LogAck`]: the bytes and a flat amount for the rest of the message.
    #[must_use]
    pub fn cost(&self) -> u64 {
        const REST_OF_MESSAGE_BYTES: u64 = 128;
        self.data.len() as u64 + REST_OF_MESSAGE_BYTES
    }
}

/// An acknowledgement by the reader of a log for forwarded pieces. It is sent at the latest when they add up to
/// [`crate::limits::LOG_TAKEN_BYTES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogAck {
    /// The sum of their [`LogPiece::cost`].
    pub bytes: u64,
}

/// The kind of a node's failure. A server derives the HTTP status from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FailureKind {
    Other,
    /// The requested object does not exist.
    NotFound,
    /// The node serves its maximum of requests of this kind.
    TooMany,
    /// The node cannot serve the request for a while.
    Unavailable,
}

/// An answer from a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum NodeReply {
    /// Bytes of a log; at most [`crate::limits::LOG_CHUNK_BYTES_MAX`].
    LogData {
        /// The file of the bytes, such as `web.stdout.3`.
        file: String,
        /// Position in that file after these bytes.
        offset: u64,
        /// The bytes.
        data: Vec<u8>,
    },
    /// Bytes were rotated away before they could be read.
    LogGap { bytes: u64 },
    /// A keep-alive message after a while without data.
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
        /// Files and directories deleted meanwhile: inodes freed.
        inodes: u64,
        /// Their bytes on disk.
        bytes: u64,
        /// Allocations that are kept, by reason; without running ones.
        kept: Vec<(String, u64)>,
    },
    /// Packets that network policies allowed and refused.
    AllocNetwork(Box<AllocNetwork>),
    /// Bytes of a log.
    LogPiece(LogPiece),
    /// Bytes of a log that are not there.
    LogMissing {
        /// Position in the stream after the missing bytes.
        position: u64,
        bytes: u64,
        /// Whether the bytes were never stored, for lack of room or because they exceeded the task's rate. Otherwise
        /// they were rotated away before they were read.
        dropped: bool,
    },
    /// All of a log was sent. The end of the log is reached, or the task of a followed log is over.
    LogEnd {
        /// Position in the stream.
        position: u64,
    },
    /// The command of a session runs.
    ExecOpened,
    /// Bytes that the command wrote.
    ExecOutput(ExecPiece),
    /// Input of a session was forwarded to the command.
    ExecTaken {
        /// The total [`ExecInput::cost`] of that input.
        bytes: u64,
    },
    /// The command ended; nothing follows.
    ExecExited(ExecExit),
    /// A signal was sent.
    Signaled { tasks: Vec<String> },
    /// Resources that an allocation used in the last minutes.
    AllocHistory(Box<AllocHistory>),
    /// Some of an allocation's data.
    DiskPiece(DiskPiece),
    /// All data were sent.
    DiskEnd(DiskSum),
}

/// Packets that the network policies of an allocation's tasks allowed and refused.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocNetwork {
    /// The address of the allocation, if it has a network of its own.
    pub address: Option<String>,
    /// Rules that met a packet, of tasks that run.
    pub rules: Vec<RuleCount>,
    /// The newest reported verdicts, oldest first: denied packets, and allowed packets of rules with `log`. At most one
    /// per 10 ms for each rule, task and CPU.
    pub verdicts: Vec<Verdict>,
    /// The number of the allocation's newest verdict.
    pub last: u64,
}

/// Packets that one rule of one task matched since the task got its policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleCount {
    pub task: String,
    /// Whether the rule is for sent packets; otherwise it is for received packets.
    pub egress: bool,
    pub rule: String,
    /// Whether the rule allows packets.
    pub allows: bool,
    pub packets: u64,
    /// Their bytes, IP headers included.
    pub bytes: u64,
}

/// A packet, or an attempt to connect, that was judged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// The number of the verdict in its allocation, from 1 at the agent's start. A gap in the numbers means missing
    /// verdicts.
    pub number: u64,
    /// Time of the verdict.
    pub at: Timestamp,
    pub task: String,
    /// Whether the task sent the packet.
    pub egress: bool,
    /// The rule that decided.
    pub rule: String,
    pub allowed: bool,
    /// The number of the IP protocol.
    pub protocol: u8,
    pub remote: IpAddr,
    /// The remote port; 0 for protocols without ports.
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
    /// Reasons why the node takes no new allocations, by name.
    pub conditions: BTreeMap<String, String>,
    /// Stale entries removed from eBPF maps since the agent's start. Their cgroups had been deleted.
    pub ebpf_stale_removed: u64,
}

/// Collection of finished allocations on a node; counts are since the agent's start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeCollection {
    /// Finished allocations that are there.
    pub finished: u64,
    /// Allocations that are being destroyed.
    pub under_way: u64,
    /// Allocations whose resources the driver or the kernel did not release. Their destroy is tried again.
    pub refused: u64,
    /// Allocations destroyed, by reason.
    pub destroyed: BTreeMap<String, u64>,
    /// Destroys that were refused.
    pub refusals: u64,
    /// Time at which the newest was destroyed, and the reason.
    pub last: Option<(Timestamp, String)>,
    /// Directories of destroyed allocations whose deletion is not complete.
    pub deleting: u64,
    /// Files and directories deleted: inodes freed.
    pub deleted_inodes: u64,
    /// Bytes deleted with them.
    pub deleted_bytes: u64,
    pub delete_failures: u64,
    /// Time that all threads together spent on deleting.
    pub delete_busy: Duration,
    /// Directories that cannot be deleted at present, with reasons; a few of them.
    pub stuck: Vec<(String, String)>,
}

/// Resource usage of an allocation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AllocStats {
    pub alloc_id: AllocId,
    /// Time of the measurement.
    pub at: Timestamp,
    /// The tasks by name.
    pub tasks: BTreeMap<String, TaskStats>,
    /// The ephemeral disk; `None` while its directories are being created.
    pub disk: Option<AllocDisk>,
}

/// The ephemeral disk of an allocation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocDisk {
    /// The enforcement of the limit: `quota` by the file system, `accounted` by measurement, or `off`.
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

/// The distribution of durations, by powers of two.
///
/// Counts of buckets. The first bucket is below [`Histogram::FIRST_BOUND_NS`], and each further bound is twice the
/// bound before it. The last of [`Histogram::BUCKETS`] has no bound. Empty buckets at the end are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Histogram {
    /// The counts of the buckets.
    pub counts: Vec<u64>,
    pub sum: Duration,
}

impl Histogram {
    /// The number of buckets.
    pub const BUCKETS: usize = 24;
    /// The bound of the first bucket in nanoseconds; its durations are below.
    pub const FIRST_BOUND_NS: u64 = 1_024;

    /// The bound of `bucket` in nanoseconds; its durations are below. `None` for the last bucket.
    #[must_use]
    pub fn bound_ns(bucket: usize) -> Option<u64> {
        (bucket + 1 < Self::BUCKETS).then(|| Self::FIRST_BOUND_NS << bucket)
    }
}

/// Time in which processes waited for one resource, since the task began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pressure {
    /// Time in which at least one of the processes waited.
    pub some: Duration,
    /// Time in which all non-idle processes waited at once; `None` if the kernel does not report it.
    pub full: Option<Duration>,
}
