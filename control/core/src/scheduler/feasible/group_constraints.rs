//! The part of a group that rules of feasibility look at.

use muster_domain::job::{Constraint, DEFAULT_HOST_NETWORK, JobSpec, NetworkMode, TaskGroup};

use super::implied;

/// The data of a group that the rules look at. Groups with the same data get the same verdicts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::scheduler) struct GroupConstraints {
    pub(super) node_pool: String,
    pub(super) datacenters: Vec<String>,
    /// Constraints of the job, the group and its tasks, each once.
    pub(super) constraints: Vec<Constraint>,
    pub(super) drivers: Vec<String>,
    pub(super) volumes: Vec<VolumeAsk>,
    /// Host networks that the group's ports name.
    pub(super) host_networks: Vec<String>,
    /// The group has mode `bridge`.
    pub(super) bridge: bool,
    /// The CNI network of the group.
    pub(super) cni: Option<String>,
    /// Devices by name and conditions; their number is asked when a place is chosen.
    pub(super) devices: Vec<(String, Vec<Constraint>)>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct VolumeAsk {
    pub(super) source: String,
    pub(super) read_only: bool,
}

impl GroupConstraints {
    pub(in crate::scheduler) fn of(job: &JobSpec, group: &TaskGroup) -> Self {
        Self {
            node_pool: job.node_pool.clone(),
            datacenters: job.datacenters.clone(),
            constraints: constraints(job, group).cloned().collect(),
            drivers: drivers(group).cloned().collect(),
            volumes: volumes(group)
                .map(|(source, read_only)| VolumeAsk {
                    source: source.clone(),
                    read_only,
                })
                .collect(),
            host_networks: host_networks(group).cloned().collect(),
            bridge: wants_bridge(group),
            cni: cni_network(group).map(str::to_owned),
            devices: devices(group)
                .map(|(name, constraints)| (name.clone(), constraints.clone()))
                .collect(),
        }
    }

    /// Returns whether this is the result of [`Self::of`] for the group, without computing that.
    pub(in crate::scheduler) fn is_of(&self, job: &JobSpec, group: &TaskGroup) -> bool {
        let Self {
            node_pool,
            datacenters: own_datacenters,
            constraints: own_constraints,
            drivers: own_drivers,
            volumes: own_volumes,
            host_networks: own_networks,
            bridge,
            cni,
            devices: own_devices,
        } = self;
        *node_pool == job.node_pool
            && *own_datacenters == job.datacenters
            && own_constraints.iter().eq(constraints(job, group))
            && own_drivers.iter().eq(drivers(group))
            && own_volumes
                .iter()
                .map(|ask| (&ask.source, ask.read_only))
                .eq(volumes(group))
            && own_networks.iter().eq(host_networks(group))
            && *bridge == wants_bridge(group)
            && cni.as_deref() == cni_network(group)
            && own_devices
                .iter()
                .map(|(name, constraints)| (name, constraints))
                .eq(devices(group))
    }
}

/// Returns each of `all` once, at its first position.
fn each_once<'a, T: PartialEq + 'a>(
    all: impl Iterator<Item = &'a T> + Clone,
) -> impl Iterator<Item = &'a T> {
    let earlier = all.clone();
    let new = move |(at, one): &(usize, &T)| !earlier.clone().take(*at).any(|it| it == *one);
    all.enumerate().filter(new).map(|(_, one)| one)
}

fn constraints<'a>(job: &'a JobSpec, group: &'a TaskGroup) -> impl Iterator<Item = &'a Constraint> {
    let of_tasks = group.tasks.iter().flat_map(|task| &task.constraints);
    each_once(
        job.constraints
            .iter()
            .chain(&group.constraints)
            .chain(of_tasks)
            .filter(|constraint| !implied::is_implied(constraint, group)),
    )
}

fn drivers(group: &TaskGroup) -> impl Iterator<Item = &String> {
    each_once(group.tasks.iter().map(|task| &task.driver))
}

/// Returns the sources of volumes, each with whether the group asks only to read it.
fn volumes(group: &TaskGroup) -> impl Iterator<Item = (&String, bool)> {
    let asks = group.volumes.values();
    asks.map(|ask| (&ask.source, ask.read_only))
}

fn host_networks(group: &TaskGroup) -> impl Iterator<Item = &String> {
    let ports = group.ports();
    ports.map(|(_, port)| &port.host_network).filter(|name| {
        // A node that names no address still has the default network.
        !name.is_empty() && *name != DEFAULT_HOST_NETWORK
    })
}

fn wants_bridge(group: &TaskGroup) -> bool {
    let network = group.network.as_ref();
    network.is_some_and(|network| network.mode == NetworkMode::Bridge)
}

fn cni_network(group: &TaskGroup) -> Option<&str> {
    let network = group.network.as_ref()?;
    network.mode.cni().map(|cni| cni.name.as_str())
}

/// Returns the names and conditions of devices.
fn devices(group: &TaskGroup) -> impl Iterator<Item = (&String, &Vec<Constraint>)> {
    let devices = group.tasks.iter().flat_map(|task| &task.resources.devices);
    devices.map(|ask| (&ask.name, &ask.constraints))
}
