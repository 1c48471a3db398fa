//! Tests with as many writers as a busy node has.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use super::full_disk::SmallDisk;
use super::{ALL, TestDirs, assert_same, detach, lines, raise_descriptors, until};
use crate::logs::RotateLimits;
use crate::ring::{LogRing, RingConfig, StreamId, StreamSpec};

const WRITERS: usize = 1_000;
const LINES: u32 = 100;

/// Each stream goes through two rotations; the writers take turns line by line.
#[tokio::test]
async fn thousand_writers_lose_no_line_through_rotation() {
    raise_descriptors();
    let expected = lines(LINES);
    for config in [ALL[0], ALL[1]] {
        // The files are in memory. ext4 looks for an inode that was not freed within five seconds. Where thousands
        // were freed, that takes a millisecond. Each writer has its directory, as allocations have.
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_absent| tempfile::tempdir());
        let dir = dir.unwrap();
        let places = places(dir.path());
        let ring = LogRing::start(config).unwrap();
        let (mut streams, mut tasks) = (Vec::new(), Vec::new());
        for place in &places {
            streams.push(attach(&ring, place, 1_009).await);
            tasks.push(place.task_side("web.stdout"));
        }

        let tasks = written(write_in_turn(tasks, LINES)).await;

        for (place, stream_id) in places.iter().zip(streams) {
            let report = detach(&ring, stream_id).await;
            assert_eq!(report.left_bytes, 0);
            assert_eq!(report.stats.rotations, expected.len() as u64 / 1_009);
            assert_same(&place.text("web.stdout"), &expected);
        }
        drop(tasks);
        ring.stop();
    }
}

async fn attach(ring: &LogRing, place: &TestDirs, max_file_bytes: u64) -> StreamId {
    let limits = RotateLimits {
        max_files: 100,
        max_file_bytes,
    };
    let spec = StreamSpec {
        limits,
        ..place.spec("web.stdout")
    };
    ring.attach(spec).await.unwrap()
}

fn places(dir: &Path) -> Vec<TestDirs> {
    let place = |n: usize| {
        let root = dir.join(n.to_string());
        std::fs::create_dir(&root).unwrap();
        TestDirs::at(&root)
    };
    (0..WRITERS).map(place).collect()
}

/// Lines of each writer on a full disk: more than its FIFO holds, in three files of 4 001 bytes.
const MORE_LINES: u32 = 500;

/// The size of the disk. A thousand streams take about 20 MiB of it, because each file has its own pages.
const DISK_KIB: u32 = 48 << 10;

/// Streams to a full disk, with their tasks. Each of `rooms` is space that can be freed.
struct ManyStreams {
    disk: SmallDisk,
    places: Vec<TestDirs>,
    ring: LogRing,
    streams: Vec<StreamId>,
    ballast: PathBuf,
    rooms: Vec<PathBuf>,
}

impl ManyStreams {
    /// Returns `None` where nothing can be mounted. Each of `rooms` has 512 KiB.
    async fn on_a_full_disk(config: RingConfig, rooms: u32) -> Option<(Self, Vec<File>)> {
        raise_descriptors();
        let disk = SmallDisk::of_kib(DISK_KIB)?;
        let places = places(&disk.path);
        let ring = LogRing::start(config).unwrap();
        let (mut streams, mut tasks) = (Vec::new(), Vec::new());
        for place in &places {
            let task = place.task_side("web.stdout");
            streams.push(attach(&ring, place, 4_001).await);
            // The FIFO has one page, so a task with more output waits.
            rustix::pipe::fcntl_setpipe_size(&task, 4_096).unwrap();
            tasks.push(task);
        }
        let room = |n| {
            let path = disk.path.join(format!("room{n}"));
            std::fs::write(&path, vec![0; 512 << 10]).unwrap();
            path
        };
        let rooms = (0..rooms).map(room).collect();
        let ballast = disk.fill();
        let thousand = Self {
            disk,
            places,
            ring,
            streams,
            ballast,
            rooms,
        };
        Some((thousand, tasks))
    }

    async fn is_blocked(&self, stream_id: StreamId) -> bool {
        self.ring.stats(stream_id).await.unwrap().blocked.is_some()
    }

    /// Every line of every writer is there once, in order.
    async fn assert_whole(self) {
        let expected = lines(MORE_LINES);
        for (place, &stream_id) in self.places.iter().zip(&self.streams) {
            let report = detach(&self.ring, stream_id).await;
            let stats = report.stats;
            assert_eq!((report.left_bytes, stats.dropped_bytes), (0, 0));
            assert_eq!(stats.rotations, expected.len() as u64 / 4_001);
            assert_same(&place.text("web.stdout"), &expected);
        }
        self.ring.stop();
        drop(self.disk);
    }
}

/// Lines of all writers in turn; each waits for those before it.
fn write_in_turn(mut tasks: Vec<File>, lines: u32) -> JoinHandle<Vec<File>> {
    std::thread::spawn(move || {
        for n in 0..lines {
            for task in &mut tasks {
                writeln!(task, "line {n} of the task").unwrap();
            }
        }
        tasks
    })
}

/// Returns the tasks when all lines are written; streams continue meanwhile.
async fn written(writer: JoinHandle<Vec<File>>) -> Vec<File> {
    let joined = tokio::task::spawn_blocking(|| writer.join().unwrap());
    joined.await.unwrap()
}

#[tokio::test]
async fn thousand_writers_block_on_full_disk_without_loss() {
    for config in [ALL[0], ALL[1]] {
        let Some((thousand, tasks)) = ManyStreams::on_a_full_disk(config, 0).await else {
            return;
        };

        let writer = write_in_turn(tasks, MORE_LINES);
        for &stream_id in &thousand.streams {
            until("nobody has room", async || {
                thousand.is_blocked(stream_id).await
            })
            .await;
        }
        assert!(!writer.is_finished());
        std::fs::remove_file(&thousand.ballast).unwrap();
        let tasks = written(writer).await;

        thousand.assert_whole().await;
        drop(tasks);
    }
}

/// Space is freed in small parts, each only when a writer cannot continue.
#[tokio::test]
async fn thousand_writers_on_slow_disk_lose_no_lines() {
    for config in [ALL[0], ALL[1]] {
        let Some((mut thousand, tasks)) = ManyStreams::on_a_full_disk(config, 60).await else {
            return;
        };
        let mut rooms = std::mem::take(&mut thousand.rooms).into_iter();

        let writer = write_in_turn(tasks, MORE_LINES);
        let mut given = 0;
        for &stream_id in thousand.streams.iter().cycle() {
            if writer.is_finished() {
                break;
            }
            if thousand.is_blocked(stream_id).await
                && let Some(room) = rooms.next()
            {
                std::fs::remove_file(room).unwrap();
                given += 1;
            }
        }
        let tasks = writer.join().unwrap();
        // Space for the bytes that still wait in FIFOs.
        std::fs::remove_file(&thousand.ballast).unwrap();

        assert!(given > 10, "{given}");
        thousand.assert_whole().await;
        drop(tasks);
    }
}
