//! Between our types and the protocol's messages.
//!
//! Messages from the other side are not trusted: an unknown enum number, a missing part or bytes
//! that are no msgpack are a [`DriverError::Protocol`], never a panic.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde_json::Value;

use crate::capabilities::{
    Attribute, Capabilities, Fingerprint, FsIsolation, Health, MountConfigs,
};
use crate::error::DriverError;
use crate::event::TaskEvent;
use crate::limits;
use crate::network::{NetworkIsolation, NetworkMode, NetworkOverride};
use crate::plugin::proto::{drivers, hclspec, structs};
use crate::schema::Spec;
use crate::task::{
    CgroupPlacement, Device, Dns, ExitResult, LinuxResources, Mount, PortMapping, TaskConfig,
    TaskHandle, TaskResources, TaskState, TaskStatus,
};

mod usage;

pub(crate) use self::usage::{stats_from_proto, stats_to_proto};

pub(crate) fn protocol(reason: impl Into<String>) -> DriverError {
    DriverError::Protocol {
        reason: reason.into(),
    }
}

pub(crate) fn config_to_msgpack(config: &Value) -> Result<Vec<u8>, DriverError> {
    rmp_serde::to_vec_named(config)
        .map_err(|error| protocol(format!("encode a configuration as msgpack: {error}")))
}

pub(crate) fn config_from_msgpack(bytes: &[u8]) -> Result<Value, DriverError> {
    if bytes.is_empty() {
        return Ok(Value::Null);
    }
    rmp_serde::from_slice(bytes)
        .map_err(|error| protocol(format!("decode a configuration from msgpack: {error}")))
}

fn path_to_proto(path: &Path) -> Result<String, DriverError> {
    path.to_str().map(str::to_owned).ok_or_else(|| {
        protocol(format!(
            "path {} is not UTF-8, which the protocol requires",
            path.display()
        ))
    })
}

/// Times before 1970 do not occur.
pub(crate) fn time_to_proto(time: SystemTime) -> prost_types::Timestamp {
    time.into()
}

pub(crate) fn time_from_proto(time: prost_types::Timestamp) -> Option<SystemTime> {
    SystemTime::try_from(time).ok()
}

/// A duration beyond what the protocol can say becomes its longest.
pub(crate) fn duration_to_proto(duration: Duration) -> prost_types::Duration {
    prost_types::Duration::try_from(duration).unwrap_or(prost_types::Duration {
        seconds: i64::MAX,
        nanos: 0,
    })
}

/// A missing or negative duration is zero.
pub(crate) fn duration_from_proto(duration: Option<prost_types::Duration>) -> Duration {
    duration
        .and_then(|duration| Duration::try_from(duration).ok())
        .unwrap_or_default()
}

pub(crate) fn task_config_to_proto(
    config: &TaskConfig,
) -> Result<drivers::TaskConfig, DriverError> {
    let TaskConfig {
        id,
        task_name,
        group_name,
        alloc_id,
        job_id,
        job_name,
        parent_job_id,
        namespace,
        node_id,
        node_name,
        config,
        env,
        device_env,
        resources,
        user,
        alloc_dir,
        task_dir,
        stdout_path,
        stderr_path,
        mounts,
        devices,
        network,
        dns,
        cgroup,
        kill_signal,
    } = config;
    Ok(drivers::TaskConfig {
        id: id.clone(),
        name: task_name.clone(),
        msgpack_driver_config: config_to_msgpack(config)?,
        env: env.clone(),
        device_env: device_env.clone(),
        resources: Some(resources_to_proto(resources)),
        mounts: mounts.iter().map(mount_to_proto).collect(),
        devices: devices.iter().map(device_to_proto).collect(),
        user: user.clone(),
        alloc_dir: path_to_proto(alloc_dir)?,
        stdout_path: path_to_proto(stdout_path)?,
        stderr_path: path_to_proto(stderr_path)?,
        task_group_name: group_name.clone(),
        job_name: job_name.clone(),
        alloc_id: alloc_id.clone(),
        network_isolation_spec: network.as_ref().map(network_to_proto),
        dns: dns.as_ref().map(dns_to_proto),
        job_id: job_id.clone(),
        namespace: namespace.clone(),
        node_name: node_name.clone(),
        node_id: node_id.clone(),
        parent_job_id: parent_job_id.clone(),
        cgroup: cgroup.as_ref().map(cgroup_to_proto).transpose()?,
        task_dir: path_to_proto(task_dir)?,
        kill_signal: kill_signal.clone().unwrap_or_default(),
    })
}

pub(crate) fn task_config_from_proto(
    message: drivers::TaskConfig,
) -> Result<TaskConfig, DriverError> {
    let alloc_dir = PathBuf::from(message.alloc_dir);
    let task_dir = if message.task_dir.is_empty() && !alloc_dir.as_os_str().is_empty() {
        alloc_dir.join(&message.name)
    } else {
        PathBuf::from(message.task_dir)
    };
    Ok(TaskConfig {
        id: message.id,
        task_name: message.name,
        group_name: message.task_group_name,
        alloc_id: message.alloc_id,
        job_id: message.job_id,
        job_name: message.job_name,
        parent_job_id: message.parent_job_id,
        namespace: message.namespace,
        node_id: message.node_id,
        node_name: message.node_name,
        config: config_from_msgpack(&message.msgpack_driver_config)?,
        env: message.env,
        device_env: message.device_env,
        resources: resources_from_proto(message.resources.unwrap_or_default()),
        user: message.user,
        alloc_dir,
        task_dir,
        stdout_path: message.stdout_path.into(),
        stderr_path: message.stderr_path.into(),
        mounts: message.mounts.into_iter().map(mount_from_proto).collect(),
        devices: message.devices.into_iter().map(device_from_proto).collect(),
        network: message
            .network_isolation_spec
            .map(network_from_proto)
            .transpose()?,
        dns: message.dns.map(|dns| Dns {
            servers: dns.servers,
            searches: dns.searches,
            options: dns.options,
        }),
        cgroup: message.cgroup.map(|cgroup| CgroupPlacement {
            dir: cgroup.dir.into(),
            joins: cgroup.joins.into_iter().map(PathBuf::from).collect(),
        }),
        kill_signal: Some(message.kill_signal).filter(|signal| !signal.is_empty()),
    })
}

fn cgroup_to_proto(placement: &CgroupPlacement) -> Result<drivers::CgroupPlacement, DriverError> {
    let CgroupPlacement { dir, joins } = placement;
    Ok(drivers::CgroupPlacement {
        dir: path_to_proto(dir)?,
        joins: joins
            .iter()
            .map(|path| path_to_proto(path))
            .collect::<Result<_, _>>()?,
    })
}

fn dns_to_proto(dns: &Dns) -> drivers::DnsConfig {
    drivers::DnsConfig {
        servers: dns.servers.clone(),
        searches: dns.searches.clone(),
        options: dns.options.clone(),
    }
}

fn mount_to_proto(mount: &Mount) -> drivers::Mount {
    drivers::Mount {
        task_path: mount.task_path.clone(),
        host_path: mount.host_path.clone(),
        readonly: mount.readonly,
        propagation_mode: mount.propagation_mode.clone(),
        selinux_label: mount.selinux_label.clone(),
    }
}

fn mount_from_proto(mount: drivers::Mount) -> Mount {
    Mount {
        task_path: mount.task_path,
        host_path: mount.host_path,
        readonly: mount.readonly,
        propagation_mode: mount.propagation_mode,
        selinux_label: mount.selinux_label,
    }
}

fn device_to_proto(device: &Device) -> drivers::Device {
    drivers::Device {
        task_path: device.task_path.clone(),
        host_path: device.host_path.clone(),
        cgroup_permissions: device.cgroup_permissions.clone(),
    }
}

fn device_from_proto(device: drivers::Device) -> Device {
    Device {
        task_path: device.task_path,
        host_path: device.host_path,
        cgroup_permissions: device.cgroup_permissions,
    }
}

fn resources_to_proto(resources: &TaskResources) -> drivers::Resources {
    let TaskResources {
        cpu_mhz,
        memory_mb,
        memory_max_mb,
        linux,
        ports,
    } = resources;
    drivers::Resources {
        allocated_resources: Some(drivers::AllocatedTaskResources {
            cpu: Some(drivers::AllocatedCpuResources {
                cpu_shares: *cpu_mhz,
            }),
            memory: Some(drivers::AllocatedMemoryResources {
                memory_mb: *memory_mb,
                memory_max_mb: *memory_max_mb,
            }),
        }),
        linux_resources: Some(drivers::LinuxResources {
            cpu_period: linux.cpu_period,
            cpu_quota: linux.cpu_quota,
            cpu_shares: linux.cpu_shares,
            memory_limit_bytes: linux.memory_limit_bytes,
            oom_score_adj: linux.oom_score_adj,
            cpuset_cpus: linux.cpuset_cpus.clone(),
            percent_ticks: linux.percent_ticks,
            cpuset_cgroup: linux.cpuset_cgroup.clone(),
        }),
        ports: ports
            .iter()
            .map(|port| drivers::PortMapping {
                label: port.label.clone(),
                value: port.value,
                to: port.to,
                host_ip: port.host_ip.clone(),
            })
            .collect(),
    }
}

fn resources_from_proto(message: drivers::Resources) -> TaskResources {
    let allocated = message.allocated_resources.unwrap_or_default();
    let memory = allocated.memory.unwrap_or_default();
    let linux = message.linux_resources.unwrap_or_default();
    TaskResources {
        cpu_mhz: allocated.cpu.unwrap_or_default().cpu_shares,
        memory_mb: memory.memory_mb,
        memory_max_mb: memory.memory_max_mb,
        linux: LinuxResources {
            cpu_period: linux.cpu_period,
            cpu_quota: linux.cpu_quota,
            cpu_shares: linux.cpu_shares,
            memory_limit_bytes: linux.memory_limit_bytes,
            oom_score_adj: linux.oom_score_adj,
            cpuset_cpus: linux.cpuset_cpus,
            percent_ticks: linux.percent_ticks,
            cpuset_cgroup: linux.cpuset_cgroup,
        },
        ports: message
            .ports
            .into_iter()
            .map(|port| PortMapping {
                label: port.label,
                value: port.value,
                to: port.to,
                host_ip: port.host_ip,
            })
            .collect(),
    }
}

pub(crate) fn network_to_proto(network: &NetworkIsolation) -> drivers::NetworkIsolationSpec {
    drivers::NetworkIsolationSpec {
        mode: network_mode_to_proto(network.mode).into(),
        path: network.path.clone(),
        labels: network.labels.clone(),
        hosts_config: (!network.hostname.is_empty()).then(|| drivers::HostsConfig {
            hostname: network.hostname.clone(),
            address: network.address.clone(),
        }),
    }
}

pub(crate) fn network_from_proto(
    message: drivers::NetworkIsolationSpec,
) -> Result<NetworkIsolation, DriverError> {
    let mode = network_mode_from_proto(message.mode)?;
    let hosts = message.hosts_config.unwrap_or_default();
    Ok(NetworkIsolation {
        mode,
        path: message.path,
        labels: message.labels,
        hostname: hosts.hostname,
        address: hosts.address,
    })
}

fn network_mode_to_proto(
    mode: NetworkMode,
) -> drivers::network_isolation_spec::NetworkIsolationMode {
    use drivers::network_isolation_spec::NetworkIsolationMode as Mode;
    match mode {
        NetworkMode::Host => Mode::Host,
        NetworkMode::Group => Mode::Group,
        NetworkMode::Task => Mode::Task,
        NetworkMode::None => Mode::None,
    }
}

fn network_mode_from_proto(mode: i32) -> Result<NetworkMode, DriverError> {
    use drivers::network_isolation_spec::NetworkIsolationMode as Mode;
    match Mode::try_from(mode) {
        Ok(Mode::Host) => Ok(NetworkMode::Host),
        Ok(Mode::Group) => Ok(NetworkMode::Group),
        Ok(Mode::Task) => Ok(NetworkMode::Task),
        Ok(Mode::None) => Ok(NetworkMode::None),
        Err(_) => Err(protocol(format!(
            "network isolation mode {mode} is not known"
        ))),
    }
}

pub(crate) fn network_override_to_proto(network: &NetworkOverride) -> drivers::NetworkOverride {
    drivers::NetworkOverride {
        port_map: network.port_map.clone(),
        addr: network.addr.clone(),
        auto_advertise: network.auto_advertise,
    }
}

pub(crate) fn network_override_from_proto(message: drivers::NetworkOverride) -> NetworkOverride {
    NetworkOverride {
        port_map: message.port_map,
        addr: message.addr,
        auto_advertise: message.auto_advertise,
    }
}

fn state_to_proto(state: TaskState) -> drivers::TaskState {
    match state {
        TaskState::Unknown => drivers::TaskState::Unknown,
        TaskState::Running => drivers::TaskState::Running,
        TaskState::Exited => drivers::TaskState::Exited,
    }
}

/// A state from a newer peer is one we cannot say.
fn state_from_proto(state: i32) -> TaskState {
    match drivers::TaskState::try_from(state) {
        Ok(drivers::TaskState::Unknown) | Err(_) => TaskState::Unknown,
        Ok(drivers::TaskState::Running) => TaskState::Running,
        Ok(drivers::TaskState::Exited) => TaskState::Exited,
    }
}

pub(crate) fn handle_to_proto(handle: &TaskHandle) -> Result<drivers::TaskHandle, DriverError> {
    let TaskHandle {
        version,
        driver,
        config,
        state,
        driver_state,
    } = handle;
    Ok(drivers::TaskHandle {
        version: *version,
        config: Some(task_config_to_proto(config)?),
        state: state_to_proto(*state).into(),
        driver_state: driver_state.clone(),
        driver: driver.clone(),
    })
}

pub(crate) fn handle_from_proto(message: drivers::TaskHandle) -> Result<TaskHandle, DriverError> {
    let config = message
        .config
        .ok_or_else(|| protocol("a task handle has no task configuration"))?;
    Ok(TaskHandle {
        version: message.version,
        driver: message.driver,
        config: task_config_from_proto(config)?,
        state: state_from_proto(message.state),
        driver_state: message.driver_state,
    })
}

pub(crate) fn exit_to_proto(result: &ExitResult) -> drivers::ExitResult {
    let ExitResult {
        exit_code,
        signal,
        oom_killed,
        status_known,
        err,
    } = result;
    drivers::ExitResult {
        exit_code: *exit_code,
        signal: *signal,
        oom_killed: *oom_killed,
        status_unknown: !status_known,
        err: err.clone().unwrap_or_default(),
    }
}

pub(crate) fn exit_from_proto(message: drivers::ExitResult) -> ExitResult {
    ExitResult {
        exit_code: message.exit_code,
        signal: message.signal,
        oom_killed: message.oom_killed,
        status_known: !message.status_unknown,
        err: Some(message.err).filter(|err| !err.is_empty()),
    }
}

pub(crate) fn status_to_proto(status: &TaskStatus) -> drivers::InspectTaskResponse {
    let TaskStatus {
        id,
        name,
        state,
        started_at,
        completed_at,
        result,
        attributes,
        network,
    } = status;
    drivers::InspectTaskResponse {
        task: Some(drivers::TaskStatus {
            id: id.clone(),
            name: name.clone(),
            state: state_to_proto(*state).into(),
            started_at: started_at.map(time_to_proto),
            completed_at: completed_at.map(time_to_proto),
            result: result.as_ref().map(exit_to_proto),
        }),
        driver: Some(drivers::TaskDriverStatus {
            attributes: attributes.clone(),
        }),
        network_override: network.as_ref().map(network_override_to_proto),
    }
}

/// A result that comes with a running task is none: some drivers always send one.
pub(crate) fn status_from_proto(
    message: drivers::InspectTaskResponse,
) -> Result<TaskStatus, DriverError> {
    let task = message
        .task
        .ok_or_else(|| protocol("the answer to InspectTask has no task"))?;
    let state = state_from_proto(task.state);
    Ok(TaskStatus {
        id: task.id,
        name: task.name,
        state,
        started_at: task.started_at.and_then(time_from_proto),
        completed_at: task
            .completed_at
            .filter(|_| state != TaskState::Running)
            .and_then(time_from_proto),
        result: task
            .result
            .filter(|_| state != TaskState::Running)
            .map(exit_from_proto),
        attributes: message.driver.unwrap_or_default().attributes,
        network: message.network_override.map(network_override_from_proto),
    })
}

pub(crate) fn event_to_proto(event: &TaskEvent) -> drivers::DriverTaskEvent {
    drivers::DriverTaskEvent {
        task_id: event.task_id.clone(),
        alloc_id: event.alloc_id.clone(),
        task_name: event.task_name.clone(),
        timestamp: Some(time_to_proto(event.at)),
        message: event.message.clone(),
        annotations: event.annotations.clone(),
    }
}

pub(crate) fn event_from_proto(message: drivers::DriverTaskEvent) -> TaskEvent {
    TaskEvent {
        task_id: message.task_id,
        alloc_id: message.alloc_id,
        task_name: message.task_name,
        at: message
            .timestamp
            .and_then(time_from_proto)
            .unwrap_or(SystemTime::UNIX_EPOCH),
        message: message.message,
        annotations: message.annotations,
    }
}

pub(crate) fn capabilities_to_proto(capabilities: &Capabilities) -> drivers::DriverCapabilities {
    use drivers::driver_capabilities as wire;
    let Capabilities {
        send_signals,
        exec,
        fs_isolation,
        network_modes,
        must_create_network,
        mount_configs,
        remote_tasks,
        disable_log_collection,
        dynamic_workload_users,
    } = capabilities;
    drivers::DriverCapabilities {
        send_signals: *send_signals,
        exec: *exec,
        fs_isolation: match fs_isolation {
            FsIsolation::None => wire::FsIsolation::None,
            FsIsolation::Chroot => wire::FsIsolation::Chroot,
            FsIsolation::Image => wire::FsIsolation::Image,
            FsIsolation::Unveil => wire::FsIsolation::Unveil,
        }
        .into(),
        network_isolation_modes: network_modes
            .iter()
            .map(|mode| network_mode_to_proto(*mode).into())
            .collect(),
        must_create_network: *must_create_network,
        mount_configs: match mount_configs {
            MountConfigs::Any => wire::MountConfigs::AnyMounts,
            MountConfigs::None => wire::MountConfigs::NoMounts,
        }
        .into(),
        remote_tasks: *remote_tasks,
        disable_log_collection: *disable_log_collection,
        dynamic_workload_users: *dynamic_workload_users,
    }
}

pub(crate) fn capabilities_from_proto(
    message: drivers::DriverCapabilities,
) -> Result<Capabilities, DriverError> {
    use drivers::driver_capabilities as wire;
    let fs_isolation = match wire::FsIsolation::try_from(message.fs_isolation) {
        Ok(wire::FsIsolation::None) => FsIsolation::None,
        Ok(wire::FsIsolation::Chroot) => FsIsolation::Chroot,
        Ok(wire::FsIsolation::Image) => FsIsolation::Image,
        Ok(wire::FsIsolation::Unveil) => FsIsolation::Unveil,
        Err(_) => {
            return Err(protocol(format!(
                "file system isolation {} is not known",
                message.fs_isolation
            )));
        }
    };
    Ok(Capabilities {
        send_signals: message.send_signals,
        exec: message.exec,
        fs_isolation,
        network_modes: message
            .network_isolation_modes
            .into_iter()
            .map(network_mode_from_proto)
            .collect::<Result<_, _>>()?,
        must_create_network: message.must_create_network,
        mount_configs: match wire::MountConfigs::try_from(message.mount_configs) {
            Ok(wire::MountConfigs::AnyMounts) => MountConfigs::Any,
            Ok(wire::MountConfigs::NoMounts) | Err(_) => MountConfigs::None,
        },
        remote_tasks: message.remote_tasks,
        disable_log_collection: message.disable_log_collection,
        dynamic_workload_users: message.dynamic_workload_users,
    })
}

pub(crate) fn fingerprint_to_proto(fingerprint: &Fingerprint) -> drivers::FingerprintResponse {
    use drivers::fingerprint_response::HealthState;
    let Fingerprint {
        attributes,
        health,
        health_description,
        err,
    } = fingerprint;
    drivers::FingerprintResponse {
        attributes: attributes
            .iter()
            .map(|(name, value)| (name.clone(), attribute_to_proto(value)))
            .collect(),
        health: match health {
            Health::Undetected => HealthState::Undetected,
            Health::Unhealthy => HealthState::Unhealthy,
            Health::Healthy => HealthState::Healthy,
        }
        .into(),
        health_description: health_description.clone(),
        err: err.clone().unwrap_or_default(),
    }
}

/// A health state that is not known is unhealthy: nothing is placed on a driver we misread.
pub(crate) fn fingerprint_from_proto(message: drivers::FingerprintResponse) -> Fingerprint {
    use drivers::fingerprint_response::HealthState;
    Fingerprint {
        attributes: message
            .attributes
            .into_iter()
            .filter_map(|(name, value)| Some((name, attribute_from_proto(value)?)))
            .collect(),
        health: match HealthState::try_from(message.health) {
            Ok(HealthState::Undetected) => Health::Undetected,
            Ok(HealthState::Unhealthy) | Err(_) => Health::Unhealthy,
            Ok(HealthState::Healthy) => Health::Healthy,
        },
        health_description: message.health_description,
        err: Some(message.err).filter(|err| !err.is_empty()),
    }
}

fn attribute_to_proto(attribute: &Attribute) -> structs::Attribute {
    use structs::attribute::Value as Wire;
    let (value, unit) = match attribute {
        Attribute::Bool(value) => (Wire::BoolVal(*value), ""),
        Attribute::Int(value, unit) => (Wire::IntVal(*value), unit.as_str()),
        Attribute::Float(value, unit) => (Wire::FloatVal(*value), unit.as_str()),
        Attribute::Text(value) => (Wire::StringVal(value.clone()), ""),
    };
    structs::Attribute {
        value: Some(value),
        unit: unit.to_owned(),
    }
}

fn attribute_from_proto(message: structs::Attribute) -> Option<Attribute> {
    use structs::attribute::Value as Wire;
    Some(match message.value? {
        Wire::BoolVal(value) => Attribute::Bool(value),
        Wire::IntVal(value) => Attribute::Int(value, message.unit),
        Wire::FloatVal(value) => Attribute::Float(value, message.unit),
        Wire::StringVal(value) => Attribute::Text(value),
    })
}

pub(crate) fn spec_to_proto(spec: &Spec) -> hclspec::Spec {
    use hclspec::spec::Block as Wire;
    let nested = |spec: &Spec| Some(Box::new(spec_to_proto(spec)));
    let block = match spec {
        Spec::Object(attributes) => Wire::Object(hclspec::Object {
            attributes: attributes
                .iter()
                .map(|(name, spec)| (name.clone(), spec_to_proto(spec)))
                .collect(),
        }),
        Spec::Array(values) => Wire::Array(hclspec::Array {
            values: values.iter().map(spec_to_proto).collect(),
        }),
        Spec::Attr {
            name,
            type_expr,
            required,
        } => Wire::Attr(hclspec::Attr {
            name: name.clone(),
            r#type: type_expr.clone(),
            required: *required,
        }),
        Spec::Block {
            name,
            required,
            nested: inner,
        } => Wire::BlockValue(Box::new(hclspec::Block {
            name: name.clone(),
            required: *required,
            nested: nested(inner),
        })),
        Spec::BlockAttrs {
            name,
            type_expr,
            required,
        } => Wire::BlockAttrs(hclspec::BlockAttrs {
            name: name.clone(),
            r#type: type_expr.clone(),
            required: *required,
        }),
        Spec::BlockList {
            name,
            items_min,
            items_max,
            nested: inner,
        } => Wire::BlockList(Box::new(hclspec::BlockList {
            name: name.clone(),
            min_items: *items_min,
            max_items: *items_max,
            nested: nested(inner),
        })),
        Spec::BlockSet {
            name,
            items_min,
            items_max,
            nested: inner,
        } => Wire::BlockSet(Box::new(hclspec::BlockSet {
            name: name.clone(),
            min_items: *items_min,
            max_items: *items_max,
            nested: nested(inner),
        })),
        Spec::BlockMap {
            name,
            labels,
            nested: inner,
        } => Wire::BlockMap(Box::new(hclspec::BlockMap {
            name: name.clone(),
            labels: labels.clone(),
            nested: nested(inner),
        })),
        Spec::Default { primary, default } => Wire::Default(Box::new(hclspec::Default {
            primary: nested(primary),
            default: nested(default),
        })),
        Spec::Literal(value) => Wire::Literal(hclspec::Literal {
            value: value.clone(),
        }),
    };
    hclspec::Spec { block: Some(block) }
}

/// `None` for a schema without a node, which is how drivers say that they have none.
pub(crate) fn spec_from_proto(message: hclspec::Spec) -> Result<Option<Spec>, DriverError> {
    match message.block {
        None => Ok(None),
        Some(block) => spec_node(block, limits::SCHEMA_DEPTH_MAX).map(Some),
    }
}

fn spec_child(
    message: Option<Box<hclspec::Spec>>,
    depth_left: usize,
) -> Result<Box<Spec>, DriverError> {
    let block = message
        .and_then(|spec| spec.block)
        .ok_or_else(|| protocol("a configuration schema has an empty node"))?;
    Ok(Box::new(spec_node(block, depth_left)?))
}

fn spec_node(block: hclspec::spec::Block, depth_left: usize) -> Result<Spec, DriverError> {
    use hclspec::spec::Block as Wire;
    let depth_left = depth_left.checked_sub(1).ok_or_else(|| {
        protocol(format!(
            "a configuration schema is deeper than {} nodes",
            limits::SCHEMA_DEPTH_MAX
        ))
    })?;
    let child = |spec| spec_child(spec, depth_left);
    Ok(match block {
        Wire::Object(object) => Spec::Object(
            object
                .attributes
                .into_iter()
                .map(|(name, spec)| Ok((name, *child(Some(Box::new(spec)))?)))
                .collect::<Result<_, DriverError>>()?,
        ),
        Wire::Array(array) => Spec::Array(
            array
                .values
                .into_iter()
                .map(|spec| Ok(*child(Some(Box::new(spec)))?))
                .collect::<Result<_, DriverError>>()?,
        ),
        Wire::Attr(attr) => Spec::Attr {
            name: attr.name,
            type_expr: attr.r#type,
            required: attr.required,
        },
        Wire::BlockValue(block) => Spec::Block {
            name: block.name,
            required: block.required,
            nested: child(block.nested)?,
        },
        Wire::BlockAttrs(block) => Spec::BlockAttrs {
            name: block.name,
            type_expr: block.r#type,
            required: block.required,
        },
        Wire::BlockList(block) => Spec::BlockList {
            name: block.name,
            items_min: block.min_items,
            items_max: block.max_items,
            nested: child(block.nested)?,
        },
        Wire::BlockSet(block) => Spec::BlockSet {
            name: block.name,
            items_min: block.min_items,
            items_max: block.max_items,
            nested: child(block.nested)?,
        },
        Wire::BlockMap(block) => Spec::BlockMap {
            name: block.name,
            labels: block.labels,
            nested: child(block.nested)?,
        },
        Wire::Default(default) => Spec::Default {
            primary: child(default.primary)?,
            default: child(default.default)?,
        },
        Wire::Literal(literal) => Spec::Literal(literal.value),
    })
}

#[cfg(test)]
mod tests;
