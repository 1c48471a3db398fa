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

/// Time between two attempts to leave a remote task, if the first was never answered. Longer than a call of a driver
/// may take, so that the second is not made while the first is under way.
pub const DETACH_INTERVAL: Duration = Duration::from_mins(2);

/// Longest kill timeout that is honoured: the longest that a job may ask for. It keeps sums of timeouts away from
/// overflow.
pub const KILL_TIMEOUT_MAX: Duration = muster_domain::limits::DELAY_MAX;

/// Allocations remembered after they were destroyed, so that a late message does not bring them
/// back. A lagging server can only repeat what it was told within seconds; a node destroys a few
/// hundred allocations in that time at most.
pub const TOMBSTONES_MAX: usize = 4096;

/// Bytes of a description or event message that are reported; a driver's error may quote a whole
/// configuration.
pub const MESSAGE_BYTES_MAX: usize = 1024;

/// How long the servers have to answer an agent that finds at its start that what it runs should have stopped for
/// want of them: a session and a counted heartbeat take one or two seconds. Half would stop tasks because a server
/// was busy.
pub const FIRST_CONTACT: Duration = Duration::from_secs(5);
/// How long after such a patience ended any agent waits for that, however often it is started. With the patience of
/// one-off tasks, their grace and [`STOP_GRACE`] it must be less than the minute after which the servers give them up;
/// half would leave no start the whole of [`FIRST_CONTACT`].
pub const FIRST_CONTACT_LATE_MAX: Duration = Duration::from_secs(10);

/// First pause before a server that failed is tried again, doubled each time up to
/// [`RECONNECT_PAUSE_MAX`].
pub const RECONNECT_PAUSE_MIN: Duration = Duration::from_millis(100);
/// Longest pause before a server that failed is tried again. With 10 000 agents and three servers that
/// is 700 attempts a second at a server that comes back, which it refuses cheaply. Double would use up the
/// time to live of a node while the agent waits.
pub const RECONNECT_PAUSE_MAX: Duration = Duration::from_secs(5);
/// Longest time that a server can send an agent away for.
pub const AWAY_MAX: Duration = Duration::from_secs(15);
/// Servers that are remembered. Clusters have up to five; the rest is room for those that come and go.
pub const SERVERS_MAX: usize = 16;

/// First pause before an allocation that its driver or the kernel did not let go of is destroyed again,
/// doubled each time up to [`DESTROY_PAUSE_MAX`].
pub const DESTROY_PAUSE_MIN: Duration = Duration::from_secs(1);
/// Longest pause before such a destroy is tried again. A driver that was mended should not keep a full
/// disk waiting longer; half would only fill the log of one that stays broken.
pub const DESTROY_PAUSE_MAX: Duration = Duration::from_mins(5);

/// Longest time of a collection that one report tells of; one that takes longer is told in parts. Nobody should wait for
/// hours to hear of a node that never comes to an end; half would tell twice of what goes on for a minute.
pub const GC_ROUND_MAX: Duration = Duration::from_mins(1);
/// Least time between two reports of a node's collections that nobody asked for. With 5 000 nodes that all collect that is
/// 83 reports a second, which share two log entries a second of each server; half would only say the same in smaller pieces,
/// double would tell of a disk that fills up when it is full.
pub const GC_REPORT_PAUSE: Duration = Duration::from_mins(1);
