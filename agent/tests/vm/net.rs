//! Traffic and connections on loopback.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};

use crate::bpf::NetCounters;
use crate::node::{Node, TestGroup, poll};
use crate::policy::{attach_policy, closed, open, outcome, policies};
use crate::support::until;

/// Ten times 100 bytes, each with 20 of IP and 8 of UDP. The receiver is in another cgroup.
#[test]
fn datagrams_on_loopback_are_counted() {
    let Some(mut node) = Node::set_up("datagrams_on_loopback_are_counted") else {
        return;
    };
    let bpf = node.open();
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();

    node.start(&format!("send {}", socket.local_addr().unwrap().port()));
    node.wait();

    let expected = NetCounters {
        egress_bytes: 1_280,
        egress_packets: 10,
        ..NetCounters::default()
    };
    assert_eq!(node.counters(&bpf).net, expected);
}

/// One connection each way. The other side is this test, which is in no task.
#[test]
fn connections_are_counted_by_initiator() {
    let Some(mut node) = Node::set_up("connections_are_counted_by_initiator") else {
        return;
    };
    let bpf = node.open();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let to = listener.local_addr().unwrap();
    let tcp = || {
        let net = node.counters(&bpf).net;
        (net.tcp_opened, net.tcp_accepted)
    };
    assert_eq!(bpf.absent().get("connections"), None);
    assert_eq!(tcp(), (0, 0));

    let (server, port) = node.serve("serve-tcp 127.0.0.1:0", TestGroup::Task);
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    // The connection is accepted with the last packet of the handshake, which `connect` does not wait for.
    until("an accepted connection", || (tcp() == (0, 1)).then_some(()));
    drop((stream, server));

    assert_eq!(outcome(&mut node, &format!("connect {to}")), "ok");
    // Nobody listens there any more: what is refused is no connection.
    drop(listener);
    node.start(&format!("connect {to}"));
    assert!(!node.wait().success());

    let net = node.counters(&bpf).net;
    assert_eq!((net.tcp_opened, net.tcp_accepted), (1, 1));
    assert_eq!(net.tcp_retransmits, 0);
}

/// The policy of the other side throws away what the task sends, which sends it again.
#[test]
fn retransmits_are_those_of_the_sender() {
    let Some(mut node) = Node::set_up("retransmits_are_those_of_the_sender") else {
        return;
    };
    let bpf = node.open();
    attach_policy(&node, &bpf, &policies(open(), open()));
    let stranger = node.id_of(TestGroup::Stranger);
    let (server, port) = node.serve("serve-tcp 127.0.0.1:0", TestGroup::Stranger);
    bpf.attach_policy(
        stranger,
        &policies(open(), closed()),
        &BTreeSet::from([port]),
    )
    .unwrap();
    assert_eq!(bpf.absent().get("tcp_retransmits"), None);

    node.start(&format!("connect 127.0.0.1:{port}"));

    poll("a segment that is sent once more", || {
        (node.counters(&bpf).net.tcp_retransmits > 0).then_some(())
    });
    assert_eq!(node.counters(&bpf).net.tcp_opened, 0);
    node.kill();
    drop(server);
}
