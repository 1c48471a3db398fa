//! The bounds of this crate, each with its unit, its reason and the behavior beyond it.

use std::time::Duration;

/// Processes that may be between clone and exec at once; further starts wait.
///
/// Each process holds a thread of the blocking pool until its program is loaded, 0.2 to 0.5 ms when the program is
/// cached. A program on a file system that hangs keeps its place.
pub const SPAWNS_MAX: usize = 16;

/// The time that a thread for task starts waits for the next start before it ends. The runtime's threads for blocking
/// work wait as long.
pub const THREAD_IDLE_MAX: Duration = Duration::from_secs(10);

/// The time that the mounts of a task are kept from its start on, even if the task has ended. The end of a short task
/// then need not wait until the kernel has dismantled the mounts, which is a tenth of the task's life.
pub const MOUNTS_KEPT: Duration = Duration::from_millis(200);

/// The pause between two checks for mounts that were kept long enough. Many are released together.
pub const MOUNTS_PAUSE: Duration = Duration::from_millis(50);

/// Tasks whose mounts are kept at once: those of 2 000 starts a second. The mounts of a further task are released at
/// its end, as for a task that ran longer.
pub const MOUNTS_KEPT_MAX: usize = 512;

/// Bytes of stack for a child between clone and exec. It makes some twenty system calls and calls
/// nothing that recurses; a debug build uses less than 4 KiB.
pub const CHILD_STACK_BYTES: usize = 64 << 10;

/// The lowest descriptor of a file that is kept open for a task. Lower descriptors are for files that starts need
/// briefly, some twenty each, and for transfers and sessions.
pub const HIGH_FD_MIN: i32 = 1_024;

/// Tasks whose cgroup directory is held open, which saves 6 µs on each access. A usual hard limit of open files is
/// 20 000. Each task needs three more files, so 5 000 tasks with their cgroups would reach the limit.
pub const CGROUPS_HELD_MAX: usize = 1_024;

/// The time that a killed task may take to die before the stop fails and names the process. Only a process that is
/// stuck in the kernel takes that long.
pub const KILL_DEADLINE: Duration = Duration::from_secs(10);

/// The longest pause between two checks of a cgroup that empties. The first pause is 1 ms.
pub const EMPTY_POLL_MAX: Duration = Duration::from_millis(20);

/// Bytes that are kept of each output of a command in a task. The rest is read and discarded, and the result reports
/// that. Health checks print less; larger output needs a streaming exec.
pub const EXEC_OUTPUT_BYTES_MAX: usize = 1 << 20;

/// Bytes read from a command's output at once: an eighth of a pipe.
pub const EXEC_READ_BYTES: usize = 8 << 10;

/// Bytes of output that are still forwarded after the command of a session ended: all that its pipe can hold (1 MiB at
/// most, `/proc/sys/fs/pipe-max-size`). A process that the command left running may write forever.
pub const EXEC_TAIL_BYTES_MAX: usize = 1 << 20;

/// Messages of a session that may wait for its reader; then the command waits. Each message has at most
/// [`EXEC_READ_BYTES`].
pub const SESSION_OUTPUTS_MAX: usize = 8;

/// The time that the driver waits for output after a command ended. A process that the command left running may hold
/// the pipe open forever.
pub const EXEC_DRAIN_DEADLINE: Duration = Duration::from_millis(250);

/// Events that a slow reader may lag behind before it loses some.
pub const EVENTS_MAX: usize = 1_024;

/// The time after which an unchanged fingerprint is repeated. The fingerprint does not change by itself; a host that
/// dropped one gets the next.
pub const FINGERPRINT_INTERVAL: Duration = Duration::from_mins(1);

/// The shortest interval of statistics; a shorter one is raised to it. A sample costs some 20 µs.
pub const STATS_INTERVAL_MIN: Duration = Duration::from_millis(10);

/// Bytes that are read of a file of /proc or a cgroup; the largest such file has some 3 KiB.
pub const KERNEL_FILE_BYTES_MAX: u64 = 64 << 10;

/// The size that most of those files do not exceed: a buffer of this size is allocated first.
pub const KERNEL_FILE_BYTES: usize = 1 << 10;

/// Bytes of a unix socket's path that the kernel accepts (unix(7): `sun_path` less its zero byte).
pub const SOCKET_PATH_BYTES_MAX: usize = 107;

/// Bytes of stack for a process that only sleeps. The process never uses them, but the kernel requires a stack.
pub const IDLE_STACK_BYTES: usize = 4 << 10;

/// Bytes of a host's file that a root contains as a copy in memory. `/etc/ld.so.cache` is the largest usual one, some
/// 100 KiB. A larger file is left out.
pub const HOST_FILE_BYTES_MAX: u64 = 4 << 20;

/// Roots that are kept ready; a further root evicts the oldest. A node has one root, and one for each set of mount
/// points that its jobs name.
pub const TEMPLATES_MAX: usize = 64;

/// The time that a root counts as current without a check of its source files. A check costs some 20 µs, and a change
/// of `/etc` need not take effect sooner.
pub const TEMPLATE_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Ids of a strict task: as many as a system inside it may expect.
pub const IDS_PER_TASK: u32 = 1 << 16;

/// The first host id of strict tasks. It is above the ids that distributions, directory services and other container
/// engines assign.
pub const FIRST_ID: u32 = 0x4000_0000;

/// Strict tasks on one node. The last range ends below 2^31, because some programs treat larger numbers as negative.
pub const ID_RANGES_MAX: u32 = 16_000;

/// Characters of a host name, as one label of a domain name.
pub const HOST_NAME_BYTES_MAX: usize = 63;

/// Bytes of `/dev/shm` in a task without a memory limit. Its content counts as the task's memory.
pub const SHM_BYTES: u64 = 64 << 20;

/// Bytes of a task's `resolv.conf`. The C library reads three servers and has room for some 1 000 bytes of domains. A
/// start with more is refused.
pub const RESOLV_CONF_BYTES_MAX: usize = 64 << 10;

/// Mounts that a job may request.
pub const MOUNTS_MAX: usize = 64;

/// Attempts to make a mount read-only while a file on it is open for writing.
///
/// A child between clone and exec holds the file open for milliseconds. All attempts together last a second. If a
/// mount is busy for longer, another process holds it.
pub(crate) const READ_ONLY_ATTEMPTS_MAX: u32 = 200;
/// The pause between two of those attempts.
pub(crate) const READ_ONLY_PAUSE: Duration = Duration::from_millis(5);

/// The time from SIGKILL until the driver gives up a process of an action, as in Diego. Also the time from a stop
/// until the driver gives up a program that is being loaded. Only a process that is stuck in the kernel takes that
/// long.
pub const ACTION_EXIT_DEADLINE: Duration = Duration::from_secs(1);

/// The time that a line about an action waits for room in the task's output. A longer wait means that no process reads
/// the output, and that must not block an action.
pub const ACTION_LINE_DEADLINE: Duration = Duration::from_secs(1);

/// The time to wait for the end of a tree after all of its processes were killed. It is half of [`KILL_DEADLINE`], so
/// that the caller of the kill gets an answer.
pub const ACTIONS_END_DEADLINE: Duration = Duration::from_secs(5);

/// Concurrent file transfers on a node, the same number as in Diego's cells. A download fetches and unpacks; an upload
/// reads and sends. Further transfers wait.
pub const TRANSFERS_MAX: usize = 5;

/// The largest size of one downloaded or uploaded file, unless the task's own disk is smaller. During the transfer the
/// content is in a file without a name in the task's directory.
pub const TRANSFER_BYTES_MAX: u64 = 4 << 30;

/// The largest unpacked size of one archive, unless the task's own disk is smaller. A compressed file of 16 MiB can
/// contain that many zeros.
pub const UNPACKED_BYTES_MAX: u64 = 16 << 30;

/// Entries of one archive. The largest package trees have some 100 000 files, and each costs the disk an inode.
pub const UNPACKED_ENTRIES_MAX: u64 = 250_000;

/// Bytes of a long name or of extended attributes in a tar file. A name has at most 4 KiB, and both are read into
/// memory. An archive with more is refused.
pub const TAR_EXTENSION_BYTES_MAX: u64 = 64 << 10;

/// Bytes that may follow the end of a compressed tar file. Programs pad to records of 10 KiB, or optionally of 1 MiB.
pub const TAR_TRAILER_BYTES_MAX: u64 = 1 << 20;

/// Bytes that are read, unpacked and forwarded at once.
pub const TRANSFER_CHUNK_BYTES: usize = 64 << 10;

/// Attempts of one transfer over the network; the number is Diego's.
pub const TRANSFER_ATTEMPTS_MAX: u32 = 3;

/// The pause before the second attempt; each further pause is twice as long.
pub const TRANSFER_PAUSE: Duration = Duration::from_millis(500);

/// The time that one attempt may take, and that unpacking may take. It is Diego's time for an upload.
pub const TRANSFER_DEADLINE: Duration = Duration::from_mins(10);

/// The time to look up a name, open a connection and negotiate TLS.
pub const TRANSFER_CONNECT_DEADLINE: Duration = Duration::from_secs(10);

/// The time in which the other side may neither send nor receive data.
pub const TRANSFER_IDLE_DEADLINE: Duration = Duration::from_secs(30);

/// Redirects that are followed for one download. Each target address is checked like the first.
pub const REDIRECTS_MAX: u32 = 5;

/// Bytes of a URL for a download or an upload, the limit of most servers.
pub const URL_BYTES_MAX: usize = 8 << 10;

/// The interval at which a thread that forwards an archive checks for a stopped transfer while the task reads nothing.
pub const TRANSFER_STOP_POLL: Duration = Duration::from_millis(100);

/// The highest bound that an operator may set on the bytes of a result. Diego's cells keep 50 KiB. Results stay in the
/// memory of every server as long as their tasks.
pub const RESULT_BYTES_LIMIT: usize = 256 << 10;

/// The pause between two queries for the exit status of a process that is not a child.
pub const EXIT_INFO_PAUSE: Duration = Duration::from_millis(30);

/// The number of those queries. Together they take three seconds. The first process of a container may be slow to reap
/// its children, and the kernel reports the status to other processes only then.
pub const EXIT_INFO_ATTEMPTS_MAX: u32 = 100;
