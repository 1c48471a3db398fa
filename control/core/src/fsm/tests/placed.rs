//! Jobs that are recorded with places for their instances.

use muster_domain::deployment::DeploymentStatus;
use muster_domain::id::WriteKey;
use muster_domain::job::{JobSpec, UpdateStrategy};

use super::*;
use crate::scheduler::Scheduler;

/// A cluster of one node with room for ten instances.
fn cluster() -> Cluster {
    let mut cluster = Cluster::new();
    cluster.node(node("n1").cpu_mhz(1_000).build());
    cluster
}

/// Returns a service that has deployments.
fn spec(job_id: &str, count: u32) -> JobSpec {
    let mut spec = job(job_id).count(count).cpu_mhz(100).build();
    spec.groups[0].update = Some(UpdateStrategy::default());
    spec
}

fn places(cluster: &Cluster, spec: &JobSpec) -> Option<JobPlacement> {
    Scheduler::default().place_job(&cluster.state, spec, cluster.now)
}

fn placed(cluster: &Cluster, spec: JobSpec, places: JobPlacement) -> Entry {
    JobCommand::Register {
        spec: Box::new(spec),
        places: Some(Box::new(places)),
        check_index: None,
    }
    .at(cluster.now)
}

#[test]
fn one_entry_records_a_job_and_places_it() {
    let mut cluster = cluster();
    let spec = spec("web", 3);
    let places = places(&cluster, &spec).unwrap();
    let seen = cluster.state.applied();

    let response = cluster.apply(placed(&cluster, spec, places));

    let Response::JobRegistered {
        eval_id: Some(eval_id),
        version: 0,
        job_modify_index,
    } = response
    else {
        panic!("{response:?}")
    };
    let state = &cluster.state;
    let eval = state.evals().get(&eval_id).unwrap();
    let deployment = state.deployments().iter().next().unwrap();
    assert_eq!(deployment.status, DeploymentStatus::Running);
    assert_eq!(
        (eval.status, eval.snapshot_index, eval.deployment),
        (EvalStatus::Complete, seen, Some(deployment.id))
    );
    assert_eq!(job_status(&cluster, "web"), JobStatus::Running);
    let allocs: Vec<_> = state.allocs().of_eval(&eval_id).collect();
    assert_eq!(allocs.len(), 3);
    for alloc in allocs {
        assert_eq!(alloc.create_index(), job_modify_index);
        assert_eq!(alloc.deployment(), Some(deployment.id));
    }
    // Nothing is left to do.
    assert!(cluster.settle().iter().all(Plan::is_empty));
}

/// The places were taken after they were found: no instance is placed, and the evaluation places the job.
#[test]
fn stale_placements_fall_back_to_pending_evaluation() {
    let mut cluster = cluster();
    let late = spec("late", 6);
    let places = places(&cluster, &late).unwrap();
    cluster.run(spec("web", 5));

    cluster.apply(placed(&cluster, late, places));

    assert_eq!(cluster.live("late").len(), 0);
    assert_eq!(
        open_evals(&cluster, "late"),
        [(Trigger::JobRegister, EvalStatus::Pending)]
    );
    cluster.settle();
    assert_eq!(cluster.live("late").len(), 5);
}

/// Two clients submit the same job: the second submission registers an existing job.
#[test]
fn placements_for_already_registered_job_are_ignored() {
    let mut cluster = cluster();
    let places = places(&cluster, &spec("web", 2)).unwrap();
    cluster.run(spec("web", 2));

    cluster.apply(placed(&cluster, spec("web", 2), places));

    assert_eq!(cluster.live("web").len(), 2);
    assert_eq!(open_evals(&cluster, "web").len(), 1);
}

/// Instances of a job that was purged still end under its name.
#[test]
fn purged_job_with_live_allocs_gets_no_placements() {
    let mut cluster = cluster();
    cluster.run(spec("web", 2));
    cluster.apply(
        JobCommand::Purge {
            key: JobKey::in_default("web"),
        }
        .at(cluster.now),
    );

    assert_eq!(places(&cluster, &spec("web", 2)), None);
}

#[test]
fn jobs_that_do_not_fit_get_no_places() {
    let mut cluster = cluster();
    cluster.run(spec("web", 5));

    assert!(places(&cluster, &spec("small", 5)).is_some());
    assert_eq!(places(&cluster, &spec("large", 6)), None);
    let system = job("system").job_type(JobType::System).build();
    assert_eq!(places(&cluster, &system), None);
}

/// Places that were returned count as taken, although the state has no object of the job.
#[test]
fn places_are_given_once() {
    let cluster = cluster();
    let mut scheduler = Scheduler::default();
    let mut find = |job_id: &str| {
        let spec = spec(job_id, 6);
        scheduler.place_job(&cluster.state, &spec, cluster.now)
    };

    assert!(find("one").is_some());
    assert_eq!(find("two"), None);
}

#[test]
fn idempotency_key_ignores_differing_placements() {
    let mut cluster = cluster();
    let key = || WriteKey::new("once").unwrap();
    let places = places(&cluster, &spec("web", 2)).unwrap();
    let first = placed(&cluster, spec("web", 2), places).keyed(key());
    let again = JobCommand::Register {
        spec: Box::new(spec("web", 2)),
        check_index: None,
        places: None,
    }
    .at(cluster.now);

    let first = cluster.apply(first);
    let second = cluster.apply(again.keyed(key()));

    assert_eq!(first, second);
    assert_eq!(cluster.live("web").len(), 2);
}

/// A refused registration places nothing.
#[test]
fn a_registration_that_is_refused_places_nothing() {
    let mut cluster = cluster();
    let web = spec("web", 2);
    let places = places(&cluster, &web).unwrap();
    let (spec, places) = (Box::new(web), Some(Box::new(places)));
    let check_index = Some(LogIndex(77));

    let command = JobCommand::Register {
        spec,
        places,
        check_index,
    }
    .at(cluster.now);
    let response = cluster.apply(command);

    assert!(
        matches!(
            response,
            Response::Rejected(Rejection::Job(JobRejection::CheckIndex { .. }))
        ),
        "{response:?}"
    );
    assert_eq!(cluster.state.allocs().len(), 0);
}
