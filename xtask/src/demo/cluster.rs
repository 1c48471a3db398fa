//! The demo's processes and their API.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use anyhow::{Context, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::{WAIT_MAX, http};
use crate::shell;

/// Interval between two checks of a condition.
const POLL_INTERVAL: std::time::Duration = std::time::Duration::from_millis(50);
/// Lines of a process's log that are shown after a failure.
const LOG_LINES_MAX: usize = 40;

/// The agent's configuration. It keeps finished allocations visible, even if this machine's disk is full.
const AGENT_CONFIG: &str = "client {
  gc_disk_usage_threshold = 100
  gc_inode_usage_threshold = 100
}
";

/// A server and an agent on this machine.
#[derive(Debug)]
pub(crate) struct Cluster {
    muster: PathBuf,
    dir: tempfile::TempDir,
    server: Child,
    agent: Option<Child>,
    address: String,
    quic: String,
    node: Option<Value>,
}

impl Cluster {
    /// Starts both processes from `program`, on free ports, with their data in a new directory.
    pub(crate) fn start(program: &Path) -> anyhow::Result<Self> {
        let muster = program.to_owned();
        let dir = tempfile::Builder::new().prefix("muster-demo-").tempdir()?;
        let log = File::create(dir.path().join("server.log"))?;
        let data = dir.path().join("server");
        let server = Command::new(&muster)
            .args([
                "server",
                "--http",
                "127.0.0.1:0",
                "--quic",
                "127.0.0.1:0",
                "--data-dir",
            ])
            .arg(&data)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("cannot start the server")?;
        let mut cluster = Self {
            muster,
            dir,
            server,
            agent: None,
            address: String::new(),
            quic: String::new(),
            node: None,
        };
        let started = Instant::now();
        let info = cluster.wait("the server to start", |cluster| {
            if let Some(status) = cluster.server.try_wait()? {
                cluster.print_logs();
                bail!("the server ended with {status}");
            }
            let text = fs::read_to_string(data.join("server.json")).unwrap_or_default();
            Ok(serde_json::from_str::<Value>(&text).ok())
        })?;
        info["http"]
            .as_str()
            .unwrap_or_default()
            .clone_into(&mut cluster.address);
        info["quic"]
            .as_str()
            .unwrap_or_default()
            .clone_into(&mut cluster.quic);
        cluster.wait("a leader", |cluster| {
            Ok(cluster.get("/v1/status/leader").ok())
        })?;
        println!(
            "  server  pid {} · {} · ready in {:.1} s",
            cluster.server.id(),
            cluster.address,
            started.elapsed().as_secs_f64()
        );
        cluster.start_agent()?;
        Ok(cluster)
    }

    /// Starts the agent.
    pub(crate) fn start_agent(&mut self) -> anyhow::Result<()> {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.dir().join("agent.log"))?;
        let config = self.dir().join("agent.hcl");
        fs::write(&config, AGENT_CONFIG)
            .with_context(|| format!("cannot write {}", config.display()))?;
        let agent = Command::new(&self.muster)
            .arg("agent")
            .arg("--config")
            .arg(config)
            .args(["--name", "demo", "--servers", &self.quic, "--data-dir"])
            .arg(self.dir().join("agent"))
            .arg("--tls-dir")
            .arg(self.dir().join("server/tls"))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("cannot start the agent")?;
        println!("  agent   pid {}", agent.id());
        self.agent = Some(agent);
        Ok(())
    }

    /// Returns the cluster's directory.
    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Returns the agent's process id, or 0 if the agent does not run.
    pub(crate) fn agent_pid(&self) -> u32 {
        self.agent.as_ref().map_or(0, Child::id)
    }

    /// Kills the agent with SIGKILL.
    pub(crate) fn kill_agent(&mut self) -> anyhow::Result<()> {
        let mut agent = self.agent.take().context("the agent does not run")?;
        agent.kill()?;
        agent.wait()?;
        Ok(())
    }

    /// Stores the node's data from its API object.
    pub(crate) fn store_node(&mut self, node: &Value) -> anyhow::Result<()> {
        ensure!(node["ID"].is_string(), "the node has no id");
        self.node = Some(node.clone());
        Ok(())
    }

    /// Returns the first eight digits of the node's id.
    pub(crate) fn node_short(&self) -> Option<String> {
        let id = self.node.as_ref()?["ID"].as_str()?;
        Some(id.chars().take(8).collect())
    }

    fn attribute(&self, name: &str) -> Option<String> {
        self.node.as_ref()?["Attributes"][name]
            .as_str()
            .map(str::to_owned)
    }

    /// Whether the agent reports that its eBPF programs are loaded.
    pub(crate) fn has_ebpf(&self) -> bool {
        self.attribute("ebpf.object")
            .is_some_and(|hash| hash != "absent")
    }

    /// Whether the agent reports that it can limit memory.
    pub(crate) fn limits_memory(&self) -> bool {
        self.attribute("cgroup.memory")
            .is_some_and(|mode| mode == "v1" || mode == "v2")
    }

    /// Returns the answer to `GET path`.
    pub(crate) fn get(&self, path: &str) -> anyhow::Result<Value> {
        let body = http::get(&self.address, path)?;
        serde_json::from_str(&body).with_context(|| format!("the answer to GET {path}"))
    }

    /// Returns the allocations of `job` that are running and are desired to run.
    pub(crate) fn running(&self, job: &str) -> anyhow::Result<Vec<Value>> {
        let allocs = self.get(&format!("/v1/job/{job}/allocations"))?;
        let mut running: Vec<Value> = allocs
            .as_array()
            .into_iter()
            .flatten()
            .filter(|alloc| alloc["ClientStatus"] == "running" && alloc["DesiredStatus"] == "run")
            .cloned()
            .collect();
        running.sort_by_key(|alloc| alloc["Name"].as_str().map(str::to_owned));
        Ok(running)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.muster);
        command
            .args(args)
            .env("MUSTER_ADDR", &self.address)
            .current_dir(shell::root());
        command
    }

    /// Prints and runs `muster ARGS`.
    pub(crate) fn run_muster(&self, args: &[&str]) -> anyhow::Result<()> {
        let status = self.run_muster_any_status(args)?;
        // A degraded machine does not stop the demo, because `doctor` has reported it.
        ensure!(
            status.success() || args.first() == Some(&"doctor"),
            "muster {} ended with {status}",
            args.join(" ")
        );
        Ok(())
    }

    /// Prints and runs `muster ARGS`, and accepts any exit status.
    pub(crate) fn run_muster_any_status(
        &self,
        args: &[&str],
    ) -> anyhow::Result<std::process::ExitStatus> {
        println!("\n$ muster {}", args.join(" "));
        Ok(self.command(args).status()?)
    }

    /// Returns the output of `muster ARGS`.
    pub(crate) fn capture(&self, args: &[&str]) -> anyhow::Result<String> {
        shell::capture(&mut self.command(args))
    }

    /// Calls `look` until it returns a value. After the deadline, the error names the condition.
    pub(crate) fn wait<T>(
        &mut self,
        what: &str,
        mut look: impl FnMut(&mut Self) -> anyhow::Result<Option<T>>,
    ) -> anyhow::Result<T> {
        let deadline = Instant::now() + WAIT_MAX;
        loop {
            if let Some(found) = look(self)? {
                return Ok(found);
            }
            if Instant::now() >= deadline {
                bail!("waited {} s for {what}", WAIT_MAX.as_secs());
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Stops the agent, the tasks that it left running, and the server.
    pub(crate) fn stop(&mut self) -> anyhow::Result<()> {
        if let Some(agent) = self.agent.take() {
            end(agent, "the agent")?;
        }
        let data = self.dir().join("agent");
        println!("\n$ muster agent clean");
        let status = Command::new(&self.muster)
            .args(["agent", "clean", "--force", "--data-dir"])
            .arg(data)
            .status()?;
        ensure!(status.success(), "muster agent clean ended with {status}");
        let deadline = Instant::now() + WAIT_MAX;
        terminate(&self.server)?;
        while self.server.try_wait()?.is_none() {
            ensure!(Instant::now() < deadline, "the server does not end");
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// Prints the end of both processes' logs.
    pub(crate) fn print_logs(&self) {
        for name in ["server.log", "agent.log"] {
            let text = fs::read_to_string(self.dir().join(name)).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            println!("\n--- {name}, last lines");
            for line in &lines[lines.len().saturating_sub(LOG_LINES_MAX)..] {
                println!("{line}");
            }
        }
    }

    /// Leaves all processes running and prints commands to try.
    pub(crate) fn leave_running(self) {
        let cluster = std::mem::ManuallyDrop::new(self);
        let dir = cluster.dir().display();
        let muster = cluster.muster.display();
        println!(
            "\nThe cluster goes on. Try:\n  export MUSTER_ADDR={}\n  {muster} job status\n  {muster} top\n  \
             {muster} alloc logs -f web/web.0\n\nEnd it with:\n  {muster} job stop web; kill {} {}; \
             {muster} agent clean --force --data-dir {dir}/agent; rm -r {dir}",
            cluster.address,
            cluster.agent_pid(),
            cluster.server.id(),
        );
    }
}

impl Drop for Cluster {
    /// Processes are still alive here only after a failure.
    fn drop(&mut self) {
        for child in self.agent.iter_mut().chain([&mut self.server]) {
            // An error means that the process has ended.
            drop(child.kill());
            drop(child.wait());
        }
    }
}

fn terminate(child: &Child) -> anyhow::Result<()> {
    let pid = i32::try_from(child.id()).context("a process id")?;
    kill(Pid::from_raw(pid), Signal::SIGTERM)?;
    Ok(())
}

fn end(mut child: Child, what: &str) -> anyhow::Result<()> {
    terminate(&child)?;
    let deadline = Instant::now() + WAIT_MAX;
    while child.try_wait()?.is_none() {
        ensure!(Instant::now() < deadline, "{what} does not end");
        std::thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

/// Returns the start time of process `pid`, in ticks since boot. Together with the id it identifies one process
/// uniquely.
pub(crate) fn start_ticks(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the name, which may contain blanks and parentheses.
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(19)?.parse().ok()
}
