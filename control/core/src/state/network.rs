//! The cluster's network policy, where neither job nor node sets it: one row.

use std::sync::Arc;

use muster_domain::id::LogIndex;
use muster_domain::job::NetworkPolicy;

use super::digest::Digest;

/// The cluster's network policy and who wrote it.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ClusterPolicy {
    pub policy: Arc<NetworkPolicy>,
    /// The entry that first wrote one; 0 while none was.
    pub create_index: LogIndex,
    /// The entry that last wrote it.
    pub modify_index: LogIndex,
}

impl ClusterPolicy {
    /// Part of the hash of the settings: nothing while no policy was ever written, so that states from before there
    /// could be one hash as they did.
    pub(super) fn hash(&self) -> u64 {
        if *self == Self::default() {
            return 0;
        }
        Digest::of(self)
    }
}
