//! The counts of a task's rules, as read, and the part of them that continues under its next policies.
//!
//! A reader does not delay a change of a policy. It reads, and reads again if the task's policies changed meanwhile.
//! The programs create an entry when a rule first matches, so of a large policy few rules have an entry. The reader
//! finds these entries by iterating over the map in batches, and those of a small policy by look-ups.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    io,
    sync::Arc,
};

use muster_agent_core::policy::{
    CompiledPolicy, HELD_PORT_RULE, NO_POLICY_RULE, PRIVATE_PORT_RULE,
};
use muster_ebpf_common::{
    CgroupId,
    net::{RuleHit, Traffic},
    policy::{Direction, RuleCounters, RuleKey, Verdict},
};

use super::{Policy, TaskPolicyState};
use crate::bpf::{limits::RULES_LOOKED_UP_MAX, map::total, object::hash};

/// Most repeated reads of counts because a rule's counts were moved meanwhile. After the last read the moved counts may
/// be missing.
const READ_ATTEMPTS_MAX: usize = 3;

/// Both directions, in the order in which a task's policies are stored.
const DIRECTIONS: [Direction; 2] = [Direction::Ingress, Direction::Egress];

/// The counts of one rule of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleCount {
    /// The direction of the rule's policy.
    pub direction: Direction,
    pub rule: String,
    /// Whether the rule lets packets pass.
    pub allows: bool,
    /// Packets that matched the rule.
    pub packets: u64,
    /// Bytes of those packets.
    pub bytes: u64,
}

/// Packets and bytes.
pub(super) type PacketTotals = (u64, u64);

/// Counts of a task's rules under its earlier policies, by direction and hash of the name. It contains only rules that
/// the present policies have.
pub(super) type CarriedOverCounters = BTreeMap<(u8, u64), PacketTotals>;

/// The rules' own counters, by policy and number.
type RuleTotalsByPolicy = HashMap<(u32, u32), PacketTotals>;

/// Counts of rules, by direction and number.
pub(super) type RuleTotals = HashMap<(u8, u32), PacketTotals>;

/// The policies of a task, by number and by the hashes of their rules' names, and the counts carried over to them.
/// Ingress comes before egress.
#[derive(Debug)]
pub(super) struct PolicyHistory<'a> {
    pub(super) numbers: [u32; 2],
    pub(super) names: [&'a [u64]; 2],
    pub(super) carried: &'a CarriedOverCounters,
}

impl Policy {
    /// The counts of the rules of `task`, including those of rules of the same name in its earlier policies. Rules
    /// without matches are left out. `traffic` looks up the traffic counters of each CPU, which hold the counts of the
    /// rules that matched last.
    pub(in crate::bpf) fn counts(
        &self,
        task: CgroupId,
        traffic: impl Fn() -> io::Result<Option<Vec<Traffic>>>,
    ) -> io::Result<Vec<RuleCount>> {
        for _ in 0..READ_ATTEMPTS_MAX {
            let (task_policy, is_changing) = self.task_policy(task);
            let Some(task_policy) = task_policy else {
                return Ok(Vec::new());
            };
            if is_changing {
                break;
            }
            let counts = self.counts_of(task, &task_policy, &traffic)?;
            let (now, is_changing) = self.task_policy(task);
            if !is_changing && now.is_some_and(|now| Arc::ptr_eq(&now, &task_policy)) {
                return Ok(counts);
            }
        }
        // The lock waits for a running change to end, and then keeps other changes away.
        let _no_change = self.locked();
        match self.task_policy(task) {
            (Some(task_policy), _) => self.counts_of(task, &task_policy, &traffic),
            (None, _) => Ok(Vec::new()),
        }
    }

    fn counts_of(
        &self,
        task: CgroupId,
        task_policy: &TaskPolicyState,
        traffic: impl Fn() -> io::Result<Option<Vec<Traffic>>>,
    ) -> io::Result<Vec<RuleCount>> {
        let history = task_policy.history();
        let counted = self.counted(task, &history, traffic)?;
        let mut carried = task_policy.carried.clone();
        let mut counts = Vec::new();
        for (direction, rules) in DIRECTIONS.into_iter().zip(&task_policy.rules) {
            let of_policy = named(&rules.compiled).zip(rules.names.iter().copied());
            let of_nobody = built_in(direction).map(|it| (it, name_hash(it.1)));
            for ((number, rule, allows), name) in of_policy.chain(of_nobody) {
                let mut sum = PacketTotals::default();
                let total = counted.get(&(direction as u8, number));
                // If two rules have the same name, the first one gets the carried-over counts.
                let earlier = carried.remove(&(direction as u8, name));
                for each in total.copied().into_iter().chain(earlier) {
                    add(&mut sum, each);
                }
                let (packets, bytes) = sum;
                if packets == 0 {
                    continue;
                }
                counts.push(RuleCount {
                    direction,
                    rule: rule.to_owned(),
                    allows,
                    packets,
                    bytes,
                });
            }
        }
        Ok(counts)
    }

    /// Reads, before policies change, the counts of the rules that CPUs cache at this moment. A program that matches a
    /// rule of another policy drops the cached counts that it has not yet added to the old rule.
    pub(super) fn floor(
        &self,
        task: CgroupId,
        before: &PolicyHistory<'_>,
        traffic: impl Fn() -> io::Result<Option<Vec<Traffic>>>,
    ) -> RuleTotals {
        let counted = current_hits(traffic).and_then(|hits| {
            let rules: BTreeSet<_> = hits
                .iter()
                .flatten()
                .map(|it| (it.policy, it.rule))
                .collect();
            let own = self.look_up(task, rules.into_iter())?;
            Ok(add_cached_hits(before.numbers, &own, &hits))
        });
        counted.unwrap_or_else(|error| {
            tracing::warn!(%error, "counts of rules that are met while a policy changes are not kept");
            RuleTotals::new()
        })
    }

    /// The counts of the rules of `after` under the policies `before` and earlier ones. No packet matches `before` any
    /// more. A count is never less than in `floor`, which was read before.
    pub(super) fn carry_over(
        &self,
        task: CgroupId,
        before: &PolicyHistory<'_>,
        after: &PolicyHistory<'_>,
        floor: &RuleTotals,
        traffic: impl Fn() -> io::Result<Option<Vec<Traffic>>>,
    ) -> CarriedOverCounters {
        let counted = self.counted(task, before, traffic);
        let mut sums = match counted {
            Ok(counted) => by_name(before, &counted),
            Err(error) => {
                tracing::warn!(%error, "counts of rules before a policy changed are not kept");
                CarriedOverCounters::new()
            }
        };
        for (key, floor) in by_name(before, floor) {
            let sum = sums.entry(key).or_default();
            *sum = (sum.0.max(floor.0), sum.1.max(floor.1));
        }
        let mut carried = CarriedOverCounters::new();
        for (place, direction) in DIRECTIONS.into_iter().enumerate() {
            // The counts of an unchanged policy continue where they are.
            let stays = before.numbers[place] == after.numbers[place];
            let from = if stays { before.carried } else { &sums };
            for (_, name) in rules_of(after.names[place], direction) {
                let key = (direction as u8, name);
                carried.extend(from.get(&key).map(|sum| (key, *sum)));
            }
        }
        carried
    }

    /// Removes the counts of a policy's rules for a task that no longer has the policy.
    pub(super) fn forget_counts(&self, task: CgroupId, policy: u32, rules: usize) {
        let forgotten = self.entries_of(task, policy, rules).and_then(|keys| {
            let mut keys = keys.into_iter();
            keys.try_for_each(|key| self.rules.remove(key).map(drop))
        });
        if let Err(error) = forgotten {
            tracing::warn!(%error, "counts of rules that a task has no more are left");
        }
    }

    /// The keys that may exist for a task and a policy with `rules` rules. For a small policy these are all possible
    /// keys, for a large one only those in the map.
    fn entries_of(&self, task: CgroupId, policy: u32, rules: usize) -> io::Result<Vec<RuleKey>> {
        if rules <= RULES_LOOKED_UP_MAX {
            let key = |rule| RuleKey { task, policy, rule };
            return Ok(numbers_of(rules).map(key).collect());
        }
        let mut keys = Vec::new();
        self.rules.visit(usize::MAX, |key, _| {
            if (key.task, key.policy) == (task, policy) {
                keys.push(key);
            }
        })?;
        Ok(keys)
    }

    /// The counts of each rule of the task's policies `history`.
    fn counted(
        &self,
        task: CgroupId,
        history: &PolicyHistory<'_>,
        traffic: impl Fn() -> io::Result<Option<Vec<Traffic>>>,
    ) -> io::Result<RuleTotals> {
        let mut hits = current_hits(&traffic)?;
        for _ in 0..READ_ATTEMPTS_MAX {
            let own = self.rule_counters(task, history)?;
            let now = current_hits(&traffic)?;
            if !was_moved(&hits, &now) {
                return Ok(add_cached_hits(history.numbers, &own, &hits));
            }
            hits = now;
        }
        Ok(add_cached_hits(
            history.numbers,
            &self.rule_counters(task, history)?,
            &hits,
        ))
    }

    /// The counters of rules of the task's policies, by policy and number.
    fn rule_counters(
        &self,
        task: CgroupId,
        history: &PolicyHistory<'_>,
    ) -> io::Result<RuleTotalsByPolicy> {
        let policies = history.numbers.into_iter().zip(history.names);
        let rules: usize = history.names.iter().map(|names| names.len()).sum();
        if rules <= RULES_LOOKED_UP_MAX {
            let rules = policies.flat_map(|(policy, names)| {
                numbers_of(names.len()).map(move |rule| (policy, rule))
            });
            return self.look_up(task, rules);
        }
        let mut own = RuleTotalsByPolicy::new();
        self.rules.visit(usize::MAX, |key, values| {
            if key.task == task && history.numbers.contains(&key.policy) {
                let sum = total(values.copied());
                own.insert((key.policy, key.rule), packets_and_bytes(sum));
            }
        })?;
        Ok(own)
    }

    fn look_up(
        &self,
        task: CgroupId,
        rules: impl Iterator<Item = (u32, u32)>,
    ) -> io::Result<RuleTotalsByPolicy> {
        let mut own = RuleTotalsByPolicy::new();
        for (policy, rule) in rules {
            if let Some(sum) = self.rules.sum(RuleKey { task, policy, rule })? {
                own.insert((policy, rule), packets_and_bytes(sum));
            }
        }
        Ok(own)
    }
}

/// Adds the counts that CPUs cache for their last matched rules to the rules' own counters, for the policies with these
/// numbers.
fn add_cached_hits(
    numbers: [u32; 2],
    own: &RuleTotalsByPolicy,
    hits: &[[RuleHit; 2]],
) -> RuleTotals {
    let mut counted = RuleTotals::new();
    for (place, direction) in DIRECTIONS.into_iter().enumerate() {
        let policy = numbers[place];
        let own = own.iter().filter(|((of, _), _)| *of == policy);
        let own = own.map(|((_, rule), sum)| (*rule, *sum));
        let last = hits.iter().map(|each| each[place]);
        let last = last.filter(|hit| hit.policy == policy);
        let last = last.map(|hit| (hit.rule, (hit.packets, hit.bytes)));
        for (rule, sum) in own.chain(last) {
            add(counted.entry((direction as u8, rule)).or_default(), sum);
        }
    }
    counted
}

/// Sums the counts of rules by name, earlier counts included.
fn by_name(history: &PolicyHistory<'_>, counted: &RuleTotals) -> CarriedOverCounters {
    let mut sums = history.carried.clone();
    for (direction, names) in DIRECTIONS.into_iter().zip(history.names) {
        for (rule, name) in rules_of(names, direction) {
            if let Some(sum) = counted.get(&(direction as u8, rule)) {
                add(sums.entry((direction as u8, name)).or_default(), *sum);
            }
        }
    }
    sums
}

/// The rules that matched last on each CPU, ingress and egress.
fn current_hits(
    traffic: impl Fn() -> io::Result<Option<Vec<Traffic>>>,
) -> io::Result<Vec<[RuleHit; 2]>> {
    let traffic = traffic()?.unwrap_or_default();
    Ok(traffic.iter().map(|each| each.met).collect())
}

/// The hash that stands for a rule's name.
pub(super) fn name_hash(name: &str) -> u64 {
    hash([name.as_bytes()])
}

/// Numbers and name hashes of the rules that packets in `direction` can match, including those of no policy.
fn rules_of(names: &[u64], direction: Direction) -> impl Iterator<Item = (u32, u64)> {
    let of_nobody = built_in(direction).map(|(number, rule, _)| (number, name_hash(rule)));
    (0..).zip(names.iter().copied()).chain(of_nobody)
}

/// Numbers of the rules for which counts may exist in a policy of `rules` rules.
fn numbers_of(rules: usize) -> impl Iterator<Item = u32> {
    let special = [
        Verdict::PRIVATE_PORT,
        Verdict::HELD_PORT,
        Verdict::NO_POLICY,
    ];
    (0..).take(rules).chain(special)
}

/// Numbers, names and actions of a policy's rules.
fn named(compiled: &CompiledPolicy) -> impl Iterator<Item = (u32, &str, bool)> {
    let rules = (0..).zip(&compiled.rules);
    rules.map(|(number, (name, allows))| (number, name.as_str(), *allows))
}

/// The verdicts that belong to no policy, for packets in `direction`. The verdicts of a private or a held port exist
/// only for egress, the direction of the packet that begins an exchange.
fn built_in<'a>(direction: Direction) -> impl Iterator<Item = (u32, &'a str, bool)> {
    let of_ports = match direction {
        Direction::Ingress => &[][..],
        Direction::Egress => &[
            (Verdict::PRIVATE_PORT, PRIVATE_PORT_RULE, false),
            (Verdict::HELD_PORT, HELD_PORT_RULE, true),
        ],
    };
    of_ports
        .iter()
        .copied()
        .chain([(Verdict::NO_POLICY, NO_POLICY_RULE, false)])
}

/// Whether counts of a rule were added to its own counters between these two reads.
fn was_moved(before: &[[RuleHit; 2]], now: &[[RuleHit; 2]]) -> bool {
    let pairs = before.iter().flatten().zip(now.iter().flatten());
    pairs
        .filter(|(before, _)| before.packets != 0)
        .any(|(before, now)| {
            (before.policy, before.rule) != (now.policy, now.rule) || now.packets < before.packets
        })
}

fn add(sum: &mut PacketTotals, other: PacketTotals) {
    sum.0 += other.0;
    sum.1 += other.1;
}

fn packets_and_bytes(counters: RuleCounters) -> PacketTotals {
    (counters.packets, counters.bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_reread_when_rule_slot_moves() {
        let hits = |policy, rule, packets| {
            let hit = RuleHit {
                policy,
                rule,
                packets,
                bytes: 0,
            };
            vec![[RuleHit::default(), hit]]
        };
        assert!(!was_moved(&hits(1, 2, 3), &hits(1, 2, 4)));
        assert!(!was_moved(&hits(0, 0, 0), &hits(1, 2, 4)));
        assert!(was_moved(&hits(1, 2, 3), &hits(1, 3, 1)));
        assert!(was_moved(&hits(1, 2, 3), &hits(1, 2, 1)));
    }

    /// The count of a rule sums its own counters, the cached counts of two CPUs, and the counts carried over to its
    /// name.
    #[test]
    fn rule_count_sums_all_counters_of_name() {
        let names = [name_hash("one"), name_hash("two")];
        let carried = CarriedOverCounters::from([((1, names[1]), (100, 1_000))]);
        let history = PolicyHistory {
            numbers: [7, 8],
            names: [&[], &names],
            carried: &carried,
        };
        let own = RuleTotalsByPolicy::from([((8, 1), (10, 50)), ((7, Verdict::NO_POLICY), (1, 2))]);
        let hit = |policy, rule| RuleHit {
            policy,
            rule,
            packets: 1,
            bytes: 3,
        };
        let hits = [[hit(7, 1), hit(8, 1)], [hit(9, 1), hit(8, 1)]];

        let sums = by_name(&history, &add_cached_hits(history.numbers, &own, &hits));

        let no_policy = name_hash(NO_POLICY_RULE);
        let expected = [((0, no_policy), (1, 2)), ((1, names[1]), (112, 1_056))];
        assert_eq!(sums, CarriedOverCounters::from(expected));
    }
}
