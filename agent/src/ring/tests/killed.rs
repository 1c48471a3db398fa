//! SIGKILL for a process that drains, again and again, under a writer at full speed.

use std::io::Write as _;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;

use rustix::process::{Signal, getpid, kill_process};

use super::{
    ALL, Child, Command, Duration, LogRing, Path, Stdio, TestDirs, assert_same, detach, lines,
    raise_descriptors, until, write_lines,
};
use crate::logs::{Chunk, LogReader, RotateLimits};
use crate::ring::{OnFull, RateLimit, StreamSpec};

const ROOT_ENV: &str = "MUSTER_TEST_RING_ROOT";
const CONFIG_ENV: &str = "MUSTER_TEST_RING_CONFIG";
const WHAT_ENV: &str = "MUSTER_TEST_RING_WHAT";

const WRITERS: usize = 1_000;
/// Number of times that another process drains all writers.
const ROUNDS: u32 = 5;
/// Lines of each writer in a round.
const ROUND_LINES: u32 = 200;

/// The streams that a child drains.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ChildWorkload {
    One,
    /// More bytes than its rate, which are thrown away.
    OneAboveItsRate,
    /// A thousand streams, each in its own directory.
    Thousand,
}

impl ChildWorkload {
    const ALL: [(Self, &'static str); 3] = [
        (Self::One, "one"),
        (Self::OneAboveItsRate, "limited"),
        (Self::Thousand, "thousand"),
    ];

    fn as_str(self) -> &'static str {
        Self::ALL.iter().find(|(what, _)| *what == self).unwrap().1
    }

    fn specs(self, root: &Path) -> Vec<StreamSpec> {
        match self {
            Self::One => vec![TestDirs::at(root).spec("web.stdout")],
            Self::OneAboveItsRate => vec![above_its_rate(&TestDirs::at(root))],
            Self::Thousand => places(root).iter().map(small_files).collect(),
        }
    }
}

fn above_its_rate(place: &TestDirs) -> StreamSpec {
    StreamSpec {
        rate: Some(RateLimit {
            bytes_per_second: 1_000_000,
            on_limit: OnFull::Drop,
        }),
        ..place.spec("web.stdout")
    }
}

fn places(root: &Path) -> Vec<TestDirs> {
    let place = |n: usize| TestDirs::at(&root.join(n.to_string()));
    (0..WRITERS).map(place).collect()
}

/// Each stream goes through some rotations.
fn small_files(place: &TestDirs) -> StreamSpec {
    StreamSpec {
        limits: RotateLimits {
            max_files: 100,
            max_file_bytes: 4_001,
        },
        ..place.spec("web.stdout")
    }
}

/// Discards of this process so far.
static DISCARDS: AtomicU32 = AtomicU32::new(0);

/// Is called between the record of a gap and the discard of its bytes. A dropping child is killed here at its third
/// discard.
pub(in crate::ring) fn before_a_discard() {
    let limited =
        std::env::var(WHAT_ENV).is_ok_and(|what| what == ChildWorkload::OneAboveItsRate.as_str());
    if limited && DISCARDS.fetch_add(1, Ordering::Relaxed) == 2 {
        kill_process(getpid(), Signal::KILL).unwrap();
    }
}

/// The body of the child: drains until it is killed.
#[tokio::test]
#[ignore = "the child process of the tests below"]
async fn drains_until_killed() {
    let Some(root) = std::env::var_os(ROOT_ENV) else {
        return;
    };
    let config: usize = std::env::var(CONFIG_ENV).unwrap().parse().unwrap();
    let word = std::env::var(WHAT_ENV).unwrap();
    let (what, _) = ChildWorkload::ALL
        .into_iter()
        .find(|(_, of)| *of == word)
        .unwrap();
    raise_descriptors();
    let ring = LogRing::start(ALL[config]).unwrap();
    for spec in what.specs(Path::new(&root)) {
        ring.attach(spec).await.unwrap();
    }
    std::future::pending::<()>().await;
}

fn spawn(root: &Path, config: usize, what: ChildWorkload) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "ring::tests::killed::drains_until_killed",
            "--ignored",
        ])
        .env(ROOT_ENV, root)
        .env(WHAT_ENV, what.as_str())
        .env(CONFIG_ENV, config.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

fn end(place: &TestDirs) -> u64 {
    let files = LogReader::open(&place.logs(), "web.stdout")
        .unwrap()
        .files()
        .unwrap();
    files.last().map_or(0, |file| file.offset + file.bytes)
}

/// Both engines, with splice. With copy the test would fail.
#[tokio::test]
async fn killed_drainer_neither_loses_nor_repeats() {
    for config in [0, 1] {
        let place = TestDirs::new();
        let writer = write_lines(place.task_side("web.stdout"), 0..600_000);
        let mut kills = 0;
        while !writer.is_finished() {
            let mut child = spawn(&place.root, config, ChildWorkload::One);
            let before = end(&place);
            let due = 300_000 + 7_919 * kills;
            until("the child drains", async || {
                end(&place) > before + due || writer.is_finished()
            })
            .await;
            tokio::time::sleep(Duration::from_micros(337 * (kills % 10))).await;
            child.kill().unwrap();
            child.wait().unwrap();
            kills += 1;
        }
        let task = writer.join().unwrap();
        let ring = LogRing::start(ALL[config]).unwrap();
        let stream_id = ring.attach(place.spec("web.stdout")).await.unwrap();
        detach(&ring, stream_id).await;

        assert_same(&place.text("web.stdout"), &lines(600_000));
        assert!(kills >= 5, "{kills}");
        drop(task);
    }
}

/// A thousand writers, and five kills between their writes. Both engines, with splice.
#[tokio::test]
async fn killed_drainer_loses_and_repeats_no_lines() {
    raise_descriptors();
    for config in [0, 1] {
        // The files are in memory: see `many`.
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_absent| tempfile::tempdir());
        let dir = dir.unwrap();
        for n in 0..WRITERS {
            std::fs::create_dir(dir.path().join(n.to_string())).unwrap();
        }
        let places = places(dir.path());
        let mut tasks: Vec<_> = places.iter().map(|p| p.task_side("web.stdout")).collect();
        let (go, rounds) = mpsc::sync_channel(ROUNDS as usize);
        let writer = std::thread::spawn(move || {
            for round in rounds {
                for n in round * ROUND_LINES..(round + 1) * ROUND_LINES {
                    for task in &mut tasks {
                        task.write_all(format!("line {n} of the task\n").as_bytes())
                            .unwrap();
                    }
                }
            }
            tasks
        });

        for round in 0..ROUNDS {
            // A different stream is watched each time, whose earlier bytes are all drained. `due` is less than the
            // bytes of a round.
            let watched = &places[211 * (round as usize + 1) % WRITERS];
            let before = end(watched);
            let mut child = spawn(dir.path(), config, ChildWorkload::Thousand);
            go.send(round).unwrap();
            let due = 501 * (u64::from(round) + 1);
            until("the child drains", async || end(watched) > before + due).await;
            child.kill().unwrap();
            child.wait().unwrap();
        }
        drop(go);
        let tasks = tokio::task::spawn_blocking(|| writer.join().unwrap())
            .await
            .unwrap();
        let ring = LogRing::start(ALL[config]).unwrap();
        let mut streams = Vec::new();
        for place in &places {
            streams.push(ring.attach(small_files(place)).await.unwrap());
        }

        let expected = lines(ROUNDS * ROUND_LINES);
        for (place, stream_id) in places.iter().zip(streams) {
            let report = detach(&ring, stream_id).await;
            assert_eq!(report.left_bytes, 0);
            assert_eq!(report.stats.offset, expected.len() as u64);
            assert_same(&place.text("web.stdout"), &expected);
        }
        drop(tasks);
        ring.stop();
    }
}

/// A gap is recorded before its bytes are thrown away. Whenever the kill comes, kept bytes appear once and in
/// order. Missing bytes have a gap that is at least as large.
#[tokio::test]
async fn killed_dropper_announces_missing_bytes() {
    for config in [0, 1] {
        let place = TestDirs::new();
        let writer = write_lines(place.task_side("web.stdout"), 0..600_000);
        let mut kills = 0;
        while !writer.is_finished() {
            let mut child = spawn(&place.root, config, ChildWorkload::OneAboveItsRate);
            until("the child is killed", async || {
                child.try_wait().unwrap().is_some() || writer.is_finished()
            })
            .await;
            child.kill().unwrap();
            child.wait().unwrap();
            kills += 1;
        }
        let task = writer.join().unwrap();
        let ring = LogRing::start(ALL[config]).unwrap();
        let stream_id = ring.attach(above_its_rate(&place)).await.unwrap();
        let report = detach(&ring, stream_id).await;

        let all = lines(600_000);
        let mut reader = LogReader::open(&place.logs(), "web.stdout").unwrap();
        // The earliest position in `all` of the next byte, the size of the gap before it, and the number of gaps
        // that were too large.
        let (mut earliest, mut missing, mut uneven) = (0, 0, 0);
        let mut piece = Vec::new();
        loop {
            let chunk = reader.read(usize::MAX).unwrap();
            if let Some(Chunk::Data { bytes, .. }) = chunk {
                piece.extend(bytes);
                continue;
            }
            if !piece.is_empty() {
                let text = str::from_utf8(&piece).unwrap();
                let skipped = all[earliest..].find(text).expect("bytes of the task");
                assert!(
                    skipped as u64 <= missing,
                    "{skipped} of {missing} at {earliest}"
                );
                uneven += u64::from(missing != skipped as u64);
                earliest += skipped + piece.len();
                missing = 0;
                piece.clear();
            }
            match chunk {
                Some(Chunk::Gap { bytes, .. }) => missing += bytes,
                _ => break,
            }
        }
        let rest = (all.len() - earliest) as u64;
        assert!(rest <= missing, "{rest} of {missing} at the end");
        // Each kill counts at most the content of the FIFO twice.
        let most = all.len() as u64 + kills * 1024 * 1024;
        assert!((all.len() as u64..=most).contains(&report.stats.offset));
        assert!(kills >= 2 && uneven <= kills, "{uneven} of {kills}");
        drop(task);
    }
}
