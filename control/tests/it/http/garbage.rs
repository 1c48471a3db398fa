//! Collections that somebody asks for, what goes with a purged job, and when an allocation goes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use muster_control::handle::Control;
use muster_control_core::fsm::NodeCommand;
use muster_control_core::state::{State, StateHash};
use muster_domain::alloc::ClientStatus;
use muster_domain::fixture::node;
use muster_domain::id::{AllocId, JobKey, Timestamp};
use muster_domain::node::{GcReason, KeptReason, NodeCollected, NodeStatus, Thresholds};
use muster_wire::api::event::Topic;
use muster_wire::api::operator::GcRound;
use muster_wire::rpc::{NodeReply, NodeRequest};
use serde_json::{Value, json};

use super::events::Stream;
use super::trio::ThreeServers;
use super::{Answer, Client, tasks, until};
use crate::fixture::{self, FakeAgent, TestServer};

/// Waits until nothing is to be scheduled.
async fn quiet(control: &Control) -> State {
    let mut applied = control.applied();
    fixture::soon("all evaluations are done", async {
        loop {
            let state = control.state();
            if state.evals().pending().next().is_none() {
                return state;
            }
            applied.changed().await.unwrap();
        }
    })
    .await
}

/// `db` runs; `web` ran, was stopped and has ended.
async fn one_lives_one_is_over(client: &Client, control: &Control, agent: &mut FakeAgent) {
    for job_id in ["db", "web"] {
        client.register(job_id).await;
        let alloc = agent.next_to_run().await;
        agent.report(alloc.alloc_id, ClientStatus::Running).await;
        if job_id == "web" {
            let stopped = client.send("DELETE", "/v1/job/web", Vec::new()).await;
            assert_eq!(stopped.status, 200, "{}", stopped.text);
            quiet(control).await;
            agent.report(alloc.alloc_id, ClientStatus::Complete).await;
        }
    }
    quiet(control).await;
}

/// Asks for a collection, which has the agent's node asked, and the node's answer.
async fn collect(client: &Client, flag: &str, agent: &FakeAgent, freed: u64) -> (Value, bool) {
    let path = format!("/v1/system/gc?{flag}=true");
    let reply = [NodeReply::Collected {
        freed,
        inodes: 20 * freed,
        bytes: 81_920 * freed,
        kept: vec![("running".to_owned(), 1)],
    }];
    let asked = async { client.put(&path, &json!({})).await };
    let both = async { tokio::join!(asked, agent.answer(&reply)) };
    let (answer, request): (Answer, NodeRequest) = fixture::soon("a collection", both).await;
    let NodeRequest::CollectGarbage { dry_run } = request else {
        panic!("the node was asked for something else: {request:?}");
    };
    (answer.json(), dry_run)
}

/// The freed objects of a report, by kind.
fn freed(report: &Value) -> Vec<(String, u64)> {
    let state = report["State"].as_array().unwrap().iter();
    let counts = state.map(|count| {
        let kind = count["Kind"].as_str().unwrap().to_owned();
        (kind, count["Freed"].as_u64().unwrap())
    });
    counts.filter(|(_, freed)| *freed > 0).collect()
}

/// The freed part of the state that [`one_lives_one_is_over`] leaves: `web`, its evaluations, and its deployment.
fn web() -> Vec<(String, u64)> {
    let counts = [
        ("jobs", 1),
        ("evaluations", 2),
        ("allocations", 1),
        ("deployments", 1),
    ];
    counts.map(|(kind, freed)| (kind.to_owned(), freed)).into()
}

fn kept(report: &Value, kind: &str) -> Value {
    let state = report["State"].as_array().unwrap();
    let count = state.iter().find(|count| count["Kind"] == kind);
    count.unwrap()["Kept"].clone()
}

fn size(state: &State) -> [usize; 3] {
    [
        state.jobs().len(),
        state.evals().len(),
        state.allocs().len(),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn dry_run_predicts_freed_objects() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    let mut agent = FakeAgent::join(&test, node("n1").build()).await;
    one_lives_one_is_over(&client, test.control(), &mut agent).await;
    let before: StateHash = test.control().state().hash();

    let (dry, dry_asked) = collect(&client, "dry_run", &agent, 3).await;
    let between = test.control().state().hash();
    let (done, done_asked) = collect(&client, "wait", &agent, 3).await;

    assert_eq!((dry_asked, done_asked), (true, false));
    assert_eq!(before, between);
    assert_eq!(freed(&dry), web());
    assert_eq!(freed(&done), web());
    assert_eq!(dry["State"][0]["Kept"], done["State"][0]["Kept"]);
    assert_eq!(
        (&dry["DryRun"], &done["DryRun"]),
        (&json!(true), &json!(false))
    );
    assert_eq!((&dry["Slices"], &done["Slices"]), (&json!(0), &json!(5)));
    let live = json!([{"Reason": "not over", "Count": 1}]);
    for report in [&dry, &done] {
        assert_eq!(kept(report, "allocations"), live);
        assert_eq!(report["Nodes"][0]["Freed"], 3);
        assert_eq!(report["Nodes"][0]["Inodes"], 60);
        assert_eq!(report["Nodes"][0]["Bytes"], 245_760);
        assert_eq!(report["Nodes"][0]["Kept"][0]["Reason"], "running");
        assert_eq!(report["Nodes"][0]["Error"], "");
    }
    assert_eq!(size(&test.control().state()), [1, 1, 1]);
    test.server.shutdown().await;
}

/// It is not asked, for nobody would answer; the report does not look as if all had been.
#[tokio::test(flavor = "multi_thread")]
async fn a_report_names_nodes_that_are_down() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    let (control, spec) = (test.control(), node("n1").build());
    let (node_id, at) = (spec.id, control.now());
    let spec = Box::new(spec);
    let register = NodeCommand::Register { spec }.at(at);
    let status = NodeStatus::Down;
    let down = NodeCommand::SetStatus { node_id, status }.at(at);
    for command in [register, down] {
        control.propose(command).await.unwrap();
    }

    let answer = client.put("/v1/system/gc?dry_run=true", &json!({})).await;

    let report = answer.json();
    let nodes = report["Nodes"].as_array().unwrap();
    assert_eq!(nodes.len(), 1, "{report}");
    assert_eq!(nodes[0]["Name"], "n1");
    let error = nodes[0]["Error"].as_str().unwrap();
    assert!(error.starts_with("it is down"), "{error}");
    test.server.shutdown().await;
}

/// The report, the events, and the metrics give the same totals for a collection.
#[tokio::test(flavor = "multi_thread")]
async fn a_collection_that_freed_something_is_an_event() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    let mut agent = FakeAgent::join(&test, node("n1").build()).await;
    let mut stream = Stream::open(&client.base, "topic=GarbageCollection&index=1");
    one_lives_one_is_over(&client, test.control(), &mut agent).await;

    let (report, _) = collect(&client, "wait", &agent, 3).await;

    let (mut totals, mut bytes) = (BTreeMap::new(), 0);
    let expected: BTreeMap<String, u64> = web().into_iter().collect();
    while totals != expected {
        for event in stream.events().await.events {
            assert_eq!(event.topic, Topic::GarbageCollection);
            assert_eq!(event.event_type, "GarbageCollected");
            let round = event.payload["GarbageCollection"].clone();
            let round: GcRound = serde_json::from_value(round).unwrap();
            assert_eq!(round.rule, event.key);
            assert!(
                round.complete && round.slices > 0 && round.bytes > 0,
                "{round:?}"
            );
            assert!(round.began_at <= round.ended_at, "{round:?}");
            for (kind, freed) in round.freed {
                *totals.entry(kind).or_insert(0) += freed;
            }
            bytes += round.bytes;
        }
    }
    assert_eq!(report["Bytes"], bytes);
    let metrics = client.get("/v1/metrics").await.json();
    let gauges = metrics["Gauges"].as_array().unwrap().iter();
    let mut gauges = gauges.filter(|gauge| gauge["Name"] == "muster_gc_freed_bytes_total");
    assert_eq!(gauges.next().unwrap()["Value"].as_f64(), Some(bytes as f64));
    test.server.shutdown().await;
}

/// Two nodes tell of their collections; every reader hears of both, and of one by its node.
#[tokio::test(flavor = "multi_thread")]
async fn a_collection_on_a_node_is_an_event() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    let mut first = FakeAgent::join(&test, node("n1").build()).await;
    let mut second = FakeAgent::join(&test, node("n2").build()).await;
    let collected = |began_at, destroyed| NodeCollected {
        began_at: Timestamp(began_at),
        ended_at: Timestamp(began_at + 5),
        rounds: 2,
        took: Duration::from_millis(3),
        destroyed: BTreeMap::from([(GcReason::Allocs, destroyed), (GcReason::Forced, 1)]),
        refusals: 4,
        inodes: 60,
        bytes: 4096,
        delete_failures: 1,
        kept: BTreeMap::from([(KeptReason::Running, 7)]),
        thresholds: Thresholds {
            allocs_max: 50,
            disk_percent: 80,
            inode_percent: 70,
        },
        disk_percent: 30,
        inode_percent: 20,
    };

    first.report_collection(collected(100, 2)).await;
    second.report_collection(collected(200, 3)).await;

    let mut all = Stream::open(&client.base, "topic=GarbageCollection&index=1");
    let mut events = Vec::new();
    while events.len() < 2 {
        events.extend(all.events().await.events);
    }
    let of_second = format!("topic=GarbageCollection:{}&index=1", second.node_id);
    let alone = Stream::open(&client.base, &of_second).events().await.events;
    assert_eq!(alone, events[1..]);
    assert_eq!(events[0].key, first.node_id.to_string());
    assert_eq!(events[0].event_type, "NodeGarbageCollected");
    assert_eq!(
        events[0].payload["NodeGarbageCollection"],
        json!({
            "NodeID": first.node_id.to_string(), "NodeName": "n1",
            "BeganAt": 100, "EndedAt": 105, "Rounds": 2, "Took": 3_000_000,
            "Destroyed": {"too many allocations": 2, "forced": 1}, "Refusals": 4,
            "Inodes": 60, "Bytes": 4096, "DeleteFailures": 1, "Kept": {"not finished": 7},
            "MaxAllocs": 50, "DiskUsageThreshold": 80, "InodeUsageThreshold": 70,
            "DiskUsage": 30, "InodeUsage": 20,
        })
    );
    test.server.shutdown().await;
}

/// Of a batch job of two instances one has ended: the evaluation that placed them stays.
#[tokio::test(flavor = "multi_thread")]
async fn kept_rows_of_a_round_are_counted() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    let mut agent = FakeAgent::join(&test, node("n1").build()).await;
    let mut body = super::job("sums");
    body["Job"]["Type"] = json!("batch");
    body["Job"]["TaskGroups"][0]["Count"] = json!(2);
    client.put("/v1/jobs", &body).await.json();
    let alloc = agent.next_to_run().await;
    agent.report(alloc.alloc_id, ClientStatus::Complete).await;
    quiet(test.control()).await;

    collect(&client, "wait", &agent, 0).await;

    let metrics = client.get("/v1/metrics?format=prometheus").await.text;
    let lines = metrics.lines();
    let kept: Vec<&str> = lines
        .filter(|line| line.starts_with("muster_gc_kept"))
        .collect();
    assert_eq!(
        kept,
        [
            "muster_gc_kept{reason=\"live\"} 0",
            "muster_gc_kept{reason=\"young\"} 0",
            "muster_gc_kept{reason=\"running\"} 0",
            "muster_gc_kept{reason=\"replaceable\"} 0",
            "muster_gc_kept{reason=\"result\"} 1",
            "muster_gc_kept{reason=\"needed\"} 0",
            "muster_gc_kept{reason=\"failure\"} 0",
            "muster_gc_kept{reason=\"owed\"} 0",
            "muster_gc_kept{reason=\"claimed\"} 0",
            "muster_gc_kept{reason=\"tagged\"} 0",
        ]
    );
    test.server.shutdown().await;
}

/// One task has ended, one runs, and the result of one is claimed.
#[tokio::test(flavor = "multi_thread")]
async fn a_completed_task_is_forgotten_by_force() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    let mut agent = FakeAgent::join(&test, node("n1").build()).await;
    for guid in ["done", "runs", "claimed"] {
        client.put("/v1/tasks", &tasks::body(guid)).await.json();
        let alloc_id = agent.next_to_run().await.alloc_id;
        agent.report(alloc_id, ClientStatus::Running).await;
        if guid != "runs" {
            agent.report(alloc_id, ClientStatus::Complete).await;
        }
    }
    let claimed = client.put("/v1/tasks/claimed/resolving", &json!({})).await;
    assert_eq!(claimed.status, 200, "{}", claimed.text);

    let (dry, _) = collect(&client, "dry_run", &agent, 0).await;
    let (done, _) = collect(&client, "wait", &agent, 0).await;

    assert_eq!(freed(&dry), freed(&done));
    for report in [&dry, &done] {
        assert!(
            freed(report).contains(&("one-offs".to_owned(), 1)),
            "{report}"
        );
        let reasons = json!([
            {"Reason": "not over", "Count": 1},
            {"Reason": "ended, but claimed for the result", "Count": 1},
        ]);
        assert_eq!(kept(report, "one-offs"), reasons);
    }
    for (guid, status) in [("done", 404), ("runs", 200), ("claimed", 200)] {
        let path = format!("/v1/tasks/{guid}");
        assert_eq!(client.get(&path).await.status, status, "{guid}");
    }
    test.server.shutdown().await;
}

/// The second node is registered, and no agent of it is connected to any server.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_out_of_reach_is_named() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    let agent = FakeAgent::join(&test, node("n1").build()).await;
    let at = test.control().now();
    let spec = Box::new(node("n2").build());
    test.propose(NodeCommand::Register { spec }.at(at)).await;

    let (report, _) = collect(&client, "wait", &agent, 7).await;

    let nodes = report["Nodes"].as_array().unwrap();
    assert_eq!(nodes.len(), 2, "{report}");
    assert_eq!(
        (&nodes[0]["Name"], &nodes[0]["Freed"]),
        (&json!("n1"), &json!(7))
    );
    assert_eq!(
        (&nodes[1]["Name"], &nodes[1]["Freed"]),
        (&json!("n2"), &json!(0))
    );
    let error = nodes[1]["Error"].as_str().unwrap();
    assert!(error.contains("not connected"), "{error}");
    test.server.shutdown().await;
}

/// The node hangs on the leader; a follower is asked.
#[tokio::test(flavor = "multi_thread")]
async fn a_follower_has_the_leader_collect() {
    let trio = ThreeServers::start().await;
    trio.all_vote().await;
    let (leader, follower) = (trio.settled().await, trio.follower().await);
    let control = trio.server(leader).control();
    let server = trio.server(leader);
    let mut agent = FakeAgent::join_with(server, &trio.tls(leader), node("n1").build()).await;
    one_lives_one_is_over(&trio.client(leader), control, &mut agent).await;
    let before = control.state().hash();
    let client = trio.client(follower);

    let (dry, dry_asked) = collect(&client, "dry_run", &agent, 3).await;
    let between = control.state().hash();
    let (done, done_asked) = collect(&client, "wait", &agent, 3).await;

    assert_eq!((dry_asked, done_asked), (true, false));
    assert_eq!(before, between);
    assert_eq!(freed(&dry), web());
    assert_eq!(freed(&done), web());
    assert_eq!(done["Slices"], 5);
    assert_eq!(done["Nodes"][0]["Freed"], 3);
    assert_eq!(done["Nodes"][0]["Error"], "");
    assert_eq!(size(&trio.server(follower).control().state()), [1, 1, 1]);
    drop(agent);
    trio.shutdown().await;
}

/// Places `web`, has its instance replaced, and has that one end. Both, in order.
async fn one_ended_one_runs(
    client: &Client,
    test: &TestServer,
    agent: &mut FakeAgent,
) -> [AllocId; 2] {
    client.register("web").await;
    let first = agent.next_to_run().await.alloc_id;
    agent.report(first, ClientStatus::Running).await;
    let stop = format!("/v1/allocation/{first}/stop");
    client.put(&stop, &json!({})).await.json();
    let second = agent.next_to_run().await.alloc_id;
    agent.report(first, ClientStatus::Complete).await;
    agent.report(second, ClientStatus::Running).await;
    quiet(test.control()).await;
    [first, second]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_purge_forgets_ended_allocations_at_once() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    let mut agent = FakeAgent::join(&test, node("n1").build()).await;
    let [first, second] = one_ended_one_runs(&client, &test, &mut agent).await;

    let answer = client
        .send("DELETE", "/v1/job/web?purge=true", Vec::new())
        .await
        .json();

    let gone = client.get(&format!("/v1/allocation/{first}")).await;
    assert_eq!(gone.status, 404, "{}", gone.text);
    let path = format!("/v1/allocation/{second}");
    until("the other is told to stop", async || {
        client.get(&path).await.json()["DesiredStatus"] == "stop"
    })
    .await;
    let state = quiet(test.control()).await;
    let key = JobKey::in_default("web");
    let evals = state.evals().of_job(&key);
    let left: BTreeSet<String> = evals.map(|eval| eval.id.to_string()).collect();
    let placed = client.get(&path).await.json()["EvalID"].clone();
    let kept = [placed, answer["EvalID"].clone()];
    // The order of ids is not that of evaluations.
    let kept = kept.map(|id| id.as_str().unwrap().to_owned());
    assert_eq!(left, BTreeSet::from(kept));
    let counted = json!({"jobs": 1, "deployments": 1, "evaluations": 1, "allocations": 1});
    assert_eq!(answer["Freed"], counted);
    test.server.shutdown().await;
}

/// The answer to a repeated purge comes from the job's entry: nothing is left to count by the second request.
#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_purge_is_answered_as_the_first() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    let mut agent = FakeAgent::join(&test, node("n1").build()).await;
    one_ended_one_runs(&client, &test, &mut agent).await;
    let key = [("Idempotency-Key", "purge-1")];

    let mut answers = Vec::new();
    for _ in 0..2 {
        let purge = client.send_with(&key, "DELETE", "/v1/job/web?purge=true", Vec::new());
        answers.push(purge.await.json());
    }

    // The evaluation that stopped the rest may be over by then, and counted.
    for answer in &answers {
        let freed = &answer["Freed"];
        assert_eq!(
            (&freed["jobs"], &freed["deployments"]),
            (&json!(1), &json!(1))
        );
    }
    assert_eq!(answers[0]["EvalID"], answers[1]["EvalID"]);
    let metrics = client.get("/v1/metrics").await.json();
    let mut gauges = metrics["Gauges"].as_array().unwrap().iter();
    let jobs = gauges.find(|gauge| {
        gauge["Name"] == "muster_gc_freed_total" && gauge["Labels"]["kind"] == "jobs"
    });
    assert_eq!(jobs.unwrap()["Value"].as_f64(), Some(1.0));
    test.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn alloc_shows_its_collection_time() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    let mut agent = FakeAgent::join(&test, node("n1").build()).await;
    let [first, second] = one_ended_one_runs(&client, &test, &mut agent).await;
    let hour = 3_600_000_000_000;

    let ended = client.get(&format!("/v1/allocation/{first}")).await.json();
    let runs = client.get(&format!("/v1/allocation/{second}")).await.json();

    assert_eq!(
        ended["GarbageCollection"],
        json!({
            "Eligible": false,
            "EligibleAt": ended["ModifyTime"].as_u64().unwrap() + hour + 1,
            "Kept": "young",
            "Reason": "ended too recently",
        })
    );
    assert_eq!(
        runs["GarbageCollection"],
        json!({"Eligible": false, "EligibleAt": 0, "Kept": "live", "Reason": "not over"})
    );
    test.server.shutdown().await;
}
