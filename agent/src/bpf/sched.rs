//! CPU time and context switches, as read from the maps.

use std::{
    fs, io,
    os::fd::{AsFd, OwnedFd},
    path::Path,
};

use muster_ebpf_common::{
    CgroupId,
    sched::{CpuState, SchedCounters, SchedSlot},
};

use crate::bpf::{
    load::CHARGE_RUNNING,
    map::{PinnedMap, open_pinned, run_on_cpu},
};

/// The maps of the stem `sched`.
#[derive(Debug)]
pub(super) struct Sched {
    pub(super) counters: PinnedMap<CgroupId, SchedCounters>,
    pub(super) slots: PinnedMap<u32, SchedSlot>,
    pub(super) cpus: PinnedMap<u32, CpuState>,
}

impl Sched {
    /// The sum of the task's counters; `None` if the task is not registered.
    pub(super) fn of(
        &self,
        task: CgroupId,
        slot: Option<u32>,
    ) -> io::Result<Option<SchedCounters>> {
        let Some(slot) = slot else {
            return self.counters.sum(task);
        };
        let slot = self.slots.sum(slot)?.unwrap_or_default();
        Ok((slot.task == task).then_some(slot.counters))
    }

    /// Charges the running threads, so that the CPU time of a task with a CPU of its own is complete up to that CPU's
    /// last clock tick.
    ///
    /// `program` runs only on the given CPUs, and interrupts each for some microseconds. An idle CPU is left asleep.
    pub(super) fn charge_running(&self, program: &OwnedFd, cpus: &[u32]) -> io::Result<()> {
        let Some(states) = self.cpus.lookup(0)? else {
            return Ok(());
        };
        for (cpu, state) in cpus.iter().zip(states) {
            if state.pid == 0 {
                continue;
            }
            match run_on_cpu(program.as_fd(), *cpu) {
                // The CPU went offline. The kernel switched its threads away before.
                Err(error) if error.raw_os_error() == Some(libc::ENXIO) => {}
                other => other?,
            }
        }
        Ok(())
    }

    /// Resets the time since which each CPU is charged, for programs that did not count for a while.
    pub(super) fn restart_clocks(&self) -> io::Result<()> {
        self.cpus.set_all(0, CpuState::default())
    }
}

/// Opens the program that charges a CPU, from the directory of one load.
pub(super) fn open_charge_running(programs: &Path) -> io::Result<OwnedFd> {
    open_pinned(&programs.join(CHARGE_RUNNING))
}

/// The numbers of the CPUs the kernel may ever use, in the order of values in per-CPU maps.
pub(super) fn possible_cpus() -> io::Result<Vec<u32>> {
    const PATH: &str = "/sys/devices/system/cpu/possible";
    let text = fs::read_to_string(PATH)?;
    parse_cpus(text.trim())
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("{PATH}: {text:?}")))
}

/// Parses a list such as `0-3,8`.
fn parse_cpus(list: &str) -> Option<Vec<u32>> {
    let mut cpus = Vec::new();
    for range in list.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        cpus.extend(first..=last);
    }
    Some(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus_are_parsed() {
        assert_eq!(parse_cpus("0-2,8"), Some(vec![0, 1, 2, 8]));
        assert_eq!(parse_cpus("0"), Some(vec![0]));
        assert_eq!(parse_cpus("0-"), None);
    }
}
