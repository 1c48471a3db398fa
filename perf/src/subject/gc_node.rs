//! `gc_node`, `gc_node_starts` and `gc_node_restart`: the deletion of allocations on a node, its effect on task
//! starts, and the start of an agent with finished allocations. They are three subjects because each takes minutes.
//!
//! `dirs`: directories of allocations, 20 files of 4 KiB and a subdirectory each, which the agent's trash discards
//! and deletes with its defaults. The rivals delete the same without a trash. They use one, two and eight threads
//! with the standard library, `io_uring` with 64 `unlinkat` under way, and `rm -rf`. `discard_us` is the complete
//! cost in the foreground. `wide_files` is the same with one directory of 100 000 files.
//!
//! `agent_start_s` is the start of an agent that has 30 000 finished allocations, until its loop knows them.
//!
//! `start_us_p50` is a task start as an agent makes it, with and without a concurrent deletion. It covers the
//! allocation's directories, a record on disk, a cgroup, and the native driver until the program runs.
//! `start_us_p50_hurried` is a start during an urgent deletion, whose threads have the normal priority.

mod rivals;

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::ensure;
use muster_agent::GcConfig;
use muster_agent::fixture::spread;
use muster_agent::node::{Agent, AgentConfig, ShutdownPolicy};
use muster_agent::storage::trash::Trash;
use muster_domain::alloc::DesiredAlloc;
use muster_domain::fixture;
use muster_domain::id::{AllocId, LogIndex};
use muster_driver::{CgroupPlacement, TaskConfig, TaskDriver};
use muster_driver_native::NativeDriver;
use muster_link::tls::{Identity, Role, ensure_cluster};

use crate::cgroup::CgroupDir;
use crate::harness::{Context, Latencies, Metric, MetricSet};

/// The rivals' names, as `budgets.toml` knows them.
const BEST: &str = "best of threads and io_uring";
const IDLE: &str = "idle";
const RM: &str = "rm -rf";

/// Files of an allocation. The constants below are their size and the files of the wide directory.
const FILES: usize = 20;
const FILE_BYTES: usize = 4096;
const WIDE_FILES: usize = 100_000;
/// Rounds of `gc_node_starts`. Each fills and deletes twice as many directories as a round of `gc_node`.
const STARTS_ROUNDS: usize = 3;

/// The subject `gc_node`.
pub(crate) fn run(context: &Context) -> anyhow::Result<Vec<Metric>> {
    let mut tally = MetricSet::default();
    let files = context.pick(WIDE_FILES, WIDE_FILES / 10);
    for round in 0..context.rounds() {
        deletions(context, dirs(context), round, &mut tally)?;
        measure_wide_directory(context, files, round, &mut tally)?;
    }
    Ok(tally.finish())
}

fn dirs(context: &Context) -> usize {
    context.pick(1_000, 300)
}

/// The subject `gc_node_starts`.
pub(crate) fn starts(context: &Context) -> anyhow::Result<Vec<Metric>> {
    let mut tally = MetricSet::default();
    let starts = TaskStarter::new(context)?;
    for round in 0..STARTS_ROUNDS {
        for hurries in [false, true] {
            starts.round(context, 2 * dirs(context), round, hurries, &mut tally)?;
        }
    }
    Ok(tally.finish())
}

/// The subject `gc_node_restart`. It has one round, because its directories are created and deleted one by one.
pub(crate) fn restart(context: &Context) -> anyhow::Result<Vec<Metric>> {
    let mut tally = MetricSet::default();
    let took = TaskStarter::new(context)?.agent(context, context.pick(30_000, 3_000))?;
    tally.add_muster_value("agent_start_s", "s", took.as_secs_f64());
    Ok(tally.finish())
}

/// Measures the deletions. Each round starts with a different contender, because the first one finds the journal
/// empty.
fn deletions(
    context: &Context,
    dirs: usize,
    round: usize,
    tally: &mut MetricSet,
) -> anyhow::Result<()> {
    let mut best = f64::NEG_INFINITY;
    let mut turns: Vec<usize> = (0..6).collect();
    turns.rotate_left(round % 6);
    for turn in turns {
        let place = context.subdir()?;
        let allocs = fill(&place.path().join("alloc"), dirs)?;
        let per_second = |took: Duration| dirs as f64 / took.as_secs_f64();
        let mut rival = |name: &str, took: Duration, counts: bool| {
            tally.add_rival_value("dirs", "dirs/s", name, per_second(took));
            if counts {
                best = best.max(per_second(took));
            }
        };
        match turn {
            0 => {
                let (discard, took) = destroy(place.path(), &allocs)?;
                tally.add_muster_value("dirs", "dirs/s", per_second(took));
                let micros = discard.as_secs_f64() * 1e6 / dirs as f64;
                tally.add_muster_value("discard_us", "µs", micros);
            }
            1 => rival("1 thread", rivals::threads(&allocs, 1)?, true),
            2 => rival("2 threads", rivals::threads(&allocs, 2)?, true),
            3 => rival("8 threads", rivals::threads(&allocs, 8)?, true),
            4 => {
                if let Some(took) = rivals::io_uring(&allocs)? {
                    rival("io_uring", took, true);
                }
            }
            _ => rival(RM, rivals::rm(&place.path().join("alloc"))?, false),
        }
    }
    tally.add_rival_value("dirs", "dirs/s", BEST, best);
    Ok(())
}

/// Measures the wide directory. Our trash and the rival alternate in being first.
fn measure_wide_directory(
    context: &Context,
    files: usize,
    round: usize,
    tally: &mut MetricSet,
) -> anyhow::Result<()> {
    let per_second = |took: Duration| files as f64 / took.as_secs_f64();
    let mut turns = [true, false];
    turns.rotate_left(round % 2);
    for is_ours in turns {
        let place = context.subdir()?;
        let dir = create_wide_directory(place.path(), files)?;
        if is_ours {
            let (_, took) = destroy(place.path(), &[dir])?;
            tally.add_muster_value("wide_files", "files/s", per_second(took));
        } else {
            let took = rivals::rm(&dir)?;
            tally.add_rival_value("wide_files", "files/s", RM, per_second(took));
        }
    }
    Ok(())
}

/// Creates a directory of `files` files in `place`, on disk.
fn create_wide_directory(place: &Path, files: usize) -> anyhow::Result<PathBuf> {
    let dir = place.join("wide");
    fs::create_dir(&dir)?;
    for file in 0..files {
        fs::File::create(dir.join(file.to_string()))?;
    }
    rustix::fs::syncfs(fs::File::open(&dir)?)?;
    Ok(dir)
}

/// Creates the directory of all allocations, as an agent does.
fn create_alloc_root(dir: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(dir)?;
    spread(dir);
    Ok(())
}

/// Creates `count` directories of allocations in `dir`.
fn fill(dir: &Path, count: usize) -> anyhow::Result<Vec<PathBuf>> {
    let bytes = vec![1; FILE_BYTES];
    create_alloc_root(dir)?;
    let allocs: Vec<PathBuf> = (0..count)
        .map(|at| dir.join(format!("alloc-{at}")))
        .collect();
    for alloc in &allocs {
        fs::create_dir_all(alloc.join("sub"))?;
        for file in 0..FILES {
            let parent = if file % 2 == 0 {
                alloc
            } else {
                &alloc.join("sub")
            };
            fs::write(parent.join(file.to_string()), &bytes)?;
        }
    }
    // Earlier writes are synced, so that only the deletion is measured.
    rustix::fs::syncfs(fs::File::open(dir)?)?;
    Ok(allocs)
}

/// Discards and deletes `allocs` as an agent does. Returns the time of the renames, and the total time.
fn destroy(place: &Path, allocs: &[PathBuf]) -> anyhow::Result<(Duration, Duration)> {
    let trash = trash(place)?;
    let begun = Instant::now();
    discard(&trash, allocs)?;
    let discarded = begun.elapsed();
    wait(&trash)?;
    Ok((discarded, begun.elapsed()))
}

fn trash(place: &Path) -> anyhow::Result<Trash> {
    let parallel = GcConfig::default().parallel_destroys;
    Ok(Trash::start(&place.join("trash"), parallel)?)
}

fn discard(trash: &Trash, allocs: &[PathBuf]) -> anyhow::Result<()> {
    for (at, alloc) in allocs.iter().enumerate() {
        trash.discard(alloc, &format!("{at}.alloc"))?;
    }
    Ok(())
}

fn wait(trash: &Trash) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    runtime.block_on(trash.emptied());
    ensure!(trash.state().failures == 0, "{:?}", trash.state());
    Ok(())
}

fn finished_alloc(number: u32) -> DesiredAlloc {
    DesiredAlloc {
        name_index: number,
        ..fixture::desired(
            AllocId::at(LogIndex(7), number),
            fixture::job("perf").version(),
        )
    }
}

/// Starts tasks as an agent does.
struct TaskStarter {
    runtime: tokio::runtime::Runtime,
    driver: Arc<dyn TaskDriver>,
    cgroup: CgroupDir,
}

impl TaskStarter {
    fn new(context: &Context) -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()?;
        let driver: Arc<dyn TaskDriver> = {
            let _entered = runtime.enter();
            Arc::new(NativeDriver::new())
        };
        let allowed = serde_json::json!({ "allow_raw": true });
        runtime.block_on(driver.set_config(allowed))?;
        let starts = Self {
            runtime,
            driver,
            cgroup: CgroupDir::create("gc")?,
        };
        let place = context.subdir()?;
        for number in 0..20 {
            starts.start(place.path(), &format!("warm-{number}"), None)?;
        }
        Ok(starts)
    }

    /// Starts tasks without a deletion, half of them before one, and as many as possible during it. With `hurries`
    /// the deletion is urgent.
    fn round(
        &self,
        context: &Context,
        dirs: usize,
        round: usize,
        hurries: bool,
        tally: &mut MetricSet,
    ) -> anyhow::Result<()> {
        let suffix = if hurries { "_hurried" } else { "" };
        let place = context.subdir()?;
        create_alloc_root(&place.path().join("starts"))?;
        let allocs = fill(&place.path().join("alloc"), dirs)?;
        let (mut idle, mut beside) = (Latencies::new()?, Latencies::new()?);
        for number in 0..100 {
            idle.add(self.start(
                place.path(),
                &format!("before-{round}-{number}{suffix}"),
                None,
            )?);
        }
        let trash = trash(place.path())?;
        discard(&trash, &allocs)?;
        if hurries {
            trash.raise_priority();
        }
        let mut number = 0;
        while !trash.is_idle() {
            let name = format!("beside-{round}-{number}{suffix}");
            beside.add(self.start(place.path(), &name, Some(&trash))?);
            number += 1;
        }
        wait(&trash)?;
        for number in 0..100 {
            idle.add(self.start(
                place.path(),
                &format!("after-{round}-{number}{suffix}"),
                None,
            )?);
        }
        for (name, share) in [("start_us_p50", 0.5), ("start_us_p99", 0.99)] {
            let name = format!("{name}{suffix}");
            tally.add_muster_value(&name, "µs", beside.micros(share));
            tally.add_rival_value(&name, "µs", IDLE, idle.micros(share));
        }
        let name = format!("starts_beside{suffix}");
        tally.add_muster_value(&name, "starts", f64::from(number));
        Ok(())
    }

    /// Returns the time in which an agent starts on a data directory with `count` finished allocations, until it
    /// knows all of them.
    fn agent(&self, context: &Context, count: u32) -> anyhow::Result<Duration> {
        let place = context.subdir()?;
        let (data_dir, tls) = (place.path().join("d"), place.path().join("tls"));
        fs::create_dir(&data_dir)?;
        ensure_cluster(&tls, "perf", "server")?;
        let identity = Identity::load(&tls, Role::Agent)?;
        let allocs: Vec<DesiredAlloc> = (0..count).map(finished_alloc).collect();
        self.runtime.block_on(async {
            let filled = muster_agent::fixture::finished(&data_dir, &allocs).await;
            filled.map_err(|error| anyhow::anyhow!("{error}"))?;
            let nobody = std::net::SocketAddr::from(([127, 0, 0, 1], 1));
            let mut config = AgentConfig::new(data_dir.clone(), vec![nobody], identity, Vec::new());
            config.drivers = vec![("native".to_owned(), Arc::clone(&self.driver))];
            config.gc.limits.allocs_max = usize::MAX;
            let begun = Instant::now();
            let agent = Agent::start(config).await?;
            let mut collection = agent.collection();
            let all = collection.wait_for(|state| state.finished == allocs.len());
            drop(all.await?);
            let took = begun.elapsed();
            agent.shutdown(ShutdownPolicy::KeepTasks).await;
            muster_agent::clean::run(&data_dir, true)?;
            anyhow::Ok(took)
        })
    }

    /// Starts a task, returns the time of the start, and ends the task. Deletions of `trash` yield to it, as in an
    /// agent.
    fn start(&self, place: &Path, name: &str, trash: Option<&Trash>) -> anyhow::Result<Duration> {
        let alloc = place.join("starts").join(name);
        let begun = Instant::now();
        let start = trash.map(Trash::start_of);
        for dir in [
            "alloc/data",
            "alloc/tmp",
            "main/local",
            "main/secrets",
            "main/tmp",
        ] {
            fs::create_dir_all(alloc.join(dir))?;
        }
        let mut record = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(place.join("record"))?;
        record.write_all(&[1; FILE_BYTES])?;
        record.sync_data()?;
        let cgroup = self.cgroup.child(name)?;
        let config = TaskConfig {
            id: format!("{name}/main/00000000"),
            task_name: "main".to_owned(),
            alloc_id: name.to_owned(),
            config: serde_json::json!({ "command": "/bin/true", "isolation": "raw" }),
            alloc_dir: alloc.clone(),
            task_dir: alloc.join("main"),
            cgroup: Some(CgroupPlacement {
                dir: self.cgroup.path().join(name),
                joins: Vec::new(),
            }),
            ..TaskConfig::default()
        };
        let task_id = config.id.clone();
        let driver = Arc::clone(&self.driver);
        let took = self.runtime.block_on(async {
            driver.start_task(config).await?;
            let took = begun.elapsed();
            drop(start);
            driver.wait_task(&task_id).await?;
            driver.destroy_task(&task_id, false).await?;
            anyhow::Ok(took)
        })?;
        cgroup.remove()?;
        Ok(took)
    }
}
