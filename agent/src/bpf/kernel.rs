//! Facts about the running kernel that the programs are told at load.

use muster_ebpf_common::kernel::Facts;

use crate::bpf::btf::{KernelTypes, ReadTypesError};

/// Arguments of `sched_process_exit` on a kernel that says whether the last thread ended.
const EXIT_ARGUMENTS_WITH_GROUP_DEAD: usize = 2;

/// Arguments of `mark_victim` on a kernel that names the thread's structure: older ones pass its id.
const VICTIM_ARGUMENTS_WITH_THREAD: usize = 2;

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
    // Without these only connections are not counted: see `load`.
    let sock = sock(types).unwrap_or_default();
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
        task_group_leader: types.offset_of("task_struct", "group_leader")?,
        task_signal: types.offset_of("task_struct", "signal")?,
        task_sched_info: task_sched_info(types)?,
        task_cgroups: types.offset_of("task_struct", "cgroups")?,
        signal_live: types.offset_of("signal_struct", "live")?,
        signal_flags: types.offset_of("signal_struct", "flags")?,
        signal_group_exit_code: types.offset_of("signal_struct", "group_exit_code")?,
        css_set_dfl_cgrp: types.offset_of("css_set", "dfl_cgrp")?,
        cgroup_level: types.offset_of("cgroup", "level")?,
        cgroup_ancestors: types.offset_of("cgroup", "ancestors")?,
        cgroup_kn: types.offset_of("cgroup", "kn")?,
        sock_cgroup: sock.0,
        sock_protocol: sock.1,
        kernfs_node_id: types.offset_of("kernfs_node", "id")?,
    })
}

/// Where a socket's cgroup and its protocol are.
fn sock(types: &KernelTypes) -> Result<(u64, u64), ReadTypesError> {
    let cgroup =
        types.offset_of("sock", "sk_cgrp_data")? + types.offset_of("sock_cgroup_data", "cgroup")?;
    Ok((cgroup, types.offset_of("sock", "sk_protocol")?))
}

/// Where a thread's count of runs is, with the sum of its waiting behind it; 0 if this kernel does not keep them so.
fn task_sched_info(types: &KernelTypes) -> Result<u64, ReadTypesError> {
    let offsets = (
        types.offset_of("sched_info", "pcount"),
        types.offset_of("sched_info", "run_delay"),
    );
    match offsets {
        (Ok(runs), Ok(waited)) if waited == runs + 8 => {
            Ok(types.offset_of("task_struct", "sched_info")? + runs)
        }
        // Built without CONFIG_SCHED_INFO, or grown apart.
        _ => Ok(0),
    }
}
