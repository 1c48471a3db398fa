//! Files of server, agent and driver are private to their owner, under any umask.

use std::fs;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{Process, ask, job_file, muster, needs_root, poll_until, stderr, stdout};

/// A task with a secret in its environment, and a task of another user that opens its directory by the host's path.
const JOB: &str = r#"
job "secret" {
  update { min_healthy_time = "0s" }
  group "g" {
    task "contained" {
      driver = "native"
      config {
        command = "/bin/sh"
        args    = ["-c", "echo ready; exec sleep 1000"]
      }
      env { PASSWORD = "hunter2" }
      resources { memory = 32 }
    }
  }
}
"#;
const RAW: &str = r#"
job "raw" {
  update { min_healthy_time = "0s" }
  group "g" {
    task "raw" {
      driver = "native"
      user   = "nobody"
      config {
        isolation = "raw"
        command   = "/bin/sh"
        args      = ["-c", "cd / && echo found > $NOMAD_TASK_DIR/file && cat $NOMAD_TASK_DIR/file; exec sleep 1000"]
      }
      resources { memory = 32 }
    }
  }
}
"#;

/// Starts `muster dev` with its data in `dir/data` and an umask of 0.
fn unmasked_dev(dir: &Path) -> (Process, String) {
    let mut command = Command::new("/bin/sh");
    command
        .args(["-c", "umask 0; exec \"$0\" \"$@\""])
        .arg(muster().get_program())
        .args(["dev", "--http", "127.0.0.1:0", "--data-dir"])
        .arg(dir.join("data"));
    let mut process = Process::start(&mut command, &dir.join("dev.log"));
    let address = poll_until("muster dev to be up", || {
        let ended = process.child.try_wait().unwrap();
        assert_eq!(ended, None, "{}", process.output());
        let log = process.output();
        let line = log.lines().find(|line| line.contains("muster dev is up"))?;
        let start = line.find("http://")?;
        Some(line[start..].split_whitespace().next()?.to_owned())
    });
    (process, address)
}

/// Entries of `dir` that other users may read, write or enter, without the content of task directories.
fn open_to_others(dir: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(path) = dirs.pop() {
        let meta = fs::symlink_metadata(&path).unwrap();
        let mode = meta.permissions().mode() & 0o7777;
        if mode & 0o077 != 0 && !meta.is_symlink() {
            found.push(format!("{} {mode:o}", path.display()));
        }
        if meta.is_dir() && !path.ends_with("agent/alloc") && !path.ends_with("agent/bpf") {
            dirs.extend(
                fs::read_dir(&path)
                    .unwrap()
                    .map(|entry| entry.unwrap().path()),
            );
        }
    }
    found
}

fn sockets(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    let sockets = entries.filter(|entry| entry.file_type().unwrap().is_socket());
    sockets.map(|entry| entry.path()).collect()
}

fn run(dir: &Path, address: &str, job: &str) {
    let file = job_file(dir, job);
    let run = ask(
        address,
        &["job", "run", "--timeout", "60", file.to_str().unwrap()],
    );
    assert_eq!(
        run.status.code(),
        Some(0),
        "{}{}",
        stdout(&run),
        stderr(&run)
    );
}

#[test]
fn files_are_not_readable_by_others() {
    if !needs_root("files_are_not_readable_by_others") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (process, address) = unmasked_dev(dir.path());
    run(dir.path(), &address, JOB);
    let (server, agent) = (
        dir.path().join("data/server"),
        dir.path().join("data/agent"),
    );

    assert_eq!(open_to_others(&server), [""; 0], "{}", process.output());
    assert_eq!(open_to_others(&agent), [""; 0], "{}", process.output());
    assert!(
        !sockets(&agent.join("drivers")).is_empty(),
        "the driver listens"
    );
    let saved = dir.path().join("saved.snap");
    let save = ask(
        &address,
        &["operator", "snapshot", "save", saved.to_str().unwrap()],
    );
    assert_eq!(save.status.code(), Some(0), "{}", stderr(&save));
    assert_eq!(open_to_others(&saved), [""; 0]);
}

#[test]
fn doctor_names_files_readable_by_others() {
    if !needs_root("doctor_names_files_readable_by_others") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (_process, _address) = unmasked_dev(dir.path());
    let (server, agent) = (
        dir.path().join("data/server"),
        dir.path().join("data/agent"),
    );
    let doctor = || {
        let mut doctor = muster();
        doctor.arg("doctor").arg("--data-dir").arg(&agent);
        stdout(
            &doctor
                .arg("--server-data-dir")
                .arg(&server)
                .output()
                .unwrap(),
        )
    };
    assert!(doctor().contains("no other user reads"), "{}", doctor());

    let database = agent.join("agent.redb");
    for (path, mode) in [(&agent, 0o755), (&database, 0o644), (&server, 0o755)] {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    let report = doctor();
    assert!(
        report.contains(&format!("{} (644)", database.display())),
        "{report}"
    );
    assert!(report.contains("fix: chmod go-rwx"), "{report}");
    assert!(
        report.contains(&format!("{} (755)", server.display())),
        "{report}"
    );
}

/// A raw task is a process of the host, so it must be able to reach its directory. This opens no other directory.
#[test]
fn raw_tasks_of_other_users_find_their_directory() {
    if !needs_root("raw_tasks_of_other_users_find_their_directory") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o711)).unwrap();
    let (process, address) = unmasked_dev(dir.path());
    run(dir.path(), &address, JOB);
    run(dir.path(), &address, RAW);

    poll_until("the raw task to find its file", || {
        let logs = ask(&address, &["alloc", "logs", "raw"]);
        assert!(!stderr(&logs).contains("denied"), "{}", process.output());
        stdout(&logs).contains("found").then_some(())
    });

    let allocs = fs::read_dir(dir.path().join("data/agent/alloc")).unwrap();
    let mode = |path: PathBuf| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let mut modes: Vec<u32> = allocs.map(|entry| mode(entry.unwrap().path())).collect();
    modes.sort_unstable();
    assert_eq!(modes, [0o700, 0o701]);
}
