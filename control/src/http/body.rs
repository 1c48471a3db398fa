//! Request bodies, bounded in size and time.

use axum::body::Body;
use axum::extract::{FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{Extensions, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use muster_wire::limits::HTTP_BODY_BYTES_MAX;

use super::connections::Activity;
use super::listen::Connection;
use super::snapshot;
use super::status::ApiError;
use crate::limits;

/// A complete body.
#[derive(Clone, Debug)]
pub(super) struct RawBody(pub(super) Bytes);

/// Reads the body of every request before its route, for any outcome of the request. A connection with an unread
/// body cannot be reused, and a client notices that only at its next request.
///
/// Snapshots have no such bound, so their handler reads the body.
pub(super) async fn read_whole(request: Request, next: Next) -> Response {
    if request.uri().path() == snapshot::PATH {
        note_running(request.extensions());
        return next.run(request).await;
    }
    let (parts, body) = request.into_parts();
    match whole(&parts, body).await {
        Ok(bytes) => {
            let mut request = Request::from_parts(parts, Body::empty());
            request.extensions_mut().insert(RawBody(bytes));
            next.run(request).await
        }
        Err(error) => error.into_response(),
    }
}

/// Reads a complete body.
pub(crate) async fn whole(parts: &Parts, body: Body) -> Result<Bytes, ApiError> {
    let waited = limits::HTTP_BODY_WAIT;
    let read = match tokio::time::timeout(waited, gather(parts, body)).await {
        Ok(read) => read,
        Err(_) => Err(ApiError::SlowBody { waited }),
    };
    note_running(&parts.extensions);
    read
}

/// Records that the request has arrived and is being handled.
fn note_running(extensions: &Extensions) {
    if let Some(connection) = extensions.get::<Connection>() {
        connection.set(Activity::Running);
    }
}

impl<S: Send + Sync> FromRequestParts<S> for RawBody {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let read = parts.extensions.remove::<Self>();
        read.ok_or_else(|| ApiError::Internal("the request's body was not read".to_owned()))
    }
}

async fn gather(parts: &Parts, mut body: Body) -> Result<Bytes, ApiError> {
    let limit = HTTP_BODY_BYTES_MAX;
    // A client that asks before it sends gets the refusal at once, and its body is not read.
    if content_length(parts) > limit && parts.headers.contains_key(header::EXPECT) {
        return Err(ApiError::TooLarge { limit });
    }
    let mut bytes = BytesMut::new();
    let mut seen = 0;
    while let Some(frame) = body.frame().await {
        let frame = frame
            .map_err(|error| ApiError::Malformed(format!("the request body broke off: {error}")))?;
        let Ok(data) = frame.into_data() else {
            continue;
        };
        seen += data.len();
        if seen <= limit {
            bytes.extend_from_slice(&data);
        } else if seen > limits::HTTP_BODY_DRAINED_BYTES_MAX {
            break;
        } else {
            // The rest is read and discarded: most clients read the answer only after they have sent everything.
            bytes = BytesMut::new();
        }
    }
    if seen > limit {
        Err(ApiError::TooLarge { limit })
    } else {
        Ok(bytes.freeze())
    }
}

/// The request's `Content-Length`; 0 if there is none.
fn content_length(parts: &Parts) -> usize {
    let value = parts.headers.get(header::CONTENT_LENGTH);
    value
        .and_then(|value| value.to_str().ok())
        .and_then(|text| text.parse().ok())
        .unwrap_or(0)
}
