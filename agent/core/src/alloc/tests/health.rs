//! An allocation is healthy when its youngest process has run for 10 s, but not after 5 min.

use muster_domain::job::{HealthCheck, UpdateStrategy};

use super::*;

fn deployed(tasks: &[&str], edit: impl FnOnce(&mut UpdateStrategy)) -> DesiredAlloc {
    let mut desired = service(tasks);
    desired.deployment = Some(DeploymentId::at(LogIndex(1), 1));
    edit(group(&mut desired).update.get_or_insert_default());
    desired
}

#[test]
fn healthy_after_running_for_a_while() {
    check(
        &deployed(&["a", "b"], |_| {}),
        "1 prepared\n2 a started\n7 b started\n8 look\n16 timer\n17 timer\n18 look\n19 a exit 1",
        expect![[r"
            begin => persist report!(pending: no task has started) prepare
            1 prepared => persist start:a start:b report(pending: no task has started)
            2 a started => persist report!(running: tasks are running)
            7 b started => persist report(running: tasks are running)
            timer 17s to judge the allocation
            8 look =>
            16 timer =>
            17 timer => persist report!(running healthy: tasks are running)
            no timer
            18 look =>
            19 a exit 1 => persist report(running healthy: tasks are running)
        "]],
    );
}

/// The pause of 15 s, and the 10 s after it, count from the new process.
#[test]
fn a_restart_begins_anew() {
    check(
        &deployed(&["a"], |_| {}),
        "1 prepared\n2 a started\n9 a exit 1\n12 timer\n24 timer\n25 a started\n34 timer\n35 timer",
        expect![[r"
            begin => persist report!(pending: no task has started) prepare
            1 prepared => persist start:a report(pending: no task has started)
            2 a started => persist report!(running: tasks are running)
            9 a exit 1 => persist report(running: tasks are running)
            12 timer =>
            24 timer => persist start:a report(running: tasks are running)
            25 a started => persist report(running: tasks are running)
            34 timer =>
            35 timer => persist report!(running healthy: tasks are running)
        "]],
    );
}

#[test]
fn unhealthy_after_the_deadline() {
    check(
        &deployed(&["a"], |update| {
            update.healthy_deadline = Duration::from_secs(20);
        }),
        "1 prepared\n1 look\n19 timer\n20 timer\n21 a started\n40 timer",
        expect![[r"
            begin => persist report!(pending: no task has started) prepare
            1 prepared => persist start:a report(pending: no task has started)
            timer 20s to judge the allocation
            1 look =>
            19 timer =>
            20 timer => persist report!(pending unhealthy: no task has started)
            21 a started => persist report!(running unhealthy: tasks are running)
            40 timer =>
        "]],
    );
}

/// Both moments have passed at the check. 12 s was before 20 s, so the allocation is healthy.
#[test]
fn health_before_the_deadline_counts() {
    check(
        &deployed(&["a"], |update| {
            update.healthy_deadline = Duration::from_secs(20);
        }),
        "1 prepared\n2 a started\n90 timer",
        expect![[r"
            begin => persist report!(pending: no task has started) prepare
            1 prepared => persist start:a report(pending: no task has started)
            2 a started => persist report!(running: tasks are running)
            90 timer => persist report!(running healthy: tasks are running)
        "]],
    );
}

#[test]
fn an_operator_decides_by_hand() {
    check(
        &deployed(&["a"], |update| update.health_check = HealthCheck::Manual),
        "1 prepared\n2 a started\n3 look\n400 timer",
        expect![[r"
            begin => persist report!(pending: no task has started) prepare
            1 prepared => persist start:a report(pending: no task has started)
            2 a started => persist report!(running: tasks are running)
            no timer
            3 look =>
            400 timer =>
        "]],
    );
}

#[test]
fn another_deployment_asks_anew() {
    check(
        &deployed(&["a"], |_| {}),
        "1 prepared\n2 a started\n12 timer\n15 deployment 2\n16 a exit 1\n17 deployment 2\n18 deployment 3\n318 timer",
        expect![[r"
            begin => persist report!(pending: no task has started) prepare
            1 prepared => persist start:a report(pending: no task has started)
            2 a started => persist report!(running: tasks are running)
            12 timer => persist report!(running healthy: tasks are running)
            15 deployment 2 => persist report!(running healthy: tasks are running)
            16 a exit 1 => persist report(running healthy: tasks are running)
            17 deployment 2 =>
            18 deployment 3 => persist report(running: tasks are running)
            318 timer => persist start:a report!(running unhealthy: tasks are running)
        "]],
    );
}

/// Run time before the question counts, so a late question is answered at once.
#[test]
fn a_late_question_is_answered_at_once() {
    check(
        &service(&["a"]),
        "1 prepared\n2 a started\n12 timer\n100 deployment 1",
        expect![[r"
            begin => persist report!(pending: no task has started) prepare
            1 prepared => persist start:a report(pending: no task has started)
            2 a started => persist report!(running: tasks are running)
            12 timer => persist report!(running healthy: tasks are running)
            100 deployment 1 => persist report!(running healthy: tasks are running)
        "]],
    );
}

#[test]
fn prestart_and_poststart_tasks_count_for_health() {
    check(
        &deployed(
            &[
                "init@prestart",
                "proxy@prestart+",
                "web",
                "warm@poststart",
                "end@poststop",
            ],
            |_| {},
        ),
        "1 prepared\n2 init started\n2 proxy started\n3 init exit 0\n4 web started\n30 look\n31 warm started\n32 look\n33 warm exit 0\n41 timer",
        expect![[r"
            begin => persist report!(pending: no task has started) prepare
            1 prepared => persist start:init start:proxy report(pending: no task has started)
            2 init started => persist report!(running: tasks are running)
            2 proxy started => persist report(running: tasks are running)
            3 init exit 0 => persist start:web report(running: tasks are running)
            4 web started => persist start:warm report(running: tasks are running)
            timer 300s to judge the allocation
            30 look =>
            31 warm started => persist report(running: tasks are running)
            timer 41s to judge the allocation
            32 look =>
            33 warm exit 0 => persist report!(running healthy: tasks are running)
            41 timer =>
        "]],
    );
}

#[test]
fn an_answer_survives_the_agent() {
    check(
        &deployed(&["a"], |_| {}),
        "1 prepared\n2 a started\n12 timer\n13 reload\n14 a recovered\n15 a lost",
        expect![[r"
            begin => persist report!(pending: no task has started) prepare
            1 prepared => persist start:a report(pending: no task has started)
            2 a started => persist report!(running: tasks are running)
            12 timer => persist report!(running healthy: tasks are running)
            13 reload => recover:a
            14 a recovered => persist report!(running healthy: tasks are running)
            15 a lost => persist report!(failed healthy: task a failed: rebooted)
        "]],
    );
}

/// The process did not restart with the agent, so it is still healthy at 12 s.
#[test]
fn a_restarted_agent_goes_on_counting() {
    check(
        &deployed(&["a"], |_| {}),
        "1 prepared\n2 a started\n5 reload\n6 look\n6 a recovered\n7 look\n12 timer",
        expect![[r"
            begin => persist report!(pending: no task has started) prepare
            1 prepared => persist start:a report(pending: no task has started)
            2 a started => persist report!(running: tasks are running)
            5 reload => recover:a
            timer 300s to judge the allocation
            6 look =>
            6 a recovered => persist report!(running: tasks are running)
            timer 12s to judge the allocation
            7 look =>
            12 timer => persist report!(running healthy: tasks are running)
        "]],
    );
}

#[test]
fn a_stop_is_no_answer() {
    check(
        &deployed(&["a"], |_| {}),
        "1 prepared\n2 a started\n5 stop\n6 look\n7 a exit 0\n400 timer",
        expect![[r"
            begin => persist report!(pending: no task has started) prepare
            1 prepared => persist start:a report(pending: no task has started)
            2 a started => persist report!(running: tasks are running)
            5 stop => persist stop:a report(running: tasks are running)
            timer 15s to kill the task
            6 look =>
            7 a exit 0 => persist report!(complete: all tasks have ended)
            400 timer =>
        "]],
    );
}

#[test]
fn batch_jobs_have_no_health() {
    check(
        &batch(&["a"]),
        "1 prepared\n2 a started\n3 look\n400 timer\n401 a exit 1",
        expect![[r"
            begin => persist report!(pending: no task has started) prepare
            1 prepared => persist start:a report(pending: no task has started)
            2 a started => persist report!(running: tasks are running)
            no timer
            3 look =>
            400 timer =>
            401 a exit 1 => persist report!(failed: task a failed: the restart policy allows no restart)
        "]],
    );
}
