//! The runner of all tasks of one allocation, and the allocation's report to the control plane.
//!
//! [`AllocRunner`] passes events to its [`TaskRunner`]s and turns their effects into its own. Every batch of effects
//! begins with [`Effect::Persist`] if the state changed. The shell writes before it acts, so the next agent has a
//! record of every start that may have happened.
//!
//! An allocation is complete or failed only when none of its processes runs. The control plane may give its ports and
//! memory to another allocation as soon as it receives that report.
//!
//! A stop applies to all tasks, no matter what caused it. After the group's shutdown delay the leader is stopped, then
//! the other tasks. Poststop tasks run after the stop, unless no task of the allocation was ever started.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use muster_domain::alloc::{
    AllocReport, ClientStatus, DesiredAlloc, DesiredStatus, RemoteAlloc, RemoteHandle,
    TaskEventKind, TaskPhase, TaskState,
};
use muster_domain::id::{AllocId, Timestamp};
use muster_domain::one_off;
use serde::{Deserialize, Serialize};

use crate::health::{Condition, Health, HealthSnapshot};
use crate::lifecycle::{self, GroupTask, Role};
use crate::limits;
use crate::task::{
    RemoteTask, StopCause, TaskEffect, TaskInput, TaskPolicy, TaskRunner, TaskSnapshot, shortened,
};

/// Something that happened to an allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The control plane sent a desired status.
    DesiredChanged(DesiredStatus),
    /// The allocations that this allocation replaces have ended.
    TurnCame,
    /// An event for the operator occurred while the directories were being made.
    Message { message: String },
    /// The allocation's directories exist.
    Prepared,
    /// The allocation's directories could not be made.
    PrepareFailed { reason: String },
    /// An event of the task at this position of the group.
    Task {
        task_at: usize,
        /// The input for the task's runner.
        input: TaskInput,
    },
    /// The time that [`AllocRunner::poll_timeout`] named has come.
    TimerFired,
    /// The agent had no contact with a server for as long as the job allows.
    Disconnected,
    /// The allocation holds more than its ephemeral disk.
    DiskExceeded {
        /// A text for the operator: the limit, the use and the largest users of the disk.
        message: String,
    },
    /// The allocation is to be stopped and removed.
    DestroyAsked,
    /// The allocation's directories, logs and records were removed.
    Destroyed,
}

/// An action that the shell must carry out for an allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Write [`AllocRunner::snapshot`] before carrying out any later effect.
    Persist,
    /// Make the allocation's directories. The answer is `Prepared` or `PrepareFailed`.
    PrepareAlloc,
    /// Carry out this effect for the task at this position of the group.
    Task {
        task_at: usize,
        /// The action on the task.
        effect: TaskEffect,
    },
    /// Send [`AllocRunner::report`].
    Report {
        /// Whether the allocation's status changed. The shell then sends the report at once, without waiting for
        /// others.
        urgent: bool,
    },
    /// Remove directories, logs and records. The answer is `Destroyed`.
    DestroyAlloc,
}

/// The part of an [`AllocRunner`] that survives the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocSnapshot {
    /// Whether the allocation's directories exist.
    pub prepared: bool,
    /// Whether the allocation is being destroyed.
    pub destroying: bool,
    /// The allocation's stop, if one has begun.
    pub stopping: Option<AllocStop>,
    /// The state of the health check.
    pub health: HealthSnapshot,
    /// The tasks' states, in the order of the group.
    pub tasks: Vec<TaskSnapshot>,
}

/// The stop of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocStop {
    pub cause: StopCause,
    /// The end of the group's shutdown delay; `None` when the delay is over.
    pub kill_at: Option<Timestamp>,
}

/// A description of an allocation that its tasks cannot be read from.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MalformedAllocError {
    /// The job has no such group.
    #[error(
        "allocation {alloc_id}: the job has no group at position {group_at}; the server is at fault, stop the allocation"
    )]
    Group { alloc_id: AllocId, group_at: u16 },
    /// The recorded tasks do not match the job.
    #[error(
        "allocation {alloc_id}: it has {found} tasks and the group named has {wanted}, or others; stop the allocation"
    )]
    Tasks {
        alloc_id: AllocId,
        /// The number of recorded tasks.
        found: usize,
        /// The number of tasks in the group.
        wanted: usize,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AllocStage {
    /// Other allocations have to end before this one begins.
    Waiting,
    Received,
    Preparing,
    Ready,
    Destroying,
    Destroyed,
}

/// Runs one allocation.
#[derive(Debug)]
pub struct AllocRunner {
    alloc_id: AllocId,
    tasks: Vec<TaskRunner>,
    stage: AllocStage,
    destroy_asked: bool,
    stopping: Option<AllocStop>,
    /// Time from the decision to stop the allocation to the first stop of a task.
    shutdown_delay: Duration,
    health: Health,
    effects: VecDeque<Effect>,
    reported: Option<ClientStatus>,
    /// The tasks' change count at the last collection of effects.
    changes: u64,
    /// Whether state outside the tasks changed and is not yet persisted.
    unsaved: bool,
    /// Whether state outside the tasks changed and is not yet reported.
    unreported: bool,
}

/// Returns the first stage of an allocation that waits for the allocations in `before`.
fn first_stage(before: &BTreeSet<AllocId>) -> AllocStage {
    if before.is_empty() {
        AllocStage::Received
    } else {
        AllocStage::Waiting
    }
}

/// Describes an allocation that waits for the end of the allocations in `before`.
fn waiting_for(before: &BTreeSet<AllocId>) -> String {
    let names: Vec<String> = before.iter().map(AllocId::to_string).collect();
    let names = names.join(", ");
    format!("waiting until what it takes the place of has ended on this node: {names}")
}

fn shutdown_delay(desired: &DesiredAlloc) -> Duration {
    let group = desired.group();
    group.map_or(Duration::ZERO, |group| {
        group.shutdown_delay.min(limits::KILL_TIMEOUT_MAX)
    })
}

fn policies(desired: &DesiredAlloc) -> Result<Vec<(String, TaskPolicy)>, MalformedAllocError> {
    let DesiredAlloc {
        alloc_id, group_at, ..
    } = *desired;
    let group = desired
        .group()
        .ok_or(MalformedAllocError::Group { alloc_id, group_at })?;
    let spec = &desired.job.spec;
    let policy = |task| TaskPolicy {
        once: spec.is_one_off(),
        ..TaskPolicy::of(spec.job_type, task)
    };
    Ok(group
        .tasks
        .iter()
        .map(|task| (task.name.clone(), policy(task)))
        .collect())
}

impl AllocRunner {
    /// Creates the runner of an allocation that was just received.
    ///
    /// # Errors
    ///
    /// [`MalformedAllocError::Group`].
    pub fn new(desired: &DesiredAlloc, now: Timestamp) -> Result<Self, MalformedAllocError> {
        let remote = RemoteAlloc::none(desired.alloc_id);
        Self::taking(desired, &remote, &BTreeSet::new(), now)
    }

    /// Like [`Self::new`], with remote tasks that already run, and with allocations that have to end before this one
    /// begins ([`start_order::before`](crate::start_order::before)).
    ///
    /// # Errors
    ///
    /// [`MalformedAllocError::Group`].
    pub fn taking(
        desired: &DesiredAlloc,
        remote: &RemoteAlloc,
        before: &BTreeSet<AllocId>,
        now: Timestamp,
    ) -> Result<Self, MalformedAllocError> {
        let mut tasks: Vec<TaskRunner> = policies(desired)?
            .into_iter()
            .map(|(name, policy)| TaskRunner::new(&name, policy, now))
            .collect();
        if !before.is_empty() {
            let message = waiting_for(before);
            for task in &mut tasks {
                task.record_event(TaskEventKind::Setup, &message, now);
            }
        }
        let health = Health::new(desired, now);
        let mut runner = Self::with_tasks(desired, tasks, health, first_stage(before));
        runner.handle_remote(remote);
        runner.handle_event(Event::DesiredChanged(desired.desired), now);
        Ok(runner)
    }

    /// Restores the runner of an allocation that an earlier agent ran.
    ///
    /// # Errors
    ///
    /// [`MalformedAllocError`] if the job and the record do not match.
    pub fn restore(
        desired: &DesiredAlloc,
        snapshot: AllocSnapshot,
        now: Timestamp,
    ) -> Result<Self, MalformedAllocError> {
        Self::restore_with(desired, snapshot, Vec::new(), &BTreeSet::new(), now)
    }

    /// Like [`Self::restore`], with the recorded value of [`Self::remote_tasks`]. If the allocation had not begun, the
    /// allocations in `before` have to end before it begins.
    ///
    /// # Errors
    ///
    /// [`MalformedAllocError`] if the job and the record do not match.
    pub fn restore_with(
        desired: &DesiredAlloc,
        snapshot: AllocSnapshot,
        remote: Vec<RemoteTask>,
        before: &BTreeSet<AllocId>,
        now: Timestamp,
    ) -> Result<Self, MalformedAllocError> {
        let policies = policies(desired)?;
        let AllocSnapshot {
            prepared,
            destroying,
            stopping,
            health,
            tasks,
        } = snapshot;
        if policies.len() != tasks.len() {
            return Err(MalformedAllocError::Tasks {
                alloc_id: desired.alloc_id,
                found: tasks.len(),
                wanted: policies.len(),
            });
        }
        let tasks = policies
            .into_iter()
            .zip(tasks)
            .map(|((_, policy), saved)| TaskRunner::restore(policy, saved, now))
            .collect();
        let stage = if prepared {
            AllocStage::Ready
        } else {
            first_stage(before)
        };
        let health = Health::restore(desired, health, now);
        let mut runner = Self::with_tasks(desired, tasks, health, stage);
        runner.destroy_asked = destroying;
        runner.stopping = stopping;
        for (task, remote) in runner.tasks.iter_mut().zip(remote) {
            task.restore_remote(remote);
        }
        runner.handle_event(Event::DesiredChanged(desired.desired), now);
        Ok(runner)
    }

    /// Creates the runner of an allocation that ran on this node but whose record was lost. The runner recovers each
    /// task, and starts none before the recovery is answered.
    ///
    /// # Errors
    ///
    /// [`MalformedAllocError::Group`].
    pub fn adopt(desired: &DesiredAlloc, now: Timestamp) -> Result<Self, MalformedAllocError> {
        let tasks = policies(desired)?
            .into_iter()
            .map(|(name, policy)| TaskRunner::adopt(&name, policy, now))
            .collect();
        let health = Health::new(desired, now);
        let mut runner = Self::with_tasks(desired, tasks, health, AllocStage::Received);
        runner.handle_event(Event::DesiredChanged(desired.desired), now);
        Ok(runner)
    }

    fn with_tasks(
        desired: &DesiredAlloc,
        tasks: Vec<TaskRunner>,
        health: Health,
        stage: AllocStage,
    ) -> Self {
        Self {
            alloc_id: desired.alloc_id,
            tasks,
            stage,
            destroy_asked: false,
            stopping: None,
            shutdown_delay: shutdown_delay(desired),
            health,
            effects: VecDeque::new(),
            reported: None,
            changes: 0,
            unsaved: false,
            unreported: false,
        }
    }

    /// Takes in an event.
    pub fn handle_event(&mut self, event: Event, now: Timestamp) {
        match event {
            Event::DesiredChanged(DesiredStatus::Run) | Event::TimerFired => {}
            Event::DesiredChanged(DesiredStatus::Stop | DesiredStatus::Evict) => {
                self.stop(StopCause::Asked, now);
            }
            Event::Disconnected => self.stop(StopCause::Disconnected, now),
            Event::DiskExceeded { message } => self.disk_exceeded(&message, now),
            Event::TurnCame => {
                if self.stage == AllocStage::Waiting {
                    self.stage = AllocStage::Received;
                }
            }
            Event::Message { message } => self.record_event(&message, now),
            Event::Prepared => self.prepared(),
            Event::PrepareFailed { reason } => self.prepare_failed(&reason, now),
            Event::Task { task_at, input } => {
                if let Some(task) = self.tasks.get_mut(task_at) {
                    let is_last = task.sibling().role == Role::Poststop;
                    let stopping = self.stopping.filter(|_| !is_last);
                    if let (Some(stopping), TaskInput::Exited { .. }) = (stopping, &input) {
                        task.handle_end_during_stop(stopping.cause);
                    }
                    task.handle_input(input, now);
                }
            }
            Event::DestroyAsked => {
                self.unsaved |= !self.destroy_asked;
                self.destroy_asked = true;
                for task in &mut self.tasks {
                    task.handle_forgotten();
                }
                self.stop_poststop_tasks(now);
                self.stop(StopCause::Asked, now);
            }
            Event::Destroyed => self.stage = AllocStage::Destroyed,
        }
        self.advance(now);
    }

    /// Takes in an in-place change of the job or of its deployment. Later decisions follow the new state. The caller
    /// handles the event that comes with the change after this call.
    ///
    /// # Errors
    ///
    /// [`MalformedAllocError`] if the group has other tasks. The runner is then unchanged.
    pub fn handle_update(
        &mut self,
        desired: &DesiredAlloc,
        now: Timestamp,
    ) -> Result<(), MalformedAllocError> {
        let policies = policies(desired)?;
        let names = policies.iter().map(|(name, _)| name);
        if !names.eq(self.task_states().map(|task| &task.name)) {
            return Err(MalformedAllocError::Tasks {
                alloc_id: self.alloc_id,
                found: self.tasks.len(),
                wanted: policies.len(),
            });
        }
        for (task, (_, policy)) in self.tasks.iter_mut().zip(policies) {
            task.handle_policy(policy);
        }
        self.shutdown_delay = shutdown_delay(desired);
        let anew = self.health.handle_update(desired, now);
        self.unsaved |= anew;
        self.unreported |= anew;
        Ok(())
    }

    /// Passes the control plane's remote handles to the tasks. The caller handles the event that comes with them
    /// afterwards.
    pub fn handle_remote(&mut self, remote: &RemoteAlloc) {
        let of = |handles: &[RemoteHandle], task: &TaskRunner| {
            let mut handles = handles.iter();
            let found = handles.find(|handle| handle.task == task.state().name);
            found.map(|found| found.handle.clone())
        };
        for task in &mut self.tasks {
            let (take, leave) = (of(&remote.take, task), of(&remote.leave, task));
            task.handle_remote(take, leave);
        }
    }

    /// Returns the next effect.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// Returns the time at which [`Event::TimerFired`] is due, and the reason.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<(Timestamp, &'static str)> {
        let health = self.health.poll_timeout(self.condition(&self.siblings()));
        match self.stage {
            AllocStage::Ready => {
                let tasks = self.tasks.iter().filter_map(TaskRunner::poll_timeout);
                let kill_at = self.stopping.and_then(|stopping| stopping.kill_at);
                let kill_at = kill_at.map(|at| (at, "stop the tasks"));
                tasks.chain(kill_at).chain(health).min()
            }
            AllocStage::Waiting | AllocStage::Received | AllocStage::Preparing => health,
            AllocStage::Destroying | AllocStage::Destroyed => None,
        }
    }

    /// The id of the allocation.
    #[must_use]
    pub fn alloc_id(&self) -> AllocId {
        self.alloc_id
    }

    /// Whether no process of the allocation runs and none will be started.
    #[must_use]
    pub fn is_terminal(&self) -> bool {
        self.client_status().is_terminal()
    }

    /// Whether the allocation's directories, logs and records were removed.
    #[must_use]
    pub fn is_destroyed(&self) -> bool {
        self.stage == AllocStage::Destroyed
    }

    /// Whether the removal of the allocation was requested.
    #[must_use]
    pub fn is_destroy_asked(&self) -> bool {
        self.destroy_asked
    }

    /// Whether the allocation is to stop, or has stopped. It then no longer needs a resource that it lacks to begin.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.stopping.is_some() || self.destroy_asked || self.is_terminal()
    }

    /// The time at which the last task ended; `None` while a task may run.
    #[must_use]
    pub fn finished_at(&self) -> Option<Timestamp> {
        if !self.is_terminal() {
            return None;
        }
        self.tasks
            .iter()
            .filter_map(|task| task.state().finished_at)
            .max()
    }

    /// The reported states of the tasks, in the order of the group.
    pub fn task_states(&self) -> impl Iterator<Item = &TaskState> {
        self.tasks.iter().map(TaskRunner::state)
    }

    /// The status of the allocation as a whole.
    #[must_use]
    pub fn client_status(&self) -> ClientStatus {
        let phase = |wanted| self.task_states().any(|task| task.phase == wanted);
        if phase(TaskPhase::Running) {
            ClientStatus::Running
        } else if phase(TaskPhase::Pending) {
            // The pause before a restart counts as running.
            let ran = self.task_states().any(|task| task.started_at.is_some());
            if ran {
                ClientStatus::Running
            } else {
                ClientStatus::Pending
            }
        } else if self.task_states().any(|task| task.failed) {
            ClientStatus::Failed
        } else {
            ClientStatus::Complete
        }
    }

    /// The report to the control plane.
    #[must_use]
    pub fn report(&self) -> AllocReport {
        AllocReport {
            alloc_id: self.alloc_id,
            client_status: self.client_status(),
            client_description: self.description(),
            task_states: self.task_states().cloned().collect(),
            healthy: self.health.healthy(),
            end: self.end(),
            remote: self.remote_handles(),
        }
    }

    /// The handles of remote tasks that run.
    fn remote_handles(&self) -> Vec<RemoteHandle> {
        let handle = |task: &TaskRunner| {
            Some(RemoteHandle {
                task: task.state().name.clone(),
                handle: task.remote().current_handle()?.to_vec(),
            })
        };
        self.tasks.iter().filter_map(handle).collect()
    }

    /// Whether the task at this position of the group is known to run on another system.
    #[must_use]
    pub fn runs_elsewhere(&self, task_at: usize) -> bool {
        let task = self.tasks.get(task_at);
        task.is_some_and(|task| task.remote().running.is_some())
    }

    /// The remote parts of the tasks' state, in the order of the group. They must survive the agent besides the
    /// snapshot. Empty if no task has one.
    #[must_use]
    pub fn remote_tasks(&self) -> Vec<RemoteTask> {
        let tasks: Vec<_> = self.tasks.iter().map(|it| it.remote().clone()).collect();
        let is_any = tasks.iter().any(|task| *task != RemoteTask::default());
        if is_any { tasks } else { Vec::new() }
    }

    /// The end of a one-off task's work, once no process of the task runs.
    fn end(&self) -> Option<Box<one_off::WorkEnd>> {
        let mut ends = self.tasks.iter().filter_map(TaskRunner::end);
        let end = ends.next().filter(|_| self.is_terminal())?;
        Some(Box::new(end.clone()))
    }

    /// Returns the state that must survive the agent.
    #[must_use]
    pub fn snapshot(&self) -> AllocSnapshot {
        let prepared = match self.stage {
            AllocStage::Waiting | AllocStage::Received | AllocStage::Preparing => false,
            AllocStage::Ready | AllocStage::Destroying | AllocStage::Destroyed => true,
        };
        AllocSnapshot {
            prepared,
            destroying: self.destroy_asked,
            stopping: self.stopping,
            health: self.health.snapshot(),
            tasks: self.tasks.iter().map(TaskRunner::snapshot).collect(),
        }
    }

    fn description(&self) -> String {
        match self.client_status() {
            ClientStatus::Pending => "no task has started".to_owned(),
            ClientStatus::Running => "tasks are running".to_owned(),
            ClientStatus::Complete if self.is_stopped_by(StopCause::Disconnected) => {
                "stopped: no server was in reach".to_owned()
            }
            ClientStatus::Complete => "all tasks have ended".to_owned(),
            ClientStatus::Failed => {
                let mut disk = self.tasks.iter().filter_map(TaskRunner::disk_words);
                if let Some(words) = disk.next() {
                    return words;
                }
                let failed = self.task_states().find(|task| task.failed);
                failed.map_or_else(String::new, |task| {
                    let why = task
                        .events
                        .last()
                        .map_or("", |event| event.message.as_str());
                    shortened(&format!("task {} failed: {why}", task.name))
                })
            }
            ClientStatus::Lost | ClientStatus::Unknown => String::new(),
        }
    }

    fn record_event(&mut self, message: &str, now: Timestamp) {
        for task in &mut self.tasks {
            if task.state().phase != TaskPhase::Dead {
                task.record_event(TaskEventKind::Setup, message, now);
            }
        }
    }

    fn prepared(&mut self) {
        if self.stage == AllocStage::Preparing {
            self.stage = AllocStage::Ready;
            self.unsaved = true;
        }
    }

    fn prepare_failed(&mut self, reason: &str, now: Timestamp) {
        if self.stage != AllocStage::Preparing {
            return;
        }
        self.stage = AllocStage::Ready;
        for task in &mut self.tasks {
            task.handle_unrunnable(reason, now);
        }
    }

    fn siblings(&self) -> Vec<GroupTask> {
        self.tasks.iter().map(TaskRunner::sibling).collect()
    }

    fn is_stopped_by(&self, cause: StopCause) -> bool {
        self.stopping
            .is_some_and(|stopping| stopping.cause == cause)
    }

    fn condition(&self, siblings: &[GroupTask]) -> Condition {
        if self.is_stopped_by(StopCause::Asked) || self.is_stopped_by(StopCause::Disconnected) {
            Condition::Leaving
        } else {
            Condition::of(siblings)
        }
    }

    /// Begins to stop the tasks that are not dead and are not poststop tasks. A stop that has begun keeps its cause.
    fn stop(&mut self, cause: StopCause, now: Timestamp) {
        let left = |task: &TaskRunner| {
            task.sibling().role != Role::Poststop && task.state().phase != TaskPhase::Dead
        };
        if self.stopping.is_some() || !self.tasks.iter().any(left) {
            return;
        }
        self.unsaved = true;
        let delay = self.shutdown_delay;
        let waits = !delay.is_zero() && self.tasks.iter().any(|task| !task.is_idle());
        if waits {
            let message = format!("waiting for the group's shutdown delay of {delay:?}");
            for task in self.tasks.iter_mut().filter(|task| !task.is_idle()) {
                task.record_event(TaskEventKind::Killing, &message, now);
            }
        }
        self.stopping = Some(AllocStop {
            cause,
            kill_at: waits.then(|| now.plus(delay)),
        });
    }

    /// Fails the allocation, because it holds more than its ephemeral disk. A restart would exceed the limit again,
    /// because the disk keeps its content. The stop has no delay, and poststop tasks do not run. A stop that the
    /// control plane or a lost connection caused keeps its cause and loses only its delay.
    fn disk_exceeded(&mut self, message: &str, now: Timestamp) {
        if self.is_stopped_by(StopCause::DiskExceeded) || self.is_terminal() {
            return;
        }
        self.unsaved = true;
        for task in &mut self.tasks {
            if task.state().phase != TaskPhase::Dead {
                task.record_event(TaskEventKind::DiskExceeded, message, now);
            }
        }
        let wanted = self.stopping.map(|stopping| stopping.cause);
        let cause = match wanted {
            Some(cause @ (StopCause::Asked | StopCause::Disconnected)) => cause,
            Some(
                StopCause::SiblingFailed
                | StopCause::LeaderDead
                | StopCause::MainDead
                | StopCause::DiskExceeded,
            )
            | None => StopCause::DiskExceeded,
        };
        self.stopping = Some(AllocStop {
            cause,
            kill_at: None,
        });
    }

    /// A second stop also stops poststop tasks, which may never end.
    fn stop_poststop_tasks(&mut self, now: Timestamp) {
        let is_last = |task: &TaskRunner| task.sibling().role == Role::Poststop;
        let ended = |task: &TaskRunner| is_last(task) || task.state().phase == TaskPhase::Dead;
        if self.tasks.iter().all(ended) {
            for task in self.tasks.iter_mut().filter(|task| is_last(task)) {
                task.handle_stop(StopCause::Asked, now);
            }
        }
    }

    /// Lets every task do its due work until no task changes, and collects the effects.
    fn advance(&mut self, now: Timestamp) {
        loop {
            let before = self.task_changes();
            self.update_blocked_tasks();
            if self.stage == AllocStage::Ready {
                for task in &mut self.tasks {
                    task.handle_timeout(now);
                }
            }
            if let Some(cause) = lifecycle::reason_to_stop(&self.siblings()) {
                self.stop(cause, now);
            }
            self.stop_tasks(now);
            if self.task_changes() == before {
                break;
            }
        }
        self.collect_effects(now);
        match self.stage {
            AllocStage::Received if !self.is_terminal() => {
                self.stage = AllocStage::Preparing;
                self.effects.push_back(Effect::PrepareAlloc);
            }
            AllocStage::Waiting | AllocStage::Received | AllocStage::Ready
                if self.destroy_asked && self.is_terminal() =>
            {
                self.stage = AllocStage::Destroying;
                self.effects.push_back(Effect::DestroyAlloc);
            }
            AllocStage::Waiting
            | AllocStage::Received
            | AllocStage::Preparing
            | AllocStage::Ready
            | AllocStage::Destroying
            | AllocStage::Destroyed => {}
        }
    }

    fn task_changes(&self) -> u64 {
        self.tasks.iter().map(TaskRunner::changes).sum()
    }

    /// Sets for each task whether it must wait for other tasks.
    fn update_blocked_tasks(&mut self) {
        let siblings = self.siblings();
        for (task, sibling) in self.tasks.iter_mut().zip(&siblings) {
            task.set_blocked(!lifecycle::may_start(sibling.role, &siblings));
        }
    }

    /// Continues a stop. Tasks without a process stop at once. After the delay the leader stops, then the other tasks,
    /// and the sidecars last.
    fn stop_tasks(&mut self, now: Timestamp) {
        let Some(AllocStop { cause, kill_at }) = self.stopping else {
            return;
        };
        // If no task was ever started, poststop tasks have nothing to run after.
        let is_ready = self.stage == AllocStage::Ready;
        let nothing_ran = !self.siblings().iter().any(|task| task.attempted);
        let mut tasks: Vec<&mut TaskRunner> = self
            .tasks
            .iter_mut()
            .filter(|task| nothing_ran || cause.fails() || task.sibling().role != Role::Poststop)
            // Without directories a remote task cannot be taken over, so it cannot be stopped yet.
            .filter(|task| is_ready || !task.must_take_over())
            .collect();
        for task in tasks.iter_mut().filter(|task| task.is_idle()) {
            task.handle_stop(cause, now);
        }
        if kill_at.is_some_and(|at| now < at) && !tasks.iter().all(|task| task.is_idle()) {
            return;
        }
        let leads = |task: &TaskRunner| task.sibling().leader && !task.is_idle();
        if let Some(leader) = tasks.iter_mut().find(|task| leads(task)) {
            leader.handle_stop(cause, now);
        } else {
            // Main tasks may need their sidecars until they have ended.
            let is_needed =
                |task: &TaskRunner| !task.sibling().role.is_sidecar() && !task.is_idle();
            let sidecars_wait = !cause.fails() && tasks.iter().any(|task| is_needed(task));
            let now_due = tasks
                .iter_mut()
                .filter(|task| !(sidecars_wait && task.sibling().role.is_sidecar()));
            for task in now_due {
                task.handle_stop(cause, now);
            }
        }
        self.unsaved |= kill_at.is_some();
        self.stopping = Some(AllocStop {
            cause,
            kill_at: None,
        });
    }

    fn collect_effects(&mut self, now: Timestamp) {
        let judged = self.health.judge(self.condition(&self.siblings()), now);
        let changes = self.task_changes();
        let changed = changes != self.changes || judged || self.unreported;
        self.changes = changes;
        self.unreported = false;
        if changed || self.unsaved {
            self.unsaved = false;
            self.effects.push_back(Effect::Persist);
        }
        for (task_at, task) in self.tasks.iter_mut().enumerate() {
            while let Some(effect) = task.poll_effect() {
                self.effects.push_back(Effect::Task { task_at, effect });
            }
        }
        if changed {
            let status = self.client_status();
            let urgent = judged || self.reported != Some(status);
            self.reported = Some(status);
            self.effects.push_back(Effect::Report { urgent });
        }
    }
}

#[cfg(test)]
mod tests;
