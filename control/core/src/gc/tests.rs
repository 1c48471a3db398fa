use std::collections::BTreeMap;

use muster_domain::alloc::ClientStatus;
use muster_domain::eval::Trigger;
use muster_domain::fixture::{job, node};
use muster_domain::id::{AllocId, EvalId, JobKey, LogIndex};
use muster_domain::job::JobType;
use muster_domain::node::NodeStatus;

use super::*;
use crate::fixture::Cluster;
use crate::fsm::{self, GcBounds, GcCursor, GcJobStep, GcKept, JobCommand};
use crate::limits;
use crate::state::{AllocView, LOOKED_UP, State, check};

mod deployments;
mod one_offs;
mod outlook;
mod recorded;
mod rules;
mod scene;

const HOUR: Duration = Duration::from_hours(1);

/// Runs every rule, slice after slice, and sums up the freed evaluations, allocations, jobs and nodes.
fn collect_all(cluster: &mut Cluster, commands: Vec<Entry>) -> [u32; 4] {
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

/// Counts the objects that a forced collection looked at and kept.
fn kept(cluster: &mut Cluster) -> BTreeMap<GcKept, u32> {
    let mut sum = BTreeMap::new();
    for first in Collector::forced(cluster.now) {
        let mut command = Some(first);
        while let Some(slice) = command {
            let response = cluster.apply(slice.clone());
            command = Collector::next_slice(&slice, &response, cluster.now);
            if let Response::Collected { kept, .. } = response {
                for (why, count) in kept {
                    *sum.entry(why).or_default() += count;
                }
            }
        }
    }
    sum
}

fn by_threshold(cluster: &mut Cluster) -> [u32; 4] {
    let mut collector = Collector::new(GcConfig::default(), Timestamp(0));
    let commands = collector.handle_timeout(cluster.now, cluster.now);
    collect_all(cluster, commands)
}

fn forced(cluster: &mut Cluster) -> [u32; 4] {
    let commands = Collector::forced(cluster.now);
    collect_all(cluster, commands)
}

/// Returns the command for the first slice of a forced collection of jobs.
fn jobs_by_force(now: Timestamp) -> Entry {
    let is_of_jobs = |entry: &Entry| {
        let Command::Gc(GcCommand::Collect { rule, .. }) = &entry.command else {
            return false;
        };
        *rule == GcRule::Jobs
    };
    let mut commands = Collector::forced(now).into_iter();
    commands.find(is_of_jobs).unwrap()
}

/// Returns a cluster with a job that ran and was stopped, as its agent reported.
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
    let at = Timestamp(0);
    let mut collector = Collector::new(GcConfig::default(), Timestamp(0));
    let (due, _) = collector.poll_timeout().unwrap();

    assert_eq!(collector.handle_timeout(Timestamp(due.0 - 1), at), []);
    assert_eq!(collector.handle_timeout(due, at).len(), 4);
    assert_eq!(collector.handle_timeout(due, at), []);
    assert_eq!(
        collector.poll_timeout().unwrap().0,
        due.plus(GcConfig::default().eval_interval)
    );
}

/// Leadership changes more often than the intervals are long: each leader still collects.
#[test]
fn a_leader_soon_collects_for_the_first_time() {
    let day = Duration::from_hours(24);
    let config = GcConfig {
        eval_interval: day,
        job_interval: Duration::from_secs(30),
        deployment_interval: day,
        node_interval: day,
        ..GcConfig::default()
    };
    let led = Timestamp(1_000);
    let mut collector = Collector::new(config, led);

    let half = led.plus(Duration::from_secs(30));
    let minute = led.plus(Duration::from_mins(1));
    assert_eq!(collector.poll_timeout().unwrap().0, half);
    assert_eq!(collector.handle_timeout(half, half).len(), 1);
    assert_eq!(collector.handle_timeout(minute, minute).len(), 4);
    assert_eq!(
        collector.poll_timeout().unwrap().0,
        minute.plus(Duration::from_secs(30))
    );
}

/// The server booted with a clock that was ahead and was set back: rows have the time to which it was set.
#[test]
fn gc_cutoffs_use_row_clock() {
    let config = GcConfig::default();
    let booted = Timestamp(1_000_000_000_000_000_000);
    let (now, at) = (booted.plus(HOUR), Timestamp(booted.0 - 1));
    let mut collector = Collector::new(config, booted);

    let commands = collector.handle_timeout(now, at);

    let cutoffs = config.cutoffs(at);
    let expected = [
        (GcRule::Jobs, cutoffs.jobs),
        (GcRule::Evals, cutoffs.evals),
        (GcRule::Deployments, cutoffs.deployments),
        (GcRule::Nodes, cutoffs.nodes),
    ];
    let expected = expected.map(|(rule, before)| {
        GcCommand::Collect {
            rule,
            before,
            batch_before: cutoffs.batch_evals,
            after: None,
        }
        .at(at)
    });
    assert_eq!(commands, expected);
    let (due, _) = collector.poll_timeout().unwrap();
    assert_eq!(due, now.plus(config.eval_interval));
}

/// Each rule has its own tick of the clock, in seconds, and its own minimum age, in hours.
#[test]
fn every_rule_has_its_own_interval_and_threshold() {
    let (secs, hours) = (Duration::from_secs, Duration::from_hours);
    let config = GcConfig {
        eval_interval: secs(2),
        eval_threshold: hours(11),
        batch_eval_threshold: hours(13),
        job_interval: secs(3),
        job_threshold: hours(17),
        deployment_interval: secs(5),
        deployment_threshold: hours(19),
        node_interval: secs(7),
        node_threshold: hours(23),
    };
    let began = Timestamp(1_000_000_000_000_000_000);
    let mut collector = Collector::new(config, began);

    let mut came = Vec::new();
    while let Some((now, _)) = collector.poll_timeout()
        && now <= began.plus(secs(7))
    {
        for command in collector.handle_timeout(now, now) {
            let Command::Gc(GcCommand::Collect {
                rule,
                before,
                batch_before,
                ..
            }) = command.command
            else {
                panic!("not a collection")
            };
            let ages = [before, batch_before].map(|cutoff| now.since(cutoff).as_secs() / 3_600);
            came.push((now.since(began).as_secs(), rule, ages));
        }
    }

    let expected = [
        (2, GcRule::Evals, [11, 13]),
        (3, GcRule::Jobs, [17, 13]),
        (4, GcRule::Evals, [11, 13]),
        (5, GcRule::Deployments, [19, 13]),
        (6, GcRule::Jobs, [17, 13]),
        (6, GcRule::Evals, [11, 13]),
        (7, GcRule::Nodes, [23, 13]),
    ];
    assert_eq!(came, expected);
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
fn rows_are_kept_until_their_threshold() {
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
fn gc_keeps_running_alloc_of_stopped_job() {
    let mut cluster = Cluster::new();
    cluster.node(node("n1").build());
    cluster.run(job("web").build());
    let alloc_id = cluster.live("web")[0].id;
    cluster.report(alloc_id, ClientStatus::Running);
    cluster.stop("web");

    // The evaluation that stopped the job placed nothing, so it may be removed.
    assert_eq!(forced(&mut cluster), [1, 0, 0, 0]);
    assert_eq!(cluster.state.allocs().len(), 1);
}

/// `web` is removed whole; `db` was asked to stop and runs; `sums` is not over.
#[test]
fn kept_rows_are_counted_by_reason() {
    let mut cluster = stopped(JobType::Service);
    cluster.run(job("db").build());
    let alloc_id = cluster.live("db")[0].id;
    cluster.report(alloc_id, ClientStatus::Running);
    cluster.stop("db");
    cluster.run(job("sums").job_type(JobType::Batch).count(2).build());
    let result = cluster.live("sums")[0].id;
    cluster.report(result, ClientStatus::Complete);

    let kept = kept(&mut cluster);

    let expected = [
        // The instance of `db`.
        (GcKept::Running, 1),
        // The evaluation of `sums`.
        (GcKept::Result, 1),
        // The job `db`, and the evaluation that placed it.
        (GcKept::Needed, 2),
    ];
    assert_eq!(kept, BTreeMap::from(expected));
}

/// Instances on both sides of a cut stay; the evaluation is counted once.
#[test]
fn gc_counts_kept_eval_once_across_slices() {
    let mut cluster = Cluster::new();
    cluster.unchecked = true;
    let spec = node("n1").cpu_mhz(10_000_000).memory_mb(10_000_000);
    cluster.node(spec.build());
    let count = u32::try_from(limits::GC_SLICE_MAX).unwrap() + 100;
    let spec = job("web").count(count).cpu_mhz(1).memory_mb(1).build();
    cluster.run(spec);
    let mut running = cluster.live("web");
    let ended = running.split_off(1);
    let (ended, last) = ended.split_at(ended.len() - 2);
    running.extend_from_slice(last);
    for alloc in &running {
        cluster.report(alloc.id, ClientStatus::Running);
    }
    cluster.stop("web");
    for alloc in ended {
        cluster.report(alloc.id, ClientStatus::Complete);
    }

    let kept = kept(&mut cluster);

    // The job, and the evaluation that placed them.
    let expected = [(GcKept::Running, 3), (GcKept::Needed, 2)];
    assert_eq!(kept, BTreeMap::from(expected));
}

#[test]
fn running_job_keeps_its_placement_evaluation() {
    let mut cluster = Cluster::new();
    cluster.node(node("n1").build());
    cluster.run(job("web").build());

    assert_eq!(forced(&mut cluster), [0; 4]);
}

#[test]
fn finished_batch_job_is_kept_until_threshold() {
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

/// The evaluation of the ended instance has another instance, which is live.
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

/// If it were removed, its failure would be lost, and it would be started before its time.
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

/// However many allocations have ended on the node, it counts as one look.
#[test]
fn node_gc_does_not_walk_dead_allocs() {
    let mut cluster = cluster_with_jobs(1);
    let node_id = cluster.state.nodes().iter().next().unwrap().spec.id;
    cluster.node_status(node_id, NodeStatus::Down);
    assert!(cluster.state.allocs_on(&node_id).count() > limits::GC_SLICE_MAX);
    LOOKED_UP.set(0);

    let nodes = Collector::forced(cluster.now).pop().unwrap();
    let response = cluster.apply(nodes);

    let Response::Collected { nodes, .. } = response else {
        panic!("{response:?}")
    };
    assert_eq!(nodes, 1);
    assert!(LOOKED_UP.get() < 10, "{}", LOOKED_UP.get());
    assert_eq!(check::broken(&cluster.state), Vec::<String>::new());
}

#[test]
fn slices_follow_one_another_to_the_end() {
    let mut cluster = Cluster::new();
    cluster.unchecked = true;
    let jobs = limits::GC_SLICE_MAX / 2 + 1;
    for at in 0..jobs {
        let key = JobKey::in_default(format!("job-{at}"));
        let spec = Box::new(job(&key.job_id).build());
        cluster.apply(
            JobCommand::Register {
                spec,
                check_index: None,
                places: None,
            }
            .at(cluster.now),
        );
        cluster.apply(JobCommand::Deregister { key }.at(cluster.now));
    }
    cluster.settle();

    let [evals, _, gone, _] = forced(&mut cluster);

    assert_eq!(gone as usize, jobs);
    assert_eq!(evals as usize, 2 * jobs);
    assert_eq!(check::broken(&cluster.state), Vec::<String>::new());
}

/// Small jobs take ten times as long as the same number of allocations that share a row.
#[test]
fn a_slice_has_few_jobs_that_are_small() {
    let mut cluster = Cluster::new();
    cluster.unchecked = true;
    let per_slice = limits::GC_SLICE_MAX / (limits::GC_COST_JOB + 2 * limits::GC_COST_EVAL);
    for at in 0..=per_slice {
        let key = JobKey::in_default(format!("job-{at}"));
        cluster.run(job(&key.job_id).count(0).build());
        cluster.apply(JobCommand::Deregister { key }.at(cluster.now));
    }
    cluster.settle();

    let first = jobs_by_force(cluster.now);
    let response = cluster.apply(first);

    let Response::Collected { jobs, evals, .. } = response else {
        panic!("{response:?}")
    };
    assert_eq!(jobs as usize, per_slice);
    assert_eq!(evals as usize, 2 * per_slice);
}

/// Batch jobs of more instances than a slice frees, all of which have ended.
fn cluster_with_jobs(jobs: usize) -> Cluster {
    let mut cluster = Cluster::new();
    cluster.unchecked = true;
    let spec = node("n1").cpu_mhz(10_000_000).memory_mb(10_000_000);
    cluster.node(spec.build());
    for at in 0..jobs {
        let count = u32::try_from(limits::GC_SLICE_MAX).unwrap() + 100;
        let spec = job(&format!("sum-{at}")).job_type(JobType::Batch);
        cluster.run(spec.count(count).cpu_mhz(1).memory_mb(1).build());
        for alloc in cluster.live(&format!("sum-{at}")) {
            cluster.report(alloc.id, ClientStatus::Complete);
        }
    }
    cluster
}

/// Applies slices of `command` up to the first after which `stop` holds.
fn until(cluster: &mut Cluster, entry: Entry, stop: impl Fn(&State) -> bool) -> Option<Entry> {
    let mut next = Some(entry);
    while let Some(entry) = next {
        let before = cluster.state.allocs().len();
        let response = cluster.apply(entry.clone());
        assert!(before - cluster.state.allocs().len() <= limits::GC_SLICE_MAX);
        assert_eq!(check::broken(&cluster.state), Vec::<String>::new());
        next = Collector::next_slice(&entry, &response, cluster.now);
        if stop(&cluster.state) {
            break;
        }
    }
    next
}

#[test]
fn a_job_of_many_instances_goes_in_slices() {
    let mut cluster = cluster_with_jobs(2);
    let jobs = jobs_by_force(cluster.now);

    let left = until(&mut cluster, jobs, |_| false);

    assert_eq!(left, None);
    assert!(cluster.state.jobs().is_empty());
    assert!(cluster.state.evals().is_empty());
    assert!(cluster.state.allocs().is_empty());
}

/// A change of the leader loses the position of the collection; another collection finishes its work.
#[test]
fn next_collection_finishes_an_unfinished_one() {
    let mut cluster = cluster_with_jobs(1);
    let jobs = jobs_by_force(cluster.now);
    until(&mut cluster, jobs, |state| state.jobs().is_empty());
    assert!(!cluster.state.allocs().is_empty());

    forced(&mut cluster);

    assert!(cluster.state.evals().is_empty());
    assert!(cluster.state.allocs().is_empty());
}

/// Between two slices a new job takes the name: its objects do not belong to the old job.
#[test]
fn a_job_registered_meanwhile_keeps_its_own() {
    let mut cluster = cluster_with_jobs(1);
    let jobs = jobs_by_force(cluster.now);
    let next = until(&mut cluster, jobs, |state| state.jobs().is_empty());
    let spec = job("sum-0").job_type(JobType::Batch).cpu_mhz(1).build();
    cluster.run(spec);
    let key = JobKey::in_default("sum-0");
    let ours = cluster.live("sum-0").len();

    until(&mut cluster, next.unwrap(), |_| false);

    assert_eq!(cluster.state.allocs().of_job(&key).count(), ours);
    assert_eq!(cluster.live("sum-0").len(), ours);
}

/// A purge removes all objects except the evaluation that is to stop the job, in slices.
#[test]
fn purge_collects_ended_allocs_and_evaluations() {
    let mut cluster = cluster_with_jobs(2);
    let key = JobKey::in_default("sum-0");
    cluster.advance(Duration::from_secs(1));
    purge(&mut cluster, "sum-0");
    let below = Collector::below(key.clone(), cluster.now);

    let left = until(&mut cluster, below, |_| false);

    assert_eq!(left, None);
    assert_eq!(cluster.state.allocs().of_job(&key).count(), 0);
    let evals = cluster.state.evals().of_job(&key);
    let triggers: Vec<Trigger> = evals.map(|eval| eval.trigger).collect();
    assert_eq!(triggers, [Trigger::JobDeregister]);
    let other = JobKey::in_default("sum-1");
    assert!(cluster.state.jobs().get(&other).is_some());
    assert!(cluster.state.allocs().of_job(&other).count() > limits::GC_SLICE_MAX);
}

fn purge(cluster: &mut Cluster, job_id: &str) {
    cluster.apply(
        JobCommand::Purge {
            key: JobKey::in_default(job_id),
        }
        .at(cluster.now),
    );
}

#[test]
fn alloc_running_at_purge_is_collected_after_exit() {
    let mut cluster = Cluster::new();
    cluster.node(node("n1").build());
    cluster.run(job("web").count(2).build());
    let allocs = cluster.live("web");
    cluster.report(allocs[0].id, ClientStatus::Running);
    cluster.report(allocs[1].id, ClientStatus::Complete);
    cluster.advance(Duration::from_secs(1));
    purge(&mut cluster, "web");
    let below = Collector::below(JobKey::in_default("web"), cluster.now);
    cluster.settle();

    cluster.apply(below);

    let left = |cluster: &Cluster| -> Vec<AllocId> {
        cluster.state.allocs().iter().map(AllocView::id).collect()
    };
    assert_eq!(left(&cluster), [allocs[0].id]);
    cluster.report(allocs[0].id, ClientStatus::Complete);
    cluster.advance(HOUR);
    by_threshold(&mut cluster);
    assert_eq!(left(&cluster), [allocs[0].id]);
    cluster.advance(Duration::from_secs(1));
    by_threshold(&mut cluster);
    assert_eq!(left(&cluster), []);
    assert!(cluster.state.evals().get(&allocs[0].eval_id).is_none());
}

/// More objects than a slice looks at stay; the objects behind them are still reached.
#[test]
fn a_purge_passes_running_allocations() {
    let mut cluster = Cluster::new();
    cluster.unchecked = true;
    let spec = node("n1").cpu_mhz(10_000_000).memory_mb(10_000_000);
    cluster.node(spec.build());
    let count = u32::try_from(limits::GC_LOOKED_AT_MAX).unwrap() + 1;
    let spec = job("web").count(count).cpu_mhz(1).memory_mb(1).build();
    cluster.run(spec);
    let key = JobKey::in_default("web");
    let last = cluster
        .state
        .allocs()
        .of_job(&key)
        .map(AllocView::id)
        .last();
    cluster.report(last.unwrap(), ClientStatus::Complete);
    cluster.advance(Duration::from_secs(1));
    purge(&mut cluster, "web");

    let first = Collector::below(key, cluster.now);
    let response = cluster.apply(first.clone());
    let second = Collector::next_slice(&first, &response, cluster.now).unwrap();
    assert_eq!(cluster.state.allocs().len(), count as usize);
    let response = cluster.apply(second.clone());

    assert_eq!(cluster.state.allocs().len(), count as usize - 1);
    assert_eq!(Collector::next_slice(&second, &response, cluster.now), None);
}

/// Returns the number of evaluations removed by their rule, and the number of entries that took, at eight looks each.
fn evals_in_short_slices(cluster: &mut Cluster) -> (u32, usize) {
    let bounds = GcBounds {
        looked_at_max: 8,
        ..GcBounds::default()
    };
    let is_of_evals = |entry: &Entry| {
        matches!(
            entry.command,
            Command::Gc(GcCommand::Collect {
                rule: GcRule::Evals,
                ..
            })
        )
    };
    let mut next = Collector::forced(cluster.now).into_iter().find(is_of_evals);
    let (mut freed, mut slices) = (0, 0);
    while let Some(command) = next {
        let index = LogIndex(cluster.state.applied().0 + 1);
        let applied = fsm::apply_within(&mut cluster.state, index, command.clone(), bounds);
        assert_eq!(check::broken(&cluster.state), Vec::<String>::new());
        if let Response::Collected { evals, .. } = applied.response {
            freed += evals;
        }
        slices += 1;
        next = Collector::next_slice(&command, &applied.response, cluster.now);
    }
    (freed, slices)
}

/// Forty evaluations of an existing batch job cost one look. When another job has its name, each is looked at.
#[test]
fn gc_checks_kept_batch_evals_once_per_job() {
    let mut cluster = Cluster::new();
    cluster.node(node("n1").build());
    let spec = || job("sums").job_type(JobType::Batch).build();
    cluster.run(spec());
    for _ in 0..39 {
        let command = JobCommand::Evaluate {
            key: JobKey::in_default("sums"),
            force_reschedule: false,
        }
        .at(cluster.now);
        cluster.apply(command);
        cluster.settle();
    }
    let result = cluster.live("sums")[0].id;
    cluster.report(result, ClientStatus::Complete);
    let evals = cluster.state.evals().len();
    assert!(evals >= 40, "{evals}");

    assert_eq!(evals_in_short_slices(&mut cluster), (0, 1));
    purge(&mut cluster, "sums");
    cluster.run(spec());
    let (freed, slices) = evals_in_short_slices(&mut cluster);

    // They stay as long as a job of the name exists; the result is removed.
    assert!(freed == 0 && slices > 4, "{freed} in {slices}");
    assert!(cluster.state.allocs().get(&result).is_none());
}

/// A job that changes while it is looked at is not removed because of its earlier state.
#[test]
fn job_changed_during_gc_lookup_is_kept() {
    let mut cluster = cluster_with_jobs(1);
    let key = JobKey::in_default("sum-0");
    let eval_id = cluster.state.evals().of_job(&key).next().unwrap().id;
    let looked = GcCommand::Collect {
        rule: GcRule::Jobs,
        before: Timestamp(u64::MAX),
        batch_before: Timestamp(u64::MAX),
        after: Some(GcCursor::Job {
            at: cluster.state.jobs().get(&key).unwrap().current.submit_time,
            key: key.clone(),
            step: GcJobStep::Look {
                eval_id,
                alloc: u64::MAX,
                index: LogIndex(1),
            },
        }),
    }
    .at(cluster.now);

    cluster.apply(looked);

    assert!(cluster.state.jobs().get(&key).is_some());
}

/// A slice ended within one evaluation, which may be removed when the next slice begins.
#[test]
fn gc_resumes_after_cursor_of_removed_eval() {
    let mut cluster = Cluster::new();
    cluster.node(node("n1").build());
    cluster.run(job("web").build());
    cluster.stop("web");
    let eval = cluster.state.evals().iter().map(|eval| eval.modify_time);
    let at = Timestamp(eval.min().unwrap().0 - 1);
    let rest = GcCommand::Collect {
        rule: GcRule::Evals,
        before: Timestamp(u64::MAX),
        batch_before: Timestamp(u64::MAX),
        after: Some(GcCursor::Eval {
            at,
            eval_id: EvalId([7; 16]),
            alloc: u64::MAX,
        }),
    }
    .at(cluster.now);

    cluster.apply(rest);

    assert!(cluster.state.allocs().is_empty());
    assert!(cluster.state.evals().is_empty());
}
