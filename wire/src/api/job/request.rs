//! Reads a job that a user sent: Nomad's JSON, with Nomad's defaults filled in.
//!
//! Every field of Nomad's is in one of four lists: read here, derived by the server (ignored), harmless
//! (ignored with a warning) or unsupported (refused by name unless it is empty). Any other field is refused
//! with a suggestion. What the job then *means* is judged by `domain::job::validate`.

use std::cell::RefCell;
use std::collections::BTreeMap;

use muster_domain::job::{
    Affinity, ByteRate, CniNetwork, Constraint, DEFAULT_HOST_NETWORK, DEFAULT_NAMESPACE,
    DEFAULT_NODE_POOL, DEFAULT_PRIORITY, DnsConfig, EphemeralDisk, GroupNetwork, JobSpec, JobType,
    Lifecycle, LifecycleHook, LogConfig, LogOverflow, NetworkMode, NetworkPolicy, Operand, PortAsk,
    Propagation, RestartPolicy, Scaling, Spread, SpreadTarget, Task, TaskGroup, VolumeAsk,
    VolumeAsks, VolumeMount,
};
use muster_domain::limits;
use muster_domain::region;
use muster_domain::resources::{CpuMhz, DeviceAsk, IoLimits, Mb, TaskResources};
use serde_json::Value;

use crate::api::block::{self, Block, FieldNames, ParseFindings};
use crate::api::job::table::json_form;
use crate::api::job::{unsupported, written};
use crate::api::resources::{Network, Resources};

mod launch;
mod policy;
mod update;

pub use crate::api::read_error::{ReadJobError, SyntaxError, lines};

const BODY: FieldNames = FieldNames {
    derived: &["Submission", "SecretID", "AuthToken", "Namespace"],
    harmless: &["EvalPriority", "PolicyOverride"],
    ..FieldNames::NONE
};
const JOB: FieldNames = FieldNames {
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
    rows: unsupported::JOB,
    ..FieldNames::NONE
};
const GROUP: FieldNames = FieldNames::rows(unsupported::GROUP);
const TASK: FieldNames = FieldNames::rows(unsupported::TASK);
const RESOURCES: FieldNames = FieldNames::rows(unsupported::RESOURCES);
const RESTART: FieldNames = FieldNames::rows(unsupported::RESTART);
const LOGS: FieldNames = FieldNames {
    derived: &["Enabled"],
    ..FieldNames::NONE
};
const NETWORK: FieldNames = FieldNames {
    derived: &["IP"],
    rows: unsupported::NETWORK,
    ..FieldNames::NONE
};
/// A network in `resources` has ports alone.
const TASK_NETWORK: FieldNames = FieldNames {
    derived: &["IP"],
    unsupported: &["DNS", "Hostname", "Policy"],
    rows: unsupported::NETWORK,
    ..FieldNames::NONE
};
const PORT: FieldNames = FieldNames::rows(unsupported::PORT);
const VOLUME: FieldNames = FieldNames::rows(unsupported::VOLUME);
const PLAIN: FieldNames = FieldNames::NONE;

pub use policy::read as read_policy;

/// A job that could be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadJob {
    /// The job, with defaults filled in; not validated yet.
    pub spec: JobSpec,
    /// Warnings about fields that are ignored, as text.
    pub warnings: Vec<String>,
    /// Only register if the job is at this index; 0 means that it must not exist.
    pub enforce_index: Option<u64>,
    /// Whether a plan is to say what differs.
    pub wants_diff: bool,
    /// Whether groups that the registered job has keep its counts.
    pub preserve_counts: bool,
    /// Whether tasks that the registered job has keep its resources.
    pub preserve_resources: bool,
}

/// The job in the body of `PUT /v1/jobs` or `PUT /v1/validate/job`: `{"Job": {…}}`.
///
/// # Errors
///
/// [`ReadJobError`]; all faults, each with its path in the body.
pub fn read(body: &[u8]) -> Result<ReadJob, ReadJobError> {
    let value = block::parse(body)?;
    let found = RefCell::new(ParseFindings::default());
    let read = read_body(&value, &found);
    let (faults, warnings) = found.into_inner().into_parts();
    match read {
        Some(read) if faults.is_empty() => Ok(ReadJob { warnings, ..read }),
        _ => Err(ReadJobError::Faults(faults)),
    }
}

fn read_body(value: &Value, found: &RefCell<ParseFindings>) -> Option<ReadJob> {
    let mut body = Block::new(String::new(), value, found)?;
    let enforce = body.boolean("EnforceIndex").unwrap_or(false);
    let index = body.number("JobModifyIndex", u64::MAX).unwrap_or(0);
    let wants_diff = body.boolean("Diff").unwrap_or(false);
    let preserve_counts = body.boolean("PreserveCounts").unwrap_or(false);
    let preserve_resources = body.boolean("PreserveResources").unwrap_or(false);
    check_region(&mut body);
    let spec = match body.block("Job") {
        Some(job) => Some(read_job(job.rooted())),
        None => {
            if body.value("Job").is_none() {
                body.fault("Job", "is missing: the body is {\"Job\": {…}}");
            }
            None
        }
    };
    body.finish(&BODY);
    spec.map(|spec| ReadJob {
        spec,
        warnings: Vec::new(),
        enforce_index: enforce.then_some(index),
        wants_diff,
        preserve_counts,
        preserve_resources,
    })
}

fn check_region(block: &mut Block<'_>) {
    if let Some(other) = block.word("Region")
        && other != region::name()
    {
        let ours = region::name();
        block.fault(
            "Region",
            format!(
                "no path to region `{other}`: this cluster is region `{ours}`; leave it out or write `{ours}`"
            ),
        );
    }
}

fn read_job(mut job: Block<'_>) -> JobSpec {
    check_region(&mut job);
    let id = job.word("ID").unwrap_or_default();
    if id.is_empty() {
        job.fault("ID", "is missing");
    }
    let job_type = job.filled_choice("Type").unwrap_or(JobType::Service);
    let priority = job
        .number("Priority", u8::MAX)
        .filter(|priority| *priority > 0);
    let mut datacenters = job.strings("Datacenters");
    if datacenters.is_empty() {
        datacenters.push("*".to_owned());
    }
    let steps = update::JobSteps::read(&mut job, job_type);
    let mut spec = JobSpec {
        namespace: job
            .word("Namespace")
            .unwrap_or_else(|| DEFAULT_NAMESPACE.to_owned()),
        name: job.filled("Name").unwrap_or_else(|| id.clone()),
        id,
        job_type,
        priority: priority.unwrap_or(DEFAULT_PRIORITY),
        datacenters,
        node_pool: job
            .word("NodePool")
            .unwrap_or_else(|| DEFAULT_NODE_POOL.to_owned()),
        all_at_once: job.boolean("AllAtOnce").unwrap_or(false),
        constraints: read_constraints(&mut job),
        affinities: read_affinities(&mut job),
        spreads: read_spreads(&mut job),
        periodic: launch::read_periodic(&mut job),
        parameterized: launch::read_parameterized(&mut job),
        launched: None,
        meta: job.texts("Meta"),
        groups: job
            .blocks("TaskGroups", limits::GROUPS_MAX)
            .into_iter()
            .map(|group| read_group(group, job_type, &steps))
            .collect(),
        stop: job.boolean("Stop").unwrap_or(false),
        as_written: BTreeMap::new(),
    };
    if let Some(pace) = steps.own_pace(&spec.groups) {
        job.keep("Update", &pace);
    }
    spec.as_written = job.finish_keeping(&JOB);
    spec.as_written = written::canonical(&spec);
    spec
}

fn read_group(mut group: Block<'_>, job_type: JobType, steps: &update::JobSteps) -> TaskGroup {
    let scaling = group.value("Scaling");
    let least = scaling.and_then(|scaling| instances(scaling.get("Min")?));
    let default = TaskGroup {
        count: least.unwrap_or(TaskGroup::DEFAULT_COUNT),
        restart: RestartPolicy::default_for(job_type),
        reschedule: steps.reschedule,
        update: steps.update,
        migrate: steps.migrate,
        ..TaskGroup::default()
    };
    let mut read = super::TaskGroup::read_fields(&mut group, &default);
    steps.check_reschedule(&mut group, "ReschedulePolicy", read.reschedule);
    let tasks = group.blocks("Tasks", limits::TASKS_MAX).into_iter();
    read.tasks = tasks.map(|task| read_task(task, read.restart)).collect();
    if read.name.is_empty() {
        group.fault("Name", "is missing");
    }
    group.finish(&GROUP);
    read
}

/// The number of instances in `value`. What is none is reported where the field is read.
fn instances(value: &Value) -> Option<u32> {
    u32::try_from(value.as_u64()?).ok()
}

json_form! {
    // The restart policy of a task is the group's by default, so tasks are read after their group.
    Vec<super::Task>, of Vec<Task>:
        |_: &mut Block<'_>, _, default: &Vec<Task>| default.clone(),
        |value: &Vec<Task>| value.iter().map(super::Task::from).collect();
    Option<super::Scaling>, of Option<Scaling>:
        |block: &mut Block<'_>, _, _: &Option<Scaling>| {
            let count = block.value("Count").and_then(instances);
            launch::read_scaling(block, count)
        },
        |value: &Option<Scaling>| value.as_ref().map(super::Scaling::from);
    Option<super::EphemeralDisk>, of EphemeralDisk:
        |block: &mut Block<'_>, name, default: &EphemeralDisk| read_disk(block, name, *default),
        |value: &EphemeralDisk| Some(super::EphemeralDisk::from(value));
    Vec<super::Spread>, of Vec<Spread>:
        |block: &mut Block<'_>, _, _: &Vec<Spread>| read_spreads(block),
        |value: &Vec<Spread>| value.iter().map(super::Spread::from).collect();
    Vec<Network>, of Option<GroupNetwork>:
        |block: &mut Block<'_>, _, _: &Option<GroupNetwork>| read_network(block),
        |value: &Option<GroupNetwork>| value.iter().map(super::asked_network).collect();
    BTreeMap<String, super::Volume>, of VolumeAsks:
        |block: &mut Block<'_>, _, _: &VolumeAsks| read_volumes(block),
        |value: &VolumeAsks| {
            let asks = value.iter();
            asks.map(|(name, ask)| (name.clone(), super::Volume::new(name, ask))).collect()
        };
}

/// The restart policy of a group or task; fields that are not given are those of `default`.
fn read_restart(parent: &mut Block<'_>, default: RestartPolicy) -> RestartPolicy {
    let Some(mut policy) = parent.block("RestartPolicy") else {
        return default;
    };
    let mode = policy.filled_choice("Mode").unwrap_or(default.mode);
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

fn read_disk(group: &mut Block<'_>, name: &'static str, default: EphemeralDisk) -> EphemeralDisk {
    let Some(mut disk) = group.block(name) else {
        return default;
    };
    let read = super::EphemeralDisk::read_fields(&mut disk, &default);
    disk.finish(&PLAIN);
    read
}

fn read_volumes(group: &mut Block<'_>) -> VolumeAsks {
    let mut volumes = VolumeAsks::new();
    for (name, mut volume) in group.named_blocks("Volumes", limits::VOLUMES_MAX) {
        match volume.word("Type").as_deref() {
            None | Some("host") => {}
            Some(other) => volume.fault(
                "Type",
                format!("`{other}` is not supported: use `host`, a directory that the node offers"),
            ),
        }
        drop(volume.word("Name"));
        let ask = VolumeAsk {
            source: volume.word("Source").unwrap_or_default(),
            read_only: volume.boolean("ReadOnly").unwrap_or(false),
        };
        volume.finish(&VOLUME);
        volumes.insert(name, ask);
    }
    volumes
}

fn read_network(group: &mut Block<'_>) -> Option<GroupNetwork> {
    let mut networks = group.blocks("Networks", limits::PORTS_MAX).into_iter();
    let network = read_one_network(networks.next()?);
    for more in networks {
        let at = more.at.clone();
        more.keep_all();
        group.warn_at(
            &at,
            "is stored and has no effect: the first network of a group is its network; put all ports there",
        );
        drop(read_one_network(more));
    }
    Some(network)
}

fn read_one_network(mut network: Block<'_>) -> GroupNetwork {
    let mode = read_mode(&mut network);
    let ports = read_ports(&mut network);
    let policy = policy::read_policy(&mut network);
    let dns = read_dns(&mut network);
    let hostname = network.string("Hostname").unwrap_or_default();
    network.finish(&NETWORK);
    GroupNetwork {
        mode,
        ports,
        policy,
        dns,
        hostname,
    }
}

/// The ports of a task's own network. Its address is the node's, whatever the group's network is.
fn read_task_ports(resources: &mut Block<'_>) -> Vec<PortAsk> {
    let mut ports = Vec::new();
    for mut network in resources.blocks("Networks", limits::PORTS_MAX) {
        match network.word("Mode").as_deref() {
            None => network.keep("Mode", &Value::from("")),
            Some("host") => {}
            Some(other) => network.fault(
                "Mode",
                format!(
                    "`{other}` is not for a network in `resources`: give the group a `network` block"
                ),
            ),
        }
        let own = read_ports(&mut network);
        if own.is_empty() {
            network.keep_all();
        }
        ports.extend(own);
        network.finish(&TASK_NETWORK);
    }
    ports
}

fn read_ports(network: &mut Block<'_>) -> Vec<PortAsk> {
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
                host_network: port
                    .word("HostNetwork")
                    .unwrap_or_else(|| DEFAULT_HOST_NETWORK.to_owned()),
            });
            port.finish(&PORT);
        }
    }
    ports
}

fn read_mode(network: &mut Block<'_>) -> NetworkMode {
    let word = network.word("Mode");
    if word.is_none() {
        network.keep("Mode", &Value::from(""));
    }
    let args = network.block("CNI").map(|mut cni| {
        let args = cni.texts("Args");
        cni.finish(&PLAIN);
        args
    });
    let mode = word
        .as_deref()
        .map_or(Some(NetworkMode::Host), NetworkMode::from_name);
    match (mode, args) {
        (Some(NetworkMode::Cni(cni)), Some(args)) => NetworkMode::Cni(CniNetwork { args, ..cni }),
        (Some(mode), args) => {
            if args.is_some_and(|args| !args.is_empty()) && mode.cni().is_none() {
                network.fault(
                    "CNI",
                    format!(
                        "unused CNI arguments with mode `{}`, which runs no CNI plugin: use mode `cni/NAME`",
                        mode.as_str()
                    ),
                );
            }
            mode
        }
        (None, _) => {
            network.fault(
                "Mode",
                format!(
                    "unknown network mode `{}`: use `host`, `bridge`, `none` or `cni/NAME`",
                    word.unwrap_or_default()
                ),
            );
            NetworkMode::Host
        }
    }
}

fn read_dns(network: &mut Block<'_>) -> Option<DnsConfig> {
    let mut dns = network.block("DNS")?;
    let read = DnsConfig {
        servers: dns.strings("Servers"),
        searches: dns.strings("Searches"),
        options: dns.strings("Options"),
    };
    dns.finish(&PLAIN);
    Some(read)
}

/// The port inside; -1 is Nomad's way to say "the same".
fn read_to(port: &mut Block<'_>) -> u16 {
    if port.value("To").and_then(Value::as_i64) == Some(-1) {
        port.keep("To", &Value::from(-1));
        return 0;
    }
    port.number("To", u16::MAX).unwrap_or(0)
}

fn read_constraints(parent: &mut Block<'_>) -> Vec<Constraint> {
    let mut constraints = Vec::new();
    for mut block in parent.blocks("Constraints", limits::CONSTRAINTS_MAX) {
        let operand = read_operand(&mut block);
        constraints.push(Constraint {
            left: block.string("LTarget").unwrap_or_default(),
            operand,
            right: block.string("RTarget").unwrap_or_default(),
        });
        block.finish(&PLAIN);
    }
    constraints
}

fn read_operand(block: &mut Block<'_>) -> Operand {
    let word = block.string("Operand").unwrap_or_default();
    let operand = block.chosen::<Operand>("Operand", &word);
    if operand.is_some_and(|operand| operand.as_str() != word) && !word.is_empty() {
        block.keep("Operand", &Value::from(word.as_str()));
    }
    operand.unwrap_or(Operand::Equal)
}

fn read_affinities(parent: &mut Block<'_>) -> Vec<Affinity> {
    let mut affinities = Vec::new();
    for mut block in parent.blocks("Affinities", limits::CONSTRAINTS_MAX) {
        let operand = read_operand(&mut block);
        affinities.push(Affinity {
            left: block.string("LTarget").unwrap_or_default(),
            operand,
            right: block.string("RTarget").unwrap_or_default(),
            weight: block
                .signed("Weight", -100..=100)
                .unwrap_or(Affinity::DEFAULT_WEIGHT),
        });
        block.finish(&PLAIN);
    }
    affinities
}

fn read_spreads(parent: &mut Block<'_>) -> Vec<Spread> {
    let mut spreads = Vec::new();
    for mut block in parent.blocks("Spreads", limits::CONSTRAINTS_MAX) {
        let mut targets = Vec::new();
        for mut target in block.blocks("SpreadTarget", limits::CONSTRAINTS_MAX) {
            targets.push(SpreadTarget {
                value: target.string("Value").unwrap_or_default(),
                percent: target.number("Percent", 100).unwrap_or(0),
            });
            target.finish(&PLAIN);
        }
        spreads.push(Spread {
            attribute: block.string("Attribute").unwrap_or_default(),
            weight: block
                .number("Weight", 100)
                .unwrap_or(Spread::DEFAULT_WEIGHT),
            targets,
        });
        block.finish(&PLAIN);
    }
    spreads
}

fn read_task(mut task: Block<'_>, group_restart: RestartPolicy) -> Task {
    let default = Task {
        restart: group_restart,
        ..Task::default()
    };
    let mut read = super::Task::read_fields(&mut task, &default);
    // 0 is Go's way to leave it out.
    if read.kill_timeout.is_zero() {
        read.kill_timeout = default.kill_timeout;
    }
    if read.name.is_empty() {
        task.fault("Name", "is missing");
    }
    task.finish(&TASK);
    read
}

json_form! {
    Vec<super::Constraint>, of Vec<Constraint>:
        |block: &mut Block<'_>, _, _: &Vec<Constraint>| read_constraints(block),
        |value: &Vec<Constraint>| value.iter().map(super::Constraint::from).collect();
    Vec<super::Affinity>, of Vec<Affinity>:
        |block: &mut Block<'_>, _, _: &Vec<Affinity>| read_affinities(block),
        |value: &Vec<Affinity>| value.iter().map(super::Affinity::from).collect();
    Value, of String:
        |block: &mut Block<'_>, name, _: &String| read_config(block, name),
        |value: &String| serde_json::from_str(value).unwrap_or_default();
    Option<Resources>, of TaskResources:
        |block: &mut Block<'_>, _, _: &TaskResources| read_resources(block),
        |value: &TaskResources| Some(Resources::from(value));
    Option<super::RestartPolicy>, of RestartPolicy:
        |block: &mut Block<'_>, _, default: &RestartPolicy| read_restart(block, *default),
        |value: &RestartPolicy| Some(super::RestartPolicy::from(value));
    Option<super::DispatchPayload>, of String:
        |block: &mut Block<'_>, _, _: &String| read_payload_file(block),
        |value: &String| {
            (!value.is_empty()).then(|| super::DispatchPayload { file: value.clone() })
        };
    Option<super::Lifecycle>, of Option<Lifecycle>:
        |block: &mut Block<'_>, _, _: &Option<Lifecycle>| read_lifecycle(block),
        |value: &Option<Lifecycle>| value.map(super::Lifecycle::from);
    Option<super::LogConfig>, of LogConfig:
        |block: &mut Block<'_>, _, _: &LogConfig| read_logs(block),
        |value: &LogConfig| Some(super::LogConfig::from(*value));
    Vec<super::VolumeMount>, of Vec<VolumeMount>:
        |block: &mut Block<'_>, _, _: &Vec<VolumeMount>| read_mounts(block),
        |value: &Vec<VolumeMount>| value.iter().map(super::VolumeMount::from).collect();
    Option<super::NetworkPolicy>, of Option<NetworkPolicy>:
        |block: &mut Block<'_>, _, _: &Option<NetworkPolicy>| policy::read_policy(block),
        |value: &Option<NetworkPolicy>| value.as_ref().map(super::NetworkPolicy::from);
}

fn read_lifecycle(task: &mut Block<'_>) -> Option<Lifecycle> {
    let mut block = task.block("Lifecycle")?;
    let word = block.word("Hook").unwrap_or_default();
    let hook = block.chosen::<LifecycleHook>("Hook", &word);
    let sidecar = block.boolean("Sidecar").unwrap_or(false);
    block.finish(&PLAIN);
    hook.map(|hook| Lifecycle { hook, sidecar })
}

fn read_payload_file(task: &mut Block<'_>) -> String {
    let Some(mut block) = task.block("DispatchPayload") else {
        return String::new();
    };
    let file = block.word("File").unwrap_or_default();
    if file.is_empty() {
        block.fault("File", "is missing");
    }
    block.finish(&PLAIN);
    file
}

fn read_mounts(task: &mut Block<'_>) -> Vec<VolumeMount> {
    let mut mounts = Vec::new();
    for mut block in task.blocks("VolumeMounts", limits::VOLUMES_MAX) {
        let propagation: Propagation = block.choice("PropagationMode").unwrap_or_default();
        if propagation == Propagation::Bidirectional {
            block.warn_as_listed(unsupported::VOLUME_MOUNT, "PropagationMode");
        }
        let selinux_label = block.string("SELinuxLabel").unwrap_or_default();
        if !selinux_label.is_empty() {
            block.warn_as_listed(unsupported::VOLUME_MOUNT, "SELinuxLabel");
        }
        mounts.push(VolumeMount {
            volume: block.word("Volume").unwrap_or_default(),
            destination: block.word("Destination").unwrap_or_default(),
            read_only: block.boolean("ReadOnly").unwrap_or(false),
            propagation,
            selinux_label,
        });
        block.finish(&PLAIN);
    }
    mounts
}

fn read_config(task: &mut Block<'_>, name: &'static str) -> String {
    match task.value(name) {
        None => "{}".to_owned(),
        Some(config @ Value::Object(_)) => config.to_string(),
        Some(_) => {
            // Reported by `block` with what was expected and what came.
            drop(task.block(name));
            "{}".to_owned()
        }
    }
}

fn read_resources(task: &mut Block<'_>) -> TaskResources {
    let default = TaskResources::default();
    let Some(mut block) = task.block("Resources") else {
        return default;
    };
    let cores = block.number("Cores", u16::MAX).unwrap_or(0);
    let cpu = block.number("CPU", u32::MAX);
    if cores > 0 && cpu.is_some_and(|mhz| mhz > 0) {
        block.fault("CPU", "stands beside `Cores`: a task asks for one of them");
    }
    let read = TaskResources {
        cpu: match cpu {
            // With cores of its own a task names no share.
            None | Some(0) if cores > 0 => CpuMhz(0),
            cpu => cpu.map_or(default.cpu, CpuMhz),
        },
        cores,
        memory: block
            .number("MemoryMB", u32::MAX)
            .map_or(default.memory, Mb),
        memory_max: read_memory_max(&mut block),
        devices: read_devices(&mut block),
        cpu_hard_limit: block.boolean("CPUHardLimit").unwrap_or(false),
        io: read_io(&mut block),
        ports: read_task_ports(&mut block),
    };
    block.finish(&RESOURCES);
    read
}

/// -1 is Nomad's way to say "no limit".
fn read_memory_max(resources: &mut Block<'_>) -> Option<Mb> {
    let max = resources.signed("MemoryMaxMB", -1..=i64::from(u32::MAX - 1))?;
    match u32::try_from(max) {
        Ok(0) => None,
        Ok(mb) => Some(Mb(mb)),
        Err(_) => Some(Mb::UNLIMITED),
    }
}

fn read_io(resources: &mut Block<'_>) -> IoLimits {
    let Some(mut block) = resources.block("IO") else {
        return IoLimits::default();
    };
    let read = IoLimits {
        read_rate: read_byte_rate(&mut block, "ReadRate"),
        write_rate: read_byte_rate(&mut block, "WriteRate"),
        read_ops: block.number("ReadOps", u32::MAX),
        write_ops: block.number("WriteOps", u32::MAX),
        weight: block.number("Weight", u16::MAX),
    };
    block.finish(&PLAIN);
    read
}

fn read_devices(resources: &mut Block<'_>) -> Vec<DeviceAsk> {
    let mut devices = Vec::new();
    for mut block in resources.blocks("Devices", limits::DEVICES_MAX) {
        devices.push(DeviceAsk {
            name: block.word("Name").unwrap_or_default(),
            count: block.number("Count", u32::MAX).unwrap_or(1),
            constraints: read_constraints(&mut block),
            affinities: read_affinities(&mut block),
        });
        block.finish(&PLAIN);
    }
    devices
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
        rate: read_byte_rate(&mut block, "Rate"),
        on_limit: read_overflow(&mut block, "OnLimit"),
        on_full: read_overflow(&mut block, "OnFull"),
    };
    let is_disabled = block.boolean("Disabled").unwrap_or_default();
    if !is_disabled && read.is_disabled() {
        let reason = "a task keeps at least 1 file; `Disabled` keeps nothing".to_owned();
        block.fault("MaxFiles", reason);
    }
    block.finish(&LOGS);
    if is_disabled {
        // How it would be taken means nothing.
        return LogConfig::DISABLED;
    }
    read
}

fn read_byte_rate(block: &mut Block<'_>, name: &'static str) -> Option<ByteRate> {
    let text = block.word(name)?;
    let rate = ByteRate::read(&text);
    if rate.is_none() {
        let reason = format!("`{text}` is not a rate such as 1mb: give a number and kb, mb or gb");
        block.fault(name, reason);
    }
    rate
}

fn read_overflow(logs: &mut Block<'_>, name: &'static str) -> LogOverflow {
    logs.choice(name).unwrap_or_default()
}
