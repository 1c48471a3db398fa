//! Threads that yield to others on a busy machine.

/// Lowers this thread's share of a contested processor: on Linux each thread has its own niceness. `who` names the
/// thread in the log.
pub(crate) fn yield_to_others(niceness: i32, who: &'static str) {
    if let Err(error) = rustix::process::nice(niceness) {
        tracing::debug!(%error, who, "a thread does not yield to others");
    }
}
