//! The share of the machine that all tasks together leave free, and the share of drivers.
//!
//! Placement keeps the sum of what tasks ask for below the node's resources less its reservations, and each task below
//! its own limit. Tasks that may have more than they ask for (`memory_max`) could take the rest. The tree's limit
//! prevents that: the kernel then kills among the tasks, and neither the agent nor another process of the machine. CPU
//! needs no such limit: the tree as a whole weighs as much as the agent's group beside it. Processes and threads need
//! one: each task has its own limit, but the sum of those may exceed the kernel's numbers. Then nothing on the machine
//! could start.

use crate::resources::cgroup::controller::Controller;
use crate::resources::cgroup::limits::{PIDS_KEPT_MAX, PIDS_KEPT_PART};
use crate::resources::cgroup::resources::ApplyLimitError;
use crate::resources::cgroup::tree::NodeTree;
use crate::resources::cgroup::{cpu, memory, pids};

/// The weight of drivers among allocations, in MHz: they start and end tasks, and take little. A thousand tasks of 100
/// MHz leave them a tenth of the processors.
const DRIVERS_MHZ: u64 = 10_000;

impl NodeTree {
    /// Keeps all tasks together to `memory_bytes_max`, `None` being no limit, and has drivers run when tasks are busy.
    ///
    /// # Errors
    ///
    /// [`ApplyLimitError`]. Without a controller there is no limit, which [`Self::unenforced`] says.
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

/// Processes and threads that the kernel may have at a time: the less of its numbers and of what it has memory for.
fn kernel_pids() -> u64 {
    let number = |name: &str| {
        let text = std::fs::read_to_string(format!("/proc/sys/kernel/{name}")).ok()?;
        text.trim().parse::<u64>().ok()
    };
    let most = ["pid_max", "threads-max"].into_iter().filter_map(number);
    // The compiled-in default of a kernel without these files.
    most.min().unwrap_or(32_768)
}

/// How many of them all tasks and their drivers may have.
fn pids_for_tasks(kernel: u64) -> u64 {
    let kept = (kernel / PIDS_KEPT_PART).min(PIDS_KEPT_MAX);
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
