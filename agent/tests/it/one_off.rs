//! One-off tasks: what they do is done at most once, and what came of it is reported.

use std::time::Duration;

use muster_domain::alloc::{ClientStatus, TaskPhase};
use muster_domain::id::AllocId;
use muster_domain::one_off::{Definition, WorkEnd};
use redb::ReadableTable as _;
use serde_json::{Value, json};

use crate::support::{FakeServer, Machine, eventually, one_off, privileged};

fn run(script: &str) -> Value {
    json!({"run": {"path": "/bin/sh", "args": ["-c", script], "user": "vcap"}})
}

fn definition(action: &Value, result_file: &str) -> Definition {
    let definition = json!({
        "rootfs": "preloaded:host", "action": action, "log_source": "VIZ",
        "result_file": result_file, "memory_mb": 64, "max_pids": 50,
        "env": [{"name": "WHO", "value": "me"}],
    });
    serde_json::from_value(definition).unwrap()
}

/// The end that was reported with the allocation's last status.
async fn end(server: &FakeServer, alloc_id: AllocId) -> WorkEnd {
    eventually("an end", async || {
        let report = server.report(alloc_id)?;
        assert!(report.end.is_none() || report.client_status.is_terminal());
        report.end.map(|end| *end)
    })
    .await
}

/// The snapshots in the store, which are replaced by others if some are given.
fn snapshots(machine: &Machine, by: Option<Vec<(Vec<u8>, Vec<u8>)>>) -> Vec<(Vec<u8>, Vec<u8>)> {
    let table = redb::TableDefinition::<&[u8], &[u8]>::new("snapshots");
    let database = redb::Database::open(machine.data().join("agent.redb")).unwrap();
    let transaction = database.begin_write().unwrap();
    let mut rows = transaction.open_table(table).unwrap();
    let found = rows
        .iter()
        .unwrap()
        .map(|row| {
            let (key, value) = row.unwrap();
            (key.value().to_vec(), value.value().to_vec())
        })
        .collect();
    for (key, value) in by.unwrap_or_default() {
        rows.insert(key.as_slice(), value.as_slice()).unwrap();
    }
    drop(rows);
    transaction.commit().unwrap();
    found
}

/// The home is writable for a user of the machine too, and a result there is found.
#[tokio::test(flavor = "multi_thread")]
async fn one_off_task_has_a_writable_home() {
    if !privileged("one_off_task_has_a_writable_home") {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let _agent = machine.agent(&server).await;
    let script =
        "echo $USER $HOME $CF_INSTANCE_PORTS ${CF_INSTANCE_IP:+ip} > $HOME/r; touch /app/x /tmp/x";
    let mut as_daemon = run("cd && echo more > other && test -w /app");
    as_daemon["run"]["user"] = json!("daemon");
    let tree =
        json!({"serial": {"actions": [run(script), as_daemon, run("cat $HOME/other >> $HOME/r")]}});

    let alloc_id = server
        .place(one_off(1, &definition(&tree, "/home/vcap/r")).build())
        .await;
    let end = end(&server, alloc_id).await;

    assert!(!end.failed, "{end:?}");
    assert_eq!(end.result, "vcap /home/vcap [] ip\nmore\n", "{end:?}");
}

/// A limit of zero is none: the task gets more than the 300 MiB of a job's default.
#[tokio::test(flavor = "multi_thread")]
async fn zero_memory_is_no_limit() {
    if !privileged("zero_memory_is_no_limit") {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let _agent = machine.agent(&server).await;
    let fill = "head -c 400M /dev/zero | tail -c 400M | wc -c > /tmp/r";
    let mut unlimited = definition(&run(fill), "/tmp/r");
    unlimited.memory_mb = 0;

    let alloc_id = server.place(one_off(1, &unlimited).build()).await;
    let end = end(&server, alloc_id).await;

    assert!(!end.failed, "{end:?}");
    assert_eq!(end.result, "419430400\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_one_off_task_reports_its_result() {
    if !privileged("a_one_off_task_reports_its_result") {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.agent(&server).await;
    let tree = json!({"serial": {"actions": [
        run("echo $WHO > /tmp/r; WHO=you; echo ${WHO} ${NOMAD_TASK_NAME} >> /tmp/r"), run("cat /proc/net/dev | wc -l >> /tmp/r"),
    ]}});

    let alloc_id = server
        .place(one_off(1, &definition(&tree, "/tmp/r")).build())
        .await;
    let end = end(&server, alloc_id).await;

    server.status(alloc_id, ClientStatus::Complete).await;
    assert!(!end.failed, "{end:?}");
    // Two lines of headings and `lo`: nothing may go out that is not asked for.
    assert_eq!(end.result, "me\nyou task\n3\n");
    assert_eq!(end.exit.map(|exit| exit.code), Some(0));
    assert!(end.usage.cpu.is_some() && end.at.0 > 0, "{end:?}");
    agent.end().await;
}

/// The names that a client gives its log are in the task's environment, as any job's metadata is.
#[tokio::test(flavor = "multi_thread")]
async fn one_off_task_environment_has_log_names() {
    if !privileged("one_off_task_environment_has_log_names") {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.agent(&server).await;
    let words = "echo $NOMAD_META_log_guid $NOMAD_META_LOG_GUID $NOMAD_META_log_source";
    let mut named = definition(&run(&format!("{words} > r")), "r");
    "app-7".clone_into(&mut named.log_guid);
    let mut unnamed = definition(&run("env | grep -c NOMAD_META_ > r; true"), "r");
    unnamed.log_source.clear();

    let named = server.place(one_off(1, &named).build()).await;
    let named = end(&server, named).await;
    let unnamed = server.place(one_off(2, &unnamed).build()).await;
    let unnamed = end(&server, unnamed).await;

    assert_eq!(named.result, "app-7 app-7 VIZ\n", "{named:?}");
    // The domain, under both of its names: what is not said is left out.
    assert_eq!(unnamed.result, "2\n", "{unnamed:?}");
    agent.end().await;
}

/// The same totals that a task's counters had when it ended: of all its actions, from the kernel.
#[tokio::test(flavor = "multi_thread")]
async fn a_one_off_task_reports_its_usage() {
    if !privileged("a_one_off_task_reports_its_usage") {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.agent(&server).await;
    let speak = "for at in 1 2 3; do echo hello > /dev/udp/127.0.0.1/9; done";
    let tree = json!({"serial": {"actions": [
        {"run": {"path": "/bin/bash", "args": ["-c", speak], "user": "vcap"}}, run("/bin/true; exit"),
    ]}});

    let alloc_id = server
        .place(one_off(1, &definition(&tree, "")).build())
        .await;
    let end = end(&server, alloc_id).await;

    assert!(!end.failed, "{end:?}");
    let counted = end.usage.counted.expect("what eBPF programs counted");
    // Headers of IP and UDP, and six bytes.
    assert_eq!(
        (counted.net_tx_packets, counted.net_tx_bytes),
        (3, 3 * (20 + 8 + 6)),
        "{counted:?}"
    );
    assert!(counted.forks >= 1, "{counted:?}");
    assert!(end.usage.cpu.is_some_and(|cpu| !cpu.is_zero()), "{end:?}");
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_off_failures_have_reasons() {
    if !privileged("one_off_failures_have_reasons") {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.agent(&server).await;
    let place = async |name, tree: Value| {
        let alloc_id = server
            .place(one_off(name, &definition(&tree, "")).build())
            .await;
        end(&server, alloc_id).await
    };

    let failed = place(
        1,
        json!({"serial": {"actions": [run("true"), run("exit 7")]}}),
    )
    .await;
    assert_eq!(failed.failure_reason, "VIZ: Exited with status 7");
    assert_eq!(failed.failed_action, "serial[1].run");
    assert_eq!(failed.exit.map(|exit| exit.code), Some(7));

    let eater = place(2, run("head -c 200000000 /dev/zero | tail")).await;
    assert!(
        eater.failure_reason.ends_with("(out of memory)"),
        "{eater:?}"
    );
    let oom = eater.oom.expect("what is known of the kill");
    assert_eq!((oom.limit_bytes, oom.process.as_str()), (64 << 20, "tail"));
    assert!(oom.peak_bytes > 32 << 20, "{oom:?}");

    // The node does not fetch from itself unless it is told to.
    let download =
        json!({"download": {"from": "http://127.0.0.1:1/", "to": "/tmp", "user": "vcap"}});
    let unreached = place(4, download).await;
    let reason = &unreached.failure_reason;
    assert!(
        reason.starts_with("Downloading failed: ") && reason.contains("is this machine"),
        "{reason}"
    );
    assert_eq!(unreached.failed_action, "download");

    let refused = place(3, json!({"serial": {"actions": []}})).await;
    let reason = "failed to create container: ";
    assert!(refused.failure_reason.starts_with(reason), "{refused:?}");
    assert_eq!((refused.failed, refused.exit), (true, None));
    agent.end().await;
}

/// The agent is killed while the task runs, and again when it has ended: the same end each time, and each
/// action once. The last agent knows the end from the task's record alone, as if the one before had died between
/// the record and the runner's snapshot.
#[tokio::test(flavor = "multi_thread")]
async fn an_end_outlives_the_agent() {
    if !privileged("an_end_outlives_the_agent") {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.killable_agent(&server);
    let tree = json!({"serial": {"actions": [
        run("echo one >> /local/log; while [ ! -e /local/go ]; do sleep 0.05; done"),
        run("echo two >> /local/log; exit 3"),
    ]}});
    let alloc_id = server
        .place(one_off(1, &definition(&tree, "log")).build())
        .await;
    let local = machine.alloc_dir(alloc_id).join("task/local");
    eventually("the first action", async || {
        std::fs::read(local.join("log")).is_ok().then_some(())
    })
    .await;

    agent.kill();
    let running = snapshots(&machine, None);
    let agent = machine.killable_agent(&server);
    std::fs::write(local.join("go"), "").unwrap();
    let first = end(&server, alloc_id).await;
    agent.kill();
    snapshots(&machine, Some(running));
    let before = server.messages().len();
    let agent = machine.killable_agent(&server);
    eventually("a report of the third agent", async || {
        let messages = server.messages();
        let later = messages.get(before..)?;
        later
            .iter()
            .any(|(_, ids)| ids.contains(&alloc_id))
            .then_some(())
    })
    .await;

    assert_eq!((first.result.as_str(), first.failed), ("one\ntwo\n", true));
    assert_eq!(end(&server, alloc_id).await, first);
    agent.kill();
}

/// It ended, nobody heard of it, and the store is lost: its directories are proof enough that it ran.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_store_is_no_second_start() {
    if !privileged("a_lost_store_is_no_second_start") {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.killable_agent(&server);
    server.node(|node| node.has_driver("native")).await;
    server.mute(true);
    let tree = run("echo ran >> /local/log; echo > /local/done");
    let alloc_id = server
        .place(one_off(1, &definition(&tree, "")).build())
        .await;
    let local = machine.alloc_dir(alloc_id).join("task/local");
    eventually("its end", async || {
        let cgroup = machine.tree().join(alloc_id.to_string());
        (local.join("done").exists() && !cgroup.join("task").exists()).then_some(())
    })
    .await;

    agent.kill();
    std::fs::write(machine.data().join("agent.redb"), "garbage").unwrap();
    server.mute(false);
    let agent = machine.killable_agent(&server);
    let end = end(&server, alloc_id).await;

    let reason = "the agent's store was lost, and no process of the task was found";
    assert_eq!((end.failure_reason.as_str(), end.failed), (reason, true));
    assert_eq!(std::fs::read_to_string(local.join("log")).unwrap(), "ran\n");
    agent.kill();
}

/// The store is as it was. One task is reported as if it ran, though the node never heard of it. Of another there is
/// only the directory.
#[tokio::test(flavor = "multi_thread")]
async fn one_off_task_without_record_fails_with_reason() {
    if !privileged("one_off_task_without_record_fails_with_reason") {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.agent(&server).await;
    let tree = run("echo ran >> /alloc/log");
    let mut out_of_reach = one_off(1, &definition(&tree, "")).build();
    out_of_reach.client_status = ClientStatus::Unknown;
    let untraced = one_off(2, &definition(&tree, "")).build();
    std::fs::create_dir_all(machine.alloc_dir(untraced.alloc_id)).unwrap();

    let out_of_reach = server.place(out_of_reach).await;
    let untraced = server.place(untraced).await;

    for (alloc_id, reason) in [
        (
            out_of_reach,
            "the node heard of the task only after the servers had taken it for begun: it never began here",
        ),
        (
            untraced,
            "the task's directories are on the node, but no record and no process of it: whether it began is not known",
        ),
    ] {
        let end = end(&server, alloc_id).await;
        assert_eq!((end.failure_reason.as_str(), end.failed), (reason, true));
        assert!(!machine.alloc_dir(alloc_id).join("alloc/log").exists());
    }
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_off_task_survives_driver_crash() {
    if !privileged("one_off_task_survives_driver_crash") {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.agent(&server).await;
    let waiting = run("touch /local/begun; while [ ! -e /local/go ]; do sleep 0.01; done");
    let parallel = json!({"parallel": {"actions": [waiting, run("true")]}});
    let tree = json!({"serial": {"actions": [parallel, run("echo yes > r")]}});
    let alloc_id = server
        .place(one_off(1, &definition(&tree, "r")).build())
        .await;
    let task_dir = machine.alloc_dir(alloc_id).join("task");
    let pid = eventually("both actions", async || {
        let recorded = std::fs::read_to_string(task_dir.join(".action")).ok()?;
        let mut lines = recorded.lines();
        let has_ended = lines.clone().any(|line| line.starts_with("ended"));
        let pid = lines.find_map(|line| line.strip_prefix("process "))?;
        let begun = task_dir.join("local/begun").exists();
        (begun && has_ended).then(|| pid.split(' ').next().unwrap_or_default().to_owned())
    })
    .await;

    machine.kill_driver().await;
    eventually("the next driver holds the process", async || {
        let (driver, _) = machine.driver().await;
        let files = std::fs::read_dir(format!("/proc/{driver}/fdinfo")).ok()?;
        let mut files = files.flatten().map(|file| file.path());
        let is_held = |text: String| text.lines().any(|line| line == format!("Pid:\t{pid}"));
        let held = files.any(|file| std::fs::read_to_string(file).is_ok_and(is_held));
        held.then_some(())
    })
    .await;
    std::fs::write(task_dir.join("local/go"), "").unwrap();

    let end = end(&server, alloc_id).await;
    assert_eq!((end.failure_reason.as_str(), end.failed), ("", false));
    assert_eq!(end.result, "yes\n");
    agent.end().await;
}

/// The agent is killed and nobody starts another: the driver stops what may not run on alone, and its end waits
/// for the agent that comes in the end.
#[tokio::test(flavor = "multi_thread")]
async fn one_off_task_stops_while_agent_stays_down() {
    if !privileged("one_off_task_stops_while_agent_stays_down") {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.killable_agent(&server);
    let tree = json!({"serial": {"actions": [
        run("trap 'echo term > r; exit 0' TERM; echo > begun; sleep 600 & wait"),
        run("echo > no"),
    ]}});
    let task = one_off(1, &definition(&tree, "r")).with(|spec, _| {
        spec.groups[0].disconnect.stop_on_client_after = Some(Duration::from_secs(2));
    });
    let alloc_id = server.place(task.build()).await;
    let local = machine.alloc_dir(alloc_id).join("task/local");
    eventually("the action", async || {
        std::fs::read(local.join("begun")).is_ok().then_some(())
    })
    .await;
    let cgroup = machine.tree().join(alloc_id.to_string()).join("task");

    agent.kill();
    eventually("its end without an agent", async || {
        let events = std::fs::read_to_string(cgroup.join("cgroup.events"));
        events
            .is_ok_and(|events| events.contains("populated 0"))
            .then_some(())
    })
    .await;
    let agent = machine.killable_agent(&server);

    let end = end(&server, alloc_id).await;
    assert_eq!(end.failure_reason, "stopped: no agent for 2 s");
    assert_eq!((end.failed, end.result.as_str()), (true, "term\n"));
    assert!(!local.join("no").exists());
    agent.kill();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_one_off_task_was_cancelled() {
    if !privileged("a_stopped_one_off_task_was_cancelled") {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.agent(&server).await;
    let tree = run("trap 'echo term > r; exit 0' TERM; echo > begun; sleep 600 & wait");
    let alloc_id = server
        .place(one_off(1, &definition(&tree, "r")).build())
        .await;
    let local = machine.alloc_dir(alloc_id).join("task/local");
    eventually("the action", async || {
        std::fs::read(local.join("begun")).is_ok().then_some(())
    })
    .await;
    let running = |task: &muster_domain::alloc::TaskState, _| task.phase == TaskPhase::Running;
    server.reported(alloc_id, "running", running).await;

    server.stop(alloc_id).await;

    let end = end(&server, alloc_id).await;
    assert_eq!(
        (end.failure_reason.as_str(), end.failed),
        ("cancelled", true)
    );
    assert_eq!(end.result, "term\n");
    agent.end().await;
}
