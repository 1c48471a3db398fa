//! The bounds of this crate: each with its unit, its reason and what happens beyond it.

use std::time::Duration;

/// Bytes of one protocol message, either way. A larger one fails its call.
///
/// Nomad allows 2 GiB less one; the largest message that exists is a task's configuration with its
/// environment, which the kernel caps far lower at `execve`, or the output of an exec.
pub const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// Calls that may be open at once on one connection; more wait in the client.
///
/// Every running task has a `WaitTask` open. The default of the HTTP library, 200, would make the
/// 201st task's start wait for ever behind the waits of the others.
pub const STREAMS_MAX: u32 = 65_536;

/// How long a call that does no work on a task may take before it fails.
pub const CALL_DEADLINE: Duration = Duration::from_secs(30);

/// How long a start or a recovery may take before it fails: a driver may fetch an image first.
pub const START_DEADLINE: Duration = Duration::from_mins(15);

/// What a stop or an exec may take on top of the time that its caller gave it.
pub const DEADLINE_MARGIN: Duration = Duration::from_secs(30);

/// How long a connection attempt to a driver's socket may take: the socket is local.
pub const CONNECT_DEADLINE: Duration = Duration::from_secs(5);

/// Events that a slow reader of [`crate::TaskDriver::task_events`] may lag behind; the oldest are
/// dropped beyond that. Events inform, they carry no state.
pub const TASK_EVENTS_MAX: usize = 1_024;

/// Messages of an exec session that may wait in either direction; the faster side then blocks.
pub const EXEC_MESSAGES_MAX: usize = 64;

/// Depth of a configuration schema. A deeper one is refused: it comes from another process.
pub const SCHEMA_DEPTH_MAX: usize = 32;

/// How long [`crate::plugin::serve`] lets open calls finish once it was told to end; then it drops
/// them. Waits and streams never finish by themselves.
pub const DRAIN_DEADLINE: Duration = Duration::from_millis(500);
