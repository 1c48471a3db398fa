use muster_domain::fixture::{job, node};
use muster_domain::id::AllocId;
use muster_domain::job::JobSpec;

use super::*;
use crate::fixture::Cluster;
use crate::fsm::{JobCommand, Response};

const SECOND: Duration = Duration::from_secs(1);

/// A cluster whose broker the test drives, with an evaluation for each job.
fn with_jobs(jobs: &[(&str, u8)]) -> Cluster {
    let mut cluster = Cluster::new();
    for (job_id, priority) in jobs {
        register(&mut cluster, job(job_id).priority(*priority).build());
    }
    cluster
}

fn register(cluster: &mut Cluster, spec: JobSpec) -> EvalId {
    let at = cluster.now;
    let command = JobCommand::Register {
        spec: Box::new(spec),
        check_index: None,
        places: None,
    }
    .at(at);
    let response = cluster.apply(command);
    let Response::JobRegistered { eval_id, .. } = response else {
        panic!("{response:?}")
    };
    eval_id.unwrap()
}

fn job_of(cluster: &Cluster, delivery: Delivery) -> String {
    cluster
        .state
        .evals()
        .get(&delivery.eval_id)
        .unwrap()
        .job
        .job_id
        .clone()
}

#[test]
fn higher_priority_goes_first_then_the_older() {
    let mut cluster = with_jobs(&[("a", 50), ("b", 50), ("c", 90), ("d", 10)]);

    let mut order = String::new();
    while let Some(delivery) = cluster.broker.dequeue(cluster.now) {
        order += &job_of(&cluster, delivery);
    }

    assert_eq!(order, "cabd");
}

#[test]
fn one_eval_per_job_is_outstanding() {
    let mut cluster = with_jobs(&[("a", 50), ("a", 50)]);

    let first = cluster.broker.dequeue(cluster.now).unwrap();
    assert_eq!(cluster.broker.dequeue(cluster.now), None);
    cluster.broker.ack(&first.eval_id, first.token);

    assert!(cluster.broker.dequeue(cluster.now).is_some());
}

#[test]
fn only_newest_queued_eval_of_job_is_processed() {
    let mut cluster = with_jobs(&[("a", 50)]);
    let first = cluster.broker.dequeue(cluster.now).unwrap();
    let older = register(&mut cluster, job("a").count(2).build());
    let newest = register(&mut cluster, job("a").count(3).build());

    cluster.broker.ack(&first.eval_id, first.token);

    assert_eq!(cluster.broker.dequeue(cluster.now).unwrap().eval_id, newest);
    let updates = cluster.broker.take_updates();
    assert_eq!(updates.len(), 1);
    assert_eq!(
        (updates[0].eval_id, updates[0].status),
        (older, EvalStatus::Canceled)
    );
}

#[test]
fn an_old_token_proves_nothing() {
    let mut cluster = with_jobs(&[("a", 50)]);
    let first = cluster.broker.dequeue(cluster.now).unwrap();
    cluster
        .broker
        .nack(&first.eval_id, first.token, cluster.now);
    cluster.advance(SECOND);
    cluster.broker.handle_timeout(cluster.now);
    let second = cluster.broker.dequeue(cluster.now).unwrap();

    cluster.broker.ack(&first.eval_id, first.token);

    assert!(!cluster.broker.is_current(&first.eval_id, first.token));
    assert!(cluster.broker.is_current(&second.eval_id, second.token));
    assert_eq!(second.attempt, 2);
}

#[test]
fn nack_timeout_exhausts_delivery_limit() {
    let mut cluster = with_jobs(&[("a", 50)]);
    let mut deliveries = 0;
    let mut eval_id = None;
    while let Some((at, _)) = {
        while let Some(delivery) = cluster.broker.dequeue(cluster.now) {
            deliveries += 1;
            eval_id = Some(delivery.eval_id);
        }
        cluster.broker.poll_timeout()
    } {
        cluster.now = at;
        cluster.broker.handle_timeout(at);
    }

    let updates = cluster.broker.take_updates();

    assert_eq!(deliveries, limits::DELIVERIES_MAX);
    assert_eq!(updates.len(), 1);
    assert_eq!(
        (Some(updates[0].eval_id), updates[0].status),
        (eval_id, EvalStatus::Failed)
    );
    assert!(matches!(updates[0].next, NextEval::FailedFollowUp { .. }));
    assert!(cluster.broker.is_empty());
}

#[test]
fn an_evaluation_that_failed_is_followed_up() {
    let mut cluster = with_jobs(&[("a", 50)]);
    for _ in 0..limits::DELIVERIES_MAX {
        cluster.advance(Duration::from_mins(1));
        cluster.broker.handle_timeout(cluster.now);
        let delivery = cluster.broker.dequeue(cluster.now).unwrap();
        cluster
            .broker
            .nack(&delivery.eval_id, delivery.token, cluster.now);
    }
    cluster.node(node("n1").build());

    cluster.settle();
    assert_eq!(cluster.live("a").len(), 0);
    cluster.advance(Duration::from_mins(1));
    cluster.settle();

    assert_eq!(cluster.live("a").len(), 1);
}

#[test]
fn repeatedly_refused_plan_fails_eval() {
    let mut cluster = with_jobs(&[("a", 50)]);
    for _ in 0..limits::PLAN_RETRIES_MAX {
        let delivery = cluster.broker.dequeue(cluster.now).unwrap();
        assert_eq!(
            delivery.attempt, 1,
            "a refusal is not a fault of the worker's"
        );
        cluster.broker.retry(&delivery.eval_id, false, cluster.now);
    }
    assert_eq!(cluster.broker.take_updates(), []);
    let delivery = cluster.broker.dequeue(cluster.now).unwrap();

    cluster.broker.retry(&delivery.eval_id, false, cluster.now);

    assert_eq!(cluster.broker.take_updates()[0].status, EvalStatus::Failed);
}

#[test]
fn progress_buys_new_attempts() {
    let mut cluster = with_jobs(&[("a", 50)]);

    for round in 0..4 * limits::PLAN_RETRIES_MAX {
        let delivery = cluster.broker.dequeue(cluster.now).unwrap();
        cluster
            .broker
            .retry(&delivery.eval_id, round % 2 == 0, cluster.now);
    }

    assert_eq!(cluster.broker.take_updates(), []);
    assert_eq!(cluster.broker.ready(), 1);
}

/// All data of a broker follow from the state.
#[test]
fn a_new_leader_finds_all_work_again() {
    let mut cluster = with_jobs(&[("a", 50), ("b", 70)]);
    cluster.settle();
    register(&mut cluster, job("c").build());
    let mut broker = Broker::new(BrokerConfig::default());

    broker.lead(&cluster.state, cluster.now);

    // Room may have come free before this server was leader, so blocked evaluations are processed once more.
    let mut found = Vec::new();
    while let Some(delivery) = broker.dequeue(cluster.now) {
        found.push(job_of(&cluster, delivery));
    }
    assert_eq!(found, ["b", "a", "c"]);
}

#[test]
fn an_evaluation_waits_for_its_time() {
    let mut cluster = with_jobs(&[]);
    cluster.node(node("n1").build());
    cluster.run(job("a").build());
    let alloc_id: AllocId = cluster.live("a")[0].id;
    cluster.report(alloc_id, muster_domain::alloc::ClientStatus::Failed);

    assert_eq!(cluster.broker.dequeue(cluster.now), None);
    let (at, _) = cluster.broker.poll_timeout().unwrap();
    assert_eq!(at, cluster.now.plus(Duration::from_secs(30)));
    cluster.broker.handle_timeout(at);

    assert!(cluster.broker.dequeue(at).is_some());
}

#[test]
fn evaluation_set_aside_fails_for_good() {
    let mut cluster = with_jobs(&[("a", 50)]);
    let key = JobKey::in_default("a");
    let eval_id = cluster.state.evals().open_of_job(&key).next().unwrap().id;

    cluster.broker.set_aside(eval_id, "it ended the server");

    assert_eq!(cluster.broker.dequeue(cluster.now), None);
    let updates = cluster.broker.take_updates();
    assert_eq!(updates.len(), 1);
    assert_eq!(updates[0].status, EvalStatus::Failed);
    assert_eq!(updates[0].next, NextEval::Nothing);
    assert_eq!(updates[0].description, "it ended the server");
}
