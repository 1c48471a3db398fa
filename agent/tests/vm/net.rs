//! Traffic on loopback.

use std::net::{Ipv4Addr, UdpSocket};

use crate::{bpf::NetCounters, node::Node};

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
