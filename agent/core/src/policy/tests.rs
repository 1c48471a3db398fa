//! Compiled policies compared with rules that are evaluated one after the other.

use std::net::{IpAddr, Ipv4Addr};

use muster_domain::fixture;
use muster_domain::job::{CniNetwork, GroupNetwork, NetworkMode, read_peer};
use proptest::prelude::*;

use super::fuzz::{PacketHeader, asked, found};
use super::*;

fn rule() -> impl Strategy<Value = PolicyRule> {
    let nets = [
        "10.0.0.0/8",
        "10.1.0.0/16",
        "10.1.2.3",
        "0.0.0.0/0",
        "fd00::/8",
        "fd00::1",
        "::/0",
        "192.168.0.0/31",
    ];
    let port = prop_oneof![1_u16..6, Just(65_535_u16)];
    let range = (port.clone(), port).prop_map(|(a, b)| PortRange {
        first: a.min(b),
        last: a.max(b),
    });
    (
        any::<bool>(),
        prop::sample::select(PolicyProtocol::ALL.to_vec()),
        prop::collection::vec(prop::sample::select(nets.to_vec()), 0..3),
        prop::collection::vec(range, 0..3),
        prop::option::of(0_u8..3),
        prop::option::of(0_u8..3),
        any::<bool>(),
    )
        .prop_map(
            |(allow, protocol, peers, ports, icmp_type, icmp_code, log)| PolicyRule {
                name: "r".to_owned(),
                action: if allow {
                    PolicyAction::Allow
                } else {
                    PolicyAction::Deny
                },
                protocol,
                peers: peers.into_iter().filter_map(read_peer).collect(),
                ports,
                icmp_type,
                icmp_code,
                log,
            },
        )
}

fn question() -> impl Strategy<Value = PacketHeader> {
    let peers = [
        "10.1.2.3",
        "10.1.2.4",
        "10.2.0.0",
        "192.168.0.1",
        "192.168.0.2",
        "fd00::1",
        "fd00::2",
        "2001::",
    ];
    let classes = [
        Class::Tcp,
        Class::Udp,
        Class::Icmp,
        Class::Icmpv6,
        Class::Other,
    ];
    let detail = prop_oneof![
        0_u16..8,
        Just(65_535_u16),
        Just(256_u16),
        Just(257_u16),
        Just(513_u16)
    ];
    (
        prop::sample::select(peers.to_vec()),
        prop::sample::select(classes.to_vec()),
        detail,
    )
        .prop_map(|(peer, class, detail)| PacketHeader {
            peer: peer.parse().unwrap(),
            class,
            detail: if class == Class::Other { 0 } else { detail },
        })
}

proptest! {
    #[test]
    fn compiled_rules_decide_as_rules_asked_in_order(
        rules in prop::collection::vec(rule(), 0..8),
        allow in any::<bool>(),
        questions in prop::collection::vec(question(), 32),
    ) {
        let default = if allow { PolicyAction::Allow } else { PolicyAction::Deny };
        let direction = DirectionPolicy { default: Some(default), rules: rules.clone(), rate: None };
        let compiled = OrderedRules::new(&[], [Some(&direction), None, None, None]).compile("egress").unwrap();
        let in_order: Vec<&PolicyRule> = rules.iter().collect();
        for question in questions {
            let verdict = found(&compiled, question);
            let number = asked(&in_order, question);
            let (action, log) = rules
                .get(number)
                .map_or((default, false), |rule| (rule.action, rule.log));
            prop_assert_eq!(verdict.rule() as usize, number, "{:?}", question);
            prop_assert_eq!(verdict.allows(), action == PolicyAction::Allow);
            prop_assert_eq!(verdict.is_reported(), log || action == PolicyAction::Deny);
        }
    }
}

fn direction(default: Option<PolicyAction>, rules: &[(&str, PolicyAction)]) -> DirectionPolicy {
    let rules = rules.iter().map(|(name, action)| PolicyRule {
        name: (*name).to_owned(),
        action: *action,
        protocol: PolicyProtocol::All,
        peers: Vec::new(),
        ports: Vec::new(),
        icmp_type: None,
        icmp_code: None,
        log: false,
    });
    DirectionPolicy {
        default,
        rules: rules.collect(),
        rate: None,
    }
}

/// The name of the rule that decides on a packet to `peer`'s TCP port 80.
fn decides(policies: &TaskPolicies, peer: &str) -> String {
    decides_about(policies, peer, (Class::Tcp, 80))
}

fn decides_about(policies: &TaskPolicies, peer: &str, (class, detail): (Class, u16)) -> String {
    let question = PacketHeader {
        peer: peer.parse().unwrap(),
        class,
        detail,
    };
    let verdict = found(&policies.egress, question);
    let (name, allows) = &policies.egress.rules[verdict.rule() as usize];
    assert_eq!(*allows, verdict.allows());
    let does = if verdict.allows() { "allow" } else { "deny" };
    let held = if verdict.is_unless_held() {
        " unless held"
    } else {
        ""
    };
    format!("{does} by {name}{held}")
}

#[test]
fn policy_precedence_is_task_group_node_cluster() {
    use PolicyAction::{Allow, Deny};
    let mut group = fixture::group("g");
    let task = group.tasks[0].name.clone();
    let mut node = NodePolicy::default();
    let policies = compile(&group, &task, &node, &[]).unwrap();
    assert_eq!(decides(&policies, "1.1.1.1"), "allow by default");
    assert!(policies.egress.open && policies.ingress.open);

    node.cluster.egress = direction(Some(Deny), &[]);
    let policies = compile(&group, &task, &node, &[]).unwrap();
    assert_eq!(decides(&policies, "1.1.1.1"), "deny by default");
    node.cluster.egress = direction(Some(Allow), &[("everywhere", Deny)]);
    let policies = compile(&group, &task, &node, &[]).unwrap();
    assert_eq!(decides(&policies, "1.1.1.1"), "deny by cluster/everywhere");
    assert!(!policies.egress.open);

    node.policy.egress = direction(Some(Deny), &[("office", Allow)]);
    let policies = compile(&group, &task, &node, &[]).unwrap();
    assert_eq!(decides(&policies, "1.1.1.1"), "allow by node/office");
    assert!(!policies.egress.open);

    let policy = NetworkPolicy {
        egress: direction(None, &[("shared", Deny)]),
        ..NetworkPolicy::default()
    };
    group.network = Some(GroupNetwork {
        mode: NetworkMode::Host,
        ports: Vec::new(),
        policy: Some(policy),
        dns: None,
        hostname: String::new(),
    });
    let policies = compile(&group, &task, &node, &[]).unwrap();
    assert_eq!(decides(&policies, "1.1.1.1"), "deny by shared");

    group.tasks[0].policy = Some(NetworkPolicy {
        egress: direction(None, &[("own", Allow)]),
        ..NetworkPolicy::default()
    });
    let policies = compile(&group, &task, &node, &[]).unwrap();
    assert_eq!(decides(&policies, "1.1.1.1"), "allow by own");
}

#[test]
fn no_job_lifts_refusals_of_the_node() {
    let mut group = fixture::group("g");
    group.tasks[0].policy = Some(NetworkPolicy {
        egress: direction(None, &[("everything", PolicyAction::Allow)]),
        ..NetworkPolicy::default()
    });
    let task = group.tasks[0].name.clone();
    let node = NodePolicy {
        forbidden: vec![(
            "servers".to_owned(),
            read_peer("10.9.9.9").unwrap(),
            PolicyProtocol::Tcp,
            80,
        )],
        ..NodePolicy::default()
    };

    let policies = compile(&group, &task, &node, &[]).unwrap();

    for peer in ["169.254.169.254", "100.100.100.200", "fd00:ec2::254"] {
        assert_eq!(
            decides(&policies, peer),
            "deny by built-in/metadata",
            "{peer}"
        );
    }
    assert_eq!(decides(&policies, "10.9.9.9"), "deny by built-in/servers");
    assert_eq!(decides(&policies, "10.9.9.8"), "allow by everything");
}

#[test]
fn prefixes_that_see_the_same_are_one() {
    let rules: Vec<PolicyRule> = (0..1_000_u32)
        .map(|number| PolicyRule {
            name: format!("r{number}"),
            action: PolicyAction::Allow,
            protocol: PolicyProtocol::Tcp,
            peers: vec![IpNet::from(IpAddr::V4(Ipv4Addr::from(number << 8)))],
            ports: Vec::new(),
            icmp_type: None,
            icmp_code: None,
            log: false,
        })
        .collect();
    let same = PolicyRule {
        peers: (0..1_000_u32)
            .map(|number| IpNet::from(IpAddr::V4(Ipv4Addr::from(number << 8))))
            .collect(),
        ..rules[0].clone()
    };
    let compile = |rules: Vec<PolicyRule>| {
        let direction = DirectionPolicy {
            default: Some(PolicyAction::Deny),
            rules,
            rate: None,
        };
        let compiled =
            OrderedRules::new(&[], [Some(&direction), None, None, None]).compile("egress");
        let compiled = compiled.unwrap();
        (compiled.v4.len(), compiled.lists.len())
    };
    assert_eq!(compile(rules), (1_001, 1_001));
    assert_eq!(compile(vec![same]), (1_001, 2));
}

#[test]
fn a_policy_without_bounds_is_refused() {
    let rule = |number: u32, peers: Vec<IpNet>, port: u16| PolicyRule {
        name: format!("r{number}"),
        action: PolicyAction::Allow,
        protocol: PolicyProtocol::Tcp,
        peers,
        ports: vec![PortRange {
            first: port,
            last: port,
        }],
        icmp_type: None,
        icmp_code: None,
        log: false,
    };
    // Five thousand prefixes, and five thousand ports that apply everywhere.
    let rules = (0..10_000_u32).map(|number| {
        let half = number / 2;
        let port = u16::try_from(half).unwrap() + 1;
        let peer = IpNet::from(IpAddr::V4(Ipv4Addr::from(half << 8)));
        let peers = if number % 2 == 0 {
            vec![peer]
        } else {
            Vec::new()
        };
        rule(number, peers, port)
    });
    let direction = DirectionPolicy {
        default: None,
        rules: rules.collect(),
        rate: None,
    };

    let refused = OrderedRules::new(&[], [Some(&direction), None, None, None]).compile("egress");

    let error = refused.unwrap_err().to_string();
    assert!(
        error.contains("egress rules come to more than 65536 intervals"),
        "{error}"
    );
}

#[test]
fn range_that_ends_before_it_begins_is_empty() {
    let rule = PolicyRule {
        protocol: PolicyProtocol::Tcp,
        ports: vec![PortRange {
            first: 80,
            last: 79,
        }],
        ..direction(None, &[("r", PolicyAction::Deny)]).rules[0].clone()
    };
    let direction = DirectionPolicy {
        rules: vec![rule],
        ..DirectionPolicy::default()
    };
    let layers = OrderedRules::new(&[], [Some(&direction), None, None, None]);

    let compiled = layers.compile("egress").unwrap();

    assert_eq!(compiled.lists.len(), 1);
    assert_eq!(compiled.lists[0].len(), 1);
}

#[test]
fn the_nearest_rate_holds() {
    let limited = |bits| NetworkPolicy {
        egress: DirectionPolicy {
            rate: Some(BitRate(bits)),
            ..DirectionPolicy::default()
        },
        ..NetworkPolicy::default()
    };
    let mut group = fixture::group("g");
    let node = NodePolicy {
        policy: limited(3_000_000),
        ..NodePolicy::default()
    };
    let rate = |group: &TaskGroup, node: &NodePolicy| {
        let policies = compile(group, &group.tasks[0].name, node, &[]).unwrap();
        assert_eq!(policies.ingress_rate, None);
        policies.egress_rate.map(|rate| rate.0)
    };
    assert_eq!(rate(&group, &NodePolicy::default()), None);
    assert_eq!(rate(&group, &node), Some(3_000_000));

    group.network = Some(GroupNetwork {
        mode: NetworkMode::Host,
        ports: Vec::new(),
        policy: Some(limited(2_000_000)),
        dns: None,
        hostname: String::new(),
    });
    assert_eq!(rate(&group, &node), Some(2_000_000));

    group.tasks[0].policy = Some(limited(1_000_000));
    assert_eq!(rate(&group, &node), Some(1_000_000));
}

const HOST: &str = "10.9.0.1";

fn group_in(mode: NetworkMode) -> TaskGroup {
    let mut group = fixture::group("g");
    group.network = Some(GroupNetwork {
        mode,
        ports: Vec::new(),
        policy: None,
        dns: None,
        hostname: String::new(),
    });
    group
}

fn closed_host() -> NodePolicy {
    NodePolicy {
        host: vec![read_peer(HOST).unwrap()],
        ..NodePolicy::default()
    }
}

#[test]
fn host_is_closed_to_tasks_with_own_network() {
    let compiled = |mode, node: &NodePolicy| {
        let group = group_in(mode);
        compile(&group, &group.tasks[0].name, node, &[]).unwrap()
    };
    let bridged = compiled(NetworkMode::Bridge, &closed_host());

    for asked in [(Class::Tcp, 22), (Class::Udp, 53)] {
        let decision = decides_about(&bridged, HOST, asked);
        assert_eq!(decision, "deny by built-in/host unless held", "{asked:?}");
    }
    for peer in ["255.255.255.255", "224.0.0.251"] {
        let decision = decides_about(&bridged, peer, (Class::Udp, 5_353));
        assert_eq!(decision, "deny by built-in/host unless held", "{peer}");
    }
    let echo = decides_about(&bridged, HOST, (Class::Icmp, icmp_detail(8, 0)));
    assert_eq!(echo, "allow by default");
    assert_eq!(decides(&bridged, "10.9.0.2"), "allow by default");
    assert!(!bridged.egress.open);
    let open = compiled(NetworkMode::Bridge, &NodePolicy::default());
    assert_eq!(decides(&open, HOST), "allow by default");
    assert!(open.egress.open);
    let in_host = compiled(NetworkMode::Host, &closed_host());
    assert_eq!(decides(&in_host, HOST), "allow by default");
    assert!(in_host.egress.open);
}

#[test]
fn cni_segments_keep_broadcast_and_multicast() {
    let network = CniNetwork {
        name: "lab".to_owned(),
        args: BTreeMap::new(),
    };
    let group = group_in(NetworkMode::Cni(network));
    let policies = compile(&group, &group.tasks[0].name, &closed_host(), &[]).unwrap();

    assert_eq!(
        decides(&policies, HOST),
        "deny by built-in/host unless held"
    );
    assert_eq!(decides(&policies, "255.255.255.255"), "allow by default");
}

#[test]
fn explicit_rules_and_defaults_precede_closed_host() {
    let mut group = group_in(NetworkMode::Bridge);
    let task = group.tasks[0].name.clone();
    let mut node = closed_host();
    node.cluster.egress = allowing(None, &[HOST]);
    let policies = compile(&group, &task, &node, &[]).unwrap();
    assert_eq!(decides(&policies, HOST), "allow by cluster/open");

    node.cluster = NetworkPolicy::default();
    group.tasks[0].policy = Some(NetworkPolicy {
        egress: direction(Some(PolicyAction::Deny), &[]),
        ..NetworkPolicy::default()
    });
    let policies = compile(&group, &task, &node, &[HOST.parse().unwrap()]).unwrap();
    assert_eq!(decides(&policies, HOST), "deny by default");
    let dns = decides_about(&policies, HOST, (Class::Udp, 53));
    assert_eq!(dns, "deny by default");
}

#[test]
fn resolver_on_host_answers_dns_alone() {
    let group = group_in(NetworkMode::Bridge);
    let resolvers = [HOST.parse().unwrap(), "192.0.2.53".parse().unwrap()];
    let policies = compile(&group, &group.tasks[0].name, &closed_host(), &resolvers).unwrap();

    for class in [Class::Tcp, Class::Udp] {
        let dns = decides_about(&policies, HOST, (class, 53));
        assert_eq!(dns, "allow by built-in/resolver", "{class:?}");
    }
    assert_eq!(
        decides(&policies, HOST),
        "deny by built-in/host unless held"
    );
    let elsewhere = decides_about(&policies, "192.0.2.53", (Class::Udp, 53));
    assert_eq!(elsewhere, "allow by default");
}

/// A direction with the rule `open` to `peers`.
fn allowing(default: Option<PolicyAction>, peers: &[&str]) -> DirectionPolicy {
    let mut direction = direction(default, &[("open", PolicyAction::Allow)]);
    direction.rules[0].peers = peers.iter().map(|peer| read_peer(peer).unwrap()).collect();
    direction
}

#[test]
fn rule_opens_the_host_only_by_address() {
    let mut group = group_in(NetworkMode::Bridge);
    let task = group.tasks[0].name.clone();
    let resolvers = [HOST.parse().unwrap()];
    let mut compiled = |default, peers: &[&str]| {
        group.tasks[0].policy = Some(NetworkPolicy {
            egress: allowing(default, peers),
            ..NetworkPolicy::default()
        });
        compile(&group, &task, &closed_host(), &resolvers).unwrap()
    };
    let closed = "deny by built-in/host unless held";
    // A range of addresses arrives as adjacent prefixes.
    let range: &[&str] = &["10.9.0.1", "10.9.0.2/31", "10.9.0.4/30"];
    for default in [None, Some(PolicyAction::Deny)] {
        for peers in [&[][..], &["0.0.0.0/0"], &["10.9.0.0/31"], range] {
            let policies = compiled(default, peers);

            assert_eq!(decides(&policies, HOST), closed, "{default:?} {peers:?}");
            let dns = decides_about(&policies, HOST, (Class::Udp, 53));
            assert_eq!(dns, "allow by built-in/resolver", "{default:?} {peers:?}");
            let echo = decides_about(&policies, HOST, (Class::Icmp, icmp_detail(8, 0)));
            assert_eq!(echo, "allow by open", "{default:?} {peers:?}");
        }
        for peers in [&[HOST][..], &["10.0.0.0/8", HOST], &["10.9.0.2", HOST]] {
            let policies = compiled(default, peers);

            assert_eq!(decides(&policies, HOST), "allow by open", "{peers:?}");
        }
    }
    let elsewhere = compiled(Some(PolicyAction::Deny), &["10.9.0.0/24"]);
    assert_eq!(decides(&elsewhere, "10.9.0.7"), "allow by open");
    // If the default denies, the node's rules open no port.
    let others = compiled(Some(PolicyAction::Deny), &["192.0.2.0/24"]);
    assert_eq!(decides(&others, HOST), "deny by default");
}

#[test]
fn ports_of_a_wide_rule_close_alone() {
    let mut group = group_in(NetworkMode::Bridge);
    let task = group.tasks[0].name.clone();
    let mut egress = allowing(Some(PolicyAction::Deny), &["10.0.0.0/8"]);
    egress.rules[0].protocol = PolicyProtocol::Tcp;
    egress.rules[0].ports = vec![PortRange {
        first: 80,
        last: 90,
    }];
    group.tasks[0].policy = Some(NetworkPolicy {
        egress,
        ..NetworkPolicy::default()
    });

    let policies = compile(&group, &task, &closed_host(), &[HOST.parse().unwrap()]).unwrap();

    assert_eq!(
        decides(&policies, HOST),
        "deny by built-in/host unless held"
    );
    for other in [(Class::Tcp, 91), (Class::Udp, 80), (Class::Udp, 53)] {
        let decision = decides_about(&policies, HOST, other);
        assert_eq!(decision, "deny by default", "{other:?}");
    }
}
