//! Tests with text as input and output: a cluster with its events, and the resulting plans.

#![expect(
    clippy::needless_raw_string_hashes,
    reason = "`cargo xtask bless` writes them so"
)]

mod alike;
mod canaries;
mod commands;
mod disconnect;
mod laws;
pub(super) mod life;
mod preempting;
mod recorded;
mod script;
mod slices;
mod system_update;
mod task_ports;

use std::time::Duration;

use expect_test::{Expect, expect};
use muster_domain::alloc::ClientStatus;
use muster_domain::eval::EvalStatus;
use muster_domain::fixture::{job, node};
use muster_domain::id::JobKey;
use muster_domain::job::{JobType, UpdateStrategy};
use muster_domain::node::limits_in_place;
use muster_domain::resources::CpuMhz;
use muster_domain::scheduling::SchedulerConfig;

use crate::fixture::Cluster;
use crate::fsm::{ConfigCommand, JobCommand};

/// Runs a script and compares the plans.
fn check(script: &str, expected: Expect) {
    expected.assert_eq(&script::run(script));
}

#[test]
fn instances_keep_apart_while_nodes_are_equal() {
    check(
        "node n1 cpu=4000 mem=8192
         node n2 cpu=4000 mem=8192 drain
         node n3 cpu=4000 mem=8192
         job web count=2 cpu=500",
        expect![[r#"
            place web[0] n1 score 0.149
            place web[1] n3 score 0.149"#]],
    );
}

#[test]
fn jobs_of_one_fill_a_node_first() {
    check(
        "node n1 cpu=4000 mem=8192
         node n2 cpu=2000 mem=4096
         job a cpu=500
         job b cpu=500
         job c cpu=1500",
        expect![[r#"
            place a[0] n2 score 0.263
            place b[0] n2 score 0.418
            place c[0] n1 score 0.331"#]],
    );
}

#[test]
fn identical_instances_become_one_run_per_node() {
    check(
        "node n1 cpu=4000 mem=8192
         node n2 cpu=4000 mem=8192
         job web count=8 cpu=500 mem=100",
        expect![[r#"
            place web[0..=3] n1 score 0.154
            place web[4..=7] n2 score 0.154"#]],
    );
}

#[test]
fn allocs_without_room_wait() {
    check(
        "node n1 cpu=1000 mem=8192
         job web count=3 cpu=400
         stop web",
        expect![[r#"
            place web[0..=1] n1 score 0.344
            wait web x1: cpu on 1
            stop web[0] on n1: alloc not needed due to job update
            stop web[1] on n1: alloc not needed due to job update"#]],
    );
    check(
        "node n1 cpu=1000 mem=8192
         job web count=3 cpu=400
         node n2 cpu=1000 mem=8192",
        expect![[r#"
            place web[0..=1] n1 score 0.344
            wait web x1: cpu on 1
            place web[2] n2 score 0.344"#]],
    );
}

/// A few instances are placed by a scan, many by a ranking.
#[test]
fn node_takes_at_most_its_alloc_limit() {
    check(
        "node n1 cpu=4000 mem=8192 allocs=2
         node n2 cpu=4000 mem=8192 allocs=1
         job old cpu=100
         job web count=3 cpu=100 mem=100
         stop old",
        expect![[r#"
            place old[0] n2 score 0.041
            place web[0..=1] n1 score 0.046
            wait web x1: allocations on 2
            stop old[0] on n2: alloc not needed due to job update
            place web[2] n2 score 0.046"#]],
    );
    check(
        "node n1 cpu=4000 mem=8192 allocs=10
         job web count=12 cpu=100 mem=100
         node n2 cpu=4000 mem=8192 allocs=2",
        expect![[r#"
            place web[0..=9] n1 score 0.046
            wait web x2: allocations on 1
            place web[10..=11] n2 score 0.046"#]],
    );
}

#[test]
fn room_of_a_stopped_job_wakes_blocked_evals() {
    check(
        "node n1 cpu=1000 mem=8192
         job old count=2 cpu=500
         job new cpu=500
         stop old",
        expect![[r#"
            place old[0..=1] n1 score 0.390
            wait new x1: cpu on 1
            stop old[0] on n1: alloc not needed due to job update
            stop old[1] on n1: alloc not needed due to job update
            place new[0] n1 score 0.390"#]],
    );
}

/// The smaller node came later and is the better one.
#[test]
fn a_replacement_stays_where_its_data_are() {
    check(
        "node n1 cpu=4000 mem=8192
         job web cpu=500 sticky
         job free cpu=500
         node n2 cpu=2000 mem=4096
         job web cpu=600 sticky
         job free cpu=600
         fail web[0]
         after 60
         down n1",
        expect![[r#"
            place web[0] n1 score 0.149
            place free[0] n1 score 0.263
            stop web[0] on n1: alloc is being updated due to job update
            place web[0] n1 score 0.280 after n1
            stop free[0] on n1: alloc is being updated due to job update
            place free[0] n2 score 0.297 after n1
            stop web[0] on n1: alloc was rescheduled because it failed
            place web[0] n1 score 0.172 after n1
            stop web[0] on n1: alloc is lost since its node is down
            place web[0] n2 score 0.455 after n1"#]],
    );
}

/// The node has no room for more, so the data are left.
#[test]
fn a_replacement_leaves_its_data_rather_than_wait() {
    check(
        "node n1 cpu=1000 mem=8192
         job web cpu=500 sticky
         job other cpu=400
         node n2 cpu=2000 mem=8192
         job web cpu=700 sticky",
        expect![[r#"
            place web[0] n1 score 0.390
            place other[0] n1 score 0.505
            stop web[0] on n1: alloc is being updated due to job update
            place web[0] n2 score 0.317 after n1"#]],
    );
}

#[test]
fn a_smaller_count_stops_the_highest_names() {
    check(
        "node n1
         job web count=4
         job web count=2",
        expect![[r#"
            place web[0..=3] n1 score 0.041
            stop web[2] on n1: alloc not needed due to job update
            stop web[3] on n1: alloc not needed due to job update
            move web to version 1"#]],
    );
}

#[test]
fn count_increase_updates_running_allocs_in_place() {
    check(
        "node n1
         job web count=2
         job web count=3",
        expect![[r#"
            place web[0..=1] n1 score 0.041
            move web to version 1
            place web[2] n1 score -0.441"#]],
    );
}

#[test]
fn a_changed_task_replaces_every_instance() {
    check(
        "node n1 cpu=1000
         job web count=2 cpu=400
         job web count=2 cpu=450",
        expect![[r#"
            place web[0..=1] n1 score 0.344
            stop web[0] on n1: alloc is being updated due to job update
            stop web[1] on n1: alloc is being updated due to job update
            place web[0] n1 score -0.252 after n1
            place web[1] n1 score -0.247 after n1"#]],
    );
}

/// Each instance makes room for its own replacement, and the second finds the room that the first freed.
#[test]
fn an_instance_without_a_replacement_goes_on_running() {
    check(
        "node n1 cpu=1000
         job web count=2 cpu=500
         job web count=2 cpu=600",
        expect![[r#"
            place web[0..=1] n1 score 0.390
            wait web x2: cpu on 1"#]],
    );
}

/// One instance of version 0 waits for room, one of version 1 can be updated in place; found by seed 93.
#[test]
fn destructive_update_is_not_downgraded_to_in_place() {
    check(
        "node n1 cpu=1000
         job filler cpu=400
         node n2 cpu=1000
         job web count=2 cpu=600
         job web count=2 cpu=700
         job web count=3 cpu=700
         stop filler",
        expect![[r#"
            place filler[0] n1 score 0.344
            place web[0] n1 score 0.520
            place web[1] n2 score 0.426
            stop web[1] on n2: alloc is being updated due to job update
            place web[1] n2 score 0.455 after n2
            wait web x1: cpu on 2
            move web to version 2
            wait web x2: cpu on 2
            stop filler[0] on n1: alloc not needed due to job update
            stop web[0] on n1: alloc is being updated due to job update
            place web[0] n1 score 0.455 after n1
            wait web x1: cpu on 2"#]],
    );
}

#[test]
fn native_driver_task_resizes_in_place() {
    check(
        "node n1 cpu=1000
         job web count=2 cpu=400 driver=native
         job web count=2 cpu=450 driver=native
         job web count=2 cpu=300 driver=native
         job web count=2 cpu=300 mem=200 driver=native",
        expect![[r#"
            place web[0..=1] n1 score 0.344
            move web to version 1
            move web to version 2
            move web to version 3"#]],
    );
}

/// There is room for one of two instances to grow; the other is replaced as soon as there is a place for it.
#[test]
fn alloc_without_room_to_grow_is_replaced() {
    check(
        "node n1 cpu=1000
         job web count=2 cpu=400 driver=native
         job web count=2 cpu=550 driver=native
         node n2 cpu=1000",
        expect![[r#"
            place web[0..=1] n1 score 0.344
            move web to version 1
            wait web x1: cpu on 1
            stop web[1] on n1: alloc is being updated due to job update
            place web[1] n2 score 0.409 after n1"#]],
    );
}

/// New instances in a plan get the room that growing instances leave, and the plan is not refused when it is applied.
#[test]
fn new_placements_leave_room_for_in_place_growth() {
    let mut cluster = Cluster::new();
    let able = limits_in_place("native");
    cluster.node(node("n1").cpu_mhz(1_000).attribute(&able, "1").build());
    let mut spec = job("web").cpu_mhz(300).build();
    "native".clone_into(&mut spec.groups[0].tasks[0].driver);
    cluster.run(spec.clone());
    spec.groups[0].count = 2;
    spec.groups[0].tasks[0].resources.cpu = CpuMhz(600);
    let at = cluster.now;
    cluster.apply(
        JobCommand::Register {
            spec: Box::new(spec),
            check_index: None,
            places: None,
        }
        .at(at),
    );

    let plan = cluster.schedule_next().unwrap().plan;

    let group = &plan.groups[0];
    assert!(group.in_place && group.placements.is_empty(), "{group:?}");
}

#[test]
fn in_place_shrink_unblocks_waiting_evaluation() {
    check(
        "node n1 cpu=1000
         job big cpu=800 driver=native
         job other cpu=400
         job big cpu=500 driver=native",
        expect![[r#"
            place big[0] n1 score 0.477
            wait other x1: cpu on 1
            move big to version 1
            place other[0] n1 score 0.505"#]],
    );
}

#[test]
fn system_tasks_grow_where_there_is_room() {
    check(
        "node n1 cpu=1000
         node n2 cpu=500
         job each type=system cpu=400 driver=native
         job each type=system cpu=600 driver=native",
        expect![[r#"
            place each[0] n1 score 0.344
            place each[0] n2 score 0.477
            move each to version 1
            wait each x1: cpu on 2"#]],
    );
}

#[test]
fn the_same_job_again_changes_nothing() {
    check(
        "node n1
         job web count=2
         job web count=2",
        expect!["place web[0..=1] n1 score 0.041"],
    );
}

#[test]
fn lost_instances_are_replaced_at_once() {
    check(
        "node n1
         job web count=2
         node n2
         down n1",
        expect![[r#"
            place web[0..=1] n1 score 0.041
            stop web[0] on n1: alloc is lost since its node is down
            stop web[1] on n1: alloc is lost since its node is down
            place web[0] n2 score 0.041 after n1
            place web[1] n2 score -0.460 after n1"#]],
    );
}

#[test]
fn a_failed_service_waits_and_moves_elsewhere() {
    check(
        "node n1
         node n2
         job web
         fail web[0]
         after 29
         after 1",
        expect![[r#"
            place web[0] n2 score 0.041
            stop web[0] on n2: alloc was rescheduled because it failed
            place web[0] n1 score 0.041 after n2"#]],
    );
}

#[test]
fn a_failed_batch_instance_is_tried_once_more() {
    check(
        "node n1
         job sum type=batch
         fail sum[0]
         after 5
         fail sum[0]
         after 90000",
        expect![[r#"
            place sum[0] n1 score 0.041
            stop sum[0] on n1: alloc was rescheduled because it failed
            place sum[0] n1 score -0.480 after n1"#]],
    );
}

#[test]
fn a_complete_batch_instance_is_done() {
    check(
        "node n1
         job sum type=batch count=2
         complete sum[0]
         job sum type=batch count=2
         down n1
         node n2",
        expect![[r#"
            place sum[0..=1] n1 score 0.041
            stop sum[1] on n1: alloc is lost since its node is down
            wait sum x1: 0 nodes looked at
            place sum[1] n2 score 0.041 after n1"#]],
    );
}

#[test]
fn a_stopped_batch_job_runs_anew() {
    check(
        "node n1
         job sum type=batch
         complete sum[0]
         stop sum
         job sum type=batch",
        expect![[r#"
            place sum[0] n1 score 0.041
            place sum[0] n1 score 0.041"#]],
    );
}

#[test]
fn constraints_and_places_narrow_the_choice() {
    check(
        "node n1 dc=dc1 attr.cpu.arch=amd64
         node n2 dc=dc2 attr.cpu.arch=arm64
         node n3 dc=eu-1 attr.cpu.arch=arm64 meta.rack=r7
         node n4 dc=eu-2 pool=gpu
         job a dc=eu-*
         job b where=${attr.cpu.arch},=,arm64 count=3
         job c where=${meta.rack},regexp,^r[0-9]+$
         job d where=${attr.cpu.arch},!=,amd64 where=${meta.rack},!=,r7
         job e where=${node.unique.name},=,n9
         job f driver=docker
         job g dc=mars
         job h pool=gpu
         job i pool=all where=${node.pool},=,gpu",
        expect![[r#"
            place a[0] n3 score 0.041
            place b[0] n2 score 0.041
            place b[1..=2] n3 score 0.080
            place c[0] n3 score 0.153
            place d[0] n2 score 0.080
            wait e x1: ${node.unique.name} = n9 on 3
            wait f x1: missing driver docker on 3
            wait g x1: 0 nodes looked at
            place h[0] n4 score 0.041
            place i[0] n4 score 0.080"#]],
    );
}

#[test]
fn bridge_and_none_networks_require_node_support() {
    check(
        "node n1
         node n2 attr.network.bridge=true
         job a net=bridge count=2
         job b net=none",
        expect![[r#"
            place a[0..=1] n2 score 0.041
            place b[0] n2 score 0.117"#]],
    );
}

#[test]
fn cni_network_requires_configured_node() {
    check(
        "node n1 attr.network.cni.other=1.0.0
         node n2 attr.network.cni.lab=1.0.0
         job a net=cni/lab count=2
         job b net=cni/dmz",
        expect![[r#"
            place a[0..=1] n2 score 0.041
            wait b x1: missing CNI network dmz on 2"#]],
    );
}

#[test]
fn a_fixed_port_is_held_once() {
    check(
        "node n1
         node n2
         job web count=3 port=8080
         stop web",
        expect![[r#"
            place web[0] n2 score 0.041 http:8080
            place web[1] n1 score 0.041 http:8080
            wait web x1: ports on 2
            stop web[0] on n2: alloc not needed due to job update
            stop web[1] on n1: alloc not needed due to job update"#]],
    );
}

#[test]
fn dynamic_ports_differ() {
    check(
        "node n1
         job web count=3 port=any",
        expect![[r#"
            place web[0] n1 score 0.041 http:dynamic
            place web[1] n1 score -0.293 http:dynamic
            place web[2] n1 score -0.441 http:dynamic"#]],
    );
}

#[test]
fn datacenter_change_moves_alloc_to_eligible_node() {
    check(
        "node n1 dc=dc1
         node n2 dc=dc2
         job web dc=dc1
         job web dc=dc2",
        expect![[r#"
            place web[0] n1 score 0.041
            stop web[0] on n1: alloc is being updated due to job update
            place web[0] n2 score 0.041 after n1"#]],
    );
}

#[test]
fn a_node_without_cpu_takes_nothing() {
    check(
        "node n1 cpu=0
         job web cpu=0",
        expect!["wait web x1: cpu on 1"],
    );
}

#[test]
fn concurrent_plans_do_not_pick_same_node() {
    let mut cluster = Cluster::new();
    // The smaller node would be fuller, so every instance prefers it.
    for (name, cpu_mhz) in [("small", 1_000), ("large", 1_200)] {
        cluster.node(node(name).cpu_mhz(cpu_mhz).build());
    }
    for name in ["one", "other", "third"] {
        let spec = Box::new(job(name).cpu_mhz(900).memory_mb(10).build());
        cluster.apply(
            JobCommand::Register {
                spec,
                check_index: None,
                places: None,
            }
            .at(cluster.now),
        );
    }

    let outcomes: Vec<_> = std::iter::from_fn(|| cluster.schedule_next()).collect();

    let place = |at: usize| outcomes[at].plan.groups[0].placements[0].node;
    assert_ne!(place(0), place(1), "the first plan is not committed yet");
    // There is room for two. The third is not reported to lack room, because one of the plans may not be committed.
    assert_eq!(outcomes[2].plan.groups.len(), 1);

    cluster.commit(outcomes, Vec::new(), &mut Vec::new());
    cluster.settle();
    let blocked = cluster.state.evals().iter();
    let blocked = blocked.filter(|eval| eval.status == EvalStatus::Blocked);
    assert_eq!(blocked.count(), 1, "now it is sure");
}

#[test]
fn purged_job_can_return_with_another_type() {
    let types = [
        (JobType::Service, 2),
        (JobType::Batch, 2),
        (JobType::System, 3),
        (JobType::SysBatch, 3),
    ];
    for (before, _) in types {
        for (after, wanted) in types {
            let mut cluster = Cluster::new();
            for number in 0..3 {
                cluster.node(node(&format!("n{number}")).build());
            }
            let spec = |kind: JobType| {
                let count = if kind.is_on_every_node() { 1 } else { 2 };
                job("web").job_type(kind).count(count).build()
            };
            cluster.run(spec(before));
            cluster.apply(
                JobCommand::Purge {
                    key: JobKey::in_default("web"),
                }
                .at(cluster.now),
            );
            // No evaluation was processed yet: the evaluation of the removal finds the new job.
            cluster.apply(
                JobCommand::Register {
                    spec: Box::new(spec(after)),
                    check_index: None,
                    places: None,
                }
                .at(cluster.now),
            );
            cluster.settle();

            let live = cluster.live("web");
            assert_eq!(live.len(), wanted, "{before:?}, then {after:?}");
            assert!(
                live.iter().all(|alloc| alloc.job.spec.job_type == after),
                "{before:?}, then {after:?}: one of the old type goes on"
            );
        }
    }
}

#[test]
fn update_completes_despite_unwanted_failed_alloc() {
    let mut cluster = Cluster::new();
    for number in 0..4 {
        cluster.node(node(&format!("n{number}")).build());
    }
    let spec = |count, cpu_mhz, update| {
        let mut spec = job("web").count(count).cpu_mhz(cpu_mhz).build();
        spec.groups[0].update = update;
        spec
    };
    cluster.run(spec(3, 100, Some(UpdateStrategy::default())));
    let failed = cluster.live("web").remove(0);
    cluster.report(failed.id, ClientStatus::Failed);
    cluster.settle();
    // It is not replaced within its deployment; its replacement comes due, and the new version wants two instances.
    cluster.advance(Duration::from_mins(1));
    cluster.settle();
    cluster.run(spec(2, 200, None));

    let live = cluster.live("web");
    assert_eq!(live.len(), 2);
    assert!(
        live.iter().all(|alloc| alloc.job.version == 1),
        "one of the old version goes on: nobody would look again"
    );
}

#[test]
fn preemption_config_change_unblocks_evaluations() {
    let mut cluster = Cluster::new();
    cluster.node(node("n").cpu_mhz(1_000).build());
    cluster.run(job("low").priority(10).cpu_mhz(900).build());
    cluster.run(job("high").priority(90).cpu_mhz(900).build());
    assert_eq!(cluster.live("high").len(), 0);

    let mut config = SchedulerConfig::default();
    config.preemption.service = true;
    cluster.apply(
        ConfigCommand::SetScheduler {
            config,
            check_index: None,
        }
        .at(cluster.now),
    );
    cluster.settle();

    assert_eq!(cluster.live("high").len(), 1);
    assert_eq!(cluster.live("low").len(), 0);
}

/// On one node the agent sets the limits of the driver's tasks; on the others the driver does.
#[test]
fn limits_update_in_place_depends_on_node_attribute() {
    let limited = job("web").memory_mb(64).build();
    for (attribute, replaced) in [(Some("1"), 0), (Some("0"), 1), (None, 1)] {
        let mut node = node("n1");
        if let Some(word) = attribute {
            let driver = &limited.groups[0].tasks[0].driver;
            node = node.attribute(&limits_in_place(driver), word);
        }
        let mut cluster = Cluster::new();
        cluster.node(node.build());
        cluster.run(limited.clone());
        let mut changed = limited.clone();
        changed.groups[0].tasks[0].resources.cpu_hard_limit = true;

        let plans = cluster.run(changed);

        let stops: usize = plans.iter().map(|plan| plan.stops.len()).sum();
        assert_eq!(stops, replaced, "{attribute:?}: {plans:?}");
    }
}
