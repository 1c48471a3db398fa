use muster_domain::alloc::ClientStatus;
use muster_domain::fixture::{job, node};
use muster_domain::id::JobKey;
use muster_domain::job::JobType;
use muster_domain::node::NodeStatus;

use super::*;
use crate::fixture::Cluster;
use crate::limits;

mod recorded;
mod rules;
mod scene;

const HOUR: Duration = Duration::from_hours(1);

/// Runs every rule, slice after slice, and sums up what is freed: evaluations, allocations, jobs, nodes.
fn collect_all(cluster: &mut Cluster, commands: Vec<Command>) -> [u32; 4] {
    let mut freed = [0; 4];
    for first in commands {
        let mut command = Some(first);
        while let Some(slice) = command {
            let response = cluster.apply(slice.clone());
            if let Response::Collected {
                evals,
                allocs,
                jobs,
                nodes,
                ..
            } = response
            {
                for (sum, more) in freed.iter_mut().zip([evals, allocs, jobs, nodes]) {
                    *sum += more;
                }
            }
            command = Collector::next_slice(&slice, &response, cluster.now);
        }
    }
    freed
}

fn by_threshold(cluster: &mut Cluster) -> [u32; 4] {
    let mut collector = Collector::new(GcConfig::default(), Timestamp(0));
    let commands = collector.handle_timeout(cluster.now);
    collect_all(cluster, commands)
}

fn forced(cluster: &mut Cluster) -> [u32; 4] {
    let commands = Collector::forced(cluster.now);
    collect_all(cluster, commands)
}

/// A job that ran and was stopped, its agent having said so.
fn stopped(kind: JobType) -> Cluster {
    let mut cluster = Cluster::new();
    cluster.node(node("n1").build());
    cluster.run(job("web").job_type(kind).count(2).build());
    let running = cluster.live("web");
    cluster.stop("web");
    for alloc in running {
        cluster.report(alloc.id, ClientStatus::Complete);
    }
    cluster
}

#[test]
fn the_clock_comes_every_interval() {
    let mut collector = Collector::new(GcConfig::default(), Timestamp(0));
    let (due, _) = collector.poll_timeout().unwrap();

    assert_eq!(collector.handle_timeout(Timestamp(due.0 - 1)), []);
    assert_eq!(collector.handle_timeout(due).len(), 4);
    assert_eq!(collector.handle_timeout(due), []);
    assert_eq!(
        collector.poll_timeout().unwrap().0,
        due.plus(GcConfig::default().eval_interval)
    );
}

#[test]
fn a_stopped_job_goes_with_all_below_it() {
    let mut cluster = stopped(JobType::Service);

    assert_eq!(forced(&mut cluster), [2, 2, 1, 0]);

    assert!(cluster.state.jobs().is_empty());
    assert!(cluster.state.evals().is_empty());
    assert!(cluster.state.allocs().is_empty());
}

#[test]
fn nothing_goes_before_its_threshold() {
    let mut cluster = stopped(JobType::Service);
    assert_eq!(by_threshold(&mut cluster), [0; 4]);
    cluster.advance(HOUR);
    assert_eq!(by_threshold(&mut cluster), [0; 4]);

    cluster.advance(Duration::from_secs(1));
    assert_eq!(by_threshold(&mut cluster), [2, 2, 0, 0]);
    cluster.advance(3 * HOUR);
    assert_eq!(by_threshold(&mut cluster), [0, 0, 1, 0]);
}

#[test]
fn what_still_runs_stays_although_it_was_told_to_stop() {
    let mut cluster = Cluster::new();
    cluster.node(node("n1").build());
    cluster.run(job("web").build());
    let alloc_id = cluster.live("web")[0].id;
    cluster.report(alloc_id, ClientStatus::Running);
    cluster.stop("web");

    // The evaluation that stopped it placed nothing, so it may go.
    assert_eq!(forced(&mut cluster), [1, 0, 0, 0]);
    assert_eq!(cluster.state.allocs().len(), 1);
}

#[test]
fn a_running_job_keeps_the_evaluation_that_placed_it() {
    let mut cluster = Cluster::new();
    cluster.node(node("n1").build());
    cluster.run(job("web").build());

    assert_eq!(forced(&mut cluster), [0; 4]);
}

#[test]
fn a_finished_batch_job_keeps_its_results_for_a_while() {
    let mut cluster = Cluster::new();
    cluster.node(node("n1").build());
    cluster.run(job("sum").job_type(JobType::Batch).build());
    let alloc_id = cluster.live("sum")[0].id;
    cluster.report(alloc_id, ClientStatus::Complete);

    cluster.advance(4 * HOUR);
    assert_eq!(by_threshold(&mut cluster), [0; 4]);
    cluster.advance(Duration::from_secs(1));

    assert_eq!(by_threshold(&mut cluster), [1, 1, 1, 0]);
}

/// Its evaluation has another instance, which is live.
#[test]
fn a_dead_instance_goes_although_its_evaluation_stays() {
    let mut cluster = Cluster::new();
    let first = cluster.node(node("n1").build());
    cluster.node(node("n2").build());
    cluster.run(job("web").count(2).build());
    cluster.node_status(first, NodeStatus::Down);
    cluster.settle();

    assert_eq!(forced(&mut cluster), [0, 1, 0, 1]);
    assert_eq!(cluster.live("web").len(), 2);
}

/// Collecting it would forget that it failed, and start it before its time.
#[test]
fn a_failed_instance_stays_until_it_is_replaced() {
    let mut cluster = Cluster::new();
    cluster.node(node("n1").build());
    cluster.run(job("web").build());
    let alloc_id = cluster.live("web")[0].id;
    cluster.report(alloc_id, ClientStatus::Failed);

    assert_eq!(forced(&mut cluster), [0; 4]);
    cluster.advance(Duration::from_secs(30));
    cluster.settle();

    assert_eq!(forced(&mut cluster), [1, 1, 0, 0]);
}

#[test]
fn a_node_goes_when_nothing_is_on_it() {
    let mut cluster = Cluster::new();
    let node_id = cluster.node(node("n1").build());
    cluster.node_status(node_id, NodeStatus::Down);
    cluster.advance(24 * HOUR);
    assert_eq!(by_threshold(&mut cluster), [0; 4]);

    cluster.advance(Duration::from_secs(1));

    assert_eq!(by_threshold(&mut cluster), [0, 0, 0, 1]);
    assert!(cluster.state.nodes().is_empty());
}

#[test]
fn slices_follow_one_another_to_the_end() {
    let mut cluster = Cluster::new();
    cluster.unchecked = true;
    let jobs = limits::GC_SLICE_MAX / 2 + 1;
    for at in 0..jobs {
        let key = JobKey::in_default(format!("job-{at}"));
        let spec = Box::new(job(&key.job_id).build());
        cluster.apply(Command::RegisterJob {
            spec,
            at: cluster.now,
            check_index: None,
        });
        cluster.apply(Command::DeregisterJob {
            key,
            purge: false,
            at: cluster.now,
        });
    }
    cluster.settle();

    let [evals, _, gone, _] = forced(&mut cluster);

    assert_eq!(gone as usize, jobs);
    assert_eq!(evals as usize, 2 * jobs);
    assert_eq!(
        crate::state::check::broken(&cluster.state),
        Vec::<String>::new()
    );
}
