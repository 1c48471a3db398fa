//! `collection`: the cost of collecting the resource usage of every task of a node.
//!
//! There are 100, 1 000 and 5 000 tasks, each with cgroups as the agent creates them and a sleeping process. Our way
//! is the agent's work every ten seconds: reading the maps of CPU time, networks and disks in batches. The rivals
//! ([`rivals`]) read the files of the tasks' cgroups (CPU time, memory, disks), kept open or opened each time, or
//! scan `/proc`. Each contender collects several times in a row before the next one's turn. The first collection of a
//! turn therefore finds the caches as the other contenders left them. Its cost is `cold_us_per_task`.
//!
//! Further metrics of our way are reported without rivals. `all_us_per_task` is the cost of everything in the maps,
//! as on a request. `walk_us_per_task` is the walk over the tasks' cgroups for memory, quota and pressure. A step of
//! the history makes that walk too. `files_us_per_task` is the cost of the five files per task that such a step reads
//! where no program walks, kept open.
//!
//! `full_us_per_task` is the collection for `muster top`, against the same rivals, which collect less. It reads
//! everything in the maps, makes a walk, and reads for each task the file with the kinds of memory, kept open.
//! `by_files_us_per_task` is the same where no program walks: about twelve files of each task's cgroups.

mod rivals;

use std::fs;
use std::io;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use muster_agent::bpf::{Bpf, BpfConfig, ensure_bpffs, remove_pins, unmount_bpffs};
use muster_agent::resources::cgroup::{
    CgroupRows, Hierarchies, Limits, NodeTree, TaskCgroup, TaskStats,
};
use rustix::process::{Resource, Rlimit, WaitId, WaitIdOptions, getrlimit, setrlimit, waitid};

use crate::cgroup::Cgroup;
use crate::harness::{Context, CpuClock, Metric, MetricSet};
use crate::subject::task_start::Sleeper;
use rivals::{OpenFiles, ReopenedFiles, scan_processes};

/// The rivals' names, as `budgets.toml` knows them.
const HELD: &str = "cgroup files kept open";
const OPENED: &str = "cgroup files opened each time";
const SCAN: &str = "a scan of /proc";

/// The subject.
pub(crate) fn run(context: &Context) -> anyhow::Result<Vec<Metric>> {
    let maximum = getrlimit(Resource::Nofile).maximum;
    let all = Rlimit {
        current: maximum,
        maximum,
    };
    setrlimit(Resource::Nofile, all)?;
    let mut tally = MetricSet::default();
    for count in [100, 1_000, 5_000] {
        let node = Node::start(context, count)?;
        let measured = node.measure(context, &mut tally);
        node.end()?;
        measured?;
    }
    Ok(tally.finish())
}

/// A node's tree, its tasks, and the programs that watch them.
struct Node {
    tree: NodeTree,
    tasks: Vec<rivals::TaskGroupDirs>,
    cgroups: Vec<TaskCgroup>,
    /// The ids of the tasks' cgroups, as the programs know them.
    ids: Vec<u64>,
    bpf: Option<Bpf>,
    config: BpfConfig,
    dir: tempfile::TempDir,
}

impl Node {
    fn start(context: &Context, count: usize) -> anyhow::Result<Self> {
        let dir = context.subdir()?;
        let name = format!("muster-perf-{}-collect", std::process::id());
        let tree = NodeTree::create(&Hierarchies::probe()?, &name)?;
        let config = BpfConfig {
            pin_dir: ensure_bpffs(dir.path())?.join("muster-perf"),
            cgroup_dir: tree.v2_dir().to_owned(),
            task_level: tree.task_level().context("in a cgroup namespace")?,
        };
        let mut node = Self {
            tree,
            tasks: Vec::new(),
            cgroups: Vec::new(),
            ids: Vec::new(),
            bpf: None,
            config,
            dir,
        };
        match node.fill(count) {
            Ok(()) => Ok(node),
            Err(error) => {
                node.end()?;
                Err(error)
            }
        }
    }

    fn fill(&mut self, count: usize) -> anyhow::Result<()> {
        let bpf = self.bpf.insert(Bpf::open(&self.config)?);
        let sleeper = Sleeper::new()?;
        for number in 0..count {
            let task = TaskCgroup::create(
                &self.tree,
                &format!("a{number}"),
                "main",
                &Limits::default(),
            )?;
            bpf.watch(task.id())?;
            self.ids.push(task.id());
            self.tasks.push(rivals::TaskGroupDirs::of(&task));
            sleeper.start(&Cgroup::at(task.dir()))?;
            self.cgroups.push(task);
        }
        Ok(())
    }

    fn measure(&self, context: &Context, tally: &mut MetricSet) -> anyhow::Result<()> {
        let count = self.tasks.len();
        let bpf = self.bpf.as_ref().context("the programs are loaded")?;
        let held = OpenFiles::open(&self.tasks, &rivals::FILES)?;
        let step = OpenFiles::open(&self.tasks, &rivals::STEP)?;
        let opened = ReopenedFiles::new(&self.tasks);
        let all_there = |tasks: usize| {
            ensure!(tasks == count, "{tasks} of {count} tasks");
            Ok(tasks)
        };
        let mut ours = || all_there(bpf.collect_totals(count)?.len());
        let mut all = || all_there(bpf.collect()?.len());
        let mut full = || all_there(self.collect_all(bpf)?);
        let mut by_files = || all_there(self.collect_from_files(bpf)?);
        let mut walk = || all_there(self.walk(bpf)?);
        let mut step = || step.read();
        let mut held = || held.read();
        let mut opened = || opened.read();
        let mut scan = || scan_processes(count);
        // The total of collected tasks is about the same for every number of tasks.
        let times = (context.pick(50_000, 20_000) / count).max(4);
        for _ in 0..context.rounds() {
            let spent = CollectionCost::on(times, &mut ours)?;
            let metric_name = |name| format!("{name}_{count}");
            for (name, of) in METRICS {
                tally.add_muster_value(&metric_name(name), "µs", of(&spent));
            }
            tally.add_muster_value(
                &metric_name("all_us_per_task"),
                "µs",
                CollectionCost::on(times, &mut all)?.each(),
            );
            let full = CollectionCost::on(times.div_ceil(RIVALS_PART), &mut full)?;
            tally.add_muster_value(&metric_name(FULL), "µs", full.each());
            let by_files = CollectionCost::on(times.div_ceil(RIVALS_PART), &mut by_files)?;
            tally.add_muster_value(&metric_name("by_files_us_per_task"), "µs", by_files.each());
            let walk = CollectionCost::on(times, &mut walk)?;
            tally.add_muster_value(&metric_name("walk_us_per_task"), "µs", walk.each());
            let step = CollectionCost::on(times, &mut step)?;
            tally.add_muster_value(&metric_name("files_us_per_task"), "µs", step.each());
            let rivals: [(&str, &mut CollectFn<'_>); 3] =
                [(HELD, &mut held), (OPENED, &mut opened), (SCAN, &mut scan)];
            for (rival, collect) in rivals {
                let spent = CollectionCost::on(times.div_ceil(RIVALS_PART), collect)?;
                for (name, of) in METRICS {
                    tally.add_rival_value(&metric_name(name), "µs", rival, of(&spent));
                }
                tally.add_rival_value(&metric_name(FULL), "µs", rival, spent.each());
            }
        }
        Ok(())
    }

    /// Collects all data of each task, as the agent does on a request.
    fn collect_all(&self, bpf: &Bpf) -> anyhow::Result<usize> {
        let walked = self.collect_cgroup_rows(bpf)?;
        self.collect_tasks(bpf, |task| {
            task.stats_in(&walked)?.context("the walk came to it")
        })
    }

    /// Collects the same data from files alone.
    fn collect_from_files(&self, bpf: &Bpf) -> anyhow::Result<usize> {
        self.collect_tasks(bpf, |task| Ok(task.stats()?))
    }

    /// Reads everything in the maps, and the result of `stats` for each task's cgroups.
    fn collect_tasks(
        &self,
        bpf: &Bpf,
        stats: impl Fn(&TaskCgroup) -> anyhow::Result<TaskStats>,
    ) -> anyhow::Result<usize> {
        let counted = bpf.collect()?;
        let mut tasks = 0;
        for task in &self.cgroups {
            std::hint::black_box((stats(task)?, bpf.main_of(task.id())?));
            tasks += usize::from(counted.contains_key(&task.id()));
        }
        Ok(tasks)
    }

    /// Walks the cgroups, as a step of the history does.
    fn walk(&self, bpf: &Bpf) -> anyhow::Result<usize> {
        let walked = self.collect_cgroup_rows(bpf)?;
        let found = self.cgroups.iter().filter_map(|task| task.now_in(&walked));
        Ok(found.map(std::hint::black_box).count())
    }

    fn collect_cgroup_rows(&self, bpf: &Bpf) -> io::Result<CgroupRows> {
        self.tree.walk(|root, is_v2| bpf.groups_below(root, is_v2))
    }

    /// Ends the processes and removes all cgroups and programs.
    fn end(self) -> anyhow::Result<()> {
        let Self {
            tree,
            tasks,
            cgroups,
            ids,
            bpf,
            config,
            dir,
        } = self;
        fs::write(tree.v2_dir().join("cgroup.kill"), "1")?;
        for _ in 0..ids.len() {
            match waitid(WaitId::All, WaitIdOptions::EXITED) {
                Ok(_) => {}
                // This process was not started.
                Err(rustix::io::Errno::CHILD) => break,
                Err(errno) => return Err(io::Error::from(errno).into()),
            }
        }
        drop((bpf, tasks, cgroups));
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?
            .block_on(tree.remove())?;
        remove_pins(&config.pin_dir)?;
        unmount_bpffs(dir.path())?;
        Ok(())
    }
}

/// A function that collects the usage of all tasks and returns their number.
type CollectFn<'a> = dyn FnMut() -> anyhow::Result<usize> + 'a;

/// The metric of full collections.
const FULL: &str = "full_us_per_task";

/// The name of a metric, and the function that computes its value.
type CollectionMetric = (&'static str, fn(&CollectionCost) -> f64);

const METRICS: [CollectionMetric; 3] = [
    ("us_per_task", CollectionCost::each),
    ("cpu_us_per_task", |spent| per_task(spent.cpu, spent.tasks)),
    ("cold_us_per_task", |spent| {
        per_task(spent.first, spent.tasks_first)
    }),
];

/// How many times more often our way runs in a row. It takes that much less time than the rivals.
const RIVALS_PART: usize = 5;

/// The time spent on collections, and the number of collected tasks.
#[derive(Clone, Copy, Debug, Default)]
struct CollectionCost {
    wall: Duration,
    cpu: Duration,
    tasks: usize,
    /// The time of the first collection, directly after another contender's turn.
    first: Duration,
    tasks_first: usize,
}

impl CollectionCost {
    /// Collects `times` times in a row, after one separate collection.
    fn on(times: usize, collect: &mut CollectFn<'_>) -> anyhow::Result<Self> {
        let begun = Instant::now();
        let tasks_first = collect()?;
        let mut spent = Self {
            first: begun.elapsed(),
            tasks_first,
            ..Self::default()
        };
        let (begun, clock) = (Instant::now(), CpuClock::of_process()?);
        for _ in 0..times {
            spent.tasks += collect()?;
        }
        (spent.cpu, spent.wall) = (clock.elapsed()?, begun.elapsed());
        Ok(spent)
    }

    fn each(&self) -> f64 {
        per_task(self.wall, self.tasks)
    }
}

fn per_task(spent: Duration, tasks: usize) -> f64 {
    spent.as_secs_f64() * 1e6 / tasks as f64
}
