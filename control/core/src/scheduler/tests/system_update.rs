//! A new version of a system job goes from node to node by a deployment.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use muster_domain::alloc::{AllocReport, Allocation, ClientStatus};
use muster_domain::deployment::{Deployment, DeploymentStatus};
use muster_domain::eval::Trigger;
use muster_domain::fixture::{job, node};
use muster_domain::id::{JobKey, NodeId};
use muster_domain::job::{JobSpec, JobType, UpdateStrategy};
use muster_domain::node::{DrainSpec, Eligibility, NodeStatus};
use muster_domain::resources::{CpuMhz, Mb};

use crate::fixture::Cluster;
use crate::fsm::{AllocCommand, DeploymentChange, DeploymentCommand, JobCommand, NodeCommand};
use crate::gc::Collector;
use crate::state::waits;
use crate::watch;

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

fn reverting(cpu_mhz: u32) -> JobSpec {
    let mut spec = spec(cpu_mhz, 1);
    spec.groups[0].update = spec.groups[0].update.map(|update| UpdateStrategy {
        auto_revert: true,
        progress_deadline: Duration::ZERO,
        ..update
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

/// A cluster whose nodes all have a healthy instance of the first version, which is `spec`.
fn running(spec: JobSpec) -> Cluster {
    let mut cluster = cluster();
    cluster.run(spec);
    while report_all(&mut cluster, true) > 0 {}
    assert_eq!(deployment(&cluster).status, DeploymentStatus::Successful);
    cluster
}

fn deployment(cluster: &Cluster) -> Arc<Deployment> {
    let newest = cluster
        .state
        .deployments()
        .latest(&JobKey::in_default("log"));
    Arc::clone(newest.unwrap())
}

/// Returns the counts of the deployment's group `name`: wanted, placed, healthy and unhealthy instances.
fn group_counts(cluster: &Cluster, name: &str) -> [u32; 4] {
    let deployment = deployment(cluster);
    let group = deployment.group(name).unwrap();
    [
        group.desired_total,
        group.placed,
        group.healthy,
        group.unhealthy,
    ]
}

fn counts(cluster: &Cluster) -> [u32; 4] {
    group_counts(cluster, "main")
}

fn report(
    cluster: &mut Cluster,
    alloc: &Allocation,
    client_status: ClientStatus,
    healthy: Option<bool>,
) {
    let report = AllocReport {
        alloc_id: alloc.id,
        client_status,
        client_description: String::new(),
        task_states: Vec::new(),
        healthy,
        end: None,
        remote: Vec::new(),
    };
    cluster.apply(
        AllocCommand::Report {
            reports: vec![(alloc.node_id, vec![report])],
        }
        .at(cluster.now),
    );
    settle(cluster);
}

fn settle(cluster: &mut Cluster) {
    cluster.settle();
    assert_eq!(waits::broken(&cluster.state), Vec::<String>::new());
}

/// Returns the instances of deployments whose health is not known.
fn unreported(cluster: &Cluster) -> Vec<Arc<Allocation>> {
    let mut live = cluster.live("log");
    live.retain(|alloc| alloc.deployment.is_some() && alloc.healthy.is_none());
    live
}

/// Makes agents report the health of all instances without a known health. Returns the number of reports.
fn report_all(cluster: &mut Cluster, healthy: bool) -> usize {
    let allocs = unreported(cluster);
    for alloc in &allocs {
        report(cluster, alloc, ClientStatus::Running, Some(healthy));
    }
    allocs.len()
}

fn change_deployment(cluster: &mut Cluster, change: DeploymentChange) {
    let id = deployment(cluster).id;
    let at = cluster.now;
    cluster.apply(DeploymentCommand::Change { id, change }.at(at));
    settle(cluster);
}

fn set_eligibility(cluster: &mut Cluster, node_id: NodeId, eligibility: Eligibility) {
    let at = cluster.now;
    cluster.apply(
        NodeCommand::SetEligibility {
            node_id,
            eligibility,
        }
        .at(at),
    );
    settle(cluster);
}

/// The nodes whose instance is of `version`. No node has two instances.
fn nodes_at(cluster: &Cluster, version: u64) -> BTreeSet<NodeId> {
    let live = cluster.live("log");
    let all: BTreeSet<NodeId> = live.iter().map(|alloc| alloc.node_id).collect();
    assert_eq!(live.len(), all.len());
    let of_version = live.iter().filter(|alloc| alloc.job.version == version);
    of_version.map(|alloc| alloc.node_id).collect()
}

fn stable(cluster: &Cluster) -> Vec<u64> {
    let job = cluster.state.jobs().get(&JobKey::in_default("log"));
    let job = job.unwrap();
    let versions = 0..=job.current.version;
    versions.filter(|version| job.is_stable(*version)).collect()
}

/// Updates the job and returns how many nodes have the new version after each step.
fn steps(max_parallel: u32) -> Vec<usize> {
    let mut cluster = running(spec(100, max_parallel));
    cluster.run(spec(200, max_parallel));
    let mut updated = nodes_at(&cluster, 1);
    let mut steps = vec![updated.len()];
    while updated.len() < NODES && steps.len() <= NODES {
        cluster.advance(STAGGER * 2);
        settle(&mut cluster);
        assert_eq!(nodes_at(&cluster, 1), updated, "no instance is healthy yet");
        report_all(&mut cluster, true);
        let now = nodes_at(&cluster, 1);
        assert!(now.is_superset(&updated), "an updated node went back");
        assert_eq!(nodes_at(&cluster, 0).len() + now.len(), NODES);
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
fn a_system_update_takes_max_parallel_nodes() {
    assert_eq!(steps(2), [2, 4, 5]);
}

#[test]
fn a_system_update_without_limit_takes_all_nodes() {
    let mut cluster = cluster();
    cluster.run(spec(100, 0));
    cluster.run(spec(200, 0));

    assert_eq!(nodes_at(&cluster, 1).len(), NODES);
    assert_eq!(cluster.state.deployments().iter().count(), 0);
}

#[test]
fn each_healthy_instance_makes_room_for_one_more() {
    let mut cluster = running(spec(100, 2));
    cluster.run(spec(200, 2));

    let first = unreported(&cluster).remove(0);
    report(&mut cluster, &first, ClientStatus::Running, Some(true));

    assert_eq!(unreported(&cluster).len(), 2);
    assert_eq!(counts(&cluster), [5, 3, 1, 0]);
}

#[test]
fn a_newer_version_ends_the_update_before_it() {
    let mut cluster = running(spec(100, 1));
    cluster.run(spec(200, 1));
    let older = deployment(&cluster).id;
    cluster.run(spec(300, 1));
    let older = cluster.state.deployments().get(&older).unwrap();
    assert_eq!(older.status, DeploymentStatus::Cancelled);

    while report_all(&mut cluster, true) > 0 {}

    assert_eq!(nodes_at(&cluster, 2).len(), NODES);
    assert_eq!(deployment(&cluster).status, DeploymentStatus::Successful);
}

#[test]
fn the_first_version_has_a_deployment() {
    let mut cluster = cluster();
    cluster.run(spec(100, 1));

    assert_eq!(nodes_at(&cluster, 0).len(), NODES);
    assert_eq!(counts(&cluster), [5, 5, 0, 0]);
    assert_eq!(stable(&cluster), [0; 0]);
    report_all(&mut cluster, true);

    assert_eq!(deployment(&cluster).status, DeploymentStatus::Successful);
    assert_eq!(stable(&cluster), [0]);
}

#[test]
fn a_successful_system_update_is_stable() {
    let mut cluster = running(spec(100, 2));
    cluster.run(spec(200, 2));
    assert_eq!(counts(&cluster), [5, 2, 0, 0]);

    while report_all(&mut cluster, true) > 0 {
        assert_eq!(counts(&cluster)[0], 5);
    }

    assert_eq!(counts(&cluster), [5, 5, 5, 0]);
    assert_eq!(deployment(&cluster).status, DeploymentStatus::Successful);
    assert_eq!(stable(&cluster), [0, 1]);
}

#[test]
fn an_unhealthy_instance_reverts_a_system_job() {
    let mut cluster = running(reverting(100));
    cluster.run(reverting(200));
    let failed = deployment(&cluster).id;

    report_all(&mut cluster, false);

    let failed = cluster.state.deployments().get(&failed).unwrap();
    assert_eq!(failed.status, DeploymentStatus::Failed);
    while report_all(&mut cluster, true) > 0 {}
    assert_eq!(nodes_at(&cluster, 2).len(), NODES);
    assert!(
        cluster
            .live("log")
            .iter()
            .all(|alloc| alloc.group().tasks[0].resources.cpu == CpuMhz(100))
    );
    assert_eq!(deployment(&cluster).status, DeploymentStatus::Successful);
}

#[test]
fn an_unhealthy_instance_stops_the_update_until_deadline() {
    let mut cluster = running(spec(100, 2));
    cluster.run(spec(200, 2));
    let both = unreported(&cluster);
    report(&mut cluster, &both[0], ClientStatus::Running, Some(false));
    report(&mut cluster, &both[1], ClientStatus::Running, Some(true));

    assert_eq!(nodes_at(&cluster, 1).len(), 2);
    assert_eq!(counts(&cluster), [5, 2, 1, 1]);
    let at = watch::due(&cluster.state, cluster.now).next.unwrap();
    cluster.now = at;
    for command in watch::due(&cluster.state, at).commands {
        cluster.apply(command);
    }
    settle(&mut cluster);

    assert_eq!(deployment(&cluster).status, DeploymentStatus::Failed);
    assert_eq!(nodes_at(&cluster, 1).len(), 2);
}

#[test]
fn a_failed_instance_holds_the_update_until_restarted() {
    let mut cluster = running(spec(100, 1));
    cluster.run(spec(200, 1));
    let first = unreported(&cluster).remove(0);
    report(&mut cluster, &first, ClientStatus::Failed, None);
    assert_eq!(nodes_at(&cluster, 1).len(), 0);
    assert_eq!(nodes_at(&cluster, 0).len(), NODES - 1);

    cluster.advance(Duration::from_mins(1));
    settle(&mut cluster);
    assert_eq!(nodes_at(&cluster, 1), BTreeSet::from([first.node_id]));
    while report_all(&mut cluster, true) > 0 {}

    assert_eq!(nodes_at(&cluster, 1).len(), NODES);
    assert_eq!(counts(&cluster), [5, 6, 5, 1]);
    assert_eq!(deployment(&cluster).status, DeploymentStatus::Successful);
}

#[test]
fn a_paused_deployment_replaces_no_more_nodes() {
    let mut cluster = running(spec(100, 1));
    cluster.run(spec(200, 1));
    change_deployment(&mut cluster, DeploymentChange::Pause);

    report_all(&mut cluster, true);
    assert_eq!(nodes_at(&cluster, 1).len(), 1);
    change_deployment(&mut cluster, DeploymentChange::Resume);

    assert_eq!(nodes_at(&cluster, 1).len(), 2);
}

#[test]
fn a_failed_deployment_replaces_no_more_nodes() {
    let mut cluster = running(spec(100, 1));
    cluster.run(spec(200, 1));
    change_deployment(&mut cluster, DeploymentChange::Fail);

    cluster.advance(STAGGER * 2);
    settle(&mut cluster);
    report_all(&mut cluster, true);

    assert_eq!(nodes_at(&cluster, 1).len(), 1);
    cluster.node(node("late").build());
    settle(&mut cluster);
    assert_eq!(nodes_at(&cluster, 1).len(), 2, "a new node gets the job");
}

#[test]
fn a_node_that_joins_belongs_to_the_deployment() {
    let mut cluster = running(spec(100, 1));
    cluster.run(spec(200, 1));
    let late = cluster.node(node("late").build());
    settle(&mut cluster);

    assert_eq!(counts(&cluster), [6, 2, 0, 0]);
    assert!(nodes_at(&cluster, 1).contains(&late));
    while report_all(&mut cluster, true) > 0 {}

    assert_eq!(counts(&cluster), [6, 6, 6, 0]);
    assert_eq!(deployment(&cluster).status, DeploymentStatus::Successful);
}

#[test]
fn a_node_that_joins_later_needs_no_deployment() {
    let mut cluster = running(spec(100, 1));
    let before = deployment(&cluster);
    let late = cluster.node(node("late").build());
    settle(&mut cluster);

    let live = cluster.live("log");
    let alloc = live.iter().find(|alloc| alloc.node_id == late).unwrap();
    assert_eq!(alloc.deployment, None);
    assert_eq!(deployment(&cluster), before);
}

#[test]
fn an_ineligible_node_keeps_its_version() {
    let mut cluster = running(spec(100, 1));
    let node_id = *nodes_at(&cluster, 0).first().unwrap();
    set_eligibility(&mut cluster, node_id, Eligibility::Ineligible);
    cluster.run(spec(200, 1));
    while report_all(&mut cluster, true) > 0 {}

    assert_eq!(deployment(&cluster).status, DeploymentStatus::Successful);
    assert_eq!(counts(&cluster), [4, 4, 4, 0]);
    assert_eq!(nodes_at(&cluster, 0), BTreeSet::from([node_id]));
    // The node gets the new version by a deployment of its own when it takes work again.
    set_eligibility(&mut cluster, node_id, Eligibility::Eligible);
    assert_eq!(counts(&cluster), [1, 1, 0, 0]);
    report_all(&mut cluster, true);

    assert_eq!(nodes_at(&cluster, 1).len(), NODES);
    assert_eq!(deployment(&cluster).status, DeploymentStatus::Successful);
}

#[test]
fn a_node_made_ineligible_holds_up_nothing() {
    let mut cluster = running(spec(100, 1));
    cluster.run(spec(200, 1));
    let node_id = *nodes_at(&cluster, 0).first().unwrap();
    set_eligibility(&mut cluster, node_id, Eligibility::Ineligible);
    while report_all(&mut cluster, true) > 0 {}

    assert_eq!(deployment(&cluster).status, DeploymentStatus::Successful);
    assert_eq!(counts(&cluster), [4, 4, 4, 0]);
}

#[test]
fn a_node_that_goes_down_holds_up_nothing() {
    let mut cluster = running(spec(100, 1));
    cluster.run(spec(200, 1));
    let updating = unreported(&cluster).remove(0).node_id;
    cluster.node_status(updating, NodeStatus::Down);
    settle(&mut cluster);
    let old = *nodes_at(&cluster, 0).first().unwrap();
    cluster.node_status(old, NodeStatus::Down);
    settle(&mut cluster);
    while report_all(&mut cluster, true) > 0 {}

    assert_eq!(nodes_at(&cluster, 1).len(), NODES - 2);
    assert_eq!(counts(&cluster)[0], 3);
    assert_eq!(deployment(&cluster).status, DeploymentStatus::Successful);
}

#[test]
fn a_healthy_node_gone_down_vouches_for_none() {
    let mut cluster = running(spec(100, 1));
    cluster.run(spec(200, 1));
    let first = unreported(&cluster).remove(0);
    report(&mut cluster, &first, ClientStatus::Running, Some(true));
    cluster.node_status(first.node_id, NodeStatus::Down);
    settle(&mut cluster);
    while nodes_at(&cluster, 1).len() < NODES - 1 {
        report_all(&mut cluster, true);
    }

    assert_eq!(unreported(&cluster).len(), 1);
    assert_eq!(deployment(&cluster).status, DeploymentStatus::Running);
    report_all(&mut cluster, true);
    assert_eq!(deployment(&cluster).status, DeploymentStatus::Successful);
}

#[test]
fn a_deployment_without_nodes_is_cancelled() {
    let mut cluster = Cluster::new();
    let only = cluster.node(node("only").build());
    cluster.run(spec(100, 1));
    cluster.node_status(only, NodeStatus::Down);
    settle(&mut cluster);
    assert_eq!(deployment(&cluster).status, DeploymentStatus::Cancelled);
    assert_eq!(stable(&cluster), [0; 0]);

    cluster.node_status(only, NodeStatus::Ready);
    settle(&mut cluster);
    report_all(&mut cluster, true);

    assert_eq!(deployment(&cluster).status, DeploymentStatus::Successful);
    assert_eq!(stable(&cluster), [0]);
}

/// A collection has removed the successful deployment, and every node was replaced.
#[test]
fn collected_system_deployment_is_not_begun_again() {
    let mut cluster = running(spec(100, 1));
    let node_ids: Vec<_> = nodes_at(&cluster, 0).into_iter().collect();
    for node_id in node_ids {
        cluster.node_status(node_id, NodeStatus::Down);
    }
    settle(&mut cluster);
    cluster.advance(Duration::from_secs(1));
    for command in Collector::forced(cluster.now) {
        cluster.apply(command);
    }

    cluster.node(node("later").build());
    settle(&mut cluster);

    assert_eq!(nodes_at(&cluster, 0).len(), 1);
    assert_eq!(cluster.state.deployments().iter().count(), 0);
}

#[test]
fn a_job_without_nodes_has_no_deployment() {
    let mut cluster = Cluster::new();
    cluster.run(spec(100, 1));
    assert_eq!(cluster.state.deployments().iter().count(), 0);

    cluster.node(node("first").build());
    settle(&mut cluster);

    assert_eq!(counts(&cluster), [1, 1, 0, 0]);
}

#[test]
fn a_full_node_without_instance_is_not_awaited() {
    let mut cluster = cluster();
    cluster.node(node("small").cpu_mhz(50).build());
    cluster.run(spec(100, 1));
    assert_eq!(counts(&cluster), [5, 5, 0, 0]);

    report_all(&mut cluster, true);

    assert_eq!(deployment(&cluster).status, DeploymentStatus::Successful);
}

#[test]
fn an_instance_that_does_not_fit_is_awaited() {
    let mut cluster = running(spec(100, 5));
    let mut large = spec(100, 5);
    large.groups[0].tasks[0].resources.memory = Mb(1 << 30);
    cluster.run(large);
    settle(&mut cluster);

    assert_eq!(nodes_at(&cluster, 0).len(), NODES, "they run on");
    assert_eq!(counts(&cluster), [5, 0, 0, 0]);
    assert_eq!(deployment(&cluster).status, DeploymentStatus::Running);
}

#[test]
fn groups_are_updated_side_by_side() {
    let two = |cpu_mhz| {
        let mut spec = spec(cpu_mhz, 1);
        let mut other = spec.groups[0].clone();
        "other".clone_into(&mut other.name);
        other.update = other.update.map(|update| UpdateStrategy {
            max_parallel: 3,
            ..update
        });
        spec.groups.push(other);
        spec
    };
    let mut cluster = running(two(100));
    cluster.run(two(200));

    let of_group = |cluster: &Cluster, name: &str| {
        let live = cluster.live("log");
        let updated = live.iter().filter(|alloc| alloc.job.version == 1);
        updated.filter(|alloc| alloc.group().name == name).count()
    };
    assert_eq!(of_group(&cluster, "main"), 1);
    assert_eq!(of_group(&cluster, "other"), 3);
    assert_eq!(group_counts(&cluster, "main"), [5, 1, 0, 0]);
    assert_eq!(group_counts(&cluster, "other"), [5, 3, 0, 0]);
    while of_group(&cluster, "main") < NODES {
        assert_eq!(deployment(&cluster).status, DeploymentStatus::Running);
        report_all(&mut cluster, true);
    }
    report_all(&mut cluster, true);

    assert_eq!(group_counts(&cluster, "main"), [5, 5, 5, 0]);
    assert_eq!(group_counts(&cluster, "other"), [5, 5, 5, 0]);
    assert_eq!(deployment(&cluster).status, DeploymentStatus::Successful);
}

#[test]
fn a_change_in_place_is_judged_anew() {
    let mut cluster = running(spec(100, 1));
    let mut prioritized = spec(100, 1);
    prioritized.priority += 1;
    cluster.run(prioritized);

    assert_eq!(nodes_at(&cluster, 1).len(), NODES);
    assert_eq!(counts(&cluster), [5, 5, 0, 0]);
    report_all(&mut cluster, true);
    assert_eq!(stable(&cluster), [0, 1]);
}

#[test]
fn a_stopped_system_job_ends_its_deployment() {
    let mut cluster = running(spec(100, 1));
    cluster.run(spec(200, 1));
    cluster.stop("log");
    settle(&mut cluster);

    assert_eq!(deployment(&cluster).status, DeploymentStatus::Cancelled);
}

#[test]
fn an_instance_restarted_by_users_is_deployed() {
    let mut cluster = Cluster::new();
    cluster.node(node("only").build());
    cluster.run(spec(100, 1));
    report_all(&mut cluster, true);
    let alloc_ids = vec![cluster.live("log").remove(0).id];
    cluster.apply(
        JobCommand::Register {
            spec: Box::new(spec(200, 1)),
            check_index: None,
            places: None,
        }
        .at(cluster.now),
    );
    cluster.apply(
        AllocCommand::Migrate {
            alloc_ids,
            trigger: Trigger::AllocStop,
        }
        .at(cluster.now),
    );
    settle(&mut cluster);
    report_all(&mut cluster, true);

    assert_eq!(counts(&cluster), [1, 1, 1, 0]);
    assert_eq!(stable(&cluster), [0, 1]);
}

#[test]
fn a_drained_node_makes_room_for_the_next() {
    let mut cluster = running(spec(100, 1));
    cluster.run(spec(200, 1));
    let first = unreported(&cluster).remove(0);
    cluster.apply(
        NodeCommand::Drain {
            node_id: first.node_id,
            drain: Some(DrainSpec {
                deadline: None,
                ignore_system_jobs: false,
            }),
            mark_eligible: false,
        }
        .at(cluster.now),
    );
    for command in watch::due(&cluster.state, cluster.now).commands {
        cluster.apply(command);
    }
    settle(&mut cluster);

    assert_eq!(unreported(&cluster).len(), 1);
    assert_ne!(unreported(&cluster)[0].node_id, first.node_id);
    while report_all(&mut cluster, true) > 0 {}
    assert_eq!(counts(&cluster), [4, 5, 4, 0]);
    assert_eq!(deployment(&cluster).status, DeploymentStatus::Successful);
}
