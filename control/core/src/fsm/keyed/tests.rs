use std::convert::Infallible;

use muster_domain::fixture::job;
use muster_domain::id::JobKey;
use muster_domain::job::JobSpec;

use super::*;
use crate::fsm::{JobCommand, OneOffChange, OneOffCommand, OneOffStep};
use crate::snapshot;
use crate::state::check;

const SECOND: u64 = 1_000_000_000;

fn key(text: &str) -> WriteKey {
    WriteKey::new(text).unwrap()
}

fn register(spec: JobSpec, at: u64) -> Entry {
    JobCommand::Register {
        spec: Box::new(spec),
        check_index: None,
        places: None,
    }
    .at(Timestamp(at))
}

fn apply_next(state: &mut State, entry: Entry) -> ApplyResult {
    let index = LogIndex(state.applied().0 + 1);
    let applied = super::super::apply(state, index, entry);
    assert_eq!(check::broken(state), Vec::<String>::new());
    applied
}

#[test]
fn repeated_idempotency_key_returns_same_response_without_change() {
    let mut state = State::default();
    let first = apply_next(&mut state, register(job("web").build(), 1).keyed(key("a")));
    let before = state.clone();

    let again = apply_next(&mut state, register(job("web").build(), 9).keyed(key("a")));

    assert_eq!(again.response, first.response);
    assert!(again.effects.is_empty() && again.changed.is_empty());
    assert_eq!(state.applied(), LogIndex(2));
    assert_eq!(state.hash(), before.hash());
    assert_eq!(state.evals().len(), 1);
}

/// Each try has another suffix, another time if a launch is forced, and another end of a claim: it is the same write.
#[test]
fn server_added_fields_do_not_change_fingerprints() {
    let dispatch = |suffix: &str| {
        JobCommand::Dispatch {
            key: JobKey::in_default("web"),
            suffix: suffix.to_owned(),
            payload: Vec::new(),
            meta: std::collections::BTreeMap::new(),
            idempotency_token: String::new(),
            priority: None,
        }
        .at(Timestamp(1))
    };
    let launch = |due, forced| {
        JobCommand::LaunchPeriodic {
            key: JobKey::in_default("web"),
            due: Timestamp(due),
            forced,
        }
        .at(Timestamp(1))
    };

    let same = dispatch("a").command.fingerprint() == dispatch("b").command.fingerprint();
    let forced = launch(1, true).command.fingerprint() == launch(2, true).command.fingerprint();
    let by_time = launch(1, false).command.fingerprint() == launch(2, false).command.fingerprint();

    let claim = |until, for_callback| {
        OneOffCommand::Change {
            changes: vec![OneOffChange {
                guid: "task-1".to_owned(),
                generation: None,
                step: OneOffStep::Claim {
                    until: Timestamp(until),
                    for_callback,
                },
            }],
        }
        .at(Timestamp(1))
    };
    let claims = claim(1, false).command.fingerprint() == claim(2, false).command.fingerprint();
    let callbacks = claim(1, true).command.fingerprint() == claim(1, false).command.fingerprint();

    assert_eq!((same, forced, by_time), (true, true, false));
    assert_eq!((claims, callbacks), (true, false));
}

#[test]
fn reused_key_for_different_write_is_refused() {
    let mut state = State::default();
    apply_next(&mut state, register(job("web").build(), 1).keyed(key("a")));

    let other = apply_next(&mut state, register(job("db").build(), 1).keyed(key("a")));

    let rejection = Rejection::KeyReused {
        key: key("a"),
        index: LogIndex(1),
    };
    assert_eq!(other.response, Response::Rejected(rejection));
    assert!(state.jobs().get(&JobKey::in_default("db")).is_none());
}

#[test]
fn a_refusal_is_given_again_too() {
    let mut state = State::default();
    let command = JobCommand::Evaluate {
        force_reschedule: false,
        key: JobKey::in_default("web"),
    }
    .at(Timestamp(1));
    let first = apply_next(&mut state, command.clone().keyed(key("a")));
    apply_next(&mut state, register(job("web").build(), 2));

    let again = apply_next(&mut state, command.keyed(key("a")));

    assert_eq!(again.response, first.response);
}

#[test]
fn a_restored_state_knows_the_answer() {
    let mut state = State::default();
    let first = apply_next(&mut state, register(job("web").build(), 1).keyed(key("a")));

    let records = snapshot::records(&state).map(Ok::<_, Infallible>);
    let mut restored = snapshot::restore(records).unwrap();

    assert_eq!(restored, state);
    let again = apply_next(
        &mut restored,
        register(job("web").build(), 1).keyed(key("a")),
    );
    assert_eq!(again.response, first.response);
}

#[test]
fn answers_are_forgotten_by_age_and_by_count() {
    let mut state = State::default();
    let keyed = |name: &str, at: u64, answers_max: u32, forget_before: u64| {
        let once = WriteDedup {
            key: key(name),
            fingerprint: 0,
            answers_max,
            forget_before: Timestamp(forget_before),
        };
        let Entry { at, command } = register(job(name).build(), at);
        let command = UnkeyedCommand(Box::new(command));
        Entry {
            at,
            command: Command::Keyed { once, command },
        }
    };
    for (at, name) in (1..).zip(["a", "b", "c"]) {
        apply_next(&mut state, keyed(name, at * SECOND, 10, 0));
    }

    apply_next(&mut state, keyed("d", 4 * SECOND, 10, 2 * SECOND));
    assert!(state.answers().get(&key("a")).is_none());
    assert_eq!(state.answers().len(), 3);

    apply_next(&mut state, keyed("e", 5 * SECOND, 2, 0));
    let kept: Vec<&str> = state.answers().iter().map(|row| row.key.as_str()).collect();
    assert_eq!(kept, ["d", "e"]);
}

#[test]
fn bytes_that_nest_keyed_commands_are_refused() {
    let inner = register(job("web").build(), 1).keyed(key("a"));
    let Command::Keyed { once, .. } = inner.command.clone() else {
        panic!("it has a key")
    };
    let command = UnkeyedCommand(Box::new(inner.command.clone()));
    let nested = Entry {
        at: inner.at,
        command: Command::Keyed { once, command },
    };
    let bytes = muster_wire::codec::encode(&nested).unwrap();

    assert!(muster_wire::codec::decode::<Entry>(&bytes).is_err());
    let bytes = muster_wire::codec::encode(&inner).unwrap();
    assert_eq!(muster_wire::codec::decode::<Entry>(&bytes).unwrap(), inner);
}

#[test]
fn a_key_on_a_keyed_command_changes_nothing() {
    let keyed = register(job("web").build(), 1).keyed(key("a"));

    assert_eq!(keyed.clone().keyed(key("b")), keyed);
}
