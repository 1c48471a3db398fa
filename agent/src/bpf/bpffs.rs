//! The filesystem that keeps maps, programs and links alive without a process (bpffs).

use std::{
    fs, io,
    path::{Path, PathBuf},
    thread,
};

use nix::{
    errno::Errno,
    mount::{MntFlags, MsFlags, mount, umount2},
    sys::statfs::{FsType, statfs},
    unistd::geteuid,
};
use thiserror::Error;

use crate::bpf::limits::{UNMOUNT_ATTEMPTS_MAX, UNMOUNT_WAIT};

/// The directory at which a Linux system mounts a bpffs, if it has one.
pub const SYSTEM_BPFFS: &str = "/sys/fs/bpf";

/// `BPF_FS_MAGIC` of the kernel's `include/uapi/linux/magic.h`.
const BPF_FS_MAGIC: FsType = FsType(0xcafe_4a11);

/// The reason why there is no bpffs to pin to.
#[derive(Debug, Error)]
pub enum EnsureBpffsError {
    /// The system mounted none, and only root may mount one.
    #[error("mount a bpffs at {path}: run as root, or mount one at /sys/fs/bpf")]
    NotRoot {
        /// The path at which it would be mounted.
        path: PathBuf,
    },
    /// The mount point could not be made.
    #[error("make directory {path} to mount a bpffs at")]
    MakeDirectory {
        path: PathBuf,
        /// The error of the kernel.
        #[source]
        source: io::Error,
    },
    /// The kernel did not mount it.
    #[error(
        "mount a bpffs at {path}: is it allowed here, and does the kernel have CONFIG_BPF_SYSCALL?"
    )]
    Mount {
        path: PathBuf,
        /// The error of the kernel.
        #[source]
        source: nix::Error,
    },
}

/// The reason why the agent's own bpffs could not be unmounted.
#[derive(Debug, Error)]
pub enum UnmountBpffsError {
    /// The kernel did not unmount it.
    #[error("unmount the bpffs at {path}: a process still uses a file in it")]
    Unmount {
        path: PathBuf,
        /// The error of the kernel.
        #[source]
        source: nix::Error,
    },
    /// The mount point could not be removed.
    #[error("remove directory {path}, where a bpffs was mounted")]
    RemoveDirectory {
        path: PathBuf,
        /// The error of the kernel.
        #[source]
        source: io::Error,
    },
}

/// The root of a bpffs: the system's, or one mounted at `bpf` below `data_dir`.
///
/// # Errors
///
/// [`EnsureBpffsError`] if the system has none and none can be mounted.
pub fn ensure_bpffs(data_dir: &Path) -> Result<PathBuf, EnsureBpffsError> {
    let system = Path::new(SYSTEM_BPFFS);
    if is_bpffs(system) {
        return Ok(system.to_owned());
    }
    let path = own_mount(data_dir);
    if is_bpffs(&path) {
        return Ok(path);
    }
    if !geteuid().is_root() {
        return Err(EnsureBpffsError::NotRoot { path });
    }
    if let Err(source) = fs::create_dir_all(&path) {
        return Err(EnsureBpffsError::MakeDirectory { path, source });
    }
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    match mount(Some("bpf"), &path, Some("bpf"), flags, Some("mode=0700")) {
        Ok(()) => Ok(path),
        Err(source) => Err(EnsureBpffsError::Mount { path, source }),
    }
}

/// Unmounts the bpffs that [`ensure_bpffs`] mounted below `data_dir`, and so removes its pins. Does nothing if there is
/// none.
///
/// # Errors
///
/// [`UnmountBpffsError`].
pub fn unmount_bpffs(data_dir: &Path) -> Result<(), UnmountBpffsError> {
    let path = own_mount(data_dir);
    if !is_bpffs(&path) {
        return Ok(());
    }
    let mut attempt = 1;
    while let Err(source) = umount2(&path, MntFlags::empty()) {
        if source != Errno::EBUSY || attempt == UNMOUNT_ATTEMPTS_MAX {
            return Err(UnmountBpffsError::Unmount { path, source });
        }
        attempt += 1;
        thread::sleep(UNMOUNT_WAIT);
    }
    match fs::remove_dir(&path) {
        Ok(()) => Ok(()),
        Err(source) => Err(UnmountBpffsError::RemoveDirectory { path, source }),
    }
}

/// Whether `path` is in a bpffs.
pub(crate) fn is_bpffs(path: &Path) -> bool {
    statfs(path).is_ok_and(|stat| stat.filesystem_type() == BPF_FS_MAGIC)
}

/// The path at which an agent with this data directory mounts a bpffs of its own.
pub(crate) fn own_mount(data_dir: &Path) -> PathBuf {
    data_dir.join("bpf")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bpffs_mount_error_names_path() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("no-directory");
        fs::write(&file, "").unwrap();

        match ensure_bpffs(&file) {
            // The system has a bpffs, so the agent mounts none.
            Ok(path) => assert_eq!(path, Path::new(SYSTEM_BPFFS)),
            Err(error) => assert!(
                error.to_string().contains(&file.display().to_string()),
                "{error}"
            ),
        }
    }
}
