//! Opens files that a task, or another process with access to the task's directories, can change at any moment.
//!
//! `openat2(2)` resolves a name beneath an open directory, in one step of the kernel. No process can put a link in
//! place between a check and an open. The first directory belongs to the agent and is opened by its path. The agent
//! and the native driver open every path that tasks can reach through this module. `cargo xtask tidy` enforces that
//! (`task-open`, `task-path`). The `paths` module of the native driver adds the checks of file kinds and of the node's
//! allowances.
//!
//! Deliberately absent: the use of an opened file. The caller uses the file by its descriptor, never by its path
//! again.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::path::Arg;

/// The kinds of places that a path may pass on the way to a name. The path never leaves its first directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traversal {
    /// Only directories of the same mount.
    Dirs,
    Mounts,
    /// Directories, mounts, and links that stay beneath the first directory.
    Links,
}

impl Traversal {
    fn resolve(self) -> ResolveFlags {
        let beneath = ResolveFlags::BENEATH.union(ResolveFlags::NO_MAGICLINKS);
        match self {
            Self::Dirs => beneath | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV,
            Self::Mounts => beneath | ResolveFlags::NO_SYMLINKS,
            Self::Links => beneath,
        }
    }
}

/// Opens `path` beneath `dir`. The file is closed on exec.
///
/// # Errors
///
/// The error of the kernel. Among others, it is `ELOOP` for a link. It is `EXDEV` for a path out of `dir` or, with
/// [`Traversal::Dirs`], for a mount.
pub fn open(
    dir: impl AsFd,
    path: impl Arg,
    flags: OFlags,
    through: Traversal,
) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::CLOEXEC;
    openat2(dir, path, flags, Mode::empty(), through)
}

/// Opens `path` beneath `dir`, and creates a file with `mode` if nothing exists there.
///
/// # Errors
///
/// The error of the kernel: `EEXIST` if a file or link exists and `flags` have [`OFlags::EXCL`].
pub fn create(
    dir: impl AsFd,
    path: impl Arg,
    flags: OFlags,
    mode: Mode,
    through: Traversal,
) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::CREATE | OFlags::CLOEXEC;
    openat2(dir, path, flags, mode, through)
}

/// Attempts of one open. A rename or a mount anywhere on the machine during a lookup of `..` or of a link fails an
/// attempt.
const TRIES_MAX: usize = 64;

/// Tries again while the kernel reports a race with a rename (`EAGAIN`), for a bounded number of times.
fn openat2(
    dir: impl AsFd,
    path: impl Arg,
    flags: OFlags,
    mode: Mode,
    through: Traversal,
) -> Result<OwnedFd, Errno> {
    let dir = dir.as_fd();
    path.into_with_c_str(|path| {
        retried(|| rustix::fs::openat2(dir, path, flags, mode, through.resolve()))
    })
}

fn retried<T>(mut open: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    for _try in 1..TRIES_MAX {
        match open() {
            Err(Errno::AGAIN) => {}
            opened => return opened,
        }
    }
    open()
}

/// The arguments of an open that a child makes between clone and exec, where the child cannot use the library. The
/// arguments are a directory, a path with a zero byte at its end, [`Self::how`] and the length of `how`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenCall {
    /// `struct open_how`: flags, mode, resolve.
    pub how: [u8; 24],
}

impl OpenCall {
    /// The number of the system call.
    pub const NUMBER: i64 = libc::SYS_openat2;

    /// Returns the call that does the same as [`open()`].
    pub fn beneath(flags: OFlags, through: Traversal) -> Self {
        Self::of(flags, through.resolve())
    }

    /// Returns a call that opens a path anywhere and follows every link except those of /proc. It is for a root that
    /// only the driver has written.
    pub fn trusting(flags: OFlags) -> Self {
        Self::of(flags, ResolveFlags::NO_MAGICLINKS)
    }

    fn of(flags: OFlags, resolve: ResolveFlags) -> Self {
        let flags = u64::from((flags | OFlags::CLOEXEC).bits());
        let mut how = [0; 24];
        how[..8].copy_from_slice(&flags.to_ne_bytes());
        how[16..].copy_from_slice(&resolve.bits().to_ne_bytes());
        Self { how }
    }
}

/// Opens a directory as the start of later lookups: a directory of the agent, or a task's directory inside such a one.
/// The last part of `path` must not be a link.
///
/// # Errors
///
/// The error of the kernel: `ENOTDIR` also for a link.
pub fn open_top(path: impl Arg, access: OFlags) -> Result<OwnedFd, Errno> {
    let flags = access | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(CWD, path, flags, Mode::empty())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::time::{Duration, Instant};

    use tempfile::TempDir;

    use super::*;
    use crate::fixture::exchanging;

    const ALL: [Traversal; 3] = [Traversal::Dirs, Traversal::Mounts, Traversal::Links];

    /// Makes `top/inside/file` next to `outside/file`, and opens `top`.
    fn scene() -> (TempDir, OwnedFd) {
        let temp = tempfile::tempdir().unwrap();
        for dir in ["top/inside", "outside"] {
            fs::create_dir_all(temp.path().join(dir)).unwrap();
        }
        fs::write(temp.path().join("top/inside/file"), "mine").unwrap();
        fs::write(temp.path().join("outside/file"), "yours").unwrap();
        let top = open_top(temp.path().join("top"), OFlags::RDONLY).unwrap();
        (temp, top)
    }

    fn text(file: OwnedFd) -> String {
        std::io::read_to_string(fs::File::from(file)).unwrap()
    }

    #[test]
    fn paths_beneath_the_root_are_opened() {
        let (_temp, top) = scene();

        for through in ALL {
            let found = open(&top, "inside/file", OFlags::RDONLY, through).unwrap();
            assert_eq!(text(found), "mine", "{through:?}");
        }
    }

    #[test]
    fn ways_out_are_refused() {
        let (temp, top) = scene();
        let absolute = temp.path().join("outside/file");
        symlink(&absolute, temp.path().join("top/absolute")).unwrap();
        symlink("../outside", temp.path().join("top/up")).unwrap();
        symlink("/proc/self/root", temp.path().join("top/magic")).unwrap();

        for through in ALL {
            for path in [
                "../outside/file",
                "inside/../../outside/file",
                "absolute",
                "up/file",
                "magic",
                absolute.to_str().unwrap(),
            ] {
                let found = open(&top, path, OFlags::RDONLY, through);
                let is_refused = matches!(found, Err(Errno::XDEV | Errno::LOOP));
                assert!(is_refused, "{through:?} {path}: {found:?}");
            }
        }
    }

    /// A rename elsewhere must not fail an open, and many renames must not make an open hang.
    #[test]
    fn open_race_is_retried_limited_times() {
        for (races, opened) in [
            (0, Ok(())),
            (TRIES_MAX - 1, Ok(())),
            (TRIES_MAX, Err(Errno::AGAIN)),
        ] {
            let mut tries = 0;
            let found = retried(|| {
                tries += 1;
                if tries > races {
                    Ok(())
                } else {
                    Err(Errno::AGAIN)
                }
            });
            assert_eq!(found, opened, "{races}");
            assert!(tries <= TRIES_MAX, "{tries}");
        }
        assert_eq!(retried(|| Err::<(), _>(Errno::XDEV)), Err(Errno::XDEV));
    }

    #[test]
    fn links_beneath_are_followed_on_request() {
        let (temp, top) = scene();
        symlink("inside", temp.path().join("top/link")).unwrap();

        let followed = ALL.map(|through| open(&top, "link/file", OFlags::RDONLY, through).is_ok());

        assert_eq!(followed, [false, false, true]);
    }

    #[test]
    fn mounts_are_crossed_on_request() {
        let root = open_top("/", OFlags::RDONLY).unwrap();

        let passed =
            ALL.map(|through| open(&root, "proc/version", OFlags::RDONLY, through).is_ok());

        assert_eq!(passed, [false, true, true]);
    }

    #[test]
    fn existing_links_and_files_are_not_overwritten() {
        let (temp, top) = scene();
        let target = temp.path().join("outside/new");
        symlink(&target, temp.path().join("top/link")).unwrap();
        let mode = Mode::RUSR | Mode::WUSR;

        for through in ALL {
            for path in ["link", "inside/file"] {
                let flags = OFlags::WRONLY | OFlags::EXCL;
                let made = create(&top, path, flags, mode, through);
                assert!(
                    matches!(made, Err(Errno::EXIST)),
                    "{through:?} {path}: {made:?}"
                );
            }
        }
        assert!(!target.exists());
        assert_eq!(
            fs::read(temp.path().join("top/inside/file")).unwrap(),
            b"mine"
        );
    }

    /// The fields of openat2(2), in the order of the kernel's structure.
    #[test]
    fn open_how_has_expected_flags_and_resolve() {
        let flags = OFlags::PATH | OFlags::NOFOLLOW;
        let words = |call: OpenCall| {
            let word = |at: usize| {
                let bytes = call.how[at * 8..][..8].try_into().unwrap();
                u64::from_ne_bytes(bytes)
            };
            [word(0), word(1), word(2)]
        };
        let opened = (libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC).unsigned_abs();
        let links = libc::RESOLVE_NO_SYMLINKS | libc::RESOLVE_NO_MAGICLINKS;

        let beneath = words(OpenCall::beneath(flags, Traversal::Mounts));
        let trusting = words(OpenCall::trusting(flags));

        let inside = links | libc::RESOLVE_BENEATH;
        assert_eq!(beneath, [opened.into(), 0, inside]);
        assert_eq!(trusting, [opened.into(), 0, libc::RESOLVE_NO_MAGICLINKS]);
    }

    #[test]
    fn a_way_does_not_begin_at_a_link() {
        let (temp, _top) = scene();
        symlink("outside", temp.path().join("link")).unwrap();

        let begun = open_top(temp.path().join("link"), OFlags::RDONLY);

        assert!(
            matches!(begun, Err(Errno::NOTDIR | Errno::LOOP)),
            "{begun:?}"
        );
    }

    /// A second thread exchanges a directory and a link to the outside as fast as it can.
    #[test]
    fn a_race_is_never_won() {
        const ENOUGH: usize = 1_000;
        let (temp, top) = scene();
        let (inside, link) = (
            temp.path().join("top/inside"),
            temp.path().join("top/other"),
        );
        symlink(temp.path().join("outside"), &link).unwrap();
        let deadline = Instant::now() + Duration::from_secs(30);
        let (mut mine, mut yours, mut refused) = (0, 0, 0);

        exchanging(&inside, &link, || {
            while (mine < ENOUGH || refused < ENOUGH) && yours == 0 && Instant::now() < deadline {
                match open(&top, "inside/file", OFlags::RDONLY, Traversal::Dirs).map(text) {
                    Ok(text) if text == "mine" => mine += 1,
                    Ok(_) => yours += 1,
                    Err(_) => refused += 1,
                }
            }
        });

        assert_eq!(yours, 0);
        assert!(mine >= ENOUGH && refused >= ENOUGH, "{mine} {refused}");
    }
}
