//! The memory budget of answers under way.
//!
//! An answer is built whole and then sent as fast as its client reads. Each takes its size from a budget until it
//! is sent. When the budget is used up, clients that read too slowly are disconnected. If that frees too little,
//! the new answer is refused.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::extract::{Request, State as Shared};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use muster_domain::{number, saturating};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::connections::Activity;
use super::listen::Connection;
use super::status::ApiError;
use crate::limits;

/// Bytes in a permit of the budget.
const UNIT: usize = 1 << 10;

/// The budget of one listener.
#[derive(Clone, Debug)]
pub(crate) struct AnswerBudget {
    units: Arc<Semaphore>,
    units_max: usize,
}

impl AnswerBudget {
    pub(crate) fn new(bytes: usize) -> Self {
        let units_max = bytes / UNIT;
        Self {
            units: Arc::new(Semaphore::new(units_max)),
            units_max,
        }
    }

    /// Takes `bytes` from the budget; an answer above the whole budget takes all of it.
    async fn take(
        &self,
        connection: &Connection,
        bytes: usize,
    ) -> Result<OwnedSemaphorePermit, ApiError> {
        let units = bytes.div_ceil(UNIT).min(self.units_max);
        let units = saturating::to_u32(units);
        let rounds = limits::ANSWER_BUDGET_WAIT
            .as_millis()
            .div_ceil(limits::SLOW_READER_AGE.as_millis());
        for _ in 0..=rounds {
            if let Ok(permit) = Arc::clone(&self.units).try_acquire_many_owned(units) {
                return Ok(permit);
            }
            connection.close_slow_readers(limits::SLOW_READER_AGE, bytes);
            let permit = Arc::clone(&self.units).acquire_many_owned(units);
            if let Ok(Ok(permit)) = timeout(limits::SLOW_READER_AGE, permit).await {
                return Ok(permit);
            }
        }
        Err(ApiError::AnswersUnderWay {
            waited: limits::ANSWER_BUDGET_WAIT,
        })
    }
}

/// The permit to build one long answer. The extensions of the answer keep it until the answer is in the budget.
#[derive(Clone, Debug)]
pub(super) struct MakePermit {
    _permit: Arc<OwnedSemaphorePermit>,
}

/// Waits for a permit to build a long answer. So only a few long answers are outside of the budget.
pub(super) async fn permit_to_make(makers: &Arc<Semaphore>) -> Result<MakePermit, ApiError> {
    let waited = limits::ANSWER_BUDGET_WAIT;
    match timeout(waited, Arc::clone(makers).acquire_owned()).await {
        Ok(Ok(permit)) => Ok(MakePermit {
            _permit: Arc::new(permit),
        }),
        Ok(Err(_)) | Err(_) => Err(ApiError::AnswersUnderWay { waited }),
    }
}

/// Records the activity of the connection, and takes the answer's size from the budget until it is sent.
pub(super) async fn account(
    Shared(budget): Shared<AnswerBudget>,
    request: Request,
    next: Next,
) -> Response {
    let Some(connection) = request.extensions().get::<Connection>().cloned() else {
        return next.run(request).await;
    };
    let mut response = next.run(request).await;
    let bytes = response.body().size_hint().exact().unwrap_or(0);
    let bytes = number::index(bytes);
    let mut permit = None;
    if bytes > limits::ANSWER_CHUNK_BYTES {
        match budget.take(&connection, bytes).await {
            Ok(taken) => permit = Some(taken),
            Err(error) => response = error.into_response(),
        }
    }
    response.extensions_mut().remove::<MakePermit>();
    connection.set_sending(if permit.is_some() { bytes } else { 0 });
    response.map(|inner| {
        Body::new(AccountedBody {
            inner,
            rest: Bytes::new(),
            _permit: permit,
            connection,
        })
    })
}

/// A body that marks its connection as idle when it has been sent.
struct AccountedBody {
    inner: Body,
    /// Bytes of a large frame that have not been sent.
    rest: Bytes,
    _permit: Option<OwnedSemaphorePermit>,
    connection: Connection,
}

impl AccountedBody {
    /// Returns the next chunk of `rest`. It is a copy, so that a chunk in transfer does not keep the whole answer
    /// in memory.
    fn next_chunk(&mut self) -> Option<Bytes> {
        if self.rest.is_empty() {
            return None;
        }
        let length = self.rest.len().min(limits::ANSWER_CHUNK_BYTES);
        let chunk = Bytes::copy_from_slice(&self.rest.split_to(length));
        if self.rest.is_empty() {
            self.rest = Bytes::new();
        }
        Some(chunk)
    }
}

impl HttpBody for AccountedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if let Some(chunk) = self.next_chunk() {
            return Poll::Ready(Some(Ok(Frame::data(chunk))));
        }
        match std::task::ready!(Pin::new(&mut self.inner).poll_frame(context)) {
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) if data.len() > limits::ANSWER_CHUNK_BYTES => {
                    self.rest = data;
                    let chunk = self.next_chunk().unwrap_or_default();
                    Poll::Ready(Some(Ok(Frame::data(chunk))))
                }
                Ok(data) => Poll::Ready(Some(Ok(Frame::data(data)))),
                Err(frame) => Poll::Ready(Some(Ok(frame))),
            },
            other => Poll::Ready(other),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self.rest.len() as u64;
        let inner = self.inner.size_hint();
        let mut hint = SizeHint::new();
        hint.set_lower(inner.lower() + rest);
        if let Some(upper) = inner.upper() {
            hint.set_upper(upper + rest);
        }
        hint
    }
}

impl Drop for AccountedBody {
    fn drop(&mut self) {
        self.connection.set(Activity::Idle);
    }
}
