//! Queries that wait for a change.

use std::time::{Duration, Instant};

use super::Client;
use crate::fixture;

#[tokio::test(flavor = "multi_thread")]
async fn a_blocking_query_wakes_on_a_change() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    client.register("first").await;
    let seen = client.get("/v1/jobs").await.index();

    let waiting = tokio::spawn({
        let client = client.clone();
        async move { client.get(&format!("/v1/jobs?index={seen}&wait=20s")).await }
    });
    client.register("second").await;
    let answer = waiting.await.unwrap();

    assert!(answer.index() > seen);
    assert!(!answer.json().as_array().unwrap().is_empty());
    test.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blocking_query_times_out_unchanged() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    client.register("web").await;
    let seen = client.get("/v1/job/web").await.index();
    // An index far ahead, so that no late evaluation can end the wait.
    let ahead = seen + 1_000_000;

    let began = Instant::now();
    let answer = client
        .get(&format!("/v1/job/web?index={ahead}&wait=300ms"))
        .await;

    assert!(began.elapsed() >= Duration::from_millis(300));
    assert_eq!(answer.json()["ID"], "web");
    test.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn blocking_query_waits_for_missing_object() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    client.register("other").await;
    let missing = client.get("/v1/job/web").await;
    assert_eq!(missing.status, 404);

    let waiting = tokio::spawn({
        let client = client.clone();
        let seen = missing.index().max(client.get("/v1/jobs").await.index());
        async move {
            // The other job's own changes may wake it as well: then it asks again.
            let mut seen = seen;
            loop {
                let answer = client
                    .get(&format!("/v1/job/web?index={seen}&wait=5s"))
                    .await;
                if answer.status == 200 {
                    return answer;
                }
                seen = answer.index();
            }
        }
    });
    client.register("web").await;

    assert_eq!(waiting.await.unwrap().json()["ID"], "web");
    test.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_stops_ends_waiting_queries() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    client.register("web").await;
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { client.get("/v1/jobs?index=1000000&wait=25s").await }
    });
    // The query has arrived when a second one behind it is answered.
    client.get("/v1/regions").await.json();

    let began = Instant::now();
    test.server.shutdown().await;

    assert!(began.elapsed() < Duration::from_secs(20));
    drop(waiting.await);
}
