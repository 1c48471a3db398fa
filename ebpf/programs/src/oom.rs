//! Processes of a task that the kernel killed because memory ran out.
//!
//! The kernel reports its victim by thread or by id, and while another process runs. The record is written when that
//! thread ends, in its own cgroup and with its own name. The kernel may also select a process that was ending anyway.
//! So the count can differ from the cgroup's own count, which is more reliable while it can be read.

use aya_ebpf::{
    bindings::BPF_NOEXIST,
    helpers::bpf_ktime_get_boot_ns,
    macros::{btf_tracepoint, map},
    maps::{HashMap, LruHashMap},
    programs::BtfTracePointContext,
};
use muster_ebpf_common::{
    CgroupId, LostRecord,
    limits::{TASKS_MAX, VICTIMS_MAX},
    oom::OomEntry,
};

use crate::{
    exec::process_name,
    kernel::{KernelPtr, count_lost, fact, is_active},
};

/// The time at which threads were selected that have not ended, in nanoseconds since boot, by id.
#[map]
static VICTIMS: LruHashMap<u32, u64> = LruHashMap::pinned(VICTIMS_MAX, 0);

/// Processes killed because memory ran out, by task. The agent removes entries.
#[map]
static OOM: HashMap<CgroupId, OomEntry> = HashMap::pinned(TASKS_MAX, 0);

/// Records a thread that the kernel selected.
#[btf_tracepoint(function = "mark_victim")]
fn mark_victim(ctx: BtfTracePointContext) -> i32 {
    if is_active() {
        let _ = remember(&ctx);
    }
    0
}

#[inline(always)]
fn remember(ctx: &BtfTracePointContext) -> Option<()> {
    // The verifier knows the fact as a constant and checks only one of the two branches.
    let pid: u32 = if fact!(victim_is_thread) != 0 {
        KernelPtr::new(ctx.arg(0)).read(fact!(task_pid))?
    } else {
        ctx.arg::<i32>(0) as u32
    };
    // SAFETY: the helper has no arguments.
    let now = unsafe { bpf_ktime_get_boot_ns() };
    VICTIMS.insert(pid, now, 0).ok()
}

/// Records `thread`, which is ending in `task`, if the kernel had selected it.
#[inline(always)]
pub(crate) fn record(task: CgroupId, thread: KernelPtr) -> Option<()> {
    let pid: u32 = thread.read(fact!(task_pid))?;
    // SAFETY: the value is copied at once.
    let chosen = *unsafe { VICTIMS.get(pid) }?;
    let _ = VICTIMS.remove(pid);
    let leader = thread.follow(fact!(task_group_leader))?;
    let entry = OomEntry {
        process: process_name(thread)?,
        chosen_boottime_ns: chosen,
        // SAFETY: the helper has no arguments.
        at_boottime_ns: unsafe { bpf_ktime_get_boot_ns() },
        kills: 1,
        name: leader.read(fact!(task_comm))?,
    };
    if OOM.insert(task, entry, u64::from(BPF_NOEXIST)).is_ok() {
        return Some(());
    }
    let Some(known) = OOM.get_ptr_mut(task) else {
        count_lost(LostRecord::Oom);
        return None;
    };
    // SAFETY: entries are removed by the agent only, after the task has ended. Two processes that end
    // at the same moment on two CPUs may mix their names and count as one.
    unsafe {
        (*known).kills += 1;
        if (*known).gives_way_to(chosen) {
            (*known).process = entry.process;
            (*known).chosen_boottime_ns = chosen;
            (*known).at_boottime_ns = entry.at_boottime_ns;
            (*known).name = entry.name;
        }
    }
    Some(())
}
