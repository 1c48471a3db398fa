//! The forming of a cluster.

use std::time::Duration;

use muster_control::handle::Consistency;
use muster_control::server::ServerConfig;

use super::{Cluster, LOOK, Member, free_addr, has, leader};
use crate::fixture::soon;

#[tokio::test(flavor = "multi_thread")]
async fn three_servers_form_cluster_and_serve_requests() {
    let (_cluster, members) = Cluster::of(3).await;

    for (number, member) in members.iter().enumerate() {
        let name = format!("job-{number}");
        member.register(&name).await;
        for reader in &members {
            for consistency in [Consistency::Leader, Consistency::Linearizable] {
                assert!(
                    has(&reader.read(consistency).await, &name),
                    "{} at {consistency:?}",
                    reader.name()
                );
            }
            reader.until_has(&name).await;
        }
    }
    let states: Vec<_> = members
        .iter()
        .map(|member| member.control().state())
        .collect();
    assert!(states.iter().all(|state| state.jobs() == states[0].jobs()));
    let tag = states[0].cluster();
    assert_ne!(tag.get(), 0);
    assert!(states.iter().all(|state| state.cluster() == tag));
}

#[tokio::test(flavor = "multi_thread")]
async fn five_servers_form_a_cluster_that_survives_two() {
    let (_cluster, mut members) = Cluster::of(5).await;
    members[3].register("before").await;

    let first = leader(&members).await;
    members.remove(first).crash();
    let second = leader(&members).await;
    members.remove(second).crash();

    leader(&members).await;
    members[0].register("after").await;
    for member in &members {
        member.until_has("before").await;
        member.until_has("after").await;
    }
}

/// Exactly one cluster of three forms, whichever server comes first and whichever server dies meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn deaths_while_a_cluster_forms_leave_one_cluster() {
    for round in 0..4_u64 {
        let cluster = Cluster::new();
        let addrs: Vec<_> = (0..3).map(|_| free_addr()).collect();
        let configs: Vec<ServerConfig> = (0..3)
            .map(|number| ServerConfig {
                quic_addr: addrs[number],
                join: addrs.iter().map(ToString::to_string).collect(),
                ..cluster.config(&format!("s{number}"), 3, &[])
            })
            .collect();
        let mut members = Vec::new();
        for config in &configs {
            members.push(Member::start(config.clone()).await);
        }
        // Each dies once, at another time in each round.
        for victim in 0..3 {
            tokio::time::sleep(Duration::from_millis(round * 90)).await;
            let config = members.remove(0).crash();
            tokio::time::sleep(Duration::from_millis(20 * victim)).await;
            members.push(Member::start(config).await);
        }

        for member in &members {
            member.until_voters(3).await;
        }
        leader(&members).await;
        members[0].register("one-cluster").await;
        for member in &members {
            member.until_has("one-cluster").await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn server_with_join_becomes_member_after_init() {
    let cluster = Cluster::new();
    let one = Member::start(cluster.config("s1", 0, &[])).await;
    let two = Member::start(cluster.config("s2", 0, &[&one])).await;
    soon("they have met", async {
        while one.control().peers().node(two.id()).is_none() {
            tokio::time::sleep(LOOK).await;
        }
    })
    .await;
    assert!(one.control().leader().is_none());

    let founded = soon("init", one.control().init()).await.unwrap();

    assert_eq!(founded.len(), 2);
    for member in [&one, &two] {
        member.until_voters(2).await;
    }
    two.register("web").await;
    one.until_has("web").await;
    assert!(
        two.control().init().await.is_err(),
        "there is a cluster already"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn joining_servers_start_as_learners_then_vote() {
    let cluster = Cluster::new();
    let one = Member::start(cluster.config("s1", 1, &[])).await;
    for number in 0..50 {
        one.register(&format!("job-{number}")).await;
    }

    let two = Member::start(cluster.config("s2", 0, &[&one])).await;
    two.until_has("job-49").await;
    two.until_voters(2).await;
    let three = Member::start(cluster.config("s3", 0, &[&two])).await;
    three.until_voters(3).await;
    three.register("by-three").await;

    // It counts: without the first, the two others have the majority.
    one.crash();
    leader_of(&[&two, &three]).await;
    two.register("by-two").await;
}

async fn leader_of(members: &[&Member]) {
    soon("a leader", async {
        while !members.iter().any(|member| member.leads()) {
            tokio::time::sleep(LOOK).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_has_moved_is_found_again() {
    let (_cluster, mut members) = Cluster::of(3).await;
    let config = members.remove(2).stop().await;
    members[0].register("meanwhile").await;

    let moved = ServerConfig {
        quic_addr: "127.0.0.1:0".parse().unwrap(),
        http_addr: "127.0.0.1:0".parse().unwrap(),
        ..config
    };
    let moved = Member::start(moved).await;

    moved.until_has("meanwhile").await;
    soon("the membership knows", async {
        loop {
            let known = members[0].control().known_peers();
            let node = known
                .iter()
                .find(|known| known.server_id == moved.id())
                .unwrap();
            if node.node.quic_addr == moved.quic_addr() {
                return;
            }
            tokio::time::sleep(LOOK).await;
        }
    })
    .await;
    moved.register("from-there").await;
}

/// All at once, with nothing but the first one's old address to go by.
#[tokio::test(flavor = "multi_thread")]
async fn all_servers_can_change_addresses() {
    let (_cluster, members) = Cluster::of(3).await;
    members[1].register("before").await;
    let mut configs = Vec::new();
    for member in members {
        configs.push(member.stop().await);
    }
    let addrs: Vec<_> = (0..3).map(|_| free_addr()).collect();
    let mut members = Vec::new();
    for (number, config) in configs.into_iter().enumerate() {
        let config = ServerConfig {
            quic_addr: addrs[number],
            join: addrs.iter().map(ToString::to_string).collect(),
            ..config
        };
        members.push(Member::start(config).await);
    }

    leader(&members).await;
    members[0].register("after").await;
    members[2].until_has("after").await;
}
