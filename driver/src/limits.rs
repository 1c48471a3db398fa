//! The bounds of this crate: each with its unit, its reason and what happens beyond it.

use std::time::Duration;

/// Bytes of one protocol message, either way. A larger one fails its call.
///
/// Nomad allows 2 GiB less one; the largest message that exists is a task's configuration with its
/// environment, which the kernel caps far lower at `execve`, or the output of an exec.
pub const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// The first port of the loopback that a driver is told it may listen on, and the last: those that Nomad names unless
/// told otherwise, which drivers' manuals and firewalls know, and none that tasks are given (20 000 on).
pub const DRIVER_PORT_MIN: u16 = 14_000;
/// The last of the ports that begin with [`DRIVER_PORT_MIN`].
pub const DRIVER_PORT_MAX: u16 = 14_512;

/// Bytes of what a driver knows of a task that the agent stores for it, and sends with each recovery. Drivers of Nomad
/// need some hundred bytes. A task whose driver sends more is not kept.
pub const DRIVER_STATE_BYTES_MAX: usize = 1 << 20;

/// Calls that may be open at once on one connection; more wait in the client.
///
/// With a driver that is not ours every running task has a `WaitTask` open. The default of the HTTP library, 200,
/// would make the 201st task's start wait for ever behind the waits of the others.
pub const STREAMS_MAX: u32 = 65_536;

/// Tasks whose ends were asked for and wait to be written to the driver; who asks beyond that waits for room.
pub(crate) const ENDS_ASKED_MAX: usize = 64;

/// How long a call that does no work on a task may take before it fails.
pub const CALL_DEADLINE: Duration = Duration::from_secs(30);

/// How long a start or a recovery may take before it fails: a driver may fetch an image first.
pub const START_DEADLINE: Duration = Duration::from_mins(15);

/// How long a streaming call waits for its answer before it is taken as open. A driver of ours
/// answers at once, and any driver refuses at once; half would be too little on a loaded machine,
/// double would be felt by who opens a session in a driver written in Go.
pub const STREAM_GRACE: Duration = Duration::from_millis(500);

/// The time that a stop or an exec may take on top of the time that its caller gave it.
pub const DEADLINE_MARGIN: Duration = Duration::from_secs(30);

/// How long a connection attempt to a driver's socket may take: the socket is local.
pub const CONNECT_DEADLINE: Duration = Duration::from_secs(5);

/// Events that a slow reader of [`crate::TaskDriver::task_events`] may lag behind; the oldest are
/// dropped beyond that. Events inform, they carry no state.
pub const TASK_EVENTS_MAX: usize = 1_024;

/// Messages of an exec session that may wait in either direction; the faster side then blocks.
pub const EXEC_MESSAGES_MAX: usize = 64;

/// Lists and objects inside each other in a configuration in msgpack, which is read recursively. A job's JSON has at
/// most 128; a task's thread has the stack for several times as many.
pub const CONFIG_DEPTH_MAX: usize = 160;

/// Depth of a configuration schema. A deeper one is refused: it comes from another process.
pub const SCHEMA_DEPTH_MAX: usize = 32;

/// How long [`crate::plugin::serve`] lets open calls finish once it was told to end; then it drops
/// them. Waits and streams never finish by themselves.
pub const DRAIN_DEADLINE: Duration = Duration::from_millis(500);

/// Bytes of a unix socket's path, less the closing zero (`unix(7)`).
pub const SOCKET_PATH_BYTES_MAX: usize = 107;

/// Bytes that a plugin's library adds to the directory of its socket: a slash, `plugin` and up to
/// twenty digits, and some to spare.
pub const SOCKET_NAME_BYTES: usize = 32;

/// Bytes of a plugin's first line; longer than any path of a socket. A longer line is refused.
pub const HANDSHAKE_BYTES_MAX: u64 = 4 << 10;

/// Pause between two looks whether a plugin has printed its first line. A plugin starts within 10
/// milliseconds, and few are started.
pub const HANDSHAKE_LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// Bytes of the end of a plugin's output that an error quotes.
pub const LAST_WORDS_BYTES_MAX: u64 = 1 << 10;

/// Bytes of one line of a plugin's log. A longer one is logged in parts.
pub const LOG_LINE_BYTES_MAX: usize = 16 << 10;

/// Bytes of a plugin's log that are read at a time.
pub const LOG_READ_BYTES: usize = 64 << 10;

/// Bytes of a plugin's log file after which it is emptied once it was read: what was in it is in the
/// agent's log.
pub const LOG_FILE_BYTES_MAX: u64 = 10 << 20;

/// Bytes of what a plugin logged while no host ran that the next one tells; older ones are left out, and how many is
/// told. Lines of hours of an ordinary driver; more would only push the agent's own words out of its log.
pub const LOG_BEHIND_BYTES_MAX: u64 = 1 << 20;

/// Pause between two looks at a plugin's log. People read it: half costs twice the wake-ups of an
/// idle node.
pub const LOG_LOOK_INTERVAL: Duration = Duration::from_millis(500);
