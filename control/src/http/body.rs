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

/// A body, whole.
#[derive(Clone, Debug)]
pub(super) struct RawBody(pub(super) Bytes);

/// Reads the body of every request before anybody looks at it, whatever becomes of the request: a connection
/// with an unread body cannot be used again, and a client finds that out only when it tries.
///
/// Snapshots are as large as they are, so theirs is read by its handler.
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

/// All of a body.
pub(crate) async fn whole(parts: &Parts, body: Body) -> Result<Bytes, ApiError> {
    let waited = limits::HTTP_BODY_WAIT;
    let read = match tokio::time::timeout(waited, gather(parts, body)).await {
        Ok(read) => read,
        Err(_) => Err(ApiError::SlowBody { waited }),
    };
    note_running(&parts.extensions);
    read
}

/// Notes that the request has arrived and is being carried out.
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
    // A client that asks before it sends is told at once: its body is not read at all.
    if announced(parts) > limit && parts.headers.contains_key(header::EXPECT) {
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
            // Read on and forget: most clients read the answer only after all is sent.
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
fn announced(parts: &Parts) -> usize {
    let value = parts.headers.get(header::CONTENT_LENGTH);
    value
        .and_then(|value| value.to_str().ok())
        .and_then(|text| text.parse().ok())
        .unwrap_or(0)
}
