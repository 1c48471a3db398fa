//! Tasks that run on another system than the agent's, and that outlive the agent.
//!
//! A driver finds such a task again by its handle, on any node. When the node is drained or lost, the replacement
//! allocation gets the handle and the task keeps running.

use serde::{Deserialize, Serialize};

use crate::id::AllocId;
use crate::limits;

/// The handle by which a driver finds a remote task again.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RemoteHandle {
    /// The task's name in its group.
    pub task: String,
    /// The driver's own handle, without node-specific data. Only the driver reads it. At most
    /// [`limits::REMOTE_HANDLE_BYTES_MAX`].
    pub handle: Vec<u8>,
}

impl RemoteHandle {
    /// Whether the handle is small enough to be stored.
    #[must_use]
    pub fn fits(&self) -> bool {
        self.handle.len() <= limits::REMOTE_HANDLE_BYTES_MAX
    }
}

/// Data about the remote tasks of one allocation. The agent needs it in addition to the order to run the allocation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteAlloc {
    pub alloc_id: AllocId,
    /// Tasks that run already. The agent takes over each one that it has not started itself.
    pub take: Vec<RemoteHandle>,
    /// Tasks that were handed to another allocation. When this allocation stops, the agent detaches from them and does
    /// not stop them. A task whose handle has changed since is not meant.
    pub leave: Vec<RemoteHandle>,
}

impl RemoteAlloc {
    /// Data for an allocation without remote tasks.
    #[must_use]
    pub fn none(alloc_id: AllocId) -> Self {
        Self {
            alloc_id,
            take: Vec::new(),
            leave: Vec::new(),
        }
    }

    /// Whether there are no handles.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.take.is_empty() && self.leave.is_empty()
    }

    /// Total bytes of the handles.
    #[must_use]
    pub fn handle_bytes(&self) -> usize {
        let handles = self.take.iter().chain(&self.leave);
        handles.map(|handle| handle.handle.len()).sum()
    }
}
