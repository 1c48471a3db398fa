//! Traffic of tasks' sockets, counted at the root of the node's tree. Every packet may pass.

use aya_ebpf::{
    bindings::BPF_F_NO_PREALLOC,
    helpers::bpf_skb_ancestor_cgroup_id,
    macros::{cgroup_skb, map},
    maps::PerCpuHashMap,
    programs::SkBuffContext,
};
use muster_ebpf_common::{CgroupId, limits::TASKS_MAX, net::NetCounters};

use crate::kernel::{fact, is_active};

/// Counters by task. The agent makes and removes the entries.
#[map]
static NET: PerCpuHashMap<CgroupId, NetCounters> =
    PerCpuHashMap::pinned(TASKS_MAX, BPF_F_NO_PREALLOC);

/// What a `cgroup_skb` program returns to let a packet through.
const PASS: i32 = 1;

/// Counts a received packet.
#[cgroup_skb(ingress)]
fn net_ingress(ctx: SkBuffContext) -> i32 {
    if let Some((counters, bytes, packets)) = counted(&ctx) {
        // SAFETY: the entry is this CPU's own part of a map value, which RCU keeps alive.
        let counters = unsafe { &mut *counters };
        counters.ingress_bytes += bytes;
        counters.ingress_packets += packets;
    }
    PASS
}

/// Counts a sent packet.
#[cgroup_skb(egress)]
fn net_egress(ctx: SkBuffContext) -> i32 {
    if let Some((counters, bytes, packets)) = counted(&ctx) {
        // SAFETY: the entry is this CPU's own part of a map value, which RCU keeps alive.
        let counters = unsafe { &mut *counters };
        counters.egress_bytes += bytes;
        counters.egress_packets += packets;
    }
    PASS
}

/// This CPU's counters of the socket's task, and what to add to them.
#[inline(always)]
fn counted(ctx: &SkBuffContext) -> Option<(*mut NetCounters, u64, u64)> {
    if !is_active() {
        return None;
    }
    let skb = ctx.skb.skb;
    let level = fact!(task_level) as i32;
    // SAFETY: the context is valid for the run of the program; the helper takes any level.
    let task = unsafe { bpf_skb_ancestor_cgroup_id(skb, level) };
    if task == 0 {
        return None;
    }
    let counters = NET.get_ptr_mut(task)?;
    // SAFETY: the context is valid for the run of the program.
    let (bytes, segments) = unsafe { ((*skb).len, (*skb).gso_segs) };
    Some((counters, u64::from(bytes), u64::from(segments.max(1))))
}
