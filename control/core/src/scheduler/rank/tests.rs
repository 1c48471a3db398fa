use muster_domain::fixture::recorded::{self, CaseKind, CaseRunner, Outcome};
use muster_domain::fixture::{self, group, task};
use muster_domain::job::{Lifecycle, LifecycleHook};
use muster_domain::node::NodeSpec;
use muster_domain::resources::{CpuMhz, Mb};
use serde_json::Value;

use super::rule::{NodeScorer, Rule, ScanSupport};
use super::*;
use crate::fixture::Cluster;
use crate::scheduler::feasible::Condition;

/// A rule for jobs with the metadata `wants`: the node with that name scores 1.
pub(super) const RULE: Rule = Rule {
    name: "test-rule",
    prepare: |job, _| {
        let name = job.meta.get("wants")?;
        Some(Box::new(WantedName(name)))
    },
    scan: ScanSupport::Declined,
};

struct WantedName<'a>(&'a str);

impl NodeScorer for WantedName<'_> {
    fn names_one_node(&self) -> bool {
        true
    }

    fn score(&self, spec: &NodeSpec) -> Option<f64> {
        (spec.name == self.0).then_some(1.0)
    }
}

const FIT: CaseKind = CaseKind {
    name: "fit_and_score",
    is: |row| !row["score_binpack"].is_null(),
    judge: CaseRunner::Row(compare_fit),
};

const SPREAD: CaseKind = CaseKind {
    name: "spread_and_affinity",
    is: |row| row["results"].is_array() && !row["penalty_nodes"].is_null(),
    judge: CaseRunner::Row(compare_spread),
};

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

fn amount(value: &Value, prefix: &str) -> Amount {
    let of = |name: &str| number(&value[format!("{prefix}{name}")]);
    Amount {
        cpu_mhz: of("cpu_mhz"),
        memory_mb: of("memory_mb"),
        disk_mb: of("disk_mb"),
        allocs: 0,
    }
}

fn is_terminal(alloc: &Value) -> bool {
    let ended = ["complete", "failed", "lost"];
    alloc["desired_status"] != "run" || ended.contains(&alloc["client_status"].as_str().unwrap())
}

/// Returns the ask of a recorded allocation; its cores are given, so their worth is known.
fn ask_of(alloc: &Value) -> Amount {
    let mut group = group("main");
    group.ephemeral_disk.size = Mb(u32::try_from(number(&alloc["disk_mb"])).unwrap());
    group.tasks.clear();
    for from in alloc["tasks"].as_array().unwrap() {
        let mut task = task(from["name"].as_str().unwrap());
        task.resources.cpu = CpuMhz(u32::try_from(number(&from["cpu_mhz"])).unwrap());
        task.resources.memory = Mb(u32::try_from(number(&from["memory_mb"])).unwrap());
        task.lifecycle =
            LifecycleHook::from_name(from["lifecycle_hook"].as_str().unwrap()).map(|hook| {
                Lifecycle {
                    hook,
                    sidecar: from["lifecycle_sidecar"] == true,
                }
            });
        group.tasks.push(task);
    }
    // The recorded version of Nomad does not count allocations.
    Amount {
        allocs: 0,
        ..group.ask()
    }
}

/// Compares the used amounts, whether the instance fits, and the score.
fn compare_fit(case: &Value) -> Outcome {
    let (node, dimension) = (&case["node"], case["dimension"].as_str().unwrap());
    let total = amount(node, "").minus(amount(node, "reserved_"));
    let recorded = amount(&case["used"], "");
    let mut differences = Vec::new();

    let allocs = || case["allocs"].as_array().into_iter().flatten();
    let live = allocs().filter(|alloc| !is_terminal(alloc));
    let used = live.map(ask_of).fold(Amount::default(), Amount::plus);
    // Nomad does not count tasks that start after the main tasks at all; here they count with them.
    let has_poststart = allocs()
        .flat_map(|alloc| alloc["tasks"].as_array().unwrap())
        .any(|task| task["lifecycle_hook"] == "poststart");
    if used != recorded && !has_poststart {
        differences.push(format!("used {used:?}, not {recorded:?}"));
    }

    // A node without cpu or memory is refused before the comparison; Nomad divides by zero.
    let is_empty = total.cpu_mhz == 0 || total.memory_mb == 0;
    let score = binpack::score(total, recorded) * 18.0;
    let theirs = case["score_binpack"].as_f64();
    if !is_empty && theirs.is_none_or(|theirs| (score - theirs).abs() >= 1e-9) {
        differences.push(format!("score {score}, not {theirs:?}"));
    }

    // These requests are not judged by sums.
    let is_no_sum = matches!(
        dimension,
        "cores" | "reserved port collision" | "device oversubscribed"
    );
    let ours = recorded.exceeds(total).unwrap_or("");
    if !is_empty && !is_no_sum && ours != dimension {
        differences.push(format!("exceeds {ours:?}, not {dimension:?}"));
    }

    if differences.is_empty() && is_empty {
        Outcome::LeftOut("a node without capacity is refused")
    } else if differences.is_empty() && is_no_sum {
        Outcome::LeftOut("cores, ports and devices of many allocations are not judged at once")
    } else {
        Outcome::from_differences(&differences)
    }
}

#[test]
fn fit_and_scores_are_nomads() {
    let test = "fit_and_scores_are_nomads";
    let Some(tally) = recorded::beside(test, "fit_and_score.jsonl", &FIT) else {
        return;
    };
    tally.assert_same(800);
}

#[test]
fn recorded_cases_in_named_files() {
    recorded::named(&[FIT, SPREAD]);
}

#[test]
fn scores_are_the_same_bits_everywhere() {
    let amount = |cpu_mhz, memory_mb| Amount {
        cpu_mhz,
        memory_mb,
        disk_mb: 0,
        allocs: 0,
    };
    let bits = |total, used| binpack::score(total, used).to_bits();

    let total = amount(15_700, 31_337);

    let of_some = [(1, 1), (4_321, 1_234), (9_999, 30_000), (15_700, 31_337)];
    let of_some = of_some.map(|(cpu, memory)| bits(total, amount(cpu, memory)));
    let expected: [f64; 4] = [
        f64::from_bits(4_548_643_814_294_720_057),
        f64::from_bits(4_599_236_776_143_383_737),
        f64::from_bits(4_606_476_545_647_468_576),
        1.0,
    ];
    assert_eq!(of_some, expected.map(f64::to_bits));
}

#[test]
fn the_winner_is_the_first_of_the_best() {
    let mut scores = vec![0.5, 1.0, 1.0, f64::NEG_INFINITY, 0.2];

    let mut tree = Tournament::new(&scores, 2);
    assert_eq!(tree.winner(), Some(2));
    scores[2] = 0.1;
    tree.update(&scores, 2);
    assert_eq!(tree.winner(), Some(1));
    scores[4] = 2.0;
    tree.update(&scores, 4);
    assert_eq!(tree.winner(), Some(4));

    assert_eq!(Tournament::new(&[], 7).winner(), None);
    assert_eq!(Tournament::new(&[0.0], 7).winner(), Some(0));
}

fn parse_spreads(list: &Value) -> Vec<muster_domain::job::Spread> {
    let list = list.as_array().into_iter().flatten();
    list.map(|spread| muster_domain::job::Spread {
        attribute: spread["attribute"].as_str().unwrap().to_owned(),
        weight: u8::try_from(spread["weight"].as_u64().unwrap()).unwrap(),
        targets: spread["targets"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|target| muster_domain::job::SpreadTarget {
                value: target["value"].as_str().unwrap().to_owned(),
                percent: u8::try_from(target["percent"].as_u64().unwrap()).unwrap(),
            })
            .collect(),
    })
    .collect()
}

fn texts(value: &Value) -> BTreeMap<String, String> {
    let pairs = value.as_object().into_iter().flatten();
    pairs
        .map(|(key, value)| (key.clone(), value.as_str().unwrap().to_owned()))
        .collect()
}

fn parse_node(node: &Value) -> NodeSpec {
    let text = |field: &str| node[field].as_str().unwrap_or_default().to_owned();
    let mut spec = fixture::node(&text("name")).build();
    spec.id = text("id").parse().unwrap();
    spec.datacenter = text("datacenter");
    spec.class = text("class");
    spec.attributes = texts(&node["attributes"]);
    spec.meta = texts(&node["meta"]);
    spec
}

/// Compares each component alone, and the mean of all.
#[expect(clippy::too_many_lines, reason = "one recorded case, field by field")]
fn compare_spread(case: &Value) -> Outcome {
    let mut differ = Vec::new();
    let nodes: Vec<_> = case["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .map(parse_node)
        .collect();
    let count = u32::try_from(case["task_group_count"].as_u64().unwrap()).unwrap();
    let mut spreads = spread::uses(
        &parse_spreads(&case["job_spreads"]),
        &parse_spreads(&case["group_spreads"]),
        count,
    );
    let mut collisions: BTreeMap<NodeId, u32> = BTreeMap::new();
    for alloc in case["allocs"].as_array().unwrap() {
        let of_group =
            alloc["job_id"] == case["job_id"] && alloc["task_group"] == case["task_group"];
        let place = alloc["where"].as_str().unwrap();
        let goes = ["stopped_by_plan", "preempted_by_plan"].contains(&place);
        if !of_group || is_terminal(alloc) {
            continue;
        }
        let node_id: NodeId = alloc["node_id"].as_str().unwrap().parse().unwrap();
        if !goes {
            *collisions.entry(node_id).or_default() += 1;
        }
        if alloc["namespace"] != case["namespace"] {
            continue;
        }
        if let Some(node) = nodes.iter().find(|node| node.id == node_id) {
            for spread in &mut spreads {
                let attribute = spread.attribute.clone();
                if let Some(value) = value_of(&attribute, node) {
                    match place {
                        "planned" => spread.is_planned(&value),
                        "stopped_by_plan" => {
                            spread.runs(&value);
                            spread.is_stopped(&value);
                        }
                        _ => spread.runs(&value),
                    }
                }
            }
        }
    }
    for (node, (recorded, given)) in nodes.iter().zip(
        case["results"]
            .as_array()
            .unwrap()
            .iter()
            .zip(case["nodes"].as_array().unwrap()),
    ) {
        let affinities = ["job_affinities", "group_affinities", "task_affinities"]
            .into_iter()
            .flat_map(|list| case[list].as_array().into_iter().flatten());
        let met = affinities.map(|affinity| {
            let text = |field: &str| affinity[field].as_str().unwrap();
            let operand = muster_domain::job::Operand::from_name(text("operand")).unwrap();
            let condition = Condition::new(text("l_target"), operand, text("r_target"));
            let weight = i8::try_from(affinity["weight"].as_i64().unwrap()).unwrap();
            (weight, condition.holds(node))
        });
        let penalty = case["penalty_nodes"]
            .as_array()
            .into_iter()
            .flatten()
            .any(|id| id.as_str() == Some(&node.id.to_string()));
        let boosts = spreads
            .iter()
            .map(|spread| spread.boost(value_of(&spread.attribute, node).as_deref()));
        let ours = [
            ("binpack_score", given["binpack_score"].as_f64()),
            (
                "job_anti_affinity",
                anti_affinity::score(collisions.get(&node.id).copied().unwrap_or(0), count),
            ),
            (
                "node_reschedule_penalty",
                penalty.then_some(reschedule_penalty::SCORE),
            ),
            ("node_affinity", affinity::score(met)),
            ("allocation_spread", spread::score(boosts)),
        ];
        for (name, ours) in &ours[1..] {
            let theirs = if recorded[*name] == "-Inf" {
                Some(f64::NEG_INFINITY)
            } else {
                recorded[*name].as_f64()
            };
            let same = match (ours, theirs) {
                (None, None) => true,
                (Some(ours), Some(theirs)) => {
                    (ours - theirs).abs() < 1e-9 * theirs.abs().max(1.0)
                        || theirs == f64::NEG_INFINITY
                }
                (None, Some(theirs)) => theirs == f64::NEG_INFINITY,
                _ => false,
            };
            if !same {
                differ.push(format!("{} {name}: {ours:?}, not {theirs:?}", node.name));
            }
        }
        // Here a target of no instances has the worst score of a spread, not minus infinity.
        if recorded["allocation_spread"] == "-Inf" {
            continue;
        }
        let scores: Vec<f64> = ours.iter().filter_map(|(_, score)| *score).collect();
        if scores.len() as u64 != recorded["scores_counted"].as_u64().unwrap() {
            differ.push(format!("{}: counted {}", node.name, scores.len()));
        }
        let mean = scores.iter().sum::<f64>() / (scores.len().max(1) as f64);
        let theirs = recorded["normalized_score"].as_f64();
        if theirs.is_none_or(|theirs| (mean - theirs).abs() >= 1e-9 * theirs.abs().max(1.0)) {
            differ.push(format!("{}: mean {mean}, not {theirs:?}", node.name));
        }
    }
    Outcome::from_differences(&differ)
}

#[test]
fn spread_affinity_and_penalties_are_nomads() {
    let test = "spread_affinity_and_penalties_are_nomads";
    let Some(tally) = recorded::beside(test, "spread_and_affinity.jsonl", &SPREAD) else {
        return;
    };
    tally.assert_same(200);
}

#[test]
fn scan_declines_a_rule_that_it_lacks() {
    let mut cluster = Cluster::new();
    for name in ["n1", "n2", "n3"] {
        cluster.node(fixture::node(name).build());
    }
    for wanted in ["n3", "n1", "n2"] {
        let mut spec = fixture::job(&format!("for-{wanted}")).build();
        spec.meta.insert("wants".to_owned(), wanted.to_owned());

        cluster.run(spec);

        let live = cluster.live(&format!("for-{wanted}"));
        let node = cluster.state.nodes().get(&live[0].node_id).unwrap();
        assert_eq!(node.spec.name, wanted);
        let scores = &live[0].metrics.scores;
        let best = scores.iter().find(|score| score.node_id == live[0].node_id);
        let names = best.unwrap().components.iter();
        let names: Vec<&str> = names.map(|(component, _)| component.name()).collect();
        assert_eq!(names, ["binpack", "test-rule"]);
    }
}
