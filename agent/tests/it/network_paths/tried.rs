//! The ways that a task tries, and the words for their outcomes.
//!
//! A way is a line in [`WAYS`], a function, and a row in `testdata/egress-paths.md`. Each leads to an address of its own,
//! so that the host outside knows which one was found. A word is the step at which the way ended and the error's name.
//! A step that only a wall of isolation refuses is named for that wall.

use std::fs;
use std::io::{self, IoSliceMut, Write as _};
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixStream};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use serde::{Deserialize, Serialize};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::machine::MACHINE6;
use crate::ipv6::{
    DESTINATION_OPTIONS, Extension, FIRST_FRAGMENT, HOP_BY_HOP, LATER_FRAGMENT, UNKNOWN, udp_behind,
};

/// Set in a task that is to try.
pub(super) const VARIABLE: &str = "MUSTER_IT_WAYS";
/// Where an isolated task sees this program.
pub(super) const PROGRAM: &str = "/opt/probe";
/// Stands before each word in the task's output.
pub(super) const MARK: &str = "way:";
/// The port that ways lead to, unless they are named for another.
pub(super) const PORT: u16 = 7_000;
/// The way whose connection stands before it is taken.
pub(super) const PASSED_CONNECTION: &str = "connection that was passed in";
/// The way to an address that is said to be a server's.
pub(super) const SERVER: &str = "socket of a server";
/// The way to an address where a server is said to listen for clients.
pub(super) const API: &str = "TCP to a server's API";
/// Longest wait for an answer; nobody waits who is refused.
const PATIENCE: Duration = Duration::from_secs(5);

/// The facts of the machine that a task needs.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Reach {
    /// The number of the device that leads out.
    pub(super) device: u32,
    pub(super) device_name: String,
    /// The abstract name at which sockets are handed out.
    pub(super) name: String,
    /// The socket at which the native driver takes orders.
    pub(super) driver: PathBuf,
    /// The file through which a process enters a cgroup that is nobody's task.
    pub(super) foreign_cgroup: String,
}

impl Reach {
    pub(super) fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap()
    }
}

/// A way out, and where it leads.
#[derive(Debug)]
pub(super) struct EgressAttempt {
    pub(super) name: &'static str,
    to: EgressTarget,
    attempt: fn(IpAddr, &Reach) -> Attempt,
}

/// Where ways lead.
#[derive(Debug)]
enum EgressTarget {
    /// An address of the way's own.
    V4,
    /// An address of the way's own.
    V6,
    Fixed(IpAddr),
    /// A group of the way's own that solicits a neighbour.
    Solicited,
}

type Attempt = Result<(), String>;

impl EgressAttempt {
    /// The address of the way at this place of the list.
    pub(super) fn target(&self, at: usize) -> IpAddr {
        let number = u8::try_from(at + 1).unwrap();
        match self.to {
            EgressTarget::V4 => Ipv4Addr::new(10, 9, 1, number).into(),
            EgressTarget::V6 => Ipv6Addr::new(0xfd09, 0, 0, 1, 0, 0, 0, number.into()).into(),
            EgressTarget::Fixed(address) => address,
            EgressTarget::Solicited => {
                let low = 0xaa00 | u16::from(number);
                Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff77, low).into()
            }
        }
    }
}

const fn v4(name: &'static str, attempt: fn(IpAddr, &Reach) -> Attempt) -> EgressAttempt {
    let to = EgressTarget::V4;
    EgressAttempt { name, to, attempt }
}

const fn v6(name: &'static str, attempt: fn(IpAddr, &Reach) -> Attempt) -> EgressAttempt {
    let to = EgressTarget::V6;
    EgressAttempt { name, to, attempt }
}

const fn fixed(
    name: &'static str,
    to: IpAddr,
    attempt: fn(IpAddr, &Reach) -> Attempt,
) -> EgressAttempt {
    let to = EgressTarget::Fixed(to);
    EgressAttempt { name, to, attempt }
}

const METADATA: IpAddr = IpAddr::V4(Ipv4Addr::new(169, 254, 169, 254));
const METADATA6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254));
const LINK_LOCAL: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 2));
const BROADCAST: IpAddr = IpAddr::V4(Ipv4Addr::BROADCAST);
const ALL_HOSTS: IpAddr = IpAddr::V4(Ipv4Addr::new(224, 0, 0, 1));

/// All ways, in the order of the table. A way that a task has before it opens anything is first. A way that changes the
/// task itself is last.
pub(super) const WAYS: &[EgressAttempt] = &[
    v4("socket that was open before", inherited),
    v4("TCP", |to, _| tcp(to, PORT)),
    v4("TCP to a mapped address", |to, _| tcp(mapped(to), PORT)),
    v6("TCP over IPv6", |to, _| tcp(to, PORT)),
    v4("MPTCP", mptcp),
    v4("TCP fast open", fast_open),
    v4("io_uring connect", |to, _| {
        through_ring(to, RingOperation::Connect)
    }),
    v4("io_uring send", |to, _| {
        through_ring(to, RingOperation::Send)
    }),
    v4("UDP connected", udp_connected),
    v4("UDP", |to, _| udp(to, PORT)),
    v4("UDP to a mapped address", |to, _| udp(mapped(to), PORT)),
    v6("UDP over IPv6", |to, _| udp(to, PORT)),
    v4("ICMP from a raw socket", |to, _| {
        raw(to, libc::IPPROTO_ICMP, &[8, 0, 0xf7, 0xfe, 0, 1, 0, 0])
    }),
    v4("UDP from a raw socket", |to, _| {
        raw(to, libc::IPPROTO_RAW, &packet(to, 0))
    }),
    v4("frame from a packet socket", frame),
    v4(PASSED_CONNECTION, |_, reach| {
        let [connection, _] = passed(reach)?;
        at("send", TcpStream::from(connection).write_all(b"through")).map(drop)
    }),
    v4("socket that was passed in", |to, reach| {
        let [_, socket] = passed(reach)?;
        let sent = Socket::from(socket).send_to(b"through", &address(to, PORT));
        at("send", sent).map(drop)
    }),
    v4("DNS over UDP", |to, _| udp(to, 53)),
    v4("DNS over TCP", |to, _| tcp(to, 53)),
    v4("later fragment by hand", |to, _| {
        raw(to, libc::IPPROTO_RAW, &packet(to, 1))
    }),
    v4("SCTP by hand", |to, _| {
        raw(to, libc::IPPROTO_SCTP, &[0; 16])
    }),
    v6("UDP over IPv6 by hand", |to, _| raw6(to, &[])),
    v6("behind extension headers", |to, _| {
        raw6(to, &[HOP_BY_HOP, DESTINATION_OPTIONS])
    }),
    v6("behind too many headers", |to, _| {
        raw6(to, &[DESTINATION_OPTIONS; 12])
    }),
    v6("first fragment of IPv6", |to, _| {
        raw6(to, &[FIRST_FRAGMENT])
    }),
    v6("later fragment of IPv6", |to, _| {
        raw6(to, &[LATER_FRAGMENT])
    }),
    v6("behind an unknown header", |to, _| raw6(to, &[UNKNOWN])),
    EgressAttempt {
        name: "neighbour solicitation",
        to: EgressTarget::Solicited,
        attempt: solicitation,
    },
    fixed("link-local address", LINK_LOCAL, link_local),
    fixed("metadata address", METADATA, |to, _| udp(to, PORT)),
    fixed("metadata address of IPv6", METADATA6, |to, _| udp(to, PORT)),
    v4(SERVER, |to, _| udp(to, PORT)),
    v4(API, |to, _| tcp(to, PORT)),
    fixed("broadcast", BROADCAST, broadcast),
    fixed("multicast", ALL_HOSTS, |to, _| udp(to, PORT)),
    v4("from a foreign address", foreign_source),
    v4("bound to a device", bound_to_a_device),
    v4("with a mark", marked),
    v4("own loopback", own_loopback),
    v4("address added through netlink", netlink),
    v4("AF_VSOCK", |_, _| family(Domain::VSOCK, Type::STREAM)),
    v4("AF_ALG", |_, _| {
        family(Domain::from(libc::AF_ALG), Type::SEQPACKET)
    }),
    v4("socket of a driver", |_, reach| driver(reach)),
    v4("from another cgroup", from_another_cgroup),
];

/// Not a test: tries every way, in a task.
#[test]
#[ignore = "run by the other test as its task"]
fn probe_entry() {
    let Ok(reach) = std::env::var(VARIABLE) else {
        return;
    };
    let reach: Reach = serde_json::from_str(&reach).unwrap();
    println!();
    for (at, way) in WAYS.iter().enumerate() {
        let word = (way.attempt)(way.target(at), &reach).err();
        println!("{MARK}{}={}", way.name, word.as_deref().unwrap_or("done"));
    }
}

/// The step and the error's name, if there is one.
fn at<T, E: Into<io::Error>>(step: &str, result: Result<T, E>) -> Result<T, String> {
    result.map_err(|error| {
        let error = error.into();
        match error.raw_os_error() {
            Some(number) => format!("{step} {:?}", nix::errno::Errno::from_raw(number)),
            None => format!("{step} {:?}", error.kind()),
        }
    })
}

fn address(to: IpAddr, port: u16) -> SockAddr {
    SocketAddr::from((to, port)).into()
}

fn mapped(to: IpAddr) -> IpAddr {
    match to {
        IpAddr::V4(to) => to.to_ipv6_mapped().into(),
        IpAddr::V6(_) => to,
    }
}

fn domain(to: IpAddr) -> Domain {
    Domain::for_address((to, 0).into())
}

fn tcp(to: IpAddr, port: u16) -> Attempt {
    let socket = at("socket", Socket::new(domain(to), Type::STREAM, None))?;
    arrived(socket.connect_timeout(&address(to, port), PATIENCE))
}

/// Counts a refusal by the other side as an arrival.
fn arrived(connected: io::Result<()>) -> Attempt {
    match at("send", connected) {
        Err(word) if word == "send ECONNREFUSED" => Ok(()),
        other => other,
    }
}

fn mptcp(to: IpAddr, _: &Reach) -> Attempt {
    let protocol = Some(Protocol::MPTCP);
    let socket = at("socket", Socket::new(domain(to), Type::STREAM, protocol))?;
    arrived(socket.connect_timeout(&address(to, PORT), PATIENCE))
}

fn fast_open(to: IpAddr, _: &Reach) -> Attempt {
    let socket = at("socket", Socket::new(domain(to), Type::STREAM, None))?;
    // The kernel sends what is left after the end of the task, which would count for the next policy.
    at("linger", socket.set_linger(Some(Duration::ZERO)))?;
    let sent = socket.send_to_with_flags(b"hello", &address(to, PORT), libc::MSG_FASTOPEN);
    at("send", sent).map(drop)
}

#[derive(Clone, Copy, Debug)]
enum RingOperation {
    Connect,
    Send,
}

fn through_ring(to: IpAddr, what: RingOperation) -> Attempt {
    // A library that starts a runtime on a ring cannot say that there is none.
    at("seccomp", io_uring::IoUring::new(2))?;
    let to = SocketAddr::from((to, PORT));
    let done = tokio_uring::start(async {
        match what {
            RingOperation::Connect => tokio_uring::net::TcpStream::connect(to).await.map(drop),
            RingOperation::Send => {
                let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
                let socket = tokio_uring::net::UdpSocket::bind(any).await?;
                socket.send_to(b"hello".to_vec(), to).await.0.map(drop)
            }
        }
    });
    at("send", done)
}

fn udp(to: IpAddr, port: u16) -> Attempt {
    let socket = at("socket", Socket::new(domain(to), Type::DGRAM, None))?;
    send(&socket, &address(to, port), b"hello")
}

fn udp_connected(to: IpAddr, _: &Reach) -> Attempt {
    let socket = at("socket", Socket::new(domain(to), Type::DGRAM, None))?;
    at("send", socket.connect(&address(to, PORT)))?;
    at("send", socket.send(b"hello")).map(drop)
}

fn send(socket: &Socket, to: &SockAddr, bytes: &[u8]) -> Attempt {
    at("send", socket.send_to(bytes, to)).map(drop)
}

fn raw(to: IpAddr, protocol: i32, bytes: &[u8]) -> Attempt {
    let protocol = Some(Protocol::from(protocol));
    let socket = at("capability", Socket::new(domain(to), Type::RAW, protocol))?;
    send(&socket, &address(to, 0), bytes)
}

/// An IPv4 packet with a UDP header, at this offset of a larger one. Source and sum are the kernel's to fill in.
fn packet(to: IpAddr, offset: u16) -> Vec<u8> {
    let IpAddr::V4(to) = to else {
        panic!("{to} is not an address for it");
    };
    let mut packet = vec![0x45, 0, 0, 33, 0, 1];
    packet.extend(offset.to_be_bytes());
    packet.extend([64, 17, 0, 0, 0, 0, 0, 0]);
    packet.extend(to.octets());
    packet.extend(9_u16.to_be_bytes());
    packet.extend(PORT.to_be_bytes());
    packet.extend([0, 13, 0, 0]);
    packet.extend(b"hello");
    packet
}

/// An IPv6 packet with these headers before a UDP header.
fn raw6(to: IpAddr, extensions: &[Extension]) -> Attempt {
    let IpAddr::V6(address) = to else {
        panic!("{to} is not an address for it");
    };
    let packet = udp_behind(extensions, MACHINE6, address, PORT);
    raw(to, libc::IPPROTO_RAW, &packet)
}

/// No safe function sends to a device, so a program does, where the socket is had at all.
fn frame(to: IpAddr, reach: &Reach) -> Attempt {
    at("seccomp", Socket::new(Domain::PACKET, Type::RAW, None))?;
    let mut frame = vec![0xff; 6];
    frame.extend([2, 0, 0, 0, 0, 1, 0x08, 0x00]);
    frame.extend(packet(to, 0));
    let hex = frame
        .iter()
        .fold(String::new(), |hex, byte| format!("{hex}{byte:02x}"));
    let script = "socket(my $s, 17, 3, 0) or exit 2; \
                  my $to = pack('S n i S C C a8', 17, 0x0800, $ARGV[0], 0, 0, 6, chr(255) x 6); \
                  send($s, pack('H*', $ARGV[1]), 0, $to) or exit 3";
    let run = Command::new("/usr/bin/perl")
        .args(["-e", script, &reach.device.to_string(), &hex])
        .status();
    match at("perl", run)?.code() {
        Some(0) => Ok(()),
        other => Err(format!("perl {other:?}")),
    }
}

/// The two sockets that somebody outside hands out at an abstract name.
fn passed(reach: &Reach) -> Result<[OwnedFd; 2], String> {
    let address = UnixAddr::from_abstract_name(&reach.name).unwrap();
    let stream = UnixStream::connect_addr(&address);
    // In another namespace nobody listens; in the same one Landlock refuses the listener.
    let wall = match &stream {
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => "scope",
        _ => "namespace",
    };
    let stream = at(wall, stream)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut word = [0; 4];
    let mut into = [IoSliceMut::new(&mut word)];
    at(
        "receive",
        recvmsg(&stream, &mut into, &mut control, RecvFlags::empty()),
    )?;
    let sockets: Vec<OwnedFd> = control
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(sockets) => Some(sockets),
            _ => None,
        })
        .flatten()
        .collect();
    sockets
        .try_into()
        .map_err(|sockets| format!("receive {sockets:?}"))
}

/// The agent was started with a socket that its children inherit.
fn inherited(_: IpAddr, _: &Reach) -> Attempt {
    let descriptors = at("look", fs::read_dir("/proc/self/fd"))?;
    let is_socket = |entry: io::Result<fs::DirEntry>| {
        let link = entry.and_then(|entry| fs::read_link(entry.path()));
        link.is_ok_and(|link| link.to_string_lossy().starts_with("socket:"))
    };
    let any = { descriptors }.any(is_socket);
    any.then_some(()).ok_or_else(|| "none".to_owned())
}

fn solicitation(to: IpAddr, reach: &Reach) -> Attempt {
    let protocol = Some(Protocol::ICMPV6);
    let socket = at("capability", Socket::new(Domain::IPV6, Type::RAW, protocol))?;
    at("option", socket.set_multicast_hops_v6(255))?;
    at("option", socket.set_multicast_if_v6(reach.device))?;
    let mut message = vec![135, 0, 0, 0, 0, 0, 0, 0];
    message.extend(MACHINE6.octets());
    send(&socket, &address(to, 0), &message)
}

fn link_local(to: IpAddr, reach: &Reach) -> Attempt {
    let IpAddr::V6(address) = to else {
        panic!("{to} is not an address for it");
    };
    let socket = at("socket", Socket::new(Domain::IPV6, Type::DGRAM, None))?;
    let to = SocketAddrV6::new(address, PORT, 0, reach.device);
    send(&socket, &to.into(), b"hello")
}

fn broadcast(to: IpAddr, _: &Reach) -> Attempt {
    let socket = at("socket", Socket::new(Domain::IPV4, Type::DGRAM, None))?;
    at("option", socket.set_broadcast(true))?;
    send(&socket, &address(to, PORT), b"hello")
}

fn foreign_source(to: IpAddr, _: &Reach) -> Attempt {
    let socket = at("socket", Socket::new(Domain::IPV4, Type::DGRAM, None))?;
    at("capability", socket.set_ip_transparent_v4(true))?;
    let nobody = IpAddr::from([192, 0, 2, 1]);
    at("option", socket.bind(&address(nobody, 0)))?;
    send(&socket, &address(to, PORT), b"hello")
}

fn bound_to_a_device(to: IpAddr, reach: &Reach) -> Attempt {
    let socket = at("socket", Socket::new(Domain::IPV4, Type::DGRAM, None))?;
    at(
        "option",
        socket.bind_device(Some(reach.device_name.as_bytes())),
    )?;
    send(&socket, &address(to, PORT), b"hello")
}

fn marked(to: IpAddr, _: &Reach) -> Attempt {
    let socket = at("socket", Socket::new(Domain::IPV4, Type::DGRAM, None))?;
    at("capability", socket.set_mark(7))?;
    send(&socket, &address(to, PORT), b"hello")
}

fn own_loopback(_: IpAddr, _: &Reach) -> Attempt {
    let listener = at("listen", TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))?;
    let here = at("listen", listener.local_addr())?;
    at("send", TcpStream::connect_timeout(&here, PATIENCE)).map(drop)
}

/// Gives loopback another address, by a request with its acknowledgement.
fn netlink(to: IpAddr, _: &Reach) -> Attempt {
    const NEW_ADDRESS: u16 = 20;
    const FLAGS: u16 = 0x1 | 0x4 | 0x100 | 0x400;
    let IpAddr::V4(address) = to else {
        panic!("{to} is not an address for it");
    };
    let mut body = vec![2, 32, 0, 0, 1, 0, 0, 0];
    for attribute in [1_u16, 2] {
        body.extend(8_u16.to_ne_bytes());
        body.extend(attribute.to_ne_bytes());
        body.extend(address.octets());
    }
    let length = u32::try_from(16 + body.len()).unwrap();
    let mut request = length.to_ne_bytes().to_vec();
    request.extend(NEW_ADDRESS.to_ne_bytes());
    request.extend(FLAGS.to_ne_bytes());
    request.extend([0; 8]);
    request.extend(body);
    let mut socket = at(
        "socket",
        Socket::new(Domain::from(libc::AF_NETLINK), Type::RAW, None),
    )?;
    at("request", socket.send(&request))?;
    let mut answer = [0; 64];
    at("request", io::Read::read(&mut socket, &mut answer))?;
    let number = i32::from_ne_bytes(answer[16..20].try_into().unwrap());
    match number {
        0 => Ok(()),
        _ => at("capability", Err(io::Error::from_raw_os_error(-number))),
    }
}

/// Families that lead past the network have no other use here than to be opened: nobody on the wire would see it.
fn family(domain: Domain, kind: Type) -> Attempt {
    at("seccomp", Socket::new(domain, kind, None))?;
    Err("out".to_owned())
}

/// A task that gets through would be the agent to the driver.
fn driver(reach: &Reach) -> Attempt {
    at("namespace", UnixStream::connect(&reach.driver))?;
    Err("out".to_owned())
}

/// The last: from here on no policy of the task's is met.
fn from_another_cgroup(to: IpAddr, reach: &Reach) -> Attempt {
    at("namespace", fs::write(&reach.foreign_cgroup, "0"))?;
    udp(to, PORT)
}
