//! Settings that operators change while the cluster runs: one row.

use muster_domain::id::LogIndex;
use muster_domain::scheduling::SchedulerConfig;

use super::digest::Digest;

/// The settings and the entries that wrote them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Config {
    pub scheduler: SchedulerConfig,
    /// The entry that first wrote them; 0 while they are the defaults.
    pub create_index: LogIndex,
    /// The entry that last wrote them.
    pub modify_index: LogIndex,
}

impl Config {
    pub(super) fn hash(&self) -> u64 {
        Digest::of(self)
    }
}
