//! The node's link to the control plane: one QUIC connection to any server, held for ever.
//!
//! While there is none, tasks go on, and news of them wait in the outbox. A session opens with the
//! fingerprint and ends at the first error; the next begins after a pause that grows and is spread,
//! with a server chosen at random.

mod logs;
mod requests;
mod session;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use muster_link::frames::{RecvFrameError, SendFrameError};
use muster_link::peer::PeerError;
use muster_link::tls::Role;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::drivers::wait;
use crate::facilities::Facilities;
use crate::limits::{RECONNECT_PAUSE_MAX, RECONNECT_PAUSE_MIN, SESSION_DEADLINE};
use crate::node;
use crate::task::chain;

/// Why a session ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SessionError {
    /// The address cannot be connected to at all.
    #[error("{addr} cannot be connected to")]
    Connect {
        /// The server.
        addr: SocketAddr,
        /// Why.
        #[source]
        source: quinn::ConnectError,
    },
    /// The connection broke, or never stood.
    #[error("the connection to {addr} is lost")]
    Lost {
        /// The server.
        addr: SocketAddr,
        /// Why.
        #[source]
        source: quinn::ConnectionError,
    },
    /// The peer is no server of this cluster.
    #[error("{addr} is not a server of this cluster")]
    Peer {
        /// The peer.
        addr: SocketAddr,
        /// Why.
        #[source]
        source: PeerError,
    },
    /// The peer's certificate names another role.
    #[error("{addr} shows the certificate of an agent; give --servers the address of a server")]
    Role {
        /// The peer.
        addr: SocketAddr,
    },
    /// The server answered nothing in time.
    #[error("{addr} did not answer within {SESSION_DEADLINE:?}")]
    Late {
        /// The server.
        addr: SocketAddr,
    },
    /// The server refuses the node.
    #[error("the server refuses this node: {reason}")]
    Refused {
        /// Its words.
        reason: String,
    },
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

/// What the link needs.
#[derive(Debug)]
pub(crate) struct Link {
    /// What questions are answered from.
    pub(crate) facilities: Arc<Facilities>,
    /// The agent's socket.
    pub(crate) endpoint: quinn::Endpoint,
    /// Servers to choose from.
    pub(crate) servers: Vec<SocketAddr>,
    /// Names the servers' certificates.
    pub(crate) cluster: String,
    /// The node's loop.
    pub(crate) node: mpsc::Sender<node::Event>,
}

impl Link {
    /// Holds a session until the agent stops.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let mut pause = RECONNECT_PAUSE_MIN;
        let mut turn = spread(self.servers.len());
        while !stop.is_cancelled() {
            let server = self.servers[turn % self.servers.len()];
            turn += 1;
            let mut registered = false;
            let session = self.session(server, &mut registered);
            match stop.run_until_cancelled(session).await {
                None => break,
                Some(Ok(())) => {}
                Some(Err(error)) => {
                    tracing::warn!(%server, error = chain(&error), "no session with a server; tasks go on");
                }
            }
            if registered {
                pause = RECONNECT_PAUSE_MIN;
            }
            wait(jittered(pause), &stop).await;
            pause = (pause * 2).min(RECONNECT_PAUSE_MAX);
        }
        self.endpoint
            .close(quinn::VarInt::from_u32(0), b"the agent stops");
        // The peer hears of it at once instead of after its idle timeout.
        drop(tokio::time::timeout(Duration::from_secs(1), self.endpoint.wait_idle()).await);
    }

    async fn session(&self, addr: SocketAddr, registered: &mut bool) -> Result<(), SessionError> {
        let name = Role::Server.dns_name(&self.cluster);
        let connecting = self
            .endpoint
            .connect(addr, &name)
            .map_err(|source| SessionError::Connect { addr, source })?;
        let connection = tokio::time::timeout(SESSION_DEADLINE, connecting)
            .await
            .map_err(|_elapsed| SessionError::Late { addr })?
            .map_err(|source| SessionError::Lost { addr, source })?;
        let role = muster_link::peer::role(&connection, &self.cluster)
            .map_err(|source| SessionError::Peer { addr, source })?;
        if role != Role::Server {
            return Err(SessionError::Role { addr });
        }
        let result = session::run(self, addr, &connection, registered).await;
        connection.close(quinn::VarInt::from_u32(0), b"the session has ended");
        result
    }
}

/// A number below `count` that differs between agents.
fn spread(count: usize) -> usize {
    usize::try_from(random() % count.max(1) as u64).unwrap_or(0)
}

/// Half of `pause` to all of it.
fn jittered(pause: Duration) -> Duration {
    let [byte, ..] = random().to_be_bytes();
    pause / 2 + pause.mul_f64(f64::from(byte) / 512.0)
}

/// The first half of a random id: 60 of its 64 bits are random, the upper 48 among them.
fn random() -> u64 {
    uuid::Uuid::new_v4().as_u64_pair().0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_spread_over_its_second_half() {
        let pause = Duration::from_secs(8);
        let pauses: Vec<Duration> = (0..200).map(|_| jittered(pause)).collect();

        assert!(
            pauses
                .iter()
                .all(|found| *found >= pause / 2 && *found < pause)
        );
        assert!(pauses.iter().any(|found| *found != pauses[0]));
    }

    #[test]
    fn every_server_is_chosen_sometimes() {
        let chosen: std::collections::BTreeSet<usize> = (0..200).map(|_| spread(3)).collect();

        assert_eq!(chosen.len(), 3);
    }
}
