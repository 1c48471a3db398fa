//! One-off tasks with a user's commands. Each task starts once despite killed processes.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, mpsc};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::dev::dev;
use crate::support::{
    Leftovers, PATIENCE, Process, ask, muster, needs_root, poll_until, stderr, stdout,
};

fn file(dir: &Path, definition: &Value) -> PathBuf {
    let path = dir.join("task.json");
    std::fs::write(&path, definition.to_string()).unwrap();
    path
}

fn shell(script: &str) -> Value {
    json!({"run": {"path": "/bin/sh", "args": ["-c", script], "user": "vcap"}})
}

fn get(address: &str, guid: &str) -> Value {
    let answer = ask(address, &["--json", "task", "get", guid]);
    serde_json::from_slice(&answer.stdout).unwrap_or(Value::Null)
}

#[test]
fn a_task_brings_its_result_or_its_reason() {
    if !needs_root("a_task_brings_its_result_or_its_reason") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (_process, address) = dev(dir.path());
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/tasks/hello.hcl");

    let done = ask(&address, &["task", "run", example]);

    assert_eq!(done.status.code(), Some(0), "{}", stderr(&done));
    let result = stdout(&done);
    assert!(
        result.starts_with("Linux ") && result.lines().count() == 2,
        "{result}"
    );
    let gone = ask(&address, &["task", "get", "hello"]);
    assert_eq!(gone.status.code(), Some(4), "{}", stderr(&gone));
    assert!(
        stderr(&gone).contains("task hello does not exist"),
        "{}",
        stderr(&gone)
    );

    let serial = json!({"serial": {"actions": [shell("exit 0"), shell("echo no; exit 3"), shell("echo never")]}});
    let definition = json!({
        "task_guid": "fails", "rootfs": "preloaded:host", "log_source": "APP",
        "memory_mb": 32, "disk_mb": 10, "action": serial,
    });
    let path = file(dir.path(), &definition);
    let failed = ask(&address, &["task", "run", "--keep", path.to_str().unwrap()]);
    assert_eq!(failed.status.code(), Some(1));
    assert!(
        stderr(&failed).contains("APP: Exited with status 3"),
        "{}",
        stderr(&failed)
    );
    let task = get(&address, "fails");
    assert_eq!(
        (&task["exit_code"], &task["failed_action"]),
        (&json!(3), &json!("serial[1].run"))
    );
    let alloc = task["alloc_id"].as_str().unwrap();
    let logs = poll_until("its output", || {
        let logs = stdout(&ask(&address, &["alloc", "logs", alloc]));
        logs.contains("no\n").then_some(logs)
    });
    assert!(!logs.contains("never"), "{logs}");
    let deleted = ask(&address, &["task", "delete", "--resolve", "fails"]);
    assert_eq!(deleted.status.code(), Some(0), "{}", stderr(&deleted));

    let endless = json!({"rootfs": "preloaded:host", "memory_mb": 32, "disk_mb": 10, "action": shell("sleep 1000")});
    let path = file(dir.path(), &endless);
    let desired = ask(
        &address,
        &[
            "task",
            "desire",
            "--guid",
            "endless",
            path.to_str().unwrap(),
        ],
    );
    assert_eq!(desired.status.code(), Some(0), "{}", stderr(&desired));
    poll_until("the task to run", || {
        (get(&address, "endless")["phase"] == "running").then_some(())
    });
    let again = ask(&address, &["task", "resolve", "endless"]);
    assert_eq!(again.status.code(), Some(5), "{}", stderr(&again));
    assert_eq!(
        ask(&address, &["task", "cancel", "endless"]).status.code(),
        Some(0)
    );
    let ended = poll_until("the task to end", || {
        let task = get(&address, "endless");
        (task["state"] == "Completed").then_some(task)
    });
    assert_eq!(ended["failure_reason"], "task was cancelled");
}

/// A server that serves one archive, and records uploads.
fn store(archive: Vec<u8>) -> (String, mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (keep, kept) = mpsc::sync_channel(1);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.unwrap());
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") {
                assert!(stream.read_line(&mut head).unwrap() > 0, "{head}");
            }
            let announced = head.split("content-length: ").nth(1);
            let bytes: usize =
                announced.map_or(0, |rest| rest.lines().next().unwrap().parse().unwrap());
            let mut body = vec![0; bytes];
            stream.read_exact(&mut body).unwrap();
            let answer: &[u8] = if head.starts_with("GET ") {
                &archive
            } else {
                &[]
            };
            let length = answer.len();
            let mut stream = stream.into_inner();
            write!(
                stream,
                "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n"
            )
            .unwrap();
            stream.write_all(answer).unwrap();
            if bytes > 0 {
                keep.send(String::from_utf8(body).unwrap()).unwrap();
            }
        }
    });
    (url, kept)
}

/// The example, with the test's server in place of the one in the example.
#[test]
fn task_fetches_artifact_and_uploads_result() {
    if !needs_root("task_fetches_artifact_and_uploads_result") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("bin")).unwrap();
    let program = dir.path().join("bin/work");
    std::fs::write(&program, "#!/bin/sh\necho made by $(basename $0) > $1\n").unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut tar = Command::new("tar");
    let packed = tar
        .arg("-C")
        .arg(dir.path())
        .args(["-cz", "bin"])
        .output()
        .unwrap();
    assert!(packed.status.success());
    let (url, kept) = store(packed.stdout);
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/tasks/fetch.hcl");
    let text = std::fs::read_to_string(example).unwrap();
    let path = dir.path().join("fetch.hcl");
    std::fs::write(&path, text.replace("http://127.0.0.1:8000", &url)).unwrap();
    let (_process, address) = dev(dir.path());

    let done = ask(&address, &["task", "run", path.to_str().unwrap()]);

    assert_eq!(done.status.code(), Some(0), "{}", stderr(&done));
    assert_eq!(kept.recv_timeout(PATIENCE).unwrap(), "made by work\n");

    // A file that the task does not have.
    let missing =
        json!({"upload": {"artifact": "result", "from": "/local/no", "to": url, "user": "vcap"}});
    let definition =
        json!({"rootfs": "preloaded:host", "memory_mb": 32, "disk_mb": 10, "action": missing});
    let path = file(dir.path(), &definition);
    let failed = ask(
        &address,
        &["task", "run", "--guid", "fails", path.to_str().unwrap()],
    );
    assert_eq!(failed.status.code(), Some(1));
    let message = stderr(&failed);
    assert!(
        message.contains("Uploading result failed: open \"/local/no\": No such file"),
        "{message}"
    );
}

/// Counts the reports of each task by its name.
#[derive(Clone, Debug, Default)]
struct ReportCounter(Arc<Mutex<BTreeMap<String, u32>>>);

impl ReportCounter {
    fn listen() -> (Self, u16) {
        let listener = TcpListener::bind("0.0.0.0:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let report_counter = Self::default();
        let seen = Arc::clone(&report_counter.0);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut name = String::new();
                let mut stream = stream.unwrap();
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                // A connection that ends before the name does not count.
                if stream.read_to_string(&mut name).is_ok() && !name.trim().is_empty() {
                    *seen
                        .lock()
                        .unwrap()
                        .entry(name.trim().to_owned())
                        .or_default() += 1;
                }
            }
        });
        (report_counter, port)
    }

    fn seen(&self) -> BTreeMap<String, u32> {
        self.0.lock().unwrap().clone()
    }
}

/// A server and an agent, each a process of its own, on addresses that stay the same after a restart.
pub(crate) struct ServerAndAgent {
    dir: PathBuf,
    server: Process,
    agent: Process,
    pub(crate) http: String,
    quic: String,
}

impl ServerAndAgent {
    pub(crate) fn start(dir: &Path) -> Self {
        let server = Self::server(dir, "127.0.0.1:0", "127.0.0.1:0");
        let text = poll_until("the server's address", || {
            std::fs::read_to_string(dir.join("server/server.json")).ok()
        });
        let info: Value = serde_json::from_str(&text).unwrap();
        let text = |name: &str| info[name].as_str().unwrap().to_owned();
        let (http, quic) = (text("http"), text("quic"));
        let agent = Self::agent(dir, &quic);
        Self {
            dir: dir.to_owned(),
            server,
            agent,
            http,
            quic,
        }
    }

    fn server(dir: &Path, http: &str, quic: &str) -> Process {
        let mut command = muster();
        command.args(["server", "--http", http, "--quic", quic, "--data-dir"]);
        Process::start(command.arg(dir.join("server")), &dir.join("server.log"))
    }

    fn agent(dir: &Path, quic: &str) -> Process {
        // The tasks call a listener of the host.
        let config = dir.join("agent.hcl");
        std::fs::write(&config, "client {\n  allow_host_from_bridge = true\n}\n").unwrap();
        let mut command = muster();
        command.args(["agent", "--servers", quic, "--tls-dir"]);
        command.arg(dir.join("server/tls")).arg("--config");
        command.arg(config).arg("--data-dir");
        Process::start(command.arg(dir.join("agent")), &dir.join("agent.log"))
    }

    pub(crate) fn kill_server(&mut self) {
        self.server.end(Signal::SIGKILL);
        self.server = Self::server(&self.dir, &self.http, &self.quic);
    }

    pub(crate) fn kill_agent(&mut self) {
        self.agent.end(Signal::SIGKILL);
        self.agent = Self::agent(&self.dir, &self.quic);
    }
}

/// Runs forty tasks of one to three seconds through six deaths. Each task begins at most once, and each task that ended well began once.
#[test]
fn tasks_begin_once_whatever_dies() {
    if !needs_root("tasks_begin_once_whatever_dies") {
        return;
    }
    const TASKS: usize = 40;
    const LAST_AGENT_DEATH: usize = 20;
    // Short, for the sake of the driver's socket.
    let dir = tempfile::Builder::new()
        .prefix("mt")
        .tempdir_in("/tmp")
        .unwrap();
    let _left = Leftovers(dir.path().join("agent"));
    let mut begun = 0;
    let mut pair = ServerAndAgent::start(dir.path());
    let address = format!("http://{}", pair.http);
    let (report_counter, port) = ReportCounter::listen();
    let guids: Vec<String> = (0..TASKS).map(|number| format!("task-{number}")).collect();
    for (number, guid) in guids.iter().enumerate() {
        let script = format!(
            "exec 3<>/dev/tcp/169.254.1.1/{port}; echo {guid} >&3; exec 3>&-; sleep {}",
            1 + number % 3
        );
        let definition = json!({
            "rootfs": "preloaded:host", "memory_mb": 16, "disk_mb": 10,
            "egress_rules": [{"protocol": "all", "destinations": ["0.0.0.0/0"]}],
            "action": {"run": {"path": "/bin/bash", "args": ["-c", script], "user": "vcap"}},
        });
        let path = file(dir.path(), &definition);
        let arguments = ["task", "desire", "--guid", guid, path.to_str().unwrap()];
        // Without a server, the request is repeated; the task is created once.
        poll_until("the task to be desired", || {
            let desired = ask(&address, &arguments);
            desired.status.success().then_some(())
        });
        if [5, 15, LAST_AGENT_DEATH].contains(&number) {
            // If the agent died before its first start, the test would have nothing to check.
            poll_until("a task to begin since the last death", || {
                (report_counter.seen().len() > begun).then_some(())
            });
            pair.kill_agent();
            begun = report_counter.seen().len();
        }
        if [10, 15, 30].contains(&number) {
            pair.kill_server();
        }
    }

    let ended = poll_until("all tasks to end", || {
        let answer = ask(&address, &["--json", "task", "list"]);
        let tasks: Vec<Value> = serde_json::from_slice(&answer.stdout).ok()?;
        tasks
            .iter()
            .all(|task| task["state"] == "Completed")
            .then_some(tasks)
    });

    assert_eq!(ended.len(), TASKS);
    // A task that was being started when its agent died may have started. So it is not started again.
    let (well, unknown): (Vec<&Value>, Vec<&Value>) =
        ended.iter().partition(|task| task["failed"] == false);
    for task in unknown {
        let reason = task["failure_reason"].as_str().unwrap();
        let why = [
            "the agent ended while it was being started",
            "the agent's store was lost, and no process of the task was found",
            "the task's directories are on the node, but no record and no process of it: whether it began is not known",
        ];
        assert!(why.contains(&reason), "{task}");
    }
    let name = |task: &&Value| task["task_guid"].as_str().unwrap().to_owned();
    let well: Vec<String> = well.iter().map(name).collect();
    for guid in &guids[LAST_AGENT_DEATH + 1..] {
        assert!(
            well.contains(guid),
            "{guid} was desired after the last death of the agent: {well:?}"
        );
    }
    // The last names may be on their way.
    poll_until("the names of all that ended well", || {
        let seen = report_counter.seen();
        well.iter()
            .all(|guid| seen.contains_key(guid))
            .then_some(())
    });
    let seen = report_counter.seen();
    assert!(seen.values().all(|count| *count == 1), "{seen:?}");
    pair.agent.end(Signal::SIGTERM);
}
