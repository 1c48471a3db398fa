//! Timeouts and sizes of the tests.

use std::time::Duration;

use muster_driver::fixture::long;

/// The timeout for any step on a slow machine.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);
/// The timeout of one client request.
pub(crate) const REQUEST: Duration = Duration::from_secs(4);
/// The time for which a client retries a write; after that the outcome is unknown.
pub(crate) const WRITE: Duration = Duration::from_secs(15);
/// Pause of a client between two operations: histories stay small enough to be checked.
pub(crate) const PAUSE: Duration = Duration::from_millis(15);
/// Clients at work.
pub(crate) const CLIENTS: usize = 6;
/// Number of jobs that the clients write and read.
pub(crate) const KEYS: usize = 8;
/// The timeout for the check of a history.
pub(crate) const CHECK: Duration = Duration::from_mins(1);
/// A time longer than the longest election timeout, 1.5 s. A follower without a leader has started an election by then.
pub(crate) const ELECTION: Duration = Duration::from_secs(2);
/// The timeout for the election of another leader: a lease of 0.75 s, an election, and time for a slow machine. It is
/// less than the ten seconds after which a connection is closed.
pub(crate) const SUCCESSION: Duration = Duration::from_secs(6);
/// Deaths of a leader in a row.
pub(crate) fn kills() -> usize {
    if long() { 50 } else { 2 }
}
