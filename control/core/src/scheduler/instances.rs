//! The instances of a job, in the form that the reconciler reads.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_domain::alloc::{ClientStatus, DesiredStatus, TaskEventKind, TaskState};
use muster_domain::eval::Evaluation;
use muster_domain::id::{EvalId, Timestamp};
use muster_domain::job::{Job, JobType, TaskGroup};
use muster_domain::node::{NodeStatus, limits_in_place};

use super::feasible::{ClassFeasibility, Feasibility, FeasibilityCheck, GroupConstraints};
use super::reconciler::{Instance, ReconnectFacts, RescheduleEvent, Taint};
use super::update::{self, Change};
use crate::state::{AllocView, RemainingCapacity, State};

/// Returns whether an instance that ended well is started again elsewhere. Its restarts in place are used up, so it
/// counts as failed; otherwise it would be started without end and without delay.
pub(super) fn runs_for_ever(job_type: JobType) -> bool {
    match job_type {
        JobType::Service => true,
        JobType::Batch | JobType::System | JobType::SysBatch => false,
    }
}

/// Returns the fault of the node of `alloc`.
pub(super) fn taint(state: &State, alloc: AllocView<'_>) -> Taint {
    let is_well = state
        .nodes()
        .column_at(alloc.node())
        .is_some_and(|column| column.takes_work);
    if is_well {
        return Taint::Healthy;
    }
    match state.nodes().get(&alloc.node_id()) {
        None => Taint::Down,
        Some(node) => match node.status {
            NodeStatus::Down => Taint::Down,
            NodeStatus::Disconnected => Taint::OutOfReach,
            NodeStatus::Ready | NodeStatus::Initializing if node.drain.is_some() => Taint::Draining,
            NodeStatus::Ready | NodeStatus::Initializing => Taint::Healthy,
        },
    }
}

/// Returns the type of the job to evaluate. An evaluation may be older than its job: a removed job can be registered
/// again as another type before the evaluation is processed.
pub(super) fn job_type(job: Option<&Job>, eval: &Evaluation) -> JobType {
    job.map_or(eval.job_type, |job| job.current.spec.job_type)
}

/// Returns whether `alloc` is an instance of a job with the type of `job`. A removed job may be registered again as
/// another type; then none of its instances goes on.
pub(super) fn is_of_type(job: &Job, alloc: AllocView<'_>) -> bool {
    alloc.job().spec.job_type == job.current.spec.job_type
}

/// The changes that the current version of a job requires of instances of older versions. Many instances have the same
/// result.
#[derive(Debug)]
pub(super) struct InstanceChanges<'a> {
    by_cohort: BTreeMap<(u64, u64, u16), (Change, Vec<&'a str>)>,
    verdicts: BTreeMap<&'a str, ClassFeasibility>,
    /// The room on nodes after the instances that were checked before have taken their share.
    room: RemainingCapacity<'a>,
}

impl<'a> InstanceChanges<'a> {
    /// Returns a value for which no instance was checked yet.
    pub(super) fn new(state: &'a State) -> Self {
        Self {
            by_cohort: BTreeMap::new(),
            verdicts: BTreeMap::new(),
            room: RemainingCapacity::new(state),
        }
    }

    /// Returns the change that makes `alloc` an instance of `group` of the current version.
    pub(super) fn of(
        &mut self,
        state: &State,
        job: &'a Job,
        group: &'a TaskGroup,
        alloc: AllocView<'_>,
    ) -> Change {
        let (old, new) = (alloc.job(), &job.current);
        if old.is_same(new) {
            return Change::None;
        }
        let key = (old.create_index.0, old.version, alloc.group_at());
        let (change, limited) = self
            .by_cohort
            .entry(key)
            .or_insert_with(|| update::change((&old.spec, alloc.group()), (&new.spec, group)));
        let change = *change;
        let stays = change != Change::InPlace
            || limits_change_there(state, alloc, limited)
                && self.may_stay(state, job, group, alloc)
                && self.has_room(group, alloc);
        if stays { change } else { Change::Destructive }
    }

    /// Returns whether the node of `alloc` has the additional amounts of an instance of `group`; if so, takes them.
    fn has_room(&mut self, group: &TaskGroup, alloc: AllocView<'_>) -> bool {
        // A terminal allocation takes nothing. A decrease does not count: the instance may be one that stays as it is.
        let takes = alloc.ask_with(group.ask()).max(alloc.ask());
        alloc.is_terminal() || self.room.resize(alloc, takes)
    }

    /// Returns whether the node of `alloc` meets the constraints of the current version.
    pub(super) fn may_stay(
        &mut self,
        state: &State,
        job: &'a Job,
        group: &'a TaskGroup,
        alloc: AllocView<'_>,
    ) -> bool {
        let Some(column) = state.nodes().column_at(alloc.node()) else {
            return false;
        };
        let verdicts = self.verdicts.entry(&group.name).or_insert_with(|| {
            ClassFeasibility::new(FeasibilityCheck::new(GroupConstraints::of(
                &job.current.spec,
                group,
            )))
        });
        let (_, verdict) = verdicts.of(column.class, || {
            let node = state.nodes().get(&column.node_id);
            node.map(|node| &*node.spec)
        });
        *verdict == Feasibility::Feasible
    }
}

/// Returns whether the node of `alloc` can change the limits of tasks of `drivers` while they run.
fn limits_change_there(state: &State, alloc: AllocView<'_>, drivers: &[&str]) -> bool {
    if drivers.is_empty() {
        return true;
    }
    let Some(node) = state.nodes().get(&alloc.node_id()) else {
        return false;
    };
    let in_place = |driver: &&str| node.spec.attributes.get(&limits_in_place(driver));
    drivers
        .iter()
        .all(|driver| in_place(driver).is_some_and(|word| word == "1"))
}

/// Returns the time at which `alloc` ended, according to its tasks.
pub(super) fn ended_at(alloc: AllocView<'_>) -> Timestamp {
    let finished = alloc
        .task_states()
        .iter()
        .filter_map(|task| task.finished_at)
        .max();
    finished.unwrap_or(alloc.modify_time())
}

/// Returns whether `alloc` is complete and its main tasks ended by themselves. A task that a drain or a user stopped
/// has not done its work, with any exit code. Sidecars are always stopped; the leader task, if any, stops the others.
fn ran_to_its_end(alloc: AllocView<'_>) -> bool {
    if alloc.client_status() != ClientStatus::Complete {
        return false;
    }
    if alloc.desired() == DesiredStatus::Run {
        return true;
    }
    let tasks = &alloc.group().tasks;
    let has_leader = tasks.iter().any(|task| task.leader);
    let mut decisive = tasks
        .iter()
        .filter(|task| task.lifecycle.is_none() && (task.leader || !has_leader));
    let states = alloc.task_states();
    decisive.all(|task| {
        let state = states.iter().find(|state| state.name == task.name);
        state.is_some_and(|state| state.started_at.is_some() && !was_stopped(state))
    })
}

/// Returns whether the last run of a task was stopped from outside.
fn was_stopped(state: &TaskState) -> bool {
    let last_run = state.events.iter().rev();
    last_run
        .take_while(|event| event.kind != TaskEventKind::Started)
        .any(|event| matches!(event.kind, TaskEventKind::Killing | TaskEventKind::Killed))
}

impl Instance {
    /// Returns the instance for `alloc`, which has ended, without regard to its job.
    pub(super) fn ended(alloc: AllocView<'_>) -> Self {
        Self::with(Taint::Healthy, None, alloc, Change::None)
    }

    /// Returns the instance for `alloc` within `job`, whose current version requires `change` of it.
    pub(super) fn of(
        state: &State,
        job: Option<&Job>,
        alloc: AllocView<'_>,
        change: Change,
    ) -> Self {
        let mut instance = Self::with(taint(state, alloc), job, alloc, change);
        // A newer evaluation of the job cancels the follow-up, and may be processed before the instance is due.
        let is_open = |eval_id: &EvalId| {
            let eval = state.evals().get(eval_id);
            eval.is_some_and(|eval| !eval.status.is_terminal())
        };
        instance.follow_up = instance.follow_up.filter(is_open);
        instance
    }

    fn with(taint: Taint, job: Option<&Job>, alloc: AllocView<'_>, change: Change) -> Self {
        let client = match alloc.client_status() {
            ClientStatus::Complete
                if alloc.desired() == DesiredStatus::Run
                    && runs_for_ever(alloc.job().spec.job_type) =>
            {
                ClientStatus::Failed
            }
            client @ (ClientStatus::Complete
            | ClientStatus::Pending
            | ClientStatus::Running
            | ClientStatus::Failed
            | ClientStatus::Lost
            | ClientStatus::Unknown) => client,
        };
        let (version, current) = (alloc.job(), job.map(|job| &job.current));
        let is_current = current.is_some_and(|current| version.is_same(current));
        let is_older = current.is_some_and(|current| {
            version.version < current.version || version.create_index < current.create_index
        });
        let is_of_other_type = job.is_some_and(|job| !is_of_type(job, alloc));
        let has_next = alloc.next().is_some();
        let started_at = || {
            let states = alloc.task_states();
            states.iter().filter_map(|task| task.started_at).min()
        };
        Self {
            id: alloc.id(),
            name_index: alloc.name_index(),
            taint,
            is_older,
            is_of_other_type,
            is_current,
            version: version.version,
            change,
            desired: alloc.desired(),
            client,
            ran_successfully: ran_to_its_end(alloc),
            deployment: alloc.deployment(),
            healthy: alloc.healthy(),
            canary: alloc.canary(),
            has_next,
            follow_up: alloc.follow_up(),
            transition: alloc.transition(),
            ended_at: if client.is_terminal() {
                ended_at(alloc)
            } else {
                Timestamp(0)
            },
            lost_at: alloc.unreachable_at(),
            events: alloc
                .reschedules()
                .iter()
                .map(|event| RescheduleEvent {
                    at: event.at,
                    delay: event.delay,
                })
                .collect(),
            reconnect_facts: ReconnectFacts {
                next: alloc.next(),
                score: alloc.score(),
                started_at: if has_next || alloc.previous().is_some() {
                    started_at()
                } else {
                    None
                },
            },
        }
    }
}

/// Returns the longest time that the tasks of a group may take to stop.
pub(super) fn kill_timeout(group: &TaskGroup) -> Duration {
    group
        .tasks
        .iter()
        .map(|task| task.kill_timeout)
        .max()
        .unwrap_or_default()
}
