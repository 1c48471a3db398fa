//! `gc`: the collection of a million finished allocations, and its cost for all other requests.
//!
//! One real server, or three, run in a process of their own with logs on disk. The load is nodes and batch jobs of a
//! hundred instances each, which the servers place. Every instance is reported complete, and then a forced collection
//! removes everything. Other requests continue meanwhile ([`foreground`]). A writer registers jobs of one instance,
//! one after the other, and waits until each is placed. Some nodes send heartbeats, which servers gather for
//! [`HEARTBEAT_GATHER_INTERVAL`]. Both also run for a while before the collection, as a baseline. The
//! rival deletes the same number of rows from bare tables: a hash map, and a list for each node.
//!
//! One server then carries the same number of services, each with one live instance and others that were stopped. The
//! rule of evaluations collects only the stopped instances, and their jobs remain (`objects_of_living_jobs`).
//!
//! Results of three servers end in `_of_three`. Their memory and CPU time are the sums over all three. All three
//! servers share this machine, while in a real cluster each has a machine of its own.

mod foreground;

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use muster_control::handle::Control;
use muster_control::server::ServerConfig;
use muster_control_core::fsm::{
    AllocCommand, GcCommand, GcCursor, GcJobStep, GcRule, JobCommand, NodeCommand, Response,
};
use muster_control_core::state::{AllocView, State};
use muster_domain::alloc::{AllocReport, ClientStatus};
use muster_domain::fixture;
use muster_domain::id::{EvalId, JobKey, LogIndex, NodeId, Timestamp};
use muster_domain::job::JobType;
use muster_domain::node::NodeStatus;
use muster_link::tls::{Identity, Role};
use muster_wire::codec;

use self::foreground::{Foreground, ForegroundLatency, HeartbeatingNode};
use super::client::Client;
use super::raft_cluster::Cluster;
use super::state_memory::resident;
use crate::harness::{Context, Metric, MetricSet};
use crate::subject::child::child_command;

/// The name of the child process of this subject.
pub(super) const CHILD: &str = "gc";

const NODES: u32 = 1_000;
/// The datacenter of the nodes.
const DATACENTER: &str = "dc1";
/// The number of instances of a job.
const COUNT: u32 = 100;
/// The longest wait for any step of the load.
const PATIENCE: Duration = Duration::from_mins(10);
/// The number of reports in one entry, as a server gathers them.
const REPORTS: usize = 4_096;
/// The number of single-instance jobs that run when memory is measured, before the load and after the collection.
const WARM: u32 = 200;
/// The duration of those placements after the collection. The allocator returns pages only gradually, as the threads
/// that own them allocate again.
const MEMORY_RETURN_TIME: Duration = Duration::from_secs(10);
/// The part of the load, one in ten jobs, that is carried and collected beforehand. A new server lacks data that
/// every used server has. Some of that data is bounded separately, such as the events kept for followers.
const WARM_UP_SHARE: u32 = 10;
/// The interval for which servers gather heartbeats.
const HEARTBEAT_GATHER_INTERVAL: Duration = Duration::from_millis(25);
/// The number of such intervals in the time to live.
const GATHER_INTERVALS_IN_TTL: u32 = 10;
/// The numbers of servers, and the suffix of the metrics of each.
const SIZES: [(u32, &str); 2] = [(1, ""), (3, "_of_three")];
/// The name of the rival.
const RIVAL: &str = "the same deletions from bare tables";

/// The rate at which stopped allocations of living jobs are collected.
const OBJECTS_OF_RUNNING_JOBS: &str = "objects_of_living_jobs";

/// The subject.
pub(crate) fn run(context: &Context) -> anyhow::Result<Vec<Metric>> {
    let jobs = context.pick(10_000, 500).to_string();
    let dir = context.subdir()?;
    let mut tally = MetricSet::default();
    for _ in 0..context.rounds() {
        for (servers, suffix) in SIZES {
            let servers = servers.to_string();
            let args = [jobs.as_ref(), servers.as_ref(), dir.path().as_os_str()];
            let output = child_command(CHILD, args)?.output()?;
            ensure!(
                output.status.success(),
                "the child failed: {}",
                String::from_utf8_lossy(&output.stderr)
            );
            let found: Metrics = serde_json::from_slice(&output.stdout)?;
            for (name, rival, value) in found {
                let (name, unit) = (format!("{name}{suffix}"), unit(&name));
                match rival {
                    None => tally.add_muster_value(&name, unit, value),
                    Some(rival) => tally.add_rival_value(&name, unit, &rival, value),
                }
            }
        }
    }
    Ok(tally.finish())
}

fn unit(name: &str) -> &'static str {
    match name {
        "objects" | "objects_of_living_jobs" => "1/s",
        "placement_p50" | "placement_p99" | "read_p99" | "heartbeat_p50" | "heartbeat_p99" => "µs",
        "placement_ms_max"
        | "slice_ms_mean"
        | "slice_ms_max"
        | "slice_ms_max_of_living_jobs"
        | "read_ms_max"
        | "heartbeat_ms_max" => "ms",
        "memory_ratio" => "of before the load",
        "memory_ratio_to_fresh" => "of a server that was just started",
        "memory_fresh" | "memory_before" | "memory_loaded" | "memory_after" => "MiB",
        "log_bytes_per_object" => "B",
        _ => "",
    }
}

/// Runs the servers and prints the measurements.
pub(super) fn child(args: &[OsString]) -> anyhow::Result<()> {
    let [jobs, servers, dir] = args else {
        bail!("how many jobs, how many servers, and where?");
    };
    let number = |text: &OsString| -> anyhow::Result<u32> {
        Ok(text.to_str().context("how many?")?.parse()?)
    };
    let dir = tempfile::tempdir_in(dir)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let found = runtime.block_on(measure(dir.path(), number(jobs)?, number(servers)?))?;
    serde_json::to_writer(std::io::stdout(), &found)?;
    Ok(())
}

/// The name of a metric, the rival if the value is not ours, and the value.
type Metrics = Vec<(String, Option<String>, f64)>;

async fn measure(dir: &Path, jobs: u32, servers: u32) -> anyhow::Result<Metrics> {
    let cluster = Cluster::of(dir, servers, |config: &mut ServerConfig| {
        config.heartbeat_ttl = HEARTBEAT_GATHER_INTERVAL * GATHER_INTERVALS_IN_TTL;
        // Most nodes send no heartbeats.
        config.heartbeat_grace = Duration::from_hours(1);
    })
    .await?;
    let control = cluster.leader().await?;
    let mut found = Metrics::new();

    register_nodes(&control).await?;
    let identity = Identity::load(&cluster.dir.join("s1-tls"), Role::Agent)?;
    let addrs = cluster.servers.iter().map(|server| server.info().quic_addr);
    let heartbeating = HeartbeatingNode::join(&identity, &addrs.collect::<Vec<_>>()).await?;
    register_one_by_one(&control, "warm", WARM, Duration::ZERO).await?;
    let fresh = resident()? as f64;
    run_warm_up_load(&control, jobs / WARM_UP_SHARE).await?;
    let before = resident()? as f64;
    load(&control, jobs).await?;
    let loaded = resident()? as f64;

    let idle = Foreground::start(&control, "idle", heartbeating);
    tokio::time::sleep(Duration::from_secs(3)).await;
    let (idle, heartbeating) = idle.end().await?;
    let mut client = Client::connect(control.server_info().http_addr).await?;
    let earlier = CollectionTotals::fetch(&mut client).await?;
    let busy = Foreground::start(&control, "busy", heartbeating);
    tokio::time::sleep(Duration::from_millis(100)).await;
    let begun = Instant::now();
    client.put("/v1/system/gc", "{}").await?;
    let took = begun.elapsed();
    let (busy, _beating) = busy.end().await?;
    let collected = CollectionTotals::fetch(&mut client).await?.minus(&earlier);
    ensure!(
        collected.objects >= f64::from(jobs * COUNT),
        "only {} were freed",
        collected.objects
    );
    collected.add_metrics(took, &mut found)?;
    add_foreground_metrics(&busy, None, &mut found);
    add_foreground_metrics(&idle, Some("idle"), &mut found);
    // The jobs that were placed during the collection must not count as its remains, so they are collected too. The
    // memory before and after then has the same nodes and the same number of jobs.
    complete(&control, EndedInstances::All).await?;
    client.put("/v1/system/gc", "{}").await?;
    register_one_by_one(&control, "calm", WARM, MEMORY_RETURN_TIME / WARM).await?;
    let after = resident()? as f64;
    for (name, value) in [
        ("memory_ratio", after / before),
        ("memory_ratio_to_fresh", after / fresh),
        ("memory_fresh", fresh / MIB),
        ("memory_before", before / MIB),
        ("memory_loaded", loaded / MIB),
        ("memory_after", after / MIB),
    ] {
        found.push((name.to_owned(), None, value));
    }
    let mut compared = vec!["objects"];
    if servers == 1 {
        measure_gc_of_running_jobs(&control, jobs, &mut found).await?;
        compared.push(OBJECTS_OF_RUNNING_JOBS);
    }
    cluster.shutdown().await;
    let bare = bare_tables(jobs * COUNT);
    for name in compared {
        found.push((name.to_owned(), Some(RIVAL.to_owned()), bare));
    }
    Ok(found)
}

/// Measures the collection of stopped allocations of services that live on.
async fn measure_gc_of_running_jobs(
    control: &Control,
    jobs: u32,
    found: &mut Metrics,
) -> anyhow::Result<()> {
    let job_id = |number| format!("living-{number}");
    for count in [COUNT, 1] {
        for number in 0..jobs {
            register(control, &job_id(number), JobType::Service, count).await?;
        }
        for number in 0..jobs {
            counted(control, &job_id(number), |live| live == count).await?;
        }
    }
    complete(control, EndedInstances::Stopped).await?;
    let mut client = Client::connect(control.server_info().http_addr).await?;
    let earlier = CollectionTotals::fetch(&mut client).await?;
    let begun = Instant::now();
    client.put("/v1/system/gc", "{}").await?;
    let took = begun.elapsed();
    let collected = CollectionTotals::fetch(&mut client).await?.minus(&earlier);
    ensure!(
        collected.objects >= f64::from(jobs * (COUNT - 1)),
        "only {} were freed of living jobs",
        collected.objects
    );
    let rate = collected.objects / took.as_secs_f64();
    found.push((OBJECTS_OF_RUNNING_JOBS.to_owned(), None, rate));
    let longest = collected.longest * 1e3;
    found.push(("slice_ms_max_of_living_jobs".to_owned(), None, longest));
    Ok(())
}

/// Adds the latencies of other requests, during a collection or without one. `rival` names the latter case.
fn add_foreground_metrics(latencies: &ForegroundLatency, rival: Option<&str>, found: &mut Metrics) {
    let ForegroundLatency {
        placements,
        reads,
        heartbeats,
    } = latencies;
    for (name, value) in [
        ("placements_meanwhile", placements.count() as f64),
        ("placement_p50", placements.micros(0.5)),
        ("placement_p99", placements.micros(0.99)),
        ("placement_ms_max", placements.micros(1.0) / 1e3),
        ("read_p99", reads.micros(0.99)),
        ("read_ms_max", reads.micros(1.0) / 1e3),
        ("heartbeats_meanwhile", heartbeats.count() as f64),
        ("heartbeat_p50", heartbeats.micros(0.5)),
        ("heartbeat_p99", heartbeats.micros(0.99)),
        ("heartbeat_ms_max", heartbeats.micros(1.0) / 1e3),
    ] {
        found.push((name.to_owned(), rival.map(str::to_owned), value));
    }
}

/// Totals of all collections since the start of the server.
struct CollectionTotals {
    objects: f64,
    slices: f64,
    seconds: f64,
    longest: f64,
}

impl CollectionTotals {
    async fn fetch(client: &mut Client) -> anyhow::Result<Self> {
        let text = client.get("/v1/metrics?format=prometheus").await?;
        let sum = |name: &str| -> f64 {
            let lines = text.lines().filter_map(|line| line.strip_prefix(name));
            let values = lines.filter(|rest| rest.starts_with([' ', '{']));
            let values = values.filter_map(|rest| rest.rsplit(' ').next()?.parse::<f64>().ok());
            values.sum()
        };
        Ok(Self {
            objects: sum("muster_gc_freed_total"),
            slices: sum("muster_gc_slices_total"),
            seconds: sum("muster_gc_slices_seconds_total"),
            longest: sum("muster_gc_slice_seconds_max"),
        })
    }

    fn minus(self, earlier: &Self) -> Self {
        Self {
            objects: self.objects - earlier.objects,
            slices: self.slices - earlier.slices,
            seconds: self.seconds - earlier.seconds,
            longest: self.longest,
        }
    }

    /// Adds the metrics of a collection that took `took`.
    fn add_metrics(&self, took: Duration, found: &mut Metrics) -> anyhow::Result<()> {
        let Self {
            objects,
            slices,
            seconds,
            longest,
        } = self;
        for (name, value) in [
            ("objects", objects / took.as_secs_f64()),
            ("slices", *slices),
            ("slice_ms_mean", seconds * 1e3 / slices),
            ("slice_ms_max", longest * 1e3),
            (
                "log_bytes_per_object",
                entry_bytes()? as f64 * slices / objects,
            ),
        ] {
            found.push((name.to_owned(), None, value));
        }
        Ok(())
    }
}

const MIB: f64 = 1_048_576.0;

async fn register_nodes(control: &Control) -> anyhow::Result<()> {
    for number in 0..NODES {
        let mut spec = fixture::node(&format!("n{number}"))
            .cpu_mhz(100_000_000)
            .memory_mb(100_000_000)
            .datacenter(DATACENTER)
            .build();
        spec.id = NodeId::at(LogIndex(1), number);
        let node_id = spec.id;
        let at = control.now();
        let spec = Box::new(spec);
        control
            .propose(NodeCommand::Register { spec }.at(at))
            .await?;
        let status = NodeStatus::Ready;
        control
            .propose(NodeCommand::SetStatus { node_id, status }.at(at))
            .await?;
    }
    Ok(())
}

async fn register(
    control: &Control,
    job_id: &str,
    job_type: JobType,
    count: u32,
) -> anyhow::Result<()> {
    let spec = fixture::job(job_id).job_type(job_type).count(count);
    let mut spec = spec.cpu_mhz(1).memory_mb(1).build();
    spec.groups[0].update = None;
    // This datacenter differs from that of the nodes that send heartbeats.
    spec.datacenters = vec![DATACENTER.to_owned()];
    let command = JobCommand::Register {
        spec: Box::new(spec),
        check_index: None,
        places: None,
    }
    .at(control.now());
    match control.propose(command).await? {
        (_, Response::JobRegistered { .. }) => Ok(()),
        (_, other) => bail!("the job was answered with {other:?}"),
    }
}

/// Waits until `job_id` has `count` allocations.
async fn wait_for_allocs(control: &Control, job_id: &str, count: u32) -> anyhow::Result<()> {
    counted(control, job_id, |live| live >= count).await
}

/// Waits until the number of live allocations of `job_id` satisfies `is_enough`.
async fn counted(
    control: &Control,
    job_id: &str,
    is_enough: impl Fn(u32) -> bool,
) -> anyhow::Result<()> {
    let key = JobKey::in_default(job_id);
    let mut applied = control.applied();
    let wait = async {
        loop {
            applied.borrow_and_update();
            if is_enough(control.state().allocs().live_of_job(&key)) {
                return anyhow::Ok(());
            }
            applied.changed().await?;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await?
}

/// Registers single-instance jobs one after the other, with a pause after each.
async fn register_one_by_one(
    control: &Control,
    prefix: &str,
    jobs: u32,
    pause: Duration,
) -> anyhow::Result<()> {
    for number in 0..jobs {
        let job_id = format!("{prefix}-{number}");
        register(control, &job_id, JobType::Batch, 1).await?;
        wait_for_allocs(control, &job_id, 1).await?;
        tokio::time::sleep(pause).await;
    }
    Ok(())
}

/// Waits until jobs are placed, and then reports every instance as complete.
async fn load(control: &Control, jobs: u32) -> anyhow::Result<()> {
    for number in 0..jobs {
        register(control, &format!("dead-{number}"), JobType::Batch, COUNT).await?;
    }
    for number in 0..jobs {
        wait_for_allocs(control, &format!("dead-{number}"), COUNT).await?;
    }
    complete(control, EndedInstances::All).await
}

/// Carries some load and collects it.
async fn run_warm_up_load(control: &Control, jobs: u32) -> anyhow::Result<()> {
    load(control, jobs).await?;
    let mut client = Client::connect(control.server_info().http_addr).await?;
    client.put("/v1/system/gc", "{}").await?;
    register_one_by_one(control, "lived", WARM, MEMORY_RETURN_TIME / WARM).await
}

/// The instances that nodes report as ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EndedInstances {
    All,
    /// The instances whose desired status is stop.
    Stopped,
}

/// Reports instances as complete. The state is read anew for each node, because a held state keeps all rows in memory
/// that were replaced since.
async fn complete(control: &Control, which: EndedInstances) -> anyhow::Result<()> {
    let mut reports: Vec<(NodeId, Vec<AllocReport>)> = Vec::new();
    let mut count = 0;
    let nodes: Vec<NodeId> = {
        let state = control.state();
        state.nodes().iter().map(|node| node.spec.id).collect()
    };
    for node_id in nodes {
        let of_node = completed(&control.state(), &node_id, which);
        count += of_node.len();
        reports.push((node_id, of_node));
        if count >= REPORTS {
            count = 0;
            report(control, std::mem::take(&mut reports)).await?;
        }
    }
    report(control, reports).await?;
    // The end of instances may create evaluations.
    let wait = async {
        while control.state().evals().pending().next().is_some() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await?;
    Ok(())
}

/// Returns the reports of a node whose instances have completed.
fn completed(state: &State, node_id: &NodeId, which: EndedInstances) -> Vec<AllocReport> {
    let lives = |alloc: &AllocView<'_>| {
        !alloc.client_status().is_terminal()
            && (which == EndedInstances::All || alloc.server_terminal())
    };
    state
        .allocs_on(node_id)
        .filter(lives)
        .map(|alloc| AllocReport {
            alloc_id: alloc.id(),
            client_status: ClientStatus::Complete,
            client_description: String::new(),
            task_states: Vec::new(),
            healthy: None,
            end: None,
            remote: Vec::new(),
        })
        .collect()
}

async fn report(control: &Control, reports: Vec<(NodeId, Vec<AllocReport>)>) -> anyhow::Result<()> {
    let at = control.now();
    control
        .propose(AllocCommand::Report { reports }.at(at))
        .await?;
    Ok(())
}

/// Returns the number of bytes of a slice's command in the log.
fn entry_bytes() -> anyhow::Result<usize> {
    let command = GcCommand::Collect {
        rule: GcRule::Jobs,
        before: Timestamp(u64::MAX),
        batch_before: Timestamp(u64::MAX),
        after: Some(GcCursor::Job {
            at: Timestamp(1_700_000_000_000_000_000),
            key: JobKey::in_default("dead-10000"),
            step: GcJobStep::Look {
                eval_id: EvalId([1; 16]),
                alloc: u64::MAX,
                index: LogIndex(1_000_000),
            },
        }),
    }
    .at(Timestamp(1_700_000_000_000_000_000));
    Ok(codec::encode(&command)?.len())
}

/// Returns the rows per second deleted from a hash map and from a list for each node, in order of creation.
fn bare_tables(rows: u32) -> f64 {
    let mut table: HashMap<u32, [usize; 8]> = HashMap::new();
    let mut nodes: Vec<Vec<u32>> = vec![Vec::new(); NODES as usize];
    for key in 0..rows {
        let node = (key.wrapping_mul(0x9e37_79b9) % NODES) as usize;
        let at = nodes[node].len();
        table.insert(key, [node, at, 0, 0, 0, 0, 0, 0]);
        nodes[node].push(key);
    }
    let begun = Instant::now();
    for key in 0..rows {
        if let Some([node, at, ..]) = table.remove(&key) {
            let list = &mut nodes[node];
            list.swap_remove(at);
            if let Some(moved) = list.get(at).and_then(|key| table.get_mut(key)) {
                moved[1] = at;
            }
        }
    }
    let took = begun.elapsed();
    assert!(
        table.is_empty() && nodes.iter().all(Vec::is_empty),
        "all rows are gone"
    );
    f64::from(rows) / took.as_secs_f64()
}
