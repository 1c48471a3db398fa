//! Networks of allocations: doors, and ports of the machine that lead through them.
//!
//! An allocation with a network of its own is reached through a *door*, the machine's end of its pair of
//! devices. A *published* port of the machine leads to a port behind a door. Which exchange came by a
//! published port is kept as a *passage*, so that its answers show the address that was called.

use crate::Plain;

/// The address by which allocations know their machine, and by which the machine's loopback addresses
/// reach them. Every door has it; it is link-local, so that it collides with no network.
pub const GATEWAY: [u8; 4] = [169, 254, 1, 1];

/// A door, by the number of its device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Door {
    /// The allocation's address: no other may come through it.
    pub address: [u8; 4],
}

/// A port of the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(C)]
pub struct PublishedKey {
    /// The machine's address.
    pub address: [u8; 4],
    /// The port, in the order of the machine.
    pub port: u16,
    /// The IP protocol's number: TCP or UDP.
    pub protocol: u8,
    /// Zero.
    pub pad: u8,
}

/// Where a published port leads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Published {
    /// The allocation's address.
    pub address: [u8; 4],
    /// The number of its door's device.
    pub door: u32,
    /// Its port, in the order of the machine.
    pub port: u16,
    /// The hardware address behind the door.
    pub inside_mac: [u8; 6],
    /// The door's own.
    pub door_mac: [u8; 6],
    /// Zero.
    pub pad: u16,
}

/// An exchange by a published port, as packets of the allocation show it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PassageKey {
    /// The allocation's address.
    pub inside: [u8; 4],
    /// The address that it answers to.
    pub client: [u8; 4],
    /// The allocation's port.
    pub inside_port: u16,
    /// The client's.
    pub client_port: u16,
    /// The IP protocol's number.
    pub protocol: u8,
    /// Zero.
    pub pad: [u8; 3],
}

/// The client's side of an exchange.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Passage {
    /// The address that was called.
    pub address: [u8; 4],
    /// The client's address.
    pub client: [u8; 4],
    /// The port that was called.
    pub port: u16,
    /// 1 if the client is on this machine or behind the same door: its answers are turned back at the door.
    pub returns: u16,
    /// The number of the door's device.
    pub door: u32,
}

// SAFETY: four bytes.
unsafe impl Plain for Door {}
// SAFETY: 4, 2, 1 and 1 bytes, `repr(C)`, nothing between them.
unsafe impl Plain for PublishedKey {}
// SAFETY: 4, 4, 2, 6, 6 and 2 bytes, `repr(C)`, nothing between them.
unsafe impl Plain for Published {}
// SAFETY: 4, 4, 2, 2, 1 and 3 bytes, `repr(C)`, nothing between them.
unsafe impl Plain for PassageKey {}
// SAFETY: 4, 4, 2, 2 and 4 bytes, `repr(C)`, nothing between them.
unsafe impl Plain for Passage {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_no_padding() {
        assert_eq!(size_of::<PublishedKey>(), 8);
        assert_eq!(size_of::<Published>(), 24);
        assert_eq!(size_of::<PassageKey>(), 16);
        assert_eq!(size_of::<Passage>(), 16);
    }
}
