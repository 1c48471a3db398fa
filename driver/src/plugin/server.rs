//! Offers a driver to other processes.
//!
//! Calls that change a task run to completion even when the caller hangs up. An agent that is killed during
//! `StartTask` must not leave a partial task.

use std::fmt::Debug;
use std::sync::Arc;

use futures::future;
use futures::stream::{BoxStream, StreamExt};
use thiserror::Error;
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use tonic::{Request, Response, Status, Streaming, async_trait};

use crate::error::{DriverError, StartTaskError, TaskError};
use crate::exec::{ExecInput, ExecOutput, ExecRequest, TerminalSize};
use crate::limits;
use crate::plugin::convert::{self, protocol};
use crate::plugin::ends;
use crate::plugin::presence::HostConnections;
use crate::plugin::proto::base::base_plugin_server::{BasePlugin, BasePluginServer};
use crate::plugin::proto::controller::grpc_broker_server::{GrpcBroker, GrpcBrokerServer};
use crate::plugin::proto::controller::grpc_controller_server::{
    GrpcController, GrpcControllerServer,
};
use crate::plugin::proto::controller::grpc_stdio_server::{GrpcStdio, GrpcStdioServer};
use crate::plugin::proto::drivers::driver_server::{Driver, DriverServer};
use crate::plugin::proto::health::health_server::{Health, HealthServer};
use crate::plugin::proto::muster::muster_driver_server::{MusterDriver, MusterDriverServer};
use crate::plugin::proto::{base, controller, drivers, health, muster};
use crate::plugin::status::{from_driver_error, from_recover_error, from_task_error};
use crate::schema::without_nulls;
use crate::task_driver::TaskDriver;

/// The reason why a driver is no longer served.
#[derive(Debug, Error)]
pub enum ServeError {
    #[error("serve the driver protocol")]
    Transport(#[from] tonic::transport::Error),
}

/// Serves `driver` on `listener` until `shutdown` is cancelled or a host calls `Shutdown`, which cancels `shutdown`.
/// The driver's tasks continue to run.
///
/// # Errors
///
/// [`ServeError::Transport`] when the listener fails.
pub async fn serve(
    driver: Arc<dyn TaskDriver>,
    listener: UnixListener,
    shutdown: CancellationToken,
) -> Result<(), ServeError> {
    let connections = HostConnections::new(Arc::clone(&driver));
    let connections = UnixListenerStream::new(listener).map(move |connection| {
        let connection = connection?;
        Ok::<_, std::io::Error>(connections.add_connection(connection))
    });
    let served = DriverService { driver, shutdown };
    let ended = served.shutdown.clone();
    let serving = Server::builder()
        .max_concurrent_streams(Some(limits::STREAMS_MAX))
        .add_service(
            DriverServer::new(served.clone())
                .max_decoding_message_size(limits::MESSAGE_BYTES_MAX)
                .max_encoding_message_size(limits::MESSAGE_BYTES_MAX),
        )
        .add_service(
            BasePluginServer::new(served.clone())
                .max_decoding_message_size(limits::MESSAGE_BYTES_MAX)
                .max_encoding_message_size(limits::MESSAGE_BYTES_MAX),
        )
        .add_service(HealthServer::new(served.clone()))
        .add_service(GrpcControllerServer::new(served.clone()))
        .add_service(GrpcBrokerServer::new(served.clone()))
        .add_service(GrpcStdioServer::new(served.clone()))
        .add_service(
            MusterDriverServer::new(served).max_encoding_message_size(limits::MESSAGE_BYTES_MAX),
        )
        .serve_with_incoming_shutdown(connections, ended.clone().cancelled_owned());
    let drained = async {
        ended.cancelled().await;
        tokio::time::sleep(limits::DRAIN_DEADLINE).await;
    };
    tokio::select! {
        result = serving => result.map_err(ServeError::from),
        () = drained => Ok(()),
    }
}

/// The gRPC services of one driver.
#[derive(Clone, Debug)]
struct DriverService {
    driver: Arc<dyn TaskDriver>,
    shutdown: CancellationToken,
}

/// Runs `work` to completion even if the caller goes away.
async fn detached<T: Send + 'static>(
    work: impl Future<Output = T> + Send + 'static,
) -> Result<T, Status> {
    tokio::spawn(work)
        .await
        .map_err(|error| Status::internal(format!("the driver failed: {error}")))
}

fn driver_status(error: DriverError) -> Status {
    from_driver_error(&error)
}

fn task_status(error: TaskError) -> Status {
    from_task_error(&error)
}

type Output<T> = Result<Response<BoxStream<'static, Result<T, Status>>>, Status>;

#[async_trait]
impl Driver for DriverService {
    type FingerprintStream = BoxStream<'static, Result<drivers::FingerprintResponse, Status>>;
    type TaskStatsStream = BoxStream<'static, Result<drivers::TaskStatsResponse, Status>>;
    type TaskEventsStream = BoxStream<'static, Result<drivers::DriverTaskEvent, Status>>;
    type ExecTaskStreamingStream =
        BoxStream<'static, Result<drivers::ExecTaskStreamingResponse, Status>>;

    async fn task_config_schema(
        &self,
        _request: Request<drivers::TaskConfigSchemaRequest>,
    ) -> Result<Response<drivers::TaskConfigSchemaResponse>, Status> {
        let spec = self
            .driver
            .task_config_schema()
            .await
            .map_err(driver_status)?;
        Ok(Response::new(drivers::TaskConfigSchemaResponse {
            spec: Some(convert::spec_to_proto(&spec)),
        }))
    }

    async fn capabilities(
        &self,
        _request: Request<drivers::CapabilitiesRequest>,
    ) -> Result<Response<drivers::CapabilitiesResponse>, Status> {
        let capabilities = self.driver.capabilities().await.map_err(driver_status)?;
        Ok(Response::new(drivers::CapabilitiesResponse {
            capabilities: Some(convert::capabilities_to_proto(&capabilities)),
        }))
    }

    async fn fingerprint(
        &self,
        _request: Request<drivers::FingerprintRequest>,
    ) -> Output<drivers::FingerprintResponse> {
        let stream = self.driver.fingerprint().await.map_err(driver_status)?;
        let stream = stream.map(|fingerprint| Ok(convert::fingerprint_to_proto(&fingerprint)));
        Ok(Response::new(stream.boxed()))
    }

    async fn recover_task(
        &self,
        request: Request<drivers::RecoverTaskRequest>,
    ) -> Result<Response<drivers::RecoverTaskResponse>, Status> {
        let handle = request
            .into_inner()
            .handle
            .ok_or_else(|| driver_status(protocol("RecoverTask without a handle")))?;
        let handle = convert::handle_from_proto(handle).map_err(driver_status)?;
        let driver = Arc::clone(&self.driver);
        detached(async move { driver.recover_task(handle).await })
            .await?
            .map_err(|error| from_recover_error(&error))?;
        Ok(Response::new(drivers::RecoverTaskResponse {}))
    }

    async fn start_task(
        &self,
        request: Request<drivers::StartTaskRequest>,
    ) -> Result<Response<drivers::StartTaskResponse>, Status> {
        let config = request
            .into_inner()
            .task
            .ok_or_else(|| driver_status(protocol("StartTask without a task")))?;
        let mut config = convert::task_config_from_proto(config).map_err(driver_status)?;
        // A host that follows the schema sends absent values as null.
        config.config = without_nulls(config.config);
        let driver = Arc::clone(&self.driver);
        let started = detached(async move { driver.start_task(config).await }).await?;
        let answer = match started {
            Ok(started) => drivers::StartTaskResponse {
                result: drivers::start_task_response::Result::Success.into(),
                handle: Some(convert::handle_to_proto(&started.handle).map_err(driver_status)?),
                network_override: started
                    .network
                    .as_ref()
                    .map(convert::network_override_to_proto),
                ..drivers::StartTaskResponse::default()
            },
            Err(error) => start_refusal(&error)?,
        };
        Ok(Response::new(answer))
    }

    async fn wait_task(
        &self,
        request: Request<drivers::WaitTaskRequest>,
    ) -> Result<Response<drivers::WaitTaskResponse>, Status> {
        let result = self
            .driver
            .wait_task(&request.get_ref().task_id)
            .await
            .map_err(task_status)?;
        Ok(Response::new(convert::wait_to_proto(&result)))
    }

    async fn stop_task(
        &self,
        request: Request<drivers::StopTaskRequest>,
    ) -> Result<Response<drivers::StopTaskResponse>, Status> {
        let request = request.into_inner();
        let timeout = convert::duration_from_proto(request.timeout);
        let driver = Arc::clone(&self.driver);
        detached(async move {
            driver
                .stop_task(&request.task_id, timeout, &request.signal)
                .await
        })
        .await?
        .map_err(task_status)?;
        Ok(Response::new(drivers::StopTaskResponse {}))
    }

    async fn destroy_task(
        &self,
        request: Request<drivers::DestroyTaskRequest>,
    ) -> Result<Response<drivers::DestroyTaskResponse>, Status> {
        let request = request.into_inner();
        let driver = Arc::clone(&self.driver);
        detached(async move { driver.destroy_task(&request.task_id, request.force).await })
            .await?
            .map_err(task_status)?;
        Ok(Response::new(drivers::DestroyTaskResponse {}))
    }

    async fn inspect_task(
        &self,
        request: Request<drivers::InspectTaskRequest>,
    ) -> Result<Response<drivers::InspectTaskResponse>, Status> {
        let status = self
            .driver
            .inspect_task(&request.get_ref().task_id)
            .await
            .map_err(task_status)?;
        Ok(Response::new(convert::status_to_proto(&status)))
    }

    async fn task_stats(
        &self,
        request: Request<drivers::TaskStatsRequest>,
    ) -> Output<drivers::TaskStatsResponse> {
        let request = request.into_inner();
        let interval = convert::duration_from_proto(request.collection_interval);
        let stream = self
            .driver
            .task_stats(&request.task_id, interval)
            .await
            .map_err(task_status)?;
        let stream = stream.map(|stats| {
            Ok(drivers::TaskStatsResponse {
                stats: Some(convert::stats_to_proto(&stats)),
            })
        });
        Ok(Response::new(stream.boxed()))
    }

    async fn task_events(
        &self,
        _request: Request<drivers::TaskEventsRequest>,
    ) -> Output<drivers::DriverTaskEvent> {
        let stream = self.driver.task_events().await.map_err(driver_status)?;
        let stream = stream.map(|event| Ok(convert::event_to_proto(&event)));
        Ok(Response::new(stream.boxed()))
    }

    async fn shutdown(
        &self,
        _request: Request<drivers::ShutdownRequest>,
    ) -> Result<Response<drivers::ShutdownResponse>, Status> {
        self.shutdown.cancel();
        Ok(Response::new(drivers::ShutdownResponse {}))
    }

    async fn signal_task(
        &self,
        request: Request<drivers::SignalTaskRequest>,
    ) -> Result<Response<drivers::SignalTaskResponse>, Status> {
        let request = request.get_ref();
        self.driver
            .signal_task(&request.task_id, &request.signal)
            .await
            .map_err(task_status)?;
        Ok(Response::new(drivers::SignalTaskResponse {}))
    }

    async fn exec_task(
        &self,
        request: Request<drivers::ExecTaskRequest>,
    ) -> Result<Response<drivers::ExecTaskResponse>, Status> {
        let request = request.into_inner();
        let timeout = convert::duration_from_proto(request.timeout);
        let result = self
            .driver
            .exec_task(&request.task_id, request.command, timeout)
            .await
            .map_err(task_status)?;
        Ok(Response::new(drivers::ExecTaskResponse {
            result: Some(convert::exit_to_proto(&result.result)),
            stdout: result.stdout,
            stderr: result.stderr,
        }))
    }

    async fn exec_task_streaming(
        &self,
        request: Request<Streaming<drivers::ExecTaskStreamingRequest>>,
    ) -> Output<drivers::ExecTaskStreamingResponse> {
        let mut messages = request.into_inner();
        let setup = messages
            .message()
            .await?
            .and_then(|message| message.setup)
            .ok_or_else(|| driver_status(protocol("exec does not begin with its setup")))?;
        let input = messages
            .scan((), |(), message| future::ready(message.ok()))
            .filter_map(|message| future::ready(exec_input(message)))
            .boxed();
        let exec = ExecRequest {
            command: setup.command,
            tty: setup.tty,
        };
        let output = self
            .driver
            .exec_task_streaming(&setup.task_id, exec, input)
            .await
            .map_err(task_status)?;
        let output = output.map(|item| item.map(exec_output).map_err(task_status));
        Ok(Response::new(output.boxed()))
    }

    async fn create_network(
        &self,
        request: Request<drivers::CreateNetworkRequest>,
    ) -> Result<Response<drivers::CreateNetworkResponse>, Status> {
        let request = request.into_inner();
        let driver = Arc::clone(&self.driver);
        let network = detached(async move {
            driver
                .create_network(&request.alloc_id, &request.hostname)
                .await
        })
        .await?
        .map_err(driver_status)?;
        Ok(Response::new(drivers::CreateNetworkResponse {
            isolation_spec: Some(convert::network_to_proto(&network.isolation)),
            created: network.created,
        }))
    }

    async fn destroy_network(
        &self,
        request: Request<drivers::DestroyNetworkRequest>,
    ) -> Result<Response<drivers::DestroyNetworkResponse>, Status> {
        let request = request.into_inner();
        let isolation = convert::network_from_proto(request.isolation_spec.unwrap_or_default())
            .map_err(driver_status)?;
        let driver = Arc::clone(&self.driver);
        detached(async move { driver.destroy_network(&request.alloc_id, isolation).await })
            .await?
            .map_err(driver_status)?;
        Ok(Response::new(drivers::DestroyNetworkResponse {}))
    }
}

/// The protocol reports a refused start in a message, not in a status.
fn start_refusal(error: &StartTaskError) -> Result<drivers::StartTaskResponse, Status> {
    use drivers::start_task_response::Result as Outcome;
    let outcome = match error {
        StartTaskError::AlreadyStarted { .. } | StartTaskError::Fatal { .. } => Outcome::Fatal,
        StartTaskError::Recoverable { .. } => Outcome::Retry,
        StartTaskError::Driver(error) => return Err(from_driver_error(error)),
    };
    Ok(drivers::StartTaskResponse {
        result: outcome.into(),
        driver_error_msg: error.to_string(),
        already_started: matches!(error, StartTaskError::AlreadyStarted { .. }),
        ..drivers::StartTaskResponse::default()
    })
}

/// A message without known fields is skipped.
fn exec_input(message: drivers::ExecTaskStreamingRequest) -> Option<ExecInput> {
    if let Some(size) = message.tty_size {
        return Some(ExecInput::Resize(TerminalSize {
            height: size.height,
            width: size.width,
        }));
    }
    let stdin = message.stdin?;
    Some(if stdin.close {
        ExecInput::StdinClosed
    } else {
        ExecInput::Stdin(stdin.data)
    })
}

fn exec_output(output: ExecOutput) -> drivers::ExecTaskStreamingResponse {
    let data = |data| Some(drivers::ExecTaskStreamingIoOperation { data, close: false });
    let mut message = drivers::ExecTaskStreamingResponse::default();
    match output {
        ExecOutput::Stdout(bytes) => message.stdout = data(bytes),
        ExecOutput::Stderr(bytes) => message.stderr = data(bytes),
        ExecOutput::Exited(result) => {
            message.exited = true;
            message.result = Some(convert::exit_to_proto(&result));
        }
    }
    message
}

#[async_trait]
impl BasePlugin for DriverService {
    async fn plugin_info(
        &self,
        _request: Request<base::PluginInfoRequest>,
    ) -> Result<Response<base::PluginInfoResponse>, Status> {
        let info = self.driver.plugin_info().await.map_err(driver_status)?;
        Ok(Response::new(base::PluginInfoResponse {
            r#type: base::PluginType::Driver.into(),
            plugin_api_versions: info.api_versions,
            plugin_version: info.version,
            name: info.name,
        }))
    }

    async fn config_schema(
        &self,
        _request: Request<base::ConfigSchemaRequest>,
    ) -> Result<Response<base::ConfigSchemaResponse>, Status> {
        let spec = self.driver.config_schema().await.map_err(driver_status)?;
        Ok(Response::new(base::ConfigSchemaResponse {
            spec: spec.as_ref().map(convert::spec_to_proto),
        }))
    }

    async fn set_config(
        &self,
        request: Request<base::SetConfigRequest>,
    ) -> Result<Response<base::SetConfigResponse>, Status> {
        let config = convert::config_from_msgpack(&request.get_ref().msgpack_config)
            .map_err(driver_status)?;
        self.driver
            .set_config(without_nulls(config))
            .await
            .map_err(driver_status)?;
        Ok(Response::new(base::SetConfigResponse {}))
    }
}

#[async_trait]
impl Health for DriverService {
    async fn check(
        &self,
        _request: Request<health::HealthCheckRequest>,
    ) -> Result<Response<health::HealthCheckResponse>, Status> {
        Ok(Response::new(health::HealthCheckResponse {
            status: health::health_check_response::ServingStatus::Serving.into(),
        }))
    }
}

#[async_trait]
impl GrpcController for DriverService {
    async fn shutdown(
        &self,
        _request: Request<controller::Empty>,
    ) -> Result<Response<controller::Empty>, Status> {
        self.shutdown.cancel();
        Ok(Response::new(controller::Empty {}))
    }
}

/// Our drivers neither offer nor accept further connections: the stream is open and sends nothing.
#[async_trait]
impl GrpcBroker for DriverService {
    type StartStreamStream = BoxStream<'static, Result<controller::ConnInfo, Status>>;

    async fn start_stream(
        &self,
        request: Request<Streaming<controller::ConnInfo>>,
    ) -> Output<controller::ConnInfo> {
        let silent = request
            .into_inner()
            .filter_map(|_offered| future::ready(None));
        Ok(Response::new(silent.boxed()))
    }
}

/// Our drivers print nothing to standard output: their log is on standard error.
#[async_trait]
impl GrpcStdio for DriverService {
    type StreamStdioStream = BoxStream<'static, Result<controller::StdioData, Status>>;

    async fn stream_stdio(&self, _request: Request<()>) -> Output<controller::StdioData> {
        let ended = self.shutdown.clone().cancelled_owned();
        let silent = futures::stream::once(ended).filter_map(|()| future::ready(None));
        Ok(Response::new(silent.boxed()))
    }
}

#[async_trait]
impl MusterDriver for DriverService {
    type ListTasksStream = BoxStream<'static, Result<muster::ListTasksResponse, Status>>;
    type EndsStream = BoxStream<'static, Result<muster::EndsResponse, Status>>;

    async fn list_tasks(
        &self,
        _request: Request<muster::ListTasksRequest>,
    ) -> Output<muster::ListTasksResponse> {
        let handles = self.driver.list_tasks().await.map_err(driver_status)?;
        let messages = handles.into_iter().map(|handle| {
            let handle = convert::handle_to_proto(&handle).map_err(driver_status)?;
            Ok(muster::ListTasksResponse {
                handle: Some(handle),
            })
        });
        Ok(Response::new(
            futures::stream::iter(messages.collect::<Vec<_>>()).boxed(),
        ))
    }

    async fn task_reach(
        &self,
        request: Request<muster::TaskReachRequest>,
    ) -> Result<Response<muster::TaskReachResponse>, Status> {
        let config = request
            .into_inner()
            .task
            .ok_or_else(|| driver_status(protocol("TaskReach without a task")))?;
        let mut config = convert::task_config_from_proto(config).map_err(driver_status)?;
        config.config = without_nulls(config.config);
        let reach = self.driver.task_reach(config).await;
        let reach = reach.map_err(driver_status)?;
        Ok(Response::new(convert::reach_to_proto(reach)))
    }

    async fn ends(
        &self,
        request: Request<Streaming<muster::EndsRequest>>,
    ) -> Output<muster::EndsResponse> {
        let driver = Arc::clone(&self.driver);
        Ok(Response::new(ends::serve(driver, request.into_inner())))
    }
}
