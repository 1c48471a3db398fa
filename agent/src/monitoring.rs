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
