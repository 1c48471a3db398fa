//! Statistics of nodes and allocations, through the server.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_domain::alloc::{TaskNetwork, TaskPhase, TaskState};
use muster_domain::id::{AllocId, Timestamp};
use muster_wire::rpc::{
    AllocDisk, AllocHistory, AllocStats, FailureKind, Histogram, HistoryPoint, NodeReply,
    NodeRequest, NodeStats, Pressure, TaskHistory, TaskStats,
};
use serde_json::json;

use super::Client;
use super::nodes::placed;
use crate::fixture::{self, FakeAgent};

fn node_stats(busy_ms: u64, idle_ms: u64) -> NodeReply {
    NodeReply::NodeStats(Box::new(NodeStats {
        at: Timestamp::from_millis(busy_ms + idle_ms),
        memory_total_bytes: 8 << 30,
        memory_available_bytes: 6 << 30,
        cpu_busy: Duration::from_millis(busy_ms),
        cpu_idle: Duration::from_millis(idle_ms),
        ..NodeStats::default()
    }))
}

fn alloc_stats(alloc_id: AllocId, at_ms: u64, cpu_ms: u64) -> NodeReply {
    let task = TaskStats {
        cpu: Some(Duration::from_millis(cpu_ms)),
        ..TaskStats::default()
    };
    let tasks = BTreeMap::from([("main".to_owned(), task)]);
    NodeReply::AllocStats(Box::new(AllocStats {
        alloc_id,
        at: Timestamp::from_millis(at_ms),
        tasks,
        disk: None,
    }))
}

/// 50 ms busy and 150 ms idle between the samples: a quarter of the node's 4 000 MHz.
#[tokio::test(flavor = "multi_thread")]
async fn node_rates_come_from_two_samples() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    let agent = FakeAgent::join(&test, muster_domain::fixture::node("n1").build()).await;
    let path = format!("/v1/client/stats?node_id={}", agent.node_id);

    let asked = tokio::spawn(async move { client.get(&path).await });
    agent.answer(&[node_stats(10_000, 10_000)]).await;
    let request = agent.answer(&[node_stats(10_050, 10_150)]).await;
    let stats = asked.await.unwrap().json();

    assert_eq!(request, NodeRequest::NodeStats);
    assert_eq!(stats["CPU"][0]["Total"], json!(25.0));
    assert_eq!(stats["CPUTicksConsumed"], json!(1000.0));
    assert_eq!(stats["Memory"]["Used"], 2_u64 << 30);
    test.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn counters_take_one_sample() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    let agent = FakeAgent::join(&test, muster_domain::fixture::node("n1").build()).await;
    client.register("web").await;
    let alloc_id = placed(&client, "web").await["ID"]
        .as_str()
        .unwrap()
        .to_owned();
    let path = format!("/v1/client/allocation/{alloc_id}/stats?counters=true");

    let asked = tokio::spawn(async move { client.get(&path).await });
    agent
        .answer(&[alloc_stats(alloc_id.parse().unwrap(), 1_000, 700)])
        .await;
    let stats = asked.await.unwrap().json();

    assert_eq!(stats["Tasks"]["main"]["Muster"]["CPUNanos"], 700_000_000);
    assert_eq!(
        stats["Tasks"]["main"]["ResourceUsage"]["CpuStats"]["Measured"],
        json!([])
    );
    test.server.shutdown().await;
}

/// Two points with a minute between them in which the task did not run; its disks are not watched.
#[tokio::test(flavor = "multi_thread")]
async fn alloc_history_reports_gaps_and_absent_metrics() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    let agent = FakeAgent::join(&test, muster_domain::fixture::node("n1").build()).await;
    client.register("web").await;
    let placed = placed(&client, "web").await;
    let alloc_id: AllocId = placed["ID"].as_str().unwrap().parse().unwrap();
    let path = format!("/v1/client/allocation/{alloc_id}/history");
    let point = |at_s: u64| HistoryPoint {
        at: Timestamp::from_millis(at_s * 1_000),
        span: Duration::from_secs(10),
        cpu: Some(Duration::from_millis(2_500)),
        memory_bytes: Some(4_096),
        context_switches: Some(21),
        throttled: Some(Duration::from_micros(3)),
        tcp_retransmits: Some(0),
        pressure_io: Some(Duration::from_micros(4)),
        ..HistoryPoint::default()
    };
    let reason = "this kernel has no such tracepoint";
    let task = TaskHistory {
        points: vec![point(100), point(170)],
        absent: BTreeMap::from([("block_read_bytes".to_owned(), reason.to_owned())]),
    };
    let history = AllocHistory {
        alloc_id,
        step: Duration::from_secs(10),
        kept: Duration::from_mins(10),
        since: Timestamp::from_millis(50_000),
        tasks: BTreeMap::from([("main".to_owned(), task)]),
    };

    let asked = tokio::spawn(async move { client.get(&path).await });
    let request = agent
        .answer(&[NodeReply::AllocHistory(Box::new(history))])
        .await;
    let answer = asked.await.unwrap().json();

    assert_eq!(request, NodeRequest::AllocHistory { alloc_id });
    assert_eq!(answer["StepNanos"], 10_000_000_000_u64);
    let main = &answer["Tasks"]["main"];
    assert_eq!(main["Points"][0]["CPUNanos"], 2_500_000_000_u64);
    let point = &main["Points"][1];
    assert_eq!(point["MemoryBytes"], 4_096);
    assert_eq!(point["ContextSwitches"], 21);
    assert_eq!(point["ThrottledNanos"], 3_000);
    assert_eq!(point["TCPRetransmits"], 0);
    assert_eq!(point["PressureIONanos"], 4_000);
    assert_eq!(point["PressureCPUNanos"], json!(null));
    assert_eq!(main["Points"][1]["BlockReadBytes"], json!(null));
    assert_eq!(main["Absent"]["block_read_bytes"], reason);
    let gap = json!({ "From": 100_000_000_000_u64, "To": 160_000_000_000_u64 });
    assert_eq!(main["Gaps"], json!([gap]));
    test.server.shutdown().await;
}

/// The allocation of a one-off task, whose client calls its metrics so.
async fn placed_one_off(
    client: &Client,
    agent: &mut FakeAgent,
    guid: &str,
    metrics_guid: &str,
) -> AllocId {
    let mut body = super::tasks::body(guid);
    body["task_definition"]["metrics_guid"] = json!(metrics_guid);
    let desired = client.put("/v1/tasks", &body).await;
    assert_eq!(desired.status, 200, "{}", desired.text);
    loop {
        let alloc = agent.next_to_run().await;
        if alloc.job.spec.is_one_off() && alloc.job.spec.id == guid {
            return alloc.alloc_id;
        }
    }
}

/// Some numbers of a task; the others are not had.
fn counted() -> TaskStats {
    TaskStats {
        cpu: Some(Duration::from_millis(1_500)),
        net_tx_denied: Some(7),
        pressure_io: Some(Pressure {
            some: Duration::from_millis(250),
            full: None,
        }),
        run_delay: Some(Histogram {
            counts: vec![5, 2],
            sum: Duration::from_micros(6),
        }),
        ..TaskStats::default()
    }
}

/// Known values appear as samples under the task's place. Unknown values have no sample.
#[tokio::test(flavor = "multi_thread")]
async fn task_stats_are_exported_to_prometheus() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    let mut agent = FakeAgent::join(&test, muster_domain::fixture::node("n1").build()).await;
    client.register("web").await;
    let placed = placed(&client, "web").await;
    let alloc_id: AllocId = placed["ID"].as_str().unwrap().parse().unwrap();
    let path = format!(
        "/v1/client/stats?node_id={}&format=prometheus",
        agent.node_id
    );
    let alloc = AllocStats {
        alloc_id,
        at: Timestamp(9),
        tasks: BTreeMap::from([("main".to_owned(), counted())]),
        disk: Some(AllocDisk {
            limit_bytes: 300 << 20,
            used_bytes: Some(4_096),
            limit_inodes: 5_000,
            used_inodes: None,
            ..AllocDisk::default()
        }),
    };
    let mut allocs = vec![alloc.clone()];
    for (guid, metrics_guid) in [("unbounded", ""), ("one", "an-app"), ("two", "an-app")] {
        allocs.push(AllocStats {
            alloc_id: placed_one_off(&client, &mut agent, guid, metrics_guid).await,
            ..alloc.clone()
        });
    }
    let stats = NodeStats {
        allocs,
        ebpf_lost: Some(3),
        limits_repaired: 4,
        conditions: BTreeMap::from([("store".to_owned(), "full".to_owned())]),
        ebpf_stale_removed: 5,
        ..NodeStats::default()
    };

    let asked = tokio::spawn(async move { client.get(&path).await });
    agent.answer(&[NodeReply::NodeStats(Box::new(stats))]).await;
    let text = asked.await.unwrap().text;

    let group = placed["TaskGroup"].as_str().unwrap();
    let labels =
        format!(r#"{{namespace="default",job="web",group="{group}",task="main",index="0"}}"#);
    let of_alloc = labels.replace(r#"task="main","#, "");
    let bucket = |bound: &str, count: u64| {
        let labels = labels.replace('}', &format!(",le=\"{bound}\"}}"));
        format!("muster_task_run_delay_seconds_bucket{labels} {count}")
    };
    for line in [
        "# TYPE muster_task_cpu_seconds_total counter".to_owned(),
        format!("muster_task_cpu_seconds_total{labels} 1.5"),
        format!("muster_task_network_sent_denied_packets_total{labels} 7"),
        format!("muster_task_instances{labels} 1"),
        "muster_node_ebpf_lost_total 3".to_owned(),
        "muster_node_limits_repaired_total 4".to_owned(),
        r#"muster_node_condition{condition="store"} 1"#.to_owned(),
        "muster_node_ebpf_stale_removed_total 5".to_owned(),
        "# TYPE muster_alloc_disk_used_bytes gauge".to_owned(),
        format!("muster_alloc_disk_used_bytes{of_alloc} 4096"),
        format!("muster_alloc_disk_limit_bytes{of_alloc} 314572800"),
        format!("muster_alloc_disk_limit_inodes{of_alloc} 5000"),
        bucket("0.000001024", 5),
        bucket("0.000002048", 7),
        format!("muster_task_pressure_io_some_seconds_total{labels} 0.25"),
        bucket("+Inf", 7),
        format!("muster_task_run_delay_seconds_sum{labels} 0.000006"),
        r#"muster_task_instances{namespace="one-off-tasks",job="apps",group="task",task="main",index="0",metrics_guid="an-app"} 2"#.to_owned(),
    ] {
        assert!(text.lines().any(|it| it == line), "{line} in:\n{text}");
    }
    assert!(!text.contains("unbounded"), "{text}");
    assert!(!text.contains("muster_task_forks_total"), "{text}");
    assert!(!text.contains("muster_alloc_disk_used_inodes"), "{text}");
    assert!(!text.contains("pressure_io_full"), "{text}");
    test.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_node_stats_return_the_reason() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    let agent = FakeAgent::join(&test, muster_domain::fixture::node("n1").build()).await;
    let path = format!("/v1/client/stats?node_id={}", agent.node_id);

    let asked = tokio::spawn(async move { client.get(&path).await });
    agent
        .answer(&[NodeReply::Failed {
            reason: "the collector stopped".to_owned(),
            kind: FailureKind::Other,
        }])
        .await;
    let answer = asked.await.unwrap();

    assert_eq!(
        (answer.status, answer.text.as_str()),
        (500, "the collector stopped")
    );
    test.server.shutdown().await;
}

/// Every server knows the address that an agent reported and answers without a question to the node.
#[tokio::test(flavor = "multi_thread")]
async fn driver_network_is_shown_in_task_state() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    let mut agent = FakeAgent::join(&test, muster_domain::fixture::node("n1").build()).await;
    client.register("web").await;
    let alloc_id = placed(&client, "web").await["ID"]
        .as_str()
        .unwrap()
        .to_owned();
    let mut state = TaskState::pending("main");
    state.phase = TaskPhase::Running;
    state.network = Some(Box::new(TaskNetwork {
        address: "10.88.0.3".to_owned(),
        ports: BTreeMap::from([("http".to_owned(), 80)]),
        auto_advertise: true,
    }));

    let path = format!("/v1/allocation/{alloc_id}");
    let shown = async || client.get(&path).await.json()["TaskStates"]["main"]["Network"].clone();
    agent
        .report_tasks(alloc_id.parse().unwrap(), vec![state.clone()])
        .await;
    let reached = shown().await;
    state.network = None;
    agent
        .report_tasks(alloc_id.parse().unwrap(), vec![state])
        .await;

    assert_eq!(
        reached,
        json!({"Address": "10.88.0.3", "Ports": {"http": 80}, "AutoAdvertise": true})
    );
    assert!(shown().await.is_null());
    test.server.shutdown().await;
}
