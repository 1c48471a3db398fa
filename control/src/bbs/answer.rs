//! Messages in and out, and the error for each failure. Every answer has status 200, as in Diego: its clients read
//! the error from the body.

use axum::body::Body;
use axum::extract::Request;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use muster_control_core::fsm::{OneOffRefusal, Rejection};
use muster_domain::fault::Fault;
use muster_wire::api::task::invalid_fields;
use prost::Message;

use super::proto::error::Kind;
use super::proto::{
    CellsResponse, DomainsResponse, Error, LrpResponse, PingResponse, StartTaskResponse,
    TaskLifecycleResponse, TaskResponse, TasksResponse, UpsertDomainResponse,
};
use super::retry;
use crate::handle::{ProposeError, ReadError};
use crate::http::body;

/// An answer message with an error field.
pub(super) trait Answer: Message + Default {
    /// Sets `error` as the message's error.
    fn set_error(&mut self, error: Error);

    /// Returns a message with only `error`.
    fn failed(error: Error) -> Self {
        let mut answer = Self::default();
        answer.set_error(error);
        answer
    }
}

macro_rules! answers {
    ($($name:ident),* $(,)?) => {
        $(impl Answer for $name {
            fn set_error(&mut self, error: Error) {
                self.error = Some(error);
            }
        })*
    };
}

answers!(
    CellsResponse,
    DomainsResponse,
    LrpResponse,
    StartTaskResponse,
    TaskLifecycleResponse,
    TaskResponse,
    TasksResponse,
    UpsertDomainResponse,
);

impl Answer for PingResponse {
    fn set_error(&mut self, _: Error) {
        self.available = false;
    }
}

/// Decodes the message of a request. An undecodable body gets Diego's error.
pub(super) async fn read<Q: Message + Default>(request: Request) -> Result<Q, Error> {
    let (parts, body) = request.into_parts();
    let bytes = body::whole(&parts, body)
        .await
        .map_err(|error| Error::of(Kind::InvalidRequest, error))?;
    Q::decode(bytes).map_err(|error| {
        tracing::debug!(%error, "a body is not a message");
        Error::of(Kind::InvalidRequest, "the request received is invalid")
    })
}

/// Builds the answer to a request.
pub(super) fn reply<A: Answer>(answered: Result<A, Error>) -> Response {
    let message = answered.unwrap_or_else(A::failed);
    stream(Body::from(message.encode_to_vec()))
}

/// Builds an answer with `body` as its message.
pub(super) fn stream(body: Body) -> Response {
    ([(header::CONTENT_TYPE, "application/x-protobuf")], body).into_response()
}

impl Error {
    /// Creates an error of the kind `kind` with the text `message`.
    pub(super) fn of(kind: Kind, message: impl ToString) -> Self {
        Self {
            kind: kind.into(),
            message: message.to_string(),
        }
    }

    /// The error for invalid fields.
    pub(super) fn invalid(faults: &[Fault]) -> Self {
        // Clients compare the message, so only the log has the reasons.
        tracing::debug!(?faults, "a request is invalid");
        let fields = faults.iter().map(|fault| fault.path.as_str());
        Self::of(Kind::InvalidRequest, invalid_fields(fields))
    }
}

impl From<Rejection> for Error {
    fn from(rejection: Rejection) -> Self {
        match rejection {
            Rejection::OneOff(refusal) => refusal.into(),
            other => Self::of(Kind::Unknown, other),
        }
    }
}

impl From<OneOffRefusal> for Error {
    fn from(refusal: OneOffRefusal) -> Self {
        match refusal {
            OneOffRefusal::Exists(_) => Self::of(
                Kind::ResourceExists,
                "the requested resource already exists",
            ),
            OneOffRefusal::Unknown(_) => Self::of(
                Kind::ResourceNotFound,
                "the requested resource could not be found",
            ),
            OneOffRefusal::Transition { .. } | OneOffRefusal::Claimed { .. } => {
                Self::of(Kind::InvalidStateTransition, refusal)
            }
            OneOffRefusal::Domains => Self::of(Kind::InvalidRequest, refusal),
        }
    }
}

impl From<ProposeError> for Error {
    fn from(error: ProposeError) -> Self {
        match &error {
            // A Diego client has no idempotency key for a retry.
            ProposeError::Timeout { reason, .. } => retry::unknown(reason),
            ProposeError::Overloaded { .. }
            | ProposeError::NotLeader { .. }
            | ProposeError::TooLarge { .. }
            | ProposeError::Encode(_)
            | ProposeError::DiskFull { .. }
            | ProposeError::Stopped { .. } => Self::of(Kind::Unknown, crate::chain(&error)),
        }
    }
}

impl From<ReadError> for Error {
    fn from(error: ReadError) -> Self {
        Self::of(Kind::Unknown, crate::chain(&error))
    }
}
