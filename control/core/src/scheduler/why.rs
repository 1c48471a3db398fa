//! The reasons why an instance of a group can go to a node or not: every reason, not only the first.
//!
//! The module uses the scheduler's own parts, so that it cannot contradict the scheduler. A node without an obstacle
//! is one that the scheduler could choose. A property test holds both against each other.

use muster_domain::alloc::{NodeScore, Score};
use muster_domain::id::{JobKey, NodeId};
use muster_domain::job::{JobSpec, TaskGroup};
use muster_domain::node::{Eligibility, Node, NodeStatus};
use muster_domain::number;
use muster_domain::resources::Amount;

use super::feasible::{self, FeasibilityCheck, GroupConstraints};
use super::fleet::{ExclusiveRequests, ProjectedNodes, free_cores};
use super::obstacle::Obstacle;
use super::rank::Ranking;
use crate::state::{AllocView, State};

/// The obstacles and the score of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WhyNode {
    pub node_id: NodeId,
    /// All obstacles that keep an instance from the node; empty if it fits.
    pub obstacles: Vec<Obstacle>,
    /// The score of the node, if the instance fits.
    pub score: Option<NodeScore>,
}

/// The possible places of one more instance of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Why {
    pub group: String,
    /// Number of wanted instances that are missing.
    pub missing: u32,
    /// Every node: nodes on which the instance fits come first, best first, then the nodes that lack least.
    pub nodes: Vec<WhyNode>,
}

impl Why {
    /// Returns the node on which the least would have to change, if the instance fits no node.
    #[must_use]
    pub fn nearest(&self) -> Option<&WhyNode> {
        self.nodes.first().filter(|node| !node.obstacles.is_empty())
    }
}

/// Describes the place of one more instance of each group of a job, or of the one called `only`. `None`: the job does
/// not exist.
#[must_use]
pub fn why(state: &State, key: &JobKey, only: Option<&str>) -> Option<Vec<Why>> {
    let spec = &state.jobs().get(key)?.current.spec;
    let fleet = ProjectedNodes::new(state, 0);
    let groups = spec.groups.iter();
    let wanted = groups.filter(|group| only.is_none_or(|only| only == group.name));
    Some(
        wanted
            .map(|group| why_group(state, &fleet, spec, group))
            .collect(),
    )
}

fn why_group(state: &State, fleet: &ProjectedNodes<'_>, spec: &JobSpec, group: &TaskGroup) -> Why {
    let key = spec.key();
    let live = || {
        let allocs = state.allocs().of_job(&key);
        allocs.filter(|alloc| !alloc.is_terminal())
    };
    let mut nodes = Vec::new();
    let ranking = Ranking::new(fleet, spec, group, live(), std::iter::empty());
    let needs = FeasibilityCheck::new(GroupConstraints::of(spec, group));
    let extras = ExclusiveRequests::of(group);
    for node in state.nodes().iter() {
        let Some(number) = fleet.number(&node.spec.id) else {
            continue;
        };
        let mut obstacles = Vec::new();
        standing(node, &mut obstacles);
        feasible::obstacles(&needs, &node.spec, &mut obstacles);
        room(fleet, number, &ranking, &extras, &mut obstacles);
        if let Some(rule) = ranking.distinct_violation(fleet, number) {
            obstacles.push(Obstacle::Apart { rule });
        }
        nodes.push(WhyNode {
            node_id: node.spec.id,
            score: ranking
                .score_of(fleet, number)
                .filter(|_| obstacles.is_empty()),
            obstacles,
        });
    }
    nodes.sort_by_cached_key(|node| {
        let score = node
            .score
            .as_ref()
            .map_or(Score(i32::MIN), |it| it.normalised);
        (
            lacks(&node.obstacles),
            std::cmp::Reverse(score),
            node.node_id,
        )
    });
    let of_group = live().filter(|alloc| alloc.group().name == group.name);
    let there = number::count(of_group.count());
    Why {
        group: group.name.clone(),
        missing: group.count.saturating_sub(there),
        nodes,
    }
}

/// Returns the distance of a node from taking the instance. First comes the number of obstacles that making room
/// cannot remove, then the largest part that is short, in thousandths of the need.
fn lacks(obstacles: &[Obstacle]) -> (usize, u64) {
    let mut others = 0;
    let mut short = 0;
    for obstacle in obstacles {
        match obstacle {
            Obstacle::Short { needed, free, .. } => {
                let missing = needed.saturating_sub(*free).saturating_mul(1_000);
                short = short.max(missing / (*needed).max(1));
            }
            Obstacle::Port { .. } | Obstacle::Held { .. } => short = short.max(1_000),
            Obstacle::NotTaking { .. }
            | Obstacle::Pool { .. }
            | Obstacle::Datacenter { .. }
            | Obstacle::Constraint { .. }
            | Obstacle::Missing { .. }
            | Obstacle::Apart { .. } => others += 1,
        }
    }
    (others, short)
}

fn standing(node: &Node, obstacles: &mut Vec<Obstacle>) {
    if node.takes_work() {
        return;
    }
    let state = match node.status {
        NodeStatus::Ready if node.drain.is_some() => "draining",
        NodeStatus::Ready if node.eligibility == Eligibility::Ineligible => "ineligible",
        NodeStatus::Ready
        | NodeStatus::Initializing
        | NodeStatus::Down
        | NodeStatus::Disconnected => node.status.as_str(),
    };
    obstacles.push(Obstacle::NotTaking { state });
}

fn room(
    fleet: &ProjectedNodes<'_>,
    number: usize,
    ranking: &Ranking<'_>,
    extras: &ExclusiveRequests<'_>,
    obstacles: &mut Vec<Obstacle>,
) {
    let column = fleet.column(number);
    let (ask, free) = (ranking.ask_on(fleet, number), column.free());
    type AmountField = (&'static str, fn(Amount) -> u64);
    let parts: [AmountField; 4] = [
        ("cpu", |amount| amount.cpu_mhz),
        ("memory", |amount| amount.memory_mb),
        ("disk", |amount| amount.disk_mb),
        ("allocations", |amount| amount.allocs),
    ];
    for (what, of) in parts {
        let (needed, free) = (of(ask), of(free));
        // A node without cpu or memory has no score.
        let is_none = what != "disk" && of(column.total) == 0;
        if needed > free || is_none {
            obstacles.push(Obstacle::Short { what, needed, free });
        }
    }
    let Some(spec) = fleet.spec(number) else {
        return;
    };
    let held = fleet.held(number);
    let Err(what) = fleet.assign(number, extras) else {
        return;
    };
    let before = obstacles.len();
    for port in extras.ports().iter().filter_map(|ask| ask.fixed) {
        let mut holders = fleet.running_on(number);
        let by = holders.find(|alloc| alloc.holding().ports.iter().any(|it| it.value == port));
        let is_kept = spec.reserved_ports.binary_search(&port).is_ok();
        if by.is_some() || is_kept {
            let by = by.map(AllocView::id);
            obstacles.push(Obstacle::Port { port, by });
        }
    }
    let cores = extras.core_count();
    let free = free_cores(spec, held).count();
    if cores > free {
        obstacles.push(Obstacle::Short {
            what: "cores",
            needed: cores as u64,
            free: free as u64,
        });
    }
    if obstacles.len() == before {
        obstacles.push(Obstacle::Held { what });
    }
}
