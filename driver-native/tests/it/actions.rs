//! Tasks that carry out a tree of actions in place of a program.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::ops::{Deref, DerefMut};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use futures::StreamExt;
use muster_driver::{ActionsEnd, ExitResult, TaskDriver, TaskState};
use serde_json::{Value, json};

use crate::fixture::{Cgroups, DEADLINE, Task, pid_of, skipped, started, until};

/// Returns a run action.
pub(crate) fn run(script: &str) -> Value {
    json!({"run": {"path": "/bin/sh", "args": ["-c", script], "user": "vcap"}})
}

/// A task with a tree.
pub(crate) struct TreeTask {
    pub(crate) task: Task,
    /// The cgroups of the task, where they can be created.
    _cgroups: Option<Cgroups>,
}

impl Deref for TreeTask {
    type Target = Task;

    fn deref(&self) -> &Task {
        &self.task
    }
}

impl DerefMut for TreeTask {
    fn deref_mut(&mut self) -> &mut Task {
        &mut self.task
    }
}

pub(crate) fn task(tree: &Value, more: Value) -> TreeTask {
    let mut config = more;
    config["actions"] = json!(tree.to_string());
    let mut task = Task::new(config);
    let cgroups = Cgroups::new();
    task.config.cgroup = cgroups.as_ref().map(Cgroups::placement);
    TreeTask {
        task,
        _cgroups: cgroups,
    }
}

async fn ended(task: &Task) -> (ExitResult, ActionsEnd) {
    let driver = started(task).await;
    let waiting = driver.wait_task(task.id());
    let result = tokio::time::timeout(DEADLINE, waiting)
        .await
        .unwrap()
        .unwrap();
    driver.destroy_task(task.id(), false).await.unwrap();
    let actions = result.actions.as_deref().unwrap().clone();
    (result, actions)
}

/// Returns everything that was written, once no process can write any more. A child that another test is starting has
/// a copy of the write end for a moment.
pub(crate) fn output(reader: OwnedFd) -> String {
    let mut reader = File::from(reader);
    let mut bytes = Vec::new();
    until("all writers have closed the output", || {
        match reader.read_to_end(&mut bytes) {
            Ok(_) => true,
            Err(error) if error.kind() == ErrorKind::WouldBlock => false,
            Err(error) => panic!("cannot read the output: {error}"),
        }
    });
    String::from_utf8(bytes).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn action_tree_runs_in_order_and_reads_result() {
    let tree = json!({"serial": {"actions": [
        run("echo one >> log; echo out"), run("echo two >> log; cp log result"),
    ]}});
    let mut task = task(&tree, json!({"result_file": "result"}));
    let reader = task.with_stdout();

    let (result, actions) = ended(&task).await;

    assert_eq!((result.exit_code, result.successful()), (0, true));
    let expected = ActionsEnd {
        exited: true,
        result: "one\ntwo\n".to_owned(),
        ..ActionsEnd::default()
    };
    assert_eq!(actions, expected);
    assert_eq!(output(reader), "out\nExit status 0\nExit status 0\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failure_reports_action_path_and_exit_code() {
    let tree = json!({"serial": {"actions": [
        run("true"), {"timeout": {"action": run("exit 7"), "timeout_ms": 60_000}}, run("touch no"),
    ]}});
    let task = task(&tree, json!({"log_source": "VIZ"}));

    let (result, actions) = ended(&task).await;

    assert_eq!(result.exit_code, 7);
    assert_eq!(actions.failure_reason, "VIZ: Exited with status 7");
    assert_eq!(actions.failed_action, "serial[1].timeout.run");
    assert!(actions.exited);
    assert!(!task.path("no").exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn action_has_own_directory_environment_and_limits() {
    let tree = json!({"run": {
        "path": "/bin/sh", "args": ["-c", "echo $PWD $A $B $(ulimit -n) > ../seen"], "user": "vcap",
        "dir": "sub", "env": [{"name": "B", "value": "own"}], "resource_limits": {"nofile": 99},
        "suppress_log_output": true}});
    let mut task = task(&tree, json!({}));
    std::fs::create_dir(task.path("sub")).unwrap();
    task.config.env.insert("A".to_owned(), "a".to_owned());
    task.config.env.insert("B".to_owned(), "b".to_owned());
    let reader = task.with_stdout();

    let (result, _) = ended(&task).await;

    assert_eq!(result.exit_code, 0);
    assert_eq!(
        task.read("seen"),
        format!("{} a own 99", task.path("sub").display())
    );
    assert_eq!(output(reader), "");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_program_fails_its_action() {
    let tree = json!({"run": {"path": "/no/such", "user": "vcap"}});

    let (result, actions) = ended(&task(&tree, json!({}))).await;

    assert_eq!((result.exit_code, actions.exited), (1, false));
    assert_eq!(actions.failed_action, "run");
    assert!(actions.failure_reason.contains("/no/such"), "{actions:?}");
}

/// A process that an action left running ends with the tree.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_end_with_their_action_tree() {
    let tree = json!({"serial": {"actions": [
        run("setsid sleep 600 & echo $! > left"), run("kill -0 $(cat left)"),
    ]}});
    let task = task(&tree, json!({}));
    if task.config.cgroup.is_none() {
        return;
    }

    let (result, actions) = ended(&task).await;

    assert_eq!(result.exit_code, 0, "{actions:?}");
    let left = task.read("left");
    let gone = |stat: std::io::Result<String>| stat.map_or(true, |stat| stat.contains(") Z "));
    assert!(gone(std::fs::read_to_string(format!("/proc/{left}/stat"))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_is_sigterm_and_begins_nothing_more() {
    let tree = json!({"serial": {"actions": [
        {"try": {"action": run("trap 'echo term > ended; exit 0' TERM; echo > begun; sleep 600 & wait")}},
        run("touch no"),
    ]}});
    let task = task(&tree, json!({}));
    let driver = started(&task).await;
    task.read("begun");
    assert_eq!(
        driver.inspect_task(task.id()).await.unwrap().state,
        TaskState::Running
    );

    driver
        .stop_task(task.id(), DEADLINE, "SIGINT")
        .await
        .unwrap();

    let result = driver.wait_task(task.id()).await.unwrap();
    let actions = result.actions.unwrap();
    assert_eq!(task.read("ended"), "term");
    assert_eq!(
        (result.exit_code, actions.failure_reason.as_str()),
        (1, "cancelled")
    );
    assert_eq!(actions.failed_action, "serial[0].try.run");
    assert!(!task.path("no").exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_ends_the_tree_at_once() {
    let tree = json!({"try": {"action": run("trap '' TERM; echo > begun; sleep 600")}});
    let task = task(&tree, json!({}));
    let driver = started(&task).await;
    task.read("begun");
    let began = Instant::now();

    driver
        .stop_task(task.id(), Duration::ZERO, "SIGKILL")
        .await
        .unwrap();

    let actions = driver.wait_task(task.id()).await.unwrap().actions.unwrap();
    assert!(began.elapsed() < Duration::from_secs(5));
    assert!(!actions.failure_reason.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signal_reaches_the_processes_of_all_actions() {
    let wait = |name: &str| {
        run(&format!(
            "trap 'echo > {name}.got; exit 0' USR1; echo > {name}; sleep 600 & wait"
        ))
    };
    let task = task(
        &json!({"parallel": {"actions": [wait("a"), wait("b")]}}),
        json!({}),
    );
    let driver = started(&task).await;
    task.read("a");
    task.read("b");

    // A program may run before its driver has read that it was loaded.
    while !(task.path("a.got").exists() && task.path("b.got").exists()) {
        if driver.signal_task(task.id(), "SIGUSR1").await.is_err() {
            break;
        }
        tokio::task::yield_now().await;
    }

    let result = driver.wait_task(task.id()).await.unwrap();
    assert_eq!(result.exit_code, 0);
    assert!(task.path("a.got").exists() && task.path("b.got").exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_timeout_ends_its_process() {
    let tree =
        json!({"timeout": {"action": run("echo $$ > pid; exec sleep 600"), "timeout_ms": 500}});
    let task = task(&tree, json!({}));

    let (result, actions) = ended(&task).await;

    assert_eq!((result.exit_code, actions.exited), (1, false));
    assert_eq!(actions.failure_reason, "exceeded 500ms timeout");
    assert_eq!(actions.failed_action, "timeout");
}

/// A process in a separate session ends with a stopped action, and continues when its action ended by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_timeout_ends_left_over_processes() {
    let leave = |name: &str, then: &str| {
        let script = format!("setsid sleep 600 & echo $! > {name}; {then}");
        json!({"try": {"action": {"timeout": {"action": run(&script), "timeout_ms": 500}}}})
    };
    let tree = json!({"serial": {"actions": [
        run("setsid sleep 600 & echo $! > first"),
        leave("kept", "true"),
        leave("left", "sleep 600"),
        leave("deaf", "trap '' TERM; wait"),
        run("kill -0 $(cat first) && kill -0 $(cat kept)"),
        // The check must wait until the parent of the dead process has reaped it.
        run("for name in left deaf; do while kill -0 $(cat $name); do sleep 0.02; done; done"),
    ]}});
    let task = task(&tree, json!({}));
    if task.config.cgroup.is_none() {
        return;
    }

    let (result, actions) = ended(&task).await;

    assert_eq!(result.exit_code, 0, "{actions:?}");
}

/// The result file is a FIFO, a directory or a path out of the task. None of them blocks or is read. Each is a failure
/// only if the job requires a result.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn result_files_that_cannot_be_read_are_noted() {
    let cases = ["fifo", "missing", "out", ".", "../x", "/etc/passwd"];
    for file in cases {
        let tree = run("mkfifo fifo; ln -s /etc/passwd out");
        let (result, actions) = ended(&task(&tree, json!({"result_file": file}))).await;
        assert_eq!(
            (result.exit_code, actions.result.as_str()),
            (0, ""),
            "{file}"
        );
        assert!(actions.result_note.starts_with(file), "{file}: {actions:?}");

        let more = json!({"result_file": file, "result_required": true});
        let (result, actions) = ended(&task(&tree, more.clone())).await;
        assert_eq!((result.exit_code, actions.exited), (1, false), "{file}");
        assert_eq!(actions.failure_reason, "failed to fetch result");

        let (_, actions) = ended(&task(&run("exit 3"), more)).await;
        assert_eq!(actions.failure_reason, "LOG: Exited with status 3");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_result_that_is_too_long_is_cut() {
    let tree =
        json!({"serial": {"actions": [run("head -c 20000 /dev/zero | tr '\\0' x > r; exit 1")]}});

    let (_, actions) = ended(&task(&tree, json!({"result_file": "r"}))).await;

    assert_eq!(
        (actions.result.len(), actions.result_truncated),
        (10 * 1024, true)
    );
    assert_eq!(actions.failed_action, "serial[0].run");
}

/// Actions start and end in the namespaces of the task's first process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn isolated_actions_share_one_view() {
    let tree = json!({"serial": {"actions": [
        run("sleep 600 & echo $! > /tmp/left; id -u > uid"),
        run("kill -0 $(cat /tmp/left); cat /proc/1/comm > first"),
        run("cat uid first > /local/result; ls /proc/self/ns >> /local/result"),
    ]}});
    for level in ["contained", "strict"] {
        let mut task = task(
            &tree,
            json!({"isolation": level, "result_file": "/local/result"}),
        );
        if !nix::unistd::geteuid().is_root() || task.config.cgroup.is_none() {
            skipped(
                "isolated_actions_share_one_view",
                "needs root and a v2 cgroup",
            );
            return;
        }
        task.config.alloc_dir = task.path("alloc");
        std::fs::create_dir(task.path("alloc")).unwrap();

        let (result, actions) = ended(&task).await;

        assert_eq!(result.exit_code, 0, "{level}: {actions:?}");
        let lines: Vec<&str> = actions.result.lines().collect();
        assert_ne!(lines[0], "0", "{level}: vcap is nobody's root");
        assert_eq!(lines[1], "muster-init", "{level}");
    }
}

/// A task with actions answers every request of the host, also between two actions.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn running_action_tree_answers_host_requests() {
    let tree = json!({"parallel": {"actions": [
        run("echo > begun; while [ ! -e go ]; do sleep 0.01; done"), run("exit 4"),
    ]}});
    let task = task(&tree, json!({}));
    let driver = started(&task).await;
    task.read("begun");

    let listed = driver.list_tasks().await.unwrap();
    let command = ["/bin/sh", "-c", "cat begun; exit 5"].map(str::to_owned);
    let executed = driver
        .exec_task(task.id(), command.to_vec(), DEADLINE)
        .await
        .unwrap();
    let stats = driver
        .task_stats(task.id(), DEADLINE)
        .await
        .unwrap()
        .next()
        .await;
    std::fs::write(task.path("go"), "").unwrap();
    let first = driver.wait_task(task.id()).await.unwrap();
    let second = driver.wait_task(task.id()).await.unwrap();
    let status = driver.inspect_task(task.id()).await.unwrap();

    assert_eq!(listed.len(), 1);
    assert_eq!(
        (executed.result.exit_code, executed.stdout.as_slice()),
        (5, &b"\n"[..])
    );
    assert!(stats.is_some());
    assert_eq!((first.exit_code, &first), (4, &second));
    assert_eq!(
        (status.state, status.result),
        (TaskState::Exited, Some(first))
    );
    assert!(driver.signal_task(task.id(), "SIGUSR1").await.is_err());
}

/// The first process dies, as by an out-of-memory kill: running actions die with it, and no further action starts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_action_begins_after_an_external_kill() {
    let tree = json!({"serial": {"actions": [
        {"try": {"action": run("echo > begun; sleep 600")}}, run("touch no"),
    ]}});
    let task = task(&tree, json!({}));
    let driver = started(&task).await;
    task.read("begun");

    let first = nix::unistd::Pid::from_raw(pid_of(&driver, task.id()).await);
    nix::sys::signal::kill(first, nix::sys::signal::Signal::SIGKILL).unwrap();

    let waiting = driver.wait_task(task.id());
    let result = tokio::time::timeout(DEADLINE, waiting)
        .await
        .unwrap()
        .unwrap();
    let actions = result.actions.unwrap();
    assert_eq!(
        (result.exit_code, actions.failure_reason.as_str()),
        (1, "the task was killed")
    );
    assert_eq!(actions.failed_action, "serial[1].run");
    assert!(!task.path("no").exists());
}
