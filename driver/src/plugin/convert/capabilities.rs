//! Converts a driver's capabilities and its state to and from the protocol.

use crate::capabilities::{
    Attribute, Capabilities, Fingerprint, FsIsolation, Health, MountConfigs,
};
use crate::error::DriverError;
use crate::plugin::convert::{network_mode_from_proto, network_mode_to_proto, protocol};
use crate::plugin::proto::{drivers, structs};

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
        joins_cgroup,
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
        joins_cgroup: *joins_cgroup,
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
        joins_cgroup: message.joins_cgroup,
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

/// An unknown health state counts as unhealthy, so that nothing is placed on a driver whose state is unclear.
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
