//! Jobs of more instances than one plan places.

use muster_domain::eval::EvalStatus;
use muster_domain::fixture::{job, node};
use muster_domain::id::{JobKey, Timestamp};
use muster_domain::job::JobSpec;
use muster_domain::resources::Mb;

use crate::dry_run::dry_run;
use crate::fixture::Cluster;
use crate::limits::PLACEMENTS_MAX;

/// Two groups of `count` small instances each.
fn large(count: u32) -> JobSpec {
    let mut spec = job("web").count(count).cpu_mhz(1).memory_mb(4).build();
    spec.groups[0].ephemeral_disk.size = Mb(10);
    let mut second = spec.groups[0].clone();
    second.name = "second".to_owned();
    spec.groups.push(second);
    spec
}

fn cluster(memory_mb: u64) -> Cluster {
    let mut cluster = Cluster::new();
    for name in ["n1", "n2"] {
        let mut spec = node(name).cpu_mhz(1_000_000).memory_mb(memory_mb).build();
        spec.resources.total.disk_mb = 100_000_000;
        cluster.node(spec);
    }
    cluster
}

/// An evaluation that placed all instances at once would exhaust the memory of every server, one after the other.
#[test]
fn a_large_job_is_placed_in_slices() {
    let mut cluster = cluster(10_000_000);
    let count = PLACEMENTS_MAX / 2 + 1_000;

    let plans = cluster.run(large(count));

    assert!(plans.len() > 1, "{} plans", plans.len());
    for plan in &plans {
        assert!(plan.instances() <= PLACEMENTS_MAX, "{}", plan.instances());
    }
    assert_eq!(cluster.live("web").len(), 2 * count as usize);
    let evals = cluster.state.evals().of_job(&JobKey::in_default("web"));
    assert!(
        evals
            .into_iter()
            .all(|eval| eval.status == EvalStatus::Complete)
    );
}

/// Instances without a place in the first slice wait together with those of the other slices.
#[test]
fn slices_end_where_there_is_no_room() {
    let mut cluster = cluster(400);
    let count = 400_000;

    cluster.run(large(count));

    let placed = cluster.live("web").len();
    assert!(placed > 0, "nothing was placed");
    let key = JobKey::in_default("web");
    let evals = cluster.state.evals().open_of_job(&key);
    let waiting: Vec<_> = evals
        .filter(|eval| eval.status == EvalStatus::Blocked)
        .collect();
    assert_eq!(waiting.len(), 1);
    let queued = waiting[0].queued.iter();
    let queued: usize = queued.map(|(_, count)| *count as usize).sum();
    assert_eq!(queued + placed, 2 * count as usize);
}

/// A dry run plans one slice and reports all instances.
#[test]
fn dry_run_of_large_job_plans_one_slice() {
    let cluster = cluster(10_000_000);
    let count = PLACEMENTS_MAX;

    let run = dry_run(&cluster.state, large(count), Timestamp(1)).unwrap();

    assert!(run.plan.instances() <= PLACEMENTS_MAX);
    let desired: u64 = run.desired.iter().map(|(_, it)| u64::from(it.place)).sum();
    assert_eq!(desired, 2 * u64::from(count));
}
