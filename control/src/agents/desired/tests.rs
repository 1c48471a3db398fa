use muster_control_core::fixture::Cluster;
use muster_control_core::fsm::{Entry, NewOneOff};
use muster_domain::fixture::{job, node};
use muster_domain::resources::Mb;

use super::*;

/// Counts of a message's contents, in short.
fn shown(message: &ToAgent) -> (usize, usize, usize, Option<u32>) {
    let ToAgent::Desired {
        allocs,
        unchanged,
        gone,
        complete,
        ..
    } = message
    else {
        panic!("{message:?}")
    };
    (allocs.len(), unchanged.len(), gone.len(), *complete)
}

fn all(messages: &[ToAgent]) -> Vec<(usize, usize, usize, Option<u32>)> {
    messages.iter().map(shown).collect()
}

/// A node that runs `count` instances.
fn running(count: u32) -> (Cluster, NodeId) {
    let mut cluster = Cluster::new();
    let node_id = cluster.node(node("n1").build());
    cluster.run(job("web").count(count).build());
    (cluster, node_id)
}

#[test]
fn new_node_receives_all_allocs() {
    let (cluster, node_id) = running(2);
    let mut sent = SentDesired::up_to(node_id, LogIndex(0));

    assert_eq!(all(&sent.catch_up(&cluster.state)), [(2, 0, 0, Some(2))]);
    assert_eq!(sent.catch_up(&cluster.state), []);
}

#[test]
fn node_without_allocs_receives_an_empty_update() {
    let mut cluster = Cluster::new();
    let node_id = cluster.node(node("n1").build());

    let messages = SentDesired::up_to(node_id, LogIndex(0)).catch_up(&cluster.state);

    assert_eq!(all(&messages), [(0, 0, 0, Some(0))]);
}

#[test]
fn reconnected_node_receives_only_changed_allocs() {
    let (mut cluster, node_id) = running(2);
    let known = cluster.state.applied();
    cluster.run(job("db").build());

    let messages = SentDesired::up_to(node_id, known).catch_up(&cluster.state);

    assert_eq!(all(&messages), [(0, 2, 0, None), (1, 0, 0, Some(3))]);
}

#[test]
fn many_unchanged_allocations_are_cut_into_messages() {
    let mut cluster = Cluster::new();
    let count = u32::try_from(UNCHANGED_BATCH_MAX).unwrap() + 1;
    cluster.unchecked = true;
    let node_id = cluster.node(node("n1").cpu_mhz(1 << 30).memory_mb(1 << 30).build());
    cluster.run(job("web").cpu_mhz(1).memory_mb(1).count(count).build());
    let known = cluster.state.applied();

    let messages = SentDesired::up_to(node_id, known).catch_up(&cluster.state);

    assert_eq!(
        all(&messages),
        [(0, UNCHANGED_BATCH_MAX, 0, None), (0, 1, 0, Some(count))]
    );
}

/// Three allocations have vanished and one is new: the vanished ones are sent as gone, the new one in full.
#[test]
fn vanished_allocs_are_gone_at_any_position() {
    let (mut cluster, node_id) = running(1);
    for name in ["a", "b", "c", "d"] {
        cluster.run(job(name).build());
    }
    let mut sent = SentDesired::up_to(node_id, LogIndex(0));
    sent.catch_up(&cluster.state);
    let mut older = sent.known.clone();
    // The session acts as if it had sent one allocation before, one between and one after all others.
    let [before, between, after] =
        [(1, 0), (7, 3), (9_000, 0)].map(|(index, ordinal)| AllocId::at(LogIndex(index), ordinal));
    for alloc_id in [before, between, after] {
        older.push((
            cluster.state.allocs().key_of(&alloc_id).unwrap(),
            LogIndex(7),
        ));
    }
    older.sort_unstable();
    sent.known = older;
    cluster.run(job("e").build());

    let messages = sent.catch_up(&cluster.state);

    assert_eq!(all(&messages), [(1, 0, 3, Some(6))]);
    let Some(ToAgent::Desired { gone, .. }) = messages.last() else {
        panic!("{messages:?}")
    };
    assert_eq!(gone, &[before, between, after]);
    assert_eq!(sent.catch_up(&cluster.state), []);
}

/// A node receives remote tasks only with their own allocations.
#[test]
fn handles_go_with_their_allocations() {
    let (mut cluster, node_id) = running(2);
    let mut sent = SentDesired::up_to(node_id, LogIndex(0));
    sent.catch_up(&cluster.state);
    let alloc_id = cluster.live("web")[0].id;
    let handle = muster_domain::alloc::RemoteHandle {
        task: cluster.live("web")[0].group().tasks[0].name.clone(),
        handle: vec![1],
    };
    let running = muster_domain::alloc::ClientStatus::Running;
    cluster.report_remote(alloc_id, running, vec![handle.clone()]);

    assert_eq!(sent.catch_up(&cluster.state), [], "its agent knows");
    let mut anew = SentDesired::up_to(node_id, LogIndex(0));
    let messages = anew.catch_up(&cluster.state);

    let [ToAgent::Desired { allocs, remote, .. }] = messages.as_slice() else {
        panic!("{messages:?}")
    };
    assert_eq!(allocs.len(), 2);
    let [remote] = remote.as_slice() else {
        panic!("{remote:?}")
    };
    assert_eq!((remote.alloc_id, &remote.take), (alloc_id, &vec![handle]));
}

/// Without memory oversubscription, placement counts little memory for the task. That amount does not become its
/// limit.
#[test]
fn one_off_without_memory_limit_stays_unlimited() {
    for (memory_mb, limit) in [(0, Some(Mb::UNLIMITED)), (64, None)] {
        let mut cluster = Cluster::new();
        let node_id = cluster.node(node("n1").build());
        let mut definition = muster_domain::fixture::definition();
        definition.memory_mb = memory_mb;
        let tasks = vec![NewOneOff {
            guid: "task-1".to_owned(),
            domain: "apps".to_owned(),
            definition,
        }];
        let at = cluster.now;
        cluster.apply(Entry::desire_one_offs(tasks, at));
        cluster.settle();

        let messages = SentDesired::up_to(node_id, LogIndex(0)).catch_up(&cluster.state);

        let [ToAgent::Desired { allocs, .. }] = messages.as_slice() else {
            panic!("{messages:?}")
        };
        let resources = &allocs[0].job.spec.groups[0].tasks[0].resources;
        assert_eq!(resources.memory_max, limit, "{memory_mb} MiB");
    }
}

/// A service keeps only `memory` while memory is not oversubscribed.
#[test]
fn service_memory_max_is_stripped_without_oversubscription() {
    let mut cluster = Cluster::new();
    let node_id = cluster.node(node("n1").build());
    let mut spec = job("web").build();
    spec.groups[0].tasks[0].resources.memory_max = Some(Mb(512));
    cluster.run(spec);

    let messages = SentDesired::up_to(node_id, LogIndex(0)).catch_up(&cluster.state);

    let [ToAgent::Desired { allocs, .. }] = messages.as_slice() else {
        panic!("{messages:?}")
    };
    let resources = &allocs[0].job.spec.groups[0].tasks[0].resources;
    assert_eq!(resources.memory_max, None);
}
