//! CPU time against the kernel's own accounting.

use std::time::Duration;

use crate::bpf::TaskTotals;
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
fn cpu_time_of_spinning_task_grows_between_collections() {
    let Some(mut node) = Node::set_up("cpu_time_of_spinning_task_grows_between_collections") else {
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

/// Two threads that want one CPU for 300 ms each get it half of the time, and wait for the other half.
#[test]
fn waiting_for_a_cpu_is_counted_each_time() {
    let Some(mut node) = Node::set_up("waiting_for_a_cpu_is_counted_each_time") else {
        return;
    };
    let bpf = node.open();

    node.start("crowd 300");
    node.wait();

    let sched = node.counters(&bpf).sched;
    let counted: u64 = sched.waits.counts.iter().sum();
    let switches = sched.switches_voluntary + sched.switches_involuntary;
    eprintln!("{sched:?}");
    assert_eq!(bpf.absent().get("run_delay"), None);
    assert!(
        Duration::from_nanos(sched.waits.sum_ns) > Duration::from_millis(200),
        "{sched:?}"
    );
    // A thread that is left has waited once. That of the shell which entered the cgroup cannot be told.
    assert!(counted <= switches, "{sched:?}");
    assert!(switches - counted <= 1, "{sched:?}");
    let above_half_a_millisecond: u64 = sched.waits.counts[10..].iter().sum();
    assert!(above_half_a_millisecond > 0, "{sched:?}");
}

/// A CPU's cached knowledge of a cgroup ends when a task is registered or forgotten.
#[test]
fn task_is_counted_from_registration() {
    let Some(mut node) = Node::set_up("task_is_counted_from_registration") else {
        return;
    };
    let bpf = node.open();
    bpf.forget(node.task()).unwrap();
    node.start("crowd 1000000");
    poll("a task that runs", || {
        (node.cgroup_cpu_time() > Duration::from_millis(50)).then_some(())
    });
    assert!(!bpf.collect().unwrap().contains_key(&node.task()));

    for _ in 0..2 {
        bpf.watch(node.task()).unwrap();
        poll("switches of the task", || {
            (node.counters(&bpf).sched.switches_involuntary > 10).then_some(())
        });
        bpf.forget(node.task()).unwrap();
        assert_eq!(bpf.counters_of(node.task()).unwrap(), None);
    }
}

/// Tasks beyond those whose counters are found by number are counted by name.
#[test]
fn tasks_without_a_slot_are_counted_too() {
    let Some(mut node) = Node::set_up("tasks_without_a_slot_are_counted_too") else {
        return;
    };
    let bpf = node.open();
    bpf.forget(node.task()).unwrap();
    // No cgroups have these ids.
    let others: Vec<u64> = (1..=u64::from(SLOTS)).map(|id| id << 50).collect();
    for other in &others {
        bpf.watch(*other).unwrap();
    }
    let receiver = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    bpf.watch(node.task()).unwrap();

    node.start(&format!("send {}", receiver.local_addr().unwrap().port()));
    node.wait();

    let counted = node.counters(&bpf);
    assert!(counted.cpu_time() > Duration::ZERO);
    assert_eq!(counted.net.egress_packets, 10);
    assert_eq!(bpf.counters_of(node.task()).unwrap(), Some(counted));
    assert_eq!(bpf.collect().unwrap().len(), others.len() + 1);
}

/// `SLOTS_MAX` of `muster-ebpf-common`.
const SLOTS: u32 = 1_024;

/// The totals of which a history is made equal the counters of each task.
#[test]
fn totals_are_the_counters_of_each_task() {
    let Some(mut node) = Node::set_up("totals_are_the_counters_of_each_task") else {
        return;
    };
    let bpf = node.open();
    let idle = node.task() | 1 << 40;
    bpf.watch(idle).unwrap();
    node.start("burn 50");
    node.wait();

    let totals = bpf.collect_totals(1).unwrap();

    let counters = node.counters(&bpf);
    assert!(counters.sched.cpu_ns > 0);
    assert!(counters.sched.switches_voluntary > 0);
    let expected = TaskTotals {
        cpu_ns: counters.sched.cpu_ns,
        run_delay_ns: counters.sched.waits.sum_ns,
        context_switches: counters.sched.switches_voluntary + counters.sched.switches_involuntary,
        net_rx_bytes: counters.net.ingress_bytes,
        net_tx_bytes: counters.net.egress_bytes,
        tcp_retransmits: counters.net.tcp_retransmits,
        block_read_bytes: counters.block.read_bytes,
        block_write_bytes: counters.block.write_bytes,
    };
    assert_eq!(totals[&node.task()], expected);
    assert_eq!(totals[&idle], TaskTotals::default());
    assert_eq!(totals.len(), 2);
}
