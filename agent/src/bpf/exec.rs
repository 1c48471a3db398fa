//! Process counts, main processes and the exit ledger, as read from the maps.

use std::io;

use muster_ebpf_common::{
    CgroupId,
    exec::{ExecCounters, ExitEntry, ProcessName},
};

use crate::bpf::map::PinnedMap;

/// The end of a task's main process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExitRecord {
    /// The process id in the initial pid namespace.
    pub pid: u32,
    /// The start of the process, in nanoseconds since boot.
    pub start_boottime_ns: u64,
    /// The status that `wait` reports for the process.
    pub wait_status: i32,
    /// The end of the process, in nanoseconds since boot.
    pub at_boottime_ns: u64,
}

/// A task's main process: the first that executed a program in the task's cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MainProcess {
    /// The process id in the initial pid namespace.
    pub pid: u32,
    /// The start of the process, in nanoseconds since boot.
    pub start_boottime_ns: u64,
}

/// The maps of the stem `exec`.
#[derive(Debug)]
pub(super) struct Exec {
    pub(super) counters: PinnedMap<CgroupId, ExecCounters>,
    pub(super) main: PinnedMap<CgroupId, ProcessName>,
    pub(super) exits: PinnedMap<CgroupId, ExitEntry>,
}

impl Exec {
    /// The end of the task's main process, once it has ended.
    pub(super) fn exit_of(&self, task: CgroupId) -> io::Result<Option<ExitRecord>> {
        let Some(entry) = self
            .exits
            .lookup(task)?
            .and_then(|entries| entries.first().copied())
        else {
            return Ok(None);
        };
        let ExitEntry {
            process,
            at_boottime_ns,
            wait_status,
            reserved: _,
        } = entry;
        Ok(Some(ExitRecord {
            pid: pid(process)?,
            start_boottime_ns: process.start_boottime_ns,
            wait_status,
            at_boottime_ns,
        }))
    }

    /// The task's main process, once it has one. A record of zeros means an unknown process.
    pub(super) fn main_of(&self, task: CgroupId) -> io::Result<Option<MainProcess>> {
        let Some(process) = self
            .main
            .lookup(task)?
            .and_then(|entries| entries.first().copied())
            .filter(|process| *process != ProcessName::default())
        else {
            return Ok(None);
        };
        let start_boottime_ns = process.start_boottime_ns;
        Ok(Some(MainProcess {
            pid: pid(process)?,
            start_boottime_ns,
        }))
    }
}

fn pid(process: ProcessName) -> io::Result<u32> {
    u32::try_from(process.pid).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}
