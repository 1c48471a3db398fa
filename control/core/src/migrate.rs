//! Finds the data that an allocation may get from another node, and their place. This is the work of
//! `ephemeral_disk.migrate`.
//!
//! An agent asks its server for the data of the allocation that one of its own allocations replaces. The server refuses
//! requests for the data of any other allocation. A node learns only about allocations whose replacement was placed on
//! it. The transfer of the data is the shell's work.

use muster_domain::alloc::{ClientStatus, DesiredStatus};
use muster_domain::id::{AllocId, NodeId};
use muster_domain::node::NodeStatus;

use crate::state::State;

/// The answer to a node that asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiskSource {
    /// The data are on this node, and no task writes to them any more.
    At {
        node_id: NodeId,
        /// Tasks that both allocations have.
        tasks: Vec<String>,
    },
    /// The former allocation has not ended yet.
    NotEnded,
    /// This server has no record of the allocation yet.
    Unknown(UnknownReplacement),
    /// There are no data to get, now or later.
    Nothing(NoDataError),
}

/// The unknown allocation that asks: a server that is behind has no record of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this server does not know allocation {0} yet")]
pub struct UnknownReplacement(pub AllocId);

/// The reason why an allocation does not get the data of another.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoDataError {
    /// The allocation is on another node.
    #[error("allocation {0} is not on the node that asks for it; start its agent again")]
    NotYours(AllocId),
    /// The allocation replaces another allocation, or none.
    #[error("allocation {alloc_id} does not replace allocation {previous}")]
    NotItsHeir {
        alloc_id: AllocId,
        /// The allocation whose data were asked for.
        previous: AllocId,
    },
    /// The allocation's group does not ask for the data.
    #[error("ephemeral_disk.migrate is not set in group \"{0}\"")]
    NotAsked(String),
    /// The former allocation is no longer in the state.
    #[error("allocation {0} is forgotten; raise the servers' thresholds of collection")]
    Forgotten(AllocId),
    /// The former allocation was on the same node, which would have moved the data.
    #[error("allocation {0} was on this node, which has its data no longer")]
    SameNode(AllocId),
    /// The node of the former allocation is no longer in the state.
    #[error("node {0} of the former allocation is purged")]
    Purged(NodeId),
    /// The node of the former allocation is out of reach.
    #[error("node {node_id} of the former allocation is {}", status.as_str())]
    OutOfReach {
        node_id: NodeId,
        /// The known status of the node.
        status: NodeStatus,
    },
    /// The former allocation was given up when its node was out of reach. It may have run since.
    #[error("allocation {previous} is {}: its node was out of reach, and the time of its end is unknown", status.as_str())]
    GivenUp {
        previous: AllocId,
        /// The known status of the other allocation.
        status: ClientStatus,
    },
    #[error("allocation {0} runs on, with its data")]
    RunsOn(AllocId),
}

/// Decides whether the agent of `asking` may have the data of `previous` for `alloc_id`.
#[must_use]
pub fn judge(state: &State, asking: NodeId, alloc_id: AllocId, previous: AllocId) -> DiskSource {
    match find(state, asking, alloc_id, previous) {
        Ok(verdict) => verdict,
        Err(error) => DiskSource::Nothing(error),
    }
}

fn find(
    state: &State,
    asking: NodeId,
    alloc_id: AllocId,
    previous: AllocId,
) -> Result<DiskSource, NoDataError> {
    let Some(heir) = state.allocs().get(&alloc_id) else {
        return Ok(DiskSource::Unknown(UnknownReplacement(alloc_id)));
    };
    if heir.node_id() != asking {
        return Err(NoDataError::NotYours(alloc_id));
    }
    if heir.previous() != Some(previous) {
        return Err(NoDataError::NotItsHeir { alloc_id, previous });
    }
    let group = heir.group();
    if !group.ephemeral_disk.migrate {
        return Err(NoDataError::NotAsked(group.name.clone()));
    }
    let former = state.allocs().get(&previous);
    let former = former.ok_or(NoDataError::Forgotten(previous))?;
    let node_id = former.node_id();
    if node_id == asking {
        return Err(NoDataError::SameNode(previous));
    }
    let node = state.nodes().get(&node_id);
    match node.ok_or(NoDataError::Purged(node_id))?.status {
        NodeStatus::Ready => {}
        status @ (NodeStatus::Initializing | NodeStatus::Down | NodeStatus::Disconnected) => {
            return Err(NoDataError::OutOfReach { node_id, status });
        }
    }
    match (former.client_status(), former.desired()) {
        (ClientStatus::Complete | ClientStatus::Failed, _) => {
            let has = |name: &str| former.group().task(name).is_some();
            let tasks = group.tasks.iter().map(|task| task.name.clone());
            let tasks = tasks.filter(|name| has(name)).collect();
            Ok(DiskSource::At { node_id, tasks })
        }
        (status @ (ClientStatus::Lost | ClientStatus::Unknown), _) => {
            Err(NoDataError::GivenUp { previous, status })
        }
        (ClientStatus::Pending | ClientStatus::Running, DesiredStatus::Run) => {
            Err(NoDataError::RunsOn(previous))
        }
        (
            ClientStatus::Pending | ClientStatus::Running,
            DesiredStatus::Stop | DesiredStatus::Evict,
        ) => Ok(DiskSource::NotEnded),
    }
}

#[cfg(test)]
mod tests;
