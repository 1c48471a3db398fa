//! Three servers that an operator starts, observes and changes.

use std::io::{BufRead as _, BufReader};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use serde_json::{Value, json};

use crate::support::{Process, ask, job_file, muster, poll_until, stderr, stdout};

const NAMES: [&str; 3] = ["s1", "s2", "s3"];
const JOB: &str = "job \"web\" {\n  group \"g\" {\n    task \"t\" {\n      driver = \"native\"\n      config { command = \"/bin/true\" }\n    }\n  }\n}\n";

/// Three servers of one cluster, with certificates that the binary created.
struct Cluster {
    dir: PathBuf,
    quic: Vec<SocketAddr>,
    /// Each server with its HTTP address; `None` if it was killed.
    servers: Vec<Option<(Process, String)>>,
}

impl Cluster {
    fn start(dir: &Path) -> Self {
        let ca = dir.join("ca");
        done(&tls(&["ca", "--out", path(&ca)]));
        for name in NAMES {
            let out = dir.join(name).join("tls");
            done(&tls(&[
                "cert",
                "server",
                "--name",
                name,
                "--ca",
                path(&ca),
                "--out",
                path(&out),
            ]));
        }
        let sockets: Vec<UdpSocket> = NAMES
            .iter()
            .map(|_| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap())
            .collect();
        let quic = sockets.iter().map(|socket| socket.local_addr().unwrap());
        let mut cluster = Self {
            dir: dir.to_owned(),
            quic: quic.collect(),
            servers: vec![None, None, None],
        };
        drop(sockets);
        for at in 0..NAMES.len() {
            cluster.begin(at);
        }
        poll_until("three voters", || {
            let servers = cluster.configuration()?;
            let voters = servers.iter().filter(|server| server["Voter"] == true);
            (voters.count() == 3).then_some(())
        });
        cluster
    }

    /// Starts server number `at`.
    fn begin(&mut self, at: usize) {
        let home = self.dir.join(NAMES[at]);
        let data = home.join("data");
        let join: Vec<String> = self.quic.iter().map(ToString::to_string).collect();
        // The file is from an earlier run of the server.
        drop(std::fs::remove_file(data.join("server.json")));
        let process = Process::start(
            muster()
                .args(["server", "--http", "127.0.0.1:0", "--name", NAMES[at]])
                .args(["--quic", &self.quic[at].to_string()])
                .args(["--bootstrap-expect", "3", "--join", &join.join(",")])
                .arg("--tls-dir")
                .arg(home.join("tls"))
                .arg("--data-dir")
                .arg(&data),
            &home.join("log"),
        );
        let address = poll_until("the server's address", || {
            let text = std::fs::read_to_string(data.join("server.json")).ok()?;
            let info: Value = serde_json::from_str(&text).ok()?;
            Some(format!("http://{}", info["http"].as_str()?))
        });
        self.servers[at] = Some((process, address));
    }

    /// All addresses, separated by commas, including those of killed servers.
    fn addresses(&self) -> String {
        let alive = self.servers.iter().flatten();
        let known: Vec<&str> = alive.map(|(_, address)| address.as_str()).collect();
        // No server listens at the first address: every command has to try the next.
        format!("http://127.0.0.1:1,{}", known.join(","))
    }

    fn ask(&self, args: &[&str]) -> Output {
        ask(&self.addresses(), args)
    }

    fn json(&self, args: &[&str]) -> Value {
        let output = ask(&self.addresses(), &[args, &["--json"]].concat());
        serde_json::from_str(&stdout(&output))
            .unwrap_or_else(|error| panic!("{error}: {} {}", stdout(&output), stderr(&output)))
    }

    /// The servers of the cluster, if a server answers.
    fn configuration(&self) -> Option<Vec<Value>> {
        let output = self.ask(&["operator", "raft", "list-peers", "--json"]);
        let answer: Value = serde_json::from_str(&stdout(&output)).ok()?;
        Some(answer["Servers"].as_array()?.clone())
    }

    /// The place of the leader.
    fn leader(&self) -> usize {
        poll_until("a leader", || {
            let servers = self.configuration()?;
            let leader = servers.iter().find(|server| server["Leader"] == true)?;
            let name = leader["Node"].as_str()?;
            let at = NAMES.iter().position(|known| *known == name)?;
            self.servers[at].is_some().then_some(at)
        })
    }

    fn kill(&mut self, at: usize) {
        let (mut process, _) = self.servers[at].take().expect("the server runs");
        process.end(nix::sys::signal::Signal::SIGKILL);
    }
}

fn path(path: &Path) -> &str {
    path.to_str().expect("paths of tests are text")
}

fn tls(args: &[&str]) -> Output {
    muster()
        .args(["operator", "tls"])
        .args(args)
        .output()
        .unwrap()
}

fn done(output: &Output) {
    let printed = format!("{}{}", stdout(output), stderr(output));
    assert_eq!(output.status.code(), Some(0), "{printed}");
}

#[test]
fn three_servers_are_listed_and_well() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(dir.path());

    let listed = cluster.ask(&["operator", "raft", "list-peers"]);
    let checked = cluster.ask(&["operator", "check"]);

    done(&listed);
    let text = stdout(&listed);
    assert!(NAMES.iter().all(|name| text.contains(name)), "{text}");
    assert_eq!(text.matches("leader").count(), 1, "{text}");
    done(&checked);
    assert!(
        stdout(&checked).contains("All servers have the same state"),
        "{}",
        stdout(&checked)
    );
    poll_until("all are well", || {
        let health = cluster.ask(&["operator", "health"]);
        (health.status.code() == Some(0)).then_some(())
    });
}

#[test]
fn leadership_is_handed_over_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(dir.path());
    let leader = cluster.leader();
    let other = NAMES[(leader + 1) % 3];

    let transferred = cluster.ask(&["operator", "raft", "transfer", other]);

    done(&transferred);
    assert!(
        stdout(&transferred).contains(other),
        "{}",
        stdout(&transferred)
    );
    assert_eq!(NAMES[cluster.leader()], other);
    let unknown = cluster.ask(&["operator", "raft", "transfer", "s9"]);
    assert_eq!(unknown.status.code(), Some(4), "{}", stderr(&unknown));
}

/// The client has the addresses of all servers, and the leader is killed between two commands.
#[test]
fn a_write_finds_the_next_leader() {
    let dir = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::start(dir.path());
    let file = job_file(dir.path(), JOB);
    let addresses = cluster.addresses();
    let leader = cluster.leader();

    cluster.kill(leader);
    let run = ask(&addresses, &["job", "run", "--detach", path(&file)]);

    done(&run);
    let listed = ask(&addresses, &["job", "status", "--json"]);
    let jobs: Value = serde_json::from_str(&stdout(&listed)).unwrap();
    assert_eq!(jobs.as_array().unwrap().len(), 1);
    let health = cluster.ask(&["operator", "health"]);
    let text = stdout(&health);
    assert!(
        health.status.code() == Some(0) || text.contains("no"),
        "{text}"
    );
}

/// A server with a lost disk is refused, removed by name, and rejoins as a new server.
#[test]
fn removed_server_rejoins_with_empty_disk() {
    let dir = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::start(dir.path());
    let gone = (cluster.leader() + 1) % 3;
    cluster.kill(gone);

    let removed = cluster.ask(&["operator", "raft", "remove", NAMES[gone]]);

    done(&removed);
    assert_eq!(cluster.configuration().unwrap().len(), 2);
    std::fs::remove_dir_all(dir.path().join(NAMES[gone]).join("data")).unwrap();
    cluster.begin(gone);
    poll_until("it votes again", || {
        let servers = cluster.configuration()?;
        let voters = servers.iter().filter(|server| server["Voter"] == true);
        (voters.count() == 3).then_some(())
    });
    done(&cluster.ask(&["operator", "check"]));
}

#[test]
fn a_snapshot_goes_to_a_file_and_back() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(dir.path());
    let file = job_file(dir.path(), JOB);
    done(&cluster.ask(&["job", "run", "--detach", path(&file)]));
    let saved = dir.path().join("backup.snap");
    let snap = path(&saved);

    done(&cluster.ask(&["operator", "snapshot", "save", snap]));
    let again = cluster.ask(&["operator", "snapshot", "save", snap]);
    let inspected = cluster.json(&["operator", "snapshot", "inspect", snap]);
    done(&cluster.ask(&["job", "stop", "--purge", "--detach", "web"]));
    done(&cluster.ask(&["operator", "snapshot", "restore", snap]));

    assert_eq!(again.status.code(), Some(5), "{}", stderr(&again));
    let tables = inspected["Tables"].as_array().unwrap();
    let rows = |name: &str| {
        let table = tables.iter().find(|table| table["Name"] == name);
        table.unwrap_or_else(|| panic!("{name} in {inspected}"))["Rows"].clone()
    };
    assert_eq!(rows("jobs"), json!(1));
    assert_eq!(inspected["Servers"].as_array().unwrap().len(), 3);
    done(&cluster.ask(&["job", "inspect", "web"]));
    done(&cluster.ask(&["operator", "check"]));
}

#[test]
fn a_damaged_snapshot_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let broken = dir.path().join("broken.snap");
    std::fs::write(&broken, b"MUSTSNAP and then nothing of use").unwrap();

    let inspected = ask(
        "http://127.0.0.1:1",
        &["operator", "snapshot", "inspect", path(&broken)],
    );
    let missing = ask(
        "http://127.0.0.1:1",
        &["operator", "snapshot", "inspect", "/nowhere.snap"],
    );

    assert_eq!(inspected.status.code(), Some(1), "{}", stderr(&inspected));
    assert!(
        stderr(&inspected).contains("broken.snap"),
        "{}",
        stderr(&inspected)
    );
    assert_eq!(missing.status.code(), Some(4), "{}", stderr(&missing));
}

/// The leader is killed while events are followed: every job is printed once, in order.
#[test]
fn event_stream_continues_after_server_death() {
    let dir = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::start(dir.path());
    let leader = cluster.leader();
    let (_, first) = cluster.servers[leader].as_ref().unwrap();
    let others: Vec<&str> = cluster
        .servers
        .iter()
        .flatten()
        .map(|(_, address)| address.as_str())
        .filter(|address| *address != first)
        .collect();
    let addresses = format!("{first},{}", others.join(","));
    let mut follower = muster()
        .args([
            "--address",
            &addresses,
            "--json",
            "events",
            "--topic",
            "Job",
        ])
        .args(["--index", "0"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(follower.stdout.take().unwrap()).lines();
    let rest = others.join(",");
    let run = |name: &str| {
        let text = JOB.replace("web", name);
        let file = job_file(dir.path(), &text);
        done(&ask(&rest, &["job", "run", "--detach", path(&file)]));
    };
    let mut jobs = Vec::new();
    let mut read_jobs = |count: usize| {
        while jobs.len() < count {
            let line = lines.next().expect("the stream goes on").unwrap();
            let line: Value = serde_json::from_str(&line).unwrap();
            for event in line["Events"].as_array().unwrap() {
                if event["Type"] == "JobRegistered" {
                    jobs.push(event["Key"].as_str().unwrap().to_owned());
                }
            }
        }
        jobs.clone()
    };

    run("before");
    read_jobs(1);
    cluster.kill(leader);
    run("after");
    let jobs = read_jobs(2);

    follower.kill().unwrap();
    follower.wait().unwrap();
    assert_eq!(jobs, ["before", "after"]);
}

#[test]
fn keys_are_private_and_never_written_over() {
    let dir = tempfile::tempdir().unwrap();
    let (ca, out) = (dir.path().join("ca"), dir.path().join("s1"));
    let cert = [
        "cert",
        "server",
        "--name",
        "s1",
        "--ca",
        path(&ca),
        "--out",
        path(&out),
    ];
    done(&tls(&["ca", "--cluster", "prod", "--out", path(&ca)]));
    done(&tls(&cert));
    let key = std::fs::read(out.join("server.key")).unwrap();

    let again = tls(&cert);
    let ca_again = tls(&["ca", "--cluster", "prod", "--out", path(&ca)]);

    for refused in [&again, &ca_again] {
        assert_eq!(refused.status.code(), Some(5), "{}", stderr(refused));
        assert!(
            stderr(refused).contains("not written over"),
            "{}",
            stderr(refused)
        );
    }
    assert_eq!(std::fs::read(out.join("server.key")).unwrap(), key);
    for secret in [out.join("server.key"), ca.join("ca.key")] {
        let mode = secret.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{}", secret.display());
    }
    assert!(!out.join("ca.key").exists());
    assert!(out.join("ca.pem").exists());
}

#[test]
fn a_certificate_for_the_wrong_thing_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (ca, other, out) = (
        dir.path().join("ca"),
        dir.path().join("other"),
        dir.path().join("out"),
    );
    done(&tls(&["ca", "--out", path(&ca)]));
    done(&tls(&["ca", "--out", path(&other)]));
    let ask = |rest: &[&str]| tls(&[&["cert"], rest, &["--out", path(&out)]].concat());

    let nameless = ask(&["server", "--ca", path(&ca)]);
    let misnamed = ask(&["server", "--ca", path(&ca), "--name", "not a name"]);
    let named = ask(&["agent", "--ca", path(&ca), "--name", "a1"]);
    let nowhere = ask(&["agent", "--ca", "/nowhere"]);
    done(&ask(&["agent", "--ca", path(&ca)]));
    let mixed = ask(&["operator", "--ca", path(&other)]);

    for (output, code) in [
        (nameless, 2),
        (misnamed, 2),
        (named, 2),
        (nowhere, 1),
        (mixed, 5),
    ] {
        assert_eq!(output.status.code(), Some(code), "{}", stderr(&output));
    }
}
