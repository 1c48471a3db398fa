use std::collections::BTreeSet;

use muster_domain::id::LogIndex;
use serde_json::Value;

use super::*;
use crate::scheduler::rank::tests::cases;

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

fn amount(value: &Value, prefix: &str) -> Amount {
    Amount {
        cpu_mhz: number(&value[format!("{prefix}cpu_mhz")]),
        memory_mb: number(&value[format!("{prefix}memory_mb")]),
        disk_mb: number(&value[format!("{prefix}disk_mb")]),
    }
}

/// A recorded case as input: candidates with their recorded ids, and what is free.
fn read(case: &Value) -> (Vec<Candidate>, Vec<String>, Amount) {
    let mut free = amount(&case["node"], "").minus(amount(&case["node"], "reserved_"));
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
        free = free.minus(amount(alloc, ""));
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
    (candidates, ids, free)
}

fn chosen(case: &Value) -> Option<BTreeSet<String>> {
    let (candidates, ids, free) = read(case);
    let priority = u8::try_from(number(&case["asking_job_priority"])).unwrap();
    let chosen = choose(priority, amount(&case["ask"], ""), free, &candidates)?;
    Some(chosen.into_iter().map(|at| ids[at].clone()).collect())
}

fn set(list: &Value) -> BTreeSet<String> {
    list.as_array()
        .into_iter()
        .flatten()
        .map(|id| id.as_str().unwrap().to_owned())
        .collect()
}

/// Nomad leaves the asking job's own allocations out of the sum, so it believes that more is free.
#[test]
fn victims_are_nomads() {
    let Some(cases) = cases("victims_are_nomads", "preemption.jsonl") else {
        return;
    };
    let mut differ = Vec::new();
    for case in cases.iter().filter(|case| case["kind"] != "own_job") {
        let expected = case["preemption_possible"]
            .as_bool()
            .unwrap()
            .then(|| set(&case["victims"]));
        let chosen = chosen(case);
        if chosen != expected {
            differ.push(format!(
                "case {}: {chosen:?}, not {expected:?}",
                case["case"]
            ));
        }
    }
    assert_eq!(differ, Vec::<String>::new());
}

#[test]
fn among_equals_the_choice_is_one_that_nomad_makes_too() {
    let test = "among_equals_the_choice_is_one_that_nomad_makes_too";
    let Some(cases) = cases(test, "preemption_order_dependent.jsonl") else {
        return;
    };
    for case in &cases {
        let (candidates, ids, _) = read(case);
        // Not every order was tried: a set of the same priorities and amounts is the same answer.
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
                    } = it.amount;
                    (it.priority, cpu_mhz, memory_mb, disk_mb)
                })
                .collect();
            worth.sort_unstable();
            worth
        };
        let chosen = chosen(case).unwrap_or_default();
        let is_seen = case["victim_sets_seen"]
            .as_array()
            .unwrap()
            .iter()
            .any(|seen| worth(&set(seen)) == worth(&chosen));
        assert!(is_seen, "case {}: {chosen:?}", case["case"]);
    }
}

/// Nothing of what Nomad decides about a job's own allocations is too little for us.
#[test]
fn own_allocations_count_as_held() {
    let Some(cases) = cases("own_allocations_count_as_held", "preemption.jsonl") else {
        return;
    };
    for case in cases.iter().filter(|case| case["kind"] == "own_job") {
        let (candidates, _, free) = read(case);
        let ask = amount(&case["ask"], "");
        let priority = u8::try_from(number(&case["asking_job_priority"])).unwrap();
        if let Some(chosen) = choose(priority, ask, free, &candidates) {
            let room = chosen
                .iter()
                .fold(free, |room, at| room.plus(candidates[*at].amount));
            assert_eq!(ask.exceeds(room), None, "case {}", case["case"]);
        }
    }
}

fn candidate(name: u32, priority: u8, memory_mb: u64, disk_mb: u64, cpu_mhz: u64) -> Candidate {
    Candidate {
        id: AllocId::at(LogIndex(1), name),
        priority,
        amount: Amount {
            cpu_mhz,
            memory_mb,
            disk_mb,
        },
        max_parallel: 0,
        evicted: 0,
        age: 0,
    }
}

/// The seed document's example: `cache` (70) runs a6, `batch-analytics` (50) runs a4 and a5,
/// `email-marketing` (20) runs a1 and a2.
#[test]
fn the_example_of_the_seed_evicts_a1_a2_and_a4_and_never_a6() {
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
    };

    let chosen = choose(75, ask, Amount::default(), &candidates).unwrap();

    let mut chosen: Vec<&str> = chosen.into_iter().map(|at| names[at]).collect();
    chosen.sort_unstable();
    assert_eq!(chosen.len(), 3);
    assert_eq!(chosen, ["a1", "a2", "a4"]);
}

#[test]
fn nine_below_is_too_close_and_ten_is_not() {
    let ask = Amount {
        cpu_mhz: 0,
        memory_mb: 1,
        disk_mb: 0,
    };
    for (priority, expected) in [(66, None), (65, Some(vec![0]))] {
        let candidates = [candidate(1, priority, 1, 0, 0)];
        assert_eq!(choose(75, ask, Amount::default(), &candidates), expected);
    }
}
