//! Files of silent streams: they are not made, and not held open.

use std::io::Write as _;

use super::{ALL, File, LogRing, OnFull, StreamId, StreamSpec, TestDirs, detach, fs, lines, until};
use crate::logs::{Chunk, GapCause, LogReader, RotateLimits};

/// The stream is like that of a task that is started for the first time.
fn first(place: &TestDirs, name: &str) -> StreamSpec {
    StreamSpec {
        begins: true,
        ..place.spec(name)
    }
}

/// Descriptors of this process on files or directories at or below the place's logs.
fn open_logs(place: &TestDirs) -> usize {
    let open = fs::read_dir("/proc/self/fd").unwrap();
    let links = open.filter_map(|entry| fs::read_link(entry.unwrap().path()).ok());
    links.filter(|link| link.starts_with(place.logs())).count()
}

fn names(place: &TestDirs) -> Vec<String> {
    let entries = fs::read_dir(place.logs()).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Writes the text, and waits until the loop has taken it.
async fn write_text(ring: &LogRing, stream_id: StreamId, task: &mut File, text: &str) {
    let before = ring.stats(stream_id).await.unwrap().offset;
    task.write_all(text.as_bytes()).unwrap();
    until("it is taken", async || {
        ring.stats(stream_id).await.unwrap().offset == before + text.len() as u64
    })
    .await;
}

/// Sweeps twice with no output in between.
async fn fall_silent(ring: &LogRing, place: &TestDirs) {
    ring.sweep().await.unwrap();
    ring.sweep().await.unwrap();
    until("files are closed", async || open_logs(place) == 0).await;
}

#[tokio::test]
async fn silent_streams_have_no_files_and_one_descriptor() {
    for config in ALL {
        let place = TestDirs::new();
        let ring = LogRing::start(config).unwrap();
        let mut streams = Vec::new();
        for name in ["web.stdout", "web.stderr"] {
            streams.push(ring.attach(first(&place, name)).await.unwrap());
            // The recovery of a stream without output makes no file either.
            streams.push(
                ring.attach(place.spec(&format!("again.{name}")))
                    .await
                    .unwrap(),
            );
        }

        assert_eq!(open_logs(&place), 0);
        for stream_id in streams {
            assert_eq!(detach(&ring, stream_id).await.left_bytes, 0);
        }
        assert_eq!(names(&place), Vec::<String>::new());
    }
}

#[tokio::test]
async fn first_byte_makes_the_files() {
    for config in ALL {
        let place = TestDirs::new();
        let mut task = place.task_side("web.stdout");
        let ring = LogRing::start(config).unwrap();
        let stream_id = ring.attach(first(&place, "web.stdout")).await.unwrap();
        let mut reader = LogReader::open(&place.logs(), "web.stdout").unwrap();
        assert_eq!(reader.read(100).unwrap(), None);

        write_text(&ring, stream_id, &mut task, "word\n").await;

        assert_eq!(names(&place), [".web.stdout.0.times", "web.stdout.0"]);
        let (offset, bytes) = (0, b"word\n".to_vec());
        assert_eq!(
            reader.read(100).unwrap(),
            Some(Chunk::Data { offset, bytes })
        );
        drop(reader);
        assert_eq!(open_logs(&place), 2, "log file and times");
    }
}

/// Three rounds through several rotations, with the files closed between them.
#[tokio::test]
async fn closed_files_go_on_at_the_next_byte() {
    for config in ALL {
        let place = TestDirs::new();
        let mut task = place.task_side("web.stdout");
        let ring = LogRing::start(config).unwrap();
        let spec = StreamSpec {
            limits: RotateLimits {
                max_files: 100,
                max_file_bytes: 1_009,
            },
            ..first(&place, "web.stdout")
        };
        let stream_id = ring.attach(spec).await.unwrap();

        for _ in 0..3 {
            write_text(&ring, stream_id, &mut task, &lines(100)).await;
            fall_silent(&ring, &place).await;
        }

        let report = detach(&ring, stream_id).await;
        let expected = lines(100).repeat(3);
        assert_eq!(place.text("web.stdout"), expected);
        assert_eq!(report.stats.offset, expected.len() as u64);
        assert_eq!(report.stats.rotations, expected.len() as u64 / 1_009);
    }
}

/// The stream had output between the two sweeps.
#[tokio::test]
async fn stream_that_speaks_keeps_its_files() {
    let place = TestDirs::new();
    let mut task = place.task_side("web.stdout");
    let ring = LogRing::start(ALL[0]).unwrap();
    let stream_id = ring.attach(first(&place, "web.stdout")).await.unwrap();
    for _ in 0..3 {
        write_text(&ring, stream_id, &mut task, "word\n").await;
        ring.sweep().await.unwrap();
        assert_eq!(open_logs(&place), 2);
    }
}

/// Space for the records of gaps is reserved while the disk has some, and no file is held open for it.
#[tokio::test]
async fn droppable_stream_creates_log_files_at_attach() {
    let place = TestDirs::new();
    let ring = LogRing::start(ALL[0]).unwrap();
    let spec = StreamSpec {
        on_full: OnFull::Drop,
        ..first(&place, "web.stdout")
    };

    ring.attach(spec).await.unwrap();

    assert_eq!(names(&place), [".web.stdout.0.gaps", "web.stdout.0"]);
    assert_eq!(open_logs(&place), 0);
}

/// The directory is missing when the first byte comes. The stream reports that as a failed write, and tries again.
#[tokio::test]
async fn log_file_creation_failure_blocks_stream() {
    for config in ALL {
        let place = TestDirs::new();
        let mut task = place.task_side("web.stdout");
        let ring = LogRing::start(config).unwrap();
        let stream_id = ring.attach(first(&place, "web.stdout")).await.unwrap();
        fs::remove_dir(place.logs()).unwrap();

        task.write_all(b"word\n").unwrap();
        let blocked = async || ring.stats(stream_id).await.unwrap().blocked;
        until("the write fails", async || blocked().await.is_some()).await;
        let why = blocked().await.unwrap_or_default();
        assert!(why.contains("open log directory"), "{why}");
        fs::create_dir(place.logs()).unwrap();
        let report = detach(&ring, stream_id).await;

        assert_eq!((report.stats.blocked, report.left_bytes), (None, 0));
        assert_eq!(place.text("web.stdout"), "word\n");
    }
}

/// A gap that could not be recorded when its bytes were dropped is recorded before the next byte.
#[tokio::test]
async fn log_file_creation_failure_becomes_gap_when_dropping() {
    let place = TestDirs::new();
    let mut task = place.task_side("web.stdout");
    let ring = LogRing::start(ALL[0]).unwrap();
    let spec = StreamSpec {
        on_full: OnFull::Drop,
        ..first(&place, "web.stdout")
    };
    let stream_id = ring.attach(spec).await.unwrap();
    fs::remove_dir_all(place.logs()).unwrap();

    write_text(&ring, stream_id, &mut task, "lost\n").await;
    fs::create_dir(place.logs()).unwrap();
    write_text(&ring, stream_id, &mut task, "kept\n").await;

    assert_eq!(ring.stats(stream_id).await.unwrap().dropped_bytes, 5);
    let mut reader = LogReader::open(&place.logs(), "web.stdout").unwrap();
    reader.seek(0);
    let gap = reader.read(100).unwrap();
    let lost = |cause| Chunk::Gap {
        offset: 0,
        bytes: 5,
        cause,
    };
    assert!(gap == Some(lost(GapCause::Dropped)) || gap == Some(lost(GapCause::Rotated)));
    let (offset, bytes) = (5, b"kept\n".to_vec());
    assert_eq!(
        reader.read(100).unwrap(),
        Some(Chunk::Data { offset, bytes })
    );
}
