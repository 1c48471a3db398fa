//! Ports, cores and devices of a node: each is held by one allocation at a time.

use muster_domain::resources::{AllocatedPort, HeldDevices, Holding};

/// The holdings of one node. The lists are sorted; an item that two allocations hold appears twice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeHoldings {
    /// Port and address; an empty address means every one.
    ports: Vec<(u16, Box<str>)>,
    cores: Vec<u16>,
    /// `vendor/type/name` and id.
    devices: Vec<(Box<str>, Box<str>)>,
}

fn insert<T: Ord>(list: &mut Vec<T>, item: T) {
    let at = list.partition_point(|other| *other < item);
    list.insert(at, item);
}

fn remove<T: Ord>(list: &mut Vec<T>, item: &T) {
    if let Ok(at) = list.binary_search(item) {
        list.remove(at);
    }
}

fn port_key(port: &AllocatedPort) -> (u16, Box<str>) {
    (port.value, port.host_ip.as_str().into())
}

fn device_keys(devices: &HeldDevices) -> impl Iterator<Item = (Box<str>, Box<str>)> + '_ {
    let group = devices.group.as_str();
    devices
        .ids
        .iter()
        .map(move |id| (group.into(), id.as_str().into()))
}

impl NodeHoldings {
    /// Adds the holding of one allocation.
    pub(crate) fn take(&mut self, holding: &Holding) {
        let Holding {
            ports,
            cores,
            devices,
        } = holding;
        for port in ports {
            insert(&mut self.ports, port_key(port));
        }
        for core in cores.iter().flat_map(|cores| &cores.ids) {
            insert(&mut self.cores, *core);
        }
        for key in devices.iter().flat_map(device_keys) {
            insert(&mut self.devices, key);
        }
    }

    /// Removes the holding of one allocation.
    pub(crate) fn give_back(&mut self, holding: &Holding) {
        let Holding {
            ports,
            cores,
            devices,
        } = holding;
        for port in ports {
            remove(&mut self.ports, &port_key(port));
        }
        for core in cores.iter().flat_map(|cores| &cores.ids) {
            remove(&mut self.cores, core);
        }
        for key in devices.iter().flat_map(device_keys) {
            remove(&mut self.devices, &key);
        }
    }

    /// Returns the kind of an item of `holding` that is held already, or that appears twice within it, if there is one.
    pub(crate) fn conflict(&self, holding: &Holding) -> Option<&'static str> {
        let mut held = self.clone();
        for port in &holding.ports {
            if held.has_port(port.value, &port.host_ip) {
                return Some("ports");
            }
            insert(&mut held.ports, port_key(port));
        }
        for core in holding.cores.iter().flat_map(|cores| &cores.ids) {
            if held.has_core(*core) {
                return Some("cores");
            }
            insert(&mut held.cores, *core);
        }
        for key in holding.devices.iter().flat_map(device_keys) {
            if held.devices.binary_search(&key).is_ok() {
                return Some("devices");
            }
            insert(&mut held.devices, key);
        }
        None
    }

    /// Returns whether `port` is held on the address `ip`; an empty `ip` means every address.
    pub(crate) fn has_port(&self, port: u16, ip: &str) -> bool {
        let from = self.ports.partition_point(|(held, _)| *held < port);
        self.ports[from..]
            .iter()
            .take_while(|(held, _)| *held == port)
            .any(|(_, held)| ip.is_empty() || held.is_empty() || **held == *ip)
    }

    pub(crate) fn has_core(&self, core: u16) -> bool {
        self.cores.binary_search(&core).is_ok()
    }

    pub(crate) fn has_device(&self, group: &str, id: &str) -> bool {
        self.devices
            .binary_search_by(|(held, held_id)| (&**held, &**held_id).cmp(&(group, id)))
            .is_ok()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ports.is_empty() && self.cores.is_empty() && self.devices.is_empty()
    }

    /// Returns ports and addresses, sorted.
    pub fn ports(&self) -> impl Iterator<Item = (u16, &str)> {
        self.ports.iter().map(|(port, ip)| (*port, &**ip))
    }
}
