//! The one rule of the packet filter: packets from allocations to other machines get this machine's source address.
//!
//! The rule is in the node's own table and does not depend on the number of allocations. The kernel's connection
//! tracking translates the answers.

use std::io;

use ipnet::Ipv4Net;
use netlink_packet_core::{
    DefaultNla, NLM_F_ACK, NLM_F_APPEND, NLM_F_CREATE, NLM_F_REQUEST, NetlinkHeader,
    NetlinkMessage, NetlinkPayload,
};
use netlink_packet_netfilter::nftables::{
    Bitwise, ChainAttribute, ChainMessage, Cmp, DataAttribute, Expressions, Hook, HookNumber,
    Immediate, InetHookNumber, Meta, MetaKey, NfTablesMessage, Operator, Payload, Register,
    RuleAttribute, RuleMessage, TableAttribute, TableMessage,
};
use netlink_packet_netfilter::none::ControlMessage;
use netlink_packet_netfilter::{
    NetfilterHeader, NetfilterMessage, NetfilterMessageInner, NetfilterProtoFamily,
};
use netlink_sys::protocols::NETLINK_NETFILTER;
use netlink_sys::{Socket, SocketAddr};

use super::failing;

/// Prefix of the names of host veths.
pub(super) const HOST_VETH_PREFIX: &str = "mu-";
/// Source ports of masqueraded packets. They are above the scheduler's dynamic ports (20000 to 32000), so that an
/// answer does not look like a call of a published port.
const PORTS: [u16; 2] = [32_768, 65_535];
/// Priority of `srcnat` among the chains of a hook.
const SOURCE_NAT: u32 = 100;
/// Offset of the source address in an IPv4 header, and its length.
const SOURCE: u32 = 12;
const ADDRESS_BYTES: u32 = 4;
/// `NFT_PAYLOAD_NETWORK_HEADER`.
const NETWORK_HEADER: u32 = 1;
/// `NFNL_SUBSYS_NFTABLES`, the subsystem of a batch.
const NFTABLES: u16 = 10;
/// `NFTA_MASQ_REG_PROTO_MIN` and `_MAX`.
const PORT_REGISTERS: [u16; 2] = [2, 3];
const CHAIN: &str = "masquerade";
/// Bytes of an answer, which quotes the request.
const ANSWER_BYTES: usize = 16 * 1_024;

/// Masquerades packets from `subnet` that leave the machine.
pub(super) fn install(table: &str, subnet: Ipv4Net) -> io::Result<()> {
    commit(vec![
        // The table is replaced, because an earlier agent may have left another one.
        (NfTablesMessage::NewTable(named(table)), NLM_F_CREATE),
        (NfTablesMessage::DeleteTable(named(table)), 0),
        (NfTablesMessage::NewTable(named(table)), NLM_F_CREATE),
        (NfTablesMessage::NewChain(chain(table)), NLM_F_CREATE),
        (
            NfTablesMessage::NewRule(rule(table, subnet)),
            NLM_F_CREATE | NLM_F_APPEND,
        ),
    ])
}

/// Removes the table. Returns whether it existed.
pub(super) fn remove(table: &str) -> io::Result<bool> {
    match commit(vec![(NfTablesMessage::DeleteTable(named(table)), 0)]) {
        Ok(()) => Ok(true),
        // A kernel without a packet filter has no table either.
        Err(error)
            if matches!(
                error.raw_os_error(),
                Some(libc::ENOENT | libc::EPROTONOSUPPORT)
            ) =>
        {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

fn named(table: &str) -> TableMessage {
    TableMessage {
        attributes: vec![TableAttribute::Name(table.to_owned())],
    }
}

fn chain(table: &str) -> ChainMessage {
    ChainMessage {
        attributes: vec![
            ChainAttribute::Table(table.to_owned()),
            ChainAttribute::Name(CHAIN.to_owned()),
            ChainAttribute::Type("nat".to_owned()),
            ChainAttribute::Hook(vec![
                Hook::Number(HookNumber::Inet(InetHookNumber::PostRouting)),
                Hook::Priority(SOURCE_NAT),
            ]),
        ],
    }
}

fn rule(table: &str, subnet: Ipv4Net) -> RuleMessage {
    let register = Register::Reg1;
    let value = |bytes: &[u8]| DataAttribute::Value(bytes.to_vec());
    let load = |register, port: u16| {
        Expressions::Immediate(vec![
            Immediate::DestinationRegister(register),
            Immediate::Data(value(&port.to_be_bytes())),
        ])
    };
    let registers = PORT_REGISTERS.into_iter().zip([register, Register::Reg2]);
    let masquerade = registers
        .map(|(kind, register)| DefaultNla::new(kind, u32::from(register).to_be_bytes().to_vec()));
    let expressions = vec![
        Expressions::Payload(vec![
            Payload::DestinationRegister(register),
            Payload::Base(NETWORK_HEADER),
            Payload::Offset(SOURCE),
            Payload::Len(ADDRESS_BYTES),
        ]),
        Expressions::Bitwise(vec![
            Bitwise::SourceRegister(register),
            Bitwise::DestinationRegister(register),
            Bitwise::Length(ADDRESS_BYTES),
            Bitwise::Mask(value(&subnet.netmask().octets())),
            Bitwise::Xor(value(&[0; 4])),
        ]),
        compare(Operator::Equal, value(&subnet.network().octets())),
        Expressions::Meta(vec![
            Meta::DestinationRegister(register),
            Meta::Key(MetaKey::Oifname),
        ]),
        compare(Operator::NotEqual, value(HOST_VETH_PREFIX.as_bytes())),
        load(register, PORTS[0]),
        load(Register::Reg2, PORTS[1]),
        Expressions::Other {
            expression_type: "masq".to_owned(),
            attributes: masquerade.collect(),
        },
    ];
    RuleMessage {
        attributes: vec![
            RuleAttribute::Table(table.to_owned()),
            RuleAttribute::Chain(CHAIN.to_owned()),
            RuleAttribute::Expressions(expressions.into_iter().map(Into::into).collect()),
        ],
    }
}

fn compare(operator: Operator, data: DataAttribute) -> Expressions {
    Expressions::Cmp(vec![
        Cmp::SourceRegister(Register::Reg1),
        Cmp::Op(operator),
        Cmp::Data(data),
    ])
}

/// Makes the kernel apply all of `changes` or none.
fn commit(changes: Vec<(NfTablesMessage, u16)>) -> io::Result<()> {
    failing::step()?;
    let mut socket = Socket::new(NETLINK_NETFILTER)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    let count = changes.len();
    let frame = |inner: ControlMessage| {
        let header = NetfilterHeader::new(NetfilterProtoFamily::Unspec, 0, NFTABLES);
        (NetfilterMessage::new(header, inner), NLM_F_REQUEST)
    };
    let change = |(inner, flags): (NfTablesMessage, u16)| {
        let header = NetfilterHeader::new(NetfilterProtoFamily::IPv4, 0, 0);
        let message = NetfilterMessage::new(header, NetfilterMessageInner::NfTables(inner));
        (message, NLM_F_REQUEST | NLM_F_ACK | flags)
    };
    let messages = std::iter::once(frame(ControlMessage::BatchBegin))
        .chain(changes.into_iter().map(change))
        .chain([frame(ControlMessage::BatchEnd)]);
    let mut bytes = Vec::new();
    for (sequence, (message, flags)) in (1..).zip(messages) {
        let mut header = NetlinkHeader::default();
        header.flags = flags;
        header.sequence_number = sequence;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(message));
        message.finalize();
        let start = bytes.len();
        bytes.resize(start + message.buffer_len(), 0);
        message.serialize(&mut bytes[start..]);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
    }
    socket.send(&bytes, 0)?;
    acknowledged(&socket, count)
}

/// Waits for `count` acknowledgements, or for the first error.
fn acknowledged(socket: &Socket, count: usize) -> io::Result<()> {
    let mut left = count;
    while left > 0 {
        let mut bytes = Vec::with_capacity(ANSWER_BYTES);
        let received = socket.recv(&mut bytes, 0)?;
        let mut rest = bytes.get(..received).unwrap_or_default();
        while !rest.is_empty() && left > 0 {
            let answer =
                NetlinkMessage::<NetfilterMessage>::deserialize(rest).map_err(io::Error::other)?;
            let length = answer.header.length as usize;
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
            if let NetlinkPayload::Error(error) = answer.payload {
                if error.code.is_some() {
                    return Err(error.to_io());
                }
                left -= 1;
            }
        }
    }
    Ok(())
}
