//! Accepts QUIC connections and gives each to the part that handles its protocol.
//!
//! [`agents`] and [`peers::serve`] check the permissions of a peer's certificate before a frame is read.

use std::sync::Arc;

use muster_link::peer;
use muster_wire::rpc::{ALPN_AGENT, ALPN_RAFT};
use quinn::{Endpoint, VarInt};
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::agents::{self, Admission};
use crate::handle::Control;
use crate::limits;
use crate::peers;

/// The protocols that a server answers.
pub(crate) const PROTOCOLS: [&[u8]; 2] = [ALPN_AGENT, ALPN_RAFT];

/// The code of QUIC's close frame when the server shuts down.
const SHUTDOWN: VarInt = VarInt::from_u32(1);

/// Accepts connections on `endpoint` until `shutdown`, then closes them. Servers' connections are served here, all
/// others on the threads of `sessions`.
pub(crate) async fn serve(
    endpoint: Endpoint,
    control: Control,
    sessions: Handle,
    shutdown: CancellationToken,
) {
    let here = Handle::current();
    // The connections end with this future, so a dropped server serves no peer.
    let mut connections = JoinSet::new();
    let admission = Arc::new(Admission::new());
    loop {
        let incoming = tokio::select! {
            () = shutdown.cancelled() => break,
            incoming = endpoint.accept() => match incoming {
                Some(incoming) => incoming,
                None => break,
            },
            Some(_) = connections.join_next() => continue,
        };
        // A connection's protocol is known after its handshake, so servers count here as well.
        if connections.len() >= limits::CONNECTIONS_MAX {
            tracing::warn!(peer = %incoming.remote_address(), max = limits::CONNECTIONS_MAX, "too many connections: refused one");
            incoming.refuse();
            continue;
        }
        let from = incoming.remote_address();
        let is_server = control.peers().is_server_at(from);
        let Some(place) = admission.handshake(is_server) else {
            tracing::debug!(peer = %from, "too many connect at once: refused one");
            incoming.refuse();
            continue;
        };
        let (control, admission) = (control.clone(), Arc::clone(&admission));
        let threads = if is_server { &here } else { &sessions };
        // The driver task of the connection runs on the runtime that accepts it.
        let connecting = {
            let _threads = threads.enter();
            incoming.accept()
        };
        let serve = async move {
            let connected = match connecting {
                Ok(connecting) => connecting.await,
                Err(error) => Err(error),
            };
            drop(place);
            match connected {
                Ok(connection) if peer::protocol(&connection).as_deref() == Some(ALPN_RAFT) => {
                    peers::serve::admit(connection, &control).await;
                }
                Ok(connection) => {
                    agents::admit(connection, &control, admission.registration()).await;
                }
                Err(error) => match peer::explain(&error) {
                    Some(reason) => tracing::warn!(peer = %from, reason, "refused a connection"),
                    None => tracing::debug!(peer = %from, %error, "no connection"),
                },
            }
        };
        connections.spawn_on(serve, threads);
    }
    endpoint.close(SHUTDOWN, b"the server goes down");
    while connections.join_next().await.is_some() {}
    // The peers should receive the close frame. Dead or slow peers do not delay the shutdown.
    drop(tokio::time::timeout(limits::FAREWELL_OF_SERVER_WAIT, endpoint.wait_idle()).await);
}
