//! Events of the node's loop.

use std::time::Duration;

use muster_agent_core::node::DesiredUpdate;
use muster_domain::alloc::RemoteAlloc;
use muster_domain::id::{AllocId, Timestamp};

use tokio::sync::oneshot;

use crate::node::inventory::NodeInventory;
use crate::storage::gc_outcome::GcOutcome;

/// An event of the node's loop.
#[derive(Debug)]
pub(crate) enum Event {
    /// A session with a server begins.
    SessionBegan,
    /// The control plane sends desired allocations.
    Desired {
        /// The update from the control plane.
        update: DesiredUpdate,
        /// The remote tasks of those allocations, as the control plane recorded them.
        remote: Vec<RemoteAlloc>,
    },
    /// Tasks and directories that belong to no allocation are to be removed.
    SweepDue {
        /// The tasks and directories that were on the machine before this event.
        found: NodeInventory,
    },
    /// Destroy all finished allocations, and immediately retry deletions that failed.
    CollectGarbage,
    /// Destroys all finished allocations. `done` receives the outcome at the end, or at once the expected outcome
    /// of a dry run.
    Collect {
        dry_run: bool,
        /// Receives the outcome.
        done: oneshot::Sender<GcOutcome>,
    },
    /// The directories of an allocation are made, or cannot be. Its inheritance from the replaced allocation is
    /// complete.
    Prepared {
        alloc_id: AllocId,
    },
    /// Drivers and the kernel have released an allocation that is to be destroyed.
    Released {
        alloc_id: AllocId,
    },
    Refused {
        alloc_id: AllocId,
    },
    /// The driver of an ended task is no longer on the node. The remains of the task in the driver stay there.
    Abandoned,
    /// The control plane has committed reports.
    ReportsCommitted,
    /// The node's or the cluster's network rules changed.
    RulesChanged,
    /// An allocation has no running task and will have none.
    Finished {
        alloc_id: AllocId,
        /// The time at which its last task ended.
        at: Timestamp,
    },
    /// No part of an allocation is left.
    Destroyed {
        alloc_id: AllocId,
    },
    /// Stop every task; `done` is notified when none runs.
    StopAll {
        /// Is notified when no task runs.
        done: oneshot::Sender<()>,
        /// Receives the longest time that the stop of any task may take.
        longest: oneshot::Sender<Duration>,
    },
}
