//! Network policies: the traffic that tasks may send and receive. Nomad has no such policies. `table` in `job` explains
//! the rows.

#![expect(missing_docs, reason = "fields carry the names of the job file")]

use muster_domain::{job, limits};

use crate::api::job::schema::BlockShape::{ManyByName, One};
use crate::api::job::schema::FieldKind::{Block, Value};
use crate::api::job::schema::ValueKind::{Bool, Int, Text, Texts};
use crate::api::job::table::{BlockForm, job_block};
use crate::api::null;

job_block! {
    /// A network policy: the traffic that tasks may send and receive.
    #[derive(Eq)]
    NetworkPolicy of job::NetworkPolicy;
    pub(super) POLICY {}

    egress: DirectionPolicy = field("Egress", "egress", Block(One, &POLICY_DIRECTION)).plan("Egress") => egress;
    ingress: DirectionPolicy = field("Ingress", "ingress", Block(One, &POLICY_DIRECTION)).plan("Ingress") => ingress;
}

impl From<&job::NetworkPolicy> for NetworkPolicy {
    fn from(policy: &job::NetworkPolicy) -> Self {
        Self::write_block(policy)
    }
}

job_block! {
    /// Rules of one direction.
    #[derive(Eq)]
    DirectionPolicy of job::DirectionPolicy;
    POLICY_DIRECTION {}

    /// `allow`, `deny`, or empty to leave the decision to the group or node.
    default: String = field("Default", "default", Value(Text)) => default;
    #[serde(with = "null")]
    rules: Vec<PolicyRule> = field("Rules", "rule", Block(ManyByName, &POLICY_RULE)).plan("Rule") => rules;
    /// A rate such as `100mbit`, or empty to leave the limit to the group or node.
    rate: String = field("Rate", "rate", Value(Text)) => rate;
}

job_block! {
    /// A rule of a policy.
    #[derive(Eq)]
    PolicyRule of job::PolicyRule;
    POLICY_RULE { label: &["Name"], required: &["action"], list_max: limits::POLICY_RULES_MAX }

    name: String = field("Name", "", Value(Text)) => name;
    /// `allow` or `deny`.
    action: String = field("Action", "action", Value(Text)) => action;
    /// `tcp`, `udp`, `icmp`, `icmpv6` or `all`.
    protocol: String = field("Protocol", "protocol", Value(Text)) => protocol;
    #[serde(with = "null")]
    peers: Vec<String> = field("Peers", "peers", Value(Texts)).plan("Peers") => peers;
    /// Ports and ranges such as `8000-9000`.
    #[serde(with = "null")]
    ports: Vec<String> = field("Ports", "ports", Value(Texts)).plan("Ports") => ports;
    icmp_type: Option<u8> = field("ICMPType", "icmp_type", Value(Int)) => icmp_type;
    icmp_code: Option<u8> = field("ICMPCode", "icmp_code", Value(Int)) => icmp_code;
    log: bool = field("Log", "log", Value(Bool)) => log;
}
