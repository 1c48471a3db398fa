//! The node's additions to its tasks' network policies.
//!
//! A caller that changes [`NodeRules`] notifies the node's loop, which applies the new rules to running tasks.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ipnet::{IpNet, Ipv4Net};
use muster_agent_core::policy::NodePolicy;
use muster_domain::id::LogIndex;
use muster_domain::job::{NetworkPolicy, PolicyProtocol};

use crate::bpf::GATEWAY;
use crate::limits::{CLOSED_ADDRESSES_MAX, OWN_ADDRESSES_MAX};
use crate::network::bridge;
use crate::network::listeners::{self, Listener};
use crate::node::config::AgentConfig;
use crate::storage::store::StoreContents;

/// The node's additions to every task's policy at this moment. The operator's configuration stays as it is. The servers
/// and the cluster's policy may change while tasks run.
#[derive(Debug)]
pub(crate) struct NodeRules {
    /// The configured policy, with the servers that the operator named.
    configured: NodePolicy,
    /// Tasks may speak to servers as clients do.
    allows_apis: bool,
    /// Tasks with a network of their own reach all that listens on this machine.
    allows_host: bool,
    current: Mutex<Arc<NodePolicy>>,
    /// The index of the log entry that wrote the cluster's policy; 0 while none is known.
    cluster_index: AtomicU64,
}

impl NodeRules {
    /// Returns the rules of `config`, with the servers and the cluster's policy that an earlier agent had `loaded`.
    pub(crate) fn new(config: &AgentConfig, loaded: &StoreContents) -> Self {
        let mut configured = config.network.clone();
        configured
            .forbidden
            .extend(sockets_of_servers(&config.servers));
        let (index, policy) = &loaded.cluster_policy;
        configured.cluster.clone_from(policy);
        if !config.allow_host_from_bridge {
            configured.host = closed_addresses();
        }
        let rules = Self {
            current: Mutex::new(Arc::new(configured.clone())),
            configured,
            allows_apis: config.allow_api_from_tasks,
            allows_host: config.allow_host_from_bridge,
            cluster_index: AtomicU64::new(index.0),
        };
        rules.set_servers(&loaded.servers);
        rules.set_apis(&loaded.apis);
        rules
    }

    /// Returns the current policy.
    pub(crate) fn current(&self) -> Arc<NodePolicy> {
        Arc::clone(&self.locked())
    }

    /// Denies tasks `servers` and the servers that the operator named. Returns whether the policy changed.
    pub(crate) fn set_servers(&self, servers: &[SocketAddr]) -> bool {
        self.replace_denied(SERVERS, sockets_of_servers(servers))
    }

    /// Denies tasks `apis`, where servers listen for clients, unless the operator allows them. Returns whether the
    /// policy changed.
    pub(crate) fn set_apis(&self, apis: &[SocketAddr]) -> bool {
        let apis = if self.allows_apis { &[][..] } else { apis };
        let mut endpoints = sockets(HTTP_API, PolicyProtocol::Tcp, apis);
        if !self.allows_apis {
            endpoints.extend(listeners::of_servers().into_iter().flat_map(listener));
        }
        self.replace_denied(HTTP_API, endpoints)
    }

    /// Replaces the denied endpoints of this `name` with `endpoints`. Configured endpoints stay.
    fn replace_denied(&self, name: &str, endpoints: Vec<DeniedEndpoint>) -> bool {
        self.change(|rules| {
            let configured = &self.configured.forbidden;
            let stays =
                |endpoint: &DeniedEndpoint| endpoint.0 != name || configured.contains(endpoint);
            rules.forbidden.retain(stays);
            for endpoint in endpoints {
                if !rules.forbidden.contains(&endpoint) {
                    rules.forbidden.push(endpoint);
                }
            }
        })
    }

    /// Covers the machine's new addresses: those of its servers, and those that are closed to tasks with their own
    /// network. Returns whether the policy changed.
    pub(crate) fn cover_new_addresses(&self) -> bool {
        let gateway = IpNet::from(IpAddr::from(GATEWAY));
        let own = own_addresses();
        let closed = (!self.allows_host).then(closed_addresses);
        self.change(|rules| {
            if let Some(closed) = closed {
                rules.host = closed;
            }
            // A socket that is denied at the gateway is denied at every address.
            let here = rules
                .forbidden
                .iter()
                .filter(|(_, net, ..)| *net == gateway);
            let here: Vec<DeniedEndpoint> = here.cloned().collect();
            for (name, _, protocol, port) in here {
                for net in &own {
                    let endpoint = (name.clone(), *net, protocol, port);
                    if !rules.forbidden.contains(&endpoint) {
                        rules.forbidden.push(endpoint);
                    }
                }
            }
        })
    }

    /// The index of the log entry that wrote the cluster's policy; 0 while none is known.
    pub(crate) fn cluster_index(&self) -> LogIndex {
        LogIndex(self.cluster_index.load(Ordering::Acquire))
    }

    /// Sets the policy for all nodes of the cluster that the entry at `index` wrote. Returns whether the policy
    /// changed. An entry older than the known one comes from a server that lags behind.
    pub(crate) fn set_cluster(&self, index: LogIndex, policy: &NetworkPolicy) -> bool {
        if index <= self.cluster_index() {
            return false;
        }
        self.cluster_index.store(index.0, Ordering::Release);
        self.change(|rules| rules.cluster.clone_from(policy));
        true
    }

    fn change(&self, change: impl FnOnce(&mut NodePolicy)) -> bool {
        let mut current = self.locked();
        let mut next = (**current).clone();
        change(&mut next);
        let is_changed = next != **current;
        if is_changed {
            *current = Arc::new(next);
        }
        is_changed
    }

    fn locked(&self) -> MutexGuard<'_, Arc<NodePolicy>> {
        // A panic elsewhere leaves it whole: it is replaced in one step.
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The name in refusals of packets to servers' sockets for agents and for each other.
const SERVERS: &str = "servers";
/// The name in refusals of packets to servers' sockets for clients: HTTP and Diego's protocol.
const HTTP_API: &str = "http-api";

/// An endpoint that is denied to all tasks, with the name that refusals show.
type DeniedEndpoint = (String, IpNet, PolicyProtocol, u16);

/// The endpoints where servers listen for agents and for each other.
fn sockets_of_servers(servers: &[SocketAddr]) -> Vec<DeniedEndpoint> {
    sockets(SERVERS, PolicyProtocol::Udp, servers)
}

/// The endpoints at which a socket of a server on this machine is reachable.
fn listener((protocol, socket): Listener) -> Vec<DeniedEndpoint> {
    let endpoint = |net: IpNet| (HTTP_API.to_owned(), net, protocol, socket.port());
    if socket.ip().is_unspecified() {
        local_networks().into_iter().map(endpoint).collect()
    } else {
        vec![endpoint(socket.ip().into())]
    }
}

/// All addresses of this machine: loopback, the gateway of bridge networks, and the addresses of its devices.
fn local_networks() -> BTreeSet<IpNet> {
    let loopback = Ipv4Net::new_assert(Ipv4Addr::new(127, 0, 0, 0), 8);
    let gateway = IpAddr::V4(Ipv4Addr::from(GATEWAY));
    let built_in = [
        IpNet::from(loopback),
        IpAddr::V6(Ipv6Addr::LOCALHOST).into(),
        gateway.into(),
    ];
    built_in.into_iter().chain(own_addresses()).collect()
}

/// The endpoints at which these sockets are reachable. A server on this machine may listen at every address,
/// whichever it advertises. These are loopback, the gateway of bridged tasks, and all other addresses of the
/// machine.
fn sockets(name: &str, protocol: PolicyProtocol, addrs: &[SocketAddr]) -> Vec<DeniedEndpoint> {
    let mut endpoints = Vec::new();
    for addr in addrs {
        let own = IpNet::from(addr.ip());
        let here = if is_here(addr.ip()) {
            local_networks().into_iter().chain([own]).collect()
        } else {
            BTreeSet::from([own])
        };
        for net in here {
            endpoints.push((name.to_owned(), net, protocol, addr.port()));
        }
    }
    endpoints
}

/// Addresses of this machine's devices.
fn own_addresses() -> Vec<IpNet> {
    let v4 = bridge::machine_networks().into_iter();
    let v4: BTreeSet<IpAddr> = v4.map(|net| net.addr().into()).collect();
    v4.into_iter()
        .chain(own_v6_addresses())
        .take(OWN_ADDRESSES_MAX)
        .map(IpNet::from)
        .collect()
}

/// The addresses at which listeners of this machine are reached from other networks: those of its devices, the gateway
/// of bridged tasks, and the broadcast addresses of its networks.
fn closed_addresses() -> Vec<IpNet> {
    let networks = bridge::machine_networks();
    let v4 = networks.iter().flat_map(|net| {
        // Both ends of a network are broadcast addresses to some kernels.
        let ends = (net.prefix_len() < 31).then_some([net.network(), net.broadcast()]);
        std::iter::once(net.addr()).chain(ends.into_iter().flatten())
    });
    let v4 = v4.chain([Ipv4Addr::from(GATEWAY)]).map(IpAddr::V4);
    let all: BTreeSet<IpAddr> = v4.chain(own_v6_addresses()).collect();
    let all = all.into_iter().filter(|address| !address.is_loopback());
    let mut all: Vec<IpNet> = all.map(IpNet::from).collect();
    if all.len() > CLOSED_ADDRESSES_MAX {
        let open = all.len() - CLOSED_ADDRESSES_MAX;
        tracing::warn!(
            open,
            "this machine has too many addresses to close all of them to bridged tasks"
        );
        all.truncate(CLOSED_ADDRESSES_MAX);
    }
    all
}

fn own_v6_addresses() -> Vec<IpAddr> {
    let text = std::fs::read_to_string("/proc/net/if_inet6").unwrap_or_default();
    let addresses = text.lines().filter_map(|line| {
        let number = u128::from_str_radix(line.split_whitespace().next()?, 16).ok()?;
        Some(IpAddr::V6(number.into()))
    });
    addresses.collect()
}

/// Whether the address is one of this machine's.
fn is_here(ip: IpAddr) -> bool {
    // A bind fails for an address of another machine. The kernel chooses the port.
    ip.is_loopback() || UdpSocket::bind((ip, 0)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_covered(endpoints: &[DeniedEndpoint], address: IpAddr, port: u16) -> bool {
        let covers = |(_, net, _, of): &DeniedEndpoint| net.contains(&address) && *of == port;
        endpoints.iter().any(covers)
    }

    /// A server that advertises one address may listen at all of them.
    #[test]
    fn local_server_is_denied_at_every_address() {
        let advertised = SocketAddr::from(([127, 0, 0, 1], 4646));
        let endpoints = sockets(HTTP_API, PolicyProtocol::Tcp, &[advertised]);

        let gateway = IpAddr::from(GATEWAY);
        assert!(is_covered(&endpoints, gateway, 4646), "{endpoints:?}");
        for net in own_addresses() {
            assert!(
                is_covered(&endpoints, net.addr(), 4646),
                "{net}: {endpoints:?}"
            );
        }
        assert!(!is_covered(&endpoints, gateway, 4647));
    }

    #[test]
    fn remote_server_is_denied_at_its_address() {
        let remote = SocketAddr::from(([192, 0, 2, 7], 4646));
        let endpoints = sockets(HTTP_API, PolicyProtocol::Tcp, &[remote]);
        assert_eq!(endpoints.len(), 1, "{endpoints:?}");
    }
}
