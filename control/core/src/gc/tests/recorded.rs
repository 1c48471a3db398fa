//! Nomad's recorded decisions. Nomad uses the index of an object's last change, Muster uses its time. In these tests
//! the index stands for the time.

use std::collections::BTreeSet;
use std::time::Duration;

use muster_domain::alloc::{ClientStatus, DesiredStatus};
use muster_domain::deployment::DeploymentStatus;
use muster_domain::eval::EvalStatus;
use muster_domain::fixture::job;
use muster_domain::fixture::recorded::{self, CaseKind, CaseRunner, Outcome};
use muster_domain::id::{DeploymentId, EvalId, NodeId, Timestamp};
use muster_domain::job::{JobSpec, JobStatus, JobType, Parameterized, PayloadUse, Periodic};
use muster_domain::node::NodeStatus;
use serde_json::Value;

use super::scene::{AllocBuilder, JOB, NOW, StateBuilder};
use super::{Collector, Entry, GcCutoffs, GcRule};
use crate::fsm::{GcCommand, GcKind, GcSurvey};
use crate::state::State;

const ALLOC: CaseKind = CaseKind {
    name: "gc_alloc",
    is: |row| row.get("eligible").is_some(),
    judge: CaseRunner::Row(compare_alloc),
};

const OBJECTS: CaseKind = CaseKind {
    name: "gc_objects",
    is: |row| row.get("eval_gc").is_some(),
    judge: CaseRunner::Row(compare_objects),
};

const TIME_TABLE: CaseKind = CaseKind {
    name: "gc_time_table",
    is: |row| row.get("witnessed").is_some(),
    judge: CaseRunner::NotRun("every object has its own time: no table leads from time to index"),
};

fn text<'a>(row: &'a Value, key: &str) -> &'a str {
    row[key].as_str().unwrap()
}

fn number(row: &Value, key: &str) -> u64 {
    row[key].as_u64().unwrap()
}

fn truth(row: &Value, key: &str) -> bool {
    row[key].as_bool().unwrap()
}

fn time(row: &Value, key: &str) -> Timestamp {
    Timestamp(number(row, key))
}

fn rows<'a>(row: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    row[key].as_array().unwrap().iter()
}

fn job_type(word: &str) -> JobType {
    match word {
        "batch" => JobType::Batch,
        "service" => JobType::Service,
        "system" => JobType::System,
        "sysbatch" => JobType::SysBatch,
        other => panic!("{other}"),
    }
}

fn client(word: &str) -> ClientStatus {
    match word {
        "pending" => ClientStatus::Pending,
        "running" => ClientStatus::Running,
        "complete" => ClientStatus::Complete,
        "failed" => ClientStatus::Failed,
        "lost" => ClientStatus::Lost,
        other => panic!("{other}"),
    }
}

fn desired(word: &str) -> DesiredStatus {
    match word {
        "run" => DesiredStatus::Run,
        "stop" => DesiredStatus::Stop,
        "evict" => DesiredStatus::Evict,
        other => panic!("{other}"),
    }
}

/// Returns the job of a case. Allocations are of its group `app`, which the job may not have any more.
fn spec(row: &Value) -> JobSpec {
    let kind = row
        .get("type")
        .map_or(JobType::Service, |_| job_type(text(row, "type")));
    let mut spec = job(JOB).job_type(kind).build();
    let group = &mut spec.groups[0];
    if !truth(row, "alloc_group_exists") {
        "other".clone_into(&mut group.name);
    }
    let policy = &mut group.reschedule;
    (policy.attempts, policy.unlimited) = (0, false);
    if !row["reschedule"].is_null() {
        let given = &row["reschedule"];
        policy.attempts = u32::try_from(number(given, "attempts")).unwrap();
        policy.interval = Duration::from_nanos(number(given, "interval_ns"));
        policy.unlimited = truth(given, "unlimited");
    }
    if truth(row, "periodic_enabled") {
        spec.periodic = Some(Periodic {
            enabled: true,
            specs: vec!["@daily".to_owned()],
            prohibit_overlap: false,
            time_zone: "UTC".to_owned(),
        });
    }
    if truth(row, "parameterized") {
        spec.parameterized = Some(Parameterized {
            payload: PayloadUse::Optional,
            meta_required: Vec::new(),
            meta_optional: Vec::new(),
        });
    }
    spec
}

fn put_job(scene: &mut StateBuilder, row: &Value) {
    if row.is_null() {
        return;
    }
    let status = match text(row, "status") {
        "pending" => JobStatus::Pending,
        "running" => JobStatus::Running,
        "dead" => JobStatus::Dead,
        other => panic!("{other}"),
    };
    let created = row
        .get("create_index")
        .map_or(1, |_| number(row, "create_index"));
    scene.job(spec(row), created, truth(row, "stop"), status);
}

fn put_alloc(scene: &mut StateBuilder, row: &Value, eval_id: EvalId, node_id: NodeId) {
    // Some times are in the future, because clocks differ.
    let ago = rows(row, "reschedule_events_before_now_ns").map(|ago| ago.as_i64().unwrap());
    scene.alloc(&AllocBuilder {
        eval_id,
        node_id,
        deployment: text(row, "deployment_id").parse().ok(),
        job_create_index: row
            .get("job_create_index")
            .map_or(1, |_| number(row, "job_create_index")),
        desired: desired(text(row, "desired_status")),
        client: client(text(row, "client_status")),
        modified: time(row, "modify_index"),
        replaced: !text(row, "next_allocation").is_empty(),
        follow_up: None,
        reschedules: ago
            .map(|ago| Timestamp(NOW.0.checked_add_signed(-ago).unwrap()))
            .collect(),
    });
}

/// Returns a collection; a `threshold` of `None` means at any age.
fn collect(rule: GcRule, threshold: Option<u64>) -> Entry {
    let before = Timestamp(threshold.map_or(u64::MAX, |index| index + 1));
    GcCommand::Collect {
        rule,
        before,
        batch_before: before,
        after: None,
    }
    .at(NOW)
}

fn compare_alloc(row: &Value) -> Outcome {
    let mut scene = StateBuilder::default();
    let (eval_id, node_id) = (EvalId([1; 16]), NodeId([1; 16]));
    put_job(&mut scene, &row["job"]);
    scene.node(node_id, NodeStatus::Ready, Timestamp(0));
    scene.eval(
        eval_id,
        JOB,
        JobType::Service,
        EvalStatus::Complete,
        Timestamp(0),
    );
    put_alloc(&mut scene, &row["alloc"], eval_id, node_id);

    let threshold = number(row, "threshold_index");
    let state = scene.after(vec![collect(GcRule::Evals, Some(threshold))]);

    let (ours, theirs) = (state.allocs().is_empty(), truth(row, "eligible"));
    if ours == theirs {
        Outcome::Same
    } else {
        Outcome::Differs(format!("eligible: recorded {theirs}, ours {ours}"))
    }
}

fn scene(row: &Value) -> StateBuilder {
    let mut scene = StateBuilder::default();
    put_job(&mut scene, &row["job"]);
    for one in rows(row, "nodes") {
        let status = match text(one, "status") {
            "ready" => NodeStatus::Ready,
            "initializing" => NodeStatus::Initializing,
            "down" => NodeStatus::Down,
            other => panic!("{other}"),
        };
        scene.node(
            text(one, "id").parse().unwrap(),
            status,
            time(one, "modify_index"),
        );
    }
    for one in rows(row, "evals") {
        let status = match text(one, "status") {
            "pending" => EvalStatus::Pending,
            "blocked" => EvalStatus::Blocked,
            "complete" => EvalStatus::Complete,
            "failed" => EvalStatus::Failed,
            "canceled" => EvalStatus::Canceled,
            other => panic!("{other}"),
        };
        let (id, kind) = (
            text(one, "id").parse().unwrap(),
            job_type(text(one, "type")),
        );
        scene.eval(id, JOB, kind, status, time(one, "modify_index"));
    }
    for one in rows(row, "allocs") {
        let eval_id: EvalId = text(one, "eval_id").parse().unwrap();
        // Here no allocation lacks its evaluation: a missing one is replaced by an evaluation that no rule removes.
        if scene.state.evals().get(&eval_id).is_none() {
            let kind = JobType::Service;
            scene.eval(
                eval_id,
                "elsewhere",
                kind,
                EvalStatus::Pending,
                Timestamp(0),
            );
        }
        let node_id = text(one, "node_id").parse().unwrap();
        put_alloc(&mut scene, one, eval_id, node_id);
    }
    for one in rows(row, "deployments") {
        let status = match text(one, "status") {
            "successful" => DeploymentStatus::Successful,
            "failed" => DeploymentStatus::Failed,
            "cancelled" => DeploymentStatus::Cancelled,
            "paused" => DeploymentStatus::Paused,
            "running" | "pending" | "blocked" | "unblocking" => DeploymentStatus::Running,
            other => panic!("{other}"),
        };
        scene.deployment(
            text(one, "id").parse().unwrap(),
            false,
            status,
            time(one, "modify_index"),
        );
    }
    scene
}

fn compare_objects(row: &Value) -> Outcome {
    let scene = scene(row);
    let threshold = Some(number(row, "threshold_index"));
    let runs = [
        ("eval_gc", vec![collect(GcRule::Evals, threshold)]),
        ("job_gc", vec![collect(GcRule::Jobs, threshold)]),
        (
            "deployment_gc",
            vec![collect(GcRule::Deployments, threshold)],
        ),
        ("node_gc", vec![collect(GcRule::Nodes, threshold)]),
        ("force_gc", Collector::forced(NOW)),
    ];
    let mut differences = Vec::new();
    for (run, commands) in runs {
        let state = scene.after(commands);
        differences.extend(compare(run, &scene, &state, row));
    }
    let state = scene.after(Collector::forced(NOW));
    differences.extend(survey(&scene.state, &state));
    Outcome::from_differences(&differences)
}

/// Returns the objects for which the dry run of `before` differs from the result `after` of a forced collection.
pub(super) fn survey(before: &State, after: &State) -> Vec<String> {
    let sizes = |state: &State| {
        [
            (GcKind::Jobs, state.jobs().len()),
            (GcKind::Evals, state.evals().len()),
            (GcKind::Allocs, state.allocs().len()),
            (GcKind::Deployments, state.deployments().len()),
            (GcKind::Nodes, state.nodes().len()),
            (GcKind::OneOffs, state.one_offs().len()),
        ]
    };
    let survey = GcSurvey::of(before, &GcCutoffs::NONE, NOW);
    let pairs = sizes(before).into_iter().zip(sizes(after));
    let wrong = pairs.filter_map(|((kind, before), (_, after))| {
        let count = survey.count(kind);
        let kept: u64 = count.kept.values().sum();
        let (freed, stays) = ((before - after) as u64, after as u64);
        (count.freed != freed || kept != stays).then(|| {
            format!(
                "{}: survey {count:?}, gone {freed}, left {stays}",
                kind.as_str()
            )
        })
    });
    wrong.collect()
}

/// Returns the differences. Here the deployments of a job are removed with it, as is everything below it; in Nomad they
/// wait for their own rule.
fn compare(run: &str, scene: &StateBuilder, state: &State, row: &Value) -> Vec<String> {
    let recorded = &row[run];
    let mut differences = Vec::new();
    let mut check = |what: &str, ours: BTreeSet<&str>| {
        let key = format!("deleted_{what}");
        let theirs: BTreeSet<&str> = rows(recorded, &key)
            .map(|id| id.as_str().unwrap())
            .collect();
        if ours != theirs {
            differences.push(format!("{run}: {what}: recorded {theirs:?}, ours {ours:?}"));
        }
    };
    let gone = |what: &str, is_gone: &dyn Fn(usize, &str) -> bool| -> BTreeSet<&str> {
        let all = rows(row, what).map(|one| text(one, "id")).enumerate();
        all.filter(|(at, id)| is_gone(*at, id))
            .map(|(_, id)| id)
            .collect()
    };
    check(
        "evals",
        gone("evals", &|_, id| {
            state.evals().get(&id.parse::<EvalId>().unwrap()).is_none()
        }),
    );
    check(
        "allocs",
        gone("allocs", &|at, _| {
            state.allocs().get(&scene.allocs[at]).is_none()
        }),
    );
    check(
        "nodes",
        gone("nodes", &|_, id| {
            state.nodes().get(&id.parse::<NodeId>().unwrap()).is_none()
        }),
    );
    let job_deleted = !row["job"].is_null() && state.jobs().is_empty();
    if !job_deleted {
        check(
            "deployments",
            gone("deployments", &|_, id| {
                let id = id.parse::<DeploymentId>().unwrap();
                state.deployments().get(&id).is_none()
            }),
        );
    }
    if job_deleted != truth(recorded, "job_deleted") {
        differences.push(format!("{run}: the job: recorded {}", !job_deleted));
    }
    differences
}

#[test]
fn allocations_go_as_nomads_do() {
    if let Some(tally) = recorded::beside("allocations_go_as_nomads_do", "gc_alloc.jsonl", &ALLOC) {
        tally.assert_same(250);
    }
}

#[test]
fn collections_free_as_recorded_in_nomad() {
    let name = "collections_free_as_recorded_in_nomad";
    if let Some(tally) = recorded::beside(name, "gc_objects.jsonl", &OBJECTS) {
        tally.assert_same(150);
    }
}

#[test]
fn recorded_cases_in_named_files() {
    recorded::named(&[ALLOC, OBJECTS, TIME_TABLE]);
}
