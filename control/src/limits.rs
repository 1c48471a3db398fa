//! Bounds of the control plane's shell. Each says what happens when it is reached.

use std::time::Duration;

/// Proposals that may wait for the log at once. Beyond it a caller waits for [`PROPOSE_WAIT`], then
/// is told that the server is overloaded. Four times the writers at which a group commit on one
/// local disk stops growing (1 024).
pub const PROPOSALS_MAX: usize = 4096;
/// How long a proposal waits for a place in the queue, and then for its commit.
pub const PROPOSE_WAIT: Duration = Duration::from_secs(10);
/// The longest pause of a leader's duty whose changes are not written. The first is [`LEADER_RETRY_PAUSE`].
pub const DUTY_RETRY_PAUSE_MAX: Duration = Duration::from_secs(1);
/// A server whose wall clock at its start is further ahead of the newest change than this may have a wrong clock. Of
/// the default thresholds of collections it is the shortest.
pub const CLOCK_GAP_MAX: Duration = Duration::from_hours(1);
/// How long such a server collects nothing by age: NTP corrects a clock within minutes, and an operator sees the
/// warning. Nothing but garbage waits.
pub const CLOCK_GAP_HOLD: Duration = Duration::from_hours(1);
/// Pause between two looks whether collections are still held.
pub const CLOCK_GAP_LOOK: Duration = Duration::from_secs(30);
/// Pause before a proposal is tried again while there is no leader: about a heartbeat's tenth.
pub const LEADER_RETRY_PAUSE: Duration = Duration::from_millis(25);

/// Entries applied before the state is published and their proposers are answered. Not less: each
/// published root costs a few microseconds of copying on the next write. Not more: answers wait.
pub const APPLY_BATCH_MAX: usize = 256;
/// Replaced states on the way to the thread that frees them. Each may own a slice of garbage, some hundred
/// kilobytes. Half would leave more to the applier when the thread waits for a processor; double would only
/// cost memory.
pub const OUTDATED_STATES_MAX: usize = 16;
/// Rows that a replaced state owns before another thread is woken to free it: less takes no longer than waking that.
pub const OUTDATED_ROWS_MIN: usize = 64;
/// Niceness of that thread. By the kernel's weights it has a tenth of a processor that one other thread wants
/// too. The applier helps before memory grows.
pub const OUTDATED_NICENESS: i32 = 10;
/// How long the next slice of a collection lets other work go first: longer than a placement takes. Then the
/// slice comes in between, so that a collection ends under any load, with a slice in little more than that.
/// Half would cut into placements. Double would make collections wait where there is always work.
pub const GC_GIVES_WAY: Duration = Duration::from_millis(2);
/// Batches of effects on the way to the leader's duties. If it is full the batch is dropped and the
/// duties scan the state instead.
pub const EFFECT_BATCHES_MAX: usize = 1024;

/// Events kept for readers of the event stream who come back. The oldest go, and a reader who wants them
/// is told. Some seconds of a cluster that places as fast as it can, 400 bytes each; hours of a quiet one.
pub const EVENTS_MAX: usize = 32 * 1024;
/// Bytes that those events may hold, by the estimates below.
pub const EVENT_BYTES_MAX: usize = 64 << 20;
/// Bytes that an event of an allocation or evaluation holds: its row, with texts and task states.
pub const EVENT_ROW_BYTES: usize = 1024;
/// Bytes that an event of a job holds: a specification of a few groups.
pub const EVENT_JOB_BYTES: usize = 8 * 1024;
/// Bytes that an event of a node holds: some hundred attributes.
pub const EVENT_NODE_BYTES: usize = 16 * 1024;
/// Entries whose events a reader takes at once.
pub const EVENT_ENTRIES_READ_MAX: usize = 64;
/// Rows of one entry that are made into JSON where they are read; more are made on a thread of their own.
/// About a millisecond.
pub const EVENT_ROWS_INLINE_MAX: usize = 64;
/// Entries after which the leader has all servers compare their states. A comparison is a message to each
/// server, so this is about the log's cost: none. Not more often: an error that is found late is found all
/// the same, and the state of a moment ago is kept for [`STATE_HASHES_KEPT`] entries.
pub const STATE_COMPARE_EVERY: u64 = 4096;
/// How long a server that is asked for its state at an index waits until it has applied that. Below
/// [`PEER_CALL_WAIT`].
pub const STATE_HASH_WAIT: Duration = Duration::from_secs(2);
/// Entries after which a debug build checks the rules of its state. Half would slow tests down, double would find a
/// mistake later.
pub const STATE_RULES_EVERY: u64 = 2048;
/// Rows of a state that a debug build checks by itself: some hundred milliseconds without optimisation.
pub const STATE_RULES_DEBUG_ROWS_MAX: usize = 20_000;
/// Rows of a state that `muster operator check --deep` checks. The check makes all indexes anew: about 500 bytes a row.
pub const STATE_RULES_ROWS_MAX: usize = 2_000_000;
/// Broken rules that an answer lists: one mistake often breaks thousands of rows.
pub const BROKEN_RULES_MAX: usize = 100;
/// A server that lacks entries and takes none for this long is not well: an election and a slow disk take less.
pub const SERVER_STALLED_AFTER: Duration = Duration::from_secs(5);
/// Entries that a healthy server may be behind: less than a second of a cluster at its fastest.
pub const HEALTHY_ENTRIES_BEHIND: u64 = 16 * 1024;
/// Bytes of a snapshot that an operator may send. It is written to disk as it comes.
pub const SNAPSHOT_UPLOAD_BYTES_MAX: u64 = 1 << 30;
/// Entries after which the hash of the state is remembered, 72 bytes each: what servers need to compare
/// their states at an index while writes go on. Twice what lies between two comparisons; half would be forgotten
/// before a question that is late comes to a server that is ahead.
pub const STATE_HASHES_KEPT: usize = 8 * 1024;

/// Bytes of one record in a snapshot, and of one log entry.
pub const ENTRY_BYTES_MAX: usize = muster_wire::limits::ENTRY_BYTES_MAX;

/// Heartbeat of the leader to its followers. Three are lost before a follower moves.
pub const RAFT_HEARTBEAT: Duration = Duration::from_millis(150);
/// A follower stands for election after [`RAFT_ELECTION_MAX`] (the leader's lease) and a time between this
/// and that again: after 1.2 to 1.5 s of silence, so that another server leads within 2 s. The library's
/// defaults (0.45 to 0.6 s in all) elect needlessly on a busy machine.
pub const RAFT_ELECTION_MIN: Duration = Duration::from_millis(450);
/// See [`RAFT_ELECTION_MIN`].
pub const RAFT_ELECTION_MAX: Duration = Duration::from_millis(750);
/// How long a leader without answers of a quorum sends no heartbeats, after its lease of [`RAFT_ELECTION_MAX`]. Then it
/// sends for as long, in case only packets were lost. Longer than the latest election of its followers (1.5 s) and the
/// round trips of that.
pub const RAFT_QUORUM_LOST_SILENCE: Duration = Duration::from_secs(2);

/// Bytes of the entries in one message to a follower besides the first. Small enough that a heartbeat never
/// waits long behind it, large enough that a plan of some thousand placements goes whole.
pub const APPEND_BYTES_MAX: u64 = 2 << 20;
/// Streams of entries in a row that a follower does not answer, or refuses, before the next one waits.
pub const APPEND_RETRIES_AT_ONCE: u32 = 3;
/// The first such wait, and the longest: a server that comes back gets entries within that and [`PEER_PAUSE_MAX`].
pub const APPEND_PAUSE_MIN: Duration = Duration::from_millis(20);
/// See [`APPEND_PAUSE_MIN`].
pub const APPEND_PAUSE_MAX: Duration = Duration::from_millis(500);
/// Entries in one message to a follower.
pub const ENTRIES_PER_APPEND_MAX: u64 = 1024;
/// Entries by which the log must have grown beyond what is kept before it is purged: a purge is a write.
pub const LOG_PURGE_BATCH: u64 = 1024;
/// Silence of a leader, or of its followers, after which it does not count as one: they have elected another
/// by then, or cannot.
pub const LEADER_SILENT: Duration = Duration::from_secs(2);
/// How long a change that was passed on waits for its answer once another server leads. The former leader may
/// still answer; if it is gone nobody does.
pub const FORMER_LEADER_WAIT: Duration = Duration::from_millis(500);
/// Proposals that a follower passes on in one frame.
pub const FORWARD_BATCH_MAX: usize = 1024;
/// Bytes of such a frame, or one proposal if that is larger.
pub const FORWARD_FRAME_BYTES: usize = 1 << 20;
/// How long a change waits while no server leads; then the caller is told to come back. Elections end within
/// two seconds; Nomad's number.
pub const ELECTION_WAIT: Duration = Duration::from_secs(5);
/// Reads that wait for one read index. The next waits for a place.
pub const READS_MAX: usize = 4096;
/// How long the leader may take to say up to where a read must see.
pub const READ_INDEX_WAIT: Duration = Duration::from_secs(2);
/// How long a change of the servers may take: two commits, one of them by the servers of before and after.
pub const CHANGE_SERVERS_WAIT: Duration = Duration::from_secs(10);
/// How long handing over leadership may take; then another election has to do.
pub const TRANSFER_WAIT: Duration = Duration::from_secs(3);
/// A server that was heard of within this time is healthy: some heartbeats may be lost.
pub const SERVER_HEALTHY_WITHIN: Duration = Duration::from_secs(2);
/// How long a fault of a server lasts before the leader notes it: a new leader has heard of nobody yet.
pub const SERVER_FAULT_NOTED_AFTER: Duration = Duration::from_secs(3);
/// How often the leader looks whether learners have caught up and servers are lost.
pub const AUTOPILOT_INTERVAL: Duration = Duration::from_millis(500);
/// Entries that a learner may lack when it gets its vote: less than a busy cluster writes in a few
/// milliseconds, so that its vote never holds a commit up.
pub const PROMOTE_LAG_MAX: u64 = 256;
/// How often a server that belongs to no cluster looks for one.
pub const SEEK_PAUSE: Duration = Duration::from_millis(250);
/// Pause between two such looks when nothing is expected to change soon.
pub const SEEK_PAUSE_LONG: Duration = Duration::from_secs(2);
/// Time without a leader after which a member asks others whether it still is one. Elections are over by then.
pub const SEEK_PATIENCE: Duration = Duration::from_secs(5);
/// How long a server may take to say who it is.
pub const HELLO_WAIT: Duration = Duration::from_secs(1);
/// Bytes of a snapshot on the way that either end holds in memory.
pub const SNAPSHOT_CHUNK_BYTES: usize = 256 << 10;

/// Streams that one connection of another server may have open at once; the next waits. Requests end within
/// milliseconds; what stays open is log output of clients, a hundred times fewer than this.
pub const PEER_STREAMS_MAX: u32 = 1024;
/// How long another server may take to answer a request.
pub const PEER_CALL_WAIT: Duration = Duration::from_secs(5);
/// How long a connection to another server may take: a handshake and two repeats of a lost packet.
pub const PEER_DIAL_WAIT: Duration = Duration::from_secs(3);
/// Pause after a failed attempt to connect. It doubles up to [`PEER_PAUSE_MAX`].
pub const PEER_PAUSE_MIN: Duration = Duration::from_millis(100);
/// See [`PEER_PAUSE_MIN`].
pub const PEER_PAUSE_MAX: Duration = Duration::from_millis(800);
/// Silence after which a connection is given up while somebody waits for an answer. A living server
/// acknowledges within milliseconds, whatever its disk does; a stopped process is found by this.
pub const PEER_SILENCE: Duration = Duration::from_secs(1);
/// How long a snapshot may take to reach a follower and be installed there.
pub const SNAPSHOT_INSTALL_TIMEOUT: Duration = Duration::from_mins(10);
/// How long a snapshot that was asked for is waited for before it is asked for again.
pub const SNAPSHOT_ASK_AGAIN: Duration = Duration::from_secs(1);
/// How long the sole voter may take to lead after its start.
pub const LEAD_WAIT: Duration = Duration::from_secs(30);

/// Evaluations handed to workers and not answered yet. The rest wait in the broker.
pub const EVALS_IN_FLIGHT_MAX: usize = 64;
/// Evaluations handed to the scheduler in one go of a worker thread.
pub const EVALS_PER_WORKER_RUN_MAX: usize = 16;
/// Times that a server ends during work on an evaluation before that is set aside. The first time it was
/// planned with others; the second time it was alone.
pub const EVAL_ENDS_MAX: u8 = 2;
/// Jobs, and entries full of one-off tasks, for which one go of a worker thread finds places before they are recorded.
pub const PLACES_PER_WORKER_RUN_MAX: usize = 32;
/// How often duties look at the clock when nothing happens.
pub const DUTY_INTERVAL: Duration = Duration::from_millis(500);
/// Requests to the leader's duties waiting, such as a forced collection.
pub const DUTY_REQUESTS_MAX: usize = 256;

/// QUIC connections to one server, of agents and servers. The next one is refused and tries another server.
pub const CONNECTIONS_MAX: usize = 20_000;
/// How much the threads of sessions yield to the log and the scheduler where there is less processor than work: they
/// have a quarter of it then, by the kernel's weights. More niceness would leave many nodes' heartbeats too little.
pub const SESSIONS_NICENESS: i32 = 5;
/// Messages of one agent read ahead of their handling. The stream's window holds the rest back.
pub const SESSION_INBOX_MAX: usize = 16;
/// Answers to an agent waiting for its stream. A full queue holds the session back.
pub const SESSION_OUTBOX_MAX: usize = 64;
/// How long a connection may take to say who it is.
pub const REGISTER_WAIT: Duration = Duration::from_secs(10);
/// Times in a second that a server tells a node what to run, for each of its cores: the last of five thousand nodes on
/// two cores waits a third of a second. Chosen for a message and its answers costing some tens of microseconds, which
/// is not measured alone.
pub const DESIRED_PER_CORE: u32 = 8_000;
/// The rate while more and more is to tell, so that four times as much of the processor is left. The last of
/// those nodes waits a second and a quarter.
pub const DESIRED_PER_CORE_MEANWHILE: u32 = 2_000;
/// Time without anything new to tell after which the full rate holds again.
pub const DESIRED_QUIET: Duration = Duration::from_millis(25);
/// Most that may be told at once after a quiet time, as time at the full rate.
pub const DESIRED_BURST: Duration = Duration::from_millis(20);
/// How often turns are given while some wait.
pub const DESIRED_TICK: Duration = Duration::from_millis(5);
/// How often a session looks for missed changes when nobody woke it.
pub const SESSION_RESCAN: Duration = Duration::from_secs(5);
/// How long a node is not told of allocations that a collection forgot: as long as one of a million takes. Nobody waits
/// for it, and each look at a node costs as much as it has allocations.
pub const FORGOTTEN_WAIT: Duration = Duration::from_millis(500);
/// Reports in one entry.
pub const REPORTS_PER_ENTRY_MAX: usize = 4096;
/// Bytes of reports in one entry, as estimated: an entry that is written while heartbeats wait behind it.
pub const REPORT_BYTES_PER_ENTRY_MAX: usize = 4 << 20;
/// Allocations of one node with reports that are not written yet. Beyond it the agent's stream stands still.
pub const REPORTS_PER_SESSION_MAX: usize = 8192;
/// Pause before reports and registrations are proposed again after the log took none.
pub const REPORT_RETRY_PAUSE: Duration = Duration::from_millis(200);
/// Longest wait to write that a one-off task prepares or runs. A task that ends before then, or beside other
/// news, takes no entry for it. Half would spare few tasks that do something; more would delay what users
/// see.
pub const PROGRESS_WAIT: Duration = Duration::from_millis(500);
/// Messages with heartbeats that wait for the leader's duties. Each server has one under way.
pub const BEATS_MAX: usize = 64;
/// Messages with heartbeats that are counted, and wait for a quorum to confirm that this server leads. Beyond it
/// they are not answered, which their servers take for silence.
pub const BEATS_UNCONFIRMED_MAX: usize = 64;
/// How long the leader may take to forget all that is over: about a hundred entries for each hundred thousand
/// rows. A collecting node may also be silent for this long; it gives one sign of life a second.
pub const COLLECT_WAIT: Duration = Duration::from_secs(30);
/// How long all nodes together may take to destroy what is over and to free its space: some million files
/// each on a slow disk. A node that is not done by then goes on, and nobody waits for it. The command line
/// waits for this and for [`COLLECT_WAIT`].
pub const COLLECT_NODES_WAIT: Duration = Duration::from_mins(10);
/// Nodes that are asked at the same time to collect garbage: each answer waits for its disk, so more would not be
/// slower for them; a node holds a stream and a task here.
pub const COLLECT_NODES_MAX: usize = 256;
/// Collections whose slices are put together for events at the same time: one a rule, and purges of large jobs. More of
/// them than this at once have no event.
pub const COLLECTIONS_FOLLOWED_MAX: usize = 64;
/// How often a server sends its nodes' heartbeats to the leader; a tenth of the time to live if that is less.
/// Half would double the messages for nothing, double would use up a fifth of the time to live.
pub const BEATS_INTERVAL: Duration = Duration::from_secs(1);
/// How long the leader may take to count heartbeats: two rounds of Raft's own heartbeat, and a busy machine.
pub const BEATS_WAIT: Duration = Duration::from_secs(2);
/// Least time without a leader after which a server sends its agents away. An election takes about as long.
pub const UNSERVED_MIN: Duration = Duration::from_secs(2);
/// How long an agent that is sent away should stay away.
pub const AWAY: Duration = Duration::from_secs(1);
/// How long an agent may take to read why its session ends.
pub const FAREWELL_WAIT: Duration = Duration::from_secs(2);
/// How long a server that is behind what an agent has seen may take to catch up.
pub const LAG_WAIT: Duration = Duration::from_secs(5);
/// Handshakes under way at once. Each costs about a millisecond of processor, so with these a heartbeat waits
/// for some tens of them; half would leave processors idle while packets travel.
pub const HANDSHAKES_MAX: usize = 64;
/// Agents that register at once: most of their time is a commit, which they share.
pub const REGISTRATIONS_MAX: usize = 128;
/// Silence of a node after which it may hang on another server by now: a heartbeat was missed.
pub const NODE_FRESH: Duration = Duration::from_secs(5);
/// How long another server may take to say whether a node is connected to it.
pub const LOCATE_WAIT: Duration = Duration::from_secs(2);
/// Answers of a node waiting for their reader. A full queue holds the node's stream back. With pieces of a
/// log it is a quarter of a mebibyte for each reader that is slow.
pub const NODE_REPLIES_MAX: usize = 4;
/// Streams of one agent that are served at a time: more than an agent asks for data at a time. More wait in QUIC's
/// stream limit.
pub const AGENT_QUESTIONS_MAX: usize = 32;
/// Allocations whose data this server passes on from node to node at a time; the others wait for their turn.
/// Each has at most half a mebibyte here (`DISK_WINDOW_BYTES`).
pub const DISKS_PASSED_MAX: usize = 128;
/// How often the server checks whether an allocation whose data are wanted has ended. The node that wants
/// them is told each time that it is waited for. Half would not be noticed: a task has seconds to end in.
pub const DISK_LOOK_INTERVAL: Duration = Duration::from_millis(250);
/// How long a node may take to open a stream.
pub const NODE_REQUEST_WAIT: Duration = Duration::from_secs(10);
/// How long a server that goes down waits for its peers to hear so: a packet and a repeat of it.
pub const FAREWELL_OF_SERVER_WAIT: Duration = Duration::from_millis(500);
/// How long a server waits for its parts to stop.
pub const SHUTDOWN_WAIT: Duration = Duration::from_secs(10);

/// Most HTTP connections. One more closes a connection that only waits; if none does, it is refused. The
/// value is below the usual soft limit of 1 024 file descriptors, less the need of the log, agents and
/// snapshots.
pub const HTTP_CONNECTIONS_MAX: usize = 768;
/// HTTP connections of one address that is not this machine's own. Nomad's number.
pub const HTTP_CONNECTIONS_PER_ADDRESS_MAX: usize = 100;
/// How long a request under way may take to be answered when its connection gives way to another one.
pub const HTTP_CLOSE_WAIT: Duration = Duration::from_secs(1);
/// Bytes of the answers that one listener is sending. Room for twenty lists of ten thousand allocations.
pub const HTTP_ANSWER_BYTES_MAX: usize = 256 << 20;
/// How long an answer waits for room in that memory; then the request is refused.
pub const ANSWER_BUDGET_WAIT: Duration = Duration::from_secs(10);
/// How long an answer may take to be read where another one waits for its memory.
pub const SLOW_READER_AGE: Duration = Duration::from_secs(5);
/// Bytes that are handed to a connection at once. A shorter answer is not counted.
pub const ANSWER_CHUNK_BYTES: usize = 64 << 10;
/// Long answers that are made at once, and not counted yet.
pub const LONG_ANSWERS_MADE_MAX: usize = 8;
/// Snapshots that are sent or received at once: each is a file of its own.
pub const SNAPSHOT_TRANSFERS_MAX: usize = 2;
/// How long a snapshot may take to be sent or received: the largest at 1.8 MB a second.
pub const SNAPSHOT_TRANSFER_WAIT: Duration = Duration::from_mins(10);
/// Bytes of a request's line and headers; beyond it the answer is 431. Paths and queries of ours are
/// short; proxies add a few kilobytes.
pub const HTTP_HEADER_BYTES_MAX: usize = 64 << 10;
/// How long a request's header may take, and how long an idle connection stays open.
pub const HTTP_HEADER_WAIT: Duration = Duration::from_secs(10);
/// How long a request's body may take: the largest at 140 kB a second.
pub const HTTP_BODY_WAIT: Duration = Duration::from_secs(30);
/// How long a client may read nothing while there is something to read. Long enough for somebody who
/// stops the terminal to look at a line; not half, because a paused reader is common, and not double,
/// because an answer held in memory can be large.
pub const HTTP_WRITE_WAIT: Duration = Duration::from_mins(2);
/// Bytes of a body that is read where it arrives; a larger one is read on a thread of its own. About half
/// a millisecond of reading.
pub const HTTP_BODY_INLINE_BYTES_MAX: usize = 64 << 10;
/// Bytes of a body above the limit that are read and forgotten, so that its sender gets to read why it
/// is refused; beyond it the connection is cut. Four times the limit: a job file sent in the wrong
/// place, not an image.
pub const HTTP_BODY_DRAINED_BYTES_MAX: usize = 4 * muster_wire::limits::HTTP_BODY_BYTES_MAX;
/// How long the listener rests when no connection can be accepted.
pub const HTTP_ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long requests in flight may take to end when the server stops.
pub const HTTP_SHUTDOWN_WAIT: Duration = Duration::from_secs(5);
/// Time after which a client comes back if no server leads or all are busy: an election takes about as long.
pub const RETRY_AFTER: Duration = Duration::from_secs(1);
/// How long a node may take to answer a question about its statistics.
pub const NODE_REPLY_WAIT: Duration = Duration::from_secs(10);
/// Between the two samples of a rate. Long enough that the clock's and the counters' grain (about a
/// millisecond) is below one percent; short enough for a person who waits.
pub const STATS_SAMPLE_GAP: Duration = Duration::from_millis(200);
/// Bytes of one message of a session: twice what Nomad's command line sends at once, in base64. A larger one ends the
/// session.
pub const EXEC_MESSAGE_BYTES_MAX: usize = 128 << 10;
/// Between two pings of a session. Nomad's number.
pub const EXEC_PING_INTERVAL: Duration = Duration::from_secs(10);
/// Silence after which the client of a session is taken for gone: it missed five pings.
pub const EXEC_SILENCE_MAX: Duration = Duration::from_mins(1);
/// Bytes of a session's output that are passed on without a word to the node: an eighth of the window, so that the
/// node never waits for it.
pub const EXEC_TAKEN_BYTES: u64 = 16 << 10;
/// Between two signs of life of a stream. Nomad's number; clients take twice as long for a loss.
pub const STREAM_HEARTBEAT: Duration = Duration::from_secs(1);
/// Ids of each kind in a search. Nomad's number.
pub const SEARCH_MATCHES_MAX: usize = 20;
/// How often periodic jobs are looked at while the next launch is further away, and after a launch that failed:
/// the wall clock may be set meanwhile. A look costs a microsecond a job.
pub const PERIODIC_LOOK_INTERVAL: Duration = Duration::from_secs(10);
/// Bytes that an event of a one-off task holds beside the state: most definitions are below it.
pub const EVENT_TASK_BYTES: usize = 4 * 1024;
/// Between two looks at one-off tasks. What is due at once is then one entry and not one for each; a client that
/// waits for its callback does not notice.
pub const ONE_OFFS_INTERVAL: Duration = Duration::from_millis(10);
/// Clients' requests about one-off tasks that wait for the entry before theirs, of each kind; beyond it they wait for a
/// place. More than there are connections, and no more than an entry takes.
pub const ONE_OFF_REQUESTS_MAX: usize = ONE_OFF_REQUESTS_PER_ENTRY_MAX;
/// Requests about one-off tasks in one entry: one of new tasks is applied within some 20 ms.
pub const ONE_OFF_REQUESTS_PER_ENTRY_MAX: usize = 1024;
/// Such entries of each kind under way at once. One would leave processors idle while it commits: all clients
/// wait for it, and then all come again. Each more makes entries smaller.
pub const ONE_OFF_ENTRIES_MAX: usize = 4;
/// Bytes of such an entry, unless one request is larger. As with reports, heartbeats wait behind it.
pub const ONE_OFF_BYTES_PER_ENTRY_MAX: usize = 4 << 20;
/// How long an entry that records one-off tasks waits for places for them: several times what finding them takes for as
/// many as one entry holds. Without them the tasks are placed by the next entry.
pub const PLACES_WAIT: Duration = Duration::from_millis(100);
/// Completion callbacks under way at once. Each holds a thread and a connection; Diego has 1 000, of which one
/// endpoint that hangs can take all.
pub const CALLBACKS_MAX: usize = 256;
/// Completion callbacks of one place under way at once: scheme, host and port. An endpoint that answers in 10
/// ms takes 1 600 a second at most.
pub const CALLBACKS_PER_PLACE_MAX: usize = muster_control_core::limits::CALLBACKS_PER_PLACE_MAX;
/// The longest time for a callback in all: name, connection, answer. It is Diego's 10 s, and a third of the
/// time a claim holds. The claim covers the call, and the entries before and after it on a busy server.
pub const CALLBACK_WAIT_MAX: Duration = Duration::from_secs(10);
/// The shortest: below it a connection with TLS to another continent fails.
pub const CALLBACK_WAIT_MIN: Duration = Duration::from_millis(100);
/// The shortest pause after a callback's failure. Below it an endpoint that is down gets nothing but calls,
/// and every one of them is an entry.
pub const CALLBACK_PAUSE_MIN: Duration = Duration::from_millis(100);
/// The longest time after which a callback is given up: nothing forgets its task until then.
pub const CALLBACK_DEADLINE_MAX: Duration = Duration::from_hours(30 * 24);
/// Redirects that a callback follows at most: a client of the web follows twenty, and every one costs a call's time.
pub const CALLBACK_REDIRECTS_MAX: u32 = 10;
/// Prefixes in each list of addresses that callbacks may go to or not: each is looked at for every address.
pub const CALLBACK_PREFIXES_MAX: usize = 1024;
/// The longest time for which a client's claim holds: if the client dies, nobody gets the result for so long.
pub const CLAIM_MAX: Duration = Duration::from_hours(24);
/// Least bytes of the key that callbacks are signed with: half of what its hash has.
pub const CALLBACK_KEY_BYTES_MIN: usize = 16;

/// How long a TLS handshake may take; then the connection is cut.
pub const TLS_HANDSHAKE_WAIT: Duration = Duration::from_secs(10);
/// Most connections of Diego's clients, as [`HTTP_CONNECTIONS_MAX`]; one that is refused is cut before its
/// handshake. The value is a third of the API's: they share file descriptors, and a client keeps a few.
pub const BBS_CONNECTIONS_MAX: usize = 256;
/// Connections of one address, most of all while they have not shown a certificate.
pub const BBS_CONNECTIONS_PER_ADDRESS_MAX: usize = 64;
/// Streams of task events; the next one gets 503. Each keeps a pointer and a name for every task there is.
pub const BBS_STREAMS_MAX: usize = 64;
/// Between two signs of life of such a stream: comments, which clients skip. A dead client is noticed after one.
pub const BBS_STREAM_HEARTBEAT: Duration = Duration::from_secs(15);
/// Tasks of a list that are encoded at once: at most 3 MiB of definitions.
pub const BBS_TASKS_CHUNK: usize = 16;
/// How long the answer to a cancellation waits for the task to end. Half of the time that Diego's components give a
/// request; most processes end within milliseconds of a signal.
pub const BBS_CANCEL_WAIT: Duration = Duration::from_secs(5);
/// How long a write of Diego's clients is repeated while no leader answers for it. Diego's components give a
/// request the same time. An election takes less.
pub const BBS_WRITE_WAIT: Duration = Duration::from_secs(10);
/// Pause before such a repetition: a fraction of an election.
pub const BBS_RETRY_PAUSE: Duration = Duration::from_millis(100);
