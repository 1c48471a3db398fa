//! Files and records of the agent and its allocations.
//!
//! | module | subject |
//! |---|---|
//! | `allocdir` | directories of allocations and tasks |
//! | [`disk`] | limits of ephemeral disks |
//! | `gc` | removal of finished allocations |
//! | [`gc_outcome`] | result of a forced collection |
//! | `leftovers` | resources that drivers and the kernel did not release |
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
    /// The host paths in roots of tasks whose drivers change into a root.
    pub(crate) chroot_env: Arc<ChrootEnv>,
    /// The leases on directories that are read for other nodes.
    pub(crate) dir_leases: Arc<DirLeases>,
    /// Permits for allocations that fetch data from other nodes, [`crate::limits::FETCHES_MAX`].
    pub(crate) fetches: Semaphore,
    /// The destroyed allocations that are being deleted.
    pub(crate) trash: Arc<Trash>,
    /// The resources that drivers and the kernel did not release.
    pub(crate) leftovers: Leftovers,
    /// Permits for moving allocations' directories to the trash at the same time.
    pub(crate) destroys: Semaphore,
    /// The state of collection, as last published by the node's loop.
    pub(crate) collection: watch::Sender<GcState>,
}

impl StorageContext {
    /// Moves all directories of an allocation to the trash: one rename for its directories, one for its logs.
    pub(crate) async fn discard(&self, alloc_id: AllocId) -> Result<(), DirError> {
        // A transfer to another node would otherwise read only a part of the data.
        self.dir_leases.wait_for_readers(alloc_id).await;
        let (data, trash) = (self.data.clone(), Arc::clone(&self.trash));
        let disks = Arc::clone(&self.disks);
        let moved = tokio::task::spawn_blocking(move || {
            disks.release(&data.alloc(alloc_id).alloc);
            data.discard_alloc(&trash, alloc_id)
        });
        // A panic in the thread is a bug. Directories that were moved before the panic stay in the trash. A retry moves
        // the rest.
        let moved = moved.await;
        let moved = moved.unwrap_or_else(|panic| Err(DirError::panicked(&panic)));
        if moved.is_ok() {
            self.dir_leases.forget(alloc_id);
        }
        moved
    }
}
