//! Reads the kernel's counters of each task's group in one walk over a tree of groups, which the agent starts.
//!
//! Files have the same values, at some microseconds each. A walk holds the kernel's lock of groups, so it reads only a
//! few words of each task's group. Of deeper groups it reads only their out-of-memory kills, which v1 counts for each
//! group separately.

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

/// The rows that the walk found, starting with the first.
#[map]
static GROUPS: Array<GroupRow> = Array::pinned(GROUPS_MAX, 0);

/// The position of the walk. The agent resets it to the start.
#[map]
static WALK: Array<GroupWalk> = Array::pinned(1, 0);

/// The kernel's context of each step (`struct bpf_iter__cgroup`).
#[repr(C)]
struct Step {
    meta: *const u8,
    cgroup: *const u8,
}

/// The return value that continues the walk.
const ON: i32 = 0;
/// The return value that ends the walk.
const END: i32 = 1;

/// Visits one group. The kernel visits parents before children, and ends with a call without a group.
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
    // SAFETY: the agent runs only one walk at a time, and the map exists for ever.
    let walk = unsafe { &mut *WALK.get_ptr_mut(0)? };
    let level: u32 = cgroup.field(fact!(cgroup_level));
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
    let is_v2 = walk.is_v2 != 0;
    if level > walk.level {
        // The group is below the task of the last row. In v2 the count of the task's group includes its kills.
        if !is_v2
            && let Some(row) = GROUPS.get_ptr_mut(walk.rows.wrapping_sub(1))
            && let Some(memory) = part(cgroup, fact!(cgroup_memory))
        {
            let [.., kills] = memory_events(memory)?;
            // SAFETY: as for the walk.
            unsafe { (*row).oom_kills += kills };
        }
        return Some(ON);
    }
    let Some(row) = GROUPS.get_ptr_mut(walk.rows) else {
        walk.cut = 1;
        return Some(END);
    };
    // SAFETY: as for the walk.
    fill(unsafe { &mut *row }, cgroup, is_v2)?;
    walk.rows += 1;
    Some(ON)
}

/// A group's state of a controller.
///
/// The verifier knows the group's fields, so they need no helper. It does not know the fields of such a state.
#[inline(always)]
fn part(cgroup: KernelPtr, offset: u64) -> Option<KernelPtr> {
    if offset == 0 {
        return None;
    }
    let part = cgroup.structure(offset);
    (part.address() != 0).then_some(part)
}

/// The events of memory: throttled, at the limit, and kills.
#[inline(always)]
fn memory_events(memory: KernelPtr) -> Option<[u64; 3]> {
    let [_, high, max, _, kills] = memory.read::<[u64; 5]>(fact!(memory_events))?;
    Some([high, max, kills])
}

#[inline(always)]
fn fill(row: &mut GroupRow, cgroup: KernelPtr, is_v2: bool) -> Option<()> {
    row.group = cgroup
        .structure(fact!(cgroup_kn))
        .field(fact!(kernfs_node_id));
    let mut has = 0;
    if let Some(memory) = part(cgroup, fact!(cgroup_memory)) {
        has |= HAS_MEMORY;
        row.memory_pages = memory.read(fact!(memory_usage))?;
        row.memory_peak_pages = memory.read(fact!(memory_watermark))?;
        row.memory_limit_pages = memory.read(fact!(memory_max))?;
        if is_v2 && fact!(memory_swap) != 0 {
            has |= HAS_SWAP;
            row.swap_pages = memory.read(fact!(memory_swap))?;
        }
        if !is_v2 && fact!(memory_kernel) != 0 {
            has |= HAS_KERNEL;
            row.kernel_pages = memory.read(fact!(memory_kernel))?;
        }
        [row.high_events, row.max_events, row.oom_kills] = memory_events(memory)?;
    }
    if let Some(pids) = part(cgroup, fact!(cgroup_pids)) {
        has |= HAS_PIDS;
        row.pids = pids.read(fact!(pids_counter))?;
    }
    if let Some(cpu) = part(cgroup, fact!(cgroup_cpu)) {
        has |= HAS_CPU;
        let [periods, throttled] = cpu.read::<[u32; 2]>(fact!(group_periods))?;
        row.periods = u64::from(periods);
        row.throttled_periods = u64::from(throttled);
        row.throttled_ns = cpu.read(fact!(group_throttled_time))?;
    }
    if let Some(pressure) = part(cgroup, fact!(cgroup_psi)) {
        has |= HAS_PRESSURE;
        row.pressure_ns = pressure.read::<[u64; PRESSURES]>(fact!(psi_total))?;
    }
    row.has = has;
    Some(())
}
