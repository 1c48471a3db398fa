//! openraft's own suite on our store, and what it does not test: a crash.

use std::fs::{self, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;

use openraft::entry::RaftEntry;
use openraft::storage::RaftLogStorageExt;
use openraft::testing::log::{StoreBuilder, Suite};
use openraft::type_config::TypeConfigExt;
use tempfile::TempDir;

use super::*;
use crate::published::Published;
use crate::raft::machine::Machine;
use crate::raft::snapshot::SnapshotStore;
use crate::raft::types::Logged;

fn open(dir: &Path) -> Result<LogStore, OpenLogError> {
    LogStore::open(dir, Arc::new(()))
}

struct Builder;

impl StoreBuilder<TypeConfig, LogStore, Machine, TempDir> for Builder {
    async fn build(
        &self,
    ) -> Result<(TempDir, LogStore, Machine), openraft::StorageError<TypeConfig>> {
        let dir = tempfile::tempdir().unwrap();
        let log = open(&dir.path().join("log")).unwrap();
        let snapshots = SnapshotStore::open(&dir.path().join("snapshots")).unwrap();
        let (published, _) = Published::new();
        Ok((dir, log, Machine::new(Arc::new(published), snapshots, None)))
    }
}

#[test]
fn passes_the_librarys_suite() {
    TypeConfig::run(async { Suite::test_all(Builder).await.unwrap() });
}

fn entry(index: u64) -> Entry {
    let logged = Logged {
        format: 1,
        body: Arc::from(index.to_le_bytes().repeat(8)),
    };
    RaftEntry::new_normal(openraft::testing::log_id::<TypeConfig>(1, 1, index), logged)
}

/// A log of ten entries, closed.
async fn ten_entries(dir: &Path) {
    let mut log = open(dir).unwrap();
    log.blocking_append((0..10).map(entry)).await.unwrap();
}

async fn last_index(log: &mut LogStore) -> Option<u64> {
    log.get_log_state()
        .await
        .unwrap()
        .last_log_id
        .map(|log_id| log_id.index)
}

fn only_file(dir: &Path) -> PathBuf {
    let mut files: Vec<PathBuf> = file_sizes(dir).unwrap().into_keys().collect();
    assert_eq!(files.len(), 1, "{files:?}");
    files.remove(0)
}

/// A crash may cut the last record anywhere. Whatever is left opens, and holds every whole record.
#[tokio::test]
async fn a_torn_tail_is_cut_and_counted() {
    let whole = tempfile::tempdir().unwrap();
    ten_entries(whole.path()).await;
    let bytes = fs::read(only_file(whole.path())).unwrap();
    let name = only_file(whole.path()).file_name().unwrap().to_owned();

    let mut between_records = 0;
    for cut in 1..=200 {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(&name), &bytes[..bytes.len() - cut]).unwrap();

        let mut log = open(dir.path()).unwrap();

        let last = last_index(&mut log).await.unwrap();
        let records = log.try_get_log_entries(0..=last).await.unwrap();
        assert!((6..9).contains(&last), "{last} after a cut of {cut}");
        assert_eq!(records, (0..=last).map(entry).collect::<Vec<_>>());
        between_records += u32::from(log.bytes_cut() == 0);
    }
    assert_eq!(
        between_records, 2,
        "cuts that left whole records only, of 91 bytes each"
    );
}

/// A flipped bit in the middle stops the server, with the place and the way back.
#[tokio::test]
async fn damage_in_the_middle_names_file_and_offset() {
    let dir = tempfile::tempdir().unwrap();
    ten_entries(dir.path()).await;
    let path = only_file(dir.path());
    let middle = fs::metadata(&path).unwrap().len() / 2;
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&path)
        .unwrap();
    file.seek(SeekFrom::Start(middle)).unwrap();
    let mut byte = [0];
    file.read_exact(&mut byte).unwrap();
    file.seek(SeekFrom::Start(middle)).unwrap();
    file.write_all(&[byte[0] ^ 0x40]).unwrap();

    let error = open(dir.path()).unwrap_err();

    let OpenLogError::Damaged { file, offset, .. } = &error else {
        panic!("{error:?}")
    };
    assert_eq!(*file, path);
    assert!(offset.is_some_and(|offset| offset <= middle), "{error:?}");
    assert!(error.to_string().contains("start again"), "{error}");
}

#[tokio::test]
async fn votes_and_entries_survive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let vote = Vote::new(3, 7);
    {
        let mut log = open(dir.path()).unwrap();
        log.save_vote(&vote).await.unwrap();
        log.blocking_append((0..3).map(entry)).await.unwrap();
        log.purge(entry(0).log_id).await.unwrap();
    }

    let mut log = open(dir.path()).unwrap();

    assert_eq!(log.read_vote().await.unwrap(), Some(vote));
    assert_eq!(log.purged(), Some(entry(0).log_id));
    assert_eq!(
        log.try_get_log_entries(1..3).await.unwrap(),
        vec![entry(1), entry(2)]
    );
    assert_eq!(log.bytes_cut(), 0);
}
