//! Traffic of tasks' sockets, counted at the root of the node's tree, and what becomes of their TCP connections.
//! `policy.rs` says what may pass.

use aya_ebpf::{
    bindings::BPF_F_NO_PREALLOC,
    helpers::bpf_skb_ancestor_cgroup_id,
    macros::{btf_tracepoint, cgroup_skb, map},
    maps::PerCpuHashMap,
    programs::{BtfTracePointContext, SkBuffContext},
};
use muster_ebpf_common::{
    CgroupId,
    limits::TASKS_MAX,
    net::{NetCounters, PROTOCOL_TCP, tcp_state},
    policy::Direction,
};

use crate::{
    kernel::{KernelPtr, fact, is_active},
    policy,
};

/// Counters by task. The agent makes and removes the entries.
#[map]
static NET: PerCpuHashMap<CgroupId, NetCounters> =
    PerCpuHashMap::pinned(TASKS_MAX, BPF_F_NO_PREALLOC);

/// What a `cgroup_skb` program returns to let a packet through.
const PASS: i32 = 1;

/// What it returns to have the packet thrown away; who sends it is told `EPERM`.
const DROP: i32 = 0;

/// Judges and counts a packet to a task.
#[cgroup_skb(ingress)]
fn net_ingress(ctx: SkBuffContext) -> i32 {
    let Some(task) = task_of(&ctx) else {
        return PASS;
    };
    let allowed = policy::allows(&ctx, task, Direction::Ingress);
    if let Some(counters) = NET.get_ptr_mut(task) {
        // SAFETY: the entry is this CPU's own part of a map value, which RCU keeps alive.
        let counters = unsafe { &mut *counters };
        let (bytes, packets) = size(&ctx);
        if allowed {
            counters.ingress_bytes += bytes;
            counters.ingress_packets += packets;
        } else {
            counters.ingress_denied += packets;
        }
    }
    if allowed { PASS } else { DROP }
}

/// Judges and counts a packet of a task.
#[cgroup_skb(egress)]
fn net_egress(ctx: SkBuffContext) -> i32 {
    let Some(task) = task_of(&ctx) else {
        return PASS;
    };
    let allowed = policy::allows(&ctx, task, Direction::Egress);
    if let Some(counters) = NET.get_ptr_mut(task) {
        // SAFETY: the entry is this CPU's own part of a map value, which RCU keeps alive.
        let counters = unsafe { &mut *counters };
        let (bytes, packets) = size(&ctx);
        if allowed {
            counters.egress_bytes += bytes;
            counters.egress_packets += packets;
        } else {
            counters.egress_denied += packets;
        }
    }
    if allowed { PASS } else { DROP }
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
    NET.get_ptr_mut(socket.follow(fact!(sock_cgroup))?.task_of_cgroup()?)
}

/// The task whose socket the packet belongs to, if this load of the programs is to look at it.
#[inline(always)]
fn task_of(ctx: &SkBuffContext) -> Option<CgroupId> {
    if !is_active() {
        return None;
    }
    let level = fact!(task_level) as i32;
    // SAFETY: the context is valid for the run of the program; the helper takes any level.
    let task = unsafe { bpf_skb_ancestor_cgroup_id(ctx.skb.skb, level) };
    (task != 0).then_some(task)
}

/// Bytes of the packet, and how many packets it is on the wire.
#[inline(always)]
fn size(ctx: &SkBuffContext) -> (u64, u64) {
    let skb = ctx.skb.skb;
    // SAFETY: the context is valid for the run of the program.
    let (bytes, segments) = unsafe { ((*skb).len, (*skb).gso_segs) };
    (u64::from(bytes), u64::from(segments.max(1)))
}
