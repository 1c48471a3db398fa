//! The bounds of this crate, each with its unit, its reason and the behavior beyond it.

use std::time::Duration;

/// Bytes of one protocol message in either direction. A larger message fails its call.
///
/// Nomad allows 2 GiB less one byte. The largest real messages are a task's configuration with its environment, and
/// the output of an exec. The kernel limits the environment far lower at `execve`.
pub const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// The first loopback port that a host lets its drivers listen on. The range is Nomad's default, which drivers'
/// manuals and firewalls know. The ports of tasks begin at 20 000.
pub const DRIVER_PORT_MIN: u16 = 14_000;
/// The last port of the range that begins with [`DRIVER_PORT_MIN`].
pub const DRIVER_PORT_MAX: u16 = 14_512;

/// Bytes of a task's driver state, which the agent stores and sends with each recovery. Nomad's drivers need a few
/// hundred bytes. A task is not kept when its driver sends more.
pub const DRIVER_STATE_BYTES_MAX: usize = 1 << 20;

/// Calls that may be open at once on one connection; further calls wait in the client.
///
/// With a foreign driver, every running task has an open `WaitTask`. With the HTTP library's default of 200, the start
/// of the 201st task would wait forever behind those calls.
pub const STREAMS_MAX: u32 = 65_536;

/// Tasks whose end was requested and that wait to be written to the driver. Further requests wait for room.
pub(crate) const ENDS_REQUESTS_MAX: usize = 64;

/// The time that a call without work on a task may take before it fails.
pub const CALL_DEADLINE: Duration = Duration::from_secs(30);

/// The time that a start or a recovery may take before it fails. A driver may download an image first.
pub const START_DEADLINE: Duration = Duration::from_mins(15);

/// The time that a streaming call waits for its answer before the client treats the stream as open. Our drivers answer
/// immediately, and every driver refuses immediately. Half of this is too little on a loaded machine. Double is a
/// noticeable delay for a user who opens a session in a driver written in Go.
pub const STREAM_GRACE: Duration = Duration::from_millis(500);

/// The time that a stop or an exec may take beyond the caller's timeout.
pub const DEADLINE_MARGIN: Duration = Duration::from_secs(30);

/// The time that a connection attempt to a driver's socket may take. The socket is local.
pub const CONNECT_DEADLINE: Duration = Duration::from_secs(5);

/// Events that a slow reader of [`crate::TaskDriver::task_events`] may lag behind; beyond that, the oldest events are
/// dropped. Events inform and carry no state.
pub const TASK_EVENTS_MAX: usize = 1_024;

/// Messages of an exec session that may wait in either direction; then the faster side blocks.
pub const EXEC_MESSAGES_MAX: usize = 64;

/// The nesting depth of lists and objects in a msgpack configuration, which is read recursively. A job's JSON has at
/// most 128 levels. The stack of a thread is enough for several times as many.
pub const CONFIG_DEPTH_MAX: usize = 160;

/// The depth of a configuration schema. A deeper schema is refused, because it comes from another process.
pub const SCHEMA_DEPTH_MAX: usize = 32;

/// The time that [`crate::plugin::serve`] gives open calls to finish after its shutdown was requested; then it drops
/// them. Waits and streams never finish by themselves.
pub const DRAIN_DEADLINE: Duration = Duration::from_millis(500);

/// Bytes of a unix socket's path, less the closing zero (`unix(7)`).
pub const SOCKET_PATH_BYTES_MAX: usize = 107;

/// Bytes that a plugin's library adds to the directory of its socket: a slash, `plugin`, up to twenty digits, and a
/// reserve.
pub const SOCKET_NAME_BYTES: usize = 32;

/// Bytes of a plugin's handshake line; longer than any socket path. A longer line is refused.
pub const HANDSHAKE_BYTES_MAX: u64 = 4 << 10;

/// The pause between two checks for a plugin's handshake line. A plugin starts within 10 milliseconds, and few plugins
/// are started.
pub const HANDSHAKE_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Bytes of the end of a plugin's output that an error quotes.
pub const LOG_TAIL_BYTES_MAX: u64 = 1 << 10;

/// Bytes of one line of a plugin's log. A longer one is logged in parts.
pub const LOG_LINE_BYTES_MAX: usize = 16 << 10;

/// Bytes of a plugin's log that are read at a time.
pub const LOG_READ_BYTES: usize = 64 << 10;

/// Bytes of a plugin's log file after which the host truncates the file. By then, the agent's log contains its lines.
pub const LOG_FILE_BYTES_MAX: u64 = 10 << 20;

/// Bytes of a plugin's log from the time without a host that the next host forwards. Older bytes are left out, and
/// their number is logged. An ordinary driver writes this in hours; more would push the agent's own lines out of its
/// log.
pub const LOG_BACKLOG_BYTES_MAX: u64 = 1 << 20;

/// The pause between two checks of a plugin's log. People read the log; half of this doubles the wake-ups of an idle
/// node.
pub const LOG_POLL_INTERVAL: Duration = Duration::from_millis(500);
