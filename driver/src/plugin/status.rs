//! Converts errors to gRPC statuses and back.
//!
//! Nomad distinguishes errors by their text and by one detail, `RecoverableError`. Both are sent and understood. Kinds
//! that Nomad does not have are in the metadata key [`KIND_KEY`]. So our hosts and drivers never guess a kind from
//! text.

use prost::Message;
use tonic::metadata::MetadataValue;
use tonic::{Code, Status};

use crate::error::{DriverError, RecoverTaskError, Retry, TASK_NOT_FOUND, TaskError};
use crate::plugin::proto::structs::RecoverableError;

/// The key for the variant of an error.
const KIND_KEY: &str = "muster-error";
/// The key for the value of a variant, apart from its text.
const VALUE_KEY: &str = "muster-error-value";
const RECOVERABLE_URL: &str =
    "type.googleapis.com/hashicorp.nomad.plugins.shared.structs.RecoverableError";

const GONE: &str = "task-gone";
const HANDLE_VERSION: &str = "handle-version";
const INVALID_HANDLE: &str = "invalid-handle";
const NOT_FOUND: &str = "task-not-found";
const NOT_RUNNING: &str = "task-not-running";
const STILL_RUNNING: &str = "task-still-running";
const UNKNOWN_SIGNAL: &str = "unknown-signal";

/// The error model of gRPC, which contains the details.
#[derive(Clone, PartialEq, Message)]
struct RichStatus {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
    #[prost(message, repeated, tag = "3")]
    details: Vec<prost_types::Any>,
}

fn with_kind(mut status: Status, kind: &'static str) -> Status {
    status
        .metadata_mut()
        .insert(KIND_KEY, MetadataValue::from_static(kind));
    status
}

fn with_value(mut status: Status, value: &str) -> Status {
    // A value that is no valid header text is left out; then the reader has only the message.
    if let Ok(value) = MetadataValue::try_from(value) {
        status.metadata_mut().insert(VALUE_KEY, value);
    }
    status
}

fn kind(status: &Status) -> &str {
    status
        .metadata()
        .get(KIND_KEY)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default()
}

fn value(status: &Status) -> &str {
    status
        .metadata()
        .get(VALUE_KEY)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default()
}

/// Converts a driver's failure to a status for the host.
pub(crate) fn from_driver_error(error: &DriverError) -> Status {
    match error {
        DriverError::Unavailable { .. } => Status::unavailable(error.to_string()),
        DriverError::TimedOut { .. } => Status::deadline_exceeded(error.to_string()),
        DriverError::Unsupported { call } => {
            with_value(Status::unimplemented(error.to_string()), call)
        }
        DriverError::Protocol { .. } => Status::invalid_argument(error.to_string()),
        DriverError::Failed { message, retry } => {
            let recoverable = match retry {
                Retry::Later => true,
                Retry::Never | Retry::ElsewhereNow => false,
            };
            failed(message, recoverable)
        }
    }
}

fn failed(message: &str, recoverable: bool) -> Status {
    let details = RichStatus {
        code: i32::from(Code::Unknown),
        message: message.to_owned(),
        details: vec![prost_types::Any {
            type_url: RECOVERABLE_URL.to_owned(),
            value: RecoverableError { recoverable }.encode_to_vec(),
        }],
    };
    Status::with_details(Code::Unknown, message, details.encode_to_vec().into())
}

/// Converts a failure of `call` to the host's error.
pub(crate) fn to_driver_error(call: &'static str, status: &Status) -> DriverError {
    match status.code() {
        _ if broken_connection(status) => DriverError::Unavailable {
            reason: format!("{call}: {}", status.message()),
        },
        Code::Unavailable | Code::Cancelled => DriverError::Unavailable {
            reason: format!("{call}: {}", status.message()),
        },
        Code::Unimplemented => DriverError::Unsupported {
            call: call.to_owned(),
        },
        Code::InvalidArgument => DriverError::Protocol {
            reason: format!("{call}: {}", status.message()),
        },
        code => DriverError::Failed {
            message: status.message().to_owned(),
            retry: if code == Code::DeadlineExceeded || recoverable(status) {
                Retry::Later
            } else {
                Retry::Never
            },
        },
    }
}

/// Whether the status reports a broken connection. The transport attaches the causing error to its own failures,
/// whatever code it picks. A status that the driver sent has no such source.
fn broken_connection(status: &Status) -> bool {
    std::error::Error::source(status).is_some()
}

fn recoverable(status: &Status) -> bool {
    let Ok(rich) = RichStatus::decode(status.details()) else {
        return false;
    };
    rich.details
        .iter()
        .filter(|detail| detail.type_url == RECOVERABLE_URL)
        .any(|detail| {
            RecoverableError::decode(detail.value.as_slice()).is_ok_and(|detail| detail.recoverable)
        })
}

/// Converts an operation's failure to a status for the host.
pub(crate) fn from_task_error(error: &TaskError) -> Status {
    match error {
        TaskError::NotFound { .. } => with_kind(Status::not_found(TASK_NOT_FOUND), NOT_FOUND),
        TaskError::NotRunning { .. } => {
            with_kind(Status::failed_precondition(error.to_string()), NOT_RUNNING)
        }
        TaskError::StillRunning { .. } => with_kind(
            Status::failed_precondition(error.to_string()),
            STILL_RUNNING,
        ),
        TaskError::UnknownSignal { .. } => {
            with_kind(Status::invalid_argument(error.to_string()), UNKNOWN_SIGNAL)
        }
        TaskError::Driver(error) => from_driver_error(error),
    }
}

/// Converts a failure of `call` on a task to the host's error.
pub(crate) fn to_task_error(
    call: &'static str,
    task_id: &str,
    signal: &str,
    status: &Status,
) -> TaskError {
    let task_id = task_id.to_owned();
    match kind(status) {
        NOT_FOUND => TaskError::NotFound { task_id },
        NOT_RUNNING => TaskError::NotRunning { task_id },
        STILL_RUNNING => TaskError::StillRunning { task_id },
        UNKNOWN_SIGNAL => TaskError::UnknownSignal {
            signal: signal.to_owned(),
        },
        // Nomad's drivers send no kinds; their text is the contract.
        _ if status.message().contains(TASK_NOT_FOUND) => TaskError::NotFound { task_id },
        _ => to_driver_error(call, status).into(),
    }
}

/// Converts a failed recovery to a status for the host.
pub(crate) fn from_recover_error(error: &RecoverTaskError) -> Status {
    match error {
        RecoverTaskError::Gone { reason, .. } => {
            with_kind(Status::failed_precondition(reason.as_str()), GONE)
        }
        RecoverTaskError::HandleVersion { found, supported } => with_value(
            with_kind(
                Status::failed_precondition(error.to_string()),
                HANDLE_VERSION,
            ),
            &format!("{found} {supported}"),
        ),
        RecoverTaskError::InvalidHandle { reason } => {
            with_kind(Status::failed_precondition(reason.as_str()), INVALID_HANDLE)
        }
        RecoverTaskError::Driver(error) => from_driver_error(error),
    }
}

/// Converts a failed recovery to the host's error.
pub(crate) fn to_recover_error(task_id: &str, status: &Status) -> RecoverTaskError {
    let reason = status.message().to_owned();
    match kind(status) {
        GONE => RecoverTaskError::Gone {
            task_id: task_id.to_owned(),
            reason,
        },
        HANDLE_VERSION => {
            let mut numbers = value(status)
                .split(' ')
                .map(|word| word.parse().unwrap_or(0));
            RecoverTaskError::HandleVersion {
                found: numbers.next().unwrap_or(0),
                supported: numbers.next().unwrap_or(0),
            }
        }
        INVALID_HANDLE => RecoverTaskError::InvalidHandle { reason },
        // Other hosts give up a task when its recovery fails, so foreign drivers use a plain failure to mean that the
        // task is gone.
        _ => match to_driver_error("RecoverTask", status) {
            DriverError::Failed {
                message,
                retry: Retry::Never,
            } => RecoverTaskError::Gone {
                task_id: task_id.to_owned(),
                reason: message,
            },
            error => error.into(),
        },
    }
}

#[cfg(test)]
mod tests;
