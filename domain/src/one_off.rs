//! One-off tasks: work that runs at most once, and whose result reaches the client.
//!
//! Names, states and texts are Diego's where it has them, so that its clients find what they know.
//! A one-off task is placed and run as the only allocation of a job of its own
//! ([`job`](fn@job)), in the namespace [`NAMESPACE`], which belongs to nobody else.

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
/// Bytes of a guid or domain: as many as Diego's columns have. A guid names the task's job too, whose id is longer than
/// users may choose; no file or cgroup is named by it.
pub const GUID_BYTES_MAX: usize = 255;
/// Bytes kept of a result unless the node's operator sets another bound: Diego's documented ten KiB. What is longer is
/// cut and flagged.
pub const RESULT_BYTES_MAX: usize = 10 * 1024;
/// Actions in one tree. Diego has no bound. Each may be a process, and a task may have no more than [`PIDS_MAX`] at
/// once.
pub const ACTIONS_MAX: usize = 4096;
/// Levels of a tree of actions. Diego has no bound. A level is three levels of JSON, whose reader takes 128, and two
/// messages of protobuf, whose reader takes 100.
pub const ACTION_DEPTH_MAX: usize = 32;
/// Processes that a task may be given at once: what a node gives at most.
pub const PIDS_MAX: i32 = 4096;
/// Bytes of a definition as JSON. Diego's column holds 16 MiB, but its clients read a definition with every list. Here
/// it is in the log. Its job, which may be twice as large, goes to a node in one frame of 8 MiB.
pub const DEFINITION_BYTES_MAX: usize = 1024 * 1024;

/// Bytes of what a client calls a log, its source or metrics: as Diego's columns for names. They become labels and
/// headers.
pub const LABEL_BYTES_MAX: usize = 255;
/// Bytes of a callback's URL: what HTTP servers take of a request's line, and what the native driver takes of a
/// transfer's.
pub const URL_BYTES_MAX: usize = 8 * 1024;
/// Longest time in which a task must start. Diego has one for all, half an hour; what waits for a month waits for
/// something that does not come, and every task that waits is looked at when room comes.
pub const START_TIMEOUT_MAX: Duration = Duration::from_hours(30 * 24);
/// Longest time for which a completed task is kept. Diego has one for all, two minutes; every task that is kept is in
/// every server's memory.
pub const RETENTION_MAX: Duration = Duration::from_hours(30 * 24);

/// The failure reason of a cancelled task.
pub const CANCELLED: &str = "task was cancelled";
/// The failure reason of a task that found no room in time.
pub const NOT_STARTED: &str = "not started within time limit";
/// The failure reason of a task whose node is gone.
pub const NODE_GONE: &str = "cell disappeared before completion";

/// The state of a one-off task's life. Diego's four states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum OneOffState {
    /// It has no node: nothing of it has started.
    Pending,
    /// A node has it, and only that one ever will: it may have started there.
    Running,
    /// It is over, and nothing of it runs.
    Completed,
    /// Somebody has claimed its result.
    Resolving,
}

crate::text_enum!(pub OneOffState {
    Pending => "Pending",
    Running => "Running",
    Completed => "Completed",
    Resolving => "Resolving",
});

impl OneOffState {
    /// Whether a task may go from one state to the other in one step; `None` is a task that is not there. Diego's
    /// transitions: cancelling and what time does are among them.
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

/// A finer state than Diego's four, for a human reader: those four say too little to wait by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Phase {
    /// Somebody has looked for room, and there is none: it waits.
    Queued,
    /// A node has it and has not reported a process. That report may take a moment longer than the process does to
    /// start, since nobody waits for it.
    Preparing,
    Running,
    /// It is to end, and may still run.
    Cancelling,
    /// Its node is out of reach; it may run.
    Unreachable,
    Completed,
    /// Its callback is being delivered.
    Delivering,
    /// A client works on its result.
    Resolving,
    /// Room is being looked for, for the first time.
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
    /// Chosen by the client; unique while the task exists.
    pub guid: String,
    /// Chosen by the client, to tell its tasks from others.
    pub domain: String,
    /// The work of the task.
    pub definition: Arc<Definition>,
    /// State of the task's life.
    pub state: OneOffState,
    pub phase: Phase,
    /// Somebody wants it to end before it ends by itself, and what its failure reason will be.
    pub ending: Option<String>,
    /// Its one and only allocation. A task that has one is never placed again.
    pub alloc_id: Option<AllocId>,
    /// The node of that.
    pub node_id: Option<NodeId>,
    /// Time of the start of its first process, by its node.
    pub started_at: Option<Timestamp>,
    /// The end of the task.
    pub end: Option<WorkEnd>,
    /// Time of the first completion; retention counts from here, regardless of later changes.
    pub first_completed_at: Option<Timestamp>,
    /// In state `Resolving`, until when the claim on its result holds; of a task that was told to end and whose node is
    /// out of reach, until when it may run there.
    pub until: Option<Timestamp>,
    /// Its completion callback, where it has one.
    pub callback: Option<Callback>,
    /// Time at which the task was desired.
    pub created_at: Timestamp,
    /// Time of the last change.
    pub updated_at: Timestamp,
    /// The entry that made it: tells it from an earlier task of the same guid.
    pub create_index: LogIndex,
    /// The last entry that changed this row.
    pub modify_index: LogIndex,
    /// Number of times that room was looked for and there was none.
    pub rejections: u32,
    /// Reason why there was no room the last time, in Diego's words; empty if that never happened. It stays when there
    /// is room, as Diego's does.
    pub rejection: String,
}

/// The delivery of a completion callback.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Callback {
    pub attempts: u32,
    /// Not to be tried before; of one that was given up, when that was.
    pub next_at: Timestamp,
    /// It was given up: it failed too often.
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

    /// The claim that holds on its result: the entry that made it. Nothing changes a row while its claim holds.
    #[must_use]
    pub fn claim(&self) -> Option<LogIndex> {
        (self.state == OneOffState::Resolving).then_some(self.modify_index)
    }

    /// Whether a callback is still to be delivered.
    #[must_use]
    pub fn owes_callback(&self) -> bool {
        self.callback.is_some_and(|callback| !callback.given_up)
    }

    /// The result as Diego's clients see it: empty for a cancelled task, even if its file held something.
    #[must_use]
    pub fn client_result(&self) -> &str {
        let end = self.end.as_ref();
        let end = end.filter(|end| end.failure_reason != CANCELLED);
        end.map_or("", |end| &end.result)
    }

    /// The node as Diego's clients see it: forgotten when the task ends, unless the node itself was lost.
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
