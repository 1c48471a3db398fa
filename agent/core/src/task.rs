//! The runner of one task: when the task is started, restarted, stopped, killed and given up.
//!
//! [`TaskRunner`] is the only writer of the [`TaskState`] that is reported. It never requests a start while a start, a
//! recovery or a process may be under way, so the shell never runs two processes for one task. The shell manages
//! directories, cgroups and logs. [`crate::alloc`] manages the other tasks of the allocation.

mod remote;
mod restart;

use std::collections::VecDeque;
use std::time::Duration;

use muster_domain::alloc::{Exit, TaskEvent, TaskEventKind, TaskNetwork, TaskPhase, TaskState};
use muster_domain::id::Timestamp;
use muster_domain::job::{JobType, RestartPolicy, Task};
use muster_domain::one_off::WorkEnd;
use serde::{Deserialize, Serialize};

use crate::lifecycle::{GroupTask, Role};
use crate::limits;
pub use remote::RemoteTask;
use restart::RestartDecision;
pub use restart::RestartTracker;

/// The settings that decide about a task, taken from its job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskPolicy {
    /// Whether a task that succeeded is started again.
    pub restart_on_success: bool,
    /// How often and when the task is started again.
    pub restart: RestartPolicy,
    /// The signal that asks the task to stop.
    pub kill_signal: String,
    /// Time from the kill signal to the kill.
    pub kill_timeout: Duration,
    /// Time from the decision to stop the task to the kill signal.
    pub shutdown_delay: Duration,
    pub role: Role,
    /// Whether the other tasks end with this task.
    pub leader: bool,
    /// Whether the task is a one-off task. Such a task runs at most once, and the end of its work is reported.
    pub once: bool,
}

impl TaskPolicy {
    /// The policy of `task` in a job of type `job_type`.
    #[must_use]
    pub fn of(job_type: JobType, task: &Task) -> Self {
        let role = Role::of(task.lifecycle);
        Self {
            restart_on_success: role.restarts_on_success(!job_type.is_batch()),
            restart: task.restart,
            kill_signal: task.kill_signal.clone(),
            kill_timeout: task.kill_timeout.min(limits::KILL_TIMEOUT_MAX),
            shutdown_delay: task.shutdown_delay.min(limits::KILL_TIMEOUT_MAX),
            role,
            leader: task.leader,
            once: false,
        }
    }
}

/// The state of a task in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TaskLifecycle {
    /// The task is to be started at `at`.
    Waiting {
        /// The earliest time of the start.
        at: Timestamp,
    },
    /// A start was requested and is not answered.
    Starting,
    /// A recovery was requested and is not answered.
    Recovering,
    Running,
    /// The process runs and is to end. It gets the kill signal at `kill_at`.
    Closing {
        /// Time of the kill signal.
        kill_at: Timestamp,
    },
    /// The process runs and was asked to end. The agent kills it at `force_at`.
    Stopping {
        /// Time of the kill by the agent.
        force_at: Timestamp,
        /// Whether the process was killed before.
        forced: bool,
    },
    /// The task ended and will not be started again.
    Dead,
}

/// An event of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskInput {
    Started {
        /// A note for the operator, such as a limit that could not be enforced; may be empty.
        note: String,
    },
    /// A start failed and left no process or resource.
    StartFailed {
        reason: String,
        /// Whether the same start may succeed later.
        retryable: bool,
    },
    /// The task runs on another system, with this handle. The input comes before `Started` or `Recovered`.
    RunsElsewhere {
        /// The handle, as it may be given to another agent.
        handle: Vec<u8>,
    },
    /// The driver gave the task a network of the driver's own. The input comes before `Started`, and after a recovery.
    Reached {
        /// The addresses of the task in that network.
        network: Box<TaskNetwork>,
    },
    /// The task that was to be taken over is gone.
    NothingToTake {
        /// The evidence that the task is gone.
        reason: String,
    },
    /// The agent no longer manages the task, which continues to run.
    Detached {
        /// A note for the operator; may be empty.
        note: String,
    },
    /// The process ended, and all resources of that attempt were removed.
    Exited {
        /// The exit of the process.
        exit: Exit,
        /// A detail for the operator, such as the limit of an out-of-memory kill; may be empty.
        detail: String,
        /// The end of a one-off task's work; `None` for other tasks.
        end: Option<Box<WorkEnd>>,
    },
    /// A recovery found the process running.
    Recovered,
    /// A recovery found that the task was never started.
    NeverStarted,
    /// The process was lost in a way that the driver cannot recover, such as by a reboot.
    Lost { reason: String },
    /// A message for the operator that changes no state. It comes from the driver, or from the agent about settings
    /// that the driver does not make.
    Message { message: String },
    /// The driver could not carry out a stop. The agent kills the task when the time is over.
    StopFailed { reason: String },
}

/// An action that the shell must carry out for a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskEffect {
    /// Start the task. The answer is `Started` or `StartFailed`; `Exited` follows `Started`.
    Start {
        /// Counts the starts of this task on this node, from 1.
        attempt: u32,
    },
    /// Take over the task, which runs on another system. The answer is that of a start, or `NothingToTake`.
    TakeOver {
        /// The number of the attempt; a takeover counts as a start.
        attempt: u32,
        /// The handle by which the driver finds the task.
        handle: Vec<u8>,
    },
    /// Find the task's process. The answer is `Recovered` (and later `Exited`), `Exited`, `NeverStarted` or `Lost`.
    Recover {
        /// The number of the start that is to be recovered.
        attempt: u32,
    },
    /// Ask the task to end. `Exited` follows.
    Stop {
        signal: String,
        /// The driver kills the task after this time.
        timeout: Duration,
    },
    /// Let the driver stop managing the task, and remove the task's resources on this node. `Detached` or `Exited`
    /// follows.
    Detach,
    /// Kill all processes in the task's cgroup, without the driver. `Exited` follows.
    Force,
}

/// The failure reason of a one-off task that was stopped because no server was in reach.
const NO_SERVER: &str = "stopped: no server was in reach for as long as a task may run without one";

/// Why a task is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StopCause {
    /// The control plane wants the allocation stopped, or the agent destroys it.
    Asked,
    /// Another task of the allocation failed.
    SiblingFailed,
    /// The leader of the allocation ended.
    LeaderDead,
    /// Only sidecars are left.
    MainDead,
    /// The agent had no server in reach for as long as the job allows.
    Disconnected,
    /// The allocation holds more than its ephemeral disk.
    DiskExceeded,
}

impl StopCause {
    /// Returns the event and the message that are reported besides the stop itself.
    fn event(self) -> Option<(TaskEventKind, &'static str)> {
        match self {
            // The allocation reports its exceeded disk itself, with the largest users of the disk.
            Self::Asked | Self::DiskExceeded => None,
            Self::SiblingFailed => Some((
                TaskEventKind::SiblingFailed,
                "another task of the allocation failed",
            )),
            Self::LeaderDead => Some((TaskEventKind::Killing, "the leader task ended")),
            Self::MainDead => Some((TaskEventKind::Killing, "all main tasks ended")),
            Self::Disconnected => Some((
                TaskEventKind::Killing,
                "no server was in reach for disconnect.stop_on_client_after",
            )),
        }
    }

    /// Whether a stop for this cause fails the task.
    pub(crate) fn fails(self) -> bool {
        match self {
            Self::DiskExceeded => true,
            Self::Asked
            | Self::SiblingFailed
            | Self::LeaderDead
            | Self::MainDead
            | Self::Disconnected => false,
        }
    }
}

/// The part of a [`TaskRunner`] that survives the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskSnapshot {
    pub state: TaskState,
    pub life: TaskLifecycle,
    pub attempt: u32,
    /// Restarts counted by the policy.
    pub tracker: RestartTracker,
    /// The cause of the task's stop, if a stop was requested.
    pub stop: Option<StopCause>,
    /// Start time of the newest process.
    pub running_since: Option<Timestamp>,
    /// The end of a one-off task's work, once it has ended.
    pub end: Option<Box<WorkEnd>>,
}

/// Runs one task.
#[derive(Debug)]
pub struct TaskRunner {
    policy: TaskPolicy,
    state: TaskState,
    life: TaskLifecycle,
    attempt: u32,
    tracker: RestartTracker,
    stop: Option<StopCause>,
    running_since: Option<Timestamp>,
    end: Option<Box<WorkEnd>>,
    remote: RemoteTask,
    /// Whether the task waits for other tasks of its allocation. The value follows from their states and is not saved.
    is_blocked: bool,
    effects: VecDeque<TaskEffect>,
    /// Counts changes of the saved or reported state.
    changes: u64,
}

impl TaskRunner {
    /// Creates the runner of a task that was just received. Its start is due at once.
    #[must_use]
    pub fn new(name: &str, policy: TaskPolicy, now: Timestamp) -> Self {
        let mut runner = Self {
            policy,
            state: TaskState::pending(name),
            life: TaskLifecycle::Waiting { at: now },
            attempt: 0,
            tracker: RestartTracker::default(),
            stop: None,
            running_since: None,
            end: None,
            remote: RemoteTask::default(),
            is_blocked: false,
            effects: VecDeque::new(),
            changes: 0,
        };
        runner.event(TaskEventKind::Received, "the agent has the task", now);
        runner
    }

    /// Restores the runner of a task that an earlier agent ran. If a process of the task may exist, the runner recovers
    /// it.
    #[must_use]
    pub fn restore(policy: TaskPolicy, snapshot: TaskSnapshot, now: Timestamp) -> Self {
        let TaskSnapshot {
            state,
            life,
            attempt,
            tracker,
            stop,
            running_since,
            end,
        } = snapshot;
        let mut runner = Self {
            policy,
            state,
            life,
            attempt,
            tracker,
            stop,
            running_since: running_since.map(|since| since.min(now)),
            end,
            remote: RemoteTask::default(),
            is_blocked: false,
            effects: VecDeque::new(),
            changes: 0,
        };
        match life {
            TaskLifecycle::Waiting { at } => {
                // A wall clock that was set back while no agent ran must not prolong the delay.
                let latest = now.plus(runner.policy.restart.longest_delay());
                runner.life = TaskLifecycle::Waiting { at: at.min(latest) };
            }
            TaskLifecycle::Dead => {}
            TaskLifecycle::Starting
            | TaskLifecycle::Recovering
            | TaskLifecycle::Running
            | TaskLifecycle::Closing { .. }
            | TaskLifecycle::Stopping { .. } => {
                runner.life = TaskLifecycle::Recovering;
                runner.effects.push_back(TaskEffect::Recover { attempt });
            }
        }
        runner
    }

    /// Creates the runner of a task whose record was lost but that runs as far as is known. The runner recovers it as
    /// its first start.
    #[must_use]
    pub fn adopt(name: &str, policy: TaskPolicy, now: Timestamp) -> Self {
        let mut runner = Self::new(name, policy, now);
        runner.attempt = 1;
        runner.state.phase = TaskPhase::Running;
        runner.state.started_at = Some(now);
        runner.life = TaskLifecycle::Recovering;
        runner.effects.push_back(TaskEffect::Recover { attempt: 1 });
        runner
    }

    /// Restores the state that an earlier agent recorded for a remote task.
    pub fn restore_remote(&mut self, remote: RemoteTask) {
        self.remote = remote;
    }

    /// Takes in the control plane's handles. The task of the handle `take` already runs and is to be taken over. The
    /// task of the handle `leave` was given to another allocation.
    pub fn handle_remote(&mut self, take: Option<Vec<u8>>, leave: Option<Vec<u8>>) {
        let is_untouched = match self.life {
            TaskLifecycle::Waiting { .. } => self.attempt == 0,
            TaskLifecycle::Starting
            | TaskLifecycle::Recovering
            | TaskLifecycle::Running
            | TaskLifecycle::Closing { .. }
            | TaskLifecycle::Stopping { .. }
            | TaskLifecycle::Dead => false,
        };
        let before = self.remote.clone();
        if take.is_some() && is_untouched {
            self.remote.take = take;
        }
        self.remote.leave = leave;
        self.changes += u64::from(self.remote != before);
    }

    /// Takes in that the control plane has forgotten the task's allocation.
    pub fn handle_forgotten(&mut self) {
        if self.remote.current_handle().is_some() && !self.remote.forgotten {
            self.remote.forgotten = true;
            self.changes += 1;
        }
    }

    /// Takes in a job change that needs no new process. The next decision follows `policy`.
    pub fn handle_policy(&mut self, policy: TaskPolicy) {
        self.policy = policy;
    }

    /// Sets whether the task waits for other tasks of its allocation. A waiting task is not started.
    pub fn set_blocked(&mut self, is_blocked: bool) {
        self.is_blocked = is_blocked;
    }

    /// Records an event of the allocation for the operator.
    pub fn record_event(&mut self, kind: TaskEventKind, message: &str, now: Timestamp) {
        self.event(kind, message, now);
    }

    /// Does the due action: a start, the kill signal, or the kill.
    pub fn handle_timeout(&mut self, now: Timestamp) {
        match self.life {
            TaskLifecycle::Waiting { at }
                if at <= now && self.stop.is_none() && !self.is_blocked =>
            {
                self.start(now);
            }
            TaskLifecycle::Closing { kill_at } if kill_at <= now => self.ask_to_stop(now),
            TaskLifecycle::Stopping { force_at, forced } if force_at <= now => {
                self.force(forced, now);
            }
            TaskLifecycle::Waiting { .. }
            | TaskLifecycle::Starting
            | TaskLifecycle::Recovering
            | TaskLifecycle::Running
            | TaskLifecycle::Closing { .. }
            | TaskLifecycle::Stopping { .. }
            | TaskLifecycle::Dead => {}
        }
    }

    /// Takes in an event.
    pub fn handle_input(&mut self, input: TaskInput, now: Timestamp) {
        match input {
            TaskInput::Started { note } => self.started(&note, now),
            TaskInput::StartFailed { reason, retryable } => {
                self.start_failed(&reason, retryable, now);
            }
            TaskInput::RunsElsewhere { handle } => self.runs_elsewhere(handle),
            TaskInput::Reached { network } => self.reached(network),
            TaskInput::NothingToTake { reason } => self.handle_missing_remote(&reason, now),
            TaskInput::Detached { note } => self.detached(&note, now),
            TaskInput::Exited { exit, detail, end } => self.exited(exit, &detail, end, now),
            TaskInput::Recovered => self.recovered(now),
            TaskInput::NeverStarted => self.never_started(now),
            TaskInput::Lost { reason } => self.lost(&reason, now),
            TaskInput::Message { message } => self.event(TaskEventKind::Driver, &message, now),
            TaskInput::StopFailed { reason } => self.stop_failed(&reason, now),
        }
    }

    /// Stops the task permanently. A repeated call changes nothing.
    pub fn handle_stop(&mut self, cause: StopCause, now: Timestamp) {
        if self.stop.is_some() || self.life == TaskLifecycle::Dead {
            return;
        }
        self.stop = Some(cause);
        self.changes += 1;
        if let Some((kind, message)) = cause.event() {
            self.event(kind, message, now);
        }
        match self.life {
            TaskLifecycle::Waiting { .. } if self.must_take_over() => self.start(now),
            TaskLifecycle::Waiting { .. } => {
                self.remote.take = None;
                self.event(TaskEventKind::Killed, "stopped while no process ran", now);
                let why = self
                    .disk_words()
                    .unwrap_or_else(|| STOPPED_EARLY.to_owned());
                self.die(cause.fails(), &why, now);
            }
            // The pending answer to the start or recovery decides whether there is a process to stop.
            TaskLifecycle::Starting
            | TaskLifecycle::Recovering
            | TaskLifecycle::Closing { .. }
            | TaskLifecycle::Stopping { .. }
            | TaskLifecycle::Dead => {}
            TaskLifecycle::Running => self.close(now),
        }
    }

    /// Takes in that the process ended before its turn in a stop of the allocation. The task is not restarted and has
    /// not failed.
    pub fn handle_end_during_stop(&mut self, cause: StopCause) {
        if self.life != TaskLifecycle::Dead && self.stop.is_none() {
            self.stop = Some(cause);
            self.changes += 1;
        }
    }

    /// Fails a task that cannot be started because its directories could not be made. A process that may exist is not
    /// touched.
    pub fn handle_unrunnable(&mut self, reason: &str, now: Timestamp) {
        match self.life {
            TaskLifecycle::Waiting { .. } => {
                self.event(TaskEventKind::DriverFailure, reason, now);
                self.die(true, &not_created(reason), now);
            }
            TaskLifecycle::Starting
            | TaskLifecycle::Recovering
            | TaskLifecycle::Running
            | TaskLifecycle::Closing { .. }
            | TaskLifecycle::Stopping { .. }
            | TaskLifecycle::Dead => {}
        }
    }

    /// Returns the next effect.
    pub fn poll_effect(&mut self) -> Option<TaskEffect> {
        self.effects.pop_front()
    }

    /// Returns the time at which [`Self::handle_timeout`] has work, and the reason.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<(Timestamp, &'static str)> {
        match self.life {
            TaskLifecycle::Waiting { .. } if self.is_blocked => None,
            TaskLifecycle::Waiting { at } => Some((at, "start the task")),
            TaskLifecycle::Closing { kill_at } => Some((kill_at, "stop the task")),
            TaskLifecycle::Stopping { force_at, .. } => Some((force_at, "kill the task")),
            TaskLifecycle::Starting
            | TaskLifecycle::Recovering
            | TaskLifecycle::Running
            | TaskLifecycle::Dead => None,
        }
    }

    /// The reported state.
    #[must_use]
    pub fn state(&self) -> &TaskState {
        &self.state
    }

    /// The end of a one-off task's work, once it has ended.
    #[must_use]
    pub fn end(&self) -> Option<&WorkEnd> {
        self.end.as_deref()
    }

    /// The state of the task as a remote task.
    #[must_use]
    pub fn remote(&self) -> &RemoteTask {
        &self.remote
    }

    /// Whether the task runs on another system and must be taken over even if it is to stop.
    pub(crate) fn must_take_over(&self) -> bool {
        let is_over = self.life == TaskLifecycle::Dead;
        self.remote.must_take_over() && !is_over
    }

    /// The state of the task in its life.
    #[must_use]
    pub fn life(&self) -> TaskLifecycle {
        self.life
    }

    /// Whether the task has no process and none is under way.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        match self.life {
            TaskLifecycle::Waiting { .. } | TaskLifecycle::Dead => true,
            TaskLifecycle::Starting
            | TaskLifecycle::Recovering
            | TaskLifecycle::Running
            | TaskLifecycle::Closing { .. }
            | TaskLifecycle::Stopping { .. } => false,
        }
    }

    /// Returns the state that sibling tasks depend on.
    #[must_use]
    pub fn sibling(&self) -> GroupTask {
        GroupTask {
            role: self.policy.role,
            leader: self.policy.leader,
            phase: self.state.phase,
            failed: self.state.failed,
            attempted: self.attempt > 0,
            started: self.state.started_at.is_some(),
            // While a recovery is under way, it is unknown whether the process still runs.
            running_since: self
                .running_since
                .filter(|_| self.life != TaskLifecycle::Recovering),
        }
    }

    /// A counter that grows with every change of the saved or reported state.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// The state that must survive the agent.
    #[must_use]
    pub fn snapshot(&self) -> TaskSnapshot {
        TaskSnapshot {
            state: self.state.clone(),
            life: self.life,
            attempt: self.attempt,
            tracker: self.tracker,
            stop: self.stop,
            running_since: self.running_since,
            end: self.end.clone(),
        }
    }

    fn start(&mut self, now: Timestamp) {
        self.attempt += 1;
        if self.attempt > 1 {
            self.state.restarts += 1;
            self.state.last_restart = Some(now);
        }
        self.event(
            TaskEventKind::Setup,
            "cgroup, FIFOs and directories are being made",
            now,
        );
        self.set_life(TaskLifecycle::Starting);
        let attempt = self.attempt;
        self.effects.push_back(match self.remote.take.clone() {
            Some(handle) => TaskEffect::TakeOver { attempt, handle },
            None => TaskEffect::Start { attempt },
        });
    }

    fn runs_elsewhere(&mut self, handle: Vec<u8>) {
        match self.life {
            TaskLifecycle::Starting | TaskLifecycle::Recovering => {
                self.remote.running = Some(handle);
                self.changes += 1;
            }
            TaskLifecycle::Waiting { .. }
            | TaskLifecycle::Running
            | TaskLifecycle::Closing { .. }
            | TaskLifecycle::Stopping { .. }
            | TaskLifecycle::Dead => {}
        }
    }

    fn reached(&mut self, network: Box<TaskNetwork>) {
        match self.life {
            TaskLifecycle::Starting
            | TaskLifecycle::Recovering
            | TaskLifecycle::Running
            | TaskLifecycle::Closing { .. }
            | TaskLifecycle::Stopping { .. } => {
                if self.state.network.as_ref() != Some(&network) {
                    self.state.network = Some(network);
                    self.changes += 1;
                }
            }
            // The input came too late.
            TaskLifecycle::Waiting { .. } | TaskLifecycle::Dead => {}
        }
    }

    fn handle_missing_remote(&mut self, reason: &str, now: Timestamp) {
        if self.life != TaskLifecycle::Starting {
            return;
        }
        self.remote.take = None;
        if let Some(cause) = self.stop {
            self.event(TaskEventKind::Killed, reason, now);
            self.die(cause.fails(), STOPPED_EARLY, now);
            return;
        }
        let message = format!("it cannot be taken over, so it is started anew: {reason}");
        self.event(TaskEventKind::Driver, &message, now);
        self.effects.push_back(TaskEffect::Start {
            attempt: self.attempt,
        });
    }

    fn detached(&mut self, note: &str, now: Timestamp) {
        match self.life {
            TaskLifecycle::Stopping { .. } => {}
            TaskLifecycle::Waiting { .. }
            | TaskLifecycle::Starting
            | TaskLifecycle::Recovering
            | TaskLifecycle::Running
            | TaskLifecycle::Closing { .. }
            | TaskLifecycle::Dead => return,
        }
        if !note.is_empty() {
            self.event(TaskEventKind::DriverFailure, note, now);
        }
        self.remote = RemoteTask::default();
        self.event(TaskEventKind::Killed, DETACHED, now);
        self.die(false, DETACHED, now);
    }

    fn started(&mut self, note: &str, now: Timestamp) {
        if self.life != TaskLifecycle::Starting {
            return;
        }
        if !note.is_empty() {
            self.event(TaskEventKind::Setup, note, now);
        }
        match self.remote.take.take() {
            Some(_) => self.event(TaskEventKind::Recovered, TAKEN_OVER, now),
            None => self.event(TaskEventKind::Started, "the process runs", now),
        }
        self.running_since = Some(now);
        self.runs(now);
    }

    fn recovered(&mut self, now: Timestamp) {
        if self.life != TaskLifecycle::Recovering {
            return;
        }
        self.event(
            TaskEventKind::Recovered,
            "found running after a restart of the agent",
            now,
        );
        // The agent died after it took the task over and before it recorded that.
        let taken = self.remote.take.take();
        self.remote.running = self.remote.running.take().or(taken);
        self.runs(now);
    }

    /// Takes in that a process exists. If the task is to stop, the process is asked to end.
    fn runs(&mut self, now: Timestamp) {
        self.state.phase = TaskPhase::Running;
        self.state.started_at.get_or_insert(now);
        self.running_since.get_or_insert(now);
        self.set_life(TaskLifecycle::Running);
        if self.stop.is_some() {
            self.close(now);
        }
    }

    fn never_started(&mut self, now: Timestamp) {
        if self.life != TaskLifecycle::Recovering {
            return;
        }
        if let Some(cause) = self.stop.filter(|_| !self.remote.must_take_over()) {
            self.die(cause.fails(), STOPPED_EARLY, now);
            return;
        }
        if self.policy.once {
            // An unrecorded process may have run. A recovery that finds no process is no proof that none ran.
            self.lost("the agent ended while it was being started", now);
            return;
        }
        // A start that never happened must not count.
        if self.attempt > 1 {
            self.state.restarts = self.state.restarts.saturating_sub(1);
        }
        self.attempt = self.attempt.saturating_sub(1);
        self.set_life(TaskLifecycle::Waiting { at: now });
        if self.stop.is_some() {
            self.start(now);
        } else {
            self.handle_timeout(now);
        }
    }

    fn start_failed(&mut self, reason: &str, retryable: bool, now: Timestamp) {
        if self.life != TaskLifecycle::Starting {
            return;
        }
        self.event(TaskEventKind::DriverFailure, reason, now);
        let why = not_created(reason);
        if let Some(cause) = self.stop {
            self.die(cause.fails(), &why, now);
        } else if retryable {
            self.restart_or_give_up(&why, now);
        } else {
            self.event(
                TaskEventKind::NotRestarting,
                "the driver says that a retry cannot help",
                now,
            );
            self.die(true, &why, now);
        }
    }

    fn exited(&mut self, exit: Exit, detail: &str, end: Option<Box<WorkEnd>>, now: Timestamp) {
        match self.life {
            TaskLifecycle::Running
            | TaskLifecycle::Closing { .. }
            | TaskLifecycle::Stopping { .. }
            | TaskLifecycle::Recovering
            | TaskLifecycle::Starting => {}
            TaskLifecycle::Waiting { .. } | TaskLifecycle::Dead => return,
        }
        (self.remote.take, self.remote.running) = (None, None);
        // The reporting clock gives the start time. A process that was found ended did run.
        self.state.started_at.get_or_insert(now);
        let message = exit.message(detail);
        self.event(TaskEventKind::Terminated(exit), &message, now);
        if self.policy.once {
            let mut end = end.unwrap_or_else(|| Box::new(end_of(exit, &message, now)));
            if self.stop.is_some_and(StopCause::fails) {
                // The work failed because of the stop's cause, not because of how the process ended after the signal.
                let why = self.disk_words().unwrap_or_else(|| message.clone());
                *end = WorkEnd {
                    exit: end.exit,
                    oom: end.oom.take(),
                    usage: std::mem::take(&mut end.usage),
                    ..WorkEnd::failure(&why, end.at)
                };
            }
            if self.stop == Some(StopCause::Disconnected) && end.failed {
                // The driver only knows that the task was asked to stop, as for a client that cancels.
                NO_SERVER.clone_into(&mut end.failure_reason);
            }
            self.end = Some(end);
        }
        if let Some(cause) = self.stop {
            self.event(TaskEventKind::Killed, "the task was stopped", now);
            self.die(cause.fails(), &message, now);
        } else if exit.success() && !self.policy.restart_on_success {
            self.die(false, &message, now);
        } else {
            self.restart_or_give_up(&message, now);
        }
    }

    fn lost(&mut self, reason: &str, now: Timestamp) {
        if self.life == TaskLifecycle::Dead {
            return;
        }
        let exit = Exit {
            unknown: true,
            ..Exit::default()
        };
        self.event(TaskEventKind::Terminated(exit), reason, now);
        let failed = self.stop.is_none_or(StopCause::fails);
        self.die(failed, reason, now);
    }

    fn stop_failed(&mut self, reason: &str, now: Timestamp) {
        match self.life {
            TaskLifecycle::Stopping { force_at, forced } => {
                self.event(TaskEventKind::DriverFailure, reason, now);
                // The task keeps its kill timeout, because the process may have received the signal.
                let earliest = now.plus(self.policy.kill_timeout);
                self.set_life(TaskLifecycle::Stopping {
                    force_at: force_at.min(earliest),
                    forced,
                });
            }
            TaskLifecycle::Waiting { .. }
            | TaskLifecycle::Starting
            | TaskLifecycle::Recovering
            | TaskLifecycle::Running
            | TaskLifecycle::Closing { .. }
            | TaskLifecycle::Dead => {}
        }
    }

    /// Begins the stop of a process. The process gets the kill signal now, or after the delay.
    fn close(&mut self, now: Timestamp) {
        let delay = self.policy.shutdown_delay;
        // A task that fills a disk gets no delay, because it would continue to write.
        if delay.is_zero() || self.is_leaving() || self.stop.is_some_and(StopCause::fails) {
            self.ask_to_stop(now);
            return;
        }
        let message = format!("waiting for the shutdown delay of {delay:?}");
        self.event(TaskEventKind::Killing, &message, now);
        self.set_life(TaskLifecycle::Closing {
            kill_at: now.plus(delay),
        });
    }

    /// Whether a stop leaves the task running, because another allocation manages it.
    fn is_leaving(&self) -> bool {
        self.stop == Some(StopCause::Asked) && self.remote.survives_stop()
    }

    fn ask_to_stop(&mut self, now: Timestamp) {
        if self.is_leaving() {
            self.event(TaskEventKind::Killing, DETACH_SENT, now);
            self.detach(now);
            return;
        }
        let timeout = self.policy.kill_timeout;
        let signal = self.policy.kill_signal.clone();
        let name = match signal.as_str() {
            "" => "the driver's stop signal",
            name => name,
        };
        let message = format!("{name} sent, force after {timeout:?}");
        self.event(TaskEventKind::Killing, &message, now);
        let force_at = now.plus(timeout).plus(limits::STOP_GRACE);
        self.set_life(TaskLifecycle::Stopping {
            force_at,
            forced: false,
        });
        self.effects.push_back(TaskEffect::Stop { signal, timeout });
    }

    /// Requests a detach, and repeats the request if there is no answer. A task of another allocation is never killed.
    fn detach(&mut self, now: Timestamp) {
        self.set_life(TaskLifecycle::Stopping {
            force_at: now.plus(limits::DETACH_INTERVAL),
            forced: false,
        });
        self.effects.push_back(TaskEffect::Detach);
    }

    fn force(&mut self, forced: bool, now: Timestamp) {
        if self.is_leaving() {
            self.detach(now);
            return;
        }
        if !forced {
            self.event(
                TaskEventKind::Killing,
                "the kill timeout is over: the task is killed",
                now,
            );
        }
        self.set_life(TaskLifecycle::Stopping {
            force_at: now.plus(limits::FORCE_INTERVAL),
            forced: true,
        });
        self.effects.push_back(TaskEffect::Force);
    }

    fn restart_or_give_up(&mut self, reason: &str, now: Timestamp) {
        if self.policy.once {
            let why = "it is a one-off task, which runs at most once";
            self.event(TaskEventKind::NotRestarting, why, now);
            self.die(true, reason, now);
            return;
        }
        match self.tracker.decide(&self.policy.restart, now) {
            RestartDecision::Restart { at, why } => {
                self.event(
                    TaskEventKind::Restarting {
                        delay: at.since(now),
                    },
                    why,
                    now,
                );
                self.state.phase = TaskPhase::Pending;
                self.running_since = None;
                self.set_life(TaskLifecycle::Waiting { at });
                self.handle_timeout(now);
            }
            RestartDecision::GiveUp { why } => {
                self.event(TaskEventKind::NotRestarting, &why, now);
                self.die(true, reason, now);
            }
        }
    }

    /// The message about the allocation's disk, if the disk limit was exceeded.
    pub(crate) fn disk_words(&self) -> Option<String> {
        let events = self.state.events.iter().rev();
        let mut disk_events = events.filter(|event| event.kind == TaskEventKind::DiskExceeded);
        disk_events.next().map(|event| event.message.clone())
    }

    /// Marks the task as dead. If no better end of a one-off task's work is known, the work failed for `reason`.
    fn die(&mut self, failed: bool, reason: &str, now: Timestamp) {
        if self.policy.once && self.end.is_none() {
            self.end = Some(Box::new(WorkEnd::failure(reason, now)));
        }
        self.state.phase = TaskPhase::Dead;
        self.state.failed = failed;
        self.state.finished_at = Some(now);
        self.running_since = None;
        self.set_life(TaskLifecycle::Dead);
    }

    fn set_life(&mut self, life: TaskLifecycle) {
        match life {
            // In these states the address no longer leads to this task.
            TaskLifecycle::Waiting { .. } | TaskLifecycle::Dead => self.state.network = None,
            TaskLifecycle::Starting
            | TaskLifecycle::Recovering
            | TaskLifecycle::Running
            | TaskLifecycle::Closing { .. }
            | TaskLifecycle::Stopping { .. } => {}
        }
        self.life = life;
        self.changes += 1;
    }

    fn event(&mut self, kind: TaskEventKind, message: &str, at: Timestamp) {
        self.changes += 1;
        self.state.push(TaskEvent {
            at,
            kind,
            message: shortened(message),
        });
    }
}

/// The failure reason of a one-off task that was stopped before any process of it ran.
const STOPPED_EARLY: &str = "stopped-before-running";

/// The message about a remote task that an earlier agent or another allocation had started.
const TAKEN_OVER: &str =
    "taken over from the allocation before: it runs on elsewhere and was not started anew";
/// The message about a remote task that is to be detached.
const DETACH_SENT: &str = "DETACH sent: the task runs on, managed by another allocation";
/// The message about a remote task that was detached.
const DETACHED: &str = "detached: the task runs on";

/// The failure reason of a one-off task that could not be started.
fn not_created(reason: &str) -> String {
    format!("failed to create container: {reason}")
}

/// Returns the end of work for which only the exit of its process is known.
#[must_use]
pub fn end_of(exit: Exit, message: &str, at: Timestamp) -> WorkEnd {
    let exit_known = (!exit.unknown).then_some(exit);
    if exit.success() {
        return WorkEnd {
            exit: exit_known,
            at,
            ..WorkEnd::default()
        };
    }
    WorkEnd {
        exit: exit_known,
        ..WorkEnd::failure(message, at)
    }
}

/// Returns `text`, cut at a character boundary to the reported length.
pub(crate) fn shortened(text: &str) -> String {
    let mut end = text.len().min(limits::MESSAGE_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

#[cfg(test)]
mod tests;
