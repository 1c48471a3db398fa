//! `task_fleet`: a thousand tasks and more on one node, through the whole agent.
//!
//! A real server in this process, and an agent in a process of its own that starts the native driver's
//! process, as `muster server` and `muster agent` are. A user's request (`PUT /v1/jobs`, Nomad's JSON)
//! asks for one job of so many instances of `/bin/sleep infinity`, contained unless the name of a metric
//! says raw, with FIFOs, log files, directories, cgroups and a record in the agent's store each.
//!
//! - `started`: from before the request until the server has heard that all of them run.
//! - `stopped`: from before the request that stops the job until it has heard that all have ended.
//! - `kib_per_task`: proportional set size of agent and driver, whatever they hold without tasks
//!   included, divided by the tasks; `kib_more_per_task` is what has come to it since there were none. The
//!   server is no part of it: it runs elsewhere.
//! - `idle_percent`: CPU time of agent and driver while nothing happens, heartbeats included.
//! - `adopted`: from the start of the next agent, after the first was killed, until the server has heard that it has
//!   taken over all of them.
//! - `threads_more`, `processes_more`: those of agent and driver, and what else runs this program, beyond
//!   what they are without tasks.
//!
//! The rival of `started` makes cgroups and starts the same program in them by bare system calls.

mod node;

use std::io::Write as _;
use std::time::{Duration, Instant};

use anyhow::ensure;
use muster_control::server::{Server, ServerConfig};
use muster_control_core::state::{AllocView, State};
use muster_domain::alloc::{ClientStatus, TaskEventKind};
use muster_domain::id::JobKey;
use nix::sys::resource::{Resource, getrlimit};
use tokio::runtime::{Builder, Runtime};

use super::client::Client;
use super::place::{ready, say};
use super::task_start::Sleepers;
use crate::harness::{Context, Metric, Tally};

pub(super) use node::{CHILD, child};

use node::{Footprint, NodeProcess};

/// The rivals' names, as `budgets.toml` knows them.
const BARE: &str = "mkdir, clone3, exec";
const BARE_SANDBOX: &str = "the same calls with namespaces and pivot_root";

/// The most tasks that are asked for.
const MANY: u32 = 5_000;
/// Files that an agent has open for each task, a few of its own included.
const FILES_PER_TASK: u64 = 12;
/// Longest wait for anything.
const DEADLINE: Duration = Duration::from_mins(3);
/// A pause between two looks.
const LOOK: Duration = Duration::from_millis(5);
/// After this long an agent that was busy has told everything, and threads for what blocks have ended.
const SETTLE: Duration = Duration::from_secs(12);

/// The subject.
pub(crate) fn run(context: &Context) -> anyhow::Result<Vec<Metric>> {
    let mut tally = Tally::default();
    for _ in 0..context.pick(3, 1) {
        let runtime = Builder::new_multi_thread().enable_all().build()?;
        let mut fleet = Fleet::start(context, &runtime)?;
        fleet.measure(&mut tally)?;
        fleet.end()?;
    }
    Ok(tally.finish())
}

/// A server with one node.
struct Fleet<'a> {
    runtime: &'a Runtime,
    server: Server,
    node: NodeProcess,
    dir: tempfile::TempDir,
}

impl<'a> Fleet<'a> {
    fn start(context: &Context, runtime: &'a Runtime) -> anyhow::Result<Self> {
        let dir = context.subdir()?;
        let mut config = ServerConfig::new(dir.path().join("server"));
        config.http_addr = ([127, 0, 0, 1], 0).into();
        config.quic_addr = ([127, 0, 0, 1], 0).into();
        let server = runtime.block_on(Server::start(config))?;
        let node = NodeProcess::start(&server)?;
        let fleet = Self {
            runtime,
            server,
            node,
            dir,
        };
        fleet.until("the node is ready", |state| {
            let has_driver = |state: &State| {
                let mut nodes = state.nodes().iter();
                nodes.any(|node| node.takes_work() && node.spec.has_driver("native"))
            };
            ready(state) == 1 && has_driver(state)
        })?;
        Ok(fleet)
    }

    fn measure(&mut self, tally: &mut Tally) -> anyhow::Result<()> {
        std::thread::sleep(SETTLE);
        let empty = self.node.footprint()?;
        tally.ours("kib_without_tasks", "KiB", empty.kib);
        self.load("contained", 100, empty, tally)?;
        self.load("raw", 1_000, empty, tally)?;
        self.load("contained", 1_000, empty, tally)?;
        self.bare(1_000, tally)?;
        let (_, files) = getrlimit(Resource::RLIMIT_NOFILE)?;
        if files < u64::from(MANY) * FILES_PER_TASK {
            let what = "task_fleet: the hard limit of open files is too low for as many tasks";
            writeln!(std::io::stderr(), "{what}: {files}, {MANY} tasks")?;
            return Ok(());
        }
        self.load("contained", MANY, empty, tally)
    }

    /// One job, started, looked at and stopped.
    fn load(
        &mut self,
        level: &str,
        count: u32,
        empty: Footprint,
        tally: &mut Tally,
    ) -> anyhow::Result<()> {
        let suffix = match level {
            "contained" => count.to_string(),
            level => format!("{level}_{count}"),
        };
        let id = format!("sleep-{suffix}");
        let begun = Instant::now();
        self.runtime.block_on(async {
            let mut client = Client::connect(self.server.info().http_addr).await?;
            client.put("/v1/jobs", &job(&id, level, count)).await
        })?;
        self.until("all tasks run or one has failed", |state| {
            with_status(state, &id, ClientStatus::Failed) > 0
                || with_status(state, &id, ClientStatus::Running) == count as usize
        })?;
        self.none_failed(&id)?;
        let rate = f64::from(count) / begun.elapsed().as_secs_f64();
        tally.ours(&format!("started_{suffix}"), "tasks/s", rate);
        say(&format!("{count} {level} tasks run"), begun.elapsed())?;

        std::thread::sleep(SETTLE);
        self.idle(&suffix, tally)?;
        let full = self.node.footprint()?;
        let tasks = f64::from(count);
        for (name, kib) in [("", full.kib), ("more_", full.kib - empty.kib)] {
            let name = format!("kib_{name}per_task_{suffix}");
            tally.ours(&name, "KiB/task", kib / tasks);
        }
        for (name, more) in [
            ("threads", full.threads - empty.threads),
            ("processes", full.processes - empty.processes),
        ] {
            tally.ours(&format!("{name}_more_{suffix}"), name, more);
        }
        self.adopt(&id, &suffix, count, tally)?;
        self.stop(&id, &suffix, tasks, tally)
    }

    fn adopt(
        &mut self,
        id: &str,
        suffix: &str,
        count: u32,
        tally: &mut Tally,
    ) -> anyhow::Result<()> {
        let begun = Instant::now();
        self.node.replace_agent(&self.server)?;
        self.until("all tasks are taken over", |state| {
            adopted(state, id) == count as usize
        })?;
        let took = begun.elapsed();
        tally.ours(&format!("adopted_{suffix}"), "ms", took.as_secs_f64() * 1e3);
        say("adopted", took)
    }

    fn idle(&self, suffix: &str, tally: &mut Tally) -> anyhow::Result<()> {
        let (begun, before) = (Instant::now(), self.node.cpu()?);
        std::thread::sleep(SETTLE);
        let used = self.node.cpu()?.saturating_sub(before);
        let percent = used.as_secs_f64() / begun.elapsed().as_secs_f64() * 100.0;
        tally.ours(&format!("idle_percent_{suffix}"), "% of a core", percent);
        Ok(())
    }

    fn stop(&self, id: &str, suffix: &str, tasks: f64, tally: &mut Tally) -> anyhow::Result<()> {
        let begun = Instant::now();
        self.runtime.block_on(async {
            let mut client = Client::connect(self.server.info().http_addr).await?;
            client.delete(&format!("/v1/job/{id}")).await
        })?;
        self.until("all tasks have ended", |state| {
            with_status(state, id, ClientStatus::Running) == 0
        })?;
        let rate = tasks / begun.elapsed().as_secs_f64();
        tally.ours(&format!("stopped_{suffix}"), "tasks/s", rate);
        say("stopped", begun.elapsed())
    }

    /// As many by bare system calls, all living at once.
    fn bare(&self, count: u32, tally: &mut Tally) -> anyhow::Result<()> {
        let sleepers = Sleepers::new(self.dir.path())?;
        for (name, rival, contained) in [
            ("started_raw_1000", BARE, false),
            ("started_1000", BARE_SANDBOX, true),
        ] {
            let took = sleepers.start(count, contained)?;
            let rate = f64::from(count) / took.as_secs_f64();
            tally.rival(name, "tasks/s", rival, rate);
        }
        Ok(())
    }

    fn end(self) -> anyhow::Result<()> {
        let Self {
            runtime,
            server,
            node,
            dir: _dir,
        } = self;
        node.end()?;
        runtime.block_on(server.shutdown());
        Ok(())
    }

    fn until(&self, what: &str, reached: impl Fn(&State) -> bool) -> anyhow::Result<()> {
        let begun = Instant::now();
        while !reached(&self.server.control().state()) {
            ensure!(
                begun.elapsed() < DEADLINE,
                "{what}: not within {DEADLINE:?}: {}",
                self.progress()
            );
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    fn none_failed(&self, id: &str) -> anyhow::Result<()> {
        let state = self.server.control().state();
        let key = JobKey::in_default(id.to_owned());
        let mut allocs = state.allocs().of_job(&key);
        let failed = allocs.find(|alloc| alloc.client_status() == ClientStatus::Failed);
        if let Some(failed) = failed {
            let states = failed.task_states();
            let events = states.iter().flat_map(|task| &task.events);
            let words: Vec<_> = events.map(|event| event.message.as_str()).collect();
            anyhow::bail!("a task failed: {}; {}", words.join("; "), self.progress());
        }
        Ok(())
    }

    /// What became of a load that did not get through.
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

/// Allocations of a job that are in `status`.
fn with_status(state: &State, job: &str, status: ClientStatus) -> usize {
    let key = JobKey::in_default(job.to_owned());
    let allocs = state.allocs().of_job(&key);
    allocs
        .filter(|alloc| alloc.client_status() == status)
        .count()
}

/// Allocations of a job that run on under an agent that did not start them.
fn adopted(state: &State, job: &str) -> usize {
    let key = JobKey::in_default(job.to_owned());
    let allocs = state.allocs().of_job(&key);
    let is_adopted = |alloc: &AllocView<'_>| {
        let states = alloc.task_states();
        let mut events = states.iter().flat_map(|task| &task.events);
        alloc.client_status() == ClientStatus::Running
            && events.any(|event| event.kind == TaskEventKind::Recovered)
    };
    allocs.filter(is_adopted).count()
}

/// A job as a user writes it, in Nomad's JSON.
fn job(id: &str, level: &str, count: u32) -> String {
    format!(
        r#"{{"Job":{{"ID":"{id}","Name":"{id}","Type":"batch","Datacenters":["dc1"],
"TaskGroups":[{{"Name":"main","Count":{count},"EphemeralDisk":{{"SizeMB":10}},
"Tasks":[{{"Name":"main","Driver":"native",
"Config":{{"command":"/bin/sleep","args":["infinity"],"isolation":"{level}"}},
"Resources":{{"CPU":1,"MemoryMB":4}}}}]}}]}}}}"#
    )
}
