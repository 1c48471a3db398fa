//! The processes of a node: an agent, and the driver that it starts.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::Read as _;
use std::ops::AddAssign;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use muster_agent::bpf::{Bpf, OBJECT_FILE, ObjectSource};
use muster_agent::node::{Agent, AgentConfig, ShutdownPolicy};
use muster_control::server::Server;
use muster_link::tls::{Identity, Role};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::runtime::Builder;

use crate::program::thread_cpu_time;
use crate::subject::child::CHILD_ENV;
use crate::subject::driver_process;

/// The word that makes a child of this program run [`child`].
pub(in crate::subject) const CHILD: &str = "agent";

/// The process of an agent, and its data directory. Both end when this value is dropped.
pub(in crate::subject) struct NodeProcess {
    name: String,
    agent: Child,
    data_dir: tempfile::TempDir,
}

/// The resources that the node's processes use.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Footprint {
    /// Proportional set size in KiB.
    pub(super) kib: f64,
    pub(super) processes: f64,
    pub(super) threads: f64,
}

impl AddAssign for Footprint {
    fn add_assign(&mut self, other: Self) {
        self.kib += other.kib;
        self.processes += other.processes;
        self.threads += other.threads;
    }
}

impl NodeProcess {
    pub(in crate::subject) fn start(server: &Server, name: &str) -> anyhow::Result<Self> {
        // The path is short because the driver's socket is in it.
        let data_dir = tempfile::Builder::new().prefix("mp").tempdir()?;
        // Agent and driver run a copy, so that they share the program's pages with each other and not with this
        // process.
        fs::copy(std::env::current_exe()?, data_dir.path().join("muster"))?;
        // The copy looks for its eBPF object in its own directory.
        if let Ok(object) = Bpf::object()
            && let ObjectSource::File(path) = object.source()
        {
            fs::copy(path, data_dir.path().join(OBJECT_FILE))?;
        }
        let agent = agent(data_dir.path(), server, name)?;
        let name = name.to_owned();
        Ok(Self {
            name,
            agent,
            data_dir,
        })
    }

    /// Kills the agent and its driver, and starts the next agent. All tasks continue.
    pub(super) fn replace_agent(&mut self, server: &Server) -> anyhow::Result<()> {
        self.agent.kill()?;
        self.agent.wait()?;
        self.agent = agent(self.data_dir.path(), server, &self.name)?;
        Ok(())
    }

    /// Stops all tasks, the driver and the agent.
    pub(in crate::subject) fn end(mut self) -> anyhow::Result<()> {
        drop(self.agent.stdin.take());
        let status = self.agent.wait()?;
        ensure!(status.success(), "the agent ended with {status}");
        Ok(())
    }

    /// Returns the CPU time of agent and driver so far, in user and in system mode.
    pub(super) fn cpu(&self) -> anyhow::Result<Duration> {
        let mut sum = Duration::ZERO;
        for pid in self.pids()? {
            for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
                sum += thread_cpu_time(&thread?.path().join("schedstat"))?;
            }
        }
        Ok(sum)
    }

    pub(super) fn footprint(&self) -> anyhow::Result<Footprint> {
        let mut sum = Footprint::default();
        for pid in self.pids()? {
            let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
            let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
            sum.kib += field(&rollup, "Pss:")?;
            sum.threads += field(&status, "Threads:")?;
            sum.processes += 1.0;
        }
        Ok(sum)
    }

    /// Returns every process that runs the program: the agent, the driver, and per-task processes if there are any.
    fn pids(&self) -> anyhow::Result<Vec<u32>> {
        let program = self.data_dir.path().join("muster");
        let runs_it = |pid: u32| {
            fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe: PathBuf| exe == program)
        };
        let pids = fs::read_dir("/proc")?
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
            .filter(|pid| runs_it(*pid));
        let pids: Vec<u32> = pids.collect();
        ensure!(
            pids.contains(&self.agent.id()) && pids.len() >= 2,
            "agent and driver are not both there: {pids:?}"
        );
        Ok(pids)
    }
}

/// Starts the agent with its program and data in `dir`.
fn agent(dir: &Path, server: &Server, name: &str) -> anyhow::Result<Child> {
    let (addr, tls) = (
        server.info().quic_addr.to_string(),
        server.info().data_dir.join("tls"),
    );
    let data = dir.join("data");
    let args: [&OsStr; 4] = [data.as_ref(), addr.as_ref(), tls.as_ref(), name.as_ref()];
    Command::new(dir.join("muster"))
        .env(CHILD_ENV, CHILD)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .context("start the agent")
}

impl Drop for NodeProcess {
    fn drop(&mut self) {
        // The agent has ended already unless a step before `end` failed. In that case its tasks are cleaned up too.
        drop(self.agent.kill());
        drop(self.agent.wait());
        drop(muster_agent::clean::run(
            &self.data_dir.path().join("data"),
            true,
        ));
    }
}

/// Returns the number of a field in a file of `/proc` with lines of names and values.
fn field(text: &str, name: &str) -> anyhow::Result<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let word = line.and_then(|line| line.split_whitespace().next());
    let word = word.with_context(|| format!("{name} is missing"))?;
    Ok(word.parse()?)
}

/// Runs the agent until its standard input is closed.
pub(in crate::subject) fn child(args: &[OsString]) -> anyhow::Result<()> {
    let [data_dir, server, tls, name] = args else {
        anyhow::bail!("an agent is told four things");
    };
    // Each task needs some open files, as in the real program.
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    let server = server.to_str().context("an address is text")?;
    let identity = Identity::load(Path::new(tls), Role::Agent)?;
    let command = vec![std::env::current_exe()?.into()];
    let mut config = AgentConfig::new(data_dir.into(), vec![server.parse()?], identity, command);
    let name = name.to_str().context("a name is text")?;
    name.clone_into(&mut config.name);
    config.driver_env = vec![(CHILD_ENV.into(), driver_process::CHILD.into())];
    let settings = config.plugins.entry("native".to_owned()).or_default();
    settings.config = serde_json::json!({ "allow_raw": true });
    // The fill level of the machine's disk must not cause collections during the measurement.
    config.gc.limits.disk_threshold = 100;
    config.gc.limits.inode_threshold = 100;
    let runtime = Builder::new_multi_thread().enable_all().build()?;
    let agent = runtime.block_on(Agent::start(config))?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    runtime.block_on(agent.shutdown(ShutdownPolicy::StopTasks));
    Ok(())
}
