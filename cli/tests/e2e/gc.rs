//! `muster system gc`, on a server and its node.

use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::dev::dev;
use crate::support::{ask, job_file, needs_root, poll_until, skipped, stderr, stdout};

/// A batch job of two groups. Ended instances stay on servers, as results of an existing job. Their node need not keep
/// them.
const HALF: &str = r#"
job "half" {
  type = "batch"
  group "ended" {
    task "t" {
      driver = "native"
      config {
        command = "/bin/sh"
        args    = ["-c", "head -c 1048576 /dev/zero > $NOMAD_ALLOC_DIR/data/large"]
      }
      resources { memory = 32 }
    }
  }
  group "runs" {
    task "t" {
      driver = "native"
      config {
        command = "/bin/sleep"
        args    = ["1000"]
      }
      resources { memory = 32 }
    }
  }
}
"#;

/// A job for which there is no node.
const NOWHERE: &str = r#"
job "nowhere" {
  type = "batch"
  constraint {
    attribute = "${node.class}"
    value     = "none"
  }
  group "g" {
    task "t" {
      driver = "native"
      config { command = "/bin/true" }
    }
  }
}
"#;

/// A separate file system without pressure. On a disk above the threshold, ended allocations would be collected before
/// the test asks.
struct TestMount(PathBuf);

impl TestMount {
    /// Mounts the file system. `None`, with the reason printed, if that is impossible here.
    fn mount(dir: &Path) -> Option<Self> {
        std::fs::create_dir(dir).unwrap();
        let mut mount = Command::new("mount");
        mount
            .args(["-t", "tmpfs", "-o", "size=1g", "tmpfs"])
            .arg(dir);
        let mounted = mount.output().unwrap();
        if !mounted.status.success() {
            let reason = format!("no tmpfs can be mounted: {}", stderr(&mounted));
            skipped("collection_reports_freed_and_kept_objects", &reason);
            return None;
        }
        Some(Self(dir.to_owned()))
    }
}

impl Drop for TestMount {
    fn drop(&mut self) {
        drop(Command::new("umount").arg("-l").arg(&self.0).status());
    }
}

fn collect(address: &str, flag: &str) -> Value {
    let output = ask(address, &["system", "gc", flag, "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The counts of one kind: how many are freed, and how many stay for which reason.
fn kind(report: &Value, kind: &str) -> (u64, Vec<(String, u64)>) {
    let mut kinds = report["State"].as_array().unwrap().iter();
    freed_and_kept(kinds.find(|count| count["Kind"] == kind).unwrap())
}

fn freed_and_kept(count: &Value) -> (u64, Vec<(String, u64)>) {
    let kept = count["Kept"].as_array().unwrap().iter();
    let kept = kept.map(|kept| {
        let reason = kept["Reason"].as_str().unwrap().to_owned();
        (reason, kept["Count"].as_u64().unwrap())
    });
    (count["Freed"].as_u64().unwrap(), kept.collect())
}

fn job(address: &str, dir: &Path, args: &[&str], text: &str) {
    let file = job_file(dir, text);
    let output = ask(
        address,
        &[&["job", "run"][..], args, &[file.to_str().unwrap()]].concat(),
    );
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
}

/// One of two jobs is over. The node deletes one of two allocations, and servers delete none.
#[test]
fn collection_reports_freed_and_kept_objects() {
    if !needs_root("collection_reports_freed_and_kept_objects") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let Some(_place) = TestMount::mount(&dir.path().join("data")) else {
        return;
    };
    let (mut process, address) = dev(dir.path());
    job(&address, dir.path(), &["--detach"], HALF);
    job(&address, dir.path(), &["--detach"], NOWHERE);
    let stop = ask(&address, &["job", "stop", "nowhere"]);
    assert_eq!(stop.status.code(), Some(0), "{}", stderr(&stop));
    let held = "held as results of a batch job that is there".to_owned();
    let kept = vec![("not over".to_owned(), 1), (held, 1)];

    let dry = poll_until(
        "one to have ended, and nodes and servers to know it",
        || {
            let report = collect(&address, "--dry-run");
            let is_known = kind(&report, "allocations") == (0, kept.clone())
                && kind(&report, "jobs").0 == 1
                && report["Nodes"][0]["Freed"] == 1;
            is_known.then_some(report)
        },
    );
    let would = stdout(&ask(&address, &["system", "gc", "--dry-run"]));
    let done = collect(&address, "--wait");
    let again = stdout(&ask(&address, &["system", "gc", "--wait"]));

    assert_eq!(dry["DryRun"], true);
    assert_eq!(done["DryRun"], false);
    for report in [&dry, &done] {
        assert_eq!(kind(report, "jobs"), (1, vec![("not over".to_owned(), 1)]));
        assert_eq!(kind(report, "allocations"), (0, kept.clone()));
        assert_eq!(kind(report, "evaluations"), kind(&dry, "evaluations"));
        assert!(kind(report, "evaluations").0 > 0, "{report}");
        assert_eq!(report["Nodes"].as_array().unwrap().len(), 1);
        assert_eq!(freed_and_kept(&report["Nodes"][0]), (1, Vec::new()));
        assert_eq!(report["Nodes"][0]["Error"], "");
    }
    assert_eq!(dry["Nodes"][0]["Bytes"], 0);
    assert!(
        done["Nodes"][0]["Bytes"].as_u64() >= Some(1 << 20),
        "{done}"
    );
    assert!(done["Nodes"][0]["Inodes"].as_u64() > Some(0), "{done}");
    for line in [
        "jobs                 1 would be freed, 1 would be kept (1 not over)\n",
        "1 allocation would be freed, none would be kept\n",
    ] {
        assert!(would.contains(line), "{would}");
    }
    for line in [
        "jobs                 0 freed, 1 kept (1 not over)\n",
        "0 allocations freed (0 inodes, 0 B), none kept\n",
    ] {
        assert!(again.contains(line), "{again}");
    }
    assert!(
        process.end(Signal::SIGINT).success(),
        "{}",
        process.output()
    );
}
