//! Packets that network policies allowed and refused.

use serde::{Deserialize, Serialize};

use crate::api::route::Route;
use crate::rpc;

/// Routes of network traffic.
pub const ROUTES: &[Route] = &[Route::read("/v1/client/allocation/{alloc_id}/network")];

/// The answer to `GET /v1/client/allocation/:id/network`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AllocNetwork {
    /// The address of the allocation, if it has a network of its own.
    pub address: Option<String>,
    /// Rules that met a packet, of tasks that run.
    pub rules: Vec<RuleCount>,
    /// The newest verdicts after the requested number, oldest first.
    pub verdicts: Vec<Verdict>,
    /// The number of verdicts after the requested number that are not in the response. They were no longer stored, or
    /// exceeded the size of a response.
    pub missed: u64,
    /// The number for the next question: that of the allocation's newest verdict. Numbers begin again with the node's
    /// agent.
    pub last: u64,
}

/// Counts of one rule of a network policy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct RuleCount {
    pub task: String,
    /// `egress` or `ingress`.
    pub direction: String,
    pub rule: String,
    /// `allow` or `deny`.
    pub action: String,
    pub packets: u64,
    pub bytes: u64,
}

/// A decision of a network policy about a packet or connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Verdict {
    pub number: u64,
    /// Nanoseconds since the epoch.
    pub time: u64,
    pub task: String,
    /// `egress` or `ingress`.
    pub direction: String,
    pub rule: String,
    /// `allow` or `deny`.
    pub action: String,
    /// `tcp`, `udp`, `icmp`, `icmpv6`, or the protocol's number.
    pub protocol: String,
    pub remote_address: String,
    /// 0 without ports.
    pub remote_port: u16,
    /// 0 without ports, and before a connection has one.
    pub local_port: u16,
    /// 0 for an attempt to connect.
    pub bytes: u32,
}

fn direction(egress: bool) -> String {
    if egress { "egress" } else { "ingress" }.to_owned()
}

fn action(allows: bool) -> String {
    if allows { "allow" } else { "deny" }.to_owned()
}

fn protocol(number: u8) -> String {
    match number {
        1 => "icmp".to_owned(),
        6 => "tcp".to_owned(),
        17 => "udp".to_owned(),
        58 => "icmpv6".to_owned(),
        other => other.to_string(),
    }
}

impl AllocNetwork {
    /// A node's answer about verdicts with a greater number than `after`.
    #[must_use]
    pub fn after(network: &rpc::AllocNetwork, after: u64) -> Self {
        let rpc::AllocNetwork {
            address,
            rules,
            verdicts,
            last,
        } = network;
        let after = if *last < after { 0 } else { after };
        let next = verdicts
            .first()
            .map_or(last.saturating_add(1), |first| first.number);
        Self {
            address: address.clone(),
            rules: rules.iter().map(RuleCount::from).collect(),
            verdicts: verdicts.iter().map(Verdict::from).collect(),
            missed: next.saturating_sub(after.saturating_add(1)),
            last: *last,
        }
    }
}

impl From<&rpc::RuleCount> for RuleCount {
    fn from(count: &rpc::RuleCount) -> Self {
        let rpc::RuleCount {
            task,
            egress,
            rule,
            allows,
            packets,
            bytes,
        } = count;
        Self {
            task: task.clone(),
            direction: direction(*egress),
            rule: rule.clone(),
            action: action(*allows),
            packets: *packets,
            bytes: *bytes,
        }
    }
}

impl From<&rpc::Verdict> for Verdict {
    fn from(verdict: &rpc::Verdict) -> Self {
        let rpc::Verdict {
            number,
            at,
            task,
            egress,
            rule,
            allowed,
            protocol: number_of_protocol,
            remote,
            remote_port,
            local_port,
            bytes,
        } = verdict;
        Self {
            number: *number,
            time: at.0,
            task: task.clone(),
            direction: direction(*egress),
            rule: rule.clone(),
            action: action(*allowed),
            protocol: protocol(*number_of_protocol),
            remote_address: remote.to_string(),
            remote_port: *remote_port,
            local_port: *local_port,
            bytes: *bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use muster_domain::id::Timestamp;

    use super::*;

    /// The missed verdicts of an answer with these numbers.
    fn missed_verdicts(numbers: std::ops::RangeInclusive<u64>, last: u64, after: u64) -> u64 {
        let verdict = |number| rpc::Verdict {
            number,
            at: Timestamp(0),
            task: "web".to_owned(),
            egress: true,
            rule: "default".to_owned(),
            allowed: false,
            protocol: 6,
            remote: [10, 0, 0, 1].into(),
            remote_port: 80,
            local_port: 0,
            bytes: 0,
        };
        let network = rpc::AllocNetwork {
            address: None,
            rules: Vec::new(),
            verdicts: numbers.map(verdict).collect(),
            last,
        };
        AllocNetwork::after(&network, after).missed
    }

    #[test]
    fn missed_verdict_count_covers_gaps_and_restarts() {
        let none = || std::ops::RangeInclusive::new(1, 0);
        assert_eq!(missed_verdicts(5..=9, 9, 4), 0);
        assert_eq!(missed_verdicts(8..=9, 9, 4), 3);
        assert_eq!(missed_verdicts(none(), 9, 9), 0);
        assert_eq!(missed_verdicts(none(), 9, 4), 5, "none of them is kept");
        assert_eq!(missed_verdicts(3..=9, 9, 500), 2, "the agent began anew");
        assert_eq!(missed_verdicts(none(), u64::MAX, u64::MAX), 0);
    }
}
