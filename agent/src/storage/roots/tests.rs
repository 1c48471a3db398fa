use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::time::Duration;

use muster_domain::fixture::recorded::skipped;
use muster_domain::id::{AllocId, LogIndex};
use rustix::mount::MountPropagationFlags;

use super::*;
use crate::storage::allocdir::DataDir;
use crate::storage::trash::Trash;

const SOON: Duration = Duration::from_mins(1);

/// A host directory with a file system mounted in it, and an allocation of one task.
struct TestAlloc {
    temp: tempfile::TempDir,
    data: DataDir,
    alloc_id: AllocId,
}

impl Drop for TestAlloc {
    fn drop(&mut self) {
        drop(remove_all(&self.roots()));
        // An unmount without a mount fails, which is harmless.
        let _gone = rustix::mount::unmount(self.host(), UnmountFlags::DETACH);
    }
}

impl TestAlloc {
    /// Returns `None` if mounting is not possible, and reports the reason.
    fn new(test: &str) -> Option<Self> {
        if !nix::unistd::geteuid().is_root() {
            skipped(test, "needs root for mounts");
            return None;
        }
        let temp = tempfile::tempdir().unwrap();
        let data = DataDir::new(&temp.path().join("data")).unwrap();
        let alloc_id = AllocId::at(LogIndex(1), 0);
        data.prepare().unwrap();
        data.make_alloc(alloc_id, &[("web".into(), None)]).unwrap();
        let place = Self {
            temp,
            data,
            alloc_id,
        };
        let host = place.host();
        fs::create_dir(&host).unwrap();
        // As on most machines, the mount propagates its changes to peers.
        if let Err(errno) = rustix::mount::mount_bind(&host, &host) {
            skipped(test, &format!("nothing can be mounted here: {errno}"));
            return None;
        }
        rustix::mount::mount_change(&host, MountPropagationFlags::SHARED).unwrap();
        fs::create_dir(host.join("sub")).unwrap();
        let none = rustix::mount::MountFlags::empty();
        rustix::mount::mount("tmpfs", host.join("sub"), "tmpfs", none, c"size=1m").unwrap();
        fs::write(host.join("file"), "the host's").unwrap();
        fs::write(host.join("sub/file"), "the host's").unwrap();
        Some(place)
    }

    fn host(&self) -> PathBuf {
        self.temp.path().join("host")
    }

    fn roots(&self) -> PathBuf {
        self.data.roots_of(self.alloc_id)
    }

    fn root(&self) -> PathBuf {
        self.roots().join("web")
    }

    fn task(&self) -> PathBuf {
        self.data.alloc(self.alloc_id).task("web")
    }

    fn shown(&self, path: &Path, at: &str) -> Result<Root, RootError> {
        self.shown_to(None, path, at)
    }

    fn shown_to(&self, driver: Option<u32>, path: &Path, at: &str) -> Result<Root, RootError> {
        let path = path.display().to_string();
        let env = ChrootEnv::new([(path, at.to_owned())]).unwrap();
        let dirs = self.data.alloc(self.alloc_id);
        let sources = RootSources {
            env: &env,
            data: self.data.root(),
            driver,
        };
        build(sources, &self.roots(), &dirs, "web")
    }

    fn host_is_whole(&self) -> bool {
        ["file", "sub/file"].into_iter().all(|name| {
            fs::read_to_string(self.host().join(name)).is_ok_and(|text| text == "the host's")
        })
    }
}

/// Mounts at `dir` and below it.
fn mounts(dir: &Path) -> usize {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let places = table.lines().filter_map(|line| line.split(' ').nth(4));
    places
        .filter(|place| Path::new(place).starts_with(dir))
        .count()
}

#[test]
fn chroot_shows_host_directories_read_only() {
    let Some(place) = TestAlloc::new("chroot_shows_host_directories_read_only") else {
        return;
    };

    let root = place.shown(&place.host(), "/usr/host").unwrap();

    assert_eq!(
        root,
        Root {
            alloc_dir: place.roots(),
            task_dir: place.root(),
            absent: Vec::new(),
        }
    );
    for name in ["usr/host/file", "usr/host/sub/file"] {
        let path = root.task_dir.join(name);
        assert_eq!(fs::read_to_string(&path).unwrap(), "the host's");
        let refused = fs::write(&path, "x").unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ReadOnlyFilesystem, "{name}");
    }
    // The task's own directories can be written, and all others can read them.
    fs::write(root.task_dir.join("local/mine"), "x").unwrap();
    fs::write(root.task_dir.join("alloc/data/ours"), "x").unwrap();
    assert!(place.task().join("local/mine").exists());
    assert!(root.alloc_dir.join("alloc/data/ours").exists());
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&place.task().join("usr")), 0o755);
    // No mount is in the directories that are deleted, measured and sent.
    assert_eq!(mounts(&place.data.allocs()), 0);
}

#[test]
fn chroot_removal_leaves_host_mounts_unchanged() {
    let Some(place) = TestAlloc::new("chroot_removal_leaves_host_mounts_unchanged") else {
        return;
    };
    let before = mounts(place.temp.path());

    // The remains of an earlier start are removed first.
    place.shown(&place.host(), "/usr").unwrap();
    place.shown(&place.host(), "/usr").unwrap();
    let with_root = mounts(&place.root());
    // A task renames every directory that it can.
    fs::rename(place.root().join("local"), place.root().join("moved")).unwrap();
    remove(&place.root()).unwrap();
    remove(&place.root()).unwrap();

    assert_eq!(with_root, 4, "the root, /alloc, /usr and what is in it");
    assert_eq!(mounts(place.temp.path()), before);
    assert!(place.host_is_whole());
    assert!(!place.root().exists());
}

/// Neither the deletion of the allocation nor a direct deletion of the roots enters a root.
#[tokio::test]
async fn no_deletion_walks_into_a_root() {
    let Some(place) = TestAlloc::new("no_deletion_walks_into_a_root") else {
        return;
    };
    let trash = Trash::with_threads(&place.data.trash(), 1).unwrap();
    let emptied = async || tokio::time::timeout(SOON, trash.emptied()).await.unwrap();
    let file = place.data.alloc(place.alloc_id).shared().join("data/kept");

    place.shown(&place.host(), "/usr").unwrap();
    fs::write(&file, "x").unwrap();
    trash.discard(&place.roots(), "roots").unwrap();
    emptied().await;
    let kept = (place.host_is_whole(), file.exists());
    place.shown(&place.host(), "/usr").unwrap();
    place.data.discard_alloc(&trash, place.alloc_id).unwrap();
    emptied().await;

    assert_eq!(kept, (true, true), "the roots were deleted");
    assert!(place.host_is_whole(), "the allocation was deleted");
    assert_eq!(fs::read_dir(place.data.trash()).unwrap().count(), 0);
    assert!(!place.roots().exists() && !place.task().exists());
    assert_eq!(mounts(&place.data.roots()), 0);
}

/// A task leaves links for the next start. No mount is made at their targets.
#[test]
fn a_link_in_a_place_is_not_followed() {
    let Some(place) = TestAlloc::new("a_link_in_a_place_is_not_followed") else {
        return;
    };
    let outside = place.temp.path().join("outside");
    fs::create_dir_all(outside.join("bin")).unwrap();

    for (link, at) in [("usr", "/usr"), ("opt", "/opt/bin")] {
        symlink(&outside, place.task().join(link)).unwrap();
        let error = place.shown(&place.host(), at).unwrap_err();

        assert!(matches!(error, RootError::Occupied { .. }), "{error}");
        assert!(error.is_final());
    }
    symlink(&outside, place.task().join("link")).unwrap();
    let error = place
        .shown(&place.host().join("file"), "/link")
        .unwrap_err();

    assert!(matches!(error, RootError::Occupied { .. }), "{error}");
    assert_eq!(mounts(&outside), 0);
    assert_eq!(mounts(&place.data.roots()), 0, "half a root is taken away");
}

#[test]
fn chroot_binds_files_and_reports_absent_sources() {
    let Some(place) = TestAlloc::new("chroot_binds_files_and_reports_absent_sources") else {
        return;
    };

    let root = place.shown(&place.host().join("file"), "/a/b").unwrap();
    let text = fs::read_to_string(root.task_dir.join("a/b")).unwrap();
    let absent = place.shown(Path::new("/no/such"), "/a").unwrap().absent;

    assert_eq!(text, "the host's");
    assert_eq!(absent, [Path::new("/no/such")]);
}

/// The data directory, a directory above it, one in it, and a path that is not a file or directory.
#[test]
fn unusable_mount_sources_are_refused() {
    let Some(place) = TestAlloc::new("unusable_mount_sources_are_refused") else {
        return;
    };
    let data = place.data.root().to_owned();
    symlink(&data, place.temp.path().join("link")).unwrap();

    for path in [
        data.clone(),
        place.temp.path().to_owned(),
        data.join("logs"),
        place.temp.path().join("link"),
    ] {
        let error = place.shown(&path, "/usr").unwrap_err();

        assert!(matches!(error, RootError::HoldsData { .. }), "{error}");
        assert!(
            error.to_string().contains(&path.display().to_string()),
            "{error}"
        );
    }
    let error = place.shown(Path::new("/dev/null"), "/null").unwrap_err();
    assert!(matches!(error, RootError::Kind { .. }), "{error}");
    assert_eq!(mounts(&place.data.roots()), 0);
}

/// One process is in the agent's mount namespace, another in one of its own.
#[test]
fn driver_in_other_mount_namespace_gets_no_chroot() {
    const NAME: &str = "driver_in_other_mount_namespace_gets_no_chroot";
    let Some(place) = TestAlloc::new(NAME) else {
        return;
    };
    let script = ["--mount", "--propagation", "private", "sh", "-c"];
    let mut elsewhere = std::process::Command::new("unshare")
        .args(script)
        .arg("echo ready; exec sleep 600")
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut ready = [0; 6];
    let mut words = elsewhere.stdout.take().unwrap();
    io::Read::read_exact(&mut words, &mut ready).unwrap();

    let here = place.shown_to(Some(std::process::id()), &place.host(), "/usr");
    let unseen = place.shown_to(Some(elsewhere.id()), &place.host(), "/usr");
    elsewhere.kill().unwrap();
    elsewhere.wait().unwrap();
    let gone = place.shown_to(Some(elsewhere.id()), &place.host(), "/usr");

    assert!(here.is_ok() && gone.is_ok(), "{here:?} {gone:?}");
    let unseen = unseen.unwrap_err();
    assert!(matches!(unseen, RootError::Unseen { .. }), "{unseen}");
    assert!(!unseen.is_final(), "another life of the driver sees it");
}

#[test]
fn cleaning_takes_roots_away() {
    let Some(place) = TestAlloc::new("cleaning_takes_roots_away") else {
        return;
    };
    place.shown(&place.host(), "/usr").unwrap();

    let removed = crate::clean::run(place.data.root(), false).unwrap();

    let expected = format!("roots of tasks in {}", place.roots().display());
    assert_eq!(removed, [expected]);
    assert_eq!(mounts(&place.data.roots()), 0);
    assert!(place.host_is_whole() && !place.data.roots().exists());
}

#[test]
fn removing_missing_roots_changes_nothing() {
    let temp = tempfile::tempdir().unwrap();

    remove(&temp.path().join("never/web")).unwrap();
    remove_all(&temp.path().join("never")).unwrap();

    assert!(temp.path().exists());
}
