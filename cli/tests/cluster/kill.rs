//! Leaders that are killed, and a leader that is suspended.

use std::time::Instant;

use nix::sys::signal::Signal;
use serde_json::json;

use crate::client::{self, Clients};
use crate::cluster::{Cluster, SERVERS, STEADY_JOB, http, poll_until};
use crate::limits;
use crate::partition::others;
use crate::shared::TestCluster;

/// The leader is killed with SIGKILL under writes, repeatedly. Another server leads soon, and no acknowledged write is
/// lost. No node is marked lost, and no task is restarted.
#[test]
fn leaders_that_die_lose_nothing() {
    let Some(mut cluster) = TestCluster::shared("leaders_that_die_lose_nothing") else {
        return;
    };
    let allocs = cluster.steady_running();
    let clients = Clients::at_work();

    for round in 0..limits::kills() {
        let leader = cluster.leader();
        clients.wait_for_writes(10);
        let died = Instant::now();
        cluster.kill(leader);
        let others = others(leader);
        poll_until("another leader", || cluster.leader_among(&others));
        eprintln!(
            "round {round}: {} died, another led after {:?}",
            SERVERS[leader],
            died.elapsed()
        );
        clients.wait_for_writes(5);
        cluster.begin(leader);
    }

    clients.finish();
    cluster.assert_healthy(&[]);
    poll_until("all nodes to be ready", || {
        cluster.nodes_ready().then_some(())
    });
    assert_eq!(cluster.steady(), allocs);
}

/// Registers a job of two sleepers and waits until they run.
pub(crate) fn start_steady_job(cluster: &Cluster) {
    let job = json!({ "Job": {
        "ID": STEADY_JOB, "Name": STEADY_JOB, "Type": "service", "Datacenters": ["dc1"],
        "TaskGroups": [{
            "Name": "g", "Count": 2,
            "Tasks": [{
                "Name": "t", "Driver": "native",
                "Config": { "command": "/bin/sleep", "args": ["100000"] },
                "Resources": { "CPU": 50, "MemoryMB": 16 },
            }],
        }],
    } });
    let answer = http(0).put("/v1/jobs", None, &job).expect("an answer");
    assert_eq!(answer.status, 200, "{}", answer.text);
    cluster.steady_running();
}

/// A leader that is suspended until another server leads still believes that it leads when it resumes. Its consistent
/// reads never return an older state.
#[test]
fn a_leader_that_wakes_up_serves_nothing_stale() {
    let Some(cluster) = TestCluster::shared("a_leader_that_wakes_up_serves_nothing_stale") else {
        return;
    };
    let clients = Clients::at_work();
    clients.wait_for_writes(20);
    let paused_leader = cluster.leader();
    let others = others(paused_leader);

    cluster.signal(paused_leader, Signal::SIGSTOP);
    let leader = poll_until("another leader", || cluster.leader_among(&others));
    clients.wait_for_writes(20);
    let body = json!({ "Job": client::job("newest", 1) });
    let written = http(leader)
        .put("/v1/jobs", None, &body)
        .expect("the new leader answers");
    assert_eq!(written.status, 200, "{}", written.text);
    cluster.signal(paused_leader, Signal::SIGCONT);

    // The read follows at once, while the server may still believe that it leads.
    let read = poll_until("the paused leader to answer", || {
        let answer = http(paused_leader).get("/v1/job/newest?consistent")?;
        (answer.status != 503 && answer.status != 504).then_some(answer)
    });
    assert_eq!(read.status, 200, "a stale read: {}", read.text);
    clients.wait_for_writes(20);
    clients.finish();
    cluster.assert_healthy(&[]);
}
