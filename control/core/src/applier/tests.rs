use muster_domain::fixture::{job, node};
use muster_domain::job::JobSpec;

use super::*;
use crate::fixture::Cluster;

/// Two jobs that want the same room, both scheduled before either is committed.
fn race(first: JobSpec, second: JobSpec) -> (Cluster, Vec<ScheduleOutcome>) {
    let mut cluster = Cluster::new();
    cluster.node(node("n1").cpu_mhz(1_000).build());
    for spec in [first, second] {
        let at = cluster.now;
        cluster.apply(Command::RegisterJob {
            spec: Box::new(spec),
            at,
            check_index: None,
        });
    }
    let outcomes = vec![
        cluster.schedule_next().unwrap(),
        cluster.schedule_next().unwrap(),
    ];
    (cluster, outcomes)
}

#[test]
fn two_plans_that_fit_become_one_command() {
    let (mut cluster, outcomes) = race(job("a").build(), job("b").build());

    let mut merged = merge(&cluster.state, outcomes, Vec::new(), cluster.now);
    let response = cluster.apply(merged.command.take().unwrap());
    let settled = merged.settle(Some(&response));

    assert_eq!(cluster.live("a").len() + cluster.live("b").len(), 2);
    assert_eq!((settled.done.len(), settled.retry.len()), (2, 0));
}

#[test]
fn the_second_of_two_plans_for_one_room_is_looked_at_again() {
    let (mut cluster, outcomes) = race(
        job("a").cpu_mhz(600).build(),
        job("b").cpu_mhz(300).count(3).build(),
    );

    let mut merged = merge(&cluster.state, outcomes, Vec::new(), cluster.now);
    let response = cluster.apply(merged.command.take().unwrap());
    let settled = merged.settle(Some(&response));
    cluster.broker.settle(&cluster.state, &settled, cluster.now);

    // What fits is committed; the rest waits for another look, with progress made.
    assert_eq!(cluster.live("b").len(), 1);
    assert_eq!(
        settled
            .retry
            .iter()
            .map(|(_, progress)| *progress)
            .collect::<Vec<_>>(),
        [true]
    );
    cluster.settle();
    assert_eq!(cluster.broker.blocked(), 1);
}

#[test]
fn an_evaluation_that_still_waits_costs_no_entry() {
    let mut cluster = Cluster::new();
    cluster.run(job("web").build());
    let key = muster_domain::id::JobKey::in_default("web");
    let eval = cluster.state.evals().open_of_job(&key).next().unwrap();
    let outcome = crate::scheduler::schedule(&cluster.state, eval, cluster.now);

    let merged = merge(&cluster.state, vec![outcome], Vec::new(), cluster.now);

    assert_eq!(merged.command, None);
    assert_eq!(merged.settle(None).waiting.len(), 1);
}

#[test]
fn what_exceeds_an_entry_is_left_for_the_next() {
    let mut cluster = Cluster::new();
    cluster.node(node("n1").cpu_mhz(1_000_000).memory_mb(1_000_000).build());
    let spec = Box::new(job("a").build());
    cluster.apply(Command::RegisterJob {
        spec,
        at: cluster.now,
        check_index: None,
    });
    let outcome = cluster.schedule_next().unwrap();
    let many: Vec<ScheduleOutcome> = vec![outcome; limits::PLANS_MAX + 7];

    let merged = merge(&cluster.state, many, Vec::new(), cluster.now);

    let Some(Command::ApplyPlans { plans, .. }) = merged.command else {
        panic!("no plans")
    };
    assert_eq!((plans.len(), merged.rest.len()), (limits::PLANS_MAX, 7));
}
