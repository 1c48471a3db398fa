//! Starts a task: cgroup, record, counters, FIFOs, driver.

use muster_agent_core::limits::KILL_TIMEOUT_MAX;
use muster_domain::error_chain::chain;
use muster_domain::job::{NetworkMode as GroupNetworkMode, Task, TaskGroup};
use muster_domain::node::NodeResources;
use muster_domain::resources::Mb;
use muster_domain::saturating;
use muster_driver::{
    CgroupPlacement, Dns, FsIsolation, LinuxResources, Mount, MountConfigs, NetworkIsolation,
    NetworkMode, NetworkOverride, PortMapping, StartTaskError, StartedTask, TaskConfig, TaskReach,
    TaskResources, WithoutHost,
};

use super::streams::{Streams, remove_fifos, stream_name};
use super::{network_policy, remote, resources, root, user};
use crate::context::AgentContext;
use crate::limits::START_STOP_DEADLINE;
use crate::logs::FifoOwner;
use crate::network::alloc_network::AllocNetwork;
use crate::network::bridge;
use crate::network::cni;
use crate::resources::ResourceContext;
use crate::resources::cgroup::{
    Controller, CreateTaskCgroupError, PERIOD_US, TaskCgroup, core_list,
};
use crate::resources::teardown::kill;
use crate::session::SessionContext;
use crate::session::clock::now;
use crate::storage::allocdir::{AllocDirs, DataDir, owner_of};
use crate::storage::gc;
use crate::storage::leftovers::Leftover;
use crate::storage::payload;
use crate::storage::store::{self, TaskRecord};
use crate::storage::volumes;
use crate::tasks::drivers::usage::DriverUsage;
use crate::tasks::drivers::{DriverSlot, Drivers, native};
use crate::tasks::live::LiveTask;
use crate::tasks::task::driver_calls::{
    allow_traversal, decoded, driver_facts, encoded, fs_isolation, ready, sees_host, task_id,
};
use crate::tasks::task::record::{note_record, store_record};
use crate::tasks::task::start_failure::StartFailure;
use crate::tasks::task_env::{TaskEnv, TaskPaths, host_address};
use crate::tasks::task_ref::TaskRef;
use muster_wire::rpc::LogStream;
use tokio_util::sync::CancellationToken;

/// The output path of a task whose output is not collected.
const NULL_DEVICE: &str = "/dev/null";

/// Starts the task, or takes over the task of the handle `take`. Returns the running task and a note for the
/// operator.
pub(crate) async fn begin(
    context: &AgentContext,
    task: &TaskRef,
    attempt: u32,
    take: Option<Vec<u8>>,
    stopped: &CancellationToken,
) -> Result<(LiveTask, String), StartFailure> {
    let _start = context.storage.trash.start_of();
    if let Some(reason) = context.monitoring.conditions.reason(store::CONDITION) {
        // The next agent would have no record of this start.
        return Err(StartFailure::retryable(reason));
    }
    let reserved = context.monitoring.start_health.reserve_open_files();
    reserved.map_err(StartFailure::retryable)?;
    let slot = driver(&context.tasks.drivers, task)?;
    let isolation = fs_isolation(&slot, task).await?;
    let begun = begin_isolated(context, task, slot, isolation, attempt, (take, stopped)).await;
    if begun.is_err() && isolation == FsIsolation::Chroot {
        root::remove(&context.storage.data, task).await;
    }
    begun
}

async fn begin_isolated(
    context: &AgentContext,
    task: &TaskRef,
    slot: DriverSlot,
    isolation: FsIsolation,
    attempt: u32,
    (take, stopped): (Option<Vec<u8>>, &CancellationToken),
) -> Result<(LiveTask, String), StartFailure> {
    let (storage, resources) = (&context.storage, &context.resources);
    let session = &context.session;
    let network = context.ensure_network(&task.desired, stopped).await;
    let network = network.map_err(StartFailure::retryable)?;
    let (data, own) = (&storage.data, network.as_deref());
    let mut config = task_config(session, data, task, attempt, own, isolation)?;
    if sees_host(task, isolation, &config.config) {
        allow_traversal(data, task).await?;
    }
    user::assign(storage, &resources.users, task, &slot, &mut config).await?;
    let mut notes = Vec::new();
    if isolation == FsIsolation::Chroot {
        notes.extend(root::make(storage, task, &slot, &mut config).await?);
    }
    let cgroup = make_cgroup(resources, session, task, &slot).await?;
    notes.extend(cgroup.unenforced().map(|limit| limit.reason.clone()));
    let in_part = cgroup.kept_in_part(&task.task().resources.io);
    notes.extend(in_part.map(str::to_owned));

    // The runner has stored that this start is in progress. If the agent dies before the handle is stored, the next
    // agent finds the process by its id. The id follows from allocation, task and attempt.
    if let Some(bpf) = context.bpf()
        && let Err(error) = bpf.watch(cgroup.id())
    {
        notes.push(format!("the task is not counted by eBPF: {error}"));
    }
    let reach = match attach_task_policy(context, task, &slot, &config, cgroup.id()).await {
        Ok((reach, note)) => {
            notes.extend(note);
            reach
        }
        Err(failure) => {
            undo(context, task, &cgroup).await;
            return Err(failure);
        }
    };
    let begins = attempt == 0 && take.is_none();
    let taken = (take, stopped);
    match start(context, task, &slot, config, taken, &cgroup, begins).await {
        Ok((started, streams)) => {
            let (elsewhere, note) = remote::handle(&slot, &started.handle).await;
            notes.extend(note);
            notes.extend(started.network.as_ref().and_then(reached_at));
            let usage = DriverUsage::default();
            usage.set_network(started.network.as_ref());
            if let Some(network) = &network
                && cni::wanted(task.group()).is_some()
            {
                usage.set_alloc_network_if_unset(network.address, &task.desired.holding.ports);
            }
            let record = TaskRecord {
                attempt,
                driver: task.task().driver.clone(),
                task_id: task_id(task, attempt),
                cgroup_id: cgroup.id(),
                boot_id: context.boot_id.clone(),
                handle: encoded(&started.handle),
                ended: None,
            };
            note_record(&cgroup, &record);
            store_record(&storage.store, task, &record).await;
            let live = LiveTask {
                slot,
                record,
                cgroup: Some(cgroup),
                streams,
                elsewhere,
                detaching: CancellationToken::new(),
                usage,
                reach,
            };
            Ok((live, notes.join("; ")))
        }
        Err(failure) => {
            undo(context, task, &cgroup).await;
            Err(failure)
        }
    }
}

/// Attaches the task's policy. Returns the task's reach without a policy, and a note for the operator.
async fn attach_task_policy(
    context: &AgentContext,
    task: &TaskRef,
    slot: &DriverSlot,
    config: &TaskConfig,
    cgroup_id: u64,
) -> Result<(TaskReach, Option<String>), StartFailure> {
    network_policy::check_holds(&context.network, context.bpf(), task, slot).await?;
    let reach = network_policy::reach(context.bpf(), slot, config).await?;
    let note = network_policy::attach_policy(context, task, cgroup_id, reach);
    Ok((reach, note.map_err(StartFailure::fatal)?))
}

/// The address in the driver's own network for a task, as text for the task's history.
fn reached_at(network: &NetworkOverride) -> Option<String> {
    let NetworkOverride {
        port_map,
        addr,
        auto_advertise: _,
    } = network;
    if addr.is_empty() {
        return None;
    }
    let ports: Vec<String> = port_map
        .iter()
        .map(|(label, port)| format!("{label} at {port}"))
        .collect();
    let ports = if ports.is_empty() {
        String::new()
    } else {
        format!(" ({})", ports.join(", "))
    };
    Some(format!(
        "its driver put it on a network of its own: {addr}{ports}"
    ))
}

fn driver(drivers: &Drivers, task: &TaskRef) -> Result<DriverSlot, StartFailure> {
    let name = &task.task().driver;
    drivers.named(name).cloned().ok_or_else(|| {
        let known = drivers.names();
        StartFailure::fatal(format!("this node has no driver `{name}`; it has {known}"))
    })
}

async fn make_cgroup(
    resources: &ResourceContext,
    session: &SessionContext,
    task: &TaskRef,
    slot: &DriverSlot,
) -> Result<TaskCgroup, StartFailure> {
    if let Some(field) = resources::limit_needing_cgroup(task.task())
        && !driver_facts(slot).await?.capabilities.joins_cgroup
    {
        let driver = &task.task().driver;
        return Err(StartFailure::fatal(resources::unenforced_limit(
            field, driver,
        )));
    }
    task.hold_cores(resources);
    let made = match create_cgroup(resources, session, task) {
        // An earlier start left this process behind. No process of the agent may be in this cgroup.
        Err(CreateTaskCgroupError::Occupied { .. }) => {
            empty(resources, task).await;
            create_cgroup(resources, session, task)
        }
        other => other,
    };
    if made.is_err() {
        task.release_cores(resources);
    }
    let cgroup = made.map_err(|error| match error {
        CreateTaskCgroupError::Limit(_) => StartFailure::fatal(chain(&error)),
        other => StartFailure::retryable(chain(&other)),
    })?;
    let asked = &task.task().resources;
    // A limit that the job names is enforced, or the task does not run.
    let unlimited = cgroup.unenforced().find(|limit| match limit.controller {
        Controller::Memory | Controller::Pids => resources.strict_limits,
        Controller::Cpu => asked.cpu_hard_limit,
        Controller::Io => !asked.io.is_none(),
        Controller::Cpuacct | Controller::Cpuset => false,
    });
    if let Some(limit) = unlimited {
        let reason = limit.reason.clone();
        task.release_cores(resources);
        remove(&cgroup).await;
        return Err(StartFailure::fatal(reason));
    }
    Ok(cgroup)
}

fn create_cgroup(
    resources: &ResourceContext,
    session: &SessionContext,
    task: &TaskRef,
) -> Result<TaskCgroup, CreateTaskCgroupError> {
    let alloc = task.alloc_id().to_string();
    resources::with_limits(resources, session, task, |limits| {
        TaskCgroup::create(&resources.tree, &alloc, task.name(), limits)
    })
}

/// Kills the processes in the cgroup of a task that should have none.
async fn empty(resources: &ResourceContext, task: &TaskRef) {
    let alloc = task.alloc_id().to_string();
    if let Ok(cgroup) = TaskCgroup::open(&resources.tree, &alloc, task.name()) {
        kill(&cgroup).await;
    }
}

async fn remove(cgroup: &TaskCgroup) {
    if let Err(error) = cgroup.remove().await {
        tracing::warn!(%error, "a cgroup is left; it is removed with the allocation");
    }
}

async fn start(
    context: &AgentContext,
    task: &TaskRef,
    slot: &DriverSlot,
    mut config: TaskConfig,
    (take, stopped): (Option<Vec<u8>>, &CancellationToken),
    cgroup: &TaskCgroup,
    begins: bool,
) -> Result<(StartedTask, Streams), StartFailure> {
    let dirs = context.storage.data.alloc(task.alloc_id());
    let owner = owner_of(&context.resources.users, task.alloc_id(), task.task())
        .map_err(StartFailure::fatal)?;
    write_payload(task, &dirs, owner).await?;
    let streams = match uncollected_reason(slot, task).await? {
        Some(why) => {
            config.stdout_path = NULL_DEVICE.into();
            config.stderr_path = NULL_DEVICE.into();
            Streams::mark_uncollected(&dirs, task.name(), &why)
                .map_err(|error| StartFailure::retryable(chain(&error)))?
        }
        None => Streams::open(
            &context.ring,
            &dirs,
            task.name(),
            owner,
            task.task().logs,
            begins,
        )
        .await
        .map_err(|error| StartFailure::retryable(chain(&error)))?,
    };
    config.resources.linux.cpuset_cgroup = cgroup.dir().to_string_lossy().into_owned();
    config.cgroup = Some(CgroupPlacement {
        dir: cgroup.dir().to_owned(),
        joins: cgroup.joins(),
    });
    let task_id = config.id.clone();
    let asking = async {
        match take {
            Some(handle) => remote::take_over(slot, config, &handle).await,
            None => with_driver(context, task, slot, config, cgroup.id()).await,
        }
    };
    let given_up = async {
        stopped.cancelled().await;
        tokio::time::sleep(START_STOP_DEADLINE).await;
    };
    let asked = tokio::select! {
        asked = asking => asked,
        () = given_up => {
            let reason = format!(
                "the driver `{}` did not answer StartTask within {START_STOP_DEADLINE:?} of the stop: the task's cgroup is killed",
                task.task().driver
            );
            let leftover = Leftover {
                driver: task.task().driver.clone(),
                task_id,
                task: task.name().to_owned(),
                cgroup_id: cgroup.id(),
                boot_id: context.boot_id.clone(),
                left_at: Some(now()),
            };
            // The driver may still make the task, so it is asked to destroy it with the allocation.
            let error = std::io::Error::other(reason.clone());
            gc::keep(&context.storage, task.alloc_id(), leftover, &error).await;
            Err(StartFailure::retryable(reason))
        }
    };
    match asked {
        Ok(started) => Ok((started, streams)),
        Err(failure) => {
            // No process writes any more once the cgroup is empty.
            kill(cgroup).await;
            streams.close(&context.ring).await;
            Err(failure)
        }
    }
}

/// The reason why a task's output is not collected, if its job or its driver excludes it.
async fn uncollected_reason(
    slot: &DriverSlot,
    task: &TaskRef,
) -> Result<Option<String>, StartFailure> {
    let name = task.name();
    if task.task().logs.is_disabled() {
        return Ok(Some(format!(
            "task `{name}` has no log: its job says `logs {{ disabled = true }}`"
        )));
    }
    let facts = driver_facts(slot).await?;
    let driver = &task.task().driver;
    let is_taken_elsewhere = facts.capabilities.disable_log_collection;
    Ok(is_taken_elsewhere.then(|| {
        format!(
            "task `{name}` has no log here: its driver `{driver}` takes the output itself and says where it puts it"
        )
    }))
}

/// Writes the payload of the job's dispatch, if the task wants it.
async fn write_payload(
    task: &TaskRef,
    dirs: &AllocDirs,
    owner: Option<FifoOwner>,
) -> Result<(), StartFailure> {
    let (spec, file) = (&task.desired.job.spec, task.task().payload_file.clone());
    let payload = spec.launched.as_ref().map(|launched| &launched.payload);
    let Some(payload) = payload.filter(|payload| !payload.is_empty() && !file.is_empty()) else {
        return Ok(());
    };
    let (local, payload) = (dirs.task(task.name()).join("local"), payload.clone());
    let written =
        tokio::task::spawn_blocking(move || payload::write(&local, &file, &payload, owner)).await;
    match written {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(StartFailure::retryable(chain(&error))),
        Err(error) => Err(StartFailure::retryable(error)),
    }
}

async fn with_driver(
    context: &AgentContext,
    task: &TaskRef,
    slot: &DriverSlot,
    mut config: TaskConfig,
    cgroup_id: u64,
) -> Result<StartedTask, StartFailure> {
    ready(slot).await?;
    let mode = config.network.as_ref().map(|network| network.mode);
    if mode.is_some() || !config.mounts.is_empty() {
        let facts = slot.facts().await;
        let facts = facts.map_err(|error| StartFailure::retryable(chain(&error)))?;
        let modes = &facts.capabilities.network_modes;
        if let Some(mode) = mode
            && mode != NetworkMode::Host
            && !modes.contains(&mode)
        {
            return Err(StartFailure::fatal(no_such_network(mode)));
        }
        let mounts = !config.mounts.is_empty();
        if mounts && facts.capabilities.mount_configs == MountConfigs::None {
            return Err(StartFailure::fatal(
                "the task's driver cannot show host volumes: leave `volume_mount` out, or take another driver",
            ));
        }
    }
    config.config = decoded(slot, &config).await?;
    let task_id = config.id.clone();
    let error = match slot.driver.start_task(config).await {
        Ok(started) => return Ok(started),
        Err(error) => error,
    };
    // The task may have been started, or only partly: a container may exist that did not start.
    let driver = &task.task().driver;
    if let Err(error) = gc::destroy_task(slot, driver, &task_id).await {
        let leftover = Leftover {
            driver: driver.clone(),
            task_id,
            task: task.name().to_owned(),
            cgroup_id,
            boot_id: context.boot_id.clone(),
            left_at: Some(now()),
        };
        gc::keep(&context.storage, task.alloc_id(), leftover, &error).await;
    }
    match error {
        StartTaskError::Fatal { message } => Err(StartFailure::fatal(message)),
        StartTaskError::Recoverable { message } => Err(StartFailure::retryable(message)),
        StartTaskError::AlreadyStarted { .. } | StartTaskError::Driver(_) => {
            Err(StartFailure::retryable(chain(&error)))
        }
    }
}

/// The error for a driver that cannot have a task whose group has `mode`.
fn no_such_network(mode: NetworkMode) -> String {
    let what = match mode {
        NetworkMode::None => "keep tasks from every network, as their group's mode `none` says",
        NetworkMode::Host | NetworkMode::Group | NetworkMode::Task => {
            "put tasks into a network of their group's"
        }
    };
    format!("the task's driver cannot {what}: use network mode `host`, or take another driver")
}

async fn undo(context: &AgentContext, task: &TaskRef, cgroup: &TaskCgroup) {
    if let Some(bpf) = context.bpf()
        && let Err(error) = bpf.forget(cgroup.id())
    {
        tracing::warn!(%error, "counters of a task that did not start are left");
    }
    task.release_cores(&context.resources);
    remove(cgroup).await;
    remove_fifos(&context.storage.data.alloc(task.alloc_id()), task.name());
}

fn task_config(
    session: &SessionContext,
    data: &DataDir,
    task: &TaskRef,
    attempt: u32,
    own_network: Option<&AllocNetwork>,
    isolation: FsIsolation,
) -> Result<TaskConfig, StartFailure> {
    let spec = session.spec();
    let dirs = data.alloc(task.alloc_id());
    let TaskRef { desired, .. } = task;
    let (group, description) = (task.group(), task.task());
    let address = own_network.map(|network| network.address);
    let paths = TaskPaths::of(isolation, &dirs, &description.name);
    let env = TaskEnv::build(task, &paths, &spec, address);
    let mut mounts = volumes::mounts(group, description, &spec.volumes, &env, &paths.root)
        .map_err(StartFailure::fatal)?;
    let config: serde_json::Value = serde_json::from_str(&description.config_json)
        .map_err(|error| StartFailure::fatal(format!("the task's config is not JSON: {error}")))?;
    mounts.extend(names(description, &config, &mounts, own_network));
    let fifo = |stream| dirs.fifos.join(stream_name(&description.name, stream));
    Ok(TaskConfig {
        id: task_id(task, attempt),
        task_name: description.name.clone(),
        group_name: group.name.clone(),
        alloc_id: desired.alloc_id.to_string(),
        job_id: desired.job.spec.id.clone(),
        job_name: desired.job.spec.name.clone(),
        namespace: desired.job.spec.namespace.clone(),
        parent_job_id: desired
            .job
            .spec
            .launched
            .as_ref()
            .map_or_else(String::new, |launched| launched.parent_id.clone()),
        node_id: spec.id.to_string(),
        node_name: spec.name.clone(),
        config: interpolated(&env, config),
        resources: task_resources(task, &spec.address, &spec.resources),
        user: description.user.clone(),
        alloc_dir: alloc_dir(&dirs),
        task_dir: dirs.task(&description.name),
        stdout_path: fifo(LogStream::Stdout),
        stderr_path: fifo(LogStream::Stderr),
        kill_signal: Some(description.kill_signal.clone()).filter(|name| !name.is_empty()),
        without_host: group
            .disconnect
            .stop_without_agent_after()
            .map(|max| WithoutHost {
                max,
                kill_timeout: description.kill_timeout.min(KILL_TIMEOUT_MAX),
            }),
        mounts,
        network: network(group, own_network),
        dns: dns(description, group, &env),
        env: env.vars,
        ..TaskConfig::default()
    })
}

/// Returns the DNS settings of the group's tasks, for drivers that write them into a root of their own. The native
/// driver receives the file ([`names`]).
fn dns(task: &Task, group: &TaskGroup, env: &TaskEnv) -> Option<Dns> {
    if task.driver == native::NAME {
        return None;
    }
    Some(bridge::dns_config(
        group.network.as_ref()?.dns.as_ref()?,
        env,
    ))
}

/// Resolves the references in the task's block. A tree of actions stays as it is, because its references are for
/// shells. A client that wants a node's value finds it in the environment.
fn interpolated(env: &TaskEnv, mut config: serde_json::Value) -> serde_json::Value {
    let tree = config.get_mut(ACTIONS).map(serde_json::Value::take);
    let mut config = env.interpolate_config(config);
    if let (Some(tree), Some(fields)) = (tree, config.as_object_mut()) {
        fields.insert(ACTIONS.to_owned(), tree);
    }
    config
}

/// Returns the network of a group that has its own network or none. All other groups use the host's.
fn network(group: &TaskGroup, own: Option<&AllocNetwork>) -> Option<NetworkIsolation> {
    if let Some(own) = own {
        return Some(own.isolation());
    }
    let mode = &group.network.as_ref()?.mode;
    (*mode == GroupNetworkMode::None).then(|| NetworkIsolation {
        mode: NetworkMode::None,
        ..NetworkIsolation::default()
    })
}

/// Returns the name files that a task with its own network sees in place of the host's, in a root made of the
/// host's directories. A root that the job names has its own files, and other drivers make theirs.
fn names(
    task: &Task,
    config: &serde_json::Value,
    mounts: &[Mount],
    own: Option<&AllocNetwork>,
) -> Vec<Mount> {
    let has_root = config.get("root").is_some_and(|root| !root.is_null());
    if task.driver != native::NAME || has_root {
        return Vec::new();
    }
    let files = own.map_or(&[][..], |own| &own.files).iter();
    let free = files.filter(|(_, target)| mounts.iter().all(|mount| mount.task_path != *target));
    free.map(|(path, target)| Mount {
        task_path: (*target).to_owned(),
        host_path: path.display().to_string(),
        readonly: true,
        ..Mount::default()
    })
    .collect()
}

/// The field of the native driver's block that holds a tree of actions.
const ACTIONS: &str = "actions";

fn alloc_dir(dirs: &AllocDirs) -> std::path::PathBuf {
    dirs.alloc.clone()
}

fn task_resources(task: &TaskRef, address: &str, node: &NodeResources) -> TaskResources {
    let resources = &task.task().resources;
    let limit = resources.memory_limit().unwrap_or_default();
    let max = |max: Mb| match max {
        Mb::UNLIMITED => -1,
        max => max.0.into(),
    };
    TaskResources {
        cpu_mhz: task.cpu_mhz().into(),
        memory_mb: resources.memory.0.into(),
        memory_max_mb: resources.memory_max.map_or(0, max),
        linux: LinuxResources {
            cpu_shares: task.cpu_mhz().into(),
            cpuset_cpus: task
                .cores()
                .map_or_else(String::new, |cores| core_list(&cores.ids)),
            memory_limit_bytes: saturating::to_i64(limit.bytes()),
            ..cpu_part(task.cpu_mhz(), resources.cpu_hard_limit, node)
        },
        ports: task
            .desired
            .holding
            .ports
            .iter()
            .map(|port| PortMapping {
                label: port.label.clone(),
                value: port.value.into(),
                to: port.to.into(),
                host_ip: host_address(port, address).to_owned(),
            })
            .collect(),
    }
}

/// Returns the part of the node's processors for `mhz`, and the quota in each period if the task is limited to it.
/// The task's cgroup is set later.
fn cpu_part(mhz: u32, is_limit: bool, node: &NodeResources) -> LinuxResources {
    let period = u64::from(node.cores.max(1)) * u64::from(PERIOD_US);
    let total = node.total.cpu_mhz.max(1);
    let quota = (u64::from(mhz).saturating_mul(period) / total).min(period);
    LinuxResources {
        percent_ticks: f64::from(mhz) / f64::from(saturating::to_u32(total)),
        cpu_period: if is_limit { PERIOD_US.into() } else { 0 },
        cpu_quota: if is_limit {
            saturating::to_i64(quota)
        } else {
            0
        },
        ..LinuxResources::default()
    }
}

#[cfg(test)]
mod tests {
    use muster_domain::resources::Amount;

    use super::*;

    /// A quarter of a node of four cores is one of them.
    #[test]
    fn cpu_share_maps_to_cfs_quota_and_period() {
        let node = NodeResources {
            cores: 4,
            total: Amount {
                cpu_mhz: 8_000,
                ..Amount::default()
            },
            ..NodeResources::default()
        };

        let held = cpu_part(2_000, true, &node);
        let whole = cpu_part(9_000, true, &node);
        let free = cpu_part(2_000, false, &node);

        assert!((held.percent_ticks - 0.25).abs() < 1e-9, "{held:?}");
        assert_eq!((held.cpu_period, held.cpu_quota), (100_000, 100_000));
        assert_eq!(whole.cpu_quota, 400_000);
        assert!((free.percent_ticks - 0.25).abs() < 1e-9, "{free:?}");
        assert_eq!((free.cpu_period, free.cpu_quota), (0, 0));
    }
}
