//! Running the binary, and servers that end with their test.

use std::ffi::OsStr;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

pub(crate) use muster_driver::fixture::skipped;

/// The timeout for any step on a slow machine.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

/// The binary.
pub(crate) fn muster() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_muster"));
    command
        .env_remove("MUSTER_ADDR")
        .env("MUSTER_LOG", "info")
        .stdin(Stdio::null());
    command
}

/// The output of `muster ARGS` against `address`.
pub(crate) fn ask(address: &str, args: &[&str]) -> Output {
    muster()
        .args(["--address", address])
        .args(args)
        .output()
        .unwrap()
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A long-running process that is killed at the end of its test.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `command`, with its output in `log`.
    pub(crate) fn start(command: &mut Command, log: &Path) -> Self {
        let file = std::fs::File::create(log).unwrap();
        let child = command
            .stdout(file.try_clone().unwrap())
            .stderr(file)
            .spawn()
            .unwrap();
        Self {
            child,
            log: log.to_owned(),
        }
    }

    /// The output of the process so far.
    pub(crate) fn output(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Sends `signal` and waits for the end.
    pub(crate) fn end(&mut self, signal: nix::sys::signal::Signal) -> std::process::ExitStatus {
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.child.id()).unwrap());
        nix::sys::signal::kill(pid, signal).unwrap();
        poll_until("the process to end", || self.child.try_wait().unwrap())
    }
}

impl Drop for Process {
    /// Terminates the process, so that a failed test leaves no driver behind. Kills it after a timeout.
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(None)) {
            return;
        }
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.child.id()).unwrap_or(0));
        let deadline = Instant::now() + PATIENCE;
        // An error means that the process has ended.
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).ok();
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Polls `look` until it returns a value.
pub(crate) fn poll_until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited too long for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A server alone, on free ports.
pub(crate) fn server(dir: &Path) -> (Process, String) {
    server_with(dir, &[])
}

/// As [`server`], with more arguments.
pub(crate) fn server_with(dir: &Path, args: &[&str]) -> (Process, String) {
    let data = dir.join("server");
    let process = Process::start(
        muster()
            .args(["server", "--http", "127.0.0.1:0", "--quic", "127.0.0.1:0"])
            .arg("--data-dir")
            .arg(&data)
            .args(args),
        &dir.join("server.log"),
    );
    let address = poll_until("the server's address", || {
        let text = std::fs::read_to_string(data.join("server.json")).ok()?;
        let info: serde_json::Value = serde_json::from_str(&text).ok()?;
        Some(format!("http://{}", info["http"].as_str()?))
    });
    (process, address)
}

/// Starts an agent called `name`, with its data in `dir/name`. It uses the server at `address`, whose files are in
/// `dir`. Returns once its `driver` is healthy.
pub(crate) fn agent(
    dir: &Path,
    address: &str,
    (name, driver): (&str, &str),
    args: &[&OsStr],
) -> Process {
    let info = std::fs::read(dir.join("server/server.json")).unwrap();
    let info: serde_json::Value = serde_json::from_slice(&info).unwrap();
    let process = Process::start(
        muster()
            .args(["agent", "--name", name, "--servers"])
            .arg(info["quic"].as_str().unwrap())
            .arg("--data-dir")
            .arg(dir.join(name))
            .arg("--tls-dir")
            .arg(dir.join("server/tls"))
            .args(args),
        &dir.join(format!("{name}.log")),
    );
    poll_until("the node with its driver", || {
        let shown = ask(address, &["--json", "node", "status", name]);
        let found: serde_json::Value = serde_json::from_slice(&shown.stdout).ok()?;
        let node = &found["Node"];
        let healthy = node["Drivers"][driver]["Healthy"] == true;
        (healthy && node["Status"] == "ready").then_some(())
    });
    process
}

/// The start time of a process, in ticks since boot; `None` without such a process.
pub(crate) fn began(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in brackets, may contain any character; field 22 is the 20th after it.
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_ascii_whitespace().nth(19)?.parse().ok()
}

/// The processes that an agent leaves running, found by its data directory.
#[derive(Debug)]
pub(crate) struct Leftovers(pub(crate) PathBuf);

impl Drop for Leftovers {
    fn drop(&mut self) {
        let cleaned = muster()
            .args(["agent", "clean", "--force", "--data-dir"])
            .arg(&self.0)
            .output()
            .unwrap();
        assert!(
            cleaned.status.success() || std::thread::panicking(),
            "{}",
            stderr(&cleaned)
        );
    }
}

/// A job file with `text`.
pub(crate) fn job_file(dir: &Path, text: &str) -> PathBuf {
    let path = dir.join("job.hcl");
    std::fs::File::create(&path)
        .unwrap()
        .write_all(text.as_bytes())
        .unwrap();
    path
}

/// Whether the tests run as root, as an agent must; prints a message if not.
pub(crate) fn needs_root(name: &str) -> bool {
    let is_root = nix::unistd::geteuid().is_root();
    if !is_root {
        skipped(name, "the agent needs root");
    }
    is_root
}

/// Whether agents have the eBPF programs; prints a message if not. Without them, agents refuse tasks with a network.
pub(crate) fn needs_programs(name: &str) -> bool {
    let object = muster_agent::bpf::Bpf::object();
    if let Err(error) = object {
        skipped(name, &format!("{error}; {}", error.fix()));
    }
    object.is_ok()
}
