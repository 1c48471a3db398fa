//! Process counts, the main process of a task, and the exit ledger.
//!
//! The main process is the first that executes a program in the task's cgroup. It ends when its last thread ends. The
//! exit of its first thread alone is not the end. A thread that executes a program and takes the process over does not
//! end it either. The recorded status is the one that `wait` would report. A main process that left its cgroup is not
//! recorded.
//!
//! If two loads are attached, each sees the same event before its CPU continues. The older load may have counted the
//! event when the other one becomes active. So each CPU remembers the last counted event there, for both loads.

use aya_ebpf::{
    bindings::{BPF_F_NO_PREALLOC, BPF_NOEXIST},
    helpers::bpf_ktime_get_boot_ns,
    macros::{btf_tracepoint, map},
    maps::{HashMap, LruHashMap, PerCpuArray, PerCpuHashMap},
    programs::BtfTracePointContext,
};
use muster_ebpf_common::{
    CgroupId, LostRecord,
    exec::{Event, EventName, ExecCounters, ExitEntry, ProcessName, wait_status},
    limits::{ENDING_MAX, TASKS_MAX},
};

use crate::{
    kernel::{KernelPtr, count_lost, current_task, fact, is_active},
    oom,
};

/// Counters by task. The agent makes and removes the entries.
#[map]
static EXEC: PerCpuHashMap<CgroupId, ExecCounters> =
    PerCpuHashMap::pinned(TASKS_MAX, BPF_F_NO_PREALLOC);

/// The main process by task. The agent removes entries.
#[map]
static MAIN: HashMap<CgroupId, ProcessName> = HashMap::pinned(TASKS_MAX, 0);

/// The exit ledger: the end of the main process, by task. The agent removes entries.
#[map]
static EXITS: HashMap<CgroupId, ExitEntry> = HashMap::pinned(TASKS_MAX, 0);

/// Processes whose end was just seen, on kernels that do not report the last thread.
#[map]
static ENDING: LruHashMap<ProcessName, u64> = LruHashMap::pinned(ENDING_MAX, 0);

/// The name that was counted last, by [`Event`].
#[map]
static COUNTED: PerCpuArray<EventName> = PerCpuArray::pinned(Event::COUNT, 0);

/// Counts a process born in a task. A child may be born in another cgroup than its parent's.
#[btf_tracepoint(function = "sched_process_fork")]
fn process_fork(ctx: BtfTracePointContext) -> i32 {
    if is_active() {
        let _ = count_fork(KernelPtr::new(ctx.arg(1)));
    }
    0
}

#[inline(always)]
fn count_fork(child: KernelPtr) -> Option<()> {
    let pid: u32 = child.read(fact!(task_pid))?;
    let tgid: u32 = child.read(fact!(task_tgid))?;
    if pid != tgid {
        return None;
    }
    let counters = EXEC.get_ptr_mut(child.task()?)?;
    let process = process_name(child)?;
    if is_first(Event::Fork, process, 0) {
        // SAFETY: the entry is this CPU's own part of a map value, which RCU keeps alive.
        unsafe { (*counters).forks += 1 };
    }
    Some(())
}

/// Whether no load has counted the event yet. The call marks it as counted.
#[inline(always)]
fn is_first(event: Event, process: ProcessName, program: u64) -> bool {
    let Some(last) = COUNTED.get_ptr_mut(event as u32) else {
        return true;
    };
    // SAFETY: the place is this CPU's own and lives as long as the map.
    let last = unsafe { &mut *last };
    let name = EventName { process, program };
    let is_first = *last != name;
    *last = name;
    is_first
}

/// Counts a program that was started, and makes the task's first one its main process.
#[btf_tracepoint(function = "sched_process_exec")]
fn process_exec(ctx: BtfTracePointContext) -> i32 {
    if is_active() {
        let _ = count_exec(KernelPtr::new(ctx.arg(0)));
    }
    0
}

#[inline(always)]
fn count_exec(thread: KernelPtr) -> Option<()> {
    let task = current_task()?;
    let counters = EXEC.get_ptr_mut(task)?;
    let process = process_name(thread)?;
    if is_first(Event::Exec, process, thread.read(fact!(task_self_exec_id))?) {
        // SAFETY: the entry is this CPU's own part of a map value, which RCU keeps alive.
        unsafe { (*counters).execs += 1 };
    }
    if MAIN.get_ptr(task).is_some() {
        return Some(());
    }
    // Two processes may reach this point at once. The map accepts one insert, and the other fails.
    if let Err(error) = MAIN.insert(task, process, u64::from(BPF_NOEXIST))
        && error != EEXIST
    {
        count_lost(LostRecord::Main);
    }
    Some(())
}

/// `-EEXIST` of Linux's `errno-base.h`, which an insert with `BPF_NOEXIST` returns for an existing key.
const EEXIST: i32 = -17;

/// Counts a process that ended. If it was the main process, records its exit.
#[btf_tracepoint(function = "sched_process_exit")]
fn process_exit(ctx: BtfTracePointContext) -> i32 {
    if !is_active() {
        return 0;
    }
    let thread = KernelPtr::new(ctx.arg(0));
    // The verifier knows the fact as a constant, so it never checks the access to an argument that an older kernel does
    // not have.
    if fact!(exit_says_group_dead) != 0 {
        if ctx.arg::<u8>(1) != 0 {
            let _ = count_exit(thread, false);
        } else {
            let _ = record_victim(thread);
        }
    } else {
        let _ = count_exit(thread, true);
    }
    0
}

/// A thread that is not its process's last may be the one that the kernel selected to kill.
#[inline(always)]
fn record_victim(thread: KernelPtr) -> Option<()> {
    let task = current_task()?;
    EXEC.get_ptr(task)?;
    oom::record(task, thread)
}

#[inline(always)]
fn count_exit(thread: KernelPtr, last_is_unknown: bool) -> Option<()> {
    let task = current_task()?;
    let counters = EXEC.get_ptr_mut(task)?;
    let _ = oom::record(task, thread);
    let signal = thread.follow(fact!(task_signal))?;
    let process = process_name(thread)?;
    if last_is_unknown {
        let live: i32 = signal.read(fact!(signal_live))?;
        if live != 0 {
            return None;
        }
        // Several threads can find that none is live. Only the first insert succeeds, and that thread counts the
        // process.
        ENDING.insert(process, 1, u64::from(BPF_NOEXIST)).ok()?;
    } else if !is_first(Event::Exit, process, 0) {
        return None;
    }
    // SAFETY: the entry is this CPU's own part of a map value, which RCU keeps alive.
    unsafe { (*counters).exits += 1 };

    let main = MAIN.get_ptr(task)?;
    // SAFETY: entries are made once and removed by the agent only, after the task has ended.
    if unsafe { *main } != process {
        return None;
    }
    let leader = thread.follow(fact!(task_group_leader))?;
    let status = wait_status(
        signal.read(fact!(signal_flags))?,
        signal.read(fact!(signal_group_exit_code))?,
        leader.read(fact!(task_exit_code))?,
    );
    let entry = ExitEntry {
        process,
        // SAFETY: the helper has no arguments.
        at_boottime_ns: unsafe { bpf_ktime_get_boot_ns() },
        wait_status: status,
        reserved: 0,
    };
    if EXITS.insert(task, entry, 0).is_err() {
        count_lost(LostRecord::Exit);
    }
    Some(())
}

/// The process of a thread. The start of the first thread is the start of the process, also after another thread
/// executed a program and took its place.
#[inline(always)]
pub(crate) fn process_name(thread: KernelPtr) -> Option<ProcessName> {
    let tgid: u32 = thread.read(fact!(task_tgid))?;
    let leader = thread.follow(fact!(task_group_leader))?;
    Some(ProcessName {
        pid: u64::from(tgid),
        start_boottime_ns: leader.read(fact!(task_start_boottime))?,
    })
}
