//! The bytes of every command, as in logs.
//!
//! A change here means that logs on disk can no longer be read: append a variant and raise
//! [`VERSION`] instead. `MUSTER_BLESS=1` writes the file anew.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use muster_domain::alloc::{
    AllocReport, ClientStatus, Exit, NodeScore, PlacementMetrics, RemoteHandle, Score, TaskEvent,
    TaskEventKind, TaskNetwork, TaskPhase, TaskState,
};

use muster_domain::deployment::DeploymentStatus;
use muster_domain::id::{AllocId, DeploymentId, EvalId, NodeId, NodeNumber, WriteKey};
use muster_domain::node::{
    DrainSpec, GcReason, KeptReason, NodeCollected, NodeSubsystem, Thresholds,
};
use muster_domain::plan::{
    DeploymentUpdate, GroupPlacements, NewDeployment, PlacementDetail, PlacementRun,
    PlannedFollowUp, PlannedStop,
};
use muster_domain::resources::{AllocatedPort, Holding};

use super::*;
use muster_domain::eval::FailedGroup;
use muster_domain::one_off::OneOffTimings;
use muster_domain::scheduling::SchedulerConfig;

const AT: Timestamp = Timestamp(1_700_000_000_000_000_000);
const NODE: NodeId = NodeId([0x11; 16]);
const EVAL: EvalId = EvalId([0x22; 16]);
const ALLOC: AllocId = AllocId([0x33; 16]);
const DEPLOYMENT: DeploymentId = DeploymentId([0x44; 16]);

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
            components: [("binpack".into(), Score(500_000))].into(),
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
        detail: Some(Box::new(PlacementDetail {
            holding: Holding {
                ports: vec![AllocatedPort {
                    label: "http".to_owned(),
                    value: 8_080,
                    to: 80,
                    host_ip: "10.0.0.1".to_owned(),
                }],
                ..Holding::default()
            },
            previous: Some(ALLOC),
            canary: true,
            preempted: vec![ALLOC],
            ..PlacementDetail::default()
        })),
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
            follow_up: Some(0),
            client_status: Some(ClientStatus::Lost),
        }],
        failed: Vec::new(),
        new_deployment: Some(NewDeployment {
            description: "Deployment is running".to_owned(),
            groups: Vec::new(),
        }),
        deployment_update: Some(DeploymentUpdate {
            id: DEPLOYMENT,
            status: DeploymentStatus::Successful,
            description: "done".to_owned(),
        }),
        follow_ups: vec![PlannedFollowUp {
            wait_until: AT,
            allocs: vec![ALLOC],
            trigger: Trigger::AllocFailure,
        }],
        unreachable: vec![ALLOC],
        all_at_once: true,
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
    task.network = Some(Box::new(TaskNetwork {
        address: "10.88.0.3".to_owned(),
        ports: [("http".to_owned(), 80)].into(),
        auto_advertise: true,
    }));
    AllocReport {
        alloc_id: ALLOC,
        client_status: ClientStatus::Failed,
        client_description: "a task failed".to_owned(),
        task_states: vec![task],
        healthy: None,
        end: None,
        remote: vec![RemoteHandle {
            task: "main".to_owned(),
            handle: vec![1, 2, 3],
        }],
    }
}

#[expect(clippy::too_many_lines, reason = "one entry for each command")]
fn commands() -> Vec<(&'static str, Entry)> {
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
            NodeCommand::Register {
                spec: Box::new(node("n1").build()),
            }
            .at(AT),
        ),
        (
            "set_node_status",
            NodeCommand::SetStatus {
                node_id: NODE,
                status: NodeStatus::Down,
            }
            .at(AT),
        ),
        (
            "set_eligibility",
            NodeCommand::SetEligibility {
                node_id: NODE,
                eligibility: Eligibility::Ineligible,
            }
            .at(AT),
        ),
        (
            "register_job",
            JobCommand::Register {
                spec: Box::new(spec),
                check_index: Some(LogIndex(7)),
                places: None,
            }
            .at(AT),
        ),
        (
            "deregister_job",
            JobCommand::Deregister { key: key.clone() }.at(AT),
        ),
        (
            "evaluate_job",
            JobCommand::Evaluate {
                key: key.clone(),
                force_reschedule: false,
            }
            .at(AT),
        ),
        (
            "apply_plans",
            EvalCommand::ApplyPlans {
                plans: vec![plan()],
                evals: evals.clone(),
            }
            .at(AT),
        ),
        ("update_evals", EvalCommand::Update { evals }.at(AT)),
        ("keyed", keyed()),
        (
            "report_nodes",
            AllocCommand::Report {
                reports: vec![(NODE, vec![report()])],
            }
            .at(AT),
        ),
    ];
    commands.extend(collections());
    commands.extend(lives_of_jobs());
    commands.extend(deployments());
    commands.extend(operators());
    commands.extend(job_changes());
    commands.extend(one_offs());
    commands.push((
        "add_node_event",
        NodeCommand::AddEvent {
            node_id: NODE,
            subsystem: NodeSubsystem::Storage,
            message: "the disk is full".to_owned(),
            details: BTreeMap::from([("condition".to_owned(), "disk".to_owned())]),
        }
        .at(AT),
    ));
    commands
}

fn claims_of_one_offs() -> (&'static str, Entry) {
    (
        "claims_of_one_offs",
        OneOffCommand::Change {
            changes: [
                OneOffStep::Delete { claim: None },
                OneOffStep::Delete {
                    claim: Some(LogIndex(8)),
                },
                OneOffStep::CallbackFailed {
                    claim: LogIndex(8),
                    next_at: Some(AT),
                },
            ]
            .map(|step| OneOffChange {
                guid: "task-1".to_owned(),
                generation: None,
                step,
            })
            .into(),
        }
        .at(AT),
    )
}

fn fail_unplaced_one_off() -> (&'static str, Entry) {
    let change = OneOffChange {
        guid: "task-1".to_owned(),
        generation: Some(LogIndex(7)),
        step: OneOffStep::FailUnplaced,
    };
    let command = OneOffCommand::Change {
        changes: vec![change],
    }
    .at(AT);
    ("fail_unplaced_one_off", command)
}

fn one_offs() -> Vec<(&'static str, Entry)> {
    let steps = [
        OneOffStep::Cancel,
        OneOffStep::Claim {
            until: AT,
            for_callback: true,
        },
        OneOffStep::Converge,
    ];
    let changes = steps.map(|step| OneOffChange {
        guid: "task-1".to_owned(),
        generation: Some(LogIndex(7)),
        step,
    });
    vec![
        (
            "desire_one_offs",
            OneOffCommand::Desire {
                tasks: vec![(task(), Some(place())), (task(), None)],
                seen: LogIndex(9),
            }
            .at(AT),
        ),
        (
            "change_one_offs",
            OneOffCommand::Change {
                changes: changes.to_vec(),
            }
            .at(AT),
        ),
        (
            "register_placed_job",
            JobCommand::Register {
                spec: Box::new(job("web").build()),
                places: Some(Box::new(JobPlacement {
                    plan: plan(),
                    update: update(NextEval::Nothing),
                })),
                check_index: Some(LogIndex(0)),
            }
            .at(AT),
        ),
        claims_of_one_offs(),
        (
            "freshen_domain",
            OneOffCommand::FreshenDomain {
                domain: "apps".to_owned(),
                until: Some(AT),
            }
            .at(AT),
        ),
        (
            "set_one_off_times",
            OneOffCommand::SetTimes {
                times: OneOffTimings::default(),
            }
            .at(AT),
        ),
        note_collections(),
        server_health(),
        (
            "resolve_one_off",
            OneOffCommand::Change {
                changes: vec![OneOffChange {
                    guid: "task-1".to_owned(),
                    generation: None,
                    step: OneOffStep::Resolve,
                }],
            }
            .at(AT),
        ),
        fail_unplaced_one_off(),
    ]
}

fn note_collections() -> (&'static str, Entry) {
    let collected = NodeCollected {
        began_at: AT,
        ended_at: AT,
        rounds: 1,
        took: Duration::from_nanos(7),
        destroyed: BTreeMap::from([(GcReason::Allocs, 2), (GcReason::Inodes, 1)]),
        refusals: 1,
        inodes: 20,
        bytes: 4_096,
        delete_failures: 3,
        kept: BTreeMap::from([(KeptReason::Running, 4), (KeptReason::BelowThresholds, 50)]),
        thresholds: Thresholds {
            allocs_max: 50,
            disk_percent: 80,
            inode_percent: 70,
        },
        disk_percent: 60,
        inode_percent: 40,
    };
    let collections = vec![(NODE, collected)];
    (
        "note_collections",
        NodeCommand::NoteCollections { collections }.at(AT),
    )
}

fn server_health() -> (&'static str, Entry) {
    (
        "note_server_health",
        ServerCommand::NoteHealth {
            server_id: 7,
            name: "s1".to_owned(),
            faults: vec!["no space left".to_owned()],
        }
        .at(AT),
    )
}

fn task() -> NewOneOff {
    NewOneOff {
        guid: "task-1".to_owned(),
        domain: "apps".to_owned(),
        definition: muster_domain::fixture::definition(),
    }
}

fn place() -> OneOffPlacement {
    OneOffPlacement {
        node: NodeNumber(7),
        score: Score(500_000),
        holding: Holding::default(),
        metrics: metrics(),
    }
}

fn deployments() -> impl Iterator<Item = (&'static str, Entry)> {
    let changes = [
        DeploymentChange::Promote(None),
        DeploymentChange::Promote(Some(vec!["main".to_owned()])),
        DeploymentChange::Fail,
        DeploymentChange::MissedDeadline,
        DeploymentChange::Pause,
        DeploymentChange::Resume,
        DeploymentChange::SetHealth {
            healthy: vec![ALLOC],
            unhealthy: vec![ALLOC],
        },
    ];
    changes.into_iter().map(|change| {
        let id = DEPLOYMENT;
        (
            "change_deployment",
            DeploymentCommand::Change { id, change }.at(AT),
        )
    })
}

fn lives_of_jobs() -> Vec<(&'static str, Entry)> {
    let key = JobKey::in_default("web");
    vec![
        (
            "revert_job",
            JobCommand::Revert {
                key: key.clone(),
                version: 1,
                check_version: Some(2),
            }
            .at(AT),
        ),
        (
            "set_job_stable",
            JobCommand::SetStable {
                key: key.clone(),
                version: 1,
                stable: true,
            }
            .at(AT),
        ),
        (
            "dispatch_job",
            JobCommand::Dispatch {
                key: key.clone(),
                suffix: "0a1b2c3d".to_owned(),
                payload: vec![1, 2, 3],
                meta: BTreeMap::from([("k".to_owned(), "v".to_owned())]),
                idempotency_token: "once".to_owned(),
                priority: Some(70),
            }
            .at(AT),
        ),
        (
            "launch_periodic",
            JobCommand::LaunchPeriodic {
                key,
                due: AT,
                forced: true,
            }
            .at(AT),
        ),
    ]
}

fn operators() -> Vec<(&'static str, Entry)> {
    vec![
        (
            "drain_node",
            NodeCommand::Drain {
                node_id: NODE,
                drain: Some(DrainSpec {
                    deadline: Some(Duration::from_hours(1)),
                    ignore_system_jobs: true,
                }),
                mark_eligible: false,
            }
            .at(AT),
        ),
        (
            "complete_drain",
            NodeCommand::CompleteDrain { node_id: NODE }.at(AT),
        ),
        (
            "migrate_allocs",
            AllocCommand::Migrate {
                alloc_ids: vec![ALLOC],
                trigger: Trigger::NodeDrain,
            }
            .at(AT),
        ),
        (
            "set_scheduler_config",
            ConfigCommand::SetScheduler {
                config: SchedulerConfig::default(),
                check_index: Some(LogIndex(3)),
            }
            .at(AT),
        ),
        (
            "set_cluster_policy",
            ConfigCommand::SetClusterPolicy {
                policy: Box::new(muster_domain::fixture::network_policy()),
                check_index: Some(LogIndex(3)),
            }
            .at(AT),
        ),
        (
            "purge_job",
            JobCommand::Purge {
                key: JobKey::in_default("web"),
            }
            .at(AT),
        ),
        (
            "add_node_event",
            NodeCommand::AddEventV1 {
                node_id: NODE,
                subsystem: NodeSubsystem::Storage,
                message: "the disk is full".to_owned(),
            }
            .at(AT),
        ),
    ]
}

fn job_changes() -> Vec<(&'static str, Entry)> {
    vec![
        (
            "tag_job_version",
            JobCommand::TagVersion {
                key: JobKey::in_default("web"),
                name: "golden".to_owned(),
                given: Some(TagAssignment {
                    version: Some(3),
                    description: "it works".to_owned(),
                }),
            }
            .at(AT),
        ),
        (
            "scale_group",
            JobCommand::ScaleGroup {
                key: JobKey::in_default("web"),
                scaling: Box::new(GroupScaling {
                    group: "main".to_owned(),
                    count: Some(7),
                    error: false,
                    message: "more load".to_owned(),
                    meta_json: r#"{"k":1}"#.to_owned(),
                }),
                check_index: Some(LogIndex(7)),
            }
            .at(AT),
        ),
    ]
}

fn keyed() -> Entry {
    let key = JobKey::in_default("web");
    JobCommand::Evaluate {
        key: key.clone(),
        force_reschedule: false,
    }
    .at(AT)
    .keyed(WriteKey::new("a-key").unwrap())
}

fn collections() -> impl Iterator<Item = (&'static str, Entry)> {
    let cursors = [
        (
            GcRule::Deployments,
            GcCursor::Deployment {
                at: AT,
                id: DEPLOYMENT,
            },
        ),
        (
            GcRule::Evals,
            GcCursor::Eval {
                at: AT,
                eval_id: EVAL,
                alloc: 300,
            },
        ),
        (GcRule::Jobs, job_at(GcJobStep::Begin)),
        (
            GcRule::Jobs,
            job_at(GcJobStep::Look {
                eval_id: EVAL,
                alloc: 300,
                index: LogIndex(7),
            }),
        ),
        (GcRule::Jobs, job_at(GcJobStep::Remove)),
        (
            GcRule::Nodes,
            GcCursor::Node {
                at: AT,
                node_id: NODE,
            },
        ),
        (
            GcRule::OneOffs,
            GcCursor::OneOff {
                due: AT,
                guid: "task-1".to_owned(),
            },
        ),
        (
            GcRule::Evals,
            GcCursor::BatchEval {
                key: JobKey::in_default("sum"),
                at: AT,
                eval_id: EVAL,
                alloc: 300,
            },
        ),
    ];
    cursors.into_iter().map(|(rule, after)| {
        let after = Some(after);
        let (before, batch_before) = (Timestamp(5), Timestamp(4));
        let command = GcCommand::Collect {
            rule,
            before,
            batch_before,
            after,
        }
        .at(AT);
        ("collect_garbage", command)
    })
}

fn job_at(step: GcJobStep) -> GcCursor {
    GcCursor::Job {
        at: AT,
        key: JobKey::in_default("web"),
        step,
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

#[test]
fn commands_keep_their_bytes() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("testdata/commands.txt");
    let mut actual = String::new();
    for (name, entry) in commands() {
        let bytes = muster_wire::codec::encode(&entry).unwrap();
        writeln!(
            actual,
            "{name} v{} {}",
            entry.command.version(),
            hex(&bytes)
        )
        .unwrap();
    }

    if std::env::vars_os().any(|(key, _)| key == "MUSTER_BLESS") {
        std::fs::write(&path, &actual).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap();

    assert_eq!(actual, expected);
}

#[test]
fn commands_round_trip() {
    for (name, entry) in commands() {
        let bytes = muster_wire::codec::encode(&entry).unwrap();

        let read: Entry = muster_wire::codec::decode(&bytes).unwrap();

        assert_eq!(read, entry, "{name}");
        assert!(read.command.version() <= VERSION, "{name}");
    }
}

/// A bound of the log: a placement costs a few bytes, not a kilobyte.
#[test]
fn a_large_plan_costs_few_bytes_an_instance() {
    let mut cluster = Cluster::new();
    cluster.unchecked = true;
    for at in 0..100 {
        cluster.node(node(&format!("node-{at}")).build());
    }
    let spec = job("web").count(1_000).cpu_mhz(10).memory_mb(10).build();

    let plans = cluster.run(spec);

    let entry = EvalCommand::ApplyPlans {
        plans,
        evals: Vec::new(),
    }
    .at(AT);
    let bytes = muster_wire::codec::encode(&entry).unwrap().len();
    let placed = cluster.live("web").len();
    assert_eq!(placed, 1_000);
    assert!(bytes < 16 * placed, "{bytes} bytes for {placed} placements");
}
