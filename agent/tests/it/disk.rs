//! Ephemeral disks: held by project quota where the file system has it, else measured and stopped.

use std::path::{Path, PathBuf};
use std::process::Command;

use muster_agent::DiskEnforcement;
use muster_agent::node::{Agent, ShutdownPolicy};
use muster_agent::storage::disk::{DiskLimit, project_of, project_quota};
use muster_domain::alloc::{ClientStatus, DesiredAlloc, TaskEventKind, TaskState};
use muster_domain::id::AllocId;
use muster_domain::one_off::Definition;
use muster_domain::resources::Mb;
use muster_wire::rpc::{AllocDisk, LogStream, NodeReply, NodeRequest};

use crate::support::{
    AllocBuilder, FakeServer, Machine, batch, eventually, one_off, privileged, service, skipped,
};

/// The size of the disks in MiB, the smallest that a job may ask for.
const SIZE: u32 = 10;
/// Inodes that go with it.
const INODES: u64 = 4096;

/// A machine whose data directory is a file system of its own.
struct DiskMachine {
    machine: Machine,
}

impl DiskMachine {
    /// ext4 with project quota. `None`, with the reason told, if it cannot be made here.
    fn quota(test: &str) -> Option<Self> {
        if !privileged(test) {
            return None;
        }
        let machine = Machine::new();
        std::fs::create_dir(machine.data()).unwrap();
        let image = machine.data().with_extension("ext4");
        std::fs::File::create(&image)
            .unwrap()
            .set_len(200 << 20)
            .unwrap();
        let mut mkfs = Command::new("mkfs.ext4");
        mkfs.args(["-q", "-m", "0", "-N", "40000", "-O", "quota,project"])
            .arg(&image);
        let options = format!("{} {}", image.display(), machine.data().display());
        let made = ran(&mut mkfs).and_then(|()| {
            let mut mount = Command::new("mount");
            mount.args(["-t", "ext4", "-o", "loop,prjquota"]);
            ran(mount.args(options.split(' ')))
        });
        Self::unless(test, machine, made)
    }

    fn tmpfs(test: &str) -> Option<Self> {
        if !privileged(test) {
            return None;
        }
        let machine = Machine::new();
        std::fs::create_dir(machine.data()).unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=200m", "tmpfs"]);
        let made = ran(mount.arg(machine.data()));
        Self::unless(test, machine, made)
    }

    fn unless(test: &str, machine: Machine, made: Result<(), String>) -> Option<Self> {
        match made {
            Ok(()) => Some(Self { machine }),
            Err(reason) => {
                skipped(test, &format!("{reason}; run: cargo xtask vm"));
                None
            }
        }
    }

    async fn agent(&self, server: &FakeServer) -> Agent {
        Agent::start(self.machine.config(server)).await.unwrap()
    }

    fn dir(&self, alloc_id: AllocId) -> PathBuf {
        self.machine.alloc_dir(alloc_id)
    }
}

impl Drop for DiskMachine {
    fn drop(&mut self) {
        let cleaned = muster_agent::clean::run(&self.machine.data(), true);
        let unmounted = Command::new("umount")
            .arg("-l")
            .arg(self.machine.data())
            .status();
        if !std::thread::panicking() {
            cleaned.unwrap();
            assert!(unmounted.unwrap().success());
        }
    }
}

fn ran(command: &mut Command) -> Result<(), String> {
    let name = command.get_program().to_string_lossy().into_owned();
    match command.output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!(
            "{name}: {}",
            String::from_utf8_lossy(&output.stderr)
                .trim()
                .replace('\n', " ")
        )),
        Err(error) => Err(format!("{name}: {error}")),
    }
}

fn sized(alloc: AllocBuilder, mb: u32) -> AllocBuilder {
    alloc.with(|spec, _| spec.groups[0].ephemeral_disk.size = Mb(mb))
}

/// Writes this many MiB to the group's directory and says how that went.
fn writes(mb: u32) -> String {
    format!("dd if=/dev/zero of=$NOMAD_ALLOC_DIR/data/f bs=1024k count={mb} 2>&1; echo ended $?")
}

async fn disk(server: &FakeServer, alloc_id: AllocId) -> AllocDisk {
    eventually("statistics of a disk", async || {
        let request = NodeRequest::AllocStats { alloc_id };
        match server
            .ask(request, |replies| !replies.is_empty())
            .await
            .pop()
        {
            Some(NodeReply::AllocStats(stats)) => {
                stats.disk.filter(|disk| disk.used_bytes.is_some())
            }
            _ => None,
        }
    })
    .await
}

async fn output(server: &FakeServer, alloc_id: AllocId, wanted: &str) -> String {
    eventually(wanted, async || {
        let log = server.log(alloc_id, LogStream::Stdout).await;
        log.contains(wanted).then_some(log)
    })
    .await
}

fn exceeded(state: &TaskState) -> Vec<&str> {
    let events = state.events.iter();
    let events = events.filter(|event| event.kind == TaskEventKind::DiskExceeded);
    events.map(|event| event.message.as_str()).collect()
}

fn size_of(path: &Path) -> u64 {
    std::fs::metadata(path).unwrap().len()
}

/// One task fills its disk to the last block; the other, on the same file system, writes what it may.
#[tokio::test(flavor = "multi_thread")]
async fn quota_stops_a_write_and_no_neighbour() {
    let Some(place) = DiskMachine::quota("quota_stops_a_write_and_no_neighbour") else {
        return;
    };
    let server = place.machine.server();
    let agent = place.agent(&server).await;
    let node = server
        .node(|node| node.attributes.contains_key("storage.quota"))
        .await;
    assert_eq!(node.attributes["storage.quota"], "quota");
    let greedy = format!("{}; sleep 1000", writes(SIZE + 5));
    let greedy = server.place(sized(service(1, &greedy), SIZE).build()).await;

    let log = output(&server, greedy, "ended").await;
    let modest = server
        .place(sized(batch(2, &writes(SIZE - 2)), SIZE).build())
        .await;
    server.status(modest, ClientStatus::Complete).await;

    assert!(log.contains("Disk quota exceeded"), "{log}");
    let neighbour = output(&server, modest, "ended").await;
    assert!(neighbour.contains("ended 0"), "{neighbour}");
    let written = size_of(&place.dir(greedy).join("alloc/data/f"));
    assert!(written <= u64::from(SIZE) << 20, "{written}");
    assert!(written >= u64::from(SIZE - 1) << 20, "{written}");
    let disk = disk(&server, greedy).await;
    assert_eq!(disk.enforcement, "quota");
    assert_eq!(disk.limit_bytes, u64::from(SIZE) << 20);
    assert!(disk.used_bytes.unwrap() >= written, "{disk:?}");
    agent.shutdown(ShutdownPolicy::StopTasks).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn quota_stops_inodes() {
    let Some(place) = DiskMachine::quota("quota_stops_inodes") else {
        return;
    };
    let server = place.machine.server();
    let agent = place.agent(&server).await;
    let script =
        "cd $NOMAD_ALLOC_DIR/data; i=0; while true > $i; do i=$((i+1)); done; echo made $i";

    let alloc_id = server.place(sized(batch(1, script), SIZE).build()).await;
    server.status(alloc_id, ClientStatus::Complete).await;

    let log = output(&server, alloc_id, "made").await;
    let made: u64 = log.split_whitespace().last().unwrap().parse().unwrap();
    // The directories of the allocation and its task are the rest.
    assert!((INODES - 16..INODES).contains(&made), "{log}");
    agent.shutdown(ShutdownPolicy::StopTasks).await;
}

/// The limit holds while no agent runs, is the same for the next one, and goes with the directory.
#[tokio::test(flavor = "multi_thread")]
async fn quota_survives_agent_restart_and_ends_with_directory() {
    let Some(place) = DiskMachine::quota("quota_survives_agent_restart_and_ends_with_directory")
    else {
        return;
    };
    let server = place.machine.server();
    let agent = place.agent(&server).await;
    let script = format!(
        "while [ ! -e $NOMAD_ALLOC_DIR/data/go ]; do sleep 0.1; done; {}; sleep 1000",
        writes(SIZE + 5)
    );
    let alloc_id = server.place(sized(service(1, &script), SIZE).build()).await;
    server.status(alloc_id, ClientStatus::Running).await;
    let project = project_of(&place.dir(alloc_id)).unwrap().unwrap();
    agent.shutdown(ShutdownPolicy::KeepTasks).await;

    let agent = place.agent(&server).await;
    let disk = disk(&server, alloc_id).await;
    std::fs::write(place.dir(alloc_id).join("alloc/data/go"), "").unwrap();
    let log = output(&server, alloc_id, "ended").await;

    assert_eq!(disk.enforcement, "quota");
    assert_eq!(project_of(&place.dir(alloc_id)).unwrap(), Some(project));
    assert!(log.contains("Disk quota exceeded"), "{log}");
    server.stop(alloc_id).await;
    server.status(alloc_id, ClientStatus::Complete).await;
    agent.collect_now(false).await.unwrap();
    eventually("nothing left of the project", async || {
        let (used, limit) = project_quota(&place.machine.data(), project).unwrap();
        let gone = used.bytes == 0 && used.inodes == 0 && limit == DiskLimit::default();
        gone.then_some(())
    })
    .await;
    agent.shutdown(ShutdownPolicy::StopTasks).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn job_update_changes_quota_of_running_task() {
    let Some(place) = DiskMachine::quota("job_update_changes_quota_of_running_task") else {
        return;
    };
    let server = place.machine.server();
    let agent = place.agent(&server).await;
    let builder = service(1, "sleep 1000");
    let alloc = |mb| sized(builder.clone(), mb).build();
    let alloc_id = server.place(alloc(SIZE)).await;
    server.status(alloc_id, ClientStatus::Running).await;
    let project = project_of(&place.dir(alloc_id)).unwrap().unwrap();
    let limit = || project_quota(&place.machine.data(), project).unwrap().1;
    assert_eq!(limit().bytes, u64::from(SIZE) << 20);

    let pid = server.pid(alloc_id).await;
    server.place(alloc(2 * SIZE)).await;

    eventually("the larger limit", async || {
        (limit().bytes == u64::from(2 * SIZE) << 20).then_some(())
    })
    .await;
    assert_eq!(server.pid(alloc_id).await, pid);
    agent.shutdown(ShutdownPolicy::StopTasks).await;
}

/// A task cannot give its files to another project, nor have a directory's files belong to none.
#[tokio::test(flavor = "multi_thread")]
async fn a_task_cannot_leave_its_project() {
    let Some(place) = DiskMachine::quota("a_task_cannot_leave_its_project") else {
        return;
    };
    let server = place.machine.server();
    let agent = place.agent(&server).await;
    let script = "cd $NOMAD_ALLOC_DIR/data; mkdir d; chattr -p 0 d 2>&1; echo project $?; \
                  chattr +d d 2>&1; echo flags $?";

    let alloc_id = server.place(sized(batch(1, script), SIZE).build()).await;
    server.status(alloc_id, ClientStatus::Complete).await;

    let log = output(&server, alloc_id, "flags").await;
    assert_eq!(log.matches("Operation not permitted").count(), 2, "{log}");
    let dir = place.dir(alloc_id);
    let project = project_of(&dir).unwrap();
    assert_eq!(project_of(&dir.join("alloc/data/d")).unwrap(), project);
    agent.shutdown(ShutdownPolicy::StopTasks).await;
}

/// An agent that is told to enforce nothing lifts what an earlier one has set.
#[tokio::test(flavor = "multi_thread")]
async fn enforcement_that_is_off_lifts_quota() {
    let Some(place) = DiskMachine::quota("enforcement_that_is_off_lifts_quota") else {
        return;
    };
    let server = place.machine.server();
    let agent = place.agent(&server).await;
    let alloc = sized(service(1, "sleep 1000"), SIZE).build();
    let alloc_id = server.place(alloc).await;
    server.status(alloc_id, ClientStatus::Running).await;
    let project = project_of(&place.dir(alloc_id)).unwrap().unwrap();
    agent.shutdown(ShutdownPolicy::KeepTasks).await;
    let mut config = place.machine.config(&server);
    config.disk = DiskEnforcement::Off;

    let agent = Agent::start(config).await.unwrap();

    eventually("no limit", async || {
        let (_, limit) = project_quota(&place.machine.data(), project).unwrap();
        (limit == DiskLimit::default()).then_some(())
    })
    .await;
    agent.shutdown(ShutdownPolicy::StopTasks).await;
}

/// Root with all its rights is not held by quota, but it is seen.
#[tokio::test(flavor = "multi_thread")]
async fn raw_root_task_over_quota_is_stopped() {
    let Some(place) = DiskMachine::quota("raw_root_task_over_quota_is_stopped") else {
        return;
    };
    let server = place.machine.server();
    let agent = place.agent(&server).await;
    let script = format!("{}; sleep 1000", writes(SIZE + 5));
    let alloc = sized(service(1, &script), SIZE).raw().user("root");

    let alloc_id = server.place(alloc.build()).await;

    let state = server.status(alloc_id, ClientStatus::Failed).await;
    assert_eq!(exceeded(&state).len(), 1, "{:?}", state.events);
    agent.shutdown(ShutdownPolicy::StopTasks).await;
}

/// Without quota the allocation is stopped and fails, for good, and its neighbour runs on.
#[tokio::test(flavor = "multi_thread")]
async fn exceeding_accounted_disk_limit_fails_alloc() {
    let Some(place) = DiskMachine::tmpfs("exceeding_accounted_disk_limit_fails_alloc") else {
        return;
    };
    let server = place.machine.server();
    let agent = place.agent(&server).await;
    let node = server
        .node(|node| node.attributes.contains_key("storage.quota"))
        .await;
    assert_eq!(node.attributes["storage.quota"], "accounted");
    let modest = format!("{}; sleep 1000", writes(SIZE - 2));
    let modest = server.place(sized(service(1, &modest), SIZE).build()).await;
    server.status(modest, ClientStatus::Running).await;
    let greedy = format!("{}; sleep 1000", writes(SIZE + 5));
    let greedy = sized(service(2, &greedy), SIZE).restarts(3);

    let greedy = server.place(greedy.build()).await;

    let state = server.status(greedy, ClientStatus::Failed).await;
    let messages = exceeded(&state);
    assert_eq!(messages.len(), 1, "{:?}", state.events);
    // It may be measured while it is being written.
    let in_use = messages[0].strip_prefix("the ephemeral disk is exceeded: ");
    let in_use = in_use.and_then(|rest| rest.split_once(" MiB of 10 MiB"));
    let (in_use, _) = in_use.unwrap_or_else(|| panic!("{messages:?}"));
    let mib: f64 = in_use.parse().unwrap();
    assert!(mib > 10.0 && mib <= 15.1, "{messages:?}");
    let most = format!("most in alloc/data {in_use} MiB");
    assert!(messages[0].contains(&most), "{messages:?}");
    assert_eq!(state.restarts, 0);
    let report = server.report(greedy).unwrap();
    assert_eq!(report.client_description, messages[0]);
    output(&server, modest, "ended 0").await;
    let disk = disk(&server, modest).await;
    assert_eq!(disk.enforcement, "accounted");
    assert!(!disk.reason.is_empty());
    assert_eq!(
        server.report(modest).unwrap().client_status,
        ClientStatus::Running
    );
    agent.shutdown(ShutdownPolicy::StopTasks).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_off_task_over_disk_limit_reports_reason() {
    let Some(place) = DiskMachine::tmpfs("one_off_task_over_disk_limit_reports_reason") else {
        return;
    };
    let server = place.machine.server();
    let agent = place.agent(&server).await;
    let script = "dd if=/dev/zero of=/tmp/f bs=1024k count=15 2>/dev/null; sleep 1000";
    let definition: Definition = serde_json::from_value(serde_json::json!({
        "rootfs": "preloaded:host", "memory_mb": 64, "disk_mb": SIZE, "log_source": "X",
        "action": {"run": {"path": "/bin/sh", "args": ["-c", script], "user": "vcap"}},
    }))
    .unwrap();

    let alloc_id = server.place(one_off(1, &definition).build()).await;

    server.status(alloc_id, ClientStatus::Failed).await;
    let end = server.report(alloc_id).unwrap().end.unwrap();
    assert!(end.failed);
    assert!(
        end.failure_reason
            .starts_with("the ephemeral disk is exceeded"),
        "{}",
        end.failure_reason
    );
    agent.shutdown(ShutdownPolicy::StopTasks).await;
}

/// Data that a replacement gets from its predecessor count against its own disk: four of ten MiB are left of it.
#[tokio::test(flavor = "multi_thread")]
async fn quota_follows_the_replacement() {
    let Some(place) = DiskMachine::quota("quota_follows_the_replacement") else {
        return;
    };
    let server = place.machine.server();
    let agent = place.agent(&server).await;
    let keeping = |alloc: AllocBuilder| {
        let alloc = alloc.with(|spec, _| spec.groups[0].ephemeral_disk.sticky = true);
        sized(alloc, SIZE).build()
    };
    let deep = format!(
        "mkdir -p $NOMAD_ALLOC_DIR/data/a/b; {}; mv $NOMAD_ALLOC_DIR/data/f $NOMAD_ALLOC_DIR/data/a/b/g",
        writes(6)
    );
    let old = server.place(keeping(batch(1, &deep))).await;
    server.status(old, ClientStatus::Complete).await;

    let new = DesiredAlloc {
        previous: Some(old),
        ..keeping(batch(2, &format!("{}; {}", writes(3), writes(SIZE))))
    };
    let new = server.place(new).await;
    server.status(new, ClientStatus::Complete).await;

    let log = server.log(new, LogStream::Stdout).await;
    assert!(
        log.contains("ended 0") && log.contains("Disk quota exceeded"),
        "{log}"
    );
    assert_eq!(size_of(&place.dir(new).join("alloc/data/a/b/g")), 6 << 20);
    let project = |alloc_id| project_of(&place.dir(alloc_id)).unwrap().unwrap();
    let (used, _) = project_quota(&place.machine.data(), project(new)).unwrap();
    assert!(used.bytes > 9 << 20, "{used:?}");
    let (left, _) = project_quota(&place.machine.data(), project(old)).unwrap();
    assert!(left.bytes < 1 << 20, "{left:?}");
    agent.shutdown(ShutdownPolicy::StopTasks).await;
}
