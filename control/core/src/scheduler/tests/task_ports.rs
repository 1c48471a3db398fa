//! Ports of `network` blocks in the `resources` of tasks.

use std::collections::BTreeSet;

use muster_domain::alloc::Allocation;
use muster_domain::fixture::{job, node, task};
use muster_domain::job::{DEFAULT_HOST_NETWORK, GroupNetwork, JobSpec, NetworkMode, PortAsk};

use crate::fixture::Cluster;

fn port(label: &str, fixed: Option<u16>) -> PortAsk {
    PortAsk {
        label: label.to_owned(),
        fixed,
        to: 0,
        host_network: DEFAULT_HOST_NETWORK.to_owned(),
    }
}

/// A group with the port `http`, a task `main` with `admin`, and a task `side` with the fixed port 9000.
fn spec(count: u32) -> JobSpec {
    let mut spec = job("web").count(count).build();
    let group = &mut spec.groups[0];
    group.network = Some(GroupNetwork {
        mode: NetworkMode::Host,
        ports: vec![port("http", None)],
        policy: None,
        dns: None,
        hostname: String::new(),
    });
    group.tasks.push(task("side"));
    group.tasks[0].resources.ports = vec![port("admin", None)];
    group.tasks[1].resources.ports = vec![port("fixed", Some(9000))];
    spec
}

/// The ports of an instance with the position of the task that owns each.
fn ports(alloc: &Allocation) -> Vec<(Option<usize>, &str, u16)> {
    let group = alloc.group();
    let held = alloc.holding.ports_of(group);
    held.map(|(owner, port)| (owner, port.label.as_str(), port.value))
        .collect()
}

#[test]
fn tasks_get_the_ports_of_their_own_networks() {
    let mut cluster = Cluster::new();
    cluster.node(node("n1").build());
    cluster.run(spec(1));

    let live = cluster.live("web");
    let held = ports(&live[0]);

    let owners: Vec<(Option<usize>, &str)> = held
        .iter()
        .map(|(owner, label, _)| (*owner, *label))
        .collect();
    assert_eq!(
        owners,
        [(None, "http"), (Some(0), "admin"), (Some(1), "fixed")]
    );
    assert_eq!(held[2].2, 9000);
    let values: BTreeSet<u16> = held.iter().map(|(_, _, value)| *value).collect();
    assert_eq!(values.len(), 3, "{held:?}");
}

#[test]
fn fixed_task_port_is_used_once_per_node() {
    let mut cluster = Cluster::new();
    for name in ["n1", "n2"] {
        cluster.node(node(name).build());
    }
    cluster.run(spec(3));

    let live = cluster.live("web");

    let nodes: BTreeSet<_> = live.iter().map(|alloc| alloc.node_id).collect();
    assert_eq!((live.len(), nodes.len()), (2, 2));
}

#[test]
fn ports_of_two_tasks_differ_on_a_node() {
    let mut cluster = Cluster::new();
    cluster.node(node("n1").build());
    let mut spec = spec(4);
    spec.groups[0].tasks[1].resources.ports = vec![port("other", None)];
    cluster.run(spec);

    let live = cluster.live("web");

    let held: Vec<u16> = live
        .iter()
        .flat_map(|alloc| ports(alloc))
        .map(|(_, _, value)| value)
        .collect();
    let distinct: BTreeSet<u16> = held.iter().copied().collect();
    assert_eq!((held.len(), distinct.len()), (12, 12));
}
