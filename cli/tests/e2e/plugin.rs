//! The native driver as a plugin, and drivers in the agent's configuration.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use muster_driver::go::{self, BuildGoError};
use tempfile::TempDir;

use crate::support::{
    Leftovers, Process, ask, job_file, muster, needs_programs, poll_until, server, skipped, stderr,
    stdout,
};

/// Builds a program in Go; `None`, after a message, if the test cannot run.
fn in_go(name: &str, program: &str) -> Option<PathBuf> {
    if !nix::unistd::geteuid().is_root() {
        skipped(name, "agents and drivers need root");
        return None;
    }
    match go::program(program) {
        Ok(program) => Some(program),
        Err(error @ BuildGoError::Missing { .. }) => {
            skipped(name, &error.to_string());
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// A plugin host with Nomad's library drives this binary. It launches the driver twice and configures it rightly and
/// wrongly. It starts a task, also in a network of the host's. It waits for the task and measures, signals, stops and
/// destroys it. It runs commands in the task, also with a terminal. It reattaches to the plugin, kills it and recovers
/// its task.
#[test]
fn a_host_in_go_drives_the_native_driver() {
    let name = "a_host_in_go_drives_the_native_driver";
    let Some(host) = in_go(name, "host") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let plugin = dir.path().join("muster-driver-native");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_muster"), &plugin).unwrap();

    let output = Command::new(host)
        .arg(dir.path().join("work"))
        .arg(&plugin)
        .output()
        .unwrap();

    let printed = String::from_utf8_lossy(&output.stdout);
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{printed}\n{log}");
    for step in [
        "introduces itself",
        "ends when told",
        "starts, prints, exits",
        "refuses what cannot start",
        "stops, and kills what does not stop",
        "signals",
        "runs commands in tasks",
        "runs a session with input, two outputs and an exit code",
        "runs a session with a terminal, and resizes it",
        "puts a task into the network that the host made",
        "does what it was configured to do",
        "measures",
        "gives tasks their name servers",
        "is found by a host that comes back",
        "recovers its tasks after a crash",
        "takes no end that nobody saw for a success",
    ] {
        assert!(
            printed.contains(&format!("ok: {step}\n")),
            "{step}: {printed}"
        );
    }
    assert!(!log.contains("failed to exit gracefully"), "{log}");
}

/// A directory for a server and an agent, with the driver among the plugins.
fn dir_with(driver: &Path) -> TempDir {
    // Short, for the sake of the driver's socket.
    let dir = tempfile::Builder::new().prefix("mp").tempdir_in("/tmp");
    let dir = dir.unwrap();
    let plugins = dir.path().join("plugins");
    fs::create_dir(&plugins).unwrap();
    std::os::unix::fs::symlink(driver, plugins.join("nomad-driver-gotest")).unwrap();
    dir
}

/// The configuration of an agent with a driver in Go.
fn agent_file(dir: &Path, address: &str, plugin: &str) -> PathBuf {
    let info = fs::read(dir.join("server/server.json")).unwrap();
    let info: serde_json::Value = serde_json::from_slice(&info).unwrap();
    assert!(address.contains(info["http"].as_str().unwrap()));
    let text = format!(
        "data_dir   = {:?}\nservers    = [{}]\ntls_dir    = {:?}\nplugin_dir = {:?}\n{plugin}",
        dir.join("agent"),
        info["quic"],
        dir.join("server/tls"),
        dir.join("plugins"),
    );
    let path = dir.join("agent.hcl");
    fs::write(&path, text).unwrap();
    path
}

/// The attributes of the only node, once `name` is among them.
fn attributes_with(address: &str, name: &str) -> serde_json::Value {
    poll_until(name, || {
        let nodes = ask(address, &["--json", "node", "status"]);
        let nodes: serde_json::Value = serde_json::from_str(&stdout(&nodes)).ok()?;
        let id = nodes[0]["ID"].as_str()?;
        let node = ask(address, &["--json", "node", "status", id]);
        let node: serde_json::Value = serde_json::from_str(&stdout(&node)).ok()?;
        let attributes = node["Node"]["Attributes"].clone();
        attributes[name].is_string().then_some(attributes)
    })
}

/// Both settings of the driver, the wrong one first.
const BLOCKS: [&str; 2] = [
    "plugin \"gotest\" {\n  config {\n    greting = 1\n  }\n}\n",
    "plugin \"gotest\" {\n  config { greeting = \"hi\" }\n}\n",
];

const JOB: &str = r#"
job "talk" {
  type = "batch"
  group "g" {
    restart { attempts = 0 }
    task "t" {
      driver = "gotest"
      config {
        command = "/bin/sh"
        args    = ["-c", "echo code $LABEL_code"]
        label "code" { value = 42 }
      }
      resources { memory = 32 }
    }
  }
}
"#;

#[test]
fn job_runs_with_driver_from_config_file() {
    let name = "job_runs_with_driver_from_config_file";
    if !needs_programs(name) {
        return;
    }
    let Some(driver) = in_go(name, "driver") else {
        return;
    };
    let dir = dir_with(&driver);
    let dir = dir.path();
    let (_server, address) = server(dir);
    let wrong = agent_file(dir, &address, BLOCKS[0]);
    let refused = muster()
        .args(["agent", "--config"])
        .arg(&wrong)
        .output()
        .unwrap();
    let right = agent_file(dir, &address, BLOCKS[1]);
    let _left = Leftovers(dir.join("agent"));
    let mut agent = Process::start(
        muster().args(["agent", "--config"]).arg(&right),
        &dir.join("agent.log"),
    );
    let attributes = attributes_with(&address, "driver.gotest.greeting");
    let run = ask(
        &address,
        &[
            "job",
            "run",
            "--timeout",
            "60",
            job_file(dir, JOB).to_str().unwrap(),
        ],
    );
    let logs = poll_until("the task's output", || {
        let logs = stdout(&ask(&address, &["alloc", "logs", "talk"]));
        logs.contains("code").then_some(logs)
    });
    let file = job_file(
        dir,
        &JOB.replace("command", "comand").replace("talk", "wrong"),
    );
    let failed = ask(
        &address,
        &["job", "run", "--timeout", "60", file.to_str().unwrap()],
    );
    agent.end(nix::sys::signal::Signal::SIGTERM);

    let message = stderr(&refused);
    assert_eq!(refused.status.code(), Some(2), "{message}");
    assert!(
        message.contains("agent.hcl:7:5: plugin \"gotest\": `config.greting`"),
        "{message}"
    );
    assert_eq!(attributes["driver.gotest.greeting"], "hi");
    assert_eq!(
        run.status.code(),
        Some(0),
        "{}{}",
        stdout(&run),
        stderr(&run)
    );
    assert_eq!(logs, "code 42\n");
    let printed = stdout(&failed);
    assert_eq!(
        failed.status.code(),
        Some(1),
        "{printed}{}",
        stderr(&failed)
    );
    assert!(printed.contains("`config.comand`"), "{printed}");
    assert!(
        printed.contains("job.hcl:9:9: `config.comand`"),
        "{printed}"
    );
}

const MEASURED: &str = r#"
job "measured" {
  update { min_healthy_time = "0s" }
  group "g" {
    task "t" {
      driver = "gotest"
      config {
        command = "/bin/sleep"
        args    = ["600"]
      }
      resources { memory = 32 }
    }
  }
}
"#;

/// The driver reports 4 096 bytes for every task, and no CPU time.
#[test]
fn driver_task_stats_are_shown_like_native() {
    let name = "driver_task_stats_are_shown_like_native";
    if !needs_programs(name) {
        return;
    }
    let Some(driver) = in_go(name, "driver") else {
        return;
    };
    let dir = dir_with(&driver);
    let dir = dir.path();
    let (_server, address) = server(dir);
    let file = agent_file(dir, &address, BLOCKS[1]);
    let _left = Leftovers(dir.join("agent"));
    let mut agent = Process::start(
        muster().args(["agent", "--config"]).arg(&file),
        &dir.join("agent.log"),
    );
    attributes_with(&address, "driver.gotest.greeting");
    let job = job_file(dir, MEASURED);
    let run = ask(
        &address,
        &["job", "run", "--timeout", "60", job.to_str().unwrap()],
    );
    assert_eq!(run.status.code(), Some(0), "{}", stderr(&run));

    let status = poll_until("memory in the status", || {
        let status = stdout(&ask(&address, &["alloc", "status", "measured"]));
        status.contains("4.0 KiB").then_some(status)
    });
    let top = stdout(&ask(&address, &["--json", "top", "-n", "1"]));
    let nodes = ask(&address, &["--json", "node", "status"]);
    let nodes: serde_json::Value = serde_json::from_str(&stdout(&nodes)).unwrap();
    let node = nodes[0]["ID"].as_str().unwrap();
    let metrics = fetch(
        &address,
        &format!("/v1/client/stats?node_id={node}&format=prometheus"),
    );
    ask(&address, &["job", "stop", "measured"]);
    agent.end(nix::sys::signal::Signal::SIGTERM);

    assert!(status.contains("from driver `gotest` alone"), "{status}");
    assert!(
        top.contains("\"memory_bytes\": 4096") || top.contains("\"memory_bytes\":4096"),
        "{top}"
    );
    let line = |name: &str| {
        let mut lines = metrics.lines();
        lines.find(|line| line.starts_with(name) && line.contains("job=\"measured\""))
    };
    let memory = line("muster_task_memory_bytes").unwrap_or_else(|| panic!("{metrics}"));
    assert!(memory.ends_with(" 4096"), "{memory}");
    assert_eq!(line("muster_task_cpu_seconds_total"), None);
    assert_eq!(line("muster_task_network_received_bytes_total"), None);
}

/// The response of a server to a request without our client.
fn fetch(address: &str, path: &str) -> String {
    use std::io::{Read as _, Write as _};
    let host = address.trim_start_matches("http://");
    let mut stream = std::net::TcpStream::connect(host).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn manually_started_plugin_explains_itself() {
    let dir = tempfile::tempdir().unwrap();
    let plugin = dir.path().join("muster-driver-native");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_muster"), &plugin).unwrap();

    let by_name = Command::new(&plugin).output().unwrap();
    let by_command = muster().args(["driver", "native"]).output().unwrap();

    for output in [by_name, by_command] {
        assert_eq!(output.status.code(), Some(2));
        assert!(output.stdout.is_empty());
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(message.contains("plugin_dir"), "{message}");
    }
}

#[test]
fn invalid_agent_file_errors_have_line_numbers() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("agent.hcl");
    fs::write(&path, "pool = \"x\"\nserver = \"10.0.0.1\"\nplugin {}\n").unwrap();

    let output = muster()
        .args(["agent", "--config"])
        .arg(&path)
        .output()
        .unwrap();

    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{message}");
    for place in [
        "agent.hcl:2:1: unknown field `server`",
        "agent.hcl:3:1: `plugin` needs",
    ] {
        assert!(message.contains(place), "{message}");
    }
}
