use muster_domain::fixture::{job, node};
use muster_domain::id::{JobKey, Timestamp};
use muster_domain::node::NodeSpec;

use super::*;
use crate::fixture::Cluster;
use crate::fsm::{self, ConfigCommand, Entry, NodeCommand};

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
fn forgotten_capacity_change_unblocks_eval() {
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
        NodeCommand::Register {
            spec: Box::new(spec(2_000, "a")),
        }
        .at(at),
        NodeCommand::SetEligibility {
            node_id,
            eligibility: muster_domain::node::Eligibility::Ineligible,
        }
        .at(at),
        NodeCommand::SetStatus {
            node_id,
            status: muster_domain::node::NodeStatus::Ready,
        }
        .at(at),
    ] {
        let next = index(&cluster.state);
        fsm::apply(&mut cluster.state, next, command);
    }

    let eligibility = muster_domain::node::Eligibility::Eligible;
    cluster.apply(
        NodeCommand::SetEligibility {
            node_id,
            eligibility,
        }
        .at(at),
    );
    cluster.settle();

    assert_eq!(cluster.live("web").len(), 1);
}

/// Twenty tasks of one domain wait, then one of another domain: it is placed second, and not last.
#[test]
fn domains_that_wait_take_turns() {
    let mut cluster = Cluster::new();
    for number in 0..20 {
        desire(&mut cluster, &format!("many-{number}"), "many");
    }
    cluster.settle();
    desire(&mut cluster, "few-0", "few");
    cluster.settle();
    assert_eq!(placed(&cluster), [""; 0]);

    // A task takes 100 MHz.
    cluster.node(node("n0").cpu_mhz(300).build());
    cluster.settle();

    assert_eq!(placed(&cluster), ["few-0", "many-0", "many-1"]);
}

fn desire(cluster: &mut Cluster, guid: &str, domain: &str) {
    let tasks = vec![fsm::NewOneOff {
        guid: guid.to_owned(),
        domain: domain.to_owned(),
        definition: muster_domain::fixture::definition(),
    }];
    let at = cluster.now;
    cluster.apply(Entry::desire_one_offs(tasks, at));
}

/// Tasks of three sizes wait for a node with room for the smallest: it is found behind the others, however often the
/// node is offered.
#[test]
fn smaller_blocked_eval_is_found_behind_larger() {
    let mut cluster = Cluster::new();
    for (guid, memory_mb) in [("large", 4_000), ("larger", 5_000), ("small", 64)] {
        let tasks = vec![fsm::NewOneOff {
            guid: guid.to_owned(),
            domain: "d".to_owned(),
            definition: muster_domain::one_off::Definition {
                memory_mb,
                ..muster_domain::fixture::definition()
            },
        }];
        let at = cluster.now;
        cluster.apply(Entry::desire_one_offs(tasks, at));
    }
    cluster.settle();
    cluster.node(node("n0").memory_mb(1_000).build());
    cluster.settle();
    assert_eq!(placed(&cluster), ["small"]);

    cluster.node(node("n1").memory_mb(4_500).build());
    cluster.settle();
    assert_eq!(placed(&cluster), ["large", "small"]);
}

/// On a full node a task evicts less important work, if that is allowed.
#[test]
fn preemption_setting_decides_unblocking_on_full_node() {
    for allowed in [false, true] {
        let mut cluster = Cluster::new();
        cluster.run(job("low").priority(1).cpu_mhz(1_000).build());
        cluster.node(node("n0").cpu_mhz(1_000).build());
        cluster.settle();
        let node_id = cluster.live("low")[0].node_id;
        desire(&mut cluster, "task", "d");
        cluster.settle();
        let mut config = muster_domain::scheduling::SchedulerConfig::default();
        config.preemption.batch = allowed;
        let at = cluster.now;
        cluster.apply(
            ConfigCommand::SetScheduler {
                config,
                check_index: None,
            }
            .at(at),
        );
        let key = cluster.state.one_offs().iter().next().unwrap().job_key();
        let eval = Arc::clone(cluster.state.evals().open_of_job(&key).next().unwrap());

        let mut blocked = BlockedEvals::default();
        blocked.block(&cluster.state, &eval, cluster.state.applied());
        let woken = blocked.handle_capacity(&cluster.state, node_id, cluster.state.applied());

        assert_eq!(woken.len(), usize::from(allowed), "{allowed}");
    }
}

/// Returns the tasks that have a node, by name.
fn placed(cluster: &Cluster) -> Vec<&str> {
    let rows = cluster.state.one_offs().iter();
    let placed = rows.filter(|row| row.alloc_id.is_some());
    placed.map(|row| row.guid.as_str()).collect()
}

/// A queue of jobs of 400 MHz each, the oldest first, on a cluster without nodes.
fn queue(count: usize) -> (Cluster, Vec<Arc<Evaluation>>) {
    let mut cluster = Cluster::new();
    for number in 0..count {
        cluster.run(job(&format!("job-{number}")).cpu_mhz(400).build());
    }
    let evals = (0..count).map(|number| {
        let key = JobKey::in_default(format!("job-{number}"));
        Arc::clone(cluster.state.evals().open_of_job(&key).next().unwrap())
    });
    let evals = evals.collect();
    (cluster, evals)
}

/// A node with room for two wakes two of five; the room that they leave goes to the next ones.
#[test]
fn capacity_unblocks_only_as_many_as_fit() {
    let (mut cluster, evals) = queue(5);
    let mut blocked = BlockedEvals::default();
    for eval in &evals {
        blocked.block(&cluster.state, eval, cluster.state.applied());
    }
    let node_id = cluster.node(spec(1_000, "a"));
    let state = &cluster.state;
    let ids =
        |evals: Vec<Arc<Evaluation>>| -> Vec<EvalId> { evals.iter().map(|eval| eval.id).collect() };
    let all = ids(evals);

    let first = ids(blocked.handle_capacity(state, node_id, state.applied()));
    assert_eq!(first, all[..2]);
    blocked.release(&first[0]);
    assert_eq!(ids(blocked.continue_offers(state)), []);
    // Neither evaluation took any of the room.
    blocked.release(&first[1]);
    let second = ids(blocked.continue_offers(state));
    assert_eq!(second, all[2..4]);
    for eval_id in &second {
        blocked.release(eval_id);
    }
    assert_eq!(ids(blocked.continue_offers(state)), all[4..]);
    blocked.release(&all[4]);
    assert_eq!(ids(blocked.continue_offers(state)), []);
    assert!(blocked.is_empty());
}

/// While two evaluations are processed, the node gets more room: only room that is not pending for them is offered.
#[test]
fn added_capacity_excludes_reserved_part() {
    let (mut cluster, evals) = queue(4);
    let mut blocked = BlockedEvals::default();
    for eval in &evals {
        blocked.block(&cluster.state, eval, cluster.state.applied());
    }
    let node_id = cluster.node(spec(1_000, "a"));
    let woken = blocked.handle_capacity(&cluster.state, node_id, LogIndex(1));
    assert_eq!(woken.len(), 2);

    let none = blocked.handle_capacity(&cluster.state, node_id, LogIndex(2));
    cluster.node(spec(1_200, "a"));
    let one = blocked.handle_capacity(&cluster.state, node_id, LogIndex(3));

    assert_eq!((none.len(), one.len()), (0, 1));
    assert_eq!(one[0].id, evals[2].id);
}

/// However the room is divided over time, all evaluations that fit are placed, the oldest first.
#[test]
fn long_blocked_queue_is_served_in_order() {
    let (mut cluster, _) = queue(50);
    let placed = |cluster: &Cluster| -> Vec<usize> {
        let live = (0..50).filter(|number| !cluster.live(&format!("job-{number}")).is_empty());
        live.collect()
    };
    cluster.node(node("n0").cpu_mhz(4_000).build());
    let before = cluster.state.applied().0;
    cluster.settle();
    assert_eq!(placed(&cluster), (0..10).collect::<Vec<_>>());
    // There are ten plans and their updates, not fifty evaluations.
    assert!(cluster.state.applied().0 - before < 30);
    let done = cluster.live("job-3")[0].id;
    cluster.stop("job-3");
    cluster.report(done, muster_domain::alloc::ClientStatus::Complete);
    cluster.settle();

    assert!(placed(&cluster).contains(&10));
    assert_eq!(placed(&cluster).len(), 10);
}
