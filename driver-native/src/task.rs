//! One task: followed from its start to its end, and killed whole.
//!
//! A [`NativeTask`] is watched by one asynchronous task of the runtime that sleeps on the pidfd;
//! dropping the `NativeTask` ends the watch and leaves the process alone. Only the watcher reaps
//! and records the end.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use muster_driver::{
    CgroupPlacement, DriverError, ExitResult, RecoverTaskError, Retry, TaskConfig, TaskError,
    TaskHandle, TaskState, WithoutHost,
};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use tokio::io::unix::AsyncFd;
use tokio::sync::{Semaphore, watch};
use tokio::task::AbortHandle;
use tracing::{debug, warn};

use crate::actions::{self, RunningTree};
use crate::cgroup::{TaskCgroup, named};
use crate::command::{OpenOutputs, ProcessConfig, StartProcessError, Streams, start_task};
use crate::config::{IsolationLevel, NAME, NativeConfig};
use crate::isolation::ranges::Range;
use crate::node::Node;
use crate::process::{self, FindError, Process, ProcessEnd};
use crate::spawn::{SpawnedProcess, watch as watch_pidfd};
use crate::{limits, signal};

/// Version of [`DriverState`] in a handle.
pub(crate) const HANDLE_VERSION: i32 = 1;

/// Driver state that a handle stores of a process. It is JSON, so that a person can read a stored one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct DriverState {
    pid: i32,
    start_ticks: u64,
    boot_id: String,
    /// v2 cgroup of the process as /proc shows it; empty when the driver was given none.
    cgroup: String,
    /// Nanoseconds since 1970.
    started_at_ns: u64,
    /// Which ids a strict task has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    id_range: Option<u32>,
    /// The group that the host named and the task was put into: such a host does not keep the placement, which is a
    /// field of ours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    named_cgroup: Option<NamedCgroup>,
}

/// A group that was there before the task, and may be there for the next one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct NamedCgroup {
    dir: PathBuf,
    /// The OOM kills that the cgroup had counted before the task.
    oom_kills: u64,
}

impl DriverState {
    fn oom_kills_before(&self) -> u64 {
        self.named_cgroup.as_ref().map_or(0, |it| it.oom_kills)
    }
}

/// A task that this driver started or recovered.
#[derive(Debug)]
pub(crate) struct NativeTask {
    pub(crate) node: Arc<Node>,
    /// [`TaskHandle::encode`]: nobody asks most tasks for more than what stands below, and decoded it takes several
    /// times as much.
    handle: Box<[u8]>,
    pub(crate) id: Box<str>,
    pub(crate) name: Box<str>,
    pub(crate) kill_signal: Option<Box<str>>,
    pub(crate) without_host: Option<WithoutHost>,
    pub(crate) level: IsolationLevel,
    pub(crate) started_at: SystemTime,
    pub(crate) life: Arc<TaskProcess>,
    watcher: AbortHandle,
    /// Stops the task if it has been without a host for too long.
    guard: OnceLock<AbortHandle>,
    /// `None` if the FIFOs could not be opened again after a recovery; the task goes on without.
    _output: Option<OpenOutputs>,
    /// Nobody else's as long as the task is known.
    ids: Option<Range>,
}

impl Drop for NativeTask {
    fn drop(&mut self) {
        self.watcher.abort();
        if let Some(guard) = self.guard.get() {
            guard.abort();
        }
    }
}

/// The process of a task and how it ended.
#[derive(Debug)]
pub(crate) struct TaskProcess {
    pub(crate) process: Process,
    pub(crate) cgroup: Option<TaskCgroup>,
    /// Kills for want of memory that the group had counted before the task.
    oom_kills_before: u64,
    /// The tree of actions that runs beside the first process.
    pub(crate) tree: Option<Arc<RunningTree>>,
    exit: watch::Sender<Option<TaskEnd>>,
    /// It is the first process of its pid namespace: the kernel keeps signals from it that it does not
    /// handle.
    is_first: bool,
    /// A signal that SIGKILL stood for; 0 is none.
    meant: AtomicI32,
    /// Why the driver stops it without being asked to.
    stopped_for: OnceLock<String>,
    /// Set when the process was reaped. Held while reaping and while killing the process's group,
    /// because the number of a group is only known to be the task's before.
    reaped: Mutex<bool>,
}

/// The end of a task.
#[derive(Clone, Debug)]
pub(crate) struct TaskEnd {
    pub(crate) result: ExitResult,
    pub(crate) at: SystemTime,
}

impl NativeTask {
    /// Starts the process. Blocks until its program is loaded; needs a runtime to be entered. The last part of the
    /// answer is what the task's owner should know.
    ///
    /// The actions of a task that has some are begun when nothing can fail any more.
    pub(crate) fn start(
        mut config: TaskConfig,
        native: NativeConfig,
        node: &Arc<Node>,
        spawns: &Arc<Semaphore>,
    ) -> Result<(Self, TaskHandle, Vec<String>), StartProcessError> {
        let mut named = named::take(&config, native.pids_max());
        if config.dns.is_some() && native.isolation == IsolationLevel::Raw {
            let note = "the task asks the machine's name servers: those of `dns` are for isolation \"contained\" and \"strict\"";
            named.notes.push(note.to_owned());
        }
        let is_named = named.dir.is_some();
        if let Some(dir) = named.dir {
            config.cgroup = Some(placed(dir));
        }
        let cgroup = match &config.cgroup {
            Some(placement) => Some(TaskCgroup::open(&placement.dir)?),
            None => None,
        };
        let named_cgroup = cgroup.as_ref().zip(config.cgroup.as_ref());
        let named_cgroup = named_cgroup.filter(|_| is_named);
        let named_cgroup = named_cgroup.map(|(cgroup, placement)| NamedCgroup {
            dir: placement.dir.clone(),
            oom_kills: cgroup.oom_kills(),
        });
        let streams = Streams::of_task(&config)?;
        let (spawned, ids) = start_task(&ProcessConfig {
            config: &config,
            native: &native,
            node,
            cgroup: cgroup.as_ref(),
            command: &native.command,
            args: &native.args,
            own: None,
            streams: &streams,
            terminal: None,
        })?;
        // A process that cannot be followed must not be left behind.
        let output = Some(streams.into_held());
        let cgroup = (cgroup, named_cgroup);
        let adopted = Self::adopt(config, &native, node, cgroup, &spawned, (output, ids));
        let (task, handle) = adopted.map_err(|error| {
            spawned.abandon();
            StartProcessError::Look(error)
        })?;
        actions::begin(&task, &handle.config, &native, spawns);
        Ok((task, handle, named.notes))
    }

    /// Takes charge of a process that was just started.
    fn adopt(
        config: TaskConfig,
        native: &NativeConfig,
        node: &Arc<Node>,
        (cgroup, named_cgroup): (Option<TaskCgroup>, Option<NamedCgroup>),
        spawned: &SpawnedProcess,
        (output, ids): (Option<OpenOutputs>, Option<Range>),
    ) -> io::Result<(Self, TaskHandle)> {
        let process = Process::started(spawned)?;
        let started_at = SystemTime::now();
        let state = DriverState {
            pid: process.pid,
            start_ticks: process.start_ticks,
            boot_id: node.boot_id.clone(),
            cgroup: match &config.cgroup {
                Some(placement) => node.hierarchy.name_of(&placement.dir, process.pid)?,
                None => String::new(),
            },
            started_at_ns: nanoseconds(started_at),
            id_range: ids.as_ref().map(Range::ordinal),
            named_cgroup,
        };
        let handle = TaskHandle {
            version: HANDLE_VERSION,
            driver: NAME.to_owned(),
            config,
            state: TaskState::Running,
            driver_state: serde_json::to_vec(&state)?,
        };
        let held = (output, ids);
        let life = (process, cgroup, state.oom_kills_before());
        let task = Self::follow(node, &handle, native, started_at, life, held)?;
        Ok((task, handle))
    }

    /// Finds the process of a handle. Needs a runtime to be entered.
    pub(crate) fn recover(
        mut handle: TaskHandle,
        node: &Arc<Node>,
        spawns: &Arc<Semaphore>,
    ) -> Result<Self, RecoverTaskError> {
        let task_id = handle.config.id.clone();
        if handle.version > HANDLE_VERSION || handle.version < 1 {
            return Err(RecoverTaskError::HandleVersion {
                found: handle.version,
                supported: HANDLE_VERSION,
            });
        }
        let invalid = |reason: String| RecoverTaskError::InvalidHandle { reason };
        let state: DriverState = serde_json::from_slice(&handle.driver_state)
            .map_err(|error| invalid(error.to_string()))?;
        let native = NativeConfig::read(&handle.config.config)
            .map_err(|error| invalid(error.to_string()))?;
        if let (None, Some(named)) = (&handle.config.cgroup, &state.named_cgroup) {
            handle.config.cgroup = Some(placed(named.dir.clone()));
        }
        let gone = |reason: String| RecoverTaskError::Gone {
            task_id: task_id.clone(),
            reason,
        };
        if state.boot_id != node.boot_id {
            return Err(gone(format!(
                "the node was booted again since it started (boot {}, now {})",
                state.boot_id, node.boot_id
            )));
        }
        let process = match Process::find(state.pid, state.start_ticks) {
            Ok(process) => process,
            Err(error @ FindError::Io { .. }) => return Err(failed_recovery(&error)),
            Err(error) => return Err(gone(error.to_string())),
        };
        if !state.cgroup.is_empty() {
            let found = process::cgroup(process.pid).map_err(|error| gone(error.to_string()))?;
            if !is_within(&found, &state.cgroup) {
                return Err(gone(format!(
                    "process {} runs in cgroup {found}, the task's is {}",
                    state.pid, state.cgroup
                )));
            }
        }
        let cgroup = match &handle.config.cgroup {
            Some(placement) => {
                Some(TaskCgroup::open(&placement.dir).map_err(|error| failed_recovery(&error))?)
            }
            None => None,
        };
        let started_at = UNIX_EPOCH + Duration::from_nanos(state.started_at_ns);
        let output = match Streams::of_task(&handle.config) {
            Ok(streams) => Some(streams.into_held()),
            Err(error) => {
                warn!(task = task_id, %error, "the output of a recovered task is not held open");
                None
            }
        };
        let ids = state.id_range.map(|ordinal| node.ranges.retake(ordinal));
        let held = (output, ids);
        let life = (process, cgroup, state.oom_kills_before());
        let task = Self::follow(node, &handle, &native, started_at, life, held)
            .map_err(|error| failed_recovery(&error))?;
        actions::recover(&task, &handle.config, &native, spawns);
        Ok(task)
    }

    fn follow(
        node: &Arc<Node>,
        handle: &TaskHandle,
        native: &NativeConfig,
        started_at: SystemTime,
        (process, mut cgroup, oom_kills_before): (Process, Option<TaskCgroup>, u64),
        (output, ids): (Option<OpenOutputs>, Option<Range>),
    ) -> io::Result<Self> {
        if let Some(cgroup) = &mut cgroup {
            cgroup.settle(&node.cgroups);
        }
        let pidfd = watch_pidfd(process.pidfd())?;
        let encoded = handle.encode().map_err(io::Error::other)?;
        let config = &handle.config;
        let life = Arc::new(TaskProcess {
            process,
            cgroup,
            oom_kills_before,
            tree: native.actions.as_ref().map(|_| Arc::default()),
            exit: watch::Sender::new(None),
            is_first: native.isolation != IsolationLevel::Raw && !native.has_init(),
            meant: AtomicI32::new(0),
            stopped_for: OnceLock::new(),
            reaped: Mutex::new(false),
        });
        let watcher = tokio::spawn(Arc::clone(&life).watch(pidfd)).abort_handle();
        Ok(Self {
            node: Arc::clone(node),
            handle: encoded.into_boxed_slice(),
            id: config.id.as_str().into(),
            name: config.task_name.as_str().into(),
            kill_signal: config.kill_signal.as_deref().map(Into::into),
            without_host: config.without_host,
            level: native.isolation,
            started_at,
            life,
            watcher,
            guard: OnceLock::new(),
            _output: output,
            ids,
        })
    }

    /// `guard` is aborted with the task.
    pub(crate) fn guarded_by(&self, guard: AbortHandle) {
        // There is one, given by who made the task.
        let _first = self.guard.set(guard);
    }

    /// Returns the id on the host of the task's id 0.
    pub(crate) fn first_id(&self) -> u32 {
        self.ids.as_ref().map_or(0, Range::first)
    }

    /// Returns the stored form of the task.
    ///
    /// # Errors
    ///
    /// None that is known: the bytes are the driver's own.
    pub(crate) fn handle(&self) -> Result<TaskHandle, DriverError> {
        TaskHandle::decode(&self.handle).map_err(|error| self.unreadable(&error))
    }

    /// Returns the configuration that the task was started with.
    ///
    /// # Errors
    ///
    /// As [`Self::handle`].
    pub(crate) fn definition(&self) -> Result<(TaskConfig, NativeConfig), DriverError> {
        let config = self.handle()?.config;
        let native = NativeConfig::read(&config.config).map_err(|error| self.unreadable(&error))?;
        Ok((config, native))
    }

    fn unreadable(&self, error: &dyn std::error::Error) -> DriverError {
        DriverError::Failed {
            message: format!("read what is kept of task {}: {error}", self.id),
            retry: Retry::Never,
        }
    }

    pub(crate) fn not_running(&self) -> TaskError {
        TaskError::NotRunning {
            task_id: self.id.to_string(),
        }
    }
}

impl TaskProcess {
    /// Sends a signal to the process, with the effect that it has on any other process; `false` when it
    /// has ended.
    ///
    /// The first process of a pid namespace gets no signal that it has no handler for, so that a
    /// program that was not written to be one could only be killed. A signal that would end it does:
    /// SIGKILL is sent in its place, and the end is told as the signal's.
    ///
    /// Of a task with actions all their processes get the signal.
    pub(crate) fn signal(&self, signal: Signal) -> io::Result<bool> {
        if let Some(tree) = &self.tree {
            return tree.signal(signal).map(|()| true);
        }
        if self.is_first
            && signal != Signal::KILL
            && signal::ends_by_default(signal)
            && self.process.takes_default(signal)?
        {
            self.meant.store(signal.as_raw(), Ordering::Relaxed);
            return self.process.signal(Signal::KILL);
        }
        self.process.signal(signal)
    }

    /// The driver is about to stop the task for `why`, which its end says.
    pub(crate) fn stop_for(&self, why: String) {
        // The first reason stands.
        let _first = self.stopped_for.set(why);
    }

    /// The end with why the driver stopped it. A tree that went well had ended before.
    fn explained(&self, mut result: ExitResult) -> ExitResult {
        let Some(why) = self.stopped_for.get() else {
            return result;
        };
        if let Some(actions) = &mut result.actions {
            if actions.failure_reason.is_empty() {
                return result;
            }
            actions.failure_reason.clone_from(why);
        }
        result.stopped = Some(why.clone());
        result
    }

    /// The end, if it came.
    pub(crate) fn end(&self) -> Option<TaskEnd> {
        self.exit.borrow().clone()
    }

    /// Waits for the end.
    pub(crate) async fn ended(&self) -> TaskEnd {
        let mut exit = self.exit.subscribe();
        loop {
            if let Some(end) = exit.borrow_and_update().clone() {
                return end;
            }
            // The sender lives in `self`, so that waiting cannot fail.
            let _changed = exit.changed().await;
        }
    }

    /// Sleeps until the process ends, and records how.
    async fn watch(self: Arc<Self>, pidfd: AsyncFd<Arc<OwnedFd>>) {
        loop {
            let ready = pidfd.readable().await;
            match self.take_end() {
                Ok(Some(result)) => {
                    let result = self.completed(result).await;
                    let result = match &self.tree {
                        Some(tree) => tree.result(result).await,
                        None => result,
                    };
                    let result = self.explained(result);
                    debug!(pid = self.process.pid, ?result, "task ended");
                    self.exit.send_replace(Some(TaskEnd {
                        result,
                        at: SystemTime::now(),
                    }));
                    return;
                }
                Ok(None) => match ready {
                    Ok(mut ready) => ready.clear_ready(),
                    Err(error) => {
                        warn!(pid = self.process.pid, %error, "cannot watch the process");
                        return;
                    }
                },
                Err(error) => {
                    warn!(pid = self.process.pid, %error, "cannot learn how the process ended");
                    self.exit.send_replace(Some(TaskEnd {
                        result: ExitResult::unknown(format!(
                            "wait for process {}: {error}",
                            self.process.pid
                        )),
                        at: SystemTime::now(),
                    }));
                    return;
                }
            }
        }
    }

    /// Completes the result of a process that was not a child with what the kernel tells of its end.
    async fn completed(&self, result: ExitResult) -> ExitResult {
        if result.status_known {
            return result;
        }
        let exit = match self.process.exit_of_other().await {
            Some(ProcessEnd::Exited(code)) => ExitResult::exited(code),
            Some(ProcessEnd::Signaled(signal)) => self.signaled(signal),
            Some(ProcessEnd::Unknown) | None => return result,
        };
        ExitResult {
            oom_killed: result.oom_killed,
            ..exit
        }
    }

    /// The result of a process that a signal ended. SIGKILL after another signal is told as that one.
    fn signaled(&self, signal: i32) -> ExitResult {
        let meant = self.meant.load(Ordering::Relaxed);
        let killed = signal == Signal::KILL.as_raw() && meant != 0;
        ExitResult::signaled(if killed { meant } else { signal })
    }

    /// Reaps an ended process. What it left running is killed first: while it is not reaped, its
    /// group's number is its own.
    fn take_end(&self) -> io::Result<Option<ExitResult>> {
        let mut reaped = self.reaped.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(ended) = self.process.ended()? else {
            return Ok(None);
        };
        if let Some(tree) = &self.tree {
            tree.first_is_gone();
            tree.signal(Signal::KILL)?;
        }
        match &self.cgroup {
            Some(cgroup) => {
                // Most leave nothing, and nobody can join a cgroup that is empty.
                let is_empty = matches!(cgroup.populated(), Ok(false));
                if !is_empty && let Err(error) = cgroup.kill() {
                    warn!(pid = self.process.pid, %error, "cannot kill what the task left running");
                }
            }
            None if ended != ProcessEnd::Unknown => self.process.kill_group()?,
            None => {}
        }
        self.process.reap()?;
        *reaped = true;
        let mut result = match ended {
            ProcessEnd::Exited(code) => ExitResult::exited(code),
            ProcessEnd::Signaled(signal) => self.signaled(signal),
            ProcessEnd::Unknown => ExitResult::unknown(format!(
                "the driver was started again while the task ran, so that it is not the parent of \
                 process {}; the exit ledger knows",
                self.process.pid
            )),
        };
        result.oom_killed = self
            .cgroup
            .as_ref()
            .is_some_and(|cgroup| cgroup.oom_kills() > self.oom_kills_before);
        Ok(Some(result))
    }

    /// Kills the task with all it started, and waits until it is gone.
    pub(crate) async fn kill(&self) -> Result<(), TaskError> {
        if self.is_over_and_empty() {
            return Ok(());
        }
        let pid = self.process.pid;
        if let Some(tree) = &self.tree {
            tree.stop();
        }
        self.kill_all()
            .map_err(|error| failed(format!("kill process {pid}: {error}")))?;
        if tokio::time::timeout(limits::KILL_DEADLINE, self.ended())
            .await
            .is_err()
        {
            return Err(failed(self.stuck()));
        }
        self.emptied().await
    }

    /// Tells whether the process has ended and its cgroup is empty. False for a task with a tree or without a cgroup.
    fn is_over_and_empty(&self) -> bool {
        let is_empty = |cgroup: &TaskCgroup| matches!(cgroup.populated(), Ok(false));
        self.tree.is_none() && self.end().is_some() && self.cgroup.as_ref().is_some_and(is_empty)
    }

    /// Sends SIGKILL to everything of the task.
    pub(crate) fn kill_all(&self) -> io::Result<()> {
        let reaped = self.reaped.lock().unwrap_or_else(PoisonError::into_inner);
        match &self.cgroup {
            Some(cgroup) => cgroup.kill()?,
            // A process that is not the driver's child is reaped by somebody else: between this
            // look and the kill it would have to end and its number to go round.
            None if !*reaped && self.process.ended()?.is_none() => self.process.kill_group()?,
            None => {}
        }
        if let Some(tree) = &self.tree {
            tree.signal(Signal::KILL)?;
        }
        // Where there is no cgroup, or the task moved out of it.
        self.process.signal(Signal::KILL)?;
        Ok(())
    }

    /// Waits until nothing runs in the cgroup any more.
    async fn emptied(&self) -> Result<(), TaskError> {
        let Some(cgroup) = &self.cgroup else {
            return Ok(());
        };
        let empty = async {
            let mut pause = Duration::from_millis(1);
            while cgroup.populated()? {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(limits::EMPTY_POLL_MAX);
            }
            Ok::<(), io::Error>(())
        };
        match tokio::time::timeout(limits::KILL_DEADLINE, empty).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(failed(format!(
                "look whether the task's cgroup is empty: {error}"
            ))),
            Err(_elapsed) => Err(failed(format!(
                "processes of the task do not die within {:?} of SIGKILL; they are stuck in the \
                 kernel: {}",
                limits::KILL_DEADLINE,
                cgroup
                    .read("cgroup.procs")
                    .unwrap_or_default()
                    .replace('\n', " ")
            ))),
        }
    }

    fn stuck(&self) -> String {
        let pid = self.process.pid;
        let state = process::stat(pid).map_or('?', |stat| stat.state);
        format!(
            "process {pid} does not die within {:?} of SIGKILL; it is stuck in the kernel (state \
             {state})",
            limits::KILL_DEADLINE
        )
    }
}

/// In the v2 hierarchy alone.
fn placed(dir: PathBuf) -> CgroupPlacement {
    CgroupPlacement {
        dir,
        joins: Vec::new(),
    }
}

/// A failure that may pass.
pub(crate) fn failed(message: String) -> TaskError {
    DriverError::Failed {
        message,
        retry: Retry::Later,
    }
    .into()
}

fn failed_recovery(error: &dyn std::error::Error) -> RecoverTaskError {
    DriverError::Failed {
        message: format!("recover task: {error}"),
        retry: Retry::Later,
    }
    .into()
}

/// Whether cgroup `found` is `expected` or below it: a task may make cgroups of its own.
fn is_within(found: &str, expected: &str) -> bool {
    found
        .strip_prefix(expected)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// 2^64 ns last until the year 2554.
fn nanoseconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH)
        .ok()
        .and_then(|since| u64::try_from(since.as_nanos()).ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroup_below_the_tasks_is_the_tasks() {
        assert!(is_within("/m/alloc/web", "/m/alloc/web"));
        assert!(is_within("/m/alloc/web/own", "/m/alloc/web"));
        assert!(!is_within("/m/alloc/web2", "/m/alloc/web"));
        assert!(!is_within("/", "/m/alloc/web"));
    }

    /// These bytes are in agents' stores.
    #[test]
    fn state_of_version_1_is_still_read() {
        let stored = br#"{"pid":7,"start_ticks":99,"boot_id":"b","cgroup":"/m/a/t","started_at_ns":1700000000000000001}"#;

        let state: DriverState = serde_json::from_slice(stored).unwrap();

        assert_eq!(serde_json::to_vec(&state).unwrap(), stored);
        assert_eq!(state.pid, 7);
    }
}
