//! `place`: from a user's request to a committed placement, end to end.
//!
//! One real server runs in this process, with its log on this disk and `fdatasync`. A child process has 5 000
//! simulated nodes (see [`agents`]). Each node has its own QUIC session with mutual TLS. It registers, sends
//! heartbeats, receives its desired state and reports it running, as an agent does. It starts no tasks. The child
//! yields the processor to the server, because real agents run on other machines.
//!
//! Users' requests are `PUT /v1/jobs` with Nomad's JSON over keep-alive connections, from threads of this process.
//! The clock runs from before the first request until the published state has every allocation. The published state
//! contains only committed entries. All jobs are batch jobs with a constraint. Each round uses a new server:
//!
//! 1. 100 jobs of 1 000 are placed and reported running: 100 000 live allocations. Not timed.
//! 2. Single-instance jobs, one after the other, over one connection: the latency. Its floor is the least cost of two
//!    log entries, one with the job and one with its plan: twice an append with `fdatasync`. Reports of the earlier
//!    jobs and all heartbeats arrive meanwhile.
//! 3. Single-instance jobs, each with its own cpu and memory, over 128 connections.
//! 4. When all of them run: 1 000 jobs of 1 000 over 16 connections.
//!
//! Run this subject alone. On a busy machine the nodes cannot keep their sessions, and the run fails or its results
//! are useless. Do not use a real-time policy (`chrt`) either, because the threads then wait up to 100 ms for each
//! other.
//!
//! CPU time is that of this process: the server and the HTTP clients, but not the nodes.

mod agents;

use std::ffi::OsStr;
use std::fs::File;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use muster_control::handle::Control;
use muster_control::server::{Server, ServerConfig};
use muster_control_core::state::State;
use muster_domain::alloc::ClientStatus;
use muster_domain::id::JobKey;
use muster_domain::node::NodeStatus;
use tokio::runtime::{Builder, Runtime};

use super::client::{self, Client};
use crate::harness::{Context, CpuClock, Latencies, Metric, MetricSet};
use crate::subject::child::child_command;

pub(super) use agents::child;

/// The name of the child process of this subject.
pub(super) const CHILD: &str = "place";

/// The number of simulated nodes.
const NODES: u32 = 5_000;
/// The number of instances of a large job.
const LARGE: u32 = 1_000;
/// The number of large jobs that run before the timed part.
const LIVE_JOBS: u32 = 100;
/// Connections that register single-instance jobs.
const CONNECTIONS: u32 = 128;
/// Connections that register large jobs.
const CONNECTIONS_LARGE: u32 = 16;
/// The nodes' time to live. It is long enough that no node is lost when another program occupies the machine for a
/// while. A heartbeat is sent every third of it. Nomad gives this number of nodes 100 to 200 s.
const HEARTBEAT_TTL: Duration = Duration::from_secs(30);
/// The longest wait for any step.
const DEADLINE: Duration = Duration::from_mins(5);
/// Pause between two checks of a condition that is not timed.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The subject.
pub(crate) fn run(context: &Context) -> anyhow::Result<Vec<Metric>> {
    let mut tally = MetricSet::default();
    // Each round begins with five thousand handshakes, so there are few rounds.
    for _ in 0..context.pick(3, 1) {
        let server = Builder::new_multi_thread()
            .enable_all()
            .thread_name("server")
            .build()?;
        let clients = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .thread_name("clients")
            .build()?;
        let dir = context.subdir()?;
        let round = BenchServer::start(&server, &clients, dir.path())?;
        round.measure(context, &mut tally)?;
        round.end()?;
    }
    Ok(tally.finish())
}

/// A server with nodes.
struct BenchServer<'a> {
    runtime: &'a Runtime,
    clients: &'a Runtime,
    dir: &'a Path,
    server: Server,
    nodes: Nodes,
}

/// The child process with the nodes. It ends when this value is dropped.
pub(super) struct Nodes(Child);

impl Nodes {
    /// Starts `count` nodes of `server`.
    pub(super) fn start(server: &Server, count: u32) -> anyhow::Result<Self> {
        Self::of(server, &server.info().data_dir.join("tls"), count)
    }

    /// Starts `count` nodes of `server`, with the certificate in `tls`.
    pub(super) fn of(server: &Server, tls: &Path, count: u32) -> anyhow::Result<Self> {
        let (addr, count) = (server.info().quic_addr.to_string(), count.to_string());
        let args: [&OsStr; 3] = [tls.as_ref(), addr.as_ref(), count.as_ref()];
        let child = child_command(CHILD, args)?
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn();
        child.map(Self).context("start the nodes")
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Jobs that are registered together.
#[derive(Clone, Copy)]
struct JobLoad {
    name: &'static str,
    jobs: u32,
    count: u32,
    connections: u32,
}

impl<'a> BenchServer<'a> {
    fn start(runtime: &'a Runtime, clients: &'a Runtime, dir: &'a Path) -> anyhow::Result<Self> {
        let mut config = ServerConfig::new(dir.join("server"));
        config.http_addr = ([127, 0, 0, 1], 0).into();
        config.quic_addr = ([127, 0, 0, 1], 0).into();
        config.heartbeat_ttl = HEARTBEAT_TTL;
        let server = runtime.block_on(Server::start(config))?;
        let nodes = Nodes::start(&server, NODES)?;
        let round = Self {
            runtime,
            clients,
            dir,
            server,
            nodes,
        };
        let begun = Instant::now();
        round.wait_until("all nodes are ready", |state| {
            ready(state) == NODES as usize
        })?;
        print_progress("nodes joined", begun.elapsed())?;
        Ok(round)
    }

    fn measure(&self, context: &Context, tally: &mut MetricSet) -> anyhow::Result<()> {
        let live = JobLoad {
            name: "live",
            jobs: LIVE_JOBS,
            count: LARGE,
            connections: CONNECTIONS_LARGE,
        };
        self.place(live)?;
        self.wait_until_running()?;
        self.latency(context.pick(500, 200), tally)?;
        self.wait_until_running()?;
        let ones = JobLoad {
            name: "one",
            jobs: context.pick(10_000, 2_000),
            count: 1,
            connections: CONNECTIONS,
        };
        let placed = self.place(ones)?;
        placed.add_metrics(&format!("jobs_of_one_on_{NODES}"), tally);
        self.wait_until_running()?;
        let large = JobLoad {
            name: "large",
            jobs: context.pick(1_000, 200),
            count: LARGE,
            connections: CONNECTIONS_LARGE,
        };
        let placed = self.place(large)?;
        placed.add_metrics(&format!("1000x1000_on_{NODES}"), tally);
        let lost = NODES as usize - ready(&self.control().state());
        ensure!(lost == 0, "{lost} nodes were lost while jobs were placed");
        Ok(())
    }

    fn end(self) -> anyhow::Result<()> {
        let Self {
            runtime,
            server,
            mut nodes,
            ..
        } = self;
        let early = nodes.0.try_wait()?;
        ensure!(early.is_none(), "the nodes' process ended: {early:?}");
        drop(nodes);
        runtime.block_on(server.shutdown());
        Ok(())
    }

    fn control(&self) -> &Control {
        self.server.control()
    }

    fn http(&self) -> SocketAddr {
        self.server.info().http_addr
    }

    /// Registers the jobs of `load` and waits until all their instances are committed.
    fn place(&self, load: JobLoad) -> anyhow::Result<PlacementResult> {
        let placements = load.jobs as usize * load.count as usize;
        let wanted = self.control().state().allocs().len() + placements;
        let addr = self.http();
        let cpu = CpuClock::of_process()?;
        let begun = Instant::now();
        let registering: Vec<_> = (0..load.connections)
            .map(|connection| self.clients.spawn(register(addr, load, connection)))
            .collect();
        let watching = self.control().clone();
        let watch = self.runtime.spawn(async move {
            let mut applied = watching.applied();
            while watching.state().allocs().len() < wanted {
                applied.changed().await?;
            }
            anyhow::Ok(begun.elapsed())
        });
        let done = self.runtime.block_on(async {
            for requests in registering {
                requests.await??;
            }
            let registered = begun.elapsed();
            let committed = tokio::time::timeout(DEADLINE, watch).await;
            anyhow::Ok((registered, committed???))
        });
        let (registered, committed) = done.with_context(|| self.progress(wanted))?;
        print_progress(load.name, committed)?;
        Ok(PlacementResult {
            placements: placements as f64,
            jobs: f64::from(load.jobs),
            registered,
            committed,
            cpu: cpu.elapsed()?,
        })
    }

    /// Describes the state of an unfinished load, for an error message.
    fn progress(&self, wanted: usize) -> String {
        let state = self.control().state();
        format!(
            "{} of {wanted} allocations are there, {} evaluations wait",
            state.allocs().len(),
            state.evals().pending().count()
        )
    }

    /// Waits until the nodes have reported all allocations as running.
    fn wait_until_running(&self) -> anyhow::Result<()> {
        let begun = Instant::now();
        self.wait_until("all allocations run", |state| {
            let mut allocs = state.allocs().iter();
            allocs.all(|alloc| alloc.client_status() == ClientStatus::Running)
        })?;
        print_progress("all run", begun.elapsed())
    }

    fn wait_until(&self, what: &str, reached: impl Fn(&State) -> bool) -> anyhow::Result<()> {
        let begun = Instant::now();
        while !reached(&self.control().state()) {
            ensure!(
                begun.elapsed() < DEADLINE,
                "{what}: not within {DEADLINE:?}; {} nodes are ready",
                ready(&self.control().state())
            );
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// Measures the latency of jobs that are registered one after the other.
    fn latency(&self, jobs: u32, tally: &mut MetricSet) -> anyhow::Result<()> {
        let (mut ours, mut answered) = (Latencies::new()?, Latencies::new()?);
        let control = self.control().clone();
        let addr = self.http();
        self.runtime.block_on(async {
            let mut client = Client::connect(addr).await?;
            for number in 0..jobs {
                let id = format!("alone-{number}");
                let body = client::job(&id, 1, 20 + number % 50, 32 + number % 70);
                let key = JobKey::in_default(id);
                let mut applied = control.applied();
                let begun = Instant::now();
                let request = async {
                    client.put("/v1/jobs", &body).await?;
                    anyhow::Ok(begun.elapsed())
                };
                let placement = async {
                    while control.state().allocs().of_job(&key).next().is_none() {
                        applied.changed().await?;
                    }
                    anyhow::Ok(begun.elapsed())
                };
                let both = async { tokio::try_join!(request, placement) };
                let (answer, placed) = tokio::time::timeout(DEADLINE, both).await??;
                ours.add(placed);
                answered.add(answer);
            }
            anyhow::Ok(())
        })?;
        let theirs = self.two_appends(jobs)?;
        for (name, share) in [("latency_p50", 0.5), ("latency_p99", 0.99)] {
            tally.add_muster_value(name, "µs", ours.micros(share));
            tally.add_rival_value(
                name,
                "µs",
                "two appends with fdatasync",
                theirs.micros(share),
            );
        }
        tally.add_muster_value("answer_p50", "µs", answered.micros(0.5));
        Ok(())
    }

    /// Measures the least cost of two log entries: twice an append with `fdatasync`.
    fn two_appends(&self, times: u32) -> anyhow::Result<Latencies> {
        let mut file = File::create(self.dir.join("floor"))?;
        let mut latencies = Latencies::new()?;
        let entry = [7_u8; 512];
        for _ in 0..times {
            let begun = Instant::now();
            for _ in 0..2 {
                file.write_all(&entry)?;
                file.sync_data()?;
            }
            latencies.add(begun.elapsed());
        }
        Ok(latencies)
    }
}

/// The result of a load: counts, times, CPU time.
struct PlacementResult {
    placements: f64,
    jobs: f64,
    registered: Duration,
    committed: Duration,
    cpu: Duration,
}

impl PlacementResult {
    fn add_metrics(&self, name: &str, tally: &mut MetricSet) {
        let rate = self.placements / self.committed.as_secs_f64();
        tally.add_muster_value(&format!("commit_{name}"), "placements/s", rate);
        let rate = self.jobs / self.registered.as_secs_f64();
        tally.add_muster_value(&format!("register_{name}"), "jobs/s", rate);
        let cpu = self.cpu.as_secs_f64() * 1e6 / self.placements;
        tally.add_muster_value(&format!("cpu_{name}"), "µs/placement", cpu);
    }
}

/// Registers the jobs of `load` that belong to this connection.
async fn register(addr: SocketAddr, load: JobLoad, connection: u32) -> anyhow::Result<()> {
    let mut client = Client::connect(addr).await?;
    for number in (connection..load.jobs).step_by(load.connections as usize) {
        let id = format!("{}-{number}", load.name);
        let (cpu_mhz, memory_mb) = match load.count {
            // No two of a hundred jobs ask for the same amounts.
            1 => (10 + number % 97, 16 + number % 89),
            _ => (20, 32),
        };
        let body = client::job(&id, load.count, cpu_mhz, memory_mb);
        client.put("/v1/jobs", &body).await?;
    }
    Ok(())
}

/// Prints the progress of a round, because a round takes long.
pub(super) fn print_progress(what: &str, took: Duration) -> anyhow::Result<()> {
    let seconds = took.as_secs_f64();
    writeln!(std::io::stderr(), "  {what}: {seconds:.2} s")?;
    Ok(())
}

/// Returns the number of ready nodes.
pub(super) fn ready(state: &State) -> usize {
    let nodes = state.nodes().iter();
    nodes
        .filter(|node| node.status == NodeStatus::Ready)
        .count()
}
