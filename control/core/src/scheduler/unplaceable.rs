//! One-off tasks that no node could ever hold, and the resources that every node lacks.
//!
//! The first look counts every registered node, whatever its status, as if it were empty: a node that is down or full
//! may come back or drain. Drivers, volumes and devices are left out, because they come and go while an agent runs.

use muster_domain::job::{JobSpec, TaskGroup};
use muster_domain::node::NodeSpec;
use muster_domain::one_off::{self, OneOff, OneOffState};
use muster_domain::resources::Amount;

use super::feasible::{self, ClassFeasibility, Feasibility, FeasibilityCheck, GroupConstraints};
use super::fleet::ProjectedNodes;
use crate::state::State;

/// A resource and its part of an amount.
type Dimension = (&'static str, fn(Amount) -> u64);

/// Diego's resources in Diego's order, then ours.
const DIMENSIONS: [Dimension; 4] = [
    ("disk", |amount| amount.disk_mb),
    ("memory", |amount| amount.memory_mb),
    ("cpu", |amount| amount.cpu_mhz),
    ("allocations", |amount| amount.allocs),
];

/// Returns whether the task waits and no registered node could hold it, even without other work. Returns false if no
/// node is in its pool and datacenters: such a fleet is still being set up.
#[must_use]
pub fn is_unplaceable(state: &State, row: &OneOff) -> bool {
    if row.state != OneOffState::Pending || row.rejection.is_empty() {
        return false;
    }
    let job = state.jobs().get(&row.job_key());
    let spec = job.map(|job| &job.current.spec);
    let group = spec.and_then(|spec| spec.group(one_off::GROUP));
    let Some((spec, group)) = spec.zip(group) else {
        return false;
    };
    let needs = FeasibilityCheck::new(GroupConstraints::of(spec, group));
    let ask = group.ask();
    let specs = state.nodes().iter().map(|node| &node.spec);
    let mut in_scope = specs
        .filter(|node| feasible::is_in_scope(&needs, node))
        .peekable();
    in_scope.peek().is_some() && !in_scope.any(|node| could_hold(&needs, ask, node))
}

fn could_hold(needs: &FeasibilityCheck, ask: Amount, node: &NodeSpec) -> bool {
    ask.exceeds(node.usable()).is_none() && feasible::meets_constraints(needs, node)
}

/// Resources of which every feasible node has too little left, each with the number of those nodes. Empty if the nodes
/// have none in common.
pub(super) fn common_shortages(
    fleet: &ProjectedNodes<'_>,
    spec: &JobSpec,
    group: &TaskGroup,
) -> Vec<(String, u32)> {
    let mut verdicts =
        ClassFeasibility::new(FeasibilityCheck::new(GroupConstraints::of(spec, group)));
    let ask = group.ask();
    let mut common = DIMENSIONS.to_vec();
    let mut nodes = 0_u32;
    for (number, column) in fleet.columns().iter().enumerate() {
        if common.is_empty() {
            break;
        }
        if !column.takes_work {
            continue;
        }
        let (_, verdict) = verdicts.of(column.class, || fleet.spec(number));
        if *verdict != Feasibility::Feasible {
            continue;
        }
        nodes = nodes.saturating_add(1);
        let free = column.free();
        common.retain(|(_, of)| of(ask) > of(free));
    }
    let common = common.into_iter().filter(|_| nodes > 0);
    common.map(|(name, _)| (name.to_owned(), nodes)).collect()
}
