//! How long, how many, how often.

use std::time::Duration;

use muster_driver::fixture::long;

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
/// Longer than the longest election timeout, 1.5 s: a follower without a leader has stood for election.
pub(crate) const ELECTION: Duration = Duration::from_secs(2);
/// How long it may take until another server leads: a lease of 0.75 s, an election, and time for a slow machine. Less
/// than the ten seconds after which a connection is given up.
pub(crate) const SUCCESSION: Duration = Duration::from_secs(6);
/// Deaths of a leader in a row.
pub(crate) fn kills() -> usize {
    if long() { 50 } else { 2 }
}
