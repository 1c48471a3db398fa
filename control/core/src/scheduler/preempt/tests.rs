pub(in crate::scheduler) mod laws;

use std::collections::BTreeSet;

use muster_domain::fixture::recorded::{self, CaseKind, CaseRunner, Outcome};
use muster_domain::id::LogIndex;
use serde_json::Value;

use super::*;

const PREEMPTION: CaseKind = CaseKind {
    name: "preemption",
    is: |row| is_preemption(row) && row["victim_sets_seen"].is_null(),
    judge: CaseRunner::Row(judge),
};

const ORDER_DEPENDENT: CaseKind = CaseKind {
    name: "preemption_order_dependent",
    is: |row| is_preemption(row) && !row["victim_sets_seen"].is_null(),
    judge: CaseRunner::Row(compare_equal_victims),
};

fn is_preemption(row: &Value) -> bool {
    !row["victims"].is_null() && row["node"]["networks"].is_null()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

fn amount(value: &Value, prefix: &str) -> Amount {
    Amount {
        cpu_mhz: number(&value[format!("{prefix}cpu_mhz")]),
        memory_mb: number(&value[format!("{prefix}memory_mb")]),
        disk_mb: number(&value[format!("{prefix}disk_mb")]),
        allocs: 0,
    }
}

/// Returns a recorded case as input: candidates with their recorded ids, and the room.
fn read(case: &Value) -> (Vec<Candidate>, Vec<String>, NodeUsage) {
    let total = amount(&case["node"], "").minus(amount(&case["node"], "reserved_"));
    let mut used = Amount::default();
    let key = |alloc: &Value| {
        let text = |field: &str| alloc[field].as_str().unwrap_or_default().to_owned();
        (text("namespace"), text("job_id"), text("task_group"))
    };
    let evicted = |group: &(String, String, String)| {
        case["already_preempted_in_plan"]
            .as_array()
            .into_iter()
            .flatten()
            .find(|entry| key(entry) == *group)
            .map_or(0, |entry| number(&entry["count"]))
    };
    let (mut candidates, mut ids) = (Vec::new(), Vec::new());
    for alloc in case["running_allocs"].as_array().unwrap() {
        let own = alloc["job_id"] == case["asking_job_id"]
            && alloc["namespace"] == case["asking_namespace"];
        used = used.plus(amount(alloc, ""));
        if own {
            continue;
        }
        let group = key(alloc);
        let id = alloc["id"].as_str().unwrap().to_owned();
        candidates.push(Candidate {
            id: id.parse().unwrap(),
            priority: u8::try_from(number(&alloc["job_priority"])).unwrap(),
            amount: amount(alloc, ""),
            max_parallel: u32::try_from(number(&alloc["migrate_max_parallel"])).unwrap(),
            evicted: u32::try_from(evicted(&group)).unwrap(),
            age: 0,
        });
        ids.push(id);
    }
    (candidates, ids, NodeUsage { total, used })
}

fn chosen(case: &Value) -> Option<BTreeSet<String>> {
    let (candidates, ids, room) = read(case);
    let priority = u8::try_from(number(&case["asking_job_priority"])).unwrap();
    let chosen = choose(priority, amount(&case["ask"], ""), room, &candidates)?;
    Some(chosen.into_iter().map(|at| ids[at].clone()).collect())
}

fn set(list: &Value) -> BTreeSet<String> {
    list.as_array()
        .into_iter()
        .flatten()
        .map(|id| id.as_str().unwrap().to_owned())
        .collect()
}

/// Compares with the recorded victims. Nomad leaves the asking job's own allocations out of the sum, so it takes more
/// room for free than there is. In cases with such allocations, other victims that make enough room are right too.
fn judge(case: &Value) -> Outcome {
    let expected = (case["preemption_possible"] == true).then(|| set(&case["victims"]));
    let chosen = chosen(case);
    let has_own = case["running_allocs"]
        .as_array()
        .unwrap()
        .iter()
        .any(|alloc| {
            alloc["job_id"] == case["asking_job_id"]
                && alloc["namespace"] == case["asking_namespace"]
        });
    if chosen == expected || (has_own && makes_room(case, chosen.as_ref())) {
        Outcome::Same
    } else {
        Outcome::Differs(format!("{chosen:?}, not {expected:?}"))
    }
}

/// Returns whether the chosen candidates may be evicted and suffice. If none were chosen, returns whether not even all
/// suffice.
fn makes_room(case: &Value, chosen: Option<&BTreeSet<String>>) -> bool {
    let (candidates, ids, room) = read(case);
    let priority = u8::try_from(number(&case["asking_job_priority"])).unwrap();
    let may_go = |candidate: &Candidate| may_evict(priority, candidate.priority);
    let going: Vec<_> = candidates
        .iter()
        .zip(&ids)
        .filter(|(candidate, id)| match chosen {
            Some(chosen) => chosen.contains(*id),
            None => may_go(candidate),
        })
        .map(|(candidate, _)| candidate)
        .collect();
    let room = going.iter().fold(room, |room, it| room.without(it.amount));
    let suffices = !going.is_empty() && room.fits(amount(&case["ask"], ""));
    going.into_iter().all(may_go) && suffices == chosen.is_some()
}

#[test]
fn victims_are_nomads() {
    let Some(tally) = recorded::beside("victims_are_nomads", "preemption.jsonl", &PREEMPTION)
    else {
        return;
    };
    tally.assert_same(1_000);
}

/// Accepts one of the recorded sets. Not every order was tried: a set with the same priorities and amounts counts as
/// the same answer.
fn compare_equal_victims(case: &Value) -> Outcome {
    let (candidates, ids, _) = read(case);
    let worth = |set: &BTreeSet<String>| {
        let mut worth: Vec<(u8, u64, u64, u64)> = candidates
            .iter()
            .zip(&ids)
            .filter(|(_, id)| set.contains(*id))
            .map(|(it, _)| {
                let Amount {
                    cpu_mhz,
                    memory_mb,
                    disk_mb,
                    allocs: _,
                } = it.amount;
                (it.priority, cpu_mhz, memory_mb, disk_mb)
            })
            .collect();
        worth.sort_unstable();
        worth
    };
    let chosen = chosen(case).unwrap_or_default();
    let mut seen = case["victim_sets_seen"].as_array().unwrap().iter();
    if seen.any(|seen| worth(&set(seen)) == worth(&chosen)) {
        Outcome::Same
    } else {
        Outcome::Differs(format!("{chosen:?} was not seen"))
    }
}

#[test]
fn tied_preemption_choices_match_nomad() {
    let test = "tied_preemption_choices_match_nomad";
    let file = "preemption_order_dependent.jsonl";
    let Some(tally) = recorded::beside(test, file, &ORDER_DEPENDENT) else {
        return;
    };
    tally.assert_same(80);
}

#[test]
fn recorded_cases_in_named_files() {
    recorded::named(&[PREEMPTION, ORDER_DEPENDENT]);
}

fn candidate(name: u32, priority: u8, memory_mb: u64, disk_mb: u64, cpu_mhz: u64) -> Candidate {
    Candidate {
        id: AllocId::at(LogIndex(1), name),
        priority,
        amount: Amount {
            cpu_mhz,
            memory_mb,
            disk_mb,
            allocs: 0,
        },
        max_parallel: 0,
        evicted: 0,
        age: 0,
    }
}

/// Returns a node on which the amounts of `candidates` are all that is used.
fn full(candidates: &[Candidate]) -> NodeUsage {
    let none = Amount::default();
    let total = candidates
        .iter()
        .fold(none, |total, it| total.plus(it.amount));
    NodeUsage { total, used: total }
}

/// The seed document's example: `cache` (70) runs a6, `batch-analytics` (50) runs a4 and a5,
/// `email-marketing` (20) runs a1 and a2.
#[test]
fn preemption_example_evicts_exactly_a1_a2_a4() {
    let names = ["a1", "a2", "a4", "a5", "a6"];
    let candidates = [
        candidate(1, 20, 512, 800, 0),
        candidate(2, 20, 512, 200, 0),
        candidate(4, 50, 1_024, 500, 500),
        candidate(5, 50, 1_024, 500, 500),
        candidate(6, 70, 2_048, 500, 1_000),
    ];
    let ask = Amount {
        cpu_mhz: 0,
        memory_mb: 2_048,
        disk_mb: 1_000,
        allocs: 0,
    };

    let chosen = choose(75, ask, full(&candidates), &candidates).unwrap();

    let mut chosen: Vec<&str> = chosen.into_iter().map(|at| names[at]).collect();
    chosen.sort_unstable();
    assert_eq!(chosen.len(), 3);
    assert_eq!(chosen, ["a1", "a2", "a4"]);
}

#[test]
fn preemption_requires_priority_difference_of_ten() {
    let ask = Amount {
        cpu_mhz: 0,
        memory_mb: 1,
        disk_mb: 0,
        allocs: 0,
    };
    for (priority, expected) in [(66, None), (65, Some(vec![0]))] {
        let candidates = [candidate(1, priority, 1, 0, 0)];
        let chosen = choose(75, ask, full(&candidates), &candidates);
        assert_eq!(chosen, expected);
    }
}
