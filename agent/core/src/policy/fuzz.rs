//! The packet policy compiler compared with rules that are evaluated one after the other: an oracle, and a fuzz target
//! that uses it.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::collections::BTreeSet;

use muster_ebpf_common::policy::{Leaf, search};

use super::*;

/// Most rules of one direction in one input.
const RULES_MAX: usize = 24;
/// Most addresses, and most details, of one input's packets. Each address is combined with each detail.
const ASKED_MAX: usize = 16;
/// A code for rules that match every code.
const ANY_CODE: u8 = u8::MAX;
const CLASSES: [Class; 5] = [
    Class::Tcp,
    Class::Udp,
    Class::Icmp,
    Class::Icmpv6,
    Class::Other,
];

/// The fields of a packet that a policy uses.
#[derive(Clone, Copy, Debug)]
pub(super) struct PacketHeader {
    pub(super) peer: IpAddr,
    pub(super) class: Class,
    pub(super) detail: u16,
}

/// The verdict of the packet path.
pub(super) fn found(policy: &CompiledPolicy, question: PacketHeader) -> Verdict {
    let list = match question.peer {
        IpAddr::V4(peer) => longest(&policy.v4, Ipv4Net::from(peer), Ipv4Net::supernet),
        IpAddr::V6(peer) => longest(&policy.v6, Ipv6Net::from(peer), Ipv6Net::supernet),
    };
    let intervals = &policy.lists[list];
    let leaf = Leaf {
        first: 0,
        count: u32::try_from(intervals.len()).expect("intervals are bounded"),
    };
    search(leaf, key(question.class, question.detail), |at| {
        intervals.get(at as usize).copied()
    })
}

fn longest<N: Ord + Copy>(
    leaves: &BTreeMap<N, usize>,
    peer: N,
    wider: impl Fn(&N) -> Option<N>,
) -> usize {
    *std::iter::successors(Some(peer), |net| wider(net))
        .find_map(|net| leaves.get(&net))
        .expect("a list for all addresses")
}

/// The number of the first rule that matches, in order; the number of rules for the default.
pub(super) fn asked(rules: &[&PolicyRule], question: PacketHeader) -> usize {
    let matches = |rule: &PolicyRule| {
        let place =
            rule.peers.is_empty() || rule.peers.iter().any(|net| net.contains(&question.peer));
        let within =
            |range: &PortRange| range.first <= question.detail && question.detail <= range.last;
        let port = rule.ports.is_empty() || rule.ports.iter().any(within);
        let [kind, code] = question.detail.to_be_bytes();
        let icmp = rule.icmp_type.is_none_or(|it| it == kind)
            && (rule.icmp_type.is_none() || rule.icmp_code.is_none_or(|it| it == code));
        let what = match rule.protocol {
            PolicyProtocol::All => true,
            PolicyProtocol::Tcp => question.class == Class::Tcp && port,
            PolicyProtocol::Udp => question.class == Class::Udp && port,
            PolicyProtocol::Icmp => question.class == Class::Icmp && icmp,
            PolicyProtocol::Icmpv6 => question.class == Class::Icmpv6 && icmp,
        };
        place && what
    };
    rules
        .iter()
        .position(|rule| matches(rule))
        .unwrap_or(rules.len())
}

/// Reads `data` as the policies of a task, a group, a node and a cluster, and compiles them.
///
/// # Panics
///
/// If a packet's verdict is not that of the first rule that matches it.
pub fn packet_policy(data: &[u8]) {
    let mut input = Input(data);
    let layers: [Option<DirectionPolicy>; 4] =
        std::array::from_fn(|_| (input.byte() & 1 == 1).then(|| input.direction()));
    let built_in = if input.byte() & 1 == 1 {
        built_in(&NodePolicy::default())
    } else {
        Vec::new()
    };
    let all = layers.each_ref().map(Option::as_ref);
    let default = all.iter().flatten().find_map(|policy| policy.default);
    let default = default.unwrap_or(PolicyAction::Allow);
    let configured = all.iter().flatten().flat_map(|policy| &policy.rules);
    let rules: Vec<&PolicyRule> = built_in.iter().chain(configured).collect();
    let Ok(compiled) = OrderedRules::new(&built_in, all).compile("egress") else {
        return;
    };
    for intervals in &compiled.lists {
        assert_eq!(intervals.first().map(|first| first.start), Some(0));
        assert!(intervals.is_sorted_by(|one, next| one.start < next.start));
    }
    let (peers, details) = (peers(&rules), details(&rules));
    for peer in peers {
        for class in CLASSES {
            for detail in &details {
                let detail = if class == Class::Other { 0 } else { *detail };
                let question = PacketHeader {
                    peer,
                    class,
                    detail,
                };
                check(&compiled, &rules, default, question);
            }
        }
    }
}

fn check(
    compiled: &CompiledPolicy,
    rules: &[&PolicyRule],
    default: PolicyAction,
    question: PacketHeader,
) {
    let verdict = found(compiled, question);
    let number = asked(rules, question);
    let (action, log) = rules
        .get(number)
        .map_or((default, false), |rule| (rule.action, rule.log));
    let allows = action == PolicyAction::Allow;
    assert_eq!(verdict.rule() as usize, number, "{question:?}");
    assert_eq!(verdict.allows(), allows, "{question:?}");
    assert_eq!(verdict.is_reported(), log || !allows, "{question:?}");
    assert_eq!(compiled.rules[number].1, allows, "{question:?}");
}

/// The first and the last address of each prefix, and one address of each family.
fn peers(rules: &[&PolicyRule]) -> BTreeSet<IpAddr> {
    let nets = rules.iter().flat_map(|rule| &rule.peers);
    let edges = nets.flat_map(|net| [net.network(), net.broadcast()]);
    let others = [
        IpAddr::V4(Ipv4Addr::new(192, 0, 2, 7)),
        IpAddr::V6(Ipv6Addr::LOCALHOST),
    ];
    others.into_iter().chain(edges).take(ASKED_MAX).collect()
}

/// The bounds of each range of ports and their neighbours.
fn details(rules: &[&PolicyRule]) -> BTreeSet<u16> {
    let ports = rules.iter().flat_map(|rule| &rule.ports).flat_map(|range| {
        let PortRange { first, last } = *range;
        [first.wrapping_sub(1), first, last, last.wrapping_add(1)]
    });
    let icmp = rules.iter().filter_map(|rule| {
        let (kind, code) = (rule.icmp_type?, rule.icmp_code.unwrap_or(ANY_CODE));
        Some(u16::from_be_bytes([kind, code]))
    });
    let others = [0, u16::MAX];
    let edges = others.into_iter().chain(icmp).chain(ports);
    edges.take(ASKED_MAX).collect()
}

/// The rest of an input. Missing bytes read as zero.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        *first
    }

    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| self.byte())
    }

    fn direction(&mut self) -> DirectionPolicy {
        let flags = self.byte();
        let action = |deny: bool| {
            if deny {
                PolicyAction::Deny
            } else {
                PolicyAction::Allow
            }
        };
        let count = usize::from(flags >> 2).min(RULES_MAX);
        let rules = (0..count).map(|number| {
            let [flags, numbers] = self.bytes();
            let peers = (0..numbers & 3).map(|_| self.peer()).collect();
            let ports = (0..numbers >> 2 & 3).map(|_| self.ports()).collect();
            PolicyRule {
                name: format!("r{number}"),
                action: action(flags & 1 == 1),
                protocol: PolicyProtocol::ALL[usize::from(flags >> 2) % PolicyProtocol::ALL.len()],
                peers,
                ports,
                icmp_type: (numbers & 16 != 0).then(|| self.byte()),
                icmp_code: (numbers & 32 != 0).then(|| self.byte()),
                log: flags & 2 != 0,
            }
        });
        let rules = rules.collect();
        DirectionPolicy {
            default: (flags & 1 == 1).then(|| action(flags & 2 == 2)),
            rules,
            rate: None,
        }
    }

    fn peer(&mut self) -> IpNet {
        let [family, length] = self.bytes();
        let address = if family & 1 == 0 {
            IpAddr::from(self.bytes::<4>())
        } else {
            IpAddr::from(self.bytes::<16>())
        };
        let host = IpNet::from(address);
        IpNet::new(address, length % (host.max_prefix_len() + 1)).unwrap_or(host)
    }

    /// The last port may be before the first; such a range contains no port.
    fn ports(&mut self) -> PortRange {
        let [first, last] = [self.bytes(), self.bytes()].map(u16::from_le_bytes);
        PortRange { first, last }
    }
}

#[cfg(test)]
mod tests {
    use muster_domain::fixture::corpus::replay;

    #[test]
    fn policies_of_the_corpus_decide_in_order() {
        replay("packet_policy", super::packet_policy);
    }
}
