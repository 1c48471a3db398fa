use std::time::Duration;

use muster_domain::fixture::recorded::skipped;

use super::*;

const SOON: Duration = Duration::from_mins(1);

fn fill(dir: &Path) {
    fs::create_dir_all(dir.join("sub")).unwrap();
    fs::write(dir.join("sub/file"), "x").unwrap();
}

async fn emptied(trash: &Trash) {
    tokio::time::timeout(SOON, trash.emptied()).await.unwrap();
}

fn count(dir: &Path) -> usize {
    fs::read_dir(dir).unwrap().count()
}

#[tokio::test]
async fn discarded_dirs_are_deleted() {
    let temp = tempfile::tempdir().unwrap();
    let (dir, root) = (temp.path().join("dir"), temp.path().join("trash"));
    fill(&dir);
    let trash = Trash::with_threads(&root, 2).unwrap();

    trash.discard(&dir, "one").unwrap();

    assert!(!dir.exists());
    emptied(&trash).await;
    assert_eq!(count(&root), 0);
    let state = trash.state();
    assert_eq!(
        (state.entries, state.deleted.files, state.deleted.dirs),
        (1, 1, 2)
    );
    assert!(trash.is_idle());
    // A missing directory is success.
    trash.discard(&dir, "one").unwrap();
}

/// Deletion has the lowest priority, unless a caller waits for it.
#[tokio::test]
async fn threads_yield_unless_priority_is_raised() {
    let temp = tempfile::tempdir().unwrap();
    let (dir, root) = (temp.path().join("dir"), temp.path().join("trash"));
    let trash = Trash::with_threads(&root, 1).unwrap();
    let niceness = || {
        let thread = trash.shared.lock_priority().threads[0];
        rustix::process::getpriority_process(Some(thread)).unwrap()
    };
    fill(&dir);
    trash.discard(&dir, "one").unwrap();
    emptied(&trash).await;
    assert_eq!(niceness(), NICENESS);

    trash.raise_priority();
    assert_eq!(niceness(), 0);

    fill(&dir);
    trash.discard(&dir, "two").unwrap();
    emptied(&trash).await;
    assert_eq!(niceness(), NICENESS);
}

/// The deletion would continue for ten minutes.
#[tokio::test]
async fn threads_that_hurry_give_way_to_a_start() {
    let temp = tempfile::tempdir().unwrap();
    let (dir, root) = (temp.path().join("dir"), temp.path().join("trash"));
    let trash = Trash::with_start_gate(&root, 1, StartGate::new(Duration::from_mins(10))).unwrap();
    fill(&dir);
    trash.raise_priority();
    let start = trash.start_of();

    trash.discard(&dir, "one").unwrap();
    let waits = || trash.shared.start_gate.waited.load(Ordering::Relaxed) > 0;
    while !waits() && trash.state().entries == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(trash.state().entries, 0, "it was deleted beside the start");
    drop(start);
    emptied(&trash).await;
}

/// More entries than are remembered at a time, left by an earlier agent.
#[tokio::test]
async fn entries_of_earlier_agents_are_deleted() {
    let temp = tempfile::tempdir().unwrap();
    for at in 0..NAMES_MAX + 100 {
        fill(&temp.path().join(format!("left-{at}")));
    }

    let trash = Trash::with_threads(temp.path(), 3).unwrap();
    emptied(&trash).await;

    assert_eq!(count(temp.path()), 0);
    assert_eq!(trash.state().entries, NAMES_MAX as u64 + 100);
}

#[tokio::test]
async fn a_directory_made_anew_is_thrown_away_again() {
    let temp = tempfile::tempdir().unwrap();
    let (dir, root) = (temp.path().join("dir"), temp.path().join("trash"));
    fill(&root.join("one"));
    let mut trash = Trash::with_threads(&root, 1).unwrap();
    trash.stop();
    fill(&root.join("one"));
    fill(&dir);

    trash.discard(&dir, "one").unwrap();

    assert!(!dir.exists());
    let trash = Trash::with_threads(&root, 1).unwrap();
    emptied(&trash).await;
    assert_eq!(count(&root), 0);
}

/// A directory that is set aside becomes an entry, and is deleted before the trash is empty.
#[tokio::test]
async fn deep_trees_leave_nothing() {
    let temp = tempfile::tempdir().unwrap();
    let (dir, root) = (temp.path().join("dir"), temp.path().join("trash"));
    let deep: PathBuf = std::iter::repeat_n("d", 300).collect();
    fs::create_dir_all(dir.join(deep)).unwrap();
    let trash = Trash::with_threads(&root, 2).unwrap();

    trash.discard(&dir, "deep").unwrap();
    emptied(&trash).await;

    assert_eq!(count(&root), 0);
    let state = trash.state();
    assert_eq!((state.deleted.dirs, state.deleted.set_aside), (301, 9));
}

/// The agent stops in the middle, and the next one finishes.
#[tokio::test]
async fn interrupted_deletion_is_resumed_by_next_agent() {
    let temp = tempfile::tempdir().unwrap();
    for at in 0..200 {
        let dir = temp.path().join(format!("left-{at}"));
        fill(&dir);
        for file in 0..20 {
            fs::write(dir.join(file.to_string()), "").unwrap();
        }
    }
    let mut trash = Trash::with_threads(temp.path(), 2).unwrap();
    trash.stop();
    let left = count(temp.path());

    let trash = Trash::with_threads(temp.path(), 2).unwrap();
    emptied(&trash).await;

    assert!(left > 0, "nothing was left to finish");
    assert_eq!(count(temp.path()), 0);
}

/// Other entries are deleted, and the refused one is tried again.
#[tokio::test]
async fn refused_entry_is_reported_and_retried() {
    let test = "refused_entry_is_reported_and_retried";
    if !nix::unistd::geteuid().is_root() {
        return skipped(test, "needs root for mounts");
    }
    let temp = tempfile::tempdir().unwrap();
    let root = temp.path().join("trash");
    fs::create_dir(&root).unwrap();
    let options = c"size=1m";
    let mounted = rustix::mount::mount(
        "tmpfs",
        &root,
        "tmpfs",
        rustix::mount::MountFlags::empty(),
        options,
    );
    if let Err(errno) = mounted {
        return skipped(test, &format!("nothing can be mounted here: {errno}"));
    }
    fill(&root.join("one"));
    let read_only = rustix::mount::MountFlags::RDONLY;
    rustix::mount::mount_remount(&root, read_only, "").unwrap();
    let trash = Trash::with_threads(&root, 1).unwrap();

    emptied(&trash).await;
    let refused = trash.state();
    rustix::mount::mount_remount(&root, rustix::mount::MountFlags::empty(), "").unwrap();
    trash.retry();
    let deadline = Instant::now() + SOON;
    while count(&root) > 0 && Instant::now() < deadline {
        tokio::task::yield_now().await;
    }
    let after = (count(&root), trash.state());
    drop(trash);
    rustix::mount::unmount(&root, UnmountFlags::DETACH).unwrap();

    assert_eq!((refused.failures, refused.refused.len()), (1, 1));
    assert!(refused.refused[0].1.contains("Read-only"), "{refused:?}");
    assert_eq!(after.0, 0, "{:?}", after.1);
}

/// If the trash is on another file system, the rename stays within the file system of the directory.
#[tokio::test]
async fn separate_filesystem_gets_own_trash() {
    let (temp, other) = (
        tempfile::tempdir().unwrap(),
        tempfile::tempdir_in("/dev/shm"),
    );
    let Ok(other) = other else {
        return skipped(
            "separate_filesystem_gets_own_trash",
            "/dev/shm cannot be written",
        );
    };
    let dir = other.path().join("allocs/one");
    fill(&dir);
    let trash = Trash::with_threads(&temp.path().join("trash"), 1).unwrap();

    trash.discard(&dir, "one").unwrap();
    emptied(&trash).await;

    assert_eq!(count(&other.path().join("allocs")), 1);
    assert_eq!(count(&other.path().join("allocs/.trash")), 0);
    drop(trash);
    // The next agent also reads this trash.
    fill(&other.path().join("allocs/.trash/left"));
    let trash = Trash::with_threads(&temp.path().join("trash"), 1).unwrap();
    trash.add_sibling_root(&other.path().join("allocs"));
    emptied(&trash).await;
    assert_eq!(count(&other.path().join("allocs/.trash")), 0);
}
