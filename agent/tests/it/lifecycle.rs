//! Tasks that come first and last, delays, dispatched payloads, health, and life without servers.

use std::time::Duration;

use muster_domain::alloc::{ClientStatus, TaskPhase};
use muster_domain::job::{LaunchOrigin, Lifecycle, LifecycleHook};
use muster_wire::rpc::LogStream;

use crate::support::{Machine, batch, eventually, privileged, service};

fn hook(hook: LifecycleHook, sidecar: bool) -> Lifecycle {
    Lifecycle { hook, sidecar }
}

/// A line in a file that the group's tasks share.
fn append_line(word: &str) -> String {
    format!("echo {word} >> $NOMAD_ALLOC_DIR/data/order")
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_of_a_group_follow_each_other() {
    if !privileged("tasks_of_a_group_follow_each_other") {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.agent(&server).await;
    let last = format!(
        "trap '{}; exit 0' TERM; {}; sleep 600 & wait",
        append_line("proxy-ends"),
        append_line("proxy")
    );

    // It ends only when the poststart task runs, however slow the machine is.
    let main = format!(
        "until grep -q '^proxy$' \"$NOMAD_ALLOC_DIR/data/order\"; do sleep 0.1; done; {}",
        append_line("main")
    );
    let alloc = batch(1, &main)
        .task(
            "first",
            &append_line("first"),
            hook(LifecycleHook::Prestart, false),
        )
        .task("proxy", &last, hook(LifecycleHook::Poststart, true))
        .task(
            "last",
            &append_line("last"),
            hook(LifecycleHook::Poststop, false),
        )
        .build();
    let alloc_id = server.place(alloc).await;
    server.status(alloc_id, ClientStatus::Complete).await;

    let order = machine.alloc_dir(alloc_id).join("alloc/data/order");
    let order = std::fs::read_to_string(order).unwrap();
    assert_eq!(order, "first\nproxy\nmain\nproxy-ends\nlast\n");
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stop_honours_shutdown_delay_and_poststop() {
    if !privileged("stop_honours_shutdown_delay_and_poststop") {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.agent(&server).await;
    let script = format!(
        "trap '{}; exit 0' TERM; sleep 600 & wait",
        append_line("main-ends")
    );

    let alloc = service(1, &script)
        .task(
            "last",
            &append_line("last"),
            hook(LifecycleHook::Poststop, false),
        )
        .with(|spec, _| spec.groups[0].shutdown_delay = Duration::from_millis(700))
        .build();
    let alloc_id = server.place(alloc).await;
    server
        .reported(alloc_id, "running", |task, _| {
            task.phase == TaskPhase::Running
        })
        .await;
    let asked = std::time::Instant::now();
    server.stop(alloc_id).await;
    server.status(alloc_id, ClientStatus::Complete).await;

    assert!(asked.elapsed() >= Duration::from_millis(700));
    let order = machine.alloc_dir(alloc_id).join("alloc/data/order");
    assert_eq!(std::fs::read_to_string(order).unwrap(), "main-ends\nlast\n");
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_payload_is_there_before_the_task() {
    if !privileged("a_payload_is_there_before_the_task") {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.agent(&server).await;

    let alloc = batch(
        1,
        "cat $NOMAD_TASK_DIR/in/payload; echo $NOMAD_META_USER $NOMAD_JOB_PARENT_ID",
    )
    .user("nobody")
    .with(|spec, _| {
        spec.meta.insert("user".to_owned(), "ann".to_owned());
        spec.groups[0].tasks[0].payload_file = "in/payload".to_owned();
        spec.launched = Some(LaunchOrigin {
            parent_id: "parent".to_owned(),
            dispatched: true,
            payload: b"hello\n".to_vec(),
            idempotency_token: String::new(),
        });
    })
    .build();
    let alloc_id = server.place(alloc).await;
    server.status(alloc_id, ClientStatus::Complete).await;

    let log = server.log(alloc_id, LogStream::Stdout).await;
    assert_eq!(log, "hello\nann parent\n");
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn health_is_reported_once_it_is_known() {
    if !privileged("health_is_reported_once_it_is_known") {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.agent(&server).await;
    let judged = |name, script: &str| {
        let alloc = service(name, script).deployed();
        alloc.with(|spec, _| {
            let update = spec.groups[0].update.get_or_insert_default();
            // Longer than a busy machine takes to start and end `exit 1`.
            update.min_healthy_time = Duration::from_secs(2);
        })
    };

    let good = server.place(judged(1, "sleep 600").build()).await;
    let bad = server.place(judged(2, "exit 1").build()).await;
    let healthy =
        async |alloc_id| eventually("an answer", async || server.report(alloc_id)?.healthy).await;

    assert!(healthy(good).await);
    assert!(!healthy(bad).await);
    agent.end().await;
}

/// The server is lost for good; the task of the other allocation may run without it.
#[tokio::test(flavor = "multi_thread")]
async fn stop_on_client_after_ends_disconnected_task() {
    if !privileged("stop_on_client_after_ends_disconnected_task") {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.agent(&server).await;

    let bound = service(1, "sleep 600").with(|spec, _| {
        spec.groups[0].disconnect.stop_on_client_after = Some(Duration::from_secs(2));
    });
    let bound = server.place(bound.build()).await;
    let free = server.place(service(2, "sleep 600").build()).await;
    for alloc_id in [bound, free] {
        server.status(alloc_id, ClientStatus::Running).await;
    }
    let (pid, free_pid) = (server.pid(bound).await, server.pid(free).await);
    server.leaderless(true);
    eventually("the end of the task", async || {
        crate::support::ended(pid).then_some(())
    })
    .await;
    assert!(!crate::support::ended(free_pid));

    server.leaderless(false);
    server.status(bound, ClientStatus::Complete).await;
    let report = server.report(bound).unwrap();
    assert_eq!(report.client_description, "stopped: no server was in reach");
    agent.end().await;
}

/// Each agent lives for a shorter time than the task may run without a server, and none hears of a leader.
#[tokio::test(flavor = "multi_thread")]
async fn repeated_agent_crashes_do_not_extend_disconnect_deadline() {
    if !privileged("repeated_agent_crashes_do_not_extend_disconnect_deadline") {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let bound = service(1, "sleep 600").with(|spec, _| {
        spec.groups[0].disconnect.stop_on_client_after = Some(Duration::from_secs(6));
    });
    let mut agent = machine.killable_agent(&server);
    let alloc_id = server.place(bound.build()).await;
    server.status(alloc_id, ClientStatus::Running).await;
    let pid = server.pid(alloc_id).await;
    eventually("a contact that is stored", async || {
        let kept = std::fs::read(machine.data().join("contact"));
        kept.is_ok_and(|kept| !kept.is_empty()).then_some(())
    })
    .await;
    server.leaderless(true);

    let deadline = std::time::Instant::now() + crate::support::DEADLINE;
    while !crate::support::ended(pid) {
        assert!(std::time::Instant::now() < deadline, "the task runs on");
        agent.kill();
        let sessions = server.sessions();
        agent = machine.killable_agent(&server);
        eventually("the next agent", async || {
            (server.sessions() > sessions).then_some(())
        })
        .await;
        // Its life, after which the next one would have the whole time before it.
        tokio::time::sleep(Duration::from_secs(2)).await;
    }

    server.leaderless(false);
    server.status(alloc_id, ClientStatus::Complete).await;
    let report = server.report(alloc_id).unwrap();
    assert_eq!(report.client_description, "stopped: no server was in reach");
    agent.kill();
}
