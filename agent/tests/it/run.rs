//! Tasks that run, end, are restarted and stopped.

use std::time::Duration;

use muster_domain::alloc::{ClientStatus, Exit, TaskEventKind, TaskState};
use muster_wire::rpc::{FailureKind, LogOrigin, LogStream, LogsRequest, NodeReply, NodeRequest};

use crate::support::{Machine, batch, eventually, privileged, service, skipped};

/// How the task ended each time, oldest first.
fn exits(task: &TaskState) -> Vec<Exit> {
    let exit = |kind: &TaskEventKind| match kind {
        TaskEventKind::Terminated(exit) => Some(*exit),
        _ => None,
    };
    task.events
        .iter()
        .filter_map(|event| exit(&event.kind))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn output_of_a_task_is_kept() {
    if !privileged("output_of_a_task_is_kept") {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.agent(&server).await;

    let alloc_id = server
        .place(batch(1, "echo hello; echo oops >&2").build())
        .await;
    let task = server.status(alloc_id, ClientStatus::Complete).await;

    assert_eq!(exits(&task), [Exit::default()]);
    assert_eq!(server.log(alloc_id, LogStream::Stdout).await, "hello\n");
    assert_eq!(server.log(alloc_id, LogStream::Stderr).await, "oops\n");
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn environment_and_directories_are_there() {
    if !privileged("environment_and_directories_are_there") {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.agent(&server).await;
    let script = "echo $NOMAD_TASK_NAME $NOMAD_PORT_http ${NOMAD_ALLOC_INDEX}; pwd; \
                  touch $NOMAD_ALLOC_DIR/data/a $NOMAD_TASK_DIR/b $NOMAD_SECRETS_DIR/c $TMPDIR/d && id -u";

    let alloc = batch(1, script).port("http", 20_123).user("nobody").build();
    let alloc_id = server.place(alloc).await;
    server.status(alloc_id, ClientStatus::Complete).await;

    let nobody = nix::unistd::User::from_name("nobody").unwrap().unwrap().uid;
    let expected = format!("main 20123 0\n/\n{nobody}\n");
    assert_eq!(server.log(alloc_id, LogStream::Stdout).await, expected);
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn exit_code_of_a_failed_task_is_reported() {
    if !privileged("exit_code_of_a_failed_task_is_reported") {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.agent(&server).await;

    let alloc_id = server.place(batch(1, "exit 42").build()).await;
    let task = server.status(alloc_id, ClientStatus::Failed).await;

    assert!(task.failed);
    assert_eq!(
        exits(&task),
        [Exit {
            code: 42,
            ..Exit::default()
        }]
    );
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn restart_policy_is_followed() {
    if !privileged("restart_policy_is_followed") {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.agent(&server).await;

    let alloc = service(1, "echo run; kill -SEGV $$")
        .raw()
        .restarts(2)
        .build();
    let alloc_id = server.place(alloc).await;
    let task = server.status(alloc_id, ClientStatus::Failed).await;

    assert_eq!(task.restarts, 2);
    assert_eq!(
        exits(&task).last(),
        Some(&Exit {
            signal: 11,
            ..Exit::default()
        })
    );
    assert_eq!(
        server.log(alloc_id, LogStream::Stdout).await,
        "run\nrun\nrun\n"
    );
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_command_fails_task() {
    if !privileged("missing_command_fails_task") {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.agent(&server).await;
    let config = serde_json::json!({"command": "/no/such/program"});

    let alloc_id = server
        .place(batch(1, "").driver("native", &config).build())
        .await;
    let task = server.status(alloc_id, ClientStatus::Failed).await;

    let words: Vec<_> = task
        .events
        .iter()
        .map(|event| event.message.as_str())
        .collect();
    assert!(
        words.iter().any(|words| words.contains("/no/such/program")),
        "{words:?}"
    );
    assert!(!machine.tree().join(alloc_id.to_string()).exists());
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_driver_fails_task() {
    if !privileged("missing_driver_fails_task") {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.agent(&server).await;

    let alloc = batch(1, "")
        .driver("docker", &serde_json::json!({}))
        .build();
    let alloc_id = server.place(alloc).await;
    let task = server.status(alloc_id, ClientStatus::Failed).await;

    let words: Vec<_> = task
        .events
        .iter()
        .map(|event| event.message.as_str())
        .collect();
    assert!(
        words.contains(&"this node has no driver `docker`; it has native"),
        "{words:?}"
    );
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_task_gets_its_signal() {
    if !privileged("a_stopped_task_gets_its_signal") {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.agent(&server).await;
    let script = "trap 'echo bye; exit 7' TERM; echo up; while :; do sleep 0.02; done";
    let alloc_id = server.place(service(1, script).build()).await;
    wait_for_line(&server, alloc_id, "up").await;

    server.stop(alloc_id).await;
    let task = server.status(alloc_id, ClientStatus::Complete).await;

    assert_eq!(
        exits(&task),
        [Exit {
            code: 7,
            ..Exit::default()
        }]
    );
    assert!(!task.failed);
    assert_eq!(server.log(alloc_id, LogStream::Stdout).await, "up\nbye\n");
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_ignores_its_signal_is_killed() {
    if !privileged("a_task_that_ignores_its_signal_is_killed") {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.agent(&server).await;
    let script =
        "trap '' TERM; (trap '' TERM; setsid sleep 600) & echo up; while :; do sleep 0.02; done";
    let alloc = service(1, script)
        .kill_timeout(Duration::from_millis(200))
        .build();
    let alloc_id = server.place(alloc).await;
    wait_for_line(&server, alloc_id, "up").await;

    server.stop(alloc_id).await;
    let task = server.status(alloc_id, ClientStatus::Complete).await;

    assert_eq!(
        exits(&task),
        [Exit {
            signal: 9,
            ..Exit::default()
        }]
    );
    // The child that left its session went with the cgroup.
    assert!(!machine.tree().join(alloc_id.to_string()).exists());
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_limit_is_reported_as_out_of_memory() {
    let name = "memory_limit_is_reported_as_out_of_memory";
    if !privileged(name) {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.agent(&server).await;
    let node = server.node(|_| true).await;
    if node
        .attributes
        .get("cgroup.memory")
        .is_none_or(|mode| mode == "absent")
    {
        skipped(name, "no memory controller; run: cargo xtask vm");
        return agent.end().await;
    }

    let alloc_id = server
        .place(batch(1, "exec tail /dev/zero").memory_mb(16).build())
        .await;
    let task = server.status(alloc_id, ClientStatus::Failed).await;

    let exit = exits(&task)[0];
    assert!(exit.oom_killed && exit.signal == 9, "{exit:?}");
    let words: Vec<_> = task
        .events
        .iter()
        .map(|event| event.message.as_str())
        .collect();
    assert!(
        words.iter().any(|words| words.contains("limit 16.0 MiB")),
        "{words:?}"
    );
    if node
        .attributes
        .get("ebpf.object")
        .is_some_and(|hash| hash != "absent")
    {
        assert!(
            // It alone, or the last of them, where the kernel kills the group as a whole.
            words
                .iter()
                .any(|words| words.contains("(tail)") || words.contains("last one tail")),
            "{words:?}"
        );
    }
    agent.end().await;
}

/// The main process goes on where the kernel does not kill the group as a whole (cgroup v1).
#[tokio::test(flavor = "multi_thread")]
async fn oom_killed_child_is_named_in_task_end() {
    let name = "oom_killed_child_is_named_in_task_end";
    if !privileged(name) {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.agent(&server).await;
    let node = server.node(|_| true).await;
    let attribute = |key: &str| node.attributes.get(key).map_or("absent", String::as_str);
    if attribute("cgroup.memory") == "absent" || attribute("ebpf.object") == "absent" {
        skipped(
            name,
            "no memory controller, or no eBPF object; run: cargo xtask vm",
        );
        return agent.end().await;
    }

    let script = "tail /dev/zero; exit 0";
    let alloc_id = server.place(batch(1, script).memory_mb(16).build()).await;
    let ended = if attribute("cgroup.memory") == "v1" {
        ClientStatus::Complete
    } else {
        ClientStatus::Failed
    };
    let task = server.status(alloc_id, ended).await;

    let exit = exits(&task)[0];
    assert!(exit.oom_killed, "{exit:?}");
    assert!(
        task.events
            .iter()
            .any(|event| event.message.contains("tail")),
        "{:?}",
        task.events
    );
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn statistics_cover_every_task() {
    if !privileged("statistics_cover_every_task") {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.agent(&server).await;
    let alloc_id = server.place(service(1, "echo up; sleep 600").build()).await;
    wait_for_line(&server, alloc_id, "up").await;
    server.status(alloc_id, ClientStatus::Running).await;

    let replies = server
        .ask(NodeRequest::NodeStats, |replies| !replies.is_empty())
        .await;

    let NodeReply::NodeStats(stats) = &replies[0] else {
        panic!("{replies:?}")
    };
    assert!(stats.memory_total_bytes > 0 && stats.agent_resident_bytes > 0);
    let task = &stats.allocs[0].tasks["main"];
    assert_eq!(stats.allocs[0].alloc_id, alloc_id);
    assert!(
        task.pid > 0 && task.log_bytes == 3 && task.cpu.is_some(),
        "{task:?}"
    );
    let values = serde_json::to_value(task).unwrap();
    for (value, found) in values.as_object().unwrap() {
        let has_reason = task.absent.contains_key(value) || value == "network";
        assert!(!found.is_null() || has_reason, "{value}: {task:?}");
    }
    agent.end().await;
}

/// The first point comes with the agent's next look at its tasks, in ten seconds.
#[tokio::test(flavor = "multi_thread")]
async fn history_of_a_task_begins_with_it() {
    if !privileged("history_of_a_task_begins_with_it") {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.agent(&server).await;
    let alloc_id = server.place(service(1, "echo up; sleep 600").build()).await;
    wait_for_line(&server, alloc_id, "up").await;
    let request = NodeRequest::AllocHistory { alloc_id };

    let history = eventually("a point", async || {
        let replies = server.ask(request.clone(), |replies| !replies.is_empty());
        match replies.await.first()? {
            NodeReply::AllocHistory(history) => {
                let main = &history.tasks["main"];
                assert_eq!(main.points.is_empty(), main.absent.contains_key("history"));
                (!main.points.is_empty()).then(|| (**history).clone())
            }
            // The process is a moment older than what the agent knows of it.
            _ => None,
        }
    })
    .await;

    let main = &history.tasks["main"];
    let point = main.points[0];
    assert_eq!(history.alloc_id, alloc_id);
    assert!(
        point.at > history.since && point.span <= history.step * 2,
        "{history:?}"
    );
    assert!(point.cpu.is_some_and(|cpu| cpu > Duration::ZERO) || main.absent.contains_key("cpu"));
    for (value, is_reported) in [
        ("memory_bytes", point.memory_bytes.is_some()),
        ("context_switches", point.context_switches > Some(0)),
        ("tcp_retransmits", point.tcp_retransmits == Some(0)),
        ("throttled", point.throttled == Some(Duration::ZERO)),
        ("pressure_cpu", point.pressure_cpu.is_some()),
        ("pressure_memory", point.pressure_memory.is_some()),
        ("pressure_io", point.pressure_io.is_some()),
    ] {
        assert_ne!(
            is_reported,
            main.absent.contains_key(value),
            "{value}: {history:?}"
        );
    }
    let nobody = NodeRequest::AllocHistory {
        alloc_id: muster_domain::id::AllocId([9; 16]),
    };
    let replies = server.ask(nobody, |replies| !replies.is_empty()).await;
    assert!(matches!(
        replies[0],
        NodeReply::Failed {
            kind: FailureKind::NotFound,
            ..
        }
    ));
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_followed_log_shows_that_the_node_lives() {
    if !privileged("a_followed_log_shows_that_the_node_lives") {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.agent(&server).await;
    let alloc_id = server.place(service(1, "echo up; sleep 600").build()).await;
    wait_for_line(&server, alloc_id, "up").await;
    let request = LogsRequest {
        alloc_id,
        task: "main".to_owned(),
        stream: LogStream::Stdout,
        from: LogOrigin::End(2),
        follow: true,
    };

    let replies = server
        .ask(NodeRequest::Logs(request), |replies| replies.len() == 2)
        .await;

    let data = NodeReply::LogData {
        file: "main.stdout.0".into(),
        offset: 3,
        data: b"p\n".into(),
    };
    assert_eq!(replies, [data, NodeReply::Idle]);
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_followed_log_ends_with_its_task() {
    if !privileged("a_followed_log_ends_with_its_task") {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.agent(&server).await;
    let alloc_id = server
        .place(batch(1, "echo first; sleep 0.3; echo last").build())
        .await;
    wait_for_line(&server, alloc_id, "first").await;
    let request = LogsRequest {
        alloc_id,
        task: "main".to_owned(),
        stream: LogStream::Stdout,
        from: LogOrigin::Start(0),
        follow: true,
    };

    let replies = server.ask(NodeRequest::Logs(request), |_| false).await;

    let data = replies.into_iter().filter_map(|reply| match reply {
        NodeReply::LogData { data, .. } => Some(data),
        _ => None,
    });
    assert_eq!(data.flatten().collect::<Vec<u8>>(), b"first\nlast\n");
    agent.end().await;
}

/// As many readers as a node takes, and none of them reads: the next one is told so, questions are answered all the
/// same, and what lies between the two is a few megabytes and no thread for each.
#[tokio::test(flavor = "multi_thread")]
async fn readers_that_do_not_read_are_bounded() {
    const READERS_MAX: usize = 1_024;
    if !privileged("readers_that_do_not_read_are_bounded") {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.agent(&server).await;
    let job = service(1, "head -c 9000000 /dev/zero; echo; sleep 600");
    let alloc_id = server.place(job.build()).await;
    let follow = NodeRequest::ReadLogs(LogsRequest {
        alloc_id,
        task: "main".to_owned(),
        stream: LogStream::Stdout,
        from: LogOrigin::At(0),
        follow: true,
    });
    let pid = server.pid(alloc_id).await;
    let (rss, threads) = (status_number("VmRSS:"), status_number("Threads:"));

    let mut readers = Vec::new();
    for reader in 0..READERS_MAX {
        let (taken, mut replies) = server.open(&follow).await;
        let first = replies.recv::<NodeReply>().await.unwrap();
        assert!(
            matches!(first, Some(NodeReply::LogPiece(_) | NodeReply::Idle)),
            "{reader}: {first:?}"
        );
        readers.push((taken, replies));
    }
    let (_taken, mut replies) = server.open(&follow).await;
    let refused = replies.recv::<NodeReply>().await.unwrap();

    let Some(NodeReply::Failed { reason, kind }) = refused else {
        panic!("{refused:?}")
    };
    assert_eq!(kind, FailureKind::TooMany);
    assert!(reason.contains("1024 readers of logs"), "{reason}");
    assert_eq!(server.pid(alloc_id).await, pid);
    let grown = status_number("VmRSS:").saturating_sub(rss);
    println!("{READERS_MAX} readers that do not read: {grown} KiB more, both ends together");
    assert!(grown < 128 * 1024, "{grown} KiB");
    // Other tests of this process come and go.
    let more = status_number("Threads:").saturating_sub(threads);
    assert!(more < READERS_MAX as u64 / 4, "{more} threads");

    // One that leaves makes room.
    drop(readers.pop());
    let (_taken, mut replies) = server.open(&follow).await;
    let again = replies.recv::<NodeReply>().await.unwrap();
    assert!(again.is_some(), "{again:?}");
    drop(readers);
    agent.end().await;
}

/// A number of `/proc/self/status`.
fn status_number(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn logs_of_an_unknown_allocation_are_refused() {
    if !privileged("logs_of_an_unknown_allocation_are_refused") {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.agent(&server).await;
    server.node(|_| true).await;

    let words = server
        .log(batch(9, "").build().alloc_id, LogStream::Stdout)
        .await;

    assert!(words.contains("kind: NotFound"), "{words}");
    agent.end().await;
}

async fn wait_for_line(
    server: &crate::support::FakeServer,
    alloc_id: muster_domain::id::AllocId,
    line: &str,
) {
    eventually("a line in the log", async || {
        let log = server.log(alloc_id, LogStream::Stdout).await;
        log.lines().any(|found| found == line).then_some(())
    })
    .await;
}
