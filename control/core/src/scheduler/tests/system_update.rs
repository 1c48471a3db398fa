//! A new version of a system job goes from node to node.

use std::collections::BTreeSet;
use std::time::Duration;

use muster_domain::fixture::{job, node};
use muster_domain::id::NodeId;
use muster_domain::job::{JobSpec, JobType, UpdateStrategy};

use crate::fixture::Cluster;

const NODES: usize = 5;
const STAGGER: Duration = Duration::from_secs(30);

fn spec(cpu_mhz: u32, max_parallel: u32) -> JobSpec {
    let mut spec = job("log")
        .job_type(JobType::System)
        .cpu_mhz(cpu_mhz)
        .build();
    spec.groups[0].update = Some(UpdateStrategy {
        max_parallel,
        stagger: STAGGER,
        ..UpdateStrategy::default()
    });
    spec
}

fn cluster() -> Cluster {
    let mut cluster = Cluster::new();
    for number in 0..NODES {
        cluster.node(node(&format!("n{number}")).build());
    }
    cluster
}

/// The nodes whose instance is of `version`. Every node has one instance.
fn nodes_at(cluster: &Cluster, version: u64) -> BTreeSet<NodeId> {
    let live = cluster.live("log");
    let all: BTreeSet<NodeId> = live.iter().map(|alloc| alloc.node_id).collect();
    assert_eq!((live.len(), all.len()), (NODES, NODES));
    let of_version = live.iter().filter(|alloc| alloc.job.version == version);
    of_version.map(|alloc| alloc.node_id).collect()
}

/// Updates the job and returns how many nodes have the new version after each step.
fn steps(max_parallel: u32) -> Vec<usize> {
    let mut cluster = cluster();
    cluster.run(spec(100, max_parallel));
    assert_eq!(nodes_at(&cluster, 0).len(), NODES);
    cluster.run(spec(200, max_parallel));
    let mut updated = nodes_at(&cluster, 1);
    let mut steps = vec![updated.len()];
    while updated.len() < NODES && steps.len() <= NODES {
        cluster.advance(STAGGER / 2);
        cluster.settle();
        assert_eq!(nodes_at(&cluster, 1), updated, "the stagger is not over");
        cluster.advance(STAGGER / 2);
        cluster.settle();
        let now = nodes_at(&cluster, 1);
        assert!(now.is_superset(&updated), "an updated node went back");
        updated = now;
        steps.push(updated.len());
    }
    steps
}

#[test]
fn a_system_update_goes_from_node_to_node() {
    assert_eq!(steps(1), [1, 2, 3, 4, 5]);
}

#[test]
fn a_system_update_takes_max_parallel_nodes_at_once() {
    assert_eq!(steps(2), [2, 4, 5]);
}

#[test]
fn a_system_update_without_max_parallel_takes_all_nodes() {
    assert_eq!(steps(0), [5]);
}

#[test]
fn a_newer_version_ends_the_update_before_it() {
    let mut cluster = cluster();
    cluster.run(spec(100, 1));
    cluster.run(spec(200, 1));
    cluster.run(spec(300, 1));
    for _ in 0..NODES {
        cluster.advance(STAGGER);
        cluster.settle();
    }

    assert_eq!(nodes_at(&cluster, 2).len(), NODES);
}
