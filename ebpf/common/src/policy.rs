//! The packets that a task may send and receive, compiled for the packet path.
//!
//! A policy is for one direction. It is compiled before a packet comes. Each prefix of addresses that a rule names has
//! a [`Leaf`], found by longest match. The leaf leads to sorted [`Interval`]s over the other properties that a rule may
//! match. These are one number, [`key`]: the class of the protocol and the port, or type and code. A verdict costs one
//! look-up in a trie and a binary search, for any number of rules. The agent writes a new policy next to the old one
//! and then changes the task's [`TaskPolicyRef`]. So a packet is judged by one or the other, never by a mixture.

use crate::{CgroupId, Plain};

/// The direction of a packet, as seen by the task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Direction {
    Ingress = 0,
    Egress = 1,
}

/// Protocols that rules distinguish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Class {
    /// TCP; the detail is a port.
    Tcp = 0,
    /// UDP; the detail is a port.
    Udp = 1,
    /// ICMP; the detail is type and code.
    Icmp = 2,
    /// `ICMPv6`; the detail is type and code.
    Icmpv6 = 3,
    /// Any other protocol, and every packet that does not show its ports: fragments after the first, cut headers. Only
    /// rules for all protocols match it. The detail is 0.
    Other = 4,
}

impl Class {
    /// The number of classes.
    pub const COUNT: u32 = 5;
}

/// Returns a point of the intervals: class and detail as one number.
#[must_use]
#[inline]
pub const fn key(class: Class, detail: u16) -> u32 {
    (class as u32) << 16 | detail as u32
}

/// One above the greatest [`key`].
pub const KEYS: u32 = Class::COUNT << 16;

/// The detail of an ICMP message.
#[must_use]
#[inline]
pub const fn icmp_detail(kind: u8, code: u8) -> u16 {
    (kind as u16) << 8 | code as u16
}

/// The decision about a packet, and the rule that made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Verdict(pub u32);

impl Verdict {
    const ALLOW: u32 = 1 << 31;
    const LOG: u32 = 1 << 30;
    const UNLESS_HELD: u32 = 1 << 29;
    const RULE: u32 = (1 << 24) - 1;

    /// The rule of a packet to a port that another allocation has not declared.
    pub const PRIVATE_PORT: u32 = Self::RULE;
    /// The rule of a packet for which there is no policy although there should be one.
    pub const NO_POLICY: u32 = Self::RULE - 1;
    /// The rule of a packet to a port of the node that an allocation holds.
    pub const HELD_PORT: u32 = Self::RULE - 2;
    /// The maximum number of rules of a policy.
    pub const RULES_MAX: u32 = Self::RULE - 2;

    /// The verdict of the rule with number `rule`.
    #[must_use]
    #[inline]
    pub const fn new(allow: bool, log: bool, rule: u32) -> Self {
        let allow = if allow { Self::ALLOW } else { 0 };
        let log = if log { Self::LOG } else { 0 };
        Self(allow | log | (rule & Self::RULE))
    }

    /// The same verdict, restricted to ports of the node that no allocation holds. A packet to a held port passes by
    /// the rule [`Self::HELD_PORT`].
    #[must_use]
    #[inline]
    pub const fn unless_held(self) -> Self {
        Self(self.0 | Self::UNLESS_HELD)
    }

    /// Whether the verdict depends on the ports that allocations hold.
    #[must_use]
    #[inline]
    pub const fn is_unless_held(self) -> bool {
        self.0 & Self::UNLESS_HELD != 0
    }

    /// Whether the packet may pass.
    #[must_use]
    #[inline]
    pub const fn allows(self) -> bool {
        self.0 & Self::ALLOW != 0
    }

    /// Whether the verdict is reported to the agent.
    #[must_use]
    #[inline]
    pub const fn is_reported(self) -> bool {
        self.0 & Self::LOG != 0 || !self.allows()
    }

    /// The rule's number in its policy.
    #[must_use]
    #[inline]
    pub const fn rule(self) -> u32 {
        self.0 & Self::RULE
    }
}

/// The policies of a task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct TaskPolicyRef {
    /// The task. The kernel may give the map entry of this value to another task while a program copies it. So the id
    /// is written first and compared last.
    pub task: CgroupId,
    /// The policy for packets that the task receives.
    pub ingress: u32,
    /// The policy for packets that the task sends.
    pub egress: u32,
    /// Bits of [`INGRESS_OPEN`], [`EGRESS_OPEN`], [`BEHIND_HOST_VETH`], [`INGRESS_LIMITED`] and [`EGRESS_LIMITED`].
    pub flags: u64,
}

impl TaskPolicyRef {
    /// The policy of `direction`.
    #[must_use]
    #[inline]
    pub const fn policy(&self, direction: Direction) -> u32 {
        match direction {
            Direction::Ingress => self.ingress,
            Direction::Egress => self.egress,
        }
    }

    /// Whether no possible answer is refused in `direction`.
    #[must_use]
    #[inline]
    pub const fn is_open(&self, direction: Direction) -> bool {
        let flag = match direction {
            Direction::Ingress => INGRESS_OPEN,
            Direction::Egress => EGRESS_OPEN,
        };
        self.flags & flag != 0
    }
}

impl TaskPolicyRef {
    /// Whether packets in `direction` have a rate limit.
    #[must_use]
    #[inline]
    pub const fn is_limited(&self, direction: Direction) -> bool {
        let flag = match direction {
            Direction::Ingress => INGRESS_LIMITED,
            Direction::Egress => EGRESS_LIMITED,
        };
        self.flags & flag != 0
    }

    /// Whether the task's allocation has a network of its own.
    #[must_use]
    #[inline]
    pub const fn is_behind_host_veth(&self) -> bool {
        self.flags & BEHIND_HOST_VETH != 0
    }
}

/// All traffic that the task receives is allowed.
pub const INGRESS_OPEN: u64 = 1;
/// All traffic that the task sends is allowed.
pub const EGRESS_OPEN: u64 = 2;
/// The task's allocation has a network of its own. Peers outside of it reach only declared ports.
pub const BEHIND_HOST_VETH: u64 = 4;
/// The traffic that the task receives has a rate limit.
pub const INGRESS_LIMITED: u64 = 8;
/// The traffic that the task sends has a rate limit.
pub const EGRESS_LIMITED: u64 = 16;

/// The part of a trie's key after the prefix length, for IPv4.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(C)]
pub struct AddressKey4 {
    pub policy: u32,
    /// The address, in the order of the network.
    pub address: [u8; 4],
}

/// The part of a trie's key after the prefix length, for IPv6.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(C)]
pub struct AddressKey6 {
    pub policy: u32,
    /// The address, in the order of the network.
    pub address: [u8; 16],
}

/// Bits of the policy's number in front of the address in a prefix.
pub const POLICY_BITS: u32 = 32;

/// A whole key of the IPv4 trie, as user space writes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(C)]
pub struct LeafKey4 {
    /// [`POLICY_BITS`] plus the prefix bits of the address.
    pub prefix_len: u32,
    pub place: AddressKey4,
}

/// A whole key of the IPv6 trie, as user space writes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(C)]
pub struct LeafKey6 {
    /// [`POLICY_BITS`] plus the prefix bits of the address.
    pub prefix_len: u32,
    pub place: AddressKey6,
}

/// The position of a prefix's intervals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Leaf {
    /// The index of the first interval.
    pub first: u32,
    /// The number of intervals; at least one.
    pub count: u32,
}

/// An interval of keys with one verdict, from `start` to the start of the next interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(C)]
pub struct Interval {
    pub start: u32,
    /// The [`Verdict`].
    pub verdict: u32,
}

/// Intervals that one policy may have for one prefix.
pub const LEAF_INTERVALS_MAX: u32 = 65_536;

/// Returns the verdict for `key` among `leaf`'s intervals. `at` reads one interval. Without an interval the packet is
/// refused.
///
/// The first interval starts at key 0. The search has no branch that depends on the read values. The kernel's verifier
/// follows every branch, and one in each step would exceed its limit.
#[must_use]
#[inline]
pub fn search(leaf: Leaf, key: u32, at: impl FnMut(u32) -> Option<Interval>) -> Verdict {
    let refused = Verdict::new(false, false, Verdict::NO_POLICY);
    if leaf.count == 0 {
        return refused;
    }
    let found = if leaf.count <= FEW {
        halve::<{ FEW.ilog2() }>(leaf, key, at)
    } else {
        halve::<{ LEAF_INTERVALS_MAX.ilog2() }>(leaf, key, at)
    };
    found.unwrap_or(refused)
}

/// Nearly all policies have at most this number of intervals for a prefix.
const FEW: u32 = 16;

/// Searches the first 2 to the power of `STEPS` intervals.
#[inline]
fn halve<const STEPS: u32>(
    leaf: Leaf,
    key: u32,
    mut at: impl FnMut(u32) -> Option<Interval>,
) -> Option<Verdict> {
    // All numbers here are far below 2 to the power of 31, so the sign of a difference shows which one is less. The
    // interval at `low` always starts at or before the key.
    let mut low = 0_u32;
    for step in (0..STEPS).rev() {
        let probe = low + (1 << step);
        let is_there = probe.wrapping_sub(leaf.count) >> 31;
        let interval = at(leaf.first + probe * is_there)?;
        let starts_before = interval.start.wrapping_sub(key + 1) >> 31;
        low += (is_there & starts_before) << step;
    }
    at(leaf.first + low).map(|interval| Verdict(interval.verdict))
}

/// A flow: datagrams, or echoes of ICMP, between a task and one peer. A flow lets answers pass to an exchange that one
/// side was allowed to begin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct FlowKey {
    pub task: CgroupId,
    /// The peer's address, IPv4 mapped into IPv6.
    pub remote: [u8; 16],
    /// The peer's port, in the order of the machine; 0 for an echo.
    pub remote_port: u16,
    /// The task's port, or the echo's id.
    pub local_port: u16,
    /// The [`Direction`] that began the exchange.
    pub direction: u8,
    /// The [`Class`].
    pub class: u8,
    /// Zero.
    pub pad: u16,
}

/// A declared port, which other allocations may use if their policies allow it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PortKey {
    /// The task of an allocation that has the port, or [`NODE`].
    pub task: CgroupId,
    pub port: u64,
}

/// The value in place of a task in [`PortKey`] for a port of the node that some task holds. No cgroup has this number.
pub const NODE: CgroupId = 0;

/// The key of a rule's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(C)]
pub struct RuleKey {
    pub task: CgroupId,
    pub policy: u32,
    /// The rule's number in the policy.
    pub rule: u32,
}

/// The key of the hash of a rule's name, which the agent stores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(C)]
pub struct NameKey {
    pub policy: u32,
    /// The rule's number in the policy.
    pub rule: u32,
}

/// The key of counters that are carried over to a rule of the next policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(C)]
pub struct CarriedKey {
    pub task: CgroupId,
    /// The hash of the rule's name.
    pub name: u64,
    /// The [`Direction`] of the rule's policy.
    pub direction: u64,
}

/// The counters of a rule of one task under earlier policies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CarriedCounters {
    /// Packets that matched the rule.
    pub packets: u64,
    /// Bytes of those packets, IP headers included.
    pub bytes: u64,
}

/// The counters of one CPU for one rule of one task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct RuleCounters {
    /// Packets that matched the rule.
    pub packets: u64,
    /// Bytes of those packets, IP headers included.
    pub bytes: u64,
    /// The time of the last reported packet, in nanoseconds of the monotonic clock.
    pub sent_ns: u64,
}

impl core::ops::AddAssign for RuleCounters {
    fn add_assign(&mut self, other: Self) {
        let Self {
            packets,
            bytes,
            sent_ns,
        } = other;
        self.packets += packets;
        self.bytes += bytes;
        self.sent_ns = self.sent_ns.max(sent_ns);
    }
}

/// A reported verdict: every refusal, and every passed packet of a rule with `log`. At most one is reported for a rule,
/// task and CPU in [`VERDICT_INTERVAL_NS`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct VerdictEvent {
    /// The time of the verdict, in nanoseconds of the monotonic clock.
    pub at_ns: u64,
    pub task: CgroupId,
    pub policy: u32,
    /// The [`Verdict`].
    pub verdict: u32,
    /// The peer's address, IPv4 mapped into IPv6.
    pub remote: [u8; 16],
    /// The peer's port; 0 without ports.
    pub remote_port: u16,
    /// The task's port; 0 without ports and before a connection has one.
    pub local_port: u16,
    /// Bytes of the packet; 0 for an attempt to connect.
    pub bytes: u32,
    /// The IP protocol's number.
    pub protocol: u8,
    /// The [`Direction`].
    pub direction: u8,
    /// Zero.
    pub pad: [u8; 6],
}

/// Least time between two events of one rule, task and CPU.
pub const VERDICT_INTERVAL_NS: u64 = 10_000_000;

/// Time in which the other side may answer a datagram. Linux's connection tracking uses the same time for a stream of
/// datagrams.
pub const FLOW_NS: u64 = 120_000_000_000;

/// Age of a flow's time from which on it is written again.
pub const FLOW_RENEW_NS: u64 = 1_000_000_000;

/// The state that is kept with a socket.
///
/// For an established TCP connection the verdict is the same for each packet until a task's policies change. It is
/// cached until the agent counts the next such change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct SocketState {
    /// Bits of [`socket`].
    pub known: u32,
    /// The [`Direction`] in which the connection was begun.
    pub begun: u32,
    /// The policy that lets the connection's packets pass.
    pub policy: u32,
    /// The matching rule of the policy, or [`NO_RULE`].
    pub rule: u32,
    pub task: CgroupId,
    /// The task's slot, or [`NO_SLOT`](crate::NO_SLOT).
    pub slot: u64,
    /// One more than the number of policy changes before the verdict; 0 means no verdict.
    pub valid: u64,
    /// The cached verdicts of a UDP socket for received and sent datagrams, by [`Direction`].
    pub datagrams: [CachedDatagram; 2],
}

/// The cached verdict on IPv4 datagrams between two sockets.
///
/// It applies to datagrams with the same addresses, ports and device, for [`KEPT_TICKS`], while policies do not change.
/// Within an allocation it also requires that the other end's socket is the one that was looked up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CachedDatagram {
    /// Source and destination, as in the header.
    pub addresses: u64,
    /// Source and destination port, as in the header.
    pub ports: u32,
    pub device: u32,
    /// A value as in [`SocketState::valid`], or [`Self::WRITING`].
    pub valid: u64,
    /// The tick of the kernel's clock from which on datagrams are judged anew.
    pub until: u64,
    /// The policy that lets the datagrams pass.
    pub policy: u32,
    /// The matching rule of the policy, or [`NO_RULE`].
    pub rule: u32,
    /// Whether the task has a rate limit in this direction: 0 or 1.
    pub limited: u64,
    /// The socket at the other end, if it is in the same allocation.
    pub peer: PeerMark,
}

impl CachedDatagram {
    /// The value of [`Self::valid`] while a CPU writes here. Other CPUs then do not write.
    pub const WRITING: u64 = u64::MAX;
}

/// Time for which a verdict on datagrams is cached: 0.1 to 1 s, because the kernel's clock ticks 1 000 to 100 times a
/// second.
///
/// While a verdict is cached, the flow's time is not renewed in the table of flows. The times there are a second old at
/// most ([`FLOW_RENEW_NS`]) and only matter after two minutes.
pub const KEPT_TICKS: u64 = 100;

/// The values by which a socket is recognised later.
///
/// As long as the socket keeps the same binding, and does not share it, a look-up finds no other socket. The kernel
/// lets no socket bind to a part of an address that is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PeerMark {
    /// The socket's address in the kernel; 0 means none.
    pub address: u64,
    /// The socket's cookie. No other socket has it until the next boot. The kernel assigns it when it is first
    /// requested.
    pub cookie: u64,
    /// The first three words of the kernel's `sock_common`: addresses; ports; state, sharing and device.
    pub binding: [u64; 3],
}

impl PeerMark {
    /// Words of a socket that are read, up to its cookie.
    pub const WORDS: usize = 12;
    /// The bits of the third word for a shared address (`SO_REUSEADDR`, `SO_REUSEPORT`).
    const SHARED: u64 = 0x1f << 24;
    /// The bits of the third word for the device that the socket is bound to.
    const DEVICE: u64 = 0xffff_ffff << 32;

    /// The mark of the socket at `address`; `None` if it could not be recognised later.
    #[must_use]
    #[inline]
    pub const fn new(address: u64, binding: [u64; 3], cookie: u64) -> Option<Self> {
        let [_, _, state] = binding;
        if cookie == 0 || state & (Self::SHARED | Self::DEVICE) != 0 {
            return None;
        }
        Some(Self {
            address,
            cookie,
            binding,
        })
    }

    /// Whether the socket that begins with `words` is this socket, unchanged.
    #[must_use]
    #[inline]
    pub const fn is(&self, words: &[u64; Self::WORDS]) -> bool {
        let [a, b, c, _, _, _, _, _, _, _, _, cookie] = *words;
        let [kept_a, kept_b, kept_c] = self.binding;
        // The comparison has no branches, because all values are nearly always equal.
        (a ^ kept_a) | (b ^ kept_b) | (c ^ kept_c) | (cookie ^ self.cookie) == 0
    }
}

/// The rule of packets that pass without a rule, because both ends belong to the same allocation.
pub const NO_RULE: u32 = u32::MAX;

/// Bits kept with a socket.
pub mod socket {
    /// The task began the connection.
    pub const INITIATED: u32 = 1;
    /// Whether the peer was looked up, to see if both ends belong to the same allocation.
    pub const CHECKED: u32 = 2;
    /// Both ends belong to the same allocation.
    pub const OWN: u32 = 4;
    /// The traffic that the task receives has a rate limit.
    pub const INGRESS_LIMITED: u32 = 8;
    /// The traffic that the task sends has a rate limit.
    pub const EGRESS_LIMITED: u32 = 16;
}

/// An IPv4 address as IPv6 writes it.
#[must_use]
#[inline]
pub const fn mapped(address: [u8; 4]) -> [u8; 16] {
    let [a, b, c, d] = address;
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d]
}

// SAFETY: 8, 4, 4 and 8 bytes, `repr(C)`, without padding.
unsafe impl Plain for TaskPolicyRef {}
// SAFETY: 4, 4 and 4 bytes, `repr(C)`, without padding.
unsafe impl Plain for LeafKey4 {}
// SAFETY: 4, 4 and 16 bytes, `repr(C)`, without padding.
unsafe impl Plain for LeafKey6 {}
// SAFETY: two times 4 bytes, `repr(C)`, without padding.
unsafe impl Plain for Leaf {}
// SAFETY: two times 4 bytes, `repr(C)`, without padding.
unsafe impl Plain for Interval {}
// SAFETY: two times 8 bytes, `repr(C)`, without padding.
unsafe impl Plain for PortKey {}
// SAFETY: 8, 4 and 4 bytes, `repr(C)`, without padding.
unsafe impl Plain for RuleKey {}
// SAFETY: two times 4 bytes, `repr(C)`, without padding.
unsafe impl Plain for NameKey {}
// SAFETY: three times 8 bytes, `repr(C)`, without padding.
unsafe impl Plain for CarriedKey {}
// SAFETY: two times 8 bytes, `repr(C)`, without padding.
unsafe impl Plain for CarriedCounters {}
// SAFETY: three times 8 bytes, `repr(C)`, without padding.
unsafe impl Plain for RuleCounters {}
// SAFETY: 56 bytes, with padding declared as fields, `repr(C)`.
unsafe impl Plain for VerdictEvent {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_no_padding() {
        assert_eq!(size_of::<TaskPolicyRef>(), 24);
        assert_eq!(size_of::<LeafKey4>(), 12);
        assert_eq!(size_of::<LeafKey6>(), 24);
        assert_eq!(size_of::<FlowKey>(), 32);
        assert_eq!(size_of::<SocketState>(), 40 + 2 * 88);
        assert_eq!(size_of::<RuleKey>(), 16);
        assert_eq!(size_of::<NameKey>(), 8);
        assert_eq!(size_of::<CarriedKey>(), 24);
        assert_eq!(size_of::<CarriedCounters>(), 16);
        assert_eq!(size_of::<VerdictEvent>(), 56);
    }

    #[test]
    fn peer_mark_matches_only_same_socket() {
        let mut words = [3; PeerMark::WORDS];
        words[2] = 2 | 7 << 16;
        let mark = PeerMark::new(0xff00, [3, 3, words[2]], 3).unwrap();
        assert!(mark.is(&words));

        for word in [0, 1, 2, 11] {
            let mut other = words;
            other[word] ^= 1 << 24;
            assert!(!mark.is(&other), "word {word}");
        }
    }

    #[test]
    fn sockets_with_reuse_or_device_are_not_marked() {
        let mark = |third: u64, cookie| PeerMark::new(1, [3, 3, third], cookie);
        assert!(mark(0, 5).is_some());
        assert_eq!(mark(0, 0), None);
        // SO_REUSEADDR, SO_REUSEPORT, a device.
        assert_eq!(mark(1 << 24, 5), None);
        assert_eq!(mark(1 << 28, 5), None);
        assert_eq!(mark(1 << 32, 5), None);
    }

    #[test]
    fn verdict_returns_its_parts() {
        let verdict = Verdict::new(true, true, 7);
        assert!(verdict.allows() && verdict.is_reported());
        assert_eq!(verdict.rule(), 7);

        let refused = Verdict::new(false, false, Verdict::PRIVATE_PORT);
        assert!(!refused.allows() && refused.is_reported());
        assert_eq!(refused.rule(), Verdict::PRIVATE_PORT);
        assert!(!Verdict::new(true, false, 0).is_reported());
    }

    #[test]
    fn verdict_unless_held_keeps_rule_and_action() {
        let refused = Verdict::new(false, false, 7);
        let unless_held = refused.unless_held();

        assert!(unless_held.is_unless_held() && !refused.is_unless_held());
        assert!(!unless_held.allows() && unless_held.is_reported());
        assert_eq!(unless_held.rule(), 7);
    }

    #[test]
    fn interval_search_finds_interval_containing_key() {
        for count in [1_u32, 2, 3, 7, 15, 16, 17, 100, 1_000, 65_536] {
            let at = |index: u32| {
                let start = (index - 5) * 10;
                Some(Interval {
                    start,
                    verdict: start,
                })
            };
            let leaf = Leaf { first: 5, count };
            for key in (0..count * 10).step_by(1 + count as usize / 500) {
                assert_eq!(search(leaf, key, at).0, key / 10 * 10, "{count} {key}");
            }
        }
    }

    #[test]
    fn missing_rule_is_refused() {
        let nothing = search(Leaf::default(), 0, |_| None);
        assert!(!nothing.allows());
        assert_eq!(nothing.rule(), Verdict::NO_POLICY);
    }
}
