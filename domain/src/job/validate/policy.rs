//! Checks of the rules for the traffic of tasks.

use super::{check_count, check_unique};
use crate::fault::Fault;
use crate::job::{BitRate, DirectionPolicy, NetworkPolicy};
use crate::limits;

pub(super) fn check_policy(at: &str, policy: &NetworkPolicy, faults: &mut Vec<Fault>) {
    let NetworkPolicy { egress, ingress } = policy;
    check_direction(&format!("{at} → policy → egress"), egress, faults);
    check_direction(&format!("{at} → policy → ingress"), ingress, faults);
}

fn check_direction(at: &str, policy: &DirectionPolicy, faults: &mut Vec<Fault>) {
    let DirectionPolicy {
        default: _,
        rules,
        rate,
    } = policy;
    if let Some(rate) = rate
        && !(BitRate::MIN..=BitRate::MAX).contains(rate)
    {
        let (min, max) = (BitRate::MIN, BitRate::MAX);
        let reason = format!("{rate} is not from {min} to {max}");
        faults.push(Fault::new(format!("{at} → rate"), reason));
    }
    let max = limits::POLICY_RULES_MAX;
    check_count(format_args!("{at} → rule"), rules.len(), max, faults);
    if rules.len() > max {
        return;
    }
    check_unique(
        at,
        "rule",
        rules.iter().map(|rule| rule.name.as_str()),
        faults,
    );
    for (ordinal, rule) in rules.iter().enumerate() {
        let rule_at = || match rule.name.as_str() {
            "" => format!("{at} → rule[{ordinal}]"),
            name => format!("{at} → rule \"{name}\""),
        };
        if let Some(reason) = rule.fault() {
            faults.push(Fault::new(rule_at(), reason));
        }
        let peers = rule.peers.len();
        let ports = rule.ports.len();
        if peers > limits::POLICY_PEERS_MAX || ports > limits::POLICY_PEERS_MAX {
            let max = limits::POLICY_PEERS_MAX;
            let reason = format!(
                "has {peers} peers and {ports} ports: at most {max} of each fit into one rule"
            );
            faults.push(Fault::new(rule_at(), reason));
        }
        if rule.name.len() > limits::NAME_BYTES_MAX {
            let max = limits::NAME_BYTES_MAX;
            let reason = format!("its name has more than {max} bytes");
            faults.push(Fault::new(format!("{at} → rule[{ordinal}]"), reason));
        }
    }
}
