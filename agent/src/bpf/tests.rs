//! Tests of the programs that need a process's first thread, or a map entry that no agent writes. The other tests are
//! in `agent/tests/vm`.

#![expect(
    unsafe_code,
    reason = "code before main, and the end of one thread, have no safe form"
)]

#[path = "../../tests/vm/node.rs"]
#[expect(dead_code, reason = "what the other tests use")]
pub(crate) mod node;

use std::{
    cell::Cell, collections::BTreeSet, env, fs, net::UdpSocket, sync::mpsc, thread, time::Duration,
};

use muster_agent_core::policy::{NodePolicy, compile};
use muster_domain::fixture;

use node::{CHILD_VAR, Node, poll};

use super::{Bpf, ExecCounters};

/// Runs on the first thread before `main`, because tests have threads of their own.
#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = leave_if_ordered;

/// With the order `leave`, only the first thread exits with code 3. Then another thread ends the process with the code
/// of the order.
extern "C" fn leave_if_ordered() {
    let order = env::var(CHILD_VAR).unwrap_or_default();
    let Some(code) = order
        .strip_prefix("leave ")
        .and_then(|code| code.parse().ok())
    else {
        return;
    };
    thread::spawn(move || {
        let stat = || fs::read_to_string("/proc/self/stat").unwrap_or_default();
        poll("the first thread's end", || {
            stat().contains(") Z ").then_some(())
        });
        // SAFETY: the call takes a number and does not return.
        unsafe { libc::_exit(code) }
    });
    // SAFETY: the call ends only this thread, which holds no resource that another one needs.
    unsafe { libc::syscall(libc::SYS_exit, 3) };
}

/// A process whose first thread ends before another one lives until that one ends.
#[test]
fn exit_is_that_of_the_last_thread() {
    let Some(mut node) = Node::set_up("exit_is_that_of_the_last_thread") else {
        return;
    };
    let bpf = node.open();

    node.start("leave 7");
    let status = node.wait();

    assert_eq!(node.exit(&bpf).wait_status, 7 << 8);
    assert_eq!(status.code(), Some(7));
    assert_eq!(node.counters(&bpf).exec.exits, 1);
}

/// Extends the moment at which one load takes over from another, in which both count.
#[test]
fn overlapping_program_loads_count_process_once() {
    let Some(mut node) = Node::set_up("overlapping_program_loads_count_process_once") else {
        return;
    };
    let bpf = node.open();
    Bpf::attach_second_load(&node.config()).unwrap();

    node.start("spawn 100");
    node.wait();

    let counted = ExecCounters {
        forks: 100,
        execs: 101,
        exits: 101,
    };
    assert_eq!(node.counters(&bpf).exec, counted);
}

/// The policies change between two reads of the map. Earlier counts continue under the next policies, and count once.
#[test]
fn reading_counts_delays_no_policy_change() {
    let Some(mut node) = Node::set_up("reading_counts_delays_no_policy_change") else {
        return;
    };
    let bpf = node.open();
    let group = fixture::group("g");
    let mut policies = compile(&group, &group.tasks[0].name, &NodePolicy::default(), &[]).unwrap();
    let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
    bpf.attach_policy(node.task(), &policies, &BTreeSet::new())
        .unwrap();
    node.start(&format!("send-to {}", receiver.local_addr().unwrap()));
    assert_eq!(node.wait().code(), Some(0));
    let before = bpf.rule_counts(node.task()).unwrap();
    let [count] = &before[..] else {
        panic!("one rule was met: {before:?}")
    };
    assert_eq!((count.rule.as_str(), count.packets), ("default", 1));
    let more = ("more".to_owned(), true);
    policies.egress.rules.push(more);

    let is_changed = Cell::new(false);
    let after = thread::scope(|scope| {
        bpf.policy.counts(node.task(), || {
            if !is_changed.replace(true) {
                let (done, changed) = mpsc::sync_channel(1);
                let (bpf, task, policies) = (&bpf, node.task(), &policies);
                scope.spawn(move || {
                    bpf.attach_policy(task, policies, &BTreeSet::new()).unwrap();
                    done.send(())
                });
                let changed = changed.recv_timeout(Duration::from_secs(30));
                assert!(changed.is_ok(), "the change waits for the reader");
            }
            bpf.traffic_of(node.task())
        })
    });

    assert_eq!(after.unwrap(), before);
}

/// The kernel may give the memory of a task's network policy to another task while a program reads it.
#[test]
fn reused_policy_ref_lets_nothing_pass() {
    let Some(mut node) = Node::set_up("reused_policy_ref_lets_nothing_pass") else {
        return;
    };
    let bpf = node.open();
    let group = fixture::group("g");
    let policies = compile(&group, &group.tasks[0].name, &NodePolicy::default(), &[]).unwrap();
    let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
    let send = format!("send-to {}", receiver.local_addr().unwrap());
    bpf.attach_policy(node.task(), &policies, &BTreeSet::new())
        .unwrap();
    node.start(&send);
    assert_eq!(node.wait().code(), Some(0));

    bpf.policy.change_entry_owner(node.task()).unwrap();

    node.start(&send);
    assert_eq!(node.wait().code(), Some(11));
}
