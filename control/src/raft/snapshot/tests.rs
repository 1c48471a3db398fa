//! Snapshot files: they read back, damage is detected, and a death at any step loses nothing.

mod upgrade;

use std::process::Command as Process;
use std::sync::Arc as Shared;

use muster_control_core::fsm::{self, JobCommand, NodeCommand};
use muster_control_core::state::State;
use muster_domain::fixture::{job, node};
use muster_domain::id::{LogIndex, Timestamp};
use openraft::entry::RaftEntry;
use openraft::storage::{RaftLogStorage, RaftLogStorageExt, RaftStateMachine};
use proptest::prelude::*;

use super::*;
use crate::published::Published;
use crate::raft::log::LogStore;
use crate::raft::log::failpoint::Armed;
use crate::raft::machine::Machine;
use crate::raft::types::{Entry, LogId, StoredMembership, TypeConfig};

fn meta(index: u64) -> SnapshotMeta {
    SnapshotMeta {
        last_log_id: Some(openraft::testing::log_id::<TypeConfig>(2, 1, index)),
        last_membership: StoredMembership::default(),
    }
}

fn contents(index: u64, jobs: u64) -> Contents {
    Contents {
        meta: meta(index),
        state: state(jobs),
        restoring: None,
    }
}

fn state(jobs: u64) -> State {
    let mut state = State::default();
    let at = Timestamp(7);
    let spec = Box::new(node("n1").build());
    fsm::apply(
        &mut state,
        LogIndex(1),
        NodeCommand::Register { spec }.at(at),
    );
    for index in 0..jobs {
        let spec = Box::new(job(&format!("web-{index}")).build());
        fsm::apply(
            &mut state,
            LogIndex(2 + index),
            JobCommand::Register {
                spec,
                check_index: None,
                places: None,
            }
            .at(at),
        );
    }
    state
}

#[test]
fn a_snapshot_reads_back() {
    let dir = tempfile::tempdir().unwrap();
    let store = SnapshotStore::open(dir.path()).unwrap();

    let file = store.write(&contents(12, 10)).unwrap();

    let restored = SnapshotStore::read(&file).unwrap();
    assert_eq!(restored.contents.meta, meta(12));
    assert_eq!(restored.contents.state, state(10));
}

#[test]
fn the_newest_two_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let store = SnapshotStore::open(dir.path()).unwrap();

    for index in [5, 90, 1_000] {
        store.write(&contents(index, 1)).unwrap();
    }

    let positions: Vec<_> = store
        .files()
        .unwrap()
        .iter()
        .map(|file| SnapshotStore::read(file).unwrap().contents.meta.clone())
        .collect();
    assert_eq!(positions, [meta(1_000), meta(90)]);
}

#[test]
fn an_unfinished_file_is_swept_away() {
    let dir = tempfile::tempdir().unwrap();
    let store = SnapshotStore::open(dir.path()).unwrap();
    store.write(&contents(5, 1)).unwrap();
    fs::write(
        dir.path().join("00000000000000000009-0000000001.tmp"),
        b"MUSTSNAP",
    )
    .unwrap();

    let store = SnapshotStore::open(dir.path()).unwrap();

    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    assert_eq!(store.newest().unwrap().0.unwrap().contents.meta, meta(5));
}

#[test]
fn a_newer_format_is_refused_with_its_number() {
    let dir = tempfile::tempdir().unwrap();
    let file = SnapshotStore::open(dir.path())
        .unwrap()
        .write(&contents(5, 1))
        .unwrap();
    let mut bytes = fs::read(&file.path).unwrap();
    bytes[8] = 9;
    fs::write(&file.path, bytes).unwrap();

    let error = SnapshotStore::read(&file).unwrap_err();

    assert!(error.to_string().contains("format 9"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// A file with any wrong or missing byte is refused and named; it never reads as another state.
    #[test]
    fn no_damage_goes_unnoticed(at in 0.0..1.0_f64, bit in 0_u8..8, cut in any::<bool>()) {
        let dir = tempfile::tempdir().unwrap();
        let file = SnapshotStore::open(dir.path()).unwrap().write(&contents(5, 3)).unwrap();
        let mut bytes = fs::read(&file.path).unwrap();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a position within a small file")]
        let at = (at * bytes.len() as f64) as usize;
        if cut {
            bytes.truncate(at);
        } else {
            bytes[at] ^= 1 << bit;
        }
        fs::write(&file.path, bytes).unwrap();

        let error = SnapshotStore::read(&file).unwrap_err();

        prop_assert!(error.to_string().contains(&file.path.display().to_string()), "{error}");
    }
}

/// Every kind of record has a name and a version.
#[test]
fn every_table_is_counted() {
    let dir = tempfile::tempdir().unwrap();
    let file = SnapshotStore::open(dir.path())
        .unwrap()
        .write(&contents(12, 10))
        .unwrap();
    let bytes = fs::read(&file.path).unwrap();

    let info = inspect(bytes.as_slice(), bytes.len() as u64, &file.path).unwrap();

    let rows = |name: &str| {
        info.tables
            .iter()
            .find(|table| table.name == name)
            .unwrap()
            .rows
    };
    assert_eq!(info.index, LogIndex(12));
    assert_eq!(info.bytes, bytes.len() as u64);
    assert_eq!(
        (rows("nodes"), rows("jobs"), rows("job versions")),
        (1, 10, 10)
    );
    assert_eq!(rows("evaluations"), 10);
}

/// A table of a newer version is refused by its name.
#[test]
fn a_newer_table_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let file = SnapshotStore::open(dir.path())
        .unwrap()
        .write(&contents(5, 1))
        .unwrap();
    let mut bytes = fs::read(&file.path).unwrap();
    let name = b"allocations";
    let at = bytes
        .windows(name.len())
        .position(|part| part == name)
        .unwrap();
    bytes[at + name.len()] = 7;
    fs::write(&file.path, bytes).unwrap();

    let error = SnapshotStore::read(&file).unwrap_err();

    assert!(
        error.to_string().contains("`allocations` has version 7"),
        "{error}"
    );
}

#[test]
fn snapshot_reader_survives_file_replacement() {
    let dir = tempfile::tempdir().unwrap();
    let store = SnapshotStore::open(dir.path()).unwrap();
    let file = store.write(&contents(5, 10)).unwrap();
    let whole = fs::read(&file.path).unwrap();

    let mut reader = file.reader().unwrap();
    fs::remove_file(&file.path).unwrap();

    let mut read = Vec::new();
    while let Some(chunk) = reader.next_chunk().unwrap() {
        read.extend_from_slice(&chunk);
    }
    assert_eq!(read, whole);
    assert_eq!(reader.bytes(), whole.len() as u64);
}

/// The sender of a damaged snapshot gets an error, and no part of the snapshot stays.
#[test]
fn a_damaged_arrival_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = SnapshotStore::open(dir.path()).unwrap();
    let file = store.write(&contents(5, 10)).unwrap();
    let mut bytes = fs::read(&file.path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;

    let mut writer = store.receive().unwrap();
    writer.write_chunk(&bytes).unwrap();
    let error = writer.finish().unwrap_err();
    fs::write(&file.path, bytes).unwrap();
    let arrived = SnapshotFile::received(&file.path, &meta(5)).unwrap_err();

    assert!(error.to_string().contains("damaged"), "{error}");
    assert!(arrived.to_string().contains("damaged"), "{arrived}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn an_arrival_of_another_position_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = SnapshotStore::open(dir.path())
        .unwrap()
        .write(&contents(5, 1))
        .unwrap();

    assert!(SnapshotFile::received(&file.path, &meta(6)).is_err());
    assert!(SnapshotFile::received(&file.path, &meta(5)).is_ok());
}

/// A full disk leaves no partial file behind, and the older snapshot stays.
#[test]
fn a_full_disk_leaves_no_half_snapshot() {
    let dir = tempfile::tempdir().unwrap();
    let store = SnapshotStore::open(dir.path()).unwrap();
    store.write(&contents(5, 1)).unwrap();
    let armed = Armed::new("snapshot.write", dir.path(), 28);

    let error = store.write(&contents(9, 10)).unwrap_err();

    drop(armed);
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    assert_eq!(store.current().unwrap().0, meta(5));
    store.write(&contents(9, 10)).unwrap();
}

const CHILD_DIR: &str = "MUSTER_TEST_SNAPSHOT_DIR";
/// The last entry of the snapshot that the leader sends.
const INSTALLED: u64 = 100;

fn entry(index: u64) -> Entry {
    let log_id: LogId = openraft::testing::log_id::<TypeConfig>(2, 1, index);
    RaftEntry::new_blank(log_id)
}

/// The contents of `dir`: the log, and the newest snapshot that can be read.
fn open(dir: &Path) -> (LogStore, SnapshotStore, Option<RestoredSnapshot>) {
    let log = LogStore::open(&dir.join("log"), Shared::new(())).unwrap();
    let snapshots = SnapshotStore::open(&dir.join("snapshots")).unwrap();
    let (newest, broken) = snapshots.newest().unwrap();
    assert!(broken.is_empty(), "{broken:?}");
    (log, snapshots, newest)
}

/// This is not a test: it is the process that dies in [`death_at_any_step_leaves_a_whole_state`].
#[tokio::test]
#[ignore = "started by death_at_any_step_leaves_a_whole_state"]
async fn process_that_takes_and_installs() {
    let Some(dir) = std::env::var_os(CHILD_DIR).map(PathBuf::from) else {
        return;
    };
    let (mut log, snapshots, newest) = open(&dir);
    let (published, _) = Published::new();
    let mut machine = Machine::new(Shared::new(published), snapshots.clone(), newest);
    // A server takes a snapshot in this way, and purges the superfluous part of the log.
    snapshots.write(&contents(20, 10)).unwrap();
    log.purge(entry(20).log_id).await.unwrap();
    // A server installs the leader's snapshot in this way.
    let arriving = dir.join("arriving");
    fs::rename(dir.join("from-the-leader"), &arriving).unwrap();
    let received = SnapshotFile::received(&arriving, &meta(INSTALLED)).unwrap();
    machine
        .install_snapshot(&meta(INSTALLED), received)
        .await
        .unwrap();
    log.purge(entry(INSTALLED).log_id).await.unwrap();
    println!("\ndone");
}

/// A process may die at any step: the next process finds a whole snapshot, old or new. The log continues it
/// without a gap.
#[tokio::test]
async fn death_at_any_step_leaves_a_whole_state() {
    let points = [
        "snapshot.create",
        "snapshot.write",
        "snapshot.written",
        "snapshot.synced",
        "snapshot.renamed",
        "snapshot.durable",
        "snapshot.pruned",
        "snapshot.adopt",
        "log.write",
        "log.sync",
        "log.remove",
        "nowhere",
    ];
    for point in points {
        let dir = tempfile::tempdir().unwrap();
        {
            let (mut log, snapshots, _) = open(dir.path());
            log.blocking_append((0..50).map(entry)).await.unwrap();
            snapshots.write(&contents(10, 5)).unwrap();
            log.purge(entry(10).log_id).await.unwrap();
            let other = SnapshotStore::open(&dir.path().join("other")).unwrap();
            let file = other.write(&contents(INSTALLED, 20)).unwrap();
            fs::rename(file.path, dir.path().join("from-the-leader")).unwrap();
        }

        let output = Process::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "raft::snapshot::tests::process_that_takes_and_installs",
                "--ignored",
                "--nocapture",
            ])
            .env(CHILD_DIR, dir.path())
            .env("MUSTER_FAILPOINT", point)
            .output()
            .unwrap();

        let finished = String::from_utf8_lossy(&output.stdout).contains("done");
        assert_eq!(
            finished,
            matches!(point, "nowhere" | "log.remove"),
            "{point}: {output:?}"
        );
        let (mut log, snapshots, newest) = open(dir.path());
        let contents = newest.unwrap().contents;
        let index = contents.meta.last_log_id.unwrap().index;
        assert!([10, 20, INSTALLED].contains(&index), "{point}: {index}");
        let jobs = [(10, 5), (20, 10), (INSTALLED, 20)]
            .into_iter()
            .find(|(at, _)| *at == index);
        assert_eq!(contents.state, state(jobs.unwrap().1), "{point}");
        let purged = log.purged().unwrap().index;
        assert!(
            purged <= index,
            "{point}: purged up to {purged}, snapshot of {index}"
        );
        let last = log
            .get_log_state()
            .await
            .unwrap()
            .last_log_id
            .unwrap()
            .index;
        assert!(
            last >= index.min(49),
            "{point}: the log ends at {last}, snapshot of {index}"
        );
        let leftovers = fs::read_dir(dir.path().join("snapshots")).unwrap().count();
        assert!(
            leftovers <= limits::SNAPSHOTS_KEPT + 1,
            "{point}: {leftovers} files"
        );
        assert_eq!(snapshots.files().unwrap().len(), leftovers, "{point}");
    }
}
