//! kill -9 of a real process in the middle of writes.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command as Process, Stdio};

use muster_control::server::Server;
use muster_control_core::fsm::JobCommand;
use muster_domain::fixture::job;
use muster_domain::id::JobKey;

use crate::fixture::{config, server_on};

const DIR: &str = "MUSTER_TEST_DATA_DIR";
const WRITERS: usize = 8;
/// Jobs acknowledged before the process is killed.
const JOBS: usize = 200;

/// Not a test: the process that [`kill_loses_no_acknowledged_write`] kills.
#[tokio::test]
#[ignore = "started and killed by kill_loses_no_acknowledged_write"]
async fn process_that_writes_for_ever() {
    let Some(dir) = std::env::var_os(DIR) else {
        return;
    };
    let server = Server::start(config(&PathBuf::from(dir))).await.unwrap();
    let writers = (0..WRITERS).map(|writer| {
        let control = server.control().clone();
        async move {
            for at in 0_usize.. {
                let name = format!("job-{writer}-{at}");
                let spec = Box::new(job(&name).build());
                let command = JobCommand::Register {
                    spec,
                    check_index: None,
                    places: None,
                }
                .at(control.now());
                control.propose(command).await.unwrap();
                println!("\nacknowledged {name}");
            }
        }
    });
    futures::future::join_all(writers).await;
}

#[tokio::test]
async fn kill_loses_no_acknowledged_write() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = Process::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "crash::process_that_writes_for_ever",
            "--ignored",
            "--nocapture",
        ])
        .env(DIR, dir.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut acknowledged: Vec<String> = Vec::new();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    for line in lines.map_while(Result::ok) {
        // The line that the kill cut short may name half a job.
        if let Some(name) = line.strip_prefix("acknowledged ") {
            acknowledged.push(name.to_owned());
        }
        if acknowledged.len() == JOBS {
            child.kill().unwrap();
        }
    }
    child.wait().unwrap();
    assert!(
        acknowledged.len() >= JOBS,
        "the process ended by itself after {}",
        acknowledged.len()
    );

    let server = server_on(dir).await;

    let state = server.control().state();
    let cut = acknowledged.len() - 1;
    for name in &acknowledged[..cut] {
        assert!(
            state
                .jobs()
                .get(&JobKey::in_default(name.as_str()))
                .is_some(),
            "{name} is lost"
        );
    }
    server.shutdown().await;
}
