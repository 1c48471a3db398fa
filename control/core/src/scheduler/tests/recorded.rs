//! Recorded decisions that involve more than one part of the scheduler.

use std::collections::BTreeMap;

use muster_domain::fixture;
use muster_domain::fixture::recorded::{self, CaseKind, CaseRunner, Outcome};
use muster_domain::job::{GroupNetwork, JobSpec, NetworkMode, PortAsk, TaskGroup};
use muster_domain::node::{HostAddress, NodeSpec};
use muster_domain::resources::{AllocatedPort, Holding};
use muster_wire::api::job::request;
use serde_json::{Map, Value, json};

use super::super::fleet::{self, ExclusiveRequests};
use super::super::update::{self, Change};
use crate::limits::{DYNAMIC_PORT_MAX, DYNAMIC_PORT_MIN};
use crate::state::NodeHoldings;

const UPDATE: CaseKind = CaseKind {
    name: "job_diff: needs_destructive_update",
    is: |row| row.get("needs_destructive_update").is_some(),
    judge: CaseRunner::Row(compare_update),
};

/// If Nomad assigns a port that is not free, or refuses a free one, both refusing and assigning the port are right
/// here. It may give one port to two requests of a group. It tries the first address of a network only for a fixed
/// port.
const PORTS: CaseKind = CaseKind {
    name: "ports",
    is: |row| row.get("offers").is_some(),
    judge: CaseRunner::Row(compare_ports),
};

/// Fields that this version refuses, or that the server derives.
const REFUSED: [&str; 19] = [
    "Services",
    "Vault",
    "Consul",
    "Templates",
    "Artifacts",
    "ScalingPolicies",
    "Kind",
    "CSIPluginConfig",
    "Networks",
    "Multiregion",
    "Payload",
    "ConsulToken",
    "ConsulNamespace",
    "VaultToken",
    "VaultNamespace",
    "Stop",
    "Region",
    "Dispatched",
    "ParentID",
];

/// Removes fields from both versions that are equal in both and refused here: they change no result.
fn without_same(old: &mut Map<String, Value>, new: &mut Map<String, Value>) {
    for key in REFUSED {
        if old.get(key) == new.get(key) {
            old.remove(key);
            new.remove(key);
        }
    }
    for (key, old) in old {
        match (old, new.get_mut(key)) {
            (Value::Object(old), Some(Value::Object(new))) => without_same(old, new),
            (Value::Array(old), Some(Value::Array(new))) => {
                for old in old {
                    let same = new.iter_mut().find(|new| new["Name"] == old["Name"]);
                    if let (Value::Object(old), Some(Value::Object(new))) = (old, same) {
                        without_same(old, new);
                    }
                }
            }
            _ => {}
        }
    }
}

fn spec(job: &Value) -> Option<JobSpec> {
    let body = json!({"Job": job}).to_string();
    request::read(body.as_bytes()).ok().map(|read| read.spec)
}

/// Compares which groups that both versions have must be replaced.
fn compare_update(case: &Value) -> Outcome {
    let expected: BTreeMap<&str, bool> = case["needs_destructive_update"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(group, needs)| (group.as_str(), needs == true))
        .collect();
    if expected.is_empty() {
        return Outcome::Same;
    }
    let (mut old, mut new) = (case["old_job"].clone(), case["new_job"].clone());
    if let (Value::Object(old), Value::Object(new)) = (&mut old, &mut new) {
        without_same(old, new);
    }
    let (Some(old), Some(new)) = (spec(&old), spec(&new)) else {
        return Outcome::LeftOut("what changes is not supported by this version");
    };
    let mut differences = Vec::new();
    for (name, needs) in expected {
        let group = |job: &JobSpec| job.groups.iter().find(|group| group.name == name).cloned();
        let (Some(old_group), Some(new_group)) = (group(&old), group(&new)) else {
            differences.push(format!("{name} is gone"));
            continue;
        };
        let (change, limits_of) = update::change((&old, &old_group), (&new, &new_group));
        // Recorded nodes do not report any driver that changes its tasks' limits in place.
        let ours = change == Change::Destructive || !limits_of.is_empty();
        if ours != needs {
            let edits = &case["edits"];
            differences.push(format!("{name}: destructive is {ours} after {edits}"));
        }
    }
    Outcome::from_differences(&differences)
}

/// Fields for which Muster replaces more instances. Tasks see the job's name, their volumes and the file of their
/// payload. A changed lifecycle takes effect only at a start.
const REPLACED_HERE: [&str; 5] = [
    "\"group_volume\"",
    "\"name\"",
    "\"task_dispatch_payload\"",
    "\"task_lifecycle\"",
    "\"task_volume_mount\"",
];

#[test]
fn updates_replace_as_recorded_in_nomad() {
    let test = "updates_replace_as_recorded_in_nomad";
    let Some(mut tally) = recorded::beside(test, "job_diff.jsonl.gz", &UPDATE) else {
        return;
    };
    let is_known = |difference: &String| {
        difference.contains("destructive is true")
            && REPLACED_HERE.iter().any(|edit| difference.contains(edit))
    };
    tally.differences.retain(|difference| !is_known(difference));
    tally.assert_same(170);
}

/// Ports as a node names them: `22,80-82`.
fn port_list(text: &Value) -> Vec<u16> {
    let number = |text: &str| text.trim().parse::<u16>().unwrap();
    let parts = text
        .as_str()
        .unwrap()
        .split(',')
        .filter(|it| !it.is_empty());
    let mut ports: Vec<u16> = parts
        .flat_map(|part| match part.split_once('-') {
            Some((from, to)) => number(from)..=number(to),
            None => number(part)..=number(part),
        })
        .collect();
    ports.sort_unstable();
    ports
}

fn array(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}

fn port_number(value: &Value) -> u16 {
    u16::try_from(value.as_u64().unwrap()).unwrap()
}

/// Returns the node of a case, and the node's holdings.
fn port_holder(case: &Value) -> (NodeSpec, NodeHoldings) {
    let mut node = fixture::node("n1").build();
    node.addresses = array(&case["node_addresses"])
        .map(|address| HostAddress {
            network: text(&address["alias"]),
            address: text(&address["address"]),
            reserved_ports: port_list(&address["reserved_ports"]),
        })
        .collect();
    node.reserved_ports = port_list(&case["reserved_host_ports"]);
    let mut held = NodeHoldings::default();
    for ports in array(&case["running_allocs_ports"]) {
        let ports = array(ports).map(|port| AllocatedPort {
            label: text(&port["label"]),
            value: port_number(&port["value"]),
            to: 0,
            host_ip: text(&port["host_ip"]),
        });
        held.take(&Holding {
            ports: ports.collect(),
            ..Holding::default()
        });
    }
    (node, held)
}

/// Returns the group that asks for ports. A port of -1 inside means the port outside, as 0 does here. `None`: the group
/// asks for a number that is no port, which no job may do.
fn asks_ports(case: &Value) -> Option<TaskGroup> {
    let ask = |port: &Value, fixed: Option<u16>| PortAsk {
        label: text(&port["label"]),
        fixed,
        to: port["to"]
            .as_u64()
            .map_or(0, |to| u16::try_from(to).unwrap()),
        host_network: text(&port["host_network"]),
    };
    let mut ports: Vec<PortAsk> = Vec::new();
    for port in array(&case["ask_reserved_ports"]) {
        let fixed = u16::try_from(port["value"].as_i64()?).ok()?;
        ports.push(ask(port, Some(fixed)));
    }
    ports.extend(array(&case["ask_dynamic_ports"]).map(|port| ask(port, None)));
    let mut group = fixture::group("main");
    group.network = Some(GroupNetwork {
        mode: NetworkMode::Host,
        ports,
        policy: None,
        dns: None,
        hostname: String::new(),
    });
    Some(group)
}

/// A port that was assigned: its label, its number if that is known, its address.
type Offer = (String, Option<u16>, String);

/// Returns whether all `offers` are possible together, each on an address that its request allows.
fn can_be_had(case: &Value, offers: &[Offer]) -> bool {
    let (node, mut held) = port_holder(case);
    let asks = ["ask_reserved_ports", "ask_dynamic_ports"];
    let asks = asks.iter().flat_map(|list| array(&case[list]));
    let mut is_free = |value: u16, ip: &str, network: &Value| {
        let mut addresses = node.addresses.iter();
        let address = addresses.find(|it| it.address == ip && *network == it.network);
        let is_kept = node.reserved_ports.binary_search(&value).is_ok();
        let is_free = !is_kept
            && !held.has_port(value, ip)
            && address.is_some_and(|it| it.reserved_ports.binary_search(&value).is_err());
        if is_free {
            let port = AllocatedPort {
                label: String::new(),
                value,
                to: 0,
                host_ip: ip.to_owned(),
            };
            held.take(&Holding {
                ports: vec![port],
                ..Holding::default()
            });
        }
        is_free
    };
    let one_of = |value: Option<u16>| match value {
        Some(value) => value..=value,
        None => DYNAMIC_PORT_MIN..=DYNAMIC_PORT_MAX,
    };
    offers.iter().zip(asks).all(|((_, value, ip), ask)| {
        let mut values = one_of(*value);
        values.any(|value| is_free(value, ip, &ask["host_network"]))
    })
}

fn compare_ports(case: &Value) -> Outcome {
    let is_offered = |ports: Vec<AllocatedPort>| -> Vec<Offer> {
        let offer = |port: AllocatedPort| (port.label, Some(port.value), port.host_ip);
        ports.into_iter().map(offer).collect()
    };
    let (node, held) = port_holder(case);
    let ours: Option<Vec<Offer>> = asks_ports(case)
        .and_then(|group| fleet::assign(&node, &held, &ExclusiveRequests::of(&group), 4_711).ok())
        .map(|assigned| is_offered(assigned.holding.ports));
    let recorded = array(&case["offers"]).map(|offer| {
        let value = offer["value"].as_u64();
        let value = value.map(|it| u16::try_from(it).unwrap());
        (text(&offer["label"]), value, text(&offer["host_ip"]))
    });
    let theirs: Option<Vec<Offer>> = (case["assigned"] == true).then(|| recorded.collect());
    let is_same = match (&ours, &theirs) {
        (None, None) => true,
        (Some(ours), Some(theirs)) => {
            let is_one = |ours: &Offer, theirs: &Offer| {
                let (label, value, ip) = theirs;
                ours.0 == *label && value.is_none_or(|it| Some(it) == ours.1) && ours.2 == *ip
            };
            let mut pairs = ours.iter().zip(theirs);
            ours.len() == theirs.len()
                && pairs.all(|(ours, theirs)| is_one(ours, theirs))
                && can_be_had(case, ours)
        }
        (Some(ours), None) => {
            let collides = case["error"]
                .as_str()
                .unwrap()
                .starts_with("reserved port collision");
            collides && can_be_had(case, ours)
        }
        (None, Some(theirs)) => !can_be_had(case, theirs),
    };
    if is_same {
        Outcome::Same
    } else {
        Outcome::Differs(format!("{ours:?}, not {theirs:?} {}", case["error"]))
    }
}

#[test]
fn ports_are_given_out_as_nomads_are() {
    let test = "ports_are_given_out_as_nomads_are";
    let Some(tally) = recorded::beside(test, "ports.jsonl", &PORTS) else {
        return;
    };
    tally.assert_same(200);
}

#[test]
fn recorded_cases_in_named_files() {
    recorded::named(&[UPDATE, PORTS]);
}
