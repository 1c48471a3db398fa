//! The block `policy` of an agent's configuration: what a node adds to every task's network policy.
//!
//! It is written as in a job file and read by the same rules.

use hcl_edit::Span as _;
use hcl_edit::structure::Block;
use muster_agent::node::NetworkPolicy;
use muster_wire::api::job::request::read_policy;
use serde_json::{Map, Value};

use crate::jobspec::{JobFileFault, free};

/// Names of the block's fields in a job file and in a job's JSON.
const FIELDS: [(&str, &str); 14] = [
    ("egress", "Egress"),
    ("ingress", "Ingress"),
    ("default", "Default"),
    ("rule", "Rules"),
    ("rate", "Rate"),
    ("action", "Action"),
    ("protocol", "Protocol"),
    ("peers", "Peers"),
    ("ports", "Ports"),
    ("icmp_type", "ICMPType"),
    ("icmp_code", "ICMPCode"),
    ("log", "Log"),
    // What is not a field of ours must not become one by being written as in JSON.
    ("Name", "name"),
    ("Rules", "rules"),
];

/// Reads the block.
pub(super) fn read(
    block: &Block,
    faults: &mut Vec<JobFileFault>,
) -> Result<NetworkPolicy, JobFileFault> {
    let at = || block.ident.span().unwrap_or_default();
    let (map, places) = free::read("policy", block, faults);
    let json = renamed(map);
    read_policy(&json).map_err(|found| {
        let messages: Vec<String> = found.iter().map(ToString::to_string).collect();
        let place = places.of("policy");
        let place = if place.is_empty() { at() } else { place };
        JobFileFault::at(place, format!("policy: {}", messages.join("; ")))
    })
}

/// The block as a job's JSON has it: blocks as objects, rules as a list with their names in them.
fn renamed(map: Map<String, Value>) -> Value {
    let mut json = Map::new();
    for (key, value) in map {
        let known = FIELDS.iter().find(|(name, _)| *name == key);
        let name = known.map_or(key.as_str(), |(_, json)| json);
        let value = match (key.as_str(), value) {
            ("rule", Value::Array(blocks)) => {
                Value::Array(blocks.into_iter().flat_map(rules).collect())
            }
            ("egress" | "ingress", Value::Array(mut blocks)) if blocks.len() == 1 => {
                match blocks.remove(0) {
                    Value::Object(map) => renamed(map),
                    other => other,
                }
            }
            (_, value) => value,
        };
        json.insert(name.to_owned(), value);
    }
    Value::Object(json)
}

/// The rules of a block with a label: an object of lists of one.
fn rules(block: Value) -> Vec<Value> {
    let Value::Object(labelled) = block else {
        return vec![block];
    };
    let mut rules = Vec::new();
    for (label, inner) in labelled {
        match inner {
            Value::Array(bodies) => rules.extend(bodies.into_iter().map(|body| match body {
                Value::Object(map) => match renamed(map) {
                    Value::Object(mut rule) => {
                        rule.insert("Name".to_owned(), Value::String(label.clone()));
                        Value::Object(rule)
                    }
                    other => other,
                },
                other => other,
            })),
            other => rules.push(other),
        }
    }
    rules
}
