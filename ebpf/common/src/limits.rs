//! How many entries each map holds, and what happens when one is full.

/// Tasks a node counts at once.
///
/// Twice the allocations that 8 192 tasks a node would need, the most we plan for, so that
/// allocations which wait for garbage collection keep their exit records. Entries are allocated
/// when a task is registered, so an idle map costs its buckets only (256 KiB). A task beyond it
/// runs uncounted and is counted as [`crate::LostRecord::Task`].
pub const TASKS_MAX: u32 = 16_384;

/// Tasks whose counters of switches and packets are found by number instead of by name.
///
/// Each has its place on each CPU from the start: 376 KiB of every CPU. To look a name up takes 60 ns of a switch on a
/// machine that needs 75 for calling a program at all. A task beyond it is counted by name.
pub const SLOTS_MAX: u32 = 1_024;

/// Cgroups that a CPU knows at once, by the low bits of their ids (8 KiB of every CPU).
///
/// Two that share a place and take turns are looked up each time.
pub const SEEN_MAX: u32 = 256;

/// Processes that end at the same moment and are told apart, on kernels that do not say which
/// thread was the last of its process (older than 6.16).
///
/// The oldest is forgotten when it is full, and then one process may be counted as two; 1 024
/// is far more than the threads that can be between two points of their exit on one machine.
pub const ENDING_MAX: u32 = 1_024;

/// Threads whose waiting is remembered, by the low bits of their ids.
///
/// Two threads of tasks that have the same place and take turns are not counted, but as
/// [`crate::LostRecord::Wait`]. Ids are given in order, so it takes 65 536 threads that were born between two which
/// live. Twice of it would be 1 MiB.
pub const WAITS: u32 = 65_536;

/// Requests of tasks that block devices have at once.
///
/// A device's own queues take a thousand or two; this is for eight of the largest (1 MiB). A request beyond it is not
/// counted but as [`crate::LostRecord::Flight`].
pub const IN_FLIGHT_MAX: u32 = 16_384;

/// Processes that the kernel chose for want of memory and that have not ended yet.
///
/// The oldest is forgotten when it is full, and then its end is not told apart from another kill. A
/// victim ends within moments, as the kernel frees its memory for those that wait.
pub const VICTIMS_MAX: u32 = 1_024;

/// Prefixes of addresses in all policies of a node together, of each family.
///
/// A policy that does not fit is an error before its task starts. Entries are allocated when they
/// are made.
pub const LEAVES_MAX: u32 = 131_072;

/// Intervals of all policies of a node together, of eight bytes each (2 MiB).
pub const INTERVALS_MAX: u32 = 262_144;

/// Flows of datagrams that are answered although the answer itself would be refused.
///
/// The one unused longest is forgotten when it is full; its answers are refused then.
pub const FLOWS_MAX: u32 = 65_536;

/// Ports of all allocations that may be used by others.
pub const PORTS_MAX: u32 = 65_536;

/// Rules of all tasks that met a packet. What finds no room is counted as [`crate::LostRecord::Rule`].
pub const RULES_MAX: u32 = 65_536;

/// Names of rules of all policies together, for the next agent.
///
/// As many as prefixes: most rules name one. What finds no room counts anew with the next agent. Entries are allocated
/// when they are made; the buckets are 2 MiB.
pub const NAMES_MAX: u32 = LEAVES_MAX;

/// Rules of all tasks that counted under earlier policies, for the next agent: as many as count under present ones.
///
/// The maximum number of carried rules. A rule that finds no room is forgotten with the agent.
pub const CARRIED_MAX: u32 = RULES_MAX;

/// Bytes of verdicts that wait for the agent. What finds no room is counted as
/// [`crate::LostRecord::Verdict`].
pub const VERDICTS_BYTES: u32 = 256 * 1_024;

/// Allocations with a network of their own. One beyond does not start, and its event says so.
pub const HOST_VETHS_MAX: u32 = 8_192;

/// Ports of the machine that lead to allocations, TCP and UDP counted apart.
pub const PUBLISHED_MAX: u32 = 65_536;

/// Exchanges by published ports that are remembered, of 40 bytes and their node in the map each (16 MiB).
///
/// The one unused longest is forgotten when it is full; its answers then do not reach the client.
pub const NAT_ENTRIES_MAX: u32 = 131_072;

/// Groups of tasks that one walk over them tells (1.3 MiB).
///
/// As many as the tasks we plan for on a node. The files of one beyond are read, as if there were no walk.
pub const GROUPS_MAX: u32 = 8_192;

/// Groups that one walk comes to, those that tasks make below their own included.
///
/// A walk keeps everybody from making and removing groups, about half a microsecond for each that it comes to.
pub const GROUPS_VISITED_MAX: u32 = 32_768;
