//! Resources that an allocation used in the last minutes, in steps.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_domain::id::{AllocId, Timestamp};
use serde::{Deserialize, Serialize};

/// Resources that an allocation used in the last minutes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocHistory {
    pub alloc_id: AllocId,
    /// Time from one look to the next.
    pub step: Duration,
    /// The time for which a point is kept.
    pub kept: Duration,
    /// Start of the agent's measurements; there are no values from before.
    pub since: Timestamp,
    /// The tasks by name, including those that ended since.
    pub tasks: BTreeMap<String, TaskHistory>,
}

/// Resources that a task used in the last minutes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskHistory {
    /// The points, oldest first. There is none for a time in which the task did not run.
    pub points: Vec<HistoryPoint>,
    /// Reasons for values absent from the newest points, or all points: name of the value, or `history`, and the
    /// reason.
    pub absent: BTreeMap<String, String>,
}

/// Resources that a task used in a span of time. A value that cannot be had is absent, never zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryPoint {
    pub at: Timestamp,
    /// The length of the span: about a step. It is shorter for a task that started in it, and longer after failed
    /// samples.
    pub span: Duration,
    /// CPU time, from eBPF.
    pub cpu: Option<Duration>,
    /// Total time for which the threads waited for a CPU; from eBPF.
    pub run_delay: Option<Duration>,
    /// Context switches away from the threads, from eBPF.
    pub context_switches: Option<u64>,
    /// Time for which the CPU quota throttled the task, from the cgroup; added up over processors.
    pub throttled: Option<Duration>,
    /// Bytes of memory charged at the end of the span, from the cgroup.
    pub memory_bytes: Option<u64>,
    /// Bytes received, from eBPF.
    pub net_rx_bytes: Option<u64>,
    /// Bytes sent, from eBPF.
    pub net_tx_bytes: Option<u64>,
    /// Retransmitted TCP segments, from eBPF.
    pub tcp_retransmits: Option<u64>,
    /// Bytes read from block devices, from eBPF.
    pub block_read_bytes: Option<u64>,
    /// Bytes written to block devices, from eBPF.
    pub block_write_bytes: Option<u64>,
    /// Time in which at least one thread waited for a CPU, from the cgroup.
    pub pressure_cpu: Option<Duration>,
    /// Time in which at least one thread waited for memory, from the cgroup.
    pub pressure_memory: Option<Duration>,
    /// Time in which at least one thread waited for disks, from the cgroup.
    pub pressure_io: Option<Duration>,
}
