//! Rules for the traffic of tasks.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::block::job_block;
use super::rate;

/// The cloud metadata addresses, at which machines read their secrets. The list has the link-local IPv4 address of
/// nearly all clouds and AWS's address for containers. It also has the addresses of Alibaba and Oracle, and AWS's IPv6
/// address. No task may connect to them, nor may the agent for a task.
pub const METADATA_ADDRESSES: [IpAddr; 5] = [
    IpAddr::V4(Ipv4Addr::new(169, 254, 169, 254)),
    IpAddr::V4(Ipv4Addr::new(169, 254, 170, 2)),
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V4(Ipv4Addr::new(192, 0, 0, 192)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0x0ec2, 0, 0, 0, 0, 0, 0x254)),
];

/// The rules for the packets that a task sends and receives.
///
/// A task's rules come before its group's, and those before its node's. The first rule that matches a packet decides.
/// The node's own refusals precede all rules, and no job can override them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkPolicy {
    /// Rules for packets that the task sends and connections that it begins.
    pub egress: DirectionPolicy,
    /// Rules for packets that the task receives and connections that it accepts.
    pub ingress: DirectionPolicy,
}

/// Rules of one direction.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectionPolicy {
    /// The action for packets that no rule matches. `None` leaves it to the group, then to the node, and then allows
    /// the packet.
    pub default: Option<PolicyAction>,
    /// In order; the first that matches decides.
    pub rules: Vec<PolicyRule>,
    /// The rate limit for all connections together. `None` leaves it to the group, then to the node, and then to the
    /// network.
    pub rate: Option<BitRate>,
}

/// Bits in a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BitRate(pub u64);

impl BitRate {
    /// The lowest useful rate. Below it, a packet of full size takes longer than the timeout of an impatient sender.
    pub const MIN: Self = Self(64_000);
    /// The highest rate. No network device of a machine reaches it.
    pub const MAX: Self = Self(1_000_000_000_000);

    const UNITS: rate::UnitTable = [
        ("gbit", 1_000_000_000),
        ("mbit", 1_000_000),
        ("kbit", 1_000),
    ];

    /// Reads `100mbit`; units are kbit, mbit and gbit, a thousand, a million and a milliard of bits in a second.
    #[must_use]
    pub fn read(text: &str) -> Option<Self> {
        rate::read(text, &Self::UNITS).map(Self)
    }
}

impl std::fmt::Display for BitRate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        rate::write(f, self.0, &Self::UNITS, "bit")
    }
}

/// The decision about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PolicyAction {
    Allow,
    /// The packet is dropped. The task gets `EPERM` for a datagram, and for a connection to an address that no listener
    /// of its own machine can have. Otherwise the task gets no error.
    Deny,
}

crate::text_enum!(pub PolicyAction: "action" {
    Allow => "allow",
    Deny => "deny",
});

job_block! {
    /// A rule of a policy.
    pub struct PolicyRule {
        /// The name of the rule in counts and events; unique in its direction.
        pub name: String = String::new();
        /// The decision about a packet that the rule matches.
        pub action: PolicyAction = PolicyAction::Allow;
        /// The protocols that the rule matches.
        pub protocol: PolicyProtocol = PolicyProtocol::All;
        /// The destination of a packet that is sent, or the source of a packet that is received. Empty means any
        /// address.
        pub peers: Vec<Peer> = Vec::new();
        /// The destination port of a tcp or udp connection: the peer's for egress, the task's own for ingress. Empty
        /// means any.
        pub ports: Vec<PortRange> = Vec::new();
        /// The type of an icmp or icmpv6 message; `None` means any.
        pub icmp_type: Option<u8> = None;
        /// The code of an icmp or icmpv6 message of `icmp_type`; `None` means any.
        pub icmp_code: Option<u8> = None;
        /// Whether allowed packets of the rule are reported. Denied packets always are.
        pub log: bool = false;
    }
}

/// The protocols that a rule matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PolicyProtocol {
    All,
    Tcp,
    Udp,
    /// ICMP of IPv4.
    Icmp,
    /// ICMP of IPv6.
    Icmpv6,
}

crate::text_enum!(pub PolicyProtocol: "protocol" {
    All => "all",
    Tcp => "tcp",
    Udp => "udp",
    Icmp => "icmp",
    Icmpv6 => "icmpv6",
});

impl PolicyProtocol {
    fn has_ports(self) -> bool {
        match self {
            Self::Tcp | Self::Udp => true,
            Self::All | Self::Icmp | Self::Icmpv6 => false,
        }
    }

    fn has_types(self) -> bool {
        match self {
            Self::Icmp | Self::Icmpv6 => true,
            Self::All | Self::Tcp | Self::Udp => false,
        }
    }
}

/// Ports from `first` to `last`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortRange {
    /// The first; at least 1.
    pub first: u16,
    /// The last; not below the first.
    pub last: u16,
}

impl PortRange {
    /// Reads `443` or `8000-9000`.
    #[must_use]
    pub fn read(text: &str) -> Option<Self> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let (first, last): (u16, u16) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        (1 <= first && first <= last).then_some(Self { first, last })
    }
}

impl std::fmt::Display for PortRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.first == self.last {
            return write!(f, "{}", self.first);
        }
        write!(f, "{}-{}", self.first, self.last)
    }
}

/// An address, or all addresses with a prefix.
pub type Peer = IpNet;

/// Reads an address, or a prefix with its length. Host bits are cleared.
#[must_use]
pub fn read_peer(text: &str) -> Option<Peer> {
    let text = text.trim();
    if let Ok(address) = text.parse::<IpAddr>() {
        return Some(address.into());
    }
    text.parse::<IpNet>().ok().map(|net| net.trunc())
}

impl PolicyRule {
    /// Returns the fault in the rule, if there is one.
    #[must_use]
    pub fn fault(&self) -> Option<String> {
        let Self {
            name,
            action: _,
            protocol,
            peers,
            ports,
            icmp_type,
            icmp_code,
            log: _,
        } = self;
        let word = protocol.as_str();
        let is_v4 = |peer: &IpNet| peer.addr().is_ipv4();
        if name.is_empty() {
            return Some("has no name".to_owned());
        }
        if !ports.is_empty() && !protocol.has_ports() {
            return Some(format!(
                "ports do not go with protocol `{word}`: use `tcp` or `udp`"
            ));
        }
        if icmp_type.is_some() && !protocol.has_types() {
            return Some(format!("icmp_type does not go with protocol `{word}`"));
        }
        if icmp_code.is_some() && icmp_type.is_none() {
            return Some("icmp_code needs an icmp_type".to_owned());
        }
        let wrong = match protocol {
            PolicyProtocol::Icmp => peers.iter().find(|peer| !is_v4(peer)),
            PolicyProtocol::Icmpv6 => peers.iter().find(|peer| is_v4(peer)),
            PolicyProtocol::All | PolicyProtocol::Tcp | PolicyProtocol::Udp => None,
        };
        let (family, instead) = match protocol {
            PolicyProtocol::Icmp => ("IPv4", PolicyProtocol::Icmpv6),
            PolicyProtocol::All
            | PolicyProtocol::Tcp
            | PolicyProtocol::Udp
            | PolicyProtocol::Icmpv6 => ("IPv6", PolicyProtocol::Icmp),
        };
        wrong.map(|peer| {
            let instead = instead.as_str();
            format!("protocol `{word}` is for {family}, {peer} is not: use `{instead}`")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_a_number_and_its_unit() {
        for (text, bits) in [
            ("64kbit", 64_000),
            ("100mbit", 100_000_000),
            ("2gbit", 2_000_000_000),
        ] {
            let rate = BitRate::read(text).unwrap();
            assert_eq!((rate.0, rate.to_string().as_str()), (bits, text));
        }
        assert_eq!(BitRate::read("1500 kbit").unwrap().to_string(), "1500kbit");
        for text in [
            "",
            "100",
            "mbit",
            "1.5mbit",
            "-1mbit",
            "100mb",
            "99999999999999999999gbit",
        ] {
            assert_eq!(BitRate::read(text), None, "{text}");
        }
    }

    fn rule(protocol: PolicyProtocol) -> PolicyRule {
        PolicyRule {
            name: "r".to_owned(),
            action: PolicyAction::Allow,
            protocol,
            peers: Vec::new(),
            ports: Vec::new(),
            icmp_type: None,
            icmp_code: None,
            log: false,
        }
    }

    #[test]
    fn ranges_of_ports_are_read() {
        for (text, expected) in [
            ("443", Some((443, 443))),
            ("8000-9000", Some((8_000, 9_000))),
            ("1 - 65535", Some((1, 65_535))),
            ("0", None),
            ("9-8", None),
            ("65536", None),
            ("http", None),
            ("", None),
        ] {
            let read = PortRange::read(text).map(|range| (range.first, range.last));
            assert_eq!(read, expected, "{text}");
        }
    }

    #[test]
    fn peers_are_read() {
        for (text, expected) in [
            ("10.1.2.3", Some("10.1.2.3/32")),
            ("10.1.2.3/8", Some("10.0.0.0/8")),
            ("0.0.0.0/0", Some("0.0.0.0/0")),
            ("fd00::1/64", Some("fd00::/64")),
            ("::1", Some("::1/128")),
            ("10.0.0.0/33", None),
            ("example.com", None),
        ] {
            let read = read_peer(text).map(|net| net.to_string());
            assert_eq!(read.as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn conflicting_rule_fields_are_faults() {
        use PolicyProtocol::{All, Icmp, Icmpv6, Tcp};
        let ports = vec![PortRange { first: 1, last: 2 }];
        let v4 = read_peer("10.0.0.0/8").unwrap();
        let v6 = read_peer("fd00::/8").unwrap();
        let cases = [
            (rule(Tcp), None),
            (
                PolicyRule {
                    ports: ports.clone(),
                    ..rule(Tcp)
                },
                None,
            ),
            (
                PolicyRule {
                    ports: ports.clone(),
                    ..rule(All)
                },
                Some("ports do not go with protocol `all`: use `tcp` or `udp`"),
            ),
            (
                PolicyRule {
                    ports,
                    ..rule(Icmp)
                },
                Some("ports do not go with protocol `icmp`: use `tcp` or `udp`"),
            ),
            (
                PolicyRule {
                    icmp_type: Some(8),
                    ..rule(Icmp)
                },
                None,
            ),
            (
                PolicyRule {
                    icmp_type: Some(8),
                    ..rule(Tcp)
                },
                Some("icmp_type does not go with protocol `tcp`"),
            ),
            (
                PolicyRule {
                    icmp_code: Some(0),
                    ..rule(Icmp)
                },
                Some("icmp_code needs an icmp_type"),
            ),
            (
                PolicyRule {
                    peers: vec![v6],
                    ..rule(Icmp)
                },
                Some("protocol `icmp` is for IPv4, fd00::/8 is not: use `icmpv6`"),
            ),
            (
                PolicyRule {
                    peers: vec![v4],
                    ..rule(Icmpv6)
                },
                Some("protocol `icmpv6` is for IPv6, 10.0.0.0/8 is not: use `icmp`"),
            ),
            (
                PolicyRule {
                    name: String::new(),
                    ..rule(All)
                },
                Some("has no name"),
            ),
        ];
        for (rule, expected) in cases {
            assert_eq!(rule.fault().as_deref(), expected, "{rule:?}");
        }
    }
}
