//! Bounds of the control plane's shell. Each comment states the effect of reaching the bound.

use std::time::Duration;

/// Proposals that may wait for the log at once. Beyond it a caller waits for [`PROPOSE_WAIT`] and then gets an
/// error: the server is overloaded. The value is four times 1 024, the number of writers at which a group commit
/// on one local disk stops growing.
pub const PROPOSALS_MAX: usize = 4096;
/// How long a proposal waits for a place in the queue, and then for its commit.
pub const PROPOSE_WAIT: Duration = Duration::from_secs(10);
/// The longest pause of a leader's duty after the log has not taken its changes. The first pause is
/// [`LEADER_RETRY_PAUSE`].
pub const DUTY_RETRY_PAUSE_MAX: Duration = Duration::from_secs(1);
/// Least gap between the wall clock at a server's start and the newest change that makes the clock suspect. The
/// value is the shortest of the default thresholds of collections.
pub const CLOCK_GAP_MAX: Duration = Duration::from_hours(1);
/// How long a server with a suspect clock collects nothing by age. NTP corrects a clock within minutes, and an
/// operator sees the warning. Only garbage waits.
pub const CLOCK_GAP_HOLD: Duration = Duration::from_hours(1);
/// Pause between two checks whether collections are still held.
pub const CLOCK_GAP_LOOK: Duration = Duration::from_secs(30);
/// Pause before a proposal is tried again while there is no leader: about a heartbeat's tenth.
pub const LEADER_RETRY_PAUSE: Duration = Duration::from_millis(25);

/// Entries applied before the state is published and their proposers are answered. A smaller value costs more:
/// each published root costs the next write a few microseconds of copying. A larger value delays answers.
pub const APPLY_BATCH_MAX: usize = 256;
/// Replaced states that wait for the thread that frees them. Each may own a slice of garbage of some hundred
/// kilobytes. Half would leave more work to the applier while the thread waits for a processor. Double would only
/// cost memory.
pub const OUTDATED_STATES_MAX: usize = 16;
/// Least rows that a replaced state owns before another thread frees it. Freeing fewer rows takes no longer than
/// waking that thread.
pub const OUTDATED_ROWS_MIN: usize = 64;
/// Niceness of the thread that frees replaced states. By the kernel's weights it gets a tenth of a processor that
/// one other thread also wants. The applier frees states itself before memory grows.
pub const OUTDATED_NICENESS: i32 = 10;
/// How long the next slice of a collection waits for other work. It is longer than a placement takes. After
/// that the slice runs before other work, so a collection ends under any load; each slice takes little more than
/// this time. Half would interrupt placements. Double would delay collections where there is always work.
pub const GC_SLICE_WAIT_MAX: Duration = Duration::from_millis(2);
/// Batches of effects in the queue to the leader's duties. If the queue is full, the batch is dropped and the
/// duties scan the state instead.
pub const EFFECT_BATCHES_MAX: usize = 1024;

/// Events kept for readers of the event stream that reconnect. The oldest events are dropped, and a reader that
/// asks for them gets an error. The bound covers some seconds of a cluster at its fastest placement rate, at 400
/// bytes an event. It covers hours of a quiet cluster.
pub const EVENTS_MAX: usize = 32 * 1024;
/// Bytes that the kept events may hold, by the estimates below.
pub const EVENT_BYTES_MAX: usize = 64 << 20;
/// Bytes that an event of an allocation or evaluation holds: its row, with texts and task states.
pub const EVENT_ROW_BYTES: usize = 1024;
/// Bytes that an event of a job holds: a specification of a few groups.
pub const EVENT_JOB_BYTES: usize = 8 * 1024;
/// Bytes that an event of a node holds: some hundred attributes.
pub const EVENT_NODE_BYTES: usize = 16 * 1024;
/// Entries whose events a reader takes at once.
pub const EVENT_ENTRIES_READ_MAX: usize = 64;
/// Most rows of one entry that are made into JSON on the reader's thread. More rows are made into JSON on a thread
/// of their own. This many rows take about a millisecond.
pub const EVENT_ROWS_INLINE_MAX: usize = 64;
/// Entries after which the leader has all servers compare their states. A comparison is one message to each
/// server, so its cost per entry is negligible. A shorter interval gains nothing: an error found late is still
/// found, and hashes are kept for [`STATE_HASHES_KEPT`] entries.
pub const STATE_COMPARE_EVERY: u64 = 4096;
/// How long a server that is asked for the hash of its state at an index waits to apply that index. It is below
/// [`PEER_CALL_WAIT`].
pub const STATE_HASH_WAIT: Duration = Duration::from_secs(2);
/// Entries after which a debug build checks the rules of its state. Half would slow tests down, and double would
/// find a mistake later.
pub const STATE_RULES_EVERY: u64 = 2048;
/// Most rows of a state that a debug build checks after entries. The check takes some hundred milliseconds without
/// optimisation.
pub const STATE_RULES_DEBUG_ROWS_MAX: usize = 20_000;
/// Most rows of a state that `muster operator check --deep` checks. The check builds all indexes anew, at about
/// 500 bytes a row.
pub const STATE_RULES_ROWS_MAX: usize = 2_000_000;
/// Broken rules that an answer lists: one mistake often breaks thousands of rows.
pub const BROKEN_RULES_MAX: usize = 100;
/// Time after which a server that lacks entries and takes none is unhealthy. An election and a slow disk take
/// less.
pub const SERVER_STALLED_AFTER: Duration = Duration::from_secs(5);
/// Most entries that a healthy server may be behind: less than a second of a cluster at its fastest.
pub const HEALTHY_ENTRIES_BEHIND: u64 = 16 * 1024;
/// Bytes of a snapshot that an operator may send. The server writes it to disk as it arrives.
pub const SNAPSHOT_UPLOAD_BYTES_MAX: u64 = 1 << 30;
/// Entries for which the hash of the state is kept, 72 bytes each. Servers need the hashes to compare their states
/// at an index while writes go on. The value is twice [`STATE_COMPARE_EVERY`]. With half, a late request could
/// reach a server that is ahead and has already dropped the hash.
pub const STATE_HASHES_KEPT: usize = 8 * 1024;

/// Bytes of one record in a snapshot, and of one log entry.
pub const ENTRY_BYTES_MAX: usize = muster_wire::limits::ENTRY_BYTES_MAX;

/// Heartbeat interval of the leader to its followers. A follower loses at least three before it starts an
/// election.
pub const RAFT_HEARTBEAT: Duration = Duration::from_millis(150);
/// Least random time that a follower waits before an election, after [`RAFT_ELECTION_MAX`] (the leader's lease).
/// The random time ends at [`RAFT_ELECTION_MAX`]. So an election starts after 1.2 to 1.5 s of silence, and another
/// server leads within 2 s. The library's defaults (0.45 to 0.6 s in all) cause needless elections on a busy
/// machine.
pub const RAFT_ELECTION_MIN: Duration = Duration::from_millis(450);
/// See [`RAFT_ELECTION_MIN`].
pub const RAFT_ELECTION_MAX: Duration = Duration::from_millis(750);
/// How long a leader without a quorum's answers sends no heartbeats after its lease of [`RAFT_ELECTION_MAX`]. Then
/// it sends heartbeats for as long, in case only packets were lost. The value is longer than the latest election
/// of its followers (1.5 s) and the election's round trips.
pub const RAFT_QUORUM_LOST_SILENCE: Duration = Duration::from_secs(2);

/// Bytes of the entries in one message to a follower, besides the first entry. It is small enough that a heartbeat
/// never waits long behind the message. It is large enough for a whole plan of some thousand placements.
pub const APPEND_BYTES_MAX: u64 = 2 << 20;
/// Consecutive streams of entries that a follower refuses or does not answer before the next stream waits.
pub const APPEND_RETRIES_AT_ONCE: u32 = 3;
/// The first wait between streams of entries. A server that comes back gets entries within [`APPEND_PAUSE_MAX`]
/// and [`PEER_PAUSE_MAX`].
pub const APPEND_PAUSE_MIN: Duration = Duration::from_millis(20);
/// See [`APPEND_PAUSE_MIN`].
pub const APPEND_PAUSE_MAX: Duration = Duration::from_millis(500);
/// Entries in one message to a follower.
pub const ENTRIES_PER_APPEND_MAX: u64 = 1024;
/// Entries by which the log must exceed the kept entries before it is purged. A purge is a write.
pub const LOG_PURGE_BATCH: u64 = 1024;
/// Silence after which a leader does not count as leading. It applies to a silent leader and to a leader with
/// silent followers. By then the followers have elected another leader or cannot.
pub const LEADER_SILENT: Duration = Duration::from_secs(2);
/// How long a forwarded change waits for its answer once another server leads. The former leader may still answer,
/// unless it has died.
pub const FORMER_LEADER_WAIT: Duration = Duration::from_millis(500);
/// Proposals that a follower forwards in one frame.
pub const FORWARD_BATCH_MAX: usize = 1024;
/// Bytes of such a frame, or of one larger proposal.
pub const FORWARD_FRAME_BYTES: usize = 1 << 20;
/// How long a change waits while no server leads. After that the caller gets an error and may retry. Elections end
/// within two seconds. The value is Nomad's.
pub const ELECTION_WAIT: Duration = Duration::from_secs(5);
/// Most reads that wait for one read index. The next read waits for a place.
pub const READS_MAX: usize = 4096;
/// How long the leader may take to answer with the read index.
pub const READ_INDEX_WAIT: Duration = Duration::from_secs(2);
/// How long a change of the servers may take: two commits, one of them by the old and the new servers together.
pub const CHANGE_SERVERS_WAIT: Duration = Duration::from_secs(10);
/// How long a transfer of leadership may take. After that an election is needed.
pub const TRANSFER_WAIT: Duration = Duration::from_secs(3);
/// A server with a contact within this time is healthy. Some heartbeats may be lost.
pub const SERVER_HEALTHY_WITHIN: Duration = Duration::from_secs(2);
/// How long a fault of a server lasts before the leader records it. A new leader has no contacts yet.
pub const SERVER_FAULT_NOTED_AFTER: Duration = Duration::from_secs(3);
/// How often the leader checks for learners that have caught up and for lost servers.
pub const AUTOPILOT_INTERVAL: Duration = Duration::from_millis(500);
/// Most entries that a learner may lack when it gets its vote. A busy cluster writes more in a few milliseconds,
/// so the new vote never delays a commit.
pub const PROMOTE_LAG_MAX: u64 = 256;
/// How often a server without a cluster looks for one.
pub const JOIN_PAUSE: Duration = Duration::from_millis(250);
/// Pause between two such looks when nothing is expected to change soon.
pub const JOIN_PAUSE_LONG: Duration = Duration::from_secs(2);
/// Time without a leader after which a member asks other servers whether it still is a member. Elections are over
/// by then.
pub const MEMBERSHIP_CHECK_AFTER: Duration = Duration::from_secs(5);
/// How long a server may take to send its introduction.
pub const HELLO_WAIT: Duration = Duration::from_secs(1);
/// Bytes of a snapshot in transfer that either end holds in memory.
pub const SNAPSHOT_CHUNK_BYTES: usize = 256 << 10;

/// Streams that one connection of another server may have open at once; the next stream waits. Requests end within
/// milliseconds. Only clients' log output stays open, on a hundredth of this many streams.
pub const PEER_STREAMS_MAX: u32 = 1024;
/// How long another server may take to answer a request.
pub const PEER_CALL_WAIT: Duration = Duration::from_secs(5);
/// How long a connection to another server may take to open: a handshake and two repeats of a lost packet.
pub const PEER_DIAL_WAIT: Duration = Duration::from_secs(3);
/// Pause after a failed attempt to connect. It doubles up to [`PEER_PAUSE_MAX`].
pub const PEER_PAUSE_MIN: Duration = Duration::from_millis(100);
/// See [`PEER_PAUSE_MIN`].
pub const PEER_PAUSE_MAX: Duration = Duration::from_millis(800);
/// Silence after which a connection is closed while a caller waits for an answer. A living server acknowledges
/// within milliseconds, even with a slow disk. This bound detects a stopped process.
pub const PEER_SILENCE: Duration = Duration::from_secs(1);
/// How long a snapshot may take to reach a follower and be installed there.
pub const SNAPSHOT_INSTALL_TIMEOUT: Duration = Duration::from_mins(10);
/// How long a server waits for its requested snapshot before it requests the snapshot again.
pub const SNAPSHOT_ASK_AGAIN: Duration = Duration::from_secs(1);
/// How long the sole voter may take to lead after its start.
pub const LEAD_WAIT: Duration = Duration::from_secs(30);

/// Evaluations handed to workers and not answered yet. Further evaluations wait in the broker.
pub const EVALS_IN_FLIGHT_MAX: usize = 64;
/// Evaluations handed to the scheduler in one run of a worker thread.
pub const EVALS_PER_WORKER_RUN_MAX: usize = 16;
/// Times that a server ends during work on an evaluation before the evaluation is set aside. The first time it was
/// planned with others. The second time it was planned alone.
pub const EVAL_ENDS_MAX: u8 = 2;
/// Jobs, and entries full of one-off tasks, that one run of a worker thread finds places for before they are
/// recorded.
pub const PLACES_PER_WORKER_RUN_MAX: usize = 32;
/// How often duties check the clock when nothing happens.
pub const DUTY_INTERVAL: Duration = Duration::from_millis(500);
/// Requests to the leader's duties waiting, such as a forced collection.
pub const DUTY_REQUESTS_MAX: usize = 256;

/// QUIC connections to one server, of agents and servers. The server refuses the next one, and that peer tries
/// another server.
pub const CONNECTIONS_MAX: usize = 20_000;
/// Niceness of the threads of sessions, so that they yield to the log and the scheduler on a busy machine. By the
/// kernel's weights they get a quarter of a contested processor. A higher niceness would leave too little
/// processor time for many nodes' heartbeats.
pub const SESSIONS_NICENESS: i32 = 5;
/// Messages of one agent read ahead of their handling. Further messages wait in the stream's window.
pub const SESSION_INBOX_MAX: usize = 16;
/// Answers to an agent that wait for its stream. A full queue makes the session wait.
pub const SESSION_OUTBOX_MAX: usize = 64;
/// How long a connection may take to register.
pub const REGISTER_WAIT: Duration = Duration::from_secs(10);
/// Messages with desired allocations that a server sends in a second, for each of its cores. With five thousand
/// nodes and two cores, the last node waits a third of a second. The value assumes that a message and its answers
/// cost some tens of microseconds. That cost has not been measured separately.
pub const DESIRED_PER_CORE: u32 = 8_000;
/// The rate while new changes keep arriving. It uses a quarter of the processor time of the full rate. With five
/// thousand nodes and two cores, the last node waits a second and a quarter.
pub const DESIRED_PER_CORE_MEANWHILE: u32 = 2_000;
/// Time without new changes after which the full rate applies again.
pub const DESIRED_QUIET: Duration = Duration::from_millis(25);
/// Most messages sent at once after a quiet time, expressed as time at the full rate.
pub const DESIRED_BURST: Duration = Duration::from_millis(20);
/// How often turns are handed out while sessions wait.
pub const DESIRED_TICK: Duration = Duration::from_millis(5);
/// How often a session looks for missed changes without a wake-up.
pub const SESSION_RESCAN: Duration = Duration::from_secs(5);
/// Delay before a session reports forgotten allocations to its node: as long as a collection of a million takes.
/// No caller waits for that report. Each look at a node costs in proportion to its allocations.
pub const FORGOTTEN_WAIT: Duration = Duration::from_millis(500);
/// Reports in one entry.
pub const REPORTS_PER_ENTRY_MAX: usize = 4096;
/// Estimated bytes of reports in one entry. Heartbeats wait while such an entry is written.
pub const REPORT_BYTES_PER_ENTRY_MAX: usize = 4 << 20;
/// Allocations of one node with reports that are not written yet. Beyond it the server stops reading the agent's
/// stream.
pub const REPORTS_PER_SESSION_MAX: usize = 8192;
/// Pause before reports and registrations are proposed again after the log took none.
pub const REPORT_RETRY_PAUSE: Duration = Duration::from_millis(200);
/// Longest delay before the state "prepares" or "runs" of a one-off task is written. A task that ends earlier, or
/// has another report earlier, needs no separate entry. Half would save entries for few tasks with real work. More
/// would delay the state that users see.
pub const PROGRESS_WAIT: Duration = Duration::from_millis(500);
/// Messages with heartbeats that wait for the leader's duties. Each server has one message under way.
pub const BEATS_MAX: usize = 64;
/// Messages with counted heartbeats that wait for a quorum to confirm this server's leadership. The leader does
/// not answer messages beyond it, and their servers treat that as silence.
pub const BEATS_UNCONFIRMED_MAX: usize = 64;
/// How long the leader may take to forget all garbage: about a hundred entries for each hundred thousand rows. A
/// collecting node may be silent for as long; it sends one sign of life a second.
pub const COLLECT_WAIT: Duration = Duration::from_secs(30);
/// How long all nodes together may take to destroy garbage and free its space. That covers some million files each
/// on a slow disk. A node that is not done by then goes on, and no caller waits for it. The command line waits for
/// this time and for [`COLLECT_WAIT`].
pub const COLLECT_NODES_WAIT: Duration = Duration::from_mins(10);
/// Nodes that collect garbage at the same time on one request. Each answer waits for the node's own disk, so more
/// at once would not slow the nodes down. Each node holds a stream and a task here.
pub const COLLECT_NODES_MAX: usize = 256;
/// Collections whose slices are joined into events at the same time: one for each rule, and purges of large jobs.
/// A collection beyond this bound has no event.
pub const COLLECTIONS_FOLLOWED_MAX: usize = 64;
/// How often a server sends its nodes' heartbeats to the leader. It is a tenth of the time to live if that is
/// less. Half would double the messages without benefit. Double would use up a fifth of the time to live.
pub const BEATS_INTERVAL: Duration = Duration::from_secs(1);
/// How long the leader may take to count heartbeats. It covers two rounds of Raft's own heartbeat and a busy
/// machine.
pub const BEATS_WAIT: Duration = Duration::from_secs(2);
/// Least time without a leader after which a server sends its agents to other servers. An election takes about as
/// long.
pub const UNSERVED_MIN: Duration = Duration::from_secs(2);
/// How long an agent that was sent away should wait before it reconnects.
pub const TRY_ELSEWHERE_PAUSE: Duration = Duration::from_secs(1);
/// How long an agent may take to read the reason for the end of its session.
pub const FAREWELL_WAIT: Duration = Duration::from_secs(2);
/// How long a server may take to apply the index that an agent has already seen.
pub const LAG_WAIT: Duration = Duration::from_secs(5);
/// TLS handshakes under way at once. Each costs about a millisecond of processor time, so a heartbeat may wait
/// some tens of milliseconds. Half would leave processors idle while packets travel.
pub const HANDSHAKES_MAX: usize = 64;
/// Registrations of agents under way at once. Most of their time is a commit, which they share.
pub const REGISTRATIONS_MAX: usize = 128;
/// Silence of a node after which it may be connected to another server: it has missed a heartbeat.
pub const NODE_FRESH: Duration = Duration::from_secs(5);
/// How long another server may take to answer whether a node is connected to it.
pub const LOCATE_WAIT: Duration = Duration::from_secs(2);
/// Answers of a node that wait for their reader. A full queue pauses the node's stream. With pieces of a log it
/// holds a quarter of a mebibyte for each slow reader.
pub const NODE_REPLIES_MAX: usize = 4;
/// Streams of one agent that are served at a time. An agent opens fewer requests for data at a time. Further
/// streams wait in QUIC's stream limit.
pub const AGENT_QUESTIONS_MAX: usize = 32;
/// Allocations whose data this server forwards between nodes at a time; others wait for their turn. Each holds at
/// most half a mebibyte here (`DISK_WINDOW_BYTES`).
pub const DISKS_PASSED_MAX: usize = 128;
/// How often the server checks whether the allocation with the requested data has ended. At each check it reports
/// to the requesting node that it is waiting. Half would make no visible difference: a task has seconds to end in.
pub const DISK_LOOK_INTERVAL: Duration = Duration::from_millis(250);
/// How long a node may take to open a stream.
pub const NODE_REQUEST_WAIT: Duration = Duration::from_secs(10);
/// How long a server that shuts down waits for its peers to learn it: one packet and a repeat of it.
pub const FAREWELL_OF_SERVER_WAIT: Duration = Duration::from_millis(500);
/// How long a server waits for its parts to stop.
pub const SHUTDOWN_WAIT: Duration = Duration::from_secs(10);

/// Most HTTP connections. For one more, the server closes a connection that only waits; if none waits, it refuses
/// the new one. The value is below the usual soft limit of 1 024 file descriptors, less the need of the log,
/// agents and snapshots.
pub const HTTP_CONNECTIONS_MAX: usize = 768;
/// HTTP connections from one address other than this machine's own. The value is Nomad's.
pub const HTTP_CONNECTIONS_PER_ADDRESS_MAX: usize = 100;
/// How long a request in progress may take to end when its connection must make room for another one.
pub const HTTP_CLOSE_WAIT: Duration = Duration::from_secs(1);
/// Bytes of the answers that one listener is sending. Room for twenty lists of ten thousand allocations.
pub const HTTP_ANSWER_BYTES_MAX: usize = 256 << 20;
/// How long an answer waits for room in that memory. After that the request is refused.
pub const ANSWER_BUDGET_WAIT: Duration = Duration::from_secs(10);
/// How long a client may take to read an answer while another answer waits for its memory.
pub const SLOW_READER_AGE: Duration = Duration::from_secs(5);
/// Bytes handed to a connection at once. A shorter answer is not counted.
pub const ANSWER_CHUNK_BYTES: usize = 64 << 10;
/// Long answers that are built at once and not counted yet.
pub const LONG_ANSWERS_MADE_MAX: usize = 8;
/// Snapshots sent or received at once. Each is a file of its own.
pub const SNAPSHOT_TRANSFERS_MAX: usize = 2;
/// How long a snapshot may take to be sent or received: the largest at 1.8 MB a second.
pub const SNAPSHOT_TRANSFER_WAIT: Duration = Duration::from_mins(10);
/// Bytes of a request's line and headers. Beyond it the answer is 431. This API's paths and queries are short;
/// proxies add a few kilobytes.
pub const HTTP_HEADER_BYTES_MAX: usize = 64 << 10;
/// How long a request's header may take, and how long an idle connection stays open.
pub const HTTP_HEADER_WAIT: Duration = Duration::from_secs(10);
/// How long a request's body may take: the largest at 140 kB a second.
pub const HTTP_BODY_WAIT: Duration = Duration::from_secs(30);
/// How long a client may leave available data unread. It is long enough for a user who pauses the terminal to look
/// at a line. Half is too short because a paused reader is common. Double is too long because an answer held in
/// memory can be large.
pub const HTTP_WRITE_WAIT: Duration = Duration::from_mins(2);
/// Most bytes of a body that is parsed on the connection's thread. A larger body is parsed on a thread of its own.
/// This many bytes take about half a millisecond.
pub const HTTP_BODY_INLINE_BYTES_MAX: usize = 64 << 10;
/// Bytes of a body above the limit that are read and discarded, so that the sender can read the refusal. Beyond it
/// the connection is closed. The value is four times the limit: enough for a misdirected job file, not for an
/// image.
pub const HTTP_BODY_DRAINED_BYTES_MAX: usize = 4 * muster_wire::limits::HTTP_BODY_BYTES_MAX;
/// How long the listener rests when no connection can be accepted.
pub const HTTP_ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long requests in flight may take to end when the server stops.
pub const HTTP_SHUTDOWN_WAIT: Duration = Duration::from_secs(5);
/// Delay before a client's retry if no server leads or all are busy. An election takes about as long.
pub const RETRY_AFTER: Duration = Duration::from_secs(1);
/// How long a node may take to answer a question about its statistics.
pub const NODE_REPLY_WAIT: Duration = Duration::from_secs(10);
/// Time between the two samples of a rate. It keeps the grain of the clock and the counters (about a millisecond)
/// below one percent. It is short enough for a waiting user.
pub const STATS_SAMPLE_GAP: Duration = Duration::from_millis(200);
/// Bytes of one message of an exec session: twice the size that Nomad's command line sends at once, in base64. A
/// larger message ends the session.
pub const EXEC_MESSAGE_BYTES_MAX: usize = 128 << 10;
/// Time between two pings of an exec session. The value is Nomad's.
pub const EXEC_PING_INTERVAL: Duration = Duration::from_secs(10);
/// Silence after which the client of an exec session counts as gone: it missed five pings.
pub const EXEC_SILENCE_MAX: Duration = Duration::from_mins(1);
/// Bytes of a session's output that are forwarded before the node gets a window update. It is an eighth of the
/// window, so that the node never waits for the update.
pub const EXEC_TAKEN_BYTES: u64 = 16 << 10;
/// Time between two heartbeats of a stream. The value is Nomad's; clients treat twice that time as a loss.
pub const STREAM_HEARTBEAT: Duration = Duration::from_secs(1);
/// Most ids of each kind in a search. The value is Nomad's.
pub const SEARCH_MATCHES_MAX: usize = 20;
/// How often periodic jobs are checked while the next launch is further away, and after a failed launch. The wall
/// clock may be set meanwhile. A check costs a microsecond a job.
pub const PERIODIC_LOOK_INTERVAL: Duration = Duration::from_secs(10);
/// Bytes that an event of a one-off task holds beyond the state. Most definitions are smaller.
pub const EVENT_TASK_BYTES: usize = 4 * 1024;
/// Time between two checks of one-off tasks. Changes due in one interval share one entry. A client that waits for
/// its callback does not notice the delay.
pub const ONE_OFFS_INTERVAL: Duration = Duration::from_millis(10);
/// Clients' requests of each kind about one-off tasks that may wait for the previous entry. Further requests wait
/// for a place. The value is above the number of connections and at most the requests that an entry takes.
pub const ONE_OFF_REQUESTS_MAX: usize = ONE_OFF_REQUESTS_PER_ENTRY_MAX;
/// Requests about one-off tasks in one entry. An entry of this many new tasks is applied within some 20 ms.
pub const ONE_OFF_REQUESTS_PER_ENTRY_MAX: usize = 1024;
/// Such entries of each kind under way at once. With one, processors would be idle during its commit: all clients
/// would wait for it and then all send again. Each further entry makes the entries smaller.
pub const ONE_OFF_ENTRIES_MAX: usize = 4;
/// Bytes of such an entry, unless one request is larger. As with reports, heartbeats wait behind the entry.
pub const ONE_OFF_BYTES_PER_ENTRY_MAX: usize = 4 << 20;
/// How long an entry that records one-off tasks waits for their places. It is several times the time to find
/// places for one full entry. Without places the next entry places the tasks.
pub const PLACES_WAIT: Duration = Duration::from_millis(100);
/// Completion callbacks under way at once. Each holds a thread and a connection. Diego has 1 000, and one hanging
/// endpoint can take them all.
pub const CALLBACKS_MAX: usize = 256;
/// Completion callbacks under way at once to one place: scheme, host and port. An endpoint that answers in 10 ms
/// gets at most 1 600 a second.
pub const CALLBACKS_PER_PLACE_MAX: usize = muster_control_core::limits::CALLBACKS_PER_PLACE_MAX;
/// The longest time for a whole callback: name, connection, answer. It is Diego's 10 s and a third of a claim's
/// duration. The claim covers the call and the entries before and after it on a busy server.
pub const CALLBACK_WAIT_MAX: Duration = Duration::from_secs(10);
/// The shortest time for a whole callback. Below it a connection with TLS to another continent fails.
pub const CALLBACK_WAIT_MIN: Duration = Duration::from_millis(100);
/// The shortest pause after a callback's failure. A shorter pause would flood an endpoint that is down, and every
/// call is an entry.
pub const CALLBACK_PAUSE_MIN: Duration = Duration::from_millis(100);
/// The longest time after which the server gives up a callback. Garbage collection keeps the task until then.
pub const CALLBACK_DEADLINE_MAX: Duration = Duration::from_hours(30 * 24);
/// Most redirects that a callback follows. A web client follows twenty, and each redirect costs a call's time.
pub const CALLBACK_REDIRECTS_MAX: u32 = 10;
/// Prefixes in each list of addresses that callbacks may or may not go to. Every address is compared with each
/// prefix.
pub const CALLBACK_PREFIXES_MAX: usize = 1024;
/// The longest time for which a client's claim holds. If the client dies, no other client gets the result for so
/// long.
pub const CLAIM_MAX: Duration = Duration::from_hours(24);
/// Least bytes of the key that signs callbacks: half of its hash's size.
pub const CALLBACK_KEY_BYTES_MIN: usize = 16;

/// How long a TLS handshake may take. After that the connection is closed.
pub const TLS_HANDSHAKE_WAIT: Duration = Duration::from_secs(10);
/// Most connections of Diego's clients, with the same rules as [`HTTP_CONNECTIONS_MAX`]. A refused connection is
/// closed before its handshake. The value is a third of the API's: both share file descriptors, and a client keeps
/// a few.
pub const BBS_CONNECTIONS_MAX: usize = 256;
/// Connections from one address. The bound matters most before a connection has shown a certificate.
pub const BBS_CONNECTIONS_PER_ADDRESS_MAX: usize = 64;
/// Streams of task events; the next one gets 503. Each stream keeps a pointer and a name for every existing task.
pub const BBS_STREAMS_MAX: usize = 64;
/// Time between two heartbeats of such a stream: comments, which clients skip. The server notices a dead client
/// after one.
pub const BBS_STREAM_HEARTBEAT: Duration = Duration::from_secs(15);
/// Tasks of a list that are encoded at once: at most 3 MiB of definitions.
pub const BBS_TASKS_CHUNK: usize = 16;
/// How long the answer to a cancellation waits for the end of the task. It is half of the time that Diego's
/// components allow for a request. Most processes end within milliseconds of a signal.
pub const BBS_CANCEL_WAIT: Duration = Duration::from_secs(5);
/// How long a write of Diego's clients is repeated while no leader answers. Diego's components allow a request the
/// same time. An election takes less.
pub const BBS_WRITE_WAIT: Duration = Duration::from_secs(10);
/// Pause before such a repetition: a fraction of an election's time.
pub const BBS_RETRY_PAUSE: Duration = Duration::from_millis(100);
