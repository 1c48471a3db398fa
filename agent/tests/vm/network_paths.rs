//! The ways out that do not go through an ordinary `connect` or `send`, from a process that is root in the task's
//! cgroup. Each ends at the wall. Ways that no program of this kind can stop are named beside it.
//!
//! Not here, because no policy stops them: packet sockets, which isolation does (no `NET_RAW`, no `AF_PACKET` in
//! `contained`: `driver-native/tests/isolation`), and sockets that a process outside hands in.

use std::collections::BTreeSet;
use std::io::{self, ErrorKind};
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use muster_domain::job::{PolicyAction, PolicyProtocol};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use crate::ipv6::{
    DESTINATION_OPTIONS, Extension, FIRST_FRAGMENT, HOP_BY_HOP, LATER_FRAGMENT, UNKNOWN, udp_behind,
};
use crate::node::{CHILD_VAR, Node, TestGroup, exit_with, poll};
use crate::policy::{attach_policy, closed, direction, ended, open, policies, rule};

/// An address that nobody has.
const NOWHERE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

/// Takes a way out in a process of the task. Not a test: it is named on its command line.
#[test]
#[ignore = "run by the other test as its child process"]
fn child() {
    if let Ok(order) = std::env::var(CHILD_VAR) {
        exit_with(take(&order));
    }
}

/// The outcome of a way out.
fn outcome(node: &mut Node, way: &str, port: u16) -> String {
    node.start_as("network_paths::child", &format!("{way} {port}"));
    ended(node)
}

/// Carries out the order `NAME PORT`.
fn take(order: &str) -> io::Result<()> {
    let (way, port) = order.split_once(' ').unwrap();
    let port: u16 = port.parse().unwrap();
    let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let loopback6 = SocketAddr::from((Ipv6Addr::LOCALHOST, port));
    let mapped = SocketAddr::from((Ipv4Addr::LOCALHOST.to_ipv6_mapped(), port));
    let nowhere = SocketAddr::from((NOWHERE, port));
    let udp = Some(Protocol::UDP);
    match way {
        "udp-connected" => {
            let socket = Socket::new(Domain::IPV4, Type::DGRAM, udp)?;
            socket.connect(&loopback.into())?;
            socket.send(b"hello").map(drop)
        }
        "udp-mapped" => send(
            Socket::new(Domain::IPV6, Type::DGRAM, udp)?,
            mapped,
            b"hello",
        ),
        "udp-v6" => send(
            Socket::new(Domain::IPV6, Type::DGRAM, udp)?,
            loopback6,
            b"hello",
        ),
        "fast-open" => {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
            let fast_open = libc::MSG_FASTOPEN;
            socket
                .send_to_with_flags(b"hello", &nowhere.into(), fast_open)
                .map(drop)
        }
        "mptcp" => {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::MPTCP))?;
            socket.connect(&nowhere.into())
        }
        "icmp-raw" => {
            let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::ICMPV4))?;
            send(socket, loopback, &[8, 0, 0xf7, 0xfe, 0, 1, 0, 0])
        }
        "udp-by-hand" => send(by_hand()?, loopback, &packet(port, 0)),
        "fragment-by-hand" => send(by_hand()?, loopback, &packet(port, 1)),
        "sctp-by-hand" => {
            let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::from(132)))?;
            send(socket, loopback, &[0; 16])
        }
        "io-uring" => tokio_uring::start(async {
            tokio_uring::net::TcpStream::connect(nowhere)
                .await
                .map(drop)
        }),
        other => take_rare(other, port),
    }
}

/// The same, of ways that few programs take.
fn take_rare(way: &str, port: u16) -> io::Result<()> {
    let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let udp = Some(Protocol::UDP);
    match way {
        "sctp6-by-hand" => {
            let socket = Socket::new(Domain::IPV6, Type::RAW, Some(Protocol::from(132)))?;
            send(socket, SocketAddr::from((Ipv6Addr::LOCALHOST, 0)), &[0; 16])
        }
        "udp6-by-hand" => send6(&[], port),
        "udp6-behind-options" => send6(&[HOP_BY_HOP, DESTINATION_OPTIONS], port),
        "udp6-behind-many" => send6(&[DESTINATION_OPTIONS; 12], port),
        "udp6-first-fragment" => send6(&[FIRST_FRAGMENT], port),
        "udp6-later-fragment" => send6(&[LATER_FRAGMENT], port),
        "udp6-behind-unknown" => send6(&[UNKNOWN], port),
        "neighbour" => solicit(255, 0, &[]),
        "neighbour-beyond-a-router" => solicit(254, 0, &[]),
        "neighbour-with-a-code" => solicit(255, 1, &[]),
        "neighbour-behind-options" => solicit(255, 0, &[60, 58, 0, 1, 4, 0, 0, 0, 0]),
        "neighbour-in-a-fragment" => solicit(255, 0, &[44, 58, 0, 0, 1, 0, 0, 0, 9]),
        "broadcast" | "multicast" => {
            let socket = Socket::new(Domain::IPV4, Type::DGRAM, udp)?;
            socket.set_broadcast(true)?;
            socket.set_multicast_if_v4(&Ipv4Addr::LOCALHOST)?;
            let to = if way == "broadcast" {
                LOCAL_BROADCAST
            } else {
                ALL_HOSTS
            };
            send(socket, SocketAddr::from((to, port)), b"hello")
        }
        "bound-to-a-device" => {
            let socket = Socket::new(Domain::IPV4, Type::DGRAM, udp)?;
            socket.bind_device(Some(b"lo"))?;
            send(socket, loopback, b"hello")
        }
        "marked" => {
            let socket = Socket::new(Domain::IPV4, Type::DGRAM, udp)?;
            socket.set_mark(7)?;
            send(socket, loopback, b"hello")
        }
        "from-a-foreign-address" => {
            let socket = Socket::new(Domain::IPV4, Type::DGRAM, udp)?;
            socket.set_ip_transparent_v4(true)?;
            socket.bind(&SocketAddr::from((NOWHERE, 0)).into())?;
            send(socket, loopback, b"hello")
        }
        other => panic!("no such way: {other}"),
    }
}

/// The address of all on the loopback network.
const LOCAL_BROADCAST: Ipv4Addr = Ipv4Addr::new(127, 255, 255, 255);
/// All hosts of the link.
const ALL_HOSTS: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 1);

/// Sends an IPv6 packet to loopback with these headers before a UDP header to `port`.
fn send6(extensions: &[Extension], port: u16) -> io::Result<()> {
    let packet = udp_behind(extensions, Ipv6Addr::LOCALHOST, Ipv6Addr::LOCALHOST, port);
    let raw = Some(Protocol::from(libc::IPPROTO_RAW));
    let socket = Socket::new(Domain::IPV6, Type::RAW, raw)?;
    send(socket, SocketAddr::from((Ipv6Addr::LOCALHOST, 0)), &packet)
}

/// Looks for a neighbour with this hop limit and code, behind a header: its number, and what is in it.
fn solicit(hops: u8, code: u8, header: &[u8]) -> io::Result<()> {
    let (first, header) = header.split_first().unwrap_or((&58, &[]));
    let mut body = header.to_vec();
    body.extend([135, code, 0, 0, 0, 0, 0, 0]);
    body.extend(Ipv6Addr::LOCALHOST.octets());
    let mut packet = vec![0x60, 0, 0, 0, 0, u8::try_from(body.len()).unwrap()];
    packet.extend([*first, hops]);
    packet.extend([Ipv6Addr::LOCALHOST.octets(); 2].concat());
    packet.extend(body);
    let raw = Some(Protocol::from(libc::IPPROTO_RAW));
    let socket = Socket::new(Domain::IPV6, Type::RAW, raw)?;
    send(socket, SocketAddr::from((Ipv6Addr::LOCALHOST, 0)), &packet)
}

fn send(socket: Socket, to: SocketAddr, bytes: &[u8]) -> io::Result<()> {
    socket.send_to(bytes, &SockAddr::from(to)).map(drop)
}

/// A socket whose packets come with their IP header.
fn by_hand() -> io::Result<Socket> {
    Socket::new(
        Domain::IPV4,
        Type::RAW,
        Some(Protocol::from(libc::IPPROTO_RAW)),
    )
}

/// An IPv4 packet to loopback with a UDP header to `port`, at this offset of a larger one.
fn packet(port: u16, offset: u16) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 0, 0, 1];
    packet.extend(offset.to_be_bytes());
    packet.extend([64, 17, 0, 0]);
    packet.extend(Ipv4Addr::LOCALHOST.octets());
    packet.extend(Ipv4Addr::LOCALHOST.octets());
    packet.extend(9_u16.to_be_bytes());
    packet.extend(port.to_be_bytes());
    packet.extend([0, 13, 0, 0]);
    packet.extend(b"hello");
    packet
}

#[test]
fn every_way_out_ends_at_the_wall() {
    let Some(mut node) = Node::set_up("every_way_out_ends_at_the_wall") else {
        return;
    };
    let bpf = node.open();
    let receiver = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let receiver6 = UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).unwrap();
    let (port, port6) = (
        receiver.local_addr().unwrap().port(),
        receiver6.local_addr().unwrap().port(),
    );
    let local = [
        ("udp-connected", port),
        ("udp-mapped", port),
        ("udp-v6", port6),
        ("icmp-raw", 0),
        ("udp-by-hand", port),
        ("fragment-by-hand", port),
        ("sctp-by-hand", 0),
        ("sctp6-by-hand", 0),
        ("udp6-by-hand", port6),
        ("udp6-behind-options", port6),
        ("udp6-behind-many", port6),
        ("udp6-first-fragment", port6),
        ("udp6-later-fragment", port6),
        ("udp6-behind-unknown", port6),
        ("broadcast", port),
        ("multicast", port),
        ("bound-to-a-device", port),
        ("marked", port),
        ("from-a-foreign-address", port),
    ];

    attach_policy(&node, &bpf, &policies(open(), open()));
    for (way, port) in local {
        assert_eq!(outcome(&mut node, way, port), "ok", "{way}");
    }
    attach_policy(&node, &bpf, &policies(closed(), closed()));
    for (way, port) in local.into_iter().chain([("fast-open", 80), ("mptcp", 80)]) {
        assert_eq!(outcome(&mut node, way, port), "EPERM", "{way}");
    }
    if has_io_uring() {
        assert_eq!(outcome(&mut node, "io-uring", 80), "EPERM");
    }

    // A packet that shows no port is not let out by a rule for ports, nor by one for UDP.
    let datagrams = |port| rule(PolicyAction::Allow, PolicyProtocol::Udp, "127.0.0.1", port);
    for rule in [datagrams(port), datagrams(0)] {
        attach_policy(
            &node,
            &bpf,
            &policies(direction(PolicyAction::Deny, vec![rule]), closed()),
        );
        assert_eq!(outcome(&mut node, "udp-by-hand", port), "ok");
        assert_eq!(outcome(&mut node, "fragment-by-hand", port), "EPERM");
        assert_eq!(outcome(&mut node, "sctp-by-hand", 0), "EPERM");
    }
    let datagrams = |port| rule(PolicyAction::Allow, PolicyProtocol::Udp, "::1", port);
    for rule in [datagrams(port6), datagrams(0)] {
        attach_policy(
            &node,
            &bpf,
            &policies(direction(PolicyAction::Deny, vec![rule]), closed()),
        );
        for way in ["udp6-by-hand", "udp6-behind-options", "udp6-first-fragment"] {
            assert_eq!(outcome(&mut node, way, port6), "ok", "{way}");
        }
        for way in [
            "udp6-behind-many",
            "udp6-later-fragment",
            "udp6-behind-unknown",
        ] {
            assert_eq!(outcome(&mut node, way, port6), "EPERM", "{way}");
        }
    }
    received(&receiver);
    received(&receiver6);
}

/// Packets that the receiver's kernel would take for neighbour discovery pass; packets that only look like it do not.
#[test]
fn only_neighbours_are_found_past_the_policy() {
    let Some(mut node) = Node::set_up("only_neighbours_are_found_past_the_policy") else {
        return;
    };
    let bpf = node.open();
    let others = [
        "neighbour-beyond-a-router",
        "neighbour-with-a-code",
        "neighbour-behind-options",
        "neighbour-in-a-fragment",
    ];

    attach_policy(&node, &bpf, &policies(open(), open()));
    for way in others {
        assert_eq!(outcome(&mut node, way, 0), "ok", "{way}");
    }
    attach_policy(&node, &bpf, &policies(closed(), closed()));
    assert_eq!(outcome(&mut node, "neighbour", 0), "ok");
    for way in others {
        assert_eq!(outcome(&mut node, way, 0), "EPERM", "{way}");
    }
}

/// A raw socket hears what the kernel answers, and the policy is asked for it.
#[test]
fn raw_socket_receives_only_allowed_ingress() {
    let Some(node) = Node::set_up("raw_socket_receives_only_allowed_ingress") else {
        return;
    };
    let bpf = node.open();
    let (_receiver, _) = node.serve("hear-echoes", TestGroup::Task);
    let raw = Some(Protocol::ICMPV4);
    let caller = Socket::new(Domain::IPV4, Type::RAW, raw).unwrap();
    let to = SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into();
    let echo = || {
        caller
            .send_to(&[8, 0, 0xf7, 0xfe, 0, 1, 0, 0], &to)
            .unwrap()
    };

    attach_policy(&node, &bpf, &policies(open(), closed()));
    echo();
    poll("a refused echo", || {
        (node.counters(&bpf).net.ingress_denied > 0).then_some(())
    });
    assert_eq!(node.counters(&bpf).net.ingress_packets, 0);

    attach_policy(&node, &bpf, &policies(open(), open()));
    echo();
    poll("an echo", || {
        (node.counters(&bpf).net.ingress_packets > 0).then_some(())
    });
}

/// A socket is its maker's: who has it passed in takes calls past its own policy, as who passed it could.
#[test]
fn passed_socket_follows_policy_of_its_creator() {
    let Some(node) = Node::set_up("passed_socket_follows_policy_of_its_creator") else {
        return;
    };
    let bpf = node.open();
    attach_policy(&node, &bpf, &policies(closed(), closed()));
    let stranger = node.id_of(TestGroup::Stranger);
    let order = format!(
        "serve-made-in {}",
        node.cgroup_dir.join("other/task").display()
    );
    let (_serves, port) = node.serve(&order, TestGroup::Task);
    let call = || {
        let to = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        std::net::TcpStream::connect_timeout(&to, crate::node::SILENCE).map(drop)
    };

    call().unwrap();

    // The maker's policy holds it.
    let shut = policies(closed(), closed());
    bpf.attach_policy(stranger, &shut, &BTreeSet::new())
        .unwrap();
    assert_eq!(call().unwrap_err().kind(), ErrorKind::TimedOut);
}

/// Says so if not.
fn has_io_uring() -> bool {
    let has = std::panic::catch_unwind(|| tokio_uring::start(async {})).is_ok();
    if !has {
        let reason = "the kernel of this machine gives no io_uring: its way was not tried";
        crate::support::skipped(
            "network_paths::every_way_out_ends_at_the_wall(io_uring)",
            reason,
        );
    }
    has
}

/// Takes what was let through, so that nothing of it surprises.
fn received(socket: &UdpSocket) {
    socket.set_nonblocking(true).unwrap();
    let mut buffer = [MaybeUninit::uninit(); 64];
    let socket = socket2::SockRef::from(socket);
    loop {
        match socket.recv(&mut buffer) {
            Ok(length) => assert_eq!(length, 5),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return,
            Err(error) => panic!("{error}"),
        }
    }
}
