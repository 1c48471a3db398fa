//! Answers: JSON with Nomad's headers.

use axum::extract::{Request, State as Shared};
use axum::http::{HeaderName, HeaderValue, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use muster_domain::id::LogIndex;
use muster_domain::saturating;
use serde::Serialize;

use super::handler::Http;
use super::status::ApiError;
use crate::handle::ReadState;

const INDEX: HeaderName = HeaderName::from_static("x-nomad-index");
const KNOWN_LEADER: HeaderName = HeaderName::from_static("x-nomad-knownleader");
const LAST_CONTACT: HeaderName = HeaderName::from_static("x-nomad-lastcontact");
/// A header of Muster's: Nomad's answers do not name the leader.
const LEADER: HeaderName = HeaderName::from_static("x-muster-leader");
const NEXT_TOKEN: HeaderName = HeaderName::from_static("x-nomad-nexttoken");

/// Adds the known leader to every answer: its name and its HTTP address. A write to another server is forwarded to
/// the leader.
pub(super) async fn name_leader(
    Shared(http): Shared<Http>,
    request: Request,
    next: Next,
) -> Response {
    let mut response = next.run(request).await;
    let leader = http.control.leader();
    let named = leader.and_then(|leader| {
        HeaderValue::from_str(&format!("{} http://{}", leader.name, leader.http_addr)).ok()
    });
    if let Some(value) = named {
        response.headers_mut().insert(LEADER, value);
    }
    response
}

/// Answers with `value` as JSON.
pub(super) fn json(value: &impl Serialize, pretty: bool) -> Result<Response, ApiError> {
    let mut body = if pretty {
        serde_json::to_vec_pretty(value)
    } else {
        serde_json::to_vec(value)
    }
    .map_err(|error| ApiError::Internal(error.to_string()))?;
    if pretty {
        body.push(b'\n');
    }
    Ok(([(header::CONTENT_TYPE, "application/json")], body).into_response())
}

/// Adds the headers of the answer's state. Index 0 becomes 1: a blocking query with index 0 would return at once,
/// for ever.
pub(super) fn stamp(mut response: Response, seen: &ReadState, index: LogIndex) -> Response {
    let headers = response.headers_mut();
    headers.insert(INDEX, HeaderValue::from(index.0.max(1)));
    let known = if seen.leader_known { "true" } else { "false" };
    headers.insert(KNOWN_LEADER, HeaderValue::from_static(known));
    let silence = saturating::millis(seen.last_contact);
    headers.insert(LAST_CONTACT, HeaderValue::from(silence));
    response
}

/// Adds the header with the start of a list's next page.
pub(super) fn continued(mut response: Response, next: Option<&str>) -> Response {
    if let Some(value) = next.and_then(|token| HeaderValue::from_str(token).ok()) {
        response.headers_mut().insert(NEXT_TOKEN, value);
    }
    response
}
