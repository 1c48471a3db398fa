//! The whole way: a job above its memory limit is reported as killed for memory, with its task.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::support::{skipped, until};

const JOB: &str = r#"
job "hungry" {
  type = "batch"
  group "g" {
    restart {
      attempts = 0
      mode     = "fail"
    }
    task "eat" {
      driver = "native"
      config {
        command = "/bin/sh"
        args    = ["-c", "x=aaaaaaaaaaaaaaaa; while :; do x=$x$x; done"]
      }
      resources { memory = 32 }
    }
  }
}
"#;

/// `muster dev`, ended with its test.
struct Dev {
    child: Child,
    address: String,
    muster: String,
}

impl Dev {
    fn start(muster: &str, dir: &Path) -> Self {
        let log = dir.join("dev.log");
        let file = std::fs::File::create(&log).unwrap();
        let child = Command::new(muster)
            .args(["dev", "--http", "127.0.0.1:0", "--data-dir"])
            .arg(dir.join("data"))
            .stdin(Stdio::null())
            .stdout(file.try_clone().unwrap())
            .stderr(file)
            .spawn()
            .unwrap();
        let mut dev = Self {
            child,
            address: String::new(),
            muster: muster.to_owned(),
        };
        dev.address = until("muster dev to be up", || {
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            if let Some(status) = dev.child.try_wait().unwrap() {
                panic!("muster dev ended with {status}: {text}");
            }
            let line = text
                .lines()
                .find(|line| line.contains("muster dev is up"))?;
            let start = line.find("http://")?;
            Some(line[start..].split_whitespace().next()?.to_owned())
        });
        dev
    }

    fn ask(&self, args: &[&str]) -> String {
        let output = Command::new(&self.muster)
            .args(["--address", &self.address])
            .args(args)
            .output()
            .unwrap();
        format!(
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        )
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.child.id()).unwrap());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).ok();
        drop(self.child.wait());
    }
}

#[test]
fn oom_kill_is_reported_with_the_task() {
    let name = "oom_kill_is_reported_with_the_task";
    let Ok(muster) = std::env::var("MUSTER_BIN") else {
        skipped(
            name,
            "needs the muster binary in MUSTER_BIN; run: cargo xtask vm",
        );
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let dev = Dev::start(&muster, dir.path());
    let file = dir.path().join("job.hcl");
    std::fs::write(&file, JOB).unwrap();
    dev.ask(&["job", "run", "--detach", file.to_str().unwrap()]);

    let status = until("the task to be killed", || {
        let status = dev.ask(&["alloc", "status", "hungry"]);
        status.contains("Terminated").then_some(status)
    });

    assert!(status.to_lowercase().contains("oom"), "{status}");
    // The group is charged to its last page when nothing in it can be given back.
    assert!(
        status.contains("sh) killed, limit 32.0 MiB, peak 32.0 MiB"),
        "{status}"
    );
    assert!(status.contains("task eat: dead (failed)"), "{status}");
}
