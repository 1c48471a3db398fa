//! Tests of a driver process that dies, ends or is started twice while its tasks continue.
//!
//! The driver process is this test binary, run again with one test that serves a driver.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use futures::future::join_all;
use muster_driver::plugin::Client;
use muster_driver::{
    DriverError, RecoverTaskError, TaskDriver, TaskError, TaskHandle, TaskState, TaskStatus,
    WithoutHost,
};
use muster_driver_native::{NativeDriver, ServeError};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::fixture::{
    Cgroups, DEADLINE, Task, allowing_driver, is_alive, pid_of, shell, sleep_for_ever, until,
};

const SOCKET_VARIABLE: &str = "MUSTER_TEST_DRIVER_SOCKET";

/// This is not a test but the driver process of the other tests. Without the variable it does nothing.
#[test]
fn helper_serves_a_driver() {
    let Some(socket) = std::env::var_os(SOCKET_VARIABLE) else {
        return;
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime
        .block_on(muster_driver_native::serve(Path::new(&socket)))
        .unwrap();
}

/// A driver process and its socket.
struct DriverProcess {
    child: Child,
    client: Client,
}

impl DriverProcess {
    async fn start(socket: &Path) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "survival::helper_serves_a_driver"])
            .env(SOCKET_VARIABLE, socket)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let client = Client::new("native", socket);
        let answering = async {
            while client.ping().await.is_err() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(DEADLINE, answering)
            .await
            .expect("the driver process serves");
        client.set_config(json!({"allow_raw": true})).await.unwrap();
        Self { child, client }
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap());
        kill(pid, signal).unwrap();
    }

    /// Waits for the process to end by itself.
    fn ended(mut self) -> bool {
        let mut status = None;
        until("the driver process ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap().success()
    }
}

fn socket() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("native.sock");
    (dir, socket)
}

async fn start(driver: &Client, task: &Task) -> TaskHandle {
    driver.start_task(task.config.clone()).await.unwrap().handle
}

fn with_cgroup(config: Value, cgroups: Option<&Cgroups>) -> Task {
    let mut task = Task::new(config);
    task.config.cgroup = cgroups.map(Cgroups::placement);
    task
}

/// A driver with ten tasks is killed three times: the processes stay the same, and each task can still be stopped
/// completely.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_driver_loses_no_task() {
    let (_dir, socket) = socket();
    let cgroups = Cgroups::new();
    let tasks: Vec<Task> = (0..10)
        .map(|_| with_cgroup(sleep_for_ever(), cgroups.as_ref()))
        .collect();
    let mut driver = DriverProcess::start(&socket).await;
    let mut handles = Vec::new();
    let mut before = Vec::new();
    for task in &tasks {
        handles.push(start(&driver.client, task).await);
        before.push(driver.client.inspect_task(task.id()).await.unwrap());
    }

    for _kill in 0..3 {
        driver.kill();
        for status in &before {
            assert!(is_alive(status.attributes["pid"].parse().unwrap()));
        }
        driver = DriverProcess::start(&socket).await;
        for handle in &handles {
            driver.client.recover_task(handle.clone()).await.unwrap();
        }
    }

    // The driver waits two seconds for each exit status that the kernel does not report.
    let stops = tasks
        .iter()
        .zip(&before)
        .map(|(task, before)| assert_unchanged_and_stop(&driver.client, task, before));
    join_all(stops).await;
    driver.kill();
}

async fn assert_unchanged_and_stop(driver: &Client, task: &Task, before: &TaskStatus) {
    let after = driver.inspect_task(task.id()).await.unwrap();
    assert_eq!(after.attributes, before.attributes, "pid and start time");
    assert_eq!(after.state, TaskState::Running);
    driver
        .stop_task(task.id(), DEADLINE, "SIGTERM")
        .await
        .unwrap();
    let result = driver.wait_task(task.id()).await.unwrap();
    // The driver is not the parent: the kernel reports the exit status since Linux 6.15.
    if result.status_known {
        assert_eq!(result.signal, 15, "{result:?}");
    } else {
        assert!(result.err.unwrap().contains("exit ledger"));
    }
    driver.destroy_task(task.id(), false).await.unwrap();
}

/// Returns a run action of one user.
fn script(script: &str) -> Value {
    json!({"run": {"path": "/bin/sh", "args": ["-c", script], "user": "vcap"}})
}

/// When the driver dies, the actions of the tree are in every state: succeeded, failed, running, and not started.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parallel_actions_go_on_with_next_driver() {
    let (_dir, socket) = socket();
    let cgroups = Cgroups::new();
    let wait = |name: &str| {
        script(&format!(
            "echo {name} >> log; touch {name}; while [ ! -e go ]; do sleep 0.01; done; echo {name} ends >> log"
        ))
    };
    let timeout = |action: Value, ms: u64| json!({"timeout": {"action": action, "timeout_ms": ms}});
    let tree = json!({"serial": {"actions": [
        {"try": {"action": {"parallel": {"actions": [
            script("echo once >> log; exit 3"),
            script("echo twice >> log"),
            wait("one"),
            timeout(wait("two"), 3_600_000),
        ]}}}},
        script("echo last >> log"),
    ]}});
    let config = json!({"actions": tree.to_string(), "result_file": "log"});
    let task = with_cgroup(config, cgroups.as_ref());
    let driver = DriverProcess::start(&socket).await;
    let handle = start(&driver.client, &task).await;
    until("the actions run or have ended", || {
        let recorded = fs::read_to_string(task.path(".action")).unwrap_or_default();
        let count = |word: &str| recorded.lines().filter(|it| it.starts_with(word)).count();
        let begun = task.path("one").exists() && task.path("two").exists();
        begun && count("ended") == 2 && count("process") == 2
    });

    driver.kill();
    let driver = DriverProcess::start(&socket).await;
    driver.client.recover_task(handle).await.unwrap();
    let state = driver.client.inspect_task(task.id()).await.unwrap().state;
    fs::write(task.path("go"), "").unwrap();
    let result = driver.client.wait_task(task.id()).await.unwrap();
    driver.client.destroy_task(task.id(), false).await.unwrap();
    driver.kill();

    if state != TaskState::Running {
        // Before Linux 6.15 the driver cannot read the exit statuses of the actions.
        return;
    }
    let actions = result.actions.unwrap();
    assert_eq!(result.exit_code, 0, "{actions:?}");
    let (last, mut others) = {
        let mut lines: Vec<&str> = actions.result.lines().collect();
        (lines.pop(), lines)
    };
    others.sort_unstable();
    assert_eq!(last, Some("last"));
    assert_eq!(
        others,
        ["once", "one", "one ends", "twice", "two", "two ends"]
    );
}

/// An action that ended while no driver ran has no known exit status. It is not started again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn action_that_ended_unseen_fails_its_tree() {
    let (_dir, socket) = socket();
    let cgroups = Cgroups::new();
    let tree = json!({"serial": {"actions": [
        {"parallel": {"actions": [
            script("echo x >> r; echo $$ > pid; while [ ! -e go ]; do sleep 0.01; done"),
        ]}},
        script("touch no"),
    ]}});
    let config = json!({"actions": tree.to_string(), "result_file": "r"});
    let task = with_cgroup(config, cgroups.as_ref());
    let driver = DriverProcess::start(&socket).await;
    let handle = start(&driver.client, &task).await;
    let pid: i32 = task.read("pid").parse().unwrap();

    driver.kill();
    fs::write(task.path("go"), "").unwrap();
    until("the action ended", || !is_alive(pid));
    let driver = DriverProcess::start(&socket).await;
    driver.client.recover_task(handle).await.unwrap();
    let result = driver.client.wait_task(task.id()).await.unwrap();

    let actions = result.actions.unwrap();
    let reason = "the driver was started again while serial[0].parallel[0].run ran";
    assert_eq!(
        (result.exit_code, actions.failure_reason.as_str()),
        (1, reason)
    );
    assert_eq!(actions.failed_action, "serial[0].parallel[0].run");
    assert_eq!(actions.result, "x\n");
    driver.client.destroy_task(task.id(), false).await.unwrap();
    assert!(!task.path("no").exists());
    driver.kill();
}

/// Returns the end of a tree during whose second action two drivers died. The action ended after it received the file
/// `go`.
async fn ended_by_third_driver(last: Value) -> (Task, Option<muster_driver::ExitResult>) {
    let (_dir, socket) = socket();
    let cgroups = Cgroups::new();
    let tree = json!({"serial": {"actions": [
        script("echo one >> log"),
        script("echo two >> log; touch pid; while [ ! -e go ]; do sleep 0.01; done; echo end >> log; exit $(cat go)"),
        last,
    ]}});
    let config = json!({"actions": tree.to_string(), "result_file": "log"});
    let task = with_cgroup(config, cgroups.as_ref());
    let mut driver = DriverProcess::start(&socket).await;
    let handle = start(&driver.client, &task).await;
    until("the second action runs", || task.path("pid").exists());
    // The record of the process is written after the start of the process.
    until("the process is recorded", || {
        let recorded = fs::read_to_string(task.path(".action")).unwrap_or_default();
        recorded.lines().any(|line| line.starts_with("process"))
    });

    for _kill in 0..2 {
        driver.kill();
        driver = DriverProcess::start(&socket).await;
        driver.client.recover_task(handle.clone()).await.unwrap();
    }
    let state = driver.client.inspect_task(task.id()).await.unwrap().state;
    // Before Linux 6.15 the driver cannot read the exit status.
    let goes_on = state == TaskState::Running;
    fs::write(task.path("go.new"), "0").unwrap();
    fs::rename(task.path("go.new"), task.path("go")).unwrap();
    let result = driver.client.wait_task(task.id()).await.unwrap();
    driver.client.destroy_task(task.id(), false).await.unwrap();
    driver.kill();
    (task, goes_on.then_some(result))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn serial_actions_go_on_with_next_driver() {
    let (_task, result) = ended_by_third_driver(script("echo three >> log")).await;
    let Some(result) = result else { return };

    let actions = result.actions.unwrap();
    assert_eq!(result.exit_code, 0, "{actions:?}");
    assert_eq!(actions.result, "one\ntwo\nend\nthree\n");
    assert_eq!(actions.failure_reason, "");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resumed_tree_fails_by_its_next_action() {
    let (_task, result) = ended_by_third_driver(script("exit 7")).await;
    let Some(result) = result else { return };

    let actions = result.actions.unwrap();
    assert_eq!(result.exit_code, 7, "{actions:?}");
    assert_eq!(actions.failure_reason, "LOG: Exited with status 7");
    assert_eq!(actions.failed_action, "serial[2].run");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_caller_learns_that_the_driver_died() {
    let (_dir, socket) = socket();
    let task = Task::new(sleep_for_ever());
    let driver = DriverProcess::start(&socket).await;
    start(&driver.client, &task).await;
    let pid = pid_of(&driver.client, task.id()).await;

    let client = driver.client.clone();
    let id = task.id().to_owned();
    let waiting = tokio::spawn(async move { client.wait_task(&id).await });
    // A later call on the same connection has an answer, so the wait has been sent.
    driver.client.ping().await.unwrap();
    driver.kill();
    let result = tokio::time::timeout(DEADLINE, waiting)
        .await
        .unwrap()
        .unwrap();

    assert!(
        matches!(
            result,
            Err(TaskError::Driver(DriverError::Unavailable { .. }))
        ),
        "{result:?}"
    );
    kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn task_that_ended_unseen_is_gone() {
    let (_dir, socket) = socket();
    let task = Task::new(shell("while [ ! -e go ]; do sleep 0.01; done; exit 42"));
    let driver = DriverProcess::start(&socket).await;
    let handle = start(&driver.client, &task).await;
    let pid = pid_of(&driver.client, task.id()).await;

    driver.kill();
    fs::write(task.path("go"), "").unwrap();
    until("the task ended", || !is_alive(pid));
    let driver = DriverProcess::start(&socket).await;
    let recovered = driver.client.recover_task(handle).await;

    assert!(
        matches!(recovered, Err(RecoverTaskError::Gone { .. })),
        "{recovered:?}"
    );
    driver.kill();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn second_driver_on_a_socket_is_refused() {
    let (_dir, socket) = socket();
    let driver = DriverProcess::start(&socket).await;

    let error = muster_driver_native::serve(&socket).await.unwrap_err();

    assert!(matches!(error, ServeError::AlreadyServed { .. }), "{error}");
    driver.client.ping().await.unwrap();
    driver.kill();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn driver_shutdown_leaves_tasks_running() {
    let (_dir, socket) = socket();
    let task = Task::new(sleep_for_ever());
    let driver = DriverProcess::start(&socket).await;
    start(&driver.client, &task).await;
    let pid = pid_of(&driver.client, task.id()).await;

    driver.client.shutdown().await.unwrap();

    assert!(driver.ended());
    assert!(!socket.exists());
    assert!(is_alive(pid));
    kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_sigterm_ends_the_driver() {
    let (_dir, socket) = socket();
    let task = Task::new(sleep_for_ever());
    let driver = DriverProcess::start(&socket).await;
    start(&driver.client, &task).await;
    let pid = pid_of(&driver.client, task.id()).await;

    for signal in [Signal::SIGINT, Signal::SIGHUP, Signal::SIGPIPE] {
        driver.signal(signal);
        driver.client.ping().await.unwrap();
    }
    driver.signal(Signal::SIGTERM);

    assert!(driver.ended());
    assert!(is_alive(pid));
    kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
}

/// The driver's children are the tasks only, and the number of its threads does not grow with them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn task_costs_no_thread_and_no_helper() {
    let (_dir, socket) = socket();
    let tasks: Vec<Task> = (0..60).map(|_| Task::new(sleep_for_ever())).collect();
    let driver = DriverProcess::start(&socket).await;
    let pid = driver.child.id();
    let threads = || fs::read_dir(format!("/proc/{pid}/task")).unwrap().count();
    start(&driver.client, &tasks[0]).await;
    let with_one = threads();

    for task in &tasks[1..] {
        start(&driver.client, task).await;
    }
    let client = driver.client.clone();
    let waits = join_all(tasks.iter().map(|task| client.wait_task(task.id())));
    tokio::pin!(waits);
    assert!(futures::poll!(&mut waits).is_pending());
    driver.client.ping().await.unwrap();
    let with_sixty = threads();

    // The pool that starts processes may add a thread or two, whatever the number of tasks.
    assert!(
        with_sixty <= with_one + 4,
        "{with_one} threads, then {with_sixty}"
    );
    assert_eq!(children(pid), tasks.len());
    for task in &tasks {
        driver.client.destroy_task(task.id(), true).await.unwrap();
    }
    assert_eq!(children(pid), 0, "no zombie is left");
    driver.kill();
}

fn children(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/task"))
        .unwrap()
        .map(|thread| {
            let children = fs::read_to_string(thread.unwrap().path().join("children"));
            children.unwrap_or_default().split_whitespace().count()
        })
        .sum()
}

/// The driver raises its own limit of open files; a task gets the driver's original limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn task_has_the_usual_limit_of_open_files() {
    let (_dir, socket) = socket();
    let task = Task::new(shell("ulimit -Sn > soft; exec sleep 600"));
    let driver = DriverProcess::start(&socket).await;
    start(&driver.client, &task).await;

    let (soft, hard) =
        nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE).unwrap();

    assert_eq!(task.read("soft"), soft.to_string());
    let limits = fs::read_to_string(format!("/proc/{}/limits", driver.child.id())).unwrap();
    let line = limits
        .lines()
        .find(|line| line.contains("open files"))
        .unwrap();
    assert_eq!(
        line.split_whitespace().nth(3),
        Some(hard.to_string().as_str())
    );
    driver.client.destroy_task(task.id(), true).await.unwrap();
    driver.kill();
}

/// Recovers a task from a handle with a changed `field`, so that the process does not match the handle.
async fn recovered_with(field: &str, value: Value) -> RecoverTaskError {
    let task = Task::new(sleep_for_ever());
    let driver = allowing_driver().await;
    let handle = driver.start_task(task.config.clone()).await.unwrap().handle;
    let mut state: Value = serde_json::from_slice(&handle.driver_state).unwrap();
    state[field] = value;
    let changed = TaskHandle {
        driver_state: serde_json::to_vec(&state).unwrap(),
        ..handle
    };

    let recovered = NativeDriver::new().recover_task(changed).await;

    driver.destroy_task(task.id(), true).await.unwrap();
    recovered.unwrap_err()
}

#[tokio::test]
async fn task_of_another_boot_is_gone() {
    let error = recovered_with("boot_id", "another".into()).await;

    let RecoverTaskError::Gone { reason, .. } = error else {
        panic!("{error}")
    };
    assert!(reason.contains("booted again"), "{reason}");
}

/// The pid belongs to a process that is not the task's.
#[tokio::test]
async fn reused_pid_is_not_recovered_as_task() {
    let error = recovered_with("start_ticks", 1.into()).await;

    let RecoverTaskError::Gone { reason, .. } = error else {
        panic!("{error}")
    };
    assert!(reason.contains("belongs to a process started"), "{reason}");
}

#[tokio::test]
async fn process_in_another_cgroup_is_not_the_task() {
    let error = recovered_with("cgroup", "/elsewhere".into()).await;

    let RecoverTaskError::Gone { reason, .. } = error else {
        panic!("{error}")
    };
    assert!(reason.contains("the task's is /elsewhere"), "{reason}");
}

#[tokio::test]
async fn long_socket_path_is_refused() {
    let path = Path::new("/tmp").join("x".repeat(120));

    let error = muster_driver_native::serve(&path).await.unwrap_err();

    assert!(error.to_string().contains("125 bytes"), "{error}");
}

/// No host is connected any more. The driver stops a task that must not run without an agent, as an agent would. The
/// end of the task is kept for the next agent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agent_bound_tasks_stop_without_agent() {
    let (_dir, socket) = socket();
    let DriverProcess { mut child, client } = DriverProcess::start(&socket).await;
    let script = "trap 'echo > asked; exit 3' TERM; echo > begun; while :; do sleep 0.02; done";
    let mut bound = Task::new(shell(script));
    bound.config.kill_signal = Some("SIGTERM".to_owned());
    let max = Duration::from_millis(300);
    bound.config.without_host = Some(WithoutHost {
        max,
        kill_timeout: DEADLINE,
    });
    let free = Task::new(sleep_for_ever());
    start(&client, &bound).await;
    start(&client, &free).await;
    bound.read("begun");
    // While a host is connected, no time counts.
    let later = Instant::now() + 2 * max;
    while Instant::now() < later {
        client.ping().await.unwrap();
    }
    assert!(is_alive(pid_of(&client, bound.id()).await));

    drop(client);
    bound.read("asked");

    let client = Client::new("native", &socket);
    let result = client.wait_task(bound.id()).await.unwrap();
    assert_eq!((result.exit_code, result.signal), (3, 0));
    let why = result.stopped.as_deref();
    assert_eq!(why, Some("stopped: no agent for 300 ms"));
    assert!(is_alive(pid_of(&client, free.id()).await));
    client.destroy_task(free.id(), true).await.unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
}

/// The handle contains the time that a task may run without an agent. A task that ignores its signal is killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recovered_task_still_needs_an_agent() {
    let (_dir, socket) = socket();
    let driver = DriverProcess::start(&socket).await;
    let mut task = Task::new(shell(
        "trap '' TERM; echo > begun; while :; do sleep 0.02; done",
    ));
    task.config.without_host = Some(WithoutHost {
        max: Duration::from_millis(100),
        kill_timeout: Duration::from_millis(100),
    });
    let handle = start(&driver.client, &task).await;
    let pid = pid_of(&driver.client, task.id()).await;
    task.read("begun");
    driver.kill();
    assert!(is_alive(pid));

    let DriverProcess { mut child, client } = DriverProcess::start(&socket).await;
    client.recover_task(handle).await.unwrap();
    drop(client);

    until("the task is killed", || !is_alive(pid));
    let client = Client::new("native", &socket);
    let result = client.wait_task(task.id()).await.unwrap();
    let why = result.stopped.as_deref();
    assert_eq!(why, Some("stopped: no agent for 100 ms"));
    child.kill().unwrap();
    child.wait().unwrap();
}
