use std::sync::Arc;
use std::time::Duration;

use muster_domain::alloc::{AllocReport, Allocation, ClientStatus};
use muster_domain::fixture::{job, node};
use muster_domain::id::NodeId;
use muster_domain::job::UpdateStrategy;
use muster_domain::node::{DrainSpec, Eligibility};
use muster_domain::resources::CpuMhz;

use super::*;
use crate::fixture::Cluster;
use crate::fsm::{JobCommand, NodeRejection, Rejection, Response};

/// Two nodes, and `count` healthy instances of `web` on the first.
fn with_web(count: u32, kind: JobType) -> (Cluster, NodeId) {
    let mut cluster = Cluster::new();
    let first = cluster.node(node("n1").build());
    let mut spec = job("web").job_type(kind).count(count).build();
    spec.groups[0].migrate = Some(MigrateStrategy::default());
    cluster.run(spec);
    for alloc in cluster.live("web") {
        healthy(&mut cluster, &alloc);
    }
    cluster.node(node("n2").build());
    cluster.settle();
    (cluster, first)
}

fn healthy(cluster: &mut Cluster, alloc: &Allocation) {
    report_health(cluster, alloc, ClientStatus::Running, Some(true));
}

fn report_health(
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
}

fn drain(cluster: &mut Cluster, node_id: NodeId, deadline: Option<Duration>) {
    cluster.apply(
        NodeCommand::Drain {
            node_id,
            drain: Some(DrainSpec {
                deadline,
                ignore_system_jobs: false,
            }),
            mark_eligible: false,
        }
        .at(cluster.now),
    );
}

/// Carries out the due commands and schedules. Returns whether there were any.
fn apply_due(cluster: &mut Cluster) -> bool {
    let commands = due(&cluster.state, cluster.now).commands;
    let any = !commands.is_empty();
    for command in commands {
        cluster.apply(command);
    }
    cluster.settle();
    any
}

fn on(cluster: &Cluster, node_id: NodeId) -> usize {
    let live = cluster.live("web");
    live.iter().filter(|alloc| alloc.node_id == node_id).count()
}

/// Makes agents stop the allocations that they are asked to stop.
fn agents_stop(cluster: &mut Cluster) {
    let stopping: Vec<Allocation> = cluster
        .state
        .allocs()
        .iter()
        .filter(|alloc| alloc.server_terminal() && !alloc.client_status().is_terminal())
        .map(AllocView::unpack)
        .collect();
    for alloc in stopping {
        report_health(cluster, &alloc, ClientStatus::Complete, None);
    }
}

#[test]
fn draining_node_cannot_be_made_eligible() {
    let (mut cluster, first) = with_web(2, JobType::Service);
    drain(&mut cluster, first, None);
    let mut set = |eligibility| {
        cluster.apply(
            NodeCommand::SetEligibility {
                node_id: first,
                eligibility,
            }
            .at(cluster.now),
        )
    };

    let refused = set(Eligibility::Eligible);
    assert_eq!(
        refused,
        Response::Rejected(Rejection::Node(NodeRejection::Draining(first)))
    );
    assert_eq!(set(Eligibility::Ineligible), Response::Done);
}

#[test]
fn drain_migrates_services_serially_then_completes() {
    let (mut cluster, first) = with_web(3, JobType::Service);
    drain(&mut cluster, first, None);

    for left in [2, 1, 0] {
        assert!(apply_due(&mut cluster));
        assert_eq!(on(&cluster, first), left);
        // The replacement is not healthy yet: no other instance leaves, and the drain is not complete.
        assert!(!apply_due(&mut cluster));
        agents_stop(&mut cluster);
        for alloc in cluster.live("web") {
            healthy(&mut cluster, &alloc);
        }
    }

    assert!(apply_due(&mut cluster));
    let node = cluster.state.nodes().get(&first).unwrap();
    assert_eq!(node.drain, None);
    assert!(!node.takes_work());
    assert!(!is_needed(&cluster.state));
}

#[test]
fn drain_is_incomplete_while_alloc_is_stopping() {
    let (mut cluster, first) = with_web(1, JobType::Service);
    drain(&mut cluster, first, None);
    apply_due(&mut cluster);

    assert!(!apply_due(&mut cluster));
    assert!(cluster.state.nodes().get(&first).unwrap().drain.is_some());
}

#[test]
fn batch_work_is_waited_for_until_the_deadline() {
    let (mut cluster, first) = with_web(2, JobType::Batch);
    drain(&mut cluster, first, Some(Duration::from_mins(5)));

    assert!(!apply_due(&mut cluster));
    let next = due(&cluster.state, cluster.now).next;
    assert_eq!(next, Some(cluster.now.plus(Duration::from_mins(5))));
    cluster.advance(Duration::from_mins(5));
    assert!(apply_due(&mut cluster));

    assert_eq!(on(&cluster, first), 0);
}

#[test]
fn unplaceable_service_stays_until_drain_deadline() {
    let mut cluster = Cluster::new();
    let only = cluster.node(node("n1").build());
    let mut spec = job("web").build();
    spec.groups[0].migrate = Some(MigrateStrategy::default());
    cluster.run(spec);
    let alloc = cluster.live("web").remove(0);
    healthy(&mut cluster, &alloc);
    drain(&mut cluster, only, Some(Duration::from_mins(1)));

    apply_due(&mut cluster);
    assert_eq!(on(&cluster, only), 1, "no other node exists");
    cluster.advance(Duration::from_mins(1));
    apply_due(&mut cluster);

    assert_eq!(on(&cluster, only), 0);
}

#[test]
fn system_jobs_leave_last() {
    let mut cluster = Cluster::new();
    let first = cluster.node(node("n1").build());
    cluster.run(job("log").job_type(JobType::System).build());
    let mut spec = job("web").build();
    spec.groups[0].migrate = Some(MigrateStrategy::default());
    cluster.run(spec);
    for name in ["log", "web"] {
        let alloc = cluster.live(name).remove(0);
        healthy(&mut cluster, &alloc);
    }
    cluster.node(node("n2").build());
    cluster.settle();
    drain(&mut cluster, first, None);

    apply_due(&mut cluster);
    assert_eq!(cluster.live("log").len(), 2);
    agents_stop(&mut cluster);
    apply_due(&mut cluster);
    assert_eq!(cluster.live("log").len(), 1);
    agents_stop(&mut cluster);
    apply_due(&mut cluster);

    assert_eq!(cluster.state.nodes().get(&first).unwrap().drain, None);
}

/// A user stopped the instance, and the node takes no new instance. The drain ends it at once, whether or not it is of
/// a system job, and although other instances are still there.
/// jobs, and though others are there still.
#[test]
fn drain_ends_system_alloc_awaiting_restart() {
    for ignore_system_jobs in [false, true] {
        let (mut cluster, node_id) = with_web(1, JobType::System);
        cluster.run(job("batch").job_type(JobType::Batch).count(20).build());
        let at = cluster.now;
        cluster.apply(
            NodeCommand::SetEligibility {
                node_id,
                eligibility: Eligibility::Ineligible,
            }
            .at(at),
        );
        let web = cluster.live("web");
        let alloc = web.iter().find(|alloc| alloc.node_id == node_id).unwrap();
        cluster.apply(
            AllocCommand::Migrate {
                alloc_ids: vec![alloc.id],
                trigger: Trigger::AllocStop,
            }
            .at(at),
        );
        cluster.settle();
        let before = on(&cluster, node_id);

        cluster.apply(
            NodeCommand::Drain {
                node_id,
                drain: Some(DrainSpec {
                    deadline: None,
                    ignore_system_jobs,
                }),
                mark_eligible: false,
            }
            .at(at),
        );
        apply_due(&mut cluster);

        assert!(cluster.state.allocs_on(&node_id).count() > 1);
        assert_eq!((before, on(&cluster, node_id)), (1, 0));
    }
}

#[test]
fn a_deployment_without_progress_fails() {
    let mut cluster = Cluster::new();
    cluster.node(node("n1").build());
    let mut spec = job("web").build();
    spec.groups[0].update = Some(UpdateStrategy::default());
    cluster.run(spec);
    let at = due(&cluster.state, cluster.now).next.unwrap();
    assert_eq!(at, cluster.now.plus(Duration::from_mins(10)));
    assert!(!apply_due(&mut cluster));

    cluster.advance(Duration::from_mins(10));
    assert!(apply_due(&mut cluster));

    let deployment = cluster.state.deployments().iter().next().unwrap();
    assert_eq!(
        deployment.status_description,
        "Failed due to progress deadline"
    );
    assert!(!apply_due(&mut cluster));
}

/// Returns a cluster with `web` in its second version, whose instance was placed, after a stable first version.
fn with_an_update_that_goes_back() -> (Cluster, Arc<Allocation>) {
    let mut cluster = Cluster::new();
    cluster.node(node("n1").build());
    let mut spec = job("web").build();
    spec.groups[0].update = Some(UpdateStrategy {
        auto_revert: true,
        progress_deadline: Duration::ZERO,
        ..UpdateStrategy::default()
    });
    cluster.run(spec.clone());
    let first = cluster.live("web").remove(0);
    healthy(&mut cluster, &first);
    cluster.settle();
    spec.groups[0].tasks[0].resources.cpu = CpuMhz(200);
    cluster.run(spec);
    agents_stop(&mut cluster);
    cluster.settle();
    let live = cluster.live("web");
    let second = live.iter().find(|alloc| alloc.id != first.id).unwrap();
    let second = Arc::clone(second);
    (cluster, second)
}

fn version(cluster: &Cluster) -> (u64, bool) {
    let job = cluster.state.jobs().get(&JobKey::in_default("web"));
    let job = job.unwrap();
    (job.current.version, job.stop)
}

#[test]
fn a_job_goes_back_when_its_deployment_fails() {
    let (mut cluster, second) = with_an_update_that_goes_back();

    report_health(&mut cluster, &second, ClientStatus::Running, Some(false));

    assert_eq!(version(&cluster), (2, false));
}

#[test]
fn a_stopped_job_does_not_go_back() {
    let (mut cluster, second) = with_an_update_that_goes_back();
    // The evaluation that would end the deployment is not processed yet.
    cluster.apply(
        JobCommand::Deregister {
            key: JobKey::in_default("web"),
        }
        .at(cluster.now),
    );

    report_health(&mut cluster, &second, ClientStatus::Running, Some(false));

    assert_eq!(version(&cluster), (1, true));
    cluster.settle();
    assert!(cluster.live("web").is_empty());
}
