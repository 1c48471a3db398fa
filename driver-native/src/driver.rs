//! The native driver: its tasks by id, and the operations on them.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use futures::future::{BoxFuture, FutureExt};
use futures::stream::{self, StreamExt};
use muster_domain::error_chain::chain;
use muster_driver::{
    Attribute, Capabilities, DriverError, ExecInputStream, ExecOutputStream, ExecRequest,
    ExecResult, ExitResult, Fingerprint, FingerprintStream, FsIsolation, Health, MountConfigs,
    NetworkMode, PluginInfo, RecoverTaskError, Retry, Spec, StartTaskError, StartedTask,
    TaskConfig, TaskDriver, TaskError, TaskEvent, TaskEventStream, TaskHandle, TaskReach,
    TaskState, TaskStatsStream, TaskStatus, WithoutHost,
};
use nix::unistd::geteuid;
use tokio::sync::{Semaphore, broadcast, watch};
use tokio_stream::wrappers::BroadcastStream;

use crate::command::StartProcessError;
use crate::config::{NAME, NativeConfig};
use crate::isolation::{self, Confinement};
use crate::node::{IsolationSupport, Node};
use crate::policy::Policy;
use crate::spawn::OpenFiles;
use crate::spawn_pool::SpawnPool;
use crate::task::{NativeTask, failed};
use crate::watchdog::{self, HostWatchdog};
use crate::{exec, limits, signal, stats};

/// The version of Nomad's plugin interface.
const API_VERSION: &str = "v0.1.0";

/// Runs tasks as processes of this machine. The tasks continue to run when the driver is dropped.
#[derive(Debug)]
pub struct NativeDriver {
    shared: Arc<DriverState>,
}

#[derive(Debug)]
struct DriverState {
    tasks: Mutex<HashMap<String, TaskSlot>>,
    events: broadcast::Sender<TaskEvent>,
    spawn_permits: Arc<Semaphore>,
    spawn_pool: SpawnPool,
    open_files: Option<OpenFiles>,
    node: OnceLock<Arc<Node>>,
    /// Notified when the node's policy changes.
    configured: watch::Sender<()>,
    host_watchdog: HostWatchdog,
}

/// An entry of the task table.
#[derive(Clone, Debug)]
enum TaskSlot {
    /// The id is reserved while the task's process is started or searched for.
    Reserved,
    Known(Arc<NativeTask>),
}

impl Default for NativeDriver {
    fn default() -> Self {
        Self::new()
    }
}

impl NativeDriver {
    /// Creates a driver without tasks. Its functions must be called within a tokio runtime with I/O and time.
    pub fn new() -> Self {
        Self::with_open_files(None)
    }

    /// Creates a driver whose tasks have this limit of open files instead of the driver's own.
    pub(crate) fn with_open_files(open_files: Option<OpenFiles>) -> Self {
        Self {
            shared: Arc::new(DriverState {
                tasks: Mutex::default(),
                events: broadcast::Sender::new(limits::EVENTS_MAX),
                spawn_permits: Arc::new(Semaphore::new(limits::SPAWNS_MAX)),
                spawn_pool: SpawnPool::default(),
                open_files,
                node: OnceLock::new(),
                configured: watch::Sender::new(()),
                host_watchdog: HostWatchdog::default(),
            }),
        }
    }

    async fn start(&self, config: TaskConfig) -> Result<StartedTask, StartTaskError> {
        let shared = Arc::clone(&self.shared);
        shared
            .reserve(&config.id)
            .map_err(|_taken| StartTaskError::AlreadyStarted {
                task_id: config.id.clone(),
            })?;
        let reservation = Reservation::new(Arc::clone(&shared), &config.id);
        let task_name = config.task_name.clone();
        let handle = Self::begin(reservation, config)
            .await
            .map_err(|error| error.into_start_error_of_task(&task_name))?;
        Ok(StartedTask {
            handle,
            network: None,
        })
    }

    /// Starts the process. Once the work has begun, it continues when the caller goes away: the closure owns the
    /// reservation.
    async fn begin(
        reservation: Reservation,
        config: TaskConfig,
    ) -> Result<TaskHandle, StartProcessError> {
        let native = NativeConfig::read(&config.config)?;
        let shared = Arc::clone(&reservation.shared);
        let permit = Arc::clone(&shared.spawn_permits).acquire_owned().await;
        let keeps_no_capability =
            |node: &Arc<Node>| Confinement::keeps_no_capability(&native, &node.policy());
        let keeps_no_capability = shared.node.get().is_some_and(keeps_no_capability);
        let work = move || {
            let _permit = permit;
            let node = reservation
                .shared
                .node()
                .map_err(StartProcessError::Inspect)?;
            let spawn_permits = &reservation.shared.spawn_permits;
            let (task, handle, notes) = NativeTask::start(config, native, node, spawn_permits)?;
            let shared = Arc::clone(&reservation.shared);
            let task = reservation.fill(task);
            for note in notes {
                tracing::warn!(task = %task.id, "{note}");
                shared.emit(&task, note);
            }
            Ok(handle)
        };
        let started = if keeps_no_capability {
            shared.spawn_pool.run(work).await
        } else {
            let started = tokio::task::spawn_blocking(work).await;
            started.map_err(io::Error::other)
        };
        started.map_err(StartProcessError::Thread)?
    }

    fn recover(&self, handle: TaskHandle) -> Result<(), RecoverTaskError> {
        let task_id = handle.config.id.clone();
        if self.shared.reserve(&task_id).is_err() {
            return Ok(());
        }
        let reservation = Reservation::new(Arc::clone(&self.shared), &task_id);
        let node = self.shared.node().map_err(|error| {
            RecoverTaskError::Driver(DriverError::Failed {
                message: format!("read the boot id: {error}"),
                retry: Retry::Later,
            })
        })?;
        let spawn_permits = &reservation.shared.spawn_permits;
        let task = NativeTask::recover(handle, node, spawn_permits)?;
        let _task = reservation.fill(task);
        Ok(())
    }

    async fn stop(&self, task_id: &str, timeout: Duration, named: &str) -> Result<(), TaskError> {
        let task = self.shared.find(task_id)?;
        self.shared.stop(&task, timeout, named).await
    }

    async fn destroy(&self, task_id: &str, force: bool) -> Result<(), TaskError> {
        let task = self.shared.find(task_id)?;
        if task.task_process.end().is_none() && !force {
            return Err(TaskError::StillRunning {
                task_id: task_id.to_owned(),
            });
        }
        task.task_process.kill().await?;
        self.shared.remove(task_id, &task)
    }

    fn inspect(&self, task_id: &str) -> Result<TaskStatus, TaskError> {
        let task = self.shared.find(task_id)?;
        let end = task.task_process.end();
        let process = &task.task_process.process;
        Ok(TaskStatus {
            id: task_id.to_owned(),
            name: task.name.to_string(),
            state: match end {
                Some(_) => TaskState::Exited,
                None => TaskState::Running,
            },
            started_at: Some(task.started_at),
            completed_at: end.as_ref().map(|end| end.at),
            result: end.map(|end| end.result),
            attributes: BTreeMap::from([
                ("pid".to_owned(), process.pid.to_string()),
                ("start_ticks".to_owned(), process.start_ticks.to_string()),
            ]),
            network: None,
        })
    }

    async fn exec(
        &self,
        task_id: &str,
        command: Vec<String>,
        timeout: Duration,
    ) -> Result<ExecResult, TaskError> {
        let task = self.shared.running(task_id)?;
        let running = {
            let _permit = self.shared.spawn_permits.acquire().await;
            run_blocking(move || exec::start(&task, &command)).await?
        };
        running.finish(timeout).await
    }

    async fn session(
        &self,
        task_id: &str,
        request: ExecRequest,
        input: ExecInputStream,
    ) -> Result<ExecOutputStream, TaskError> {
        let task = self.shared.running(task_id)?;
        let session = {
            let _permit = self.shared.spawn_permits.acquire().await;
            let task = Arc::clone(&task);
            run_blocking(move || exec::open(&task, &request)).await?
        };
        session.forward(task, input)
    }
}

/// Returns the fingerprint of the driver on this machine.
fn fingerprint(node: &io::Result<Arc<Node>>) -> Fingerprint {
    let name = |suffix: &str| format!("driver.{NAME}{suffix}");
    let text = |text: &str| Attribute::Text(text.to_owned());
    let root = geteuid().is_root();
    let mut attributes = BTreeMap::from([
        (name(""), Attribute::Bool(true)),
        (name(".version"), text(env!("CARGO_PKG_VERSION"))),
        (name(".users"), Attribute::Bool(root)),
    ]);
    let node = match node {
        Ok(node) => node,
        Err(error) => {
            return Fingerprint {
                attributes,
                health: Health::Unhealthy,
                health_description: format!("cannot look at the machine: {error}"),
                err: Some(error.to_string()),
            };
        }
    };
    let policy = node.policy();
    let levels = [("contained", node.contained()), ("strict", node.strict())];
    let raw = name(".isolation.raw");
    attributes.insert(raw, Attribute::Bool(policy.allow_raw));
    let scope = name(".isolation.abstract_sockets");
    attributes.insert(scope, Attribute::Bool(node.scope().is_some()));
    for (level, ability) in &levels {
        let able = Attribute::Bool(*ability == IsolationSupport::Able);
        attributes.insert(name(&format!(".isolation.{level}")), able);
        if let IsolationSupport::Unable(reason) = ability {
            attributes.insert(name(&format!(".isolation.{level}.reason")), text(reason));
        }
    }
    let (health, health_description) = match (&levels[0].1, policy.allow_raw) {
        (IsolationSupport::Able, _) => (Health::Healthy, "healthy".to_owned()),
        (IsolationSupport::Unable(reason), true) => (
            Health::Healthy,
            format!("healthy, but raw tasks only: {reason}"),
        ),
        (IsolationSupport::Unable(reason), false) => (
            Health::Unhealthy,
            format!("no task can run: {reason}, and raw tasks are not allowed"),
        ),
    };
    Fingerprint {
        attributes,
        health,
        health_description,
        err: None,
    }
}

impl DriverState {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, TaskSlot>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn node(&self) -> io::Result<&Arc<Node>> {
        if let Some(node) = self.node.get() {
            return Ok(node);
        }
        let node = Node::new(self.open_files)?;
        Ok(self.node.get_or_init(|| Arc::new(node)))
    }

    /// Reserves an unused id.
    fn reserve(&self, task_id: &str) -> Result<(), TaskIdInUse> {
        let mut tasks = self.lock();
        if tasks.contains_key(task_id) {
            return Err(TaskIdInUse);
        }
        tasks.insert(task_id.to_owned(), TaskSlot::Reserved);
        Ok(())
    }

    fn find(&self, task_id: &str) -> Result<Arc<NativeTask>, TaskError> {
        match self.lock().get(task_id) {
            Some(TaskSlot::Known(task)) => Ok(Arc::clone(task)),
            Some(TaskSlot::Reserved) | None => Err(TaskError::not_found(task_id)),
        }
    }

    fn running(&self, task_id: &str) -> Result<Arc<NativeTask>, TaskError> {
        let task = self.find(task_id)?;
        if task.task_process.end().is_some() {
            return Err(task.not_running());
        }
        Ok(task)
    }

    /// Forgets `task`, unless another call has already removed it.
    fn remove(&self, task_id: &str, task: &Arc<NativeTask>) -> Result<(), TaskError> {
        let mut tasks = self.lock();
        match tasks.get(task_id) {
            Some(TaskSlot::Known(known)) if Arc::ptr_eq(known, task) => {
                tasks.remove(task_id);
                Ok(())
            }
            Some(_) | None => Err(TaskError::not_found(task_id)),
        }
    }

    /// Signals the task, and kills it when it does not end in time.
    async fn stop(
        &self,
        task: &NativeTask,
        timeout: Duration,
        named: &str,
    ) -> Result<(), TaskError> {
        let own = task.kill_signal.as_deref();
        let name = match named {
            "" => own.unwrap_or(signal::DEFAULT_STOP),
            named => named,
        };
        let signal = signal::parse(name)?;
        if task.task_process.end().is_some() {
            return Ok(());
        }
        match &task.task_process.tree {
            // The task's stop signal does not apply to actions. The executor always sends SIGTERM, which clients
            // expect.
            Some(tree) => tree.stop(),
            None => {
                task.task_process
                    .signal(signal)
                    .map_err(|error| failed(format!("send {name} to task {}: {error}", task.id)))?;
            }
        }
        if tokio::time::timeout(timeout, task.task_process.wait_end())
            .await
            .is_err()
        {
            self.emit(
                task,
                format!("did not end within {timeout:?} of {name}; killed"),
            );
            task.task_process.kill().await?;
        }
        Ok(())
    }

    /// Stops the task after the time that it may run without a connected host. Must be called within a runtime.
    fn guard(self: &Arc<Self>, task: &Arc<NativeTask>) {
        let Some(without_host) = task.without_host else {
            return;
        };
        let expired = self.host_watchdog.wait_expired(without_host.max);
        // The guard ends with the task, so it must not keep the task alive.
        let (shared, guarded) = (Arc::downgrade(self), Arc::downgrade(task));
        let guard = tokio::spawn(async move {
            expired.await;
            if let (Some(shared), Some(task)) = (shared.upgrade(), guarded.upgrade()) {
                shared.stop_unattended(&task, without_host).await;
            }
        });
        task.set_guard(guard.abort_handle());
    }

    async fn stop_unattended(&self, task: &NativeTask, without_host: WithoutHost) {
        if task.task_process.end().is_some() {
            return;
        }
        let why = watchdog::stop_reason(without_host.max);
        tracing::warn!(task = %task.id, "{why}");
        task.task_process.set_stop_reason(why);
        if let Err(error) = self.stop(task, without_host.kill_timeout, "").await {
            tracing::warn!(task = %task.id, %error, "a task without an agent is killed");
            if let Err(error) = task.task_process.kill().await {
                tracing::error!(task = %task.id, %error, "a task without an agent runs on");
            }
        }
    }

    fn emit(&self, task: &NativeTask, message: String) {
        let config = match task.handle() {
            Ok(handle) => handle.config,
            Err(error) => {
                tracing::error!(%error, message, "an event of a task is lost");
                return;
            }
        };
        // An event without a listener is not a failure.
        let _receivers = self.events.send(TaskEvent {
            task_id: config.id,
            alloc_id: config.alloc_id,
            task_name: config.task_name,
            at: SystemTime::now(),
            message,
            annotations: BTreeMap::new(),
        });
    }
}

/// An id that is in use.
#[derive(Debug)]
struct TaskIdInUse;

/// A reserved id of a task that is not started yet. Dropping it releases the id, unless the task was inserted.
struct Reservation {
    shared: Arc<DriverState>,
    task_id: String,
    filled: bool,
}

impl Reservation {
    fn new(shared: Arc<DriverState>, task_id: &str) -> Self {
        Self {
            shared,
            task_id: task_id.to_owned(),
            filled: false,
        }
    }

    fn fill(mut self, task: NativeTask) -> Arc<NativeTask> {
        self.filled = true;
        let task = Arc::new(task);
        self.shared.guard(&task);
        self.shared
            .lock()
            .insert(self.task_id.clone(), TaskSlot::Known(Arc::clone(&task)));
        task
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if !self.filled {
            self.shared.lock().remove(&self.task_id);
        }
    }
}

/// Runs `work` on a thread that may block. A panic of `work` is resumed in the caller.
async fn run_blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(value) => value,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

impl TaskDriver for NativeDriver {
    fn plugin_info(&self) -> BoxFuture<'_, Result<PluginInfo, DriverError>> {
        async {
            Ok(PluginInfo {
                name: NAME.to_owned(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
                api_versions: vec![API_VERSION.to_owned()],
            })
        }
        .boxed()
    }

    fn config_schema(&self) -> BoxFuture<'_, Result<Option<Spec>, DriverError>> {
        async { Ok(Some(Policy::schema())) }.boxed()
    }

    fn set_config(&self, config: serde_json::Value) -> BoxFuture<'_, Result<(), DriverError>> {
        let refused = |message| DriverError::Failed {
            message,
            retry: Retry::Never,
        };
        async move {
            let policy = Policy::read(config).map_err(|error| refused(chain(&error)))?;
            let node = self
                .shared
                .node()
                .map_err(|error| refused(error.to_string()))?;
            node.set_policy(policy);
            self.shared.configured.send_replace(());
            Ok(())
        }
        .boxed()
    }

    fn task_config_schema(&self) -> BoxFuture<'_, Result<Spec, DriverError>> {
        async { Ok(NativeConfig::schema()) }.boxed()
    }

    fn capabilities(&self) -> BoxFuture<'_, Result<Capabilities, DriverError>> {
        async {
            Ok(Capabilities {
                send_signals: true,
                exec: true,
                fs_isolation: FsIsolation::Image,
                network_modes: vec![NetworkMode::Host, NetworkMode::Group, NetworkMode::None],
                must_create_network: false,
                mount_configs: MountConfigs::Any,
                remote_tasks: false,
                disable_log_collection: false,
                dynamic_workload_users: false,
                joins_cgroup: true,
            })
        }
        .boxed()
    }

    fn fingerprint(&self) -> BoxFuture<'_, Result<FingerprintStream, DriverError>> {
        let changed = self.shared.configured.subscribe();
        let shared = Arc::clone(&self.shared);
        let stream = stream::unfold(
            (Duration::ZERO, changed, shared),
            |(pause, mut changed, shared)| async move {
                // A change of the node's policy ends the pause. The sender is in `shared`.
                let _either = tokio::time::timeout(pause, changed.changed()).await;
                let looking = Arc::clone(&shared);
                let now = run_blocking(move || fingerprint(&looking.node().map(Arc::clone))).await;
                Some((now, (limits::FINGERPRINT_INTERVAL, changed, shared)))
            },
        );
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
            let task = self.shared.find(task_id)?;
            Ok(task.task_process.wait_end().await.result)
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
        self.destroy(task_id, force).boxed()
    }

    fn inspect_task<'a>(
        &'a self,
        task_id: &'a str,
    ) -> BoxFuture<'a, Result<TaskStatus, TaskError>> {
        async { self.inspect(task_id) }.boxed()
    }

    fn task_stats<'a>(
        &'a self,
        task_id: &'a str,
        interval: Duration,
    ) -> BoxFuture<'a, Result<TaskStatsStream, TaskError>> {
        async move {
            let task = self.shared.find(task_id)?;
            Ok(stats::stream(&task, interval))
        }
        .boxed()
    }

    fn task_events(&self) -> BoxFuture<'_, Result<TaskEventStream, DriverError>> {
        // A reader that lags loses events and continues.
        let stream = BroadcastStream::new(self.shared.events.subscribe())
            .filter_map(|event| async { event.ok() });
        async { Ok(stream.boxed()) }.boxed()
    }

    fn host_present(&self, present: bool) {
        self.shared.host_watchdog.host_present(present);
    }

    fn list_tasks(&self) -> BoxFuture<'_, Result<Vec<TaskHandle>, DriverError>> {
        async {
            let known = |slot: &TaskSlot| match slot {
                TaskSlot::Known(task) => Some(Arc::clone(task)),
                TaskSlot::Reserved => None,
            };
            let tasks: Vec<_> = self.shared.lock().values().filter_map(known).collect();
            let handles = tasks.iter().map(|task| task.handle());
            let mut handles = handles.collect::<Result<Vec<TaskHandle>, DriverError>>()?;
            handles.sort_by(|a, b| a.config.id.cmp(&b.config.id));
            Ok(handles)
        }
        .boxed()
    }

    fn task_reach(&self, config: TaskConfig) -> BoxFuture<'_, Result<TaskReach, DriverError>> {
        async move {
            let native = NativeConfig::read(&config.config).map_err(StartProcessError::from);
            let reach =
                native.and_then(|native| isolation::reach(&config, &native).map_err(Into::into));
            reach.map_err(|error| DriverError::Failed {
                message: error
                    .into_start_error_of_task(&config.task_name)
                    .to_string(),
                retry: Retry::Never,
            })
        }
        .boxed()
    }

    fn signal_task<'a>(
        &'a self,
        task_id: &'a str,
        signal: &'a str,
    ) -> BoxFuture<'a, Result<(), TaskError>> {
        async move {
            let number = signal::parse(signal)?;
            let task = self.shared.running(task_id)?;
            let sent = task
                .task_process
                .signal(number)
                .map_err(|error| failed(format!("send {signal} to task {task_id}: {error}")))?;
            if sent {
                Ok(())
            } else {
                Err(task.not_running())
            }
        }
        .boxed()
    }

    fn exec_task<'a>(
        &'a self,
        task_id: &'a str,
        command: Vec<String>,
        timeout: Duration,
    ) -> BoxFuture<'a, Result<ExecResult, TaskError>> {
        self.exec(task_id, command, timeout).boxed()
    }

    fn exec_task_streaming<'a>(
        &'a self,
        task_id: &'a str,
        request: ExecRequest,
        input: ExecInputStream,
    ) -> BoxFuture<'a, Result<ExecOutputStream, TaskError>> {
        self.session(task_id, request, input).boxed()
    }
}
