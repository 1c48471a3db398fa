use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::logs::{Chunk, Fifo, LogDir, LogReader, RotateLimits};
use crate::ring::{
    AttachError, DetachReport, Engine, EngineChoice, LogRing, OnFull, RingConfig, StreamError,
    StreamId, StreamSpec, Transfer,
};

mod full_disk;
pub(crate) use full_disk::SmallDisk;
pub(super) mod killed;
mod limited;
mod many;
mod measure;
mod rest;

/// Far longer than any of these tests needs on a busy machine.
const PATIENCE: Duration = Duration::from_mins(1);

const ALL: [RingConfig; 4] = [
    RingConfig {
        engine: EngineChoice::Auto,
        transfer: Transfer::Splice,
    },
    RingConfig {
        engine: EngineChoice::Epoll,
        transfer: Transfer::Splice,
    },
    RingConfig {
        engine: EngineChoice::Auto,
        transfer: Transfer::Copy,
    },
    RingConfig {
        engine: EngineChoice::Epoll,
        transfer: Transfer::Copy,
    },
];

/// A directory of FIFOs and one of logs.
struct TestDirs {
    root: PathBuf,
    _dir: Option<tempfile::TempDir>,
}

impl TestDirs {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let place = Self::at(dir.path());
        Self {
            _dir: Some(dir),
            ..place
        }
    }

    fn at(root: &Path) -> Self {
        LogDir::create(&root.join("fifos")).unwrap();
        LogDir::create(&root.join("logs")).unwrap();
        Self {
            root: root.into(),
            _dir: None,
        }
    }

    fn logs(&self) -> PathBuf {
        self.root.join("logs")
    }

    fn fifo(&self, name: &str) -> Fifo {
        Fifo::create(&LogDir::open(&self.root.join("fifos")).unwrap(), name, None).unwrap()
    }

    fn spec(&self, name: &str) -> StreamSpec {
        StreamSpec {
            fifo: self.fifo(name),
            dir: self.logs(),
            name: name.into(),
            limits: RotateLimits {
                max_files: 10_000,
                max_file_bytes: 30_011,
            },
            on_full: OnFull::Block,
            rate: None,
            begins: false,
        }
    }

    /// The FIFO as a task has it: opened for reading and writing, blocking.
    fn task_side(&self, name: &str) -> File {
        self.fifo(name);
        let path = self.root.join("fifos").join(name);
        OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .unwrap()
    }

    /// Returns all kept bytes of a stream; a gap fails the test.
    fn text(&self, name: &str) -> String {
        let mut reader = LogReader::open(&self.logs(), name).unwrap();
        let mut text = Vec::new();
        while let Some(chunk) = reader.read(usize::MAX).unwrap() {
            match chunk {
                Chunk::Data { bytes, .. } => text.extend(bytes),
                gap @ Chunk::Gap { .. } => panic!("{gap:?}"),
            }
        }
        String::from_utf8(text).unwrap()
    }
}

fn lines(count: u32) -> String {
    (0..count).fold(String::new(), |text, n| {
        text + &format!("line {n} of the task\n")
    })
}

/// Writes the [`lines`] of `numbers` one at a time from a thread.
fn write_lines(mut task: File, numbers: Range<u32>) -> JoinHandle<File> {
    std::thread::spawn(move || {
        for n in numbers {
            task.write_all(format!("line {n} of the task\n").as_bytes())
                .unwrap();
        }
        task
    })
}

/// Reports where two long texts differ, without printing them.
fn assert_same(found: &str, expected: &str) {
    if found == expected {
        return;
    }
    let found: Vec<&str> = found.lines().collect();
    for (n, expected) in expected.lines().enumerate() {
        assert_eq!(found.get(n), Some(&expected), "line {n} of {}", found.len());
    }
    panic!("{} lines too many", found.len());
}

async fn until(what: &str, mut done: impl AsyncFnMut() -> bool) {
    let begun = Instant::now();
    while !done().await {
        assert!(
            begun.elapsed() < PATIENCE,
            "waited {PATIENCE:?} until {what}"
        );
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

async fn detach(ring: &LogRing, stream_id: StreamId) -> DetachReport {
    ring.detach(stream_id, PATIENCE).await.unwrap()
}

#[tokio::test]
async fn lines_of_many_writers_arrive_once_in_order() {
    for config in ALL {
        let place = TestDirs::new();
        let ring = LogRing::start(config).unwrap();
        let names: Vec<String> = (0..8).map(|n| format!("t{n}.stdout")).collect();
        let mut streams = Vec::new();
        for name in &names {
            streams.push(ring.attach(place.spec(name)).await.unwrap());
        }

        let writers = names
            .iter()
            .map(|name| write_lines(place.task_side(name), 0..10_000));
        for writer in writers.collect::<Vec<_>>() {
            writer.join().unwrap();
        }

        for (name, stream_id) in names.iter().zip(streams) {
            let report = detach(&ring, stream_id).await;
            let expected = lines(10_000);
            assert_same(&place.text(name), &expected);
            assert_eq!(report.left_bytes, 0);
            assert_eq!(report.stats.bytes, expected.len() as u64);
            assert_eq!(report.stats.rotations, expected.len() as u64 / 30_011);
            assert_eq!(report.stats.transfer, config.transfer);
        }
        ring.stop();
    }
}

/// A ring runs the requested engine, so that the tests above test io_uring.
#[test]
fn engine_is_the_one_that_was_asked_for() {
    let auto = LogRing::start(ALL[0]).unwrap();
    let epoll = LogRing::start(ALL[1]).unwrap();

    let allowed = io_uring::IoUring::new(2).is_ok();
    assert_eq!(
        *auto.engine() == Engine::IoUring,
        allowed,
        "{}",
        auto.engine()
    );
    assert_eq!(epoll.engine().to_string(), "epoll (asked for)");
}

#[tokio::test]
async fn writer_blocks_without_a_reader_and_loses_nothing() {
    for config in ALL {
        let place = TestDirs::new();
        let task = place.task_side("web.stdout");
        let ring = LogRing::start(config).unwrap();
        let stream_id = ring.attach(place.spec("web.stdout")).await.unwrap();
        let task = write_lines(task, 0..10_000).join().unwrap();
        until("bytes flow", async || {
            ring.stats(stream_id).await.unwrap().bytes > 0
        })
        .await;

        ring.stop();
        let writer = write_lines(task, 10_000..100_000);
        let fifo = place.fifo("web.stdout");
        // The remaining room of the FIFO is less than one line.
        let full = fifo.capacity() as u64 * 9 / 10;
        until("the FIFO is full", async || fifo.waiting().unwrap() > full).await;
        assert!(!writer.is_finished());
        let ring = LogRing::start(config).unwrap();
        let stream_id = ring.attach(place.spec("web.stdout")).await.unwrap();
        let task = tokio::task::spawn_blocking(|| writer.join().unwrap())
            .await
            .unwrap();

        detach(&ring, stream_id).await;
        assert_same(&place.text("web.stdout"), &lines(100_000));
        drop(task);
    }
}

/// The wait that is in flight when the loop stops must not take bytes that come later.
#[tokio::test]
async fn stopped_wait_takes_no_bytes() {
    for config in ALL {
        let place = TestDirs::new();
        let mut task = place.task_side("web.stdout");
        for round in 0..3 {
            let ring = LogRing::start(config).unwrap();
            let stream_id = ring.attach(place.spec("web.stdout")).await.unwrap();
            task.write_all(b"first\n").unwrap();
            until("it is idle", async || {
                ring.stats(stream_id).await.unwrap().offset == 12 * round + 6
            })
            .await;
            ring.stop();
            task.write_all(b"later\n").unwrap();
            let ring = LogRing::start(config).unwrap();
            let stream_id = ring.attach(place.spec("web.stdout")).await.unwrap();
            let report = detach(&ring, stream_id).await;
            assert_eq!(report.stats.bytes, 6);
        }
        assert_eq!(place.text("web.stdout"), "first\nlater\n".repeat(3));
    }
}

#[tokio::test]
async fn detach_drains_the_pipe_and_keeps_no_descriptor() {
    for config in ALL {
        let place = TestDirs::new();
        let mut task = place.task_side("web.stdout");
        let ring = LogRing::start(config).unwrap();
        let before = open_fifos(&place);
        for round in 0..20 {
            let stream_id = ring.attach(place.spec("web.stdout")).await.unwrap();
            task.write_all(lines(100).as_bytes()).unwrap();
            let report = detach(&ring, stream_id).await;
            assert_eq!(report.left_bytes, 0, "round {round}");
        }

        assert_same(&place.text("web.stdout"), &lines(100).repeat(20));
        assert_eq!(open_fifos(&place), before);
    }
}

fn open_fifos(place: &TestDirs) -> usize {
    let fifos = place.root.join("fifos");
    let open = fs::read_dir("/proc/self/fd").unwrap();
    let links = open.filter_map(|entry| fs::read_link(entry.unwrap().path()).ok());
    links.filter(|link| link.starts_with(&fifos)).count()
}

/// A writer that never stops cannot hold a detach up.
#[tokio::test]
async fn detach_from_a_busy_writer_ends_in_time() {
    for config in ALL {
        let place = TestDirs::new();
        let task = place.task_side("web.stdout");
        let ring = LogRing::start(config).unwrap();
        let stream_id = ring.attach(place.spec("web.stdout")).await.unwrap();
        let writer = write_lines(task, 0..400_000);

        let report = ring
            .detach(stream_id, Duration::from_millis(50))
            .await
            .unwrap();
        let again = ring.attach(place.spec("web.stdout")).await.unwrap();
        let task = tokio::task::spawn_blocking(|| writer.join().unwrap())
            .await
            .unwrap();
        let rest = detach(&ring, again).await;

        let expected = lines(400_000);
        assert_eq!(report.stats.bytes + rest.stats.bytes, expected.len() as u64);
        assert_same(&place.text("web.stdout"), &expected);
        drop(task);
    }
}

#[tokio::test]
async fn second_writer_of_the_same_files_is_refused() {
    let place = TestDirs::new();
    let ring = LogRing::start(ALL[0]).unwrap();
    let stream_id = ring.attach(place.spec("web.stdout")).await.unwrap();

    let twice = ring.attach(place.spec("web.stdout")).await.unwrap_err();
    detach(&ring, stream_id).await;

    assert!(matches!(twice, AttachError::Twice { .. }), "{twice}");
    assert!(matches!(
        ring.stats(stream_id).await,
        Err(StreamError::Unknown)
    ));
    assert!(matches!(
        ring.detach(stream_id, PATIENCE).await,
        Err(StreamError::Unknown)
    ));
    ring.attach(place.spec("web.stdout")).await.unwrap();
}

#[tokio::test]
async fn thousand_idle_streams_start_no_thread() {
    raise_descriptors();
    let place = TestDirs::new();
    let ring = LogRing::start(ALL[0]).unwrap();
    let mut streams = Vec::new();
    for n in 0..1_000 {
        streams.push(
            ring.attach(place.spec(&format!("t{n}.stdout")))
                .await
                .unwrap(),
        );
    }
    ring.stats(streams[0]).await.unwrap();

    let names = fs::read_dir("/proc/self/task").unwrap();
    let names = names.map(|task| fs::read_to_string(task.unwrap().path().join("comm")).unwrap());
    let workers = names.filter(|name| name.starts_with("iou-wrk")).count();

    assert_eq!(workers, 0);
    for stream_id in streams {
        detach(&ring, stream_id).await;
    }
}

/// A stream takes three descriptors: the FIFO, the log file and its times.
fn raise_descriptors() {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
}
