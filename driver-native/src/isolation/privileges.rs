//! The last calls before a program: its session, streams and limits, its identity, its rights.
//!
//! The order matters. First the process, still as root, lowers its bounding set and enters the user namespace. Then it
//! becomes its user. Then it sets `no_new_privs`, without which an unprivileged user may not enter a Landlock scope.
//! The filter comes last, because it refuses the calls before it.

use std::os::fd::{AsFd, BorrowedFd};

use muster_domain::number;

use crate::config::IsolationLevel;
use crate::isolation::seccomp::{self, CreatableFiles};
use crate::isolation::{Confinement, capabilities::Capabilities};
use crate::spawn::{IgnoreErrno, Script, SpawnStep};
use crate::spawn_pool;
use crate::user::Identity;

/// The value `_LINUX_CAPABILITY_VERSION_3` of capset(2), and the calling process.
const CAPABILITY_HEADER: [u32; 2] = [0x2008_0522, 0];
/// The permission bits that are removed from a task's new files.
const UMASK: u32 = 0o022;

/// The files of a process and its working directory.
#[derive(Debug)]
pub(crate) struct ProcessIo<'a> {
    pub(crate) streams: [BorrowedFd<'a>; 3],
    /// The streams are a terminal, which becomes the session's controlling terminal.
    pub(crate) terminal: bool,
    pub(crate) work_dir: WorkDir<'a>,
    /// The Landlock scope, which blocks access to foreign abstract sockets.
    pub(crate) scope: Option<BorrowedFd<'a>>,
    /// The program belongs to the driver.
    pub(crate) is_driver_program: bool,
    /// Other files stay open until the program is loaded, because the program is in one of them.
    pub(crate) keeps_files: bool,
}

/// The directory in which a process begins.
#[derive(Debug)]
pub(crate) enum WorkDir<'a> {
    Open(BorrowedFd<'a>),
    /// A path in the task.
    Path(std::ffi::CString),
}

/// Adds the calls to the script.
pub(crate) fn write(
    script: &mut Script,
    confinement: &Confinement,
    user_namespace: Option<BorrowedFd<'_>>,
    process_io: &ProcessIo<'_>,
) {
    let contained = confinement.level != IsolationLevel::Raw;
    script.call(SpawnStep::Session, "lead a session", libc::SYS_setsid, []);
    // The source descriptors are above 2, because Rust's standard library holds 0, 1 and 2 open in every process from
    // its start.
    for (file, number) in process_io.streams.iter().zip(0_u32..) {
        let args = [file.as_fd().into(), number.into(), 0.into()];
        script.call(SpawnStep::Streams, "open the streams", libc::SYS_dup3, args);
    }
    if process_io.terminal {
        let args = [0.into(), libc::TIOCSCTTY.into(), 0.into()];
        let operation = "take the terminal";
        script.call(SpawnStep::Session, operation, libc::SYS_ioctl, args);
    }
    for limit in &confinement.limits {
        let operation = format!("set the limit {}", limit.name);
        let bytes = script.bytes(limit.bytes());
        let args = [0.into(), limit.resource.into(), bytes, 0.into()];
        script.call(SpawnStep::Limits, operation, libc::SYS_prlimit64, args);
    }
    if contained {
        script.call(
            SpawnStep::Session,
            "set the umask",
            libc::SYS_umask,
            [UMASK.into()],
        );
    }
    if let Some(namespace) = user_namespace {
        let args = [namespace.into(), libc::CLONE_NEWUSER.into()];
        let operation = "enter the task's user namespace";
        script.call(SpawnStep::UserNamespace, operation, libc::SYS_setns, args);
    }
    if contained {
        // A process that enters a user namespace has all capabilities in it.
        let inherited = match user_namespace {
            Some(_) => Capabilities::all(),
            None => spawn_pool::bounding_capabilities(),
        };
        drop_bounding_capabilities(script, confinement.capabilities, inherited);
    }
    if let Some(identity) = &confinement.identity {
        become_user(script, identity);
    }
    if contained {
        let is_root = confinement
            .identity
            .as_ref()
            .is_some_and(|user| user.uid == 0);
        set_capabilities(script, confinement.capabilities, is_root);
    }
    if confinement.no_new_privs {
        let args = [libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0].map(Into::into);
        let operation = "give up new privileges";
        script.call(SpawnStep::NoNewPrivs, operation, libc::SYS_prctl, args);
    }
    if let Some(scope) = process_io.scope {
        let args = [scope.into(), 0.into()];
        let operation = "keep to abstract sockets of its own (Landlock)";
        let number = libc::SYS_landlock_restrict_self;
        script.call(SpawnStep::Scope, operation, number, args);
    }
    enter_work_dir(script, process_io);
    if contained {
        let files = if process_io.is_driver_program {
            CreatableFiles::Any
        } else {
            confinement.files
        };
        let program = script.bytes(seccomp::program(files));
        let args = [libc::SECCOMP_SET_MODE_FILTER.into(), 0.into(), program];
        let operation = "filter system calls";
        script.call(SpawnStep::Seccomp, operation, libc::SYS_seccomp, args);
    }
}

/// Removes the capabilities that the task does not keep from the bounding set. Lets a user other than root keep the
/// rest across the change of user.
fn drop_bounding_capabilities(script: &mut Script, kept: Capabilities, inherited: Capabilities) {
    let dropped = inherited.difference(kept);
    for (number, _) in dropped.numbers().filter(|(_, dropped)| *dropped) {
        let number = number.into();
        let args = [
            libc::PR_CAPBSET_DROP.into(),
            number,
            0.into(),
            0.into(),
            0.into(),
        ];
        // An older kernel does not support the newest capabilities.
        script
            .call(
                SpawnStep::Capabilities,
                "lower the bounding set",
                libc::SYS_prctl,
                args,
            )
            .ignore_errno(IgnoreErrno::Unsupported);
    }
    if !kept.is_empty() {
        let args = [libc::PR_SET_KEEPCAPS, 1, 0, 0, 0].map(Into::into);
        let operation = "keep capabilities";
        script.call(SpawnStep::Capabilities, operation, libc::SYS_prctl, args);
    }
}

/// Sets user and groups with the system calls themselves, because the library's functions would also set them for the
/// driver's threads.
fn become_user(script: &mut Script, identity: &Identity) {
    let groups: Vec<u8> = identity
        .groups
        .iter()
        .flat_map(|g| g.to_ne_bytes())
        .collect();
    let count = number::count(identity.groups.len());
    let groups = script.bytes(groups);
    let args = [count.into(), groups];
    script.call(
        SpawnStep::Groups,
        "set the groups",
        libc::SYS_setgroups,
        args,
    );
    let gid = [identity.gid; 3].map(Into::into);
    script.call(SpawnStep::Group, "set the group", libc::SYS_setresgid, gid);
    let uid = [identity.uid; 3].map(Into::into);
    script.call(SpawnStep::User, "become the user", libc::SYS_setresuid, uid);
    check_ids(script, identity, count);
}

/// Reads the ids back. A call that changes nothing also succeeds, and would leave the task as root.
fn check_ids(script: &mut Script, identity: &Identity, groups: u32) {
    let Identity { uid, gid, .. } = *identity;
    let checks = [
        (SpawnStep::User, "check the user id", libc::SYS_getuid, uid),
        (
            SpawnStep::User,
            "check the effective user id",
            libc::SYS_geteuid,
            uid,
        ),
        (
            SpawnStep::Group,
            "check the group id",
            libc::SYS_getgid,
            gid,
        ),
        (
            SpawnStep::Group,
            "check the effective group id",
            libc::SYS_getegid,
            gid,
        ),
        (
            SpawnStep::Groups,
            "check the number of groups",
            libc::SYS_getgroups,
            groups,
        ),
    ];
    for (step, operation, number, expected) in checks {
        // Without a size, getgroups(2) returns the number of groups and writes nothing.
        script
            .call(step, operation, number, [0.into(), 0.into()])
            .expect_result(expected);
    }
}

/// Sets the remaining capabilities. Root gets its set from the bounding set when the program is loaded; it has no
/// inheritable capabilities for programs of another user. Other users get capabilities only through the ambient set,
/// which contains those that the job named and is otherwise empty.
fn set_capabilities(script: &mut Script, kept: Capabilities, is_root: bool) {
    let header: Vec<u8> = CAPABILITY_HEADER
        .iter()
        .flat_map(|word| word.to_ne_bytes())
        .collect();
    let inheritable = if is_root { Capabilities::EMPTY } else { kept };
    let halves = |set: Capabilities| [set.mask() & u64::from(u32::MAX), set.mask() >> 32];
    // Effective, permitted, inheritable, for the lower and the upper 32: a capability is ambient only
    // if it is inheritable.
    let data: Vec<u8> = halves(kept)
        .into_iter()
        .zip(halves(inheritable))
        .flat_map(|(kept, inheritable)| [kept, kept, inheritable])
        .flat_map(|half| u32::try_from(half).unwrap_or_default().to_ne_bytes())
        .collect();
    let args = [script.bytes(header), script.bytes(data)];
    let operation = "set the capabilities";
    script.call(SpawnStep::Capabilities, operation, libc::SYS_capset, args);
    for (number, _) in inheritable.numbers().filter(|(_, held)| *held) {
        let args = [
            libc::PR_CAP_AMBIENT.into(),
            libc::PR_CAP_AMBIENT_RAISE.into(),
            number.into(),
            0.into(),
            0.into(),
        ];
        let operation = "set the ambient capabilities";
        script.call(SpawnStep::Capabilities, operation, libc::SYS_prctl, args);
    }
}

fn enter_work_dir(script: &mut Script, process_io: &ProcessIo<'_>) {
    match &process_io.work_dir {
        WorkDir::Open(dir) => {
            let operation = "enter the working directory";
            script.call(
                SpawnStep::WorkDir,
                operation,
                libc::SYS_fchdir,
                [(*dir).into()],
            );
        }
        WorkDir::Path(path) => {
            let operation = format!("enter the working directory {}", path.to_string_lossy());
            let path = script.text(path);
            script.call(SpawnStep::WorkDir, operation, libc::SYS_chdir, [path]);
        }
    }
    let flags = if process_io.keeps_files {
        libc::CLOSE_RANGE_CLOEXEC
    } else {
        0
    };
    let args = [3_u32, u32::MAX, flags].map(Into::into);
    script.call(
        SpawnStep::CloseFiles,
        "close other files",
        libc::SYS_close_range,
        args,
    );
}
