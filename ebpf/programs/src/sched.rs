//! CPU time, context switches and waiting for a CPU.
//!
//! Time is charged when a CPU switches away from a thread, by the kernel's own clock of threads. A thread without a
//! switch is charged by `charge_running`, which the agent runs on a CPU when it collects. A switch calls no helper if
//! its CPU has cached the cgroup. On a machine with mitigations for its processor's returns, each helper call would
//! cost a tenth of the promised time of a switch.

use aya_ebpf::{
    bindings::BPF_F_NO_PREALLOC,
    helpers::generated::bpf_get_current_task_btf,
    macros::{btf_tracepoint, map, raw_tracepoint},
    maps::{Array, PerCpuArray, PerCpuHashMap},
    programs::{BtfTracePointContext, RawTracePointContext},
};
use muster_ebpf_common::{
    CgroupId, LostRecord, NO_SLOT,
    limits::{SEEN_MAX, SLOTS_MAX, TASKS_MAX, WAITS},
    sched::{CachedCgroup, CpuState, SchedCounters, SchedSlot, is_voluntary, last_wait, wait_mark},
};

use crate::kernel::{KernelPtr, count_lost, current_task, fact, is_active, registrations, slot_of};

/// Counters of tasks that have no slot. The agent makes and removes the entries.
#[map]
static SCHED: PerCpuHashMap<CgroupId, SchedCounters> =
    PerCpuHashMap::pinned(TASKS_MAX, BPF_F_NO_PREALLOC);

/// Counters by slot. The agent writes the owner of each.
#[map]
static SCHED_SLOTS: PerCpuArray<SchedSlot> = PerCpuArray::pinned(SLOTS_MAX, 0);

/// The cgroups that this CPU has seen, by the low bits of their ids.
#[map]
static CGROUP_CACHE: PerCpuArray<CachedCgroup> = PerCpuArray::pinned(SEEN_MAX, 0);

/// The time from which the running thread is charged.
#[map]
static CPUS: PerCpuArray<CpuState> = PerCpuArray::pinned(1, 0);

/// The total wait of each thread of a task when it last left its CPU, by the low bits of the thread's id.
#[map]
static WAITED: Array<u64> = Array::pinned(WAITS, 0);

/// Charges the thread that a CPU switches away from.
#[btf_tracepoint(function = "sched_switch")]
fn sched_switch(ctx: BtfTracePointContext) -> i32 {
    if !is_active() {
        return 0;
    }
    let preempted = ctx.arg::<u8>(0) != 0;
    let prev = KernelPtr::new(ctx.arg(1));
    let next = KernelPtr::new(ctx.arg(2));
    let prev_state: u32 = ctx.arg(3);

    let next_pid: u32 = next.field(fact!(task_pid));
    // The idle thread is not charged, and some kernels do not record its start time.
    let now_ns: u64 = if next_pid != 0 {
        next.field(fact!(task_exec_start))
    } else {
        prev.field(fact!(task_exec_start))
    };
    let Some(ran_ns) = charge_cpu(now_ns, Some(next_pid)) else {
        return 0;
    };
    let pid: u32 = prev.field(fact!(task_pid));
    if pid == 0 {
        return 0;
    }
    if let Some(counters) = counters_of(prev) {
        // SAFETY: the entry is this CPU's own part of a map value, which RCU keeps alive while the
        // program runs; nothing else writes it on this CPU while interrupts are off.
        let counters = unsafe { &mut *counters };
        counters.cpu_ns += ran_ns;
        if is_voluntary(preempted, u64::from(prev_state)) {
            counters.switches_voluntary += 1;
        } else {
            counters.switches_involuntary += 1;
        }
        charge_wait(prev, pid, counters);
    }
    0
}

/// Counts the time that `thread`, the current one, waited for the CPU that it leaves.
#[inline(always)]
fn charge_wait(thread: KernelPtr, pid: u32, counters: &mut SchedCounters) {
    if fact!(task_sched_info) == 0 {
        return;
    }
    // The number of runs and the total wait for them are the structure's first two fields, of 64 bits each.
    let runs: u64 = thread.field(fact!(task_sched_info));
    let waited_ns: u64 = thread.field(fact!(task_sched_info) + 8);
    let Some(mark) = WAITED.get_ptr_mut(pid % WAITS) else {
        return;
    };
    // SAFETY: the entry is in the map for ever; words are read and written whole.
    let before = unsafe { mark.read_volatile() };
    // SAFETY: as above.
    unsafe { mark.write_volatile(wait_mark(pid, waited_ns)) };
    match last_wait(before, pid, waited_ns, runs) {
        Some(wait_ns) => counters.waits.record(wait_ns),
        // If the place was empty, the thread began to run outside of the counted tasks.
        None if before != 0 => count_lost(LostRecord::Wait),
        None => {}
    }
}

/// Charges the running thread without a switch, up to the time at which the kernel last charged it, which is the last
/// clock tick. The program is never attached: the agent runs it.
#[raw_tracepoint]
fn charge_running(_ctx: RawTracePointContext) -> i32 {
    if !is_active() {
        return 0;
    }
    // SAFETY: the helper has no arguments.
    let thread = KernelPtr::new(unsafe { bpf_get_current_task_btf() }.cast());
    let pid: u32 = thread.field(fact!(task_pid));
    if pid == 0 {
        return 0;
    }
    if let Some(ran_ns) = charge_cpu(thread.field(fact!(task_exec_start)), None)
        && let Some(counters) = counters_of(thread)
    {
        // SAFETY: as in `sched_switch`; the kernel runs this on the CPU with interrupts off.
        unsafe { (*counters).cpu_ns += ran_ns };
    }
    0
}

/// Sets this CPU's clock and returns by how much it advanced; `None` the first time.
#[inline(always)]
fn charge_cpu(now_ns: u64, next_pid: Option<u32>) -> Option<u64> {
    let cpu = CPUS.get_ptr_mut(0)?;
    // SAFETY: the slot is this CPU's own and lives as long as the map.
    let cpu = unsafe { &mut *cpu };
    let since_ns = cpu.charged_ns;
    cpu.charged_ns = now_ns;
    if let Some(pid) = next_pid {
        cpu.pid = u64::from(pid);
    }
    (since_ns != 0).then(|| now_ns.saturating_sub(since_ns))
}

/// This CPU's counters of the task of `thread`, the current one, if the task is registered.
#[inline(always)]
fn counters_of(thread: KernelPtr) -> Option<*mut SchedCounters> {
    let cgroup: CgroupId = thread
        .structure(fact!(task_cgroups))
        .structure(fact!(css_set_dfl_cgrp))
        .structure(fact!(cgroup_kn))
        .field(fact!(kernfs_node_id));
    let seen = CGROUP_CACHE.get_ptr_mut(cgroup as u32 % SEEN_MAX)?;
    // SAFETY: the place is this CPU's own and lives as long as the map.
    let seen = unsafe { &mut *seen };
    let registrations = registrations();
    if seen.cgroup != cgroup || seen.registrations != registrations {
        // The count was read before the look-up, so a later registration invalidates the entry.
        *seen = cgroup_facts(cgroup, registrations);
    }
    if seen.task == 0 {
        return None;
    }
    if seen.slot == NO_SLOT {
        return SCHED.get_ptr_mut(seen.task);
    }
    let slot = SCHED_SLOTS.get_ptr_mut(seen.slot as u32)?;
    // SAFETY: as in `sched_switch`.
    let slot = unsafe { &mut *slot };
    (slot.task == seen.task).then_some(&raw mut slot.counters)
}

/// Returns the facts about the current thread's cgroup.
#[inline(always)]
fn cgroup_facts(cgroup: CgroupId, registrations: u64) -> CachedCgroup {
    let task = current_task().unwrap_or(0);
    let slot = slot_of(task);
    let is_registered = slot != NO_SLOT || SCHED.get_ptr(task).is_some();
    CachedCgroup {
        cgroup,
        registrations,
        task: if is_registered { task } else { 0 },
        slot,
    }
}
