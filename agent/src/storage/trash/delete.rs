//! Deletes one tree by directory descriptors, without recursion and without following links.
//!
//! Every name is looked up beneath an open directory of the tree, without following links or crossing mounts. So
//! nothing outside can be reached, even if names are swapped meanwhile. Directories deeper than [`DEPTH_MAX`] are moved
//! up into the trash, where they are entries of their own. So descriptors stay few, and after a crash the next read of
//! the trash finds every remaining entry. Mounts are detached. Immutable and append-only flags are cleared.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::fmt::Write as _;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use muster_driver::beneath::{self, Traversal};
use rustix::fs::{AtFlags, FileType, IFlags, OFlags, RawDir, RenameFlags, SeekFrom, StatxFlags};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use super::limits::{
    DEPTH_MAX, MESSAGE_BYTES_MAX, MOUNTS_MAX, READ_BYTES, READ_TRIES_MAX, SUBDIRS_MAX,
    UNDELETABLE_MAX,
};
use super::start_gate::{StartGate, StartWait};

/// Counts of one deletion or several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeleteCounts {
    /// Files, links, FIFOs, sockets, devices.
    pub files: u64,
    pub dirs: u64,
    /// Bytes on disk of files that had no other name.
    pub bytes: u64,
    /// Mounts that were detached.
    pub mounts: u64,
    /// Directories that were too deep and were moved up.
    pub set_aside: u64,
}

impl DeleteCounts {
    /// Names of any kind. Each is an inode, except for files with several names.
    pub fn inodes(&self) -> u64 {
        self.files + self.dirs
    }

    pub(super) fn add(&mut self, other: Self) {
        let Self {
            files,
            dirs,
            bytes,
            mounts,
            set_aside,
        } = other;
        self.files += files;
        self.dirs += dirs;
        self.bytes += bytes;
        self.mounts += mounts;
        self.set_aside += set_aside;
    }
}

/// The reason why a part of a tree is left. All other parts are deleted.
#[derive(Clone, Debug, thiserror::Error)]
pub enum DeleteError {
    /// The agent stops; the next agent continues.
    #[error("the agent stops")]
    Stopped,
    /// A file system is mounted in the tree.
    #[error(
        "{at}: a file system is mounted there and cannot be detached; unmount it with `umount -l`: {source}"
    )]
    Mounted {
        /// The path, cut to the message's length.
        at: String,
        /// The error of the kernel.
        #[source]
        source: Errno,
    },
    /// A process keeps creating files there.
    #[error("{at}: new files appear as fast as they are deleted; find who makes them with `fuser`")]
    Filled {
        /// The path, cut to the message's length.
        at: String,
    },
    #[error(
        "{at}: {what}: {source}; the agent tries again, see `lsattr` and `mount` for what may be in the way"
    )]
    Refused {
        /// The path, cut to the message's length.
        at: String,
        what: &'static str,
        /// The error of the kernel.
        #[source]
        source: Errno,
    },
}

/// A failed step, before its path is known.
struct StepError {
    what: &'static str,
    errno: Errno,
}

fn failed(what: &'static str) -> impl Fn(Errno) -> StepError {
    move |errno| StepError { what, errno }
}

/// The name of the step that detaches a mount.
const DETACH: &str = "detach";

/// A directory on the way down.
struct OpenDirFrame {
    fd: OwnedFd,
    name: CString,
    subdirs: Vec<CString>,
    /// Entries that cannot be deleted.
    undeletable: BTreeSet<CString>,
    /// Whether the directory was read to its end.
    read: bool,
    reads: u32,
}

/// Deletes trees, one after the other, with one buffer.
pub(super) struct Deleter<'a> {
    stop: &'a AtomicBool,
    /// The counter that gives set-aside directories distinct names.
    set_aside_counter: &'a AtomicU64,
    start_wait: StartWait<'a>,
    buffer: Vec<MaybeUninit<u8>>,
    deleted: DeleteCounts,
}

impl<'a> Deleter<'a> {
    pub(super) fn new(
        stop: &'a AtomicBool,
        set_aside_counter: &'a AtomicU64,
        start_gate: &'a StartGate,
    ) -> Self {
        Self {
            stop,
            set_aside_counter,
            start_wait: StartWait::new(start_gate),
            buffer: vec![MaybeUninit::uninit(); READ_BYTES],
            deleted: DeleteCounts::default(),
        }
    }

    /// Deletes `name` in `root`, of any kind. Directories deeper than [`DEPTH_MAX`] are in `root` afterwards.
    pub(super) fn delete(
        &mut self,
        root: BorrowedFd<'_>,
        name: &CStr,
    ) -> (DeleteCounts, Result<(), DeleteError>) {
        self.deleted = DeleteCounts::default();
        let result = self.tree(root, name);
        (std::mem::take(&mut self.deleted), result)
    }

    fn tree(&mut self, root: BorrowedFd<'_>, name: &CStr) -> Result<(), DeleteError> {
        let mut stack: Vec<OpenDirFrame> = Vec::with_capacity(DEPTH_MAX);
        // The first failure is reported. The rest of the tree is still deleted.
        let mut first = None;
        match self.enter(root, name) {
            Ok(Some(frame)) => stack.push(frame),
            Ok(None) => {}
            Err(failure) => return Err(located(&stack, name, failure)),
        }
        loop {
            let deep = stack.len() >= DEPTH_MAX;
            let Some(top) = stack.last_mut() else { break };
            self.start_wait.wait_for_starts(self.stop);
            if self.stop.load(Ordering::Relaxed) {
                return Err(DeleteError::Stopped);
            }
            let step = if let Some(below) = top.subdirs.pop() {
                let entered = if self.is_removed_empty(top.fd.as_fd(), &below) {
                    Ok(None)
                } else if deep {
                    self.set_aside(top.fd.as_fd(), &below, root).map(|()| None)
                } else {
                    self.enter(top.fd.as_fd(), &below)
                };
                match entered {
                    Ok(frame) => {
                        stack.extend(frame);
                        Ok(())
                    }
                    Err(failure) => Err((below, failure)),
                }
            } else if !top.read {
                top.reads += 1;
                self.read(top)
            } else {
                self.leave(root, &mut stack)
            };
            if let Err((name, failure)) = step {
                first.get_or_insert_with(|| located(&stack, &name, failure));
                if let Some(top) = stack.last_mut() {
                    top.undeletable.insert(name);
                }
            }
        }
        first.map_or(Ok(()), Err)
    }

    /// Removes a directory if it is empty, as most directories of an allocation are. Reading it to find that out costs
    /// five calls. Other obstacles show when the directory is opened.
    fn is_removed_empty(&mut self, parent: BorrowedFd<'_>, name: &CStr) -> bool {
        let removed = rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR).is_ok();
        self.deleted.dirs += u64::from(removed);
        removed
    }

    /// Opens a directory; anything else is unlinked. `None` if it is gone.
    fn enter(
        &mut self,
        parent: BorrowedFd<'_>,
        name: &CStr,
    ) -> Result<Option<OpenDirFrame>, StepError> {
        for _mount in 0..=MOUNTS_MAX {
            match open_dir(parent, name) {
                Ok(fd) => {
                    return Ok(Some(OpenDirFrame {
                        fd,
                        name: name.to_owned(),
                        subdirs: Vec::new(),
                        undeletable: BTreeSet::new(),
                        read: false,
                        reads: 0,
                    }));
                }
                Err(Errno::NOENT) => return Ok(None),
                Err(Errno::XDEV) => self.detach(parent, name)?,
                Err(Errno::NOTDIR | Errno::LOOP) => {
                    self.unlink(parent, name, AtFlags::empty())?;
                    self.deleted.files += 1;
                    return Ok(None);
                }
                Err(errno) => return Err(failed("open")(errno)),
            }
        }
        Err(failed(DETACH)(Errno::BUSY))
    }

    /// Reads the next part of a directory, deletes its files and queues its subdirectories.
    fn read(&mut self, top: &mut OpenDirFrame) -> Result<(), (CString, StepError)> {
        let at = |errno| (c".".to_owned(), failed("read")(errno));
        rustix::fs::seek(&top.fd, SeekFrom::Start(0)).map_err(at)?;
        // The buffer is taken out of `self`, so that deletions can be counted meanwhile.
        let mut buffer = std::mem::take(&mut self.buffer);
        let result = self
            .read_into(&mut buffer, top)
            .map_err(|failure| match failure {
                (Some(name), failure) => (name, failure),
                (None, failure) => (c".".to_owned(), failure),
            });
        self.buffer = buffer;
        result
    }

    fn read_into(
        &mut self,
        buffer: &mut [MaybeUninit<u8>],
        top: &mut OpenDirFrame,
    ) -> Result<(), (Option<CString>, StepError)> {
        let mut entries = RawDir::new(top.fd.as_fd(), buffer);
        while let Some(entry) = entries.next() {
            let entry = match entry {
                Ok(entry) => entry,
                // Another process removed the directory itself.
                Err(Errno::NOENT) => break,
                Err(errno) => {
                    top.read = true;
                    return Err((None, failed("read")(errno)));
                }
            };
            let name = entry.file_name();
            if name == c"." || name == c".." || top.undeletable.contains(name) {
                continue;
            }
            if entry.file_type() == FileType::Directory {
                top.subdirs.push(name.to_owned());
                if top.subdirs.len() >= SUBDIRS_MAX {
                    return Ok(());
                }
                continue;
            }
            self.start_wait.wait_for_starts(self.stop);
            if self.stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            let bytes = if entry.file_type() == FileType::RegularFile {
                bytes_of(top.fd.as_fd(), name)
            } else {
                0
            };
            match self.unlink(top.fd.as_fd(), name, AtFlags::empty()) {
                Ok(()) => {
                    self.deleted.files += 1;
                    self.deleted.bytes += bytes;
                }
                Err(StepError {
                    errno: Errno::ISDIR,
                    ..
                }) => top.subdirs.push(name.to_owned()),
                Err(failure) => {
                    let undeletable = name.to_owned();
                    top.read = top.undeletable.len() >= UNDELETABLE_MAX;
                    return Err((Some(undeletable), failure));
                }
            }
        }
        top.read = true;
        Ok(())
    }

    /// Removes the directory on top, which was read to its end.
    fn leave(
        &mut self,
        root: BorrowedFd<'_>,
        stack: &mut Vec<OpenDirFrame>,
    ) -> Result<(), (CString, StepError)> {
        let Some(mut top) = stack.pop() else {
            return Ok(());
        };
        let parent = stack.last().map_or(root, |frame| frame.fd.as_fd());
        if !top.undeletable.is_empty() {
            // The failure was reported already; the directory above cannot be removed either.
            if let Some(above) = stack.last_mut() {
                above.undeletable.insert(top.name);
            }
            return Ok(());
        }
        match self.unlink(parent, &top.name, AtFlags::REMOVEDIR) {
            Ok(()) => {
                self.deleted.dirs += 1;
                Ok(())
            }
            Err(StepError {
                errno: Errno::NOTEMPTY | Errno::EXIST,
                ..
            }) if top.reads < READ_TRIES_MAX => {
                top.read = false;
                stack.push(top);
                Ok(())
            }
            Err(failure) => Err((top.name, failure)),
        }
    }

    /// Unlinks a name, after removing obstacles.
    fn unlink(
        &mut self,
        parent: BorrowedFd<'_>,
        name: &CStr,
        flags: AtFlags,
    ) -> Result<(), StepError> {
        let mut cleared = false;
        for _mount in 0..=MOUNTS_MAX {
            match rustix::fs::unlinkat(parent, name, flags) {
                Ok(()) | Err(Errno::NOENT) => return Ok(()),
                Err(Errno::BUSY) => self.detach(parent, name)?,
                Err(Errno::PERM) if !cleared => {
                    cleared = true;
                    clear_flags(parent, name);
                }
                Err(errno) => return Err(failed("remove")(errno)),
            }
        }
        Err(failed(DETACH)(Errno::BUSY))
    }

    /// Moves a directory that is too deep up into the trash.
    fn set_aside(
        &mut self,
        parent: BorrowedFd<'_>,
        name: &CStr,
        root: BorrowedFd<'_>,
    ) -> Result<(), StepError> {
        let mut cleared = false;
        let mut mounts = 0;
        loop {
            let number = self.set_aside_counter.fetch_add(1, Ordering::Relaxed);
            let deep_name = format!("deep-{number}");
            match rustix::fs::renameat_with(
                parent,
                name,
                root,
                deep_name.as_str(),
                RenameFlags::NOREPLACE,
            ) {
                Ok(()) => {
                    self.deleted.set_aside += 1;
                    return Ok(());
                }
                Err(Errno::NOENT) => return Ok(()),
                // The directory is from an earlier agent.
                Err(Errno::EXIST) => {}
                Err(Errno::BUSY | Errno::XDEV) if mounts < MOUNTS_MAX => {
                    mounts += 1;
                    self.detach(parent, name)?;
                }
                Err(Errno::PERM) if !cleared => {
                    cleared = true;
                    clear_flags(parent, name);
                }
                Err(errno) => return Err(failed("move up")(errno)),
            }
        }
    }

    /// Detaches a mount at `name`. Processes that use it keep it, but the tree no longer contains it.
    fn detach(&mut self, parent: BorrowedFd<'_>, name: &CStr) -> Result<(), StepError> {
        let flags = UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
        rustix::mount::unmount(path_of(parent, name), flags).map_err(failed(DETACH))?;
        self.deleted.mounts += 1;
        Ok(())
    }
}

/// Opens a directory in the tree, without following a link or crossing a mount.
fn open_dir(parent: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd, Errno> {
    beneath::open(
        parent,
        name,
        OFlags::RDONLY | OFlags::DIRECTORY,
        Traversal::Dirs,
    )
}

/// Returns a path for `umount2(2)`, which takes no descriptor. Its last part is looked up in the open directory.
fn path_of(parent: BorrowedFd<'_>, name: &CStr) -> PathBuf {
    let name = std::ffi::OsStr::from_bytes(name.to_bytes());
    PathBuf::from(format!("/proc/self/fd/{}", parent.as_raw_fd())).join(name)
}

/// Clears the flags that prevent the removal of `name`. A failure shows when the deletion is tried again.
pub(super) fn clear_flags(parent: BorrowedFd<'_>, name: &CStr) {
    clear_flags_of(parent);
    let Ok(stat) = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) else {
        return;
    };
    // Only files and directories have flags, and opening a device could have side effects.
    if matches!(
        FileType::from_raw_mode(stat.st_mode),
        FileType::RegularFile | FileType::Directory
    ) {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        if let Ok(fd) = beneath::open(parent, name, flags, Traversal::Dirs) {
            clear_flags_of(fd.as_fd());
        }
    }
}

fn clear_flags_of(fd: BorrowedFd<'_>) {
    let kept = IFlags::IMMUTABLE | IFlags::APPEND;
    if let Ok(flags) = rustix::fs::ioctl_getflags(fd)
        && flags.intersects(kept)
    {
        // The caller retries and reports the kernel's error of the retry.
        let _again = rustix::fs::ioctl_setflags(fd, flags.difference(kept));
    }
}

/// Bytes that become free when this name is removed; 0 if the file has other names.
fn bytes_of(parent: BorrowedFd<'_>, name: &CStr) -> u64 {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::STATX_DONT_SYNC;
    let stat = rustix::fs::statx(parent, name, flags, StatxFlags::BLOCKS | StatxFlags::NLINK);
    match stat {
        Ok(stat) if stat.stx_nlink == 1 => stat.stx_blocks * 512,
        Ok(_) | Err(_) => 0,
    }
}

fn located(stack: &[OpenDirFrame], name: &CStr, failure: StepError) -> DeleteError {
    let mut at = String::new();
    let names = stack.iter().map(|frame| frame.name.as_c_str());
    for part in names.chain([name]) {
        let separator = if at.is_empty() { "" } else { "/" };
        // Writing to a string cannot fail.
        let _written = write!(at, "{separator}{}", part.to_string_lossy().escape_debug());
        if at.len() > MESSAGE_BYTES_MAX {
            let end = at.floor_char_boundary(MESSAGE_BYTES_MAX);
            at.truncate(end);
            at.push('…');
            break;
        }
    }
    let StepError { what, errno } = failure;
    match errno {
        _ if what == DETACH => DeleteError::Mounted { at, source: errno },
        Errno::NOTEMPTY | Errno::EXIST => DeleteError::Filled { at },
        source => DeleteError::Refused { at, what, source },
    }
}

#[cfg(test)]
mod tests;
