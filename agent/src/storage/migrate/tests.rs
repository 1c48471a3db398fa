//! Trees that tasks could have made, and streams that no node should send.

use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use muster_domain::id::{AllocId, LogIndex};
use muster_driver::fixture::exchanging;
use muster_wire::limits::DISK_PIECE_BYTES_MAX;
use muster_wire::rpc::{DiskDir, DiskEntry, DiskPiece, DiskSum, FileMeta};
use rustix::fs::{CWD, FileType, Mode, OFlags};

use super::pack::{PackError, pack};
use super::unpack::{UnpackError, Unpacker};
use super::{import, settle};
use crate::storage::allocdir::DataDir;
use crate::storage::disk::{DEPTH_MAX, DiskLimit};

const PLENTY: DiskLimit = DiskLimit {
    bytes: 64 << 20,
    inodes: 4_096,
};

/// An allocation and the one that replaces it, each with its directories.
struct Replacement {
    _temp: tempfile::TempDir,
    data: DataDir,
    former: AllocId,
    heir: AllocId,
}

/// Both allocations have the task `web`.
fn scene() -> Replacement {
    let temp = tempfile::tempdir().unwrap();
    let data = DataDir::new(temp.path()).unwrap();
    data.prepare().unwrap();
    let [former, heir] = [1, 2].map(|index| AllocId::at(LogIndex(index), 0));
    for alloc_id in [former, heir] {
        data.make_alloc(alloc_id, &[("web".into(), None)]).unwrap();
    }
    Replacement {
        _temp: temp,
        data,
        former,
        heir,
    }
}

impl Replacement {
    fn former(&self, path: &str) -> PathBuf {
        self.data.alloc(self.former).alloc.join(path)
    }

    fn heir(&self, path: &str) -> PathBuf {
        self.data.alloc(self.heir).alloc.join(path)
    }

    fn pack(&self) -> Result<(Vec<DiskPiece>, DiskSum), PackError> {
        let mut pieces = Vec::new();
        let sum = pack(&self.former(""), &["web".into()], &mut |piece| {
            pieces.push(piece);
            true
        })?;
        Ok((pieces, sum))
    }

    fn unpack(
        &self,
        pieces: Vec<DiskPiece>,
        sum: DiskSum,
        limit: DiskLimit,
    ) -> Result<DiskSum, UnpackError> {
        let alloc = self.heir("");
        let incoming = import::make_incoming(&alloc).unwrap();
        let mut unpacker = Unpacker::new(&incoming, limit).unwrap();
        for piece in pieces {
            unpacker.take(piece)?;
        }
        let sum = unpacker.finish(sum)?;
        import::complete(&alloc).unwrap();
        Ok(sum)
    }

    /// The whole transfer.
    fn carry(&self) -> DiskSum {
        let (pieces, sum) = self.pack().unwrap();
        self.unpack(pieces, sum, PLENTY).unwrap();
        assert!(settle(&self.data, self.heir, ["web".to_owned()]).unwrap());
        sum
    }

    /// Returns the error for a stream of these steps in the shared place.
    fn refused(&self, steps: Vec<DiskEntry>) -> UnpackError {
        let mut entries = vec![DiskEntry::Place(DiskDir::Shared)];
        entries.extend(steps);
        let sum = DiskSum::default();
        self.unpack(vec![DiskPiece { entries }], sum, PLENTY)
            .unwrap_err()
    }
}

fn file(name: &str, bytes: u64) -> DiskEntry {
    DiskEntry::File {
        name: name.into(),
        meta: FileMeta::default(),
        bytes,
    }
}

fn enter(name: &str) -> DiskEntry {
    DiskEntry::Enter {
        name: name.into(),
        meta: FileMeta::default(),
    }
}

fn link(name: &str, target: &str) -> DiskEntry {
    DiskEntry::Link {
        name: name.into(),
        meta: FileMeta::default(),
        target: target.into(),
    }
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn files_keep_content_permissions_and_age() {
    let scene = scene();
    let deep = scene.former("alloc/data/deep");
    fs::create_dir(&deep).unwrap();
    let large = vec![7; 200_000];
    fs::write(deep.join("large"), &large).unwrap();
    fs::set_permissions(deep.join("large"), fs::Permissions::from_mode(0o640)).unwrap();
    fs::write(scene.former("web/local/own"), "own").unwrap();
    fs::write(scene.former("web/secrets/key"), "secret").unwrap();
    let changed = fs::metadata(&deep).unwrap().mtime_nsec();

    let sum = scene.carry();

    assert_eq!(
        fs::read(scene.heir("alloc/data/deep/large")).unwrap(),
        large
    );
    assert_eq!(mode(&scene.heir("alloc/data/deep/large")), 0o640);
    assert_eq!(fs::read(scene.heir("web/local/own")).unwrap(), b"own");
    assert!(!scene.heir("web/secrets/key").exists());
    let came = fs::metadata(scene.heir("alloc/data/deep")).unwrap();
    assert_eq!(came.mtime_nsec(), changed);
    assert_eq!((sum.inodes, sum.bytes, sum.left), (3, 200_003, 0));
}

#[test]
fn owners_are_kept() {
    if !rustix::process::geteuid().is_root() {
        return muster_domain::fixture::recorded::skipped("owners_are_kept", "needs root");
    }
    let scene = scene();
    fs::write(scene.former("alloc/data/f"), "").unwrap();
    symlink("f", scene.former("alloc/data/l")).unwrap();
    for name in ["f", "l"] {
        let path = scene.former("alloc/data").join(name);
        std::os::unix::fs::lchown(path, Some(1_234), Some(2_345)).unwrap();
    }

    scene.carry();

    for name in ["f", "l"] {
        let came = fs::symlink_metadata(scene.heir("alloc/data").join(name)).unwrap();
        assert_eq!((came.uid(), came.gid()), (1_234, 2_345), "{name}");
    }
}

/// A link is sent unchanged, and neither side follows it.
#[test]
fn links_are_not_followed() {
    let scene = scene();
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("secret"), "secret").unwrap();
    symlink(outside.path(), scene.former("alloc/data/out")).unwrap();
    symlink("/etc/shadow", scene.former("alloc/data/shadow")).unwrap();

    let sum = scene.carry();

    assert_eq!((sum.inodes, sum.bytes), (2, 0));
    let target = fs::read_link(scene.heir("alloc/data/shadow")).unwrap();
    assert_eq!(target, Path::new("/etc/shadow"));
    assert!(scene.heir("alloc/data/out").is_symlink());
}

/// If a task replaced a whole directory by a link, no data are sent through it.
#[test]
fn symlink_in_place_of_directory_is_skipped() {
    let scene = scene();
    fs::write(scene.former("alloc/data/f"), "").unwrap();
    fs::remove_dir(scene.former("web/local")).unwrap();
    symlink("/etc", scene.former("web/local")).unwrap();

    let sum = scene.carry();

    assert_eq!(sum.inodes, 1);
    assert!(
        fs::symlink_metadata(scene.heir("web/local"))
            .unwrap()
            .is_dir()
    );
    assert_eq!(fs::read_dir(scene.heir("web/local")).unwrap().count(), 0);
}

/// The task of the sent allocation still runs and replaces a directory by a link.
#[test]
fn no_race_sends_files_outside_the_directory() {
    const TRIES: usize = 300;
    let scene = scene();
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("file"), "yours").unwrap();
    let [dir, link] = ["dir", "link"].map(|name| scene.former("web/local").join(name));
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("file"), "mine").unwrap();
    symlink(outside.path(), &link).unwrap();

    let sent: Vec<DiskPiece> = exchanging(&dir, &link, || {
        let tries = (0..TRIES).filter_map(|_| scene.pack().ok());
        tries.flat_map(|(pieces, _)| pieces).collect()
    });

    let entries = sent.into_iter().flat_map(|piece| piece.entries);
    let mut texts: Vec<Vec<u8>> = entries
        .filter_map(|entry| match entry {
            DiskEntry::Data { bytes, .. } => Some(bytes),
            _ => None,
        })
        .collect();
    texts.dedup();
    assert_eq!(texts, [b"mine"]);
}

#[test]
fn devices_fifos_and_sockets_stay() {
    let scene = scene();
    let at = scene.former("alloc/data");
    rustix::fs::mknodat(CWD, at.join("fifo"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(at.join("socket")).unwrap();
    let null = rustix::fs::makedev(1, 3);
    // Only root makes devices.
    let device = rustix::fs::mknodat(
        CWD,
        at.join("null"),
        FileType::CharacterDevice,
        Mode::RWXU,
        null,
    );

    let sum = scene.carry();

    assert_eq!(sum.left, 2 + u64::from(device.is_ok()));
    assert_eq!(fs::read_dir(scene.heir("alloc/data")).unwrap().count(), 0);
    assert!(fs::metadata(at.join("fifo")).unwrap().file_type().is_fifo());
}

#[test]
fn set_id_bits_are_dropped() {
    let scene = scene();
    let path = scene.former("alloc/data/tool");
    fs::write(&path, "").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o6755)).unwrap();
    let from_elsewhere = DiskEntry::File {
        name: b"other".to_vec(),
        meta: FileMeta {
            mode: 0o7755,
            ..FileMeta::default()
        },
        bytes: 0,
    };

    let (mut pieces, mut sum) = scene.pack().unwrap();
    let at = pieces[0]
        .entries
        .iter()
        .position(|it| matches!(it, DiskEntry::File { .. }));
    pieces[0].entries.insert(at.unwrap(), from_elsewhere);
    sum.inodes += 1;
    scene.unpack(pieces, sum, PLENTY).unwrap();
    settle(&scene.data, scene.heir, ["web".to_owned()]).unwrap();

    assert_eq!(mode(&scene.heir("alloc/data/tool")), 0o755);
    assert_eq!(mode(&scene.heir("alloc/data/other")), 0o1755);
}

/// A hole of a terabyte takes no space on either side.
#[test]
fn holes_stay_holes() {
    let scene = scene();
    let path = scene.former("alloc/data/sparse");
    let sparse = fs::File::create(&path).unwrap();
    sparse.set_len(1 << 40).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&sparse, b"end", (1 << 40) - 3).unwrap();

    let sum = scene.carry();

    let came = fs::metadata(scene.heir("alloc/data/sparse")).unwrap();
    assert_eq!(came.len(), 1 << 40);
    let mut end = [0; 3];
    let sparse = fs::File::open(scene.heir("alloc/data/sparse")).unwrap();
    std::os::unix::fs::FileExt::read_exact_at(&sparse, &mut end, (1 << 40) - 3).unwrap();
    assert_eq!(&end, b"end");
    assert!(sum.bytes <= 64 << 10, "{sum:?}");
    assert!(came.blocks() * 512 <= 1 << 20);
}

#[test]
fn a_file_with_two_names_stays_one() {
    let scene = scene();
    let at = scene.former("alloc/data");
    fs::create_dir(at.join("d")).unwrap();
    fs::write(at.join("d/one"), "1").unwrap();
    fs::hard_link(at.join("d/one"), at.join("two")).unwrap();
    fs::hard_link(at.join("d/one"), at.join("d/three")).unwrap();

    let sum = scene.carry();

    let inode = |name: &str| {
        fs::metadata(scene.heir("alloc/data").join(name))
            .unwrap()
            .ino()
    };
    assert_eq!(inode("two"), inode("d/one"));
    assert_eq!(inode("d/three"), inode("d/one"));
    assert_eq!(sum.bytes, 1);
}

#[test]
fn pieces_are_small() {
    let scene = scene();
    fs::write(scene.former("alloc/data/large"), vec![1; 1 << 20]).unwrap();
    for name in 0..2_000 {
        fs::write(scene.former("alloc/data").join(name.to_string()), "").unwrap();
    }

    let (pieces, _) = scene.pack().unwrap();

    assert!(pieces.len() > 16);
    let costs = pieces.iter().map(DiskPiece::cost);
    assert!(costs.max().unwrap() <= DISK_PIECE_BYTES_MAX as u64);
}

#[test]
fn too_deep_tree_is_not_sent() {
    let scene = scene();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let mut deep = rustix::fs::open(scene.former("alloc/data"), flags, Mode::empty()).unwrap();
    for _level in 0..=DEPTH_MAX {
        rustix::fs::mkdirat(&deep, "d", Mode::RWXU).unwrap();
        deep = rustix::fs::openat(&deep, "d", flags, Mode::empty()).unwrap();
    }

    assert!(matches!(scene.pack(), Err(PackError::TooDeep { .. })));
}

#[test]
fn moved_directory_is_reported_absent() {
    let scene = scene();
    fs::remove_dir(scene.former("alloc/data")).unwrap();
    fs::remove_dir(scene.former("web/local")).unwrap();
    let moved = scene.pack();
    fs::remove_dir_all(scene.former("")).unwrap();

    assert!(matches!(moved, Err(PackError::Nothing)));
    assert!(matches!(scene.pack(), Err(PackError::Nothing)));
}

#[test]
fn packing_stops_without_a_receiver() {
    let scene = scene();
    fs::write(scene.former("alloc/data/large"), vec![1; 1 << 20]).unwrap();
    let mut taken = 0;

    let packed = pack(&scene.former(""), &[], &mut |_| {
        taken += 1;
        false
    });

    assert!(matches!(packed, Err(PackError::Unwanted)));
    assert_eq!(taken, 1);
}

#[test]
fn names_that_lead_elsewhere_are_refused() {
    for name in ["", ".", "..", "a/b", "/etc", "../../x", "a\0b"] {
        for step in [enter(name), file(name, 0), link(name, "x")] {
            let error = scene().refused(vec![step]);
            assert!(
                matches!(error, UnpackError::Malformed(_)),
                "{name:?}: {error}"
            );
        }
    }
    let long = "x".repeat(256);
    assert!(matches!(
        scene().refused(vec![file(&long, 0)]),
        UnpackError::Malformed(_)
    ));
}

/// A link is received, and then an entry below its path.
#[test]
fn received_links_are_not_followed() {
    let outside = tempfile::tempdir().unwrap();
    let target = outside.path().to_str().unwrap();

    for step in [
        enter("way"),
        file("way", 0),
        DiskEntry::Again {
            name: b"stolen".to_vec(),
            former: vec![b"way".to_vec(), b"passwd".to_vec()],
        },
        DiskEntry::Again {
            name: b"stolen".to_vec(),
            former: vec![b"way".to_vec()],
        },
    ] {
        let scene = scene();
        fs::write(outside.path().join("passwd"), "").unwrap();
        scene.refused(vec![link("way", target), step, file("f", 0)]);
        assert!(!scene.heir("tmp/incoming/shared/stolen").exists());
    }
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
}

#[test]
fn steps_out_of_order_are_refused() {
    let data = |offset, bytes: &[u8]| DiskEntry::Data {
        offset,
        bytes: bytes.to_vec(),
    };
    let again = |former: &[&str]| DiskEntry::Again {
        name: b"again".to_vec(),
        former: former.iter().map(|part| part.as_bytes().to_vec()).collect(),
    };
    for steps in [
        vec![DiskEntry::Leave],
        vec![enter("d"), DiskEntry::Leave, DiskEntry::Leave],
        vec![data(0, b"x")],
        vec![file("f", 1), data(1, b"x")],
        vec![file("f", 9), data(u64::MAX, b"x")],
        vec![file("f", 9), enter("d"), data(0, b"x")],
        vec![enter("d"), DiskEntry::Place(DiskDir::Local("web".into()))],
        vec![again(&[])],
        vec![again(&["nowhere"])],
        vec![enter("d"), DiskEntry::Leave, again(&["d"])],
        vec![file("f", 0), again(&["..", "f"])],
    ] {
        let words = format!("{steps:?}");
        let error = scene().refused(steps);
        assert!(
            matches!(error, UnpackError::Malformed(_)),
            "{words}: {error}"
        );
    }
}

/// A stream that is cut at any point leaves no data where tasks find them.
#[test]
fn a_cut_stream_is_never_whole() {
    let scene = scene();
    fs::write(scene.former("alloc/data/large"), vec![1; 300_000]).unwrap();
    fs::create_dir(scene.former("web/local/d")).unwrap();
    fs::write(scene.former("web/local/d/f"), "f").unwrap();
    let (pieces, sum) = scene.pack().unwrap();

    for kept in 0..pieces.len() {
        let cut = scene.unpack(pieces[..kept].to_vec(), sum, PLENTY);
        assert!(matches!(cut, Err(UnpackError::Malformed(_))), "{kept}");
        assert!(!settle(&scene.data, scene.heir, ["web".to_owned()]).unwrap());
    }

    assert_eq!(fs::read_dir(scene.heir("alloc/data")).unwrap().count(), 0);
    scene.unpack(pieces, sum, PLENTY).unwrap();
    assert!(settle(&scene.data, scene.heir, ["web".to_owned()]).unwrap());
    assert!(scene.heir("web/local/d/f").exists());
}

#[test]
fn more_than_the_disk_has_is_refused() {
    let small = DiskLimit {
        bytes: 100_000,
        inodes: 10,
    };
    let large = scene();
    fs::write(large.former("alloc/data/large"), vec![1; 100_001]).unwrap();
    let many = scene();
    for name in 0..11 {
        fs::write(many.former("web/local").join(name.to_string()), "").unwrap();
    }

    for scene in [large, many] {
        let (pieces, sum) = scene.pack().unwrap();
        let error = scene.unpack(pieces, sum, small).unwrap_err();
        assert!(matches!(error, UnpackError::Exceeded(_)), "{error}");
    }
}

/// The agent died between two of the moves. Files that a task has written since stay.
#[test]
fn received_data_are_moved_once() {
    let scene = scene();
    fs::write(scene.former("alloc/data/a"), "").unwrap();
    fs::write(scene.former("web/local/b"), "").unwrap();
    let (pieces, sum) = scene.pack().unwrap();
    scene.unpack(pieces, sum, PLENTY).unwrap();
    let first = settle(&scene.data, scene.heir, []).unwrap();
    fs::write(scene.heir("alloc/data/since"), "").unwrap();

    let second = settle(&scene.data, scene.heir, ["web".to_owned()]).unwrap();

    assert!(first && second);
    assert!(scene.heir("alloc/data/a").exists() && scene.heir("alloc/data/since").exists());
    assert!(scene.heir("web/local/b").exists());
}

#[test]
fn a_new_try_begins_empty() {
    let scene = scene();
    let alloc = scene.heir("");
    let incoming = import::make_incoming(&alloc).unwrap();
    fs::create_dir(incoming.join("half")).unwrap();
    fs::write(incoming.join("half/file"), "").unwrap();

    let again = import::make_incoming(&alloc).unwrap();

    assert_eq!(fs::read_dir(again).unwrap().count(), 0);
    assert_eq!(mode(&incoming), 0o700);
}
