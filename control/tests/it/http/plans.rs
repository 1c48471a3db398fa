//! The plan endpoint: the effects of registering a job.

use serde_json::{Value, json};

use super::nodes::placed;
use super::{Client, job};
use crate::fixture::{self, FakeAgent};

fn wanting_diff(mut body: Value) -> Value {
    body["Diff"] = json!(true);
    body
}

#[tokio::test(flavor = "multi_thread")]
async fn job_plan_reports_changes_without_applying() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    let node = muster_domain::fixture::node("n1").build();
    let _agent = FakeAgent::join(&test, node).await;
    let before = client.get("/v1/jobs").await.index();

    let new = client
        .put("/v1/job/web/plan", &wanting_diff(job("web")))
        .await
        .json();
    let undone = client.get("/v1/job/web").await.status;
    let index = client.get("/v1/jobs").await.index();
    let registered = client.register("web").await;
    placed(&client, "web").await;
    let mut more = job("web");
    more["Job"]["TaskGroups"][0]["Count"] = json!(3);
    let scaled = client
        .put("/v1/job/web/plan", &wanting_diff(more))
        .await
        .json();

    let updates = |plan: &Value| plan["Annotations"]["DesiredTGUpdates"]["main"].clone();
    assert_eq!((undone, index), (404, before));
    assert_eq!(
        (&new["JobModifyIndex"], &new["Diff"]["Type"]),
        (&json!(0), &json!("Added"))
    );
    assert_eq!(updates(&new)["Place"], 1);
    assert_eq!(new["FailedTGAllocs"], Value::Null);
    assert_eq!(scaled["JobModifyIndex"], registered["JobModifyIndex"]);
    assert_eq!(updates(&scaled)["Place"], 2);
    let group = &scaled["Diff"]["TaskGroups"][0];
    assert_eq!(group["Updates"], json!({"create": 2, "in-place update": 1}));
    let count = &group["Fields"][0];
    assert_eq!(
        (&count["Name"], &count["Old"], &count["New"]),
        (&json!("Count"), &json!("1"), &json!("3"))
    );
    assert_eq!(count["Annotations"], json!(["forces create"]));
    test.server.shutdown().await;
}

/// A plan is made by the state that is there: no node, no room.
#[tokio::test(flavor = "multi_thread")]
async fn plan_reports_missing_room() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);

    let plan = client.put("/v1/job/web/plan", &job("web")).await.json();

    assert_eq!(plan["FailedTGAllocs"]["main"]["NodesEvaluated"], 0);
    assert_eq!(plan["CreatedEvals"][0]["Status"], "blocked");
    assert_eq!(plan["Diff"], Value::Null);
    test.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn periodic_job_plan_shows_next_launch() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    let mut nightly = job("nightly");
    nightly["Job"]["Type"] = json!("batch");
    nightly["Job"]["Periodic"] = json!({"Spec": "0 0 1 1 * 2099"});

    let plan = client.put("/v1/job/nightly/plan", &nightly).await.json();

    assert_eq!(plan["NextPeriodicLaunch"], "2099-01-01T00:00:00Z");
    assert_eq!(plan["Annotations"]["DesiredTGUpdates"], json!({}));
    test.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_refuses_unregistrable_jobs() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    client.register("web").await;
    let mut batch = job("web");
    batch["Job"]["Type"] = json!("batch");
    let mut odd = job("nightly");
    odd["Job"]["Type"] = json!("batch");
    odd["Job"]["Periodic"] = json!({"Specs": ["0 25 * * *"], "TimeZone": "Mars/Olympus"});

    let refused = client.put("/v1/job/web/plan", &batch).await;
    let named = client.put("/v1/job/other/plan", &job("web")).await;
    let faults = client.put("/v1/job/nightly/plan", &odd).await;
    let registered = client.put("/v1/jobs", &odd).await;

    assert_eq!(refused.status, 400, "{}", refused.text);
    assert_eq!(named.status, 400, "{}", named.text);
    assert_eq!(faults.text.lines().count(), 2, "{}", faults.text);
    assert!(faults.text.contains("job \"nightly\" → periodic → cron"));
    assert!(faults.text.contains("Mars/Olympus"));
    assert_eq!((registered.status, registered.text), (400, faults.text));
    test.server.shutdown().await;
}
