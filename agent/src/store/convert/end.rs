//! Records of formats 1 to 6: the first two know nothing of the ends of one-off tasks, the others nothing of what eBPF
//! programs counted until then. Snapshots of formats 1 to 8 know nothing of networks of tasks' drivers.

use std::time::Duration;

use muster_agent_core::alloc::{AllocSnapshot, AllocStop};
use muster_agent_core::health::HealthSnapshot;
use muster_agent_core::task::{RestartTracker, StopCause, TaskLifecycle, TaskSnapshot};
use muster_domain::alloc::{Exit, TaskEvent, TaskPhase, TaskState};
use muster_domain::id::Timestamp;
use muster_domain::one_off::{Oom, Usage, WorkEnd};
use serde::Deserialize;

use crate::store::{Ended, TaskRecord};

/// How the work of a one-off task ended.
#[derive(Debug, Deserialize)]
pub(in crate::store) struct EndOf6 {
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

/// The usage of the task.
#[derive(Debug, Deserialize)]
struct UsageOf6 {
    cpu: Option<Duration>,
    memory_peak_bytes: Option<u64>,
}

/// A format's knowledge of the end of a one-off task.
trait RecordedEnd {
    fn known(self) -> Option<Box<WorkEnd>>;
}

impl RecordedEnd for () {
    fn known(self) -> Option<Box<WorkEnd>> {
        None
    }
}

impl RecordedEnd for Option<Box<EndOf6>> {
    fn known(self) -> Option<Box<WorkEnd>> {
        self.map(|end| Box::new(WorkEnd::from(*end)))
    }
}

impl RecordedEnd for Option<Box<WorkEnd>> {
    fn known(self) -> Option<Box<WorkEnd>> {
        self
    }
}

impl From<EndOf6> for WorkEnd {
    fn from(end: EndOf6) -> Self {
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
        Self {
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
        }
    }
}

/// Of formats 1 and 2.
pub(in crate::store) type TaskRecordOf2 = TaskRecordWith<()>;
/// Of formats 3 to 6.
pub(in crate::store) type TaskRecordOf6 = TaskRecordWith<Option<Box<EndOf6>>>;
/// Of formats 1 and 2.
pub(in crate::store) type AllocSnapshotOf2 = AllocSnapshotWith<()>;
/// Of formats 3 to 6.
pub(in crate::store) type AllocSnapshotOf6 = AllocSnapshotWith<Option<Box<EndOf6>>>;

/// Of formats 7 and 8.
pub(in crate::store) type AllocSnapshotOf8 = AllocSnapshotWith<Option<Box<WorkEnd>>>;

/// A record of a task.
#[derive(Debug, Deserialize)]
pub(in crate::store) struct TaskRecordWith<E> {
    attempt: u32,
    driver: String,
    task_id: String,
    cgroup_id: u64,
    boot_id: String,
    handle: Vec<u8>,
    ended: Option<EndedWith<E>>,
}

/// The record of a task's end.
#[derive(Debug, Deserialize)]
struct EndedWith<E> {
    exit: Exit,
    detail: String,
    end: E,
}

impl<E: RecordedEnd> From<TaskRecordWith<E>> for TaskRecord {
    fn from(record: TaskRecordWith<E>) -> Self {
        let TaskRecordWith {
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
            end: ended.end.known(),
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
pub(in crate::store) struct AllocSnapshotWith<E> {
    prepared: bool,
    destroying: bool,
    stopping: Option<AllocStop>,
    health: HealthSnapshot,
    tasks: Vec<TaskSnapshotWith<E>>,
}

/// Its tasks.
#[derive(Debug, Deserialize)]
struct TaskSnapshotWith<E> {
    state: TaskStateOf8,
    life: TaskLifecycle,
    attempt: u32,
    tracker: RestartTracker,
    stop: Option<StopCause>,
    running_since: Option<Timestamp>,
    end: E,
}

impl<E: RecordedEnd> From<AllocSnapshotWith<E>> for AllocSnapshot {
    fn from(snapshot: AllocSnapshotWith<E>) -> Self {
        let AllocSnapshotWith {
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

impl<E: RecordedEnd> From<TaskSnapshotWith<E>> for TaskSnapshot {
    fn from(snapshot: TaskSnapshotWith<E>) -> Self {
        let TaskSnapshotWith {
            state,
            life,
            attempt,
            tracker,
            stop,
            running_since,
            end,
        } = snapshot;
        Self {
            state: state.into(),
            life,
            attempt,
            tracker,
            stop,
            running_since,
            end: end.known(),
        }
    }
}

/// The state of a task.
#[derive(Debug, Deserialize)]
struct TaskStateOf8 {
    name: String,
    phase: TaskPhase,
    failed: bool,
    restarts: u32,
    last_restart: Option<Timestamp>,
    started_at: Option<Timestamp>,
    finished_at: Option<Timestamp>,
    events: Vec<TaskEvent>,
}

impl From<TaskStateOf8> for TaskState {
    fn from(state: TaskStateOf8) -> Self {
        let TaskStateOf8 {
            name,
            phase,
            failed,
            restarts,
            last_restart,
            started_at,
            finished_at,
            events,
        } = state;
        Self {
            name,
            phase,
            failed,
            restarts,
            last_restart,
            started_at,
            finished_at,
            events,
            network: None,
        }
    }
}
