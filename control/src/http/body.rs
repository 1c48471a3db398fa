//! Request bodies, bounded in size and time.

use axum::extract::{FromRequest, Request};
use axum::http::header;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use muster_wire::limits::HTTP_BODY_BYTES_MAX;

use super::status::ApiError;
use crate::limits;

/// A body, whole.
#[derive(Debug)]
pub(super) struct RawBody(pub(super) Bytes);

impl<S: Send + Sync> FromRequest<S> for RawBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        let waited = limits::HTTP_BODY_WAIT;
        match tokio::time::timeout(waited, gather(request)).await {
            Ok(body) => body.map(Self),
            Err(_) => Err(ApiError::SlowBody { waited }),
        }
    }
}

async fn gather(request: Request) -> Result<Bytes, ApiError> {
    let limit = HTTP_BODY_BYTES_MAX;
    // A client that asks before it sends is told at once: its body is not read at all.
    if announced(&request) > limit && request.headers().contains_key(header::EXPECT) {
        return Err(ApiError::TooLarge { limit });
    }
    let mut body = request.into_body();
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

/// What the request says of its length; 0 if nothing.
fn announced(request: &Request) -> usize {
    let value = request.headers().get(header::CONTENT_LENGTH);
    value
        .and_then(|value| value.to_str().ok())
        .and_then(|text| text.parse().ok())
        .unwrap_or(0)
}
