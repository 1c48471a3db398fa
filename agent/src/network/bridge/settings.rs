//! Settings of fresh network namespaces, through a proc file system of our own.
//!
//! The kernel's dentry cache keeps an entry of each namespace under the same name, all in one hash chain. Each open
//! of that name walks along this chain: with five hundred namespaces it would take 400 µs. A separate proc file
//! system has its own chain, which disappears with it.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};

use crate::limits::BRIDGE_SETTINGS_MAX;

/// The writer of settings.
#[derive(Debug, Default)]
pub(crate) struct Settings {
    /// A file system that is mounted nowhere, and the number of namespaces that have used it.
    own: Option<(OwnedFd, usize)>,
}

impl Settings {
    /// Writes the setting at `path` below `/proc/sys`, of the namespace that the calling thread is in.
    pub(crate) fn write(&mut self, path: &str, value: &str) -> io::Result<()> {
        match self.proc() {
            Ok(proc) => {
                let flags = OFlags::WRONLY | OFlags::CLOEXEC;
                let opened = rustix::fs::openat(proc, format!("sys/{path}"), flags, Mode::empty())?;
                File::from(opened).write_all(value.as_bytes())
            }
            // The machine's own proc file system has the same settings, but becomes slower with each namespace.
            Err(error) => {
                tracing::debug!(%error, "settings of networks are written through /proc");
                std::fs::write(format!("/proc/sys/{path}"), value)
            }
        }
    }

    fn proc(&mut self) -> io::Result<&OwnedFd> {
        let own = match self.own.take() {
            Some((proc, used)) if used < BRIDGE_SETTINGS_MAX => (proc, used + 1),
            _ => (mount()?, 1),
        };
        Ok(&self.own.insert(own).0)
    }
}

fn mount() -> io::Result<OwnedFd> {
    let proc = rustix::mount::fsopen("proc", FsOpenFlags::FSOPEN_CLOEXEC)?;
    rustix::mount::fsconfig_create(&proc)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let mounted = rustix::mount::fsmount(&proc, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
    Ok(mounted)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// More than one file system's worth.
    #[test]
    fn settings_are_those_of_the_thread_s_namespace() {
        if !nix::unistd::geteuid().is_root() {
            muster_domain::fixture::recorded::skipped(
                "settings_are_those_of_the_thread_s_namespace",
                "needs root",
            );
            return;
        }
        let path = "net/ipv4/ip_unprivileged_port_start";
        let read = || fs::read_to_string(format!("/proc/sys/{path}")).unwrap();
        let before = read();
        let inside = std::thread::spawn(move || {
            let mut settings = Settings::default();
            for number in 0..=BRIDGE_SETTINGS_MAX {
                nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
                settings.write(path, &number.to_string()).unwrap();
                let found = fs::read_to_string(format!("/proc/sys/{path}")).unwrap();
                assert_eq!(found.trim(), number.to_string());
            }
        });

        inside.join().unwrap();
        assert_eq!(read(), before);
    }
}
