//! The state as a file: saved for a backup, and restored.

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::{Request, State as Shared};
use axum::http::{HeaderName, header};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures::stream::{self, Stream};
use http_body_util::BodyExt as _;
use muster_domain::number;
use serde_json::json;
use sha2::{Digest as _, Sha256};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, timeout};

use super::answer;
use super::handler::Http;
use super::listen::Connection;
use super::query::Query;
use super::status::ApiError;
use crate::limits;
use crate::restore;
use crate::snapshot::{ReadSnapshotError, SavedSnapshot, SnapshotReader};

/// The path whose request bodies are not buffered.
pub(super) const PATH: &str = "/v1/operator/snapshot";
/// The header with the digest that Nomad's clients verify.
const DIGEST: HeaderName = HeaderName::from_static("digest");

/// Takes a snapshot of a state that satisfies the request's consistency, and sends the file.
pub(super) async fn save(Shared(http): Shared<Http>, query: Query) -> Result<Response, ApiError> {
    let permit = transfer(&http)?;
    let seen = query.state(&http).await?;
    let reader = http.control.save_snapshot().await?;
    let (reader, digest) = blocking(move || digest(reader)).await?;
    let headers = [
        (header::CONTENT_TYPE, "application/octet-stream".to_owned()),
        (header::CONTENT_LENGTH, reader.bytes().to_string()),
        (DIGEST, format!("sha-256={digest}")),
    ];
    let response = (headers, Body::from_stream(chunks(reader, permit))).into_response();
    Ok(answer::stamp(response, &seen, seen.state.applied()))
}

/// Returns the digest of the bytes of `reader`, and the reader at the beginning.
fn digest(mut reader: SnapshotReader) -> Result<(SnapshotReader, String), ApiError> {
    let mut hash = Sha256::new();
    while let Some(chunk) = reader.next_chunk().map_err(broken)? {
        hash.update(&chunk);
    }
    reader.rewind().map_err(broken)?;
    Ok((reader, STANDARD.encode(hash.finalize())))
}

/// Allows one more transfer of a snapshot.
fn transfer(http: &Http) -> Result<OwnedSemaphorePermit, ApiError> {
    let permit = Arc::clone(&http.snapshots).try_acquire_owned();
    permit.map_err(|_busy| ApiError::SnapshotsUnderWay {
        transfers: limits::SNAPSHOT_TRANSFERS_MAX,
    })
}

fn chunks(
    reader: SnapshotReader,
    permit: OwnedSemaphorePermit,
) -> impl Stream<Item = Result<Bytes, ApiError>> {
    let waited = limits::SNAPSHOT_TRANSFER_WAIT;
    let deadline = Instant::now() + waited;
    stream::try_unfold((reader, permit), move |(mut reader, permit)| async move {
        if Instant::now() > deadline {
            return Err(ApiError::SlowSnapshot { waited });
        }
        blocking(move || {
            let chunk = reader.next_chunk().map_err(broken)?;
            Ok(chunk.map(|chunk| (chunk, (reader, permit))))
        })
        .await
    })
}

/// Replaces the cluster's state by the one in the request's body.
pub(super) async fn restore_upload(
    Shared(http): Shared<Http>,
    Extension(connection): Extension<Connection>,
    query: Query,
    request: Request,
) -> Result<Response, ApiError> {
    let _permit = transfer(&http)?;
    connection.begin_session();
    let waited = limits::SNAPSHOT_TRANSFER_WAIT;
    let saved = timeout(waited, receive(&http, request)).await;
    connection.end_session();
    let saved = saved.map_err(|_elapsed| ApiError::SlowSnapshot { waited })??;
    let index = restore::restore(&http.control, saved).await?;
    query.json(&json!({ "Index": index.0 }))
}

/// Writes the request's body into a file of this server and checks the file.
async fn receive(http: &Http, request: Request) -> Result<SavedSnapshot, ApiError> {
    let mut body = request.into_body();
    let mut writer = http.control.receive_snapshot().map_err(broken)?;
    let mut bytes = 0_u64;
    while let Some(data) = next(&mut body).await? {
        bytes += data.len() as u64;
        if bytes > limits::SNAPSHOT_UPLOAD_BYTES_MAX {
            return Err(ApiError::TooLarge {
                limit: number::index(limits::SNAPSHOT_UPLOAD_BYTES_MAX),
            });
        }
        writer = blocking(move || {
            writer.write_chunk(&data).map_err(broken)?;
            Ok(writer)
        })
        .await?;
    }
    if bytes == 0 {
        return Err(ApiError::Malformed("Request body is empty".to_owned()));
    }
    blocking(move || {
        let malformed = |error: ReadSnapshotError| ApiError::Malformed(crate::chain(&error));
        writer.finish().map_err(malformed)
    })
    .await
}

/// Returns the next bytes of `body`; `None` at its end.
async fn next(body: &mut Body) -> Result<Option<Bytes>, ApiError> {
    let waited = limits::HTTP_BODY_WAIT;
    loop {
        let frame = match timeout(waited, body.frame()).await {
            Ok(Some(frame)) => frame,
            Ok(None) => return Ok(None),
            Err(_) => return Err(ApiError::SlowBody { waited }),
        };
        let frame = frame
            .map_err(|error| ApiError::Malformed(format!("the request body broke off: {error}")))?;
        // Trailers have no use here.
        if let Ok(data) = frame.into_data() {
            return Ok(Some(data));
        }
    }
}

/// Runs disk work off the async threads.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| ApiError::Internal(error.to_string()))?
}

fn broken(error: std::io::Error) -> ApiError {
    ApiError::Internal(format!("the snapshot's file: {error}"))
}
