//! Rules for the packets that a task may send and receive, compiled for the packet path.
//!
//! `muster_ebpf_common::policy` defines the format of a compiled policy. The compiler resolves the order of rules in
//! advance. For each prefix that a rule names, it finds the rules that apply there. At each key the first matching rule
//! wins, and the result is the prefix's list of intervals. Prefixes with the same result share one list. A prefix with
//! the same result as the next wider prefix is left out.

#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::collections::BTreeMap;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use muster_domain::job::{
    BitRate, DirectionPolicy, METADATA_ADDRESSES, NetworkMode, NetworkPolicy, PolicyAction,
    PolicyProtocol, PolicyRule, PortRange, TaskGroup,
};
use muster_ebpf_common::policy::{
    Class, Interval, KEYS, LEAF_INTERVALS_MAX, Verdict, icmp_detail, key,
};

/// The reported name of packets that no rule matched.
pub const DEFAULT_RULE: &str = "default";
/// The reported name of a refused connection to an undeclared port of another allocation.
pub const PRIVATE_PORT_RULE: &str = "built-in/private-port";
/// The reported name of a packet to a port of the node that another task of the node holds.
pub const HELD_PORT_RULE: &str = "built-in/held-port";
/// The reported name of a packet to another port of the node.
const HOST_RULE: &str = "built-in/host";
/// The reported name of a packet to the node's resolver.
const RESOLVER_RULE: &str = "built-in/resolver";
/// Destinations that a host veth delivers to the node for every set of node addresses: broadcast and multicast.
const HOST_GROUPS: [IpNet; 2] = [
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::BROADCAST, 32)),
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(224, 0, 0, 0), 4)),
];
/// The port of resolvers.
const DNS_PORT: PortRange = PortRange {
    first: 53,
    last: 53,
};
/// The reported name of a packet for which no policy existed.
pub const NO_POLICY_RULE: &str = "built-in/no-policy";
/// Prefix of the names of the node's own rules.
const NODE: &str = "node/";
/// Prefix of the names of the cluster's rules.
const CLUSTER: &str = "cluster/";
/// Prefix of the names of rules that no job can lift.
const BUILT_IN: &str = "built-in/";

/// Most intervals of one policy: as many as one prefix may have, and a fourth of the number for a whole node.
const INTERVALS_MAX: usize = LEAF_INTERVALS_MAX as usize;
/// Most rules that are combined over all prefixes of one policy. The bound limits the time of compiling. A policy of 10
/// 000 rules combines 10 000 if each rule names a prefix of its own.
const COMBINED_RULES_MAX: usize = 4_000_000;

/// One direction's policy.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CompiledPolicy {
    /// Rules by number: the reported name, and whether the rule allows. The last is the default.
    pub rules: Vec<(String, bool)>,
    pub lists: Vec<Vec<Interval>>,
    /// The number of each IPv4 prefix's list.
    pub v4: BTreeMap<Ipv4Net, usize>,
    /// The number of each IPv6 prefix's list.
    pub v6: BTreeMap<Ipv6Net, usize>,
    /// Whether every packet passes except to destinations that are forbidden for all tasks.
    pub open: bool,
}

/// The policies of both directions of a task.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TaskPolicies {
    /// The policy for packets that the task receives.
    pub ingress: CompiledPolicy,
    /// The policy for packets that the task sends.
    pub egress: CompiledPolicy,
    /// The rate limit for packets that the task receives.
    pub ingress_rate: Option<BitRate>,
    /// The rate limit for packets that the task sends.
    pub egress_rate: Option<BitRate>,
}

/// The rules that a node adds to every task's policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodePolicy {
    /// The node's rules, which apply after the job's, and the default for packets that no rule of the job matches.
    pub policy: NetworkPolicy,
    /// The rules of the whole cluster, which apply after this node's own.
    pub cluster: NetworkPolicy,
    /// Named destinations that no task may reach, which belong to the control plane.
    pub forbidden: Vec<(String, IpNet, PolicyProtocol, u16)>,
    /// The node's addresses. Tasks with a network of their own reach only ports there that allocations hold. Empty if
    /// the operator leaves the node open.
    pub host: Vec<IpNet>,
}

/// The error for a policy that is too large.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the policy's {direction} rules come to more than {INTERVALS_MAX} intervals of ports, or hold in too many \
     prefixes at once: name fewer prefixes, or fewer ports for each"
)]
pub struct PolicyTooLargeError {
    direction: &'static str,
}

/// Compiles the policies of the task `task` of `group` on a node with the rules `node`. `resolvers` are the task's
/// resolvers.
///
/// # Errors
///
/// [`PolicyTooLargeError`].
pub fn compile(
    group: &TaskGroup,
    task: &str,
    node: &NodePolicy,
    resolvers: &[IpAddr],
) -> Result<TaskPolicies, PolicyTooLargeError> {
    let own = group.task(task).and_then(|task| task.policy.as_ref());
    let shared = group.network.as_ref().and_then(|it| it.policy.as_ref());
    let pick = |direction: fn(&NetworkPolicy) -> &DirectionPolicy| {
        let all = [own, shared, Some(&node.policy), Some(&node.cluster)];
        all.map(|policy| policy.map(direction))
    };
    let rate = |direction| {
        let mut policies = pick(direction).into_iter().flatten();
        policies.find_map(|policy| policy.rate)
    };
    let built_in = built_in(node);
    let host = host_rules(group, node, resolvers);
    let egress = OrderedRules::new(&built_in, pick(|policy| &policy.egress)).with_host_rules(&host);
    Ok(TaskPolicies {
        ingress_rate: rate(|policy| &policy.ingress),
        egress_rate: rate(|policy| &policy.egress),
        ingress: OrderedRules::new(&[], pick(|policy| &policy.ingress)).compile("ingress")?,
        egress: egress.compile("egress")?,
    })
}

/// The rules that no job can lift.
fn built_in(node: &NodePolicy) -> Vec<PolicyRule> {
    let metadata = own_rule(
        format!("{BUILT_IN}metadata"),
        PolicyAction::Deny,
        METADATA_ADDRESSES.map(IpNet::from).to_vec(),
        (PolicyProtocol::All, Vec::new()),
    );
    let forbidden = node.forbidden.iter().map(|(name, peer, protocol, port)| {
        let port = PortRange {
            first: *port,
            last: *port,
        };
        let name = format!("{BUILT_IN}{name}");
        own_rule(
            name,
            PolicyAction::Deny,
            vec![*peer],
            (*protocol, vec![port]),
        )
    });
    std::iter::once(metadata).chain(forbidden).collect()
}

/// The rules that close the node to a task with a network of its own. Rules that name an address of the node come
/// before them.
fn host_rules(group: &TaskGroup, node: &NodePolicy, resolvers: &[IpAddr]) -> Vec<PolicyRule> {
    let groups = match group.network.as_ref().map(|network| &network.mode) {
        // The only other end of a host veth is the node.
        Some(NetworkMode::Bridge) => &HOST_GROUPS[..],
        // A CNI network may have other allocations in the same segment.
        Some(NetworkMode::Cni(_)) => &[],
        Some(NetworkMode::Host | NetworkMode::None) | None => return Vec::new(),
    };
    if node.host.is_empty() {
        return Vec::new();
    }
    let is_own = |resolver: &&IpAddr| node.host.iter().any(|net| net.contains(*resolver));
    let resolvers: Vec<IpNet> = resolvers
        .iter()
        .filter(is_own)
        .map(|ip| (*ip).into())
        .collect();
    let closed = [&node.host[..], groups].concat();
    let protocols = [PolicyProtocol::Tcp, PolicyProtocol::Udp];
    let resolver = protocols
        .iter()
        .filter(|_| !resolvers.is_empty())
        .map(|it| {
            let peers = resolvers.clone();
            let asks = (*it, vec![DNS_PORT]);
            own_rule(RESOLVER_RULE.to_owned(), PolicyAction::Allow, peers, asks)
        });
    let host = protocols.iter().map(|it| {
        let asks = (*it, Vec::new());
        own_rule(
            HOST_RULE.to_owned(),
            PolicyAction::Deny,
            closed.clone(),
            asks,
        )
    });
    resolver.chain(host).collect()
}

fn own_rule(
    name: String,
    action: PolicyAction,
    peers: Vec<IpNet>,
    (protocol, ports): (PolicyProtocol, Vec<PortRange>),
) -> PolicyRule {
    PolicyRule {
        name,
        action,
        protocol,
        peers,
        ports,
        icmp_type: None,
        icmp_code: None,
        log: false,
    }
}

/// Rules in the order in which they apply, and the default.
struct OrderedRules<'a> {
    rules: Vec<(String, &'a PolicyRule)>,
    /// Rules from this number on close the node. They refuse no packet to a port that an allocation holds.
    first_host_rule: usize,
    default: PolicyAction,
    open: bool,
}

impl<'a> OrderedRules<'a> {
    fn new(built_in: &'a [PolicyRule], all: [Option<&'a DirectionPolicy>; 4]) -> Self {
        let own = built_in.iter().map(|rule| (rule.name.clone(), rule));
        let layers = all.into_iter().zip(["", "", NODE, CLUSTER]);
        let named = layers.flat_map(|(policy, before)| {
            let rules = policy.into_iter().flat_map(|policy| &policy.rules);
            rules.map(move |rule| (format!("{before}{}", rule.name), rule))
        });
        let rules: Vec<_> = own.chain(named).collect();
        let mut policies = all.into_iter().flatten();
        let default = policies
            .find_map(|policy| policy.default)
            .unwrap_or(PolicyAction::Allow);
        let denies = |rule: &PolicyRule| rule.action == PolicyAction::Deny;
        let open = default == PolicyAction::Allow
            && !rules[built_in.len()..].iter().any(|(_, rule)| denies(rule));
        Self {
            first_host_rule: rules.len(),
            rules,
            default,
            open,
        }
    }

    /// Adds `host`, the rules about the node's addresses. They apply after all other rules if the default allows. They
    /// also apply in place of each rule that allows the address without naming it.
    fn with_host_rules(mut self, host: &'a [PolicyRule]) -> Self {
        self.rules
            .extend(host.iter().map(|rule| (rule.name.clone(), rule)));
        self.open &= host.is_empty();
        self
    }

    fn compile(self, direction: &'static str) -> Result<CompiledPolicy, PolicyTooLargeError> {
        let too_large = PolicyTooLargeError { direction };
        let mut lists = IntervalLists::default();
        let mut combined_rules = 0;
        let mut seen = |net: IpNet, rules: &[usize]| {
            combined_rules += rules.len();
            if combined_rules > COMBINED_RULES_MAX {
                return Err(too_large.clone());
            }
            let at = lists.number(self.verdict_intervals(net, rules));
            if lists.intervals > INTERVALS_MAX {
                return Err(too_large.clone());
            }
            Ok(at)
        };
        let nets = self.by_prefix(|net| match net {
            IpNet::V4(net) => Some(net),
            IpNet::V6(_) => None,
        });
        let v4 = remove_redundant_prefixes(&nets, Ipv4Net::supernet, &mut seen)?;
        let nets = self.by_prefix(|net| match net {
            IpNet::V6(net) => Some(net),
            IpNet::V4(_) => None,
        });
        let v6 = remove_redundant_prefixes(&nets, Ipv6Net::supernet, &mut seen)?;
        let allows = |rule: &PolicyRule| rule.action == PolicyAction::Allow;
        let named = self.rules.iter();
        let rules = named
            .map(|(name, rule)| (name.clone(), allows(rule)))
            .chain([(DEFAULT_RULE.to_owned(), self.default == PolicyAction::Allow)])
            .collect();
        Ok(CompiledPolicy {
            rules,
            lists: lists.lists,
            v4,
            v6,
            open: self.open,
        })
    }

    /// The numbers of the rules that name each prefix of a family. A rule without a prefix names all addresses of the
    /// family.
    fn by_prefix<N: Ord + Default>(
        &self,
        of_family: impl Fn(IpNet) -> Option<N>,
    ) -> BTreeMap<N, Vec<usize>> {
        let mut named: BTreeMap<N, Vec<usize>> = BTreeMap::new();
        // The default value of `N` is the prefix of all addresses.
        named.entry(N::default()).or_default();
        for (number, (_, rule)) in self.rules.iter().enumerate() {
            if rule.peers.is_empty() {
                named.entry(N::default()).or_default().push(number);
            }
            for net in rule.peers.iter().filter_map(|peer| of_family(peer.trunc())) {
                let rules = named.entry(net).or_default();
                if rules.last() != Some(&number) {
                    rules.push(number);
                }
            }
        }
        named
    }

    /// The verdicts of `rules` in `net` as intervals, sorted by start.
    fn verdict_intervals(&self, net: IpNet, rules: &[usize]) -> Vec<Interval> {
        let mut free = BTreeMap::from([(0, KEYS)]);
        let mut seen = BTreeMap::new();
        let (others, host) = rules.split_at(rules.partition_point(|it| *it < self.first_host_rule));
        for number in others {
            let (_, rule) = &self.rules[*number];
            let ranges = ranges(rule);
            if rule.action == PolicyAction::Allow && !names(rule, net) {
                for number in host {
                    self.cover_host(&mut free, &mut seen, *number, &ranges);
                }
            }
            let verdict = verdict(rule.action, rule.log, *number);
            for (first, end) in ranges {
                cover(&mut free, &mut seen, first, end, verdict);
            }
            if free.is_empty() {
                break;
            }
        }
        // If the default denies, the host rules could only open ports.
        if self.default == PolicyAction::Allow {
            for number in host {
                self.cover_host(&mut free, &mut seen, *number, &[(0, KEYS)]);
            }
        }
        let verdict = verdict(self.default, false, self.rules.len());
        cover(&mut free, &mut seen, 0, KEYS, verdict);
        let mut intervals: Vec<Interval> = Vec::new();
        for (start, verdict) in seen {
            if intervals.last().is_none_or(|last| last.verdict != verdict) {
                intervals.push(Interval { start, verdict });
            }
        }
        intervals
    }

    /// Assigns the free keys of `within` to the host rule `number`, as far as the rule matches them.
    fn cover_host(
        &self,
        free: &mut BTreeMap<u32, u32>,
        seen: &mut BTreeMap<u32, u32>,
        number: usize,
        within: &[(u32, u32)],
    ) {
        let (_, rule) = &self.rules[number];
        let mut verdict = verdict(rule.action, rule.log, number);
        if rule.action == PolicyAction::Deny {
            verdict = Verdict(verdict).unless_held().0;
        }
        for (first, end) in ranges(rule) {
            for (from, to) in within {
                let (first, end) = (first.max(*from), end.min(*to));
                if first < end {
                    cover(free, seen, first, end, verdict);
                }
            }
        }
    }
}

/// Whether `rule` names the single address `net`. A range of addresses does not name the addresses within it. A range
/// arrives as adjacent prefixes, so a wider prefix adjacent to the address marks a range and not a list.
fn names(rule: &PolicyRule, net: IpNet) -> bool {
    let is_wide = |net: &IpNet| net.prefix_len() < net.max_prefix_len();
    let is_beside = |peer: &IpNet| {
        next(peer.broadcast()) == Some(net.addr()) || next(net.addr()) == Some(peer.network())
    };
    !is_wide(&net)
        && rule.peers.contains(&net)
        && !rule
            .peers
            .iter()
            .any(|peer| is_wide(peer) && is_beside(peer))
}

/// The address after `address` in its family.
fn next(address: IpAddr) -> Option<IpAddr> {
    Some(match address {
        IpAddr::V4(address) => Ipv4Addr::from(u32::from(address).checked_add(1)?).into(),
        IpAddr::V6(address) => Ipv6Addr::from(u128::from(address).checked_add(1)?).into(),
    })
}

fn verdict(action: PolicyAction, log: bool, number: usize) -> u32 {
    // Validation bounds the number of rules far below this. A larger number would only be reported with a wrong name.
    let number = u32::try_from(number).unwrap_or(Verdict::RULES_MAX);
    Verdict::new(action == PolicyAction::Allow, log, number).0
}

/// Assigns the free keys of `first..end` to `verdict`.
fn cover(
    free: &mut BTreeMap<u32, u32>,
    seen: &mut BTreeMap<u32, u32>,
    first: u32,
    end: u32,
    verdict: u32,
) {
    let before = free.range(..first).next_back().map(|(start, _)| *start);
    let touched: Vec<(u32, u32)> = free
        .range(before.unwrap_or(first)..end)
        .map(|(start, stop)| (*start, *stop))
        .filter(|(_, stop)| *stop > first)
        .collect();
    for (start, stop) in touched {
        free.remove(&start);
        if start < first {
            free.insert(start, first);
        }
        if stop > end {
            free.insert(end, stop);
        }
        seen.insert(start.max(first), verdict);
    }
}

/// The ranges of keys that a rule matches. Each range excludes its end.
fn ranges(rule: &PolicyRule) -> Vec<(u32, u32)> {
    let whole = |class: Class| (key(class, 0), key(class, u16::MAX) + 1);
    let ports = |class: Class| {
        if rule.ports.is_empty() {
            return vec![whole(class)];
        }
        // A range whose last port is before its first holds none.
        let each = rule.ports.iter().filter(|range| range.first <= range.last);
        each.map(|range| (key(class, range.first), key(class, range.last) + 1))
            .collect()
    };
    let icmp = |class: Class| match (rule.icmp_type, rule.icmp_code) {
        (None, _) => vec![whole(class)],
        (Some(kind), None) => vec![(
            key(class, icmp_detail(kind, 0)),
            key(class, icmp_detail(kind, u8::MAX)) + 1,
        )],
        (Some(kind), Some(code)) => {
            let only = key(class, icmp_detail(kind, code));
            vec![(only, only + 1)]
        }
    };
    match rule.protocol {
        PolicyProtocol::All => vec![(0, KEYS)],
        PolicyProtocol::Tcp => ports(Class::Tcp),
        PolicyProtocol::Udp => ports(Class::Udp),
        PolicyProtocol::Icmp => icmp(Class::Icmp),
        PolicyProtocol::Icmpv6 => icmp(Class::Icmpv6),
    }
}

/// Lists of intervals without duplicates.
#[derive(Default)]
struct IntervalLists {
    lists: Vec<Vec<Interval>>,
    numbers: BTreeMap<Vec<Interval>, usize>,
    intervals: usize,
}

impl IntervalLists {
    fn number(&mut self, list: Vec<Interval>) -> usize {
        if let Some(number) = self.numbers.get(&list) {
            return *number;
        }
        let number = self.lists.len();
        self.intervals += list.len();
        self.numbers.insert(list.clone(), number);
        self.lists.push(list);
        number
    }
}

/// The list of each prefix, without prefixes that have the same list as the next wider prefix.
fn remove_redundant_prefixes<N: Ord + Copy + Into<IpNet>>(
    named: &BTreeMap<N, Vec<usize>>,
    wider: impl Fn(&N) -> Option<N>,
    seen: &mut impl FnMut(IpNet, &[usize]) -> Result<usize, PolicyTooLargeError>,
) -> Result<BTreeMap<N, usize>, PolicyTooLargeError> {
    let mut all: BTreeMap<N, usize> = BTreeMap::new();
    let mut rules = Vec::new();
    for net in named.keys() {
        rules.clear();
        let holds = std::iter::successors(Some(*net), |net| wider(net));
        rules.extend(holds.filter_map(|net| named.get(&net)).flatten().copied());
        rules.sort_unstable();
        rules.dedup();
        all.insert(*net, seen((*net).into(), &rules)?);
    }
    let nearest =
        |net: &N| std::iter::successors(wider(net), &wider).find_map(|wider| all.get(&wider));
    let needed = all.iter();
    Ok(needed
        .filter(|(net, list)| nearest(net) != Some(list))
        .map(|(net, list)| (*net, *list))
        .collect())
}

#[cfg(test)]
mod tests;
