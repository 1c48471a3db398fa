//! The cluster's network policy.

use serde_json::{Value, json};

use super::Client;
use crate::fixture;

const PATH: &str = "/v1/operator/network/policy";

fn policy(default: &str) -> Value {
    json!({
        "Egress": {
            "Default": default,
            "Rules": [{
                "Name": "names", "Action": "allow", "Protocol": "udp",
                "Peers": ["10.0.0.53"], "Ports": ["53"],
            }],
        },
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_is_written_and_read() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    let before = client.get(PATH).await.json();

    let answer = client.put(PATH, &policy("deny")).await.json();

    assert_eq!(before["ModifyIndex"], 0);
    assert_eq!(before["Policy"]["Egress"]["Default"], "");
    assert_eq!(answer["Updated"], true);
    let read = client.get(PATH).await;
    assert_eq!(Value::from(read.index()), answer["Index"]);
    let shown = read.json();
    assert_eq!(shown["ModifyIndex"], answer["Index"]);
    let egress = &shown["Policy"]["Egress"];
    assert_eq!(egress["Default"], "deny");
    assert_eq!(egress["Rules"][0]["Name"], "names");
    assert_eq!(egress["Rules"][0]["Peers"], json!(["10.0.0.53/32"]));
    test.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_that_moved_is_left_alone() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    let only_first = format!("{PATH}?cas=0");
    client.put(&only_first, &policy("deny")).await.json();

    let stale = client.put(&only_first, &policy("allow")).await.json();

    assert_eq!(stale["Updated"], false);
    let seen = client.get(PATH).await.json();
    assert_eq!(seen["Policy"]["Egress"]["Default"], "deny");
    test.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_that_is_none_is_refused() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);

    let answer = client.put(PATH, &policy("perhaps")).await;

    assert_eq!(answer.status, 400);
    let words = "Egress.Default: unknown action `perhaps`: use `allow` or `deny`";
    assert_eq!(answer.text, words);
    assert_eq!(client.get(PATH).await.json()["ModifyIndex"], 0);
    test.server.shutdown().await;
}
