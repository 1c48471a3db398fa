//! One-off tasks in collections by force.

use muster_domain::fixture::definition;
use muster_domain::one_off::{OneOff, OneOffState};

use super::recorded::survey;
use super::*;
use crate::fsm::{
    self, GcBounds, GcCutoffs, GcKind, GcSurvey, NewOneOff, OneOffChange, OneOffCommand, OneOffStep,
};

const GUID: &str = "task-1";

/// A cluster with room for many tasks.
fn cluster() -> Cluster {
    let mut cluster = Cluster::new();
    cluster.node(node("n1").cpu_mhz(100_000).memory_mb(100_000).build());
    cluster
}

fn desire(cluster: &mut Cluster, guid: &str, callback: &str) {
    let mut definition = definition();
    callback.clone_into(&mut definition.completion_callback_url);
    let task = NewOneOff {
        guid: guid.to_owned(),
        domain: "apps".to_owned(),
        definition,
    };
    let at = cluster.now;
    let tasks = vec![task];
    cluster.apply(Entry::desire_one_offs(tasks, at));
    cluster.settle();
}

fn row<'a>(cluster: &'a Cluster, guid: &str) -> &'a OneOff {
    cluster.state.one_offs().get(guid).unwrap()
}

fn end(cluster: &mut Cluster, guid: &str) {
    let alloc_id = row(cluster, guid).alloc_id.unwrap();
    cluster.report(alloc_id, ClientStatus::Complete);
}

fn step(cluster: &mut Cluster, step: OneOffStep) {
    let change = OneOffChange {
        guid: GUID.to_owned(),
        generation: None,
        step,
    };
    let at = cluster.now;
    let changes = vec![change];
    let response = cluster.apply(OneOffCommand::Change { changes }.at(at));
    let outcomes = vec![None];
    assert_eq!(response, Response::OneOffsChanged { outcomes });
}

/// Records a try of the task's callback, which continues by `next_at`.
fn tried(cluster: &mut Cluster, next_at: Option<Timestamp>) {
    let claim = row(cluster, GUID).claim().unwrap();
    step(cluster, OneOffStep::CallbackFailed { claim, next_at });
}

fn claim(until: Timestamp) -> OneOffStep {
    OneOffStep::Claim {
        until,
        for_callback: false,
    }
}

/// The steps of the task, whether it owes a callback once it ended, its state, and the reason why it stays.
type Case = (
    &'static str,
    bool,
    fn(&mut Cluster),
    OneOffState,
    Option<GcKept>,
);

const CASES: &[Case] = &[
    (
        "placed",
        false,
        |_| {},
        OneOffState::Running,
        Some(GcKept::Live),
    ),
    (
        "told to end, and running",
        false,
        |cluster| step(cluster, OneOffStep::Cancel),
        OneOffState::Running,
        Some(GcKept::Live),
    ),
    (
        "ended",
        false,
        |cluster| end(cluster, GUID),
        OneOffState::Completed,
        None,
    ),
    (
        "ended, its callback is being made",
        true,
        |cluster| end(cluster, GUID),
        OneOffState::Resolving,
        Some(GcKept::Claimed),
    ),
    (
        "ended, its callback is to be made again",
        true,
        |cluster| {
            end(cluster, GUID);
            tried(cluster, Some(cluster.now));
        },
        OneOffState::Completed,
        Some(GcKept::Owed),
    ),
    (
        "ended, its callback was given up",
        true,
        |cluster| {
            end(cluster, GUID);
            tried(cluster, None);
        },
        OneOffState::Completed,
        None,
    ),
    (
        "ended and claimed",
        false,
        |cluster| {
            end(cluster, GUID);
            step(cluster, claim(cluster.now.plus(HOUR)));
        },
        OneOffState::Resolving,
        Some(GcKept::Claimed),
    ),
    (
        "ended, claimed too long ago",
        false,
        |cluster| {
            end(cluster, GUID);
            step(cluster, claim(cluster.now));
            step(cluster, OneOffStep::Converge);
        },
        OneOffState::Completed,
        None,
    ),
];

#[test]
fn forced_gc_of_tasks_matches_table() {
    for (name, owes, live, state, kept) in CASES {
        let mut cluster = cluster();
        desire(&mut cluster, GUID, if *owes { "http://done/" } else { "" });
        live(&mut cluster);
        assert_eq!(row(&cluster, GUID).state, *state, "{name}");
        let before = cluster.state.clone();
        let dry = GcSurvey::of(&before, &GcCutoffs::NONE, cluster.now);

        forced(&mut cluster);

        let stays = cluster.state.one_offs().get(GUID).is_some();
        assert_eq!(stays, kept.is_some(), "{name}");
        let reasons: Vec<GcKept> = dry.count(GcKind::OneOffs).kept.into_keys().collect();
        assert_eq!(reasons, Vec::from_iter(*kept), "{name}");
        assert_eq!(
            survey(&before, &cluster.state),
            Vec::<String>::new(),
            "{name}"
        );
        let is_live = *kept == Some(GcKept::Live);
        assert_eq!(cluster.state.jobs().len(), usize::from(is_live), "{name}");
    }
}

/// A task that waits for room has no allocation.
#[test]
fn a_task_that_waits_for_room_stays() {
    let mut cluster = Cluster::new();
    desire(&mut cluster, GUID, "");
    assert_eq!(row(&cluster, GUID).state, OneOffState::Pending);

    forced(&mut cluster);

    assert_eq!(cluster.state.one_offs().len(), 1);
    assert_eq!(cluster.state.evals().pending().count(), 1);
}

/// Two minutes, an hour or a year: each task has its own time for which it is kept.
#[test]
fn no_task_goes_by_age() {
    let mut cluster = cluster();
    desire(&mut cluster, GUID, "");
    end(&mut cluster, GUID);
    cluster.advance(365 * 24 * HOUR);

    by_threshold(&mut cluster);

    assert_eq!(cluster.state.one_offs().len(), 1);
}

/// Twenty tasks have ended, each with a job, an evaluation and an allocation.
#[test]
fn tasks_go_in_slices() {
    let mut cluster = cluster();
    for at in 0..20 {
        let guid = format!("task-{at}");
        desire(&mut cluster, &guid, "");
        end(&mut cluster, &guid);
    }
    let bounds = GcBounds {
        freed_max: 40,
        looked_at_max: 8,
    };
    let mut next = Collector::forced(cluster.now).into_iter().next();
    let (mut slices, mut one_offs, mut jobs) = (0, 0, 0);

    while let Some(command) = next {
        let index = LogIndex(cluster.state.applied().0 + 1);
        let applied = fsm::apply_within(&mut cluster.state, index, command.clone(), bounds);
        assert_eq!(check::broken(&cluster.state), Vec::<String>::new());
        let Response::Collected {
            one_offs: some,
            jobs: their,
            ..
        } = applied.response
        else {
            panic!("{:?}", applied.response)
        };
        (slices, one_offs, jobs) = (slices + 1, one_offs + some, jobs + their);
        next = Collector::next_slice(&command, &applied.response, cluster.now);
    }

    assert_eq!((slices, one_offs, jobs), (10, 20, 20));
    assert!(cluster.state.one_offs().is_empty() && cluster.state.allocs().is_empty());
}
