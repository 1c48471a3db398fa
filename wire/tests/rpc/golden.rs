//! The bytes of the agent protocol, version 1. Different releases exchange them, so a change needs a new
//! `frame::AGENT_VERSION`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use expect_test::expect_file;
use muster_domain::alloc::{
    AllocReport, ClientStatus, DesiredAlloc, DesiredStatus, Exit, RemoteAlloc, RemoteHandle,
    TaskEvent, TaskEventKind, TaskNetwork, TaskPhase, TaskState,
};
use muster_domain::fixture::{job, node};
use muster_domain::id::{AllocId, DeploymentId, LogIndex, Timestamp};
use muster_domain::node::{GcReason, KeptReason, NodeCollected, Thresholds};
use muster_domain::one_off::{BlockBytes, Oom, TaskUsageTotals, Usage, WorkEnd};
use muster_domain::resources::{AllocatedPort, HeldCores, HeldDevices, Holding};
use muster_wire::frame;
use muster_wire::rpc::{
    AgentReply, AgentRequest, AllocDisk, AllocHistory, AllocStats, DiskAck, DiskDir, DiskEntry,
    DiskPiece, DiskRequest, DiskSum, ExecExit, ExecInput, ExecPiece, ExecSession, FailureKind,
    FileMeta, FromAgent, HistoryPoint, LogAck, LogOrigin, LogPiece, LogStream, LogsRequest,
    NodeReply, NodeRequest, NodeStats, TaskHistory, TaskStats, ToAgent,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Adds a line to the golden file and checks that `message` reads back from its bytes.
fn line<T>(golden: &mut String, name: &str, message: &T)
where
    T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug,
{
    let bytes = frame::encode(message).unwrap();
    let read: T = frame::decode(&bytes[frame::HEADER_BYTES..]).unwrap();
    assert_eq!(&read, message);
    write!(golden, "{name} ").unwrap();
    for byte in &bytes {
        write!(golden, "{byte:02x}").unwrap();
    }
    golden.push('\n');
}

fn report() -> AllocReport {
    let mut state = TaskState::pending("main");
    state.phase = TaskPhase::Dead;
    state.failed = true;
    state.restarts = 2;
    state.started_at = Some(Timestamp(1));
    state.finished_at = Some(Timestamp(2));
    let exit = Exit {
        code: 3,
        signal: 0,
        oom_killed: false,
        unknown: false,
    };
    for (at, kind) in [
        TaskEventKind::Received,
        TaskEventKind::Setup,
        TaskEventKind::Started,
        TaskEventKind::Recovered,
        TaskEventKind::DriverFailure,
        TaskEventKind::Terminated(exit),
        TaskEventKind::Restarting {
            delay: Duration::from_millis(1_500),
        },
        TaskEventKind::NotRestarting,
        TaskEventKind::Killing,
        TaskEventKind::Killed,
    ]
    .into_iter()
    .enumerate()
    {
        state.push(TaskEvent {
            at: Timestamp(at as u64),
            kind,
            message: "m".to_owned(),
        });
    }
    state.network = Some(Box::new(network()));
    AllocReport {
        alloc_id: AllocId::at(LogIndex(7), 0),
        client_status: ClientStatus::Failed,
        client_description: "a task failed".to_owned(),
        task_states: vec![state],
        healthy: Some(false),
        end: Some(Box::new(end())),
        remote: vec![handle()],
    }
}

fn network() -> TaskNetwork {
    TaskNetwork {
        address: "10.88.0.3".to_owned(),
        ports: BTreeMap::from([("http".to_owned(), 80)]),
        auto_advertise: true,
    }
}

fn handle() -> RemoteHandle {
    RemoteHandle {
        task: "main".to_owned(),
        handle: vec![1, 2, 3],
    }
}

fn end() -> WorkEnd {
    WorkEnd {
        failed: true,
        failure_reason: "LOG: Exited with status 3 (out of memory)".to_owned(),
        failed_action: "serial[1].run".to_owned(),
        result: "r".to_owned(),
        result_truncated: true,
        result_note: "n".to_owned(),
        exit: Some(Exit {
            code: 3,
            signal: 0,
            oom_killed: true,
            unknown: false,
        }),
        oom: Some(Oom {
            limit_bytes: 64 << 20,
            peak_bytes: 63 << 20,
            process: "sh".to_owned(),
        }),
        usage: Usage {
            cpu: Some(Duration::from_millis(7)),
            memory_peak_bytes: Some(63 << 20),
            counted: Some(TaskUsageTotals {
                forks: 1,
                net_rx_bytes: 2,
                net_rx_packets: 3,
                net_tx_bytes: 4,
                net_tx_packets: 5,
                block: Some(BlockBytes {
                    read: 6,
                    written: 7,
                }),
            }),
        },
        at: Timestamp(9),
    }
}

fn desired() -> DesiredAlloc {
    DesiredAlloc {
        alloc_id: AllocId::at(LogIndex(7), 0),
        alloc_modify_index: LogIndex(7),
        desired: DesiredStatus::Run,
        name_index: 4,
        group_at: 0,
        holding: Holding {
            ports: vec![AllocatedPort {
                label: "http".to_owned(),
                value: 20_000,
                to: 0,
                host_ip: "10.0.0.1".to_owned(),
            }],
            cores: vec![HeldCores {
                task_at: 0,
                ids: vec![2, 3],
                mhz: 4_000,
            }],
            devices: vec![HeldDevices {
                task_at: 0,
                group: "nvidia/gpu/a100".to_owned(),
                ids: vec!["uuid-1".to_owned()],
            }],
        },
        deployment: Some(DeploymentId::at(LogIndex(7), 1)),
        canary: true,
        previous: Some(AllocId::at(LogIndex(5), 2)),
        client_status: ClientStatus::Pending,
        job: job("web").count(5).dynamic_port("http").version(),
    }
}

fn stats() -> NodeStats {
    let task = TaskStats {
        cpu: Some(Duration::from_micros(5)),
        absent: BTreeMap::from([("throttled".to_owned(), "no controller".to_owned())]),
        pid: 42,
        network: Some(network()),
        ..TaskStats::default()
    };
    NodeStats {
        at: Timestamp(9),
        allocs: vec![AllocStats {
            alloc_id: AllocId::at(LogIndex(7), 0),
            at: Timestamp(9),
            tasks: BTreeMap::from([("main".to_owned(), task)]),
            disk: Some(AllocDisk {
                enforcement: "quota".to_owned(),
                limit_bytes: 10 << 20,
                limit_inodes: 4096,
                used_bytes: Some(8192),
                used_inodes: Some(2),
                measured_at: Some(Timestamp(9)),
                ..AllocDisk::default()
            }),
        }],
        ebpf_lost: Some(0),
        limits_repaired: 3,
        conditions: BTreeMap::from([("store".to_owned(), "full".to_owned())]),
        ebpf_stale_removed: 5,
        ..NodeStats::default()
    }
}

fn from_agent(golden: &mut String) {
    let node = Box::new(node("n1").build());
    let known = LogIndex(6);
    let secret = muster_domain::node::NodeSecret([7; 32]);
    let register = FromAgent::Register {
        node,
        secret,
        known,
    };
    line(golden, "register", &register);
    line(golden, "heartbeat", &FromAgent::Heartbeat { number: 3 });
    line(
        golden,
        "report",
        &FromAgent::Report {
            sequence: 1,
            reports: vec![report()],
        },
    );
    let report = Box::new(collected());
    let sequence = 2;
    line(
        golden,
        "collected",
        &FromAgent::Collected { sequence, report },
    );
}

fn collected() -> NodeCollected {
    NodeCollected {
        began_at: Timestamp(8),
        ended_at: Timestamp(9),
        rounds: 1,
        took: Duration::from_nanos(1),
        destroyed: BTreeMap::from([(GcReason::Allocs, 2)]),
        refusals: 1,
        inodes: 20,
        bytes: 4096,
        delete_failures: 3,
        kept: BTreeMap::from([(KeptReason::Running, 4), (KeptReason::BelowThresholds, 50)]),
        thresholds: Thresholds {
            allocs_max: 50,
            disk_percent: 80,
            inode_percent: 70,
        },
        disk_percent: 60,
        inode_percent: 40,
    }
}

fn to_agent(golden: &mut String) {
    let registered = ToAgent::Registered {
        cluster: "local".to_owned(),
        heartbeat_ttl: Duration::from_secs(10),
        servers: vec![
            "10.0.0.1:4647".parse().unwrap(),
            "[fd00::1]:4647".parse().unwrap(),
        ],
    };
    line(golden, "registered", &registered);
    line(
        golden,
        "refused",
        &ToAgent::Refused {
            reason: "no".to_owned(),
        },
    );
    let ack = ToAgent::HeartbeatAck {
        number: 3,
        lease: Duration::from_secs(10),
    };
    line(golden, "heartbeat_ack", &ack);
    line(golden, "report_ack", &ToAgent::ReportAck { sequence: 1 });
    let gone = vec![AllocId::at(LogIndex(3), 1)];
    let desired = ToAgent::Desired {
        index: LogIndex(8),
        allocs: vec![desired()],
        unchanged: vec![AllocId::at(LogIndex(4), 2)],
        gone,
        complete: Some(2),
        remote: vec![RemoteAlloc {
            alloc_id: AllocId::at(LogIndex(7), 0),
            take: vec![handle()],
            leave: vec![handle()],
        }],
    };
    line(golden, "desired", &desired);
    line(golden, "collect_garbage", &ToAgent::CollectGarbage);
    let servers = vec!["10.0.0.2:4647".parse().unwrap()];
    line(golden, "servers", &ToAgent::Servers { servers });
    let elsewhere = ToAgent::TryElsewhere {
        reason: "no leader".to_owned(),
        after: Duration::from_secs(1),
    };
    line(golden, "try_elsewhere", &elsewhere);
    let policy = ToAgent::ClusterPolicy {
        index: LogIndex(9),
        policy: Box::new(muster_domain::fixture::network_policy()),
    };
    line(golden, "cluster_policy", &policy);
    let addrs = vec!["10.0.0.2:4646".parse().unwrap()];
    line(golden, "apis", &ToAgent::Apis { addrs });
}

fn logs_in_pieces(golden: &mut String) {
    let read = |from| {
        NodeRequest::ReadLogs(LogsRequest {
            alloc_id: AllocId::at(LogIndex(7), 0),
            task: "main".to_owned(),
            stream: LogStream::Stdout,
            from,
            follow: false,
        })
    };
    line(golden, "read_logs_at", &read(LogOrigin::At(9)));
    let recent = LogOrigin::Recent {
        lines: Some(10),
        since: Some(Timestamp(5)),
    };
    line(golden, "read_logs_recent", &read(recent));
    line(golden, "log_taken", &LogAck { bytes: 133 });
    let piece = LogPiece {
        file: "main.stdout.0".to_owned(),
        offset: 5,
        position: 1_005,
        at: Some(Timestamp(6)),
        data: b"hello".to_vec(),
    };
    line(golden, "log_piece", &NodeReply::LogPiece(piece));
    let missing = NodeReply::LogMissing {
        position: 1_012,
        bytes: 7,
        dropped: true,
    };
    line(golden, "log_missing", &missing);
    line(golden, "log_end", &NodeReply::LogEnd { position: 1_012 });
}

fn sessions(golden: &mut String) {
    let session = ExecSession {
        alloc_id: AllocId::at(LogIndex(7), 0),
        task: "main".to_owned(),
        command: vec!["ls".to_owned(), "-l".to_owned()],
        tty: true,
    };
    line(golden, "exec", &NodeRequest::Exec(session));
    let (height, width) = (24, 80);
    for (name, input) in [
        ("exec_stdin", ExecInput::Stdin(b"y".to_vec())),
        ("exec_stdin_closed", ExecInput::StdinClosed),
        ("exec_resize", ExecInput::Resize { height, width }),
        ("exec_output_taken", ExecInput::Taken { bytes: 129 }),
    ] {
        line(golden, name, &input);
    }
    let piece = ExecPiece {
        stream: LogStream::Stdout,
        data: b"hi".to_vec(),
    };
    let exit = ExecExit {
        code: 130,
        signal: 2,
        note: Some("cut".to_owned()),
    };
    for (name, reply) in [
        ("exec_opened", NodeReply::ExecOpened),
        ("exec_output", NodeReply::ExecOutput(piece)),
        ("exec_input_taken", NodeReply::ExecTaken { bytes: 129 }),
        ("exec_exited", NodeReply::ExecExited(exit)),
    ] {
        line(golden, name, &reply);
    }
    let signal = NodeRequest::Signal {
        alloc_id: AllocId::at(LogIndex(7), 0),
        task: Some("main".to_owned()),
        signal: "SIGHUP".to_owned(),
    };
    line(golden, "signal", &signal);
    let tasks = vec!["main".to_owned()];
    line(golden, "signaled", &NodeReply::Signaled { tasks });
}

fn questions(golden: &mut String) {
    let logs = LogsRequest {
        alloc_id: AllocId::at(LogIndex(7), 0),
        task: "main".to_owned(),
        stream: LogStream::Stderr,
        from: LogOrigin::End(100),
        follow: true,
    };
    line(golden, "logs", &NodeRequest::Logs(logs));
    line(golden, "node_stats", &NodeRequest::NodeStats);
    let alloc_id = AllocId::at(LogIndex(7), 0);
    line(golden, "alloc_stats", &NodeRequest::AllocStats { alloc_id });
    let data = NodeReply::LogData {
        file: "main.stdout.0".to_owned(),
        offset: 5,
        data: b"hello".to_vec(),
    };
    line(golden, "log_data", &data);
    line(golden, "log_gap", &NodeReply::LogGap { bytes: 7 });
    line(golden, "idle", &NodeReply::Idle);
    let stats = stats();
    let alloc = stats.allocs[0].clone();
    line(
        golden,
        "node_stats_reply",
        &NodeReply::NodeStats(Box::new(stats)),
    );
    line(
        golden,
        "alloc_stats_reply",
        &NodeReply::AllocStats(Box::new(alloc)),
    );
    let failed = NodeReply::Failed {
        reason: "no such task".to_owned(),
        kind: FailureKind::NotFound,
    };
    line(golden, "failed", &failed);
    let collect = NodeRequest::CollectGarbage { dry_run: true };
    line(golden, "collect_on_node", &collect);
    let collected = NodeReply::Collected {
        freed: 3,
        inodes: 60,
        bytes: 245_760,
        kept: vec![("not told to the servers yet".to_owned(), 1)],
    };
    line(golden, "collected", &collected);
    logs_in_pieces(golden);
    sessions(golden);
    history(golden);
    disks(golden);
}

fn disks(golden: &mut String) {
    let alloc_id = AllocId::at(LogIndex(7), 0);
    let asked = AgentRequest::FetchDisk {
        alloc_id: AllocId::at(LogIndex(8), 0),
        previous: alloc_id,
    };
    line(golden, "fetch_disk", &asked);
    let request = DiskRequest {
        alloc_id,
        tasks: vec!["main".to_owned()],
    };
    line(golden, "read_disk", &NodeRequest::ReadDisk(request));
    let name = |name: &str| name.as_bytes().to_vec();
    let meta = FileMeta {
        uid: 1_000,
        gid: 1_001,
        mode: 0o640,
        changed_s: -1,
        changed_ns: 5,
    };
    let entries = vec![
        DiskEntry::Place(DiskDir::Shared),
        DiskEntry::Enter {
            name: name("d"),
            meta,
        },
        DiskEntry::File {
            name: name("f"),
            meta,
            bytes: 8_192,
        },
        DiskEntry::Data {
            offset: 4_096,
            bytes: name("hello"),
        },
        DiskEntry::Leave,
        DiskEntry::Again {
            name: name("g"),
            former: vec![name("d"), name("f")],
        },
        DiskEntry::Place(DiskDir::Local("main".to_owned())),
        DiskEntry::Link {
            name: name("l"),
            meta,
            target: name("/etc"),
        },
    ];
    let piece = DiskPiece { entries };
    line(golden, "disk_piece", &NodeReply::DiskPiece(piece.clone()));
    let sum = DiskSum {
        inodes: 4,
        bytes: 5,
        left: 1,
    };
    line(golden, "disk_end", &NodeReply::DiskEnd(sum));
    line(golden, "disk_taken", &DiskAck { bytes: 300 });
    line(golden, "disk_idle_for_agent", &AgentReply::Idle);
    line(
        golden,
        "disk_piece_for_agent",
        &AgentReply::DiskPiece(piece),
    );
    line(golden, "disk_end_for_agent", &AgentReply::DiskEnd(sum));
    let reason = "why".to_owned();
    let later = AgentReply::Later {
        reason: reason.clone(),
    };
    line(golden, "disk_later", &later);
    line(golden, "disk_gone", &AgentReply::Gone { reason });
}

fn history(golden: &mut String) {
    let alloc_id = AllocId::at(LogIndex(7), 0);
    let asked = NodeRequest::AllocHistory { alloc_id };
    line(golden, "alloc_history", &asked);
    let point = HistoryPoint {
        at: Timestamp(9),
        span: Duration::from_secs(10),
        cpu: Some(Duration::from_millis(7)),
        memory_bytes: Some(1 << 20),
        net_tx_bytes: Some(34),
        context_switches: Some(11),
        throttled: Some(Duration::from_millis(12)),
        tcp_retransmits: Some(13),
        pressure_io: Some(Duration::from_millis(14)),
        ..HistoryPoint::default()
    };
    let task = TaskHistory {
        points: vec![point],
        absent: BTreeMap::from([("run_delay".to_owned(), "no program".to_owned())]),
    };
    let history = AllocHistory {
        alloc_id,
        step: Duration::from_secs(10),
        kept: Duration::from_mins(10),
        since: Timestamp(8),
        tasks: BTreeMap::from([("main".to_owned(), task)]),
    };
    let reply = NodeReply::AllocHistory(Box::new(history));
    line(golden, "alloc_history_reply", &reply);
}

#[test]
fn the_agent_protocol_keeps_its_bytes() {
    let mut golden = String::new();

    from_agent(&mut golden);
    to_agent(&mut golden);
    questions(&mut golden);

    expect_file!["../../testdata/rpc.v1.txt"].assert_eq(&golden);
}

/// A truncated message is refused and never reads as another message.
#[test]
fn a_cut_message_is_refused() {
    let bytes = frame::encode(&FromAgent::Report {
        sequence: 1,
        reports: vec![report()],
    })
    .unwrap();
    let body = &bytes[frame::HEADER_BYTES..];

    for len in 0..body.len() {
        assert!(
            frame::decode::<FromAgent>(&body[..len]).is_err(),
            "cut at {len}"
        );
    }
}
