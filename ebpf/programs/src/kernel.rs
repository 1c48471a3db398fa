//! Parts that all programs share: facts about the kernel, the switch between loads, the count of lost records.

use aya_ebpf::{
    bindings::BPF_F_NO_PREALLOC,
    helpers::{bpf_get_current_ancestor_cgroup_id, bpf_probe_read_kernel},
    macros::map,
    maps::{Array, HashMap, PerCpuArray},
};
use muster_ebpf_common::{CgroupId, LostRecord, NO_SLOT, kernel::Facts, limits::SLOTS_MAX};

/// Filled in by the agent before the object is loaded.
#[unsafe(no_mangle)]
static FACTS: Facts = Facts {
    task_level: 0,
    generation: 0,
    exit_says_group_dead: 0,
    victim_is_thread: 0,
    task_pid: 0,
    task_tgid: 0,
    task_comm: 0,
    task_exit_code: 0,
    task_start_boottime: 0,
    task_self_exec_id: 0,
    task_group_leader: 0,
    task_signal: 0,
    task_sched_info: 0,
    task_exec_start: 0,
    task_cgroups: 0,
    signal_live: 0,
    signal_flags: 0,
    signal_group_exit_code: 0,
    css_set_dfl_cgrp: 0,
    cgroup_level: 0,
    cgroup_ancestors: 0,
    cgroup_kn: 0,
    cgroup_cpu: 0,
    cgroup_memory: 0,
    cgroup_pids: 0,
    cgroup_psi: 0,
    group_periods: 0,
    group_throttled_time: 0,
    memory_usage: 0,
    memory_watermark: 0,
    memory_max: 0,
    memory_swap: 0,
    memory_kernel: 0,
    memory_events: 0,
    pids_counter: 0,
    psi_total: 0,
    sock_cgroup: 0,
    sock_protocol: 0,
    sock_has_mark: 0,
    io_is_v2: 0,
    request_bio: 0,
    request_data_len: 0,
    request_cmd_flags: 0,
    bio_blkg: 0,
    blkg_blkcg: 0,
    blkcg_cgroup: 0,
    kernfs_node_id: 0,
};

/// The active generation, the number of policy changes of tasks that had a policy, and the number of registrations and
/// removals of tasks.
#[map]
static ACTIVE: Array<u64> = Array::pinned(3, 0);

/// The slots of tasks that have one. The agent makes and removes the entries.
#[map]
static SLOTS: HashMap<CgroupId, u64> = HashMap::pinned(SLOTS_MAX, BPF_F_NO_PREALLOC);

/// The count of records that were lost, by [`LostRecord`].
#[map]
static LOST: PerCpuArray<u64> = PerCpuArray::pinned(LostRecord::COUNT, 0);

/// Reads one field of [`FACTS`].
macro_rules! fact {
    ($field:ident) => {{
        // SAFETY: the static is live and aligned. The read is volatile because the agent changes
        // the value after compilation.
        unsafe { core::ptr::read_volatile(&raw const $crate::kernel::facts().$field) }
    }};
}
pub(crate) use fact;

/// The static behind [`fact`].
#[inline(always)]
pub(crate) fn facts() -> &'static Facts {
    &FACTS
}

/// Whether this load of the programs is active.
#[inline(always)]
pub(crate) fn is_active() -> bool {
    ACTIVE
        .get(0)
        .is_some_and(|active| *active == fact!(generation))
}

/// The number of policy changes of tasks that had a policy.
#[inline(always)]
pub(crate) fn policy_changes() -> u64 {
    ACTIVE.get(1).copied().unwrap_or(0)
}

/// The number of registrations and removals of tasks.
#[inline(always)]
pub(crate) fn registrations() -> u64 {
    ACTIVE.get(2).copied().unwrap_or(0)
}

/// The task's slot, or [`NO_SLOT`].
#[inline(always)]
pub(crate) fn slot_of(task: CgroupId) -> u64 {
    // SAFETY: the value is copied at once.
    unsafe { SLOTS.get(task) }.copied().unwrap_or(NO_SLOT)
}

/// Counts a record that was lost.
#[inline(always)]
pub(crate) fn count_lost(lost: LostRecord) {
    if let Some(count) = LOST.get_ptr_mut(lost as u32) {
        // SAFETY: the slot is this CPU's own and lives as long as the map.
        unsafe { *count += 1 };
    }
}

/// The task the running thread belongs to; `None` above the level of tasks.
#[inline(always)]
pub(crate) fn current_task() -> Option<CgroupId> {
    let level = fact!(task_level) as i32;
    // SAFETY: the helper takes any level and returns 0 for one the thread's cgroup does not have.
    let id = unsafe { bpf_get_current_ancestor_cgroup_id(level) };
    (id != 0).then_some(id)
}

/// A `task_struct` or another structure of the kernel, read field by field.
#[derive(Clone, Copy)]
pub(crate) struct KernelPtr(*const u8);

impl KernelPtr {
    /// The structure at `address`, an argument of a tracepoint.
    #[inline(always)]
    pub(crate) fn new(address: *const u8) -> Self {
        Self(address)
    }

    /// The address, which distinguishes the structure from others of its kind.
    #[inline(always)]
    pub(crate) fn address(self) -> u64 {
        self.0 as u64
    }

    /// The value at `offset`; `None` if that address cannot be read.
    #[inline(always)]
    pub(crate) fn read<T>(self, offset: u64) -> Option<T> {
        // SAFETY: the helper checks the address and fails instead of faulting.
        unsafe { bpf_probe_read_kernel(self.0.wrapping_add(offset as usize).cast::<T>()) }.ok()
    }

    /// The value at `offset` of an argument of a `btf_tracepoint`, read without a helper.
    ///
    /// The kernel's verifier knows the structure and only allows reads of its fields, at known offsets: those of
    /// [`FACTS`] and constants.
    #[inline(always)]
    pub(crate) fn field<T: Copy>(self, offset: u64) -> T {
        // SAFETY: the verifier has checked that the field exists, and the kernel turns a fault into a zero.
        unsafe {
            self.0
                .wrapping_add(offset as usize)
                .cast::<T>()
                .read_volatile()
        }
    }

    /// The structure that the pointer at `offset` leads to, of an argument as in [`Self::field`].
    ///
    /// A null pointer leads to a structure that is read as zeros.
    #[inline(always)]
    pub(crate) fn structure(self, offset: u64) -> Self {
        Self(self.field(offset))
    }

    /// The structure that the pointer at `offset` leads to.
    #[inline(always)]
    pub(crate) fn follow(self, offset: u64) -> Option<Self> {
        let address: *const u8 = self.read(offset)?;
        (!address.is_null()).then_some(Self(address))
    }

    /// The task that the thread with this `task_struct` belongs to.
    #[inline(always)]
    pub(crate) fn task(self) -> Option<CgroupId> {
        self.follow(fact!(task_cgroups))?
            .follow(fact!(css_set_dfl_cgrp))?
            .task_of_cgroup()
    }

    /// The task whose cgroup is this `cgroup` structure or an ancestor of it.
    #[inline(always)]
    pub(crate) fn task_of_cgroup(self) -> Option<CgroupId> {
        let cgroup = self;
        let level: i32 = cgroup.read(fact!(cgroup_level))?;
        let task_level = fact!(task_level);
        if i64::from(level) < task_level as i64 {
            return None;
        }
        let slot = fact!(cgroup_ancestors) + task_level * size_of::<*const u8>() as u64;
        cgroup
            .follow(slot)?
            .follow(fact!(cgroup_kn))?
            .read(fact!(kernfs_node_id))
    }
}
