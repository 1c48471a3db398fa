//! Agents and drivers that are killed, and what comes after them.

use std::path::{Path, PathBuf};

use muster_domain::alloc::{ClientStatus, Exit, TaskEventKind, TaskState};
use muster_domain::id::AllocId;
use muster_wire::rpc::{LogStream, NodeReply, NodeRequest};

use crate::support::{
    FakeServer, Machine, batch, ended, eventually, privileged, service, skipped, start_ticks,
};

/// Writes a number a line, each once and in order.
const COUNTER: &str = "i=0; while :; do echo $i; i=$((i+1)); sleep 0.005; done";

fn has(task: &TaskState, wanted: fn(&TaskEventKind) -> bool) -> bool {
    task.events.iter().any(|event| wanted(&event.kind))
}

fn recovered(task: &TaskState) -> bool {
    has(task, |kind| matches!(kind, TaskEventKind::Recovered))
}

/// Lines of the counter so far, checked to be each once and in order.
async fn counted(server: &FakeServer, alloc_id: AllocId) -> usize {
    let log = server.log(alloc_id, LogStream::Stdout).await;
    let whole = log.rsplit_once('\n').map_or("", |(whole, _)| whole);
    for (at, line) in whole.lines().enumerate() {
        assert_eq!(line, at.to_string(), "the log has a gap or a repetition");
    }
    whole.lines().count()
}

async fn count_reaches(server: &FakeServer, alloc_id: AllocId, wanted: usize) {
    eventually("the counter goes on", async || {
        (counted(server, alloc_id).await >= wanted).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_agent_leaves_tasks_to_the_next() {
    if !privileged("a_killed_agent_leaves_tasks_to_the_next") {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.killable_agent(&server);
    let alloc_id = server.place(service(1, COUNTER).build()).await;
    count_reaches(&server, alloc_id, 20).await;
    let pid = server.pid(alloc_id).await;
    let start = start_ticks(pid).unwrap();

    agent.kill();
    for _ in 0..3 {
        let sessions = server.sessions();
        assert_eq!(start_ticks(pid), Some(start));
        let next = machine.killable_agent(&server);
        eventually("a session", async || {
            (server.sessions() > sessions).then_some(())
        })
        .await;
        let before = server
            .log(alloc_id, LogStream::Stdout)
            .await
            .lines()
            .count();
        let task = server
            .reported(alloc_id, "recovered", |task, _| recovered(task))
            .await;
        assert_eq!(task.restarts, 0);
        count_reaches(&server, alloc_id, before + 20).await;
        assert_eq!(
            (server.pid(alloc_id).await, start_ticks(pid)),
            (pid, Some(start))
        );
        next.kill();
    }

    let agent = machine.agent(&server).await;
    server.stop(alloc_id).await;
    server.status(alloc_id, ClientStatus::Complete).await;
    assert!(ended(pid));
    agent.end().await;
}

/// Somebody writes into a task's files while nobody watches.
#[tokio::test(flavor = "multi_thread")]
async fn changed_limit_is_restored_after_agent_restart() {
    let name = "changed_limit_is_restored_after_agent_restart";
    if !privileged(name) {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.killable_agent(&server);
    let alloc_id = server.place(service(1, COUNTER).build()).await;
    count_reaches(&server, alloc_id, 1).await;
    let Some(limit) = pids_limit(&machine, alloc_id) else {
        skipped(name, "no pids controller; run: cargo xtask vm");
        return agent.kill();
    };
    let wanted = std::fs::read_to_string(&limit).unwrap();
    agent.kill();
    std::fs::write(&limit, "7").unwrap();

    let agent = machine.agent(&server).await;

    let message = format!(
        "limits were not the task's: pids.max was 7 and is {} again",
        wanted.trim()
    );
    server
        .reported(alloc_id, "told of the limit", |task, _| {
            task.events.iter().any(|event| event.message == message)
        })
        .await;
    assert_eq!(std::fs::read_to_string(&limit).unwrap(), wanted);
    let stats = server.ask(NodeRequest::NodeStats, |replies| !replies.is_empty());
    let NodeReply::NodeStats(stats) = &stats.await[0] else {
        panic!("not the node's statistics");
    };
    assert_eq!(stats.limits_repaired, 1);
    server.stop(alloc_id).await;
    server.status(alloc_id, ClientStatus::Complete).await;
    agent.end().await;
}

/// The file that bounds the processes of the allocation's task; `None` if this machine has no such controller.
fn pids_limit(machine: &Machine, alloc_id: AllocId) -> Option<PathBuf> {
    let record = std::fs::read(machine.data().join("cgroup-tree.json")).unwrap();
    let record: serde_json::Value = serde_json::from_slice(&record).unwrap();
    let roots = record["bound"].as_object().unwrap().values();
    let roots = roots.map(|bound| bound["root"].as_str().unwrap());
    let tasks = roots.map(|root| Path::new(root).join(alloc_id.to_string()));
    let mut limits = tasks.flat_map(|alloc| {
        let dirs = std::fs::read_dir(alloc).into_iter().flatten();
        dirs.filter_map(|dir| Some(dir.ok()?.path().join("pids.max")))
    });
    limits.find(|limit| limit.exists())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_leaves_keeps_its_tasks() {
    if !privileged("an_agent_that_leaves_keeps_its_tasks") {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.agent(&server).await;
    let alloc_id = server.place(service(1, COUNTER).build()).await;
    count_reaches(&server, alloc_id, 5).await;
    let pid = server.pid(alloc_id).await;

    agent.leave().await;
    assert!(!ended(pid));
    let agent = machine.agent(&server).await;
    let task = server
        .reported(alloc_id, "recovered", |task, _| recovered(task))
        .await;

    assert_eq!(task.restarts, 0);
    assert_eq!(server.pid(alloc_id).await, pid);
    agent.end().await;
    assert!(ended(pid));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_driver_is_replaced() {
    if !privileged("a_killed_driver_is_replaced") {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.agent(&server).await;
    let alloc_id = server.place(service(1, COUNTER).build()).await;
    count_reaches(&server, alloc_id, 5).await;
    let pid = server.pid(alloc_id).await;
    let start = start_ticks(pid);

    let first = machine.kill_driver().await;
    let (second, _) = machine.driver().await;
    assert_ne!(first, second);
    let before = counted(&server, alloc_id).await;
    count_reaches(&server, alloc_id, before + 20).await;
    assert_eq!((server.pid(alloc_id).await, start_ticks(pid)), (pid, start));

    // The new driver can do with the task what the old one could.
    let other = server.place(batch(2, "exit 0").build()).await;
    server.status(other, ClientStatus::Complete).await;
    server.stop(alloc_id).await;
    let task = server.status(alloc_id, ClientStatus::Complete).await;
    assert_eq!(task.restarts, 0);
    assert!(ended(pid));
    agent.end().await;
}

/// Agent and driver die together, twice, with thirty tasks that each write a counter.
#[tokio::test(flavor = "multi_thread")]
async fn many_tasks_survive_both_being_killed() {
    const TASKS: u32 = 30;
    if !privileged("many_tasks_survive_both_being_killed") {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let mut agent = machine.killable_agent(&server);
    let mut tasks = Vec::new();
    for name in 0..TASKS {
        let slow = "i=0; while :; do echo $i; i=$((i+1)); sleep 0.05; done";
        tasks.push(server.place(service(name, slow).build()).await);
    }
    let mut processes = Vec::new();
    for alloc_id in &tasks {
        count_reaches(&server, *alloc_id, 1).await;
        let pid = server.pid(*alloc_id).await;
        processes.push((pid, start_ticks(pid)));
    }

    for _ in 0..2 {
        agent.kill();
        machine.kill_driver().await;
        let sessions = server.sessions();
        agent = machine.killable_agent(&server);
        eventually("a session", async || {
            (server.sessions() > sessions).then_some(())
        })
        .await;
        for alloc_id in &tasks {
            let found = |task: &TaskState, _| recovered(task);
            assert_eq!(
                server
                    .reported(*alloc_id, "recovered", found)
                    .await
                    .restarts,
                0
            );
        }
    }

    for (alloc_id, (pid, start)) in tasks.iter().zip(processes) {
        let before = counted(&server, *alloc_id).await;
        count_reaches(&server, *alloc_id, before + 2).await;
        assert_eq!(server.pid(*alloc_id).await, pid);
        assert_eq!(start_ticks(pid), start);
        server.stop(*alloc_id).await;
    }
    for alloc_id in tasks {
        server.status(alloc_id, ClientStatus::Complete).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unobserved_exit_is_reported() {
    let name = "unobserved_exit_is_reported";
    if !privileged(name) {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.killable_agent(&server);
    let node = server.node(|node| node.has_driver("native")).await;
    if node
        .attributes
        .get("ebpf.object")
        .is_none_or(|object| object == "absent")
    {
        let why = node
            .attributes
            .get("ebpf.reason")
            .cloned()
            .unwrap_or_default();
        skipped(
            name,
            &format!("no eBPF programs: {why}; run: cargo xtask build-ebpf"),
        );
        return;
    }
    let gate = machine.data().join("gate");
    let script = format!(
        "while ! [ -e {} ]; do sleep 0.02; done; exit 42",
        gate.display()
    );
    let alloc_id = server.place(batch(1, &script).raw().build()).await;
    let pid = server.pid(alloc_id).await;

    agent.kill();
    machine.kill_driver().await;
    std::fs::write(&gate, "").unwrap();
    eventually("the task's end", async || ended(pid).then_some(())).await;
    let agent = machine.agent(&server).await;
    let task = server.status(alloc_id, ClientStatus::Failed).await;

    let exit = Exit {
        code: 42,
        ..Exit::default()
    };
    assert!(
        task.events
            .iter()
            .any(|event| event.kind == TaskEventKind::Terminated(exit)),
        "{task:?}"
    );
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn restarted_agent_reports_exit_recorded_by_driver() {
    if !privileged("restarted_agent_reports_exit_recorded_by_driver") {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.killable_agent(&server);
    let gate = machine.data().join("gate");
    let script = format!(
        "while ! [ -e {} ]; do sleep 0.02; done; echo late; exit 42",
        gate.display()
    );
    let alloc_id = server.place(batch(1, &script).raw().build()).await;
    let pid = server.pid(alloc_id).await;

    agent.kill();
    std::fs::write(&gate, "").unwrap();
    eventually("the task's end", async || ended(pid).then_some(())).await;
    let agent = machine.agent(&server).await;
    let task = server.status(alloc_id, ClientStatus::Failed).await;

    let exit = Exit {
        code: 42,
        ..Exit::default()
    };
    assert!(
        task.events
            .iter()
            .any(|event| event.kind == TaskEventKind::Terminated(exit)),
        "{task:?}"
    );
    // What it wrote meanwhile was kept by the driver's end of the FIFO.
    assert_eq!(server.log(alloc_id, LogStream::Stdout).await, "late\n");
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_store_loses_no_task() {
    if !privileged("a_lost_store_loses_no_task") {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.killable_agent(&server);
    let alloc_id = server.place(service(1, COUNTER).build()).await;
    count_reaches(&server, alloc_id, 5).await;
    let pid = server.pid(alloc_id).await;

    agent.kill();
    std::fs::write(machine.data().join("agent.redb"), "garbage").unwrap();
    let agent = machine.agent(&server).await;
    server
        .reported(alloc_id, "recovered", |task, _| recovered(task))
        .await;

    assert!(machine.data().join("agent.redb.corrupt-1").exists());
    let before = counted(&server, alloc_id).await;
    count_reaches(&server, alloc_id, before + 5).await;
    assert_eq!(server.pid(alloc_id).await, pid);
    server.stop(alloc_id).await;
    server.status(alloc_id, ClientStatus::Complete).await;
    assert!(ended(pid));
    agent.end().await;
}

/// As when the agent dies between the start of a task and the record of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_start_without_its_record_is_found() {
    if !privileged("a_start_without_its_record_is_found") {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.killable_agent(&server);
    let alloc_id = server.place(service(1, COUNTER).build()).await;
    count_reaches(&server, alloc_id, 5).await;
    let pid = server.pid(alloc_id).await;

    agent.kill();
    let tasks = redb::TableDefinition::<&[u8], &[u8]>::new("tasks");
    let database = redb::Database::open(machine.data().join("agent.redb")).unwrap();
    let transaction = database.begin_write().unwrap();
    transaction.delete_table(tasks).unwrap();
    transaction.open_table(tasks).unwrap();
    transaction.commit().unwrap();
    drop(database);
    let agent = machine.agent(&server).await;
    let task = server
        .reported(alloc_id, "recovered", |task, _| recovered(task))
        .await;

    assert_eq!(task.restarts, 0);
    let before = counted(&server, alloc_id).await;
    count_reaches(&server, alloc_id, before + 5).await;
    assert_eq!(server.pid(alloc_id).await, pid);
    agent.end().await;
}

/// The control plane believes it runs, nothing of it is here, and it is not started a second time.
#[tokio::test(flavor = "multi_thread")]
async fn missing_task_fails_without_a_restart() {
    if !privileged("missing_task_fails_without_a_restart") {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let mut alloc = service(1, "echo up; sleep 600").build();
    alloc.client_status = ClientStatus::Running;
    let alloc_id = server.place(alloc).await;

    let agent = machine.agent(&server).await;
    let task = server.status(alloc_id, ClientStatus::Failed).await;

    assert!(
        !has(&task, |kind| matches!(kind, TaskEventKind::Started)),
        "{task:?}"
    );
    agent.end().await;
}
