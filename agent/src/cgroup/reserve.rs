//! What all tasks together leave to the machine, and what drivers have among them.
//!
//! Placement keeps the sum of what tasks ask for below the node's resources less its reservations, and each task below
//! its own limit; tasks that may have more than they ask for (`memory_max`) could take the rest. The tree's limit keeps
//! it: who goes beyond is killed among the tasks, and not the agent or whoever else the kernel finds. CPU needs no such
//! limit: the tree as a whole weighs as much as the agent's group beside it.

use crate::cgroup::resources::ApplyLimitError;
use crate::cgroup::{Controller, NodeTree, cpu, memory};

/// What drivers weigh among allocations, in MHz: they start and end tasks, and take little. A thousand tasks of 100 MHz
/// leave them a tenth of the processors.
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
        Ok(())
    }
}
