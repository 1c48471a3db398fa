//! Jobs with more deployments than a slice frees.

use std::sync::Arc;
use std::time::Duration;

use muster_domain::alloc::ClientStatus;
use muster_domain::deployment::{Deployment, DeploymentStatus};
use muster_domain::fixture::{job, node};
use muster_domain::id::{DeploymentId, JobKey, LogIndex, Timestamp};

use super::{jobs_by_force, purge};
use crate::fixture::Cluster;
use crate::fsm::{Entry, Response};
use crate::gc::Collector;
use crate::limits;
use crate::state::check;

const MANY: u32 = 3_000;
/// Number of deployments that a slice removes: as many as fit, and the active one with the row.
const IN_A_SLICE: usize = limits::GC_SLICE_MAX / limits::GC_COST_DEPLOYMENT + 1;

/// Returns a cluster with a job whose instance runs, and whose last deployment is active.
fn deployed_often() -> Cluster {
    let mut cluster = Cluster::new();
    cluster.node(node("n1").build());
    cluster.run(job("web").build());
    let alloc_id = cluster.live("web")[0].id;
    cluster.report(alloc_id, ClientStatus::Running);
    cluster.advance(Duration::from_secs(1));
    for at in 0..MANY {
        let is_last = at + 1 == MANY;
        let status = if is_last {
            DeploymentStatus::Running
        } else {
            DeploymentStatus::Successful
        };
        put(&mut cluster, at, status);
    }
    cluster
}

/// Adds a deployment of the existing job, newer than the earlier ones.
fn put(cluster: &mut Cluster, at: u32, status: DeploymentStatus) {
    let state = &mut cluster.state;
    let key = JobKey::in_default("web");
    let version = Arc::clone(&state.jobs.get(&key).unwrap().current);
    state.put_deployment(Deployment {
        id: DeploymentId::at(state.applied, at),
        job: key,
        job_version: version.version,
        job_modify_index: version.job_modify_index,
        job_create_index: version.create_index,
        status,
        status_description: String::new(),
        groups: Vec::new(),
        create_index: LogIndex(state.applied.0 + u64::from(at)),
        modify_index: LogIndex(1),
        create_time: Timestamp(0),
        modify_time: Timestamp(0),
    });
}

fn left(cluster: &Cluster) -> usize {
    let of_job = cluster
        .state
        .deployments()
        .of_job(&JobKey::in_default("web"));
    of_job.count()
}

/// Applies all slices from `command` on. Each removes a bounded number of deployments.
fn in_slices(cluster: &mut Cluster, entry: Entry) {
    let mut next = Some(entry);
    while let Some(entry) = next {
        let before = left(cluster);
        let response = cluster.apply(entry.clone());
        assert!(before - left(cluster) <= IN_A_SLICE);
        let Response::Collected { deployments, .. } = &response else {
            panic!("{response:?}")
        };
        assert_eq!(*deployments as usize, before - left(cluster));
        next = Collector::next_slice(&entry, &response, cluster.now);
    }
}

#[test]
fn a_job_of_many_deployments_goes_in_slices() {
    let mut cluster = deployed_often();
    let alloc_id = cluster.live("web")[0].id;
    cluster.stop("web");
    cluster.report(alloc_id, ClientStatus::Complete);

    let jobs = jobs_by_force(cluster.now);
    in_slices(&mut cluster, jobs);

    assert!(cluster.state.jobs().is_empty());
    assert_eq!(left(&cluster), 0);
    assert_eq!(check::broken(&cluster.state), Vec::<String>::new());
}

/// The purge leaves no active deployment; the next job with the name keeps its own.
#[test]
fn a_purge_forgets_deployments_in_slices() {
    let mut cluster = deployed_often();

    purge(&mut cluster, "web");

    let purged = MANY as usize - left(&cluster);
    assert!((1..=IN_A_SLICE).contains(&purged), "{purged}");
    assert_eq!(cluster.state.deployments().active().count(), 0);
    cluster.settle();
    cluster.run(job("web").build());
    put(&mut cluster, MANY, DeploymentStatus::Successful);
    let below = Collector::below(JobKey::in_default("web"), cluster.now);
    in_slices(&mut cluster, below);
    assert_eq!(left(&cluster), 1);
    assert_eq!(check::broken(&cluster.state), Vec::<String>::new());
}

#[test]
fn invariant_check_reports_active_deployment_without_job() {
    let mut cluster = deployed_often();
    cluster.unchecked = true;
    let key = JobKey::in_default("web");
    let applied = cluster.state.applied;

    cluster.state.jobs.remove(&key, applied);

    let broken = check::broken(&cluster.state);
    let is_it = |text: &String| text.contains("is under way, and its job");
    assert!(broken.iter().any(is_it), "{broken:?}");
}
