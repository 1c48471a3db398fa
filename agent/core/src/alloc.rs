//! All tasks of one allocation, and what is reported of it.
//!
//! [`AllocRunner`] hands events to its [`TaskRunner`]s and turns what they want into effects. Every
//! batch of effects begins with [`Effect::Persist`] if anything changed: the shell writes before it
//! acts, so that a start that may have happened is always known to the next agent.
//!
//! An allocation is complete or failed only when nothing of it runs: its ports and memory may be
//! given away the moment the control plane hears it.

use std::collections::VecDeque;

use muster_domain::alloc::{
    AllocReport, ClientStatus, DesiredAlloc, DesiredStatus, TaskPhase, TaskState,
};
use muster_domain::id::{AllocId, Timestamp};
use serde::{Deserialize, Serialize};

use crate::task::{
    StopCause, TaskEffect, TaskInput, TaskPolicy, TaskRunner, TaskSnapshot, shortened,
};

/// Something that happened to an allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The control plane said what it wants.
    DesiredChanged(DesiredStatus),
    /// The allocation's directories are there.
    Prepared,
    /// The allocation's directories could not be made.
    PrepareFailed {
        /// Why.
        reason: String,
    },
    /// Something happened to the task at this position of the group.
    Task {
        /// Its position.
        task_at: usize,
        /// What happened.
        input: TaskInput,
    },
    /// The time that [`AllocRunner::poll_timeout`] named has come.
    TimerFired,
    /// The allocation is to be stopped and everything of it removed.
    DestroyAsked,
    /// Everything of it was removed.
    Destroyed,
}

/// Something the shell must do for an allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Write [`AllocRunner::snapshot`] before anything that follows.
    Persist,
    /// Make the allocation's directories. Answered by `Prepared` or `PrepareFailed`.
    PrepareAlloc,
    /// Do this for the task at this position of the group.
    Task {
        /// Its position.
        task_at: usize,
        /// What to do.
        effect: TaskEffect,
    },
    /// Send [`AllocRunner::report`].
    Report {
        /// The allocation's status changed: do not wait for other news.
        urgent: bool,
    },
    /// Remove directories, logs and records. Answered by `Destroyed`.
    DestroyAlloc,
}

/// What of a runner survives the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocSnapshot {
    /// Its directories are there.
    pub prepared: bool,
    /// It is being destroyed.
    pub destroying: bool,
    /// Its tasks, in the order of the group.
    pub tasks: Vec<TaskSnapshot>,
}

/// A description of an allocation that no task can be taken from.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MalformedAllocError {
    /// The job has no such group.
    #[error(
        "allocation {alloc_id}: the job has no group at position {group_at}; the server is at fault, stop the allocation"
    )]
    Group {
        /// The allocation.
        alloc_id: AllocId,
        /// The position named.
        group_at: u16,
    },
    /// What is known does not fit the job.
    #[error(
        "allocation {alloc_id}: it has {found} tasks and the group named has {wanted}, or others; stop the allocation"
    )]
    Tasks {
        /// The allocation.
        alloc_id: AllocId,
        /// Tasks that are known.
        found: usize,
        /// Tasks in the group.
        wanted: usize,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
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
    stage: Stage,
    destroy_asked: bool,
    effects: VecDeque<Effect>,
    reported: Option<ClientStatus>,
    /// Changes of the tasks that were seen.
    changes: u64,
    /// Something besides the tasks changed and is not yet persisted.
    unsaved: bool,
}

fn policies(desired: &DesiredAlloc) -> Result<Vec<(String, TaskPolicy)>, MalformedAllocError> {
    let DesiredAlloc {
        alloc_id, group_at, ..
    } = *desired;
    let group = desired
        .group()
        .ok_or(MalformedAllocError::Group { alloc_id, group_at })?;
    let job_type = desired.job.spec.job_type;
    Ok(group
        .tasks
        .iter()
        .map(|task| (task.name.clone(), TaskPolicy::of(job_type, group, task)))
        .collect())
}

impl AllocRunner {
    /// An allocation that was just received.
    ///
    /// # Errors
    ///
    /// [`MalformedAllocError::Group`].
    pub fn new(desired: &DesiredAlloc, now: Timestamp) -> Result<Self, MalformedAllocError> {
        let tasks = policies(desired)?
            .into_iter()
            .map(|(name, policy)| TaskRunner::new(&name, policy, now))
            .collect();
        let mut runner = Self::with_tasks(desired.alloc_id, tasks, Stage::Received);
        runner.handle_event(Event::DesiredChanged(desired.desired), now);
        Ok(runner)
    }

    /// An allocation that an earlier agent ran.
    ///
    /// # Errors
    ///
    /// [`MalformedAllocError`] if job and record do not fit.
    pub fn restore(
        desired: &DesiredAlloc,
        snapshot: AllocSnapshot,
        now: Timestamp,
    ) -> Result<Self, MalformedAllocError> {
        let policies = policies(desired)?;
        let AllocSnapshot {
            prepared,
            destroying,
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
            .map(|((_, policy), saved)| TaskRunner::restore(policy, saved))
            .collect();
        let stage = if prepared {
            Stage::Ready
        } else {
            Stage::Received
        };
        let mut runner = Self::with_tasks(desired.alloc_id, tasks, stage);
        runner.destroy_asked = destroying;
        runner.handle_event(Event::DesiredChanged(desired.desired), now);
        Ok(runner)
    }

    /// An allocation that ran here but whose record was lost: each task is looked for, and none is
    /// started before the answer.
    ///
    /// # Errors
    ///
    /// [`MalformedAllocError::Group`].
    pub fn adopt(desired: &DesiredAlloc, now: Timestamp) -> Result<Self, MalformedAllocError> {
        let tasks = policies(desired)?
            .into_iter()
            .map(|(name, policy)| TaskRunner::adopt(&name, policy, now))
            .collect();
        let mut runner = Self::with_tasks(desired.alloc_id, tasks, Stage::Received);
        runner.handle_event(Event::DesiredChanged(desired.desired), now);
        Ok(runner)
    }

    fn with_tasks(alloc_id: AllocId, tasks: Vec<TaskRunner>, stage: Stage) -> Self {
        Self {
            alloc_id,
            tasks,
            stage,
            destroy_asked: false,
            effects: VecDeque::new(),
            reported: None,
            changes: 0,
            unsaved: false,
        }
    }

    /// Takes in what happened.
    pub fn handle_event(&mut self, event: Event, now: Timestamp) {
        match event {
            Event::DesiredChanged(DesiredStatus::Run) | Event::TimerFired => {}
            Event::DesiredChanged(DesiredStatus::Stop | DesiredStatus::Evict) => self.stop(now),
            Event::Prepared => self.prepared(),
            Event::PrepareFailed { reason } => self.prepare_failed(&reason, now),
            Event::Task { task_at, input } => {
                if let Some(task) = self.tasks.get_mut(task_at) {
                    task.handle_input(input, now);
                }
            }
            Event::DestroyAsked => {
                self.unsaved |= !self.destroy_asked;
                self.destroy_asked = true;
                self.stop(now);
            }
            Event::Destroyed => self.stage = Stage::Destroyed,
        }
        self.advance(now);
    }

    /// The job changed in place: decisions from here on follow it.
    ///
    /// # Errors
    ///
    /// [`MalformedAllocError`] if the group has other tasks; nothing changed then.
    pub fn handle_update(&mut self, desired: &DesiredAlloc) -> Result<(), MalformedAllocError> {
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
        Ok(())
    }

    /// The next thing to do.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// When [`Event::TimerFired`] is due, and why.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<(Timestamp, &'static str)> {
        match self.stage {
            Stage::Ready => self.tasks.iter().filter_map(TaskRunner::poll_timeout).min(),
            Stage::Received | Stage::Preparing | Stage::Destroying | Stage::Destroyed => None,
        }
    }

    /// The allocation.
    #[must_use]
    pub fn alloc_id(&self) -> AllocId {
        self.alloc_id
    }

    /// Whether nothing of it runs and nothing will.
    #[must_use]
    pub fn is_terminal(&self) -> bool {
        self.client_status().is_terminal()
    }

    /// Whether everything of it was removed.
    #[must_use]
    pub fn is_destroyed(&self) -> bool {
        self.stage == Stage::Destroyed
    }

    /// When its last task ended; `None` while one may run.
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

    /// What is reported of its tasks, in the order of the group.
    pub fn task_states(&self) -> impl Iterator<Item = &TaskState> {
        self.tasks.iter().map(TaskRunner::state)
    }

    /// Its state as a whole.
    #[must_use]
    pub fn client_status(&self) -> ClientStatus {
        let phase = |wanted| self.task_states().any(|task| task.phase == wanted);
        if phase(TaskPhase::Running) {
            ClientStatus::Running
        } else if phase(TaskPhase::Pending) {
            // A restart's pause is part of running.
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

    /// What to tell the control plane.
    #[must_use]
    pub fn report(&self) -> AllocReport {
        AllocReport {
            alloc_id: self.alloc_id,
            client_status: self.client_status(),
            client_description: self.description(),
            task_states: self.task_states().cloned().collect(),
        }
    }

    /// What must survive the agent.
    #[must_use]
    pub fn snapshot(&self) -> AllocSnapshot {
        let prepared = match self.stage {
            Stage::Received | Stage::Preparing => false,
            Stage::Ready | Stage::Destroying | Stage::Destroyed => true,
        };
        AllocSnapshot {
            prepared,
            destroying: self.destroy_asked,
            tasks: self.tasks.iter().map(TaskRunner::snapshot).collect(),
        }
    }

    fn description(&self) -> String {
        match self.client_status() {
            ClientStatus::Pending => "no task has started".to_owned(),
            ClientStatus::Running => "tasks are running".to_owned(),
            ClientStatus::Complete => "all tasks have ended".to_owned(),
            ClientStatus::Failed => {
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

    fn prepared(&mut self) {
        if self.stage == Stage::Preparing {
            self.stage = Stage::Ready;
            self.unsaved = true;
        }
    }

    fn prepare_failed(&mut self, reason: &str, now: Timestamp) {
        if self.stage != Stage::Preparing {
            return;
        }
        self.stage = Stage::Ready;
        for task in &mut self.tasks {
            task.handle_unrunnable(reason, now);
        }
    }

    fn stop(&mut self, now: Timestamp) {
        for task in &mut self.tasks {
            task.handle_stop(StopCause::Asked, now);
        }
    }

    /// Lets every task do what is due, and says what changed.
    fn advance(&mut self, now: Timestamp) {
        if self.stage == Stage::Ready {
            for task in &mut self.tasks {
                task.handle_timeout(now);
            }
        }
        self.stop_siblings_of_failed(now);
        self.collect_effects();
        match self.stage {
            Stage::Received if !self.is_terminal() => {
                self.stage = Stage::Preparing;
                self.effects.push_back(Effect::PrepareAlloc);
            }
            Stage::Received | Stage::Ready if self.destroy_asked && self.is_terminal() => {
                self.stage = Stage::Destroying;
                self.effects.push_back(Effect::DestroyAlloc);
            }
            Stage::Received
            | Stage::Preparing
            | Stage::Ready
            | Stage::Destroying
            | Stage::Destroyed => {}
        }
    }

    fn stop_siblings_of_failed(&mut self, now: Timestamp) {
        if self.task_states().any(|task| task.failed) {
            for task in &mut self.tasks {
                task.handle_stop(StopCause::SiblingFailed, now);
            }
        }
    }

    fn collect_effects(&mut self) {
        let changes = self.tasks.iter().map(TaskRunner::changes).sum();
        let changed = changes != self.changes;
        self.changes = changes;
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
            let urgent = self.reported != Some(status);
            self.reported = Some(status);
            self.effects.push_back(Effect::Report { urgent });
        }
    }
}

#[cfg(test)]
mod tests;
