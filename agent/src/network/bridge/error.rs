//! Errors of networks in mode `bridge`.

use std::io;
use std::net::Ipv4Addr;

use ipnet::Ipv4Net;
use muster_agent_core::addresses::SmallSubnetError;

use crate::tasks::drivers::network_error::DriverNetworkError;

/// Why an allocation has no network.
#[derive(Debug, thiserror::Error)]
pub enum BridgeError {
    /// The node supports no networks for allocations.
    #[error("this node has no network mode `bridge`: {reason}")]
    Unsupported { reason: String },
    /// The subnet is unusable.
    #[error("bridge: {0}")]
    Subnet(#[from] SmallSubnetError),
    /// The machine is in the subnet itself.
    #[error(
        "the machine's own address {address} is in {subnet}, the subnet for allocations: name another in the agent's configuration (client {{ bridge_network_subnet }})"
    )]
    Overlap { subnet: Ipv4Net, address: Ipv4Addr },
    /// No address is free.
    #[error(
        "all {size} addresses of {subnet} are taken: stop allocations, or name a larger subnet in the agent's configuration (client {{ bridge_network_subnet }})"
    )]
    NoAddress {
        subnet: Ipv4Net,
        /// The number of addresses of the subnet.
        size: u32,
    },
    /// A device of that name exists that this agent did not make.
    #[error(
        "the machine has a device called {name} that this agent did not make for the allocation: remove or rename it"
    )]
    Foreign { name: String },
    /// Another agent of this machine assigned the address.
    #[error("address {address} is taken on this machine")]
    Taken { address: Ipv4Addr },
    /// Ports can be published on IPv4 alone.
    #[error(
        "port \"{label}\" is on {address}, and ports of mode `bridge` can be published on IPv4 addresses alone: ask for another host_network"
    )]
    NotV4 { label: String, address: String },
    /// The kernel refused something.
    #[error("the allocation's network cannot be made: {what} failed")]
    Kernel {
        /// The name of the failed operation.
        what: &'static str,
        /// The error of the kernel.
        #[source]
        source: io::Error,
    },
    /// The kernel refused to remove an object.
    #[error("the allocation's network cannot be removed: {what} failed")]
    Remove {
        /// The name of the failed operation.
        what: &'static str,
        /// The error of the kernel.
        #[source]
        source: io::Error,
    },
    /// The driver that must make the namespace fails to make or to destroy it.
    #[error(transparent)]
    Driver(#[from] DriverNetworkError),
    /// The path that the driver named cannot be used as a network namespace.
    #[error(
        "the driver named {path} as the allocation's network namespace, and that cannot be used: {reason}"
    )]
    NoNamespace {
        /// The path that the driver named.
        path: String,
        /// The fault of that path.
        reason: String,
    },
    /// None of an allocation's processes is in a network that this node made for it.
    #[error("none of its processes is in the network that was made for it")]
    NotFound,
    /// The thread that makes networks has ended.
    #[error("the part of the agent that makes networks has failed; restart the agent")]
    Gone,
}

impl BridgeError {
    pub(crate) fn kernel(what: &'static str, source: io::Error) -> Self {
        Self::Kernel { what, source }
    }

    pub(crate) fn remove(what: &'static str, source: io::Error) -> Self {
        Self::Remove { what, source }
    }

    pub(crate) fn is_taken(&self) -> bool {
        matches!(self, Self::Taken { .. })
    }
}
