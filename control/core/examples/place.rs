//! Measures the time of the scheduler and the state for many placements, in one process and without a log.
//!
//! `cargo run --release -p muster-control-core --features fixture --example place -- [NODES] [COUNT]`

#![expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a measurement reads the clock and prints; nothing in the core does"
)]

use std::time::{Duration, Instant};

use muster_control_core::fixture::Cluster;
use muster_control_core::fsm::{ConfigCommand, EvalCommand, JobCommand};
use muster_control_core::scheduler::{self, ScheduleOutcome};
use muster_control_core::snapshot;
use muster_domain::fixture::{job, node};
use muster_domain::id::NodeId;
use muster_domain::job::{Affinity, JobSpec, Operand, Spread};
use muster_domain::scheduling::{PreemptionConfig, SchedulerConfig};

fn register_single_jobs(cluster: &mut Cluster, jobs: u32) {
    let at = cluster.now;
    for number in 0..jobs {
        let spec = Box::new(
            job(&format!("one-{number}"))
                .cpu_mhz(50 + number % 7)
                .memory_mb(60 + number % 11)
                .build(),
        );
        cluster.apply(
            JobCommand::Register {
                spec,
                check_index: None,
                places: None,
            }
            .at(at),
        );
    }
}

fn main() {
    let mut numbers = std::env::args()
        .skip(1)
        .filter_map(|word| word.parse::<u32>().ok());
    let nodes = numbers.next().unwrap_or(10_000);
    let count = numbers.next().unwrap_or(10_000);
    let mut cluster = fleet(nodes);

    let at = cluster.now;
    let spec = job("web").count(count).cpu_mhz(50).memory_mb(50).build();
    let (outcome, scheduled) = schedule(&mut cluster, spec);
    let runs: usize = outcome
        .plan
        .groups
        .iter()
        .map(|group| group.placements.len())
        .sum();
    let started = Instant::now();
    let evals = outcome.update.into_iter().collect();
    cluster.apply(
        EvalCommand::ApplyPlans {
            plans: vec![outcome.plan],
            evals,
        }
        .at(at),
    );
    let applied = started.elapsed();
    println!(
        "{nodes} nodes, one job of {count}: schedule {scheduled:?}, apply {applied:?}, {runs} runs"
    );

    for flavour in ["even spread over 25", "affinity"] {
        flavoured(nodes, count, flavour);
    }
    preempting(nodes.min(1_000));

    let jobs = numbers.next().unwrap_or(10_000);
    register_single_jobs(&mut cluster, jobs);
    let (mut scheduled, all) = (Duration::ZERO, Instant::now());
    loop {
        let started = Instant::now();
        let outcomes: Vec<ScheduleOutcome> = std::iter::from_fn(|| cluster.schedule_next())
            .take(64)
            .collect();
        scheduled += started.elapsed();
        if outcomes.is_empty() {
            break;
        }
        cluster.commit(outcomes, Vec::new(), &mut Vec::new());
    }
    println!(
        "{jobs} jobs of one: {:?} each to schedule, {:?} with all else",
        scheduled / jobs,
        all.elapsed() / jobs
    );

    let eval = cluster
        .state
        .evals()
        .iter()
        .next()
        .cloned()
        .expect("there are evaluations");
    let started = Instant::now();
    let outcome = scheduler::schedule(&cluster.state, &eval, at);
    println!(
        "a job at rest: {:?}, empty {}",
        started.elapsed(),
        outcome.plan.is_empty()
    );

    let started = Instant::now();
    let records = snapshot::records(&cluster.state).count();
    println!("snapshot: {records} records in {:?}", started.elapsed());
}

/// Places one job whose instances have a spread or an affinity.
fn flavoured(nodes: u32, count: u32, flavour: &str) {
    let mut cluster = fleet(nodes);
    let mut spec = job("web").count(count).cpu_mhz(50).memory_mb(50).build();
    if flavour == "affinity" {
        spec.affinities.push(Affinity {
            left: "${meta.rack}".to_owned(),
            operand: Operand::Equal,
            right: "r7".to_owned(),
            weight: 50,
        });
    } else {
        spec.spreads.push(Spread {
            attribute: "${meta.rack}".to_owned(),
            weight: 100,
            targets: Vec::new(),
        });
    }
    let (outcome, scheduled) = schedule(&mut cluster, spec);
    let placed: u32 = outcome
        .plan
        .groups
        .iter()
        .flat_map(|group| &group.placements)
        .map(|run| run.count)
        .sum();
    let rate = f64::from(placed) / scheduled.as_secs_f64();
    println!("{nodes} nodes, one job of {count}, {flavour}: {scheduled:?}, {rate:.0} placements/s");
}

/// Places one job that preempts less important ones on every node.
fn preempting(nodes: u32) {
    let mut cluster = fleet(nodes);
    let at = cluster.now;
    cluster.apply(
        ConfigCommand::SetScheduler {
            config: SchedulerConfig {
                preemption: PreemptionConfig {
                    service: true,
                    ..PreemptionConfig::default()
                },
                ..SchedulerConfig::default()
            },
            check_index: None,
        }
        .at(at),
    );
    let filler = job("filler").priority(20).count(4 * nodes);
    cluster.run(filler.cpu_mhz(1_000).memory_mb(50).build());
    let spec = job("high").priority(80).count(nodes);
    let spec = spec.cpu_mhz(1_000).memory_mb(50).build();
    let (outcome, scheduled) = schedule(&mut cluster, spec);
    let runs = outcome
        .plan
        .groups
        .iter()
        .flat_map(|group| &group.placements);
    let (placed, preempted) = runs.fold((0, 0), |(placed, preempted), run| {
        (placed + run.count, preempted + run.preempted().len())
    });
    let rate = f64::from(placed) / scheduled.as_secs_f64();
    println!(
        "{nodes} full nodes, one job of {nodes}: {scheduled:?}, {rate:.0} placements/s, {preempted} evicted"
    );
}

/// Registers `spec`, and returns the scheduler's outcome and its duration.
fn schedule(cluster: &mut Cluster, spec: JobSpec) -> (ScheduleOutcome, Duration) {
    cluster.apply(
        JobCommand::Register {
            spec: Box::new(spec),
            check_index: None,
            places: None,
        }
        .at(cluster.now),
    );
    let started = Instant::now();
    let outcome = cluster
        .schedule_next()
        .expect("the job was just registered");
    (outcome, started.elapsed())
}

fn fleet(nodes: u32) -> Cluster {
    let mut cluster = Cluster {
        unchecked: true,
        ..Cluster::new()
    };
    for number in 0..nodes {
        let mut spec = node(&format!("node-{number}")).build();
        let mut id = [0; 16];
        id[..4].copy_from_slice(&number.to_be_bytes());
        spec.id = NodeId(id);
        spec.meta
            .insert("rack".to_owned(), format!("r{}", number % 25));
        cluster.node(spec);
    }
    cluster
}
