//! Deployments, canaries and the names of instances.

use std::time::Duration;

use muster_domain::alloc::{AllocReport, Allocation, ClientStatus};
use muster_domain::eval::EvalStatus;
use muster_domain::fixture::{job, node};
use muster_domain::id::{EvalId, JobKey, LogIndex};
use muster_domain::job::{JobSpec, UpdateStrategy};
use muster_domain::node::NodeStatus;

use crate::fixture::Cluster;
use crate::fsm::{
    AllocCommand, Command, DeploymentChange, DeploymentCommand, Entry, EvalCommand, EvalUpdate,
    JobCommand, NextEval,
};
use crate::gc::Collector;
use crate::state::waits;
use crate::watch;

fn web(count: u32, cpu_mhz: u32, canary: u32) -> JobSpec {
    let mut spec = job("web").count(count).cpu_mhz(cpu_mhz).build();
    spec.groups[0].update = Some(UpdateStrategy {
        max_parallel: 1,
        canary,
        ..UpdateStrategy::default()
    });
    spec
}

fn healthy(cluster: &mut Cluster) {
    let live = cluster.live("web");
    for alloc in live.iter().filter(|alloc| alloc.healthy.is_none()) {
        report_health(cluster, alloc, ClientStatus::Running, true);
    }
    cluster.settle();
}

fn report_health(
    cluster: &mut Cluster,
    alloc: &Allocation,
    client_status: ClientStatus,
    is_healthy: bool,
) {
    let report = AllocReport {
        alloc_id: alloc.id,
        client_status,
        client_description: String::new(),
        task_states: Vec::new(),
        healthy: Some(is_healthy),
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

fn promote(cluster: &mut Cluster) {
    let active = cluster.state.deployments().active();
    let ids: Vec<_> = active.map(|row| row.id).collect();
    for id in ids {
        cluster.apply(
            DeploymentCommand::Change {
                id,
                change: DeploymentChange::Promote(None),
            }
            .at(cluster.now),
        );
    }
    cluster.settle();
}

fn numbers(cluster: &Cluster) -> Vec<u32> {
    let live = cluster.live("web");
    let mut numbers: Vec<u32> = live.iter().map(|alloc| alloc.name_index).collect();
    numbers.sort_unstable();
    numbers
}

/// Two canaries have the names of both older instances, one of which is still wanted: it continues under a free name.
#[test]
fn canary_promotion_resolves_duplicate_alloc_names() {
    let mut cluster = Cluster::new();
    cluster.node(node("n1").build());
    cluster.run(web(2, 100, 0));
    healthy(&mut cluster);
    healthy(&mut cluster);

    cluster.run(web(3, 200, 2));
    assert_eq!(numbers(&cluster), [0, 0, 1, 1]);
    healthy(&mut cluster);
    promote(&mut cluster);

    assert_eq!(numbers(&cluster), [0, 1, 2]);
}

/// The instance has failed and would be replaced later, if one were still wanted.
#[test]
fn deployment_ignores_unwanted_failed_alloc() {
    let mut cluster = Cluster::new();
    cluster.node(node("n1").build());
    cluster.run(web(1, 100, 0));
    healthy(&mut cluster);
    let alloc = cluster.live("web").remove(0);
    report_health(&mut cluster, &alloc, ClientStatus::Failed, true);
    cluster.settle();

    cluster.run(web(0, 100, 0));
    assert_eq!(cluster.state.deployments().active().count(), 0);

    // Now its replacement is due.
    cluster.advance(Duration::from_mins(5));
    cluster.settle();
    assert_eq!(cluster.live("web").len(), 0);
    assert_eq!(cluster.state.deployments().active().count(), 0);
}

#[test]
fn healthy_instances_that_fail_are_replaced_meanwhile() {
    let mut cluster = Cluster::new();
    cluster.node(node("n1").build());
    cluster.run(web(2, 100, 0));
    let [first, second] = &cluster.live("web")[..] else {
        panic!("two were wanted");
    };
    report_health(&mut cluster, first, ClientStatus::Running, true);
    cluster.settle();
    report_health(&mut cluster, first, ClientStatus::Failed, true);
    cluster.settle();
    cluster.advance(Duration::from_mins(5));
    cluster.settle();
    assert_eq!(cluster.state.deployments().active().count(), 1);
    assert_eq!(numbers(&cluster), [0, 1]);

    report_health(&mut cluster, second, ClientStatus::Running, true);
    cluster.settle();
    assert_eq!(cluster.state.deployments().active().count(), 0);
    cluster.advance(Duration::from_mins(5));
    cluster.settle();

    assert_eq!(numbers(&cluster), [0, 1]);
}

#[test]
fn progress_deadline_applies_with_excess_canaries() {
    let mut cluster = Cluster::new();
    cluster.node(node("n1").build());
    cluster.run(web(1, 100, 0));
    healthy(&mut cluster);
    cluster.run(web(1, 200, 2));
    let live = cluster.live("web");
    let canary = live.iter().find(|alloc| alloc.canary).unwrap();
    report_health(&mut cluster, canary, ClientStatus::Running, true);
    cluster.settle();

    cluster.advance(Duration::from_mins(11));

    let due = watch::due(&cluster.state, cluster.now).commands;
    assert!(
        matches!(
            due[..],
            [Entry {
                command: Command::Deployment(DeploymentCommand::Change { .. }),
                ..
            }]
        ),
        "{due:?}"
    );
}

fn canaries(cluster: &Cluster) -> usize {
    let live = cluster.live("web");
    live.iter().filter(|alloc| alloc.canary).count()
}

fn change(cluster: &mut Cluster, change: &DeploymentChange) {
    let active = cluster.state.deployments().active();
    let ids: Vec<_> = active.map(|row| row.id).collect();
    for id in ids {
        cluster.apply(
            DeploymentCommand::Change {
                id,
                change: change.clone(),
            }
            .at(cluster.now),
        );
    }
    cluster.settle();
}

#[test]
fn canaries_are_placed_without_older_instances() {
    let mut cluster = Cluster::new();
    let first = cluster.node(node("n1").cpu_mhz(300).build());
    cluster.run(web(1, 200, 0));
    healthy(&mut cluster);
    cluster.run(web(1, 250, 1));
    assert_eq!(canaries(&cluster), 0, "no room is left");

    cluster.node_status(first, NodeStatus::Down);
    cluster.settle();
    cluster.node(node("n2").build());
    cluster.settle();

    assert_eq!(canaries(&cluster), 1);
}

#[test]
fn a_lost_canary_is_placed_when_room_returns() {
    let mut cluster = Cluster::new();
    cluster.node(node("n1").cpu_mhz(300).build());
    cluster.run(web(1, 200, 0));
    healthy(&mut cluster);
    let second = cluster.node(node("n2").cpu_mhz(300).build());
    cluster.run(web(1, 250, 1));
    healthy(&mut cluster);
    assert_eq!(canaries(&cluster), 1);

    cluster.node_status(second, NodeStatus::Down);
    cluster.settle();
    assert_eq!(canaries(&cluster), 0, "no room is left");
    cluster.node(node("n3").cpu_mhz(300).build());
    cluster.settle();

    assert_eq!(canaries(&cluster), 1);
}

#[test]
fn a_healthy_canary_that_fails_is_replaced() {
    let mut cluster = Cluster::new();
    cluster.node(node("n1").build());
    cluster.run(web(1, 100, 0));
    healthy(&mut cluster);
    cluster.run(web(1, 200, 1));
    healthy(&mut cluster);
    let live = cluster.live("web");
    let canary = live.iter().find(|alloc| alloc.canary).unwrap();

    report_health(&mut cluster, canary, ClientStatus::Failed, true);
    cluster.settle();
    cluster.advance(Duration::from_mins(5));
    cluster.settle();

    assert_eq!(canaries(&cluster), 1);
}

/// A healthy canary has failed, and its replacement is unhealthy. No operator can promote the deployment, so its
/// deadline counts.
#[test]
fn progress_deadline_applies_to_unhealthy_replacement_canary() {
    let mut cluster = Cluster::new();
    cluster.node(node("n1").build());
    cluster.run(web(1, 100, 0));
    healthy(&mut cluster);
    cluster.run(web(1, 200, 1));
    let canary = |cluster: &Cluster| {
        let live = cluster.live("web");
        live.into_iter().find(|alloc| alloc.canary).unwrap()
    };
    let first = canary(&cluster);
    report_health(&mut cluster, &first, ClientStatus::Running, true);
    report_health(&mut cluster, &first, ClientStatus::Failed, true);
    cluster.settle();
    cluster.advance(Duration::from_mins(1));
    cluster.settle();
    let second = canary(&cluster);
    assert_ne!(second.id, first.id);

    report_health(&mut cluster, &second, ClientStatus::Running, false);
    cluster.settle();

    assert_eq!(waits::broken(&cluster.state), Vec::<String>::new());
    cluster.advance(Duration::from_mins(11));
    let due = watch::due(&cluster.state, cluster.now).commands;
    assert!(
        matches!(
            due[..],
            [Entry {
                command: Command::Deployment(DeploymentCommand::Change { .. }),
                ..
            }]
        ),
        "{due:?}"
    );
}

#[test]
fn canaries_healthy_in_a_pause_are_promoted() {
    let mut cluster = Cluster::new();
    cluster.node(node("n1").build());
    cluster.run(web(1, 100, 0));
    healthy(&mut cluster);
    let mut spec = web(1, 200, 1);
    for update in spec.groups.iter_mut().filter_map(|it| it.update.as_mut()) {
        update.auto_promote = true;
    }
    cluster.run(spec);
    change(&mut cluster, &DeploymentChange::Pause);
    healthy(&mut cluster);
    assert_eq!(canaries(&cluster), 1);

    change(&mut cluster, &DeploymentChange::Resume);

    assert_eq!(canaries(&cluster), 0, "it is promoted");
}

/// A newer evaluation cancels the follow-up, and with a clock that was set back it is processed before the replacement
/// is due.
#[test]
fn a_cancelled_replacement_is_planned_again() {
    let mut cluster = Cluster::new();
    cluster.node(node("n1").build());
    cluster.run(web(1, 100, 0));
    healthy(&mut cluster);
    let alloc = cluster.live("web").remove(0);
    report_health(&mut cluster, &alloc, ClientStatus::Failed, true);
    cluster.settle();
    let delayed: Vec<EvalId> = cluster
        .state
        .evals()
        .pending()
        .map(|eval| eval.id)
        .collect();
    assert_eq!(delayed.len(), 1);
    let cancelled = EvalUpdate {
        eval_id: delayed[0],
        status: EvalStatus::Canceled,
        description: String::new(),
        snapshot_index: LogIndex(0),
        failed_groups: Vec::new(),
        queued: Vec::new(),
        next: NextEval::Nothing,
    };
    cluster.apply(
        EvalCommand::Update {
            evals: vec![cancelled],
        }
        .at(cluster.now),
    );

    cluster.apply(
        JobCommand::Evaluate {
            key: JobKey::in_default("web"),
            force_reschedule: false,
        }
        .at(cluster.now),
    );
    cluster.settle();

    assert_eq!(cluster.state.evals().pending().count(), 1);
}

/// The status of the newest deployment of a version whose only instance is unhealthy.
fn status_after_failure(client_status: ClientStatus, attempts: u32) -> String {
    let mut cluster = Cluster::new();
    cluster.node(node("n1").build());
    let mut spec = web(1, 100, 0);
    let reschedule = &mut spec.groups[0].reschedule;
    (reschedule.attempts, reschedule.unlimited) = (attempts, false);
    reschedule.interval = Duration::from_mins(10);
    cluster.run(spec);
    let live = cluster.live("web");
    report_health(&mut cluster, &live[0], client_status, false);
    cluster.settle();
    let deployment = cluster
        .state
        .deployments()
        .latest(&JobKey::in_default("web"));
    let deployment = deployment.unwrap();
    format!("{:?}: {}", deployment.status, deployment.status_description)
}

#[test]
fn a_deployment_without_a_chance_fails_at_once() {
    let failed = "Failed: Failed due to unhealthy allocations";
    let running = "Running: Deployment is running";

    assert_eq!(status_after_failure(ClientStatus::Failed, 0), failed);
    assert_eq!(status_after_failure(ClientStatus::Running, 0), failed);
    assert_eq!(status_after_failure(ClientStatus::Failed, 1), running);
    assert_eq!(status_after_failure(ClientStatus::Running, 1), running);
}

/// A collection has removed the deployment and its lost instances while an evaluation waits for room.
#[test]
fn collected_deployment_is_not_begun_again() {
    let mut cluster = Cluster::new();
    let node_id = cluster.node(node("n1").build());
    cluster.run(web(2, 100, 0));
    healthy(&mut cluster);
    assert_eq!(cluster.state.deployments().active().count(), 0);
    cluster.node_status(node_id, NodeStatus::Down);
    cluster.settle();
    cluster.advance(Duration::from_secs(1));
    for command in Collector::forced(cluster.now) {
        cluster.apply(command);
    }
    assert_eq!(cluster.state.deployments().iter().count(), 0);

    let key = JobKey::in_default("web");
    let force_reschedule = false;
    cluster.apply(
        JobCommand::Evaluate {
            key,
            force_reschedule,
        }
        .at(cluster.now),
    );
    assert_eq!(cluster.settle(), []);

    cluster.node(node("n1").build());
    cluster.settle();
    assert_eq!(numbers(&cluster), [0, 1]);
    assert_eq!(cluster.state.deployments().iter().count(), 0);
}

/// Of three instances one is wanted, and all have failed. The first is due for replacement; the version would replace
/// another.
#[test]
fn one_of_several_failed_instances_is_replaced() {
    let mut cluster = Cluster::new();
    cluster.node(node("n1").build());
    cluster.run(web(3, 100, 0));
    healthy(&mut cluster);
    assert_eq!(cluster.state.deployments().active().count(), 0);
    let mut live = cluster.live("web");
    let first = live.remove(0);
    cluster.report(first.id, ClientStatus::Failed);
    cluster.settle();
    cluster.advance(Duration::from_secs(30));
    for alloc in live {
        cluster.report(alloc.id, ClientStatus::Failed);
    }

    cluster.run(web(1, 200, 0));

    assert_eq!(cluster.live("web").len(), 1);
    let active: Vec<_> = cluster.state.deployments().active().collect();
    assert_eq!(active[0].groups[0].desired_total, 1);
    assert_eq!(waits::broken(&cluster.state), Vec::<String>::new());
    healthy(&mut cluster);
    assert_eq!(cluster.state.deployments().active().count(), 0);
}

/// A promoted canary has the name of an older instance. Both fail while the canary of the next version waits.
#[test]
fn replacements_of_namesakes_get_own_names() {
    let mut cluster = Cluster::new();
    cluster.node(node("n1").build());
    cluster.run(web(2, 100, 0));
    healthy(&mut cluster);
    healthy(&mut cluster);
    cluster.run(web(3, 200, 1));
    healthy(&mut cluster);
    let id = cluster.state.deployments().active().next().unwrap().id;
    for change in [DeploymentChange::Promote(None), DeploymentChange::Fail] {
        cluster.apply(DeploymentCommand::Change { id, change }.at(cluster.now));
    }
    cluster.settle();
    assert_eq!(numbers(&cluster), [0, 0, 1]);
    let namesakes = cluster.live("web");

    cluster.run(web(3, 300, 1));
    for alloc in namesakes.iter().filter(|alloc| alloc.name_index == 0) {
        cluster.report(alloc.id, ClientStatus::Failed);
    }
    cluster.advance(Duration::from_mins(1));
    cluster.settle();

    let live = cluster.live("web");
    let settled = live.iter().filter(|alloc| !alloc.canary);
    let mut numbers: Vec<u32> = settled.map(|alloc| alloc.name_index).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, [0, 1, 2]);
}

/// The last stable version and the current one differ in the number of canaries alone.
#[test]
fn replacement_of_stable_version_goes_over_in_place() {
    let mut cluster = Cluster::new();
    cluster.node(node("n1").build());
    cluster.run(web(2, 100, 0));
    healthy(&mut cluster);
    cluster.run(web(2, 200, 0));
    let mut live = cluster.live("web").into_iter();
    let updated = live.find(|alloc| alloc.job.version == 1).unwrap();
    cluster.run(web(2, 100, 1));

    cluster.report(updated.id, ClientStatus::Failed);
    cluster.advance(Duration::from_mins(1));
    cluster.settle();

    let live = cluster.live("web");
    let settled = live.iter().filter(|alloc| !alloc.canary);
    let versions: Vec<u64> = settled.map(|alloc| alloc.job.version).collect();
    assert_eq!(versions, [2, 2]);
}
