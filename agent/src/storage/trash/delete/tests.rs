use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::time::Duration;

use muster_domain::fixture::recorded::skipped;
use muster_driver::fixture::exchanging;
use rustix::fs::Mode;
use rustix::mount::MountFlags;

use super::*;

/// A trash with one entry, and the directory around it.
struct TestTrash {
    temp: tempfile::TempDir,
}

impl TestTrash {
    fn new() -> Self {
        let temp = tempfile::tempdir().unwrap();
        fs::create_dir_all(temp.path().join("trash/entry")).unwrap();
        Self { temp }
    }

    fn trash(&self) -> PathBuf {
        self.temp.path().join("trash")
    }

    fn entry(&self) -> PathBuf {
        self.trash().join("entry")
    }

    fn delete(&self) -> (DeleteCounts, Result<(), DeleteError>) {
        self.delete_named(c"entry")
    }

    fn delete_named(&self, name: &CStr) -> (DeleteCounts, Result<(), DeleteError>) {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let trash = rustix::fs::open(self.trash(), flags, Mode::empty()).unwrap();
        let (stop, aside) = (AtomicBool::new(false), AtomicU64::new(0));
        Deleter::new(&stop, &aside, &StartGate::new(Duration::ZERO)).delete(trash.as_fd(), name)
    }

    fn left(&self) -> Vec<String> {
        names(&self.trash())
    }
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

#[test]
fn everything_in_a_tree_goes_and_is_counted() {
    let place = TestTrash::new();
    fs::create_dir_all(place.entry().join("a/b")).unwrap();
    fs::write(place.entry().join("a/b/file"), vec![1; 8192]).unwrap();
    fs::write(place.entry().join("a/other"), "").unwrap();
    nix::unistd::mkfifo(&place.entry().join("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    drop(std::os::unix::net::UnixListener::bind(place.entry().join("socket")).unwrap());

    let (deleted, result) = place.delete();

    result.unwrap();
    assert_eq!((deleted.files, deleted.dirs), (4, 3));
    assert_eq!(deleted.inodes(), 7);
    assert!(deleted.bytes >= 8192, "{deleted:?}");
    assert_eq!(place.left(), Vec::<String>::new());
}

#[test]
fn an_entry_may_be_a_file_or_gone() {
    let place = TestTrash::new();
    fs::write(place.trash().join("file"), "x").unwrap();

    place.delete_named(c"file").1.unwrap();
    place.delete_named(c"absent").1.unwrap();

    assert_eq!(place.left(), ["entry"]);
}

#[test]
fn no_link_is_followed() {
    let place = TestTrash::new();
    let outside = place.temp.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("kept"), "x").unwrap();
    symlink(&outside, place.entry().join("link")).unwrap();
    symlink(outside.join("kept"), place.entry().join("file")).unwrap();
    symlink("loop", place.entry().join("loop")).unwrap();
    symlink("../..", place.trash().join("entry-link")).unwrap();

    place.delete().1.unwrap();
    place.delete_named(c"entry-link").1.unwrap();

    assert_eq!(place.left(), Vec::<String>::new());
    assert_eq!(names(&outside), ["kept"]);
}

/// A task that still runs replaces a directory by a link.
#[test]
fn no_race_leads_out_of_the_trash() {
    const TRIES: usize = 100;
    let place = TestTrash::new();
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("kept"), "").unwrap();
    let [dir, link] = ["dir", "link"].map(|name| place.entry().join(name));

    for _ in 0..TRIES {
        fs::create_dir_all(dir.join("deep")).unwrap();
        symlink(outside.path(), &link).unwrap();
        // A deletion that fails while the directory is exchanged succeeds in a retry.
        let _perhaps = exchanging(&dir, &link, || place.delete());
        place.delete().1.unwrap();
        assert!(outside.path().join("kept").exists());
    }

    assert_eq!(names(outside.path()), ["kept"]);
}

/// Bytes of a file with another name are not counted as freed.
#[test]
fn hard_links_leave_the_other_name_alone() {
    let place = TestTrash::new();
    let outside = place.temp.path().join("kept");
    fs::write(&outside, vec![1; 8192]).unwrap();
    fs::hard_link(&outside, place.entry().join("link")).unwrap();

    let (deleted, result) = place.delete();

    result.unwrap();
    assert_eq!((deleted.files, deleted.bytes), (1, 0));
    assert_eq!(fs::read(&outside).unwrap().len(), 8192);
}

/// 5 000 levels: a path to the last one would be 10 000 bytes long, which no system call accepts.
#[test]
fn deep_trees_need_few_descriptors_and_no_stack() {
    let place = TestTrash::new();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let mut dir = rustix::fs::open(place.entry(), flags, Mode::empty()).unwrap();
    for _level in 0..5_000 {
        rustix::fs::mkdirat(&dir, "d", Mode::RWXU).unwrap();
        dir = rustix::fs::openat(&dir, "d", flags, Mode::empty()).unwrap();
    }
    drop(dir);

    let small_stack = std::thread::Builder::new().stack_size(64 << 10);
    let place = small_stack
        .spawn(move || {
            let (mut entries, mut dirs, mut aside) = (0, 0, 0);
            while let Some(name) = place.left().pop() {
                let name = CString::new(name).unwrap();
                let (deleted, result) = place.delete_named(&name);
                result.unwrap();
                entries += 1;
                dirs += deleted.dirs;
                aside += deleted.set_aside;
            }
            assert_eq!(dirs, 5_001);
            assert_eq!((entries, aside), (157, 156));
            place
        })
        .unwrap()
        .join()
        .unwrap();
    assert_eq!(place.left(), Vec::<String>::new());
}

/// More subdirectories and files than are remembered at a time.
#[test]
fn wide_directories_are_read_in_parts() {
    let place = TestTrash::new();
    for at in 0..3_000 {
        fs::create_dir(place.entry().join(format!("dir-{at}"))).unwrap();
        fs::write(place.entry().join(format!("file-{at}")), "").unwrap();
    }

    let (deleted, result) = place.delete();

    result.unwrap();
    assert_eq!((deleted.files, deleted.dirs), (3_000, 3_001));
    assert_eq!(place.left(), Vec::<String>::new());
}

/// A directory of a million entries is deleted with little memory. The entries are names of few files, so that the
/// directory is made quickly.
#[test]
fn a_directory_of_a_million_entries_goes() {
    const FILES: usize = 20;
    const NAMES: usize = 50_000;
    let test = "a_directory_of_a_million_entries_goes";
    let Ok(temp) = tempfile::tempdir_in("/dev/shm") else {
        return skipped(test, "/dev/shm cannot be written");
    };
    let place = TestTrash { temp };
    fs::create_dir_all(place.entry()).unwrap();
    for file in 0..FILES {
        let first = place.entry().join(format!("{file}"));
        fs::write(&first, "x").unwrap();
        for name in 1..NAMES {
            let again = place.entry().join(format!("{file}-{name}"));
            if let Err(error) = fs::hard_link(&first, again) {
                return skipped(test, &format!("so many names cannot be made: {error}"));
            }
        }
    }
    let before = resident_kib();

    let (deleted, result) = place.delete();

    result.unwrap();
    assert_eq!(deleted.files, (FILES * NAMES) as u64);
    assert_eq!(place.left(), Vec::<String>::new());
    let more = resident_kib().saturating_sub(before);
    assert!(more < 16 * 1024, "{more} KiB more than before");
}

/// Kibibytes of this process in memory.
fn resident_kib() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.unwrap().trim().trim_end_matches(" kB");
    number.parse().unwrap()
}

#[test]
fn hostile_names_and_modes_are_no_obstacle() {
    use std::ffi::OsStr;
    let place = TestTrash::new();
    let long = "x".repeat(255);
    let names: [&[u8]; 7] = [
        b"-rf",
        b"new\nline",
        b"\xff\xfe",
        b" ",
        b"*",
        b"...",
        long.as_bytes(),
    ];
    for name in names {
        let dir = place.entry().join(OsStr::from_bytes(name));
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join(OsStr::from_bytes(name)), "").unwrap();
        if is_root() {
            fs::set_permissions(&dir, fs::Permissions::from_mode(0o0)).unwrap();
        }
    }

    place.delete().1.unwrap();

    assert_eq!(place.left(), Vec::<String>::new());
}

#[test]
fn stopped_deletion_is_resumed() {
    let place = TestTrash::new();
    fs::create_dir(place.entry().join("dir")).unwrap();
    fs::write(place.entry().join("dir/file"), "").unwrap();
    let (stop, aside) = (AtomicBool::new(true), AtomicU64::new(0));
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let trash = rustix::fs::open(place.trash(), flags, Mode::empty()).unwrap();

    let (_, result) = Deleter::new(&stop, &aside, &StartGate::new(Duration::ZERO))
        .delete(trash.as_fd(), c"entry");

    assert!(matches!(result, Err(DeleteError::Stopped)), "{result:?}");
    assert!(place.entry().join("dir/file").exists());
    place.delete().1.unwrap();
    assert_eq!(place.left(), Vec::<String>::new());
}

/// Names of directories that an earlier agent set aside may still exist.
#[test]
fn directories_set_aside_do_not_meet() {
    let place = TestTrash::new();
    fs::create_dir(place.trash().join("deep-0")).unwrap();
    let deep: PathBuf = std::iter::repeat_n("d", 40).collect();
    fs::create_dir_all(place.entry().join(deep)).unwrap();

    place.delete().1.unwrap();

    assert_eq!(place.left(), ["deep-0", "deep-1"]);
}

#[test]
fn immutable_files_and_directories_go() {
    let place = TestTrash::new();
    let (dir, file) = (place.entry().join("dir"), place.entry().join("dir/file"));
    fs::create_dir(&dir).unwrap();
    fs::write(&file, "x").unwrap();
    fs::write(dir.join("log"), "x").unwrap();
    let mark = |path: &Path, flag: IFlags| {
        let fd = rustix::fs::open(path, OFlags::RDONLY, Mode::empty()).unwrap();
        let flags = rustix::fs::ioctl_getflags(&fd)?;
        rustix::fs::ioctl_setflags(&fd, flags | flag)
    };
    if let Err(errno) = mark(&file, IFlags::IMMUTABLE) {
        let reason = format!("files cannot be made immutable here: {errno}");
        return skipped("immutable_files_and_directories_go", &reason);
    }
    mark(&dir.join("log"), IFlags::APPEND).unwrap();
    mark(&dir, IFlags::IMMUTABLE).unwrap();
    mark(&place.entry(), IFlags::APPEND).unwrap();

    place.delete().1.unwrap();

    assert_eq!(place.left(), Vec::<String>::new());
}

/// A file system mounted in a tree is never deleted: the mount is detached.
#[test]
fn mounts_are_detached_and_kept() {
    let test = "mounts_are_detached_and_kept";
    if !is_root() {
        return skipped(test, "needs root for mounts");
    }
    let place = TestTrash::new();
    let outside = place.temp.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("kept"), "x").unwrap();
    let (dir, file) = (place.entry().join("a/mount"), place.entry().join("file"));
    fs::create_dir_all(&dir).unwrap();
    fs::write(&file, "").unwrap();
    let bind = |from: &Path, to: &Path| {
        rustix::mount::mount_bind(from, to).inspect_err(|errno| {
            skipped(test, &format!("nothing can be mounted here: {errno}"));
        })
    };
    // Twice at one place, once over a file, and once read-only.
    if bind(&outside, &dir).is_err() {
        return;
    }
    bind(&outside, &dir).unwrap();
    bind(&outside.join("kept"), &file).unwrap();
    let read_only = place.entry().join("a/read-only");
    fs::create_dir(&read_only).unwrap();
    bind(&outside, &read_only).unwrap();
    let flags = MountFlags::BIND | MountFlags::RDONLY;
    rustix::mount::mount_remount(&read_only, flags, "").unwrap();
    assert!(fs::write(read_only.join("new"), "x").is_err());
    // Each mount is in use.
    let busy = [&dir, &read_only].map(|dir| fs::File::open(dir.join("kept")).unwrap());

    let (deleted, result) = place.delete();

    result.unwrap();
    assert_eq!(deleted.mounts, 4);
    assert_eq!(place.left(), Vec::<String>::new());
    assert_eq!(names(&outside), ["kept"]);
    assert_eq!(fs::read_to_string(outside.join("kept")).unwrap(), "x");
    drop(busy);
}

/// The message has the place, the error and a remedy. The rest of the tree is deleted.
#[test]
fn undeletable_entry_is_named_and_rest_is_deleted() {
    let place = TestTrash::new();
    let (stop, aside) = (AtomicBool::new(false), AtomicU64::new(0));
    let stack = [c"entry", c"new\nline"].map(|name| OpenDirFrame {
        fd: rustix::fs::open(place.trash(), OFlags::RDONLY, Mode::empty()).unwrap(),
        name: name.to_owned(),
        subdirs: Vec::new(),
        undeletable: BTreeSet::new(),
        read: false,
        reads: 0,
    });
    let start_gate = StartGate::new(Duration::ZERO);
    let _unused = Deleter::new(&stop, &aside, &start_gate);
    let failure = |what, errno| located(&stack, c"x", StepError { what, errno }).to_string();

    assert_eq!(
        failure("remove", Errno::ROFS),
        "entry/new\\nline/x: remove: Read-only file system (os error 30); the agent tries again, see `lsattr` and `mount` for what may be in the way"
    );
    assert!(failure(DETACH, Errno::INVAL).contains("unmount it with `umount -l`"));
    assert!(failure("remove", Errno::NOTEMPTY).contains("new files appear"));
}
