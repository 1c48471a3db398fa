//! Scripts: a line is `<seconds> <event>`; after `=>` come the runner's effects.

mod disk;
mod health;
mod laws;
mod lifecycle;
mod turns;

use std::fmt::Write as _;
use std::sync::Arc;

use expect_test::{Expect, expect};
use muster_domain::alloc::Exit;
use muster_domain::fixture;
use muster_domain::id::{DeploymentId, LogIndex};
use muster_domain::job::{JobSpec, JobType, Lifecycle, LifecycleHook, Task, TaskGroup};

use super::*;

fn desired(mut spec: JobSpec, tasks: &[&str]) -> DesiredAlloc {
    spec.groups[0].tasks = tasks.iter().map(|text| task(text)).collect();
    fixture::desired(AllocId::at(LogIndex(1), 0), fixture::version(spec))
}

/// A task: `name`, `name@leader`, or `name@hook` with a `+` for a sidecar.
fn task(text: &str) -> Task {
    let (name, role) = text.split_once('@').unwrap_or((text, ""));
    let mut task = fixture::task(name);
    task.leader = role == "leader";
    task.lifecycle = LifecycleHook::from_name(role.trim_end_matches('+')).map(|hook| Lifecycle {
        hook,
        sidecar: role.ends_with('+'),
    });
    task
}

fn group(desired: &mut DesiredAlloc) -> &mut TaskGroup {
    &mut Arc::make_mut(&mut desired.job).spec.groups[0]
}

fn service(tasks: &[&str]) -> DesiredAlloc {
    desired(fixture::job("web").build(), tasks)
}

fn batch(tasks: &[&str]) -> DesiredAlloc {
    let spec = fixture::job("sum").job_type(JobType::Batch).build();
    let mut desired = desired(spec, tasks);
    for task in &mut group(&mut desired).tasks {
        task.restart.attempts = 0;
    }
    desired
}

fn at(seconds: u64) -> Timestamp {
    Timestamp::from_millis(1_000 * seconds)
}

fn event(desired: &DesiredAlloc, words: &[&str]) -> Event {
    let task = |name: &str, input| Event::Task {
        task_at: desired
            .group()
            .unwrap()
            .tasks
            .iter()
            .position(|task| task.name == name)
            .unwrap(),
        input,
    };
    let exit = |code: &str| TaskInput::Exited {
        exit: Exit {
            code: code.parse().unwrap(),
            ..Exit::default()
        },
        detail: String::new(),
        end: None,
    };
    match words {
        ["run"] => Event::DesiredChanged(DesiredStatus::Run),
        ["stop"] => Event::DesiredChanged(DesiredStatus::Stop),
        ["evict"] => Event::DesiredChanged(DesiredStatus::Evict),
        ["turn"] => Event::TurnCame,
        ["prepared"] => Event::Prepared,
        ["prepare-failed"] => Event::PrepareFailed {
            reason: "no space left".into(),
        },
        ["timer"] => Event::TimerFired,
        ["disconnected"] => Event::Disconnected,
        ["destroy"] => Event::DestroyAsked,
        ["destroyed"] => Event::Destroyed,
        ["disk"] => Event::DiskExceeded {
            message: "12 MiB of 10 MiB".into(),
        },
        [name, "started"] => task(
            name,
            TaskInput::Started {
                note: String::new(),
            },
        ),
        [name, "elsewhere", handle] => task(
            name,
            TaskInput::RunsElsewhere {
                handle: vec![handle.parse().unwrap()],
            },
        ),
        [name, "detached"] => task(
            name,
            TaskInput::Detached {
                note: String::new(),
            },
        ),
        [name, "recovered"] => task(name, TaskInput::Recovered),
        [name, "gone"] => task(
            name,
            TaskInput::Exited {
                exit: Exit {
                    unknown: true,
                    ..Exit::default()
                },
                detail: String::new(),
                end: None,
            },
        ),
        [name, "lost"] => task(
            name,
            TaskInput::Lost {
                reason: "rebooted".into(),
            },
        ),
        [name, "fails"] => task(
            name,
            TaskInput::StartFailed {
                reason: "no such file".into(),
                retryable: false,
            },
        ),
        [name, "exit", code] => task(name, exit(code)),
        other => panic!("no event {other:?}"),
    }
}

fn drain(runner: &mut AllocRunner, desired: &DesiredAlloc) -> String {
    let mut text = String::new();
    while let Some(effect) = runner.poll_effect() {
        match effect {
            Effect::Persist => text.push_str(" persist"),
            Effect::PrepareAlloc => text.push_str(" prepare"),
            Effect::DestroyAlloc => text.push_str(" destroy"),
            Effect::Report { urgent } => {
                let report = runner.report();
                let urgent = if urgent { "!" } else { "" };
                let status = report.client_status.as_str();
                let health = match report.healthy {
                    None => "",
                    Some(true) => " healthy",
                    Some(false) => " unhealthy",
                };
                let mut remote = String::new();
                for it in &report.remote {
                    write!(remote, " {}={}", it.task, it.handle[0]).unwrap();
                }
                write!(
                    text,
                    " report{urgent}({status}{health}: {}{remote})",
                    report.client_description
                )
                .unwrap();
            }
            Effect::Task { task_at, effect } => {
                let name = &desired.group().unwrap().tasks[task_at].name;
                let word = match effect {
                    TaskEffect::Start { .. } => "start",
                    TaskEffect::Recover { .. } => "recover",
                    TaskEffect::Stop { .. } => "stop",
                    TaskEffect::TakeOver { .. } => "take-over",
                    TaskEffect::Detach => "detach",
                    TaskEffect::Force => "force",
                };
                write!(text, " {word}:{name}").unwrap();
            }
        }
    }
    text
}

fn timer(runner: &AllocRunner) -> String {
    runner.poll_timeout().map_or_else(
        || "no timer\n".to_owned(),
        |(time, why)| format!("timer {}s to {why}\n", time.0 / 1_000_000_000),
    )
}

fn play(mut runner: AllocRunner, desired: &DesiredAlloc, script: &str) -> String {
    let mut desired = desired.clone();
    let mut text = format!("begin =>{}\n", drain(&mut runner, &desired));
    for line in script
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
    {
        let (time, rest) = line.split_once(' ').unwrap();
        let now = at(time.parse().unwrap());
        let words: Vec<_> = rest.split(' ').collect();
        match words.as_slice() {
            ["reload"] => {
                let (saved, remote) = (runner.snapshot(), runner.remote_tasks());
                runner = AllocRunner::restore_with(&desired, saved, remote, &BTreeSet::new(), now)
                    .unwrap();
            }
            ["deployment", name] => {
                desired.deployment = Some(DeploymentId::at(LogIndex(1), name.parse().unwrap()));
                runner.handle_update(&desired, now).unwrap();
                runner.handle_event(Event::DesiredChanged(desired.desired), now);
            }
            ["told", name, take, leave] => {
                let handles = |number: &str| match number {
                    "0" => Vec::new(),
                    number => vec![RemoteHandle {
                        task: (*name).to_owned(),
                        handle: vec![number.parse().unwrap()],
                    }],
                };
                runner.handle_remote(&RemoteAlloc {
                    alloc_id: desired.alloc_id,
                    take: handles(take),
                    leave: handles(leave),
                });
            }
            ["look"] => text.push_str(&timer(&runner)),
            words => runner.handle_event(event(&desired, words), now),
        }
        writeln!(text, "{line} =>{}", drain(&mut runner, &desired)).unwrap();
    }
    text
}

fn check(desired: &DesiredAlloc, script: &str, expected: Expect) {
    let runner = AllocRunner::new(desired, at(0)).unwrap();
    expected.assert_eq(&play(runner, desired, script));
}

#[test]
fn tasks_start_after_directories() {
    check(
        &service(&["web", "log"]),
        "1 prepared\n2 web started\n3 log started",
        expect![[r"
        begin => persist report!(pending: no task has started) prepare
        1 prepared => persist start:web start:log report(pending: no task has started)
        2 web started => persist report!(running: tasks are running)
        3 log started => persist report(running: tasks are running)
    "]],
    );
}

#[test]
fn batch_is_complete_when_all_ended_well() {
    check(
        &batch(&["a", "b"]),
        "1 prepared\n2 a started\n2 b started\n3 a exit 0\n4 b exit 0",
        expect![[r"
            begin => persist report!(pending: no task has started) prepare
            1 prepared => persist start:a start:b report(pending: no task has started)
            2 a started => persist report!(running: tasks are running)
            2 b started => persist report(running: tasks are running)
            3 a exit 0 => persist report(running: tasks are running)
            4 b exit 0 => persist report!(complete: all tasks have ended)
        "]],
    );
}

/// `b` still runs when `a` has failed. The failure is reported only after `b` has ended.
#[test]
fn failure_is_reported_after_all_tasks_ended() {
    check(
        &batch(&["a", "b"]),
        "1 prepared\n2 a started\n2 b started\n3 a exit 1\n4 b exit 143",
        expect![[r"
            begin => persist report!(pending: no task has started) prepare
            1 prepared => persist start:a start:b report(pending: no task has started)
            2 a started => persist report!(running: tasks are running)
            2 b started => persist report(running: tasks are running)
            3 a exit 1 => persist stop:b report(running: tasks are running)
            4 b exit 143 => persist report!(failed: task a failed: the restart policy allows no restart)
        "]],
    );
}

#[test]
fn a_task_that_cannot_start_stops_its_siblings() {
    check(
        &service(&["a", "b"]),
        "1 prepared\n2 a started\n3 b fails\n4 a exit 0",
        expect![[r"
            begin => persist report!(pending: no task has started) prepare
            1 prepared => persist start:a start:b report(pending: no task has started)
            2 a started => persist report!(running: tasks are running)
            3 b fails => persist stop:a report!(running unhealthy: tasks are running)
            4 a exit 0 => persist report!(failed unhealthy: task b failed: the driver says that a retry cannot help)
        "]],
    );
}

/// A message while the directories are made becomes an event of each task, and the allocation stays pending.
#[test]
fn progress_message_becomes_task_event() {
    let desired = service(&["web", "db"]);
    let mut runner = AllocRunner::new(&desired, at(0)).unwrap();

    let message = "waiting for data".to_owned();
    runner.handle_event(Event::Message { message }, at(1));

    for task in runner.task_states() {
        let last = task.events.last().unwrap();
        assert_eq!(last.message, "waiting for data");
        assert_eq!(last.kind, TaskEventKind::Setup);
    }
    assert_eq!(runner.client_status(), ClientStatus::Pending);
    assert!(!runner.is_stopping());
}

/// An allocation that is stopped before its directories exist is stopping at once.
#[test]
fn stop_during_setup_marks_alloc_stopping() {
    for event in [
        Event::DesiredChanged(DesiredStatus::Stop),
        Event::DestroyAsked,
        Event::Disconnected,
    ] {
        let mut runner = AllocRunner::new(&service(&["web"]), at(0)).unwrap();

        runner.handle_event(event.clone(), at(1));

        assert!(runner.is_stopping(), "{event:?}");
    }
}

#[test]
fn directories_that_cannot_be_made_fail_all() {
    check(
        &service(&["a", "b"]),
        "1 prepare-failed",
        expect![[r"
            begin => persist report!(pending: no task has started) prepare
            1 prepare-failed => persist report!(failed unhealthy: task a failed: no space left)
        "]],
    );
}

#[test]
fn stop_ends_every_task() {
    check(
        &service(&["a", "b"]),
        "1 prepared\n2 a started\n2 b started\n3 stop\n3 stop\n3 run\n4 a exit 0\n5 b exit 0",
        expect![[r"
            begin => persist report!(pending: no task has started) prepare
            1 prepared => persist start:a start:b report(pending: no task has started)
            2 a started => persist report!(running: tasks are running)
            2 b started => persist report(running: tasks are running)
            3 stop => persist stop:a stop:b report(running: tasks are running)
            3 stop =>
            3 run =>
            4 a exit 0 => persist report(running: tasks are running)
            5 b exit 0 => persist report!(complete: all tasks have ended)
        "]],
    );
}

#[test]
fn stop_before_directories_starts_nothing() {
    check(
        &service(&["a"]),
        "1 evict\n2 prepared\n3 timer",
        expect![[r"
        begin => persist report!(pending: no task has started) prepare
        1 evict => persist report!(complete: all tasks have ended)
        2 prepared => persist
        3 timer =>
    "]],
    );
}

#[test]
fn an_allocation_born_stopped_does_nothing() {
    let mut desired = service(&["a"]);
    desired.desired = DesiredStatus::Stop;

    check(
        &desired,
        "1 timer",
        expect![[r"
        begin => persist report!(complete: all tasks have ended)
        1 timer =>
    "]],
    );
}

#[test]
fn destroy_waits_until_nothing_runs() {
    check(
        &service(&["a"]),
        "1 prepared\n2 a started\n3 destroy\n4 a exit 0\n5 destroy\n6 destroyed\n7 timer",
        expect![[r"
            begin => persist report!(pending: no task has started) prepare
            1 prepared => persist start:a report(pending: no task has started)
            2 a started => persist report!(running: tasks are running)
            3 destroy => persist stop:a report(running: tasks are running)
            4 a exit 0 => persist report!(complete: all tasks have ended) destroy
            5 destroy =>
            6 destroyed =>
            7 timer =>
        "]],
    );
}

#[test]
fn destroy_of_a_finished_allocation_is_immediate() {
    check(
        &batch(&["a"]),
        "1 prepared\n2 a started\n3 a exit 0\n4 destroy",
        expect![[r"
        begin => persist report!(pending: no task has started) prepare
        1 prepared => persist start:a report(pending: no task has started)
        2 a started => persist report!(running: tasks are running)
        3 a exit 0 => persist report!(complete: all tasks have ended)
        4 destroy => persist destroy
    "]],
    );
}

#[test]
fn a_destroy_survives_the_agent() {
    check(
        &service(&["a"]),
        "1 prepared\n2 a started\n3 destroy\n4 reload\n5 a recovered\n6 a exit 0",
        expect![[r"
            begin => persist report!(pending: no task has started) prepare
            1 prepared => persist start:a report(pending: no task has started)
            2 a started => persist report!(running: tasks are running)
            3 destroy => persist stop:a report(running: tasks are running)
            4 reload => recover:a
            5 a recovered => persist stop:a report!(running: tasks are running)
            6 a exit 0 => persist report!(complete: all tasks have ended) destroy
        "]],
    );
}

#[test]
fn a_restarted_agent_recovers_and_starts_nothing() {
    check(
        &service(&["a", "b"]),
        "1 prepared\n2 a started\n2 b started\n3 reload\n4 a recovered\n4 b recovered\n5 timer",
        expect![[r"
            begin => persist report!(pending: no task has started) prepare
            1 prepared => persist start:a start:b report(pending: no task has started)
            2 a started => persist report!(running: tasks are running)
            2 b started => persist report(running: tasks are running)
            3 reload => recover:a recover:b
            4 a recovered => persist report!(running: tasks are running)
            4 b recovered => persist report(running: tasks are running)
            5 timer =>
        "]],
    );
}

#[test]
fn a_finished_allocation_reloads_in_silence() {
    check(
        &batch(&["a"]),
        "1 prepared\n2 a started\n3 a exit 0\n4 reload\n5 timer",
        expect![[r"
        begin => persist report!(pending: no task has started) prepare
        1 prepared => persist start:a report(pending: no task has started)
        2 a started => persist report!(running: tasks are running)
        3 a exit 0 => persist report!(complete: all tasks have ended)
        4 reload =>
        5 timer =>
    "]],
    );
}

#[test]
fn a_reboot_fails_the_allocation() {
    check(
        &service(&["a"]),
        "1 prepared\n2 a started\n3 reload\n4 a lost",
        expect![[r"
            begin => persist report!(pending: no task has started) prepare
            1 prepared => persist start:a report(pending: no task has started)
            2 a started => persist report!(running: tasks are running)
            3 reload => recover:a
            4 a lost => persist report!(failed unhealthy: task a failed: rebooted)
        "]],
    );
}

#[test]
fn an_adopted_allocation_starts_nothing_before_the_answer() {
    let desired = service(&["a", "b"]);
    let runner = AllocRunner::adopt(&desired, at(0)).unwrap();

    let played = play(
        runner,
        &desired,
        "1 prepared\n2 b recovered\n3 a gone\n18 timer",
    );

    expect![[r"
        begin => persist recover:a recover:b report!(running: tasks are running) prepare
        1 prepared => persist
        2 b recovered => persist report(running: tasks are running)
        3 a gone => persist report(running: tasks are running)
        18 timer => persist start:a report(running: tasks are running)
    "]]
    .assert_eq(&played);
}

#[test]
fn a_restart_keeps_the_allocation_running() {
    check(
        &service(&["a"]),
        "1 prepared\n2 a started\n3 a exit 1\n18 timer\n19 a started",
        expect![[r"
        begin => persist report!(pending: no task has started) prepare
        1 prepared => persist start:a report(pending: no task has started)
        2 a started => persist report!(running: tasks are running)
        3 a exit 1 => persist report(running: tasks are running)
        18 timer => persist start:a report(running: tasks are running)
        19 a started => persist report(running: tasks are running)
    "]],
    );
}

#[test]
fn finished_is_when_the_last_task_ended() {
    let desired = batch(&["a", "b"]);
    let mut runner = AllocRunner::new(&desired, at(0)).unwrap();
    let words = [
        (1, "prepared"),
        (2, "a started"),
        (2, "b started"),
        (3, "a exit 0"),
        (7, "b exit 0"),
    ];
    for (time, line) in words {
        assert_eq!(runner.finished_at(), None);
        runner.handle_event(
            event(&desired, &line.split(' ').collect::<Vec<_>>()),
            at(time),
        );
    }

    assert_eq!(runner.finished_at(), Some(at(7)));
}

#[test]
fn a_group_that_is_not_there_is_refused() {
    let mut desired = service(&["a"]);
    desired.group_at = 7;

    let refused = AllocRunner::new(&desired, at(0)).unwrap_err();

    assert!(
        matches!(refused, MalformedAllocError::Group { group_at: 7, .. }),
        "{refused}"
    );
}

#[test]
fn a_record_of_another_group_is_refused() {
    let snapshot = AllocRunner::new(&service(&["a"]), at(0))
        .unwrap()
        .snapshot();

    let refused = AllocRunner::restore(&service(&["a", "b"]), snapshot, at(1)).unwrap_err();

    assert!(
        matches!(
            refused,
            MalformedAllocError::Tasks {
                found: 1,
                wanted: 2,
                ..
            }
        ),
        "{refused}"
    );
}

#[test]
fn the_earliest_timer_counts() {
    let desired = service(&["a"]);
    let mut runner = AllocRunner::new(&desired, at(0)).unwrap();
    for (time, line) in [(1, "prepared"), (2, "a started"), (3, "a exit 1")] {
        runner.handle_event(
            event(&desired, &line.split(' ').collect::<Vec<_>>()),
            at(time),
        );
    }

    assert_eq!(runner.poll_timeout(), Some((at(18), "start the task")));
}

#[test]
fn an_update_in_place_changes_later_decisions() {
    let desired = batch(&["a"]);
    let mut runner = AllocRunner::new(&desired, at(0)).unwrap();
    let mut updated = desired.clone();
    group(&mut updated).tasks[0].restart.attempts = 1;

    runner.handle_update(&updated, at(0)).unwrap();

    let played = play(runner, &desired, "1 prepared\n2 a started\n3 a exit 1");
    expect![[r"
        begin => persist report!(pending: no task has started) prepare
        1 prepared => persist start:a report(pending: no task has started)
        2 a started => persist report!(running: tasks are running)
        3 a exit 1 => persist report(running: tasks are running)
    "]]
    .assert_eq(&played);
}

#[test]
fn an_update_with_other_tasks_is_refused() {
    let mut runner = AllocRunner::new(&service(&["a", "b"]), at(0)).unwrap();

    for tasks in [["a"].as_slice(), &["a", "c"], &["b", "a"]] {
        assert!(
            runner.handle_update(&service(tasks), at(0)).is_err(),
            "{tasks:?}"
        );
    }
}

/// A remote task is among other tasks. Its handle is reported, and it is left running while they are stopped.
#[test]
fn a_remote_task_is_left_beside_others() {
    check(
        &service(&["far", "near"]),
        "1 prepared\n2 far elsewhere 1\n2 far started\n2 near started\n3 told far 0 1\n3 stop\n4 reload\n5 far recovered\n5 near recovered\n6 far detached\n6 near exit 0",
        expect![[r"
            begin => persist report!(pending: no task has started) prepare
            1 prepared => persist start:far start:near report(pending: no task has started)
            2 far elsewhere 1 => persist report(pending: no task has started far=1)
            2 far started => persist report!(running: tasks are running far=1)
            2 near started => persist report(running: tasks are running far=1)
            3 told far 0 1 =>
            3 stop => persist detach:far stop:near report(running: tasks are running far=1)
            4 reload => recover:far recover:near
            5 far recovered => persist detach:far report!(running: tasks are running far=1)
            5 near recovered => persist stop:near report(running: tasks are running far=1)
            6 far detached => persist report(running: tasks are running)
            6 near exit 0 => persist report!(complete: all tasks have ended)
        "]],
    );
}

/// Without directories the task can neither be taken over nor stopped.
#[test]
fn remote_task_is_stopped_after_take_over() {
    let desired = service(&["far", "near"]);
    let remote = RemoteAlloc {
        alloc_id: desired.alloc_id,
        take: vec![RemoteHandle {
            task: "far".to_owned(),
            handle: vec![1],
        }],
        leave: Vec::new(),
    };
    let runner = AllocRunner::taking(&desired, &remote, &BTreeSet::new(), at(0)).unwrap();

    let script = "0 stop\n1 prepared\n2 far elsewhere 1\n2 far started\n3 far exit 0";

    expect![[r"
        begin => persist report!(pending: no task has started far=1) prepare
        0 stop => persist report(pending: no task has started far=1)
        1 prepared => persist take-over:far report(pending: no task has started far=1)
        2 far elsewhere 1 => persist report(pending: no task has started far=1)
        2 far started => persist stop:far report!(running: tasks are running far=1)
        3 far exit 0 => persist report!(complete: all tasks have ended)
    "]]
    .assert_eq(&play(runner, &desired, script));
}

/// A remote task runs on when the control plane has forgotten its allocation, which is destroyed on this node.
#[test]
fn a_forgotten_allocation_leaves_its_remote_task() {
    check(
        &service(&["far"]),
        "1 prepared\n2 far elsewhere 1\n2 far started\n3 destroy\n4 far detached",
        expect![[r"
            begin => persist report!(pending: no task has started) prepare
            1 prepared => persist start:far report(pending: no task has started)
            2 far elsewhere 1 => persist report(pending: no task has started far=1)
            2 far started => persist report!(running: tasks are running far=1)
            3 destroy => persist detach:far report(running: tasks are running far=1)
            4 far detached => persist report!(complete: all tasks have ended) destroy
        "]],
    );
}
