//! A cluster of three servers, with agents if a test needs them.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use muster_link::tls::{Authority, CERTIFICATE_LIFE, CertificateSubject};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::client::{self, Http};
use crate::limits;
use crate::network::{self, Network};

/// The servers' names, which are also the names of their namespaces.
pub(crate) const SERVERS: [&str; 3] = ["s1", "s2", "s3"];
/// The agents' names.
pub(crate) const AGENTS: [&str; 2] = ["a1", "a2"];

/// A job of two sleepers, which no fault may restart.
pub(crate) const STEADY_JOB: &str = "steady";

/// The options of a cluster.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ClusterOptions {
    /// Whether the cluster has two agents.
    pub(crate) agents: bool,
    /// Whether servers advertise the addresses of a relay.
    pub(crate) relayed: bool,
    /// Whether each server's data is on a file system of its own, of 64 MiB.
    pub(crate) small_disks: bool,
}

/// An allocation as the API shows it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Allocation {
    name: String,
    pub(crate) id: String,
    /// Start time of the task, if it runs.
    pub(crate) started: Option<String>,
}

impl Allocation {
    fn from_json(alloc: &Value) -> Self {
        let text = |field: &str| alloc[field].as_str().unwrap_or_default().to_owned();
        let started = || {
            let tasks = alloc["TaskStates"].as_object();
            let task = tasks.and_then(|tasks| tasks.values().next());
            task.map_or(Value::Null, |task| task["StartedAt"].clone())
        };
        let is_running = alloc["ClientStatus"] == "running";
        Self {
            name: text("Name"),
            id: text("ID"),
            started: is_running.then(|| started().to_string()),
        }
    }
}

/// A cluster of real processes.
#[derive(Debug)]
pub(crate) struct Cluster {
    make: ClusterOptions,
    servers: [Option<Child>; 3],
    agents: [Option<Child>; 2],
    pub(crate) network: Network,
    dir: TempDir,
    /// Bytes that each server had logged when the present test began.
    log_starts: [usize; 3],
}

/// The address of server number `at`.
pub(crate) fn address(at: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, u8::try_from(at + 1).unwrap_or(0))
}

/// An HTTP client of server number `at`.
pub(crate) fn http(at: usize) -> Http {
    Http::new(address(at))
}

/// The place of the leader, according to the server at place `at`.
pub(crate) fn leader_as_seen_by(at: usize) -> Option<usize> {
    let answer = http(at).get("/v1/operator/raft/configuration?stale")?;
    let body = answer.json();
    let leader = body["Servers"]
        .as_array()?
        .iter()
        .find(|server| server["Leader"] == true)?
        .clone();
    let name = leader["Node"].as_str()?.to_owned();
    SERVERS
        .into_iter()
        .position(|known| known == name || name.starts_with(&format!("{known}.")))
}

/// The address at which other servers reach server number `at` by the relay.
pub(crate) fn relayed_address(at: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 1, u8::try_from(at + 1).unwrap_or(0))
}

impl Cluster {
    /// Starts a cluster and waits until it accepts writes. `before_servers` runs once the addresses exist.
    pub(crate) fn start<T>(make: ClusterOptions, before_servers: impl FnOnce() -> T) -> (Self, T) {
        let mut network = Network::new();
        for (at, name) in SERVERS.into_iter().enumerate() {
            network.add(name, address(at));
            if make.relayed {
                network::listen(relayed_address(at));
            }
        }
        let started = before_servers();
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::generate("local").unwrap();
        for name in SERVERS {
            let home = dir.path().join(name);
            let subject = CertificateSubject::Server { name, hosts: &[] };
            authority
                .issue(&home.join("tls"), subject, CERTIFICATE_LIFE)
                .unwrap();
            authority.save_certificate(&home.join("tls")).unwrap();
            fs::create_dir_all(home.join("data")).unwrap();
            if make.small_disks {
                run(Command::new("mount")
                    .args(["-t", "tmpfs", "-o", "size=64m", "tmpfs"])
                    .arg(home.join("data")));
            }
        }
        let mut cluster = Self {
            make,
            servers: [None, None, None],
            agents: [None, None],
            network,
            dir,
            log_starts: [0; 3],
        };
        for at in 0..SERVERS.len() {
            cluster.begin(at);
        }
        cluster.leader();
        if make.agents {
            cluster.begin_agents(&authority);
        }
        (cluster, started)
    }

    /// Prepares the cluster for another test. Its thread enters the network, and earlier log lines are ignored.
    pub(crate) fn take_over(&mut self) {
        self.network.enter();
        self.log_starts = SERVERS.map(|name| self.whole_log(name).len());
        poll_until("all nodes to be ready", || self.nodes_ready().then_some(()));
    }

    fn begin_agents(&mut self, authority: &Authority) {
        for (at, name) in AGENTS.into_iter().enumerate() {
            let address = Ipv4Addr::new(10, 77, 2, u8::try_from(at + 1).unwrap_or(0));
            self.network.add(name, address);
            let home = self.dir.path().join(name);
            let tls = home.join("tls");
            authority
                .issue(&tls, CertificateSubject::Agent, CERTIFICATE_LIFE)
                .unwrap();
            authority.save_certificate(&tls).unwrap();
            self.begin_agent(at);
        }
        poll_until("both nodes to be ready", || {
            let nodes = http(0).get("/v1/nodes")?.json();
            let ready = nodes
                .as_array()?
                .iter()
                .filter(|node| node["Status"] == "ready")
                .count();
            (ready == AGENTS.len()).then_some(())
        });
    }

    /// Starts agent number `at`.
    pub(crate) fn begin_agent(&mut self, at: usize) {
        assert!(self.agents[at].is_none(), "{} runs", AGENTS[at]);
        let name = AGENTS[at];
        let servers: Vec<String> = (0..SERVERS.len())
            .map(|at| format!("{}:4647", address(at)))
            .collect();
        let mut command = self.network.command(name, env!("CARGO_BIN_EXE_muster"));
        command.args(["agent", "--name", name, "--servers", &servers.join(",")]);
        command
            .arg("--tls-dir")
            .arg(self.dir.path().join(name).join("tls"))
            .arg("--data-dir")
            .arg(self.agent_data(at));
        self.agents[at] = Some(self.spawn(name, command));
    }

    /// The data directory of agent number `at`.
    pub(crate) fn agent_data(&self, at: usize) -> PathBuf {
        self.dir.path().join(AGENTS[at]).join("data")
    }

    /// kill -9.
    pub(crate) fn kill_agent(&mut self, at: usize) {
        let mut child = self.agents[at].take().expect("it runs");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Starts server number `at`.
    pub(crate) fn begin(&mut self, at: usize) {
        assert!(self.servers[at].is_none(), "{} runs", SERVERS[at]);
        let name = SERVERS[at];
        let home = self.home(at);
        let place = |at: usize| {
            if self.make.relayed {
                relayed_address(at)
            } else {
                address(at)
            }
        };
        let join: Vec<String> = (0..SERVERS.len())
            .map(|at| format!("{}:4647", place(at)))
            .collect();
        let mut command = self.network.command(name, env!("CARGO_BIN_EXE_muster"));
        command.args([
            "server",
            "--name",
            name,
            "--bootstrap-expect",
            "3",
            "--join",
            &join.join(","),
        ]);
        command.args([
            "--http",
            &format!("{}:4646", address(at)),
            "--quic",
            &format!("{}:4647", address(at)),
        ]);
        command.args(["--advertise", &place(at).to_string()]);
        command
            .arg("--tls-dir")
            .arg(home.join("tls"))
            .arg("--data-dir")
            .arg(home.join("data"));
        self.servers[at] = Some(self.spawn(name, command));
    }

    fn spawn(&self, name: &str, mut command: Command) -> Child {
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.log_path(name))
            .unwrap();
        command
            .env("MUSTER_LOG", "info")
            .env_remove("MUSTER_ADDR")
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap()
    }

    fn log_path(&self, name: &str) -> PathBuf {
        self.dir.path().join(format!("{name}.log"))
    }

    /// The lines that the server has logged in this test.
    pub(crate) fn log(&self, at: usize) -> String {
        let whole = self.whole_log(SERVERS[at]);
        String::from_utf8_lossy(&whole[self.log_starts[at]..]).into_owned()
    }

    fn whole_log(&self, name: &str) -> Vec<u8> {
        fs::read(self.log_path(name)).unwrap_or_default()
    }

    fn home(&self, at: usize) -> PathBuf {
        self.dir.path().join(SERVERS[at])
    }

    /// The data directory of server number `at`.
    pub(crate) fn data(&self, at: usize) -> PathBuf {
        self.home(at).join("data")
    }

    /// The process of server number `at`.
    pub(crate) fn pid(&self, at: usize) -> Pid {
        let child = self.servers[at].as_ref().expect("it runs");
        Pid::from_raw(i32::try_from(child.id()).unwrap())
    }

    /// Sends a signal to server number `at`.
    pub(crate) fn signal(&self, at: usize, signal: Signal) {
        kill(self.pid(at), signal).unwrap();
    }

    /// kill -9.
    pub(crate) fn kill(&mut self, at: usize) {
        let mut child = self.servers[at].take().expect("it runs");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Stops server number `at` by a signal.
    pub(crate) fn stop(&mut self, at: usize) {
        self.signal(at, Signal::SIGTERM);
        let mut child = self.servers[at].take().expect("it runs");
        let status = poll_until("a server to stop", || child.try_wait().unwrap());
        assert!(status.success(), "{status}: {}", self.log(at));
    }

    /// The end of a process that ends by itself.
    pub(crate) fn ended(&mut self, at: usize) -> std::process::ExitStatus {
        let mut child = self.servers[at].take().expect("it ran");
        poll_until("a server to end", || child.try_wait().unwrap())
    }

    /// Waits until a server leads and commits writes; returns its number.
    pub(crate) fn leader(&self) -> usize {
        poll_until("a leader that commits", || {
            let running: Vec<usize> = (0..SERVERS.len())
                .filter(|at| self.servers[*at].is_some())
                .collect();
            self.leader_among(&running)
        })
    }

    /// The leader among the servers that are connected to each other.
    pub(crate) fn leader_among(&self, places: &[usize]) -> Option<usize> {
        let running = places.iter().filter(|at| self.servers[**at].is_some());
        let leaders: Vec<Option<usize>> = running.map(|at| leader_as_seen_by(*at)).collect();
        let leader = *leaders.first()?;
        let leader = leader.filter(|leader| places.contains(leader))?;
        if leaders.iter().any(|other| *other != Some(leader)) {
            return None;
        }
        let read = http(leader).get("/v1/jobs?consistent&prefix=none")?;
        (read.status == 200).then_some(leader)
    }

    /// The standard check. All servers agree on every table, and a new job is accepted within ten seconds. No process
    /// has panicked, and only `excused` errors were logged.
    pub(crate) fn assert_healthy(&self, excused: &[&str]) {
        let leader = self.leader();
        poll_until("the states of all servers to agree", || {
            let answer = http(leader).get("/v1/operator/check")?;
            let body = answer.json();
            let servers = body["Servers"].as_array().map_or(0, Vec::len);
            (answer.status == 200 && body["Agree"] == true && servers == SERVERS.len())
                .then_some(())
        });
        let begun = Instant::now();
        let id = format!("after-{}", std::process::id());
        poll_until("a job to be taken", || {
            let body = json!({ "Job": client::job(&id, 1) });
            let answer = http(leader).put("/v1/jobs", None, &body)?;
            (answer.status == 200).then_some(())
        });
        assert!(
            begun.elapsed() < Duration::from_secs(10),
            "a new job took {:?}",
            begun.elapsed()
        );
        for (at, name) in SERVERS.into_iter().enumerate() {
            for line in self.log(at).lines() {
                let bad = line.contains("panicked") || line.contains("ERROR");
                let excused = excused.iter().any(|part| line.contains(part));
                assert!(!bad || excused, "{name}: {line}");
            }
        }
    }

    /// Waits until the two tasks of the job `steady` run, and returns its allocations.
    pub(crate) fn steady_running(&self) -> Vec<Allocation> {
        poll_until("two running tasks", || {
            let allocs = self.steady();
            let running = allocs.iter().filter(|alloc| alloc.started.is_some());
            (running.count() == 2).then_some(allocs)
        })
    }

    /// The allocations of the job `steady`, including those that an earlier fault ended.
    pub(crate) fn steady(&self) -> Vec<Allocation> {
        poll_until("the allocations", || {
            let answer = http(self.leader()).get("/v1/allocations?resources=false")?;
            let body = answer.json();
            let all = body.as_array()?.iter();
            let mut allocs: Vec<Allocation> = all
                .filter(|alloc| alloc["JobID"] == STEADY_JOB)
                .map(Allocation::from_json)
                .collect();
            allocs.sort();
            Some(allocs)
        })
    }

    /// Whether every node is ready.
    pub(crate) fn nodes_ready(&self) -> bool {
        let nodes = http(self.leader())
            .get("/v1/nodes")
            .map(|answer| answer.json());
        nodes.and_then(|nodes| {
            Some(
                nodes
                    .as_array()?
                    .iter()
                    .all(|node| node["Status"] == "ready"),
            )
        }) == Some(true)
    }

    /// Prints the logs of servers and agents for a failed test.
    fn print_logs(&self) {
        for name in SERVERS.into_iter().chain(AGENTS) {
            let log = self.whole_log(name);
            let log = String::from_utf8_lossy(&log);
            let lines: Vec<&str> = log
                .lines()
                .filter(|line| !line.contains("openraft::"))
                .collect();
            let last = lines.len().saturating_sub(40);
            if !lines.is_empty() {
                eprintln!("--- {name}\n{}", lines[last..].join("\n"));
            }
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.print_logs();
        }
        // Agents stop first, so that servers still receive the end of their tasks.
        for (at, agent) in self.agents.iter_mut().enumerate() {
            if let Some(agent) = agent {
                end(agent);
                let mut clean = Command::new(env!("CARGO_BIN_EXE_muster"));
                let data = self.dir.path().join(AGENTS[at]).join("data");
                let cleaned = clean
                    .args(["agent", "clean", "--force", "--data-dir"])
                    .arg(data)
                    .output()
                    .unwrap();
                assert!(
                    cleaned.status.success() || std::thread::panicking(),
                    "{}",
                    String::from_utf8_lossy(&cleaned.stderr)
                );
            }
        }
        for server in self.servers.iter_mut().flatten() {
            let pid = Pid::from_raw(i32::try_from(server.id()).unwrap_or(0));
            // A stopped process handles no other signal. An error means that the process has ended.
            kill(pid, Signal::SIGCONT).ok();
            end(server);
        }
        if self.make.small_disks {
            for name in SERVERS {
                let data = self.dir.path().join(name).join("data");
                drop(Command::new("umount").arg("-l").arg(data).status());
            }
        }
        // A part of a server that does not stop in time is a fault.
        for name in SERVERS {
            let log = String::from_utf8_lossy(&self.whole_log(name)).into_owned();
            let late = log
                .lines()
                .find(|line| line.contains("did not stop in time"));
            assert!(
                late.is_none() || std::thread::panicking(),
                "{name}: {late:?}"
            );
        }
    }
}

/// Terminates `child`, and kills it after a timeout.
fn end(child: &mut Child) {
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap_or(0));
    kill(pid, Signal::SIGTERM).ok();
    let deadline = Instant::now() + Duration::from_secs(15);
    while matches!(child.try_wait(), Ok(None)) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(child.kill());
    drop(child.wait());
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Polls `look` until it returns a value.
pub(crate) fn poll_until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + limits::PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited too long for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Fills the file system of `path`.
pub(crate) fn fill(path: &Path) {
    let mut file = File::create(path).unwrap();
    let zeros = vec![0; 1 << 16];
    while file.write_all(&zeros).is_ok() {}
}
