//! Logs, streamed from a node through the server.

use muster_domain::id::Timestamp;
use muster_wire::api::logs::Frame;
use muster_wire::rpc::{FailureKind, LogOrigin, LogPiece, LogStream, NodeReply, NodeRequest};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::nodes::placed;
use super::{Client, until};
use crate::fixture::{self, FakeAgent, TestServer, soon};

async fn running(test: &TestServer, client: &Client) -> (FakeAgent, String) {
    let agent = FakeAgent::join(test, muster_domain::fixture::node("n1").build()).await;
    client.register("web").await;
    let stub = placed(client, "web").await;
    (
        agent,
        format!(
            "/v1/client/fs/logs/{}",
            stub["ID"].as_str().expect("an id is text")
        ),
    )
}

fn data(offset: u64, text: &str) -> NodeReply {
    NodeReply::LogData {
        file: "main.stdout.0".to_owned(),
        offset,
        data: text.as_bytes().to_vec(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_comes_in_frames() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    let (agent, path) = running(&test, &client).await;

    let asked = tokio::spawn(async move {
        client
            .get(&format!("{path}?task=main&type=stderr&origin=end&offset=9"))
            .await
    });
    let request = agent
        .answer(&[
            data(3, "hi\n"),
            NodeReply::LogGap { bytes: 7 },
            data(16, "ho\n"),
        ])
        .await;
    let answer = asked.await.unwrap();

    let NodeRequest::ReadLogs(request) = request else {
        panic!("{request:?}")
    };
    assert_eq!(
        (request.stream, request.from, request.follow),
        (LogStream::Stderr, LogOrigin::End(9), false)
    );
    let frames: Vec<Frame> = serde_json::Deserializer::from_str(&answer.text)
        .into_iter()
        .collect::<Result<_, _>>()
        .unwrap();
    assert_eq!(
        (frames[0].data.as_slice(), frames[0].offset),
        (b"hi\n".as_slice(), 3)
    );
    assert_eq!(frames[0].file, "alloc/logs/main.stdout.0");
    assert!(frames[1].file_event.contains("7 bytes were rotated away"));
    assert_eq!(frames[2].data, b"ho\n");
    test.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plain_log_is_the_task_output() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    let (agent, path) = running(&test, &client).await;

    let asked = tokio::spawn(async move { client.get(&format!("{path}?plain=true")).await });
    agent
        .answer(&[NodeReply::Idle, data(3, "hi\n"), data(6, "ho\n")])
        .await;

    assert_eq!(asked.await.unwrap().text, "hi\nho\n");
    test.server.shutdown().await;
}

/// The answer with a one-off task's log carries the names that its client gave. The log of a job has no such names,
/// even if its metadata has them.
#[tokio::test(flavor = "multi_thread")]
async fn one_off_log_response_has_client_labels() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    let mut agent = FakeAgent::join(&test, muster_domain::fixture::node("n1").build()).await;
    let mut named = super::tasks::body("named");
    named["task_definition"]["log_guid"] = "app-7".into();
    named["task_definition"]["log_source"] = "APP/TASK".into();
    let mut path_of = async |body: &Value| {
        assert_eq!(client.put("/v1/tasks", body).await.status, 200);
        let alloc = agent.next_to_run().await;
        format!("/v1/client/fs/logs/{}?plain=true", alloc.alloc_id)
    };
    let named = path_of(&named).await;
    let unnamed = path_of(&super::tasks::body("unnamed")).await;

    let mut labels = Vec::new();
    for path in [named, unnamed] {
        let client = Client::new(&test.server);
        let asked = tokio::spawn(async move { client.get(&path).await });
        agent.answer(&[data(3, "hi\n")]).await;
        let answer = asked.await.unwrap();
        let header = |name: &str| {
            let value = answer.headers.get(name)?;
            Some(value.to_str().unwrap().to_owned())
        };
        labels.push(["x-muster-log-guid", "x-muster-log-source"].map(header));
        assert_eq!(answer.text, "hi\n");
    }

    let expected = ["app-7", "APP/TASK"].map(|label| Some(label.to_owned()));
    assert_eq!(labels, [expected, [None, None]]);
    test.server.shutdown().await;
}

/// The frames carry the node's knowledge of the bytes: their place, their time, and the missing pieces.
#[tokio::test(flavor = "multi_thread")]
async fn log_pieces_have_positions_and_times() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    let (agent, path) = running(&test, &client).await;
    let piece = LogPiece {
        file: "main.stdout.2".to_owned(),
        offset: 3,
        position: 1_003,
        at: Some(Timestamp(77)),
        data: b"hi\n".to_vec(),
    };
    let missing = NodeReply::LogMissing {
        position: 1_010,
        bytes: 7,
        dropped: true,
    };

    let asked = tokio::spawn(async move {
        client
            .get(&format!("{path}?tail=5&since=2026-01-01T00:00:00Z"))
            .await
    });
    let request = agent
        .answer(&[
            NodeReply::LogPiece(piece),
            missing,
            NodeReply::LogEnd { position: 1_010 },
        ])
        .await;
    let text = asked.await.unwrap().text;

    let NodeRequest::ReadLogs(request) = request else {
        panic!("{request:?}")
    };
    let since = Some(Timestamp(1_767_225_600_000_000_000));
    assert_eq!(
        request.from,
        LogOrigin::Recent {
            lines: Some(5),
            since
        }
    );
    assert_eq!(
        text,
        concat!(
            r#"{"Offset":3,"Data":"aGkK","File":"alloc/logs/main.stdout.2","Position":1003,"Time":77}"#,
            r#"{"FileEvent":"7 bytes were dropped and not kept: the disk was full, or they were above the task's rate","Missing":7,"Position":1010}"#,
            r#"{"Position":1010,"Ended":true}"#,
        )
    );
    test.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_begin_that_makes_no_sense_is_refused() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    let (_agent, path) = running(&test, &client).await;

    for (query, reason) in [
        ("since=yesterday", "such as 10m"),
        ("tail=-1", "whole number"),
        ("tail=3&offset=9", "not several of them"),
        ("position=3&since=5m", "not several of them"),
        ("plain=true&timestamps=true", "read `Time` of each frame"),
    ] {
        let answer = client.get(&format!("{path}?{query}")).await;

        assert_eq!(answer.status, 400, "{query}");
        assert!(answer.text.contains(reason), "{query}: {}", answer.text);
    }
    test.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_log_returns_not_found() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    let (agent, path) = running(&test, &client).await;

    let asked = tokio::spawn(async move { client.get(&path).await });
    agent
        .answer(&[NodeReply::Failed {
            reason: "the allocation is gone".to_owned(),
            kind: FailureKind::NotFound,
        }])
        .await;
    let answer = asked.await.unwrap();

    assert_eq!(
        (answer.status, answer.text.as_str()),
        (404, "the allocation is gone")
    );
    test.server.shutdown().await;
}

/// Follows a log by hand, so that the connection can be dropped in the middle.
async fn follow(client: &Client, path: &str) -> TcpStream {
    let address = client
        .base
        .strip_prefix("http://")
        .expect("the base is a URL");
    let mut stream = TcpStream::connect(address)
        .await
        .expect("the server listens");
    let request = format!("GET {path}?follow=true HTTP/1.1\r\nHost: localhost\r\n\r\n");
    stream
        .write_all(request.as_bytes())
        .await
        .expect("the server reads");
    stream
}

async fn read_until(stream: &mut TcpStream, wanted: &str) {
    let mut seen = String::new();
    soon("the stream says what it should", async {
        while !seen.contains(wanted) {
            let mut buffer = [0; 1024];
            let count = stream.read(&mut buffer).await.expect("the server writes");
            assert!(count > 0, "the stream ended after {seen:?}");
            seen.push_str(std::str::from_utf8(&buffer[..count]).expect("the stream is text"));
        }
    })
    .await;
}

/// `aGkK` is `hi\n` in base64.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_ends_the_nodes_stream() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    let (agent, path) = running(&test, &client).await;

    let mut stream = follow(&client, &path).await;
    let (_, mut node) = agent.question().await;
    node.send(&data(3, "hi\n")).await.unwrap();
    read_until(&mut stream, "aGkK").await;
    read_until(&mut stream, "{}").await;
    drop(stream);

    soon("the node is told to stop", node.stopped()).await;
    test.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_stops_ends_its_streams() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    let (agent, path) = running(&test, &client).await;

    let mut stream = follow(&client, &path).await;
    let (_, mut node) = agent.question().await;
    node.send(&data(3, "hi\n")).await.unwrap();
    read_until(&mut stream, "aGkK").await;
    let stopping = tokio::spawn(test.server.shutdown());

    let mut rest = Vec::new();
    soon("the stream ends", stream.read_to_end(&mut rest))
        .await
        .unwrap();
    assert!(
        rest.ends_with(b"0\r\n\r\n"),
        "{:?}",
        String::from_utf8_lossy(&rest)
    );
    soon("shutdown", stopping).await.unwrap();
}

/// As often as the time of a test allows: nothing may be left of any of them.
#[tokio::test(flavor = "multi_thread")]
async fn clients_that_leave_leave_nothing_behind() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    let (agent, path) = running(&test, &client).await;
    let alive = || {
        tokio::runtime::Handle::current()
            .metrics()
            .num_alive_tasks()
    };
    let before = alive();

    for _ in 0..100 {
        let mut stream = follow(&client, &path).await;
        let (_, mut node) = agent.question().await;
        node.send(&data(3, "hi\n")).await.unwrap();
        read_until(&mut stream, "aGkK").await;
        drop(stream);
        soon("the node is told to stop", node.stopped()).await;
    }

    until("as many tasks run as before", async || alive() <= before).await;
    test.server.shutdown().await;
}
