//! Tests of one task from its start to its end.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt};
use std::time::{Duration, Instant};

use futures::StreamExt;
use muster_driver::{ExitResult, Retry, StartTaskError, TaskDriver, TaskError};
use muster_driver_native::limits::FINGERPRINT_INTERVAL;
use serde_json::json;

use crate::fixture::{
    DEADLINE, Task, allowing_driver, is_alive, pid_of, shell, skipped_here, sleep_for_ever,
    started, until,
};

async fn run(task: &Task) -> ExitResult {
    let driver = started(task).await;
    driver.wait_task(task.id()).await.unwrap()
}

async fn refused(task: &Task) -> StartTaskError {
    let driver = allowing_driver().await;
    driver.start_task(task.config.clone()).await.unwrap_err()
}

#[tokio::test]
async fn exit_code_is_the_programs() {
    let task = Task::new(shell("exit 7"));

    assert_eq!(run(&task).await, ExitResult::exited(7));
}

#[tokio::test]
async fn death_by_signal_is_no_exit_code() {
    let task = Task::new(shell("kill -9 $$"));

    assert_eq!(run(&task).await, ExitResult::signaled(9));
}

#[tokio::test]
async fn output_goes_to_the_fifo() {
    let mut task = Task::new(shell("echo out; echo err >&2; read line; echo $?"));
    let reader = task.with_stdout();

    let result = run(&task).await;

    let mut output = [0; 64];
    let read = File::from(reader).read(&mut output).unwrap();
    assert_eq!(
        &output[..read],
        b"out\n1\n",
        "stdin is empty, stderr elsewhere"
    );
    assert_eq!(result, ExitResult::exited(0));
}

/// The reader closes the FIFO for good; the task continues to write while the pipe has room.
#[tokio::test]
async fn closed_output_reader_does_not_end_task() {
    let mut task = Task::new(shell(
        "while [ ! -e go ]; do sleep 0.01; done; echo one && echo two && exit 5",
    ));
    let reader = task.with_stdout();
    let driver = started(&task).await;

    drop(reader);
    fs::write(task.path("go"), "").unwrap();
    let result = driver.wait_task(task.id()).await.unwrap();

    assert_eq!(result, ExitResult::exited(5));
}

/// No process reads when the task ends; the next reader gets the last output.
#[tokio::test]
async fn last_words_wait_for_a_reader() {
    let mut task = Task::new(shell(
        "while [ ! -e go ]; do sleep 0.01; done; echo last words",
    ));
    let reader = task.with_stdout();
    let driver = started(&task).await;

    drop(reader);
    fs::write(task.path("go"), "").unwrap();
    driver.wait_task(task.id()).await.unwrap();

    let mut output = [0; 64];
    let mut next = File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(&task.config.stdout_path)
        .unwrap();
    let read = next.read(&mut output).unwrap();
    assert_eq!(&output[..read], b"last words\n");
    driver.destroy_task(task.id(), false).await.unwrap();
}

#[tokio::test]
async fn environment_is_exactly_the_given_one() {
    let mut task = Task::new(shell("/usr/bin/env > out; echo >> out"));
    task.config.env.clear();
    task.config.env.insert("A".to_owned(), "b=c".to_owned());
    task.config.env.insert("EMPTY".to_owned(), String::new());

    run(&task).await;

    let output = task.read("out");
    let mut lines: Vec<&str> = output
        .lines()
        // The variables that the shell sets itself.
        .filter(|line| !["PWD", "SHLVL", "_", "OLDPWD"].contains(&line.split('=').next().unwrap()))
        .collect();
    lines.sort_unstable();
    assert_eq!(lines, ["A=b=c", "EMPTY="]);
}

#[tokio::test]
async fn relative_command_and_directory_are_the_tasks() {
    let mut task = Task::new(json!({"command": "bin/tool", "work_dir": "data"}));
    for dir in ["bin", "data"] {
        fs::create_dir(task.path(dir)).unwrap();
    }
    task.write_program("bin/tool", "#!/bin/sh\npwd > here\n");
    task.config.task_dir = task.dir.path().canonicalize().unwrap();

    let result = run(&task).await;

    assert_eq!(result, ExitResult::exited(0));
    let expected = task.config.task_dir.join("data");
    assert_eq!(task.read("data/here"), expected.to_str().unwrap());
}

#[tokio::test]
async fn user_by_name_runs_the_task() {
    if !nix::unistd::geteuid().is_root() {
        skipped_here("only root can change users; run the tests as root");
        return;
    }
    let mut task = Task::new(shell("id -un > /dev/stdout"));
    task.config.user = "nobody".to_owned();
    fs::set_permissions(task.dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let mut reader = File::from(task.with_stdout());
    // A task of another user writes to its open output, but may not open it by its path.
    task.config.config = shell("id -un");

    let result = run(&task).await;

    let mut output = [0; 64];
    let read = reader.read(&mut output).unwrap();
    assert_eq!(&output[..read], b"nobody\n");
    assert_eq!(result, ExitResult::exited(0));
}

#[tokio::test]
async fn missing_command_error_names_paths_and_fix() {
    let task = Task::new(json!({"command": "no-such-command"}));

    let error = refused(&task).await;

    let dir = task.dir.path().display();
    assert_eq!(
        error.to_string(),
        format!(
            "start task web: `config.command`: command \"no-such-command\" not found: looked in {dir}/local, {dir}, \
             /usr/bin, /bin; install it on the node or give its path"
        )
    );
    assert_eq!(error.retry(), Retry::Never);
}

#[tokio::test]
async fn unusable_command_errors_have_hints() {
    let script = Task::new(json!({"command": "./script"}));
    script.write_program("script", "#!/no/such/interpreter\n");
    let plain = Task::new(json!({"command": "./plain"}));
    plain.write_program("plain", "text");
    let locked = Task::new(json!({"command": "./locked"}));
    fs::write(locked.path("locked"), "#!/bin/sh\n").unwrap();
    let absent = Task::new(json!({"command": "/no/such/command"}));

    for (task, hint) in [
        (script, "its interpreter"),
        (plain, "first line like #!/bin/sh"),
        (locked, "may not execute it"),
        (
            absent,
            "`config.command`: run /no/such/command: command not found on the node",
        ),
    ] {
        let error = refused(&task).await.to_string();
        assert!(error.contains(hint), "{hint:?} is not in {error:?}");
    }
}

#[tokio::test]
async fn unusable_configuration_errors_have_hints() {
    let unknown = Task::new(json!({"command": "sh", "arg": []}));
    let mut nul = Task::new(sleep_for_ever());
    nul.config.env.insert("BAD".to_owned(), "a\0b".to_owned());
    let mut user = Task::new(sleep_for_ever());
    user.config.user = "no-such-user".to_owned();
    let mut fifo = Task::new(sleep_for_ever());
    fifo.config.stdout_path = fifo.path("nothing");
    let mut cgroup = Task::new(sleep_for_ever());
    cgroup.config.cgroup = Some(muster_driver::CgroupPlacement {
        dir: "/no/such/cgroup".into(),
        joins: Vec::new(),
    });
    let outside = Task::new(json!({"command": "sh", "work_dir": ".."}));

    for (task, hint) in [
        (unknown, "`config.arg` cannot be read"),
        (
            nul,
            "\"BAD=a\\0b\" cannot be given to a process: it holds a zero byte",
        ),
        (
            user,
            "`user`: user \"no-such-user\" is not known on this node",
        ),
        (fifo, "open stdout of the task"),
        (cgroup, "open the task's cgroup /no/such/cgroup"),
        (outside, "`config.work_dir`: open working directory"),
    ] {
        let error = refused(&task).await;
        assert_eq!(error.retry(), Retry::Never);
        let error = error.to_string();
        assert!(error.contains(hint), "{hint:?} is not in {error:?}");
    }
}

/// Without a cgroup, the driver can reach only the process group.
#[tokio::test]
async fn children_left_behind_die_with_the_main_process() {
    let task = Task::new(shell("sleep 600 & echo $! > child; exit 3"));

    let result = run(&task).await;

    let child: i32 = task.read("child").parse().unwrap();
    assert_eq!(result, ExitResult::exited(3));
    until("the child is dead", || !is_alive(child));
}

#[tokio::test]
async fn forced_destroy_kills_the_children_too() {
    let task = Task::new(shell("sleep 600 & echo $! > child; wait"));
    let driver = started(&task).await;
    let child: i32 = task.read("child").parse().unwrap();

    driver.destroy_task(task.id(), true).await.unwrap();

    until("the child is dead", || !is_alive(child));
}

/// A stopped process handles no signal except SIGKILL.
#[tokio::test]
async fn stopped_process_is_killed() {
    let task = Task::new(shell("kill -STOP $$; sleep 600"));
    let driver = started(&task).await;
    let pid = pid_of(&driver, task.id()).await;
    until("the process is stopped", || {
        fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") T "))
    });

    driver
        .stop_task(task.id(), Duration::from_millis(50), "SIGTERM")
        .await
        .unwrap();

    let result = driver.wait_task(task.id()).await.unwrap();
    assert_eq!(result, ExitResult::signaled(9));
}

/// Returns the soft and the hard limit in `/proc/self/limits`.
fn limit<'a>(limits: &'a str, name: &str) -> (&'a str, &'a str) {
    let mut lines = limits.lines();
    let values = lines.find_map(|line| line.strip_prefix(name));
    let mut values = values
        .unwrap_or_else(|| panic!("{limits}"))
        .split_whitespace();
    let mut next = || values.next().unwrap();
    (next(), next())
}

/// The task's own process and a command in the task have the limits in the job.
async fn limits_are_the_jobs(level: &str) {
    let mut config = shell("cat /proc/self/limits > local/limits; exec sleep 600");
    config["isolation"] = json!(level);
    config["work_dir"] = json!(if level == "raw" { "." } else { "/" });
    config["rlimits"] = json!({
        "nofile": "64:128", "fsize": "1048576:unlimited", "stack": "1048576", "memlock": "4096:8192"
    });
    let task = Task::with(config);
    fs::create_dir(task.path("local")).unwrap();
    fs::set_permissions(task.path("local"), fs::Permissions::from_mode(0o777)).unwrap();

    let driver = started(&task).await;
    let own = task.read("local/limits");
    let command = ["cat", "/proc/self/limits"].map(str::to_owned).to_vec();
    let beside = driver
        .exec_task(task.id(), command, DEADLINE)
        .await
        .unwrap();

    for limits in [own, String::from_utf8(beside.stdout).unwrap()] {
        assert_eq!(limit(&limits, "Max open files"), ("64", "128"));
        assert_eq!(limit(&limits, "Max file size"), ("1048576", "unlimited"));
        assert_eq!(limit(&limits, "Max stack size"), ("1048576", "1048576"));
        assert_eq!(limit(&limits, "Max locked memory"), ("4096", "8192"));
    }
    driver.destroy_task(task.id(), true).await.unwrap();
}

#[tokio::test]
async fn limits_of_a_raw_task_are_its_jobs() {
    limits_are_the_jobs("raw").await;
}

#[tokio::test]
async fn limits_of_isolated_tasks_are_their_jobs() {
    if !nix::unistd::geteuid().is_root() {
        skipped_here("only root can contain a task");
        return;
    }

    limits_are_the_jobs("contained").await;
    limits_are_the_jobs("strict").await;
}

#[tokio::test]
async fn stop_without_a_name_is_an_interrupt() {
    let task = Task::new(sleep_for_ever());
    let driver = started(&task).await;

    driver.stop_task(task.id(), DEADLINE, "").await.unwrap();

    let result = driver.wait_task(task.id()).await.unwrap();
    assert_eq!(result, ExitResult::signaled(2));
}

#[tokio::test]
async fn command_in_a_task_has_its_environment() {
    let mut task = Task::new(sleep_for_ever());
    task.config
        .env
        .insert("COLOR".to_owned(), "green".to_owned());
    let driver = started(&task).await;
    let script = "echo $COLOR; pwd; echo bad >&2; exit 9";

    let result = driver
        .exec_task(
            task.id(),
            ["sh", "-c", script].map(str::to_owned).to_vec(),
            DEADLINE,
        )
        .await
        .unwrap();

    let dir = task.dir.path().canonicalize().unwrap();
    assert_eq!(
        String::from_utf8(result.stdout).unwrap(),
        format!("green\n{}\n", dir.display())
    );
    assert_eq!(result.stderr, b"bad\n");
    assert_eq!(result.result, ExitResult::exited(9));
    driver.destroy_task(task.id(), true).await.unwrap();
}

#[tokio::test]
async fn command_that_takes_too_long_is_killed() {
    let task = Task::new(sleep_for_ever());
    let driver = started(&task).await;
    let script = "echo $$ > exec; echo begun; sleep 600";

    let began = Instant::now();
    let result = driver
        .exec_task(
            task.id(),
            ["sh", "-c", script].map(str::to_owned).to_vec(),
            Duration::from_millis(200),
        )
        .await
        .unwrap();

    assert!(began.elapsed() < DEADLINE);
    assert_eq!(result.stdout, b"begun\n");
    assert_eq!(result.result.signal, 9);
    let err = result.result.err.unwrap();
    assert!(err.contains("did not end within 200ms"), "{err}");
    let pid: i32 = task.read("exec").parse().unwrap();
    assert!(!is_alive(pid));
    driver.destroy_task(task.id(), true).await.unwrap();
}

/// The caller gives up, and the command must not continue.
#[tokio::test]
async fn command_dies_with_its_caller() {
    let task = Task::new(sleep_for_ever());
    let driver = started(&task).await;
    let command = ["sh", "-c", "echo $$ > exec; sleep 600"].map(str::to_owned);

    let call = driver.exec_task(task.id(), command.to_vec(), Duration::ZERO);
    let abandoned = tokio::time::timeout(Duration::from_millis(300), call).await;

    assert!(abandoned.is_err());
    let pid: i32 = task.read("exec").parse().unwrap();
    until("the command is dead", || !is_alive(pid));
    driver.destroy_task(task.id(), true).await.unwrap();
}

#[tokio::test]
async fn output_of_a_command_is_bounded() {
    let task = Task::new(sleep_for_ever());
    let driver = started(&task).await;
    let command = ["head", "-c", "3000000", "/dev/zero"].map(str::to_owned);

    let result = driver
        .exec_task(task.id(), command.to_vec(), DEADLINE)
        .await
        .unwrap();

    assert_eq!(
        result.stdout.len(),
        muster_driver_native::limits::EXEC_OUTPUT_BYTES_MAX
    );
    assert_eq!(result.result.exit_code, 0);
    assert!(result.result.err.unwrap().contains("thrown away"));
    driver.destroy_task(task.id(), true).await.unwrap();
}

#[tokio::test]
async fn command_in_an_ended_task_is_refused() {
    let task = Task::new(shell("exit 0"));
    let driver = started(&task).await;
    driver.wait_task(task.id()).await.unwrap();

    let error = driver
        .exec_task(task.id(), vec!["true".to_owned()], DEADLINE)
        .await
        .unwrap_err();

    assert_eq!(
        error,
        TaskError::NotRunning {
            task_id: task.id().to_owned()
        }
    );
}

/// A host that dropped a fingerprint receives it again.
#[tokio::test(start_paused = true)]
async fn a_fingerprint_that_does_not_change_is_repeated() {
    let driver = allowing_driver().await;
    let mut fingerprints = driver.fingerprint().await.unwrap();
    let first = fingerprints.next().await.unwrap();
    let began = tokio::time::Instant::now();

    let second = fingerprints.next().await.unwrap();

    assert_eq!(second, first);
    assert_eq!(began.elapsed(), FINGERPRINT_INTERVAL);
}
