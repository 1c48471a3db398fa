//! Consequences of an exceeded ephemeral disk.

use super::*;

/// The stop is like any other, but the allocation has failed, reports the reason, and restarts no task.
#[test]
fn an_exceeded_disk_fails_the_allocation_once() {
    let mut desired = service(&["a", "b"]);
    group(&mut desired).tasks[0].restart.attempts = 3;

    check(
        &desired,
        "1 prepared\n2 a started\n2 b started\n3 disk\n4 disk\n5 a exit 0\n6 b exit 0\n7 disk",
        expect![[r"
            begin => persist report!(pending: no task has started) prepare
            1 prepared => persist start:a start:b report(pending: no task has started)
            2 a started => persist report!(running: tasks are running)
            2 b started => persist report(running: tasks are running)
            3 disk => persist stop:a stop:b report(running: tasks are running)
            4 disk =>
            5 a exit 0 => persist report!(running unhealthy: tasks are running)
            6 b exit 0 => persist report!(failed unhealthy: 12 MiB of 10 MiB)
            7 disk =>
        "]],
    );
}

/// Neither the group's delay nor a task's delay applies, because a task that fills a disk would continue.
#[test]
fn no_delay_is_waited_for() {
    let mut desired = service(&["a"]);
    group(&mut desired).shutdown_delay = Duration::from_secs(50);
    group(&mut desired).tasks[0].shutdown_delay = Duration::from_mins(1);

    check(
        &desired,
        "1 prepared\n2 a started\n3 disk\n4 a exit 0",
        expect![[r"
            begin => persist report!(pending: no task has started) prepare
            1 prepared => persist start:a report(pending: no task has started)
            2 a started => persist report!(running: tasks are running)
            3 disk => persist stop:a report(running: tasks are running)
            4 a exit 0 => persist report!(failed unhealthy: 12 MiB of 10 MiB)
        "]],
    );
}

/// A stop that was requested before keeps its cause; only its delay ends.
#[test]
fn an_asked_stop_does_not_become_a_failure() {
    let mut desired = service(&["a"]);
    group(&mut desired).shutdown_delay = Duration::from_secs(50);

    check(
        &desired,
        "1 prepared\n2 a started\n3 stop\n4 disk\n5 a exit 0",
        expect![[r"
            begin => persist report!(pending: no task has started) prepare
            1 prepared => persist start:a report(pending: no task has started)
            2 a started => persist report!(running: tasks are running)
            3 stop => persist report(running: tasks are running)
            4 disk => persist stop:a report(running: tasks are running)
            5 a exit 0 => persist report!(complete: all tasks have ended)
        "]],
    );
}

#[test]
fn poststop_is_skipped_when_disk_exceeded() {
    check(
        &batch(&["a", "last@poststop"]),
        "1 prepared\n2 a started\n3 disk\n4 a exit 0",
        expect![[r"
            begin => persist report!(pending: no task has started) prepare
            1 prepared => persist start:a report(pending: no task has started)
            2 a started => persist report!(running: tasks are running)
            3 disk => persist stop:a report(running: tasks are running)
            4 a exit 0 => persist report!(failed: 12 MiB of 10 MiB)
        "]],
    );
}

/// Between two starts of its only task, the allocation has no process to stop.
#[test]
fn disk_exceeded_during_restart_delay_fails_task() {
    let mut desired = service(&["a"]);
    group(&mut desired).tasks[0].restart.attempts = 3;

    check(
        &desired,
        "1 prepared\n2 a started\n3 a exit 1\n4 disk",
        expect![[r"
            begin => persist report!(pending: no task has started) prepare
            1 prepared => persist start:a report(pending: no task has started)
            2 a started => persist report!(running: tasks are running)
            3 a exit 1 => persist report(running: tasks are running)
            4 disk => persist report!(failed unhealthy: 12 MiB of 10 MiB)
        "]],
    );
}

#[test]
fn the_next_agent_finishes_the_stop() {
    check(
        &service(&["a"]),
        "1 prepared\n2 a started\n3 disk\n4 reload\n5 a recovered\n6 a exit 0",
        expect![[r"
            begin => persist report!(pending: no task has started) prepare
            1 prepared => persist start:a report(pending: no task has started)
            2 a started => persist report!(running: tasks are running)
            3 disk => persist stop:a report(running: tasks are running)
            4 reload => recover:a
            5 a recovered => persist stop:a report!(running: tasks are running)
            6 a exit 0 => persist report!(failed unhealthy: 12 MiB of 10 MiB)
        "]],
    );
}

#[test]
fn lost_task_after_disk_exceeded_fails_alloc() {
    check(
        &service(&["a"]),
        "1 prepared\n2 a started\n3 disk\n4 reload\n5 a lost",
        expect![[r"
            begin => persist report!(pending: no task has started) prepare
            1 prepared => persist start:a report(pending: no task has started)
            2 a started => persist report!(running: tasks are running)
            3 disk => persist stop:a report(running: tasks are running)
            4 reload => recover:a
            5 a lost => persist report!(failed unhealthy: 12 MiB of 10 MiB)
        "]],
    );
}
