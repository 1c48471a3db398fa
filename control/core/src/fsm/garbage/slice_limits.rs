//! Bounds of one slice of a collection.

use crate::limits;

/// The bounds of the work of one slice. Every server must apply the same bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SliceLimits {
    /// Largest number of freed objects, counted in allocations by their cost.
    pub freed_max: usize,
    /// Largest number of objects that the slice looks at. With less than three, a slice may not reach an allocation
    /// below a job, and the collection never ends.
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
