//! Carries out collection of finished allocations; which one goes next is decided in `agent-core`.
//!
//! A destroy that is under way counts as done for the number of allocations. Space is measured, so
//! under pressure of space only one is under way at a time: two could free more than was needed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use muster_agent_core::gc::{Finished, GcLimits, GcReason, GcUsage, next};
use muster_domain::id::{AllocId, Timestamp};
use muster_wire::rpc::NodeReply;
use tokio::sync::mpsc;

use crate::fingerprint::DiskUsage;
use crate::node::Event;

/// Settings of collection, with Nomad's names and defaults.
#[derive(Clone, Copy, Debug)]
pub struct GcConfig {
    /// Thresholds.
    pub limits: GcLimits,
    /// `gc_interval`: time between two looks at the thresholds.
    pub interval: Duration,
    /// `gc_parallel_destroys`.
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

/// Finished allocations and what is being destroyed.
#[derive(Debug)]
pub(crate) struct Collector {
    config: GcConfig,
    finished: BTreeMap<AllocId, Timestamp>,
    under_way: BTreeSet<AllocId>,
    forced: bool,
}

impl Collector {
    /// With nothing to collect.
    pub(crate) fn new(config: GcConfig) -> Self {
        Self {
            config,
            finished: BTreeMap::new(),
            under_way: BTreeSet::new(),
            forced: false,
        }
    }

    /// An allocation has finished.
    pub(crate) fn finished(&mut self, alloc_id: AllocId, at: Timestamp) {
        self.finished.insert(alloc_id, at);
    }

    /// An allocation is gone.
    pub(crate) fn destroyed(&mut self, alloc_id: AllocId) {
        self.finished.remove(&alloc_id);
        self.under_way.remove(&alloc_id);
        self.end_force();
    }

    /// Everything that has finished by now is to go.
    pub(crate) fn force(&mut self) {
        self.forced = true;
        self.end_force();
    }

    /// What to destroy now. `allocs` counts all of the node's, `told` says whose last report is
    /// committed, `disk` measures.
    pub(crate) fn step(
        &mut self,
        allocs: usize,
        told: impl Fn(AllocId) -> bool,
        disk: impl Fn() -> DiskUsage,
    ) -> Vec<(AllocId, GcReason)> {
        let mut chosen = Vec::new();
        let mut candidates: Vec<Finished> = self
            .finished
            .iter()
            .filter(|(alloc_id, _)| !self.under_way.contains(alloc_id) && told(**alloc_id))
            .map(|(alloc_id, at)| Finished {
                alloc_id: *alloc_id,
                at: *at,
            })
            .collect();
        while self.under_way.len() < self.config.parallel_destroys.max(1) {
            let DiskUsage {
                percent,
                inode_percent,
                ..
            } = disk();
            let usage = GcUsage {
                allocs: allocs.saturating_sub(self.under_way.len()),
                disk_percent: percent,
                inode_percent,
            };
            let choice = next(&candidates, self.forced, usage, self.config.limits);
            let Some((alloc_id, reason)) = choice else {
                break;
            };
            let measured = matches!(reason, GcReason::Disk | GcReason::Inodes);
            if measured && !self.under_way.is_empty() {
                break;
            }
            candidates.retain(|candidate| candidate.alloc_id != alloc_id);
            self.under_way.insert(alloc_id);
            chosen.push((alloc_id, reason));
        }
        chosen
    }

    /// How often to look.
    pub(crate) fn interval(&self) -> Duration {
        self.config.interval
    }

    fn end_force(&mut self) {
        self.forced = self.forced && !self.finished.is_empty();
    }
}

/// Begins a collection of everything that is over, for a server that asks.
pub(crate) async fn collect(node: &mpsc::Sender<Event>, dry_run: bool) -> NodeReply {
    let failed = |reason: &str| NodeReply::Failed {
        reason: reason.to_owned(),
        not_found: false,
    };
    if dry_run {
        return failed("this agent cannot say what it would destroy");
    }
    if node.send(Event::CollectGarbage).await.is_err() {
        return failed("the agent is stopping");
    }
    NodeReply::Collected {
        freed: 0,
        kept: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use muster_domain::id::LogIndex;

    use super::*;

    fn id(name: u32) -> AllocId {
        AllocId::at(LogIndex(1), name)
    }

    fn collector(finished: u32, allocs_max: usize) -> Collector {
        let limits = GcLimits {
            allocs_max,
            ..GcLimits::default()
        };
        let mut collector = Collector::new(GcConfig {
            limits,
            ..GcConfig::default()
        });
        for name in 0..finished {
            collector.finished(id(name), Timestamp(name.into()));
        }
        collector
    }

    fn idle_disk() -> DiskUsage {
        DiskUsage::default()
    }

    /// Destroys as the node does: at most two at a time, the first chosen ends first.
    fn drain(collector: &mut Collector, mut allocs: usize, disk: impl Fn() -> DiskUsage) -> usize {
        let mut queue = collector.step(allocs, |_| true, &disk);
        while !queue.is_empty() {
            let (alloc_id, _) = queue.remove(0);
            collector.destroyed(alloc_id);
            allocs -= 1;
            queue.extend(collector.step(allocs, |_| true, &disk));
        }
        allocs
    }

    #[test]
    fn parallel_destroys_do_not_take_too_many() {
        let mut collector = collector(1_000, 50);

        assert_eq!(drain(&mut collector, 1_000, idle_disk), 50);
    }

    #[test]
    fn at_most_two_are_under_way() {
        let mut collector = collector(10, 0);

        assert_eq!(collector.step(10, |_| true, idle_disk).len(), 2);
        assert_eq!(collector.step(10, |_| true, idle_disk).len(), 0);
    }

    #[test]
    fn space_is_measured_after_each() {
        let mut collector = collector(10, 50);
        let full = || DiskUsage {
            percent: 90,
            ..DiskUsage::default()
        };

        assert_eq!(collector.step(10, |_| true, full).len(), 1);
    }

    #[test]
    fn what_is_not_told_stays() {
        let mut collector = collector(3, 0);
        collector.force();

        let chosen = collector.step(3, |alloc_id| alloc_id == id(2), idle_disk);

        assert_eq!(chosen, [(id(2), GcReason::Forced)]);
    }

    #[test]
    fn force_takes_all_and_then_ends() {
        let mut collector = collector(5, 50);
        collector.force();

        assert_eq!(drain(&mut collector, 5, idle_disk), 0);

        collector.finished(id(9), Timestamp(9));
        assert!(collector.step(1, |_| true, idle_disk).is_empty());
    }

    #[test]
    fn force_with_nothing_finished_is_over_at_once() {
        let mut collector = collector(0, 50);
        collector.force();
        collector.finished(id(1), Timestamp(1));

        assert!(collector.step(1, |_| true, idle_disk).is_empty());
    }
}
