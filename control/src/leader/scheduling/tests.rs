//! An evaluation during which processes end, with real processes.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command as Process, Stdio};
use std::time::Duration;

use muster_control_core::fsm::{JobCommand, NodeCommand};
use muster_domain::eval::Evaluation;
use muster_domain::fixture::{job, node};
use muster_domain::id::JobKey;

use super::*;
use crate::raft::failpoint;
use crate::server::{Server, ServerConfig};

const CHILD_DIR: &str = "MUSTER_TEST_SCHEDULING_DIR";
const FAILPOINT: &str = "scheduling.run";
/// The time limit for each step on a busy machine.
const STEP_TIMEOUT: Duration = Duration::from_mins(1);

/// Kills the process in the middle of a run, if the process is a child for this test.
pub(super) fn pass_failpoint(run: &[Delivery]) {
    if !run.is_empty() {
        failpoint::hit(FAILPOINT, Path::new("")).unwrap();
    }
}

fn config(dir: &Path) -> ServerConfig {
    let free = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    ServerConfig {
        http_addr: free,
        quic_addr: free,
        ..ServerConfig::new(dir)
    }
}

async fn register(control: &Control, name: &str) {
    let command = JobCommand::Register {
        spec: Box::new(job(name).build()),
        check_index: None,
        places: None,
    }
    .at(control.now());
    control.propose(command).await.unwrap();
}

/// Returns the evaluation of a job that ends first.
async fn ended(control: &Control, name: &str) -> Evaluation {
    let key = JobKey::in_default(name);
    let mut applied = control.applied();
    let looking = async {
        loop {
            let state = control.state();
            let mut evals = state.evals().iter().filter(|eval| eval.job == key);
            if let Some(eval) = evals.find(|eval| eval.status.is_terminal()) {
                return (**eval).clone();
            }
            applied.changed().await.unwrap();
        }
    };
    tokio::time::timeout(STEP_TIMEOUT, looking).await.unwrap()
}

/// This is not a test: it is the process that [`an_evaluation_that_kills_twice_is_set_aside`] lets die.
#[tokio::test]
#[ignore = "started by an_evaluation_that_kills_twice_is_set_aside"]
async fn process_that_dies_scheduling() {
    let Some(dir) = std::env::var_os(CHILD_DIR) else {
        return;
    };
    let server = Server::start(config(&PathBuf::from(dir))).await.unwrap();
    let control = server.control();
    if control
        .state()
        .jobs()
        .get(&JobKey::in_default("killer"))
        .is_none()
    {
        register(control, "killer").await;
    }
    tokio::time::sleep(STEP_TIMEOUT).await;
}

/// The servers that died are real processes. Another process then sets the evaluation aside.
#[tokio::test(flavor = "multi_thread")]
async fn an_evaluation_that_kills_twice_is_set_aside() {
    let dir = tempfile::tempdir().unwrap();
    for _ in 0..limits::EVAL_ENDS_MAX {
        let status = Process::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "leader::scheduling::tests::process_that_dies_scheduling",
                "--ignored",
            ])
            .env(CHILD_DIR, dir.path())
            .env("MUSTER_FAILPOINT", FAILPOINT)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .unwrap();
        assert_eq!(status.code(), None, "the process must die by a signal");
    }

    let server = Server::start(config(dir.path())).await.unwrap();
    let control = server.control();
    let killer = ended(control, "killer").await;
    assert_eq!(killer.status, EvalStatus::Failed, "{killer:?}");
    let why = &killer.status_description;
    assert!(why.contains("this server ended 2 times"), "{why}");

    // The server continues with other work.
    let command = NodeCommand::Register {
        spec: Box::new(node("n1").build()),
    }
    .at(control.now());
    control.propose(command).await.unwrap();
    register(control, "web").await;
    let other = ended(control, "web").await;
    assert_eq!(other.status, EvalStatus::Complete, "{other:?}");
    server.shutdown().await;
}
