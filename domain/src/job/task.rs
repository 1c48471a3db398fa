//! Tasks: one process tree each.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::block::job_block;
use super::constraint::{Affinity, Constraint};
use super::job_type::JobType;
use super::launch::VolumeMount;
use super::policy::NetworkPolicy;
use super::rate;
use super::restart::RestartPolicy;
use crate::resources::{Mb, TaskResources};

/// Variables that the agent sets for every task. A task's `env` cannot set them.
pub const NODE_VARIABLES: [&str; 16] = [
    "NOMAD_ALLOC_DIR",
    "NOMAD_ALLOC_ID",
    "NOMAD_ALLOC_INDEX",
    "NOMAD_ALLOC_NAME",
    "NOMAD_CPU_LIMIT",
    "NOMAD_DC",
    "NOMAD_GROUP_NAME",
    "NOMAD_JOB_ID",
    "NOMAD_JOB_NAME",
    "NOMAD_MEMORY_LIMIT",
    "NOMAD_NAMESPACE",
    "NOMAD_REGION",
    "NOMAD_SECRETS_DIR",
    "NOMAD_SHORT_ALLOC_ID",
    "NOMAD_TASK_DIR",
    "NOMAD_TASK_NAME",
];

job_block! {
    /// A task: a process tree that a driver runs.
    pub struct Task {
        /// Unique within the group.
        pub name: String = String::new() => InPlace;
        /// The driver's name, such as `native`.
        pub driver: String = String::new() => Replace;
        /// The driver's configuration: a JSON object, kept as text so that no recursive value is ever
        /// decoded from the log.
        pub config_json: String = "{}".to_owned() => Replace;
        /// User to run as, by name or number; empty means the driver's default.
        pub user: String = String::new() => Replace;
        /// Environment, besides what the agent adds.
        pub env: BTreeMap<String, String> = BTreeMap::new() => Replace;
        /// Resources of the task.
        pub resources: TaskResources = TaskResources::default() => SameIf(TaskResources::is_same_for_running);
        /// Conditions on the node, besides the job's and the group's.
        pub constraints: Vec<Constraint> = Vec::new() => InPlace;
        /// Preferences about the node, besides the job's and the group's affinities.
        pub affinities: Vec<Affinity> = Vec::new() => Replace;
        /// Restarts of the task when it ends by itself; default is the group's policy.
        pub restart: RestartPolicy = RestartPolicy::default_for(JobType::Service) => InPlace;
        /// Lifecycle hook of the task; `None` for a main task.
        // The hook decides the start of a task. Nomad 1.1.2 changes it in place, and a task that has ended is not
        // started again.
        pub lifecycle: Option<Lifecycle> = None => Replace;
        /// Whether the end of this task stops the other main tasks.
        pub leader: bool = false => InPlace;
        /// The file in the task's `local` directory for the payload of a dispatch; empty for none.
        pub payload_file: String = String::new() => Replace;
        /// Volumes of the group.
        pub volume_mounts: Vec<VolumeMount> = Vec::new() => Replace;
        /// Time between the deregistration of the task's services and its kill.
        pub shutdown_delay: Duration = Duration::ZERO => InPlace;
        /// Time from the kill signal to `SIGKILL`; default 5 s.
        pub kill_timeout: Duration = Task::DEFAULT_KILL_TIMEOUT => InPlace;
        /// The signal that asks the task to stop. Empty: the driver chooses; the native driver sends `SIGINT`, as Nomad
        /// does.
        pub kill_signal: String = Task::DEFAULT_KILL_SIGNAL.to_owned() => InPlace;
        /// Rotation of its output.
        pub logs: LogConfig = LogConfig::default() => SameIf(LogConfig::is_same_for_running);
        pub meta: BTreeMap<String, String> = BTreeMap::new() => Replace;
        /// Rules for the traffic of the task.
        pub policy: Option<NetworkPolicy> = None => InPlace;
    }
}

impl Task {
    /// The kill timeout of a task that names none.
    pub const DEFAULT_KILL_TIMEOUT: Duration = Duration::from_secs(5);
    /// The kill signal of a task that names none.
    pub const DEFAULT_KILL_SIGNAL: &'static str = "";
}

job_block! {
    /// The handling of a task's output. Stdout and stderr each have their own files and their own rate. Without a file
    /// to keep, no output is collected: [`LogConfig::DISABLED`].
    #[derive(Copy)]
    pub struct LogConfig {
        /// Number of files kept; default 10.
        pub max_files: u32 = 10;
        /// Size of each file in MiB; default 10.
        pub max_file_size: Mb = Mb(10);
        /// The bytes collected in a second. After a pause, a burst may be as large. `None` means no limit.
        pub rate: Option<ByteRate> = None;
        /// Handling of output above the rate.
        pub on_limit: LogOverflow = LogOverflow::Block;
        /// Handling of output while the node's disk is full.
        pub on_full: LogOverflow = LogOverflow::Block;
    }
}

impl LogConfig {
    /// The settings for no collection: the task writes to the null device.
    pub const DISABLED: Self = Self {
        max_files: 0,
        max_file_size: Mb(0),
        rate: None,
        on_limit: LogOverflow::Block,
        on_full: LogOverflow::Block,
    };

    /// Whether no output is collected.
    #[must_use]
    pub fn is_disabled(&self) -> bool {
        *self == Self::DISABLED
    }

    /// Whether `new` applies to a task that was started with `old`. The target of a task's output is fixed at its
    /// start.
    fn is_same_for_running(old: &Self, new: &Self) -> bool {
        old.is_disabled() == new.is_disabled()
    }
}

/// The handling of output that cannot be stored now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum LogOverflow {
    /// The output waits. The task blocks once its FIFO is full.
    #[default]
    Block,
    /// The output is dropped and counted; readers see a gap.
    Drop,
}

crate::text_enum!(pub LogOverflow: "overflow" {
    Block => "block",
    Drop => "drop",
});

/// Bytes in a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ByteRate(pub u64);

impl ByteRate {
    /// The lowest useful rate: a few lines in a second.
    pub const MIN: Self = Self(1024);
    /// The highest rate. A single stream reaches it without a limit.
    pub const MAX: Self = Self(1024 * 1024 * 1024);

    /// The units are powers of 1 024, as for `max_file_size`.
    const UNITS: rate::UnitTable = [
        ("gb", 1024 * 1024 * 1024),
        ("mb", 1024 * 1024),
        ("kb", 1024),
    ];

    /// Reads `1mb`; units are kb, mb and gb, 1 024, 1 024² and 1 024³ bytes in a second.
    #[must_use]
    pub fn read(text: &str) -> Option<Self> {
        rate::read(text, &Self::UNITS).map(Self)
    }
}

impl std::fmt::Display for ByteRate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        rate::write(f, self.0, &Self::UNITS, "b")
    }
}

/// The time at which a prestart, poststart or poststop task runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum LifecycleHook {
    /// Before the main tasks.
    Prestart,
    /// After the main tasks have started.
    Poststart,
    /// After the main tasks have ended.
    Poststop,
}

crate::text_enum!(pub LifecycleHook: "hook" {
    Prestart => "prestart",
    Poststart => "poststart",
    Poststop => "poststop",
});

job_block! {
    /// The lifecycle of a task that is not a main task.
    #[derive(Copy)]
    pub struct Lifecycle {
        /// Hook at which the task starts. A job must set it.
        pub hook: LifecycleHook = LifecycleHook::Prestart;
        /// Whether the task runs alongside the main tasks from then on. Other hook tasks run to completion.
        pub sidecar: bool = false;
    }
}

impl Lifecycle {
    /// Whether a task with this lifecycle runs for the whole life of the allocation.
    #[must_use]
    pub fn is_always(this: Option<Self>) -> bool {
        this.is_some_and(|it| it.hook == LifecycleHook::Prestart && it.sidecar)
    }
}

#[cfg(test)]
mod tests {
    use super::ByteRate;

    #[test]
    fn rates_are_read_and_written_with_their_unit() {
        for (text, bytes) in [
            ("1kb", 1_024),
            ("64 kb", 65_536),
            (" 1mb ", 1_048_576),
            ("1gb", 1_073_741_824),
        ] {
            let rate = ByteRate::read(text).unwrap();
            assert_eq!(rate, ByteRate(bytes), "{text}");
            assert_eq!(ByteRate::read(&rate.to_string()), Some(rate));
        }
        assert_eq!(ByteRate::read("2048kb").unwrap().to_string(), "2mb");
        for text in [
            "",
            "1",
            "mb",
            "1mbit",
            "1 MB",
            "-1kb",
            "1.5mb",
            "99999999999999999gb",
        ] {
            assert_eq!(ByteRate::read(text), None, "{text}");
        }
    }
}
