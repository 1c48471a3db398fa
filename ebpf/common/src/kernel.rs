//! Offsets of the fields that the programs read in the running kernel's structures.
//!
//! A Rust eBPF object carries no relocations. So the agent looks the offsets up in the kernel's own type information
//! and writes them into the program's read-only data before it is loaded. The verifier then knows them as constants.

use crate::Plain;

/// Facts that the programs receive when they are loaded. Offsets are in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Facts {
    /// Distance of a task's cgroup from the root of the v2 hierarchy, which is 0.
    pub task_level: u64,
    /// The number that makes this load of the programs active.
    pub generation: u64,
    /// Whether `sched_process_exit` reports that the last thread ended (since Linux 6.16): 0 or 1.
    pub exit_says_group_dead: u64,
    /// Whether `mark_victim` passes the thread's structure (since Linux 6.9) and not its id: 0 or 1.
    pub victim_is_thread: u64,
    /// `task_struct.pid`: the thread's id.
    pub task_pid: u64,
    /// `task_struct.tgid`: the process's id.
    pub task_tgid: u64,
    /// `task_struct.comm`: the thread's name.
    pub task_comm: u64,
    /// `task_struct.exit_code`: the thread's wait status.
    pub task_exit_code: u64,
    /// `task_struct.start_boottime`: nanoseconds since boot.
    pub task_start_boottime: u64,
    /// `task_struct.self_exec_id`: the number of programs that the process and its ancestors have started.
    pub task_self_exec_id: u64,
    /// `task_struct.group_leader`: the process's first thread.
    pub task_group_leader: u64,
    /// `task_struct.signal`: the state that the threads of a process share.
    pub task_signal: u64,
    /// `task_struct.sched_info`, which contains the count of runs and then the total wait; 0 if this kernel does not
    /// keep them.
    pub task_sched_info: u64,
    /// `task_struct.se.exec_start`: the time up to which the thread is charged, or since which it runs.
    pub task_exec_start: u64,
    /// `task_struct.cgroups`: the set of cgroups that the thread is in.
    pub task_cgroups: u64,
    /// `signal_struct.live`: threads that have not begun to exit.
    pub signal_live: u64,
    /// `signal_struct.flags`.
    pub signal_flags: u64,
    /// `signal_struct.group_exit_code`: the process's wait status.
    pub signal_group_exit_code: u64,
    /// `css_set.dfl_cgrp`: the v2 cgroup.
    pub css_set_dfl_cgrp: u64,
    /// `cgroup.level`: distance from the root.
    pub cgroup_level: u64,
    /// `cgroup.ancestors`: a pointer for each level down to the cgroup itself.
    pub cgroup_ancestors: u64,
    /// `cgroup.kn`: the directory.
    pub cgroup_kn: u64,
    /// The position of the cpu controller's state in a `cgroup` (`subsys`); 0 if this kernel has no such controller.
    pub cgroup_cpu: u64,
    /// The same for the memory controller.
    pub cgroup_memory: u64,
    /// The same for the pids controller.
    pub cgroup_pids: u64,
    /// `cgroup.psi`: pressure; 0 if this kernel keeps none.
    pub cgroup_psi: u64,
    /// `task_group.cfs_bandwidth.nr_periods`, of 32 bits, which `nr_throttled` follows.
    pub group_periods: u64,
    /// `task_group.cfs_bandwidth.throttled_time`, in nanoseconds.
    pub group_throttled_time: u64,
    /// `mem_cgroup.memory.usage`, in pages.
    pub memory_usage: u64,
    /// `mem_cgroup.memory.watermark`.
    pub memory_watermark: u64,
    /// `mem_cgroup.memory.max`.
    pub memory_max: u64,
    /// `mem_cgroup.swap.usage`; 0 if this kernel does not count it.
    pub memory_swap: u64,
    /// `mem_cgroup.kmem.usage`; 0 if this kernel does not count it separately.
    pub memory_kernel: u64,
    /// `mem_cgroup.memory_events`, by [`MEMORY_EVENTS`](crate::group::MEMORY_EVENTS).
    pub memory_events: u64,
    /// `pids_cgroup.counter`.
    pub pids_counter: u64,
    /// `psi_group.total`: the totals from which averages are computed.
    pub psi_total: u64,
    /// `sock.sk_cgrp_data.cgroup`: the v2 cgroup of the process that made the socket.
    pub sock_cgroup: u64,
    /// `sock.sk_protocol`, of 16 bits.
    pub sock_protocol: u64,
    /// Whether `sock_common` begins as [`PeerMark`](crate::policy::PeerMark) reads it: 0 or 1.
    pub sock_has_mark: u64,
    /// Whether the `io` controller is in the v2 hierarchy: 0 or 1.
    pub io_is_v2: u64,
    /// `request.bio`: the first part of the request's data; 0 if this kernel has another block layer.
    pub request_bio: u64,
    /// `request.__data_len`: bytes that are not completed, of 32 bits.
    pub request_data_len: u64,
    /// `request.cmd_flags`: operation and flags, of 32 bits.
    pub request_cmd_flags: u64,
    /// `bio.bi_blkg`: a cgroup's state of a device; 0 if this kernel has none.
    pub bio_blkg: u64,
    /// `blkcg_gq.blkcg`: the cgroup's state of block I/O.
    pub blkg_blkcg: u64,
    /// `blkcg.css.cgroup`.
    pub blkcg_cgroup: u64,
    /// `kernfs_node.id`: the cgroup id.
    pub kernfs_node_id: u64,
}

/// The number of words in [`Facts`].
pub const FACTS_WORDS: usize = size_of::<Facts>() / size_of::<u64>();

impl Facts {
    /// Returns the facts as words, in the order of the fields.
    #[must_use]
    pub fn words(&self) -> [u64; FACTS_WORDS] {
        // SAFETY: the structure is words of 64 bits, `repr(C)`.
        unsafe { core::mem::transmute::<Self, [u64; FACTS_WORDS]>(*self) }
    }
}

// SAFETY: 47 words of 64 bits, `repr(C)`, without padding.
unsafe impl Plain for Facts {}

#[cfg(test)]
mod tests {
    use core::mem::offset_of;

    use super::*;

    #[test]
    fn words_follow_the_fields() {
        let facts = Facts {
            task_level: 3,
            generation: 7,
            kernfs_node_id: 96,
            ..Facts::default()
        };

        let words = facts.words();

        assert_eq!(words[offset_of!(Facts, task_level) / 8], 3);
        assert_eq!(words[offset_of!(Facts, generation) / 8], 7);
        assert_eq!(words[offset_of!(Facts, kernfs_node_id) / 8], 96);
        assert_eq!(FACTS_WORDS, 47);
    }
}
