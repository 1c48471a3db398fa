//! The failure of an action: its text, its place in the tree, and the failure of a composite action with several
//! failed children.

/// The weight of a failure for its parent actions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FailureKind {
    /// The text informs the client, also as a part of another failure.
    Shown,
    /// The text appears alone or among the failures of a composite. A timeout does not repeat it.
    Plain,
    /// The action was stopped and ended late. Among other failures its text is omitted.
    StopTimedOut,
    /// The action was stopped. Among other failures its text is omitted.
    Cancelled,
}

/// The reason why an action failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) kind: FailureKind,
    pub(crate) text: String,
    /// The action's place in the tree, such as `serial[1].timeout.run`.
    pub(crate) action_path: String,
    /// The exit code, if a process determined the failure.
    pub(crate) code: Option<i32>,
}

impl Failure {
    pub(crate) fn shown(action_path: &str, text: impl Into<String>) -> Self {
        Self::new(FailureKind::Shown, action_path, text)
    }

    pub(crate) fn plain(action_path: &str, text: impl Into<String>) -> Self {
        Self::new(FailureKind::Plain, action_path, text)
    }

    pub(crate) fn cancelled(action_path: &str) -> Self {
        Self::new(FailureKind::Cancelled, action_path, "cancelled")
    }

    pub(crate) fn stop_timed_out(action_path: &str) -> Self {
        Self::new(
            FailureKind::StopTimedOut,
            action_path,
            "exceeded graceful shutdown interval",
        )
    }

    /// Creates the failure of a process that ended with `code`. The text names the process by `source`.
    pub(crate) fn exited(action_path: &str, source: &str, code: i32, out_of_memory: bool) -> Self {
        let memory = if out_of_memory { OUT_OF_MEMORY } else { "" };
        let text = format!("{source}: Exited with status {code}{memory}");
        Self {
            code: Some(code),
            ..Self::shown(action_path, text)
        }
    }

    fn new(kind: FailureKind, action_path: &str, text: impl Into<String>) -> Self {
        Self {
            kind,
            text: text.into(),
            action_path: action_path.to_owned(),
            code: None,
        }
    }

    /// Joins the failures of one composite action: the texts of the informative failures, and the place of the most
    /// important one. Returns `None` for an empty list.
    pub(crate) fn join(failures: Vec<Self>) -> Option<Self> {
        let is_informative = |failure: &&Self| failure.kind <= FailureKind::Plain;
        let texts: Vec<&str> = failures
            .iter()
            .filter(is_informative)
            .map(|failure| failure.text.as_str())
            .collect();
        let text = texts.join("; ");
        let first = failures.iter().min_by_key(|failure| failure.kind)?;
        Some(Self {
            text: if text.is_empty() {
                first.text.clone()
            } else {
                text
            },
            ..first.clone()
        })
    }
}

/// The text that follows the exit status of a process in a task that was out of memory.
pub(crate) const OUT_OF_MEMORY: &str = " (out of memory)";
