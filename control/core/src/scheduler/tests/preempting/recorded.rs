//! Recorded decisions on the victims of a preemption for a fixed port.

use std::collections::{BTreeMap, BTreeSet};

use muster_domain::fixture;
use muster_domain::fixture::recorded::{self, CaseKind, CaseRunner, Outcome};
use muster_domain::id::{AllocId, JobKey};
use muster_domain::job::JobSpec;
use muster_domain::node::HostAddress;
use serde_json::Value;

use super::cluster;
use crate::fsm::JobCommand;

const NETWORK: CaseKind = CaseKind {
    name: "preemption_network",
    is: |row| !row["victims"].is_null() && !row["node"]["networks"].is_null(),
    judge: CaseRunner::Row(judge),
};

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

fn port(value: &Value) -> u16 {
    u16::try_from(number(value)).unwrap()
}

/// Returns whether the requested bandwidth is available if every allocation stays.
fn has_bandwidth(case: &Value) -> bool {
    list(&case["node"]["networks"]).all(|network| {
        let of_device = list(&case["running_allocs"])
            .map(|alloc| &alloc["network"])
            .filter(|used| used["device"] == network["device"]);
        let used: u64 = of_device.map(|used| number(&used["mbits"])).sum();
        used + number(&case["ask"]["mbits"]) <= number(&network["mbits"])
    })
}

/// A job with these ports on a host network.
fn job(name: &str, priority: u8, network: &str, ports: &Value) -> JobSpec {
    let mut job = fixture::job(name)
        .priority(priority)
        .cpu_mhz(1)
        .memory_mb(1);
    for value in list(ports) {
        job = job.port(&format!("p{value}"), port(value));
    }
    let mut spec = job.build();
    for ask in spec.groups[0]
        .network
        .iter_mut()
        .flat_map(|it| &mut it.ports)
    {
        network.clone_into(&mut ask.host_network);
    }
    spec
}

/// Returns the victims; `None` if there are none.
fn victims(case: &Value) -> Option<BTreeSet<String>> {
    let asking = u8::try_from(number(&case["asking_job_priority"])).unwrap();
    let mut cluster = cluster();
    let mut node = fixture::node("n1").build();
    // Each device by its name, and all of them as the devices that may satisfy the request.
    let named = |network: &Value, name: &Value| HostAddress {
        network: name.as_str().unwrap().to_owned(),
        address: network["ip"].as_str().unwrap().to_owned(),
        reserved_ports: Vec::new(),
    };
    let networks = || list(&case["node"]["networks"]);
    let any = Value::from("default");
    node.addresses = networks()
        .map(|network| named(network, &network["device"]))
        .chain(networks().map(|network| named(network, &any)))
        .collect();
    cluster.node(node);
    let mut running: BTreeMap<AllocId, String> = BTreeMap::new();
    for (at, alloc) in list(&case["running_allocs"]).enumerate() {
        let is_own = alloc["job_id"] == case["asking_job_id"]
            && alloc["namespace"] == case["asking_namespace"];
        let priority = u8::try_from(number(&alloc["job_priority"])).unwrap();
        let name = format!("job{at}");
        let network = &alloc["network"];
        cluster.run(job(
            &name,
            // No allocation is evicted for its own job.
            if is_own { asking } else { priority },
            network["device"].as_str().unwrap_or("default"),
            &network["reserved_ports"],
        ));
        let id = alloc["id"].as_str().unwrap().to_owned();
        running.insert(cluster.live(&name)[0].id, id);
    }
    let ask = job("asker", asking, "default", &case["ask"]["reserved_ports"]);
    cluster.apply(
        JobCommand::Register {
            spec: Box::new(ask),
            check_index: None,
            places: None,
        }
        .at(cluster.now),
    );
    let plan = cluster.schedule_next().unwrap().plan;
    assert_eq!(plan.job, JobKey::in_default("asker"));
    let placements = plan.groups.iter().flat_map(|group| &group.placements);
    let preempted = placements.flat_map(|run| run.detail.iter().flat_map(|it| &it.preempted));
    let gone: BTreeSet<String> = preempted.map(|id| running[id].clone()).collect();
    Some(gone).filter(|gone| !gone.is_empty())
}

/// Returns whether each requested port is free on one of the devices after the allocations in `gone` are evicted.
fn frees_ports(case: &Value, gone: &BTreeSet<String>) -> bool {
    let stays = |alloc: &&Value| !gone.contains(alloc["id"].as_str().unwrap());
    let holds = |alloc: &Value, device: &Value, port: &Value| {
        let network = &alloc["network"];
        network["device"] == *device && list(&network["reserved_ports"]).any(|it| it == port)
    };
    list(&case["ask"]["reserved_ports"]).all(|port| {
        list(&case["node"]["networks"]).any(|network| {
            let mut staying = list(&case["running_allocs"]).filter(stays);
            !staying.any(|alloc| holds(alloc, &network["device"], port))
        })
    })
}

/// Compares the victims with the recorded ones. A node has no bandwidth here, so only port conflicts are checked.
/// Nomad's victims may be too few, because its second look considers bandwidth only. Nomad may also evict an allocation
/// although a device of the node has the port free. In these cases other victims are right if they are enough, or if
/// they are a subset of Nomad's.
fn judge(case: &Value) -> Outcome {
    if list(&case["ask"]["reserved_ports"]).next().is_none() {
        return Outcome::LeftOut("no port is asked for, and a node has no bandwidth here");
    }
    if !has_bandwidth(case) {
        return Outcome::LeftOut("bandwidth is short, which a node does not have here");
    }
    let set = |ids: &Value| -> Option<BTreeSet<String>> {
        let ids: BTreeSet<String> = list(ids)
            .map(|id| id.as_str().unwrap().to_owned())
            .collect();
        Some(ids).filter(|ids| !ids.is_empty())
    };
    let victims = victims(case);
    let mut seen = list(&case["victim_sets_seen"]).chain([&case["victims"]]);
    let is_better = || {
        let theirs = set(&case["victims"]).unwrap_or_default();
        let ours = victims.clone().unwrap_or_default();
        let is_mended = !frees_ports(case, &theirs) || ours.is_subset(&theirs);
        !theirs.is_empty() && is_mended && frees_ports(case, &ours)
    };
    if seen.any(|seen| set(seen) == victims) || is_better() {
        Outcome::Same
    } else {
        Outcome::Differs(format!("{victims:?}, not {}", case["victims"]))
    }
}

#[test]
fn port_preemption_matches_nomad() {
    let test = "port_preemption_matches_nomad";
    let Some(tally) = recorded::beside(test, "preemption_network.jsonl", &NETWORK) else {
        return;
    };
    tally.assert_same(50);
}

#[test]
fn recorded_cases_in_named_files() {
    recorded::named(&[NETWORK]);
}
