//! Messages to the runner of an allocation.

use muster_agent_core::alloc::Event;
use muster_domain::alloc::{DesiredAlloc, RemoteAlloc};

/// A message to an allocation's inbox. It is small, because every inbox reserves room for some from the start.
#[derive(Debug)]
pub(crate) enum Input {
    /// The control plane changed the desired state, or the job.
    Desired(Box<(DesiredAlloc, RemoteAlloc)>),
    /// Stop, and remove all of the allocation.
    Destroy,
    /// Stop, because the agent stops with its tasks.
    Stop,
    /// Stop, because no server was reachable for the time that the job allows.
    Disconnected,
    /// The node's or the cluster's network rules changed.
    RulesChanged,
    Event(Box<Event>),
}

impl From<Event> for Input {
    fn from(event: Event) -> Self {
        Self::Event(Box::new(event))
    }
}
