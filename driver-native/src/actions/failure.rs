//! The failure of an action: its text, its place in the tree, and the sum that a composite makes of several.

/// The weight of a failure for the actions above it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FailureKind {
    /// It tells the client something, also as a part of another failure.
    Shown,
    /// It is told where it stands alone or beside others, and no timeout repeats it.
    Plain,
    /// The action was stopped and left late. Beside others it says nothing.
    Overstayed,
    /// The action was stopped. Beside others it says nothing.
    Cancelled,
}

/// The reason why an action failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) kind: FailureKind,
    pub(crate) text: String,
    /// The action's place in the tree, such as `serial[1].timeout.run`.
    pub(crate) at: String,
    /// The exit code, if a process decided.
    pub(crate) code: Option<i32>,
}

impl Failure {
    pub(crate) fn shown(at: &str, text: impl Into<String>) -> Self {
        Self::new(FailureKind::Shown, at, text)
    }

    pub(crate) fn plain(at: &str, text: impl Into<String>) -> Self {
        Self::new(FailureKind::Plain, at, text)
    }

    pub(crate) fn cancelled(at: &str) -> Self {
        Self::new(FailureKind::Cancelled, at, "cancelled")
    }

    pub(crate) fn overstayed(at: &str) -> Self {
        Self::new(
            FailureKind::Overstayed,
            at,
            "exceeded graceful shutdown interval",
        )
    }

    /// A process that ended with `code`, named by `source`.
    pub(crate) fn exited(at: &str, source: &str, code: i32, out_of_memory: bool) -> Self {
        let memory = if out_of_memory { OUT_OF_MEMORY } else { "" };
        let text = format!("{source}: Exited with status {code}{memory}");
        Self {
            code: Some(code),
            ..Self::shown(at, text)
        }
    }

    fn new(kind: FailureKind, at: &str, text: impl Into<String>) -> Self {
        Self {
            kind,
            text: text.into(),
            at: at.to_owned(),
            code: None,
        }
    }

    /// Joins the failures of one composite: the texts of those that tell something, and the place of the first of them.
    /// `None` for an empty list.
    pub(crate) fn all(failures: Vec<Self>) -> Option<Self> {
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

/// After the status of a process in a task that was out of memory.
pub(crate) const OUT_OF_MEMORY: &str = " (out of memory)";
