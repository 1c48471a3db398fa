//! Allocations, their tasks, and the task drivers.
//!
//! | module | subject |
//! |---|---|
//! | `alloc` | one allocation: carries out decisions of `agent-core` |
//! | `drivers` | task drivers, the native one in a process of its own |
//! | `live` | tasks that have a process |
//! | `process` | a driver's process by pid and start time |
//! | `task` | one task: carries out decisions of `agent-core` |
//! | `task_env` | environment variables of tasks |

pub(crate) mod alloc;
pub(crate) mod drivers;
pub(crate) mod live;
pub(crate) mod process;
pub(crate) mod task;
pub(crate) mod task_env;

use drivers::Drivers;
use drivers::nomad::NomadDrivers;
use live::LiveTasks;

/// Task drivers and running tasks of one node.
#[derive(Debug)]
pub(crate) struct TaskContext {
    pub(crate) drivers: Drivers,
    /// Nomad's drivers that the native driver serves.
    pub(crate) nomad_drivers: NomadDrivers,
    /// Tasks that have a process.
    pub(crate) live: LiveTasks,
}
