//! The thread that makes networks. It alone among the agent's threads enters namespaces.
//!
//! A half-made network disappears with its namespace, and the namespace with the process that has it open. So after
//! a crash of the agent, only namespaces with processes remain.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use ipnet::Ipv4Net;
use muster_agent_core::addresses::AddressPool;
use muster_ebpf_common::nat::GATEWAY;
use netlink_packet_route::address::AddressScope;
use nix::sched::{CloneFlags, setns, unshare};
use tokio::sync::{mpsc, oneshot};

use super::failing;
use super::masquerade::{self, HOST_VETH_PREFIX};
use super::netlink::{Device, EGRESS, INGRESS, LOOPBACK, Netlink, VethPair};
use super::settings::Settings;
use crate::limits::{BRIDGE_REQUESTS_MAX, BRIDGE_TRIES_MAX};
use crate::network::bridge::error::BridgeError;
use crate::network::bridge::node_network::NodeNetwork;

/// The name of an allocation's device in its namespace.
const INSIDE: &str = "eth0";
/// The MTU, unless a device of the machine has a smaller one.
const MTU: u32 = 1_500;
/// The namespace of the calling thread.
const OWN_NAMESPACE: &str = "/proc/thread-self/ns/net";

/// An existing network.
#[derive(Debug)]
pub(super) struct AllocNetns {
    /// The interface index of its host veth.
    pub(super) host_veth: u32,
    pub(super) address: Ipv4Addr,
    pub(super) namespace: OwnedFd,
}

/// A request to the thread.
#[derive(Debug)]
pub(super) enum NetnsRequest {
    /// Makes a network for the allocation whose host veth has this name. The network is in the given namespace, or
    /// else in a new one.
    Make {
        name: String,
        alias: String,
        namespace: Option<OwnedFd>,
        done: oneshot::Sender<Result<AllocNetns, BridgeError>>,
    },
    /// Finds the network in the first of these namespaces that has that host veth.
    Adopt {
        name: String,
        namespaces: Vec<OwnedFd>,
        done: oneshot::Sender<Result<Option<AllocNetns>, BridgeError>>,
    },
    Remove {
        host_veth: u32,
        address: Ipv4Addr,
        done: oneshot::Sender<io::Result<()>>,
    },
    /// Looks for new devices of the machine, and returns the existing devices.
    Look {
        done: oneshot::Sender<io::Result<BTreeSet<u32>>>,
    },
}

/// Starts the thread. It ends when all senders of requests are dropped.
pub(super) fn start(
    node: NodeNetwork,
    programs: [Arc<OwnedFd>; 2],
) -> Result<mpsc::Sender<NetnsRequest>, BridgeError> {
    let pool = AddressPool::new(node.subnet)?;
    let (requests, inbox) = mpsc::channel(BRIDGE_REQUESTS_MAX);
    let work = move || {
        let worker = NetnsWorker {
            node,
            programs,
            pool,
            machine: None,
        };
        worker.serve(inbox);
    };
    std::thread::Builder::new()
        .name("networks".to_owned())
        .spawn(work)
        .map_err(|source| BridgeError::kernel("start a thread for networks", source))?;
    Ok(requests)
}

#[derive(Debug)]
struct NetnsWorker {
    node: NodeNetwork,
    programs: [Arc<OwnedFd>; 2],
    pool: AddressPool,
    machine: Option<HostNetns>,
}

/// The machine's side after its set-up.
#[derive(Debug)]
struct HostNetns {
    netlink: Netlink,
    namespace: File,
    settings: Settings,
    /// Devices that have the programs.
    hooked: BTreeSet<u32>,
    mtu: u32,
}

impl NetnsWorker {
    fn serve(mut self, mut inbox: mpsc::Receiver<NetnsRequest>) {
        while let Some(order) = inbox.blocking_recv() {
            // The requester may have stopped waiting; then the result is dropped with the answer.
            match order {
                NetnsRequest::Make {
                    name,
                    alias,
                    namespace,
                    done,
                } => {
                    let made = self.make(&name, &alias, namespace.as_ref());
                    if let Err(Ok(made)) = done.send(made) {
                        self.unmake(made.host_veth, made.address);
                    }
                }
                NetnsRequest::Adopt {
                    name,
                    namespaces,
                    done,
                } => drop(done.send(self.adopt(&name, namespaces))),
                NetnsRequest::Remove {
                    host_veth,
                    address,
                    done,
                } => drop(done.send(self.remove(host_veth, address))),
                NetnsRequest::Look { done } => drop(done.send(self.list_veths())),
            }
        }
    }

    /// Returns the machine's side, and sets it up if necessary.
    fn machine(&mut self) -> Result<&mut HostNetns, BridgeError> {
        if self.machine.is_none() {
            let mut machine = HostNetns::open()?;
            machine.refuse_overlap(self.node.subnet)?;
            masquerade::install(&self.node.table, self.node.subnet).map_err(|source| {
                BridgeError::kernel(
                    "write the rule that masquerades what allocations send (nf_tables, nft_masq)",
                    source,
                )
            })?;
            machine
                .hook_all(self.node.handle, &self.programs)
                .map_err(|source| {
                    BridgeError::kernel("attach the programs for published ports", source)
                })?;
            self.machine = Some(machine);
        }
        self.machine.as_mut().ok_or(BridgeError::Gone)
    }

    fn make(
        &mut self,
        name: &str,
        alias: &str,
        given: Option<&OwnedFd>,
    ) -> Result<AllocNetns, BridgeError> {
        self.machine()?;
        for _ in 0..BRIDGE_TRIES_MAX {
            let address = self.pool.take().ok_or(BridgeError::NoAddress {
                subnet: self.node.subnet,
                size: self.pool.size(),
            })?;
            match self.make_with(name, alias, address.into(), given) {
                // Another agent of this machine uses the address.
                Err(error) if error.is_taken() => {}
                Err(error) => {
                    self.pool.give_back(address);
                    return Err(error);
                }
                Ok(made) => return Ok(made),
            }
        }
        Err(BridgeError::NoAddress {
            subnet: self.node.subnet,
            size: self.pool.size(),
        })
    }

    fn make_with(
        &mut self,
        name: &str,
        alias: &str,
        address: Ipv4Addr,
        given: Option<&OwnedFd>,
    ) -> Result<AllocNetns, BridgeError> {
        let (handle, programs) = (self.node.handle, self.programs.clone());
        let machine = self.machine()?;
        let (namespace, mut inside) = match given {
            Some(given) => machine.given_namespace(given)?,
            None => machine.fresh_namespace()?,
        };
        let pair = VethPair {
            host_veth: name,
            host_veth_mac: host_veth_mac(address),
            inside: INSIDE,
            inside_mac: inside_mac(address),
            namespace: namespace.as_raw_fd(),
            mtu: machine.mtu,
            alias,
        };
        let kernel = BridgeError::kernel;
        // An interrupted start may have left a host veth whose namespace still exists.
        if let Ok(Some(old)) = machine.netlink.device(name) {
            if old.alias != alias {
                let name = name.to_owned();
                return Err(BridgeError::Foreign { name });
            }
            let removed = machine.netlink.remove_device(old.index);
            removed.map_err(|source| kernel("remove an old pair of devices", source))?;
        }
        let made = machine.netlink.make_pair(&pair);
        made.map_err(|source| kernel("make a pair of devices (veth)", source))?;
        let configured = machine.create_host_veth(name).and_then(|host_veth| {
            configure_inside(&mut inside, address)
                .map_err(|source| kernel("set up the allocation's device", source))?;
            machine.configure_host_veth(name, host_veth, address)?;
            let hooked = machine.hook(host_veth, handle, &programs);
            hooked.map_err(|source| kernel("attach the programs of a host veth", source))?;
            Ok(host_veth)
        });
        let host_veth = configured.inspect_err(|_| {
            // A namespace that a driver made stays, and the pair in it would stay, too.
            if let Err(error) = machine.netlink.remove_named(name) {
                tracing::warn!(%error, name, "a device is left until its namespace goes");
            }
        })?;
        Ok(AllocNetns {
            host_veth,
            address,
            namespace,
        })
    }

    fn adopt(
        &mut self,
        name: &str,
        namespaces: Vec<OwnedFd>,
    ) -> Result<Option<AllocNetns>, BridgeError> {
        let (handle, programs) = (self.node.handle, self.programs.clone());
        let machine = self.machine()?;
        let kernel = BridgeError::kernel;
        let found = machine.netlink.device(name);
        let Some(host_veth) = found.map_err(|source| kernel("look for a host veth", source))?
        else {
            return Ok(None);
        };
        for namespace in namespaces {
            let Some(address) = machine.address_in(&namespace)? else {
                continue;
            };
            let hooked = machine.hook(host_veth.index, handle, &programs);
            hooked.map_err(|source| kernel("attach the programs of a host veth", source))?;
            self.pool.adopt(address.octets());
            return Ok(Some(AllocNetns {
                host_veth: host_veth.index,
                address,
                namespace,
            }));
        }
        Ok(None)
    }

    fn unmake(&mut self, host_veth: u32, address: Ipv4Addr) {
        if let Err(error) = self.remove(host_veth, address) {
            tracing::warn!(%error, host_veth, "a device is left until its namespace goes");
        }
    }

    fn remove(&mut self, host_veth: u32, address: Ipv4Addr) -> io::Result<()> {
        let Some(machine) = &mut self.machine else {
            return Ok(());
        };
        machine.netlink.remove_device(host_veth)?;
        self.pool.give_back(address.octets());
        Ok(())
    }

    fn list_veths(&mut self) -> io::Result<BTreeSet<u32>> {
        let (handle, programs) = (self.node.handle, self.programs.clone());
        let devices = match &mut self.machine {
            Some(machine) => {
                machine.hook_all(handle, &programs)?;
                machine.netlink.devices()?
            }
            None => Netlink::open()?.devices()?,
        };
        Ok(devices.into_iter().map(|device| device.index).collect())
    }
}

impl HostNetns {
    fn open() -> Result<Self, BridgeError> {
        let namespace = File::open(OWN_NAMESPACE);
        let namespace = namespace.map_err(|source| {
            BridgeError::kernel("open the machine's network namespace", source)
        })?;
        let netlink = Netlink::open();
        let netlink = netlink
            .map_err(|source| BridgeError::kernel("speak to the kernel by netlink", source))?;
        Ok(Self {
            netlink,
            namespace,
            settings: Settings::default(),
            hooked: BTreeSet::new(),
            mtu: MTU,
        })
    }

    /// Refuses a subnet that contains an address of the machine. Either that address or the allocations would be
    /// unreachable.
    fn refuse_overlap(&mut self, subnet: Ipv4Net) -> Result<(), BridgeError> {
        let addresses = self.netlink.addresses();
        let addresses = addresses
            .map_err(|source| BridgeError::kernel("read the machine's addresses", source))?;
        match addresses
            .iter()
            .find(|(_, address)| subnet.contains(address))
        {
            Some((_, address)) => Err(BridgeError::Overlap {
                subnet,
                address: *address,
            }),
            None => Ok(()),
        }
    }

    /// Attaches the programs to the machine's own devices that lack them.
    fn hook_all(&mut self, handle: u32, programs: &[Arc<OwnedFd>; 2]) -> io::Result<()> {
        let addresses = self.netlink.addresses()?;
        let with_address: BTreeSet<u32> = addresses.iter().map(|(device, _)| *device).collect();
        let leads_out = |device: &Device| {
            device.is_ethernet
                && with_address.contains(&device.index)
                && !device.name.starts_with(HOST_VETH_PREFIX)
        };
        let mut mtu = MTU;
        for device in self.netlink.devices()? {
            if device.index != LOOPBACK && !leads_out(&device) {
                continue;
            }
            if device.index != LOOPBACK && device.is_up {
                mtu = mtu.min(device.mtu);
            }
            if self.hooked.contains(&device.index) {
                continue;
            }
            self.hook(device.index, handle, programs)?;
            if device.index != LOOPBACK {
                set(&device.name, "forwarding", "1")?;
            }
            self.hooked.insert(device.index);
        }
        self.mtu = mtu;
        Ok(())
    }

    /// Attaches the programs to a device. The loopback device gets only the program for outgoing packets.
    fn hook(
        &mut self,
        device: u32,
        handle: u32,
        [inward, outward]: &[Arc<OwnedFd>; 2],
    ) -> io::Result<()> {
        self.netlink.open_hooks(device)?;
        if device != LOOPBACK {
            let program = (inward.as_raw_fd(), "nat_in");
            self.netlink.attach(device, INGRESS, handle, program)?;
        }
        let program = (outward.as_raw_fd(), "nat_out");
        self.netlink.attach(device, EGRESS, handle, program)
    }

    /// Makes a namespace without processes, and opens a netlink socket in it.
    fn fresh_namespace(&mut self) -> Result<(OwnedFd, Netlink), BridgeError> {
        let failed = |source: io::Error| BridgeError::kernel("make a network namespace", source);
        failing::step().map_err(failed)?;
        unshare(CloneFlags::CLONE_NEWNET).map_err(|source| failed(source.into()))?;
        let made = File::open(OWN_NAMESPACE)
            .map(OwnedFd::from)
            .and_then(|namespace| Ok((namespace, Netlink::open()?)));
        // Every user may bind ports below 1024 there, because they belong to the allocation alone.
        let open_ports = "net/ipv4/ip_unprivileged_port_start";
        let opened = self.settings.write(open_ports, "0");
        self.return_to_host_namespace();
        if let Err(error) = opened {
            tracing::debug!(%error, "ports below 1024 of an allocation are for root alone");
        }
        made.map_err(failed)
    }

    /// Opens a netlink socket in a namespace that another program made. Its maker decides which ports need root
    /// there.
    fn given_namespace(&self, given: &OwnedFd) -> Result<(OwnedFd, Netlink), BridgeError> {
        let failed = |source: io::Error| {
            BridgeError::kernel("enter the network namespace that the driver made", source)
        };
        failing::step().map_err(failed)?;
        let namespace = given.try_clone().map_err(failed)?;
        setns(given.as_fd(), CloneFlags::CLONE_NEWNET).map_err(|source| failed(source.into()))?;
        let inside = Netlink::open();
        self.return_to_host_namespace();
        Ok((namespace, inside.map_err(failed)?))
    }

    /// Returns the address of an allocation's device in `namespace`; `None` without such a device.
    fn address_in(&self, namespace: &OwnedFd) -> Result<Option<Ipv4Addr>, BridgeError> {
        let failed =
            |source: io::Error| BridgeError::kernel("look into a network namespace", source);
        setns(namespace.as_fd(), CloneFlags::CLONE_NEWNET)
            .map_err(|source| failed(source.into()))?;
        let inside = Netlink::open();
        self.return_to_host_namespace();
        let mut inside = inside.map_err(failed)?;
        let Some(device) = inside.device(INSIDE).map_err(failed)? else {
            return Ok(None);
        };
        let addresses = inside.addresses().map_err(failed)?;
        let mut own = addresses
            .into_iter()
            .filter(|(index, _)| *index == device.index);
        Ok(own.next().map(|(_, address)| address))
    }

    /// Returns the thread to the machine's namespace.
    fn return_to_host_namespace(&self) {
        // This cannot fail, because the namespace is open and was this thread's. In another namespace, the thread
        // would configure the wrong network.
        setns(self.namespace.as_fd(), CloneFlags::CLONE_NEWNET)
            .expect("the thread may enter the namespace it came from");
    }

    /// Returns the interface index of the new host veth.
    fn create_host_veth(&mut self, name: &str) -> Result<u32, BridgeError> {
        let host_veth = self.netlink.device(name);
        let host_veth =
            host_veth.map_err(|source| BridgeError::kernel("find the device just made", source))?;
        Ok(host_veth.ok_or(BridgeError::Gone)?.index)
    }

    /// Configures the machine's side of a pair.
    fn configure_host_veth(
        &mut self,
        name: &str,
        host_veth: u32,
        address: Ipv4Addr,
    ) -> Result<(), BridgeError> {
        let kernel = |source| BridgeError::kernel("set up the host veth of an allocation", source);
        let added = self.netlink.add_host_route(host_veth, address);
        added.map_err(|source| {
            if source.raw_os_error() == Some(libc::EEXIST) {
                BridgeError::Taken { address }
            } else {
                kernel(source)
            }
        })?;
        let mac = inside_mac(address);
        self.netlink
            .add_neighbour(host_veth, address, mac)
            .map_err(kernel)?;
        let gateway = GATEWAY.into();
        let added = self
            .netlink
            .add_address(host_veth, gateway, AddressScope::Link);
        added.map_err(kernel)?;
        // The last three settings admit answers to the machine's own calls of published ports, which come from its
        // own addresses. The programs drop all other such packets.
        for (setting, value) in [
            ("forwarding", "1"),
            ("accept_local", "1"),
            ("route_localnet", "1"),
            ("rp_filter", "0"),
        ] {
            set(name, setting, value).map_err(kernel)?;
        }
        Ok(())
    }
}

fn configure_inside(inside: &mut Netlink, address: Ipv4Addr) -> io::Result<()> {
    inside.set_link_up(LOOPBACK)?;
    let device = inside.device(INSIDE)?;
    let device = device
        .ok_or_else(|| io::Error::from_raw_os_error(libc::ENODEV))?
        .index;
    let gateway = Ipv4Addr::from(GATEWAY);
    inside.set_link_up(device)?;
    inside.add_address(device, address, AddressScope::Universe)?;
    inside.add_host_route(device, gateway)?;
    inside.add_neighbour(device, gateway, host_veth_mac(address))?;
    inside.add_default_route(device, gateway)
}

/// Detaches the programs with `handle` from the machine's devices and removes the rule in `table`. Returns whether
/// the rule existed.
pub(super) fn undo(table: &str, handle: u32) -> io::Result<bool> {
    let removed = masquerade::remove(table)?;
    let mut netlink = Netlink::open()?;
    for device in netlink.devices()? {
        for parent in [INGRESS, EGRESS] {
            netlink.detach(device.index, parent, handle)?;
        }
    }
    Ok(removed)
}

fn set(device: &str, setting: &str, value: &str) -> io::Result<()> {
    let path = Path::new("/proc/sys/net/ipv4/conf")
        .join(device)
        .join(setting);
    failing::step()
        .and_then(|()| std::fs::write(&path, value))
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}

/// Hardware addresses of a pair: locally administered, and different for each address.
pub(super) fn inside_mac(address: Ipv4Addr) -> [u8; 6] {
    let [a, b, c, d] = address.octets();
    [0x02, 0x4d, a, b, c, d]
}

pub(super) fn host_veth_mac(address: Ipv4Addr) -> [u8; 6] {
    let [a, b, c, d] = address.octets();
    [0x02, 0x4e, a, b, c, d]
}

#[cfg(test)]
mod tests;
