use muster_domain::fixture::{job, node};
use muster_domain::job::JobSpec;
use muster_domain::node::{NodeSpec, limits_in_place};
use muster_domain::resources::CpuMhz;

use super::*;
use crate::fixture::Cluster;
use crate::fsm::{Command, JobCommand};

/// Two jobs that want the same room, both scheduled before either is committed.
fn race(first: JobSpec, second: JobSpec) -> (Cluster, Vec<ScheduleOutcome>) {
    let mut cluster = Cluster::new();
    cluster.node(node("n1").cpu_mhz(1_000).build());
    for spec in [first, second] {
        let at = cluster.now;
        cluster.apply(
            JobCommand::Register {
                spec: Box::new(spec),
                check_index: None,
                places: None,
            }
            .at(at),
        );
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
fn second_conflicting_plan_is_reevaluated() {
    let (mut cluster, outcomes) = race(
        job("a").cpu_mhz(600).build(),
        job("b").cpu_mhz(300).count(3).build(),
    );

    let mut merged = merge(&cluster.state, outcomes, Vec::new(), cluster.now);
    let response = cluster.apply(merged.command.take().unwrap());
    let settled = merged.settle(Some(&response));
    cluster.broker.settle(&cluster.state, &settled, cluster.now);

    // The valid part is committed; the rest waits for another look, with progress made.
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

/// Returns a node that changes limits of native tasks in place.
fn able_node() -> NodeSpec {
    let able = limits_in_place("native");
    node("n1").cpu_mhz(1_000).attribute(&able, "1").build()
}

/// Two tasks of 300 MHz want 600 each of a node of 1 000, and both updates are planned before either is committed.
#[test]
fn concurrent_updates_do_not_overcommit_node() {
    let native = |name: &str, mhz: u32| {
        let mut spec = job(name).cpu_mhz(mhz).build();
        "native".clone_into(&mut spec.groups[0].tasks[0].driver);
        spec
    };
    let mut cluster = Cluster::new();
    cluster.node(able_node());
    for name in ["a", "b"] {
        cluster.run(native(name, 300));
    }
    for name in ["a", "b"] {
        let at = cluster.now;
        cluster.apply(
            JobCommand::Register {
                spec: Box::new(native(name, 600)),
                check_index: None,
                places: None,
            }
            .at(at),
        );
    }
    let outcomes = [(); 2].map(|()| cluster.schedule_next().unwrap());
    // Neither plan took the other into account.
    assert!(outcomes.iter().all(|outcome| {
        let groups = &outcome.plan.groups;
        groups.len() == 1 && groups[0].in_place && groups[0].left_behind.is_empty()
    }));

    let mut merged = merge(&cluster.state, outcomes.to_vec(), Vec::new(), cluster.now);
    let response = cluster.apply(merged.command.take().unwrap());
    let settled = merged.settle(Some(&response));
    cluster.broker.settle(&cluster.state, &settled, cluster.now);

    let versions = ["a", "b"].map(|name| cluster.live(name)[0].job.version);
    assert_eq!(versions, [1, 0]);
    assert_eq!((settled.done.len(), settled.retry.len()), (1, 1));
    // The other task waits for a place, and takes no room that is not there.
    cluster.settle();
    assert_eq!(cluster.broker.blocked(), 1);
    assert_eq!(cluster.live("b")[0].job.version, 0);
    assert_eq!(
        crate::state::check::broken(&cluster.state),
        Vec::<String>::new()
    );
}

/// The same test, but the entry of the first plan is written before the second is merged: the check at apply decides.
#[test]
fn late_plan_entry_does_not_overcommit_node() {
    let mut cluster = Cluster::new();
    cluster.node(able_node());
    let mut spec = job("a").cpu_mhz(300).build();
    "native".clone_into(&mut spec.groups[0].tasks[0].driver);
    cluster.run(spec.clone());
    spec.groups[0].tasks[0].resources.cpu = CpuMhz(600);
    let at = cluster.now;
    cluster.apply(
        JobCommand::Register {
            spec: Box::new(spec),
            check_index: None,
            places: None,
        }
        .at(at),
    );
    let outcome = cluster.schedule_next().unwrap();
    let merged = merge(&cluster.state, vec![outcome], Vec::new(), cluster.now);
    cluster.run(job("late").cpu_mhz(600).build());
    assert_eq!(cluster.live("late").len(), 1);

    let response = cluster.apply(merged.command.clone().unwrap());

    let settled = merged.settle(Some(&response));
    assert_eq!(settled.retry.len(), 1);
    assert_eq!(cluster.live("a")[0].job.version, 0);
    assert_eq!(
        crate::state::check::broken(&cluster.state),
        Vec::<String>::new()
    );
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
fn plans_over_entry_limit_wait_for_next_entry() {
    let mut cluster = Cluster::new();
    cluster.node(node("n1").cpu_mhz(1_000_000).memory_mb(1_000_000).build());
    let spec = Box::new(job("a").build());
    cluster.apply(
        JobCommand::Register {
            spec,
            check_index: None,
            places: None,
        }
        .at(cluster.now),
    );
    let outcome = cluster.schedule_next().unwrap();
    let many: Vec<ScheduleOutcome> = vec![outcome; limits::PLANS_MAX + 7];

    let merged = merge(&cluster.state, many, Vec::new(), cluster.now);

    let command = merged.command.map(|entry| entry.command);
    let Some(Command::Eval(EvalCommand::ApplyPlans { plans, .. })) = command else {
        panic!("no plans")
    };
    assert_eq!((plans.len(), merged.rest.len()), (limits::PLANS_MAX, 7));
}
