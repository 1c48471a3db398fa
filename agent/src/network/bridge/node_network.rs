//! The node's part of networks in mode `bridge`.

use ipnet::Ipv4Net;
use muster_domain::id::{AllocId, NodeId};

use crate::bpf::hash;
use crate::network::bridge::masquerade;

/// The parts of the machine's networks that belong to one node.
#[derive(Clone, Debug)]
pub(crate) struct NodeNetwork {
    /// Addresses of its allocations.
    pub(crate) subnet: Ipv4Net,
    /// The node's table of the packet filter.
    pub(crate) table: String,
    /// The handle of its programs on devices.
    pub(crate) handle: u32,
    /// The id that distinguishes its allocations from those of other nodes.
    pub(crate) node_id: NodeId,
}

impl NodeNetwork {
    pub(crate) fn new(node_id: NodeId, subnet: Ipv4Net) -> Self {
        let (table, handle) = marks(node_id);
        Self {
            subnet,
            table,
            handle,
            node_id,
        }
    }

    /// The name of an allocation's host veth. It has 48 bits of a hash, since a device's name has no room for the
    /// id. A new host veth replaces an existing one of that name.
    pub(crate) fn host_veth(&self, alloc_id: AllocId) -> String {
        let hash = hash([&self.node_id.0[..], alloc_id.to_string().as_bytes()]);
        let digits = format!("{hash:016x}");
        format!("{}{}", masquerade::HOST_VETH_PREFIX, &digits[..NAME_DIGITS])
    }
}

/// Hexadecimal digits in a host veth's name: the room that the prefix leaves in the name of a device.
pub(crate) const NAME_DIGITS: usize = 12;

/// Returns the table and the handle that identify a node's own rule and programs. They do not depend on the
/// configured addresses.
pub(crate) fn marks(node_id: NodeId) -> (String, u32) {
    let hash = hash([&node_id.0[..]]);
    let table = format!("muster-{}", node_id.short());
    // Zero would stand for any handle.
    (table, u32::try_from(hash >> 33).unwrap_or_default().max(1))
}
