//! Properties that must hold for every cluster and job.

use std::sync::Arc;
use std::time::Duration;

use muster_domain::alloc::ClientStatus;
use muster_domain::fixture;
use muster_domain::id::{EvalId, LogIndex, NodeId};
use muster_domain::job::{JobSpec, JobType};
use muster_domain::node::{NodeSpec, NodeStatus};
use proptest::prelude::*;

use crate::chance::config;
use crate::fixture::Cluster;
use crate::fsm::JobCommand;
use crate::scheduler;

#[derive(Clone, Debug)]
enum SchedulerEvent {
    Run {
        job: usize,
        count: u32,
        cpu: u32,
        memory: u32,
        batch: bool,
        port: Option<u16>,
        priority: u8,
    },
    Stop {
        job: usize,
    },
    NodeDown {
        node: usize,
    },
    NodeUp {
        node: usize,
    },
    Report {
        pick: usize,
        status: ClientStatus,
    },
    Wait {
        seconds: u64,
    },
    Collect,
}

fn steps() -> impl Strategy<Value = Vec<SchedulerEvent>> {
    let run = (
        0..4_usize,
        0..6_u32,
        1..9_u32,
        1..9_u32,
        any::<bool>(),
        0..3_u16,
        1..100_u8,
    );
    let step = prop_oneof![
        6 => run.prop_map(|(job, count, cpu, memory, batch, port, priority)| SchedulerEvent::Run {
            // A job keeps its type.
            job: job * 2 + usize::from(batch),
            count,
            cpu: cpu * 100,
            memory: memory * 100,
            batch,
            port: (port > 1).then_some(8_000 + port),
            priority,
        }),
        2 => (0..8_usize).prop_map(|job| SchedulerEvent::Stop { job }),
        2 => (0..4_usize).prop_map(|node| SchedulerEvent::NodeDown { node }),
        3 => (0..4_usize).prop_map(|node| SchedulerEvent::NodeUp { node }),
        6 => (any::<prop::sample::Index>(), 0..4_usize).prop_map(|(pick, status)| SchedulerEvent::Report {
            pick: pick.index(1_000),
            status: [
                ClientStatus::Running,
                ClientStatus::Complete,
                ClientStatus::Failed,
                ClientStatus::Pending,
            ][status],
        }),
        2 => (1..100_u64).prop_map(|seconds| SchedulerEvent::Wait { seconds }),
        1 => Just(SchedulerEvent::Collect),
    ];
    prop::collection::vec(step, 1..30)
}

fn spec(job: usize, count: u32, cpu: u32, memory: u32, batch: bool, port: Option<u16>) -> JobSpec {
    let kind = if batch {
        JobType::Batch
    } else {
        JobType::Service
    };
    let job = fixture::job(&format!("job{job}"))
        .job_type(kind)
        .count(count);
    let job = job.cpu_mhz(cpu).memory_mb(memory);
    port.map_or(job.clone(), |port| {
        job.port("http", port).dynamic_port("admin")
    })
    .build()
}

fn nodes() -> Vec<NodeSpec> {
    (0..4_u64)
        .map(|node| {
            let spec = fixture::node(&format!("n{node}"));
            spec.cpu_mhz(1_000 + 500 * node)
                .memory_mb(2_000 + 300 * node)
                .build()
        })
        .collect()
}

fn take(cluster: &mut Cluster, step: SchedulerEvent) {
    let at = cluster.now;
    let node_id = |node: usize| nodes()[node].id;
    match step {
        SchedulerEvent::Run {
            job,
            count,
            cpu,
            memory,
            batch,
            port,
            priority,
        } => {
            let mut spec = spec(job, count, cpu, memory, batch, port);
            spec.priority = priority;
            cluster.run(spec);
        }
        SchedulerEvent::Stop { job } => {
            cluster.stop(&format!("job{job}"));
        }
        SchedulerEvent::NodeDown { node } => {
            cluster.node_status(node_id(node), NodeStatus::Down);
        }
        SchedulerEvent::NodeUp { node } => {
            cluster.node_status(node_id(node), NodeStatus::Ready);
        }
        SchedulerEvent::Report { pick, status } => {
            let allocs: Vec<_> = cluster
                .state
                .allocs()
                .iter()
                .map(crate::state::AllocView::id)
                .collect();
            if !allocs.is_empty() {
                cluster.report(allocs[pick % allocs.len()], status);
            }
        }
        SchedulerEvent::Wait { seconds } => cluster.advance(Duration::from_secs(seconds)),
        SchedulerEvent::Collect => {
            for command in crate::gc::Collector::forced(at) {
                cluster.apply(command);
            }
        }
    }
    cluster.settle();
}

proptest! {
    #![proptest_config(config())]

    /// [`Cluster::apply`] checks after every entry that no node is overbooked, and the rest of `state::check`.
    #[test]
    fn no_history_breaks_an_invariant(steps in steps()) {
        let mut cluster = Cluster::new();
        for spec in nodes() {
            cluster.node(spec);
        }
        for step in steps {
            take(&mut cluster, step);
        }
    }

    #[test]
    fn a_job_at_rest_has_an_empty_plan(steps in steps()) {
        let mut cluster = Cluster::new();
        for spec in nodes() {
            cluster.node(spec);
        }
        for step in steps {
            take(&mut cluster, step);
        }

        // Every wait ends within this time: work that is due within a second is done at once.
        for _ in 0..3 {
            cluster.advance(Duration::from_hours(2));
            cluster.settle();
        }
        let jobs: Vec<_> = cluster.state.jobs().iter().map(|job| job.key()).collect();
        for key in jobs {
            cluster.apply(JobCommand::Evaluate { key: key.clone(), force_reschedule: false }.at(cluster.now));
            let plans = cluster.settle();
            prop_assert!(plans.is_empty(), "{key}: {plans:?}");
        }
    }

    #[test]
    fn every_choice_is_the_best_there_is(
        count in 1..12_u32,
        cpu in 1..9_u32,
        memory in 1..9_u32,
        load in prop::collection::vec((0..3_u32, 1..5_u32), 0..6),
    ) {
        let mut cluster = Cluster::new();
        for spec in nodes() {
            cluster.node(spec);
        }
        for (at, (count, cpu)) in load.into_iter().enumerate() {
            cluster.run(spec(at, count, cpu * 100, 100, false, None));
        }
        let spec = spec(9, count, cpu * 100, memory * 100, false, None);
        let expected = brute_force(&cluster, &spec);

        let plans = cluster.run(spec);

        let runs = plans.iter().flat_map(|plan| &plan.groups).flat_map(|group| &group.placements);
        let mut chosen: Vec<(NodeId, u32)> = runs
            .map(|run| {
                let column = cluster.state.nodes().column_at(run.node).unwrap();
                (column.node_id, run.count)
            })
            .collect();
        chosen.sort_unstable();
        prop_assert_eq!(chosen, expected);
    }

    #[test]
    fn the_same_snapshot_gives_the_same_plan(steps in steps()) {
        let mut cluster = Cluster::new();
        for spec in nodes() {
            cluster.node(spec);
        }
        for step in steps {
            take(&mut cluster, step);
        }
        for eval in cluster.state.evals().iter() {
            let mut eval = (**eval).clone();
            eval.status = muster_domain::eval::EvalStatus::Pending;
            let one = scheduler::schedule(&cluster.state, &eval, cluster.now);
            let other = scheduler::schedule(&cluster.state.clone(), &eval, cluster.now);
            prop_assert_eq!(one, other);
        }
    }
}

/// Places instance by instance, with a look at every node each time. Returns the number of instances of each node.
fn brute_force(cluster: &Cluster, spec: &JobSpec) -> Vec<(NodeId, u32)> {
    let group = &spec.groups[0];
    let ask = group.ask();
    let nodes: Vec<_> = cluster.state.nodes().iter().map(Arc::clone).collect();
    let mut used: Vec<_> = nodes
        .iter()
        .map(|node| cluster.state.nodes().used(&node.spec.id).unwrap())
        .collect();
    let mut placed = vec![0_u32; nodes.len()];
    // The evaluation gets the id that the entry will give it, because the id decides between equal nodes.
    let eval_id = EvalId::at(LogIndex(cluster.state.applied().0 + 1), 0);
    let seed = u64::from_be_bytes(eval_id.0[8..].try_into().unwrap());
    for _ in 0..group.count {
        let mut best: Option<(f64, usize)> = None;
        // Of equal nodes the first one from the seed's position on is chosen, among all feasible nodes: all four.
        let first = usize::try_from(seed % nodes.len() as u64).unwrap();
        for step in 0..nodes.len() {
            let at = (first + step) % nodes.len();
            let (total, after) = (nodes[at].spec.usable(), used[at].plus(ask));
            if after.exceeds(total).is_some() {
                continue;
            }
            let free = |used: u64, total: u64| 1.0 - used as f64 / total as f64;
            let sum = libm::exp10(free(after.cpu_mhz, total.cpu_mhz))
                + libm::exp10(free(after.memory_mb, total.memory_mb));
            let fit = (20.0 - sum).clamp(0.0, 18.0) / 18.0;
            let score = if placed[at] == 0 {
                fit
            } else {
                (fit - f64::from(placed[at] + 1) / f64::from(group.count)) / 2.0
            };
            if best.is_none_or(|(other, _)| score > other) {
                best = Some((score, at));
            }
        }
        let Some((_, at)) = best else { break };
        used[at] = used[at].plus(ask);
        placed[at] += 1;
    }
    let mut result: Vec<(NodeId, u32)> = nodes
        .iter()
        .zip(placed)
        .filter(|(_, count)| *count > 0)
        .map(|(node, count)| (node.spec.id, count))
        .collect();
    result.sort_unstable();
    result
}
