//! The cores of the machine and their positions, as drivers receive them.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::Path;

use muster_driver::{Core, Topology};

use super::cpu;
use super::facts::read;

/// The directory in which the kernel lists cores and memory by NUMA node.
const NUMA: &str = "/sys/devices/system/node";

/// The machine's cores. Tasks run on those of `usable`; on all of them if it is empty.
pub(crate) fn topology(usable: &[u16], withheld_mhz: u64) -> Topology {
    let info = read("/proc/cpuinfo");
    let mhz = cpu::core_mhz(&info);
    let numa = Numa::read(Path::new(NUMA));
    let core = |id: u32| Core {
        id,
        numa_node: numa.node_of(id),
        socket: socket_of(id),
        mhz,
        is_reserved: !usable.is_empty() && u16::try_from(id).is_ok_and(|id| !usable.contains(&id)),
    };
    Topology {
        cores: processors(&info).into_iter().map(core).collect(),
        numa_nodes: numa.nodes.keys().copied().collect(),
        distances: numa.distances(),
        withheld_mhz,
    }
}

/// Numbers of the cores that `/proc/cpuinfo` lists.
fn processors(info: &str) -> Vec<u32> {
    let numbers = info
        .lines()
        .filter_map(|line| line.strip_prefix("processor")?.split_once(':'));
    let numbers = numbers.filter_map(|(_, number)| number.trim().parse().ok());
    numbers.collect()
}

/// The socket of a core; 0 where the kernel does not report it, as on some virtual machines.
fn socket_of(core: u32) -> u32 {
    let path = format!("/sys/devices/system/cpu/cpu{core}/topology/physical_package_id");
    read(&path).trim().parse().unwrap_or_default()
}

/// The NUMA nodes. A kernel without NUMA has one node with every core.
#[derive(Debug)]
struct Numa {
    nodes: BTreeMap<u32, Node>,
}

#[derive(Debug, Default)]
struct Node {
    cores: Vec<RangeInclusive<u32>>,
    /// The distance to each node, in order.
    distances: Vec<u32>,
}

impl Numa {
    fn read(dir: &Path) -> Self {
        let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
        let number = |name: &str| name.strip_prefix("node")?.parse().ok();
        let mut nodes: BTreeMap<u32, Node> = entries
            .filter_map(|entry| {
                let id = number(entry.file_name().to_str()?)?;
                let text = |file| std::fs::read_to_string(entry.path().join(file));
                let node = Node {
                    cores: ranges(&text("cpulist").ok()?),
                    distances: distances(&text("distance").unwrap_or_default()),
                };
                Some((id, node))
            })
            .collect();
        if nodes.is_empty() {
            nodes.insert(0, Node::default());
        }
        Self { nodes }
    }

    fn node_of(&self, core: u32) -> u32 {
        let mut nodes = self.nodes.iter();
        let node = nodes.find(|(_, node)| node.cores.iter().any(|range| range.contains(&core)));
        node.map_or(0, |(id, _)| *id)
    }

    /// The distances, with a row for each node.
    fn distances(&self) -> Vec<Vec<u32>> {
        let rows = self.nodes.values();
        rows.map(|node| node.distances.clone()).collect()
    }
}

fn distances(text: &str) -> Vec<u32> {
    let numbers = text.split_whitespace();
    numbers.filter_map(|number| number.parse().ok()).collect()
}

/// Parses a list such as `0-3,8`; invalid parts are left out.
fn ranges(list: &str) -> Vec<RangeInclusive<u32>> {
    let parts = list.trim().split(',');
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse().ok()?..=last.parse().ok()?)
    };
    parts.filter_map(range).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn numa_nodes_of_cores_come_from_sysfs() {
        let dir = tempfile::tempdir().unwrap();
        for (node, cores, distance) in [
            ("node0", "0-1,4\n", "10 21\n"),
            ("node2", "2-3\n", "21 10\n"),
        ] {
            let path = dir.path().join(node);
            fs::create_dir(&path).unwrap();
            fs::write(path.join("cpulist"), cores).unwrap();
            fs::write(path.join("distance"), distance).unwrap();
        }
        fs::write(dir.path().join("online"), "0,2\n").unwrap();

        let numa = Numa::read(dir.path());

        let nodes: Vec<u32> = (0..5).map(|core| numa.node_of(core)).collect();
        assert_eq!(nodes, [0, 0, 2, 2, 0]);
        assert_eq!(numa.distances(), [[10, 21], [21, 10]]);
    }

    #[test]
    fn a_kernel_without_numa_has_one_node() {
        let numa = Numa::read(Path::new("/nowhere"));

        assert_eq!(numa.node_of(7), 0);
        assert_eq!(numa.nodes.len(), 1);
    }

    /// Placement calculates with the sum of these cores.
    #[test]
    fn topology_matches_the_gathered_facts() {
        let facts = super::super::gather(Path::new("/"));

        let topology = topology(&[0], 100);

        let total: u64 = topology.cores.iter().map(|core| core.mhz).sum();
        assert_eq!(total, facts.total.cpu_mhz);
        let free = topology.cores.iter().filter(|core| !core.is_reserved);
        assert_eq!(free.map(|core| core.id).collect::<Vec<_>>(), [0]);
        assert_eq!(topology.withheld_mhz, 100);
    }
}
