//! The number of entries of each map, and the effect of a full map.

/// Tasks that a node counts at the same time.
///
/// This is twice the number for 8 192 tasks on a node, the most that is planned for. So allocations that wait for
/// garbage collection keep their exit records. Entries are allocated when a task is registered, so an idle map only
/// costs its buckets (256 KiB). A task beyond the limit runs uncounted and is counted as [`crate::LostRecord::Task`].
pub const TASKS_MAX: u32 = 16_384;

/// Tasks whose counters of switches and packets are found by slot number instead of by cgroup id.
///
/// Each slot has its place on each CPU from the start: 376 KiB for every CPU. Looking up a cgroup id takes 60 ns of a
/// switch, on a machine that needs 75 ns to call a program at all. A task beyond the limit is counted by cgroup id.
pub const SLOTS_MAX: u32 = 1_024;

/// Cgroups that a CPU caches at the same time, by the low bits of their ids (8 KiB of every CPU).
///
/// Two cgroups that share a place and alternate are looked up each time.
pub const SEEN_MAX: u32 = 256;

/// Processes that end at the same moment and are distinguished, on kernels that do not report the last thread of a
/// process (older than 6.16).
///
/// When the map is full, the oldest entry is evicted, and one process may then be counted as two. 1 024 is far more
/// than the threads that can be between two points of their exit on one machine.
pub const ENDING_MAX: u32 = 1_024;

/// Threads whose total wait is stored, by the low bits of their ids.
///
/// Two threads of tasks that share a place and alternate are not counted, but recorded as [`crate::LostRecord::Wait`].
/// Ids are assigned in order, so that needs 65 536 threads that were born between two live ones. Double would be 1 MiB.
pub const WAITS: u32 = 65_536;

/// Requests of tasks that block devices process at the same time.
///
/// A device's own queues take a thousand or two; this is enough for eight of the largest (1 MiB). A request beyond the
/// limit is not counted, but recorded as [`crate::LostRecord::Flight`].
pub const IN_FLIGHT_MAX: u32 = 16_384;

/// Processes that the kernel selected to kill for memory and that have not ended yet.
///
/// When the map is full, the oldest entry is evicted, and its end is then not distinguished from another kill. A victim
/// ends within moments, because other processes wait for its memory.
pub const VICTIMS_MAX: u32 = 1_024;

/// Prefixes of addresses in all policies of a node together, of each family.
///
/// A policy that does not fit is an error before its task starts. Entries are allocated when they
/// are made.
pub const LEAVES_MAX: u32 = 131_072;

/// Intervals of all policies of a node together, of eight bytes each (2 MiB).
pub const INTERVALS_MAX: u32 = 262_144;

/// Flows of datagrams whose answers pass although the policy would refuse the answer itself.
///
/// When the map is full, the least recently used flow is evicted. Its answers are then refused.
pub const FLOWS_MAX: u32 = 65_536;

/// Ports of all allocations that other allocations may use.
pub const PORTS_MAX: u32 = 65_536;

/// Rules of all tasks that matched a packet. A rule without room is counted as [`crate::LostRecord::Rule`].
pub const RULES_MAX: u32 = 65_536;

/// Names of rules of all policies together, for the next agent.
///
/// The bound equals that of prefixes, because most rules name one prefix. The counts of a name without room start anew
/// with the next agent. Entries are allocated when they are made; the buckets are 2 MiB.
pub const NAMES_MAX: u32 = LEAVES_MAX;

/// Rules of all tasks with counts under earlier policies, for the next agent. The bound equals that of rules under
/// present policies.
///
/// A rule without room loses its carried-over counts when the agent ends.
pub const CARRIED_MAX: u32 = RULES_MAX;

/// Bytes of verdicts that wait for the agent. A verdict without room is counted as [`crate::LostRecord::Verdict`].
pub const VERDICTS_BYTES: u32 = 256 * 1_024;

/// Allocations with a network of their own. An allocation beyond the limit does not start, and its event gives the
/// reason.
pub const HOST_VETHS_MAX: u32 = 8_192;

/// Ports of the machine that lead to allocations; TCP and UDP count separately.
pub const PUBLISHED_MAX: u32 = 65_536;

/// Exchanges by published ports that are recorded. Each takes 40 bytes and a node in the map (16 MiB).
///
/// When the map is full, the least recently used exchange is evicted. Its answers then do not reach the client.
pub const NAT_ENTRIES_MAX: u32 = 131_072;

/// Groups of tasks that one walk reports (1.3 MiB).
///
/// The bound equals the planned tasks on a node. Beyond it, the agent reads the group's files, as without a walk.
pub const GROUPS_MAX: u32 = 8_192;

/// Groups that one walk visits, including those that tasks make below their own.
///
/// A walk blocks the creation and removal of groups for about half a microsecond for each visited group.
pub const GROUPS_VISITED_MAX: u32 = 32_768;
