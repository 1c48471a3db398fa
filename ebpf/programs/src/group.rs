//! What the kernel keeps of each task's group: one walk over a tree of groups, which the agent asks for.
//!
//! Files would tell the same, at some microseconds each. A walk has the kernel's lock of groups, so it reads a few words
//! of each task's group and nothing of those that are deeper but their out-of-memory kills, which v1 keeps apart.

use core::ffi::c_void;

use aya_ebpf::{macros::map, maps::Array};
use muster_ebpf_common::{
    group::{
        GroupRow, GroupWalk, HAS_CPU, HAS_KERNEL, HAS_MEMORY, HAS_PIDS, HAS_PRESSURE, HAS_SWAP,
        PRESSURES, TASK_DEPTH,
    },
    limits::{GROUPS_MAX, GROUPS_VISITED_MAX},
};

use crate::kernel::{KernelPtr, fact};

/// What the walk found, from the first row on.
#[map]
static GROUPS: Array<GroupRow> = Array::pinned(GROUPS_MAX, 0);

/// Where the walk is. The agent sets it to the begin.
#[map]
static WALK: Array<GroupWalk> = Array::pinned(1, 0);

/// What the kernel tells of each step (`struct bpf_iter__cgroup`).
#[repr(C)]
struct Step {
    meta: *const u8,
    cgroup: *const u8,
}

/// Has the walk go on.
const ON: i32 = 0;
/// Ends it.
const END: i32 = 1;

/// Looks at one group. The kernel comes to those above before those below, and after the last with none.
#[unsafe(no_mangle)]
#[unsafe(link_section = "iter/cgroup")]
extern "C" fn walk_groups(context: *mut c_void) -> i32 {
    // SAFETY: the kernel calls a program of this kind with such a structure.
    let cgroup = unsafe { (*context.cast::<Step>()).cgroup };
    if cgroup.is_null() {
        return ON;
    }
    step(KernelPtr::new(cgroup)).unwrap_or(END)
}

#[inline(always)]
fn step(cgroup: KernelPtr) -> Option<i32> {
    // SAFETY: one walk at a time, which the agent sees to, and the map is there for ever.
    let walk = unsafe { &mut *WALK.get_ptr_mut(0)? };
    let level: u32 = cgroup.read(fact!(cgroup_level))?;
    if walk.visited == 0 {
        walk.level = level + TASK_DEPTH;
    }
    walk.visited += 1;
    if walk.visited > GROUPS_VISITED_MAX {
        walk.cut = 1;
        return Some(END);
    }
    if level < walk.level {
        return Some(ON);
    }
    if level > walk.level {
        // Below the task whose row is the last.
        if walk.own_kills != 0
            && let Some(row) = GROUPS.get_ptr_mut(walk.rows.wrapping_sub(1))
            && let Some(memory) = part(cgroup, fact!(cgroup_memory))
        {
            let kills: u64 = memory.read(fact!(memory_oom_kills))?;
            // SAFETY: as of the walk.
            unsafe { (*row).oom_kills += kills };
        }
        return Some(ON);
    }
    let Some(row) = GROUPS.get_ptr_mut(walk.rows) else {
        walk.cut = 1;
        return Some(END);
    };
    // SAFETY: as of the walk.
    fill(unsafe { &mut *row }, cgroup)?;
    walk.rows += 1;
    Some(ON)
}

/// A controller's side of a group.
#[inline(always)]
fn part(cgroup: KernelPtr, offset: u64) -> Option<KernelPtr> {
    if offset == 0 {
        return None;
    }
    cgroup.follow(offset)
}

#[inline(always)]
fn fill(row: &mut GroupRow, cgroup: KernelPtr) -> Option<()> {
    row.group = cgroup
        .follow(fact!(cgroup_kn))?
        .read(fact!(kernfs_node_id))?;
    row.has = 0;
    if let Some(memory) = part(cgroup, fact!(cgroup_memory)) {
        row.has |= HAS_MEMORY;
        row.memory_pages = memory.read(fact!(memory_usage))?;
        row.memory_peak_pages = memory.read(fact!(memory_watermark))?;
        row.memory_limit_pages = memory.read(fact!(memory_max))?;
        if fact!(memory_swap) != 0 {
            row.has |= HAS_SWAP;
            row.swap_pages = memory.read(fact!(memory_swap))?;
        }
        if fact!(memory_kernel) != 0 {
            row.has |= HAS_KERNEL;
            row.kernel_pages = memory.read(fact!(memory_kernel))?;
        }
        row.high_events = memory.read(fact!(memory_high_events))?;
        row.max_events = memory.read(fact!(memory_max_events))?;
        row.oom_kills = memory.read(fact!(memory_oom_kills))?;
    }
    if let Some(pids) = part(cgroup, fact!(cgroup_pids)) {
        row.has |= HAS_PIDS;
        row.pids = pids.read(fact!(pids_counter))?;
    }
    if let Some(cpu) = part(cgroup, fact!(cgroup_cpu)) {
        row.has |= HAS_CPU;
        row.periods = u64::from(cpu.read::<u32>(fact!(group_periods))?);
        row.throttled_periods = u64::from(cpu.read::<u32>(fact!(group_throttled_periods))?);
        row.throttled_ns = cpu.read(fact!(group_throttled_time))?;
    }
    if let Some(pressure) = part(cgroup, fact!(cgroup_psi)) {
        row.has |= HAS_PRESSURE;
        row.pressure_ns = pressure.read::<[u64; PRESSURES]>(fact!(psi_total))?;
    }
    Some(())
}
