//! A table of the objects that are removed and those that stay, over virtual time.

use std::time::Duration;

use muster_domain::alloc::{ClientStatus, DesiredStatus};
use muster_domain::deployment::DeploymentStatus;
use muster_domain::eval::EvalStatus;
use muster_domain::fixture::job;
use muster_domain::id::{DeploymentId, EvalId, NodeId, Timestamp};
use muster_domain::job::{JobSpec, JobStatus, JobType, Parameterized, PayloadUse, Periodic};
use muster_domain::node::NodeStatus;

use super::scene::{AllocBuilder, JOB, NOW, StateBuilder};
use super::{Collector, GcConfig, HOUR};
use crate::state::State;

pub(super) const EVAL: EvalId = EvalId([1; 16]);
const FOLLOW_UP: EvalId = EvalId([2; 16]);
const NODE: NodeId = NodeId([1; 16]);
const DEPLOYMENT: DeploymentId = DeploymentId([1; 16]);
pub(super) const MINUTE: Duration = Duration::from_mins(1);

pub(super) fn ago(age: Duration) -> Timestamp {
    Timestamp(NOW.0 - u64::try_from(age.as_nanos()).unwrap())
}

/// Collects the objects that are over by default thresholds at [`NOW`].
fn collected(scene: &StateBuilder) -> State {
    let mut collector = Collector::new(GcConfig::default(), Timestamp(0));
    scene.after(collector.handle_timeout(NOW, NOW))
}

/// A live job of this type, with an evaluation and an allocation that ended two days ago, and a node.
pub(super) fn ended(kind: JobType) -> (StateBuilder, AllocBuilder) {
    let mut scene = StateBuilder::default();
    scene.job(spec(kind), 1, false, JobStatus::Running);
    scene.node(NODE, NodeStatus::Ready, ago(48 * HOUR));
    scene.eval(EVAL, JOB, kind, EvalStatus::Complete, ago(48 * HOUR));
    let put = AllocBuilder {
        eval_id: EVAL,
        node_id: NODE,
        deployment: None,
        job_create_index: 1,
        desired: DesiredStatus::Run,
        client: ClientStatus::Failed,
        modified: ago(48 * HOUR),
        replaced: false,
        follow_up: None,
        reschedules: Vec::new(),
    };
    (scene, put)
}

/// Two attempts an hour.
pub(super) fn spec(kind: JobType) -> JobSpec {
    let mut spec = job(JOB).job_type(kind).build();
    let policy = &mut spec.groups[0].reschedule;
    (policy.attempts, policy.interval, policy.unlimited) = (2, HOUR, false);
    spec
}

pub(super) type Allocation = (&'static str, fn(&mut StateBuilder, &mut AllocBuilder), bool);

/// Cases of allocations of a service that is not over.
pub(super) const ALLOCATIONS: &[Allocation] = &[
    ("failed, never replaced", |_, _| {}, false),
    ("lost", |_, put| put.client = ClientStatus::Lost, true),
    (
        "complete",
        |_, put| put.client = ClientStatus::Complete,
        true,
    ),
    ("live", |_, put| put.client = ClientStatus::Running, false),
    (
        "told to stop, still running",
        |_, put| (put.desired, put.client) = (DesiredStatus::Stop, ClientStatus::Running),
        false,
    ),
    (
        "told to stop, out of reach",
        |_, put| (put.desired, put.client) = (DesiredStatus::Stop, ClientStatus::Unknown),
        false,
    ),
    (
        "told to stop before it was started",
        |_, put| (put.desired, put.client) = (DesiredStatus::Stop, ClientStatus::Pending),
        true,
    ),
    (
        "failed and told to stop",
        |_, put| put.desired = DesiredStatus::Stop,
        true,
    ),
    (
        "failed and evicted",
        |_, put| put.desired = DesiredStatus::Evict,
        false,
    ),
    ("failed and replaced", |_, put| put.replaced = true, true),
    (
        "ended an hour ago to the moment",
        |_, put| {
            put.replaced = true;
            put.modified = Timestamp(ago(HOUR).0);
        },
        false,
    ),
    (
        "ended more than an hour ago",
        |_, put| {
            put.replaced = true;
            put.modified = Timestamp(ago(HOUR).0 - 1);
        },
        true,
    ),
    (
        "last replaced within the interval",
        |_, put| put.reschedules = vec![ago(3 * HOUR), ago(HOUR)],
        false,
    ),
    (
        "last replaced before the interval",
        |_, put| put.reschedules = vec![ago(3 * HOUR), ago(HOUR + MINUTE)],
        true,
    ),
    (
        "without end, last replaced before the interval",
        |scene, put| {
            put.reschedules = vec![ago(3 * HOUR)];
            let mut spec = spec(JobType::Service);
            spec.groups[0].reschedule.unlimited = true;
            scene.job(spec, 1, false, JobStatus::Running);
        },
        false,
    ),
    (
        "never to be replaced",
        |scene, _| {
            let mut spec = spec(JobType::Service);
            spec.groups[0].reschedule.attempts = 0;
            scene.job(spec, 1, false, JobStatus::Running);
        },
        true,
    ),
    (
        "of a group that is gone",
        |scene, _| {
            let mut spec = spec(JobType::Service);
            "other".clone_into(&mut spec.groups[0].name);
            scene.job(spec, 1, false, JobStatus::Running);
        },
        true,
    ),
    (
        "of a stopped job",
        |scene, _| scene.job(spec(JobType::Service), 1, true, JobStatus::Running),
        true,
    ),
    (
        "of a dead job",
        |scene, _| scene.job(spec(JobType::Service), 1, false, JobStatus::Dead),
        true,
    ),
    (
        "complete, its follow-up still to come",
        |scene, put| {
            scene.eval(
                FOLLOW_UP,
                JOB,
                JobType::Service,
                EvalStatus::Pending,
                ago(MINUTE),
            );
            (put.client, put.follow_up) = (ClientStatus::Complete, Some(FOLLOW_UP));
        },
        false,
    ),
    (
        "complete, its follow-up over",
        |scene, put| {
            scene.eval(
                FOLLOW_UP,
                JOB,
                JobType::Service,
                EvalStatus::Complete,
                ago(MINUTE),
            );
            (put.client, put.follow_up) = (ClientStatus::Complete, Some(FOLLOW_UP));
        },
        true,
    ),
    (
        "its evaluation is still open",
        |scene, put| {
            put.replaced = true;
            scene.eval(
                EVAL,
                JOB,
                JobType::Service,
                EvalStatus::Blocked,
                ago(48 * HOUR),
            );
        },
        false,
    ),
];

#[test]
fn allocations_of_a_service_go_by_the_table() {
    let mut wrong = Vec::new();
    for (what, change, expected) in ALLOCATIONS {
        let (mut scene, mut put) = ended(JobType::Service);
        change(&mut scene, &mut put);
        scene.alloc(&put);

        let goes = collected(&scene).allocs().is_empty();

        if goes != *expected {
            wrong.push(*what);
        }
    }
    assert_eq!(wrong, Vec::<&str>::new());
}

#[test]
fn replaced_alloc_is_collected_before_needed_eval() {
    let (mut scene, put) = ended(JobType::Service);
    scene.alloc(&AllocBuilder {
        client: ClientStatus::Running,
        ..put.clone()
    });
    scene.alloc(&AllocBuilder {
        replaced: true,
        ..put
    });

    let state = collected(&scene);

    assert_eq!((state.evals().len(), state.allocs().len()), (1, 1));
}

/// Cases by type, stop, status and age of the evaluation in hours: whether it is removed with its allocation.
const EVALUATIONS: &[(JobType, bool, JobStatus, u32, bool)] = &[
    (JobType::Service, true, JobStatus::Dead, 2, true),
    (JobType::Service, true, JobStatus::Dead, 1, false),
    (JobType::System, true, JobStatus::Dead, 2, true),
    (JobType::Batch, true, JobStatus::Dead, 25, true),
    (JobType::Batch, true, JobStatus::Dead, 24, false),
    (JobType::SysBatch, true, JobStatus::Dead, 25, true),
    (JobType::SysBatch, true, JobStatus::Dead, 24, false),
    // The results stay with the job, at any age.
    (JobType::Batch, false, JobStatus::Running, 100, false),
    (JobType::Batch, true, JobStatus::Pending, 100, false),
];

#[test]
fn evaluations_go_by_the_age_of_their_type() {
    let mut wrong = Vec::new();
    for case in EVALUATIONS {
        let (kind, stop, status, hours, expected) = *case;
        let (mut scene, put) = ended(kind);
        // Submitted a moment ago, so that the job itself stays.
        scene.job(spec(kind), NOW.0, stop, status);
        scene.eval(EVAL, JOB, kind, EvalStatus::Complete, ago(hours * HOUR));
        let (client, modified) = (ClientStatus::Complete, ago(hours * HOUR));
        let job_create_index = NOW.0;
        scene.alloc(&AllocBuilder {
            job_create_index,
            client,
            modified,
            ..put
        });

        let state = collected(&scene);

        if state.evals().is_empty() != expected || state.allocs().is_empty() != expected {
            wrong.push(case);
        }
    }
    assert_eq!(wrong, Vec::<&(JobType, bool, JobStatus, u32, bool)>::new());
}

/// A job was purged and registered again: objects of the earlier job are not its results.
#[test]
fn gc_removes_results_of_earlier_job_incarnation() {
    let (mut scene, put) = ended(JobType::Batch);
    scene.job(spec(JobType::Batch), 5, false, JobStatus::Running);
    let client = ClientStatus::Complete;
    scene.alloc(&AllocBuilder {
        client,
        job_create_index: 1,
        ..put.clone()
    });
    scene.alloc(&AllocBuilder {
        client,
        job_create_index: 5,
        ..put
    });

    let state = collected(&scene);

    assert!(state.allocs().get(&scene.allocs[0]).is_none());
    assert!(state.allocs().get(&scene.allocs[1]).is_some());
    assert_eq!(state.evals().len(), 1);
}

type JobCase = (
    &'static str,
    JobType,
    bool,
    JobStatus,
    fn(&mut JobSpec),
    bool,
);

/// Submitted five hours ago, with nothing below them.
const JOBS: &[JobCase] = &[
    (
        "a service that runs",
        JobType::Service,
        false,
        JobStatus::Running,
        |_| {},
        false,
    ),
    (
        "a service that is dead",
        JobType::Service,
        false,
        JobStatus::Dead,
        |_| {},
        false,
    ),
    (
        "a stopped service",
        JobType::Service,
        true,
        JobStatus::Dead,
        |_| {},
        true,
    ),
    (
        "a service that stops",
        JobType::Service,
        true,
        JobStatus::Running,
        |_| {},
        false,
    ),
    (
        "a system job",
        JobType::System,
        false,
        JobStatus::Dead,
        |_| {},
        false,
    ),
    (
        "a finished batch job",
        JobType::Batch,
        false,
        JobStatus::Dead,
        |_| {},
        true,
    ),
    (
        "a finished sysbatch job",
        JobType::SysBatch,
        false,
        JobStatus::Dead,
        |_| {},
        true,
    ),
    (
        "a batch job that runs",
        JobType::Batch,
        false,
        JobStatus::Running,
        |_| {},
        false,
    ),
    (
        "a periodic job",
        JobType::Batch,
        false,
        JobStatus::Dead,
        periodic,
        false,
    ),
    (
        "a stopped periodic job",
        JobType::Batch,
        true,
        JobStatus::Dead,
        periodic,
        true,
    ),
    (
        "a parameterized job",
        JobType::Batch,
        false,
        JobStatus::Dead,
        parameterized,
        false,
    ),
    (
        "a stopped parameterized job",
        JobType::Batch,
        true,
        JobStatus::Dead,
        parameterized,
        true,
    ),
];

fn periodic(spec: &mut JobSpec) {
    spec.periodic = Some(Periodic {
        enabled: true,
        specs: vec!["@daily".to_owned()],
        prohibit_overlap: false,
        time_zone: "UTC".to_owned(),
    });
}

fn parameterized(spec: &mut JobSpec) {
    spec.parameterized = Some(Parameterized {
        payload: PayloadUse::Optional,
        meta_required: Vec::new(),
        meta_optional: Vec::new(),
    });
}

#[test]
fn jobs_go_by_the_table() {
    let mut wrong = Vec::new();
    for (what, kind, stop, status, change, expected) in JOBS {
        let mut spec = spec(*kind);
        change(&mut spec);
        for (age, old) in [(5 * HOUR, true), (4 * HOUR, false)] {
            let mut scene = StateBuilder::default();
            scene.job(spec.clone(), ago(age).0, *stop, *status);

            let goes = collected(&scene).jobs().is_empty();

            if goes != (*expected && old) {
                wrong.push(*what);
            }
        }
    }
    assert_eq!(wrong, Vec::<&str>::new());
}

/// A job of any type stays as long as one of its versions has a tag, even in a forced collection.
#[test]
fn a_job_with_a_tagged_version_stays() {
    for (tags, expected) in [(0, true), (1, false)] {
        let mut scene = StateBuilder::default();
        scene.job(spec(JobType::Batch), 1, true, JobStatus::Dead);
        scene.tag(tags);

        let by_age = collected(&scene).jobs().is_empty();
        let by_force = scene.after(Collector::forced(NOW)).jobs().is_empty();

        assert_eq!((by_age, by_force), (expected, expected), "{tags} tags");
    }
}

/// Cases by age of the evaluation, status and age of the allocation, in hours, of a batch job that ended.
const BELOW: &[(u32, ClientStatus, u32, bool)] = &[
    (5, ClientStatus::Complete, 5, true),
    (5, ClientStatus::Failed, 5, true),
    (4, ClientStatus::Complete, 5, false),
    (5, ClientStatus::Complete, 4, false),
    (5, ClientStatus::Running, 5, false),
];

#[test]
fn a_job_goes_only_with_everything_below_it() {
    for case in BELOW {
        let (eval_age, client, alloc_age, expected) = *case;
        let (mut scene, put) = ended(JobType::Batch);
        scene.job(spec(JobType::Batch), 1, false, JobStatus::Dead);
        scene.eval(
            EVAL,
            JOB,
            JobType::Batch,
            EvalStatus::Complete,
            ago(eval_age * HOUR),
        );
        scene.deployment(DEPLOYMENT, true, DeploymentStatus::Successful, NOW);
        scene.alloc(&AllocBuilder {
            client,
            modified: ago(alloc_age * HOUR),
            ..put
        });

        let state = collected(&scene);

        let left = [
            state.jobs().len(),
            state.evals().len(),
            state.allocs().len(),
            state.deployments().len(),
        ];
        assert_eq!(left, [usize::from(!expected); 4], "{case:?}");
    }
}

/// Cases by status, age in minutes, allocation status, whether it is of the job's current version and whether the job
/// is stopped.
const DEPLOYMENTS: &[(DeploymentStatus, u32, ClientStatus, bool, bool, bool)] = {
    use ClientStatus::{Complete as Ended, Running as Runs};
    use DeploymentStatus::{Cancelled, Failed, Paused, Running, Successful};

    &[
        (Successful, 61, Ended, false, false, true),
        (Failed, 61, Ended, false, false, true),
        (Cancelled, 61, Ended, false, false, true),
        (Successful, 60, Ended, false, false, false),
        (Failed, 60, Ended, false, false, false),
        (Cancelled, 60, Ended, false, false, false),
        (Successful, 61, Runs, false, false, false),
        (Running, 61, Ended, false, false, false),
        (Paused, 61, Ended, false, false, false),
        // Without the deployment the job would begin the failed version anew.
        (Failed, 61, Ended, true, false, false),
        (Failed, 61, Ended, true, true, true),
        (Failed, 61, Ended, false, true, true),
        (Successful, 61, Ended, true, false, true),
        (Successful, 61, Ended, true, true, true),
        (Cancelled, 61, Ended, true, false, true),
        (Cancelled, 61, Ended, true, true, true),
        (Running, 61, Ended, true, true, false),
    ]
};

#[test]
fn deployments_go_by_the_table() {
    for case in DEPLOYMENTS {
        let (status, minutes, client, is_current, stop, expected) = *case;
        let (mut scene, put) = ended(JobType::Service);
        // The job stays because of the allocation.
        scene.job(spec(JobType::Service), 1, stop, JobStatus::Running);
        scene.deployment(DEPLOYMENT, is_current, status, ago(minutes * MINUTE));
        let deployment = Some(DEPLOYMENT);
        scene.alloc(&AllocBuilder {
            client,
            deployment,
            modified: NOW,
            ..put
        });

        let state = collected(&scene);

        assert_eq!(state.deployments().is_empty(), expected, "{case:?}");
    }
}

/// Cases by status, hours since and status of the allocation on it.
const NODES: &[(NodeStatus, u32, ClientStatus, bool)] = &[
    (NodeStatus::Down, 25, ClientStatus::Lost, true),
    (NodeStatus::Down, 24, ClientStatus::Lost, false),
    (NodeStatus::Down, 25, ClientStatus::Running, false),
    (NodeStatus::Down, 25, ClientStatus::Unknown, false),
    (NodeStatus::Ready, 25, ClientStatus::Lost, false),
    (NodeStatus::Initializing, 25, ClientStatus::Lost, false),
];

#[test]
fn nodes_go_by_the_table() {
    for case in NODES {
        let (status, hours, client, expected) = *case;
        let (_, put) = ended(JobType::Service);
        let mut scene = StateBuilder::default();
        scene.job(spec(JobType::Service), 1, false, JobStatus::Running);
        scene.eval(EVAL, JOB, JobType::Service, EvalStatus::Complete, NOW);
        scene.node(NODE, status, ago(hours * HOUR));
        scene.alloc(&AllocBuilder {
            client,
            modified: NOW,
            ..put
        });

        let state = collected(&scene);

        assert_eq!(state.nodes().is_empty(), expected, "{case:?}");
    }
}
