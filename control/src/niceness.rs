//! Threads that yield to others where there is less processor than work.

/// Gives this thread less of the processor where others want it: on Linux niceness is a thread's own. `who` is for whoever
/// reads the log.
pub(crate) fn yield_to_others(niceness: i32, who: &'static str) {
    if let Err(error) = rustix::process::nice(niceness) {
        tracing::debug!(%error, who, "a thread does not yield to others");
    }
}
