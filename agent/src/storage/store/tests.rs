use muster_agent_core::alloc::AllocRunner;
use muster_domain::fixture;
use muster_domain::id::{LogIndex, Timestamp};
use muster_domain::job::LogConfig;
use muster_domain::one_off::{BlockBytes, TaskUsageTotals};

use super::*;
use crate::ring::SmallDisk;
use crate::tasks::drivers::network_record::NetworkDescription;

fn open(data_dir: &Path) -> Result<(Store, StoreContents), OpenStoreError> {
    super::open(data_dir, Conditions::default())
}

fn desired(name: u32) -> DesiredAlloc {
    let mut job = fixture::job("web").build();
    // The recorded bytes have these values.
    job.groups[0].tasks[0].logs = LogConfig::default();
    DesiredAlloc {
        alloc_modify_index: LogIndex(5),
        name_index: name,
        ..fixture::desired(AllocId::at(LogIndex(1), name), fixture::version(job))
    }
}

fn record() -> TaskRecord {
    let mut end = WorkEnd::failure("why", Timestamp(7));
    end.usage.counted = Some(TaskUsageTotals {
        forks: 1,
        net_rx_bytes: 2,
        net_rx_packets: 3,
        net_tx_bytes: 4,
        net_tx_packets: 5,
        block: Some(BlockBytes {
            read: 6,
            written: 7,
        }),
    });
    TaskRecord {
        attempt: 2,
        driver: "native".into(),
        task_id: "a/b/00000002".into(),
        cgroup_id: 7,
        boot_id: "boot".into(),
        handle: vec![1, 2, 3],
        ended: Some(Ended {
            exit: Exit {
                code: 42,
                ..Exit::default()
            },
            detail: "detail".into(),
            end: Some(Box::new(end)),
        }),
    }
}

fn leftover() -> Leftover {
    Leftover {
        driver: "native".into(),
        task_id: "a/b/00000002".into(),
        task: "main".into(),
        cgroup_id: 7,
        boot_id: "boot".into(),
        left_at: Some(Timestamp(9)),
    }
}

fn remote() -> Vec<RemoteTask> {
    vec![RemoteTask {
        take: Some(vec![1]),
        running: Some(vec![2, 3]),
        leave: Some(vec![4]),
        forgotten: true,
    }]
}

fn driver_network() -> DriverNetwork {
    DriverNetwork {
        driver: "docker".into(),
        hostname: "web-1".into(),
        made: Some(NetworkDescription {
            path: "/proc/1/ns/net".into(),
            labels: BTreeMap::from([("container".into(), "x".into())]),
            hostname: "web-1".into(),
            address: "10.0.0.1".into(),
        }),
    }
}

fn users() -> BTreeMap<String, u32> {
    BTreeMap::from([("main".to_owned(), 80_001)])
}

fn snapshot() -> AllocSnapshot {
    let mut runner = AllocRunner::new(&desired(1), Timestamp(1_000)).unwrap();
    runner.handle_event(muster_agent_core::alloc::Event::Prepared, Timestamp(2_000));
    runner.snapshot()
}

async fn filled(dir: &Path) -> Vec<Write> {
    let (store, loaded) = open(dir).unwrap();
    assert!(loaded.fresh);
    let runner = AllocRunner::new(&desired(1), Timestamp(0)).unwrap();
    let alloc_id = runner.alloc_id();
    let writes = || {
        vec![
            Write::Desired(Box::new(desired(1))),
            Write::Snapshot(alloc_id, Box::new(runner.snapshot())),
            Write::Task(alloc_id, "main".into(), Box::new(record())),
            Write::Leftover(alloc_id, Box::new(leftover())),
            Write::Remote(alloc_id, remote()),
            Write::DriverNetwork(alloc_id, Some(Box::new(driver_network()))),
            Write::Users(alloc_id, users()),
            Write::Desired(Box::new(desired(2))),
        ]
    };
    store.write(writes()).await.unwrap();
    writes()
}

#[tokio::test]
async fn stored_records_are_loaded_again() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path()).await;

    let (_store, loaded) = open(dir.path()).unwrap();

    let first = AllocId::at(LogIndex(1), 1);
    assert_eq!(loaded.allocs.len(), 2);
    assert_eq!(loaded.allocs[&first].0, desired(1));
    assert!(loaded.allocs[&first].1.is_some());
    assert_eq!(loaded.tasks[&(first, "main".to_owned())], record());
    assert_eq!(loaded.leftovers[&first]["a/b/00000002"], leftover());
    assert_eq!(loaded.remote[&first], remote());
    assert_eq!(loaded.driver_networks[&first], driver_network());
    assert_eq!(loaded.users[&first], users());
    assert!(!loaded.fresh);
    assert!(!dir.path().join("agent.redb.corrupt-1").exists());
}

#[tokio::test]
async fn a_removed_allocation_takes_its_tasks_along() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path()).await;
    let (store, _) = open(dir.path()).unwrap();

    store
        .write(vec![Write::Remove(AllocId::at(LogIndex(1), 1))])
        .await
        .unwrap();
    drop(store);

    let (_store, loaded) = open(dir.path()).unwrap();
    assert_eq!(loaded.allocs.len(), 1);
    assert!(loaded.tasks.is_empty());
    assert!(loaded.leftovers.is_empty());
    assert!(loaded.remote.is_empty());
    assert!(loaded.driver_networks.is_empty());
    assert!(loaded.users.is_empty());
}

#[tokio::test]
async fn emptied_remote_tasks_are_removed_from_store() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path()).await;
    let (store, _) = open(dir.path()).unwrap();

    store
        .write(vec![Write::Remote(AllocId::at(LogIndex(1), 1), Vec::new())])
        .await
        .unwrap();
    drop(store);

    let (_store, loaded) = open(dir.path()).unwrap();
    assert_eq!((loaded.allocs.len(), loaded.remote.len()), (2, 0));
}

#[tokio::test]
async fn a_network_that_was_given_back_is_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path()).await;
    let (store, _) = open(dir.path()).unwrap();

    let gone = Write::DriverNetwork(AllocId::at(LogIndex(1), 1), None);
    store.write(vec![gone]).await.unwrap();
    drop(store);

    let (_store, loaded) = open(dir.path()).unwrap();
    assert_eq!((loaded.allocs.len(), loaded.driver_networks.len()), (2, 0));
}

/// Returns the written content, for comparison.
fn contents(loaded: &StoreContents) -> String {
    let StoreContents {
        allocs,
        tasks,
        leftovers,
        remote,
        driver_networks,
        users,
        servers,
        apis,
        cluster_policy,
        fresh: _,
        lost: _,
    } = loaded;
    format!(
        "{allocs:#?}{tasks:#?}{leftovers:#?}{remote:#?}{driver_networks:#?}{users:#?}{servers:#?}\
         {apis:#?}{cluster_policy:#?}"
    )
}

/// Whether a store of `bytes` is set aside, which is then logged. A store that is not set aside has the written
/// content.
fn is_set_aside(dir: &Path, bytes: &[u8], written: &str, what: &str) -> bool {
    let _absent = std::fs::remove_dir_all(dir);
    std::fs::create_dir(dir).unwrap();
    std::fs::write(dir.join(FILE), bytes).unwrap();

    let (_store, loaded) = open(dir).unwrap();

    if !loaded.fresh {
        assert_eq!(contents(&loaded), written, "{what}");
        return false;
    }
    assert!(loaded.allocs.is_empty(), "{what}");
    assert!(dir.join("agent.redb.corrupt-1").exists(), "{what}");
    true
}

/// A filled database that was closed in order, and its content.
async fn whole(dir: &Path) -> (Vec<u8>, String) {
    filled(dir).await;
    let path = dir.join(FILE);
    let (database, loaded) = open_once_closed(&path, true).ok().unwrap();
    drop(database);
    (std::fs::read(path).unwrap(), contents(&loaded))
}

/// A database that is cut at any point is set aside or has all of its content. The agent starts in each case.
#[tokio::test]
async fn a_cut_database_is_set_aside() {
    let dir = tempfile::tempdir().unwrap();
    let (whole, written) = whole(dir.path()).await;
    let cut = dir.path().join("cut");
    let blocks = (0..whole.len()).step_by(whole.len() / 40);
    let mut set_aside = 0;

    for end in [0, 1, 100, 4_095].into_iter().chain(blocks) {
        let what = format!("cut at {end}");
        set_aside += usize::from(is_set_aside(&cut, &whole[..end], &written, &what));
    }

    assert!(set_aside > 0);
    assert!(!is_set_aside(&cut, &whole, &written, "whole"));
}

/// One byte of any page changes. A change that the database does not notice itself would yield another task's record.
#[tokio::test]
async fn corrupted_database_is_set_aside() {
    const PAGE: usize = 4_096;
    let dir = tempfile::tempdir().unwrap();
    let (whole, written) = whole(dir.path()).await;
    let flipped = dir.path().join("flipped");
    let mut set_aside = 0;

    for (page, bytes) in whole.chunks(PAGE).enumerate() {
        let used: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at] != 0).collect();
        let places = [0, used.len() / 2, used.len().saturating_sub(1)];
        for at in places.iter().filter_map(|place| used.get(*place)) {
            let mut wrong = whole.clone();
            let at = page * PAGE + at;
            wrong[at] ^= 0x10;
            let what = format!("byte {at}");
            set_aside += usize::from(is_set_aside(&flipped, &wrong, &written, &what));
        }
    }

    assert!(set_aside > 0);
}

#[tokio::test]
async fn garbage_is_set_aside_and_named() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join(FILE), b"not a database at all").unwrap();

    let (_store, loaded) = open(dir.path()).unwrap();

    assert!(loaded.fresh && loaded.allocs.is_empty());
    assert!(dir.path().join("agent.redb.corrupt-1").exists());
}

/// Opens a store with the format number `found`, and returns the refusal.
fn refusal_of_format(found: u32) -> String {
    let dir = tempfile::tempdir().unwrap();
    drop(open(dir.path()).unwrap());
    {
        // The database is closed again at once, so that the next open succeeds.
        let (database, _) = open_once_closed(&dir.path().join(FILE), true).ok().unwrap();
        let transaction = database.begin_write().unwrap();
        transaction
            .open_table(META)
            .unwrap()
            .insert(META_SCHEMA, found.to_le_bytes().as_slice())
            .unwrap();
        transaction.commit().unwrap();
    }

    let refused = open(dir.path()).unwrap_err().to_string();

    assert!(dir.path().join(FILE).exists());
    assert!(!dir.path().join("agent.redb.corrupt-1").exists());
    refused
}

#[tokio::test]
async fn a_newer_format_is_refused_and_kept() {
    let refused = refusal_of_format(SCHEMA + 1);

    assert!(
        refused.contains(&format!("format {}", SCHEMA + 1)) && refused.contains("newer muster"),
        "{refused}"
    );
}

#[tokio::test]
async fn an_older_format_is_refused_and_kept() {
    let refused = refusal_of_format(upgrade::OLDEST_FORMAT - 1);

    assert!(
        refused.contains("format 0") && refused.contains("older muster"),
        "{refused}"
    );
}

/// The recorded rows are those of an agent of format 1, which has no time for leftovers.
#[tokio::test]
async fn store_of_format_1_is_converted() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path()).await;
    store_of_format_1(dir.path(), &[]);

    for _ in 0..2 {
        let (store, loaded) = open(dir.path()).unwrap();
        store.close();

        let first = AllocId::at(LogIndex(1), 1);
        let old = Leftover {
            left_at: None,
            ..leftover()
        };
        assert_eq!(loaded.leftovers[&first]["a/b/00000002"], old);
        assert_eq!(loaded.allocs[&first].0, desired(1));
        assert_eq!(loaded.tasks[&(first, "main".to_owned())], record());
        assert!(!loaded.fresh);
    }
    assert_eq!(stored_format(dir.path()), SCHEMA);
}

/// A conversion that fails changes nothing: the database is set aside with its old format.
#[tokio::test]
async fn damaged_store_of_format_1_is_set_aside() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path()).await;
    let key = task_key(AllocId::at(LogIndex(1), 2), "z");
    store_of_format_1(dir.path(), &[(&key, &[0xff])]);

    let (_store, loaded) = open(dir.path()).unwrap();

    assert!(loaded.fresh);
    let aside = tempfile::tempdir().unwrap();
    let kept = dir.path().join("agent.redb.corrupt-1");
    std::fs::rename(kept, aside.path().join(FILE)).unwrap();
    assert_eq!(stored_format(aside.path()), 1);
}

/// Changes the store in `dir` to the content of an agent of format 1, with `others` among its leftovers.
fn store_of_format_1(dir: &Path, others: &[(&[u8], &[u8])]) {
    let (store, _) = open(dir).unwrap();
    store.close();
    let database = Database::builder().open(dir.join(FILE)).unwrap();
    let transaction = database.begin_write().unwrap();
    {
        let mut leftovers = transaction.open_table(LEFTOVERS).unwrap();
        let key = task_key(AllocId::at(LogIndex(1), 1), "a/b/00000002");
        let row = bytes_of(&golden(1), "leftover");
        leftovers.insert(key.as_slice(), row.as_slice()).unwrap();
        for (key, row) in others {
            leftovers.insert(*key, *row).unwrap();
        }
        let mut meta = transaction.open_table(META).unwrap();
        let format = 1_u32.to_le_bytes();
        meta.insert(META_SCHEMA, format.as_slice()).unwrap();
    }
    transaction.commit().unwrap();
}

fn stored_format(dir: &Path) -> u32 {
    let database = Database::builder().open(dir.join(FILE)).unwrap();
    let meta = database.begin_read().unwrap().open_table(META).unwrap();
    let format = meta.get(META_SCHEMA).unwrap().unwrap().value().to_vec();
    u32::from_le_bytes(format.try_into().unwrap())
}

#[test]
fn a_node_id_is_kept() {
    let dir = tempfile::tempdir().unwrap();

    let first = node_id(dir.path(), NodeId([1; 16])).unwrap();
    let second = node_id(dir.path(), NodeId([2; 16])).unwrap();

    assert_eq!((first, second), (NodeId([1; 16]), NodeId([1; 16])));
}

#[test]
fn node_secret_is_kept_for_its_owner_alone() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();

    let first = node_secret(dir.path(), NodeSecret([0xa1; 32])).unwrap();
    let second = node_secret(dir.path(), NodeSecret([2; 32])).unwrap();

    assert!(first == NodeSecret([0xa1; 32]) && second == first);
    let file = dir.path().join(NODE_SECRET_FILE);
    let mode = std::fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    std::fs::write(&file, "a1").unwrap();
    let refused = node_secret(dir.path(), NodeSecret([2; 32])).unwrap_err();
    assert!(
        matches!(refused, OpenStoreError::NodeSecret { .. }),
        "{refused}"
    );
}

#[test]
fn a_mangled_node_id_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join(NODE_ID_FILE), "x").unwrap();

    let refused = node_id(dir.path(), NodeId([1; 16])).unwrap_err();

    assert!(
        matches!(refused, OpenStoreError::NodeId { .. }),
        "{refused}"
    );
}

#[test]
fn data_dir_lock_error_names_its_holder() {
    let dir = tempfile::tempdir().unwrap();
    let _first = DataDirLock::take(dir.path()).unwrap();

    let refused = DataDirLock::take(dir.path()).unwrap_err().to_string();

    assert!(
        refused.contains(&format!("pid {}", std::process::id())),
        "{refused}"
    );
}

/// An agent that was stopped in this process may still be closing its database.
#[tokio::test]
async fn database_still_closing_is_awaited_not_set_aside() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path()).await;

    for _ in 0..20 {
        let (_store, loaded) = open(dir.path()).unwrap();
        assert_eq!(loaded.allocs.len(), 2);
    }

    assert!(!dir.path().join("agent.redb.corrupt-1").exists());
}

/// The bytes of each record of this format. A change of them is a new format: `SCHEMA` is raised, the old file stays,
/// and a decoder of its own reads it.
#[test]
fn records_of_this_format_keep_their_bytes() {
    let text = [
        ("desired", codec::encode(&desired(1)).unwrap()),
        ("snapshot", codec::encode(&snapshot()).unwrap()),
        ("task", codec::encode(&record()).unwrap()),
        ("leftover", codec::encode(&leftover()).unwrap()),
        ("remote", codec::encode(&remote()).unwrap()),
        ("driver_network", codec::encode(&driver_network()).unwrap()),
        ("users", codec::encode(&users()).unwrap()),
    ]
    .map(|(name, bytes)| format!("{name} {}\n", hex(&bytes)))
    .concat();

    expect_test::expect_file!["../../../testdata/store.v2.txt"].assert_eq(&text);
}

/// The recorded bytes of this format decode to the same records.
#[test]
fn records_of_this_format_are_read() {
    let golden = golden(SCHEMA);
    let bytes = |name| bytes_of(&golden, name);
    assert_eq!(decode::<DesiredAlloc>(&bytes("desired")), desired(1));
    assert_eq!(decode::<AllocSnapshot>(&bytes("snapshot")), snapshot());
    assert_eq!(decode::<TaskRecord>(&bytes("task")), record());
    assert_eq!(decode::<Leftover>(&bytes("leftover")), leftover());
    assert_eq!(decode::<Vec<RemoteTask>>(&bytes("remote")), remote());
    let network: DriverNetwork = decode(&bytes("driver_network"));
    assert_eq!(network, driver_network());
    let found: BTreeMap<String, u32> = decode(&bytes("users"));
    assert_eq!(found, users());
}

/// Format 2 changed one record. An upgraded agent reads all others unchanged.
#[test]
fn records_of_format_1_are_read() {
    let (first, second) = (golden(1), golden(2));

    for line in first.lines() {
        let is_same = second.lines().any(|other| other == line);
        assert_eq!(is_same, !line.starts_with("leftover "), "{line}");
    }
    let old: upgrade::LeftoverV1 = decode(&bytes_of(&first, "leftover"));
    let expected = Leftover {
        left_at: None,
        ..leftover()
    };
    assert_eq!(Leftover::from(old), expected);
}

fn decode<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> T {
    codec::decode(bytes).unwrap()
}

/// The golden file of a format.
fn golden(format: u32) -> String {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata");
    std::fs::read_to_string(format!("{dir}/store.v{format}.txt")).unwrap()
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    let mut text = String::new();
    for byte in bytes {
        write!(text, "{byte:02x}").unwrap();
    }
    text
}

fn bytes_of(golden: &str, name: &str) -> Vec<u8> {
    let text = golden
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))
        .unwrap();
    let digits = text.as_bytes().chunks(2);
    digits
        .map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

/// A full disk fails the writes while it is full, and loses none of them.
#[tokio::test]
async fn store_recovers_from_a_full_disk() {
    let Some(disk) = SmallDisk::of_kib(4096) else {
        return;
    };
    let conditions = Conditions::default();
    let mut changes = conditions.changes();
    let (store, _) = super::open(&disk.path, conditions.clone()).unwrap();
    let before = desired(0);
    let write = |alloc: &DesiredAlloc| vec![Write::Desired(Box::new(alloc.clone()))];
    store.write(write(&before)).await.unwrap();

    let ballast = disk.fill();
    let mut failed = Vec::new();
    for name in 1..10_000 {
        let alloc = desired(name);
        let written = store.write(write(&alloc)).await;
        let is_over = written.is_err() && failed.len() > 3;
        if written.is_err() {
            failed.push(alloc);
        }
        if is_over {
            break;
        }
    }
    assert!(failed.len() > 3, "the disk is full");
    store
        .write(vec![Write::Remove(failed[0].alloc_id)])
        .await
        .unwrap_err();
    let reason = conditions.reason(CONDITION).unwrap();
    assert!(reason.contains("store cannot be written"), "{reason}");

    std::fs::remove_file(ballast).unwrap();
    changes.wait_for(BTreeMap::is_empty).await.unwrap();
    let after = desired(20_000);
    store.write(write(&after)).await.unwrap();
    store.close();

    let (_store, loaded) = open(&disk.path).unwrap();
    let is_there = |alloc: &DesiredAlloc| loaded.allocs.contains_key(&alloc.alloc_id);
    assert!(is_there(&before) && is_there(&after));
    assert!(!is_there(&failed[0]), "its removal is the newest write");
    assert!(failed[1..].iter().all(is_there));
}

/// EMFILE and EIO do not mean that the file's content is damaged, so the file stays in its place.
#[test]
fn an_errno_is_no_damage() {
    for errno in [5, 24, 28] {
        let error = std::io::Error::from_raw_os_error(errno);
        let read: ReadError = redb::Error::Io(error).into();
        assert!(matches!(read, ReadError::Io(_)), "{errno}");
    }
}
