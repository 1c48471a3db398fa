//! Allocations, their tasks, and the task drivers.
//!
//! | module | subject |
//! |---|---|
//! | `alloc` | one allocation: carries out decisions of `agent-core` |
//! | `alloc_input` | messages to the runner of an allocation |
//! | `drivers` | task drivers, the native one in a process of its own |
//! | `live` | tasks that have a process |
//! | `missing_record` | meaning of a task record that is missing |
//! | `process` | a driver's process by pid and start time |
//! | `task` | one task: carries out decisions of `agent-core` |
//! | `task_ref` | one task of an allocation |
//! | `task_env` | environment variables of tasks |

pub(crate) mod alloc;
pub(crate) mod alloc_input;
pub(crate) mod drivers;
pub(crate) mod live;
pub(crate) mod missing_record;
pub(crate) mod process;
pub(crate) mod task;
pub(crate) mod task_env;
pub(crate) mod task_ref;

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
