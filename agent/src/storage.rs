//! Files and records of the agent and its allocations.
//!
//! | module | subject |
//! |---|---|
//! | `allocdir` | directories of allocations and tasks |
//! | [`disk`] | limits of ephemeral disks |
//! | `gc` | removal of finished allocations |
//! | [`gc_outcome`] | result of a forced collection |
//! | `leftovers` | remains that drivers and the kernel did not let go of |
//! | `migrate` | an allocation's data, to and from other nodes |
//! | `payload` | files that a dispatched job brings |
//! | `roots` | root directories made of the host's directories |
//! | `store` | records that survive the agent |
//! | [`trash`] | deletion in the background |
//! | `volumes` | host volumes in tasks |

pub(crate) mod allocdir;
pub mod disk;
pub(crate) mod gc;
pub mod gc_outcome;
pub(crate) mod leftovers;
pub(crate) mod migrate;
pub(crate) mod payload;
pub(crate) mod roots;
pub(crate) mod store;
pub mod trash;
pub(crate) mod volumes;

use std::sync::Arc;

use muster_agent_core::gc::GcState;
use muster_domain::id::AllocId;
use tokio::sync::{Semaphore, watch};

use allocdir::{DataDir, DirError};
use disk::Disks;
use leftovers::Leftovers;
use migrate::dir_leases::DirLeases;
use roots::ChrootEnv;
use store::Store;
use trash::Trash;

/// Directories and records of one agent.
#[derive(Debug)]
pub(crate) struct StorageContext {
    pub(crate) data: DataDir,
    /// The store, which survives the agent.
    pub(crate) store: Store,
    /// The disk limits of allocations.
    pub(crate) disks: Arc<Disks>,
    /// The host paths in roots of tasks whose drivers change into one.
    pub(crate) chroot_env: Arc<ChrootEnv>,
    /// Data that are read for other nodes.
    pub(crate) dir_leases: Arc<DirLeases>,
    /// Places for allocations that want data from other nodes, [`crate::limits::FETCHES_MAX`].
    pub(crate) fetches: Semaphore,
    /// The destroyed allocations that are being deleted.
    pub(crate) trash: Arc<Trash>,
    /// The remains that drivers and the kernel did not let go of.
    pub(crate) leftovers: Leftovers,
    /// Allocations whose directories may be moved to the trash at a time.
    pub(crate) destroys: Semaphore,
    /// The state of collection, as the node's loop last said.
    pub(crate) collection: watch::Sender<GcState>,
}

impl StorageContext {
    /// Moves everything of an allocation to the trash: one rename for its directories, one for its logs.
    pub(crate) async fn discard(&self, alloc_id: AllocId) -> Result<(), DirError> {
        // A reader that lends them to another node would get half of what is there.
        self.dir_leases.leave(alloc_id).await;
        let (data, trash) = (self.data.clone(), Arc::clone(&self.trash));
        let disks = Arc::clone(&self.disks);
        let moved = tokio::task::spawn_blocking(move || {
            disks.release(&data.alloc(alloc_id).alloc);
            data.discard_alloc(&trash, alloc_id)
        });
        // A panic there is ours. What was moved before it stays in the trash; the rest is moved when it
        // is tried again.
        let moved = moved.await;
        let moved = moved.unwrap_or_else(|panic| Err(DirError::panicked(&panic)));
        if moved.is_ok() {
            self.dir_leases.left(alloc_id);
        }
        moved
    }
}
