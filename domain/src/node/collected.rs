//! Results of a node's collection of finished allocations, as its agent reports them.
//!
//! Bounded by its type: reasons are listed, so that an agent cannot make a report large.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::id::Timestamp;

/// The reason for which an allocation goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum GcReason {
    /// Somebody asked for everything that may go.
    Forced,
    /// The control plane has forgotten it.
    Removed,
    /// The node has more of them than `gc_max_allocs`.
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

/// The reason for which an allocation stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum KeptReason {
    /// It has not finished.
    Running,
    /// Its end is not yet known to the control plane.
    Unreported,
    /// Another gets its data, here or on another node, and has not got them yet.
    DataAwaited,
    /// Its driver, or the kernel, did not let go of what it had.
    Refused,
    /// It has finished, and nothing asks for its room. Never said where somebody asked for everything that may go.
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
    /// Time of the choice of the first destroy. No two reports of a node have the same: one that comes twice is known
    /// by it.
    pub began_at: Timestamp,
    /// Time at which the last was over and its remains were deleted, or the time for one report.
    pub ended_at: Timestamp,
    /// Number of collections in the report.
    pub rounds: u32,
    /// Time in which any was under way.
    pub took: Duration,
    /// Allocations destroyed, by reason.
    pub destroyed: BTreeMap<GcReason, u64>,
    /// Destroys that a driver or the kernel refused; they are tried again.
    pub refusals: u64,
    /// Files and directories deleted: inodes given back.
    pub inodes: u64,
    /// Bytes deleted with them.
    pub bytes: u64,
    /// Deletions that failed; they are tried again.
    pub delete_failures: u64,
    /// Allocations that stay at the end, by reason.
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
    /// One report of this and of `later`, which came after it: counts add up, what is there is as `later` says.
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

    /// Whether somebody asked for it.
    #[must_use]
    pub fn is_forced(&self) -> bool {
        self.destroyed.contains_key(&GcReason::Forced)
    }
}
