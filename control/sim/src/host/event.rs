//! Events of a machine.

use muster_domain::alloc::Exit;
use muster_domain::id::AllocId;

/// A task: its allocation and its position in the group.
pub type TaskKey = (AllocId, usize);

/// An event in a machine. Events for the agent carry the agent's life.
#[derive(Clone, Debug)]
pub enum HostEvent {
    /// The creation of the allocation's directories has ended.
    Prepared {
        life: u64,
        alloc_id: AllocId,
        /// Whether the directories could not be created.
        failed: bool,
    },
    /// The driver starts a task for the agent.
    Start {
        life: u64,
        task: TaskKey,
        /// The number of the task's start.
        attempt: u32,
    },
    /// The agent looks for the process of a task.
    Recover {
        life: u64,
        task: TaskKey,
        /// The number of the start that the agent looks for.
        attempt: u32,
    },
    /// The driver answers the agent.
    Answered {
        life: u64,
        task: TaskKey,
        input: muster_agent_core::task::TaskInput,
    },
    Ends {
        boot: u64,
        task: TaskKey,
        /// The number of the start.
        attempt: u32,
        /// The exit of the process.
        exit: Exit,
    },
    /// All data of an allocation are removed.
    Destroyed { life: u64, alloc_id: AllocId },
    /// Processes of allocations that the agent has no record of are ended.
    Sweep { life: u64 },
}
