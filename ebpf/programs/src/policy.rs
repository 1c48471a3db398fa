//! Decides which packets a task may send and receive. Packet programs judge each packet; others act at `connect`.
//!
//! The packet programs decide. A connection belongs to the policy of the direction in which it was begun, for packets
//! in both directions. Each packet is judged anew, so that a new policy applies to the connection at once. The programs
//! at `connect` only let a call fail at once that would otherwise time out.

mod packet;
pub(crate) mod rate;

use aya_ebpf::{
    bindings::{
        __sk_buff, BPF_F_CURRENT_NETNS, BPF_F_NO_PREALLOC, BPF_SK_STORAGE_GET_F_CREATE, bpf_sock,
        bpf_sock_tuple, bpf_sock_tuple__bindgen_ty_1__bindgen_ty_1,
        bpf_sock_tuple__bindgen_ty_1__bindgen_ty_2,
    },
    btf_maps::SkStorage,
    helpers::{
        bpf_get_socket_cookie, bpf_jiffies64, bpf_ktime_get_ns, bpf_probe_read_kernel,
        bpf_sk_ancestor_cgroup_id, bpf_sk_fullsock, bpf_sk_lookup_tcp, bpf_sk_lookup_udp,
        bpf_sk_release, bpf_skb_ancestor_cgroup_id,
        generated::{bpf_ktime_get_coarse_ns, bpf_sk_storage_get},
    },
    macros::{btf_map, cgroup_sock_addr, map},
    maps::{Array, HashMap, LpmTrie, LruHashMap, PerCpuHashMap, RingBuf, lpm_trie::Key},
    programs::{SkBuffContext, SockAddrContext},
};
use core::{arch::asm, ffi::c_void};
use muster_ebpf_common::{
    CgroupId, LostRecord,
    limits::{
        CARRIED_MAX, FLOWS_MAX, INTERVALS_MAX, LEAVES_MAX, NAMES_MAX, PORTS_MAX, RULES_MAX,
        TASKS_MAX, VERDICTS_BYTES,
    },
    nat::PublishedKey,
    net::{RuleHit, tcp_state},
    policy::{
        AddressKey4, AddressKey6, CachedDatagram, CarriedCounters, CarriedKey, Class, Direction,
        FLOW_NS, FLOW_RENEW_NS, FlowKey, Interval, KEPT_TICKS, Leaf, NO_RULE, NODE, NameKey,
        POLICY_BITS, PeerMark, PortKey, RuleCounters, RuleKey, SocketState, TaskPolicyRef,
        VERDICT_INTERVAL_NS, Verdict, VerdictEvent, mapped, search, socket,
    },
};

pub(crate) use self::packet::protocol;
use self::packet::{Packet, is_mapped, low};
use crate::kernel::{count_lost, current_task, fact, is_active, policy_changes, slot_of};
use crate::nat::PUBLISHED;
use crate::net::traffic_of;

/// The policies of each task. The agent makes the entry before the task starts.
#[map]
static TASK_POLICY: HashMap<CgroupId, TaskPolicyRef> =
    HashMap::pinned(TASKS_MAX, BPF_F_NO_PREALLOC);

/// The intervals of each policy's IPv4 prefixes.
#[map]
static LEAVES4: LpmTrie<AddressKey4, Leaf> = LpmTrie::pinned(LEAVES_MAX, 0);

/// The intervals of each policy's IPv6 prefixes.
#[map]
static LEAVES6: LpmTrie<AddressKey6, Leaf> = LpmTrie::pinned(LEAVES_MAX, 0);

/// The intervals of all policies.
#[map]
static INTERVALS: Array<Interval> = Array::pinned(INTERVALS_MAX, 0);

/// The time at which a flow was last seen, in nanoseconds.
#[map]
static FLOWS: LruHashMap<FlowKey, u64> = LruHashMap::pinned(FLOWS_MAX, 0);

/// Ports that an allocation has declared, and ports of the node that allocations hold.
#[map]
static PORTS: HashMap<PortKey, u64> = HashMap::pinned(PORTS_MAX, BPF_F_NO_PREALLOC);

/// Counts by rule. The programs make entries, the agent removes them.
#[map]
static RULES: PerCpuHashMap<RuleKey, RuleCounters> =
    PerCpuHashMap::pinned(RULES_MAX, BPF_F_NO_PREALLOC);

/// The hashes of rules' names, for the next agent. No program reads them.
#[map]
static NAMES: HashMap<NameKey, u64> = HashMap::pinned(NAMES_MAX, BPF_F_NO_PREALLOC);

/// The counters of rules under earlier policies, for the next agent. No program reads them.
#[map]
static CARRIED_OVER: HashMap<CarriedKey, CarriedCounters> =
    HashMap::pinned(CARRIED_MAX, BPF_F_NO_PREALLOC);

/// The verdicts for the agent.
#[map]
static VERDICTS: RingBuf = RingBuf::pinned(VERDICTS_BYTES, 0);

/// The state of a socket. The kernel removes it with the socket.
#[btf_map]
static SOCKETS: SkStorage<SocketState> = SkStorage::new();

/// The number of the loopback interface in every network namespace.
const LOOPBACK: u32 = 1;

/// `SOCK_STREAM`.
const STREAM: u32 = 1;

/// The other end of an exchange that stays on this machine.
enum Peer {
    /// A process of the same allocation.
    Own,
    /// Another allocation's task, with this cgroup.
    Task(CgroupId),
    Host,
}

impl Peer {
    /// The peer as one number, for functions that are not inlined.
    const HOST: u64 = 0;
    const OWN: u64 = 1;

    #[inline(always)]
    fn of(number: u64) -> Self {
        match number {
            Self::HOST => Self::Host,
            Self::OWN => Self::Own,
            task => Self::Task(task),
        }
    }
}

/// The cached verdict on a packet that equals earlier ones.
#[derive(Clone, Copy)]
pub(crate) struct CachedVerdict<'a> {
    /// The state of the packet's socket.
    pub(crate) state: &'a SocketState,
    /// The direction of the policy that lets the packet pass.
    begun: u32,
    policy: u32,
    rule: u32,
    /// Whether a rate limit applies to the packet.
    limited: bool,
}

/// Returns the state that earlier packets left with the packet's socket, if they passed since policies last changed.
/// The state belongs to an established connection, or to datagrams with the same peer.
#[inline(always)]
pub(crate) fn settled<'a>(skb: *mut __sk_buff, direction: Direction) -> Option<CachedVerdict<'a>> {
    // SAFETY: the context is valid for the run of the program.
    let socket = unsafe { (*skb).__bindgen_anon_2.sk };
    if socket.is_null() {
        return None;
    }
    // SAFETY: the packet holds its socket. No state is kept for a half-open connection.
    let connection = unsafe { (*socket).state };
    if !tcp_state::is_connected(connection) && connection != tcp_state::CLOSE {
        return None;
    }
    let kept = socket_state(socket, false);
    // SAFETY: the storage lives as long as the socket, which the packet holds.
    let state = unsafe { kept.as_ref() }?;
    let valid = policy_changes() + 1;
    // A socket may leave its connection and begin another one with another peer.
    if state.valid == valid && connection != tcp_state::CLOSE {
        let flag = match direction {
            Direction::Ingress => socket::INGRESS_LIMITED,
            Direction::Egress => socket::EGRESS_LIMITED,
        };
        return Some(CachedVerdict {
            state,
            begun: state.begun,
            policy: state.policy,
            rule: state.rule,
            limited: state.known & flag != 0,
        });
    }
    let datagram = match direction {
        Direction::Ingress => &state.datagrams[0],
        Direction::Egress => &state.datagrams[1],
    };
    if datagram.valid != valid || !is_like(skb, datagram) {
        return None;
    }
    Some(CachedVerdict {
        state,
        begun: direction as u32,
        policy: datagram.policy,
        rule: datagram.rule,
        limited: datagram.limited != 0,
    })
}

/// Whether the packet is a datagram like the one with the cached verdict, and the verdict is still valid.
#[inline(always)]
fn is_like(skb: *mut __sk_buff, kept: &CachedDatagram) -> bool {
    let Some((addresses, ports)) = ends(skb) else {
        return false;
    };
    // SAFETY: the context is valid for the run of the program; the helper has no arguments.
    let (device, ticks) = unsafe { ((*skb).ifindex, bpf_jiffies64()) };
    if addresses != kept.addresses || ports != kept.ports || device != kept.device {
        return false;
    }
    if ticks >= kept.until {
        return false;
    }
    device != LOOPBACK || is_still(&kept.peer) != 0
}

/// Source and destination of a whole IPv4 datagram, and their ports, as in the headers.
#[inline(always)]
fn ends(skb: *mut __sk_buff) -> Option<(u64, u32)> {
    // SAFETY: the context is valid for the run of the program.
    let (start, end) = unsafe { ((*skb).data as usize, (*skb).data_end as usize) };
    if start + DATAGRAM_HEADERS > end {
        return None;
    }
    let header = start as *const u8;
    // SAFETY: the length was checked. Headers begin at least at two bytes before a multiple of eight.
    unsafe {
        let fragment = u16::from_be(header.add(6).cast::<u16>().read_unaligned());
        if *header != PLAIN_V4 || *header.add(9) != protocol::UDP || fragment & !DONT_FRAGMENT != 0
        {
            return None;
        }
        let word = |at: usize| header.add(at).cast::<u32>().read_unaligned();
        let addresses = u64::from(word(12)) | u64::from(word(16)) << 32;
        Some((addresses, word(20)))
    }
}

/// Bytes of the headers of an IPv4 datagram without options.
const DATAGRAM_HEADERS: usize = 28;
/// The first byte of an IPv4 header without options.
const PLAIN_V4: u8 = 0x45;
/// The bit of the fragment word that does not mark a fragment.
const DONT_FRAGMENT: u16 = 0x4000;

/// Whether the socket that was looked up is unchanged: 1 or 0. The words read from it have no room on the stack next to
/// the packet. Older kernels count the stack of every called function.
#[inline(never)]
fn is_still(peer: &PeerMark) -> u32 {
    let socket = peer.address as *const [u64; PeerMark::WORDS];
    // SAFETY: the helper checks the address and fails instead of faulting.
    let words = unsafe { bpf_probe_read_kernel(socket) };
    u32::from(words.is_ok_and(|words| peer.is(&words)))
}

/// Counts a packet with a cached verdict; `false` if another rule matched last.
#[inline(always)]
pub(crate) fn count_settled(
    settled: CachedVerdict<'_>,
    met: &mut [RuleHit; 2],
    bytes: u64,
) -> bool {
    if settled.rule == NO_RULE {
        return true;
    }
    let [ingress, egress] = met;
    let met = if settled.begun == Direction::Ingress as u32 {
        ingress
    } else {
        egress
    };
    if met.policy != settled.policy || met.rule != settled.rule {
        return false;
    }
    met.packets += 1;
    met.bytes += bytes;
    true
}

/// The decision about a packet.
#[derive(Clone, Copy)]
pub(crate) enum PacketOutcome {
    Refused,
    Passes,
    /// The packet passes if it does not exceed the rate.
    Limited,
    /// The packet passes without a rate limit: it stays within the allocation, or the task is unknown.
    Exempt,
}

impl PacketOutcome {
    #[inline(always)]
    fn new(allowed: bool, policy_ref: TaskPolicyRef, direction: Direction) -> Self {
        if !allowed {
            Self::Refused
        } else if policy_ref.is_limited(direction) {
            Self::Limited
        } else {
            Self::Passes
        }
    }

    /// Returns the decision about a packet with a cached verdict.
    #[inline(always)]
    pub(crate) fn settled(settled: CachedVerdict<'_>) -> Self {
        if settled.rule == NO_RULE {
            Self::Exempt
        } else if settled.limited {
            Self::Limited
        } else {
            Self::Passes
        }
    }
}

/// The policies of a task. If the entry was given to another task twice meanwhile, it returns no policies, so no packet
/// passes.
#[inline(always)]
fn policy_ref_of(task: CgroupId) -> Option<TaskPolicyRef> {
    let mut policy_ref = TaskPolicyRef::default();
    for _ in 0..2 {
        let entry = TASK_POLICY.get_ptr(task)?;
        // SAFETY: the entry is a map value, which stays readable until the program ends. Another task that takes over
        // the entry writes its id first, and the id is read last.
        let now = unsafe {
            policy_ref = TaskPolicyRef {
                task,
                ingress: (&raw const (*entry).ingress).read_volatile(),
                egress: (&raw const (*entry).egress).read_volatile(),
                flags: (&raw const (*entry).flags).read_volatile(),
            };
            (&raw const (*entry).task).read_volatile()
        };
        if now == task {
            return Some(policy_ref);
        }
    }
    policy_ref.ingress = 0;
    policy_ref.egress = 0;
    policy_ref.flags = 0;
    Some(policy_ref)
}

/// Decides whether the packet's task may send or receive it.
#[inline(always)]
pub(crate) fn judge_packet(
    ctx: &SkBuffContext,
    task: CgroupId,
    direction: Direction,
) -> PacketOutcome {
    // The count is read before the policy, because a cached verdict is stored under the number of changes known at that
    // time.
    let changes = policy_changes();
    let Some(policy_ref) = policy_ref_of(task) else {
        return PacketOutcome::Exempt;
    };
    let skb = ctx.skb.skb;
    let mut packet = Packet::new(task, direction);
    // SAFETY: the context is valid for the run of the program.
    packet.event.bytes = unsafe { (*skb).len };
    packet.read(skb);
    if matches!(packet.class, Class::Tcp) {
        return tcp(skb, policy_ref, &mut packet, direction, changes);
    }
    if packet.is_exchange {
        return datagram(skb, policy_ref, &mut packet, direction, changes);
    }
    if packet.finds_neighbours() {
        return PacketOutcome::Exempt;
    }
    packet.event.policy = policy_ref.policy(direction);
    let verdict = decide(&packet, packet.key(direction));
    packet.event.verdict = verdict.0;
    count_and_send(&mut packet, direction);
    PacketOutcome::new(verdict.allows(), policy_ref, direction)
}

/// Judges a packet of a connection. The connection's direction is known from its first packet, and is stored with the
/// socket.
#[inline(always)]
fn tcp(
    skb: *mut __sk_buff,
    policy_ref: TaskPolicyRef,
    packet: &mut Packet,
    direction: Direction,
    changes: u64,
) -> PacketOutcome {
    let begins_here = packet.begins && matches!(direction, Direction::Egress);
    // SAFETY: the context is valid for the run of the program.
    let local = unsafe { (*skb).ifindex } == LOOPBACK;
    let socket = full_socket(skb);
    // A raw socket may send to other addresses than the one that it is connected to.
    let connected = socket.is_some_and(|it| is_connected(it) && is_of(it, protocol::TCP));
    let kept = socket.map_or(core::ptr::null_mut(), |it| {
        socket_state(it, begins_here || connected)
    });
    // SAFETY: the storage lives as long as the socket, which the packet holds.
    let before = unsafe { kept.as_ref() }.map_or(0, |state| state.known);
    let mut known = if begins_here {
        socket::INITIATED
    } else {
        before
    };
    let mut own = known & socket::OWN != 0;
    let mut private = false;
    if local && known & socket::CHECKED == 0 {
        match Peer::of(peer(skb, packet)) {
            Peer::Own => own = true,
            Peer::Task(other) => {
                private = begins_here && is_private(other, packet.event.remote_port);
            }
            Peer::Host => {}
        }
        // The listening process may change until the connection is established.
        if !packet.begins {
            known |= socket::CHECKED | if own { socket::OWN } else { 0 };
        }
    }
    if !local && policy_ref.is_behind_host_veth() && packet.begins && !begins_here {
        private = is_private(packet.event.task, packet.event.local_port);
    }
    let begun = if own || packet.begins {
        direction
    } else if known & socket::INITIATED != 0 {
        Direction::Egress
    } else {
        Direction::Ingress
    };
    packet.event.policy = policy_ref.policy(begun);
    let verdict = if own {
        Verdict::new(true, false, 0)
    } else if private {
        Verdict::new(false, false, Verdict::PRIVATE_PORT)
    } else {
        decide(packet, packet.key(begun))
    };
    // SAFETY: as above.
    if let Some(state) = unsafe { kept.as_mut() } {
        let settles = connected && !packet.begins && verdict.allows() && !verdict.is_reported();
        state.known = known & !RATES | rates(policy_ref);
        state.begun = begun as u32;
        state.policy = packet.event.policy;
        state.rule = if own { NO_RULE } else { verdict.rule() };
        state.task = packet.event.task;
        state.slot = slot_of(packet.event.task);
        state.valid = if settles { changes + 1 } else { 0 };
    }
    if own {
        return PacketOutcome::Exempt;
    }
    packet.event.verdict = verdict.0;
    count_and_send(packet, begun);
    PacketOutcome::new(verdict.allows(), policy_ref, direction)
}

/// The flags in a socket's state for directions with a rate limit.
const RATES: u32 = socket::INGRESS_LIMITED | socket::EGRESS_LIMITED;

/// See [`RATES`].
#[inline(always)]
fn rates(policy_ref: TaskPolicyRef) -> u32 {
    let flag = |direction, flag| {
        if policy_ref.is_limited(direction) {
            flag
        } else {
            0
        }
    };
    flag(Direction::Ingress, socket::INGRESS_LIMITED)
        | flag(Direction::Egress, socket::EGRESS_LIMITED)
}

/// Judges a datagram or an echo. A packet that its own direction's policy refuses may be an answer.
#[inline(always)]
fn datagram(
    skb: *mut __sk_buff,
    policy_ref: TaskPolicyRef,
    packet: &mut Packet,
    direction: Direction,
    changes: u64,
) -> PacketOutcome {
    // SAFETY: the context is valid for the run of the program.
    let local = unsafe { (*skb).ifindex } == LOOPBACK;
    let (other_way, sends) = match direction {
        Direction::Ingress => (Direction::Egress, false),
        Direction::Egress => (Direction::Ingress, true),
    };
    let mut private = false;
    if local && matches!(packet.class, Class::Udp) {
        match Peer::of(peer(skb, packet)) {
            Peer::Own => {
                keep(skb, policy_ref, packet, direction, NO_RULE, changes);
                return PacketOutcome::Exempt;
            }
            Peer::Task(other) => private = sends && is_private(other, packet.event.remote_port),
            Peer::Host => {}
        }
    }
    let behind_host_veth = !local && policy_ref.is_behind_host_veth();
    if behind_host_veth && !sends && matches!(packet.class, Class::Udp) {
        private = is_private(packet.event.task, packet.event.local_port);
    }
    packet.event.policy = policy_ref.policy(direction);
    let verdict = if private {
        Verdict::new(false, false, Verdict::PRIVATE_PORT)
    } else {
        decide(packet, packet.key(direction))
    };
    packet.event.verdict = verdict.0;
    let mut judged_by = direction;
    if verdict.allows() {
        if local || behind_host_veth || !policy_ref.is_open(other_way) {
            record(packet, direction as u8);
        }
        // The process at the other end of loopback, and the declared ports, may change between two datagrams.
        if !local && !(behind_host_veth && !sends) && !verdict.is_reported() {
            keep(skb, policy_ref, packet, direction, verdict.rule(), changes);
        }
    } else if was_recorded(packet, other_way as u8) != 0 {
        packet.event.policy = policy_ref.policy(other_way);
        let answer = decide(packet, packet.request_key(other_way));
        if answer.allows() {
            packet.event.verdict = answer.0;
            judged_by = other_way;
        } else {
            packet.event.policy = policy_ref.policy(direction);
        }
    }
    count_and_send(packet, judged_by);
    PacketOutcome::new(
        Verdict(packet.event.verdict).allows(),
        policy_ref,
        direction,
    )
}

/// Caches the verdict on a passing datagram with its socket, if the socket is a UDP socket.
#[inline(always)]
fn keep(
    skb: *mut __sk_buff,
    policy_ref: TaskPolicyRef,
    packet: &Packet,
    direction: Direction,
    rule: u32,
    changes: u64,
) {
    // SAFETY: the context is valid for the run of the program.
    let device = unsafe { (*skb).ifindex };
    let Some(socket) = full_socket(skb).filter(|it| is_of(*it, protocol::UDP)) else {
        return;
    };
    if device == LOOPBACK {
        // The other end can cache its verdicts on this socket's datagrams only if this socket has a cookie.
        // SAFETY: the context is valid for the run of the program.
        unsafe { bpf_get_socket_cookie(skb.cast()) };
        if packet.peer.address == 0 {
            return;
        }
    }
    let Some((addresses, ports)) = ends(skb) else {
        return;
    };
    // SAFETY: the storage lives as long as the socket, which the packet holds.
    let Some(state) = (unsafe { socket_state(socket, true).as_mut() }) else {
        return;
    };
    state.task = packet.event.task;
    state.slot = slot_of(packet.event.task);
    let kept = match direction {
        Direction::Ingress => &mut state.datagrams[0],
        Direction::Egress => &mut state.datagrams[1],
    };
    // SAFETY: the place lives as long as the socket. A CPU that finds the mark of another writer does not write, so
    // that two verdicts are never mixed.
    unsafe {
        if exchange(&raw mut kept.valid, CachedDatagram::WRITING) == CachedDatagram::WRITING {
            return;
        }
        kept.addresses = addresses;
        kept.ports = ports;
        kept.device = device;
        kept.until = bpf_jiffies64() + KEPT_TICKS;
        kept.policy = packet.event.policy;
        kept.rule = rule;
        kept.limited = u64::from(policy_ref.is_limited(direction));
        kept.peer = packet.peer;
        exchange(&raw mut kept.valid, changes + 1);
    }
}

/// Replaces a word atomically for all CPUs, and returns the old one.
#[inline(always)]
unsafe fn exchange(place: *mut u64, word: u64) -> u64 {
    let mut word = word;
    // SAFETY: the caller guarantees a valid pointer.
    unsafe {
        asm!("{word} = xchg_64({place} + 0, {word})", place = in(reg) place, word = inout(reg) word);
    }
    word
}

/// Returns the verdict of the packet's policy on `key`. A missing entry refuses.
#[inline(always)]
fn decide(packet: &Packet, key: u32) -> Verdict {
    let remote = u128::from_be_bytes(packet.event.remote);
    let (high, low) = ((remote >> 64) as u64, remote as u64);
    // SAFETY: the function takes any numbers.
    Verdict(unsafe {
        look_up_verdict(packet.event.policy, key, high, low, u32::from(packet.is_v4))
    })
}

/// The verdict of `policy` on `key` at the address with these halves.
///
/// The function is neither inlined nor local to this object. So the kernel verifies it once for all arguments, instead
/// of once for each path that leads to a call.
#[unsafe(no_mangle)]
#[inline(never)]
unsafe extern "C" fn look_up_verdict(
    policy: u32,
    key: u32,
    high: u64,
    low: u64,
    is_v4: u32,
) -> u32 {
    let leaf = if is_v4 != 0 {
        let place = AddressKey4 {
            policy,
            address: (low as u32).to_be_bytes(),
        };
        LEAVES4.get(Key::new(POLICY_BITS + 32, place)).copied()
    } else {
        let address = (u128::from(high) << 64 | u128::from(low)).to_be_bytes();
        let place = AddressKey6 { policy, address };
        LEAVES6.get(Key::new(POLICY_BITS + 128, place)).copied()
    };
    let Some(leaf) = leaf else {
        return Verdict::new(false, false, Verdict::NO_POLICY).0;
    };
    let verdict = search(leaf, key, |index| INTERVALS.get(index).copied());
    if verdict.is_unless_held() && is_held(key, low as u32, is_v4 != 0) {
        return Verdict::new(true, false, Verdict::HELD_PORT).0;
    }
    verdict.0
}

/// Whether an allocation of this node holds the port in `key` at the node's address. The port is published there, or a
/// task in the node's own network has declared it.
#[inline(always)]
fn is_held(key: u32, v4: u32, is_v4: bool) -> bool {
    let port = key as u16;
    if is_v4 {
        let published = PublishedKey {
            address: v4.to_be_bytes(),
            port,
            protocol: if key >> 16 == Class::Tcp as u32 {
                protocol::TCP
            } else {
                protocol::UDP
            },
            pad: 0,
        };
        // SAFETY: the value is not read.
        if unsafe { PUBLISHED.get(published) }.is_some() {
            return true;
        }
    }
    !is_private(NODE, port)
}

/// Counts the verdict of the policy of `begun`, and reports it to the agent if it is to be reported.
#[inline(always)]
fn count_and_send(packet: &mut Packet, begun: Direction) {
    if Verdict(packet.event.verdict).is_reported() {
        // SAFETY: the event is valid, and no other code uses it.
        unsafe { send_verdict(&raw mut packet.event) };
        return;
    }
    // SAFETY: as above.
    unsafe { note_verdict(&raw const packet.event, begun as u32) };
}

/// Counts a verdict that is not reported. The kernel verifies it once for all callers, like [`look_up_verdict`].
#[unsafe(no_mangle)]
#[inline(never)]
unsafe extern "C" fn note_verdict(event: *const VerdictEvent, begun: u32) -> u32 {
    // SAFETY: the verifier ensures that the caller passes an event. It also requires the check for null.
    let Some(event) = (unsafe { event.as_ref() }) else {
        return 0;
    };
    let rule = Verdict(event.verdict).rule();
    let bytes = u64::from(event.bytes);
    let Some(traffic) = traffic_of(event.task) else {
        count_rule(event.task, event.policy, rule, 1, bytes);
        return 0;
    };
    // SAFETY: the entry is this CPU's own part of a map value, which RCU keeps alive.
    let traffic = unsafe { &mut *traffic };
    let [ingress, egress] = &mut traffic.met;
    let met = if begun == Direction::Ingress as u32 {
        ingress
    } else {
        egress
    };
    if met.policy == event.policy && met.rule != rule && met.packets != 0 {
        count_rule(event.task, met.policy, met.rule, met.packets, met.bytes);
    }
    // Cached counts of a policy that the task no longer has are dropped.
    if met.policy != event.policy || met.rule != rule {
        *met = RuleHit {
            policy: event.policy,
            rule,
            packets: 0,
            bytes: 0,
        };
    }
    met.packets += 1;
    met.bytes += bytes;
    0
}

/// Adds to a rule's own counters.
#[inline(never)]
fn count_rule(task: CgroupId, policy: u32, rule: u32, packets: u64, bytes: u64) -> u32 {
    if let Some(counters) = counters_of(RuleKey { task, policy, rule }) {
        counters.packets += packets;
        counters.bytes += bytes;
    }
    0
}

/// A rule's counters, which are created if they do not exist.
#[inline(always)]
fn counters_of<'a>(key: RuleKey) -> Option<&'a mut RuleCounters> {
    let counters = match RULES.get_ptr_mut(key) {
        Some(counters) => Some(counters),
        None => {
            if RULES.insert(key, RuleCounters::default(), 0).is_err() {
                count_lost(LostRecord::Rule);
            }
            RULES.get_ptr_mut(key)
        }
    }?;
    // SAFETY: the entry is this CPU's own part of a map value, which RCU keeps alive.
    Some(unsafe { &mut *counters })
}

/// Counts a verdict, and reports it unless the same rule was reported a moment ago. The kernel verifies it once for all
/// callers.
#[unsafe(no_mangle)]
#[inline(never)]
unsafe extern "C" fn send_verdict(event: *mut VerdictEvent) -> u32 {
    // SAFETY: as in [`note_verdict`].
    let Some(event) = (unsafe { event.as_mut() }) else {
        return 0;
    };
    let key = RuleKey {
        task: event.task,
        policy: event.policy,
        rule: Verdict(event.verdict).rule(),
    };
    let Some(counters) = counters_of(key) else {
        return 0;
    };
    counters.packets += 1;
    counters.bytes += u64::from(event.bytes);
    // SAFETY: the helper has no arguments.
    let now_ns = unsafe { bpf_ktime_get_ns() };
    if now_ns - counters.sent_ns < VERDICT_INTERVAL_NS {
        return 0;
    }
    counters.sent_ns = now_ns;
    event.at_ns = now_ns;
    if VERDICTS.output::<VerdictEvent>(&*event, 0).is_err() {
        count_lost(LostRecord::Verdict);
    }
    0
}

/// The flow of `packet` if `direction` began the exchange.
#[inline(always)]
fn flow(packet: &Packet, direction: u8) -> FlowKey {
    FlowKey {
        task: packet.event.task,
        remote: packet.event.remote,
        remote_port: packet.event.remote_port,
        local_port: packet.event.local_port,
        direction,
        class: packet.class as u8,
        pad: 0,
    }
}

#[inline(never)]
fn record(packet: &Packet, direction: u8) -> u32 {
    let flow = flow(packet, direction);
    // SAFETY: the helper has no arguments.
    let now_ns = unsafe { bpf_ktime_get_coarse_ns() };
    // SAFETY: the value is copied at once.
    let seen_ns = unsafe { FLOWS.get(flow) }.copied().unwrap_or(0);
    if now_ns.wrapping_sub(seen_ns) > FLOW_RENEW_NS {
        // If this fails, answers are refused, as if the flow had been evicted.
        let _: Result<(), i32> = FLOWS.insert(flow, now_ns, 0);
    }
    0
}

/// Whether `direction` began the exchange recently: 1 or 0.
#[inline(never)]
fn was_recorded(packet: &Packet, direction: u8) -> u32 {
    // SAFETY: the value is copied at once.
    let Some(seen_ns) = unsafe { FLOWS.get(flow(packet, direction)) }.copied() else {
        return 0;
    };
    // SAFETY: the helper has no arguments.
    let now_ns = unsafe { bpf_ktime_get_coarse_ns() };
    u32::from(now_ns.wrapping_sub(seen_ns) < FLOW_NS)
}

/// The packet's socket, unless its connection is half-open or half-closed.
#[inline(always)]
fn full_socket(skb: *mut __sk_buff) -> Option<*mut bpf_sock> {
    // SAFETY: the context is valid for the run of the program, and the helper checks the rest.
    let socket = unsafe {
        let socket = (*skb).__bindgen_anon_2.sk;
        if socket.is_null() {
            return None;
        }
        bpf_sk_fullsock(socket)
    };
    (!socket.is_null()).then_some(socket)
}

/// Whether a packet's socket has a connection.
#[inline(always)]
fn is_connected(socket: *mut bpf_sock) -> bool {
    // SAFETY: the packet holds its socket.
    tcp_state::is_connected(unsafe { (*socket).state })
}

/// Whether a packet's socket has this protocol.
#[inline(always)]
fn is_of(socket: *mut bpf_sock, protocol: u8) -> bool {
    // SAFETY: the packet holds its socket.
    unsafe { (*socket).protocol == u32::from(protocol) }
}

/// Returns the state of a socket; null if it has none and `make` is false.
#[inline(always)]
fn socket_state(socket: *mut bpf_sock, make: bool) -> *mut SocketState {
    let flags = if make {
        u64::from(BPF_SK_STORAGE_GET_F_CREATE)
    } else {
        0
    };
    let map = (&raw const SOCKETS).cast_mut().cast::<c_void>();
    // SAFETY: the socket is the packet's.
    unsafe { bpf_sk_storage_get(map, socket.cast(), core::ptr::null_mut(), flags) }
        .cast::<SocketState>()
}

/// Returns the other end of a packet on the loopback interface, as [`Peer::of`] reads it.
#[inline(always)]
fn peer(skb: *mut __sk_buff, packet: &mut Packet) -> u64 {
    // SAFETY: both pointers are valid.
    unsafe { find_peer(skb, packet) }
}

/// The kernel verifies it once for all callers, like [`look_up_verdict`].
#[unsafe(no_mangle)]
#[inline(never)]
unsafe extern "C" fn find_peer(skb: *mut __sk_buff, packet: *mut Packet) -> u64 {
    // SAFETY: the verifier ensures that the caller passes a packet. It also requires the check for null.
    let Some(packet) = (unsafe { packet.as_mut() }) else {
        return Peer::HOST;
    };
    let level = fact!(task_level) as i32;
    let known_again = fact!(sock_has_mark) != 0 && matches!(packet.class, Class::Udp);
    // SAFETY: the context is valid for the run of the program; the helper takes any level.
    let alloc = unsafe { bpf_skb_ancestor_cgroup_id(skb, level - 1) };
    let sk = look_up(skb.cast(), packet);
    if sk.is_null() {
        return Peer::HOST;
    }
    // SAFETY: the socket was found and is held until it is released, once.
    let (theirs, task) = unsafe {
        let theirs = bpf_sk_ancestor_cgroup_id(sk.cast(), level - 1);
        let task = bpf_sk_ancestor_cgroup_id(sk.cast(), level);
        if theirs == alloc && known_again {
            mark_peer(packet, sk);
        }
        bpf_sk_release(sk.cast());
        (theirs, task)
    };
    if theirs == alloc && alloc != 0 {
        return Peer::OWN;
    }
    // SAFETY: the value is not read.
    if task != 0 && unsafe { TASK_POLICY.get(task) }.is_some() {
        return task;
    }
    Peer::HOST
}

/// Records the values by which the socket can be recognised later.
#[inline(always)]
fn mark_peer(packet: &mut Packet, socket: *mut bpf_sock) {
    packet.peer.address = socket as u64;
    // The verifier forbids arithmetic on a socket pointer, but not on a number. The values are read in two parts,
    // because all of them at once have no room on the stack next to the callers' data.
    // SAFETY: the packet is alive; the helper checks the address and fails instead of faulting.
    let (binding, cookie) = unsafe {
        let place = (&raw const packet.peer.address).read_volatile() as *const u64;
        (
            bpf_probe_read_kernel(place.cast::<[u64; 3]>()),
            bpf_probe_read_kernel(place.wrapping_add(PeerMark::WORDS - 1)),
        )
    };
    packet.peer = match (binding, cookie) {
        (Ok(binding), Ok(cookie)) => PeerMark::new(packet.peer.address, binding, cookie),
        _ => None,
    }
    .unwrap_or_default();
}

#[inline(always)]
fn look_up(ctx: *mut c_void, packet: &Packet) -> *mut bpf_sock {
    // SAFETY: the tuple consists of integers. Every part that the helper reads is written below.
    let mut tuple: bpf_sock_tuple = unsafe { core::mem::zeroed() };
    let (near, far) = (&packet.local, &packet.event.remote);
    let near_port = packet.event.local_port.to_be();
    let far_port = packet.event.remote_port.to_be();
    let size = if packet.is_v4 {
        tuple.__bindgen_anon_1.ipv4 = bpf_sock_tuple__bindgen_ty_1__bindgen_ty_1 {
            saddr: u32::from_ne_bytes(low(near)),
            daddr: u32::from_ne_bytes(low(far)),
            sport: near_port,
            dport: far_port,
        };
        12
    } else {
        tuple.__bindgen_anon_1.ipv6 = bpf_sock_tuple__bindgen_ty_1__bindgen_ty_2 {
            saddr: words(near),
            daddr: words(far),
            sport: near_port,
            dport: far_port,
        };
        36
    };
    let netns = i64::from(BPF_F_CURRENT_NETNS) as u64;
    // SAFETY: the tuple has the given length and is on this program's stack.
    unsafe {
        if matches!(packet.class, Class::Tcp) {
            bpf_sk_lookup_tcp(ctx, &raw mut tuple, size, netns, 0)
        } else {
            bpf_sk_lookup_udp(ctx, &raw mut tuple, size, netns, 0)
        }
    }
}

#[inline(always)]
fn words(bytes: &[u8; 16]) -> [u32; 4] {
    let word =
        |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    [word(0), word(4), word(8), word(12)]
}

/// Whether `task` has not declared `port`.
#[inline(always)]
fn is_private(task: CgroupId, port: u16) -> bool {
    let key = PortKey {
        task,
        port: u64::from(port),
    };
    // SAFETY: the value is not read.
    unsafe { PORTS.get(key) }.is_none()
}

/// Refuses an IPv4 connection whose packets the policy would refuse.
#[cgroup_sock_addr(connect4)]
fn connect4(ctx: SockAddrContext) -> i32 {
    // SAFETY: the context is valid for the run of the program.
    let address = unsafe { (*ctx.sock_addr).user_ip4 };
    connect(&ctx, mapped(address.to_ne_bytes()))
}

/// Refuses an IPv6 connection whose packets the policy would refuse.
#[cgroup_sock_addr(connect6)]
fn connect6(ctx: SockAddrContext) -> i32 {
    // SAFETY: the context is valid for the run of the program. It is read word by word, as the
    // kernel demands.
    let words = unsafe {
        let place = (&raw const (*ctx.sock_addr).user_ip6).cast::<u32>();
        [
            place.read_volatile(),
            place.add(1).read_volatile(),
            place.add(2).read_volatile(),
            place.add(3).read_volatile(),
        ]
    };
    let mut address = [0; 16];
    address[0..4].copy_from_slice(&words[0].to_ne_bytes());
    address[4..8].copy_from_slice(&words[1].to_ne_bytes());
    address[8..12].copy_from_slice(&words[2].to_ne_bytes());
    address[12..16].copy_from_slice(&words[3].to_ne_bytes());
    connect(&ctx, address)
}

/// Returns 1 to let the call continue, or 0 to make it fail with `EPERM`.
#[inline(always)]
fn connect(ctx: &SockAddrContext, remote: [u8; 16]) -> i32 {
    if !is_active() {
        return 1;
    }
    let Some(task) = current_task() else { return 1 };
    let Some(policy_ref) = policy_ref_of(task) else {
        return 1;
    };
    // SAFETY: the context is valid for the run of the program.
    let (kind, port) = unsafe { ((*ctx.sock_addr).type_, (*ctx.sock_addr).user_port) };
    if kind != STREAM {
        return 1;
    }
    let mut packet = Packet::new(task, Direction::Egress);
    packet.class = Class::Tcp;
    packet.is_v4 = is_mapped(&remote);
    packet.local = remote;
    packet.event.remote = remote;
    packet.event.remote_port = u16::from_be(port as u16);
    packet.event.protocol = protocol::TCP;
    packet.event.policy = policy_ref.egress;
    let verdict = decide(&packet, packet.key(Direction::Egress));
    if verdict.allows() {
        return 1;
    }
    let listener = look_up(ctx.sock_addr.cast(), &packet);
    if !listener.is_null() {
        // SAFETY: the socket was found and is held until here.
        unsafe { bpf_sk_release(listener.cast()) };
        // The listener may belong to the same allocation. The packet programs will decide.
        return 1;
    }
    packet.event.verdict = verdict.0;
    count_and_send(&mut packet, Direction::Egress);
    0
}
