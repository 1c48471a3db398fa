//! The network of one allocation.

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;

use muster_driver::NetworkIsolation;
use muster_ebpf_common::nat::PublishedKey;

/// The network of one allocation.
#[derive(Debug)]
pub(crate) struct AllocNetwork {
    pub(crate) address: IpAddr,
    /// Files of the host that the tasks see, and their paths in a task.
    pub(crate) files: Vec<(PathBuf, &'static str)>,
    /// The host name of the allocation in its network.
    pub(crate) host_name: String,
    pub(crate) namespace: OwnedFd,
    /// `None` if CNI plugins set the network up.
    pub(crate) host_veth: Option<HostVeth>,
    /// The driver's own description, if it made the namespace.
    pub(crate) made_by_driver: Option<NetworkIsolation>,
}

/// The device that leads to an allocation, and the parts of the machine that lead to the device.
#[derive(Debug)]
pub(crate) struct HostVeth {
    pub(crate) index: u32,
    pub(crate) address: Ipv4Addr,
    pub(crate) ports: Vec<PublishedKey>,
}

impl AllocNetwork {
    /// Returns the network that CNI plugins set up in `namespace`.
    pub(crate) fn behind_plugins(
        address: IpAddr,
        files: Vec<(PathBuf, &'static str)>,
        host_name: String,
        namespace: OwnedFd,
    ) -> Self {
        Self {
            address,
            files,
            host_name,
            namespace,
            host_veth: None,
            made_by_driver: None,
        }
    }

    /// Stores the description by the driver that made the namespace.
    pub(crate) fn made_by_driver(&mut self, isolation: Option<NetworkIsolation>) {
        self.made_by_driver = isolation;
    }

    /// Returns the namespace as passed to drivers, with the `/etc/hosts` entry for tasks with their own root.
    pub(crate) fn isolation(&self) -> NetworkIsolation {
        let made = self.made_by_driver.clone();
        let mut isolation = made.unwrap_or_else(|| NetworkIsolation {
            mode: muster_driver::NetworkMode::Group,
            path: self.path(),
            ..NetworkIsolation::default()
        });
        if isolation.hostname.is_empty() {
            isolation.hostname.clone_from(&self.host_name);
        }
        isolation.address = self.address.to_string();
        isolation
    }

    /// A path by which other processes enter the namespace, as long as this agent runs.
    fn path(&self) -> String {
        format!(
            "/proc/{}/fd/{}",
            std::process::id(),
            self.namespace.as_raw_fd()
        )
    }
}
