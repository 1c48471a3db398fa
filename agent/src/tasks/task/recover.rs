//! Finds a task that an earlier agent started.

use std::sync::atomic::Ordering;

use muster_agent_core::task::TaskInput;
use muster_domain::alloc::Exit;
use muster_domain::error_chain::chain;
use muster_driver::{DriverError, TaskHandle, TaskReach};
use muster_wire::codec;
use tokio_util::sync::CancellationToken;

use super::network_policy::{self, reattach_policy};
use super::resources::with_limits;
use super::streams::{Streams, read_uncollected_reason, remove_fifos};
use super::user;
use crate::bpf::Bpf;
use crate::context::AgentContext;
use crate::resources::ResourceContext;
use crate::resources::cgroup::{CorrectedLimit, CreateTaskCgroupError, TaskCgroup};
use crate::session::SessionContext;
use crate::storage::allocdir::{DataDir, owner_of};
use crate::storage::store::{Ended, TaskRecord};
use crate::tasks::drivers::DriverSlot;
use crate::tasks::drivers::usage::DriverUsage;
use crate::tasks::live::LiveTask;
use crate::tasks::missing_record::MissingRecordMeaning;
use crate::tasks::task::cleanup::{clean_up_ended, clean_up_stray};
use crate::tasks::task::driver_calls::{
    RETRY_PAUSE, allow_traversal, encoded, fs_isolation, sees_host, task_id,
};
use crate::tasks::task::record::{note_record, store_record};
use crate::tasks::task_ref::TaskRef;

/// The result of a search.
pub(super) enum RecoveredTask {
    /// A task to be ended or watched, and messages for the operator.
    Live(Box<LiveTask>, Vec<String>),
    /// No process, and the input for the runner that follows from that.
    Nothing(TaskInput),
}

/// Looks for the start `attempt` of the task, which may run on another system.
pub(super) async fn recover(
    context: &AgentContext,
    task: &TaskRef,
    attempt: u32,
    record: Option<TaskRecord>,
    unrecorded: MissingRecordMeaning,
    elsewhere: bool,
) -> RecoveredTask {
    let Some(slot) = context.tasks.drivers.named(&task.task().driver).cloned() else {
        let reason = format!("this node has no driver `{}` any more", task.task().driver);
        return RecoveredTask::Nothing(TaskInput::Lost { reason });
    };
    let Some(record) = record.filter(|record| record.attempt == attempt) else {
        return unrecorded_task(context, task, slot, attempt, unrecorded).await;
    };
    if let Some(Ended { exit, detail, end }) = record.ended.clone() {
        // The task was known to have ended, but it may have remains.
        clean_up_ended(context, task, &slot, &record).await;
        return RecoveredTask::Nothing(TaskInput::Exited { exit, detail, end });
    }
    let is_rebooted = record.boot_id != context.boot_id;
    if is_rebooted && !elsewhere {
        remove_fifos(&context.storage.data.alloc(task.alloc_id()), task.name());
        let reason = "the machine was rebooted while the task ran".to_owned();
        return RecoveredTask::Nothing(TaskInput::Lost { reason });
    }
    match TaskHandle::decode(&record.handle) {
        Ok(_readable) => live(context, task, slot, record).await,
        Err(error) => {
            tracing::error!(task_id = record.task_id, %error, "the stored handle cannot be read");
            unrecorded_task(context, task, slot, attempt, MissingRecordMeaning::Ended).await
        }
    }
}

/// Looks for a task without a record. The agent died between the start and the record, or the store was lost.
async fn unrecorded_task(
    context: &AgentContext,
    task: &TaskRef,
    slot: DriverSlot,
    attempt: u32,
    unrecorded: MissingRecordMeaning,
) -> RecoveredTask {
    let alloc = task.alloc_id().to_string();
    let this_start = task_id(task, attempt);
    let mine = |handle: &TaskHandle| match unrecorded {
        MissingRecordMeaning::NeverStarted => handle.config.id == this_start,
        // The number of its starts is unknown.
        MissingRecordMeaning::Ended
        | MissingRecordMeaning::StoreLost
        | MissingRecordMeaning::Untraced
        | MissingRecordMeaning::NeverHere => {
            handle.config.alloc_id == alloc && handle.config.task_name == task.name()
        }
    };
    let Ok(cgroup) = TaskCgroup::open(&context.resources.tree, &alloc, task.name()) else {
        return RecoveredTask::Nothing(missing(unrecorded));
    };
    // An adopted task is noted as this start, whichever start it was at its beginning.
    let noted =
        handle_on_cgroup(&cgroup).filter(|(noted_as, handle)| *noted_as == attempt || mine(handle));
    let found = match noted {
        Some((_, handle)) => Some(handle),
        // The agent died between the start and the note.
        None => list_tasks(&slot).await.into_iter().find(mine),
    };
    let Some(handle) = found else {
        // A process without a handle cannot be waited for, so it is ended.
        clean_up_stray(context.bpf(), &cgroup).await;
        return RecoveredTask::Nothing(missing(unrecorded));
    };
    let record = TaskRecord {
        attempt,
        driver: task.task().driver.clone(),
        task_id: handle.config.id.clone(),
        cgroup_id: cgroup.id(),
        boot_id: context.boot_id.clone(),
        handle: encoded(&handle),
        ended: None,
    };
    note_record(&cgroup, &record);
    store_record(&context.storage.store, task, &record).await;
    live(context, task, slot, record).await
}

/// The handle on the cgroup itself, and the attempt that it belongs to.
fn handle_on_cgroup(cgroup: &TaskCgroup) -> Option<(u32, TaskHandle)> {
    let note = cgroup
        .note()
        .inspect_err(|error| tracing::warn!(%error, "the record on a cgroup cannot be read"))
        .ok()??;
    let record: Result<TaskRecord, _> = codec::decode(&note);
    let record = record
        .inspect_err(|error| tracing::warn!(%error, "the record on a cgroup cannot be read"))
        .ok()?;
    let handle = TaskHandle::decode(&record.handle)
        .inspect_err(|error| tracing::warn!(%error, "the handle on a cgroup cannot be read"))
        .ok()?;
    Some((record.attempt, handle))
}

fn missing(unrecorded: MissingRecordMeaning) -> TaskInput {
    let lost = |reason: &str| TaskInput::Lost {
        reason: reason.to_owned(),
    };
    match unrecorded {
        MissingRecordMeaning::NeverStarted => TaskInput::NeverStarted,
        MissingRecordMeaning::Ended => TaskInput::Exited {
            exit: Exit {
                unknown: true,
                ..Exit::default()
            },
            detail: "the agent's record of it was lost".to_owned(),
            end: None,
        },
        MissingRecordMeaning::StoreLost => {
            lost("the agent's store was lost, and no process of the task was found")
        }
        MissingRecordMeaning::Untraced => lost(
            "the task's directories are on the node, but no record and no process of it: whether it began is not known",
        ),
        MissingRecordMeaning::NeverHere => lost(
            "the node heard of the task only after the servers had taken it for begun: it never began here",
        ),
    }
}

/// Returns the tasks that the driver runs. A driver that cannot list them has no recoverable tasks.
async fn list_tasks(slot: &DriverSlot) -> Vec<TaskHandle> {
    loop {
        slot.ready().await;
        match slot.driver.list_tasks().await {
            Ok(handles) => return handles,
            Err(DriverError::Unavailable { .. } | DriverError::TimedOut { .. }) => {
                tokio::time::sleep(RETRY_PAUSE).await;
            }
            Err(error) => {
                tracing::warn!(%error, "the driver cannot list its tasks");
                return Vec::new();
            }
        }
    }
}

/// Returns the task with its cgroups and its output recovered.
async fn live(
    context: &AgentContext,
    task: &TaskRef,
    slot: DriverSlot,
    record: TaskRecord,
) -> RecoveredTask {
    let alloc = task.alloc_id().to_string();
    let cgroup = match TaskCgroup::open(&context.resources.tree, &alloc, task.name()) {
        // Another cgroup of the same name would belong to another start of the task.
        Ok(cgroup) => Some(cgroup).filter(|cgroup| cgroup.id() == record.cgroup_id),
        Err(CreateTaskCgroupError::Gone { .. }) => None,
        Err(error) => {
            tracing::error!(
                task_id = record.task_id,
                error = chain(&error),
                "the cgroup of a task cannot be opened"
            );
            None
        }
    };
    task.hold_cores(&context.resources);
    user::claim(
        &context.storage.store,
        &context.resources.users,
        task,
        &record,
    )
    .await;
    allow_traversal_again(&context.storage.data, task, &slot, &record).await;
    let streams = reopen_streams(context, task).await;
    let reach = reach(context.bpf(), &slot, &record).await;
    // After a reboot, the number may belong to another cgroup.
    let mut messages = Vec::new();
    if record.boot_id == context.boot_id {
        messages.extend(reattach_policy(context, task, record.cgroup_id, reach));
        messages.extend(register_if_unknown(context.bpf(), cgroup.as_ref()));
    }
    let live = LiveTask {
        slot,
        record,
        cgroup,
        streams,
        elsewhere: None,
        detaching: CancellationToken::new(),
        usage: DriverUsage::default(),
        reach,
    };
    RecoveredTask::Live(Box::new(live), messages)
}

/// Grants users the passage to the directories of a task that uses the host's paths and was started by an earlier
/// version.
async fn allow_traversal_again(
    data: &DataDir,
    task: &TaskRef,
    slot: &DriverSlot,
    record: &TaskRecord,
) {
    let Ok(isolation) = fs_isolation(slot, task).await else {
        return;
    };
    let passes = TaskHandle::decode(&record.handle)
        .is_ok_and(|handle| sees_host(task, isolation, &handle.config.config));
    if passes && let Err(failure) = allow_traversal(data, task).await {
        tracing::warn!(
            task_id = record.task_id,
            reason = failure.reason,
            "the task may not reach its directories"
        );
    }
}

/// Returns the reach of a running task without a policy. If its driver does not report it, the worst is assumed.
async fn reach(bpf: Option<&Bpf>, slot: &DriverSlot, record: &TaskRecord) -> TaskReach {
    // The future is boxed, because few nodes have to ask.
    let handle = TaskHandle::decode(&record.handle).unwrap_or_default();
    let asked = Box::pin(network_policy::reach_of_running(bpf, slot, handle.config)).await;
    asked.unwrap_or_else(|failure| {
        tracing::warn!(
            task_id = record.task_id,
            reason = failure.reason,
            "how far a running task gets without a network policy is not known"
        );
        TaskReach::default()
    })
}

/// Registers a task with eBPF if it is unknown there, and returns a note for the operator.
fn register_if_unknown(bpf: Option<&Bpf>, cgroup: Option<&TaskCgroup>) -> Option<String> {
    match bpf?.watch_running(cgroup?.id()) {
        Ok(false) => None,
        Ok(true) => Some(
            "the task is counted by eBPF from here on: the programs did not know it".to_owned(),
        ),
        Err(error) => Some(format!(
            "the task is not counted by eBPF: {}",
            chain(&error)
        )),
    }
}

/// Sets the limits of a recovered task, in case they were changed meanwhile. Returns a note for the operator.
pub(super) fn repair_limits(
    resources: &ResourceContext,
    session: &SessionContext,
    task: &TaskRef,
    live: &LiveTask,
) -> Option<String> {
    let cgroup = live.cgroup.as_ref()?;
    let message = match with_limits(resources, session, task, |limits| cgroup.repair(limits)) {
        Ok(drift) if drift.is_empty() => return None,
        Ok(drift) => {
            let count = drift.len() as u64;
            resources
                .limits_repaired
                .fetch_add(count, Ordering::Relaxed);
            let drift: Vec<String> = drift.iter().map(ToString::to_string).collect();
            format!("limits were not the task's: {}", drift.join(", "))
        }
        Err(error) => format!("limits are perhaps not the task's: {}", chain(&error)),
    };
    tracing::warn!(alloc_id = %task.alloc_id(), task = task.name(), "{message}");
    Some(message)
}

/// Sets the limits of a running task whose job changed in place. Returns a note for the operator.
pub(crate) fn reapply_limits(
    resources: &ResourceContext,
    session: &SessionContext,
    task: &TaskRef,
    live: &LiveTask,
) -> Option<String> {
    let cgroup = live.cgroup.as_ref()?;
    let set = with_limits(resources, session, task, |limits| {
        (cgroup.repair(limits), cgroup.missing(limits))
    });
    let in_part = cgroup.kept_in_part(&task.task().resources.io);
    let message = match set {
        (Err(error), _) => format!(
            "the limits of the job as it is now are perhaps not kept: {}",
            chain(&error)
        ),
        (Ok(_), Some(missing)) => missing.reason,
        (Ok(changed), None) if changed.is_empty() => return None,
        (Ok(changed), None) => {
            let changed = changed.iter().map(|CorrectedLimit { file, found, set }| {
                let name = file.file_name().unwrap_or_default().display();
                format!("{name} was {found:?} and is {set:?}")
            });
            let changed: Vec<String> = changed.collect();
            let note = in_part.map_or_else(String::new, |note| format!("; {note}"));
            format!("limits changed with the job: {}{note}", changed.join(", "))
        }
    };
    tracing::info!(alloc_id = %task.alloc_id(), task = task.name(), "{message}");
    Some(message)
}

/// Reopens the output first, because a task with a full FIFO blocks until it is drained.
async fn reopen_streams(context: &AgentContext, task: &TaskRef) -> Streams {
    let dirs = context.storage.data.alloc(task.alloc_id());
    if read_uncollected_reason(&dirs, task.name()).is_some() {
        return Streams::default();
    }
    let owner = owner_of(&context.resources.users, task.alloc_id(), task.task());
    let owner = owner.ok().flatten();
    let opened = Streams::open(
        &context.ring,
        &dirs,
        task.name(),
        owner,
        task.task().logs,
        false,
    )
    .await;
    opened.unwrap_or_else(|error| {
        tracing::error!(alloc_id = %task.alloc_id(), task = task.name(), error = chain(&error),
            "the output of a running task cannot be taken");
        Streams::default()
    })
}
