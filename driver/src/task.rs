//! A task as a driver sees it: its configuration, its handle, its status and its exit result.
//!
//! The stored form of a handle is its protobuf message ([`TaskHandle::encode`]). The agent keeps the message across
//! restarts and versions. Fields may therefore be added, and no field is ever renumbered.

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
    /// The complete environment of the task. The driver adds and removes nothing.
    pub env: BTreeMap<String, String>,
    /// The part of `env` that device plugins requested.
    pub device_env: BTreeMap<String, String>,
    /// The resources that the task may use.
    pub resources: TaskResources,
    /// The user of the task, by name or by number. Empty means the driver's default.
    pub user: String,
    /// Directory of the allocation.
    pub alloc_dir: PathBuf,
    /// The directory of the task: its working directory, and the base of relative paths in its `config`. If a host
    /// names none, the directory is `<alloc_dir>/<task_name>`.
    pub task_dir: PathBuf,
    /// The FIFO for the task's output. Empty or `/dev/null`: the output is discarded.
    pub stdout_path: PathBuf,
    /// The FIFO for the task's error output. Empty or `/dev/null`: the output is discarded.
    pub stderr_path: PathBuf,
    /// Host paths to show in the task.
    pub mounts: Vec<Mount>,
    /// Devices to show in the task.
    pub devices: Vec<Device>,
    /// The network namespace of the task; `None` means the host's.
    pub network: Option<NetworkIsolation>,
    /// The name resolution in the task; `None` means the host's.
    pub dns: Option<Dns>,
    /// The task's cgroups, created and limited by the host; `None` leaves the task in the driver's cgroup.
    pub cgroup: Option<CgroupPlacement>,
    /// The signal of a stop without a signal; `None` means the driver's default.
    pub kill_signal: Option<String>,
    /// The time that the task may run while no host is connected to the driver; `None` means forever. To change it,
    /// the host must start the task anew.
    pub without_host: Option<WithoutHost>,
}

/// The time that a task may run while no host is connected to its driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WithoutHost {
    /// The time from the end of the last connection. After it, the driver stops the task as a host would.
    pub max: Duration,
    /// The time from the stop signal to the kill.
    pub kill_timeout: Duration,
}

/// The cgroups in which a task is created.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CgroupPlacement {
    /// The task's cgroup in the v2 hierarchy.
    pub dir: PathBuf,
    /// The `cgroup.procs` files of v1 hierarchies. The task writes itself into each before its program runs.
    pub joins: Vec<PathBuf>,
}

/// The resources that were promised to a task.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TaskResources {
    /// MHz of one core.
    pub cpu_mhz: i64,
    /// MiB of memory that placement reserved for the task.
    pub memory_mb: i64,
    /// MiB that the task's memory may grow to; 0 means `memory_mb`.
    pub memory_max_mb: i64,
    /// The same resources as settings of the kernel.
    pub linux: LinuxResources,
    /// Ports of the allocation.
    pub ports: Vec<PortMapping>,
}

/// Resources as the kernel's settings; zero or empty means "not set".
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LinuxResources {
    /// Microseconds of a bandwidth period.
    pub cpu_period: i64,
    /// Microseconds of CPU in each period.
    pub cpu_quota: i64,
    /// Weight relative to other tasks, in cgroup v1's unit.
    pub cpu_shares: i64,
    /// The memory limit in bytes.
    pub memory_limit_bytes: i64,
    /// The adjustment of the out-of-memory killer's score.
    pub oom_score_adj: i64,
    /// CPUs the task may run on, in the kernel's list format.
    pub cpuset_cpus: String,
    /// Share of all CPU of the node, 0 to 1.
    pub percent_ticks: f64,
    /// A cpuset cgroup that the host created.
    pub cpuset_cgroup: String,
}

/// A port of the allocation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortMapping {
    /// The label of the port in the job.
    pub label: String,
    /// The port on the host.
    pub value: i32,
    /// The port in the task's namespace; 0 means the same number as on the host.
    pub to: i32,
    pub host_ip: String,
}

/// A host path shown in the task.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mount {
    /// The path in the task.
    pub task_path: String,
    /// The path on the host.
    pub host_path: String,
    /// The task cannot write there.
    pub readonly: bool,
    /// `private`, `host-to-task` or `bidirectional`; empty is private.
    pub propagation_mode: String,
    /// The SELinux label for the mount.
    pub selinux_label: String,
}

/// A device shown in the task.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// The path of the device in the task.
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
    /// Returns a `resolv.conf` with these servers, search domains and options in place of those in `own`. Everything
    /// else in `own` is kept.
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
    /// The driver cannot determine the state.
    #[default]
    Unknown,
    Running,
    Exited,
}

/// The handle that finds a task again after its driver restarted. The host stores it and does not interpret it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TaskHandle {
    /// Format of `driver_state`.
    pub version: i32,
    /// The name of the driver that made the handle; empty if the driver does not report its name.
    pub driver: String,
    /// The configuration that the task was started with.
    pub config: TaskConfig,
    /// The state of the task when the handle was made.
    pub state: TaskState,
    pub driver_state: Vec<u8>,
}

/// A stored handle that cannot be read.
#[derive(Debug, Error)]
pub enum HandleDecodeError {
    /// The bytes are not a handle.
    #[error("decode a stored task handle")]
    Message(#[from] prost::DecodeError),
    /// A part of the handle is invalid.
    #[error("decode a stored task handle: {0}")]
    Content(String),
}

impl TaskHandle {
    /// Returns the bytes to store.
    ///
    /// # Errors
    ///
    /// A path in the configuration that is not UTF-8.
    pub fn encode(&self) -> Result<Vec<u8>, crate::DriverError> {
        Ok(convert::handle_to_proto(self)?.encode_to_vec())
    }

    /// Returns the handle that [`Self::encode`] stored.
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
    /// The handle of the task. The host must store it before any other step with the task.
    pub handle: TaskHandle,
    /// Set when the driver put the task on a separate network.
    pub network: Option<NetworkOverride>,
}

/// The end of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExitResult {
    /// Exit code; 0 when a signal ended it.
    pub exit_code: i32,
    /// The signal that ended the task; 0 when the task exited.
    pub signal: i32,
    /// The kernel killed a process of the task because memory ran out.
    pub oom_killed: bool,
    /// `false` when the driver was not the parent of the process and could not read its exit status. Then the code and
    /// the signal are invalid, and the host must ask the exit ledger.
    pub status_known: bool,
    /// The error in the driver, if there was one.
    pub err: Option<String>,
    /// The result of the actions, if the task has actions in place of a program.
    pub actions: Option<Box<ActionsEnd>>,
    /// The reason why the driver stopped the task without a request, if it did.
    pub stopped: Option<String>,
}

/// The result of a task's actions. [`ExitResult::exit_code`] is then the exit code of the process that decided the
/// result, or 1 for a failure.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ActionsEnd {
    /// The reason why the actions failed; empty if they did not.
    pub failure_reason: String,
    /// The path of the failed action, such as `serial[1].timeout.run`; empty if none failed.
    pub failed_action: String,
    /// The exit code is that of a process.
    pub exited: bool,
    /// The beginning of the result file.
    pub result: String,
    /// The result file was longer than `result`.
    pub result_truncated: bool,
    /// The reason why there is no result although the job asked for one; empty otherwise.
    pub result_note: String,
}

impl ActionsEnd {
    /// Creates a failure without a failed action.
    pub fn failure(reason: &str) -> Self {
        Self {
            failure_reason: reason.to_owned(),
            ..Self::default()
        }
    }
}

impl ExitResult {
    /// Creates an exit with `code`.
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

    /// Creates a death by `signal`.
    pub fn signaled(signal: i32) -> Self {
        Self {
            signal,
            ..Self::exited(0)
        }
    }

    /// Creates the result of an end whose exit status the driver could not read.
    pub fn unknown(reason: String) -> Self {
        Self {
            status_known: false,
            err: Some(reason),
            ..Self::exited(0)
        }
    }

    /// Whether the code and the signal are those of the process. A driver that reports an error without a code or a
    /// signal did not see the end.
    pub fn exit_known(&self) -> bool {
        self.status_known && (self.err.is_none() || self.exit_code != 0 || self.signal != 0)
    }

    /// Whether the task ended as a success.
    pub fn successful(&self) -> bool {
        self.status_known && self.exit_code == 0 && self.signal == 0 && self.err.is_none()
    }
}

/// The status of a task as its driver reports it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TaskStatus {
    pub id: String,
    /// The name of the task in its group.
    pub name: String,
    pub state: TaskState,
    /// The time when the task was started.
    pub started_at: Option<SystemTime>,
    pub completed_at: Option<SystemTime>,
    pub result: Option<ExitResult>,
    /// Further facts about the task that the driver reports, such as `pid`.
    pub attributes: BTreeMap<String, String>,
    /// The network that the driver gave the task.
    pub network: Option<NetworkOverride>,
}
