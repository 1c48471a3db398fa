//! Streams above their rate.

use std::io::Write as _;

use super::{
    ALL, Duration, TestDirs, assert_same, detach, lines, raise_descriptors, until, write_lines,
};
use crate::logs::{Chunk, GapCause, LogReader};
use crate::ring::{LogRing, OnFull, RateLimit, StreamSpec};

/// At a byte a second, these bytes are taken at once, and the next ones four minutes later.
const BURST: usize = 256;

fn spec(place: &TestDirs, bytes_per_second: u64, on_limit: OnFull) -> StreamSpec {
    StreamSpec {
        rate: Some(RateLimit {
            bytes_per_second,
            on_limit,
        }),
        ..place.spec("web.stdout")
    }
}

#[tokio::test]
async fn more_than_the_rate_waits_in_the_fifo() {
    for config in ALL {
        let place = TestDirs::new();
        let mut task = place.task_side("web.stdout");
        let ring = LogRing::start(config).unwrap();
        let stream_id = ring.attach(spec(&place, 1, OnFull::Block)).await.unwrap();
        let all = lines(1_000);

        task.write_all(all.as_bytes()).unwrap();
        until("the burst is taken", async || {
            ring.stats(stream_id).await.unwrap().bytes == BURST as u64
        })
        .await;
        let waiting = place.fifo("web.stdout").waiting().unwrap();
        let report = detach(&ring, stream_id).await;

        assert_eq!(waiting, (all.len() - BURST) as u64);
        assert_same(&place.text("web.stdout"), &all);
        assert_eq!((report.stats.dropped_bytes, report.left_bytes), (0, 0));
        assert!(report.stats.limited > Duration::ZERO);
    }
}

#[tokio::test]
async fn output_over_rate_becomes_counted_gap_when_dropping() {
    for config in ALL {
        let place = TestDirs::new();
        let mut task = place.task_side("web.stdout");
        let ring = LogRing::start(config).unwrap();
        let stream_id = ring.attach(spec(&place, 1, OnFull::Drop)).await.unwrap();
        let all = lines(1_000);

        task.write_all(all.as_bytes()).unwrap();
        until("all is counted", async || {
            ring.stats(stream_id).await.unwrap().offset == all.len() as u64
        })
        .await;
        let report = detach(&ring, stream_id).await;

        let dropped = (all.len() - BURST) as u64;
        let mut reader = LogReader::open(&place.logs(), "web.stdout").unwrap();
        let data = Chunk::Data {
            offset: 0,
            bytes: all.as_bytes()[..BURST].to_vec(),
        };
        let gap = Chunk::Gap {
            offset: BURST as u64,
            bytes: dropped,
            cause: GapCause::Dropped,
        };
        assert_eq!(reader.read(1_000).unwrap(), Some(data));
        assert_eq!(reader.read(1_000).unwrap(), Some(gap));
        assert_eq!(reader.read(1_000).unwrap(), None);
        assert_eq!(report.stats.dropped_bytes, dropped);
        assert!(report.stats.limited > Duration::ZERO);
    }
}

/// The writer exceeds its rate for a while, through rotation. Kept bytes are at their offsets, dropped ones are
/// reported, and no file is begun for those.
#[tokio::test]
async fn kept_and_dropped_bytes_add_up() {
    for config in ALL {
        let place = TestDirs::new();
        let ring = LogRing::start(config).unwrap();
        let stream_id = ring
            .attach(spec(&place, 100_000, OnFull::Drop))
            .await
            .unwrap();

        let writer = write_lines(place.task_side("web.stdout"), 0..300_000);
        let task = tokio::task::spawn_blocking(|| writer.join().unwrap())
            .await
            .unwrap();
        let report = detach(&ring, stream_id).await;

        let all = lines(300_000);
        let mut reader = LogReader::open(&place.logs(), "web.stdout").unwrap();
        let (mut kept, mut dropped) = (0, 0);
        while let Some(chunk) = reader.read(usize::MAX).unwrap() {
            match chunk {
                Chunk::Data { offset, bytes } => {
                    let at = usize::try_from(offset).unwrap();
                    assert!(all.as_bytes()[at..].starts_with(&bytes), "at {at}");
                    kept += bytes.len() as u64;
                }
                Chunk::Gap { bytes, .. } => dropped += bytes,
            }
        }
        assert_eq!(kept + dropped, all.len() as u64);
        assert_eq!(
            (report.stats.bytes, report.stats.dropped_bytes),
            (kept, dropped)
        );
        assert!(dropped > 0);
        let files = reader.files().unwrap().len() as u64;
        assert_eq!(files, kept.div_ceil(30_011));
        drop(task);
    }
}

/// A thousand streams exceed their rates: each is held, and not looked at before it may continue.
#[tokio::test]
async fn thousand_limited_streams_are_left_alone() {
    raise_descriptors();
    for config in [ALL[0], ALL[1]] {
        let place = TestDirs::new();
        let ring = LogRing::start(config).unwrap();
        let (mut streams, mut tasks) = (Vec::new(), Vec::new());
        for n in 0..1_000 {
            let name = format!("t{n}.stdout");
            let rate = Some(RateLimit {
                bytes_per_second: 1,
                on_limit: OnFull::Block,
            });
            let spec = StreamSpec {
                rate,
                ..place.spec(&name)
            };
            streams.push(ring.attach(spec).await.unwrap());
            let mut task = place.task_side(&name);
            task.write_all(&[b'x'; 1_000]).unwrap();
            tasks.push(task);
        }
        for &stream_id in &streams {
            until("the burst is taken", async || {
                ring.stats(stream_id).await.unwrap().bytes == BURST as u64
            })
            .await;
        }

        for stream_id in streams {
            let report = detach(&ring, stream_id).await;
            // One drain took the burst; the other took the rest at the end.
            assert_eq!((report.stats.drains, report.stats.bytes), (2, 1_000));
        }
        drop(tasks);
        ring.stop();
    }
}
