//! Decides which finished allocation is destroyed next.
//!
//! Allocations are destroyed one at a time. The shell measures again after each destroy, so collection stops exactly
//! when the thresholds are met. No allocation is destroyed because of its age; without pressure all stay. The shell
//! carries out the destroy and asks the driver first.
//!
//! A destroy under way counts as done for the number of allocations. Space is measured, so under pressure of space no
//! allocation is chosen while a destroy or a deletion is under way. Two at once could free more than was needed. An
//! allocation whose destroy was refused still counts as present, because a retry may be refused again. Other
//! allocations are chosen meanwhile.

mod report_queue;
mod rounds;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use muster_domain::id::{AllocId, Timestamp};
use muster_domain::node::Thresholds;

use crate::limits::{DESTROY_PAUSE_MAX, DESTROY_PAUSE_MIN};

pub use muster_domain::node::{GcReason, KeptReason};
pub use report_queue::GcReportQueue;
pub use rounds::{GcReading, GcRoundTracker};

/// Thresholds of a node. Names and defaults are Nomad's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GcLimits {
    /// Allocations kept, running and finished: `gc_max_allocs`.
    pub allocs_max: usize,
    /// Percent of the disk in use from which on finished allocations are destroyed: `gc_disk_usage_threshold`.
    pub disk_threshold: u8,
    /// Percent of the inodes in use from which on finished allocations are destroyed: `gc_inode_usage_threshold`.
    pub inode_threshold: u8,
}

impl GcLimits {
    /// The first limit that `space` exceeds; `None` if it exceeds none.
    #[must_use]
    pub fn exceeded(&self, space: &GcSpace) -> Option<GcReason> {
        if space.disk_percent >= self.disk_threshold {
            Some(GcReason::Disk)
        } else if space.inode_percent >= self.inode_threshold {
            Some(GcReason::Inodes)
        } else {
            None
        }
    }
}

impl From<GcLimits> for Thresholds {
    fn from(limits: GcLimits) -> Self {
        Self {
            allocs_max: limits.allocs_max as u64,
            disk_percent: limits.disk_threshold,
            inode_percent: limits.inode_threshold,
        }
    }
}

impl Default for GcLimits {
    fn default() -> Self {
        Self {
            allocs_max: 50,
            disk_threshold: 80,
            inode_threshold: 70,
        }
    }
}

/// Settings of collection, with Nomad's names and defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GcConfig {
    pub limits: GcLimits,
    /// `gc_interval`: time between two checks of the thresholds.
    pub interval: Duration,
    /// `gc_parallel_destroys`: allocations destroyed at a time; 0 counts as 1.
    pub parallel_destroys: usize,
}

impl Default for GcConfig {
    fn default() -> Self {
        Self {
            limits: GcLimits::default(),
            interval: Duration::from_mins(1),
            parallel_destroys: 2,
        }
    }
}

/// The use of the node's file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GcSpace {
    /// Percent of the disk in use.
    pub disk_percent: u8,
    /// Percent of the inodes in use; 0 where the file system has no fixed number.
    pub inode_percent: u8,
    /// Whether a destroyed allocation is still being deleted. Space will then grow without a further destroy.
    pub deleting: bool,
}

/// The work that collection has done, and the work that is left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GcState {
    /// Finished allocations that still exist.
    pub finished: usize,
    /// Allocations that are being destroyed.
    pub under_way: usize,
    /// Allocations that were refused and are tried again.
    pub refused: usize,
    /// Allocations destroyed since the agent's start, by reason.
    pub destroyed: BTreeMap<GcReason, u64>,
    /// Destroys that a driver or the kernel refused since the agent's start, and destroys of allocations whose driver
    /// the node has lost.
    pub refusals: u64,
    /// The time of the newest destroy, and its reason.
    pub last: Option<(Timestamp, GcReason)>,
}

/// A destroy that was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DestroyBackoff {
    pause: Duration,
    /// The destroy is not tried again before this time.
    until: Timestamp,
}

/// Finished allocations, and which of them are being destroyed.
#[derive(Debug)]
pub struct Collector {
    config: GcConfig,
    /// The finished allocations in the order of their end, the lower id first on a tie.
    order: BTreeSet<(Timestamp, AllocId)>,
    finished: BTreeMap<AllocId, Timestamp>,
    /// Destroys under way that the collector chose, with the reason.
    chosen: BTreeMap<AllocId, GcReason>,
    /// Destroys under way of allocations that the control plane has forgotten.
    removed: BTreeSet<AllocId>,
    /// Allocations that are to be destroyed by request.
    forced: BTreeSet<AllocId>,
    refused: BTreeMap<AllocId, DestroyBackoff>,
    destroyed: BTreeMap<GcReason, u64>,
    refusals: u64,
    last: Option<(Timestamp, GcReason)>,
}

impl Collector {
    /// Creates a collector that has no allocation to destroy.
    #[must_use]
    pub fn new(config: GcConfig) -> Self {
        Self {
            config,
            order: BTreeSet::new(),
            finished: BTreeMap::new(),
            chosen: BTreeMap::new(),
            removed: BTreeSet::new(),
            forced: BTreeSet::new(),
            refused: BTreeMap::new(),
            destroyed: BTreeMap::new(),
            refusals: 0,
            last: None,
        }
    }

    /// Takes in that no process of an allocation has run since `at`.
    pub fn handle_finished(&mut self, alloc_id: AllocId, at: Timestamp) {
        if let Some(before) = self.finished.insert(alloc_id, at) {
            self.order.remove(&(before, alloc_id));
        }
        self.order.insert((at, alloc_id));
    }

    /// Marks all finished allocations for destruction and returns them. Refused destroys are retried at once.
    pub fn handle_forced(&mut self) -> BTreeSet<AllocId> {
        let finished: BTreeSet<AllocId> = self.finished.keys().copied().collect();
        self.forced.extend(&finished);
        self.refused.clear();
        finished
    }

    /// Takes in that the control plane has forgotten an allocation. It is stopped and destroyed at once, no matter
    /// which other destroys are under way.
    pub fn handle_removed(&mut self, alloc_id: AllocId) {
        if !self.chosen.contains_key(&alloc_id) {
            self.removed.insert(alloc_id);
        }
    }

    /// Takes in that the driver or the kernel refused a destroy. Other allocations may be destroyed meanwhile.
    pub fn handle_refused(&mut self, alloc_id: AllocId, now: Timestamp) {
        self.refusals += 1;
        // The runner of an allocation that the control plane has forgotten repeats the destroy itself.
        self.chosen.remove(&alloc_id);
        let pause = self
            .refused
            .get(&alloc_id)
            .map_or(DESTROY_PAUSE_MIN, |refusal| refusal.pause * 2)
            .min(DESTROY_PAUSE_MAX);
        let until = now.plus(pause);
        self.refused
            .insert(alloc_id, DestroyBackoff { pause, until });
    }

    /// Takes in a destroy without its driver. The node has lost the driver of a task, and that driver did not release
    /// its resources. The allocation is destroyed all the same.
    pub fn handle_abandoned(&mut self) {
        self.refusals += 1;
    }

    /// Takes in that an allocation was removed completely.
    pub fn handle_destroyed(&mut self, alloc_id: AllocId, now: Timestamp) {
        if let Some(at) = self.finished.remove(&alloc_id) {
            self.order.remove(&(at, alloc_id));
        }
        self.forced.remove(&alloc_id);
        self.refused.remove(&alloc_id);
        let removed = self.removed.remove(&alloc_id);
        let removed = removed.then_some(GcReason::Removed);
        if let Some(reason) = self.chosen.remove(&alloc_id).or(removed) {
            *self.destroyed.entry(reason).or_default() += 1;
            self.last = Some((now, reason));
        }
    }

    /// The thresholds of the node.
    #[must_use]
    pub fn limits(&self) -> GcLimits {
        self.config.limits
    }

    /// Returns the allocation to destroy now, and the reason. `allocs` is the number of the node's allocations, with
    /// those about to start. `may_go` decides whether an allocation may be destroyed. `space` measures the file system,
    /// and is called only if the result matters.
    pub fn poll_destroy(
        &mut self,
        allocs: usize,
        may_go: impl Fn(AllocId) -> bool,
        space: impl FnOnce() -> GcSpace,
        now: Timestamp,
    ) -> Option<(AllocId, GcReason)> {
        if self.chosen.len() >= self.config.parallel_destroys.max(1) {
            return None;
        }
        let choice = match self.oldest_forced(&may_go, now) {
            Some(alloc_id) => Some((alloc_id, GcReason::Forced)),
            None => self.pressure(allocs, space).and_then(|reason| {
                let alloc_id = self.oldest(may_go, now)?;
                Some((alloc_id, reason))
            }),
        };
        self.chosen.extend(choice);
        choice
    }

    /// Returns the time at which a refused destroy may be tried again, if that is after `now`.
    #[must_use]
    pub fn poll_timeout(&self, now: Timestamp) -> Option<(Timestamp, &'static str)> {
        let times = self.refused.values().map(|refusal| refusal.until);
        let next = times.filter(|until| *until > now).min();
        next.map(|until| (until, "destroy what was refused"))
    }

    /// The time between two checks of the thresholds.
    #[must_use]
    pub fn interval(&self) -> Duration {
        self.config.interval
    }

    /// Whether the driver or the kernel refused the last destroy of this allocation.
    #[must_use]
    pub fn is_refused(&self, alloc_id: AllocId) -> bool {
        self.refused.contains_key(&alloc_id)
    }

    /// The number of allocations that a forced collection would destroy, and the number that would stay, by reason.
    /// `allocs` is the number of all allocations. `kept` gives the reason why a finished allocation may not be
    /// destroyed.
    #[must_use]
    pub fn outlook(
        &self,
        allocs: usize,
        kept: impl Fn(AllocId) -> Option<KeptReason>,
    ) -> (u64, BTreeMap<KeptReason, u64>) {
        let mut stay = BTreeMap::new();
        let mut keep = |reason, count: u64| {
            if count > 0 {
                *stay.entry(reason).or_default() += count;
            }
        };
        let running = allocs.saturating_sub(self.finished.len());
        keep(KeptReason::Running, running as u64);
        let mut free = 0;
        for alloc_id in self.finished.keys() {
            if self.is_refused(*alloc_id) {
                keep(KeptReason::Refused, 1);
            } else if !self.is_under_way(*alloc_id)
                && let Some(reason) = kept(*alloc_id)
            {
                keep(reason, 1);
            } else {
                free += 1;
            }
        }
        (free, stay)
    }

    /// The number of allocations that stay for the time being, by reason. `allocs` is the number of all allocations.
    /// `kept` gives the reason why a finished allocation may not be destroyed. Allocations that are being destroyed do
    /// not count as staying.
    #[must_use]
    pub fn kept(
        &self,
        allocs: usize,
        kept: impl Fn(AllocId) -> Option<KeptReason>,
    ) -> BTreeMap<KeptReason, u64> {
        let going = self
            .finished
            .keys()
            .filter(|alloc_id| self.is_under_way(**alloc_id) && !self.is_refused(**alloc_id));
        let going = going.count() as u64;
        let (free, mut stay) = self.outlook(allocs, kept);
        let unpressed = free.saturating_sub(going);
        if unpressed > 0 {
            stay.insert(KeptReason::BelowThresholds, unpressed);
        }
        stay
    }

    /// Returns the work that collection has done, and the work that is left.
    #[must_use]
    pub fn state(&self) -> GcState {
        GcState {
            finished: self.finished.len(),
            under_way: self.chosen.len() + self.removed.len(),
            refused: self.refused.len(),
            destroyed: self.destroyed.clone(),
            refusals: self.refusals,
            last: self.last,
        }
    }

    /// The reason to collect, if there is one.
    fn pressure(&self, allocs: usize, space: impl FnOnce() -> GcSpace) -> Option<GcReason> {
        let limits = self.config.limits;
        // An allocation that still runs while it is removed counts until it is gone, because its stop may take long.
        let leaving = self.chosen.keys().chain(&self.removed);
        let leaving = leaving
            .filter(|alloc_id| self.is_leaving(**alloc_id))
            .count();
        if allocs.saturating_sub(leaving) > limits.allocs_max {
            return Some(GcReason::Allocs);
        }
        if self.finished.is_empty() || leaving > 0 {
            return None;
        }
        let space = space();
        limits.exceeded(&space).filter(|_| !space.deleting)
    }

    fn is_under_way(&self, alloc_id: AllocId) -> bool {
        self.chosen.contains_key(&alloc_id) || self.removed.contains(&alloc_id)
    }

    /// Whether an allocation is being destroyed and was not refused.
    fn is_leaving(&self, alloc_id: AllocId) -> bool {
        self.finished.contains_key(&alloc_id) && !self.is_refused(alloc_id)
    }

    /// The allocation that finished first, of those whose destruction was requested and that may be destroyed.
    fn oldest_forced(&self, may_go: impl Fn(AllocId) -> bool, now: Timestamp) -> Option<AllocId> {
        if self.forced.is_empty() {
            return None;
        }
        let wanted = |alloc_id| self.forced.contains(&alloc_id) && may_go(alloc_id);
        self.oldest(wanted, now)
    }

    /// The allocation that finished first, of those that may be destroyed and that `wanted` accepts.
    fn oldest(&self, wanted: impl Fn(AllocId) -> bool, now: Timestamp) -> Option<AllocId> {
        let may_go = |alloc_id: &AllocId| {
            let refused = self.refused.get(alloc_id);
            !self.is_under_way(*alloc_id)
                && refused.is_none_or(|refusal| refusal.until <= now)
                && wanted(*alloc_id)
        };
        let mut oldest = self.order.iter().map(|(_, alloc_id)| *alloc_id);
        oldest.find(may_go)
    }
}

#[cfg(test)]
mod tests;
