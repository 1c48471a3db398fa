//! Bounds on messages.

/// Bytes of one frame's body between an agent and a server.
///
/// The largest message is a full set of desired allocations, which is cut into batches of
/// [`DESIRED_BATCH_MAX`]; a job is at most about 2 MiB. Not half: a large job must fit. Not double: a
/// peer can make us hold this much per stream.
pub const FRAME_BYTES_MAX: usize = 8 << 20;
/// Bytes of one log entry or of one record in a snapshot.
pub const ENTRY_BYTES_MAX: usize = 64 << 20;
/// Desired allocations in one message.
pub const DESIRED_BATCH_MAX: usize = 256;
/// Ids of unchanged allocations in one message: 64 kB.
pub const UNCHANGED_BATCH_MAX: usize = 4096;
/// Allocation reports in one message.
pub const REPORT_BATCH_MAX: usize = 256;
/// Bytes of log data in one message.
pub const LOG_CHUNK_BYTES_MAX: usize = 64 << 10;
/// Bytes of a session's input or output in one message. A client of Nomad sends as many at once.
pub const EXEC_CHUNK_BYTES_MAX: usize = 32 << 10;
/// Bytes of a session that may be in flight and unacknowledged in either direction: 6 MB/s at 20 ms. Sixty-four stalled
/// sessions occupy a quarter of the connection's window.
pub const EXEC_WINDOW_BYTES: u32 = 128 << 10;
/// Bytes of a session's command, all arguments together. The kernel allows 2 MiB; a URL holds less.
pub const EXEC_COMMAND_BYTES_MAX: usize = 64 << 10;
/// Bytes of a log that a reader may forward without acknowledging them. The bound is below the smallest window of an
/// agent for one reader, so that neither waits for the other.
pub const LOG_TAKEN_BYTES: u64 = 4 << 10;
/// Bytes of an allocation's data in one message, as [`crate::rpc::DiskEntry::cost`] counts them.
pub const DISK_PIECE_BYTES_MAX: usize = 64 << 10;
/// Bytes of an allocation's data that may be in flight between nodes and not unpacked: 25 MB/s at 20 ms. A node accepts
/// few such streams at a time. If all of them stall, three quarters of its connection's window are left.
pub const DISK_WINDOW_BYTES: u32 = 512 << 10;
/// Bytes of an allocation's data that a node may unpack without acknowledging them. The bound is an eighth of the
/// window, so that neither side waits for the other.
pub const DISK_TAKEN_BYTES: u64 = 64 << 10;
/// Bytes of an HTTP request body. Nomad's `job_max_source_size` is 1 MiB of job file; its JSON form
/// is up to four times that.
pub const HTTP_BODY_BYTES_MAX: usize = 4 << 20;
/// Bytes of a job file.
pub const JOB_FILE_BYTES_MAX: usize = 1 << 20;
/// Longest blocking query.
pub const BLOCKING_WAIT_MAX: std::time::Duration = std::time::Duration::from_mins(10);
/// Wait of a blocking query that names none.
pub const BLOCKING_WAIT_DEFAULT: std::time::Duration = std::time::Duration::from_mins(5);
/// Faults and warnings of one request that are listed one by one; the rest are counted. Users do not fix more at a
/// time.
pub const FAULTS_MAX: usize = 100;
