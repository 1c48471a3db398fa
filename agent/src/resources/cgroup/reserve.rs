//! The share of the machine that all tasks together leave free, and the share of drivers.
//!
//! Placement keeps the sum of the tasks' requests below the node's resources less its reservations, and each task below
//! its own limit. Tasks that may have more than they request (`memory_max`) could take the rest. The tree's limit
//! prevents that. The kernel then kills among the tasks, and neither the agent nor another process of the machine. CPU
//! needs no such limit: the tree as a whole weighs as much as the agent's group next to it. Processes and threads need
//! a limit, because the sum of the tasks' limits may exceed the kernel's maximum. Then no program on the machine could
//! start.

use crate::resources::cgroup::controller::Controller;
use crate::resources::cgroup::limits::{PIDS_RESERVED_DIVISOR, PIDS_RESERVED_MAX};
use crate::resources::cgroup::resources::ApplyLimitError;
use crate::resources::cgroup::tree::NodeTree;
use crate::resources::cgroup::{cpu, memory, pids};

/// The weight of drivers relative to allocations, in MHz. Drivers start and end tasks, and need little. A thousand
/// tasks of 100 MHz leave them a tenth of the processors.
const DRIVERS_MHZ: u64 = 10_000;

impl NodeTree {
    /// Limits all tasks together to `memory_bytes_max`; `None` means no limit. Also sets the weight that lets drivers
    /// run when tasks are busy.
    ///
    /// # Errors
    ///
    /// [`ApplyLimitError`]. Without a controller there is no limit, and [`Self::unenforced`] lists it.
    pub(crate) fn reserve(&self, memory_bytes_max: Option<u64>) -> Result<(), ApplyLimitError> {
        if let Some(bound) = self.bound().get(&Controller::Memory) {
            memory::limit_all(&bound.root, bound.v2, memory_bytes_max)?;
        }
        if let Some(bound) = self.bound().get(&Controller::Cpu) {
            let drivers = Self::drivers_in(&bound.root);
            cpu::set_weight(&drivers, bound.v2, cpu::weight(DRIVERS_MHZ, bound.v2))?;
        }
        if let Some(bound) = self.bound().get(&Controller::Pids) {
            pids::limit_all(&bound.root, pids_for_tasks(kernel_pids()))?;
        }
        Ok(())
    }
}

/// The most processes and threads that the kernel allows at a time: the smaller of its numbers and of the number that
/// fits into memory.
fn kernel_pids() -> u64 {
    let number = |name: &str| {
        let text = std::fs::read_to_string(format!("/proc/sys/kernel/{name}")).ok()?;
        text.trim().parse::<u64>().ok()
    };
    let most = ["pid_max", "threads-max"].into_iter().filter_map(number);
    // The compiled-in default of a kernel without these files.
    most.min().unwrap_or(32_768)
}

/// The number of them that all tasks and their drivers may have.
fn pids_for_tasks(kernel: u64) -> u64 {
    let kept = (kernel / PIDS_RESERVED_DIVISOR).min(PIDS_RESERVED_MAX);
    kernel.saturating_sub(kept).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_keeps_processes_for_itself() {
        assert_eq!(pids_for_tasks(32_768), 28_672);
        assert_eq!(pids_for_tasks(4_194_304), 4_190_208);
        assert_eq!(pids_for_tasks(1_000), 875);
        assert_eq!(pids_for_tasks(0), 1);
    }
}
