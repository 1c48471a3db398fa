//! Requests to the kernel's network by netlink: one at a time, each with its answer.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::RawFd;

use ipnet::Ipv4Net;
use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REPLACE, NLM_F_REQUEST, NetlinkHeader,
    NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::AddressFamily;
use netlink_packet_route::RouteNetlinkMessage as Route;
use netlink_packet_route::address::{AddressAttribute, AddressMessage, AddressScope};
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkLayerType, LinkMessage,
};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::tc::{
    TcAttribute, TcBpfFlags, TcFilterBpfOption, TcHandle, TcMessage, TcOption,
};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};

use super::failing;

/// The number of `lo` in every network namespace.
pub(crate) const LOOPBACK: u32 = 1;
/// Bytes of an answer; the kernel's messages have at most two pages.
const ANSWER_BYTES: usize = 32 * 1_024;
/// `ETH_P_ALL`, in network byte order.
const EVERY_PROTOCOL: u16 = 0x0003_u16.to_be();
/// Parents in `clsact` of the programs for incoming and outgoing packets.
pub(super) const INGRESS: u16 = TcHandle::MIN_INGRESS;
pub(super) const EGRESS: u16 = TcHandle::MIN_EGRESS;

/// A netlink socket, which belongs to the network namespace in which it was opened.
#[derive(Debug)]
pub(crate) struct Netlink {
    socket: Socket,
    sequence: u32,
}

/// A device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Device {
    pub(super) index: u32,
    pub(super) name: String,
    /// The alias that its maker gave it; empty if there is none.
    pub(super) alias: String,
    pub(super) is_ethernet: bool,
    pub(super) is_up: bool,
    pub(super) mtu: u32,
}

/// A pair of devices that is to be made.
#[derive(Clone, Copy, Debug)]
pub(super) struct VethPair<'a> {
    pub(super) host_veth: &'a str,
    pub(super) host_veth_mac: [u8; 6],
    pub(super) inside: &'a str,
    pub(super) inside_mac: [u8; 6],
    /// The namespace of the other end.
    pub(super) namespace: RawFd,
    pub(super) mtu: u32,
    /// The owner, for people to read.
    pub(super) alias: &'a str,
}

impl Netlink {
    pub(crate) fn open() -> io::Result<Self> {
        failing::step()?;
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Self {
            socket,
            sequence: 0,
        })
    }

    /// Sends a request without a result to the kernel.
    fn order(&mut self, message: Route, flags: u16) -> io::Result<()> {
        self.send(message, flags | NLM_F_ACK)?;
        self.answers(|_| {})
    }

    fn send(&mut self, message: Route, flags: u16) -> io::Result<()> {
        failing::step()?;
        self.sequence = self.sequence.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        header.sequence_number = self.sequence;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(message));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.socket.send(&bytes, 0).map(drop)
    }

    /// Receives the answers to the last request, up to the final one.
    fn answers(&mut self, mut each: impl FnMut(Route)) -> io::Result<()> {
        loop {
            let mut bytes = Vec::with_capacity(ANSWER_BYTES);
            let count = self.socket.recv(&mut bytes, 0)?;
            let mut rest = bytes.get(..count).unwrap_or_default();
            while !rest.is_empty() {
                let answer =
                    NetlinkMessage::<Route>::deserialize(rest).map_err(io::Error::other)?;
                let length = answer.header.length as usize;
                rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
                if answer.header.sequence_number != self.sequence {
                    continue;
                }
                match answer.payload {
                    NetlinkPayload::Error(error) => {
                        return error.code.map_or(Ok(()), |_| Err(error.to_io()));
                    }
                    NetlinkPayload::Done(_) => return Ok(()),
                    NetlinkPayload::InnerMessage(message) => each(message),
                    _ => {}
                }
            }
        }
    }

    /// The device called `name`; `None` if there is none.
    pub(super) fn device(&mut self, name: &str) -> io::Result<Option<Device>> {
        let mut message = LinkMessage::default();
        message
            .attributes
            .push(LinkAttribute::IfName(name.to_owned()));
        self.send(Route::GetLink(message), NLM_F_ACK)?;
        let mut found = None;
        let asked = self.answers(|answer| found = device(answer));
        match asked {
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(None),
            other => other.map(|()| found),
        }
    }

    /// All devices.
    pub(super) fn devices(&mut self) -> io::Result<Vec<Device>> {
        self.send(Route::GetLink(LinkMessage::default()), NLM_F_DUMP)?;
        let mut found = Vec::new();
        self.answers(|answer| found.extend(device(answer)))?;
        Ok(found)
    }

    /// All IPv4 addresses, each with the number of its device.
    pub(super) fn addresses(&mut self) -> io::Result<Vec<(u32, Ipv4Addr)>> {
        let found = self.address_messages()?.into_iter();
        Ok(found
            .map(|(device, address, _)| (device, address))
            .collect())
    }

    /// All IPv4 addresses with the prefixes of their networks.
    pub(super) fn networks(&mut self) -> io::Result<Vec<Ipv4Net>> {
        let found = self.address_messages()?.into_iter();
        let networks = found.filter_map(|(_, address, prefix)| Ipv4Net::new(address, prefix).ok());
        Ok(networks.collect())
    }

    fn address_messages(&mut self) -> io::Result<Vec<(u32, Ipv4Addr, u8)>> {
        let mut message = AddressMessage::default();
        message.header.family = AddressFamily::Inet;
        self.send(Route::GetAddress(message), NLM_F_DUMP)?;
        let mut found = Vec::new();
        self.answers(|answer| {
            let Route::NewAddress(message) = answer else {
                return;
            };
            let local = message.attributes.iter().find_map(|attribute| {
                let AddressAttribute::Local(std::net::IpAddr::V4(address)) = attribute else {
                    return None;
                };
                Some(*address)
            });
            let header = &message.header;
            found.extend(local.map(|address| (header.index, address, header.prefix_len)));
        })?;
        Ok(found)
    }

    /// Makes both ends of a pair, and sets the host veth up. The kernel brings up an end only when both exist.
    pub(super) fn make_pair(&mut self, pair: &VethPair<'_>) -> io::Result<()> {
        let mut inside = LinkMessage::default();
        inside.attributes = vec![
            LinkAttribute::IfName(pair.inside.to_owned()),
            LinkAttribute::Address(pair.inside_mac.to_vec()),
            LinkAttribute::Mtu(pair.mtu),
            LinkAttribute::NetNsFd(pair.namespace),
        ];
        let mut host_veth = up(0);
        host_veth.attributes = vec![
            LinkAttribute::IfName(pair.host_veth.to_owned()),
            LinkAttribute::IfAlias(pair.alias.to_owned()),
            LinkAttribute::Address(pair.host_veth_mac.to_vec()),
            LinkAttribute::Mtu(pair.mtu),
            LinkAttribute::LinkInfo(vec![
                LinkInfo::Kind(InfoKind::Veth),
                LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(inside))),
            ]),
        ];
        self.order(Route::NewLink(host_veth), NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Sets a device up.
    pub(crate) fn set_link_up(&mut self, index: u32) -> io::Result<()> {
        self.order(Route::SetLink(up(index)), 0)
    }

    /// Removes a device; an absent device counts as removed.
    pub(super) fn remove_device(&mut self, index: u32) -> io::Result<()> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        self.remove(message)
    }

    /// Removes the device of this name; an absent device counts as removed.
    pub(super) fn remove_named(&mut self, name: &str) -> io::Result<()> {
        let mut message = LinkMessage::default();
        message.attributes = vec![LinkAttribute::IfName(name.to_owned())];
        self.remove(message)
    }

    fn remove(&mut self, message: LinkMessage) -> io::Result<()> {
        match self.order(Route::DelLink(message), 0) {
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(()),
            other => other,
        }
    }

    /// Adds an address without neighbours to a device.
    pub(super) fn add_address(
        &mut self,
        device: u32,
        address: Ipv4Addr,
        scope: AddressScope,
    ) -> io::Result<()> {
        let mut message = AddressMessage::default();
        message.header.family = AddressFamily::Inet;
        message.header.prefix_len = 32;
        message.header.scope = scope;
        message.header.index = device;
        message.attributes = vec![
            AddressAttribute::Local(address.into()),
            AddressAttribute::Address(address.into()),
        ];
        self.order(Route::NewAddress(message), NLM_F_CREATE | NLM_F_REPLACE)
    }

    /// Adds a route to `address` directly through `device`. Fails if a route to it exists.
    pub(super) fn add_host_route(&mut self, device: u32, address: Ipv4Addr) -> io::Result<()> {
        let mut message = route(device, RouteScope::Link);
        message.header.destination_prefix_length = 32;
        let destination = RouteAttribute::Destination(RouteAddress::Inet(address));
        message.attributes.push(destination);
        self.order(Route::NewRoute(message), NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Adds the default route through `gateway`.
    pub(super) fn add_default_route(&mut self, device: u32, gateway: Ipv4Addr) -> io::Result<()> {
        let mut message = route(device, RouteScope::Universe);
        let gateway = RouteAttribute::Gateway(RouteAddress::Inet(gateway));
        message.attributes.push(gateway);
        self.order(Route::NewRoute(message), NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Adds a permanent neighbour entry with the hardware address of `address`.
    pub(super) fn add_neighbour(
        &mut self,
        device: u32,
        address: Ipv4Addr,
        mac: [u8; 6],
    ) -> io::Result<()> {
        let mut message = NeighbourMessage::default();
        message.header.family = AddressFamily::Inet;
        message.header.ifindex = device;
        message.header.state = NeighbourState::Permanent;
        message.attributes = vec![
            NeighbourAttribute::Destination(NeighbourAddress::Inet(address)),
            NeighbourAttribute::LinkLayerAddress(mac.to_vec()),
        ];
        let flags = NLM_F_CREATE | NLM_F_REPLACE;
        self.order(Route::NewNeighbour(message), flags)
    }

    /// Adds the `clsact` hook to a device, so that programs can be attached. Existing queueing stays.
    pub(super) fn open_hooks(&mut self, device: u32) -> io::Result<()> {
        let mut message = TcMessage::default();
        message.header.index = number(device)?;
        message.header.parent = TcHandle::CLSACT;
        message.header.handle = TcHandle {
            major: TcHandle::CLSACT.major,
            minor: 0,
        };
        message
            .attributes
            .push(TcAttribute::Kind("clsact".to_owned()));
        let made = self.order(
            Route::NewQueueDiscipline(message),
            NLM_F_CREATE | NLM_F_EXCL,
        );
        match made {
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => Ok(()),
            other => other,
        }
    }

    /// Attaches a program, and replaces the program with this `parent` and `handle`.
    pub(super) fn attach(
        &mut self,
        device: u32,
        parent: u16,
        handle: u32,
        (program, name): (RawFd, &str),
    ) -> io::Result<()> {
        let mut message = filter(device, parent, handle)?;
        let program = u32::try_from(program).map_err(io::Error::other)?;
        message.attributes.push(TcAttribute::Options(vec![
            TcOption::Bpf(TcFilterBpfOption::ProgFd(program)),
            TcOption::Bpf(TcFilterBpfOption::ProgName(name.to_owned())),
            TcOption::Bpf(TcFilterBpfOption::Flags(TcBpfFlags::DirectAction)),
        ]));
        self.order(Route::NewTrafficFilter(message), NLM_F_CREATE)
    }

    /// Detaches the program of this `parent` and `handle`; an absent program counts as detached.
    pub(super) fn detach(&mut self, device: u32, parent: u16, handle: u32) -> io::Result<()> {
        let message = filter(device, parent, handle)?;
        let absent = [libc::ENOENT, libc::EINVAL, libc::ENODEV];
        match self.order(Route::DelTrafficFilter(message), 0) {
            Err(error)
                if error
                    .raw_os_error()
                    .is_some_and(|code| absent.contains(&code)) =>
            {
                Ok(())
            }
            other => other,
        }
    }
}

/// The priority of all of Muster's programs. The handle identifies the node.
const PRIORITY: u32 = 0x4d55;

fn filter(device: u32, parent: u16, handle: u32) -> io::Result<TcMessage> {
    let mut message = TcMessage::default();
    message.header.index = number(device)?;
    message.header.parent = TcHandle {
        major: TcHandle::CLSACT.major,
        minor: parent,
    };
    message.header.handle = handle.into();
    message.header.info = PRIORITY << 16 | u32::from(EVERY_PROTOCOL);
    message.attributes.push(TcAttribute::Kind("bpf".to_owned()));
    Ok(message)
}

fn route(device: u32, scope: RouteScope) -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header.address_family = AddressFamily::Inet;
    message.header.table = RouteHeader::RT_TABLE_MAIN;
    message.header.protocol = RouteProtocol::Static;
    message.header.scope = scope;
    message.header.kind = RouteType::Unicast;
    message.attributes.push(RouteAttribute::Oif(device));
    message
}

fn up(index: u32) -> LinkMessage {
    let mut message = LinkMessage::default();
    message.header.index = index;
    message.header.flags = LinkFlags::Up;
    message.header.change_mask = LinkFlags::Up;
    message
}

fn number(device: u32) -> io::Result<i32> {
    i32::try_from(device).map_err(io::Error::other)
}

fn device(answer: Route) -> Option<Device> {
    let Route::NewLink(message) = answer else {
        return None;
    };
    let mut device = Device {
        index: message.header.index,
        name: String::new(),
        alias: String::new(),
        is_ethernet: message.header.link_layer_type == LinkLayerType::Ether,
        is_up: message.header.flags.contains(LinkFlags::Up),
        mtu: 0,
    };
    for attribute in message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => device.name = name,
            LinkAttribute::IfAlias(alias) => device.alias = alias,
            LinkAttribute::Mtu(mtu) => device.mtu = mtu,
            _ => {}
        }
    }
    Some(device)
}
