//! Allocations that take the place of others on the node.

use std::time::Duration;

use muster_domain::alloc::{ClientStatus, DesiredAlloc, TaskPhase};
use muster_domain::id::AllocId;
use muster_domain::job::{JobSpec, Lifecycle, LifecycleHook};
use muster_domain::resources::Holding;
use muster_wire::rpc::LogStream;

use crate::support::{FakeServer, Machine, batch, eventually, privileged, service};

const PORT: u16 = 20_411;
const LAST: Lifecycle = Lifecycle {
    hook: LifecycleHook::Poststop,
    sidecar: false,
};

/// Keeps its data.
fn sticky(spec: &mut JobSpec, _: &mut Holding) {
    spec.groups[0].ephemeral_disk.sticky = true;
}

/// A service that holds the port, and ends only when the file `go` is there.
fn reluctant(name: u32) -> DesiredAlloc {
    let script = "trap 'while [ ! -e $NOMAD_ALLOC_DIR/data/go ]; do sleep 0.02; done; exit 0' TERM; \
                  sleep 600 & wait; wait";
    service(name, script)
        .port("http", PORT)
        .kill_timeout(Duration::from_secs(50))
        .build()
}

fn end_task(machine: &Machine, alloc_id: AllocId) {
    std::fs::write(machine.alloc_dir(alloc_id).join("alloc/data/go"), "").unwrap();
}

async fn runs(server: &FakeServer, alloc_id: AllocId) {
    let is_running = |phase| phase == TaskPhase::Running;
    server
        .reported(alloc_id, "running", |task, _| is_running(task.phase))
        .await;
}

/// Waits until the allocation says that it waits for another.
async fn waits(server: &FakeServer, alloc_id: AllocId) {
    eventually("it says that it waits", async || {
        let report = server.report(alloc_id)?;
        let mut events = report.task_states[0].events.iter();
        events
            .any(|event| event.message.starts_with("waiting until"))
            .then_some(())
    })
    .await;
}

/// The port is told to be given to the new one before the old one is told to stop.
#[tokio::test(flavor = "multi_thread")]
async fn port_is_handed_over_after_holder_ends() {
    if !privileged("port_is_handed_over_after_holder_ends") {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.agent(&server).await;
    let old = server.place(reluctant(1)).await;
    runs(&server, old).await;

    let new = server
        .place(service(2, "sleep 600").port("http", PORT).build())
        .await;
    server.stop(old).await;
    waits(&server, new).await;
    let waiting = server.report(new).unwrap();
    end_task(&machine, old);
    let ended = server.status(old, ClientStatus::Complete).await;
    runs(&server, new).await;

    assert_eq!(waiting.client_status, ClientStatus::Pending);
    let began = server.report(new).unwrap().task_states[0].started_at;
    assert!(began.unwrap() >= ended.finished_at.unwrap());
    agent.end().await;
}

/// The agent dies while one waits; the next one lets it wait on.
#[tokio::test(flavor = "multi_thread")]
async fn replacement_keeps_waiting_across_agent_restart() {
    if !privileged("replacement_keeps_waiting_across_agent_restart") {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.killable_agent(&server);
    let old = server.place(reluctant(1)).await;
    runs(&server, old).await;
    server.stop(old).await;
    let new = DesiredAlloc {
        previous: Some(old),
        ..service(2, "sleep 600").build()
    };
    let new = server.place(new).await;
    waits(&server, new).await;

    agent.kill();
    let sessions = server.sessions();
    let agent = machine.agent(&server).await;
    eventually("a session", async || {
        (server.sessions() > sessions).then_some(())
    })
    .await;
    let waiting = server.report(new).unwrap();
    end_task(&machine, old);
    let ended = server.status(old, ClientStatus::Complete).await;
    runs(&server, new).await;

    assert_eq!(waiting.client_status, ClientStatus::Pending);
    let began = server.report(new).unwrap().task_states[0].started_at;
    assert!(began.unwrap() >= ended.finished_at.unwrap());
    agent.end().await;
}

/// A replacement gets the data that the tasks kept, and neither temporary nor secret files. A link in the place of a
/// directory stays.
#[tokio::test(flavor = "multi_thread")]
async fn replacement_inherits_data_of_previous_alloc() {
    if !privileged("replacement_inherits_data_of_previous_alloc") {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.agent(&server).await;
    let script = "mkdir $NOMAD_TASK_DIR/deep; echo own > $NOMAD_TASK_DIR/deep/a; \
                  echo shared > $NOMAD_ALLOC_DIR/data/b; echo tmp > $NOMAD_ALLOC_DIR/tmp/c; \
                  echo secret > $NOMAD_SECRETS_DIR/d";
    let old = batch(1, script)
        .task("linked", "true", LAST)
        .with(sticky)
        .build();
    let old = server.place(old).await;
    server.status(old, ClientStatus::Complete).await;
    let linked = machine.alloc_dir(old).join("linked/local");
    std::fs::remove_dir(&linked).unwrap();
    std::os::unix::fs::symlink("/etc", &linked).unwrap();

    let script = "cat $NOMAD_TASK_DIR/deep/a $NOMAD_ALLOC_DIR/data/b; \
                  ls $NOMAD_ALLOC_DIR/tmp $NOMAD_SECRETS_DIR; touch $NOMAD_TASK_DIR/new";
    let new = batch(2, script)
        .task("linked", "true", LAST)
        .with(sticky)
        .build();
    let new = server
        .place(DesiredAlloc {
            previous: Some(old),
            ..new
        })
        .await;
    server.status(new, ClientStatus::Complete).await;

    let log = server.log(new, LogStream::Stdout).await;
    let lines: Vec<&str> = log.lines().filter(|line| !line.is_empty()).collect();
    assert_eq!(lines, ["own", "shared", "/alloc/tmp:", "/secrets:"]);
    assert!(machine.alloc_dir(new).join("linked/local").is_dir());
    assert!(linked.is_symlink());
    agent.end().await;
}
