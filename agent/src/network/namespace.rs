//! Network namespaces of allocations.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

use muster_domain::id::AllocId;
use muster_domain::job::TaskGroup;

use crate::limits::BRIDGE_PROCESSES_MAX;
use crate::network::bridge::error::BridgeError;
use crate::resources::cgroup::{NodeTree, TaskCgroup};

/// The namespace that a driver named, unless that is the machine's own.
pub(crate) fn namespace_at(path: &str) -> Result<OwnedFd, BridgeError> {
    let refused = |reason: String| BridgeError::NoNamespace {
        path: path.to_owned(),
        reason,
    };
    // The open must not block, for any kind of file that the driver named.
    let namespace = File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)
        .map_err(|error| refused(error.to_string()))?;
    let namespace = OwnedFd::from(namespace);
    if !is_namespace(&namespace).map_err(|error| refused(error.to_string()))? {
        return Err(refused("it is not a namespace".to_owned()));
    }
    let inode = |file: io::Result<std::fs::Metadata>| file.map(|metadata| metadata.ino()).ok();
    let namespace = File::from(namespace);
    let own = inode(std::fs::metadata("/proc/self/ns/net"));
    if own.is_none() || inode(namespace.metadata()) == own {
        return Err(refused("it is the machine's own".to_owned()));
    }
    Ok(namespace.into())
}

/// Whether the file is a namespace.
pub(crate) fn is_namespace(file: &OwnedFd) -> io::Result<bool> {
    Ok(rustix::fs::fstatfs(file)?.f_type == NSFS_MAGIC)
}

/// The magic number of the file system of namespaces (`NSFS_MAGIC` in `linux/magic.h`).
pub(crate) const NSFS_MAGIC: i64 = 0x6e73_6673;

/// Network namespaces of an allocation's processes that are not this agent's own.
pub(crate) fn namespaces_of(tree: &NodeTree, alloc_id: AllocId, group: &TaskGroup) -> Vec<OwnedFd> {
    let own = std::fs::metadata("/proc/self/ns/net")
        .map(|own| own.ino())
        .ok();
    let mut found = Vec::new();
    let mut seen = std::collections::BTreeSet::new();
    for task in &group.tasks {
        let cgroup = TaskCgroup::open(tree, &alloc_id.to_string(), &task.name);
        let Ok(cgroup) = cgroup else { continue };
        let processes = std::fs::read_to_string(cgroup.dir().join("cgroup.procs"));
        for pid in processes
            .unwrap_or_default()
            .lines()
            .take(BRIDGE_PROCESSES_MAX)
        {
            let Ok(namespace) = File::open(format!("/proc/{pid}/ns/net")) else {
                continue;
            };
            let inode = namespace.metadata().map(|metadata| metadata.ino()).ok();
            if inode != own && seen.insert(inode) {
                found.push(namespace.into());
            }
        }
    }
    found
}
