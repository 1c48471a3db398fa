//! Reschedule penalty: an instance that failed on a node is placed elsewhere if it can be.

/// The score of the node on which the instance failed.
pub(super) const SCORE: f64 = -1.0;
