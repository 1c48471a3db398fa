//! Tests of the state that a driver keeps briefly after a task's start, and of the rights that its threads gave up.

use std::fs;
use std::path::Path;

use muster_driver::TaskDriver;
use muster_driver_native::NativeDriver;
use serde_json::{Value, json};

use crate::fixture::{Task, pid_of, skipped, until};

fn possible(name: &str) -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        skipped(name, "only root can contain a task; run the tests as root");
    }
    root
}

/// Returns the number of open files of this process that refer to the mount namespace of `pid`.
fn kept_mounts(pid: i32) -> usize {
    let namespace = fs::read_link(format!("/proc/{pid}/ns/mnt")).unwrap();
    let files = fs::read_dir("/proc/self/fd").unwrap().flatten();
    files
        .filter(|file| fs::read_link(file.path()).is_ok_and(|link| link == namespace))
        .count()
}

fn sleeper(mut config: Value) -> Task {
    config["command"] = json!("/bin/sleep");
    config["args"] = json!(["600"]);
    Task::with(config)
}

async fn driver(policy: Value) -> NativeDriver {
    let driver = NativeDriver::new();
    driver.set_config(policy).await.unwrap();
    driver
}

/// The mounts are released although the task still runs.
#[tokio::test]
async fn own_mounts_are_kept_for_the_first_moments() {
    if !possible("moments::own_mounts_are_kept_for_the_first_moments") {
        return;
    }
    let driver = driver(json!({})).await;
    let mut seen = false;
    // On a busy machine, the check may come after the mounts are released.
    for _ in 0..20 {
        let task = sleeper(json!({}));
        driver.start_task(task.config.clone()).await.unwrap();
        let pid = pid_of(&driver, task.id()).await;

        seen |= kept_mounts(pid) == 1;

        until("the mounts are let go", || kept_mounts(pid) == 0);
        driver.destroy_task(task.id(), true).await.unwrap();
        if seen {
            break;
        }
    }
    assert!(seen);
}

/// A host that receives the end of a task can unmount its mounts immediately.
#[tokio::test]
async fn mounts_of_the_host_are_never_kept() {
    if !possible("moments::mounts_of_the_host_are_never_kept") {
        return;
    }
    let host = tempfile::tempdir().unwrap();
    let path = host.path().to_str().unwrap();
    let driver = driver(json!({ "allow_paths": [path] })).await;
    let task = sleeper(json!({ "mounts": [{ "source": path, "target": "/data" }] }));

    driver.start_task(task.config.clone()).await.unwrap();

    let pid = pid_of(&driver, task.id()).await;
    assert!(Path::new(&format!("/proc/{pid}/root/data")).is_dir());
    assert_eq!(kept_mounts(pid), 0);
    driver.destroy_task(task.id(), true).await.unwrap();
}

/// The tasks start one after the other, so that threads without capabilities have started tasks before.
#[tokio::test]
async fn each_task_is_bounded_to_its_capabilities() {
    if !possible("moments::each_task_is_bounded_to_its_capabilities") {
        return;
    }
    let driver = driver(json!({ "allow_caps": ["NET_BIND_SERVICE"] })).await;
    for (config, expected) in [
        (json!({}), "0000000000000000"),
        (
            json!({ "cap_add": ["NET_BIND_SERVICE"] }),
            "0000000000000400",
        ),
        (json!({ "isolation": "strict" }), "0000000000000000"),
        (json!({}), "0000000000000000"),
    ] {
        let task = sleeper(config);

        driver.start_task(task.config.clone()).await.unwrap();

        let pid = pid_of(&driver, task.id()).await;
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let mut lines = status.lines();
        let bounding = lines.find_map(|line| line.strip_prefix("CapBnd:\t"));
        assert_eq!(bounding, Some(expected));
        driver.destroy_task(task.id(), true).await.unwrap();
    }
}
