use std::collections::BTreeMap;

use muster_domain::fixture;

use super::*;
use crate::scheduler::rank::tests::cases;

fn map(value: &serde_json::Value) -> BTreeMap<String, String> {
    let pairs = value.as_object().into_iter().flatten();
    pairs
        .map(|(key, value)| (key.clone(), value.as_str().unwrap().to_owned()))
        .collect()
}

/// Classes of Unicode letters, which the engine does not know.
const KNOWN_TO_DIFFER: [&str; 2] = [r"\pN", r"^\pL+$"];

#[test]
fn constraints_are_nomads() {
    let Some(cases) = cases("constraints_are_nomads", "constraints.jsonl") else {
        return;
    };
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let (mut compared, mut differ) = (0, Vec::new());
    for case in &cases {
        let Some(operand) = Operand::from_word(&text(&case["operand"])) else {
            // An operand that there is not holds for no node; the API refuses it.
            assert_eq!(case["result"], false, "{case}");
            continue;
        };
        let mut node = fixture::node(&text(&case["node"]["name"])).build();
        node.id = text(&case["node"]["id"]).parse().unwrap();
        node.datacenter = text(&case["node"]["datacenter"]);
        node.class = text(&case["node"]["class"]);
        node.attributes = map(&case["node_attributes"]);
        node.meta = map(&case["node_meta"]);
        let constraint = Constraint {
            left: text(&case["l_target"]),
            operand,
            right: text(&case["r_target"]),
        };

        let holds = Condition::of(&constraint).holds(&node);

        let is_known = KNOWN_TO_DIFFER.contains(&text(&case["r_value"]).as_str());
        if Some(holds) != case["result"].as_bool() && !is_known {
            differ.push(format!(
                "case {}: {constraint} is {holds} on {}",
                case["case"], case["l_value"]
            ));
        }
        compared += 1;
    }
    assert_eq!(differ, Vec::<String>::new());
    assert!(
        compared > 100,
        "only {compared} of {} were compared",
        cases.len()
    );
}

#[test]
fn targets_that_name_one_node_are_nomads() {
    let test = "targets_that_name_one_node_are_nomads";
    let Some(cases) = cases(test, "computed_class.jsonl") else {
        return;
    };
    for case in &cases {
        for (target, expected) in case["target_needs_node_itself"]
            .as_object()
            .into_iter()
            .flatten()
        {
            assert_eq!(Some(names_one_node(target)), expected.as_bool(), "{target}");
        }
    }
}

#[test]
fn an_unknown_reference_reads_as_nothing() {
    let node = fixture::node("n1").build();

    assert_eq!(
        resolve("${node.colour}", &node),
        Side {
            text: None,
            found: false
        }
    );
    assert_eq!(resolve("${attr.colour}", &node).text.as_deref(), Some(""));
}
