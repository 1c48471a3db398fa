//! Bounds of the pure agent.

use std::time::Duration;

/// Time a driver gets beyond a task's kill timeout before the agent kills the cgroup itself.
///
/// A driver forces by itself when the timeout is over, which takes milliseconds; half of this would
/// race with it on a busy machine, double would keep a task of a dead driver alive for no reason.
pub const STOP_GRACE: Duration = Duration::from_secs(5);

/// Time between two attempts to kill a task that does not go away, such as one that is stuck in the
/// kernel. Killing again is cheap, but each attempt leaves an event if it is the first.
pub const FORCE_INTERVAL: Duration = Duration::from_secs(10);

/// Longest kill timeout that is honoured, whatever the job asks: a day. It keeps sums of timeouts
/// away from overflow and a forgotten zero from keeping a node busy for ever.
pub const KILL_TIMEOUT_MAX: Duration = Duration::from_hours(24);

/// Allocations remembered after they were destroyed, so that a late message does not bring them
/// back. A lagging server can only repeat what it was told within seconds; a node destroys a few
/// hundred allocations in that time at most.
pub const TOMBSTONES_MAX: usize = 4096;

/// Bytes of a description or event message that are reported; a driver's error may quote a whole
/// configuration.
pub const MESSAGE_BYTES_MAX: usize = 1024;
