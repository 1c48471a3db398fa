//! Process counts and the exit ledger, with real processes.

use std::os::unix::process::ExitStatusExt;

use crate::{
    bpf::ExecCounters,
    node::{Node, poll},
};

#[test]
fn exit_code_of_main_process_is_recorded() {
    let Some(mut node) = Node::set_up("exit_code_of_main_process_is_recorded") else {
        return;
    };
    let bpf = node.open();

    let pid = node.start("exit 42");
    let status = node.wait();

    let record = node.exit(&bpf);
    assert_eq!(record.wait_status, 42 << 8);
    assert_eq!(record.wait_status, status.into_raw());
    assert_eq!(record.pid, pid);
    assert!(
        record.start_boottime_ns < record.at_boottime_ns,
        "{record:?}"
    );
}

#[test]
fn kill_of_main_process_is_recorded() {
    let Some(mut node) = Node::set_up("kill_of_main_process_is_recorded") else {
        return;
    };
    let bpf = node.open();

    let pid = node.start("sleep");
    let main = poll("a main process", || bpf.main_of(node.task()).unwrap());
    let before = bpf.exit_of(node.task()).unwrap();
    node.kill();

    assert_eq!(main.pid, pid);
    assert_eq!(before, None);
    assert_eq!(node.exit(&bpf).wait_status, libc::SIGKILL);
}

/// Two programs: the child, then `true` in a process it forks. `sh` was executed before it entered
/// the cgroup. The child has several threads, which count neither as forks nor as exits.
#[test]
fn processes_are_counted() {
    let Some(mut node) = Node::set_up("processes_are_counted") else {
        return;
    };
    let bpf = node.open();

    node.start("spawn 1");
    node.wait();

    let expected = ExecCounters {
        forks: 1,
        execs: 2,
        exits: 2,
    };
    assert_eq!(node.counters(&bpf).exec, expected);
    assert_eq!(node.exit(&bpf).wait_status, 0);
}
