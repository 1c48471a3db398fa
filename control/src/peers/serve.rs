//! Answers to other servers' requests.
//!
//! A connection is accepted if its certificate names a server of this cluster. That is checked before a frame is
//! read, so an agent or an operator can never send Raft messages. A stream is answered if its header names this
//! server.

use std::sync::Arc;

use muster_link::frames::{FrameReceiver, FrameSender, RecvFrameError};
use muster_link::peer;
use muster_link::tls::Role;
use muster_wire::frame;
use quinn::{Connection, VarInt};
use tokio::task::JoinSet;

use super::message::{ANYBODY, PeerReply, PeerRequest, RaftCall, StreamHeader};
use crate::agents;
use crate::consistency_check;
use crate::handle::Control;
use crate::limits;
use crate::restore;

/// The code of QUIC's close frame for a peer that may not connect here.
const REFUSED: VarInt = VarInt::from_u32(2);
/// The code of QUIC's close frame when a session is over.
const ENDED: VarInt = VarInt::from_u32(4);

/// Checks the peer's certificate before a frame is read, and answers the peer until it leaves.
pub(crate) async fn admit(connection: Connection, control: &Control) {
    let name = match server_name(&connection, control) {
        Ok(name) => name,
        Err(reason) => {
            tracing::warn!(peer = %connection.remote_address(), reason, "refused a connection");
            connection.close(REFUSED, reason.as_bytes());
            return;
        }
    };
    connection.set_max_concurrent_bi_streams(VarInt::from_u32(limits::PEER_STREAMS_MAX));
    let name: Arc<str> = Arc::from(name);
    // The streams end with this future, so a dropped server answers no request.
    let mut streams = JoinSet::new();
    loop {
        let opened = tokio::select! {
            opened = connection.accept_bi() => opened,
            Some(_) = streams.join_next() => continue,
        };
        match opened {
            Ok((send, receive)) => {
                let (control, name) = (control.clone(), Arc::clone(&name));
                let connection = connection.clone();
                let sender = FrameSender::speaking(frame::SERVER, send);
                let receiver = FrameReceiver::speaking(frame::SERVER, receive);
                streams.spawn(async move {
                    if let Err(error) = answer(&name, sender, receiver, &control).await
                        && let Some(reason) = error.version_refusal()
                    {
                        tracing::warn!(%name, reason, "refused a server of another version");
                        connection.close(REFUSED, reason.as_bytes());
                    }
                });
            }
            Err(error) => {
                tracing::debug!(%name, %error, "a server left");
                break;
            }
        }
    }
    connection.close(ENDED, b"the session is over");
}

/// The name of the server at the other end, or the reason if it is no server of this cluster.
fn server_name(connection: &Connection, control: &Control) -> Result<String, String> {
    let cluster = control.peers().cluster();
    let peer = peer::identify(connection, cluster).map_err(|error| error.to_string())?;
    match (peer.role, peer.server_name) {
        (Role::Server, Some(name)) => Ok(name),
        (Role::Server, None) => Err(format!(
            "the certificate does not name the server: make it with `muster operator tls cert server --name NAME` for cluster {cluster}"
        )),
        (Role::Agent | Role::Operator, _) => {
            Err("only a server's certificate speaks for a server".to_owned())
        }
    }
}

/// Answers one stream of the server `name`. An error concerns the stream's first frame.
async fn answer(
    name: &str,
    sender: FrameSender,
    mut receiver: FrameReceiver,
    control: &Control,
) -> Result<(), RecvFrameError> {
    let opening = receiver.recv::<StreamHeader>();
    let Ok(opening) = tokio::time::timeout(limits::REGISTER_WAIT, opening).await else {
        return Ok(());
    };
    let Some(opening) = opening? else {
        return Ok(());
    };
    let StreamHeader { from, to, request } = opening;
    if let Err(reason) = check(name, from, to, control) {
        reply(sender, PeerReply::Refused { reason }).await;
        return Ok(());
    }
    let (raft, peers) = (control.raft(), control.peers());
    match request {
        PeerRequest::RaftAppend => raft.take_entries(peers, from, sender, receiver).await,
        PeerRequest::RaftSnapshot => {
            if let Err(error) = raft.take_snapshot_of(peers, from, sender, receiver).await {
                tracing::warn!(from = name, error = %crate::chain(&error), "a snapshot was not taken over");
            }
        }
        PeerRequest::Propose => raft.take_proposals(sender, receiver).await,
        PeerRequest::AskNode { node_id, request } => {
            agents::answer_for_server(control, node_id, request, sender, receiver).await;
        }
        PeerRequest::Restore => restore::serve_restore(control, sender, receiver).await,
        request => reply(sender, respond(from, to, request, control).await).await,
    }
    Ok(())
}

/// The answer to a request without further frames.
async fn respond(from: u64, to: u64, request: PeerRequest, control: &Control) -> PeerReply {
    let (raft, peers) = (control.raft(), control.peers());
    match request {
        // These requests have further frames.
        PeerRequest::RaftAppend
        | PeerRequest::RaftSnapshot
        | PeerRequest::Propose
        | PeerRequest::AskNode { .. }
        | PeerRequest::Restore => PeerReply::Refused {
            reason: "the request begins a stream".to_owned(),
        },
        PeerRequest::Raft { kind, body } => {
            if kind == RaftCall::Append {
                peers.note_contact(from);
            }
            raft.answer(kind, &body).await
        }
        PeerRequest::Hello(hello) => control.exchange_hello(&hello),
        PeerRequest::ReadIndex { linearizable } => match raft.read_index_here(linearizable).await {
            Some(index) => PeerReply::ReadIndex(index),
            None => PeerReply::NotLeader,
        },
        PeerRequest::Heartbeats { nodes, left } => {
            agents::count_for_server(control, from, nodes, left).await
        }
        PeerRequest::NodeHeard { node_id } => PeerReply::NodeHeard {
            ago: agents::since_last_contact(control, node_id),
        },
        PeerRequest::FindPlaces(wanted) => match control.find_places_here(wanted).await {
            Some(found) => PeerReply::Places(found),
            None => PeerReply::NotLeader,
        },
        PeerRequest::CollectGarbage => agents::collect_for_server(control).await,
        PeerRequest::CollectOnNodes => {
            control.nodes().collect_garbage();
            PeerReply::Done
        }
        PeerRequest::StateHash { index } => {
            PeerReply::StateHash(consistency_check::state_hash(control, index).await)
        }
        PeerRequest::Troubles => PeerReply::Troubles(control.troubles()),
        PeerRequest::StateDiffers { index, right } => {
            consistency_check::stop_if_diverged(control, index, &right);
            PeerReply::Done
        }
        // A joining server has no record of the leader, so its request is forwarded. Among members a request is
        // never forwarded.
        PeerRequest::Join(_) if to == ANYBODY => match control.call_leader(&request).await {
            Ok(reply) => reply,
            Err(error) => PeerReply::Refused {
                reason: error.to_string(),
            },
        },
        PeerRequest::Join(_)
        | PeerRequest::Members
        | PeerRequest::Add { .. }
        | PeerRequest::Remove { .. }
        | PeerRequest::Transfer { .. } => control.serve_as_leader(&request).await,
        PeerRequest::Promise(founding) => done(control.founder().promise(control, &founding).await),
        PeerRequest::Found(founding) => done(control.founder().begin(control, &founding).await),
        PeerRequest::Removed { server_id } => {
            if server_id == peers.me().server_id {
                control.set_removed();
            }
            PeerReply::Done
        }
    }
}

/// Checks that the server `name` with number `from` may send to `to`.
fn check(name: &str, from: u64, to: u64, control: &Control) -> Result<(), String> {
    let me = control.peers().me();
    if to != ANYBODY && to != me.server_id {
        return Err(format!(
            "server {} is not the one that was here before: its data directory is another one. Remove the old one with \
             `muster operator raft remove {to}`, then this one can join",
            me.node.name
        ));
    }
    match control.peers().node(from) {
        Some(node) if node.name != name => Err(format!(
            "server {from} is {}, the certificate is made for {name}: give each server a certificate of its own",
            node.name
        )),
        _ => Ok(()),
    }
}

fn done<E: std::error::Error>(result: Result<(), E>) -> PeerReply {
    match result {
        Ok(()) => PeerReply::Done,
        Err(error) => PeerReply::Refused {
            reason: error.to_string(),
        },
    }
}

async fn reply(mut sender: FrameSender, reply: PeerReply) {
    if let Err(error) = sender.send(&reply).await {
        tracing::debug!(%error, "an answer to a server was not sent");
        return;
    }
    sender.finish();
    // A drop without this wait would discard data that the other side has not read.
    sender.stopped().await;
}
