use std::path::Path;

use super::*;

fn skipped(name: &str, reason: &str) {
    use std::io::Write as _;
    eprintln!("skipped: {name}: {reason}");
    if let Some(file) = std::env::var_os("MUSTER_SKIP_FILE") {
        let mut file = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(file)
            .unwrap();
        file.write_all(format!("{name}: {reason}\n").as_bytes())
            .unwrap();
    }
}

/// The recorded decisions of a real Nomad, if they are there.
pub(in crate::scheduler) fn cases(test: &str, file: &str) -> Option<Vec<serde_json::Value>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../../shared/cases")
        .join(file);
    let Ok(text) = std::fs::read_to_string(path) else {
        skipped(
            test,
            "no recorded cases beside the workspace (../shared/cases)",
        );
        return None;
    };
    Some(
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect(),
    )
}

#[test]
fn binpack_scores_are_nomads() {
    let Some(cases) = cases("binpack_scores_are_nomads", "fit_and_score.jsonl") else {
        return;
    };
    let number = |value: &serde_json::Value| value.as_u64().unwrap_or(0);
    let mut compared = 0;
    for case in &cases {
        let (node, used) = (&case["node"], &case["used"]);
        let amount = |suffix: &str, of: &str| {
            number(&node[format!("{of}_{suffix}")])
                .saturating_sub(number(&node[format!("reserved_{of}_{suffix}")]))
        };
        let total = Amount {
            cpu_mhz: amount("mhz", "cpu"),
            memory_mb: amount("mb", "memory"),
            disk_mb: 0,
        };
        // A node without capacity is refused here; Nomad divides by zero.
        if total.cpu_mhz == 0 || total.memory_mb == 0 {
            continue;
        }
        let used = Amount {
            cpu_mhz: number(&used["cpu_mhz"]),
            memory_mb: number(&used["memory_mb"]),
            disk_mb: 0,
        };

        let score = binpack::score(total, used) * 18.0;

        let expected = case["score_binpack"].as_f64().unwrap();
        assert!(
            (score - expected).abs() < 1e-9,
            "case {}: {score} is not {expected}",
            case["case"]
        );
        compared += 1;
    }
    assert!(
        compared > 900,
        "only {compared} of {} were compared",
        cases.len()
    );
}

#[test]
fn fit_is_nomads_where_no_core_or_device_is_asked_for() {
    let test = "fit_is_nomads_where_no_core_or_device_is_asked_for";
    let Some(cases) = cases(test, "fit_and_score.jsonl") else {
        return;
    };
    let number = |value: &serde_json::Value| value.as_u64().unwrap_or(0);
    let mut compared = 0;
    for case in &cases {
        let (node, used, dimension) = (
            &case["node"],
            &case["used"],
            case["dimension"].as_str().unwrap(),
        );
        let usable = |name: &str| {
            number(&node[name]).saturating_sub(number(&node[format!("reserved_{name}")]))
        };
        let total = Amount {
            cpu_mhz: usable("cpu_mhz"),
            memory_mb: usable("memory_mb"),
            disk_mb: usable("disk_mb"),
        };
        let used = Amount {
            cpu_mhz: number(&used["cpu_mhz"]),
            memory_mb: number(&used["memory_mb"]),
            disk_mb: number(&used["disk_mb"]),
        };
        // More reserved than there is: such a node is refused before this comparison.
        if total.cpu_mhz == 0 || total.memory_mb == 0 || total.disk_mb == 0 {
            continue;
        }
        if matches!(dimension, "" | "cpu" | "memory" | "disk") {
            assert_eq!(
                used.exceeds(total).unwrap_or(""),
                dimension,
                "case {}",
                case["case"]
            );
            compared += 1;
        }
    }
    assert!(
        compared > 300,
        "only {compared} of {} were compared",
        cases.len()
    );
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

fn parse_spreads(list: &serde_json::Value) -> Vec<muster_domain::job::Spread> {
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

fn texts(value: &serde_json::Value) -> BTreeMap<String, String> {
    let pairs = value.as_object().into_iter().flatten();
    pairs
        .map(|(key, value)| (key.clone(), value.as_str().unwrap().to_owned()))
        .collect()
}

fn parse_node(node: &serde_json::Value) -> muster_domain::node::NodeSpec {
    let text = |field: &str| node[field].as_str().unwrap_or_default().to_owned();
    let mut spec = muster_domain::fixture::node(&text("name")).build();
    spec.id = text("id").parse().unwrap();
    spec.datacenter = text("datacenter");
    spec.class = text("class");
    spec.attributes = texts(&node["attributes"]);
    spec.meta = texts(&node["meta"]);
    spec
}

/// Each component alone, and the mean of all.
#[test]
#[expect(clippy::too_many_lines, reason = "one recorded case, field by field")]
fn spread_affinity_and_penalties_are_nomads() {
    let test = "spread_affinity_and_penalties_are_nomads";
    let Some(cases) = cases(test, "spread_and_affinity.jsonl") else {
        return;
    };
    let mut differ = Vec::new();
    for case in &cases {
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
            let ended = alloc["desired_status"] != "run"
                || ["complete", "failed", "lost"]
                    .contains(&alloc["client_status"].as_str().unwrap());
            let place = alloc["where"].as_str().unwrap();
            let goes = ["stopped_by_plan", "preempted_by_plan"].contains(&place);
            if !of_group || ended {
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
                    if let Some(value) = super::super::feasible::value_of(&attribute, node) {
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
                let operand = muster_domain::job::Operand::from_word(text("operand")).unwrap();
                let condition = super::super::feasible::Condition::new(
                    text("l_target"),
                    operand,
                    text("r_target"),
                );
                let weight = i8::try_from(affinity["weight"].as_i64().unwrap()).unwrap();
                (weight, condition.holds(node))
            });
            let penalty = case["penalty_nodes"]
                .as_array()
                .into_iter()
                .flatten()
                .any(|id| id.as_str() == Some(&node.id.to_string()));
            let boosts = spreads.iter().map(|spread| {
                spread.boost(super::super::feasible::value_of(&spread.attribute, node).as_deref())
            });
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
                    differ.push(format!(
                        "case {} {} {name}: {ours:?}, not {theirs:?}",
                        case["case"], node.name
                    ));
                }
            }
            // A target of no instances is the worst a spread can say here, not minus infinity.
            if recorded["allocation_spread"] == "-Inf" {
                continue;
            }
            let scores: Vec<f64> = ours.iter().filter_map(|(_, score)| *score).collect();
            if scores.len() as u64 != recorded["scores_counted"].as_u64().unwrap() {
                differ.push(format!(
                    "case {} {}: counted {}",
                    case["case"],
                    node.name,
                    scores.len()
                ));
            }
        }
    }
    assert_eq!(differ.len(), 0, "{:#?}", &differ[..differ.len().min(30)]);
}
