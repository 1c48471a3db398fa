//! Rules that decide which nodes may be used at all.
//!
//! A rule is a file and a line in [`RULES`]. Rules look only at data that the nodes of one class have in common, so a
//! verdict applies to the class. Only constraints that name one node (`${node.unique.id}`, `${attr.unique.…}`) are
//! judged node by node.

mod check;
mod constraint;
mod device;
mod driver;
mod group_constraints;
mod implied;
mod network;
mod scope;
mod volume;

use std::collections::BTreeMap;

use muster_domain::node::NodeSpec;

use super::obstacle::Obstacle;
use crate::state::NodeClass;
use check::FeasibilityRule;

pub(super) use check::FeasibilityCheck;
pub(super) use constraint::{Condition, names_one_node, value_of};
pub(super) use device::matches as device_matches;
pub(super) use group_constraints::GroupConstraints;

/// Every rule, in the order of evaluation. Constraints come first: [`obstacles`] reports each of them.
const RULES: [FeasibilityRule; 5] = [
    constraint::RULE,
    driver::RULE,
    volume::RULE,
    network::RULE,
    device::RULE,
];

/// The verdict on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Feasibility {
    /// The node is in another pool.
    OtherPool,
    /// The node is in another datacenter.
    OtherDatacenter,
    /// A rule with this reason refuses the node.
    Filtered(String),
    Feasible,
}

/// Judges one node.
pub(super) fn judge(needs: &FeasibilityCheck, node: &NodeSpec) -> Feasibility {
    if !scope::in_pool(&needs.asks.node_pool, &node.pool) {
        return Feasibility::OtherPool;
    }
    if !scope::in_datacenters(&needs.asks.datacenters, &node.datacenter) {
        return Feasibility::OtherDatacenter;
    }
    match RULES.iter().find_map(|rule| (rule.refuses)(needs, node)) {
        Some(reason) => Feasibility::Filtered(reason),
        None => Feasibility::Feasible,
    }
}

/// Returns whether `node` is in the pool and the datacenters of the group.
pub(super) fn is_in_scope(needs: &FeasibilityCheck, node: &NodeSpec) -> bool {
    scope::in_pool(&needs.asks.node_pool, &node.pool)
        && scope::in_datacenters(&needs.asks.datacenters, &node.datacenter)
}

/// Returns whether `node` meets every constraint of the group.
pub(super) fn meets_constraints(needs: &FeasibilityCheck, node: &NodeSpec) -> bool {
    needs
        .conditions
        .iter()
        .all(|condition| condition.holds(node))
}

/// Lists all obstacles that keep the group from `node`, leaving aside the node's room.
pub(super) fn obstacles(needs: &FeasibilityCheck, node: &NodeSpec, obstacles: &mut Vec<Obstacle>) {
    let GroupConstraints {
        node_pool,
        datacenters,
        ..
    } = &needs.asks;
    if !scope::in_pool(node_pool, &node.pool) {
        obstacles.push(Obstacle::Pool {
            wanted: node_pool.clone(),
            is: node.pool.clone(),
        });
    }
    if !scope::in_datacenters(datacenters, &node.datacenter) {
        obstacles.push(Obstacle::Datacenter {
            wanted: datacenters.clone(),
            is: node.datacenter.clone(),
        });
    }
    for condition in &needs.conditions {
        if !condition.holds(node) {
            let (left, right) = condition.sides(node);
            obstacles.push(Obstacle::Constraint {
                text: condition.to_string(),
                left,
                right,
            });
        }
    }
    let others = RULES.iter().skip(1);
    obstacles.extend(
        others
            .filter_map(|rule| (rule.refuses)(needs, node))
            .map(|what| Obstacle::Missing { what }),
    );
}

/// Nodes in one datacenter with one verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ClassIndex(usize);

/// The number of nodes with each verdict.
#[derive(Debug, Default)]
pub(super) struct FeasibilityCounts(Vec<u32>);

impl FeasibilityCounts {
    pub(super) fn add(&mut self, ClassIndex(at): ClassIndex, nodes: u32) {
        if self.0.len() <= at {
            self.0.resize(at + 1, 0);
        }
        self.0[at] += nodes;
    }

    /// Returns the verdicts that apply to at least one node.
    pub(super) fn iter(&self) -> impl Iterator<Item = (ClassIndex, u32)> {
        let counts = self.0.iter().enumerate();
        let counts = counts.filter(|(_, count)| **count > 0);
        counts.map(|(at, count)| (ClassIndex(at), *count))
    }
}

/// Verdicts by class.
#[derive(Debug)]
pub(super) struct ClassFeasibility {
    needs: FeasibilityCheck,
    known: Vec<(Feasibility, String)>,
    by_class: BTreeMap<NodeClass, NodeFeasibility>,
    /// The last class, because adjacent nodes are often of one class.
    last: Option<(NodeClass, NodeFeasibility)>,
}

/// The verdict on a node.
#[derive(Clone, Copy, Debug)]
pub(super) struct NodeFeasibility {
    pub(super) at: ClassIndex,
    /// The number of the class; numbers are assigned in order.
    pub(super) class: usize,
}

impl ClassFeasibility {
    pub(super) fn new(needs: FeasibilityCheck) -> Self {
        Self {
            needs,
            known: Vec::new(),
            by_class: BTreeMap::new(),
            last: None,
        }
    }

    /// Returns the verdict on a node of `class`; `spec` is called only if the class is not known.
    pub(super) fn of<'n>(
        &mut self,
        class: NodeClass,
        spec: impl FnOnce() -> Option<&'n NodeSpec>,
    ) -> (NodeFeasibility, &Feasibility) {
        let judgement = match self.last {
            Some((last, judgement)) if last == class && !self.needs.by_node => judgement,
            Some(_) | None => self.find(class, spec),
        };
        self.last = Some((class, judgement));
        (judgement, self.verdict(judgement.at))
    }

    /// Returns whether nodes of one class may get different verdicts.
    pub(super) fn differ_within_class(&self) -> bool {
        self.needs.by_node
    }

    pub(super) fn verdict(&self, ClassIndex(at): ClassIndex) -> &Feasibility {
        &self.known[at].0
    }

    pub(super) fn datacenter(&self, ClassIndex(at): ClassIndex) -> &str {
        &self.known[at].1
    }

    fn find<'n>(
        &mut self,
        class: NodeClass,
        spec: impl FnOnce() -> Option<&'n NodeSpec>,
    ) -> NodeFeasibility {
        let earlier = self.by_class.get(&class).copied();
        if let Some(judgement) = earlier.filter(|_| !self.needs.by_node) {
            return judgement;
        }
        let known = spec().map_or((Feasibility::OtherPool, String::new()), |spec| {
            (judge(&self.needs, spec), spec.datacenter.clone())
        });
        // There are few distinct verdicts, even if there are many classes, or many nodes judged one by one.
        let at = match self.known.iter().position(|other| *other == known) {
            Some(at) => at,
            None => {
                self.known.push(known);
                self.known.len() - 1
            }
        };
        let judgement = NodeFeasibility {
            at: ClassIndex(at),
            class: earlier.map_or(self.by_class.len(), |earlier| earlier.class),
        };
        self.by_class.insert(class, judgement);
        judgement
    }
}
