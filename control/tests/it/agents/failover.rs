//! The leader goes, a server goes, a majority goes.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use muster_domain::fixture::{job, node};
use muster_domain::id::LogIndex;
use muster_domain::node::{NodeSpec, NodeStatus};

use super::light::{Cluster, GRACE, LightAgent, LightAgentContext, TTL, ready};
use crate::fixture::soon;
use crate::http::{Client, tasks};

const AGENTS: usize = 12;

fn nodes() -> impl Iterator<Item = NodeSpec> {
    (0..AGENTS).map(|at| node(&format!("n{at}")).build())
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_hang_on_any_server() {
    let cluster = Cluster::found(3).await;
    let herd = LightAgentContext::new(&cluster);

    let agents: Vec<LightAgent> = nodes()
        .enumerate()
        .map(|(at, node)| LightAgent::start(&herd, node, at))
        .collect();

    for at in 0..3 {
        cluster
            .until(at, "all are ready", |state| ready(state) == AGENTS)
            .await;
        let nodes = cluster.server(at).control().nodes().clone();
        soon("its third of them hangs on it", async {
            while nodes.connected().len() != AGENTS / 3 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
    }
    soon("every agent has a lease", async {
        while agents.iter().any(|agent| agent.counted() == 0) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    cluster.shutdown().await;
}

/// The leader crashes; a third of the agents hang on it. Nobody is marked down in a time in which a silent node
/// would be.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_change_marks_no_node_down() {
    let mut cluster = Cluster::found(3).await;
    let herd = LightAgentContext::new(&cluster);
    let agents: Vec<LightAgent> = nodes()
        .enumerate()
        .map(|(at, node)| LightAgent::start(&herd, node, at))
        .collect();
    let leader = cluster.leader().await;
    let before = cluster
        .until(leader, "all are ready", |state| ready(state) == AGENTS)
        .await;

    cluster.crash(leader);

    let crashed = Instant::now();
    let new = cluster.leader().await;
    soon("every agent is served again", async {
        let served: Vec<u64> = agents.iter().map(LightAgent::counted).collect();
        while agents
            .iter()
            .zip(&served)
            .any(|(agent, before)| agent.counted() < before + 3)
            || crashed.elapsed() < TTL + GRACE + TTL
        {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    let state = cluster.server(new).control().state();
    for node in state.nodes().iter() {
        let known = before.nodes().get(&node.spec.id).unwrap();
        assert_eq!(node.status, NodeStatus::Ready);
        assert_eq!(node.modify_index, known.modify_index, "{}", node.spec.name);
    }
    cluster.shutdown().await;
}

/// A new leader marks a silent node down after a whole period of its own.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_leader_marks_a_silent_node_down() {
    let mut cluster = Cluster::found(3).await;
    let herd = LightAgentContext::new(&cluster);
    let leader = cluster.leader().await;
    let agent = LightAgent::start(&herd, node("n1").build(), leader);
    let node_id = agent.node_id;
    cluster
        .until(leader, "it is ready", |state| ready(state) == 1)
        .await;

    drop(agent);
    cluster.crash(leader);

    let begun = Instant::now();
    let new = cluster.leader().await;
    cluster
        .until(new, "it is down", |state| {
            state.nodes().get(&node_id).unwrap().status == NodeStatus::Down
        })
        .await;
    assert!(begun.elapsed() >= TTL + GRACE);
    cluster.shutdown().await;
}

/// One server of three is left. It cannot serve anybody, and says so; when another comes back, both can.
#[tokio::test(flavor = "multi_thread")]
async fn server_without_leader_disconnects_agents() {
    let mut cluster = Cluster::found(3).await;
    let herd = LightAgentContext::new(&cluster);
    let left = cluster.follower().await;
    let agent = LightAgent::start(&herd, node("n1").build(), left);
    cluster
        .until(left, "it is ready", |state| ready(state) == 1)
        .await;
    let others: Vec<usize> = (0..3).filter(|at| *at != left).collect();

    for at in &others {
        cluster.crash(*at);
    }
    soon("it is sent away", async {
        while agent.seen.sent_away.load(Ordering::Relaxed) == 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;

    cluster.start(others[0]).await;
    let counted = agent.counted();
    soon("it is served again", async {
        while agent.counted() <= counted {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    let state = cluster.server(left).control().state();
    let found = state.nodes().get(&agent.node_id).unwrap();
    assert_eq!(found.status, NodeStatus::Ready);
    cluster.shutdown().await;
}

/// A follower asks the leader for places before it passes on what it records: one entry, as at the leader.
#[tokio::test(flavor = "multi_thread")]
async fn follower_registration_places_in_same_entry() {
    let cluster = Cluster::found(3).await;
    let herd = LightAgentContext::new(&cluster);
    let follower = cluster.follower().await;
    let _agent = LightAgent::start(&herd, node("n1").build(), follower);
    let leader = cluster.leader().await;
    cluster
        .until(leader, "the node is ready", |state| ready(state) == 1)
        .await;
    let client = Client::new(cluster.server(follower));

    let job = client.register("web").await;
    let task = client.put("/v1/tasks", &tasks::body("t")).await.json();

    let state = cluster.server(follower).control().state();
    let allocs = state.allocs().iter();
    let placed: Vec<u64> = allocs.map(|alloc| alloc.create_index().0).collect();
    let recorded = [&job["JobModifyIndex"], &task["generation"]];
    let recorded = recorded.map(|index| index.as_u64().unwrap());
    assert_eq!(placed, recorded);
    cluster.shutdown().await;
}

/// Work that is placed through the leader reaches an agent on a follower, from that server's own state.
#[tokio::test(flavor = "multi_thread")]
async fn follower_sends_placed_allocs_to_its_agents() {
    let cluster = Cluster::found(3).await;
    let follower = cluster.follower().await;
    let mut agent =
        super::link::agent_on(&cluster, follower, node("n1").build(), LogIndex(0)).await;

    cluster.register(job("web")).await;

    let alloc = agent.next_to_run().await;
    agent.report_running(alloc.alloc_id).await;
    cluster
        .until(follower, "the report is written", |state| {
            let alloc = state.allocs().get(&alloc.alloc_id).unwrap();
            alloc.client_status() == muster_domain::alloc::ClientStatus::Running
        })
        .await;
    cluster.shutdown().await;
}
