//! Which of the feasible nodes is best.
//!
//! The score of a node is the mean of its components; a component that does not apply is left out of
//! the mean, as Nomad does, so a node may gain from having none. A component is a file in `rank/` and a
//! line in [`Ranking::score`]. Of equal nodes the one next after the seed's place goes first.

#[cfg_attr(
    not(test),
    expect(dead_code, reason = "decided and tested; the scheduler asks it next")
)]
mod affinity;
mod anti_affinity;
mod binpack;
mod reschedule_penalty;
#[cfg_attr(
    not(test),
    expect(dead_code, reason = "decided and tested; the scheduler asks it next")
)]
mod spread;
mod tournament;

use std::collections::BTreeMap;

use muster_domain::alloc::{NodeScore, PlacementMetrics, Score};
use muster_domain::id::{NodeId, NodeNumber};
use muster_domain::job::{JobSpec, PortAsk, TaskGroup};
use muster_domain::resources::{AllocatedPort, Amount};

use super::feasible::{Needs, Verdict, Verdicts};
use super::fleet::{Fleet, numbered};
use crate::limits;
use crate::state::AllocView;
use tournament::Tournament;

/// A chosen place.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) node: NodeNumber,
    pub(super) score: Score,
    pub(super) ports: Vec<AllocatedPort>,
}

/// No position among the candidates.
const NOWHERE: u32 = u32::MAX;

/// A feasible node.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    number: usize,
    /// Instances of the group that are on it, or planned there.
    collisions: u32,
}

/// The feasible nodes for one group, the best on top.
#[derive(Debug)]
pub(super) struct Ranking<'a> {
    ask: Amount,
    ports: &'a [PortAsk],
    count: u32,
    candidates: Vec<Candidate>,
    /// Score of each candidate; minus infinity where it is full.
    scores: Vec<f64>,
    best: Tournament,
    /// Position among the candidates by number of the node; [`NOWHERE`] if it is not feasible.
    positions: Vec<u32>,
    filtered: PlacementMetrics,
}

impl<'a> Ranking<'a> {
    /// Scores every feasible node of `fleet` for an instance of `group`.
    /// `running` are the instances that stay.
    pub(super) fn new<'r>(
        fleet: &Fleet<'_>,
        job: &'a JobSpec,
        group: &'a TaskGroup,
        running: impl Iterator<Item = AllocView<'r>>,
    ) -> Self {
        let mut collisions: BTreeMap<usize, u32> = BTreeMap::new();
        for number in running.filter_map(|alloc| fleet.number_of(alloc)) {
            *collisions.entry(number).or_default() += 1;
        }
        let mut census = Census::default();
        let mut candidates = census.take(fleet, Needs::new(job, group));
        for candidate in &mut candidates {
            candidate.collisions = collisions.get(&candidate.number).copied().unwrap_or(0);
        }
        let mut positions = vec![NOWHERE; fleet.columns().len()];
        for (at, candidate) in (0..).zip(&candidates) {
            positions[candidate.number] = at;
        }
        let mut ranking = Self {
            ask: group.ask(),
            ports: group
                .network
                .as_ref()
                .map_or(&[], |network| network.ports.as_slice()),
            count: group.count,
            scores: Vec::new(),
            best: Tournament::default(),
            candidates,
            positions,
            filtered: census.into_metrics(),
        };
        ranking.scores = ranking
            .candidates
            .iter()
            .map(|candidate| ranking.score(fleet, *candidate, false))
            .collect();
        ranking.best = Tournament::new(&ranking.scores, fleet.seed());
        ranking
    }

    /// Places one instance on the best node and takes its share. `avoid` is a node on which it failed
    /// before. `None`: every feasible node is full.
    pub(super) fn place(&mut self, fleet: &mut Fleet<'_>, avoid: Option<NodeId>) -> Option<Place> {
        let avoided = avoid
            .and_then(|node_id| fleet.number(&node_id))
            .and_then(|number| self.position(number));
        if let Some(at) = avoided {
            self.set(at, self.score(fleet, self.candidates[at], true));
        }
        let place = self.take_best(fleet);
        if let Some(at) = avoided {
            self.set(at, self.score(fleet, self.candidates[at], false));
        }
        place
    }

    fn take_best(&mut self, fleet: &mut Fleet<'_>) -> Option<Place> {
        let at = self
            .best
            .winner()
            .filter(|at| self.scores[*at] > f64::NEG_INFINITY)?;
        let number = self.candidates[at].number;
        // A node without free ports scores minus infinity, so the winner has them.
        let ports = fleet.assign_ports(number, self.ports)?;
        let place = Place {
            node: numbered(number),
            score: Score::new(self.scores[at]),
            ports,
        };
        fleet.take(number, self.ask, &place.ports);
        self.candidates[at].collisions += 1;
        self.set(at, self.score(fleet, self.candidates[at], false));
        Some(place)
    }

    /// An instance on node `number` was stopped by the plan, or its stop was taken back.
    pub(super) fn instances_changed(&mut self, fleet: &Fleet<'_>, number: usize, by: i32) {
        if let Some(at) = self.position(number) {
            let collisions = &mut self.candidates[at].collisions;
            *collisions = collisions.saturating_add_signed(by);
            self.set(at, self.score(fleet, self.candidates[at], false));
        }
    }

    fn position(&self, number: usize) -> Option<usize> {
        self.positions
            .get(number)
            .filter(|at| **at != NOWHERE)
            .map(|at| *at as usize)
    }

    fn set(&mut self, at: usize, score: f64) {
        self.scores[at] = score;
        self.best.update(&self.scores, at);
    }

    /// The mean of the components that apply; minus infinity for a node that is full.
    fn score(&self, fleet: &Fleet<'_>, candidate: Candidate, avoided: bool) -> f64 {
        if self.exhausted(fleet, candidate).is_some() {
            return f64::NEG_INFINITY;
        }
        let (sum, components) = self
            .components(fleet, candidate, avoided)
            .into_iter()
            .flatten()
            .fold((0.0, 0.0), |(sum, components), (_, score)| {
                (sum + score, components + 1.0)
            });
        sum / components
    }

    /// Every component by name, where it applies. Bin-packing always does.
    fn components(
        &self,
        fleet: &Fleet<'_>,
        candidate: Candidate,
        avoided: bool,
    ) -> [Option<(&'static str, f64)>; 3] {
        let column = &fleet.columns()[candidate.number];
        [
            Some((
                binpack::NAME,
                binpack::score(column.total, column.used.plus(self.ask)),
            )),
            anti_affinity::score(candidate.collisions, self.count)
                .map(|score| (anti_affinity::NAME, score)),
            avoided.then_some((reschedule_penalty::NAME, reschedule_penalty::SCORE)),
        ]
    }

    /// What is not to be had on a node, if anything.
    fn exhausted(&self, fleet: &Fleet<'_>, candidate: Candidate) -> Option<&'static str> {
        let column = &fleet.columns()[candidate.number];
        if let Some(dimension) = column.used.plus(self.ask).exceeds(column.total) {
            return Some(dimension);
        }
        // A node without cpu or memory has no score: Nomad would divide by zero.
        if column.total.cpu_mhz == 0 {
            return Some("cpu");
        }
        if column.total.memory_mb == 0 {
            return Some("memory");
        }
        if !self.ports.is_empty() && fleet.assign_ports(candidate.number, self.ports).is_none() {
            return Some("ports");
        }
        None
    }

    /// How things stand: nodes refused and full by reason, and the best scores.
    pub(super) fn metrics(&self, fleet: &Fleet<'_>) -> PlacementMetrics {
        let mut exhausted: BTreeMap<&str, u32> = BTreeMap::new();
        let mut top: Vec<usize> = Vec::with_capacity(limits::SCORES_MAX + 1);
        for (at, candidate) in self.candidates.iter().enumerate() {
            if self.scores[at] > f64::NEG_INFINITY {
                // Most nodes are not among the best; the worst of those tells it at once.
                let worst = top.get(limits::SCORES_MAX - 1);
                if worst.is_none_or(|worst| self.best.is_before(&self.scores, at, *worst)) {
                    let place =
                        top.partition_point(|other| self.best.is_before(&self.scores, *other, at));
                    top.insert(place, at);
                    top.truncate(limits::SCORES_MAX);
                }
            } else if let Some(dimension) = self.exhausted(fleet, *candidate) {
                *exhausted.entry(dimension).or_default() += 1;
            }
        }
        PlacementMetrics {
            nodes_exhausted: exhausted.values().sum(),
            dimension_exhausted: owned(exhausted),
            scores: top
                .into_iter()
                .map(|at| self.node_score(fleet, at))
                .collect(),
            ..self.filtered.clone()
        }
    }

    fn node_score(&self, fleet: &Fleet<'_>, at: usize) -> NodeScore {
        let candidate = self.candidates[at];
        let components = self
            .components(fleet, candidate, false)
            .into_iter()
            .flatten();
        NodeScore {
            node_id: fleet.columns()[candidate.number].node_id,
            components: components
                .map(|(name, score)| (name.to_owned(), Score::new(score)))
                .collect(),
            normalised: Score::new(self.scores[at]),
        }
    }
}

/// Counts nodes by what became of them.
#[derive(Debug, Default)]
struct Census {
    evaluated: u32,
    filtered: BTreeMap<String, u32>,
    available: BTreeMap<String, u32>,
}

impl Census {
    /// The feasible nodes that take work.
    fn take(&mut self, fleet: &Fleet<'_>, needs: Needs<'_>) -> Vec<Candidate> {
        let nodes = fleet.state().nodes();
        let mut verdicts = Verdicts::new(needs);
        let mut candidates = Vec::with_capacity(fleet.columns().len());
        let mut counts: BTreeMap<super::feasible::ClassAt, u32> = BTreeMap::new();
        for (number, column) in fleet.columns().iter().enumerate() {
            if !column.takes_work {
                continue;
            }
            let (class_at, verdict) = verdicts.of(column.class, || {
                nodes.get(&column.node_id).map(|node| &*node.spec)
            });
            *counts.entry(class_at).or_default() += 1;
            if *verdict == Verdict::Feasible {
                candidates.push(Candidate {
                    number,
                    collisions: 0,
                });
            }
        }
        for (class_at, count) in counts {
            self.count(
                verdicts.verdict(class_at),
                verdicts.datacenter(class_at),
                count,
            );
        }
        candidates
    }

    fn count(&mut self, verdict: &Verdict, datacenter: &str, nodes: u32) {
        if *verdict == Verdict::OtherPool {
            return;
        }
        add(&mut self.available, datacenter, nodes);
        match verdict {
            Verdict::OtherPool | Verdict::OtherDatacenter => {}
            Verdict::Feasible => self.evaluated += nodes,
            Verdict::Filtered(reason) => {
                self.evaluated += nodes;
                add(&mut self.filtered, reason, nodes);
            }
        }
    }

    fn into_metrics(self) -> PlacementMetrics {
        PlacementMetrics {
            nodes_evaluated: self.evaluated,
            nodes_filtered: self.filtered.values().sum(),
            nodes_available: self.available.into_iter().collect(),
            constraint_filtered: self.filtered.into_iter().collect(),
            ..PlacementMetrics::default()
        }
    }
}

fn add(counts: &mut BTreeMap<String, u32>, key: &str, more: u32) {
    match counts.get_mut(key) {
        Some(count) => *count += more,
        None => {
            counts.insert(key.to_owned(), more);
        }
    }
}

fn owned(counts: BTreeMap<&str, u32>) -> Vec<(String, u32)> {
    counts
        .into_iter()
        .map(|(key, count)| (key.to_owned(), count))
        .collect()
}

#[cfg(test)]
pub(super) mod tests;
