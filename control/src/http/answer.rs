//! Answers: JSON with Nomad's headers.

use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use muster_domain::id::LogIndex;
use serde::Serialize;

use super::status::ApiError;
use crate::handle::Control;

const INDEX: HeaderName = HeaderName::from_static("x-nomad-index");
const KNOWN_LEADER: HeaderName = HeaderName::from_static("x-nomad-knownleader");
const LAST_CONTACT: HeaderName = HeaderName::from_static("x-nomad-lastcontact");
const NEXT_TOKEN: HeaderName = HeaderName::from_static("x-nomad-nexttoken");

/// `value` as JSON.
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

/// Says from which state `response` is. Index 0 becomes 1: a client that asks for anything newer than 0
/// would be answered at once, for ever.
pub(super) fn stamp(mut response: Response, control: &Control, index: LogIndex) -> Response {
    let headers = response.headers_mut();
    headers.insert(INDEX, HeaderValue::from(index.0.max(1)));
    let known = if control.leader().is_some() {
        "true"
    } else {
        "false"
    };
    headers.insert(KNOWN_LEADER, HeaderValue::from_static(known));
    headers.insert(LAST_CONTACT, HeaderValue::from_static("0"));
    response
}

/// Says where the next page of a list begins.
pub(super) fn continued(mut response: Response, next: Option<&str>) -> Response {
    if let Some(value) = next.and_then(|token| HeaderValue::from_str(token).ok()) {
        response.headers_mut().insert(NEXT_TOKEN, value);
    }
    response
}
