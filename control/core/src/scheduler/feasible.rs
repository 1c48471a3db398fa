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

use muster_domain::job::{Constraint, DEFAULT_HOST_NETWORK, JobSpec, NetworkMode, TaskGroup};
use muster_domain::node::NodeSpec;

use super::why::Obstacle;
use crate::state::NodeClass;

pub(super) use constraint::{Condition, value_of};
pub(super) use device::matches as device_matches;

/// Everything of a group that the rules look at. Groups that ask for the same get the same verdicts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Asks {
    node_pool: String,
    datacenters: Vec<String>,
    /// Of the job, the group and its tasks, each once.
    constraints: Vec<Constraint>,
    drivers: Vec<String>,
    volumes: Vec<VolumeAsk>,
    /// Named ones, of the group's ports.
    host_networks: Vec<String>,
    /// The group has a network of its own that leads somewhere.
    bridge: bool,
    /// By name and conditions; how many is asked when a place is chosen.
    devices: Vec<(String, Vec<Constraint>)>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct VolumeAsk {
    source: String,
    read_only: bool,
}

impl Asks {
    pub(super) fn of(job: &JobSpec, group: &TaskGroup) -> Self {
        let mut constraints: Vec<Constraint> = Vec::new();
        let of_tasks = group.tasks.iter().flat_map(|task| &task.constraints);
        for constraint in job
            .constraints
            .iter()
            .chain(&group.constraints)
            .chain(of_tasks)
        {
            if !constraints.contains(constraint) {
                constraints.push(constraint.clone());
            }
        }
        let mut drivers: Vec<String> = Vec::new();
        for task in &group.tasks {
            if !drivers.contains(&task.driver) {
                drivers.push(task.driver.clone());
            }
        }
        let volumes = group.volumes.values().map(|ask| VolumeAsk {
            source: ask.source.clone(),
            read_only: ask.read_only,
        });
        let ports = group.network.iter().flat_map(|network| &network.ports);
        let host_networks = ports.map(|port| &port.host_network).filter(|name| {
            // A node that names no address has the default one all the same.
            !name.is_empty() && *name != DEFAULT_HOST_NETWORK
        });
        let devices = group.tasks.iter().flat_map(|task| &task.resources.devices);
        Self {
            node_pool: job.node_pool.clone(),
            datacenters: job.datacenters.clone(),
            constraints,
            drivers,
            volumes: volumes.collect(),
            host_networks: host_networks.cloned().collect(),
            bridge: group
                .network
                .as_ref()
                .is_some_and(|network| network.mode == NetworkMode::Bridge),
            devices: devices
                .map(|ask| (ask.name.clone(), ask.constraints.clone()))
                .collect(),
        }
    }

    /// Whether verdicts differ within a class.
    pub(super) fn names_one_node(&self) -> bool {
        self.constraints.iter().any(|constraint| {
            constraint::names_one_node(&constraint.left)
                || constraint::names_one_node(&constraint.right)
        })
    }
}

/// What a group needs of a node, prepared once.
#[derive(Debug)]
pub(super) struct Needs {
    asks: Asks,
    conditions: Vec<Condition<'static>>,
    /// Verdicts differ within a class.
    by_node: bool,
}

impl Needs {
    pub(super) fn new(asks: Asks) -> Self {
        Self {
            conditions: asks.constraints.iter().map(Condition::owned).collect(),
            by_node: asks.names_one_node(),
            asks,
        }
    }
}

/// A rule of feasibility.
struct Rule {
    /// Why a node is refused, if it is.
    refuses: fn(&Needs, &NodeSpec) -> Option<String>,
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
pub(super) fn judge(needs: &Needs, node: &NodeSpec) -> Verdict {
    if !scope::in_pool(&needs.asks.node_pool, &node.pool) {
        return Verdict::OtherPool;
    }
    if !scope::in_datacenters(&needs.asks.datacenters, &node.datacenter) {
        return Verdict::OtherDatacenter;
    }
    match RULES.iter().find_map(|rule| (rule.refuses)(needs, node)) {
        Some(reason) => Verdict::Filtered(reason),
        None => Verdict::Feasible,
    }
}

/// Everything that keeps the group from `node`, whatever room there is.
pub(super) fn obstacles(needs: &Needs, node: &NodeSpec, obstacles: &mut Vec<Obstacle>) {
    let Asks {
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

/// Nodes on which there is one verdict, in one datacenter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ClassAt(usize);

/// Verdicts by class.
#[derive(Debug)]
pub(super) struct Verdicts {
    needs: Needs,
    /// Verdict and datacenter.
    known: Vec<(Verdict, String)>,
    by_class: BTreeMap<NodeClass, usize>,
    /// Neighbours are often of one class.
    last: Option<(NodeClass, usize)>,
}

impl Verdicts {
    pub(super) fn new(needs: Needs) -> Self {
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
