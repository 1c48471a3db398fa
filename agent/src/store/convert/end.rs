//! Records of formats 3 to 6, whose ends of one-off tasks say nothing of what eBPF programs counted.

use std::time::Duration;

use muster_agent_core::alloc::{AllocSnapshot, Stopping};
use muster_agent_core::health::HealthSnapshot;
use muster_agent_core::task::{Life, RestartTracker, StopCause, TaskSnapshot};
use muster_domain::alloc::{Exit, TaskState};
use muster_domain::id::Timestamp;
use muster_domain::one_off::{End, Oom, Usage};
use serde::Deserialize;

use crate::store::{Ended, TaskRecord};

/// How the work of a one-off task ended.
#[derive(Debug, Deserialize)]
struct EndOf6 {
    failed: bool,
    failure_reason: String,
    failed_action: String,
    result: String,
    result_truncated: bool,
    result_note: String,
    exit: Option<Exit>,
    oom: Option<Oom>,
    usage: UsageOf6,
    at: Timestamp,
}

/// What it used.
#[derive(Debug, Deserialize)]
struct UsageOf6 {
    cpu: Option<Duration>,
    memory_peak_bytes: Option<u64>,
}

fn end(end: EndOf6) -> Box<End> {
    let EndOf6 {
        failed,
        failure_reason,
        failed_action,
        result,
        result_truncated,
        result_note,
        exit,
        oom,
        usage: UsageOf6 {
            cpu,
            memory_peak_bytes,
        },
        at,
    } = end;
    Box::new(End {
        failed,
        failure_reason,
        failed_action,
        result,
        result_truncated,
        result_note,
        exit,
        oom,
        usage: Usage {
            cpu,
            memory_peak_bytes,
            counted: None,
        },
        at,
    })
}

/// A record of a task.
#[derive(Debug, Deserialize)]
pub(in crate::store) struct TaskRecordOf6 {
    attempt: u32,
    driver: String,
    task_id: String,
    cgroup_id: u64,
    boot_id: String,
    handle: Vec<u8>,
    ended: Option<EndedOf6>,
}

/// What is recorded of its end.
#[derive(Debug, Deserialize)]
struct EndedOf6 {
    exit: Exit,
    detail: String,
    end: Option<Box<EndOf6>>,
}

impl From<TaskRecordOf6> for TaskRecord {
    fn from(record: TaskRecordOf6) -> Self {
        let TaskRecordOf6 {
            attempt,
            driver,
            task_id,
            cgroup_id,
            boot_id,
            handle,
            ended,
        } = record;
        let ended = ended.map(|ended| Ended {
            exit: ended.exit,
            detail: ended.detail,
            end: ended.end.map(|ended| end(*ended)),
        });
        Self {
            attempt,
            driver,
            task_id,
            cgroup_id,
            boot_id,
            handle,
            ended,
        }
    }
}

/// A snapshot of an allocation.
#[derive(Debug, Deserialize)]
pub(in crate::store) struct AllocSnapshotOf6 {
    prepared: bool,
    destroying: bool,
    stopping: Option<Stopping>,
    health: HealthSnapshot,
    tasks: Vec<TaskSnapshotOf6>,
}

/// Its tasks.
#[derive(Debug, Deserialize)]
struct TaskSnapshotOf6 {
    state: TaskState,
    life: Life,
    attempt: u32,
    tracker: RestartTracker,
    stop: Option<StopCause>,
    running_since: Option<Timestamp>,
    end: Option<Box<EndOf6>>,
}

impl From<AllocSnapshotOf6> for AllocSnapshot {
    fn from(snapshot: AllocSnapshotOf6) -> Self {
        let AllocSnapshotOf6 {
            prepared,
            destroying,
            stopping,
            health,
            tasks,
        } = snapshot;
        Self {
            prepared,
            destroying,
            stopping,
            health,
            tasks: tasks.into_iter().map(TaskSnapshot::from).collect(),
        }
    }
}

impl From<TaskSnapshotOf6> for TaskSnapshot {
    fn from(snapshot: TaskSnapshotOf6) -> Self {
        let TaskSnapshotOf6 {
            state,
            life,
            attempt,
            tracker,
            stop,
            running_since,
            end: ended,
        } = snapshot;
        Self {
            state,
            life,
            attempt,
            tracker,
            stop,
            running_since,
            end: ended.map(|ended| end(*ended)),
        }
    }
}
