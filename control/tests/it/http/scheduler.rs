//! Settings of the scheduler.

use serde_json::{Value, json};

use super::Client;
use crate::fixture;

const PATH: &str = "/v1/operator/scheduler/configuration";

fn settings(algorithm: &str) -> Value {
    json!({
        "SchedulerAlgorithm": algorithm,
        "PreemptionConfig": {"SystemSchedulerEnabled": true, "ServiceSchedulerEnabled": true},
        "MemoryOversubscriptionEnabled": true,
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_are_written_and_read() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    let before = client.get(PATH).await.json();

    let answer = client.put(PATH, &settings("spread")).await.json();

    assert_eq!(before["SchedulerConfig"]["SchedulerAlgorithm"], "binpack");
    let default = &before["SchedulerConfig"]["PreemptionConfig"];
    assert_eq!(default["SystemSchedulerEnabled"], true);
    assert_eq!(default["ServiceSchedulerEnabled"], false);
    assert_eq!(answer["Updated"], true);
    let read = client.get(PATH).await;
    let config = &read.json()["SchedulerConfig"];
    assert_eq!(config["SchedulerAlgorithm"], "spread");
    assert_eq!(config["PreemptionConfig"]["ServiceSchedulerEnabled"], true);
    assert_eq!(
        config["PreemptionConfig"]["SysBatchSchedulerEnabled"],
        false
    );
    assert_eq!(config["MemoryOversubscriptionEnabled"], true);
    assert_eq!(config["ModifyIndex"], answer["Index"]);
    assert_eq!(Value::from(read.index()), answer["Index"]);
    test.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_that_moved_are_left_alone() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    let first = client
        .put(&format!("{PATH}?cas=0"), &settings("spread"))
        .await
        .json();

    let stale = client
        .put(&format!("{PATH}?cas=0"), &settings("binpack"))
        .await
        .json();
    let seen = client.get(PATH).await.json();
    let fresh = client
        .put(
            &format!("{PATH}?cas={}", first["Index"]),
            &settings("binpack"),
        )
        .await
        .json();

    assert_eq!(
        (&first["Updated"], &stale["Updated"]),
        (&json!(true), &json!(false))
    );
    assert_eq!(seen["SchedulerConfig"]["SchedulerAlgorithm"], "spread");
    assert_eq!(fresh["Updated"], true);
    test.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_algorithm_that_is_none_is_refused() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);

    let answer = client.put(PATH, &settings("random")).await;

    assert_eq!(answer.status, 400);
    assert_eq!(
        answer.text,
        "SchedulerAlgorithm: unknown algorithm `random`: use `binpack` or `spread`"
    );
    test.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_are_kept_out_by_a_setting() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    let body = json!({"RejectJobRegistration": true});
    client.put(PATH, &body).await.json();

    let answer = client.put("/v1/jobs", &super::job("web")).await;

    assert_eq!(answer.status, 403);
    assert!(answer.text.contains("switched off"), "{}", answer.text);
    test.server.shutdown().await;
}
