//! The interface between the agent and the drivers that run tasks.
//!
//! The functions return boxed futures instead of being `async fn`. The agent holds `dyn TaskDriver`, and an `async fn`
//! in a trait is not object safe. A boxed future needs no macro. Its one allocation per call costs nothing compared
//! with a process start.
//!
//! A driver keeps as little state as it can. The agent stores the handle of each task and gives the handle back with
//! [`TaskDriver::recover_task`]. A call must not depend on its caller waiting for it: a dropped future leaves either
//! the old state or the new.

use std::fmt::Debug;
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt};
use futures::stream::BoxStream;
use serde_json::Value;

use crate::capabilities::{Capabilities, Fingerprint, PluginInfo};
use crate::error::{DriverError, RecoverTaskError, StartTaskError, TaskError};
use crate::event::TaskEvent;
use crate::exec::{ExecInput, ExecOutput, ExecRequest, ExecResult};
use crate::network::{CreatedNetwork, NetworkIsolation, TaskReach};
use crate::schema::Spec;
use crate::stats::TaskStats;
use crate::task::{ExitResult, StartedTask, TaskConfig, TaskHandle, TaskStatus};

/// The signal name that makes a driver of remote tasks stop managing a task and leave the task running.
pub const DETACH_SIGNAL: &str = "DETACH";

/// Fingerprints: one immediately, then one on each change and periodically. The stream ends with the driver.
pub type FingerprintStream = BoxStream<'static, Fingerprint>;
/// The usage of a task at an interval. The stream ends with the task or the driver.
pub type TaskStatsStream = BoxStream<'static, TaskStats>;
/// The events of all tasks. The stream ends with the driver.
pub type TaskEventStream = BoxStream<'static, TaskEvent>;
/// The input of an interactive command.
pub type ExecInputStream = BoxStream<'static, ExecInput>;
/// The output of an interactive command. The last item is [`ExecOutput::Exited`], unless the stream failed.
pub type ExecOutputStream = BoxStream<'static, Result<ExecOutput, TaskError>>;

/// Runs tasks of one kind.
///
/// Every driver implements the functions up to [`Self::task_events`]. The functions after it have a default that
/// returns [`DriverError::Unsupported`]; [`Self::capabilities`] reports which of them work.
pub trait TaskDriver: Debug + Send + Sync + 'static {
    /// Returns the identity of the driver.
    fn plugin_info(&self) -> BoxFuture<'_, Result<PluginInfo, DriverError>>;

    /// Returns the schema of the driver's own configuration; `None` when the driver has no configuration.
    fn config_schema(&self) -> BoxFuture<'_, Result<Option<Spec>, DriverError>> {
        async { Ok(None) }.boxed()
    }

    /// Sets the driver's own configuration; `Null` is the default one. The host may call this more than once.
    fn set_config(&self, _config: Value) -> BoxFuture<'_, Result<(), DriverError>> {
        async { Ok(()) }.boxed()
    }

    /// Returns the schema of a task's `config` block.
    fn task_config_schema(&self) -> BoxFuture<'_, Result<Spec, DriverError>>;

    /// Returns the capabilities of the driver.
    fn capabilities(&self) -> BoxFuture<'_, Result<Capabilities, DriverError>>;

    /// Returns the fingerprints of the driver: the first immediately, then one on each change. The last one is
    /// repeated periodically, so that a reader knows that the driver is alive.
    fn fingerprint(&self) -> BoxFuture<'_, Result<FingerprintStream, DriverError>>;

    /// Starts a task. On error, nothing of the task is left.
    fn start_task(&self, config: TaskConfig) -> BoxFuture<'_, Result<StartedTask, StartTaskError>>;

    /// Takes charge of a task that an earlier process of the driver started. A task that the driver already has is
    /// left unchanged. A handle of another version is either understood or refused with
    /// [`RecoverTaskError::HandleVersion`], never misread.
    fn recover_task(&self, handle: TaskHandle) -> BoxFuture<'_, Result<(), RecoverTaskError>>;

    /// Waits for the end of a task; returns immediately if the task has ended. Any number of callers may wait.
    fn wait_task<'a>(&'a self, task_id: &'a str) -> BoxFuture<'a, Result<ExitResult, TaskError>>;

    /// Signals the task, waits up to `timeout` for its end, then kills all of its processes. The driver keeps the
    /// task, and callers can still wait for it. An empty `signal` means the signal of the task's configuration, or
    /// else the driver's default. Stopping an ended task succeeds.
    ///
    /// On [`DETACH_SIGNAL`], a driver of remote tasks forgets the task and leaves it running.
    fn stop_task<'a>(
        &'a self,
        task_id: &'a str,
        timeout: Duration,
        signal: &'a str,
    ) -> BoxFuture<'a, Result<(), TaskError>>;

    /// Forgets an ended task and removes all that the driver kept for it. With `force`, the driver kills a running
    /// task first.
    fn destroy_task<'a>(
        &'a self,
        task_id: &'a str,
        force: bool,
    ) -> BoxFuture<'a, Result<(), TaskError>>;

    /// Returns the driver's status of a task.
    fn inspect_task<'a>(&'a self, task_id: &'a str)
    -> BoxFuture<'a, Result<TaskStatus, TaskError>>;

    /// Returns the usage of a task: immediately, then every `interval`.
    fn task_stats<'a>(
        &'a self,
        task_id: &'a str,
        interval: Duration,
    ) -> BoxFuture<'a, Result<TaskStatsStream, TaskError>>;

    /// Returns the events of all tasks from now on, each with the allocation and the name of its task. Every driver
    /// must at least report a stop that the task ignored and that ended in a kill.
    fn task_events(&self) -> BoxFuture<'_, Result<TaskEventStream, DriverError>>;

    /// Notifies the driver whether a host is connected. The server of the plugin protocol calls this at the beginning
    /// and on each change. The driver stops a task with [`TaskConfig::without_host`] when no host was connected for
    /// that long.
    fn host_present(&self, _present: bool) {}

    /// Returns the handles of all tasks that the driver has, including ended ones. A host that lost its records finds
    /// its tasks again with this call. Nomad's protocol has no such call.
    fn list_tasks(&self) -> BoxFuture<'_, Result<Vec<TaskHandle>, DriverError>> {
        async { Err(DriverError::unsupported("ListTasks")) }.boxed()
    }

    /// Returns how far a task of this configuration can reach while no network policy is enforced on it; nothing is
    /// started. A host that cannot enforce policies calls this. For a driver without an answer, the host assumes the
    /// worst. The tasks then reach every address that the machine's network leads to, and a policy could be enforced
    /// on them. Nomad's protocol has no such call.
    fn task_reach(&self, _config: TaskConfig) -> BoxFuture<'_, Result<TaskReach, DriverError>> {
        async { Err(DriverError::unsupported("TaskReach")) }.boxed()
    }

    /// Sends a signal to the task's main process.
    fn signal_task<'a>(
        &'a self,
        _task_id: &'a str,
        _signal: &'a str,
    ) -> BoxFuture<'a, Result<(), TaskError>> {
        async { Err(DriverError::unsupported("SignalTask").into()) }.boxed()
    }

    /// Runs a command inside the task and collects its output. A zero `timeout` means no timeout.
    fn exec_task<'a>(
        &'a self,
        _task_id: &'a str,
        _command: Vec<String>,
        _timeout: Duration,
    ) -> BoxFuture<'a, Result<ExecResult, TaskError>> {
        async { Err(DriverError::unsupported("ExecTask").into()) }.boxed()
    }

    /// Runs a command inside the task with input and output as streams.
    ///
    /// With a terminal there is one output, [`ExecOutput::Stdout`]. The terminal has the size of the newest
    /// [`ExecInput::Resize`]. [`ExecInput::StdinClosed`] is the end of `input`. Dropping the output hangs up: the
    /// driver kills the command. The end of the task ends the command too, and the command's exit is reported.
    fn exec_task_streaming<'a>(
        &'a self,
        _task_id: &'a str,
        _request: ExecRequest,
        _input: ExecInputStream,
    ) -> BoxFuture<'a, Result<ExecOutputStream, TaskError>> {
        async { Err(DriverError::unsupported("ExecTaskStreaming").into()) }.boxed()
    }

    /// Creates the network namespace of an allocation, or finds the existing one.
    fn create_network<'a>(
        &'a self,
        _alloc_id: &'a str,
        _hostname: &'a str,
    ) -> BoxFuture<'a, Result<CreatedNetwork, DriverError>> {
        async { Err(DriverError::unsupported("CreateNetwork")) }.boxed()
    }

    /// Removes the network that [`Self::create_network`] created.
    fn destroy_network<'a>(
        &'a self,
        _alloc_id: &'a str,
        _isolation: NetworkIsolation,
    ) -> BoxFuture<'a, Result<(), DriverError>> {
        async { Err(DriverError::unsupported("DestroyNetwork")) }.boxed()
    }
}
