//! Which nodes may be used at all.
//!
//! A rule is a file and a line in [`RULES`]. Rules look only at what the nodes of one class have in
//! common, so a verdict holds for the class; only constraints that speak of one node by name
//! (`${node.unique.id}`, `${attr.unique.…}`) are judged node by node.

mod constraint;
mod device;
mod driver;
mod network;
mod scope;
mod volume;

use std::collections::BTreeMap;

use muster_domain::job::{JobSpec, TaskGroup};
use muster_domain::node::NodeSpec;

use super::why::Obstacle;
use crate::state::NodeClass;

pub(super) use constraint::{Condition, value_of};
pub(super) use device::matches as device_matches;

/// What a group needs of a node, prepared once.
#[derive(Debug)]
pub(super) struct Needs<'a> {
    pub(super) job: &'a JobSpec,
    pub(super) group: &'a TaskGroup,
    /// Constraints of the job, the group and its tasks, each once.
    pub(super) conditions: Vec<Condition<'a>>,
    /// Verdicts differ within a class.
    by_node: bool,
}

impl<'a> Needs<'a> {
    pub(super) fn new(job: &'a JobSpec, group: &'a TaskGroup) -> Self {
        let mut constraints: Vec<_> = job.constraints.iter().chain(&group.constraints).collect();
        constraints.extend(group.tasks.iter().flat_map(|task| &task.constraints));
        let mut seen = std::collections::BTreeSet::new();
        constraints.retain(|constraint| seen.insert(*constraint));
        let conditions: Vec<_> = constraints.into_iter().map(Condition::of).collect();
        let by_node = conditions.iter().any(Condition::names_one_node);
        Self {
            job,
            group,
            conditions,
            by_node,
        }
    }
}

/// A rule of feasibility.
struct Rule {
    /// Why a node is refused, if it is.
    refuses: fn(&Needs<'_>, &NodeSpec) -> Option<String>,
}

/// Every rule, in the order in which they are asked. Constraints come first: [`obstacles`] tells of each.
const RULES: [Rule; 5] = [
    constraint::RULE,
    driver::RULE,
    volume::RULE,
    network::RULE,
    device::RULE,
];

/// Whether a node may be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is in another pool.
    OtherPool,
    /// It is in another datacenter.
    OtherDatacenter,
    /// This rule refuses it.
    Filtered(String),
    /// It may.
    Feasible,
}

/// Judges one node.
pub(super) fn judge(needs: &Needs<'_>, node: &NodeSpec) -> Verdict {
    if !scope::in_pool(&needs.job.node_pool, &node.pool) {
        return Verdict::OtherPool;
    }
    if !scope::in_datacenters(&needs.job.datacenters, &node.datacenter) {
        return Verdict::OtherDatacenter;
    }
    match RULES.iter().find_map(|rule| (rule.refuses)(needs, node)) {
        Some(reason) => Verdict::Filtered(reason),
        None => Verdict::Feasible,
    }
}

/// Everything that keeps the group from `node`, whatever room there is.
pub(super) fn obstacles(needs: &Needs<'_>, node: &NodeSpec, obstacles: &mut Vec<Obstacle>) {
    let JobSpec {
        node_pool,
        datacenters,
        ..
    } = needs.job;
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

/// Nodes on which there is one verdict, in one datacenter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ClassAt(usize);

/// Verdicts by class.
#[derive(Debug)]
pub(super) struct Verdicts<'a> {
    needs: Needs<'a>,
    /// Verdict and datacenter.
    known: Vec<(Verdict, String)>,
    by_class: BTreeMap<NodeClass, usize>,
    /// Neighbours are often of one class.
    last: Option<(NodeClass, usize)>,
}

impl<'a> Verdicts<'a> {
    pub(super) fn new(needs: Needs<'a>) -> Self {
        Self {
            needs,
            known: Vec::new(),
            by_class: BTreeMap::new(),
            last: None,
        }
    }

    /// The verdict on a node of `class`; `spec` is asked for only if the class is not known.
    pub(super) fn of<'n>(
        &mut self,
        class: NodeClass,
        spec: impl FnOnce() -> Option<&'n NodeSpec>,
    ) -> (ClassAt, &Verdict) {
        let at = match self.last {
            Some((last, at)) if last == class && !self.needs.by_node => at,
            Some(_) | None => self.find(class, spec),
        };
        self.last = Some((class, at));
        (ClassAt(at), &self.known[at].0)
    }

    pub(super) fn verdict(&self, ClassAt(at): ClassAt) -> &Verdict {
        &self.known[at].0
    }

    pub(super) fn datacenter(&self, ClassAt(at): ClassAt) -> &str {
        &self.known[at].1
    }

    fn find<'n>(&mut self, class: NodeClass, spec: impl FnOnce() -> Option<&'n NodeSpec>) -> usize {
        if let Some(at) = self.by_class.get(&class).filter(|_| !self.needs.by_node) {
            return *at;
        }
        let known = spec().map_or((Verdict::OtherPool, String::new()), |spec| {
            (judge(&self.needs, spec), spec.datacenter.clone())
        });
        // Verdicts are few even where classes, or nodes judged one by one, are many.
        let at = match self.known.iter().position(|other| *other == known) {
            Some(at) => at,
            None => {
                self.known.push(known);
                self.known.len() - 1
            }
        };
        self.by_class.insert(class, at);
        at
    }
}
