//! Tests of roots and mounts that a job names.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use muster_driver::fixture::copy_program;
use muster_driver::{ExitResult, TaskDriver};
use serde_json::{Value, json};

use crate::fixture::{Task, allowing_driver, skipped};
use muster_driver_native::NativeDriver;

/// Returns the path of a static program that contains a whole system.
fn busybox() -> Option<PathBuf> {
    ["/bin/busybox", "/usr/bin/busybox"]
        .into_iter()
        .map(PathBuf::from)
        .find(|path| path.exists())
}

/// Returns whether roots that a job names can be tested here.
fn possible(name: &str) -> bool {
    if !nix::unistd::geteuid().is_root() {
        skipped(name, "only root can contain a task; run the tests as root");
        return false;
    }
    if busybox().is_none() {
        skipped(name, "busybox is not installed; run: cargo xtask setup");
        return false;
    }
    let overlay = fs::read_to_string("/proc/filesystems").is_ok_and(|all| all.contains("overlay"));
    if !overlay {
        skipped(
            name,
            "this kernel has no overlay file system loaded; run: modprobe overlay",
        );
    }
    overlay
}

/// Returns a task with a small directory tree below its directory, and the tree.
fn with_tree(script: &str, mut config: Value) -> (Task, PathBuf) {
    config["root"] = json!("local/tree");
    config["command"] = json!("/bin/busybox");
    config["args"] = json!(["sh", "-c", script]);
    let task = Task::with(config);
    let tree = task.dir.path().join("local/tree");
    fs::create_dir_all(tree.join("bin")).unwrap();
    fs::create_dir_all(tree.join("etc")).unwrap();
    fs::write(tree.join("etc/mark"), "image\n").unwrap();
    let program = tree.join("bin/busybox");
    copy_program(&busybox().unwrap(), &program);
    for dir in [task.dir.path().to_owned(), tree.clone()] {
        fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).unwrap();
    }
    (task, tree)
}

async fn run(driver: &NativeDriver, task: &Task) -> ExitResult {
    driver.start_task(task.config.clone()).await.unwrap();
    let result = driver.wait_task(task.id()).await.unwrap();
    driver.destroy_task(task.id(), true).await.unwrap();
    result
}

#[tokio::test]
async fn named_root_tree_is_used_and_unmodified() {
    if !possible("roots::named_root_tree_is_used_and_unmodified") {
        return;
    }
    let policy = json!({"allow_uid0": true});
    let script = "busybox cat /etc/mark > /local/out; [ -e /usr/bin ] && exit 3; \
                  echo new > /etc/new || exit 4; echo > /etc/mark || exit 5; \
                  [ -c /dev/null ] || exit 6; [ -d /proc/1 ] || exit 7; exit 0";
    let (mut task, tree) = with_tree(script, json!({}));
    task.config.user = "root".to_owned();
    task.config.env.insert("PATH".to_owned(), "/bin".to_owned());
    let driver = NativeDriver::new();
    driver.set_config(policy).await.unwrap();

    let result = run(&driver, &task).await;

    assert_eq!(result, ExitResult::exited(0));
    assert_eq!(
        fs::read_to_string(task.path("local/out")).unwrap(),
        "image\n"
    );
    assert_eq!(
        fs::read_to_string(tree.join("etc/mark")).unwrap(),
        "image\n"
    );
    assert!(!tree.join("etc/new").exists());
    assert!(!tree.join("dev").exists(), "places are made above the tree");
}

#[tokio::test]
async fn read_only_root_cannot_be_written() {
    if !possible("roots::read_only_root_cannot_be_written") {
        return;
    }
    let script = "echo x > /x && exit 3; echo x > /etc/mark && exit 4; echo x > /tmp/x || exit 5";
    for config in [
        json!({"readonly_root": true}),
        json!({"isolation": "strict"}),
    ] {
        let mut config = config;
        config["user"] = json!("root");
        let (task, _tree) = with_tree(script, config);
        let driver = NativeDriver::new();
        driver
            .set_config(json!({"allow_uid0": true}))
            .await
            .unwrap();

        assert_eq!(run(&driver, &task).await, ExitResult::exited(0));
    }
}

/// A tree whose author knows the driver's mount points.
#[tokio::test]
async fn links_where_the_driver_mounts_are_refused() {
    if !possible("roots::links_where_the_driver_mounts_are_refused") {
        return;
    }
    for place in [
        "proc", "sys", "dev", "tmp", "local", "secrets", "alloc", "run",
    ] {
        let outside = tempfile::tempdir().unwrap();
        let (mut task, tree) = with_tree("exit 0", json!({}));
        task.config.alloc_dir = task.dir.path().to_owned();
        symlink(outside.path(), tree.join(place)).unwrap();
        let driver = allowing_driver().await;

        let error = driver.start_task(task.config.clone()).await.unwrap_err();

        let words = format!("the place to mount on in the task's root /{place}");
        assert!(error.to_string().contains(&words), "{error}");
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0, "{place}");
    }
}

#[tokio::test]
async fn tree_elsewhere_needs_the_nodes_word() {
    if !possible("roots::tree_elsewhere_needs_the_nodes_word") {
        return;
    }
    let task = Task::with(json!({"command": "/bin/true", "root": "/usr"}));
    let driver = allowing_driver().await;

    let error = driver.start_task(task.config.clone()).await.unwrap_err();

    assert!(error.to_string().contains("allow_paths"), "{error}");
}

/// A read-only mount cannot be written, and a link to the host is not followed.
#[tokio::test]
async fn mounts_follow_the_job_definition() {
    if !nix::unistd::geteuid().is_root() {
        skipped(
            "roots::mounts_follow_the_job_definition",
            "only root can contain a task; run the tests as root",
        );
        return;
    }
    let script = "cat /data/mark > /local/out; echo x > /data/x && exit 3; \
                  echo x > /srv/deep/own/x || exit 4; cat /etc/motd.job >> /local/out; exit 0";
    let mut config = crate::fixture::shell(script);
    config["mounts"] = json!([
        {"source": "local/data", "target": "/data"},
        {"source": "local/own", "target": "/srv/deep/own", "readonly": false},
        {"source": "local/data/mark", "target": "/etc/motd.job"},
    ]);
    let task = Task::with(config);
    let local = task.dir.path().join("local");
    for dir in ["data", "own"] {
        fs::create_dir_all(local.join(dir)).unwrap();
        fs::set_permissions(local.join(dir), fs::Permissions::from_mode(0o777)).unwrap();
    }
    fs::write(local.join("data/mark"), "here\n").unwrap();
    let driver = allowing_driver().await;

    let result = run(&driver, &task).await;

    assert_eq!(result, ExitResult::exited(0));
    assert_eq!(
        fs::read_to_string(local.join("out")).unwrap(),
        "here\nhere\n"
    );
    assert!(Path::new(&local).join("own/x").exists());
}

#[tokio::test]
async fn symlinked_task_directory_is_rejected() {
    if !nix::unistd::geteuid().is_root() {
        skipped(
            "roots::symlinked_task_directory_is_rejected",
            "only root can contain a task; run the tests as root",
        );
        return;
    }
    let outside = tempfile::tempdir().unwrap();
    let task = Task::with(json!({"command": "/bin/true"}));
    symlink(outside.path(), task.dir.path().join("secrets")).unwrap();
    let driver = allowing_driver().await;

    let error = driver.start_task(task.config.clone()).await.unwrap_err();

    assert!(
        error.to_string().contains("the task's directory secrets"),
        "{error}"
    );
}
