//! Tests of users and groups that would give a job more than the node allows, and of files that other users of the
//! host would run.

use std::error::Error as _;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use muster_driver::{ExitResult, TaskDriver};
use muster_driver_native::NativeDriver;
use serde_json::{Value, json};

use crate::fixture::{Task, skipped};

/// Numbers that system calls interpret as "no change", and numbers that wrap to one of those.
const NO_IDS: [&str; 6] = [
    "4294967295",
    "-1",
    "4294967296",
    "18446744073709551615",
    "18446744073709551616",
    "+0",
];
/// Creates files that run as their owner, by each way that coreutils and perl support.
const SET_ID: &str = "cp /bin/true /out/suid && chmod 4755 /out/suid; chmod g+s /out/suid; \
    perl -e 'use Fcntl; sysopen(F, \"/out/opened\", O_CREAT|O_WRONLY, 04755)'; \
    mknod /out/null c 1 3; touch /out/done";

fn is_root(name: &str) -> bool {
    let is_root = nix::unistd::geteuid().is_root();
    if !is_root {
        skipped(name, "only root can contain a task; run the tests as root");
    }
    is_root
}

/// Returns the reason why the task does not start on a node with `policy`; ends the task if it starts.
async fn refused(task: &Task, policy: Value) -> Option<String> {
    let driver = NativeDriver::new();
    driver.set_config(policy).await.unwrap();
    match driver.start_task(task.config.clone()).await {
        Ok(_started) => {
            driver.destroy_task(task.id(), true).await.unwrap();
            None
        }
        Err(error) => {
            let mut text = error.to_string();
            let mut source = error.source();
            while let Some(error) = source {
                text = format!("{text}: {error}");
                source = error.source();
            }
            Some(text)
        }
    }
}

#[tokio::test]
async fn numbers_that_are_no_ids_do_not_start() {
    if !is_root("users::numbers_that_are_no_ids_do_not_start") {
        return;
    }
    for number in NO_IDS {
        for (level, policy) in [
            ("contained", json!({"allow_uid0": true})),
            ("strict", json!({})),
            ("raw", json!({"allow_raw": true})),
        ] {
            let config = json!({"command": "/bin/true", "isolation": level});
            let mut named = Task::with(config.clone());
            named.config.user = number.to_owned();
            let why = refused(&named, policy.clone()).await.unwrap();
            assert!(why.contains("is not a valid id"), "{number} {level}: {why}");

            for field in ["user", "group"] {
                let mut config = config.clone();
                config[field] = json!(number);
                let why = refused(&Task::with(config), policy.clone()).await.unwrap();
                assert!(why.contains("is not a valid id"), "{field} {level}: {why}");
            }
        }
    }
}

#[tokio::test]
async fn groups_of_the_host_need_an_allowance() {
    if !is_root("users::groups_of_the_host_need_an_allowance") {
        return;
    }
    let task = |user: &str, group: &str| {
        let mut config = json!({"command": "/bin/true", "isolation": "contained"});
        if !group.is_empty() {
            config["group"] = json!(group);
        }
        let mut task = Task::with(config);
        user.clone_into(&mut task.config.user);
        task
    };

    for (user, group) in [
        ("", "disk"),
        ("", "shadow"),
        ("", "adm"),
        ("", "0"),
        ("daemon", "6"),
    ] {
        let why = refused(&task(user, group), json!({})).await.unwrap();
        assert!(why.contains("allow_groups"), "{user}:{group}: {why}");
    }
    let allowed = json!({"allow_groups": ["disk"]});
    assert_eq!(refused(&task("", "disk"), allowed).await, None);
    assert_eq!(refused(&task("daemon", "daemon"), json!({})).await, None);
}

/// Other users of the host can access the directory.
#[tokio::test]
async fn task_leaves_no_setuid_files_on_host() {
    if !is_root("users::task_leaves_no_setuid_files_on_host") {
        return;
    }
    for user in ["nobody", "root"] {
        let out = tempfile::tempdir().unwrap();
        fs::set_permissions(out.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let source = out.path().to_str().unwrap();
        let task = Task::with(json!({
            "command": "/bin/sh",
            "args": ["-c", SET_ID],
            "isolation": "contained",
            "user": user,
            "mounts": [{"source": source, "target": "/out", "readonly": false}],
        }));
        let driver = NativeDriver::new();
        let policy = json!({"allow_uid0": true, "allow_paths": [format!("{source}:rw")]});
        driver.set_config(policy).await.unwrap();

        driver.start_task(task.config.clone()).await.unwrap();
        let result = driver.wait_task(task.id()).await.unwrap();
        driver.destroy_task(task.id(), true).await.unwrap();

        assert_eq!(result, ExitResult::exited(0));
        assert!(out.path().join("done").exists(), "the task could write");
        let mode = |path: &Path| fs::symlink_metadata(path).unwrap().permissions().mode();
        assert_eq!(mode(&out.path().join("suid")) & 0o6000, 0, "{user}");
        assert!(!out.path().join("opened").exists(), "{user}");
        assert!(!out.path().join("null").exists(), "{user}");
    }
}
