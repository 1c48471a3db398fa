//! Tests of tasks on a foreign host: the cgroup that it names, its name servers, its paths.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;

use futures::StreamExt;
use muster_driver::{Dns, ExitResult, TaskDriver, TaskEventStream, plugin};
use serde_json::{Value, json};
use tokio::net::UnixListener;
use tokio_util::sync::CancellationToken;

use crate::fixture::{Cgroups, DEADLINE, Task, allowing_driver, pid_of, shell, skipped_here};

/// A driver behind the protocol, as a foreign host uses it.
struct ServedDriver {
    client: plugin::Client,
    shutdown: CancellationToken,
}

impl ServedDriver {
    async fn at(socket: &Path) -> Self {
        let driver = Arc::new(allowing_driver().await);
        let listener = UnixListener::bind(socket).unwrap();
        let shutdown = CancellationToken::new();
        let _serving = tokio::spawn(plugin::serve(driver, listener, shutdown.clone()));
        let client = plugin::Client::new("native", socket);
        Self { client, shutdown }
    }
}

impl Drop for ServedDriver {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

fn is_root() -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        skipped_here("only root can contain a task; run the tests as root");
    }
    root
}

/// Returns a cgroup as a foreign host creates it, with the controllers for limits.
fn limited(cgroups: &Cgroups) -> Option<PathBuf> {
    let dir = cgroups.create();
    for above in [dir.ancestors().nth(2), dir.parent()].into_iter().flatten() {
        // If this fails, the cgroup has no such file.
        let _enabled = fs::write(above.join("cgroup.subtree_control"), "+memory +cpu +pids");
    }
    if !dir.join("memory.max").exists() {
        skipped_here("the memory controller is not in the v2 hierarchy; run: cargo xtask vm");
        return None;
    }
    Some(dir)
}

/// Returns a task in the cgroup `dir`, as a foreign host describes it.
fn named(config: Value, dir: &Path) -> Task {
    let mut task = Task::with(config);
    let resources = &mut task.config.resources;
    resources.memory_mb = 32;
    resources.linux.memory_limit_bytes = 32 << 20;
    resources.linux.cpu_shares = 1_024;
    dir.to_str()
        .unwrap()
        .clone_into(&mut resources.linux.cpuset_cgroup);
    task
}

fn text(dir: &Path, name: &str) -> String {
    let text = fs::read_to_string(dir.join(name)).unwrap();
    text.trim().to_owned()
}

fn is_in(pid: i32, dir: &Path) -> bool {
    let pid = pid.to_string();
    text(dir, "cgroup.procs").lines().any(|line| line == pid)
}

async fn message(events: &mut TaskEventStream) -> String {
    let event = tokio::time::timeout(DEADLINE, events.next()).await;
    event.unwrap().unwrap().message
}

async fn ends(driver: &dyn TaskDriver, task: &Task) -> ExitResult {
    driver.start_task(task.config.clone()).await.unwrap();
    let result = driver.wait_task(task.id()).await.unwrap();
    driver.destroy_task(task.id(), false).await.unwrap();
    result
}

/// The group exists before its first task and after it, across restarts of a task. OOM kills that it counted for one
/// task do not count for the next task, not even after a recovery. All processes of a task are in the group and end
/// with the task.
#[tokio::test(flavor = "multi_thread")]
async fn host_cgroup_limits_its_tasks() {
    let Some(cgroups) = Cgroups::new().filter(|_| is_root()) else {
        return;
    };
    let Some(dir) = limited(&cgroups) else {
        return;
    };
    let temp = tempfile::tempdir().unwrap();
    let served = ServedDriver::at(&temp.path().join("one")).await;
    // A raw task: only the cgroup contains the processes that it starts.
    let mut config = shell("setsid sleep 600 & exec sleep 600");
    config["isolation"] = json!("raw");
    config["pids_max"] = json!(50);
    let sleeping = named(config, &dir);

    let killed = ends(&served.client, &named(shell("exec tail /dev/zero"), &dir)).await;
    let started = served.client.start_task(sleeping.config.clone()).await;
    let started = started.unwrap();
    let pid = pid_of(&served.client, sleeping.id()).await;
    let is_in = is_in(pid, &dir);
    let set = LIMITS.map(|(name, _)| text(&dir, name));
    // The host stores no field of ours.
    let mut handle = started.handle;
    let placed = handle.config.cgroup.take();
    drop(served);
    let served = ServedDriver::at(&temp.path().join("two")).await;
    served.client.recover_task(handle).await.unwrap();
    let stopped = served.client.stop_task(sleeping.id(), DEADLINE, "").await;
    let ended = served.client.wait_task(sleeping.id()).await.unwrap();
    let destroyed = served.client.destroy_task(sleeping.id(), false).await;
    let left = text(&dir, "cgroup.procs");
    let next = ends(&served.client, &named(shell("exit 3"), &dir)).await;

    assert!(killed.oom_killed && killed.signal == 9, "{killed:?}");
    assert!(is_in, "{pid} is not in {}", dir.display());
    assert_eq!(set, LIMITS.map(|(_, value)| value));
    assert_eq!(placed.unwrap().dir, dir);
    stopped.unwrap();
    destroyed.unwrap();
    assert!(!ended.oom_killed, "{ended:?}");
    assert_eq!(left, "");
    assert_eq!(next, ExitResult::exited(3));
}

/// The limits of the group of the task above. The task is killed as a whole and not swapped, as in a group of the
/// agent.
const LIMITS: [(&str, &str); 5] = [
    ("memory.max", "33554432"),
    ("memory.swap.max", "0"),
    ("memory.oom.group", "1"),
    ("cpu.weight", "39"),
    ("pids.max", "50"),
];

#[tokio::test(flavor = "multi_thread")]
async fn missing_cgroup_controller_is_reported_not_fatal() {
    let Some(cgroups) = Cgroups::new().filter(|_| is_root()) else {
        return;
    };
    let dir = cgroups.create();
    let driver = allowing_driver().await;
    let mut events = driver.task_events().await.unwrap();
    let task = named(shell("setsid sleep 600 & exec sleep 600"), &dir);

    driver.start_task(task.config.clone()).await.unwrap();

    let warning = message(&mut events).await;
    assert!(warning.contains("memory limit is not set"), "{warning}");
    assert!(warning.contains("controller `memory`"), "{warning}");
    let pid = pid_of(&driver, task.id()).await;
    assert!(is_in(pid, &dir), "{pid} is not in {}", dir.display());
    driver.destroy_task(task.id(), true).await.unwrap();
    assert_eq!(text(&dir, "cgroup.procs"), "");
}

/// A process that ends with the test.
struct ForeignProcess(Child);

impl Drop for ForeignProcess {
    fn drop(&mut self) {
        let _killed = self.0.kill();
        let _reaped = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn cgroup_with_foreign_processes_is_not_used() {
    let Some(cgroups) = Cgroups::new().filter(|_| is_root()) else {
        return;
    };
    let dir = cgroups.create();
    let stranger = ForeignProcess(Command::new("sleep").arg("600").spawn().unwrap());
    fs::write(dir.join("cgroup.procs"), stranger.0.id().to_string()).unwrap();
    let driver = allowing_driver().await;
    let mut events = driver.task_events().await.unwrap();

    let result = ends(&driver, &named(shell("exit 4"), &dir)).await;

    assert_eq!(result, ExitResult::exited(4));
    let warning = message(&mut events).await;
    assert!(warning.contains("processes are in it already"), "{warning}");
    assert_eq!(text(&dir, "cgroup.procs"), stranger.0.id().to_string());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_of_cgroup_v1_fails_no_start() {
    let Some(cgroups) = Cgroups::of_v1("cpuset").filter(|_| is_root()) else {
        return;
    };
    let driver = allowing_driver().await;
    let mut events = driver.task_events().await.unwrap();

    let result = ends(&driver, &named(shell("exit 5"), &cgroups.create())).await;

    assert_eq!(result, ExitResult::exited(5));
    let warning = message(&mut events).await;
    assert!(warning.contains("it is of cgroup v1"), "{warning}");
    assert!(warning.contains("no limits of memory"), "{warning}");
}

#[tokio::test(flavor = "multi_thread")]
async fn name_servers_of_the_host_are_the_tasks() {
    if !is_root() {
        return;
    }
    let driver = allowing_driver().await;
    for level in ["contained", "strict"] {
        let mut config = shell("cp /etc/resolv.conf /local/out; echo >> /etc/resolv.conf; true");
        config["isolation"] = json!(level);
        let mut task = Task::with(config);
        task.config.dns = Some(Dns {
            servers: vec!["10.9.0.53".to_owned()],
            searches: vec!["lab".to_owned()],
            options: vec!["ndots:2".to_owned()],
        });

        let result = ends(&driver, &task).await;

        assert_eq!(result, ExitResult::exited(0), "{level}");
        let output = task.read("local/out");
        for line in ["nameserver 10.9.0.53", "search lab", "options ndots:2"] {
            assert!(output.lines().any(|it| it == line), "{level}: {output}");
        }
        let kept = fs::read_to_string(task.path(".resolv.conf")).unwrap();
        assert_eq!(kept.trim(), output, "{level}: the task wrote to it");
    }
}

/// A foreign host assumes that all tasks of this driver have a separate root.
#[tokio::test]
async fn raw_task_finds_translated_directories() {
    let driver = allowing_driver().await;
    let mut task = Task::new(json!({
        "command": "/bin/sh",
        "args": ["-c", "cat $1 > $NOMAD_TASK_DIR/out; echo >> $NOMAD_TASK_DIR/out", "sh", "/local/in"],
    }));
    let variable = ("NOMAD_TASK_DIR".to_owned(), "/local".to_owned());
    task.config.env.extend([variable]);
    fs::create_dir(task.path("local")).unwrap();
    fs::write(task.path("local/in"), "found").unwrap();

    let result = ends(&driver, &task).await;

    assert_eq!(result, ExitResult::exited(0));
    assert_eq!(task.read("local/out"), "found");
}
