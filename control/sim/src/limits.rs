//! Bounds of the simulation. A run is shorter than a cluster's life. Bounds that stand for bounds of the real shells
//! are smaller in the same proportion.

use std::time::Duration;

use muster_control_core::fsm::GcBounds;
use muster_control_core::gc::GcConfig;
use muster_domain::id::Timestamp;

/// Wall-clock time at which every run begins.
pub const EPOCH: Timestamp = Timestamp(1_700_000_000_000_000_000);
/// Time without a heartbeat after which a node may be down, as in the cores.
pub const HEARTBEAT_TTL: Duration = Duration::from_secs(10);
/// Log entries after which a run counts as a failure: ten times the number that any seed needed.
pub const ENTRIES_MAX: u64 = 100_000;
/// Steps at one point in time after which a run counts as a failure, because an event is due for ever.
pub const STEPS_AT_ONCE_MAX: u32 = 10_000;
/// Lines of the trace that the report of a failure shows.
pub const TRACE_TAIL: usize = 40;
/// Times that a cut link delays a stream message before the message is dropped. By then both ends have ended the
/// session.
pub const STREAM_TRIES_MAX: u32 = 60;

/// Interval between heartbeats of a leader.
pub const RAFT_HEARTBEAT: Duration = Duration::from_millis(250);
/// The shortest election timeout, in milliseconds.
pub const ELECTION_MIN_MS: u64 = 1_000;
/// The longest election timeout, in milliseconds.
pub const ELECTION_MAX_MS: u64 = 2_000;
/// Entries in one message to a follower.
pub const APPEND_MAX: usize = 64;
/// Entries between two snapshots.
pub const SNAPSHOT_EVERY: u64 = 60;
/// Log entries kept before the newest snapshot.
pub const LOG_KEPT: u64 = 15;

/// The most outcomes that the applier merges in one batch.
pub const BATCH_MAX: usize = 8;
/// Workers that schedule at the same time.
pub const WORKERS: usize = 3;
/// Time without a run of the duties after which the server must have been paused.
pub const LEADER_STALL: Duration = Duration::from_secs(2);
/// Longest interval between two runs of the duties.
pub const DUTY_INTERVAL: Duration = Duration::from_millis(500);
/// Interval at which a server sends gathered heartbeats to the leader.
pub const HEARTBEAT_FORWARD_INTERVAL: Duration = Duration::from_secs(1);
/// How long a server waits for an answer from the leader before it asks again or gives up.
pub const FORWARD_WAIT: Duration = Duration::from_secs(2);
/// How long a request waits for a leader.
pub const REQUEST_WAIT: Duration = Duration::from_secs(4);
/// Pause before a request is tried again while no leader is known, in milliseconds.
pub const REQUEST_PAUSE_MS: u64 = 100;
/// Allocations in one message to an agent. The number is small, so that a set takes several messages.
pub const DESIRED_BATCH_MAX: usize = 3;
/// Interval at which a session looks for changes of which it was not notified.
pub const SESSION_RESCAN: Duration = Duration::from_secs(5);

/// Time that a session has until the first answer of the server, and between two answers.
pub const SESSION_DEADLINE: Duration = Duration::from_secs(10);
/// First pause before an agent connects again, in milliseconds.
pub const RECONNECT_PAUSE_MIN_MS: u64 = 100;
/// Longest pause before an agent connects again, in milliseconds.
pub const RECONNECT_PAUSE_MAX_MS: u64 = 8_000;
/// Time that a report waits so that other reports can share its message.
pub const REPORT_DELAY: Duration = Duration::from_millis(200);
/// The number of earlier messages that an agent keeps for repetition.
pub const HISTORY_MAX: usize = 8;
/// Time before an agent with a lost store removes processes that the control plane does not list.
pub const SWEEP_DELAY_AFTER_LOSS: Duration = Duration::from_secs(30);

/// The number of clients.
pub const CLIENTS: usize = 4;
/// How long a client waits for an answer.
pub const CLIENT_WAIT: Duration = Duration::from_secs(6);
/// Tries of a client before it gives up.
pub const CLIENT_TRIES_MAX: u32 = 8;
/// Interval at which the simulator checks whether the world is at rest.
pub const REST_INTERVAL: Duration = Duration::from_secs(5);
/// The most objects that one slice of a collection frees and examines. The bounds are small, so that most collections
/// take several slices.
pub const GC_BOUNDS: GcBounds = GcBounds {
    freed_max: 20,
    looked_at_max: 8,
};
/// How long a server waits for the leader to finish a forced collection.
pub const COLLECT_WAIT: Duration = Duration::from_secs(4);
/// Percentage of slices after which the leader crashes before the collection is over.
pub const CRASH_IN_COLLECTION_PERCENT: u32 = 1;
/// Longest duration of a callback, equal to `CALLBACK_WAIT` of `control`.
pub const CALLBACK_WAIT: Duration = Duration::from_secs(10);
/// Callbacks claimed in one entry. The number is small, so that several entries are needed.
pub const CALLBACKS_MAX: usize = 3;

/// Returns the ages at which finished objects are collected. They are short, so that collections happen during a
/// storm.
pub fn gc_config() -> GcConfig {
    let interval = Duration::from_secs(15);
    GcConfig {
        eval_interval: interval,
        job_interval: interval,
        deployment_interval: interval,
        node_interval: interval,
        eval_threshold: Duration::from_secs(20),
        batch_eval_threshold: Duration::from_secs(30),
        job_threshold: Duration::from_secs(30),
        node_threshold: Duration::from_secs(25),
        deployment_threshold: Duration::from_secs(20),
    }
}
