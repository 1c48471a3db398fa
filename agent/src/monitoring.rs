//! Measurements of the machine and its tasks, and the node's conditions.
//!
//! | module | subject |
//! |---|---|
//! | `conditions` | reasons for which the node takes no new work |
//! | [`doctor`] | missing features of this machine |
//! | `fingerprint` | attributes and capacity of the machine |
//! | `history` | usage of tasks in the last minutes |
//! | `pressure` | tasks that wait for memory, disks or processors |
//! | `start_health` | failed starts on this node |
//! | `stats` | usage of tasks and of the machine |

pub(crate) mod conditions;
pub mod doctor;
pub(crate) mod fingerprint;
pub(crate) mod history;
pub(crate) mod pressure;
pub(crate) mod start_health;
pub(crate) mod stats;

use std::sync::atomic::AtomicU64;

use conditions::Conditions;
use history::Histories;
use start_health::StartHealth;

/// Conditions of one node, and the usage of its tasks.
#[derive(Debug)]
pub(crate) struct MonitoringContext {
    /// Reasons for which the node takes no new work.
    pub(crate) conditions: Conditions,
    /// Success and failure of recent starts.
    pub(crate) start_health: StartHealth,
    /// The usage of tasks in the last minutes.
    pub(crate) histories: Histories,
    /// Entries of eBPF maps whose cgroup was gone, and that were removed.
    pub(crate) ebpf_stale_removed: AtomicU64,
}
