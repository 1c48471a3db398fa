//! One task's view: the calls that turn a copy of the template into the task's root.
//!
//! All files that must be looked up on the host are opened before the clone, as detached mounts. The child only
//! attaches them. A root that the job names may contain malicious links, so nothing in it is ever mounted on by its
//! path. Each mount point is opened beneath the root without following any link, and mounted on through its
//! descriptor.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use muster_driver::beneath::{OpenCall, Traversal};
use rustix::fs::OFlags;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, OpenTreeFlags};
use thiserror::Error;

use crate::isolation::TaskNetwork;
use crate::isolation::template::{EMPTY_DIR, Template};
use crate::spawn::{
    Arg, IgnoreErrno, MountFlags, Propagation, Script, SpawnStep, map_owners, restrict_mount_with,
};

/// Files of /proc that expose or control the machine. The null device is mounted over them.
const MASKED_FILES: [&str; 7] = [
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/timer_list",
    "/proc/timer_stats",
];
/// Directories of /proc with the same property. An empty directory is mounted over them.
const MASKED_DIRS: [&str; 3] = ["/proc/acpi", "/proc/asound", "/proc/scsi"];
/// The paths that a task may read but not write, even as uid 0.
const READ_ONLY: [&str; 5] = [
    "/proc/bus",
    "/proc/fs",
    "/proc/irq",
    "/proc/sys",
    "/proc/sysrq-trigger",
];
/// The paths that are hidden in a task's own `/sys`. In the template they are already hidden.
const MASKED_SYS: [&str; 2] = ["/sys/firmware", "/sys/devices/virtual/powercap"];
/// The path at which a task sees its own cgroup and the cgroups below it. This file contains no path of the host's
/// hierarchy.
const CGROUP: &str = "/sys/fs/cgroup";
/// The place at which a root that the job names is attached before it becomes the root.
const NEW_ROOT: &str = "/mnt";
/// The slot for a mount point.
const MOUNT_POINT_SLOT: u8 = 0;
/// The slot for the socket that brings up `lo`.
const SOCKET_SLOT: u8 = 1;

/// `SIOCSIFFLAGS` with `IFF_UP` for `lo`: `struct ifreq` of netdevice(7).
const LOOPBACK_UP: [u8; 40] = {
    let mut request = [0; 40];
    request[0] = b'l';
    request[1] = b'o';
    request[16] = libc::IFF_UP.to_ne_bytes()[0];
    request
};

/// Returns whether all controllers of the host are in the v2 hierarchy, mounted where programs look for their limits.
/// Then a task sees its own cgroup there.
pub(crate) fn cgroups_are_unified() -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let place = format!(" {CGROUP} ");
    mounts
        .lines()
        .any(|line| line.contains(&place) && line.contains(" - cgroup2 "))
}

/// A part of a task's view that cannot be created.
#[derive(Debug, Error)]
#[error("{what} {name}")]
pub(crate) struct ViewError {
    pub(crate) what: &'static str,
    pub(crate) name: String,
    #[source]
    pub(crate) source: io::Error,
}

/// A detached mount.
#[derive(Debug)]
pub(crate) struct DetachedMount {
    pub(crate) mount: OwnedFd,
    /// The path in the task.
    pub(crate) target: String,
}

/// The view of one task.
#[derive(Debug)]
pub(crate) struct TaskView {
    pub(crate) template: Arc<Template>,
    /// The root directory that the job names.
    pub(crate) root: Option<OwnedFd>,
    /// The root is read-only.
    pub(crate) readonly_root: bool,
    /// The task's directories, at paths that the template contains.
    pub(crate) task_dirs: Vec<DetachedMount>,
    /// The mounts that the job or the host requests, at any path.
    pub(crate) mounts: Vec<DetachedMount>,
    pub(crate) hostname: String,
    /// The host has all controllers in cgroup v2, so that a task's cgroup shows all its limits.
    pub(crate) shows_cgroup: bool,
    pub(crate) shm_bytes: u64,
    /// The driver's `/proc`, if the driver keeps the mount namespace.
    pub(crate) proc: Option<Arc<OwnedFd>>,
}

/// Returns a detached copy of the mount of `file`, without set-user-id programs and devices, with `flags`, and with
/// the owners mapped to ids of `user_namespace`. A slave also has the mounts below its source.
pub(crate) fn clone_mount(
    file: BorrowedFd<'_>,
    name: &str,
    flags: MountFlags,
    propagation: Propagation,
    user_namespace: Option<BorrowedFd<'_>>,
) -> Result<OwnedFd, ViewError> {
    let failed = |what| {
        move |source: io::Error| ViewError {
            what,
            name: name.to_owned(),
            source,
        }
    };
    let mut clone = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    let is_slave = propagation == Propagation::Slave;
    clone.set(OpenTreeFlags::AT_RECURSIVE, is_slave);
    let mount = rustix::mount::open_tree(file, "", clone)
        .map_err(|source| failed("bind")(source.into()))?;
    let flags = flags
        .and(MountFlags::NO_SET_USER)
        .and(MountFlags::NO_DEVICES);
    restrict_mount_with(mount.as_fd(), flags, is_slave, propagation)
        .map_err(failed("restrict the mount of"))?;
    if let Some(namespace) = user_namespace {
        map_owners(mount.as_fd(), namespace).map_err(failed(MAP_OWNERS))?;
    }
    Ok(mount)
}

/// The operation in the error of [`clone_mount`] when the owners cannot be mapped.
const MAP_OWNERS: &str = "map the owners of";

/// Returns whether the file system does not support mapped owners.
pub(crate) fn cannot_map(error: &ViewError) -> bool {
    error.what == MAP_OWNERS && error.source.raw_os_error() == Some(libc::EINVAL)
}

/// Returns a root made of `lower`, which stays unchanged, and of `upper`, which takes the writes.
pub(crate) fn overlay(
    lower: BorrowedFd<'_>,
    upper: BorrowedFd<'_>,
    work: BorrowedFd<'_>,
    name: &str,
) -> Result<OwnedFd, ViewError> {
    use std::os::fd::AsRawFd;
    let path = |dir: BorrowedFd<'_>| format!("/proc/self/fd/{}", dir.as_raw_fd());
    let mounted = (|| {
        let fs = rustix::mount::fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
        let options = [
            ("lowerdir", path(lower)),
            ("upperdir", path(upper)),
            ("workdir", path(work)),
        ];
        for (key, value) in options {
            rustix::mount::fsconfig_set_string(&fs, key, value)?;
        }
        rustix::mount::fsconfig_create(&fs)?;
        let flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
        rustix::mount::fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, flags)
    })();
    mounted.map_err(|source: rustix::io::Errno| ViewError {
        what: "make an overlay of the root",
        name: name.to_owned(),
        source: source.into(),
    })
}

/// Adds the calls that enter namespaces and create the view.
pub(crate) fn write(script: &mut Script, view: TaskView, network: &TaskNetwork) {
    enter_namespaces(script, &view, network);
    let own_network = !matches!(network, TaskNetwork::Host);
    if own_network {
        mount_sys(script);
    }
    if matches!(network, TaskNetwork::Empty) {
        set_loopback_up(script);
    }
    mount_proc(script);
    mount_private_filesystems(script, &view);
    let mut moved = vec!["/proc", "/sys", "/dev", "/run"];
    for attachment in &view.task_dirs {
        let target = text(script, &attachment.target);
        let args = [
            attachment.mount.as_fd().into(),
            text(script, ""),
            libc::AT_FDCWD.into(),
            target,
            libc::MOVE_MOUNT_F_EMPTY_PATH.into(),
        ];
        let operation = format!("mount {}", attachment.target);
        script.call(SpawnStep::Mounts, operation, libc::SYS_move_mount, args);
        moved.push(&attachment.target);
    }
    let root = view.root.as_ref().map(|root| Arg::from(root.as_fd()));
    if let Some(root) = root {
        let args = [
            root,
            text(script, ""),
            libc::AT_FDCWD.into(),
            text(script, NEW_ROOT),
            libc::MOVE_MOUNT_F_EMPTY_PATH.into(),
        ];
        script.call(
            SpawnStep::Mounts,
            "mount the task's root",
            libc::SYS_move_mount,
            args,
        );
        for path in moved {
            open_mount_point(script, Some(root), path);
            let from = [libc::AT_FDCWD.into(), text(script, path)];
            attach(script, from, libc::MOVE_MOUNT_T_EMPTY_PATH, path);
        }
    }
    for attachment in &view.mounts {
        open_mount_point(script, root, &attachment.target);
        let from = [attachment.mount.as_fd().into(), text(script, "")];
        let flags = libc::MOVE_MOUNT_F_EMPTY_PATH | libc::MOVE_MOUNT_T_EMPTY_PATH;
        attach(script, from, flags, &attachment.target);
    }
    if let Some(root) = root {
        pivot_root(script, root, view.readonly_root);
    }
    set_hostname(script, &view.hostname);
    // The calls of the script refer to these descriptors by number.
    for attachment in view.task_dirs.into_iter().chain(view.mounts) {
        script.file(attachment.mount);
    }
    if let Some(root) = view.root {
        script.file(root);
    }
    if let Some(proc) = view.proc {
        script.keep_alive(proc);
    }
    script.keep_alive(view.template);
}

/// Adds a text. Texts of this file and checked names contain no zero byte.
fn text(script: &mut Script, text: &str) -> Arg {
    script.text(&CString::new(text).unwrap_or_default())
}

fn enter_namespaces(script: &mut Script, view: &TaskView, network: &TaskNetwork) {
    let template = &view.template;
    if let TaskNetwork::Joined(namespace) = network {
        let args = [namespace.as_fd().into(), libc::CLONE_NEWNET.into()];
        let operation = "enter the group's network namespace";
        script.call(SpawnStep::Namespaces, operation, libc::SYS_setns, args);
    }
    // The clone cannot create this namespace: a cgroup namespace begins at the cgroup of the process that creates it.
    let args = [libc::CLONE_NEWCGROUP.into()];
    let operation = "make a cgroup namespace";
    script.call(SpawnStep::Namespaces, operation, libc::SYS_unshare, args);
    let args = [template.namespace.as_fd().into(), libc::CLONE_NEWNS.into()];
    let operation = "enter the namespace of the template";
    script.call(SpawnStep::Namespaces, operation, libc::SYS_setns, args);
    let args = [libc::CLONE_NEWNS.into()];
    let operation = "copy the mounts of the template";
    script.call(SpawnStep::Namespaces, operation, libc::SYS_unshare, args);
    if let Some(proc) = &view.proc {
        let flags = libc::O_RDONLY | libc::O_CLOEXEC;
        let args = [
            proc.as_fd().into(),
            text(script, "self/ns/mnt"),
            flags.into(),
        ];
        let operation = "leave the driver the namespace of its mounts";
        script
            .call(SpawnStep::Namespaces, operation, libc::SYS_openat, args)
            .ignore_errno(IgnoreErrno::Anything)
            .open_in_parent();
    }
}

fn mount(
    script: &mut Script,
    [source, target, kind, data]: [&str; 4],
    flags: u64,
    ignored_errno: IgnoreErrno,
) {
    let optional = |script: &mut Script, value: &str| {
        if value.is_empty() {
            Arg::Number(0)
        } else {
            text(script, value)
        }
    };
    let args = [
        optional(script, source),
        text(script, target),
        optional(script, kind),
        flags.into(),
        optional(script, data),
    ];
    let operation = format!("mount {kind} {source} at {target}");
    script
        .call(SpawnStep::Mounts, operation, libc::SYS_mount, args)
        .ignore_errno(ignored_errno);
}

const NO_SET_USER: u64 = libc::MS_NOSUID;
const NO_PROGRAMS: u64 = libc::MS_NOEXEC;
const PLAIN_FILES: u64 = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;

fn mount_proc(script: &mut Script) {
    let none = IgnoreErrno::Nothing;
    mount(script, ["proc", "/proc", "proc", ""], PLAIN_FILES, none);
    // A bind mount that is made while the whole `/proc` is read-only stays read-only after the whole becomes writable.
    let remount = PLAIN_FILES | libc::MS_REMOUNT | libc::MS_BIND;
    mount(
        script,
        ["", "/proc", "", ""],
        remount | libc::MS_RDONLY,
        none,
    );
    for path in READ_ONLY {
        mount(
            script,
            [path, path, "", ""],
            libc::MS_BIND,
            IgnoreErrno::NotFound,
        );
    }
    mount(script, ["", "/proc", "", ""], remount, none);
    for path in MASKED_FILES {
        mount(
            script,
            ["/dev/null", path, "", ""],
            libc::MS_BIND,
            IgnoreErrno::NotFound,
        );
    }
    for path in MASKED_DIRS {
        mount(
            script,
            [EMPTY_DIR, path, "", ""],
            libc::MS_BIND,
            IgnoreErrno::NotFound,
        );
    }
}

/// Mounts a `/sys` of the task's network namespace.
fn mount_sys(script: &mut Script) {
    let flags = PLAIN_FILES | libc::MS_RDONLY;
    mount(
        script,
        ["sysfs", "/sys", "sysfs", ""],
        flags,
        IgnoreErrno::Nothing,
    );
    for path in MASKED_SYS {
        mount(
            script,
            [EMPTY_DIR, path, "", ""],
            libc::MS_BIND,
            IgnoreErrno::NotFound,
        );
    }
}

/// Mounts the in-memory file systems, which each task has for itself.
fn mount_private_filesystems(script: &mut Script, view: &TaskView) {
    let none = IgnoreErrno::Nothing;
    let pts = "newinstance,ptmxmode=0666,mode=0620,gid=5";
    let flags = NO_SET_USER | NO_PROGRAMS;
    mount(script, ["devpts", "/dev/pts", "devpts", pts], flags, none);
    let shm = format!("mode=1777,size={}", view.shm_bytes);
    mount(
        script,
        ["shm", "/dev/shm", "tmpfs", &shm],
        PLAIN_FILES,
        none,
    );
    mount(
        script,
        ["mqueue", "/dev/mqueue", "mqueue", ""],
        PLAIN_FILES,
        none,
    );
    let run = format!("mode=1777,size={}", view.shm_bytes);
    mount(script, ["run", "/run", "tmpfs", &run], PLAIN_FILES, none);
    if view.shows_cgroup {
        let flags = PLAIN_FILES | libc::MS_RDONLY;
        mount(script, ["cgroup", CGROUP, "cgroup2", ""], flags, none);
    }
}

/// Opens a mount point, beneath `root` if the job names a root, without following any link.
fn open_mount_point(script: &mut Script, root: Option<Arg>, path: &str) {
    let flags = OFlags::PATH | OFlags::NOFOLLOW;
    let (dir, path, open) = match root {
        Some(root) => {
            let path = Path::new(path).strip_prefix("/").unwrap_or(Path::new(path));
            let below = path.to_str().unwrap_or_default();
            let open = OpenCall::beneath(flags, Traversal::Mounts);
            (root, below.to_owned(), open)
        }
        // The template's own links (/bin, /lib) come from the host and are trusted.
        None => (
            libc::AT_FDCWD.into(),
            path.to_owned(),
            OpenCall::trusting(flags),
        ),
    };
    let size = open.how.len() as u64;
    let how = script.bytes(open.how.to_vec());
    let args = [dir, text(script, &path), how, size.into()];
    let operation = format!("open the place to mount on {path}");
    script
        .call(SpawnStep::Mounts, operation, OpenCall::NUMBER, args)
        .store_result_in(MOUNT_POINT_SLOT);
}

fn attach(script: &mut Script, [dir, path]: [Arg; 2], flags: u32, target: &str) {
    let args = [
        dir,
        path,
        Arg::Slot(MOUNT_POINT_SLOT),
        text(script, ""),
        flags.into(),
    ];
    let operation = format!("mount {target}");
    script.call(SpawnStep::Mounts, operation, libc::SYS_move_mount, args);
}

/// Makes `root` the root directory, and detaches the old root.
fn pivot_root(script: &mut Script, root: Arg, read_only: bool) {
    script.call(
        SpawnStep::Mounts,
        "enter the task's root",
        libc::SYS_fchdir,
        [root],
    );
    let here = text(script, ".");
    let operation = "pivot_root into the task's root";
    script.call(
        SpawnStep::Mounts,
        operation,
        libc::SYS_pivot_root,
        [here, here],
    );
    let args = [here, libc::MNT_DETACH.into()];
    let operation = "unmount the root before";
    script.call(SpawnStep::Mounts, operation, libc::SYS_umount2, args);
    if read_only {
        let remount = libc::MS_REMOUNT | libc::MS_BIND | libc::MS_RDONLY;
        let flags = remount | libc::MS_NOSUID | libc::MS_NODEV;
        mount(script, ["", "/", "", ""], flags, IgnoreErrno::Nothing);
    }
    let slash = text(script, "/");
    script.call(
        SpawnStep::Mounts,
        "enter the root",
        libc::SYS_chdir,
        [slash],
    );
}

fn set_hostname(script: &mut Script, name: &str) {
    let length = name.len() as u64;
    let args = [text(script, name), length.into()];
    let operation = "set the host name";
    script.call(
        SpawnStep::Namespaces,
        operation,
        libc::SYS_sethostname,
        args,
    );
}

fn set_loopback_up(script: &mut Script) {
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
    let args = [libc::AF_INET.into(), kind.into(), 0.into()];
    script
        .call(SpawnStep::Network, "open a socket", libc::SYS_socket, args)
        .store_result_in(SOCKET_SLOT);
    let request = script.bytes(LOOPBACK_UP.to_vec());
    let args = [Arg::Slot(SOCKET_SLOT), libc::SIOCSIFFLAGS.into(), request];
    let operation = "wake the loopback device";
    script.call(SpawnStep::Network, operation, libc::SYS_ioctl, args);
    script.call(
        SpawnStep::Network,
        "close a socket",
        libc::SYS_close,
        [Arg::Slot(SOCKET_SLOT)],
    );
}
