//! Waiting for the ends of many tasks through one call.
//!
//! A `WaitTask` that stays open while its task runs costs each process about ten kilobytes. Our drivers send the
//! results of `WaitTask` for many tasks in one stream. If `WaitTask` would return an error, the stream only reports
//! that, and the host calls `WaitTask`. With a foreign driver, and when the stream breaks, each wait is a separate
//! `WaitTask`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::future::BoxFuture;
use futures::stream::{BoxStream, FuturesUnordered, Stream, StreamExt};
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Code, Status};
use tracing::debug;

use crate::limits;
use crate::plugin::convert;
use crate::plugin::proto::drivers::WaitTaskResponse;
use crate::plugin::proto::muster::muster_driver_client::MusterDriverClient;
use crate::plugin::proto::muster::{EndsRequest, EndsResponse};
use crate::task_driver::TaskDriver;

/// The host's side: the callers that wait for tasks.
#[derive(Debug, Default)]
pub(super) struct TaskEndWaiters {
    shared: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    stream: Option<EndsSubscription>,
    /// The driver does not implement the call.
    is_unsupported: bool,
    waiting: HashMap<String, Vec<Waiter>>,
}

/// A caller that waits for a task. It receives the result of `WaitTask`, or `None` if it must call `WaitTask` itself.
type Waiter = oneshot::Sender<Option<WaitTaskResponse>>;

/// A stream that is open or is being opened.
#[derive(Debug)]
struct EndsSubscription {
    request_sender: mpsc::Sender<EndsRequest>,
    reader: AbortHandle,
}

impl Drop for TaskEndWaiters {
    fn drop(&mut self) {
        if let Some(open) = lock(&self.shared).stream.take() {
            open.reader.abort();
        }
    }
}

impl TaskEndWaiters {
    /// Returns the result of `WaitTask`. `None` means that the caller must call `WaitTask` itself: the stream has no
    /// result for this task, or there is no stream.
    pub(super) async fn wait(&self, channel: &Channel, task_id: &str) -> Option<WaitTaskResponse> {
        let (request_sender, answer) = self.register(channel, task_id)?;
        let request = EndsRequest {
            task_id: task_id.to_owned(),
        };
        // Both steps fail when the stream has ended. Then `WaitTask` returns the result.
        request_sender.send(request).await.ok()?;
        drop(request_sender);
        answer.await.ok()?
    }

    /// Forgets that the driver lacks the call, because another driver may answer from now on.
    pub(super) fn clear_unsupported(&self) {
        lock(&self.shared).is_unsupported = false;
    }

    fn register(
        &self,
        channel: &Channel,
        task_id: &str,
    ) -> Option<(
        mpsc::Sender<EndsRequest>,
        oneshot::Receiver<Option<WaitTaskResponse>>,
    )> {
        let mut state = lock(&self.shared);
        if state.is_unsupported {
            return None;
        }
        let (sender, answer) = oneshot::channel();
        let waiting = state.waiting.entry(task_id.to_owned()).or_default();
        // Callers that went away are removed.
        waiting.retain(|waiter| !waiter.is_closed());
        waiting.push(sender);
        let open = state.stream.get_or_insert_with(|| {
            let (request_sender, requests) = mpsc::channel(limits::ENDS_REQUESTS_MAX);
            let (channel, shared) = (channel.clone(), Arc::clone(&self.shared));
            let reader = tokio::spawn(read(channel, requests, shared)).abort_handle();
            EndsSubscription {
                request_sender,
                reader,
            }
        });
        Some((open.request_sender.clone(), answer))
    }
}

fn lock(shared: &Mutex<State>) -> MutexGuard<'_, State> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Opens the stream and passes results to the waiting callers until it ends. Then all callers fall back to `WaitTask`.
async fn read(channel: Channel, requests: mpsc::Receiver<EndsRequest>, shared: Arc<Mutex<State>>) {
    let mut client =
        MusterDriverClient::new(channel).max_decoding_message_size(limits::MESSAGE_BYTES_MAX);
    let over = match client.ends(ReceiverStream::new(requests)).await {
        Ok(answer) => {
            let mut ends = answer.into_inner();
            loop {
                match ends.message().await {
                    Ok(Some(EndsResponse { task_id, answer })) => {
                        let waiting = lock(&shared).waiting.remove(&task_id);
                        for waiter in waiting.into_iter().flatten() {
                            // A caller that went away needs no result.
                            let _gone = waiter.send(answer.clone());
                        }
                    }
                    Ok(None) => break Status::unavailable("the driver ended the stream"),
                    Err(status) => break status,
                }
            }
        }
        Err(status) => status,
    };
    debug!(%over, "ends of tasks are waited for one by one");
    let mut state = lock(&shared);
    state.is_unsupported |= over.code() == Code::Unimplemented;
    state.stream = None;
    state.waiting.clear();
}

/// The driver's side: reports for each requested task when `WaitTask` has a result.
pub(super) fn serve(
    driver: Arc<dyn TaskDriver>,
    requests: impl Stream<Item = Result<EndsRequest, Status>> + Send + 'static,
) -> BoxStream<'static, Result<EndsResponse, Status>> {
    let serving = EndsServer {
        driver,
        requests: Some(requests.boxed()),
        waits: FuturesUnordered::new(),
    };
    futures::stream::unfold(serving, EndsServer::next).boxed()
}

struct EndsServer {
    driver: Arc<dyn TaskDriver>,
    /// `None` when the host sends no more requests.
    requests: Option<BoxStream<'static, Result<EndsRequest, Status>>>,
    waits: FuturesUnordered<BoxFuture<'static, EndsResponse>>,
}

impl EndsServer {
    async fn next(mut self) -> Option<(Result<EndsResponse, Status>, Self)> {
        loop {
            let Some(requests) = &mut self.requests else {
                let end = self.waits.next().await?;
                return Some((Ok(end), self));
            };
            tokio::select! {
                request = requests.next() => match request {
                    Some(Ok(EndsRequest { task_id })) => {
                        let driver = Arc::clone(&self.driver);
                        self.waits.push(Box::pin(async move {
                            // For an error, the host calls `WaitTask`.
                            let answer = driver.wait_task(&task_id).await.ok();
                            let answer = answer.as_ref().map(convert::wait_to_proto);
                            EndsResponse { task_id, answer }
                        }));
                    }
                    Some(Err(_)) | None => self.requests = None,
                },
                Some(end) = self.waits.next() => return Some((Ok(end), self)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::TaskConfig;
    use crate::mock::{MockDriver, MockHost, MockTask};

    fn request(task_id: &str) -> EndsRequest {
        let task_id = task_id.to_owned();
        EndsRequest { task_id }
    }

    async fn next(ends: &mut BoxStream<'static, Result<EndsResponse, Status>>) -> Option<String> {
        ends.next().await.map(|end| end.unwrap().task_id)
    }

    #[tokio::test]
    async fn each_exit_is_reported_once_including_unknown_task() {
        let driver: Arc<dyn TaskDriver> = Arc::new(MockDriver::on(MockHost::new()));
        let config = TaskConfig {
            id: "runs".to_owned(),
            config: MockTask::forever().to_config(),
            ..TaskConfig::default()
        };
        driver.start_task(config).await.unwrap();
        let requests = [Ok(request("runs")), Ok(request("unknown"))];
        let mut ends = serve(Arc::clone(&driver), futures::stream::iter(requests));

        assert_eq!(next(&mut ends).await.as_deref(), Some("unknown"));
        let stopped = driver.stop_task("runs", Duration::ZERO, "SIGKILL").await;
        stopped.unwrap();
        assert_eq!(next(&mut ends).await.as_deref(), Some("runs"));
        assert_eq!(next(&mut ends).await, None);
    }
}
