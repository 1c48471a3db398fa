//! The form of score rules that depend on a job, its group and a node.
//!
//! A new rule is a file that defines a [`Rule`], and a line in [`RULES`](super::rules::RULES). The fast scan refuses
//! every group that uses the rule, so that a ranking scores the group.

use muster_domain::job::{JobSpec, TaskGroup};
use muster_domain::node::NodeSpec;

/// A rule of the score.
pub(super) struct Rule {
    /// The name of its component of the score.
    pub(super) name: &'static str,
    pub(super) prepare: Prepare,
    pub(super) scan: ScanSupport,
}

/// Prepares a rule for a group; `None` if the group does not use it.
type Prepare = for<'a> fn(&'a JobSpec, &'a TaskGroup) -> Option<Box<dyn NodeScorer + 'a>>;

/// A rule, prepared for a group.
pub(super) trait NodeScorer {
    /// Whether nodes of one class may have different scores.
    fn names_one_node(&self) -> bool;

    /// Returns the score of a node, between -1 and 1; `None` if the component is left out of the mean.
    fn score(&self, spec: &NodeSpec) -> Option<f64>;
}

/// The support of the fast scan for a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScanSupport {
    /// The scan leaves a group that uses the rule to a ranking.
    Declined,
    /// The scan uses the rule as the affinity of its nodes' shapes.
    Affinity,
}
