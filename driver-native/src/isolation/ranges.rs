//! The host ids of strict tasks.
//!
//! Each strict task has a separate range of ids. Two strict tasks cannot access each other's files or processes, even
//! if they share paths or pids. A task gets the same range at every start, unless another task has taken it, so that
//! it still owns its files.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};

use crate::limits;

/// Ranges that are in use.
#[derive(Clone, Debug, Default)]
pub(crate) struct IdRanges(Arc<Mutex<BTreeSet<u32>>>);

/// A range. It is reserved while the driver has its task.
#[derive(Debug)]
pub(crate) struct Range {
    ordinal: u32,
    ranges: IdRanges,
}

impl IdRanges {
    /// Reserves a free range for the task called `name`; the same name gets the same range if possible. Returns `None`
    /// when all ranges are in use.
    pub(crate) fn reserve(&self, name: &str) -> Option<Range> {
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        let count = u64::from(limits::ID_RANGES_MAX);
        let first = u32::try_from(hasher.finish() % count).unwrap_or_default();
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let ordinal = (first..limits::ID_RANGES_MAX)
            .chain(0..first)
            .find(|ordinal| !taken.contains(ordinal))?;
        taken.insert(ordinal);
        Some(Range {
            ordinal,
            ranges: self.clone(),
        })
    }

    /// Reserves the range that a recovered task already has.
    pub(crate) fn reserve_ordinal(&self, ordinal: u32) -> Range {
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        taken.insert(ordinal);
        Range {
            ordinal,
            ranges: self.clone(),
        }
    }
}

impl Range {
    /// Returns the number of the range, for storing.
    pub(crate) fn ordinal(&self) -> u32 {
        self.ordinal
    }

    /// Returns the host's id for id 0 in the task.
    pub(crate) fn first(&self) -> u32 {
        limits::FIRST_ID + self.ordinal * limits::IDS_PER_TASK
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        let taken = &self.ranges.0;
        taken
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&self.ordinal);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn task_keeps_its_range_and_shares_none() {
        let ranges = IdRanges::default();
        let first = ranges.reserve("alloc/web").unwrap();
        let ordinal = first.ordinal();

        let twin = ranges.reserve("alloc/web").unwrap();
        assert_ne!(twin.ordinal(), ordinal);
        drop(first);
        assert_eq!(ranges.reserve("alloc/web").unwrap().ordinal(), ordinal);
    }

    #[test]
    fn last_range_ends_below_reserved_ids() {
        let last = ranges_end();

        assert!(last < u64::from(i32::MAX.unsigned_abs()));
    }

    fn ranges_end() -> u64 {
        u64::from(limits::FIRST_ID)
            + u64::from(limits::ID_RANGES_MAX) * u64::from(limits::IDS_PER_TASK)
    }
}
