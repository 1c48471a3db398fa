//! Nodes that a ranking chooses from, and the chosen one.

use muster_domain::alloc::Score;
use muster_domain::id::{AllocId, NodeNumber};
use muster_domain::resources::Holding;

/// A feasible node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub(super) number: usize,
    /// The number of its class; numbers are assigned in order.
    pub(super) class: usize,
    /// Number of instances of the group that are on it, or planned there.
    pub(super) collisions: u32,
    /// Number of instances of the job that are on it, or planned there.
    pub(super) of_job: u32,
}

/// A chosen place.
#[derive(Debug)]
pub(in crate::scheduler) struct RankedNode {
    pub(in crate::scheduler) node: NodeNumber,
    pub(in crate::scheduler) score: Score,
    pub(in crate::scheduler) holding: Holding,
    /// Allocations that are evicted for the instance.
    pub(in crate::scheduler) preempted: Vec<AllocId>,
}
