//! Bounds of the simulation. Those that stand for bounds of the real shells are smaller in the same
//! proportion as a run is shorter than a cluster's life.

use std::time::Duration;

use muster_control_core::fsm::GcBounds;
use muster_control_core::gc::GcConfig;
use muster_domain::id::Timestamp;

/// Wall-clock time at which every run begins.
pub const EPOCH: Timestamp = Timestamp(1_700_000_000_000_000_000);
/// Time without a heartbeat after which a node may be down, as the cores have it.
pub const HEARTBEAT_TTL: Duration = Duration::from_secs(10);
/// Entries after which a run that does not come to rest is a failure: ten times what any seed needed.
pub const ENTRIES_MAX: u64 = 100_000;
/// Steps without time passing, after which a run is a failure: something is due for ever.
pub const STEPS_AT_ONCE_MAX: u32 = 10_000;
/// Lines of the trace that a failure shows.
pub const TRACE_TAIL: usize = 40;
/// Times a message on a stream is held up by a cut link before it is given up: by then both ends have
/// given up the session.
pub const STREAM_TRIES_MAX: u32 = 60;

/// Heartbeat of a leader.
pub const RAFT_HEARTBEAT: Duration = Duration::from_millis(250);
/// Silence after which a follower stands for election, at least.
pub const ELECTION_MIN_MS: u64 = 1_000;
/// The longest election timeout, in milliseconds.
pub const ELECTION_MAX_MS: u64 = 2_000;
/// Entries in one message to a follower.
pub const APPEND_MAX: usize = 64;
/// Entries between two snapshots.
pub const SNAPSHOT_EVERY: u64 = 60;
/// Entries kept before the newest snapshot.
pub const LOG_KEPT: u64 = 15;

/// Outcomes that wait for the applier before it merges them, at most.
pub const BATCH_MAX: usize = 8;
/// Workers that schedule at the same time.
pub const WORKERS: usize = 3;
/// If the duties do not get to run for this long, the server stood still.
pub const LEADER_STALL: Duration = Duration::from_secs(2);
/// How often duties look at the clock when nothing happens.
pub const DUTY_INTERVAL: Duration = Duration::from_millis(500);
/// How often gathered heartbeats go to the leader.
pub const BEATS_INTERVAL: Duration = Duration::from_secs(1);
/// How long a server waits for an answer from the leader before it asks again or gives up.
pub const FORWARD_WAIT: Duration = Duration::from_secs(2);
/// How long a request waits for a leader.
pub const REQUEST_WAIT: Duration = Duration::from_secs(4);
/// Pause before a request is tried again while there is no leader.
pub const REQUEST_PAUSE_MS: u64 = 100;
/// Allocations in one message to an agent: few, so that sets are cut into several.
pub const DESIRED_BATCH_MAX: usize = 3;
/// How often a session looks for changes that nobody told it of.
pub const SESSION_RESCAN: Duration = Duration::from_secs(5);

/// Time a session has until the server answers, and between two answers.
pub const SESSION_DEADLINE: Duration = Duration::from_secs(10);
/// First pause before an agent connects again, in milliseconds.
pub const RECONNECT_PAUSE_MIN_MS: u64 = 100;
/// Longest pause before an agent connects again, in milliseconds.
pub const RECONNECT_PAUSE_MAX_MS: u64 = 8_000;
/// Time that reports wait for others to travel with.
pub const REPORT_DELAY: Duration = Duration::from_millis(200);
/// Messages that a test of the agent's merge repeats.
pub const HISTORY_MAX: usize = 8;
/// Time before an agent whose store was lost removes what the control plane does not name.
pub const SWEEP_DELAY_AFTER_LOSS: Duration = Duration::from_secs(30);

/// Clients.
pub const CLIENTS: usize = 4;
/// How long a client waits for an answer.
pub const CLIENT_WAIT: Duration = Duration::from_secs(6);
/// Tries of a client before it gives up.
pub const CLIENT_TRIES_MAX: u32 = 8;
/// How often it is looked whether all is at rest.
pub const REST_INTERVAL: Duration = Duration::from_secs(5);
/// Most that one slice of a collection frees and looks at. It is small, so that most collections take several slices.
pub const GC_BOUNDS: GcBounds = GcBounds {
    freed_max: 20,
    looked_at_max: 8,
};
/// How long a server waits for the leader to collect what a user wants collected.
pub const COLLECT_WAIT: Duration = Duration::from_secs(4);
/// Slices of which the leader dies before the collection is over.
pub const CRASH_IN_COLLECTION_PERCENT: u32 = 1;
/// Longest callback, as `control`'s `CALLBACK_WAIT`.
pub const CALLBACK_WAIT: Duration = Duration::from_secs(10);
/// Callbacks claimed in one entry: few, so that there are several.
pub const CALLBACKS_MAX: usize = 3;

/// Ages at which finished objects are collected: short, so that a storm has collections.
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
