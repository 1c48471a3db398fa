//! Writes that name themselves are applied once.

use serde_json::{Value, json};

use super::{Answer, Client, job};
use crate::fixture;

/// Registers `body` under `key`.
async fn register(client: &Client, key: &str, body: &Value) -> Answer {
    let headers = [("Idempotency-Key", key)];
    let body = body.to_string().into_bytes();
    client.send_with(&headers, "PUT", "/v1/jobs", body).await
}

/// How many evaluations there are of `web`: one for each registration that was applied.
async fn registrations(client: &Client) -> usize {
    let evals = client.get("/v1/job/web/evaluations").await.json();
    let of_users = evals.as_array().expect("a list").iter();
    of_users
        .filter(|eval| eval["TriggeredBy"] == "job-register")
        .count()
}

#[tokio::test(flavor = "multi_thread")]
async fn repeated_keyed_write_is_applied_once() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);

    let first = register(&client, "key-1", &job("web")).await.json();
    client.register("other").await;
    let second = register(&client, "key-1", &job("web")).await.json();

    for field in ["EvalID", "EvalCreateIndex", "JobModifyIndex"] {
        assert_eq!(first[field], second[field], "{field}");
    }
    assert_eq!(registrations(&client).await, 1);
    test.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_without_a_key_are_two_writes() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);

    client.register("web").await;
    client.register("web").await;

    assert_eq!(registrations(&client).await, 2);
    test.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn reused_key_for_different_write_conflicts() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    register(&client, "key-1", &job("web")).await.json();

    let other = register(&client, "key-1", &job("db")).await;
    let stopped = client
        .send_with(
            &[("Idempotency-Key", "key-1")],
            "DELETE",
            "/v1/job/web",
            Vec::new(),
        )
        .await;

    for answer in [other, stopped] {
        assert_eq!(answer.status, 409, "{}", answer.text);
        assert!(answer.text.contains("key-1"), "{}", answer.text);
    }
    assert_eq!(client.get("/v1/job/db").await.status, 404);
    test.server.shutdown().await;
}

/// A refusal is an answer too: what was refused stays refused under its key.
#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_refusal_is_the_same_refusal() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    let mut body = job("web");
    body["EnforceIndex"] = json!(true);
    body["JobModifyIndex"] = json!(77);

    let first = register(&client, "key-1", &body).await;
    let second = register(&client, "key-1", &body).await;

    assert_eq!((first.status, second.status), (409, 409));
    assert_eq!(first.text, second.text);
    test.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_survives_a_restart() {
    let test = fixture::server().await;
    let first = register(&Client::new(&test.server), "key-1", &job("web"))
        .await
        .json();
    test.control().take_snapshot().await.unwrap();

    let test = fixture::server_on(test.shutdown().await).await;
    let client = Client::new(&test.server);
    let second = register(&client, "key-1", &job("web")).await.json();

    assert_eq!(first["EvalID"], second["EvalID"]);
    test.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nomads_token_names_a_write_too() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    let path = "/v1/jobs?idempotency_token=token-1";

    let first = client.put(path, &job("web")).await.json();
    let second = client.put(path, &job("web")).await.json();

    assert_eq!(first["EvalID"], second["EvalID"]);
    test.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_is_none_is_refused() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);

    for key in ["", &"k".repeat(1_000)] {
        let answer = register(&client, key, &job("web")).await;
        assert_eq!(answer.status, 400, "{}", answer.text);
    }
    test.server.shutdown().await;
}
