//! Programs and maps that outlive the agent, and what the next agent makes of them.

use std::{
    fs,
    net::{Ipv4Addr, UdpSocket},
    time::{Duration, Instant},
};

use muster_domain::job::{PolicyAction, PolicyProtocol};

use crate::{
    bpf::{Adoption, Bpf, ExecCounters, LAYOUT, OpenBpfError, WatchTaskError},
    node::{Node, assert_close, poll},
    policy::{attach_policy, closed, direction, policies, rule},
};

/// As many as `TASKS_MAX` of `muster-ebpf-common`.
const TASKS_MAX: usize = 16_384;

/// One that a kernel refuses and that only counts would leave a reason in its place, and all others go on.
#[test]
fn this_kernel_takes_every_program() {
    let Some(node) = Node::set_up("this_kernel_takes_every_program") else {
        return;
    };

    let bpf = node.open();

    assert_eq!(bpf.adoption(), Adoption::Fresh);
    assert!(bpf.absent().is_empty(), "{:?}", bpf.absent());
}

#[test]
fn counts_and_exits_are_kept_without_an_agent() {
    let Some(mut node) = Node::set_up("counts_and_exits_are_kept_without_an_agent") else {
        return;
    };
    let bpf = node.open();
    node.start("spin");
    poll("a main process", || bpf.main_of(node.task()).unwrap());
    let before = node.counters(&bpf);

    drop(bpf);
    node.kill();
    let start = Instant::now();
    let bpf = Bpf::open(&node.config()).unwrap();
    eprintln!("adopted in {:?}", start.elapsed());

    assert_eq!(bpf.adoption(), Adoption::Same);
    assert_eq!(node.exit(&bpf).wait_status, libc::SIGKILL);
    let after = node.counters(&bpf);
    assert_eq!(
        after.exec,
        ExecCounters {
            exits: 1,
            ..before.exec
        }
    );
    assert_close(
        after.cpu_time(),
        node.cgroup_cpu_time(),
        Duration::from_millis(5),
    );
}

/// The replacing load differs by the cgroup it is attached to.
#[test]
fn replaced_programs_go_on_counting() {
    let Some(mut node) = Node::set_up("replaced_programs_go_on_counting") else {
        return;
    };
    let bpf = node.open();
    node.start("spin");
    poll("a main process", || bpf.main_of(node.task()).unwrap());

    let mut config = node.config();
    config.cgroup_dir = node.cgroup_dir.join("alloc");
    let start = Instant::now();
    let bpf = Bpf::open(&config).unwrap();
    eprintln!("replaced in {:?}", start.elapsed());
    node.kill();

    assert_eq!(bpf.adoption(), Adoption::Replaced);
    assert_eq!(node.exit(&bpf).wait_status, libc::SIGKILL);
    let counters = node.counters(&bpf);
    assert_close(
        counters.cpu_time(),
        node.cgroup_cpu_time(),
        Duration::from_millis(5),
    );
    assert_eq!(
        counters.exec,
        ExecCounters {
            forks: 0,
            execs: 1,
            exits: 1
        }
    );
    let directories = fs::read_dir(&node.pin_dir).unwrap().count();
    assert_eq!(directories, 2, "one of maps and one of programs");
}

/// Two loads take turns while processes come and go. For a moment both are attached each time, and of some events the
/// older has run when the other is made the one that counts.
#[test]
fn replacing_misses_no_process_and_counts_none_twice() {
    const PROCESSES: u32 = 2_000;
    let Some(mut node) = Node::set_up("replacing_misses_no_process_and_counts_none_twice") else {
        return;
    };
    let mut bpf = node.open();
    let here = node.config();
    let mut below = node.config();
    below.cgroup_dir = node.cgroup_dir.join("alloc");

    node.start(&format!("spawn {PROCESSES}"));
    let mut replaced = 0;
    for config in [below, here].iter().cycle() {
        if bpf.exit_of(node.task()).unwrap().is_some() {
            break;
        }
        bpf = Bpf::open(config).unwrap();
        replaced += 1;
    }
    node.wait();

    eprintln!("replaced {replaced} times");
    assert!(replaced > 1);
    let processes = u64::from(PROCESSES);
    let expected = ExecCounters {
        forks: processes,
        execs: processes + 1,
        exits: processes + 1,
    };
    assert_eq!(node.counters(&bpf).exec, expected);
}

/// The task sends all the while, to a place that its policy allows and to one that it does not. The load that is replaced is
/// attached further in, so that it runs first, as the older of two at one place does.
#[test]
fn replacing_leaves_no_hole_in_policy() {
    const TIMES: usize = 3;
    let Some(mut node) = Node::set_up("replacing_leaves_no_hole_in_policy") else {
        return;
    };
    let mut below = node.config();
    below.cgroup_dir = node.cgroup_dir.join("alloc");
    let [allowed, refused] = [(); 2].map(|()| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
    let bpf = Bpf::open(&below).unwrap();
    bpf.watch(node.task()).unwrap();
    let port = allowed.local_addr().unwrap().port();
    let there = rule(PolicyAction::Allow, PolicyProtocol::Udp, "127.0.0.1", port);
    let egress = direction(PolicyAction::Deny, vec![there]);
    attach_policy(&node, &bpf, &policies(egress, closed()));

    let mut last = (0, 0);
    for _ in 0..TIMES {
        let bpf = Bpf::open(&below).unwrap();
        for socket in [&allowed, &refused] {
            node.start(&format!("flood {}", socket.local_addr().unwrap()));
        }
        last = go_on(&node, &bpf, last);

        let bpf = Bpf::open(&node.config()).unwrap();

        assert_eq!(bpf.adoption(), Adoption::Replaced);
        last = go_on(&node, &bpf, last);
        node.kill();
        node.kill();
    }

    for (socket, arrived) in [(allowed, true), (refused, false)] {
        socket.set_nonblocking(true).unwrap();
        assert_eq!(socket.recv_from(&mut [0; 2_000]).is_ok(), arrived);
    }
}

/// Packets that the task sent and that were refused, when there are more of both than in `last`. There are never fewer.
fn go_on(node: &Node, bpf: &Bpf, last: (u64, u64)) -> (u64, u64) {
    poll("packets that pass and packets that are refused", || {
        let net = node.counters(bpf).net;
        let now = (net.egress_packets, net.egress_denied);
        assert!(now.0 >= last.0 && now.1 >= last.1, "{now:?} after {last:?}");
        (now.0 > last.0 && now.1 > last.1).then_some(now)
    })
}

/// As after an upgrade that changes what is in the maps: the fresh ones know no task until somebody tells them, and the
/// programs with the old ones judge until then.
#[test]
fn task_is_registered_in_new_maps_before_switchover() {
    let name = "task_is_registered_in_new_maps_before_switchover";
    let Some(mut node) = Node::set_up(name) else {
        return;
    };
    let [allowed, refused] = [(); 2].map(|()| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
    let port = allowed.local_addr().unwrap().port();
    let there = rule(PolicyAction::Allow, PolicyProtocol::Udp, "127.0.0.1", port);
    let policies = policies(direction(PolicyAction::Deny, vec![there]), closed());
    let bpf = node.open();
    attach_policy(&node, &bpf, &policies);
    for socket in [&allowed, &refused] {
        node.start(&format!("flood {}", socket.local_addr().unwrap()));
    }
    go_on(&node, &bpf, (0, 0));

    let prepared = Bpf::prepare(&node.config(), LAYOUT + 1).unwrap();
    assert_eq!(prepared.bpf().adoption(), Adoption::Fresh);
    attach_policy(&node, prepared.bpf(), &policies);
    assert!(prepared.bpf().watch_running(node.task()).unwrap());
    let bpf = prepared.activate().unwrap();

    let counted = go_on(&node, &bpf, (0, 0));
    assert!(!bpf.watch_running(node.task()).unwrap());
    go_on(&node, &bpf, counted);
    // Which process was the first is not known any more.
    node.start("exit 42");
    node.wait();
    assert_eq!(bpf.main_of(node.task()).unwrap(), None);
    node.kill();
    node.kill();
    let exec = node.counters(&bpf).exec;
    assert_eq!((exec.execs, exec.exits), (1, 3));
    assert_eq!(bpf.exit_of(node.task()).unwrap(), None);
    refused.set_nonblocking(true).unwrap();
    assert!(refused.recv_from(&mut [0; 2_000]).is_err());
    let directories = fs::read_dir(&node.pin_dir).unwrap().count();
    assert_eq!(directories, 2, "one of maps and one of programs");
}

#[test]
fn incomplete_load_is_made_whole() {
    let Some(mut node) = Node::set_up("incomplete_load_is_made_whole") else {
        return;
    };
    let bpf = node.open();
    let programs = fs::read_dir(&node.pin_dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.to_string_lossy().contains("programs-"))
        .unwrap();
    fs::remove_file(programs.join("process_exit")).unwrap();
    drop(bpf);

    let bpf = Bpf::open(&node.config()).unwrap();
    node.start("exit 42");
    node.wait();

    assert_eq!(bpf.adoption(), Adoption::Replaced);
    assert_eq!(node.exit(&bpf).wait_status, 42 << 8);
}

#[test]
fn forgotten_task_is_not_counted() {
    let Some(mut node) = Node::set_up("forgotten_task_is_not_counted") else {
        return;
    };
    let bpf = node.open();
    bpf.forget(node.task()).unwrap();

    node.start("exit 42");
    node.wait();

    assert!(bpf.collect().unwrap().is_empty());
    assert_eq!(bpf.exit_of(node.task()).unwrap(), None);
    assert_eq!(bpf.lost().unwrap(), 0);
}

/// The ids are of no cgroup; a batch look-up takes more than one call for them.
#[test]
fn full_maps_refuse_and_count_it() {
    let Some(node) = Node::set_up("full_maps_refuse_and_count_it") else {
        return;
    };
    let bpf = Bpf::open(&node.config()).unwrap();
    for task in 0..TASKS_MAX as u64 {
        bpf.watch(1 << 40 | task).unwrap();
    }

    let refused = bpf.watch(1 << 41).unwrap_err();

    assert!(matches!(refused, WatchTaskError::Full { .. }), "{refused}");
    assert_eq!(bpf.lost().unwrap(), 1);
    let start = Instant::now();
    let tasks = bpf.collect().unwrap();
    eprintln!("collected {} tasks in {:?}", tasks.len(), start.elapsed());
    assert_eq!(tasks.len(), TASKS_MAX);
    assert!(!tasks.contains_key(&(1 << 41)));
}

#[test]
fn wrong_places_are_refused() {
    let Some(node) = Node::set_up("wrong_places_are_refused") else {
        return;
    };
    let mut no_bpffs = node.config();
    no_bpffs.pin_dir = node.data_dir.path().join("pins");
    let mut no_cgroup = node.config();
    no_cgroup.cgroup_dir = node.data_dir.path().to_owned();
    let mut absent = node.config();
    absent.cgroup_dir = node.cgroup_dir.join("absent");

    let errors = [no_bpffs, no_cgroup, absent].map(|config| Bpf::open(&config).unwrap_err());

    assert!(
        matches!(errors[0], OpenBpfError::NotBpffs { .. }),
        "{}",
        errors[0]
    );
    assert!(
        matches!(errors[1], OpenBpfError::NotCgroupV2 { .. }),
        "{}",
        errors[1]
    );
    assert!(
        matches!(errors[2], OpenBpfError::OpenCgroup { .. }),
        "{}",
        errors[2]
    );
    assert!(!node.data_dir.path().join("pins").exists());
}
