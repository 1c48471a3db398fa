//! The allowed destinations of a task: Diego's security group rules.

use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Subnets, Ipv6Subnets};
use serde::{Deserialize, Serialize};

use crate::job::{self, DirectionPolicy, NetworkPolicy, PolicyAction, PolicyProtocol, PolicyRule};
use crate::{limits, saturating};

/// Ports from `start` to `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortRange {
    pub start: u32,
    pub end: u32,
}

/// A kind of ICMP message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IcmpInfo {
    /// The type of the message; -1 means all.
    #[serde(rename = "type")]
    pub kind: i32,
    /// The code of the message; -1 means all.
    pub code: i32,
}

/// A rule that allows one kind of outgoing traffic.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EgressRule {
    /// `tcp`, `udp`, `icmp`, `icmpv6` or `all`.
    #[serde(default)]
    pub protocol: String,
    /// Each an address, a CIDR, a range `ADDRESS-ADDRESS`, or a list of these with commas.
    #[serde(default)]
    pub destinations: Vec<String>,
    /// Ports for tcp and udp.
    #[serde(default)]
    pub ports: Vec<u32>,
    /// A range of ports for tcp and udp, instead of `ports`.
    #[serde(default)]
    pub port_range: Option<PortRange>,
    /// The message for icmp and icmpv6.
    #[serde(default)]
    pub icmp_info: Option<IcmpInfo>,
    /// Whether the node's verdicts (`muster net`) show packets of this rule. Packets of an earlier rule are not shown
    /// for this one.
    #[serde(default)]
    pub log: bool,
    #[serde(default)]
    pub annotations: Vec<String>,
}

/// The destinations that a list of rules allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// No outgoing traffic: the task has an empty network namespace.
    Nothing,
    Everything,
    Some,
}

impl EgressRule {
    /// Returns the fault in the rule, if there is one.
    #[must_use]
    pub fn fault(&self) -> Option<String> {
        self.protocol_fault()
            .or_else(|| self.destinations_fault())
            // Diego accepts a rule that no packet can match: one ICMP to addresses of the other family.
            .or_else(|| self.as_policy(0).fault())
    }

    /// Returns the fault in the protocol or in a field that does not belong to it.
    fn protocol_fault(&self) -> Option<String> {
        let Self {
            protocol,
            destinations: _,
            ports,
            port_range,
            icmp_info,
            log: _,
            annotations: _,
        } = self;
        let has_ports = !ports.is_empty() || port_range.is_some();
        match protocol.as_str() {
            "tcp" | "udp" => {
                if icmp_info.is_some() {
                    return Some(format!("icmp_info does not go with {protocol}"));
                }
                match (ports.is_empty(), port_range) {
                    (true, None) => return Some("ports or port_range is missing".to_owned()),
                    (false, Some(_)) => {
                        return Some("ports and port_range: only one of them".to_owned());
                    }
                    (true, Some(range)) => {
                        let in_order = 1 <= range.start && range.start <= range.end;
                        if !in_order || range.end > u32::from(u16::MAX) {
                            return Some(format!(
                                "port_range {} to {} is not a range within 1 to 65535",
                                range.start, range.end
                            ));
                        }
                    }
                    (false, None) => {
                        let is_port = |port: &u32| (1..=u32::from(u16::MAX)).contains(port);
                        if let Some(port) = ports.iter().find(|port| !is_port(port)) {
                            return Some(format!("port {port} is outside 1 to 65535"));
                        }
                    }
                }
            }
            "icmp" | "icmpv6" => {
                if has_ports {
                    return Some(format!("ports do not go with {protocol}"));
                }
                let Some(info) = icmp_info else {
                    return Some("icmp_info is missing".to_owned());
                };
                let all_or_byte = -1..=i32::from(u8::MAX);
                if !all_or_byte.contains(&info.kind) || !all_or_byte.contains(&info.code) {
                    return Some(format!(
                        "icmp_info type {} and code {} are not both within -1 to 255",
                        info.kind, info.code
                    ));
                }
            }
            "all" => {
                if has_ports || icmp_info.is_some() {
                    return Some("ports and icmp_info do not go with `all`".to_owned());
                }
            }
            other => {
                return Some(format!(
                    "protocol `{other}` is none of tcp, udp, icmp, icmpv6, all"
                ));
            }
        }
        None
    }

    fn destinations_fault(&self) -> Option<String> {
        let Self {
            destinations,
            ports,
            ..
        } = self;
        if destinations.is_empty() {
            return Some("destinations is empty".to_owned());
        }
        let each = destinations.iter().flat_map(|list| list.split(','));
        let mut nets = 0;
        for text in each.map(str::trim) {
            let Some(destination) = Destination::read(text) else {
                return Some(format!(
                    "destination `{text}` is not an address, CIDR or range of addresses in order"
                ));
            };
            nets += destination.nets().len();
        }
        let max = limits::POLICY_PEERS_MAX;
        if nets > max || ports.len() > max {
            let ports = ports.len();
            return Some(format!(
                "it comes to {nets} prefixes and {ports} ports: at most {max} of each, so write several rules"
            ));
        }
        None
    }

    /// The destinations that `rules` allow.
    #[must_use]
    pub fn reach(rules: &[Self]) -> Reach {
        if rules.is_empty() {
            return Reach::Nothing;
        }
        let everything = |rule: &Self| {
            let mut each = rule.destinations.iter().flat_map(|list| list.split(','));
            rule.protocol == "all"
                && each.any(|text| {
                    Destination::read(text.trim()).is_some_and(Destination::is_all_of_ipv4)
                })
        };
        if rules.iter().any(everything) {
            Reach::Everything
        } else {
            Reach::Some
        }
    }
}

impl EgressRule {
    /// The policy of a task that may send only by `rules`. No other host can connect to it, because only services have
    /// ports.
    #[must_use]
    pub fn policy(rules: &[Self]) -> NetworkPolicy {
        NetworkPolicy {
            egress: DirectionPolicy {
                default: Some(PolicyAction::Deny),
                rules: rules
                    .iter()
                    .enumerate()
                    .map(|(ordinal, rule)| rule.as_policy(ordinal))
                    .collect(),
                rate: None,
            },
            ingress: DirectionPolicy {
                default: Some(PolicyAction::Deny),
                rules: Vec::new(),
                rate: None,
            },
        }
    }

    /// The policy of a task that may send everywhere and whose rules ask for a log. `None` if no rule asks for one. The
    /// policy denies nothing: logging does not change the allowed destinations.
    #[must_use]
    pub fn log_policy(rules: &[Self]) -> Option<NetworkPolicy> {
        if !rules.iter().any(|rule| rule.log) {
            return None;
        }
        let numbered = rules.iter().enumerate();
        let rules = numbered.map(|(ordinal, rule)| rule.as_policy(ordinal));
        Some(NetworkPolicy {
            egress: DirectionPolicy {
                rules: rules.collect(),
                ..DirectionPolicy::default()
            },
            ..NetworkPolicy::default()
        })
    }

    fn as_policy(&self, ordinal: usize) -> PolicyRule {
        let Self {
            protocol,
            destinations,
            ports,
            port_range,
            icmp_info,
            log,
            annotations: _,
        } = self;
        // [`Self::fault`] refuses a greater port before a task is stored.
        let port = |port: u32| saturating::to_u16(port);
        let single = ports.iter().map(|each| job::PortRange {
            first: port(*each),
            last: port(*each),
        });
        let range = port_range.map(|range| job::PortRange {
            first: port(range.start),
            last: port(range.end),
        });
        // -1 means all types or all codes. A rule for all types covers all codes.
        let number = |number: i32| u8::try_from(number).ok();
        let kind = icmp_info.and_then(|info| number(info.kind));
        let code = icmp_info.and_then(|info| number(info.code));
        let each = destinations.iter().flat_map(|list| list.split(','));
        PolicyRule {
            name: format!("egress_rules[{ordinal}]"),
            action: PolicyAction::Allow,
            protocol: PolicyProtocol::from_name(protocol).unwrap_or(PolicyProtocol::All),
            peers: each
                .filter_map(|text| Destination::read(text.trim()))
                .flat_map(Destination::nets)
                .collect(),
            ports: single.chain(range).collect(),
            icmp_type: kind,
            icmp_code: kind.and(code),
            log: *log,
        }
    }
}

/// A range of addresses of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Destination {
    first: IpAddr,
    last: IpAddr,
}

impl Destination {
    fn read(text: &str) -> Option<Self> {
        if let Some((first, last)) = text.split_once('-') {
            let (first, last): (IpAddr, IpAddr) = (first.parse().ok()?, last.parse().ok()?);
            let fits = first.is_ipv4() == last.is_ipv4() && first <= last;
            return fits.then_some(Self { first, last });
        }
        let Some((address, bits)) = text.split_once('/') else {
            let address = text.parse().ok()?;
            return Some(Self {
                first: address,
                last: address,
            });
        };
        let is_number = bits.bytes().all(|byte| byte.is_ascii_digit());
        let bits: u32 = bits.parse().ok().filter(|_| is_number)?;
        Some(match address.parse().ok()? {
            IpAddr::V4(address) => {
                let host = u32::MAX.checked_shr(bits).unwrap_or(0);
                (bits <= 32).then_some(())?;
                Self {
                    first: IpAddr::V4((address.to_bits() & !host).into()),
                    last: IpAddr::V4((address.to_bits() | host).into()),
                }
            }
            IpAddr::V6(address) => {
                let host = u128::MAX.checked_shr(bits).unwrap_or(0);
                (bits <= 128).then_some(())?;
                Self {
                    first: IpAddr::V6((address.to_bits() & !host).into()),
                    last: IpAddr::V6((address.to_bits() | host).into()),
                }
            }
        })
    }

    /// The prefixes that cover the range.
    fn nets(self) -> Vec<IpNet> {
        match (self.first, self.last) {
            (IpAddr::V4(first), IpAddr::V4(last)) => {
                Ipv4Subnets::new(first, last, 0).map(IpNet::V4).collect()
            }
            (IpAddr::V6(first), IpAddr::V6(last)) => {
                Ipv6Subnets::new(first, last, 0).map(IpNet::V6).collect()
            }
            // `read` makes ranges of one family only.
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => Vec::new(),
        }
    }

    fn is_all_of_ipv4(self) -> bool {
        self.first == IpAddr::from([0, 0, 0, 0]) && self.last == IpAddr::from([255, 255, 255, 255])
    }
}
