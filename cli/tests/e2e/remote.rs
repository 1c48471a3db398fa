//! Tasks on another system outlive the node that started them. The test has one server and two agents with a driver of
//! remote tasks. A third process is the system where the tasks run.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::support::{
    Leftovers, Process, agent, ask, began, job_file, needs_programs, poll_until, server_with,
    skipped, stderr, stdout,
};

/// The directory with the built examples, which `cargo xtask test` names.
const EXAMPLES_VARIABLE: &str = "MUSTER_TEST_EXAMPLES";

/// Builds the driver and its host from `cli/examples/remote`. `None`, after a message, if the test cannot run.
fn program(name: &str) -> Option<PathBuf> {
    if !nix::unistd::geteuid().is_root() {
        skipped(name, "agents and drivers need root");
        return None;
    }
    if !needs_programs(name) {
        return None;
    }
    if let Some(dir) = std::env::var_os(EXAMPLES_VARIABLE) {
        let program = Path::new(&dir).join("remote");
        assert!(program.is_file(), "{} is not built", program.display());
        return Some(program);
    }
    let built = Command::new(env!("CARGO"))
        .args(["build", "--offline", "--package", "muster-cli"])
        .args(["--example", "remote", "--message-format", "json"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output();
    let built = match built {
        Ok(built) => built,
        Err(error) => {
            skipped(name, &format!("cargo builds the driver: {error}"));
            return None;
        }
    };
    assert!(built.status.success(), "{}", stderr(&built));
    let messages = stdout(&built);
    let messages = messages.lines().map(serde_json::from_str::<Value>);
    let mut programs = messages.filter_map(|it| Some(it.ok()?["executable"].as_str()?.to_owned()));
    let program = programs.find(|path| path.ends_with("/remote"));
    Some(PathBuf::from(program.unwrap()))
}

/// The programs under test, in one directory.
struct RemoteCluster {
    dir: PathBuf,
    address: String,
    host: PathBuf,
}

impl RemoteCluster {
    /// An agent called `name`.
    fn agent(&self, name: &str) -> Process {
        let plugins = self.dir.join("plugins");
        let args = ["--plugin-dir".as_ref(), plugins.as_os_str()];
        agent(&self.dir, &self.address, (name, "remote"), &args)
    }

    fn json(&self, args: &[&str]) -> Option<Value> {
        let output = ask(&self.address, &[&["--json"], args].concat());
        serde_json::from_slice(&output.stdout).ok()
    }

    fn done(&self, args: &[&str]) -> String {
        let output = ask(&self.address, args);
        assert!(output.status.success(), "{args:?}: {}", stderr(&output));
        stdout(&output)
    }

    /// The allocation that the servers want to run and that runs.
    fn running(&self) -> Option<Alloc> {
        let job = self.json(&["job", "status", "far"])?;
        let allocs = job["Allocations"].as_array()?;
        let runs = |it: &&Value| it["DesiredStatus"] == "run" && it["ClientStatus"] == "running";
        let found = allocs.iter().find(runs)?;
        let text = |name: &str| found[name].as_str().map(str::to_owned);
        Some(Alloc {
            id: text("ID")?,
            node: text("NodeName")?,
        })
    }

    /// The events on the host.
    fn journal(&self) -> String {
        fs::read_to_string(self.host.with_extension("journal")).unwrap_or_default()
    }

    fn count(&self, line: &str) -> usize {
        self.journal().lines().filter(|it| *it == line).count()
    }

    /// The process of the first task.
    fn pid(&self) -> Option<u32> {
        let journal = self.journal();
        let mut lines = journal.lines();
        let pid = lines.find_map(|line| line.strip_prefix("start 1 pid "))?;
        pid.parse().ok()
    }
}

fn job(host: &Path) -> String {
    format!(
        r#"
job "far" {{
  update {{ min_healthy_time = "0s" }}
  type = "service"
  group "g" {{
    task "t" {{
      driver = "remote"
      config {{
        host    = {host:?}
        command = "exec sleep 3600"
      }}
      resources {{ memory = 32 }}
    }}
  }}
}}
"#
    )
}

/// The only allocation that the servers want to run.
#[derive(Clone, Debug, PartialEq)]
struct Alloc {
    id: String,
    node: String,
}

/// The only process of the task. It is killed if the test fails.
#[derive(Debug)]
struct RemoteProcess {
    pid: u32,
    since: u64,
}

impl Drop for RemoteProcess {
    fn drop(&mut self) {
        if began(self.pid) == Some(self.since) {
            let pid = nix::unistd::Pid::from_raw(i32::try_from(self.pid).unwrap_or(0));
            // An error means that the process has just ended.
            nix::sys::signal::kill(pid, Signal::SIGKILL).ok();
        }
    }
}

/// The host's log entry for a request to recover the task for `owner`.
fn recovery(owner: &Alloc) -> String {
    format!("recover for {} of 1", owner.id)
}

impl RemoteCluster {
    /// Checks that the allocation that replaces `old` runs, and that the agent of `old` has detached from its task. It
    /// is detach number `leaves`.
    fn assert_replaced(&self, old: &Alloc, leaves: usize) -> Alloc {
        let new = poll_until("the task on another node", || {
            self.running().filter(|new| new.id != old.id)
        });
        poll_until("the former agent to leave it", || {
            (self.count("detach 1") == leaves).then_some(())
        });
        assert_ne!(new.node, old.node);
        let taken = self.done(&["alloc", "status", &new.id]);
        assert!(
            taken.contains("taken over from the allocation before"),
            "{taken}"
        );
        new
    }

    /// Checks that each of `owners`, and no other allocation, recovered the task once.
    fn assert_recovered_by(&self, owners: &[&Alloc]) {
        let journal = self.journal();
        let asked = journal.lines().filter(|it| it.starts_with("recover"));
        let expected = owners.iter().map(|owner| recovery(owner));
        let expected: Vec<String> = expected.collect();
        assert_eq!(asked.collect::<Vec<_>>(), expected, "{journal}");
    }

    /// Checks the restart of a killed agent. The agent finds its record of `old` before it receives a message from a
    /// server. It may recover the task once more, and then detaches from it. No other allocation is involved.
    fn assert_detached_again(&self, old: &Alloc, since: usize) {
        let journal = self.journal();
        let asked: Vec<&str> = journal.lines().skip(since).collect();
        let (up, left) = (recovery(old), "detach 1".to_owned());
        let known = [vec![left.clone()], vec![up, left]];
        assert!(known.iter().any(|it| *it == asked), "{journal}");
    }

    fn assert_not_signaled(&self, far: &RemoteProcess) {
        let journal = self.journal();
        assert_eq!(began(far.pid), Some(far.since), "{journal}");
        let touches = |it: &&str| it.starts_with("signal") || it.starts_with("start");
        let touched: Vec<&str> = journal.lines().filter(touches).collect();
        assert_eq!(touched, [format!("start 1 pid {}", far.pid)]);
    }

    fn drain(&self, first: &Alloc, far: &RemoteProcess) -> Alloc {
        self.done(&[
            "node",
            "drain",
            "--enable",
            "--yes",
            "--detach",
            &first.node,
        ]);
        let second = self.assert_replaced(first, 1);
        poll_until("the drained allocation to end", || {
            let alloc = self.json(&["alloc", "status", &first.id])?;
            (alloc["Allocation"]["ClientStatus"] == "complete").then_some(())
        });
        let drained = self.done(&["alloc", "status", &first.id]);
        assert!(drained.contains("DETACH sent"), "{drained}");
        self.assert_recovered_by(&[&second]);
        self.assert_not_signaled(far);
        self.done(&["node", "drain", "--disable", &first.node]);
        self.done(&["node", "eligibility", "--enable", &first.node]);
        second
    }

    fn kill(&self, agent: &mut Process, second: &Alloc, far: &RemoteProcess) {
        agent.end(Signal::SIGKILL);
        let third = poll_until("the task on another node", || {
            self.running().filter(|new| new.id != second.id)
        });
        self.assert_recovered_by(&[second, &third]);
        self.assert_not_signaled(far);
        let before = self.journal().lines().count();
        *agent = self.agent(&second.node);
        assert_eq!(self.assert_replaced(second, 2), third);
        self.assert_detached_again(second, before);
        self.assert_not_signaled(far);
    }
}

/// The task keeps one process and one start time through a drain, and through an agent that is killed and restarted. It
/// ends when the job is stopped.
#[test]
fn a_remote_task_outlives_its_nodes() {
    let Some(program) = program("a_remote_task_outlives_its_nodes") else {
        return;
    };
    // Short, for the sake of the drivers' sockets.
    let dir = tempfile::Builder::new().prefix("mr").tempdir_in("/tmp");
    let dir = dir.unwrap();
    let dir = dir.path();
    fs::create_dir(dir.join("plugins")).unwrap();
    std::os::unix::fs::symlink(&program, dir.join("plugins/remote")).unwrap();
    let host = dir.join("host.sock");
    let _host = Process::start(
        Command::new(&program).arg("host").arg(&host),
        &dir.join("host.log"),
    );
    let (_server, address) = server_with(dir, &["--heartbeat-ttl", "2"]);
    let cluster = RemoteCluster {
        dir: dir.to_owned(),
        address,
        host,
    };
    let _left = (Leftovers(dir.join("one")), Leftovers(dir.join("two")));
    let mut agents =
        BTreeMap::from(["one", "two"].map(|name| (name.to_owned(), cluster.agent(name))));
    let file = job_file(dir, &job(&cluster.host));
    cluster.done(&["job", "run", "--detach", file.to_str().unwrap()]);
    let first = poll_until("the task", || cluster.running());
    let pid = poll_until("its process", || cluster.pid());
    let since = began(pid).unwrap();
    let far = RemoteProcess { pid, since };

    let second = cluster.drain(&first, &far);
    cluster.kill(agents.get_mut(&second.node).unwrap(), &second, &far);
    cluster.done(&["job", "stop", "--detach", "far"]);
    poll_until("the process to end", || began(pid).is_none().then_some(()));

    assert_eq!(cluster.count("signal 1 TERM"), 1, "{}", cluster.journal());
    let journal = cluster.journal();
    let starts = journal.lines().filter(|it| it.starts_with("start"));
    assert_eq!(starts.count(), 1, "{journal}");
}
