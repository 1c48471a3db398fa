//! Counts the bytes that tasks read from block devices and write to them.
//!
//! If the `io` controller is in v2, a request carries the cgroup that it belongs to, also for a later write-back by the
//! kernel. Otherwise a request counts for the task whose thread issues it. Later write-backs by the kernel then count
//! for no task.

use aya_ebpf::{
    bindings::BPF_F_NO_PREALLOC,
    helpers::bpf_ktime_get_ns,
    macros::{btf_tracepoint, map},
    maps::{HashMap, PerCpuHashMap},
    programs::BtfTracePointContext,
};
use muster_ebpf_common::{
    CgroupId, LostRecord,
    block::{BlockCounters, InFlightRequest, Operation},
    limits::{IN_FLIGHT_MAX, TASKS_MAX},
};

use crate::kernel::{KernelPtr, count_lost, current_task, fact, is_active};

/// Counters by task. The agent makes and removes the entries.
#[map]
static BLOCK: PerCpuHashMap<CgroupId, BlockCounters> =
    PerCpuHashMap::pinned(TASKS_MAX, BPF_F_NO_PREALLOC);

/// Requests that devices are processing, by address.
#[map]
static IN_FLIGHT: HashMap<u64, InFlightRequest> = HashMap::pinned(IN_FLIGHT_MAX, 0);

/// Records a request of a task.
#[btf_tracepoint(function = "block_rq_issue")]
fn block_rq_issue(ctx: BtfTracePointContext) -> i32 {
    if is_active() {
        let _ = issue(KernelPtr::new(ctx.arg(0)));
    }
    0
}

#[inline(always)]
fn issue(request: KernelPtr) -> Option<()> {
    let task = owner(request)?;
    BLOCK.get_ptr(task)?;
    let flight = InFlightRequest {
        task,
        // SAFETY: the helper has no arguments.
        issued_ns: unsafe { bpf_ktime_get_ns() },
    };
    if IN_FLIGHT.insert(request.address(), flight, 0).is_err() {
        count_lost(LostRecord::Flight);
    }
    Some(())
}

/// Counts the part of a request that a device has completed.
#[btf_tracepoint(function = "block_rq_complete")]
fn block_rq_complete(ctx: BtfTracePointContext) -> i32 {
    if is_active() {
        let _ = complete(KernelPtr::new(ctx.arg(0)), ctx.arg(2));
    }
    0
}

#[inline(always)]
fn complete(request: KernelPtr, bytes: u32) -> Option<()> {
    // SAFETY: the value is copied at once.
    let flight = unsafe { IN_FLIGHT.get(request.address()) }.copied()?;
    let rest: u32 = request.read(fact!(request_data_len))?;
    let is_over = bytes >= rest;
    if is_over {
        let _ = IN_FLIGHT.remove(request.address());
    }
    let kind = Operation::of(request.read(fact!(request_cmd_flags))?);
    let counters = BLOCK.get_ptr_mut(flight.task)?;
    // SAFETY: the entry is this CPU's own part of a map value, which RCU keeps alive.
    let counters = unsafe { &mut *counters };
    let requests = u64::from(is_over);
    match kind {
        Operation::Read => {
            counters.read_bytes += u64::from(bytes);
            counters.reads += requests;
        }
        Operation::Write => {
            counters.write_bytes += u64::from(bytes);
            counters.writes += requests;
        }
        Operation::Other => return None,
    }
    if is_over {
        // SAFETY: the helper has no arguments.
        let now_ns = unsafe { bpf_ktime_get_ns() };
        counters
            .latency
            .record(now_ns.saturating_sub(flight.issued_ns));
    }
    Some(())
}

/// The task that a request belongs to.
#[inline(always)]
fn owner(request: KernelPtr) -> Option<CgroupId> {
    // The verifier knows the fact as a constant and checks only one of the two branches.
    if fact!(io_is_v2) == 0 {
        return current_task();
    }
    request
        .follow(fact!(request_bio))?
        .follow(fact!(bio_blkg))?
        .follow(fact!(blkg_blkcg))?
        .follow(fact!(blkcg_cgroup))?
        .task_of_cgroup()
}
