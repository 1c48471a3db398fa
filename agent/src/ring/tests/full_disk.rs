//! Tests on a small tmpfs of their own, which needs root.

use std::io::Write as _;
use std::path::PathBuf;

use muster_domain::fixture::recorded::skipped;
use nix::mount::{MntFlags, MsFlags, mount, umount2};

use super::{ALL, TestDirs, detach, lines, until, write_lines};
use crate::logs::{Chunk, LogReader, RotateLimits};
use crate::ring::{LogRing, OnFull, StreamSpec};

/// A tmpfs, unmounted on drop.
pub(crate) struct SmallDisk {
    pub(crate) path: PathBuf,
    _dir: tempfile::TempDir,
}

impl SmallDisk {
    /// Mounts a disk of 64 KiB.
    fn mount() -> Option<Self> {
        Self::of_kib(64)
    }

    /// Returns `None`, and prints a skip, where nothing can be mounted.
    pub(crate) fn of_kib(size: u32) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().to_owned();
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        let size = format!("size={size}k");
        let mounted = mount(
            Some("tmpfs"),
            &path,
            Some("tmpfs"),
            flags,
            Some(size.as_str()),
        );
        if let Err(errno) = mounted {
            let test = std::thread::current();
            let reason = format!("a tmpfs cannot be mounted: {errno}; run as root");
            skipped(test.name().unwrap_or("full_disk"), &reason);
            return None;
        }
        Some(Self { path, _dir: dir })
    }

    pub(crate) fn fill(&self) -> PathBuf {
        let ballast = self.path.join("ballast");
        let mut file = std::fs::File::create(&ballast).unwrap();
        while file.write_all(&[0; 4096]).is_ok() {}
        ballast
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        umount2(&self.path, MntFlags::MNT_DETACH).unwrap();
    }
}

fn spec(place: &TestDirs, disk: &SmallDisk, on_full: OnFull) -> StreamSpec {
    let limits = RotateLimits {
        max_files: 100,
        max_file_bytes: 10_000,
    };
    StreamSpec {
        dir: disk.path.clone(),
        limits,
        on_full,
        ..place.spec("web.stdout")
    }
}

#[tokio::test]
async fn full_disk_blocks_the_task_and_loses_nothing() {
    for config in ALL {
        let Some(disk) = SmallDisk::mount() else {
            return;
        };
        let place = TestDirs::new();
        let task = place.task_side("web.stdout");
        let ring = LogRing::start(config).unwrap();
        let stream_id = ring
            .attach(spec(&place, &disk, OnFull::Block))
            .await
            .unwrap();
        let ballast = disk.fill();
        // 28 KiB: less than the size of the disk, and more than nothing.
        let writer = write_lines(task, 0..1_300);
        until("the disk is full", async || {
            ring.stats(stream_id).await.unwrap().blocked.is_some()
        })
        .await;

        std::fs::remove_file(ballast).unwrap();
        let task = tokio::task::spawn_blocking(|| writer.join().unwrap())
            .await
            .unwrap();
        let report = detach(&ring, stream_id).await;

        let mut reader = LogReader::open(&disk.path, "web.stdout").unwrap();
        let mut text = Vec::new();
        while let Some(Chunk::Data { bytes, .. }) = reader.read(usize::MAX).unwrap() {
            text.extend(bytes);
        }
        assert_eq!(String::from_utf8(text).unwrap(), lines(1_300));
        assert_eq!(
            (report.stats.dropped_bytes, report.stats.blocked),
            (0, None)
        );
        drop(task);
    }
}

/// Space is freed a page at a time, and only when the loop cannot write. Lines wait, and none is lost.
#[tokio::test]
async fn slow_disk_loses_nothing() {
    for config in ALL {
        let Some(disk) = SmallDisk::mount() else {
            return;
        };
        let place = TestDirs::new();
        let task = place.task_side("web.stdout");
        let pages: Vec<PathBuf> = (0..12)
            .map(|n| disk.path.join(format!("page{n}")))
            .collect();
        for page in &pages {
            std::fs::write(page, [0; 4096]).unwrap();
        }
        let ring = LogRing::start(config).unwrap();
        let stream_id = ring
            .attach(spec(&place, &disk, OnFull::Block))
            .await
            .unwrap();
        disk.fill();
        // 28 KiB in three files, with their times and offsets: ten pages or so.
        let writer = write_lines(task, 0..1_300);

        let all = lines(1_300).len() as u64;
        let mut pages = pages.into_iter();
        until("everything is written", async || {
            let stats = ring.stats(stream_id).await.unwrap();
            if stats.blocked.is_some()
                && let Some(page) = pages.next()
            {
                std::fs::remove_file(page).unwrap();
            }
            stats.bytes == all
        })
        .await;
        let task = writer.join().unwrap();
        detach(&ring, stream_id).await;

        let mut reader = LogReader::open(&disk.path, "web.stdout").unwrap();
        let mut text = Vec::new();
        while let Some(Chunk::Data { bytes, .. }) = reader.read(usize::MAX).unwrap() {
            text.extend(bytes);
        }
        assert_eq!(String::from_utf8(text).unwrap(), lines(1_300));
        drop(task);
    }
}

#[tokio::test]
async fn full_disk_makes_a_counted_gap_where_asked() {
    for config in ALL {
        let Some(disk) = SmallDisk::mount() else {
            return;
        };
        let place = TestDirs::new();
        let mut task = place.task_side("web.stdout");
        let ring = LogRing::start(config).unwrap();
        let stream_id = ring
            .attach(spec(&place, &disk, OnFull::Drop))
            .await
            .unwrap();
        let stats = async || ring.stats(stream_id).await.unwrap();
        task.write_all(b"kept\n").unwrap();
        until("the first line is written", async || {
            stats().await.bytes == 5
        })
        .await;
        let ballast = disk.fill();

        // Ten times the sizes of disk and FIFO together: no write may block the task.
        for _ in 0..10 * 1024 {
            task.write_all(&[b'x'; 1024]).unwrap();
        }
        until("all is counted", async || {
            stats().await.offset == 5 + 10 * 1024 * 1024
        })
        .await;
        std::fs::remove_file(ballast).unwrap();
        task.write_all(b"kept again\n").unwrap();
        let report = detach(&ring, stream_id).await;

        let mut reader = LogReader::open(&disk.path, "web.stdout").unwrap();
        let (mut data, mut gaps) = (Vec::new(), 0);
        while let Some(chunk) = reader.read(usize::MAX).unwrap() {
            match chunk {
                Chunk::Data { bytes, .. } => data.extend(bytes),
                Chunk::Gap { bytes, .. } => gaps += bytes,
            }
        }
        let text = String::from_utf8(data).unwrap().replace('x', "");
        assert_eq!(text, "kept\nkept again\n");
        assert_eq!(gaps, report.stats.dropped_bytes);
        assert!(gaps > 9 * 1024 * 1024, "{gaps}");
    }
}
