//! A driver whose tasks are timers, for tests of all layers above drivers and for simulators.
//!
//! Tasks live in a [`MockHost`], not in the driver, like the tasks of a remote driver. Dropping a [`MockDriver`] acts
//! as a crash of the driver. A second driver on the same host recovers the tasks from their handles. Time is tokio's,
//! so that tests can pause the clock.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use futures::future::{BoxFuture, FutureExt};
use futures::stream::{self, StreamExt};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::{broadcast, watch};
use tokio::time::Instant;
use tokio_stream::wrappers::BroadcastStream;

use crate::capabilities::{Attribute, Capabilities, Fingerprint, FsIsolation, Health, PluginInfo};
use crate::error::{DriverError, RecoverTaskError, Retry, StartTaskError, TaskError};
use crate::event::TaskEvent;
use crate::exec::{ExecRequest, ExecResult};
use crate::limits;
use crate::network::{CreatedNetwork, NetworkIsolation, NetworkMode, NetworkOverride, TaskReach};
use crate::schema::{Spec, without_nulls};
use crate::stats::{CpuField, CpuUsage, TaskStats, TaskUsage};
use crate::task::{ExitResult, StartedTask, TaskConfig, TaskHandle, TaskState, TaskStatus};
use crate::task_driver::{
    DETACH_SIGNAL, ExecInputStream, ExecOutputStream, FingerprintStream, TaskDriver,
    TaskEventStream, TaskStatsStream,
};

mod exec;
mod faults;

use faults::Faults;

/// The name of the driver.
pub const NAME: &str = "mock";

const CREATE_NETWORK: &str = "CreateNetwork";

/// The version of the handles, unless a test sets another.
const HANDLE_VERSION: i32 = 1;

/// The interval at which an unchanged fingerprint is repeated.
const FINGERPRINT_INTERVAL: Duration = Duration::from_secs(30);

/// Number of SIGKILL, the same on every architecture.
const SIGKILL: i32 = 9;

/// The behavior of a mock task: the `config` block of its task.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MockTask {
    /// Milliseconds until the task ends by itself; `None` means never.
    pub run_for_ms: Option<u64>,
    /// The exit code of a task that ends by itself.
    pub exit_code: i32,
    /// The signal that ends the task, instead of the exit code; 0 means none.
    pub exit_signal: i32,
    /// The task ends as if the kernel had killed it for lack of memory.
    pub oom_killed: bool,
    /// Milliseconds that the start of the task takes.
    pub start_for_ms: u64,
    /// The start of the task fails with this message.
    pub start_error: Option<String>,
    /// A failed start may be tried again.
    pub start_error_recoverable: bool,
    /// Only SIGKILL ends the task.
    pub ignore_signals: bool,
    /// Sending a signal to the task fails with this message.
    pub signal_error: Option<String>,
    /// The standard output of a command that runs in the task.
    pub exec_stdout: String,
    /// The exit code of a command that runs in the task.
    pub exec_code: i32,
    /// The driver puts the task on a separate network, at this address.
    pub address: String,
    /// The CPU usage that the driver reports, in per cent of one core; `None` means no report.
    pub cpu_percent: Option<u32>,
}

impl MockTask {
    /// Returns a task that runs until it is stopped.
    pub fn forever() -> Self {
        Self::default()
    }

    /// Returns a task that runs for a time, then exits with `exit_code`.
    ///
    /// # Panics
    ///
    /// If the time has more than 2^64 milliseconds.
    pub fn exits(after: Duration, exit_code: i32) -> Self {
        Self {
            run_for_ms: Some(u64::try_from(after.as_millis()).expect("the time is short")),
            exit_code,
            ..Self::default()
        }
    }

    /// Returns a task that does not start.
    pub fn broken(message: &str) -> Self {
        Self {
            start_error: Some(message.to_owned()),
            ..Self::default()
        }
    }

    /// Returns the `config` block of this task.
    pub fn to_config(&self) -> Value {
        let MockTask {
            run_for_ms,
            exit_code,
            exit_signal,
            oom_killed,
            start_for_ms,
            start_error,
            start_error_recoverable,
            ignore_signals,
            signal_error,
            exec_stdout,
            exec_code,
            address,
            cpu_percent,
        } = self;
        without_nulls(json!({
            "run_for_ms": run_for_ms,
            "exit_code": exit_code,
            "exit_signal": exit_signal,
            "oom_killed": oom_killed,
            "start_for_ms": start_for_ms,
            "start_error": start_error,
            "start_error_recoverable": start_error_recoverable,
            "ignore_signals": ignore_signals,
            "signal_error": signal_error,
            "exec_stdout": exec_stdout,
            "exec_code": exec_code,
            "address": address,
            "cpu_percent": cpu_percent,
        }))
    }

    fn from_config(config: &Value) -> Result<Self, StartTaskError> {
        if config.is_null() {
            return Ok(Self::default());
        }
        serde_json::from_value(without_nulls(config.clone())).map_err(|error| {
            StartTaskError::Fatal {
                message: format!("read the task's config: {error}"),
            }
        })
    }
}

/// The simulated host of mock tasks. Clones are the same host.
#[derive(Clone, Debug, Default)]
pub struct MockHost {
    processes: Arc<Mutex<HashMap<u64, Arc<Process>>>>,
    refuses_destroys: Arc<AtomicBool>,
    /// Drivers do not answer `DestroyTask` while this is `true`.
    holds_destroys: Arc<watch::Sender<bool>>,
}

impl MockHost {
    /// Creates a host without tasks.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the number of tasks that run on the host, under any driver.
    pub fn running(&self) -> usize {
        self.lock()
            .values()
            .filter(|process| process.exit.borrow().is_none())
            .count()
    }

    /// Ends all tasks, as a power failure of the host does.
    pub fn power_off(&self) {
        self.lock().clear();
    }

    /// Returns the number of tasks whose resources are not destroyed, running or not.
    pub fn tasks(&self) -> usize {
        self.lock().len()
    }

    /// Makes drivers of this host refuse to destroy tasks while `refuses_destroys` is set.
    pub fn refuse_destroys(&self, refuses_destroys: bool) {
        self.refuses_destroys
            .store(refuses_destroys, Ordering::Relaxed);
    }

    /// Makes drivers of this host delay their answer to `DestroyTask` until `holds_destroys` is cleared.
    pub fn hold_destroys(&self, holds_destroys: bool) {
        self.holds_destroys.send_replace(holds_destroys);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Arc<Process>>> {
        self.processes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn spawn(&self, task: MockTask) -> (u64, Arc<Process>) {
        let process = Arc::new(Process {
            started_at: SystemTime::now(),
            deadline: task
                .run_for_ms
                .map(|ms| Instant::now() + Duration::from_millis(ms)),
            exit: watch::Sender::new(None),
            task,
        });
        let mut processes = self.lock();
        let pid = processes.keys().max().map_or(1, |pid| pid + 1);
        processes.insert(pid, Arc::clone(&process));
        (pid, process)
    }

    fn find(&self, pid: u64) -> Option<Arc<Process>> {
        self.lock().get(&pid).cloned()
    }

    fn remove(&self, pid: u64) {
        self.lock().remove(&pid);
    }
}

/// A timer that simulates a process.
#[derive(Debug)]
struct Process {
    task: MockTask,
    started_at: SystemTime,
    deadline: Option<Instant>,
    exit: watch::Sender<Option<(ExitResult, SystemTime)>>,
}

impl Process {
    /// Records the end of the process; later ends are ignored.
    fn end(&self, result: ExitResult) {
        self.exit.send_if_modified(|exit| {
            let first = exit.is_none();
            if first {
                *exit = Some((result, SystemTime::now()));
            }
            first
        });
    }

    fn end_when_due(&self) {
        let due = self.deadline.is_some_and(|at| at <= Instant::now());
        if due {
            let mut result = if self.task.exit_signal == 0 {
                ExitResult::exited(self.task.exit_code)
            } else {
                ExitResult::signaled(self.task.exit_signal)
            };
            result.oom_killed = self.task.oom_killed;
            self.end(result);
        }
    }

    fn ended(&self) -> Option<(ExitResult, SystemTime)> {
        self.end_when_due();
        self.exit.borrow().clone()
    }

    async fn wait(&self) -> ExitResult {
        let mut exit = self.exit.subscribe();
        loop {
            if let Some((result, _)) = self.ended() {
                return result;
            }
            match self.deadline {
                Some(at) => {
                    tokio::select! {
                        () = tokio::time::sleep_until(at) => {}
                        _ = exit.changed() => {}
                    }
                }
                // The sender lives in `self`, so that waiting cannot fail.
                None => {
                    let _changed = exit.changed().await;
                }
            }
        }
    }

    fn signal(&self, number: i32) {
        if number == SIGKILL || !self.task.ignore_signals {
            self.end(ExitResult::signaled(number));
        }
    }
}

#[derive(Clone, Debug)]
struct ManagedTask {
    pid: u64,
    process: Arc<Process>,
    handle: TaskHandle,
}

/// The mock driver.
#[derive(Debug)]
pub struct MockDriver {
    host: MockHost,
    remote: bool,
    fs_isolation: FsIsolation,
    takes_output: bool,
    /// The reach that the driver reports for its tasks; `None` means no report.
    reach: Option<TaskReach>,
    handle_version: i32,
    /// The networks by allocation; `None` if the driver makes no networks.
    networks: Option<Mutex<BTreeMap<String, NetworkIsolation>>>,
    tasks: Mutex<HashMap<String, ManagedTask>>,
    events: broadcast::Sender<TaskEvent>,
    fingerprints: watch::Sender<Fingerprint>,
    faults: Faults,
}

impl Default for MockDriver {
    fn default() -> Self {
        Self::new()
    }
}

impl MockDriver {
    /// Creates a driver with its own host.
    pub fn new() -> Self {
        Self::on(MockHost::new())
    }

    /// Creates a driver that starts and finds its tasks on `host`.
    pub fn on(host: MockHost) -> Self {
        Self {
            host,
            remote: false,
            fs_isolation: FsIsolation::None,
            takes_output: false,
            reach: None,
            handle_version: HANDLE_VERSION,
            networks: None,
            tasks: Mutex::default(),
            events: broadcast::Sender::new(limits::TASK_EVENTS_MAX),
            fingerprints: watch::Sender::new(Fingerprint {
                attributes: BTreeMap::from([(format!("driver.{NAME}"), Attribute::Bool(true))]),
                health: Health::Healthy,
                health_description: "healthy".to_owned(),
                err: None,
            }),
            faults: Faults::default(),
        }
    }

    /// Leaves `CreateNetwork` without an answer while `hang` is set.
    pub fn hang_create_network(&self, hang: bool) {
        if hang {
            self.faults.hang_calls(CREATE_NETWORK);
        } else {
            self.faults.answer_calls(CREATE_NETWORK);
        }
    }

    /// Returns the number of calls that wait for an answer.
    pub fn hung_calls(&self) -> usize {
        self.faults.hung_calls()
    }

    /// Answers `WaitTask` with an error while `fail` is set.
    pub fn fail_waits(&self, fail: bool) {
        self.faults.fail_waits(fail);
    }

    /// Returns the arrival times of the `WaitTask` calls that were answered with an error.
    pub fn failed_waits(&self) -> Vec<Instant> {
        self.faults.failed_waits()
    }

    /// Creates a driver of remote tasks, which understands [`DETACH_SIGNAL`].
    pub fn remote(host: MockHost) -> Self {
        Self {
            remote: true,
            ..Self::on(host)
        }
    }

    /// Simulates another version of the driver: its handles have `version`, and it reads no others.
    #[must_use]
    pub fn of_version(mut self, version: i32) -> Self {
        self.handle_version = version;
        self
    }

    /// Sets the file system isolation that the driver reports.
    #[must_use]
    pub fn isolating(mut self, isolation: FsIsolation) -> Self {
        self.fs_isolation = isolation;
        self
    }

    /// Makes the driver collect its tasks' output itself.
    #[must_use]
    pub fn taking_output(mut self) -> Self {
        self.takes_output = true;
        self
    }

    /// Sets the reach that the driver reports for its tasks.
    #[must_use]
    pub fn reaching(mut self, reach: TaskReach) -> Self {
        self.reach = Some(reach);
        self
    }

    /// Makes the driver create the network of each allocation itself.
    #[must_use]
    pub fn with_networks(mut self) -> Self {
        self.networks = Some(Mutex::default());
        self
    }

    /// Returns the number of networks that were made and not yet destroyed.
    pub fn networks(&self) -> usize {
        self.networks.as_ref().map_or(0, |networks| {
            let networks = networks.lock().unwrap_or_else(PoisonError::into_inner);
            networks.len()
        })
    }

    fn networks_of(
        &self,
        call: &str,
    ) -> Result<MutexGuard<'_, BTreeMap<String, NetworkIsolation>>, DriverError> {
        let networks = self.networks.as_ref();
        let networks = networks.ok_or_else(|| DriverError::unsupported(call))?;
        Ok(networks.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn make_network(&self, alloc_id: &str, hostname: &str) -> Result<CreatedNetwork, DriverError> {
        let mut networks = self.networks_of(CREATE_NETWORK)?;
        if let Some(isolation) = networks.get(alloc_id).cloned() {
            return Ok(CreatedNetwork {
                isolation,
                created: false,
            });
        }
        let isolation = NetworkIsolation {
            mode: NetworkMode::Group,
            path: format!("/run/mock/{alloc_id}"),
            labels: BTreeMap::from([("maker".to_owned(), NAME.to_owned())]),
            hostname: hostname.to_owned(),
            address: "192.0.2.1".to_owned(),
        };
        networks.insert(alloc_id.to_owned(), isolation.clone());
        Ok(CreatedNetwork {
            isolation,
            created: true,
        })
    }

    /// Changes the health in the fingerprint stream.
    pub fn set_health(&self, health: Health, description: &str) {
        self.fingerprints.send_modify(|fingerprint| {
            fingerprint.health = health;
            description.clone_into(&mut fingerprint.health_description);
        });
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, ManagedTask>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, task_id: &str) -> Result<ManagedTask, TaskError> {
        self.lock()
            .get(task_id)
            .cloned()
            .ok_or_else(|| TaskError::not_found(task_id))
    }

    fn emit(&self, config: &TaskConfig, message: &str) {
        // An event without a receiver is not a failure.
        let _receivers = self.events.send(TaskEvent {
            task_id: config.id.clone(),
            alloc_id: config.alloc_id.clone(),
            task_name: config.task_name.clone(),
            at: SystemTime::now(),
            message: message.to_owned(),
            annotations: BTreeMap::new(),
        });
    }

    async fn start(&self, config: TaskConfig) -> Result<StartedTask, StartTaskError> {
        let task = MockTask::from_config(&config.config)?;
        if task.start_for_ms > 0 {
            tokio::time::sleep(Duration::from_millis(task.start_for_ms)).await;
        }
        if let Some(message) = task.start_error {
            return Err(if task.start_error_recoverable {
                StartTaskError::Recoverable { message }
            } else {
                StartTaskError::Fatal { message }
            });
        }
        let mut tasks = self.lock();
        if tasks.contains_key(&config.id) {
            return Err(StartTaskError::AlreadyStarted { task_id: config.id });
        }
        let network = network_of(&task);
        let (pid, process) = self.host.spawn(task);
        let handle = TaskHandle {
            version: self.handle_version,
            driver: NAME.to_owned(),
            config: config.clone(),
            state: TaskState::Running,
            driver_state: pid.to_be_bytes().to_vec(),
        };
        tasks.insert(
            config.id.clone(),
            ManagedTask {
                pid,
                process,
                handle: handle.clone(),
            },
        );
        drop(tasks);
        self.emit(&config, "started");
        Ok(StartedTask { handle, network })
    }

    fn recover(&self, handle: TaskHandle) -> Result<(), RecoverTaskError> {
        let task_id = handle.config.id.clone();
        let mut tasks = self.lock();
        if tasks.contains_key(&task_id) {
            return Ok(());
        }
        if handle.version != self.handle_version {
            return Err(RecoverTaskError::HandleVersion {
                found: handle.version,
                supported: self.handle_version,
            });
        }
        let pid = <[u8; 8]>::try_from(handle.driver_state.as_slice())
            .map(u64::from_be_bytes)
            .map_err(|error| RecoverTaskError::InvalidHandle {
                reason: error.to_string(),
            })?;
        let process = self
            .host
            .find(pid)
            .filter(|process| process.ended().is_none())
            .ok_or_else(|| RecoverTaskError::Gone {
                task_id: task_id.clone(),
                reason: format!("the host has no process {pid}"),
            })?;
        tasks.insert(
            task_id,
            ManagedTask {
                pid,
                process,
                handle,
            },
        );
        Ok(())
    }

    async fn stop(&self, task_id: &str, timeout: Duration, signal: &str) -> Result<(), TaskError> {
        let managed = self.find(task_id)?;
        if signal == DETACH_SIGNAL && self.remote {
            self.lock().remove(task_id);
            return Ok(());
        }
        let signal = match signal {
            "" => managed
                .handle
                .config
                .kill_signal
                .as_deref()
                .unwrap_or("SIGINT"),
            named => named,
        };
        managed.process.signal(number(signal)?);
        let waited = tokio::time::timeout(timeout, managed.process.wait()).await;
        if waited.is_err() {
            managed.process.signal(SIGKILL);
        }
        self.emit(&managed.handle.config, "stopped");
        Ok(())
    }

    fn destroy(&self, task_id: &str, force: bool) -> Result<(), TaskError> {
        let managed = self.find(task_id)?;
        if self.host.refuses_destroys.load(Ordering::Relaxed) {
            return Err(TaskError::Driver(DriverError::Failed {
                message: "the host is stubborn".to_owned(),
                retry: Retry::Later,
            }));
        }
        if managed.process.ended().is_none() {
            if !force {
                return Err(TaskError::StillRunning {
                    task_id: task_id.to_owned(),
                });
            }
            managed.process.signal(SIGKILL);
        }
        self.host.remove(managed.pid);
        self.lock().remove(task_id);
        Ok(())
    }

    fn running(&self, task_id: &str) -> Result<ManagedTask, TaskError> {
        let managed = self.find(task_id)?;
        if managed.process.ended().is_some() {
            return Err(TaskError::NotRunning {
                task_id: task_id.to_owned(),
            });
        }
        Ok(managed)
    }

    fn signal(&self, task_id: &str, signal: &str) -> Result<(), TaskError> {
        let number = number(signal)?;
        let managed = self.running(task_id)?;
        if let Some(message) = &managed.process.task.signal_error {
            return Err(DriverError::Failed {
                message: message.clone(),
                retry: Retry::Never,
            }
            .into());
        }
        managed.process.signal(number);
        Ok(())
    }

    fn stats(&self, task_id: &str, interval: Duration) -> Result<TaskStatsStream, TaskError> {
        let process = self.find(task_id)?.process;
        let task_id = task_id.to_owned();
        let interval = interval.max(Duration::from_millis(1));
        let stream = stream::unfold((process, Duration::ZERO), move |(process, pause)| {
            let task_id = task_id.clone();
            async move {
                tokio::select! {
                    _ = process.wait() => return None,
                    () = tokio::time::sleep(pause) => {}
                }
                let percent = process.task.cpu_percent;
                let stats = TaskStats {
                    task_id,
                    at: SystemTime::now(),
                    usage: TaskUsage {
                        cpu: CpuUsage {
                            percent: percent.unwrap_or_default().into(),
                            measured: percent.map(|_| CpuField::Percent).into_iter().collect(),
                            ..CpuUsage::default()
                        },
                        ..TaskUsage::default()
                    },
                    by_pid: BTreeMap::new(),
                };
                Some((stats, (process, interval)))
            }
        });
        Ok(stream.boxed())
    }
}

fn network_of(task: &MockTask) -> Option<NetworkOverride> {
    (!task.address.is_empty()).then(|| NetworkOverride {
        port_map: BTreeMap::from([("http".to_owned(), 80)]),
        addr: task.address.clone(),
        auto_advertise: true,
    })
}

/// Returns the number of a signal that tests use.
fn number(signal: &str) -> Result<i32, TaskError> {
    match signal {
        "SIGHUP" => Ok(1),
        "SIGINT" | "" => Ok(2),
        "SIGKILL" => Ok(SIGKILL),
        "SIGUSR1" => Ok(10),
        "SIGTERM" => Ok(15),
        _ => Err(TaskError::UnknownSignal {
            signal: signal.to_owned(),
        }),
    }
}

impl TaskDriver for MockDriver {
    fn plugin_info(&self) -> BoxFuture<'_, Result<PluginInfo, DriverError>> {
        async {
            Ok(PluginInfo {
                name: NAME.to_owned(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
                api_versions: vec!["v0.1.0".to_owned()],
            })
        }
        .boxed()
    }

    fn config_schema(&self) -> BoxFuture<'_, Result<Option<Spec>, DriverError>> {
        let description = Spec::optional("description", "string");
        async { Ok(Some(Spec::object([("description", description)]))) }.boxed()
    }

    /// `description` becomes the health description of the fingerprint; without it, the default applies.
    fn set_config(&self, config: Value) -> BoxFuture<'_, Result<(), DriverError>> {
        let description = config.get("description").and_then(Value::as_str);
        self.set_health(Health::Healthy, description.unwrap_or("healthy"));
        async { Ok(()) }.boxed()
    }

    fn task_config_schema(&self) -> BoxFuture<'_, Result<Spec, DriverError>> {
        async {
            Ok(Spec::object([
                ("run_for_ms", Spec::optional("run_for_ms", "number")),
                ("exit_code", Spec::optional("exit_code", "number")),
                ("exit_signal", Spec::optional("exit_signal", "number")),
                ("oom_killed", Spec::optional("oom_killed", "bool")),
                ("start_for_ms", Spec::optional("start_for_ms", "number")),
                ("start_error", Spec::optional("start_error", "string")),
                (
                    "start_error_recoverable",
                    Spec::optional("start_error_recoverable", "bool"),
                ),
                ("ignore_signals", Spec::optional("ignore_signals", "bool")),
                ("signal_error", Spec::optional("signal_error", "string")),
                ("exec_stdout", Spec::optional("exec_stdout", "string")),
                ("exec_code", Spec::optional("exec_code", "number")),
                ("address", Spec::optional("address", "string")),
                ("cpu_percent", Spec::optional("cpu_percent", "number")),
            ]))
        }
        .boxed()
    }

    fn capabilities(&self) -> BoxFuture<'_, Result<Capabilities, DriverError>> {
        async {
            Ok(Capabilities {
                send_signals: true,
                exec: true,
                fs_isolation: self.fs_isolation,
                remote_tasks: self.remote,
                disable_log_collection: self.takes_output,
                must_create_network: self.networks.is_some(),
                network_modes: if self.networks.is_some() {
                    vec![NetworkMode::Host, NetworkMode::Group]
                } else {
                    Vec::new()
                },
                ..Capabilities::default()
            })
        }
        .boxed()
    }

    fn fingerprint(&self) -> BoxFuture<'_, Result<FingerprintStream, DriverError>> {
        let changes = self.fingerprints.subscribe();
        let stream = stream::unfold((changes, true), |(mut changes, first)| async move {
            if !first {
                // The stream ends when the driver was dropped. After a quiet period, the last fingerprint is repeated.
                let changed = tokio::time::timeout(FINGERPRINT_INTERVAL, changes.changed());
                if let Ok(Err(_gone)) = changed.await {
                    return None;
                }
            }
            let now = changes.borrow_and_update().clone();
            Some((now, (changes, false)))
        });
        async { Ok(stream.boxed()) }.boxed()
    }

    fn start_task(&self, config: TaskConfig) -> BoxFuture<'_, Result<StartedTask, StartTaskError>> {
        self.start(config).boxed()
    }

    fn recover_task(&self, handle: TaskHandle) -> BoxFuture<'_, Result<(), RecoverTaskError>> {
        async { self.recover(handle) }.boxed()
    }

    fn wait_task<'a>(&'a self, task_id: &'a str) -> BoxFuture<'a, Result<ExitResult, TaskError>> {
        async {
            self.faults.wait_error()?;
            let managed = self.find(task_id)?;
            Ok(managed.process.wait().await)
        }
        .boxed()
    }

    fn stop_task<'a>(
        &'a self,
        task_id: &'a str,
        timeout: Duration,
        signal: &'a str,
    ) -> BoxFuture<'a, Result<(), TaskError>> {
        self.stop(task_id, timeout, signal).boxed()
    }

    fn destroy_task<'a>(
        &'a self,
        task_id: &'a str,
        force: bool,
    ) -> BoxFuture<'a, Result<(), TaskError>> {
        async move {
            let mut held = self.host.holds_destroys.subscribe();
            // The host holds the sender.
            drop(held.wait_for(|held| !held).await);
            self.destroy(task_id, force)
        }
        .boxed()
    }

    fn inspect_task<'a>(
        &'a self,
        task_id: &'a str,
    ) -> BoxFuture<'a, Result<TaskStatus, TaskError>> {
        async {
            let managed = self.find(task_id)?;
            let ended = managed.process.ended();
            Ok(TaskStatus {
                id: task_id.to_owned(),
                name: managed.handle.config.task_name,
                state: if ended.is_some() {
                    TaskState::Exited
                } else {
                    TaskState::Running
                },
                started_at: Some(managed.process.started_at),
                completed_at: ended.as_ref().map(|(_, at)| *at),
                result: ended.map(|(result, _)| result),
                attributes: BTreeMap::from([("pid".to_owned(), managed.pid.to_string())]),
                network: network_of(&managed.process.task),
            })
        }
        .boxed()
    }

    fn task_stats<'a>(
        &'a self,
        task_id: &'a str,
        interval: Duration,
    ) -> BoxFuture<'a, Result<TaskStatsStream, TaskError>> {
        async move { self.stats(task_id, interval) }.boxed()
    }

    fn task_events(&self) -> BoxFuture<'_, Result<TaskEventStream, DriverError>> {
        // A reader that lags loses events and continues.
        let stream =
            BroadcastStream::new(self.events.subscribe()).filter_map(|event| async { event.ok() });
        async { Ok(stream.boxed()) }.boxed()
    }

    fn list_tasks(&self) -> BoxFuture<'_, Result<Vec<TaskHandle>, DriverError>> {
        async {
            let mut handles: Vec<_> = self
                .lock()
                .values()
                .map(|managed| managed.handle.clone())
                .collect();
            handles.sort_by(|a, b| a.config.id.cmp(&b.config.id));
            Ok(handles)
        }
        .boxed()
    }

    fn task_reach(&self, _config: TaskConfig) -> BoxFuture<'_, Result<TaskReach, DriverError>> {
        let reach = self.reach;
        async move { reach.ok_or_else(|| DriverError::unsupported("TaskReach")) }.boxed()
    }

    fn signal_task<'a>(
        &'a self,
        task_id: &'a str,
        signal: &'a str,
    ) -> BoxFuture<'a, Result<(), TaskError>> {
        async move { MockDriver::signal(self, task_id, signal) }.boxed()
    }

    fn exec_task<'a>(
        &'a self,
        task_id: &'a str,
        command: Vec<String>,
        timeout: Duration,
    ) -> BoxFuture<'a, Result<ExecResult, TaskError>> {
        async move {
            let process = self.running(task_id)?.process;
            Ok(exec::run(&process, &command, timeout).await)
        }
        .boxed()
    }

    fn exec_task_streaming<'a>(
        &'a self,
        task_id: &'a str,
        request: ExecRequest,
        input: ExecInputStream,
    ) -> BoxFuture<'a, Result<ExecOutputStream, TaskError>> {
        async move {
            let process = self.running(task_id)?.process;
            Ok(exec::stream(process, request, input))
        }
        .boxed()
    }

    fn create_network<'a>(
        &'a self,
        alloc_id: &'a str,
        hostname: &'a str,
    ) -> BoxFuture<'a, Result<CreatedNetwork, DriverError>> {
        async move {
            self.faults.wait_until_answered(CREATE_NETWORK).await;
            self.make_network(alloc_id, hostname)
        }
        .boxed()
    }

    fn destroy_network<'a>(
        &'a self,
        alloc_id: &'a str,
        _isolation: NetworkIsolation,
    ) -> BoxFuture<'a, Result<(), DriverError>> {
        async move {
            // A network that is already gone is the requested state.
            let _made = self.networks_of("DestroyNetwork")?.remove(alloc_id);
            Ok(())
        }
        .boxed()
    }
}

#[cfg(test)]
pub(crate) mod fixture;
#[cfg(test)]
mod tests;
