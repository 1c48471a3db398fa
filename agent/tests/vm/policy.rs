//! Network policies, from a task's side: what it may connect to, send to, be reached by.
//!
//! A task is a process that enters its cgroup and then opens sockets; the other side is this test, another
//! task of the same allocation, or another allocation's.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::time::Instant;

use muster_agent_core::policy::{NodePolicy, TaskPolicies, compile};
use muster_domain::fixture;
use muster_domain::job::{
    DirectionPolicy, NetworkPolicy, PolicyAction, PolicyProtocol, PolicyRule, PortRange, read_peer,
};

use crate::bpf::{Bpf, Direction, EmptyPrograms};
use crate::node::{Node, TestGroup, has_wires, poll};

/// Loopback of either family.
const V4: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const V6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);

pub(crate) fn rule(
    action: PolicyAction,
    protocol: PolicyProtocol,
    peer: &str,
    port: u16,
) -> PolicyRule {
    let name = format!("{}-{}", action.as_str(), protocol.as_str());
    let ports = PortRange {
        first: port,
        last: port,
    };
    PolicyRule {
        name,
        action,
        protocol,
        peers: vec![read_peer(peer).unwrap()],
        ports: if port == 0 { Vec::new() } else { vec![ports] },
        icmp_type: None,
        icmp_code: None,
        log: false,
    }
}

pub(crate) fn direction(default: PolicyAction, rules: Vec<PolicyRule>) -> DirectionPolicy {
    DirectionPolicy {
        default: Some(default),
        rules,
        rate: None,
    }
}

pub(crate) fn policies(egress: DirectionPolicy, ingress: DirectionPolicy) -> TaskPolicies {
    let mut group = fixture::group("g");
    let name = group.tasks[0].name.clone();
    group.tasks[0].policy = Some(NetworkPolicy { egress, ingress });
    compile(&group, &name, &NodePolicy::default(), &[]).unwrap()
}

pub(crate) fn open() -> DirectionPolicy {
    direction(PolicyAction::Allow, Vec::new())
}

pub(crate) fn closed() -> DirectionPolicy {
    direction(PolicyAction::Deny, Vec::new())
}

/// Puts the node's task behind `policies`; nobody else may use its ports.
pub(crate) fn attach_policy(node: &Node, bpf: &Bpf, policies: &TaskPolicies) {
    bpf.attach_policy(node.task(), policies, &BTreeSet::new())
        .unwrap();
}

/// The outcome of `order` in the task's process: `ok`, or the error's number.
pub(crate) fn outcome(node: &mut Node, order: &str) -> String {
    node.start(order);
    ended(node)
}

/// The same for the process that was started last.
pub(crate) fn ended(node: &mut Node) -> String {
    match node.wait().code() {
        Some(0) => "ok".to_owned(),
        Some(11) => "EPERM".to_owned(),
        Some(12) => "silence".to_owned(),
        other => format!("{other:?}"),
    }
}

fn accepting(address: IpAddr) -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((address, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

#[test]
fn connections_follow_the_policy_of_the_task() {
    let Some(mut node) = Node::set_up("connections_follow_the_policy_of_the_task") else {
        return;
    };
    let bpf = node.open();
    let (_listener4, to4) = accepting(V4);
    let (_listener6, to6) = accepting(V6);
    let mapped = format!("[::ffff:127.0.0.1]:{}", to4.port());

    // Without a network policy everything passes, as the counters of the task show.
    assert_eq!(outcome(&mut node, &format!("connect {to4}")), "ok");

    attach_policy(&node, &bpf, &policies(closed(), open()));
    // A listener of this machine may be the allocation's own, so `connect` leaves it to the packets.
    assert_eq!(
        outcome(&mut node, &format!("connect-briefly {to4}")),
        "silence"
    );
    assert_eq!(
        outcome(&mut node, &format!("connect-briefly {to6}")),
        "silence"
    );
    assert_eq!(
        outcome(&mut node, &format!("connect-briefly {mapped}")),
        "silence"
    );
    assert_eq!(outcome(&mut node, "connect 192.0.2.1:80"), "EPERM");
    assert_eq!(outcome(&mut node, "connect [2001:db8::1]:80"), "EPERM");
    assert_eq!(outcome(&mut node, "connect [::ffff:192.0.2.1]:80"), "EPERM");

    let some = vec![
        rule(
            PolicyAction::Allow,
            PolicyProtocol::Tcp,
            "127.0.0.1",
            to4.port(),
        ),
        rule(PolicyAction::Deny, PolicyProtocol::All, "::1", 0),
    ];
    attach_policy(
        &node,
        &bpf,
        &policies(direction(PolicyAction::Deny, some), closed()),
    );
    assert_eq!(outcome(&mut node, &format!("connect {to4}")), "ok");
    assert_eq!(outcome(&mut node, &format!("connect {mapped}")), "ok");
    assert_eq!(
        outcome(&mut node, &format!("connect-briefly {to6}")),
        "silence"
    );
    let other = SocketAddr::new(V4, to4.port().wrapping_add(1).max(1));
    assert_eq!(outcome(&mut node, &format!("connect {other}")), "EPERM");

    let counts = bpf.rule_counts(node.task()).unwrap();
    let packets = |rule: &str| {
        let mut found = counts.iter().filter(|count| count.rule == rule);
        found
            .find(|count| count.direction == Direction::Egress)
            .map(|it| it.packets)
    };
    assert!(packets("allow-tcp") > Some(2), "{counts:?}");
    assert!(packets("deny-all") > Some(0), "{counts:?}");
    assert!(node.counters(&bpf).net.egress_denied > 0);
}

#[test]
fn datagrams_follow_the_policy_and_answers_come_through() {
    let Some(mut node) = Node::set_up("datagrams_follow_the_policy_and_answers_come_through")
    else {
        return;
    };
    let bpf = node.open();
    for address in [V4, V6] {
        let echo = UdpSocket::bind((address, 0)).unwrap();
        let to = echo.local_addr().unwrap();
        attach_policy(&node, &bpf, &policies(closed(), closed()));
        assert_eq!(
            outcome(&mut node, &format!("send-to {to}")),
            "EPERM",
            "{to}"
        );

        // Nothing may come in by itself, but an answer does.
        let ask = rule(
            PolicyAction::Allow,
            PolicyProtocol::Udp,
            &address.to_string(),
            to.port(),
        );
        attach_policy(
            &node,
            &bpf,
            &policies(direction(PolicyAction::Deny, vec![ask]), closed()),
        );
        node.start(&format!("ask {to}"));
        let mut buffer = [0; 16];
        let (length, from) = echo.recv_from(&mut buffer).unwrap();
        echo.send_to(&buffer[..length], from).unwrap();
        assert_eq!(node.wait().code(), Some(0), "{to}");
    }
}

#[test]
fn server_task_replies_despite_closed_egress() {
    let name = "server_task_replies_despite_closed_egress";
    let Some(node) = Node::set_up(name) else {
        return;
    };
    let bpf = node.open();
    attach_policy(&node, &bpf, &policies(closed(), open()));
    let (done, port) = node.serve("serve-tcp 127.0.0.1:0", TestGroup::Task);

    let mut stream = std::net::TcpStream::connect((V4, port)).unwrap();
    let mut text = String::new();
    std::io::Read::read_to_string(&mut stream, &mut text).unwrap();

    assert_eq!(text, "hello");
    drop(done);
}

#[test]
fn new_policy_applies_to_open_connection() {
    let Some(mut node) = Node::set_up("new_policy_applies_to_open_connection") else {
        return;
    };
    let bpf = node.open();
    let (listener, to) = accepting(V4);
    attach_policy(&node, &bpf, &policies(open(), open()));
    node.start(&format!("stream {to}"));
    let (mut stream, _) = listener.accept().unwrap();
    let mut byte = [0];
    std::io::Read::read_exact(&mut stream, &mut byte).unwrap();

    attach_policy(&node, &bpf, &policies(closed(), open()));

    // Packets that were on their way arrive; then the stream is silent although the task goes on writing.
    let refused = || {
        let counts = bpf.rule_counts(node.task()).unwrap();
        let denied = counts.iter().find(|it| it.rule == "default" && !it.allows);
        denied.is_some_and(|it| it.packets > 0).then_some(())
    };
    poll("refused packets of an open connection", refused);
    node.kill();
}

/// A verdict kept with a socket is of one connection.
#[test]
fn a_socket_that_connects_elsewhere_is_judged_anew() {
    let Some(mut node) = Node::set_up("a_socket_that_connects_elsewhere_is_judged_anew") else {
        return;
    };
    let bpf = node.open();
    let (_allowed, allowed) = accepting(V4);
    let (_refused, refused) = accepting(V4);
    let there = rule(
        PolicyAction::Allow,
        PolicyProtocol::Tcp,
        "127.0.0.1",
        allowed.port(),
    );
    let egress = direction(PolicyAction::Deny, vec![there]);
    attach_policy(&node, &bpf, &policies(egress, open()));

    let twice = |to| format!("connect-twice {allowed} {to}");
    assert_eq!(outcome(&mut node, &twice(allowed)), "ok");
    assert_eq!(outcome(&mut node, &twice(refused)), "silence");
}

/// Verdicts on datagrams to one place are kept, until policies change.
#[test]
fn a_new_policy_holds_for_datagrams_under_way() {
    let name = "a_new_policy_holds_for_datagrams_under_way";
    let Some(mut node) = Node::set_up(name).filter(|_| has_wires(name)) else {
        return;
    };
    let bpf = node.open();
    attach_policy(&node, &bpf, &policies(open(), open()));
    node.start("send-on-a-wire");
    let sent = || node.counters(&bpf).net.egress_packets;
    poll("datagrams", || (sent() > 100).then_some(()));

    attach_policy(&node, &bpf, &policies(closed(), open()));
    let before = sent();

    assert_eq!(ended(&mut node), "EPERM");
    assert_eq!(node.counters(&bpf).net.egress_packets, before);
    let counts = bpf.rule_counts(node.task()).unwrap();
    assert!(counts.iter().all(|it| it.rule == "default"), "{counts:?}");
}

/// Datagrams whose verdict was kept meet a rule as others do, and keep to a rate.
#[test]
fn datagrams_to_one_place_are_counted_and_limited() {
    let name = "datagrams_to_one_place_are_counted_and_limited";
    let Some(mut node) = Node::set_up(name).filter(|_| has_wires(name)) else {
        return;
    };
    let bpf = node.open();
    let there = rule(PolicyAction::Allow, PolicyProtocol::Udp, "10.9.0.2", 4711);
    let mut egress = direction(PolicyAction::Deny, vec![there]);
    attach_policy(&node, &bpf, &policies(egress.clone(), open()));
    node.start("send-on-a-wire");
    poll("datagrams", || {
        (node.counters(&bpf).net.egress_packets > 100).then_some(())
    });

    egress.rate = Some(muster_domain::job::BitRate(80_000));
    attach_policy(&node, &bpf, &policies(egress, open()));

    poll("datagrams above the rate", || {
        (node.counters(&bpf).net.egress_limited > 10).then_some(())
    });
    node.kill();
    let net = node.counters(&bpf).net;
    let counts = bpf.rule_counts(node.task()).unwrap();
    let met = counts.iter().find(|it| it.rule == "allow-udp").unwrap();
    // Those before the rate met a rule of the policy as well, whose number is the same: rates are not in it.
    assert_eq!(met.packets, net.egress_packets + net.egress_limited);
    assert_eq!(net.egress_denied, 0);
}

/// The task sends all the while, and each of the policies that take turns refuses it, by another rule.
#[test]
fn no_packet_slips_through_while_policies_change() {
    const TIMES: usize = 4_000;
    let Some(mut node) = Node::set_up("no_packet_slips_through_while_policies_change") else {
        return;
    };
    let bpf = node.open();
    let refused = UdpSocket::bind((V4, 0)).unwrap();
    let to = refused.local_addr().unwrap();
    let by_rule = rule(
        PolicyAction::Deny,
        PolicyProtocol::Udp,
        "127.0.0.1",
        to.port(),
    );
    let by_rule = policies(direction(PolicyAction::Allow, vec![by_rule]), open());
    let by_default = policies(closed(), closed());
    attach_policy(&node, &bpf, &by_default);
    node.start(&format!("flood {to}"));
    let denied = || node.counters(&bpf).net.egress_denied;
    poll("refused packets", || (denied() > 0).then_some(()));
    let before = denied();

    for _ in 0..TIMES / 2 {
        attach_policy(&node, &bpf, &by_rule);
        attach_policy(&node, &bpf, &by_default);
    }

    let after = denied();
    poll("more of them", || (denied() > after).then_some(()));
    node.kill();
    eprintln!("{} packets were refused meanwhile", after - before);
    assert!(after > before + 100, "too few packets to say anything");
    refused.set_nonblocking(true).unwrap();
    assert!(refused.recv_from(&mut [0; 2_000]).is_err());
    assert_eq!(node.counters(&bpf).net.egress_packets, 0);
}

/// The task sends all the while. A rule that the next policy has too counts on, one that is gone is forgotten.
#[test]
fn rule_counters_survive_policy_change() {
    let Some(node) = Node::set_up("rule_counters_survive_policy_change") else {
        return;
    };
    let bpf = node.open();
    let receiver = UdpSocket::bind((V4, 0)).unwrap();
    let port = receiver.local_addr().unwrap().port();
    let kept = rule(PolicyAction::Allow, PolicyProtocol::Udp, "127.0.0.1", port);
    let beside = rule(PolicyAction::Deny, PolicyProtocol::Tcp, "192.0.2.1", 80);
    let one = policies(direction(PolicyAction::Deny, vec![kept.clone()]), open());
    let other = policies(direction(PolicyAction::Deny, vec![beside, kept]), open());
    let count = || {
        let counts = bpf.rule_counts(node.task()).unwrap();
        let found = counts.iter().find(|it| it.rule == "allow-udp");
        found.map_or((0, 0), |it| (it.packets, it.bytes))
    };
    attach_policy(&node, &bpf, &one);
    let (_sends, _) = node.serve(&format!("flood 127.0.0.1:{port}"), TestGroup::Task);
    let mut before = poll("packets", || Some(count()).filter(|it| it.0 > 100));

    for next in [&other, &one].into_iter().cycle().take(500) {
        attach_policy(&node, &bpf, next);
        let now = count();
        assert!(
            now.0 >= before.0 && now.1 >= before.1,
            "{before:?}, then {now:?}"
        );
        before = now;
    }
    let sent = node.counters(&bpf).net.egress_packets;
    assert!(before.0 > sent / 10 * 9, "{before:?} of {sent}");

    attach_policy(&node, &bpf, &policies(closed(), open()));
    assert_eq!(count(), (0, 0));
    attach_policy(&node, &bpf, &one);
    assert!(count().0 < before.0);
}

/// The first agent is not told that it ends. The second one's policy has the rule in another place, and the third has
/// to know the counts of both.
#[test]
fn the_next_agent_counts_on() {
    let Some(mut node) = Node::set_up("the_next_agent_counts_on") else {
        return;
    };
    let receiver = UdpSocket::bind((V4, 0)).unwrap();
    let port = receiver.local_addr().unwrap().port();
    let kept = rule(PolicyAction::Allow, PolicyProtocol::Udp, "127.0.0.1", port);
    let beside = rule(PolicyAction::Deny, PolicyProtocol::Tcp, "192.0.2.1", 80);
    let one = policies(direction(PolicyAction::Deny, vec![kept.clone()]), open());
    let other = policies(direction(PolicyAction::Deny, vec![beside, kept]), open());
    let task = node.task();
    let counts = |bpf: &Bpf| {
        let counts = bpf.rule_counts(task).unwrap().into_iter();
        let counts = counts.filter(|it| it.direction == Direction::Egress);
        counts
            .map(|it| (it.rule, it.packets))
            .collect::<BTreeMap<_, _>>()
    };
    let expected = |allowed, refused| {
        let of = |(rule, packets): (&str, u64)| (rule.to_owned(), packets);
        BTreeMap::from([("allow-udp", allowed), ("default", refused)].map(of))
    };

    for (sent, policies) in (1..).zip([&one, &other, &one]) {
        let bpf = node.open();
        attach_policy(&node, &bpf, policies);
        outcome(&mut node, &format!("send-to 127.0.0.1:{port}"));
        outcome(&mut node, "send-to 127.0.0.1:9");
        assert_eq!(counts(&bpf), expected(sent, sent));
        bpf.sweep_policies(&BTreeSet::from([task])).unwrap();
        assert_eq!(counts(&bpf), expected(sent, sent));
    }

    let bpf = node.open();
    let of_rules = || {
        let entries = BTreeMap::from(bpf.policy_entries().unwrap());
        ["RULES", "NAMES", "CARRIED_OVER"].map(|table| entries[table])
    };
    assert!(of_rules().iter().all(|entries| *entries > 0));
    bpf.sweep_policies(&BTreeSet::new()).unwrap();
    assert_eq!(of_rules(), [0; 3]);
}

/// The rules of such a policy are too many to be looked up one by one. Only the first and the last of them met
/// something.
#[test]
fn ten_thousand_rule_policy_counts_like_small_policy() {
    const RULES: u32 = 10_000;
    let name = "ten_thousand_rule_policy_counts_like_small_policy";
    let Some(mut node) = Node::set_up(name) else {
        return;
    };
    let bpf = node.open();
    let receiver = UdpSocket::bind((V4, 0)).unwrap();
    let port = receiver.local_addr().unwrap().port();
    let there = rule(PolicyAction::Allow, PolicyProtocol::Udp, "127.0.0.1", port);
    let mut rules = vec![there];
    rules.extend((0..RULES).map(|number| {
        let peer = Ipv4Addr::from(u32::from(Ipv4Addr::new(127, 1, 0, 0)) + number);
        let mut rule = rule(
            PolicyAction::Deny,
            PolicyProtocol::Udp,
            &peer.to_string(),
            9,
        );
        rule.name = format!("r{number}");
        rule
    }));
    let one = policies(direction(PolicyAction::Deny, rules.clone()), open());
    rules.reverse();
    let other = policies(direction(PolicyAction::Deny, rules), open());
    let task = node.task();
    let egress = || {
        let counts = bpf.rule_counts(task).unwrap().into_iter();
        let counts = counts.filter(|it| it.direction == Direction::Egress);
        counts
            .map(|it| (it.rule, it.packets))
            .collect::<BTreeSet<_>>()
    };
    attach_policy(&node, &bpf, &one);
    for to in [format!("127.0.0.1:{port}"), "127.1.39.15:9".to_owned()] {
        outcome(&mut node, &format!("send-to {to}"));
    }
    let last = format!("r{}", RULES - 1);
    let met = BTreeSet::from([("allow-udp".to_owned(), 1), (last, 1)]);
    assert_eq!(egress(), met);

    let start = Instant::now();
    attach_policy(&node, &bpf, &other);
    let changed = start.elapsed();

    let start = Instant::now();
    assert_eq!(egress(), met);
    eprintln!("changed in {changed:?}, read in {:?}", start.elapsed());
    attach_policy(&node, &bpf, &policies(closed(), open()));
    assert_eq!(egress(), BTreeSet::new());
    let (_, entries) = bpf.policy_entries().unwrap()[5];
    assert_eq!(entries, 0, "counts of rules that are gone");
}

/// Policies that nobody has any more keep their room for a while: who changes large ones faster waits for it.
#[test]
fn rapid_large_policy_changes_wait_for_freed_space() {
    const RULES: u32 = 20_000;
    let name = "rapid_large_policy_changes_wait_for_freed_space";
    if std::env::var_os("MUSTER_GUEST").is_some() {
        crate::support::skipped(name, "an emulated processor does not change them that fast");
        return;
    }
    let Some(node) = Node::set_up(name) else {
        return;
    };
    let bpf = node.open();

    for port in 1..=20 {
        let rules = (0..RULES).map(|number| {
            let peer = Ipv4Addr::from(u32::from(Ipv4Addr::new(127, 1, 0, 0)) + number);
            let protocol = PolicyProtocol::Udp;
            rule(PolicyAction::Deny, protocol, &peer.to_string(), port)
        });
        let rules = direction(PolicyAction::Deny, rules.collect());
        attach_policy(&node, &bpf, &policies(rules, open()));
    }
}

/// Programs of the tree's root run for all below it, even if a task attaches others further in.
#[test]
fn task_attached_program_does_not_bypass_policy() {
    let name = "task_attached_program_does_not_bypass_policy";
    let Some(mut node) = Node::set_up(name) else {
        return;
    };
    let bpf = node.open();
    let receiver = UdpSocket::bind((V4, 0)).unwrap();
    let send = format!("send-to {}", receiver.local_addr().unwrap());
    attach_policy(&node, &bpf, &policies(closed(), closed()));
    assert_eq!(outcome(&mut node, &send), "EPERM");

    EmptyPrograms::attach_over(&node.cgroup_dir.join("alloc/task")).unwrap();

    assert_eq!(outcome(&mut node, &send), "EPERM");
    assert_eq!(node.counters(&bpf).net.egress_denied, 2);
    attach_policy(&node, &bpf, &policies(open(), open()));
    assert_eq!(outcome(&mut node, &send), "ok");
}

/// A socket that was let send within the allocation is judged anew elsewhere.
#[test]
fn a_datagram_to_another_place_is_judged_anew() {
    let Some(mut node) = Node::set_up("a_datagram_to_another_place_is_judged_anew") else {
        return;
    };
    let bpf = node.open();
    attach_policy(&node, &bpf, &policies(closed(), closed()));
    let other = UdpSocket::bind((V4, 0)).unwrap();
    let to = other.local_addr().unwrap();

    assert_eq!(outcome(&mut node, &format!("send-to-both {to}")), "EPERM");
}

/// A place that was the allocation's own and is somebody else's now.
#[test]
fn a_datagram_to_another_listener_is_judged_anew() {
    let Some(mut node) = Node::set_up("a_datagram_to_another_listener_is_judged_anew") else {
        return;
    };
    let bpf = node.open();
    attach_policy(&node, &bpf, &policies(closed(), closed()));

    let outside = node.cgroup_dir.display().to_string();
    let outcome = outcome(&mut node, &format!("send-after-all {outside}"));

    assert_eq!(outcome, "EPERM");
}

#[test]
fn loopback_is_open_within_alloc_but_not_across() {
    let name = "loopback_is_open_within_alloc_but_not_across";
    let Some(mut node) = Node::set_up(name) else {
        return;
    };
    let bpf = node.open();
    let shut = policies(closed(), closed());
    attach_policy(&node, &bpf, &shut);
    // Another task of the same allocation, as shut as the first.
    bpf.attach_policy(node.id_of(TestGroup::Neighbour), &shut, &BTreeSet::new())
        .unwrap();
    let (beside, port) = node.serve("serve-tcp 127.0.0.1:0", TestGroup::Neighbour);
    assert_eq!(
        outcome(&mut node, &format!("connect 127.0.0.1:{port}")),
        "ok"
    );
    drop(beside);

    // Another allocation, everything open on both sides.
    attach_policy(&node, &bpf, &policies(open(), open()));
    let stranger = node.id_of(TestGroup::Stranger);
    bpf.attach_policy(stranger, &policies(open(), open()), &BTreeSet::new())
        .unwrap();
    let (beside, port) = node.serve("serve-tcp 127.0.0.1:0", TestGroup::Stranger);
    assert_eq!(
        outcome(&mut node, &format!("connect-briefly 127.0.0.1:{port}")),
        "silence"
    );
    let counts = bpf.rule_counts(node.task()).unwrap();
    let mut refused = counts
        .iter()
        .filter(|count| count.rule == "built-in/private-port");
    let count = refused.next().expect("the refusals are counted");
    assert_eq!((count.direction, count.allows), (Direction::Egress, false));
    assert!(count.packets > 0, "{counts:?}");
    assert_eq!(refused.next(), None);
    let declared = BTreeSet::from([port]);
    bpf.attach_policy(stranger, &policies(open(), open()), &declared)
        .unwrap();
    assert_eq!(
        outcome(&mut node, &format!("connect 127.0.0.1:{port}")),
        "ok"
    );
    drop(beside);
}

#[test]
fn verdicts_carry_rule_name() {
    let Some(mut node) = Node::set_up("verdicts_carry_rule_name") else {
        return;
    };
    let bpf = node.open();
    attach_policy(&node, &bpf, &policies(open(), open()));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();

    assert_eq!(outcome(&mut node, "connect 169.254.169.254:80"), "EPERM");

    let verdicts = runtime.block_on(async {
        let mut reader = bpf.verdicts().unwrap();
        let mut verdicts = Vec::new();
        while verdicts.is_empty() {
            reader
                .next(&bpf, |verdict| verdicts.push(verdict))
                .await
                .unwrap();
        }
        verdicts
    });
    let verdict = &verdicts[0];
    assert_eq!(verdict.rule, "built-in/metadata");
    assert_eq!(verdict.task, node.task());
    assert!(!verdict.allowed);
    assert_eq!(verdict.direction, Direction::Egress);
    assert_eq!(
        (verdict.remote.to_string(), verdict.remote_port),
        ("169.254.169.254".to_owned(), 80)
    );
}

#[test]
fn restarted_agent_keeps_policies_and_sweeps_orphans() {
    let name = "restarted_agent_keeps_policies_and_sweeps_orphans";
    let Some(mut node) = Node::set_up(name) else {
        return;
    };
    let bpf = node.open();
    attach_policy(&node, &bpf, &policies(closed(), open()));
    bpf.attach_policy(1, &policies(closed(), closed()), &BTreeSet::from([80]))
        .unwrap();
    drop(bpf);
    assert_eq!(outcome(&mut node, "connect 192.0.2.1:80"), "EPERM");

    let bpf = Bpf::open(&node.config()).unwrap();
    bpf.sweep_policies(&BTreeSet::from([node.task()])).unwrap();
    assert_eq!(outcome(&mut node, "connect 192.0.2.1:80"), "EPERM");
    attach_policy(&node, &bpf, &policies(open(), open()));
    bpf.sweep_policies(&BTreeSet::from([node.task()])).unwrap();
    let (_listener, to) = accepting(V4);
    assert_eq!(outcome(&mut node, &format!("connect {to}")), "ok");
    assert_eq!(outcome(&mut node, "connect 169.254.169.254:80"), "EPERM");
}
