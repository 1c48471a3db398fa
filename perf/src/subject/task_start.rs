//! `task_start`: the whole life of a task that ends at once, one after the other.
//!
//! A *cycle* is: make the task's cgroup, `start_task`, `wait_task`, `destroy_task`, remove the cgroup.
//! `start` is `start_task` alone, until the task's program runs. Measured with the native driver in
//! this process, through the plugin protocol in a process of its own as in production, and in this
//! process with 1 GiB touched, where whoever forks copies page tables for tens of milliseconds.
//!
//! The rivals run the same program: the bare system calls with a cgroup ([`bare`]), `posix_spawn`
//! without one, and with 1 GiB also a plain fork.

#[cfg_attr(not(target_arch = "x86_64"), path = "task_start/bare_absent.rs")]
mod bare;
mod program;

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use muster_driver::plugin::Client;
use muster_driver::{CgroupPlacement, TaskConfig, TaskDriver};
use muster_driver_native::NativeDriver;

use crate::cgroup::CgroupDir;
use crate::harness::{Context, Latencies, Metric, TURNS, Tally};
use crate::subject;

/// The rivals' names, as `budgets.toml` knows them.
const BARE: &str = "mkdir, clone3, exec, wait, rmdir";
const POSIX_SPAWN: &str = "posix_spawn without a cgroup";
const FORK: &str = "fork and exec without a cgroup";
const WITHOUT_GIB: &str = "without the GiB";

/// What a big agent holds.
const BALLAST_BYTES: usize = 1 << 30;
/// How long the driver's process may take to answer.
const DRIVER_WAIT: Duration = Duration::from_secs(10);
/// What a child is told to be: see [`child`].
pub(crate) const CHILD: &str = "driver";

/// The subject.
pub(crate) fn run(context: &Context) -> anyhow::Result<Vec<Metric>> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let place = Arc::new(Place::new(context)?);
    let in_process: Arc<dyn TaskDriver> = {
        let _entered = runtime.enter();
        Arc::new(NativeDriver::new())
    };
    let mut process = DriverProcess::start(&runtime, &place)?;
    let plugged: Arc<dyn TaskDriver> = Arc::new(process.client.clone());
    for driver in [&in_process, &plugged] {
        let allowed = serde_json::json!({ "allow_raw": true });
        runtime.block_on(driver.set_config(allowed))?;
    }
    // In a task of the runtime, where an agent calls its drivers too.
    let cycles = |driver: &Arc<dyn TaskDriver>, label: String, starts, timed: &mut Timed| {
        let cycles = Arc::clone(&place).cycles(Arc::clone(driver), label, starts);
        timed.add(&runtime.block_on(runtime.spawn(cycles))??)
    };
    let starts = context.pick(200, 40);
    let mut tally = Tally::default();
    // Warms the page cache, the allocator and both sides of the socket.
    for driver in [&in_process, &plugged] {
        cycles(driver, "warm".to_owned(), starts, &mut Timed::new()?)?;
    }
    for round in 0..context.rounds() {
        let [mut ours, mut plugin, mut bare, mut spawned] = Timed::several()?;
        for turn in 0..TURNS {
            cycles(
                &in_process,
                format!("light-{round}-{turn}"),
                starts,
                &mut ours,
            )?;
            place.bare(starts, &mut bare)?;
            cycles(
                &plugged,
                format!("plugin-{round}-{turn}"),
                starts,
                &mut plugin,
            )?;
            place.spawned(starts, false, &mut spawned)?;
        }
        ours.tell(&mut tally, "");
        plugin.tell(&mut tally, "_plugin");
        for (rival, timed) in [(BARE, &bare), (POSIX_SPAWN, &spawned)] {
            for suffix in ["", "_plugin"] {
                timed.tell_rival(&mut tally, suffix, rival);
            }
        }

        let ballast = std::hint::black_box(vec![1_u8; BALLAST_BYTES]);
        let [mut heavy, mut bare, mut forked, _] = Timed::several()?;
        for turn in 0..TURNS {
            cycles(
                &in_process,
                format!("heavy-{round}-{turn}"),
                starts,
                &mut heavy,
            )?;
            place.bare(starts, &mut bare)?;
            // A twentieth: each may take 50 ms.
            place.spawned(starts / 20, true, &mut forked)?;
        }
        drop(std::hint::black_box(ballast));
        heavy.tell(&mut tally, "_1gib");
        ours.tell_rival(&mut tally, "_1gib", WITHOUT_GIB);
        bare.tell_rival(&mut tally, "_1gib", BARE);
        forked.tell_rival(&mut tally, "_1gib", FORK);
    }
    process.stop(&runtime)?;
    Ok(tally.finish())
}

/// What a child of this subject does: it is the driver's process.
pub(crate) fn child(socket: &Path) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    Ok(runtime.block_on(muster_driver_native::serve(socket))?)
}

/// A cgroup, a program and a working directory.
struct Place {
    cgroup: CgroupDir,
    program: PathBuf,
    dir: tempfile::TempDir,
}

impl Place {
    fn new(context: &Context) -> anyhow::Result<Self> {
        let dir = context.subdir()?;
        let program = program::write(dir.path())?;
        Ok(Self {
            cgroup: CgroupDir::create("start")?,
            program,
            dir,
        })
    }

    /// Runs `starts` tasks of `driver`. No `label` is used twice.
    async fn cycles(
        self: Arc<Self>,
        driver: Arc<dyn TaskDriver>,
        label: String,
        starts: u32,
    ) -> anyhow::Result<Timed> {
        let turn = Instant::now();
        let mut timed = Timed::new()?;
        let program = self
            .program
            .to_str()
            .context("the program's path is text")?;
        for number in 0..starts {
            let name = format!("{label}-{number}");
            let config = TaskConfig {
                id: format!("{name}/main/00000000"),
                task_name: "main".to_owned(),
                alloc_id: name.clone(),
                config: serde_json::json!({ "command": program, "isolation": "raw" }),
                alloc_dir: self.dir.path().to_owned(),
                task_dir: self.dir.path().to_owned(),
                cgroup: Some(CgroupPlacement {
                    dir: self.cgroup.path().join(&name),
                    joins: Vec::new(),
                }),
                ..TaskConfig::default()
            };
            let task_id = config.id.clone();

            let begun = Instant::now();
            let cgroup = self.cgroup.child(&name)?;
            let starting = Instant::now();
            driver.start_task(config).await?;
            timed.starts.add(starting.elapsed());
            let exit = driver.wait_task(&task_id).await?;
            driver.destroy_task(&task_id, false).await?;
            cgroup.remove()?;
            timed.cycles.add(begun.elapsed());

            ensure!(exit.successful(), "the task ended with {exit:?}");
        }
        timed.wall = turn.elapsed();
        timed.count = starts;
        Ok(timed)
    }

    /// The same with bare system calls.
    fn bare(&self, starts: u32, timed: &mut Timed) -> anyhow::Result<()> {
        let program = bare::Program::new(&self.program)?;
        let turn = Instant::now();
        for number in 0..starts {
            let begun = Instant::now();
            let cgroup = self.cgroup.child(&format!("bare-{number}"))?;
            let starting = Instant::now();
            let started = bare::start(&program, &cgroup)?;
            timed.starts.add(starting.elapsed());
            started.wait()?;
            cgroup.remove()?;
            timed.cycles.add(begun.elapsed());
        }
        timed.wall += turn.elapsed();
        timed.count += starts;
        Ok(())
    }

    /// The program spawned by the standard library: `posix_spawn`, or fork and exec.
    fn spawned(&self, starts: u32, fork: bool, timed: &mut Timed) -> anyhow::Result<()> {
        let turn = Instant::now();
        for _ in 0..starts {
            let begun = Instant::now();
            let mut command = Command::new(&self.program);
            if fork {
                // The library forks to set a user, be it the same one.
                command.uid(nix::unistd::getuid().as_raw());
            }
            let mut child = command.spawn()?;
            timed.starts.add(begun.elapsed());
            let status = child.wait()?;
            timed.cycles.add(begun.elapsed());
            ensure!(status.success(), "the program ended with {status}");
        }
        timed.wall += turn.elapsed();
        timed.count += starts;
        Ok(())
    }
}

/// Durations of a turn, or of a round.
struct Timed {
    wall: Duration,
    count: u32,
    starts: Latencies,
    cycles: Latencies,
}

impl Timed {
    fn new() -> anyhow::Result<Self> {
        let (starts, cycles) = (Latencies::new()?, Latencies::new()?);
        Ok(Self {
            wall: Duration::ZERO,
            count: 0,
            starts,
            cycles,
        })
    }

    fn several() -> anyhow::Result<[Self; 4]> {
        Ok([Self::new()?, Self::new()?, Self::new()?, Self::new()?])
    }

    fn add(&mut self, other: &Self) -> anyhow::Result<()> {
        self.wall += other.wall;
        self.count += other.count;
        self.starts.merge(&other.starts)?;
        self.cycles.merge(&other.cycles)
    }

    fn values(&self) -> [(&'static str, &'static str, f64); 5] {
        [
            (
                "cycles",
                "tasks/s",
                f64::from(self.count) / self.wall.as_secs_f64(),
            ),
            ("cycle_us_p50", "µs", self.cycles.micros(0.5)),
            ("cycle_us_p99", "µs", self.cycles.micros(0.99)),
            ("start_us_p50", "µs", self.starts.micros(0.5)),
            ("start_us_p99", "µs", self.starts.micros(0.99)),
        ]
    }

    fn tell(&self, tally: &mut Tally, suffix: &str) {
        for (name, unit, value) in self.values() {
            tally.ours(&format!("{name}{suffix}"), unit, value);
        }
    }

    fn tell_rival(&self, tally: &mut Tally, suffix: &str, rival: &str) {
        for (name, unit, value) in self.values() {
            tally.rival(&format!("{name}{suffix}"), unit, rival, value);
        }
    }
}

/// The native driver in a process of its own.
struct DriverProcess {
    child: Child,
    client: Client,
}

impl DriverProcess {
    fn start(runtime: &tokio::runtime::Runtime, place: &Place) -> anyhow::Result<Self> {
        let socket = place.dir.path().join("driver.sock");
        let _entered = runtime.enter();
        let client = Client::new("native", &socket);
        let child = subject::child_command(CHILD, [socket.as_os_str()])?.spawn()?;
        let deadline = Instant::now() + DRIVER_WAIT;
        let started = Self { child, client };
        while let Err(error) = runtime.block_on(started.client.ping()) {
            ensure!(
                Instant::now() < deadline,
                "the driver's process does not answer: {error}"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(started)
    }

    fn stop(&mut self, runtime: &tokio::runtime::Runtime) -> anyhow::Result<()> {
        runtime.block_on(self.client.shutdown())?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for DriverProcess {
    fn drop(&mut self) {
        // Already gone unless something failed before `stop`; then there is nothing more to be done.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
