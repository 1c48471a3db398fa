//! Snapshot files: that they read back, and that damage shows.

use muster_control_core::fsm::{self, Command};
use muster_domain::fixture::{job, node};
use muster_domain::id::{LogIndex, Timestamp};
use proptest::prelude::*;

use super::*;
use crate::raft::types::{StoredMembership, TypeConfig};

fn meta(index: u64) -> SnapshotMeta {
    SnapshotMeta {
        last_log_id: Some(openraft::testing::log_id::<TypeConfig>(2, 1, index)),
        last_membership: StoredMembership::default(),
    }
}

fn state(jobs: u64) -> State {
    let mut state = State::default();
    let at = Timestamp(7);
    let spec = Box::new(node("n1").build());
    fsm::apply(&mut state, LogIndex(1), Command::RegisterNode { spec, at });
    for index in 0..jobs {
        let spec = Box::new(job(&format!("web-{index}")).build());
        fsm::apply(
            &mut state,
            LogIndex(2 + index),
            Command::RegisterJob {
                spec,
                at,
                check_index: None,
            },
        );
    }
    state
}

#[test]
fn a_snapshot_reads_back() {
    let dir = tempfile::tempdir().unwrap();
    let store = SnapshotStore::open(dir.path()).unwrap();

    let file = store.write(&meta(12), &state(10)).unwrap();

    let restored = SnapshotStore::read(&file).unwrap();
    assert_eq!(restored.meta, meta(12));
    assert_eq!(restored.state, state(10));
}

#[test]
fn the_newest_two_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let store = SnapshotStore::open(dir.path()).unwrap();

    for index in [5, 90, 1_000] {
        store.write(&meta(index), &state(1)).unwrap();
    }

    let positions: Vec<_> = store
        .files()
        .unwrap()
        .iter()
        .map(|file| SnapshotStore::read(file).unwrap().meta)
        .collect();
    assert_eq!(positions, [meta(1_000), meta(90)]);
}

#[test]
fn an_unfinished_file_is_swept_away() {
    let dir = tempfile::tempdir().unwrap();
    let store = SnapshotStore::open(dir.path()).unwrap();
    store.write(&meta(5), &state(1)).unwrap();
    fs::write(
        dir.path().join("00000000000000000009-0000000001.tmp"),
        b"MUSTSNAP",
    )
    .unwrap();

    let store = SnapshotStore::open(dir.path()).unwrap();

    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    assert_eq!(store.newest().unwrap().0.unwrap().meta, meta(5));
}

#[test]
fn a_newer_format_is_refused_with_its_number() {
    let dir = tempfile::tempdir().unwrap();
    let file = SnapshotStore::open(dir.path())
        .unwrap()
        .write(&meta(5), &state(1))
        .unwrap();
    let mut bytes = fs::read(&file.path).unwrap();
    bytes[8] = 9;
    fs::write(&file.path, bytes).unwrap();

    let error = SnapshotStore::read(&file).unwrap_err();

    assert!(error.to_string().contains("format 9"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever byte is wrong or missing, the file is refused and named; it never reads as another state.
    #[test]
    fn no_damage_goes_unnoticed(at in 0.0..1.0_f64, bit in 0_u8..8, cut in any::<bool>()) {
        let dir = tempfile::tempdir().unwrap();
        let file = SnapshotStore::open(dir.path()).unwrap().write(&meta(5), &state(3)).unwrap();
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
