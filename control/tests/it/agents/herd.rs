//! Many agents come at once.

use std::time::Duration;

use muster_domain::fixture::node;
use muster_domain::node::NodeStatus;

use super::light::{Cluster, LightAgent, LightAgentContext, TTL, ready};
use crate::fixture::soon;

/// Agents of the herd: more than are admitted at once.
const AGENTS: usize = 300;
/// Agents that are connected before.
const SETTLED: usize = 10;

/// All come at once to one server, twice: it is shed, nobody is lost, and those who were there are served all
/// the time.
#[tokio::test(flavor = "multi_thread")]
async fn mass_agent_connect_marks_no_node_down() {
    let cluster = Cluster::found(1).await;
    let herd = LightAgentContext::new(&cluster);
    let settled: Vec<LightAgent> = (0..SETTLED)
        .map(|at| LightAgent::start(&herd, node(&format!("settled-{at}")).build(), 0))
        .collect();
    cluster
        .until(0, "the settled agents are ready", |state| {
            ready(state) == SETTLED
        })
        .await;

    let agents: Vec<LightAgent> = (0..AGENTS)
        .map(|at| LightAgent::start(&herd, node(&format!("n{at}")).build(), 0))
        .collect();

    let state = cluster
        .until(0, "all are ready", |state| ready(state) == SETTLED + AGENTS)
        .await;
    soon("every heartbeat is counted", async {
        while agents.iter().any(|agent| agent.counted() < 2) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    assert!(
        state
            .nodes()
            .iter()
            .all(|node| node.status != NodeStatus::Down)
    );
    for agent in &settled {
        let silence = agent.seen.longest_silence();
        assert!(silence < TTL, "{silence:?}: {:?}", agent.seen);
        let sessions = agent
            .seen
            .sessions
            .load(std::sync::atomic::Ordering::Relaxed);
        assert_eq!(sessions, 1, "{:?}", agent.seen);
    }
    drop((agents, settled));
    cluster.shutdown().await;
}
