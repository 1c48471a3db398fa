//! Reads a job that a user sent: Nomad's JSON, with Nomad's defaults filled in.
//!
//! Every field of Nomad's is in one of four lists: read here, derived by the server (ignored), harmless
//! (ignored with a warning) or unsupported (refused by name unless it is empty). Any other field is refused
//! with a suggestion. What the job then *means* is judged by `domain::job::validate`.

use std::cell::RefCell;

use muster_domain::fault::Fault;
use muster_domain::job::{
    Constraint, DEFAULT_NAMESPACE, DEFAULT_NODE_POOL, DEFAULT_PRIORITY, DEFAULT_REGION,
    EphemeralDisk, GroupNetwork, JobSpec, JobType, LogConfig, NetworkMode, Operand, PortAsk,
    RestartMode, RestartPolicy, Task, TaskGroup,
};
use muster_domain::limits;
use muster_domain::resources::{CpuMhz, Mb, TaskResources};
use serde_json::Value;

use crate::api::block::{self, Block, Findings, Known};
use crate::limits::FAULTS_MAX;

pub use crate::api::block::SyntaxError;

const BODY: Known = Known {
    derived: &[
        "Submission",
        "SecretID",
        "AuthToken",
        "Namespace",
        "Diff",
        "EvalPriority",
    ],
    harmless: &["PolicyOverride", "PreserveCounts", "PreserveResources"],
    unsupported: &[],
};
const JOB: Known = Known {
    derived: &[
        "ParentID",
        "Dispatched",
        "NomadTokenID",
        "Status",
        "StatusDescription",
        "Stable",
        "Version",
        "SubmitTime",
        "CreateIndex",
        "ModifyIndex",
        "JobModifyIndex",
        "VersionTag",
    ],
    harmless: &["AllAtOnce", "Update", "Migrate", "Reschedule", "UI"],
    unsupported: &[
        "Affinities",
        "Spreads",
        "Multiregion",
        "Periodic",
        "ParameterizedJob",
        "Payload",
        "DispatchIdempotencyToken",
        "ConsulToken",
        "ConsulNamespace",
        "VaultToken",
        "VaultNamespace",
        "Stop",
    ],
};
const GROUP: Known = Known {
    derived: &[],
    harmless: &[
        "Update",
        "Migrate",
        "ReschedulePolicy",
        "PreventRescheduleOnLost",
    ],
    unsupported: &[
        "Affinities",
        "Spreads",
        "Consul",
        "Services",
        "Volumes",
        "Scaling",
        "ShutdownDelay",
        "Disconnect",
        "StopAfterClientDisconnect",
        "MaxClientDisconnect",
        "MaxRunDuration",
    ],
};
const TASK: Known = Known {
    derived: &[],
    harmless: &["Identity", "Identities"],
    unsupported: &[
        "Affinities",
        "Services",
        "Vault",
        "Consul",
        "Templates",
        "DispatchPayload",
        "Lifecycle",
        "Artifacts",
        "Leader",
        "ShutdownDelay",
        "VolumeMounts",
        "ScalingPolicies",
        "Kind",
        "CSIPluginConfig",
        "Actions",
        "Schedule",
        "Secrets",
    ],
};
const RESOURCES: Known = Known {
    derived: &["DiskMB", "IOPS"],
    harmless: &[],
    unsupported: &["Cores", "Networks", "Devices", "NUMA", "SecretsMB"],
};
const RESTART: Known = Known {
    derived: &[],
    harmless: &["RenderTemplates"],
    unsupported: &[],
};
const DISK: Known = Known {
    derived: &[],
    harmless: &[],
    unsupported: &["Sticky", "Migrate"],
};
const LOGS: Known = Known {
    derived: &["Enabled"],
    harmless: &[],
    unsupported: &["Disabled"],
};
const CONSTRAINT: Known = Known {
    derived: &[],
    harmless: &[],
    unsupported: &[],
};
const NETWORK: Known = Known {
    derived: &["IP"],
    harmless: &["MBits"],
    unsupported: &["Device", "CIDR", "DNS", "Hostname", "CNI"],
};
const PORT: Known = Known {
    derived: &[],
    harmless: &[],
    unsupported: &["HostNetwork", "IgnoreCollision"],
};

/// One more than a reader keeps: its last says how many it has dropped.
const LINES_MAX: usize = FAULTS_MAX + 1;

/// A job that could be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadJob {
    /// The job, with defaults filled in; not validated yet.
    pub spec: JobSpec,
    /// What is ignored, although it was said; for people.
    pub warnings: Vec<String>,
    /// Only register if the job is at this index; 0 means that it must not exist.
    pub enforce_index: Option<u64>,
}

/// Why a job could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadJobError {
    /// It is not JSON.
    #[error(transparent)]
    Syntax(#[from] SyntaxError),
    /// It is JSON, but not a job.
    #[error("{}", lines(.0))]
    Faults(Vec<Fault>),
}

/// `faults`, one a line; at most [`FAULTS_MAX`] or so, and how many more.
#[must_use]
pub fn lines(faults: &[Fault]) -> String {
    let told = faults.iter().take(LINES_MAX).map(Fault::to_string);
    let more = faults.len().saturating_sub(LINES_MAX);
    let more = (more > 0).then(|| format!("and {more} more"));
    told.chain(more).collect::<Vec<_>>().join("\n")
}

/// The job in the body of `PUT /v1/jobs` or `PUT /v1/validate/job`: `{"Job": {…}}`.
///
/// # Errors
///
/// [`ReadJobError`]; all faults, each with its path in the body.
pub fn read(body: &[u8]) -> Result<ReadJob, ReadJobError> {
    let value = block::parse(body)?;
    let found = RefCell::new(Findings::default());
    let read = read_body(&value, &found);
    let (faults, warnings) = found.into_inner().into_parts();
    match read {
        Some((spec, enforce_index)) if faults.is_empty() => Ok(ReadJob {
            spec,
            warnings,
            enforce_index,
        }),
        _ => Err(ReadJobError::Faults(faults)),
    }
}

fn read_body(value: &Value, found: &RefCell<Findings>) -> Option<(JobSpec, Option<u64>)> {
    let mut body = Block::new(String::new(), value, found)?;
    let enforce = body.boolean("EnforceIndex").unwrap_or(false);
    let index = body.number("JobModifyIndex", u64::MAX).unwrap_or(0);
    check_region(&mut body);
    let spec = match body.block("Job") {
        Some(job) => Some(read_job(job)),
        None => {
            if body.value("Job").is_none() {
                body.fault("Job", "is missing: the body is {\"Job\": {…}}");
            }
            None
        }
    };
    body.finish(&BODY);
    spec.map(|spec| (spec, enforce.then_some(index)))
}

fn check_region(block: &mut Block<'_>) {
    if let Some(region) = block.word("Region")
        && region != DEFAULT_REGION
    {
        block.fault(
            "Region",
            format!("there is no region `{region}`: leave it out or write `{DEFAULT_REGION}`"),
        );
    }
}

fn read_job(mut job: Block<'_>) -> JobSpec {
    check_region(&mut job);
    let id = job.word("ID").unwrap_or_default();
    if id.is_empty() {
        job.fault("ID", "is missing");
    }
    let job_type = match job.word("Type") {
        None => JobType::Service,
        Some(word) => JobType::from_word(&word).unwrap_or_else(|| {
            job.fault(
                "Type",
                format!("`{word}` is no job type: use `service` or `batch`"),
            );
            JobType::Service
        }),
    };
    let priority = job
        .number("Priority", u8::MAX)
        .filter(|priority| *priority > 0);
    let mut datacenters = job.strings("Datacenters");
    if datacenters.is_empty() {
        datacenters.push("*".to_owned());
    }
    let spec = JobSpec {
        namespace: job
            .word("Namespace")
            .unwrap_or_else(|| DEFAULT_NAMESPACE.to_owned()),
        name: job.word("Name").unwrap_or_else(|| id.clone()),
        id,
        job_type,
        priority: priority.unwrap_or(DEFAULT_PRIORITY),
        datacenters,
        node_pool: job
            .word("NodePool")
            .unwrap_or_else(|| DEFAULT_NODE_POOL.to_owned()),
        constraints: read_constraints(&mut job),
        meta: job.texts("Meta"),
        groups: job
            .blocks("TaskGroups", limits::GROUPS_MAX)
            .into_iter()
            .map(|group| read_group(group, job_type))
            .collect(),
    };
    job.finish(&JOB);
    spec
}

fn read_group(mut group: Block<'_>, job_type: JobType) -> TaskGroup {
    let restart = read_restart(&mut group, RestartPolicy::default_for(job_type));
    let read = TaskGroup {
        name: group.word("Name").unwrap_or_default(),
        count: group.number("Count", u32::MAX).unwrap_or(1),
        constraints: read_constraints(&mut group),
        restart,
        ephemeral_disk: read_disk(&mut group),
        network: read_network(&mut group),
        meta: group.texts("Meta"),
        tasks: group
            .blocks("Tasks", limits::TASKS_MAX)
            .into_iter()
            .map(|task| read_task(task, restart))
            .collect(),
    };
    if read.name.is_empty() {
        group.fault("Name", "is missing");
    }
    group.finish(&GROUP);
    read
}

/// The restart policy of a group or task; fields that are not given are those of `default`.
fn read_restart(parent: &mut Block<'_>, default: RestartPolicy) -> RestartPolicy {
    let Some(mut policy) = parent.block("RestartPolicy") else {
        return default;
    };
    let mode = match policy.word("Mode") {
        None => default.mode,
        Some(word) => RestartMode::from_word(&word).unwrap_or_else(|| {
            policy.fault(
                "Mode",
                format!("`{word}` is no restart mode: use `fail` or `delay`"),
            );
            default.mode
        }),
    };
    let read = RestartPolicy {
        attempts: policy
            .number("Attempts", u32::MAX)
            .unwrap_or(default.attempts),
        interval: policy.duration("Interval").unwrap_or(default.interval),
        delay: policy.duration("Delay").unwrap_or(default.delay),
        mode,
    };
    policy.finish(&RESTART);
    read
}

fn read_disk(group: &mut Block<'_>) -> EphemeralDisk {
    let Some(mut disk) = group.block("EphemeralDisk") else {
        return EphemeralDisk::default();
    };
    let size = disk
        .number("SizeMB", u32::MAX)
        .map_or(EphemeralDisk::default().size, Mb);
    disk.finish(&DISK);
    EphemeralDisk { size }
}

fn read_network(group: &mut Block<'_>) -> Option<GroupNetwork> {
    let mut networks = group.blocks("Networks", limits::PORTS_MAX);
    if networks.len() > 1 {
        group.fault(
            "Networks",
            "more than one network is not supported: put all ports in one",
        );
    }
    let mut network = if networks.is_empty() {
        return None;
    } else {
        networks.swap_remove(0)
    };
    match network.word("Mode").as_deref() {
        None | Some("host") => {}
        Some(other) => network.fault(
            "Mode",
            format!("`{other}` is not supported yet: use `host`"),
        ),
    }
    let mut ports = Vec::new();
    for (list, is_fixed) in [("ReservedPorts", true), ("DynamicPorts", false)] {
        for mut port in network.blocks(list, limits::PORTS_MAX) {
            let value = port
                .number("Value", u16::MAX)
                .filter(|value| *value != 0 || is_fixed);
            if !is_fixed && value.is_some() {
                port.fault(
                    "Value",
                    "a dynamic port has no value: put it in ReservedPorts",
                );
            }
            let to = read_to(&mut port);
            ports.push(PortAsk {
                label: port.word("Label").unwrap_or_default(),
                fixed: is_fixed.then(|| value.unwrap_or(0)),
                to,
            });
            port.finish(&PORT);
        }
    }
    network.finish(&NETWORK);
    Some(GroupNetwork {
        mode: NetworkMode::Host,
        ports,
    })
}

/// The port inside; -1 is Nomad's way to say "the same".
fn read_to(port: &mut Block<'_>) -> u16 {
    if port.value("To").and_then(Value::as_i64) == Some(-1) {
        return 0;
    }
    port.number("To", u16::MAX).unwrap_or(0)
}

fn read_constraints(parent: &mut Block<'_>) -> Vec<Constraint> {
    let mut constraints = Vec::new();
    for mut block in parent.blocks("Constraints", limits::CONSTRAINTS_MAX) {
        let word = block.string("Operand").unwrap_or_default();
        let operand = Operand::from_word(&word).unwrap_or_else(|| {
            let reason = if Operand::UNSUPPORTED.contains(&word.as_str()) {
                format!("`{word}` is not supported yet: use `=`, `!=` or `regexp`")
            } else {
                format!("`{word}` is no operand: use `=`, `!=` or `regexp`")
            };
            block.fault("Operand", reason);
            Operand::Equal
        });
        constraints.push(Constraint {
            left: block.string("LTarget").unwrap_or_default(),
            operand,
            right: block.string("RTarget").unwrap_or_default(),
        });
        block.finish(&CONSTRAINT);
    }
    constraints
}

fn read_task(mut task: Block<'_>, group_restart: RestartPolicy) -> Task {
    if read_restart(&mut task, group_restart) != group_restart {
        task.fault(
            "RestartPolicy",
            "a policy of one task is not supported yet: write it at the group, or leave it out",
        );
    }
    let read = Task {
        name: task.word("Name").unwrap_or_default(),
        driver: task.word("Driver").unwrap_or_default(),
        config_json: read_config(&mut task),
        user: task.string("User").unwrap_or_default(),
        env: task.texts("Env"),
        resources: read_resources(&mut task),
        constraints: read_constraints(&mut task),
        kill_timeout: task
            .duration("KillTimeout")
            .unwrap_or(Task::DEFAULT_KILL_TIMEOUT),
        kill_signal: task
            .word("KillSignal")
            .unwrap_or_else(|| Task::DEFAULT_KILL_SIGNAL.to_owned()),
        logs: read_logs(&mut task),
        meta: task.texts("Meta"),
    };
    if read.name.is_empty() {
        task.fault("Name", "is missing");
    }
    task.finish(&TASK);
    read
}

fn read_config(task: &mut Block<'_>) -> String {
    match task.value("Config") {
        None => "{}".to_owned(),
        Some(config @ Value::Object(_)) => config.to_string(),
        Some(_) => {
            // Reported by `block` with what was expected and what came.
            drop(task.block("Config"));
            "{}".to_owned()
        }
    }
}

fn read_resources(task: &mut Block<'_>) -> TaskResources {
    let default = TaskResources::default();
    let Some(mut block) = task.block("Resources") else {
        return default;
    };
    let read = TaskResources {
        cpu: block.number("CPU", u32::MAX).map_or(default.cpu, CpuMhz),
        memory: block
            .number("MemoryMB", u32::MAX)
            .map_or(default.memory, Mb),
        memory_max: block
            .number("MemoryMaxMB", u32::MAX)
            .filter(|mb| *mb > 0)
            .map(Mb),
    };
    block.finish(&RESOURCES);
    read
}

fn read_logs(task: &mut Block<'_>) -> LogConfig {
    let default = LogConfig::default();
    let Some(mut block) = task.block("LogConfig") else {
        return default;
    };
    let read = LogConfig {
        max_files: block
            .number("MaxFiles", u32::MAX)
            .unwrap_or(default.max_files),
        max_file_size: block
            .number("MaxFileSizeMB", u32::MAX)
            .map_or(default.max_file_size, Mb),
    };
    block.finish(&LOGS);
    read
}
