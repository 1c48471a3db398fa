//! How fast a task may send and receive.
//!
//! A rate is tested from below: so many bytes take at least so long, however slow the machine is.

use std::io::Read as _;
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use muster_domain::job::{BitRate, DirectionPolicy};

use crate::bpf::{Bpf, NetCounters};
use crate::node::{Node, TestGroup, poll, pour};
use crate::policy::{attach_policy, open, policies};

/// A mebibyte takes a second.
const RATE: u64 = 8 << 20;
/// Bytes that pass without waiting: a quarter of a second's worth, and packets that were on their way.
const BURST: u64 = (1 << 18) + (3 << 16);
/// Bytes that are sent.
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
fn egress_stays_within_rate_until_limit_is_lifted() {
    let name = "egress_stays_within_rate_until_limit_is_lifted";
    let Some(mut node) = Node::set_up(name) else {
        return;
    };
    let bpf = node.open();
    attach_policy(&node, &bpf, &policies(limited(), open()));
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

    attach_policy(&node, &bpf, &policies(open(), open()));
    let lifted = net(&node, &bpf).egress_limited;
    take(&stream, 32 * BYTES);
    assert_eq!(net(&node, &bpf).egress_limited, lifted);
    node.kill();
}

#[test]
fn ingress_stays_within_rate_limit() {
    let Some(mut node) = Node::set_up("ingress_stays_within_rate_limit") else {
        return;
    };
    let bpf = node.open();
    attach_policy(&node, &bpf, &policies(open(), limited()));
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
    attach_policy(&node, &bpf, &policies(limited(), open()));
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

/// Windows in which a rate is measured. A slow machine may send too little in one of them.
const WINDOWS: u32 = 20;

/// Measures the rate at which a counter grows, in bits a second, while `BYTES` are counted twice over.
fn growth_rate(name: &str, counted: impl Fn() -> u64) -> f64 {
    let (first, start) = (counted(), Instant::now());
    let passed = poll(name, || {
        let passed = counted() - first;
        (passed >= 2 * BYTES).then_some(passed)
    });
    passed as f64 * 8.0 / start.elapsed().as_secs_f64()
}

/// Asserts that a counter grows at the rate in some window, and never faster than the rate and a whole burst. A sender
/// on an emulated processor pauses, so a window has less than the rate, or a burst on top.
fn reaches_the_rate(name: &str, counted: impl Fn() -> u64) {
    let mut rates = Vec::new();
    for _ in 0..WINDOWS {
        let share = growth_rate(name, &counted) / RATE as f64;
        assert!(share < 1.2, "{name}: {share:.3} of the rate");
        if share > 0.9 {
            return;
        }
        rates.push(share);
    }
    panic!("{name}: {rates:.3?} of the rate, in no window near it");
}

/// Traffic that comes much too fast passes at the rate, in either direction.
#[test]
fn datagrams_pass_at_the_rate_in_either_direction() {
    let name = "datagrams_pass_at_the_rate_in_either_direction";
    let Some(mut node) = Node::set_up(name) else {
        return;
    };
    let bpf = node.open();

    attach_policy(&node, &bpf, &policies(limited(), open()));
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    node.start(&format!("flood {}", socket.local_addr().unwrap()));
    // The burst is spent when the first datagram is dropped.
    poll("datagrams above the rate", || {
        (net(&node, &bpf).egress_limited > 0).then_some(())
    });
    reaches_the_rate("sent", || net(&node, &bpf).egress_bytes);
    node.kill();

    attach_policy(&node, &bpf, &policies(open(), limited()));
    let (server, port) = node.serve("hear 127.0.0.1:0", TestGroup::Task);
    let flood = TrafficFlood::start(port);
    poll("datagrams above the rate", || {
        (net(&node, &bpf).ingress_limited > 0).then_some(())
    });
    reaches_the_rate("received", || net(&node, &bpf).ingress_bytes);
    drop((flood, server));
}

/// Somebody outside of the task who sends it more than it may receive.
struct TrafficFlood {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl TrafficFlood {
    fn start(port: u16) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback has a free port");
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                // The fate of each datagram is counted, not told.
                drop(socket.send_to(&[0; 1_000], (Ipv4Addr::LOCALHOST, port)));
            }
        });
        Self {
            stop,
            thread: Some(thread),
        }
    }
}

impl Drop for TrafficFlood {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("it does not panic");
        }
    }
}

/// Traffic within an allocation is under no rate, as it costs nobody's network anything.
#[test]
fn traffic_within_the_allocation_has_no_rate() {
    let Some(mut node) = Node::set_up("traffic_within_the_allocation_has_no_rate") else {
        return;
    };
    let bpf = node.open();
    attach_policy(&node, &bpf, &policies(limited(), limited()));
    let (server, port) = node.serve("sink 127.0.0.1:0", TestGroup::Neighbour);

    node.start(&format!("pour 127.0.0.1:{port}"));

    let passed = poll("many mebibytes", || {
        let now = net(&node, &bpf);
        (now.egress_bytes >= 64 * BYTES).then_some(now)
    });
    assert_eq!((passed.egress_limited, passed.ingress_limited), (0, 0));
    node.kill();
    drop(server);
}
