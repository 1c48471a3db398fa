//! How long, how many, how often.

use std::time::Duration;

/// How long anything may take on a slow machine.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);
/// How long one request of a client may take.
pub(crate) const REQUEST: Duration = Duration::from_secs(4);
/// How long a client tries to learn what became of a write; then nobody knows.
pub(crate) const WRITE: Duration = Duration::from_secs(15);
/// Pause of a client between two operations: histories stay small enough to be checked.
pub(crate) const PAUSE: Duration = Duration::from_millis(15);
/// Clients at work.
pub(crate) const CLIENTS: usize = 6;
/// Jobs that they write and read.
pub(crate) const KEYS: usize = 8;
/// How long a history may take to be checked.
pub(crate) const CHECK: Duration = Duration::from_mins(1);
/// How long clients work in peace before and after a fault.
pub(crate) const PEACE: Duration = Duration::from_secs(2);
/// Deaths of a leader; many with `MUSTER_CLUSTER_LONG`.
pub(crate) const KILLS: usize = 6;
/// See [`KILLS`].
pub(crate) const KILLS_LONG: usize = 50;

/// Whether the long run is asked for.
pub(crate) fn long() -> bool {
    std::env::var_os("MUSTER_CLUSTER_LONG").is_some_and(|value| value == "1")
}
