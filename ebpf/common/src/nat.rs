//! Networks of allocations: host veths, and ports of the machine that lead through them.
//!
//! An allocation with a network of its own is reached through a *host veth*, the machine's end of its pair of devices.
//! A *published* port of the machine leads to a port behind a host veth. Each exchange by a published port is recorded
//! in a [`NatEntry`], so that its answers show the called address.

use crate::Plain;

/// The address under which allocations reach their machine, and from which the machine's loopback clients reach
/// allocations. Every host veth has it. It is link-local, so that it collides with no network.
pub const GATEWAY: [u8; 4] = [169, 254, 1, 1];

/// A host veth, by the number of its device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct HostVethEntry {
    /// The allocation's address. Packets with another source address are dropped.
    pub address: [u8; 4],
}

/// A port of the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(C)]
pub struct PublishedKey {
    pub address: [u8; 4],
    /// The port, in the order of the machine.
    pub port: u16,
    /// The IP protocol's number: TCP or UDP.
    pub protocol: u8,
    /// Zero.
    pub pad: u8,
}

/// The destination of a published port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PublishedPort {
    pub address: [u8; 4],
    /// The number of the device of the allocation's host veth.
    pub host_veth: u32,
    /// The allocation's port, in the order of the machine.
    pub port: u16,
    /// The hardware address behind the host veth.
    pub inside_mac: [u8; 6],
    /// The hardware address of the host veth itself.
    pub host_veth_mac: [u8; 6],
    /// Zero.
    pub pad: u16,
}

/// An exchange by a published port, as packets of the allocation show it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct NatKey {
    pub inside: [u8; 4],
    /// The address that the allocation answers to.
    pub client: [u8; 4],
    pub inside_port: u16,
    pub client_port: u16,
    /// The IP protocol's number.
    pub protocol: u8,
    /// Zero.
    pub pad: [u8; 3],
}

/// The client's side of an exchange.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct NatEntry {
    /// The address that was called.
    pub address: [u8; 4],
    pub client: [u8; 4],
    /// The port that was called.
    pub port: u16,
    /// 1 if the client is on this machine or behind the same host veth. Its answers are then returned at the host veth.
    pub returns: u16,
    /// The number of the host veth's device.
    pub host_veth: u32,
}

// SAFETY: four bytes.
unsafe impl Plain for HostVethEntry {}
// SAFETY: 4, 2, 1 and 1 bytes, `repr(C)`, without padding.
unsafe impl Plain for PublishedKey {}
// SAFETY: 4, 4, 2, 6, 6 and 2 bytes, `repr(C)`, without padding.
unsafe impl Plain for PublishedPort {}
// SAFETY: 4, 4, 2, 2, 1 and 3 bytes, `repr(C)`, without padding.
unsafe impl Plain for NatKey {}
// SAFETY: 4, 4, 2, 2 and 4 bytes, `repr(C)`, without padding.
unsafe impl Plain for NatEntry {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_no_padding() {
        assert_eq!(size_of::<PublishedKey>(), 8);
        assert_eq!(size_of::<PublishedPort>(), 24);
        assert_eq!(size_of::<NatKey>(), 16);
        assert_eq!(size_of::<NatEntry>(), 16);
    }
}
