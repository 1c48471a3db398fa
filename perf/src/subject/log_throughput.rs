//! `log_throughput`: the agent's log loop, which drains 1, 64 and 1 000 FIFOs into rotated files.
//!
//! A child process holds the FIFOs open read-write, as tasks do, and writes numbered lines of 128 bytes. It writes 4
//! KiB at a time, as fast as the bytes are consumed. This process's CPU time is therefore the reader's alone.
//! `paced_1000` is the common case: 1 000 FIFOs with 100 lines/s each, one line per write. The writing process also
//! measures the delay until lines are in their files ([`delay`]). The first second does not count for any contender.
//! Tasks write for hours, and in the first second each stream still creates its files.
//!
//! The rivals are the loop with its epoll engine, a bare epoll loop that reads and writes or that splices ([`bare`]),
//! and a `cat` for each FIFO ([`cat`]). Lines are counted in the files afterwards, so that a fast loop that loses
//! lines is detected. Counted files are emptied and stay until the end. After the removal of thousands of files, ext4
//! creates new ones slowly for seconds, some 100 µs each. The next contender would be charged for that.

mod bare;
mod cat;
mod delay;
mod lines;
mod load;
mod writer;

use std::fs::{self, OpenOptions};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::ensure;
use futures::future::try_join_all;
use muster_agent::logs::{Fifo, LogDir, RotateLimits};
use muster_agent::ring::{Engine, EngineChoice, LogRing, OnFull, RingConfig, StreamSpec, Transfer};

use tempfile::TempDir;

use crate::harness::{Context, CpuClock, Metric, MetricSet};
use cat::Cats;
use lines::LOGS;
use load::WriterLoad;
use writer::Writer;

pub(crate) use writer::{CHILD, child};

/// The rivals' names, as `budgets.toml` knows them.
const EPOLL: &str = "the same loop on epoll";
const BARE: &str = "bare epoll read and write";
const SPLICE: &str = "bare epoll and splice";
const CAT: &str = "a cat for each";

/// Limits of the rotated files of a stream: the defaults of a task.
const LIMITS: RotateLimits = RotateLimits {
    max_files: 10,
    max_file_bytes: 10 << 20,
};
/// Paced lines of each stream that do not count: those of the first second.
const WARM_UP_LINES: u64 = 100;
/// A limit far above the time for draining the last bytes.
const DETACH_WAIT: Duration = Duration::from_mins(1);

/// The subject.
pub(crate) fn run(context: &Context) -> anyhow::Result<Vec<Metric>> {
    let bytes: u64 = context.pick(1 << 30, 256 << 20);
    let paced = WriterLoad {
        fifos: 1_000,
        lines: context.pick(600, 300),
        pace: Duration::from_millis(10),
        warm_up: WARM_UP_LINES,
    };
    let mut tally = MetricSet::default();
    let mut left = Vec::new();
    for _ in 0..context.rounds() {
        for fifos in [1, 64, 1_000] {
            let load = WriterLoad {
                fifos,
                lines: bytes / fifos / lines::LINE_BYTES,
                pace: Duration::ZERO,
                warm_up: 0,
            };
            left.extend(round(context, load, &fifos.to_string(), &mut tally)?);
        }
        left.extend(round(context, paced, "paced_1000", &mut tally)?);
    }
    Ok(tally.finish())
}

/// Runs each contender once. Returns the remaining directories.
fn round(
    context: &Context,
    load: WriterLoad,
    case: &str,
    tally: &mut MetricSet,
) -> anyhow::Result<[TempDir; 5]> {
    let ours = LogFixture::new(context, load)?.with_ring(EngineChoice::Auto)?;
    let epoll = LogFixture::new(context, load)?.with_ring(EngineChoice::Epoll)?;
    let bare = LogFixture::new(context, load)?.drain_bare(bare::CopyMethod::ReadWrite)?;
    let splice = LogFixture::new(context, load)?.drain_bare(bare::CopyMethod::Splice)?;
    let cat = LogFixture::new(context, load)?.cat()?;
    for (name, unit, value) in ours.values(load, case) {
        tally.add_muster_value(&name, unit, value);
    }
    for (rival, drained) in [
        (BARE, &bare),
        (SPLICE, &splice),
        (CAT, &cat),
        (EPOLL, &epoll),
    ] {
        for (name, unit, value) in drained.values(load, case) {
            tally.add_rival_value(&name, unit, rival, value);
        }
    }
    Ok([ours, epoll, bare, splice, cat].map(|drained| drained.dir))
}

/// The result of draining a load: times, lost lines, delay.
struct DrainResult {
    wall: Duration,
    cpu: Duration,
    lost: u64,
    /// The 99th percentile of the delay from the write of a paced line until it is in the file.
    delay: Option<Duration>,
    /// The directory of the emptied files.
    dir: TempDir,
}

impl DrainResult {
    fn values(&self, load: WriterLoad, case: &str) -> Vec<(String, &'static str, f64)> {
        let (wall, cpu) = (self.wall.as_secs_f64(), self.cpu.as_secs_f64());
        let lost = (format!("lines_lost_{case}"), "lines", self.lost as f64);
        if !load.pace.is_zero() {
            let lines = (load.fifos * (load.lines - load.warm_up)) as f64;
            let delay = self.delay.map_or(f64::NAN, |delay| delay.as_secs_f64());
            return vec![
                (format!("delay_ms_p99_{case}"), "ms", delay * 1e3),
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
            (
                format!("lines_s_{case}"),
                "lines/s",
                bytes / lines::LINE_BYTES as f64 / wall,
            ),
            (format!("cpu_s_per_gb_{case}"), "s", cpu * 1e9 / bytes),
            (format!("mb_per_cpu_s_{case}"), "MB/s", bytes / 1e6 / cpu),
            lost,
        ]
    }
}

/// Clocks of the wall time and of this process's CPU time for a load.
struct LoadClocks {
    begun: Instant,
    clock: CpuClock,
    wall: Duration,
    cpu: Duration,
    stopped: bool,
}

impl LoadClocks {
    fn start() -> anyhow::Result<Self> {
        Ok(Self {
            begun: Instant::now(),
            clock: CpuClock::of_process()?,
            wall: Duration::ZERO,
            cpu: Duration::ZERO,
            stopped: false,
        })
    }

    /// Starts both clocks anew.
    fn restart(&mut self) -> anyhow::Result<()> {
        *self = Self::start()?;
        Ok(())
    }

    /// Stops both clocks at the first call; later calls change nothing.
    fn stop(&mut self) -> anyhow::Result<()> {
        if !self.stopped {
            (self.wall, self.cpu) = (self.begun.elapsed(), self.clock.elapsed()?);
            self.stopped = true;
        }
        Ok(())
    }
}

/// FIFOs and log files of one load.
struct LogFixture {
    load: WriterLoad,
    dir: TempDir,
    fifos: Vec<Fifo>,
}

impl LogFixture {
    fn new(context: &Context, load: WriterLoad) -> anyhow::Result<Self> {
        let dir = context.subdir()?;
        let fifo_dir = LogDir::create(&dir.path().join("fifos"))?;
        LogDir::create(&dir.path().join(LOGS))?;
        let fifos = (0..load.fifos)
            .map(|number| Ok(Fifo::create(&fifo_dir, &lines::stream_name(number), None)?))
            .collect::<anyhow::Result<Vec<_>>>()?;
        Ok(Self { load, dir, fifos })
    }

    fn logs(&self) -> PathBuf {
        self.dir.path().join(LOGS)
    }

    fn fifo_dir(&self) -> PathBuf {
        self.dir.path().join("fifos")
    }

    fn writer(&self) -> anyhow::Result<Writer> {
        Writer::start(&self.fifo_dir(), self.load)
    }

    /// Drains the FIFOs with the agent's loop.
    fn with_ring(mut self, engine: EngineChoice) -> anyhow::Result<DrainResult> {
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
                begins: true,
            };
            streams.push(runtime.block_on(ring.attach(spec))?);
        }
        let writer = self.writer()?;
        let mut spent = LoadClocks::start()?;
        let delay = writer.run(|| spent.restart())?;
        if delay.is_some() {
            // All lines are in the files now. Detaching does not belong to a stream's steady state.
            spent.stop()?;
        }
        let detached = streams
            .iter()
            .map(|&stream| ring.detach(stream, DETACH_WAIT));
        let reports = runtime.block_on(try_join_all(detached))?;
        spent.stop()?;
        ring.stop();
        let bytes: u64 = reports.iter().map(|report| report.stats.bytes).sum();
        self.check_result((spent.wall, spent.cpu, delay), bytes)
    }

    /// Drains the FIFOs with the bare loop.
    fn drain_bare(self, by: bare::CopyMethod) -> anyhow::Result<DrainResult> {
        let writer = self.writer()?;
        let mut spent = LoadClocks::start()?;
        let (fifos, logs, expected) = (&self.fifos, self.logs(), self.load.bytes());
        let (bytes, delay) = std::thread::scope(|scope| {
            let reader = scope.spawn(|| bare::drain(fifos, &logs, LIMITS, expected, by));
            let delay = writer.run(|| spent.restart())?;
            let bytes = reader
                .join()
                .map_err(|_panic| anyhow::anyhow!("the bare loop panicked"))??;
            anyhow::Ok((bytes, delay))
        })?;
        spent.stop()?;
        self.check_result((spent.wall, spent.cpu, delay), bytes)
    }

    /// Drains the FIFOs with one process each.
    fn cat(mut self) -> anyhow::Result<DrainResult> {
        let mut cats = Cats::start(&self.fifo_dir(), &self.logs(), self.load.fifos)?;
        let writer = self.writer()?;
        let mut begun = Instant::now();
        // The processes end when their FIFOs are not open for writing any more.
        drop(std::mem::take(&mut self.fifos));
        let delay = writer.run(|| {
            begun = Instant::now();
            cats.restart()
        })?;
        let cpu = cats.finish()?;
        let bytes = self.load.bytes();
        self.check_result((begun.elapsed(), cpu, delay), bytes)
    }

    fn check_result(
        self,
        (wall, cpu, delay): (Duration, Duration, Option<Duration>),
        bytes: u64,
    ) -> anyhow::Result<DrainResult> {
        let missing = self.load.bytes().saturating_sub(bytes) / lines::LINE_BYTES;
        let broken = lines::count_lost_lines(&self.logs(), self.load)?;
        for file in fs::read_dir(self.logs())? {
            OpenOptions::new()
                .write(true)
                .truncate(true)
                .open(file?.path())?;
        }
        Ok(DrainResult {
            dir: self.dir,
            wall,
            cpu,
            lost: missing.max(broken),
            delay,
        })
    }
}
