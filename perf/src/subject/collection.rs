//! `collection`: what it takes to learn what every task of a node uses.
//!
//! 100, 1 000 and 5 000 tasks, each with groups as the agent makes them and a process that sleeps. Ours is what the
//! agent does every ten seconds: the maps of CPU time, networks and disks, read in batches. The rivals ([`rivals`])
//! are the files of the tasks' groups (CPU time, memory, disks), kept open or opened each time, and a scan of `/proc`.
//! Everybody collects some times in a row and then it is another's turn, so that one collection in each finds the
//! caches as the others left them; what that one takes is `cold_us_per_task`.
//!
//! Told as well, of ours: `all_us_per_task`, everything that the maps hold, as when somebody asks; `walk_us_per_task`,
//! the walk over the tasks' groups that a step of the history takes besides (memory, quota, pressure), and
//! `files_us_per_task`, the five files of each task that it reads where no program walks, kept open.
//! `full_us_per_task` is what `muster top` asks for, against the same rivals, which learn less: everything in the
//! maps, a walk, and of each task the file of memory's kinds, kept open. `by_files_us_per_task` is the same where no
//! program walks: some twelve files of each task's groups.

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
    /// The same as the programs know them.
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
        let mut full = || all_there(self.full(bpf)?);
        let mut by_files = || all_there(self.by_files(bpf)?);
        let mut walk = || all_there(self.walk(bpf)?);
        let mut step = || step.read();
        let mut held = || held.read();
        let mut opened = || opened.read();
        let mut scan = || scan_processes(count);
        // As many tasks in each round, whatever their number.
        let times = (context.pick(50_000, 20_000) / count).max(4);
        for _ in 0..context.rounds() {
            let spent = CollectionCost::on(times, &mut ours)?;
            let metric_name = |name| format!("{name}_{count}");
            for (name, of) in METRICS {
                tally.ours(&metric_name(name), "µs", of(&spent));
            }
            tally.ours(
                &metric_name("all_us_per_task"),
                "µs",
                CollectionCost::on(times, &mut all)?.each(),
            );
            let full = CollectionCost::on(times.div_ceil(RIVALS_PART), &mut full)?;
            tally.ours(&metric_name(FULL), "µs", full.each());
            let by_files = CollectionCost::on(times.div_ceil(RIVALS_PART), &mut by_files)?;
            tally.ours(&metric_name("by_files_us_per_task"), "µs", by_files.each());
            let walk = CollectionCost::on(times, &mut walk)?;
            tally.ours(&metric_name("walk_us_per_task"), "µs", walk.each());
            let step = CollectionCost::on(times, &mut step)?;
            tally.ours(&metric_name("files_us_per_task"), "µs", step.each());
            let rivals: [(&str, &mut CollectFn<'_>); 3] =
                [(HELD, &mut held), (OPENED, &mut opened), (SCAN, &mut scan)];
            for (rival, collect) in rivals {
                let spent = CollectionCost::on(times.div_ceil(RIVALS_PART), collect)?;
                for (name, of) in METRICS {
                    tally.rival(&metric_name(name), "µs", rival, of(&spent));
                }
                tally.rival(&metric_name(FULL), "µs", rival, spent.each());
            }
        }
        Ok(())
    }

    /// Everything that is known of each task, as the agent reads it when somebody asks.
    fn full(&self, bpf: &Bpf) -> anyhow::Result<usize> {
        let walked = self.walked(bpf)?;
        self.all_by(bpf, |task| {
            task.stats_in(&walked)?.context("the walk came to it")
        })
    }

    /// The same by files alone.
    fn by_files(&self, bpf: &Bpf) -> anyhow::Result<usize> {
        self.all_by(bpf, |task| Ok(task.stats()?))
    }

    /// Everything in the maps, and what `stats` finds of each task's groups.
    fn all_by(
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

    /// Walks the groups, as a step of the history does.
    fn walk(&self, bpf: &Bpf) -> anyhow::Result<usize> {
        let walked = self.walked(bpf)?;
        let found = self.cgroups.iter().filter_map(|task| task.now_in(&walked));
        Ok(found.map(std::hint::black_box).count())
    }

    fn walked(&self, bpf: &Bpf) -> io::Result<CgroupRows> {
        self.tree.walk(|root, is_v2| bpf.groups_below(root, is_v2))
    }

    /// Ends the processes and removes everything.
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
                // One that was not started.
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

/// Learns about all tasks, and says of how many.
type CollectFn<'a> = dyn FnMut() -> anyhow::Result<usize> + 'a;

/// The metric of full collections.
const FULL: &str = "full_us_per_task";

/// A metric of collections, with its value.
type CollectionMetric = (&'static str, fn(&CollectionCost) -> f64);

const METRICS: [CollectionMetric; 3] = [
    ("us_per_task", CollectionCost::each),
    ("cpu_us_per_task", |spent| per_task(spent.cpu, spent.tasks)),
    ("cold_us_per_task", |spent| {
        per_task(spent.first, spent.tasks_first)
    }),
];

/// How many times oftener ours is repeated in a row: it takes that much less time.
const RIVALS_PART: usize = 5;

/// The time that was spent, and the number of tasks.
#[derive(Clone, Copy, Debug, Default)]
struct CollectionCost {
    wall: Duration,
    cpu: Duration,
    tasks: usize,
    /// On the first of all collections, after somebody else's.
    first: Duration,
    tasks_first: usize,
}

impl CollectionCost {
    /// Collects so many times in a row, and once before that.
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
