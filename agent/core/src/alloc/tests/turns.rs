//! An allocation that waits for others to end.

use super::*;

fn waiting(desired: &DesiredAlloc) -> AllocRunner {
    let before = BTreeSet::from([AllocId::at(LogIndex(0), 7)]);
    let remote = RemoteAlloc::none(desired.alloc_id);
    AllocRunner::taking(desired, &remote, &before, at(0)).unwrap()
}

fn check_waiting(script: &str, expected: Expect) {
    let desired = service(&["web"]);
    expected.assert_eq(&play(waiting(&desired), &desired, script));
}

#[test]
fn it_begins_when_its_turn_comes() {
    check_waiting(
        "1 timer\n2 turn\n3 prepared\n4 web started\n5 turn",
        expect![[r"
            begin => persist report!(pending: no task has started)
            1 timer =>
            2 turn => prepare
            3 prepared => persist start:web report(pending: no task has started)
            4 web started => persist report!(running: tasks are running)
            5 turn =>
        "]],
    );
}

#[test]
fn alloc_stopped_while_waiting_never_starts() {
    check_waiting(
        "1 stop\n2 turn\n3 destroy\n4 destroyed",
        expect![[r"
        begin => persist report!(pending: no task has started)
        1 stop => persist report!(complete: all tasks have ended)
        2 turn =>
        3 destroy => persist destroy
        4 destroyed =>
    "]],
    );
}

#[test]
fn alloc_destroyed_while_waiting_is_removed() {
    check_waiting(
        "1 destroy\n2 destroyed\n3 turn",
        expect![[r"
        begin => persist report!(pending: no task has started)
        1 destroy => persist report!(complete: all tasks have ended) destroy
        2 destroyed =>
        3 turn =>
    "]],
    );
}

/// The next agent determines the awaited allocations anew: there is none any more.
#[test]
fn waiting_alloc_may_start_after_agent_restart() {
    check_waiting(
        "1 reload\n2 prepared\n3 web started",
        expect![[r"
        begin => persist report!(pending: no task has started)
        1 reload => prepare
        2 prepared => persist start:web report!(pending: no task has started)
        3 web started => persist report!(running: tasks are running)
    "]],
    );
}

#[test]
fn task_event_names_the_awaited_alloc() {
    let runner = waiting(&service(&["web"]));

    let task = runner.task_states().next().unwrap();
    let message = &task.events.last().unwrap().message;
    assert!(
        message.ends_with(&AllocId::at(LogIndex(0), 7).to_string()),
        "{message}"
    );
}
