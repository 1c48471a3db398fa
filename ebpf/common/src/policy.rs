//! The packets that a task may send and receive, compiled for the packet path.
//!
//! A policy is for one direction. Its rules are gone by the time a packet comes: for each prefix of
//! addresses that a rule names there is a [`Leaf`], found by longest match, and it leads to sorted
//! [`Interval`]s over what else a rule may ask for. That is one number, [`key`]: the class of the
//! protocol and the port, or type and code. A verdict costs one look-up in a trie and a binary
//! search, however many rules there are. The agent writes a new policy beside the old one and then
//! changes the task's [`TaskPolicyRef`], so a packet meets one or the other, never a mixture.

use crate::{CgroupId, Plain};

/// Which way a packet goes, as seen by the task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Direction {
    Ingress = 0,
    Egress = 1,
}

/// Protocols that rules tell apart.
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
    /// Any other, and every packet that does not show its ports: fragments after the first, cut
    /// headers. Only rules for all protocols match it. The detail is 0.
    Other = 4,
}

impl Class {
    /// How many there are.
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

    /// The rule of a packet to another allocation's port that this one has not declared.
    pub const PRIVATE_PORT: u32 = Self::RULE;
    /// The rule of a packet for which there is no policy although there should be one.
    pub const NO_POLICY: u32 = Self::RULE - 1;
    /// The rule of a packet to a port of the node that an allocation holds.
    pub const HELD_PORT: u32 = Self::RULE - 2;
    /// How many rules a policy can have.
    pub const RULES_MAX: u32 = Self::RULE - 2;

    /// The verdict of the rule with number `rule`.
    #[must_use]
    #[inline]
    pub const fn new(allow: bool, log: bool, rule: u32) -> Self {
        let allow = if allow { Self::ALLOW } else { 0 };
        let log = if log { Self::LOG } else { 0 };
        Self(allow | log | (rule & Self::RULE))
    }

    /// The same verdict for those ports of the node alone that no allocation holds. A packet to one that is held passes
    /// by the rule [`Self::HELD_PORT`].
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

    /// Whether it is told.
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
    /// The task. The kernel may give what holds this value to another task while a program copies it: it is written
    /// first and compared last.
    pub task: CgroupId,
    /// The policy of what it receives.
    pub ingress: u32,
    /// The policy of what it sends.
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

    /// Whether nothing that can be an answer is refused in `direction`.
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
    /// Whether what goes in `direction` has a rate.
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
/// The task's allocation has a network of its own: from outside only declared ports are reached.
pub const BEHIND_HOST_VETH: u64 = 4;
/// The traffic that the task receives has a rate.
pub const INGRESS_LIMITED: u64 = 8;
/// The traffic that the task sends has a rate.
pub const EGRESS_LIMITED: u64 = 16;

/// The part of a trie's key after the length of the prefix, IPv4.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(C)]
pub struct AddressKey4 {
    pub policy: u32,
    /// The address, in the order of the network.
    pub address: [u8; 4],
}

/// The part of a trie's key after the length of the prefix, IPv6.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(C)]
pub struct AddressKey6 {
    pub policy: u32,
    /// The address, in the order of the network.
    pub address: [u8; 16],
}

/// Bits of the policy's number in front of the address in a prefix.
pub const POLICY_BITS: u32 = 32;

/// A whole key of the trie of IPv4, as user space writes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(C)]
pub struct LeafKey4 {
    /// [`POLICY_BITS`] and those of the address.
    pub prefix_len: u32,
    pub place: AddressKey4,
}

/// A whole key of the trie of IPv6, as user space writes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(C)]
pub struct LeafKey6 {
    /// [`POLICY_BITS`] and those of the address.
    pub prefix_len: u32,
    pub place: AddressKey6,
}

/// Where the intervals of a prefix are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Leaf {
    /// The first one's index.
    pub first: u32,
    /// How many there are; at least one.
    pub count: u32,
}

/// Keys from `start` to the next interval's have this verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(C)]
pub struct Interval {
    pub start: u32,
    /// The [`Verdict`].
    pub verdict: u32,
}

/// Intervals that one policy may have for one prefix.
pub const LEAF_INTERVALS_MAX: u32 = 65_536;

/// The verdict for `key` among `leaf`'s intervals, of which `at` reads one. No interval refuses.
///
/// The first interval starts at key 0. The search has no branch that depends on what it reads: the
/// kernel's verifier follows every branch, and one in each step would be too many for it.
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

/// Nearly all policies have no more intervals for a prefix.
const FEW: u32 = 16;

/// Searches the first 2 to the power of `STEPS` intervals.
#[inline]
fn halve<const STEPS: u32>(
    leaf: Leaf,
    key: u32,
    mut at: impl FnMut(u32) -> Option<Interval>,
) -> Option<Verdict> {
    // All numbers here are far below 2 to the power of 31, so the sign of a difference says which is less.
    // The interval at `low` starts at or before the key, all the time.
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

/// Datagrams between a task and one other place, and echoes of ICMP: answers to what one side was
/// allowed to begin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct FlowKey {
    pub task: CgroupId,
    /// The other place, IPv4 mapped into IPv6.
    pub remote: [u8; 16],
    /// Its port, in the order of the machine; 0 for an echo.
    pub remote_port: u16,
    /// The task's port, or the echo's id.
    pub local_port: u16,
    /// The [`Direction`] that began it.
    pub direction: u8,
    /// The [`Class`].
    pub class: u8,
    /// Zero.
    pub pad: u16,
}

/// A port that others may use without being asked for a policy of ports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PortKey {
    /// The task of an allocation that has the port, or [`NODE`].
    pub task: CgroupId,
    pub port: u64,
}

/// In the place of a task in [`PortKey`]: the port is one of the node's own, and some task holds it. No cgroup has this
/// number.
pub const NODE: CgroupId = 0;

/// The key of a rule's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(C)]
pub struct RuleKey {
    pub task: CgroupId,
    pub policy: u32,
    /// The rule's number in it.
    pub rule: u32,
}

/// A rule, to which the agent keeps what its name is known by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(C)]
pub struct NameKey {
    pub policy: u32,
    /// The rule's number in it.
    pub rule: u32,
}

/// The key of counters that are carried over to a rule of the next policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(C)]
pub struct CarriedKey {
    pub task: CgroupId,
    /// The key of the rule's name.
    pub name: u64,
    /// The [`Direction`] of its policy.
    pub direction: u64,
}

/// The counters of a rule of one task under earlier policies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CarriedCounters {
    /// Packets that met it.
    pub packets: u64,
    /// Their bytes, IP headers included.
    pub bytes: u64,
}

/// The counters of one CPU for one rule of one task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct RuleCounters {
    /// Packets that met it.
    pub packets: u64,
    /// Their bytes, IP headers included.
    pub bytes: u64,
    /// When one of them was last told, in nanoseconds of the monotonic clock.
    pub told_ns: u64,
}

impl core::ops::AddAssign for RuleCounters {
    fn add_assign(&mut self, other: Self) {
        let Self {
            packets,
            bytes,
            told_ns,
        } = other;
        self.packets += packets;
        self.bytes += bytes;
        self.told_ns = self.told_ns.max(told_ns);
    }
}

/// A verdict that is told: every refusal, and what a rule with `log` let pass, at most one of a
/// rule, task and CPU in [`TELL_EVERY_NS`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct VerdictEvent {
    /// When, in nanoseconds of the monotonic clock.
    pub at_ns: u64,
    pub task: CgroupId,
    pub policy: u32,
    /// The [`Verdict`].
    pub verdict: u32,
    /// The other place, IPv4 mapped into IPv6.
    pub remote: [u8; 16],
    /// Its port; 0 without ports.
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
pub const TELL_EVERY_NS: u64 = 10_000_000;

/// How long the other side of a datagram may answer it: what Linux's connection tracking gives a
/// stream of datagrams.
pub const FLOW_NS: u64 = 120_000_000_000;

/// How old a flow's time may get before it is written again.
pub const FLOW_RENEW_NS: u64 = 1_000_000_000;

/// The state that is kept with a socket.
///
/// Of a TCP connection that came about, the verdict is the same for each packet until a task's policies change: it is
/// kept for as long as the agent has not counted another change of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct SocketState {
    /// Bits of [`socket`].
    pub known: u32,
    /// The [`Direction`] in which the connection was begun.
    pub begun: u32,
    /// The policy that lets its packets pass.
    pub policy: u32,
    /// The rule of it, or [`NO_RULE`].
    pub rule: u32,
    pub task: CgroupId,
    /// Its slot, or [`NO_SLOT`](crate::NO_SLOT).
    pub slot: u64,
    /// One more than the changes of policies that were counted before the verdict; 0 is none.
    pub valid: u64,
    /// Of a UDP socket, what was received and sent last, by [`Direction`].
    pub datagrams: [CachedDatagram; 2],
}

/// The verdict on datagrams of IPv4 between two places.
///
/// It holds for datagrams with the same addresses, ports and device, while policies do not change, for
/// [`KEPT_TICKS`]; and within an allocation while the other end's socket is still the one that was looked up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CachedDatagram {
    /// Source and destination, as they stand in the header.
    pub addresses: u64,
    /// Their ports, as they stand in the header.
    pub ports: u32,
    pub device: u32,
    /// As in [`SocketState::valid`], or [`Self::WRITING`].
    pub valid: u64,
    /// The tick of the kernel's clock from which on it is judged anew.
    pub until: u64,
    /// The policy that lets it pass.
    pub policy: u32,
    /// The rule of it, or [`NO_RULE`].
    pub rule: u32,
    /// Whether the task has a rate in this direction: 0 or 1.
    pub limited: u64,
    /// The socket at the other end, if that is within the allocation.
    pub peer: PeerMark,
}

impl CachedDatagram {
    /// In the place of [`Self::valid`]: a CPU writes here, and others do not.
    pub const WRITING: u64 = u64::MAX;
}

/// How long a verdict on datagrams is kept: 0.1 to 1 s, as the kernel's clock ticks 1 000 to 100 times a second.
///
/// A flow that is not judged anew does not show in the table of flows that it is alive.
/// The times there are a second old at most ([`FLOW_RENEW_NS`]) and matter after two minutes.
pub const KEPT_TICKS: u64 = 100;

/// By what a socket that was looked up is known again.
///
/// As long as it has the same binding, and does not share it with others, a look-up finds no other one: the kernel lets
/// nobody bind to a part of what is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PeerMark {
    /// Where the kernel has it; 0 is none.
    pub address: u64,
    /// Its number: no other socket has it in the life of the machine. A socket has one once it was asked for.
    pub cookie: u64,
    /// The first three words of the kernel's `sock_common`: addresses; ports; state, sharing and device.
    pub binding: [u64; 3],
}

impl PeerMark {
    /// Words of a socket that are read: up to its number.
    pub const WORDS: usize = 12;
    /// In the third word: whether the address is shared (`SO_REUSEADDR`, `SO_REUSEPORT`).
    const SHARED: u64 = 0x1f << 24;
    /// In the third word: the device that it is bound to.
    const DEVICE: u64 = 0xffff_ffff << 32;

    /// The mark of the socket at `address`; `None` if it would not be known again.
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

    /// Whether what begins with `words` is this socket, as it was.
    #[must_use]
    #[inline]
    pub const fn is(&self, words: &[u64; Self::WORDS]) -> bool {
        let [a, b, c, _, _, _, _, _, _, _, _, cookie] = *words;
        let [kept_a, kept_b, kept_c] = self.binding;
        // Without branches: they are all alike nearly always.
        (a ^ kept_a) | (b ^ kept_b) | (c ^ kept_c) | (cookie ^ self.cookie) == 0
    }
}

/// The rule of what passes without being asked for one: both ends are the same allocation's.
pub const NO_RULE: u32 = u32::MAX;

/// Bits kept with a socket.
pub mod socket {
    /// The task began the connection.
    pub const INITIATED: u32 = 1;
    /// Whether both ends are the same allocation's was looked up.
    pub const CHECKED: u32 = 2;
    /// Both ends are the same allocation's.
    pub const OWN: u32 = 4;
    /// The traffic that the task receives has a rate.
    pub const INGRESS_LIMITED: u32 = 8;
    /// The traffic that the task sends has a rate.
    pub const EGRESS_LIMITED: u32 = 16;
}

/// An IPv4 address as IPv6 writes it.
#[must_use]
#[inline]
pub const fn mapped(address: [u8; 4]) -> [u8; 16] {
    let [a, b, c, d] = address;
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d]
}

// SAFETY: 8, 4, 4 and 8 bytes, `repr(C)`, nothing between them.
unsafe impl Plain for TaskPolicyRef {}
// SAFETY: 4, 4 and 4 bytes, `repr(C)`, nothing between them.
unsafe impl Plain for LeafKey4 {}
// SAFETY: 4, 4 and 16 bytes, `repr(C)`, nothing between them.
unsafe impl Plain for LeafKey6 {}
// SAFETY: two times 4 bytes, `repr(C)`, nothing between them.
unsafe impl Plain for Leaf {}
// SAFETY: two times 4 bytes, `repr(C)`, nothing between them.
unsafe impl Plain for Interval {}
// SAFETY: two times 8 bytes, `repr(C)`, nothing between them.
unsafe impl Plain for PortKey {}
// SAFETY: 8, 4 and 4 bytes, `repr(C)`, nothing between them.
unsafe impl Plain for RuleKey {}
// SAFETY: two times 4 bytes, `repr(C)`, nothing between them.
unsafe impl Plain for NameKey {}
// SAFETY: three times 8 bytes, `repr(C)`, nothing between them.
unsafe impl Plain for CarriedKey {}
// SAFETY: two times 8 bytes, `repr(C)`, nothing between them.
unsafe impl Plain for CarriedCounters {}
// SAFETY: three times 8 bytes, `repr(C)`, nothing between them.
unsafe impl Plain for RuleCounters {}
// SAFETY: 56 bytes with what is left over named, `repr(C)`.
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
