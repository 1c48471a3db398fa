//! Network rules of the node that change while tasks run.

use std::net::{SocketAddr, UdpSocket};

use muster_domain::id::{AllocId, LogIndex};
use muster_domain::job::{
    DirectionPolicy, NetworkPolicy, PolicyAction, PolicyProtocol, PolicyRule,
};
use muster_wire::rpc::{LogStream, NodeReply, NodeRequest, ToAgent};
use serde_json::json;

use crate::support::{
    AllocBuilder, DEADLINE, FakeServer, Machine, eventually, privileged, service,
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
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

/// A task that talks to `peer`.
fn talker(name: u32, peer: SocketAddr) -> AllocBuilder {
    let config = json!({
        "command": std::env::current_exe().unwrap(),
        "args": ["--ignored", "--exact", "--nocapture", "rules::talker_entry"],
    });
    let alloc = service(name, "").driver("native", &config).raw();
    alloc.with(|spec, _| {
        let task = &mut spec.groups[0].tasks[0];
        task.env.insert(VARIABLE.to_owned(), peer.to_string());
    })
}

/// What came of the task's datagrams, one word for each change.
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
fn hears(socket: &UdpSocket) {
    socket.set_read_timeout(Some(DEADLINE)).unwrap();
    assert_eq!(socket.recv(&mut [0; 16]).unwrap(), 5);
}

/// How many packets of the task a rule has refused.
async fn refused_by(server: &FakeServer, alloc_id: AllocId, rule: &str) -> u64 {
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
async fn a_server_that_comes_is_out_of_reach_at_once() {
    if !privileged("a_server_that_comes_is_out_of_reach_at_once") {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.agent(&server).await;
    let newcomer = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = newcomer.local_addr().unwrap();
    let alloc_id = server.place(talker(1, address).build()).await;
    assert_eq!(words(&server, alloc_id, 1).await, ["passes"]);
    hears(&newcomer);

    server.change_servers(vec![server.addr(), address]).await;

    let said = words(&server, alloc_id, 2).await;
    assert_eq!(said, ["passes", "PermissionDenied"]);
    assert!(refused_by(&server, alloc_id, "built-in/servers").await > 0);

    server.change_servers(vec![server.addr()]).await;

    let said = words(&server, alloc_id, 3).await;
    assert_eq!(said[2], "passes", "it is no server's address any more");
    agent.end().await;
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

/// What the entry at `index` says: no datagrams are sent.
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
async fn the_clusters_policy_holds_for_tasks_that_run_and_after_a_restart() {
    let name = "the_clusters_policy_holds_for_tasks_that_run_and_after_a_restart";
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

    server.say_to_agent(no_datagrams(1_000)).await;

    let said = words(&server, running, 2).await;
    assert_eq!(said, ["passes", "PermissionDenied"]);
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
async fn a_policy_that_the_cluster_does_not_have_any_more_is_dropped() {
    if !privileged("a_policy_that_the_cluster_does_not_have_any_more_is_dropped") {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.agent(&server).await;
    server.node(|_| true).await;
    let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = peer.local_addr().unwrap();
    // The server's own index is 1 before it wants anything.
    server.say_to_agent(no_datagrams(1)).await;
    let running = server.place(talker(1, address).build()).await;
    assert_eq!(words(&server, running, 1).await, ["PermissionDenied"]);

    server.disconnect();

    let said = words(&server, running, 2).await;
    assert_eq!(said, ["PermissionDenied", "passes"]);
    agent.end().await;
}
