//! Files and records of the agent and its allocations.
//!
//! | module | subject |
//! |---|---|
//! | `allocdir` | directories of allocations and tasks |
//! | [`disk`] | limits of ephemeral disks |
//! | `gc` | removal of finished allocations |
//! | `migrate` | an allocation's data, to and from other nodes |
//! | `payload` | files that a dispatched job brings |
//! | `roots` | root directories made of the host's directories |
//! | `store` | records that survive the agent |
//! | [`trash`] | deletion in the background |
//! | `volumes` | host volumes in tasks |

pub(crate) mod allocdir;
pub mod disk;
pub(crate) mod gc;
pub(crate) mod migrate;
pub(crate) mod payload;
pub(crate) mod roots;
pub(crate) mod store;
pub mod trash;
pub(crate) mod volumes;
