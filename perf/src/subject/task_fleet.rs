//! `task_fleet`: a thousand tasks and more on one machine, through the whole agent.
//!
//! A real server runs in this process. An agent runs in its own process and starts the native driver's process, as
//! `muster server` and `muster agent` do. A user's request (`PUT /v1/jobs`, Nomad's JSON) registers one job with that
//! many instances of `/bin/sleep infinity`. The tasks are contained unless the name of a metric contains raw. Each
//! task has FIFOs, log files, directories, cgroups and a record in the agent's store. Each number of tasks uses new
//! processes. They run and end [`WARM_UP_TASKS`] tasks before the measurement, because a new agent lacks data that
//! every used agent has.
//!
//! An agent has some open files for each task. If the hard limit of open files is too low for all tasks, the subject
//! starts several agents, each with its own driver and job. The constant cost of an agent then counts several times.
//!
//! - `started`: from before the request until all tasks are reported running to the server.
//! - `stopped`: from before the request that stops the job until all tasks are reported as ended.
//! - `kib_per_task`: proportional set size of agent and driver, divided by the tasks. Their memory without tasks is
//!   included. `kib_more_per_task` is the growth since there were none. `kib_left` is the part of that growth that
//!   remains when all tasks have ended under the next agent. The server is left out, because it runs elsewhere.
//! - `idle_percent`: CPU time of agent and driver while nothing happens, heartbeats included.
//! - `adopted`: from the start of the next agent, after the first was killed, until it has reported to the server
//!   that it has adopted all tasks. The driver was killed with the first agent, while in the real program it lives
//!   on. The next driver therefore has to find every task again, too.
//! - `threads_more`, `processes_more`: the threads and processes of agent, driver and other processes of this
//!   program, beyond their number without tasks.
//!
//! The rival of `started` creates cgroups and starts the same program in them by bare system calls.

mod node;

use std::time::{Duration, Instant};

use anyhow::ensure;
use muster_control::server::{Server, ServerConfig};
use muster_control_core::state::{AllocView, State};
use muster_domain::alloc::{ClientStatus, TaskEventKind};
use muster_domain::id::JobKey;
use muster_domain::number;
use nix::sys::resource::{Resource, getrlimit};
use tokio::runtime::{Builder, Runtime};

use super::client::Client;
use super::place::{print_progress, ready};
use super::task_start::Sleepers;
use crate::harness::{Context, Metric, MetricSet};

pub(super) use node::{CHILD, NodeProcess, child};

use node::Footprint;

/// The rivals' names, as `budgets.toml` knows them.
const BARE: &str = "mkdir, clone3, exec";
const BARE_SANDBOX: &str = "the same calls with namespaces and pivot_root";

/// The largest requested number of tasks.
const TASKS_MAX: u32 = 5_000;
/// Files that an agent has open for each task without output.
const FILES_PER_TASK: u64 = 3;
/// The number of tasks that run and end before the measured ones.
const WARM_UP_TASKS: u32 = 100;
/// The longest wait for any step.
const DEADLINE: Duration = Duration::from_mins(3);
/// Pause between two checks of a condition.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// After this pause a busy agent has sent all its reports, and its threads for blocking work have ended.
const SETTLE: Duration = Duration::from_secs(12);

/// The subject.
pub(crate) fn run(context: &Context) -> anyhow::Result<Vec<Metric>> {
    let mut tally = MetricSet::default();
    for _ in 0..context.pick(3, 1) {
        for (level, count) in [
            ("contained", 100),
            ("raw", 1_000),
            ("contained", 1_000),
            ("contained", TASKS_MAX),
        ] {
            let load = TaskLoad::new(level, count)?;
            let runtime = Builder::new_multi_thread().enable_all().build()?;
            let mut fleet = Fleet::start(context, &runtime, load)?;
            fleet.measure(&mut tally)?;
            fleet.end()?;
        }
    }
    Ok(tally.finish())
}

/// The requested tasks: one job per node.
struct TaskLoad {
    level: &'static str,
    count: u32,
    /// The suffix of the metrics' names.
    suffix: String,
    jobs: Vec<JobKey>,
}

impl TaskLoad {
    fn new(level: &'static str, count: u32) -> anyhow::Result<Self> {
        let (_, files) = getrlimit(Resource::RLIMIT_NOFILE)?;
        let nodes = (u64::from(count) * FILES_PER_TASK).div_ceil(files);
        let suffix = match level {
            "contained" => count.to_string(),
            level => format!("{level}_{count}"),
        };
        let jobs = (0..nodes).map(|node| JobKey::in_default(format!("fleet-{node}")));
        Ok(Self {
            level,
            count,
            suffix,
            jobs: jobs.collect(),
        })
    }

    /// Returns the number of instances of each node's job, `count` in all.
    fn counts(&self, count: u32) -> impl Iterator<Item = (&JobKey, u32)> {
        let mut left = count;
        let mut nodes = number::count(self.jobs.len());
        self.jobs.iter().map(move |job| {
            let count = left.div_ceil(nodes);
            left -= count;
            nodes -= 1;
            (job, count)
        })
    }

    fn allocs<'a>(&'a self, state: &'a State) -> impl Iterator<Item = AllocView<'a>> {
        let allocs = |job| state.allocs().of_job(job);
        self.jobs.iter().flat_map(allocs)
    }

    fn with_status(&self, state: &State, status: ClientStatus) -> usize {
        let allocs = self.allocs(state);
        allocs
            .filter(|alloc| alloc.client_status() == status)
            .count()
    }

    /// Returns the number of allocations that run under an agent that did not start them.
    fn adopted(&self, state: &State) -> usize {
        let is_adopted = |alloc: &AllocView<'_>| {
            let states = alloc.task_states();
            let mut events = states.iter().flat_map(|task| &task.events);
            alloc.client_status() == ClientStatus::Running
                && events.any(|event| event.kind == TaskEventKind::Recovered)
        };
        self.allocs(state).filter(is_adopted).count()
    }
}

/// A server with its nodes.
struct Fleet<'a> {
    runtime: &'a Runtime,
    server: Server,
    nodes: Vec<NodeProcess>,
    load: TaskLoad,
    dir: tempfile::TempDir,
}

impl<'a> Fleet<'a> {
    fn start(context: &Context, runtime: &'a Runtime, load: TaskLoad) -> anyhow::Result<Self> {
        let dir = context.subdir()?;
        let mut config = ServerConfig::new(dir.path().join("server"));
        config.http_addr = ([127, 0, 0, 1], 0).into();
        config.quic_addr = ([127, 0, 0, 1], 0).into();
        let server = runtime.block_on(Server::start(config))?;
        let names = load.jobs.iter().map(|job| job.job_id.as_str());
        let nodes = names.map(|name| NodeProcess::start(&server, name));
        let nodes = nodes.collect::<anyhow::Result<Vec<_>>>()?;
        let fleet = Self {
            runtime,
            server,
            nodes,
            load,
            dir,
        };
        let wanted = fleet.nodes.len();
        fleet.wait_until("the nodes are ready", |state| {
            let nodes = state.nodes().iter();
            let able = nodes.filter(|node| node.takes_work() && node.spec.has_driver("native"));
            ready(state) == wanted && able.count() == wanted
        })?;
        Ok(fleet)
    }

    fn footprint(&self) -> anyhow::Result<Footprint> {
        let mut sum = Footprint::default();
        for node in &self.nodes {
            sum += node.footprint()?;
        }
        Ok(sum)
    }

    fn cpu(&self) -> anyhow::Result<Duration> {
        self.nodes.iter().map(NodeProcess::cpu).sum()
    }

    /// Measures start, idle cost, adoption and stop of the tasks.
    fn measure(&mut self, tally: &mut MetricSet) -> anyhow::Result<()> {
        let (count, suffix) = (self.load.count, self.load.suffix.clone());
        let tasks = f64::from(count);
        self.set_task_count(WARM_UP_TASKS)?;
        self.wait_until_running(WARM_UP_TASKS)?;
        self.stop()?;
        std::thread::sleep(SETTLE);
        let empty = self.footprint()?;
        tally.add_muster_value(&format!("kib_without_tasks_{suffix}"), "KiB", empty.kib);

        let begun = Instant::now();
        self.set_task_count(count)?;
        self.wait_until_running(count)?;
        let rate = tasks / begun.elapsed().as_secs_f64();
        tally.add_muster_value(&format!("started_{suffix}"), "tasks/s", rate);
        print_progress(
            &format!("{count} {} tasks run", self.load.level),
            begun.elapsed(),
        )?;

        std::thread::sleep(SETTLE);
        self.idle(tally)?;
        let full = self.footprint()?;
        for (name, kib) in [("", full.kib), ("more_", full.kib - empty.kib)] {
            let name = format!("kib_{name}per_task_{suffix}");
            tally.add_muster_value(&name, "KiB/task", kib / tasks);
        }
        for (name, more) in [
            ("threads", full.threads - empty.threads),
            ("processes", full.processes - empty.processes),
        ] {
            tally.add_muster_value(&format!("{name}_more_{suffix}"), name, more);
        }
        self.measure_adoption(tally)?;
        let took = self.stop()?;
        let rate = tasks / took.as_secs_f64();
        tally.add_muster_value(&format!("stopped_{suffix}"), "tasks/s", rate);
        print_progress("stopped", took)?;
        std::thread::sleep(SETTLE);
        let left = self.footprint()?.kib - empty.kib;
        tally.add_muster_value(&format!("kib_left_{suffix}"), "KiB", left);
        if count == 1_000 {
            self.start_bare_processes(tally)?;
        }
        Ok(())
    }

    fn set_task_count(&self, count: u32) -> anyhow::Result<()> {
        self.runtime.block_on(async {
            let mut client = Client::connect(self.server.info().http_addr).await?;
            for (key, count) in self.load.counts(count) {
                let job = job(&key.job_id, self.load.level, count);
                client.put("/v1/jobs", &job).await?;
            }
            Ok(())
        })
    }

    fn wait_until_running(&self, count: u32) -> anyhow::Result<()> {
        self.wait_until("all tasks run or one has failed", |state| {
            self.load.with_status(state, ClientStatus::Failed) > 0
                || self.load.with_status(state, ClientStatus::Running) == count as usize
        })?;
        self.ensure_none_failed()
    }

    fn measure_adoption(&mut self, tally: &mut MetricSet) -> anyhow::Result<()> {
        let begun = Instant::now();
        for node in &mut self.nodes {
            node.replace_agent(&self.server)?;
        }
        self.wait_until("all tasks are taken over", |state| {
            self.load.adopted(state) == self.load.count as usize
        })?;
        let took = begun.elapsed();
        let name = format!("adopted_{}", self.load.suffix);
        tally.add_muster_value(&name, "ms", took.as_secs_f64() * 1e3);
        print_progress("adopted", took)
    }

    fn idle(&self, tally: &mut MetricSet) -> anyhow::Result<()> {
        let (begun, before) = (Instant::now(), self.cpu()?);
        std::thread::sleep(SETTLE);
        let used = self.cpu()?.saturating_sub(before);
        let percent = used.as_secs_f64() / begun.elapsed().as_secs_f64() * 100.0;
        let name = format!("idle_percent_{}", self.load.suffix);
        tally.add_muster_value(&name, "% of a core", percent);
        Ok(())
    }

    /// Stops all tasks, and returns the duration.
    fn stop(&self) -> anyhow::Result<Duration> {
        let begun = Instant::now();
        self.runtime.block_on(async {
            let mut client = Client::connect(self.server.info().http_addr).await?;
            for job in &self.load.jobs {
                client.delete(&format!("/v1/job/{}", job.job_id)).await?;
            }
            anyhow::Ok(())
        })?;
        self.wait_until("all tasks have ended", |state| {
            self.load.with_status(state, ClientStatus::Running) == 0
        })?;
        Ok(begun.elapsed())
    }

    /// Starts the same number of processes by bare system calls. All of them live at the same time.
    fn start_bare_processes(&self, tally: &mut MetricSet) -> anyhow::Result<()> {
        let contained = self.load.level == "contained";
        let rival = if contained { BARE_SANDBOX } else { BARE };
        let took = Sleepers::new(self.dir.path())?.start(self.load.count, contained)?;
        let rate = f64::from(self.load.count) / took.as_secs_f64();
        let name = format!("started_{}", self.load.suffix);
        tally.add_rival_value(&name, "tasks/s", rival, rate);
        Ok(())
    }

    fn end(self) -> anyhow::Result<()> {
        let Self {
            runtime,
            server,
            nodes,
            load: _,
            dir: _dir,
        } = self;
        for node in nodes {
            node.end()?;
        }
        runtime.block_on(server.shutdown());
        Ok(())
    }

    fn wait_until(&self, what: &str, reached: impl Fn(&State) -> bool) -> anyhow::Result<()> {
        let begun = Instant::now();
        while !reached(&self.server.control().state()) {
            ensure!(
                begun.elapsed() < DEADLINE,
                "{what}: not within {DEADLINE:?}: {}",
                self.progress()
            );
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    fn ensure_none_failed(&self) -> anyhow::Result<()> {
        let state = self.server.control().state();
        let mut allocs = self.load.allocs(&state);
        let failed = allocs.find(|alloc| alloc.client_status() == ClientStatus::Failed);
        if let Some(failed) = failed {
            let states = failed.task_states();
            let events = states.iter().flat_map(|task| &task.events);
            let words: Vec<_> = events.map(|event| event.message.as_str()).collect();
            anyhow::bail!("a task failed: {}; {}", words.join("; "), self.progress());
        }
        Ok(())
    }

    /// Describes the state of an unfinished load, for an error message.
    fn progress(&self) -> String {
        let state = self.server.control().state();
        let mut counts = std::collections::BTreeMap::<String, u32>::new();
        for alloc in state.allocs().iter() {
            let status = format!("{:?}", alloc.client_status());
            *counts.entry(status).or_default() += 1;
        }
        let waiting = state.evals().pending().count();
        format!("allocations {counts:?}, {waiting} evaluations wait")
    }
}

/// Returns a job in Nomad's JSON, as a user writes it, for the node that its name selects.
fn job(id: &str, level: &str, count: u32) -> String {
    format!(
        r#"{{"Job":{{"ID":"{id}","Name":"{id}","Type":"batch","Datacenters":["dc1"],
"Constraints":[{{"LTarget":"${{node.unique.name}}","Operand":"=","RTarget":"{id}"}}],
"TaskGroups":[{{"Name":"main","Count":{count},"EphemeralDisk":{{"SizeMB":10}},
"Tasks":[{{"Name":"main","Driver":"native",
"Config":{{"command":"/bin/sleep","args":["infinity"],"isolation":"{level}"}},
"LogConfig":{{"MaxFiles":1,"MaxFileSizeMB":5}},
"Resources":{{"CPU":1,"MemoryMB":4}}}}]}}]}}}}"#
    )
}
