//! Tasks that run on another system than their agent's, and outlive it.
//!
//! Their driver finds one again by its handle, on any node. So the replacement of an allocation gets the handle when
//! the node is drained or lost, and the task runs on.

use serde::{Deserialize, Serialize};

use crate::id::AllocId;
use crate::limits;

/// The handle by which a driver finds a remote task again.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RemoteHandle {
    /// The task's name in its group.
    pub task: String,
    /// The driver's own, without what differs from node to node: nobody else reads it. At most
    /// [`limits::REMOTE_HANDLE_BYTES_MAX`].
    pub handle: Vec<u8>,
}

impl RemoteHandle {
    /// Whether it is small enough to be kept.
    #[must_use]
    pub fn fits(&self) -> bool {
        self.handle.len() <= limits::REMOTE_HANDLE_BYTES_MAX
    }
}

/// Data about the remote tasks of one allocation that its agent needs besides the order to run it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteAlloc {
    pub alloc_id: AllocId,
    /// Tasks that run already: what has not been started here is taken over, not started.
    pub take: Vec<RemoteHandle>,
    /// Tasks that another allocation was given: when this one is to stop, they are detached from, not
    /// stopped. One that has another handle by now is not meant.
    pub leave: Vec<RemoteHandle>,
}

impl RemoteAlloc {
    /// Of an allocation without anything of that kind.
    #[must_use]
    pub fn none(alloc_id: AllocId) -> Self {
        Self {
            alloc_id,
            take: Vec::new(),
            leave: Vec::new(),
        }
    }

    /// Whether it says nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.take.is_empty() && self.leave.is_empty()
    }

    /// Bytes of its handles.
    #[must_use]
    pub fn handle_bytes(&self) -> usize {
        let handles = self.take.iter().chain(&self.leave);
        handles.map(|handle| handle.handle.len()).sum()
    }
}
