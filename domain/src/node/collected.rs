//! Results of a node's garbage collection of finished allocations, as its agent reports them.
//!
//! The type bounds the size of a report: it counts allocations by a fixed list of reasons.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::id::Timestamp;

/// The reason to destroy an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum GcReason {
    /// An operator forced the collection of all finished allocations.
    Forced,
    /// The control plane has deleted the allocation.
    Removed,
    /// The node has more allocations than `gc_max_allocs`.
    Allocs,
    /// The disk is as full as `gc_disk_usage_threshold`.
    Disk,
    /// As many inodes are used as `gc_inode_usage_threshold`.
    Inodes,
}

crate::text_enum!(pub GcReason {
    Forced => "forced",
    Removed => "removed by the control plane",
    Allocs => "too many allocations",
    Disk => "disk usage",
    Inodes => "inode usage",
});

/// The reason to keep an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum KeptReason {
    /// The allocation has not finished.
    Running,
    /// The agent has not yet reported the end to the control plane.
    Unreported,
    /// Another allocation, here or on another node, has yet to receive the data.
    DataAwaited,
    /// The driver or the kernel did not release the allocation's resources.
    Refused,
    /// The allocation has finished, and no threshold is exceeded. A forced collection never reports this reason.
    BelowThresholds,
}

crate::text_enum!(pub KeptReason {
    Running => "not finished",
    Unreported => "its end is not yet known to the servers",
    DataAwaited => "its data go to its successor",
    Refused => "its driver or the kernel did not release it",
    BelowThresholds => "no threshold is exceeded",
});

/// The result of one collection, or of several that could not be reported one by one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeCollected {
    /// Time at which the first allocation was chosen. It is unique among the reports of a node, and so identifies a
    /// repeated report.
    pub began_at: Timestamp,
    /// Time at which the last collection was over and its files were deleted, or the time for one report.
    pub ended_at: Timestamp,
    /// Number of collections in the report.
    pub rounds: u32,
    /// Total time in which a collection ran.
    pub took: Duration,
    /// Allocations destroyed, by reason.
    pub destroyed: BTreeMap<GcReason, u64>,
    /// Destroys that a driver or the kernel refused; they are tried again.
    pub refusals: u64,
    /// Files and directories deleted: inodes freed.
    pub inodes: u64,
    /// Bytes deleted with them.
    pub bytes: u64,
    /// Deletions that failed; they are tried again.
    pub delete_failures: u64,
    /// Allocations that are kept at the end, by reason.
    pub kept: BTreeMap<KeptReason, u64>,
    /// Thresholds at which the node collects.
    pub thresholds: Thresholds,
    /// Percent of the disk in use at the end.
    pub disk_percent: u8,
    /// Percent of the inodes in use at the end.
    pub inode_percent: u8,
}

/// The thresholds at which a node collects, in Nomad's terms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Thresholds {
    /// `gc_max_allocs`.
    pub allocs_max: u64,
    /// `gc_disk_usage_threshold`, in percent.
    pub disk_percent: u8,
    /// `gc_inode_usage_threshold`, in percent.
    pub inode_percent: u8,
}

impl NodeCollected {
    /// Merges this report with `later`. Counts add up; current values come from `later`.
    #[must_use]
    pub fn and(self, later: Self) -> Self {
        let mut destroyed = self.destroyed;
        for (reason, count) in later.destroyed {
            let all = destroyed.entry(reason).or_default();
            *all = all.saturating_add(count);
        }
        Self {
            began_at: self.began_at,
            ended_at: later.ended_at,
            rounds: self.rounds.saturating_add(later.rounds),
            took: self.took.saturating_add(later.took),
            destroyed,
            refusals: self.refusals.saturating_add(later.refusals),
            inodes: self.inodes.saturating_add(later.inodes),
            bytes: self.bytes.saturating_add(later.bytes),
            delete_failures: self.delete_failures.saturating_add(later.delete_failures),
            kept: later.kept,
            thresholds: later.thresholds,
            disk_percent: later.disk_percent,
            inode_percent: later.inode_percent,
        }
    }

    /// Whether an operator forced the collection.
    #[must_use]
    pub fn is_forced(&self) -> bool {
        self.destroyed.contains_key(&GcReason::Forced)
    }
}
