//! Every route of the table, with every method.

use muster_wire::api;
use serde_json::json;

use super::{Client, until};
use crate::fixture;

/// A listed method is answered by its handler, whatever it says of ids that are none; any other is refused.
#[tokio::test(flavor = "multi_thread")]
async fn every_route_takes_its_methods_and_no_other() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);

    for route in api::routes() {
        let path = route
            .path
            .replace("{name}", "default")
            .replace(['{', '}'], "");
        // A stream has no end; one of nothing that exists does not begin.
        let path = path.replace("/stream", "/stream?topic=nothing");
        for method in ["GET", "PUT", "POST", "DELETE", "PATCH"] {
            let answer = client.send(method, &path, b"{}".to_vec()).await;
            if route.methods.contains(&method) {
                assert_ne!(answer.status, 405, "{method} {path}");
                assert_ne!(
                    answer.text, "this API does not have this path",
                    "{method} {path}"
                );
                assert!(
                    answer.status < 500,
                    "{method} {path}: {} {}",
                    answer.status,
                    answer.text
                );
            } else {
                assert_eq!(
                    (answer.status, answer.text.as_str()),
                    (405, "Invalid method"),
                    "{method} {path}"
                );
            }
        }
    }
    test.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn server_identifies_itself() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    let quic = test.server.info().quic_addr.to_string();

    let itself = client.get("/v1/agent/self").await.json();
    let members = client.get("/v1/agent/members").await.json();

    assert_eq!(itself["stats"]["nomad"]["leader"], "true");
    assert_eq!(itself["config"]["AdvertiseAddrs"]["RPC"], quic.as_str());
    assert_eq!(members["Members"][0]["Status"], "alive");
    assert_eq!(client.get("/v1/status/leader").await.json(), json!(quic));
    assert_eq!(client.get("/v1/status/peers").await.json(), json!([quic]));
    assert_eq!(client.get("/v1/agent/servers").await.json(), json!([quic]));
    assert_eq!(
        client.get("/v1/agent/health").await.json()["server"]["ok"],
        true
    );
    assert_eq!(client.get("/v1/regions").await.json(), json!(["global"]));
    assert_eq!(
        client.get("/v1/namespaces").await.json()[0]["Name"],
        "default"
    );
    assert_eq!(
        client.get("/v1/operator/raft/configuration").await.json()["Servers"][0]["Leader"],
        true
    );
    test.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_search_finds_ids_by_prefix() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    client.register("web").await;

    let found = client
        .put("/v1/search", &json!({"Prefix": "we", "Context": "all"}))
        .await
        .json();
    let wrong = client
        .put("/v1/search", &json!({"Prefix": "we", "Context": "job"}))
        .await;

    assert_eq!(found["Matches"]["jobs"], json!(["web"]));
    assert_eq!(found["Matches"]["nodes"], json!(null));
    assert_eq!(wrong.status, 400);
    test.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_count_rows() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    client.register("web").await;

    let text = client.get("/v1/metrics?format=prometheus").await.text;
    let json = client.get("/v1/metrics").await.json();

    assert!(
        text.contains("# TYPE muster_jobs gauge\nmuster_jobs{status="),
        "{text}"
    );
    let names = json["Gauges"].as_array().unwrap();
    assert!(
        names
            .iter()
            .any(|gauge| gauge["Name"] == "muster_raft_applied_index")
    );
    test.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_is_collected_on_demand() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    client.register("web").await;
    client
        .send("DELETE", "/v1/job/web", Vec::new())
        .await
        .json();
    until("the job's evaluations are over", async || {
        let evals = client.get("/v1/job/web/evaluations").await.json();
        evals
            .as_array()
            .unwrap()
            .iter()
            .all(|eval| eval["Status"] == "complete" || eval["Status"] == "canceled")
    })
    .await;

    let collected = client.put("/v1/system/gc", &json!({})).await;

    assert_eq!((collected.status, collected.text.as_str()), (200, ""));
    assert_eq!(client.get("/v1/job/web").await.status, 404);
    test.server.shutdown().await;
}
