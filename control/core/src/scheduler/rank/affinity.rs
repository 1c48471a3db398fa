//! Node affinity: preferred properties of a node.

use muster_domain::alloc::Component;
use muster_domain::job::{JobSpec, TaskGroup};
use muster_domain::node::NodeSpec;

use super::rule::{NodeScorer, Rule, ScanSupport};
use crate::scheduler::affinities::affinities;
use crate::scheduler::feasible::Condition;

pub(super) const RULE: Rule = Rule {
    name: Component::AFFINITY,
    prepare: |job, group| {
        let affinities = Affinities::of(job, group);
        if affinities.conditions.is_empty() {
            return None;
        }
        Some(Box::new(affinities))
    },
    scan: ScanSupport::Affinity,
};

/// Returns the score of a node, from the weight of each affinity and whether the node meets it. The score is the sum of
/// the met weights, relative to the sum of all weights without their signs. `None` if the met weights add up to
/// nothing: the component is then left out of the mean.
pub(in crate::scheduler) fn score(met: impl Iterator<Item = (i8, bool)>) -> Option<f64> {
    let (mut sum, mut all) = (0.0, 0.0);
    for (weight, is_met) in met {
        all += f64::from(weight).abs();
        if is_met {
            sum += f64::from(weight);
        }
    }
    (sum != 0.0).then(|| sum / all)
}

/// The affinities of job, group and tasks, prepared.
pub(super) struct Affinities<'a> {
    conditions: Vec<(i8, Condition<'a>)>,
}

impl<'a> Affinities<'a> {
    pub(super) fn of(job: &'a JobSpec, group: &'a TaskGroup) -> Self {
        let conditions = affinities(job, group).map(|affinity| {
            let condition = Condition::new(&affinity.left, affinity.operand, &affinity.right);
            (affinity.weight, condition)
        });
        Self {
            conditions: conditions.collect(),
        }
    }
}

impl NodeScorer for Affinities<'_> {
    fn names_one_node(&self) -> bool {
        let mut conditions = self.conditions.iter();
        conditions.any(|(_, condition)| condition.names_one_node())
    }

    fn score(&self, spec: &NodeSpec) -> Option<f64> {
        let met = self.conditions.iter();
        score(met.map(|(weight, condition)| (*weight, condition.holds(spec))))
    }
}
