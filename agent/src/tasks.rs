//! Allocations, their tasks, and the task drivers.
//!
//! | module | subject |
//! |---|---|
//! | `alloc` | one allocation: carries out decisions of `agent-core` |
//! | `drivers` | task drivers, the native one in a process of its own |
//! | `process` | a driver's process by pid and start time |
//! | `task` | one task: carries out decisions of `agent-core` |
//! | `task_env` | environment variables of tasks |

pub(crate) mod alloc;
pub(crate) mod drivers;
pub(crate) mod process;
pub(crate) mod task;
pub(crate) mod task_env;
