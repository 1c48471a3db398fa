//! Statistics of nodes and allocations, through the server.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_domain::id::{AllocId, Timestamp};
use muster_wire::rpc::{AllocStats, NodeReply, NodeRequest, NodeStats, TaskStats};
use serde_json::json;

use super::Client;
use super::nodes::placed;
use crate::fixture::{self, FakeAgent};

fn node_stats(busy_ms: u64, idle_ms: u64) -> NodeReply {
    NodeReply::NodeStats(Box::new(NodeStats {
        at: Timestamp::from_millis(busy_ms + idle_ms),
        memory_total_bytes: 8 << 30,
        memory_available_bytes: 6 << 30,
        cpu_busy: Duration::from_millis(busy_ms),
        cpu_idle: Duration::from_millis(idle_ms),
        ..NodeStats::default()
    }))
}

fn alloc_stats(alloc_id: AllocId, at_ms: u64, cpu_ms: u64) -> NodeReply {
    let task = TaskStats {
        cpu: Some(Duration::from_millis(cpu_ms)),
        ..TaskStats::default()
    };
    let tasks = BTreeMap::from([("main".to_owned(), task)]);
    NodeReply::AllocStats(Box::new(AllocStats {
        alloc_id,
        at: Timestamp::from_millis(at_ms),
        tasks,
    }))
}

/// 50 ms busy and 150 ms idle between the samples: a quarter of the node's 4 000 MHz.
#[tokio::test(flavor = "multi_thread")]
async fn node_rates_come_from_two_samples() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    let agent = FakeAgent::join(&test, muster_domain::fixture::node("n1").build()).await;
    let path = format!("/v1/client/stats?node_id={}", agent.node_id);

    let asked = tokio::spawn(async move { client.get(&path).await });
    agent.answer(&[node_stats(10_000, 10_000)]).await;
    let request = agent.answer(&[node_stats(10_050, 10_150)]).await;
    let stats = asked.await.unwrap().json();

    assert_eq!(request, NodeRequest::NodeStats);
    assert_eq!(stats["CPU"][0]["Total"], json!(25.0));
    assert_eq!(stats["CPUTicksConsumed"], json!(1000.0));
    assert_eq!(stats["Memory"]["Used"], 2_u64 << 30);
    test.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn counters_take_one_sample() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    let agent = FakeAgent::join(&test, muster_domain::fixture::node("n1").build()).await;
    client.register("web").await;
    let alloc_id = placed(&client, "web").await["ID"]
        .as_str()
        .unwrap()
        .to_owned();
    let path = format!("/v1/client/allocation/{alloc_id}/stats?counters=true");

    let asked = tokio::spawn(async move { client.get(&path).await });
    agent
        .answer(&[alloc_stats(alloc_id.parse().unwrap(), 1_000, 700)])
        .await;
    let stats = asked.await.unwrap().json();

    assert_eq!(stats["Tasks"]["main"]["Muster"]["CPUNanos"], 700_000_000);
    assert_eq!(
        stats["Tasks"]["main"]["ResourceUsage"]["CpuStats"]["Measured"],
        json!([])
    );
    test.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_cannot_says_why() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    let agent = FakeAgent::join(&test, muster_domain::fixture::node("n1").build()).await;
    let path = format!("/v1/client/stats?node_id={}", agent.node_id);

    let asked = tokio::spawn(async move { client.get(&path).await });
    agent
        .answer(&[NodeReply::Failed {
            reason: "the collector stopped".to_owned(),
            not_found: false,
        }])
        .await;
    let answer = asked.await.unwrap();

    assert_eq!(
        (answer.status, answer.text.as_str()),
        (500, "the collector stopped")
    );
    test.server.shutdown().await;
}
