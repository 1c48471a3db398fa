//! Bounds of the control plane's core. Each comment gives the reason why its bound is neither half nor double.

use std::time::Duration;

/// Numbers of nodes that a snapshot may use. Every number below the highest takes memory. No server has the memory for
/// half as many nodes, at some kilobytes each.
pub const NODE_NUMBERS_MAX: u32 = 1 << 20;
/// Versions of a job that are kept, the current version included. This is Nomad's number: it is enough to go back a few
/// deployments. Each version is a whole job specification.
pub const JOB_VERSIONS_MAX: usize = 6;
/// Tagged versions of a job that are kept in addition to [`JOB_VERSIONS_MAX`]. Each version is a whole job
/// specification.
pub const JOB_TAGS_MAX: usize = 32;
/// Scaling events kept for each group of a job. Nomad's number.
pub const SCALING_EVENTS_MAX: usize = 20;
/// Nodes whose scores a placement records. This is Nomad's number: so many fit on a screen.
pub const SCORES_MAX: usize = 5;
/// Bound on empty kinds of nodes. A scheduler builds its kinds anew when there are more than twice the kinds that have
/// a node, plus this number. An empty kind takes about 100 bytes. If the attributes of a whole fleet change at once,
/// the nodes are sorted anew only now and then.
pub const KINDS_SPARE_MAX: usize = 1_024;
/// Sets of constraints whose verdicts a scheduler keeps. A cluster has about as many sets as kinds of jobs. When there
/// are more, the scheduler drops all of them and judges each class of nodes once more.
pub const CONSTRAINT_SETS_MAX: usize = 1_024;
/// Nodes on which a requested fixed port may be taken before the scheduler looks at all nodes one by one.
pub const REFUSALS_MAX: u32 = 32;
/// First port given to a group that names none. Nomad's range: below the ephemeral ports of Linux,
/// which begin at 32 768, so that no outgoing connection takes one.
pub const DYNAMIC_PORT_MIN: u16 = 20_000;
/// Last port given to a group that names none.
pub const DYNAMIC_PORT_MAX: u16 = 32_000;
/// Times an evaluation is given to a worker before it counts as failed. This is Nomad's number: it leaves two chances
/// after an accident, and no worker is kept busy for ever.
pub const DELIVERIES_MAX: u32 = 3;
/// Times in a row that a plan may be refused without a placement. This is Nomad's number for services: each time costs
/// a whole plan.
pub const PLAN_RETRIES_MAX: u32 = 5;
/// Evaluations cancelled or failed by one command: about 256 KiB of log.
pub const EVAL_UPDATES_MAX: usize = 4_096;
/// Plans merged in one command. A plan of one placement is about 300 bytes, so an entry stays well
/// below a megabyte; more would let a follower's apply fall behind a heartbeat.
pub const PLANS_MAX: usize = 1_024;
/// Runs of placements merged in one command: about 64 bytes each. One plan may exceed this bound alone.
pub const PLAN_RUNS_MAX: usize = 32_768;
/// Capacity events remembered for evaluations that are about to be blocked. The gap between a snapshot and the block is
/// milliseconds. If the gap is longer than the remembered events, the evaluation is woken to be safe.
pub const RECENT_CAPACITY_MAX: usize = 4_096;
/// Work that one garbage collection command may do, counted in allocations (`GC_COST_…`). It is a quarter of a
/// millisecond of apply. A placement may wait that long for the command, and the command's way through the log takes as
/// much. Half would free only two thirds as many objects a second. Double makes placements wait longer.
pub const GC_SLICE_MAX: usize = 1_280;
/// Cost of freeing an evaluation, counted in allocations of a slice that share a row of their siblings. Freeing a job
/// with one evaluation and one allocation takes 5 to 6 µs. Freeing an allocation among a hundred takes 0.2 µs. When
/// both counted alike, a slice of small jobs took ten times as long as a slice of large jobs. The split between job and
/// evaluation is a guess; their sum was measured.
pub const GC_COST_EVAL: usize = 8;
/// Cost of freeing a deployment, in allocations. Like an evaluation, a deployment has a row and indexes.
pub const GC_COST_DEPLOYMENT: usize = 8;
/// Cost of freeing a job with its older versions, in allocations.
pub const GC_COST_JOB: usize = 16;
/// Cost of freeing a node, in allocations.
pub const GC_COST_NODE: usize = 16;
/// Cost of freeing the row of a one-off task, in allocations. The allocation that ran the task counts separately.
pub const GC_COST_ONE_OFF: usize = 8;
/// Objects that one garbage collection command looks at. Looking at so many costs a quarter of freeing the allocations.
pub const GC_LOOKED_AT_MAX: usize = 4_096;
/// Keys of nodes' allocation lists that one command looks up to compact the lists when allocations are removed. The
/// command compacts at least one list. The bound is as many keys as a slice frees, because each look-up takes a third
/// of a microsecond. Further lists wait until more allocations of their nodes are removed. Nodes fill up and empty
/// together: without a bound, the lists of 62 of a thousand nodes are due at once.
pub const STALE_KEYS_MAX: usize = 1_024;
/// Answers to keyed writes that are kept. A client that retries does so within seconds. The fastest cluster takes a few
/// thousand writes a second from people and their programs. Each answer takes about 300 bytes.
pub const ANSWERS_MAX: u32 = 65_536;
/// Time for which the answer to a keyed write is kept, as long as there are not too many answers. It is ten times the
/// time that a client waits for an election.
pub const ANSWER_AGE_MAX: Duration = Duration::from_mins(15);
/// Answers that one keyed write forgets. Each write adds one answer, so the table shrinks whenever it is too large.
pub const ANSWERS_FORGOTTEN_MAX: u32 = 8;
/// Instances placed by one command. Applying takes about half a microsecond for each instance, so an entry of this many
/// delays other entries by some 40 ms. The next round places the rest of a larger job.
pub const PLACEMENTS_MAX: u32 = 65_536;
/// Callbacks to one place that the ends of tasks may claim at once: as many as are made to one place at a time. A
/// claimed callback that no server makes would wait until its claim ends. Every server must apply the same bound.
pub const CALLBACKS_PER_PLACE_MAX: usize = 16;
/// Domains that are fresh at once; a further domain is refused. Diego's installations have two or three domains. Every
/// server must apply the same bound.
pub const DOMAINS_MAX: usize = 1024;
/// Longest time for which a place found for a task counts as taken while the task is not in the state. The caller that
/// asked for the place waits that long for the log.
pub const PREPLACEMENT_MAX: Duration = Duration::from_secs(10);
/// Nodes declared down by one look at the heartbeats. A partition can cut off all of them at once.
pub const EXPIRED_MAX: usize = 512;
/// Earlier replacements that an allocation remembers if its policy has no limit. The delay functions and people look at
/// so many. This is Nomad's number.
pub const RESCHEDULES_KEPT: usize = 5;
/// Earlier replacements that an allocation remembers at most: about 60 bytes each. A policy that allows more within its
/// interval has the effect of a policy without a limit.
pub const RESCHEDULES_MAX: usize = 64;
/// Delay before an instance of a system job is started anew on its node, after it ended by itself and used up its
/// restarts in place. An instance of a service has the same first delay. Nomad waits for the next change of the
/// cluster.
pub const SYSTEM_RESTART_DELAY: Duration = Duration::from_secs(30);
/// Dispatched jobs that are searched for a repeated token; older jobs finished long ago.
pub const DISPATCHES_LOOKED_AT: usize = 4_096;
/// Launches of one periodic job that may be made within a second. Each launch has an id of its own, made from its
/// second.
pub const LAUNCHES_PER_SECOND_MAX: u64 = 60;

/// Longest time a leader may go without looking at its heartbeats. After a longer pause it gives every node a whole
/// period. The leader looks twice a second. A smaller bound would take a busy machine's hiccups for a stop. With a
/// larger bound, a stop of that length would count as silence of the nodes, which the grace would have to cover.
pub const LEADER_PAUSE_MAX: Duration = Duration::from_secs(2);
/// Changes of one-off tasks in one entry. Each change removes or writes a handful of rows. The bound is an eighth of
/// the objects that a collection removes in one entry; a tenth of the bound would make ten times the entries.
pub const ONE_OFF_CHANGES_MAX: usize = 256;
/// Pause between two looks at deployments and drains, however many changes occur. A look costs some microseconds for
/// each instance of the jobs concerned. A fifth of a second does not matter in a step that waits for health.
pub const WATCH_INTERVAL: Duration = Duration::from_millis(200);
/// Interval at which drains are looked at although no event came. The end of an instance that was asked to stop causes
/// no other event.
pub const DRAIN_INTERVAL: Duration = Duration::from_millis(500);
/// Pause before deployments and drains are looked at again after the result of a look could not be written. A leader
/// that lost its leadership is notified sooner, and a full disk does not get room again in a shorter time.
pub const WATCH_RETRY_PAUSE: Duration = Duration::from_secs(1);
