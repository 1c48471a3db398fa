//! A node for tests of the eBPF programs: a cgroup tree, a bpffs and pins that go away with it.
//!
//! Processes in the tree are the test binary again, running [`child`]. The file is a module of the
//! `vm` tests and of the unit tests in `agent/src/bpf`.

use std::{
    env,
    fs::{self, OpenOptions},
    io::Write,
    net::{Ipv4Addr, UdpSocket},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use crate::bpf::{
    Bpf, BpfConfig, ExitRecord, TaskCounters, ensure_bpffs, remove_pins, unmount_bpffs,
};

/// How long to wait for the kernel to have done something. It takes milliseconds, but seconds in an
/// emulated guest.
const DEADLINE: Duration = Duration::from_mins(1);

/// Tells a process in the tree what to do.
pub(crate) const CHILD_VAR: &str = "MUSTER_TEST_CHILD";

/// One node with one task.
pub(crate) struct Node {
    pub(crate) data_dir: tempfile::TempDir,
    pub(crate) pin_dir: PathBuf,
    pub(crate) cgroup_dir: PathBuf,
    task_level: u32,
    children: Vec<Child>,
}

impl Node {
    /// `None`, said as a skip of `test`, if this machine cannot run the programs.
    pub(crate) fn set_up(test: &str) -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        if let Some(reason) = missing() {
            skip(test, reason);
            return None;
        }

        let (mount, own) = own_cgroup();
        let name = format!(
            "muster-test-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let data_dir = tempfile::tempdir().unwrap();
        let node = Self {
            pin_dir: ensure_bpffs(data_dir.path()).unwrap().join(&name),
            cgroup_dir: mount.join(&own).join(&name),
            task_level: u32::try_from(own.components().count()).unwrap() + 3,
            data_dir,
            children: Vec::new(),
        };
        fs::create_dir_all(node.task_dir()).unwrap();
        Some(node)
    }

    pub(crate) fn config(&self) -> BpfConfig {
        BpfConfig {
            pin_dir: self.pin_dir.clone(),
            cgroup_dir: self.cgroup_dir.clone(),
            task_level: self.task_level,
        }
    }

    /// Opens the programs and registers the task.
    pub(crate) fn open(&self) -> Bpf {
        let bpf = Bpf::open(&self.config()).unwrap();
        bpf.watch(self.task()).unwrap();
        bpf
    }

    /// The task's cgroup id.
    pub(crate) fn task(&self) -> u64 {
        fs::metadata(self.task_dir()).unwrap().ino()
    }

    /// Starts a process that enters the task's cgroup and then executes [`child`] with `order`.
    pub(crate) fn start(&mut self, order: &str) -> u32 {
        let (_, module) = module_path!().split_once("::").unwrap();
        let child = Command::new("sh")
            .args(["-c", "echo 0 >\"$0\" && exec \"$@\""])
            .arg(self.task_dir().join("cgroup.procs"))
            .arg(env::current_exe().unwrap())
            .args(["--exact", &format!("{module}::child"), "--ignored"])
            .env(CHILD_VAR, order)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let pid = child.id();
        self.children.push(child);
        pid
    }

    /// Waits for the process that was started last.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        self.children.pop().unwrap().wait().unwrap()
    }

    /// Kills the process that was started last.
    pub(crate) fn kill(&mut self) -> ExitStatus {
        self.children.last_mut().unwrap().kill().unwrap();
        self.wait()
    }

    /// The task's counters.
    pub(crate) fn counters(&self, bpf: &Bpf) -> TaskCounters {
        bpf.collect().unwrap()[&self.task()]
    }

    /// How the task's main process ended, once it is recorded.
    pub(crate) fn exit(&self, bpf: &Bpf) -> ExitRecord {
        poll("an exit record", || bpf.exit_of(self.task()).unwrap())
    }

    /// CPU time of the task as the kernel's own accounting has it.
    pub(crate) fn cgroup_cpu_time(&self) -> Duration {
        let stat = fs::read_to_string(self.task_dir().join("cpu.stat")).unwrap();
        let usage = stat
            .lines()
            .find_map(|line| line.strip_prefix("usage_usec "))
            .unwrap();
        Duration::from_micros(usage.parse().unwrap())
    }

    fn task_dir(&self) -> PathBuf {
        self.cgroup_dir.join("alloc/task")
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        while !self.children.is_empty() {
            self.kill();
        }
        remove_pins(&self.pin_dir).unwrap();
        for directory in [
            self.task_dir(),
            self.cgroup_dir.join("alloc"),
            self.cgroup_dir.clone(),
        ] {
            poll("an empty cgroup", || fs::remove_dir(&directory).ok());
        }
        unmount_bpffs(self.data_dir.path()).unwrap();
    }
}

/// What `probe` finds, tried until the deadline.
pub(crate) fn poll<T>(what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = probe() {
            return found;
        }
        assert!(
            start.elapsed() < DEADLINE,
            "no sign of {what} after {DEADLINE:?}"
        );
        thread::yield_now();
    }
}

/// Asserts that two measures of CPU time agree within a tenth and `slack`.
pub(crate) fn assert_close(counted: Duration, kernel: Duration, slack: Duration) {
    assert!(
        counted.abs_diff(kernel) < kernel / 10 + slack,
        "counted {counted:?}, the cgroup says {kernel:?}"
    );
}

/// What this machine lacks.
fn missing() -> Option<&'static str> {
    if !Bpf::object_present() {
        Some("this build carries no eBPF object: cargo xtask build-ebpf")
    } else if !nix::unistd::geteuid().is_root() {
        Some("not root")
    } else if !Path::new("/sys/kernel/btf/vmlinux").exists() {
        Some("this kernel does not show its types")
    } else {
        None
    }
}

fn skip(test: &str, reason: &str) {
    eprintln!("skipped: {test}: {reason}");
    if let Some(path) = env::var_os("MUSTER_SKIP_FILE") {
        let mut file = OpenOptions::new()
            .append(true)
            .create(true)
            .open(path)
            .unwrap();
        writeln!(file, "{test}: {reason}").unwrap();
    }
}

/// Where the v2 hierarchy is mounted, and this process's cgroup below it.
fn own_cgroup() -> (PathBuf, PathBuf) {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let mount = mounts
        .lines()
        .map(|line| line.split(' ').collect::<Vec<_>>())
        .find_map(|fields| (fields[2] == "cgroup2").then(|| PathBuf::from(fields[1])))
        .expect("a cgroup v2 hierarchy");
    let cgroups = fs::read_to_string("/proc/self/cgroup").unwrap();
    let own = cgroups
        .lines()
        .find_map(|line| line.strip_prefix("0::/"))
        .unwrap();
    (mount, PathBuf::from(own))
}

/// What the processes in the tree do. Not a test: it is named on their command line.
#[test]
#[ignore = "run by the other tests as their child process"]
#[expect(clippy::disallowed_methods, reason = "the exit code is what is tested")]
fn child() {
    let Ok(order) = env::var(CHILD_VAR) else {
        return;
    };
    let (verb, argument) = order.split_once(' ').unwrap_or((&order, ""));
    match verb {
        "exit" => std::process::exit(argument.parse().unwrap()),
        "sleep" => loop {
            thread::park();
        },
        "burn" => burn(Duration::from_millis(argument.parse().unwrap())),
        "spin" => burn(Duration::MAX),
        "send" => send(argument.parse().unwrap()),
        "spawn" => spawn(argument.parse().unwrap()),
        other => panic!("no such order: {other}"),
    }
}

/// Runs so many processes, one after the other.
fn spawn(count: u32) {
    for _ in 0..count {
        assert!(Command::new("true").status().unwrap().success());
    }
}

fn burn(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        std::hint::spin_loop();
    }
}

/// Sends ten datagrams of a hundred bytes.
fn send(port: u16) {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    for _ in 0..10 {
        socket
            .send_to(&[0; 100], (Ipv4Addr::LOCALHOST, port))
            .unwrap();
    }
}
