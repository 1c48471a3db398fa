//! The refusals of the API and their texts.

use serde_json::json;

use super::{Client, job};
use crate::fixture::{self, FakeAgent};

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_body_is_named() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    let put = async |body: &[u8]| {
        let answer = client.send("PUT", "/v1/jobs", body.to_vec()).await;
        (answer.status, answer.text)
    };

    assert_eq!(put(b"").await, (400, "Request body is empty".to_owned()));
    let (status, text) = put(b"{\"Job\": {\n \"ID\" \"web\"}}").await;
    assert_eq!(status, 400);
    assert!(
        text.starts_with("request body: line 2, column 7: "),
        "{text}"
    );
    let (status, text) = put(br#"{"Job": {"ID": 5}}"#).await;
    assert_eq!(status, 400);
    assert!(
        text.contains("Job.ID: expected a text, got the number 5"),
        "{text}"
    );
    test.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_field_is_named_with_a_suggestion() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    let mut body = job("web");
    body["Job"]["TaskGroups"][0]["Tasks"][0]["Drivr"] = json!("native");

    let answer = client.put("/v1/jobs", &body).await;

    assert_eq!(answer.status, 400);
    assert_eq!(
        answer.text,
        "Job.TaskGroups[0].Tasks[0].Drivr: unknown field: did you mean `Driver`?"
    );
    assert_eq!(answer.header("content-type"), "text/plain; charset=utf-8");
    test.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_job_type_is_refused() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    let mut body = job("web");
    body["Job"]["Type"] = json!("daemon");

    let answer = client.put("/v1/jobs", &body).await;

    assert_eq!(answer.status, 400);
    assert!(
        answer.text.contains("daemon") && answer.text.contains("sysbatch"),
        "{}",
        answer.text
    );
    test.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_that_is_none_is_refused() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);

    let answer = client.put("/v1/jobs?namespace=ops", &job("web")).await;

    assert_eq!(answer.status, 400);
    assert!(
        answer.text.contains("nonexistent namespace \"ops\""),
        "{}",
        answer.text
    );
    assert_eq!(client.get("/v1/job/web?namespace=ops").await.status, 404);
    test.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn oversized_body_error_names_limit() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    let limit = muster_wire::limits::HTTP_BODY_BYTES_MAX;

    let answer = client.send("PUT", "/v1/jobs", vec![b' '; limit + 1]).await;

    assert_eq!(answer.status, 413);
    assert!(answer.text.contains(&limit.to_string()), "{}", answer.text);
    test.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_objects_are_not_found() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    let no_id = "00000000-0000-0000-0000-000000000000";
    let cases = [
        ("/v1/job/none".to_owned(), "job not found"),
        (format!("/v1/allocation/{no_id}"), "alloc not found"),
        ("/v1/allocation/short".to_owned(), "alloc not found"),
        (format!("/v1/evaluation/{no_id}"), "eval not found"),
        (format!("/v1/node/{no_id}"), "node not found"),
        (format!("/v1/deployment/{no_id}"), "deployment not found"),
        (format!("/v1/client/fs/logs/{no_id}"), "alloc not found"),
        (
            format!("/v1/client/stats?node_id={no_id}"),
            "node not found",
        ),
        ("/v1/namespace/ops".to_owned(), "namespace not found"),
        ("/v2/jobs".to_owned(), "this API does not have this path"),
    ];

    for (path, text) in cases {
        let answer = client.get(&path).await;
        assert_eq!((answer.status, answer.text.as_str()), (404, text), "{path}");
    }
    test.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_malformed_query_is_named() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);

    for (path, text) in [
        ("/v1/jobs?index=-1", "Invalid index"),
        ("/v1/jobs?wait=soon", "Invalid wait time"),
        ("/v1/jobs?region=mars", "no path to region `mars`"),
        ("/v1/jobs?per_page=x", "Invalid per_page"),
        ("/v1/jobs?prefix=%zz", "percent-encoded"),
        ("/v1/client/stats", "node_id is missing"),
        ("/v1/metrics?format=xml", "Invalid format"),
    ] {
        let answer = client.get(path).await;
        assert_eq!(answer.status, 400, "{path}");
        assert!(answer.text.contains(text), "{path}: {}", answer.text);
    }
    test.server.shutdown().await;
}

/// A job that asks for a variable which nodes set themselves.
fn with_env() -> serde_json::Value {
    let mut body = job("web");
    body["Job"]["TaskGroups"][0]["Tasks"][0]["Env"] =
        json!({"NOMAD_ALLOC_ID": "mine", "NOMAD_ADDR": "mine"});
    body
}

/// Requests with fields of Nomad: path, body, status, and a word of the text or of the warning.
#[expect(clippy::too_many_lines, reason = "a table")]
fn fields_of_nomad() -> Vec<(&'static str, serde_json::Value, u16, &'static str)> {
    let with = |field: &str, value: serde_json::Value| {
        let mut body = job("web");
        body[field] = value;
        body
    };
    let scale = |field: &str, value: serde_json::Value| {
        let mut body = json!({"Count": 1, "Target": {"Group": "main"}});
        body[field] = value;
        body
    };
    vec![
        (
            "/v1/jobs",
            with("EvalPriority", json!(70)),
            200,
            "EvalPriority",
        ),
        (
            "/v1/jobs",
            with("PolicyOverride", json!(true)),
            200,
            "PolicyOverride",
        ),
        ("/v1/jobs", with("EvalPriority", json!(0)), 200, ""),
        ("/v1/jobs", with_env(), 200, "NOMAD_ALLOC_ID: has no effect"),
        (
            "/v1/job/web/plan",
            with_env(),
            200,
            "NOMAD_ALLOC_ID: has no effect",
        ),
        (
            "/v1/validate/job",
            with_env(),
            200,
            "NOMAD_ALLOC_ID: has no effect",
        ),
        ("/v1/job/parent/dispatch", json!({"Priority": 70}), 200, ""),
        (
            "/v1/job/parent/dispatch",
            json!({"Priority": 101}),
            400,
            "outside 1 to 100",
        ),
        (
            "/v1/job/parent/dispatch",
            json!({"Priority": 300}),
            400,
            "outside 1 to 100",
        ),
        ("/v1/job/parent/dispatch", json!({"Priority": 0}), 200, ""),
        (
            "/v1/job/parent/dispatch",
            json!({"IdPrefixTemplate": "x"}),
            501,
            "IdPrefixTemplate",
        ),
        ("/v1/job/web/scale", scale("Message", json!("why")), 200, ""),
        ("/v1/job/web/scale", scale("Meta", json!({"a": 1})), 200, ""),
        ("/v1/job/web/scale", scale("Meta", json!([1])), 400, "Meta"),
        ("/v1/job/web/scale", scale("Count", json!(null)), 200, ""),
        (
            "/v1/job/web/scale",
            scale("Error", json!(true)),
            400,
            "Error",
        ),
        (
            "/v1/job/web/scale",
            scale("Message", json!("x".repeat(8_193))),
            400,
            "above 8192",
        ),
        (
            "/v1/job/web/evaluate",
            json!({"EvalOptions": {}, "Other": 1}),
            501,
            "Other",
        ),
        (
            "/v1/job/web/evaluate",
            json!({"EvalOptions": {"Other": 1}}),
            501,
            "Other",
        ),
        (
            "/v1/job/web/scale",
            scale("Target", json!({"Group": "main", "Task": "main"})),
            501,
            "Target.Task",
        ),
        (
            "/v1/job/web/scale",
            scale("Target", json!({"Group": "main", "Job": "other"})),
            400,
            "Target.Job does not match",
        ),
        (
            "/v1/job/web/scale",
            scale("JobModifyIndex", json!(1)),
            409,
            "was last registered at index",
        ),
        (
            "/v1/job/web/scale",
            json!({"count": -1, "target": {"Group": "main"}}),
            400,
            "Count is outside",
        ),
        (
            "/v1/job/web/scale",
            json!({"jobid": "other"}),
            400,
            "Job ID",
        ),
        (
            "/v1/job/web/revert",
            json!({"JobVersion": 0, "ConsulToken": "x"}),
            501,
            "ConsulToken",
        ),
        (
            "/v1/job/web/stable",
            json!({"JobVersion": 0, "Stable": true, "New": "x"}),
            501,
            "New",
        ),
        (
            "/v1/job/web/scale?filter=x",
            scale("Error", json!(false)),
            501,
            "filter",
        ),
    ]
}

/// Fields and parameters of Nomad that this API does not carry out, and the answer to each. None is ignored without a
/// word.
#[tokio::test(flavor = "multi_thread")]
async fn fields_are_carried_out_refused_or_warned_of() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    let mut parent = job("parent");
    parent["Job"]["Type"] = json!("batch");
    parent["Job"]["ParameterizedJob"] = json!({});
    for body in [job("web"), parent] {
        assert_eq!(client.put("/v1/jobs", &body).await.status, 200);
    }

    for (path, body, status, word) in fields_of_nomad() {
        let answer = client.put(path, &body).await;

        assert_eq!(answer.status, status, "{path} {body}: {}", answer.text);
        assert!(answer.text.contains(word), "{path} {body}: {}", answer.text);
    }

    for query in ["filter=x", "reverse=true", "eval_priority=70"] {
        assert_eq!(
            client.get(&format!("/v1/jobs?{query}")).await.status,
            501,
            "{query}"
        );
    }
    for query in ["filter=", "reverse=false", "eval_priority=0"] {
        assert_eq!(
            client.get(&format!("/v1/jobs?{query}")).await.status,
            200,
            "{query}"
        );
    }
    test.server.shutdown().await;
}

/// Requests about a node, a deployment and an allocation, as [`fields_of_nomad`] has those about jobs. `{N}`, `{D}` and
/// `{A}` stand for ids.
#[expect(clippy::too_many_lines, reason = "a table")]
fn fields_about_others() -> Vec<(&'static str, serde_json::Value, u16, &'static str)> {
    let drain = |field: &str, value: serde_json::Value| {
        let mut body = json!({"DrainSpec": {"Deadline": 0}});
        body[field] = value;
        body
    };
    vec![
        (
            "/v1/node/{N}/drain",
            drain("NodeID", json!("other")),
            400,
            "does not match",
        ),
        (
            "/v1/node/{N}/drain",
            drain("Meta", json!({"message": "why"})),
            200,
            "Meta is ignored",
        ),
        ("/v1/node/{N}/drain", drain("Meta", json!({})), 200, ""),
        (
            "/v1/node/{N}/drain",
            drain("Region", json!("global")),
            200,
            "",
        ),
        ("/v1/node/{N}/drain", drain("New", json!(1)), 400, "New"),
        (
            "/v1/node/{N}/drain",
            json!({"DrainSpec": {"Force": true}}),
            400,
            "Force",
        ),
        (
            "/v1/node/{N}/drain",
            json!({"DrainSpec": null, "MarkEligible": true}),
            200,
            "",
        ),
        (
            "/v1/node/{N}/eligibility",
            json!({"Eligibility": "eligible", "NodeID": "other"}),
            400,
            "does not match",
        ),
        (
            "/v1/node/{N}/eligibility",
            json!({"Eligibility": "eligible", "New": 1}),
            400,
            "New",
        ),
        ("/v1/node/{N}/purge", json!({}), 501, "purge"),
        (
            "/v1/deployment/pause/{D}",
            json!({"Pause": true, "DeploymentID": "other"}),
            400,
            "does not match",
        ),
        (
            "/v1/deployment/pause/{D}",
            json!({"Pause": true, "New": 1}),
            400,
            "New",
        ),
        (
            "/v1/deployment/promote/{D}",
            json!({"All": true, "PromotedAt": 1}),
            400,
            "PromotedAt",
        ),
        ("/v1/deployment/fail/{D}", json!({"New": 1}), 400, "New"),
        ("/v1/deployment/unblock/{D}", json!({}), 501, "unblock"),
        (
            "/v1/deployment/allocation-health/{D}",
            json!({"HealthyAllocationIDs": ["x"], "New": 1}),
            400,
            "New",
        ),
        (
            "/v1/allocation/{A}/stop",
            json!({"NoShutdownDelay": true}),
            400,
            "NoShutdownDelay",
        ),
        (
            "/v1/allocation/{A}/stop",
            json!({"Reschedule": true}),
            400,
            "Reschedule",
        ),
        (
            "/v1/allocation/{A}/stop",
            json!({"AllocID": "other"}),
            400,
            "does not match",
        ),
        (
            "/v1/allocation/{A}/stop?no_shutdown_delay=true",
            json!({}),
            501,
            "no_shutdown_delay",
        ),
        (
            "/v1/allocation/{A}/stop?reschedule=true",
            json!({}),
            501,
            "reschedule",
        ),
        (
            "/v1/client/allocation/{A}/signal",
            json!({"Signal": "SIGHUP", "AllocID": "other"}),
            400,
            "does not match",
        ),
        (
            "/v1/client/allocation/{A}/signal",
            json!({"Signal": "SIGHUP", "New": 1}),
            400,
            "New",
        ),
        (
            "/v1/client/allocation/{A}/restart",
            json!({"TaskName": "main"}),
            501,
            "restart",
        ),
    ]
}

/// The same promise for requests about nodes, deployments and allocations.
#[tokio::test(flavor = "multi_thread")]
async fn non_job_request_fields_are_never_ignored() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    let agent = FakeAgent::join(&test, muster_domain::fixture::node("n1").build()).await;
    let node_id = agent.node_id.to_string();
    let no_id = "00000000-0000-0000-0000-000000000000";

    for (path, body, status, word) in fields_about_others() {
        let path = path
            .replace("{N}", &node_id)
            .replace("{D}", no_id)
            .replace("{A}", no_id);
        let answer = client.put(&path, &body).await;

        assert_eq!(answer.status, status, "{path} {body}: {}", answer.text);
        assert!(answer.text.contains(word), "{path} {body}: {}", answer.text);
    }
    let stop = client
        .send("DELETE", "/v1/job/web?no_shutdown_delay=true", Vec::new())
        .await;
    assert_eq!(stop.status, 501, "{}", stop.text);
    drop(agent);
    test.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn counts_and_resources_are_preserved() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    let mut body = job("web");
    body["Job"]["TaskGroups"][0]["Count"] = json!(7);
    body["Job"]["TaskGroups"][0]["Tasks"][0]["Resources"] = json!({"CPU": 333});
    client.put("/v1/jobs", &body).await.json();

    let mut body = job("web");
    body["PreserveCounts"] = json!(true);
    body["PreserveResources"] = json!(true);
    client.put("/v1/jobs", &body).await.json();

    let plan = client.put("/v1/job/web/plan", &body).await.json();
    let group = client.get("/v1/job/web").await.json()["TaskGroups"][0].clone();
    let updates = plan["Annotations"]["DesiredTGUpdates"]["main"].clone();
    assert_eq!(updates["Place"], 7, "{updates}");
    assert_eq!(group["Count"], 7);
    assert_eq!(group["Tasks"][0]["Resources"]["CPU"], 333);
    test.server.shutdown().await;
}
