//! Starts of tasks that failed.

/// A start that failed and was undone. Remains that its driver did not destroy are kept as a
/// [`Leftover`](crate::storage::leftovers::Leftover). The log names remains that the kernel did not release.
#[derive(Debug)]
pub(crate) struct StartFailure {
    /// The reason, as text.
    pub(crate) reason: String,
    pub(crate) next: StartRetry,
}

/// The step after a failed start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StartRetry {
    /// The same start may succeed later.
    Retry,
    GiveUp,
    /// The task to take over is gone.
    StartAnew,
}

impl StartFailure {
    pub(crate) fn fatal(reason: impl ToString) -> Self {
        Self {
            reason: reason.to_string(),
            next: StartRetry::GiveUp,
        }
    }

    pub(crate) fn retryable(reason: impl ToString) -> Self {
        Self {
            reason: reason.to_string(),
            next: StartRetry::Retry,
        }
    }
}
