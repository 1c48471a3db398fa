//! Reads what tasks may send and receive.

use std::cell::RefCell;

use muster_domain::fault::Fault;
use muster_domain::job::{
    BitRate, DirectionPolicy, NetworkPolicy, PolicyAction, PolicyProtocol, PolicyRule, PortRange,
    read_peer, validate_policy,
};
use muster_domain::limits;
use serde_json::Value;

use super::PLAIN;
use crate::api::block::{Block, ParseFindings};

/// The policy in a value on its own, by the rules for jobs.
///
/// # Errors
///
/// All faults, each with its path in the value.
pub fn read(value: &Value) -> Result<NetworkPolicy, Vec<Fault>> {
    let found = RefCell::new(ParseFindings::default());
    let read = Block::new(String::new(), value, &found).map(read_block);
    let (mut faults, _warnings) = found.into_inner().into_parts();
    if let Some(policy) = &read {
        faults.extend(validate_policy(policy));
    }
    match read {
        Some(policy) if faults.is_empty() => Ok(policy),
        Some(_) | None => Err(faults),
    }
}

/// The block `Policy` of a network or task.
pub(super) fn read_policy(parent: &mut Block<'_>) -> Option<NetworkPolicy> {
    parent.block("Policy").map(read_block)
}

fn read_block(mut policy: Block<'_>) -> NetworkPolicy {
    let read = NetworkPolicy {
        egress: read_direction(&mut policy, "Egress"),
        ingress: read_direction(&mut policy, "Ingress"),
    };
    policy.finish(&PLAIN);
    read
}

fn read_direction(policy: &mut Block<'_>, name: &'static str) -> DirectionPolicy {
    let Some(mut block) = policy.block(name) else {
        return DirectionPolicy::default();
    };
    let read = DirectionPolicy {
        default: read_action(&mut block, "Default"),
        rules: block
            .blocks("Rules", limits::POLICY_RULES_MAX)
            .into_iter()
            .map(read_rule)
            .collect(),
        rate: read_rate(&mut block),
    };
    block.finish(&PLAIN);
    read
}

fn read_rate(block: &mut Block<'_>) -> Option<BitRate> {
    let text = block.word("Rate")?;
    let rate = BitRate::read(&text);
    if rate.is_none() {
        block.fault(
            "Rate",
            format!("`{text}` is not a rate such as 100mbit: give a number and kbit, mbit or gbit"),
        );
    }
    rate
}

fn read_action(block: &mut Block<'_>, name: &'static str) -> Option<PolicyAction> {
    block.choice(name)
}

fn read_rule(mut rule: Block<'_>) -> PolicyRule {
    let action = read_action(&mut rule, "Action");
    let protocol = rule.choice("Protocol").unwrap_or(PolicyProtocol::All);
    let mut peers = Vec::new();
    for text in rule.strings("Peers") {
        match read_peer(&text) {
            Some(peer) => peers.push(peer),
            None => rule.fault(
                "Peers",
                format!("`{text}` is neither an address such as 10.1.2.3 nor a prefix such as 10.0.0.0/8"),
            ),
        }
    }
    let mut ports = Vec::new();
    for text in rule.strings("Ports") {
        match PortRange::read(&text) {
            Some(range) => ports.push(range),
            None => rule.fault(
                "Ports",
                format!("`{text}` is neither a port such as 443 nor a range such as 8000-9000"),
            ),
        }
    }
    let read = PolicyRule {
        name: rule.word("Name").unwrap_or_default(),
        action: action.unwrap_or(PolicyAction::Allow),
        protocol,
        peers,
        ports,
        icmp_type: rule.number("ICMPType", u8::MAX),
        icmp_code: rule.number("ICMPCode", u8::MAX),
        log: rule.boolean("Log").unwrap_or(false),
    };
    rule.finish(&PLAIN);
    read
}
