//! The node's link to the control plane: one QUIC connection to any of its servers, held for ever.
//!
//! Without a connection, tasks go on, and their reports wait in the outbox. A session opens with the fingerprint.
//! It ends at the first error, when the leader is silent through this server, or when the server recommends
//! another. Then `agent-core` decides which server is tried next, and when. The servers report the addresses of all
//! servers, and the agent's store keeps them.

mod exec;
mod logs;
mod requests;
mod session;
mod verdicts;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use muster_agent_core::servers::Servers;
use muster_domain::error_chain::chain;
use muster_domain::id::{LogIndex, Timestamp};
use muster_domain::job::NetworkPolicy;
use muster_link::certificates::Certificates;
use muster_link::endpoint;
use muster_link::frames::{RecvFrameError, SendFrameError};
use muster_link::peer::{self, PeerError};
use muster_link::tls::Role;
use muster_wire::rpc::ALPN_AGENT;
use quinn::Connection;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::context::AgentContext;
use crate::limits::{APIS_MAX, CONNECT_DEADLINE, SESSION_DEADLINE};
use crate::node::event::Event;
use crate::storage::store::Write;
use crate::tasks::drivers::wait;

/// Why a session ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SessionError {
    /// The certificates cannot be used.
    #[error("the agent's certificates cannot be used")]
    Certificates(#[from] endpoint::OpenEndpointError),
    /// The address cannot be connected to at all.
    #[error("{addr} cannot be connected to")]
    Connect {
        addr: SocketAddr,
        #[source]
        source: quinn::ConnectError,
    },
    /// The agent's or the server's certificate is refused.
    #[error("not connected to {addr}: {reason}")]
    Untrusted {
        addr: SocketAddr,
        /// The reason, with the remedy.
        reason: String,
    },
    /// The server is busy with others.
    #[error("{addr} takes no connection at this moment: many come at once")]
    Busy { addr: SocketAddr },
    /// The connection broke, or was never established.
    #[error("the connection to {addr} is lost")]
    Lost {
        addr: SocketAddr,
        #[source]
        source: quinn::ConnectionError,
    },
    /// The peer is no server of this cluster.
    #[error("{addr} is not a server of this cluster")]
    Peer {
        addr: SocketAddr,
        #[source]
        source: PeerError,
    },
    /// The peer's certificate names another role.
    #[error("{addr} does not show a server's certificate; give --servers the address of a server")]
    Role { addr: SocketAddr },
    /// The server did not answer in time.
    #[error("{addr} did not answer within {waited:?}")]
    Late {
        addr: SocketAddr,
        /// The duration of the wait.
        waited: Duration,
    },
    /// No leader counts the heartbeats that the agent sends to this server.
    #[error("no leader has answered through {addr} for {waited:?}; another server is tried")]
    Leaderless {
        addr: SocketAddr,
        /// The duration of the wait.
        waited: Duration,
    },
    /// The server recommends another server.
    #[error("{addr} sends the node away: {reason}")]
    SentAway {
        addr: SocketAddr,
        reason: String,
        /// Shortest time before the agent returns to this server.
        after: Duration,
    },
    /// The server refuses the node.
    #[error("the server refuses this node: {reason}")]
    Refused { reason: String },
    /// The server ended the session.
    #[error("the server ended the session")]
    Ended,
    /// A message could not be sent.
    #[error(transparent)]
    Send(#[from] SendFrameError),
    /// A message could not be read.
    #[error(transparent)]
    Receive(#[from] RecvFrameError),
}

impl SessionError {
    fn lost(addr: SocketAddr, source: quinn::ConnectionError) -> Self {
        if peer::is_refused(&source) {
            return Self::Busy { addr };
        }
        match peer::explain(&source) {
            Some(reason) => Self::Untrusted { addr, reason },
            None => Self::Lost { addr, source },
        }
    }
}

/// The parts of the agent that the link needs.
#[derive(Debug)]
pub(crate) struct Link {
    /// The context that answers requests.
    pub(crate) context: Arc<AgentContext>,
    pub(crate) endpoint: quinn::Endpoint,
    /// Servers to choose from.
    pub(crate) servers: Servers<SocketAddr>,
    /// The certificates that the agent shows and trusts; they name the cluster.
    pub(crate) certificates: Certificates,
    pub(crate) node: mpsc::Sender<Event>,
}

impl Link {
    /// Holds a session until the agent stops.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let certificates = self.certificates.clone();
        tokio::select! {
            () = certificates.follow(|_| {}) => {}
            () = self.hold_sessions(&stop) => {}
        }
        self.endpoint
            .close(quinn::VarInt::from_u32(0), b"the agent stops");
        // The peer learns of the close at once instead of after its idle timeout.
        drop(tokio::time::timeout(Duration::from_secs(1), self.endpoint.wait_idle()).await);
    }

    async fn hold_sessions(&mut self, stop: &CancellationToken) {
        let epoch = Instant::now();
        while !stop.is_cancelled() {
            let Some((server, at)) = self.servers.next(now(epoch)) else {
                // The agent does not start without servers, and never removes the configured ones.
                return;
            };
            wait(at.since(now(epoch)), stop).await;
            let mut served = false;
            let session = self.session(server, &mut served);
            let Some(ended) = stop.run_until_cancelled(session).await else {
                return;
            };
            let error = ended.err().unwrap_or(SessionError::Ended);
            tracing::warn!(%server, error = chain(&error), "no session with a server; tasks go on");
            match error {
                SessionError::SentAway { after, .. } => {
                    self.servers.handle_sent_away(&server, after, now(epoch));
                }
                _ if served => self.servers.handle_lost(&server, now(epoch)),
                _ => self.servers.handle_failure(&server, now(epoch)),
            }
        }
    }

    async fn session(&mut self, addr: SocketAddr, served: &mut bool) -> Result<(), SessionError> {
        let connection = self.connect(addr).await?;
        let result = session::Session::open(self, addr, &connection, served).await;
        self.context.session.standing.set_connection(None);
        let refusal = match &result {
            Err(SessionError::Receive(error)) => error.version_refusal(),
            _ => None,
        };
        let reason = refusal.as_deref().unwrap_or("the session has ended");
        connection.close(quinn::VarInt::from_u32(0), reason.as_bytes());
        result
    }

    /// Connects to the server at `addr`, with the current certificates.
    async fn connect(&self, addr: SocketAddr) -> Result<Connection, SessionError> {
        let identity = self.certificates.current();
        let config = endpoint::client_config(&identity, ALPN_AGENT)?;
        let name = Role::Server.dns_name(&identity.cluster);
        let connecting = self
            .endpoint
            .connect_with(config, addr, &name)
            .map_err(|source| SessionError::Connect { addr, source })?;
        let waited = CONNECT_DEADLINE;
        let connection = tokio::time::timeout(waited, connecting)
            .await
            .map_err(|_elapsed| SessionError::Late { addr, waited })?
            .map_err(|source| SessionError::lost(addr, source))?;
        let role = peer::role(&connection, &identity.cluster)
            .map_err(|source| SessionError::Peer { addr, source })?;
        if role != Role::Server {
            return Err(SessionError::Role { addr });
        }
        Ok(connection)
    }

    /// Adopts the server addresses from the control plane, and stores them for the next start.
    async fn adopt_servers(&mut self, servers: Vec<SocketAddr>) {
        if self.servers.learn(servers) {
            let servers = self.servers.learned().to_vec();
            tracing::info!(?servers, "the servers of the cluster");
            if self.context.network.rules.set_servers(&servers) {
                // The send fails only without the node's loop, when the agent is stopping.
                drop(self.node.send(Event::RulesChanged).await);
            }
            if let Err(error) = self
                .context
                .storage
                .store
                .submit(vec![Write::Servers(servers)])
                .await
            {
                tracing::warn!(%error, "the servers' addresses were not stored");
            }
        }
    }

    /// Denies tasks the endpoints where servers listen for clients, as `server` reports them, and stores them for
    /// the next start.
    async fn deny_apis(&mut self, mut apis: Vec<SocketAddr>, server: SocketAddr) {
        for api in &mut apis {
            if api.ip().is_unspecified() {
                api.set_ip(server.ip());
            }
        }
        apis.truncate(APIS_MAX);
        if !self.context.network.rules.set_apis(&apis) {
            return;
        }
        tracing::info!(?apis, "tasks are kept from these");
        // The send fails only without the node's loop, when the agent is stopping.
        drop(self.node.send(Event::RulesChanged).await);
        let write = Write::Apis(apis);
        if let Err(error) = self.context.storage.store.submit(vec![write]).await {
            tracing::warn!(%error, "where servers listen for clients was not stored");
        }
    }

    /// Adopts the cluster's policy for all nodes, and stores it for the next start.
    async fn apply_cluster_policy(&mut self, index: LogIndex, policy: NetworkPolicy) {
        if !self.context.network.rules.set_cluster(index, &policy) {
            return;
        }
        tracing::info!(index = index.0, "the cluster's network policy");
        // The send fails only without the node's loop, when the agent is stopping.
        drop(self.node.send(Event::RulesChanged).await);
        let write = Write::ClusterPolicy(Box::new((index, policy)));
        if let Err(error) = self.context.storage.store.submit(vec![write]).await {
            tracing::warn!(%error, "the cluster's network policy was not stored");
        }
    }
}

/// The agent's monotonic clock.
fn now(epoch: Instant) -> Timestamp {
    Timestamp(0).plus(epoch.elapsed())
}

/// Returns the error of a server that sent no answer within [`SESSION_DEADLINE`].
fn late(addr: SocketAddr) -> SessionError {
    SessionError::Late {
        addr,
        waited: SESSION_DEADLINE,
    }
}
