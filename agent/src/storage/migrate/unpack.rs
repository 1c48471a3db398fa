//! Writes the data from another node below a directory that only this module uses.
//!
//! The received data are not trusted. A name must be one part of a path, or it is refused. Each entry is made through
//! the descriptor of its directory, and no existing entry is opened through a link. Only directories, files and links
//! are made, without set-id bits. The data count against the allocation's disk, and a transfer beyond its limit fails.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

use muster_domain::account::ACCOUNT_ID_MAX;
use muster_driver::beneath::{self, Traversal};
use muster_wire::rpc::{DiskDir, DiskEntry, DiskPiece, DiskSum, FileMeta};
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid};
use rustix::io::Errno;

use super::pack::MODE_BITS;
use crate::storage::disk::{DEPTH_MAX, DiskAmount, DiskLimit};

/// Most bytes of a name that file systems accept.
const NAME_BYTES_MAX: usize = 255;
/// Most bytes of a link's target, with its zero byte (`PATH_MAX`).
const TARGET_BYTES_MAX: usize = 4_096;
/// The least space of a file on a disk, and the step by which it grows, in bytes.
const BLOCK_BYTES: u64 = 4_096;

const DIR: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY);

/// The reason why received data were not written.
#[derive(Debug, thiserror::Error)]
pub(super) enum UnpackError {
    /// The data exceed the allocation's limit.
    #[error(
        "they are more than this allocation may have on disk, {} MiB and {} files; raise ephemeral_disk.size of the group",
        .0.bytes >> 20,
        .0.inodes
    )]
    Exceeded(DiskLimit),
    /// The data do not have the format that a node sends.
    #[error(
        "the other node sent a malformed directory tree: {0}; its agent is of another version, or not to be trusted"
    )]
    Malformed(&'static str),
    /// The disk refuses the data.
    #[error("{name:?} among them cannot be written")]
    Write {
        /// The name of the entry.
        name: String,
        #[source]
        source: io::Error,
    },
}

/// Writes a tree. The tree is complete only if [`Self::finish`] succeeds.
#[derive(Debug)]
pub(super) struct Unpacker {
    staging: OwnedFd,
    limit: DiskLimit,
    used: DiskAmount,
    sum: DiskSum,
    /// The open directories, beginning with the place; empty before the first place.
    open: Vec<Dir>,
    /// The file that is being written, until another entry begins.
    file: Option<File>,
}

#[derive(Debug)]
struct Dir {
    fd: OwnedFd,
    name: CString,
    meta: FileMeta,
}

#[derive(Debug)]
struct File {
    fd: OwnedFd,
    name: CString,
    meta: FileMeta,
    bytes: u64,
}

/// The name of a place in the directory for unpacking.
pub(super) fn staged_name(place: &DiskDir) -> String {
    match place {
        DiskDir::Shared => "shared".to_owned(),
        DiskDir::Local(task) => format!("local.{task}"),
    }
}

impl Unpacker {
    /// Writes into the empty directory `staging`, which only root can enter.
    pub(super) fn new(staging: &Path, limit: DiskLimit) -> io::Result<Self> {
        Ok(Self {
            staging: beneath::open_top(staging, OFlags::RDONLY)?,
            limit,
            used: DiskAmount::default(),
            sum: DiskSum::default(),
            open: Vec::new(),
            file: None,
        })
    }

    /// Writes the next piece.
    ///
    /// # Errors
    ///
    /// [`UnpackError`]; the written data must then not be used.
    pub(super) fn take(&mut self, piece: DiskPiece) -> Result<(), UnpackError> {
        for entry in piece.entries {
            match entry {
                DiskEntry::Data { offset, bytes } => self.data(offset, &bytes)?,
                entry => {
                    self.close_file()?;
                    self.unpack_entry(entry)?;
                }
            }
        }
        Ok(())
    }

    /// Takes in the end of the data and the sender's sum. Returns the sum of the written data.
    ///
    /// # Errors
    ///
    /// [`UnpackError::Malformed`] if data are missing.
    pub(super) fn finish(mut self, sent: DiskSum) -> Result<DiskSum, UnpackError> {
        self.close_file()?;
        if self.open.len() > 1 {
            return Err(UnpackError::Malformed("a directory does not end"));
        }
        let written = DiskSum {
            left: sent.left,
            ..self.sum
        };
        if written != sent {
            return Err(UnpackError::Malformed("a part of it is missing"));
        }
        Ok(written)
    }

    fn unpack_entry(&mut self, entry: DiskEntry) -> Result<(), UnpackError> {
        if let DiskEntry::Enter { meta, .. }
        | DiskEntry::File { meta, .. }
        | DiskEntry::Link { meta, .. } = &entry
            && meta.uid.max(meta.gid) > ACCOUNT_ID_MAX
        {
            // The kernel would give the file to root.
            return Err(UnpackError::Malformed("an owner is not a valid id"));
        }
        match entry {
            DiskEntry::Place(place) => self.begin_place(&place),
            DiskEntry::Enter { name, meta } => self.enter(name, meta),
            DiskEntry::Leave => self.leave_dir(),
            DiskEntry::File { name, meta, bytes } => self.file(name, meta, bytes),
            DiskEntry::Data { offset, bytes } => self.data(offset, &bytes),
            DiskEntry::Link { name, meta, target } => self.link(name, meta, target),
            DiskEntry::Again { name, former } => self.add_hard_link(name, former),
        }
    }

    fn begin_place(&mut self, place: &DiskDir) -> Result<(), UnpackError> {
        if self.open.len() > 1 {
            return Err(UnpackError::Malformed("a directory does not end"));
        }
        let name = one_name(staged_name(place).into_bytes())?;
        let made = make_dir(&self.staging, &name);
        let fd = made.map_err(|errno| write_error(&name, errno))?;
        self.open = vec![Dir {
            fd,
            name,
            meta: FileMeta::default(),
        }];
        Ok(())
    }

    fn enter(&mut self, name: Vec<u8>, meta: FileMeta) -> Result<(), UnpackError> {
        let name = one_name(name)?;
        self.count_inode()?;
        if self.open.len() >= DEPTH_MAX as usize {
            return Err(UnpackError::Malformed(
                "its directories are nested too deep",
            ));
        }
        let made = make_dir(&self.current_dir()?.fd, &name);
        let fd = made.map_err(|errno| write_error(&name, errno))?;
        self.open.push(Dir { fd, name, meta });
        Ok(())
    }

    fn leave_dir(&mut self) -> Result<(), UnpackError> {
        let dir = self.open.pop_if(|_| true);
        let dir = dir.filter(|_| !self.open.is_empty());
        let Dir { fd, name, meta } = dir.ok_or(UnpackError::Malformed(
            "a directory ends that did not begin",
        ))?;
        set_metadata(&fd, meta).map_err(|errno| write_error(&name, errno))
    }

    fn file(&mut self, name: Vec<u8>, meta: FileMeta, bytes: u64) -> Result<(), UnpackError> {
        let name = one_name(name)?;
        self.count_inode()?;
        let (flags, mode) = (OFlags::WRONLY | OFlags::EXCL, Mode::RUSR | Mode::WUSR);
        let made = beneath::create(&self.current_dir()?.fd, &name, flags, mode, Traversal::Dirs);
        let fd = made.map_err(|errno| write_error(&name, errno))?;
        self.file = Some(File {
            fd,
            name,
            meta,
            bytes,
        });
        Ok(())
    }

    fn data(&mut self, offset: u64, bytes: &[u8]) -> Result<(), UnpackError> {
        let stray = UnpackError::Malformed("bytes are in no file, or beyond its end");
        let Some(file) = &self.file else {
            return Err(stray);
        };
        let count = bytes.len() as u64;
        if offset.checked_add(count).is_none_or(|end| end > file.bytes) {
            return Err(stray);
        }
        self.sum.bytes += count;
        self.used.bytes += count.next_multiple_of(BLOCK_BYTES);
        if self.limit.is_exceeded(self.used) {
            return Err(UnpackError::Exceeded(self.limit));
        }
        let mut written = 0;
        while written < bytes.len() {
            let at = offset + written as u64;
            let count = rustix::io::pwrite(&file.fd, &bytes[written..], at)
                .map_err(|errno| write_error(&file.name, errno))?;
            written += count;
        }
        Ok(())
    }

    /// Ends the current file, after its last bytes.
    fn close_file(&mut self) -> Result<(), UnpackError> {
        let Some(File {
            fd,
            name,
            meta,
            bytes,
        }) = self.file.take()
        else {
            return Ok(());
        };
        let closed = rustix::fs::ftruncate(&fd, bytes).and_then(|()| set_metadata(&fd, meta));
        closed.map_err(|errno| write_error(&name, errno))
    }

    fn link(&mut self, name: Vec<u8>, meta: FileMeta, target: Vec<u8>) -> Result<(), UnpackError> {
        let name = one_name(name)?;
        self.count_inode()?;
        let target = CString::new(target).ok();
        let target = target.filter(|it| (1..TARGET_BYTES_MAX).contains(&it.as_bytes().len()));
        let target = target.ok_or(UnpackError::Malformed("a link says nothing, or too much"))?;
        let dir = self.current_dir()?.fd.as_fd();
        let made = || {
            rustix::fs::symlinkat(&target, dir, &name)?;
            let (uid, gid) = (Uid::from_raw(meta.uid), Gid::from_raw(meta.gid));
            let flags = AtFlags::SYMLINK_NOFOLLOW;
            rustix::fs::chownat(dir, &name, Some(uid), Some(gid), flags)?;
            rustix::fs::utimensat(dir, &name, &times(meta), flags)
        };
        made().map_err(|errno| write_error(&name, errno))
    }

    fn add_hard_link(&mut self, name: Vec<u8>, former: Vec<Vec<u8>>) -> Result<(), UnpackError> {
        let name = one_name(name)?;
        self.count_inode()?;
        let mut parts = former
            .into_iter()
            .map(one_name)
            .collect::<Result<Vec<_>, _>>()?;
        let not_there = UnpackError::Malformed("a file's other name is not there");
        let (Some(last), Some(place)) = (parts.pop(), self.open.first()) else {
            return Err(not_there);
        };
        if parts.len() > DEPTH_MAX as usize {
            return Err(not_there);
        }
        let mut dir = None;
        for part in parts {
            let parent = dir.as_ref().unwrap_or(&place.fd);
            match beneath::open(parent, &part, DIR, Traversal::Dirs) {
                Ok(below) => dir = Some(below),
                Err(_) => return Err(not_there),
            }
        }
        let dir = dir.as_ref().unwrap_or(&place.fd);
        let found = rustix::fs::statat(dir, &last, AtFlags::SYMLINK_NOFOLLOW);
        let is_file =
            found.is_ok_and(|it| FileType::from_raw_mode(it.st_mode) == FileType::RegularFile);
        if !is_file {
            return Err(not_there);
        }
        let linked =
            rustix::fs::linkat(dir, &last, &self.current_dir()?.fd, &name, AtFlags::empty());
        linked.map_err(|errno| write_error(&name, errno))
    }

    fn current_dir(&self) -> Result<&Dir, UnpackError> {
        let before = UnpackError::Malformed("something comes before its place");
        self.open.last().ok_or(before)
    }

    fn count_inode(&mut self) -> Result<(), UnpackError> {
        self.sum.inodes += 1;
        self.used.inodes += 1;
        if self.limit.is_exceeded(self.used) {
            return Err(UnpackError::Exceeded(self.limit));
        }
        Ok(())
    }
}

/// Checks that a name is one part of a path, and leads to no other directory.
fn one_name(name: Vec<u8>) -> Result<CString, UnpackError> {
    let leads = matches!(name.as_slice(), b"" | b"." | b"..") || name.contains(&b'/');
    if leads || name.len() > NAME_BYTES_MAX {
        return Err(UnpackError::Malformed("a file name is empty or has a `/`"));
    }
    CString::new(name).map_err(|_zero| UnpackError::Malformed("a file name is empty or has a `/`"))
}

/// Makes and opens a directory that only its owner can enter.
fn make_dir(parent: &OwnedFd, name: &CString) -> Result<OwnedFd, Errno> {
    rustix::fs::mkdirat(parent, name, Mode::RWXU)?;
    beneath::open(parent, name, DIR, Traversal::Dirs)
}

/// Sets the owner, the permissions and the times of a file or directory.
fn set_metadata(fd: &OwnedFd, meta: FileMeta) -> Result<(), Errno> {
    let (uid, gid) = (Uid::from_raw(meta.uid), Gid::from_raw(meta.gid));
    rustix::fs::fchown(fd, Some(uid), Some(gid))?;
    // The mode is set after the owner, because a change of owner clears special bits.
    rustix::fs::fchmod(fd, Mode::from_raw_mode(meta.mode & MODE_BITS))?;
    rustix::fs::futimens(fd, &times(meta))
}

fn times(meta: FileMeta) -> Timestamps {
    let changed = Timespec {
        tv_sec: meta.changed_s,
        tv_nsec: meta.changed_ns.min(999_999_999).into(),
    };
    Timestamps {
        last_access: changed,
        last_modification: changed,
    }
}

fn write_error(name: &CString, errno: Errno) -> UnpackError {
    UnpackError::Write {
        name: name.to_string_lossy().into_owned(),
        source: errno.into(),
    }
}
