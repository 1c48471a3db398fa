//! One-off tasks over HTTP: their life, every refusal, and the delivery of callbacks.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::mpsc;
use std::time::Duration;

use muster_control::server::{Server, TasksConfig};
use muster_domain::alloc::{ClientStatus, DesiredStatus, Exit};
use muster_domain::fixture::node;
use muster_domain::one_off::{NAMESPACE, WorkEnd};
use serde_json::{Value, json};

use super::Client;
use super::events::Stream;
use crate::fixture::{self, FakeAgent, TestServer};

/// The body of a desire.
pub(crate) fn body(guid: &str) -> Value {
    json!({
        "task_guid": guid,
        "domain": "apps",
        "task_definition": {
            "rootfs": "preloaded:host",
            "action": {"run": {"path": "/bin/true", "user": "vcap"}},
            "memory_mb": 64,
            "disk_mb": 10,
            "annotation": "mine",
            "result_file": "/tmp/result",
        },
    })
}

async fn desire(client: &Client, body: &Value) -> Value {
    client.put("/v1/tasks", body).await.json()
}

async fn change(client: &Client, guid: &str, verb: &str) -> u16 {
    let path = format!("/v1/tasks/{guid}/{verb}");
    client.put(&path, &json!({})).await.status
}

/// The status, the Diego type, and the message of a refusal.
async fn refusal(
    client: &Client,
    method: &str,
    path: &str,
    body: Vec<u8>,
) -> (u16, String, String) {
    let answer = client.send(method, path, body).await;
    let error: Value = serde_json::from_str(&answer.text).expect(&answer.text);
    let text = |name: &str| error[name].as_str().unwrap().to_owned();
    (answer.status, text("type"), text("message"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_is_desired_followed_and_resolved() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    let mut agent = FakeAgent::join(&test, node("n1").build()).await;

    let answer = desire(&client, &body("a")).await;
    let again = desire(&client, &body("a")).await;
    assert_eq!(
        (&answer["created"], &again["created"]),
        (&json!(true), &json!(false))
    );
    assert_eq!(answer["generation"], again["generation"]);
    let alloc = agent.next_to_run().await;
    assert_eq!(alloc.job.spec.namespace, NAMESPACE);
    agent.report(alloc.alloc_id, ClientStatus::Running).await;
    let running = client.get("/v1/tasks/a").await.json();
    assert_eq!(
        (&running["state"], &running["phase"]),
        (&json!("Running"), &json!("running"))
    );
    assert_eq!(running["cell_id"], json!(agent.node_id.to_string()));
    assert_eq!(running["annotation"], "mine");
    let end = WorkEnd {
        result: "42".to_owned(),
        exit: Some(Exit::default()),
        ..WorkEnd::default()
    };
    agent
        .report_end(alloc.alloc_id, ClientStatus::Complete, end)
        .await;

    let completed = client.get("/v1/tasks/a").await.json();
    assert_eq!(completed["state"], "Completed");
    assert_eq!(
        (&completed["result"], &completed["exit_code"]),
        (&json!("42"), &json!(0))
    );
    assert_eq!(completed["failed"], false);
    let metrics = client.get("/v1/metrics?format=prometheus").await.text;
    let counted = "muster_one_off_tasks{status=\"completed\"} 1";
    assert!(metrics.contains(counted), "{metrics}");
    let listed = client
        .get("/v1/tasks?domain=apps&state=completed")
        .await
        .json();
    assert_eq!(listed[0]["task_guid"], "a");
    assert_eq!(client.get("/v1/tasks?domain=other").await.json(), json!([]));
    assert_eq!(
        client.get("/v1/domains").await.json(),
        json!([{"domain": "apps", "tasks": 1, "fresh": false}])
    );
    let claim = claimed_twice(&client, "a").await;
    let path = |claim: u64| format!("/v1/tasks/a?claim={claim}");
    let (status, kind, message) = refusal(&client, "DELETE", &path(claim + 1), Vec::new()).await;
    assert_eq!(
        (status, kind.as_str(), message.as_str()),
        (
            409,
            "InvalidStateTransition",
            "task a is claimed by another client"
        )
    );
    let deleted = client.send("DELETE", &path(claim), Vec::new()).await;
    assert_eq!(deleted.status, 200);
    assert_eq!(client.get("/v1/tasks/a").await.status, 404);
    test.server.shutdown().await;
}

/// The number of a claim whose first answer was lost.
async fn claimed_twice(client: &Client, guid: &str) -> u64 {
    let path = format!("/v1/tasks/{guid}/resolving");
    let key = [("Idempotency-Key", "claim-1")];
    let mut claims = Vec::new();
    for _ in 0..2 {
        let answer = client.send_with(&key, "PUT", &path, Vec::new()).await;
        assert_eq!(answer.status, 200);
        claims.push(answer.json()["index"].as_u64().unwrap());
    }
    assert_eq!(claims[0], claims[1]);
    claims[0]
}

/// An agent whose node takes work, as the server's state has it.
async fn ready(test: &TestServer) -> FakeAgent {
    let agent = FakeAgent::join(test, node("n1").build()).await;
    test.until("the node takes work", |state| {
        state.nodes().iter().any(|node| node.takes_work())
    })
    .await;
    agent
}

/// States that `events` tells of a task until it is gone.
async fn states(events: &mut Stream) -> Vec<String> {
    let mut states = Vec::new();
    loop {
        for event in events.events().await.events {
            match event.payload["Task"]["state"].as_str() {
                Some(state) => states.push(state.to_owned()),
                None => return states,
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_life_takes_three_entries() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    let mut agent = ready(&test).await;
    let mut events = Stream::open(&client.base, "topic=Task:a&namespace=*");
    let before = test.control().last_log_index().0;

    let desired = desire(&client, &body("a")).await;
    let running = client.get("/v1/tasks/a").await.json();
    assert_eq!(
        (&running["state"], &running["phase"]),
        (&json!("Running"), &json!("preparing"))
    );
    assert_eq!(running["modify_index"], desired["generation"]);
    let alloc = agent.next_to_run().await;
    agent
        .report_end(alloc.alloc_id, ClientStatus::Complete, WorkEnd::default())
        .await;
    let resolved = client
        .send("DELETE", "/v1/tasks/a?resolve=true", Vec::new())
        .await;
    assert_eq!(resolved.status, 200);

    assert_eq!(test.control().last_log_index().0, before + 3);
    assert_eq!(
        states(&mut events).await,
        ["Pending", "Running", "Completed", "Resolving"]
    );
    assert_eq!(client.get("/v1/tasks/a").await.status, 404);
    test.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_life_with_a_callback_takes_three_entries() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    let mut agent = ready(&test).await;
    let mut events = Stream::open(&client.base, "topic=Task:a&namespace=*");
    let (url, bodies) = endpoint(&[TAKEN]);
    let mut wanted = body("a");
    wanted["task_definition"]["completion_callback_url"] = json!(url);
    let before = test.control().last_log_index().0;

    desire(&client, &wanted).await;
    let alloc = agent.next_to_run().await;
    agent
        .report_end(alloc.alloc_id, ClientStatus::Complete, WorkEnd::default())
        .await;

    let body = bodies.recv_timeout(fixture::PATIENCE).unwrap();
    assert_eq!(body["task_guid"], "a");
    test.until("the task is forgotten", |state| state.one_offs().is_empty())
        .await;
    assert_eq!(test.control().last_log_index().0, before + 3);
    assert_eq!(
        states(&mut events).await,
        ["Pending", "Running", "Completed", "Resolving"]
    );
    test.server.shutdown().await;
}

/// Tasks that wait for room go first: new tasks join the queue behind them.
#[tokio::test(flavor = "multi_thread")]
async fn new_tasks_queue_behind_blocked_tasks() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    ready(&test).await;
    // Of two that fill more than half of the node one waits.
    for guid in ["big", "huge"] {
        let mut half = body(guid);
        half["task_definition"]["memory_mb"] = json!(5_000);
        desire(&client, &half).await;
    }
    test.until("it waits for room", |state| {
        let mut evals = state.evals().iter();
        evals.any(|eval| !eval.failed_groups.is_empty())
    })
    .await;

    // The leader's queue hears of who waits just after the state says so: the first of these may come before that.
    let mut waited = Vec::new();
    for guid in ["a", "b", "c", "d", "e"] {
        let desired = desire(&client, &body(guid)).await;
        let state = test
            .until("it has a place", |state| {
                let row = state.one_offs().get(guid);
                row.is_some_and(|row| row.alloc_id.is_some())
            })
            .await;
        let row = state.one_offs().get(guid).unwrap();
        assert_eq!(desired["generation"], json!(row.create_index.0));
        waited.push(row.modify_index > row.create_index);
    }
    assert!(waited.ends_with(&[true]), "{waited:?}");
    test.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_domain_is_called_fresh() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    desire(&client, &body("a")).await;

    for domain in [
        json!({"domain": "apps", "ttl": 0}),
        json!({"domain": "apps-2", "ttl": 100_000}),
    ] {
        assert_eq!(client.put("/v1/domains", &domain).await.status, 200);
    }

    let listed = client.get("/v1/domains").await.json();
    assert_eq!(
        listed[0],
        json!({"domain": "apps", "tasks": 1, "fresh": true})
    );
    assert_eq!(
        (
            &listed[1]["domain"],
            &listed[1]["tasks"],
            &listed[1]["fresh"]
        ),
        (&json!("apps-2"), &json!(0), &json!(true))
    );
    assert!((99_000..100_000).contains(&listed[1]["ttl"].as_u64().unwrap()));
    for (body, kind) in [
        (r#"{"domain": ""}"#, "InvalidRequest"),
        (r#"{"ttl": 1}"#, "InvalidJSON"),
        (r#"{"domain": "a", "ttl": -1}"#, "InvalidJSON"),
    ] {
        let refused = refusal(&client, "PUT", "/v1/domains", body.into()).await;
        assert_eq!((refused.0, refused.1.as_str()), (400, kind), "{body}");
    }
    test.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
#[expect(clippy::too_many_lines, reason = "a table, a row a refusal")]
async fn every_refusal_has_its_kind() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    desire(&client, &body("a")).await;
    let put = |value: &Value| value.to_string().into_bytes();
    let mut other = body("a");
    other["domain"] = json!("other");
    let mut invalid = body("b c");
    invalid["task_definition"]["memory_mb"] = json!(-1);
    let mut unknown = body("b");
    unknown["task_definition"]["image_layers"] = json!([]);
    let mut mistyped = body("b");
    mistyped["task_definition"]["memory_mb"] = json!("64");
    let mut empty = body("b");
    empty["task_definition"]["action"] = json!({"try": {"action": {}}});
    let cases = [
        (
            "PUT",
            "/v1/tasks",
            put(&empty),
            400,
            "InvalidRequest",
            "Invalid field: action: must have one of",
        ),
        (
            "PUT",
            "/v1/tasks",
            put(&other),
            409,
            "ResourceExists",
            "exists already",
        ),
        (
            "PUT",
            "/v1/tasks",
            put(&invalid),
            400,
            "InvalidRequest",
            "Invalid field: task_guid, Invalid field: memory_mb",
        ),
        (
            "PUT",
            "/v1/tasks",
            put(&unknown),
            400,
            "InvalidJSON",
            "image_layers",
        ),
        ("PUT", "/v1/tasks", b"{".to_vec(), 400, "InvalidJSON", "EOF"),
        (
            "PUT",
            "/v1/tasks",
            put(&mistyped),
            400,
            "InvalidJSON",
            "task_definition.memory_mb: invalid type: string",
        ),
        (
            "GET",
            "/v1/tasks/b",
            Vec::new(),
            404,
            "ResourceNotFound",
            "task b does not exist",
        ),
        (
            "PUT",
            "/v1/tasks/b/cancel",
            Vec::new(),
            404,
            "ResourceNotFound",
            "task b does not exist",
        ),
        (
            "PUT",
            "/v1/tasks/a/resolving",
            Vec::new(),
            409,
            "InvalidStateTransition",
            "Cannot transition from Pending to Resolving",
        ),
        (
            "DELETE",
            "/v1/tasks/a",
            Vec::new(),
            409,
            "InvalidStateTransition",
            "Cannot transition from Pending to Resolving",
        ),
        (
            "PUT",
            "/v1/tasks/a/cancel?generation=1",
            Vec::new(),
            404,
            "ResourceNotFound",
            "a",
        ),
    ];
    for (method, path, body, status, kind, words) in cases {
        let (found, found_kind, message) = refusal(&client, method, path, body).await;
        assert_eq!(
            (found, found_kind.as_str()),
            (status, kind),
            "{method} {path}: {message}"
        );
        assert!(message.contains(words), "{method} {path}: {message}");
    }
    assert_eq!(client.get("/v1/tasks?state=done").await.status, 400);
    // Its job is not anybody's to change.
    let job = format!("/v1/job/a?namespace={NAMESPACE}");
    assert_eq!(client.send("DELETE", &job, Vec::new()).await.status, 400);
    test.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn blocked_task_shows_reason_and_cancels_immediately() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    let _agent = FakeAgent::join(&test, node("n1").memory_mb(100).build()).await;
    // An empty node could hold the second one, too.
    desire(&client, &body("first")).await;
    test.until("the first has a place", |state| {
        let row = state.one_offs().get("first");
        row.is_some_and(|row| row.alloc_id.is_some())
    })
    .await;
    desire(&client, &body("a")).await;
    let control = test.control();
    test.until("it waits for room", |state| {
        state
            .evals()
            .iter()
            .any(|eval| !eval.failed_groups.is_empty())
    })
    .await;

    let waiting = client.get("/v1/tasks/a").await.json();
    assert_eq!(waiting["phase"], "queued");
    assert_eq!(waiting["rejection_count"], 1);
    assert_eq!(
        waiting["rejection_reason"],
        "insufficient resources: memory"
    );
    assert_eq!(change(&client, "a", "cancel").await, 200);
    assert_eq!(change(&client, "a", "cancel").await, 200);

    let cancelled = client.get("/v1/tasks/a").await.json();
    assert_eq!(cancelled["state"], "Completed");
    assert_eq!(cancelled["failure_reason"], "task was cancelled");
    let state = control.state();
    assert_eq!(state.one_offs().get("a").unwrap().alloc_id, None);
    test.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelled_running_task_completes_after_node_report() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    let mut agent = FakeAgent::join(&test, node("n1").build()).await;
    desire(&client, &body("a")).await;
    let alloc = agent.next_to_run().await;
    agent.report(alloc.alloc_id, ClientStatus::Running).await;
    let mut events = Stream::open(&client.base, "topic=Task:a&namespace=*");

    assert_eq!(change(&client, "a", "cancel").await, 200);

    let cancelling = client.get("/v1/tasks/a").await.json();
    assert_eq!(
        (&cancelling["state"], &cancelling["phase"]),
        (&json!("Running"), &json!("cancelling"))
    );
    let mut phases = Vec::new();
    while phases.last() != Some(&json!("cancelling")) {
        let line = events.events().await.events.into_iter();
        phases.extend(line.map(|event| event.payload["Task"]["phase"].clone()));
    }
    assert_eq!(phases, ["placing", "preparing", "running", "cancelling"]);
    let desired = agent.next_wanted(DesiredStatus::Stop).await;
    assert_eq!(desired.alloc_id, alloc.alloc_id);
    agent
        .report_end(alloc.alloc_id, ClientStatus::Complete, WorkEnd::default())
        .await;
    let ended = client.get("/v1/tasks/a").await.json();
    assert_eq!(ended["failure_reason"], "task was cancelled");
    test.server.shutdown().await;
}

/// An endpoint that gives each call the next of `answers`. Bodies of calls come out of the channel.
fn endpoint(answers: &'static [&'static str]) -> (String, mpsc::Receiver<Value>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/done", listener.local_addr().unwrap());
    let (sender, bodies) = mpsc::sync_channel(answers.len());
    std::thread::spawn(move || {
        for answer in answers {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = Vec::new();
            let mut bytes = [0; 4096];
            while !request.ends_with(b"}") {
                let count = stream.read(&mut bytes).unwrap();
                request.extend_from_slice(&bytes[..count]);
            }
            let text = String::from_utf8(request).unwrap();
            let body = text.split("\r\n\r\n").nth(1).unwrap();
            sender.send(serde_json::from_str(body).unwrap()).unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
        }
    });
    (url, bodies)
}

const TAKEN: &str = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
const BUSY: &str = "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n";

#[tokio::test(flavor = "multi_thread")]
async fn callback_is_retried_until_accepted_then_task_removed() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    let (url, bodies) = endpoint(&[BUSY, TAKEN]);
    let mut wanted = body("a");
    wanted["task_definition"]["completion_callback_url"] = json!(url);
    desire(&client, &wanted).await;
    assert_eq!(change(&client, "a", "cancel").await, 200);

    test.until("the task is forgotten", |state| state.one_offs().is_empty())
        .await;

    for _ in 0..2 {
        let body = bodies.recv_timeout(fixture::PATIENCE).unwrap();
        assert_eq!(body["task_guid"], "a");
        assert_eq!(body["annotation"], "mine");
        assert_eq!(body["failure_reason"], "task was cancelled");
    }
    test.server.shutdown().await;
}

/// A place that takes calls and never answers holds its own tasks and nobody else's.
#[tokio::test(flavor = "multi_thread")]
async fn hanging_callback_endpoint_delays_no_other_task() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    let hanging = TcpListener::bind("127.0.0.1:0").unwrap();
    let hangs = format!("http://{}/", hanging.local_addr().unwrap());
    let (url, bodies) = endpoint(&[TAKEN]);
    // More than may be under way in one place.
    for number in 0..40 {
        let guid = format!("hangs-{number}");
        let mut wanted = body(&guid);
        wanted["task_definition"]["completion_callback_url"] = json!(hangs);
        desire(&client, &wanted).await;
        assert_eq!(change(&client, &guid, "cancel").await, 200);
    }
    let mut wanted = body("a");
    wanted["task_definition"]["completion_callback_url"] = json!(url);
    desire(&client, &wanted).await;
    assert_eq!(change(&client, "a", "cancel").await, 200);

    let body = bodies.recv_timeout(fixture::PATIENCE).unwrap();

    assert_eq!(body["task_guid"], "a");
    let state = test
        .until("it is forgotten", |state| {
            state.one_offs().get("a").is_none()
        })
        .await;
    assert_eq!(state.one_offs().len(), 40);
    drop(hanging);
    test.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unplaced_task_times_out_and_is_purged() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = fixture::config(dir.path());
    config.tasks = TasksConfig {
        start_timeout: Duration::from_millis(50),
        retention: Duration::from_millis(50),
        ..TasksConfig::default()
    };
    let server = Server::start(config).await.unwrap();
    let test = TestServer { server, dir };
    let client = Client::new(&test.server);
    let mut events = Stream::open(&client.base, "topic=Task&namespace=*");
    desire(&client, &body("a")).await;

    test.until("the task is forgotten", |state| {
        state.one_offs().is_empty() && state.applied().0 > 3
    })
    .await;

    let mut seen = Vec::new();
    while !seen.iter().any(Value::is_null) {
        let line = events.events().await;
        seen.extend(
            line.events
                .into_iter()
                .map(|event| event.payload["Task"].clone()),
        );
    }
    let reasons: Vec<&Value> = seen.iter().map(|task| &task["failure_reason"]).collect();
    assert!(
        reasons.contains(&&json!("unable to communicate to compatible cells")),
        "{reasons:?}"
    );
    test.server.shutdown().await;
}
