//! How fast a task may send and receive.
//!
//! A rate is tested from below: so many bytes take at least so long, however slow the machine is.

use std::io::Read as _;
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use muster_domain::job::{BitRate, DirectionPolicy};

use crate::bpf::{Bpf, NetCounters};
use crate::node::{Node, Place, poll, pour};
use crate::policy::{fence, open, policies};

/// A mebibyte takes a second.
const RATE: u64 = 8 << 20;
/// What passes without waiting: a quarter of a second's worth, and packets that were on their way.
const BURST: u64 = (1 << 18) + (3 << 16);
/// What is sent.
const BYTES: u64 = 1 << 20;

fn limited() -> DirectionPolicy {
    DirectionPolicy {
        rate: Some(BitRate(RATE)),
        ..open()
    }
}

/// The least time that `bytes` take.
fn least(bytes: u64) -> Duration {
    Duration::from_secs_f64((bytes - BURST) as f64 * 8.0 / RATE as f64)
}

fn net(node: &Node, bpf: &Bpf) -> NetCounters {
    node.counters(bpf).net
}

/// Reads so many bytes.
fn take(mut stream: &TcpStream, bytes: u64) {
    let read = std::io::copy(&mut stream.by_ref().take(bytes), &mut std::io::sink());
    assert_eq!(read.expect("the stream goes on"), bytes);
}

#[test]
fn what_a_task_sends_is_kept_to_its_rate_until_that_is_lifted() {
    let name = "what_a_task_sends_is_kept_to_its_rate_until_that_is_lifted";
    let Some(mut node) = Node::set_up(name) else {
        return;
    };
    let bpf = node.open();
    fence(&node, &bpf, &policies(limited(), open()));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let start = Instant::now();
    node.start(&format!("pour {}", listener.local_addr().unwrap()));
    let (stream, _) = listener.accept().unwrap();

    take(&stream, BYTES);

    let took = start.elapsed();
    assert!(took >= least(BYTES), "{took:?}");
    let slowed = poll("packets above the rate", || {
        let now = net(&node, &bpf);
        (now.egress_limited > 0).then_some(now)
    });
    assert_eq!((slowed.ingress_limited, slowed.egress_denied), (0, 0));

    fence(&node, &bpf, &policies(open(), open()));
    let lifted = net(&node, &bpf).egress_limited;
    take(&stream, 32 * BYTES);
    assert_eq!(net(&node, &bpf).egress_limited, lifted);
    node.kill();
}

#[test]
fn what_a_task_receives_is_kept_to_its_rate() {
    let Some(mut node) = Node::set_up("what_a_task_receives_is_kept_to_its_rate") else {
        return;
    };
    let bpf = node.open();
    fence(&node, &bpf, &policies(open(), limited()));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let start = Instant::now();
    node.start(&format!("drain {}", listener.local_addr().unwrap()));
    let (stream, _) = listener.accept().unwrap();
    let pouring = std::thread::spawn(move || pour(&stream));

    let passed = poll("a mebibyte", || {
        let now = net(&node, &bpf);
        (now.ingress_bytes >= BYTES && now.ingress_limited > 0).then_some(now)
    });

    let took = start.elapsed();
    assert!(took >= least(passed.ingress_bytes), "{took:?} {passed:?}");
    assert_eq!((passed.egress_limited, passed.ingress_denied), (0, 0));
    node.kill();
    pouring.join().unwrap();
}

#[test]
fn datagrams_above_the_rate_are_thrown_away() {
    let Some(mut node) = Node::set_up("datagrams_above_the_rate_are_thrown_away") else {
        return;
    };
    let bpf = node.open();
    fence(&node, &bpf, &policies(limited(), open()));
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let start = Instant::now();
    node.start(&format!("flood {}", socket.local_addr().unwrap()));

    let passed = poll("half a mebibyte of datagrams", || {
        let now = net(&node, &bpf);
        (now.egress_bytes >= BYTES / 2 && now.egress_limited > 0).then_some(now)
    });

    let took = start.elapsed();
    assert!(took >= least(passed.egress_bytes), "{took:?} {passed:?}");
    assert_eq!(passed.egress_denied, 0);
    node.kill();
}

/// What stays within an allocation costs nobody's network anything.
#[test]
fn traffic_within_the_allocation_has_no_rate() {
    let Some(mut node) = Node::set_up("traffic_within_the_allocation_has_no_rate") else {
        return;
    };
    let bpf = node.open();
    fence(&node, &bpf, &policies(limited(), limited()));
    let (server, port) = node.serve("sink 127.0.0.1:0", Place::Neighbour);

    node.start(&format!("pour 127.0.0.1:{port}"));

    let passed = poll("many mebibytes", || {
        let now = net(&node, &bpf);
        (now.egress_bytes >= 64 * BYTES).then_some(now)
    });
    assert_eq!((passed.egress_limited, passed.ingress_limited), (0, 0));
    node.kill();
    drop(server);
}
