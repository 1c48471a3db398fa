//! `task_start`: the whole life of a task that ends at once, one task after the other.
//!
//! A *cycle* is: create the task's cgroup, `start_task`, `wait_task`, `destroy_task`, remove the cgroup. `start` is
//! from before `start_task` to the first instruction of the task's program, which reads the same clock ([`program`]).
//! Each level of isolation is measured with the native driver in this process. It is also measured through the plugin
//! protocol with the driver in its own process, as in production. Raw tasks are also measured in this process with 1
//! GiB touched, where a fork copies page tables for tens of milliseconds.
//!
//! The rivals run the same program. For raw tasks they are the bare system calls with a cgroup ([`bare`]) and
//! `posix_spawn` without one. With 1 GiB there is also a plain fork. For contained and strict tasks they are the bare
//! system calls with the same namespaces and mounts ([`sandbox`]), and crun and runc ([`oci`]).

mod bare;
mod clock;
pub(super) mod oci;
mod program;
mod sandbox;
mod sleepers;
mod timed;

use std::ffi::CString;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context as _, ensure};
use muster_driver::{CgroupPlacement, TaskConfig, TaskDriver};
use muster_driver_native::NativeDriver;
use tokio::runtime::Runtime;

use crate::cgroup::CgroupDir;
use crate::harness::{Context, Metric, MetricSet, TURNS};
use crate::subject::driver_process::DriverProcess;

pub(super) use sleepers::{Sleeper, Sleepers};

use bare::Script;
use clock::StartTimesFifo;
use oci::Bundle;
use sandbox::Sandbox;
use timed::StartTimings;

/// The rivals' names, as `budgets.toml` knows them.
const BARE: &str = "mkdir, clone3, exec, wait, rmdir";
const POSIX_SPAWN: &str = "posix_spawn without a cgroup";
const FORK: &str = "fork and exec without a cgroup";
const WITHOUT_GIB: &str = "without the GiB";
const BARE_SANDBOX: &str = "the same calls with namespaces and pivot_root";
const LEAN_SANDBOX: &str = "the same with /proc as the only mount";
const RUNTIMES: [&str; 2] = ["crun", "runc"];

/// Memory that a large agent holds.
const BALLAST_BYTES: usize = 1 << 30;

/// The subject.
pub(crate) fn run(context: &Context) -> anyhow::Result<Vec<Metric>> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let place = Arc::new(StartFixture::new(context)?);
    let in_process: Arc<dyn TaskDriver> = {
        let _entered = runtime.enter();
        Arc::new(NativeDriver::new())
    };
    let mut process = DriverProcess::start(&runtime, place.dir.path())?;
    let plugged: Arc<dyn TaskDriver> = Arc::new(process.client.clone());
    for driver in [&in_process, &plugged] {
        let allowed = serde_json::json!({ "allow_raw": true });
        runtime.block_on(driver.set_config(allowed))?;
    }
    let subject = StartBenchmark {
        runtime: &runtime,
        place,
        in_process,
        plugged,
        starts: context.pick(200, 40),
    };
    let mut tally = MetricSet::default();
    // These runs warm the page cache, the allocator and both sides of the socket.
    for level in ["raw", "contained", "strict"] {
        for driver in [&subject.in_process, &subject.plugged] {
            subject.cycles(driver, level, &mut StartTimings::new()?)?;
        }
    }
    let bundle = Bundle::new(context.subdir()?)?;
    for _ in 0..context.rounds() {
        subject.raw(&mut tally)?;
        subject.raw_with_ballast(&mut tally)?;
        for level in ["contained", "strict"] {
            subject.isolated(level, &bundle, &mut tally)?;
        }
    }
    process.stop(&runtime)?;
    Ok(tally.finish())
}

struct StartBenchmark<'a> {
    runtime: &'a Runtime,
    place: Arc<StartFixture>,
    in_process: Arc<dyn TaskDriver>,
    plugged: Arc<dyn TaskDriver>,
    /// The number of tasks in a turn.
    starts: u32,
}

impl StartBenchmark<'_> {
    /// Runs the cycles in a task of the runtime, where an agent also calls its drivers.
    fn cycles(
        &self,
        driver: &Arc<dyn TaskDriver>,
        level: &'static str,
        timed: &mut StartTimings,
    ) -> anyhow::Result<()> {
        let cycles = Arc::clone(&self.place).cycles(Arc::clone(driver), level, self.starts);
        timed.add(&self.runtime.block_on(self.runtime.spawn(cycles))??)
    }

    fn raw(&self, tally: &mut MetricSet) -> anyhow::Result<()> {
        let [mut ours, mut plugin, mut bare, mut spawned] = StartTimings::several()?;
        let script = self.place.raw_script()?;
        for _ in 0..TURNS {
            self.cycles(&self.in_process, "raw", &mut ours)?;
            self.place
                .time_bare_calls(&script, self.starts, &mut bare)?;
            self.cycles(&self.plugged, "raw", &mut plugin)?;
            self.place.spawned(self.starts, false, &mut spawned)?;
        }
        ours.add_metrics(tally, "");
        plugin.add_metrics(tally, "_plugin");
        for (rival, timed) in [(BARE, &bare), (POSIX_SPAWN, &spawned)] {
            for suffix in ["", "_plugin"] {
                timed.add_baseline_metrics(tally, suffix, rival);
            }
        }
        Ok(())
    }

    fn raw_with_ballast(&self, tally: &mut MetricSet) -> anyhow::Result<()> {
        let [mut light, mut heavy, mut bare, mut forked] = StartTimings::several()?;
        let script = self.place.raw_script()?;
        for _ in 0..TURNS {
            self.cycles(&self.in_process, "raw", &mut light)?;
            let ballast = std::hint::black_box(vec![1_u8; BALLAST_BYTES]);
            self.cycles(&self.in_process, "raw", &mut heavy)?;
            self.place
                .time_bare_calls(&script, self.starts, &mut bare)?;
            // The number is a twentieth, because each start may take 50 ms.
            self.place.spawned(self.starts / 20, true, &mut forked)?;
            drop(std::hint::black_box(ballast));
        }
        heavy.add_metrics(tally, "_1gib");
        for (rival, timed) in [(WITHOUT_GIB, &light), (BARE, &bare), (FORK, &forked)] {
            timed.add_baseline_metrics(tally, "_1gib", rival);
        }
        Ok(())
    }

    fn isolated(
        &self,
        level: &'static str,
        bundle: &Bundle,
        tally: &mut MetricSet,
    ) -> anyhow::Result<()> {
        let [mut ours, mut plugin, mut bare, mut lean] = StartTimings::several()?;
        let mut runtimes = StartTimings::several::<2>()?;
        let (full_script, lean_script) = self.place.sandbox_scripts()?;
        for _ in 0..TURNS {
            self.cycles(&self.in_process, level, &mut ours)?;
            self.place
                .time_bare_calls(&full_script, self.starts, &mut bare)?;
            self.cycles(&self.plugged, level, &mut plugin)?;
            self.place
                .time_bare_calls(&lean_script, self.starts, &mut lean)?;
            for (name, timed) in RUNTIMES.into_iter().zip(&mut runtimes) {
                // The number is a twentieth, because each run takes 10 to 50 ms.
                match bundle.run(name, self.starts / 20)? {
                    Some(turn) => timed.add(&turn)?,
                    None => writeln!(
                        std::io::stderr(),
                        "task_start: no {name} here: apt-get install {name}"
                    )?,
                }
            }
        }
        ours.add_metrics(tally, &format!("_{level}"));
        plugin.add_metrics(tally, &format!("_{level}_plugin"));
        let mut rivals = vec![(BARE_SANDBOX, &bare), (LEAN_SANDBOX, &lean)];
        rivals.extend(RUNTIMES.into_iter().zip(&runtimes));
        rivals.retain(|(_, timed)| !timed.is_empty());
        for (rival, timed) in rivals {
            for suffix in ["", "_plugin"] {
                timed.add_baseline_metrics(tally, &format!("_{level}{suffix}"), rival);
            }
        }
        Ok(())
    }
}

fn path_text(path: &Path) -> anyhow::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

/// The cgroup, the program and the working directory of the measured tasks.
struct StartFixture {
    cgroup: CgroupDir,
    /// The path is below the task's own directory, which every level shows to its tasks.
    program: PathBuf,
    words: StartTimesFifo,
    sandbox: Sandbox,
    dir: tempfile::TempDir,
}

impl StartFixture {
    fn new(context: &Context) -> anyhow::Result<Self> {
        let dir = context.subdir()?;
        let local = dir.path().join("local");
        std::fs::create_dir(&local)?;
        Ok(Self {
            cgroup: CgroupDir::create("start")?,
            program: program::write(&local)?,
            words: StartTimesFifo::new(dir.path())?,
            sandbox: Sandbox::prepare(dir.path(), dir.path())?,
            dir,
        })
    }

    /// Runs `starts` tasks of `driver`.
    async fn cycles(
        self: Arc<Self>,
        driver: Arc<dyn TaskDriver>,
        level: &'static str,
        starts: u32,
    ) -> anyhow::Result<StartTimings> {
        let mut timed = StartTimings::new()?;
        let program = self
            .program
            .to_str()
            .context("the program's path is text")?;
        for number in 0..starts {
            let name = format!("{level}-{number}");
            let config = TaskConfig {
                id: format!("{name}/main/00000000"),
                task_name: "main".to_owned(),
                alloc_id: name.clone(),
                config: serde_json::json!({ "command": program, "isolation": level }),
                alloc_dir: self.dir.path().to_owned(),
                task_dir: self.dir.path().to_owned(),
                stdout_path: self.words.path().to_owned(),
                cgroup: Some(CgroupPlacement {
                    dir: self.cgroup.path().join(&name),
                    joins: Vec::new(),
                }),
                ..TaskConfig::default()
            };
            let task_id = config.id.clone();

            let begun = clock::now();
            let cgroup = self.cgroup.child(&name)?;
            let starting = clock::now();
            driver.start_task(config).await?;
            let exit = driver.wait_task(&task_id).await?;
            driver.destroy_task(&task_id, false).await?;
            cgroup.remove()?;
            let ended = clock::now();

            ensure!(exit.successful(), "the task ended with {exit:?}");
            let ran = self.words.next()?;
            timed.add_cycle(ran.saturating_sub(starting), ended.saturating_sub(begun));
        }
        Ok(timed)
    }

    /// Returns the script that only starts the program.
    fn raw_script(&self) -> anyhow::Result<Script> {
        let mut script = Script::new(0);
        script.output(self.words.file());
        script.exec(&[&path_text(&self.program)?])?;
        Ok(script)
    }

    /// Returns the scripts that start the program in the full sandbox, and in a sandbox with almost no mounts.
    fn sandbox_scripts(&self) -> anyhow::Result<(Script, Script)> {
        let program = path_text(&Path::new("/local").join(program::NAME))?;
        let full = self.sandbox.script(&[&program], self.words.file())?;
        Ok((full, self.sandbox.lean(&[&program], self.words.file())?))
    }

    /// Runs and times `script` by bare system calls.
    fn time_bare_calls(
        &self,
        script: &Script,
        starts: u32,
        timed: &mut StartTimings,
    ) -> anyhow::Result<()> {
        for number in 0..starts {
            let begun = clock::now();
            let cgroup = self.cgroup.child(&format!("bare-{number}"))?;
            let starting = clock::now();
            bare::start(script, &cgroup)?.wait()?;
            cgroup.remove()?;
            let ended = clock::now();
            let ran = self.words.next()?;
            timed.add_cycle(ran.saturating_sub(starting), ended.saturating_sub(begun));
        }
        Ok(())
    }

    /// Spawns the program with the standard library: with `posix_spawn`, or with fork and exec.
    fn spawned(&self, starts: u32, fork: bool, timed: &mut StartTimings) -> anyhow::Result<()> {
        for _ in 0..starts {
            let mut command = Command::new(&self.program);
            command.stdout(self.words.file().try_clone_to_owned()?);
            if fork {
                // The library uses fork if it has to set a user, even if that is the current one.
                command.uid(nix::unistd::getuid().as_raw());
            }
            let begun = clock::now();
            let status = command.spawn()?.wait()?;
            let ended = clock::now();
            ensure!(status.success(), "the program ended with {status}");
            let ran = self.words.next()?;
            timed.add_cycle(ran.saturating_sub(begun), ended.saturating_sub(begun));
        }
        Ok(())
    }
}
