//! One-off tasks: work that runs at most once, and whose result reaches the client.
//!
//! Names, states and texts are Diego's where Diego has them, so its clients work unchanged. A one-off task is placed
//! and run as the only allocation of a job of its own ([`job`](fn@job)). All these jobs are in the namespace
//! [`NAMESPACE`], which is reserved for them.

mod action;
mod definition;
mod egress;
pub(crate) mod end;
mod job;
mod reason;
mod times;
mod validate;

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::id::{AllocId, JobKey, LogIndex, NodeId, Timestamp};

pub use crate::namespace::ONE_OFF_NAMESPACE as NAMESPACE;
pub use action::{
    Action, Actions, Download, EmitProgress, ResourceLimits, Run, Timeout, Try, Upload, go_duration,
};
pub use definition::{Condition, Definition, EnvVar};
pub use egress::{EgressRule, IcmpInfo, PortRange, Reach};
pub use end::{BlockBytes, Oom, TaskUsageTotals, Usage, WorkEnd};
pub use job::{
    GRACE, GROUP, HOST_ROOT, META_DOMAIN, META_LOG_GUID, META_LOG_SOURCE, META_METRICS_GUID, TASK,
    has_unlimited_disk, job,
};
pub use reason::{REASON_BYTES_MAX, reason};
pub use times::{LOST_AFTER, LOST_AFTER_MAX, LOST_AFTER_MIN, OneOffTimings};
pub use validate::{check, check_domain, is_domain, is_guid};

/// Bytes of the annotation. Diego's bound.
pub const ANNOTATION_BYTES_MAX: usize = 10 * 1024;
/// Bytes of a guid or domain: as many as Diego's columns have. The guid is also part of the id of the task's job, which
/// is longer than a user's job id may be. No file or cgroup is named after it.
pub const GUID_BYTES_MAX: usize = 255;
/// Bytes kept of a result unless the node's operator sets another bound: Diego's documented ten KiB. A longer result is
/// cut and flagged.
pub const RESULT_BYTES_MAX: usize = 10 * 1024;
/// Actions in one tree. Diego has no bound. Each action may be a process, and a task has at most [`PIDS_MAX`]
/// processes.
pub const ACTIONS_MAX: usize = 4096;
/// Levels of a tree of actions. Diego has no bound. A level takes three levels of JSON, whose reader allows 128. It
/// also takes two protobuf messages, whose reader allows 100.
pub const ACTION_DEPTH_MAX: usize = 32;
/// Processes that a task may have at once: a node's highest limit.
pub const PIDS_MAX: i32 = 4096;
/// Bytes of a definition as JSON. Diego's column holds 16 MiB, but its clients read a definition with every list. Here
/// the definition is in the log. Its job may be twice as large and goes to a node in one frame of 8 MiB.
pub const DEFINITION_BYTES_MAX: usize = 1024 * 1024;

/// Bytes of a client's name for a log, a log source or metrics: as many as Diego's columns for names. These names
/// become labels and headers.
pub const LABEL_BYTES_MAX: usize = 255;
/// Bytes of a callback's URL. HTTP servers allow a request line of this size, and the native driver allows a URL of a
/// transfer.
pub const URL_BYTES_MAX: usize = 8 * 1024;
/// Longest time in which a task must start. Diego has one limit for all tasks, half an hour. A task that waits for a
/// month waits for resources that never come. Each waiting task is reconsidered whenever resources become free.
pub const START_TIMEOUT_MAX: Duration = Duration::from_hours(30 * 24);
/// Longest time for which a completed task is kept. Diego has one limit for all tasks, two minutes. Every server holds
/// every kept task in memory.
pub const RETENTION_MAX: Duration = Duration::from_hours(30 * 24);

/// The failure reason of a cancelled task.
pub const CANCELLED: &str = "task was cancelled";
/// The failure reason of a task that could not be placed in time.
pub const NOT_STARTED: &str = "not started within time limit";
/// The failure reason of a task whose node was lost.
pub const NODE_GONE: &str = "cell disappeared before completion";

/// The state of a one-off task's life. Diego's four states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum OneOffState {
    /// The task has no node, so no process of it has started.
    Pending,
    /// The task is assigned to a node, and never to another. It may have started there.
    Running,
    /// The task is over, and no process of it runs.
    Completed,
    /// A client or a callback has claimed the result.
    Resolving,
}

crate::text_enum!(pub OneOffState {
    Pending => "Pending",
    Running => "Running",
    Completed => "Completed",
    Resolving => "Resolving",
});

impl OneOffState {
    /// Whether a task may change from one state to the other in one step; `None` is a task that does not exist. The
    /// transitions are Diego's. They include cancellation and expiry.
    #[must_use]
    pub fn may_follow(from: Option<Self>, to: Option<Self>) -> bool {
        match (from, to) {
            (None, to) => matches!(to, None | Some(Self::Pending)),
            (Some(Self::Pending), to) => {
                matches!(to, Some(Self::Pending | Self::Running | Self::Completed))
            }
            (Some(Self::Running), to) => matches!(to, Some(Self::Running | Self::Completed)),
            (Some(Self::Completed | Self::Resolving), to) => {
                matches!(to, None | Some(Self::Completed | Self::Resolving))
            }
        }
    }

    /// The state named `name`, in any case.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|state| state.as_str().eq_ignore_ascii_case(name))
    }
}

/// A finer state than Diego's four, for a human reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Phase {
    /// The scheduler found no room for the task, so the task waits.
    Queued,
    /// The task is assigned to a node that has not reported a process. The report may arrive shortly after the start,
    /// because the start does not wait for it.
    Preparing,
    Running,
    /// The task was asked to end and may still run.
    Cancelling,
    /// The node is out of reach; the task may run.
    Unreachable,
    Completed,
    /// The callback is being delivered.
    Delivering,
    /// A client processes the result.
    Resolving,
    /// The scheduler looks for room for the first time.
    Placing,
}

crate::text_enum!(pub Phase {
    Queued => "queued",
    Preparing => "preparing",
    Running => "running",
    Cancelling => "cancelling",
    Unreachable => "unreachable",
    Completed => "completed",
    Delivering => "delivering",
    Resolving => "resolving",
    Placing => "placing",
});

/// A one-off task: a row of the state table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OneOff {
    /// The id that the client chose; unique while the task exists.
    pub guid: String,
    /// The client's name for a set of its tasks.
    pub domain: String,
    /// The work of the task.
    pub definition: Arc<Definition>,
    /// State of the task's life.
    pub state: OneOffState,
    pub phase: Phase,
    /// The failure reason of a task that was asked to end early; `None` if it was not.
    pub ending: Option<String>,
    /// The only allocation of the task. A task with an allocation is never placed again.
    pub alloc_id: Option<AllocId>,
    /// The node of that allocation.
    pub node_id: Option<NodeId>,
    /// Time of the start of the first process, by the node's clock.
    pub started_at: Option<Timestamp>,
    /// The end of the task.
    pub end: Option<WorkEnd>,
    /// Time of the first completion; retention counts from here, regardless of later changes.
    pub first_completed_at: Option<Timestamp>,
    /// In state `Resolving`: the end of the claim on the result. For a task that was asked to end on a node out of
    /// reach: the time until which it may run.
    pub until: Option<Timestamp>,
    /// The completion callback, if the task has one.
    pub callback: Option<Callback>,
    /// Time at which the task was desired.
    pub created_at: Timestamp,
    /// Time of the last change.
    pub updated_at: Timestamp,
    /// The entry that created the row. It distinguishes the task from an earlier task with the same guid.
    pub create_index: LogIndex,
    /// The last entry that changed this row.
    pub modify_index: LogIndex,
    /// Number of times that the scheduler found no room.
    pub rejections: u32,
    /// Reason for the last time without room, in Diego's words; empty if there was always room. The reason is kept
    /// after a placement, as in Diego.
    pub rejection: String,
}

/// The delivery of a completion callback.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Callback {
    pub attempts: u32,
    /// The earliest time of the next attempt. For a callback that was given up, it is the time of giving up.
    pub next_at: Timestamp,
    /// Whether the callback was given up because it failed too often.
    pub given_up: bool,
}

impl Callback {
    /// Time at which the callback was given up.
    #[must_use]
    pub fn given_up_at(self) -> Option<Timestamp> {
        self.given_up.then_some(self.next_at)
    }
}

impl OneOff {
    /// A task that was just desired.
    #[must_use]
    pub fn new(
        guid: String,
        domain: String,
        definition: Arc<Definition>,
        index: LogIndex,
        at: Timestamp,
    ) -> Self {
        let callback = (!definition.completion_callback_url.is_empty()).then_some(Callback {
            attempts: 0,
            next_at: Timestamp(0),
            given_up: false,
        });
        Self {
            guid,
            domain,
            definition,
            state: OneOffState::Pending,
            phase: Phase::Placing,
            ending: None,
            alloc_id: None,
            node_id: None,
            started_at: None,
            end: None,
            first_completed_at: None,
            until: None,
            callback,
            created_at: at,
            updated_at: at,
            create_index: index,
            modify_index: index,
            rejections: 0,
            rejection: String::new(),
        }
    }

    /// The job that runs it.
    #[must_use]
    pub fn job_key(&self) -> JobKey {
        job_key(&self.guid)
    }

    /// The current claim on the result: the entry that made it. A row does not change while its claim is valid.
    #[must_use]
    pub fn claim(&self) -> Option<LogIndex> {
        (self.state == OneOffState::Resolving).then_some(self.modify_index)
    }

    /// Whether a callback is still to be delivered.
    #[must_use]
    pub fn owes_callback(&self) -> bool {
        self.callback.is_some_and(|callback| !callback.given_up)
    }

    /// The result as Diego's clients see it: empty for a cancelled task, even if its result file had content.
    #[must_use]
    pub fn client_result(&self) -> &str {
        let end = self.end.as_ref();
        let end = end.filter(|end| end.failure_reason != CANCELLED);
        end.map_or("", |end| &end.result)
    }

    /// The node as Diego's clients see it: cleared when the task ends, unless the node itself was lost.
    #[must_use]
    pub fn client_cell(&self) -> Option<NodeId> {
        let is_lost = self.failure_reason() == NODE_GONE;
        match self.state {
            OneOffState::Pending | OneOffState::Running => self.node_id,
            OneOffState::Completed | OneOffState::Resolving => self.node_id.filter(|_| is_lost),
        }
    }

    /// Reason for the failure; empty if the task did not fail.
    #[must_use]
    pub fn failure_reason(&self) -> &str {
        self.end.as_ref().map_or("", |end| &end.failure_reason)
    }
}

/// The key of the job that runs the task called `guid`.
#[must_use]
pub fn job_key(guid: &str) -> JobKey {
    JobKey {
        namespace: NAMESPACE.to_owned(),
        job_id: guid.to_owned(),
    }
}

#[cfg(test)]
mod tests;
