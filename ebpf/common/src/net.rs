//! Traffic and connections of a task's sockets.

use core::ops::AddAssign;

use crate::Plain;

/// What one CPU counted for one task.
///
/// Bytes are those of IP packets, header included. A packet that the card cuts up or put together
/// (segmentation offload) counts as many packets as it has segments; its bytes hold one header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct NetCounters {
    /// Bytes received.
    pub ingress_bytes: u64,
    /// Packets received.
    pub ingress_packets: u64,
    /// Bytes sent.
    pub egress_bytes: u64,
    /// Packets sent.
    pub egress_packets: u64,
    /// Packets to the task that its policy refused; they are in neither count above.
    pub ingress_denied: u64,
    /// Packets of the task that its policy refused.
    pub egress_denied: u64,
    /// TCP connections that the task opened, and that came about.
    pub tcp_opened: u64,
    /// TCP connections to the task that came about.
    pub tcp_accepted: u64,
    /// TCP segments that were sent once more because no answer came.
    pub tcp_retransmits: u64,
}

impl AddAssign for NetCounters {
    fn add_assign(&mut self, other: Self) {
        let Self {
            ingress_bytes,
            ingress_packets,
            egress_bytes,
            egress_packets,
            ingress_denied,
            egress_denied,
            tcp_opened,
            tcp_accepted,
            tcp_retransmits,
        } = other;
        self.ingress_bytes += ingress_bytes;
        self.ingress_packets += ingress_packets;
        self.egress_bytes += egress_bytes;
        self.egress_packets += egress_packets;
        self.ingress_denied += ingress_denied;
        self.egress_denied += egress_denied;
        self.tcp_opened += tcp_opened;
        self.tcp_accepted += tcp_accepted;
        self.tcp_retransmits += tcp_retransmits;
    }
}

// SAFETY: nine words of 64 bits, `repr(C)`, nothing between them.
unsafe impl Plain for NetCounters {}

/// The number of TCP in a socket's protocol (`IPPROTO_TCP`). Other kinds of sockets share the states.
pub const PROTOCOL_TCP: u16 = 6;

/// What a TCP connection has become (`enum` in the kernel's `tcp_states.h`).
pub mod tcp_state {
    /// Both sides have agreed.
    pub const ESTABLISHED: i32 = 1;
    /// This side asked.
    pub const SYN_SENT: i32 = 2;
    /// The other side asked.
    pub const SYN_RECV: i32 = 3;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_no_padding() {
        assert_eq!(size_of::<NetCounters>(), 72);
    }
}
