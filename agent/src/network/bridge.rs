//! Networks of allocations: a namespace for each, a pair of devices to the machine, published ports.
//!
//! There is no bridge device. Each allocation has its own host veth, to which the kernel routes the allocation's
//! address. So only the number of addresses limits the number of allocations. eBPF programs (`bpf/nat.rs`) publish
//! ports and translate the answers. One rule of the packet filter masquerades packets that leave the machine
//! ([`masquerade`]).
//!
//! | file | content |
//! |---|---|
//! | `netns_worker.rs` | the thread that makes, finds and removes networks |
//! | `netlink.rs` | its requests to the kernel |
//! | `masquerade.rs` | the rule of the packet filter |
//! | `fixture.rs` | networks without an agent, for measurements |
//! | `files.rs` | `/etc/hosts` and `/etc/resolv.conf` of an allocation |
//!
//! A namespace lives as long as a process is in it or this agent has it open. After a kill, the next agent finds
//! the networks of running allocations through their processes. The networks of other allocations are gone, with
//! their devices. A node without a job that uses such a network skips all of this.
//!
//! Absent: IPv6 behind a host veth, and later fragments of datagrams to published ports.

pub(crate) mod error;
mod failing;
pub(crate) mod files;
#[cfg(feature = "fixture")]
pub(crate) mod fixture;
mod masquerade;
pub(crate) mod netlink;
mod netns_worker;
pub(crate) mod node_network;
pub(crate) mod settings;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ipnet::Ipv4Net;
use muster_agent_core::addresses::AddressPool;
use muster_domain::alloc::DesiredAlloc;
use muster_domain::id::{AllocId, NodeId};
use muster_domain::job::{NetworkMode, TaskGroup};
use muster_ebpf_common::nat::{PublishedKey, PublishedPort};
use tokio::sync::{OnceCell, mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::bpf::Bpf;
use crate::network::alloc_network::{AllocNetwork, HostVeth};
use crate::network::bridge::error::BridgeError;
use crate::network::bridge::node_network::NodeNetwork;
use crate::network::names::{clean_name, host_name, inside_port};
use crate::network::namespace::{namespace_at, namespaces_of};
use crate::network::setup::NetworkSetup;
use crate::tasks::task_env::{TaskEnv, host_address};
pub(crate) use files::{dns_config, resolvers};
use netns_worker::{AllocNetns, NetnsRequest};

/// Addresses of allocations without a configured subnet. They are Nomad's, so that firewall rules written for Nomad
/// still apply.
pub const DEFAULT_SUBNET: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(172, 26, 64, 0), 20);
/// Protocols of published ports.
const PROTOCOLS: [u8; 2] = [6, 17];

/// The subnet that `text` names, if allocations can have addresses in it.
///
/// # Errors
///
/// The fault of the subnet, as a text for the operator.
pub fn parse_subnet(text: &str) -> Result<Ipv4Net, String> {
    let wrong = |_error| format!("`{text}` is not an IPv4 subnet such as 172.26.64.0/20");
    let subnet: Ipv4Net = text.parse().map_err(wrong)?;
    AddressPool::new(subnet).map_err(|error| error.to_string())?;
    Ok(subnet.trunc())
}

/// The machine's IPv4 addresses, each once and with the prefix of its network; empty if the kernel does not report
/// them.
pub(crate) fn machine_networks() -> BTreeSet<Ipv4Net> {
    let found = netlink::Netlink::open().and_then(|mut netlink| netlink.networks());
    let found = found.inspect_err(|error| {
        tracing::warn!(%error, "the machine's addresses cannot be listed");
    });
    found.unwrap_or_default().into_iter().collect()
}

/// Removes a node's programs from devices, and its rule. Returns whether there was a rule.
pub(crate) fn undo(node_id: NodeId) -> io::Result<bool> {
    let (table, handle) = node_network::marks(node_id);
    netns_worker::undo(&table, handle)
}

/// Networks of the node's allocations.
#[derive(Debug)]
pub(crate) struct Bridge {
    node: NodeNetwork,
    /// The thread that makes the networks, or the reason for its absence.
    requests: Result<mpsc::Sender<NetnsRequest>, String>,
    networks: Mutex<BTreeMap<AllocId, Arc<OnceCell<Arc<AllocNetwork>>>>>,
    /// Networks that the kernel failed to remove. The removal is repeated before their allocations are destroyed.
    unremoved: Mutex<BTreeMap<AllocId, Vec<Arc<AllocNetwork>>>>,
    /// Whether this agent has set up the machine's side.
    used: AtomicBool,
}

/// Whether the group asks for its own network with a connection to others.
pub(crate) fn wanted(group: &TaskGroup) -> bool {
    let mode = group.network.as_ref().map(|network| &network.mode);
    mode == Some(&NetworkMode::Bridge)
}

impl Bridge {
    pub(crate) fn new(node: NodeNetwork, bpf: Result<&Bpf, &str>) -> Self {
        let requests = match bpf {
            Ok(bpf) => netns_worker::start(node.clone(), bpf.device_programs())
                .map_err(|error| muster_domain::error_chain::chain(&error)),
            Err(reason) => Err(format!("it has no eBPF programs: {reason}")),
        };
        Self {
            node,
            requests,
            networks: Mutex::default(),
            unremoved: Mutex::default(),
            used: AtomicBool::new(false),
        }
    }

    /// The reason why the node has no such networks; `None` if it has them.
    pub(crate) fn unsupported(&self) -> Option<&str> {
        self.requests.as_ref().err().map(String::as_str)
    }

    /// The current network of an allocation.
    pub(crate) fn of(&self, alloc_id: AllocId) -> Option<Arc<AllocNetwork>> {
        let networks = self.locked();
        networks.get(&alloc_id)?.get().map(Arc::clone)
    }

    /// Returns the network of an allocation whose group asks for one, and makes it if it does not exist. All tasks
    /// of the allocation share it.
    pub(crate) async fn ensure(
        &self,
        setup: NetworkSetup<'_>,
        desired: &DesiredAlloc,
        stopped: &CancellationToken,
    ) -> Result<Option<Arc<AllocNetwork>>, BridgeError> {
        let Some(group) = desired.group().filter(|group| wanted(group)) else {
            return Ok(None);
        };
        let alloc_id = desired.alloc_id;
        let cell = Arc::clone(self.locked().entry(alloc_id).or_default());
        let network = cell.get_or_try_init(|| async {
            let node_context = NodeNetworkContext::of(setup, desired);
            let host = host_name(desired, group, &node_context.env);
            let networks = setup.driver_networks;
            let by_driver = networks.ensure(setup, desired, group, &host, stopped);
            let by_driver = by_driver.await?;
            let namespace = by_driver.as_ref().map(|made| namespace_at(&made.path));
            let made = self.make(&node_context, desired, group, namespace.transpose()?);
            let mut network = made.await?;
            network.made_by_driver = by_driver;
            Ok(Arc::new(network))
        });
        network.await.map(|network| Some(Arc::clone(network)))
    }

    /// Makes a network and its connection to the machine, or leaves no part of it.
    async fn make(
        &self,
        node_context: &NodeNetworkContext<'_>,
        desired: &DesiredAlloc,
        group: &TaskGroup,
        namespace: Option<OwnedFd>,
    ) -> Result<AllocNetwork, BridgeError> {
        let alloc_id = desired.alloc_id;
        let (done, made) = oneshot::channel();
        let order = NetnsRequest::Make {
            name: self.node.host_veth(alloc_id),
            alias: format!("muster {} {alloc_id}", self.node.node_id),
            namespace,
            done,
        };
        let made = self.ask(order, made).await??;
        let (network, opened) = open(node_context, desired, group, made);
        let Err(error) = opened else {
            return Ok(network);
        };
        if let Err(error) = files::remove(&node_context.names) {
            tracing::warn!(%alloc_id, %error, dir = %node_context.names.display(),
                "files of names are left until the allocation is destroyed");
        }
        self.close_or_leave(node_context.bpf.ok(), alloc_id, Arc::new(network))
            .await
            .unwrap_or_else(|left| {
                warn_network_left(alloc_id, &muster_domain::error_chain::chain(&left));
            });
        Err(error)
    }

    /// Takes over the network that an earlier agent made for an allocation, if a process of it runs. `is_lost` means
    /// that the store of that agent is lost as well.
    pub(crate) async fn adopt(
        &self,
        setup: NetworkSetup<'_>,
        desired: &DesiredAlloc,
        is_lost: bool,
    ) {
        let Some(group) = desired.group().filter(|group| wanted(group)) else {
            return;
        };
        let alloc_id = desired.alloc_id;
        let mut namespaces = namespaces_of(setup.tree, alloc_id, group);
        let by_driver = if is_lost {
            let env = TaskEnv::of_alloc(desired, setup.spec);
            let host = host_name(desired, group, &env);
            let networks = setup.driver_networks;
            let never = CancellationToken::new();
            let found = networks.ensure(setup, desired, group, &host, &never);
            let found = found.await;
            found.unwrap_or_else(|error| {
                tracing::error!(%alloc_id, error = muster_domain::error_chain::chain(&error),
                    "it is not known whether a driver made the network of an allocation");
                None
            })
        } else {
            setup.driver_networks.of(alloc_id)
        };
        if let Some(made) = &by_driver {
            match namespace_at(&made.path) {
                Ok(namespace) => namespaces.push(namespace),
                Err(error) => {
                    tracing::error!(
                        %alloc_id, %error,
                        "the network of a running allocation is not where its driver made it"
                    );
                }
            }
        }
        if namespaces.is_empty() {
            return;
        }
        let cell = Arc::clone(self.locked().entry(alloc_id).or_default());
        let adopted = cell.get_or_try_init(|| async {
            let (done, found) = oneshot::channel();
            let order = NetnsRequest::Adopt {
                name: self.node.host_veth(alloc_id),
                namespaces,
                done,
            };
            let found = self.ask(order, found).await??;
            let made = found.ok_or(BridgeError::NotFound)?;
            let node_context = NodeNetworkContext::of(setup, desired);
            let (mut network, opened) = open(&node_context, desired, group, made);
            network.made_by_driver = by_driver;
            if let Err(error) = opened {
                // The tasks keep their network.
                tracing::error!(%alloc_id, error = muster_domain::error_chain::chain(&error),
                    "the network of a running allocation is not wholly set up again");
            }
            Ok::<_, BridgeError>(Arc::new(network))
        });
        if let Err(error) = adopted.await {
            tracing::error!(%alloc_id, error = muster_domain::error_chain::chain(&error),
                "the network of a running allocation is not found: its published ports do not work until it is started anew");
        }
    }

    /// Removes the network of an allocation that has no running task, and makes the driver destroy the namespace
    /// that it made. The next call removes any remains of either.
    pub(crate) async fn release(
        &self,
        setup: NetworkSetup<'_>,
        alloc_id: AllocId,
    ) -> Result<(), BridgeError> {
        let removed = self.remove(setup.bpf.ok(), alloc_id).await;
        let released = setup.driver_networks.release(setup, alloc_id).await;
        removed.and(released.map_err(BridgeError::from))
    }

    /// Removes the network of an allocation that has no running task, and the remains of its earlier networks. The
    /// next call repeats a removal that the kernel refused.
    pub(crate) async fn remove(
        &self,
        bpf: Option<&Bpf>,
        alloc_id: AllocId,
    ) -> Result<(), BridgeError> {
        let mut networks = self.unremoved().remove(&alloc_id).unwrap_or_default();
        let removed = self.locked().remove(&alloc_id);
        networks.extend(removed.and_then(|cell| cell.get().map(Arc::clone)));
        let mut first = Ok(());
        for network in networks {
            let closed = self.close_or_leave(bpf, alloc_id, network).await;
            first = first.and(closed);
        }
        first
    }

    async fn close_or_leave(
        &self,
        bpf: Option<&Bpf>,
        alloc_id: AllocId,
        network: Arc<AllocNetwork>,
    ) -> Result<(), BridgeError> {
        let closed = self.close(bpf, &network).await;
        if closed.is_err() {
            self.unremoved().entry(alloc_id).or_default().push(network);
        }
        closed
    }

    /// Closes the network; may be repeated. The ports are removed first, so that none leads to an address that
    /// another allocation may get.
    async fn close(&self, bpf: Option<&Bpf>, network: &AllocNetwork) -> Result<(), BridgeError> {
        let Some(veth) = &network.host_veth else {
            return Ok(());
        };
        if let Some(bpf) = bpf {
            bpf.remove_host_veth(veth.index, &veth.ports)
                .map_err(|source| BridgeError::remove("take its published ports back", source))?;
        }
        let (done, removed) = oneshot::channel();
        let order = NetnsRequest::Remove {
            host_veth: veth.index,
            address: veth.address,
            done,
        };
        match self.ask(order, removed).await {
            Ok(removed) => {
                removed.map_err(|source| BridgeError::remove("remove its pair of devices", source))
            }
            // No later call repeats the removal. The network disappears with the agent, which has its namespace
            // open.
            Err(error) => {
                tracing::warn!(%error, "the device of an allocation is left until the agent ends");
                Ok(())
            }
        }
    }

    /// Looks for new devices of the machine, and removes host veths whose devices are gone.
    pub(crate) async fn reconcile(&self, bpf: &Bpf) {
        // The veths are read before the devices. A host veth that is made meanwhile must not look like one without
        // a device.
        let host_veths = bpf.host_veths();
        let (done, devices) = oneshot::channel();
        let devices = match self.ask(NetnsRequest::Look { done }, devices).await {
            Ok(devices) => devices,
            Err(error) => {
                tracing::warn!(%error, "the machine's devices are not looked at");
                return;
            }
        };
        let swept = host_veths.and_then(|host_veths| {
            let devices = devices?;
            bpf.remove_host_veths(&host_veths.difference(&devices).copied().collect())
        });
        if let Err(error) = swept {
            tracing::warn!(%error, "the machine's network devices cannot be kept up with");
        }
    }

    async fn ask<T>(
        &self,
        order: NetnsRequest,
        done: oneshot::Receiver<T>,
    ) -> Result<T, BridgeError> {
        let requests = self
            .requests
            .as_ref()
            .map_err(|reason| BridgeError::Unsupported {
                reason: reason.clone(),
            })?;
        if !matches!(order, NetnsRequest::Look { .. }) {
            self.used.store(true, Ordering::Relaxed);
        }
        requests
            .send(order)
            .await
            .map_err(|_gone| BridgeError::Gone)?;
        done.await.map_err(|_gone| BridgeError::Gone)
    }

    /// Removes the programs on the machine's devices and the rule in its packet filter, when no task is left.
    pub(crate) async fn undo(&self) {
        if !self.used.load(Ordering::Relaxed) {
            return;
        }
        let node_id = self.node.node_id;
        let undone = tokio::task::spawn_blocking(move || undo(node_id)).await;
        if let Err(error) = undone.unwrap_or_else(|panic| Err(io::Error::other(panic))) {
            tracing::warn!(%error, "what networks of allocations left on the machine stays; `muster agent clean` removes it");
        }
    }

    /// Whether an allocation has such a network.
    pub(crate) fn is_used(&self) -> bool {
        !self.locked().is_empty()
    }

    fn locked(&self) -> MutexGuard<'_, BTreeMap<AllocId, Arc<OnceCell<Arc<AllocNetwork>>>>> {
        // A panic elsewhere leaves the map whole: each change of it is one call.
        self.networks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unremoved(&self) -> MutexGuard<'_, BTreeMap<AllocId, Vec<Arc<AllocNetwork>>>> {
        // The same holds for this map.
        self.unremoved
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Logs that the network of an ended allocation is not completely removed.
pub(crate) fn warn_network_left(alloc_id: AllocId, reason: &str) {
    tracing::warn!(%alloc_id, error = reason,
        "something of the network of an allocation is left; it is removed before the allocation is destroyed");
}

/// The parts of the node that connect an allocation's network.
#[derive(Debug)]
struct NodeNetworkContext<'a> {
    bpf: Result<&'a Bpf, &'a str>,
    /// The node's address, for ports without their own address.
    address: String,
    /// The directory for the files `hosts` and `resolv.conf`.
    names: PathBuf,
    /// The environment to which the group's network may refer.
    env: TaskEnv,
}

impl<'a> NodeNetworkContext<'a> {
    fn of(setup: NetworkSetup<'a>, desired: &DesiredAlloc) -> Self {
        Self {
            bpf: setup.bpf,
            address: setup.spec.address.clone(),
            names: setup.data.alloc(desired.alloc_id).names(),
            env: TaskEnv::of_alloc(desired, setup.spec),
        }
    }
}

/// Connects a network to the machine. The result describes how to undo the steps, also after an error.
fn open(
    node_context: &NodeNetworkContext<'_>,
    desired: &DesiredAlloc,
    group: &TaskGroup,
    made: AllocNetns,
) -> (AllocNetwork, Result<(), BridgeError>) {
    let address = made.address;
    let mut host_veth = HostVeth {
        index: made.host_veth,
        address,
        ports: Vec::new(),
    };
    let opened = publish(node_context, desired, &mut host_veth);
    let mut network = AllocNetwork {
        address: address.into(),
        files: Vec::new(),
        host_name: host_name(desired, group, &node_context.env),
        namespace: made.namespace,
        host_veth: Some(host_veth),
        made_by_driver: None,
    };
    let opened = opened.and_then(|()| {
        let dns = group.network.as_ref().and_then(|it| it.dns.as_ref());
        let group_name = clean_name(&group.name);
        let names = [&*network.host_name, &group_name];
        files::write(
            &node_context.names,
            address.into(),
            &names,
            dns,
            &node_context.env,
        )
        .map_err(|source| BridgeError::kernel("write the allocation's hosts file", source))
    });
    let opened = opened.map(|files| network.files = files);
    (network, opened)
}

/// Publishes ports of the machine into the network.
fn publish(
    node_context: &NodeNetworkContext<'_>,
    desired: &DesiredAlloc,
    host_veth: &mut HostVeth,
) -> Result<(), BridgeError> {
    let bpf = node_context
        .bpf
        .map_err(|reason| BridgeError::Unsupported {
            reason: reason.to_owned(),
        })?;
    let failed = |source| BridgeError::kernel("write the published ports", source);
    failing::step()
        .and_then(|()| bpf.set_host_veth(host_veth.index, host_veth.address))
        .map_err(failed)?;
    for port in &desired.holding.ports {
        let text = host_address(port, &node_context.address);
        let address: Ipv4Addr = text.parse().map_err(|_v6| BridgeError::NotV4 {
            label: port.label.clone(),
            address: text.to_owned(),
        })?;
        let leads_to = PublishedPort {
            address: host_veth.address.octets(),
            host_veth: host_veth.index,
            port: inside_port(port.value, port.to),
            inside_mac: netns_worker::inside_mac(host_veth.address),
            host_veth_mac: netns_worker::host_veth_mac(host_veth.address),
            pad: 0,
        };
        for protocol in PROTOCOLS {
            let key = PublishedKey {
                address: address.octets(),
                port: port.value,
                protocol,
                pad: 0,
            };
            failing::step()
                .and_then(|()| bpf.publish(key, leads_to))
                .map_err(failed)?;
            host_veth.ports.push(key);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
