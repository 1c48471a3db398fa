//! A group's data move with it to another node (`ephemeral_disk.migrate`): one server and two agents.

use std::fs;
use std::path::{Path, PathBuf};

use nix::sys::signal::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::support::{
    Leftovers, Process, agent, ask, job_file, needs_root, poll_until, server_with, stderr, stdout,
};

/// A task that writes its identity to new data, and once more when it is asked to stop.
const JOB: &str = r#"
job "keeper" {
  update { min_healthy_time = "0s" }
  type = "service"
  group "g" {
    ephemeral_disk {
      migrate = true
      size    = 20
    }
    task "t" {
      driver = "native"
      config {
        command = "/bin/sh"
        args = ["-c", <<-SH
          data=$NOMAD_ALLOC_DIR/data
          [ -e $data/first ] || echo $NOMAD_ALLOC_ID > $data/first
          [ -e $NOMAD_TASK_DIR/own ] || echo $NOMAD_ALLOC_ID > $NOMAD_TASK_DIR/own
          trap 'echo $NOMAD_ALLOC_ID > $data/last; exit 0' INT
          sleep 3600 & wait
        SH
        ]
      }
      logs {
        max_files     = 1
        max_file_size = 5
      }
      resources { memory = 32 }
    }
  }
}
"#;

/// An allocation that the servers want to run and that runs.
#[derive(Clone, Debug)]
struct RunningAlloc {
    id: String,
    node: String,
}

/// The fields are dropped in this order: the cleanup after agents needs their data directories.
struct TwoAgents {
    _left: [Leftovers; 2],
    _server: Process,
    address: String,
    temp: TempDir,
}

impl TwoAgents {
    fn new() -> Self {
        // Short, for the sake of the drivers' sockets.
        let temp = tempfile::Builder::new().prefix("mm").tempdir_in("/tmp");
        let temp = temp.unwrap();
        let (server, address) = server_with(temp.path(), &["--heartbeat-ttl", "2"]);
        let left = ["one", "two"].map(|name| Leftovers(temp.path().join(name)));
        Self {
            _left: left,
            _server: server,
            address,
            temp,
        }
    }

    fn dir(&self) -> &Path {
        self.temp.path()
    }

    fn agent(&self, name: &str) -> Process {
        agent(self.dir(), &self.address, (name, "native"), &[])
    }

    fn done(&self, args: &[&str]) -> String {
        let output = ask(&self.address, args);
        assert!(output.status.success(), "{args:?}: {}", stderr(&output));
        stdout(&output)
    }

    /// The job runs for the first time.
    fn begin(&self) -> RunningAlloc {
        let file = job_file(self.dir(), JOB);
        self.done(&["job", "run", "--detach", file.to_str().unwrap()]);
        let first = poll_until("the first allocation", || self.running());
        poll_until("what it writes", || {
            self.read(&first, "t/local/own")
                .filter(|own| !own.is_empty())
        });
        first
    }

    fn running(&self) -> Option<RunningAlloc> {
        let output = ask(&self.address, &["--json", "job", "status", "keeper"]);
        let job: Value = serde_json::from_slice(&output.stdout).ok()?;
        let allocs = job["Allocations"].as_array()?;
        let runs = |it: &&Value| it["DesiredStatus"] == "run" && it["ClientStatus"] == "running";
        let found = allocs.iter().find(runs)?;
        let text = |name: &str| found[name].as_str().map(str::to_owned);
        Some(RunningAlloc {
            id: text("ID")?,
            node: text("NodeName")?,
        })
    }

    /// The running allocation that replaces `former`.
    fn replacement(&self, former: &RunningAlloc) -> RunningAlloc {
        poll_until("the replacement", || {
            self.running().filter(|new| new.id != former.id)
        })
    }

    fn path(&self, alloc: &RunningAlloc, file: &str) -> PathBuf {
        let allocs = self.dir().join(&alloc.node).join("alloc");
        allocs.join(&alloc.id).join(file)
    }

    fn read(&self, alloc: &RunningAlloc, file: &str) -> Option<String> {
        let text = fs::read_to_string(self.path(alloc, file)).ok()?;
        Some(text.trim().to_owned())
    }
}

/// All files of the task, including the last ones, are present before the replacement starts. The former node keeps
/// only the files that it would keep anyway.
#[test]
fn data_follow_a_drained_group() {
    if !needs_root("data_follow_a_drained_group") {
        return;
    }
    let two_agents = TwoAgents::new();
    let _agents = ["one", "two"].map(|name| two_agents.agent(name));
    let first = two_agents.begin();

    let drain = ["node", "drain", "--enable", "--yes", "--detach"];
    two_agents.done(&[&drain[..], &[first.node.as_str()]].concat());
    let second = two_agents.replacement(&first);

    assert_ne!(second.node, first.node);
    for file in ["alloc/data/first", "alloc/data/last", "t/local/own"] {
        assert_eq!(
            two_agents.read(&second, file).as_ref(),
            Some(&first.id),
            "{file}"
        );
    }
    let status = two_agents.done(&["alloc", "status", &second.id]);
    let came = format!("the data of allocation {} came from its node", first.id);
    assert!(status.contains(&came), "{status}");
}

#[test]
fn group_starts_empty_when_source_node_is_down() {
    if !needs_root("group_starts_empty_when_source_node_is_down") {
        return;
    }
    let two_agents = TwoAgents::new();
    let mut agents = ["one", "two"].map(|name| (name, two_agents.agent(name)));
    let first = two_agents.begin();

    let (_, agent) = agents
        .iter_mut()
        .find(|(name, _)| *name == first.node)
        .unwrap();
    agent.end(Signal::SIGKILL);
    let second = two_agents.replacement(&first);

    assert_ne!(second.node, first.node);
    poll_until("what it writes", || {
        two_agents
            .read(&second, "t/local/own")
            .filter(|own| *own == second.id)
    });
    let status = two_agents.done(&["alloc", "status", &second.id]);
    let empty = format!(
        "beginning with empty directories: the data of allocation {} did not come: node",
        first.id
    );
    assert!(
        status.contains(&empty) && status.contains("is down"),
        "{status}"
    );
}
