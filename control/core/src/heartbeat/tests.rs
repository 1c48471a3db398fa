use muster_domain::fixture::node;

use super::*;
use crate::fixture::Cluster;

const TTL: Duration = Duration::from_secs(10);
const GRACE: Duration = Duration::from_secs(5);
const NODE: NodeId = NodeId([1; 16]);
const START: Timestamp = Timestamp(0);

fn heartbeats() -> Heartbeats {
    Heartbeats::new(HeartbeatConfig {
        ttl: TTL,
        grace: GRACE,
    })
}

#[test]
fn a_silent_node_expires_after_ttl_and_grace() {
    let mut heartbeats = heartbeats();
    heartbeats.track(NODE, START);
    let deadline = START.plus(TTL).plus(GRACE);

    assert_eq!(heartbeats.poll_timeout().unwrap().0, deadline);
    assert_eq!(heartbeats.handle_timeout(Timestamp(deadline.0 - 1)), []);
    assert_eq!(heartbeats.handle_timeout(deadline), [NODE]);
}

#[test]
fn a_beat_gives_a_whole_period() {
    let mut heartbeats = heartbeats();
    heartbeats.track(NODE, START);
    let beat = START.plus(TTL);

    assert_eq!(
        heartbeats.handle_beat(NODE, beat),
        HeartbeatOutcome::Counted
    );

    assert_eq!(heartbeats.handle_timeout(START.plus(TTL).plus(GRACE)), []);
    assert_eq!(
        heartbeats.handle_timeout(beat.plus(TTL).plus(GRACE)),
        [NODE]
    );
}

#[test]
fn heartbeat_of_untracked_node_is_unexpected() {
    assert_eq!(
        heartbeats().handle_beat(NODE, START),
        HeartbeatOutcome::Unexpected
    );
}

/// The proposal may be lost; the node must be returned again.
#[test]
fn expired_node_is_reported_again_after_grace() {
    let mut heartbeats = heartbeats();
    heartbeats.track(NODE, START);
    let deadline = START.plus(TTL).plus(GRACE);
    heartbeats.handle_timeout(deadline);

    assert_eq!(heartbeats.handle_timeout(deadline), []);
    assert_eq!(heartbeats.handle_timeout(deadline.plus(GRACE)), [NODE]);
    heartbeats.untrack(&NODE);
    assert_eq!(heartbeats.poll_timeout(), None);
}

/// The entry that marks the node as down may be under way: no agent may receive that its heartbeat counted.
#[test]
fn heartbeat_after_expiry_proposal_is_rejected() {
    let mut cluster = Cluster::new();
    let node_id = cluster.node(node("n1").build());
    let mut heartbeats = heartbeats();
    heartbeats.lead(&cluster.state, START);
    let deadline = START.plus(TTL).plus(GRACE);
    heartbeats.handle_timeout(deadline);

    assert_eq!(
        heartbeats.handle_beat(node_id, deadline),
        HeartbeatOutcome::Unexpected
    );
    heartbeats.lead(&cluster.state, deadline);
    assert_eq!(
        heartbeats.handle_beat(node_id, deadline),
        HeartbeatOutcome::Unexpected
    );
    heartbeats.track(node_id, deadline);
    assert_eq!(
        heartbeats.handle_beat(node_id, deadline),
        HeartbeatOutcome::Counted
    );
}

#[test]
fn a_new_leader_gives_nodes_a_whole_period() {
    let mut cluster = Cluster::new();
    let up = cluster.node(node("n1").build());
    let down = cluster.node(node("n2").build());
    cluster.node_status(down, NodeStatus::Down);
    let mut heartbeats = heartbeats();
    heartbeats.track(NODE, START);

    heartbeats.lead(&cluster.state, cluster.now);

    assert_eq!(heartbeats.len(), 1);
    assert_eq!(heartbeats.handle_timeout(cluster.now.plus(TTL)), []);
    assert_eq!(
        heartbeats.handle_timeout(cluster.now.plus(TTL).plus(GRACE)),
        [up]
    );
}

#[test]
fn mass_expiry_is_limited_per_timeout() {
    let mut heartbeats = heartbeats();
    let nodes = u16::try_from(limits::EXPIRED_MAX + 1).unwrap();
    for at in 0..nodes {
        let mut id = [0; 16];
        id[..2].copy_from_slice(&at.to_be_bytes());
        heartbeats.track(NodeId(id), START);
    }
    let deadline = START.plus(TTL).plus(GRACE);

    assert_eq!(
        heartbeats.handle_timeout(deadline).len(),
        limits::EXPIRED_MAX
    );
    assert_eq!(heartbeats.handle_timeout(deadline).len(), 1);
}

#[test]
fn a_leader_that_stood_still_knows_it() {
    let mut attention = PauseDetector::new(START);
    let step = Duration::from_millis(500);

    let looked: Vec<bool> = (1..10)
        .map(|at| attention.handle_look(START.plus(step * at)))
        .collect();

    assert!(looked.iter().all(|stood_still| !stood_still));
    let woken = START.plus(step * 9).plus(Duration::from_secs(10));
    assert!(attention.handle_look(woken));
    assert!(!attention.handle_look(woken.plus(step)));
}

/// A late message through the server that a node left does not change the node's new server.
#[test]
fn node_belongs_to_its_latest_server() {
    let mut heartbeats = heartbeats();
    heartbeats.handle_seen(NODE, 1);
    heartbeats.handle_seen(NODE, 2);

    heartbeats.handle_left(&NODE, 1);
    assert_eq!(heartbeats.server_of(&NODE), Some(2));

    heartbeats.handle_left(&NODE, 2);
    assert_eq!(heartbeats.server_of(&NODE), None);
}
