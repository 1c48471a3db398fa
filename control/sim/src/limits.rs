//! Bounds of the simulation.

/// Entries after which a run that does not come to rest is a failure: ten times what any seed needed.
pub const ENTRIES_MAX: u64 = 200_000;
/// Lines of the trace that a failure shows.
pub const TRACE_TAIL: usize = 40;
/// Outcomes that wait for the applier before it merges them, at most.
pub const BATCH_MAX: usize = 8;
/// Workers that schedule at the same time.
pub const WORKERS: usize = 3;
