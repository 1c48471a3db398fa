//! Facts about the running kernel that the programs get as parameters at load.

use muster_ebpf_common::{group::MEMORY_EVENTS, kernel::Facts};

use crate::bpf::btf::{KernelTypes, ReadTypesError};

/// The number of arguments of `sched_process_exit` on a kernel that reports whether the last thread ended.
const EXIT_ARGUMENTS_WITH_GROUP_DEAD: usize = 2;

/// The number of arguments of `mark_victim` on a kernel that passes the thread's structure. Older kernels pass its id.
const VICTIM_ARGUMENTS_WITH_THREAD: usize = 2;

const POINTER_BYTES: u64 = size_of::<*const u8>() as u64;

/// Looks the facts up in `types`.
///
/// # Errors
///
/// [`ReadTypesError`] if this kernel has no such field.
pub(super) fn facts(
    types: &KernelTypes,
    task_level: u32,
    generation: u64,
) -> Result<Facts, ReadTypesError> {
    let exit_arguments = types
        .tracepoint_arguments("sched_process_exit")?
        .unwrap_or(0);
    let victim_arguments = types.tracepoint_arguments("mark_victim")?.unwrap_or(0);
    // Without these facts only connections and block I/O are not counted: see `load`.
    let sock = sock(types).unwrap_or_default();
    let block = block(types).unwrap_or_default();
    // Values that the groups' structures do not provide are read from their files.
    let cpu = cpu(types).unwrap_or_default();
    let memory = memory(types).unwrap_or_default();
    let pids = pids(types).unwrap_or_default();
    let pressure = pressure(types).unwrap_or_default();
    Ok(Facts {
        task_level: u64::from(task_level),
        generation,
        exit_says_group_dead: u64::from(exit_arguments >= EXIT_ARGUMENTS_WITH_GROUP_DEAD),
        victim_is_thread: u64::from(victim_arguments >= VICTIM_ARGUMENTS_WITH_THREAD),
        task_pid: types.offset_of("task_struct", "pid")?,
        task_tgid: types.offset_of("task_struct", "tgid")?,
        task_comm: types.offset_of("task_struct", "comm")?,
        task_exit_code: types.offset_of("task_struct", "exit_code")?,
        task_start_boottime: types.offset_of("task_struct", "start_boottime")?,
        task_self_exec_id: types.offset_of("task_struct", "self_exec_id")?,
        task_group_leader: types.offset_of("task_struct", "group_leader")?,
        task_signal: types.offset_of("task_struct", "signal")?,
        task_sched_info: task_sched_info(types)?,
        task_exec_start: types.offset_of("task_struct", "se")?
            + types.offset_of("sched_entity", "exec_start")?,
        task_cgroups: types.offset_of("task_struct", "cgroups")?,
        signal_live: types.offset_of("signal_struct", "live")?,
        signal_flags: types.offset_of("signal_struct", "flags")?,
        signal_group_exit_code: types.offset_of("signal_struct", "group_exit_code")?,
        css_set_dfl_cgrp: types.offset_of("css_set", "dfl_cgrp")?,
        cgroup_level: types.offset_of("cgroup", "level")?,
        cgroup_ancestors: types.offset_of("cgroup", "ancestors")?,
        cgroup_kn: types.offset_of("cgroup", "kn")?,
        cgroup_cpu: cpu.cgroup_cpu,
        cgroup_memory: memory.cgroup_memory,
        cgroup_pids: pids.cgroup_pids,
        cgroup_psi: pressure.cgroup_psi,
        group_periods: cpu.group_periods,
        group_throttled_time: cpu.group_throttled_time,
        memory_usage: memory.memory_usage,
        memory_watermark: memory.memory_watermark,
        memory_max: memory.memory_max,
        memory_swap: memory.memory_swap,
        memory_kernel: memory.memory_kernel,
        memory_events: memory.memory_events,
        pids_counter: pids.pids_counter,
        psi_total: pressure.psi_total,
        sock_cgroup: sock.0,
        sock_protocol: sock.1,
        sock_has_mark: u64::from(sock_has_mark(types)),
        io_is_v2: block.io_is_v2,
        request_bio: block.request_bio,
        request_data_len: block.request_data_len,
        request_cmd_flags: block.request_cmd_flags,
        bio_blkg: block.bio_blkg,
        blkg_blkcg: block.blkg_blkcg,
        blkcg_cgroup: block.blkcg_cgroup,
        kernfs_node_id: types.offset_of("kernfs_node", "id")?,
    })
}

/// The offsets of a socket's cgroup and its protocol.
fn sock(types: &KernelTypes) -> Result<(u64, u64), ReadTypesError> {
    let cgroup =
        types.offset_of("sock", "sk_cgrp_data")? + types.offset_of("sock_cgroup_data", "cgroup")?;
    Ok((cgroup, types.offset_of("sock", "sk_protocol")?))
}

/// Whether a socket begins with the fields that identify it, in the order of `PeerMark`.
fn sock_has_mark(types: &KernelTypes) -> bool {
    let fields = [
        ("skc_daddr", 0),
        ("skc_rcv_saddr", 4),
        ("skc_hash", 8),
        ("skc_dport", 12),
        ("skc_num", 14),
        ("skc_family", 16),
        ("skc_state", 18),
        ("skc_bound_dev_if", 20),
        ("skc_cookie", 88),
    ];
    let is_there = |(field, place)| {
        let found = types.offset_of("sock_common", field);
        found.is_ok_and(|found| found == place)
    };
    fields.into_iter().all(is_there)
}

/// The offset of a thread's count of runs, which the sum of its waiting time follows; 0 if this kernel does not keep
/// them like that.
fn task_sched_info(types: &KernelTypes) -> Result<u64, ReadTypesError> {
    let offsets = (
        types.offset_of("sched_info", "pcount"),
        types.offset_of("sched_info", "run_delay"),
    );
    match offsets {
        (Ok(runs), Ok(waited)) if waited == runs + 8 => {
            Ok(types.offset_of("task_struct", "sched_info")? + runs)
        }
        // The kernel was built without CONFIG_SCHED_INFO, or its layout changed.
        _ => Ok(0),
    }
}

/// The offsets of a request's owner and progress in the block layer; all other facts are zero.
fn block(types: &KernelTypes) -> Result<Facts, ReadTypesError> {
    let facts = Facts {
        io_is_v2: 0,
        request_bio: types.offset_of("request", "bio")?,
        request_data_len: types.offset_of("request", "__data_len")?,
        request_cmd_flags: types.offset_of("request", "cmd_flags")?,
        ..Facts::default()
    };
    if !io_is_v2() {
        return Ok(facts);
    }
    Ok(Facts {
        io_is_v2: 1,
        bio_blkg: types.offset_of("bio", "bi_blkg")?,
        blkg_blkcg: types.offset_of("blkcg_gq", "blkcg")?,
        blkcg_cgroup: types.offset_of("blkcg", "css")?
            + types.offset_of("cgroup_subsys_state", "cgroup")?,
        ..facts
    })
}

/// The offset of a group's state of a controller, the enumeration's `subsys`; an error if there is no such controller.
fn side(types: &KernelTypes, subsys: &str) -> Result<u64, ReadTypesError> {
    let number = types.enumerator("cgroup_subsys_id", subsys)?;
    let number = number.ok_or_else(|| no_field("cgroup_subsys_id", subsys))?;
    Ok(types.offset_of("cgroup", "subsys")? + u64::from(number) * POINTER_BYTES)
}

/// The offset of a field of a controller's structure. It is relative to the group's state of the controller, with which
/// the structure begins.
fn in_side(
    types: &KernelTypes,
    structure: &str,
    path: &[(&str, &str)],
) -> Result<u64, ReadTypesError> {
    let mut offset = 0;
    for (structure, field) in path {
        offset += types.offset_of(structure, field)?;
    }
    match types.offset_of(structure, "css")? {
        0 => Ok(offset),
        _ => Err(no_field(structure, "css at its begin")),
    }
}

fn no_field(structure: &str, field: &str) -> ReadTypesError {
    ReadTypesError::NoField {
        structure: structure.to_owned(),
        field: field.to_owned(),
    }
}

fn cpu(types: &KernelTypes) -> Result<Facts, ReadTypesError> {
    let of = |field| {
        let path = [("task_group", "cfs_bandwidth"), ("cfs_bandwidth", field)];
        in_side(types, "task_group", &path)
    };
    let group_periods = of("nr_periods")?;
    if of("nr_throttled")? != group_periods + 4 {
        return Err(no_field("cfs_bandwidth", "nr_throttled behind nr_periods"));
    }
    Ok(Facts {
        cgroup_cpu: side(types, "cpu_cgrp_id")?,
        group_periods,
        group_throttled_time: of("throttled_time")?,
        ..Facts::default()
    })
}

fn memory(types: &KernelTypes) -> Result<Facts, ReadTypesError> {
    let of = |counter, field| {
        let path = [("mem_cgroup", counter), ("page_counter", field)];
        in_side(types, "mem_cgroup", &path)
    };
    for (event, number) in MEMORY_EVENTS {
        if types.enumerator("memcg_memory_event", event)? != Some(number) {
            return Err(no_field("memcg_memory_event", event));
        }
    }
    Ok(Facts {
        cgroup_memory: side(types, "memory_cgrp_id")?,
        memory_usage: of("memory", "usage")?,
        memory_watermark: of("memory", "watermark")?,
        memory_max: of("memory", "max")?,
        memory_swap: of("swap", "usage").unwrap_or(0),
        memory_kernel: of("kmem", "usage").unwrap_or(0),
        memory_events: in_side(types, "mem_cgroup", &[("mem_cgroup", "memory_events")])?,
        ..Facts::default()
    })
}

fn pids(types: &KernelTypes) -> Result<Facts, ReadTypesError> {
    Ok(Facts {
        cgroup_pids: side(types, "pids_cgrp_id")?,
        pids_counter: in_side(types, "pids_cgroup", &[("pids_cgroup", "counter")])?,
        ..Facts::default()
    })
}

fn pressure(types: &KernelTypes) -> Result<Facts, ReadTypesError> {
    let order = [
        ("psi_aggregators", "PSI_AVGS", 0),
        ("psi_states", "PSI_IO_SOME", 0),
        ("psi_states", "PSI_IO_FULL", 1),
        ("psi_states", "PSI_MEM_SOME", 2),
        ("psi_states", "PSI_MEM_FULL", 3),
        ("psi_states", "PSI_CPU_SOME", 4),
        ("psi_states", "PSI_CPU_FULL", 5),
    ];
    for (of, name, number) in order {
        if types.enumerator(of, name)? != Some(number) {
            return Err(no_field(of, name));
        }
    }
    Ok(Facts {
        cgroup_psi: types.offset_of("cgroup", "psi")?,
        psi_total: types.offset_of("psi_group", "total")?,
        ..Facts::default()
    })
}

/// Whether the controller of block I/O is in the v2 hierarchy, whose number is 0 (`cgroups(7)`).
fn io_is_v2() -> bool {
    let text = std::fs::read_to_string("/proc/cgroups").unwrap_or_default();
    is_bound_to_v2(&text, "blkio")
}

fn is_bound_to_v2(cgroups: &str, controller: &str) -> bool {
    let mut lines = cgroups.lines().map(str::split_whitespace);
    lines.any(|mut words| {
        words.next() == Some(controller) && words.next() == Some("0") && words.nth(1) == Some("1")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_controller_of_hierarchy_0_is_in_v2() {
        let cgroups = "#subsys_name\thierarchy\tnum_cgroups\tenabled\n\
                       cpu\t0\t147\t1\nblkio\t7\t1\t1\nmemory\t0\t1\t0\n";

        assert!(is_bound_to_v2(cgroups, "cpu"));
        assert!(!is_bound_to_v2(cgroups, "blkio"));
        assert!(!is_bound_to_v2(cgroups, "memory"));
        assert!(!is_bound_to_v2(cgroups, "pids"));
    }
}
