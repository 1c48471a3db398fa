//! How long the scheduler and the state take for many placements, in one process and without a log.
//!
//! `cargo run --release -p muster-control-core --features fixture --example place -- [NODES] [COUNT]`

#![expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a measurement reads the clock and prints; nothing in the core does"
)]

use std::time::Instant;

use muster_control_core::fixture::Cluster;
use muster_control_core::fsm::Command;
use muster_control_core::{scheduler, snapshot};
use muster_domain::fixture::{job, node};
use muster_domain::id::NodeId;

fn main() {
    let mut numbers = std::env::args()
        .skip(1)
        .filter_map(|word| word.parse::<u32>().ok());
    let nodes = numbers.next().unwrap_or(10_000);
    let count = numbers.next().unwrap_or(10_000);
    let mut cluster = fleet(nodes);

    let spec = Box::new(job("web").count(count).cpu_mhz(50).memory_mb(50).build());
    let at = cluster.now;
    cluster.apply(Command::RegisterJob {
        spec,
        at,
        check_index: None,
    });
    let started = Instant::now();
    let outcome = cluster
        .schedule_next()
        .expect("the job was just registered");
    let scheduled = started.elapsed();
    let runs: usize = outcome
        .plan
        .groups
        .iter()
        .map(|group| group.placements.len())
        .sum();
    let started = Instant::now();
    let evals = outcome.update.into_iter().collect();
    cluster.apply(Command::ApplyPlans {
        plans: vec![outcome.plan],
        evals,
        at,
    });
    let applied = started.elapsed();
    println!(
        "{nodes} nodes, one job of {count}: schedule {scheduled:?}, apply {applied:?}, {runs} runs"
    );

    let jobs = 1_000;
    for number in 0..jobs {
        let spec = Box::new(
            job(&format!("one-{number}"))
                .cpu_mhz(50 + number % 7)
                .build(),
        );
        cluster.apply(Command::RegisterJob {
            spec,
            at,
            check_index: None,
        });
    }
    let started = Instant::now();
    cluster.settle();
    println!(
        "{jobs} jobs of one: {:?} each, scheduled and applied",
        started.elapsed() / jobs
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
        cluster.node(spec);
    }
    cluster
}
