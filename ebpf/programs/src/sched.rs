//! CPU time, context switches and waiting for a CPU.
//!
//! Time is charged when a CPU leaves a thread. The kernel calls the tracepoint while the thread it
//! leaves is still the current one, so a helper names its cgroup. A thread that is never left is
//! charged by `charge_running`, which the agent runs on a CPU when it collects.

use aya_ebpf::bindings::BPF_F_NO_PREALLOC;
use aya_ebpf::{
    helpers::{bpf_get_current_pid_tgid, bpf_ktime_get_ns},
    macros::{btf_tracepoint, map, raw_tracepoint},
    maps::{Array, PerCpuArray, PerCpuHashMap},
    programs::{BtfTracePointContext, RawTracePointContext},
};
use muster_ebpf_common::{
    CgroupId, Lost,
    limits::{TASKS_MAX, WAITS},
    sched::{CpuState, SchedCounters, is_voluntary, last_wait, wait_mark},
};

use crate::kernel::{KernelPtr, count_lost, current_task, fact, is_active};

/// Counters by task. The agent makes and removes the entries.
#[map]
static SCHED: PerCpuHashMap<CgroupId, SchedCounters> =
    PerCpuHashMap::pinned(TASKS_MAX, BPF_F_NO_PREALLOC);

/// Since when the running thread is charged.
#[map]
static CPUS: PerCpuArray<CpuState> = PerCpuArray::pinned(1, 0);

/// What each thread of a task had waited when it left its CPU last, by the low bits of its id.
#[map]
static WAITED: Array<u64> = Array::pinned(WAITS, 0);

/// Charges the thread a CPU leaves.
#[btf_tracepoint(function = "sched_switch")]
fn sched_switch(ctx: BtfTracePointContext) -> i32 {
    if !is_active() {
        return 0;
    }
    let preempted = ctx.arg::<u8>(0) != 0;
    let next = KernelPtr::new(ctx.arg(2));
    let prev_state: u32 = ctx.arg(3);

    let next_pid: u32 = next.field(fact!(task_pid));
    let Some(ran_ns) = charge_cpu(Some(next_pid)) else {
        return 0;
    };
    if let Some(counters) = current_counters() {
        // SAFETY: the entry is this CPU's own part of a map value, which RCU keeps alive while the
        // program runs; nothing else writes it on this CPU while interrupts are off.
        let counters = unsafe { &mut *counters };
        counters.cpu_ns += ran_ns;
        if is_voluntary(preempted, u64::from(prev_state)) {
            counters.switches_voluntary += 1;
        } else {
            counters.switches_involuntary += 1;
        }
        charge_wait(KernelPtr::new(ctx.arg(1)), counters);
    }
    0
}

/// Counts how long `thread`, the current one, waited for the CPU that it leaves.
#[inline(always)]
fn charge_wait(thread: KernelPtr, counters: &mut SchedCounters) {
    if fact!(task_sched_info) == 0 {
        return;
    }
    // Runs, and how long it waited for them: the structure's first two fields, of 64 bits each.
    let runs: u64 = thread.field(fact!(task_sched_info));
    let waited_ns: u64 = thread.field(fact!(task_sched_info) + 8);
    let pid = bpf_get_current_pid_tgid() as u32;
    let Some(mark) = WAITED.get_ptr_mut(pid % WAITS) else {
        return;
    };
    // SAFETY: the entry is in the map for ever; words are read and written whole.
    let before = unsafe { mark.read_volatile() };
    // SAFETY: as above.
    unsafe { mark.write_volatile(wait_mark(pid, waited_ns)) };
    match last_wait(before, pid, waited_ns, runs) {
        Some(wait_ns) => counters.waits.record(wait_ns),
        // A place that was empty is that of a thread which came from elsewhere.
        None if before != 0 => count_lost(Lost::Wait),
        None => {}
    }
}

/// Charges the thread that is running, without a switch. Never attached: the agent runs it.
#[raw_tracepoint]
fn charge_running(_ctx: RawTracePointContext) -> i32 {
    if !is_active() {
        return 0;
    }
    if let Some(ran_ns) = charge_cpu(None)
        && let Some(counters) = current_counters()
    {
        // SAFETY: as in `sched_switch`; the kernel runs this on the CPU with interrupts off.
        unsafe { (*counters).cpu_ns += ran_ns };
    }
    0
}

/// Starts this CPU's clock again and says what it showed; `None` the first time.
#[inline(always)]
fn charge_cpu(next_pid: Option<u32>) -> Option<u64> {
    let cpu = CPUS.get_ptr_mut(0)?;
    // SAFETY: the slot is this CPU's own and lives as long as the map.
    let cpu = unsafe { &mut *cpu };
    // SAFETY: the helper has no arguments.
    let now_ns = unsafe { bpf_ktime_get_ns() };
    let since_ns = cpu.charged_ns;
    cpu.charged_ns = now_ns;
    if let Some(pid) = next_pid {
        cpu.pid = u64::from(pid);
    }
    (since_ns != 0).then(|| now_ns.saturating_sub(since_ns))
}

/// This CPU's counters of the current thread's task, if the task is registered.
#[inline(always)]
fn current_counters() -> Option<*mut SchedCounters> {
    SCHED.get_ptr_mut(current_task()?)
}
