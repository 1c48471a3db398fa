//! The headers of a packet that policies depend on.

use aya_ebpf::{bindings::__sk_buff, programs::sk_buff::SkBuff};
use muster_ebpf_common::{
    CgroupId,
    policy::{Class, Direction, PeerMark, VerdictEvent, icmp_detail, key, mapped},
};

/// Numbers of IP protocols.
pub(crate) mod protocol {
    pub(crate) const ICMP: u8 = 1;
    pub(crate) const TCP: u8 = 6;
    pub(crate) const UDP: u8 = 17;
    pub(crate) const ICMPV6: u8 = 58;

    pub(super) const HOP_BY_HOP: u8 = 0;
    pub(super) const ROUTING: u8 = 43;
    pub(super) const FRAGMENT: u8 = 44;
    pub(super) const AUTHENTICATION: u8 = 51;
    pub(super) const DESTINATION: u8 = 60;

    /// Whether another IPv6 header follows a header of this type.
    #[inline(always)]
    pub(super) fn is_extension(number: u8) -> bool {
        matches!(
            number,
            HOP_BY_HOP | ROUTING | FRAGMENT | AUTHENTICATION | DESTINATION
        )
    }
}

/// Extension headers of IPv6 that are parsed. A packet with more shows no ports.
const EXTENSIONS_MAX: u32 = 6;

/// The hop limit of a packet from a neighbour. A router on the path would have lowered it.
const HOPS_OF_NEIGHBOURS: u8 = 255;

/// Flags of TCP.
const SYN: u8 = 0x02;
const ACK: u8 = 0x10;

/// The position of the fragment offset in an IPv4 header, and its bits.
const FRAGMENT_OFFSET: u16 = 0x1fff;

/// Whether an address is a mapped IPv4 address.
#[inline(always)]
pub(crate) fn is_mapped(address: &[u8; 16]) -> bool {
    address[..10] == [0; 10] && address[10] == 0xff && address[11] == 0xff
}

/// The last four bytes of an address.
#[inline(always)]
pub(crate) fn low(address: &[u8; 16]) -> [u8; 4] {
    [address[12], address[13], address[14], address[15]]
}

/// A packet, from the task's point of view.
///
/// Programs have 512 bytes of stack. So the facts about a packet are stored once, in the form of the reported event.
#[repr(C)]
pub(crate) struct Packet {
    pub(crate) event: VerdictEvent,
    /// The task's own address, IPv4 mapped into IPv6.
    pub(crate) local: [u8; 16],
    pub(crate) class: Class,
    pub(crate) is_v4: bool,
    /// Whether this is the first packet of a connection.
    pub(crate) begins: bool,
    /// Whether this is a datagram or an echo, which is answered without a connection.
    pub(crate) is_exchange: bool,
    /// The type of an ICMP message.
    pub(crate) kind: u8,
    pub(crate) code: u8,
    /// Whether this is an IPv6 packet from a neighbour: it has no other headers, and no router forwarded it (RFC 4861,
    /// 6.1 and 7.1).
    pub(crate) near: bool,
    /// The socket at the other end, if it is in the same allocation and can be recognised later.
    pub(crate) peer: PeerMark,
}

impl Packet {
    /// Creates a packet without facts.
    #[inline(always)]
    pub(crate) fn new(task: CgroupId, direction: Direction) -> Self {
        Self {
            event: VerdictEvent {
                task,
                direction: direction as u8,
                ..VerdictEvent::default()
            },
            local: [0; 16],
            class: Class::Other,
            is_v4: false,
            begins: false,
            is_exchange: false,
            kind: 0,
            code: 0,
            near: false,
            peer: PeerMark {
                address: 0,
                cookie: 0,
                binding: [0; 3],
            },
        }
    }

    #[inline(always)]
    fn is_egress(&self) -> bool {
        self.event.direction == Direction::Egress as u8
    }

    /// Reads the headers. A packet that is not IP, or that is cut before its ports, shows no address.
    #[inline(always)]
    pub(crate) fn read(&mut self, skb: *mut __sk_buff) {
        // SAFETY: both pointers are valid, and no other code uses the packet.
        unsafe { read_headers(skb, self) };
    }

    #[inline(always)]
    fn set_ends(&mut self, source: [u8; 16], destination: [u8; 16], protocol: u8) {
        (self.local, self.event.remote) = if self.is_egress() {
            (source, destination)
        } else {
            (destination, source)
        };
        self.event.protocol = protocol;
    }

    #[inline(always)]
    fn set_ports(&mut self, ports: [u8; 4]) {
        let source = u16::from_be_bytes([ports[0], ports[1]]);
        let destination = u16::from_be_bytes([ports[2], ports[3]]);
        (self.event.local_port, self.event.remote_port) = if self.is_egress() {
            (source, destination)
        } else {
            (destination, source)
        };
    }

    /// Returns the key for a policy of `direction` about the exchange of this packet.
    #[inline(always)]
    pub(crate) fn key(&self, direction: Direction) -> u32 {
        let detail = match self.class {
            Class::Tcp | Class::Udp => match direction {
                Direction::Ingress => self.event.local_port,
                Direction::Egress => self.event.remote_port,
            },
            Class::Icmp | Class::Icmpv6 => icmp_detail(self.kind, self.code),
            Class::Other => 0,
        };
        key(self.class, detail)
    }

    /// Returns the key for the other direction's policy about the request that this echo answers.
    #[inline(always)]
    pub(crate) fn request_key(&self, direction: Direction) -> u32 {
        match self.class {
            Class::Icmp => key(Class::Icmp, icmp_detail(8, 0)),
            Class::Icmpv6 => key(Class::Icmpv6, icmp_detail(128, 0)),
            Class::Tcp | Class::Udp | Class::Other => self.key(direction),
        }
    }

    /// Whether this is an IPv6 neighbour discovery message, which IPv6 requires. A message that the receiving kernel
    /// would not accept is judged like any other packet.
    #[inline(always)]
    pub(crate) fn finds_neighbours(&self) -> bool {
        let is_discovery = self.kind >= 133 && self.kind <= 137 && self.code == 0;
        matches!(self.class, Class::Icmpv6) && is_discovery && self.near
    }
}

/// The function is neither inlined nor local to this object. So the kernel verifies it once, and treats its output as
/// unknown initialized data. The verifier does not follow the paths through it any further.
#[unsafe(no_mangle)]
#[inline(never)]
unsafe extern "C" fn read_headers(skb: *mut __sk_buff, packet: *mut Packet) -> u32 {
    // SAFETY: the verifier ensures that the caller passes a packet. It also requires the check for null.
    let Some(packet) = (unsafe { packet.as_mut() }) else {
        return 0;
    };
    let Ok(first) = load::<u8>(skb, 0) else {
        return 0;
    };
    let mut at = 0;
    let shows_ports = match first >> 4 {
        4 => read_v4(packet, skb, &mut at),
        6 => read_v6(packet, skb, &mut at),
        _ => false,
    };
    if shows_ports {
        read_ports(packet, skb, at);
    }
    0
}

#[inline(always)]
fn load<T: Copy>(skb: *mut __sk_buff, at: u32) -> Result<T, i64> {
    SkBuff::new(skb).load(at as usize)
}

/// Reads the IPv4 header. Returns whether there are ports, and sets their offset.
#[inline(always)]
fn read_v4(packet: &mut Packet, skb: *mut __sk_buff, at: &mut u32) -> bool {
    let Ok(header) = load::<[u8; 20]>(skb, 0) else {
        return false;
    };
    let source = mapped([header[12], header[13], header[14], header[15]]);
    let destination = mapped([header[16], header[17], header[18], header[19]]);
    packet.is_v4 = true;
    packet.set_ends(source, destination, header[9]);
    *at = u32::from(header[0] & 0xf) * 4;
    u16::from_be_bytes([header[6], header[7]]) & FRAGMENT_OFFSET == 0
}

/// Reads the IPv6 headers. Returns whether there are ports, and sets their offset.
///
/// The offset is never compared, so that the verifier need not distinguish the paths that lead to it.
#[inline(always)]
fn read_v6(packet: &mut Packet, skb: *mut __sk_buff, at: &mut u32) -> bool {
    let Ok(header) = load::<[u8; 40]>(skb, 0) else {
        return false;
    };
    let mut source = [0; 16];
    source.copy_from_slice(&header[8..24]);
    let mut destination = [0; 16];
    destination.copy_from_slice(&header[24..40]);
    let mut next = header[6];
    packet.near = next == protocol::ICMPV6 && header[7] == HOPS_OF_NEIGHBOURS;
    *at = 40;
    let mut whole = true;
    for _ in 0..EXTENSIONS_MAX {
        if !protocol::is_extension(next) {
            break;
        }
        let Ok(extension) = load::<[u8; 4]>(skb, *at) else {
            whole = false;
            break;
        };
        let length = u32::from(extension[1]);
        *at += match next {
            protocol::FRAGMENT => 8,
            protocol::AUTHENTICATION => (length + 2) * 4,
            _ => (length + 1) * 8,
        };
        let offset = u16::from_be_bytes([extension[2], extension[3]]) >> 3;
        if next == protocol::FRAGMENT && offset != 0 {
            whole = false;
        }
        next = extension[0];
    }
    packet.set_ends(source, destination, next);
    whole
}

/// Reads the header after the IP headers. A packet that is cut there stays of class `Other`.
#[inline(never)]
fn read_ports(packet: &mut Packet, skb: *mut __sk_buff, at: u32) -> u32 {
    match packet.event.protocol {
        protocol::TCP => {
            let Ok(header) = load::<[u8; 14]>(skb, at) else {
                return 0;
            };
            packet.class = Class::Tcp;
            packet.set_ports([header[0], header[1], header[2], header[3]]);
            packet.begins = header[13] & (SYN | ACK) == SYN;
        }
        protocol::UDP => {
            let Ok(ports) = load::<[u8; 4]>(skb, at) else {
                return 0;
            };
            packet.class = Class::Udp;
            packet.is_exchange = true;
            packet.set_ports(ports);
        }
        protocol::ICMP | protocol::ICMPV6 => {
            let Ok(header) = load::<[u8; 8]>(skb, at) else {
                return 0;
            };
            let v6 = packet.event.protocol == protocol::ICMPV6;
            packet.class = if v6 { Class::Icmpv6 } else { Class::Icmp };
            (packet.kind, packet.code) = (header[0], header[1]);
            packet.is_exchange = if v6 {
                header[0] == 128 || header[0] == 129
            } else {
                header[0] == 8 || header[0] == 0
            };
            if packet.is_exchange {
                packet.event.local_port = u16::from_be_bytes([header[4], header[5]]);
            }
        }
        _ => {}
    }
    0
}
