//! Node numbers: a plan whose node number belongs to another node by now is refused.

use muster_domain::id::NodeNumber;

use super::*;
use crate::gc::Collector;
use crate::scheduler::ScheduleOutcome;

/// Returns a cluster with a waiting plan for `old`, whose number belongs to another node by now.
fn number_changed_hands() -> (Cluster, ScheduleOutcome, NodeNumber) {
    let mut cluster = Cluster::new();
    let old = cluster.node(node("old").build());
    let number = cluster.state.nodes().number(&old).unwrap();
    register(&mut cluster, job("web").count(2).build(), None);
    let outcome = cluster.schedule_next().unwrap();
    assert_eq!(outcome.plan.groups[0].placements[0].node, number);

    cluster.node_status(old, NodeStatus::Down);
    for command in Collector::forced(cluster.now) {
        cluster.apply(command);
    }
    let new = cluster.node(node("new").build());
    assert_eq!(cluster.state.nodes().number(&new), Some(number));
    (cluster, outcome, number)
}

#[test]
fn plan_for_reassigned_node_number_is_refused() {
    let (mut cluster, outcome, _) = number_changed_hands();

    let response = cluster.apply(
        EvalCommand::ApplyPlans {
            plans: vec![outcome.plan.clone()],
            evals: outcome.update.into_iter().collect(),
        }
        .at(cluster.now),
    );

    let refused = PlanOutcome {
        eval_id: outcome.plan.eval_id,
        placed: 0,
        dropped: 2,
    };
    let outcomes = vec![refused];
    assert_eq!(response, Response::PlansApplied { outcomes });
    assert!(cluster.state.allocs().is_empty());
}

#[test]
fn applier_retries_plan_with_reassigned_node_number() {
    let (cluster, outcome, _) = number_changed_hands();
    let eval_id = outcome.plan.eval_id;

    let merged = crate::applier::merge(&cluster.state, vec![outcome], Vec::new(), cluster.now);

    assert_eq!(merged.command, None);
    assert_eq!(merged.settle(None).retry, [(eval_id, false)]);
}

/// While an allocation refers to a node that is gone, no other node gets the node's number. The node has the same
/// number when it comes back.
#[test]
fn node_number_is_held_while_alloc_references_it() {
    let mut cluster = Cluster::new();
    let gone = node("gone").memory_mb(9_000).build();
    cluster.node(gone.clone());
    cluster.node(node("other").memory_mb(9_000).build());
    let sum = job("sum")
        .job_type(JobType::Batch)
        .count(2)
        .memory_mb(8_000);
    cluster.run(sum.build());
    let live = cluster.live("sum");
    let done = live.iter().find(|alloc| alloc.node_id == gone.id).unwrap();
    cluster.report(done.id, ClientStatus::Complete);
    cluster.node_status(gone.id, NodeStatus::Down);
    let number = cluster.state.nodes().number(&gone.id).unwrap();
    for command in Collector::forced(cluster.now) {
        cluster.apply(command);
    }
    assert_eq!(cluster.state.nodes().get(&gone.id), None);

    let third = cluster.node(node("third").build());

    assert_ne!(cluster.state.nodes().number(&third), Some(number));
    let kept = cluster.state.allocs().get(&done.id).unwrap();
    assert_eq!((kept.node_id(), kept.node()), (gone.id, number));
    cluster.node(gone.clone());
    assert_eq!(cluster.state.nodes().number(&gone.id), Some(number));
}

#[test]
fn a_plan_from_the_future_is_stale() {
    let mut cluster = Cluster::new();
    cluster.node(node("n1").build());
    register(&mut cluster, job("web").build(), None);
    let mut plan = cluster.schedule_next().unwrap().plan;
    plan.snapshot_index = LogIndex(cluster.state.applied().0 + 9);

    cluster.apply(
        EvalCommand::ApplyPlans {
            plans: vec![plan],
            evals: Vec::new(),
        }
        .at(cluster.now),
    );

    assert!(cluster.state.allocs().is_empty());
}
