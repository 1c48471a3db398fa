//! Shapes of the HTTP API: golden bodies, and every field that Nomad's clients read.
//!
//! `testdata/keys/*.txt` are the field paths of responses recorded from a running Nomad. Fields that are always `null`
//! in this version are left out. `*` stands for a user's name, `[]` for the elements of a list.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use expect_test::expect_file;
use muster_domain::alloc::{
    Allocation, ClientStatus, DesiredStatus, Exit, NodeScore, PlacementMetrics, Score, TaskEvent,
    TaskEventKind, TaskNetwork, TaskPhase, TaskState, Transition,
};
use muster_domain::eval::{EvalStatus, Evaluation, FailedGroup, Trigger};
use muster_domain::fixture;
use muster_domain::id::{AllocId, DeploymentId, EvalId, JobKey, LogIndex, Timestamp};
use muster_domain::job::{Job, JobStatus, JobType};
use muster_domain::node::{Eligibility, Node, NodeEvent, NodeStatus, NodeSubsystem};
use muster_domain::resources::{AllocatedPort, Holding};
use muster_wire::api;
use muster_wire::api::job::{GroupSummary, JobListStub, JobSummary};
use muster_wire::rpc;
use serde::Serialize;
use serde_json::Value;

const AT: Timestamp = Timestamp(1_795_180_464_025_000_000);

fn job() -> Job {
    let asked = fixture::job("web").port("http", 8080).dynamic_port("admin");
    let current = asked.constraint("${attr.cpu.arch}", "=", "amd64").version();
    Job {
        current,
        stop: false,
        status: JobStatus::Running,
        stable: vec![0],
        scaling_events: Arc::default(),
        tags: Vec::new(),
        launched_at: None,
        modify_index: LogIndex(9),
    }
}

fn node() -> Node {
    Node {
        spec: Arc::new(fixture::node("n1").attribute("os.name", "debian").build()),
        status: NodeStatus::Ready,
        status_at: AT,
        eligibility: Eligibility::Eligible,
        drain: None,
        events: Arc::new(vec![NodeEvent {
            subsystem: NodeSubsystem::Cluster,
            message: "Node registered".to_owned(),
            details: BTreeMap::new(),
            at: AT,
            index: LogIndex(3),
        }]),
        create_index: LogIndex(2),
        modify_index: LogIndex(3),
    }
}

fn metrics() -> Arc<PlacementMetrics> {
    let score = NodeScore {
        node_id: node().spec.id,
        components: Arc::from([
            ("binpack".into(), Score::new(0.5)),
            ("job-anti-affinity".into(), Score::new(-0.25)),
        ]),
        normalised: Score::new(0.125),
    };
    Arc::new(PlacementMetrics {
        nodes_evaluated: 3,
        nodes_filtered: 1,
        nodes_exhausted: 1,
        nodes_available: vec![("dc1".to_owned(), 3)],
        constraint_filtered: vec![("${attr.cpu.arch} = amd64".to_owned(), 1)],
        dimension_exhausted: vec![("memory".to_owned(), 1)],
        scores: vec![score],
        decision_time: Duration::from_micros(38),
    })
}

fn task_state() -> TaskState {
    let mut state = TaskState::pending("main");
    let exit = Exit {
        code: 0,
        signal: 9,
        oom_killed: true,
        unknown: false,
    };
    let kinds = [
        TaskEventKind::Received,
        TaskEventKind::Started,
        TaskEventKind::Terminated(exit),
        TaskEventKind::Restarting {
            delay: Duration::from_secs(15),
        },
    ];
    for kind in kinds {
        state.push(TaskEvent {
            at: AT,
            kind,
            message: String::new(),
        });
    }
    state.phase = TaskPhase::Running;
    state.started_at = Some(AT);
    state.network = Some(Box::new(TaskNetwork {
        address: "10.88.0.3".to_owned(),
        ports: [("http".to_owned(), 80)].into(),
        auto_advertise: true,
    }));
    state
}

fn alloc() -> Allocation {
    let port = |label: &str, value| AllocatedPort {
        label: label.to_owned(),
        value,
        to: 0,
        host_ip: String::new(),
    };
    Allocation {
        id: AllocId::at(LogIndex(4), 0),
        eval_id: EvalId::at(LogIndex(3), 0),
        node_id: node().spec.id,
        job: job().current,
        group_at: 0,
        name_index: 0,
        holding: Holding {
            ports: vec![port("http", 8080), port("admin", 20_001)],
            ..Holding::default()
        },
        metrics: metrics(),
        score: Score::new(0.125),
        desired: DesiredStatus::Run,
        desired_description: String::new(),
        client_status: ClientStatus::Running,
        client_description: "Tasks are running".to_owned(),
        task_states: vec![task_state()],
        previous: None,
        next: None,
        deployment: Some(DeploymentId::at(LogIndex(4), 0)),
        healthy: Some(true),
        canary: false,
        transition: Transition::default(),
        follow_up: None,
        reschedules: Vec::new(),
        preempted_by: None,
        preempted: Vec::new(),
        create_index: LogIndex(4),
        modify_index: LogIndex(6),
        alloc_modify_index: LogIndex(4),
        create_time: AT,
        modify_time: AT,
    }
}

fn eval() -> Evaluation {
    Evaluation {
        id: EvalId::at(LogIndex(3), 0),
        job: JobKey::in_default("web"),
        job_type: JobType::Service,
        priority: 50,
        trigger: Trigger::JobRegister,
        node_id: None,
        deployment: None,
        wait_until: Timestamp(0),
        status: EvalStatus::Complete,
        status_description: String::new(),
        previous: None,
        blocked: Some(EvalId::at(LogIndex(5), 0)),
        failed_groups: vec![FailedGroup {
            group: "main".to_owned(),
            count: 3,
            metrics: metrics(),
        }],
        queued: vec![("main".to_owned(), 3)],
        job_modify_index: LogIndex(3),
        snapshot_index: LogIndex(3),
        create_index: LogIndex(3),
        modify_index: LogIndex(5),
        create_time: AT,
        modify_time: AT,
    }
}

fn stub() -> JobListStub {
    let running = GroupSummary {
        running: 1,
        ..GroupSummary::default()
    };
    let counted = BTreeMap::from([("main".to_owned(), running)]);
    let job = job();
    let summary = JobSummary::new(&job, counted, &[("main".to_owned(), 2)], LogIndex(6));
    JobListStub::new(&job, summary)
}

fn alloc_stats() -> rpc::AllocStats {
    let task = rpc::TaskStats {
        cpu: Some(Duration::from_millis(1500)),
        memory_bytes: Some(4 << 20),
        absent: BTreeMap::from([("net_rx_bytes".to_owned(), "no eBPF object".to_owned())]),
        pid: 77,
        ..rpc::TaskStats::default()
    };
    let tasks = BTreeMap::from([("main".to_owned(), task)]);
    rpc::AllocStats {
        alloc_id: alloc().id,
        at: AT,
        tasks,
        disk: Some(rpc::AllocDisk {
            enforcement: "accounted".to_owned(),
            reason: "no project quota".to_owned(),
            limit_bytes: 300 << 20,
            limit_inodes: 76_800,
            used_bytes: Some(12_288),
            used_inodes: Some(7),
            measured_at: Some(AT),
        }),
    }
}

fn node_stats() -> rpc::NodeStats {
    rpc::NodeStats {
        at: AT,
        memory_total_bytes: 8 << 30,
        memory_available_bytes: 6 << 30,
        memory_free_bytes: 5 << 30,
        uptime: Duration::from_hours(1),
        cpu_busy: Duration::from_secs(100),
        cpu_idle: Duration::from_mins(5),
        disk_total_bytes: 100 << 30,
        disk_available_bytes: 75 << 30,
        allocs: vec![alloc_stats()],
        limits_repaired: 2,
        ebpf_stale_removed: 3,
        ..rpc::NodeStats::default()
    }
}

fn members() -> api::agent::MembersResponse {
    api::agent::MembersResponse {
        members: vec![api::agent::Member::default()],
        ..api::agent::MembersResponse::default()
    }
}

fn whole() -> api::alloc::Allocation {
    api::alloc::Allocation::new(&alloc(), &(&node()).into())
}

fn pretty(value: &impl Serialize) -> String {
    serde_json::to_string_pretty(value).expect("our shapes have text keys") + "\n"
}

/// Field paths of `value`: of every element of a list, and of every entry of a map where `expected` has `*`.
fn paths(value: &Value, at: &str, expected: &BTreeSet<&str>, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                let dot = if at.is_empty() { "" } else { "." };
                let starred = format!("{at}{dot}*");
                let is_free = expected.contains(starred.as_str());
                let path = if is_free {
                    starred
                } else {
                    format!("{at}{dot}{key}")
                };
                found.insert(path.clone());
                paths(value, &path, expected, found);
            }
        }
        Value::Array(list) => {
            for value in list {
                paths(value, &format!("{at}[]"), expected, found);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn missing(value: &impl Serialize, keys: &str) -> Vec<String> {
    let expected: BTreeSet<&str> = keys.lines().collect();
    let mut found = BTreeSet::new();
    paths(
        &serde_json::to_value(value).expect("our shapes have text keys"),
        "",
        &expected,
        &mut found,
    );
    expected
        .into_iter()
        .filter(|key| !found.contains(*key))
        .map(str::to_owned)
        .collect()
}

macro_rules! has_every_key {
    ($($name:ident: $keys:literal, $value:expr;)*) => {$(
        #[test]
        fn $name() {
            let keys = include_str!(concat!("../testdata/keys/", $keys, ".txt"));
            assert_eq!(missing(&$value, keys), Vec::<String>::new());
        }
    )*};
}

has_every_key! {
    a_job_has_every_key_of_nomads: "job", api::job::Job::from_job(&job());
    a_job_stub_has_every_key_of_nomads: "jobs", stub();
    an_allocation_has_every_key_of_nomads: "alloc", whole();
    an_allocation_stub_has_every_key_of_nomads:
        "allocations", api::alloc::AllocListStub::new(&alloc(), &(&node()).into(), false);
    an_evaluation_has_every_key_of_nomads: "evaluation", api::eval::Evaluation::from(&eval());
    a_node_has_every_key_of_nomads: "node", api::node::Node::from(&node());
    a_node_stub_has_every_key_of_nomads: "nodes", api::node::NodeListStub::new(&node(), true, true);
    node_stats_have_every_key_of_nomads:
        "client_stats", api::stats::NodeStats::new(None, &node_stats(), 4_000);
    alloc_stats_have_every_key_of_nomads:
        "alloc_stats", api::stats::AllocStats::new(None, &alloc_stats(), 2_000.0);
    members_have_every_key_of_nomads: "agent_members", members();
}

#[test]
fn bodies_arrive_unchanged() {
    let job = api::job::Job::from_job(&job());
    let eval = api::eval::Evaluation::from(&eval());
    let node = api::node::Node::from(&node());
    let stats = api::stats::NodeStats::new(None, &node_stats(), 4_000);

    expect_file!["../testdata/job.json"].assert_eq(&pretty(&job));
    expect_file!["../testdata/alloc.json"].assert_eq(&pretty(&whole()));
    expect_file!["../testdata/evaluation.json"].assert_eq(&pretty(&eval));
    expect_file!["../testdata/node.json"].assert_eq(&pretty(&node));
    expect_file!["../testdata/client_stats.json"].assert_eq(&pretty(&stats));
    expect_file!["../testdata/job_stub.json"].assert_eq(&pretty(&stub()));
}

#[test]
fn bodies_read_back() {
    let stats = api::stats::AllocStats::new(None, &alloc_stats(), 2_000.0);

    assert_eq!(
        serde_json::from_str::<api::alloc::Allocation>(&pretty(&whole())).unwrap(),
        whole()
    );
    assert_eq!(
        serde_json::from_str::<api::stats::AllocStats>(&pretty(&stats)).unwrap(),
        stats
    );
    assert_eq!(
        serde_json::from_str::<JobListStub>(&pretty(&stub())).unwrap(),
        stub()
    );
}

/// A plan with many placements keeps the scores of the best nodes only. The response for one allocation must include
/// its own node.
#[test]
fn alloc_always_shows_score_of_its_node() {
    let mut alloc = alloc();
    alloc.metrics = Arc::new(PlacementMetrics::default());

    let shape = api::alloc::Allocation::new(&alloc, &api::alloc::NodeRef::default());

    let scores = shape.metrics.unwrap().score_meta_data;
    assert_eq!(scores.len(), 1);
    assert!((scores[0].norm_score - 0.125).abs() < 1e-9);
}

#[test]
fn oom_kill_appears_in_message_and_details() {
    let events = &whole().task_states["main"].events;

    assert_eq!(
        events[2].display_message,
        "Exit Code: 0, Signal: 9, OOM Killed"
    );
    assert_eq!(events[2].details["oom_killed"], "true");
    assert_eq!(events[3].display_message, "Task restarting in 15s");
}
