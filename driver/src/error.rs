//! How a driver's calls fail.
//!
//! Starting and recovering have an error of their own, because the agent decides by it what becomes
//! of the task. All other calls about a task share [`TaskError`]; calls about the driver itself
//! fail with [`DriverError`], which the others wrap.

use std::time::Duration;

use thiserror::Error;

/// The error text of Nomad's drivers for an unknown task. It is part of the protocol: hosts compare
/// the text.
pub const TASK_NOT_FOUND: &str = "task not found for given id";

/// The next step of the caller after a failed operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// The same call fails again until somebody changes the job, the node or the call.
    Never,
    /// The same call may succeed later on this node.
    Later,
    /// It cannot succeed here soon, but may on another node.
    ElsewhereNow,
}

/// A failure of the driver or of the way to it.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum DriverError {
    /// Nobody answers at the driver's socket, or the connection broke during the call. Whether a
    /// call that was under way took effect is not known.
    #[error("reach the driver: {reason}")]
    Unavailable {
        /// The report of the connection.
        reason: String,
    },
    /// The driver did not answer in time. Whether the call took effect is not known.
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

    /// The driver has no function `call`.
    pub fn unsupported(call: &str) -> Self {
        Self::Unsupported {
            call: call.to_owned(),
        }
    }
}

/// Why a task was not started. Nothing of it is left behind.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum StartTaskError {
    /// The driver has a task of this id, running or not yet destroyed.
    #[error("start task {task_id}: the driver already has a task of this id; destroy it first")]
    AlreadyStarted {
        /// The id that was to be used.
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
    /// The driver could not be asked.
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

/// Why a task was not recovered. The driver does not know the task afterwards.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum RecoverTaskError {
    /// The task ended while no driver watched. How it ended has to be found out elsewhere (the exit
    /// ledger); processes it left behind may still be in its cgroup.
    #[error("recover task {task_id}: it is gone: {reason}")]
    Gone {
        task_id: String,
        /// The sign that it is gone.
        reason: String,
    },
    /// The handle was made by a version of the driver, newer or older, that this one cannot read.
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
    /// The driver could not be asked, or failed.
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

/// Why an operation on a task failed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum TaskError {
    /// The driver does not know the task: it was never started here, it was destroyed, or the
    /// driver was started again since and the task not yet recovered.
    #[error("{TASK_NOT_FOUND}: {task_id}")]
    NotFound {
        /// The id that was asked for.
        task_id: String,
    },
    /// The task has ended, so that there is nothing to signal or to run a command in.
    #[error("task {task_id} is not running")]
    NotRunning { task_id: String },
    /// The task runs; destroying it needs `force`.
    #[error("task {task_id} is still running; stop it first or destroy it by force")]
    StillRunning { task_id: String },
    /// No signal of this name or number.
    #[error("signal {signal:?} is not known; use a name like SIGTERM or a number")]
    UnknownSignal { signal: String },
    /// The driver could not be asked, or failed.
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

    /// The driver does not know `task_id`.
    pub fn not_found(task_id: &str) -> Self {
        Self::NotFound {
            task_id: task_id.to_owned(),
        }
    }
}
