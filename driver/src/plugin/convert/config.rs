//! A task's configuration, to and from the protocol.

use std::path::PathBuf;

use crate::error::DriverError;
use crate::plugin::convert::{
    config_from_msgpack, config_to_msgpack, duration_from_proto, duration_to_proto,
    network_from_proto, network_to_proto, path_to_proto,
};
use crate::plugin::proto::drivers;
use crate::task::{
    CgroupPlacement, Device, Dns, LinuxResources, Mount, PortMapping, TaskConfig, TaskResources,
    WithoutHost,
};

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
        without_host,
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
        without_host: without_host.map(|WithoutHost { max, kill_timeout }| drivers::WithoutHost {
            max: Some(duration_to_proto(max)),
            kill_timeout: Some(duration_to_proto(kill_timeout)),
        }),
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
        without_host: message.without_host.map(|without| WithoutHost {
            max: duration_from_proto(without.max),
            kill_timeout: duration_from_proto(without.kill_timeout),
        }),
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
