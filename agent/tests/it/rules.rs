//! Network rules of the node that change while tasks run.

use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use muster_agent::bpf::{ensure_bpffs, remove_pins};
use muster_agent::node::{Agent, ShutdownPolicy};
use muster_domain::alloc::{ClientStatus, DesiredAlloc, TaskState};
use muster_domain::id::{AllocId, LogIndex};
use muster_domain::job::{
    DirectionPolicy, GroupNetwork, NetworkMode, NetworkPolicy, PolicyAction, PolicyProtocol,
    PolicyRule, PortRange,
};
use muster_driver::mock::{MockDriver, MockHost, MockTask};
use muster_driver::{TaskDriver, TaskReach};
use muster_wire::rpc::{LogStream, NodeReply, NodeRequest, ToAgent};
use serde_json::json;

use crate::support::{
    AllocBuilder, DEADLINE, FakeServer, Machine, batch, eventually, privileged, service, skipped,
};

/// Tells a task whom to talk to.
const VARIABLE: &str = "MUSTER_IT_TALK";

/// Not a test: sends to one address through one socket, and says when what comes of it changes.
#[test]
#[ignore = "run by the other tests as their task"]
fn talker_entry() {
    let Ok(peer) = std::env::var(VARIABLE) else {
        return;
    };
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(peer).unwrap();
    let mut before = String::new();
    println!();
    loop {
        let word = match socket.send(b"hello") {
            Ok(_) => "passes".to_owned(),
            Err(error) => format!("{:?}", error.kind()),
        };
        if word != before {
            println!("{word}");
            before = word;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A task that talks to `peer`.
fn talker(name: u32, peer: SocketAddr) -> AllocBuilder {
    task_of("talker_entry", name, peer)
}

fn task_of(entry: &str, name: u32, peer: SocketAddr) -> AllocBuilder {
    let config = json!({
        "command": std::env::current_exe().unwrap(),
        "args": ["--ignored", "--exact", "--nocapture", format!("rules::{entry}")],
    });
    let alloc = service(name, "").driver("native", &config).raw();
    alloc.with(|spec, _| {
        let task = &mut spec.groups[0].tasks[0];
        task.env.insert(VARIABLE.to_owned(), peer.to_string());
    })
}

/// The outcomes of the task's datagrams, one word for each change.
async fn words(server: &FakeServer, alloc_id: AllocId, count: usize) -> Vec<String> {
    eventually("another word of the task", async || {
        let log = server.log(alloc_id, LogStream::Stdout).await;
        let words = log
            .lines()
            .filter(|line| ["passes", "PermissionDenied"].contains(line));
        let words: Vec<String> = words.map(str::to_owned).collect();
        (words.len() >= count).then_some(words)
    })
    .await
}

/// Whether datagrams come.
fn assert_receives(socket: &UdpSocket) {
    socket.set_read_timeout(Some(DEADLINE)).unwrap();
    assert_eq!(socket.recv(&mut [0; 16]).unwrap(), 5);
}

/// How many packets of the task a rule has refused.
pub(crate) async fn refused_by(server: &FakeServer, alloc_id: AllocId, rule: &str) -> u64 {
    let request = NodeRequest::AllocNetwork { alloc_id, after: 0 };
    let replies = server.ask(request, |replies| !replies.is_empty()).await;
    let Some(NodeReply::AllocNetwork(network)) = replies.into_iter().next() else {
        panic!("the node says nothing of its policies");
    };
    let counts = network.rules.iter().filter(|count| count.rule == rule);
    counts.map(|count| count.packets).sum()
}

/// Where a server is at is told while a task talks to that address: its socket is as good as any it had before.
#[tokio::test(flavor = "multi_thread")]
async fn new_server_address_is_blocked_immediately() {
    if !privileged("new_server_address_is_blocked_immediately") {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.agent(&server).await;
    let newcomer = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = newcomer.local_addr().unwrap();
    let alloc_id = server.place(talker(1, address).build()).await;
    assert_eq!(words(&server, alloc_id, 1).await, ["passes"]);
    assert_receives(&newcomer);

    server.change_servers(vec![server.addr(), address]).await;

    let outcomes = words(&server, alloc_id, 2).await;
    assert_eq!(outcomes, ["passes", "PermissionDenied"]);
    assert!(refused_by(&server, alloc_id, "built-in/servers").await > 0);

    server.change_servers(vec![server.addr()]).await;

    let outcomes = words(&server, alloc_id, 3).await;
    assert_eq!(
        outcomes[2], "passes",
        "it is not a server's address any more"
    );
    agent.end().await;
}

/// An agent that finds none of its predecessor's pins, as after an upgrade that changes the maps, network policies and counts a
/// running task as before.
#[tokio::test(flavor = "multi_thread")]
async fn task_has_policy_and_counts_without_pins() {
    let name = "task_has_policy_and_counts_without_pins";
    if !privileged(name) {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.agent(&server).await;
    let node = server.node(|_| true).await;
    let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = peer.local_addr().unwrap();
    let alloc = talker(1, address).with(|spec, _| spec.groups[0].tasks[0].policy = Some(closed()));
    let alloc_id = server.place(alloc.build()).await;
    assert_eq!(words(&server, alloc_id, 1).await, ["PermissionDenied"]);
    // The task may speak before the agent has recorded its start.
    server.status(alloc_id, ClientStatus::Running).await;
    agent.leave().await;

    let pins = ensure_bpffs(&machine.data()).unwrap().join("muster");
    remove_pins(&pins.join(node.id.to_string())).unwrap();
    assert_receives(&peer);
    let agent = machine.agent(&server).await;

    let outcomes = words(&server, alloc_id, 3).await;
    assert_eq!(outcomes, ["PermissionDenied", "passes", "PermissionDenied"]);
    let note = "counted by eBPF from here on";
    server
        .usage(alloc_id, "counted", |used| {
            used.net_tx_denied > Some(0) && used.context_switches > Some(0)
        })
        .await;
    let report = server.report(alloc_id).unwrap();
    assert_eq!(times(&report.task_states[0], note), 0, "{report:?}");
    agent.end().await;
}

/// How many datagrams [`burst_entry`] sends each time.
const BURST: u64 = 100;

/// Not a test: sends to one address, and again whenever something comes.
#[test]
#[ignore = "run by the other tests as their task"]
fn burst_entry() {
    let Ok(peer) = std::env::var(VARIABLE) else {
        return;
    };
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    println!("\nat {}", socket.local_addr().unwrap());
    loop {
        for _ in 0..BURST {
            drop(socket.send_to(b"hello", &peer));
        }
        socket.recv(&mut [0]).unwrap();
    }
}

/// The agent is killed and says nothing to the next one, twice: the second time what was counted before is told, too.
#[tokio::test(flavor = "multi_thread")]
async fn rules_count_on_when_the_agent_is_killed() {
    if !privileged("rules_count_on_when_the_agent_is_killed") {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let mut agent = machine.killable_agent(&server);
    let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
    let alloc = task_of("burst_entry", 1, peer.local_addr().unwrap());
    let mut policy = closed();
    policy.egress.rules = vec![datagrams("no-datagrams", PolicyAction::Deny)];
    let alloc = alloc.with(|spec, _| spec.groups[0].tasks[0].policy = Some(policy));
    let alloc_id = server.place(alloc.build()).await;
    let place = eventually("the task's address", async || {
        let log = server.log(alloc_id, LogStream::Stdout).await;
        let place = log.lines().find_map(|line| line.strip_prefix("at "))?;
        place.parse::<SocketAddr>().ok()
    })
    .await;

    for refused in (1..=3).map(|bursts| bursts * BURST) {
        eventually("all that was refused", async || {
            let counted = refused_by(&server, alloc_id, "no-datagrams").await;
            (counted == refused).then_some(())
        })
        .await;
        agent.kill();
        agent = machine.killable_agent(&server);
        // Not from the peer: what the task sends there would be an answer.
        let another = UdpSocket::bind("127.0.0.1:0").unwrap();
        another.send_to(b"a", place).unwrap();
    }
}

fn datagrams(name: &str, action: PolicyAction) -> PolicyRule {
    PolicyRule {
        name: name.to_owned(),
        action,
        protocol: PolicyProtocol::Udp,
        peers: Vec::new(),
        ports: Vec::new(),
        icmp_type: None,
        icmp_code: None,
        log: false,
    }
}

/// A policy at `index` that lets no datagrams be sent.
fn no_datagrams(index: u64) -> ToAgent {
    let policy = NetworkPolicy {
        egress: DirectionPolicy {
            default: None,
            rules: vec![datagrams("no-datagrams", PolicyAction::Deny)],
            rate: None,
        },
        ingress: DirectionPolicy::default(),
    };
    ToAgent::ClusterPolicy {
        index: LogIndex(index),
        policy: Box::new(policy),
    }
}

/// The next agent keeps to it before any server has said it again, and the job may say otherwise.
#[tokio::test(flavor = "multi_thread")]
async fn cluster_policy_covers_running_tasks_across_agent_restart() {
    let name = "cluster_policy_covers_running_tasks_across_agent_restart";
    if !privileged(name) {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.agent(&server).await;
    let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = peer.local_addr().unwrap();
    let running = server.place(talker(1, address).build()).await;
    assert_eq!(words(&server, running, 1).await, ["passes"]);

    server.send_to_agent(no_datagrams(1_000)).await;

    let outcomes = words(&server, running, 2).await;
    assert_eq!(outcomes, ["passes", "PermissionDenied"]);
    assert!(refused_by(&server, running, "cluster/no-datagrams").await > 0);

    agent.leave().await;
    let agent = machine.agent(&server).await;
    let later = server.place(talker(2, address).build()).await;
    assert_eq!(words(&server, later, 1).await, ["PermissionDenied"]);

    let own = talker(3, address).with(|spec, _| {
        spec.groups[0].tasks[0].policy = Some(NetworkPolicy {
            egress: DirectionPolicy {
                default: None,
                rules: vec![datagrams("datagrams", PolicyAction::Allow)],
                rate: None,
            },
            ingress: DirectionPolicy::default(),
        });
    });
    let own = server.place(own.build()).await;
    assert_eq!(words(&server, own, 1).await, ["passes"]);
    agent.end().await;
}

/// A server that knows later entries than the one that wrote the policy, and has none, was restored from before it.
#[tokio::test(flavor = "multi_thread")]
async fn withdrawn_cluster_policy_is_dropped_by_agent() {
    if !privileged("withdrawn_cluster_policy_is_dropped_by_agent") {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.agent(&server).await;
    server.node(|_| true).await;
    let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = peer.local_addr().unwrap();
    // The server's own index is 1 before it wants anything.
    server.send_to_agent(no_datagrams(1)).await;
    let running = server.place(talker(1, address).build()).await;
    assert_eq!(words(&server, running, 1).await, ["PermissionDenied"]);

    server.disconnect();

    let outcomes = words(&server, running, 2).await;
    assert_eq!(outcomes, ["PermissionDenied", "passes"]);
    agent.end().await;
}

/// More intervals of ports than a policy may have.
fn too_much() -> NetworkPolicy {
    let port = |first| PortRange { first, last: first };
    let mut ports = datagrams("ports", PolicyAction::Allow);
    ports.ports = (1..65_535).step_by(2).map(port).collect();
    let mut others = ports.clone();
    others.protocol = PolicyProtocol::Tcp;
    "others".clone_into(&mut others.name);
    NetworkPolicy {
        egress: DirectionPolicy {
            default: Some(PolicyAction::Deny),
            rules: vec![ports, others],
            rate: None,
        },
        ingress: DirectionPolicy::default(),
    }
}

fn closed() -> NetworkPolicy {
    NetworkPolicy {
        egress: DirectionPolicy {
            default: Some(PolicyAction::Deny),
            ..DirectionPolicy::default()
        },
        ingress: DirectionPolicy::default(),
    }
}

/// The next version of the job, whose task has this policy.
fn with_policy(alloc: &DesiredAlloc, policy: NetworkPolicy) -> DesiredAlloc {
    let mut job = (*alloc.job).clone();
    job.version += 1;
    job.spec.groups[0].tasks[0].policy = Some(policy);
    DesiredAlloc {
        job: Arc::new(job),
        ..alloc.clone()
    }
}

/// How often the task's history says something with `words` in it.
fn times(task: &TaskState, words: &str) -> usize {
    let events = task.events.iter();
    events.filter(|event| event.message.contains(words)).count()
}

/// A task does not start with it; one that runs keeps the policy that it has, and its history says so.
#[tokio::test(flavor = "multi_thread")]
async fn unloadable_policy_fails_start_but_keeps_old_policy() {
    if !privileged("unloadable_policy_fails_start_but_keeps_old_policy") {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.agent(&server).await;
    let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = peer.local_addr().unwrap();

    let large =
        talker(1, address).with(|spec, _| spec.groups[0].tasks[0].policy = Some(too_much()));
    let large = server.place(large.build()).await;
    let task = server.status(large, ClientStatus::Failed).await;
    assert_eq!(times(&task, "intervals of ports"), 1, "{:?}", task.events);

    let before = talker(2, address).with(|spec, _| spec.groups[0].tasks[0].policy = Some(closed()));
    let before = before.build();
    let running = server.place(before.clone()).await;
    assert_eq!(words(&server, running, 1).await, ["PermissionDenied"]);
    server.place(with_policy(&before, too_much())).await;
    let keeps = "keeps the network policy that it has: the policy's egress rules";
    let is_reported = |count| move |task: &TaskState, _| times(task, keeps) >= count;
    server
        .reported(running, "told of the job's policy", is_reported(1))
        .await;
    let refused = refused_by(&server, running, "default").await;
    eventually("another refusal", async || {
        (refused_by(&server, running, "default").await > refused).then_some(())
    })
    .await;
    assert_eq!(words(&server, running, 1).await, ["PermissionDenied"]);

    // The cluster's policy is reported in the same way.
    server.place(with_policy(&before, closed())).await;
    let policy = Box::new(too_much());
    let index = LogIndex(1_000);
    server
        .send_to_agent(ToAgent::ClusterPolicy { index, policy })
        .await;
    let task = server
        .reported(running, "told of the cluster's policy", is_reported(2))
        .await;
    assert_eq!(times(&task, "Terminated"), 0, "{:?}", task.events);
    assert_eq!(words(&server, running, 1).await, ["PermissionDenied"]);
    agent.end().await;
}

/// A task of the mode and level, which ends at once.
fn placed(name: u32, mode: NetworkMode, isolation: &str) -> AllocBuilder {
    let config = json!({"command": "/bin/true", "isolation": isolation});
    batch(name, "").driver("native", &config).with(|spec, _| {
        spec.groups[0].network = Some(GroupNetwork {
            mode,
            ports: Vec::new(),
            policy: None,
            dns: None,
            hostname: String::new(),
        });
    })
}

/// Has no agent of `machine` load programs, if that can be had here.
fn without_programs(test: &str, machine: &Machine) -> bool {
    if ensure_bpffs(&machine.data()).is_ok_and(|dir| !dir.starts_with(machine.data())) {
        skipped(
            test,
            "the system has a bpffs, so programs load; run: cargo xtask vm",
        );
        return false;
    }
    muster_agent::bpf::unmount_bpffs(&machine.data()).unwrap();
    // Where the agent would mount one.
    std::fs::create_dir_all(machine.data()).unwrap();
    std::fs::write(machine.data().join("bpf"), "").unwrap();
    true
}

/// Without programs, a task in an allocation's or the host's network is refused unless it runs raw or the node allows
/// it. A task without a network starts, as it has nothing that could be kept from anybody.
#[tokio::test(flavor = "multi_thread")]
async fn networked_task_is_refused_without_ebpf() {
    let name = "networked_task_is_refused_without_ebpf";
    if !privileged(name) {
        return;
    }
    let machine = Machine::new();
    if !without_programs(name, &machine) {
        return;
    }
    let server = machine.server();
    let agent = machine.agent(&server).await;

    let refused = [
        (placed(1, NetworkMode::Host, "contained"), true),
        // Its network needs the programs, whatever the setting is.
        (placed(2, NetworkMode::Bridge, "contained"), false),
        (batch(3, "true"), true),
    ];
    for (alloc, names_setting) in refused {
        let alloc_id = server.place(alloc.build()).await;
        let task = server.status(alloc_id, ClientStatus::Failed).await;
        let is_reported = task.events.iter().any(|event| {
            [
                "no eBPF programs",
                "`client { allow_tasks_without_network_policy = true }`",
            ]
            .iter()
            .all(|words| event.message.contains(words))
        });
        assert!(is_reported || !names_setting, "{:?}", task.events);
    }
    let started = [
        (placed(4, NetworkMode::None, "contained"), 0),
        (placed(5, NetworkMode::Host, "strict"), 0),
        (placed(6, NetworkMode::Host, "raw"), 1),
    ];
    for (alloc, notes) in started {
        let alloc_id = server.place(alloc.build()).await;
        let task = server.status(alloc_id, ClientStatus::Complete).await;
        assert_eq!(times(&task, "is not kept from"), notes, "{:?}", task.events);
    }
    agent.leave().await;

    let mut config = machine.config(&server);
    config.allow_tasks_without_network_policy = true;
    let agent = Agent::start(config).await.unwrap();
    let alloc_id = server.place(batch(7, "true").build()).await;
    let task = server.status(alloc_id, ClientStatus::Complete).await;
    assert_eq!(times(&task, "is not kept from"), 1, "{:?}", task.events);
    let asking = batch(8, "true").with(|spec, _| spec.groups[0].tasks[0].policy = Some(closed()));
    let alloc_id = server.place(asking.build()).await;
    let task = server.status(alloc_id, ClientStatus::Failed).await;
    assert_eq!(
        times(&task, "policy cannot be enforced"),
        1,
        "{:?}",
        task.events
    );
    agent.shutdown(ShutdownPolicy::StopTasks).await;
}

/// An agent with drivers that are not ours: one says nothing of how far its tasks get, the others do.
async fn agent_with_mocks(
    machine: &Machine,
    server: &FakeServer,
    host: &MockHost,
    allow_tasks_without_network_policy: bool,
) -> Agent {
    let mut config = machine.config(server);
    config.driver_command.clear();
    config.allow_tasks_without_network_policy = allow_tasks_without_network_policy;
    let mock = || MockDriver::on(host.clone());
    let drivers = [
        ("silent", mock()),
        ("lonely", mock().reaching(TaskReach::Itself)),
        ("open", mock().reaching(TaskReach::Machine)),
    ];
    let named = drivers.map(|(name, driver)| -> (String, Arc<dyn TaskDriver>) {
        (name.to_owned(), Arc::new(driver))
    });
    config.drivers = named.into();
    Agent::start(config).await.unwrap()
}

/// A driver's own statement about its tasks counts as the native driver's does. Tasks of a driver that says nothing may
/// get far.
#[tokio::test(flavor = "multi_thread")]
async fn driver_may_exempt_its_tasks_from_ebpf() {
    let name = "driver_may_exempt_its_tasks_from_ebpf";
    if !privileged(name) {
        return;
    }
    let (machine, host) = (Machine::new(), MockHost::new());
    if !without_programs(name, &machine) {
        return;
    }
    let server = machine.server();
    let agent = agent_with_mocks(&machine, &server, &host, false).await;

    let brief = MockTask::exits(Duration::from_millis(20), 0).to_config();
    for (number, driver, status, refused, noted) in [
        (1, "silent", ClientStatus::Failed, 1, 0),
        (2, "lonely", ClientStatus::Complete, 0, 0),
        (3, "open", ClientStatus::Complete, 0, 1),
    ] {
        let alloc = batch(number, "").driver(driver, &brief);
        let alloc_id = server.place(alloc.build()).await;
        let task = server.status(alloc_id, status).await;
        let counts = (
            times(&task, "no eBPF programs: ") - noted,
            times(&task, "is not kept from"),
        );
        assert_eq!(counts, (refused, noted), "{driver}: {:?}", task.events);
    }
    let asking =
        |number| batch(number, "").with(|spec, _| spec.groups[0].tasks[0].policy = Some(closed()));
    let open = server.place(asking(4).driver("open", &brief).build()).await;
    let task = server.status(open, ClientStatus::Failed).await;
    assert_eq!(times(&task, "policy cannot be enforced"), 1, "{task:?}");
    let lonely = asking(5).driver("lonely", &brief).build();
    let lonely = server.place(lonely).await;
    server.status(lonely, ClientStatus::Complete).await;
    agent.shutdown(ShutdownPolicy::StopTasks).await;
}

/// An agent that finds them asks again, and tells of those that it would not have started.
#[tokio::test(flavor = "multi_thread")]
async fn restarted_agent_rechecks_task_network_exemption() {
    let name = "restarted_agent_rechecks_task_network_exemption";
    if !privileged(name) {
        return;
    }
    let (machine, host) = (Machine::new(), MockHost::new());
    if !without_programs(name, &machine) {
        return;
    }
    let server = machine.server();
    let agent = agent_with_mocks(&machine, &server, &host, true).await;
    let forever = MockTask::forever().to_config();
    let mut placed = Vec::new();
    for (number, driver) in [(1, "silent"), (2, "lonely")] {
        let alloc = service(number, "").driver(driver, &forever);
        let alloc_id = server.place(alloc.build()).await;
        server.status(alloc_id, ClientStatus::Running).await;
        placed.push(alloc_id);
    }
    agent.shutdown(ShutdownPolicy::KeepTasks).await;

    let agent = agent_with_mocks(&machine, &server, &host, false).await;

    let keeps = "keeps the network policy that it has";
    let is_reported = |task: &TaskState, _| times(task, keeps) > 0;
    server.reported(placed[0], "told of it", is_reported).await;
    let found = |task: &TaskState, _| times(task, "found running") > 0;
    server.reported(placed[1], "found", found).await;
    server.stop(placed[1]).await;
    let task = server.status(placed[1], ClientStatus::Complete).await;
    assert_eq!(times(&task, keeps), 0, "{:?}", task.events);
    agent.shutdown(ShutdownPolicy::StopTasks).await;
}

/// Not a test: connects again and again, and says when what comes of it changes.
#[test]
#[ignore = "run by the other tests as their task"]
fn caller_entry() {
    let Ok(peer) = std::env::var(VARIABLE) else {
        return;
    };
    let peer: SocketAddr = peer.parse().unwrap();
    let mut before = String::new();
    println!();
    loop {
        let word = match TcpStream::connect_timeout(&peer, Duration::from_millis(500)) {
            Ok(_) => "passes".to_owned(),
            // A connection to a possible listener of the allocation's own is left to the packets.
            Err(error) if error.kind() == std::io::ErrorKind::TimedOut => {
                "PermissionDenied".to_owned()
            }
            Err(error) => format!("{:?}", error.kind()),
        };
        if word != before {
            println!("{word}");
            before = word;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A task that connects to `peer`.
fn caller(name: u32, peer: SocketAddr) -> AllocBuilder {
    let config = json!({
        "command": std::env::current_exe().unwrap(),
        "args": ["--ignored", "--exact", "--nocapture", "rules::caller_entry"],
    });
    let alloc = service(name, "").driver("native", &config).raw();
    alloc.with(|spec, _| {
        let task = &mut spec.groups[0].tasks[0];
        task.env.insert(VARIABLE.to_owned(), peer.to_string());
    })
}

/// Tasks do not reach the port of a server's clients at any loopback address of this machine.
#[tokio::test(flavor = "multi_thread")]
async fn tasks_cannot_reach_server_client_port() {
    if !privileged("tasks_cannot_reach_server_client_port") {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.agent(&server).await;
    let api = TcpListener::bind("0.0.0.0:0").unwrap();
    let at = |ip: [u8; 4]| SocketAddr::from((ip, api.local_addr().unwrap().port()));
    let first = server.place(caller(1, at([127, 0, 0, 1])).build()).await;
    let second = server.place(caller(2, at([127, 9, 9, 9])).build()).await;
    for alloc_id in [first, second] {
        assert_eq!(words(&server, alloc_id, 1).await, ["passes"]);
    }

    // Wherever the server is whose word it is.
    let apis = vec![at([0, 0, 0, 0])];
    server.send_apis(apis.clone());
    server.send_to_agent(ToAgent::Apis { addrs: apis }).await;

    for alloc_id in [first, second] {
        let outcomes = words(&server, alloc_id, 2).await;
        assert_eq!(outcomes, ["passes", "PermissionDenied"]);
        assert!(refused_by(&server, alloc_id, "built-in/http-api").await > 0);
    }
    agent.leave().await;
    let mut config = machine.config(&server);
    config.allow_api_from_tasks = true;
    let agent = Agent::start(config).await.unwrap();
    let outcomes = words(&server, first, 3).await;
    assert_eq!(outcomes[2], "passes");
    agent.shutdown(ShutdownPolicy::StopTasks).await;
}
