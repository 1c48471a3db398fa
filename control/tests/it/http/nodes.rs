//! Nodes and what is placed on them.

use serde_json::{Value, json};

use super::{Client, until};
use crate::fixture::{self, FakeAgent, TestServer};

async fn agent(test: &TestServer) -> FakeAgent {
    FakeAgent::join(
        test,
        muster_domain::fixture::node("n1")
            .attribute("os.name", "debian")
            .build(),
    )
    .await
}

/// Waits for the first allocation of a job; its row in the list.
pub(super) async fn placed(client: &Client, job_id: &str) -> Value {
    until("the job is placed", async || {
        !client
            .get(&format!("/v1/job/{job_id}/allocations"))
            .await
            .json()
            .as_array()
            .expect("the answer is a list")
            .is_empty()
    })
    .await;
    client
        .get(&format!("/v1/job/{job_id}/allocations"))
        .await
        .json()[0]
        .clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_is_listed_and_read() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    let agent = agent(&test).await;
    let node_id = agent.node_id.to_string();

    let list = client.get("/v1/nodes?resources=true&os=true").await.json();
    let node = client.get(&format!("/v1/node/{node_id}")).await.json();

    assert_eq!(list[0]["Name"], "n1");
    assert_eq!(list[0]["NodeResources"]["Cpu"]["CpuShares"], 4_000);
    assert_eq!(list[0]["Attributes"], json!({"os.name": "debian"}));
    assert_eq!(node["Attributes"]["cpu.arch"], "amd64");
    assert_eq!(node["HTTPAddr"], "");
    assert_eq!(
        client
            .get(&format!("/v1/nodes?prefix={}", &node_id[..4]))
            .await
            .json()[0]["ID"],
        node_id.as_str()
    );
    assert_eq!(client.get("/v1/nodes?prefix=ffff").await.json(), json!([]));
    test.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn eligibility_is_set() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    let agent = agent(&test).await;
    let node_id = agent.node_id.to_string();
    let path = format!("/v1/node/{node_id}/eligibility");

    client
        .put(
            &path,
            &json!({"NodeID": node_id, "Eligibility": "ineligible"}),
        )
        .await
        .json();
    let wrong = client.put(&path, &json!({"Eligibility": "perhaps"})).await;

    let node = client.get(&format!("/v1/node/{node_id}")).await.json();
    assert_eq!(node["SchedulingEligibility"], "ineligible");
    assert_eq!(wrong.status, 400);
    test.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_is_begun_shown_and_ended() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    let agent = agent(&test).await;
    // Something that stays: the drain is not over at once.
    client.register("web").await;
    placed(&client, "web").await;
    let path = format!("/v1/node/{}", agent.node_id);
    let hour = 3_600_000_000_000_i64;

    let body = json!({"DrainSpec": {"Deadline": hour, "IgnoreSystemJobs": true}});
    let answer = client.put(&format!("{path}/drain"), &body).await.json();
    let node = client.get(&path).await.json();
    let listed = client.get("/v1/nodes").await.json();
    let metrics = client.get("/v1/metrics?format=prometheus").await.text;
    let eligible = json!({"Eligibility": "eligible"});
    let refused = client.put(&format!("{path}/eligibility"), &eligible).await;
    let end = json!({"DrainSpec": null, "MarkEligible": true});
    client.put(&format!("{path}/drain"), &end).await.json();
    let after = client.get(&path).await.json();

    assert_eq!(refused.status, 409, "{}", refused.text);
    assert!(
        refused.text.contains("muster node drain --disable"),
        "{}",
        refused.text
    );
    assert!(answer["NodeModifyIndex"].as_u64().unwrap() > 0);
    assert_eq!(
        (&node["Drain"], &listed[0]["Drain"]),
        (&json!(true), &json!(true))
    );
    assert_eq!(node["SchedulingEligibility"], "ineligible");
    let strategy = &node["DrainStrategy"];
    assert_eq!(strategy["Deadline"], hour);
    assert_eq!(strategy["IgnoreSystemJobs"], true);
    assert!(strategy["ForceDeadline"].as_str() > strategy["StartedAt"].as_str());
    assert!(metrics.contains("\nmuster_nodes_draining 1\n"), "{metrics}");
    assert_eq!(
        (&after["Drain"], &after["DrainStrategy"]),
        (&json!(false), &json!(null))
    );
    assert_eq!(after["SchedulingEligibility"], "eligible");
    test.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_allocation_is_stopped_and_replaced() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    let _agent = agent(&test).await;
    client.register("web").await;
    let first = placed(&client, "web").await;
    let path = format!("/v1/allocation/{}", first["ID"].as_str().unwrap());

    let answer = client.put(&format!("{path}/stop"), &json!({})).await.json();

    let eval_id = answer["EvalID"].as_str().unwrap();
    let eval = client
        .get(&format!("/v1/evaluation/{eval_id}"))
        .await
        .json();
    assert_eq!(eval["TriggeredBy"], "alloc-stop");
    until("the allocation is told to stop", async || {
        client.get(&path).await.json()["DesiredStatus"] == "stop"
    })
    .await;
    let stopped = client.get(&path).await.json();
    assert_eq!(stopped["DesiredTransition"]["Migrate"], true);
    let allocs = client.get("/v1/job/web/allocations").await.json();
    assert_eq!(allocs.as_array().unwrap().len(), 2);
    let again = client.put(&format!("{path}/stop"), &json!({})).await;
    assert_eq!(again.status, 400);
    assert!(again.text.contains("nothing to stop"), "{}", again.text);
    let none = format!(
        "/v1/allocation/{}/stop",
        "00000000-0000-0000-0000-000000000000"
    );
    assert_eq!(client.put(&none, &json!({})).await.status, 404);
    test.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn alloc_shows_its_placement() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    let agent = agent(&test).await;
    let node_id = agent.node_id.to_string();
    client.register("web").await;

    let stub = placed(&client, "web").await;
    let alloc_id = stub["ID"].as_str().unwrap();
    let alloc = client
        .get(&format!("/v1/allocation/{alloc_id}"))
        .await
        .json();
    let on_node = client
        .get(&format!("/v1/node/{node_id}/allocations"))
        .await
        .json();
    let eval_id = alloc["EvalID"].as_str().unwrap();

    assert_eq!(
        (&alloc["Name"], &alloc["NodeName"]),
        (&json!("web.main[0]"), &json!("n1"))
    );
    assert_eq!(alloc["Job"]["Version"], 0);
    assert_eq!(
        alloc["Metrics"]["ScoreMetaData"][0]["NodeID"],
        node_id.as_str()
    );
    assert_eq!(
        alloc["AllocatedResources"]["Tasks"]["main"]["Cpu"]["CpuShares"],
        50
    );
    assert_eq!(on_node[0]["ID"], alloc_id);
    assert_eq!(
        client
            .get(&format!("/v1/allocations?prefix={}", &alloc_id[..8]))
            .await
            .json()[0]["ID"],
        alloc_id
    );
    assert_eq!(
        client
            .get(&format!("/v1/evaluation/{eval_id}/allocations"))
            .await
            .json()[0]["ID"],
        alloc_id
    );
    test.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_away_cannot_be_asked() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    let agent = agent(&test).await;
    let node_id = agent.node_id.to_string();
    client.register("web").await;
    let stub = placed(&client, "web").await;
    let alloc_id = stub["ID"].as_str().unwrap();
    drop(agent);
    until("the agent is gone", async || {
        test.control().nodes().connected().is_empty()
    })
    .await;

    for path in [
        format!("/v1/client/stats?node_id={node_id}"),
        format!("/v1/client/allocation/{alloc_id}/stats"),
        format!("/v1/client/fs/logs/{alloc_id}?task=main&type=stdout"),
    ] {
        let answer = client.get(&path).await;
        assert_eq!(answer.status, 503, "{path}");
        assert!(
            answer.text.contains("is not connected to any server"),
            "{path}: {}",
            answer.text
        );
        assert_eq!(answer.header("retry-after"), "1");
    }
    test.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn log_request_is_validated_before_node_call() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    let _agent = agent(&test).await;
    client.register("web").await;
    let stub = placed(&client, "web").await;
    let logs = format!("/v1/client/fs/logs/{}", stub["ID"].as_str().unwrap());

    for (query, status, text) in [
        ("task=none", 404, "it has main"),
        ("task=main&type=stdin", 400, "neither stdout nor stderr"),
        ("task=main&origin=middle", 400, "neither start nor end"),
        ("task=main&offset=-5", 400, "Invalid offset"),
    ] {
        let answer = client.get(&format!("{logs}?{query}")).await;
        assert_eq!(answer.status, status, "{query}");
        assert!(answer.text.contains(text), "{query}: {}", answer.text);
    }
    test.server.shutdown().await;
}
