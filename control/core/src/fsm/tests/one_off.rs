//! One-off tasks: every transition and refusal, and that no task runs twice.

use muster_domain::fixture::definition;
use muster_domain::id::{AllocId, WriteKey};
use muster_domain::one_off::{
    CANCELLED, Definition, NODE_GONE, NOT_STARTED, OneOff, OneOffState, OneOffTimings, Phase,
    WorkEnd,
};

use muster_domain::scheduling::{PreemptionConfig, SchedulerConfig};

use super::*;
use crate::converge;
use crate::state::due_at;
use muster_domain::alloc::AllocReport;

const GUID: &str = "task-1";

fn new(guid: &str, domain: &str) -> NewOneOff {
    NewOneOff {
        guid: guid.to_owned(),
        domain: domain.to_owned(),
        definition: definition(),
    }
}

/// A cluster of one node that has room for two tasks, and task-1.
struct Fixture {
    cluster: Cluster,
    node_id: NodeId,
}

impl Fixture {
    fn new() -> Self {
        let mut cluster = Cluster::new();
        let node_id = cluster.node(node("n1").cpu_mhz(200).build());
        Self { cluster, node_id }
    }

    fn without_node() -> Self {
        Self {
            cluster: Cluster::new(),
            node_id: NodeId([0; 16]),
        }
    }

    fn desire(&mut self, guid: &str) -> Result<DesiredOneOff, Rejection> {
        self.desire_as(guid, "apps", "")
    }

    fn desire_as(
        &mut self,
        guid: &str,
        domain: &str,
        callback: &str,
    ) -> Result<DesiredOneOff, Rejection> {
        let mut new = new(guid, domain);
        callback.clone_into(&mut new.definition.completion_callback_url);
        self.desire_all(vec![new]).remove(0)
    }

    fn desire_all(&mut self, tasks: Vec<NewOneOff>) -> Vec<Result<DesiredOneOff, Rejection>> {
        let at = self.cluster.now;
        let response = self.cluster.apply(Entry::desire_one_offs(tasks, at));
        let Response::OneOffsDesired { outcomes } = response else {
            panic!("{response:?}")
        };
        outcomes
    }

    fn row(&self) -> OneOff {
        (**self.cluster.state.one_offs().get(GUID).unwrap()).clone()
    }

    fn step(&mut self, step: OneOffStep) -> Option<OneOffRefusal> {
        let change = OneOffChange {
            guid: GUID.to_owned(),
            generation: None,
            step,
        };
        let at = self.cluster.now;
        let changes = vec![change];
        let response = self.cluster.apply(OneOffCommand::Change { changes }.at(at));
        let Response::OneOffsChanged { mut outcomes } = response else {
            panic!("{response:?}")
        };
        outcomes.remove(0)
    }

    fn report(&mut self, status: ClientStatus, end: Option<WorkEnd>) {
        let report = AllocReport {
            alloc_id: self.alloc(),
            client_status: status,
            client_description: "as told".to_owned(),
            task_states: Vec::new(),
            healthy: None,
            end: end.map(Box::new),
            remote: Vec::new(),
        };
        self.cluster.apply(
            AllocCommand::Report {
                reports: vec![(self.node_id, vec![report])],
            }
            .at(self.cluster.now),
        );
    }

    /// Fails tasks that no node could ever hold, as a leader does.
    fn fail_unplaceable(&mut self) {
        let changes = converge::all_unplaceable(&self.cluster.state);
        let at = self.cluster.now;
        self.cluster.apply(OneOffCommand::Change { changes }.at(at));
    }

    fn alloc(&self) -> AllocId {
        self.row().alloc_id.unwrap()
    }

    fn converge(&mut self) {
        for command in converge::due(&self.cluster.state, self.cluster.now).commands {
            self.cluster.apply(command);
        }
    }

    /// Returns a fixture with task-1 in the given state.
    fn at(state: Option<OneOffState>) -> Self {
        let mut fixture = Self::new();
        let Some(state) = state else { return fixture };
        fixture.desire(GUID).unwrap();
        if state == OneOffState::Pending {
            return fixture;
        }
        fixture.cluster.settle();
        fixture.report(ClientStatus::Running, None);
        if state == OneOffState::Running {
            return fixture;
        }
        fixture.report(ClientStatus::Complete, Some(WorkEnd::default()));
        if state == OneOffState::Resolving {
            assert_eq!(fixture.step(claim()), None);
        }
        assert_eq!(fixture.row().state, state);
        fixture
    }
}

fn claim() -> OneOffStep {
    OneOffStep::Claim {
        until: Timestamp::from_millis(1_030_000),
        for_callback: false,
    }
}

/// Returns the outcome of a call in a state: `Ok` with the state after it (`None`: the task is gone), or the refusal.
fn outcome(step: OneOffStep, state: Option<OneOffState>) -> Result<Option<OneOffState>, String> {
    let mut fixture = Fixture::at(state);
    match fixture.step(step) {
        Some(refusal) => Err(refusal.to_string()),
        None => {
            let row = fixture.cluster.state.one_offs().get(GUID);
            Ok(row.map(|row| row.state))
        }
    }
}

#[test]
fn one_off_steps_match_state_transition_table() {
    use OneOffState::{Completed, Pending, Resolving, Running};
    let missing = || Err("task task-1 does not exist".to_owned());
    let no =
        |from: OneOffState, to: OneOffState| Err(format!("Cannot transition from {from} to {to}"));
    let forget = OneOffStep::Delete { claim: None };
    let tried = OneOffStep::CallbackFailed {
        claim: LogIndex(1),
        next_at: None,
    };
    let other = || Err("task task-1 is claimed by another client".to_owned());
    let table = [
        (OneOffStep::Cancel, None, missing()),
        (OneOffStep::Cancel, Some(Pending), Ok(Some(Completed))),
        // A process of it may run: it is completed when none does.
        (OneOffStep::Cancel, Some(Running), Ok(Some(Running))),
        (
            OneOffStep::Cancel,
            Some(Completed),
            no(Completed, Completed),
        ),
        (
            OneOffStep::Cancel,
            Some(Resolving),
            no(Resolving, Completed),
        ),
        (claim(), None, missing()),
        (claim(), Some(Pending), no(Pending, Resolving)),
        (claim(), Some(Running), no(Running, Resolving)),
        (claim(), Some(Completed), Ok(Some(Resolving))),
        (claim(), Some(Resolving), no(Resolving, Resolving)),
        (forget, None, missing()),
        (forget, Some(Pending), no(Pending, Resolving)),
        (forget, Some(Running), no(Running, Resolving)),
        (forget, Some(Completed), no(Completed, Resolving)),
        (forget, Some(Resolving), Ok(None)),
        (OneOffStep::Resolve, None, missing()),
        (OneOffStep::Resolve, Some(Pending), no(Pending, Resolving)),
        (OneOffStep::Resolve, Some(Running), no(Running, Resolving)),
        (OneOffStep::Resolve, Some(Completed), Ok(None)),
        // Another caller has a claim on it.
        (
            OneOffStep::Resolve,
            Some(Resolving),
            no(Resolving, Resolving),
        ),
        (tried, None, missing()),
        (tried, Some(Pending), no(Pending, Completed)),
        (tried, Some(Running), no(Running, Completed)),
        (tried, Some(Completed), no(Completed, Completed)),
        (tried, Some(Resolving), other()),
    ];
    for (step, state, expected) in table {
        assert_eq!(outcome(step, state), expected, "{step:?} in {state:?}");
    }
}

#[test]
fn only_pending_tasks_fail_unplaced() {
    use OneOffState::{Completed, Pending, Resolving, Running};
    let of = |state| outcome(OneOffStep::FailUnplaced, state);

    assert_eq!(of(Some(Pending)), Ok(Some(Completed)));
    of(None).unwrap_err();
    for state in [Running, Completed, Resolving] {
        let message = format!("Cannot transition from {state} to Completed");
        assert_eq!(of(Some(state)), Err(message));
    }
}

#[test]
fn a_task_is_desired_once() {
    let mut fixture = Fixture::new();
    let generation = LogIndex(fixture.cluster.state.applied().0 + 1);

    let first = fixture.desire(GUID);
    let again = fixture.desire(GUID);
    let other = fixture.desire_as(GUID, "other", "");

    let first = first.unwrap();
    assert!(first.created && first.eval_id.is_some());
    let known = DesiredOneOff {
        created: false,
        generation,
        eval_id: None,
    };
    assert_eq!(again, Ok(known));
    let exists = OneOffRefusal::Exists(GUID.to_owned());
    assert_eq!(other, Err(Rejection::OneOff(exists)));
}

#[test]
fn each_task_of_entry_is_validated_independently() {
    let mut fixture = Fixture::new();
    let tasks = [("a", "apps"), ("b", "apps"), ("a", "apps"), ("a", "other")];

    let outcomes = fixture.desire_all(tasks.map(|(guid, domain)| new(guid, domain)).into());

    let [Ok(a), Ok(b), Ok(again), Err(refused)] = &outcomes[..] else {
        panic!("{outcomes:?}")
    };
    assert!(a.created && b.created && !again.created);
    assert_ne!(a.eval_id, b.eval_id);
    let exists = OneOffRefusal::Exists("a".to_owned());
    assert_eq!(*refused, Rejection::OneOff(exists));
    assert_eq!(fixture.cluster.state.one_offs().iter().count(), 2);
}

/// A node claims a task when the task is placed on it: the task may have started.
#[test]
fn a_task_runs_from_when_it_is_placed() {
    let mut fixture = Fixture::at(Some(OneOffState::Pending));
    assert_eq!(fixture.row().alloc_id, None);

    fixture.cluster.settle();

    let row = fixture.row();
    assert_eq!(
        (row.state, row.phase),
        (OneOffState::Running, Phase::Preparing)
    );
    assert_eq!(row.node_id, Some(fixture.node_id));
    // No report makes the task pending again.
    fixture.report(ClientStatus::Pending, None);
    assert_eq!(fixture.row(), row);
}

#[test]
fn a_task_that_a_node_never_starts_expires() {
    let mut fixture = Fixture::at(Some(OneOffState::Pending));
    fixture.cluster.settle();
    fixture.cluster.advance(Duration::from_mins(1));

    fixture.converge();

    assert_eq!(fixture.row().phase, Phase::Cancelling);
    fixture.report(ClientStatus::Complete, Some(WorkEnd::default()));
    assert_eq!(fixture.row().failure_reason(), NOT_STARTED);
    // A task that has started does not.
    let mut fixture = Fixture::at(Some(OneOffState::Running));
    fixture.cluster.advance(Duration::from_mins(1));
    fixture.converge();
    assert_eq!(fixture.row().phase, Phase::Running);
}

/// Returns places in the newest state, taken from the fixture's only node.
fn places(fixture: &Fixture, tasks: &[NewOneOff]) -> Vec<Option<OneOffPlacement>> {
    let mut scheduler = crate::scheduler::Scheduler::default();
    scheduler.place_new(&fixture.cluster.state, tasks, fixture.cluster.now)
}

fn place(fixture: &mut Fixture, tasks: Vec<(NewOneOff, Option<OneOffPlacement>)>, seen: LogIndex) {
    let at = fixture.cluster.now;
    fixture
        .cluster
        .apply(OneOffCommand::Desire { tasks, seen }.at(at));
}

#[test]
fn one_entry_desires_a_task_and_places_it() {
    let mut fixture = Fixture::new();
    let tasks = vec![new(GUID, "apps")];
    let places = places(&fixture, &tasks);
    let seen = fixture.cluster.state.applied();

    place(&mut fixture, tasks.into_iter().zip(places).collect(), seen);

    let row = fixture.row();
    assert_eq!(
        (row.state, row.phase),
        (OneOffState::Running, Phase::Preparing)
    );
    let alloc = fixture
        .cluster
        .state
        .allocs()
        .get(&fixture.alloc())
        .unwrap();
    assert_eq!(alloc.node_id(), fixture.node_id);
    // A follower of the task sees it pending.
    let [pending] = &fixture.cluster.passed[..] else {
        panic!("{:?}", fixture.cluster.passed)
    };
    assert_eq!(
        (pending.state, pending.alloc_id),
        (OneOffState::Pending, None)
    );
    let state = &fixture.cluster.state;
    let eval = state.evals().of_job(&row.job_key()).next().unwrap();
    assert_eq!(
        (eval.status, eval.snapshot_index),
        (EvalStatus::Complete, seen)
    );
    let job = state.jobs().get(&row.job_key()).unwrap();
    assert_eq!(job.status, JobStatus::Running);
    assert!(
        fixture
            .cluster
            .effects
            .contains(&Effect::NodeChanged(fixture.node_id))
    );
    // No task is left to be placed.
    assert!(fixture.cluster.settle().is_empty());
    fixture.report(ClientStatus::Complete, Some(WorkEnd::default()));
    assert_eq!(fixture.row().state, OneOffState::Completed);
}

/// The state is the same as after two entries, except for their numbers.
#[test]
fn lost_placement_leaves_task_pending() {
    let mut fixture = Fixture::new();
    let tasks: Vec<_> = ["a", "b", GUID].map(|guid| new(guid, "apps")).into();
    let places = places(&fixture, &tasks);
    // The node has room for two.
    assert!(places[0].is_some() && places[1].is_some());
    assert_eq!(places[2], None);
    let seen = fixture.cluster.state.applied();
    let full = fixture.cluster.run(job("full").cpu_mhz(150).build());
    assert!(!full.is_empty());
    let last = places[1].clone();
    let with = tasks.into_iter().zip([places[0].clone(), None, last]);

    place(&mut fixture, with.collect(), seen);

    let states = |fixture: &Fixture| {
        let rows = fixture.cluster.state.one_offs().iter();
        rows.map(|row| (row.guid.clone(), row.state, row.phase))
            .collect::<Vec<_>>()
    };
    let waits = |guid: &str| (guid.to_owned(), OneOffState::Pending, Phase::Placing);
    assert_eq!(states(&fixture), [waits("a"), waits("b"), waits(GUID)]);
    assert!(fixture.cluster.passed.is_empty());
    fixture.cluster.settle();
    assert_eq!(fixture.cluster.broker.blocked(), 3);
}

#[test]
fn placement_on_ineligible_node_leaves_task_pending() {
    let mut fixture = Fixture::new();
    let tasks = vec![new(GUID, "apps")];
    let places = places(&fixture, &tasks);
    let seen = fixture.cluster.state.applied();
    fixture.cluster.apply(
        NodeCommand::SetEligibility {
            node_id: fixture.node_id,
            eligibility: Eligibility::Ineligible,
        }
        .at(fixture.cluster.now),
    );

    place(&mut fixture, tasks.into_iter().zip(places).collect(), seen);

    assert_eq!(fixture.row().state, OneOffState::Pending);
}

/// With a key it is one write, even if each try finds another place.
#[test]
fn keyed_desire_is_idempotent_across_placements() {
    let mut fixture = Fixture::new();
    let tasks = vec![new(GUID, "apps")];
    let places = places(&fixture, &tasks);
    let (seen, at) = (fixture.cluster.state.applied(), fixture.cluster.now);
    let with = |places: Vec<Option<OneOffPlacement>>| {
        let tasks = tasks.clone().into_iter().zip(places).collect();
        let key = WriteKey::new("once").unwrap();
        OneOffCommand::Desire { tasks, seen }.at(at).keyed(key)
    };
    let first = fixture.cluster.apply(with(places));

    let second = fixture.cluster.apply(with(vec![None]));

    assert_eq!(first, second);
    assert!(
        matches!(first, Response::OneOffsDesired { .. }),
        "{first:?}"
    );
    assert_eq!(fixture.cluster.state.one_offs().len(), 1);
}

/// Returns the claim of the task, and the same task under a later claim.
fn claimed_again(next: OneOffStep) -> (LogIndex, Fixture) {
    let mut fixture = Fixture::at(Some(OneOffState::Resolving));
    let first = fixture.row().claim().unwrap();
    fixture.cluster.now = fixture.row().until.unwrap();
    fixture.converge();
    assert_eq!(fixture.row().claim(), None);
    assert_eq!(fixture.step(next), None);
    assert_ne!(fixture.row().claim(), Some(first));
    (first, fixture)
}

/// Each of two clients can use the result while its own claim is valid, and not after.
#[test]
fn expired_claim_cannot_end_claim_of_other() {
    let until = Timestamp::from_millis(2_000_000);
    for for_callback in [false, true] {
        let next = OneOffStep::Claim {
            until,
            for_callback,
        };
        let (late, mut fixture) = claimed_again(next);
        let row = fixture.row();
        let refused = OneOffRefusal::Claimed {
            guid: GUID.to_owned(),
            by_callback: for_callback,
        };
        let late_steps = [
            OneOffStep::Delete { claim: Some(late) },
            OneOffStep::CallbackFailed {
                claim: late,
                next_at: None,
            },
        ];
        for step in late_steps {
            assert_eq!(fixture.step(step), Some(refused.clone()), "{step:?}");
        }
        assert_eq!(fixture.row(), row);

        let claim = row.claim();

        assert_eq!(fixture.step(OneOffStep::Delete { claim }), None);
        assert!(fixture.cluster.state.one_offs().is_empty());
    }
}

/// Diego's clients name no claim: they may end a claim of a client, but no claim of a callback.
#[test]
fn callback_claim_cannot_be_ended_without_claim() {
    let mut fixture = called_back(0);
    let refused = OneOffRefusal::Claimed {
        guid: GUID.to_owned(),
        by_callback: true,
    };
    let forget = OneOffStep::Delete { claim: None };

    assert_eq!(fixture.step(forget), Some(refused));

    let tried = OneOffStep::CallbackFailed {
        claim: fixture.row().claim().unwrap(),
        next_at: None,
    };
    assert_eq!(fixture.step(tried), None);
    assert!(fixture.row().callback.unwrap().given_up);
}

#[test]
fn result_is_claimed_and_deleted_in_one_entry() {
    let mut fixture = Fixture::at(Some(OneOffState::Completed));

    assert_eq!(fixture.step(OneOffStep::Resolve), None);

    assert!(fixture.cluster.state.one_offs().is_empty());
    let [resolving] = &fixture.cluster.passed[..] else {
        panic!("{:?}", fixture.cluster.passed)
    };
    assert_eq!(
        (resolving.state, resolving.phase),
        (OneOffState::Resolving, Phase::Resolving)
    );
}

/// Returns a task completed with a callback that its end claims; `others` is the number of other callbacks to that
/// place.
fn called_back(others: usize) -> Fixture {
    let mut fixture = Fixture::new();
    let url = "http://localhost/done?x=1";
    fixture.desire_as(GUID, "apps", url).unwrap();
    fixture.cluster.settle();
    // Their ends are not recorded.
    fixture.cluster.unchecked = others > 0;
    for other in 0..others {
        let guid = format!("other-{other}");
        // The same place, written differently.
        let url = format!("HTTP://{other}@LOCALHOST.:80/other");
        fixture.desire_as(&guid, "apps", &url).unwrap();
        let mut row = (**fixture.cluster.state.one_offs().get(&guid).unwrap()).clone();
        row.phase = Phase::Delivering;
        fixture.cluster.state.one_offs.put(row);
    }
    fixture.report(ClientStatus::Complete, Some(WorkEnd::default()));
    fixture
}

#[test]
fn an_end_claims_its_callback() {
    let mut fixture = called_back(0);

    let row = fixture.row();
    assert_eq!(
        (row.state, row.phase),
        (OneOffState::Resolving, Phase::Delivering)
    );
    let until = fixture
        .cluster
        .now
        .plus(OneOffTimings::default().callback_claim);
    assert_eq!(row.until, Some(until));
    let claimed = Effect::CallbackClaimed(fixture.alloc());
    assert!(fixture.cluster.effects.contains(&claimed));
    let [completed] = &fixture.cluster.passed[..] else {
        panic!("{:?}", fixture.cluster.passed)
    };
    assert_eq!(completed.state, OneOffState::Completed);
    assert_eq!((&completed.end, completed.until), (&row.end, None));
    // The callback was not made: it can be claimed again.
    fixture
        .cluster
        .advance(OneOffTimings::default().callback_claim);
    fixture.converge();
    assert_eq!(fixture.row().phase, Phase::Completed);
    assert_eq!(
        fixture
            .cluster
            .state
            .one_offs()
            .callbacks("http://localhost")
            .count(),
        1
    );
}

#[test]
fn task_end_claims_callbacks_up_to_concurrency_limit() {
    let fixture = called_back(limits::CALLBACKS_PER_PLACE_MAX - 1);
    assert_eq!(fixture.row().phase, Phase::Delivering);

    let fixture = called_back(limits::CALLBACKS_PER_PLACE_MAX);

    assert_eq!(fixture.row().phase, Phase::Completed);
    assert!(fixture.cluster.passed.is_empty());
}

/// Returns task-1, completed, with a callback that was claimed by its end and given up.
fn given_up(after: Duration) -> (Fixture, Timestamp) {
    let mut fixture = called_back(0);
    fixture.cluster.advance(after);
    let claim = fixture.row().claim().unwrap();
    let given_up = OneOffStep::CallbackFailed {
        claim,
        next_at: None,
    };
    assert_eq!(fixture.step(given_up), None);
    let now = fixture.cluster.now;
    (fixture, now)
}

/// A task whose callback was not accepted stays on record as long as a task without a callback.
#[test]
fn abandoned_callback_is_retained_as_long_as_result() {
    let (mut fixture, at) = given_up(Duration::from_hours(1));

    let row = fixture.row();
    let callback = row.callback.unwrap();
    assert!(callback.given_up);
    assert_eq!((callback.attempts, callback.next_at), (1, at));
    let retention = Duration::from_millis(row.definition.retention_ms);
    assert!(retention < Duration::from_hours(1));
    assert_eq!(due_at(&row), Some(at.plus(retention)));
    fixture.cluster.now = Timestamp(at.plus(retention).0 - 1);
    fixture.converge();
    assert_eq!(fixture.row().state, OneOffState::Completed);
    fixture.cluster.now = at.plus(retention);
    fixture.converge();
    assert_eq!(fixture.cluster.state.one_offs().get(GUID), None);
}

/// Retention counts from the completion, not from a callback that was given up before it had passed.
#[test]
fn immediately_abandoned_callback_does_not_shorten_retention() {
    let (fixture, at) = given_up(Duration::ZERO);

    let row = fixture.row();

    assert_eq!(row.first_completed_at, Some(at));
    let retention = Duration::from_millis(row.definition.retention_ms);
    assert_eq!(due_at(&row), Some(at.plus(retention)));
}

#[test]
fn domains_are_fresh_until_their_time_and_bounded() {
    let mut fixture = Fixture::new();
    let freshen = |fixture: &mut Fixture, domain: &str, seconds: u64| {
        let at = fixture.cluster.now;
        fixture.cluster.apply(
            OneOffCommand::FreshenDomain {
                domain: domain.to_owned(),
                until: (seconds > 0).then(|| at.plus(Duration::from_secs(seconds))),
            }
            .at(at),
        )
    };
    let fresh = |fixture: &Fixture| {
        let (one_offs, now) = (fixture.cluster.state.one_offs(), fixture.cluster.now);
        let fresh = one_offs.fresh(now);
        fresh
            .map(|(domain, _)| domain.to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(freshen(&mut fixture, "short", 1), Response::Done);
    assert_eq!(freshen(&mut fixture, "ever", 0), Response::Done);
    assert_eq!(fresh(&fixture), ["ever", "short"]);
    fixture.cluster.advance(Duration::from_secs(1));
    assert_eq!(fresh(&fixture), ["ever"]);
    for number in 1..limits::DOMAINS_MAX {
        let response = freshen(&mut fixture, &number.to_string(), 1);
        assert_eq!(response, Response::Done, "{number}");
    }
    let before = fixture.cluster.state.clone();

    let refused = freshen(&mut fixture, "more", 1);

    assert_eq!(
        refused,
        Response::Rejected(Rejection::OneOff(OneOffRefusal::Domains))
    );
    assert_eq!(fixture.cluster.state.one_offs(), before.one_offs());
    assert_eq!(freshen(&mut fixture, "ever", 1), Response::Done);
    fixture.cluster.advance(Duration::from_secs(1));
    assert_eq!(freshen(&mut fixture, "more", 1), Response::Done);
    assert_eq!(fresh(&fixture), ["more"]);
}

/// The times in the log apply, and to a task those from when it was desired.
#[test]
fn one_off_times_come_from_raft_log() {
    let mut fixture = Fixture::new();
    let times = OneOffTimings {
        lost_after: Duration::from_secs(100),
        callback_claim: Duration::from_secs(70),
    };
    let at = fixture.cluster.now;
    fixture
        .cluster
        .apply(OneOffCommand::SetTimes { times }.at(at));
    fixture.desire_as(GUID, "apps", "http://localhost").unwrap();
    fixture.cluster.settle();
    let alloc_id = fixture.alloc();
    let alloc = fixture.cluster.state.allocs().get(&alloc_id).unwrap();
    let disconnect = alloc.group().disconnect;
    assert_eq!(disconnect.lost_after, Some(times.lost_after));
    let patience = Duration::from_secs(70);
    assert_eq!(disconnect.stop_on_client_after, Some(patience));
    let default = OneOffTimings::default();
    let at = fixture.cluster.now;
    fixture
        .cluster
        .apply(OneOffCommand::SetTimes { times: default }.at(at));
    assert_eq!(fixture.step(OneOffStep::Cancel), None);
    let gone_at = fixture.cluster.now;
    fixture
        .cluster
        .node_status(fixture.node_id, NodeStatus::Down);
    fixture.cluster.settle();
    let end = gone_at.plus(times.lost_after);
    assert_eq!(fixture.row().until, Some(end));
    fixture.cluster.now = end;
    fixture.converge();
    // Its callback is claimed for the time that the log has now.
    let until = end.plus(default.callback_claim);
    assert_eq!(fixture.row().until, Some(until));
}

#[test]
fn a_task_is_followed_to_its_end() {
    let mut fixture = Fixture::at(Some(OneOffState::Pending));
    assert_eq!(fixture.row().phase, Phase::Placing);
    fixture.cluster.settle();
    assert_eq!(fixture.row().phase, Phase::Preparing);
    fixture.report(ClientStatus::Running, None);
    assert_eq!(fixture.row().phase, Phase::Running);
    fixture.cluster.advance(Duration::from_secs(3));
    let end = WorkEnd {
        failed: true,
        failure_reason: "LOG: Exited with status 1".to_owned(),
        result: "so far".to_owned(),
        ..WorkEnd::default()
    };

    fixture.report(ClientStatus::Failed, Some(end.clone()));

    let row = fixture.row();
    assert_eq!((row.state, row.end), (OneOffState::Completed, Some(end)));
    assert_eq!(row.first_completed_at, Some(fixture.cluster.now));
    fixture.cluster.settle();
    assert_eq!(fixture.cluster.state.allocs().iter().count(), 1);
}

#[test]
fn cancelled_task_completes_after_alloc_stops() {
    let mut fixture = Fixture::at(Some(OneOffState::Running));
    assert_eq!(fixture.step(OneOffStep::Cancel), None);
    assert_eq!(fixture.row().phase, Phase::Cancelling);
    let alloc_id = fixture.alloc();
    let alloc = fixture.cluster.state.allocs().get(&alloc_id).unwrap();
    assert_eq!(alloc.desired(), DesiredStatus::Stop);

    fixture.report(ClientStatus::Complete, Some(WorkEnd::default()));

    let row = fixture.row();
    assert_eq!(row.state, OneOffState::Completed);
    assert_eq!(row.failure_reason(), CANCELLED);
    // Its answer may have been lost.
    assert_eq!(fixture.step(OneOffStep::Cancel), None);
}

#[test]
fn placed_one_off_task_is_never_rescheduled() {
    let mut fixture = Fixture::at(Some(OneOffState::Running));
    fixture.cluster.node(node("n2").build());
    fixture
        .cluster
        .node_status(fixture.node_id, NodeStatus::Down);
    for _ in 0..20 {
        fixture.cluster.settle();
        fixture.cluster.advance(Duration::from_secs(10));
    }

    let row = fixture.row();
    assert_eq!(row.state, OneOffState::Completed);
    assert_eq!(row.failure_reason(), NODE_GONE);
    assert_eq!(fixture.cluster.state.allocs().iter().count(), 1);
    // The node comes back and reports the end of the task: too late.
    fixture
        .cluster
        .node_status(fixture.node_id, NodeStatus::Ready);
    fixture.report(ClientStatus::Running, None);
    assert_eq!(fixture.row(), row);
}

#[test]
fn a_node_out_of_reach_is_waited_for() {
    let mut fixture = Fixture::at(Some(OneOffState::Running));
    fixture
        .cluster
        .node_status(fixture.node_id, NodeStatus::Down);
    fixture.cluster.settle();

    fixture.cluster.advance(Duration::from_secs(20));
    fixture.cluster.settle();
    assert_eq!(fixture.row().state, OneOffState::Running);
    fixture
        .cluster
        .node_status(fixture.node_id, NodeStatus::Ready);
    fixture.report(ClientStatus::Complete, Some(WorkEnd::default()));

    assert_eq!(fixture.row().failure_reason(), "");
    assert_eq!(fixture.row().state, OneOffState::Completed);
}

/// Diego fails every task when it finds no cell at all, for example when its own table of cells is lost.
#[test]
fn all_nodes_down_fails_no_task_immediately() {
    let mut fixture = Fixture::at(Some(OneOffState::Running));
    fixture.desire("waits").unwrap();
    fixture.desire("waits-too").unwrap();
    fixture.cluster.settle();
    fixture
        .cluster
        .node_status(fixture.node_id, NodeStatus::Down);
    let states = |fixture: &Fixture| {
        let rows = fixture.cluster.state.one_offs().iter();
        rows.map(|row| (row.state, row.failure_reason().to_owned()))
            .collect::<Vec<_>>()
    };
    let before = states(&fixture);
    for _ in 0..59 {
        fixture.cluster.advance(Duration::from_secs(1));
        fixture.converge();
        fixture.cluster.settle();
        assert_eq!(states(&fixture), before);
    }

    fixture.cluster.advance(Duration::from_secs(2));
    fixture.cluster.settle();

    let row = fixture.row();
    assert_eq!(
        (row.state, row.failure_reason()),
        (OneOffState::Completed, NODE_GONE)
    );
}

/// The task gives up its place, and is not placed again: it may have started.
#[test]
fn preempted_one_off_fails_and_is_not_rescheduled() {
    let mut fixture = Fixture::at(Some(OneOffState::Running));
    fixture.cluster.apply(
        ConfigCommand::SetScheduler {
            config: SchedulerConfig {
                preemption: PreemptionConfig {
                    system: true,
                    sysbatch: true,
                    batch: true,
                    service: true,
                },
                ..SchedulerConfig::default()
            },
            check_index: None,
        }
        .at(fixture.cluster.now),
    );
    fixture
        .cluster
        .run(job("more-important").priority(90).cpu_mhz(150).build());
    let row = fixture.row();
    assert_eq!(
        (row.state, row.phase),
        (OneOffState::Running, Phase::Cancelling)
    );
    // Only the report of its node shows that it has ended.
    fixture.converge();
    assert_eq!(fixture.row().state, OneOffState::Running);

    fixture.report(ClientStatus::Complete, Some(WorkEnd::default()));

    let row = fixture.row();
    assert_eq!(row.state, OneOffState::Completed);
    let end = row.end.as_ref().unwrap();
    assert!(end.failed);
    assert_eq!(end.failure_reason, "preempted by a more important job");
    fixture.cluster.node(node("n2").build());
    fixture.cluster.settle();
    let allocs = fixture.cluster.state.allocs();
    assert_eq!(allocs.of_job(&row.job_key()).count(), 1);
}

/// Returns task-1, cancelled and with its node gone, in either order, and the time at which the node was found gone.
fn cancelled_out_of_reach(cancelled_first: bool) -> (Fixture, Timestamp) {
    let mut fixture = Fixture::at(Some(OneOffState::Running));
    if cancelled_first {
        assert_eq!(fixture.step(OneOffStep::Cancel), None);
    }
    let gone_at = fixture.cluster.now;
    fixture
        .cluster
        .node_status(fixture.node_id, NodeStatus::Down);
    fixture.cluster.settle();
    if !cancelled_first {
        fixture.cluster.advance(Duration::from_secs(20));
        assert_eq!(fixture.step(OneOffStep::Cancel), None);
        fixture.cluster.settle();
    }
    let row = fixture.row();
    assert_eq!(
        (row.state, row.phase),
        (OneOffState::Running, Phase::Unreachable)
    );
    (fixture, gone_at)
}

/// A client that cancels a task out of reach receives that no process of it runs when its agent must have ended it.
#[test]
fn cancelled_unreachable_task_completes_after_lost_timeout() {
    for cancelled_first in [true, false] {
        let (mut fixture, gone_at) = cancelled_out_of_reach(cancelled_first);
        let end = gone_at.plus(muster_domain::one_off::LOST_AFTER);
        assert_eq!(fixture.row().until, Some(end), "{cancelled_first}");
        fixture.cluster.now = Timestamp(end.0 - 1);
        fixture.converge();
        assert_eq!(fixture.row().state, OneOffState::Running);
        fixture.cluster.now = end;

        fixture.converge();

        let row = fixture.row();
        assert_eq!(
            (row.state, row.until, row.failure_reason()),
            (OneOffState::Completed, None, NODE_GONE),
            "{cancelled_first}"
        );
    }
}

#[test]
fn reconnected_node_reports_end_of_cancelled_task() {
    for cancelled_first in [true, false] {
        let (mut fixture, gone_at) = cancelled_out_of_reach(cancelled_first);
        fixture
            .cluster
            .node_status(fixture.node_id, NodeStatus::Ready);
        // The node is in reach and has not reported the end of the task.
        fixture.cluster.now = gone_at.plus(muster_domain::one_off::LOST_AFTER);
        fixture.converge();
        assert_eq!(fixture.row().state, OneOffState::Running);
        fixture.report(ClientStatus::Running, None);
        assert_eq!(
            (fixture.row().phase, fixture.row().until),
            (Phase::Cancelling, None)
        );

        fixture.report(ClientStatus::Complete, Some(WorkEnd::default()));

        assert_eq!(fixture.row().failure_reason(), CANCELLED);
    }
}

/// Each time that its node was in reach, its agent starts its count anew.
#[test]
fn second_disconnect_restarts_lost_timeout() {
    let (mut fixture, gone_at) = cancelled_out_of_reach(true);
    fixture
        .cluster
        .node_status(fixture.node_id, NodeStatus::Ready);
    fixture.cluster.advance(Duration::from_secs(30));

    fixture
        .cluster
        .node_status(fixture.node_id, NodeStatus::Down);

    let again = gone_at.plus(Duration::from_secs(30));
    let end = again.plus(muster_domain::one_off::LOST_AFTER);
    assert_eq!(fixture.row().until, Some(end));
}

#[test]
fn a_plan_that_comes_late_places_nothing_twice() {
    let mut fixture = Fixture::new();
    fixture.desire(GUID).unwrap();
    let first = fixture.cluster.schedule_next().unwrap();
    let plans = |outcome: &crate::scheduler::ScheduleOutcome| {
        EvalCommand::ApplyPlans {
            plans: vec![outcome.plan.clone()],
            evals: outcome.update.clone().into_iter().collect(),
        }
        .at(Timestamp::from_millis(1_000_000))
    };
    fixture.cluster.apply(plans(&first));
    let mut again = plans(&first);
    // The second plan is made as if it had seen the effects of the first one.
    if let Command::Eval(EvalCommand::ApplyPlans { plans, .. }) = &mut again.command {
        plans[0].snapshot_index = fixture.cluster.state.applied();
    }

    let response = fixture.cluster.apply(again);

    let Response::PlansApplied { outcomes } = response else {
        panic!("{response:?}")
    };
    assert_eq!((outcomes[0].placed, outcomes[0].dropped), (0, 1));
}

/// The plan was made while the task ran out of reach. A collection by force must not meet an open evaluation.
#[test]
fn late_plan_adds_no_evaluation_of_ended_task() {
    let mut fixture = Fixture::at(Some(OneOffState::Running));
    let node_id = fixture.node_id;
    fixture.cluster.node_status(node_id, NodeStatus::Down);
    let outcome = fixture.cluster.schedule_next().unwrap();
    assert_eq!(outcome.plan.follow_ups.len(), 1);
    fixture.report(ClientStatus::Complete, Some(WorkEnd::default()));

    fixture
        .cluster
        .commit(vec![outcome], Vec::new(), &mut Vec::new());

    let key = fixture.row().job_key();
    let state = &fixture.cluster.state;
    assert_eq!(state.evals().open_of_job(&key).count(), 0);
    assert_eq!(state.jobs().get(&key).unwrap().status, JobStatus::Dead);
}

#[test]
fn a_task_without_room_waits_and_expires() {
    let mut fixture = Fixture::new();
    fixture.cluster.run(job("full").cpu_mhz(150).build());
    fixture.desire(GUID).unwrap();
    fixture.cluster.settle();
    fixture.cluster.advance(Duration::from_secs(59));
    fixture.converge();
    let row = fixture.row();
    assert_eq!((row.phase, row.rejections), (Phase::Queued, 1));
    assert_eq!(row.rejection, "insufficient resources: cpu");
    fixture.cluster.advance(Duration::from_secs(1));

    fixture.converge();

    assert_eq!(
        fixture.row().failure_reason(),
        "insufficient resources: cpu"
    );
    assert_eq!(fixture.row().state, OneOffState::Completed);
    fixture.cluster.stop("full");
    assert_eq!(
        fixture
            .cluster
            .state
            .allocs()
            .of_job(&fixture.row().job_key())
            .count(),
        0
    );
}

/// Returns the state and reason of a task with `definition` changed, on one node, after every duty has run.
fn reason_of(change: impl FnOnce(&mut Definition)) -> (OneOffState, String) {
    let mut fixture = Fixture::new();
    let mut task = new(GUID, "apps");
    change(&mut task.definition);
    fixture.desire_all(vec![task]).remove(0).unwrap();
    fixture.cluster.settle();
    fixture.fail_unplaceable();
    let row = fixture.row();
    (row.state, row.failure_reason().to_owned())
}

#[test]
fn task_that_no_node_could_hold_fails() {
    type Change = fn(&mut Definition);
    let cases: [(Change, &str); 6] = [
        (
            |it| it.memory_mb = 1 << 20,
            "insufficient resources: memory",
        ),
        (|it| it.disk_mb = 1 << 20, "insufficient resources: disk"),
        (
            |it| (it.memory_mb, it.disk_mb) = (1 << 20, 1 << 20),
            "insufficient resources: disk, memory",
        ),
        (
            |it| it.rootfs = "preloaded:cflinuxfs9".to_owned(),
            "found no compatible cell for required rootfs",
        ),
        (
            |it| it.placement_tags = vec!["b".to_owned(), "a".to_owned()],
            "found no compatible cell with placement tag(s) \"b\", \"a\"",
        ),
        (
            |it| it.placement_tags = vec![String::new()],
            "found no compatible cell with placement tag(s) \"\"",
        ),
    ];
    for (change, reason) in cases {
        assert_eq!(
            reason_of(change),
            (OneOffState::Completed, reason.to_owned())
        );
    }
}

/// A node that is down may come back, so its task waits.
#[test]
fn task_waits_while_some_node_could_hold_it() {
    let mut fixture = Fixture::new();
    let large = fixture
        .cluster
        .node(node("n2").cpu_mhz(200).memory_mb(1 << 30).build());
    fixture.cluster.node_status(large, NodeStatus::Down);
    let mut task = new(GUID, "apps");
    task.definition.memory_mb = 1 << 20;
    fixture.desire_all(vec![task]).remove(0).unwrap();
    fixture.cluster.settle();

    fixture.fail_unplaceable();

    let row = fixture.row();
    assert_eq!(
        (row.state, row.phase),
        (OneOffState::Pending, Phase::Queued)
    );
    assert_eq!(row.rejection, "insufficient resources: memory");
}

#[test]
fn empty_fleet_fails_no_task() {
    let mut fixture = Fixture::without_node();
    fixture.desire(GUID).unwrap();
    fixture.cluster.settle();

    fixture.fail_unplaceable();

    assert_eq!(fixture.row().state, OneOffState::Pending);
}

/// One node lacks memory, the other disk: no resource is short on both.
#[test]
fn rejection_names_resources_short_everywhere() {
    let mut fixture = Fixture::new();
    fixture
        .cluster
        .node(node("n2").cpu_mhz(10).memory_mb(1 << 30).build());
    let mut task = new(GUID, "apps");
    task.definition.memory_mb = 1 << 20;
    task.definition.disk_mb = 1 << 20;
    fixture.desire_all(vec![task]).remove(0).unwrap();

    fixture.cluster.settle();

    assert_eq!(fixture.row().rejection, "insufficient resources: disk");
}

#[test]
fn freed_capacity_places_blocked_task() {
    let mut fixture = Fixture::new();
    fixture.cluster.run(job("full").cpu_mhz(150).build());
    fixture.desire(GUID).unwrap();
    fixture.cluster.settle();
    let full = fixture.cluster.live("full")[0].id;
    fixture.cluster.stop("full");
    fixture.cluster.report(full, ClientStatus::Complete);

    fixture.cluster.settle();

    assert_eq!(fixture.row().phase, Phase::Preparing);
}

#[test]
fn expired_resolving_claim_can_be_repeated() {
    let mut fixture = Fixture::at(Some(OneOffState::Resolving));
    let completed_at = fixture.row().first_completed_at;
    fixture.cluster.advance(Duration::from_secs(30));

    fixture.converge();

    assert_eq!(fixture.row().state, OneOffState::Completed);
    assert_eq!(fixture.row().first_completed_at, completed_at);
    assert_eq!(fixture.step(claim()), None);
}

#[test]
fn unresolved_task_is_purged_with_job_and_allocs() {
    let mut fixture = Fixture::at(Some(OneOffState::Completed));
    fixture.cluster.settle();
    fixture.cluster.advance(Duration::from_secs(59));
    fixture.converge();
    assert!(!fixture.cluster.state.one_offs().is_empty());
    fixture.cluster.advance(Duration::from_secs(1));

    fixture.converge();

    let state = &fixture.cluster.state;
    assert!(state.one_offs().is_empty());
    let left = (
        state.jobs().len(),
        state.evals().len(),
        state.allocs().iter().count(),
    );
    assert_eq!(left, (0, 0, 0));
    assert!(
        fixture
            .cluster
            .effects
            .contains(&Effect::NodeForgot(fixture.node_id))
    );
}

#[test]
fn task_is_kept_until_callback_is_abandoned() {
    let mut fixture = Fixture::new();
    fixture
        .desire_as(GUID, "apps", "http://localhost/done?x=1")
        .unwrap();
    fixture.step(OneOffStep::Cancel);
    fixture.cluster.advance(Duration::from_hours(1));
    fixture.converge();
    assert_eq!(fixture.row().state, OneOffState::Completed);
    let owed = |fixture: &Fixture| {
        let one_offs = fixture.cluster.state.one_offs();
        let of_place = one_offs.callbacks("http://localhost").count();
        assert_eq!(one_offs.callback_places("").count(), of_place);
        of_place
    };
    assert_eq!(owed(&fixture), 1);
    fixture.step(claim());
    assert_eq!(owed(&fixture), 0);
    let claim = fixture.row().claim().unwrap();
    let given_up = OneOffStep::CallbackFailed {
        claim,
        next_at: None,
    };
    assert_eq!(fixture.step(given_up), None);
    fixture.converge();
    assert_eq!(fixture.row().state, OneOffState::Completed);

    fixture.cluster.advance(Duration::from_mins(1));
    fixture.converge();

    assert!(fixture.cluster.state.one_offs().is_empty());
}

#[test]
fn job_commands_on_one_off_jobs_are_refused() {
    let mut fixture = Fixture::at(Some(OneOffState::Running));
    let key = fixture.row().job_key();
    let at = fixture.cluster.now;
    let row = fixture.cluster.state.jobs().get(&key).unwrap();
    let spec = Box::new(row.current.spec.clone());
    let commands = [
        JobCommand::Register {
            spec,
            check_index: None,
            places: None,
        }
        .at(at),
        JobCommand::Purge { key: key.clone() }.at(at),
        JobCommand::Evaluate {
            key: key.clone(),
            force_reschedule: true,
        }
        .at(at),
    ];
    for command in commands {
        let response = fixture.cluster.apply(command);
        let refused = Rejection::Job(JobRejection::OfOneOff(key.clone()));
        assert_eq!(response, Response::Rejected(refused));
    }
}

#[test]
fn reused_guid_ignores_reports_of_former_alloc() {
    let mut fixture = Fixture::at(Some(OneOffState::Resolving));
    let former = fixture.alloc();
    fixture.step(OneOffStep::Delete { claim: None });
    fixture.desire(GUID).unwrap();
    fixture.cluster.settle();
    assert_ne!(fixture.alloc(), former);
    let before = fixture.row();

    fixture.cluster.apply(
        AllocCommand::Report {
            reports: vec![(
                fixture.node_id,
                vec![AllocReport {
                    alloc_id: former,
                    client_status: ClientStatus::Failed,
                    client_description: String::new(),
                    task_states: Vec::new(),
                    healthy: None,
                    end: Some(Box::new(WorkEnd::failure("former", Timestamp(0)))),
                    remote: Vec::new(),
                }],
            )],
        }
        .at(fixture.cluster.now),
    );

    assert_eq!(fixture.row(), before);
}

#[test]
fn an_earlier_generation_is_not_touched() {
    let mut fixture = Fixture::at(Some(OneOffState::Running));
    let changes = vec![OneOffChange {
        guid: GUID.to_owned(),
        generation: Some(LogIndex(1)),
        step: OneOffStep::Cancel,
    }];
    let at = fixture.cluster.now;

    let response = fixture
        .cluster
        .apply(OneOffCommand::Change { changes }.at(at));

    let unknown = OneOffRefusal::Unknown(GUID.to_owned());
    let outcomes = vec![Some(unknown)];
    assert_eq!(response, Response::OneOffsChanged { outcomes });
}

#[test]
fn places_that_are_owed_callbacks_take_turns() {
    let mut fixture = Fixture::new();
    for place in ["a", "b", "c"] {
        fixture
            .desire_as(place, "apps", &format!("http://{place}/"))
            .unwrap();
        let changes = vec![OneOffChange {
            guid: place.to_owned(),
            generation: None,
            step: OneOffStep::Cancel,
        }];
        let at = fixture.cluster.now;
        fixture
            .cluster
            .apply(OneOffCommand::Change { changes }.at(at));
    }
    let one_offs = fixture.cluster.state.one_offs();
    let from = |place: &str| one_offs.callback_places(place).collect::<Vec<_>>();

    assert_eq!(from(""), ["http://a", "http://b", "http://c"]);
    assert_eq!(from("http://a"), ["http://b", "http://c", "http://a"]);
    assert_eq!(from("http://c"), ["http://a", "http://b", "http://c"]);
}

#[test]
fn no_task_is_desired_while_registration_is_off() {
    let mut fixture = Fixture::new();
    let config = SchedulerConfig {
        reject_job_registration: true,
        ..SchedulerConfig::default()
    };
    let at = fixture.cluster.now;
    fixture.cluster.apply(
        ConfigCommand::SetScheduler {
            config,
            check_index: None,
        }
        .at(at),
    );

    assert_eq!(
        fixture.desire(GUID),
        Err(Rejection::Job(JobRejection::RegistrationOff))
    );
}
