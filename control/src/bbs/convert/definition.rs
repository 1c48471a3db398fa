//! Definitions of tasks: fields that Muster does not support are refused by name.

use muster_domain::fault::Fault;
use muster_domain::job::DEFAULT_PRIORITY;
use muster_domain::one_off::{Definition, EgressRule, IcmpInfo, PortRange};

use super::action;
use crate::bbs::proto::{self, SecurityGroupRule, TaskDefinition};

/// The definition in `message`. Faults of the message itself are added to `faults`; the validation finds the others.
pub(crate) fn definition(message: TaskDefinition, faults: &mut Vec<Fault>) -> Definition {
    refuse(&message, faults);
    let TaskDefinition {
        rootfs,
        env,
        action,
        disk_mb,
        memory_mb,
        cpu_weight,
        privileged,
        log_source,
        log_guid,
        metrics_guid,
        result_file,
        completion_callback_url,
        annotation,
        egress_rules,
        cached_dependencies: _,
        legacy_download_user: _,
        trusted_system_certificates_path: _,
        volume_mounts: _,
        network: _,
        placement_tags,
        max_pids,
        certificate_properties: _,
        image_username: _,
        image_password: _,
        image_layers: _,
        log_rate_limit: _,
        metric_tags: _,
        volume_mounted_files: _,
    } = message;
    Definition {
        rootfs,
        env: action::from_env(env),
        action: action::action(action, "action", faults),
        disk_mb,
        memory_mb,
        cpu_weight,
        max_pids,
        privileged,
        log_source,
        log_guid,
        metrics_guid,
        result_file,
        completion_callback_url,
        annotation,
        egress_rules: egress_rules.into_iter().map(from_rule).collect(),
        placement_tags,
        priority: DEFAULT_PRIORITY,
        start_timeout_ms: 0,
        retention_ms: 0,
        datacenters: Vec::new(),
        node_pool: String::new(),
        constraints: Vec::new(),
        // In Diego a task without its result file has failed.
        result_required: true,
    }
}

/// Adds a fault for each field that has a value and is not supported.
fn refuse(message: &TaskDefinition, faults: &mut Vec<Fault>) {
    let network = message.network.as_ref();
    let certificate = message.certificate_properties.as_ref();
    let rate = message.log_rate_limit.as_ref();
    for (field, given) in [
        (
            "cached_dependencies",
            !message.cached_dependencies.is_empty(),
        ),
        (
            "legacy_download_user",
            !message.legacy_download_user.is_empty(),
        ),
        (
            "trusted_system_certificates_path",
            !message.trusted_system_certificates_path.is_empty(),
        ),
        ("volume_mounts", !message.volume_mounts.is_empty()),
        (
            "network",
            network.is_some_and(|it| !it.properties.is_empty()),
        ),
        (
            "certificate_properties",
            certificate.is_some_and(|it| !it.organizational_unit.is_empty()),
        ),
        ("image_username", !message.image_username.is_empty()),
        ("image_password", !message.image_password.is_empty()),
        ("image_layers", !message.image_layers.is_empty()),
        // -1 means no limit.
        (
            "log_rate_limit",
            rate.is_some_and(|it| it.bytes_per_second != -1),
        ),
        ("metric_tags", !message.metric_tags.is_empty()),
        (
            "volume_mounted_files",
            !message.volume_mounted_files.is_empty(),
        ),
    ] {
        if given {
            faults.push(Fault::new(field, "is not carried out: leave it out"));
        }
    }
}

fn from_rule(rule: SecurityGroupRule) -> EgressRule {
    let SecurityGroupRule {
        protocol,
        destinations,
        ports,
        port_range,
        icmp_info,
        log,
        annotations,
    } = rule;
    EgressRule {
        protocol,
        destinations,
        ports,
        port_range: port_range.map(|proto::PortRange { start, end }| PortRange { start, end }),
        icmp_info: icmp_info
            .map(|proto::IcmpInfo { r#type, code }| IcmpInfo { kind: r#type, code }),
        log,
        annotations,
    }
}

/// Converts the definition into Diego's message, which has no fields for Muster's own.
pub(super) fn message(definition: &Definition) -> TaskDefinition {
    let Definition {
        rootfs,
        env,
        action,
        disk_mb,
        memory_mb,
        cpu_weight,
        max_pids,
        privileged,
        log_source,
        log_guid,
        metrics_guid,
        result_file,
        completion_callback_url,
        annotation,
        egress_rules,
        placement_tags,
        priority: _,
        start_timeout_ms: _,
        retention_ms: _,
        datacenters: _,
        node_pool: _,
        constraints: _,
        result_required: _,
    } = definition;
    TaskDefinition {
        rootfs: rootfs.clone(),
        env: action::env(env),
        action: Some(action::message(action)),
        disk_mb: *disk_mb,
        memory_mb: *memory_mb,
        cpu_weight: *cpu_weight,
        privileged: *privileged,
        log_source: log_source.clone(),
        log_guid: log_guid.clone(),
        metrics_guid: metrics_guid.clone(),
        result_file: result_file.clone(),
        completion_callback_url: completion_callback_url.clone(),
        annotation: annotation.clone(),
        egress_rules: egress_rules.iter().map(rule).collect(),
        placement_tags: placement_tags.clone(),
        max_pids: *max_pids,
        ..TaskDefinition::default()
    }
}

fn rule(rule: &EgressRule) -> SecurityGroupRule {
    let EgressRule {
        protocol,
        destinations,
        ports,
        port_range,
        icmp_info,
        log,
        annotations,
    } = rule;
    SecurityGroupRule {
        protocol: protocol.clone(),
        destinations: destinations.clone(),
        ports: ports.clone(),
        port_range: port_range.map(|PortRange { start, end }| proto::PortRange { start, end }),
        icmp_info: icmp_info.map(|IcmpInfo { kind, code }| proto::IcmpInfo { r#type: kind, code }),
        log: *log,
        annotations: annotations.clone(),
    }
}
