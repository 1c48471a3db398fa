//! Numbers for the choices made in this module; nothing is asserted.

use std::io::Write as _;
use std::time::{Duration, Instant};

use super::{ALL, LogRing, TestDirs, detach};
use crate::logs::RotateLimits;
use crate::ring::StreamSpec;

/// CPU time of the thread named like the loop's, in seconds.
fn loop_cpu() -> f64 {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let ours = tasks.map(|task| task.unwrap().path()).filter(|task| {
        std::fs::read_to_string(task.join("comm")).is_ok_and(|name| name.trim() == "muster-logs")
    });
    let nanos = ours.map(|task| {
        let stat = std::fs::read_to_string(task.join("schedstat")).unwrap();
        stat.split(' ').next().unwrap().parse::<f64>().unwrap()
    });
    nanos.sum::<f64>() / 1e9
}

#[tokio::test]
#[ignore = "a measurement: cargo test --release -p muster-agent ring::tests::measure -- --ignored --nocapture"]
async fn throughput_and_cost() {
    // FIFOs, bytes a write, bytes in all, and the pause of each writer after a write.
    let cases = [
        (1, 128, 256 << 20, 0),
        (1, 4_096, 2 << 30, 0),
        (1, 65_536, 4_u64 << 30, 0),
        (64, 256, 256 << 20, 0),
        (64, 4_096, 1 << 30, 0),
        (1_000, 128, 1_000 * 128 * 500, 10),
    ];
    for (fifos, write, total, pause_ms) in cases {
        for config in ALL {
            run(config, fifos, write, total, Duration::from_millis(pause_ms)).await;
        }
    }
}

async fn run(
    config: crate::ring::RingConfig,
    fifos: u64,
    write: usize,
    total: u64,
    pause: Duration,
) {
    let place = TestDirs::new();
    let ring = LogRing::start(config).unwrap();
    let mut streams = Vec::new();
    let mut tasks = Vec::new();
    for n in 0..fifos {
        let name = format!("t{n}.stdout");
        let limits = RotateLimits {
            max_files: 2,
            max_file_bytes: 10 << 20,
        };
        let spec = StreamSpec {
            limits,
            ..place.spec(&name)
        };
        streams.push(ring.attach(spec).await.unwrap());
        tasks.push(place.task_side(&name));
    }
    let (cpu, begun) = (loop_cpu(), Instant::now());
    let writer = std::thread::spawn(move || {
        let line = vec![b'x'; write];
        for _ in 0..total / fifos / write as u64 {
            for task in &mut tasks {
                task.write_all(&line).unwrap();
            }
            if !pause.is_zero() {
                std::thread::sleep(pause);
            }
        }
        tasks
    });
    let tasks = tokio::task::spawn_blocking(|| writer.join().unwrap())
        .await
        .unwrap();
    let (mut bytes, mut drains) = (0, 0);
    // The thread's own time is read before it ends.
    for &stream_id in &streams {
        let stats = ring.stats(stream_id).await.unwrap();
        (bytes, drains) = (bytes + stats.bytes, drains + stats.drains);
    }
    let (cpu, wall) = (loop_cpu() - cpu, begun.elapsed().as_secs_f64());
    for stream_id in streams {
        detach(&ring, stream_id).await;
    }
    drop(tasks);
    let engine = format!("{:?}/{:?}", config.engine, config.transfer);
    println!(
        "{engine:13} fifos={fifos:4} write={write:5}: {:5.0} MB/s, {:5.0} MB per core-second, \
         {:5.2} us of CPU a write, {:6.1} KiB a drain",
        bytes as f64 / wall / 1e6,
        bytes as f64 / cpu / 1e6,
        cpu * 1e6 / (bytes as f64 / write as f64),
        bytes as f64 / drains as f64 / 1024.0,
    );
    ring.stop();
}
