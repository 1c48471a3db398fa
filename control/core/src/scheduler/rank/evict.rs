//! Who makes room where there is none.
//!
//! For each candidate the allocations that would go are chosen as `preempt` says; ports, devices and cores that
//! are asked for and held go first. The node is scored as it would be then, with a component for how
//! little is lost. What a candidate would cost is worked out once and again only when it is about to be
//! chosen after the plan changed: what else the plan evicts can only make it dearer.

use muster_domain::id::{AllocId, JobKey};
use muster_domain::node::NodeSpec;
use muster_domain::resources::{Amount, DeviceAsk};

use super::tournament::Tournament;
use super::{Own, Ranking, has_capacity};
use crate::scheduler::feasible::device_matches;
use crate::scheduler::fleet::{self, Fleet, free_cores};
use crate::scheduler::preempt::{self, Candidate, may_evict};
use crate::state::{AllocView, Held};

/// What each candidate would cost.
#[derive(Debug)]
pub(super) struct Evictions {
    scores: Vec<f64>,
    tree: Tournament,
    /// Evictions of the plan when a candidate's score was worked out.
    worked_out_at: Vec<u32>,
    evicted: u32,
    /// Candidates that changed since.
    outdated: Vec<usize>,
}

impl Evictions {
    pub(super) fn new(
        ranking: &Ranking<'_>,
        fleet: &Fleet<'_>,
        job: &JobKey,
        priority: u8,
    ) -> Self {
        let first = ranking
            .candidates
            .partition_point(|it| it.number < fleet.first());
        let scores: Vec<f64> = (0..ranking.candidates.len())
            .map(|at| {
                option(ranking, fleet, at, job, priority).map_or(f64::NEG_INFINITY, |it| it.0)
            })
            .collect();
        Self {
            tree: Tournament::new(&scores, first),
            worked_out_at: vec![0; scores.len()],
            scores,
            evicted: 0,
            outdated: Vec::new(),
        }
    }

    /// A candidate changed.
    pub(super) fn outdate(&mut self, at: usize) {
        self.outdated.push(at);
    }

    /// The best candidate, its score and who goes.
    pub(super) fn best(
        &mut self,
        ranking: &Ranking<'_>,
        fleet: &Fleet<'_>,
        job: &JobKey,
        priority: u8,
    ) -> Option<(usize, f64, Vec<AllocId>)> {
        for at in std::mem::take(&mut self.outdated) {
            self.work_out(ranking, fleet, at, job, priority);
        }
        // Each round brings one candidate up to date.
        for _ in 0..=self.scores.len() {
            let at = self
                .tree
                .winner()
                .filter(|at| self.scores[*at] > f64::NEG_INFINITY)?;
            let (before, is_current) = (self.scores[at], self.worked_out_at[at] == self.evicted);
            let found = self.work_out(ranking, fleet, at, job, priority);
            if let Some((score, victims)) = found
                && (is_current || score.to_bits() == before.to_bits())
            {
                self.evicted += 1;
                return Some((at, score, victims));
            }
        }
        None
    }

    fn work_out(
        &mut self,
        ranking: &Ranking<'_>,
        fleet: &Fleet<'_>,
        at: usize,
        job: &JobKey,
        priority: u8,
    ) -> Option<(f64, Vec<AllocId>)> {
        let found = option(ranking, fleet, at, job, priority);
        self.scores[at] = found.as_ref().map_or(f64::NEG_INFINITY, |it| it.0);
        self.worked_out_at[at] = self.evicted;
        self.tree.update(&self.scores, at);
        found
    }
}

/// The score of a candidate after those who go have gone, and who they are.
fn option(
    ranking: &Ranking<'_>,
    fleet: &Fleet<'_>,
    at: usize,
    job: &JobKey,
    priority: u8,
) -> Option<(f64, Vec<AllocId>)> {
    let number = ranking.candidates[at].number;
    let column = fleet.column(number);
    ranking.is_allowed(at).ok()?;
    has_capacity(column.total).ok()?;
    let victims = victims(ranking, fleet, number, job, priority)?;
    let freed = victims
        .iter()
        .fold(Amount::default(), |sum, alloc| sum.plus(alloc.ask()));
    let used = column.used.minus(freed);
    let components = ranking.components(fleet, at, used, None, false);
    let components = components.into_iter().flatten().map(|(_, score)| score);
    let own = Own::of(components.chain((!victims.is_empty()).then(|| score(&victims))));
    let ids = victims.iter().map(|alloc| alloc.id()).collect();
    Some((own.score(ranking.shared(at)), ids))
}

/// How little is lost, between 0 and 1: Nomad's curve over the victims' priorities, each job's counted once.
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
    1.0 / (1.0 + (RATE * (net - MIDDLE)).exp())
}

/// Who goes so that one instance fits node `number`; `None` if that does not suffice.
pub(super) fn victims<'a>(
    ranking: &Ranking<'_>,
    fleet: &Fleet<'a>,
    number: usize,
    job: &JobKey,
    priority: u8,
) -> Option<Vec<AllocView<'a>>> {
    let running: Vec<AllocView<'a>> = fleet
        .running_on(number)
        .filter(|alloc| **alloc.job_key() != *job)
        .collect();
    let may_go = |alloc: &AllocView<'_>| may_evict(priority, alloc.job().spec.priority);
    let mut gone = holders(ranking, fleet, number, &running, &may_go)?;
    let column = fleet.column(number);
    let freed = gone
        .iter()
        .fold(Amount::default(), |sum, alloc| sum.plus(alloc.ask()));
    let ask = ranking.ask_on(fleet, number);
    let free = column.total.minus(column.used.minus(freed));
    if ask.exceeds(free).is_none() {
        return (!gone.is_empty()).then_some(gone);
    }
    let rest: Vec<AllocView<'a>> = running
        .into_iter()
        .filter(|alloc| !gone.iter().any(|other| other.id() == alloc.id()))
        .collect();
    let candidates: Vec<Candidate> = rest
        .iter()
        .map(|alloc| Candidate {
            id: alloc.id(),
            priority: alloc.job().spec.priority,
            amount: alloc.ask(),
            max_parallel: alloc
                .group()
                .migrate
                .as_ref()
                .map_or(0, |migrate| migrate.max_parallel),
            evicted: fleet.evicted_of(*alloc),
            age: alloc.create_index().0,
        })
        .collect();
    let chosen = preempt::choose(priority, ask, free, &candidates)?;
    gone.extend(chosen.into_iter().map(|at| rest[at]));
    Some(gone)
}

/// Who holds ports, cores and devices that are asked for and must go; `None` if one of them may not.
fn holders<'a>(
    ranking: &Ranking<'_>,
    fleet: &Fleet<'a>,
    number: usize,
    running: &[AllocView<'a>],
    may_go: &impl Fn(&AllocView<'_>) -> bool,
) -> Option<Vec<AllocView<'a>>> {
    let mut gone: Vec<AllocView<'a>> = Vec::new();
    let extras = &ranking.extras;
    if extras.is_empty() || fleet.assign(number, extras).is_ok() {
        return Some(gone);
    }
    let spec = fleet.spec(number)?;
    let mut held = fleet.held(number).clone();
    let leave = |held: &mut Held, alloc: AllocView<'a>, gone: &mut Vec<AllocView<'a>>| {
        if !gone.iter().any(|other| other.id() == alloc.id()) {
            held.give_back(alloc.holding());
            gone.push(alloc);
        }
    };
    // Ports: whoever has one of them, on whatever address.
    for port in extras.ports().iter().filter_map(|ask| ask.fixed) {
        for alloc in running {
            if alloc.holding().ports.iter().any(|held| held.value == port) {
                if !may_go(alloc) {
                    return None;
                }
                leave(&mut held, *alloc, &mut gone);
            }
        }
    }
    // Cores and devices: the least important first, until there are enough; of those the youngest.
    let mut by_priority: Vec<AllocView<'a>> = running
        .iter()
        .copied()
        .filter(|alloc| may_go(alloc))
        .collect();
    by_priority.sort_by_key(|alloc| {
        let age = std::cmp::Reverse(alloc.create_index());
        (alloc.job().spec.priority, age, alloc.id())
    });
    let cores = extras.core_count();
    for alloc in &by_priority {
        if free_cores(spec, &held).count() >= cores {
            break;
        }
        if !alloc.holding().cores.is_empty() {
            leave(&mut held, *alloc, &mut gone);
        }
    }
    for ask in extras.devices() {
        for alloc in &by_priority {
            if free_devices(spec, &held, ask) >= ask.count as usize {
                break;
            }
            let mut matching = spec.devices.iter().filter(|it| device_matches(ask, it));
            let has_one = matching.any(|device| {
                let group = device.id();
                let mut devices = alloc.holding().devices.iter();
                devices.any(|held| held.group == group)
            });
            if has_one {
                leave(&mut held, *alloc, &mut gone);
            }
        }
    }
    let fits = |held: &Held| fleet::assign(spec, held, extras, fleet.seed()).is_ok();
    // Those without whom it would fit all the same stay, the most important first.
    gone.sort_by_key(|alloc| (alloc.job().spec.priority, alloc.id()));
    let mut needed = Vec::new();
    while let Some(alloc) = gone.pop() {
        held.take(alloc.holding());
        if !fits(&held) {
            held.give_back(alloc.holding());
            needed.push(alloc);
        }
    }
    fits(&held).then_some(needed)
}

/// The most devices of one kind that are free and are what `ask` wants.
fn free_devices(spec: &NodeSpec, held: &Held, ask: &DeviceAsk) -> usize {
    let matching = spec.devices.iter().filter(|it| device_matches(ask, it));
    matching
        .map(|device| {
            let group = device.id();
            let free = device
                .instances
                .iter()
                .filter(|one| one.healthy && !held.has_device(&group, &one.id));
            free.count()
        })
        .max()
        .unwrap_or(0)
}
