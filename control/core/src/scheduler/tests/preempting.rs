//! Tests of allocations that make room: scheduler, state and plan together.

mod laws;
mod recorded;

use std::collections::BTreeMap;

use muster_domain::alloc::{Allocation, DesiredStatus};
use muster_domain::eval::{EvalStatus, Trigger};
use muster_domain::fixture::{job, node};
use muster_domain::job::{JobSpec, JobType};
use muster_domain::node::{DeviceGroup, DeviceInstance, NodeSpec};
use muster_domain::resources::{DeviceAsk, Mb};
use muster_domain::scheduling::{PreemptionConfig, SchedulerConfig};

use crate::fixture::Cluster;
use crate::fsm::ConfigCommand;

/// A cluster in which every type of job preempts.
fn cluster() -> Cluster {
    let mut cluster = Cluster::new();
    let preemption = PreemptionConfig {
        system: true,
        sysbatch: true,
        batch: true,
        service: true,
    };
    cluster.apply(
        ConfigCommand::SetScheduler {
            config: SchedulerConfig {
                preemption,
                ..SchedulerConfig::default()
            },
            check_index: None,
        }
        .at(cluster.now),
    );
    cluster
}

/// Runs one instance with `memory` and `disk` in MiB.
fn run(cluster: &mut Cluster, name: &str, priority: u8, memory: u32, disk: u32) -> Allocation {
    let mut spec = job(name)
        .priority(priority)
        .cpu_mhz(100)
        .memory_mb(memory)
        .build();
    spec.groups[0].ephemeral_disk.size = Mb(disk);
    cluster.run(spec);
    (**cluster.live(name).first().unwrap()).clone()
}

fn now(cluster: &Cluster, alloc: &Allocation) -> Allocation {
    cluster.state.allocs().get(&alloc.id).unwrap().unpack()
}

/// A machine with exactly the room of the example.
fn machine() -> NodeSpec {
    let mut spec = node("n1").cpu_mhz(4_000).memory_mb(5_000).build();
    spec.resources.total.disk_mb = 2_500;
    spec
}

/// The example of Nomad's documentation: priorities 70, 50 and 20, and a job of priority 75 that asks for 2 GB of
/// memory and 1 GB of disk.
#[test]
fn priority_75_job_preempts_a1_a2_a4_only() {
    let mut cluster = cluster();
    cluster.node(machine());
    let a1 = run(&mut cluster, "email-1", 20, 500, 800);
    let a2 = run(&mut cluster, "email-2", 20, 500, 200);
    // Only its age distinguishes a5 from a4: of equal allocations the youngest is evicted.
    let a5 = run(&mut cluster, "analytics-5", 50, 1_000, 500);
    let a4 = run(&mut cluster, "analytics-4", 50, 1_000, 500);
    let a6 = run(&mut cluster, "cache", 70, 2_000, 500);

    let webapp = run(&mut cluster, "webapp", 75, 2_000, 1_000);

    let mut preempted = webapp.preempted.clone();
    preempted.sort_unstable();
    let mut expected = vec![a1.id, a2.id, a4.id];
    expected.sort_unstable();
    assert_eq!(preempted, expected);
    for victim in [&a1, &a2, &a4] {
        let victim = now(&cluster, victim);
        assert_eq!(victim.desired, DesiredStatus::Evict);
        assert_eq!(victim.preempted_by, Some(webapp.id));
    }
    for spared in [&a5, &a6] {
        assert_eq!(now(&cluster, spared).desired, DesiredStatus::Run);
    }
}

#[test]
fn preempted_jobs_block_until_capacity_frees() {
    let mut cluster = cluster();
    cluster.node(machine());
    run(&mut cluster, "small", 20, 4_000, 10);
    run(&mut cluster, "big", 60, 4_000, 10);

    assert!(cluster.live("small").is_empty());
    let looked_at = cluster
        .state
        .evals()
        .iter()
        .any(|eval| eval.trigger == Trigger::Preemption);
    let waits = cluster
        .state
        .evals()
        .iter()
        .any(|eval| eval.status == EvalStatus::Blocked);
    assert!(looked_at && waits);

    cluster.stop("big");
    assert_eq!(cluster.live("small").len(), 1);
}

#[test]
fn a_difference_of_nine_is_not_enough() {
    let mut cluster = cluster();
    cluster.node(machine());
    run(&mut cluster, "small", 50, 4_000, 10);
    let spec = job("big").priority(59).memory_mb(4_000).build();

    assert_eq!(cluster.run(spec).len(), 0);

    let spec = job("bigger").priority(60).memory_mb(4_000).build();
    assert_eq!(cluster.run(spec).len(), 1);
}

#[test]
fn only_system_jobs_preempt_by_default() {
    let mut cluster = Cluster::new();
    cluster.node(machine());
    run(&mut cluster, "small", 20, 4_000, 10);

    cluster.run(job("big").priority(90).memory_mb(4_000).build());
    assert!(cluster.live("big").is_empty());
    let system = job("log").job_type(JobType::System).priority(90);
    cluster.run(system.memory_mb(4_000).build());

    assert_eq!(cluster.live("log").len(), 1);
    assert!(cluster.live("small").is_empty());
}

#[test]
fn port_is_preempted_from_lower_priority_alloc() {
    let mut cluster = cluster();
    cluster.node(node("n1").build());
    cluster.run(job("low").priority(20).port("http", 8_080).build());
    cluster.run(job("bystander").priority(10).build());

    cluster.run(job("high").priority(80).port("http", 8_080).build());

    assert_eq!(cluster.live("high").len(), 1);
    assert!(cluster.live("low").is_empty());
    assert_eq!(cluster.live("bystander").len(), 1);
}

/// A node may have room for everything but one more allocation.
#[test]
fn alloc_is_preempted_on_node_full_of_allocs() {
    let mut cluster = cluster();
    let mut spec = node("n1").build();
    spec.resources.max_allocs = 2;
    cluster.node(spec);
    cluster.run(job("low").priority(10).build());
    cluster.run(job("bystander").priority(20).build());

    cluster.run(job("high").priority(80).build());

    assert_eq!(cluster.live("high").len(), 1);
    assert!(cluster.live("low").is_empty());
    assert_eq!(cluster.live("bystander").len(), 1);
}

#[test]
fn port_of_higher_priority_alloc_is_not_preempted() {
    let mut cluster = cluster();
    cluster.node(node("n1").build());
    cluster.run(job("high").priority(80).port("http", 8_080).build());

    cluster.run(job("low").priority(85).port("http", 8_080).build());

    assert_eq!(cluster.live("high").len(), 1);
    assert!(cluster.live("low").is_empty());
}

#[test]
fn cores_are_taken_from_the_least_important() {
    let mut cluster = cluster();
    let mut spec = node("n1").cpu_mhz(4_000).build();
    spec.resources.cores = 4;
    spec.resources.core_ids = vec![0, 1, 2, 3];
    cluster.node(spec);
    let with_cores = |name: &str, priority, cores| {
        let mut spec = job(name).priority(priority).build();
        spec.groups[0].tasks[0].resources.cores = cores;
        spec
    };
    cluster.run(with_cores("lowest", 10, 1));
    cluster.run(with_cores("low", 20, 2));

    cluster.run(with_cores("high", 80, 2));

    let high = cluster.live("high");
    assert_eq!(high[0].holding.cores[0].ids.len(), 2);
    assert_eq!(high[0].holding.cores_mhz(), 2_000);
    assert!(cluster.live("lowest").is_empty());
    assert_eq!(cluster.live("low").len(), 1);
}

/// Returns a machine with `count` GPUs.
fn with_gpus(count: usize) -> NodeSpec {
    let mut spec = node("n1").build();
    let instance = |id: usize| DeviceInstance {
        id: id.to_string(),
        healthy: true,
    };
    spec.devices.push(DeviceGroup {
        vendor: "nvidia".to_owned(),
        kind: "gpu".to_owned(),
        name: "t4".to_owned(),
        attributes: BTreeMap::new(),
        instances: (0..count).map(instance).collect(),
    });
    spec
}

/// Returns a job that asks for `count` GPUs.
fn asks_gpus(name: &str, priority: u8, count: u32) -> JobSpec {
    let mut spec = job(name).priority(priority).build();
    spec.groups[0].tasks[0].resources.devices.push(DeviceAsk {
        name: "gpu".to_owned(),
        count,
        constraints: Vec::new(),
        affinities: Vec::new(),
    });
    spec
}

#[test]
fn devices_are_taken_from_the_less_important_one() {
    let mut cluster = cluster();
    cluster.node(with_gpus(1));
    cluster.run(asks_gpus("low", 20, 1));

    cluster.run(asks_gpus("high", 80, 1));

    assert!(cluster.live("low").is_empty());
    assert_eq!(cluster.live("high")[0].holding.devices[0].ids, ["0"]);
}

/// Sparing the job with two devices would evict three jobs: those with three, one and one.
#[test]
fn of_equals_those_with_the_most_devices_go() {
    let mut cluster = cluster();
    cluster.node(with_gpus(7));
    for (name, count) in [("three", 3), ("two", 2), ("one", 1), ("another", 1)] {
        cluster.run(asks_gpus(name, 20, count));
    }

    cluster.run(asks_gpus("high", 80, 5));

    let left = ["three", "two", "one", "another"].map(|name| cluster.live(name).len());
    assert_eq!(left, [0, 0, 1, 1]);
}

/// Two tasks, a GPU each: one free GPU is enough for either, and not for both.
#[test]
fn devices_of_all_tasks_are_taken_together() {
    let mut cluster = cluster();
    cluster.node(with_gpus(2));
    cluster.run(asks_gpus("low", 20, 1));
    let mut spec = asks_gpus("high", 80, 1);
    let mut second = spec.groups[0].tasks[0].clone();
    second.name = "second".to_owned();
    spec.groups[0].tasks.push(second);

    cluster.run(spec);

    assert!(cluster.live("low").is_empty());
    assert_eq!(cluster.live("high").len(), 1);
}

/// A port is held on two addresses. On one of them a more important allocation holds it, which cannot be evicted.
#[test]
fn port_preemption_chooses_preemptible_address() {
    let mut cluster = cluster();
    let mut spec = node("n1").build();
    let mut other = spec.addresses[0].clone();
    other.address = "127.0.0.2".to_owned();
    spec.addresses.push(other);
    cluster.node(spec);
    cluster.run(job("highest").priority(90).port("http", 8_080).build());
    cluster.run(job("low").priority(20).port("http", 8_080).build());

    cluster.run(job("high").priority(80).port("http", 8_080).build());

    let left = ["highest", "high", "low"].map(|name| cluster.live(name).len());
    assert_eq!(left, [1, 1, 0]);
}

/// A machine came back with less memory: its shortfall has to be evicted too.
#[test]
fn an_overbooked_node_evicts_its_shortfall() {
    let mut cluster = cluster();
    cluster.node(machine());
    for name in ["one", "two", "three"] {
        run(&mut cluster, name, 20, 1_600, 10);
    }
    // The check of the state treats an overbooked node as an error.
    cluster.unchecked = true;
    let mut smaller = machine();
    smaller.resources.total.memory_mb = 3_200;
    cluster.node(smaller);

    let big = run(&mut cluster, "big", 80, 1_600, 10);

    assert_eq!(big.preempted.len(), 2);
}
