//! Bounds of one slice of a collection.

use crate::limits;

/// How much one slice does at most. Every server must apply with the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SliceLimits {
    /// Largest number of freed objects, counted in allocations by their cost.
    pub freed_max: usize,
    /// Objects looked at. With less than three a slice may not come to an allocation below a job, and never ends.
    pub looked_at_max: usize,
}

impl Default for SliceLimits {
    fn default() -> Self {
        Self {
            freed_max: limits::GC_SLICE_MAX,
            looked_at_max: limits::GC_LOOKED_AT_MAX,
        }
    }
}
