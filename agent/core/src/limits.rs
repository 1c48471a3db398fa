//! Bounds of the pure agent.

use std::time::Duration;

/// Time a driver gets beyond a task's kill timeout before the agent kills the cgroup itself.
///
/// A driver forces by itself when the timeout is over, which takes milliseconds. Half of this bound would race with the
/// driver on a busy machine. Double would keep a task of a dead driver alive without need.
pub const STOP_GRACE: Duration = Duration::from_secs(5);

/// Time between two attempts to kill a task that does not end, such as a task that is blocked in the kernel. A repeated
/// kill is cheap, and only the first attempt records an event.
pub const FORCE_INTERVAL: Duration = Duration::from_secs(10);

/// Time between two attempts to detach from a remote task, if the first was never answered. It is longer than a
/// driver's call may take, so that two calls never overlap.
pub const DETACH_INTERVAL: Duration = Duration::from_mins(2);

/// Longest kill timeout that is honoured: the longest that a job may ask for. The bound keeps sums of timeouts from
/// overflowing.
pub const KILL_TIMEOUT_MAX: Duration = muster_domain::limits::DELAY_MAX;

/// Allocations remembered after they were destroyed, so that a late message does not bring them back. A lagging server
/// repeats only state of the last seconds. A node destroys a few hundred allocations in that time at most.
pub const TOMBSTONES_MAX: usize = 4096;

/// Bytes of a description or event message that are reported; a driver's error may quote a whole
/// configuration.
pub const MESSAGE_BYTES_MAX: usize = 1024;

/// Time that the servers have to answer an agent that finds expired disconnect deadlines at its start. A session and a
/// counted heartbeat take one or two seconds. Half would stop tasks because a server was busy.
pub const FIRST_CONTACT: Duration = Duration::from_secs(5);
/// Time after an expired disconnect deadline in which an agent still waits for its servers, however often it is
/// started. With the disconnect limit of one-off tasks, their grace and [`STOP_GRACE`] it must stay below a minute.
/// After that minute the servers mark such tasks lost. Half would leave no start the whole of [`FIRST_CONTACT`].
pub const FIRST_CONTACT_LATE_MAX: Duration = Duration::from_secs(10);

/// First pause before a server that failed is tried again, doubled each time up to
/// [`RECONNECT_PAUSE_MAX`].
pub const RECONNECT_PAUSE_MIN: Duration = Duration::from_millis(100);
/// Longest pause before a server that failed is tried again. With 10 000 agents and three servers that
/// is 700 attempts a second at a server that comes back, which it refuses cheaply. Double would use up the
/// time to live of a node while the agent waits.
pub const RECONNECT_PAUSE_MAX: Duration = Duration::from_secs(5);
/// Longest time that a server can send an agent away for.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(15);
/// Servers that are remembered. Clusters have up to five; the rest is room for those that come and go.
pub const SERVERS_MAX: usize = 16;

/// First pause before the destroy of an allocation is tried again after its driver or the kernel refused it. The pause
/// doubles up to [`DESTROY_PAUSE_MAX`].
pub const DESTROY_PAUSE_MIN: Duration = Duration::from_secs(1);
/// Longest pause before a refused destroy is tried again. Double would keep a full disk waiting after a driver was
/// repaired. Half would only fill the log for a driver that stays broken.
pub const DESTROY_PAUSE_MAX: Duration = Duration::from_mins(5);

/// Longest time that one report of a collection covers; a longer collection is reported in parts. Without the bound, an
/// endless collection would never be reported. Half would report a collection of a minute twice.
pub const GC_ROUND_MAX: Duration = Duration::from_mins(1);
/// Least time between two unrequested reports of a node's collections. With 5 000 nodes that all collect, this gives 83
/// reports a second, which share two log entries a second of each server. Half would only split the same facts into
/// smaller reports. Double would report a filling disk when it is already full.
pub const GC_REPORT_PAUSE: Duration = Duration::from_mins(1);
