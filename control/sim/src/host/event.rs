//! Events of a machine.

use muster_domain::alloc::Exit;
use muster_domain::id::AllocId;

/// A task: its allocation and its position in the group.
pub type TaskKey = (AllocId, usize);

/// Something that happens in a machine. Events of the agent carry the agent's life.
#[derive(Clone, Debug)]
pub enum HostEvent {
    /// The allocation's directories are made, or cannot be.
    Prepared {
        life: u64,
        alloc_id: AllocId,
        /// Whether the directories cannot be made.
        failed: bool,
    },
    /// The agent has the driver start a task.
    Start {
        life: u64,
        task: TaskKey,
        /// Counts the starts of the task.
        attempt: u32,
    },
    /// The agent looks for a task.
    Recover {
        life: u64,
        task: TaskKey,
        /// The start looked for.
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
        /// The way it ended.
        exit: Exit,
    },
    /// Everything of an allocation is removed.
    Destroyed { life: u64, alloc_id: AllocId },
    /// Processes that nobody wants are ended.
    Sweep { life: u64 },
}
