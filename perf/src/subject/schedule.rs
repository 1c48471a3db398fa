//! `schedule`: placements per second in the scheduler alone, against nodes and count.
//!
//! *Plan* is the time within `schedule`: a snapshot in, a plan out. *Commit* is `schedule`, the
//! applier's `merge`, `fsm::apply` and publishing the next snapshot, with readers holding the last one
//! as in a server; no log, no disk. Jobs are planned one after the other, each on the state that the one
//! before it left. Both run on one thread and are timed by its CPU time.
//!
//! The rival is the plain way to be as exact: for each placement a scan over all nodes, in dense
//! columns, with the same score. [`scan`] holds it.

mod scan;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use muster_control_core::applier;
use muster_control_core::fsm::{self, Command, Response};
use muster_control_core::scheduler;
use muster_control_core::state::{State, check};
use muster_domain::fixture;
use muster_domain::id::{EvalId, LogIndex, NodeId, Timestamp};
use muster_domain::job::JobType;
use muster_domain::node::NodeStatus;

use crate::harness::{Context, CpuClock, Metric, Tally};
use scan::Scan;

/// How many jobs, and how many instances each.
#[derive(Clone, Copy, Debug)]
struct Shape {
    jobs: u32,
    count: u32,
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.jobs, self.count)
    }
}

/// One large job, middling ones, and jobs of one.
const SHAPES: [Shape; 3] = [
    Shape {
        jobs: 1,
        count: 10_000,
    },
    Shape {
        jobs: 1_000,
        count: 10,
    },
    Shape {
        jobs: 2_000,
        count: 1,
    },
];

/// Fleets. The largest shape fills a third of the smallest.
const NODES: [u32; 3] = [100, 1_000, 10_000];

/// What an instance asks for.
const CPU_MHZ: u32 = 50;
const MEMORY_MB: u32 = 64;
/// What the fixture's group asks for besides.
const DISK_MB: u32 = 10;

/// The rivals' names, as `budgets.toml` knows them.
const SCAN: &str = "scan of all nodes a placement";
const SMALLEST: &str = "the same on 100 nodes";

/// The subject.
pub(crate) fn run(context: &Context) -> anyhow::Result<Vec<Metric>> {
    let fleets = NODES.map(|nodes| fleet(nodes).map(|state| (nodes, state)));
    let fleets = fleets.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
    for (_, base) in &fleets {
        for shape in SHAPES {
            // Warms caches and the allocator, and looks at the outcome.
            let broken = check::broken(&plan_and_commit(base, shape)?.state);
            ensure!(
                broken.is_empty(),
                "the state is broken: {}",
                broken.join("; ")
            );
        }
    }
    let mut tally = Tally::default();
    for _ in 0..context.rounds() {
        for shape in SHAPES {
            let mut smallest = None;
            for (nodes, base) in &fleets {
                let cost = measure(base, shape, *nodes, &mut tally)?;
                let (name, unit) = (format!("plan_cost_{shape}_on_{nodes}"), "ns/placement");
                match smallest {
                    None => smallest = Some(cost),
                    Some(smallest) => tally.rival(&name, unit, SMALLEST, smallest),
                }
            }
        }
    }
    Ok(tally.finish())
}

/// One round of one case. Returns what planning a placement cost, in nanoseconds.
fn measure(base: &State, shape: Shape, nodes: u32, tally: &mut Tally) -> anyhow::Result<f64> {
    let Shape { jobs, count } = shape;
    // One job alone is planned within a millisecond or two: too short to be one sample.
    let repeats = if jobs == 1 { 5 } else { 1 };
    let placements = f64::from(repeats) * f64::from(jobs) * f64::from(count);
    let rate = |time: Duration| placements / time.as_secs_f64();
    let nanos = |time: Duration| time.as_secs_f64() * 1e9 / placements;
    let name = |what: &str| format!("{what}_{shape}_on_{nodes}");

    let mut ours = plan_and_commit(base, shape)?;
    for _ in 1..repeats {
        let again = plan_and_commit(base, shape)?;
        ours.plan += again.plan;
        ours.commit += again.commit;
    }
    let used = ours
        .state
        .nodes()
        .columns()
        .filter(|column| column.used.cpu_mhz > 0)
        .count();
    tally.ours(&name("plan"), "placements/s", rate(ours.plan));
    tally.ours(&name("plan_cost"), "ns/placement", nanos(ours.plan));
    tally.ours(&name("commit"), "placements/s", rate(ours.commit));
    tally.ours(&name("nodes_used"), "nodes", used as f64);

    let mut scan = Scan::of(base);
    let mut time = Duration::ZERO;
    for _ in 0..repeats {
        scan = Scan::of(base);
        let clock = CpuClock::of_thread()?;
        for _ in 0..jobs {
            scan.place(count, [CPU_MHZ, MEMORY_MB, DISK_MB])?;
        }
        time += clock.elapsed()?;
    }
    tally.rival(&name("plan"), "placements/s", SCAN, rate(time));
    tally.rival(&name("plan_cost"), "ns/placement", SCAN, nanos(time));
    tally.rival(&name("nodes_used"), "nodes", SCAN, scan.used() as f64);
    Ok(nanos(ours.plan))
}

/// What became of the jobs of a shape.
struct Committed {
    state: State,
    plan: Duration,
    commit: Duration,
}

fn plan_and_commit(base: &State, shape: Shape) -> anyhow::Result<Committed> {
    let mut state = base.clone();
    let evals = register_jobs(&mut state, shape)?;
    let mut snapshot = state.clone();
    let (mut plan, mut commit) = (Duration::ZERO, Duration::ZERO);
    for eval_id in evals {
        let eval = Arc::clone(
            snapshot
                .evals()
                .get(&eval_id)
                .context("the evaluation is there")?,
        );

        let clock = CpuClock::of_thread()?;
        let outcome = scheduler::schedule(&snapshot, &eval, NOW);
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
        ensure!(
            placed == shape.count,
            "{placed} of {} instances were placed",
            shape.count
        );
    }
    Ok(Committed {
        state,
        plan,
        commit,
    })
}

const NOW: Timestamp = Timestamp(1_000_000_000);

/// Ready nodes of nine sizes.
fn fleet(nodes: u32) -> anyhow::Result<State> {
    let mut state = State::default();
    for number in 0..nodes {
        let cpu_mhz = [8_000, 16_000, 32_000][number as usize % 3];
        let memory_mb = [16_384, 32_768, 65_536][number as usize / 3 % 3];
        let mut spec = fixture::node(&format!("n{number}"))
            .cpu_mhz(cpu_mhz)
            .memory_mb(memory_mb)
            .build();
        spec.id = NodeId::at(LogIndex(1), number);
        let node_id = spec.id;
        apply(
            &mut state,
            Command::RegisterNode {
                spec: Box::new(spec),
                at: NOW,
            },
        );
        let ready = Command::SetNodeStatus {
            node_id,
            status: NodeStatus::Ready,
            at: NOW,
        };
        ensure!(
            apply(&mut state, ready) == Response::Done,
            "node {number} is not ready"
        );
    }
    Ok(state)
}

fn register_jobs(state: &mut State, shape: Shape) -> anyhow::Result<Vec<EvalId>> {
    (0..shape.jobs)
        .map(|number| {
            let job = fixture::job(&format!("job-{number}"))
                .job_type(JobType::Batch)
                .count(shape.count)
                .cpu_mhz(CPU_MHZ)
                .memory_mb(MEMORY_MB)
                .constraint("${attr.cpu.arch}", "=", "amd64")
                .build();
            let command = Command::RegisterJob {
                spec: Box::new(job),
                at: NOW,
                check_index: None,
            };
            match apply(state, command) {
                Response::JobRegistered {
                    eval_id: Some(eval_id),
                    ..
                } => Ok(eval_id),
                other => anyhow::bail!("the job was answered with {other:?}"),
            }
        })
        .collect()
}

fn apply(state: &mut State, command: Command) -> Response {
    let index = LogIndex(state.applied().0 + 1);
    fsm::apply(state, index, command).response
}
