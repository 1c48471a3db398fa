//! A node for tests of the eBPF programs: a cgroup tree, a bpffs and pins that go away with it.
//!
//! Processes in the tree are the test binary again, running [`child`]. The file is a module of the
//! `vm` tests and of the unit tests in `agent/src/bpf`.

use std::{
    env, fs,
    io::{BufRead as _, BufReader, Lines, Read as _, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    os::unix::fs::{MetadataExt, OpenOptionsExt as _},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, ExitStatus, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use muster_driver::fixture::skipped;

use crate::bpf::{
    Bpf, BpfConfig, ExitRecord, TaskCounters, ensure_bpffs, remove_pins, unmount_bpffs,
};

/// How long to wait for the kernel to have done something. It takes milliseconds, but seconds in an
/// emulated guest.
const DEADLINE: Duration = Duration::from_mins(1);

/// How long a connection that nobody answers is waited for. Loopback answers in microseconds; it bounds how long a
/// test that expects silence takes.
pub(crate) const SILENCE: Duration = Duration::from_secs(1);

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
            skipped(test, reason);
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
        self.id_of(TestGroup::Task)
    }

    /// The id of a cgroup, which is made if it is not there.
    pub(crate) fn id_of(&self, place: TestGroup) -> u64 {
        let dir = self.dir_of(place);
        fs::create_dir_all(&dir).unwrap();
        fs::metadata(dir).unwrap().ino()
    }

    /// Starts a process in `place` that carries out `order` and says at which port; it is killed when what is
    /// returned is dropped.
    pub(crate) fn serve(&self, order: &str, place: TestGroup) -> (Server, u16) {
        self.id_of(place);
        let mut command = self.command(order, place);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let port = lines.find_map(|line| {
            let line = line.unwrap();
            let (_, port) = line.split_once("port ")?;
            port.parse().ok()
        });
        (Server(child, lines), port.expect("the number of a port"))
    }

    /// Starts a process that enters the task's cgroup and then executes [`child`] with `order`.
    pub(crate) fn start(&mut self, order: &str) -> u32 {
        let command = self.command(order, TestGroup::Task);
        self.start_command(command)
    }

    /// The same with another function than [`child`]: the test called `name`.
    pub(crate) fn start_as(&mut self, name: &str, order: &str) -> u32 {
        let command = self.command_as(name, order, TestGroup::Task);
        self.start_command(command)
    }

    fn start_command(&mut self, mut command: Command) -> u32 {
        let child = command.stdout(Stdio::null()).spawn().unwrap();
        let pid = child.id();
        self.children.push(child);
        pid
    }

    /// A process that enters a cgroup and then executes [`child`] with `order`.
    fn command(&self, order: &str, place: TestGroup) -> Command {
        let (_, module) = module_path!().split_once("::").unwrap();
        self.command_as(&format!("{module}::child"), order, place)
    }

    fn command_as(&self, name: &str, order: &str, place: TestGroup) -> Command {
        let mut command = Command::new("sh");
        command
            .args(["-c", "echo 0 >\"$0\" && exec \"$@\""])
            .arg(self.dir_of(place).join("cgroup.procs"))
            .arg(env::current_exe().unwrap())
            .args(["--exact", name, "--ignored"])
            .env(CHILD_VAR, order);
        command
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
        self.dir_of(TestGroup::Task)
    }

    fn dir_of(&self, place: TestGroup) -> PathBuf {
        self.cgroup_dir.join(match place {
            TestGroup::Task => "alloc/task",
            TestGroup::Neighbour => "alloc/neighbour",
            TestGroup::Stranger => "other/task",
        })
    }
}

/// One of the tree's cgroups.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TestGroup {
    Task,
    /// That of another task of the same allocation.
    Neighbour,
    /// That of a task of another allocation.
    Stranger,
}

/// A process that serves.
#[derive(Debug)]
pub(crate) struct Server(
    Child,
    #[expect(dead_code, reason = "held open")] Lines<BufReader<ChildStdout>>,
);

impl Drop for Server {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        while !self.children.is_empty() {
            self.kill();
        }
        remove_pins(&self.pin_dir).unwrap();
        let places = [TestGroup::Task, TestGroup::Neighbour, TestGroup::Stranger];
        let groups = ["alloc", "other"].map(|group| self.cgroup_dir.join(group));
        let directories = places.map(|place| self.dir_of(place)).into_iter();
        for directory in directories.chain(groups).chain([self.cgroup_dir.clone()]) {
            if !directory.exists() {
                continue;
            }
            poll("an empty cgroup", || fs::remove_dir(&directory).ok());
        }
        unmount_bpffs(self.data_dir.path()).unwrap();
    }
}

/// The value that `probe` finds, tried until the deadline.
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

/// The first requirement of the tests that this machine lacks.
fn missing() -> Option<&'static str> {
    if Bpf::object().is_err() {
        Some("no eBPF object; run: cargo xtask build-ebpf")
    } else if !nix::unistd::geteuid().is_root() {
        Some("not root")
    } else if !Path::new("/sys/kernel/btf/vmlinux").exists() {
        Some("this kernel does not show its types")
    } else {
        None
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

/// Runs the orders of the processes in the tree. Not a test: it is named on their command line.
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
        "write" => write(Path::new(argument)),
        "read" => read(Path::new(argument)),
        "crowd" => contend_for_cpu(Duration::from_millis(argument.parse().unwrap())),
        "connect" => connect(argument, DEADLINE),
        "connect-briefly" => connect(argument, SILENCE),
        "connect-twice" => connect_twice(argument),
        "send-to" => send_to(argument),
        "send-on-a-wire" => send_on_a_wire(),
        "send-to-both" => send_to_both(argument),
        "send-after-all" => send_after_all(Path::new(argument)),
        "ask" => exchange_datagram(argument),
        "stream" => stream(argument),
        "pour" => pour(&TcpStream::connect(argument).unwrap()),
        "drain" => drain(&TcpStream::connect(argument).unwrap()),
        "sink" => sink(argument),
        "flood" => flood(argument),
        "hear" => receive_datagrams(argument),
        "hear-echoes" => receive_echoes(),
        "serve-tcp" => serve_tcp(TcpListener::bind(argument).unwrap()),
        "serve-made-in" => serve_tcp(made_in(Path::new(argument))),
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

/// Writes a mebibyte and waits until it is on the disk.
fn write(path: &Path) {
    const SIZE: usize = 1 << 20;
    const ALIGNED: usize = 4_096;
    let mut options = fs::OpenOptions::new();
    options.write(true);
    if path.exists() {
        // A disk: its cached pages are charged to their first writer, which may be long gone.
        options.custom_flags(libc::O_DIRECT);
    } else {
        options.create(true);
    }
    let bytes = vec![7; SIZE + ALIGNED];
    let begin = bytes.as_ptr().align_offset(ALIGNED);
    let mut file = options.open(path).unwrap();
    file.write_all(&bytes[begin..begin + SIZE]).unwrap();
    file.sync_all().unwrap();
}

/// A hundred pages of a disk, one after the other and past the cache.
fn read(path: &Path) {
    const ALIGNED: usize = 4_096;
    let mut options = fs::OpenOptions::new();
    let mut file = options
        .read(true)
        .custom_flags(libc::O_DIRECT)
        .open(path)
        .unwrap();
    let mut bytes = vec![0; 2 * ALIGNED];
    let begin = bytes.as_ptr().align_offset(ALIGNED);
    for _ in 0..100 {
        file.read_exact(&mut bytes[begin..begin + ALIGNED]).unwrap();
    }
}

/// Two threads that want the same CPU.
fn contend_for_cpu(time: Duration) {
    let threads = [(); 2].map(|()| {
        thread::spawn(move || {
            let mut first = nix::sched::CpuSet::new();
            first.set(0).unwrap();
            nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(0), &first).unwrap();
            burn(time);
        })
    });
    for thread in threads {
        thread.join().unwrap();
    }
}

/// Ends with 11 if the kernel refuses it at once, with 12 if nobody answers.
#[expect(clippy::disallowed_methods, reason = "the exit code is what is told")]
pub(crate) fn exit_with(outcome: std::io::Result<()>) {
    let Err(error) = outcome else { return };
    std::process::exit(match error.kind() {
        std::io::ErrorKind::PermissionDenied => 11,
        std::io::ErrorKind::TimedOut | std::io::ErrorKind::WouldBlock => 12,
        _ => panic!("{error}"),
    });
}

fn connect(to: &str, wait: Duration) {
    let to: SocketAddr = to.parse().unwrap();
    exit_with(TcpStream::connect_timeout(&to, wait).map(drop));
}

/// Connects to the first of two places, and then the same socket to the second.
fn connect_twice(places: &str) {
    let (first, second) = places.split_once(' ').unwrap();
    let stream = TcpStream::connect(first).unwrap();
    stream.set_write_timeout(Some(SILENCE)).unwrap();
    rustix::net::connect_unspec(&stream).unwrap();
    let second: SocketAddr = second.parse().unwrap();
    let again = rustix::net::connect(&stream, &second);
    exit_with(again.map_err(|errno| match errno {
        rustix::io::Errno::INPROGRESS => std::io::ErrorKind::TimedOut.into(),
        other => other.into(),
    }));
}

fn socket_towards(to: &SocketAddr) -> UdpSocket {
    let any: IpAddr = match to {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    UdpSocket::bind((any, 0)).unwrap()
}

fn send_to(to: &str) {
    let to: SocketAddr = to.parse().unwrap();
    exit_with(socket_towards(&to).send_to(b"hello", to).map(drop));
}

/// Whether this machine has what it takes to [`make_wire`]; if not, that is said as a skip of `test`.
pub(crate) fn has_wires(test: &str) -> bool {
    let made = thread::spawn(make_wire).join().unwrap();
    if !made {
        skipped(test, "no `ip`, or no veth devices");
    }
    made
}

/// Puts the calling thread into a network of its own with a device that leads nowhere. Says whether that went well.
fn make_wire() -> bool {
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
    // It looks for neighbours by itself, which is counted too.
    drop(fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1"));
    drop(fs::write(
        "/proc/sys/net/ipv6/conf/default/disable_ipv6",
        "1",
    ));
    let commands = [
        "link add name up0 type veth peer name up1",
        "addr add 10.9.0.1/24 dev up0",
        "link set up0 up",
        "link set up1 up",
        "neigh add 10.9.0.2 lladdr 02:00:00:00:00:02 dev up0",
    ];
    commands.into_iter().all(|command| {
        let status = Command::new("ip").args(command.split(' ')).status();
        status.is_ok_and(|status| status.success())
    })
}

/// Sends datagrams by a device that leads nowhere, in a network of its own, until one is refused.
fn send_on_a_wire() {
    assert!(make_wire(), "who asked for it has looked");
    let socket = UdpSocket::bind("10.9.0.1:0").unwrap();
    socket.connect("10.9.0.2:4711").unwrap();
    loop {
        exit_with(socket.send(&[0; 100]).map(drop));
        thread::sleep(Duration::from_micros(200));
    }
}

/// Two sockets of this process, of which the first sends to the second, and has done so for a while.
fn acquainted() -> (UdpSocket, UdpSocket) {
    let near = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let far = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let to = far.local_addr().unwrap();
    for _ in 0..10 {
        near.send_to(b"hello", to).unwrap();
        far.recv_from(&mut [0; 16]).unwrap();
    }
    (near, far)
}

/// Sends to a socket of this process and then, from the same socket, to another place.
fn send_to_both(to: &str) {
    let (near, _far) = acquainted();
    exit_with(near.send_to(b"hello", to).map(drop));
}

/// Sends to a socket of this process and then to one of a stranger's that has its place: one that was made in the
/// cgroup `outside`.
fn send_after_all(outside: &Path) {
    let (near, far) = acquainted();
    let to = far.local_addr().unwrap();
    drop(far);
    let _stranger = within(outside, || UdpSocket::bind(to).unwrap());
    exit_with(near.send_to(b"hello", to).map(drop));
}

/// A listener that was made in another cgroup.
fn made_in(outside: &Path) -> TcpListener {
    within(outside, || {
        TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()
    })
}

/// Does something in another cgroup.
fn within<T>(outside: &Path, work: impl FnOnce() -> T) -> T {
    let (mount, inside) = own_cgroup();
    fs::write(outside.join("cgroup.procs"), "0").unwrap();
    let done = work();
    fs::write(mount.join(inside).join("cgroup.procs"), "0").unwrap();
    done
}

/// Takes what comes of ICMP.
fn receive_echoes() {
    use socket2::{Domain, Protocol, Socket, Type};
    let mut socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::ICMPV4)).unwrap();
    print_port(1);
    loop {
        let length = socket.read(&mut [0; 2_000]).unwrap();
        assert!(length > 0, "an echo has headers");
    }
}

/// Sends a datagram and waits for the answer.
fn exchange_datagram(to: &str) {
    let to: SocketAddr = to.parse().unwrap();
    let socket = socket_towards(&to);
    socket.set_read_timeout(Some(DEADLINE)).unwrap();
    let answered = socket.send_to(b"hello", to);
    exit_with(
        answered
            .and_then(|_| socket.recv_from(&mut [0; 16]))
            .map(drop),
    );
}

/// Writes a byte every moment, for ever.
fn stream(to: &str) {
    let mut stream = TcpStream::connect(to).unwrap();
    while stream.write_all(&[0; 100]).is_ok() {
        thread::sleep(Duration::from_millis(1));
    }
}

/// Writes as fast as it can until the other side has enough.
pub(crate) fn pour(mut stream: &TcpStream) {
    let bytes = vec![0; 64 << 10];
    while stream.write_all(&bytes).is_ok() {}
}

/// Reads until the other side has said everything.
fn drain(mut stream: &TcpStream) {
    let mut bytes = vec![0; 64 << 10];
    while stream.read(&mut bytes).is_ok_and(|count| count > 0) {}
}

/// Says at which port it listens and reads what comes.
fn sink(at: &str) {
    let listener = TcpListener::bind(at).unwrap();
    print_listener_port(&listener);
    for stream in listener.incoming() {
        drain(&stream.unwrap());
    }
}

/// Sends datagrams of a kilobyte as fast as it can.
fn flood(to: &str) {
    let to: SocketAddr = to.parse().unwrap();
    let socket = socket_towards(&to);
    print_port(to.port());
    loop {
        // A datagram that is thrown away does not count as an error of the sender.
        drop(socket.send_to(&[0; 1_000], to));
    }
}

/// Says at which port it hears datagrams, and takes what comes.
fn receive_datagrams(at: &str) {
    let socket = UdpSocket::bind(at).unwrap();
    print_port(socket.local_addr().unwrap().port());
    loop {
        socket.recv(&mut [0; 2_000]).unwrap();
    }
}

/// Says at which port it listens and greets every client.
fn serve_tcp(listener: TcpListener) {
    print_listener_port(&listener);
    for stream in listener.incoming() {
        drop(stream.unwrap().write_all(b"hello"));
    }
}

fn print_listener_port(listener: &TcpListener) {
    print_port(listener.local_addr().unwrap().port());
}

fn print_port(port: u16) {
    // Past the harness, which keeps what is printed.
    let mut out = std::io::stdout();
    out.write_all(format!("port {port}\n").as_bytes()).unwrap();
    out.flush().unwrap();
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
