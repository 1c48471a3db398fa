//! Waiting for the ends of many tasks through one call.
//!
//! A `WaitTask` that stays open for as long as its task runs costs both processes about ten kilobytes. A driver of
//! ours says in one stream of which tasks `WaitTask` has an answer; the host then asks for it. With any other driver,
//! and when the stream breaks, each wait is a `WaitTask` of its own.

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
use crate::plugin::proto::muster::muster_driver_client::MusterDriverClient;
use crate::plugin::proto::muster::{EndsRequest, EndsResponse};
use crate::task_driver::TaskDriver;

/// The host's side: who waits for which task.
#[derive(Debug, Default)]
pub(super) struct Ends {
    shared: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    stream: Option<Open>,
    /// The driver has no such call.
    is_unknown: bool,
    waiting: HashMap<String, Vec<oneshot::Sender<()>>>,
}

/// A stream that is open, or being opened.
#[derive(Debug)]
struct Open {
    asked: mpsc::Sender<EndsRequest>,
    reader: AbortHandle,
}

impl Drop for Ends {
    fn drop(&mut self) {
        if let Some(open) = lock(&self.shared).stream.take() {
            open.reader.abort();
        }
    }
}

impl Ends {
    /// Returns when `WaitTask` should be asked: it has an answer, or there is nobody else to ask.
    pub(super) async fn wait(&self, channel: &Channel, task_id: &str) {
        let Some((asked, told)) = self.register(channel, task_id) else {
            return;
        };
        let request = EndsRequest {
            task_id: task_id.to_owned(),
        };
        // Either fails when the stream is over, and then the answer is the call's to give.
        if asked.send(request).await.is_ok() {
            drop(asked);
            let _over = told.await;
        }
    }

    /// The driver may be another one from now on.
    pub(super) fn forget(&self) {
        lock(&self.shared).is_unknown = false;
    }

    fn register(
        &self,
        channel: &Channel,
        task_id: &str,
    ) -> Option<(mpsc::Sender<EndsRequest>, oneshot::Receiver<()>)> {
        let mut state = lock(&self.shared);
        if state.is_unknown {
            return None;
        }
        let (tell, told) = oneshot::channel();
        let waiting = state.waiting.entry(task_id.to_owned()).or_default();
        // Those whose callers went away.
        waiting.retain(|waiter| !waiter.is_closed());
        waiting.push(tell);
        let open = state.stream.get_or_insert_with(|| {
            let (asked, requests) = mpsc::channel(limits::ENDS_ASKED_MAX);
            let (channel, shared) = (channel.clone(), Arc::clone(&self.shared));
            let reader = tokio::spawn(read(channel, requests, shared)).abort_handle();
            Open { asked, reader }
        });
        Some((open.asked.clone(), told))
    }
}

fn lock(shared: &Mutex<State>) -> MutexGuard<'_, State> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Opens the stream and tells waiters until it is over; then all of them.
async fn read(channel: Channel, requests: mpsc::Receiver<EndsRequest>, shared: Arc<Mutex<State>>) {
    let mut client = MusterDriverClient::new(channel);
    let over = match client.ends(ReceiverStream::new(requests)).await {
        Ok(answer) => {
            let mut ends = answer.into_inner();
            loop {
                match ends.message().await {
                    Ok(Some(EndsResponse { task_id })) => {
                        let waiting = lock(&shared).waiting.remove(&task_id);
                        for waiter in waiting.into_iter().flatten() {
                            // Whoever has gone away meanwhile need not be told.
                            let _gone = waiter.send(());
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
    state.is_unknown |= over.code() == Code::Unimplemented;
    state.stream = None;
    state.waiting.clear();
}

/// The driver's side: says of each task that was asked for when waiting for it has an answer.
pub(super) fn serve(
    driver: Arc<dyn TaskDriver>,
    requests: impl Stream<Item = Result<EndsRequest, Status>> + Send + 'static,
) -> BoxStream<'static, Result<EndsResponse, Status>> {
    let serving = Serving {
        driver,
        requests: Some(requests.boxed()),
        waits: FuturesUnordered::new(),
    };
    futures::stream::unfold(serving, Serving::next).boxed()
}

struct Serving {
    driver: Arc<dyn TaskDriver>,
    /// `None` when the host asks no more.
    requests: Option<BoxStream<'static, Result<EndsRequest, Status>>>,
    waits: FuturesUnordered<BoxFuture<'static, String>>,
}

impl Serving {
    async fn next(mut self) -> Option<(Result<EndsResponse, Status>, Self)> {
        loop {
            let Some(requests) = &mut self.requests else {
                let task_id = self.waits.next().await?;
                return Some((Ok(EndsResponse { task_id }), self));
            };
            tokio::select! {
                request = requests.next() => match request {
                    Some(Ok(EndsRequest { task_id })) => {
                        let driver = Arc::clone(&self.driver);
                        self.waits.push(Box::pin(async move {
                            // Whatever it is, the host asks for it.
                            drop(driver.wait_task(&task_id).await);
                            task_id
                        }));
                    }
                    Some(Err(_)) | None => self.requests = None,
                },
                Some(task_id) = self.waits.next() => {
                    return Some((Ok(EndsResponse { task_id }), self));
                }
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
    async fn each_end_is_said_once_and_an_unknown_task_has_one() {
        let driver: Arc<dyn TaskDriver> = Arc::new(MockDriver::on(MockHost::new()));
        let config = TaskConfig {
            id: "runs".to_owned(),
            config: MockTask::forever().to_config(),
            ..TaskConfig::default()
        };
        driver.start_task(config).await.unwrap();
        let asked = [Ok(request("runs")), Ok(request("unknown"))];
        let mut ends = serve(Arc::clone(&driver), futures::stream::iter(asked));

        assert_eq!(next(&mut ends).await.as_deref(), Some("unknown"));
        let stopped = driver.stop_task("runs", Duration::ZERO, "SIGKILL").await;
        stopped.unwrap();
        assert_eq!(next(&mut ends).await.as_deref(), Some("runs"));
        assert_eq!(next(&mut ends).await, None);
    }
}
