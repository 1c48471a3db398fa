//! A driver in another process.
//!
//! The first call opens the connection, and the first call after a break opens it again. A call is never repeated
//! automatically. The agent must find out whether a call took effect before the connection broke (`InspectTask`,
//! `RecoverTask`).

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::{self, BoxFuture, FutureExt};
use futures::stream::{BoxStream, Stream, StreamExt};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Request, Response, Status, Streaming};
use tower::service_fn;
use tracing::debug;

use crate::capabilities::{Capabilities, PluginInfo};
use crate::error::{DriverError, RecoverTaskError, StartTaskError, TaskError};
use crate::exec::{ExecInput, ExecOutput, ExecRequest, ExecResult};
use crate::host::HostInfo;
use crate::limits;
use crate::network::{CreatedNetwork, NetworkIsolation, TaskReach};
use crate::plugin::convert::{self, protocol};
use crate::plugin::ends::TaskEndWaiters;
use crate::plugin::output::Lines;
use crate::plugin::proto::base::base_plugin_client::BasePluginClient;
use crate::plugin::proto::controller::grpc_broker_client::GrpcBrokerClient;
use crate::plugin::proto::controller::grpc_controller_client::GrpcControllerClient;
use crate::plugin::proto::controller::grpc_stdio_client::GrpcStdioClient;
use crate::plugin::proto::drivers::driver_client::DriverClient;
use crate::plugin::proto::health::health_client::HealthClient;
use crate::plugin::proto::muster::muster_driver_client::MusterDriverClient;
use crate::plugin::proto::{base, controller, drivers, health, muster};
use crate::plugin::status::{to_driver_error, to_recover_error, to_task_error};
use crate::schema::Spec;
use crate::stats::TaskStats;
use crate::task::{ExitResult, StartedTask, TaskConfig, TaskHandle, TaskStatus};
use crate::task_driver::{
    ExecInputStream, ExecOutputStream, FingerprintStream, TaskDriver, TaskEventStream,
    TaskStatsStream,
};

/// Version of Nomad's plugin interface that this host speaks.
const API_VERSION: &str = "v0.1.0";
/// The name under which plugins answer the health service.
const HEALTH_SERVICE: &str = "plugin";

/// A connection to a driver process. Clones share it.
#[derive(Clone, Debug)]
pub struct Client {
    name: String,
    socket: Arc<Mutex<PathBuf>>,
    channel: Channel,
    ends: Arc<TaskEndWaiters>,
    /// The facts that the driver receives about its host, if any.
    host: Option<Arc<HostInfo>>,
}

impl Client {
    /// Creates a client of the driver `name` behind `socket`. No connection is opened yet. Must be called within a
    /// tokio runtime.
    pub fn new(name: &str, socket: &Path) -> Self {
        let socket = Arc::new(Mutex::new(socket.to_owned()));
        let target = Arc::clone(&socket);
        let connector = service_fn(move |_: Uri| {
            let path = path_of(&target);
            async move { UnixStream::connect(path).await.map(TokioIo::new) }
        });
        // The address is never resolved: the connector uses the socket path.
        let channel = Endpoint::from_static("http://driver.invalid")
            .connect_timeout(limits::CONNECT_DEADLINE)
            .connect_with_connector_lazy(connector);
        Self {
            name: name.to_owned(),
            socket,
            channel,
            ends: Arc::default(),
            host: None,
        }
    }

    /// Adds the facts about the host, which the client sends to the driver with its configuration.
    #[must_use]
    pub fn of_host(mut self, host: Arc<HostInfo>) -> Self {
        self.host = Some(host);
        self
    }

    /// Returns the name given in [`Self::new`].
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the socket given in [`Self::new`], or the newest one in [`Self::redirect`].
    pub fn socket(&self) -> PathBuf {
        path_of(&self.socket)
    }

    /// Uses `socket` for the next connection: the driver restarted and listens elsewhere. An open connection stays
    /// open.
    pub fn redirect(&self, socket: &Path) {
        let mut path = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        socket.clone_into(&mut path);
        self.ends.clear_unsupported();
    }

    /// Forwards the driver's output other than its log, and keeps the stream of the broker open as hosts do. Returns
    /// when the driver ends or has neither stream.
    pub async fn attend(&self) {
        let printed = async {
            let mut client = GrpcStdioClient::new(self.channel.clone());
            let Ok(answer) = client.stream_stdio(()).await else {
                return;
            };
            let mut stream = answer.into_inner();
            let mut lines = Lines::new(&self.name);
            while let Ok(Some(message)) = stream.message().await {
                lines.append(&message.data);
            }
        };
        let brokered = async {
            let mut client = GrpcBrokerClient::new(self.channel.clone());
            let Ok(answer) = client.start_stream(futures::stream::pending()).await else {
                return;
            };
            let mut stream = answer.into_inner();
            while let Ok(Some(message)) = stream.message().await {
                debug!(
                    driver = self.name,
                    ?message,
                    "the driver offers a connection that has no user"
                );
            }
        };
        tokio::join!(printed, brokered);
    }

    /// Checks that the driver serves calls.
    ///
    /// # Errors
    ///
    /// [`DriverError::Unavailable`] while no process answers at the socket.
    pub async fn ping(&self) -> Result<(), DriverError> {
        let mut client = HealthClient::new(self.channel.clone());
        let request = health::HealthCheckRequest {
            service: HEALTH_SERVICE.to_owned(),
        };
        let answer = self
            .driver_call("Check", limits::CALL_DEADLINE, client.check(request))
            .await?;
        match answer.status() {
            health::health_check_response::ServingStatus::Serving => Ok(()),
            other => Err(DriverError::Unavailable {
                reason: format!("the driver says it is {}", other.as_str_name()),
            }),
        }
    }

    /// Ends the driver process; its tasks continue to run.
    ///
    /// # Errors
    ///
    /// [`DriverError`] when the call failed.
    pub async fn shutdown(&self) -> Result<(), DriverError> {
        let mut client = GrpcControllerClient::new(self.channel.clone());
        let call = client.shutdown(controller::Empty {});
        match self
            .driver_call("Shutdown", limits::CALL_DEADLINE, call)
            .await
        {
            // A driver may end before its answer is sent.
            Ok(_) | Err(DriverError::Unavailable { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn driver(&self) -> DriverClient<Channel> {
        DriverClient::new(self.channel.clone())
            .max_decoding_message_size(limits::MESSAGE_BYTES_MAX)
            .max_encoding_message_size(limits::MESSAGE_BYTES_MAX)
    }

    fn base(&self) -> BasePluginClient<Channel> {
        BasePluginClient::new(self.channel.clone())
            .max_decoding_message_size(limits::MESSAGE_BYTES_MAX)
            .max_encoding_message_size(limits::MESSAGE_BYTES_MAX)
    }

    fn muster(&self) -> MusterDriverClient<Channel> {
        MusterDriverClient::new(self.channel.clone())
            .max_decoding_message_size(limits::MESSAGE_BYTES_MAX)
    }

    /// Awaits `call` for at most `deadline`.
    async fn call_with_deadline<T>(
        &self,
        name: &'static str,
        deadline: Duration,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<Result<T, Status>, DriverError> {
        match tokio::time::timeout(deadline, call).await {
            Ok(Ok(response)) => Ok(Ok(response.into_inner())),
            Ok(Err(status)) => {
                debug!(driver = self.name, call = name, code = ?status.code(), message = status.message(), "driver call failed");
                Ok(Err(status))
            }
            Err(_elapsed) => Err(DriverError::TimedOut {
                call: name,
                after: deadline,
            }),
        }
    }

    async fn driver_call<T>(
        &self,
        name: &'static str,
        deadline: Duration,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, DriverError> {
        self.call_with_deadline(name, deadline, call)
            .await?
            .map_err(|status| self.add_driver_name(to_driver_error(name, &status)))
    }

    async fn task_call<T>(
        &self,
        name: &'static str,
        task_id: &str,
        deadline: Duration,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, TaskError> {
        let answer = self.call_with_deadline(name, deadline, call).await?;
        answer.map_err(|status| {
            self.add_driver_name_to_task_error(to_task_error(name, task_id, "", &status))
        })
    }

    /// Adds the driver's name to an error about an unreachable driver.
    fn add_driver_name(&self, error: DriverError) -> DriverError {
        match error {
            DriverError::Unavailable { reason } => DriverError::Unavailable {
                reason: self.with_driver_name(&reason),
            },
            other => other,
        }
    }

    fn add_driver_name_to_task_error(&self, error: TaskError) -> TaskError {
        match error {
            TaskError::Driver(error) => TaskError::Driver(self.add_driver_name(error)),
            other => other,
        }
    }

    fn with_driver_name(&self, reason: &dyn Display) -> String {
        format!("{} at {}: {reason}", self.name, self.socket().display())
    }

    async fn start(&self, config: TaskConfig) -> Result<StartedTask, StartTaskError> {
        use drivers::start_task_response::Result as Outcome;
        let task_id = config.id.clone();
        let request = drivers::StartTaskRequest {
            task: Some(convert::task_config_to_proto(&config)?),
        };
        let mut driver = self.driver();
        let call = driver.start_task(request).boxed();
        let answer = self
            .driver_call("StartTask", limits::START_DEADLINE, call)
            .await?;
        if answer.already_started {
            return Err(StartTaskError::AlreadyStarted { task_id });
        }
        let message = answer.driver_error_msg;
        match Outcome::try_from(answer.result) {
            Ok(Outcome::Success) => {}
            Ok(Outcome::Retry) => return Err(StartTaskError::Recoverable { message }),
            Ok(Outcome::Fatal) => return Err(StartTaskError::Fatal { message }),
            Err(_) => {
                return Err(
                    protocol(format!("start result {} is not known", answer.result)).into(),
                );
            }
        }
        let handle = answer
            .handle
            .ok_or_else(|| protocol("a task was started without a handle"))?;
        let mut handle = convert::handle_from_proto(handle)?;
        check_state(handle.driver_state.len())?;
        if handle.driver.is_empty() {
            handle.driver.clone_from(&self.name);
        }
        Ok(StartedTask {
            handle,
            network: answer
                .network_override
                .map(convert::network_override_from_proto),
        })
    }

    async fn recover(&self, handle: TaskHandle) -> Result<(), RecoverTaskError> {
        let task_id = handle.config.id.clone();
        let request = drivers::RecoverTaskRequest {
            task_id: task_id.clone(),
            handle: Some(convert::handle_to_proto(&handle)?),
        };
        let mut driver = self.driver();
        let answer = self
            .call_with_deadline(
                "RecoverTask",
                limits::START_DEADLINE,
                driver.recover_task(request),
            )
            .await?;
        match answer {
            Ok(drivers::RecoverTaskResponse {}) => Ok(()),
            Err(status) => Err(match to_recover_error(&task_id, &status) {
                RecoverTaskError::Driver(error) => self.add_driver_name(error).into(),
                other => other,
            }),
        }
    }

    /// Waits without a deadline: a task may run for years.
    async fn wait(&self, task_id: &str) -> Result<ExitResult, TaskError> {
        match self.ends.wait(&self.channel, task_id).await {
            Some(answer) => Ok(convert::wait_from_proto(answer)),
            // The future is on the heap, because most waits never need it.
            None => self.call_wait_task(task_id).boxed().await,
        }
    }

    async fn call_wait_task(&self, task_id: &str) -> Result<ExitResult, TaskError> {
        let request = drivers::WaitTaskRequest {
            task_id: task_id.to_owned(),
        };
        let answer = self
            .driver()
            .wait_task(request)
            .await
            .map_err(|status| {
                self.add_driver_name_to_task_error(to_task_error("WaitTask", task_id, "", &status))
            })?
            .into_inner();
        Ok(convert::wait_from_proto(answer))
    }

    async fn exec(
        &self,
        task_id: &str,
        command: Vec<String>,
        timeout: Duration,
    ) -> Result<ExecResult, TaskError> {
        let request = drivers::ExecTaskRequest {
            task_id: task_id.to_owned(),
            command,
            timeout: Some(convert::duration_to_proto(timeout)),
        };
        let deadline = if timeout.is_zero() {
            Duration::MAX
        } else {
            timeout.saturating_add(limits::DEADLINE_MARGIN)
        };
        let mut driver = self.driver();
        let answer = self
            .task_call("ExecTask", task_id, deadline, driver.exec_task(request))
            .await?;
        Ok(ExecResult {
            stdout: answer.stdout,
            stderr: answer.stderr,
            result: answer.result.map_or_else(
                || ExitResult::unknown("the driver sent no result".to_owned()),
                convert::exit_from_proto,
            ),
        })
    }

    async fn exec_streaming(
        &self,
        task_id: &str,
        request: ExecRequest,
        input: ExecInputStream,
    ) -> Result<ExecOutputStream, TaskError> {
        let task_id = task_id.to_owned();
        let setup = drivers::ExecTaskStreamingRequest {
            setup: Some(drivers::exec_task_streaming_request::Setup {
                task_id: task_id.clone(),
                command: request.command,
                tty: request.tty,
            }),
            tty_size: None,
            stdin: None,
        };
        let messages = futures::stream::iter([setup]).chain(input.map(exec_input_to_proto));
        let messages = Requests(messages.boxed());
        let mut driver = self.driver();
        let call = async move { driver.exec_task_streaming(Request::new(messages)).await };
        let output = open_stream(call.boxed()).await.map_err(|status| {
            self.add_driver_name_to_task_error(to_task_error(
                "ExecTaskStreaming",
                &task_id,
                "",
                &status,
            ))
        })?;
        let output = output.map(move |message| match message {
            Ok(message) => exec_output_from_proto(message),
            Err(status) => Err(to_task_error("ExecTaskStreaming", &task_id, "", &status)),
        });
        Ok(output.boxed())
    }
}

/// Messages to a driver. This is a separate type, because the compiler cannot prove through a boxed stream that a call
/// with it is `Send`.
struct Requests(BoxStream<'static, drivers::ExecTaskStreamingRequest>);

impl Stream for Requests {
    type Item = drivers::ExecTaskStreamingRequest;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_next_unpin(context)
    }
}

/// The messages of a stream, or the error that broke it.
type Messages<T> = BoxStream<'static, Result<T, Status>>;

/// Waits for the answer to a streaming call. Servers in Go send their headers with the first message only, which may
/// never come. A refusal comes immediately, so after a grace period the stream counts as open.
async fn open_stream<T: Send + 'static>(
    mut call: BoxFuture<'static, Result<Response<Streaming<T>>, Status>>,
) -> Result<Messages<T>, Status> {
    match tokio::time::timeout(limits::STREAM_GRACE, &mut call).await {
        Ok(answer) => Ok(answer?.into_inner().boxed()),
        Err(_elapsed) => Ok(futures::stream::once(call)
            .map(|answer| match answer {
                Ok(answer) => answer.into_inner().boxed(),
                Err(status) => futures::stream::iter([Err(status)]).boxed(),
            })
            .flatten()
            .boxed()),
    }
}

/// Refuses a handle that is too large to store.
fn check_state(bytes: usize) -> Result<(), StartTaskError> {
    if bytes <= limits::DRIVER_STATE_BYTES_MAX {
        return Ok(());
    }
    Err(StartTaskError::Fatal {
        message: format!(
            "the driver's state of the task has {bytes} bytes, at most {} are kept",
            limits::DRIVER_STATE_BYTES_MAX
        ),
    })
}

fn path_of(socket: &Mutex<PathBuf>) -> PathBuf {
    let path = socket.lock().unwrap_or_else(PoisonError::into_inner);
    path.clone()
}

/// Converts a message; `None` ends the stream, because the driver failed or violated the protocol.
fn usage(message: Result<drivers::TaskStatsResponse, Status>) -> Option<TaskStats> {
    convert::stats_from_proto(message.ok()?.stats?).ok()
}

fn exec_input_to_proto(input: ExecInput) -> drivers::ExecTaskStreamingRequest {
    let mut message = drivers::ExecTaskStreamingRequest::default();
    match input {
        ExecInput::Stdin(data) => {
            message.stdin = Some(drivers::ExecTaskStreamingIoOperation { data, close: false });
        }
        ExecInput::StdinClosed => {
            message.stdin = Some(drivers::ExecTaskStreamingIoOperation {
                data: Vec::new(),
                close: true,
            });
        }
        ExecInput::Resize(size) => {
            message.tty_size = Some(drivers::exec_task_streaming_request::TerminalSize {
                height: size.height,
                width: size.width,
            });
        }
    }
    message
}

fn exec_output_from_proto(
    message: drivers::ExecTaskStreamingResponse,
) -> Result<ExecOutput, TaskError> {
    if message.exited {
        return Ok(ExecOutput::Exited(message.result.map_or_else(
            || ExitResult::unknown("the driver sent no result".to_owned()),
            convert::exit_from_proto,
        )));
    }
    match (message.stdout, message.stderr) {
        (Some(stdout), _) => Ok(ExecOutput::Stdout(stdout.data)),
        (None, Some(stderr)) => Ok(ExecOutput::Stderr(stderr.data)),
        (None, None) => Err(protocol("an exec message holds nothing").into()),
    }
}

impl TaskDriver for Client {
    fn plugin_info(&self) -> BoxFuture<'_, Result<PluginInfo, DriverError>> {
        async {
            let mut base = self.base();
            let answer = self
                .driver_call(
                    "PluginInfo",
                    limits::CALL_DEADLINE,
                    base.plugin_info(base::PluginInfoRequest {}),
                )
                .await?;
            if answer.r#type() != base::PluginType::Driver {
                return Err(protocol(format!(
                    "plugin {} is not a driver: it is of kind {}",
                    answer.name, answer.r#type
                )));
            }
            Ok(PluginInfo {
                name: answer.name,
                version: answer.plugin_version,
                api_versions: answer.plugin_api_versions,
            })
        }
        .boxed()
    }

    fn config_schema(&self) -> BoxFuture<'_, Result<Option<Spec>, DriverError>> {
        async {
            let mut base = self.base();
            let answer = self
                .driver_call(
                    "ConfigSchema",
                    limits::CALL_DEADLINE,
                    base.config_schema(base::ConfigSchemaRequest {}),
                )
                .await?;
            answer.spec.map_or(Ok(None), convert::spec_from_proto)
        }
        .boxed()
    }

    fn set_config(&self, config: Value) -> BoxFuture<'_, Result<(), DriverError>> {
        async move {
            let request = base::SetConfigRequest {
                msgpack_config: convert::config_to_msgpack(&config)?,
                nomad_config: self.host.as_deref().map(convert::host_to_proto),
                plugin_api_version: API_VERSION.to_owned(),
            };
            let mut base = self.base();
            self.driver_call("SetConfig", limits::CALL_DEADLINE, base.set_config(request))
                .await?;
            Ok(())
        }
        .boxed()
    }

    fn task_config_schema(&self) -> BoxFuture<'_, Result<Spec, DriverError>> {
        async {
            let mut driver = self.driver();
            let answer = self
                .driver_call(
                    "TaskConfigSchema",
                    limits::CALL_DEADLINE,
                    driver.task_config_schema(drivers::TaskConfigSchemaRequest {}),
                )
                .await?;
            let spec = answer.spec.map_or(Ok(None), convert::spec_from_proto)?;
            spec.ok_or_else(|| protocol("the driver has no schema for its tasks"))
        }
        .boxed()
    }

    fn capabilities(&self) -> BoxFuture<'_, Result<Capabilities, DriverError>> {
        async {
            let mut driver = self.driver();
            let answer = self
                .driver_call(
                    "Capabilities",
                    limits::CALL_DEADLINE,
                    driver.capabilities(drivers::CapabilitiesRequest {}),
                )
                .await?;
            convert::capabilities_from_proto(answer.capabilities.unwrap_or_default())
        }
        .boxed()
    }

    fn fingerprint(&self) -> BoxFuture<'_, Result<FingerprintStream, DriverError>> {
        async {
            let mut driver = self.driver();
            let call = async move { driver.fingerprint(drivers::FingerprintRequest {}).await };
            let stream = open_stream(call.boxed())
                .await
                .map_err(|status| self.add_driver_name(to_driver_error("Fingerprint", &status)))?;
            Ok(stream
                .scan((), |(), message| future::ready(message.ok()))
                .map(convert::fingerprint_from_proto)
                .boxed())
        }
        .boxed()
    }

    fn start_task(&self, config: TaskConfig) -> BoxFuture<'_, Result<StartedTask, StartTaskError>> {
        self.start(config).boxed()
    }

    fn recover_task(&self, handle: TaskHandle) -> BoxFuture<'_, Result<(), RecoverTaskError>> {
        self.recover(handle).boxed()
    }

    fn wait_task<'a>(&'a self, task_id: &'a str) -> BoxFuture<'a, Result<ExitResult, TaskError>> {
        self.wait(task_id).boxed()
    }

    fn stop_task<'a>(
        &'a self,
        task_id: &'a str,
        timeout: Duration,
        signal: &'a str,
    ) -> BoxFuture<'a, Result<(), TaskError>> {
        async move {
            let request = drivers::StopTaskRequest {
                task_id: task_id.to_owned(),
                timeout: Some(convert::duration_to_proto(timeout)),
                signal: signal.to_owned(),
            };
            let mut driver = self.driver();
            let deadline = timeout.saturating_add(limits::DEADLINE_MARGIN);
            let answer = self
                .call_with_deadline("StopTask", deadline, driver.stop_task(request))
                .await?;
            answer.map_err(|status| {
                self.add_driver_name_to_task_error(to_task_error(
                    "StopTask", task_id, signal, &status,
                ))
            })?;
            Ok(())
        }
        .boxed()
    }

    fn destroy_task<'a>(
        &'a self,
        task_id: &'a str,
        force: bool,
    ) -> BoxFuture<'a, Result<(), TaskError>> {
        async move {
            let request = drivers::DestroyTaskRequest {
                task_id: task_id.to_owned(),
                force,
            };
            let mut driver = self.driver();
            self.task_call(
                "DestroyTask",
                task_id,
                limits::CALL_DEADLINE,
                driver.destroy_task(request),
            )
            .await?;
            Ok(())
        }
        .boxed()
    }

    fn inspect_task<'a>(
        &'a self,
        task_id: &'a str,
    ) -> BoxFuture<'a, Result<TaskStatus, TaskError>> {
        async move {
            let request = drivers::InspectTaskRequest {
                task_id: task_id.to_owned(),
            };
            let mut driver = self.driver();
            let answer = self
                .task_call(
                    "InspectTask",
                    task_id,
                    limits::CALL_DEADLINE,
                    driver.inspect_task(request),
                )
                .await?;
            Ok(convert::status_from_proto(answer)?)
        }
        .boxed()
    }

    fn task_stats<'a>(
        &'a self,
        task_id: &'a str,
        interval: Duration,
    ) -> BoxFuture<'a, Result<TaskStatsStream, TaskError>> {
        async move {
            let request = drivers::TaskStatsRequest {
                task_id: task_id.to_owned(),
                collection_interval: Some(convert::duration_to_proto(interval)),
            };
            let mut driver = self.driver();
            let call = async move { driver.task_stats(request).await };
            let stream = open_stream(call.boxed()).await.map_err(|status| {
                self.add_driver_name_to_task_error(to_task_error("TaskStats", task_id, "", &status))
            })?;
            Ok(stream
                .scan((), |(), message| future::ready(usage(message)))
                .boxed())
        }
        .boxed()
    }

    fn task_events(&self) -> BoxFuture<'_, Result<TaskEventStream, DriverError>> {
        async {
            let mut driver = self.driver();
            let call = async move { driver.task_events(drivers::TaskEventsRequest {}).await };
            let stream = open_stream(call.boxed())
                .await
                .map_err(|status| self.add_driver_name(to_driver_error("TaskEvents", &status)))?;
            Ok(stream
                .scan((), |(), message| future::ready(message.ok()))
                .map(convert::event_from_proto)
                .boxed())
        }
        .boxed()
    }

    fn list_tasks(&self) -> BoxFuture<'_, Result<Vec<TaskHandle>, DriverError>> {
        async {
            let mut client = self.muster();
            let mut stream = self
                .driver_call(
                    "ListTasks",
                    limits::CALL_DEADLINE,
                    client.list_tasks(muster::ListTasksRequest {}),
                )
                .await?;
            let mut handles = Vec::new();
            while let Some(message) = stream.next().await {
                let message = message.map_err(|status| {
                    self.add_driver_name(to_driver_error("ListTasks", &status))
                })?;
                let handle = message
                    .handle
                    .ok_or_else(|| protocol("a listed task has no handle"))?;
                handles.push(convert::handle_from_proto(handle)?);
            }
            Ok(handles)
        }
        .boxed()
    }

    fn task_reach(&self, config: TaskConfig) -> BoxFuture<'_, Result<TaskReach, DriverError>> {
        async move {
            let request = muster::TaskReachRequest {
                task: Some(convert::task_config_to_proto(&config)?),
            };
            let mut client = self.muster();
            let call = client.task_reach(request);
            let answer = self
                .driver_call("TaskReach", limits::CALL_DEADLINE, call)
                .await?;
            Ok(convert::reach_from_proto(answer))
        }
        .boxed()
    }

    fn signal_task<'a>(
        &'a self,
        task_id: &'a str,
        signal: &'a str,
    ) -> BoxFuture<'a, Result<(), TaskError>> {
        async move {
            let request = drivers::SignalTaskRequest {
                task_id: task_id.to_owned(),
                signal: signal.to_owned(),
            };
            let mut driver = self.driver();
            let answer = self
                .call_with_deadline(
                    "SignalTask",
                    limits::CALL_DEADLINE,
                    driver.signal_task(request),
                )
                .await?;
            answer.map_err(|status| {
                self.add_driver_name_to_task_error(to_task_error(
                    "SignalTask",
                    task_id,
                    signal,
                    &status,
                ))
            })?;
            Ok(())
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
        self.exec_streaming(task_id, request, input).boxed()
    }

    fn create_network<'a>(
        &'a self,
        alloc_id: &'a str,
        hostname: &'a str,
    ) -> BoxFuture<'a, Result<CreatedNetwork, DriverError>> {
        async move {
            let request = drivers::CreateNetworkRequest {
                alloc_id: alloc_id.to_owned(),
                hostname: hostname.to_owned(),
            };
            let mut driver = self.driver();
            let answer = self
                .driver_call(
                    "CreateNetwork",
                    limits::START_DEADLINE,
                    driver.create_network(request),
                )
                .await?;
            let isolation = answer
                .isolation_spec
                .ok_or_else(|| protocol("a network was made without a specification"))?;
            Ok(CreatedNetwork {
                isolation: convert::network_from_proto(isolation)?,
                created: answer.created,
            })
        }
        .boxed()
    }

    fn destroy_network<'a>(
        &'a self,
        alloc_id: &'a str,
        isolation: NetworkIsolation,
    ) -> BoxFuture<'a, Result<(), DriverError>> {
        async move {
            let request = drivers::DestroyNetworkRequest {
                alloc_id: alloc_id.to_owned(),
                isolation_spec: Some(convert::network_to_proto(&isolation)),
            };
            let mut driver = self.driver();
            self.driver_call(
                "DestroyNetwork",
                limits::CALL_DEADLINE,
                driver.destroy_network(request),
            )
            .await?;
            Ok(())
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oversized_driver_state_is_refused() {
        assert!(check_state(limits::DRIVER_STATE_BYTES_MAX).is_ok());

        let error = check_state(60 << 20).unwrap_err();

        assert!(error.to_string().contains("62914560 bytes"), "{error}");
    }
}
