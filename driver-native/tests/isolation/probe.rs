//! The probe: the attempts of a task, and the words for their outcomes.
//!
//! Every attempt has a name and an outcome: `ok`, the error's name, or a value. A new attempt needs a line in one of
//! the lists below and a line in each level's table in `boundary`.
#![expect(
    unsafe_code,
    reason = "system calls that no safe function makes, because nobody but an attacker would"
)]

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use libc::c_long;
use muster_driver::TaskDriver as _;
use serde_json::{Value, json};

use crate::fixture::{Task, skipped_here, until};
use muster_driver_native::NativeDriver;

/// The variable of a task that runs the probe. It contains the data about the host that the probe needs.
const VARIABLE: &str = "MUSTER_TEST_PROBE";
/// The path of this program in the task.
const PROGRAM: &str = "/opt/probe";

/// The outcome of each attempt, by name.
pub(crate) type Outcomes = BTreeMap<String, String>;

/// This is not a test but the probe inside a task. Without the variable it does nothing.
#[test]
fn helper_probes() {
    let Ok(host) = std::env::var(VARIABLE) else {
        return;
    };
    let host: Value = serde_json::from_str(&host).unwrap();
    let outcomes = all(&host);
    fs::write(
        "/local/outcomes.part",
        serde_json::to_vec(&outcomes).unwrap(),
    )
    .unwrap();
    fs::rename("/local/outcomes.part", "/local/outcomes").unwrap();
}

/// Runs the probe as a task with `config` on a node with `policy`. Returns `None`, with a message on standard error,
/// where the tests do not run as root.
pub(crate) async fn probe(config: Value, policy: Value, user: &str) -> Option<Outcomes> {
    probe_in(config, policy, user, |_task| ()).await
}

/// Runs the probe after a change of its task.
pub(crate) async fn probe_in(
    mut config: Value,
    mut policy: Value,
    user: &str,
    change: impl FnOnce(&mut Task),
) -> Option<Outcomes> {
    if !nix::unistd::geteuid().is_root() {
        skipped_here("only root can contain a task; run the tests as root");
        return None;
    }
    let this = std::env::current_exe().unwrap();
    let arguments = ["--exact", "probe::helper_probes", "--nocapture"];
    config["command"] = json!(PROGRAM);
    config["args"] = json!(arguments);
    config["mounts"] = json!([{"source": this, "target": PROGRAM}]);
    policy["allow_paths"] = json!([this.parent().unwrap()]);
    let mut task = Task::with(config);
    let socket = task.dir.path().join("host.sock");
    let _path_socket = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let ordinal = NEXT.fetch_add(1, Ordering::Relaxed);
    let name = format!("mst-probe-{}-{ordinal}", std::process::id());
    let address =
        <std::os::unix::net::SocketAddr as std::os::linux::net::SocketAddrExt>::from_abstract_name(
            &name,
        )
        .unwrap();
    let _abstract_socket = std::os::unix::net::UnixListener::bind_addr(&address).unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let host = json!({
        "pid": std::process::id(),
        "task_dir": task.dir.path(),
        "socket": socket,
        "abstract": name,
        "port": listener.local_addr().unwrap().port(),
        "namespaces": namespaces(),
    });
    task.config
        .env
        .insert(VARIABLE.to_owned(), host.to_string());
    task.config.user = user.to_owned();
    change(&mut task);
    let driver = NativeDriver::new();
    driver.set_config(policy).await.unwrap();
    driver.start_task(task.config.clone()).await.unwrap();
    let result = driver.wait_task(task.id()).await.unwrap();
    let path = task.path("local/outcomes");
    assert!(result.successful() && path.exists(), "{result:?}");
    driver.destroy_task(task.id(), true).await.unwrap();
    Some(serde_json::from_slice(&fs::read(path).unwrap()).unwrap())
}

/// Waits for a file of the task and returns its content.
pub(crate) fn written(path: &Path) -> String {
    let mut text = String::new();
    until(&format!("{} is written", path.display()), || {
        text = fs::read_to_string(path).unwrap_or_default();
        text.ends_with('\n')
    });
    text
}

/// Devices and sockets that give access to the machine, where they exist.
pub(crate) const HOST_ONLY: [&str; 14] = [
    "/dev/console",
    "/dev/cpu/0/msr",
    "/dev/fuse",
    "/dev/kvm",
    "/dev/loop-control",
    "/dev/mapper/control",
    "/dev/net/tun",
    "/dev/port",
    "/dev/snapshot",
    "/dev/tty0",
    "/dev/vda",
    "/dev/vhost-net",
    "/run/containerd/containerd.sock",
    "/var/run/docker.sock",
];
/// Trees of the kernel that are empty unless something is mounted there.
pub(crate) const HOST_TREES: [&str; 5] = [
    "/sys/fs/bpf",
    "/sys/fs/pstore",
    "/sys/kernel/debug",
    "/sys/kernel/security",
    "/sys/kernel/tracing",
];

const NAMESPACES: [&str; 7] = ["cgroup", "ipc", "mnt", "net", "pid", "user", "uts"];

fn namespaces() -> BTreeMap<&'static str, String> {
    NAMESPACES
        .into_iter()
        .map(|name| (name, link(&format!("/proc/self/ns/{name}"))))
        .collect()
}

fn link(path: &str) -> String {
    fs::read_link(path).map_or_else(|error| word(&error), |target| target.display().to_string())
}

/// Returns the name of the error, such as `EPERM`.
fn word(error: &io::Error) -> String {
    let number = error.raw_os_error().unwrap_or_default();
    format!("{:?}", nix::errno::Errno::from_raw(number))
}

fn outcome<T>(result: io::Result<T>) -> String {
    result.map_or_else(|error| word(&error), |_done| "ok".to_owned())
}

/// Makes a system call with numbers as arguments. None of them is an address that the kernel writes to.
fn call(number: c_long, args: [usize; 5]) -> String {
    // SAFETY: the callers pass numbers and null pointers. The call can affect this process only, and the test observes
    // how the kernel handles it.
    let result = unsafe { libc::syscall(number, args[0], args[1], args[2], args[3], args[4]) };
    if result < 0 {
        return word(&io::Error::last_os_error());
    }
    "ok".to_owned()
}

fn all(host: &Value) -> Outcomes {
    let mut outcomes = Outcomes::new();
    let mut add = |name: &str, outcome: String| {
        assert_eq!(outcomes.insert(name.to_owned(), outcome), None, "{name}");
    };
    for (name, outcome) in identity() {
        add(name, outcome);
    }
    for (name, outcome) in separation(host) {
        add(&name, outcome);
    }
    for (name, outcome) in calls().into_iter().chain(more_calls()) {
        add(name, outcome);
    }
    let processes = processes_of_the_host(host);
    for (name, outcome) in mounting().into_iter().chain(processes) {
        add(name, outcome);
    }
    for (name, outcome) in files(host) {
        add(name, outcome);
    }
    for path in HOST_ONLY {
        add(&format!("open {path}"), outcome(fs::File::open(path)));
    }
    for path in HOST_TREES {
        add(&format!("see {path}"), names(path));
    }
    for (name, outcome) in network(host) {
        add(name, outcome);
    }
    outcomes
}

fn identity() -> Vec<(&'static str, String)> {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or("absent")
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
    };
    let descriptors = fs::read_dir("/proc/self/fd").unwrap();
    let mut descriptors: Vec<u32> = descriptors
        .filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok())
        // The descriptor that reads the directory is open, too.
        .filter(|number| {
            fs::read_link(format!("/proc/self/fd/{number}"))
                .is_ok_and(|to| !to.starts_with("/proc"))
        })
        .collect();
    descriptors.sort_unstable();
    let core = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_CORE).unwrap();
    vec![
        ("uid", field("Uid:")),
        ("gid", field("Gid:")),
        ("groups", field("Groups:")),
        ("cap_inheritable", field("CapInh:")),
        ("cap_permitted", field("CapPrm:")),
        ("cap_effective", field("CapEff:")),
        ("cap_bounding", field("CapBnd:")),
        ("cap_ambient", field("CapAmb:")),
        ("no_new_privs", field("NoNewPrivs:")),
        ("seccomp", field("Seccomp:")),
        ("descriptors", format!("{descriptors:?}")),
        ("core_limit", format!("{core:?}")),
        ("pid", std::process::id().to_string()),
        (
            "hostname",
            nix::unistd::gethostname().unwrap().into_string().unwrap(),
        ),
        (
            "work_dir",
            std::env::current_dir().unwrap().display().to_string(),
        ),
        ("uid_map", {
            let map = fs::read_to_string("/proc/self/uid_map").unwrap();
            let whole = map.split_whitespace().eq(["0", "0", "4294967295"]);
            if whole { "host" } else { "own" }.to_owned()
        }),
    ]
}

fn separation(host: &Value) -> Vec<(String, String)> {
    let mut found: Vec<(String, String)> = NAMESPACES
        .into_iter()
        .map(|name| {
            let own = link(&format!("/proc/self/ns/{name}"));
            let shared = host["namespaces"][name] == own.as_str();
            let words = if shared { "host" } else { "own" };
            (format!("namespace_{name}"), words.to_owned())
        })
        .collect();
    let processes = fs::read_dir("/proc").unwrap().filter(|entry| {
        let name = entry.as_ref().unwrap().file_name();
        name.to_str().unwrap().parse::<u32>().is_ok()
    });
    found.push(("processes_seen".to_owned(), processes.count().to_string()));
    let pid = i32::try_from(host["pid"].as_u64().unwrap()).unwrap();
    let signalled = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), None);
    found.push((
        "signal_to_the_host".to_owned(),
        outcome(signalled.map_err(io::Error::from)),
    ));
    found
}

/// Makes system calls that only a program that tries to break out needs.
fn calls() -> Vec<(&'static str, String)> {
    let text = |text: &'static std::ffi::CStr| text.as_ptr().addr();
    let tmpfs = text(c"tmpfs");
    // `struct landlock_ruleset_attr`: no files, no ports, abstract sockets.
    let scope: &'static [u64; 3] = &[0, 0, 1];
    let scope = [scope.as_ptr().addr(), size_of_val(scope), 0, 0, 0];
    vec![
        (
            "make_a_scope",
            call(libc::SYS_landlock_create_ruleset, scope),
        ),
        (
            "mount",
            call(libc::SYS_mount, [tmpfs, text(c"/tmp"), tmpfs, 0, 0]),
        ),
        (
            "umount",
            call(libc::SYS_umount2, [text(c"/proc"), 2, 0, 0, 0]),
        ),
        (
            "pivot_root",
            call(libc::SYS_pivot_root, [text(c"."), text(c"."), 0, 0, 0]),
        ),
        (
            "open_tree",
            call(libc::SYS_open_tree, [usize::MAX, text(c"/"), 1, 0, 0]),
        ),
        ("fsopen", call(libc::SYS_fsopen, [tmpfs, 0, 0, 0, 0])),
        (
            "unshare_user",
            call(libc::SYS_unshare, [number(libc::CLONE_NEWUSER), 0, 0, 0, 0]),
        ),
        (
            "unshare_mount",
            call(libc::SYS_unshare, [number(libc::CLONE_NEWNS), 0, 0, 0, 0]),
        ),
        (
            "clone_user",
            call(
                libc::SYS_clone,
                [number(libc::CLONE_NEWUSER | libc::SIGCHLD), 0, 0, 0, 0],
            ),
        ),
        ("clone3", call(libc::SYS_clone3, [0; 5])),
        ("setns", call(libc::SYS_setns, [0; 5])),
        ("bpf", call(libc::SYS_bpf, [0; 5])),
        ("perf_event_open", call(libc::SYS_perf_event_open, [0; 5])),
        (
            "io_uring_setup",
            call(libc::SYS_io_uring_setup, [1, 0, 0, 0, 0]),
        ),
        ("io_uring_enter", call(libc::SYS_io_uring_enter, [0; 5])),
        ("keyctl", call(libc::SYS_keyctl, [0; 5])),
        ("init_module", call(libc::SYS_init_module, [0; 5])),
        ("delete_module", call(libc::SYS_delete_module, [0; 5])),
        ("kexec_load", call(libc::SYS_kexec_load, [0; 5])),
        ("reboot", call(libc::SYS_reboot, [0; 5])),
        (
            "swapon",
            call(libc::SYS_swapon, [text(c"/tmp"), 0, 0, 0, 0]),
        ),
    ]
}

fn more_calls() -> Vec<(&'static str, String)> {
    let text = |text: &'static std::ffi::CStr| text.as_ptr().addr();
    let (family, raw) = (
        |family: i32, kind: i32| call(libc::SYS_socket, [number(family), number(kind), 0, 0, 0]),
        libc::SOCK_RAW,
    );
    vec![
        (
            "open_by_handle_at",
            call(libc::SYS_open_by_handle_at, [0; 5]),
        ),
        ("userfaultfd", call(libc::SYS_userfaultfd, [0; 5])),
        ("fanotify_init", call(libc::SYS_fanotify_init, [0; 5])),
        ("iopl", call(libc::SYS_iopl, [3, 0, 0, 0, 0])),
        ("syslog", call(libc::SYS_syslog, [10, 0, 0, 0, 0])),
        ("settimeofday", call(libc::SYS_settimeofday, [0; 5])),
        (
            "sethostname",
            call(libc::SYS_sethostname, [text(c"x"), 1, 0, 0, 0]),
        ),
        ("quotactl", call(libc::SYS_quotactl, [0; 5])),
        (
            "personality",
            call(libc::SYS_personality, [0x4_0000, 0, 0, 0, 0]),
        ),
        ("pidfd_getfd", call(libc::SYS_pidfd_getfd, [0; 5])),
        ("chroot", call(libc::SYS_chroot, [text(c"/"), 0, 0, 0, 0])),
        ("setuid_0", call(libc::SYS_setresuid, [0, 0, 0, 0, 0])),
        ("socket_packet", family(libc::AF_PACKET, raw)),
        ("socket_alg", family(libc::AF_ALG, libc::SOCK_SEQPACKET)),
        ("socket_vsock", family(libc::AF_VSOCK, libc::SOCK_STREAM)),
        (
            "socket_raw",
            call(libc::SYS_socket, [2, number(raw), 1, 0, 0]),
        ),
        ("socket_tcp", family(libc::AF_INET, libc::SOCK_STREAM)),
        ("socket_unix", family(libc::AF_UNIX, libc::SOCK_STREAM)),
    ]
}

/// Makes the newer calls for mounting.
fn mounting() -> Vec<(&'static str, String)> {
    [
        ("fsconfig", libc::SYS_fsconfig),
        ("fsmount", libc::SYS_fsmount),
        ("fspick", libc::SYS_fspick),
        ("mount_setattr", libc::SYS_mount_setattr),
        ("move_mount", libc::SYS_move_mount),
    ]
    .map(|(name, number)| (name, call(number, [0; 5])))
    .into()
}

/// Attempts on a process of the host whose pid is known: the process of the test.
fn processes_of_the_host(host: &Value) -> Vec<(&'static str, String)> {
    let id = host["pid"].as_u64().unwrap();
    let pid = usize::try_from(id).unwrap();
    let open = |name: &str| outcome(fs::File::open(format!("/proc/{id}/{name}")));
    vec![
        ("host_tgkill", call(libc::SYS_tgkill, [pid, pid, 0, 0, 0])),
        (
            "host_pidfd_open",
            call(libc::SYS_pidfd_open, [pid, 0, 0, 0, 0]),
        ),
        (
            "host_ptrace",
            call(libc::SYS_ptrace, [0x4206, pid, 0, 0, 0]),
        ),
        ("host_prlimit", call(libc::SYS_prlimit64, [pid, 0, 0, 0, 0])),
        (
            "host_setpriority",
            call(libc::SYS_setpriority, [0, pid, 0, 0, 0]),
        ),
        ("host_group", call(libc::SYS_getpgid, [pid, 0, 0, 0, 0])),
        (
            "host_scheduler",
            call(libc::SYS_sched_getscheduler, [pid, 0, 0, 0, 0]),
        ),
        ("host_compare", call(libc::SYS_kcmp, [pid, pid, 0, 0, 0])),
        ("host_environ", open("environ")),
        ("host_root", open("root")),
        ("host_mem", open("mem")),
        ("host_namespace", open("ns/mnt")),
    ]
}

fn number(value: i32) -> usize {
    usize::try_from(value).unwrap()
}

fn names(path: &str) -> String {
    let Ok(entries) = fs::read_dir(path) else {
        return "absent".to_owned();
    };
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort_unstable();
    names.join(" ")
}

fn files(host: &Value) -> Vec<(&'static str, String)> {
    let write = |path: &str| outcome(fs::OpenOptions::new().write(true).open(path));
    let create = |path: &str| outcome(fs::write(path, "x"));
    let read = |path: &str| match fs::read(path) {
        Ok(bytes) if bytes.is_empty() => "empty".to_owned(),
        result => outcome(result),
    };
    let node = |path: &str, kind, device| {
        use nix::sys::stat::{Mode, makedev, mknod};
        let (major, minor): (u64, u64) = device;
        let made = mknod(path, kind, Mode::S_IRWXU, makedev(major, minor));
        outcome(made.map_err(io::Error::from))
    };
    let block = nix::sys::stat::SFlag::S_IFBLK;
    let task_dir = host["task_dir"].as_str().unwrap();
    vec![
        ("dev", names("/dev")),
        ("root", names("/")),
        ("write_dev_null", write("/dev/null")),
        ("create_in_dev", create("/dev/x")),
        ("create_in_root", create("/x")),
        ("create_in_usr", create("/usr/x")),
        ("create_in_etc", create("/etc/x")),
        ("write_passwd", write("/etc/passwd")),
        ("read_shadow", read("/etc/shadow")),
        ("read_own_secret", create("/secrets/x")),
        ("create_in_local", create("/local/x")),
        ("create_in_tmp", create("/tmp/x")),
        ("create_in_shm", create("/dev/shm/x")),
        ("create_in_run", create("/run/x")),
        (
            "open_pty",
            outcome(
                fs::OpenOptions::new()
                    .read(true)
                    .write(true)
                    .open("/dev/ptmx"),
            ),
        ),
        ("make_block_device", node("/tmp/disk", block, (8, 0))),
        ("open_block_device", outcome(fs::File::open("/tmp/disk"))),
        ("open_mem", outcome(fs::File::open("/dev/mem"))),
        ("open_kmsg", outcome(fs::File::open("/dev/kmsg"))),
        ("see_the_hosts_task_dir", outcome(fs::metadata(task_dir))),
        ("see_the_hosts_home", names("/root")),
        ("write_core_pattern", write("/proc/sys/kernel/core_pattern")),
        ("write_sysrq", write("/proc/sysrq-trigger")),
        ("read_kcore", read("/proc/kcore")),
        ("read_keys", read("/proc/keys")),
        ("read_timer_list", read("/proc/timer_list")),
        ("see_acpi", names("/proc/acpi")),
        ("see_firmware", names("/sys/firmware")),
        ("write_sys", write("/sys/kernel/profiling")),
        ("make_cgroup", outcome(fs::create_dir("/sys/fs/cgroup/x"))),
        ("leave_cgroup", write("/sys/fs/cgroup/cgroup.procs")),
        ("trace_the_first", outcome(fs::File::open("/proc/1/mem"))),
        ("write_oom_score", write("/proc/self/oom_score_adj")),
    ]
}

fn network(host: &Value) -> Vec<(&'static str, String)> {
    use std::net::{Ipv4Addr, SocketAddr, TcpStream};
    use std::os::unix::net::UnixStream;
    let port = u16::try_from(host["port"].as_u64().unwrap()).unwrap();
    let local = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let name = host["abstract"].as_str().unwrap();
    let address =
        <std::os::unix::net::SocketAddr as std::os::linux::net::SocketAddrExt>::from_abstract_name(
            name,
        )
        .unwrap();
    vec![
        (
            "connect_to_the_hosts_loopback",
            outcome(TcpStream::connect(local)),
        ),
        ("connect_to_own_loopback", {
            let listener = std::net::TcpListener::bind("127.0.0.1:0");
            outcome(listener.and_then(|own| TcpStream::connect(own.local_addr()?)))
        }),
        ("connect_to_a_path_of_the_host", {
            outcome(UnixStream::connect(host["socket"].as_str().unwrap()))
        }),
        (
            "connect_to_an_abstract_name",
            outcome(UnixStream::connect_addr(&address)),
        ),
        ("connect_to_an_abstract_name_of_its_own", {
            // Concurrent tests share the host's network and therefore its abstract socket names.
            let own = <std::os::unix::net::SocketAddr as std::os::linux::net::SocketAddrExt>::from_abstract_name(format!("{name} own"));
            let listener = own.and_then(|own| std::os::unix::net::UnixListener::bind_addr(&own));
            outcome(listener.and_then(|own| UnixStream::connect_addr(&own.local_addr()?)))
        }),
    ]
}
