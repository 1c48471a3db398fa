//! Bounds of the agent's shell. Bounds of logs and eBPF maps are in their own modules.

use std::time::Duration;

/// Writes that wait for the store's thread. One transaction takes all of them, so the queue grows only while one
/// `fsync` lasts. When the queue is full, allocation runners wait, which slows starts down.
pub(crate) const STORE_QUEUE_MAX: usize = 1024;
/// Time for which the store's thread collects writes if several arrived together the last time. A transaction costs
/// about 0.6 ms of a processor, whatever its size. The figure comes from a profile of an agent that starts a
/// hundred tasks a second.
pub(crate) const STORE_GATHER: Duration = Duration::from_millis(4);
/// Bytes of redb's page cache. The agent reads the store only at its start, and a transaction touches few pages.
/// The default of 1 GiB would be the largest part of the agent's memory.
pub(crate) const STORE_CACHE_BYTES: usize = 1 << 20;
/// Pause before a store that met an I/O error is opened again; it doubles up to [`STORE_REOPEN_MAX`].
pub(crate) const STORE_REOPEN_MIN: Duration = Duration::from_millis(500);
/// Longest pause before a store that met an I/O error is opened again. An operator who has freed space waits no
/// longer than this.
pub(crate) const STORE_REOPEN_MAX: Duration = Duration::from_secs(15);
/// Pause between two looks at the queue of a failed store. Its thread cannot sleep on the queue alone.
pub(crate) const STORE_LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// File descriptors of the agent that a task needs: two FIFOs, its output files, its cgroups, and the descriptors
/// that its start opens.
pub(crate) const OPEN_FILES_PER_TASK: u64 = 16;
/// File descriptors of the agent that a running task keeps: two FIFOs and two output files, with one to spare. The
/// node's number of allocations (`node_max_allocs`) is computed from it.
pub(crate) const OPEN_FILES_HELD_PER_TASK: u64 = 5;
/// Process numbers that the agent assumes for a task on a node with few of them (`kernel.pid_max`).
pub(crate) const PIDS_PER_TASK: u64 = 4;
/// Process numbers that the agent reserves for the rest of the machine.
pub(crate) const PIDS_SPARED: u64 = 1_024;
/// File descriptors that no start takes, because sessions, log streams and the store need them. With a low limit,
/// the agent reserves an eighth of the limit.
pub(crate) const OPEN_FILES_SPARED_MAX: u64 = 512;
/// Consecutive failed starts after which the agent blames the node, if they belong to [`START_JOBS_FAILED_MAX`]
/// jobs.
pub(crate) const START_FAILURES_MAX: u32 = 8;
/// Different jobs among the failed starts before the agent blames the node. With fewer jobs, the jobs themselves
/// may be broken.
pub(crate) const START_JOBS_FAILED_MAX: usize = 3;
/// Time for which a node with failing starts takes no new tasks. It doubles up to [`START_PAUSE_MAX`].
pub(crate) const START_PAUSE_MIN: Duration = Duration::from_secs(30);
/// Longest time for which a node with failing starts takes no new tasks.
pub(crate) const START_PAUSE_MAX: Duration = Duration::from_mins(10);
/// Pause between two counts of open files.
pub(crate) const START_HEALTH_INTERVAL: Duration = Duration::from_secs(5);
/// Pause between two checks whether a driver's process answers.
pub(crate) const DRIVER_ANSWER_INTERVAL: Duration = Duration::from_secs(5);
/// Time in which a driver's process must answer a check. A busy machine makes the process slow, and a stopped
/// process never answers.
pub(crate) const DRIVER_ANSWER_DEADLINE: Duration = Duration::from_secs(10);
/// Time in which a driver must answer a start that is no longer wanted. After it, the agent kills the task's cgroup
/// and asks the driver later to destroy the task. The same time applies to the network of such a task.
pub(crate) const START_STOP_DEADLINE: Duration = Duration::from_secs(10);
/// Duration of a start after which the task's history gives a reason for the wait.
pub(crate) const START_REPORT_DELAY: Duration = Duration::from_secs(1);
/// Further duration after which a start is reported as slow. The fetch of an image takes longer.
pub(crate) const START_SLOW: Duration = Duration::from_secs(30);
/// Pause between two comparisons of eBPF maps with the existing cgroups.
pub(crate) const RECONCILE_INTERVAL: Duration = Duration::from_mins(5);
/// Addresses of this machine at which its servers are denied to tasks. Each address is a rule of every task for
/// every server.
pub(crate) const OWN_ADDRESSES_MAX: usize = 64;
/// Addresses of this machine, broadcast addresses included, that are closed to tasks with their own network. Each
/// address is a prefix of every such task's policy, and 131 072 prefixes are enough for 500 different policies.
/// Further addresses stay open, and the log reports them.
pub(crate) const CLOSED_ADDRESSES_MAX: usize = 256;
/// Time that a recently stopped agent of the same process has to close its database.
pub(crate) const STORE_CLOSE_DEADLINE: Duration = Duration::from_secs(5);
/// Pause between two checks whether the stopped agent has closed its database.
pub(crate) const STORE_CLOSE_INTERVAL: Duration = Duration::from_millis(5);
/// Shortest time between two writes of the time of the last counted heartbeat. Heartbeats are further apart unless
/// the time to live is very short. The lease of the next agent is shorter by the time that is not yet written.
pub(crate) const CONTACT_WRITE_INTERVAL: Duration = Duration::from_secs(1);
/// Replaced databases that are kept. After that, the oldest numbers are reused.
pub(crate) const STORES_SET_ASIDE_MAX: u32 = 100;

/// Events that wait for an allocation's runner. Each task has a handful of them in flight at most. Senders wait
/// when the queue is full.
pub(crate) const ALLOC_INBOX_MAX: usize = 64;
/// Events that wait for the node's loop. Senders wait when the queue is full.
pub(crate) const NODE_INBOX_MAX: usize = 1024;
/// Messages of a server that were read and not yet handled. The server's stream stalls when the queue is full.
pub(crate) const SESSION_INBOX_MAX: usize = 16;
/// Requests to the node that are answered at a time over one connection. QUIC's stream limit holds back further
/// ones.
pub(crate) const REQUESTS_MAX: usize = 64;
/// Log readers that the node serves at a time. A further reader receives an error. Each reader is one asynchronous
/// task with at most [`LOG_WINDOW_BYTES_MAX`] in flight, and costs four `stat`s a second while its log is silent.
pub(crate) const LOG_READERS_MAX: usize = 1_024;
/// Sessions with commands in tasks at a time. A further session receives an error. A person has one or two. Each
/// session has at most twice `EXEC_WINDOW_BYTES` in flight: if all of them stall, half of what the connection may
/// have in flight.
pub(crate) const EXEC_SESSIONS_MAX: usize = 64;
/// Inputs of a session that wait for its command. The bound exceeds the room of the session's window, so that no
/// input is refused.
pub(crate) const EXEC_INPUTS_MAX: usize = 1_024;
/// Inputs of a session in flight to its driver, which has its own queue.
pub(crate) const EXEC_DRIVER_INPUTS_MAX: usize = 1;
/// Acknowledgements of input that wait to be sent. The number of bytes in an unsent acknowledgement grows
/// meanwhile.
pub(crate) const EXEC_WORDS_MAX: usize = 1;
/// Bytes of input passed to a command after which the agent acknowledges them. It is an eighth of the window, so
/// that the sender never waits for the acknowledgement.
pub(crate) const EXEC_TAKEN_BYTES: u64 = 16 << 10;
/// Streams that a server may open at once: log readers, sessions, requests for data, and requests with one answer.
/// The agent alone grants them, and each one costs it about 80 bytes.
pub(crate) const STREAMS_MAX: u32 = 1_024 + 64 + 64 + 256;
/// Bytes of logs in flight to all readers together, above which each reader has a window of
/// [`LOG_WINDOW_BYTES_MIN`] only. With the bytes of a thousand readers then, the sum is two thirds of what the
/// connection may have in flight. So the node's own messages and answers are never held back.
pub(crate) const LOG_WINDOWS_BYTES: u64 = 4 << 20;
/// Bytes in flight to one reader above which its stream waits. It sustains 25 MB/s over a link of 10 ms.
pub(crate) const LOG_WINDOW_BYTES_MAX: u64 = 256 << 10;
/// Bytes in flight to one reader while many readers do not consume their logs: 8 MB/s at 1 ms.
pub(crate) const LOG_WINDOW_BYTES_MIN: u64 = 8 << 10;

/// Entries of `chroot_env`; a file with more is refused. Each entry, with the mounts inside it, is a mount for
/// every task of a driver that changes its root. The kernel allows 100 000 mounts (`fs.mount-max`), and Nomad's
/// default has nine entries.
pub(crate) const CHROOT_ENTRIES_MAX: usize = 64;
/// Stacked mounts that are removed from one mount point. Each agent that died while it made a root leaves one.
pub(crate) const ROOT_MOUNTS_MAX: u32 = 64;

/// Allocations whose data are read for other nodes at a time. Each one needs a thread and has half a megabyte in
/// flight. Two of them keep a disk as busy as is acceptable while tasks use it.
pub(crate) const LENDINGS_MAX: usize = 2;
/// Allocations whose data are read for other nodes, or wait for it. A further request receives the answer to try
/// again later. A drained node has its allocations replaced a few at a time.
pub(crate) const LENDINGS_WAITING_MAX: usize = 256;
/// Pieces of one allocation that were read and not yet sent.
pub(crate) const LENDING_PIECES_MAX: usize = 2;
/// Time for which data are kept for a node that unpacks nothing. A disk that recovers does not stall for longer.
pub(crate) const LENDING_STALL_MAX: Duration = Duration::from_mins(2);
/// Allocations whose data are requested at a time; the others wait. Most of that time is spent waiting for the end
/// of the replaced allocation. Each may have half a megabyte in flight. All of them together may have a quarter of
/// what the connection may have in flight.
pub(crate) const FETCHES_MAX: usize = 16;
/// Pieces of one allocation that arrived and are not yet unpacked.
pub(crate) const FETCH_PIECES_MAX: usize = 2;
/// Silence after which data from another node are requested again. The sender sends a message each second.
pub(crate) const FETCH_SILENCE_MAX: Duration = Duration::from_secs(30);
/// Attempts to get data from another node; each continues an interrupted transfer. With the pauses in between, they
/// last about five minutes.
pub(crate) const FETCH_TRIES_MAX: u32 = 15;
/// First pause before data are requested again, doubled up to [`FETCH_PAUSE_MAX`].
pub(crate) const FETCH_PAUSE_MIN: Duration = Duration::from_millis(500);
/// Longest pause before data are requested again.
pub(crate) const FETCH_PAUSE_MAX: Duration = Duration::from_secs(30);
/// Time without any server after which an allocation starts without the data. By then, an operator has begun to
/// investigate.
pub(crate) const FETCH_ALONE_MAX: Duration = Duration::from_mins(5);
/// Bytes of a file that are read and sent together: a piece without its framing, in whole blocks.
pub(crate) const DISK_DATA_BYTES: usize = 60 << 10;
/// Files with several hard links that are remembered while a directory is read, of about 100 bytes each. Further
/// such files are sent as separate files.
pub(crate) const LINKED_FILES_MAX: usize = 65_536;

/// Time for which reports wait for others, to be sent together.
///
/// The value is Nomad's 200 ms. Half of it would double the log entries of a busy cluster. Twice as much would be
/// noticed by people who wait for a deployment.
pub(crate) const REPORT_DELAY: Duration = Duration::from_millis(200);
/// Bytes of reports in one message, as estimated: half of a frame's bound, because an estimate may
/// be off. One report alone is at most a tenth of it.
pub(crate) const REPORT_BYTES_MAX: usize = muster_wire::limits::FRAME_BYTES_MAX / 2;
/// Time before an agent that lost its store removes allocations that the control plane does not name. A server that
/// lags behind names them a little later.
pub(crate) const SWEEP_DELAY_AFTER_LOSS: Duration = Duration::from_secs(30);
/// Pause between two messages to a follower of a silent log, and to a caller that waits for a collection.
pub(crate) const IDLE_INTERVAL: Duration = Duration::from_secs(1);
/// Time in which a connection must be established. A dead server does not answer. The time to live of a node is
/// enough for three attempts.
pub(crate) const CONNECT_DEADLINE: Duration = Duration::from_secs(3);
/// Shortest silence of a leader after which another server is tried. It is normally half of the time to live. With
/// a short time to live, a busy machine must not look dead.
pub(crate) const SILENCE_MIN: Duration = Duration::from_secs(2);
/// Unanswered heartbeats that are remembered. There are a handful of them within the time to live.
pub(crate) const HEARTBEATS_MAX: usize = 64;
/// Time after which a report is sent again if its session broke before the report was acknowledged. The earlier
/// server may have written that report after the next server had written a newer one. The time is longer than a
/// server holds back a write.
pub(crate) const REPORT_REPEAT_DELAY: Duration = Duration::from_secs(15);
/// Time that a registration, a request and each answer to them may take.
pub(crate) const SESSION_DEADLINE: Duration = Duration::from_secs(10);

/// Time that a driver process has from its start to its first answer.
pub(crate) const DRIVER_START_DEADLINE: Duration = Duration::from_secs(10);
/// Time that a plugin has from its start to its first answer. A plugin first looks for the software that it drives.
pub(crate) const PLUGIN_START_DEADLINE: Duration = Duration::from_secs(30);
/// Pause between two attempts to reach a driver that is starting.
pub(crate) const DRIVER_PING_INTERVAL: Duration = Duration::from_millis(20);
/// Tasks that the native driver is asked to start at once. It is four times the number that the driver starts at a
/// time, so that the driver never idles. Without the limit, a thousand tasks that start together would hold the
/// memory of a thousand starts. Memory pages with long-lived data would stay allocated, too.
pub(crate) const NATIVE_STARTS_MAX: usize = 64;
/// First pause before a dead driver is started again, doubled up to [`DRIVER_PAUSE_MAX`].
pub(crate) const DRIVER_PAUSE_MIN: Duration = Duration::from_millis(50);
/// Longest pause before a dead driver is started again.
pub(crate) const DRIVER_PAUSE_MAX: Duration = Duration::from_secs(30);
/// Lifetime of a driver after which its restart pause begins again at the shortest.
pub(crate) const DRIVER_SETTLED: Duration = Duration::from_mins(1);
/// Time between two usage messages of a driver about a task, where the agent cannot measure. It is half a step of
/// the histories ([`HISTORY_STEP`]), so that each point has its own message. Half of it would double the cost for
/// drivers that ask a daemon for each task.
pub(crate) const DRIVER_USAGE_INTERVAL: Duration = Duration::from_secs(5);
/// Characters of the reason with which a driver reports no usage of a task. The reason is repeated for each absent
/// value. The rest of a longer reason is left out.
pub(crate) const DRIVER_REASON_CHARS_MAX: usize = 200;
/// Time for which a driver's usage message counts as current. The driver may miss two messages.
pub(crate) const DRIVER_USAGE_KEPT: Duration = Duration::from_secs(15);
/// Pause between two checks of a driver process that another agent started.
pub(crate) const DRIVER_WATCH_INTERVAL: Duration = Duration::from_millis(200);
/// Bytes of a unix socket's path, less the closing zero (`unix(7)`).
pub(crate) const SOCKET_PATH_BYTES_MAX: usize = 107;

/// Time for which the last output bytes of an ended task are drained to the disk. Bytes that a full or slow disk
/// leaves behind are counted.
pub(crate) const LOG_DRAIN_DEADLINE: Duration = Duration::from_secs(5);
/// Time in which a killed cgroup must become empty before the kill is repeated.
pub(crate) const CGROUP_EMPTY_DEADLINE: Duration = Duration::from_secs(5);
/// Pause between two checks whether a killed cgroup is empty.
pub(crate) const CGROUP_EMPTY_INTERVAL: Duration = Duration::from_millis(5);
/// Processes and threads of one task. systemd's default for a service is 15 % of the machine's. A fork bomb of
/// 4 096 processes leaves the machine usable, and no known server needs half of them.
pub(crate) const TASK_PIDS_MAX: u64 = 4096;
/// Window over which the kernel sums the stall time of tasks before it triggers. For a window of 2 s it needs no
/// thread of its own. A shorter stall is no problem.
pub(crate) const PRESSURE_WINDOW: Duration = Duration::from_secs(2);
/// Pause between two checks of all tasks for the same pressure. A check reads two files of 10 µs each a task: 0.2 %
/// of a processor with 5 000 tasks.
pub(crate) const PRESSURE_PAUSE: Duration = Duration::from_secs(50);
/// The shortest pause between two checks when the start of a task ends the pause. With continuous starts, there are
/// four checks in 32 s. By the figures of [`PRESSURE_PAUSE`] they cost 1.3 % of a processor with 5 000 tasks.
pub(crate) const PRESSURE_START_PAUSE: Duration = Duration::from_secs(10);
/// Pause between two checks whether tasks have limits for every disk. A new disk is without limits for that long at
/// most. A check reads one file of about 10 µs for each task with disk rates: 0.3 % of a processor with 5 000 such
/// tasks.
pub(crate) const DISKS_LOOK_INTERVAL: Duration = Duration::from_secs(15);
/// Time between two events about the same pressure of a task. A task keeps ten events, and other news must have
/// room among them.
pub(crate) const PRESSURE_EVENT_INTERVAL: Duration = Duration::from_hours(1);
/// MHz of a core whose frequency neither sysfs nor `/proc/cpuinfo` reports, as on some virtual machines.
pub(crate) const CORE_MHZ_UNKNOWN: u32 = 1_000;
/// The greatest distance between a task's memory limit and the usage at which it is throttled. The kernel delays a
/// task longer, the further its usage is above that point. Within 64 MiB, a leaking task reaches its limit, and its
/// restart, in seconds.
pub(crate) const MEMORY_SLOW_BYTES_MAX: u64 = 64 << 20;
/// Time in which the exit ledger must show a process that ended. The kernel writes the record before any process
/// can see the end, so the first read nearly always succeeds.
pub(crate) const LEDGER_DEADLINE: Duration = Duration::from_millis(500);

/// Time that a driver has to destroy the remains of a task. Nomad's drivers stop a container first. A slower
/// removal is tried again.
pub(crate) const DESTROY_TASK_DEADLINE: Duration = Duration::from_secs(30);
/// Forced collections whose callers wait at a time. A further caller immediately receives the known result.
pub(crate) const COLLECT_ASKS_MAX: usize = 16;
/// Undeletable entries of the trash that the node's statistics list. A few show the cause, and each has up to half
/// a kilobyte.
pub(crate) const STUCK_REPORTED_MAX: usize = 8;
/// Shortest time between two checks of the thresholds, whatever the configuration. A check asks the file system for
/// its usage.
pub(crate) const GC_INTERVAL_MIN: Duration = Duration::from_millis(100);

/// Further time that a stop of the agent with its tasks may take after the longest kill timeout.
pub(crate) const SHUTDOWN_GRACE: Duration = Duration::from_secs(15);
/// Pause between two checks whether all holders have released the context of a stopping agent.
pub(crate) const CLOSE_INTERVAL: Duration = Duration::from_millis(2);
/// Time in which the last reports of a stopping agent should be committed.
pub(crate) const LAST_REPORTS_DEADLINE: Duration = Duration::from_secs(2);
/// Time between two reads of machine facts that can change, such as disk space.
pub(crate) const FINGERPRINT_INTERVAL: Duration = Duration::from_mins(1);
/// Bytes of the record that is written on a task's cgroup: the kernel's bound on an extended attribute
/// (`XATTR_SIZE_MAX`). A larger record of a start is kept in the store alone.
pub(crate) const TASK_NOTE_BYTES_MAX: usize = 65_536;

/// Verdicts on packets that are kept for readers: half a minute of a task that is refused all the time.
pub(crate) const VERDICTS_KEPT: usize = 8_192;
/// Allocations for which the number of the newest verdict is remembered: those with kept verdicts, and as many
/// others. The spare room makes a sweep for allocations without kept verdicts rare.
pub(crate) const VERDICT_ALLOCS_MAX: usize = 2 * VERDICTS_KEPT;
/// Verdicts in one answer. A follower asks every second. In that time, one rule of one task reports at most 200 on
/// two CPUs.
pub(crate) const VERDICTS_PER_ANSWER_MAX: usize = 1_024;
/// Time after the start of an agent at which it looks again for policies of tasks of an earlier agent.
pub(crate) const SWEEP_AFTER: Duration = Duration::from_mins(1);

/// Bytes of a driver's description of a network that it made: a path and a few notes, as much as for a remote
/// task's handle. The store keeps it, and the driver receives it with each task.
pub(crate) const DRIVER_NETWORK_BYTES_MAX: usize = 8 << 10;
/// Requests that wait for the one thread that makes networks of allocations. Further callers wait for room in the
/// queue. A network takes about a millisecond.
pub(crate) const BRIDGE_REQUESTS_MAX: usize = 256;
/// Addresses that are tried for one allocation while other agents of the machine hold them.
pub(crate) const BRIDGE_TRIES_MAX: usize = 4_096;
/// Network namespaces whose settings are written through one proc file system. The last of them waits for about
/// 50 µs. The bound avoids a new proc file system for each namespace.
pub(crate) const BRIDGE_SETTINGS_MAX: usize = 64;
/// Time between two checks for new devices of the machine.
pub(crate) const BRIDGE_LOOK_INTERVAL: Duration = Duration::from_secs(30);
/// Processes of an allocation whose network namespaces are examined when the allocation is recovered.
pub(crate) const BRIDGE_PROCESSES_MAX: usize = 64;

/// Bytes of a file with a CNI configuration, which people write.
pub(crate) const CNI_CONFIG_BYTES_MAX: u64 = 64 << 10;
/// Files with CNI configurations that are read. The log names the others.
pub(crate) const CNI_FILES_MAX: usize = 256;
/// Plugins of one CNI network; networks have two to five.
pub(crate) const CNI_PLUGINS_MAX: usize = 16;
/// Programs in the directories of CNI plugins whose versions are asked for.
pub(crate) const CNI_PROGRAMS_MAX: usize = 64;
/// Bytes that a CNI plugin may print. A result has some hundred bytes for each device and address.
pub(crate) const CNI_OUTPUT_BYTES_MAX: usize = 256 << 10;
/// Bytes of a CNI plugin's output that an event repeats.
pub(crate) const CNI_EXCERPT_BYTES_MAX: usize = 1_024;
/// Bytes of the record of a CNI network: a configuration, a result, 64 ports and 64 arguments.
pub(crate) const CNI_RECORD_BYTES_MAX: usize = 1 << 20;
/// Failed removals of a CNI network after which the agent gives up. A permanently broken plugin would otherwise
/// keep the allocation's data on the disk.
pub(crate) const CNI_REMOVALS_MAX: u32 = 8;
/// Time for one call of a CNI plugin, after which it is killed. Plugins that ask a DHCP server take the longest: 10 s.
pub(crate) const CNI_PLUGIN_DEADLINE: Duration = Duration::from_secs(30);
/// Time in which a CNI plugin must report its version.
pub(crate) const CNI_VERSION_DEADLINE: Duration = Duration::from_secs(5);

/// Time between two samples of all tasks: one point of their histories. A sample costs about 1 µs a task, and about
/// 4 µs for the walk over cgroups (11 where files are read). Half of it would cost little, but a chart of the last
/// minutes has no room for twice as many points.
pub(crate) const HISTORY_STEP: Duration = Duration::from_secs(10);
/// Time for which a point is kept, and for which an ended task is remembered.
pub(crate) const HISTORY_KEPT: Duration = Duration::from_mins(10);
/// Bytes of a point: twelve counted values (half of them in 32 bits), memory, the time of its end and its length.
pub(crate) const HISTORY_POINT_BYTES: usize = 96;
/// Points kept of a task, of [`HISTORY_POINT_BYTES`] each.
pub(crate) const HISTORY_POINTS_MAX: usize = 60;
/// Tasks whose histories are kept, including tasks that ended in the last minutes: 24 MB if all have all their
/// points. The task that ended first makes room. A further task has no history, and the answer gives the reason.
pub(crate) const HISTORY_TASKS_MAX: usize = 4_096;
/// Places that are freed of ended tasks at the end of a step, for tasks that start before the next step.
pub(crate) const HISTORY_TASKS_SPARE: usize = HISTORY_TASKS_MAX / 8;

/// Addresses where servers listen for clients, which are denied to tasks: HTTP and Diego's protocol. There are as
/// many as for the remembered servers ([`muster_agent_core::limits::SERVERS_MAX`]). Each is a few intervals of
/// every task's policy.
pub(crate) const APIS_MAX: usize = 2 * muster_agent_core::limits::SERVERS_MAX;
