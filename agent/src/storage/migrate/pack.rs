//! Reads the data for another node by a walk over `alloc/data` and the `local` directories of tasks.
//!
//! Every directory and file is opened beneath its parent, without following links or crossing mounts, as everywhere
//! below an allocation. Extended attributes, including the capabilities of files, and set-id bits are not sent.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use muster_driver::beneath::{self, Traversal};
use muster_wire::limits::DISK_PIECE_BYTES_MAX;
use muster_wire::rpc::{DiskDir, DiskEntry, DiskPiece, DiskSum, FileMeta};
use rustix::fs::{AtFlags, FileType, OFlags, RawDir, SeekFrom, Statx, StatxFlags};
use rustix::io::Errno;

use crate::limits::{DISK_DATA_BYTES, LINKED_FILES_MAX};
use crate::storage::disk::{DEPTH_MAX, READ_BYTES};

/// The permission bits that are sent, which include neither set-id bit.
pub(super) const MODE_BITS: u32 = 0o1777;

const READ: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK);

/// The reason why the data were not read to their end.
#[derive(Debug, thiserror::Error)]
pub(super) enum PackError {
    #[error(
        "its directories are not on this node any more: they were collected, or moved to another allocation"
    )]
    Nothing,
    /// An entry cannot be read.
    #[error("{} cannot be read", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The tree has directories that were too deep to open.
    #[error("{} has directories that are nested more than {DEPTH_MAX} times", path.display())]
    TooDeep { path: PathBuf },
    #[error("the requester has gone")]
    Unwanted,
}

/// Receives pieces; returns false if the receiver has gone.
pub(super) type Sink<'a> = dyn FnMut(DiskPiece) -> bool + 'a;

/// Sends the content of the directories of the allocation at `alloc`: those of `tasks` and the shared one.
pub(super) fn pack(
    alloc: &Path,
    tasks: &[String],
    sink: &mut Sink<'_>,
) -> Result<DiskSum, PackError> {
    let root = match beneath::open_top(alloc, OFlags::RDONLY) {
        Err(Errno::NOENT) => return Err(PackError::Nothing),
        root => root.map_err(|errno| read_error(alloc.to_owned(), errno))?,
    };
    let mut packer = Packer {
        piece: DiskPiece::default(),
        bytes: 0,
        sum: DiskSum::default(),
        sink,
    };
    let locals = tasks.iter().map(|task| DiskDir::Local(task.clone()));
    let mut found = false;
    for place in std::iter::once(DiskDir::Shared).chain(locals) {
        let path = place_path(&place);
        let flags = READ | OFlags::DIRECTORY;
        let dir = match beneath::open(&root, &path, flags, Traversal::Dirs) {
            // The directory was moved away, or a task replaced it.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => continue,
            dir => dir.map_err(|errno| read_error(alloc.join(&path), errno))?,
        };
        found = true;
        packer.push(DiskEntry::Place(place))?;
        let own = stat(dir.as_fd(), c"").map_err(|errno| read_error(alloc.join(&path), errno))?;
        let mut walk = DirWalk {
            packer: &mut packer,
            at: alloc.join(&path),
            names: Vec::new(),
            device: (own.stx_dev_major, own.stx_dev_minor),
            linked: HashMap::new(),
            buffer: vec![MaybeUninit::uninit(); READ_BYTES],
        };
        walk.run(dir)?;
    }
    if !found {
        return Err(PackError::Nothing);
    }
    packer.flush()?;
    Ok(packer.sum)
}

/// The path of a place below the directory of its allocation.
pub(super) fn place_path(place: &DiskDir) -> PathBuf {
    match place {
        DiskDir::Shared => PathBuf::from("alloc/data"),
        DiskDir::Local(task) => Path::new(task).join("local"),
    }
}

fn read_error(path: PathBuf, errno: Errno) -> PackError {
    let source = errno.into();
    PackError::Read { path, source }
}

fn stat(dir: BorrowedFd<'_>, name: &CStr) -> Result<Statx, Errno> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::EMPTY_PATH;
    rustix::fs::statx(dir, name, flags, StatxFlags::BASIC_STATS)
}

fn meta(found: &Statx) -> FileMeta {
    FileMeta {
        uid: found.stx_uid,
        gid: found.stx_gid,
        mode: u32::from(found.stx_mode) & MODE_BITS,
        changed_s: found.stx_mtime.tv_sec,
        changed_ns: found.stx_mtime.tv_nsec,
    }
}

/// Collects steps into pieces.
struct Packer<'a, 'b> {
    piece: DiskPiece,
    bytes: u64,
    sum: DiskSum,
    sink: &'a mut Sink<'b>,
}

impl Packer<'_, '_> {
    fn push(&mut self, entry: DiskEntry) -> Result<(), PackError> {
        let cost = entry.cost();
        if self.bytes + cost > DISK_PIECE_BYTES_MAX as u64 {
            self.flush()?;
        }
        match &entry {
            DiskEntry::Enter { .. }
            | DiskEntry::File { .. }
            | DiskEntry::Link { .. }
            | DiskEntry::Again { .. } => self.sum.inodes += 1,
            DiskEntry::Data { bytes, .. } => self.sum.bytes += bytes.len() as u64,
            DiskEntry::Place(_) | DiskEntry::Leave => {}
        }
        self.bytes += cost;
        self.piece.entries.push(entry);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), PackError> {
        self.bytes = 0;
        let piece = std::mem::take(&mut self.piece);
        if piece.entries.is_empty() || (self.sink)(piece) {
            return Ok(());
        }
        Err(PackError::Unwanted)
    }
}

/// The walk over one place.
struct DirWalk<'a, 'b, 'c> {
    packer: &'a mut Packer<'b, 'c>,
    at: PathBuf,
    /// The path from the place to the directory that is being read.
    names: Vec<Vec<u8>>,
    device: (u32, u32),
    /// The first path of each file with several names, by inode.
    linked: HashMap<u64, Vec<Vec<u8>>>,
    buffer: Vec<MaybeUninit<u8>>,
}

/// An open directory, and its subdirectories that are still to be read.
struct OpenDir {
    dir: OwnedFd,
    subdirs: Vec<CString>,
}

impl DirWalk<'_, '_, '_> {
    fn run(&mut self, place: OwnedFd) -> Result<(), PackError> {
        let mut levels = vec![self.send_dir(place)?];
        while let Some(level) = levels.last_mut() {
            let Some(name) = level.subdirs.pop() else {
                levels.pop();
                if self.names.pop().is_some() {
                    self.packer.push(DiskEntry::Leave)?;
                }
                continue;
            };
            let flags = READ | OFlags::DIRECTORY;
            let dir = beneath::open(&level.dir, &name, flags, Traversal::Dirs);
            let dir = dir.map_err(|errno| self.read_error(&name, errno))?;
            if levels.len() >= DEPTH_MAX as usize {
                let path = self.at.clone();
                return Err(PackError::TooDeep { path });
            }
            let own = stat(dir.as_fd(), c"").map_err(|errno| self.read_error(&name, errno))?;
            let name = name.into_bytes();
            self.packer.push(DiskEntry::Enter {
                name: name.clone(),
                meta: meta(&own),
            })?;
            self.names.push(name);
            levels.push(self.send_dir(dir)?);
        }
        Ok(())
    }

    /// Sends the content of a directory, and queues its subdirectories.
    fn send_dir(&mut self, dir: OwnedFd) -> Result<OpenDir, PackError> {
        let mut subdirs = Vec::new();
        let mut buffer = std::mem::take(&mut self.buffer);
        let mut entries = RawDir::new(dir.as_fd(), &mut buffer);
        while let Some(entry) = entries.next() {
            let entry = entry.map_err(|errno| self.read_error(c".", errno))?;
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            let found = stat(dir.as_fd(), name).map_err(|errno| self.read_error(name, errno))?;
            let mounted = found
                .stx_attributes
                .contains(rustix::fs::StatxAttributes::MOUNT_ROOT);
            if mounted || (found.stx_dev_major, found.stx_dev_minor) != self.device {
                self.packer.sum.left += 1;
                continue;
            }
            match FileType::from_raw_mode(found.stx_mode.into()) {
                FileType::Directory => subdirs.push(name.to_owned()),
                FileType::RegularFile => self.file(dir.as_fd(), name, &found)?,
                FileType::Symlink => self.link(dir.as_fd(), name, &found)?,
                FileType::Fifo
                | FileType::Socket
                | FileType::CharacterDevice
                | FileType::BlockDevice
                | FileType::Unknown => self.packer.sum.left += 1,
            }
        }
        self.buffer = buffer;
        Ok(OpenDir { dir, subdirs })
    }

    fn link(&mut self, dir: BorrowedFd<'_>, name: &CStr, found: &Statx) -> Result<(), PackError> {
        let target = rustix::fs::readlinkat(dir, name, Vec::new())
            .map_err(|errno| self.read_error(name, errno))?;
        self.packer.push(DiskEntry::Link {
            name: name.to_bytes().to_vec(),
            meta: meta(found),
            target: target.into_bytes(),
        })
    }

    fn file(&mut self, dir: BorrowedFd<'_>, name: &CStr, found: &Statx) -> Result<(), PackError> {
        if found.stx_nlink > 1 && !self.is_first(name, found.stx_ino)? {
            return Ok(());
        }
        let file = beneath::open(dir, name, READ, Traversal::Dirs)
            .map_err(|errno| self.read_error(name, errno))?;
        self.packer.push(DiskEntry::File {
            name: name.to_bytes().to_vec(),
            meta: meta(found),
            bytes: found.stx_size,
        })?;
        let mut offset = 0;
        while let Some((begin, end)) = next_data(&file, offset, found.stx_size)
            .map_err(|errno| self.read_error(name, errno))?
        {
            offset = begin;
            while offset < end {
                let bytes = (end - offset).min(DISK_DATA_BYTES as u64);
                let mut data = vec![0; usize::try_from(bytes).unwrap_or(DISK_DATA_BYTES)];
                let read = rustix::io::pread(&file, &mut data, offset)
                    .map_err(|errno| self.read_error(name, errno))?;
                if read == 0 {
                    // The file was truncated meanwhile, and the rest is a hole.
                    return Ok(());
                }
                data.truncate(read);
                let bytes = data;
                let step = bytes.len() as u64;
                self.packer.push(DiskEntry::Data { offset, bytes })?;
                offset += step;
            }
        }
        Ok(())
    }

    /// Whether the file was not sent under another name before. Beyond the number of remembered files, each name is
    /// sent as a file of its own.
    fn is_first(&mut self, name: &CStr, inode: u64) -> Result<bool, PackError> {
        let name = name.to_bytes().to_vec();
        if let Some(former) = self.linked.get(&inode).cloned() {
            self.packer.push(DiskEntry::Again { name, former })?;
            return Ok(false);
        }
        if self.linked.len() < LINKED_FILES_MAX {
            let mut path = self.names.clone();
            path.push(name);
            self.linked.insert(inode, path);
        }
        Ok(true)
    }

    fn read_error(&self, name: &CStr, errno: Errno) -> PackError {
        use std::os::unix::ffi::OsStrExt as _;
        let below = self
            .names
            .iter()
            .map(|name| std::ffi::OsStr::from_bytes(name));
        let mut path = self.at.clone();
        path.extend(below);
        path.push(std::ffi::OsStr::from_bytes(name.to_bytes()));
        read_error(path, errno)
    }
}

/// The next bytes of a file outside of holes, from `offset` on and below `size`.
fn next_data(file: &OwnedFd, offset: u64, size: u64) -> Result<Option<(u64, u64)>, Errno> {
    if offset >= size {
        return Ok(None);
    }
    let begin = match rustix::fs::seek(file, SeekFrom::Data(offset)) {
        Err(Errno::NXIO) => return Ok(None),
        // The file system does not report holes.
        Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(Some((offset, size))),
        begin => begin?,
    };
    if begin >= size {
        return Ok(None);
    }
    let end = rustix::fs::seek(file, SeekFrom::Hole(begin))?;
    Ok(Some((begin, end.min(size))))
}
