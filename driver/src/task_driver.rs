//! The interface between the agent and whatever runs tasks.
//!
//! Functions return boxed futures instead of being `async fn`: the agent holds `dyn TaskDriver`, an
//! `async fn` in a trait is not object safe, and a boxed future says so in plain types without a
//! macro. One allocation a call is nothing beside a process start.
//!
//! A driver keeps as little state as it can: the agent stores the handle of each task and gives it
//! back with [`TaskDriver::recover_task`]. A call must not depend on its caller waiting for it: a
//! dropped future leaves either the old state or the new.

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

/// Signal name that tells a driver of remote tasks to stop managing a task and to let it run.
pub const DETACH_SIGNAL: &str = "DETACH";

/// Fingerprints: one at once, then on change and from time to time. Ends with the driver.
pub type FingerprintStream = BoxStream<'static, Fingerprint>;
/// Usage of a task, at an interval. Ends with the task or the driver.
pub type TaskStatsStream = BoxStream<'static, TaskStats>;
/// Events of all tasks. Ends with the driver.
pub type TaskEventStream = BoxStream<'static, TaskEvent>;
/// Input of an interactive command.
pub type ExecInputStream = BoxStream<'static, ExecInput>;
/// Output of an interactive command; the last item is [`ExecOutput::Exited`], unless it failed.
pub type ExecOutputStream = BoxStream<'static, Result<ExecOutput, TaskError>>;

/// Runs tasks of one kind.
///
/// The functions up to [`Self::task_events`] are every driver's; those after it have a default that
/// answers [`DriverError::Unsupported`], and [`Self::capabilities`] says whether they work.
pub trait TaskDriver: Debug + Send + Sync + 'static {
    /// Returns the identity of the driver.
    fn plugin_info(&self) -> BoxFuture<'_, Result<PluginInfo, DriverError>>;

    /// Schema of the driver's own configuration; `None` when it has none.
    fn config_schema(&self) -> BoxFuture<'_, Result<Option<Spec>, DriverError>> {
        async { Ok(None) }.boxed()
    }

    /// Takes the driver's own configuration; `Null` is the default one. May come more than once.
    fn set_config(&self, _config: Value) -> BoxFuture<'_, Result<(), DriverError>> {
        async { Ok(()) }.boxed()
    }

    /// Schema of a task's `config` block.
    fn task_config_schema(&self) -> BoxFuture<'_, Result<Spec, DriverError>>;

    /// Returns the capabilities of the driver.
    fn capabilities(&self) -> BoxFuture<'_, Result<Capabilities, DriverError>>;

    /// How the driver is: the first item at once, then one on each change, and the last again from
    /// time to time, so that a reader knows the driver lives.
    fn fingerprint(&self) -> BoxFuture<'_, Result<FingerprintStream, DriverError>>;

    /// Starts a task. On error nothing of it is left.
    fn start_task(&self, config: TaskConfig) -> BoxFuture<'_, Result<StartedTask, StartTaskError>>;

    /// Takes charge of a task that an earlier life of the driver started. A task that the driver
    /// knows already is left as it is. A handle of another version is either understood or refused
    /// with [`RecoverTaskError::HandleVersion`], never misread.
    fn recover_task(&self, handle: TaskHandle) -> BoxFuture<'_, Result<(), RecoverTaskError>>;

    /// Waits for the end of a task; at once if it ended. Any number of callers may wait.
    fn wait_task<'a>(&'a self, task_id: &'a str) -> BoxFuture<'a, Result<ExitResult, TaskError>>;

    /// Signals the task, gives it `timeout` to end, then kills all of it. The task stays known and
    /// can be waited for. An empty `signal` is the one of the task's configuration or the driver's
    /// default. Stopping an ended task succeeds.
    ///
    /// A driver of remote tasks takes [`DETACH_SIGNAL`] as: forget the task, and let it run.
    fn stop_task<'a>(
        &'a self,
        task_id: &'a str,
        timeout: Duration,
        signal: &'a str,
    ) -> BoxFuture<'a, Result<(), TaskError>>;

    /// Forgets an ended task, with all that the driver kept for it; with `force`, kills it first.
    fn destroy_task<'a>(
        &'a self,
        task_id: &'a str,
        force: bool,
    ) -> BoxFuture<'a, Result<(), TaskError>>;

    /// Returns the driver's status of a task.
    fn inspect_task<'a>(&'a self, task_id: &'a str)
    -> BoxFuture<'a, Result<TaskStatus, TaskError>>;

    /// Usage of a task: once at once, then every `interval`.
    fn task_stats<'a>(
        &'a self,
        task_id: &'a str,
        interval: Duration,
    ) -> BoxFuture<'a, Result<TaskStatsStream, TaskError>>;

    /// Events of all tasks from now on, each with the allocation and the name of its task. The least
    /// that a driver tells: that a stop was ignored and ended in a kill.
    fn task_events(&self) -> BoxFuture<'_, Result<TaskEventStream, DriverError>>;

    /// Whether a host is connected, said by who serves the driver to other processes: at the beginning and with each
    /// change. Tasks with [`TaskConfig::without_host`] are stopped by the driver when none was for so long.
    fn host_present(&self, _present: bool) {}

    /// Handles of all tasks that the driver knows, ended ones included. This is how a host that
    /// lost its records finds its tasks again; Nomad's protocol has nothing like it.
    fn list_tasks(&self) -> BoxFuture<'_, Result<Vec<TaskHandle>, DriverError>> {
        async { Err(DriverError::unsupported("ListTasks")) }.boxed()
    }

    /// How far a task of this configuration gets where nothing holds it to a network policy; nothing is started. Asked
    /// by a host that cannot enforce any. Of a driver without an answer it takes the worst: tasks that reach what the
    /// machine's network leads to, and could be held. Nomad's protocol has nothing like it.
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

    /// Runs a command inside the task and collects its output. A zero `timeout` is none.
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
    /// With a terminal there is one output, [`ExecOutput::Stdout`]; its size is that of the newest
    /// [`ExecInput::Resize`]. The end of `input` is [`ExecInput::StdinClosed`]. Dropping the output
    /// hangs up: the command is killed. The end of the task ends it too, with its exit reported.
    fn exec_task_streaming<'a>(
        &'a self,
        _task_id: &'a str,
        _request: ExecRequest,
        _input: ExecInputStream,
    ) -> BoxFuture<'a, Result<ExecOutputStream, TaskError>> {
        async { Err(DriverError::unsupported("ExecTaskStreaming").into()) }.boxed()
    }

    /// Makes the network namespace of an allocation, or finds the one it made before.
    fn create_network<'a>(
        &'a self,
        _alloc_id: &'a str,
        _hostname: &'a str,
    ) -> BoxFuture<'a, Result<CreatedNetwork, DriverError>> {
        async { Err(DriverError::unsupported("CreateNetwork")) }.boxed()
    }

    /// Removes what [`Self::create_network`] made.
    fn destroy_network<'a>(
        &'a self,
        _alloc_id: &'a str,
        _isolation: NetworkIsolation,
    ) -> BoxFuture<'a, Result<(), DriverError>> {
        async { Err(DriverError::unsupported("DestroyNetwork")) }.boxed()
    }
}
