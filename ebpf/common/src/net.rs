//! Traffic and connections of a task's sockets.

use core::ops::AddAssign;

use crate::{CgroupId, Plain};

/// The counters of one CPU for one task.
///
/// Bytes are those of IP packets, header included. A packet that the network card splits or merges (segmentation
/// offload) counts as many packets as it has segments. Its bytes include only one header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct NetCounters {
    /// Bytes received.
    pub ingress_bytes: u64,
    pub ingress_packets: u64,
    /// Bytes sent.
    pub egress_bytes: u64,
    pub egress_packets: u64,
    /// Packets to the task that its policy refused. They are not in the counts above.
    pub ingress_denied: u64,
    /// Packets of the task that its policy refused.
    pub egress_denied: u64,
    /// Packets to the task above the rate at which it may receive. They are in no other count.
    pub ingress_limited: u64,
    /// Packets of the task above the rate at which it may send.
    pub egress_limited: u64,
    /// Established TCP connections that the task opened.
    pub tcp_opened: u64,
    /// Established TCP connections to the task.
    pub tcp_accepted: u64,
    /// TCP segments that were retransmitted because no answer came.
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
            ingress_limited,
            egress_limited,
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
        self.ingress_limited += ingress_limited;
        self.egress_limited += egress_limited;
        self.tcp_opened += tcp_opened;
        self.tcp_accepted += tcp_accepted;
        self.tcp_retransmits += tcp_retransmits;
    }
}

// SAFETY: eleven words of 64 bits, `repr(C)`, without padding.
unsafe impl Plain for NetCounters {}

/// The state that one CPU keeps of one task's traffic.
///
/// Nearly all packets match the same rule as the packet before. So the rule's count is cached here, where the packet is
/// counted anyway. It is added to the rule's own counters when a packet matches another rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Traffic {
    pub counters: NetCounters,
    /// The rule that matched last, by the [`Direction`](crate::policy::Direction) of its policy.
    pub met: [RuleHit; 2],
}

/// A rule of a task's policy, and its counts since another rule matched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct RuleHit {
    /// The policy; 0 before the first match.
    pub policy: u32,
    /// The rule's number in the policy.
    pub rule: u32,
    /// Packets that matched the rule.
    pub packets: u64,
    /// Bytes of those packets, IP headers included.
    pub bytes: u64,
}

impl AddAssign for Traffic {
    /// Adds the counters. The cached rules of two CPUs may differ, so they are not added.
    fn add_assign(&mut self, other: Self) {
        self.counters += other.counters;
    }
}

// SAFETY: words of 64 bits and pairs of 32-bit words, `repr(C)`, without padding.
unsafe impl Plain for Traffic {}

/// A slot: the traffic of a task that is found by its slot number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct NetSlot {
    /// The owner; 0 without an owner.
    pub task: CgroupId,
    /// The counters of one CPU for the owner's traffic.
    pub traffic: Traffic,
}

impl AddAssign for NetSlot {
    /// Adds another CPU's counters of the same slot.
    fn add_assign(&mut self, other: Self) {
        let Self { task, traffic } = other;
        self.task = self.task.max(task);
        self.traffic += traffic;
    }
}

// SAFETY: a word of 64 bits and a `Plain` type that begins with one, `repr(C)`, without padding.
unsafe impl Plain for NetSlot {}

/// The number of TCP in a socket's protocol (`IPPROTO_TCP`). Other kinds of sockets share the states.
pub const PROTOCOL_TCP: u16 = 6;

/// The state of a TCP connection (`enum` in the kernel's `tcp_states.h`).
pub mod tcp_state {
    /// The connection is established.
    pub const ESTABLISHED: i32 = 1;
    /// This side sent a request to connect.
    pub const SYN_SENT: i32 = 2;
    /// The other side sent a request to connect.
    pub const SYN_RECV: i32 = 3;

    /// There is no connection. TCP sockets have this state before and after a connection, and datagram sockets while
    /// they are not connected.
    pub const CLOSE: u32 = 7;

    const FIN_WAIT1: u32 = 4;
    const FIN_WAIT2: u32 = 5;
    const CLOSE_WAIT: u32 = 8;
    const LAST_ACK: u32 = 9;
    const CLOSING: u32 = 11;

    /// States of an established connection with two ends, as bits.
    const CONNECTED: u32 = 1 << ESTABLISHED
        | 1 << FIN_WAIT1
        | 1 << FIN_WAIT2
        | 1 << CLOSE_WAIT
        | 1 << LAST_ACK
        | 1 << CLOSING;

    /// Whether a socket in this state is connected to one peer.
    #[must_use]
    #[inline]
    pub const fn is_connected(state: u32) -> bool {
        CONNECTED >> (state & 31) & 1 != 0
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use super::*;

    #[test]
    fn values_have_no_padding() {
        assert_eq!(size_of::<NetCounters>(), 88);
        assert_eq!(size_of::<RuleHit>(), 24);
        assert_eq!(size_of::<Traffic>(), 136);
        assert_eq!(size_of::<NetSlot>(), 144);
    }

    #[test]
    fn listening_or_half_open_sockets_have_no_peer() {
        let connected: Vec<u32> = (0..16).filter(|it| tcp_state::is_connected(*it)).collect();
        assert_eq!(connected, [1, 4, 5, 8, 9, 11]);
    }
}
