//! Servers that come and go.

use std::time::Duration;

use muster_control::ChangeServersError;
use muster_control::server::ServerConfig;

use super::{Cluster, LOOK, Member, leader};
use crate::fixture::soon;

#[tokio::test(flavor = "multi_thread")]
async fn leadership_goes_where_it_is_sent() {
    let (_cluster, members) = Cluster::of(3).await;
    let at = leader(&members).await;
    let (from, to) = (&members[(at + 1) % 3], &members[(at + 2) % 3]);

    // A server that was slow to answer a moment ago is refused as one that does not; it answers the next time.
    let now = soon("a transfer", async {
        loop {
            match from.control().transfer_leadership(Some(to.id())).await {
                Ok(now) => break now,
                Err(ChangeServersError::Refused { .. }) => tokio::task::yield_now().await,
                Err(error) => panic!("{error}"),
            }
        }
    })
    .await;

    assert_eq!(now.server_id, to.id());
    assert_eq!(members[leader(&members).await].id(), to.id());
    from.register("after").await;
    let nobody = from.control().transfer_leadership(Some(7)).await;
    assert!(
        matches!(nobody, Err(ChangeServersError::Refused { .. })),
        "{nobody:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn removed_leader_transfers_leadership_and_stays_out() {
    let (_cluster, mut members) = Cluster::of(3).await;
    members[0].register("before").await;
    let at = leader(&members).await;
    let gone = members.remove(at);

    soon("a removal", members[0].control().remove_peer(gone.id()))
        .await
        .unwrap();

    for member in &members {
        member.until_voters(2).await;
    }
    leader(&members).await;
    members[1].register("after").await;
    let peers = soon("a list", members[0].control().list_peers())
        .await
        .unwrap();
    assert_eq!(peers.len(), 2);
    assert!(peers.iter().all(|peer| peer.server_id != gone.id()));
    // It makes no trouble, and neither leads nor joins again by itself.
    let term = members[0].control().term();
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(!gone.leads());
    assert_eq!(members[0].control().term(), term);

    // Started again it joins again.
    let config = gone.stop().await;
    let config = ServerConfig {
        join: vec![members[0].quic_addr()],
        bootstrap_expect: 0,
        ..config
    };
    let back = Member::start(config).await;
    back.until_voters(3).await;
    back.until_has("after").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn peer_list_reports_leader_and_log_index() {
    let (_cluster, members) = Cluster::of(3).await;
    let at = leader(&members).await;
    let index = members[at].register("web").await;

    let follower = &members[(at + 1) % 3];
    let peers = soon("all are there", async {
        loop {
            let peers = follower.control().list_peers().await.unwrap();
            if peers.iter().all(|peer| peer.log_index >= Some(index)) {
                return peers;
            }
            tokio::time::sleep(LOOK).await;
        }
    })
    .await;

    assert_eq!(peers.len(), 3);
    for peer in peers {
        assert_eq!(peer.leader, peer.server_id == members[at].id());
        assert!(peer.voter);
        assert!(peer.last_contact_ms.is_some());
        let member = members
            .iter()
            .find(|member| member.id() == peer.server_id)
            .unwrap();
        assert_eq!(peer.node.name, member.name());
        assert_eq!(peer.node.quic_addr, member.quic_addr());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_is_added_by_its_address() {
    let cluster = Cluster::new();
    let one = Member::start(cluster.config("s1", 1, &[])).await;
    // It was told of nobody.
    let two = Member::start(cluster.config("s2", 0, &[])).await;

    soon("an addition", one.control().add_peer(&two.quic_addr()))
        .await
        .unwrap();

    two.until_voters(2).await;
    two.register("web").await;
}

/// The way back of a server that has lost its disk.
#[tokio::test(flavor = "multi_thread")]
async fn wiped_server_is_rejected_until_old_peer_removed() {
    let (cluster, mut members) = Cluster::of(3).await;
    members[0].register("web").await;
    let lost = members.remove(2);
    let former = lost.id();
    let addr = lost.quic_addr();
    let config = lost.stop().await;
    std::fs::remove_dir_all(&config.data_dir).unwrap();
    let config = ServerConfig {
        bootstrap_expect: 0,
        join: vec![members[0].quic_addr()],
        ..config
    };

    let wiped = Member::start(config).await;
    assert_ne!(wiped.id(), former);
    assert_eq!(wiped.quic_addr(), addr);
    // At first the connection to its former self may still be known as the way to its address.
    let reason = soon("a refusal", async {
        loop {
            match members[0].control().add_peer(&addr).await {
                Err(ChangeServersError::Refused { reason })
                    if !reason.contains("cannot be reached") =>
                {
                    return reason;
                }
                Err(_) => tokio::time::sleep(LOOK).await,
                Ok(()) => panic!("a wiped server was let in"),
            }
        }
    })
    .await;
    assert!(reason.contains("muster operator raft remove"), "{reason}");
    // What others mean for its former self does not reach it.
    members[1].register("meanwhile").await;
    assert!(wiped.control().known_peers().is_empty());

    soon("a removal", members[0].control().remove_peer(former))
        .await
        .unwrap();
    wiped.until_voters(3).await;
    wiped.until_has("meanwhile").await;
    drop(cluster);
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_server_is_removed_after_replacement_joins() {
    let cluster = Cluster::new();
    let mut members: Vec<Member> = Vec::new();
    for number in 1..=3 {
        let first: Vec<&Member> = members.first().into_iter().collect();
        let config = ServerConfig {
            dead_server_after: Duration::from_secs(3),
            ..cluster.config(&format!("s{number}"), 3, &first)
        };
        members.push(Member::start(config).await);
    }
    for member in &members {
        member.until_voters(3).await;
    }
    let at = leader(&members).await;
    let dead = members.remove((at + 1) % 3);
    let dead_id = dead.id();
    dead.crash();

    let config = ServerConfig {
        dead_server_after: Duration::from_secs(3),
        ..cluster.config("s4", 0, &[&members[0]])
    };
    let new = Member::start(config).await;

    soon("the dead one is gone and the new one votes", async {
        loop {
            let known = new.control().known_peers();
            if known.len() == 3
                && known
                    .iter()
                    .all(|member| member.voter && member.server_id != dead_id)
            {
                return;
            }
            tokio::time::sleep(LOOK).await;
        }
    })
    .await;
    new.register("web").await;
}
