//! Bounds of the agent's shell. Bounds of logs and eBPF maps are in their own modules.

use std::time::Duration;

/// Writes that wait for the store's thread. One transaction takes them all, so the queue is only as
/// long as one `fsync` lasts; when it is full, allocation runners wait, which slows starts down.
pub(crate) const STORE_QUEUE_MAX: usize = 1024;
/// How long the store's thread lets writes gather where several came at once the last time: a transaction costs some
/// 0.6 ms of a processor, however little it holds (by a profile of an agent that starts a hundred tasks a second).
pub(crate) const STORE_GATHER: Duration = Duration::from_millis(4);
/// Bytes of redb's page cache. Nothing is read once the agent has started, and what a transaction touches is small;
/// the default of 1 GiB would be the largest thing in the agent.
pub(crate) const STORE_CACHE_BYTES: usize = 1 << 20;
/// Pause before a store that met an I/O error is opened again; it doubles up to [`STORE_REOPEN_MAX`].
pub(crate) const STORE_REOPEN_MIN: Duration = Duration::from_millis(500);
/// The longest such pause. An operator who has made room waits no longer than this.
pub(crate) const STORE_REOPEN_MAX: Duration = Duration::from_secs(15);
/// Pause between two looks at the queue of a store that is unwell, whose thread cannot sleep on the queue alone.
pub(crate) const STORE_LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// File descriptors of the agent that a task needs: two FIFOs, files of its output, its cgroups, and those that its
/// start opens.
pub(crate) const OPEN_FILES_PER_TASK: u64 = 16;
/// File descriptors of the agent that a running task keeps, with one to spare: two FIFOs and two files of its output.
/// A node offers room for so many allocations (`node_max_allocs`).
pub(crate) const OPEN_FILES_HELD_PER_TASK: u64 = 5;
/// Process numbers that a task is taken to need on a node with few of them (`kernel.pid_max`).
pub(crate) const PIDS_PER_TASK: u64 = 4;
/// Process numbers that are left to the machine.
pub(crate) const PIDS_SPARED: u64 = 1_024;
/// File descriptors that no start takes: sessions, streams of logs and the store need them. Of a low limit an eighth.
pub(crate) const OPEN_FILES_SPARED_MAX: u64 = 512;
/// Failed starts in a row after which the node is at fault, if they were of [`START_JOBS_FAILED_MAX`] jobs.
pub(crate) const START_FAILURES_MAX: u32 = 8;
/// Different jobs among them: fewer may be broken themselves.
pub(crate) const START_JOBS_FAILED_MAX: usize = 3;
/// How long a node on which starts fail takes no new tasks; it doubles up to [`START_PAUSE_MAX`].
pub(crate) const START_PAUSE_MIN: Duration = Duration::from_secs(30);
/// The longest such time.
pub(crate) const START_PAUSE_MAX: Duration = Duration::from_mins(10);
/// Pause between two looks at open files.
pub(crate) const START_HEALTH_INTERVAL: Duration = Duration::from_secs(5);
/// Pause between two questions whether a driver's process answers.
pub(crate) const DRIVER_ANSWER_INTERVAL: Duration = Duration::from_secs(5);
/// How long it may take to answer; a busy machine makes it slow, and a stopped process never answers.
pub(crate) const DRIVER_ANSWER_DEADLINE: Duration = Duration::from_secs(10);
/// How long a driver may take to answer a start that is not wanted any more. Then the task's cgroup is killed, and the
/// driver is asked to destroy the task later. The same for the network of such a task.
pub(crate) const START_STOP_DEADLINE: Duration = Duration::from_secs(10);
/// How long a start takes before its task's history gives a reason for the wait.
pub(crate) const START_REPORT_DELAY: Duration = Duration::from_secs(1);
/// How long a start takes beyond that before it is called slow: an image that is fetched takes longer.
pub(crate) const START_SLOW: Duration = Duration::from_secs(30);
/// Pause between two comparisons of eBPF maps with the cgroups that there are.
pub(crate) const RECONCILE_INTERVAL: Duration = Duration::from_mins(5);
/// Addresses of this machine at which its servers are kept from tasks. Each is a rule of every task for every server.
pub(crate) const OWN_ADDRESSES_MAX: usize = 64;
/// Addresses of this machine that are closed to tasks with a network of their own, broadcast addresses included. Each
/// is a prefix of every such task's policy, and 131 072 prefixes are enough for 500 different policies. One beyond stays
/// open, and the log says so.
pub(crate) const CLOSED_ADDRESSES_MAX: usize = 256;
/// Time that an agent of the same process, which was just stopped, gets to close its database.
pub(crate) const STORE_CLOSE_DEADLINE: Duration = Duration::from_secs(5);
/// Pause between two looks whether it has.
pub(crate) const STORE_CLOSE_INTERVAL: Duration = Duration::from_millis(5);
/// Least time between two writes of when a leader last counted a heartbeat. Heartbeats are further apart but for very
/// short times to live; what is not written yet makes the next agent less patient by as much.
pub(crate) const CONTACT_WRITE_INTERVAL: Duration = Duration::from_secs(1);
/// Databases that were set aside and are kept; the oldest numbers are reused after that.
pub(crate) const STORES_SET_ASIDE_MAX: u32 = 100;

/// Events that wait for an allocation's runner. Each task has at most a handful under way, and
/// senders wait when it is full.
pub(crate) const ALLOC_INBOX_MAX: usize = 64;
/// Events that wait for the node's loop; senders wait when it is full.
pub(crate) const NODE_INBOX_MAX: usize = 1024;
/// Messages of a server that were read and not yet handled; the server's stream stands still when
/// it is full.
pub(crate) const SESSION_INBOX_MAX: usize = 16;
/// Questions to the node answered at a time over one connection; more wait in QUIC's stream limit.
pub(crate) const REQUESTS_MAX: usize = 64;
/// Readers of logs the node serves at a time; the next one is told so. Each is one task here and at most
/// [`LOG_WINDOW_BYTES_MAX`] on its way, and costs four `stat`s a second while its log is silent.
pub(crate) const LOG_READERS_MAX: usize = 1_024;
/// Sessions with commands in tasks at a time; the next one is told so. A person has one or two. Each has at most
/// twice `EXEC_WINDOW_BYTES` on its way: half of what the connection may have in flight, if all stand still.
pub(crate) const EXEC_SESSIONS_MAX: usize = 64;
/// Inputs of a session that wait for its command: more than its window has room for, so that none is refused.
pub(crate) const EXEC_INPUTS_MAX: usize = 1_024;
/// Inputs of a session on their way to its driver, which has a queue of its own.
pub(crate) const EXEC_DRIVER_INPUTS_MAX: usize = 1;
/// Words that input was taken which wait to be sent; what they say adds up meanwhile.
pub(crate) const EXEC_WORDS_MAX: usize = 1;
/// Bytes of input that went to a command before its sender is told: an eighth of the window, so that it never waits
/// for the word.
pub(crate) const EXEC_TAKEN_BYTES: u64 = 16 << 10;
/// Streams that a server may open at once: readers, sessions, requests for data, and a question that is answered. The
/// agent alone grants them: each one costs it about 80 bytes.
pub(crate) const STREAMS_MAX: u32 = 1_024 + 64 + 64 + 256;
/// Bytes of logs on their way to readers, together, above which each has [`LOG_WINDOW_BYTES_MIN`] only. With what
/// a thousand readers have then, it is two thirds of what the connection may have in flight, so that the
/// node's own messages and answers are never held back.
pub(crate) const LOG_WINDOWS_BYTES: u64 = 4 << 20;
/// Bytes on their way to one reader above which it waits: keeps a link of 10 ms at 25 MB/s.
pub(crate) const LOG_WINDOW_BYTES_MAX: u64 = 256 << 10;
/// The same where many do not take what they asked for: 8 MB/s at 1 ms.
pub(crate) const LOG_WINDOW_BYTES_MIN: u64 = 8 << 10;

/// Entries of `chroot_env`; a file with more is refused. Each is a mount for every task of a driver that changes its
/// root, with the mounts inside it. The kernel has room for 100 000 (`fs.mount-max`), and Nomad's default has nine.
pub(crate) const CHROOT_ENTRIES_MAX: usize = 64;
/// Mounts that are taken off one place, one after the other: agents that died while they made a root leave one each.
pub(crate) const ROOT_MOUNTS_MAX: u32 = 64;

/// Allocations whose data are read for other nodes at a time. Each is a thread that reads and half a megabyte on its
/// way; two keep a disk as busy as it should be beside the tasks.
pub(crate) const LENDINGS_MAX: usize = 2;
/// The same with those that wait for their turn; the next one is told to come again. A drained node has its
/// allocations replaced a few at a time.
pub(crate) const LENDINGS_WAITING_MAX: usize = 256;
/// Pieces that were read and not sent, of each.
pub(crate) const LENDING_PIECES_MAX: usize = 2;
/// How long data are kept for a node that unpacks nothing: longer than a disk stands still that will go on.
pub(crate) const LENDING_STALL_MAX: Duration = Duration::from_mins(2);
/// Allocations whose data are asked for at a time; the others wait for their turn. Most of the time is waiting for the
/// end of who is replaced. Each may have half a megabyte on its way, a quarter of what the connection may have in
/// flight for all.
pub(crate) const FETCHES_MAX: usize = 16;
/// Pieces that came and are not unpacked, of each.
pub(crate) const FETCH_PIECES_MAX: usize = 2;
/// Silence after which data from another node are asked for anew. The sender says something each second.
pub(crate) const FETCH_SILENCE_MAX: Duration = Duration::from_secs(30);
/// Tries to get data from another node, continuing with what broke off: about five minutes with the pauses between.
pub(crate) const FETCH_TRIES_MAX: u32 = 15;
/// First pause before they are asked for again, doubled up to [`FETCH_PAUSE_MAX`].
pub(crate) const FETCH_PAUSE_MIN: Duration = Duration::from_millis(500);
/// Longest pause before they are asked for again.
pub(crate) const FETCH_PAUSE_MAX: Duration = Duration::from_secs(30);
/// Time without any server after which an allocation begins without the data. An operator has begun to look by then.
pub(crate) const FETCH_ALONE_MAX: Duration = Duration::from_mins(5);
/// Bytes of a file that are read at once and sent together: a piece, less what is around them, in whole blocks.
pub(crate) const DISK_DATA_BYTES: usize = 60 << 10;
/// Files with several names that are remembered while a directory is read, of some 100 bytes each. What is beyond goes
/// over as several files.
pub(crate) const LINKED_FILES_MAX: usize = 65_536;

/// Time that reports wait for others to travel with.
///
/// Nomad's 200 ms: half would double the log entries of a busy cluster, double would be seen by
/// people who wait for a deployment.
pub(crate) const REPORT_DELAY: Duration = Duration::from_millis(200);
/// Bytes of reports in one message, as estimated: half of a frame's bound, because an estimate may
/// be off. One report alone is at most a tenth of it.
pub(crate) const REPORT_BYTES_MAX: usize = muster_wire::limits::FRAME_BYTES_MAX / 2;
/// Time before an agent whose store was lost removes what the control plane does not name: a server
/// that lags behind names it a little later.
pub(crate) const SWEEP_DELAY_AFTER_LOSS: Duration = Duration::from_secs(30);
/// Pause between two messages to a follower of a silent log, and to a caller that waits for a collection.
pub(crate) const IDLE_INTERVAL: Duration = Duration::from_secs(1);
/// Time a connection may take to be there. A dead server says nothing; the time to live of a node is
/// enough for three of them.
pub(crate) const CONNECT_DEADLINE: Duration = Duration::from_secs(3);
/// Shortest silence of a leader after which another server is tried: half of the time to live, but a short
/// time to live must not make a busy machine look dead.
pub(crate) const SILENCE_MIN: Duration = Duration::from_secs(2);
/// Heartbeats without an answer that are remembered: there are at most a handful in the time to live.
pub(crate) const HEARTBEATS_MAX: usize = 64;
/// Time after which a report is said once more that was under way when its session broke: the earlier server
/// may have written what it had later than the next server wrote something newer. Longer than a server
/// holds on to a write.
pub(crate) const REPORT_REPEAT_DELAY: Duration = Duration::from_secs(15);
/// Time a registration, a question and each answer to them may take.
pub(crate) const SESSION_DEADLINE: Duration = Duration::from_secs(10);

/// Time a driver process has from its start to its first answer.
pub(crate) const DRIVER_START_DEADLINE: Duration = Duration::from_secs(10);
/// Time a plugin has from its start to its first answer: one looks for what it drives first.
pub(crate) const PLUGIN_START_DEADLINE: Duration = Duration::from_secs(30);
/// Pause between two attempts to reach a driver that is starting.
pub(crate) const DRIVER_PING_INTERVAL: Duration = Duration::from_millis(20);
/// Tasks that the native driver is asked to start at once: four times what it starts at a time, so that it never waits.
/// Without the limit, a thousand tasks that begin together would hold the memory of a thousand starts. The pages that
/// hold something that stays would stay too.
pub(crate) const NATIVE_STARTS_MAX: usize = 64;
/// First pause before a driver that died is started again, doubled up to [`DRIVER_PAUSE_MAX`].
pub(crate) const DRIVER_PAUSE_MIN: Duration = Duration::from_millis(50);
/// Longest pause before a driver that died is started again.
pub(crate) const DRIVER_PAUSE_MAX: Duration = Duration::from_secs(30);
/// A driver that lived this long has its pause begin at the first step again.
pub(crate) const DRIVER_SETTLED: Duration = Duration::from_mins(1);
/// Time between two words of a driver about what a task uses, where nobody else knows: twice in a step of the histories
/// ([`HISTORY_STEP`]), so that each point has words of its own. Half would cost drivers that ask a daemon for each
/// task twice as much.
pub(crate) const DRIVER_USAGE_INTERVAL: Duration = Duration::from_secs(5);
/// Characters of a driver's reason why it tells nothing of a task. The reason stands with each value that is absent.
/// The rest of a longer reason is left out.
pub(crate) const DRIVER_REASON_CHARS_MAX: usize = 200;
/// How long a driver's words about a task are told: it may be late twice.
pub(crate) const DRIVER_USAGE_KEPT: Duration = Duration::from_secs(15);
/// Pause between two looks at a driver process that another agent started.
pub(crate) const DRIVER_WATCH_INTERVAL: Duration = Duration::from_millis(200);
/// Bytes of a unix socket's path, less the closing zero (`unix(7)`).
pub(crate) const SOCKET_PATH_BYTES_MAX: usize = 107;

/// Time the last bytes of a task's output get to reach the disk after it ended. A disk that is full
/// or slower than this leaves bytes behind, which is counted.
pub(crate) const LOG_DRAIN_DEADLINE: Duration = Duration::from_secs(5);
/// Time a cgroup gets to become empty after it was killed, before the attempt is repeated.
pub(crate) const CGROUP_EMPTY_DEADLINE: Duration = Duration::from_secs(5);
/// Pause between two looks at a cgroup that is being emptied.
pub(crate) const CGROUP_EMPTY_INTERVAL: Duration = Duration::from_millis(5);
/// Processes and threads of one task. systemd's default for a service is 15 % of the machine's; a
/// fork bomb at 4 096 leaves the machine usable, and no server we know needs half of it.
pub(crate) const TASK_PIDS_MAX: u64 = 4096;
/// Over which the kernel sums up how long tasks stand still, before it tells of it. Of 2 s it keeps account without a
/// thread of its own, and a shorter time is a hiccup.
pub(crate) const PRESSURE_WINDOW: Duration = Duration::from_secs(2);
/// Pause between two looks at all tasks for the same want. A look is two files of 10 µs each a task: 0.2 % of a
/// processor with 5 000 tasks.
pub(crate) const PRESSURE_PAUSE: Duration = Duration::from_secs(50);
/// The shortest pause between two looks that a start of a task ends. With starts all the time there are four looks in 32 s.
/// By the figures of [`PRESSURE_PAUSE`] that is 1.3 % of a processor with 5 000 tasks.
pub(crate) const PRESSURE_START_PAUSE: Duration = Duration::from_secs(10);
/// Pause between two looks whether tasks have limits for every disk. A new disk is without them for so long at most. A
/// look is a file of some 10 µs for each task with rates of disks: 0.3 % of a processor with 5 000 of them.
pub(crate) const DISKS_LOOK_INTERVAL: Duration = Duration::from_secs(15);
/// Between two events about the same want of a task: it keeps ten events, and other news are to be among them.
pub(crate) const PRESSURE_EVENT_INTERVAL: Duration = Duration::from_hours(1);
/// MHz of a core of which neither sysfs nor `/proc/cpuinfo` knows a frequency, as on some virtual machines.
pub(crate) const CORE_MHZ_UNKNOWN: u32 = 1_000;
/// How far below its memory limit a task is slowed down at most. The kernel lets it wait the longer the larger the part
/// is by which it is above: within 64 MiB a task that leaks reaches its limit, and its restart, in seconds.
pub(crate) const MEMORY_SLOW_BYTES_MAX: u64 = 64 << 20;
/// Time the exit ledger gets to show a process that ended: the record is written by the kernel
/// before anybody can know of the end, so the first look nearly always suffices.
pub(crate) const LEDGER_DEADLINE: Duration = Duration::from_millis(500);

/// Time a driver gets to destroy what is left of a task. Nomad's drivers stop a container first; what takes
/// longer is tried again.
pub(crate) const DESTROY_TASK_DEADLINE: Duration = Duration::from_secs(30);
/// Forced collections that are waited for at a time; who comes beyond hears at once what is known.
pub(crate) const COLLECT_ASKS_MAX: usize = 16;
/// Entries of the trash that cannot be deleted and are told with the node's statistics: enough to see what is
/// wrong, and each is up to half a kilobyte.
pub(crate) const STUCK_REPORTED_MAX: usize = 8;
/// Shortest time between two looks at the thresholds, whatever is configured: a look asks the file system
/// how full it is.
pub(crate) const GC_INTERVAL_MIN: Duration = Duration::from_millis(100);

/// Time that a stop of the agent with its tasks may take beyond the longest kill timeout.
pub(crate) const SHUTDOWN_GRACE: Duration = Duration::from_secs(15);
/// Pause between two looks whether everything of an agent that stops has let go.
pub(crate) const CLOSE_INTERVAL: Duration = Duration::from_millis(2);
/// Time that the last reports of an agent that stops get to be committed.
pub(crate) const LAST_REPORTS_DEADLINE: Duration = Duration::from_secs(2);
/// Time between two looks at facts of the machine that can change, such as disk space.
pub(crate) const FINGERPRINT_INTERVAL: Duration = Duration::from_mins(1);
/// Bytes of the record that is written on a task's cgroup: the kernel's bound on an extended attribute
/// (`XATTR_SIZE_MAX`). A start with a larger record is kept in the store alone.
pub(crate) const TASK_NOTE_BYTES_MAX: usize = 65_536;

/// Verdicts on packets that are kept for readers: half a minute of a task that is refused all the time.
pub(crate) const VERDICTS_KEPT: usize = 8_192;
/// Allocations of which the number of the newest verdict is known: those of the kept ones, and as many others, so that
/// these are looked for once in so many.
pub(crate) const VERDICT_ALLOCS_MAX: usize = 2 * VERDICTS_KEPT;
/// Verdicts in one answer. A follower asks every second, when one rule of one task tells at most 200 on two CPUs.
pub(crate) const VERDICTS_PER_ANSWER_MAX: usize = 1_024;
/// How long after its start an agent looks once more for policies of tasks that an earlier one had.
pub(crate) const SWEEP_AFTER: Duration = Duration::from_mins(1);

/// Bytes of a driver's description of a network that it made: a path and a few notes, as much as of a remote task's
/// handle. It stands in the store and goes to the driver with each task.
pub(crate) const DRIVER_NETWORK_BYTES_MAX: usize = 8 << 10;
/// Networks of allocations that wait for the one thread that makes them; who comes beyond waits for room. A
/// network takes about a millisecond.
pub(crate) const BRIDGE_ORDERS_MAX: usize = 256;
/// Addresses that are tried for one allocation while other agents of the machine have them.
pub(crate) const BRIDGE_TRIES_MAX: usize = 4_096;
/// Network namespaces whose settings are written through one proc file system. The last of them waits for some 50 µs,
/// and a new one is not made all the time.
pub(crate) const BRIDGE_SETTINGS_MAX: usize = 64;
/// Time between two looks for devices of the machine that came since.
pub(crate) const BRIDGE_LOOK_INTERVAL: Duration = Duration::from_secs(30);
/// Processes of an allocation whose network namespaces are looked at when it is taken up again.
pub(crate) const BRIDGE_PROCESSES_MAX: usize = 64;

/// Bytes of a file with a CNI configuration: people write it.
pub(crate) const CNI_CONFIG_BYTES_MAX: u64 = 64 << 10;
/// Files with CNI configurations that are read. The others are named in the log.
pub(crate) const CNI_FILES_MAX: usize = 256;
/// Plugins of one CNI network; networks have two to five.
pub(crate) const CNI_PLUGINS_MAX: usize = 16;
/// Programs in the directories of CNI plugins whose versions are asked for.
pub(crate) const CNI_PROGRAMS_MAX: usize = 64;
/// Bytes that a CNI plugin may print. A result has some hundred for each device and address.
pub(crate) const CNI_OUTPUT_BYTES_MAX: usize = 256 << 10;
/// Bytes of the words of a CNI plugin that an event repeats.
pub(crate) const CNI_WORDS_BYTES_MAX: usize = 1_024;
/// Bytes of the record of a CNI network: a configuration, a result, 64 ports and 64 arguments.
pub(crate) const CNI_RECORD_BYTES_MAX: usize = 1 << 20;
/// Removals of a CNI network that fail before the agent gives up: a plugin that is broken for good would keep the
/// allocation's data on the disk.
pub(crate) const CNI_REMOVALS_MAX: u32 = 8;
/// Time for one call of a CNI plugin, after which it is killed. Plugins that ask a DHCP server take the longest: 10 s.
pub(crate) const CNI_PLUGIN_DEADLINE: Duration = Duration::from_secs(30);
/// Time in which a CNI plugin says its version.
pub(crate) const CNI_VERSION_DEADLINE: Duration = Duration::from_secs(5);

/// Time from one look at the usage of all tasks to the next: a point of their histories. A look costs about 1 µs a
/// task, and some 4 µs for the walk over groups (11 where files are read). Half of it would not hurt much, but a
/// drawing of the last minutes has no room for twice as many points.
pub(crate) const HISTORY_STEP: Duration = Duration::from_secs(10);
/// For how long a point is kept, and what is known of a task after its end.
pub(crate) const HISTORY_KEPT: Duration = Duration::from_mins(10);
/// Bytes of a point: twelve values that are counted, half of them in 32 bits, memory, its end and its length.
pub(crate) const HISTORY_POINT_BYTES: usize = 96;
/// Points kept of a task, of [`HISTORY_POINT_BYTES`] each.
pub(crate) const HISTORY_POINTS_MAX: usize = 60;
/// Tasks whose histories are kept, including those that ended in the last minutes: 24 MB if all have all their points.
/// The task that ended first makes room. A task beyond has no history, and its absence says so.
pub(crate) const HISTORY_TASKS_MAX: usize = 4_096;
/// Places that tasks which ended give back at the end of a look, for those that begin before the next.
pub(crate) const HISTORY_TASKS_SPARE: usize = HISTORY_TASKS_MAX / 8;

/// Addresses where servers listen for clients that are kept from tasks: HTTP and Diego's wire of as many servers as are
/// remembered ([`muster_agent_core::limits::SERVERS_MAX`]). Each is a few intervals of every task's policy.
pub(crate) const APIS_MAX: usize = 2 * muster_agent_core::limits::SERVERS_MAX;
