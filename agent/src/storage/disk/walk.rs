//! Measures a tree by directory descriptors, without recursion and without following links.
//!
//! Every directory is opened beneath its parent, without following links or crossing mounts. So nothing outside is
//! counted, even if names are swapped meanwhile. Files with several names are counted once. Like `du`, it does not see
//! an open file without a name.

use std::collections::{BTreeMap, HashSet};
use std::ffi::{CStr, CString};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};

use muster_driver::beneath::{self, Traversal};
use rustix::fs::{AtFlags, FileType, OFlags, RawDir, StatxAttributes, StatxFlags};
use rustix::io::Errno;

use super::DiskAmount;
use super::limits::{DEPTH_MAX, READ_BYTES};

/// The measurement of a tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TreeUsage {
    /// The use of the whole tree, including its root.
    pub(crate) all: DiskAmount,
    /// The use by the first two parts of the path.
    pub(crate) by_place: BTreeMap<String, DiskAmount>,
    /// Whether directories below the measured ones exist.
    pub(crate) too_deep: bool,
}

/// A directory to read.
struct PendingDir {
    parent: Rc<OwnedFd>,
    name: CString,
    depth: u32,
    /// The place to which its content is added; empty above the second level.
    place: String,
}

struct Walker<'a> {
    stop: &'a AtomicBool,
    device: (u32, u32),
    /// Files with several names that were counted.
    seen: HashSet<u64>,
    pending: Vec<PendingDir>,
    measured: TreeUsage,
}

/// Measures the content of `root`. Stops above `inodes_max`, which bounds the time.
///
/// # Errors
///
/// If the root cannot be read, or `stop` was set. Entries that vanish meanwhile are not counted.
pub(crate) fn measure(root: &Path, inodes_max: u64, stop: &AtomicBool) -> Result<TreeUsage, Errno> {
    let root = beneath::open_top(root, OFlags::RDONLY)?;
    let own = stat(root.as_fd(), c"")?;
    let mut walker = Walker {
        stop,
        device: (own.stx_dev_major, own.stx_dev_minor),
        seen: HashSet::new(),
        pending: Vec::new(),
        measured: TreeUsage::default(),
    };
    walker.measured.all.add(amount(&own));
    let mut buffer = vec![MaybeUninit::uninit(); READ_BYTES];
    walker.read(&Rc::new(root), 1, "", &mut buffer)?;
    while let Some(next) = walker.pending.pop() {
        if stop.load(Ordering::Relaxed) {
            return Err(Errno::INTR);
        }
        if walker.measured.all.inodes > inodes_max {
            break;
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let Ok(dir) = beneath::open(&*next.parent, &next.name, flags, Traversal::Dirs) else {
            // The directory vanished, or was replaced by something else.
            continue;
        };
        // Of a directory that cannot be read to its end, the entries read so far count.
        let _partly = walker.read(&Rc::new(dir), next.depth + 1, &next.place, &mut buffer);
    }
    Ok(walker.measured)
}

impl Walker<'_> {
    /// Counts the entries of a directory, and queues its subdirectories.
    fn read(
        &mut self,
        dir: &Rc<OwnedFd>,
        depth: u32,
        place: &str,
        buffer: &mut [MaybeUninit<u8>],
    ) -> Result<(), Errno> {
        let mut entries = RawDir::new(dir.as_fd(), buffer);
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            if self.stop.load(Ordering::Relaxed) {
                return Err(Errno::INTR);
            }
            let Ok(found) = stat(dir.as_fd(), name) else {
                continue;
            };
            self.count(dir, name, &found, depth, place);
        }
        Ok(())
    }

    fn count(
        &mut self,
        dir: &Rc<OwnedFd>,
        name: &CStr,
        found: &rustix::fs::Statx,
        depth: u32,
        place: &str,
    ) {
        let mounted = found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT);
        if mounted || (found.stx_dev_major, found.stx_dev_minor) != self.device {
            return;
        }
        let is_dir = FileType::from_raw_mode(found.stx_mode.into()) == FileType::Directory;
        if !is_dir && found.stx_nlink > 1 && !self.seen.insert(found.stx_ino) {
            return;
        }
        let own = amount(found);
        self.measured.all.add(own);
        let below = match depth {
            1 => name.to_string_lossy().into_owned(),
            2 => format!("{place}/{}", name.to_string_lossy()),
            _ => place.to_owned(),
        };
        // A file next to the directories of a task counts for the task itself.
        let counted = if is_dir || depth > 2 { &below } else { place };
        if depth >= 2 {
            let sum = self.measured.by_place.entry(counted.to_owned());
            sum.or_default().add(own);
        }
        if !is_dir {
            return;
        }
        if depth >= DEPTH_MAX {
            self.measured.too_deep = true;
            return;
        }
        self.pending.push(PendingDir {
            parent: Rc::clone(dir),
            name: name.to_owned(),
            depth,
            place: below,
        });
    }
}

fn stat(dir: BorrowedFd<'_>, name: &CStr) -> Result<rustix::fs::Statx, Errno> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::EMPTY_PATH;
    rustix::fs::statx(dir, name, flags, StatxFlags::BASIC_STATS)
}

fn amount(found: &rustix::fs::Statx) -> DiskAmount {
    DiskAmount {
        // `stat(2)` always counts blocks of 512 bytes.
        bytes: found.stx_blocks.saturating_mul(512),
        inodes: 1,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt as _;

    use muster_driver::fixture::exchanging;
    use rustix::fs::Mode;

    use super::*;

    fn measured(root: &Path) -> TreeUsage {
        measure(root, u64::MAX, &AtomicBool::new(false)).unwrap()
    }

    fn blocks(path: &Path) -> u64 {
        fs::symlink_metadata(path).unwrap().blocks() * 512
    }

    #[test]
    fn bytes_and_inodes_are_those_of_the_tree() {
        let temp = tempfile::tempdir().unwrap();
        let local = temp.path().join("web/local");
        fs::create_dir_all(local.join("deep/er")).unwrap();
        fs::write(local.join("deep/er/file"), vec![1; 100_000]).unwrap();
        let parts = [
            "",
            "web",
            "web/local",
            "web/local/deep",
            "web/local/deep/er",
        ];
        let files = parts.map(|part| blocks(&temp.path().join(part)));

        let measured = measured(temp.path());

        let bytes = files.iter().sum::<u64>() + blocks(&local.join("deep/er/file"));
        assert_eq!(measured.all, DiskAmount { bytes, inodes: 6 });
        assert_eq!(measured.by_place["web/local"].inodes, 4);
    }

    /// A link to a directory outside counts only as the link itself.
    #[test]
    fn links_out_of_the_tree_are_not_followed() {
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("large"), vec![1; 1 << 20]).unwrap();
        let temp = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(outside.path(), temp.path().join("out")).unwrap();
        std::os::unix::fs::symlink("/", temp.path().join("root")).unwrap();

        let all = measured(temp.path()).all;

        assert_eq!(all.inodes, 3);
        assert!(all.bytes < 1 << 20, "{all:?}");
    }

    /// The same if the link is created while the tree is measured.
    #[test]
    fn no_race_leads_out_of_the_tree() {
        const TRIES: usize = 20_000;
        let (temp, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(outside.path().join("large"), vec![1; 1 << 20]).unwrap();
        let [dir, link] = ["dir", "link"].map(|name| temp.path().join(name));
        fs::create_dir(&dir).unwrap();
        std::os::unix::fs::symlink(outside.path(), &link).unwrap();

        let most = exchanging(&dir, &link, || {
            let measured = (0..TRIES).map(|_| measured(temp.path()).all.bytes);
            measured.max()
        });

        assert!(most < Some(1 << 20), "{most:?}");
    }

    #[test]
    fn a_file_with_two_names_counts_once() {
        let temp = tempfile::tempdir().unwrap();
        fs::write(temp.path().join("one"), vec![1; 1 << 20]).unwrap();
        let before = measured(temp.path()).all;
        fs::hard_link(temp.path().join("one"), temp.path().join("two")).unwrap();

        assert_eq!(measured(temp.path()).all, before);
    }

    #[test]
    fn a_sparse_file_costs_its_blocks() {
        let temp = tempfile::tempdir().unwrap();
        let file = fs::File::create(temp.path().join("sparse")).unwrap();
        file.set_len(1 << 40).unwrap();

        assert!(measured(temp.path()).all.bytes < 1 << 20);
    }

    /// 1 500 levels: the walk reports that it does not know the rest. Neither stack nor descriptors grow with the
    /// levels.
    #[test]
    fn too_deep_tree_is_marked() {
        let temp = tempfile::tempdir().unwrap();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let mut deep = rustix::fs::open(temp.path(), flags, Mode::empty()).unwrap();
        for _level in 0..1_500 {
            rustix::fs::mkdirat(&deep, "d", Mode::RWXU).unwrap();
            deep = rustix::fs::openat(&deep, "d", flags, Mode::empty()).unwrap();
        }

        let measured = measured(temp.path());

        assert!(measured.too_deep);
        assert_eq!(measured.all.inodes, u64::from(DEPTH_MAX) + 1);
    }

    #[test]
    fn counting_ends_beyond_the_limit() {
        let temp = tempfile::tempdir().unwrap();
        for name in 0..50 {
            let dir = temp.path().join(name.to_string());
            fs::create_dir(&dir).unwrap();
            for file in 0..10 {
                fs::write(dir.join(file.to_string()), "").unwrap();
            }
        }

        let found = measure(temp.path(), 100, &AtomicBool::new(false))
            .unwrap()
            .all
            .inodes;

        assert!((101..200).contains(&found), "{found}");
    }
}
