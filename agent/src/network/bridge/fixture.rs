//! Networks and policies without an agent, for measurements. The calling thread must be in a network namespace
//! of its own, with a device that has an address.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd as _, AsRawFd as _};

use muster_agent_core::policy::{NodePolicy, compile};
use muster_domain::job::{
    DirectionPolicy, NetworkPolicy, PolicyAction, PolicyProtocol, PolicyRule, PortRange, TaskGroup,
    read_peer,
};
use muster_ebpf_common::nat::{GATEWAY, PublishedKey, PublishedPort};
use netlink_packet_route::address::AddressScope;
use nix::sched::{CloneFlags, setns, unshare};
use tokio::sync::{mpsc, oneshot};

use super::DEFAULT_SUBNET;
use super::netlink::{EGRESS, INGRESS, LOOPBACK, Netlink, VethPair};
use super::netns_worker::{self, AllocNetns, NetnsRequest, host_veth_mac, inside_mac};
use crate::bpf::{Bpf, BpfConfig};
use crate::network::bridge::node_network::NodeNetwork;

/// The error of a measurement.
type BenchmarkError = Box<dyn std::error::Error + Send + Sync>;

/// The machine's port of the first network; each further network has the next port.
const FIRST_PORT: u16 = 20_000;

/// Networks that were made, removed when dropped.
#[derive(Debug)]
pub struct Networks {
    bpf: Bpf,
    requests: mpsc::Sender<NetnsRequest>,
    node: NodeNetwork,
    made: Vec<AllocNetns>,
    bare: Vec<BaselineNetwork>,
    netlink: Netlink,
}

/// A network as a plain loop makes it, for comparison.
#[derive(Debug)]
struct BaselineNetwork {
    host_veth: u32,
    _namespace: std::fs::File,
}

impl Networks {
    /// Loads the programs.
    ///
    /// # Errors
    ///
    /// The error of the kernel.
    pub fn open(config: &BpfConfig) -> Result<Self, BenchmarkError> {
        let bpf = Bpf::open(config)?;
        let node_id = muster_domain::id::NodeId(*uuid::Uuid::new_v4().as_bytes());
        let node = NodeNetwork::new(node_id, DEFAULT_SUBNET);
        let requests = netns_worker::start(node.clone(), bpf.device_programs())?;
        Ok(Self {
            bpf,
            requests,
            node,
            made: Vec::new(),
            bare: Vec::new(),
            netlink: Netlink::open()?,
        })
    }

    /// The number of networks.
    pub fn count(&self) -> usize {
        self.made.len()
    }

    /// Makes a network as the agent does, with one published port.
    ///
    /// # Errors
    ///
    /// The error of the kernel.
    pub fn make(&mut self) -> Result<(), BenchmarkError> {
        let number = self.made.len();
        let (done, made) = oneshot::channel();
        let name = format!("mu-{number:012x}");
        let alias = "measurement".to_owned();
        self.requests.blocking_send(NetnsRequest::Make {
            name,
            alias,
            namespace: None,
            done,
        })?;
        let made = made.blocking_recv()??;
        self.bpf.set_host_veth(made.host_veth, made.address)?;
        for protocol in super::PROTOCOLS {
            let key = PublishedKey {
                address: [10, 9, 0, 1],
                port: FIRST_PORT.wrapping_add(u16::try_from(number)?),
                protocol,
                pad: 0,
            };
            let leads_to = PublishedPort {
                address: made.address.octets(),
                host_veth: made.host_veth,
                port: 80,
                inside_mac: inside_mac(made.address),
                host_veth_mac: host_veth_mac(made.address),
                pad: 0,
            };
            self.bpf.publish(key, leads_to)?;
        }
        self.made.push(made);
        Ok(())
    }

    /// Makes a network with the same requests to the kernel and nothing else. Its address is outside of the agent's
    /// subnet.
    ///
    /// # Errors
    ///
    /// The error of the kernel.
    pub fn make_bare(&mut self) -> Result<(), BenchmarkError> {
        let number = u32::try_from(self.bare.len())?;
        let address = Ipv4Addr::from(u32::from(Ipv4Addr::new(172, 27, 0, 2)) + number);
        let home = std::fs::File::open("/proc/thread-self/ns/net")?;
        unshare(CloneFlags::CLONE_NEWNET)?;
        let namespace = std::fs::File::open("/proc/thread-self/ns/net")?;
        let mut inside = Netlink::open()?;
        setns(home.as_fd(), CloneFlags::CLONE_NEWNET)?;
        let name = format!("bare{number:x}");
        self.netlink.make_pair(&VethPair {
            host_veth: &name,
            host_veth_mac: host_veth_mac(address),
            inside: "eth0",
            inside_mac: inside_mac(address),
            namespace: namespace.as_raw_fd(),
            mtu: 1_500,
            alias: "measurement",
        })?;
        let host_veth = self.netlink.device(&name)?.ok_or("no device")?.index;
        let device = inside.device("eth0")?.ok_or("no device")?.index;
        inside.set_link_up(LOOPBACK)?;
        inside.set_link_up(device)?;
        inside.add_address(device, address, AddressScope::Universe)?;
        inside.add_host_route(device, GATEWAY.into())?;
        inside.add_neighbour(device, GATEWAY.into(), host_veth_mac(address))?;
        inside.add_default_route(device, GATEWAY.into())?;
        self.netlink.add_host_route(host_veth, address)?;
        self.netlink
            .add_neighbour(host_veth, address, inside_mac(address))?;
        self.netlink
            .add_address(host_veth, GATEWAY.into(), AddressScope::Link)?;
        self.netlink.open_hooks(host_veth)?;
        let [inward, outward] = self.bpf.device_programs();
        for (parent, program, name) in [(INGRESS, inward, "nat_in"), (EGRESS, outward, "nat_out")] {
            let program = (program.as_raw_fd(), name);
            self.netlink
                .attach(host_veth, parent, self.node.handle, program)?;
        }
        self.bare.push(BaselineNetwork {
            host_veth,
            _namespace: namespace,
        });
        Ok(())
    }

    /// Removes the network of [`Networks::make_bare`].
    ///
    /// # Errors
    ///
    /// The error of the kernel.
    pub fn remove_bare(&mut self) -> Result<(), BenchmarkError> {
        for bare in self.bare.drain(..) {
            self.netlink.remove_device(bare.host_veth)?;
        }
        Ok(())
    }

    /// Compiles a separate policy of `rules` rules and attaches it to the task with this cgroup.
    ///
    /// # Errors
    ///
    /// If there is no room.
    pub fn attach_policy(
        &self,
        group: &TaskGroup,
        task: u64,
        rules: u32,
    ) -> Result<(), BenchmarkError> {
        let rule = |number: u32| {
            let address = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 0, 0, 0)) + number * 256);
            let port = u16::try_from(1 + (task + u64::from(number)) % 60_000).unwrap_or(1);
            PolicyRule {
                name: format!("r{number}"),
                action: PolicyAction::Allow,
                protocol: PolicyProtocol::Tcp,
                peers: read_peer(&format!("{address}/24")).into_iter().collect(),
                ports: vec![PortRange {
                    first: port,
                    last: port,
                }],
                icmp_type: None,
                icmp_code: None,
                log: false,
            }
        };
        let mut group = group.clone();
        let name = group.tasks[0].name.clone();
        group.tasks[0].policy = Some(NetworkPolicy {
            egress: DirectionPolicy {
                default: Some(PolicyAction::Deny),
                rules: (0..rules).map(rule).collect(),
                rate: None,
            },
            ingress: DirectionPolicy::default(),
        });
        let policies = compile(&group, &name, &NodePolicy::default(), &[])?;
        self.bpf.attach_policy(task, &policies, &BTreeSet::new())?;
        Ok(())
    }

    /// Removes a task's policy.
    ///
    /// # Errors
    ///
    /// The error of the kernel.
    pub fn forget(&self, task: u64) -> Result<(), BenchmarkError> {
        Ok(self.bpf.forget(task)?)
    }
}

impl Drop for Networks {
    fn drop(&mut self) {
        for made in self.made.drain(..) {
            let (done, removed) = oneshot::channel();
            let request = NetnsRequest::Remove {
                host_veth: made.host_veth,
                address: made.address,
                done,
            };
            // The namespace of all networks is removed anyway.
            if self.requests.blocking_send(request).is_ok() {
                drop(removed.blocking_recv());
            }
        }
        drop(super::undo(self.node.node_id));
    }
}
