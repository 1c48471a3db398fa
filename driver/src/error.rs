//! The errors of a driver's calls.
//!
//! Starting and recovering each have their own error, because the agent decides from it how to continue with the task.
//! All other calls about a task share [`TaskError`]. Calls about the driver itself fail with [`DriverError`], which
//! the other errors wrap.

use std::time::Duration;

use thiserror::Error;

/// The error text of Nomad's drivers for an unknown task. It is part of the protocol: hosts compare
/// the text.
pub const TASK_NOT_FOUND: &str = "task not found for given id";

/// The next step of the caller after a failed operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// The same call fails again until the job, the node or the call is changed.
    Never,
    /// The same call may succeed later on this node.
    Later,
    /// The call will not succeed here soon, but may succeed on another node.
    ElsewhereNow,
}

/// A failure of the driver or of the connection to it.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum DriverError {
    /// No process answers at the driver's socket, or the connection broke during the call. It is unknown whether an
    /// open call took effect.
    #[error("reach the driver: {reason}")]
    Unavailable {
        /// The report of the connection.
        reason: String,
    },
    /// The driver did not answer in time. It is unknown whether the call took effect.
    #[error("get an answer of the driver to {call} within {after:?}")]
    TimedOut {
        /// Name of the call.
        call: &'static str,
        /// The deadline that passed.
        after: Duration,
    },
    /// The driver has no such function.
    #[error("{call}: this driver does not support it")]
    Unsupported {
        /// Name of the call.
        call: String,
    },
    /// The driver sent something that its protocol does not allow.
    #[error("understand the driver: {reason}")]
    Protocol {
        /// The fault of the message.
        reason: String,
    },
    /// The driver reported a failure.
    #[error("{message}")]
    Failed {
        message: String,
        /// The driver's advice about another attempt.
        retry: Retry,
    },
}

impl DriverError {
    /// Returns the next step of the caller.
    pub fn retry(&self) -> Retry {
        match self {
            Self::Unavailable { .. } | Self::TimedOut { .. } => Retry::Later,
            Self::Unsupported { .. } | Self::Protocol { .. } => Retry::Never,
            Self::Failed { retry, .. } => *retry,
        }
    }

    /// Creates the error for a driver without the function `call`.
    pub fn unsupported(call: &str) -> Self {
        Self::Unsupported {
            call: call.to_owned(),
        }
    }
}

/// The reason why a task was not started. Nothing of the task is left behind.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum StartTaskError {
    /// The driver has a task of this id, running or not yet destroyed.
    #[error("start task {task_id}: the driver already has a task of this id; destroy it first")]
    AlreadyStarted {
        /// The id of the refused task.
        task_id: String,
    },
    /// The same configuration cannot start on this node.
    #[error("{message}")]
    Fatal {
        /// The failure, its place and its cause.
        message: String,
    },
    /// The same configuration may start later.
    #[error("{message}")]
    Recoverable {
        /// The failure, its place and its cause.
        message: String,
    },
    /// The call to the driver failed.
    #[error(transparent)]
    Driver(#[from] DriverError),
}

impl StartTaskError {
    /// Returns the next step of the caller.
    pub fn retry(&self) -> Retry {
        match self {
            Self::AlreadyStarted { .. } | Self::Fatal { .. } => Retry::Never,
            Self::Recoverable { .. } => Retry::Later,
            Self::Driver(error) => error.retry(),
        }
    }
}

/// The reason why a task was not recovered. The driver has no record of the task afterwards.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum RecoverTaskError {
    /// The task ended while no driver watched. The exit ledger may have its exit status. Processes that the task left
    /// behind may still be in its cgroup.
    #[error("recover task {task_id}: it is gone: {reason}")]
    Gone {
        task_id: String,
        /// The evidence that the task is gone.
        reason: String,
    },
    /// Another version of the driver, newer or older, made the handle, and this version cannot read it.
    #[error(
        "recover task: its handle has version {found}, which this driver, whose own have {supported}, cannot read; start the version of the driver that made it"
    )]
    HandleVersion {
        /// Version in the handle.
        found: i32,
        /// Version of the handles that the driver makes.
        supported: i32,
    },
    /// The handle is damaged or belongs to another driver.
    #[error("recover task: its handle cannot be read: {reason}")]
    InvalidHandle {
        /// The fault in it.
        reason: String,
    },
    /// The call to the driver failed, or the driver failed.
    #[error(transparent)]
    Driver(#[from] DriverError),
}

impl RecoverTaskError {
    /// Returns the next step of the caller.
    pub fn retry(&self) -> Retry {
        match self {
            Self::Gone { .. } | Self::HandleVersion { .. } | Self::InvalidHandle { .. } => {
                Retry::Never
            }
            Self::Driver(error) => error.retry(),
        }
    }
}

/// The reason why an operation on a task failed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum TaskError {
    /// The driver has no record of the task. The task was never started here, it was destroyed, or the driver
    /// restarted and the task is not recovered yet.
    #[error("{TASK_NOT_FOUND}: {task_id}")]
    NotFound {
        /// The id in the request.
        task_id: String,
    },
    /// The task has ended, so it can neither be signalled nor run a command.
    #[error("task {task_id} is not running")]
    NotRunning { task_id: String },
    /// The task is running; destroying it requires `force`.
    #[error("task {task_id} is still running; stop it first or destroy it by force")]
    StillRunning { task_id: String },
    /// No signal of this name or number.
    #[error("signal {signal:?} is not known; use a name like SIGTERM or a number")]
    UnknownSignal { signal: String },
    /// The call to the driver failed, or the driver failed.
    #[error(transparent)]
    Driver(#[from] DriverError),
}

impl TaskError {
    /// Returns the next step of the caller.
    pub fn retry(&self) -> Retry {
        match self {
            Self::NotFound { .. }
            | Self::NotRunning { .. }
            | Self::StillRunning { .. }
            | Self::UnknownSignal { .. } => Retry::Never,
            Self::Driver(error) => error.retry(),
        }
    }

    /// Creates the error for an unknown `task_id`.
    pub fn not_found(task_id: &str) -> Self {
        Self::NotFound {
            task_id: task_id.to_owned(),
        }
    }
}
