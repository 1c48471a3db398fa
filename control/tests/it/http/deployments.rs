//! Deployments from registration to their end, moved on by operators.

use muster_domain::alloc::ClientStatus;
use serde_json::{Value, json};

use super::nodes::placed;
use super::{Answer, Client, job, until};
use crate::fixture::{self, FakeAgent, TestServer};

async fn agent(test: &TestServer) -> FakeAgent {
    FakeAgent::join(test, muster_domain::fixture::node("n1").build()).await
}

/// Waits for the first deployment of a job.
async fn deployed(client: &Client, job_id: &str) -> Value {
    let path = format!("/v1/job/{job_id}/deployment");
    until("the deployment begins", async || {
        !client.get(&path).await.json().is_null()
    })
    .await;
    client.get(&path).await.json()
}

fn id(deployment: &Value) -> &str {
    deployment["ID"].as_str().unwrap()
}

/// Says that the first allocation of `job_id` is healthy.
async fn set_healthy(client: &Client, job_id: &str, deployment: &Value) -> Answer {
    let alloc = placed(client, job_id).await;
    let path = format!("/v1/deployment/allocation-health/{}", id(deployment));
    client
        .put(&path, &json!({"HealthyAllocationIDs": [alloc["ID"]]}))
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn deployment_is_returned_by_all_endpoints() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    let _agent = agent(&test).await;
    client.register("web").await;

    let latest = deployed(&client, "web").await;
    let prefix = &id(&latest)[..8];
    let alloc = placed(&client, "web").await;

    assert_eq!(
        (&latest["JobID"], &latest["Status"]),
        (&json!("web"), &json!("running"))
    );
    assert_eq!(latest["TaskGroups"]["main"]["DesiredTotal"], 1);
    for path in [
        "/v1/deployments".to_owned(),
        format!("/v1/deployments?prefix={prefix}"),
        "/v1/job/web/deployments".to_owned(),
    ] {
        assert_eq!(
            client.get(&path).await.json()[0]["ID"],
            latest["ID"],
            "{path}"
        );
    }
    let one = client.get(&format!("/v1/deployment/{}", id(&latest))).await;
    assert_eq!(one.json()["ID"], latest["ID"]);
    assert_eq!(Value::from(one.index()), one.json()["ModifyIndex"]);
    let path = format!("/v1/deployment/allocations/{}", id(&latest));
    assert_eq!(client.get(&path).await.json()[0]["ID"], alloc["ID"]);
    assert_eq!(
        client.get("/v1/deployments?prefix=zz").await.json(),
        json!([])
    );
    let found = client
        .put(
            "/v1/search",
            &json!({"Prefix": prefix, "Context": "deployment"}),
        )
        .await;
    assert_eq!(found.json()["Matches"]["deployment"], json!([latest["ID"]]));
    test.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_without_deployments_has_none() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    let mut batch = job("once");
    batch["Job"]["Type"] = json!("batch");
    client.put("/v1/jobs", &batch).await.json();

    let latest = client.get("/v1/job/once/deployment").await;
    let all = client.get("/v1/job/once/deployments").await;

    assert_eq!(latest.json(), Value::Null);
    assert_eq!(all.json(), json!([]));
    test.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_healthy_instance_ends_its_deployment() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    let mut agent = agent(&test).await;
    client.register("web").await;
    let deployment = deployed(&client, "web").await;
    let alloc = agent.next_to_run().await;
    agent.report(alloc.alloc_id, ClientStatus::Running).await;
    let path = format!("/v1/deployment/{}", id(&deployment));
    let seen = client.get(&path).await.index();

    let waiting = tokio::spawn({
        let (client, path) = (client.clone(), path.clone());
        async move { client.get(&format!("{path}?index={seen}&wait=20s")).await }
    });
    let answer = set_healthy(&client, "web", &deployment).await.json();
    let woken = waiting.await.unwrap();

    assert_eq!(answer["EvalID"].as_str().map(str::len), Some(36));
    assert!(answer["EvalCreateIndex"].as_u64().unwrap() > 0);
    assert!(answer["DeploymentModifyIndex"].as_u64().unwrap() > seen);
    assert!(woken.index() > seen);
    until("the deployment is successful", async || {
        client.get(&path).await.json()["Status"] == "successful"
    })
    .await;
    let alloc = placed(&client, "web").await;
    assert_eq!(alloc["DeploymentStatus"]["Healthy"], true);
    let again = client
        .put(
            &path.replace("/deployment/", "/deployment/fail/"),
            &json!({}),
        )
        .await;
    assert_eq!(again.status, 400);
    assert!(
        again.text.contains("it is successful already"),
        "{}",
        again.text
    );
    test.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deployment_is_paused_resumed_and_failed() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    let _agent = agent(&test).await;
    client.register("web").await;
    let deployment = deployed(&client, "web").await;
    let id = id(&deployment);
    let status = async || {
        let read = client.get(&format!("/v1/deployment/{id}")).await.json();
        read["Status"].as_str().unwrap().to_owned()
    };
    let pause = format!("/v1/deployment/pause/{id}");

    for (pausing, wanted) in [(true, "paused"), (false, "running")] {
        let body = json!({"DeploymentID": id, "Pause": pausing});
        client.put(&pause, &body).await.json();
        assert_eq!(status().await, wanted);
    }
    // As Nomad's command line sends it.
    let fail = client
        .put(
            &format!("/v1/deployment/fail/{id}"),
            &json!({"DeploymentID": id}),
        )
        .await
        .json();

    assert_eq!(status().await, "failed");
    assert_eq!(fail["RevertedJobVersion"], Value::Null);
    let metrics = client.get("/v1/metrics?format=prometheus").await.text;
    assert!(
        metrics.contains("muster_deployments{status=\"failed\"} 1\n"),
        "{metrics}"
    );
    test.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn canaries_are_promoted_once_they_are_healthy() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    let _agent = agent(&test).await;
    client.register("web").await;
    let first = deployed(&client, "web").await;
    set_healthy(&client, "web", &first).await.json();
    let mut changed = job("web");
    changed["Job"]["TaskGroups"][0]["Tasks"][0]["Env"] = json!({"A": "2"});
    changed["Job"]["TaskGroups"][0]["Update"] = json!({"Canary": 1});
    client.put("/v1/jobs", &changed).await.json();
    let canary = async || {
        let latest = client.get("/v1/job/web/deployment").await.json();
        latest["TaskGroups"]["main"]["PlacedCanaries"][0].clone()
    };
    until("the canary is placed", async || canary().await.is_string()).await;
    let second = client.get("/v1/job/web/deployment").await.json();
    let promote = format!("/v1/deployment/promote/{}", id(&second));
    let early = client.put(&promote, &json!({"All": true})).await;
    let stranger = client.put(&promote, &json!({"Groups": ["other"]})).await;
    let health = format!("/v1/deployment/allocation-health/{}", id(&second));
    let healthy = json!({"HealthyAllocationIDs": [canary().await]});
    client.put(&health, &healthy).await.json();

    let promoted = client.put(&promote, &json!({"All": true})).await.json();

    assert_eq!(early.status, 400);
    assert!(
        early.text.contains("0 of 1 canaries healthy"),
        "{}",
        early.text
    );
    assert!(
        stranger.text.contains("no group other"),
        "{}",
        stranger.text
    );
    assert_eq!(promoted["EvalID"].as_str().map(str::len), Some(36));
    let latest = client.get("/v1/job/web/deployment").await.json();
    assert_eq!(latest["TaskGroups"]["main"]["Promoted"], true);
    test.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_deployment_requests_are_refused() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    let none = "00000000-0000-0000-0000-000000000000";

    for (path, body, status, text) in [
        (
            format!("fail/{none}"),
            json!({}),
            404,
            "deployment not found",
        ),
        (
            format!("promote/{none}"),
            json!({}),
            400,
            "name groups, or set All",
        ),
        (format!("pause/{none}"), json!({}), 400, "Pause: is missing"),
        (
            format!("pause/{none}"),
            json!({"DeploymentID": "other", "Pause": true}),
            400,
            "does not match",
        ),
        (
            format!("allocation-health/{none}"),
            json!({"HealthyAllocationIDs": ["web"]}),
            400,
            "`web` is not an allocation's id",
        ),
        (
            format!("unblock/{none}"),
            json!({}),
            501,
            "deployment unblock, for jobs of several regions, is not supported",
        ),
    ] {
        let answer = client.put(&format!("/v1/deployment/{path}"), &body).await;
        assert_eq!(answer.status, status, "{path}: {}", answer.text);
        assert!(answer.text.contains(text), "{path}: {}", answer.text);
    }
    test.server.shutdown().await;
}
