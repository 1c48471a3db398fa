//! Jobs made from other jobs: dispatched, and launched by time.

use serde_json::{Value, json};

use super::{Client, job, until};
use crate::fixture;

fn parameterized() -> Value {
    let mut body = job("convert");
    body["Job"]["Type"] = json!("batch");
    body["Job"]["ParameterizedJob"] = json!({"Payload": "required", "MetaRequired": ["file"]});
    body
}

fn dispatch() -> Value {
    json!({"Payload": "aGVsbG8=", "Meta": {"file": "a.png"}})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_parameterized_job_is_dispatched() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    let registered = client.put("/v1/jobs", &parameterized()).await.json();

    let dispatched = client
        .put("/v1/job/convert/dispatch", &dispatch())
        .await
        .json();
    let id = dispatched["DispatchedJobID"].as_str().unwrap();
    let child = client.get(&format!("/v1/job/{id}")).await.json();
    let list = client.get("/v1/jobs").await.json();

    assert_eq!(registered["EvalID"], "");
    let suffix = id.rsplit('-').next().unwrap();
    assert!(id.starts_with("convert/dispatch-"), "{id}");
    assert!(suffix.len() == 8 && suffix.bytes().all(|byte| byte.is_ascii_hexdigit()));
    assert_eq!(dispatched["EvalID"].as_str().map(str::len), Some(36));
    assert_eq!(dispatched["JobCreateIndex"], child["CreateIndex"]);
    assert_eq!(
        (&child["ParentID"], &child["Dispatched"], &child["Payload"]),
        (&json!("convert"), &json!(true), &json!("aGVsbG8="))
    );
    assert_eq!(child["Meta"]["file"], "a.png");
    assert_eq!(
        (&list[0]["ParameterizedJob"], &list[1]["ParentID"]),
        (&json!(true), &json!("convert"))
    );
    assert_eq!(list[0]["JobSummary"]["Children"]["Pending"], 1);
    test.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dispatch_has_a_priority_of_its_own() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    client.put("/v1/jobs", &parameterized()).await.json();

    for (priority, expected) in [(json!(0), 50), (json!(70), 70)] {
        let mut body = dispatch();
        body["Priority"] = priority;
        let dispatched = client.put("/v1/job/convert/dispatch", &body).await.json();
        let id = dispatched["DispatchedJobID"].as_str().unwrap();
        let child = client.get(&format!("/v1/job/{id}")).await.json();
        assert_eq!(child["Priority"], expected);
    }
    test.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dispatch_that_lacks_something_is_refused() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    client.put("/v1/jobs", &parameterized()).await.json();
    client.register("web").await;

    let bodies = [
        json!({"Meta": {"file": "a"}}),
        json!({"Payload": "aGVsbG8="}),
        json!({"Payload": "no base64!", "Meta": {"file": "a"}}),
        json!({"Payload": "aGVsbG8=", "Meta": {"file": "a", "other": "b"}}),
    ];
    for body in bodies {
        let refused = client.put("/v1/job/convert/dispatch", &body).await;
        assert_eq!(refused.status, 400, "{body}: {}", refused.text);
    }
    let plain = client.put("/v1/job/web/dispatch", &dispatch()).await;
    assert!(plain.text.contains("not parameterized"), "{}", plain.text);
    test.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_dispatches_once() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    client.put("/v1/jobs", &parameterized()).await.json();
    let mut named = dispatch();
    named["IdempotencyToken"] = json!("t-1");

    let mut ids = Vec::new();
    for (path, body) in [
        ("/v1/job/convert/dispatch?idempotency_token=t-1", dispatch()),
        ("/v1/job/convert/dispatch?idempotency_token=t-1", dispatch()),
        ("/v1/job/convert/dispatch", named),
        ("/v1/job/convert/dispatch?idempotency_token=t-2", dispatch()),
    ] {
        let answer = client.put(path, &body).await.json();
        assert_eq!(answer["EvalID"].as_str().map(str::len), Some(36));
        ids.push(answer["DispatchedJobID"].clone());
    }

    assert_eq!((&ids[1], &ids[2]), (&ids[0], &ids[0]));
    assert_ne!(ids[3], ids[0]);
    test.server.shutdown().await;
}

/// A client that got no answer sends the same again, under the same key.
#[tokio::test(flavor = "multi_thread")]
async fn a_retry_dispatches_once() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    client.put("/v1/jobs", &parameterized()).await.json();

    let mut ids = Vec::new();
    for key in ["k-1", "k-1", "k-2"] {
        let headers = [("Idempotency-Key", key)];
        let body = dispatch().to_string().into_bytes();
        let path = "/v1/job/convert/dispatch";
        let answer = client.send_with(&headers, "PUT", path, body).await.json();
        ids.push(answer["DispatchedJobID"].clone());
    }

    assert_eq!(ids[0], ids[1]);
    assert_ne!(ids[0], ids[2]);
    test.server.shutdown().await;
}

fn periodic(spec: &str) -> Value {
    let mut body = job("nightly");
    body["Job"]["Type"] = json!("batch");
    body["Job"]["Periodic"] = json!({"Spec": spec, "ProhibitOverlap": true});
    body
}

#[tokio::test(flavor = "multi_thread")]
async fn a_periodic_job_is_launched_on_request() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    client
        .put("/v1/jobs", &periodic("0 0 1 1 * 2099"))
        .await
        .json();

    let path = "/v1/job/nightly/periodic/force";
    let forced = client.put(path, &json!({})).await.json();
    let list = client.get("/v1/jobs").await.json();
    let again = client.put(path, &json!({})).await;

    let eval = forced["EvalID"].as_str().unwrap();
    let eval = client.get(&format!("/v1/evaluation/{eval}")).await.json();
    assert_eq!(eval["TriggeredBy"], "periodic-job");
    assert_eq!(eval["JobID"], list[1]["ID"]);
    assert_eq!(
        (&list[0]["Periodic"], &list[1]["ParentID"]),
        (&json!(true), &json!("nightly"))
    );
    // The job prohibits overlap, which counts for launches by time alone.
    assert_ne!(again.json()["EvalID"], "");
    test.server.shutdown().await;
}

/// Every second, in earnest: the leader launches the job without being asked.
#[tokio::test(flavor = "multi_thread")]
async fn a_periodic_job_is_launched_by_time() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    let mut body = periodic("* * * * * * *");
    body["Job"]["Periodic"]["ProhibitOverlap"] = json!(false);
    client.put("/v1/jobs", &body).await.json();

    until("it was launched twice", async || {
        let list = client.get("/v1/jobs?prefix=nightly/periodic-").await.json();
        list.as_array().unwrap().len() >= 2
    })
    .await;
    test.server.shutdown().await;
}
