//! Effects of the programs on devices upon packets; whole networks are in `cli/tests/e2e/bridge.rs`.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use crate::bpf::{Bpf, GATEWAY, PublishedKey, PublishedPort};
use crate::node::Node;

const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMP: u8 = 1;

/// Answers of programs: `TC_ACT_UNSPEC`, `TC_ACT_SHOT`, `TC_ACT_REDIRECT`.
const PASSED: u32 = u32::MAX;
const DROPPED: u32 = 2;
const REDIRECTED: u32 = 7;

/// Loopback, the one device that is everywhere: it stands for the host veth.
const HOST_VETH: u32 = 1;

const MACHINE: [u8; 4] = [10, 9, 0, 1];
const CLIENT: [u8; 4] = [10, 9, 0, 2];
const INSIDE: [u8; 4] = [172, 26, 64, 2];

/// One end of an exchange.
type Endpoint = ([u8; 4], u16);

fn sum(bytes: &[u8], start: u32) -> u16 {
    let words = bytes.chunks(2).map(|word| {
        let low = word.get(1).copied().unwrap_or(0);
        u32::from(u16::from_be_bytes([word[0], low]))
    });
    let mut sum = start + words.sum::<u32>();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u16::try_from(sum).unwrap()
}

fn ipv4(protocol: u8, from: [u8; 4], to: [u8; 4], payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(20 + payload.len()).unwrap().to_be_bytes();
    let mut header = vec![
        0x45, 0, length[0], length[1], 0, 1, 0, 0, 64, protocol, 0, 0,
    ];
    header.extend(from);
    header.extend(to);
    let checksum = !sum(&header, 0);
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
    header.extend(payload);
    header
}

/// A packet of TCP or UDP with sums that are right.
fn packet(protocol: u8, (from, from_port): Endpoint, (to, to_port): Endpoint) -> Vec<u8> {
    let mut payload = [from_port.to_be_bytes(), to_port.to_be_bytes()].concat();
    if protocol == TCP {
        payload.extend([0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 0xff, 0xff, 0, 0, 0, 0]);
    } else {
        payload.extend([0, 12, 0, 0]);
    }
    payload.extend(b"talk");
    let place = if protocol == TCP { 16 } else { 6 };
    let checksum = !transport_sum(protocol, from, to, &payload);
    payload[place..place + 2].copy_from_slice(&checksum.to_be_bytes());
    ipv4(protocol, from, to, &payload)
}

fn transport_sum(protocol: u8, from: [u8; 4], to: [u8; 4], payload: &[u8]) -> u16 {
    let length = u32::try_from(payload.len()).unwrap();
    let ends = sum(&[from, to].concat(), 0);
    sum(payload, u32::from(ends) + u32::from(protocol) + length)
}

fn frame(packet: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; 12];
    frame.extend([0x08, 0x00]);
    frame.extend(packet);
    frame
}

/// Ends of a frame, whose sums must be right.
fn ends(frame: &[u8]) -> (Endpoint, Endpoint) {
    let packet = &frame[14..];
    assert_eq!(
        sum(&packet[..20], 0),
        0xffff,
        "the header's sum: {packet:?}"
    );
    let address = |at: usize| -> [u8; 4] { packet[at..at + 4].try_into().unwrap() };
    let port = |at: usize| u16::from_be_bytes([packet[at], packet[at + 1]]);
    let (from, to) = (address(12), address(16));
    let right = transport_sum(packet[9], from, to, &packet[20..]);
    assert_eq!(right, 0xffff, "the sum of what follows: {packet:?}");
    ((from, port(20)), (to, port(22)))
}

fn leads_inside(bpf: &Bpf, host_veth: u32) {
    for protocol in [TCP, UDP] {
        let key = PublishedKey {
            address: MACHINE,
            port: 8080,
            protocol,
            pad: 0,
        };
        let leads_to = PublishedPort {
            address: INSIDE,
            host_veth,
            port: 80,
            inside_mac: [2, 0, 0, 0, 0, 1],
            host_veth_mac: [2, 0, 0, 0, 0, 2],
            pad: 0,
        };
        bpf.publish(key, leads_to).unwrap();
    }
}

/// A device that is not loopback; machines without one have no published ports either.
fn wire() -> Option<u32> {
    let devices = std::fs::read_dir("/sys/class/net").ok()?;
    let mut indexes = devices.filter_map(|device| {
        let index = std::fs::read_to_string(device.ok()?.path().join("ifindex")).ok()?;
        index.trim().parse().ok()
    });
    indexes.find(|index| *index != HOST_VETH)
}

#[test]
fn published_port_traffic_is_translated_both_ways() {
    let name = "published_port_traffic_is_translated_both_ways";
    let Some(node) = Node::set_up(name) else {
        return;
    };
    let Some(wire) = wire() else {
        crate::support::skipped(name, "the machine has no device but loopback");
        return;
    };
    let bpf = node.open();
    leads_inside(&bpf, HOST_VETH);
    for protocol in [TCP, UDP] {
        let call = packet(protocol, (CLIENT, 40_000), (MACHINE, 8080));
        let (answer, inside) = bpf.judge_packet(true, &frame(&call), wire).unwrap();
        assert_eq!(answer, PASSED);
        assert_eq!(ends(&inside), ((CLIENT, 40_000), (INSIDE, 80)));

        let back = packet(protocol, (INSIDE, 80), (CLIENT, 40_000));
        let (answer, outside) = bpf.judge_packet(false, &frame(&back), wire).unwrap();
        assert_eq!(answer, PASSED);
        assert_eq!(ends(&outside), ((MACHINE, 8080), (CLIENT, 40_000)));

        let other = frame(&packet(protocol, (CLIENT, 40_000), (MACHINE, 8081)));
        let untouched = bpf.judge_packet(true, &other, wire).unwrap();
        assert_eq!(untouched, (PASSED, other));
        let stranger = frame(&packet(protocol, (INSIDE, 80), (CLIENT, 40_001)));
        let untouched = bpf.judge_packet(false, &stranger, wire).unwrap();
        assert_eq!(untouched, (PASSED, stranger), "nobody called from there");
    }
}

#[test]
fn a_datagram_without_a_sum_stays_without_one() {
    let name = "a_datagram_without_a_sum_stays_without_one";
    let Some(node) = Node::set_up(name) else {
        return;
    };
    let bpf = node.open();
    leads_inside(&bpf, HOST_VETH);
    let mut call = frame(&packet(UDP, (CLIENT, 40_000), (MACHINE, 8080)));
    call[40..42].fill(0);

    // By loopback, on which only what goes out is looked at.
    let (answer, inside) = bpf.judge_packet(false, &call, HOST_VETH).unwrap();

    assert_eq!(answer, REDIRECTED);
    assert_eq!(inside[40..42], [0, 0]);
    assert_eq!(inside[30..34], INSIDE);
    assert_eq!(inside[..12], [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]);
}

#[test]
fn untranslatable_packet_is_dropped_and_counted() {
    let Some(node) = Node::set_up("untranslatable_packet_is_dropped_and_counted") else {
        return;
    };
    let bpf = node.open();
    leads_inside(&bpf, HOST_VETH);
    let mut call = frame(&packet(TCP, (CLIENT, 40_000), (MACHINE, 8080)));
    // Ports, and no sum behind them that could be put right.
    call.truncate(14 + 20 + 8);
    let before = bpf.lost().unwrap();

    let (answer, _) = bpf.judge_packet(false, &call, HOST_VETH).unwrap();

    assert_eq!(answer, DROPPED);
    assert_eq!(bpf.lost().unwrap(), before + 1);
}

#[test]
fn host_reaches_published_port_by_any_own_address() {
    let name = "host_reaches_published_port_by_any_own_address";
    let Some(node) = Node::set_up(name) else {
        return;
    };
    let bpf = node.open();
    leads_inside(&bpf, HOST_VETH);
    bpf.set_host_veth(HOST_VETH, Ipv4Addr::from(INSIDE))
        .unwrap();
    let loopback = [127, 0, 0, 1];
    for (client, seen) in [(MACHINE, MACHINE), (loopback, GATEWAY)] {
        let call = frame(&packet(TCP, (client, 50_000), (MACHINE, 8080)));
        let (answer, inside) = bpf.judge_packet(false, &call, HOST_VETH).unwrap();
        assert_eq!(answer, REDIRECTED);
        assert_eq!(ends(&inside), ((seen, 50_000), (INSIDE, 80)));

        let back = frame(&packet(TCP, (INSIDE, 80), (seen, 50_000)));
        let (answer, given) = bpf.judge_packet(true, &back, HOST_VETH).unwrap();
        assert_eq!(answer, PASSED);
        assert_eq!(ends(&given), ((MACHINE, 8080), (client, 50_000)));
    }
}

#[test]
fn an_allocation_calls_its_own_published_port() {
    let Some(node) = Node::set_up("an_allocation_calls_its_own_published_port") else {
        return;
    };
    let bpf = node.open();
    leads_inside(&bpf, HOST_VETH);
    bpf.set_host_veth(HOST_VETH, Ipv4Addr::from(INSIDE))
        .unwrap();

    let call = frame(&packet(TCP, (INSIDE, 50_000), (MACHINE, 8080)));
    let (answer, inside) = bpf.judge_packet(true, &call, HOST_VETH).unwrap();
    assert_eq!(answer, REDIRECTED);
    assert_eq!(ends(&inside), ((GATEWAY, 50_000), (INSIDE, 80)));

    let back = frame(&packet(TCP, (INSIDE, 80), (GATEWAY, 50_000)));
    let (answer, given) = bpf.judge_packet(true, &back, HOST_VETH).unwrap();
    assert_eq!(answer, REDIRECTED);
    assert_eq!(ends(&given), ((MACHINE, 8080), (INSIDE, 50_000)));
}

#[test]
fn ports_of_removed_veth_are_forgotten() {
    let Some(node) = Node::set_up("ports_of_removed_veth_are_forgotten") else {
        return;
    };
    let bpf = node.open();
    leads_inside(&bpf, HOST_VETH);
    bpf.set_host_veth(HOST_VETH, Ipv4Addr::from(INSIDE))
        .unwrap();
    bpf.set_host_veth(77, Ipv4Addr::new(172, 26, 64, 3))
        .unwrap();
    let call = frame(&packet(TCP, (MACHINE, 50_000), (MACHINE, 8080)));

    bpf.remove_host_veths(&BTreeSet::from([77])).unwrap();
    assert_eq!(bpf.host_veths().unwrap(), BTreeSet::from([HOST_VETH]));
    assert_eq!(
        bpf.judge_packet(false, &call, HOST_VETH).unwrap().0,
        REDIRECTED
    );

    bpf.remove_host_veths(&BTreeSet::from([HOST_VETH])).unwrap();
    assert_eq!(bpf.host_veths().unwrap(), BTreeSet::new());
    assert_eq!(
        bpf.judge_packet(false, &call, HOST_VETH).unwrap(),
        (PASSED, call)
    );
}

#[test]
fn veth_drops_packets_with_spoofed_source() {
    let Some(node) = Node::set_up("veth_drops_packets_with_spoofed_source") else {
        return;
    };
    let bpf = node.open();
    bpf.set_host_veth(HOST_VETH, Ipv4Addr::from(INSIDE))
        .unwrap();
    let v6 = {
        let mut frame = frame(&[0x60; 40]);
        frame[12..14].copy_from_slice(&[0x86, 0xdd]);
        frame
    };
    let cases = [
        (frame(&packet(TCP, (INSIDE, 1), (CLIENT, 2))), PASSED),
        (frame(&packet(TCP, (MACHINE, 1), (CLIENT, 2))), DROPPED),
        (
            frame(&packet(UDP, ([127, 0, 0, 1], 1), (CLIENT, 2))),
            DROPPED,
        ),
        (
            frame(&packet(TCP, (INSIDE, 1), ([127, 0, 0, 1], 2))),
            DROPPED,
        ),
        (frame(&ipv4(ICMP, CLIENT, INSIDE, &[8; 8])), DROPPED),
        (v6, DROPPED),
    ];
    for (frame, expected) in cases {
        let (answer, after) = bpf.judge_packet(true, &frame, HOST_VETH).unwrap();
        assert_eq!(answer, expected, "{frame:?}");
        assert_eq!(after, frame);
    }
}

/// A router says that an answer is too long for its wire.
#[test]
fn icmp_error_about_reply_reaches_its_sender() {
    let name = "icmp_error_about_reply_reaches_its_sender";
    let Some(node) = Node::set_up(name) else {
        return;
    };
    let Some(wire) = wire() else {
        crate::support::skipped(name, "the machine has no device but loopback");
        return;
    };
    let bpf = node.open();
    leads_inside(&bpf, HOST_VETH);
    let quoted = packet(TCP, (MACHINE, 8080), (CLIENT, 40_000));
    let mut error = vec![3, 4, 0, 0, 0, 0, 5, 0];
    error.extend(&quoted[..28]);
    let checksum = !sum(&error, 0);
    error[2..4].copy_from_slice(&checksum.to_be_bytes());
    let router = [10, 9, 0, 254];

    let call = frame(&ipv4(ICMP, router, MACHINE, &error));
    let (answer, after) = bpf.judge_packet(true, &call, wire).unwrap();

    assert_eq!(answer, PASSED);
    let packet = &after[14..];
    assert_eq!(sum(&packet[..20], 0), 0xffff, "the header's sum");
    assert_eq!(sum(&packet[20..], 0), 0xffff, "the error's sum");
    assert_eq!(packet[16..20], INSIDE, "whom it goes to");
    let quoted = &packet[28..];
    assert_eq!(sum(&quoted[..20], 0), 0xffff, "the quoted header's sum");
    assert_eq!(quoted[12..16], INSIDE);
    assert_eq!(quoted[20..22], 80_u16.to_be_bytes());
}
