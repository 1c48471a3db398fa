//! Networks whose set-up fails, or is interrupted, at each of its steps. `cli/tests/e2e/bridge.rs` covers whole
//! networks.

use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::Command;

use muster_domain::alloc::{ClientStatus, DesiredAlloc, DesiredStatus};
use muster_domain::fixture::job;
use muster_domain::id::{AllocId, LogIndex, NodeId};
use muster_domain::resources::{AllocatedPort, Holding};
use muster_driver::fixture::skipped;

use super::*;
use crate::bpf::tests::node::{Node, poll};
use crate::bpf::{Bpf, BpfConfig};
use crate::network::bridge::{Bridge, NodeNetworkContext, files, undo};
use crate::tasks::task_env::TaskEnv;

/// The name of the new host veth.
const HOST_VETH: &str = "mu-0123456789ab";
const ALIAS: &str = "muster test";
/// A network takes at least this number of steps.
const STEPS_MIN: u32 = 20;
/// The variable with which a child process finds the programs.
const PROGRAMS: &str = "MUSTER_TEST_NETWORK_PROGRAMS";

fn new_worker(bpf: &Bpf) -> NetnsWorker {
    let subnet = "172.26.64.0/28".parse().unwrap();
    NetnsWorker {
        node: NodeNetwork::new(NodeId([7; 16]), subnet),
        programs: bpf.device_programs(),
        pool: AddressPool::new(subnet).unwrap(),
        machine: None,
    }
}

/// Runs `body` in a network namespace that stands for the machine's. Prints a skip where such namespaces are not
/// available.
fn on_a_machine(test: &'static str, body: impl FnOnce(&Node, &Bpf) + Send) {
    let Some(node) = Node::set_up(test) else {
        return;
    };
    let bpf = node.open();
    let run = || {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        Netlink::open().unwrap().set_link_up(LOOPBACK).unwrap();
        let mut worker = new_worker(&bpf);
        match worker.make(HOST_VETH, ALIAS, None) {
            Ok(made) => worker.remove(made.host_veth, made.address).unwrap(),
            Err(error) => {
                let reason = format!("this kernel makes no such networks: {error:?}");
                skipped(test, &reason);
                return;
            }
        }
        undo(worker.node.node_id).unwrap();
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

/// Waits until no host veth exists. The host veth of an abandoned namespace disappears by itself.
fn no_host_veth_is_left(step: u32) {
    poll(&format!("the end of the host veth of step {step}"), || {
        let devices = Netlink::open().unwrap().devices().unwrap();
        let mut host_veths = devices
            .iter()
            .filter(|it| it.name.starts_with(HOST_VETH_PREFIX));
        host_veths.next().is_none().then_some(())
    });
}

/// Each step fails once: in a namespace of the agent's own, and in one that a driver made and keeps.
#[test]
fn a_network_that_cannot_be_made_leaves_nothing() {
    on_a_machine("a_network_that_cannot_be_made_leaves_nothing", |_, bpf| {
        let machine = inode(OWN_NAMESPACE);
        for is_given in [false, true] {
            let given = is_given.then(driver_namespace);
            let mut step = 0;
            loop {
                step += 1;
                let mut worker = new_worker(bpf);
                failing::arm(step);
                let made = worker.make(HOST_VETH, ALIAS, given.as_ref());
                let has_failed = failing::disarm();
                match made {
                    Ok(made) => worker.remove(made.host_veth, made.address).unwrap(),
                    Err(error) => assert!(has_failed, "step {step}: {error:?}"),
                }
                no_host_veth_is_left(step);
                assert_eq!(inode(OWN_NAMESPACE), machine, "step {step}");
                let free = std::iter::from_fn(|| worker.pool.take()).count();
                assert_eq!(free, 13, "step {step}: an address is not given back");
                undo(worker.node.node_id).unwrap();
                assert!(
                    !undo(worker.node.node_id).unwrap(),
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

/// An allocation that holds three ports of the machine.
fn desired() -> DesiredAlloc {
    let port = |value: u16| AllocatedPort {
        label: format!("p{value}"),
        value,
        to: 80,
        host_ip: String::new(),
    };
    DesiredAlloc {
        alloc_id: AllocId::at(LogIndex(7), 0),
        alloc_modify_index: LogIndex(7),
        desired: DesiredStatus::Run,
        name_index: 0,
        group_at: 0,
        holding: Holding {
            ports: [8_001, 8_002, 8_003].map(port).to_vec(),
            ..Holding::default()
        },
        deployment: None,
        canary: false,
        previous: None,
        client_status: ClientStatus::Pending,
        job: job("web").version(),
    }
}

/// Each step after the kernel's part fails once: the host veth and the published ports, and the name files. All
/// steps run twice, so that leaked addresses would exhaust the subnet.
#[test]
fn a_network_that_cannot_be_opened_leaves_nothing() {
    on_a_machine(
        "a_network_that_cannot_be_opened_leaves_nothing",
        |_, bpf| {
            let subnet = "172.26.64.0/28".parse().unwrap();
            let bridge = Bridge::new(NodeNetwork::new(NodeId([7; 16]), subnet), Ok(bpf));
            let logs = tempfile::tempdir().unwrap();
            let node_context = NodeNetworkContext {
                bpf: Ok(bpf),
                address: "10.9.0.1".to_owned(),
                names: logs.path().join("names"),
                env: TaskEnv::default(),
            };
            let desired = desired();
            let group = desired.group().unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread()
                .build()
                .unwrap();
            for _ in 0..2 {
                let mut step = 0;
                loop {
                    step += 1;
                    failing::arm(step);
                    let made = runtime.block_on(bridge.make(&node_context, &desired, group, None));
                    let has_failed = failing::disarm();
                    match made {
                        Ok(network) => {
                            assert!(!has_failed, "step {step}");
                            assert_eq!(bpf.published().unwrap().len(), 6);
                            assert!(node_context.names.join("hosts").exists());
                            runtime.block_on(bridge.close(Some(bpf), &network)).unwrap();
                            files::remove(&node_context.names).unwrap();
                        }
                        Err(error) => assert!(has_failed, "step {step}: {error:?}"),
                    }
                    assert_eq!(bridge.unremoved().len(), 0, "step {step}");
                    no_host_veth_is_left(step);
                    assert_eq!(bpf.host_veths().unwrap(), BTreeSet::new(), "step {step}");
                    assert_eq!(bpf.published().unwrap(), Vec::new(), "step {step}");
                    assert!(!node_context.names.exists(), "step {step}: files are left");
                    if !has_failed {
                        break;
                    }
                }
                // The host veth, three ports of two protocols, the files' directory and at least one of them.
                assert!(step > 9, "{step} steps");
            }
            undo(bridge.node.node_id).unwrap();
        },
    );
}

/// This is no test: it makes a network, unless it is killed before.
#[test]
#[ignore = "run by the other test as its child process"]
fn maker_entry() {
    let Ok(programs) = std::env::var(PROGRAMS) else {
        return;
    };
    let [pin_dir, cgroup_dir, level] = programs.split('\n').collect::<Vec<_>>().try_into().unwrap();
    let bpf = Bpf::open(&BpfConfig {
        pin_dir: pin_dir.into(),
        cgroup_dir: cgroup_dir.into(),
        task_level: level.parse().unwrap(),
    });
    new_worker(&bpf.unwrap())
        .make(HOST_VETH, ALIAS, None)
        .unwrap();
}

/// The parts of a network that a dead agent leaves are removed by `muster agent clean` and by the next agent.
#[test]
fn agent_crash_at_any_step_leaks_no_network() {
    on_a_machine("agent_crash_at_any_step_leaks_no_network", |node, bpf| {
        let config = node.config();
        let text = |path: &Path| path.display().to_string();
        let programs = [
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
                    "network::bridge::netns_worker::tests::maker_entry",
                ])
                .env(PROGRAMS, programs.join("\n"))
                .env(failing::KILL, step.to_string())
                .output()
                .unwrap();
            let has_died = output.status.signal() == Some(libc::SIGABRT);
            assert!(
                has_died || output.status.success(),
                "step {step}: {output:?}"
            );
            no_host_veth_is_left(step);
            let worker = new_worker(bpf);
            undo(worker.node.node_id).unwrap();
            assert!(
                !undo(worker.node.node_id).unwrap(),
                "step {step}: a rule is left"
            );
            if !has_died {
                break;
            }
        }
        assert!(step > STEPS_MIN, "{step} steps");
    });
}
