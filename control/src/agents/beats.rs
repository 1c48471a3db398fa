//! Heartbeats of this server's nodes to the leader: one message a second for all of them.
//!
//! A node gets its answer when the leader has counted it. If the leader is silent for a while, for any reason,
//! this server cannot serve its agents. It sends them to the other servers.

use std::collections::{BTreeMap, HashSet};
use std::net::SocketAddr;
use std::time::Instant;

use muster_domain::id::NodeId;
use muster_wire::rpc::ToAgent;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::nodes::{Nodes, PendingHeartbeat, ServiceInfo};
use crate::handle::Control;
use crate::leader::lease::Lease;
use crate::limits;
use crate::peers::message::{PeerReply, PeerRequest};

/// Sends the gathered heartbeats to the leader until `stop`.
pub(super) async fn gather(
    control: &Control,
    service: &watch::Sender<ServiceInfo>,
    stop: &CancellationToken,
) {
    let ttl = control.server_info().heartbeat_ttl;
    let mut ticks = tokio::time::interval((ttl / 10).min(limits::BEATS_INTERVAL));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let count_wait_max = ttl.mul_f64(0.3).max(limits::UNSERVED_MIN);
    let mut leadership = control.leadership();
    let mut counted_at = Instant::now();
    let mut before = BTreeMap::new();
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = ticks.tick() => {}
            // A new leader counts the nodes at once.
            Ok(()) = leadership.changed() => {}
        }
        let connected = control.nodes().session_numbers();
        let left = missing(&before, &connected);
        before = connected;
        let beats = control.nodes().uncounted_heartbeats();
        let nodes = beats.iter().map(|beat| beat.node_id).collect();
        let sent = send(control, nodes, left);
        let Some(answer) = stop.run_until_cancelled(sent).await else {
            return;
        };
        match &answer {
            Ok(lease) => {
                counted_at = Instant::now();
                answer_all(control.nodes(), &beats, lease);
            }
            Err(reason) => tracing::debug!(reason, "the leader has not counted the heartbeats"),
        }
        // A server on its own has no other server for its agents.
        let alone = control.peers().servers().is_empty();
        let unserved = answer
            .err()
            .filter(|_| !alone && counted_at.elapsed() > count_wait_max);
        publish_service(control, service, unserved);
    }
}

/// Nodes of `before` that are not connected any more.
fn missing(before: &BTreeMap<NodeId, u64>, connected: &BTreeMap<NodeId, u64>) -> Vec<NodeId> {
    before
        .keys()
        .filter(|node_id| !connected.contains_key(node_id))
        .copied()
        .collect()
}

/// Asks the leader to count `nodes`. Returns their lease, or the reason for its absence.
async fn send(control: &Control, nodes: Vec<NodeId>, left: Vec<NodeId>) -> Result<Lease, String> {
    let leader = control.leader().ok_or("no server leads")?;
    if leader.is_self {
        let counted = control.count_beats(leader.server_id, nodes, left);
        return match tokio::time::timeout(limits::BEATS_WAIT, counted).await {
            Ok(Some(lease)) => Ok(lease),
            Ok(None) | Err(_) => Err("no quorum confirms that this server leads".to_owned()),
        };
    }
    let request = PeerRequest::Heartbeats { nodes, left };
    let asked = control
        .peers()
        .call_within(leader.server_id, request, limits::BEATS_WAIT);
    match asked.await {
        Ok(PeerReply::Counted { lease, uncounted }) => Ok(Lease {
            duration: lease,
            uncounted,
        }),
        Ok(PeerReply::NotLeader) => Err("the leader has changed".to_owned()),
        Ok(other) => Err(format!("the leader's answer is not understood: {other:?}")),
        Err(error) => Err(error.to_string()),
    }
}

fn answer_all(nodes: &Nodes, beats: &[PendingHeartbeat], lease: &Lease) {
    let uncounted: HashSet<&NodeId> = lease.uncounted.iter().collect();
    let counted = |beat: &&PendingHeartbeat| !uncounted.contains(&beat.node_id);
    for beat in beats.iter().filter(counted) {
        let ack = ToAgent::HeartbeatAck {
            number: beat.number,
            lease: lease.duration,
        };
        // An agent with a full outbox gets the next acknowledgement.
        if beat.outbox.try_send(ack).is_ok() {
            nodes.record_counted(beat.node_id, beat.number);
        }
    }
}

fn publish_service(
    control: &Control,
    service: &watch::Sender<ServiceInfo>,
    unserved: Option<String>,
) {
    let mut servers: Vec<SocketAddr> = control
        .peers()
        .servers()
        .into_iter()
        .map(|known| known.node.quic_addr)
        .chain([control.peers().me().node.quic_addr.clone()])
        .filter_map(|addr| addr.parse().ok())
        .filter(|addr: &SocketAddr| !addr.ip().is_unspecified())
        .collect();
    servers.sort_unstable();
    servers.dedup();
    let apis = apis(control);
    service.send_if_modified(|service| {
        let found = ServiceInfo {
            servers,
            apis,
            unserved,
        };
        if service.unserved.is_none()
            && let Some(reason) = &found.unserved
        {
            tracing::warn!(
                reason,
                "no leader counts this server's nodes: agents are sent to other servers"
            );
        }
        let changed = *service != found;
        *service = found;
        changed
    });
}

/// Addresses where the servers serve HTTP, and Diego's wire protocol if this server serves it. Servers do not
/// exchange these addresses, so this assumes the same ports for all.
fn apis(control: &Control) -> Vec<SocketAddr> {
    let peers = control.peers();
    let others = peers.servers().into_iter().map(|known| known.node);
    let https = others.chain([peers.me().node.clone()]);
    let mut apis: Vec<SocketAddr> = https
        .filter_map(|node| node.http_addr.parse().ok())
        .collect();
    if let Some(bbs) = control.server_info().bbs_addr {
        let port = bbs.port();
        let beside: Vec<_> = apis
            .iter()
            .map(|http| SocketAddr::new(http.ip(), port))
            .collect();
        apis.extend(beside);
        apis.push(bbs);
    }
    apis.sort_unstable();
    apis.dedup();
    apis
}
