//! A task as a driver sees it: what to start, how to find it again, how it is and how it ended.
//!
//! The stored form of a handle is its protobuf message ([`TaskHandle::encode`]): the agent keeps
//! it across restarts and versions, so that fields may be added and none is ever renumbered.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use prost::Message;
use serde_json::Value;
use thiserror::Error;

use crate::network::{NetworkIsolation, NetworkOverride};
use crate::plugin::{convert, proto::drivers};

/// Everything a driver needs to start a task.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TaskConfig {
    /// `<allocation id>/<task name>/<8 hex digits>`: unique for each start on the node, and the name
    /// of the task in every later call.
    pub id: String,
    /// Name of the task in its group.
    pub task_name: String,
    /// Name of the task group.
    pub group_name: String,
    pub alloc_id: String,
    /// Id of the job.
    pub job_id: String,
    /// Name of the job.
    pub job_name: String,
    /// Id of the parent of a dispatched or periodic job; else empty.
    pub parent_job_id: String,
    /// Namespace of the job.
    pub namespace: String,
    /// Id of this node.
    pub node_id: String,
    /// Name of this node.
    pub node_name: String,
    /// The `config` block of the task, in the driver's own schema. `Null` is an empty block.
    pub config: Value,
    /// The whole environment of the task: the driver adds nothing and takes nothing away.
    pub env: BTreeMap<String, String>,
    /// The part of `env` that device plugins asked for.
    pub device_env: BTreeMap<String, String>,
    /// The resources that the task may use.
    pub resources: TaskResources,
    /// The user to run as, by name or by number. Empty: the driver's default.
    pub user: String,
    /// Directory of the allocation.
    pub alloc_dir: PathBuf,
    /// Directory of the task: its working directory, and where relative paths of its `config`
    /// start. A host that names none means `<alloc_dir>/<task_name>`.
    pub task_dir: PathBuf,
    /// FIFO for the task's output. Empty or `/dev/null`: the output is thrown away.
    pub stdout_path: PathBuf,
    /// FIFO for the task's error output. Empty or `/dev/null`: the output is thrown away.
    pub stderr_path: PathBuf,
    /// Host paths to show in the task.
    pub mounts: Vec<Mount>,
    /// Devices to show in the task.
    pub devices: Vec<Device>,
    /// The network namespace to use; `None` is the host's.
    pub network: Option<NetworkIsolation>,
    /// Name resolution in the task; `None` is the host's.
    pub dns: Option<Dns>,
    /// The task's cgroups, made and limited by the host; `None` leaves the task in the driver's.
    pub cgroup: Option<CgroupPlacement>,
    /// The signal of a stop that names none; `None` is the driver's default.
    pub kill_signal: Option<String>,
    /// How long it may run while the driver has no host; `None` is for ever. A host that only wants it changed
    /// would have to start the task anew.
    pub without_host: Option<WithoutHost>,
}

/// How long a task may run while no host is connected to its driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WithoutHost {
    /// From the end of the last connection on. Then the driver stops the task as a host would.
    pub max: Duration,
    /// From its signal to its end by force.
    pub kill_timeout: Duration,
}

/// Where a task is born.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CgroupPlacement {
    /// The task's cgroup in the v2 hierarchy.
    pub dir: PathBuf,
    /// `cgroup.procs` files of v1 hierarchies; the task writes itself into each before it runs.
    pub joins: Vec<PathBuf>,
}

/// The resources that a task was promised.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TaskResources {
    /// MHz of one core.
    pub cpu_mhz: i64,
    /// MiB that the task was placed with.
    pub memory_mb: i64,
    /// MiB that the task may grow to; 0 is `memory_mb`.
    pub memory_max_mb: i64,
    /// The same as settings of the kernel.
    pub linux: LinuxResources,
    /// Ports of the allocation.
    pub ports: Vec<PortMapping>,
}

/// Resources as the kernel's settings; zero or empty is "not set".
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LinuxResources {
    /// Microseconds of a bandwidth period.
    pub cpu_period: i64,
    /// Microseconds of CPU in each period.
    pub cpu_quota: i64,
    /// Weight against other tasks, in cgroup v1's unit.
    pub cpu_shares: i64,
    /// Bytes at which the task is out of memory.
    pub memory_limit_bytes: i64,
    /// Bias of the out-of-memory killer.
    pub oom_score_adj: i64,
    /// CPUs the task may run on, in the kernel's list format.
    pub cpuset_cpus: String,
    /// Share of all CPU of the node, 0 to 1.
    pub percent_ticks: f64,
    /// A cpuset cgroup that the host made.
    pub cpuset_cgroup: String,
}

/// A port of the allocation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortMapping {
    /// Its label in the job.
    pub label: String,
    /// The port on the host.
    pub value: i32,
    /// The port in the task's namespace; 0 is the same.
    pub to: i32,
    pub host_ip: String,
}

/// A host path shown in the task.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mount {
    /// Where the task sees it.
    pub task_path: String,
    /// The path on the host.
    pub host_path: String,
    /// The task cannot write there.
    pub readonly: bool,
    /// `private`, `host-to-task` or `bidirectional`; empty is private.
    pub propagation_mode: String,
    /// SELinux label to give it.
    pub selinux_label: String,
}

/// A device shown in the task.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// Where the task sees it.
    pub task_path: String,
    /// The device on the host.
    pub host_path: String,
    /// Any of `r`, `w` and `m`.
    pub cgroup_permissions: String,
}

/// Name resolution.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dns {
    /// Addresses of the servers.
    pub servers: Vec<String>,
    pub searches: Vec<String>,
    /// Options of the resolver.
    pub options: Vec<String>,
}

impl Dns {
    /// A `resolv.conf` that says this in place of what `own` says of it, and all else that `own` says.
    pub fn over(&self, own: &str) -> String {
        let Self {
            servers,
            searches,
            options,
        } = self;
        let is_replaced = |line: &&str| match line.split_whitespace().next() {
            Some("nameserver") => !servers.is_empty(),
            Some("search" | "domain") => !searches.is_empty(),
            Some("options") => !options.is_empty(),
            Some(_) | None => false,
        };
        let kept = own.lines().filter(|line| !is_replaced(line));
        let mut lines: Vec<String> = kept.map(str::to_owned).collect();
        if !searches.is_empty() {
            lines.push(format!("search {}", searches.join(" ")));
        }
        lines.extend(servers.iter().map(|server| format!("nameserver {server}")));
        if !options.is_empty() {
            lines.push(format!("options {}", options.join(" ")));
        }
        lines.push(String::new());
        lines.join("\n")
    }
}

/// Whether a task runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TaskState {
    /// The driver cannot say.
    #[default]
    Unknown,
    Running,
    Exited,
}

/// The handle that finds a task again after its driver restarted. Opaque to the host but for storing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TaskHandle {
    /// Format of `driver_state`.
    pub version: i32,
    /// Name of the driver that made it; empty from drivers that do not say.
    pub driver: String,
    /// The configuration that the task was started with.
    pub config: TaskConfig,
    /// The state when the handle was made.
    pub state: TaskState,
    pub driver_state: Vec<u8>,
}

/// A stored handle that cannot be read.
#[derive(Debug, Error)]
pub enum HandleDecodeError {
    /// Not a handle's bytes.
    #[error("decode a stored task handle")]
    Message(#[from] prost::DecodeError),
    /// A part of it has no meaning.
    #[error("decode a stored task handle: {0}")]
    Content(String),
}

impl TaskHandle {
    /// The bytes to store.
    ///
    /// # Errors
    ///
    /// A path in the configuration that is not UTF-8.
    pub fn encode(&self) -> Result<Vec<u8>, crate::DriverError> {
        Ok(convert::handle_to_proto(self)?.encode_to_vec())
    }

    /// The handle that [`Self::encode`] stored.
    ///
    /// # Errors
    ///
    /// [`HandleDecodeError`] when the bytes are not a handle.
    pub fn decode(bytes: &[u8]) -> Result<Self, HandleDecodeError> {
        let message = drivers::TaskHandle::decode(bytes)?;
        convert::handle_from_proto(message)
            .map_err(|error| HandleDecodeError::Content(error.to_string()))
    }
}

/// The result of a successful start.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StartedTask {
    /// To be stored before anything else is done with the task.
    pub handle: TaskHandle,
    /// Set when the driver put the task on a network of its own.
    pub network: Option<NetworkOverride>,
}

/// How a task ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExitResult {
    /// Exit code; 0 when a signal ended it.
    pub exit_code: i32,
    /// The signal that ended it; 0 when it exited.
    pub signal: i32,
    /// The kernel killed a process of the task because memory ran out.
    pub oom_killed: bool,
    /// `false` when the driver was not the parent of the process and could not learn how it ended:
    /// then the code and the signal mean nothing, and the exit ledger has to be asked.
    pub status_known: bool,
    /// The error in the driver, if there was one.
    pub err: Option<String>,
    /// The result of the actions of a task that had some in place of a program.
    pub actions: Option<Box<ActionsEnd>>,
    /// Why the driver stopped the task without being asked to, if it did.
    pub stopped: Option<String>,
}

/// The result of a task's actions. The exit code beside it is that of the process that decided, else 1 of a
/// failure.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ActionsEnd {
    /// Why they failed; empty if they did not.
    pub failure_reason: String,
    /// Which of them failed, such as `serial[1].timeout.run`; empty if none did.
    pub failed_action: String,
    /// The exit code is that of a process.
    pub exited: bool,
    /// The beginning of the result file.
    pub result: String,
    /// There was more of it.
    pub result_truncated: bool,
    /// Why there is no result although one was asked for; empty otherwise.
    pub result_note: String,
}

impl ActionsEnd {
    /// A failure that no action is to blame for.
    pub fn failure(reason: &str) -> Self {
        Self {
            failure_reason: reason.to_owned(),
            ..Self::default()
        }
    }
}

impl ExitResult {
    /// An exit with `code`.
    pub fn exited(code: i32) -> Self {
        Self {
            exit_code: code,
            signal: 0,
            oom_killed: false,
            status_known: true,
            err: None,
            actions: None,
            stopped: None,
        }
    }

    /// A death by `signal`.
    pub fn signaled(signal: i32) -> Self {
        Self {
            signal,
            ..Self::exited(0)
        }
    }

    /// An end that nobody who could tell has seen.
    pub fn unknown(reason: String) -> Self {
        Self {
            status_known: false,
            err: Some(reason),
            ..Self::exited(0)
        }
    }

    /// The code and the signal are those of the process. A driver that reports an error without either did not see the
    /// end.
    pub fn exit_known(&self) -> bool {
        self.status_known && (self.err.is_none() || self.exit_code != 0 || self.signal != 0)
    }

    /// The task ended as a success.
    pub fn successful(&self) -> bool {
        self.status_known && self.exit_code == 0 && self.signal == 0 && self.err.is_none()
    }
}

/// A task as its driver knows it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TaskStatus {
    pub id: String,
    /// Its name in the group.
    pub name: String,
    pub state: TaskState,
    /// When it was started.
    pub started_at: Option<SystemTime>,
    pub completed_at: Option<SystemTime>,
    pub result: Option<ExitResult>,
    /// Further facts that the driver reports about it, like `pid`.
    pub attributes: BTreeMap<String, String>,
    /// The network the driver gave it.
    pub network: Option<NetworkOverride>,
}
