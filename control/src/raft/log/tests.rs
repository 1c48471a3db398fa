//! openraft's own suite on this log, and further tests of crashes, damage and failing disks.

use std::fs;
use std::process::Command as Process;
use std::time::Duration;

use openraft::storage::RaftLogStorageExt;
use openraft::testing::log::{StoreBuilder, Suite};
use openraft::type_config::TypeConfigExt;
use tempfile::TempDir;

use super::failpoint::Armed;
use super::*;
use crate::published::Published;
use crate::raft::machine::Machine;
use crate::raft::snapshot::SnapshotStore;
use crate::raft::types::EncodedCommand;

const SEGMENT_BYTES: usize = 16 << 10;
/// Files small enough to fill, but large enough for some dozen entries.
const SMALL: LogSizes = LogSizes {
    segment_bytes: SEGMENT_BYTES as u64,
    reserve_bytes: 4 << 10,
    cache_bytes: 2 << 10,
};
const ENOSPC: i32 = 28;
const EIO: i32 = 5;
/// The time limit for an event that must happen.
const STEP_TIMEOUT: Duration = Duration::from_secs(20);
/// How long a test waits for an event that must not happen.
const SHORT_WAIT: Duration = Duration::from_millis(100);

fn open(dir: &Path) -> Result<LogStore, OpenLogError> {
    LogStore::open_sized(dir, SMALL, Arc::new(()))
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

fn entry_of(index: u64, bytes: usize) -> Entry {
    let body: Vec<u8> = index
        .to_le_bytes()
        .into_iter()
        .cycle()
        .take(bytes)
        .collect();
    let logged = EncodedCommand {
        format: 1,
        body: Arc::from(body),
    };
    RaftEntry::new_normal(openraft::testing::log_id::<TypeConfig>(1, 1, index), logged)
}

fn entry(index: u64) -> Entry {
    entry_of(index, 64)
}

/// Writes a log of `count` entries, each on disk before the next is requested, and closes it.
async fn entries_one_by_one(dir: &Path, count: u64) {
    let mut log = open(dir).unwrap();
    for index in 0..count {
        log.blocking_append([entry(index)]).await.unwrap();
    }
}

async fn indexes(log: &mut LogStore) -> Vec<u64> {
    let entries = log.try_get_log_entries(..).await.unwrap();
    entries.iter().map(|entry| entry.log_id.index).collect()
}

fn segments(dir: &Path) -> Vec<PathBuf> {
    let dir = Dir::open(dir).unwrap();
    let numbers = dir.numbers().unwrap();
    numbers
        .into_iter()
        .map(|number| dir.segment_path(number))
        .collect()
}

/// The ends of the frames in the file `bytes`, the first file of a log.
fn frame_ends(bytes: &[u8]) -> Vec<usize> {
    let mut ends = Vec::new();
    let mut at = record::HEAD_BYTES;
    while let record::ScannedFrame::Frame { end, .. } = record::next(bytes, 1, at) {
        ends.push(end);
        at = end;
    }
    ends
}

/// Creates a log of one file with `name` and `bytes`, and opens it.
fn open_bytes(name: &std::ffi::OsStr, bytes: &[u8]) -> (TempDir, Result<LogStore, OpenLogError>) {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join(name), bytes).unwrap();
    let log = open(dir.path());
    (dir, log)
}

/// The head has the format and its complement, so that a flipped bit never makes another format.
#[tokio::test]
async fn newer_format_is_refused_with_the_way_out() {
    let whole = tempfile::tempdir().unwrap();
    entries_one_by_one(whole.path(), 3).await;
    let path = segments(whole.path()).remove(0);
    let (mut bytes, name) = (fs::read(&path).unwrap(), path.file_name().unwrap());
    let newer = record::FORMAT + 1;
    bytes[8..12].copy_from_slice(&newer.to_le_bytes());
    bytes[12..16].copy_from_slice(&(!newer).to_le_bytes());

    let (dir, log) = open_bytes(name, &bytes);

    let refused = log.unwrap_err().to_string();
    let (found, known) = ("has format 2", "understands up to 1");
    for part in [found, known, "start the newer version that wrote it"] {
        assert!(refused.contains(part), "{refused}");
    }
    assert_eq!(fs::read(dir.path().join(name)).unwrap(), bytes, "unchanged");
}

/// A crash may cut the last write anywhere, with a short file or with zeros in place of the missing bytes. At
/// every cut of a recorded log, the log opens with every whole write. Bytes that are cut off are counted.
#[tokio::test]
async fn torn_tail_is_truncated_at_every_byte() {
    let whole = tempfile::tempdir().unwrap();
    entries_one_by_one(whole.path(), 8).await;
    let path = segments(whole.path()).remove(0);
    let (bytes, name) = (fs::read(&path).unwrap(), path.file_name().unwrap());
    let ends = frame_ends(&bytes);
    let (begun, end) = (ends[0], *ends.last().unwrap());

    for cut in begun..=end {
        let last_end = ends
            .iter()
            .copied()
            .filter(|end| *end <= cut)
            .max()
            .unwrap();
        let kept = ends.iter().filter(|end| **end <= cut).count() as u64 - 1;
        let mut zeroed = bytes.clone();
        zeroed[cut..].fill(0);
        for left in [&bytes[..cut], &zeroed[..]] {
            let written = left.iter().rposition(|byte| *byte != 0).unwrap() + 1;

            let (_dir, log) = open_bytes(name, left);
            let mut log = log.unwrap();

            assert_eq!(
                indexes(&mut log).await,
                (0..kept).collect::<Vec<_>>(),
                "cut at {cut}"
            );
            assert_eq!(
                log.bytes_cut(),
                written.saturating_sub(last_end) as u64,
                "cut at {cut}"
            );
        }
    }
}

/// Bytes that were cut off never come back, and the log continues in their place.
#[tokio::test]
async fn a_log_goes_on_after_its_torn_tail() {
    let dir = tempfile::tempdir().unwrap();
    entries_one_by_one(dir.path(), 8).await;
    let path = segments(dir.path()).remove(0);
    let mut bytes = fs::read(&path).unwrap();
    let end = *frame_ends(&bytes).last().unwrap();
    bytes[end - 3..].fill(0);
    fs::write(&path, bytes).unwrap();

    {
        let mut log = open(dir.path()).unwrap();
        assert!(log.bytes_cut() > 0);
        log.blocking_append([entry(7), entry(8)]).await.unwrap();
    }

    let mut log = open(dir.path()).unwrap();
    assert_eq!(indexes(&mut log).await, (0..=8).collect::<Vec<_>>());
    assert_eq!(log.bytes_cut(), 0);
}

/// A flipped bit anywhere in written bytes stops the server. The error has the file, the offset and the remedy,
/// and nothing is changed. A flipped bit in unwritten bytes has no effect.
#[tokio::test]
async fn damage_at_every_byte_names_file_and_offset() {
    let whole = tempfile::tempdir().unwrap();
    entries_one_by_one(whole.path(), 8).await;
    let path = segments(whole.path()).remove(0);
    let (bytes, name) = (fs::read(&path).unwrap(), path.file_name().unwrap());
    let end = *frame_ends(&bytes).last().unwrap();

    for at in 0..end {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1 << (at % 8);

        let (dir, log) = open_bytes(name, &damaged);
        let error = log.unwrap_err();

        let OpenLogError::Damaged { file, offset, .. } = &error else {
            panic!("byte {at}: {error:?}")
        };
        assert_eq!(*file, dir.path().join(name));
        assert!(
            offset.is_some_and(|offset| offset <= at as u64),
            "byte {at}: {error:?}"
        );
        assert!(error.to_string().contains("start again"), "{error}");
        assert_eq!(fs::read(file).unwrap(), damaged, "byte {at}");
    }
    let mut damaged = bytes.clone();
    damaged[end + 700] ^= 1;
    let (_dir, log) = open_bytes(name, &damaged);
    assert_eq!(indexes(&mut log.unwrap()).await.len(), 8);
}

#[tokio::test]
async fn empty_log_file_is_damage() {
    let dir = tempfile::tempdir().unwrap();
    entries_one_by_one(dir.path(), 3).await;
    fs::write(&segments(dir.path())[0], b"").unwrap();

    let error = open(dir.path()).unwrap_err();

    assert!(matches!(error, OpenLogError::Damaged { .. }), "{error:?}");
}

#[tokio::test]
async fn a_newer_format_is_refused_with_its_number() {
    let dir = tempfile::tempdir().unwrap();
    entries_one_by_one(dir.path(), 3).await;
    let path = segments(dir.path()).remove(0);
    let mut bytes = fs::read(&path).unwrap();
    bytes[8..12].copy_from_slice(&9_u32.to_le_bytes());
    bytes[12..16].copy_from_slice(&(!9_u32).to_le_bytes());
    fs::write(&path, bytes).unwrap();

    let error = open(dir.path()).unwrap_err();

    assert!(error.to_string().contains("format 9"), "{error}");
}

/// Every file except the newest must exist and be whole.
#[tokio::test]
async fn a_missing_or_shorter_file_is_damage() {
    for harm in ["first gone", "middle gone", "middle cut"] {
        let dir = tempfile::tempdir().unwrap();
        entries_one_by_one(dir.path(), 400).await;
        let files = segments(dir.path());
        assert!(files.len() >= 3, "{files:?}");
        match harm {
            "first gone" => fs::remove_file(&files[0]).unwrap(),
            "middle gone" => fs::remove_file(&files[1]).unwrap(),
            _ => {
                let mut bytes = fs::read(&files[1]).unwrap();
                let written = bytes.iter().rposition(|byte| *byte != 0).unwrap();
                bytes[written - 50..].fill(0);
                fs::write(&files[1], bytes).unwrap();
            }
        }

        let error = open(dir.path()).unwrap_err();

        assert!(
            matches!(error, OpenLogError::Damaged { .. }),
            "{harm}: {error:?}"
        );
    }
}

/// Files that an earlier process only prepared are ignored.
#[tokio::test]
async fn stale_files_are_ignored() {
    let dir = tempfile::tempdir().unwrap();
    entries_one_by_one(dir.path(), 3).await;
    fs::write(dir.path().join("spare"), b"half of something").unwrap();
    fs::write(dir.path().join("0000000009.tmp"), b"half of something").unwrap();

    let mut log = open(dir.path()).unwrap();

    assert_eq!(indexes(&mut log).await, [0, 1, 2]);
}

#[tokio::test]
async fn votes_and_entries_survive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let vote = Vote::new(3, 7);
    {
        let mut log = open(dir.path()).unwrap();
        log.save_vote(&vote).await.unwrap();
        log.blocking_append((0..5).map(entry)).await.unwrap();
        log.save_committed(Some(entry(3).log_id)).await.unwrap();
        log.purge(entry(0).log_id).await.unwrap();
        log.truncate_after(Some(entry(3).log_id)).await.unwrap();
    }

    let mut log = open(dir.path()).unwrap();

    assert_eq!(log.read_vote().await.unwrap(), Some(vote));
    assert_eq!(log.read_committed().await.unwrap(), Some(entry(3).log_id));
    assert_eq!(log.purged(), Some(entry(0).log_id));
    assert_eq!(indexes(&mut log).await, [1, 2, 3]);
    assert_eq!(log.bytes_cut(), 0);
}

/// Entries that are only on disk read as they were written, and purging removes all possible files.
#[tokio::test]
async fn a_log_of_many_files_reads_back() {
    let dir = tempfile::tempdir().unwrap();
    entries_one_by_one(dir.path(), 400).await;
    let files = segments(dir.path()).len();

    let mut log = open(dir.path()).unwrap();
    let entries = log.try_get_log_entries(..).await.unwrap();
    log.purge(entry(399).log_id).await.unwrap();
    log.blocking_append([entry(400)]).await.unwrap();
    drop(log);

    assert_eq!(entries, (0..400).map(entry).collect::<Vec<_>>());
    assert!(files >= 3, "{files}");
    assert_eq!(segments(dir.path()).len(), 1);
    let mut log = open(dir.path()).unwrap();
    assert_eq!(indexes(&mut log).await, [400]);
    assert_eq!(log.purged(), Some(entry(399).log_id));
}

/// One entry may be larger than a file.
#[tokio::test]
async fn an_entry_larger_than_a_file_fits() {
    let dir = tempfile::tempdir().unwrap();
    let large = 3 * SEGMENT_BYTES;
    {
        let mut log = open(dir.path()).unwrap();
        log.blocking_append([entry(0)]).await.unwrap();
        log.blocking_append([entry_of(1, large)]).await.unwrap();
        log.blocking_append([entry(2)]).await.unwrap();
    }

    let mut log = open(dir.path()).unwrap();

    let entries = log.try_get_log_entries(..).await.unwrap();
    assert_eq!(entries, [entry(0), entry_of(1, large), entry(2)]);
}

/// After a failed write or sync nothing is acknowledged any more, and earlier entries are kept.
#[tokio::test]
async fn a_failing_disk_ends_the_log() {
    for point in ["log.write", "log.sync"] {
        let dir = tempfile::tempdir().unwrap();
        let mut log = open(dir.path()).unwrap();
        log.blocking_append([entry(0)]).await.unwrap();
        let armed = Armed::new(point, dir.path(), EIO);

        let failed = log.blocking_append([entry(1)]).await.unwrap_err();
        drop(armed);
        let after = log.blocking_append([entry(2)]).await.unwrap_err();
        let vote = log.save_vote(&Vote::new(9, 9)).await.unwrap_err();
        drop(log);

        assert!(
            failed
                .to_string()
                .contains(&*segments(dir.path())[0].to_string_lossy()),
            "{failed}"
        );
        assert!(after.to_string().contains("cannot be"), "{after}");
        assert!(vote.to_string().contains("cannot be"), "{vote}");
        let mut log = open(dir.path()).unwrap();
        assert_eq!(indexes(&mut log).await.first(), Some(&0));
        assert!(!indexes(&mut log).await.contains(&2));
        assert_eq!(log.read_vote().await.unwrap(), None);
    }
}

async fn health(log: &LogStore, full: bool) {
    let mut disk = log.disk();
    let reached = disk.wait_for(|health| matches!(health, DiskHealth::Full { .. }) == full);
    tokio::time::timeout(STEP_TIMEOUT, reached)
        .await
        .unwrap()
        .unwrap();
}

/// A full disk is reported while there is still space for requests under way. After that, writes wait in order and
/// continue by themselves.
#[tokio::test]
async fn full_disk_blocks_writes_until_space_frees() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = open(dir.path()).unwrap();
    let armed = Armed::new("log.spare", dir.path(), ENOSPC);
    // The second file exists already; a third one cannot be created.
    let mut index = 0;
    while *log.disk().borrow() == DiskHealth::Writable {
        log.blocking_append([entry(index)]).await.unwrap();
        index += 1;
    }
    log.blocking_append([entry(index)]).await.unwrap();
    index += 1;

    let mut held = log.clone();
    let filler = entry_of(index, SEGMENT_BYTES);
    let mut held = tokio::spawn(async move {
        held.blocking_append([filler]).await.unwrap();
    });
    assert!(
        tokio::time::timeout(SHORT_WAIT, &mut held).await.is_err(),
        "it was acknowledged"
    );
    let vote = Vote::new(4, 4);
    let mut voter = log.clone();
    let mut voting = tokio::spawn(async move { voter.save_vote(&vote).await });
    assert!(
        tokio::time::timeout(SHORT_WAIT, &mut voting).await.is_err(),
        "the vote overtook the entry"
    );
    drop(armed);

    tokio::time::timeout(STEP_TIMEOUT, held)
        .await
        .unwrap()
        .unwrap();
    tokio::time::timeout(STEP_TIMEOUT, voting)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    health(&log, false).await;
    drop(log);
    let mut log = open(dir.path()).unwrap();
    assert_eq!(indexes(&mut log).await, (0..=index).collect::<Vec<_>>());
    assert_eq!(log.read_vote().await.unwrap(), Some(vote));
}

/// A file system does not keep its allocated space: the write waits in its place, and is whole afterwards.
#[tokio::test]
async fn a_write_without_room_is_tried_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = open(dir.path()).unwrap();
    log.blocking_append([entry(0)]).await.unwrap();
    let armed = Armed::new("log.write", dir.path(), ENOSPC);
    let mut held = log.clone();
    let held = tokio::spawn(async move { held.blocking_append([entry(1)]).await });
    health(&log, true).await;

    drop(armed);

    tokio::time::timeout(STEP_TIMEOUT, held)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    health(&log, false).await;
    drop(log);
    assert_eq!(indexes(&mut open(dir.path()).unwrap()).await, [0, 1]);
}

/// While the reserve is released, the log allocates no space. After that it allocates the reserve first.
#[tokio::test]
async fn the_reserve_is_given_up_and_taken_back() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = open(dir.path()).unwrap();
    let reserve = dir.path().join("reserve");
    assert_eq!(fs::metadata(&reserve).unwrap().len(), SMALL.reserve_bytes);
    let armed = Armed::new("log.spare", dir.path(), ENOSPC);
    let mut index = 0;
    while *log.disk().borrow() == DiskHealth::Writable {
        log.blocking_append([entry(index)]).await.unwrap();
        index += 1;
    }

    log.watch().release_reserve().unwrap();
    drop(armed);
    tokio::time::sleep(2 * limits::DISK_FULL_PROBE).await;
    let lent = (reserve.exists(), log.disk().borrow().clone());
    log.watch().take_back_reserve();

    health(&log, false).await;
    assert!(!lent.0);
    assert!(matches!(lent.1, DiskHealth::Full { .. }));
    assert_eq!(fs::metadata(&reserve).unwrap().len(), SMALL.reserve_bytes);
}

const CHILD_DIR: &str = "MUSTER_TEST_LOG_DIR";

/// This is not a test: it is the process that [`death_between_two_files_loses_nothing`] lets die.
#[tokio::test]
#[ignore = "started by death_between_two_files_loses_nothing"]
async fn process_that_fills_files() {
    let Some(dir) = std::env::var_os(CHILD_DIR) else {
        return;
    };
    let mut log = open(Path::new(&dir)).unwrap();
    for index in 0..1_000 {
        log.blocking_append([entry(index)]).await.unwrap();
        println!("\nacknowledged {index}");
    }
}

/// After a kill at any step between two files, the log opens with all acknowledged entries.
#[tokio::test]
async fn death_between_two_files_loses_nothing() {
    for point in ["log.roll.written", "log.roll.synced", "log.roll.renamed"] {
        let dir = tempfile::tempdir().unwrap();
        // The first file is created by the same steps, so it must exist before the child dies in them.
        drop(open(dir.path()).unwrap());

        let output = Process::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "raft::log::tests::process_that_fills_files",
                "--ignored",
                "--nocapture",
            ])
            .env(CHILD_DIR, dir.path())
            .env("MUSTER_FAILPOINT", point)
            .output()
            .unwrap();

        let output = String::from_utf8_lossy(&output.stdout).into_owned();
        let acknowledged = output
            .lines()
            .filter(|line| line.starts_with("acknowledged "))
            .count() as u64;
        assert!((10..1_000).contains(&acknowledged), "{point}: {output}");
        let mut log = open(dir.path()).unwrap();
        let found = indexes(&mut log).await;
        assert!(
            found.len() as u64 >= acknowledged,
            "{point}: {acknowledged}, {found:?}"
        );
        let next = found.len() as u64;
        log.blocking_append([entry(next)]).await.unwrap();
    }
}

/// Overwrites the last `count` bytes of the newest segment as if they had never been written.
fn forget_bytes(dir: &Path, count: usize) {
    let path = segments(dir).pop().unwrap();
    let mut bytes = fs::read(&path).unwrap();
    let end = bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1;
    bytes[end - count..end].fill(0);
    fs::write(&path, bytes).unwrap();
}

/// Without the last seven bytes, the last entry is lost. It was acknowledged, so the log reports it.
#[tokio::test]
async fn lost_acknowledged_end_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    entries_one_by_one(dir.path(), 3).await;
    let end = RaftEntry::log_id(&entry(2));
    assert_eq!(open(dir.path()).unwrap().lost(), None);

    forget_bytes(dir.path(), 7);
    let mut log = open(dir.path()).unwrap();
    assert_eq!(log.lost(), Some(end));
    // The log reports it again until it reaches that entry.
    drop(log);
    log = open(dir.path()).unwrap();
    assert_eq!(log.lost(), Some(end));

    log.blocking_append([entry(2)]).await.unwrap();
    drop(log);
    assert_eq!(open(dir.path()).unwrap().lost(), None);
}

/// A lost vote is still known from the mark: another vote in its term would be a second one.
#[tokio::test]
async fn a_vote_that_is_gone_is_written_again() {
    let dir = tempfile::tempdir().unwrap();
    let vote = Vote::new(7, 3);
    let mut log = open(dir.path()).unwrap();
    log.save_vote(&Vote::new(5, 3)).await.unwrap();
    log.save_vote(&vote).await.unwrap();
    drop(log);

    forget_bytes(dir.path(), 7);
    let mut log = open(dir.path()).unwrap();
    assert_eq!(log.read_vote().await.unwrap(), Some(vote));
    drop(log);
    // The vote is now in the log itself.
    fs::remove_file(dir.path().join("mark")).unwrap();
    let mut log = open(dir.path()).unwrap();
    assert_eq!(log.read_vote().await.unwrap(), Some(vote));
}

/// Entries that a leader has truncated are not missing.
#[tokio::test]
async fn a_truncated_end_is_not_missing() {
    let dir = tempfile::tempdir().unwrap();
    entries_one_by_one(dir.path(), 5).await;
    let mut log = open(dir.path()).unwrap();
    log.truncate_after(Some(RaftEntry::log_id(&entry(1))))
        .await
        .unwrap();
    drop(log);
    assert_eq!(open(dir.path()).unwrap().lost(), None);
}
