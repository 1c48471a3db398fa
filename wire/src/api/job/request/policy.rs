//! Reads network policies.

use std::cell::RefCell;

use muster_domain::fault::Fault;
use muster_domain::job::{
    self, BitRate, Peer, PolicyAction, PortRange, read_peer, validate_policy,
};
use serde_json::Value;

use crate::api::block::{Block, ParseFindings};
use crate::api::job::table::{BlockForm, json_form, read_one};
use crate::api::policy::{DirectionPolicy, NetworkPolicy};

/// Reads a policy outside of a job, by the rules for jobs.
///
/// # Errors
///
/// All faults, each with its path in the value.
pub fn read(value: &Value) -> Result<job::NetworkPolicy, Vec<Fault>> {
    let found = RefCell::new(ParseFindings::default());
    let default = job::NetworkPolicy::default();
    let read = Block::new(String::new(), value, &found)
        .map(|block| NetworkPolicy::read_block(block, &default));
    let (mut faults, _warnings) = found.into_inner().into_parts();
    if let Some(policy) = &read {
        faults.extend(validate_policy(policy));
    }
    match read {
        Some(policy) if faults.is_empty() => Ok(policy),
        Some(_) | None => Err(faults),
    }
}

json_form! {
    DirectionPolicy, of job::DirectionPolicy: read_one::<DirectionPolicy, _>,
        DirectionPolicy::write_block;
    String, of Option<PolicyAction>: |block, name, default| block.choice(name).or(*default),
        |value| value.map(|action| action.as_str().to_owned()).unwrap_or_default();
    String, of Option<BitRate>: |block, name, default| read_rate(block, name).or(*default),
        |value| value.map(|rate| rate.to_string()).unwrap_or_default();
    Vec<String>, of Vec<Peer>:
        |block, name, _| {
            let form = "neither an address such as 10.1.2.3 nor a prefix such as 10.0.0.0/8";
            read_each(block, name, read_peer, form)
        },
        |value| value.iter().map(ToString::to_string).collect();
    Vec<String>, of Vec<PortRange>:
        |block, name, _| {
            let form = "neither a port such as 443 nor a range such as 8000-9000";
            read_each(block, name, PortRange::read, form)
        },
        |value| value.iter().map(ToString::to_string).collect();
}

fn read_rate(block: &mut Block<'_>, name: &'static str) -> Option<BitRate> {
    let text = block.word(name)?;
    let rate = BitRate::read(&text);
    if rate.is_none() {
        block.fault(
            name,
            format!("`{text}` is not a rate such as 100mbit: give a number and kbit, mbit or gbit"),
        );
    }
    rate
}

/// Reads a list of texts. A text that `read` cannot parse is reported with `wrong`.
fn read_each<T>(
    rule: &mut Block<'_>,
    name: &'static str,
    read: fn(&str) -> Option<T>,
    wrong: &str,
) -> Vec<T> {
    let mut values = Vec::new();
    for text in rule.strings(name) {
        match read(&text) {
            Some(value) => values.push(value),
            None => rule.fault(name, format!("`{text}` is {wrong}")),
        }
    }
    values
}
