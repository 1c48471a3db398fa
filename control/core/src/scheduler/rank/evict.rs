//! Chooses the allocations to evict if no node has room.
//!
//! For each candidate, `preempt` chooses the allocations to evict. Holders of requested ports, devices and cores are
//! evicted first, the least important of them. A holder that need not be evicted after all stays. If an allocation is
//! evicted for such resources, every evicted allocation must be necessary. If Nomad's rule for devices evicts fewer or
//! less important allocations, that rule is followed. The node is scored as it would be after the evictions, with a
//! component that is higher the less is lost.
//!
//! The victims are computed only for candidates that are about to be chosen. The other candidates cannot be better than
//! [`own_upper_bound`]. The choice is dropped when the plan changed the candidate. It is also dropped when the plan
//! evicts so many allocations of a group elsewhere that another allocation may be evicted instead.

use std::collections::{BTreeMap, BTreeSet};

use muster_domain::id::{AllocId, JobKey};
use muster_domain::node::{DeviceGroup, NodeSpec};
use muster_domain::resources::{AllocatedPort, Amount, HeldDevices, Holding};
use muster_domain::scheduling::{Algorithm, may_evict};

use super::Ranking;
use super::grouped::GroupedCandidates;
use super::own_score::OwnScore;
use super::score_terms::{FULL, ScoreTerms, has_capacity};
use crate::scheduler::feasible::device_matches;
use crate::scheduler::fleet::{self, ExclusiveRequests, ProjectedNodes};
use crate::scheduler::preempt::{self, Candidate, NodeUsage, PreemptionCost};
use crate::state::{AllocView, NodeHoldings};

/// The cost of each candidate.
#[derive(Debug)]
pub(super) struct Evictions {
    best: GroupedCandidates,
    /// Whether the victims of a candidate were computed; the bound of other candidates is [`own_upper_bound`].
    is_computed: Vec<bool>,
    /// Candidates that changed since the last computation.
    outdated: Vec<usize>,
    /// Candidates with computed victims, of which others are chosen if the plan evicts enough elsewhere.
    plan_dependent: Vec<usize>,
    /// Whether the plan evicts that many elsewhere.
    has_new_preferences: bool,
}

/// A bound above the rounding error of a sum of components; there are a handful, hardly above 1.
const ROUNDED: f64 = 1e-12;

/// The allocations to evict, and the candidate's score after that.
struct EvictionChoice<'a> {
    /// The own part of the score.
    own: OwnScore,
    victims: Vec<AllocView<'a>>,
    /// Whether other allocations are chosen if the plan evicts enough elsewhere.
    depends_on_plan: bool,
}

impl EvictionChoice<'_> {
    fn ids(&self) -> Vec<AllocId> {
        self.victims.iter().map(|alloc| alloc.id()).collect()
    }
}

impl Evictions {
    pub(super) fn new(ranking: &Ranking<'_>, fleet: &ProjectedNodes<'_>) -> Self {
        let first = ranking
            .candidates
            .partition_point(|it| it.number < fleet.first());
        let all = 0..ranking.candidates.len();
        let group_of: Vec<u32> = all.clone().map(|at| ranking.group_of(at)).collect();
        let own_scores: Vec<OwnScore> = all.map(|at| own_upper_bound(ranking, fleet, at)).collect();
        Self {
            best: GroupedCandidates::new(&group_of, &own_scores, first),
            is_computed: vec![false; own_scores.len()],
            outdated: Vec::new(),
            plan_dependent: Vec::new(),
            has_new_preferences: false,
        }
    }

    /// Marks candidates as changed.
    pub(super) fn mark_outdated(&mut self, candidates: &[usize]) {
        self.outdated.extend(candidates);
    }

    /// Records that so many allocations of a group are evicted that other allocations are preferred now.
    pub(super) fn mark_preferences_changed(&mut self) {
        self.has_new_preferences = true;
    }

    /// Returns the best candidate, its score and its victims.
    pub(super) fn best(
        &mut self,
        ranking: &Ranking<'_>,
        fleet: &ProjectedNodes<'_>,
        job: &JobKey,
        priority: u8,
    ) -> Option<(usize, f64, Vec<AllocId>)> {
        let mut recompute = std::mem::take(&mut self.outdated);
        if std::mem::take(&mut self.has_new_preferences) {
            recompute.append(&mut self.plan_dependent);
        }
        for at in recompute {
            self.is_computed[at] = false;
            self.best.update(at, own_upper_bound(ranking, fleet, at));
        }
        // Each round computes one candidate, or is the last.
        for _ in 0..=self.is_computed.len() {
            let (at, score) = self.best.winner(ranking.shared_scores())?;
            let choice = choice(ranking, fleet, at, job, priority);
            if let Some(choice) = choice.as_ref().filter(|_| self.is_computed[at]) {
                return Some((at, score, choice.ids()));
            }
            self.is_computed[at] = true;
            if choice.as_ref().is_some_and(|choice| choice.depends_on_plan) {
                self.plan_dependent.push(at);
            }
            self.best
                .update(at, choice.map_or(FULL, |choice| choice.own));
        }
        None
    }
}

/// Returns the upper bound of the own part of a candidate's score, for any victims. The bound assumes that the node
/// uses no more than now and by the instance, nor more than its total, and that nothing is lost.
fn own_upper_bound(ranking: &Ranking<'_>, fleet: &ProjectedNodes<'_>, at: usize) -> OwnScore {
    let number = ranking.candidates[at].number;
    let column = fleet.column(number);
    if ranking.is_allowed(at).is_err() || has_capacity(column.total).is_err() {
        return FULL;
    }
    let terms = ranking.terms(fleet, at, Amount::default(), None, false);
    let used = match ranking.algorithm {
        Algorithm::Binpack => terms.used.plus(column.used).min(column.total),
        // The less is used, the better the score.
        Algorithm::Spread => terms.used,
    };
    let own = own_of(ranking, ScoreTerms { used, ..terms }, &[]);
    OwnScore {
        sum: own.sum + ROUNDED,
        ..own
    }
}

/// Returns the own part of a score if `victims` are evicted.
fn own_of(ranking: &Ranking<'_>, terms: ScoreTerms, victims: &[AllocView<'_>]) -> OwnScore {
    let components = terms.components(ranking.algorithm, ranking.count);
    let components = components.into_iter().flatten().map(|(_, score)| score);
    OwnScore::of(components.chain([score(victims)]))
}

/// Returns the allocations to evict from a candidate, if that makes enough room.
fn choice<'a>(
    ranking: &Ranking<'_>,
    fleet: &ProjectedNodes<'a>,
    at: usize,
    job: &JobKey,
    priority: u8,
) -> Option<EvictionChoice<'a>> {
    let number = ranking.candidates[at].number;
    let column = fleet.column(number);
    ranking.is_allowed(at).ok()?;
    has_capacity(column.total).ok()?;
    let candidate = PreemptionCandidate::new(ranking, fleet, number, job, priority);
    let depends_on_plan = candidate.depends_on_plan();
    let victims = candidate.victims()?;
    let freed = victims
        .iter()
        .fold(Amount::default(), |sum, alloc| sum.plus(alloc.ask()));
    let used = column.used.minus(freed);
    let terms = ranking.terms(fleet, at, used, None, false);
    Some(EvictionChoice {
        own: own_of(ranking, terms, &victims),
        victims,
        depends_on_plan,
    })
}

/// Returns the best candidate, its score and its victims by computing every candidate.
#[cfg(test)]
pub(super) fn best_of_all(
    ranking: &Ranking<'_>,
    fleet: &ProjectedNodes<'_>,
    job: &JobKey,
    priority: u8,
) -> Option<(usize, f64, Vec<AllocId>)> {
    let len = ranking.candidates.len();
    let before = ranking
        .candidates
        .partition_point(|it| it.number < fleet.first());
    let in_turn = (before..len).chain(0..before);
    let mut best: Option<(usize, f64, Vec<AllocId>)> = None;
    for at in in_turn {
        let Some(choice) = choice(ranking, fleet, at, job, priority) else {
            continue;
        };
        let score = choice.own.score(ranking.shared(at));
        if best.as_ref().is_none_or(|(_, other, _)| score > *other) {
            best = Some((at, score, choice.ids()));
        }
    }
    best
}

/// Returns a score for the loss, between 0 and 1: the less is lost, the higher. It is Nomad's curve over the victims'
/// priorities; the priority of each job counts once.
fn score(victims: &[AllocView<'_>]) -> f64 {
    const RATE: f64 = 0.0048;
    const MIDDLE: f64 = 2048.0;
    let mut jobs: Vec<(&JobKey, u8)> = victims
        .iter()
        .map(|alloc| (&**alloc.job_key(), alloc.job().spec.priority))
        .collect();
    jobs.sort_unstable();
    jobs.dedup_by_key(|(key, _)| *key);
    let most = jobs
        .iter()
        .map(|(_, priority)| *priority)
        .max()
        .unwrap_or(0);
    let sum: u32 = jobs.iter().map(|(_, priority)| u32::from(*priority)).sum();
    let net = if most == 0 {
        0.0
    } else {
        f64::from(most) + f64::from(sum) / f64::from(most)
    };
    1.0 / (1.0 + libm::exp(RATE * (net - MIDDLE)))
}

/// Returns the allocations to evict so that one instance fits node `number`, at least one. `None` if no choice can make
/// it fit.
///
/// There are never more victims than by Nomad's rule, nor more important ones.
pub(super) fn victims<'a>(
    ranking: &Ranking<'_>,
    fleet: &ProjectedNodes<'a>,
    number: usize,
    job: &JobKey,
    priority: u8,
) -> Option<Vec<AllocView<'a>>> {
    PreemptionCandidate::new(ranking, fleet, number, job, priority).victims()
}

fn priority_of(alloc: &AllocView<'_>) -> u8 {
    alloc.job().spec.priority
}

/// Returns the number of allocations of its group that may be evicted at a time without a penalty; 0: no limit.
fn max_parallel(alloc: AllocView<'_>) -> u32 {
    let migrate = alloc.group().migrate.as_ref();
    migrate.map_or(0, |migrate| migrate.max_parallel)
}

/// Returns whether so many allocations of the group of `alloc` are evicted that other allocations are preferred.
pub(super) fn has_reached_max_parallel(fleet: &ProjectedNodes<'_>, alloc: AllocView<'_>) -> bool {
    let max = max_parallel(alloc);
    max > 0 && fleet.evicted_of(alloc) >= max
}

/// A node on which an allocation has to be evicted.
struct PreemptionCandidate<'r, 'a> {
    extras: &'r ExclusiveRequests<'r>,
    fleet: &'r ProjectedNodes<'a>,
    number: usize,
    room: NodeUsage,
    /// The amounts that one instance takes of the room.
    ask: Amount,
    /// Priority of the asking job.
    priority: u8,
    /// The allocations that may be evicted. If ports, cores or devices are requested, the least important come first,
    /// and among those the youngest.
    evictable: Vec<AllocView<'a>>,
}

impl<'r, 'a> PreemptionCandidate<'r, 'a> {
    fn new(
        ranking: &'r Ranking<'_>,
        fleet: &'r ProjectedNodes<'a>,
        number: usize,
        job: &JobKey,
        priority: u8,
    ) -> Self {
        let evictable = |alloc: &AllocView<'_>| {
            **alloc.job_key() != *job && may_evict(priority, priority_of(alloc))
        };
        let mut evictable: Vec<AllocView<'a>> =
            fleet.running_on(number).filter(evictable).collect();
        // If only amounts are requested, `preempt` looks at all of them anyway.
        if !ranking.extras.is_empty() {
            evictable.sort_by_cached_key(|alloc| {
                let age = std::cmp::Reverse(alloc.create_index());
                (priority_of(alloc), age, alloc.id())
            });
        }
        let column = fleet.column(number);
        Self {
            extras: &ranking.extras,
            fleet,
            number,
            room: NodeUsage {
                total: column.total,
                used: column.used,
            },
            ask: ranking.ask_on(fleet, number),
            priority,
            evictable,
        }
    }

    /// Returns the allocations to evict; see [`victims`].
    fn victims(&self) -> Option<Vec<AllocView<'a>>> {
        let ours = self.make_room(self.least_important()?);
        let theirs = self.by_device_group().and_then(|gone| self.make_room(gone));
        let loss = |gone: &[AllocView<'_>]| PreemptionCost::of(gone.iter().map(priority_of));
        match (ours, theirs) {
            (Some(ours), Some(theirs)) if loss(&ours).is_no_worse_than(loss(&theirs)) => Some(ours),
            (ours, theirs) => theirs.or(ours),
        }
    }

    /// Returns whether the choice of victims depends on the plan's evictions elsewhere. It does if there is more than
    /// one group to choose from, and one of them has a `max_parallel`.
    fn depends_on_plan(&self) -> bool {
        let Some(first) = self.evictable.first() else {
            return false;
        };
        let is_other = |alloc: &AllocView<'_>| {
            alloc.job_key() != first.job_key() || alloc.group().name != first.group().name
        };
        self.evictable.iter().any(is_other) && self.evictable.iter().any(|it| max_parallel(*it) > 0)
    }

    /// Returns whether the requested ports, cores and devices are free without an eviction.
    fn has_extras(&self) -> bool {
        self.extras.is_empty() || self.fleet.assign(self.number, self.extras).is_ok()
    }

    fn can_assign(&self, spec: &NodeSpec, held: &NodeHoldings) -> bool {
        fleet::assign(spec, held, self.extras, self.fleet.seed()).is_ok()
    }

    /// Returns holders of the requested ports, cores and devices, the least important first, until these are free.
    /// `None` if no choice frees them.
    fn least_important(&self) -> Option<Vec<AllocView<'a>>> {
        if self.has_extras() {
            return Some(Vec::new());
        }
        let spec = self.fleet.spec(self.number)?;
        let is_any_port_asked = self.extras.ports().iter().any(|ask| ask.fixed.is_none());
        // There are so many dynamic ports that a holder of one rarely makes a difference.
        let of_any_port = is_any_port_asked.then_some(true);
        let mut attempts = std::iter::once(false).chain(of_any_port);
        attempts.find_map(|any_port| {
            let mut held = self.fleet.held(self.number).clone();
            let mut gone = Vec::new();
            for alloc in &self.evictable {
                if self.holds_requested(spec, *alloc, any_port) {
                    held.give_back(alloc.holding());
                    gone.push(*alloc);
                    if self.can_assign(spec, &held) {
                        let enough = |held: &NodeHoldings, _| self.can_assign(spec, held);
                        return Some(self.drop_unneeded_victims(gone, enough));
                    }
                }
            }
            None
        })
    }

    fn holds_requested(&self, spec: &NodeSpec, alloc: AllocView<'_>, any_port: bool) -> bool {
        let Holding {
            ports,
            cores,
            devices,
        } = alloc.holding();
        let is_asked = |port: &AllocatedPort| {
            let mut asks = self.extras.ports().iter();
            any_port || asks.any(|ask| ask.fixed == Some(port.value))
        };
        let matches = |held: &HeldDevices| {
            let mut of_group = spec.devices.iter().filter(|it| it.id() == held.group);
            of_group.any(|device| self.extras.devices().any(|ask| device_matches(ask, device)))
        };
        ports.iter().any(is_asked)
            || (!cores.is_empty() && self.extras.core_count() > 0)
            || devices.iter().any(matches)
    }

    /// Returns the holders to evict by Nomad's rule. The holders of the ports come first. Then, for each request for
    /// devices, the rule chooses one of the suitable device groups: the one with the least sum of its holders'
    /// priorities, each priority counted once. `None` where the rule has no answer; it evicts no allocation for cores.
    fn by_device_group(&self) -> Option<Vec<AllocView<'a>>> {
        let is_asked = self.extras.devices().next().is_some() && self.extras.core_count() == 0;
        if !is_asked || self.has_extras() {
            return None;
        }
        let spec = self.fleet.spec(self.number)?;
        let mut held = self.fleet.held(self.number).clone();
        let ports: Vec<u16> = (self.extras.ports().iter())
            .filter_map(|ask| ask.fixed)
            .collect();
        let has_port = |alloc: &&AllocView<'_>| {
            let mut of_alloc = alloc.holding().ports.iter();
            of_alloc.any(|port| ports.contains(&port.value))
        };
        let mut gone: Vec<AllocView<'a>> =
            self.evictable.iter().filter(has_port).copied().collect();
        for alloc in &gone {
            held.give_back(alloc.holding());
        }
        let mut given: BTreeMap<String, usize> = BTreeMap::new();
        for ask in self.extras.devices() {
            let matching = spec.devices.iter().filter(|it| device_matches(ask, it));
            let options = matching.filter_map(|device| {
                let given = given.get(&device.id()).copied().unwrap_or(0);
                let wanted = given + ask.count as usize;
                let option = self.holders_of(device, &held, &gone, wanted)?;
                let priorities: BTreeSet<u8> = option.iter().map(priority_of).collect();
                let sum: u32 = priorities.into_iter().map(u32::from).sum();
                Some((sum, device, option))
            });
            let (_, device, option) = options.min_by_key(|(sum, ..)| *sum)?;
            *given.entry(device.id()).or_default() += ask.count as usize;
            for alloc in &option {
                held.give_back(alloc.holding());
            }
            gone.extend(option);
        }
        self.can_assign(spec, &held).then_some(gone)
    }

    /// Returns the allocations to evict so that `wanted` instances of `device` are free, the least important first.
    /// Allocations that become superfluous because others hold many instances are dropped.
    fn holders_of(
        &self,
        device: &DeviceGroup,
        held: &NodeHoldings,
        gone: &[AllocView<'_>],
        wanted: usize,
    ) -> Option<Vec<AllocView<'a>>> {
        let group = device.id();
        let is_free = |id: &str| !held.has_device(&group, id);
        let healthy = || device.instances.iter().filter(|one| one.healthy);
        let share = |alloc: &AllocView<'_>| {
            let of_group = alloc.holding().devices.iter();
            let ids = of_group
                .filter(|it| it.group == group)
                .flat_map(|it| &it.ids);
            ids.filter(|id| healthy().any(|one| one.id == **id)).count()
        };
        let mut free = healthy().filter(|one| is_free(&one.id)).count();
        let mut option = Vec::new();
        for alloc in &self.evictable {
            if free >= wanted {
                break;
            }
            let is_here = gone.iter().all(|other| other.key() != alloc.key());
            if is_here && share(alloc) > 0 {
                free += share(alloc);
                option.push(*alloc);
            }
        }
        if free < wanted {
            return None;
        }
        option.sort_by_key(share);
        option.retain(|alloc| {
            let is_needed = free - share(alloc) < wanted;
            free -= if is_needed { 0 } else { share(alloc) };
            is_needed
        });
        Some(option)
    }

    /// Adds to `gone` the allocations to evict so that cpu, memory and disk suffice; `None` if no choice suffices.
    fn make_room(&self, gone: Vec<AllocView<'a>>) -> Option<Vec<AllocView<'a>>> {
        let mut room = self.room;
        for alloc in &gone {
            room = room.without(alloc.ask());
        }
        let is_for_amounts_only = gone.is_empty();
        let mut victims = gone;
        if !room.fits(self.ask) {
            victims.extend(self.choose(room, &victims)?);
        }
        if is_for_amounts_only {
            // `preempt` spares exactly the allocations that Nomad spares.
            return (!victims.is_empty()).then_some(victims);
        }
        let spec = self.fleet.spec(self.number)?;
        let enough = |held: &NodeHoldings, room: NodeUsage| {
            room.fits(self.ask) && self.can_assign(spec, held)
        };
        Some(self.drop_unneeded_victims(victims, enough))
    }

    fn choose(&self, room: NodeUsage, gone: &[AllocView<'_>]) -> Option<Vec<AllocView<'a>>> {
        let is_here = |alloc: &&AllocView<'_>| gone.iter().all(|other| other.key() != alloc.key());
        let rest: Vec<AllocView<'a>> = self.evictable.iter().filter(is_here).copied().collect();
        let candidate = |alloc: &AllocView<'_>| Candidate {
            id: alloc.id(),
            priority: priority_of(alloc),
            amount: alloc.ask(),
            max_parallel: max_parallel(*alloc),
            evicted: self.fleet.evicted_of(*alloc),
            age: alloc.create_index().0,
        };
        let candidates: Vec<Candidate> = rest.iter().map(candidate).collect();
        let chosen = preempt::choose(self.priority, self.ask, room, &candidates)?;
        Some(chosen.into_iter().map(|at| rest[at]).collect())
    }

    /// Drops from `gone` the allocations that can stay while there is `enough`. The most important are tried first, and
    /// among those the oldest.
    fn drop_unneeded_victims(
        &self,
        mut gone: Vec<AllocView<'a>>,
        enough: impl Fn(&NodeHoldings, NodeUsage) -> bool,
    ) -> Vec<AllocView<'a>> {
        let mut held = self.fleet.held(self.number).clone();
        for alloc in &gone {
            held.give_back(alloc.holding());
        }
        let freed = |gone: &[AllocView<'_>]| {
            let amounts = gone.iter().map(|alloc| alloc.ask());
            amounts.fold(self.room, NodeUsage::without)
        };
        gone.sort_by_key(|alloc| {
            let importance = std::cmp::Reverse(priority_of(alloc));
            (importance, alloc.create_index(), alloc.id())
        });
        let mut at = 0;
        while at < gone.len() {
            let alloc = gone.remove(at);
            held.take(alloc.holding());
            if !enough(&held, freed(&gone)) {
                held.give_back(alloc.holding());
                gone.insert(at, alloc);
                at += 1;
            }
        }
        gone
    }
}
