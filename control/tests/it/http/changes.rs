//! Changes of a registered job.

use serde_json::{Value, json};

use super::nodes::placed;
use super::{Client, job, until};
use crate::fixture::{self, FakeAgent};

#[tokio::test(flavor = "multi_thread")]
async fn a_group_is_scaled() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    client.register("web").await;

    let scaled = client
        .put(
            "/v1/job/web/scale",
            &json!({
                "Count": 4,
                "Target": {"Job": "web", "Group": "main"},
                "Message": "more load",
                "Meta": {"metric": 0.9},
            }),
        )
        .await
        .json();
    let event = client
        .put(
            "/v1/job/web/scale",
            &json!({"Target": {"Group": "main"}, "Error": true, "Message": "no metrics"}),
        )
        .await
        .json();
    let status = client.get("/v1/job/web/scale").await.json();
    let unknown = client
        .put(
            "/v1/job/web/scale",
            &json!({"Count": 4, "Target": {"Group": "other"}}),
        )
        .await;
    let nameless = client.put("/v1/job/web/scale", &json!({"Count": 4})).await;

    assert_eq!(scaled["EvalID"].as_str().map(str::len), Some(36));
    let mut group = status["TaskGroups"]["main"].clone();
    let events = group["Events"].take();
    assert_eq!(
        group,
        json!({"Desired": 4, "Placed": 0, "Running": 0, "Healthy": 0, "Unhealthy": 0, "Events": null})
    );
    assert_eq!(event["EvalID"], "");
    let shown = |event: &Value| {
        let mut event = event.clone();
        assert!(event["Time"].take().as_u64() > Some(0));
        assert!(event["CreateIndex"].take().as_u64() > Some(0));
        event
    };
    assert_eq!(events.as_array().map(Vec::len), Some(2));
    assert_eq!(
        shown(&events[0]),
        json!({
            "Time": null, "Count": null, "PreviousCount": 4, "Message": "no metrics", "Error": true,
            "Meta": null, "EvalID": null, "CreateIndex": null,
        })
    );
    assert_eq!(
        shown(&events[1]),
        json!({
            "Time": null, "Count": 4, "PreviousCount": 1, "Message": "more load", "Error": false,
            "Meta": {"metric": 0.9}, "EvalID": scaled["EvalID"], "CreateIndex": null,
        })
    );
    assert_eq!(status["JobModifyIndex"], scaled["JobModifyIndex"]);
    assert_eq!((unknown.status, nameless.status), (400, 400));
    assert_eq!(client.get("/v1/job/none/scale").await.status, 404);
    test.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn job_versions_are_compared_and_reverted() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    client.register("web").await;
    let mut changed = job("web");
    changed["Job"]["Priority"] = json!(60);
    client.put("/v1/jobs", &changed).await.json();

    client
        .put(
            "/v1/job/web/stable",
            &json!({"JobID": "web", "JobVersion": 0, "Stable": true}),
        )
        .await
        .json();
    let body = |prior: u64| json!({"JobID": "web", "JobVersion": 0, "EnforcePriorVersion": prior});
    let moved = client.put("/v1/job/web/revert", &body(0)).await;
    let reverted = client.put("/v1/job/web/revert", &body(1)).await.json();
    let plain = client.get("/v1/job/web/versions").await.json();
    let with_diffs = client.get("/v1/job/web/versions?diffs=true").await.json();
    let path = "/v1/job/web/versions?diffs=true&diff_version=0";
    let from_first = client.get(path).await.json();
    for missing in ["diff_version=9", "diff_tag=none"] {
        let path = format!("/v1/job/web/versions?diffs=true&{missing}");
        assert_eq!(client.get(&path).await.status, 404, "{missing}");
    }

    assert_eq!(moved.status, 400, "{}", moved.text);
    assert_eq!(reverted["EvalID"].as_str().map(str::len), Some(36));
    assert_eq!(plain["Diffs"], Value::Null);
    let versions = with_diffs["Versions"].as_array().unwrap();
    let stable: Vec<bool> = versions.iter().map(|it| it["Stable"] == true).collect();
    let priorities: Vec<&Value> = versions.iter().map(|it| &it["Priority"]).collect();
    assert_eq!(stable, [false, false, true]);
    assert_eq!(priorities, [&json!(50), &json!(60), &json!(50)]);
    assert_eq!(with_diffs["Diffs"].as_array().unwrap().len(), 2);
    let compared = from_first["Diffs"].as_array().unwrap().iter();
    let kinds: Vec<&str> = compared.map(|it| it["Type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["None", "Edited", "None"]);
    let field = &with_diffs["Diffs"][1]["Fields"][0];
    assert_eq!(
        (&field["Name"], &field["Old"], &field["New"]),
        (&json!("Priority"), &json!("50"), &json!("60"))
    );
    assert_eq!(
        client.get("/v1/job/web").await.json()["Version"],
        versions[0]["Version"]
    );
    test.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn version_tag_can_be_set_and_removed() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    client.register("web").await;
    let path = "/v1/job/web/versions/known%20good/tag";

    let given = client
        .put(path, &json!({"Version": 0, "Description": "it works"}))
        .await
        .json();
    let tagged = client.get("/v1/job/web").await.json();
    let absent = client.put(path, &json!({"Version": 7})).await;
    let long = format!("/v1/job/web/versions/{}/tag", "n".repeat(129));
    let long = client.put(&long, &json!({})).await;
    let read = client.get(path).await;
    let taken = client.send("DELETE", path, Vec::new()).await;
    let again = client.send("DELETE", path, Vec::new()).await;

    let tag = &tagged["VersionTag"];
    assert_eq!(given["Name"], "known good");
    assert_eq!(
        (&tag["Name"], &tag["Description"]),
        (&json!("known good"), &json!("it works"))
    );
    assert_eq!(tag["TaggedTime"], given["TaggedTime"]);
    assert_eq!((absent.status, long.status, read.status), (400, 400, 405));
    assert_eq!((taken.status, again.status), (200, 400));
    assert_eq!(
        client.get("/v1/job/web").await.json()["VersionTag"],
        Value::Null
    );
    test.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_about_another_job_is_refused() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    client.register("web").await;

    let refused = client
        .put(
            "/v1/job/web/revert",
            &json!({"JobID": "db", "JobVersion": 0}),
        )
        .await;

    assert_eq!(
        (refused.status, refused.text.as_str()),
        (400, "Job ID does not match: the body names `db`")
    );
    test.server.shutdown().await;
}

/// By its policy the instance would not be replaced; somebody wants it nevertheless.
#[tokio::test(flavor = "multi_thread")]
async fn a_failed_instance_is_replaced_on_request() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    let node = muster_domain::fixture::node("n1").build();
    let mut agent = FakeAgent::join(&test, node).await;
    let mut body = job("web");
    body["Job"]["Type"] = json!("batch");
    body["Job"]["TaskGroups"][0]["ReschedulePolicy"] = json!({"Attempts": 0, "Unlimited": false});
    client.put("/v1/jobs", &body).await.json();
    let first = placed(&client, "web").await;
    let wanted = agent.next_to_run().await;
    agent
        .report(wanted.alloc_id, muster_domain::alloc::ClientStatus::Failed)
        .await;
    until("it failed", async || {
        placed(&client, "web").await["ClientStatus"] == "failed"
    })
    .await;

    client
        .put(
            "/v1/job/web/evaluate",
            &json!({"JobID": "web", "EvalOptions": {"ForceReschedule": true}}),
        )
        .await
        .json();

    until("it is replaced", async || {
        let allocs = client.get("/v1/job/web/allocations").await.json();
        allocs
            .as_array()
            .unwrap()
            .iter()
            .any(|alloc| alloc["ID"] != first["ID"])
    })
    .await;
    test.server.shutdown().await;
}
