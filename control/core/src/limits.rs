//! Bounds of the control plane's core. Each says why not half and why not double.

use std::time::Duration;

/// Numbers of nodes that a snapshot may use: every number below the highest takes memory. No server has the
/// memory for half as many nodes, at some kilobytes each.
pub const NODE_NUMBERS_MAX: u32 = 1 << 20;
/// Versions of a job that are kept, the current one included. Nomad's number: enough to go back a few
/// deployments; each is a whole job specification.
pub const JOB_VERSIONS_MAX: usize = 6;
/// Versions of a job that have a name and are kept for it, beside those: each is a whole job specification.
pub const JOB_TAGS_MAX: usize = 32;
/// Scaling events kept for each group of a job. Nomad's number.
pub const SCALING_EVENTS_MAX: usize = 20;
/// Nodes whose scores a placement records. Nomad's number: what fits on a screen.
pub const SCORES_MAX: usize = 5;
/// Kinds of nodes without a node that a scheduler keeps besides as many as have one: about 100 bytes each, and a fleet
/// whose attributes all change at once is sorted anew only now and then.
pub const KINDS_SPARE_MAX: usize = 1_024;
/// Sets of constraints whose verdicts a scheduler keeps: a cluster has about as many as it has kinds of jobs. When
/// there are more it begins anew, and judges each class of nodes once more.
pub const CONSTRAINT_SETS_MAX: usize = 1_024;
/// Nodes on which a fixed port that is asked for may be taken before all nodes are looked at one by one.
pub const REFUSALS_MAX: u32 = 32;
/// First port given to a group that names none. Nomad's range: below the ephemeral ports of Linux,
/// which begin at 32 768, so that no outgoing connection takes one.
pub const DYNAMIC_PORT_MIN: u16 = 20_000;
/// Last port given to a group that names none.
pub const DYNAMIC_PORT_MAX: u16 = 32_000;
/// Times an evaluation is given to a worker before it counts as failed. Nomad's number: two chances
/// after an accident, and no worker kept busy for ever.
pub const DELIVERIES_MAX: u32 = 3;
/// Times in a row that a plan may be refused without anything of it being placed. Nomad's number for
/// services: each time costs a whole plan.
pub const PLAN_RETRIES_MAX: u32 = 5;
/// Evaluations cancelled or failed by one command: about 256 KiB of log.
pub const EVAL_UPDATES_MAX: usize = 4_096;
/// Plans merged in one command. A plan of one placement is about 300 bytes, so an entry stays well
/// below a megabyte; more would let a follower's apply fall behind a heartbeat.
pub const PLANS_MAX: usize = 1_024;
/// Runs of placements merged in one command: about 64 bytes each. One plan may exceed it alone.
pub const PLAN_RUNS_MAX: usize = 32_768;
/// Capacity events remembered for evaluations that are about to be blocked. The gap between a snapshot
/// and the block is milliseconds; where it is longer the evaluation is woken to be safe.
pub const RECENT_CAPACITY_MAX: usize = 4_096;
/// Work that one garbage collection command may do, counted in allocations (`GC_COST_…`): a quarter of a millisecond
/// of apply. A placement may wait that long for it, and the way through the log takes as much. Half would free two
/// thirds as many a second, double has placements wait longer.
pub const GC_SLICE_MAX: usize = 1_280;
/// Cost of freeing an evaluation, in allocations of a slice, which share a row of their siblings. A job with one
/// evaluation and one allocation takes 5 to 6 µs, an allocation among a hundred 0.2. Counted alike, a slice of small
/// jobs took ten times as long as one of large ones. The split between job and evaluation is a guess; their sum was
/// measured.
pub const GC_COST_EVAL: usize = 8;
/// Cost of freeing a deployment, in allocations: it has a row and indexes as an evaluation has.
pub const GC_COST_DEPLOYMENT: usize = 8;
/// Cost of freeing a job with its older versions, in allocations.
pub const GC_COST_JOB: usize = 16;
/// Cost of freeing a node, in allocations.
pub const GC_COST_NODE: usize = 16;
/// Cost of freeing the row of a one-off task, in allocations; the allocation that ran it is counted beside it.
pub const GC_COST_ONE_OFF: usize = 8;
/// Objects looked at by one garbage collection command, which costs a quarter of freeing allocations.
pub const GC_LOOKED_AT_MAX: usize = 4_096;
/// Keys of nodes' lists that are looked up to thin the lists out when allocations go, or one list: as many as a slice
/// frees, for each takes a third of a microsecond. Keys beyond it wait until more goes there. Nodes fill up and empty
/// together: without a bound the turns of 62 of a thousand nodes come at once.
pub const STALE_KEYS_MAX: usize = 1_024;
/// Answers to keyed writes that are kept: a client that retries does so within seconds, and the fastest
/// cluster takes a few thousand writes a second from people and their programs. About 300 bytes each.
pub const ANSWERS_MAX: u32 = 65_536;
/// Shortest time for which the answer to a keyed write is kept, while there are not too many: ten times the patience
/// of a client with an election.
pub const ANSWER_AGE_MAX: Duration = Duration::from_mins(15);
/// Answers forgotten by one keyed write. Each adds one, so the table shrinks whenever it must.
pub const ANSWERS_FORGOTTEN_MAX: u32 = 8;
/// Instances placed by one command. Applying takes about half a microsecond each, so an entry of this many
/// holds the others up for some 40 ms; the rest of a larger job is placed by the next round.
pub const PLACEMENTS_MAX: u32 = 65_536;
/// Callbacks to one place that may be claimed by tasks' ends at once: as many as are made there at a time. One that
/// nobody comes to make would wait until its claim is over. Every server must apply the same.
pub const CALLBACKS_PER_PLACE_MAX: usize = 16;
/// Domains that are fresh at once; the next one is refused. Diego's installations have two or three. Every server must
/// apply the same.
pub const DOMAINS_MAX: usize = 1024;
/// Longest time for which a place found for a task counts as taken while the task is not in the state. The caller that
/// asked for it waits that long for the log.
pub const PLACED_AHEAD: Duration = Duration::from_secs(10);
/// Nodes declared down by one look at the heartbeats. A partition can cut off all of them at once.
pub const EXPIRED_MAX: usize = 512;
/// Earlier replacements that an allocation remembers, where its policy has no limit: as many as the delay
/// functions and people look at. Nomad's number.
pub const RESCHEDULES_KEPT: usize = 5;
/// Earlier replacements that an allocation remembers at most: about 60 bytes each. A policy that allows more
/// within its interval is as good as one without a limit.
pub const RESCHEDULES_MAX: usize = 64;
/// Delay before an instance of a system job that ended by itself, its restarts in place used up, is started anew on
/// its node: what an instance of a service waits at first. Nomad waits for the next change of the cluster.
pub const SYSTEM_RESTART_DELAY: Duration = Duration::from_secs(30);
/// Dispatched jobs that are looked through for a repeated token; older ones are finished long since.
pub const DISPATCHES_LOOKED_AT: usize = 4_096;
/// Launches of one periodic job that may be made within a second. Each has an id of its own, by seconds.
pub const LAUNCHES_PER_SECOND_MAX: u64 = 60;

/// Longest time a leader may go without looking at its heartbeats before it gives every node a whole period. It looks
/// twice a second. Less would take a busy machine's hiccups for a stop. More would let a stop of that length count as
/// silence, which the grace would have to bear.
pub const INATTENTION_MAX: Duration = Duration::from_secs(2);
/// Changes of one-off tasks in one entry. Each forgets or writes a handful of rows; an eighth of what
/// a collection removes in one entry, and a tenth of it would make ten times the entries.
pub const ONE_OFF_CHANGES_MAX: usize = 256;
/// Pause between two looks at deployments and drains, however much happens: a look costs some microseconds for each
/// instance of the jobs concerned, and nobody notices a fifth of a second in a step that waits for health.
pub const WATCH_INTERVAL: Duration = Duration::from_millis(200);
/// Interval at which drains are looked at though no event came: the end of an instance that was told to stop is an
/// event for nobody else.
pub const DRAIN_INTERVAL: Duration = Duration::from_millis(500);
/// Pause before deployments and drains are looked at again when the result of a look could not be written. A leader
/// that lost its office hears of it sooner, and a full disk has no room again in less.
pub const WATCH_RETRY_PAUSE: Duration = Duration::from_secs(1);
