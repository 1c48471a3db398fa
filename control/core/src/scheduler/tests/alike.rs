//! A scan of the kinds chooses the same node as a ranking of all nodes.

use muster_domain::alloc::{PlacementMetrics, Score};
use muster_domain::fixture;
use muster_domain::id::NodeId;
use muster_domain::job::{
    Affinity, Constraint, GroupNetwork, JobSpec, NetworkMode, Operand, Spread, VolumeAsk,
};
use muster_domain::node::{Eligibility, NodeSpec};
use muster_domain::resources::DeviceAsk;
use muster_domain::scheduling::{Algorithm, SchedulerConfig};
use proptest::prelude::*;

use crate::chance::config;
use crate::fixture::Cluster;
use crate::fsm::{ConfigCommand, NodeCommand};
use crate::scheduler::feasible::GroupConstraints;
use crate::scheduler::fleet::ProjectedNodes;
use crate::scheduler::in_flight::InFlightPlans;
use crate::scheduler::node_shapes::NodeShapes;
use crate::scheduler::rank::{RankedNode, Ranking, Scan, ScanOutcome};

/// Returns nodes of three sizes in four zones; the sizes are few, so that many nodes are alike.
fn node(number: u32) -> NodeSpec {
    let mut spec = fixture::node(&format!("n{number}"))
        .cpu_mhz([4_000, 4_000, 8_000][number as usize % 3])
        .memory_mb([8_000, 16_000, 8_000][number as usize % 3])
        .build();
    let mut id = [0; 16];
    id[..4].copy_from_slice(&number.to_be_bytes());
    spec.id = NodeId(id);
    spec.meta
        .insert("zone".to_owned(), format!("z{}", number % 4));
    spec
}

/// Bits of the flags that select the ask.
const SPREAD_ALGORITHM: u8 = 1;
const AFFINITY: u8 = 2;
const AWAY: u8 = 4;
const APART: u8 = 8;
const PORT: u8 = 16;
const ONE_ZONE_LESS: u8 = 32;

fn wanted(flags: u8, count: u32, cpu: u32, memory: u32) -> JobSpec {
    let mut job = fixture::job("wanted").count(count).cpu_mhz(cpu);
    job = job.memory_mb(memory);
    if flags & PORT != 0 {
        job = job.port("http", 80).dynamic_port("admin");
    }
    let mut spec = job.build();
    let mut affinity = |zone: &str, weight| {
        spec.affinities.push(Affinity {
            left: "${meta.zone}".to_owned(),
            operand: Operand::Equal,
            right: zone.to_owned(),
            weight,
        });
    };
    if flags & AFFINITY != 0 {
        affinity("z1", 50);
    }
    if flags & AWAY != 0 {
        affinity("z2", -30);
    }
    let mut constraint = |left: &str, operand, right: &str| {
        spec.constraints.push(Constraint {
            left: left.to_owned(),
            operand,
            right: right.to_owned(),
        });
    };
    if flags & APART != 0 {
        constraint("", Operand::DistinctHosts, "true");
    }
    if flags & ONE_ZONE_LESS != 0 {
        constraint("${meta.zone}", Operand::NotEqual, "z3");
    }
    spec
}

/// Returns the metrics that both choosers report alike. That leaves out which of equal nodes has a score. With ports,
/// it leaves out the scores and the counts of exhausted nodes as well. Only a chooser that looks at each node
/// separately counts nodes on which a port is taken.
fn known(metrics: PlacementMetrics, has_port: bool) -> (PlacementMetrics, Vec<Score>) {
    let scores = metrics.scores.iter().map(|score| score.normalised);
    let scores = if has_port {
        Vec::new()
    } else {
        scores.collect()
    };
    let exhausted = PlacementMetrics {
        scores: Vec::new(),
        ..metrics
    };
    let known = if has_port {
        PlacementMetrics {
            dimension_exhausted: Vec::new(),
            nodes_exhausted: 0,
            ..exhausted
        }
    } else {
        exhausted
    };
    (known, scores)
}

fn place(chosen: RankedNode) -> (u32, Score, String) {
    let RankedNode {
        node,
        score,
        holding,
        ..
    } = chosen;
    (node.0, score, format!("{holding:?}"))
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_scan_chooses_as_a_ranking_does(
        nodes in 1..200_u32,
        closed in prop::collection::vec(0..200_u32, 0..4),
        loads in prop::collection::vec((1..60_u32, 1..9_u32, 1..9_u32, any::<bool>()), 0..5),
        flags in 0..64_u8,
        (count, cpu, memory) in (1..40_u32, 1..30_u32, 1..30_u32),
        there in 0..10_u32,
        avoid in prop::collection::vec(0..200_u32, 0..3),
    ) {
        let mut cluster = Cluster { unchecked: true, ..Cluster::new() };
        for number in 0..nodes {
            cluster.node(node(number));
        }
        for (at, (count, cpu, memory, has_port)) in loads.into_iter().enumerate() {
            let load = fixture::job(&format!("load-{at}")).count(count);
            let load = load.cpu_mhz(cpu * 150).memory_mb(memory * 300);
            cluster.run(if has_port { load.port("http", 80) } else { load }.build());
        }
        for number in closed {
            if number < nodes {
                cluster.apply(NodeCommand::SetEligibility {
                    node_id: node(number).id,
                    eligibility: Eligibility::Ineligible,
                }.at(cluster.now));
            }
        }
        if flags & SPREAD_ALGORITHM != 0 {
            cluster.apply(ConfigCommand::SetScheduler {
                config: SchedulerConfig { algorithm: Algorithm::Spread, ..SchedulerConfig::default() },
                check_index: None,
            }.at(cluster.now));
        }
        // Some instances exist already.
        let spec = wanted(flags, count, cpu * 100, memory * 100);
        let mut before = spec.clone();
        before.groups[0].count = there.min(count);
        cluster.run(before);
        let group = &spec.groups[0];
        let key = spec.key();
        let present = || cluster.state.allocs().of_job(&key).filter(|alloc| !alloc.is_terminal());
        let seed = u64::from(nodes) * 7 + u64::from(cpu);

        let nothing = InFlightPlans::without_plans(&cluster.state);
        let mut by_kind = ProjectedNodes::with(&cluster.state, seed, &nothing, NodeShapes::default());
        let mut one_by_one = ProjectedNodes::new(&cluster.state, seed);
        let mut scan = Scan::new(&mut by_kind, &spec, group, 1, present(), std::iter::empty()).unwrap();
        let mut ranking = Ranking::new(&one_by_one, &spec, group, present(), std::iter::empty());
        let has_port = flags & PORT != 0;
        prop_assert_eq!(known(scan.take_metrics(), has_port), known(ranking.metrics(&one_by_one), has_port));

        let avoid: Vec<NodeId> = avoid.into_iter().map(|number| node(number).id).collect();
        for step in 0..count {
            let avoid = if step % 3 == 1 { avoid.as_slice() } else { &[] };
            let found = match scan.place(&mut by_kind, avoid) {
                ScanOutcome::Place(place) => Some(place),
                ScanOutcome::Nothing => None,
                ScanOutcome::Unsure => break,
            };
            let expected = ranking.place(&mut one_by_one, avoid);
            prop_assert_eq!(found.map(place), expected.map(place), "instance {}", step);
            // Sometimes one of the existing instances is stopped.
            if step % 4 == 2 && let Some(alloc) = present().nth(step as usize / 4) {
                let number = by_kind.give_back(alloc).unwrap();
                scan.record_stop(number, true);
                one_by_one.give_back(alloc);
                ranking.record_stop(&one_by_one, number, true);
            }
        }

        // Writes of a plan are undone.
        let (kinds, _) = by_kind.into_parts();
        let mut again = ProjectedNodes::with(&cluster.state, seed, &nothing, kinds);
        let mut scan = Scan::new(&mut again, &spec, group, 1, present(), std::iter::empty()).unwrap();
        let ranking = Ranking::new(&again, &spec, group, present(), std::iter::empty());
        prop_assert_eq!(known(scan.take_metrics(), has_port), known(ranking.metrics(&again), has_port));
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn preemption_search_matches_exhaustive_ranking(
        nodes in 1..40_u32,
        loads in prop::collection::vec((1..20_u32, 5..30_u32, 5..30_u32, 1..70_u8), 3..9),
        flags in 0..8_u8,
        spread in any::<bool>(),
        (count, cpu, memory) in (1..8_u32, 5..40_u32, 5..40_u32),
        seed in any::<u64>(),
    ) {
        let mut cluster = Cluster { unchecked: true, ..Cluster::new() };
        for number in 0..nodes {
            cluster.node(node(number));
        }
        for (at, (count, cpu, memory, priority)) in loads.into_iter().enumerate() {
            let load = fixture::job(&format!("load-{at}")).count(count).priority(priority);
            cluster.run(load.cpu_mhz(cpu * 100).memory_mb(memory * 200).build());
        }
        let mut spec = wanted(flags & !SPREAD_ALGORITHM, count, cpu * 100, memory * 200);
        if spread {
            spec.spreads.push(Spread {
                attribute: "${meta.zone}".to_owned(),
                weight: 100,
                targets: Vec::new(),
            });
        }
        if flags & SPREAD_ALGORITHM != 0 {
            cluster.apply(ConfigCommand::SetScheduler {
                config: SchedulerConfig { algorithm: Algorithm::Spread, ..SchedulerConfig::default() },
                check_index: None,
            }.at(cluster.now));
        }
        let (group, key) = (&spec.groups[0], spec.key());
        let mut fleet = ProjectedNodes::new(&cluster.state, seed);
        let mut ranking = Ranking::new(&fleet, &spec, group, std::iter::empty(), std::iter::empty());
        while ranking.place(&mut fleet, &[]).is_some() {}

        for step in 0..count {
            let expected = ranking.best_of_all_preempting(&fleet, &key, 80);
            let found = ranking.place_preempting(&mut fleet, &key, 80);
            let found = found.map(|place| (place.node, place.score, place.preempted));
            prop_assert_eq!(found, expected, "instance {}", step);
        }
    }
}

/// Returns jobs that differ in one property each; some of the properties do not concern nodes.
fn jobs_that_differ() -> Vec<JobSpec> {
    let changes: [fn(&mut JobSpec); 13] = [
        |_| {},
        |job| job.priority = 7,
        |job| job.node_pool = "gpu".to_owned(),
        |job| job.datacenters.push("dc2".to_owned()),
        |job| job.constraints.push(constraint("linux")),
        |job| job.groups[0].constraints.push(constraint("linux")),
        |job| {
            job.constraints = vec![
                constraint("linux"),
                constraint("linux"),
                constraint("plan9"),
            ];
        },
        |job| job.groups[0].tasks[0].constraints = vec![constraint("plan9"), constraint("linux")],
        |job| job.groups[0].tasks[0].driver = "another".to_owned(),
        |job| {
            let ask = DeviceAsk {
                name: "gpu".to_owned(),
                count: 1,
                constraints: Vec::new(),
                affinities: Vec::new(),
            };
            job.groups[0].tasks[0].resources.devices.push(ask);
        },
        |job| {
            let ask = VolumeAsk {
                source: "data".to_owned(),
                read_only: true,
            };
            job.groups[0].volumes.insert("v".to_owned(), ask);
        },
        |job| network(job).mode = NetworkMode::Bridge,
        |job| network(job).ports[0].host_network = "inner".to_owned(),
    ];
    let jobs = changes.into_iter().map(|change| {
        let mut job = fixture::job("wants").dynamic_port("admin").build();
        change(&mut job);
        job
    });
    jobs.collect()
}

fn network(job: &mut JobSpec) -> &mut GroupNetwork {
    let network = job.groups[0].network.as_mut();
    network.expect("it asks for a port")
}

fn constraint(kernel: &str) -> Constraint {
    Constraint {
        left: "${attr.kernel.name}".to_owned(),
        operand: Operand::Equal,
        right: kernel.to_owned(),
    }
}

#[test]
fn group_constraints_match_agrees_with_equality() {
    let jobs = jobs_that_differ();
    let mut same = 0;
    for (one, other) in jobs
        .iter()
        .flat_map(|one| jobs.iter().map(move |other| (one, other)))
    {
        let asks = GroupConstraints::of(one, &one.groups[0]);
        let others = GroupConstraints::of(other, &other.groups[0]);

        assert_eq!(
            asks.is_of(other, &other.groups[0]),
            asks == others,
            "{asks:?}, {others:?}"
        );
        same += usize::from(asks == others);
    }
    // Each job equals itself; the first two jobs are equal; so are those with `linux` once, at any level.
    assert_eq!(same, 13 + 2 + 2);
}
