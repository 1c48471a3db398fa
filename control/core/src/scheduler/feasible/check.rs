//! The needs of a group, and a rule that checks a node against them.

use muster_domain::node::NodeSpec;

use super::constraint::{Condition, is_about_one_node};
use super::group_constraints::GroupConstraints;

/// The needs of a group on a node, prepared once.
#[derive(Debug)]
pub(in crate::scheduler) struct FeasibilityCheck {
    pub(super) asks: GroupConstraints,
    pub(super) conditions: Vec<Condition<'static>>,
    /// Whether verdicts may differ within a class.
    pub(super) by_node: bool,
}

impl FeasibilityCheck {
    pub(in crate::scheduler) fn new(asks: GroupConstraints) -> Self {
        Self {
            conditions: asks.constraints.iter().map(Condition::owned).collect(),
            by_node: asks.constraints.iter().any(is_about_one_node),
            asks,
        }
    }
}

/// A rule of feasibility.
pub(super) struct FeasibilityRule {
    /// Returns the reason why a node is refused, if it is.
    pub(super) refuses: fn(&FeasibilityCheck, &NodeSpec) -> Option<String>,
}
