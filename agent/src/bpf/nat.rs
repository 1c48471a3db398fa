//! Host veths of allocations and ports published through them, as loaded.

use std::{
    collections::BTreeSet,
    io,
    net::Ipv4Addr,
    os::fd::{AsFd, OwnedFd},
    path::Path,
    sync::Arc,
};

use muster_ebpf_common::nat::{HostVethEntry, PublishedKey, PublishedPort};

use crate::bpf::{
    map::{PinnedMap, open_pinned, run_on_packet},
    open::{OpenBpfError, open_map},
};

/// The program for packets that enter by a device.
pub(super) const INWARD: &str = "nat_in";
/// The program for packets that leave by a device.
pub(super) const OUTWARD: &str = "nat_out";

/// The maps of the stem `nat`, and its programs, which the agent attaches to devices.
#[derive(Debug)]
pub(super) struct Nat {
    host_veths: PinnedMap<u32, HostVethEntry>,
    published: PinnedMap<PublishedKey, PublishedPort>,
    programs: [Arc<OwnedFd>; 2],
}

impl Nat {
    pub(super) fn open(maps: &Path, programs: &Path) -> Result<Self, OpenBpfError> {
        let program = |name| {
            let path = programs.join(name);
            open_pinned(&path)
                .map(Arc::new)
                .map_err(|source| OpenBpfError::Pins { path, source })
        };
        Ok(Self {
            host_veths: PinnedMap::shared(open_map(maps, "HOST_VETHS")?),
            published: PinnedMap::shared(open_map(maps, "PUBLISHED")?),
            programs: [program(INWARD)?, program(OUTWARD)?],
        })
    }

    pub(super) fn programs(&self) -> [Arc<OwnedFd>; 2] {
        self.programs.clone()
    }

    /// Runs the program for packets that enter or leave by `device` on one packet.
    pub(super) fn test_packet(
        &self,
        inward: bool,
        packet: &[u8],
        device: u32,
    ) -> io::Result<(u32, Vec<u8>)> {
        let program = &self.programs[usize::from(!inward)];
        run_on_packet(program.as_fd(), packet, device)
    }

    pub(super) fn set_host_veth(&self, host_veth: u32, address: Ipv4Addr) -> io::Result<()> {
        let address = address.octets();
        self.host_veths
            .set_all(host_veth, HostVethEntry { address })
    }

    pub(super) fn publish(&self, key: PublishedKey, leads_to: PublishedPort) -> io::Result<()> {
        self.published.set_all(key, leads_to)
    }

    /// Removes the host veth and the published ports that lead through it.
    pub(super) fn remove(&self, host_veth: u32, ports: &[PublishedKey]) -> io::Result<()> {
        for key in ports {
            if self.published_host_veth(*key)? == Some(host_veth) {
                self.published.remove(*key)?;
            }
        }
        self.host_veths.remove(host_veth).map(drop)
    }

    /// Every published port.
    #[cfg(test)]
    pub(super) fn ports(&self) -> io::Result<Vec<PublishedKey>> {
        self.published.keys()
    }

    pub(super) fn host_veths(&self) -> io::Result<BTreeSet<u32>> {
        Ok(self.host_veths.keys()?.into_iter().collect())
    }

    /// Removes host veths whose devices are gone, and the ports that lead through them.
    pub(super) fn forget(&self, gone: &BTreeSet<u32>) -> io::Result<()> {
        if gone.is_empty() {
            return Ok(());
        }
        for key in self.published.keys()? {
            let host_veth = self.published_host_veth(key)?;
            if host_veth.is_some_and(|host_veth| gone.contains(&host_veth)) {
                self.published.remove(key)?;
            }
        }
        for host_veth in gone {
            self.host_veths.remove(*host_veth)?;
        }
        Ok(())
    }

    fn published_host_veth(&self, key: PublishedKey) -> io::Result<Option<u32>> {
        let found = self.published.lookup(key)?;
        Ok(found.and_then(|found| found.first().map(|published| published.host_veth)))
    }
}
