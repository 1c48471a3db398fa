//! The job that runs a one-off task.
//!
//! The scheduler places it like any other job, so constraints, priorities, preemption and waiting work the same. In
//! contrast to other jobs, a placed instance is never replaced or restarted. The policies of the job ensure this, and
//! so does a rule of the state that no plan can bypass.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::json;

use super::definition::Definition;
use super::egress::{EgressRule, Reach};
use super::times::OneOffTimings;
use crate::job::{
    Constraint, DEFAULT_NODE_POOL, Disconnect, EphemeralDisk, GroupNetwork, JobSpec, JobType,
    NetworkMode, Operand, ReschedulePolicy, RestartMode, RestartPolicy, Task, TaskGroup,
};
use crate::limits::MEMORY_MB_MIN;
use crate::namespace::ONE_OFF_NAMESPACE;
use crate::resources::{CpuMhz, Mb, TaskResources};

/// The name of such a job's one group.
pub const GROUP: &str = "task";
/// The name of that group's one task.
pub const TASK: &str = "task";
/// The root file system that is the node's own.
pub const HOST_ROOT: &str = "preloaded:host";
/// Time from the stop signal to `SIGKILL`. Diego's graceful shutdown interval.
pub const GRACE: Duration = Duration::from_secs(10);
/// The source of a task's root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RootSource {
    /// The node's own directories.
    Host,
    /// The root that the node's configuration has under this name.
    Named(String),
    /// A directory of the node.
    Directory(String),
}

impl RootSource {
    pub(super) fn read(rootfs: &str) -> Result<Self, String> {
        let Some((scheme, rest)) = rootfs.split_once(':') else {
            return Err(format!(
                "`{rootfs}` has no scheme: write {HOST_ROOT}, preloaded:NAME or file:///DIRECTORY"
            ));
        };
        let is_name = |name: &str| {
            let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
            !name.is_empty() && name.bytes().all(fits)
        };
        match scheme {
            "preloaded" if rest == "host" => Ok(Self::Host),
            "preloaded" if is_name(rest) => Ok(Self::Named(rest.to_owned())),
            "file" => match rest.strip_prefix("//") {
                Some(path) if path.starts_with('/') && path.len() > 1 => {
                    Ok(Self::Directory(path.to_owned()))
                }
                Some(_) | None => Err(format!("`{rootfs}` is not file:///DIRECTORY")),
            },
            "" => Err(format!("`{rootfs}` has no scheme")),
            other => Err(format!(
                "`{other}` roots are not carried out: write {HOST_ROOT}, preloaded:NAME or file:///DIRECTORY"
            )),
        }
    }
}

/// The job that runs the task.
#[must_use]
pub fn job(guid: &str, domain: &str, definition: &Definition, times: OneOffTimings) -> JobSpec {
    JobSpec {
        namespace: ONE_OFF_NAMESPACE.to_owned(),
        id: guid.to_owned(),
        name: guid.to_owned(),
        job_type: JobType::Batch,
        priority: definition.priority,
        datacenters: match definition.datacenters.as_slice() {
            [] => vec!["*".to_owned()],
            some => some.to_vec(),
        },
        node_pool: match definition.node_pool.as_str() {
            "" => DEFAULT_NODE_POOL.to_owned(),
            pool => pool.to_owned(),
        },
        constraints: constraints(definition),
        meta: meta(domain, definition),
        groups: vec![group(definition, times)],
        ..JobSpec::default()
    }
}

/// The metadata key for the client's name of the task's metrics.
pub const META_METRICS_GUID: &str = "metrics_guid";
/// The metadata key for the client's name of the task's log.
pub const META_LOG_GUID: &str = "log_guid";
/// The metadata key for the source name of the task's log lines.
pub const META_LOG_SOURCE: &str = "log_source";
/// The metadata key for the task's domain.
pub const META_DOMAIN: &str = "domain";

/// The client's names for the task, its log and its metrics. They are part of the allocation. So a reader of the log or
/// the metrics has them after the task is deleted. Empty names are left out.
fn meta(domain: &str, definition: &Definition) -> BTreeMap<String, String> {
    let fields = [
        (META_DOMAIN, domain),
        (META_LOG_GUID, &definition.log_guid),
        (META_LOG_SOURCE, &definition.log_source),
        (META_METRICS_GUID, &definition.metrics_guid),
    ];
    let fields = fields.into_iter().filter(|(_, value)| !value.is_empty());
    fields
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}

/// The group of the job. It is placed once and never again.
fn group(definition: &Definition, times: OneOffTimings) -> TaskGroup {
    TaskGroup {
        name: GROUP.to_owned(),
        restart: no_restart(),
        reschedule: ReschedulePolicy {
            attempts: 0,
            unlimited: false,
            ..ReschedulePolicy::default_for(JobType::Batch)
        },
        disconnect: Disconnect {
            lost_after: Some(times.lost_after),
            stop_on_client_after: Some(times.stop_after()),
            replace: false,
            ..Disconnect::default()
        },
        ephemeral_disk: EphemeralDisk {
            size: Mb(definition.disk_mb.unsigned_abs().max(DISK_MB_MIN)),
            ..EphemeralDisk::default()
        },
        network: Some(GroupNetwork {
            mode: network_mode(&definition.egress_rules),
            ports: Vec::new(),
            policy: match EgressRule::reach(&definition.egress_rules) {
                Reach::Some => Some(EgressRule::policy(&definition.egress_rules)),
                Reach::Everything => EgressRule::log_policy(&definition.egress_rules),
                Reach::Nothing => None,
            },
            dns: None,
            hostname: String::new(),
        }),
        tasks: vec![task(definition)],
        ..TaskGroup::default()
    }
}

/// A network of the task's own, as a container of Diego's has: no port and no loopback is shared with the node or with
/// other tasks. Such networks have no IPv6 beyond `::1` and link-local addresses, as Diego's have none by default.
fn network_mode(rules: &[EgressRule]) -> NetworkMode {
    match EgressRule::reach(rules) {
        Reach::Nothing => NetworkMode::None,
        Reach::Some | Reach::Everything => NetworkMode::Bridge,
    }
}

fn task(definition: &Definition) -> Task {
    let env = definition.env.iter();
    Task {
        name: TASK.to_owned(),
        driver: "native".to_owned(),
        config_json: config(definition).to_string(),
        env: env
            .map(|var| (var.name.clone(), var.value.clone()))
            .collect(),
        resources: TaskResources {
            cpu: CpuMhz(match definition.cpu_weight {
                0 => 100,
                weight => weight,
            }),
            memory: Mb(definition.memory_mb.unsigned_abs().max(MEMORY_MB_MIN)),
            memory_max: (definition.memory_mb == 0).then_some(Mb::UNLIMITED),
            ..TaskResources::default()
        },
        restart: no_restart(),
        kill_timeout: GRACE,
        // Diego's signal, independent of the default of jobs.
        kill_signal: "SIGTERM".to_owned(),
        ..Task::default()
    }
}

fn no_restart() -> RestartPolicy {
    RestartPolicy {
        attempts: 0,
        mode: RestartMode::Fail,
        ..RestartPolicy::default_for(JobType::Batch)
    }
}

/// Least disk of a group, in MiB.
const DISK_MB_MIN: u32 = 10;

/// Whether the job runs a one-off task that may fill its node's disk.
#[must_use]
pub fn has_unlimited_disk(job: &JobSpec) -> bool {
    if job.namespace != ONE_OFF_NAMESPACE {
        return false;
    }
    let tasks = job.groups.iter().flat_map(|group| &group.tasks);
    let mut configs = tasks.map(|task| serde_json::from_str(&task.config_json).unwrap_or_default());
    configs.all(|config: serde_json::Value| config.get("disk_mb").is_none())
}

/// The `config` block of the native driver.
fn config(definition: &Definition) -> serde_json::Value {
    let mut config = json!({
        "actions": serde_json::to_string(&definition.action).unwrap_or_default(),
        "log_source": definition.log_source,
    });
    if !definition.result_file.is_empty() {
        config["result_file"] = json!(definition.result_file);
        config["result_required"] = json!(definition.result_required);
    }
    if definition.disk_mb > 0 {
        config["disk_mb"] = json!(definition.disk_mb);
    }
    if definition.max_pids > 0 {
        config["pids_max"] = json!(definition.max_pids);
    }
    match RootSource::read(&definition.rootfs) {
        Ok(RootSource::Host) | Err(_) => {}
        Ok(RootSource::Named(name)) => config["root"] = json!(format!("${{meta.rootfs.{name}}}")),
        Ok(RootSource::Directory(path)) => config["root"] = json!(path),
    }
    config
}

fn constraints(definition: &Definition) -> Vec<Constraint> {
    /// The reference to a node's tags: sorted, with commas.
    const TAGS: &str = "${meta.placement_tags}";
    let condition = |left: &str, operand, right: String| Constraint {
        left: left.to_owned(),
        operand,
        right,
    };
    let mut tags: Vec<&str> = definition
        .placement_tags
        .iter()
        .map(String::as_str)
        .collect();
    tags.sort_unstable();
    tags.dedup();
    let mut all = vec![if tags.is_empty() {
        condition(TAGS, Operand::IsNotSet, String::new())
    } else {
        condition(TAGS, Operand::Equal, tags.join(","))
    }];
    if let Ok(RootSource::Named(name)) = RootSource::read(&definition.rootfs) {
        let left = format!("${{meta.rootfs.{name}}}");
        all.push(condition(&left, Operand::IsSet, String::new()));
    }
    all.extend(definition.constraints.iter().filter_map(|it| {
        let operand = Operand::from_name(&it.operator)?;
        Some(condition(&it.attribute, operand, it.value.clone()))
    }));
    all
}
