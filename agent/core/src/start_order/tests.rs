use std::sync::Arc;

use muster_domain::alloc::ClientStatus;
use muster_domain::fixture;
use muster_domain::id::LogIndex;
use muster_domain::resources::{AllocatedPort, HeldCores, HeldDevices, Holding};

use super::*;

fn id(index: u64) -> AllocId {
    AllocId::at(LogIndex(index), 0)
}

/// An allocation that the entry `index` placed.
fn alloc(index: u64, priority: u8) -> DesiredAlloc {
    let mut job = fixture::job("web").version();
    Arc::make_mut(&mut job).spec.priority = priority;
    DesiredAlloc {
        alloc_modify_index: LogIndex(index),
        client_status: ClientStatus::Running,
        ..fixture::desired(id(index), job)
    }
}

fn leaving(index: u64, priority: u8, desired: DesiredStatus) -> DesiredAlloc {
    DesiredAlloc {
        desired,
        ..alloc(index, priority)
    }
}

fn port(value: u16, host_ip: &str) -> Holding {
    Holding {
        ports: vec![AllocatedPort {
            label: "http".into(),
            value,
            to: 0,
            host_ip: host_ip.into(),
        }],
        ..Holding::default()
    }
}

fn cores(ids: &[u16]) -> Holding {
    Holding {
        cores: vec![HeldCores {
            task_at: 0,
            ids: ids.to_vec(),
            mhz: 0,
        }],
        ..Holding::default()
    }
}

fn device(group: &str, id: &str) -> Holding {
    Holding {
        devices: vec![HeldDevices {
            task_at: 0,
            group: group.into(),
            ids: vec![id.into()],
        }],
        ..Holding::default()
    }
}

/// Whether allocation 9, which holds `new`, waits for the older allocation 5, which holds `old` and is to run on.
fn waits(new: Holding, old: Holding) -> bool {
    let new = DesiredAlloc {
        holding: new,
        ..alloc(9, 50)
    };
    let old = DesiredAlloc {
        holding: old,
        ..alloc(5, 50)
    };
    !before(&new, [&old]).is_empty()
}

#[test]
fn a_replacement_waits_for_its_predecessor() {
    let new = DesiredAlloc {
        previous: Some(id(5)),
        ..alloc(9, 50)
    };
    let stopped = leaving(5, 50, DesiredStatus::Stop);
    let other = leaving(6, 50, DesiredStatus::Stop);

    assert_eq!(before(&new, [&stopped, &other]), BTreeSet::from([id(5)]));
}

/// An allocation that was out of reach runs on together with its replacement.
#[test]
fn replacement_does_not_wait_for_running_previous_alloc() {
    let new = DesiredAlloc {
        previous: Some(id(5)),
        ..alloc(9, 50)
    };

    assert_eq!(before(&new, [&alloc(5, 50)]), BTreeSet::new());
}

#[test]
fn preempting_alloc_waits_for_sufficient_evicted_alloc() {
    let evicted = [
        leaving(5, 40, DesiredStatus::Evict),
        leaving(6, 41, DesiredStatus::Evict),
    ];

    assert_eq!(before(&alloc(9, 50), &evicted), BTreeSet::from([id(5)]));
}

#[test]
fn ports_cores_and_devices_have_one_holder() {
    assert!(waits(port(80, "10.0.0.1"), port(80, "10.0.0.1")));
    assert!(waits(port(80, ""), port(80, "10.0.0.1")));
    assert!(!waits(port(80, "10.0.0.2"), port(80, "10.0.0.1")));
    assert!(!waits(port(81, ""), port(80, "")));
    assert!(waits(cores(&[1, 2]), cores(&[2, 3])));
    assert!(!waits(cores(&[1]), cores(&[2, 3])));
    assert!(waits(device("a/gpu/x", "1"), device("a/gpu/x", "1")));
    assert!(!waits(device("a/gpu/x", "1"), device("a/gpu/y", "1")));
    assert!(!waits(port(80, ""), cores(&[80])));
}

/// Two allocations that hold the same resource do not wait for each other.
#[test]
fn the_younger_one_waits() {
    let holding = |alloc| DesiredAlloc {
        holding: port(80, ""),
        ..alloc
    };
    let (old, new) = (holding(alloc(5, 50)), holding(alloc(9, 50)));

    assert_eq!(before(&old, [&new]), BTreeSet::new());
    assert_eq!(before(&new, [&old]), BTreeSet::from([id(5)]));
}

#[test]
fn stopping_alloc_waits_for_no_other() {
    let new = DesiredAlloc {
        previous: Some(id(5)),
        ..leaving(9, 50, DesiredStatus::Stop)
    };

    assert_eq!(
        before(&new, [&leaving(5, 50, DesiredStatus::Stop)]),
        BTreeSet::new()
    );
}

#[test]
fn turn_comes_after_last_predecessor_ends() {
    let mut turns = StartDependencies::default();
    turns.wait(id(9), BTreeSet::from([id(5), id(6)]));
    turns.wait(id(8), BTreeSet::from([id(6)]));
    turns.wait(id(7), BTreeSet::new());

    assert_eq!(turns.handle_ended(id(5)), []);
    assert_eq!(turns.handle_ended(id(6)), [id(8), id(9)]);
    assert_eq!(turns.handle_ended(id(6)), []);
}

/// An allocation that was stopped while it waited does not begin.
#[test]
fn ended_alloc_waits_no_more() {
    let mut turns = StartDependencies::default();
    turns.wait(id(9), BTreeSet::from([id(5)]));

    assert_eq!(turns.handle_ended(id(9)), []);
    assert_eq!(turns.handle_ended(id(5)), []);
}
