//! The time from which an allocation may be removed: a table, checked by collections at that time and just before.

use std::time::Duration;

use muster_domain::alloc::{ClientStatus, DesiredStatus};
use muster_domain::eval::EvalStatus;
use muster_domain::id::{JobKey, LogIndex, Timestamp};
use muster_domain::job::{JobStatus, JobType};

use super::rules::{ALLOCATIONS, EVAL, MINUTE, ago, ended, spec};
use super::scene::{AllocBuilder, JOB, NOW, StateBuilder};
use super::{Collector, GcConfig, HOUR};
use crate::fsm::{GcKept, GcOutlook};
use crate::limits;

/// Returns the forecast for the first allocation.
fn outlook(scene: &StateBuilder) -> GcOutlook {
    let alloc = scene.state.allocs().get(&scene.allocs[0]).unwrap();
    GcOutlook::of(&scene.state, alloc, &GcConfig::default(), NOW)
}

/// Returns the forecast for just after the duration `while_` from now, because rules require that an age is exceeded.
fn after(while_: Duration, until_then: GcKept) -> GcOutlook {
    GcOutlook::From {
        from: Timestamp(NOW.plus(while_).0 + 1),
        until_then,
    }
}

type Case = (
    &'static str,
    JobType,
    fn(&mut StateBuilder, &mut AllocBuilder),
    GcOutlook,
);

/// Returns the cases by type of the job, which was submitted long ago and is not over; its evaluation ended two days
/// ago.
fn cases() -> Vec<Case> {
    vec![
        (
            "live",
            JobType::Service,
            |_, put| put.client = ClientStatus::Running,
            GcOutlook::Kept(GcKept::Live),
        ),
        (
            "told to stop, still running",
            JobType::Service,
            |_, put| (put.desired, put.client) = (DesiredStatus::Stop, ClientStatus::Running),
            GcOutlook::Kept(GcKept::Running),
        ),
        (
            "failed, not replaced yet",
            JobType::Service,
            |_, _| {},
            GcOutlook::Kept(GcKept::Replaceable),
        ),
        (
            "failed, its attempts count again in half an hour",
            JobType::Service,
            |_, put| put.reschedules = vec![ago(30 * MINUTE)],
            after(30 * MINUTE, GcKept::Replaceable),
        ),
        (
            "complete for half an hour",
            JobType::Service,
            |_, put| (put.client, put.modified) = (ClientStatus::Complete, ago(30 * MINUTE)),
            after(30 * MINUTE, GcKept::Young),
        ),
        (
            "complete, its evaluation for half an hour",
            JobType::Service,
            |scene, put| {
                put.client = ClientStatus::Complete;
                let status = EvalStatus::Complete;
                scene.eval(EVAL, JOB, JobType::Service, status, ago(30 * MINUTE));
            },
            after(30 * MINUTE, GcKept::Young),
        ),
        (
            "result of a batch job that goes on",
            JobType::Batch,
            |_, put| put.client = ClientStatus::Complete,
            GcOutlook::Kept(GcKept::Result),
        ),
        (
            "result of a batch job that has ended",
            JobType::Batch,
            |scene, put| {
                put.client = ClientStatus::Complete;
                put.modified = ago(HOUR);
                scene.job(spec(JobType::Batch), 1, false, JobStatus::Dead);
            },
            after(3 * HOUR, GcKept::Young),
        ),
        (
            "of a batch job that is gone",
            JobType::Batch,
            |scene, put| {
                put.modified = ago(HOUR);
                scene
                    .state
                    .jobs
                    .remove(&JobKey::in_default(JOB), LogIndex(1));
            },
            after(23 * HOUR, GcKept::Young),
        ),
    ]
}

#[test]
fn alloc_outlook_names_time_or_kept_reason() {
    for (what, kind, change, expected) in cases() {
        let (mut scene, mut put) = ended(kind);
        change(&mut scene, &mut put);
        scene.alloc(&put);

        assert_eq!(outlook(&scene), expected, "{what}");
    }
}

/// Returns whether a collection at the given time removes the first allocation.
fn is_collected(scene: &StateBuilder, at: Timestamp) -> bool {
    let mut collector = Collector::new(GcConfig::default(), Timestamp(0));
    let state = scene.after(collector.handle_timeout(at, at));
    state.allocs().get(&scene.allocs[0]).is_none()
}

/// Returns whether a collection at that time removes the allocation and one a moment before does not. An allocation
/// that stays must stay for years.
fn holds(scene: &StateBuilder) -> bool {
    match outlook(scene) {
        GcOutlook::From { from, .. } => {
            is_collected(scene, from) && !is_collected(scene, Timestamp(from.0 - 1))
        }
        GcOutlook::Kept(_) => !is_collected(scene, NOW.plus(100_000 * HOUR)),
    }
}

#[test]
fn collections_keep_to_the_outlook() {
    let types = [JobType::Service, JobType::Batch, JobType::System];
    let jobs = [
        (false, JobStatus::Running),
        (false, JobStatus::Dead),
        (true, JobStatus::Running),
        (true, JobStatus::Dead),
    ];
    let mut wrong = Vec::new();
    for (what, change, _) in ALLOCATIONS {
        for kind in types {
            for (stop, status) in jobs {
                for (eval_age, job_age) in [(1, 5), (3, 2), (30, 1)] {
                    let (mut scene, mut put) = ended(kind);
                    let submitted = ago(job_age * HOUR).0;
                    put.job_create_index = submitted;
                    scene.job(spec(kind), submitted, stop, status);
                    let ended = ago(eval_age * HOUR);
                    scene.eval(EVAL, JOB, kind, EvalStatus::Complete, ended);
                    change(&mut scene, &mut put);
                    scene.alloc(&put);
                    if !holds(&scene) {
                        wrong.push((*what, kind, stop, status, eval_age, outlook(&scene)));
                    }
                }
            }
        }
    }
    assert_eq!(wrong, Vec::new());
}

/// The job has more objects below it than one forecast looks at: there is no time, and the reason stays.
#[test]
fn gc_outlook_omits_time_above_instance_limit() {
    let (mut scene, put) = ended(JobType::Batch);
    scene.job(spec(JobType::Batch), 1, false, JobStatus::Dead);
    for _ in 0..limits::GC_LOOKED_AT_MAX - 1 {
        scene.alloc(&put);
    }
    assert_eq!(
        outlook(&scene),
        GcOutlook::From {
            from: Timestamp(put.modified.plus(4 * HOUR).0 + 1),
            until_then: GcKept::Young
        }
    );

    scene.alloc(&put);

    assert_eq!(outlook(&scene), GcOutlook::Kept(GcKept::Result));
}
