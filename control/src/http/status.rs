//! Errors as HTTP answers. Only this module decides status codes.
//!
//! The body of an error is readable plain text, as in Nomad: one fault for each line.

use std::time::Duration;

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use muster_control_core::fsm::{
    self, AllocRejection, ConfigRejection, DeploymentRejection, JobRejection, NodeRejection,
    OneOffRefusal, Rejection, RejectionKind,
};
use muster_domain::error_chain::chain;
use muster_domain::fault::Fault;
use muster_domain::id::NodeId;
use muster_wire::api::job::request::{self, ReadJobError};
use muster_wire::api::task::{TaskError, kind};
use muster_wire::rpc::FailureKind;

use super::cross_site::CrossSiteError;
use crate::agents::NodeRequestError;
use crate::handle::{ProposeError, ReadError};
use crate::limits;
use crate::raft::ChangeServersError;
use crate::restore::RestoreError;
use crate::snapshot::RestoreSnapshotError;

/// The reason why a request fails.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ApiError {
    /// The path does not exist.
    #[error("this API does not have this path")]
    UnknownRoute,
    /// The path takes other methods.
    #[error("Invalid method")]
    Method,
    /// The requested object does not exist.
    #[error("{what} not found")]
    NotFound {
        /// Nomad's name for the object.
        what: &'static str,
    },
    /// A parameter or the body is malformed.
    #[error("{0}")]
    Malformed(String),
    /// The body is invalid.
    #[error(transparent)]
    Body(#[from] ReadJobError),
    /// The job is invalid.
    #[error("{}", request::lines(.0))]
    Invalid(Vec<Fault>),
    /// The body is too large.
    #[error("the request body is above the limit of {limit} bytes")]
    TooLarge { limit: usize },
    /// The body did not arrive in time.
    #[error("the request body did not arrive within {waited:?}")]
    SlowBody {
        /// The time limit for the body.
        waited: Duration,
    },
    /// Nomad has the feature, this version has not.
    #[error("{what} is not supported yet")]
    Unsupported { what: String },
    /// The state machine refuses the change.
    #[error("{}", rejection(.0))]
    Rejected(#[from] Rejection),
    /// The change was not carried out.
    #[error(transparent)]
    Propose(#[from] ProposeError),
    /// No state that is new enough can be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The membership was not changed.
    #[error(transparent)]
    Servers(#[from] ChangeServersError),
    /// A snapshot was not restored.
    #[error("{}", crate::chain(.0))]
    Restore(#[from] RestoreError),
    /// The request may come from another site's web page.
    #[error(transparent)]
    CrossSite(#[from] CrossSiteError),
    /// The node cannot be asked.
    #[error("{}", chain(.0))]
    Node(#[from] NodeRequestError),
    /// The node does not answer.
    #[error("the node did not answer within {waited:?}: see the agent's messages on that machine")]
    NodeSilent {
        /// The time limit for the answer.
        waited: Duration,
    },
    /// The node is alive and has not finished.
    #[error(
        "the node was not done in time, and goes on: ask again, or see `muster node status {node_id}` for what is left"
    )]
    NodeBusy { node_id: NodeId },
    /// The node reports a failure.
    #[error("{reason}")]
    NodeFailed {
        reason: String,
        /// The kind of failure.
        kind: FailureKind,
    },
    /// A request about one-off tasks is refused, with Diego's kind of error.
    #[error("{message}")]
    Task {
        /// Diego's name for the kind of error.
        kind: &'static str,
        /// The text for the client's user.
        message: String,
    },
    /// The memory for answers is used up.
    #[error(
        "too many long answers are under way, and no memory for another was free within {waited:?}: try again, or ask for pages with per_page"
    )]
    AnswersUnderWay {
        /// How long the answer waited.
        waited: Duration,
    },
    /// Other snapshots are being sent or received.
    #[error(
        "{transfers} snapshots are being sent or received already: try again when one of them has ended"
    )]
    SnapshotsUnderWay {
        /// The number of transfers that may run at once.
        transfers: usize,
    },
    /// A snapshot was not sent or received in time.
    #[error("the snapshot was not transferred within {waited:?}")]
    SlowSnapshot {
        /// The time limit for the transfer.
        waited: Duration,
    },
    /// An error in this program.
    #[error("internal error: {0}")]
    Internal(String),
}

fn rejection(rejection: &Rejection) -> String {
    match rejection {
        Rejection::Job(JobRejection::Unknown(_)) => "job not found".to_owned(),
        Rejection::Node(NodeRejection::Unknown(_)) => "node not found".to_owned(),
        Rejection::Deployment(DeploymentRejection::Unknown(_)) => "deployment not found".to_owned(),
        Rejection::Alloc(AllocRejection::Unknown(_)) => "alloc not found".to_owned(),
        // Nomad's command line searches for these words.
        Rejection::Job(JobRejection::CheckIndex { expected, .. }) => {
            format!("Enforcing job modify index {}: {rejection}", expected.0)
        }
        other => other.to_string(),
    }
}

impl ApiError {
    /// Converts a response other than the command's success: a refusal, or an error in this program.
    pub(super) fn other_than_done(response: fsm::Response) -> Self {
        if let fsm::Response::Rejected(rejection) = response {
            Self::Rejected(rejection)
        } else {
            Self::Internal(format!("a command was answered with {response:?}"))
        }
    }

    /// Whether a write with `cas` was made. In Nomad's answers a changed index is not a refusal.
    pub(super) fn unless_moved(response: fsm::Response) -> Result<bool, Self> {
        match response {
            fsm::Response::Done => Ok(true),
            fsm::Response::Rejected(Rejection::Config(ConfigRejection::Index { .. })) => Ok(false),
            other => Err(Self::other_than_done(other)),
        }
    }

    /// The error for clients of one-off tasks, which includes its kind.
    fn task_error(&self) -> Option<TaskError> {
        let kind = match self {
            Self::Task { kind, .. } => kind,
            Self::Rejected(Rejection::OneOff(refusal)) => match refusal {
                OneOffRefusal::Domains => kind::INVALID_REQUEST,
                OneOffRefusal::Exists(_) => kind::RESOURCE_EXISTS,
                OneOffRefusal::Unknown(_) => kind::RESOURCE_NOT_FOUND,
                OneOffRefusal::Transition { .. } | OneOffRefusal::Claimed { .. } => {
                    kind::INVALID_STATE_TRANSITION
                }
            },
            _ => return None,
        };
        Some(TaskError {
            kind: kind.to_owned(),
            message: self.to_string(),
        })
    }

    /// The status code.
    fn status(&self) -> StatusCode {
        match self {
            Self::UnknownRoute | Self::NotFound { .. } => StatusCode::NOT_FOUND,
            Self::Method => StatusCode::METHOD_NOT_ALLOWED,
            Self::CrossSite(error) => cross_site_status(error),
            Self::Malformed(_) | Self::Body(_) | Self::Invalid(_) | Self::Task { .. } => {
                StatusCode::BAD_REQUEST
            }
            Self::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::SlowBody { .. } | Self::SlowSnapshot { .. } => StatusCode::REQUEST_TIMEOUT,
            Self::AnswersUnderWay { .. } | Self::SnapshotsUnderWay { .. } => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Self::Unsupported { .. } => StatusCode::NOT_IMPLEMENTED,
            Self::Rejected(rejection) => rejection_status(rejection),
            Self::Propose(error) => match error {
                ProposeError::Overloaded { .. }
                | ProposeError::NotLeader { .. }
                | ProposeError::DiskFull { .. } => StatusCode::SERVICE_UNAVAILABLE,
                // The change may still be carried out, so a client must not simply retry.
                ProposeError::Timeout { .. } => StatusCode::GATEWAY_TIMEOUT,
                ProposeError::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
                ProposeError::Encode(_) | ProposeError::Stopped { .. } => {
                    StatusCode::INTERNAL_SERVER_ERROR
                }
            },
            Self::Read(error) => match error {
                ReadError::NoLeader { .. } | ReadError::Behind { .. } => {
                    StatusCode::SERVICE_UNAVAILABLE
                }
                ReadError::Stopped { .. } => StatusCode::INTERNAL_SERVER_ERROR,
            },
            Self::Servers(error) => match error {
                ChangeServersError::NotLeader { .. } => StatusCode::SERVICE_UNAVAILABLE,
                ChangeServersError::InProgress => StatusCode::CONFLICT,
                ChangeServersError::Refused { .. } => StatusCode::BAD_REQUEST,
                ChangeServersError::Timeout { .. } => StatusCode::GATEWAY_TIMEOUT,
                ChangeServersError::Stopped { .. } => StatusCode::INTERNAL_SERVER_ERROR,
            },
            Self::Restore(error) => match error {
                RestoreError::NoLeader
                | RestoreError::Local(RestoreSnapshotError::Write { .. }) => {
                    StatusCode::SERVICE_UNAVAILABLE
                }
                RestoreError::Local(RestoreSnapshotError::TooLarge { .. }) => {
                    StatusCode::PAYLOAD_TOO_LARGE
                }
                RestoreError::Local(RestoreSnapshotError::Void) => StatusCode::CONFLICT,
                RestoreError::Lost { .. } => StatusCode::GATEWAY_TIMEOUT,
                RestoreError::Local(RestoreSnapshotError::Read(_))
                | RestoreError::Leader { .. } => StatusCode::INTERNAL_SERVER_ERROR,
            },
            Self::Node(_) => StatusCode::SERVICE_UNAVAILABLE,
            Self::NodeSilent { .. } | Self::NodeBusy { .. } => StatusCode::GATEWAY_TIMEOUT,
            Self::NodeFailed { kind, .. } => match kind {
                FailureKind::Other => StatusCode::INTERNAL_SERVER_ERROR,
                FailureKind::NotFound => StatusCode::NOT_FOUND,
                FailureKind::TooMany => StatusCode::TOO_MANY_REQUESTS,
                FailureKind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            },
            Self::Internal(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}

fn rejection_status(rejection: &Rejection) -> StatusCode {
    match rejection.kind() {
        RejectionKind::NotFound => StatusCode::NOT_FOUND,
        RejectionKind::Conflict => StatusCode::CONFLICT,
        RejectionKind::Forbidden => StatusCode::FORBIDDEN,
        RejectionKind::Invalid => StatusCode::BAD_REQUEST,
    }
}

fn cross_site_status(error: &CrossSiteError) -> StatusCode {
    match error {
        CrossSiteError::HostCount { .. } => StatusCode::BAD_REQUEST,
        CrossSiteError::Host { .. }
        | CrossSiteError::Origin { .. }
        | CrossSiteError::FetchSite { .. } => StatusCode::FORBIDDEN,
        CrossSiteError::ContentType { .. } => StatusCode::UNSUPPORTED_MEDIA_TYPE,
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status = self.status();
        let text = [(header::CONTENT_TYPE, "text/plain; charset=utf-8")];
        let mut response = match self.task_error() {
            Some(error) => (status, Json(error)).into_response(),
            None => (status, text, self.to_string()).into_response(),
        };
        if matches!(
            status,
            StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS
        ) {
            let seconds = HeaderValue::from(limits::RETRY_AFTER.as_secs());
            response.headers_mut().insert(header::RETRY_AFTER, seconds);
        }
        if matches!(
            self,
            Self::TooLarge { .. }
                | Self::SlowBody { .. }
                | Self::SlowSnapshot { .. }
                | Self::SnapshotsUnderWay { .. }
                | Self::CrossSite(_)
        ) {
            // The rest of the body is not read, so the connection cannot be used again.
            response
                .headers_mut()
                .insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use muster_domain::id::{JobKey, LogIndex};

    use super::*;

    #[test]
    fn unavailable_server_sends_retry_after() {
        let busy = ProposeError::Overloaded {
            waiting: 1,
            waited: Duration::from_secs(1),
        };
        let leaderless = ProposeError::NotLeader { leader: None };

        for error in [busy, leaderless] {
            let response = ApiError::from(error).into_response();
            assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
            assert_eq!(response.headers()[header::RETRY_AFTER], "1");
        }
    }

    #[test]
    fn node_failure_kinds_map_to_http_status() {
        let cases = [
            (FailureKind::Other, 500, false),
            (FailureKind::NotFound, 404, false),
            (FailureKind::TooMany, 429, true),
            (FailureKind::Unavailable, 503, true),
        ];

        for (kind, status, expected) in cases {
            let reason = "this node has 64 sessions".to_owned();
            let response = ApiError::NodeFailed { reason, kind }.into_response();
            assert_eq!(response.status().as_u16(), status, "{kind:?}");
            let retry_after = response.headers().contains_key(header::RETRY_AFTER);
            assert_eq!(retry_after, expected, "{kind:?}");
        }
    }

    /// The change may still be carried out: a client that retries would register twice.
    #[test]
    fn unknown_outcome_has_no_retry_after() {
        let error = ProposeError::Timeout {
            waited: Duration::from_secs(10),
            reason: "a test".to_owned(),
        };

        let response = ApiError::from(error).into_response();

        assert_eq!(response.status(), StatusCode::GATEWAY_TIMEOUT);
        assert!(!response.headers().contains_key(header::RETRY_AFTER));
    }

    #[test]
    fn a_refused_command_has_its_code() {
        let key = JobKey::in_default("web");
        let moved = Rejection::Job(JobRejection::CheckIndex {
            key: key.clone(),
            expected: LogIndex(0),
            actual: LogIndex(7),
        });

        assert_eq!(ApiError::from(moved).status(), StatusCode::CONFLICT);
        assert_eq!(
            ApiError::from(Rejection::Job(JobRejection::Unknown(key.clone()))).status(),
            StatusCode::NOT_FOUND
        );
        assert_eq!(
            ApiError::from(Rejection::Job(JobRejection::NoGroups(key))).status(),
            StatusCode::BAD_REQUEST
        );
    }

    #[test]
    fn a_connection_with_an_unread_body_is_closed() {
        let response = ApiError::TooLarge { limit: 5 }.into_response();

        assert_eq!(response.status(), StatusCode::PAYLOAD_TOO_LARGE);
        assert_eq!(response.headers()[header::CONNECTION], "close");
    }
}
