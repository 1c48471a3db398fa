//! The bounds of this crate: each with its unit, its reason and what happens beyond it.

use std::time::Duration;

/// Processes that may be between clone and exec at once; further starts wait.
///
/// Each holds a thread of the blocking pool until its program is loaded, 0.2 to 0.5 ms when the
/// program is cached. A program on a file system that hangs keeps its place.
pub const SPAWNS_MAX: usize = 16;

/// Time a thread that starts tasks waits for the next one before it ends. The runtime's threads for blocking work wait
/// as long.
pub const STARTER_IDLE: Duration = Duration::from_secs(10);

/// Time the mounts of a task are kept from its start on, even if it has ended meanwhile. The end of a short task then
/// need not wait until the kernel has taken them apart, a tenth of the whole.
pub const MOUNTS_KEPT: Duration = Duration::from_millis(200);

/// Between two looks for mounts that were kept long enough: many are let go together.
pub const MOUNTS_PAUSE: Duration = Duration::from_millis(50);

/// Tasks whose mounts are kept at once: those of 2 000 starts a second. Of one more they go with its end, as they do
/// when it has run for longer.
pub const MOUNTS_KEPT_MAX: usize = 512;

/// Bytes of stack for a child between clone and exec. It makes some twenty system calls and calls
/// nothing that recurses; a debug build uses less than 4 KiB.
pub const CHILD_STACK_BYTES: usize = 64 << 10;

/// The lowest number of a file that is kept open for a task. Below it are those that starts need for a moment, some
/// twenty each, and those of transfers and sessions.
pub const HELD_FILES_FROM: i32 = 1_024;

/// Tasks whose cgroup is held open, which saves 6 µs whenever it is looked at. A usual hard limit of open files is 20
/// 000. Each task has three more: of 5 000 tasks with their cgroups there would be too many.
pub const CGROUPS_HELD_MAX: usize = 1_024;

/// Time a killed task may take to die before the stop fails and names the process. Only a process stuck in the kernel
/// takes that long.
pub const KILL_DEADLINE: Duration = Duration::from_secs(10);

/// The longest pause between two looks at a cgroup that empties. The first pause is 1 ms.
pub const EMPTY_POLL_MAX: Duration = Duration::from_millis(20);

/// Bytes kept of each output of a command run in a task; the rest is read and thrown away, and the
/// result says so. Health checks print less; more belongs into a streaming exec.
pub const EXEC_OUTPUT_BYTES_MAX: usize = 1 << 20;

/// Bytes read from a command's output at once: an eighth of a pipe.
pub const EXEC_READ_BYTES: usize = 8 << 10;

/// Bytes of output that are still passed on after the command of a session ended: all that its pipe can
/// hold (1 MiB at most, `/proc/sys/fs/pipe-max-size`). Something it left running may write for ever.
pub const EXEC_TAIL_BYTES_MAX: usize = 1 << 20;

/// Messages of a session that may wait for its reader; then its command waits. Each has at most
/// [`EXEC_READ_BYTES`].
pub const SESSION_OUTPUTS_MAX: usize = 8;

/// Time output is still awaited after a command ended. Something it left running may hold the pipe open for ever.
pub const EXEC_DRAIN_DEADLINE: Duration = Duration::from_millis(250);

/// Events that a slow reader may lag behind before it misses some.
pub const EVENTS_MAX: usize = 1_024;

/// Time after which the fingerprint repeats itself. Nothing in it changes by itself; a host that dropped one gets the
/// next.
pub const FINGERPRINT_INTERVAL: Duration = Duration::from_mins(1);

/// The shortest interval of statistics; a shorter one is taken as this. A sample costs some 20 µs.
pub const STATS_INTERVAL_MIN: Duration = Duration::from_millis(10);

/// Bytes of a file of /proc or a cgroup that are read; the largest that is read has some 3 KiB.
pub const KERNEL_FILE_BYTES_MAX: u64 = 64 << 10;

/// Bytes that most of those files have at most: room for them is taken at once.
pub const KERNEL_FILE_BYTES: usize = 1 << 10;

/// Bytes of a unix socket's path that the kernel takes (unix(7): `sun_path` less its zero byte).
pub const SOCKET_PATH_BYTES_MAX: usize = 107;

/// Bytes of stack for a process that only sleeps: it never uses them, and the kernel wants some.
pub const IDLE_STACK_BYTES: usize = 4 << 10;

/// Bytes of a host's file that a root shows as a copy in memory. `/etc/ld.so.cache` is the largest
/// usual one, some 100 KiB; a larger file is left out.
pub const HOST_FILE_BYTES_MAX: u64 = 4 << 20;

/// Roots kept ready; one more throws the oldest away. A node has one, and one for each set of mount
/// points that its jobs name.
pub const TEMPLATES_MAX: usize = 64;

/// Time a root is taken for current without a look at the files it was made from. A look costs some 20 µs, and a change
/// of `/etc` need not be seen sooner.
pub const TEMPLATE_TRUSTED: Duration = Duration::from_secs(1);

/// Ids that a strict task has: as many as a system that runs in it may expect.
pub const IDS_PER_TASK: u32 = 1 << 16;

/// The first host id of strict tasks: above those that distributions, directory services and other
/// container engines give out.
pub const FIRST_ID: u32 = 0x4000_0000;

/// Strict tasks on one node. The last range ends below 2^31, where some programs see negative numbers.
pub const ID_RANGES_MAX: u32 = 16_000;

/// Letters of a host name, as one label of a domain name.
pub const HOST_NAME_BYTES_MAX: usize = 63;

/// Bytes of `/dev/shm` in a task without a memory limit; what is in it counts as the task's memory.
pub const SHM_BYTES: u64 = 64 << 20;

/// Bytes of a task's `resolv.conf`. The C library reads three servers and has room for some 1 000 bytes of domains; a
/// start that says more is refused.
pub const RESOLV_CONF_BYTES_MAX: usize = 64 << 10;

/// Mounts that a job may ask for.
pub const MOUNTS_MAX: usize = 64;

/// Attempts to make a mount read-only while a file on it is open for writing.
///
/// A child between its birth and its program holds the file open, for milliseconds. The attempts last a second in all.
/// Something else holds a mount that is busy for longer.
pub(crate) const READ_ONLY_ATTEMPTS_MAX: u32 = 200;
/// The pause between two of them.
pub(crate) const READ_ONLY_PAUSE: Duration = Duration::from_millis(5);

/// From SIGKILL to a process of an action to giving it up, as Diego has it; and from a stop to giving up a program
/// that is being loaded. Only a process stuck in the kernel takes that long.
pub const ACTION_EXIT_DEADLINE: Duration = Duration::from_secs(1);

/// Time a line about an action waits for room in the task's output. A longer wait means that nothing reads, and an
/// action must not stand still for that.
pub const ACTION_LINE_DEADLINE: Duration = Duration::from_secs(1);

/// The wait for the end of a tree once everything of it was killed. It is half of [`KILL_DEADLINE`], so that the caller
/// of the kill gets an answer.
pub const ACTIONS_END_DEADLINE: Duration = Duration::from_secs(5);

/// Transfers of files at once on a node, and how many of Diego's cells do: a download fetches and unpacks, an upload
/// reads and sends. More wait for their turn.
pub const TRANSFERS_MAX: usize = 5;

/// The most bytes of one fetched or sent file, if the task's own disk is not smaller. They lie in a file without a name
/// in the task's directory meanwhile.
pub const TRANSFER_BYTES_MAX: u64 = 4 << 30;

/// The most bytes that one archive may unpack to, if the task's own disk is not smaller. A compressed file of 16 MiB
/// can hold that many zeros.
pub const UNPACKED_BYTES_MAX: u64 = 16 << 30;

/// Entries of one archive. The largest trees of packages of programs have some 100 000 files; each costs the disk an
/// inode.
pub const UNPACKED_ENTRIES_MAX: u64 = 250_000;

/// Bytes of a long name or of extended attributes in a tar file: a name has at most 4 KiB, and both are read into
/// memory. An archive with more is refused.
pub const TAR_EXTENSION_BYTES_MAX: u64 = 64 << 10;

/// Bytes that may follow the end of a compressed tar file: programs pad to records of 10 KiB, or of 1 MiB if they are
/// told to.
pub const TAR_TRAILER_BYTES_MAX: u64 = 1 << 20;

/// Bytes that are read, unpacked and handed on at once.
pub const TRANSFER_CHUNK_BYTES: usize = 64 << 10;

/// Attempts of one transfer over the network. Diego's.
pub const TRANSFER_ATTEMPTS_MAX: u32 = 3;

/// The pause before the second attempt; each further one is twice as long.
pub const TRANSFER_PAUSE: Duration = Duration::from_millis(500);

/// Time one attempt may take, and time unpacking may take. It is Diego's time for an upload.
pub const TRANSFER_DEADLINE: Duration = Duration::from_mins(10);

/// Time to look up a name, make a connection and agree on TLS.
pub const TRANSFER_CONNECT_DEADLINE: Duration = Duration::from_secs(10);

/// Time the other side may send nothing, and take nothing.
pub const TRANSFER_IDLE_DEADLINE: Duration = Duration::from_secs(30);

/// Redirects that are followed for one download. Each leads to an address that is looked at like the first.
pub const REDIRECTS_MAX: u32 = 5;

/// Bytes of a URL that is fetched or sent to, as most servers take them.
pub const URL_BYTES_MAX: usize = 8 << 10;

/// Interval at which a thread that hands an archive on checks for a stopped transfer while the task takes nothing.
pub const TRANSFER_STOP_POLL: Duration = Duration::from_millis(100);

/// The highest bound that an operator may set on the bytes of a result. Diego's cells keep 50 KiB. Results are in the
/// memory of every server for as long as their tasks are.
pub const RESULT_BYTES_LIMIT: usize = 256 << 10;

/// Pause between two questions how a process ended that is not a child.
pub const EXIT_INFO_PAUSE: Duration = Duration::from_millis(30);

/// Questions of that kind. Together they take three seconds: the first process of a container may be slow to take the
/// status of its children, and the kernel tells others only then.
pub const EXIT_INFO_ATTEMPTS_MAX: u32 = 100;
