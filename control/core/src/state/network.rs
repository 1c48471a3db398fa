//! The cluster's network policy, which applies where neither job nor node sets one: one row.

use std::sync::Arc;

use muster_domain::id::LogIndex;
use muster_domain::job::NetworkPolicy;

use super::digest::Digest;

/// The cluster's network policy and the entries that wrote it.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ClusterPolicy {
    pub policy: Arc<NetworkPolicy>,
    /// The entry that first wrote one; 0 if none was written.
    pub create_index: LogIndex,
    /// The entry that last wrote it.
    pub modify_index: LogIndex,
}

impl ClusterPolicy {
    /// Returns the policy's part of the hash of the settings. It is 0 if no policy was ever written, so that states
    /// from before the policy existed keep their hash.
    pub(super) fn hash(&self) -> u64 {
        if *self == Self::default() {
            return 0;
        }
        Digest::of(self)
    }
}
