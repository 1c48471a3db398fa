//! Nodes that a ranking chooses from, and the chosen one.

use muster_domain::alloc::Score;
use muster_domain::id::{AllocId, NodeNumber};
use muster_domain::resources::Holding;

/// A feasible node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub(super) number: usize,
    /// Its class, as a number; they are given in order.
    pub(super) class: usize,
    /// Instances of the group that are on it, or planned there.
    pub(super) collisions: u32,
    /// Instances of the job.
    pub(super) of_job: u32,
}

/// A chosen place.
#[derive(Debug)]
pub(in crate::scheduler) struct RankedNode {
    pub(in crate::scheduler) node: NodeNumber,
    pub(in crate::scheduler) score: Score,
    pub(in crate::scheduler) holding: Holding,
    /// Allocations that are evicted for it.
    pub(in crate::scheduler) preempted: Vec<AllocId>,
}
