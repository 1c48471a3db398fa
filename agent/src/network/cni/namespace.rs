//! Network namespaces that have a path: a file that the namespace is mounted on.
//!
//! Such a namespace outlives the agent and its tasks, so that the next agent can hand it to the plugins.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use nix::sched::{CloneFlags, setns, unshare};
use rustix::mount::UnmountFlags;

use crate::network::bridge::{netlink, settings};
use crate::network::namespace::is_namespace;

/// The namespace of the calling thread.
const OWN: &str = "/proc/thread-self/ns/net";
/// Mounts on one file that are removed: one, and those of agents that were killed in between.
const LAYERS_MAX: usize = 16;

/// Makes a namespace with the file `path` and its loopback device up.
pub(super) fn make(path: &Path) -> io::Result<OwnedFd> {
    remove(path)?;
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    let made = run_in_thread(|| {
        unshare(CloneFlags::CLONE_NEWNET)?;
        netlink::Netlink::open()?.set_link_up(netlink::LOOPBACK)?;
        // Every user may have the ports below 1024: they are the allocation's alone.
        let open_ports = "net/ipv4/ip_unprivileged_port_start";
        if let Err(error) = settings::Settings::default().write(open_ports, "0") {
            tracing::debug!(%error, "ports below 1024 of an allocation are for root alone");
        }
        rustix::mount::mount_bind(OWN, path)?;
        Ok(File::open(OWN)?.into())
    });
    made.inspect_err(|_| drop(remove(path)))
}

/// Opens the namespace that is mounted on `path`; `None` if there is none.
pub(super) fn open(path: &Path) -> io::Result<Option<OwnedFd>> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => OwnedFd::from(opened?),
    };
    Ok(is_namespace(&file)?.then_some(file))
}

/// Sets up the loopback device of a namespace that another program made.
pub(super) fn set_loopback_up(namespace: &OwnedFd) -> io::Result<()> {
    run_in_thread(|| {
        setns(namespace.as_fd(), CloneFlags::CLONE_NEWNET)?;
        netlink::Netlink::open()?.set_link_up(netlink::LOOPBACK)
    })
}

/// Unmounts the namespace and removes its file. A missing file means that it is gone already.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    for _ in 0..LAYERS_MAX {
        match rustix::mount::unmount(path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
            Ok(()) => {}
            // No namespace is mounted on the file.
            Err(rustix::io::Errno::INVAL) => break,
            Err(rustix::io::Errno::NOENT) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
    fs::remove_file(path)
}

/// Runs `work` in a thread of its own, which is in another namespace afterwards.
fn run_in_thread<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let worked = std::thread::Builder::new()
            .name("namespace".to_owned())
            .spawn_scoped(scope, work)?
            .join();
        worked.unwrap_or_else(|_panic| Err(io::Error::other("the thread for a namespace failed")))
    })
}
