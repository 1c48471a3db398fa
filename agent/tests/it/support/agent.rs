//! Agents under test, and the machine they run on.
//!
//! The driver's process, and an agent that can be killed, are this very test binary started again
//! for one of the entry points below.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use muster_agent::node::{Agent, AgentConfig, ShutdownPolicy};
use muster_domain::id::AllocId;
use muster_link::tls::{Identity, Role};

use super::{FakeServer, eventually};

const DRIVER_ENV: &str = "MUSTER_IT_DRIVER";
const AGENT_ENV: &str = "MUSTER_IT_AGENT";
const AGENT_ENTRY: [&str; 4] = [
    "--ignored",
    "--exact",
    "--nocapture",
    "support::agent::agent_process_entry",
];

/// That of an agent in a process of its own.
pub(crate) const OOM_SCORE_ADJ: i16 = -900;

/// Not a test: the driver's process, when it is started as one.
#[test]
#[ignore = "run by the other tests as their driver's process"]
fn driver_process_entry() {
    if std::env::var_os(DRIVER_ENV).is_none() {
        return;
    }
    let socket = PathBuf::from(std::env::args_os().next_back().unwrap());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime
        .block_on(muster_driver_native::serve(&socket))
        .unwrap();
}

/// Not a test: an agent's process, when it is started as one.
#[test]
#[ignore = "run by the other tests as an agent's process"]
fn agent_process_entry() {
    let Ok(arguments) = std::env::var(AGENT_ENV) else {
        return;
    };
    let [data_dir, server, tls] = arguments
        .split('\n')
        .collect::<Vec<_>>()
        .try_into()
        .unwrap();
    let identity = Identity::load(Path::new(tls), Role::Agent).unwrap();
    let mut config = AgentConfig::new(
        data_dir.into(),
        vec![server.parse().unwrap()],
        identity,
        driver_command(),
    );
    config.oom_score_adj = Some(OOM_SCORE_ADJ);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let _agent = match Agent::start(with_driver(config)).await {
            Ok(agent) => agent,
            Err(error) => panic!("{error}"),
        };
        std::future::pending::<()>().await;
    });
}

fn driver_command() -> Vec<OsString> {
    let entry = "support::agent::driver_process_entry";
    let this = std::env::current_exe().unwrap();
    let options = ["--ignored", "--exact", "--nocapture", entry];
    [this.into()]
        .into_iter()
        .chain(options.map(OsString::from))
        .collect()
}

fn with_driver(mut config: AgentConfig) -> AgentConfig {
    config.driver_env = vec![(DRIVER_ENV.into(), "1".into())];
    let settings = config.plugins.entry("native".to_owned()).or_default();
    settings.config = serde_json::json!({"allow_raw": true});
    if let Some(dir) = config.data_dir.parent() {
        config.cni.path = vec![dir.join("cni"), "/usr/lib/cni".into()];
        config.cni.config_dir = dir.join("cni");
    }
    // How full the machine's disk is must not decide what a test finds of a task that ended.
    config.gc.limits.disk_threshold = 100;
    config.gc.limits.inode_threshold = 100;
    config
}

/// The directories and groups of one agent after another. All of them are removed at the end.
#[derive(Debug)]
pub(crate) struct Machine {
    dir: tempfile::TempDir,
    /// Kept apart from the agent's data.
    server_dir: tempfile::TempDir,
}

impl Machine {
    pub(crate) fn new() -> Self {
        // Short, for the sake of the socket's path.
        let dir = tempfile::Builder::new()
            .prefix("mit")
            .tempdir_in("/tmp")
            .unwrap();
        Self {
            dir,
            server_dir: tempfile::tempdir().unwrap(),
        }
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.dir.path().join("d")
    }

    /// Plugins and configurations of CNI.
    pub(crate) fn cni(&self) -> PathBuf {
        let dir = self.dir.path().join("cni");
        fs::create_dir_all(&dir).unwrap();
        dir
    }

    pub(crate) fn server(&self) -> FakeServer {
        FakeServer::start(self.server_dir.path())
    }

    pub(crate) fn config(&self, server: &FakeServer) -> AgentConfig {
        let identity = Identity::load(server.tls_dir(), Role::Agent).unwrap();
        with_driver(AgentConfig::new(
            self.data(),
            vec![server.addr()],
            identity,
            driver_command(),
        ))
    }

    /// An agent in this process.
    pub(crate) async fn agent(&self, server: &FakeServer) -> TestAgent {
        TestAgent {
            agent: Agent::start(self.config(server)).await.unwrap(),
        }
    }

    /// An agent in a process of its own.
    pub(crate) fn killable_agent(&self, server: &FakeServer) -> KilledAgent {
        let log = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.dir.path().join("agent.log"))
            .unwrap();
        let child = self
            .agent_command(server)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        KilledAgent { child }
    }

    /// The output of an agent that is started as the user nobody.
    pub(crate) fn agent_of_nobody(&self, server: &FakeServer) -> String {
        let nobody = nix::unistd::User::from_name("nobody").unwrap().unwrap();
        let (uid, gid) = (nobody.uid.as_raw(), nobody.gid.as_raw());
        // Where that user can read: a copy of the program and of the certificates.
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("agent");
        fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
        for name in ["ca.pem", "agent.pem", "agent.key"] {
            let copy = dir.path().join(name);
            fs::copy(server.tls_dir().join(name), &copy).unwrap();
            std::os::unix::fs::chown(copy, Some(uid), Some(gid)).unwrap();
        }
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let arguments = format!(
            "{}\n{}\n{}",
            self.data().display(),
            server.addr(),
            dir.path().display()
        );
        let output = Command::new(&program)
            .args(AGENT_ENTRY)
            .env(AGENT_ENV, arguments)
            .current_dir("/")
            .uid(uid)
            .gid(gid)
            .output()
            .unwrap();
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    }

    fn agent_command(&self, server: &FakeServer) -> Command {
        let arguments = format!(
            "{}\n{}\n{}",
            self.data().display(),
            server.addr(),
            server.tls_dir().display()
        );
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(AGENT_ENTRY).env(AGENT_ENV, arguments);
        command
    }

    /// The driver's process as the agent recorded it: pid and start time.
    pub(crate) async fn driver(&self) -> (u32, u64) {
        let path = self.data().join("drivers/native.json");
        eventually("a driver's process", async || {
            let record: serde_json::Value = serde_json::from_slice(&fs::read(&path).ok()?).ok()?;
            let pid = u32::try_from(record["pid"].as_u64()?).unwrap();
            let start = record["start_ticks"].as_u64()?;
            (start_ticks(pid) == Some(start)).then_some((pid, start))
        })
        .await
    }

    /// Kills the driver's process.
    pub(crate) async fn kill_driver(&self) -> u32 {
        let (pid, _) = self.driver().await;
        kill(pid);
        eventually("the driver's end", async || {
            (start_ticks(pid).is_none()).then_some(())
        })
        .await;
        pid
    }

    pub(crate) fn alloc_dir(&self, alloc_id: AllocId) -> PathBuf {
        self.data().join("alloc").join(alloc_id.to_string())
    }

    pub(crate) fn log_dir(&self, alloc_id: AllocId) -> PathBuf {
        self.data().join("logs").join(alloc_id.to_string())
    }

    /// The node's cgroup tree in the v2 hierarchy.
    pub(crate) fn tree(&self) -> PathBuf {
        let record = fs::read(self.data().join("cgroup-tree.json")).unwrap();
        let record: serde_json::Value = serde_json::from_slice(&record).unwrap();
        PathBuf::from(record["v2_root"].as_str().unwrap())
    }

    /// The agent's log, for the message of a test that fails.
    pub(crate) fn words(&self) -> String {
        fs::read_to_string(self.dir.path().join("agent.log")).unwrap_or_default()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let cleaned = muster_agent::clean::run(&self.data(), true);
        if std::thread::panicking() {
            let driver = fs::read_to_string(self.data().join("drivers/native.log"));
            eprintln!(
                "agent: {}\ndriver: {}",
                self.words(),
                driver.unwrap_or_default()
            );
            eprintln!("{cleaned:?}");
        } else {
            cleaned.unwrap();
        }
    }
}

/// An agent in this process.
#[derive(Debug)]
pub(crate) struct TestAgent {
    agent: Agent,
}

impl TestAgent {
    /// Ends it; its tasks run on.
    pub(crate) async fn leave(self) {
        self.agent.shutdown(ShutdownPolicy::KeepTasks).await;
    }

    /// Ends it and its tasks.
    pub(crate) async fn end(self) {
        self.agent.shutdown(ShutdownPolicy::StopTasks).await;
    }
}

/// An agent in a process of its own, killed at the latest when it is dropped.
#[derive(Debug)]
pub(crate) struct KilledAgent {
    child: Child,
}

impl KilledAgent {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// `kill -9`.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for KilledAgent {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// When the process was started, in ticks since boot; `None` if it has ended.
pub(crate) fn start_ticks(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    let state = fields.next()?;
    if state == "Z" {
        None
    } else {
        fields.nth(18)?.parse().ok()
    }
}

/// Whether the process has ended.
pub(crate) fn ended(pid: u32) -> bool {
    start_ticks(pid).is_none()
}

/// SIGKILL for a process that a test started.
pub(crate) fn kill(pid: u32) {
    let pid = nix::unistd::Pid::from_raw(i32::try_from(pid).unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).unwrap();
}
