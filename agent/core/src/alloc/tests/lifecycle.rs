//! Prestart, poststart and poststop tasks, sidecars, and leaders.

use super::*;

#[test]
fn prestart_ends_before_main_starts() {
    check(
        &service(&["init@prestart", "web"]),
        "1 prepared\n2 init started\n3 init exit 0\n4 web started\n5 look",
        expect![[r"
            begin => persist report!(pending: no task has started) prepare
            1 prepared => persist start:init report(pending: no task has started)
            2 init started => persist report!(running: tasks are running)
            3 init exit 0 => persist start:web report(running: tasks are running)
            4 web started => persist report(running: tasks are running)
            timer 14s to judge the allocation
            5 look =>
        "]],
    );
}

#[test]
fn main_waits_until_its_sidecar_runs() {
    check(
        &service(&["proxy@prestart+", "web"]),
        "1 prepared\n2 proxy started\n3 web started\n4 proxy exit 0\n5 web exit 1\n20 timer\n20 web started",
        expect![[r"
            begin => persist report!(pending: no task has started) prepare
            1 prepared => persist start:proxy report(pending: no task has started)
            2 proxy started => persist start:web report!(running: tasks are running)
            3 web started => persist report(running: tasks are running)
            4 proxy exit 0 => persist report(running: tasks are running)
            5 web exit 1 => persist report(running: tasks are running)
            20 timer => persist start:proxy start:web report(running: tasks are running)
            20 web started => persist report(running: tasks are running)
        "]],
    );
}

#[test]
fn failed_prestart_fails_the_allocation() {
    check(
        &batch(&["init@prestart", "web", "after@poststop"]),
        "1 prepared\n2 init started\n3 init exit 1\n4 after started\n5 after exit 0",
        expect![[r"
            begin => persist report!(pending: no task has started) prepare
            1 prepared => persist start:init report(pending: no task has started)
            2 init started => persist report!(running: tasks are running)
            3 init exit 1 => persist start:after report(running: tasks are running)
            4 after started => persist report(running: tasks are running)
            5 after exit 0 => persist report!(failed: task init failed: the restart policy allows no restart)
        "]],
    );
}

#[test]
fn prestart_restarts_follow_its_own_restart_policy() {
    let mut desired = batch(&["init@prestart", "web"]);
    group(&mut desired).tasks[0].restart.attempts = 1;

    check(
        &desired,
        "1 prepared\n2 init started\n3 init exit 1\n18 timer\n19 init started\n20 init exit 0",
        expect![[r"
            begin => persist report!(pending: no task has started) prepare
            1 prepared => persist start:init report(pending: no task has started)
            2 init started => persist report!(running: tasks are running)
            3 init exit 1 => persist report(running: tasks are running)
            18 timer => persist start:init report(running: tasks are running)
            19 init started => persist report(running: tasks are running)
            20 init exit 0 => persist start:web report(running: tasks are running)
        "]],
    );
}

#[test]
fn poststart_follows_the_start_of_all_main_tasks() {
    check(
        &service(&["a", "b", "warm@poststart", "watch@poststart+"]),
        "1 prepared\n2 a started\n3 b started\n4 warm started\n4 watch started\n5 warm exit 0\n6 watch exit 0\n21 timer",
        expect![[r"
            begin => persist report!(pending: no task has started) prepare
            1 prepared => persist start:a start:b report(pending: no task has started)
            2 a started => persist report!(running: tasks are running)
            3 b started => persist start:warm start:watch report(running: tasks are running)
            4 warm started => persist report(running: tasks are running)
            4 watch started => persist report(running: tasks are running)
            5 warm exit 0 => persist report(running: tasks are running)
            6 watch exit 0 => persist report(running: tasks are running)
            21 timer => persist start:watch report(running: tasks are running)
        "]],
    );
}

#[test]
fn sidecars_end_with_the_main_tasks() {
    check(
        &batch(&["proxy@prestart+", "a", "b", "after@poststop"]),
        "1 prepared\n2 proxy started\n3 a started\n3 b started\n4 a exit 0\n5 b exit 0\n6 proxy exit 143\n7 after started\n8 after exit 0",
        expect![[r"
            begin => persist report!(pending: no task has started) prepare
            1 prepared => persist start:proxy report(pending: no task has started)
            2 proxy started => persist start:a start:b report!(running: tasks are running)
            3 a started => persist report(running: tasks are running)
            3 b started => persist report(running: tasks are running)
            4 a exit 0 => persist report(running: tasks are running)
            5 b exit 0 => persist stop:proxy report(running: tasks are running)
            6 proxy exit 143 => persist start:after report(running: tasks are running)
            7 after started => persist report(running: tasks are running)
            8 after exit 0 => persist report!(complete: all tasks have ended)
        "]],
    );
}

#[test]
fn a_stop_ends_sidecars_last() {
    check(
        &service(&["proxy@prestart+", "a", "b@leader", "agent@poststart+"]),
        "1 prepared\n1 proxy started\n2 a started\n2 b started\n2 agent started\n3 stop\n4 b exit 0\n5 a exit 0\n6 agent exit 0\n6 proxy exit 0",
        expect![[r"
            begin => persist report!(pending: no task has started) prepare
            1 prepared => persist start:proxy report(pending: no task has started)
            1 proxy started => persist start:a start:b report!(running: tasks are running)
            2 a started => persist report(running: tasks are running)
            2 b started => persist start:agent report(running: tasks are running)
            2 agent started => persist report(running: tasks are running)
            3 stop => persist stop:b report(running: tasks are running)
            4 b exit 0 => persist stop:a report(running: tasks are running)
            5 a exit 0 => persist stop:proxy stop:agent report(running: tasks are running)
            6 agent exit 0 => persist report(running: tasks are running)
            6 proxy exit 0 => persist report!(complete: all tasks have ended)
        "]],
    );
}

/// A main task ends before a short poststart task, which keeps its sidecar.
#[test]
fn poststart_ends_before_its_sidecars() {
    check(
        &batch(&["proxy@prestart+", "a", "note@poststart"]),
        "1 prepared\n2 proxy started\n3 a started\n4 a exit 0\n5 note started\n6 note exit 0\n7 proxy exit 0",
        expect![[r"
            begin => persist report!(pending: no task has started) prepare
            1 prepared => persist start:proxy report(pending: no task has started)
            2 proxy started => persist start:a report!(running: tasks are running)
            3 a started => persist start:note report(running: tasks are running)
            4 a exit 0 => persist report(running: tasks are running)
            5 note started => persist report(running: tasks are running)
            6 note exit 0 => persist stop:proxy report(running: tasks are running)
            7 proxy exit 0 => persist report!(complete: all tasks have ended)
        "]],
    );
}

#[test]
fn poststop_runs_after_a_stop() {
    check(
        &service(&["web", "after@poststop"]),
        "1 prepared\n2 web started\n3 stop\n4 web exit 0\n5 after started\n6 stop\n7 after exit 0",
        expect![[r"
            begin => persist report!(pending: no task has started) prepare
            1 prepared => persist start:web report(pending: no task has started)
            2 web started => persist report!(running: tasks are running)
            3 stop => persist stop:web report(running: tasks are running)
            4 web exit 0 => persist start:after report(running: tasks are running)
            5 after started => persist report(running: tasks are running)
            6 stop =>
            7 after exit 0 => persist report!(complete: all tasks have ended)
        "]],
    );
}

#[test]
fn poststop_runs_after_failure_and_may_fail() {
    check(
        &batch(&["a", "b", "after@poststop"]),
        "1 prepared\n2 a started\n2 b started\n3 a exit 1\n4 b exit 143\n5 after started\n6 after exit 7",
        expect![[r"
            begin => persist report!(pending: no task has started) prepare
            1 prepared => persist start:a start:b report(pending: no task has started)
            2 a started => persist report!(running: tasks are running)
            2 b started => persist report(running: tasks are running)
            3 a exit 1 => persist stop:b report(running: tasks are running)
            4 b exit 143 => persist start:after report(running: tasks are running)
            5 after started => persist report(running: tasks are running)
            6 after exit 7 => persist report!(failed: task a failed: the restart policy allows no restart)
        "]],
    );
}

#[test]
fn poststop_does_not_follow_unstarted_tasks() {
    check(
        &service(&["web", "after@poststop"]),
        "1 stop\n2 prepared\n3 timer",
        expect![[r"
            begin => persist report!(pending: no task has started) prepare
            1 stop => persist report!(complete: all tasks have ended)
            2 prepared => persist
            3 timer =>
        "]],
    );
}

/// A poststop task may never end, so a destroy does not wait for it.
#[test]
fn a_destroy_stops_poststop_too() {
    check(
        &service(&["web", "after@poststop"]),
        "1 prepared\n2 web started\n3 stop\n4 web exit 0\n5 after started\n6 destroy\n7 after exit 143",
        expect![[r"
            begin => persist report!(pending: no task has started) prepare
            1 prepared => persist start:web report(pending: no task has started)
            2 web started => persist report!(running: tasks are running)
            3 stop => persist stop:web report(running: tasks are running)
            4 web exit 0 => persist start:after report(running: tasks are running)
            5 after started => persist report(running: tasks are running)
            6 destroy => persist stop:after report(running: tasks are running)
            7 after exit 143 => persist report!(complete: all tasks have ended) destroy
        "]],
    );
}

#[test]
fn the_others_end_with_the_leader() {
    check(
        &batch(&["proxy@prestart+", "lead@leader", "log", "after@poststop"]),
        "1 prepared\n2 proxy started\n3 lead started\n3 log started\n4 lead exit 0\n5 proxy exit 0\n6 log exit 143\n7 after started\n8 after exit 0",
        expect![[r"
            begin => persist report!(pending: no task has started) prepare
            1 prepared => persist start:proxy report(pending: no task has started)
            2 proxy started => persist start:lead start:log report!(running: tasks are running)
            3 lead started => persist report(running: tasks are running)
            3 log started => persist report(running: tasks are running)
            4 lead exit 0 => persist stop:log report(running: tasks are running)
            5 proxy exit 0 => persist report(running: tasks are running)
            6 log exit 143 => persist start:after report(running: tasks are running)
            7 after started => persist report(running: tasks are running)
            8 after exit 0 => persist report!(complete: all tasks have ended)
        "]],
    );
}

#[test]
fn the_leader_is_stopped_before_the_others() {
    check(
        &service(&["log", "lead@leader", "proxy@prestart+"]),
        "1 prepared\n2 proxy started\n3 lead started\n3 log started\n4 stop\n5 lead exit 0\n6 log exit 0\n7 proxy exit 0",
        expect![[r"
            begin => persist report!(pending: no task has started) prepare
            1 prepared => persist start:proxy report(pending: no task has started)
            2 proxy started => persist start:log start:lead report!(running: tasks are running)
            3 lead started => persist report(running: tasks are running)
            3 log started => persist report(running: tasks are running)
            4 stop => persist stop:lead report(running: tasks are running)
            5 lead exit 0 => persist stop:log report(running: tasks are running)
            6 log exit 0 => persist stop:proxy report(running: tasks are running)
            7 proxy exit 0 => persist report!(complete: all tasks have ended)
        "]],
    );
}

/// A leader that is restarted has not ended.
#[test]
fn restarting_leader_ends_no_other_task() {
    check(
        &service(&["lead@leader", "log"]),
        "1 prepared\n2 lead started\n2 log started\n3 lead exit 1\n18 timer",
        expect![[r"
            begin => persist report!(pending: no task has started) prepare
            1 prepared => persist start:lead start:log report(pending: no task has started)
            2 lead started => persist report!(running: tasks are running)
            2 log started => persist report(running: tasks are running)
            3 lead exit 1 => persist report(running: tasks are running)
            18 timer => persist start:lead report(running: tasks are running)
        "]],
    );
}

#[test]
fn a_groups_delay_comes_before_the_leaders_stop() {
    let mut desired = service(&["lead@leader", "log"]);
    group(&mut desired).shutdown_delay = Duration::from_secs(10);

    check(
        &desired,
        "1 prepared\n2 lead started\n2 log started\n3 stop\n4 look\n12 timer\n13 timer\n14 lead exit 0\n15 log exit 0",
        expect![[r"
            begin => persist report!(pending: no task has started) prepare
            1 prepared => persist start:lead start:log report(pending: no task has started)
            2 lead started => persist report!(running: tasks are running)
            2 log started => persist report(running: tasks are running)
            3 stop => persist report(running: tasks are running)
            timer 13s to stop the tasks
            4 look =>
            12 timer =>
            13 timer => persist stop:lead report(running: tasks are running)
            14 lead exit 0 => persist stop:log report(running: tasks are running)
            15 log exit 0 => persist report!(complete: all tasks have ended)
        "]],
    );
}

#[test]
fn a_tasks_delay_is_its_own() {
    let mut desired = service(&["a", "b"]);
    group(&mut desired).tasks[0].shutdown_delay = Duration::from_secs(7);

    check(
        &desired,
        "1 prepared\n2 a started\n2 b started\n3 stop\n4 look\n5 b exit 0\n10 timer\n11 a exit 0",
        expect![[r"
            begin => persist report!(pending: no task has started) prepare
            1 prepared => persist start:a start:b report(pending: no task has started)
            2 a started => persist report!(running: tasks are running)
            2 b started => persist report(running: tasks are running)
            3 stop => persist stop:b report(running: tasks are running)
            timer 10s to stop the task
            4 look =>
            5 b exit 0 => persist report(running: tasks are running)
            10 timer => persist stop:a report(running: tasks are running)
            11 a exit 0 => persist report!(complete: all tasks have ended)
        "]],
    );
}

/// No process is left that the delay could serve.
#[test]
fn a_delay_ends_with_the_last_process() {
    let mut desired = service(&["a"]);
    group(&mut desired).shutdown_delay = Duration::from_secs(10);

    check(
        &desired,
        "1 prepared\n2 a started\n3 stop\n4 a exit 0\n5 look",
        expect![[r"
            begin => persist report!(pending: no task has started) prepare
            1 prepared => persist start:a report(pending: no task has started)
            2 a started => persist report!(running: tasks are running)
            3 stop => persist report(running: tasks are running)
            4 a exit 0 => persist report!(complete: all tasks have ended)
            no timer
            5 look =>
        "]],
    );
}

#[test]
fn a_delay_survives_the_agent() {
    let mut desired = service(&["a"]);
    group(&mut desired).shutdown_delay = Duration::from_secs(10);

    check(
        &desired,
        "1 prepared\n2 a started\n3 stop\n4 reload\n5 a recovered\n6 look\n13 timer",
        expect![[r"
            begin => persist report!(pending: no task has started) prepare
            1 prepared => persist start:a report(pending: no task has started)
            2 a started => persist report!(running: tasks are running)
            3 stop => persist report(running: tasks are running)
            4 reload => recover:a
            5 a recovered => persist report!(running: tasks are running)
            timer 13s to stop the tasks
            6 look =>
            13 timer => persist stop:a report(running: tasks are running)
        "]],
    );
}

/// Main tasks that were started once are started again, for every state of their sidecar.
#[test]
fn phases_survive_the_agent() {
    check(
        &service(&["proxy@prestart+", "web"]),
        "1 prepared\n2 proxy started\n3 web started\n4 proxy exit 1\n5 web exit 1\n6 reload\n20 timer",
        expect![[r"
            begin => persist report!(pending: no task has started) prepare
            1 prepared => persist start:proxy report(pending: no task has started)
            2 proxy started => persist start:web report!(running: tasks are running)
            3 web started => persist report(running: tasks are running)
            4 proxy exit 1 => persist report(running: tasks are running)
            5 web exit 1 => persist report(running: tasks are running)
            6 reload =>
            20 timer => persist start:proxy start:web report!(running: tasks are running)
        "]],
    );
}

#[test]
fn stop_without_servers_reports_its_reason() {
    check(
        &service(&["web"]),
        "1 prepared\n2 web started\n3 disconnected\n4 disconnected\n5 web exit 0\n6 reload\n7 look",
        expect![[r"
            begin => persist report!(pending: no task has started) prepare
            1 prepared => persist start:web report(pending: no task has started)
            2 web started => persist report!(running: tasks are running)
            3 disconnected => persist stop:web report(running: tasks are running)
            4 disconnected =>
            5 web exit 0 => persist report!(complete: stopped: no server was in reach)
            6 reload =>
            no timer
            7 look =>
        "]],
    );
}
