use std::collections::BTreeSet;

use super::*;

const START: Timestamp = Timestamp(1_000_000_000_000);

fn node(number: u64) -> NodeId {
    let mut id = [0; 16];
    id[..8].copy_from_slice(&mix(number).to_be_bytes());
    NodeId(id)
}

fn servers(number: u64) -> Servers<&'static str> {
    Servers::new(node(number), vec!["a", "b", "c"], Vec::new())
}

/// Tries servers that all fail at once, until `count` attempts were made.
fn attempts(servers: &mut Servers<&'static str>, count: usize) -> Vec<(&'static str, Timestamp)> {
    let mut now = START;
    (0..count)
        .map(|_| {
            let (server, at) = servers.next(now).unwrap();
            now = now.max(at);
            servers.handle_failure(&server, now);
            (server, now)
        })
        .collect()
}

#[test]
fn all_others_are_tried_at_once() {
    let tried = attempts(&mut servers(1), 3);

    assert!(tried.iter().all(|(_, at)| *at == START), "{tried:?}");
    let names: BTreeSet<_> = tried.iter().map(|(server, _)| *server).collect();
    assert_eq!(names.len(), 3);
}

#[test]
fn no_server_is_left_out_for_long() {
    let tried = attempts(&mut servers(1), 60);

    for window in tried.windows(6) {
        let names: BTreeSet<_> = window.iter().map(|(server, _)| *server).collect();
        assert_eq!(names.len(), 3, "{window:?}");
    }
}

#[test]
fn pauses_grow_to_a_bound() {
    let tried = attempts(&mut servers(1), 60);

    let times: Vec<Timestamp> = tried
        .iter()
        .filter(|(server, _)| *server == "a")
        .map(|(_, at)| *at)
        .collect();
    let pauses: Vec<Duration> = times.windows(2).map(|two| two[1].since(two[0])).collect();
    assert!(pauses[0] < Duration::from_millis(200), "{pauses:?}");
    let last = *pauses.last().unwrap();
    assert!(last >= RECONNECT_PAUSE_MAX / 2, "{pauses:?}");
    assert!(
        pauses
            .iter()
            .all(|pause| *pause <= RECONNECT_PAUSE_MAX + RECONNECT_PAUSE_MAX / 2)
    );
}

#[test]
fn pauses_stay_below_the_time_to_live() {
    let mut servers = Servers::new(node(1), vec!["a"], Vec::new());
    servers.set_ttl(Duration::from_secs(2));

    let tried = attempts(&mut servers, 30);

    assert!(
        tried
            .windows(2)
            .all(|two| two[1].1.since(two[0].1) <= Duration::from_secs(1))
    );
}

#[test]
fn nodes_spread_over_the_servers() {
    let mut counts = BTreeMap::new();
    for number in 0..300 {
        let (server, _) = servers(number).next(START).unwrap();
        *counts.entry(server).or_insert(0) += 1;
    }

    assert!(
        counts.values().all(|count| (70..130).contains(count)),
        "{counts:?}"
    );
}

#[test]
fn nodes_that_lose_a_server_come_back_spread() {
    let mut times = BTreeSet::new();
    for number in 0..100 {
        let mut servers = servers(number);
        servers.handle_lost(&"a", START);
        let (server, at) = servers.next(START).unwrap();
        assert_ne!(server, "a");
        assert!(at.since(START) <= RECONNECT_PAUSE_MAX / 4);
        times.insert(at);
    }

    assert!(times.len() > 90, "{}", times.len());
}

#[test]
fn server_retry_after_delay_is_respected() {
    let mut servers = Servers::new(node(1), vec!["a"], Vec::new());

    servers.handle_sent_away(&"a", Duration::from_secs(3), START);

    let (_, at) = servers.next(START).unwrap();
    let pause = at.since(START);
    assert!(
        (Duration::from_secs(3)..=Duration::from_secs(6)).contains(&pause),
        "{pause:?}"
    );
}

#[test]
fn a_server_cannot_send_away_for_ever() {
    let mut servers = Servers::new(node(1), vec!["a"], Vec::new());

    servers.handle_sent_away(&"a", Duration::from_hours(1), START);

    let (_, at) = servers.next(START).unwrap();
    assert!(at.since(START) <= RETRY_AFTER_MAX * 2);
}

#[test]
fn a_server_that_served_begins_afresh() {
    let mut servers = Servers::new(node(1), vec!["a"], Vec::new());
    attempts(&mut servers, 20);

    servers.handle_served(&"a");

    assert_eq!(servers.next(START), Some(("a", START)));
}

#[test]
fn servers_that_were_learned_are_tried_first() {
    let mut servers = Servers::new(node(1), vec!["old"], Vec::new());

    assert!(servers.learn(vec!["x", "y"]));

    let tried: Vec<_> = attempts(&mut servers, 3)
        .into_iter()
        .map(|(server, _)| server)
        .collect();
    assert_eq!(tried[2], "old");
    assert!(!servers.learn(vec!["y", "x"]));
    assert!(!servers.learn(Vec::new()));
    assert_eq!(servers.learned(), ["x", "y"]);
}

#[test]
fn a_server_that_left_the_cluster_is_forgotten() {
    let mut servers = Servers::new(node(1), vec!["a"], vec!["x", "y"]);
    attempts(&mut servers, 6);

    servers.learn(vec!["y"]);

    let tried: BTreeSet<_> = attempts(&mut servers, 6)
        .into_iter()
        .map(|(server, _)| server)
        .collect();
    assert_eq!(tried, BTreeSet::from(["a", "y"]));
    assert!(!servers.backoffs.contains_key("x"));
}
