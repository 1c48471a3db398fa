//! Reads resources of tasks, and networks.

use muster_domain::job::{CniNetwork, GroupNetwork, NetworkMode, PortAsk};
use muster_domain::limits;
use muster_domain::resources::{CpuMhz, TaskResources};
use serde_json::Value;

use crate::api::block::{Block, FieldNames};
use crate::api::job::table::{BlockForm, small_number};
use crate::api::resources::{Network, Port, Resources};

/// The `Resources` block.
pub(in crate::api) fn read_resources(
    block: &mut Block<'_>,
    default: &TaskResources,
) -> TaskResources {
    let mut read = Resources::read_fields(block, default);
    if read.cores > 0 {
        let cpu = block.value("CPU").and_then(small_number);
        if cpu.is_some_and(|mhz| mhz > 0) {
            block.fault("CPU", "stands beside `Cores`: a task asks for one of them");
        }
        // A task with exclusive cores sets no share.
        read.cpu = CpuMhz(cpu.unwrap_or(0));
    }
    read
}

/// A network of a group.
pub(in crate::api) fn read_group_network(
    network: &mut Block<'_>,
    default: &GroupNetwork,
) -> GroupNetwork {
    let default = GroupNetwork {
        mode: read_mode(network),
        ports: read_ports(network),
        ..default.clone()
    };
    Network::read_fields(network, &default)
}

/// The ports of a network.
pub(super) fn read_ports(network: &mut Block<'_>) -> Vec<PortAsk> {
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
            let default = PortAsk {
                fixed: is_fixed.then(|| value.unwrap_or(0)),
                ..PortAsk::default()
            };
            ports.push(Port::read_block(port, &default));
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
        cni.finish(&FieldNames::NONE);
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
