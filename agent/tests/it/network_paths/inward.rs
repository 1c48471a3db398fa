//! The ways into a task, each compared with `testdata/ingress-paths.md`. Each is tried from outside the machine, from the
//! machine, from another allocation and from one of another agent of the machine. It is tried in every mode of the
//! task's network and at every level of its isolation. The task's policy lets everything in and then nothing.
//!
//! The task is the same under both policies, which the cluster changes while it runs. Sockets that were made elsewhere
//! and messages to a raw socket are in `tests/vm/network_paths.rs`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use muster_agent::node::{Agent, ShutdownPolicy};
use muster_domain::alloc::{ClientStatus, TaskState};
use muster_domain::id::{AllocId, LogIndex};
use muster_domain::job::{
    DEFAULT_HOST_NETWORK, DirectionPolicy, GroupNetwork, NetworkMode, NetworkPolicy, PolicyAction,
    PortAsk,
};
use muster_wire::rpc::{LogStream, ToAgent};
use serde::{Deserialize, Serialize};
use socket2::{Domain, Protocol, Socket, Type};

use super::machine::{CLIENT, CLIENT6, MACHINE, MACHINE6, Outside, ip, with_machine};
use super::{AttemptResults, Column, PLACES, config, native, row};
use crate::support::{AllocBuilder, FakeServer, Machine, batch, eventually, privileged, service};

/// The verdict on every way, to read and to test against.
const TABLE: &str = include_str!("../../../testdata/ingress-paths.md");

/// Set in tasks: what to call. The task that is called has nothing in it.
const VARIABLE: &str = "MUSTER_IT_WAYS_IN";
/// Stands before each word in a task's output.
const MARK: &str = "in:";
/// The port that the task declares, one that it does not, and the one at which somebody outside answers.
const DECLARED: u16 = 7_100;
const PRIVATE: u16 = 7_101;
const OUTSIDE: u16 = 7_003;
/// A way without an answer for so long counts as unanswered. Answers take microseconds.
const SILENCE: Duration = Duration::from_secs(1);
/// Longer than a frame, so that it comes in two.
const LONG: usize = 2_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IngressSource {
    Outside,
    Machine,
    Alloc,
    OtherAgent,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum TrafficKind {
    Tcp,
    Udp,
    Fragments,
    Echo,
}

/// Whom a way leads to.
#[derive(Clone, Copy, Debug)]
enum IngressTarget {
    /// An address of everybody's.
    Fixed(IpAddr),
    /// The task's own address, which is the machine's if it has none.
    Inside,
}

#[derive(Debug)]
struct IngressAttempt {
    name: &'static str,
    caller: IngressSource,
    kind: TrafficKind,
    to: IngressTarget,
    port: u16,
}

const fn way(
    name: &'static str,
    caller: IngressSource,
    kind: TrafficKind,
    to: IngressTarget,
    port: u16,
) -> IngressAttempt {
    IngressAttempt {
        name,
        caller,
        kind,
        to,
        port,
    }
}

const V4: IngressTarget = IngressTarget::Fixed(IpAddr::V4(MACHINE));
const V6: IngressTarget = IngressTarget::Fixed(IpAddr::V6(MACHINE6));
const MAPPED: IngressTarget = IngressTarget::Fixed(IpAddr::V6(MACHINE.to_ipv6_mapped()));
const LOOPBACK: IngressTarget = IngressTarget::Fixed(IpAddr::V4(Ipv4Addr::LOCALHOST));
const LOOPBACK6: IngressTarget = IngressTarget::Fixed(IpAddr::V6(Ipv6Addr::LOCALHOST));
const BEYOND: IngressTarget = IngressTarget::Fixed(IpAddr::V4(CLIENT));
const BEYOND6: IngressTarget = IngressTarget::Fixed(IpAddr::V6(CLIENT6));

/// The way that stays open while the policy changes.
const OPEN: &str = "outside: on an open connection";

/// All ways but [`OPEN`].
#[rustfmt::skip]
const WAYS: &[IngressAttempt] = &[
    way("outside: TCP to a declared port", IngressSource::Outside, TrafficKind::Tcp, V4, DECLARED),
    way("outside: TCP over IPv6 to it", IngressSource::Outside, TrafficKind::Tcp, V6, DECLARED),
    way("outside: UDP to it", IngressSource::Outside, TrafficKind::Udp, V4, DECLARED),
    way("outside: UDP over IPv6 to it", IngressSource::Outside, TrafficKind::Udp, V6, DECLARED),
    way("outside: UDP in fragments to it", IngressSource::Outside, TrafficKind::Fragments, V4, DECLARED),
    way("outside: the same over IPv6", IngressSource::Outside, TrafficKind::Fragments, V6, DECLARED),
    way("outside: TCP to a private port", IngressSource::Outside, TrafficKind::Tcp, V4, PRIVATE),
    way("outside: UDP to a private port", IngressSource::Outside, TrafficKind::Udp, V4, PRIVATE),
    way("outside: TCP to the task's address", IngressSource::Outside, TrafficKind::Tcp, IngressTarget::Inside, DECLARED),
    way("outside: TCP there, private port", IngressSource::Outside, TrafficKind::Tcp, IngressTarget::Inside, PRIVATE),
    way("outside: UDP there, private port", IngressSource::Outside, TrafficKind::Udp, IngressTarget::Inside, PRIVATE),
    way("outside: ICMP echo", IngressSource::Outside, TrafficKind::Echo, IngressTarget::Inside, 0),
    way("machine: TCP to a declared port", IngressSource::Machine, TrafficKind::Tcp, V4, DECLARED),
    way("machine: TCP to loopback", IngressSource::Machine, TrafficKind::Tcp, LOOPBACK, DECLARED),
    way("machine: TCP to a mapped address", IngressSource::Machine, TrafficKind::Tcp, MAPPED, DECLARED),
    way("machine: TCP over IPv6", IngressSource::Machine, TrafficKind::Tcp, LOOPBACK6, DECLARED),
    way("machine: UDP to loopback", IngressSource::Machine, TrafficKind::Udp, LOOPBACK, DECLARED),
    way("machine: TCP to a private port", IngressSource::Machine, TrafficKind::Tcp, LOOPBACK, PRIVATE),
    way("machine: UDP to a private port", IngressSource::Machine, TrafficKind::Udp, LOOPBACK, PRIVATE),
    way("machine: TCP to the task's address", IngressSource::Machine, TrafficKind::Tcp, IngressTarget::Inside, DECLARED),
    way("machine: TCP there, private port", IngressSource::Machine, TrafficKind::Tcp, IngressTarget::Inside, PRIVATE),
    way("machine: ICMP echo", IngressSource::Machine, TrafficKind::Echo, IngressTarget::Inside, 0),
    way("allocation: TCP to a declared port", IngressSource::Alloc, TrafficKind::Tcp, V4, DECLARED),
    way("allocation: TCP to a mapped address", IngressSource::Alloc, TrafficKind::Tcp, MAPPED, DECLARED),
    way("allocation: TCP over IPv6", IngressSource::Alloc, TrafficKind::Tcp, V6, DECLARED),
    way("allocation: UDP to a declared port", IngressSource::Alloc, TrafficKind::Udp, V4, DECLARED),
    way("allocation: TCP to a private port", IngressSource::Alloc, TrafficKind::Tcp, V4, PRIVATE),
    way("allocation: UDP to a private port", IngressSource::Alloc, TrafficKind::Udp, V4, PRIVATE),
    way("allocation: TCP to the task's address", IngressSource::Alloc, TrafficKind::Tcp, IngressTarget::Inside, DECLARED),
    way("allocation: TCP there, private port", IngressSource::Alloc, TrafficKind::Tcp, IngressTarget::Inside, PRIVATE),
    way("allocation: UDP there, private port", IngressSource::Alloc, TrafficKind::Udp, IngressTarget::Inside, PRIVATE),
    way("other agent: TCP to a declared port", IngressSource::OtherAgent, TrafficKind::Tcp, V4, DECLARED),
    way("other agent: UDP to a declared port", IngressSource::OtherAgent, TrafficKind::Udp, V4, DECLARED),
    way("other agent: TCP to a private port", IngressSource::OtherAgent, TrafficKind::Tcp, V4, PRIVATE),
    way("other agent: UDP to a private port", IngressSource::OtherAgent, TrafficKind::Udp, V4, PRIVATE),
    way("other agent: TCP to the task's address", IngressSource::OtherAgent, TrafficKind::Tcp, IngressTarget::Inside, DECLARED),
    way("other agent: TCP there, private port", IngressSource::OtherAgent, TrafficKind::Tcp, IngressTarget::Inside, PRIVATE),
    way("other agent: UDP there, private port", IngressSource::OtherAgent, TrafficKind::Udp, IngressTarget::Inside, PRIVATE),
    way("answer to the task's own TCP", IngressSource::Alloc, TrafficKind::Tcp, BEYOND, OUTSIDE),
    way("answer to the task's own UDP", IngressSource::Alloc, TrafficKind::Udp, BEYOND, OUTSIDE),
    way("answer to it in fragments", IngressSource::Alloc, TrafficKind::Fragments, BEYOND, OUTSIDE),
    way("answer to it over IPv6", IngressSource::Alloc, TrafficKind::Udp, BEYOND6, OUTSIDE),
];

/// One way, for the caller that takes it.
#[derive(Debug, Serialize, Deserialize)]
struct IngressCall {
    name: String,
    kind: TrafficKind,
    to: SocketAddr,
}

#[test]
fn every_ingress_path_matches_verdict_table() {
    let name = "network_paths::inward::every_ingress_path_matches_verdict_table";
    if !privileged(name) {
        return;
    }
    with_machine(name, |outside| async move {
        let machine = Machine::new();
        let server = machine.server();
        let agent = Agent::start(config(&machine, &server)).await.unwrap();
        let other_machine = Machine::new();
        let other_server = other_machine.server();
        let other_agent = Agent::start(config(&other_machine, &other_server));
        let other_agent = other_agent.await.unwrap();
        let servers = [&server, &other_server];
        // Refusals must not be rate-limited, and the host outside needs a route to allocations' own addresses.
        for limit in ["ipv4/icmp_ratelimit", "ipv6/icmp/ratelimit"] {
            std::fs::write(format!("/proc/sys/net/{limit}"), "0").unwrap();
        }
        outside.there(|| {
            ip(&format!("route add default via {MACHINE} dev cl0"));
            serve(OUTSIDE);
        });
        let mut columns = Vec::new();

        for (at, place) in (0..).zip(PLACES) {
            columns.push(column(servers, &outside, at, place).await);
        }

        agent.shutdown(ShutdownPolicy::StopTasks).await;
        other_agent.shutdown(ShutdownPolicy::StopTasks).await;
        compare(&columns);
    });
}

/// The verdict on each way into a task of this level and network. The servers are that of its agent and that of the
/// other one.
async fn column(
    servers: [&FakeServer; 2],
    outside: &Outside,
    at: u32,
    place: Column,
) -> AttemptResults {
    let [server, _] = servers;
    let index = u64::from(at) * 2 + 1_000;
    server
        .send_to_agent(ingress(index, PolicyAction::Allow))
        .await;
    let called = server.place(called(at * 10, place.clone()).build()).await;
    let inside = ready(server, called).await;
    let published = SocketAddr::from((MACHINE, DECLARED));
    let mut held = outside.there(|| TcpStream::connect_timeout(&published, SILENCE));
    let mut open = words(servers, outside, (at * 10 + 1, place.clone()), inside).await;
    open.insert(OPEN.to_owned(), held_word(&mut held));

    server
        .send_to_agent(ingress(index + 1, PolicyAction::Deny))
        .await;
    eventually("a policy that lets nothing in", async || {
        (outside.there(|| call(TrafficKind::Udp, published)) != "in").then_some(())
    })
    .await;
    let mut closed = words(servers, outside, (at * 10 + 2, place), inside).await;
    closed.insert(OPEN.to_owned(), held_word(&mut held));

    server.stop(called).await;
    server.status(called, ClientStatus::Complete).await;
    let verdict = |(name, open): (String, String)| {
        let verdict = match (open.as_str(), closed[&name].as_str()) {
            ("in", "silence") => "policy".to_owned(),
            (open, closed) if open == closed => open.to_owned(),
            (open, closed) => format!("{open}, then {closed}"),
        };
        (name, verdict)
    };
    open.into_iter().map(verdict).collect()
}

/// The cluster's policy from the entry at `index` on.
fn ingress(index: u64, action: PolicyAction) -> ToAgent {
    let default = |action| DirectionPolicy {
        default: Some(action),
        ..DirectionPolicy::default()
    };
    ToAgent::ClusterPolicy {
        index: LogIndex(index),
        policy: Box::new(NetworkPolicy {
            egress: default(PolicyAction::Allow),
            ingress: default(action),
        }),
    }
}

/// A task of this program in such a place.
fn task(
    alloc: AllocBuilder,
    (level, mode): Column,
    entry: &str,
    calls: &[IngressCall],
) -> AllocBuilder {
    let native = native(level, &format!("network_paths::inward::{entry}"));
    alloc.driver("native", &native).with(|spec, _| {
        let group = &mut spec.groups[0];
        group.network = Some(GroupNetwork {
            mode,
            ports: Vec::new(),
            policy: None,
            dns: None,
            hostname: String::new(),
        });
        let calls = serde_json::to_string(calls).unwrap();
        group.tasks[0].env.insert(VARIABLE.to_owned(), calls);
    })
}

/// The task that is called.
fn called(name: u32, place: Column) -> AllocBuilder {
    let alloc = task(service(name, ""), place.clone(), "called_entry", &[]);
    if place.1 == NetworkMode::None {
        return alloc;
    }
    let alloc = alloc.port("web", DECLARED);
    alloc.with(|spec, holding| {
        holding.ports[0].host_ip = MACHINE.to_string();
        let network = spec.groups[0].network.as_mut().unwrap();
        network.ports.push(PortAsk {
            label: "web".to_owned(),
            fixed: Some(DECLARED),
            to: 0,
            host_network: DEFAULT_HOST_NETWORK.to_owned(),
        });
    })
}

/// Waits until the task answers; its address.
async fn ready(server: &FakeServer, alloc_id: AllocId) -> IpAddr {
    eventually("a task that answers", async || {
        let log = server.log(alloc_id, LogStream::Stdout).await;
        let address = log.lines().find_map(|line| line.strip_prefix(MARK))?;
        Some(address.parse().unwrap())
    })
    .await
}

/// The outcome of each way at this moment.
async fn words(
    servers: [&FakeServer; 2],
    outside: &Outside,
    (name, place): (u32, Column),
    inside: IpAddr,
) -> AttemptResults {
    let calls = |caller| -> Vec<IngressCall> {
        let ways = WAYS.iter().filter(|way| way.caller == caller);
        let call = |way: &IngressAttempt| {
            let to = match way.to {
                IngressTarget::Fixed(to) => to,
                IngressTarget::Inside => inside,
            };
            IngressCall {
                name: way.name.to_owned(),
                kind: way.kind,
                to: (to, way.port).into(),
            }
        };
        ways.map(call).collect()
    };
    let mut words = outside.there(|| take(&calls(IngressSource::Outside)));
    words.extend(take(&calls(IngressSource::Machine)));
    for (server, caller) in servers
        .into_iter()
        .zip([IngressSource::Alloc, IngressSource::OtherAgent])
    {
        let alloc = task(
            batch(name, ""),
            place.clone(),
            "caller_entry",
            &calls(caller),
        );
        words.extend(attempt_results(server, alloc).await);
    }
    words
}

/// The words of a task that takes the ways.
async fn attempt_results(server: &FakeServer, alloc: AllocBuilder) -> AttemptResults {
    let alloc_id = server.place(alloc.build()).await;
    let ended = |_: &TaskState, status: ClientStatus| {
        [ClientStatus::Complete, ClientStatus::Failed].contains(&status)
    };
    let task = server.reported(alloc_id, "the end", ended).await;
    let log = server.log(alloc_id, LogStream::Stdout).await;
    assert!(!task.failed, "{:?}\n{log}", task.events);
    let pairs = log
        .lines()
        .filter_map(|line| line.strip_prefix(MARK)?.split_once('='));
    pairs
        .map(|(name, word)| (name.to_owned(), word.to_owned()))
        .collect()
}

/// All at once: most of the time is waiting for nothing.
fn take(calls: &[IngressCall]) -> AttemptResults {
    std::thread::scope(|scope| {
        let taken = calls.iter().map(|one| {
            let word = scope.spawn(|| call(one.kind, one.to));
            (one.name.clone(), word)
        });
        let taken: Vec<_> = taken.collect();
        let words = taken.into_iter();
        words
            .map(|(name, word)| (name, word.join().unwrap()))
            .collect()
    })
}

fn call(kind: TrafficKind, to: SocketAddr) -> String {
    word(match kind {
        TrafficKind::Tcp => {
            TcpStream::connect_timeout(&to, SILENCE).and_then(|stream| exchange(&stream))
        }
        TrafficKind::Udp => datagram(to, 5),
        TrafficKind::Fragments => datagram(to, LONG),
        TrafficKind::Echo => echo(to),
    })
}

fn word(outcome: io::Result<()>) -> String {
    let Err(error) = outcome else {
        return "in".to_owned();
    };
    match error.kind() {
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => "silence".to_owned(),
        io::ErrorKind::ConnectionRefused => "nobody".to_owned(),
        io::ErrorKind::PermissionDenied => "refused".to_owned(),
        io::ErrorKind::NetworkUnreachable
        | io::ErrorKind::HostUnreachable
        | io::ErrorKind::AddrNotAvailable => "no route".to_owned(),
        other => format!("{other:?}"),
    }
}

/// The outcome of a connection that was made before.
fn held_word(held: &mut io::Result<TcpStream>) -> String {
    match held {
        Ok(stream) => word(exchange(stream)),
        Err(error) => word(Err(error.kind().into())),
    }
}

fn exchange(mut stream: &TcpStream) -> io::Result<()> {
    stream.set_read_timeout(Some(SILENCE))?;
    stream.write_all(b"h")?;
    stream.read_exact(&mut [0])
}

fn datagram(to: SocketAddr, size: usize) -> io::Result<()> {
    let any: IpAddr = match to {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.set_read_timeout(Some(SILENCE))?;
    socket.connect(to)?;
    socket.send(&vec![7; size])?;
    let count = uninterrupted(|| socket.recv(&mut [0; LONG]))?;
    assert_eq!(count, size, "an answer is as long as the question");
    Ok(())
}

/// Repeats `read` until no signal or freezing of the process interrupts it: the kernel restarts no read with a timeout.
fn uninterrupted(mut read: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match read() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

/// By a raw socket, to which all that comes is shown.
fn echo(to: SocketAddr) -> io::Result<()> {
    let mut socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::ICMPV4))?;
    socket.connect(&to.into())?;
    socket.send(&[8, 0, 0xf7, 0xfe, 0, 1, 0, 0])?;
    let deadline = Instant::now() + SILENCE;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        socket.set_read_timeout(Some(left))?;
        let mut packet = [0; 64];
        let count = uninterrupted(|| socket.read(&mut packet))?;
        // Not the question, which is shown as well where it is to this machine.
        if count >= 21 && packet[20] == 0 {
            return Ok(());
        }
    }
}

/// Answers every connection and datagram at `port`, for as long as this process lives.
fn serve(port: u16) {
    let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).unwrap();
    let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, port)).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            std::thread::spawn(move || {
                let mut byte = [0];
                while stream.read_exact(&mut byte).is_ok() && stream.write_all(&byte).is_ok() {}
            });
        }
    });
    std::thread::spawn(move || {
        let mut datagram = [0; LONG];
        loop {
            // Refusals of answers to earlier ones show here.
            if let Ok((count, from)) = socket.recv_from(&mut datagram) {
                drop(socket.send_to(&datagram[..count], from));
            }
        }
    });
}

/// Not a test: answers, in a task, until it is stopped.
#[test]
#[ignore = "run by the other test as its task"]
fn called_entry() {
    if std::env::var_os(VARIABLE).is_none() {
        return;
    }
    serve(DECLARED);
    serve(PRIVATE);
    let here = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    // Without a network it has no address: then nobody is called at the machine's.
    let has_way = here.connect((CLIENT, OUTSIDE)).is_ok();
    let address = if has_way {
        here.local_addr().unwrap().ip()
    } else {
        MACHINE.into()
    };
    println!("\n{MARK}{address}");
    loop {
        std::thread::park();
    }
}

/// Not a test: calls, in a task.
#[test]
#[ignore = "run by the other test as its task"]
fn caller_entry() {
    let Ok(calls) = std::env::var(VARIABLE) else {
        return;
    };
    let calls: Vec<IngressCall> = serde_json::from_str(&calls).unwrap();
    println!();
    for (name, word) in take(&calls) {
        println!("{MARK}{name}={word}");
    }
}

/// Compares with the table, of which every row and cell counts.
fn compare(columns: &[AttemptResults]) {
    let mut expected: BTreeMap<&str, &str> = TABLE.lines().filter_map(row).collect();
    let mut found = String::new();
    let mut wrong = Vec::new();
    for name in WAYS.iter().map(|way| way.name).chain([OPEN]) {
        let mut line = format!("| {name} |");
        for column in columns {
            write!(line, " {} |", column[name]).unwrap();
        }
        let wanted = expected.remove(name);
        if wanted != Some(line.as_str()) {
            wrong.push(format!("{line}\n  wanted {wanted:?}"));
        }
        writeln!(found, "{line}").unwrap();
    }
    wrong.extend(expected.values().map(|line| format!("nobody tries {line}")));
    let wrong = wrong.join("\n");
    assert!(wrong.is_empty(), "{wrong}\nall that was found:\n{found}");
}
