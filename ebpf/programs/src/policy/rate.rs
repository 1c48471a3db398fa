//! The rate limits of a task: `muster_ebpf_common::rate` defines the bucket.

use aya_ebpf::{
    bindings::BPF_F_NO_PREALLOC, helpers::bpf_ktime_get_ns, macros::map, maps::HashMap,
};
use core::arch::asm;
use muster_ebpf_common::{
    CgroupId,
    limits::TASKS_MAX,
    policy::Direction,
    rate::{Bucket, RateVerdict, Rates},
};

/// The buckets of tasks that have a rate. The agent makes and removes the entries.
#[map]
static RATES: HashMap<CgroupId, Rates> = HashMap::pinned(TASKS_MAX, BPF_F_NO_PREALLOC);

/// Returns the decision about a packet of `bytes` bytes. If the packet passes, its cost is added to the task's bucket.
#[inline(always)]
pub(crate) fn pace(task: CgroupId, direction: Direction, bytes: u32) -> RateVerdict {
    let Some(rates) = RATES.get_ptr_mut(task) else {
        return RateVerdict::Pass;
    };
    // SAFETY: the entry is a map value, which RCU keeps alive; its words are read and written whole.
    unsafe {
        let bucket = match direction {
            Direction::Ingress => &raw mut (*rates).ingress,
            Direction::Egress => &raw mut (*rates).egress,
        };
        let paid = &raw mut (*bucket).paid_ns;
        let now_ns = bpf_ktime_get_ns();
        let paid_ns = paid.read_volatile();
        if paid_ns < now_ns {
            // The bucket is idle. A concurrent write of another CPU is lost, which is harmless because an idle bucket
            // has room.
            paid.write_volatile(now_ns);
        }
        let pace = Bucket::pace(paid_ns, now_ns);
        if !matches!(pace, RateVerdict::Over) {
            add(paid, Bucket::cost_ns((*bucket).ps_per_byte, bytes));
        }
        pace
    }
}

/// Adds atomically to a word that other CPUs also add to.
#[inline(always)]
unsafe fn add(to: *mut u64, what: u64) {
    // SAFETY: the caller guarantees a valid pointer.
    unsafe {
        asm!("lock *(u64 *)({to} + 0) += {what}", to = in(reg) to, what = in(reg) what);
    }
}
