//! The programs on the running kernel, with real processes in a cgroup tree of the test's own.
//!
//! The tests need root, kernel types and an embedded object, and say so when they skip. Processes
//! in the tree are this test binary again, running [`child`].

#![expect(
    unsafe_code,
    reason = "ending one thread, or a process at once, has no safe form"
)]

use std::{
    env, fs,
    net::{Ipv4Addr, UdpSocket},
    os::unix::{fs::MetadataExt, process::ExitStatusExt},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use super::*;

/// How long to wait for the kernel to have counted something. It takes milliseconds.
const DEADLINE: Duration = Duration::from_secs(20);

/// Tells a process in the tree what to do.
const CHILD_VAR: &str = "MUSTER_BPF_TEST_CHILD";

/// A cgroup tree, a bpffs and pins that go away when it is dropped.
struct Node {
    data_dir: tempfile::TempDir,
    pin_dir: PathBuf,
    cgroup_dir: PathBuf,
    task_level: u32,
    children: Vec<Child>,
}

impl Node {
    /// `None`, said on stderr, if this machine cannot run the programs.
    fn set_up(test: &str) -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let reason = if !Bpf::object_present() {
            "this build carries no eBPF object: run `cargo xtask build-ebpf`"
        } else if !geteuid().is_root() {
            "not root"
        } else if !Path::new(btf::VMLINUX).exists() {
            "this kernel does not show its types"
        } else {
            ""
        };
        if !reason.is_empty() {
            eprintln!("skipped: {test}: {reason}");
            return None;
        }

        let (mount, own) = own_cgroup();
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let cgroup_dir = mount
            .join(&own)
            .join(format!("muster-bpf-{}-{number}", std::process::id()));
        let depth = own.components().count();
        let data_dir = tempfile::tempdir().unwrap();
        let pin_dir = ensure_bpffs(data_dir.path())
            .unwrap()
            .join(format!("muster-test-{}-{number}", std::process::id()));
        let task_level = u32::try_from(depth).unwrap() + 3;
        let node = Self {
            data_dir,
            pin_dir,
            cgroup_dir,
            task_level,
            children: Vec::new(),
        };
        fs::create_dir_all(node.task_dir()).unwrap();
        Some(node)
    }

    fn config(&self) -> BpfConfig {
        BpfConfig {
            pin_dir: self.pin_dir.clone(),
            cgroup_dir: self.cgroup_dir.clone(),
            task_level: self.task_level,
        }
    }

    fn task_dir(&self) -> PathBuf {
        self.cgroup_dir.join("alloc/task")
    }

    fn task(&self) -> CgroupId {
        fs::metadata(self.task_dir()).unwrap().ino()
    }

    /// Opens the programs and registers the task.
    fn open(&self) -> Bpf {
        let bpf = Bpf::open(&self.config()).unwrap();
        bpf.watch(self.task()).unwrap();
        bpf
    }

    /// Starts a process that enters the task's cgroup and executes [`child`] with `order`.
    fn start(&mut self, order: &str) -> u32 {
        let child = Command::new("sh")
            .args(["-c", "echo 0 >\"$0\" && exec \"$@\""])
            .arg(self.task_dir().join("cgroup.procs"))
            .arg(env::current_exe().unwrap())
            // One thread runs the test on the process's first thread.
            .args([
                "--exact",
                "bpf::tests::child",
                "--ignored",
                "--test-threads=1",
            ])
            .env(CHILD_VAR, order)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let pid = child.id();
        self.children.push(child);
        pid
    }

    /// Waits for the process that was started last.
    fn wait(&mut self) -> ExitStatus {
        self.children.pop().unwrap().wait().unwrap()
    }

    /// CPU time of the task as the kernel's own accounting has it.
    fn cgroup_cpu_time(&self) -> Duration {
        let stat = fs::read_to_string(self.task_dir().join("cpu.stat")).unwrap();
        let usage = stat
            .lines()
            .find_map(|line| line.strip_prefix("usage_usec "))
            .unwrap();
        Duration::from_micros(usage.parse().unwrap())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        for child in &mut self.children {
            child.kill().unwrap();
            child.wait().unwrap();
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

/// What `probe` finds, tried until the deadline.
fn poll<T>(what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
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

/// The exit record, once it is there.
fn exit_of(bpf: &Bpf, task: CgroupId) -> ExitRecord {
    poll("an exit record", || bpf.exit_of(task).unwrap())
}

/// What the test's processes do. Not a test: it is named on their command line.
#[test]
#[ignore = "run by the other tests as their child process"]
fn child() {
    let Ok(order) = env::var(CHILD_VAR) else {
        return;
    };
    let (verb, argument) = order.split_once(' ').unwrap_or((&order, ""));
    match verb {
        "exit" => exit_process(argument.parse().unwrap()),
        "sleep" => loop {
            thread::park();
        },
        "burn" => burn(Some(Duration::from_millis(argument.parse().unwrap()))),
        "spin" => burn(None),
        "send" => send(argument.parse().unwrap()),
        "spawn" => {
            assert!(Command::new("true").status().unwrap().success());
        }
        other => panic!("no such order: {other}"),
    }
}

fn burn(until: Option<Duration>) {
    let start = Instant::now();
    while until.is_none_or(|until| start.elapsed() < until) {
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

fn exit_process(code: i32) {
    // SAFETY: the call takes a number and does not return.
    unsafe { libc::_exit(code) }
}

/// Runs on the first thread before `main`: tests have threads of their own.
#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = leave_if_told;

/// With the order `leave`, the first thread leaves alone with code 3, then another ends the process
/// with the code of the order.
extern "C" fn leave_if_told() {
    let order = env::var(CHILD_VAR).unwrap_or_default();
    let Some(code) = order
        .strip_prefix("leave ")
        .and_then(|code| code.parse().ok())
    else {
        return;
    };
    thread::spawn(move || {
        let stat = || fs::read_to_string("/proc/self/stat").unwrap_or_default();
        poll("the first thread's end", || {
            stat().contains(") Z ").then_some(())
        });
        exit_process(code);
    });
    // SAFETY: the call ends this thread only, which holds nothing that another one needs.
    unsafe { libc::syscall(libc::SYS_exit, 3) };
}

#[test]
fn exit_code_of_main_process_is_recorded() {
    let Some(mut node) = Node::set_up("exit_code_of_main_process_is_recorded") else {
        return;
    };
    let bpf = node.open();

    let pid = node.start("exit 42");
    let status = node.wait();

    let record = exit_of(&bpf, node.task());
    assert_eq!(record.wait_status, 42 << 8);
    assert_eq!(record.wait_status, status.into_raw());
    assert_eq!(record.pid, pid);
    assert!(
        record.start_boottime_ns < record.at_boottime_ns,
        "{record:?}"
    );
}

#[test]
fn kill_of_main_process_is_recorded() {
    let Some(mut node) = Node::set_up("kill_of_main_process_is_recorded") else {
        return;
    };
    let bpf = node.open();

    let pid = node.start("sleep");
    let main = poll("a main process", || bpf.main_of(node.task()).unwrap());
    let before = bpf.exit_of(node.task()).unwrap();
    node.children.last_mut().unwrap().kill().unwrap();
    node.wait();

    assert_eq!(main.pid, pid);
    assert_eq!(before, None);
    assert_eq!(exit_of(&bpf, node.task()).wait_status, libc::SIGKILL);
}

/// A process whose first thread ends before another one is alive until that one ends.
#[test]
fn exit_is_that_of_the_last_thread() {
    let Some(mut node) = Node::set_up("exit_is_that_of_the_last_thread") else {
        return;
    };
    let bpf = node.open();

    node.start("leave 7");
    let status = node.wait();

    assert_eq!(exit_of(&bpf, node.task()).wait_status, 7 << 8);
    assert_eq!(status.code(), Some(7));
    assert_eq!(bpf.collect().unwrap()[&node.task()].exec.exits, 1);
}

/// Three programs: the child, then `true` from a process it forks. `sh` executed before it entered.
#[test]
fn processes_are_counted() {
    let Some(mut node) = Node::set_up("processes_are_counted") else {
        return;
    };
    let bpf = node.open();

    node.start("spawn");
    node.wait();

    let counters = bpf.collect().unwrap()[&node.task()].exec;
    assert_eq!(
        counters,
        ExecCounters {
            forks: 1,
            execs: 2,
            exits: 2
        }
    );
    assert_eq!(exit_of(&bpf, node.task()).wait_status, 0);
}

#[test]
fn cpu_time_agrees_with_the_cgroup() {
    let Some(mut node) = Node::set_up("cpu_time_agrees_with_the_cgroup") else {
        return;
    };
    let bpf = node.open();

    node.start("burn 300");
    node.wait();

    let counters = bpf.collect().unwrap()[&node.task()];
    let (counted, kernel) = (counters.cpu_time(), node.cgroup_cpu_time());
    eprintln!(
        "cpu time: counted {counted:?}, cgroup {kernel:?}, {:?}",
        counters.sched
    );
    assert!(counted > Duration::ZERO);
    assert!(counted.abs_diff(kernel) < kernel / 10 + Duration::from_millis(5));
    assert!(counters.sched.switches_voluntary > 0);
}

/// A thread that nothing preempts is not switched away from for a long time.
#[test]
fn cpu_time_of_a_spinning_task_grows_between_collections() {
    let Some(mut node) = Node::set_up("cpu_time_of_a_spinning_task_grows") else {
        return;
    };
    let bpf = node.open();
    node.start("spin");

    for _ in 0..20 {
        let before = bpf.collect().unwrap()[&node.task()].cpu_time();
        poll("growing CPU time", || {
            (bpf.collect().unwrap()[&node.task()].cpu_time() > before).then_some(())
        });
    }

    let counted = bpf.collect().unwrap()[&node.task()].cpu_time();
    let kernel = node.cgroup_cpu_time();
    eprintln!("spinning: counted {counted:?}, cgroup {kernel:?}");
    assert!(counted.abs_diff(kernel) < kernel / 5 + Duration::from_millis(20));
}

#[test]
fn datagrams_on_loopback_are_counted() {
    let Some(mut node) = Node::set_up("datagrams_on_loopback_are_counted") else {
        return;
    };
    let bpf = node.open();
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();

    node.start(&format!("send {}", socket.local_addr().unwrap().port()));
    node.wait();

    // Ten times 100 bytes, each with 20 of IP and 8 of UDP. The receiver is in another cgroup.
    let expected = NetCounters {
        egress_bytes: 1_280,
        egress_packets: 10,
        ..NetCounters::default()
    };
    assert_eq!(bpf.collect().unwrap()[&node.task()].net, expected);
}

#[test]
fn adoption_keeps_counts_and_exits() {
    let Some(mut node) = Node::set_up("adoption_keeps_counts_and_exits") else {
        return;
    };
    let bpf = node.open();
    node.start("exit 1");
    node.wait();
    let before = bpf.collect().unwrap()[&node.task()];
    bpf.exec.exits.remove(node.task()).unwrap();
    bpf.exec.main.remove(node.task()).unwrap();

    // Nobody is there while the next process runs and ends.
    drop(bpf);
    node.start("exit 42");
    node.wait();
    let start = Instant::now();
    let bpf = Bpf::open(&node.config()).unwrap();
    eprintln!("adopted in {:?}", start.elapsed());

    assert_eq!(bpf.adoption(), Adoption::Same);
    assert_eq!(exit_of(&bpf, node.task()).wait_status, 42 << 8);
    let after = bpf.collect().unwrap()[&node.task()];
    assert!(
        after.sched.cpu_ns > before.sched.cpu_ns,
        "{before:?} {after:?}"
    );
    assert_eq!(after.exec.execs, before.exec.execs + 1);
}

/// The replacing load differs by the cgroup it is attached to. Nothing may count twice or not at
/// all while both are attached.
#[test]
fn replaced_programs_go_on_counting() {
    let Some(mut node) = Node::set_up("replaced_programs_go_on_counting") else {
        return;
    };
    let bpf = node.open();
    node.start("spin");
    poll("a main process", || bpf.main_of(node.task()).unwrap());

    let mut config = node.config();
    config.cgroup_dir = node.cgroup_dir.join("alloc");
    let start = Instant::now();
    let bpf = Bpf::open(&config).unwrap();
    eprintln!("replaced in {:?}", start.elapsed());
    node.children.last_mut().unwrap().kill().unwrap();
    node.wait();

    assert_eq!(bpf.adoption(), Adoption::Replaced);
    assert_eq!(exit_of(&bpf, node.task()).wait_status, libc::SIGKILL);
    let counters = bpf.collect().unwrap()[&node.task()];
    let (counted, kernel) = (counters.cpu_time(), node.cgroup_cpu_time());
    assert!(
        counted.abs_diff(kernel) < kernel / 10 + Duration::from_millis(5),
        "{counted:?} {kernel:?}"
    );
    assert_eq!(
        counters.exec,
        ExecCounters {
            forks: 0,
            execs: 1,
            exits: 1
        }
    );
    let loads = fs::read_dir(&node.pin_dir).unwrap().count();
    assert_eq!(loads, 2, "one directory of maps and one of programs");
}

#[test]
fn incomplete_load_is_made_whole() {
    let Some(mut node) = Node::set_up("incomplete_load_is_made_whole") else {
        return;
    };
    let bpf = node.open();
    let programs = fs::read_dir(&node.pin_dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.to_string_lossy().contains("programs-"))
        .unwrap();
    fs::remove_file(programs.join("sched_process_exit")).unwrap();
    drop(bpf);

    let bpf = Bpf::open(&node.config()).unwrap();
    node.start("exit 42");
    node.wait();

    assert_eq!(bpf.adoption(), Adoption::Replaced);
    assert_eq!(exit_of(&bpf, node.task()).wait_status, 42 << 8);
}

#[test]
fn forgotten_task_is_not_counted() {
    let Some(mut node) = Node::set_up("forgotten_task_is_not_counted") else {
        return;
    };
    let bpf = node.open();
    bpf.forget(node.task()).unwrap();

    node.start("exit 42");
    node.wait();

    assert_eq!(bpf.collect().unwrap(), BTreeMap::new());
    assert_eq!(bpf.exit_of(node.task()).unwrap(), None);
    assert_eq!(bpf.lost().unwrap(), 0);
}

/// The ids are of no cgroup; a batch look-up takes more than one call for them.
#[test]
fn full_maps_refuse_and_count_it() {
    let Some(node) = Node::set_up("full_maps_refuse_and_count_it") else {
        return;
    };
    let bpf = Bpf::open(&node.config()).unwrap();
    let max = muster_ebpf_common::limits::TASKS_MAX;
    for task in 1..=u64::from(max) {
        bpf.watch(1 << 40 | task).unwrap();
    }

    let refused = bpf.watch(1 << 41).unwrap_err();

    assert!(matches!(refused, WatchTaskError::Full { .. }), "{refused}");
    assert_eq!(bpf.lost().unwrap(), 1);
    let start = Instant::now();
    let tasks = bpf.collect().unwrap();
    eprintln!("collected {} tasks in {:?}", tasks.len(), start.elapsed());
    assert_eq!(tasks.len(), max as usize);
    assert!(!tasks.contains_key(&(1 << 41)));
}

#[test]
fn wrong_places_are_refused() {
    let Some(node) = Node::set_up("wrong_places_are_refused") else {
        return;
    };
    let mut no_bpffs = node.config();
    no_bpffs.pin_dir = node.data_dir.path().join("pins");
    let mut no_cgroup = node.config();
    no_cgroup.cgroup_dir = node.data_dir.path().to_owned();
    let mut absent = node.config();
    absent.cgroup_dir = node.cgroup_dir.join("absent");

    let errors = [no_bpffs, no_cgroup, absent].map(|config| Bpf::open(&config).unwrap_err());

    assert!(
        matches!(errors[0], OpenBpfError::NotBpffs { .. }),
        "{}",
        errors[0]
    );
    assert!(
        matches!(errors[1], OpenBpfError::NotCgroupV2 { .. }),
        "{}",
        errors[1]
    );
    assert!(
        matches!(errors[2], OpenBpfError::OpenCgroup { .. }),
        "{}",
        errors[2]
    );
    assert!(!node.data_dir.path().join("pins").exists());
}
