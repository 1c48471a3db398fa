//! Published ports of allocations: addresses and ports are rewritten where packets enter and leave devices.
//!
//! `nat_in` and `nat_out` are on every host veth, and on the machine's Ethernet devices that have an address. `nat_out`
//! is also on the loopback device, which the machine uses to reach itself. The kernel routes in between, so that
//! connection tracking sees an exchange with the allocation's own address. Every other packet is passed on to the next
//! program on the device (`TC_ACT_UNSPEC`).
//!
//! Absent: later fragments of a datagram, which show no port, and IPv6.

use aya_ebpf::{
    bindings::{
        __sk_buff, BPF_F_MARK_MANGLED_0, BPF_F_NO_PREALLOC, BPF_F_PSEUDO_HDR, TC_ACT_SHOT,
        TC_ACT_UNSPEC,
    },
    helpers::{
        bpf_l3_csum_replace, bpf_l4_csum_replace, bpf_redirect, bpf_skb_load_bytes,
        bpf_skb_store_bytes,
    },
    macros::{classifier, map},
    maps::{HashMap, LruHashMap},
    programs::TcContext,
};
use core::ffi::c_void;
use muster_ebpf_common::{
    LostRecord,
    limits::{HOST_VETHS_MAX, NAT_ENTRIES_MAX, PUBLISHED_MAX},
    nat::{GATEWAY, HostVethEntry, NatEntry, NatKey, PublishedKey, PublishedPort},
};

use crate::kernel::count_lost;
use crate::policy::protocol::{ICMP, TCP, UDP};

/// The host veths of this node's allocations.
#[map]
static HOST_VETHS: HashMap<u32, HostVethEntry> = HashMap::pinned(HOST_VETHS_MAX, BPF_F_NO_PREALLOC);

/// Published ports.
#[map]
pub(crate) static PUBLISHED: HashMap<PublishedKey, PublishedPort> =
    HashMap::pinned(PUBLISHED_MAX, BPF_F_NO_PREALLOC);

/// Exchanges by published ports.
#[map]
static NAT_ENTRIES: LruHashMap<NatKey, NatEntry> = LruHashMap::pinned(NAT_ENTRIES_MAX, 0);

/// The number of the loopback device.
const LOOPBACK: u32 = 1;
/// Bytes of an Ethernet header.
const ETHERNET: u32 = 14;
/// `ETH_P_IP` and `ETH_P_ARP`, in the order of the network.
const IPV4: u32 = 0x0800_u16.to_be() as u32;
const ARP: u32 = 0x0806_u16.to_be() as u32;
/// Bits of an IPv4 header's fragment word that are the offset.
const FRAGMENT_OFFSET: u16 = 0x1fff;
/// The first byte of loopback addresses.
const LOOPBACK_NET: u8 = 127;
/// Bytes of an IPv4 header without options.
const HEADER: u32 = 20;
/// The type of an ICMP error about a packet whose answer did not get through.
const UNREACHABLE: u8 = 3;
const TIME_EXCEEDED: u8 = 11;

/// Offsets from the begin of an IPv4 header.
mod at {
    pub(super) const CHECKSUM: u32 = 10;
    pub(super) const SOURCE: u32 = 12;
    pub(super) const DESTINATION: u32 = 16;
}

/// The addresses and ports of a packet, and the offsets of its headers.
#[derive(Clone, Copy)]
struct Ends {
    source: [u8; 4],
    destination: [u8; 4],
    source_port: u16,
    destination_port: u16,
    protocol: u8,
    /// The offset of the IPv4 header.
    network: u32,
    /// The offset of the header after the IPv4 header.
    transport: u32,
}

impl Ends {
    /// Reads the packet at `network`: a whole one, or the quote in an ICMP error.
    #[inline(always)]
    fn read(skb: *mut __sk_buff, network: u32) -> Option<Self> {
        let header: [u8; HEADER as usize] = load(skb, network)?;
        let transport = network + u32::from(header[0] & 0xf) * 4;
        let fragment = u16::from_be_bytes([header[6], header[7]]);
        let protocol = header[9];
        let mut ends = Self {
            source: [header[12], header[13], header[14], header[15]],
            destination: [header[16], header[17], header[18], header[19]],
            source_port: 0,
            destination_port: 0,
            protocol,
            network,
            transport,
        };
        if protocol != TCP && protocol != UDP {
            return Some(ends);
        }
        if fragment & FRAGMENT_OFFSET != 0 {
            ends.protocol = 0;
            return Some(ends);
        }
        let ports: [u8; 4] = load(skb, transport)?;
        ends.source_port = u16::from_be_bytes([ports[0], ports[1]]);
        ends.destination_port = u16::from_be_bytes([ports[2], ports[3]]);
        Some(ends)
    }

    #[inline(always)]
    fn has_ports(&self) -> bool {
        self.protocol == TCP || self.protocol == UDP
    }

    /// The published port that the packet is addressed to.
    #[inline(always)]
    fn called(&self) -> PublishedKey {
        PublishedKey {
            address: self.destination,
            port: self.destination_port,
            protocol: self.protocol,
            pad: 0,
        }
    }

    /// The key of the exchange that the packet answers in.
    #[inline(always)]
    fn answered(&self) -> NatKey {
        NatKey {
            inside: self.source,
            client: self.destination,
            inside_port: self.source_port,
            client_port: self.destination_port,
            protocol: self.protocol,
            pad: [0; 3],
        }
    }
}

/// Handles a packet that enters by a device.
#[classifier]
fn nat_in(ctx: TcContext) -> i32 {
    let skb = ctx.skb.skb;
    // SAFETY: the context is valid for the run of the program.
    let (device, kind) = unsafe { ((*skb).ifindex, (*skb).protocol) };
    // SAFETY: the value is copied at once.
    let host_veth = unsafe { HOST_VETHS.get(device) }.copied();
    if kind != IPV4 {
        // An allocation's host veth carries only IPv4 and ARP.
        let dropped = host_veth.is_some() && kind != ARP;
        return if dropped { TC_ACT_SHOT } else { TC_ACT_UNSPEC };
    }
    let ends = Ends::read(skb, ETHERNET);
    let Some(ends) = ends else {
        return if host_veth.is_some() {
            TC_ACT_SHOT
        } else {
            TC_ACT_UNSPEC
        };
    };
    if let Some(host_veth) = host_veth {
        // At host veths the machine accepts loopback addresses, for answers to its own connections. No allocation may
        // send to them.
        if ends.source != host_veth.address || ends.destination[0] == LOOPBACK_NET {
            return TC_ACT_SHOT;
        }
        if let Some(action) = turn_back(skb, &ends, device, host_veth) {
            return action;
        }
    }
    if ends.protocol == ICMP {
        pass_error_in(skb, &ends);
        return TC_ACT_UNSPEC;
    }
    if !ends.has_ports() {
        return TC_ACT_UNSPEC;
    }
    // SAFETY: the value is copied at once.
    let Some(published) = unsafe { PUBLISHED.get(ends.called()) }.copied() else {
        return TC_ACT_UNSPEC;
    };
    let hairpin = published.host_veth == device;
    if enter(skb, &ends, &published, hairpin, hairpin).is_none() {
        return drop_packet();
    }
    if hairpin {
        return hand_over(skb, &published);
    }
    TC_ACT_UNSPEC
}

/// Handles a packet that leaves by a device.
#[classifier]
fn nat_out(ctx: TcContext) -> i32 {
    let skb = ctx.skb.skb;
    // SAFETY: the context is valid for the run of the program.
    let (device, kind) = unsafe { ((*skb).ifindex, (*skb).protocol) };
    if kind != IPV4 {
        return TC_ACT_UNSPEC;
    }
    let Some(ends) = Ends::read(skb, ETHERNET) else {
        return TC_ACT_UNSPEC;
    };
    if !ends.has_ports() {
        return TC_ACT_UNSPEC;
    }
    if device != LOOPBACK {
        // SAFETY: the value is copied at once.
        if let Some(passage) = unsafe { NAT_ENTRIES.get(ends.answered()) }.copied()
            && passage.returns == 0
        {
            show_as(skb, &ends, &passage);
        }
        return TC_ACT_UNSPEC;
    }
    // SAFETY: the value is copied at once.
    let Some(published) = unsafe { PUBLISHED.get(ends.called()) }.copied() else {
        return TC_ACT_UNSPEC;
    };
    let by_loopback = ends.source[0] == LOOPBACK_NET;
    if enter(skb, &ends, &published, true, by_loopback).is_none() {
        return drop_packet();
    }
    hand_over(skb, &published)
}

/// Redirects the packet to the port behind the host veth, and records the client and the called port. With `as_gateway`
/// the allocation sees the machine's address in place of the client's, because the client's address would not lead
/// back.
#[inline(always)]
fn enter(
    skb: *mut __sk_buff,
    ends: &Ends,
    published: &PublishedPort,
    returns: bool,
    as_gateway: bool,
) -> Option<()> {
    let client = if as_gateway { GATEWAY } else { ends.source };
    let key = NatKey {
        inside: published.address,
        client,
        inside_port: published.port,
        client_port: ends.source_port,
        protocol: ends.protocol,
        pad: [0; 3],
    };
    let passage = NatEntry {
        address: ends.destination,
        client: ends.source,
        port: ends.destination_port,
        returns: u16::from(returns),
        host_veth: published.host_veth,
    };
    // SAFETY: the value is copied at once.
    let known = unsafe { NAT_ENTRIES.get(key) }.copied();
    let same = known.is_some_and(|known| {
        known.address == passage.address
            && known.port == passage.port
            && known.client == passage.client
            && known.returns == passage.returns
            && known.host_veth == passage.host_veth
    });
    if !same {
        NAT_ENTRIES.insert(key, passage, 0).ok()?;
    }
    if as_gateway {
        set_address(skb, ends, at::SOURCE, ends.source, GATEWAY)?;
    }
    set_address(
        skb,
        ends,
        at::DESTINATION,
        ends.destination,
        published.address,
    )?;
    set_port(skb, ends, 2, ends.destination_port, published.port)
}

/// Counts and drops a packet that cannot be forwarded.
#[inline(always)]
fn drop_packet() -> i32 {
    count_lost(LostRecord::NatEntry);
    TC_ACT_SHOT
}

/// Sends the packet to the allocation without routing it.
#[inline(always)]
fn hand_over(skb: *mut __sk_buff, published: &PublishedPort) -> i32 {
    let [a, b, c, d, e, f] = published.inside_mac;
    let [g, h, i, j, k, l] = published.host_veth_mac;
    let macs = [a, b, c, d, e, f, g, h, i, j, k, l];
    if store(skb, 0, &macs).is_none() {
        return drop_packet();
    }
    // SAFETY: the helper takes any number.
    unsafe { bpf_redirect(published.host_veth, 0) as i32 }
}

/// Handles an answer to a client on this machine or behind the same host veth. Such a request came in by neither a wire
/// nor a route, so its answer is returned here.
#[inline(always)]
fn turn_back(
    skb: *mut __sk_buff,
    ends: &Ends,
    device: u32,
    host_veth: HostVethEntry,
) -> Option<i32> {
    if !ends.has_ports() {
        return None;
    }
    // SAFETY: the value is copied at once.
    let passage = unsafe { NAT_ENTRIES.get(ends.answered()) }.copied()?;
    if passage.returns == 0 || passage.host_veth != device {
        return None;
    }
    if show_as(skb, ends, &passage).is_none() {
        return Some(drop_packet());
    }
    if passage.client != ends.destination
        && set_address(skb, ends, at::DESTINATION, ends.destination, passage.client).is_none()
    {
        return Some(drop_packet());
    }
    if passage.client != host_veth.address {
        return Some(TC_ACT_UNSPEC);
    }
    // The packet leaves by the device that it came in by, so the hardware addresses are swapped.
    let macs: Option<[u8; 12]> = load(skb, 0);
    let Some([a, b, c, d, e, f, g, h, i, j, k, l]) = macs else {
        return Some(drop_packet());
    };
    if store(skb, 0, &[g, h, i, j, k, l, a, b, c, d, e, f]).is_none() {
        return Some(drop_packet());
    }
    // SAFETY: the helper takes any number.
    Some(unsafe { bpf_redirect(device, 0) as i32 })
}

/// Sets the source of an answer to the called address and port.
#[inline(always)]
fn show_as(skb: *mut __sk_buff, ends: &Ends, passage: &NatEntry) -> Option<()> {
    set_address(skb, ends, at::SOURCE, ends.source, passage.address)?;
    set_port(skb, ends, 0, ends.source_port, passage.port)
}

/// Handles a router's error about an answer that left by a published port, for example that it is too long for a link.
/// The error is sent to the allocation, and its quote is rewritten to the packet that the allocation sent.
#[inline(always)]
fn pass_error_in(skb: *mut __sk_buff, ends: &Ends) -> Option<()> {
    let kind: [u8; 1] = load(skb, ends.transport)?;
    if kind[0] != UNREACHABLE && kind[0] != TIME_EXCEEDED {
        return None;
    }
    let quoted = Ends::read(skb, ends.transport + 8)?;
    if !quoted.has_ports() {
        return None;
    }
    let key = PublishedKey {
        address: quoted.source,
        port: quoted.source_port,
        protocol: quoted.protocol,
        pad: 0,
    };
    // SAFETY: the value is copied at once.
    let published = unsafe { PUBLISHED.get(key) }.copied()?;
    // The checksum of the error covers the quoted packet. The quoted header's own checksum changes by as much as its
    // address. So only the port and the address count, and each of the two a second time with the opposite sign.
    quote(
        skb,
        ends,
        quoted.network + at::SOURCE,
        quoted.source,
        published.address,
    )?;
    let before: [u8; 2] = load(skb, quoted.network + at::CHECKSUM)?;
    let (from, to) = (word(quoted.source), word(published.address));
    l3(skb, quoted.network + at::CHECKSUM, from, to, 4)?;
    let after: [u8; 2] = load(skb, quoted.network + at::CHECKSUM)?;
    l4(
        skb,
        ends.transport + 2,
        u64::from(u16::from_ne_bytes(before)),
        u64::from(u16::from_ne_bytes(after)),
        2,
    )?;
    let (from, to) = (quoted.source_port.to_be(), published.port.to_be());
    l4(skb, ends.transport + 2, from.into(), to.into(), 2)?;
    store(skb, quoted.transport, &to.to_ne_bytes())?;
    // The error's own address is changed last, because an ICMP checksum does not cover it.
    let (from, to) = (word(ends.destination), word(published.address));
    l3(skb, ends.network + at::CHECKSUM, from, to, 4)?;
    store(skb, ends.network + at::DESTINATION, &published.address)
}

/// Changes an address in the quote of an ICMP error, and adjusts the error's checksum.
#[inline(always)]
fn quote(skb: *mut __sk_buff, ends: &Ends, place: u32, from: [u8; 4], to: [u8; 4]) -> Option<()> {
    l4(skb, ends.transport + 2, word(from), word(to), 4)?;
    store(skb, place, &to)
}

#[inline(always)]
fn set_address(
    skb: *mut __sk_buff,
    ends: &Ends,
    place: u32,
    from: [u8; 4],
    to: [u8; 4],
) -> Option<()> {
    let (from, new) = (word(from), word(to));
    let flags = 4 | u64::from(BPF_F_PSEUDO_HDR) | zero_stays(ends);
    l4(skb, checksum(ends), from, new, flags)?;
    l3(skb, ends.network + at::CHECKSUM, from, new, 4)?;
    store(skb, ends.network + place, &to)
}

/// Sets the port at offset `place` in the ports.
#[inline(always)]
fn set_port(skb: *mut __sk_buff, ends: &Ends, place: u32, from: u16, to: u16) -> Option<()> {
    let (from, to) = (from.to_be(), to.to_be());
    let flags = 2 | zero_stays(ends);
    l4(skb, checksum(ends), from.into(), to.into(), flags)?;
    store(skb, ends.transport + place, &to.to_ne_bytes())
}

/// The offset of the checksum of TCP or UDP.
#[inline(always)]
fn checksum(ends: &Ends) -> u32 {
    ends.transport + if ends.protocol == TCP { 16 } else { 6 }
}

/// The flag for UDP, whose checksum may be absent; an absent checksum is zero.
#[inline(always)]
fn zero_stays(ends: &Ends) -> u64 {
    if ends.protocol == UDP {
        u64::from(BPF_F_MARK_MANGLED_0)
    } else {
        0
    }
}

#[inline(always)]
fn word(address: [u8; 4]) -> u64 {
    u64::from(u32::from_ne_bytes(address))
}

#[inline(always)]
fn l3(skb: *mut __sk_buff, place: u32, from: u64, to: u64, size: u64) -> Option<()> {
    // SAFETY: the helper checks the place.
    let changed = unsafe { bpf_l3_csum_replace(skb, place, from, to, size) };
    (changed == 0).then_some(())
}

#[inline(always)]
fn l4(skb: *mut __sk_buff, place: u32, from: u64, to: u64, flags: u64) -> Option<()> {
    // SAFETY: the helper checks the place.
    let changed = unsafe { bpf_l4_csum_replace(skb, place, from, to, flags) };
    (changed == 0).then_some(())
}

#[inline(always)]
fn load<const N: usize>(skb: *mut __sk_buff, place: u32) -> Option<[u8; N]> {
    let mut bytes = [0_u8; N];
    // SAFETY: the helper checks the place and writes as many bytes as there are.
    let loaded = unsafe {
        bpf_skb_load_bytes(
            skb.cast::<c_void>(),
            place,
            bytes.as_mut_ptr().cast::<c_void>(),
            N as u32,
        )
    };
    (loaded == 0).then_some(bytes)
}

#[inline(always)]
fn store<const N: usize>(skb: *mut __sk_buff, place: u32, bytes: &[u8; N]) -> Option<()> {
    // SAFETY: the helper checks the place and reads as many bytes as there are.
    let stored =
        unsafe { bpf_skb_store_bytes(skb, place, bytes.as_ptr().cast::<c_void>(), N as u32, 0) };
    (stored == 0).then_some(())
}
