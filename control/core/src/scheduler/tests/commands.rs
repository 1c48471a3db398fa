//! States of a job by commands of its user: the instances that are live afterwards.
//!
//! A cell with 0 needs a reason: the job is stopped, its work is done, it waits for time or room, or its policy forbids
//! a replacement. The command line reports these reasons to the user.

use std::fmt::Write as _;
use std::time::Duration;

use expect_test::expect;
use muster_domain::alloc::ClientStatus;
use muster_domain::fixture;
use muster_domain::id::JobKey;
use muster_domain::job::{JobSpec, JobType, Periodic};
use muster_domain::node::NodeStatus;

use crate::fixture::Cluster;
use crate::fsm::{AllocCommand, JobCommand, NodeCommand};

const TYPES: [JobType; 4] = [
    JobType::Service,
    JobType::Batch,
    JobType::System,
    JobType::SysBatch,
];
const STATES: [&str; 9] = [
    "running",
    "complete",
    "failed",
    "failed for good",
    "stopped",
    "failed, stopped",
    "lost",
    "drained",
    "template",
];
const COMMANDS: [&str; 7] = [
    "nothing",
    "run",
    "run new",
    "stop, run",
    "eval",
    "eval force",
    "node back",
];

fn spec(job_type: JobType, state: &str) -> JobSpec {
    let mut spec = fixture::job("j").job_type(job_type).build();
    if state.contains("for good") {
        let reschedule = &mut spec.groups[0].reschedule;
        (reschedule.attempts, reschedule.unlimited) = (0, false);
    }
    spec
}

fn template(mut spec: JobSpec) -> JobSpec {
    spec.periodic = Some(Periodic {
        enabled: true,
        specs: vec!["@daily".to_owned()],
        prohibit_overlap: false,
        time_zone: "UTC".to_owned(),
    });
    spec
}

/// A cluster of one node whose job is in `state`.
fn cluster(job_type: JobType, state: &str) -> Cluster {
    let mut cluster = Cluster::new();
    let node_id = cluster.node(fixture::node("n1").build());
    cluster.run(spec(job_type, state));
    let alloc_id = cluster.live("j")[0].id;
    cluster.report(alloc_id, ClientStatus::Running);
    if state.contains("failed") {
        cluster.report(alloc_id, ClientStatus::Failed);
    }
    match state {
        "complete" => {
            cluster.report(alloc_id, ClientStatus::Complete);
        }
        "lost" => {
            cluster.node_status(node_id, NodeStatus::Down);
        }
        "drained" => {
            drain(&mut cluster);
            cluster.settle();
            for alloc in cluster.live("j") {
                cluster.apply(
                    AllocCommand::Migrate {
                        alloc_ids: vec![alloc.id],
                        trigger: muster_domain::eval::Trigger::NodeDrain,
                    }
                    .at(cluster.now),
                );
                cluster.settle();
                cluster.report(alloc.id, ClientStatus::Complete);
            }
        }
        "template" => {
            cluster.run(template(spec(job_type, state)));
        }
        _ => {}
    }
    cluster.settle();
    if state.contains("stopped") {
        cluster.stop("j");
        cluster.report(alloc_id, ClientStatus::Complete);
        cluster.settle();
    }
    cluster
}

fn drain(cluster: &mut Cluster) {
    let node_id = cluster.state.nodes().named("n1")[0].spec.id;
    cluster.apply(
        NodeCommand::Drain {
            node_id,
            drain: Some(muster_domain::node::DrainSpec {
                deadline: Some(Duration::ZERO),
                ignore_system_jobs: false,
            }),
            mark_eligible: false,
        }
        .at(cluster.now),
    );
}

fn live_after(job_type: JobType, state: &str, command: &str) -> usize {
    let mut cluster = cluster(job_type, state);
    let spec = spec(job_type, state);
    let spec = if state == "template" {
        template(spec)
    } else {
        spec
    };
    match command {
        "run" => {
            cluster.run(spec);
        }
        "run new" => {
            cluster.run(JobSpec {
                priority: 60,
                ..spec
            });
        }
        "stop, run" => {
            cluster.stop("j");
            cluster.run(spec);
        }
        "eval" | "eval force" => {
            cluster.apply(
                JobCommand::Evaluate {
                    key: JobKey::in_default("j"),
                    force_reschedule: command == "eval force",
                }
                .at(cluster.now),
            );
            cluster.settle();
        }
        "node back" => {
            let node_id = cluster.state.nodes().named("n1")[0].spec.id;
            cluster.apply(
                NodeCommand::Drain {
                    node_id,
                    drain: None,
                    mark_eligible: true,
                }
                .at(cluster.now),
            );
            cluster.node_status(node_id, NodeStatus::Ready);
            cluster.settle();
        }
        _ => {}
    }
    cluster.live("j").len()
}

#[test]
fn commands_act_in_every_state() {
    let mut table = String::new();
    for job_type in TYPES {
        writeln!(table, "{:<16} {}", job_type.as_str(), COMMANDS.join(" | ")).unwrap();
        for state in STATES {
            if state == "template" && !job_type.is_batch() {
                continue;
            }
            write!(table, "{state:<16}").unwrap();
            for command in COMMANDS {
                let live = live_after(job_type, state, command);
                write!(table, " {live:<width$}", width = command.len() + 2).unwrap();
            }
            table.truncate(table.trim_end().len());
            table.push('\n');
        }
    }

    expect![[r"
        service          nothing | run | run new | stop, run | eval | eval force | node back
        running          1         1     1         1           1      1            1
        complete         0         0     0         1           0      0            0
        failed           0         0     0         1           0      1            0
        failed for good  0         0     0         1           0      1            0
        stopped          0         1     1         1           0      0            0
        failed, stopped  0         1     1         1           0      0            0
        lost             0         0     0         0           0      0            1
        drained          0         0     0         0           0      0            1
        batch            nothing | run | run new | stop, run | eval | eval force | node back
        running          1         1     1         1           1      1            1
        complete         0         0     1         1           0      0            0
        failed           0         0     1         1           0      1            0
        failed for good  0         0     1         1           0      1            0
        stopped          0         1     1         1           0      0            0
        failed, stopped  0         1     1         1           0      0            0
        lost             0         0     0         0           0      0            1
        drained          0         0     0         0           0      0            1
        template         0         0     0         0           0      0            0
        system           nothing | run | run new | stop, run | eval | eval force | node back
        running          1         1     1         1           1      1            1
        complete         0         0     1         1           0      0            0
        failed           0         0     1         1           0      1            0
        failed for good  0         0     1         1           0      1            0
        stopped          0         1     1         1           0      0            0
        failed, stopped  0         1     1         1           0      0            0
        lost             0         0     0         0           0      0            1
        drained          0         0     0         0           0      0            1
        sysbatch         nothing | run | run new | stop, run | eval | eval force | node back
        running          1         1     1         1           1      1            1
        complete         0         0     1         1           0      0            0
        failed           0         0     1         1           0      1            0
        failed for good  0         0     1         1           0      1            0
        stopped          0         1     1         1           0      0            0
        failed, stopped  0         1     1         1           0      0            0
        lost             0         0     0         0           0      0            1
        drained          0         0     0         0           0      0            1
        template         0         0     0         0           0      0            0
    "]]
    .assert_eq(&table);
}
