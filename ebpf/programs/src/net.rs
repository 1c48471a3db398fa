//! Traffic of tasks' sockets, counted at the root of the node's tree, and the states of their TCP connections.
//! `policy.rs` decides which packets may pass.

use aya_ebpf::{
    bindings::{__sk_buff, BPF_F_NO_PREALLOC},
    helpers::bpf_skb_ancestor_cgroup_id,
    macros::{btf_tracepoint, cgroup_skb, map},
    maps::{PerCpuArray, PerCpuHashMap},
    programs::{BtfTracePointContext, SkBuffContext},
};
use muster_ebpf_common::{
    CgroupId, NO_SLOT,
    limits::{SLOTS_MAX, TASKS_MAX},
    net::{NetCounters, NetSlot, PROTOCOL_TCP, Traffic, tcp_state},
    policy::Direction,
    rate::RateVerdict,
};

use crate::{
    kernel::{KernelPtr, fact, is_active, slot_of},
    policy::{self, PacketOutcome, rate},
};

/// Counters of tasks that have no slot. The agent makes and removes the entries.
#[map]
static NET: PerCpuHashMap<CgroupId, Traffic> = PerCpuHashMap::pinned(TASKS_MAX, BPF_F_NO_PREALLOC);

/// Counters by slot. The agent writes the owner of each.
#[map]
static NET_SLOTS: PerCpuArray<NetSlot> = PerCpuArray::pinned(SLOTS_MAX, 0);

/// The return value of a `cgroup_skb` program that lets a packet through.
const PASS: i32 = 1;

/// Judges and counts a packet to a task.
#[cgroup_skb(ingress)]
fn net_ingress(ctx: SkBuffContext) -> i32 {
    // A sender is not notified of the result on the receiving side, so only the lowest bit counts.
    judge(&ctx, Direction::Ingress) & PASS
}

/// Judges and counts a packet of a task.
#[cgroup_skb(egress)]
fn net_egress(ctx: SkBuffContext) -> i32 {
    judge(&ctx, Direction::Egress)
}

#[inline(always)]
fn judge(ctx: &SkBuffContext, direction: Direction) -> i32 {
    if !is_active() {
        return PASS;
    }
    let skb = ctx.skb.skb;
    if let Some(settled) = policy::settled(skb, direction)
        && let Some(traffic) = traffic_at(settled.state.slot, settled.state.task)
    {
        // SAFETY: the entry is this CPU's own part of a map value, which RCU keeps alive.
        let traffic = unsafe { &mut *traffic };
        if policy::count_settled(settled, &mut traffic.met, size(skb).0) {
            let end = end(
                PacketOutcome::settled(settled),
                settled.state.task,
                direction,
                skb,
            );
            count(&mut traffic.counters, direction, skb, end);
            return end as i32;
        }
    }
    let level = fact!(task_level) as i32;
    // SAFETY: the context is valid for the run of the program; the helper takes any level.
    let task = unsafe { bpf_skb_ancestor_cgroup_id(skb, level) };
    if task == 0 {
        return PASS;
    }
    let judged = policy::judge_packet(ctx, task, direction);
    let end = end(judged, task, direction, skb);
    if let Some(traffic) = traffic_of(task) {
        // SAFETY: as above.
        count(unsafe { &mut (*traffic).counters }, direction, skb, end);
    }
    end as i32
}

/// The verdict on a packet for the kernel. The second bit makes the sender slow down.
#[derive(Clone, Copy)]
#[repr(i32)]
enum End {
    /// The packet is dropped; the sender gets `EPERM`.
    Refused = 0,
    Pass = 1,
    /// The packet exceeded the rate and is dropped; the sender tries again.
    Over = 2,
    /// The packet passes, and the sender slows down.
    Congested = 3,
}

/// This CPU's part of a task's traffic, if the task is registered.
#[inline(always)]
pub(crate) fn traffic_of(task: CgroupId) -> Option<*mut Traffic> {
    traffic_at(slot_of(task), task)
}

/// The traffic of a task with a known slot; `None` also if the slot has another owner since.
#[inline(always)]
fn traffic_at(slot: u64, task: CgroupId) -> Option<*mut Traffic> {
    if slot == NO_SLOT {
        return NET.get_ptr_mut(task);
    }
    let slot = NET_SLOTS.get_ptr_mut(slot as u32)?;
    // SAFETY: the entry is this CPU's own part of a map value, which lives as long as the map.
    let slot = unsafe { &mut *slot };
    (slot.task == task).then_some(&raw mut slot.traffic)
}

/// Returns the kernel's verdict for the outcome of a packet.
#[inline(always)]
fn end(judged: PacketOutcome, task: CgroupId, direction: Direction, skb: *mut __sk_buff) -> End {
    match judged {
        PacketOutcome::Refused => End::Refused,
        PacketOutcome::Passes | PacketOutcome::Exempt => End::Pass,
        PacketOutcome::Limited => {
            // SAFETY: the context is valid for the run of the program.
            let bytes = unsafe { (*skb).len };
            match rate::pace(task, direction, bytes) {
                RateVerdict::Pass => End::Pass,
                RateVerdict::Congested => End::Congested,
                RateVerdict::Over => End::Over,
            }
        }
    }
}

#[inline(always)]
fn count(counters: &mut NetCounters, direction: Direction, skb: *mut __sk_buff, end: End) {
    let (bytes, packets) = size(skb);
    match (direction, end) {
        (Direction::Ingress, End::Pass | End::Congested) => {
            counters.ingress_bytes += bytes;
            counters.ingress_packets += packets;
        }
        (Direction::Egress, End::Pass | End::Congested) => {
            counters.egress_bytes += bytes;
            counters.egress_packets += packets;
        }
        (Direction::Ingress, End::Refused) => counters.ingress_denied += packets,
        (Direction::Egress, End::Refused) => counters.egress_denied += packets,
        (Direction::Ingress, End::Over) => counters.ingress_limited += packets,
        (Direction::Egress, End::Over) => counters.egress_limited += packets,
    }
}

/// Counts an established connection.
#[btf_tracepoint(function = "inet_sock_set_state")]
fn inet_sock_set_state(ctx: BtfTracePointContext) -> i32 {
    let (before, after): (i32, i32) = (ctx.arg(1), ctx.arg(2));
    if after != tcp_state::ESTABLISHED || !is_active() {
        return 0;
    }
    let socket = KernelPtr::new(ctx.arg(0));
    if socket.read(fact!(sock_protocol)) != Some(PROTOCOL_TCP) {
        return 0;
    }
    if let Some(counters) = counters_of(socket) {
        // SAFETY: the entry is this CPU's own part of a map value, which RCU keeps alive.
        let counters = unsafe { &mut *counters };
        if before == tcp_state::SYN_SENT {
            counters.tcp_opened += 1;
        } else if before == tcp_state::SYN_RECV {
            counters.tcp_accepted += 1;
        }
    }
    0
}

/// Counts a retransmitted segment.
#[btf_tracepoint(function = "tcp_retransmit_skb")]
fn tcp_retransmit_skb(ctx: BtfTracePointContext) -> i32 {
    if !is_active() {
        return 0;
    }
    if let Some(counters) = counters_of(KernelPtr::new(ctx.arg(0))) {
        // SAFETY: the entry is this CPU's own part of a map value, which RCU keeps alive.
        unsafe { (*counters).tcp_retransmits += 1 };
    }
    0
}

/// This CPU's counters of the task that the socket belongs to, if it is registered.
#[inline(always)]
fn counters_of(socket: KernelPtr) -> Option<*mut NetCounters> {
    let traffic = traffic_of(socket.follow(fact!(sock_cgroup))?.task_of_cgroup()?)?;
    // SAFETY: nothing is read; the entry is a map value, which RCU keeps alive.
    Some(unsafe { &raw mut (*traffic).counters })
}

/// The bytes of the packet, and its number of packets on the wire.
#[inline(always)]
fn size(skb: *mut __sk_buff) -> (u64, u64) {
    // SAFETY: the context is valid for the run of the program.
    let (bytes, segments) = unsafe { ((*skb).len, (*skb).gso_segs) };
    (u64::from(bytes), u64::from(segments.max(1)))
}
