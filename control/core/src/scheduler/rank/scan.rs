//! The best node where nothing but the node itself decides: no spreads, no properties that must differ, no cores, no
//! devices, no condition that names one node.
//!
//! Nodes are looked at by kind (`scheduler/node_shapes.rs`), each block of them for its least sum. Nodes whose sums are
//! nearly the least are scored exactly, and the best of them is chosen as [`Ranking`](super::Ranking) would. Some nodes
//! are special cases that need more than their sum: an instance of the group is there, the instance failed there, or a
//! port is taken. These nodes are kept apart, in the order of their exact scores.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use muster_domain::alloc::{NodeScore, PlacementMetrics, Score};
use muster_domain::id::NodeId;
use muster_domain::job::{JobSpec, TaskGroup};
use muster_domain::resources::Amount;
use muster_domain::scheduling::Algorithm;

use super::affinity::Affinities;
use super::candidate::RankedNode;
use super::distinct::{self, HostRule};
use super::filter_counts::FilterCounts;
use super::own_score::OwnScore;
use super::rule::NodeScorer as _;
use super::rules;
use super::score_terms::{FULL, NamedScores, ScoreTerms, has_capacity, named, sum_components};
use crate::limits;
use crate::scheduler::feasible::FeasibilityCounts;
use crate::scheduler::fleet::{ExclusiveRequests, HoldingOffer, ProjectedNodes};
use crate::scheduler::node_shapes::{
    self, ClassView, FeasibilityCache, GroupRequirements, NodeShape, RequestFactors, SUM_ERROR_MAX,
    ScaledRequest, ShortfallCounts,
};
use crate::state::{AllocView, numbered};

/// One instance per this number of nodes: with more instances, a ranking is faster than a scan. A scan looks at kinds
/// and a few blocks for each instance. A ranking looks at every node once and then at one path in a tree.
const NODES_PER_SCANNED_INSTANCE: usize = 32;
/// With fewer nodes than this, both cost almost nothing.
const RANKING_NODES_MIN: usize = 256;

/// The result of looking for a place.
#[derive(Debug)]
pub(in crate::scheduler) enum ScanOutcome {
    Place(RankedNode),
    /// No node has room.
    Nothing,
    /// Too many nodes need a look one by one: use a ranking.
    Unsure,
}

/// A feasible kind.
#[derive(Debug)]
struct FeasibleShape {
    kind: usize,
    ask: ScaledRequest,
    affinity: Option<f64>,
    /// The least sum of each block, or a bound below it. Empty until the first look at blocks.
    least: Vec<(f32, BlockBound)>,
    /// The best node of each block, if it was computed. Empty until the first was.
    best: Vec<Option<BestNode>>,
    /// The least of all sums or bounds, and the best of all nodes if it was computed.
    low: f32,
    top: Option<BestNode>,
    /// Whether `low` is a sum.
    is_sum: bool,
}

/// The kind of value that is known for a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BlockBound {
    Bound,
    Least,
}

/// A best node, and its exact score.
#[derive(Clone, Copy, Debug)]
struct BestNode {
    rank: Rank,
    number: usize,
    score: f64,
}

impl FeasibleShape {
    /// Updates the totals after some blocks changed.
    fn summarise(&mut self, kind: &NodeShape, algorithm: Algorithm) {
        self.low = if self.least.is_empty() {
            kind.whole.bound(self.ask, algorithm)
        } else {
            self.lowest()
        };
        self.top = None;
        self.is_sum = false;
    }

    /// Returns the least of all sums and bounds of blocks.
    fn lowest(&self) -> f32 {
        let sums = self.least.iter().map(|(sum, _)| *sum);
        sums.fold(f32::INFINITY, f32::min)
    }

    /// Starts to look at the blocks one by one.
    fn open(&mut self, kind: &NodeShape, algorithm: Algorithm) {
        if self.least.is_empty() {
            let bounds = kind.block_bounds.iter();
            let bounds = bounds.map(|block| (block.bound(self.ask, algorithm), BlockBound::Bound));
            self.least = bounds.collect();
        }
    }

    /// Looks at the blocks with the lowest bounds until the lowest of all is a sum.
    fn find_least(&mut self, kind: &NodeShape, algorithm: Algorithm, first: usize) {
        self.open(kind, algorithm);
        while !self.is_sum {
            // Blocks that were looked at meanwhile may not be as low as their bounds.
            self.low = self.lowest();
            let low = self.low;
            let is_lowest = |(sum, _): &(f32, BlockBound)| *sum <= low;
            let mut lowest = self.least.iter().filter(|it| is_lowest(it));
            self.is_sum = lowest.any(|(_, known)| *known == BlockBound::Least);
            match self.least.iter().position(is_lowest) {
                Some(at) if !self.is_sum => self.compute_least(kind, at, first),
                Some(_) => {}
                None => self.is_sum = true,
            }
        }
    }

    /// Finds the least sum of the block at `at`.
    fn compute_least(&mut self, kind: &NodeShape, at: usize, first: usize) {
        let (_, known) = self.least[at];
        if known == BlockBound::Bound {
            let alike = kind.uniform_node(at, self.ask, first).map(|(sum, _)| sum);
            let sum = alike.unwrap_or_else(|| kind.blocks[at].least(self.ask));
            self.least[at] = (sum, BlockBound::Least);
        }
    }
}

/// A node that needs more than its sum.
#[derive(Clone, Copy, Debug)]
struct SpecialCase {
    /// Number of instances of the group, and of the job, that are on it or planned there.
    collisions: u32,
    of_job: u32,
    avoided: bool,
    own: OwnScore,
}

impl SpecialCase {
    const PLAIN: Self = Self {
        collisions: 0,
        of_job: 0,
        avoided: false,
        own: FULL,
    };
}

/// The order of nodes: the best score first, then the position among equal scores.
type Rank = (u64, (bool, usize));

/// The feasible nodes for one group, by kind.
#[derive(Debug)]
pub(in crate::scheduler) struct Scan<'a> {
    ask: Amount,
    extras: ExclusiveRequests<'a>,
    count: u32,
    algorithm: Algorithm,
    hosts: HostRule,
    usable: Vec<FeasibleShape>,
    /// Position in `usable` by kind.
    usable_of: Vec<Option<usize>>,
    special_cases: BTreeMap<usize, SpecialCase>,
    order: BTreeSet<Rank>,
    first: usize,
    /// Number of changes of the fleet that are included.
    seen: usize,
    /// Instances of the group that came or left since.
    moved: Vec<(usize, i32)>,
    refusals: u32,
    /// The metrics before the first instance was placed.
    metrics: PlacementMetrics,
}

impl<'a> Scan<'a> {
    /// Returns a scan. `None`: more than the node itself decides, or so many of `wanted` instances are to be placed
    /// that a ranking is faster. `present` are the instances of the job that stay. `planned` are the nodes of the
    /// instances that the plan placed before, each with whether the instance is of the group.
    pub(in crate::scheduler) fn new<'r>(
        fleet: &mut ProjectedNodes<'_>,
        job: &'a JobSpec,
        group: &'a TaskGroup,
        wanted: usize,
        present: impl Iterator<Item = AllocView<'r>>,
        planned: impl Iterator<Item = (usize, bool)>,
    ) -> Option<Self> {
        if wanted.saturating_mul(NODES_PER_SCANNED_INSTANCE)
            > fleet.columns().len().max(RANKING_NODES_MIN)
        {
            return None;
        }
        let extras = ExclusiveRequests::of(group);
        let affinities = Affinities::of(job, group);
        if !job.spreads.is_empty()
            || !group.spreads.is_empty()
            || !extras.only_ports()
            || affinities.names_one_node()
            || rules::declines_scan(job, group)
            || !distinct::properties(job, group).is_empty()
        {
            return None;
        }
        let (wants, judged) = fleet.kinds_mut().take_cache(job, group);
        if judged.verdicts().differ_within_class() {
            fleet.kinds_mut().keep(wants, judged);
            return None;
        }
        let mut scan = Self {
            ask: group.ask(),
            extras,
            count: group.count,
            algorithm: fleet.state().config().scheduler.algorithm,
            hosts: HostRule::of(job, group),
            usable: Vec::new(),
            usable_of: Vec::new(),
            special_cases: BTreeMap::new(),
            order: BTreeSet::new(),
            first: fleet.first(),
            seen: fleet.changed().len(),
            moved: Vec::new(),
            refusals: 0,
            metrics: PlacementMetrics::default(),
        };
        fleet.follow();
        let mut filter_counts = FilterCounts::default();
        scan.choose_kinds(fleet, (wants, judged), &affinities, &mut filter_counts)?;
        scan.metrics = filter_counts.into_metrics();
        let present = present.filter_map(|alloc| {
            let of_group = alloc.group().name == group.name;
            fleet.number_of(alloc).map(|number| (number, of_group))
        });
        let instances: Vec<(usize, bool)> = present.chain(planned).collect();
        for (number, of_group) in instances {
            scan.change(fleet, number, |special| {
                special.of_job += 1;
                special.collisions += u32::from(of_group);
            });
        }
        let short = scan.summarise_kinds(fleet);
        let full = scan.usable.iter();
        let full: u32 = full.map(|it| fleet.kinds().all()[it.kind].full()).sum();
        let [cpu, memory, disk] = short;
        let short = [cpu.saturating_sub(full), memory, disk, full];
        scan.exhausted(["cpu", "memory", "disk", "allocations"], short);
        scan.count_special_cases(fleet);
        scan.metrics.dimension_exhausted.sort_unstable();
        scan.metrics.scores = scan.top_nodes(fleet);
        Some(scan)
    }

    /// Counts special cases that cannot be used.
    fn count_special_cases(&mut self, fleet: &ProjectedNodes<'_>) {
        let mut apart = 0;
        for (number, special) in self.special_cases.clone() {
            if !fleet.column(number).takes_work {
                continue;
            }
            match self.fits(fleet, number, special) {
                Ok(()) => {}
                Err(distinct::HOSTS) => apart += 1,
                Err(dimension) => self.exhausted([dimension], [1]),
            }
        }
        if apart > 0 {
            self.metrics.nodes_filtered += apart;
            let filtered = (distinct::HOSTS.to_owned(), apart);
            self.metrics.constraint_filtered.push(filtered);
        }
    }

    /// Judges each kind. `None`: the amounts are too large for blocks.
    fn choose_kinds(
        &mut self,
        fleet: &mut ProjectedNodes<'_>,
        (wants, mut judged): (GroupRequirements, FeasibilityCache),
        affinities: &Affinities<'_>,
        filter_counts: &mut FilterCounts,
    ) -> Option<()> {
        let state = fleet.state();
        fleet
            .kinds_mut()
            .judge_new_classes(&mut judged, state, |spec| affinities.score(spec));
        let mut is_too_large = false;
        let mut factors = RequestFactors::new(self.ask, self.algorithm);
        let mut counts = FeasibilityCounts::default();
        let kinds = fleet.kinds().all().len();
        self.usable_of = vec![None; kinds];
        self.usable = Vec::with_capacity(kinds);
        for (at, kind) in fleet.kinds().all().iter().enumerate() {
            let open = kind.open();
            let Some(view) = judged.view(kind.group).filter(|_| open > 0) else {
                continue;
            };
            let ClassView {
                class_at,
                is_feasible,
                affinity,
            } = view;
            counts.add(class_at, open);
            if !is_feasible {
                continue;
            }
            if has_capacity(kind.total).is_err() {
                for number in kind.open_numbers() {
                    let column = fleet.column(number);
                    let reason = column.used.plus(self.ask).exceeds(column.total);
                    let reason = reason.or_else(|| has_capacity(column.total).err());
                    self.exhausted([reason.unwrap_or("cpu")], [1]);
                }
                continue;
            }
            let Some(ask) = factors.ask(kind.total) else {
                is_too_large = true;
                break;
            };
            self.usable_of[at] = Some(self.usable.len());
            self.usable.push(FeasibleShape {
                kind: at,
                ask,
                affinity,
                least: Vec::new(),
                best: Vec::new(),
                low: f32::INFINITY,
                top: None,
                is_sum: false,
            });
        }
        filter_counts.count_all(judged.verdicts(), &counts);
        fleet.kinds_mut().keep(wants, judged);
        (!is_too_large).then_some(())
    }

    fn summarise_kinds(&mut self, fleet: &ProjectedNodes<'_>) -> ShortfallCounts {
        let mut short = [0; 3];
        for usable in &mut self.usable {
            let kind = &fleet.kinds().all()[usable.kind];
            for (sum, more) in short.iter_mut().zip(kind.short(usable.ask)) {
                *sum += more;
            }
            usable.summarise(kind, self.algorithm);
        }
        short
    }

    /// Counts nodes that have too little.
    fn exhausted<const N: usize>(&mut self, names: [&str; N], counts: [u32; N]) {
        for (name, count) in names
            .into_iter()
            .zip(counts)
            .filter(|(_, count)| *count > 0)
        {
            self.metrics.nodes_exhausted += count;
            let known = &mut self.metrics.dimension_exhausted;
            match known.iter_mut().find(|(other, _)| other == name) {
                Some((_, sum)) => *sum += count,
                None => known.push((name.to_owned(), count)),
            }
        }
    }

    /// Takes out the metrics before the first instance was placed.
    pub(in crate::scheduler) fn take_metrics(&mut self) -> PlacementMetrics {
        std::mem::take(&mut self.metrics)
    }

    /// Places one instance on the best node and takes its share. `avoid` are nodes on which it failed before.
    pub(in crate::scheduler) fn place(
        &mut self,
        fleet: &mut ProjectedNodes<'_>,
        avoid: &[NodeId],
    ) -> ScanOutcome {
        self.apply_changes(fleet);
        let avoided: BTreeSet<usize> = avoid
            .iter()
            .filter_map(|node_id| fleet.number(node_id))
            .collect();
        for number in &avoided {
            self.change(fleet, *number, |special| special.avoided = true);
        }
        let found = self.find(fleet);
        if avoided.is_empty() {
            return found;
        }
        self.apply_changes(fleet);
        for number in &avoided {
            self.change(fleet, *number, |special| special.avoided = false);
        }
        found
    }

    fn find(&mut self, fleet: &mut ProjectedNodes<'_>) -> ScanOutcome {
        loop {
            let Some((number, score)) = self.best(fleet) else {
                return ScanOutcome::Nothing;
            };
            match fleet.assign(number, &self.extras) {
                Ok(HoldingOffer { holding, .. }) => {
                    fleet.take(number, self.ask, &holding);
                    self.moved.push((number, 1));
                    return ScanOutcome::Place(RankedNode {
                        node: numbered(number),
                        score: Score::new(score),
                        holding,
                        preempted: Vec::new(),
                    });
                }
                // A port is taken: the node becomes a special case.
                Err(_) if self.refusals < limits::REFUSALS_MAX => {
                    self.refusals += 1;
                    self.change(fleet, number, |_| {});
                }
                Err(_) => return ScanOutcome::Unsure,
            }
        }
    }

    /// Records that the plan stops an instance of the group on node `number`, or takes that stop back.
    pub(in crate::scheduler) fn record_stop(&mut self, number: usize, is_stopped: bool) {
        self.moved.push((number, if is_stopped { -1 } else { 1 }));
    }

    /// Includes the changes since the last instance was placed.
    fn apply_changes(&mut self, fleet: &mut ProjectedNodes<'_>) {
        let moved = std::mem::take(&mut self.moved);
        for (number, by) in &moved {
            self.change(fleet, *number, |special| {
                special.collisions = special.collisions.saturating_add_signed(*by);
                special.of_job = special.of_job.saturating_add_signed(*by);
            });
        }
        while let Some(number) = fleet.changed().get(self.seen).copied() {
            self.seen += 1;
            if moved.iter().all(|(other, _)| *other != number) {
                self.change(fleet, number, |_| {});
            }
        }
    }

    /// Updates node `number` after its special case or its column changed.
    fn change(
        &mut self,
        fleet: &mut ProjectedNodes<'_>,
        number: usize,
        what: impl FnOnce(&mut SpecialCase),
    ) {
        let Some(slot) = fleet.kinds().slot(number) else {
            return;
        };
        let Some(usable) = self.usable_of.get(slot.kind).copied().flatten() else {
            return;
        };
        let mut special = match self.special_cases.remove(&number) {
            Some(special) => {
                self.order
                    .remove(&self.rank(number, special.own.score(0.0)));
                special
            }
            None => SpecialCase::PLAIN,
        };
        what(&mut special);
        let is_plain = special.of_job == 0 && special.collisions == 0 && !special.avoided;
        let takes_work = fleet.column(number).takes_work;
        if takes_work && is_plain && fleet.assign(number, &self.extras).is_ok() {
            fleet.write_kind(number);
        } else {
            let affinity = self.usable[usable].affinity;
            special.own = self.own(fleet, number, affinity, special);
            if takes_work && special.own.sum > f64::NEG_INFINITY {
                self.order.insert(self.rank(number, special.own.score(0.0)));
            }
            self.special_cases.insert(number, special);
            fleet.kinds_mut().close(number);
        }
        let usable = &mut self.usable[usable];
        let kind = &fleet.kinds().all()[slot.kind];
        if let Some(least) = usable.least.get_mut(slot.block) {
            let bound = kind.block_bounds[slot.block].bound(usable.ask, self.algorithm);
            *least = (bound, BlockBound::Bound);
        }
        if let Some(best) = usable.best.get_mut(slot.block) {
            *best = None;
        }
        usable.summarise(kind, self.algorithm);
    }

    /// Returns the own part of a node's score; minus infinity for a node that cannot be used.
    fn own(
        &self,
        fleet: &ProjectedNodes<'_>,
        number: usize,
        affinity: Option<f64>,
        special: SpecialCase,
    ) -> OwnScore {
        if self.fits(fleet, number, special).is_err() {
            return FULL;
        }
        self.terms(fleet, number, affinity, special)
            .own(self.algorithm, self.count)
    }

    fn terms(
        &self,
        fleet: &ProjectedNodes<'_>,
        number: usize,
        affinity: Option<f64>,
        special: SpecialCase,
    ) -> ScoreTerms {
        let column = fleet.column(number);
        ScoreTerms {
            total: column.total,
            used: column.used.plus(self.ask),
            collisions: special.collisions,
            avoided: special.avoided,
            by_rules: rules::of_affinity(affinity),
            device_score: None,
        }
    }

    fn fits(
        &self,
        fleet: &ProjectedNodes<'_>,
        number: usize,
        special: SpecialCase,
    ) -> Result<(), &'static str> {
        if !self.hosts.allow(special.collisions, special.of_job) {
            return Err(distinct::HOSTS);
        }
        let column = fleet.column(number);
        let used = column.used.plus(self.ask);
        if let Some(dimension) = used.exceeds(column.total) {
            return Err(dimension);
        }
        fleet.assign(number, &self.extras).map(|_| ())
    }

    fn rank(&self, number: usize, score: f64) -> Rank {
        let bits = score.to_bits();
        // The number ascends with the score, for either sign.
        let ascending = if bits >> 63 == 1 {
            !bits
        } else {
            bits | 1 << 63
        };
        (!ascending, self.place_of(number))
    }

    /// Returns the position of a node in the order of equal scores: nodes before `first` come last.
    fn place_of(&self, number: usize) -> (bool, usize) {
        (number < self.first, number)
    }

    fn approximate_score(&self, usable: &FeasibleShape, sum: f32) -> f64 {
        approximate_score(usable, sum, self.algorithm)
    }

    fn best(&mut self, fleet: &ProjectedNodes<'_>) -> Option<(usize, f64)> {
        let mut best = self.order.first().map(|(_, (_, number))| {
            let score = self.special_cases[number].own.score(0.0);
            self.best_of(*number, score)
        });
        let special_score = best.map_or(f64::NEG_INFINITY, |best| best.score);
        // The scores of two kinds are off by as much as those of two nodes.
        let near = f64::from(SUM_ERROR_MAX) / 18.0;
        // The kind with the best bound is looked at first; most other kinds need no look then.
        let highest = loop {
            let (mut highest, mut promise) = (special_score, None);
            for (at, usable) in self.usable.iter().enumerate() {
                if !usable.low.is_finite() {
                    continue;
                }
                let score = self.approximate_score(usable, usable.low);
                if usable.is_sum {
                    highest = highest.max(score);
                } else if promise.is_none_or(|(other, _)| score > other) {
                    promise = Some((score, at));
                }
            }
            let Some((_, at)) = promise.filter(|(score, _)| *score >= highest - near) else {
                break highest;
            };
            let usable = &mut self.usable[at];
            let kind = &fleet.kinds().all()[usable.kind];
            usable.find_least(kind, self.algorithm, self.first);
        };
        for at in 0..self.usable.len() {
            let usable = &self.usable[at];
            if !usable.low.is_finite()
                || self.approximate_score(usable, usable.low) < highest - near
            {
                continue;
            }
            let known = usable.top;
            let found = known.or_else(|| self.compute_kind_best(fleet, at));
            best = better(best, found);
        }
        best.map(|best| (best.number, best.score))
    }

    /// Returns the kinds with the best score that they may have, best first.
    fn kinds_by_bound(&self) -> Vec<(f64, usize)> {
        let kinds = self.usable.iter().enumerate();
        let kinds = kinds.filter(|(_, usable)| usable.low.is_finite());
        let mut sorted: Vec<(f64, usize)> = Vec::with_capacity(self.usable.len());
        sorted.extend(kinds.map(|(at, usable)| (self.approximate_score(usable, usable.low), at)));
        sorted.sort_unstable_by(|one, other| other.0.total_cmp(&one.0).then(one.1.cmp(&other.1)));
        sorted
    }

    fn best_of(&self, number: usize, score: f64) -> BestNode {
        BestNode {
            rank: self.rank(number, score),
            number,
            score,
        }
    }

    /// Computes the best node of a kind exactly.
    fn compute_kind_best(&mut self, fleet: &ProjectedNodes<'_>, at: usize) -> Option<BestNode> {
        let usable = &mut self.usable[at];
        let kind = &fleet.kinds().all()[usable.kind];
        usable.find_least(kind, self.algorithm, self.first);
        let bound = usable.low + SUM_ERROR_MAX;
        let mut best = None;
        for block_at in 0..kind.blocks.len() {
            let usable = &mut self.usable[at];
            if !usable.low.is_finite() || usable.least[block_at].0 > bound {
                continue;
            }
            usable.compute_least(kind, block_at, self.first);
            if usable.least[block_at].0 > bound {
                continue;
            }
            let known = usable.best.get(block_at).copied().flatten();
            let found = known.or_else(|| self.compute_block_best(fleet, at, block_at));
            best = better(best, found);
        }
        self.usable[at].top = best;
        best
    }

    /// Computes the best node of a block exactly.
    fn compute_block_best(
        &mut self,
        fleet: &ProjectedNodes<'_>,
        at: usize,
        block_at: usize,
    ) -> Option<BestNode> {
        let usable = &self.usable[at];
        let kind = &fleet.kinds().all()[usable.kind];
        let block = &kind.blocks[block_at];
        let bound = usable.least[block_at].0 + SUM_ERROR_MAX;
        let exact = |number| {
            let terms = self.terms(fleet, number, usable.affinity, SpecialCase::PLAIN);
            terms.own(self.algorithm, self.count).score(0.0)
        };
        let mut best: Option<BestNode> = None;
        if let Some((_, number)) = kind.uniform_node(block_at, usable.ask, self.first) {
            best = Some(self.best_of(number, exact(number)));
        } else {
            let mut last: Option<((i32, i32), f64)> = None;
            for (slot, sum) in block.sums(usable.ask).iter().enumerate() {
                if *sum > bound {
                    continue;
                }
                let number = block.number(slot);
                let score = match last {
                    Some((free, score)) if block.is_alike(slot, free) => score,
                    Some(_) | None => exact(number),
                };
                last = Some((block.free(slot), score));
                best = better(best, Some(self.best_of(number, score)));
            }
        }
        let usable = &mut self.usable[at];
        usable.best.resize(usable.least.len(), None);
        usable.best[block_at] = best;
        best
    }

    /// The best nodes with their scores, best first.
    fn top_nodes(&mut self, fleet: &ProjectedNodes<'_>) -> Vec<NodeScore> {
        let mut top = TopScores::empty();
        for (number, special) in &self.special_cases {
            if special.own.sum > f64::NEG_INFINITY && fleet.column(*number).takes_work {
                top.offer(special.own.score(0.0), *number);
            }
        }
        for (promise, usable_at) in self.kinds_by_bound() {
            if !top.takes(promise, 0) {
                break;
            }
            let usable = &mut self.usable[usable_at];
            let kind = &fleet.kinds().all()[usable.kind];
            usable.open(kind, self.algorithm);
            // The bounds of its blocks are tighter than the bound of all of them together.
            usable.low = usable.lowest();
            let promise = approximate_score(usable, usable.low, self.algorithm);
            if !usable.low.is_finite() || !top.takes(promise, kind.whole.least_number()) {
                continue;
            }
            // The block with the best bound comes first: most other blocks have no candidate then.
            let promises = usable.least.iter().enumerate();
            let first = promises.min_by(|(_, one), (_, other)| one.0.total_cmp(&other.0));
            let first = first.map(|(at, _)| at);
            let others = (0..kind.blocks.len()).filter(|at| Some(*at) != first);
            for at in first.into_iter().chain(others) {
                let usable = &self.usable[usable_at];
                if usable.least[at].0 <= sum_upper_bound(usable, &top, self.algorithm) {
                    self.offer_block(fleet, usable_at, at, &mut top);
                }
            }
        }
        // Nodes that are equally full are adjacent, and have the same components.
        let mut last: Option<(ScoreTerms, f64, NamedScores)> = None;
        let mut best: Vec<(f64, usize, NodeScore)> = Vec::with_capacity(limits::SCORES_MAX);
        for (_, number) in top.0 {
            let slot = fleet.kinds().slot(number);
            let usable = slot.and_then(|slot| self.usable_of[slot.kind]);
            let Some(usable) = usable.map(|at| &self.usable[at]) else {
                continue;
            };
            let special = self
                .special_cases
                .get(&number)
                .copied()
                .unwrap_or(SpecialCase::PLAIN);
            let terms = self.terms(fleet, number, usable.affinity, special);
            let (_, score, components) = match last.take_if(|(other, ..)| *other == terms) {
                Some(known) => last.insert(known),
                None => {
                    let components = terms.components(self.algorithm, self.count);
                    let score = sum_components(components).score(0.0);
                    last.insert((terms, score, named(components, 0.0)))
                }
            };
            let node_score = NodeScore {
                node_id: fleet.column(number).node_id,
                components: Arc::clone(components),
                normalised: Score::new(*score),
            };
            best.push((*score, number, node_score));
        }
        best.sort_by(|one, other| other.0.total_cmp(&one.0).then(one.1.cmp(&other.1)));
        let mut scores = Vec::with_capacity(best.len());
        scores.extend(best.into_iter().map(|(_, _, score)| score));
        scores
    }

    /// Adds the nodes of a block to the best ones, if any of them may be among these.
    fn offer_block(
        &mut self,
        fleet: &ProjectedNodes<'_>,
        usable_at: usize,
        at: usize,
        top: &mut TopScores,
    ) {
        let usable = &mut self.usable[usable_at];
        let kind = &fleet.kinds().all()[usable.kind];
        let least_number = kind.block_bounds[at].least_number();
        let takes = |(sum, _): (f32, BlockBound), usable: &FeasibleShape, top: &TopScores| {
            let score = approximate_score(usable, sum, self.algorithm);
            sum.is_finite() && top.takes(score, least_number)
        };
        // No node of the block is better, and no equally good node has a lower number.
        if !takes(usable.least[at], usable, top) {
            return;
        }
        usable.compute_least(kind, at, self.first);
        if !takes(usable.least[at], usable, top) {
            return;
        }
        let block = &kind.blocks[at];
        let mut most = sum_upper_bound(usable, top, self.algorithm);
        let mut refused: Option<(f32, usize)> = None;
        for (slot, sum) in block.sums(usable.ask).iter().enumerate() {
            let sum = *sum;
            if sum > most {
                continue;
            }
            let number = block.number(slot);
            // The node is not better than one that was refused, and its number is not lower.
            if refused.is_some_and(|(other, at)| sum >= other && number >= at) {
                continue;
            }
            let score = approximate_score(usable, sum, self.algorithm);
            if top.takes(score, number) {
                top.offer(score, number);
                most = sum_upper_bound(usable, top, self.algorithm);
            } else {
                refused = Some((sum, number));
            }
        }
    }
}

/// Returns the approximate score of a sum.
fn approximate_score(usable: &FeasibleShape, sum: f32, algorithm: Algorithm) -> f64 {
    let fit = node_shapes::fit(sum, algorithm);
    match usable.affinity {
        Some(affinity) => f64::midpoint(fit, affinity),
        None => fit,
    }
}

/// Returns the sum above which a node is not among the best.
fn sum_upper_bound(usable: &FeasibleShape, top: &TopScores, algorithm: Algorithm) -> f32 {
    let Some((score, _)) = top.0.get(limits::SCORES_MAX - 1) else {
        return f32::MAX;
    };
    let fit = usable
        .affinity
        .map_or(*score, |affinity| 2.0 * score - affinity);
    node_shapes::sum(fit, algorithm) + SUM_ERROR_MAX
}

fn better(one: Option<BestNode>, other: Option<BestNode>) -> Option<BestNode> {
    match (one, other) {
        (Some(one), Some(other)) if other.rank < one.rank => Some(other),
        (Some(one), _) => Some(one),
        (None, other) => other,
    }
}

/// The best scores so far, best first; of equal ones the lowest number first.
#[derive(Debug)]
struct TopScores(Vec<(f64, usize)>);

impl TopScores {
    fn empty() -> Self {
        Self(Vec::with_capacity(limits::SCORES_MAX + 1))
    }

    /// Returns whether a node with this score would be among the best.
    fn takes(&self, score: f64, number: usize) -> bool {
        let last = self.0.get(limits::SCORES_MAX - 1);
        last.is_none_or(|(other, at)| score > *other || (score >= *other && number < *at))
    }

    fn offer(&mut self, score: f64, number: usize) {
        if self.takes(score, number) {
            let goes_before =
                |(other, at): &(f64, usize)| *other > score || (*other >= score && *at < number);
            let place = self.0.partition_point(goes_before);
            self.0.insert(place, (score, number));
            self.0.truncate(limits::SCORES_MAX);
        }
    }
}
