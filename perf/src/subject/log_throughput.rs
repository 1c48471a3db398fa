//! `log_throughput`: the agent's log loop draining 1, 64 and 1 000 FIFOs into rotated files.
//!
//! A child process holds the FIFOs as tasks do, open read-write, and writes numbered lines of 128 bytes,
//! 4 KiB at a time, as fast as they are taken; so this process's CPU time is the reader's alone.
//! `paced_1000` is the common case: 1 000 FIFOs with 100 lines/s each, one line a write.
//!
//! The rivals are the loop with its epoll engine, and a bare epoll loop that reads and writes
//! ([`bare`]). Lines are counted afterwards in the files, so that a fast loop that loses is seen.

mod bare;
mod lines;
mod writer;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::ensure;
use futures::future::try_join_all;
use muster_agent::logs::{Fifo, LogDir, RotateLimits};
use muster_agent::ring::{Engine, EngineChoice, LogRing, OnFull, RingConfig, StreamSpec, Transfer};

use crate::harness::{Context, CpuClock, Metric, Tally};
use writer::{Load, Writer};

pub(crate) use writer::{CHILD, child};

/// The rivals' names, as `budgets.toml` knows them.
const EPOLL: &str = "the same loop on epoll";
const BARE: &str = "bare epoll read and write";

/// What is kept of a stream: the default of a task.
const LIMITS: RotateLimits = RotateLimits {
    max_files: 10,
    max_file_bytes: 10 << 20,
};
/// Far above what draining the last bytes takes.
const DETACH_WAIT: Duration = Duration::from_mins(1);

/// The subject.
pub(crate) fn run(context: &Context) -> anyhow::Result<Vec<Metric>> {
    let bytes: u64 = context.pick(1 << 30, 256 << 20);
    let paced = Load {
        fifos: 1_000,
        lines: context.pick(500, 200),
        pace: Duration::from_millis(10),
    };
    let mut tally = Tally::default();
    for _ in 0..context.rounds() {
        for fifos in [1, 64, 1_000] {
            let load = Load {
                fifos,
                lines: bytes / fifos / lines::LINE_BYTES,
                pace: Duration::ZERO,
            };
            round(context, load, &fifos.to_string(), &mut tally)?;
        }
        round(context, paced, "paced_1000", &mut tally)?;
    }
    Ok(tally.finish())
}

fn round(context: &Context, load: Load, case: &str, tally: &mut Tally) -> anyhow::Result<()> {
    let ours = Place::new(context, load)?.with_ring(EngineChoice::Auto)?;
    let epoll = Place::new(context, load)?.with_ring(EngineChoice::Epoll)?;
    let bare = Place::new(context, load)?.bare()?;
    for (name, unit, value) in ours.values(load, case) {
        tally.ours(&name, unit, value);
    }
    for (rival, drained) in [(BARE, bare), (EPOLL, epoll)] {
        for (name, unit, value) in drained.values(load, case) {
            tally.rival(&name, unit, rival, value);
        }
    }
    Ok(())
}

/// What draining a load took.
struct Drained {
    wall: Duration,
    cpu: Duration,
    lost: u64,
}

impl Drained {
    fn values(&self, load: Load, case: &str) -> Vec<(String, &'static str, f64)> {
        let (wall, cpu) = (self.wall.as_secs_f64(), self.cpu.as_secs_f64());
        let lost = (format!("lines_lost_{case}"), "lines", self.lost as f64);
        if !load.pace.is_zero() {
            let lines = (load.fifos * load.lines) as f64;
            return vec![
                (
                    format!("us_per_line_{case}"),
                    "µs of CPU",
                    cpu * 1e6 / lines,
                ),
                lost,
            ];
        }
        let bytes = load.bytes() as f64;
        vec![
            (format!("mb_s_{case}"), "MB/s", bytes / 1e6 / wall),
            (format!("cpu_s_per_gb_{case}"), "s", cpu * 1e9 / bytes),
            (format!("mb_per_cpu_s_{case}"), "MB/s", bytes / 1e6 / cpu),
            lost,
        ]
    }
}

/// FIFOs and log files of one load.
struct Place {
    load: Load,
    dir: tempfile::TempDir,
    fifos: Vec<Fifo>,
}

impl Place {
    fn new(context: &Context, load: Load) -> anyhow::Result<Self> {
        let dir = context.subdir()?;
        let fifo_dir = LogDir::create(&dir.path().join("fifos"))?;
        LogDir::create(&dir.path().join("logs"))?;
        let fifos = (0..load.fifos)
            .map(|number| Ok(Fifo::create(&fifo_dir, &lines::stream_name(number), None)?))
            .collect::<anyhow::Result<Vec<_>>>()?;
        Ok(Self { load, dir, fifos })
    }

    fn logs(&self) -> PathBuf {
        self.dir.path().join("logs")
    }

    fn writer(&self) -> anyhow::Result<Writer> {
        Writer::start(&self.dir.path().join("fifos"), self.load)
    }

    /// Drained by the agent's loop.
    fn with_ring(mut self, engine: EngineChoice) -> anyhow::Result<Drained> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let ring = LogRing::start(RingConfig {
            engine,
            transfer: Transfer::default(),
        })?;
        if engine == EngineChoice::Auto {
            ensure!(
                *ring.engine() == Engine::IoUring,
                "the loop runs on {}",
                ring.engine()
            );
        }
        let mut streams = Vec::new();
        for (number, fifo) in (0..).zip(std::mem::take(&mut self.fifos)) {
            let (dir, name) = (self.logs(), lines::stream_name(number));
            let spec = StreamSpec {
                fifo,
                dir,
                name,
                limits: LIMITS,
                on_full: OnFull::Block,
                rate: None,
            };
            streams.push(runtime.block_on(ring.attach(spec))?);
        }
        let writer = self.writer()?;
        let (begun, clock) = (Instant::now(), CpuClock::of_process()?);
        writer.run()?;
        let detached = streams
            .iter()
            .map(|&stream| ring.detach(stream, DETACH_WAIT));
        let reports = runtime.block_on(try_join_all(detached))?;
        let (wall, cpu) = (begun.elapsed(), clock.elapsed()?);
        ring.stop();
        let bytes: u64 = reports.iter().map(|report| report.stats.bytes).sum();
        self.judge(wall, cpu, bytes)
    }

    /// Drained by the bare loop.
    fn bare(self) -> anyhow::Result<Drained> {
        let writer = self.writer()?;
        let (begun, clock) = (Instant::now(), CpuClock::of_process()?);
        let (fifos, logs, expected) = (&self.fifos, self.logs(), self.load.bytes());
        let bytes = std::thread::scope(|scope| {
            let reader = scope.spawn(|| bare::drain(fifos, &logs, LIMITS, expected));
            writer.run()?;
            reader
                .join()
                .map_err(|_panic| anyhow::anyhow!("the bare loop panicked"))?
        })?;
        let (wall, cpu) = (begun.elapsed(), clock.elapsed()?);
        self.judge(wall, cpu, bytes)
    }

    fn judge(&self, wall: Duration, cpu: Duration, bytes: u64) -> anyhow::Result<Drained> {
        let missing = self.load.bytes().saturating_sub(bytes) / lines::LINE_BYTES;
        let broken = lines::lost(&self.logs(), self.load)?;
        Ok(Drained {
            wall,
            cpu,
            lost: missing.max(broken),
        })
    }
}
