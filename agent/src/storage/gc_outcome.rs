//! Result of a forced garbage collection.

use muster_agent_core::gc::KeptReason;

/// The result of a forced collection, or of its dry run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GcOutcome {
    /// Allocations that were destroyed.
    pub freed: u64,
    /// Files and directories of the trash that were deleted meanwhile.
    pub inodes: u64,
    /// Their bytes on disk.
    pub bytes: u64,
    /// Allocations that stay, by reason.
    pub kept: Vec<(KeptReason, u64)>,
}
