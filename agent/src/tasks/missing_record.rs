//! The meaning of a task record that is missing.

/// The meaning of an absent record when no process is found either.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MissingRecordMeaning {
    /// The allocation's own record says that the start was about to be made.
    NeverStarted,
    /// The store was lost, but other tasks of the allocation were found: this one ended.
    Ended,
    /// The store was lost, and nothing of the allocation was found.
    StoreLost,
    /// Its directories are there. The agent died before the allocation was in its store, or an earlier store was lost.
    Untraced,
    /// There is nothing of it at all: it was told of for the first time when the control plane took it for running or
    /// for out of reach.
    NeverHere,
}
