//! Reads a submitted job: Nomad's JSON, with Nomad's defaults applied.
//!
//! Every field of Nomad's is in one of four lists. It is read here, derived by the server (ignored), harmless (ignored
//! with a warning) or unsupported (refused by name unless empty). Any other field is refused with a suggestion.
//! `domain::job::validate` checks the meaning of the job.

use std::cell::RefCell;
use std::collections::BTreeMap;

use muster_domain::job::{
    self as domain, GroupNetwork, JobSpec, JobType, LifecycleHook, LogOverflow, Operand, PortAsk,
    RestartMode, Task, TaskGroup, VolumeAsk, VolumeAsks,
};
use muster_domain::limits;
use muster_domain::region;
use muster_domain::resources::{CpuMhz, IoLimits, Mb, TaskResources};
use serde_json::Value;

use self::resources::read_ports;
use super::group::{EphemeralDisk, GROUP};
use super::launch::{DispatchPayload, Volume};
use super::spec::JOB;
use super::steps::RestartPolicy;
use super::table::{BlockForm, block_forms, json_form, read_one, small_number};
use super::task::{LogConfig, TASK};
use crate::api::block::{self, Block, FieldNames, ParseFindings};
use crate::api::job::{unsupported, written};
use crate::api::resources::{Io, Network, Resources, asked_network, memory_max_json};

pub(in crate::api) mod launch;
pub(in crate::api) mod logs;
mod policy;
pub(in crate::api) mod resources;
pub(in crate::api) mod update;

pub use crate::api::read_error::{ReadJobError, SyntaxError, lines};

const BODY: FieldNames = FieldNames {
    derived: &["Submission", "SecretID", "AuthToken", "Namespace"],
    harmless: &["EvalPriority", "PolicyOverride"],
    ..FieldNames::NONE
};
/// A network in `resources` has ports alone.
const TASK_NETWORK: FieldNames = FieldNames {
    derived: &["IP"],
    unsupported: &["DNS", "Hostname", "Policy"],
    rows: unsupported::NETWORK,
    ..FieldNames::NONE
};

pub use policy::read as read_policy;

/// A job that could be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadJob {
    /// The job, with defaults filled in; not validated yet.
    pub spec: JobSpec,
    /// Warnings about fields that are ignored, as text.
    pub warnings: Vec<String>,
    /// The index at which the job must be for a registration; 0 means that it must not exist.
    pub enforce_index: Option<u64>,
    /// Whether the plan response includes the differences.
    pub wants_diff: bool,
    /// Whether groups of the registered job keep its counts.
    pub preserve_counts: bool,
    /// Whether tasks of the registered job keep its resources.
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
        Some(job) => Some(read_job(job.with_root_pointers())),
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
    let default = JobSpec {
        job_type: job.non_empty_choice("Type").unwrap_or(JobType::Service),
        stop: job.boolean("Stop").unwrap_or(false),
        ..JobSpec::default()
    };
    let job_type = default.job_type;
    let steps = update::JobSteps::read(&mut job, job_type);
    let mut spec = super::spec::Job::read_fields(&mut job, &default);
    if spec.id.is_empty() {
        job.fault("ID", "is missing");
    }
    if spec.name.is_empty() {
        spec.name.clone_from(&spec.id);
    }
    // Go clients send 0 for an omitted value.
    if spec.priority == 0 {
        spec.priority = default.priority;
    }
    let groups = job.blocks("TaskGroups", limits::GROUPS_MAX).into_iter();
    spec.groups = groups
        .map(|group| read_group(group, job_type, &steps))
        .collect();
    if let Some(pace) = steps.job_update(&spec.groups) {
        job.keep("Update", &pace);
    }
    spec.as_written = job.finish_keeping(&JOB.names);
    spec.as_written = written::canonical(&spec);
    spec
}

fn read_group(mut group: Block<'_>, job_type: JobType, steps: &update::JobSteps) -> TaskGroup {
    let scaling = group.value("Scaling");
    let least = scaling.and_then(|scaling| small_number(scaling.get("Min")?));
    let default = TaskGroup {
        count: least.unwrap_or(TaskGroup::DEFAULT_COUNT),
        restart: domain::RestartPolicy::default_for(job_type),
        reschedule: steps.reschedule,
        update: steps.update,
        migrate: steps.migrate,
        ..TaskGroup::default()
    };
    let mut read = super::group::TaskGroup::read_fields(&mut group, &default);
    read.scaling = launch::read_group_scaling(&mut group);
    steps.check_reschedule(&mut group, "ReschedulePolicy", read.reschedule);
    let tasks = group.blocks("Tasks", limits::TASKS_MAX).into_iter();
    read.tasks = tasks.map(|task| read_task(task, read.restart)).collect();
    if read.name.is_empty() {
        group.fault("Name", "is missing");
    }
    group.finish(&GROUP.names);
    read
}

block_forms! {
    EphemeralDisk of domain::EphemeralDisk;
    LogConfig of domain::LogConfig;
    Resources of TaskResources;
    RestartPolicy of domain::RestartPolicy;
}

json_form! {
    Vec<Network>, of Option<GroupNetwork>: |block, name, _| read_network(block, name),
        |value| value.iter().map(Network::write_block).collect();
    BTreeMap<String, Volume>, of VolumeAsks: |block, name, _| read_volumes(block, name), write_volumes;
    String, of RestartMode: |block, name, default| block.non_empty_choice(name).unwrap_or(*default),
        |value| value.as_str().to_owned();
}

fn read_volumes(group: &mut Block<'_>, name: &'static str) -> VolumeAsks {
    let volumes = group.named_blocks(name, limits::VOLUMES_MAX).into_iter();
    volumes
        .map(|(name, volume)| (name, Volume::read_block(volume, &VolumeAsk::default())))
        .collect()
}

fn write_volumes(asks: &VolumeAsks) -> BTreeMap<String, Volume> {
    let volume = |(name, ask): (&String, &VolumeAsk)| {
        let volume = Volume {
            name: name.clone(),
            ..Volume::write_block(ask)
        };
        (name.clone(), volume)
    };
    asks.iter().map(volume).collect()
}

fn read_network(group: &mut Block<'_>, name: &'static str) -> Option<GroupNetwork> {
    let default = GroupNetwork::default();
    let mut networks = group.blocks(name, limits::PORTS_MAX).into_iter();
    let network = Network::read_block(networks.next()?, &default);
    for more in networks {
        let at = more.at.clone();
        more.keep_all();
        group.warn_at(
            &at,
            "is stored and has no effect: the first network of a group is its network; put all ports there",
        );
        Network::read_block(more, &default);
    }
    Some(network)
}

/// The ports of a task's own network. Its address is the node's, regardless of the group's network.
fn read_task_ports(resources: &mut Block<'_>, name: &'static str) -> Vec<PortAsk> {
    let mut ports = Vec::new();
    for mut network in resources.blocks(name, limits::PORTS_MAX) {
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

/// The port inside the network; Nomad uses -1 for "the same".
fn read_to(port: &mut Block<'_>, name: &'static str) -> Option<u16> {
    if port.value(name).and_then(Value::as_i64) == Some(-1) {
        port.keep(name, &Value::from(-1));
        return None;
    }
    port.number(name, u16::MAX)
}

fn read_operand(block: &mut Block<'_>, name: &'static str) -> Option<Operand> {
    let word = block.string(name).unwrap_or_default();
    let operand = block.choice_named::<Operand>(name, &word);
    if operand.is_some_and(|operand| operand.as_str() != word) && !word.is_empty() {
        block.keep(name, &Value::from(word.as_str()));
    }
    operand
}

fn read_task(mut task: Block<'_>, group_restart: domain::RestartPolicy) -> Task {
    let default = Task {
        restart: group_restart,
        ..Task::default()
    };
    let mut read = super::task::Task::read_fields(&mut task, &default);
    // Go clients send 0 for an omitted value.
    if read.kill_timeout.is_zero() {
        read.kill_timeout = default.kill_timeout;
    }
    if read.name.is_empty() {
        task.fault("Name", "is missing");
    }
    task.finish(&TASK.names);
    read
}

json_form! {
    String, of Operand: |block, name, default| read_operand(block, name).unwrap_or(*default),
        |value| value.as_str().to_owned();
    i8, of i8: |block, name, default| block.signed(name, -100..=100).unwrap_or(*default),
        |value| *value;
    Value, of String: |block, name, default| read_config(block, name, default),
        |value| serde_json::from_str(value).unwrap_or_default();
    Option<DispatchPayload>, of String: |block, name, _| read_payload_file(block, name),
        |value| (!value.is_empty()).then(|| DispatchPayload { file: value.clone() });
    String, of LifecycleHook:
        |block, name, default| {
            let word = block.word(name).unwrap_or_default();
            block.choice_named(name, &word).unwrap_or(*default)
        },
        |value| value.as_str().to_owned();
    // Absent for the default.
    Option<String>, of LogOverflow: |block, name, default| block.choice(name).unwrap_or(*default),
        |value| (*value != LogOverflow::default()).then(|| value.as_str().to_owned());
    u64, of CpuMhz:
        |block, name, default| block.number(name, u32::MAX).map_or(*default, CpuMhz),
        |value| u64::from(value.0);
    u64, of Mb: |block, name, default| block.number(name, u32::MAX).map_or(*default, Mb),
        |value| u64::from(value.0);
    i64, of Option<Mb>: |block, name, _| read_memory_max(block, name),
        |value| value.map_or(0, memory_max_json);
    u32, of u16: |block, name, default| block.number(name, u16::MAX).unwrap_or(*default),
        |value| u32::from(*value);
    i32, of u16: |block, name, default| read_to(block, name).unwrap_or(*default),
        |value| i32::from(*value);
    Option<Io>, of IoLimits: read_one::<Io, _>,
        |value| (!value.is_none()).then(|| Io::write_block(value));
    Vec<Network>, of Vec<PortAsk>: |block, name, _| read_task_ports(block, name),
        |value| asked_network(value).into_iter().collect();
}

fn read_payload_file(task: &mut Block<'_>, name: &'static str) -> String {
    let Some(mut block) = task.block(name) else {
        return String::new();
    };
    let file = block.word("File").unwrap_or_default();
    if file.is_empty() {
        block.fault("File", "is missing");
    }
    block.finish(&FieldNames::NONE);
    file
}

fn read_config(task: &mut Block<'_>, name: &'static str, default: &str) -> String {
    match task.value(name) {
        None => default.to_owned(),
        Some(config @ Value::Object(_)) => config.to_string(),
        Some(_) => {
            // `block` reports the fault with the expected and the actual type.
            drop(task.block(name));
            default.to_owned()
        }
    }
}

/// Reads the hard memory limit; Nomad uses -1 for "no limit".
fn read_memory_max(resources: &mut Block<'_>, name: &'static str) -> Option<Mb> {
    let max = resources.signed(name, -1..=i64::from(u32::MAX - 1))?;
    match u32::try_from(max) {
        Ok(0) => None,
        Ok(mb) => Some(Mb(mb)),
        Err(_) => Some(Mb::UNLIMITED),
    }
}
