//! `tasks` and `tasks_real`: one-off tasks from creation to deletion, end to end.
//!
//! One real server runs in this process, with its log on this disk and `fdatasync`. A child process has 200 simulated
//! nodes, as in `place`. Each node reports a task running as soon as it receives it, and completed 200 ms later.
//! Clients desire tasks over 128 keep-alive connections. When all tasks are completed, the clients claim and delete
//! each over the same connections. Each round uses a new server:
//!
//! 1. 200 tasks, one after the other, over one connection. `running` is the time from the request until the state
//!    says that the task is running, which happens when a node receives it. `started` is the time until its process
//!    started, by the clock of its node.
//! 2. Some tasks, one after the other: the growth of the log from desire to deletion, all entries of the server
//!    counted. There are three ways of the end. In `entries_alone` a client claims and then deletes, in two requests.
//!    In `entries_alone_at_once` one request of a client claims and deletes. In `entries_alone_callback` a callback
//!    is delivered. A task here ends 200 ms after its node receives it. A task that runs for longer than the server
//!    delays the running state costs one entry more.
//! 3. Some tasks with a callback, one after the other: the time from the completed state until an endpoint in this
//!    process was called.
//! 4. Many tasks at once: the rate from the first request to the last deletion (two requests for each task's end),
//!    and the growth of the log. The same follows with tasks that are claimed and deleted by one request
//!    (`_at_once`). Finally three servers in this process share the clients' connections. All nodes are connected to
//!    one of them.
//!
//! Before the rounds, a separate server gets tasks that fit on no node. The subject then measures the memory of the
//! queue and the time of one more request.
//!
//! `tasks_real`, with `_real` as suffix of the names, does steps 1 and 4 with one server and one real node on this
//! machine. Its agent and driver are processes, as in `task_fleet`. Each task is a contained `/bin/true`.

use std::cell::Cell;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, ensure};
use muster_control::handle::Control;
use muster_control::server::{Server, ServerConfig};
use muster_control_core::state::State;
use muster_domain::one_off::OneOffState;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;

use super::client::Client;
use super::place::{Nodes, ready};
use super::raft_cluster::Cluster;
use super::state_memory::resident;
use super::task_fleet::NodeProcess;
use crate::harness::{Context, Latencies, Metric, MetricSet};

/// The number of simulated nodes. Each has room for a thousand tasks.
const NODES: u32 = 200;
/// The number of the clients' connections.
const CONNECTIONS: u32 = 128;
/// The longest wait for any step.
const DEADLINE: Duration = Duration::from_mins(5);
/// Pause between two checks of a condition that is not timed.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// The capacity of the channel of callback times. One task at a time is measured.
const CALLS_WAITING_MAX: usize = 1;

/// The subject `tasks`.
pub(crate) fn run(context: &Context) -> anyhow::Result<Vec<Metric>> {
    let mut tally = MetricSet::default();
    // The queue is measured first and once. Memory that the allocator keeps from other rounds would hide its size.
    with_server(context, |round| {
        round.measure_queue(context.pick(100_000, 10_000), &mut tally)
    })?;
    for _ in 0..context.pick(3, 1) {
        with_server(context, |round| {
            round.latency("", &mut tally)?;
            round.measure_log_growth(context.pick(50, 20), &mut tally)?;
            round.callbacks(context.pick(50, 20), &mut tally)?;
            round.rate(
                context.pick(50_000, 20_000),
                "",
                Resolution::Claimed,
                &mut tally,
            )
        })?;
        with_server(context, |round| {
            let tasks = context.pick(50_000, 20_000);
            round.rate(tasks, "_at_once", Resolution::AtOnce, &mut tally)
        })?;
        three_servers(context, &mut tally)?;
    }
    Ok(tally.finish())
}

/// The subject `tasks_real`.
pub(crate) fn run_real(context: &Context) -> anyhow::Result<Vec<Metric>> {
    let mut tally = MetricSet::default();
    for _ in 0..context.rounds() {
        measure_real_processes(context, &mut tally)?;
    }
    Ok(tally.finish())
}

/// Measures on a new server with nodes.
fn with_server(
    context: &Context,
    measure: impl FnOnce(&Round<'_>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let runtime = Builder::new_multi_thread().enable_all().build()?;
    let dir = context.subdir()?;
    let server = server(&runtime, dir.path())?;
    let round = Round::at(&runtime, &server);
    let nodes = Nodes::start(&server, NODES)?;
    round.nodes_are_ready(NODES)?;
    measure(&round)?;
    drop(nodes);
    runtime.block_on(server.shutdown());
    Ok(())
}

/// Measures tasks one after the other, and many at once, as processes of this machine.
fn measure_real_processes(context: &Context, tally: &mut MetricSet) -> anyhow::Result<()> {
    let runtime = Builder::new_multi_thread().enable_all().build()?;
    let dir = context.subdir()?;
    let server = server(&runtime, dir.path())?;
    let round = Round::at(&runtime, &server);
    let node = NodeProcess::start(&server, "real")?;
    round.nodes_are_ready(1)?;
    round.wait_until("the node has its driver", |state| {
        let mut nodes = state.nodes().iter();
        nodes.all(|node| node.spec.has_driver("native"))
    })?;
    round.latency("_real", tally)?;
    let tasks = context.pick(5_000, 1_000);
    round.rate(tasks, "_real", Resolution::Claimed, tally)?;
    node.end()?;
    runtime.block_on(server.shutdown());
    Ok(())
}

fn server(runtime: &Runtime, dir: &Path) -> anyhow::Result<Server> {
    let mut config = ServerConfig::new(dir.join("server"));
    config.http_addr = ([127, 0, 0, 1], 0).into();
    config.quic_addr = ([127, 0, 0, 1], 0).into();
    configure(&mut config);
    Ok(runtime.block_on(Server::start(config))?)
}

fn configure(config: &mut ServerConfig) {
    config.heartbeat_ttl = Duration::from_secs(30);
    // No task is deleted by its retention during the measurement.
    config.tasks.retention = DEADLINE * 2;
}

/// Measures many tasks at once, with three servers.
fn three_servers(context: &Context, tally: &mut MetricSet) -> anyhow::Result<()> {
    let runtime = Builder::new_multi_thread().enable_all().build()?;
    let dir = context.subdir()?;
    let cluster = runtime.block_on(Cluster::of(dir.path(), 3, configure))?;
    let servers = cluster.servers.iter();
    let round = Round {
        runtime: &runtime,
        control: runtime.block_on(cluster.leader())?,
        addrs: servers.map(|server| server.info().http_addr).collect(),
    };
    let first = &cluster.servers[0];
    let nodes = Nodes::of(first, &cluster.dir.join("s1-tls"), NODES)?;
    round.nodes_are_ready(NODES)?;
    let tasks = context.pick(50_000, 20_000);
    round.rate(tasks, "_3_servers", Resolution::Claimed, tally)?;
    drop(nodes);
    runtime.block_on(cluster.shutdown());
    Ok(())
}

/// Servers with nodes.
struct Round<'a> {
    runtime: &'a Runtime,
    /// The handle of the leader.
    control: Control,
    addrs: Vec<SocketAddr>,
}

impl<'a> Round<'a> {
    fn at(runtime: &'a Runtime, server: &Server) -> Self {
        Self {
            runtime,
            control: server.control().clone(),
            addrs: vec![server.info().http_addr],
        }
    }

    fn nodes_are_ready(&self, nodes: u32) -> anyhow::Result<()> {
        self.wait_until("all nodes are ready", |state| {
            ready(state) == nodes as usize
        })
    }

    fn wait_until(&self, what: &str, reached: impl Fn(&State) -> bool) -> anyhow::Result<()> {
        let begun = Instant::now();
        while !reached(&self.control.state()) {
            ensure!(
                begun.elapsed() < DEADLINE,
                "{what}: not within {DEADLINE:?}"
            );
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// Measures the time until each task runs, one task after the other.
    fn latency(&self, suffix: &str, tally: &mut MetricSet) -> anyhow::Result<()> {
        let mut latencies = Latencies::new()?;
        let mut begun_at = Vec::new();
        let control = self.control.clone();
        self.runtime.block_on(async {
            let mut client = Client::connect(self.addrs[0]).await?;
            for number in 0..200 {
                let guid = format!("alone-{number}");
                let mut applied = control.applied();
                let begun = Instant::now();
                begun_at.push(SystemTime::now().duration_since(UNIX_EPOCH)?);
                client.put("/v1/tasks", &task(&guid, 16, "")).await?;
                let runs = async {
                    let is_pending = |state: &State| {
                        let row = state.one_offs().get(&guid);
                        row.is_none_or(|row| row.state == OneOffState::Pending)
                    };
                    while is_pending(&control.state()) {
                        applied.changed().await?;
                    }
                    anyhow::Ok(())
                };
                tokio::time::timeout(DEADLINE, runs).await??;
                latencies.add(begun.elapsed());
            }
            anyhow::Ok(())
        })?;
        let started = self.started(&begun_at)?;
        for (name, share) in [("p50", 0.5), ("p99", 0.99)] {
            let running = format!("running_{name}{suffix}");
            tally.add_muster_value(&running, "µs", latencies.micros(share));
            let name = format!("started_{name}{suffix}");
            tally.add_muster_value(&name, "µs", started.micros(share));
        }
        Ok(())
    }

    /// Returns how long after `begun_at` (times since 1970) the process of each task of [`Self::latency`] started.
    fn started(&self, begun_at: &[Duration]) -> anyhow::Result<Latencies> {
        let started_at = |state: &State, number: usize| {
            let row = state.one_offs().get(&format!("alone-{number}"))?;
            Some(Duration::from_nanos(row.started_at?.0))
        };
        let is_reported = |state: &State| {
            let mut numbers = 0..begun_at.len();
            numbers.all(|number| started_at(state, number).is_some())
        };
        self.wait_until("all tasks say when they started", is_reported)?;
        let state = self.control.state();
        let mut latencies = Latencies::new()?;
        for (number, begun) in begun_at.iter().enumerate() {
            let started = started_at(&state, number).context("the task is gone")?;
            latencies.add(started.saturating_sub(*begun));
        }
        Ok(latencies)
    }

    /// Measures the growth of the log from desire to deletion, one task after the other.
    fn measure_log_growth(&self, tasks: u32, tally: &mut MetricSet) -> anyhow::Result<()> {
        let ends = [
            ("entries_alone", Resolution::Claimed),
            ("entries_alone_at_once", Resolution::AtOnce),
            ("entries_alone_callback", Resolution::Callback),
        ];
        for (name, end) in ends {
            let before = self.control.last_log_index().0;
            for number in 0..tasks {
                self.run_task_until_deleted(&format!("{name}-{number}"), end)?;
            }
            let entries = (self.control.last_log_index().0 - before) as f64;
            tally.add_muster_value(name, "entries/task", entries / f64::from(tasks));
        }
        Ok(())
    }

    /// Runs one task from desire to deletion.
    fn run_task_until_deleted(&self, guid: &str, end: Resolution) -> anyhow::Result<()> {
        let endpoint = self.runtime.block_on(async {
            let (called, mut calls) = mpsc::channel(CALLS_WAITING_MAX);
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            let url = match end {
                Resolution::Callback => format!("http://{}/", listener.local_addr()?),
                Resolution::Claimed | Resolution::AtOnce => String::new(),
            };
            let endpoint = tokio::spawn(endpoint(listener, called));
            let mut client = Client::connect(self.addrs[0]).await?;
            client.put("/v1/tasks", &task(guid, 16, &url)).await?;
            if end == Resolution::Callback {
                let called = tokio::time::timeout(DEADLINE, calls.recv()).await?;
                called.context("the endpoint has ended")?;
            }
            anyhow::Ok(endpoint)
        })?;
        self.wait_until("the task is over", |state| {
            let row = state.one_offs().get(guid);
            match end {
                Resolution::Callback => row.is_none(),
                Resolution::Claimed | Resolution::AtOnce => {
                    row.is_some_and(|row| row.state == OneOffState::Completed)
                }
            }
        })?;
        endpoint.abort();
        self.runtime.block_on(async {
            let mut client = Client::connect(self.addrs[0]).await?;
            finish(&mut client, guid, end).await
        })
    }

    /// Measures the time from completion to callback, one task after the other.
    fn callbacks(&self, tasks: u32, tally: &mut MetricSet) -> anyhow::Result<()> {
        let mut latencies = Latencies::new()?;
        let control = self.control.clone();
        self.runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            let url = format!("http://{}/", listener.local_addr()?);
            let (called, mut calls) = mpsc::channel(CALLS_WAITING_MAX);
            let endpoint = tokio::spawn(endpoint(listener, called));
            let mut client = Client::connect(self.addrs[0]).await?;
            for number in 0..tasks {
                let guid = format!("called-{number}");
                let mut applied = control.applied();
                client.put("/v1/tasks", &task(&guid, 16, &url)).await?;
                let completed = async {
                    let is_live = |state: &State| {
                        let row = state.one_offs().get(&guid);
                        row.is_some_and(|row| row.end.is_none())
                    };
                    while is_live(&control.state()) {
                        applied.changed().await?;
                    }
                    anyhow::Ok(Instant::now())
                };
                let completed = tokio::time::timeout(DEADLINE, completed).await??;
                let called = tokio::time::timeout(DEADLINE, calls.recv()).await?;
                let called = called.context("the endpoint has ended")?;
                latencies.add(called.saturating_duration_since(completed));
            }
            endpoint.abort();
            anyhow::Ok(())
        })?;
        tally.add_muster_value("callback_p50", "µs", latencies.micros(0.5));
        tally.add_muster_value("callback_p99", "µs", latencies.micros(0.99));
        Ok(())
    }

    /// Measures many tasks at once, each until its end.
    fn rate(
        &self,
        tasks: u32,
        suffix: &str,
        end: Resolution,
        tally: &mut MetricSet,
    ) -> anyhow::Result<()> {
        let before = self.control.last_log_index().0;
        let begun = Instant::now();
        self.each(tasks, ClientRequest::Desire)?;
        let desired = begun.elapsed();
        // A completed task stays completed meanwhile, so each check continues where the previous one ended.
        let seen = Cell::new(0);
        let is_over = |state: &State| {
            let is_completed = |number: u32| {
                let row = state.one_offs().get(&format!("t-{number}"));
                row.is_some_and(|row| row.state == OneOffState::Completed)
            };
            while seen.get() < tasks && is_completed(seen.get()) {
                seen.set(seen.get() + 1);
            }
            seen.get() == tasks
        };
        self.wait_until("all tasks are completed", is_over)?;
        let completed = begun.elapsed();
        self.each(tasks, ClientRequest::Finish(end))?;
        let finished = begun.elapsed();
        let rate = |took: Duration| f64::from(tasks) / took.as_secs_f64();
        for (name, took) in [
            ("desired", desired),
            ("completed", completed),
            ("resolved", finished),
        ] {
            tally.add_muster_value(&format!("{name}{suffix}"), "tasks/s", rate(took));
        }
        let entries = (self.control.last_log_index().0 - before) as f64;
        let name = format!("entries{suffix}");
        tally.add_muster_value(&name, "entries/task", entries / f64::from(tasks));
        Ok(())
    }

    /// Measures a queue of tasks that are larger than any node.
    fn measure_queue(&self, tasks: u32, tally: &mut MetricSet) -> anyhow::Result<()> {
        let before = resident()?;
        self.each(tasks, ClientRequest::Wait)?;
        let is_blocked = |state: &State| {
            let evals = state.evals().pending();
            evals.filter(|eval| !eval.failed_groups.is_empty()).count() >= tasks as usize
        };
        self.wait_until("all tasks wait for room", is_blocked)?;
        let bytes = resident()?.saturating_sub(before) as f64;
        tally.add_muster_value("pending", "bytes/task", bytes / f64::from(tasks));
        let mut latencies = Latencies::new()?;
        self.runtime.block_on(async {
            let mut client = Client::connect(self.addrs[0]).await?;
            for number in 0..200 {
                let begun = Instant::now();
                client
                    .put("/v1/tasks", &task(&format!("more-{number}"), HUGE_MB, ""))
                    .await?;
                latencies.add(begun.elapsed());
            }
            anyhow::Ok(())
        })?;
        tally.add_muster_value("one_more_p50", "µs", latencies.micros(0.5));
        tally.add_muster_value("one_more_p99", "µs", latencies.micros(0.99));
        Ok(())
    }

    /// Sends the request `step` for each task, over all connections.
    fn each(&self, tasks: u32, step: ClientRequest) -> anyhow::Result<()> {
        let connections: Vec<_> = (0..CONNECTIONS)
            .zip(self.addrs.iter().cycle().copied())
            .map(|(connection, addr)| {
                self.runtime
                    .spawn(connection_of(addr, tasks, connection, step))
            })
            .collect();
        self.runtime.block_on(async {
            for connection in connections {
                connection.await??;
            }
            Ok(())
        })
    }
}

/// Accepts callbacks, one connection each, and sends the time of each to `called`.
async fn endpoint(listener: TcpListener, called: mpsc::Sender<Instant>) -> anyhow::Result<()> {
    let mut bytes = [0; 4096];
    loop {
        let (mut stream, _) = listener.accept().await?;
        let mut last = None;
        // The body is JSON, and shorter than the buffer.
        while last != Some(b'}') {
            let count = stream.read(&mut bytes).await?;
            last = bytes[..count].last().copied();
            ensure!(last.is_some(), "a callback has broken off");
        }
        called.send(Instant::now()).await?;
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
        stream.write_all(answer).await?;
    }
}

/// How a completed task is resolved.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Resolution {
    /// A client claims and deletes the task in two requests.
    Claimed,
    /// A client claims and deletes the task in one request.
    AtOnce,
    /// The callback resolves the task.
    Callback,
}

/// A client's request about a task.
#[derive(Clone, Copy)]
enum ClientRequest {
    Desire,
    /// Claims and deletes a task.
    Finish(Resolution),
    /// Desires a task that fits on no node.
    Wait,
}

/// More memory than a node has, in MiB.
const HUGE_MB: u32 = 1_000_000;

async fn connection_of(
    addr: SocketAddr,
    tasks: u32,
    connection: u32,
    step: ClientRequest,
) -> anyhow::Result<()> {
    let mut client = Client::connect(addr).await?;
    for number in (connection..tasks).step_by(CONNECTIONS as usize) {
        match step {
            ClientRequest::Desire => {
                let body = task(&format!("t-{number}"), 16, "");
                client.put("/v1/tasks", &body).await?;
            }
            ClientRequest::Wait => {
                let body = task(&format!("w-{number}"), HUGE_MB, "");
                client.put("/v1/tasks", &body).await?;
            }
            ClientRequest::Finish(end) => finish(&mut client, &format!("t-{number}"), end).await?,
        }
    }
    Ok(())
}

/// Resolves a completed task.
async fn finish(client: &mut Client, guid: &str, end: Resolution) -> anyhow::Result<()> {
    let path = format!("/v1/tasks/{guid}");
    match end {
        Resolution::Claimed => {
            client.put(&format!("{path}/resolving"), "{}").await?;
            client.delete(&path).await
        }
        Resolution::AtOnce => client.delete(&format!("{path}?resolve=true")).await,
        Resolution::Callback => Ok(()),
    }
}

/// Returns a task as a client writes it. Tasks that are timed one by one have a domain of their own.
fn task(guid: &str, memory_mb: u32, callback: &str) -> String {
    let domain = if guid.starts_with("t-") {
        "perf"
    } else {
        "other"
    };
    format!(
        r#"{{"task_guid":"{guid}","domain":"{domain}","task_definition":{{"rootfs":"preloaded:host","cpu_weight":10,
"memory_mb":{memory_mb},"disk_mb":10,"completion_callback_url":"{callback}","action":{{"run":{{"path":"/bin/true","user":"vcap"}}}}}}}}"#
    )
}
