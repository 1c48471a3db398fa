//! Dry runs, compared with the effects of real registrations.

use muster_domain::fixture::{job, node};
use muster_domain::job::{JobSpec, Periodic};
use muster_domain::scheduling::SchedulerConfig;

use super::*;
use crate::fixture::Cluster;
use crate::fsm::{ConfigCommand, JobRejection};

fn count(cluster: &Cluster, spec: JobSpec) -> DesiredUpdates {
    let run = dry_run(&cluster.state, spec, cluster.now).unwrap();
    run.desired[0].1
}

#[test]
fn a_dry_run_changes_nothing() {
    let mut cluster = Cluster::new();
    cluster.node(node("n1").build());
    cluster.run(job("web").count(1).build());
    let before = cluster.state.clone();

    let run = dry_run(&cluster.state, job("web").count(3).build(), cluster.now).unwrap();

    assert!(!run.plan.is_empty());
    assert_eq!(cluster.state.hash(), before.hash());
    assert_eq!(cluster.state.applied(), before.applied());
}

#[test]
fn a_dry_run_plans_the_later_outcome() {
    let mut cluster = Cluster::new();
    cluster.node(node("n1").build());
    let spec = job("web").count(2).build();

    let run = dry_run(&cluster.state, spec.clone(), cluster.now).unwrap();
    let plans = cluster.run(spec);

    assert_eq!(plans.as_slice(), std::slice::from_ref(&run.plan));
    assert!(run.before.is_none());
    assert_eq!(run.job_modify_index, LogIndex(0));
    assert_eq!(run.desired[0].1.place, 2);
}

#[test]
fn each_kind_of_change_is_counted() {
    let mut cluster = Cluster::new();
    cluster.node(node("n1").build());
    cluster.run(job("web").count(2).build());
    let mut other = job("web").count(2).build();
    other.groups[0].tasks[0].config_json = r#"{"command":"/bin/other"}"#.to_owned();

    let same = count(&cluster, job("web").count(2).build());
    let more = count(&cluster, job("web").count(3).build());
    let less = count(&cluster, job("web").count(1).build());
    let replaced = count(&cluster, other);

    assert_eq!((same.ignore, same.place), (2, 0));
    assert_eq!((more.place, more.in_place), (1, 2));
    assert_eq!((less.stop, less.in_place), (1, 1));
    assert!(replaced.destructive > 0);
}

#[test]
fn failed_placements_are_listed_with_reason() {
    let mut cluster = Cluster::new();
    cluster.node(node("n1").cpu_mhz(1_000).build());

    let spec = job("web").count(3).cpu_mhz(600).build();
    let run = dry_run(&cluster.state, spec, cluster.now).unwrap();

    assert_eq!((run.failed.len(), run.failed[0].count), (1, 2));
    assert_eq!(run.created.len(), 1, "what waits is blocked");
}

#[test]
fn preempted_allocs_are_named() {
    let mut cluster = Cluster::new();
    let mut config = SchedulerConfig::default();
    config.preemption.service = true;
    cluster.apply(
        ConfigCommand::SetScheduler {
            config,
            check_index: None,
        }
        .at(cluster.now),
    );
    cluster.node(node("n1").cpu_mhz(1_000).build());
    cluster.run(job("low").count(1).priority(10).cpu_mhz(800).build());
    let victim = cluster.live("low")[0].id;

    let spec = job("high").count(1).priority(90).cpu_mhz(800).build();
    let run = dry_run(&cluster.state, spec, cluster.now).unwrap();

    assert_eq!(run.preempted, [victim]);
}

#[test]
fn a_template_is_planned_without_placements() {
    let mut cluster = Cluster::new();
    cluster.node(node("n1").build());
    let mut spec = job("nightly").build();
    spec.periodic = Some(Periodic {
        enabled: true,
        specs: vec!["0 3 * * *".to_owned()],
        prohibit_overlap: false,
        time_zone: "UTC".to_owned(),
    });

    let run = dry_run(&cluster.state, spec, cluster.now).unwrap();

    assert!(run.plan.is_empty());
    assert!(run.desired.is_empty() && run.failed.is_empty());
}

#[test]
fn refused_spec_returns_its_rejection() {
    let mut cluster = Cluster::new();
    cluster.run(job("web").build());
    let spec = job("web")
        .job_type(muster_domain::job::JobType::Batch)
        .build();

    let refused = dry_run(&cluster.state, spec, cluster.now);

    assert!(matches!(
        refused,
        Err(Rejection::Job(JobRejection::TypeChanged { .. }))
    ));
}
