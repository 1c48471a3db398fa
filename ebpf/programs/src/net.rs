//! Traffic of tasks' sockets, counted at the root of the node's tree, and what becomes of their TCP connections.
//! `policy.rs` says what may pass.

use aya_ebpf::{
    bindings::{__sk_buff, BPF_F_NO_PREALLOC},
    helpers::bpf_skb_ancestor_cgroup_id,
    macros::{btf_tracepoint, cgroup_skb, map},
    maps::PerCpuHashMap,
    programs::{BtfTracePointContext, SkBuffContext},
};
use muster_ebpf_common::{
    CgroupId,
    limits::TASKS_MAX,
    net::{NetCounters, PROTOCOL_TCP, Traffic, tcp_state},
    policy::Direction,
};

use crate::{
    kernel::{KernelPtr, fact, is_active},
    policy,
};

/// Counters by task. The agent makes and removes the entries.
#[map]
pub(crate) static NET: PerCpuHashMap<CgroupId, Traffic> =
    PerCpuHashMap::pinned(TASKS_MAX, BPF_F_NO_PREALLOC);

/// What a `cgroup_skb` program returns to let a packet through.
const PASS: i32 = 1;

/// What it returns to have the packet thrown away; who sends it is told `EPERM`.
const DROP: i32 = 0;

/// Judges and counts a packet to a task.
#[cgroup_skb(ingress)]
fn net_ingress(ctx: SkBuffContext) -> i32 {
    judge(&ctx, Direction::Ingress)
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
    if let Some(state) = policy::settled(skb)
        && let Some(traffic) = NET.get_ptr_mut(state.task)
    {
        // SAFETY: the entry is this CPU's own part of a map value, which RCU keeps alive.
        let traffic = unsafe { &mut *traffic };
        if policy::count_settled(state, &mut traffic.met, size(skb).0) {
            count(&mut traffic.counters, direction, skb, true);
            return PASS;
        }
    }
    let level = fact!(task_level) as i32;
    // SAFETY: the context is valid for the run of the program; the helper takes any level.
    let task = unsafe { bpf_skb_ancestor_cgroup_id(skb, level) };
    if task == 0 {
        return PASS;
    }
    let allowed = policy::allows(ctx, task, direction);
    if let Some(traffic) = NET.get_ptr_mut(task) {
        // SAFETY: as above.
        count(unsafe { &mut (*traffic).counters }, direction, skb, allowed);
    }
    if allowed { PASS } else { DROP }
}

#[inline(always)]
fn count(counters: &mut NetCounters, direction: Direction, skb: *mut __sk_buff, allowed: bool) {
    let (bytes, packets) = size(skb);
    match (direction, allowed) {
        (Direction::Ingress, true) => {
            counters.ingress_bytes += bytes;
            counters.ingress_packets += packets;
        }
        (Direction::Egress, true) => {
            counters.egress_bytes += bytes;
            counters.egress_packets += packets;
        }
        (Direction::Ingress, false) => counters.ingress_denied += packets,
        (Direction::Egress, false) => counters.egress_denied += packets,
    }
}

/// Counts a connection that came about.
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

/// Counts a segment that is sent once more.
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
    let traffic = NET.get_ptr_mut(socket.follow(fact!(sock_cgroup))?.task_of_cgroup()?)?;
    // SAFETY: nothing is read; the entry is a map value, which RCU keeps alive.
    Some(unsafe { &raw mut (*traffic).counters })
}

/// Bytes of the packet, and how many packets it is on the wire.
#[inline(always)]
fn size(skb: *mut __sk_buff) -> (u64, u64) {
    // SAFETY: the context is valid for the run of the program.
    let (bytes, segments) = unsafe { ((*skb).len, (*skb).gso_segs) };
    (u64::from(bytes), u64::from(segments.max(1)))
}
