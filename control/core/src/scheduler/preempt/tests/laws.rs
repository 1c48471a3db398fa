//! Checks the choice against every possible set of victims, and against a second implementation of Nomad's rule.
//!
//! A set is worse if it has more victims, or more important ones. Nomad's rule does not order equal candidates, whose
//! order is random there; here it takes them in the order of this crate. The rule itself does not promise a minimal
//! set, so the test does not require one: all victims but the last may be superfluous.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::chance::config;

/// Cpu, memory and disk.
type Amounts = [u16; 3];

fn amount_of([cpu, memory, disk]: Amounts) -> Amount {
    Amount {
        cpu_mhz: cpu.into(),
        memory_mb: memory.into(),
        disk_mb: disk.into(),
        allocs: 0,
    }
}

/// Returns few distinct values, so that equal and nearly equal amounts are frequent, and sometimes any value.
fn amounts(most: u16) -> impl Strategy<Value = Amounts> {
    let one = prop_oneof![
        3 => 0..4_u16,
        1 => 0..=most,
    ];
    prop::array::uniform3(one)
}

fn priority() -> impl Strategy<Value = u8> {
    prop_oneof![
        3 => (1..6_u8).prop_map(|tens| tens * 10),
        1 => 1..=100_u8,
    ]
}

fn candidates() -> impl Strategy<Value = Vec<Candidate>> {
    let one = (priority(), amounts(20), 0..3_u32, 0..4_u32, 0..3_u64);
    prop::collection::vec(one, 0..=8).prop_map(|all| {
        let candidates = (0..).zip(all);
        candidates
            .map(
                |(name, (priority, amounts, max_parallel, evicted, age))| Candidate {
                    id: AllocId::at(LogIndex(1), name),
                    priority,
                    amount: amount_of(amounts),
                    max_parallel,
                    evicted,
                    age,
                },
            )
            .collect()
    })
}

/// Returns a node that has `more` than is used, and that came back with `less`.
fn room(candidates: &[Candidate], more: Amounts, less: Amounts) -> NodeUsage {
    let full = full(candidates);
    let total = full.total.plus(amount_of(more)).minus(amount_of(less));
    NodeUsage { total, ..full }
}

fn frees_enough(ask: Amount, room: NodeUsage, candidates: &[Candidate], set: &[usize]) -> bool {
    let left = set
        .iter()
        .fold(room, |room, at| room.without(candidates[*at].amount));
    left.fits(ask)
}

fn loss(candidates: &[Candidate], set: &[usize]) -> PreemptionCost {
    PreemptionCost::of(set.iter().map(|at| candidates[*at].priority))
}

/// Returns every set of the candidates that may be evicted.
fn all_sets(asking: u8, candidates: &[Candidate]) -> impl Iterator<Item = Vec<usize>> {
    let may_go: Vec<usize> = (0..candidates.len())
        .filter(|at| candidates[*at].priority + 10 <= asking)
        .collect();
    (0..1_u32 << may_go.len()).map(move |mask| {
        let set = may_go.iter().enumerate();
        set.filter(|(bit, _)| mask & (1 << bit) != 0)
            .map(|(_, at)| *at)
            .collect()
    })
}

/// Returns the distance of `held` from the needed amounts.
fn distance(needed: [f64; 3], held: Amount) -> f64 {
    let held = [held.memory_mb, held.cpu_mhz, held.disk_mb];
    let squares = needed.iter().zip(held).map(|(needed, held)| {
        if *needed > 0.0 {
            let coordinate = (needed - held as f64) / needed;
            coordinate * coordinate
        } else {
            0.0
        }
    });
    squares.sum::<f64>().sqrt()
}

fn nomads_penalty(candidate: &Candidate) -> f64 {
    let (most, already) = (candidate.max_parallel, candidate.evicted);
    if most > 0 && already >= most {
        f64::from(already + 1 - most) * 50.0
    } else {
        0.0
    }
}

/// Returns the victims by Nomad's rule, step by step.
pub(in crate::scheduler) fn nomads(
    asking: u8,
    ask: Amount,
    room: NodeUsage,
    candidates: &[Candidate],
) -> Option<Vec<usize>> {
    let mut listed: Vec<usize> = (0..candidates.len()).collect();
    listed.sort_by_key(|at| (std::cmp::Reverse(candidates[*at].age), candidates[*at].id));
    let mut by_priority: BTreeMap<u8, Vec<usize>> = BTreeMap::new();
    for at in listed {
        let priority = candidates[at].priority;
        if asking.saturating_sub(priority) >= 10 {
            by_priority.entry(priority).or_default().push(at);
        }
    }
    let full_ask = [ask.memory_mb, ask.cpu_mhz, ask.disk_mb].map(|ask| ask as f64);
    let mut needed = full_ask;
    let mut picked: Vec<usize> = Vec::new();
    let mut is_met = false;
    for mut group in by_priority.into_values() {
        while !is_met && !group.is_empty() {
            let mut closest = (f64::INFINITY, 0);
            for (place, at) in group.iter().enumerate() {
                let candidate = &candidates[*at];
                let far = distance(needed, candidate.amount) + nomads_penalty(candidate);
                if far < closest.0 {
                    closest = (far, place);
                }
            }
            let at = group.remove(closest.1);
            let held = candidates[at].amount;
            let held = [held.memory_mb, held.cpu_mhz, held.disk_mb];
            for (needed, held) in needed.iter_mut().zip(held) {
                *needed -= held as f64;
            }
            picked.push(at);
            is_met = frees_enough(ask, room, candidates, &picked);
        }
    }
    if !is_met {
        return None;
    }
    picked.sort_by_key(|at| (std::cmp::Reverse(candidates[*at].age), candidates[*at].id));
    picked.sort_by(|left, right| {
        let far = |at: &usize| distance(full_ask, candidates[*at].amount);
        far(right).total_cmp(&far(left))
    });
    let mut kept = Vec::new();
    for at in picked {
        kept.push(at);
        if frees_enough(ask, room, candidates, &kept) {
            break;
        }
    }
    Some(kept)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: config().cases.max(2_048), max_global_rejects: 100_000, ..config() })]

    #[test]
    fn no_set_is_worse_than_nomads(
        asking in prop_oneof![Just(60_u8), 1..=100_u8],
        ask in amounts(40),
        candidates in candidates(),
        more in amounts(3),
        less in prop_oneof![3 => Just([0; 3]), 1 => amounts(3)],
    ) {
        let (ask, room) = (amount_of(ask), room(&candidates, more, less));
        prop_assume!(!room.fits(ask));

        let chosen = choose(asking, ask, room, &candidates);

        let suffices = |set: &Vec<usize>| frees_enough(ask, room, &candidates, set);
        let sets: Vec<_> = all_sets(asking, &candidates).filter(suffices).collect();
        let lowest = sets.iter().map(|set| loss(&candidates, set).highest).min();
        prop_assert_eq!(chosen.is_some(), lowest.is_some(), "somebody goes if that helps");
        let theirs = nomads(asking, ask, room, &candidates);
        if let (Some(chosen), Some(theirs)) = (chosen, theirs) {
            let mut set = chosen.clone();
            set.sort_unstable();
            prop_assert!(sets.contains(&set), "{set:?} may go and is enough");
            let loss = |set| loss(&candidates, set);
            prop_assert_eq!(Some(loss(&chosen).highest), lowest);
            prop_assert!(loss(&chosen).is_no_worse_than(loss(&theirs)), "{chosen:?}, {theirs:?}");
            let without_last = chosen[..chosen.len() - 1].to_vec();
            prop_assert!(!suffices(&without_last), "{chosen:?} without the last");
        }
    }
}
