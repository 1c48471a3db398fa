//! Network policies: the traffic that tasks may send and receive. Nomad has nothing like it.

#![expect(missing_docs, reason = "fields carry the names of the job file")]

use muster_domain::job;
use serde::{Deserialize, Serialize};

use crate::api::null;

/// A network policy: the traffic that tasks may send and receive.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NetworkPolicy {
    pub egress: DirectionPolicy,
    pub ingress: DirectionPolicy,
}

/// Rules of one direction.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct DirectionPolicy {
    /// `allow`, `deny`, or empty where it is left to the group or node.
    pub default: String,
    #[serde(with = "null")]
    pub rules: Vec<PolicyRule>,
    /// Such as `100mbit`, or empty where it is left to the group or node.
    pub rate: String,
}

/// One rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct PolicyRule {
    pub name: String,
    /// `allow` or `deny`.
    pub action: String,
    /// `tcp`, `udp`, `icmp`, `icmpv6` or `all`.
    pub protocol: String,
    #[serde(with = "null")]
    pub peers: Vec<String>,
    /// Ports and ranges such as `8000-9000`.
    #[serde(with = "null")]
    pub ports: Vec<String>,
    #[serde(rename = "ICMPType")]
    pub icmp_type: Option<u8>,
    #[serde(rename = "ICMPCode")]
    pub icmp_code: Option<u8>,
    pub log: bool,
}

impl From<&job::NetworkPolicy> for NetworkPolicy {
    fn from(policy: &job::NetworkPolicy) -> Self {
        let job::NetworkPolicy { egress, ingress } = policy;
        Self {
            egress: egress.into(),
            ingress: ingress.into(),
        }
    }
}

impl From<&job::DirectionPolicy> for DirectionPolicy {
    fn from(policy: &job::DirectionPolicy) -> Self {
        let job::DirectionPolicy {
            default,
            rules,
            rate,
        } = policy;
        Self {
            default: default
                .map(|action| action.as_str().to_owned())
                .unwrap_or_default(),
            rules: rules.iter().map(PolicyRule::from).collect(),
            rate: rate.map(|rate| rate.to_string()).unwrap_or_default(),
        }
    }
}

impl From<&job::PolicyRule> for PolicyRule {
    fn from(rule: &job::PolicyRule) -> Self {
        let job::PolicyRule {
            name,
            action,
            protocol,
            peers,
            ports,
            icmp_type,
            icmp_code,
            log,
        } = rule;
        Self {
            name: name.clone(),
            action: action.as_str().to_owned(),
            protocol: protocol.as_str().to_owned(),
            peers: peers.iter().map(ToString::to_string).collect(),
            ports: ports.iter().map(ToString::to_string).collect(),
            icmp_type: *icmp_type,
            icmp_code: *icmp_code,
            log: *log,
        }
    }
}
