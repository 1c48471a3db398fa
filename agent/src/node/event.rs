//! Events of the node's loop.

use std::time::Duration;

use muster_agent_core::node::DesiredUpdate;
use muster_domain::alloc::RemoteAlloc;
use muster_domain::id::{AllocId, Timestamp};

use tokio::sync::oneshot;

use crate::node::inventory::NodeInventory;
use crate::storage::gc_outcome::GcOutcome;

/// Everything the node's loop reacts to.
#[derive(Debug)]
pub(crate) enum Event {
    /// A session with a server begins.
    SessionBegan,
    /// The control plane says what it wants.
    Desired {
        /// The update from the control plane.
        update: DesiredUpdate,
        /// The remote tasks of those allocations, as the control plane has them.
        remote: Vec<RemoteAlloc>,
    },
    /// Everything that belongs to no allocation is to be removed.
    SweepDue {
        /// The remains on the machine before this event.
        found: NodeInventory,
    },
    /// Destroy everything that has finished, and try at once to delete what could not be deleted.
    CollectGarbage,
    /// The same; `done` is told when it is over, or at once what it would do.
    Collect {
        dry_run: bool,
        /// Told what was done.
        done: oneshot::Sender<GcOutcome>,
    },
    /// The directories of an allocation are made, or cannot be: it has what it gets of the one that it replaces.
    Prepared {
        alloc_id: AllocId,
    },
    /// Drivers and the kernel have let go of an allocation that is to be destroyed.
    Released {
        alloc_id: AllocId,
    },
    Refused {
        alloc_id: AllocId,
    },
    /// The driver of a task that ended is not on the node any more: what it has of the task stays with it.
    Abandoned,
    /// The control plane has committed reports.
    ReportsCommitted,
    /// The node's or the cluster's network rules changed.
    RulesChanged,
    /// Nothing of an allocation runs, and nothing will.
    Finished {
        alloc_id: AllocId,
        /// The time since which that is so.
        at: Timestamp,
    },
    /// Nothing of an allocation is left.
    Destroyed {
        alloc_id: AllocId,
    },
    /// Stop every task; `done` is told when none runs.
    StopAll {
        /// Told when no task runs.
        done: oneshot::Sender<()>,
        /// Told how long the slowest stop of any of them may take.
        longest: oneshot::Sender<Duration>,
    },
}
