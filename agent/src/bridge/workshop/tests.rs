//! Networks whose making fails, or is broken off, at each of its steps. Whole networks are in `cli/tests/e2e/bridge.rs`.

use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::Command;

use muster_domain::id::NodeId;
use muster_driver::fixture::skipped;

use super::*;
use crate::bpf::tests::node::{Node, poll};
use crate::bpf::{Bpf, BpfConfig};

/// The door that is made.
const DOOR: &str = "mu-0123456789ab";
const ALIAS: &str = "muster test";
/// Fewer steps than this are not all that a network takes.
const STEPS_MIN: u32 = 20;
/// Tells a child process where the programs are.
const PROGRAMS: &str = "MUSTER_TEST_NETWORK_PROGRAMS";

fn workshop(bpf: &Bpf) -> Workshop {
    let subnet = "172.26.64.0/28".parse().unwrap();
    Workshop {
        node: NodeNetwork::new(NodeId([7; 16]), subnet),
        programs: bpf.device_programs(),
        pool: AddressPool::new(subnet).unwrap(),
        machine: None,
    }
}

/// Runs `body` in a network namespace that is the machine's; says so where there are no such networks.
fn on_a_machine(test: &'static str, body: impl FnOnce(&Node, &Bpf) + Send) {
    let Some(node) = Node::set_up(test) else {
        return;
    };
    let bpf = node.open();
    let run = || {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        Netlink::open().unwrap().wake(LOOPBACK).unwrap();
        let mut workshop = workshop(&bpf);
        match workshop.make(DOOR, ALIAS, None) {
            Ok(made) => workshop.remove(made.door, made.address).unwrap(),
            Err(error) => {
                let reason = format!("this kernel makes no such networks: {error:?}");
                skipped(test, &reason);
                return;
            }
        }
        workshop.node.undo().unwrap();
        body(&node, &bpf);
    };
    std::thread::scope(|scope| {
        if let Err(panic) = scope.spawn(run).join() {
            std::panic::resume_unwind(panic);
        }
    });
}

fn inode(path: &str) -> u64 {
    std::fs::metadata(path).unwrap().ino()
}

/// A namespace that a driver made.
fn driver_namespace() -> OwnedFd {
    let made = std::thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        File::open(OWN_NAMESPACE).unwrap()
    });
    made.join().unwrap().into()
}

/// Waits until no door is there: that of a namespace which nobody has any more goes by itself.
fn no_door_is_left(step: u32) {
    poll(&format!("the end of the door of step {step}"), || {
        let devices = Netlink::open().unwrap().devices().unwrap();
        let mut doors = devices.iter().filter(|it| it.name.starts_with(DOOR_PREFIX));
        doors.next().is_none().then_some(())
    });
}

/// Each step fails once; in a namespace of its own, and in one that a driver made and goes on having.
#[test]
fn a_network_that_cannot_be_made_leaves_nothing() {
    on_a_machine("a_network_that_cannot_be_made_leaves_nothing", |_, bpf| {
        let machine = inode(OWN_NAMESPACE);
        for is_given in [false, true] {
            let given = is_given.then(driver_namespace);
            let mut step = 0;
            loop {
                step += 1;
                let mut workshop = workshop(bpf);
                failing::arm(step);
                let made = workshop.make(DOOR, ALIAS, given.as_ref());
                let has_failed = failing::disarm();
                match made {
                    Ok(made) => workshop.remove(made.door, made.address).unwrap(),
                    Err(error) => assert!(has_failed, "step {step}: {error:?}"),
                }
                no_door_is_left(step);
                assert_eq!(inode(OWN_NAMESPACE), machine, "step {step}");
                let free = std::iter::from_fn(|| workshop.pool.take()).count();
                assert_eq!(free, 13, "step {step}: an address is not given back");
                workshop.node.undo().unwrap();
                assert!(
                    !workshop.node.undo().unwrap(),
                    "step {step}: a rule is left"
                );
                if !has_failed {
                    break;
                }
            }
            assert!(step > STEPS_MIN, "{step} steps");
        }
    });
}

/// Not a test: makes a network, unless it dies before.
#[test]
#[ignore = "run by the other test as its child process"]
fn maker_entry() {
    let Ok(told) = std::env::var(PROGRAMS) else {
        return;
    };
    let [pin_dir, cgroup_dir, level] = told.split('\n').collect::<Vec<_>>().try_into().unwrap();
    let bpf = Bpf::open(&BpfConfig {
        pin_dir: pin_dir.into(),
        cgroup_dir: cgroup_dir.into(),
        task_level: level.parse().unwrap(),
    });
    workshop(&bpf.unwrap()).make(DOOR, ALIAS, None).unwrap();
}

/// What a dead agent leaves behind is what `muster agent clean` and the next agent remove.
#[test]
fn an_agent_that_dies_at_any_step_leaves_no_network() {
    on_a_machine(
        "an_agent_that_dies_at_any_step_leaves_no_network",
        |node, bpf| {
            let config = node.config();
            let text = |path: &Path| path.display().to_string();
            let told = [
                text(&config.pin_dir),
                text(&config.cgroup_dir),
                config.task_level.to_string(),
            ];
            let mut step = 0;
            loop {
                step += 1;
                let output = Command::new(std::env::current_exe().unwrap())
                    .args([
                        "--ignored",
                        "--exact",
                        "bridge::workshop::tests::maker_entry",
                    ])
                    .env(PROGRAMS, told.join("\n"))
                    .env(failing::KILL, step.to_string())
                    .output()
                    .unwrap();
                let has_died = output.status.signal() == Some(libc::SIGABRT);
                assert!(
                    has_died || output.status.success(),
                    "step {step}: {output:?}"
                );
                no_door_is_left(step);
                let workshop = workshop(bpf);
                workshop.node.undo().unwrap();
                assert!(
                    !workshop.node.undo().unwrap(),
                    "step {step}: a rule is left"
                );
                if !has_died {
                    break;
                }
            }
            assert!(step > STEPS_MIN, "{step} steps");
        },
    );
}
