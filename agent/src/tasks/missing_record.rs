//! The meaning of a task record that is missing.

/// The meaning of an absent record when no process is found either.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MissingRecordMeaning {
    /// The allocation's own record shows that the start was only about to be made.
    NeverStarted,
    /// The store was lost, but other tasks of the allocation were found: this task ended.
    Ended,
    /// The store was lost, and no part of the allocation was found.
    StoreLost,
    /// The allocation's directories exist. The agent died before the allocation was in its store, or an earlier
    /// store was lost.
    Untraced,
    /// No trace of the allocation exists. The control plane first sent it when it counted the allocation as running
    /// or as unreachable.
    NeverHere,
}
