//! Converts a host's facts about itself to the protocol. Drivers of ours do not read them.

use crate::host::{Core, HostInfo, Topology};
use crate::plugin::proto::base;

pub(crate) fn host_to_proto(host: &HostInfo) -> base::NomadConfig {
    base::NomadConfig {
        driver: Some(base::NomadDriverConfig {
            client_max_port: (*host.ports.end()).into(),
            client_min_port: (*host.ports.start()).into(),
            topology: Some(topology_to_proto(&host.topology)),
        }),
    }
}

fn topology_to_proto(topology: &Topology) -> base::ClientTopology {
    let Topology {
        numa_nodes,
        distances,
        cores,
        withheld_mhz,
    } = topology;
    base::ClientTopology {
        node_ids: numa_nodes.clone(),
        distances: distances_to_proto(distances),
        cores: cores.iter().map(core_to_proto).collect(),
        // The sum over the cores is the value that placement uses.
        override_total_compute: 0,
        override_withold_compute: *withheld_mhz,
    }
}

/// Drivers trust the dimension for the number of values. A matrix that is not square is therefore not sent.
fn distances_to_proto(rows: &[Vec<u32>]) -> Option<base::ClientTopologySlit> {
    let is_square = !rows.is_empty() && rows.iter().all(|row| row.len() == rows.len());
    is_square.then(|| base::ClientTopologySlit {
        dimension: u32::try_from(rows.len()).expect("a machine has fewer than 2^32 NUMA nodes"),
        values: rows.concat(),
    })
}

fn core_to_proto(core: &Core) -> base::ClientTopologyCore {
    let Core {
        id,
        numa_node,
        socket,
        mhz,
        is_reserved,
    } = *core;
    base::ClientTopologyCore {
        socket_id: socket,
        node_id: numa_node,
        core_id: id,
        core_grade: base::CoreGrade::Performance.into(),
        disable: is_reserved,
        base_speed: 0,
        max_speed: 0,
        guess_speed: mhz,
    }
}
