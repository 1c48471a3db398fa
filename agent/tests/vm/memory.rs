//! The memory reported of a task is the memory that the task used of each kind.
#![expect(
    unsafe_code,
    reason = "pages that are mapped and not read are what faults"
)]

use std::env;
use std::fs::File;
use std::hint::black_box;
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::path::Path;

use muster_agent::resources::cgroup::{Controller, TaskCgroup};
use rustix::fs::Advice;

use crate::disk::Disk;
use crate::support::{limits, remove, shell, tree, until};

const MIB: usize = 1 << 20;
/// Bytes of each kind that the task has: no two the same, so that none is taken for another.
const ANONYMOUS: usize = 24 * MIB;
const SHARED: usize = 12 * MIB;
const CACHED: usize = 6 * MIB;
const PAGE: usize = 4_096;
/// Further bytes that the process may have, of either kind.
const REST: usize = 3 * MIB;
/// Tells the process the disk that it reads, and the file that it makes when all is in memory.
const ORDER_VAR: &str = "MUSTER_TEST_MEMORY";

#[tokio::test]
async fn memory_stats_split_kinds_and_count_page_waits() {
    let name = "memory_stats_split_kinds_and_count_page_waits";
    let Some(tree) = tree(name, &[Controller::Memory]) else {
        return;
    };
    let Some(disk) = Disk::new(name, CACHED as u64) else {
        return tree.remove().await.unwrap();
    };
    let dir = tempfile::tempdir().unwrap();
    let done = dir.path().join("done");
    let task = TaskCgroup::create(&tree, "alloc", "uses", &limits()).unwrap();
    let order = format!("{}:{}", disk.path(), done.display());
    let exe = env::current_exe().unwrap();
    let exe = exe.display();
    let script =
        format!("{ORDER_VAR}='{order}' exec '{exe}' --exact memory::child --ignored --nocapture");

    let mut child = shell(&task, &script);
    until("all to be in memory", || done.exists().then_some(()));
    let memory = task.stats().unwrap().memory.unwrap();

    let used = |value: Option<u64>| usize::try_from(value.unwrap()).unwrap();
    let [anonymous, shared, cached] =
        [memory.rss_bytes, memory.shmem_bytes, memory.cache_bytes].map(used);
    assert!(
        (ANONYMOUS..ANONYMOUS + REST).contains(&anonymous),
        "{memory:?}"
    );
    assert_eq!(shared, SHARED, "{memory:?}");
    let least = SHARED + CACHED;
    assert!((least..least + REST).contains(&cached), "{memory:?}");
    assert_eq!(used(memory.major_faults), CACHED / PAGE, "{memory:?}");
    let all = usize::try_from(memory.current_bytes).unwrap();
    assert!(all >= anonymous + cached, "{memory:?}");
    remove(tree, task).await;
    child.wait().unwrap();
}

/// Not a test: what the task does.
#[test]
#[ignore = "run by the other test as its child process"]
fn child() {
    let Ok(order) = env::var(ORDER_VAR) else {
        return;
    };
    let (disk, done) = order.split_once(':').unwrap();
    let anonymous = vec![1_u8; ANONYMOUS];
    let mut shared = tempfile::tempfile_in("/dev/shm").unwrap();
    shared.write_all(&anonymous[..SHARED]).unwrap();
    fault(Path::new(disk));
    std::fs::write(done, "").unwrap();
    loop {
        std::thread::park();
        black_box((&anonymous, &shared));
    }
}

/// Has the disk's pages come one by one, each when it is looked at.
fn fault(disk: &Path) {
    let file = File::open(disk).unwrap();
    rustix::fs::fadvise(&file, 0, None, Advice::DontNeed).unwrap();
    // SAFETY: the kernel chooses the place, and nobody else has the memory. Nothing writes to the disk.
    let mapped = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            CACHED,
            libc::PROT_READ,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    assert_ne!(mapped, libc::MAP_FAILED);
    // SAFETY: the range is the mapping. Pages read in random order are not read ahead.
    let advised = unsafe { libc::madvise(mapped, CACHED, libc::MADV_RANDOM) };
    assert_eq!(advised, 0);
    for place in (0..CACHED).step_by(PAGE) {
        // SAFETY: the place is within the mapping, which is never undone.
        let byte = unsafe { mapped.cast::<u8>().add(place).read_volatile() };
        assert_eq!(byte, 0);
    }
}
