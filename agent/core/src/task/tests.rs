//! Scripts: a line is `<seconds> <input>`; after `=>` come the runner's effects, then the state.

use std::fmt::Write as _;

use expect_test::{Expect, expect};
use muster_domain::fixture;
use muster_domain::job::RestartMode;

use super::*;

mod remote;

fn policy(job_type: JobType, attempts: u32, mode: RestartMode) -> TaskPolicy {
    let mut task = fixture::task("main");
    task.restart = RestartPolicy {
        attempts,
        interval: Duration::from_mins(1),
        delay: Duration::from_secs(10),
        mode,
    };
    TaskPolicy::of(job_type, &task)
}

fn service() -> TaskPolicy {
    policy(JobType::Service, 2, RestartMode::Fail)
}

fn at(seconds: u64) -> Timestamp {
    Timestamp::from_millis(1_000 * seconds)
}

fn seconds(time: Timestamp) -> u64 {
    time.0 / 1_000_000_000
}

fn input(words: &[&str]) -> TaskInput {
    let exit = |exit| TaskInput::Exited {
        exit,
        detail: String::new(),
        end: None,
    };
    match words {
        ["started"] => TaskInput::Started {
            note: String::new(),
        },
        ["started", note] => TaskInput::Started {
            note: (*note).to_owned(),
        },
        ["fails", "fatal"] => TaskInput::StartFailed {
            reason: "no such file".into(),
            retryable: false,
        },
        ["fails", "retryable"] => TaskInput::StartFailed {
            reason: "busy".into(),
            retryable: true,
        },
        ["exit", "oom"] => exit(Exit {
            signal: 9,
            oom_killed: true,
            ..Exit::default()
        }),
        ["exit", "unknown"] => exit(Exit {
            unknown: true,
            ..Exit::default()
        }),
        ["exit", code] => exit(Exit {
            code: code.parse().unwrap(),
            ..Exit::default()
        }),
        ["signal", signal] => exit(Exit {
            signal: signal.parse().unwrap(),
            ..Exit::default()
        }),
        ["elsewhere", handle] => TaskInput::RunsElsewhere {
            handle: vec![handle.parse().unwrap()],
        },
        ["nothing-to-take"] => TaskInput::NothingToTake {
            reason: "the host has no process 1".into(),
        },
        ["detached"] => TaskInput::Detached {
            note: String::new(),
        },
        ["recovered"] => TaskInput::Recovered,
        ["never-started"] => TaskInput::NeverStarted,
        ["lost"] => TaskInput::Lost {
            reason: "the machine was rebooted".into(),
        },
        ["stop-failed"] => TaskInput::StopFailed {
            reason: "driver gone".into(),
        },
        other => panic!("no input {other:?}"),
    }
}

fn drain(runner: &mut TaskRunner) -> String {
    let mut text = String::new();
    while let Some(effect) = runner.poll_effect() {
        match effect {
            TaskEffect::Start { attempt } => write!(text, " start#{attempt}").unwrap(),
            TaskEffect::Recover { attempt } => write!(text, " recover#{attempt}").unwrap(),
            TaskEffect::Stop { signal, timeout } => {
                write!(text, " stop({signal},{timeout:?})").unwrap();
            }
            TaskEffect::TakeOver { attempt, handle } => {
                write!(text, " take-over#{attempt}({})", number(Some(&handle))).unwrap();
            }
            TaskEffect::Detach => text.push_str(" detach"),
            TaskEffect::Force => text.push_str(" force"),
        }
    }
    text
}

/// The number of a handle in scripts; 0 means no handle.
fn number(handle: Option<&[u8]>) -> u8 {
    handle.map_or(0, |handle| handle[0])
}

fn handle(number: &str) -> Option<Vec<u8>> {
    let number: u8 = number.parse().unwrap();
    (number > 0).then(|| vec![number])
}

fn shown(runner: &TaskRunner) -> String {
    let state = runner.state();
    let timer = runner.poll_timeout().map_or(String::new(), |(time, why)| {
        format!(" timer {}s to {why}", seconds(time))
    });
    let failed = if state.failed { " failed" } else { "" };
    let event = state.events.last().map_or(String::new(), |event| {
        format!("{}: {}", event.kind.as_str(), event.message)
    });
    let held = number(runner.remote().current_handle());
    let held = if held > 0 {
        format!(" holds {held}")
    } else {
        String::new()
    };
    format!(
        "{}{failed} restarts={}{timer}{held} | {event}",
        state.phase.as_str(),
        state.restarts
    )
}

fn play(mut runner: TaskRunner, script: &str) -> String {
    let mut text = format!("begin =>{} {}\n", drain(&mut runner), shown(&runner));
    for line in script
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
    {
        let (time, rest) = line.split_once(' ').unwrap();
        let now = at(time.parse().unwrap());
        match rest.split(' ').collect::<Vec<_>>().as_slice() {
            ["timer"] => runner.handle_timeout(now),
            ["stop"] => runner.handle_stop(StopCause::Asked, now),
            ["sibling"] => runner.handle_stop(StopCause::SiblingFailed, now),
            ["unrunnable"] => runner.handle_unrunnable("no space left", now),
            ["reload"] => {
                let remote = runner.remote().clone();
                runner = TaskRunner::restore(runner.policy.clone(), runner.snapshot(), now);
                runner.restore_remote(remote);
            }
            ["told", take, leave] => runner.handle_remote(handle(take), handle(leave)),
            ["forgotten"] => runner.handle_forgotten(),
            words => runner.handle_input(input(words), now),
        }
        writeln!(text, "{line} =>{} {}", drain(&mut runner), shown(&runner)).unwrap();
    }
    text
}

fn check(policy: TaskPolicy, script: &str, expected: Expect) {
    expected.assert_eq(&play(TaskRunner::new("main", policy, at(0)), script));
}

#[test]
fn service_that_ends_well_is_restarted() {
    check(
        service(),
        "0 timer\n1 started\n5 exit 0\n14 timer\n15 timer\n16 started",
        expect![[r"
        begin => pending restarts=0 timer 0s to start the task | Received: the agent has the task
        0 timer => start#1 pending restarts=0 | Task Setup: cgroup, FIFOs and directories are being made
        1 started => running restarts=0 | Started: the process runs
        5 exit 0 => pending restarts=0 timer 15s to start the task | Restarting: the restart policy allows it
        14 timer => pending restarts=0 timer 15s to start the task | Restarting: the restart policy allows it
        15 timer => start#2 pending restarts=1 | Task Setup: cgroup, FIFOs and directories are being made
        16 started => running restarts=1 | Started: the process runs
    "]],
    );
}

#[test]
fn batch_that_ends_well_is_done() {
    check(
        policy(JobType::Batch, 3, RestartMode::Fail),
        "0 timer\n1 started\n5 exit 0\n50 timer\n51 exit 1",
        expect![[r"
            begin => pending restarts=0 timer 0s to start the task | Received: the agent has the task
            0 timer => start#1 pending restarts=0 | Task Setup: cgroup, FIFOs and directories are being made
            1 started => running restarts=0 | Started: the process runs
            5 exit 0 => dead restarts=0 | Terminated: exit code 0
            50 timer => dead restarts=0 | Terminated: exit code 0
            51 exit 1 => dead restarts=0 | Terminated: exit code 0
        "]],
    );
}

#[test]
fn restarts_are_used_up() {
    check(
        service(),
        "0 timer\n0 started\n1 exit 1\n11 timer\n11 started\n12 exit 1\n22 timer\n22 started\n23 signal 11",
        expect![[r"
            begin => pending restarts=0 timer 0s to start the task | Received: the agent has the task
            0 timer => start#1 pending restarts=0 | Task Setup: cgroup, FIFOs and directories are being made
            0 started => running restarts=0 | Started: the process runs
            1 exit 1 => pending restarts=0 timer 11s to start the task | Restarting: the restart policy allows it
            11 timer => start#2 pending restarts=1 | Task Setup: cgroup, FIFOs and directories are being made
            11 started => running restarts=1 | Started: the process runs
            12 exit 1 => pending restarts=1 timer 22s to start the task | Restarting: the restart policy allows it
            22 timer => start#3 pending restarts=2 | Task Setup: cgroup, FIFOs and directories are being made
            22 started => running restarts=2 | Started: the process runs
            23 signal 11 => dead failed restarts=2 | Not Restarting: 2 restarts within 60s are used up
        "]],
    );
}

/// The interval of 60 s began with the first exit at 1 s; at 61 s counting begins afresh.
#[test]
fn a_later_interval_counts_afresh() {
    check(
        service(),
        "0 timer\n0 started\n1 exit 1\n11 timer\n11 started\n12 exit 1\n22 timer\n22 started\n61 exit 1",
        expect![[r"
            begin => pending restarts=0 timer 0s to start the task | Received: the agent has the task
            0 timer => start#1 pending restarts=0 | Task Setup: cgroup, FIFOs and directories are being made
            0 started => running restarts=0 | Started: the process runs
            1 exit 1 => pending restarts=0 timer 11s to start the task | Restarting: the restart policy allows it
            11 timer => start#2 pending restarts=1 | Task Setup: cgroup, FIFOs and directories are being made
            11 started => running restarts=1 | Started: the process runs
            12 exit 1 => pending restarts=1 timer 22s to start the task | Restarting: the restart policy allows it
            22 timer => start#3 pending restarts=2 | Task Setup: cgroup, FIFOs and directories are being made
            22 started => running restarts=2 | Started: the process runs
            61 exit 1 => pending restarts=2 timer 71s to start the task | Restarting: the restart policy allows it
        "]],
    );
}

#[test]
fn mode_delay_waits_for_the_next_interval() {
    check(
        policy(JobType::Service, 1, RestartMode::Delay),
        "0 timer\n0 started\n1 exit 1\n11 timer\n11 started\n12 exit 1\n60 timer\n61 timer\n61 started\n62 exit 1",
        expect![[r"
            begin => pending restarts=0 timer 0s to start the task | Received: the agent has the task
            0 timer => start#1 pending restarts=0 | Task Setup: cgroup, FIFOs and directories are being made
            0 started => running restarts=0 | Started: the process runs
            1 exit 1 => pending restarts=0 timer 11s to start the task | Restarting: the restart policy allows it
            11 timer => start#2 pending restarts=1 | Task Setup: cgroup, FIFOs and directories are being made
            11 started => running restarts=1 | Started: the process runs
            12 exit 1 => pending restarts=1 timer 61s to start the task | Restarting: restarts of this interval are used up; waiting for the next one
            60 timer => pending restarts=1 timer 61s to start the task | Restarting: restarts of this interval are used up; waiting for the next one
            61 timer => start#3 pending restarts=2 | Task Setup: cgroup, FIFOs and directories are being made
            61 started => running restarts=2 | Started: the process runs
            62 exit 1 => pending restarts=2 timer 72s to start the task | Restarting: the restart policy allows it
        "]],
    );
}

#[test]
fn no_attempts_means_no_restart() {
    check(
        policy(JobType::Service, 0, RestartMode::Delay),
        "0 timer\n0 started\n1 exit 0",
        expect![[r"
        begin => pending restarts=0 timer 0s to start the task | Received: the agent has the task
        0 timer => start#1 pending restarts=0 | Task Setup: cgroup, FIFOs and directories are being made
        0 started => running restarts=0 | Started: the process runs
        1 exit 0 => dead failed restarts=0 | Not Restarting: the restart policy allows no restart
    "]],
    );
}

#[test]
fn out_of_memory_exit_restarts_the_task() {
    check(
        service(),
        "0 timer\n0 started\n1 exit oom",
        expect![[r"
        begin => pending restarts=0 timer 0s to start the task | Received: the agent has the task
        0 timer => start#1 pending restarts=0 | Task Setup: cgroup, FIFOs and directories are being made
        0 started => running restarts=0 | Started: the process runs
        1 exit oom => pending restarts=0 timer 11s to start the task | Restarting: the restart policy allows it
    "]],
    );
}

#[test]
fn a_fatal_start_is_not_repeated() {
    check(
        service(),
        "0 timer\n0 fails fatal\n20 timer",
        expect![[r"
        begin => pending restarts=0 timer 0s to start the task | Received: the agent has the task
        0 timer => start#1 pending restarts=0 | Task Setup: cgroup, FIFOs and directories are being made
        0 fails fatal => dead failed restarts=0 | Not Restarting: the driver says that a retry cannot help
        20 timer => dead failed restarts=0 | Not Restarting: the driver says that a retry cannot help
    "]],
    );
}

#[test]
fn a_retryable_start_counts_as_a_restart() {
    check(
        service(),
        "0 timer\n0 fails retryable\n10 timer\n10 fails retryable\n20 timer\n20 fails retryable",
        expect![[r"
            begin => pending restarts=0 timer 0s to start the task | Received: the agent has the task
            0 timer => start#1 pending restarts=0 | Task Setup: cgroup, FIFOs and directories are being made
            0 fails retryable => pending restarts=0 timer 10s to start the task | Restarting: the restart policy allows it
            10 timer => start#2 pending restarts=1 | Task Setup: cgroup, FIFOs and directories are being made
            10 fails retryable => pending restarts=1 timer 20s to start the task | Restarting: the restart policy allows it
            20 timer => start#3 pending restarts=2 | Task Setup: cgroup, FIFOs and directories are being made
            20 fails retryable => dead failed restarts=2 | Not Restarting: 2 restarts within 60s are used up
        "]],
    );
}

#[test]
fn stop_sends_the_signal_then_force() {
    check(
        service(),
        "0 timer\n0 started\n5 stop\n5 stop\n14 timer\n15 timer\n20 timer\n25 timer\n26 signal 9",
        expect![[r"
            begin => pending restarts=0 timer 0s to start the task | Received: the agent has the task
            0 timer => start#1 pending restarts=0 | Task Setup: cgroup, FIFOs and directories are being made
            0 started => running restarts=0 | Started: the process runs
            5 stop => stop(SIGTERM,5s) running restarts=0 timer 15s to kill the task | Killing: SIGTERM sent, force after 5s
            5 stop => running restarts=0 timer 15s to kill the task | Killing: SIGTERM sent, force after 5s
            14 timer => running restarts=0 timer 15s to kill the task | Killing: SIGTERM sent, force after 5s
            15 timer => force running restarts=0 timer 25s to kill the task | Killing: the kill timeout is over: the task is killed
            20 timer => running restarts=0 timer 25s to kill the task | Killing: the kill timeout is over: the task is killed
            25 timer => force running restarts=0 timer 35s to kill the task | Killing: the kill timeout is over: the task is killed
            26 signal 9 => dead restarts=0 | Killed: the task was stopped
        "]],
    );
}

#[test]
fn stop_that_works_needs_no_force() {
    check(
        service(),
        "0 timer\n0 started\n5 stop\n6 exit 0\n15 timer",
        expect![[r"
        begin => pending restarts=0 timer 0s to start the task | Received: the agent has the task
        0 timer => start#1 pending restarts=0 | Task Setup: cgroup, FIFOs and directories are being made
        0 started => running restarts=0 | Started: the process runs
        5 stop => stop(SIGTERM,5s) running restarts=0 timer 15s to kill the task | Killing: SIGTERM sent, force after 5s
        6 exit 0 => dead restarts=0 | Killed: the task was stopped
        15 timer => dead restarts=0 | Killed: the task was stopped
    "]],
    );
}

#[test]
fn stop_during_a_start_waits_for_the_answer() {
    check(
        service(),
        "0 timer\n0 stop\n1 started\n2 signal 15",
        expect![[r"
        begin => pending restarts=0 timer 0s to start the task | Received: the agent has the task
        0 timer => start#1 pending restarts=0 | Task Setup: cgroup, FIFOs and directories are being made
        0 stop => pending restarts=0 | Task Setup: cgroup, FIFOs and directories are being made
        1 started => stop(SIGTERM,5s) running restarts=0 timer 11s to kill the task | Killing: SIGTERM sent, force after 5s
        2 signal 15 => dead restarts=0 | Killed: the task was stopped
    "]],
    );
}

#[test]
fn stop_during_a_failing_start_ends_it() {
    check(
        service(),
        "0 timer\n0 stop\n1 fails retryable\n20 timer",
        expect![[r"
        begin => pending restarts=0 timer 0s to start the task | Received: the agent has the task
        0 timer => start#1 pending restarts=0 | Task Setup: cgroup, FIFOs and directories are being made
        0 stop => pending restarts=0 | Task Setup: cgroup, FIFOs and directories are being made
        1 fails retryable => dead restarts=0 | Driver Failure: busy
        20 timer => dead restarts=0 | Driver Failure: busy
    "]],
    );
}

#[test]
fn stop_during_a_pause_starts_nothing() {
    check(
        service(),
        "0 timer\n0 started\n1 exit 1\n5 stop\n11 timer",
        expect![[r"
        begin => pending restarts=0 timer 0s to start the task | Received: the agent has the task
        0 timer => start#1 pending restarts=0 | Task Setup: cgroup, FIFOs and directories are being made
        0 started => running restarts=0 | Started: the process runs
        1 exit 1 => pending restarts=0 timer 11s to start the task | Restarting: the restart policy allows it
        5 stop => dead restarts=0 | Killed: stopped while no process ran
        11 timer => dead restarts=0 | Killed: stopped while no process ran
    "]],
    );
}

#[test]
fn stop_before_the_start_ends_at_once() {
    check(
        service(),
        "0 stop\n0 timer",
        expect![[r"
        begin => pending restarts=0 timer 0s to start the task | Received: the agent has the task
        0 stop => dead restarts=0 | Killed: stopped while no process ran
        0 timer => dead restarts=0 | Killed: stopped while no process ran
    "]],
    );
}

#[test]
fn a_driver_that_cannot_stop_is_forced() {
    check(
        service(),
        "0 timer\n0 started\n5 stop\n6 stop-failed\n10 timer\n11 timer\n12 signal 9",
        expect![[r"
        begin => pending restarts=0 timer 0s to start the task | Received: the agent has the task
        0 timer => start#1 pending restarts=0 | Task Setup: cgroup, FIFOs and directories are being made
        0 started => running restarts=0 | Started: the process runs
        5 stop => stop(SIGTERM,5s) running restarts=0 timer 15s to kill the task | Killing: SIGTERM sent, force after 5s
        6 stop-failed => running restarts=0 timer 11s to kill the task | Driver Failure: driver gone
        10 timer => running restarts=0 timer 11s to kill the task | Driver Failure: driver gone
        11 timer => force running restarts=0 timer 21s to kill the task | Killing: the kill timeout is over: the task is killed
        12 signal 9 => dead restarts=0 | Killed: the task was stopped
    "]],
    );
}

#[test]
fn a_failed_sibling_stops_without_failing() {
    check(
        service(),
        "0 timer\n0 started\n5 sibling\n6 signal 15",
        expect![[r"
        begin => pending restarts=0 timer 0s to start the task | Received: the agent has the task
        0 timer => start#1 pending restarts=0 | Task Setup: cgroup, FIFOs and directories are being made
        0 started => running restarts=0 | Started: the process runs
        5 sibling => stop(SIGTERM,5s) running restarts=0 timer 15s to kill the task | Killing: SIGTERM sent, force after 5s
        6 signal 15 => dead restarts=0 | Killed: the task was stopped
    "]],
    );
}

#[test]
fn a_running_task_is_recovered_not_restarted() {
    check(
        service(),
        "0 timer\n0 started\n5 reload\n6 recovered\n7 exit 1",
        expect![[r"
        begin => pending restarts=0 timer 0s to start the task | Received: the agent has the task
        0 timer => start#1 pending restarts=0 | Task Setup: cgroup, FIFOs and directories are being made
        0 started => running restarts=0 | Started: the process runs
        5 reload => recover#1 running restarts=0 | Started: the process runs
        6 recovered => running restarts=0 | Recovered: found running after a restart of the agent
        7 exit 1 => pending restarts=0 timer 17s to start the task | Restarting: the restart policy allows it
    "]],
    );
}

#[test]
fn unobserved_exit_is_a_failure() {
    check(
        service(),
        "0 timer\n0 started\n5 reload\n6 exit unknown",
        expect![[r"
        begin => pending restarts=0 timer 0s to start the task | Received: the agent has the task
        0 timer => start#1 pending restarts=0 | Task Setup: cgroup, FIFOs and directories are being made
        0 started => running restarts=0 | Started: the process runs
        5 reload => recover#1 running restarts=0 | Started: the process runs
        6 exit unknown => pending restarts=0 timer 16s to start the task | Restarting: the restart policy allows it
    "]],
    );
}

#[test]
fn recorded_exit_after_restart_completes_batch_task() {
    check(
        policy(JobType::Batch, 3, RestartMode::Fail),
        "0 timer\n0 started\n5 reload\n6 exit 0",
        expect![[r"
            begin => pending restarts=0 timer 0s to start the task | Received: the agent has the task
            0 timer => start#1 pending restarts=0 | Task Setup: cgroup, FIFOs and directories are being made
            0 started => running restarts=0 | Started: the process runs
            5 reload => recover#1 running restarts=0 | Started: the process runs
            6 exit 0 => dead restarts=0 | Terminated: exit code 0
        "]],
    );
}

/// The agent died between the request for the start and the answer, and no process was started.
#[test]
fn a_start_that_never_happened_is_made_once() {
    check(
        service(),
        "0 timer\n1 reload\n2 never-started\n3 started\n4 exit 1",
        expect![[r"
        begin => pending restarts=0 timer 0s to start the task | Received: the agent has the task
        0 timer => start#1 pending restarts=0 | Task Setup: cgroup, FIFOs and directories are being made
        1 reload => recover#1 pending restarts=0 | Task Setup: cgroup, FIFOs and directories are being made
        2 never-started => start#1 pending restarts=0 | Task Setup: cgroup, FIFOs and directories are being made
        3 started => running restarts=0 | Started: the process runs
        4 exit 1 => pending restarts=0 timer 14s to start the task | Restarting: the restart policy allows it
    "]],
    );
}

#[test]
fn a_restart_that_never_happened_counts_once() {
    check(
        service(),
        "0 timer\n0 started\n1 exit 1\n11 timer\n11 reload\n12 never-started\n13 started",
        expect![[r"
            begin => pending restarts=0 timer 0s to start the task | Received: the agent has the task
            0 timer => start#1 pending restarts=0 | Task Setup: cgroup, FIFOs and directories are being made
            0 started => running restarts=0 | Started: the process runs
            1 exit 1 => pending restarts=0 timer 11s to start the task | Restarting: the restart policy allows it
            11 timer => start#2 pending restarts=1 | Task Setup: cgroup, FIFOs and directories are being made
            11 reload => recover#2 pending restarts=1 | Task Setup: cgroup, FIFOs and directories are being made
            12 never-started => start#2 pending restarts=1 | Task Setup: cgroup, FIFOs and directories are being made
            13 started => running restarts=1 | Started: the process runs
        "]],
    );
}

#[test]
fn a_reboot_fails_the_task_without_a_restart() {
    check(
        service(),
        "0 timer\n0 started\n5 reload\n6 lost\n20 timer",
        expect![[r"
        begin => pending restarts=0 timer 0s to start the task | Received: the agent has the task
        0 timer => start#1 pending restarts=0 | Task Setup: cgroup, FIFOs and directories are being made
        0 started => running restarts=0 | Started: the process runs
        5 reload => recover#1 running restarts=0 | Started: the process runs
        6 lost => dead failed restarts=0 | Terminated: the machine was rebooted
        20 timer => dead failed restarts=0 | Terminated: the machine was rebooted
    "]],
    );
}

#[test]
fn a_stop_survives_the_agent() {
    check(
        service(),
        "0 timer\n0 started\n5 stop\n6 reload\n7 recovered\n8 exit 0",
        expect![[r"
        begin => pending restarts=0 timer 0s to start the task | Received: the agent has the task
        0 timer => start#1 pending restarts=0 | Task Setup: cgroup, FIFOs and directories are being made
        0 started => running restarts=0 | Started: the process runs
        5 stop => stop(SIGTERM,5s) running restarts=0 timer 15s to kill the task | Killing: SIGTERM sent, force after 5s
        6 reload => recover#1 running restarts=0 | Killing: SIGTERM sent, force after 5s
        7 recovered => stop(SIGTERM,5s) running restarts=0 timer 17s to kill the task | Killing: SIGTERM sent, force after 5s
        8 exit 0 => dead restarts=0 | Killed: the task was stopped
    "]],
    );
}

#[test]
fn a_pause_survives_the_agent() {
    check(
        service(),
        "0 timer\n0 started\n1 exit 1\n5 reload\n11 timer",
        expect![[r"
        begin => pending restarts=0 timer 0s to start the task | Received: the agent has the task
        0 timer => start#1 pending restarts=0 | Task Setup: cgroup, FIFOs and directories are being made
        0 started => running restarts=0 | Started: the process runs
        1 exit 1 => pending restarts=0 timer 11s to start the task | Restarting: the restart policy allows it
        5 reload => pending restarts=0 timer 11s to start the task | Restarting: the restart policy allows it
        11 timer => start#2 pending restarts=1 | Task Setup: cgroup, FIFOs and directories are being made
    "]],
    );
}

#[test]
fn a_dead_task_stays_dead() {
    check(
        service(),
        "0 timer\n0 fails fatal\n1 reload\n2 started\n3 exit 0\n4 stop\n5 recovered\n6 lost\n7 never-started\n8 timer",
        expect![[r"
            begin => pending restarts=0 timer 0s to start the task | Received: the agent has the task
            0 timer => start#1 pending restarts=0 | Task Setup: cgroup, FIFOs and directories are being made
            0 fails fatal => dead failed restarts=0 | Not Restarting: the driver says that a retry cannot help
            1 reload => dead failed restarts=0 | Not Restarting: the driver says that a retry cannot help
            2 started => dead failed restarts=0 | Not Restarting: the driver says that a retry cannot help
            3 exit 0 => dead failed restarts=0 | Not Restarting: the driver says that a retry cannot help
            4 stop => dead failed restarts=0 | Not Restarting: the driver says that a retry cannot help
            5 recovered => dead failed restarts=0 | Not Restarting: the driver says that a retry cannot help
            6 lost => dead failed restarts=0 | Not Restarting: the driver says that a retry cannot help
            7 never-started => dead failed restarts=0 | Not Restarting: the driver says that a retry cannot help
            8 timer => dead failed restarts=0 | Not Restarting: the driver says that a retry cannot help
        "]],
    );
}

#[test]
fn missing_directories_fail_a_waiting_task() {
    check(
        service(),
        "0 unrunnable\n1 timer",
        expect![[r"
        begin => pending restarts=0 timer 0s to start the task | Received: the agent has the task
        0 unrunnable => dead failed restarts=0 | Driver Failure: no space left
        1 timer => dead failed restarts=0 | Driver Failure: no space left
    "]],
    );
}

#[test]
fn missing_directories_leave_a_process_alone() {
    check(
        service(),
        "0 timer\n0 started\n1 unrunnable",
        expect![[r"
        begin => pending restarts=0 timer 0s to start the task | Received: the agent has the task
        0 timer => start#1 pending restarts=0 | Task Setup: cgroup, FIFOs and directories are being made
        0 started => running restarts=0 | Started: the process runs
        1 unrunnable => running restarts=0 | Started: the process runs
    "]],
    );
}

#[test]
fn an_adopted_task_is_looked_for_first() {
    let runner = TaskRunner::adopt("main", service(), at(0));

    let played = play(runner, "1 recovered\n2 exit 1\n12 timer");

    expect![[r"
        begin => recover#1 running restarts=0 | Received: the agent has the task
        1 recovered => running restarts=0 | Recovered: found running after a restart of the agent
        2 exit 1 => pending restarts=0 timer 12s to start the task | Restarting: the restart policy allows it
        12 timer => start#2 pending restarts=1 | Task Setup: cgroup, FIFOs and directories are being made
    "]].assert_eq(&played);
}

#[test]
fn notes_of_a_start_are_kept() {
    let mut runner = TaskRunner::new("main", service(), at(0));
    runner.handle_timeout(at(0));

    runner.handle_input(
        TaskInput::Started {
            note: "memory is not limited".into(),
        },
        at(1),
    );

    let words: Vec<_> = runner
        .state()
        .events
        .iter()
        .map(|event| event.message.as_str())
        .collect();
    assert!(words.contains(&"memory is not limited"));
}

/// The network of a driver is known while the task runs, also after the death of the agent. Another start may have
/// another network.
#[test]
fn driver_network_is_kept_until_task_restarts() {
    let network = |address: &str| {
        let network = TaskNetwork {
            address: address.to_owned(),
            ..TaskNetwork::default()
        };
        TaskInput::Reached {
            network: Box::new(network),
        }
    };
    let address = |runner: &TaskRunner| {
        let network = runner.state().network.as_ref();
        network.map(|network| network.address.clone())
    };
    let mut runner = TaskRunner::new("main", service(), at(0));
    runner.handle_timeout(at(0));

    runner.handle_input(network("10.0.0.1"), at(1));
    let before = runner.changes();
    runner.handle_input(network("10.0.0.1"), at(1));
    let unchanged = runner.changes() == before;
    runner.handle_input(input(&["started"]), at(1));
    let running = address(&runner);
    let mut next = TaskRunner::restore(service(), runner.snapshot(), at(1));
    let restored = address(&next);
    next.handle_input(input(&["recovered"]), at(2));
    next.handle_input(network("10.0.0.2"), at(2));
    let moved = address(&next);
    next.handle_input(input(&["exit", "1"]), at(3));
    let ended = address(&next);
    next.handle_input(network("10.0.0.3"), at(4));

    assert!(unchanged, "the same words are no news");
    assert_eq!(running.as_deref(), Some("10.0.0.1"));
    assert_eq!(restored.as_deref(), Some("10.0.0.1"));
    assert_eq!(moved.as_deref(), Some("10.0.0.2"));
    assert_eq!((ended, address(&next)), (None, None));
}

#[test]
fn long_messages_are_cut_between_characters() {
    let text = "ä".repeat(limits::MESSAGE_BYTES_MAX);

    let cut = shortened(&text);

    assert_eq!(cut.len(), limits::MESSAGE_BYTES_MAX);
}

#[test]
fn every_change_is_counted() {
    let mut runner = TaskRunner::new("main", service(), at(0));
    let before = runner.changes();

    runner.handle_timeout(at(0));

    assert!(runner.changes() > before);
}

#[test]
fn a_delay_comes_before_the_signal() {
    let mut policy = service();
    policy.shutdown_delay = Duration::from_secs(7);

    check(
        policy,
        "0 timer\n1 started\n5 stop\n6 stop\n11 timer\n12 timer\n13 exit 0",
        expect![[r"
            begin => pending restarts=0 timer 0s to start the task | Received: the agent has the task
            0 timer => start#1 pending restarts=0 | Task Setup: cgroup, FIFOs and directories are being made
            1 started => running restarts=0 | Started: the process runs
            5 stop => running restarts=0 timer 12s to stop the task | Killing: waiting for the shutdown delay of 7s
            6 stop => running restarts=0 timer 12s to stop the task | Killing: waiting for the shutdown delay of 7s
            11 timer => running restarts=0 timer 12s to stop the task | Killing: waiting for the shutdown delay of 7s
            12 timer => stop(SIGTERM,5s) running restarts=0 timer 22s to kill the task | Killing: SIGTERM sent, force after 5s
            13 exit 0 => dead restarts=0 | Killed: the task was stopped
        "]],
    );
}

#[test]
fn exit_during_shutdown_delay_skips_kill_signal() {
    let mut policy = service();
    policy.shutdown_delay = Duration::from_secs(7);

    check(
        policy,
        "0 timer\n1 started\n5 stop\n6 exit 1\n12 timer",
        expect![[r"
            begin => pending restarts=0 timer 0s to start the task | Received: the agent has the task
            0 timer => start#1 pending restarts=0 | Task Setup: cgroup, FIFOs and directories are being made
            1 started => running restarts=0 | Started: the process runs
            5 stop => running restarts=0 timer 12s to stop the task | Killing: waiting for the shutdown delay of 7s
            6 exit 1 => dead restarts=0 | Killed: the task was stopped
            12 timer => dead restarts=0 | Killed: the task was stopped
        "]],
    );
}

/// A one-off task with a policy that would restart it, and the end of its work after each line.
fn ends(script: &str) -> Vec<String> {
    let policy = TaskPolicy {
        once: true,
        ..policy(JobType::Batch, 3, RestartMode::Delay)
    };
    let mut runner = TaskRunner::new("main", policy, at(0));
    let mut starts = 0;
    let lines = script.lines().map(|line| {
        let (time, rest) = line.split_once(' ').unwrap();
        let now = at(time.parse().unwrap());
        match rest.split(' ').collect::<Vec<_>>().as_slice() {
            ["timer"] => runner.handle_timeout(now),
            ["stop"] => runner.handle_stop(StopCause::Asked, now),
            ["disconnect"] => runner.handle_stop(StopCause::Disconnected, now),
            ["unrunnable"] => runner.handle_unrunnable("no space left", now),
            ["reload"] => {
                runner = TaskRunner::restore(runner.policy.clone(), runner.snapshot(), now);
            }
            words => runner.handle_input(input(words), now),
        }
        starts += drain(&mut runner).matches("start#").count();
        let failed = |end: &WorkEnd| if end.failed { "failed" } else { "well" };
        runner.end().map_or("none".to_owned(), |end| {
            format!(
                "{}s {}: {}",
                seconds(end.at),
                failed(end),
                end.failure_reason
            )
        })
    });
    let ends = lines.collect();
    assert!(starts <= 1, "{script}");
    ends
}

#[test]
fn one_off_task_is_never_started_twice() {
    for script in [
        "0 timer\n1 started\n5 exit 1\n99 timer",
        "0 timer\n1 fails retryable\n99 timer",
        "0 timer\n1 reload\n2 never-started\n99 timer",
        "0 timer\n1 started\n2 reload\n3 lost\n99 timer",
    ] {
        assert!(ends(script).last().unwrap().contains("failed"), "{script}");
    }
}

#[test]
fn every_one_off_task_end_has_reason() {
    let cases = [
        ("0 timer\n1 started\n5 exit 0", "5s well: "),
        ("0 timer\n1 started\n5 exit 4", "5s failed: exit code 4"),
        ("0 stop", "0s failed: stopped-before-running"),
        (
            "0 unrunnable",
            "0s failed: failed to create container: no space left",
        ),
        (
            "0 timer\n1 fails fatal",
            "1s failed: failed to create container: no such file",
        ),
        (
            "0 timer\n1 fails retryable",
            "1s failed: failed to create container: busy",
        ),
        (
            "0 timer\n1 started\n2 lost",
            "2s failed: the machine was rebooted",
        ),
        (
            "0 timer\n1 reload\n2 never-started",
            "2s failed: the agent ended while it was being started",
        ),
        (
            "0 timer\n1 started\n2 reload\n3 exit 4\n4 reload",
            "3s failed: exit code 4",
        ),
        (
            "0 timer\n1 started\n5 disconnect\n6 exit 143",
            "6s failed: stopped: no server was in reach for as long as a task may run without one",
        ),
        ("0 timer\n1 started\n5 disconnect\n6 exit 0", "6s well: "),
    ];
    for (script, expected) in cases {
        let ends = ends(script);
        assert_eq!(ends.last().unwrap(), expected, "{script}");
        assert_eq!(
            ends[..ends.len().saturating_sub(2)]
                .iter()
                .filter(|end| *end != "none")
                .count(),
            0
        );
    }
}

/// A wall clock that was set back while no agent ran does not prolong a restart's delay.
#[test]
fn restored_restart_delay_is_bounded() {
    let hour = 3_600;
    let mut runner = TaskRunner::new("main", service(), at(hour));
    runner.handle_timeout(at(hour));
    runner.handle_input(input(&["started"]), at(hour));
    runner.handle_input(input(&["exit", "1"]), at(hour));

    let restored = TaskRunner::restore(service(), runner.snapshot(), at(0));

    let (due, _) = restored.poll_timeout().unwrap();
    assert!(due <= at(0).plus(service().restart.delay), "{due:?}");
}
