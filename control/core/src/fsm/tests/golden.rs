//! The bytes of every command, as they lie in logs.
//!
//! A change here means that logs on disk can no longer be read: append a variant and raise
//! [`VERSION`] instead. `MUSTER_BLESS=1` writes the file anew.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use muster_domain::alloc::{
    AllocReport, ClientStatus, Exit, NodeScore, PlacementMetrics, Score, TaskEvent, TaskEventKind,
    TaskPhase, TaskState,
};

use muster_domain::id::{AllocId, NodeId, NodeNumber};
use muster_domain::plan::{GroupPlacements, PlacementRun, PlannedStop};
use muster_domain::resources::AllocatedPort;

use super::*;

const AT: Timestamp = Timestamp(1_700_000_000_000_000_000);
const NODE: NodeId = NodeId([0x11; 16]);
const EVAL: EvalId = EvalId([0x22; 16]);
const ALLOC: AllocId = AllocId([0x33; 16]);

fn metrics() -> Arc<PlacementMetrics> {
    Arc::new(PlacementMetrics {
        nodes_evaluated: 3,
        nodes_filtered: 1,
        nodes_exhausted: 1,
        nodes_available: vec![("dc1".to_owned(), 3)],
        constraint_filtered: vec![("${attr.x} = y".to_owned(), 1)],
        dimension_exhausted: vec![("cpu".to_owned(), 1)],
        scores: vec![NodeScore {
            node_id: NODE,
            components: vec![("binpack".to_owned(), Score(500_000))],
            normalised: Score(500_000),
        }],
        decision_time: Duration::from_micros(7),
    })
}

fn plan() -> Plan {
    let run = PlacementRun {
        node: NodeNumber(7),
        first_index: 0,
        count: 9,
        score: Score(500_000),
        ports: vec![AllocatedPort {
            label: "http".to_owned(),
            value: 8_080,
            to: 80,
        }],
        previous: Some(ALLOC),
    };
    Plan {
        eval_id: EVAL,
        job: JobKey::in_default("web"),
        job_version: 2,
        snapshot_index: LogIndex(41),
        groups: vec![GroupPlacements {
            group_at: 0,
            in_place: true,
            left_behind: vec![ALLOC],
            metrics: metrics(),
            placements: vec![run],
        }],
        stops: vec![PlannedStop {
            alloc_id: ALLOC,
            description: "the job was updated".to_owned(),
            client_status: Some(ClientStatus::Lost),
        }],
        failed: Vec::new(),
    }
}

fn update(next: NextEval) -> EvalUpdate {
    EvalUpdate {
        eval_id: EVAL,
        status: EvalStatus::Complete,
        description: "done".to_owned(),
        snapshot_index: LogIndex(41),
        failed_groups: vec![FailedGroup {
            group: "main".to_owned(),
            count: 2,
            metrics: metrics(),
        }],
        queued: vec![("main".to_owned(), 2)],
        next,
    }
}

fn report() -> AllocReport {
    let mut task = TaskState::pending("main");
    task.phase = TaskPhase::Dead;
    task.failed = true;
    task.finished_at = Some(AT);
    let exit = Exit {
        code: 1,
        signal: 9,
        oom_killed: true,
        unknown: false,
    };
    task.push(TaskEvent {
        at: AT,
        kind: TaskEventKind::Terminated(exit),
        message: "killed".to_owned(),
    });
    AllocReport {
        alloc_id: ALLOC,
        client_status: ClientStatus::Failed,
        client_description: "a task failed".to_owned(),
        task_states: vec![task],
    }
}

fn commands() -> Vec<(&'static str, Command)> {
    let key = JobKey::in_default("web");
    let spec = job("web").port("http", 8_080).dynamic_port("admin");
    let spec = spec.constraint("${attr.cpu.arch}", "=", "amd64").build();
    let evals = vec![
        update(NextEval::Nothing),
        update(NextEval::Blocked),
        update(NextEval::FailedFollowUp { wait_until: AT }),
    ];
    let mut commands = vec![
        (
            "register_node",
            Command::RegisterNode {
                spec: Box::new(node("n1").build()),
                at: AT,
            },
        ),
        (
            "set_node_status",
            Command::SetNodeStatus {
                node_id: NODE,
                status: NodeStatus::Down,
                at: AT,
            },
        ),
        (
            "set_eligibility",
            Command::SetEligibility {
                node_id: NODE,
                eligibility: Eligibility::Ineligible,
                at: AT,
            },
        ),
        (
            "register_job",
            Command::RegisterJob {
                spec: Box::new(spec),
                at: AT,
                check_index: Some(LogIndex(7)),
            },
        ),
        (
            "deregister_job",
            Command::DeregisterJob {
                key: key.clone(),
                purge: true,
                at: AT,
            },
        ),
        ("evaluate_job", Command::EvaluateJob { key, at: AT }),
        (
            "apply_plans",
            Command::ApplyPlans {
                plans: vec![plan()],
                evals: evals.clone(),
                at: AT,
            },
        ),
        ("update_evals", Command::UpdateEvals { evals, at: AT }),
        ("keyed", keyed()),
        (
            "report_allocs",
            Command::ReportAllocs {
                node_id: NODE,
                reports: vec![report()],
                at: AT,
            },
        ),
        (
            "report_nodes",
            Command::ReportNodes {
                reports: vec![(NODE, vec![report()])],
                at: AT,
            },
        ),
    ];
    commands.extend(collections());
    commands
}

fn keyed() -> Command {
    let key = JobKey::in_default("web");
    Command::EvaluateJob { key, at: AT }.keyed(WriteKey::new("a-key").unwrap())
}

fn collections() -> impl Iterator<Item = (&'static str, Command)> {
    let key = JobKey::in_default("web");
    let cursors = [
        (
            GcRule::Evals,
            GcCursor::Eval {
                at: AT,
                eval_id: EVAL,
            },
        ),
        (GcRule::Jobs, GcCursor::Job(key)),
        (GcRule::Nodes, GcCursor::Node(NODE)),
    ];
    cursors.into_iter().map(|(rule, after)| {
        let after = Some(after);
        let (before, batch_before) = (Timestamp(5), Timestamp(4));
        let command = Command::CollectGarbage {
            rule,
            before,
            batch_before,
            after,
            at: AT,
        };
        ("collect_garbage", command)
    })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

#[test]
fn commands_keep_their_bytes() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("testdata/commands.v1.txt");
    let mut actual = String::new();
    for (name, command) in commands() {
        let bytes = muster_wire::codec::encode(&command).unwrap();
        writeln!(actual, "{name} {}", hex(&bytes)).unwrap();
    }

    if std::env::vars_os().any(|(key, _)| key == "MUSTER_BLESS") {
        std::fs::write(&path, &actual).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap();

    assert_eq!(actual, expected);
}

#[test]
fn commands_read_back_what_they_wrote() {
    for (name, command) in commands() {
        let bytes = muster_wire::codec::encode(&command).unwrap();

        let read: Command = muster_wire::codec::decode(&bytes).unwrap();

        assert_eq!(read, command, "{name}");
        assert_eq!(read.version(), VERSION);
    }
}

/// The promise of the log: a placement costs a few bytes, not a kilobyte.
#[test]
fn a_large_plan_costs_few_bytes_an_instance() {
    let mut cluster = Cluster::new();
    cluster.unchecked = true;
    for at in 0..100 {
        cluster.node(node(&format!("node-{at}")).build());
    }
    let spec = job("web").count(1_000).cpu_mhz(10).memory_mb(10).build();

    let plans = cluster.run(spec);

    let command = Command::ApplyPlans {
        plans,
        evals: Vec::new(),
        at: AT,
    };
    let bytes = muster_wire::codec::encode(&command).unwrap().len();
    let placed = cluster.live("web").len();
    assert_eq!(placed, 1_000);
    assert!(bytes < 16 * placed, "{bytes} bytes for {placed} placements");
}
