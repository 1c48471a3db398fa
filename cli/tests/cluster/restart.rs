//! Restarts of servers, and a server that restarts without its data.

use std::io::Write as _;
use std::process::{Command, Stdio};

use serde_json::json;

use crate::client::{self, Clients, Http};
use crate::cluster::{Allocation, SERVERS, address, http, leader_as_seen_by, poll_until};
use crate::partition::others;
use crate::shared::TestCluster;

/// A few large jobs, written repeatedly. They make the log grow, but not the state.
pub(crate) struct LargeJobs {
    servers: Vec<Http>,
    body: serde_json::Value,
}

impl LargeJobs {
    pub(crate) fn new() -> Self {
        let mut job = client::job("large", 1);
        for part in 0..16 {
            job["Meta"][format!("filler-{part}")] = json!("x".repeat(60_000));
        }
        Self {
            servers: (0..SERVERS.len())
                .map(|at| Http::new(address(at)))
                .collect(),
            body: json!({ "Job": job }),
        }
    }

    /// Writes some of the jobs; the outcome does not matter.
    pub(crate) fn write(&self) {
        for server in &self.servers {
            if let Some(answer) = server.put("/v1/jobs", None, &self.body) {
                assert!(answer.status == 200 || answer.status > 500, "{answer:?}");
            }
        }
    }
}

/// All servers are restarted one after the other under load. No write fails for good, no node is marked lost, and no
/// task is restarted.
#[test]
fn a_rolling_restart_is_not_noticed() {
    let Some(mut cluster) = TestCluster::shared("a_rolling_restart_is_not_noticed") else {
        return;
    };
    let allocs = cluster.steady_running();
    let clients = Clients::at_work();

    for at in 0..SERVERS.len() {
        clients.wait_for_writes(20);
        cluster.stop(at);
        clients.wait_for_writes(10);
        cluster.begin(at);
        poll_until("it to be one of them again", || {
            (leader_as_seen_by(at)? == cluster.leader()).then_some(())
        });
    }
    clients.wait_for_writes(20);

    clients.finish();
    // Requests to a stopping server no longer find Raft. The library logs this as an error.
    cluster.assert_healthy(&["to RaftCore", "from RaftCore", "RaftCore stopped"]);
    poll_until("all nodes to be ready", || {
        cluster.nodes_ready().then_some(())
    });
    assert_eq!(cluster.steady(), allocs);
    commands_run_through_every_server(&allocs);
}

/// Commands work by every server, whichever server the nodes are connected to, as soon as they are connected again.
fn commands_run_through_every_server(allocs: &[Allocation]) {
    for at in 0..SERVERS.len() {
        for alloc in allocs.iter().filter(|alloc| alloc.started.is_some()) {
            poll_until("a command to run", || {
                runs_through(at, &alloc.id).then_some(())
            });
        }
    }
}

/// Whether a command transfers large input and output by the server; if not, the reason is printed.
fn runs_through(at: usize, alloc_id: &str) -> bool {
    let mut exec = Command::new(env!("CARGO_BIN_EXE_muster"))
        .args(["--address", &format!("http://{}:4646", address(at))])
        .args(["alloc", "exec", alloc_id, "cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = exec.stdin.take().unwrap();
    // A refused command reads no input.
    let written = input.write_all(&vec![b'm'; 300_000]);
    drop(input);
    let output = exec.wait_with_output().unwrap();
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr);
        eprintln!("through server {at}: {}: {error}", output.status);
        return false;
    }
    written.unwrap();
    assert_eq!(output.stdout.len(), 300_000, "through server {at}");
    true
}

/// A follower without its data is refused under its old name, with instructions. Once removed, it joins as a new server
/// and gets all data.
#[test]
fn a_wiped_server_comes_back_as_another() {
    let Some(mut cluster) = TestCluster::shared("a_wiped_server_comes_back_as_another") else {
        return;
    };
    let clients = Clients::at_work();
    clients.wait_for_writes(20);
    let leader = cluster.leader();
    let wiped = (leader + 1) % SERVERS.len();

    cluster.kill(wiped);
    std::fs::remove_dir_all(cluster.data(wiped)).unwrap();
    clients.wait_for_writes(20);
    cluster.begin(wiped);
    let remedy = format!("muster operator raft remove {}", SERVERS[wiped]);
    poll_until("the refusal", || {
        cluster.log(wiped).contains(&remedy).then_some(())
    });
    let leader_of_others = || cluster.leader_among(&others(wiped));
    let members = poll_until("the former voters", || voters(leader_of_others()?));
    poll_until("its removal", || {
        let leader = leader_of_others()?;
        let path = format!(
            "/v1/operator/raft/peer?id={}",
            former(leader, SERVERS[wiped])?
        );
        let answer = http(leader).delete(&path)?;
        (answer.status == 200).then_some(())
    });

    let voters = poll_until("it to be a voter", || {
        voters(leader_of_others()?).filter(|voters| voters.len() == 3)
    });
    assert_ne!(voters, members);
    clients.wait_for_writes(20);
    clients.finish();
    cluster.assert_healthy(&["the cluster does not take this server"]);
}

/// The members of the cluster, from the leader. A server that has not joined answers only after seconds.
fn servers(leader: usize) -> Option<Vec<serde_json::Value>> {
    let answer = http(leader).get("/v1/operator/raft/configuration")?;
    Some(answer.json()["Servers"].as_array()?.clone())
}

/// The number of the server that was called `name`.
fn former(leader: usize, name: &str) -> Option<String> {
    let servers = servers(leader)?;
    let server = servers.iter().find(|server| {
        server["Node"]
            .as_str()
            .is_some_and(|node| node.starts_with(name))
    })?;
    Some(server["ID"].as_str()?.to_owned())
}

/// Ids of the voting servers.
fn voters(leader: usize) -> Option<Vec<String>> {
    let servers = servers(leader)?;
    let voters = servers.iter().filter(|server| server["Voter"] == true);
    let mut ids: Vec<String> = voters
        .filter_map(|server| Some(server["ID"].as_str()?.to_owned()))
        .collect();
    ids.sort();
    Some(ids)
}
