//! Jobs from registration to purge.

use muster_domain::fixture::node;
use serde_json::{Value, json};

use super::events::Stream;
use super::{Client, job};
use crate::fixture::{self, FakeAgent};

#[tokio::test(flavor = "multi_thread")]
async fn a_registered_job_reads_back() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);

    let answer = client.register("web").await;
    let read = client.get("/v1/job/web").await;

    assert_eq!(answer["EvalID"].as_str().map(str::len), Some(36));
    assert_eq!(answer["Warnings"], "");
    let job = read.json();
    assert_eq!(
        (&job["ID"], &job["Type"], &job["Priority"]),
        (&json!("web"), &json!("service"), &json!(50))
    );
    assert_eq!(job["TaskGroups"][0]["Tasks"][0]["Resources"]["CPU"], 50);
    assert_eq!(job["JobModifyIndex"], answer["JobModifyIndex"]);
    assert_eq!(Value::from(read.index()), job["ModifyIndex"]);
    assert_eq!(read.header("x-nomad-knownleader"), "true");
    assert_eq!(read.header("content-type"), "application/json");
    test.server.shutdown().await;
}

/// Parameters that add something to an answer.
#[tokio::test(flavor = "multi_thread")]
async fn meta_and_related_evaluations_are_added() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    let mut body = job("web");
    body["Job"]["Meta"] = json!({"team": "shop"});
    let answer = client.put("/v1/jobs", &body).await.json();
    let path = format!("/v1/evaluation/{}", answer["EvalID"].as_str().unwrap());
    // No node takes the job, so another evaluation waits for room.
    test.until("an evaluation waits", |state| {
        let mut evals = state.evals().iter();
        evals.any(|eval| eval.previous.is_some())
    })
    .await;

    let plain = client.get("/v1/jobs").await.json();
    let listed = client.get("/v1/jobs?meta=true").await.json();
    let alone = client.get(&path).await.json();
    let related = client.get(&format!("{path}?related=true")).await.json();

    assert_eq!(plain[0]["Meta"], Value::Null);
    assert_eq!(listed[0]["Meta"], json!({"team": "shop"}));
    assert_eq!(alone["RelatedEvals"], Value::Null);
    assert_eq!(related["RelatedEvals"][0]["PreviousEval"], alone["ID"]);
    assert_eq!(related["RelatedEvals"][0]["Status"], "blocked");
    test.server.shutdown().await;
}

/// The leader finds the places before the job is recorded, and one entry does both. Whoever follows events is told what it
/// would be told of two.
#[tokio::test(flavor = "multi_thread")]
async fn new_job_is_placed_in_registration_entry() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    let mut agent = FakeAgent::join(&test, node("n1").build()).await;
    test.until("the node takes work", |state| {
        state.nodes().iter().any(|node| node.takes_work())
    })
    .await;
    let before = test.control().last_log_index().0;
    let mut events = Stream::open(&client.base, &format!("index={}", before + 1));

    let answer = client.register("web").await;
    agent.next_to_run().await;
    let eval_id = answer["EvalID"].as_str().unwrap();
    let eval = client
        .get(&format!("/v1/evaluation/{eval_id}"))
        .await
        .json();

    assert_eq!(test.control().last_log_index().0, before + 1);
    assert_eq!(answer["JobModifyIndex"], before + 1);
    assert_eq!(eval["Status"], "complete");
    let batch = events.events().await;
    let kinds: Vec<(String, &str)> = batch
        .events
        .iter()
        .map(|event| (format!("{:?}", event.topic), event.event_type.as_str()))
        .collect();
    let kinds: Vec<(&str, &str)> = kinds
        .iter()
        .map(|(topic, kind)| (topic.as_str(), *kind))
        .collect();
    assert_eq!(
        kinds,
        [
            ("Job", "JobRegistered"),
            ("Evaluation", "JobRegistered"),
            ("Deployment", "PlanResult"),
            ("Allocation", "PlanResult"),
        ]
    );
    test.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_show_prefix_and_pages() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    for job_id in ["a1", "a2", "b1"] {
        client.register(job_id).await;
    }

    let ids = |list: &Value| -> Vec<String> {
        list.as_array()
            .unwrap()
            .iter()
            .map(|job| job["ID"].as_str().unwrap().to_owned())
            .collect()
    };
    let all = client.get("/v1/jobs").await.json();
    let some = client.get("/v1/jobs?prefix=a").await.json();
    let first = client.get("/v1/jobs?per_page=2").await;
    let rest = client
        .get(&format!(
            "/v1/jobs?per_page=2&next_token={}",
            first.header("x-nomad-nexttoken")
        ))
        .await;

    assert_eq!(ids(&all), ["a1", "a2", "b1"]);
    assert_eq!(ids(&some), ["a1", "a2"]);
    assert_eq!(ids(&first.json()), ["a1", "a2"]);
    assert_eq!(ids(&rest.json()), ["b1"]);
    assert_eq!(all[0]["JobSummary"]["Namespace"], "default");
    assert!(client.get("/v1/jobs?pretty").await.text.contains("\n  {"));
    test.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_about_a_job_is_found() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    let eval_id = client.register("web").await["EvalID"]
        .as_str()
        .unwrap()
        .to_owned();
    let mut changed = job("web");
    changed["Job"]["Priority"] = json!(60);
    client.put("/v1/job/web", &changed).await.json();

    let versions = client.get("/v1/job/web/versions").await.json();
    let evals = client.get("/v1/job/web/evaluations").await.json();
    let eval = client
        .get(&format!("/v1/evaluation/{eval_id}"))
        .await
        .json();
    let summary = client.get("/v1/job/web/summary").await.json();

    assert_eq!(versions["Versions"][0]["Version"], 1);
    assert_eq!(versions["Versions"][1]["Priority"], 50);
    assert!(
        evals
            .as_array()
            .unwrap()
            .iter()
            .any(|eval| eval["ID"] == eval_id.as_str())
    );
    assert_eq!(
        (&eval["JobID"], &eval["TriggeredBy"]),
        (&json!("web"), &json!("job-register"))
    );
    assert_eq!(summary["JobID"], "web");
    assert_eq!(
        client.get("/v1/job/web/allocations").await.json(),
        json!([])
    );
    assert_eq!(
        client
            .get(&format!("/v1/evaluation/{eval_id}/allocations"))
            .await
            .json(),
        json!([])
    );
    test.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_evaluated_stopped_and_purged() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    client.register("web").await;

    let evaluated = client
        .put("/v1/job/web/evaluate", &json!({"JobID": "web"}))
        .await
        .json();
    let stopped = client
        .send("DELETE", "/v1/job/web?purge=false", Vec::new())
        .await
        .json();
    let after = client.get("/v1/job/web").await.json();
    client
        .send("DELETE", "/v1/job/web?purge=true", Vec::new())
        .await
        .json();
    let gone = client.get("/v1/job/web").await;

    assert_ne!(evaluated["EvalID"], stopped["EvalID"]);
    assert_eq!(after["Stop"], true);
    assert_eq!((gone.status, gone.text.as_str()), (404, "job not found"));
    assert_eq!(
        client
            .send("DELETE", "/v1/job/web", Vec::new())
            .await
            .status,
        404
    );
    test.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_id_with_a_slash_is_one_job() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    client.register("team/web").await;

    for path in ["/v1/job/team%2Fweb", "/v1/job/team/web"] {
        assert_eq!(client.get(path).await.json()["ID"], "team/web", "{path}");
    }
    assert_eq!(
        client.get("/v1/job/team%2Fweb/summary").await.json()["JobID"],
        "team/web"
    );
    test.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_moved_is_not_overwritten() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    let mut body = job("web");
    body["EnforceIndex"] = json!(true);
    body["JobModifyIndex"] = json!(0);
    client.put("/v1/jobs", &body).await.json();

    let again = client.put("/v1/jobs", &body).await;

    assert_eq!(again.status, 409);
    assert!(
        again.text.starts_with("Enforcing job modify index 0"),
        "{}",
        again.text
    );
    test.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fields_without_effect_are_warned_of() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    let mut body = job("web");
    body["Job"]["UI"] = json!({"Description": "the web"});

    let answer = client.put("/v1/jobs", &body).await.json();

    assert!(
        answer["Warnings"]
            .as_str()
            .unwrap()
            .contains("Job.UI is stored"),
        "{answer}"
    );
    test.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_validated_without_being_registered() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    let mut wrong = job("web");
    wrong["Job"]["Periodic"] = json!({"Spec": "@hourly"});
    wrong["Job"]["Priority"] = json!(101);

    let good = client.put("/v1/validate/job", &job("web")).await.json();
    let bad = client.put("/v1/validate/job", &wrong).await.json();

    assert_eq!(
        (&good["ValidationErrors"], &good["Error"]),
        (&Value::Null, &json!(""))
    );
    assert_eq!(bad["ValidationErrors"].as_array().unwrap().len(), 2);
    assert_eq!(client.get("/v1/jobs").await.json(), json!([]));
    test.server.shutdown().await;
}
