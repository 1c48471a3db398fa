//! CPU time against the kernel's own accounting.

use std::time::Duration;

use crate::node::{Node, assert_close, poll};

#[test]
fn cpu_time_agrees_with_the_cgroup() {
    let Some(mut node) = Node::set_up("cpu_time_agrees_with_the_cgroup") else {
        return;
    };
    let bpf = node.open();

    node.start("burn 300");
    node.wait();

    let counters = node.counters(&bpf);
    eprintln!(
        "cgroup {:?}, counted {:?}",
        node.cgroup_cpu_time(),
        counters.sched
    );
    assert!(counters.cpu_time() > Duration::ZERO);
    assert_close(
        counters.cpu_time(),
        node.cgroup_cpu_time(),
        Duration::from_millis(5),
    );
    assert!(counters.sched.switches_voluntary > 0);
}

/// A thread that nothing preempts is not switched away from for a long time.
#[test]
fn cpu_time_of_a_spinning_task_grows_between_collections() {
    let Some(mut node) = Node::set_up("cpu_time_of_a_spinning_task_grows_between_collections")
    else {
        return;
    };
    let bpf = node.open();
    node.start("spin");

    for _ in 0..20 {
        let before = node.counters(&bpf).cpu_time();
        poll("growing CPU time", || {
            (node.counters(&bpf).cpu_time() > before).then_some(())
        });
    }

    // The kernel's own numbers are those of the last timer tick.
    let counted = node.counters(&bpf).cpu_time();
    assert_close(counted, node.cgroup_cpu_time(), Duration::from_millis(20));
}
