//! One task: the driver follows it from its start to its end, and kills all of its processes.
//!
//! One asynchronous task of the runtime watches a [`NativeTask`] and sleeps on the pidfd. Dropping the `NativeTask`
//! ends the watch and leaves the process alone. Only the watcher reaps the process and records its end.

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

/// The driver state of a process in a handle. It is JSON, so that a person can read a stored one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct DriverState {
    pid: i32,
    start_ticks: u64,
    boot_id: String,
    /// The v2 cgroup of the process as /proc shows it; empty if the host gave the driver no cgroup.
    cgroup: String,
    /// Nanoseconds since 1970.
    started_at_ns: u64,
    /// The number of a strict task's range of ids.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    id_range: Option<u32>,
    /// The cgroup that the host named and that the task was put into. A foreign host does not store the placement,
    /// which is a field of ours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    named_cgroup: Option<NamedCgroup>,
}

/// A cgroup that existed before the task and may be used by the next task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct NamedCgroup {
    dir: PathBuf,
    /// The number of OOM kills in the cgroup before the task.
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
    /// The result of [`TaskHandle::encode`]. Most requests need only the fields below, and the decoded handle takes
    /// several times as much memory.
    handle: Box<[u8]>,
    pub(crate) id: Box<str>,
    pub(crate) name: Box<str>,
    pub(crate) kill_signal: Option<Box<str>>,
    pub(crate) without_host: Option<WithoutHost>,
    pub(crate) level: IsolationLevel,
    pub(crate) started_at: SystemTime,
    pub(crate) task_process: Arc<TaskProcess>,
    watcher: AbortHandle,
    /// The guard, which stops the task if it has been without a host for too long.
    guard: OnceLock<AbortHandle>,
    /// `None` if the FIFOs could not be opened again after a recovery; the task continues without them.
    _output: Option<OpenOutputs>,
    /// The ids of a strict task. No other task gets them while the driver has this task.
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

/// The process of a task and its end.
#[derive(Debug)]
pub(crate) struct TaskProcess {
    pub(crate) process: Process,
    pub(crate) cgroup: Option<TaskCgroup>,
    /// The number of OOM kills in the cgroup before the task.
    oom_kills_before: u64,
    /// The tree of actions that runs next to the first process.
    pub(crate) tree: Option<Arc<RunningTree>>,
    exit: watch::Sender<Option<TaskEnd>>,
    /// The process is the first of its pid namespace: the kernel does not deliver signals that it does not handle.
    is_first: bool,
    /// The signal for which SIGKILL was sent instead; 0 means none.
    requested_signal: AtomicI32,
    /// The reason why the driver stops the task without a request.
    stop_reason: OnceLock<String>,
    /// Set when the process was reaped. The lock is held while the driver reaps the process or kills its group. The
    /// number of the group certainly belongs to the task only before the process is reaped.
    reaped: Mutex<bool>,
}

/// The end of a task.
#[derive(Clone, Debug)]
pub(crate) struct TaskEnd {
    pub(crate) result: ExitResult,
    pub(crate) at: SystemTime,
}

impl NativeTask {
    /// Starts the process. Blocks until its program is loaded; must be called within a runtime. The last part of the
    /// result contains notes for the task's owner.
    ///
    /// Actions are started when no later step of the start can fail.
    pub(crate) fn start(
        mut config: TaskConfig,
        native: NativeConfig,
        node: &Arc<Node>,
        spawn_permits: &Arc<Semaphore>,
    ) -> Result<(Self, TaskHandle, Vec<String>), StartProcessError> {
        let mut named = named::prepare(&config, native.pids_max());
        if config.dns.is_some() && native.isolation == IsolationLevel::Raw {
            let note = "the task asks the machine's name servers: those of `dns` are for isolation \"contained\" and \"strict\"";
            named.notes.push(note.to_owned());
        }
        let is_named = named.dir.is_some();
        if let Some(dir) = named.dir {
            config.cgroup = Some(v2_placement(dir));
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
            driver_program: None,
            streams: &streams,
            terminal: None,
        })?;
        // A process that cannot be followed must not be left running.
        let output = Some(streams.into_open_outputs());
        let cgroup = (cgroup, named_cgroup);
        let adopted = Self::adopt(config, &native, node, cgroup, &spawned, (output, ids));
        let (task, handle) = adopted.map_err(|error| {
            spawned.kill_and_reap();
            StartProcessError::Inspect(error)
        })?;
        actions::begin(&task, &handle.config, &native, spawn_permits);
        Ok((task, handle, named.notes))
    }

    /// Takes charge of a process that this driver just started.
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
        let resources = (output, ids);
        let process_parts = (process, cgroup, state.oom_kills_before());
        let task = Self::follow(node, &handle, native, started_at, process_parts, resources)?;
        Ok((task, handle))
    }

    /// Finds the process of a handle. Must be called within a runtime.
    pub(crate) fn recover(
        mut handle: TaskHandle,
        node: &Arc<Node>,
        spawn_permits: &Arc<Semaphore>,
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
            handle.config.cgroup = Some(v2_placement(named.dir.clone()));
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
            Ok(streams) => Some(streams.into_open_outputs()),
            Err(error) => {
                warn!(task = task_id, %error, "the output of a recovered task is not held open");
                None
            }
        };
        let ids = state
            .id_range
            .map(|ordinal| node.ranges.reserve_ordinal(ordinal));
        let resources = (output, ids);
        let process_parts = (process, cgroup, state.oom_kills_before());
        let task = Self::follow(node, &handle, &native, started_at, process_parts, resources)
            .map_err(|error| failed_recovery(&error))?;
        actions::recover(&task, &handle.config, &native, spawn_permits);
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
            cgroup.close_dir_without_permit(&node.cgroup_dir_permits);
        }
        let pidfd = watch_pidfd(process.pidfd())?;
        let encoded = handle.encode().map_err(io::Error::other)?;
        let config = &handle.config;
        let task_process = Arc::new(TaskProcess {
            process,
            cgroup,
            oom_kills_before,
            tree: native.actions.as_ref().map(|_| Arc::default()),
            exit: watch::Sender::new(None),
            is_first: native.isolation != IsolationLevel::Raw && !native.has_init(),
            requested_signal: AtomicI32::new(0),
            stop_reason: OnceLock::new(),
            reaped: Mutex::new(false),
        });
        let watcher = tokio::spawn(Arc::clone(&task_process).watch(pidfd)).abort_handle();
        Ok(Self {
            node: Arc::clone(node),
            handle: encoded.into_boxed_slice(),
            id: config.id.as_str().into(),
            name: config.task_name.as_str().into(),
            kill_signal: config.kill_signal.as_deref().map(Into::into),
            without_host: config.without_host,
            level: native.isolation,
            started_at,
            task_process,
            watcher,
            guard: OnceLock::new(),
            _output: output,
            ids,
        })
    }

    /// Sets the guard, which is aborted when the task is dropped.
    pub(crate) fn set_guard(&self, guard: AbortHandle) {
        // The creator of the task sets the guard only once.
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
    /// None is known: the driver wrote the bytes itself.
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
    /// Sends a signal to the process, with the effect that the signal has on any other process. Returns `false` when
    /// the process has ended.
    ///
    /// The kernel delivers to the first process of a pid namespace only signals that it handles. A program that does
    /// not expect this could only be killed. So if the signal would end the process, SIGKILL is sent in its place, and
    /// the end is reported as that of the signal.
    ///
    /// In a task with actions, the processes of all running actions get the signal.
    pub(crate) fn signal(&self, signal: Signal) -> io::Result<bool> {
        if let Some(tree) = &self.tree {
            return tree.signal(signal).map(|()| true);
        }
        if self.is_first
            && signal != Signal::KILL
            && signal::ends_by_default(signal)
            && self.process.takes_default(signal)?
        {
            self.requested_signal
                .store(signal.as_raw(), Ordering::Relaxed);
            return self.process.signal(Signal::KILL);
        }
        self.process.signal(signal)
    }

    /// Records that the driver is about to stop the task for `why`. The end of the task reports the reason.
    pub(crate) fn set_stop_reason(&self, why: String) {
        // Later reasons are ignored.
        let _first = self.stop_reason.set(why);
    }

    /// Adds the driver's reason for the stop to the result. A successful tree had ended before the stop.
    fn with_stop_reason(&self, mut result: ExitResult) -> ExitResult {
        let Some(why) = self.stop_reason.get() else {
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

    /// Returns the end of the task, if the task has ended.
    pub(crate) fn end(&self) -> Option<TaskEnd> {
        self.exit.borrow().clone()
    }

    /// Waits for the end of the task.
    pub(crate) async fn wait_end(&self) -> TaskEnd {
        let mut exit = self.exit.subscribe();
        loop {
            if let Some(end) = exit.borrow_and_update().clone() {
                return end;
            }
            // The sender is in `self`, so the wait cannot fail.
            let _changed = exit.changed().await;
        }
    }

    /// Waits until the process ends, and records its end.
    async fn watch(self: Arc<Self>, pidfd: AsyncFd<Arc<OwnedFd>>) {
        loop {
            let ready = pidfd.readable().await;
            match self.kill_rest_and_reap() {
                Ok(Some(result)) => {
                    let result = self.with_exit_info(result).await;
                    let result = match &self.tree {
                        Some(tree) => tree.wait_result(result).await,
                        None => result,
                    };
                    let result = self.with_stop_reason(result);
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

    /// Completes the result of a process that was not a child with the kernel's exit information.
    async fn with_exit_info(&self, result: ExitResult) -> ExitResult {
        if result.status_known {
            return result;
        }
        let exit = match self.process.wait_exit_info().await {
            Some(ProcessEnd::Exited(code)) => ExitResult::exited(code),
            Some(ProcessEnd::Signaled(signal)) => self.signaled(signal),
            Some(ProcessEnd::Unknown) | None => return result,
        };
        ExitResult {
            oom_killed: result.oom_killed,
            ..exit
        }
    }

    /// Returns the result of a process that a signal ended. SIGKILL in place of another signal is reported as the
    /// other signal.
    fn signaled(&self, signal: i32) -> ExitResult {
        let requested_signal = self.requested_signal.load(Ordering::Relaxed);
        let killed = signal == Signal::KILL.as_raw() && requested_signal != 0;
        ExitResult::signaled(if killed { requested_signal } else { signal })
    }

    /// Reaps an ended process and first kills the processes that it left running. Until it is reaped, its process
    /// group number is not reused.
    fn kill_rest_and_reap(&self) -> io::Result<Option<ExitResult>> {
        let mut reaped = self.reaped.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(ended) = self.process.ended()? else {
            return Ok(None);
        };
        if let Some(tree) = &self.tree {
            tree.mark_first_ended();
            tree.signal(Signal::KILL)?;
        }
        match &self.cgroup {
            Some(cgroup) => {
                // Most tasks leave no process, and no process can join an empty cgroup by itself.
                let is_empty = matches!(cgroup.is_populated(), Ok(false));
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

    /// Kills all processes of the task and waits until they are gone.
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
        if tokio::time::timeout(limits::KILL_DEADLINE, self.wait_end())
            .await
            .is_err()
        {
            return Err(failed(self.stuck_process_message()));
        }
        self.wait_cgroup_empty().await
    }

    /// Returns whether the process has ended and its cgroup is empty. Returns `false` for a task with a tree or
    /// without a cgroup.
    fn is_over_and_empty(&self) -> bool {
        let is_empty = |cgroup: &TaskCgroup| matches!(cgroup.is_populated(), Ok(false));
        self.tree.is_none() && self.end().is_some() && self.cgroup.as_ref().is_some_and(is_empty)
    }

    /// Sends SIGKILL to all processes of the task.
    pub(crate) fn kill_all(&self) -> io::Result<()> {
        let reaped = self.reaped.lock().unwrap_or_else(PoisonError::into_inner);
        match &self.cgroup {
            Some(cgroup) => cgroup.kill()?,
            // Another process reaps a process that is not the driver's child. Between this check and the kill, the
            // process would have to end and its pid to be reused.
            None if !*reaped && self.process.ended()?.is_none() => self.process.kill_group()?,
            None => {}
        }
        if let Some(tree) = &self.tree {
            tree.signal(Signal::KILL)?;
        }
        // This reaches a process without a cgroup, or one that moved out of it.
        self.process.signal(Signal::KILL)?;
        Ok(())
    }

    /// Waits until no process is left in the cgroup.
    async fn wait_cgroup_empty(&self) -> Result<(), TaskError> {
        let Some(cgroup) = &self.cgroup else {
            return Ok(());
        };
        let empty = async {
            let mut pause = Duration::from_millis(1);
            while cgroup.is_populated()? {
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

    fn stuck_process_message(&self) -> String {
        let pid = self.process.pid;
        let state = process::stat(pid).map_or('?', |stat| stat.state);
        format!(
            "process {pid} does not die within {:?} of SIGKILL; it is stuck in the kernel (state \
             {state})",
            limits::KILL_DEADLINE
        )
    }
}

/// Returns a placement in the v2 hierarchy only.
fn v2_placement(dir: PathBuf) -> CgroupPlacement {
    CgroupPlacement {
        dir,
        joins: Vec::new(),
    }
}

/// Creates an error for a temporary failure.
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

/// Returns whether cgroup `found` is `expected` or below it: a task may create cgroups below its own.
fn is_within(found: &str, expected: &str) -> bool {
    found
        .strip_prefix(expected)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Converts a time to nanoseconds; 2^64 ns are enough until the year 2554.
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

    /// Agents have stored these bytes.
    #[test]
    fn state_of_version_1_is_still_read() {
        let stored = br#"{"pid":7,"start_ticks":99,"boot_id":"b","cgroup":"/m/a/t","started_at_ns":1700000000000000001}"#;

        let state: DriverState = serde_json::from_slice(stored).unwrap();

        assert_eq!(serde_json::to_vec(&state).unwrap(), stored);
        assert_eq!(state.pid, 7);
    }
}
