//! Data that a server keeps after a stop, after a crash, and with damaged files.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use muster_control::server::Server;
use muster_domain::fixture::job;
use muster_domain::id::JobKey;

use crate::fixture::{config, server, server_on};

fn files(dir: &Path, extension: &str) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.retain(|path| path.extension().is_some_and(|found| found == extension));
    paths.sort();
    paths
}

fn flip_a_bit_in_the_middle(path: &Path) {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .unwrap();
    let middle = written(path) / 2;
    let mut byte = [0];
    file.read_exact_at(&mut byte, middle).unwrap();
    file.write_all_at(&[byte[0] ^ 1], middle).unwrap();
}

/// Bytes of a file up to the zeros at its end, which a log's files have for what comes.
fn written(path: &Path) -> u64 {
    let bytes = fs::read(path).unwrap();
    let last = bytes.iter().rposition(|byte| *byte != 0).unwrap();
    last as u64 + 1
}

#[tokio::test]
async fn restart_keeps_jobs() {
    let first = server().await;
    let id = first.server.info().server_id;
    for at in 0..20 {
        first.register(job(&format!("web-{at}"))).await;
    }
    let before = first
        .until("evaluations are done", |state| {
            state
                .evals()
                .pending()
                .all(|eval| eval.status.as_str() == "blocked")
        })
        .await;
    let dir = first.shutdown().await;

    let second = server_on(dir).await;

    let after = second.control().state();
    assert_eq!(after.jobs().len(), 20);
    assert_eq!(second.server.info().server_id, id);
    assert_eq!(before.evals().len(), after.evals().len());
    second.shutdown().await;
}

#[tokio::test]
async fn crash_keeps_acknowledged_entries() {
    let first = server().await;
    first.register(job("web")).await;
    let dir = first.crash();

    let second = server_on(dir).await;

    assert!(
        second
            .control()
            .state()
            .jobs()
            .get(&JobKey::in_default("web"))
            .is_some()
    );
    second.shutdown().await;
}

#[tokio::test]
async fn snapshot_and_log_together_restore_the_state() {
    let first = server().await;
    for at in 0..5 {
        first.register(job(&format!("before-{at}"))).await;
    }
    first.control().take_snapshot().await.unwrap();
    first.register(job("after")).await;
    let before = first
        .until("evaluations are done", |state| {
            state
                .evals()
                .pending()
                .all(|eval| eval.status.as_str() == "blocked")
        })
        .await;
    let dir = first.shutdown().await;
    assert_eq!(files(&dir.path().join("raft/snapshots"), "snap").len(), 1);

    let second = server_on(dir).await;

    let after = second.control().state();
    assert_eq!(after.jobs().len(), 6);
    assert_eq!(
        after.jobs().iter().collect::<Vec<_>>(),
        before.jobs().iter().collect::<Vec<_>>()
    );
    second.shutdown().await;
}

/// Of several snapshots two are kept; if the newest is damaged, the older one and the log give the same.
#[tokio::test]
async fn damaged_snapshot_falls_back_to_the_one_before() {
    let first = server().await;
    for at in 0..3 {
        first.register(job(&format!("web-{at}"))).await;
        first.control().take_snapshot().await.unwrap();
    }
    let dir = first.shutdown().await;
    let snapshots = files(&dir.path().join("raft/snapshots"), "snap");
    assert_eq!(snapshots.len(), 2);
    flip_a_bit_in_the_middle(&snapshots[1]);

    let second = server_on(dir).await;

    assert_eq!(second.control().state().jobs().len(), 3);
    second.shutdown().await;
}

/// Damage in the middle of the log stops the server; the way back that its message names works.
#[tokio::test]
async fn damaged_log_stops_server_and_names_recovery() {
    let first = server().await;
    first.register(job("kept")).await;
    first.control().take_snapshot().await.unwrap();
    for at in 0..20 {
        first.register(job(&format!("lost-{at}"))).await;
    }
    let dir = first.shutdown().await;
    let log = dir.path().join("raft/log");
    let file = files(&log, "log").remove(0);
    flip_a_bit_in_the_middle(&file);

    let error = Server::start(config(dir.path())).await.unwrap_err();
    fs::rename(&log, dir.path().join("raft/log.damaged")).unwrap();
    let second = server_on(dir).await;

    assert!(
        error.to_string().contains(&file.display().to_string()),
        "{error}"
    );
    assert!(error.to_string().contains("at byte"), "{error}");
    assert!(
        error
            .to_string()
            .contains(&format!("move {} away", log.display())),
        "{error}"
    );
    let state = second.control().state();
    assert!(state.jobs().get(&JobKey::in_default("kept")).is_some());
    assert_eq!(state.jobs().len(), 1);
    second.register(job("next")).await;
    second.shutdown().await;
}

#[tokio::test]
async fn torn_tail_is_cut_and_counted() {
    let first = server().await;
    first.register(job("web")).await;
    let dir = first.shutdown().await;
    // The next file is there already, and empty.
    let file = files(&dir.path().join("raft/log"), "log").remove(0);
    // The beginning of a frame, as a crash in the middle of a write leaves it.
    let log = OpenOptions::new().write(true).open(&file).unwrap();
    log.write_all_at(&[1, 1, 1, 1, 9, 1, 1], written(&file))
        .unwrap();

    let second = server_on(dir).await;

    assert_eq!(second.server.info().log_bytes_cut, 7);
    assert_eq!(second.control().state().jobs().len(), 1);
    second.shutdown().await;
}
