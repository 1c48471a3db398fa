//! One-off tasks during faults of leaders, agents and links. Each task writes its effect to a disk, at most once.

use std::collections::BTreeMap;
use std::fs;

use serde_json::{Value, json};

use crate::client::Http;
use crate::cluster::{AGENTS, Cluster, SERVERS, address, http, poll_until};
use crate::network::Direction::{Incoming, Outgoing};
use crate::partition::{cut_off, others};
use crate::shared::TestCluster;

/// Tasks of a second or two, desired one after the other.
const SHORT: usize = 30;
/// Tasks that would run for ever, on the node that is cut off.
const LONG: usize = 3;

/// The definition of a task that writes its guid to its disk and then runs `then`.
fn definition(guid: &str, then: &str, constraints: &Value) -> Value {
    let script = format!("echo {guid} >> /local/done; {then}");
    json!({ "task_guid": guid, "domain": "apps", "task_definition": {
        "rootfs": "preloaded:host", "memory_mb": 16, "disk_mb": 10, "constraints": constraints,
        // The test checks the tasks after minutes.
        "retention_ms": 3_600_000,
        "action": {"run": {"path": "/bin/sh", "args": ["-c", script], "user": "vcap"}},
    }})
}

/// Creates a task at any server. Without an answer, the request is repeated; the task is created once.
fn desire(request: &Value) {
    let servers: Vec<Http> = (0..SERVERS.len())
        .map(|at| Http::new(address(at)))
        .collect();
    let mut turn = servers.iter().cycle();
    poll_until("the task to be desired", || {
        let answer = turn.next()?.put("/v1/tasks", None, request)?;
        let is_taken = [200, 201].contains(&answer.status);
        assert!(is_taken || answer.status > 500, "{answer:?}");
        is_taken.then_some(())
    });
}

/// Tasks from the leader, by name.
fn tasks() -> Option<BTreeMap<String, Value>> {
    let answer = (0..SERVERS.len())
        .filter_map(|at| http(at).get("/v1/tasks"))
        .find(|answer| answer.status == 200)?;
    let tasks = answer.json();
    let named = tasks.as_array()?.iter();
    let named = named.map(|task| (task["task_guid"].as_str().unwrap().to_owned(), task.clone()));
    Some(named.collect())
}

fn is_completed(task: &Value) -> bool {
    task["state"] == "Completed"
}

/// The number of effects of each task, on all nodes together.
fn effects(cluster: &Cluster) -> BTreeMap<String, usize> {
    let mut effects = BTreeMap::new();
    for at in 0..AGENTS.len() {
        let allocs = fs::read_dir(cluster.agent_data(at).join("alloc")).unwrap();
        for alloc in allocs {
            let done = alloc.unwrap().path().join("task/local/done");
            // A task that never started has no file.
            for guid in fs::read_to_string(done).unwrap_or_default().lines() {
                *effects.entry(guid.to_owned()).or_default() += 1;
            }
        }
    }
    effects
}

/// Faults: a leader is killed, a leader is partitioned, an agent is killed twice, and another agent is partitioned. The
/// last one rejoins after it has stopped its tasks.
#[test]
fn one_off_tasks_never_run_twice_despite_faults() {
    let Some(mut cluster) = TestCluster::shared("one_off_tasks_never_run_twice_despite_faults")
    else {
        return;
    };
    let faults: BTreeMap<usize, fn(&mut Cluster)> = BTreeMap::from([
        (4, leader_dies as fn(&mut Cluster)),
        (8, agent_dies),
        (12, leader_is_cut_off),
        (14, agent_is_cut_off),
        (20, leader_dies),
        (22, agent_dies),
        // Earlier tasks may be placed on the node that is partitioned already.
        (24, wait_until_node_down),
    ]);

    for number in 0..SHORT {
        let seconds = format!("sleep {}", 1 + number % 2);
        desire(&definition(
            &format!("short-{number}"),
            &seconds,
            &json!([]),
        ));
        if let Some(fault) = faults.get(&number) {
            fault(&mut cluster);
        }
    }
    poll_until("the agent out of reach to stop its tasks", || {
        (stopped(&cluster) == LONG).then_some(())
    });
    cluster.network.heal();
    poll_until("both nodes to be ready", || {
        cluster.nodes_ready().then_some(())
    });
    let ended = poll_until("all tasks to end", || {
        tasks().filter(|tasks| tasks.values().all(is_completed))
    });

    let well = assert_done_once(&ended, &effects(&cluster));
    assert!(well > SHORT / 2, "{well} went well: {ended:#?}");
    cluster.assert_healthy(&[]);
}

/// The number of tasks that the partitioned agent has asked to end.
fn stopped(cluster: &Cluster) -> usize {
    let allocs = fs::read_dir(cluster.agent_data(1).join("alloc")).unwrap();
    let ended = allocs.map(|alloc| alloc.unwrap().path().join("task/local/ended"));
    ended.filter(|ended| ended.exists()).count()
}

/// Checks that each successful task took effect once, and no task more often. Returns the number of successes.
fn assert_done_once(tasks: &BTreeMap<String, Value>, effects: &BTreeMap<String, usize>) -> usize {
    assert_eq!(tasks.len(), SHORT + LONG);
    let mut well = 0;
    for (guid, task) in tasks {
        let count = effects.get(guid).copied().unwrap_or(0);
        assert!(count <= 1, "{guid} was done {count} times: {task}");
        if task["failed"] == false {
            assert_eq!(count, 1, "it ended well and did nothing: {task}");
            well += 1;
        } else {
            eprintln!("{guid}: {} (done {count} times)", task["failure_reason"]);
        }
    }
    well
}

fn leader_dies(cluster: &mut Cluster) {
    let leader = cluster.leader();
    cluster.kill(leader);
    poll_until("another leader", || cluster.leader_among(&others(leader)));
    cluster.begin(leader);
}

fn leader_is_cut_off(cluster: &mut Cluster) {
    let leader = cluster.leader();
    cut_off(cluster, leader, &[Incoming, Outgoing]);
    poll_until("another leader", || cluster.leader_among(&others(leader)));
}

/// Heals the leader's links, and cuts the links of one agent while it runs a task without end.
fn agent_is_cut_off(cluster: &mut Cluster) {
    cluster.network.heal();
    let alone = AGENTS[1];
    let there = json!([{"attribute": "${node.unique.name}", "operator": "=", "value": alone}]);
    for long in 0..LONG {
        let until_signalled = "trap 'echo > /local/ended; exit' TERM; sleep 600 & wait";
        desire(&definition(
            &format!("long-{long}"),
            until_signalled,
            &there,
        ));
    }
    poll_until("the long tasks to run", || {
        let tasks = tasks()?;
        let running = |long| tasks[&format!("long-{long}")]["phase"] == "running";
        (0..LONG).all(running).then_some(())
    });
    for at in 0..SERVERS.len() {
        for direction in [Incoming, Outgoing] {
            cluster.network.cut(alone, direction, address(at));
        }
    }
}

fn wait_until_node_down(cluster: &mut Cluster) {
    poll_until("a node to be missed", || {
        (!cluster.nodes_ready()).then_some(())
    });
}

/// Kills the agent of the node that is never partitioned.
fn agent_dies(cluster: &mut Cluster) {
    cluster.kill_agent(0);
    cluster.begin_agent(0);
}
