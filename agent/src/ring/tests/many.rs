//! As many writers as a busy node has.

use std::io::Write as _;

use super::{ALL, Place, assert_same, detach, lines, raise_descriptors};
use crate::logs::RotateLimits;
use crate::ring::{LogRing, StreamSpec};

const WRITERS: usize = 1_000;
const LINES: u32 = 100;

/// Each stream goes through two rotations; lines of all writers come in turn.
#[tokio::test]
async fn thousand_writers_lose_no_line_through_rotation() {
    raise_descriptors();
    let expected = lines(LINES);
    for config in [ALL[0], ALL[1]] {
        // In memory: ext4 looks for an inode that was not freed within five seconds, and takes a millisecond
        // for it where thousands were. A directory for each, as allocations have them.
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_absent| tempfile::tempdir());
        let dir = dir.unwrap();
        let place = |n: usize| {
            let root = dir.path().join(n.to_string());
            std::fs::create_dir(&root).unwrap();
            Place::at(&root)
        };
        let places: Vec<Place> = (0..WRITERS).map(place).collect();
        let ring = LogRing::start(config).unwrap();
        let (mut streams, mut tasks) = (Vec::new(), Vec::new());
        for place in &places {
            let limits = RotateLimits {
                max_files: 100,
                max_file_bytes: 1_009,
            };
            let spec = StreamSpec {
                limits,
                ..place.spec("web.stdout")
            };
            streams.push(ring.attach(spec).await.unwrap());
            tasks.push(place.task_side("web.stdout"));
        }

        let writers = tokio::task::spawn_blocking(move || {
            for n in 0..LINES {
                for task in &mut tasks {
                    writeln!(task, "line {n} of the task").unwrap();
                }
            }
            tasks
        });
        let tasks = writers.await.unwrap();

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
