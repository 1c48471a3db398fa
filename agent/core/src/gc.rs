//! Which finished allocation is destroyed next.
//!
//! One at a time: after each, the shell measures again, so that collection stops exactly when the
//! thresholds are met. Nothing is deleted for its age; without pressure everything stays. Carrying
//! it out, and asking the driver first, is the shell's.

use muster_domain::id::{AllocId, Timestamp};

/// Thresholds of a node. Names and defaults are Nomad's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GcLimits {
    /// Allocations kept, running and finished: `gc_max_allocs`.
    pub allocs_max: usize,
    /// Percent of the disk in use above which finished ones go: `gc_disk_usage_threshold`.
    pub disk_percent_max: u8,
    /// Percent of the inodes in use above which finished ones go: `gc_inode_usage_threshold`.
    pub inode_percent_max: u8,
}

impl Default for GcLimits {
    fn default() -> Self {
        Self {
            allocs_max: 50,
            disk_percent_max: 80,
            inode_percent_max: 70,
        }
    }
}

/// What the node uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GcUsage {
    /// Allocations, running and finished, and those about to start.
    pub allocs: usize,
    /// Percent of the disk in use.
    pub disk_percent: u8,
    /// Percent of the inodes in use; 0 where the file system has no fixed number.
    pub inode_percent: u8,
}

/// A finished allocation that may go: its last report is committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finished {
    /// The allocation.
    pub alloc_id: AllocId,
    /// When its last task ended.
    pub at: Timestamp,
}

/// Why an allocation goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GcReason {
    /// Somebody asked for everything that may go.
    Forced,
    /// There are more than [`GcLimits::allocs_max`].
    Allocs,
    /// The disk is fuller than [`GcLimits::disk_percent_max`].
    Disk,
    /// More inodes are used than [`GcLimits::inode_percent_max`].
    Inodes,
}

impl GcReason {
    /// For logs and events.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Forced => "forced",
            Self::Allocs => "too many allocations",
            Self::Disk => "disk usage",
            Self::Inodes => "inode usage",
        }
    }
}

/// The reason to collect, if there is one.
#[must_use]
pub fn pressure(usage: GcUsage, limits: GcLimits) -> Option<GcReason> {
    if usage.allocs > limits.allocs_max {
        Some(GcReason::Allocs)
    } else if usage.disk_percent > limits.disk_percent_max {
        Some(GcReason::Disk)
    } else if usage.inode_percent > limits.inode_percent_max {
        Some(GcReason::Inodes)
    } else {
        None
    }
}

/// The allocation to destroy next, and why: the one that finished first, the lower id on a tie.
#[must_use]
pub fn next(
    finished: &[Finished],
    forced: bool,
    usage: GcUsage,
    limits: GcLimits,
) -> Option<(AllocId, GcReason)> {
    let reason = if forced {
        Some(GcReason::Forced)
    } else {
        pressure(usage, limits)
    }?;
    let oldest = finished
        .iter()
        .min_by_key(|alloc| (alloc.at, alloc.alloc_id))?;
    Some((oldest.alloc_id, reason))
}

#[cfg(test)]
mod tests;
