//! `muster dev`: from a job file to nothing left, with the commands a user has.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use nix::sys::signal::Signal;

use crate::support::{
    PATIENCE, Process, ask, job_file, muster, needs_root, poll_until, stderr, stdout,
};

const JOB: &str = r#"
job "talk" {
  update { min_healthy_time = "0s" }
  type = "service"
  group "g" {
    task "t" {
      driver = "native"
      config {
        command = "/bin/sh"
        args    = ["-c", "echo ready $NOMAD_ALLOC_NAME; echo oops >&2; exec sleep 1000"]
      }
      resources { memory = 32 }
    }
  }
}
"#;

pub(crate) fn dev(dir: &Path) -> (Process, String) {
    dev_with(dir, &[])
}

/// As [`dev`], with more arguments.
pub(crate) fn dev_with(dir: &Path, args: &[&str]) -> (Process, String) {
    let has_http = args.contains(&"--http");
    let http: &[&str] = if has_http {
        &[]
    } else {
        &["--http", "127.0.0.1:0"]
    };
    let mut process = Process::start(
        muster()
            .args(["dev", "--data-dir"])
            .arg(dir.join("data"))
            .args(http)
            .args(args),
        &dir.join("dev.log"),
    );
    let address = poll_until("muster dev to be up", || {
        if let Some(status) = process.child.try_wait().unwrap() {
            panic!("muster dev ended with {status}: {}", process.output());
        }
        let log = process.output();
        let line = log.lines().find(|line| line.contains("muster dev is up"))?;
        let start = line.find("http://")?;
        Some(line[start..].split_whitespace().next()?.to_owned())
    });
    (process, address)
}

#[test]
fn a_job_runs_talks_stops_and_leaves_nothing() {
    if !needs_root("a_job_runs_talks_stops_and_leaves_nothing") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (mut process, address) = dev(dir.path());
    let file = job_file(dir.path(), JOB);

    let run = ask(
        &address,
        &["job", "run", "--timeout", "60", file.to_str().unwrap()],
    );
    assert_eq!(
        run.status.code(),
        Some(0),
        "{}{}\n{}",
        stdout(&run),
        stderr(&run),
        process.output()
    );
    assert!(stdout(&run).contains("1 of 1 placed"), "{}", stdout(&run));

    let logs = poll_until("the task's output", || {
        let logs = stdout(&ask(&address, &["alloc", "logs", "talk"]));
        logs.contains("ready").then_some(logs)
    });
    assert_eq!(logs, "ready talk.g[0]\n");
    assert_eq!(
        stdout(&ask(&address, &["alloc", "logs", "--stderr", "talk/g.0"])),
        "oops\n"
    );

    for (args, part) in [
        (&["job", "status"][..], "talk"),
        (&["job", "status", "tal"], "talk.g[0]"),
        (&["alloc", "status", "talk"], "Started"),
        (&["node", "status"], "ready"),
        (&["node", "status", "dev"], "native"),
        (&["eval", "status"], "job-register"),
        (&["top", "talk"], "talk.g[0]/t"),
    ] {
        let output = ask(&address, args);
        assert_eq!(
            output.status.code(),
            Some(0),
            "{args:?}: {}",
            stderr(&output)
        );
        assert!(
            stdout(&output).contains(part),
            "{args:?}: {}",
            stdout(&output)
        );
        let json = ask(&address, &[args, &["--json"]].concat());
        let parsed: Result<serde_json::Value, _> = serde_json::from_slice(&json.stdout);
        assert!(parsed.is_ok(), "{args:?} --json: {}", stdout(&json));
    }

    let stop = ask(&address, &["job", "stop", "talk"]);
    assert_eq!(stop.status.code(), Some(0), "{}", stderr(&stop));
    assert_eq!(ask(&address, &["system", "gc"]).status.code(), Some(0));
    assert!(
        process.end(Signal::SIGINT).success(),
        "{}",
        process.output()
    );
    assert_eq!(leftovers(dir.path()), Vec::<String>::new());
}

const WRONG: &str = r#"job "wrong" {
  type = "batch"
  group "level" {
    restart { attempts = 0 }
    task "t" {
      driver = "native"
      config {
        command   = "/bin/true"
        isolation = "weird"
      }
      resources { memory = 32 }
    }
  }
  group "mount" {
    restart { attempts = 0 }
    task "t" {
      driver = "native"
      config {
        command = "/bin/true"
        mount {
          source = "local"
          target = "/proc"
        }
      }
      resources { memory = 32 }
    }
  }
  group "command" {
    restart { attempts = 0 }
    task "t" {
      driver = "native"
      config {
        command = "no-such-command"
      }
      resources { memory = 32 }
    }
  }
}
"#;

/// A driver's fault has a place: a line for an HCL file, a field name for JSON.
#[test]
fn native_driver_config_error_has_line_number() {
    if !needs_root("native_driver_config_error_has_line_number") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (mut process, address) = dev(dir.path());
    let file = job_file(dir.path(), WRONG);

    let run = ask(
        &address,
        &["job", "run", "--timeout", "60", file.to_str().unwrap()],
    );
    let inspected = stdout(&ask(&address, &["--json", "job", "inspect", "wrong"]));
    let json = dir.path().join("wrong.json");
    std::fs::write(&json, inspected.replace("\"wrong\"", "\"again\"")).unwrap();
    let again = ask(
        &address,
        &["job", "run", "--timeout", "60", json.to_str().unwrap()],
    );
    process.end(Signal::SIGTERM);

    let printed = stdout(&run);
    assert_eq!(run.status.code(), Some(1), "{printed}{}", stderr(&run));
    for line in [
        "job.hcl:9:9: `config.isolation`",
        "job.hcl:22:11: `config.mount[0].target`",
        "job.hcl:33:9: `config.command`",
    ] {
        assert!(printed.contains(line), "{line} is not in {printed}");
    }
    let printed = stdout(&again);
    assert_eq!(again.status.code(), Some(1), "{printed}{}", stderr(&again));
    assert!(
        printed.contains("`config.isolation` cannot be read"),
        "{printed}"
    );
    assert!(!printed.contains(".json:"), "{printed}");
}

/// A task without logs writes to the null device. A reader of its log gets the reason.
#[test]
fn a_task_with_logs_disabled_has_none() {
    if !needs_root("a_task_with_logs_disabled_has_none") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (mut process, address) = dev(dir.path());
    let quiet = "logs { disabled = true }\n      driver = \"native\"";
    let file = job_file(dir.path(), &JOB.replace("driver = \"native\"", quiet));

    let run = ask(
        &address,
        &["job", "run", "--timeout", "60", file.to_str().unwrap()],
    );
    let logs = ask(&address, &["alloc", "logs", "talk"]);
    let inspected = stdout(&ask(&address, &["--json", "job", "inspect", "talk"]));
    process.end(Signal::SIGTERM);

    assert_eq!(
        run.status.code(),
        Some(0),
        "{}{}",
        stdout(&run),
        stderr(&run)
    );
    assert_eq!(logs.status.code(), Some(4), "{}", stderr(&logs));
    let words = "task `t` has no log: its job says `logs { disabled = true }`";
    assert!(stderr(&logs).contains(words), "{}", stderr(&logs));
    assert!(inspected.contains("\"Disabled\": true"), "{inspected}");
}

/// Ctrl-C while a task runs: `dev` stops it.
#[test]
fn ending_dev_ends_its_tasks() {
    if !needs_root("ending_dev_ends_its_tasks") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (mut process, address) = dev(dir.path());
    let file = job_file(dir.path(), JOB);
    let run = ask(&address, &["job", "run", file.to_str().unwrap()]);
    assert_eq!(
        run.status.code(),
        Some(0),
        "{}{}",
        stdout(&run),
        stderr(&run)
    );

    let status = process.end(Signal::SIGTERM);

    assert!(status.success(), "{}", process.output());
    assert_eq!(leftovers(dir.path()), Vec::<String>::new());
}

/// Only the owner can read private keys.
#[test]
fn keys_are_private() {
    let dir = tempfile::tempdir().unwrap();
    let (_server, _) = crate::support::server(dir.path());

    for name in ["ca.key", "server.key", "agent.key"] {
        let mode = std::fs::metadata(dir.path().join("server/tls").join(name))
            .unwrap()
            .permissions();
        assert_eq!(mode.mode() & 0o077, 0, "{name}");
    }
}

/// Processes and mounts that name `dir`.
fn leftovers(dir: &Path) -> Vec<String> {
    let needle = dir.to_str().unwrap();
    let deadline = std::time::Instant::now() + PATIENCE;
    loop {
        let mut found: Vec<String> = std::fs::read_to_string("/proc/self/mounts")
            .unwrap()
            .lines()
            .filter(|line| line.contains(needle))
            .map(str::to_owned)
            .collect();
        for entry in std::fs::read_dir("/proc").unwrap().flatten() {
            let arguments = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let arguments = String::from_utf8_lossy(&arguments).replace('\0', " ");
            if arguments.contains(needle) {
                found.push(arguments);
            }
        }
        if found.is_empty() || std::time::Instant::now() > deadline {
            return found;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}
