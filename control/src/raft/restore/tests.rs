//! The restore of a saved snapshot, on a server of its own with real files.

use std::time::Duration;

use muster_control_core::fsm::Entry;
use muster_domain::id::{JobKey, LogIndex};
use tempfile::TempDir;
use tokio::time::Instant;

use super::super::tests::{register, start};
use super::*;
use crate::data_dir::DataDir;
use crate::published::Published;

async fn saved(raft: &Raft) -> Vec<u8> {
    let mut reader = raft.save_snapshot().await.unwrap();
    let mut bytes = Vec::new();
    while let Some(chunk) = reader.next_chunk().unwrap() {
        bytes.extend_from_slice(&chunk);
    }
    bytes
}

fn received(raft: &Raft, bytes: &[u8]) -> SavedSnapshot {
    let mut writer = raft.receive_snapshot().unwrap();
    for chunk in bytes.chunks(1_000) {
        writer.write_chunk(chunk).unwrap();
    }
    writer.finish().unwrap()
}

fn has(raft: &Raft, name: &str) -> bool {
    let key = JobKey::in_default(name);
    raft.published.state().jobs().get(&key).is_some()
}

async fn write(raft: &Raft, entry: Entry) -> LogIndex {
    raft.write(&entry).await.unwrap().0
}

/// Starts on a directory of a stopped server, whose last tasks may still be ending.
async fn start_again(dir: &TempDir) -> (Raft, Arc<Published>) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while let Err(error) = DataDir::open(dir.path()) {
        assert!(Instant::now() < deadline, "{error}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    start(dir).await.unwrap()
}

/// A restore drops writes after the snapshot and keeps writes after the restore. The state is the same after a
/// restart.
#[tokio::test(flavor = "multi_thread")]
async fn a_restore_drops_later_writes() {
    let dir = tempfile::tempdir().unwrap();
    let (raft, published) = start(&dir).await.unwrap();
    write(&raft, register("kept")).await;
    let bytes = saved(&raft).await;
    let before = write(&raft, register("taken-back")).await;
    let saved = received(&raft, &bytes);

    let index = raft.restore_snapshot(saved).await.unwrap();

    assert!(index > before);
    assert!(has(&raft, "kept"));
    assert!(!has(&raft, "taken-back"));
    assert_eq!(published.state().applied(), index);
    assert_eq!(published.state().jobs().index(), index);
    assert!(published.take_effects_lost());
    write(&raft, register("after")).await;
    let hash = published.state().hash();
    raft.shutdown().await;
    drop(raft);
    let (raft, published) = start_again(&dir).await;
    assert_eq!(published.state().hash(), hash);
    assert!(has(&raft, "kept") && has(&raft, "after") && !has(&raft, "taken-back"));
    raft.shutdown().await;
}

/// In a fresh cluster indexes continue after the snapshot's, so ids derived from them are never repeated.
#[tokio::test(flavor = "multi_thread")]
async fn restore_into_fresh_cluster_keeps_indexes_increasing() {
    let (old, new): (TempDir, TempDir) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (raft, _) = start(&old).await.unwrap();
    for at in 0..200 {
        write(&raft, register(&format!("job-{at}"))).await;
    }
    let bytes = saved(&raft).await;
    let last = raft.last_log_index();
    raft.shutdown().await;
    let (raft, published) = start(&new).await.unwrap();

    let saved = received(&raft, &bytes);
    let index = raft.restore_snapshot(saved).await.unwrap();

    assert!(index > last);
    assert_eq!(published.state().jobs().len(), 200);
    assert!(write(&raft, register("next")).await > index);
    raft.shutdown().await;
}

/// A snapshot taken during a restore holds the restore's chunks: a server that starts from it can apply the
/// commit.
#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_in_the_middle_holds_the_chunks() {
    let dir = tempfile::tempdir().unwrap();
    let (raft, _) = start(&dir).await.unwrap();
    write(&raft, register("kept")).await;
    let bytes = saved(&raft).await;
    write(&raft, register("taken-back")).await;
    let (first, second) = bytes.split_at(bytes.len() / 2);
    let attempt = 7;
    let step = |step: RestoreStep| {
        let raft = &raft;
        async move { raft.write_step(&step).await.unwrap() }
    };
    let length = bytes.len() as u64;
    step(RestoreStep::Begin {
        attempt,
        bytes: length,
    })
    .await;
    let (offset, bytes) = (0, Arc::from(first));
    step(RestoreStep::Chunk {
        attempt,
        offset,
        bytes,
    })
    .await;
    let upto = raft.snapshot().await.unwrap();
    raft.raft.trigger().purge_log(upto.0).await.unwrap();
    raft.shutdown().await;
    drop(raft);

    let (raft, _) = start_again(&dir).await;
    let (offset, bytes) = (first.len() as u64, Arc::from(second));
    raft.write_step(&RestoreStep::Chunk {
        attempt,
        offset,
        bytes,
    })
    .await
    .unwrap();
    raft.write_step(&RestoreStep::Commit { attempt })
        .await
        .unwrap();

    assert!(has(&raft, "kept"));
    assert!(!has(&raft, "taken-back"));
    raft.shutdown().await;
}

/// Chunks that are missing, doubled or of another attempt change nothing.
#[tokio::test(flavor = "multi_thread")]
async fn an_incomplete_restore_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (raft, _) = start(&dir).await.unwrap();
    let bytes = saved(&raft).await;
    write(&raft, register("kept")).await;
    let length = bytes.len() as u64;
    let chunk = |attempt, offset| RestoreStep::Chunk {
        attempt,
        offset,
        bytes: Arc::from(&bytes[..]),
    };

    raft.write_step(&RestoreStep::Begin {
        attempt: 1,
        bytes: length,
    })
    .await
    .unwrap();
    raft.write_step(&chunk(2, 0)).await.unwrap();
    raft.write_step(&chunk(1, 5)).await.unwrap();
    raft.write_step(&RestoreStep::Commit { attempt: 1 })
        .await
        .unwrap();
    raft.write_step(&RestoreStep::Begin {
        attempt: 3,
        bytes: length,
    })
    .await
    .unwrap();
    raft.write_step(&chunk(3, 0)).await.unwrap();
    raft.write_step(&RestoreStep::Begin {
        attempt: 4,
        bytes: length,
    })
    .await
    .unwrap();
    raft.write_step(&RestoreStep::Commit { attempt: 3 })
        .await
        .unwrap();

    assert!(has(&raft, "kept"));
    assert_eq!(raft.restored.get(), 0);
    raft.shutdown().await;
}

/// Logs have these bytes: variants are only appended.
#[test]
fn restore_step_encoding_is_stable() {
    use std::fmt::Write;

    use expect_test::expect;

    let chunk = RestoreStep::Chunk {
        attempt: 1,
        offset: 300,
        bytes: Arc::from(&b"four"[..]),
    };
    let hex = |step: &RestoreStep| {
        let bytes = encode(step).unwrap();
        bytes.iter().fold(String::new(), |mut text, byte| {
            write!(text, "{byte:02x}").unwrap();
            text
        })
    };

    expect!["00"].assert_eq(&hex(&RestoreStep::Empty));
    expect!["010102"].assert_eq(&hex(&RestoreStep::Begin {
        attempt: 1,
        bytes: 2,
    }));
    expect!["0201fb2c0104666f7572"].assert_eq(&hex(&chunk));
    expect!["0301"].assert_eq(&hex(&RestoreStep::Commit { attempt: 1 }));
}
