//! Finds the best of the feasible nodes.
//!
//! The score of a node is the mean of its components. A component that does not apply is left out of the mean, as in
//! Nomad, so a node may gain from having none. A component is a file in `rank/` and a line in [`RULES`] or in
//! [`ScoreTerms::components`]. Components that many nodes share, such as spreads, are separate. Of equal nodes, the
//! first one from the seed's position on goes first.
//!
//! | file | content |
//! |---|---|
//! | `rank/rules.rs` | the list of rules that a node's properties decide |
//! | `rank/score_terms.rs` | the terms of a node's own part of the score |
//! | `rank/scan.rs` | the common case: nothing but the node itself decides, and nodes are looked at by kind |
//! | `rank/tournament.rs` | the best of many scores, kept up as single ones change |
//! | `rank/grouped.rs` | the same where a part of the score is shared |
//! | `rank/values.rs` | the values that nodes have for an attribute |
//! | `rank/by_class.rs` | answers that the nodes of one class share |
//! | `rank/distinct.rs` | nodes and values that instances must not share |
//! | `rank/evict.rs` | the allocations that make room where there is none |

mod affinity;
mod anti_affinity;
mod binpack;
mod by_class;
mod candidate;
mod distinct;
mod evict;
mod filter_counts;
mod grouped;
mod own_score;
mod reschedule_penalty;
mod rule;
mod rules;
mod scan;
mod score_terms;
mod spread;
mod tournament;
mod values;

use std::borrow::Cow;
use std::collections::BTreeMap;

use muster_domain::alloc::{NodeScore, PlacementMetrics, Score};
use muster_domain::id::{AllocId, JobKey, NodeId};
use muster_domain::job::{JobSpec, TaskGroup};
use muster_domain::number;
use muster_domain::resources::Amount;
use muster_domain::scheduling::Algorithm;

use super::feasible::{FeasibilityCheck, GroupConstraints, value_of};
use super::fleet::{ExclusiveRequests, HoldingOffer, ProjectedNodes};
use crate::limits;
use crate::state::{AllocView, numbered};
use by_class::ByClass;
use candidate::Candidate;
pub(super) use candidate::RankedNode;
use distinct::{HostRule, PropertyRule};
use evict::Evictions;
use filter_counts::FilterCounts;
use grouped::GroupedCandidates;
use own_score::OwnScore;
use rules::{NodeScores, RULES, UNSCORED};
pub(super) use scan::{Scan, ScanOutcome};
use score_terms::{FULL, ScoreTerms, has_capacity, node_score};
use spread::NumberedSpread;
use tournament::Tournament;
use values::Values;

/// The position of a node that is not a candidate.
const NO_POSITION: u32 = u32::MAX;

/// A spread, and the value of each candidate for it.
#[derive(Debug)]
struct CandidateSpread {
    values: Values,
    uses: NumberedSpread,
}

/// The best of the candidates.
#[derive(Debug)]
enum CandidateTree {
    /// Each candidate has a score of its own.
    Alone { scores: Vec<f64>, tree: Tournament },
    /// Candidates share parts of their scores, because of spreads.
    Shared {
        groups: GroupedCandidates,
        /// The value of each spread, by group.
        values: Vec<Vec<Option<u32>>>,
        /// The shared part, by group.
        shared: Vec<f64>,
        /// A buffer for the computation of the shared part.
        boosts: Vec<f64>,
    },
}

/// The feasible nodes for one group, the best on top.
#[derive(Debug)]
pub(super) struct Ranking<'a> {
    job: JobKey,
    ask: Amount,
    extras: ExclusiveRequests<'a>,
    count: u32,
    algorithm: Algorithm,
    hosts: HostRule,
    properties: Vec<PropertyRule<'a>>,
    spreads: Vec<CandidateSpread>,
    candidates: Vec<Candidate>,
    /// The scores of each candidate by the rules; empty if the group uses none.
    by_rules: Vec<NodeScores>,
    /// The part of the score that each candidate shares with no other.
    own_scores: Vec<OwnScore>,
    best: CandidateTree,
    /// Position among the candidates by number of the node; [`NO_POSITION`] if it is not feasible.
    positions: Vec<u32>,
    filtered: PlacementMetrics,
    evictions: Option<Evictions>,
}

impl<'a> Ranking<'a> {
    /// Scores every feasible node of `fleet` for an instance of `group`. `present` are the instances of the job that
    /// stay. `planned` are the nodes of the instances that the plan placed before, each with whether the instance is of
    /// the group.
    pub(super) fn new<'r>(
        fleet: &ProjectedNodes<'_>,
        job: &'a JobSpec,
        group: &'a TaskGroup,
        present: impl Iterator<Item = AllocView<'r>>,
        planned: impl Iterator<Item = (usize, bool)>,
    ) -> Self {
        let mut filter_counts = FilterCounts::default();
        let candidates = filter_counts.take(
            fleet,
            FeasibilityCheck::new(GroupConstraints::of(job, group)),
        );
        let mut positions = vec![NO_POSITION; fleet.columns().len()];
        for (at, candidate) in (0..).zip(&candidates) {
            positions[candidate.number] = at;
        }
        let mut ranking = Self {
            job: job.key(),
            ask: group.ask(),
            extras: ExclusiveRequests::of(group),
            count: group.count,
            algorithm: fleet.state().config().scheduler.algorithm,
            hosts: HostRule::of(job, group),
            properties: distinct::properties(job, group),
            spreads: Vec::new(),
            by_rules: scores_by_rules(fleet, (job, group), &candidates),
            candidates,
            own_scores: Vec::new(),
            best: CandidateTree::Alone {
                scores: Vec::new(),
                tree: Tournament::default(),
            },
            positions,
            filtered: filter_counts.into_metrics(),
            evictions: None,
        };
        ranking.count_instances(fleet, job, group, present, planned);
        ranking.own_scores = (0..ranking.candidates.len())
            .map(|at| ranking.own(fleet, at, false))
            .collect();
        let candidates = &ranking.candidates;
        let first = candidates.partition_point(|it| it.number < fleet.first());
        ranking.best = ranking.begin(first);
        ranking
    }

    /// Counts the existing instances of the job.
    fn count_instances<'r>(
        &mut self,
        fleet: &ProjectedNodes<'_>,
        job: &JobSpec,
        group: &TaskGroup,
        present: impl Iterator<Item = AllocView<'r>>,
        planned: impl Iterator<Item = (usize, bool)>,
    ) {
        let mut uses = spread::uses(&job.spreads, &group.spreads, group.count);
        let attributes = uses.iter().map(|of| Values::of(&of.attribute));
        let mut attributes: Vec<Values> = attributes.collect();
        if !uses.is_empty() || !self.properties.is_empty() {
            for candidate in &self.candidates {
                let spec = || fleet.spec(candidate.number);
                for (of, values) in uses.iter().zip(&mut attributes) {
                    values.push(&of.attribute, candidate.class, spec);
                }
                for property in &mut self.properties {
                    let PropertyRule {
                        attribute, values, ..
                    } = property;
                    values.push(attribute, candidate.class, spec);
                }
            }
        }
        self.properties.iter_mut().for_each(PropertyRule::ready);
        let present = present.filter_map(|alloc| {
            let of_group = alloc.group().name == group.name;
            fleet.number_of(alloc).map(|number| (number, of_group))
        });
        for (number, of_group) in present.chain(planned) {
            let spec = || fleet.spec(number);
            if of_group
                && !uses.is_empty()
                && let Some(spec) = spec()
            {
                for of in &mut uses {
                    let value = value_of(&of.attribute, spec).map(Cow::into_owned);
                    if let Some(value) = value {
                        of.runs(&value);
                    }
                }
            }
            if !self.properties.is_empty()
                && let Some(spec) = spec()
            {
                for property in &mut self.properties {
                    if property.of_job || of_group {
                        let value = value_of(property.attribute, spec);
                        let number = value.and_then(|value| property.values.number(&value));
                        property.count(number, 1);
                    }
                }
            }
            if let Some(at) = self.position(number) {
                let candidate = &mut self.candidates[at];
                candidate.of_job += 1;
                candidate.collisions += u32::from(of_group);
            }
        }
        self.spreads = uses
            .iter()
            .zip(attributes)
            .map(|(uses, values)| CandidateSpread {
                uses: uses.numbered(&values.names),
                values,
            })
            .collect();
    }

    /// Returns the tree of candidates. Of equal candidates, the first one from `first` on goes first.
    fn begin(&self, first: usize) -> CandidateTree {
        if self.spreads.is_empty() {
            let scores: Vec<f64> = self.own_scores.iter().map(|own| own.score(0.0)).collect();
            let tree = Tournament::new(&scores, first);
            return CandidateTree::Alone { scores, tree };
        }
        let mut numbers: BTreeMap<Vec<Option<u32>>, u32> = BTreeMap::new();
        let mut values: Vec<Vec<Option<u32>>> = Vec::new();
        let mut group_of = Vec::with_capacity(self.candidates.len());
        for at in 0..self.candidates.len() {
            let own: Vec<Option<u32>> = self
                .spreads
                .iter()
                .map(|spread| spread.values.of[at])
                .collect();
            let number = match numbers.get(&own) {
                Some(number) => *number,
                None => {
                    let number = number::count(values.len());
                    numbers.insert(own.clone(), number);
                    values.push(own);
                    number
                }
            };
            group_of.push(number);
        }
        let (mut shared, mut boosts) = (Vec::new(), Vec::new());
        compute_shared_scores(&self.spreads, &values, &mut shared, &mut boosts);
        CandidateTree::Shared {
            groups: GroupedCandidates::new(&group_of, &self.own_scores, first),
            values,
            shared,
            boosts,
        }
    }

    /// Places one instance on the best node and takes its share. `avoid` are nodes on which it failed before. `None`:
    /// every feasible node is full.
    pub(super) fn place(
        &mut self,
        fleet: &mut ProjectedNodes<'_>,
        avoid: &[NodeId],
    ) -> Option<RankedNode> {
        let avoided: Vec<usize> = avoid
            .iter()
            .filter_map(|node_id| fleet.number(node_id))
            .filter_map(|number| self.position(number))
            .collect();
        for at in &avoided {
            let own = self.own(fleet, *at, true);
            self.set(*at, own);
        }
        let place = self.take_best(fleet);
        for at in avoided {
            let own = self.own(fleet, at, false);
            self.set(at, own);
        }
        place
    }

    fn take_best(&mut self, fleet: &mut ProjectedNodes<'_>) -> Option<RankedNode> {
        let (at, score) = self.winner()?;
        // A node that lacks a requested item has a score of minus infinity, so the winner has all items.
        self.take(fleet, at, score, Vec::new()).ok()
    }

    /// Takes the share of one instance on the candidate at `at`.
    fn take(
        &mut self,
        fleet: &mut ProjectedNodes<'_>,
        at: usize,
        score: f64,
        preempted: Vec<AllocId>,
    ) -> Result<RankedNode, &'static str> {
        let number = self.candidates[at].number;
        let HoldingOffer { holding, .. } = fleet.assign(number, &self.extras)?;
        fleet.take(number, self.ask, &holding);
        self.record_placed(fleet, at);
        Ok(RankedNode {
            node: numbered(number),
            score: Score::new(score),
            holding,
            preempted,
        })
    }

    /// Places an instance although no node has room, by evicting allocations of jobs with a lower priority than
    /// `priority`.
    pub(super) fn place_preempting(
        &mut self,
        fleet: &mut ProjectedNodes<'_>,
        job: &JobKey,
        priority: u8,
    ) -> Option<RankedNode> {
        let mut evictions = match self.evictions.take() {
            Some(evictions) => evictions,
            None => Evictions::new(self, fleet),
        };
        let chosen = evictions.best(self, fleet, job, priority);
        let evictions = self.evictions.insert(evictions);
        let (at, score, victims) = chosen?;
        let mut preempted = Vec::with_capacity(victims.len());
        for alloc_id in victims {
            if let Some(alloc) = fleet.state().allocs().get(&alloc_id) {
                fleet.evict(alloc);
                preempted.push(alloc_id);
                if evict::has_reached_max_parallel(fleet, alloc) {
                    evictions.mark_preferences_changed();
                }
            }
        }
        self.take(fleet, at, score, preempted).ok()
    }

    /// Returns the node and the victims that [`Self::place_preempting`] should choose, found by looking at each node.
    #[cfg(test)]
    pub(super) fn best_of_all_preempting(
        &self,
        fleet: &ProjectedNodes<'_>,
        job: &JobKey,
        priority: u8,
    ) -> Option<(muster_domain::id::NodeNumber, Score, Vec<AllocId>)> {
        let (at, score, victims) = evict::best_of_all(self, fleet, job, priority)?;
        let number = self.candidates[at].number;
        Some((numbered(number), Score::new(score), victims))
    }

    /// The feasible nodes, by number.
    pub(super) fn numbers(&self) -> impl Iterator<Item = usize> {
        self.candidates.iter().map(|candidate| candidate.number)
    }

    /// Places one instance on node `number`. If `preempting` has a job and its priority, allocations of jobs with a
    /// lower priority may be evicted for that job. Returns the name of the resource that is short, if one is.
    pub(super) fn place_at(
        &mut self,
        fleet: &mut ProjectedNodes<'_>,
        number: usize,
        preempting: Option<(&JobKey, u8)>,
    ) -> Result<RankedNode, &'static str> {
        let at = self.position(number).ok_or("node")?;
        let mut preempted = Vec::new();
        if let Err(missing) = self.fits(fleet, at) {
            let (job, priority) = preempting.ok_or(missing)?;
            self.is_allowed(at)?;
            let victims = evict::victims(self, fleet, number, job, priority).ok_or(missing)?;
            for alloc in victims {
                preempted.push(alloc.id());
                fleet.evict(alloc);
            }
        }
        let score = self.own(fleet, at, false).score(self.shared(at));
        self.take(fleet, at, score, preempted)
    }

    /// Records that an instance was planned for the candidate at `at`.
    fn record_placed(&mut self, fleet: &ProjectedNodes<'_>, at: usize) {
        for spread in &mut self.spreads {
            spread.uses.plan(spread.values.of[at], 1);
        }
        self.record_count_change(fleet, at, 1);
    }

    /// Records that the plan stops an instance of the group on node `number`, or takes that stop back.
    pub(super) fn record_stop(
        &mut self,
        fleet: &ProjectedNodes<'_>,
        number: usize,
        is_stopped: bool,
    ) {
        if let Some(at) = self.position(number) {
            let by = if is_stopped { 1 } else { -1 };
            for spread in &mut self.spreads {
                spread.uses.stop(spread.values.of[at], by);
            }
            self.record_count_change(fleet, at, -by);
        }
    }

    /// Records that the number of instances on a candidate changed.
    fn record_count_change(&mut self, fleet: &ProjectedNodes<'_>, at: usize, by: i32) {
        let candidate = &mut self.candidates[at];
        candidate.collisions = candidate.collisions.saturating_add_signed(by);
        candidate.of_job = candidate.of_job.saturating_add_signed(by);
        let mut others: Vec<usize> = Vec::new();
        for property in &mut self.properties {
            let value = property.values.of[at];
            if property.count(value, by) {
                let of = property.values.of.iter().enumerate();
                others.extend(of.filter(|(_, other)| **other == value).map(|(at, _)| at));
            }
        }
        others.push(at);
        if let Some(evictions) = &mut self.evictions {
            evictions.mark_outdated(&others);
        }
        for other in others {
            let own = self.own(fleet, other, false);
            self.set(other, own);
        }
        if let CandidateTree::Shared {
            values,
            shared,
            boosts,
            ..
        } = &mut self.best
        {
            compute_shared_scores(&self.spreads, values, shared, boosts);
        }
    }

    fn position(&self, number: usize) -> Option<usize> {
        self.positions
            .get(number)
            .filter(|at| **at != NO_POSITION)
            .map(|at| *at as usize)
    }

    fn set(&mut self, at: usize, own: OwnScore) {
        self.own_scores[at] = own;
        match &mut self.best {
            CandidateTree::Alone { scores, tree } => {
                scores[at] = own.score(0.0);
                tree.update(scores, at);
            }
            CandidateTree::Shared { groups, .. } => groups.update(at, own),
        }
    }

    fn winner(&self) -> Option<(usize, f64)> {
        match &self.best {
            CandidateTree::Alone { scores, tree } => tree
                .winner()
                .map(|at| (at, scores[at]))
                .filter(|(_, score)| *score > f64::NEG_INFINITY),
            CandidateTree::Shared { groups, shared, .. } => groups.winner(shared),
        }
    }

    /// Returns the current score of a candidate.
    fn score(&self, at: usize) -> f64 {
        self.own_scores[at].score(self.shared(at))
    }

    /// Returns the score that spreads give a candidate.
    fn shared(&self, at: usize) -> f64 {
        match &self.best {
            CandidateTree::Alone { .. } => 0.0,
            CandidateTree::Shared { groups, shared, .. } => shared[groups.group_of(at) as usize],
        }
    }

    /// Returns the group of candidates with the same values to which a candidate belongs.
    fn group_of(&self, at: usize) -> u32 {
        match &self.best {
            CandidateTree::Alone { .. } => 0,
            CandidateTree::Shared { groups, .. } => groups.group_of(at),
        }
    }

    /// Returns the scores that spreads give each group.
    fn shared_scores(&self) -> &[f64] {
        match &self.best {
            CandidateTree::Alone { .. } => &[0.0],
            CandidateTree::Shared { shared, .. } => shared,
        }
    }

    /// Returns the part of a candidate's score that it shares with no other; minus infinity for a full node.
    fn own(&self, fleet: &ProjectedNodes<'_>, at: usize, avoided: bool) -> OwnScore {
        let Ok(assigned) = self.fits(fleet, at) else {
            return FULL;
        };
        let used = fleet.column(self.candidates[at].number).used;
        let terms = self.terms(fleet, at, used, assigned.device_score, avoided);
        terms.own(self.algorithm, self.count)
    }

    /// Returns the terms of the candidate's own part, if `used` of the node is used besides the instance.
    fn terms(
        &self,
        fleet: &ProjectedNodes<'_>,
        at: usize,
        used: Amount,
        device_score: Option<f64>,
        avoided: bool,
    ) -> ScoreTerms {
        let candidate = self.candidates[at];
        ScoreTerms {
            total: fleet.column(candidate.number).total,
            used: used.plus(self.ask_on(fleet, candidate.number)),
            collisions: candidate.collisions,
            avoided,
            by_rules: self.by_rules.get(at).copied().unwrap_or(UNSCORED),
            device_score,
        }
    }

    /// Returns the amounts that one instance takes of a node; cores count with the MHz that they have there.
    pub(super) fn ask_on(&self, fleet: &ProjectedNodes<'_>, number: usize) -> Amount {
        let mut ask = self.ask;
        let cores = fleet.cores_mhz(number, &self.extras);
        ask.cpu_mhz = ask.cpu_mhz.saturating_add(cores);
        ask
    }

    /// Returns the holding of one more instance on a candidate, or the name of the resource that is short there.
    fn fits(&self, fleet: &ProjectedNodes<'_>, at: usize) -> Result<HoldingOffer, &'static str> {
        let number = self.candidates[at].number;
        let column = fleet.column(number);
        self.is_allowed(at)?;
        let used = column.used.plus(self.ask_on(fleet, number));
        if let Some(dimension) = used.exceeds(column.total) {
            return Err(dimension);
        }
        has_capacity(column.total)?;
        fleet.assign(number, &self.extras)
    }

    /// Returns whether the job allows one more instance on a candidate, leaving aside the node's room.
    fn is_allowed(&self, at: usize) -> Result<(), &'static str> {
        let candidate = self.candidates[at];
        if !self.hosts.allow(candidate.collisions, candidate.of_job) {
            return Err(distinct::HOSTS);
        }
        if !self.properties.iter().all(|property| property.allows(at)) {
            return Err(distinct::PROPERTY);
        }
        Ok(())
    }

    /// Returns the rule by which the job keeps one more instance from node `number`, if one does. The rule is evaluated
    /// anew for nodes that are not candidates.
    pub(super) fn distinct_violation(
        &self,
        fleet: &ProjectedNodes<'_>,
        number: usize,
    ) -> Option<&'static str> {
        match self.position(number) {
            Some(at) => self.is_allowed(at).err(),
            None => {
                let node_number = numbered(number);
                let on_it = fleet.state().allocs().on(node_number);
                let any = on_it
                    .filter(|alloc| !alloc.is_terminal())
                    .any(|alloc| **alloc.job_key() == self.job && self.hosts != HostRule::Shared);
                any.then_some(distinct::HOSTS)
            }
        }
    }

    /// Returns the score of node `number` for one more instance, if it fits.
    pub(super) fn score_of(&self, fleet: &ProjectedNodes<'_>, number: usize) -> Option<NodeScore> {
        let at = self.position(number)?;
        let score = Some(self.score(at)).filter(|score| *score > f64::NEG_INFINITY)?;
        Some(self.node_score(fleet, at, score))
    }

    /// Returns the metrics: nodes refused and full by reason, and the best scores.
    pub(super) fn metrics(&self, fleet: &ProjectedNodes<'_>) -> PlacementMetrics {
        let mut exhausted: BTreeMap<&str, u32> = BTreeMap::new();
        let mut filtered: BTreeMap<&str, u32> = BTreeMap::new();
        let mut top: Vec<(f64, usize)> = Vec::with_capacity(limits::SCORES_MAX + 1);
        for at in 0..self.candidates.len() {
            let score = self.score(at);
            if score > f64::NEG_INFINITY {
                // Most nodes are not among the best; a comparison with the worst of those shows that at once.
                let worst = top.get(limits::SCORES_MAX - 1);
                if worst.is_none_or(|(worst, _)| score > *worst) {
                    let place = top.partition_point(|(other, _)| *other >= score);
                    top.insert(place, (score, at));
                    top.truncate(limits::SCORES_MAX);
                }
            } else if let Err(reason) = self.fits(fleet, at) {
                let counts = match reason {
                    distinct::HOSTS | distinct::PROPERTY => &mut filtered,
                    _ => &mut exhausted,
                };
                *counts.entry(reason).or_default() += 1;
            }
        }
        let mut metrics = self.filtered.clone();
        metrics.nodes_filtered += filtered.values().sum::<u32>();
        metrics.constraint_filtered.extend(owned(filtered));
        PlacementMetrics {
            nodes_exhausted: exhausted.values().sum(),
            dimension_exhausted: owned(exhausted),
            scores: top
                .into_iter()
                .map(|(score, at)| self.node_score(fleet, at, score))
                .collect(),
            ..metrics
        }
    }

    fn node_score(&self, fleet: &ProjectedNodes<'_>, at: usize, score: f64) -> NodeScore {
        let number = self.candidates[at].number;
        let device_score = fleet
            .assign(number, &self.extras)
            .ok()
            .and_then(|assigned| assigned.device_score);
        let column = fleet.column(number);
        let terms = self.terms(fleet, at, column.used, device_score, false);
        let own = terms.components(self.algorithm, self.count);
        node_score(column.node_id, own, self.shared(at), score)
    }
}

/// Computes the score that spreads give each group of candidates.
fn compute_shared_scores(
    spreads: &[CandidateSpread],
    values: &[Vec<Option<u32>>],
    shared: &mut Vec<f64>,
    boosts: &mut Vec<f64>,
) {
    shared.clear();
    shared.resize(values.len(), 0.0);
    for (at, spread) in spreads.iter().enumerate() {
        spread.uses.boosts(boosts);
        let missing = boosts.len() - 1;
        for (sum, own) in shared.iter_mut().zip(values) {
            *sum += boosts[own[at].map_or(missing, |value| value as usize)];
        }
    }
}

/// Returns the scores of each candidate by the rules; empty if the group uses none.
fn scores_by_rules(
    fleet: &ProjectedNodes<'_>,
    (job, group): (&JobSpec, &TaskGroup),
    candidates: &[Candidate],
) -> Vec<NodeScores> {
    let mut scores = Vec::new();
    for (at, rule) in RULES.iter().enumerate() {
        let Some(scorer) = (rule.prepare)(job, group) else {
            continue;
        };
        scores.resize(candidates.len(), UNSCORED);
        let mut by_class = ByClass::new(scorer.names_one_node());
        for (candidate, scores) in candidates.iter().zip(&mut scores) {
            scores[at] = by_class.get(candidate.class, || {
                scorer.score(fleet.spec(candidate.number)?)
            });
        }
    }
    scores
}

fn owned(counts: BTreeMap<&str, u32>) -> Vec<(String, u32)> {
    counts
        .into_iter()
        .map(|(key, count)| (key.to_owned(), count))
        .collect()
}

#[cfg(test)]
pub(super) mod tests;
