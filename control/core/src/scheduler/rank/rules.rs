//! The list of score rules that depend on a job, its group and a node.

use muster_domain::job::{JobSpec, TaskGroup};

use super::affinity;
use super::rule::{Rule, ScanSupport};

/// All rules, in the order in which scores name them.
pub(super) const RULES: &[Rule] = &[
    affinity::RULE,
    #[cfg(test)]
    super::tests::RULE,
];

/// The scores of a node by each of [`RULES`].
pub(super) type NodeScores = [Option<f64>; RULES.len()];

/// The scores of a node by no rule.
pub(super) const UNSCORED: NodeScores = [None; RULES.len()];

/// Returns whether the fast scan leaves the group to a ranking.
pub(super) fn declines_scan(job: &JobSpec, group: &TaskGroup) -> bool {
    let mut declined = RULES
        .iter()
        .filter(|rule| rule.scan == ScanSupport::Declined);
    declined.any(|rule| (rule.prepare)(job, group).is_some())
}

/// Returns the scores of a node that has this affinity, for a group that the scan takes.
pub(super) fn of_affinity(affinity: Option<f64>) -> NodeScores {
    let mut scores = UNSCORED;
    for (score, rule) in scores.iter_mut().zip(RULES) {
        if rule.scan == ScanSupport::Affinity {
            *score = affinity;
        }
    }
    scores
}
