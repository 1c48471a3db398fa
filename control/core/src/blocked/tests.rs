use muster_domain::fixture::{job, node};
use muster_domain::id::{JobKey, Timestamp};
use muster_domain::node::NodeSpec;

use super::*;
use crate::fixture::Cluster;
use crate::fsm::{self, Command};

/// A cluster without nodes where `web` waits, and its blocked evaluation.
fn waiting() -> (Cluster, Arc<Evaluation>) {
    let mut cluster = Cluster::new();
    cluster.run(
        job("web")
            .cpu_mhz(2_000)
            .constraint("${attr.zone}", "=", "a")
            .build(),
    );
    let key = JobKey::in_default("web");
    let eval = Arc::clone(cluster.state.evals().open_of_job(&key).next().unwrap());
    (cluster, eval)
}

fn spec(cpu_mhz: u64, zone: &str) -> NodeSpec {
    node("n1").cpu_mhz(cpu_mhz).attribute("zone", zone).build()
}

#[test]
fn only_a_node_that_could_help_wakes() {
    for (cpu_mhz, zone, wakes) in [(2_000, "a", true), (1_999, "a", false), (4_000, "b", false)] {
        let (mut cluster, eval) = waiting();
        let mut blocked = BlockedEvals::default();
        assert!(!blocked.block(&cluster.state, &eval, cluster.state.applied()));
        let node_id = cluster.node(spec(cpu_mhz, zone));

        let woken = blocked.handle_capacity(&cluster.state, node_id, cluster.state.applied());

        assert_eq!(!woken.is_empty(), wakes, "{cpu_mhz} {zone}");
        assert_eq!(blocked.is_empty(), wakes);
    }
}

/// The node comes between the snapshot and the block.
#[test]
fn room_that_came_free_meanwhile_is_not_missed() {
    let (mut cluster, eval) = waiting();
    let seen = cluster.state.applied();
    let mut blocked = BlockedEvals::default();
    let node_id = cluster.node(spec(2_000, "a"));
    blocked.handle_capacity(&cluster.state, node_id, cluster.state.applied());

    assert!(blocked.block(&cluster.state, &eval, seen));
    assert!(!blocked.block(&cluster.state, &eval, cluster.state.applied()));
}

#[test]
fn what_was_forgotten_is_looked_at_to_be_safe() {
    let (mut cluster, eval) = waiting();
    let mut blocked = BlockedEvals::default();
    let node_id = cluster.node(spec(100, "b"));

    for index in 10..=u64::try_from(limits::RECENT_CAPACITY_MAX).unwrap() + 10 {
        blocked.handle_capacity(&cluster.state, node_id, LogIndex(index));
    }

    assert!(blocked.block(&cluster.state, &eval, LogIndex(9)));
    assert!(!blocked.block(&cluster.state, &eval, LogIndex(10)));
}

/// A node that was drained and comes back is room as well.
#[test]
fn eligibility_is_capacity() {
    let (mut cluster, _) = waiting();
    let node_id = spec(2_000, "a").id;
    let at = Timestamp(1);
    let index = |state: &State| LogIndex(state.applied().0 + 1);
    for command in [
        Command::RegisterNode {
            spec: Box::new(spec(2_000, "a")),
            at,
        },
        Command::SetEligibility {
            node_id,
            eligibility: muster_domain::node::Eligibility::Ineligible,
            at,
        },
        Command::SetNodeStatus {
            node_id,
            status: muster_domain::node::NodeStatus::Ready,
            at,
        },
    ] {
        let next = index(&cluster.state);
        fsm::apply(&mut cluster.state, next, command);
    }

    let eligibility = muster_domain::node::Eligibility::Eligible;
    cluster.apply(Command::SetEligibility {
        node_id,
        eligibility,
        at,
    });
    cluster.settle();

    assert_eq!(cluster.live("web").len(), 1);
}
