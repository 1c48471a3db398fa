//! Tests of the reaper, and of the signals of the first process in a pid namespace.

use std::time::{Duration, Instant};

use muster_driver::{ExitResult, TaskDriver};
use serde_json::{Value, json};

use crate::fixture::{DEADLINE, Task, allowing_driver, shell, skipped_here};
use crate::probe::written;

fn is_root() -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        skipped_here("only root can contain a task; run the tests as root");
    }
    root
}

fn with_init(script: &str, level: &str) -> Value {
    let mut config = shell(script);
    config["init"] = json!(true);
    config["isolation"] = json!(level);
    config
}

const LEVELS: [&str; 3] = ["raw", "contained", "strict"];

#[tokio::test]
async fn reaper_ends_as_its_program_did() {
    if !is_root() {
        return;
    }
    for level in LEVELS {
        let driver = allowing_driver().await;
        for (script, code) in [("exit 7", 7), ("kill -9 $$", 137)] {
            let task = Task::with(with_init(script, level));

            driver.start_task(task.config.clone()).await.unwrap();
            let result = driver.wait_task(task.id()).await.unwrap();

            assert_eq!(result, ExitResult::exited(code), "{level}: {script}");
        }
    }
}

/// Orphans are reaped, and the program is not the first process.
#[tokio::test]
async fn reaper_leaves_no_zombies() {
    if !is_root() {
        return;
    }
    let script = "(sh -c 'sleep 0.01 & exit 0'; true); echo $$ > /local/pid; sleep 0.3; \
                  for status in /proc/[0-9]*/status; do cat $status; done > /local/all; \
                  echo done >> /local/all; sleep 600";
    let task = Task::with(with_init(script, "contained"));
    let driver = allowing_driver().await;

    driver.start_task(task.config.clone()).await.unwrap();
    let all = written_until_done(&task);

    assert_eq!(written(&task.path("local/pid")).trim(), "2");
    assert!(all.contains("Name:\tmuster-init"), "{all}");
    assert!(!all.contains("zombie"), "{all}");
    driver.destroy_task(task.id(), true).await.unwrap();
}

fn written_until_done(task: &Task) -> String {
    let mut text = String::new();
    crate::fixture::until("the task has looked", || {
        text = written(&task.path("local/all"));
        text.ends_with("done\n")
    });
    text
}

#[tokio::test]
async fn reaper_forwards_signals() {
    if !is_root() {
        return;
    }
    for level in LEVELS {
        let place = if level == "raw" { "local" } else { "/local" };
        let script =
            format!("trap 'exit 33' TERM; echo yes > {place}/ready; while :; do sleep 0.05; done");
        let task = Task::with(with_init(&script, level));
        std::fs::create_dir_all(task.dir.path().join("local")).unwrap();
        let driver = allowing_driver().await;
        driver.start_task(task.config.clone()).await.unwrap();
        written(&task.path("local/ready"));

        driver
            .stop_task(task.id(), DEADLINE, "SIGTERM")
            .await
            .unwrap();

        let result = driver.wait_task(task.id()).await.unwrap();
        assert_eq!(result, ExitResult::exited(33), "{level}");
    }
}

#[tokio::test]
async fn reaper_exits_127_for_a_missing_program() {
    if !is_root() {
        return;
    }
    let config = json!({"command": "no-such-program", "init": true});
    let task = Task::with(config);
    let driver = allowing_driver().await;

    driver.start_task(task.config.clone()).await.unwrap();
    let result = driver.wait_task(task.id()).await.unwrap();

    assert_eq!(result, ExitResult::exited(127));
}

/// `sleep` has no handler. Without the driver's SIGKILL, the kernel would not deliver the signal, and the stop would
/// take its whole timeout.
#[tokio::test]
async fn init_without_sigterm_handler_stops_promptly() {
    if !is_root() {
        return;
    }
    let task = Task::with(json!({"command": "sleep", "args": ["600"]}));
    let driver = allowing_driver().await;
    driver.start_task(task.config.clone()).await.unwrap();

    let began = Instant::now();
    driver
        .stop_task(task.id(), Duration::from_mins(5), "SIGTERM")
        .await
        .unwrap();

    assert!(began.elapsed() < DEADLINE);
    let result = driver.wait_task(task.id()).await.unwrap();
    assert_eq!(result, ExitResult::signaled(15));
}

#[tokio::test]
async fn handler_of_a_first_process_is_run() {
    if !is_root() {
        return;
    }
    let script = "trap 'exit 44' TERM; echo yes > /local/ready; while :; do sleep 0.05; done";
    let task = Task::with(shell(script));
    let driver = allowing_driver().await;
    driver.start_task(task.config.clone()).await.unwrap();
    written(&task.path("local/ready"));

    driver
        .stop_task(task.id(), DEADLINE, "SIGTERM")
        .await
        .unwrap();

    let result = driver.wait_task(task.id()).await.unwrap();
    assert_eq!(result, ExitResult::exited(44));
}
