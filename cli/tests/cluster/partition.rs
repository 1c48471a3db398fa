//! Partitions, and links with faults.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::client::{self, Clients, Http};
use crate::cluster::{
    Cluster, ClusterOptions, SERVERS, address, http, poll_until, relayed_address,
};
use crate::history::{Operation, Recorder};
use crate::limits;
use crate::network::Direction::{self, Incoming, Outgoing};
use crate::relay::{LinkFaults, Relay};
use crate::shared::TestCluster;

pub(crate) fn others(one: usize) -> Vec<usize> {
    (0..SERVERS.len()).filter(|at| *at != one).collect()
}

/// Cuts the links between `one` and the other servers; clients still reach it.
pub(crate) fn cut_off(cluster: &Cluster, one: usize, directions: &[Direction]) {
    for other in others(one) {
        for direction in directions {
            cluster
                .network
                .cut(SERVERS[one], *direction, address(other));
        }
    }
}

/// Writes at server `at` without a key and returns the status; 0 without a response.
fn write_at(at: usize, id: &str) -> u16 {
    let patient = Http::with_timeout(address(at), Duration::from_secs(15));
    let body = json!({ "Job": client::job(id, 1) });
    patient
        .put("/v1/jobs", None, &body)
        .map_or(0, |answer| answer.status)
}

/// A leader in a minority refuses writes and consistent reads with an error. The majority continues. Then the leader
/// rejoins.
#[test]
fn a_minority_refuses_and_the_majority_goes_on() {
    let Some(cluster) = TestCluster::shared("a_minority_refuses_and_the_majority_goes_on") else {
        return;
    };
    let clients = Clients::at_work();
    clients.wait_for_writes(20);
    let alone = cluster.leader();

    cut_off(&cluster, alone, &[Incoming, Outgoing]);
    let patient = Http::with_timeout(address(alone), Duration::from_secs(15));
    // The server waits for a leader for seconds before it refuses.
    let (refused, read, leader) = thread::scope(|scope| {
        let refused = scope.spawn(|| write_at(alone, "of-the-minority"));
        let read = scope.spawn(|| patient.get("/v1/jobs?consistent"));
        let leader = poll_until("a leader of the majority", || {
            cluster.leader_among(&others(alone))
        });
        clients.wait_for_writes(20);
        (refused.join().unwrap(), read.join().unwrap(), leader)
    });
    let stale = http(alone).get("/v1/jobs?stale");

    // The server accepted the write before it noticed the partition. The outcome is unknown until it rejoins: 504.
    assert!(
        [503, 504].contains(&refused),
        "the minority answered {refused}"
    );
    assert_eq!(read.expect("an answer").status, 503);
    assert_eq!(stale.expect("an answer").status, 200);
    assert_ne!(leader, alone);
    cluster.network.heal();
    clients.wait_for_writes(20);
    clients.finish();
    cluster.assert_healthy(&[]);
}

/// A partitioned follower disturbs no other server, neither during the partition nor when it rejoins.
#[test]
fn returning_follower_disturbs_no_other_server() {
    let Some(cluster) = TestCluster::shared("returning_follower_disturbs_no_other_server") else {
        return;
    };
    let clients = Clients::at_work();
    let leader = cluster.leader();
    let alone = others(leader)[0];

    cut_off(&cluster, alone, &[Incoming, Outgoing]);
    clients.wait_for_writes(20);
    thread::sleep(limits::ELECTION);
    let refused = write_at(alone, "of-the-follower");
    cluster.network.heal();
    clients.wait_for_writes(20);

    assert!([503, 504].contains(&refused), "it answered {refused}");
    assert_eq!(cluster.leader(), leader, "it had the others elect");
    clients.finish();
    cluster.assert_healthy(&[]);
}

/// A leader that can send but not receive steps down when its lease expires. The others elect a leader that commits
/// long before the connections time out.
#[test]
fn a_deaf_leader_gives_up() {
    let Some(cluster) = TestCluster::shared("a_deaf_leader_gives_up") else {
        return;
    };
    let clients = Clients::at_work();
    clients.wait_for_writes(20);
    let deaf_leader = cluster.leader();

    cut_off(&cluster, deaf_leader, &[Incoming]);
    let begun = Instant::now();
    poll_until("a leader of the others", || {
        cluster.leader_among(&others(deaf_leader))
    });
    let took = begun.elapsed();
    assert!(took < limits::SUCCESSION, "another led after {took:?}");
    clients.wait_for_writes(20);
    cluster.network.heal();

    clients.wait_for_writes(20);
    clients.finish();
    cluster.assert_healthy(&[]);
}

/// Delayed, duplicated, reordered or lost datagrams only make the cluster slower.
#[test]
fn bad_wires_only_make_it_slower() {
    let link_faults = LinkFaults {
        delay: Duration::from_millis(10),
        jitter: Duration::from_millis(30),
        lost: 5,
        doubled: 5,
    };
    let make = ClusterOptions {
        relayed: true,
        ..ClusterOptions::default()
    };
    // The relay is there before the servers look for each other.
    let ways: Vec<(SocketAddr, SocketAddr)> = (0..SERVERS.len())
        .map(|at| {
            (
                SocketAddr::from((relayed_address(at), 4647)),
                SocketAddr::from((address(at), 4647)),
            )
        })
        .collect();
    let start_relay = || Relay::start(&ways, link_faults);
    let Some((cluster, relay)) =
        TestCluster::own("bad_wires_only_make_it_slower", make, start_relay)
    else {
        return;
    };
    let clients = Clients::at_work();
    clients.wait_for_writes(100);

    clients.finish();
    cluster.assert_healthy(&[]);
    let [lost, doubled, passed] = relay.counts();
    eprintln!("{passed} datagrams passed, {doubled} twice, {lost} lost");
    assert!(lost > 20, "the wires were not bad: {lost}");
    assert!(doubled > 20, "the wires were not bad: {doubled}");
}

/// The check of histories detects violations: stale reads at a partitioned server fail it.
#[test]
fn stale_reads_do_not_pass_the_check() {
    let Some(cluster) = TestCluster::shared("stale_reads_do_not_pass_the_check") else {
        return;
    };
    let recorder = Recorder::default();
    let leader = cluster.leader();
    let behind = others(leader)[0];
    let servers = [http(leader)];
    let put = |value| {
        let called = recorder.now();
        let outcome = client::write(&servers, &recorder.job(0), value, None);
        recorder.note(0, called, Operation::Put { value, outcome });
    };
    let read = || {
        let called = recorder.now();
        let seen = poll_until("an old answer", || {
            let answer = http(behind).get(&format!("/v1/job/{}?stale", recorder.job(0)))?;
            client::seen(&answer)
        });
        recorder.note(0, called, Operation::Read(Some(seen)));
    };

    put(1);
    read();
    recorder.check();
    cut_off(&cluster, behind, &[Incoming, Outgoing]);
    put(2);
    read();

    let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| recorder.check()));
    assert!(checked.is_err(), "a stale read passed");
    cluster.network.heal();
    cluster.assert_healthy(&[]);
}
