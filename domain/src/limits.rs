//! Bounds on user input, each with its reason.

/// Groups in a job. Real jobs have fewer than ten; the bound keeps a job's row small.
pub const GROUPS_MAX: usize = 256;
/// Tasks in a group. They share a node, and each costs a cgroup and two FIFOs there.
pub const TASKS_MAX: usize = 64;
/// Instances of one group.
pub const COUNT_MAX: u32 = 1_000_000;
/// Instances of one job, canaries included. Each takes about 300 bytes of every server. Half would refuse single jobs of
/// published runs; double would let one job fill a server of 1 GiB.
pub const JOB_INSTANCES_MAX: u64 = 1_000_000;
/// Instances of all jobs of one namespace. Published runs placed two million. A server of 3 GiB has memory for this
/// many.
pub const NAMESPACE_INSTANCES_MAX: u64 = 4_000_000;
/// Instances of an all-at-once job: the most that one entry of the log places.
pub const ALL_AT_ONCE_INSTANCES_MAX: u64 = 65_536;
/// Bytes in a name or id: file names and cgroup names end at 255.
pub const NAME_BYTES_MAX: usize = 128;
/// Constraints on a job, group or task each.
pub const CONSTRAINTS_MAX: usize = 128;
/// Environment variables of a task.
pub const ENV_MAX: usize = 1024;
/// Bytes of one value: env, meta, constraint target.
pub const VALUE_BYTES_MAX: usize = 64 * 1024;
/// Bytes of a task's driver configuration as JSON.
pub const CONFIG_BYTES_MAX: usize = 256 * 1024;
/// Entries of `meta`.
pub const META_MAX: usize = 512;
/// Ports a group may ask for.
pub const PORTS_MAX: usize = 64;
/// Rules of a policy, in one direction.
pub const POLICY_RULES_MAX: usize = 10_000;
/// Addresses and prefixes of one rule, and its ranges of ports.
pub const POLICY_PEERS_MAX: usize = 1_024;
/// Arguments for the plugins of a CNI network.
pub const CNI_ARGS_MAX: usize = 64;
/// Bytes of a key or a value of these arguments. All arguments are in one environment variable of the plugin.
pub const CNI_ARG_BYTES_MAX: usize = 1_024;
/// Servers of an allocation's own resolver: the C library uses no more.
pub const DNS_SERVERS_MAX: usize = 3;
/// Search domains, or options, of an allocation's own resolver.
pub const DNS_WORDS_MAX: usize = 32;
/// Attributes and metadata a node may report.
pub const NODE_ATTRIBUTES_MAX: usize = 4096;
/// Bytes of the message and of the metadata of a scaling event, each: the reasons of an autoscaler, for people.
pub const SCALING_NOTE_BYTES_MAX: usize = 8 * 1024;
/// Highest job priority.
pub const PRIORITY_MAX: u8 = 100;
/// Lowest memory of a task, in MiB: below it a process cannot even start reliably.
pub const MEMORY_MB_MIN: u32 = 4;
/// Events kept per task state; older ones are dropped first (Nomad keeps ten).
pub const TASK_EVENTS_MAX: usize = 10;
/// Ports of a task's network if its driver provides one. No group declares more ports.
pub const TASK_NETWORK_PORTS_MAX: usize = 64;
/// Characters of the address and of a port's label: the longest name in the DNS. Longer values are left out.
pub const TASK_NETWORK_NAME_CHARS_MAX: usize = 253;
/// Bytes of the key of a write. A UUID has 36; programs often prefix their own names.
pub const WRITE_KEY_BYTES_MAX: usize = 128;
/// Bytes of a dispatch payload. Nomad's bound; larger data belongs in files.
pub const PAYLOAD_BYTES_MAX: usize = 16 * 1024;
/// Cron expressions of a periodic job.
pub const CRONS_MAX: usize = 64;
/// Volumes of a group or of a task.
pub const VOLUMES_MAX: usize = 64;
/// Kinds of devices of a task.
pub const DEVICES_MAX: usize = 32;
/// Exclusive cores of a task: more than any machine has today.
pub const CORES_MAX: u16 = 4096;
/// Longest `shutdown_delay` and `kill_timeout`. Nomad has no bound; ten years are as good as none, and clocks can add them.
pub const DELAY_MAX: std::time::Duration = std::time::Duration::from_hours(24 * 3650);
/// Bytes of the reason for the state of a deployment or a node.
pub const REASON_BYTES_MAX: usize = 1024;
/// Bytes of the handle of a remote task that the servers store. Handles of our drivers have a few hundred bytes. Every
/// server holds the handle in memory, and each report on a change of the allocation repeats it. The agent keeps a
/// larger handle to itself and reports that the task cannot be taken over.
pub const REMOTE_HANDLE_BYTES_MAX: usize = 8 * 1024;
