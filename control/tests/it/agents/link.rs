//! One agent's session, word by word.

use std::net::SocketAddr;

use muster_control_core::fsm::{ConfigCommand, Response};
use muster_domain::alloc::{AllocReport, ClientStatus, DesiredAlloc, DesiredStatus};
use muster_domain::fixture::{job, node};
use muster_domain::id::{AllocId, LogIndex};
use muster_domain::node::{NodeSecret, NodeSpec};
use muster_link::endpoint;
use muster_link::frames::{FrameReceiver, FrameSender};
use muster_link::tls::{Identity, Role};
use muster_wire::frame::{self, AGENT_VERSION, Protocol};
use muster_wire::rpc::{ALPN_AGENT, FromAgent, ToAgent};

use super::light::{Cluster, TTL};
use crate::fixture::soon;

/// An agent that says what the test says.
pub(crate) struct ScriptedAgent {
    pub(crate) connection: quinn::Connection,
    sender: FrameSender,
    receiver: FrameReceiver,
    sequence: u64,
    _endpoint: quinn::Endpoint,
}

/// Connects to server `at` and registers.
pub(crate) async fn agent_on(
    cluster: &Cluster,
    at: usize,
    node: NodeSpec,
    known: LogIndex,
) -> ScriptedAgent {
    let mut agent = speak_to(cluster, at).await;
    let node = Box::new(node);
    let secret = NodeSecret::default();
    let register = FromAgent::Register {
        node,
        secret,
        known,
    };
    agent.send_message(&register).await;
    agent
}

async fn speak_to(cluster: &Cluster, at: usize) -> ScriptedAgent {
    speak_in(frame::AGENT, cluster, at).await
}

async fn speak_in(protocol: Protocol, cluster: &Cluster, at: usize) -> ScriptedAgent {
    let identity = Identity::load(&cluster.agent_tls, Role::Agent).unwrap();
    let endpoint = endpoint::client(&identity, ALPN_AGENT).unwrap();
    let name = Role::Server.dns_name(&identity.cluster);
    let connection = endpoint
        .connect(cluster.addrs()[at], &name)
        .unwrap()
        .await
        .unwrap();
    let (send, receive) = connection.open_bi().await.unwrap();
    ScriptedAgent {
        connection,
        sender: FrameSender::speaking(protocol, send),
        receiver: FrameReceiver::speaking(protocol, receive),
        sequence: 0,
        _endpoint: endpoint,
    }
}

impl ScriptedAgent {
    pub(crate) async fn send_message(&mut self, message: &FromAgent) {
        self.sender.send(message).await.unwrap();
    }

    /// The next message that `wanted` takes.
    pub(crate) async fn receive_message<T>(
        &mut self,
        what: &str,
        wanted: impl Fn(ToAgent) -> Option<T>,
    ) -> T {
        soon(what, async {
            loop {
                let message = self.receiver.recv::<ToAgent>().await.unwrap();
                if let Some(found) = wanted(message.unwrap()) {
                    return found;
                }
            }
        })
        .await
    }

    pub(crate) async fn registered(&mut self) {
        self.receive_message("the registration", |message| {
            matches!(message, ToAgent::Registered { .. }).then_some(())
        })
        .await;
    }

    pub(crate) async fn next_to_run(&mut self) -> DesiredAlloc {
        self.receive_message("something to run", |message| match message {
            ToAgent::Desired { allocs, .. } => allocs
                .into_iter()
                .find(|alloc| alloc.desired == DesiredStatus::Run),
            _ => None,
        })
        .await
    }

    /// Reports that the allocation runs, and waits until that is committed.
    pub(crate) async fn report_running(&mut self, alloc_id: AllocId) {
        self.report(alloc_id, ClientStatus::Running).await;
    }

    /// Reports how the allocation is, and waits until that is committed.
    pub(crate) async fn report(&mut self, alloc_id: AllocId, client_status: ClientStatus) {
        self.sequence += 1;
        let wanted = self.sequence;
        let report = AllocReport {
            alloc_id,
            client_status,
            client_description: String::new(),
            task_states: Vec::new(),
            healthy: None,
            end: None,
            remote: Vec::new(),
        };
        let message = FromAgent::Report {
            sequence: wanted,
            reports: vec![report],
        };
        self.send_message(&message).await;
        self.receive_message("an acknowledgement", |message| {
            matches!(message, ToAgent::ReportAck { sequence } if sequence == wanted).then_some(())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_heartbeat_is_answered_with_a_lease() {
    let cluster = Cluster::found(3).await;
    let at = cluster.follower().await;
    let mut agent = agent_on(&cluster, at, node("n1").build(), LogIndex(0)).await;

    for number in 1..=3 {
        agent.send_message(&FromAgent::Heartbeat { number }).await;
    }

    let lease = agent
        .receive_message("the answer to the last one", |message| match message {
            ToAgent::HeartbeatAck { number: 3, lease } => Some(lease),
            _ => None,
        })
        .await;
    assert_eq!(lease, TTL);
    cluster.shutdown().await;
}

/// An agent of another version reads no message of this one, but the reason of a close.
#[tokio::test(flavor = "multi_thread")]
async fn other_agent_version_is_refused_with_both_versions() {
    let cluster = Cluster::found(1).await;
    for version in [AGENT_VERSION - 1, AGENT_VERSION + 1] {
        let protocol = Protocol {
            version,
            ..frame::AGENT
        };
        let mut agent = speak_in(protocol, &cluster, 0).await;
        agent
            .send_message(&FromAgent::Heartbeat { number: 1 })
            .await;

        let closed = soon("the end of the connection", agent.connection.closed()).await;

        let expected = format!(
            "got version {version} of the agent protocol, expected version {AGENT_VERSION}: upgrade the older one"
        );
        assert!(closed.to_string().contains(&expected), "{closed}");
    }
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_receives_all_server_addresses() {
    let cluster = Cluster::found(3).await;
    let mut wanted: Vec<SocketAddr> = cluster.addrs();
    wanted.sort_unstable();
    let mut agent = agent_on(&cluster, 0, node("n1").build(), LogIndex(0)).await;

    agent
        .receive_message("all servers", |message| match message {
            ToAgent::Registered { mut servers, .. } | ToAgent::Servers { mut servers } => {
                servers.sort_unstable();
                (servers == wanted).then_some(())
            }
            _ => None,
        })
        .await;
    cluster.shutdown().await;
}

/// Before it is told what to run, so that no task starts without.
#[tokio::test(flavor = "multi_thread")]
async fn agent_receives_http_addresses_before_allocs() {
    let cluster = Cluster::found(3).await;
    let of = |at| cluster.server(at).info().http_addr;
    let mut wanted: Vec<SocketAddr> = (0..3).map(of).collect();
    wanted.sort_unstable();
    let mut agent = agent_on(&cluster, 0, node("n1").build(), LogIndex(0)).await;

    let first = agent
        .receive_message("where one listens, first of all", |message| match message {
            ToAgent::Desired { .. } => panic!("{message:?}"),
            ToAgent::Apis { addrs } => Some(addrs),
            _ => None,
        })
        .await;
    if first != wanted {
        agent
            .receive_message("where all listen", |message| match message {
                ToAgent::Apis { addrs } => (addrs == wanted).then_some(()),
                _ => None,
            })
            .await;
    }
    assert!(first.contains(&of(0)), "{first:?}");
    cluster.shutdown().await;
}

/// An agent that comes back gets an allocation it already knows by its id alone.
#[tokio::test(flavor = "multi_thread")]
async fn reconnected_agent_receives_known_allocs_by_id() {
    let cluster = Cluster::found(3).await;
    let mut agent = agent_on(&cluster, 0, node("n1").build(), LogIndex(0)).await;
    cluster.register(job("web")).await;
    let first = agent.next_to_run().await;
    let index = cluster.server(0).control().state().applied();
    drop(agent);

    let mut agent = agent_on(&cluster, 1, node("n1").build(), index).await;

    let (allocs, unchanged, complete) = agent
        .receive_message("the first set", |message| match message {
            ToAgent::Desired {
                allocs,
                unchanged,
                complete,
                ..
            } => Some((allocs, unchanged, complete)),
            _ => None,
        })
        .await;
    assert_eq!((allocs, complete), (Vec::new(), Some(1)));
    assert_eq!(unchanged, [first.alloc_id]);
    cluster.shutdown().await;
}

/// A server that is behind what the node has seen tells it nothing older.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_lags_sends_the_agent_on() {
    let cluster = Cluster::found(1).await;

    let mut agent = agent_on(&cluster, 0, node("n1").build(), LogIndex(1_000_000)).await;

    let reason = agent
        .receive_message("a farewell", |message| match message {
            ToAgent::TryElsewhere { reason, .. } => Some(reason),
            ToAgent::Desired { .. } => panic!("it is told something old"),
            _ => None,
        })
        .await;
    assert!(reason.contains("caught up"), "{reason}");
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_certificate_is_shown_without_a_restart() {
    let cluster = Cluster::found(1).await;
    let agent = agent_on(&cluster, 0, node("n1").build(), LogIndex(0)).await;
    let shown = |agent: &ScriptedAgent| {
        let chain = agent.connection.peer_identity().unwrap();
        let chain = chain
            .downcast::<Vec<rustls_pki_types::CertificateDer<'static>>>()
            .unwrap();
        chain[0].to_vec()
    };
    let old = shown(&agent);

    cluster.issue_again(0);
    cluster.server(0).certificates().ask();

    soon("the new certificate", async {
        while shown(&speak_to(&cluster, 0).await) == old {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    })
    .await;
    assert!(agent.connection.close_reason().is_none());
    cluster.shutdown().await;
}

/// Asked at a follower, the leader forgets, and the nodes of every server are told.
#[tokio::test(flavor = "multi_thread")]
async fn garbage_is_collected_through_any_server() {
    let cluster = Cluster::found(3).await;
    let mut agents = Vec::new();
    for at in 0..3 {
        let node = node(&format!("n{at}")).build();
        let mut agent = agent_on(&cluster, at, node, LogIndex(0)).await;
        agent.registered().await;
        agents.push(agent);
    }
    let follower = cluster.follower().await;

    let control = cluster.server(follower).control();
    control.collect_garbage().await.unwrap();

    for agent in &mut agents {
        agent
            .receive_message("to collect garbage", |message| {
                matches!(message, ToAgent::CollectGarbage).then_some(())
            })
            .await;
    }
    cluster.shutdown().await;
}

/// Set through one server, the policy reaches the agents of every one, and who registers later hears it before anything
/// is to run.
#[tokio::test(flavor = "multi_thread")]
async fn the_clusters_network_policy_reaches_every_agent() {
    let cluster = Cluster::found(3).await;
    let policy = muster_domain::fixture::network_policy();
    let mut agents = Vec::new();
    for at in 0..3 {
        let node = node(&format!("n{at}")).build();
        let mut agent = agent_on(&cluster, at, node, LogIndex(0)).await;
        agent.registered().await;
        agents.push(agent);
    }
    let follower = cluster.follower().await;
    let control = cluster.server(follower).control();

    let command = ConfigCommand::SetClusterPolicy {
        policy: Box::new(policy.clone()),
        check_index: None,
    }
    .at(control.now());
    let (index, response) = control.propose(command).await.unwrap();

    assert_eq!(response, Response::Done);
    let policy_of = |message| match message {
        ToAgent::ClusterPolicy { index, policy } => Some((index, *policy)),
        _ => None,
    };
    for agent in &mut agents {
        let received = agent.receive_message("the policy", policy_of).await;
        assert_eq!(received, (index, policy.clone()));
    }
    let mut late = agent_on(&cluster, 0, node("late").build(), LogIndex(0)).await;
    let received = late
        .receive_message(
            "the policy, before what is to run",
            |message| match message {
                ToAgent::Desired { .. } => panic!("{message:?}"),
                message => policy_of(message),
            },
        )
        .await;
    assert_eq!(received.1, policy);
    cluster.shutdown().await;
}
