//! Any server answers: reads, writes, waits and streams at followers, through elections and without a quorum.

use serde_json::{Value, json};

use super::events::Stream;
use super::trio::{NAMES, ThreeServers};
use super::{job, until};

#[tokio::test(flavor = "multi_thread")]
async fn follower_write_is_readable_at_every_server() {
    let trio = ThreeServers::start().await;
    let follower = trio.follower().await;
    let leader = trio.settled().await;

    let written = trio.client(follower).put("/v1/jobs", &job("web")).await;

    assert_eq!(written.status, 200, "{}", written.text);
    assert!(
        written.header("x-muster-leader").starts_with(NAMES[leader]),
        "{:?}",
        written.headers
    );
    for at in trio.running() {
        for path in ["/v1/job/web", "/v1/job/web?consistent"] {
            let read = trio.client(at).get(path).await;
            assert_eq!(read.json()["ID"], "web", "{path} at {}", NAMES[at]);
            assert_eq!(read.header("x-nomad-knownleader"), "true");
        }
    }
    // Its own writes are never stale where they were made.
    let stale = trio.client(follower).get("/v1/job/web?stale").await;
    assert_eq!(stale.json()["ID"], "web");
    trio.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_server_names_the_leader() {
    let trio = ThreeServers::start().await;
    trio.all_vote().await;
    let leader = trio.settled().await;
    let address = trio.server(leader).info().quic_addr.to_string();

    for at in trio.running() {
        let client = trio.client(at);
        assert_eq!(client.get("/v1/status/leader").await.json(), json!(address));
        let peers = client.get("/v1/status/peers").await.json();
        assert_eq!(peers.as_array().unwrap().len(), 3);
        let members = client.get("/v1/agent/members").await.json();
        assert_eq!(members["Members"].as_array().unwrap().len(), 3);
        let servers = client.get("/v1/operator/raft/configuration").await.json();
        let leads: Vec<&str> = servers["Servers"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|server| server["Leader"] == true)
            .map(|server| server["Node"].as_str().unwrap())
            .collect();
        assert_eq!(leads, [NAMES[leader]]);
    }
    trio.shutdown().await;
}

/// An answer of a follower is at least as new as the answers before it, also after a change of leader.
#[tokio::test(flavor = "multi_thread")]
async fn blocking_query_survives_leader_change() {
    let mut trio = ThreeServers::start().await;
    trio.all_vote().await;
    let leader = trio.settled().await;
    let follower = trio.follower().await;
    trio.client(leader).register("first").await;
    let client = trio.client(follower);
    let seen = client.get("/v1/jobs").await.index();

    let waiting = tokio::spawn({
        let client = client.clone();
        async move { client.get(&format!("/v1/jobs?index={seen}&wait=25s")).await }
    });
    trio.crash(leader);
    trio.settled().await;
    client.register("second").await;
    let answer = waiting.await.unwrap();

    assert!(answer.index() > seen);
    let listed = client.get("/v1/jobs").await;
    assert_eq!(listed.json().as_array().unwrap().len(), 2);
    assert!(listed.index() >= answer.index());
    trio.shutdown().await;
}

/// Freshness is in the log: what one server was told, all tell, and the next leader too.
#[tokio::test(flavor = "multi_thread")]
async fn domain_freshness_is_replicated_across_failover() {
    let mut trio = ThreeServers::start().await;
    trio.all_vote().await;
    let leader = trio.settled().await;
    let follower = trio.follower().await;
    let fresh = json!({"domain": "apps", "ttl": 100_000});
    let answer = trio.client(follower).put("/v1/domains", &fresh).await;
    assert_eq!(answer.status, 200, "{}", answer.text);

    trio.crash(leader);
    trio.settled().await;

    for at in trio.running() {
        let listed = trio.client(at).get("/v1/domains?consistent").await.json();
        assert_eq!(
            (&listed[0]["domain"], &listed[0]["fresh"]),
            (&json!("apps"), &json!(true)),
            "{at}"
        );
    }
    trio.shutdown().await;
}

/// One of three cannot know whether it is behind: it says so, and when to come back.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_quorum_only_stale_reads_are_answered() {
    let mut trio = ThreeServers::start().await;
    trio.all_vote().await;
    trio.client(0).register("web").await;
    let last = trio.follower().await;
    trio.client(last).get("/v1/job/web").await.json();
    for at in trio.running() {
        if at != last {
            trio.stop(at).await;
        }
    }
    let client = trio.client(last);
    // A leader's word holds for a moment after it was last confirmed.
    until("nobody's word holds any more", async || {
        client.get("/v1/job/web").await.status == 503
    })
    .await;

    // Each request waits for a leader for seconds, so all wait at once.
    let other = job("other");
    let (check, health, servers, stale, read, consistent, written) = tokio::join!(
        client.get("/v1/operator/check"),
        client.get("/v1/operator/autopilot/health"),
        client.get("/v1/operator/raft/configuration?stale"),
        client.get("/v1/job/web?stale"),
        client.get("/v1/job/web"),
        client.get("/v1/job/web?consistent"),
        client.put("/v1/jobs", &other),
    );
    let check = check.json();

    assert_eq!(check["Healthy"], false, "{check}");
    let fault = check["Faults"][0].as_str().unwrap();
    assert!(fault.starts_with("no leader: "), "{check}");
    let faults = check["Faults"].to_string();
    assert!(faults.contains("1 of 3 servers answer"), "{check}");
    assert_eq!(health.status, 429, "{}", health.text);
    let health: Value = serde_json::from_str(&health.text).unwrap();
    assert_eq!(
        (&health["Healthy"], &health["Leader"]),
        (&json!(false), &json!(""))
    );
    let reasons = health["Servers"].as_array().unwrap().iter();
    let silent = reasons.filter(|server| server["Reason"] == "it does not answer");
    assert_eq!(silent.count(), 2, "{health}");
    let servers = servers.json()["Servers"].clone();
    let leads = |server: &Value| server["Leader"] == true;
    assert!(!servers.as_array().unwrap().iter().any(leads), "{servers}");
    assert_eq!(stale.json()["ID"], "web");
    for refused in [read, consistent] {
        assert_eq!(refused.status, 503, "{}", refused.text);
        assert!(!refused.header("retry-after").is_empty());
        assert!(
            refused.text.contains("half of the servers"),
            "{}",
            refused.text
        );
    }
    // The server that was the last leader has the write in its log and cannot know whether it will be committed.
    assert!([503, 504].contains(&written.status), "{}", written.text);
    trio.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn idempotency_key_holds_across_failover() {
    let mut trio = ThreeServers::start().await;
    trio.all_vote().await;
    let leader = trio.settled().await;
    let headers = [("Idempotency-Key", "key-1")];
    let body = job("web").to_string().into_bytes();
    let first = trio
        .client(leader)
        .send_with(&headers, "PUT", "/v1/jobs", body.clone())
        .await
        .json();

    trio.crash(leader);
    trio.settled().await;
    for at in trio.running() {
        let again = trio
            .client(at)
            .send_with(&headers, "PUT", "/v1/jobs", body.clone())
            .await
            .json();
        assert_eq!(again["EvalID"], first["EvalID"]);
    }
    trio.shutdown().await;
}

/// The same lines at the same indexes, whichever server is asked.
#[tokio::test(flavor = "multi_thread")]
async fn events_are_the_same_at_every_server() {
    let trio = ThreeServers::start().await;
    trio.all_vote().await;
    let mut last = 0;
    for number in 0..20 {
        let at = number % 3;
        let answer = trio.client(at).register(&format!("job-{number}")).await;
        last = answer["JobModifyIndex"].as_u64().unwrap();
    }

    let mut streams = Vec::new();
    for at in trio.running() {
        let base = trio.client(at).base;
        let mut seen = Stream::open(&base, "index=1")
            .until(muster_domain::id::LogIndex(last))
            .await;
        seen.retain(|events| events.index <= last);
        streams.push(seen);
    }

    assert!(streams[0].len() >= 20);
    assert_eq!(streams[0], streams[1]);
    assert_eq!(streams[0], streams[2]);
    trio.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn all_servers_have_the_same_state() {
    let trio = ThreeServers::start().await;
    trio.all_vote().await;
    for number in 0..10 {
        trio.client(number % 3)
            .register(&format!("job-{number}"))
            .await;
    }

    for at in trio.running() {
        let path = "/v1/operator/check?deep=true";
        let check = trio.client(at).get(path).await.json();
        assert_eq!(check["Agree"], true, "{check}");
        assert_eq!(check["Healthy"], true, "{check}");
        assert_eq!(check["Deep"]["Broken"], json!([]), "{check}");
        let servers = check["Servers"].as_array().unwrap();
        assert_eq!(servers.len(), 3);
        assert!(
            servers
                .iter()
                .all(|server| server["Hash"] == servers[0]["Hash"])
        );
    }
    trio.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_server_is_fault_and_event() {
    let mut trio = ThreeServers::start().await;
    trio.all_vote().await;
    let leader = trio.settled().await;
    let lost = trio.follower().await;
    let client = trio.client(leader);
    let mut stream = Stream::open(&client.base, "topic=Server&index=1");

    trio.crash(lost);

    let change = next_health(&mut stream, NAMES[lost]).await;
    assert_eq!(change["Healthy"], false, "{change}");
    let check = client.get("/v1/operator/check").await.json();
    assert_eq!(check["Healthy"], false, "{check}");
    let faults = check["Faults"].as_array().unwrap();
    let name = format!("server {}: ", NAMES[lost]);
    let of_lost = |fault: &Value| fault.as_str().unwrap().starts_with(&name);
    assert!(faults.iter().any(of_lost), "{check}");
    trio.shutdown().await;
}

/// The next change of the health of the server `name`. A busy machine may show others to be silent for a moment.
async fn next_health(stream: &mut Stream, name: &str) -> Value {
    loop {
        let event = stream.events().await.events.remove(0);
        assert_eq!(event.event_type, "ServerHealthChanged");
        let change = event.payload["Server"].clone();
        if change["Name"] == name {
            return change;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn next_leader_notes_the_recovery_of_a_server() {
    let mut trio = ThreeServers::start().await;
    trio.all_vote().await;
    let leader = trio.settled().await;
    let lost = trio.follower().await;
    let next = 3 - leader - lost;
    let mut stream = Stream::open(&trio.client(next).base, "topic=Server&index=1");
    trio.crash(lost);
    let change = next_health(&mut stream, NAMES[lost]).await;
    assert_eq!(change["Healthy"], false, "{change}");
    let id = trio.server(next).info().server_id;
    let path = format!("/v1/operator/raft/transfer-leadership?id={id}");
    trio.client(leader).put(&path, &json!({})).await.json();
    assert_eq!(trio.settled().await, next);

    trio.begin(lost).await;

    let change = next_health(&mut stream, NAMES[lost]).await;
    assert_eq!(change["Healthy"], true, "{change}");
    trio.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn leadership_goes_where_it_is_sent() {
    let trio = ThreeServers::start().await;
    trio.all_vote().await;
    let follower = trio.follower().await;
    let id = trio.server(follower).info().server_id;

    let answer = trio
        .client(follower)
        .put(
            &format!("/v1/operator/raft/transfer-leadership?id={id}"),
            &json!({}),
        )
        .await
        .json();

    assert_eq!(answer["To"]["Name"], NAMES[follower]);
    assert_eq!(trio.settled().await, follower);
    trio.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn health_names_the_server_that_is_gone() {
    let mut trio = ThreeServers::start().await;
    trio.all_vote().await;
    let gone = trio.follower().await;
    let client = trio.client(trio.settled().await);
    until("all are well", async || {
        client.get("/v1/operator/autopilot/health").await.status == 200
    })
    .await;
    assert_eq!(
        client.get("/v1/operator/autopilot/health").await.json()["FailureTolerance"],
        1
    );

    trio.crash(gone);

    until("it is missed", async || {
        client.get("/v1/operator/autopilot/health").await.status == 429
    })
    .await;
    let answer = client.get("/v1/operator/autopilot/health").await;
    let health: Value = serde_json::from_str(&answer.text).unwrap();
    let ill: Vec<&str> = health["Servers"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|server| server["Healthy"] == false)
        .map(|server| server["Name"].as_str().unwrap())
        .collect();
    assert_eq!(ill, [NAMES[gone]]);
    assert_eq!(health["FailureTolerance"], 0);
    trio.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removed_server_is_none_any_more() {
    let mut trio = ThreeServers::start().await;
    trio.all_vote().await;
    let gone = trio.follower().await;
    let id = trio.server(gone).info().server_id;
    let leader = trio.settled().await;
    trio.crash(gone);
    let client = trio.client(leader);

    let removed = client
        .send(
            "DELETE",
            &format!("/v1/operator/raft/peer?id={id}"),
            Vec::new(),
        )
        .await;

    assert_eq!(removed.status, 200, "{}", removed.text);
    let servers = client.get("/v1/operator/raft/configuration").await.json();
    assert_eq!(servers["Servers"].as_array().unwrap().len(), 2);
    let unknown = client
        .send("DELETE", "/v1/operator/raft/peer?id=7", Vec::new())
        .await;
    assert_eq!(unknown.status, 404);
    let unnamed = client
        .send("DELETE", "/v1/operator/raft/peer", Vec::new())
        .await;
    assert_eq!(unnamed.status, 400);
    trio.shutdown().await;
}

/// A saved snapshot comes back on all servers when a server that does not lead restores it. Later writes are gone.
#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_saved_anywhere_is_restored_everywhere() {
    let trio = ThreeServers::start().await;
    trio.all_vote().await;
    let follower = trio.follower().await;
    let client = trio.client(follower);
    client.register("kept").await;
    let saved = client.download("/v1/operator/snapshot").await;
    client.register("later").await;

    let restored = client.send("PUT", "/v1/operator/snapshot", saved).await;

    assert_eq!(restored.status, 200, "{}", restored.text);
    for at in trio.running() {
        let client = trio.client(at);
        assert_eq!(client.get("/v1/job/kept").await.status, 200);
        assert_eq!(client.get("/v1/job/later").await.status, 404);
        client.register(&format!("new-{at}")).await;
    }
    let check = client.get("/v1/operator/check").await.json();
    assert_eq!(check["Agree"], true, "{check}");
    trio.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_snapshot_is_refused_and_changes_nothing() {
    let trio = ThreeServers::start().await;
    let client = trio.client(trio.follower().await);
    client.register("kept").await;
    let mut saved = client.download("/v1/operator/snapshot").await;
    let middle = saved.len() / 2;
    saved[middle] ^= 1;

    let damaged = client.send("PUT", "/v1/operator/snapshot", saved).await;
    let empty = client
        .send("PUT", "/v1/operator/snapshot", Vec::new())
        .await;

    assert_eq!(damaged.status, 400, "{}", damaged.text);
    assert_eq!(empty.status, 400, "{}", empty.text);
    assert_eq!(client.get("/v1/job/kept").await.status, 200);
    trio.shutdown().await;
}

/// A stream that was cut off at one server goes on at another: no index is lost, none comes twice.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_goes_on_at_another_server() {
    let mut trio = ThreeServers::start().await;
    trio.all_vote().await;
    let leader = trio.settled().await;
    let other = trio.follower().await;
    let mut stream = Stream::open(&trio.client(leader).base, "index=1&topic=Job");
    for number in 0..5 {
        trio.client(other)
            .register(&format!("before-{number}"))
            .await;
    }
    let mut seen = Vec::new();
    while seen.len() < 3 {
        seen.push(stream.events().await);
    }

    trio.stop(leader).await;
    trio.settled().await;
    let next = seen.last().unwrap().index + 1;
    for number in 0..5 {
        trio.client(other)
            .register(&format!("after-{number}"))
            .await;
    }
    let mut stream = Stream::open(&trio.client(other).base, &format!("index={next}&topic=Job"));
    while seen
        .iter()
        .flat_map(|events| &events.events)
        .filter(|event| event.event_type == "JobRegistered")
        .count()
        < 10
    {
        seen.push(stream.events().await);
    }

    let mut names: Vec<&str> = seen
        .iter()
        .flat_map(|events| &events.events)
        .filter(|event| event.event_type == "JobRegistered")
        .map(|event| event.key.as_str())
        .collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!((names.len(), count), (10, 10));
    let indexes: Vec<u64> = seen.iter().map(|events| events.index).collect();
    assert!(indexes.is_sorted_by(|left, right| left < right));
    trio.shutdown().await;
}
