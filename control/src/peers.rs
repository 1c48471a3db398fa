//! Other servers: connections to them and their addresses.
//!
//! A server dials the others over QUIC with ALPN [`ALPN_RAFT`]. TLS checks that the answering server has the
//! expected name. Every stream begins with an [`StreamHeader`], which carries the number of the server that it is
//! meant for. A server with a wiped disk has another number and refuses streams for its former number. Three
//! connections lead to each server, so that neither a snapshot nor a client's log output delays votes and
//! heartbeats.
//!
//! Addresses come from the membership and from servers' introductions. The newer source counts, so a server that
//! moved is found again.
//!
//! Deliberately absent: Raft's messages (`raft::network`) and the handling of requests (`serve`).

mod admin;
pub(crate) mod autopilot;
pub(crate) mod bootstrap;
mod connection;
pub(crate) mod health;
pub(crate) mod join;
pub mod message;
pub(crate) mod serve;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use muster_link::endpoint::{self, OpenEndpointError};
use muster_link::frames::{FrameReceiver, FrameSender, RecvFrameError, SendFrameError};
use muster_link::tls::{Identity, Role, server_dns_name};
use muster_wire::frame;
use muster_wire::rpc::ALPN_RAFT;
use quinn::{Connection, ConnectionError, Endpoint};

use self::connection::{PeerConnection, PeerTarget};
use self::message::{PeerInfo, PeerReply, PeerRequest, ServerNode, StreamHeader};
use crate::limits;

/// The reason why another server did not answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PeerError {
    /// No address of the server is known.
    #[error(
        "the address of server {server_id} is not known: it has left the cluster, or never joined"
    )]
    Unknown { server_id: u64 },
    /// The server cannot be reached.
    #[error("{server} cannot be reached: {reason}")]
    Unreachable {
        /// The server's name and address.
        server: String,
        reason: String,
    },
    /// The connection was lost before an answer came. The server may have carried out the request.
    #[error("{server} was lost before it answered: {reason}")]
    Lost {
        /// The server's name and address.
        server: String,
        reason: String,
    },
    /// The server did not answer in time. It may still carry out the request.
    #[error("{server} has not answered within {waited:?}")]
    Timeout {
        /// The server's name and address.
        server: String,
        /// The time limit for the answer.
        waited: Duration,
    },
    /// The server refused the request.
    #[error("{reason}")]
    Refused {
        /// The server's reason, and the action to take.
        reason: String,
    },
}

impl PeerError {
    /// Whether the request was certainly not carried out.
    #[must_use]
    pub fn is_not_executed(&self) -> bool {
        !matches!(self, Self::Lost { .. } | Self::Timeout { .. })
    }
}

/// The kind of connection to a server, by the streams on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeerChannel {
    /// Votes, heartbeats, entries, requests.
    Control,
    Snapshot,
    /// Streams forwarded for clients, such as log output.
    Forwarded,
}

const PEER_CHANNELS: usize = 3;

/// A known other server.
#[derive(Debug)]
struct PeerEntry {
    node: ServerNode,
    /// The server's entry in the last membership. It differs from `node` while the server has moved and the
    /// membership still has the old address.
    member: Option<ServerNode>,
    /// Time of Raft's last contact: a message of the server as leader, or its answer as follower.
    last_contact_at: Option<Instant>,
    connections: [Arc<PeerConnection>; PEER_CHANNELS],
}

/// The other servers. Clones share everything.
#[derive(Clone, Debug)]
pub struct Peers {
    shared: Arc<PeersState>,
}

#[derive(Debug)]
struct PeersState {
    me: PeerInfo,
    cluster: String,
    dialer: Arc<Dialer>,
    entries: Mutex<HashMap<u64, PeerEntry>>,
    /// Connections to addresses whose server is not yet known.
    by_address: Mutex<HashMap<String, Arc<PeerConnection>>>,
}

/// Opens connections.
#[derive(Debug)]
struct Dialer {
    endpoint: Endpoint,
    config: Mutex<quinn::ClientConfig>,
}

impl Dialer {
    fn config(&self) -> quinn::ClientConfig {
        self.config
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl Peers {
    /// Creates the address book for the server `me`, which dials from `endpoint` with `identity`.
    pub(crate) fn new(
        endpoint: Endpoint,
        identity: &Identity,
        me: PeerInfo,
    ) -> Result<Self, OpenEndpointError> {
        let config = endpoint::client_config(identity, ALPN_RAFT)?;
        Ok(Self {
            shared: Arc::new(PeersState {
                me,
                cluster: identity.cluster.clone(),
                dialer: Arc::new(Dialer {
                    endpoint,
                    config: Mutex::new(config),
                }),
                entries: Mutex::default(),
                by_address: Mutex::default(),
            }),
        })
    }

    /// Uses `identity` for connections opened from now on.
    ///
    /// # Errors
    ///
    /// [`OpenEndpointError`] if `identity` cannot be used; the previous identity stays.
    pub fn set_identity(&self, identity: &Identity) -> Result<(), OpenEndpointError> {
        let config = endpoint::client_config(identity, ALPN_RAFT)?;
        *self
            .shared
            .dialer
            .config
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = config;
        Ok(())
    }

    /// This server's number, name and addresses.
    #[must_use]
    pub fn me(&self) -> &PeerInfo {
        &self.shared.me
    }

    /// The cluster's name.
    #[must_use]
    pub fn cluster(&self) -> &str {
        &self.shared.cluster
    }

    /// The other servers with a known address, by number.
    #[must_use]
    pub fn servers(&self) -> Vec<PeerInfo> {
        let mut servers: Vec<PeerInfo> = self
            .entries()
            .iter()
            .map(|(server_id, entry)| PeerInfo {
                server_id: *server_id,
                node: entry.node.clone(),
            })
            .collect();
        servers.sort_unstable_by_key(|known| known.server_id);
        servers
    }

    /// Whether a server is known at `addr`: servers dial from the socket they listen on.
    pub(crate) fn is_server_at(&self, addr: SocketAddr) -> bool {
        let servers = self.servers();
        let mut addrs = servers.iter().map(|known| known.node.quic_addr.parse());
        addrs.any(|theirs| theirs == Ok(addr))
    }

    /// The record of `server_id`, this server included.
    #[must_use]
    pub fn node(&self, server_id: u64) -> Option<ServerNode> {
        if server_id == self.shared.me.server_id {
            return Some(self.shared.me.node.clone());
        }
        self.entries()
            .get(&server_id)
            .map(|entry| entry.node.clone())
    }

    /// Time since Raft's last contact with `server_id`: entries or a heartbeat of a leader, or an answer of a
    /// follower.
    #[must_use]
    pub fn last_contact(&self, server_id: u64) -> Option<Duration> {
        self.entries()
            .get(&server_id)
            .and_then(|entry| entry.last_contact_at)
            .map(|at| at.elapsed())
    }

    /// Time since Raft's last contact with any server.
    pub(crate) fn last_contact_of_any(&self) -> Option<Duration> {
        let entries = self.entries();
        let newest = entries
            .values()
            .filter_map(|entry| entry.last_contact_at)
            .max();
        newest.map(|at| at.elapsed())
    }

    /// Records a contact of Raft with `server_id`.
    pub(crate) fn note_contact(&self, server_id: u64) {
        if let Some(entry) = self.entries().get_mut(&server_id) {
            entry.last_contact_at = Some(Instant::now());
        }
    }

    /// Records a server's introduction.
    pub(crate) fn update_peer(&self, known: &PeerInfo) {
        if known.server_id == self.shared.me.server_id {
            return;
        }
        let mut entries = self.entries();
        if let Some(entry) = entries.get_mut(&known.server_id) {
            self.shared.update_address(entry, &known.node);
        } else {
            entries.insert(known.server_id, self.shared.entry(known.node.clone()));
        }
    }

    /// Records a server unless it is already known.
    pub(crate) fn add_if_unknown(&self, known: &PeerInfo) {
        if known.server_id != self.shared.me.server_id {
            self.entries()
                .entry(known.server_id)
                .or_insert_with(|| self.shared.entry(known.node.clone()));
        }
    }

    /// Records the members. Keeps addresses that a member has announced since the membership last changed. Forgets
    /// servers that are not members any more.
    pub(crate) fn set_members(&self, members: &[PeerInfo]) {
        let mut entries = self.entries();
        entries.retain(|server_id, entry| {
            entry.member.is_none() || members.iter().any(|known| known.server_id == *server_id)
        });
        for known in members {
            if known.server_id == self.shared.me.server_id {
                continue;
            }
            let entry = entries
                .entry(known.server_id)
                .or_insert_with(|| self.shared.entry(known.node.clone()));
            if entry.member.as_ref() != Some(&known.node) {
                if entry.member.is_some() {
                    self.shared.update_address(entry, &known.node);
                }
                entry.member = Some(known.node.clone());
            }
        }
    }

    /// Sends a request to `server_id` and waits for its answer.
    ///
    /// # Errors
    ///
    /// [`PeerError`].
    pub(crate) async fn call(
        &self,
        server_id: u64,
        request: PeerRequest,
    ) -> Result<PeerReply, PeerError> {
        self.call_within(server_id, request, limits::PEER_CALL_WAIT)
            .await
    }

    /// Sends a request to `server_id` and waits up to `waited` for its answer.
    pub(crate) async fn call_within(
        &self,
        server_id: u64,
        request: PeerRequest,
        waited: Duration,
    ) -> Result<PeerReply, PeerError> {
        let peer = self.connection_to(server_id, PeerChannel::Control)?;
        self.send_request(&peer, server_id, request, waited).await
    }

    /// Sends a request to the server that answers at `addr`, a host and a port.
    pub(crate) async fn call_address(
        &self,
        addr: &str,
        request: PeerRequest,
        waited: Duration,
    ) -> Result<PeerReply, PeerError> {
        let peer = {
            let mut by_address = self
                .shared
                .by_address
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            Arc::clone(by_address.entry(addr.to_owned()).or_insert_with(|| {
                let target = PeerTarget {
                    shown: format!("the server at {addr}"),
                    addr: addr.to_owned(),
                    dns_name: Role::Server.dns_name(&self.shared.cluster),
                };
                Arc::new(PeerConnection::new(
                    target,
                    Arc::clone(&self.shared.dialer),
                    false,
                ))
            }))
        };
        self.send_request(&peer, message::ANYBODY, request, waited)
            .await
    }

    /// Opens a stream of frames to `server_id`. The request is its first frame. The two ends define the frames
    /// after it.
    ///
    /// # Errors
    ///
    /// [`PeerError`]; in that case nothing was sent.
    pub(crate) async fn open(
        &self,
        server_id: u64,
        channel: PeerChannel,
        request: PeerRequest,
    ) -> Result<(FrameSender, FrameReceiver), PeerError> {
        let peer = self.connection_to(server_id, channel)?;
        let waited = limits::PEER_CALL_WAIT;
        let opening = self.open_on(&peer, server_id, request);
        match tokio::time::timeout(waited, opening).await {
            Ok(opened) => opened.map(|(_, sender, receiver)| (sender, receiver)),
            Err(_) => Err(peer.unreachable_error(format!("no stream within {waited:?}"))),
        }
    }

    fn connection_to(
        &self,
        server_id: u64,
        channel: PeerChannel,
    ) -> Result<Arc<PeerConnection>, PeerError> {
        self.entries()
            .get(&server_id)
            .map(|entry| Arc::clone(&entry.connections[channel as usize]))
            .ok_or(PeerError::Unknown { server_id })
    }

    async fn open_on(
        &self,
        peer: &PeerConnection,
        to: u64,
        request: PeerRequest,
    ) -> Result<(Connection, FrameSender, FrameReceiver), PeerError> {
        let connection = peer.connection().await?;
        let (send, receive) = connection
            .open_bi()
            .await
            .map_err(|error| peer.unreachable_error(explain(&error)))?;
        let mut sender = FrameSender::speaking(frame::SERVER, send);
        let receiver = FrameReceiver::speaking(frame::SERVER, receive);
        let opening = StreamHeader {
            from: self.shared.me.server_id,
            to,
            request,
        };
        match sender.send(&opening).await {
            Ok(()) => Ok((connection, sender, receiver)),
            Err(SendFrameError::Encode(error)) => Err(PeerError::Refused {
                reason: error.to_string(),
            }),
            Err(SendFrameError::Write(error)) => Err(peer.lost_error(error.to_string())),
        }
    }

    async fn send_request(
        &self,
        peer: &PeerConnection,
        to: u64,
        request: PeerRequest,
        waited: Duration,
    ) -> Result<PeerReply, PeerError> {
        let asking = async {
            let (connection, mut sender, mut receiver) = self.open_on(peer, to, request).await?;
            sender.finish();
            match receiver.recv::<PeerReply>().await {
                Ok(Some(PeerReply::Refused { reason })) => Err(PeerError::Refused { reason }),
                Ok(Some(reply)) => Ok(reply),
                Ok(None) => Err(peer.lost_error("it ended the stream".to_owned())),
                Err(error) => Err(match connection.close_reason() {
                    Some(ConnectionError::ApplicationClosed(close)) => PeerError::Refused {
                        reason: String::from_utf8_lossy(&close.reason).into_owned(),
                    },
                    Some(reason) => peer.lost_error(explain(&reason)),
                    None => peer.lost_error(explain_frame(&error)),
                }),
            }
        };
        match tokio::time::timeout(waited, asking).await {
            Ok(answered) => answered,
            Err(_) => {
                peer.check();
                Err(PeerError::Timeout {
                    server: peer.target().shown.clone(),
                    waited,
                })
            }
        }
    }

    fn entries(&self) -> MutexGuard<'_, HashMap<u64, PeerEntry>> {
        // Each change is one insertion, removal or assignment, so a panic elsewhere leaves the map whole.
        self.shared
            .entries
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl PeersState {
    fn entry(&self, node: ServerNode) -> PeerEntry {
        PeerEntry {
            connections: self.new_connections(&node),
            node,
            member: None,
            last_contact_at: None,
        }
    }

    fn new_connections(&self, node: &ServerNode) -> [Arc<PeerConnection>; PEER_CHANNELS] {
        std::array::from_fn(|channel| {
            let target = PeerTarget {
                shown: format!("server {} at {}", node.name, node.quic_addr),
                addr: node.quic_addr.clone(),
                dns_name: server_dns_name(&node.name, &self.cluster),
            };
            let is_reported = channel == PeerChannel::Control as usize;
            Arc::new(PeerConnection::new(
                target,
                Arc::clone(&self.dialer),
                is_reported,
            ))
        })
    }

    fn update_address(&self, entry: &mut PeerEntry, node: &ServerNode) {
        if entry.node == *node {
            return;
        }
        if entry.node.quic_addr != node.quic_addr || entry.node.name != node.name {
            tracing::info!(
                name = node.name,
                from = entry.node.quic_addr,
                to = node.quic_addr,
                "a server has moved"
            );
            for peer in &entry.connections {
                peer.abandon();
            }
            entry.connections = self.new_connections(node);
        }
        entry.node = node.clone();
    }
}

/// Describes a lost connection.
fn explain(error: &ConnectionError) -> String {
    match error {
        ConnectionError::ApplicationClosed(close) if !close.reason.is_empty() => {
            String::from_utf8_lossy(&close.reason).into_owned()
        }
        error => error.to_string(),
    }
}

fn explain_frame(error: &RecvFrameError) -> String {
    let mut text = error.to_string();
    if let Some(source) = std::error::Error::source(error) {
        text.push_str(": ");
        text.push_str(&source.to_string());
    }
    text
}
