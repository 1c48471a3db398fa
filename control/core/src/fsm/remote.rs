//! Handover of remote tasks from one allocation to another.
//!
//! A task that runs on another system outlives its allocation only by a handover. The entry that places another
//! allocation gives the task's handle to that allocation. So at least one allocation manages the task at any time. A
//! stop without a following handover stops the task. Two managers for a time do no harm: the driver of each manager
//! watches the task, and only the manager that is asked to stop the task stops it. The row records which of the two
//! allocations leaves the task running.

use muster_domain::alloc::{ClientStatus, DesiredStatus, RemoteHandle};
use muster_domain::id::AllocId;
use muster_domain::job::TaskGroup;
use muster_domain::node::NodeStatus;
use muster_domain::plan::Plan;

use super::change::Change;
use crate::state::{AllocView, PlanShared, State};

/// The reason why an allocation is replaced by another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReplaceReason {
    /// Its node is being drained.
    Drained,
    /// Its node was lost and has not come back.
    Lost,
    /// Its node was lost, but is back: the agent receives the order to stop it.
    Returned,
    /// Its node is out of reach. Node and allocation may come back.
    OutOfReach,
    /// It failed. Remote tasks that it could not take over run on.
    Failed,
    /// All its tasks ended well.
    Ended,
    /// A client asked for this very allocation to be stopped.
    Asked,
    /// It is evicted for a more important allocation.
    Preempted,
    /// Its job was updated, asks for fewer instances or is stopped.
    Unwanted,
}

impl ReplaceReason {
    fn of(state: &State, alloc: AllocView<'_>) -> Self {
        let node = state.nodes().get(&alloc.node_id());
        let is_gone = node.is_none_or(|node| match node.status {
            NodeStatus::Down | NodeStatus::Disconnected => true,
            NodeStatus::Ready | NodeStatus::Initializing => false,
        });
        match alloc.client_status() {
            ClientStatus::Lost if is_gone => return Self::Lost,
            ClientStatus::Lost => return Self::Returned,
            ClientStatus::Unknown => return Self::OutOfReach,
            ClientStatus::Failed => return Self::Failed,
            ClientStatus::Complete => return Self::Ended,
            ClientStatus::Pending | ClientStatus::Running => {}
        }
        match alloc.desired() {
            DesiredStatus::Evict => Self::Preempted,
            DesiredStatus::Run | DesiredStatus::Stop if is_gone => Self::OutOfReach,
            DesiredStatus::Run | DesiredStatus::Stop if !alloc.transition().migrate => {
                Self::Unwanted
            }
            DesiredStatus::Run | DesiredStatus::Stop if alloc.remote().is_stop_asked() => {
                Self::Asked
            }
            DesiredStatus::Run | DesiredStatus::Stop => Self::Drained,
        }
    }

    /// Returns whether its remote tasks run on, managed by the allocation that takes its place.
    fn hands_over(self) -> bool {
        match self {
            Self::Drained | Self::Lost | Self::OutOfReach | Self::Failed => true,
            Self::Returned | Self::Ended | Self::Asked | Self::Preempted | Self::Unwanted => false,
        }
    }
}

/// Returns the remote tasks that the replacement of `previous` in `cohort` takes over: the tasks that are the same in
/// its job's version.
pub(super) fn inherited(
    state: &State,
    previous: &AllocId,
    cohort: &PlanShared,
) -> Vec<RemoteHandle> {
    let Some(previous) = state.allocs().get(previous) else {
        return Vec::new();
    };
    let running = previous.remote().running();
    if running.is_empty() || !ReplaceReason::of(state, previous).hands_over() {
        return Vec::new();
    }
    let is_same = |handle: &&RemoteHandle| {
        let old = task(previous.group(), &handle.task);
        old.is_some() && old == task(cohort.group(), &handle.task)
    };
    running.iter().filter(is_same).cloned().collect()
}

fn task<'a>(group: &'a TaskGroup, name: &str) -> Option<&'a muster_domain::job::Task> {
    group.tasks.iter().find(|task| task.name == name)
}

/// Records that the replacement of `previous` was given `handles`, so that the agent of `previous` leaves these tasks
/// running.
pub(super) fn hand_over(change: &mut Change<'_>, previous: &AllocId, handles: &[RemoteHandle]) {
    let Some(alloc) = change.state.allocs().get(previous) else {
        return;
    };
    let kept = alloc.client_status() == ClientStatus::Unknown;
    let key = alloc.key();
    change.update_for_agent(key, |row| row.hand_over(handles, kept));
}

/// Handles an allocation that the plan stops while another allocation, which the plan does not stop, manages the same
/// tasks. One of the two had been out of reach. The agent of the stopped allocation leaves the tasks running; the other
/// agent does so no longer.
pub(super) fn release_remote_tasks(change: &mut Change<'_>, plan: &Plan, key: u64) {
    let state = &*change.state;
    let Some(alloc) = state.allocs().at(key) else {
        return;
    };
    let running = alloc.remote().running();
    let is_stopped = state.jobs().get(&plan.job).is_none_or(|job| job.stop);
    if running.is_empty() || is_stopped {
        return;
    }
    let stays = |other: &AllocView<'_>| {
        let id = other.id();
        id != alloc.id() && !other.is_terminal() && plan.stops.iter().all(|it| it.alloc_id != id)
    };
    let is_twin = |other: &AllocView<'_>| {
        other.name_index() == alloc.name_index() && other.group().name == alloc.group().name
    };
    let twins = state.allocs().of_job(alloc.job_key());
    let twin = twins.filter(is_twin).filter(stays).find(|other| {
        let theirs = other.remote().running();
        theirs.iter().any(|handle| running.contains(handle))
    });
    let Some(twin) = twin else { return };
    let theirs = twin.remote().running();
    let shared = theirs.iter().filter(|handle| running.contains(handle));
    let (twin, shared) = (twin.key(), shared.cloned().collect::<Vec<_>>());
    change.update_for_agent(twin, |row| row.take_back(&shared));
    change.update_for_agent(key, |row| row.hand_over(&shared, false));
}

#[cfg(test)]
mod tests;
