//! IPv6 packets made by hand, with headers between that of IPv6 and the next one. Each binary of tests that sends some
//! has this file as a module.

use std::net::Ipv6Addr;

/// A header between that of IPv6 and the next one: its number, and what stands in it behind the number of the next.
pub(crate) type Extension = (u8, [u8; 7]);

/// Without options but padding.
pub(crate) const HOP_BY_HOP: Extension = (0, [0, 1, 4, 0, 0, 0, 0]);
/// The same, for who is at the other end alone.
pub(crate) const DESTINATION_OPTIONS: Extension = (60, [0, 1, 4, 0, 0, 0, 0]);
/// More follow; they never do.
pub(crate) const FIRST_FRAGMENT: Extension = (44, [0, 0, 1, 0, 0, 0, 9]);
/// From the eighth byte on.
pub(crate) const LATER_FRAGMENT: Extension = (44, [0, 0, 8, 0, 0, 0, 9]);
/// A number that is nobody's (RFC 3692: for experiments).
pub(crate) const UNKNOWN: Extension = (253, [0; 7]);

const UDP: u8 = 17;

/// A packet with these headers before a UDP header to `port` of `to`.
pub(crate) fn udp_behind(
    extensions: &[Extension],
    from: Ipv6Addr,
    to: Ipv6Addr,
    port: u16,
) -> Vec<u8> {
    let mut numbers = extensions.iter().map(|(number, _)| *number).chain([UDP]);
    let first = numbers.next().unwrap();
    let mut rest: Vec<u8> = Vec::new();
    for ((_, body), next) in extensions.iter().zip(numbers) {
        rest.push(next);
        rest.extend(body);
    }
    rest.extend(9_u16.to_be_bytes());
    rest.extend(port.to_be_bytes());
    rest.extend([0, 13, 0, 0]);
    rest.extend(b"hello");
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend(u16::try_from(rest.len()).unwrap().to_be_bytes());
    packet.extend([first, 64]);
    packet.extend(from.octets());
    packet.extend(to.octets());
    packet.extend(rest);
    packet
}
