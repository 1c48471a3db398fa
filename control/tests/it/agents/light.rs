//! A cluster in this process, and agents that only keep their session: hundreds of them share a socket.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use muster_control::handle::Control;
use muster_control::server::{Server, ServerConfig};
use muster_control_core::fsm::{JobCommand, Response};
use muster_control_core::state::State;
use muster_domain::fixture::JobBuilder;
use muster_domain::id::{LogIndex, NodeId};
use muster_domain::node::{NodeSecret, NodeSpec, NodeStatus};
use muster_link::endpoint;
use muster_link::frames::{FrameReceiver, FrameSender};
use muster_link::tls::{Authority, CERTIFICATE_LIFE, CertificateSubject, Identity, Role};
use muster_wire::rpc::{ALPN_AGENT, FromAgent, ToAgent};
use tempfile::TempDir;
use tokio_util::task::AbortOnDropHandle;

use crate::fixture::soon;

/// Time to live of nodes. Agents of a herd on a busy machine must not lose it by the way.
pub(crate) const TTL: Duration = Duration::from_secs(6);
/// Added to that.
pub(crate) const GRACE: Duration = Duration::from_secs(3);

/// Servers of one cluster.
pub(crate) struct Cluster {
    pub(crate) servers: Vec<Option<Server>>,
    configs: Vec<ServerConfig>,
    pub(crate) agent_tls: PathBuf,
    dir: TempDir,
}

impl Cluster {
    /// `count` servers that have founded a cluster and elected a leader.
    pub(crate) async fn found(count: u32) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::generate("local").unwrap();
        let agent_tls = dir.path().join("agents");
        authority
            .issue(&agent_tls, CertificateSubject::Agent, CERTIFICATE_LIFE)
            .unwrap();
        authority.save(&agent_tls).unwrap();
        let mut cluster = Self {
            servers: Vec::new(),
            configs: Vec::new(),
            agent_tls,
            dir,
        };
        let mut first = None;
        for number in 1..=count {
            let name = format!("s{number}");
            let tls = cluster.dir.path().join(&name).join("certificates");
            let subject = CertificateSubject::Server {
                name: &name,
                hosts: &[],
            };
            authority.issue(&tls, subject, CERTIFICATE_LIFE).unwrap();
            authority.save(&tls).unwrap();
            let any = SocketAddr::from(([127, 0, 0, 1], 0));
            let mut config = ServerConfig {
                http_addr: any,
                quic_addr: any,
                name: name.clone(),
                heartbeat_ttl: TTL,
                heartbeat_grace: GRACE,
                bootstrap_expect: count,
                join: first.iter().map(SocketAddr::to_string).collect(),
                tls_dir: Some(tls),
                ..ServerConfig::new(cluster.dir.path().join(&name).join("data"))
            };
            let server = Server::start(config.clone()).await.unwrap();
            // Started again, it is where it was.
            config.quic_addr = server.info().quic_addr;
            config.http_addr = server.info().http_addr;
            first = first.or(Some(config.quic_addr));
            cluster.servers.push(Some(server));
            cluster.configs.push(config);
        }
        cluster.leader().await;
        soon("every server serves agents", async {
            let serves = |control: &Control| {
                control.leader().is_some() && control.nodes().unserved().is_none()
            };
            while !cluster.alive().all(serves) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await;
        cluster
    }

    /// The servers that run.
    pub(crate) fn alive(&self) -> impl Iterator<Item = &Control> {
        self.servers.iter().flatten().map(Server::control)
    }

    pub(crate) fn server(&self, at: usize) -> &Server {
        self.servers[at].as_ref().unwrap()
    }

    /// The addresses of the servers for agents.
    pub(crate) fn addrs(&self) -> Vec<SocketAddr> {
        self.configs.iter().map(|config| config.quic_addr).collect()
    }

    /// Waits for a leader and returns its position.
    pub(crate) async fn leader(&self) -> usize {
        soon("a leader", async {
            loop {
                let leads = |server: &Option<Server>| {
                    server.as_ref().is_some_and(|server| {
                        let leader = server.control().leader();
                        leader.is_some_and(|leader| leader.is_self)
                    })
                };
                if let Some(at) = self.servers.iter().position(leads) {
                    return at;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await
    }

    /// A server that does not lead.
    pub(crate) async fn follower(&self) -> usize {
        let leader = self.leader().await;
        (0..self.servers.len())
            .find(|at| *at != leader && self.servers[*at].is_some())
            .unwrap()
    }

    /// Drops a server at once, as a crash would.
    pub(crate) fn crash(&mut self, at: usize) {
        drop(self.servers[at].take());
    }

    /// Starts a server that crashed again.
    pub(crate) async fn start(&mut self, at: usize) {
        let config = self.configs[at].clone();
        let server = soon("the server starts again", async {
            loop {
                match Server::start(config.clone()).await {
                    Ok(server) => return server,
                    // Its data directory and its ports are let go of a moment later.
                    Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
                }
            }
        })
        .await;
        self.servers[at] = Some(server);
    }

    pub(crate) async fn register(&self, job: JobBuilder) -> LogIndex {
        let control = self.server(self.leader().await).control();
        let command = JobCommand::Register {
            spec: Box::new(job.build()),
            check_index: None,
            places: None,
        }
        .at(control.now());
        let (index, response) = control.propose(command).await.unwrap();
        assert!(
            matches!(response, Response::JobRegistered { .. }),
            "{response:?}"
        );
        index
    }

    /// Gives server `at` a new certificate.
    pub(crate) fn issue_again(&self, at: usize) {
        let config = &self.configs[at];
        let dir = config.tls_dir.as_ref().unwrap();
        let subject = CertificateSubject::Server {
            name: &config.name,
            hosts: &[],
        };
        let authority = Authority::load(dir).unwrap();
        authority.issue(dir, subject, CERTIFICATE_LIFE).unwrap();
    }

    /// Waits until the state of server `at` is as wanted.
    pub(crate) async fn until(
        &self,
        at: usize,
        what: &str,
        wanted: impl Fn(&State) -> bool,
    ) -> State {
        let control = self.server(at).control();
        let mut applied = control.applied();
        soon(what, async {
            loop {
                let state = control.state();
                if wanted(&state) {
                    return state;
                }
                applied.changed().await.unwrap();
            }
        })
        .await
    }

    pub(crate) async fn shutdown(self) {
        for server in self.servers.into_iter().flatten() {
            soon("shutdown", server.shutdown()).await;
        }
    }
}

/// The number of ready nodes.
pub(crate) fn ready(state: &State) -> usize {
    let nodes = state.nodes().iter();
    nodes
        .filter(|node| node.status == NodeStatus::Ready)
        .count()
}

/// State that all light agents share.
pub(crate) struct LightAgentContext {
    endpoint: quinn::Endpoint,
    name: String,
    servers: Vec<SocketAddr>,
}

impl LightAgentContext {
    pub(crate) fn new(cluster: &Cluster) -> Arc<Self> {
        let identity = Identity::load(&cluster.agent_tls, Role::Agent).unwrap();
        Arc::new(Self {
            endpoint: endpoint::client(&identity, ALPN_AGENT).unwrap(),
            name: Role::Server.dns_name(&identity.cluster),
            servers: cluster.addrs(),
        })
    }
}

/// Counters and records of one light agent.
#[derive(Debug, Default)]
pub(crate) struct AgentCounters {
    /// Sessions that were registered.
    pub(crate) sessions: AtomicU64,
    /// Heartbeats that a leader has counted.
    pub(crate) counted: AtomicU64,
    /// Times it was sent away, or refused.
    pub(crate) sent_away: AtomicU64,
    /// The server of its newest session.
    pub(crate) server: Mutex<Option<SocketAddr>>,
    /// The reason for the end of its last session.
    pub(crate) ended: Mutex<String>,
    /// The longest time between two counted heartbeats.
    longest_silence: Mutex<Option<(Instant, Duration)>>,
}

impl AgentCounters {
    fn count(&self) {
        self.counted.fetch_add(1, Ordering::Relaxed);
        let mut longest = self.longest_silence.lock().unwrap();
        let now = Instant::now();
        let (before, silence) = longest.unwrap_or((now, Duration::ZERO));
        *longest = Some((now, silence.max(now - before)));
    }

    /// The longest time between two counted heartbeats.
    pub(crate) fn longest_silence(&self) -> Duration {
        self.longest_silence
            .lock()
            .unwrap()
            .map_or(Duration::MAX, |(_, silence)| silence)
    }
}

/// An agent that registers and sends heartbeats, with whichever server takes it.
pub(crate) struct LightAgent {
    pub(crate) node_id: NodeId,
    pub(crate) seen: Arc<AgentCounters>,
    _task: AbortOnDropHandle<()>,
}

impl LightAgent {
    /// Begins with server `first`, and goes on with the others when that fails.
    pub(crate) fn start(herd: &Arc<LightAgentContext>, node: NodeSpec, first: usize) -> Self {
        let seen = Arc::new(AgentCounters::default());
        let node_id = node.id;
        let task = keep_session(Arc::clone(herd), node, first, Arc::clone(&seen));
        Self {
            node_id,
            seen,
            _task: AbortOnDropHandle::new(tokio::spawn(task)),
        }
    }

    pub(crate) fn counted(&self) -> u64 {
        self.seen.counted.load(Ordering::Relaxed)
    }
}

async fn keep_session(
    herd: Arc<LightAgentContext>,
    node: NodeSpec,
    first: usize,
    seen: Arc<AgentCounters>,
) {
    // Spread by the node's id, as real ones are.
    let spread = Duration::from_millis(u64::from(node.id.0[0]));
    for attempt in 0.. {
        let server = herd.servers[(first + attempt) % herd.servers.len()];
        let ended = session(&herd, &node, server, &seen).await;
        *seen.ended.lock().unwrap() = format!("{server}: {ended:?}");
        tokio::time::sleep(Duration::from_millis(100) + spread).await;
    }
}

async fn session(
    herd: &LightAgentContext,
    node: &NodeSpec,
    server: SocketAddr,
    seen: &AgentCounters,
) -> Result<(), String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let connecting = herd
        .endpoint
        .connect(server, &herd.name)
        .map_err(|error| text(&error))?;
    let connection = tokio::time::timeout(Duration::from_secs(3), connecting)
        .await
        .map_err(|error| text(&error))?
        .map_err(|error| {
            if muster_link::peer::is_refused(&error) {
                seen.sent_away.fetch_add(1, Ordering::Relaxed);
            }
            text(&error)
        })?;
    let (send, receive) = connection.open_bi().await.map_err(|error| text(&error))?;
    let (mut sender, mut receiver) = (FrameSender::new(send), FrameReceiver::new(receive));
    let register = FromAgent::Register {
        node: Box::new(node.clone()),
        known: LogIndex(0),
        secret: NodeSecret::default(),
    };
    sender.send(&register).await.map_err(|error| text(&error))?;
    let beats = async {
        let mut ticks = tokio::time::interval(TTL / 6);
        for number in 1.. {
            ticks.tick().await;
            let beat = FromAgent::Heartbeat { number };
            sender.send(&beat).await.map_err(|error| text(&error))?;
        }
        Ok(())
    };
    let answers = async {
        loop {
            // As a real agent does: a leader that is silent for long is looked for elsewhere.
            let answer = tokio::time::timeout(TTL / 2, receiver.recv::<ToAgent>()).await;
            match answer.map_err(|error| text(&error))? {
                Ok(Some(ToAgent::Registered { .. })) => {
                    seen.sessions.fetch_add(1, Ordering::Relaxed);
                    *seen.server.lock().unwrap() = Some(server);
                }
                Ok(Some(ToAgent::HeartbeatAck { lease, .. })) => {
                    assert_eq!(lease, TTL);
                    seen.count();
                }
                Ok(Some(ToAgent::TryElsewhere { reason, .. })) => {
                    seen.sent_away.fetch_add(1, Ordering::Relaxed);
                    return Err(reason);
                }
                Ok(Some(ToAgent::Refused { reason })) => return Err(reason),
                Ok(Some(_)) => {}
                Ok(None) => return Err("it ended the stream".to_owned()),
                Err(error) => return Err(text(&error)),
            }
        }
    };
    tokio::select! {
        ended = beats => ended,
        ended = answers => ended,
        reason = connection.closed() => Err(reason.to_string()),
    }
}
