//! A machine that is a network namespace of the test's, with one wire to somebody who sees all that comes out of it.

use std::collections::BTreeSet;
use std::fs::File;
use std::future::Future;
use std::io::{self, ErrorKind, IoSlice, Read as _};
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use muster_domain::job::NetworkMode;
use nix::sched::{CloneFlags, setns, unshare};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use socket2::{Domain, Protocol, Socket, Type};

use super::tried::{PASSED_CONNECTION, PORT, Reach};
use crate::support::{DEADLINE, skipped};

/// The machine's addresses on its wire, and those of who is at the other end.
pub(super) const MACHINE: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
pub(super) const MACHINE6: Ipv6Addr = Ipv6Addr::new(0xfd09, 0, 0, 0, 0, 0, 0, 1);
pub(super) const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);
pub(super) const CLIENT6: Ipv6Addr = Ipv6Addr::new(0xfd09, 0, 0, 0, 0, 0, 0, 2);
/// Longest silence of the wire before its listener looks whether it is wanted any more.
const LOOK: Duration = Duration::from_millis(100);

/// The host outside of the machine.
#[derive(Debug)]
pub(super) struct Outside {
    seen: Arc<Mutex<BTreeSet<IpAddr>>>,
    /// Where the other end of the wire is.
    namespace: File,
    /// Number of the machine's device.
    device: u32,
    /// Where sockets are handed out.
    name: String,
    /// The other end of the connection that is handed out.
    accepted: TcpStream,
    /// Held so that tasks could inherit it.
    _inheritable: Socket,
}

impl Outside {
    /// Does something at the other end of the wire.
    pub(super) fn there<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        at(&self.namespace, work)
    }

    /// Forgets what arrived.
    pub(super) fn forget(&self) {
        self.reached(Ipv4Addr::new(10, 9, 2, 1).into());
        self.seen.lock().unwrap().clear();
    }

    /// Addresses that something arrived for, including everything sent before the call.
    pub(super) fn seen(&self) -> BTreeSet<IpAddr> {
        self.reached(Ipv4Addr::new(10, 9, 2, 2).into());
        let mut seen = self.seen.lock().unwrap().clone();
        let mut word = [0; 16];
        match (&self.accepted).read(&mut word) {
            Ok(count) => assert!(count > 0, "the connection has ended"),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                // That it was made is not that something came through it.
                seen.remove(&super::target(PASSED_CONNECTION));
            }
            Err(error) => panic!("{error}"),
        }
        seen
    }

    /// The facts that a task in a network of this mode needs; `driver` is where the driver listens.
    pub(super) fn reach(&self, mode: &NetworkMode, driver: &Path) -> Reach {
        let in_host = *mode == NetworkMode::Host;
        let cgroup = own_cgroup();
        Reach {
            device: if in_host { self.device } else { 2 },
            device_name: if in_host { "up0" } else { "eth0" }.to_owned(),
            name: self.name.clone(),
            driver: driver.to_owned(),
            foreign_cgroup: cgroup,
        }
    }

    /// Sends to `address` until it is seen: what was sent before has come by then.
    fn reached(&self, address: IpAddr) {
        let socket = match address {
            IpAddr::V4(_) => UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)),
            IpAddr::V6(_) => UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)),
        };
        let socket = socket.unwrap();
        let deadline = Instant::now() + DEADLINE;
        while !self.seen.lock().unwrap().contains(&address) {
            assert!(Instant::now() < deadline, "nothing comes to {address}");
            socket.send_to(b"marker", (address, 9)).unwrap();
            std::thread::yield_now();
        }
    }
}

/// Runs `body` in a machine of its own; says so if there can be none.
pub(super) fn with_machine<F: Future<Output = ()>>(
    name: &str,
    body: impl FnOnce(Outside) -> F + Send + 'static,
) {
    if Command::new("ip").arg("-V").output().is_err() {
        skipped(name, "`ip` is needed; run: cargo xtask setup");
        return;
    }
    let run = std::thread::spawn(move || {
        let client = std::thread::spawn(fresh).join().unwrap();
        drop(fresh());
        ip("link add name up0 type veth peer name cl0");
        let place = format!("/proc/{}/fd/{}", std::process::id(), client.as_raw_fd());
        ip(&format!("link set cl0 netns {place}"));
        wire("up0", MACHINE, MACHINE6, "fe80::1");
        let seen = Arc::default();
        let (listener, sniffer) = at(&client, || {
            wire("cl0", CLIENT, CLIENT6, "fe80::2");
            // It has every address that a way leads to.
            ip("route add local 10.9.1.0/24 dev lo");
            ip("-6 route add local fd09:0:0:1::/64 dev lo");
            (
                TcpListener::bind((Ipv6Addr::UNSPECIFIED, PORT)).unwrap(),
                sniffer(),
            )
        });
        ip(&format!("route add default via {CLIENT} dev up0"));
        ip(&format!("-6 route add default via {CLIENT6} dev up0"));
        let watched = Arc::clone(&seen);
        let watching = std::thread::spawn(move || watch(&sniffer, &watched));
        let outside = outside(&seen, &listener, client);
        let runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = { runtime }.enable_all().build().unwrap();
        runtime.block_on(body(outside));
        drop((runtime, seen));
        watching.join().unwrap();
    });
    if let Err(panic) = run.join() {
        std::panic::resume_unwind(panic);
    }
}

/// Starts the host outside, which hands a connection and a socket to every process that asks.
fn outside(
    seen: &Arc<Mutex<BTreeSet<IpAddr>>>,
    listener: &TcpListener,
    namespace: File,
) -> Outside {
    let target = super::target(PASSED_CONNECTION);
    let connection = TcpStream::connect((target, PORT)).unwrap();
    let (accepted, _) = listener.accept().unwrap();
    accepted.set_nonblocking(true).unwrap();
    let name = format!("muster-it-paths-{}", std::process::id());
    let address = UnixAddr::from_abstract_name(&name).unwrap();
    let asked = UnixListener::bind_addr(&address).unwrap();
    std::thread::spawn(move || {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        for stream in asked.incoming().map_while(Result::ok) {
            let sockets = [connection.as_fd(), socket.as_fd()];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            assert!(control.push(SendAncillaryMessage::ScmRights(&sockets)));
            let word = [IoSlice::new(b"here")];
            sendmsg(&stream, &word, &mut control, SendFlags::empty()).unwrap();
        }
    });
    let inheritable = Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap();
    inheritable.set_cloexec(false).unwrap();
    let outside = Outside {
        seen: Arc::clone(seen),
        namespace,
        device: device("up0"),
        name,
        accepted,
        _inheritable: inheritable,
    };
    // The hosts at these addresses are known from here on.
    outside.reached(Ipv4Addr::new(10, 9, 2, 3).into());
    outside.reached(Ipv6Addr::new(0xfd09, 0, 0, 2, 0, 0, 0, 1).into());
    outside
}

/// Puts the calling thread into a namespace that nobody else is in.
fn fresh() -> File {
    unshare(CloneFlags::CLONE_NEWNET).unwrap();
    ip("link set lo up");
    File::open("/proc/thread-self/ns/net").unwrap()
}

fn wire(device: &str, v4: Ipv4Addr, v6: Ipv6Addr, link_local: &str) {
    ip(&format!("addr add {v4}/24 dev {device}"));
    for address in [v6.to_string(), link_local.to_owned()] {
        ip(&format!("-6 addr add {address}/64 dev {device} nodad"));
    }
    ip(&format!("link set {device} up"));
}

pub(super) fn ip(args: &str) -> String {
    let output = Command::new("ip").args(args.split(' ')).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ip {args}: {stderr}");
    String::from_utf8(output.stdout).unwrap()
}

/// Does something at the other end of the wire.
fn at<T: Send>(namespace: &File, work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let there = scope.spawn(|| {
            setns(namespace, CloneFlags::CLONE_NEWNET).unwrap();
            work()
        });
        there.join().unwrap()
    })
}

/// The number of a device of this machine.
fn device(name: &str) -> u32 {
    let line = ip(&format!("-o link show {name}"));
    line.split(':').next().unwrap().parse().unwrap()
}

/// The directory of this process in the v2 hierarchy: no task's.
fn own_cgroup() -> String {
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap();
    let own = own
        .lines()
        .find_map(|line| line.strip_prefix("0::"))
        .unwrap();
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let mounts = mounts
        .lines()
        .map(|line| line.split(' ').collect::<Vec<_>>());
    let mount = { mounts }.find(|fields| fields[2] == "cgroup2").unwrap()[1].to_owned();
    format!("{mount}{own}/cgroup.procs")
}

/// A socket that gets every frame of its namespace.
fn sniffer() -> Socket {
    let every = i32::from(u16::try_from(libc::ETH_P_ALL).unwrap().to_be());
    let socket = Socket::new(Domain::PACKET, Type::RAW, Some(Protocol::from(every))).unwrap();
    socket.set_read_timeout(Some(LOOK)).unwrap();
    socket.set_recv_buffer_size(8 << 20).unwrap();
    socket
}

/// Notes where frames are for, until nobody wants to know.
fn watch(socket: &Socket, seen: &Arc<Mutex<BTreeSet<IpAddr>>>) {
    let mut frame = [0; 2_048];
    while Arc::strong_count(seen) > 1 {
        let mut reader = socket;
        match reader.read(&mut frame) {
            Ok(count) => seen.lock().unwrap().extend(destination(&frame[..count])),
            Err(error) if is_silence(&error) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// Where an IP packet in a frame is for.
fn destination(frame: &[u8]) -> Option<IpAddr> {
    match frame.get(12..14)? {
        [0x08, 0x00] => {
            let address: [u8; 4] = frame.get(30..34)?.try_into().ok()?;
            Some(address.into())
        }
        [0x86, 0xdd] => {
            let address: [u8; 16] = frame.get(38..54)?.try_into().ok()?;
            Some(address.into())
        }
        _ => None,
    }
}

fn is_silence(error: &io::Error) -> bool {
    use ErrorKind::{Interrupted, TimedOut, WouldBlock};
    [WouldBlock, TimedOut, Interrupted].contains(&error.kind())
}
