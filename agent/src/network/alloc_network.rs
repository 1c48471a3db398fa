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
    /// Files of the host that its tasks see, and where.
    pub(crate) files: Vec<(PathBuf, &'static str)>,
    /// The host name of the allocation in it.
    pub(crate) host_name: String,
    pub(crate) namespace: OwnedFd,
    /// `None` if CNI plugins set it up.
    pub(crate) host_veth: Option<HostVeth>,
    /// The driver's own description, if it made the namespace.
    pub(crate) made_by_driver: Option<NetworkIsolation>,
}

/// The device that leads to an allocation, and what leads to the device.
#[derive(Debug)]
pub(crate) struct HostVeth {
    pub(crate) index: u32,
    pub(crate) address: Ipv4Addr,
    pub(crate) ports: Vec<PublishedKey>,
}

impl AllocNetwork {
    /// A network that CNI plugins set up in `namespace`.
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

    /// Takes what the driver that made the namespace says of it.
    pub(crate) fn made_by_driver(&mut self, isolation: Option<NetworkIsolation>) {
        self.made_by_driver = isolation;
    }

    /// The namespace as passed to drivers, with what tasks with a root of their own find in `/etc/hosts`.
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
