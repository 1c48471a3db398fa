//! Tasks that run on another system. `told 1 2`: take over the task of handle 1, leave that of handle 2.

use super::*;

#[test]
fn running_task_is_taken_over() {
    check(
        service(),
        "0 told 1 0\n0 timer\n1 elsewhere 1\n1 started\n2 told 1 0\n9 exit 1\n19 timer\n20 elsewhere 2\n20 started",
        expect![[r"
            begin => pending restarts=0 timer 0s to start the task | Received: the agent has the task
            0 told 1 0 => pending restarts=0 timer 0s to start the task holds 1 | Received: the agent has the task
            0 timer => take-over#1(1) pending restarts=0 holds 1 | Task Setup: cgroup, FIFOs and directories are being made
            1 elsewhere 1 => pending restarts=0 holds 1 | Task Setup: cgroup, FIFOs and directories are being made
            1 started => running restarts=0 holds 1 | Recovered: taken over from the allocation before: it runs on elsewhere and was not started anew
            2 told 1 0 => running restarts=0 holds 1 | Recovered: taken over from the allocation before: it runs on elsewhere and was not started anew
            9 exit 1 => pending restarts=0 timer 19s to start the task | Restarting: the restart policy allows it
            19 timer => start#2 pending restarts=1 | Task Setup: cgroup, FIFOs and directories are being made
            20 elsewhere 2 => pending restarts=1 holds 2 | Task Setup: cgroup, FIFOs and directories are being made
            20 started => running restarts=1 holds 2 | Started: the process runs
        "]],
    );
}

#[test]
fn missing_task_is_started_anew() {
    check(
        service(),
        "0 told 1 0\n0 timer\n1 nothing-to-take\n2 elsewhere 2\n2 started",
        expect![[r"
            begin => pending restarts=0 timer 0s to start the task | Received: the agent has the task
            0 told 1 0 => pending restarts=0 timer 0s to start the task holds 1 | Received: the agent has the task
            0 timer => take-over#1(1) pending restarts=0 holds 1 | Task Setup: cgroup, FIFOs and directories are being made
            1 nothing-to-take => start#1 pending restarts=0 | Driver: it cannot be taken over, so it is started anew: the host has no process 1
            2 elsewhere 2 => pending restarts=0 holds 2 | Driver: it cannot be taken over, so it is started anew: the host has no process 1
            2 started => running restarts=0 holds 2 | Started: the process runs
        "]],
    );
}

/// The driver cannot read the handle. The task runs on, and an allocation that replaces this one may take it over.
#[test]
fn failed_take_over_starts_no_duplicate_task() {
    check(
        service(),
        "0 told 1 0\n0 timer\n1 fails fatal",
        expect![[r"
            begin => pending restarts=0 timer 0s to start the task | Received: the agent has the task
            0 told 1 0 => pending restarts=0 timer 0s to start the task holds 1 | Received: the agent has the task
            0 timer => take-over#1(1) pending restarts=0 holds 1 | Task Setup: cgroup, FIFOs and directories are being made
            1 fails fatal => dead failed restarts=0 holds 1 | Not Restarting: the driver says that a retry cannot help
        "]],
    );
}

#[test]
fn a_driver_that_is_busy_is_asked_again() {
    check(
        service(),
        "0 told 1 0\n0 timer\n1 fails retryable\n11 timer\n12 elsewhere 1\n12 started",
        expect![[r"
            begin => pending restarts=0 timer 0s to start the task | Received: the agent has the task
            0 told 1 0 => pending restarts=0 timer 0s to start the task holds 1 | Received: the agent has the task
            0 timer => take-over#1(1) pending restarts=0 holds 1 | Task Setup: cgroup, FIFOs and directories are being made
            1 fails retryable => pending restarts=0 timer 11s to start the task holds 1 | Restarting: the restart policy allows it
            11 timer => take-over#2(1) pending restarts=1 holds 1 | Task Setup: cgroup, FIFOs and directories are being made
            12 elsewhere 1 => pending restarts=1 holds 1 | Task Setup: cgroup, FIFOs and directories are being made
            12 started => running restarts=1 holds 1 | Recovered: taken over from the allocation before: it runs on elsewhere and was not started anew
        "]],
    );
}

#[test]
fn task_given_to_another_alloc_is_left() {
    check(
        service(),
        "0 timer\n1 elsewhere 1\n1 started\n5 told 0 1\n5 stop\n6 detached",
        expect![[r"
            begin => pending restarts=0 timer 0s to start the task | Received: the agent has the task
            0 timer => start#1 pending restarts=0 | Task Setup: cgroup, FIFOs and directories are being made
            1 elsewhere 1 => pending restarts=0 holds 1 | Task Setup: cgroup, FIFOs and directories are being made
            1 started => running restarts=0 holds 1 | Started: the process runs
            5 told 0 1 => running restarts=0 holds 1 | Started: the process runs
            5 stop => detach running restarts=0 timer 125s to kill the task holds 1 | Killing: DETACH sent: the task runs on, managed by another allocation
            6 detached => dead restarts=0 | Killed: detached: the task runs on
        "]],
    );
}

/// The process that was given to the other allocation is no longer this task's process.
#[test]
fn task_started_after_the_handover_is_stopped() {
    check(
        service(),
        "0 timer\n1 elsewhere 1\n1 started\n2 exit 1\n12 timer\n13 elsewhere 2\n13 started\n14 told 0 1\n14 stop\n15 signal 15",
        expect![[r"
            begin => pending restarts=0 timer 0s to start the task | Received: the agent has the task
            0 timer => start#1 pending restarts=0 | Task Setup: cgroup, FIFOs and directories are being made
            1 elsewhere 1 => pending restarts=0 holds 1 | Task Setup: cgroup, FIFOs and directories are being made
            1 started => running restarts=0 holds 1 | Started: the process runs
            2 exit 1 => pending restarts=0 timer 12s to start the task | Restarting: the restart policy allows it
            12 timer => start#2 pending restarts=1 | Task Setup: cgroup, FIFOs and directories are being made
            13 elsewhere 2 => pending restarts=1 holds 2 | Task Setup: cgroup, FIFOs and directories are being made
            13 started => running restarts=1 holds 2 | Started: the process runs
            14 told 0 1 => running restarts=1 holds 2 | Started: the process runs
            14 stop => stop(SIGTERM,5s) running restarts=1 timer 24s to kill the task holds 2 | Killing: SIGTERM sent, force after 5s
            15 signal 15 => dead restarts=1 | Killed: the task was stopped
        "]],
    );
}

#[test]
fn a_stop_without_an_heir_is_a_stop() {
    check(
        service(),
        "0 timer\n1 elsewhere 1\n1 started\n5 told 1 0\n5 stop\n6 signal 15",
        expect![[r"
            begin => pending restarts=0 timer 0s to start the task | Received: the agent has the task
            0 timer => start#1 pending restarts=0 | Task Setup: cgroup, FIFOs and directories are being made
            1 elsewhere 1 => pending restarts=0 holds 1 | Task Setup: cgroup, FIFOs and directories are being made
            1 started => running restarts=0 holds 1 | Started: the process runs
            5 told 1 0 => running restarts=0 holds 1 | Started: the process runs
            5 stop => stop(SIGTERM,5s) running restarts=0 timer 15s to kill the task holds 1 | Killing: SIGTERM sent, force after 5s
            6 signal 15 => dead restarts=0 | Killed: the task was stopped
        "]],
    );
}

/// The failure of a sibling concerns only this allocation.
#[test]
fn local_stop_stops_remote_task_without_detach() {
    check(
        service(),
        "0 timer\n1 elsewhere 1\n1 started\n5 told 0 1\n5 sibling",
        expect![[r"
            begin => pending restarts=0 timer 0s to start the task | Received: the agent has the task
            0 timer => start#1 pending restarts=0 | Task Setup: cgroup, FIFOs and directories are being made
            1 elsewhere 1 => pending restarts=0 holds 1 | Task Setup: cgroup, FIFOs and directories are being made
            1 started => running restarts=0 holds 1 | Started: the process runs
            5 told 0 1 => running restarts=0 holds 1 | Started: the process runs
            5 sibling => stop(SIGTERM,5s) running restarts=0 timer 15s to kill the task holds 1 | Killing: SIGTERM sent, force after 5s
        "]],
    );
}

/// A forced kill would reach the task itself.
#[test]
fn unanswered_detach_is_retried_without_force_kill() {
    check(
        service(),
        "0 timer\n1 elsewhere 1\n1 started\n5 told 0 1\n5 stop\n125 timer\n126 stop-failed\n127 detached",
        expect![[r"
            begin => pending restarts=0 timer 0s to start the task | Received: the agent has the task
            0 timer => start#1 pending restarts=0 | Task Setup: cgroup, FIFOs and directories are being made
            1 elsewhere 1 => pending restarts=0 holds 1 | Task Setup: cgroup, FIFOs and directories are being made
            1 started => running restarts=0 holds 1 | Started: the process runs
            5 told 0 1 => running restarts=0 holds 1 | Started: the process runs
            5 stop => detach running restarts=0 timer 125s to kill the task holds 1 | Killing: DETACH sent: the task runs on, managed by another allocation
            125 timer => detach running restarts=0 timer 245s to kill the task holds 1 | Killing: DETACH sent: the task runs on, managed by another allocation
            126 stop-failed => running restarts=0 timer 131s to kill the task holds 1 | Driver Failure: driver gone
            127 detached => dead restarts=0 | Killed: detached: the task runs on
        "]],
    );
}

#[test]
fn restarted_agent_continues_detach() {
    check(
        service(),
        "0 timer\n1 elsewhere 1\n1 started\n5 told 0 1\n5 stop\n6 reload\n7 recovered\n8 detached",
        expect![[r"
            begin => pending restarts=0 timer 0s to start the task | Received: the agent has the task
            0 timer => start#1 pending restarts=0 | Task Setup: cgroup, FIFOs and directories are being made
            1 elsewhere 1 => pending restarts=0 holds 1 | Task Setup: cgroup, FIFOs and directories are being made
            1 started => running restarts=0 holds 1 | Started: the process runs
            5 told 0 1 => running restarts=0 holds 1 | Started: the process runs
            5 stop => detach running restarts=0 timer 125s to kill the task holds 1 | Killing: DETACH sent: the task runs on, managed by another allocation
            6 reload => recover#1 running restarts=0 holds 1 | Killing: DETACH sent: the task runs on, managed by another allocation
            7 recovered => detach running restarts=0 timer 127s to kill the task holds 1 | Killing: DETACH sent: the task runs on, managed by another allocation
            8 detached => dead restarts=0 | Killed: detached: the task runs on
        "]],
    );
}

#[test]
fn restarted_agent_continues_take_over() {
    check(
        service(),
        "0 told 1 0\n0 timer\n1 reload\n2 never-started\n3 reload\n4 recovered",
        expect![[r"
            begin => pending restarts=0 timer 0s to start the task | Received: the agent has the task
            0 told 1 0 => pending restarts=0 timer 0s to start the task holds 1 | Received: the agent has the task
            0 timer => take-over#1(1) pending restarts=0 holds 1 | Task Setup: cgroup, FIFOs and directories are being made
            1 reload => recover#1 pending restarts=0 holds 1 | Task Setup: cgroup, FIFOs and directories are being made
            2 never-started => take-over#1(1) pending restarts=0 holds 1 | Task Setup: cgroup, FIFOs and directories are being made
            3 reload => recover#1 pending restarts=0 holds 1 | Task Setup: cgroup, FIFOs and directories are being made
            4 recovered => running restarts=0 holds 1 | Recovered: found running after a restart of the agent
        "]],
    );
}

/// No other allocation manages the task, so it is taken over only to be stopped.
#[test]
fn task_stopped_before_take_over_is_adopted_first() {
    check(
        service(),
        "0 told 1 0\n0 stop\n1 elsewhere 1\n1 started\n2 signal 15",
        expect![[r"
            begin => pending restarts=0 timer 0s to start the task | Received: the agent has the task
            0 told 1 0 => pending restarts=0 timer 0s to start the task holds 1 | Received: the agent has the task
            0 stop => take-over#1(1) pending restarts=0 holds 1 | Task Setup: cgroup, FIFOs and directories are being made
            1 elsewhere 1 => pending restarts=0 holds 1 | Task Setup: cgroup, FIFOs and directories are being made
            1 started => stop(SIGTERM,5s) running restarts=0 timer 11s to kill the task holds 1 | Killing: SIGTERM sent, force after 5s
            2 signal 15 => dead restarts=0 | Killed: the task was stopped
        "]],
    );
    check(
        service(),
        "0 told 1 0\n0 stop\n1 reload\n2 never-started\n3 nothing-to-take",
        expect![[r"
            begin => pending restarts=0 timer 0s to start the task | Received: the agent has the task
            0 told 1 0 => pending restarts=0 timer 0s to start the task holds 1 | Received: the agent has the task
            0 stop => take-over#1(1) pending restarts=0 holds 1 | Task Setup: cgroup, FIFOs and directories are being made
            1 reload => recover#1 pending restarts=0 holds 1 | Task Setup: cgroup, FIFOs and directories are being made
            2 never-started => take-over#1(1) pending restarts=0 holds 1 | Task Setup: cgroup, FIFOs and directories are being made
            3 nothing-to-take => dead restarts=0 | Killed: the host has no process 1
        "]],
    );
}

#[test]
fn stopped_task_owned_elsewhere_is_not_adopted() {
    check(
        service(),
        "0 told 1 0\n0 told 0 1\n0 stop",
        expect![[r"
        begin => pending restarts=0 timer 0s to start the task | Received: the agent has the task
        0 told 1 0 => pending restarts=0 timer 0s to start the task holds 1 | Received: the agent has the task
        0 told 0 1 => pending restarts=0 timer 0s to start the task holds 1 | Received: the agent has the task
        0 stop => dead restarts=0 | Killed: stopped while no process ran
    "]],
    );
}

/// An allocation that the control plane has forgotten may have been replaced long ago.
#[test]
fn task_of_a_forgotten_alloc_is_left() {
    check(
        service(),
        "0 timer\n1 elsewhere 1\n1 started\n5 forgotten\n5 stop\n6 detached",
        expect![[r"
            begin => pending restarts=0 timer 0s to start the task | Received: the agent has the task
            0 timer => start#1 pending restarts=0 | Task Setup: cgroup, FIFOs and directories are being made
            1 elsewhere 1 => pending restarts=0 holds 1 | Task Setup: cgroup, FIFOs and directories are being made
            1 started => running restarts=0 holds 1 | Started: the process runs
            5 forgotten => running restarts=0 holds 1 | Started: the process runs
            5 stop => detach running restarts=0 timer 125s to kill the task holds 1 | Killing: DETACH sent: the task runs on, managed by another allocation
            6 detached => dead restarts=0 | Killed: detached: the task runs on
        "]],
    );
}
