//! Reasons for which a body could not be read.

use muster_domain::fault::Fault;

use crate::limits::FAULTS_MAX;

/// One more than the faults that a reader keeps. The last line counts the dropped ones.
const LINES_MAX: usize = FAULTS_MAX + 1;

/// A body is not JSON.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SyntaxError {
    /// The body is empty.
    #[error("Request body is empty")]
    Empty,
    /// The body is malformed.
    #[error("request body: line {line}, column {column}: {reason}")]
    Malformed {
        /// The line of the error, counted from 1.
        line: usize,
        /// The column of the error, counted from 1.
        column: usize,
        reason: String,
    },
}

/// The reason why a job could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadJobError {
    /// The body is not JSON.
    #[error(transparent)]
    Syntax(#[from] SyntaxError),
    /// The body is JSON, but not a valid job.
    #[error("{}", lines(.0))]
    Faults(Vec<Fault>),
}

/// `faults`, one a line; at most [`FAULTS_MAX`] or so, and how many more.
#[must_use]
pub fn lines(faults: &[Fault]) -> String {
    let texts = faults.iter().take(LINES_MAX).map(Fault::to_string);
    let more = faults.len().saturating_sub(LINES_MAX);
    let more = (more > 0).then(|| format!("and {more} more"));
    texts.chain(more).collect::<Vec<_>>().join("\n")
}
