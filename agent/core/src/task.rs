//! One task: when it is started, restarted, stopped, forced and given up.
//!
//! [`TaskRunner`] is the only writer of the [`TaskState`] that is reported. It never asks for a
//! start while a start, a recovery or a process may be under way, so the shell never runs two
//! processes for one task. Directories, cgroups and logs are the shell's; other tasks of the
//! allocation are [`crate::alloc`]'s.

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
    /// Whether a task that ended well is started again.
    pub restart_on_success: bool,
    /// How often and when it is started again.
    pub restart: RestartPolicy,
    /// The signal that asks it to stop.
    pub kill_signal: String,
    /// From that signal to force.
    pub kill_timeout: Duration,
    /// From the decision to stop it to that signal.
    pub shutdown_delay: Duration,
    pub role: Role,
    /// Whether the others end with it.
    pub leader: bool,
    /// It is a one-off task: it runs at most once, and how its work ended is reported.
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

/// Where a task is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TaskLifecycle {
    /// It is to be started at `at`.
    Waiting {
        /// The earliest time of the start.
        at: Timestamp,
    },
    /// A start was asked for and is not answered.
    Starting,
    /// A recovery was asked for and is not answered.
    Recovering,
    Running,
    /// Its process runs and is to end: at `kill_at` it is asked to.
    Closing {
        /// Time of the request to end.
        kill_at: Timestamp,
    },
    /// Its process runs and was asked to end; at `force_at` the agent kills it.
    Stopping {
        /// Time of the kill by the agent.
        force_at: Timestamp,
        /// Whether it was forced before.
        forced: bool,
    },
    /// It ended and will not be started again.
    Dead,
}

/// Something that happened to a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskInput {
    Started {
        /// A note for the operator, such as a limit that could not be enforced; may be empty.
        note: String,
    },
    /// A start failed and left nothing behind.
    StartFailed {
        reason: String,
        /// Whether the same start may succeed later.
        retryable: bool,
    },
    /// It runs on another system, with this handle: said before `Started` or `Recovered`.
    RunsElsewhere {
        /// The handle, as it may be given to another agent.
        handle: Vec<u8>,
    },
    /// Its driver put it on a network of the driver's own: said before `Started`, and after a recovery.
    Reached {
        /// Where it is reached.
        network: Box<TaskNetwork>,
    },
    /// The task that was to be taken over is gone.
    NothingToTake {
        /// The evidence for that.
        reason: String,
    },
    /// The agent manages the task no longer, which runs on.
    Detached {
        /// A note for the operator; may be empty.
        note: String,
    },
    /// Its process ended, and everything of that attempt was removed.
    Exited {
        /// The exit of the process.
        exit: Exit,
        /// More for the operator, such as the limit of an out-of-memory kill; may be empty.
        detail: String,
        /// How the work of a one-off task ended; `None` of everything else.
        end: Option<Box<WorkEnd>>,
    },
    /// A recovery found its process running.
    Recovered,
    /// A recovery found that it was never started.
    NeverStarted,
    /// Its process went away with something that no start can bring back, such as a reboot.
    Lost { reason: String },
    /// Its driver, or the agent on what the driver does not set, has something to tell that changes nothing.
    Message { message: String },
    /// The driver could not carry out a stop. The agent forces when the time is over.
    StopFailed { reason: String },
}

/// Something the shell must do for a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskEffect {
    /// Start it. Answered by `Started`, `StartFailed`, and after `Started` by `Exited`.
    Start {
        /// Counts the starts of this task on this node, from 1.
        attempt: u32,
    },
    /// Take it over: it runs on another system. Answered as a start, or by `NothingToTake`.
    TakeOver {
        /// Counts as a start.
        attempt: u32,
        /// The handle by which the driver finds it.
        handle: Vec<u8>,
    },
    /// Find its process. Answered by `Recovered` (and later `Exited`), `Exited`, `NeverStarted` or
    /// `Lost`.
    Recover {
        /// The start that is looked for.
        attempt: u32,
    },
    /// Ask it to end. `Exited` follows.
    Stop {
        signal: String,
        /// The driver forces after this.
        timeout: Duration,
    },
    /// Let the driver manage it no longer, and remove what is of it here. `Detached` follows, or `Exited`.
    Detach,
    /// Kill everything in its cgroup, without the driver. `Exited` follows.
    Force,
}

/// Why a one-off task failed that was stopped because no server was in reach.
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
    /// The event and message that are reported besides the stop itself.
    fn event(self) -> Option<(TaskEventKind, &'static str)> {
        match self {
            // Told with what is on the disk, by the allocation.
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

    /// Whether a task that is stopped for it has failed.
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
    /// Whether it was asked to stop, and why.
    pub stop: Option<StopCause>,
    /// Start time of its newest process.
    pub running_since: Option<Timestamp>,
    /// How the work of a one-off task ended, once it has.
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
    /// It waits for others of its allocation; follows from their states, and is not saved.
    held: bool,
    effects: VecDeque<TaskEffect>,
    /// Counts changes of what is saved and reported.
    changes: u64,
}

impl TaskRunner {
    /// A task that was just received; it is due at once.
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
            held: false,
            effects: VecDeque::new(),
            changes: 0,
        };
        runner.event(TaskEventKind::Received, "the agent has the task", now);
        runner
    }

    /// A task that an earlier agent ran. If a process of it may exist, it is looked for.
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
            held: false,
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

    /// A task whose record was lost but that runs as far as is known: it is looked for as its first
    /// start.
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

    /// Restores what an earlier agent knew of it as a remote task.
    pub fn restore_remote(&mut self, remote: RemoteTask) {
        self.remote = remote;
    }

    /// The control plane says that it runs already, with the handle `take`, and that another allocation was given the
    /// task of the handle `leave`.
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

    /// The control plane has forgotten its allocation.
    pub fn handle_forgotten(&mut self) {
        if self.remote.held().is_some() && !self.remote.forgotten {
            self.remote.forgotten = true;
            self.changes += 1;
        }
    }

    /// The job changed in a way that needs no new process: the next decision follows `policy`.
    pub fn handle_policy(&mut self, policy: TaskPolicy) {
        self.policy = policy;
    }

    /// The task waits for others of its allocation, or no longer does: while it waits it is not started.
    pub fn handle_held(&mut self, held: bool) {
        self.held = held;
    }

    /// Something that an operator should know happened to its allocation.
    pub fn record_event(&mut self, kind: TaskEventKind, message: &str, now: Timestamp) {
        self.event(kind, message, now);
    }

    /// Does what is due: a start, the signal that asks it to end, or force.
    pub fn handle_timeout(&mut self, now: Timestamp) {
        match self.life {
            TaskLifecycle::Waiting { at } if at <= now && self.stop.is_none() && !self.held => {
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

    /// Takes in what happened.
    pub fn handle_input(&mut self, input: TaskInput, now: Timestamp) {
        match input {
            TaskInput::Started { note } => self.started(&note, now),
            TaskInput::StartFailed { reason, retryable } => {
                self.start_failed(&reason, retryable, now);
            }
            TaskInput::RunsElsewhere { handle } => self.runs_elsewhere(handle),
            TaskInput::Reached { network } => self.reached(network),
            TaskInput::NothingToTake { reason } => self.nothing_to_take(&reason, now),
            TaskInput::Detached { note } => self.detached(&note, now),
            TaskInput::Exited { exit, detail, end } => self.exited(exit, &detail, end, now),
            TaskInput::Recovered => self.recovered(now),
            TaskInput::NeverStarted => self.never_started(now),
            TaskInput::Lost { reason } => self.lost(&reason, now),
            TaskInput::Message { message } => self.event(TaskEventKind::Driver, &message, now),
            TaskInput::StopFailed { reason } => self.stop_failed(&reason, now),
        }
    }

    /// Stops the task for good. Repeating it changes nothing.
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
            TaskLifecycle::Waiting { .. } if self.must_be_taken() => self.start(now),
            TaskLifecycle::Waiting { .. } => {
                self.remote.take = None;
                self.event(TaskEventKind::Killed, "stopped while no process ran", now);
                let why = self
                    .disk_words()
                    .unwrap_or_else(|| STOPPED_EARLY.to_owned());
                self.die(cause.fails(), &why, now);
            }
            // After a start or recovery, the answer on its way decides what there is to stop.
            TaskLifecycle::Starting
            | TaskLifecycle::Recovering
            | TaskLifecycle::Closing { .. }
            | TaskLifecycle::Stopping { .. }
            | TaskLifecycle::Dead => {}
            TaskLifecycle::Running => self.close(now),
        }
    }

    /// The process ended before its turn in a stop of the allocation. The task is neither started again nor failed.
    pub fn handle_end_during_stop(&mut self, cause: StopCause) {
        if self.life != TaskLifecycle::Dead && self.stop.is_none() {
            self.stop = Some(cause);
            self.changes += 1;
        }
    }

    /// The task cannot be started: its directories could not be made. A process that may exist is
    /// not touched.
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

    /// The next thing to do.
    pub fn poll_effect(&mut self) -> Option<TaskEffect> {
        self.effects.pop_front()
    }

    /// When [`Self::handle_timeout`] has something to do, and why.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<(Timestamp, &'static str)> {
        match self.life {
            TaskLifecycle::Waiting { .. } if self.held => None,
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

    /// How the work of a one-off task ended, once it has.
    #[must_use]
    pub fn end(&self) -> Option<&WorkEnd> {
        self.end.as_deref()
    }

    /// The state of it as a remote task.
    #[must_use]
    pub fn remote(&self) -> &RemoteTask {
        &self.remote
    }

    /// Whether it runs on another system, and must be taken over even if it is to stop.
    pub(crate) fn must_be_taken(&self) -> bool {
        let is_over = self.life == TaskLifecycle::Dead;
        self.remote.must_be_taken() && !is_over
    }

    /// Where it is in its life.
    #[must_use]
    pub fn life(&self) -> TaskLifecycle {
        self.life
    }

    /// Whether it has no process and none is under way.
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

    /// The view that its siblings have of it.
    #[must_use]
    pub fn sibling(&self) -> GroupTask {
        GroupTask {
            role: self.policy.role,
            leader: self.policy.leader,
            phase: self.state.phase,
            failed: self.state.failed,
            attempted: self.attempt > 0,
            started: self.state.started_at.is_some(),
            // Whether a process that is looked for runs still is not known.
            running_since: self
                .running_since
                .filter(|_| self.life != TaskLifecycle::Recovering),
        }
    }

    /// Grows with every change of what is saved or reported.
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
            // Said too late.
            TaskLifecycle::Waiting { .. } | TaskLifecycle::Dead => {}
        }
    }

    fn nothing_to_take(&mut self, reason: &str, now: Timestamp) {
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
        // The agent died between taking it over and writing that down.
        let taken = self.remote.take.take();
        self.remote.running = self.remote.running.take().or(taken);
        self.runs(now);
    }

    /// A process exists. If the task is to stop, it is asked to.
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
        if let Some(cause) = self.stop.filter(|_| !self.remote.must_be_taken()) {
            self.die(cause.fails(), STOPPED_EARLY, now);
            return;
        }
        if self.policy.once {
            // An unrecorded process may have run: that nobody has seen one proves nothing.
            self.lost("the agent ended while it was being started", now);
            return;
        }
        // The start that never happened is counted when it happens.
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
        // The clock of the report: a process that was found ended did run once.
        self.state.started_at.get_or_insert(now);
        let message = exit.message(detail);
        self.event(TaskEventKind::Terminated(exit), &message, now);
        if self.policy.once {
            let mut end = end.unwrap_or_else(|| Box::new(end_of(exit, &message, now)));
            if self.stop.is_some_and(StopCause::fails) {
                // How the process took the signal is not why the work failed.
                let why = self.disk_words().unwrap_or_else(|| message.clone());
                *end = WorkEnd {
                    exit: end.exit,
                    oom: end.oom.take(),
                    usage: std::mem::take(&mut end.usage),
                    ..WorkEnd::failure(&why, end.at)
                };
            }
            if self.stop == Some(StopCause::Disconnected) && end.failed {
                // The driver knows only that it was asked, as by a client that cancels.
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
                // The task still has its time: it may have got the signal.
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

    /// The stop of a process is decided: it gets its signal now, or after the delay.
    fn close(&mut self, now: Timestamp) {
        let delay = self.policy.shutdown_delay;
        // A task that fills a disk gets no delay, in which it would go on.
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

    /// Whether its stop leaves it running: it is another allocation's.
    fn is_leaving(&self) -> bool {
        self.stop == Some(StopCause::Asked) && self.remote.is_left()
    }

    fn ask_to_stop(&mut self, now: Timestamp) {
        if self.is_leaving() {
            self.event(TaskEventKind::Killing, LEAVING, now);
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

    /// Asks for it once, and again if nobody answered: a task that is another's is never forced.
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

    /// The message about its allocation's disk, if that was exceeded.
    pub(crate) fn disk_words(&self) -> Option<String> {
        let events = self.state.events.iter().rev();
        let mut disk_events = events.filter(|event| event.kind == TaskEventKind::DiskExceeded);
        disk_events.next().map(|event| event.message.clone())
    }

    /// It will not be started again. The work of a one-off task of which nothing better is known failed for
    /// `reason`.
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
            // In these states its address does not lead to this task any more.
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

/// Why the work of a one-off task failed that was stopped before anything of it ran.
const STOPPED_EARLY: &str = "stopped-before-running";

/// The message about a remote task that an earlier agent or another allocation had started.
const TAKEN_OVER: &str =
    "taken over from the allocation before: it runs on elsewhere and was not started anew";
/// The message about a remote task that is to be left.
const LEAVING: &str = "DETACH sent: the task runs on, managed by another allocation";
/// The message about a remote task that was left.
const DETACHED: &str = "detached: the task runs on";

/// Why the work of a one-off task failed that could not be started.
fn not_created(reason: &str) -> String {
    format!("failed to create container: {reason}")
}

/// How work ended of which its process is all that is known.
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

/// `text`, cut at a character's border to what is reported.
pub(crate) fn shortened(text: &str) -> String {
    let mut end = text.len().min(limits::MESSAGE_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

#[cfg(test)]
mod tests;
