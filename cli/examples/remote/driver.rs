//! The driver. It stores for each task only its host and its number there.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt as _};
use futures::stream::{self, StreamExt as _};
use muster_driver::{
    Attribute, Capabilities, DETACH_SIGNAL, DriverError, ExitResult, Fingerprint,
    FingerprintStream, Health, PluginInfo, RecoverTaskError, Retry, Spec, StartTaskError,
    StartedTask, TaskConfig, TaskDriver, TaskError, TaskEventStream, TaskHandle, TaskState,
    TaskStatsStream, TaskStatus,
};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;

const NAME: &str = "remote";
const HANDLE_VERSION: i32 = 1;

/// The driver.
#[derive(Debug, Default)]
pub(crate) struct Remote {
    tasks: Mutex<HashMap<String, TaskLocation>>,
}

/// The location of a task.
#[derive(Clone, Debug)]
struct TaskLocation {
    host: String,
    number: u64,
}

/// Sends a request to a host.
async fn ask(host: &str, request: Value) -> Result<Value, DriverError> {
    let asked = async {
        let mut connection = UnixStream::connect(host).await?;
        let line = format!("{request}\n");
        connection.write_all(line.as_bytes()).await?;
        let mut answer = String::new();
        BufReader::new(connection).read_line(&mut answer).await?;
        serde_json::from_str(&answer).map_err(io::Error::other)
    };
    asked.await.map_err(|error: io::Error| DriverError::Failed {
        message: format!("the host at {host} does not answer: {error}"),
        retry: Retry::Later,
    })
}

impl TaskLocation {
    async fn ask(&self, call: &str) -> Result<Value, DriverError> {
        ask(&self.host, json!({"call": call, "number": self.number})).await
    }

    async fn signal(&self, signal: &str) -> Result<(), DriverError> {
        let signal = signal.trim_start_matches("SIG");
        let number = self.number;
        let request = json!({"call": "signal", "number": number, "signal": signal});
        ask(&self.host, request).await.map(drop)
    }

    /// Writes to the host's journal.
    async fn note(&self, what: &str) -> Result<(), DriverError> {
        let number = self.number;
        let request = json!({"note": format!("{what} {number}")});
        ask(&self.host, request).await.map(drop)
    }

    async fn runs(&self) -> Result<bool, DriverError> {
        Ok(self.ask("find").await?["running"] == true)
    }

    async fn wait(&self) -> Result<ExitResult, DriverError> {
        let ended = self.ask("wait").await?;
        let number = |name: &str| {
            let number = ended[name].as_i64().unwrap_or_default();
            i32::try_from(number).unwrap_or_default()
        };
        Ok(ExitResult {
            signal: number("signal"),
            ..ExitResult::exited(number("code"))
        })
    }
}

impl Remote {
    fn find(&self, task_id: &str) -> Result<TaskLocation, TaskError> {
        let tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        let found = tasks.get(task_id).cloned();
        found.ok_or_else(|| TaskError::not_found(task_id))
    }

    fn insert(&self, task_id: &str, place: TaskLocation) {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        tasks.insert(task_id.to_owned(), place);
    }

    fn forget(&self, task_id: &str) {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        tasks.remove(task_id);
    }

    async fn start(&self, config: TaskConfig) -> Result<StartedTask, StartTaskError> {
        let text = |name: &str| config.config[name].as_str().unwrap_or_default().to_owned();
        let (host, command) = (text("host"), text("command"));
        let started = ask(&host, json!({"call": "start", "command": command})).await?;
        let number = started["number"].as_u64().unwrap_or_default();
        let state = json!({"host": host, "number": number});
        self.insert(&config.id, TaskLocation { host, number });
        Ok(StartedTask {
            handle: TaskHandle {
                version: HANDLE_VERSION,
                driver: NAME.to_owned(),
                state: TaskState::Running,
                driver_state: state.to_string().into_bytes(),
                config,
            },
            network: None,
        })
    }

    async fn recover(&self, handle: TaskHandle) -> Result<(), RecoverTaskError> {
        let TaskConfig {
            id: task_id,
            alloc_id,
            ..
        } = handle.config;
        if handle.version != HANDLE_VERSION {
            return Err(RecoverTaskError::HandleVersion {
                found: handle.version,
                supported: HANDLE_VERSION,
            });
        }
        let state: Value = serde_json::from_slice(&handle.driver_state).map_err(|error| {
            RecoverTaskError::InvalidHandle {
                reason: error.to_string(),
            }
        })?;
        let place = TaskLocation {
            host: state["host"].as_str().unwrap_or_default().to_owned(),
            number: state["number"].as_u64().unwrap_or_default(),
        };
        if !place.runs().await? {
            return Err(RecoverTaskError::Gone {
                task_id,
                reason: format!("{} has no task {}", place.host, place.number),
            });
        }
        place.note(&format!("recover for {alloc_id} of")).await?;
        self.insert(&task_id, place);
        Ok(())
    }

    async fn stop(&self, task_id: &str, timeout: Duration, signal: &str) -> Result<(), TaskError> {
        let place = self.find(task_id)?;
        if signal == DETACH_SIGNAL {
            place.note("detach").await?;
            self.forget(task_id);
            return Ok(());
        }
        // A job without a kill signal leaves the choice to the driver.
        let signal = if signal.is_empty() { "SIGTERM" } else { signal };
        place.signal(signal).await?;
        match tokio::time::timeout(timeout, place.wait()).await {
            Ok(ended) => ended.map(drop)?,
            Err(_elapsed) => place.signal("KILL").await?,
        }
        Ok(())
    }

    async fn destroy(&self, task_id: &str, force: bool) -> Result<(), TaskError> {
        let place = self.find(task_id)?;
        if place.runs().await? {
            if !force {
                return Err(TaskError::StillRunning {
                    task_id: task_id.to_owned(),
                });
            }
            place.signal("KILL").await?;
        }
        self.forget(task_id);
        Ok(())
    }
}

impl TaskDriver for Remote {
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

    fn task_config_schema(&self) -> BoxFuture<'_, Result<Spec, DriverError>> {
        async {
            Ok(Spec::object([
                ("host", Spec::optional("host", "string")),
                ("command", Spec::optional("command", "string")),
            ]))
        }
        .boxed()
    }

    fn capabilities(&self) -> BoxFuture<'_, Result<Capabilities, DriverError>> {
        async {
            Ok(Capabilities {
                remote_tasks: true,
                ..Capabilities::default()
            })
        }
        .boxed()
    }

    fn fingerprint(&self) -> BoxFuture<'_, Result<FingerprintStream, DriverError>> {
        let healthy = Fingerprint {
            attributes: BTreeMap::from([(format!("driver.{NAME}"), Attribute::Bool(true))]),
            health: Health::Healthy,
            health_description: "healthy".to_owned(),
            err: None,
        };
        let healthy = stream::once(async { healthy }).chain(stream::pending());
        async { Ok(healthy.boxed()) }.boxed()
    }

    fn start_task(&self, config: TaskConfig) -> BoxFuture<'_, Result<StartedTask, StartTaskError>> {
        self.start(config).boxed()
    }

    fn recover_task(&self, handle: TaskHandle) -> BoxFuture<'_, Result<(), RecoverTaskError>> {
        self.recover(handle).boxed()
    }

    fn wait_task<'a>(&'a self, task_id: &'a str) -> BoxFuture<'a, Result<ExitResult, TaskError>> {
        async { Ok(self.find(task_id)?.wait().await?) }.boxed()
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
        async {
            let state = if self.find(task_id)?.runs().await? {
                TaskState::Running
            } else {
                TaskState::Exited
            };
            Ok(TaskStatus {
                id: task_id.to_owned(),
                state,
                ..TaskStatus::default()
            })
        }
        .boxed()
    }

    fn task_stats<'a>(
        &'a self,
        task_id: &'a str,
        _interval: Duration,
    ) -> BoxFuture<'a, Result<TaskStatsStream, TaskError>> {
        async {
            self.find(task_id)?;
            Ok(stream::pending().boxed())
        }
        .boxed()
    }

    fn task_events(&self) -> BoxFuture<'_, Result<TaskEventStream, DriverError>> {
        async { Ok(stream::pending().boxed()) }.boxed()
    }
}
