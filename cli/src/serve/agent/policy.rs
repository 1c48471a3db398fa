//! The block `policy` of an agent's configuration: the node's addition to every task's network policy.
//!
//! It has the syntax and the rules of a job file. The file with the cluster's addition has the same form.

use std::path::Path;

use muster_agent::node::NetworkPolicy;
use muster_wire::api::job::request::read_policy;
use serde_json::{Map, Value};

use super::file;
use crate::exit::{CliError, Exit};
use muster_jobspec::syntax::{Block, Body, Structure};
use muster_jobspec::{JobFileFault, ReadJobFileError, free, from_parser};

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
    // A name in JSON spelling is not a field of the file and must not become one.
    ("Name", "name"),
    ("Rules", "rules"),
];

/// The policy in a file that has nothing but one block `policy`.
///
/// # Errors
///
/// All faults, with their places in the file.
pub(crate) fn read_policy_file(path: &Path) -> Result<NetworkPolicy, CliError> {
    let text = file::text_in(path)?;
    let mut faults = Vec::new();
    let read = match muster_jobspec::syntax::parse_body(&text) {
        Ok(body) => only_block(&body, &mut faults),
        Err(error) => Err(from_parser(error)),
    };
    match read {
        Ok(policy) if faults.is_empty() => Ok(policy),
        read => {
            faults.extend(read.err());
            let name = path.display().to_string();
            let error = ReadJobFileError::new(&name, &text, faults);
            Err(CliError::new(Exit::Usage, error.to_string()))
        }
    }
}

fn only_block(body: &Body, faults: &mut Vec<JobFileFault>) -> Result<NetworkPolicy, JobFileFault> {
    const WANTED: &str = "write policy { egress { … } ingress { … } } and nothing else";
    let mut policy = None;
    for structure in &body.items {
        let (at, block) = match structure {
            Structure::Attribute(attribute) => (attribute.key.span.clone(), None),
            Structure::Block(block) => (block.ident.span.clone(), Some(block)),
        };
        match block {
            Some(block) if block.has_ident("policy") && policy.is_none() => {
                policy = Some(read(block, faults)?);
            }
            Some(_) | None => {
                let message = "only one block `policy` may stand here".to_owned();
                return Err(JobFileFault::at(at, message).help(WANTED));
            }
        }
    }
    policy.ok_or_else(|| JobFileFault::at(0..0, "missing block `policy`".to_owned()).help(WANTED))
}

/// Reads the block.
pub(super) fn read(
    block: &Block,
    faults: &mut Vec<JobFileFault>,
) -> Result<NetworkPolicy, JobFileFault> {
    let at = || block.ident.span.clone();
    let (map, places) = free::read("policy", block, faults);
    let json = renamed(map);
    read_policy(&json).map_err(|found| {
        let messages: Vec<String> = found.iter().map(ToString::to_string).collect();
        let place = places.of("policy");
        let place = if place.is_empty() { at() } else { place };
        JobFileFault::at(place, format!("policy: {}", messages.join("; ")))
    })
}

/// Converts the block to a job's JSON: blocks to objects, rules to a list with their names inside.
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
