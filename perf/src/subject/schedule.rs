//! `schedule`: placements per second in the scheduler alone, by nodes, count and requirements of jobs.
//!
//! *Plan* is the time within `schedule`, from a snapshot to a plan. *Commit* is `schedule`, the applier's `merge`,
//! `fsm::apply` and publishing the next snapshot. Readers hold the last snapshot, as in a server. There is no log and
//! no disk. Jobs are planned one after the other, each on the state after the previous one. Both run on one thread
//! and are timed by its CPU time.
//!
//! Single-instance jobs differ: each asks for its own amounts. There are four flavours of jobs. `plan` packs the
//! instances. `spread` spreads them evenly over 25 values. `affinity` prefers one of these values. `preempt` uses a
//! cluster that is so full that each instance preempts a less important one. `--plot` draws the cost of a placement by
//! the number of nodes.
//!
//! The rival is the simplest method with the same exact result: for each placement a scan over all nodes, in dense
//! columns, with the same score ([`scan`]). It only packs, and is left out where it takes minutes.

mod scan;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use muster_control_core::applier;
use muster_control_core::fsm::{self, ConfigCommand, Entry, JobCommand, NodeCommand, Response};
use muster_control_core::scheduler::Scheduler;
use muster_control_core::state::{State, check};
use muster_domain::fixture;
use muster_domain::id::{EvalId, LogIndex, Timestamp};
use muster_domain::job::{Affinity, JobSpec, JobType, Operand, Spread};
use muster_domain::node::NodeStatus;
use muster_domain::scheduling::{PreemptionConfig, SchedulerConfig};

use crate::harness::{Context, CpuClock, Metric, MetricSet};
use crate::subject::node_spec::node_of_nine_sizes;
use scan::Scan;

/// The number of jobs, and the number of instances of each.
#[derive(Clone, Copy, Debug)]
struct JobCounts {
    jobs: u32,
    count: u32,
}

impl JobCounts {
    const fn of(jobs: u32, count: u32) -> Self {
        Self { jobs, count }
    }

    /// Returns the CPU and the memory that an instance of job `number` asks for.
    fn resource_request(self, number: u32) -> (u32, u32) {
        match self.count {
            // The two prime moduli give 8 633 different pairs.
            1 => (CPU_MHZ - 48 + number % 97, MEMORY_MB - 44 + number % 89),
            _ => (CPU_MHZ, MEMORY_MB),
        }
    }
}

impl fmt::Display for JobCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.jobs, self.count)
    }
}

/// One large job, medium jobs, and single-instance jobs.
const SHAPES: [JobCounts; 3] = [
    JobCounts::of(1, 10_000),
    JobCounts::of(1_000, 10),
    JobCounts::of(10_000, 1),
];

/// The sizes of the fleets. The largest shape fills a third of the smallest fleet.
const NODES: [u32; 5] = [100, 1_000, 5_000, 10_000, 100_000];
/// The sizes of the fleets in a quick run.
const NODES_QUICK: [u32; 3] = [100, 1_000, 10_000];
/// The largest fleet that the rival scans.
const SCANNED_MAX: u32 = 10_000;

/// The CPU that an instance asks for, in MHz. Single-instance jobs ask for about this much.
const CPU_MHZ: u32 = 50;
const MEMORY_MB: u32 = 64;
/// The disk that the group of the test fixture asks for, in MiB.
const DISK_MB: u32 = 10;
/// The number of values of the attribute over which instances are spread.
const RACKS: u32 = 25;
/// The CPU of an instance on a full cluster, and of the instances that fill it, in MHz. The CPU of every node is a
/// multiple of it.
const LARGE_MHZ: u32 = 4_000;
/// A case that takes longer is measured once, cold.
const SLOW: Duration = Duration::from_secs(3);

/// The rivals' names, as `budgets.toml` knows them.
const SCAN: &str = "scan of all nodes a placement";
const SMALLEST: &str = "the same on 100 nodes";

/// The requirements of a job besides capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JobShape {
    Pack,
    Spread,
    Affinity,
    Preempt,
}

impl JobShape {
    const ALL: [Self; 4] = [Self::Pack, Self::Spread, Self::Affinity, Self::Preempt];

    /// Returns the prefix of the metrics' names.
    fn as_str(self) -> &'static str {
        match self {
            Self::Pack => "plan",
            Self::Spread => "spread",
            Self::Affinity => "affinity",
            Self::Preempt => "preempt",
        }
    }

    /// Returns the shapes that are meaningful on a fleet of `nodes`.
    fn shapes(self, nodes: u32) -> Vec<JobCounts> {
        match self {
            Self::Pack | Self::Affinity => SHAPES.to_vec(),
            // A single instance has nothing to spread.
            Self::Spread => SHAPES[..2].to_vec(),
            // The smallest node has room for two instances.
            Self::Preempt => {
                let count = nodes.min(10_000);
                vec![
                    JobCounts::of(1, count),
                    JobCounts::of((count / 10).min(500), 1),
                ]
            }
        }
    }

    /// Creates the job with the number `number` of `shape`.
    fn job(self, shape: JobCounts, number: u32) -> JobSpec {
        let (cpu_mhz, memory_mb) = match self {
            Self::Preempt => (LARGE_MHZ, MEMORY_MB),
            Self::Pack | Self::Spread | Self::Affinity => shape.resource_request(number),
        };
        let mut job = fixture::job(&format!("job-{number}"))
            .job_type(JobType::Batch)
            .priority(80)
            .count(shape.count)
            .cpu_mhz(cpu_mhz)
            .memory_mb(memory_mb)
            .constraint("${attr.cpu.arch}", "=", "amd64")
            .build();
        match self {
            Self::Pack | Self::Preempt => {}
            Self::Spread => job.spreads.push(Spread {
                attribute: "${meta.rack}".to_owned(),
                weight: 100,
                targets: Vec::new(),
            }),
            Self::Affinity => job.affinities.push(Affinity {
                left: "${meta.rack}".to_owned(),
                operand: Operand::Equal,
                right: "r7".to_owned(),
                weight: 50,
            }),
        }
        job
    }
}

/// A job shape and its counts on one fleet.
#[derive(Clone, Copy, Debug)]
struct Case {
    job_shape: JobShape,
    shape: JobCounts,
    nodes: u32,
}

impl Case {
    /// Returns the part of the metrics' names between the quantity and the fleet. It is the same on every fleet.
    fn metric_part(self) -> String {
        match (self.job_shape, self.shape.count) {
            (JobShape::Preempt, 1) => "ones".to_owned(),
            (JobShape::Preempt, _) => "1xnodes".to_owned(),
            _ => self.shape.to_string(),
        }
    }
}

/// A state with empty nodes, and a state with the same nodes full of less important jobs.
struct NodeStates {
    nodes: u32,
    empty: State,
    full: State,
}

impl NodeStates {
    fn of(nodes: u32) -> anyhow::Result<Self> {
        let empty = fleet(nodes)?;
        let full = full(&empty)?;
        Ok(Self { nodes, empty, full })
    }

    fn fleet_state(&self, job_shape: JobShape) -> &State {
        match job_shape {
            JobShape::Pack | JobShape::Spread | JobShape::Affinity => &self.empty,
            JobShape::Preempt => &self.full,
        }
    }
}

/// The subject.
pub(crate) fn run(context: &Context) -> anyhow::Result<Vec<Metric>> {
    let sizes = context.pick(&NODES[..], &NODES_QUICK[..]);
    let fleets = sizes.iter().map(|nodes| NodeStates::of(*nodes));
    let fleets = fleets.collect::<anyhow::Result<Vec<_>>>()?;
    let mut tally = MetricSet::default();
    let mut cases = Vec::new();
    let mut costs = Costs::new();
    for (job_shape, fleet) in JobShape::ALL
        .into_iter()
        .flat_map(|job_shape| fleets.iter().map(move |fleet| (job_shape, fleet)))
    {
        for shape in job_shape.shapes(fleet.nodes) {
            let base = fleet.fleet_state(job_shape);
            let case = Case {
                job_shape,
                shape,
                nodes: fleet.nodes,
            };
            // The first run warms the caches and the allocator. Its outcome is checked.
            let begun = Instant::now();
            let done = plan_and_commit(base, job_shape, shape)?;
            let is_slow = begun.elapsed() > SLOW;
            let broken = check::broken(&done.state);
            ensure!(
                broken.is_empty(),
                "the state is broken: {}",
                broken.join("; ")
            );
            if is_slow {
                add_metrics(base, case, &done, 1, &mut costs, &mut tally)?;
            } else {
                costs.insert(
                    (case.metric_part(), job_shape.as_str(), fleet.nodes),
                    done.nanos(),
                );
                cases.push((base, case));
            }
        }
    }
    for _ in 0..context.rounds() {
        for (base, case) in &cases {
            measure(base, *case, &mut costs, &mut tally)?;
        }
    }
    Ok(tally.finish())
}

const RATE: &str = "placements/s";
const COST: &str = "ns/placement";

/// The last planning cost of a placement, in nanoseconds, by job counts, job shape and fleet.
type Costs = BTreeMap<(String, &'static str, u32), f64>;

/// Measures one case in one round.
fn measure(
    base: &State,
    case: Case,
    costs: &mut Costs,
    tally: &mut MetricSet,
) -> anyhow::Result<()> {
    let Case {
        job_shape, shape, ..
    } = case;
    // A single job is planned within one or two milliseconds, which is too short for one sample.
    let repeats = if shape.jobs == 1 { 5 } else { 1 };
    let mut ours = plan_and_commit(base, job_shape, shape)?;
    for _ in 1..repeats {
        let again = plan_and_commit(base, job_shape, shape)?;
        ours.placements += again.placements;
        ours.plan += again.plan;
        ours.commit += again.commit;
    }
    add_metrics(base, case, &ours, repeats, costs, tally)
}

/// Adds the metrics of a case in a round, and measures the rival the same number of times.
fn add_metrics(
    base: &State,
    case: Case,
    ours: &CommitResult,
    repeats: u32,
    costs: &mut Costs,
    tally: &mut MetricSet,
) -> anyhow::Result<()> {
    let (word, shape, nodes) = (case.job_shape.as_str(), case.metric_part(), case.nodes);
    let of_case = format!("{shape}_on_{nodes}");
    let rate = |time: Duration| ours.placements / time.as_secs_f64();
    let cost = format!("{word}_cost_{of_case}");
    tally.add_muster_value(&format!("{word}_{of_case}"), RATE, rate(ours.plan));
    tally.add_muster_value(&cost, COST, ours.nanos());
    let commit = match case.job_shape {
        JobShape::Pack => format!("commit_{of_case}"),
        JobShape::Spread | JobShape::Affinity | JobShape::Preempt => {
            format!("{word}_commit_{of_case}")
        }
    };
    tally.add_muster_value(&commit, RATE, rate(ours.commit));
    costs.insert((shape.clone(), word, nodes), ours.nanos());
    let with_scan = case.job_shape == JobShape::Pack && nodes <= SCANNED_MAX;
    if with_scan {
        measure_rival(base, case, ours, repeats, tally)?;
    }
    if let Some(smallest) = costs.get(&(shape, word, NODES[0]))
        && nodes != NODES[0]
    {
        tally.add_rival_value(&cost, COST, SMALLEST, *smallest);
    }
    Ok(())
}

/// Measures the rival on the same placements.
fn measure_rival(
    base: &State,
    case: Case,
    ours: &CommitResult,
    repeats: u32,
    tally: &mut MetricSet,
) -> anyhow::Result<()> {
    let Case { shape, nodes, .. } = case;
    let used = ours
        .state
        .nodes()
        .columns()
        .filter(|column| column.used.cpu_mhz > 0)
        .count();
    let mut scan = Scan::of(base);
    let mut time = Duration::ZERO;
    for _ in 0..repeats {
        scan = Scan::of(base);
        let clock = CpuClock::of_thread()?;
        for number in 0..shape.jobs {
            let (cpu_mhz, memory_mb) = shape.resource_request(number);
            scan.place(shape.count, [cpu_mhz, memory_mb, DISK_MB])?;
        }
        time += clock.elapsed()?;
    }
    let nodes_used = format!("nodes_used_{shape}_on_{nodes}");
    tally.add_muster_value(&nodes_used, "nodes", used as f64);
    tally.add_rival_value(&nodes_used, "nodes", SCAN, scan.used() as f64);
    let rate = ours.placements / time.as_secs_f64();
    tally.add_rival_value(&format!("plan_{shape}_on_{nodes}"), RATE, SCAN, rate);
    let nanos = time.as_secs_f64() * 1e9 / ours.placements;
    tally.add_rival_value(&format!("plan_cost_{shape}_on_{nodes}"), COST, SCAN, nanos);
    Ok(())
}

/// The cost of planning and committing the jobs of a shape.
struct CommitResult {
    state: State,
    placements: f64,
    plan: Duration,
    commit: Duration,
}

impl CommitResult {
    /// Returns the planning cost of a placement, in nanoseconds.
    fn nanos(&self) -> f64 {
        self.plan.as_secs_f64() * 1e9 / self.placements
    }
}

fn plan_and_commit(
    base: &State,
    job_shape: JobShape,
    shape: JobCounts,
) -> anyhow::Result<CommitResult> {
    let jobs = (0..shape.jobs).map(|number| job_shape.job(shape, number));
    run_jobs(base, jobs)
}

/// Registers `jobs`, and then places them one after the other.
fn run_jobs(base: &State, jobs: impl Iterator<Item = JobSpec>) -> anyhow::Result<CommitResult> {
    let mut state = base.clone();
    let evals = register_jobs(&mut state, jobs)?;
    let mut snapshot = state.clone();
    let mut placements = 0.0;
    let (mut plan, mut commit) = (Duration::ZERO, Duration::ZERO);
    // A worker also keeps its scheduler, which caches data of the nodes.
    let mut scheduler = Scheduler::default();
    for (eval_id, count) in evals {
        let eval = Arc::clone(
            snapshot
                .evals()
                .get(&eval_id)
                .context("the evaluation is there")?,
        );

        let clock = CpuClock::of_thread()?;
        let outcome = scheduler.schedule(&snapshot, &eval, NOW);
        plan += clock.elapsed()?;
        let merged = applier::merge(&state, vec![outcome], Vec::new(), NOW);
        let command = merged.command.context("the plan places something")?;
        let response = apply(&mut state, command);
        snapshot = state.clone();
        commit += clock.elapsed()?;

        let Response::PlansApplied { outcomes } = response else {
            anyhow::bail!("the plan was answered with {response:?}");
        };
        let placed: u32 = outcomes.iter().map(|outcome| outcome.placed).sum();
        ensure!(placed == count, "{placed} of {count} instances were placed");
        placements += f64::from(placed);
    }
    Ok(CommitResult {
        state,
        placements,
        plan,
        commit,
    })
}

const NOW: Timestamp = Timestamp(1_000_000_000);

/// Creates ready nodes of nine sizes.
fn fleet(nodes: u32) -> anyhow::Result<State> {
    let mut state = State::default();
    for number in 0..nodes {
        let mut spec = node_of_nine_sizes(number);
        let rack = format!("r{}", number % RACKS);
        spec.meta.insert("rack".to_owned(), rack);
        let node_id = spec.id;
        apply(
            &mut state,
            NodeCommand::Register {
                spec: Box::new(spec),
            }
            .at(NOW),
        );
        let ready = NodeCommand::SetStatus {
            node_id,
            status: NodeStatus::Ready,
        }
        .at(NOW);
        ensure!(
            apply(&mut state, ready) == Response::Done,
            "node {number} is not ready"
        );
    }
    Ok(state)
}

/// Fills the nodes of `empty` with jobs that more important jobs may preempt.
fn full(empty: &State) -> anyhow::Result<State> {
    let mut state = empty.clone();
    let config = SchedulerConfig {
        preemption: PreemptionConfig {
            batch: true,
            ..PreemptionConfig::default()
        },
        ..SchedulerConfig::default()
    };
    let command = ConfigCommand::SetScheduler {
        config,
        check_index: None,
    }
    .at(NOW);
    apply(&mut state, command);
    let columns = state.nodes().columns();
    let room: u64 = columns
        .map(|column| column.free().cpu_mhz / u64::from(LARGE_MHZ))
        .sum();
    let mut left = u32::try_from(room)?;
    let fillers = std::iter::from_fn(|| {
        let count = left.min(10_000);
        left -= count;
        (count > 0).then(|| {
            fixture::job(&format!("filler-{left}"))
                .job_type(JobType::Batch)
                .priority(20)
                .count(count)
                .cpu_mhz(LARGE_MHZ)
                .memory_mb(MEMORY_MB)
                .build()
        })
    });
    let fillers: Vec<JobSpec> = fillers.collect();
    Ok(run_jobs(&state, fillers.into_iter())?.state)
}

/// Registers jobs. Returns the evaluation and the number of instances of each.
fn register_jobs(
    state: &mut State,
    jobs: impl Iterator<Item = JobSpec>,
) -> anyhow::Result<Vec<(EvalId, u32)>> {
    jobs.map(|job| {
        let count = job.groups[0].count;
        let command = JobCommand::Register {
            spec: Box::new(job),
            check_index: None,
            places: None,
        }
        .at(NOW);
        match apply(state, command) {
            Response::JobRegistered {
                eval_id: Some(eval_id),
                ..
            } => Ok((eval_id, count)),
            other => anyhow::bail!("the job was answered with {other:?}"),
        }
    })
    .collect()
}

fn apply(state: &mut State, entry: Entry) -> Response {
    let index = LogIndex(state.applied().0 + 1);
    fsm::apply(state, index, entry).response
}
