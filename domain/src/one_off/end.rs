//! The end of a one-off task's work, as its node reports it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::alloc::exit::Exit;
use crate::id::Timestamp;

/// The end of a one-off task's work.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkEnd {
    pub failed: bool,
    /// Reason for the failure, in Diego's words where Diego has them; at most [`super::REASON_BYTES_MAX`]. Empty
    /// without a failure.
    pub failure_reason: String,
    /// The failed action of the tree, such as `serial[1].timeout.run`; empty if no action failed.
    pub failed_action: String,
    /// The beginning of the result file; at most [`super::RESULT_BYTES_MAX`], or as much as the node's operator allows.
    pub result: String,
    /// Whether the result file was longer than `result`.
    pub result_truncated: bool,
    /// Reason for the absence of a requested result; empty otherwise.
    pub result_note: String,
    /// The exit of the process that decided the outcome; `None` if no process did.
    pub exit: Option<Exit>,
    /// Details of the out-of-memory kill, if there was one.
    pub oom: Option<Oom>,
    /// Resources that the task used, as far as they were counted.
    pub usage: Usage,
    /// Time of the end of the work, by its node.
    pub at: Timestamp,
}

impl WorkEnd {
    /// A failure that no process caused.
    #[must_use]
    pub fn failure(reason: &str, at: Timestamp) -> Self {
        Self {
            failed: true,
            failure_reason: super::reason::reason(reason),
            at,
            ..Self::default()
        }
    }
}

/// An out-of-memory kill.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Oom {
    /// The limit in bytes; 0 if unknown.
    pub limit_bytes: u64,
    /// The peak memory in bytes; 0 if unknown.
    pub peak_bytes: u64,
    /// The name of the process that was killed; empty if unknown.
    pub process: String,
}

/// The resources that a task used. A value that could not be measured is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    pub cpu: Option<Duration>,
    /// The peak memory in bytes.
    pub memory_peak_bytes: Option<u64>,
    /// Totals from the node's eBPF programs; absent if they did not watch the task.
    pub counted: Option<TaskUsageTotals>,
}

/// Totals of a task, of all its processes, from its node's eBPF programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskUsageTotals {
    /// Processes that the task forked.
    pub forks: u64,
    /// Bytes of IP packets that the task received.
    pub net_rx_bytes: u64,
    pub net_rx_packets: u64,
    /// Bytes of IP packets that the task sent.
    pub net_tx_bytes: u64,
    pub net_tx_packets: u64,
    /// Bytes that block devices read and wrote for the task; absent if its node does not count them.
    pub block: Option<BlockBytes>,
}

/// The traffic of a task on block devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockBytes {
    /// Bytes that the devices read.
    pub read: u64,
    /// Bytes that the devices wrote.
    pub written: u64,
}
